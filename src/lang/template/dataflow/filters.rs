//! Filters and methods: the paths of their results, and what of their input they read.

use super::paths::{Form, Paths};
use super::{Tracer, Value};
use crate::diag::{Location, Span};
use crate::template::builtins;
use crate::template::code::{Kind, Node};
use crate::template::reads::Segment;
use crate::template::taint::{Level, Taint, TaintTree, filters};
use crate::template::value::{Name, Val};

impl<'e> Tracer<'e> {
    pub(super) fn filtered(
        &mut self,
        name: &str,
        input: &'e Node,
        args: &'e [Option<Node>],
        span: Span,
        guarded: bool,
    ) -> Value {
        let input = self.eval(input, guarded);
        self.filter(name, input, args, span)
    }

    fn filter(&mut self, name: &str, input: Value, args: &'e [Option<Node>], span: Span) -> Value {
        if name == "attr" {
            return match args.first() {
                Some(Some(key)) => self.item(input, key, span),
                _ => input,
            };
        }
        let paths = self.drawn(name, input.paths, args, &self.location(span));
        let trees = args.iter().map(|arg| arg.as_ref().map(|arg| self.read(arg, false))).collect();
        Value { paths, taint: filters::filter(name, input.taint, &filters::Args { nodes: args, trees }) }
    }

    pub(super) fn called(
        &mut self,
        base: &'e Node,
        name: &Name,
        args: &'e [Node],
        span: Span,
        guarded: bool,
    ) -> Value {
        let base = self.eval(base, guarded);
        match (&**name, args) {
            ("keys" | "values" | "items", []) => self.filter(name, base, &[], span),
            ("get", [key, default @ ..]) => {
                let found = self.item(base, key, span);
                let found = Value { paths: found.paths.guarded_if(true), ..found };
                let default = default.first().map(|node| self.eval(node, false)).unwrap_or_default();
                self.join(found, default)
            }
            _ => {
                self.add(&base.paths, false);
                let told = Taint::higher(base.taint.any(), self.read_all(args, false));
                TaintTree::of(told.map(|told| told.at_least(Level::Bits))).into()
            }
        }
    }

    /// The paths of the result of a filter. The other paths that the filter reads are recorded.
    fn drawn(&mut self, name: &str, input: Paths, args: &'e [Option<Node>], location: &Location) -> Paths {
        let arg = |index: usize| args.get(index).and_then(Option::as_ref);
        // Whether the test that `select` and similar filters apply tests only the state.
        let is_flag = |index: usize| match arg(index).map(|node| &node.kind) {
            Some(Kind::Const(Val::Str(name))) => builtins::test(name).is_some_and(|test| test.flag),
            _ => false,
        };
        match name {
            "list" | "reverse" | "known" | "chain" | "values" if args.is_empty() => input.elements(location),
            "items" | "dictsort" => input.elements(location).with_form(Form::Pairs),
            "keys" | "length" | "count" => {
                self.add(&input, true);
                Paths::default()
            }
            "first" | "last" => input.elements(location).with_form(Form::Value),
            "select" | "reject" => {
                let elements = input.elements(location);
                let asked = elements.clone().guarded_if(is_flag(0) || args.is_empty());
                self.add(&asked, is_flag(0));
                elements
            }
            "selectattr" | "rejectattr" => {
                let elements = input.elements(location);
                match attribute(elements.clone(), arg(0), location) {
                    Some(asked) => self.add(&asked.guarded_if(is_flag(1) || args.len() < 2), is_flag(1)),
                    None => self.add(&elements, false),
                }
                elements
            }
            "map" if arg(0).is_some() => {
                let elements = input.elements(location);
                attribute(elements.clone(), arg(0), location).unwrap_or_else(|| {
                    self.add(&elements, false);
                    Paths::default()
                })
            }
            "sort" | "unique" | "min" | "max" => {
                let elements = input.elements(location);
                let path = filters::key_of(name).and_then(arg);
                let several = matches!(path.map(|node| &node.kind), Some(Kind::Const(Val::Str(path))) if path.contains(','));
                let asked = attribute(elements.clone(), path.filter(|_| !several), location);
                self.add(asked.as_ref().unwrap_or(&elements), false);
                let form = if matches!(name, "min" | "max") { Form::Value } else { Form::Elements };
                elements.with_form(form)
            }
            _ => {
                self.add(&input, false);
                Paths::default()
            }
        }
    }
}

/// The paths of `map(attribute='a.b')` for each item; `None` if the attribute is computed.
fn attribute(base: Paths, path: Option<&Node>, location: &Location) -> Option<Paths> {
    let Kind::Const(Val::Str(path)) = &path?.kind else { return None };
    let steps = path.split('.');
    Some(steps.fold(base, |paths, step| {
        let segment = step.parse().map_or_else(|_| Segment::Key(step.to_owned()), Segment::Index);
        paths.deeper(&segment, location)
    }))
}
