//! Rollouts: what replaces them, and when they are tried again.

use serde_json::json;

use super::{Manager, note_plan, triggered};
use crate::package::plan::{ChangedPath, Event};
use crate::plan::{Approval, ApprovalDecision, Cause, Member, Phase, StepPhase, StepState};

#[test]
fn a_newer_spec_replaces_a_rollout_and_a_newer_revision_follows() {
    let mut manager = Manager::new();
    manager.spec = json!({"size": 2});
    manager.settle();
    assert_eq!(manager.active(), ["x-2"]);
    assert_eq!(manager.run("x-2").status.as_ref().unwrap().plans, ["update"]);
    manager.revision = "2".into();
    manager.settle();
    assert_eq!(manager.active(), ["x-2"]);
    manager.spec = json!({"size": 3});
    manager.settle();
    assert_eq!(manager.phase("x-2"), (Phase::Superseded, "NewerSpec"));
    assert_eq!(manager.active(), ["x-3"]);
    assert_eq!(manager.run("x-3").status.as_ref().unwrap().revision.as_deref(), Some("2"));
}

/// The rollout `x-2` of a newer spec has failed at its first step.
fn with_a_failed_rollout() -> Manager {
    let mut manager = Manager::new();
    manager.spec = json!({"size": 2});
    manager.settle();
    let state = StepState { path: "a".into(), phase: StepPhase::Failed, attempt: 1, ..StepState::default() };
    manager.run_mut("x-2").status.as_mut().unwrap().steps = vec![state];
    manager.end("x-2", Phase::Failed);
    manager.settle();
    manager
}

#[test]
fn a_failed_rollout_is_tried_again_only_for_a_reason() {
    let mut manager = with_a_failed_rollout();
    assert!(manager.active().is_empty());
    manager.create("again", "update");
    manager.run_mut("again").spec.retry_of = Some("x-2".into());
    manager.settle();
    assert_eq!(manager.active(), ["again"]);
    let (again, before) =
        (manager.run("again").status.clone().unwrap(), manager.run("x-2").status.clone().unwrap());
    assert_eq!((again.cause, &again.id, &again.origin), (Cause::Rollout, &before.id, &before.origin));
    assert_eq!((again.steps[0].phase, again.steps[0].attempt), (StepPhase::Pending, 1));
    manager.end("again", Phase::Failed);
    manager.settle();
    assert!(manager.active().is_empty());
    manager.revision = "2".into();
    manager.settle();
    assert_eq!(manager.active(), ["x-3"]);
}

#[test]
fn a_failed_rollout_is_tried_again_for_refs_that_a_trigger_names() {
    let mut manager = Manager::new();
    let named = Event::Changed(vec![ChangedPath::Ref("named".into())]);
    manager.plans.push(triggered(note_plan("rotate"), named));
    manager.spec = json!({"size": 2});
    manager.settle();
    manager.end("x-2", Phase::Failed);
    let set = |manager: &mut Manager, id: &str, digest: &str| {
        manager.now += 60;
        manager.refs.insert(id.into(), digest.into());
        manager.settle();
    };
    for digest in ["k:1", "k:2"] {
        set(&mut manager, "other", digest);
        assert!(manager.active().is_empty(), "no trigger names it");
    }
    set(&mut manager, "named", "k:1");
    assert_eq!(manager.active(), ["x-3"], "it was unknown");
    manager.end("x-3", Phase::Failed);
    set(&mut manager, "named", "l:1");
    assert!(manager.active().is_empty(), "digests with another key are not compared");
    set(&mut manager, "named", "k:2");
    assert_eq!(manager.active(), ["x-4"]);
}

#[test]
fn an_approval_carries_over_to_a_rollout_that_asks_the_same() {
    let mut manager = Manager::new();
    manager.spec = json!({"size": 2});
    manager.settle();
    manager.asks("x-2");
    let yes = Approval {
        step: "sure".into(),
        verdict: ApprovalDecision::Approve,
        by: "ann".into(),
        ..Approval::default()
    };
    manager.run_mut("x-2").spec.approvals.push(yes);
    manager.spec = json!({"size": 3});
    manager.settle();
    let carried = &manager.run("x-3").status.as_ref().unwrap().approvals;
    assert_eq!((carried[0].by.as_str(), carried[0].message.as_deref()), ("ann", Some("Sure?")));
}

#[test]
fn a_spec_that_is_edited_back_to_a_failed_one_is_rolled_out_again() {
    let mut manager = Manager::new();
    manager.spec = json!({"size": 2});
    manager.settle();
    manager.end("x-2", Phase::Failed);
    manager.settle();
    manager.spec = json!({"size": 3});
    manager.settle();
    assert_eq!(manager.active(), ["x-3"]);
    manager.spec = json!({"size": 2});
    manager.settle();
    assert_eq!((manager.phase("x-3").0, manager.active()), (Phase::Superseded, vec!["x-4"]));
}

/// The key from which the idempotency keys of a run derive.
fn key<'m>(manager: &'m Manager, run: &str) -> &'m str {
    manager.run(run).status.as_ref().unwrap().key()
}

#[test]
fn a_rollout_that_is_repeated_keeps_its_key() {
    let mut manager = Manager::new();
    manager.spec = json!({"size": 2});
    manager.settle();
    manager.losses = vec![("failover".into(), vec![Member::new("a", None)])];
    manager.settle();
    manager.losses.clear();
    manager.end("x-3", Phase::Succeeded);
    manager.settle();
    assert_eq!((manager.phase("x-2").0, manager.active()), (Phase::Superseded, vec!["x-4"]));
    assert_eq!(key(&manager, "x-4"), key(&manager, "x-2"), "it rolls out the same");
    // Back to the former spec and forward again: these are other changes.
    manager.end("x-4", Phase::Succeeded);
    for (run, size) in [("x-5", 1), ("x-6", 2)] {
        manager.spec = json!({"size": size});
        manager.settle();
        manager.end(run, Phase::Succeeded);
        manager.settle();
        assert_ne!(key(&manager, run), key(&manager, "x-4"), "{run}");
    }
}

#[test]
fn rollout_replaced_while_it_awaits_approval_keeps_its_key() {
    let mut manager = Manager::new();
    manager.spec = json!({"size": 2});
    manager.settle();
    manager.asks("x-2");
    manager.revision = "2".into();
    manager.settle();
    assert_eq!((manager.phase("x-2"), manager.active()), ((Phase::Superseded, "NewerRevision"), vec!["x-3"]));
    assert_eq!(key(&manager, "x-3"), key(&manager, "x-2"));
}

/// Its PlanRun was deleted, and with it its steps.
#[test]
fn a_failed_rollout_whose_steps_are_gone_begins_anew() {
    let mut manager = with_a_failed_rollout();
    let key = manager.run("x-2").status.as_ref().unwrap().key().to_owned();
    manager.runs.retain(|run| run.name != "x-2");
    manager.create("again", "update");
    manager.run_mut("again").spec.retry_of = Some("x-2".into());
    manager.settle();
    assert_eq!(manager.active(), ["again"]);
    let status = manager.run("again").status.clone().unwrap();
    assert_eq!((status.cause, status.key(), status.steps.len()), (Cause::Rollout, key.as_str(), 0));
    assert_eq!((status.plans, status.origin), (vec!["update".to_owned()], Some(manager.origin_name())));
    manager.end("again", Phase::Succeeded);
    manager.settle();
    assert!(manager.active().is_empty());
}
