//! A set of field paths. The steps of a path are the keys of `fieldsV1`: `f:name`, `k:{"port":80}`, `v:"x"`, `i:0`.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::{Map, Value};

use crate::schema::{Shape, Typed};

/// A set of field paths.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Set(pub(crate) BTreeMap<Box<str>, Node>);

/// A path of a set, and those below it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Node {
    /// Whether the path itself is in the set.
    pub(crate) member: bool,
    pub(crate) below: Set,
}

impl Node {
    pub(crate) fn is_empty(&self) -> bool {
        !self.member && self.below.is_empty()
    }

    fn to_json(&self) -> Value {
        let mut map = self.below.to_json();
        if self.member && !map.is_empty() {
            map.insert(".".to_owned(), Value::Object(Map::new()));
        }
        Value::Object(map)
    }
}

impl Set {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A set of paths of fields.
    pub(crate) fn of(paths: &[&[&str]]) -> Self {
        let mut set = Self::default();
        for path in paths {
            let mut at = &mut set;
            let mut path = path.iter().peekable();
            while let Some(name) = path.next() {
                let node = at.0.entry(field(name)).or_default();
                node.member |= path.peek().is_none();
                at = &mut node.below;
            }
        }
        set
    }

    /// Reads `fieldsV1`.
    pub(crate) fn parse(json: &Value) -> Option<Self> {
        let mut set = Self::default();
        for (key, value) in json.as_object()? {
            if key == "." {
                continue;
            }
            let (kind, rest) = key.split_once(':')?;
            let key = match kind {
                "f" | "i" => key.as_str().into(),
                "k" | "v" => format!("{kind}:{}", serde_json::from_str::<Value>(rest).ok()?).into(),
                _ => return None,
            };
            let map = value.as_object()?;
            let below = Self::parse(value)?;
            let member = map.is_empty() || map.contains_key(".");
            set.0.insert(key, Node { member, below });
        }
        Some(set)
    }

    pub(crate) fn to_json(&self) -> Map<String, Value> {
        self.0.iter().map(|(key, node)| (key.to_string(), node.to_json())).collect()
    }

    /// The paths for which `keep` is true, given whether each set has them.
    fn combined(&self, other: Option<&Self>, keep: fn(bool, bool) -> bool) -> Self {
        static EMPTY: Set = Set(BTreeMap::new());
        let other = other.unwrap_or(&EMPTY);
        let mut out = BTreeMap::new();
        let mut take = |key: &str, a: Option<&Node>, b: Option<&Node>| {
            let member = keep(a.is_some_and(|n| n.member), b.is_some_and(|n| n.member));
            let below = match (a, b) {
                (Some(a), b) => a.below.combined(b.map(|b| &b.below), keep),
                (None, b) => EMPTY.combined(b.map(|b| &b.below), keep),
            };
            let node = Node { member, below };
            if !node.is_empty() {
                out.insert(key.into(), node);
            }
        };
        for (key, node) in &self.0 {
            take(key, Some(node), other.0.get(key));
        }
        if keep(false, true) {
            for (key, node) in other.0.iter().filter(|(key, _)| !self.0.contains_key(*key)) {
                take(key, None, Some(node));
            }
        }
        Self(out)
    }

    pub(crate) fn union(&self, other: &Self) -> Self {
        self.combined(Some(other), |a, b| a || b)
    }

    pub(crate) fn intersection(&self, other: &Self) -> Self {
        self.combined(Some(other), |a, b| a && b)
    }

    pub(crate) fn difference(&self, other: &Self) -> Self {
        self.combined(Some(other), |a, b| a && !b)
    }

    /// Without the paths of another set and all below them.
    pub(crate) fn without(&self, other: &Self) -> Self {
        if other.is_empty() {
            return self.clone();
        }
        let mut out = BTreeMap::new();
        for (key, node) in &self.0 {
            let node = match other.0.get(key) {
                Some(gone) if gone.member => continue,
                Some(gone) => Node { member: node.member, below: node.below.without(&gone.below) },
                None => node.clone(),
            };
            if !node.is_empty() {
                out.insert(key.clone(), node);
            }
        }
        Self(out)
    }

