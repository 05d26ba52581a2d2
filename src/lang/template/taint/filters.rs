//! The taint of the results of filters, methods and tests.

use super::walk::Walk;
use super::{Level, Shape, Taint, TaintTree};
use crate::template::builtins;
use crate::template::code::{Kind, Node};
use crate::template::value::{Name, Val};

impl<'e> Walk<'e> {
    pub(super) fn filter(&mut self, name: &str, input: TaintTree, args: &'e [Option<Node>]) -> TaintTree {
        let arg = |index: usize| args.get(index).and_then(Option::as_ref);
        match name {
            "attr" => match arg(0).map(|key| (key, &key.kind)) {
                Some((_, Kind::Const(Val::Str(key)))) => input.get(Some(key)),
                Some((key, _)) => {
                    let told = self.all([key]).map(|told| told.at_least(Level::Derived));
                    input.get(None).with(told)
                }
                None => input,
            },
            "map" => self.mapped(&input, args),
            "select" | "reject" | "selectattr" | "rejectattr" => self.selected(name, input, args),
            "sort" | "unique" | "min" | "max" | "groupby" => self.by_key(name, &input, args),
            "join" | "sum" => {
                let path = arg(usize::from(name == "join"));
                let elements = input.elements();
                let each = match path {
                    Some(path) => {
                        dotted(&elements, path).unwrap_or_else(|| elements.computed(Level::Derived))
                    }
                    None => elements,
                };
                let told = Taint::higher(self.all(args.iter().flatten()), input.own.clone());
                each.with(told).computed(Level::Derived)
            }
            "combine" => {
                let other = arg(0).map(|node| self.eval(node)).unwrap_or_default();
                merged(input, other)
            }
            "chain" | "zip" => {
                let mut items = input.elements();
                let mut own = input.own.clone();
                for node in args.iter().flatten() {
                    let other = self.eval(node);
                    own = Taint::higher(own, other.own.clone());
                    items = items.join(other.elements());
                }
                let items = if name == "zip" { TaintTree::list_of(items) } else { items };
                TaintTree::list_of(items).with(own)
            }
            _ => {
                let told = self.all(args.iter().flatten()).map(|told| told.at_least(Level::Derived));
                plain(name, &input).with(told)
            }
        }
    }

    pub(super) fn method(&mut self, base: &TaintTree, name: &Name, args: &'e [Node]) -> TaintTree {
        match (&**name, args) {
            ("keys" | "values" | "items", []) => plain(name, base),
            ("get", [key, default @ ..]) => {
                let found = if let Kind::Const(Val::Str(key)) = &key.kind {
                    self.field(base, key)
                } else {
                    let told = self.all([key]).map(|told| told.at_least(Level::Derived));
                    base.get(None).with(told)
                };
                let default = default.first().map(|node| self.eval(node)).unwrap_or_default();
                found.join(default)
            }
            _ => {
                let told = self.all(args);
                TaintTree::of(Taint::higher(base.any(), told).map(|told| told.at_least(Level::Bits)))
            }
        }
    }

    /// The taint of `map(attribute='a.b')` or `map('filter', ...)`.
    fn mapped(&mut self, input: &TaintTree, args: &'e [Option<Node>]) -> TaintTree {
        let arg = |index: usize| args.get(index).and_then(Option::as_ref);
        let elements = input.elements();
        let each = match (arg(0), arg(2).map(|node| &node.kind)) {
            (Some(path), _) => {
                let default = arg(1).map(|node| self.eval(node)).unwrap_or_default();
                dotted(&elements, path).unwrap_or_else(|| elements.computed(Level::Derived)).join(default)
            }
            (None, Some(Kind::Const(Val::Str(filter)))) if builtins::filter(filter).is_some() => {
                let told = self.all(args.iter().skip(3).flatten()).map(|told| told.at_least(Level::Derived));
                match &**filter {
                    // These filters depend on the content of the items, or take their arguments in another
                    // order.
                    "attr" | "map" | "select" | "reject" | "selectattr" | "rejectattr" | "sort"
                    | "unique" | "min" | "max" | "groupby" | "combine" | "chain" | "zip" => {
                        elements.computed(Level::Derived).with(told)
                    }
                    name => plain(name, &elements).with(told),
                }
            }
            _ => {
                let told = self.all(args.iter().flatten()).map(|told| told.at_least(Level::Derived));
                elements.computed(Level::Derived).with(told)
            }
        };
        TaintTree::list_of(each).with(input.own.clone())
    }

