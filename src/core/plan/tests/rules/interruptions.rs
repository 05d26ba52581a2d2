//! Which runs others interrupt, and how they resume.

use serde_json::json;

use super::Manager;
use crate::plan::{
    Approval, ApprovalDecision, Cause, ConditionState, Member, Phase, RecordedFact, StepPhase, StepState,
};

#[test]
fn a_loss_interrupts_a_request_which_then_resumes() {
    let mut manager = Manager::new();
    manager.create("one", "repair");
    manager.settle();
    manager.losses = vec![("failover".into(), vec![Member::new("members", Some(json!(1)))])];
    manager.settle();
    assert_eq!(manager.phase("one"), (Phase::Interrupted, "Interrupted"));
    assert_eq!(manager.active(), ["x-2"]);
    assert_eq!(manager.run("x-2").status.as_ref().unwrap().lost.len(), 1);
    // It fails: others get their turn before it is repeated.
    manager.end("x-2", Phase::Failed);
    manager.settle();
    assert_eq!(manager.active(), ["one"]);
    manager.now += 60;
    manager.settle();
    assert_eq!(manager.active(), ["x-3"]);
    manager.losses.clear();
    manager.end("x-3", Phase::Succeeded);
    manager.settle();
    assert_eq!(manager.active(), ["one"]);
}

#[test]
fn uninterruptible_run_is_not_interrupted() {
    let mut manager = Manager::new();
    manager.create("one", "restore");
    manager.settle();
    manager.losses = vec![("failover".into(), vec![Member::new("a", None)])];
    manager.spec = json!({"size": 2});
    manager.settle();
    assert_eq!(manager.active(), ["one"]);
    manager.end("one", Phase::Succeeded);
    manager.settle();
    assert_eq!(manager.active(), ["x-2"]);
    assert_eq!(manager.run("x-2").cause(), Cause::Loss);
}

#[test]
fn an_interrupted_rollout_is_decided_again() {
    let mut manager = Manager::new();
    manager.spec = json!({"size": 2});
    manager.settle();
    manager.losses = vec![("failover".into(), vec![Member::new("a", None)])];
    manager.settle();
    let loss = manager.active()[0].to_owned();
    assert_eq!(manager.run(&loss).cause(), Cause::Loss);
    manager.losses.clear();
    manager.end(&loss, Phase::Succeeded);
    manager.settle();
    assert_eq!(manager.phase("x-2"), (Phase::Superseded, "DecidedAgain"));
    let active = manager.active()[0].to_owned();
    assert_eq!(manager.run(&active).cause(), Cause::Rollout);
    assert_ne!(active, "x-2");
}

#[test]
fn an_interrupted_retry_of_a_rollout_is_decided_again() {
    let mut manager = Manager::new();
    manager.spec = json!({"size": 2});
    manager.settle();
    let state = StepState { path: "a".into(), phase: StepPhase::Failed, ..StepState::default() };
    manager.run_mut("x-2").status.as_mut().unwrap().steps = vec![state];
    manager.end("x-2", Phase::Failed);
    manager.create("x-3", "update");
    manager.run_mut("x-3").spec.retry_of = Some("x-2".into());
    manager.settle();
    assert_eq!(manager.active(), ["x-3"]);
    manager.losses = vec![("failover".into(), vec![Member::new("a", None)])];
    manager.settle();
    let loss = manager.active()[0].to_owned();
    manager.losses.clear();
    manager.end(&loss, Phase::Succeeded);
    manager.settle();
    assert_eq!(manager.run(manager.active()[0]).cause(), Cause::Rollout);
}

#[test]
fn runs_that_await_approval_block_no_run_and_do_not_alternate() {
    let mut manager = Manager::new();
    manager.create("one", "repair");
    manager.settle();
    manager.asks("one");
    manager.create("two", "failover");
    manager.settle();
    assert_eq!(manager.phase("one"), (Phase::Interrupted, "AwaitsApproval"));
    manager.asks("two");
    manager.settle();
    assert_eq!(manager.active(), ["two"]);
    let yes = Approval {
        step: "sure".into(),
        verdict: ApprovalDecision::Approve,
        by: "ann".into(),
        ..Approval::default()
    };
    manager.run_mut("one").spec.approvals.push(yes);
    manager.settle();
    assert_eq!(manager.active(), ["one"]);
}

#[test]
fn uninterruptible_run_keeps_its_place_while_it_awaits_approval() {
    let mut manager = Manager::new();
    manager.create("one", "restore");
    manager.settle();
    manager.asks("one");
    manager.create("two", "repair");
    manager.losses = vec![("failover".into(), vec![Member::new("a", None)])];
    manager.spec = json!({"size": 2});
    manager.settle();
    assert_eq!(manager.active(), ["one"]);
    // A rollout that may not be interrupted keeps its place as well.
    let mut manager = Manager::new();
    manager.plans.iter_mut().for_each(|plan| plan.interruptible = false);
    manager.spec = json!({"size": 2});
    manager.settle();
    manager.asks("x-2");
    manager.spec = json!({"size": 3});
    manager.settle();
    assert_eq!(manager.active(), ["x-2"]);
    manager.revision = "2".into();
    manager.settle();
    assert_eq!(manager.active(), ["x-2"]);
}

