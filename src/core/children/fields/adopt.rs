//! Takes over objects that were made without our field manager: by client-side apply, which leaves no declaration but an
//! annotation, by another package, or by plain writes such as those of a backup tool.

use operetta_kube_model::fields::{Entry, FieldSet, Owner, read, to_value};
use serde_json::Value;

use super::owned::give;

/// Where `kubectl apply` keeps what it was given last.
const LAST_APPLIED: [&str; 3] =
    ["metadata", "annotations", "kubectl.kubernetes.io/last-applied-configuration"];

/// The managedFields in which our Apply entry owns what client-side apply did; `None` if there is no
/// client-side apply. Otherwise its entry would own the fields beside us for ever, and fields that a later
/// version of the package omits would stay. To be written by one JSON patch with a test of the
/// resourceVersion; the next apply then removes what it does not have, the annotation first of all.
pub fn adopt_client_side(managed_fields: &Value, manager: &str) -> Option<Value> {
    let (theirs, mut kept): (Vec<Entry>, Vec<Entry>) =
        read(managed_fields)?.into_iter().partition(is_client_side);
    let first = theirs.first()?;
    let owner = Owner { manager: manager.to_owned(), is_apply: true, ..Owner::clone(&first.owner) };
    let all: FieldSet = theirs.iter().map(|entry| entry.set().clone()).collect();
    give(&mut kept, Entry { owner: owner.into(), time: first.time.clone(), fields: all.into() });
    Some(to_value(&kept))
}

/// The managedFields in which the manager `to` owns what `from` has applied; `None` if `from` has applied
/// nothing. To be written like those of [`adopt_client_side`]: the next apply of `to` then removes what it
/// does not have.
pub fn hand_over(managed_fields: &Value, from: &str, to: &str) -> Option<Value> {
    let (theirs, mut kept): (Vec<Entry>, Vec<Entry>) =
        read(managed_fields)?.into_iter().partition(|entry| entry.owner.is_apply_of(from));
    let theirs = theirs.into_iter().next()?;
    let owner = Owner { manager: to.to_owned(), ..Owner::clone(&theirs.owner) };
    give(&mut kept, Entry { owner: owner.into(), ..theirs });
    Some(to_value(&kept))
}

/// The managedFields in which plain writes no longer own what our Apply entry owns; `None` if none does. A backup tool that has
/// restored an object owns all that it wrote. Beside its entry, fields that a later version of the desired object omits
/// would stay. To be written like those of [`adopt_client_side`], after the first apply.
pub fn take_from_updates(managed_fields: &Value, manager: &str) -> Option<Value> {
    let mut entries = read(managed_fields)?;
    let ours = entries.iter().find(|entry| entry.owner.is_apply_of(manager))?.set().clone();
    let mut is_changed = false;
    for entry in entries.iter_mut().filter(|entry| entry.owner.is_update()) {
        let mut rest = entry.set().clone();
        rest.subtract_along(&ours);
        if rest != *entry.set() {
            entry.fields = rest.into();
            is_changed = true;
        }
    }
    entries.retain(|entry| !(entry.owner.is_update() && entry.set().is_empty()));
    is_changed.then(|| to_value(&entries))
}