    /// Makes each named field that has paths below it a member, too.
    pub(crate) fn with_named(&self, typed: Option<Typed<'_>>) -> Self {
        let below = |key: &str| -> (bool, Option<Typed<'_>>) {
            let Some(typed) = typed else { return (false, None) };
            match key.split_once(':') {
                Some(("f", name)) => match typed.map() {
                    Some(map) => (map.named(name).is_some(), map.field(name)),
                    None => (false, None),
                },
                _ => (false, typed.list().and_then(super::super::schema::ListShape::items)),
            }
        };
        Self(
            self.0
                .iter()
                .map(|(key, node)| {
                    let (is_named, typed) = below(key);
                    let member = node.member || is_named && !node.below.is_empty();
                    (key.clone(), Node { member, below: node.below.with_named(typed) })
                })
                .collect(),
        )
    }

    /// The paths as people read them, such as `.spec.ports[port=80].name`.
    pub(crate) fn paths(&self) -> Vec<String> {
        let mut found = Vec::new();
        self.walk("", &mut found);
        found
    }

    fn walk(&self, prefix: &str, found: &mut Vec<String>) {
        for (key, node) in self.0.iter().filter(|(_, node)| node.member) {
            let _ = node;
            found.push(format!("{prefix}{}", readable(key)));
        }
        for (key, node) in &self.0 {
            node.below.walk(&format!("{prefix}{}", readable(key)), found);
        }
    }
}

/// The key of a named field.
pub(super) fn field(name: &str) -> Box<str> {
    let mut key = String::with_capacity(name.len() + 2);
    key.push_str("f:");
    key.push_str(name);
    key.into()
}

/// A step of a path as people read it.
pub(super) fn readable(key: &str) -> String {
    match key.split_once(':') {
        Some(("f", name)) => format!(".{name}"),
        Some(("k", text)) => {
            let fields: Map<String, Value> = serde_json::from_str(text).unwrap_or_default();
            let mut out = String::from("[");
            for (at, (name, value)) in fields.iter().enumerate() {
                let comma = if at > 0 { "," } else { "" };
                let _ = write!(out, "{comma}{name}={value}");
            }
            out + "]"
        }
        Some(("v", text)) => format!("[={text}]"),
        Some((_, index)) => format!("[{index}]"),
        None => key.to_owned(),
    }
}

/// The key of an item of a list, or why it has none.
pub(super) fn item(list: &Shape<'_>, value: &Value) -> Result<Box<str>, String> {
    let Shape::List(list) = list else { return Err("invalid indexing of non-associative list".to_owned()) };
    let keys = list.keys();
    if keys.is_empty() {
        return match value {
            Value::Object(_) => {
                Err("associative list without keys has an element that's a map type".to_owned())
            }
            Value::Array(_) => Err("not supported: associative list with lists as elements".to_owned()),
            Value::Null => {
                Err("associative list without keys has an element that's an explicit null".to_owned())
            }
            scalar => Ok(format!("v:{scalar}").into()),
        };
    }
    let map = match value {
        Value::Object(map) => map,
        Value::Null => return Err("associative list with keys may not have a null element".to_owned()),
        _ => return Err("associative list with keys may not have non-map elements".to_owned()),
    };
    let mut sorted: Vec<&str> = keys.iter().map(|key| &**key).collect();
    sorted.sort_unstable();
    let mut text = String::from("k:{");
    for name in sorted {
        let default = || list.items().and_then(|items| items.default_of(name));
        if let Some(value) = map.get(name).or_else(default) {
            let comma = if text.len() > 3 { "," } else { "" };
            let _ = write!(text, "{comma}\"{name}\":{value}");
        }
    }
    if text.len() == 3 {
        let quoted: Vec<String> = keys.iter().map(|key| format!("{key:?}")).collect();
        return Err(format!(
            "associative list with keys has an element that omits all key fields [{}] (and doesn't have default values for any key fields)",
            quoted.join(" ")
        ));
    }
    text.push('}');
    Ok(text.into())
}
