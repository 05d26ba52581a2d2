//! Statements: branches, loops and assignments.

use std::sync::Arc;

use super::Walk;
use crate::diag::Span;
use crate::template::code::{CAPTURED, For, Node, Stmt, Target};
use crate::template::taint::{Level, MAX_DEPTH, Taint, TaintTree};

impl<'e> Walk<'e> {
    pub(super) fn stmts(&mut self, stmts: &'e [Stmt]) {
        for stmt in stmts {
            if self.is_exhausted() {
                return;
            }
            self.steps += 1;
            match stmt {
                Stmt::Raw(text, offset) => {
                    let blank = text.len() - text.trim_start().len();
                    if self.control.is_some() && blank < text.len() {
                        let (start, end) = (offset + blank, offset + text.trim_end().len());
                        self.put_written(Span::new(start, end));
                    }
                }
                Stmt::Emit(node) => {
                    let tree = self.eval(node);
                    self.put(tree, node.span);
                }
                Stmt::Do(node) => {
                    self.eval(node);
                }
                Stmt::Set { target, value } => {
                    let tree = self.eval(value);
                    self.assign(target, tree);
                }
                Stmt::SetBlock { target, filter, body } => {
                    let captured = self.captured(body);
                    let tree = match filter {
                        Some(filter) => self.filtered(filter, captured),
                        None => captured,
                    };
                    self.assign(target, tree);
                }
                Stmt::Filter { filter, body } => {
                    let captured = self.captured(body);
                    let tree = self.filtered(filter, captured);
                    self.put(tree, first_span(body).unwrap_or(filter.span));
                }
                Stmt::If { test, then, otherwise } => {
                    let told = self.truth(test);
                    self.branches(told, then, otherwise);
                }
                Stmt::With { assignments, body } => {
                    self.frames.push(self.locals.len());
                    for (target, value) in assignments {
                        let tree = self.eval(value);
                        self.assign(target, tree);
                    }
                    self.stmts(body);
                    self.close();
                }
                Stmt::For(def) => self.for_loop(def),
            }
        }
    }

    fn filtered(&mut self, filter: &'e Node, captured: TaintTree) -> TaintTree {
        self.frames.push(self.locals.len());
        self.locals.push((CAPTURED.into(), captured));
        let tree = self.eval(filter);
        self.close();
        tree
    }

    /// Walks both branches. After them a variable may have the value of either.
    fn branches(&mut self, told: Option<Taint>, then: &'e [Stmt], otherwise: &'e [Stmt]) {
        let outer = self.control.clone();
        self.control = Taint::higher(outer.clone(), told);
        let before = self.locals.clone();
        self.stmts(then);
        let first = std::mem::replace(&mut self.locals, before);
        self.stmts(otherwise);
        for (name, tree) in first {
            if let Some(index) = self.locals.iter().rposition(|(known, _)| *known == name) {
                let known = std::mem::take(&mut self.locals[index].1);
                self.locals[index].1 = known.join(tree);
            } else {
                // In the other branch the name keeps its outer value.
                let outside = self.outside(&name).with(self.control.clone());
                self.locals.push((name, tree.join(outside)));
            }
        }
        self.control = outer;
    }

    fn for_loop(&mut self, def: &'e For) {
        let iterated = self.eval(&def.iter);
        // The number of iterations is revealed by what the loop writes.
        let told = iterated.own.as_ref().map(|own| own.at_least(Level::Bits));
        let element = iterated.elements();
        let start = self.out.len();
        let outer = self.control.clone();
        self.stable(|walk| {
            walk.out.truncate(start);
            walk.control = Taint::higher(outer.clone(), told.clone());
            walk.frames.push(walk.locals.len());
            walk.assign(&def.target, element.clone());
            if let Some(filter) = &def.filter {
                let told = walk.truth(filter);
                walk.control = Taint::higher(walk.control.clone(), told);
            }
            let state = [("previtem".to_owned(), element.clone()), ("nextitem".to_owned(), element.clone())];
            let state = TaintTree::map(state).with(walk.control.clone());
            walk.locals.push(("loop".into(), state));
            walk.stmts(&def.body);
            walk.close();
        });
        self.control = Taint::higher(outer.clone(), told);
        self.stmts(&def.otherwise);
        self.control = outer;
    }

    fn assign(&mut self, target: &'e Target, tree: TaintTree) {
        let tree = tree.with(self.control.clone()).limited(MAX_DEPTH);
        match target {
            Target::Name(name) => {
                let start = self.frames.last().copied().unwrap_or(0);
                match self.locals[start..].iter_mut().find(|(known, _)| known == name) {
                    Some(entry) => entry.1 = tree,
                    None => self.locals.push((Arc::clone(name), tree)),
                }
            }
            Target::Field(_, field, _) => {
                let known = self.namespaces.remove(field).unwrap_or_default();
                self.namespaces.insert(Arc::clone(field), known.join(tree).limited(MAX_DEPTH));
            }
            Target::List(targets, _) => {
                for (index, target) in targets.iter().enumerate() {
                    let item = tree.get(Some(&index.to_string()));
                    self.assign(target, item);
                }
            }
        }
    }
}

/// The span of the first text or value of a block.
fn first_span(body: &[Stmt]) -> Option<Span> {
    body.iter().find_map(|stmt| match stmt {
        Stmt::Raw(text, offset) => {
            let start = offset + text.len() - text.trim_start().len();
            (!text.trim().is_empty()).then(|| Span::new(start, start + 1))
        }
        Stmt::Emit(node) => Some(node.span),
        Stmt::If { then, .. } => first_span(then),
        Stmt::For(def) => first_span(&def.body),
        Stmt::With { body, .. } | Stmt::Filter { body, .. } => first_span(body),
        Stmt::Set { .. } | Stmt::SetBlock { .. } | Stmt::Do(_) => None,
    })
}
