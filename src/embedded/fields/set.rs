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

    /// Writes `fieldsV1`. `member`: whether the path above is in the set, too.
    pub(crate) fn write(&self, member: bool, out: &mut String) {
        out.push('{');
        if member && !self.is_empty() {
            out.push_str("\".\":{}");
        }
        for (key, node) in &self.0 {
            if !out.ends_with('{') {
                out.push(',');
            }
            quote(key, out);
            out.push(':');
            node.below.write(node.member, out);
        }
        out.push('}');
    }

    /// Adds the paths of another set.
    pub(crate) fn extend(&mut self, other: &Self) {
        for (key, node) in &other.0 {
            if let Some(own) = self.0.get_mut(key) {
                own.member |= node.member;
                own.below.extend(&node.below);
            } else {
                self.0.insert(key.clone(), node.clone());
            }
        }
    }

    /// Removes the paths of another set.
    pub(crate) fn subtract(&mut self, other: &Self) {
        if other.is_empty() {
            return;
        }
        self.0.retain(|key, node| {
            if let Some(gone) = other.0.get(key) {
                node.member &= !gone.member;
                node.below.subtract(&gone.below);
            }
            !node.is_empty()
        });
    }

    /// Removes the paths of another set and all below them.
    pub(crate) fn cut(&mut self, other: &Self) {
        if other.is_empty() {
            return;
        }
        self.0.retain(|key, node| match other.0.get(key) {
            Some(gone) if gone.member => false,
            Some(gone) => {
                node.below.cut(&gone.below);
                !node.is_empty()
            }
            None => true,
        });
    }

    pub(crate) fn union(&self, other: &Self) -> Self {
        let mut all = self.clone();
        all.extend(other);
        all
    }

    pub(crate) fn difference(&self, other: &Self) -> Self {
        let mut rest = self.clone();
        rest.subtract(other);
        rest
    }

    pub(crate) fn intersection(&self, other: &Self) -> Self {
        let both = self.0.iter().filter_map(|(key, node)| {
            let other = other.0.get(key)?;
            let node =
                Node { member: node.member && other.member, below: node.below.intersection(&other.below) };
            (!node.is_empty()).then(|| (key.clone(), node))
        });
        Self(both.collect())
    }

    /// Whether a path is in both sets.
    pub(crate) fn intersects(&self, other: &Self) -> bool {
        !other.is_empty()
            && self.0.iter().any(|(key, node)| {
                let other = other.0.get(key);
                other.is_some_and(|other| node.member && other.member || node.below.intersects(&other.below))
            })
    }

    /// Whether another set has all paths of this one.
    pub(crate) fn is_subset(&self, other: &Self) -> bool {
        self.0.iter().all(|(key, node)| {
            let other = other.0.get(key);
            other.is_some_and(|other| (!node.member || other.member) && node.below.is_subset(&other.below))
        })
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

    /// Owns as a whole each map and list that its schema has made atomic. Returns whether something has changed.
    pub(crate) fn reconcile(&mut self, typed: Typed<'_>) -> bool {
        let mut has_changed = false;
        for (key, node) in &mut self.0 {
            let below = match key.split_once(':') {
                Some(("f", name)) => typed.map().and_then(|map| map.field(name)),
                _ => typed.list().and_then(super::super::schema::ListShape::items),
            };
            let Some(below) = below else { continue };
            if !below.is_atomic() {
                has_changed |= node.below.reconcile(below);
            } else if !node.below.is_empty() {
                *node = Node { member: true, below: Self::default() };
                has_changed = true;
            }
        }
        has_changed
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

/// Writes a text as JSON.
pub(crate) fn quote(text: &str, out: &mut String) {
    if text.bytes().any(|byte| byte < b' ' || matches!(byte, b'"' | b'\\')) {
        let _ = write!(out, "{}", Value::from(text));
    } else {
        out.extend(["\"", text, "\""]);
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
