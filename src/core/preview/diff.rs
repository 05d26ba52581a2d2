//! Which fields of an object differ.

use serde::Serialize;
use serde::ser::Serializer;
use serde_json::{Map, Value};

use crate::children::names;

/// Keys that may identify the items of a list: the first that all items have is taken.
const ITEM_KEYS: [&str; 9] =
    ["name", "containerPort", "mountPath", "devicePath", "key", "ip", "port", "type", "uid"];

/// Annotations that differ with every apply, or that no user reads.
const INTERNAL: [&str; 4] =
    [names::INTENT, names::SPEC_HASH, names::GENERATED_PROOF, crate::readiness::containers::ANNOTATION];

/// One field that differs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FieldChange {
    /// Its path, such as `spec.containers[name=web].image`.
    pub path: String,
    /// The value before.
    pub before: Shown,
    /// The value after.
    pub after: Shown,
}

/// A value as it may be shown.
#[derive(Debug, Clone, PartialEq)]
pub enum Shown {
    /// The field has no value.
    Absent,
    /// The field has this value.
    Value(Value),
    /// The value may be secret.
    Hidden,
}

impl Serialize for Shown {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Absent => serializer.serialize_none(),
            Self::Value(value) => value.serialize(serializer),
            Self::Hidden => "(hidden)".serialize(serializer),
        }
    }
}

/// The fields of a child that differ, sorted by path. Values that may be secret are hidden.
pub fn differences(before: Option<&Value>, after: &Value) -> Vec<FieldChange> {
    let is_secret = names::may_hold_secrets(after) || before.is_some_and(names::may_hold_secrets);
    let mut comparison = Comparison { found: Vec::new(), is_secret, path: String::new() };
    let (before, after) = (before.map(comparable), comparable(after));
    comparison.compare(before.as_ref(), Some(&after));
    let mut found = comparison.found;
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

/// An object without fields that the API server sets or that no diff shows.
fn comparable(object: &Value) -> Value {
    let mut map = object.as_object().cloned().unwrap_or_default();
    for field in ["status", "apiVersion", "kind"] {
        map.remove(field);
    }
    let mut metadata = Map::new();
    for field in ["labels", "annotations", "ownerReferences"] {
        if let Some(value) = object["metadata"].get(field) {
            metadata.insert(field.to_owned(), value.clone());
        }
    }
    if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
        annotations.retain(|name, _| !INTERNAL.contains(&name.as_str()));
    }
    if let Some(owners) = metadata.get_mut("ownerReferences") {
        *owners = owners.as_array().into_iter().flatten().map(owner).collect();
    }
    map.insert("metadata".to_owned(), Value::Object(metadata));
    Value::Object(map)
}

/// An owner in one word, so that another owner is one difference: `Web/hello`.
fn owner(reference: &Value) -> Value {
    let text = |field: &str| reference[field].as_str().unwrap_or_default();
    let role = if reference["controller"] == true { "" } else { " (no controller)" };
    format!("{}/{}{role}", text("kind"), text("name")).into()
}

struct Comparison {
    found: Vec<FieldChange>,
    is_secret: bool,
    path: String,
}

/// Whether the API server stores a value as if it were absent.
fn is_empty(value: Option<&Value>) -> bool {
    match value {
        None | Some(Value::Null) => true,
        Some(Value::Object(map)) => map.values().all(|value| is_empty(Some(value))),
        Some(Value::Array(items)) => items.is_empty(),
        Some(_) => false,
    }
}

impl Comparison {
    fn compare(&mut self, before: Option<&Value>, after: Option<&Value>) {
        if before == after || is_empty(before) && is_empty(after) || is_same_number(before, after) {
            return;
        }
        let empty = Map::new();
        match (before, after) {
            (Some(Value::Object(before)), None | Some(Value::Null)) => self.maps(before, &empty),
            (None | Some(Value::Null), Some(Value::Object(after))) => self.maps(&empty, after),
            (Some(Value::Object(before)), Some(Value::Object(after))) => self.maps(before, after),
            (before, after) => {
                let list = |value: Option<&Value>| match value {
                    Some(Value::Array(items)) => Some(items.clone()),
                    None | Some(Value::Null) => Some(Vec::new()),
                    Some(_) => None,
                };
                match (list(before), list(after)) {
                    (Some(old), Some(new)) if key_of(&old, &new).is_some() => {
                        let key = key_of(&old, &new).unwrap_or_default();
                        self.items(key, &old, &new);
                    }
                    _ => self.differs(before, after),
                }
            }
        }
    }

