//! Finds the manager that takes a field from us.

use serde_json::Value;

use super::cover::{uncovered, uncovered_beside};
use super::set::FieldSet;

/// The first leaf of the desired object that we do not own on the live object, and the manager that owns it, if the leaf
/// exists and its owner is known. `None` if we own all.
pub fn conflicting_manager(live: &Value, desired: &Value, manager: &str) -> Option<(String, Option<String>)> {
    let entries = live["metadata"]["managedFields"].as_array().map(Vec::as_slice).unwrap_or_default();
    let is_ours = |entry: &Value| {
        entry["manager"] == manager && entry["operation"] == "Apply" && entry.get("subresource").is_none()
    };
    let ours: Vec<&Value> = entries.iter().filter(|e| is_ours(e)).map(|e| &e["fieldsV1"]).collect();
    let owned = FieldSet::united(ours.iter().copied());
    let field = uncovered_beside(desired, &owned, &FieldSet::of_others(live, manager))?;
    let owner = entries.iter().filter(|entry| !is_ours(entry)).find(|entry| {
        let both = FieldSet::united(ours.iter().copied().chain([&entry["fieldsV1"]]));
        uncovered(desired, &both).as_ref() != Some(&field)
    });
    Some((field, owner.and_then(|entry| entry["manager"].as_str()).map(str::to_owned)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_owner_of_a_lost_field_is_named() {
        let entry = |manager: &str, operation: &str, fields: Value| json!({"manager": manager, "operation": operation, "fieldsV1": fields});
        let live = |entries: Vec<Value>| json!({"metadata": {"managedFields": entries}});
        let desired = json!({"data": {"a": "1", "b": "2"}});
        let ours = |fields: Value| entry("operetta/o", "Apply", json!({"f:data": fields}));
        let whole = live(vec![ours(json!({"f:a": {}, "f:b": {}}))]);
        assert_eq!(conflicting_manager(&whole, &desired, "operetta/o"), None);
        let taken = live(vec![
            entry("bystander", "Update", json!({"f:data": {"f:c": {}}})),
            ours(json!({"f:a": {}})),
            entry("gitops", "Apply", json!({"f:data": {"f:b": {}}})),
        ]);
        let found = conflicting_manager(&taken, &desired, "operetta/o").unwrap();
        assert!(found.0.ends_with('b') && found.1.as_deref() == Some("gitops"), "{found:?}");
        let gone = live(vec![ours(json!({"f:a": {}})), entry("x", "Update", json!({"f:data": {"f:c": {}}}))]);
        assert_eq!(conflicting_manager(&gone, &desired, "operetta/o").unwrap().1, None);
    }
}
