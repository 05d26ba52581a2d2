//! The routes of the Gateway API.

use serde_json::{Value, json};

use super::super::{Readiness, of_kind};

#[test]
fn route_is_ready_when_all_parents_accept_it() {
    let of = |refs: Value, parents: Value| {
        let object = json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
            "metadata": {"name": "r", "namespace": "n", "generation": 2},
            "spec": {"parentRefs": refs}, "status": {"parents": parents}});
        // Checked as a kind whose CRD cannot be read.
        of_kind(&object, true)
    };
    let answer = |section: Option<&str>, conditions: Value| {
        let mut parent =
            json!({"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "g", "namespace": "n"});
        if let Some(section) = section {
            parent["sectionName"] = json!(section);
        }
        json!({"controllerName": "c", "parentRef": parent, "conditions": conditions})
    };
    let says = |accepted: &str, resolved: &str, generation: i64| {
        json!([{"type": "Accepted", "status": accepted, "observedGeneration": generation},
            {"type": "ResolvedRefs", "status": resolved, "observedGeneration": generation, "reason": "BackendNotFound"}])
    };
    let yes = says("True", "True", 2);
    let one = json!([{"name": "g"}]);
    let two = json!([{"name": "g", "sectionName": "a"}, {"name": "g", "sectionName": "b"}]);
    for (refs, parents, wanted) in [
        (json!([]), json!([]), "Ready"),
        (one.clone(), json!(null), "NotObserved"),
        (one.clone(), json!([answer(None, yes.clone())]), "Ready"),
        (one.clone(), json!([answer(Some("a"), yes.clone())]), "NotObserved"),
        (one.clone(), json!([answer(None, says("False", "True", 2))]), "NotReady"),
        (one.clone(), json!([answer(None, says("True", "False", 2))]), "BackendNotFound"),
        (one.clone(), json!([answer(None, says("True", "True", 1))]), "LatestGenerationNotObserved"),
        (one, json!([answer(None, json!([]))]), "NotAccepted"),
        (two.clone(), json!([answer(Some("a"), yes.clone())]), "NotObserved"),
        (two, json!([answer(Some("b"), yes.clone()), answer(Some("a"), yes)]), "Ready"),
    ] {
        let got = match of(refs.clone(), parents.clone()) {
            Readiness::NotReady { reason, .. } => reason,
            other => format!("{other:?}"),
        };
        assert_eq!(got, wanted, "{refs} {parents}");
    }
}
