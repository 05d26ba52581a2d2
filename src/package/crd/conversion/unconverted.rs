//! Finds fields that are lost between the versions of a CRD without a conversion. With the strategy `None`,
//! the API server changes only `apiVersion`, and drops the fields that the schema of the other version lacks.

use operetta_kube_model::schema::{OBJECT_FIELDS, OtherKeys, join, other_keys, properties, values};
use serde_json::{Map, Value};

use super::compile::differ;
use crate::crd::{schema_of, storage_version, versions};

/// A served version whose fields differ from those of the storage version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unconverted {
    /// The index of the version in the CRD.
    pub index: usize,
    /// The name of the version.
    pub version: String,
    /// The name of the storage version.
    pub storage: String,
    /// The fields that only this version has.
    pub own: Vec<String>,
    /// The fields that only the storage version has.
    pub stored: Vec<String>,
    /// The fields of both versions that differ, with the difference.
    pub different: Vec<String>,
}

impl Unconverted {
    fn compare(&mut self, own: &Value, hub: &Value, path: &str) {
        if let Some(difference) = differ(own, hub) {
            self.different.push(format!("{path} {difference}"));
            return;
        }
        let empty = Map::new();
        let (ours, theirs) = (properties(own).unwrap_or(&empty), properties(hub).unwrap_or(&empty));
        let is_closed = |schema: &Value| matches!(other_keys(schema), OtherKeys::Closed);
        // The status is not compared, because only the manager writes it, always in the same version.
        let is_compared =
            |name: &str| !path.is_empty() || (name != "status" && !OBJECT_FIELDS.contains(&name));
        for (name, field) in ours.iter().filter(|(name, _)| is_compared(name)) {
            match theirs.get(name) {
                Some(other) => self.compare(field, other, &join(path, name)),
                None if is_closed(hub) => self.own.push(join(path, name)),
                None => {}
            }
        }
        let only = theirs.keys().filter(|name| is_compared(name) && !ours.contains_key(*name));
        self.stored.extend(only.filter(|_| is_closed(own)).map(|name| join(path, name)));
        for (own, hub) in [(own.get("items"), hub.get("items")), (values(own), values(hub))] {
            if let (Some(own), Some(hub)) = (own, hub) {
                self.compare(own, hub, &format!("{path}[*]"));
            }
        }
    }

    fn is_nothing(&self) -> bool {
        self.own.is_empty() && self.stored.is_empty() && self.different.is_empty()
    }
}

/// The served versions of a CRD whose objects lose values when they are read or written in another version.
/// Empty if the CRD has its own conversion.
pub fn unconverted(crd: &Value) -> Vec<Unconverted> {
    let strategy = crd["spec"]["conversion"]["strategy"].as_str();
    let Some(storage) = storage_version(crd).filter(|_| strategy.is_none_or(|strategy| strategy == "None"))
    else {
        return Vec::new();
    };
    let others = versions(crd).enumerate().filter(|(_, version)| version["served"] == true);
    others
        .filter_map(|(index, version)| {
            let name = version["name"].as_str().filter(|name| *name != storage)?;
            let mut found = Unconverted {
                index,
                version: name.to_owned(),
                storage: storage.to_owned(),
                own: Vec::new(),
                stored: Vec::new(),
                different: Vec::new(),
            };
            found.compare(schema_of(crd, name)?, schema_of(crd, storage)?, "");
            (!found.is_nothing()).then_some(found)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn crd(own: &Value, hub: &Value) -> Value {
        let version = |name: &str, storage: bool, spec: &Value| {
            json!({"name": name, "served": true, "storage": storage, "schema": {"openAPIV3Schema": {
                "type": "object", "properties": {"spec": spec, "status": {"type": "object", "properties": {(name): {}}}},
            }}})
        };
        json!({"spec": {"versions": [version("v1", false, own), version("v2", true, hub)]}})
    }

    fn lost(own: &Value, hub: &Value) -> Option<(String, String, String)> {
        let found = unconverted(&crd(own, hub)).pop()?;
        assert_eq!((found.index, found.version.as_str(), found.storage.as_str()), (0, "v1", "v2"));
        Some((found.own.join(","), found.stored.join(","), found.different.join(",")))
    }

    #[test]
    fn fields_of_one_version_are_lost_unless_the_other_is_open() {
        let object = |fields: Value| json!({"type": "object", "properties": fields});
        let (text, number) = (json!({"type": "string"}), json!({"type": "integer"}));
        assert_eq!(lost(&object(json!({"a": text})), &object(json!({"a": text}))), None);
        // The validation of a value does not matter, only whether it is kept.
        let short = json!({"type": "string", "maxLength": 3, "description": "x"});
        assert_eq!(lost(&object(json!({"a": text})), &object(json!({"a": short}))), None);
        let all =
            |own: &str, stored: &str, different: &str| Some((own.into(), stored.into(), different.into()));
        assert_eq!(
            lost(&object(json!({"a": text, "b": text})), &object(json!({"a": number, "c": text}))),
            all("spec.b", "spec.c", "spec.a has different types")
        );
        let list = |item: Value| json!({"type": "array", "items": item});
        let map = |value: Value| json!({"type": "object", "additionalProperties": value});
        assert_eq!(
            lost(
                &object(json!({"l": list(object(json!({"x": text}))), "m": map(object(json!({})))})),
                &object(json!({"l": list(object(json!({}))), "m": map(object(json!({"y": text})))})),
            ),
            all("spec.l[*].x", "spec.m[*].y", "")
        );
        let mut open = object(json!({}));
        open["x-kubernetes-preserve-unknown-fields"] = true.into();
        assert_eq!(lost(&open, &object(json!({}))), all("", "", "spec allows different unknown fields"));
        assert_eq!(lost(&open, &open), None);
    }

    #[test]
    fn unserved_or_converted_versions_are_not_reported() {
        let (own, hub) =
            (json!({"type": "object", "properties": {"a": {"type": "string"}}}), json!({"type": "object"}));
        let mut crd = crd(&own, &hub);
        assert_eq!(unconverted(&crd).len(), 1);
        crd["spec"]["conversion"] = json!({"strategy": "Webhook"});
        assert_eq!(unconverted(&crd), []);
        crd["spec"]["conversion"] = json!({"strategy": "None"});
        assert_eq!(unconverted(&crd).len(), 1);
        crd["spec"]["versions"][0]["served"] = false.into();
        assert_eq!(unconverted(&crd), []);
    }
}
