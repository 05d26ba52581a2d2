//! Checks and augments CRDs, and validates objects of their kinds.
//!
//! All functions are pure: they work on the JSON of the CRD or of its `openAPIV3Schema`. What the API server does by a schema is
//! in `operetta_kube_model::schema`. CEL rules are left to the server.

mod augment;
mod cel;
mod check;
mod conversion;
mod incompatible;
mod lookup;
mod narrowing;
mod own;
mod stored;
mod structure;
#[cfg(test)]
mod tests;
mod validate;

use serde_json::Value;

use crate::api::ApiKind;

pub use augment::{Additions, CATEGORY, augment, taken};
pub use cel::problems as cel_problems;
pub use check::{check, check_schema};
pub use conversion::{
    Conversion, ConvertError, Problem, Rule, RuleKind, Unconverted, compile, json_entries, json_items,
    leaves_out, unconverted,
};
pub use incompatible::{Incompatible, incompatible};
pub use lookup::{Lookup, lookup, schema_fact};
pub use narrowing::{Narrowed, narrowed};
pub use own::{API_VERSION, GROUP, OwnKind, VERSION, column};
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
