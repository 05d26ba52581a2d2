//! The built-in kinds of Kubernetes and their schemas, from `schemas/kubernetes/`: the compressed response of
//! an API server of that version to `/openapi/v3`. `tests/planes/control_plane` writes the file and checks
//! it.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::ops::Range;

use serde_json::Value;

use super::Schema;
use crate::api::Gvk;

/// The version of Kubernetes from which the schemas come.
pub const VERSION: &str = "1.36";

static COMPRESSED: &[u8] = include_bytes!("../../../schemas/kubernetes/1.36.txt.z");

/// A bound for the unpacked text; far above its real size.
const MAX_BYTES: usize = 4 << 20;

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
        let bytes = miniz_oxide::inflate::decompress_to_vec_zlib_with_limit(COMPRESSED, MAX_BYTES);
        Self::of(bytes.ok().and_then(|bytes| String::from_utf8(bytes).ok()).unwrap_or_default())
    }

    /// Creates an empty set, for schemas that reference no definitions.
    pub fn none() -> Self {
        Self::of(String::new())
    }

    fn of(text: String) -> Self {
        let mut kinds = Vec::new();
        let mut definitions = HashMap::new();
        let mut start = 0;
        for line in text.split_inclusive('\n') {
            if let Some((name, rest)) = line.trim_end().split_once(' ') {
                if rest.starts_with('{') {
                    let begin = start + name.len() + 1;
                    definitions.insert(name.to_owned(), (begin..begin + rest.len(), OnceCell::new()));
                } else if let [kind, _plural, _scope, definition] =
                    rest.split(' ').collect::<Vec<_>>().as_slice()
                {
                    kinds.push(BuiltIn { gvk: Gvk::new(name, *kind), definition: (*definition).to_owned() });
                }
            }
            start += line.len();
        }
        Self { text, kinds, definitions }
    }

    pub(super) fn definition(&self, name: &str) -> Option<&Value> {
        let (range, parsed) = self.definitions.get(name)?;
        let parse = || serde_json::from_str(self.text.get(range.clone())?).ok();
        Some(parsed.get_or_init(|| parse().unwrap_or(Value::Null)))
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

    /// The text is what a real server serves (`tests/control_plane.rs`).
    #[test]
    fn built_in_kinds_match_the_schemas_of_the_server() {
        let kubernetes = Kubernetes::load();
        let mut served = HashSet::new();
        for line in kubernetes.text.lines() {
            let [api_version, kind, plural, scope, _] = line.split(' ').collect::<Vec<_>>()[..] else {
                continue;
            };
            if plural.starts_with('{') {
                continue;
            }
            let api_kind = ApiKind::built_in(api_version, kind);
            assert!(BuiltIn::find(&api_kind.group, kind).is_some(), "{api_kind} is not in the table");
            assert_eq!(api_kind.namespaced, scope == "Namespaced", "{api_kind}");
            assert_eq!(api_kind.plural, plural, "{api_kind}");
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
