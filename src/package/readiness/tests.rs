//! Tables of cases by kind, with the fields that objects of Kubernetes 1.36 have. This file compares the
//! tables with the rules.

mod custom;
mod kinds;
mod pods;
mod routes;
mod workloads;

use serde_json::{Value, json};

use super::{Readiness, of};

/// Writes `Ready`, `Terminating`, `NotReady Reason: message` or `Failed Reason: message`.
fn told(readiness: &Readiness) -> String {
    match readiness {
        Readiness::Ready => "Ready".into(),
        Readiness::Terminating => "Terminating".into(),
        Readiness::NotReady { reason, message } => format!("NotReady {reason}: {message}"),
        Readiness::Failed { reason, message } => format!("Failed {reason}: {message}"),
    }
}

fn check(api_version: &str, kind: &str, cases: &[(&str, Value, &str)]) {
    for (name, body, expected) in cases {
        let mut object =
            json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": "a", "generation": 2}});
        for (key, value) in body.as_object().expect("object") {
            if let (Value::Object(into), Value::Object(from)) = (&mut object[key], value) {
                into.extend(from.clone());
            } else {
                object[key] = value.clone();
            }
        }
        assert_eq!(told(&of(&object)), *expected, "{kind}: {name}");
    }
}

fn cond(kind: &str, status: &str, reason: &str, message: &str) -> Value {
    json!({"type": kind, "status": status, "reason": reason, "message": message})
}
