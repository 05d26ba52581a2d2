use operetta_kube_model::patch::merge;
use serde_json::json;

use super::*;
use crate::crd;

#[test]
fn the_crd_is_one_that_the_api_server_accepts() {
    let crd = plan_run();
    assert_eq!(crd::check(&crd), Vec::new());
    let kind = crd::kind(&crd).unwrap();
    assert_eq!(
        (kind.plural.as_str(), kind.kind.as_str(), kind.namespaced),
        (PLAN_RUN.plural, PLAN_RUN.kind, true)
    );
}

#[test]
fn a_run_and_its_status_fit_the_schema() {
    let crd = plan_run();
    let schema = crd::schema_of(&crd, crd::VERSION).unwrap();
    let run = serde_json::json!({
        "apiVersion": "operetta.dev/v1alpha1",
        "kind": PLAN_RUN.kind,
        "metadata": {"name": "db-1"},
        "spec": {
            "of": {"apiVersion": "example.com/v1", "kind": "Db", "resource": "dbs", "name": "db"},
            "plan": "restore",
            "params": {"source": {"any": [1]}},
            "retryOf": "db-0",
            "cancel": true,
            "requestedBy": "eve",
            "approvals": [{"step": "leaving[prod]/sure", "verdict": "Approve", "by": "eve"}],
        },
        "status": {
            "phase": "Running",
            "startedAt": "2026-01-01T00:00:00Z",
            "lost": [{"child": "members", "key": 0}],
            "record": {"primary": {"value": 1, "sequence": 3}},
            "steps": [{"path": "a/b", "phase": "Failed", "attempt": 2, "items": [{"key": "0", "value": 0}]}],
            "more": {"a": 1},
        },
    });
    assert!(crd::validate(schema, &run).is_empty(), "{:?}", crd::validate(schema, &run));
    let wrong = |pointer: &str, value: serde_json::Value| {
        let mut run = run.clone();
        *run.pointer_mut(pointer).unwrap() = value;
        !crd::validate(schema, &run).is_empty()
    };
    assert!(wrong("/spec/of/apiVersion", "v1".into()));
    assert!(wrong("/spec/plan", "".into()));
    assert!(wrong("/spec/approvals/0/verdict", "Yes".into()));
    assert!(wrong("/spec/approvals/0/by", "".into()));
    assert!(wrong("/status/phase", "Done".into()));
}

#[test]
fn the_policy_names_the_verbs_and_its_binding_the_policy() {
    let text = policies()[0].to_string();
    for part in ["check('run')", "check('approve')", "check('restore')", "operetta.dev/taken"] {
        assert!(text.contains(part), "{part}");
    }
    for (policy, binding) in policies().iter().zip(bindings()) {
        assert_eq!(binding["spec"]["policyName"], policy["metadata"]["name"]);
    }
}

#[test]
fn each_manager_has_an_exemption_of_its_own() {
    let long = format!("system:serviceaccount:{}:operetta", "n".repeat(60));
    let users = [
        "system:serviceaccount:one:operetta",
        "system:serviceaccount:two:operetta",
        "system:serviceaccount:two:a:b",
        "one.operetta",
        "kubernetes-admin",
        "\"quoted\"",
        &long,
    ];
    let mut names = std::collections::BTreeSet::new();
    for user in users {
        let policy = exemption(POLICY, user);
        for other in users {
            assert_eq!(is_exempt(&policy, other), user == other, "{user} {other}");
        }
        let name = policy["spec"]["matchConditions"][0]["name"].as_str().unwrap().to_owned();
        assert!(name.len() <= 63 && !name.contains([':', '"']), "{name}");
        assert!(exemption_owner(user).ends_with(&name));
        assert!(names.insert(name), "{user}");
    }
    assert!(names.contains("one.operetta"), "{names:?}");
    assert!(!is_exempt(&policies()[0], "kubernetes-admin"));
}

#[test]
fn statuses_that_the_engine_stores_fit_the_schema() {
    use crate::plan::{Member, Phase, RecordedFact, RunStatus, StepPhase, StepState};
    let crd = plan_run();
    let schema = crd::schema_of(&crd, crd::VERSION).unwrap();
    let member = |key| Member::new("members", key);
    for phase in [
        Phase::Pending,
        Phase::Running,
        Phase::Interrupted,
        Phase::Succeeded,
        Phase::Failed,
        Phase::Cancelled,
        Phase::Superseded,
    ] {
        let step = |phase| StepState { path: "a[0]/b".to_owned(), phase, attempt: 1, ..StepState::default() };
        let steps = [
            StepPhase::Pending,
            StepPhase::Running,
            StepPhase::Succeeded,
            StepPhase::Skipped,
            StepPhase::Failed,
        ];
        let status = RunStatus {
            phase,
            plans: vec!["deploy".to_owned()],
            started_at: Some("2026-01-01T00:00:00Z".to_owned()),
            lost: vec![member(None), member(Some(0.into())), member(Some("a".into()))],
            steps: steps.map(step).to_vec(),
            record: [("primary".to_owned(), RecordedFact { value: 1.into(), sequence: 2 })].into(),
            ..RunStatus::default()
        };
        let run = serde_json::json!({
            "apiVersion": "operetta.dev/v1alpha1",
            "kind": PLAN_RUN.kind,
            "metadata": {"name": "db-1"},
            "spec": {"of": {"apiVersion": "example.com/v1", "kind": "Db", "resource": "dbs", "name": "db"}, "plan": "deploy"},
            "status": serde_json::to_value(status).unwrap(),
        });
        assert!(crd::validate(schema, &run).is_empty(), "{:?}", crd::validate(schema, &run));
    }
}

