//! The names for which an expression looks among objects: `'a' in deleted.Pod`, `pods | selectattr('metadata.name', 'eq', 'a')`.

use super::Expr;
use super::code::{Comparison, Kind, Node};
use super::nodes::{constant, path, within};
use super::reads::Segment;
use crate::diag::Location;

/// The attribute that is the name of an object.
const NAME: &str = "metadata.name";
/// Filters that leave the items of a list as they are.
const KEEPS: [&str; 8] =
    ["list", "sort", "unique", "reverse", "select", "reject", "selectattr", "rejectattr"];

/// A name, or the beginning of names, for which an expression looks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sought {
    /// The kind of the objects.
    pub kind: String,
    /// The name.
    pub name: String,
    /// Whether names begin so.
    pub is_start: bool,
    /// The location of the comparison.
    pub location: Location,
}

impl Expr {
    /// The constant names for which it looks among the objects of a kind. Others are computed.
    pub fn sought(&self) -> Vec<Sought> {
        let unit = &self.0.unit;
        let mut found = Vec::new();
        within(&self.0.node, &mut |node| {
            let Some((kind, names, is_start)) = sought(node) else { return };
            found.extend(names.into_iter().map(|name| Sought {
                kind: kind.clone(),
                name,
                is_start,
                location: Location::new(&unit.source, node.span),
            }));
        });
        found
    }
}

/// The kind, the names, and whether names begin so.
fn sought(node: &Node) -> Option<(String, Vec<String>, bool)> {
    match &node.kind {
        Kind::Compare(first, rest) => {
            let [(Comparison::In | Comparison::NotIn, second)] = rest.as_slice() else { return None };
            Some((names(second)?, texts(first), false))
        }
        Kind::Filter(filter, input, args) => {
            let arg = |index: usize| args.get(index).and_then(Option::as_ref);
            let (test, value) = match filter.name {
                "select" | "reject" => (arg(0)?, arg(1)?),
                "selectattr" | "rejectattr" if texts(arg(0)?) == [NAME] => (arg(1)?, arg(2)?),
                _ => return None,
            };
            let test = texts(test).pop()?;
            let is_attribute = filter.name.ends_with("attr");
            // `['a', 'b'] | reject('in', deleted.Pod)`
            if test == "in"
                && !is_attribute
                && let Some(kind) = names(value)
            {
                return Some((kind, texts(input), false));
            }
            let kind = if is_attribute { objects(input)? } else { names(input)? };
            match test.as_str() {
                "in" | "eq" | "equalto" | "==" => Some((kind, texts(value), false)),
                "startingwith" => Some((kind, texts(value), true)),
                _ => None,
            }
        }
        _ => None,
    }
}

/// The constant texts of a text or a list.
fn texts(node: &Node) -> Vec<String> {
    let text = |node: &Node| Some(constant(node)?.as_str()?.to_owned());
    match &node.kind {
        Kind::List(items) => items.iter().filter_map(text).collect(),
        _ => match constant(node) {
            Some(serde_json::Value::Array(items)) => {
                items.iter().filter_map(|item| item.as_str().map(str::to_owned)).collect()
            }
            _ => text(node).into_iter().collect(),
        },
    }
}

/// What filters that keep items are applied to.
fn base(mut node: &Node) -> &Node {
    loop {
        node = match &node.kind {
            Kind::Filter(filter, input, _) if KEEPS.contains(&filter.name) => input.as_ref(),
            Kind::Default(parts) => &parts.0,
            _ => return node,
        };
    }
}

/// The kind of objects whose names a list has.
fn names(node: &Node) -> Option<String> {
    let node = base(node);
    if let Kind::Filter(filter, input, args) = &node.kind {
        let is_name = filter.name == "map" && args.first()?.as_ref().is_some_and(|arg| texts(arg) == [NAME]);
        return is_name.then(|| objects(input)).flatten();
    }
    let (root, steps) = path(node)?;
    if &*root == "deleted" { one_key(steps) } else { None }
}

/// The kind of the objects that a list has.
fn objects(node: &Node) -> Option<String> {
    let (root, steps) = path(base(node))?;
    match &*root {
        "pods" if steps.is_empty() => Some("Pod".to_owned()),
        "objects" => one_key(steps),
        _ => None,
    }
}

fn one_key(steps: Vec<Segment>) -> Option<String> {
    match <[Segment; 1]>::try_from(steps) {
        Ok([Segment::Key(key)]) => Some(key),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::Engine;
    use crate::diag::{Location, Source, Span};

    fn sought(text: &str) -> Vec<String> {
        let source = Source::new("a.yaml", text);
        let at = Location::new(&source, Span::new(0, text.len()));
        let found = Engine::empty().expression(text, &at).unwrap().sought();
        let shown = found
            .into_iter()
            .map(|one| format!("{}/{}{}", one.kind, one.name, if one.is_start { "*" } else { "" }));
        shown.collect()
    }

    #[test]
    fn names_among_objects_are_found() {
        for (text, found) in [
            ("'a' in deleted.Pod", &["Pod/a"][..]),
            ("'a' not in (deleted.Pod | default([])) and pods", &["Pod/a"]),
            ("deleted.Pod | select('in', ['a', 'b']) | list", &["Pod/a", "Pod/b"]),
            ("['a', 'b'] | reject('in', deleted.Secret) | list == []", &["Secret/a", "Secret/b"]),
            (
                "deleted.Secret | select('startingwith', 'a') | reject('eq', 'a-1') | list",
                &["Secret/a*", "Secret/a-1"],
            ),
            ("pods | selectattr('metadata.name', 'eq', 'a') | list", &["Pod/a"]),
            ("objects.Secret | selectattr('metadata.name', 'startingwith', 'a') | list", &["Secret/a*"]),
            ("pods | map(attribute='metadata.name') | select('in', ['a']) | list", &["Pod/a"]),
            ("pods | map(attribute='spec.nodeName') | select('in', ['a']) | list", &[]),
            ("pods | selectattr('spec.nodeName', 'eq', 'a') | list", &[]),
            ("'a' in instance.status.message", &[]),
            ("deleted.Pod | select('endingwith', 'a') | list", &[]),
            ("deleted.Pod == ['a']", &[]),
        ] {
            let mut all = sought(text);
            all.sort();
            assert_eq!(all, found, "{text}");
        }
    }
}
