//! The taint of the results of filters, operators and tests.

use super::{Level, Shape, Taint, TaintTree};
use crate::template::builtins;
use crate::template::code::{Kind, Node};
use crate::template::value::Val;

/// The arguments of a filter.
pub(in crate::template) struct Args<'a> {
    pub(in crate::template) nodes: &'a [Option<Node>],
    pub(in crate::template) trees: Vec<Option<TaintTree>>,
}

impl Args<'_> {
    fn node(&self, index: usize) -> Option<&Node> {
        self.nodes.get(index).and_then(Option::as_ref)
    }

    fn tree(&self, index: usize) -> TaintTree {
        self.trees.get(index).cloned().flatten().unwrap_or_default()
    }

    /// The strongest taint of the arguments from an index on.
    fn from(&self, index: usize) -> Option<Taint> {
        self.trees.iter().skip(index).flatten().fold(None, |told, tree| Taint::higher(told, tree.any()))
    }

    fn derived(&self, index: usize) -> Option<Taint> {
        self.from(index).map(|told| told.at_least(Level::Derived))
    }
}

/// The index of the parameter that names the attribute by which a filter compares, groups or adds items.
pub(in crate::template) fn key_of(name: &str) -> Option<usize> {
    match name {
        "sort" => Some(2),
        "unique" | "join" => Some(1),
        "min" | "max" | "groupby" | "sum" => Some(0),
        _ => None,
    }
}

/// The taint of `input | name(args)`.
pub(in crate::template) fn filter(name: &str, input: TaintTree, args: &Args<'_>) -> TaintTree {
    match name {
        "map" => mapped(&input, args),
        "select" | "reject" | "selectattr" | "rejectattr" => selected(name, input, args),
        "sort" | "unique" | "min" | "max" | "groupby" => by_key(name, &input, args),
        "join" | "sum" => {
            let elements = input.elements();
            let each = key(name, &elements, args);
            each.with(Taint::higher(args.from(0), input.own)).computed(Level::Derived)
        }
        "combine" | "merge" => merged(input, args.tree(0)),
        "chain" | "zip" => {
            let mut items = input.elements();
            let mut own = input.own;
            for other in args.trees.iter().flatten() {
                own = Taint::higher(own, other.own.clone());
                items = items.join(other.elements());
            }
            let items = if name == "zip" { TaintTree::list_of(items) } else { items };
            TaintTree::list_of(items).with(own)
        }
        _ => plain(name, &input).with(args.derived(0)),
    }
}

/// What a filter compares, groups or adds of each item.
fn key(name: &str, elements: &TaintTree, args: &Args<'_>) -> TaintTree {
    match key_of(name).and_then(|index| args.node(index)) {
        Some(path) => dotted(elements, path).unwrap_or_else(|| elements.computed(Level::Derived)),
        None => elements.clone(),
    }
}

/// The taint of `map(attribute='a.b')` or `map('filter', ...)`.
fn mapped(input: &TaintTree, args: &Args<'_>) -> TaintTree {
    let elements = input.elements();
    let each = match (args.node(0), args.node(2).map(|node| &node.kind)) {
        (Some(path), _) => {
            dotted(&elements, path).unwrap_or_else(|| elements.computed(Level::Derived)).join(args.tree(1))
        }
        (None, Some(Kind::Const(Val::Str(filter)))) if builtins::filter(filter).is_some() => {
            match &**filter {
                // These filters depend on the content of the items, or take their arguments in another order.
                "attr" | "map" | "select" | "reject" | "selectattr" | "rejectattr" | "sort" | "unique"
                | "min" | "max" | "groupby" | "combine" | "merge" | "chain" | "zip" => {
                    elements.computed(Level::Derived)
                }
                name => plain(name, &elements),
            }
            .with(args.derived(3))
        }
        _ => elements.computed(Level::Derived).with(args.derived(0)),
    };
    TaintTree::list_of(each).with(input.own.clone())
}

/// The taint of the items that a test selects.
fn selected(name: &str, input: TaintTree, args: &Args<'_>) -> TaintTree {
    let elements = input.elements();
    let (asked, at) = if name.ends_with("attr") {
        let asked = args.node(0).and_then(|path| dotted(&elements, path));
        (asked.unwrap_or_else(|| elements.computed(Level::Derived)), 1)
    } else {
        (elements.clone(), 0)
    };
    let told = match args.node(at).map(|node| &node.kind) {
        None => asked.truth(),
        Some(Kind::Const(Val::Str(test))) => {
            let mut others = args.nodes.iter().skip(at + 1).flatten();
            of_test(test, &asked, others.all(|node| matches!(node.kind, Kind::Const(_))))
        }
        Some(_) => asked.any(),
    };
    let told = Taint::higher(told, args.from(at)).map(|told| told.at_least(Level::Bits));
    TaintTree::list_of(elements).with(input.own).with(told)
}

/// The taint of a filter that sorts, groups or selects items by a key.
fn by_key(name: &str, input: &TaintTree, args: &Args<'_>) -> TaintTree {
    let elements = input.elements();
    let key = key(name, &elements, args);
    let told = Taint::higher(key.any(), args.from(0)).map(|told| told.at_least(Level::Bits));
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

/// The taint of an operator on two values.
pub(in crate::template) fn binary(adds: bool, left: TaintTree, right: TaintTree) -> TaintTree {
    if adds && left.shape == Shape::List && right.shape == Shape::List {
        let own = Taint::higher(left.own.clone(), right.own.clone());
        return TaintTree::list_of(left.get(None).join(right.get(None))).with(own);
    }
    left.join(right).computed(Level::Derived)
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
pub(in crate::template) fn merged(base: TaintTree, other: TaintTree) -> TaintTree {
    // A field of both maps may come from either. `other` overwrites the value of `base`, but this is not
    // relied on.
    let known = base.shape != Shape::Any && other.shape != Shape::Any;
    let joined = base.join(other);
    if known { TaintTree { shape: Shape::Map, ..joined } } else { joined }
}

/// The taint of a test.
pub(in crate::template) fn of_test(name: &str, input: &TaintTree, constant: bool) -> Option<Taint> {
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
