//! The built-in kinds of Kubernetes and their schemas, from `schemas/kubernetes/`: what an API server of that
//! version serves at `/openapi/v3`, compressed. `tests/control_plane.rs` writes the file and checks it.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::ops::Range;

use serde_json::Value;

use super::Schema;

/// The version of Kubernetes that the schemas are of.
pub(crate) const VERSION: &str = "1.36";

static COMPRESSED: &[u8] = include_bytes!("../../schemas/kubernetes/1.36.txt.z");

/// More than the text has, much less than hurts.
const MAX_BYTES: usize = 4 << 20;

/// The built-in kinds. Schemas are parsed where they are used.
#[derive(Debug)]
pub(crate) struct Kubernetes {
    text: String,
    kinds: Vec<BuiltIn>,
    definitions: HashMap<String, (Range<usize>, OnceCell<Value>)>,
}

/// One built-in kind.
#[derive(Debug)]
pub(crate) struct BuiltIn {
    pub(crate) api_version: String,
    pub(crate) kind: String,
    pub(crate) is_namespaced: bool,
    definition: String,
}

impl Kubernetes {
    /// Unpacks the schemas: about a millisecond.
    pub(crate) fn load() -> Self {
        let bytes = miniz_oxide::inflate::decompress_to_vec_zlib_with_limit(COMPRESSED, MAX_BYTES);
        Self::of(bytes.ok().and_then(|bytes| String::from_utf8(bytes).ok()).unwrap_or_default())
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
                } else if let [kind, _, scope, definition] = rest.split(' ').collect::<Vec<_>>().as_slice() {
                    kinds.push(BuiltIn {
                        api_version: name.to_owned(),
                        kind: (*kind).to_owned(),
                        is_namespaced: *scope == "Namespaced",
                        definition: (*definition).to_owned(),
                    });
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
    pub(crate) fn kinds(&self) -> &[BuiltIn] {
        &self.kinds
    }

    /// The built-in kind of that apiVersion and kind.
    pub(crate) fn find(&self, api_version: &str, kind: &str) -> Option<&BuiltIn> {
        self.kinds.iter().find(|known| known.api_version == api_version && known.kind == kind)
    }

    /// The schema of a built-in kind.
    pub(crate) fn schema(&self, kind: &BuiltIn) -> Option<Schema<'_>> {
        self.definition(&kind.definition).map(|value| Schema::new(value, self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_definition_can_be_read_and_every_reference_leads_somewhere() {
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
