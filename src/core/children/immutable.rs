//! Whether a refused change concerns an immutable field, and whether the object may be recreated then.
//!
//! The text of such a refusal differs from kind to kind, and authors of CRDs choose their own. Two dry runs show it
//! instead: the server would create the desired object, and also the live object with the change merged into it. See
//! `docs/design/0016-field-ownership-and-refused-edits.md`.

use serde_json::Value;

use super::model::{Context, Item, Target};
use crate::api::{CallError, Class, ObjectRef};
use crate::package::{ImmutableChange, OnImmutableChange};

/// What the package says about changes of immutable fields of an item.
///
/// # Errors
/// Why this has no value now: then the object must not be recreated.
pub(super) fn policy(ctx: &Context<'_>, target: &Target, item: &Item) -> Result<ImmutableChange, String> {
    let child = ctx.child(item);
    let text = match &child.on_immutable_change {
        OnImmutableChange::Word(word) => return Ok(*word),
        OnImmutableChange::Computed(text) => text,
    };
    ctx.budget.about(&format!("onImmutableChange of {}", child.id));
    match target.setting(ctx, item, text) {
        Ok(Some(Value::String(word))) if word == "Recreate" => Ok(ImmutableChange::Recreate),
        Ok(Some(Value::String(word))) if word == "Orphan" => Ok(ImmutableChange::Orphan),
        Ok(Some(Value::String(word))) if word == "Fail" => Ok(ImmutableChange::Fail),
        // A value that is left out stands for the default.
        Ok(None) => Ok(ImmutableChange::Fail),
        Ok(Some(_)) => Err("it is none of Fail, Recreate and Orphan".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// Whether a refused change may concern an immutable field without saying so.
pub fn may_be_immutable(refusal: &CallError) -> bool {
    refusal.code == 422
        && refusal.class == Class::Permanent
        && !refusal.is_immutable_change()
        // A policy must not be evaded.
        && !refusal.is_of_policy()
}

/// Whether a refused change concerns an immutable field. `creation`: the dry run that creates the live object with the
/// change merged into it. If that fails for the same cause, fields of other managers may be at fault.
pub fn is_immutable(refusal: &CallError, creation: &Result<(), CallError>) -> bool {
    !matches!(creation, Err(error) if error.class == Class::Retry || error.shares_cause(refusal))
}

/// Why an object is not recreated although its package permits it. `creation`: the dry run that creates it; `package`: the
/// package whose kind it has.
///
/// # Errors
/// The error of the dry run, if another attempt may succeed; otherwise why the object is not recreated.
pub fn permit_recreation(
    object: &ObjectRef,
    refusal: &CallError,
    package: Option<&str>,
    creation: Result<(), CallError>,
) -> Result<(), CallError> {
    let refused = |code, message| Err(CallError::new(Class::Permanent, code, "RecreateRefused", message));
    if let Some(package) = package {
        return refused(
            refusal.code,
            format!(
                "{refusal}; {object} is of a kind of the package {package} and may hold data, so it is not recreated: \
                 delete it by hand"
            ),
        );
    }
    match creation {
        Err(error) if error.class != Class::Retry => refused(
            error.code,
            format!("{refusal}; it is not recreated, because a new object is refused too: {error}"),
        ),
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::api::Gvk;

    fn refusal(code: u16, field: &str, message: &str) -> CallError {
        let status = json!({"code": code, "reason": "Invalid", "message": message,
            "details": {"causes": [{"field": field, "reason": "FieldValueInvalid", "message": message}]}});
        CallError::from_status(&serde_json::from_value(status).unwrap())
    }

    #[test]
    fn dry_runs_show_whether_a_field_is_immutable() {
        let refused = refusal(422, "spec.a", "no");
        assert!(may_be_immutable(&refused));
        assert!(!may_be_immutable(&refusal(422, "spec.a", "field is immutable")), "it says so");
        assert!(!may_be_immutable(&refusal(500, "spec.a", "no")));
        assert!(is_immutable(&refused, &Ok(())));
        assert!(!is_immutable(&refused, &Err(refused.clone())), "others may be at fault");
        assert!(is_immutable(&refused, &Err(refusal(422, "spec.b", "another cause"))));
        let busy = CallError::new(Class::Retry, 503, "", String::new());
        assert!(!is_immutable(&refused, &Err(busy)));
    }

    #[test]
    fn an_object_is_recreated_only_if_the_server_takes_a_new_one() {
        let object = ObjectRef { gvk: Gvk::new("v1", "Service"), namespace: None, name: "a".into() };
        let refused = refusal(422, "spec.a", "field is immutable");
        let permit = |package, creation| permit_recreation(&object, &refused, package, creation);
        assert!(permit(None, Ok(())).is_ok());
        let error = permit(None, Err(refusal(422, "spec.b", "wrong"))).unwrap_err();
        assert_eq!((error.class, &*error.reason), (Class::Permanent, "RecreateRefused"));
        assert!(error.message.contains("a new object is refused too"), "{error}");
        let busy = CallError::new(Class::Retry, 503, "Busy", String::new());
        assert_eq!(permit(None, Err(busy)).unwrap_err().reason, "Busy");
        let error = permit(Some("etcd"), Ok(())).unwrap_err();
        assert!(error.message.contains("a kind of the package etcd and may hold data"), "{error}");
    }
}
