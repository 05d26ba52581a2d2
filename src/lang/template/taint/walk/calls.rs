//! Variables, `let`s, partials and macros.

use std::sync::Arc;

use super::{MAX_OPEN, Placed, Walk, folded};
use crate::template::code::{Kind, Node, Unit};
use crate::template::partial_path;
use crate::template::taint::{Inserted, Level, Locals, MAX_DEPTH, Position, Shape, TaintTree};
use crate::template::text::TextUnit;
use crate::template::value::Name;

impl<'e> Walk<'e> {
    /// The taint of a name that no statement has set.
    pub(super) fn outside(&mut self, name: &Name) -> TaintTree {
        if let Some((_, tree)) = self.given.iter().rev().find(|(known, _)| known == name) {
            return tree.clone();
        }
        if &**name == "let" {
            let scope = self.scope;
            let all: Vec<_> = scope.lets.iter().map(|(name, _)| name.to_owned()).collect();
            return TaintTree::map(all.into_iter().map(|name| (name.clone(), self.let_value(&name))));
        }
        self.scope.roots.get(&**name).cloned().unwrap_or_default()
    }

    pub(super) fn variable(&mut self, name: &Name) -> TaintTree {
        match self.locals.iter().rev().find(|(known, _)| known == name) {
            Some((_, tree)) => tree.clone(),
            None => self.outside(name),
        }
    }

    pub(super) fn is_let(&self, node: &Node) -> bool {
        let Kind::Var(name) = &node.kind else { return false };
        &**name == "let" && !self.locals.iter().chain(&self.given).any(|(known, _)| known == name)
    }

    /// The taint of `let.name`, evaluated with the variables that the enclosing partials have received.
    pub(super) fn let_value(&mut self, name: &str) -> TaintTree {
        let Some(text) = self.scope.lets.get(name) else { return TaintTree::default() };
        let TextUnit::Template(unit) = &*text.0 else { return TaintTree::default() };
        if self.open >= MAX_OPEN || self.lets.iter().any(|open| open == name) {
            return self.anything();
        }
        self.lets.push(name.to_owned());
        let tree = self.inside(unit, Locals::new(), |walk| walk.text(unit));
        self.lets.pop();
        tree
    }

    /// Walks another text with its own variables.
    fn inside<T>(&mut self, unit: &'e Unit, given: Locals, work: impl FnOnce(&mut Self) -> T) -> T {
        self.open += 1;
        let known = self.given.len();
        self.given.extend(given);
        let unit = std::mem::replace(&mut self.unit, unit);
        let locals = std::mem::take(&mut self.locals);
        let frames = std::mem::take(&mut self.frames);
        let control = self.control.take();
        let result = work(self);
        self.control = control;
        self.frames = frames;
        self.locals = locals;
        self.unit = unit;
        self.given.truncate(known);
        self.open -= 1;
        result
    }

    pub(super) fn partial(&mut self, name: &Name, vars: &'e [(Name, Node)]) -> TaintTree {
        let given: Locals = vars.iter().map(|(name, node)| (Arc::clone(name), self.eval(node))).collect();
        let Some(template) = self.engine.template(&partial_path(name)) else { return TaintTree::default() };
        if self.open >= MAX_OPEN {
            return self.anything();
        }
        let unit = &template.unit;
        let yaml = std::mem::replace(&mut self.yaml, true);
        let out = self.inside(unit, given, |walk| walk.collect(true, |walk| walk.unit_body(unit)));
        self.yaml = yaml;
        let mut found = TaintTree { shape: Shape::Any, ..TaintTree::default() };
        for Placed { positions, tree, location } in out {
            for Position { path, key } in positions {
                if key
                    && let Some(taint) = tree.any()
                    && !self.keys.iter().any(|known| known.location == location)
                {
                    self.keys.push(Inserted { path: Vec::new(), key, taint, location: location.clone() });
                }
                let level = if key { Level::Bits } else { Level::Held };
                let tree = if key { tree.computed(level) } else { tree.clone() };
                // A key reveals something about its map.
                let path: &[String] = if key { &[] } else { &path };
                let tree = path.iter().rev().fold(tree, |tree, name| match name.as_str() {
                    "*" => TaintTree::list_of(tree),
                    name => TaintTree::map([(name.to_owned(), tree)]),
                });
                found = found.join(tree);
            }
        }
        found.limited(MAX_DEPTH)
    }

    pub(super) fn macro_call(&mut self, index: usize, args: &'e [Option<Node>]) -> TaintTree {
        let args: Vec<Option<TaintTree>> =
            args.iter().map(|arg| arg.as_ref().map(|arg| self.eval(arg))).collect();
        let unit = self.unit;
        let Some(def) = unit.macros.get(index) else { return TaintTree::default() };
        if self.open >= MAX_OPEN {
            return self.anything();
        }
        self.open += 1;
        // A macro sees the variables of the top level, but not those of the blocks around the call.
        let top = self.frames.first().copied().unwrap_or(self.locals.len());
        let hidden = self.locals.split_off(top);
        let frames = std::mem::replace(&mut self.frames, vec![top]);
        let control = self.control.take();
        let out = self.collect(false, |walk| {
            let mut args = args.into_iter();
            for (name, default) in &def.params {
                let tree = match (args.next().flatten(), default) {
                    (Some(tree), _) => tree,
                    (None, Some(default)) => walk.eval(default),
                    (None, None) => TaintTree::default(),
                };
                walk.locals.push((Arc::clone(name), tree));
            }
            walk.stmts(&def.body);
        });
        self.control = control;
        self.locals.truncate(top);
        self.locals.extend(hidden);
        self.frames = frames;
        self.open -= 1;
        folded(&out)
    }
}
