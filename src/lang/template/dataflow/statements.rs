//! Statements: branches, loops and assignments.

use super::paths::{Form, Paths};
use super::{Tracer, Value, folded};
use crate::diag::Span;
use crate::template::code::{Assignee, CAPTURED, For, Node, Stmt};
use crate::template::names::Merged;
use crate::template::taint::{Level, MAX_DEPTH, Taint, TaintTree};

impl<'e> Tracer<'e> {
    pub(super) fn stmts(&mut self, stmts: &'e [Stmt]) {
        for stmt in stmts {
            if self.is_exhausted() {
                return;
            }
            self.visit();
            match stmt {
                Stmt::Raw(text, offset) => self.put_written(text, *offset),
                Stmt::Emit(node) => {
                    let value = self.read(node, false);
                    self.put(value, node.span);
                }
                Stmt::Do(node) => {
                    self.read(node, false);
                }
                Stmt::Set { target, value } => {
                    let value = self.eval(value, false);
                    self.assign(target, value);
                }
                Stmt::SetBlock { target, filter, body } => {
                    let captured = self.captured(filter.as_ref(), body);
                    self.assign(target, captured.into());
                }
                Stmt::Filter { filter, body } => {
                    let tree = self.captured(Some(filter), body);
                    self.put(tree, first_span(body).unwrap_or(filter.span));
                }
                Stmt::If { test, then, otherwise } => {
                    let told = self.read(test, true).truth();
                    self.branches(told, then, otherwise);
                }
                Stmt::With { assignments, body } => {
                    self.names.open();
                    for (target, value) in assignments {
                        let value = self.eval(value, false);
                        self.assign(target, value);
                    }
                    self.stmts(body);
                    self.names.close();
                }
                Stmt::For(def) => self.for_loop(def),
            }
        }
    }

    /// The output of statements as one value, passed through a filter.
    fn captured(&mut self, filter: Option<&'e Node>, body: &'e [Stmt]) -> TaintTree {
        let out = self.collect(false, |tracer| {
            tracer.names.open();
            tracer.stmts(body);
            tracer.names.close();
        });
        let Some(filter) = filter else { return folded(&out) };
        self.names.open();
        self.names.push(CAPTURED.into(), folded(&out).into());
        let tree = self.read(filter, false);
        self.names.close();
        tree
    }

    /// Walks both branches. After them a variable may have the value of either.
    fn branches(&mut self, told: Option<Taint>, then: &'e [Stmt], otherwise: &'e [Stmt]) {
        let outer = self.control.clone();
        self.control = Taint::higher(outer.clone(), told);
        let fork = self.names.fork();
        self.stmts(then);
        let first = self.names.undo(fork);
        self.stmts(otherwise);
        let second = self.names.undo(fork);
        for Merged { name, values, by_second } in self.names.merge(first, second) {
            let [left, right] = values.map(|value| {
                value.unwrap_or_else(|| self.outside(&name, Span::default(), true).with(self.control.clone()))
            });
            let paths = self.either(left.paths, right.paths);
            // Of equal taints, messages name that of the branch that set the variable last.
            let (left, right) = if by_second { (right.taint, left.taint) } else { (left.taint, right.taint) };
            self.names.set(&name, Value { paths, taint: left.join(right) });
        }
        self.control = outer;
    }

    fn for_loop(&mut self, def: &'e For) {
        let iterated = self.eval(&def.iter, false);
        self.add(&iterated.paths, true);
        // The number of iterations is revealed by what the loop writes.
        let told = iterated.taint.structure().map(|own| own.at_least(Level::Bits));
        let paths = iterated.paths.elements(&self.location(def.iter.span)).element();
        let element = Value { paths, taint: iterated.taint.elements() };
        let start = self.out.len();
        let outer = self.control.clone();
        self.stable(|tracer| {
            tracer.out.truncate(start);
            tracer.control = Taint::higher(outer.clone(), told.clone());
            tracer.names.open();
            tracer.assign(&def.target, element.clone());
            if let Some(filter) = &def.filter {
                let told = tracer.read(filter, true).truth();
                tracer.control = Taint::higher(tracer.control.clone(), told);
            }
            let state = ["previtem", "nextitem"].map(|name| (name.to_owned(), element.taint.clone()));
            let state = TaintTree::map(state).with(tracer.control.clone());
            tracer.names.push("loop".into(), state.into());
            tracer.stmts(&def.body);
            tracer.names.close();
        });
        self.control = outer;
        self.branches(told, &def.otherwise, &[]);
    }

    fn assign(&mut self, target: &'e Assignee, value: Value) {
        let Value { mut paths, taint } = value;
        let taint = taint.with(self.control.clone()).limited(MAX_DEPTH);
        match target {
            Assignee::Name(name) => {
                if paths.form == Form::Pair {
                    self.add(&paths, false);
                    paths = Paths::default();
                }
                self.names.set(name, Value { paths, taint });
            }
            Assignee::Field(_, field, _) => {
                self.add(&paths, false);
                self.set_field(field, taint);
            }
            Assignee::List(targets, _) => {
                let is_pair = paths.form == Form::Pair && targets.len() == 2;
                if !is_pair {
                    self.add(&paths, false);
                    paths = Paths::default();
                }
                for (index, target) in targets.iter().enumerate() {
                    let paths =
                        if index == 1 { paths.clone().with_form(Form::Value) } else { Paths::default() };
                    self.assign(target, Value { paths, taint: taint.get(Some(&index.to_string())) });
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
