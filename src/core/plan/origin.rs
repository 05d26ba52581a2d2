//! What a rollout starts from, as far as it selects plans. `children` stores and restores it.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

/// What a rollout starts from.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ComparedOrigin<'a> {
    /// The name of its `ControllerRevision`: equal origins have equal names.
    pub name: &'a str,
    /// The revision of the package.
    pub revision: &'a str,
    /// The spec, CRD defaults filled in.
    pub spec: &'a Value,
    /// The labels.
    pub labels: &'a Map<String, Value>,
    /// The annotations, except Operetta's own.
    pub annotations: &'a Map<String, Value>,
    /// A keyed digest of what each object ref brings, by the id of the ref; none for a ref that was never
    /// known.
    pub refs: &'a BTreeMap<String, String>,
}

/// Whether two keyed digests, written `KEY:DIGEST`, are of different values. Digests with different keys
/// cannot be compared.
pub fn is_other_digest(one: &str, other: &str) -> bool {
    let key = |digest: &'_ str| digest.split_once(':').map(|(key, _)| key.to_owned());
    one != other && key(one) == key(other)
}

impl ComparedOrigin<'_> {
    /// The paths of `spec` in which two origins differ, each as deep as both have maps; lists are compared as a whole.
    pub fn changed_paths(&self, other: &ComparedOrigin<'_>) -> Vec<Vec<String>> {
        let mut found = Vec::new();
        differences(self.spec, other.spec, &mut vec!["spec".to_owned()], &mut found);
        found
    }

    /// Whether a label or an annotation differs. `field`: `labels` or `annotations`.
    pub fn changed_metadata(&self, other: &ComparedOrigin<'_>, field: &str, key: &str) -> bool {
        let (one, other) = match field {
            "labels" => (self.labels, other.labels),
            _ => (self.annotations, other.annotations),
        };
        one.get(key) != other.get(key)
    }

    /// The ids of the refs whose objects differ.
    pub fn changed_refs(&self, other: &ComparedOrigin<'_>) -> Vec<String> {
        let digests = self.refs.iter().filter_map(|(id, one)| Some((id, one, other.refs.get(id)?)));
        digests.filter(|(_, one, other)| is_other_digest(one, other)).map(|(id, ..)| id.clone()).collect()
    }
}

/// The paths of the leaves in which two values differ. A missing value is one without leaves.
fn differences(one: &Value, other: &Value, path: &mut Vec<String>, found: &mut Vec<Vec<String>>) {
    if one == other {
        return;
    }
    let map = |value: &Value| value.as_object().filter(|map| !map.is_empty()).cloned();
    let (left, right) = (map(one), map(other));
    // A scalar that becomes a map changes at its own path as well.
    let is_leaf = |map: &Option<Map<String, Value>>, value: &Value| {
        map.is_none() && !value.is_null() && !value.is_object()
    };
    if is_leaf(&left, one) || is_leaf(&right, other) || (left.is_none() && right.is_none()) {
        found.push(path.clone());
    }
    let (left, right) = (left.unwrap_or_default(), right.unwrap_or_default());
    let keys: BTreeSet<&String> = left.keys().chain(right.keys()).collect();
    for key in keys {
        path.push(key.clone());
        let (left, right) = (left.get(key).unwrap_or(&Value::Null), right.get(key).unwrap_or(&Value::Null));
        differences(left, right, path, found);
        path.pop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn changed_paths_are_as_deep_as_both_have_maps() {
        for (one, other, expected) in [
            (json!({"a": 1}), json!({"a": 1}), vec![]),
            (json!({"a": 1, "b": 2}), json!({"a": 3, "b": 2}), vec!["spec.a"]),
            (json!({"pod": {"x": 1}}), json!({}), vec!["spec.pod.x"]),
            (json!({"l": [1, 2]}), json!({"l": [1]}), vec!["spec.l"]),
            (json!({"a": 1}), json!({"a": {"b": 1}}), vec!["spec.a", "spec.a.b"]),
            (json!({"a": {}}), json!({}), vec!["spec.a"]),
        ] {
            let (refs, none) = (BTreeMap::new(), Map::new());
            let origin = |spec| ComparedOrigin {
                name: "",
                revision: "",
                spec,
                labels: &none,
                annotations: &none,
                refs: &refs,
            };
            let found: Vec<_> =
                origin(&one).changed_paths(&origin(&other)).iter().map(|path| path.join(".")).collect();
            assert_eq!(found, expected);
        }
    }
}
