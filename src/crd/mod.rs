//! What a CRD says, what it lacks, and what an object of its kind must look like.
//!
//! Everything here is a plain function over the JSON of the CRD or of its `openAPIV3Schema`, and does
//! what the API server (1.36) does with it: structural defaulting, pruning turned into messages, and
//! validation. CEL rules are left to the server.

mod augment;
mod check;
mod defaults;
mod lookup;
mod narrowing;
mod pattern;
mod structure;
#[cfg(test)]
mod tests;
mod validate;

use serde_json::{Map, Value};

pub use augment::{Additions, augment, taken};
pub use check::check;
pub use defaults::apply_defaults;
pub use lookup::{Lookup, lookup, schema_fact};
pub use narrowing::{Narrowed, narrowed};
pub use validate::{Violation, validate, validate_part};

/// What a CRD defines, in the words of a request for it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Kind {
    /// API group, for instance `etcd.database.coreos.com`.
    pub group: String,
    /// The storage version if it is served, else the first that is.
    pub version: String,
    /// The kind, for instance `EtcdCluster`.
    pub kind: String,
    /// The resource's name in URLs.
    pub plural: String,
    /// The name for one of them.
    pub singular: String,
    /// Whether its objects live in namespaces.
    pub namespaced: bool,
}

impl Kind {
    /// `group/version`.
    pub fn api_version(&self) -> String {
        format!("{}/{}", self.group, self.version)
    }
}

/// The group of an `apiVersion`; empty for the core group.
pub fn group_of(api_version: &str) -> &str {
    api_version.split_once('/').map_or("", |(group, _)| group)
}

/// The kind that a CRD defines; `None` if it is too broken to say.
pub fn kind(crd: &Value) -> Option<Kind> {
    let spec = crd.get("spec")?;
    let names = spec.get("names")?;
    let text = |value: &Value| value.as_str().filter(|text| !text.is_empty()).map(str::to_owned);
    let kind = text(names.get("kind")?)?;
    let versions = || spec.get("versions").and_then(Value::as_array).into_iter().flatten();
    let version = versions()
        .find(|version| version["storage"] == true && version["served"] == true)
        .or_else(|| versions().find(|version| version["served"] == true))?;
    Some(Kind {
        group: text(spec.get("group")?)?,
        version: text(version.get("name")?)?,
        plural: text(names.get("plural")?)?,
        singular: names.get("singular").and_then(text).unwrap_or_else(|| kind.to_lowercase()),
        namespaced: spec.get("scope")? == "Namespaced",
        kind,
    })
}

/// The `openAPIV3Schema` of one version.
pub fn schema_of<'a>(crd: &'a Value, version: &str) -> Option<&'a Value> {
    let versions = crd.get("spec")?.get("versions")?.as_array()?;
    versions.iter().find(|known| known["name"] == version)?.get("schema")?.get("openAPIV3Schema")
}

/// Whether a schema lets through what it does not name.
fn preserves(schema: &Value) -> bool {
    schema.get("x-kubernetes-preserve-unknown-fields") == Some(&Value::Bool(true))
}

fn is_int_or_string(schema: &Value) -> bool {
    schema.get("x-kubernetes-int-or-string") == Some(&Value::Bool(true))
}

fn is_embedded(schema: &Value) -> bool {
    schema.get("x-kubernetes-embedded-resource") == Some(&Value::Bool(true))
}

fn properties(schema: &Value) -> Option<&Map<String, Value>> {
    schema.get("properties")?.as_object()
}

/// What a schema says of keys that are no properties.
enum Rest<'a> {
    /// They have this schema.
    Schema(&'a Value),
    /// Anything goes.
    Open,
    /// `additionalProperties: true`: they are kept, but the server empties every object in them.
    Shallow,
    /// There are none.
    Closed,
}

fn rest(schema: &Value) -> Rest<'_> {
    match schema.get("additionalProperties") {
        Some(schema @ Value::Object(_)) => Rest::Schema(schema),
        Some(Value::Bool(true)) => Rest::Shallow,
        _ if preserves(schema) => Rest::Open,
        _ => Rest::Closed,
    }
}

/// Fields that every object has, whatever its schema says.
const OBJECT_FIELDS: [&str; 3] = ["apiVersion", "kind", "metadata"];

/// One step further in a path, as [`crate::yaml::show_path`] writes them: `spec.versions[0]`, `data["a.b/c"]`.
fn join(path: &str, field: &str) -> String {
    let plain = !field.is_empty() && field.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
    match (path, plain) {
        ("", true) => field.to_owned(),
        (_, true) => format!("{path}.{field}"),
        (_, false) => format!("{path}[{}]", Value::from(field)),
    }
}
