//! Which live objects keep the finalizer on an instance, decided from what a list returns.

use serde_json::Value;

use super::fields;
use super::names;
use crate::api::{Gvk, ObjectRef};

/// Whether our field manager has applied an object. Labels alone may have been copied.
pub fn is_applied_by_us(object: &Value) -> bool {
    let operator = object["metadata"]["labels"][names::OPERATOR].as_str().unwrap_or_default();
    fields::of_manager(object, &names::field_manager(operator)).is_some()
}

/// Whether the finalizer of the instance with that uid guards an object. A retained object stays, unless its
/// ownerReference would let the garbage collector delete it.
pub fn is_guarded(object: &Value, uid: &str) -> bool {
    let meta = &object["metadata"];
    let is_owner = |owner: &Value| owner["uid"] == uid;
    let is_owned = meta["ownerReferences"].as_array().is_some_and(|all| all.iter().any(is_owner));
    let is_retained = meta["annotations"][names::RETAINED] == "true" && !is_owned;
    !is_retained && is_applied_by_us(object)
}

/// The identity of an object of a list, whose items have no kind.
pub fn reference(gvk: Gvk, object: &Value) -> ObjectRef {
    let meta = &object["metadata"];
    ObjectRef {
        gvk,
        namespace: meta["namespace"].as_str().map(Into::into),
        name: meta["name"].as_str().unwrap_or_default().into(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn finalizer_guards_applied_objects_unless_retained() {
        let object = |retained: &str, owner: &str, manager: &str| {
            json!({"metadata": {
                "name": "a", "namespace": "n",
                "labels": {names::OPERATOR: "o"}, "annotations": {names::RETAINED: retained},
                "ownerReferences": [{"uid": owner}],
                "managedFields": [{"manager": manager, "operation": "Apply", "fieldsV1": {"f:data": {}}}],
            }})
        };
        for (retained, owner, manager, expected) in [
            ("false", "other", "operetta/o", true),
            ("true", "other", "operetta/o", false),
            ("true", "u", "operetta/o", true),
            ("false", "u", "somebody", false),
        ] {
            assert_eq!(
                is_guarded(&object(retained, owner, manager), "u"),
                expected,
                "{retained} {owner} {manager}"
            );
        }
        let found = reference(Gvk::new("v1", "ConfigMap"), &object("", "", ""));
        assert_eq!(found.to_string(), "ConfigMap n/a");
    }
}