    fn maps(&mut self, before: &Map<String, Value>, after: &Map<String, Value>) {
        let mut names: Vec<&String> = before.keys().chain(after.keys()).collect();
        names.sort();
        names.dedup();
        for name in names {
            let is_plain =
                !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c));
            let step = match (is_plain, self.path.is_empty()) {
                (true, true) => name.clone(),
                (true, false) => format!(".{name}"),
                (false, _) => format!("[{name}]"),
            };
            self.within(&step, before.get(name), after.get(name));
        }
    }

    fn items(&mut self, key: &str, before: &[Value], after: &[Value]) {
        let of = |items: &[Value], id: &Value| items.iter().find(|item| item[key] == *id).cloned();
        let mut ids: Vec<&Value> = Vec::new();
        for item in before.iter().chain(after) {
            if !ids.contains(&&item[key]) {
                ids.push(&item[key]);
            }
        }
        for id in ids {
            let text = id.as_str().map_or_else(|| id.to_string(), str::to_owned);
            let text = if self.is_secret && !matches!(key, "name" | "key") { "*".to_owned() } else { text };
            let (old, new) = (of(before, id), of(after, id));
            self.within(&format!("[{key}={text}]"), old.as_ref(), new.as_ref());
        }
    }

    fn within(&mut self, step: &str, before: Option<&Value>, after: Option<&Value>) {
        let length = self.path.len();
        self.path.push_str(step);
        self.compare(before, after);
        self.path.truncate(length);
    }

    fn differs(&mut self, before: Option<&Value>, after: Option<&Value>) {
        let is_hidden = self.is_secret && !self.path.starts_with("metadata.");
        let shown = |value: Option<&Value>| match value {
            None | Some(Value::Null) => Shown::Absent,
            Some(_) if is_hidden => Shown::Hidden,
            Some(value) => Shown::Value(value.clone()),
        };
        let (before, after) = (shown(before), shown(after));
        self.found.push(FieldChange { path: self.path.clone(), before, after });
    }
}

fn is_same_number(before: Option<&Value>, after: Option<&Value>) -> bool {
    let number = |value: Option<&Value>| value.and_then(Value::as_f64);
    number(before).is_some_and(|one| number(after) == Some(one))
}

/// The field that identifies the items of two lists of maps; `None` if they are compared as a whole.
fn key_of(before: &[Value], after: &[Value]) -> Option<&'static str> {
    if before.is_empty() && after.is_empty() {
        return None;
    }
    let is_key = |key: &&'static str| {
        let is_unique = |items: &[Value]| {
            let ids: Vec<&Value> = items.iter().map(|item| &item[*key]).collect();
            let is_id = |id: &&Value| id.is_string() || id.is_number();
            ids.iter().all(is_id) && ids.iter().enumerate().all(|(index, id)| !ids[..index].contains(id))
        };
        is_unique(before) && is_unique(after)
    };
    ITEM_KEYS.into_iter().find(|key| is_key(key))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn lines(before: &Value, after: &Value) -> Vec<String> {
        let shown = |shown: &Shown| serde_json::to_string(shown).unwrap();
        let found = differences(Some(before), after);
        found.iter().map(|c| format!("{} {} {}", c.path, shown(&c.before), shown(&c.after))).collect()
    }

    #[test]
    fn fields_are_named_by_path_and_items_by_key() {
        let before = json!({"kind": "Pod", "metadata": {"uid": "u", "labels": {"a.b/c": "1"}}, "status": {"x": 1},
            "spec": {"containers": [{"name": "a", "image": "1", "args": ["x"]}, {"name": "b"}], "n": 1, "same": {}}});
        let after = json!({"kind": "Pod", "metadata": {"labels": {"a.b/c": "2"}},
            "spec": {"containers": [{"name": "b"}, {"name": "a", "image": "2", "args": ["y"]}, {"name": "c", "tty": true}],
                "n": 1.0, "same": null, "new": {"x": 1}}});
        assert_eq!(
            lines(&before, &after),
            [
                "metadata.labels[a.b/c] \"1\" \"2\"",
                "spec.containers[name=a].args [\"x\"] [\"y\"]",
                "spec.containers[name=a].image \"1\" \"2\"",
                "spec.containers[name=c].name null \"c\"",
                "spec.containers[name=c].tty null true",
                "spec.new.x null 1",
            ]
        );
    }

    #[test]
    fn changed_owner_references_are_one_difference() {
        let of = |owners: Value| json!({"metadata": {"ownerReferences": owners}});
        let reference = json!({"apiVersion": "e.org/v1", "kind": "Web", "name": "a", "uid": "1", "controller": true,
            "blockOwnerDeletion": true});
        assert_eq!(
            lines(&of(json!([reference])), &of(json!([]))),
            ["metadata.ownerReferences [\"Web/a\"] []"]
        );
    }

    #[test]
    fn diff_hides_values_of_secrets() {
        let before = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"labels": {"a": "1"}}, "data": {"k": "c2VjcmV0"}});
        let after = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"labels": {"a": "2"}}, "data": {"k": "b3RoZXI="}});
        assert_eq!(
            lines(&before, &after),
            ["data.k \"(hidden)\" \"(hidden)\"", "metadata.labels.a \"1\" \"2\""]
        );
        let exposed = |text: &str| {
            json!({"kind": "ConfigMap", "metadata": {"annotations": {names::EXPOSES_SECRET_DATA: "true"}},
                "data": {"list": [{"port": text}]}})
        };
        for line in lines(&exposed("hunter2"), &exposed("hunter3")) {
            assert!(!line.contains("hunter"), "{line}");
        }
    }

    #[test]
    fn annotations_that_every_apply_changes_are_not_shown() {
        let of = |hash: &str| json!({"metadata": {"annotations": {names::INTENT: hash}}, "data": {"a": "1"}});
        assert!(lines(&of("1"), &of("2")).is_empty());
        assert_eq!(differences(None, &of("1")).len(), 1);
    }
}
