//! Variables, `let`s, partials and macros.

use std::sync::Arc;

use super::paths::Paths;
use super::{Goal, MAX_OPEN, MAX_PARTIALS, Placed, Tracer, Value, folded};
use crate::diag::{Diagnostic, Span};
use crate::template::code::{Kind, Node, Unit};
use crate::template::errors::near;
use crate::template::names::Names;
use crate::template::partial_path;
use crate::template::taint::{Level, MAX_DEPTH, Position, TaintTree};
use crate::template::text::TextUnit;
use crate::template::value::Name;

impl<'e> Tracer<'e> {
    pub(super) fn variable(&mut self, name: &Name, span: Span, guarded: bool) -> Value {
        let Some(known) = self.names.get(name) else { return self.outside(name, span, guarded) };
        let Value { paths, taint } = known.clone();
        Value { paths: paths.read_at(&self.location(span), guarded), taint }
    }

    /// The value of a name that no statement has set.
    pub(super) fn outside(&mut self, name: &Name, span: Span, guarded: bool) -> Value {
        let Some(scope) = self.scope() else {
            return Value { paths: Paths::root(name, self.location(span), guarded), ..Value::default() };
        };
        if &**name == "let" {
            let all = scope.lets.iter().map(|(name, _)| (name.to_owned(), self.let_value(name)));
            return TaintTree::map(all).into();
        }
        scope.roots.get(&**name).cloned().unwrap_or_default().into()
    }

    /// Whether the node is the variable `let`, and `let`s are followed.
    pub(super) fn is_let(&self, node: &Node) -> bool {
        matches!(&node.kind, Kind::Var(name) if &**name == "let" && self.names.get(name).is_none())
            && self.scope().is_some()
    }

    /// The taint of `let.name`, evaluated with the variables that the enclosing partials have received.
    pub(super) fn let_value(&mut self, name: &str) -> TaintTree {
        let text = self.scope().and_then(|scope| scope.lets.get(name));
        let Some(TextUnit::Template(unit)) = text.map(|text| &*text.0) else { return TaintTree::default() };
        let open = format!("let.{name}");
        if self.open.len() >= MAX_OPEN || self.open.contains(&open) {
            return self.anything();
        }
        self.inside(open, unit, Vec::new(), |tracer| tracer.text(unit))
    }

    /// Walks another text with its own variables.
    fn inside<T>(
        &mut self,
        open: String,
        unit: &'e Unit,
        given: Vec<(Name, Value)>,
        work: impl FnOnce(&mut Self) -> T,
    ) -> T {
        self.open.push(open);
        let known = self.given.len();
        self.given.extend(given);
        // The reads of a partial name the variables that it does not receive itself.
        let start = if self.scope().is_some() { 0 } else { known };
        let names = std::mem::replace(&mut self.names, Names::of(self.given[start..].to_vec()));
        let unit = std::mem::replace(&mut self.unit, unit);
        let control = self.control.take();
        let result = work(self);
        self.control = control;
        self.unit = unit;
        self.names = names;
        self.given.truncate(known);
        self.open.pop();
        result
    }

    pub(super) fn partial(&mut self, name: &Name, vars: &'e [(Name, Node)], span: Span) -> TaintTree {
        let given: Vec<(Name, Value)> =
            vars.iter().map(|(name, node)| (Arc::clone(name), self.eval(node, false))).collect();
        let path = partial_path(name);
        let template = self.engine.template(&path);
        if template.is_none() {
            self.missing(&path, span);
        }
        let Some(template) = template.filter(|_| self.enters(&path, vars.is_empty())) else {
            for (_, value) in &given {
                self.add(&value.paths, false);
            }
            return if template.is_some() { self.anything() } else { TaintTree::default() };
        };
        let unit = &template.unit;
        let yaml = std::mem::replace(&mut self.yaml, true);
        let out =
            self.inside(path, unit, given, |tracer| tracer.collect(true, |tracer| tracer.unit_body(unit)));
        self.yaml = yaml;
        let mut found = TaintTree::default();
        for Placed { positions, tree, location } in out {
            for Position { path, key } in positions {
                if key {
                    self.key(&tree, &location);
                }
                // A key reveals something about its map.
                let (path, tree): (&[String], _) =
                    if key { (&[], tree.computed(Level::Bits)) } else { (&path, tree.clone()) };
                let tree = path.iter().rev().fold(tree, |tree, name| match name.as_str() {
                    "*" => TaintTree::list_of(tree),
                    name => TaintTree::map([(name.to_owned(), tree)]),
                });
                found = found.join(tree);
            }
        }
        found.limited(MAX_DEPTH)
    }

    /// Whether a partial is walked now.
    fn enters(&mut self, path: &str, without_variables: bool) -> bool {
        if let Goal::Secrets(..) = self.goal {
            return self.open.len() < MAX_OPEN;
        }
        let again = without_variables && !self.done.insert(path.to_owned());
        self.partials += 1;
        !again && !self.open.iter().any(|open| open == path) && self.partials <= MAX_PARTIALS
    }

    /// Reports a partial that does not exist; one within a partial is reported there.
    fn missing(&mut self, path: &str, span: Span) {
        if !self.open.is_empty() {
            return;
        }
        let known: Vec<&str> = self.engine.paths().collect();
        let help = match near(path, self.engine.paths()) {
            Some(near) => format!("did you mean `{}`?", near.trim_start_matches("templates/")),
            None if known.is_empty() => "the package has no templates".to_owned(),
            None => format!("there are {}", known.join(", ")),
        };
        let error = Diagnostic::error("template::partial", format!("there is no template `{path}`"));
        self.errors.push(error.at(&self.unit.source, span).help(help));
    }

    pub(super) fn macro_call(&mut self, index: usize, args: &'e [Option<Node>]) -> TaintTree {
        let args: Vec<_> = args.iter().map(|arg| arg.as_ref().map(|arg| self.read(arg, false))).collect();
        let Some(def) = self.unit.macros.get(index).filter(|_| self.scope().is_some()) else {
            return TaintTree::default();
        };
        if self.open.len() >= MAX_OPEN {
            return self.anything();
        }
        self.open.push("macro".to_owned());
        let hidden = self.names.open_macro();
        let control = self.control.take();
        let out = self.collect(false, |tracer| {
            let mut args = args.into_iter();
            for (name, default) in &def.params {
                let tree = match (args.next().flatten(), default) {
                    (Some(tree), _) => tree,
                    (None, Some(default)) => tracer.read(default, false),
                    (None, None) => TaintTree::default(),
                };
                tracer.names.push(Arc::clone(name), tree.into());
            }
            tracer.stmts(&def.body);
        });
        self.control = control;
        self.names.close_macro(hidden);
        self.open.pop();
        folded(&out)
    }

    /// The reads of macros, whether called or not. They come last, because macros see what the top level has set.
    pub(super) fn uncalled(&mut self, unit: &'e Unit) {
        for def in &unit.macros {
            self.names.open();
            for (name, default) in &def.params {
                self.read_all(default, false);
                self.names.push(Arc::clone(name), Value::default());
            }
            self.stmts(&def.body);
            self.names.close();
        }
    }
}