#[test]
fn only_what_is_missing_or_changed_is_applied() {
    let wanted = json!({"spec": {"a": [{"b": 1}], "c": {}}});
    for (live, has_all) in [
        (json!({"spec": {"a": [{"b": 1, "default": true}], "c": {}}, "status": {}}), true),
        (json!({"spec": {"a": [{"b": 1}, {"b": 2}], "c": {}}}), false),
        (json!({"spec": {"a": [{"b": 2}], "c": {}}}), false),
        (json!({"spec": {"a": [{"b": 1}]}}), false),
    ] {
        assert_eq!(has_all_of(&live, &wanted), has_all, "{live}");
    }
}

#[test]
fn altered_policy_differs_from_one_with_defaults_and_exemptions() {
    let wanted = policies()[0].clone();
    let mut live = wanted.clone();
    live["metadata"]["uid"] = "u".into();
    live["spec"]["matchConditions"] =
        exemption(POLICY, "system:serviceaccount:one:operetta")["spec"]["matchConditions"].take();
    assert_eq!(integrity(Some(&live), &wanted), Integrity::Whole);
    assert_eq!(integrity(None, &wanted), Integrity::Missing);
    let altered = |change: &dyn Fn(&mut Value)| {
        let mut live = live.clone();
        change(&mut live);
        let found = integrity(Some(&live), &wanted);
        let mut repaired = live.clone();
        merge(&mut repaired, &repair(&live, &wanted));
        // As the API server defaults them.
        for selector in ["namespaceSelector", "objectSelector"] {
            let constraints = repaired["spec"]["matchConstraints"].as_object_mut().unwrap();
            constraints.entry(selector).or_insert_with(|| json!({}));
        }
        assert_eq!(integrity(Some(&repaired), &wanted), Integrity::Whole, "{repaired}");
        assert!(is_exempt(&repaired, "system:serviceaccount:one:operetta"));
        found
    };
    let set = |pointer: &'static str, value: Value| {
        move |live: &mut Value| {
            let (parent, field) = pointer.rsplit_once('/').unwrap();
            live.pointer_mut(parent).unwrap()[field] = value.clone();
        }
    };
    for (pointer, value) in [
        ("/spec/failurePolicy", json!("Ignore")),
        ("/spec/validations", json!([])),
        ("/spec/variables/0/expression", json!("false")),
        ("/spec/matchConstraints/namespaceSelector", json!({"matchLabels": {"a": "b"}})),
        ("/spec/matchConstraints/objectSelector", json!({"matchLabels": {"a": "b"}})),
        ("/spec/matchConstraints/excludeResourceRules", json!([{"resources": ["*"]}])),
        ("/spec/matchConstraints/resourceRules/0/operations", json!(["CREATE"])),
        ("/spec/paramKind", json!({"kind": "ConfigMap"})),
    ] {
        assert_eq!(altered(&set(pointer, value)), Integrity::Altered, "{pointer}");
    }
    for condition in [
        json!({"name": "off", "expression": "false"}),
        json!({"name": "off", "expression": "request.userInfo.username != \"a\" && false"}),
        json!({"name": "off", "expression": "request.userInfo.username != \"a\""}),
    ] {
        let add = |live: &mut Value| {
            live["spec"]["matchConditions"].as_array_mut().unwrap().push(condition.clone());
        };
        assert_eq!(altered(&add), Integrity::Altered, "{condition}");
    }
    let wanted = bindings()[0].clone();
    for (pointer, value) in [
        ("/spec/validationActions", json!(["Audit"])),
        ("/spec/policyName", json!("other")),
        ("/spec/matchResources", json!({"namespaceSelector": {"matchLabels": {"a": "b"}}})),
        ("/spec/paramRef", json!({"name": "a"})),
    ] {
        let mut live = wanted.clone();
        set(pointer, value)(&mut live);
        assert_eq!(integrity(Some(&live), &wanted), Integrity::Altered, "{pointer}");
    }
}

#[test]
fn policies_of_other_versions_are_updated_by_newer_managers_only() {
    let wanted = policies()[0].clone();
    let version = |version: Option<u64>| {
        let mut live = wanted.clone();
        live["spec"]["validations"] = json!([{"expression": "true"}]);
        live["metadata"]["annotations"] = version
            .map_or(json!(null), |version| json!({"operetta.dev/policy-version": version.to_string()}));
        integrity(Some(&live), &wanted)
    };
    assert_eq!(version(None), Integrity::Outdated);
    assert_eq!(version(Some(admission::VERSION - 1)), Integrity::Outdated);
    assert_eq!(version(Some(admission::VERSION)), Integrity::Altered);
    assert_eq!(version(Some(admission::VERSION + 1)), Integrity::Whole);
}
