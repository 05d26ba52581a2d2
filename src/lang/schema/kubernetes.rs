//! The built-in kinds of Kubernetes and their schemas, as far as they say which values are accepted.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::ops::Range;

use operetta_kube_model::built_in::{self, api_version, resources};
use serde_json::{Value, json};

use super::Schema;
use crate::api::Gvk;

/// The built-in kinds. Schemas are parsed where they are used.
#[derive(Debug)]
pub struct Kubernetes {
    text: String,
    kinds: Vec<BuiltIn>,
    definitions: HashMap<String, (Range<usize>, OnceCell<Value>)>,
}

/// One built-in kind.
#[derive(Debug)]
pub struct BuiltIn {
    /// Its apiVersion and kind.
    pub gvk: Gvk,
    definition: String,
}

impl Kubernetes {
    /// Unpacks the schemas, which takes about a millisecond.
    pub fn load() -> Self {
        Self::of(built_in::definitions(), &built_in::discovery())
    }

    /// Creates an empty set, for schemas that reference no definitions.
    pub fn none() -> Self {
        Self::of(String::new(), &[])
    }

    fn of(text: String, discovery: &[Value]) -> Self {
        let mut definitions = HashMap::new();
        let mut named: HashMap<&str, &str> = HashMap::new();
        let mut start = 0;
        for line in text.split_inclusive('\n') {
            if let Some((name, json)) = line.trim_end().split_once(' ') {
                let begin = start + name.len() + 1;
                definitions.insert(name.to_owned(), (begin..begin + json.len(), OnceCell::new()));
                let kind = json.strip_prefix(r#"{"kind":""#).and_then(|rest| rest.split_once('"'));
                named.extend(kind.map(|(kind, _)| (kind, name)));
            }
            start += line.len();
        }
        // Objects of the others are not stored.
        let stored = resources(discovery).filter(|(.., resource)| {
            resource["verbs"].as_array().is_some_and(|verbs| verbs.iter().any(|verb| verb == "patch"))
        });
        let mut kinds: Vec<BuiltIn> = stored
            .filter_map(|(group, version, resource)| {
                let api_version = api_version(group, version);
                let kind = resource["responseKind"]["kind"].as_str()?;
                let definition = named.get(&*format!("{api_version} {kind}"))?;
                Some(BuiltIn { gvk: Gvk::new(api_version, kind), definition: (*definition).to_owned() })
            })
            .collect();
        kinds.sort_by(|a, b| a.gvk.cmp(&b.gvk));
        Self { text, kinds, definitions }
    }

    pub(super) fn definition(&self, name: &str) -> Option<&Value> {
        let (range, parsed) = self.definitions.get(name)?;
        let parse = || match name {
            "apimachinery.pkg.api.resource.Quantity" => json!({"format": "quantity"}),
            "apimachinery.pkg.util.intstr.IntOrString" => json!({"x-kubernetes-int-or-string": true}),
            _ => {
                let text = self.text.get(range.clone()).unwrap_or_default();
                let mut schema: Value = serde_json::from_str(text).unwrap_or_default();
                forget_defaults(&mut schema);
                schema
            }
        };
        Some(parsed.get_or_init(parse))
    }

    /// All built-in kinds, by apiVersion.
    pub fn kinds(&self) -> &[BuiltIn] {
        &self.kinds
    }

    /// The built-in kind of that name.
    pub fn find(&self, gvk: &Gvk) -> Option<&BuiltIn> {
        self.kinds.iter().find(|known| known.gvk == *gvk)
    }

    /// The schema of a built-in kind.
    pub fn schema(&self, kind: &BuiltIn) -> Option<Schema<'_>> {
        self.definition(&kind.definition).map(|value| Schema::new(value, self))
    }
}

/// Removes the defaults: they are those of Go, and the API server requires a field that has one.
fn forget_defaults(schema: &mut Value) {
    let Some(map) = schema.as_object_mut() else { return };
    map.remove("default");
    for (key, below) in map {
        match key.as_str() {
            "items" | "additionalProperties" => forget_defaults(below),
            "properties" => {
                for (_, field) in below.as_object_mut().into_iter().flatten() {
                    forget_defaults(field);
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::api::{ApiKind, BuiltIn};

    #[test]
    fn all_definitions_and_references_are_valid() {
        let kubernetes = Kubernetes::load();
        assert!(kubernetes.kinds().len() > 50);
        for kind in kubernetes.kinds() {
            assert!(kubernetes.schema(kind).is_some_and(Schema::has_named_fields), "{kind:?}");
        }
        for name in kubernetes.definitions.keys() {
            let definition = kubernetes.definition(name).unwrap();
            assert!(definition.is_object(), "{name}");
            check(&kubernetes, definition);
        }
    }

    /// `tests/planes/control_plane` compares them with a real server.
    #[test]
    fn built_in_kinds_match_the_schemas_of_the_server() {
        let kubernetes = Kubernetes::load();
        let mut served = HashSet::new();
        for (group, version, resource) in resources(&built_in::discovery()) {
            let kind = resource["responseKind"]["kind"].as_str().unwrap();
            let api_version = api_version(group, version);
            if kubernetes.find(&Gvk::new(&*api_version, kind)).is_none() {
                continue;
            }
            let api_kind = ApiKind::built_in(&api_version, kind);
            assert!(BuiltIn::find(&api_kind.group, kind).is_some(), "{api_kind} is not in the table");
            assert_eq!(api_kind.namespaced, resource["scope"] == "Namespaced", "{api_kind}");
            assert_eq!(resource["resource"], api_kind.plural, "{api_kind}");
            served.insert((api_kind.group, api_kind.kind));
        }
        let is_off = |known: &&BuiltIn| !served.contains(&(known.group.to_owned(), known.kind.to_owned()));
        let off: Vec<_> = BuiltIn::all().iter().filter(is_off).map(|known| known.kind).collect();
        assert_eq!(
            off,
            ["ClusterTrustBundle", "DeviceTaintRule", "StorageVersionMigration"],
            "off by default"
        );
    }

    fn check(kubernetes: &Kubernetes, schema: &Value) {
        match schema {
            Value::Object(map) => {
                if let Some(name) = map.get("$ref").and_then(Value::as_str) {
                    assert!(kubernetes.definitions.contains_key(name), "{name}");
                }
                map.values().for_each(|value| check(kubernetes, value));
            }
            Value::Array(items) => items.iter().for_each(|value| check(kubernetes, value)),
            _ => {}
        }
    }
}
