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
    let policy = policy();
    let text = policy.to_string();
    for part in ["check('run')", "check('approve')", "operetta.dev/taken"] {
        assert!(text.contains(part), "{part}");
    }
    assert_eq!(binding()["spec"]["policyName"], policy["metadata"]["name"]);
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
        let policy = exemption(user);
        for other in users {
            assert_eq!(is_exempt(&policy, other), user == other, "{user} {other}");
        }
        let name = policy["spec"]["matchConditions"][0]["name"].as_str().unwrap().to_owned();
        assert!(name.len() <= 63 && !name.contains([':', '"']), "{name}");
        assert!(exemption_owner(user).ends_with(&name));
        assert!(names.insert(name), "{user}");
    }
    assert!(names.contains("one.operetta"), "{names:?}");
    assert!(!is_exempt(&policy(), "kubernetes-admin"));
}

#[test]
fn what_the_engine_stores_fits_the_schema() {
    use crate::plan::{Member, Phase, Recorded, RunStatus, StepPhase, StepState};
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
            record: [("primary".to_owned(), Recorded { value: 1.into(), sequence: 2 })].into(),
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