fn is_client_side(entry: &Entry) -> bool {
    let declares = || entry.set().get(&LAST_APPLIED).is_some();
    entry.owner.is_update() && (entry.owner.manager == "kubectl-client-side-apply" || declares())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn hand_over_moves_the_apply_to_the_new_package() {
        let entry = |manager: &str, field: &str| json!({"manager": manager, "operation": "Apply", "fieldsType": "FieldsV1", "fieldsV1": {"f:data": {field: {}}}});
        let (old, other) = (entry("operetta/old", "f:a"), entry("kubectl", "f:b"));
        let taken = hand_over(&json!([old, other]), "operetta/old", "operetta/new").unwrap();
        assert_eq!(taken, json!([other, entry("operetta/new", "f:a")]));
        assert_eq!(hand_over(&taken, "operetta/old", "operetta/new"), None);
        let both = json!([old, entry("operetta/new", "f:c")]);
        let taken = hand_over(&both, "operetta/old", "operetta/new").unwrap();
        let all = json!({"f:data": {"f:a": {}, "f:c": {}}});
        assert_eq!((taken.as_array().unwrap().len(), &taken[0]["fieldsV1"]), (1, &all));
    }

    #[test]
    fn plain_writes_keep_only_fields_beside_ours() {
        let entry = |manager: &str, operation: &str, fields: Value| json!({"manager": manager, "operation": operation, "fieldsType": "FieldsV1", "fieldsV1": fields});
        let item = r#"k:{"name":"a"}"#;
        let ours = entry(
            "operetta/p",
            "Apply",
            json!({"f:data": {"f:a": {}}, "f:list": {item: {".": {}, "f:configMap": {"f:name": {}}}}, "f:empty": {}}),
        );
        let restored = entry(
            "velero",
            "Update",
            json!({"f:data": {".": {}, "f:a": {}, "f:theirs": {}}, "f:empty": {".": {}, "f:x": {}},
                "f:list": {".": {}, item: {".": {}, "f:configMap": {".": {}, "f:name": {}}}}}),
        );
        let mut status = entry("velero", "Update", json!({"f:data": {"f:a": {}}}));
        status["subresource"] = "status".into();
        let other = entry("gitops", "Apply", json!({"f:data": {"f:a": {}}}));
        let taken = take_from_updates(&json!([restored, status, other, ours]), "operetta/p").unwrap();
        // A map that we apply empty is ours, and what others have put into it is not.
        let rest = entry("velero", "Update", json!({"f:data": {"f:theirs": {}}, "f:empty": {"f:x": {}}}));
        assert_eq!(taken, json!([rest, status, other, ours]));
        assert_eq!(take_from_updates(&taken, "operetta/p"), None);
        assert_eq!(take_from_updates(&json!([restored]), "operetta/p"), None, "nothing is applied yet");
        let whole = entry("velero", "Update", json!({"f:data": {".": {}, "f:a": {}}}));
        assert_eq!(take_from_updates(&json!([whole, ours]), "operetta/p"), Some(json!([ours])));
    }

    #[test]
    fn only_client_side_apply_is_taken_over() {
        let declaration = format!("f:{}", LAST_APPLIED[2]);
        let client_side = json!({"manager": "kubectl-client-side-apply", "operation": "Update", "apiVersion": "v1",
            "time": "2026-01-01T00:00:00Z", "fieldsType": "FieldsV1",
            "fieldsV1": {"f:data": {".": {}, "f:a": {}}, "f:metadata": {"f:annotations": {".": {}, declaration: {}}}}});
        let edit = json!({"manager": "kubectl-edit", "operation": "Update", "fieldsType": "FieldsV1", "fieldsV1": {"f:data": {"f:b": {}}}});
        let status = json!({"manager": "kubectl-client-side-apply", "operation": "Update", "subresource": "status",
            "fieldsType": "FieldsV1", "fieldsV1": {"f:status": {"f:x": {}}}});
        let fields = json!([client_side, edit, status]);
        let taken = adopt_client_side(&fields, "operetta/p").unwrap();
        assert_eq!(taken[0], edit);
        assert_eq!(taken[1], status);
        assert_eq!((&taken[2]["manager"], &taken[2]["operation"]), (&json!("operetta/p"), &json!("Apply")));
        assert_eq!(taken[2]["fieldsV1"], client_side["fieldsV1"]);
        assert_eq!(adopt_client_side(&taken, "operetta/p"), None);

        let ours =
            json!({"manager": "operetta/p", "operation": "Apply", "fieldsV1": {"f:data": {"f:c": {}}}});
        let mut named = client_side.clone();
        named["manager"] = "helm".into();
        let taken = adopt_client_side(&json!([ours, named]), "operetta/p").unwrap();
        assert_eq!(taken.as_array().unwrap().len(), 1);
        assert_eq!(taken[0]["fieldsV1"]["f:data"], json!({".": {}, "f:a": {}, "f:c": {}}));
    }
}