#[test]
fn a_condition_runs_its_plan_and_a_half_done_run_is_resumed() {
    let mut manager = Manager::new();
    manager.conditions = vec![("failover".into(), ConditionState::Due)];
    manager.settle();
    assert_eq!(manager.active(), ["x-2"]);
    let status = manager.run_mut("x-2").status.as_mut().unwrap();
    status.record.insert("primary".into(), RecordedFact { value: json!(1), sequence: 1 });
    status.steps = vec![StepState { path: "a".into(), phase: StepPhase::Failed, ..StepState::default() }];
    manager.conditions = vec![("failover".into(), ConditionState::Cleared)];
    manager.end("x-2", Phase::Failed);
    manager.settle();
    assert!(manager.active().is_empty());
    manager.now += 60;
    manager.settle();
    assert_eq!(manager.active(), ["x-3"]);
    assert_eq!(manager.run("x-3").status.as_ref().unwrap().id, manager.run("x-2").uid);
}

#[test]
fn own_revision_decides_exclusiveness_and_interruption_of_a_run() {
    let mut manager = Manager::new();
    manager.create("b", "backup");
    manager.create("r", "restore");
    manager.settle();
    assert_eq!(manager.active(), ["b", "r"]);
    // The next revision has other plans of these names, or none.
    manager.revision = "2".into();
    manager.plans.retain(|plan| plan.name != "backup");
    manager.plans.iter_mut().for_each(|plan| plan.interruptible = true);
    manager.losses = vec![("failover".into(), vec![Member::new("a", None)])];
    manager.settle();
    assert_eq!(manager.active(), ["b", "r"], "the restore may not be interrupted");
    manager.end("r", Phase::Succeeded);
    manager.settle();
    let active = manager.active();
    assert!(active.len() == 2 && active[0] == "b", "the failover runs beside the backup: {active:?}");
}

#[test]
fn request_of_higher_priority_goes_before_a_waiting_rollout() {
    let mut manager = Manager::new();
    manager.spec = json!({"size": 2});
    manager.settle();
    assert_eq!(manager.active(), ["x-2"]);
    // Without a priority the run waits, and says for whom.
    manager.create("first", "repair");
    manager.settle();
    assert_eq!(manager.active(), ["x-2"]);
    assert_eq!(manager.run("first").status.as_ref().unwrap().message, "run x-2 goes first");
    manager.plans.iter_mut().filter(|plan| plan.name == "restore").for_each(|plan| plan.priority = 1);
    manager.create("second", "restore");
    manager.settle();
    assert_eq!(manager.active(), ["second"]);
    assert_eq!(manager.run("first").status.as_ref().unwrap().message, "run second goes first");
}

#[test]
fn second_loss_goes_first_only_during_an_interruptible_step() {
    let member = |key: i32| Member::new("members", Some(json!(key)));
    for lets_in in [None, Some(false), Some(true)] {
        let mut manager = Manager::new();
        manager.losses = vec![("failover".into(), vec![member(0)])];
        manager.settle();
        assert_eq!(manager.active(), ["x-2"]);
        manager.run_mut("x-2").status.as_mut().unwrap().step_interruptible = lets_in;
        manager.losses = vec![("failover".into(), vec![member(0), member(1)])];
        manager.settle();
        // One run for the second loss, not one after another.
        assert!(!manager.run("x-3").status.as_ref().unwrap().lost.is_empty());
        let first = if lets_in == Some(true) { "x-3" } else { "x-2" };
        assert_eq!(manager.active(), [first], "{lets_in:?}");
        assert!(manager.runs.iter().all(|run| run.name != "x-4"));
        let left =
            if lets_in == Some(true) { Vec::new() } else { vec![("failover".into(), vec![member(1)])] };
        manager.losses = left;
        manager.end(first, Phase::Succeeded);
        manager.settle();
        let second = if lets_in == Some(true) { "x-2" } else { "x-3" };
        assert_eq!(manager.active(), [second], "{lets_in:?}");
    }
}

#[test]
fn a_cancelled_run_for_a_loss_is_repeated_after_a_pause() {
    let mut manager = Manager::new();
    manager.losses = vec![("failover".into(), vec![Member::new("a", None)])];
    manager.settle();
    manager.run_mut("x-2").spec.cancel = true;
    manager.settle();
    assert_eq!(manager.phase("x-2").0, Phase::Cancelled);
    assert!(manager.active().is_empty());
    manager.now += 11;
    manager.settle();
    assert_eq!(manager.active(), ["x-3"]);
}

#[test]
fn cancelled_rollout_can_be_retried_but_a_replaced_one_cannot() {
    let mut manager = Manager::new();
    manager.spec = json!({"size": 2});
    manager.settle();
    manager.run_mut("x-2").spec.cancel = true;
    manager.settle();
    assert_eq!(manager.phase("x-2").0, Phase::Cancelled);
    manager.create("again", "update");
    manager.run_mut("again").spec.retry_of = Some("x-2".into());
    manager.settle();
    assert_eq!(manager.active(), ["again"]);
    manager.spec = json!({"size": 3});
    manager.settle();
    assert_eq!(manager.phase("again").0, Phase::Superseded);
    manager.create("third", "update");
    manager.run_mut("third").spec.retry_of = Some("again".into());
    manager.settle();
    assert_eq!(manager.phase("third"), (Phase::Failed, "NotRetryable"));
}
