//! Checks and augments CRDs, and validates objects of their kinds.
//!
//! All functions are pure: they work on the JSON of the CRD or of its `openAPIV3Schema`, like the API server (1.36):
//! structural defaulting, pruning (reported as messages), and validation. CEL rules are left to the server.

mod augment;
mod cel;
mod check;
mod conversion;
mod defaults;
mod incompatible;
mod lookup;
mod narrowing;
mod own;
mod pattern;
mod prune;
mod stored;
mod structure;
#[cfg(test)]
mod tests;
mod validate;

use serde_json::{Map, Value};

use crate::api::ApiKind;

pub use augment::{Additions, CATEGORY, augment, taken};
pub use cel::problems as cel_problems;
pub use cel::tokens::{CelProblem, readable as readable_cel};
pub use check::{check, check_schema};
pub use conversion::{
    Conversion, ConvertError, Problem, Rule, RuleKind, Unconverted, compile, json_entries, json_items,
    leaves_out, unconverted,
};
pub use defaults::apply_defaults;
pub use incompatible::{Incompatible, incompatible};
pub use lookup::{Lookup, lookup, schema_fact};
pub use narrowing::{Narrowed, narrowed};
pub use own::{API_VERSION, GROUP, OwnKind, VERSION, column};
pub use prune::prune;
pub use stored::{interim_spec, outdated_versions, storage_version, stored_in};
pub use validate::{Violation, validate, validate_part};

/// The kind that a CRD defines: in its storage version if that is served, otherwise in the first served
/// version. `None` if the CRD lacks the necessary fields.
pub fn kind(crd: &Value) -> Option<ApiKind> {
    let spec = crd.get("spec")?;
    let names = spec.get("names")?;
    let text = |value: &Value| value.as_str().filter(|text| !text.is_empty()).map(str::to_owned);
    let versions = || spec.get("versions").and_then(Value::as_array).into_iter().flatten();
    let version = versions()
        .find(|version| version["storage"] == true && version["served"] == true)
        .or_else(|| versions().find(|version| version["served"] == true))?;
    Some(ApiKind {
        group: text(spec.get("group")?)?,
        version: text(version.get("name")?)?,
        plural: text(names.get("plural")?)?,
        namespaced: spec.get("scope")? == "Namespaced",
        kind: text(names.get("kind")?)?,
    })
}

/// The `openAPIV3Schema` of one version.
pub fn schema_of<'a>(crd: &'a Value, version: &str) -> Option<&'a Value> {
    let versions = crd.get("spec")?.get("versions")?.as_array()?;
    versions.iter().find(|known| known["name"] == version)?.get("schema")?.get("openAPIV3Schema")
}

fn versions(crd: &Value) -> impl Iterator<Item = &Value> {
    crd["spec"]["versions"].as_array().into_iter().flatten()
}

/// Whether a schema keeps unknown fields.
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

/// How a schema handles keys that are not properties.
enum OtherKeys<'a> {
    /// Other keys have this schema.
    Schema(&'a Value),
    /// Other keys may have any value.
    Open,
    /// `additionalProperties: true`: other keys are kept, but the server empties every object in them.
    Shallow,
    /// No other keys are allowed.
    Closed,
}

fn other_keys(schema: &Value) -> OtherKeys<'_> {
    match schema.get("additionalProperties") {
        Some(schema @ Value::Object(_)) => OtherKeys::Schema(schema),
        Some(Value::Bool(true)) => OtherKeys::Shallow,
        _ if preserves(schema) => OtherKeys::Open,
        _ => OtherKeys::Closed,
    }
}

/// Fields of every object, independent of its schema.
const OBJECT_FIELDS: [&str; 3] = ["apiVersion", "kind", "metadata"];

/// Appends a field to a path in the notation of [`crate::yaml::show_path`]: `spec.versions[0]`, `data["a.b/c"]`.
fn join(path: &str, field: &str) -> String {
    let plain = !field.is_empty() && field.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
    match (path, plain) {
        ("", true) => field.to_owned(),
        (_, true) => format!("{path}.{field}"),
        (_, false) => format!("{path}[{}]", Value::from(field)),
    }
}
