//! Finds the manager that takes a field from us.

use operetta_kube_model::fields::{Entry, FieldSet, entries};
use serde_json::Value;

use super::cover::{uncovered, uncovered_beside};
use super::owned::of_others;

/// The first leaf of the desired object that we do not own on the live object, and the manager that owns it, if the leaf
/// exists and its owner is known. `None` if we own all.
pub fn conflicting_manager(live: &Value, desired: &Value, manager: &str) -> Option<(String, Option<String>)> {
    let (ours, others): (Vec<Entry>, Vec<Entry>) =
        entries(live).partition(|entry| entry.owner.is_apply_of(manager));
    let owned: FieldSet = ours.iter().map(|entry| entry.set().clone()).collect();
    let field = uncovered_beside(desired, &owned, &of_others(live, manager))?;
    let owner =
        others.iter().find(|entry| uncovered(desired, &owned.union(entry.set())).as_ref() != Some(&field));
    Some((field, owner.map(|entry| entry.owner.manager.clone())))
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
