//! Custom kinds, whose readiness comes from their conditions.

use serde_json::{Value, json};

use super::super::{Readiness, of, of_custom};
use super::{check, cond};

#[test]
fn readiness_of_custom_kinds() {
    let page = "x".repeat(2_000);
    let cut = format!("NotReady R: {}…", "x".repeat(1_000));
    check(
        "example.org/v1",
        "Thing",
        &[
            ("nothing known", json!({}), "Ready"),
            ("ready", json!({"status": {"conditions": [cond("Ready", "True", "", "")]}}), "Ready"),
            (
                "not ready",
                json!({"status": {"conditions": [cond("Ready", "False", "Booking", "waits for an answer")]}}),
                "NotReady Booking: waits for an answer",
            ),
            (
                "unknown, bare",
                json!({"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}),
                "NotReady NotReady: condition Ready is Unknown",
            ),
            (
                "reconciling beats ready",
                json!({"status": {"conditions": [cond("Ready", "True", "", ""), cond("Reconciling", "True", "Busy", "on it")]}}),
                "NotReady Busy: on it",
            ),
            (
                "stalled",
                json!({"status": {"conditions": [cond("Stalled", "True", "Denied", "no rights")]}}),
                "Failed Denied: no rights",
            ),
            ("stalled, over", json!({"status": {"conditions": [cond("Stalled", "False", "", "")]}}), "Ready"),
            (
                "old generation beats all",
                json!({"status": {"observedGeneration": 1, "conditions": [cond("Ready", "True", "", "")]}}),
                "NotReady LatestGenerationNotObserved: its controller has seen generation 1, the newest is 2",
            ),
            (
                "old condition",
                json!({"status": {"conditions": [{"type": "Ready", "status": "True", "observedGeneration": 1}]}}),
                "NotReady LatestGenerationNotObserved: its condition Ready is of generation 1, the newest is 2",
            ),
            (
                "no secret in a message",
                json!({"status": {"conditions": [cond("Ready", "False", "R", "spec.password: Invalid value: \"hunter2\": too short")]}}),
                "NotReady R: spec.password",
            ),
            ("no page either", json!({"status": {"conditions": [cond("Ready", "False", "R", &page)]}}), &cut),
            ("nonsense", json!({"status": {"conditions": {"a": 1}, "observedGeneration": "x"}}), "Ready"),
            (
                "more nonsense",
                json!({"status": {"conditions": [1, null, {"type": "Ready"}, {"status": "True"}]}}),
                "Ready",
            ),
        ],
    );
    let object = |status: Value| json!({"apiVersion": "example.org/v1", "kind": "Thing", "metadata": {"generation": 1}, "status": status});
    let cases = [
        (json!({}), true, false),
        (json!({}), false, true),
        (json!({"conditions": []}), true, false),
        (json!({"phase": "Booked"}), true, false),
        (json!({"observedGeneration": 1}), true, true),
        (json!({"conditions": [{"type": "Synced", "status": "True"}]}), true, true),
        (json!({"conditions": [{"type": "Ready", "status": "False"}]}), true, false),
    ];
    for (status, subresource, ready) in cases {
        assert_eq!(
            of_custom(&object(status.clone()), subresource).is_ready(),
            ready,
            "{status} {subresource}"
        );
    }
    // Conditions that cover only a part of readiness.
    let part = |kind: &str, status: &str| json!({"type": kind, "status": status, "reason": "Pending"});
    for (conditions, wanted) in [
        (json!([part("Accepted", "True"), part("Programmed", "Unknown")]), false),
        (json!([part("Accepted", "True"), part("Programmed", "True"), part("Odd", "False")]), true),
        (json!([part("Available", "Degraded")]), false),
        (json!([part("Available", "False"), part("Ready", "True")]), true),
        (json!([{"type": "Accepted", "status": "True", "observedGeneration": 0}]), false),
    ] {
        let object = object(json!({"conditions": conditions}));
        assert_eq!(of(&object).is_ready(), wanted, "{object}");
    }
    let deleted = json!({"apiVersion": "example.org/v1", "kind": "Thing", "metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
    assert_eq!(of_custom(&deleted, true), Readiness::Terminating);
    for nonsense in [
        json!(null),
        json!([]),
        json!("x"),
        json!({"kind": 1, "apiVersion": [], "metadata": 3, "status": "x"}),
    ] {
        assert_eq!(of(&nonsense), Readiness::Ready);
    }
}
