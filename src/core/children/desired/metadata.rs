//! Which metadata a child may have. What comes from values of an instance may only be a name, a namespace, labels and
//! annotations: a finalizer would hold the child for ever, and with it the instance.

use serde_json::{Map, Value};

use crate::children::names;
use crate::package::{NEVER, may_come_from_values};
use crate::template::Written;

/// Checks which fields the metadata of a child has.
///
/// # Errors
/// Says which field is wrong, and never shows a text that comes from a value.
pub(super) fn check(template: &str, meta: &Map<String, Value>, written: &Written) -> Result<(), String> {
    if let Some(field) = NEVER.iter().find(|field| meta.contains_key(**field)) {
        return Err(format!(
            "{template} renders metadata.{field}, which Operetta or the API server sets; remove it"
        ));
    }
    let from_value =
        |(field, value): &(&String, &Value)| !may_come_from_values(field) && !written.has(field, value);
    if let Some((field, _)) = meta.iter().find(from_value) {
        // The name of any other field may come from a value itself, so it is not shown.
        let field = if field == "finalizers" { "metadata.finalizers" } else { "a field of metadata" };
        return Err(format!(
            "{template} renders {field} from a value; values may only bring name, namespace, labels and annotations: \
             write it out in the template, or take it out of the value"
        ));
    }
    let finalizers = meta.get("finalizers").and_then(Value::as_array).into_iter().flatten();
    if finalizers.filter_map(Value::as_str).any(|finalizer| finalizer.starts_with(names::DOMAIN)) {
        return Err(format!("{template} renders a finalizer of {}, which only Operetta sets", names::DOMAIN));
    }
    Ok(())
}

/// Refuses labels and annotations with Operetta's prefix, on the object itself and in its templates (pods,
/// Jobs, claims).
///
/// # Errors
/// Says whether it is a label or an annotation.
pub(super) fn own_keys(template: &str, object: &Map<String, Value>) -> Result<(), String> {
    for (key, value) in object {
        match value {
            Value::Object(map) => {
                let reserved = || map.keys().find(|key| key.starts_with(names::DOMAIN));
                if matches!(key.as_str(), "labels" | "annotations") && reserved().is_some() {
                    return Err(format!(
                        "{template} renders {key} of {}*, which are Operetta's own; use another prefix",
                        names::DOMAIN
                    ));
                }
                own_keys(template, map)?;
            }
            Value::Array(items) => {
                items.iter().filter_map(Value::as_object).try_for_each(|map| own_keys(template, map))?;
            }
            _ => {}
        }
    }
    Ok(())
}
