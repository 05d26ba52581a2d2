//! Requests and answers while the API server does not check who writes them, and plans that cannot be requested.

use super::{Manager, note_plan, triggered};
use crate::package::plan::Event;
use crate::plan::{Approval, ApprovalDecision, CAUSE, Phase, Protection, TAKEN};

fn broken() -> Protection {
    Protection { broken: Some("the policy is missing".into()), ..Protection::default() }
}

#[test]
fn no_new_run_is_admitted_while_a_policy_is_missing() {
    let mut manager = Manager::new();
    manager.protection = broken();
    manager.create("asked", "repair");
    // The annotation was not checked either.
    manager.create("forged", "restore");
    manager.run_mut("forged").annotations.insert(CAUSE.into(), "Loss".into());
    manager.settle();
    assert!(manager.active().is_empty());
    let waiting = manager.agenda().waiting;
    assert_eq!(waiting.len(), 2, "{waiting:?}");
    assert!(waiting.iter().all(|(_, why)| why.starts_with("the policy is missing")), "{waiting:?}");

    // The policy is back: runs created before are not trusted, and those created afterwards are.
    manager.now += 5;
    manager.protection = Protection { since: Some(manager.time()), ..Protection::default() };
    manager.settle();
    for name in ["asked", "forged"] {
        assert_eq!(manager.phase(name), (Phase::Failed, "NotVerified"));
    }
    manager.create("again", "repair");
    manager.settle();
    assert_eq!(manager.active(), ["again"]);
}

#[test]
fn manager_creates_no_run_while_a_policy_is_missing() {
    let mut manager = Manager::new();
    manager.create("repairing", "repair");
    manager.settle();
    manager.protection = broken();
    manager.spec = serde_json::json!({"size": 2});
    manager.end("repairing", Phase::Succeeded);
    manager.settle();
    assert!(manager.active().is_empty());
    manager.protection = Protection::default();
    manager.settle();
    assert_eq!(manager.active(), ["x-2"]);
}

#[test]
fn a_cleanup_runs_while_a_policy_is_missing() {
    let mut manager = Manager::new();
    manager.plans.push(triggered(note_plan("cleanup"), Event::Deleted));
    manager.protection = broken();
    manager.deleting = true;
    manager.settle();
    assert_eq!(manager.active(), ["x-2"]);
}

#[test]
fn an_answer_to_a_run_that_waits_is_recorded_as_not_checked() {
    let mut manager = Manager::new();
    manager.create("one", "repair");
    manager.settle();
    manager.asks("one");
    let status = manager.run_mut("one").status.as_mut().unwrap();
    (status.phase, status.parked) = (Phase::Interrupted, Some(0));
    manager.create("two", "restore");
    manager.settle();
    assert_eq!(manager.active(), ["two"]);
    manager.protection = broken();
    let yes = Approval {
        step: "sure".into(),
        verdict: ApprovalDecision::Approve,
        by: "eve".into(),
        ..Approval::default()
    };
    manager.run_mut("one").spec.approvals.push(yes.clone());
    manager.settle();
    manager.protection = Protection::default();
    manager.run_mut("one").spec.approvals.push(Approval { by: "ann".into(), ..yes });
    manager.settle();
    let run = manager.run("one");
    let status = run.status.as_ref().unwrap();
    let ignored: Vec<bool> = status.answers.iter().map(|answer| answer.ignored.is_some()).collect();
    assert_eq!(ignored, [true, false]);
    assert!(status.counted(run).map(|(_, answer)| answer.by.as_str()).eq(["ann"]));
}

#[test]
fn a_cleanup_cannot_be_requested() {
    let mut manager = Manager::new();
    manager.plans.push(triggered(note_plan("cleanup"), Event::Deleted));
    manager.create("one", "cleanup");
    manager.create("two", "cleanup");
    manager.run_mut("two").spec.retry_of = Some("one".into());
    manager.settle();
    for name in ["one", "two"] {
        assert_eq!(manager.phase(name), (Phase::Failed, "NotRequestable"));
    }
    assert!(!manager.run("one").annotations.contains_key(TAKEN));
}
