//! The health checks for Argo CD, run by the same Lua that Argo CD uses.

use std::fmt::Write as _;
use std::path::Path;

use serde_json::{Value, json};

fn file(name: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/argocd").join(name)).unwrap()
}

/// A value as Lua text. Like in Argo CD, a null becomes a missing field.
fn lua(value: &Value) -> String {
    let mut text = String::new();
    match value {
        Value::Object(fields) => {
            text.push('{');
            for (name, value) in fields.iter().filter(|(_, value)| !value.is_null()) {
                let _ = write!(text, "[{name:?}]={},", lua(value));
            }
            text.push('}');
        }
        Value::Array(items) => {
            text.push('{');
            for item in items {
                text.push_str(&(lua(item) + ","));
            }
            text.push('}');
        }
        Value::Null => text.push_str("nil"),
        other => text.push_str(&other.to_string()),
    }
    text
}

/// The health of an object, and the message.
fn health(check: &str, object: &Value) -> (String, String) {
    let code = format!("local obj = {}\n{}", lua(object), file(check));
    let lua = mlua::Lua::new();
    let found: mlua::Table = lua.load(code).eval().unwrap_or_else(|error| panic!("{error}"));
    (found.get("status").unwrap(), found.get("message").unwrap())
}

fn of(conditions: Value) -> Value {
    json!({"metadata": {"generation": 2}, "status": {"observedGeneration": 2, "conditions": conditions}})
}

fn condition(kind: &str, status: &str, reason: &str) -> Value {
    json!({"type": kind, "status": status, "reason": reason, "message": format!("because of {reason}")})
}

#[test]
fn operator_and_instance_health_follows_conditions() {
    for (object, expected) in [
        (json!({"metadata": {"generation": 1}}), "Progressing"),
        (json!({"metadata": {"generation": 1}, "status": {}}), "Progressing"),
        (
            json!({"metadata": {"generation": 2}, "status": {"observedGeneration": 1, "conditions": [condition("Ready", "True", "Active")]}}),
            "Progressing",
        ),
        (of(json!([condition("Active", "True", "Active"), condition("Ready", "True", "Active")])), "Healthy"),
        (
            of(json!([
                condition("Ready", "False", "Upgrading"),
                condition("Reconciling", "True", "Upgrading")
            ])),
            "Progressing",
        ),
        (
            of(json!([
                condition("Ready", "False", "CRDRefused"),
                condition("Stalled", "True", "CRDRefused")
            ])),
            "Degraded",
        ),
        (
            of(json!([
                condition("Ready", "Unknown", "PackageNotLoaded"),
                condition("Stalled", "True", "PackageNotLoaded")
            ])),
            "Degraded",
        ),
        (of(json!([condition("Ready", "False", "Paused")])), "Suspended"),
        (of(json!([condition("Other", "True", "Else")])), "Progressing"),
    ] {
        let (found, message) = health("conditions.lua", &object);
        assert_eq!(found, expected, "{object:#}");
        assert!(!message.is_empty());
    }
    let stalled =
        of(json!([condition("Stalled", "True", "CRDRefused"), condition("Ready", "False", "CRDRefused")]));
    assert_eq!(health("conditions.lua", &stalled).1, "because of CRDRefused");
}

#[test]
fn run_health_follows_its_phase() {
    for (status, expected) in [
        (json!(null), "Progressing"),
        (json!({"phase": "Pending", "message": "it waits"}), "Progressing"),
        (json!({"phase": "Interrupted"}), "Progressing"),
        (
            json!({"phase": "Running", "steps": [{"phase": "Succeeded", "asked": 0}, {"phase": "Running"}]}),
            "Progressing",
        ),
        (
            json!({"phase": "Running", "steps": [{"phase": "Running", "asked": 0, "message": "sure?"}]}),
            "Suspended",
        ),
        (json!({"phase": "Succeeded"}), "Healthy"),
        (json!({"phase": "Superseded"}), "Healthy"),
        (json!({"phase": "Failed", "message": "exit code 1"}), "Degraded"),
        (json!({"phase": "Cancelled"}), "Degraded"),
    ] {
        let (found, message) = health("planrun.lua", &json!({"status": status}));
        assert_eq!(found, expected, "{status}");
        assert!(!message.is_empty());
    }
    assert_eq!(health("stored.lua", &json!({})).0, "Healthy");
}

#[test]
fn config_map_contains_the_health_check_files() {
    let map = operetta::yaml::from_str(&file("argocd-cm.yaml")).unwrap();
    for (kind, check) in [
        ("Operator", "conditions.lua"),
        ("PlanRun", "planrun.lua"),
        ("OperatorRevision", "stored.lua"),
        ("InstanceState", "stored.lua"),
    ] {
        let key = format!("resource.customizations.health.operetta.dev_{kind}");
        assert_eq!(map["data"][&key], file(check), "{key}");
    }
    let of_packages =
        operetta::yaml::from_str(map["data"]["resource.customizations"].as_str().unwrap()).unwrap();
    assert_eq!(of_packages["databases.example.org/*"]["health.lua"], file("conditions.lua"));
}
