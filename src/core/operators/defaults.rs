//! Which values take the place of the defaults of a package: those that its `Operator` sets, or while one of them is wrong the
//! last ones that were valid, which the status records.

use serde_json::{Map, Value, json};

use super::spec::OperatorSpec;
use crate::package::Package;

/// The values in effect. `active`: the package whose defaults they replace, if it is known. Without a record the values of
/// the spec count, of which a package takes those that fit.
pub fn effective(spec: &OperatorSpec, status: &Value, active: Option<&Package>) -> Map<String, Value> {
    let is_valid = active.is_some_and(|package| package.wrong_defaults(&spec.defaults).is_empty());
    let last = if is_valid { None } else { recorded(status) };
    last.unwrap_or_else(|| spec.defaults.clone())
}

/// The last valid values, if there ever were some.
fn recorded(status: &Value) -> Option<Map<String, Value>> {
    let one = |entry: &Value| Some((entry["name"].as_str()?.to_owned(), entry["value"].clone()));
    Some(status["defaults"].as_array()?.iter().filter_map(one).collect())
}

/// The record of valid values. It is a list, because a merge patch would merge maps.
pub(super) fn record(values: &Map<String, Value>) -> Value {
    values.iter().map(|(name, value)| json!({"name": name, "value": value})).collect()
}
