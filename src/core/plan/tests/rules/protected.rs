//! Requests and answers while the API server does not check who writes them, and plans that cannot be requested.

use serde_json::{Value, json};

use super::{Manager, note_plan, triggered};
use crate::package::plan::Event;
use crate::plan::{
    Approval, ApprovalDecision, CAUSE, Cleanup, Of, Phase, Protection, RunSpec, SeenApproval, TAKEN,
};

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
    manager.spec = json!({"size": 2});
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

/// Attack: a cleanup that has failed, and holds the deletion, is tried again by a run that nobody has checked.
#[test]
fn a_forged_cleanup_never_runs() {
    let mut manager = Manager::new();
    manager.plans.push(triggered(note_plan("cleanup"), Event::Deleted));
    manager.deleting = true;
    manager.settle();
    manager.end("x-2", Phase::Failed);
    manager.settle();
    manager.protection = broken();
    manager.create("forged", "cleanup");
    manager.run_mut("forged").annotations.insert(CAUSE.into(), "Cleanup".into());
    manager.create("retry", "cleanup");
    manager.run_mut("retry").spec.retry_of = Some("x-2".into());
    manager.settle();
    assert!(manager.active().is_empty());
    manager.now += 5;
    manager.protection = Protection { since: Some(manager.time()), ..Protection::default() };
    manager.settle();
    for name in ["forged", "retry"] {
        assert_eq!(manager.phase(name), (Phase::Failed, "NotVerified"));
    }
    assert!(matches!(manager.agenda().cleanup, Cleanup::Held(run, _) if run == "x-2"));
}

#[test]
fn a_first_cleanup_with_parameters_is_checked() {
    let mut manager = Manager::new();
    manager.plans.push(triggered(note_plan("cleanup"), Event::Deleted));
    manager.deleting = true;
    manager.protection = broken();
    manager.create("forged", "cleanup");
    let forged = manager.run_mut("forged");
    forged.annotations.insert(CAUSE.into(), "Cleanup".into());
    forged.spec.params = json!({"keep": false});
    manager.settle();
    assert!(manager.active().is_empty());
    manager.now += 5;
    manager.protection = Protection { since: Some(manager.time()), ..Protection::default() };
    manager.settle();
    assert_eq!(manager.phase("forged"), (Phase::Failed, "NotVerified"));
    assert_eq!(manager.active(), ["x-2"]);
}

/// Attack: the parameters of a run are changed while the policy that keeps them is away.
#[test]
fn a_run_that_was_changed_after_it_was_admitted_never_runs() {
    let mut manager = Manager::new();
    manager.create("one", "repair");
    manager.create("two", "restore");
    manager.create("three", "backup");
    manager.create("four", "failover");
    manager.settle();
    assert_eq!(manager.active(), ["one", "three"]);
    // An earlier version has admitted it.
    manager.run_mut("four").status.as_mut().unwrap().request_digest = None;
    for name in ["two", "three", "four"] {
        manager.run_mut(name).spec.params = json!({"size": 9});
    }
    manager.end("one", Phase::Succeeded);
    manager.settle();
    for name in ["two", "three"] {
        assert_eq!(manager.phase(name), (Phase::Failed, "SpecChanged"));
    }
    assert_eq!(manager.active(), ["four"]);
    // Answers and a cancellation come later.
    let answer = Approval { step: "sure".into(), by: "ann".into(), ..Approval::default() };
    manager.run_mut("four").spec.approvals.push(answer);
    manager.settle();
    assert_eq!(manager.active(), ["four"]);
    manager.run_mut("four").spec.cancel = true;
    manager.settle();
    assert_eq!(manager.phase("four"), (Phase::Cancelled, "Cancelled"));
}

#[test]
fn a_retry_has_its_own_answers_and_its_own_request() {
    let mut manager = Manager::new();
    manager.create("one", "repair");
    manager.settle();
    let status = manager.run_mut("one").status.as_mut().unwrap();
    status.answers.push(SeenApproval { by: "ann".into(), ..SeenApproval::default() });
    manager.end("one", Phase::Failed);
    manager.create("again", "repair");
    manager.run_mut("again").spec.retry_of = Some("one".into());
    manager.settle();
    assert_eq!(manager.active(), ["again"]);
    let status = manager.run("again").status.as_ref().unwrap();
    assert!(
        status.answers.is_empty(),
        "an answer that nobody has checked would count as that of the failed run"
    );
    assert_eq!(status.request_digest, Some(manager.run("again").spec.digest()));
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

/// A later version compares it with what this one has stored.
#[test]
fn the_digest_of_a_request_stays_as_it_is() {
    let text = |text: &str| text.to_owned();
    let of = Of { api_version: text("g/v1"), kind: text("K"), resource: text("ks"), name: text("n") };
    let mut spec = RunSpec { of, plan: text("p"), ..RunSpec::default() };
    assert_eq!(spec.digest(), "5d93368f910ba388f48604585e79621f");
    spec.params = json!({"size": 3});
    spec.retry_of = Some(text("r"));
    spec.requested_by = Some(text("ann"));
    assert_eq!(spec.digest(), "cc6f37d3e77f06800842f3847aaec99a");
    spec.cancel = true;
    spec.approvals.push(Approval::default());
    assert_eq!(spec.digest(), "cc6f37d3e77f06800842f3847aaec99a");
    spec.params = Value::Null;
    assert_ne!(spec.digest(), "cc6f37d3e77f06800842f3847aaec99a");
}
