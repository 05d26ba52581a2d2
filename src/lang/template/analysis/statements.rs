//! Statements: the paths that names stand for.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{Analysis, Origin, Shape, elements, root};
use crate::diag::Span;
use crate::template::code::{CAPTURED, For, Node, Stmt, Target};

impl Analysis<'_> {
    pub(super) fn stmts(&mut self, stmts: &[Stmt]) {
        for stmt in stmts {
            match stmt {
                Stmt::Raw(..) => {}
                Stmt::Emit(node) | Stmt::Do(node) => self.record(node, false),
                Stmt::Set { target, value } => {
                    let origin = self.origin(value, false);
                    self.assign(target, origin);
                }
                Stmt::SetBlock { target, filter, body } => {
                    self.captured(filter.as_ref(), body);
                    self.assign(target, Origin::default());
                }
                Stmt::Filter { filter, body } => self.captured(Some(filter), body),
                Stmt::If { test, then, otherwise } => {
                    self.record(test, true);
                    self.either_branch(then, otherwise);
                }
                Stmt::With { assignments, body } => {
                    self.open();
                    for (target, value) in assignments {
                        let origin = self.origin(value, false);
                        self.assign(target, origin);
                    }
                    self.stmts(body);
                    self.close();
                }
                Stmt::For(def) => self.for_loop(def),
            }
        }
    }

    fn captured(&mut self, filter: Option<&Node>, body: &[Stmt]) {
        self.open();
        self.stmts(body);
        self.close();
        if let Some(filter) = filter {
            self.open();
            self.locals.push((CAPTURED.into(), Origin::default()));
            self.record(filter, false);
            self.close();
        }
    }

    fn for_loop(&mut self, def: &For) {
        let iterated = self.origin(&def.iter, false);
        self.add(&iterated, true);
        let elements = elements(iterated, &self.location(def.iter.span));
        self.open();
        match (&def.target, elements.shape) {
            (Target::List(targets, _), Shape::Pairs) if targets.len() == 2 => {
                self.assign(&targets[0], Origin::default());
                self.assign(&targets[1], Origin { shape: Shape::Value, ..elements });
            }
            (target @ Target::Name(_), Shape::Elements) => {
                self.assign(target, Origin { shape: Shape::Value, ..elements });
            }
            (target, _) => {
                self.add(&elements, false);
                self.assign(target, Origin::default());
            }
        }
        self.locals.push(("loop".into(), Origin::default()));
        if let Some(filter) = &def.filter {
            self.record(filter, true);
        }
        self.stmts(&def.body);
        self.close();
        self.either_branch(&def.otherwise, &[]);
    }

    /// Analyses two branches, one of which is taken. A name that only one of them sets may keep its previous value.
    fn either_branch(&mut self, then: &[Stmt], otherwise: &[Stmt]) {
        let start = self.frames.last().copied().unwrap_or(0);
        let before = self.locals.len();
        let mut set = Vec::new();
        for branch in [then, otherwise] {
            self.branches.push((self.frames.len(), BTreeSet::new()));
            self.stmts(branch);
            set.extend(self.branches.pop().map(|(_, names)| names));
        }
        let (Some(second), Some(first)) = (set.pop(), set.pop()) else { return };
        for name in first.symmetric_difference(&second) {
            if self.locals[start..before].iter().any(|(known, _)| known == name) {
                continue;
            }
            let location = self.location(Span::default());
            let outer = self.locals[..before].iter().rev().find(|(known, _)| known == name);
            let fallback = match outer {
                Some((_, origin)) => origin.clone(),
                None => root(name, &location, true),
            };
            if let Some(index) = self.locals[before..].iter().position(|(known, _)| known == name) {
                let known = std::mem::take(&mut self.locals[before + index].1);
                self.locals[before + index].1 = self.either(known, fallback);
            }
        }
        if let Some((frames, names)) = self.branches.last_mut()
            && *frames == self.frames.len()
        {
            names.extend(first);
            names.extend(second);
        }
    }

    fn assign(&mut self, target: &Target, origin: Origin) {
        match target {
            Target::Name(name) => {
                let depth = self.frames.len();
                let in_branch = self.branches.last_mut().is_some_and(|(frames, names)| {
                    let here = *frames == depth;
                    if here {
                        names.insert(Arc::clone(name));
                    }
                    here
                });
                let start = self.frames.last().copied().unwrap_or(0);
                match self.locals[start..].iter().position(|(known, _)| known == name) {
                    Some(index) if in_branch => {
                        let known = std::mem::take(&mut self.locals[start + index].1);
                        self.locals[start + index].1 = self.either(known, origin);
                    }
                    Some(index) => self.locals[start + index].1 = origin,
                    None => self.locals.push((Arc::clone(name), origin)),
                }
            }
            Target::Field(..) => self.add(&origin, false),
            Target::List(targets, _) => {
                self.add(&origin, false);
                for target in targets {
                    self.assign(target, Origin::default());
                }
            }
        }
    }
}
