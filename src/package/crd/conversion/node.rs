//! JSON of which only the parts that rules reach are parsed; the rest stays text. So the depth of an object
//! and the digits of its numbers are preserved, and a value takes little more memory than its text.

use std::collections::BTreeMap;
use std::rc::Rc;

use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::path::{Path, Segment};

/// The maximum depth to which a value is parsed for validation. `serde_json` permits 128 levels.
const DEPTH: usize = 100;

/// A JSON value.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Node<'a> {
    /// A part of the given text, not parsed.
    Part(&'a str),
    /// Text that is not a part of the given text, not parsed.
    Own(Rc<str>),
    /// An object, sorted by key.
    Object(Vec<(String, Node<'a>)>),
    Array(Vec<Node<'a>>),
}

impl Node<'_> {
    pub(super) fn string(text: &str) -> Self {
        Self::Own(Value::from(text).to_string().into())
    }

    pub(super) fn empty_object() -> Self {
        Self::Object(Vec::new())
    }

    /// Parses the objects and lists on these paths.
    pub(super) fn open<'p>(&mut self, paths: impl IntoIterator<Item = &'p Path>) {
        for path in paths {
            self.open_path(path);
        }
    }

    fn open_path(&mut self, path: &[Segment]) {
        let Some((first, rest)) = path.split_first() else { return };
        let read = match self {
            Self::Part(text) => Self::read(text, Self::Part),
            Self::Own(text) => Self::read(text, |part| Self::Own(part.into())),
            _ => None,
        };
        if let Some(read) = read {
            *self = read;
        }
        match (first, self) {
            (Segment::Key(key), Self::Object(map)) => {
                if let Ok(at) = find(map, key) {
                    map[at].1.open_path(rest);
                }
            }
            (Segment::Each { .. }, Self::Array(items)) => {
                for item in items {
                    item.open_path(rest);
                }
            }
            (Segment::Each { .. }, Self::Object(map)) => {
                for (_, value) in map {
                    value.open_path(rest);
                }
            }
            _ => {}
        }
    }

    /// Parses one level of a text.
    fn read<'t>(text: &'t str, part: impl Fn(&'t str) -> Self) -> Option<Self> {
        if let Some(items) = items(text) {
            return Some(Self::Array(items.into_iter().map(part).collect()));
        }
        let map = entries(text)?.into_iter().map(|(key, value)| (key, part(value)));
        Some(Self::Object(map.collect()))
    }

    /// The text, if it is not parsed.
    fn text(&self) -> Option<&str> {
        match self {
            Self::Part(text) => Some(text),
            Self::Own(text) => Some(text),
            _ => None,
        }
    }

    pub(super) fn get(&self, key: &str) -> Option<&Self> {
        let Self::Object(map) = self else { return None };
        find(map, key).ok().map(|at| &map[at].1)
    }

    pub(super) fn get_mut(&mut self, key: &str) -> Option<&mut Self> {
        let Self::Object(map) = self else { return None };
        find(map, key).ok().map(|at| &mut map[at].1)
    }

    /// The position of a key, and whether the key was added, with an empty object as value.
    pub(super) fn entry(map: &mut Vec<(String, Self)>, key: &str) -> (usize, bool) {
        match find(map, key) {
            Ok(at) => (at, false),
            Err(at) => {
                map.insert(at, (key.to_owned(), Self::empty_object()));
                (at, true)
            }
        }
    }

    pub(super) fn insert(&mut self, key: &str, value: Self) {
        if let Self::Object(map) = self {
            let (at, _) = Self::entry(map, key);
            map[at].1 = value;
        }
    }

    pub(super) fn remove(&mut self, key: &str) -> Option<Self> {
        let Self::Object(map) = self else { return None };
        find(map, key).ok().map(|at| map.remove(at).1)
    }

    pub(super) fn is_object(&self) -> bool {
        match self {
            Self::Object(_) => true,
            _ => self.text().is_some_and(|text| text.starts_with('{')),
        }
    }

    pub(super) fn is_empty_object(&self) -> bool {
        match self {
            Self::Object(map) => map.is_empty(),
            _ => self.text().is_some_and(is_empty_object),
        }
    }

    /// The string, if it is one.
    pub(super) fn as_string(&self) -> Option<String> {
        self.text().filter(|text| text.starts_with('"')).and_then(|text| serde_json::from_str(text).ok())
    }

    /// The value, if it is neither an object nor a list.
    pub(super) fn as_scalar(&self) -> Option<Value> {
        let text = self.text().filter(|text| !text.starts_with(['{', '[']))?;
        serde_json::from_str(text).ok()
    }

    pub(super) fn write(&self, out: &mut String) {
        match self {
            Self::Part(text) => out.push_str(text),
            Self::Own(text) => out.push_str(text),
            Self::Object(map) => {
                out.push('{');
                for (number, (key, value)) in map.iter().enumerate() {
                    if number > 0 {
                        out.push(',');
                    }
                    out.push_str(&Value::from(key.as_str()).to_string());
                    out.push(':');
                    value.write(out);
                }
                out.push('}');
            }
            Self::Array(items) => {
                out.push('[');
                for (number, item) in items.iter().enumerate() {
                    if number > 0 {
                        out.push(',');
                    }
                    item.write(out);
                }
                out.push(']');
            }
        }
    }

    pub(super) fn to_text(&self) -> Rc<str> {
        if let Self::Own(text) = self {
            return Rc::clone(text);
        }
        let mut out = String::new();
        self.write(&mut out);
        out.into()
    }
}

fn find<T>(map: &[(String, T)], key: &str) -> Result<usize, usize> {
    map.binary_search_by(|(known, _)| known.as_str().cmp(key))
}

pub(super) fn is_empty_object(text: &str) -> bool {
    text.strip_prefix('{').is_some_and(|rest| rest.trim_start() == "}")
}

/// Parses a text for validation. Levels deeper than a schema can describe become null.
pub(super) fn value_of(text: &str) -> Value {
    // `serde_json` fails for a text that is nested too deep.
    serde_json::from_str(text).unwrap_or_else(|_| shallow(text, DEPTH))
}

fn shallow(text: &str, depth: usize) -> Value {
    if depth == 0 {
        return Value::Null;
    }
    if let Some(entries) = entries(text) {
        let entries = entries.into_iter().map(|(key, value)| (key, shallow(value, depth - 1)));
        return Value::Object(entries.collect::<Map<_, _>>());
    }
    match items(text) {
        Some(items) => items.into_iter().map(|item| shallow(item, depth - 1)).collect(),
        None => serde_json::from_str(text).unwrap_or_default(),
    }
}

/// The fields of a JSON object, sorted by key, with the text of each value; `None` if it is not an object. Of
/// duplicate keys the last one counts. Does not recurse.
pub fn entries(text: &str) -> Option<Vec<(String, &str)>> {
    let entries: BTreeMap<String, &RawValue> = serde_json::from_str(text).ok()?;
    Some(entries.into_iter().map(|(key, value)| (key, value.get())).collect())
}

/// The text of each item of a JSON list; `None` if it is not a list. Does not recurse.
pub fn items(text: &str) -> Option<Vec<&str>> {
    let items: Vec<&RawValue> = serde_json::from_str(text).ok()?;
    Some(items.into_iter().map(RawValue::get).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_level_is_parsed() {
        let deep = "[".repeat(100_000) + &"]".repeat(100_000);
        let text = format!(" {{ \"b\" : {deep} , \"a\\n\":-1.50e3,\"c\":\"}}\"}}\n");
        assert_eq!(
            entries(&text).unwrap(),
            [("a\n".to_owned(), "-1.50e3"), ("b".to_owned(), deep.as_str()), ("c".to_owned(), "\"}\"")]
        );
        assert_eq!(entries(r#"{"a":1,"a":[2]}"#).unwrap(), [("a".to_owned(), "[2]")]);
        assert_eq!(items("[ 1 ,{} , null]").unwrap(), ["1", "{}", "null"]);
        assert_eq!((entries("{}"), items("[ ]")), (Some(vec![]), Some(vec![])));
        for text in [
            "",
            "{",
            "[",
            "{]",
            "[}",
            "[1,]",
            "[1 2]",
            "{\"a\"}",
            "{\"a\":1,}",
            "{1:2}",
            "[1]x",
            "{} {}",
            "7",
        ] {
            assert_eq!((entries(text), items(text)), (None, None), "{text}");
        }
    }

    #[test]
    fn deep_value_is_validated_to_a_maximum_depth() {
        let deep = format!("{{\"a\":1,\"b\":{}{}}}", "[".repeat(1_000), "]".repeat(1_000));
        let value = value_of(&deep);
        assert_eq!(value["a"], 1);
        assert!(value["b"][0][0].is_array());
    }
}
