//! Executes statements. They produce pieces: literal text and values.

use std::sync::{Arc, PoisonError};

use super::code::{Assignee, CAPTURED, For, Node, Piece, Slot, Stmt};
use super::errors::{Fault, Res};
use super::eval::Cx;
use super::value::{LoopVal, Name, Val};

impl Cx<'_> {
    pub(super) fn exec(&mut self, stmts: &[Stmt], out: &mut Vec<Piece>) -> Res<()> {
        for stmt in stmts {
            self.run.fuel(1)?;
            match stmt {
                Stmt::Raw(text, offset) => {
                    self.run.memory(text.len())?;
                    out.push(Piece::Raw(Arc::clone(text), *offset));
                }
                Stmt::Emit(node) => self.emit(node, out)?,
                Stmt::Set { target, value } => {
                    let value = self.eval(value)?;
                    self.assign(target, value)?;
                }
                Stmt::If { test, then, otherwise } => {
                    let branch = if self.truthy(test)? { then } else { otherwise };
                    self.nested(branch, out)?;
                }
                Stmt::For(def) => {
                    self.run.enter(2)?;
                    let result = self.for_loop(def, out);
                    self.run.leave(2);
                    result?;
                }
                Stmt::With { assignments, body } => self.with(assignments, body, out)?,
                Stmt::SetBlock { target, filter, body } => self.set_block(target, filter.as_ref(), body)?,
                Stmt::Filter { filter, body } => self.filter_block(filter, body, out)?,
                Stmt::Do(node) => {
                    self.eval(node)?;
                }
            }
        }
        Ok(())
    }

    fn nested(&mut self, body: &[Stmt], out: &mut Vec<Piece>) -> Res<()> {
        self.run.enter(2)?;
        let result = self.exec(body, out);
        self.run.leave(2);
        result
    }

    /// Emits a value. An error counts only if the value is used: a comment does not use it.
    fn emit(&mut self, node: &Node, out: &mut Vec<Piece>) -> Res<()> {
        let val = match self.eval(node) {
            // The result of a macro or a `set` block counts as written here.
            Ok(Val::Fragment(pieces)) => {
                self.run.fuel(pieces.len())?;
                for piece in pieces.iter() {
                    if let Piece::Raw(text, _) = piece {
                        self.run.memory(text.len())?;
                    }
                }
                self.run.items(pieces.len())?;
                out.extend(pieces.iter().cloned());
                return Ok(());
            }
            Ok(Val::Undefined) => Err(self.undefined(node)),
            Err(fault) if fault.is_limit() => return Err(fault),
            other => other,
        };
        self.run.items(1)?;
        out.push(Piece::Slot(Slot { val, span: node.span }));
        Ok(())
    }

    fn assign(&mut self, target: &Assignee, value: Val) -> Res<()> {
        match target {
            Assignee::Name(name) => {
                self.names.set(name, value);
                Ok(())
            }
            Assignee::Field(namespace, field, span) => {
                let result = match self.lookup(namespace) {
                    Some(Val::Namespace(namespace)) => {
                        // Put into a list first, because a list refuses values that contain themselves or are
                        // nested too deep.
                        Val::list(vec![value.clone()]).map(|_| {
                            let mut fields = namespace.lock().unwrap_or_else(PoisonError::into_inner);
                            fields.insert(Arc::clone(field), value);
                        })
                    }
                    _ => Err(Fault::failed(format!("`{namespace}` is not a namespace"))
                        .help(format!("`{{% set {namespace} = namespace({field}=0) %}}`"))),
                };
                result.map_err(|fault| fault.at(&self.unit.source, *span))
            }
            Assignee::List(targets, span) => {
                let at = |fault: Fault, cx: &Self| fault.at(&cx.unit.source, *span);
                let items = unpack(self, &value).map_err(|fault| at(fault, self))?;
                if items.len() != targets.len() {
                    let message = format!("{} items for {} names", items.len(), targets.len());
                    return Err(at(Fault::failed(message), self));
                }
                for (target, item) in targets.iter().zip(items) {
                    self.assign(target, item)?;
                }
                Ok(())
            }
        }
    }

    pub(super) fn lookup(&self, name: &Name) -> Option<Val> {
        self.names.get(name).or_else(|| self.scope.get(name)).cloned()
    }

    fn with(&mut self, assignments: &[(Assignee, Node)], body: &[Stmt], out: &mut Vec<Piece>) -> Res<()> {
        self.names.open();
        let mut inner = || -> Res<()> {
            for (target, value) in assignments {
                let value = self.eval(value)?;
                self.assign(target, value)?;
            }
            self.nested(body, out)
        };
        let result = inner();
        self.names.close();
        result
    }

    /// The pieces of a block.
    fn capture(&mut self, body: &[Stmt]) -> Res<Val> {
        let mut pieces = Vec::new();
        self.names.open();
        let result = self.nested(body, &mut pieces);
        self.names.close();
        result.map(|()| Val::Fragment(Arc::new(pieces)))
    }

    /// The pieces of a block as text, passed through a filter.
    fn filtered(&mut self, filter: &Node, captured: &Val) -> Res<Val> {
        let text = captured.text(self.run).map_err(|fault| fault.at(&self.unit.source, filter.span))?;
        self.names.open();
        self.names.push(CAPTURED.into(), Val::Str(text));
        let result = self.eval(filter);
        self.names.close();
        result
    }

    fn set_block(&mut self, target: &Assignee, filter: Option<&Node>, body: &[Stmt]) -> Res<()> {
        let captured = self.capture(body)?;
        let value = match filter {
            Some(filter) => self.filtered(filter, &captured)?,
            None => captured,
        };
        self.assign(target, value)
    }

    fn filter_block(&mut self, filter: &Node, body: &[Stmt], out: &mut Vec<Piece>) -> Res<()> {
        let captured = self.capture(body)?;
        let val = match self.filtered(filter, &captured) {
            Err(fault) if fault.is_limit() => return Err(fault),
            other => other,
        };
        self.run.items(1)?;
        out.push(Piece::Slot(Slot { val, span: filter.span }));
        Ok(())
    }

    fn for_loop(&mut self, def: &For, out: &mut Vec<Piece>) -> Res<()> {
        let value = match self.eval(&def.iter)? {
            Val::Undefined => {
                let fault = self.undefined(&def.iter);
                return Err(fault);
            }
            value => value,
        };
        let items = value.iterate(self.run).map_err(|fault| fault.at(&self.unit.source, def.iter.span))?;
        let items = match &def.filter {
            Some(filter) => self.selected(def, filter, items)?,
            None => items,
        };
        if items.is_empty() {
            return self.exec(&def.otherwise, out);
        }
        self.loops += 1;
        let mut result = Ok(());
        for (index, item) in items.iter().enumerate() {
            self.names.open();
            if def.uses_loop {
                self.run.items(1)?;
                let state = LoopVal {
                    index0: index,
                    length: items.len(),
                    depth0: self.loops - 1,
                    previous: index
                        .checked_sub(1)
                        .and_then(|i| items.get(i))
                        .cloned()
                        .unwrap_or(Val::Undefined),
                    next: items.get(index + 1).cloned().unwrap_or(Val::Undefined),
                };
                self.names.push("loop".into(), Val::Loop(Arc::new(state)));
            }
            result = self.assign(&def.target, item.clone()).and_then(|()| self.exec(&def.body, out));
            self.names.close();
            if result.is_err() {
                break;
            }
        }
        self.loops -= 1;
        result
    }

    /// The items of a `for ... if` whose condition is true.
    fn selected(&mut self, def: &For, filter: &Node, items: Vec<Val>) -> Res<Vec<Val>> {
        let mut kept = Vec::new();
        for item in items {
            self.names.open();
            let keep = self.assign(&def.target, item.clone()).and_then(|()| self.truthy(filter));
            self.names.close();
            if keep? {
                kept.push(item);
            }
        }
        Ok(kept)
    }
}

fn unpack(cx: &Cx<'_>, value: &Val) -> Res<Vec<Val>> {
    match &*value.defined()?.resolved(cx.run)? {
        Val::List(list) => {
            cx.run.items(list.items.len())?;
            Ok(list.items.clone())
        }
        // A group in the result of `groupby`.
        Val::Map(map) if map.entries.len() == 2 => {
            match (map.entries.get("grouper"), map.entries.get("list")) {
                (Some(key), Some(items)) => Ok(vec![key.clone(), items.clone()]),
                _ => Err(Fault::failed("a map cannot be unpacked").help("loop over `map | items`")),
            }
        }
        other => Err(Fault::failed(format!("{} cannot be unpacked", other.kind()))
            .help("to loop over keys and values, loop over `map | items`")),
    }
}
