//! Readiness of routes of the Gateway API, which have separate conditions for each parent.

use serde_json::Value;

use super::conditions::{Condition, Readiness, group, text};

/// Whether the object is a route of the Gateway API.
pub(super) fn is_route(object: &Value) -> bool {
    group(object) == "gateway.networking.k8s.io"
        && text(object, "/kind").is_some_and(|kind| kind.ends_with("Route"))
}

/// A route is ready when each parent that it names has accepted it and resolved its references.
pub(super) fn route(object: &Value) -> Readiness {
    let list = |pointer: &str| object.pointer(pointer).and_then(Value::as_array).into_iter().flatten();
    for wanted in list("/spec/parentRefs") {
        let name = wanted["name"].as_str().unwrap_or_default();
        let answers =
            || list("/status/parents").filter(|parent| is_same(object, wanted, &parent["parentRef"]));
        if answers().next().is_none() {
            return Readiness::not_ready("NotObserved", format!("its parent {name} has not answered it yet"));
        }
        let conditions = answers().flat_map(|parent| parent["conditions"].as_array().into_iter().flatten());
        let mut accepted = false;
        let told = |condition: &Condition<'_>| matches!(condition.kind, "Accepted" | "ResolvedRefs");
        for condition in conditions.filter_map(Condition::read).filter(told) {
            if let Some(late) = condition.late(object) {
                return late;
            }
            if condition.status != "True" {
                return condition.not_ready("NotReady");
            }
            accepted |= condition.kind == "Accepted";
        }
        if !accepted {
            return Readiness::not_ready("NotAccepted", format!("its parent {name} has not accepted it yet"));
        }
    }
    Readiness::Ready
}

/// Whether a parent in the status is the one in the spec. In the status, defaults are filled in.
fn is_same(object: &Value, wanted: &Value, answered: &Value) -> bool {
    let own = text(object, "/metadata/namespace");
    let of = |parent: &Value, key: &str, default: Option<&str>| {
        parent.get(key).and_then(Value::as_str).or(default).map(str::to_owned)
    };
    let same = |key: &str, default: Option<&str>| of(wanted, key, default) == of(answered, key, default);
    same("name", None)
        && same("namespace", own)
        && same("kind", Some("Gateway"))
        && same("sectionName", None)
        && wanted.get("port") == answered.get("port")
}