    /// The taint of the items that a test selects.
    fn selected(&mut self, name: &str, input: TaintTree, args: &'e [Option<Node>]) -> TaintTree {
        let by_attribute = name.ends_with("attr");
        let arg = |index: usize| args.get(index).and_then(Option::as_ref);
        let elements = input.elements();
        let (asked, at) = if by_attribute {
            let asked = arg(0).and_then(|path| dotted(&elements, path));
            (asked.unwrap_or_else(|| elements.computed(Level::Derived)), 1)
        } else {
            (elements.clone(), 0)
        };
        let told = match arg(at).map(|node| &node.kind) {
            None => asked.truth(),
            Some(Kind::Const(Val::Str(test))) => {
                let constant =
                    args.iter().skip(at + 1).flatten().all(|node| matches!(node.kind, Kind::Const(_)));
                of_test(test, &asked, constant)
            }
            Some(_) => asked.any(),
        };
        let other = self.all(args.iter().skip(at).flatten());
        let told = Taint::higher(told, other).map(|told| told.at_least(Level::Bits));
        TaintTree::list_of(elements).with(input.own).with(told)
    }

    /// The taint of a filter that sorts, groups or selects items by a key.
    fn by_key(&mut self, name: &str, input: &TaintTree, args: &'e [Option<Node>]) -> TaintTree {
        let arg = |index: usize| args.get(index).and_then(Option::as_ref);
        let path = match name {
            "sort" => arg(2),
            "unique" => arg(1),
            _ => arg(0),
        };
        let elements = input.elements();
        let key = match path {
            Some(path) => dotted(&elements, path).unwrap_or_else(|| elements.computed(Level::Derived)),
            None => elements.clone(),
        };
        let told =
            Taint::higher(key.any(), self.all(args.iter().flatten())).map(|told| told.at_least(Level::Bits));
        let own = Taint::higher(input.own.clone(), told);
        match name {
            "min" | "max" => elements.with(own),
            "groupby" => {
                let group = TaintTree::list_of(elements);
                let names = [("grouper", &key), ("0", &key), ("list", &group), ("1", &group)];
                let pair = names.map(|(name, tree)| (name.to_owned(), tree.clone()));
                TaintTree::list_of(TaintTree::map(pair)).with(own)
            }
            _ => TaintTree::list_of(elements).with(own),
        }
    }
}

/// The taint of a filter whose arguments do not influence what its result reveals.
fn plain(name: &str, input: &TaintTree) -> TaintTree {
    let own = input.own.clone();
    match name {
        "sha256" => TaintTree::of(input.any().filter(|taint| taint.level == Level::Bits)),
        // These results are another form of the same value.
        "b64decode" | "b64encode" | "from_json" | "from_yaml" | "trim" | "lower" | "upper" | "string" => {
            TaintTree::of(input.any())
        }
        "known" | "list" | "reverse" => TaintTree::list_of(input.elements()).with(own),
        "values" => TaintTree::list_of(input.get(None)).with(own),
        "items" | "dictsort" => {
            let key = TaintTree::of(own.clone());
            let told =
                if name == "dictsort" { input.any().map(|told| told.at_least(Level::Bits)) } else { None };
            let pair = [("0".to_owned(), key), ("1".to_owned(), input.get(None))];
            TaintTree::list_of(TaintTree { shape: Shape::List, ..TaintTree::map(pair) }).with(own).with(told)
        }
        "keys" => TaintTree::list_of(TaintTree::of(own.clone())).with(own),
        "length" | "count" => TaintTree::of(own.map(|own| own.at_least(Level::Bits))),
        "first" | "last" => input.elements().with(own.map(|own| own.at_least(Level::Derived))),
        "batch" | "slice" => TaintTree::list_of(TaintTree::list_of(input.elements())).with(own),
        _ => input.computed(Level::Derived),
    }
}

/// The taint of a map that is merged from two maps.
pub(super) fn merged(base: TaintTree, other: TaintTree) -> TaintTree {
    // A field of both maps may come from either. `other` overwrites the value of `base`, but this is not
    // relied on.
    let known = base.shape != Shape::Any && other.shape != Shape::Any;
    let joined = base.join(other);
    if known { TaintTree { shape: Shape::Map, ..joined } } else { joined }
}

/// The taint of a test.
pub(super) fn of_test(name: &str, input: &TaintTree, constant: bool) -> Option<Taint> {
    match name {
        // The type and the existence of a value are not secret.
        "defined" | "undefined" | "known" | "ready" | "current" | "none" | "null" | "empty" | "string"
        | "number" | "integer" | "int" | "float" | "boolean" | "mapping" | "sequence" | "iterable" => {
            input.truth()
        }
        "eq" | "equalto" | "sameas" | "ne" | "==" | "!=" | "in" if constant => {
            input.any().filter(|taint| taint.level > Level::Held)
        }
        _ => input.any(),
    }
    .map(|told| told.at_least(Level::Bits))
}

/// The taint of `value.a.b` for a literal path.
fn dotted(value: &TaintTree, path: &Node) -> Option<TaintTree> {
    match &path.kind {
        Kind::Const(Val::Str(path)) if !path.contains(',') => {
            Some(path.split('.').fold(value.clone(), |found, step| found.get(Some(step))))
        }
        _ => None,
    }
}
