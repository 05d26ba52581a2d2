//! Filters and methods that return parts of their input.

use super::{Analysis, Origin, Shape, deeper, elements};
use crate::diag::Location;
use crate::template::builtins;
use crate::template::code::{Kind, Node};
use crate::template::reads::Segment;
use crate::template::value::Val;

impl Analysis<'_> {
    /// The reads of `map(attribute='a.b')` for each item.
    fn attribute(&mut self, base: Origin, path: Option<&Node>, location: &Location) -> Option<Origin> {
        let Kind::Const(Val::Str(path)) = &path?.kind else {
            self.record_all(path, false);
            return None;
        };
        let mut refs = base.refs;
        for step in path.split('.') {
            let segment = step.parse().map_or_else(|_| Segment::Key(step.to_owned()), Segment::Index);
            refs = deeper(refs, &segment, location);
        }
        Some(Origin { refs, shape: base.shape })
    }

    pub(super) fn filter(
        &mut self,
        name: &str,
        input: Origin,
        args: &[Option<Node>],
        location: &Location,
    ) -> Origin {
        let arg = |index: usize| args.get(index).and_then(Option::as_ref);
        // The test that `select` and similar filters apply.
        let test_of = |index: usize| match arg(index).map(|node| &node.kind) {
            Some(Kind::Const(Val::Str(name))) => builtins::test(name),
            _ => None,
        };
        match name {
            "list" | "reverse" | "known" | "chain" if args.is_empty() => elements(input, location),
            "values" => elements(input, location),
            "items" => pairs(input, location),
            "dictsort" => {
                self.record_all(args.iter().flatten(), false);
                pairs(input, location)
            }
            "keys" | "length" | "count" => {
                self.add(&input, true);
                Origin::default()
            }
            "first" | "last" => Origin { shape: Shape::Value, ..elements(input, location) },
            "attr" => match arg(0) {
                Some(key) => {
                    let segment = self.segment(key);
                    self.step(input, &segment, location)
                }
                None => input,
            },
            "select" | "reject" => {
                let elements = elements(input, location);
                let flag = test_of(0).is_some_and(|test| test.flag);
                let mut asked = elements.clone();
                asked.refs.iter_mut().for_each(|found| found.guarded |= flag || args.is_empty());
                self.add(&asked, flag);
                self.record_all(args.iter().flatten(), false);
                elements
            }
            "selectattr" | "rejectattr" => {
                let elements = elements(input, location);
                let flag = test_of(1).is_some_and(|test| test.flag);
                match self.attribute(elements.clone(), arg(0), location) {
                    Some(mut asked) => {
                        asked.refs.iter_mut().for_each(|found| found.guarded |= flag || args.len() < 2);
                        self.add(&asked, flag);
                    }
                    None => self.add(&elements, false),
                }
                self.record_all(args.iter().skip(1).flatten(), false);
                elements
            }
            "map" if arg(0).is_some() => {
                let elements = elements(input, location);
                self.record_all(args.iter().skip(1).flatten(), false);
                self.attribute(elements.clone(), arg(0), location).unwrap_or_else(|| {
                    self.add(&elements, false);
                    Origin::default()
                })
            }
            "sort" | "unique" | "min" | "max" => {
                let elements = elements(input, location);
                let path = match name {
                    "sort" => arg(2),
                    "unique" => arg(1),
                    _ => arg(0),
                };
                let several = matches!(path.map(|node| &node.kind), Some(Kind::Const(Val::Str(path))) if path.contains(','));
                let asked = if several { None } else { self.attribute(elements.clone(), path, location) };
                self.add(asked.as_ref().unwrap_or(&elements), false);
                let shape = if matches!(name, "min" | "max") { Shape::Value } else { Shape::Elements };
                Origin { shape, ..elements }
            }
            _ => {
                self.add(&input, false);
                self.record_all(args.iter().flatten(), false);
                Origin::default()
            }
        }
    }

    pub(super) fn method(&mut self, base: Origin, name: &str, args: &[Node], location: &Location) -> Origin {
        match (name, args) {
            ("values", []) => elements(base, location),
            ("items", []) => pairs(base, location),
            ("keys", []) => {
                self.add(&base, true);
                Origin::default()
            }
            ("get", [key, default @ ..]) => {
                let segment = self.segment(key);
                let mut found = self.step(base, &segment, location);
                found.refs.iter_mut().for_each(|found| found.guarded = true);
                let default = default.first().map(|default| self.origin(default, false)).unwrap_or_default();
                self.either(found, default)
            }
            _ => {
                self.add(&base, false);
                self.record_all(args, false);
                Origin::default()
            }
        }
    }
}

fn pairs(origin: Origin, location: &Location) -> Origin {
    Origin { shape: Shape::Pairs, ..elements(origin, location) }
}
