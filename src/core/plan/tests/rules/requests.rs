//! Requested runs: their order, which of them wait, and which are refused.

use serde_json::json;

use super::super::build::{inline, plan};
use super::{Manager, note_plan};
use crate::package::plan::{Concurrency, Plan};
use crate::plan::{CAUSE, Cause, Member, Phase, TAKEN};

#[test]
fn requests_run_in_the_order_of_arrival_one_at_a_time() {
    let mut manager = Manager::new();
    manager.create("one", "failover");
    manager.create("two", "repair");
    manager.create("beside", "backup");
    manager.settle();
    assert_eq!(manager.active(), ["one", "beside"]);
    assert_eq!(manager.agenda().waiting, [("two".to_owned(), "run one goes first".to_owned())]);
    manager.end("one", Phase::Failed);
    manager.settle();
    assert_eq!(manager.active(), ["two", "beside"]);
}

#[test]
fn second_run_of_a_plan_follows_its_concurrency() {
    for (concurrency, first, second) in [
        (Concurrency::Forbid, Phase::Running, (Phase::Failed, "AlreadyRunning")),
        (Concurrency::Queue, Phase::Running, (Phase::Pending, "")),
        (Concurrency::Replace, Phase::Superseded, (Phase::Running, "")),
    ] {
        for name in ["backup", "repair"] {
            let mut manager = Manager::new();
            manager.plans.iter_mut().find(|plan| plan.name == name).unwrap().concurrency = concurrency;
            manager.create("one", name);
            manager.settle();
            manager.create("two", name);
            manager.settle();
            assert_eq!(manager.phase("one").0, first, "{concurrency:?} {name}");
            assert_eq!(manager.phase("two"), second, "{concurrency:?} {name}");
        }
    }
}

#[test]
fn a_cancelled_run_ends_and_does_not_come_back() {
    let mut manager = Manager::new();
    manager.create("one", "repair");
    manager.create("two", "failover");
    manager.settle();
    for name in ["one", "two"] {
        manager.run_mut(name).spec.cancel = true;
    }
    manager.settle();
    assert_eq!((manager.phase("one").0, manager.phase("two").0), (Phase::Cancelled, Phase::Cancelled));
    assert!(manager.active().is_empty());
}

#[test]
fn a_taken_run_without_status_never_runs() {
    let mut manager = Manager::new();
    for (name, taken) in [("own", "uid-2"), ("other", "elsewhere")] {
        manager.create(name, "repair");
        manager.run_mut(name).annotations.insert(TAKEN.into(), taken.into());
    }
    manager.settle();
    assert!(manager.active().is_empty());
    // A run whose status is deleted while it runs never runs again either.
    manager.create("one", "repair");
    manager.settle();
    manager.run_mut("one").status = None;
    manager.settle();
    assert_eq!(manager.phase("one"), (Phase::Failed, "StateLost"));
}

#[test]
fn invalid_requests_fail_with_a_reason() {
    let mut manager = Manager::new();
    manager.create("params", "repair");
    manager.run_mut("params").spec.params = json!("wrong");
    manager.create("large", "repair");
    manager.run_mut("large").left_out = Some("they take too much".into());
    manager.create("missing", "nothing");
    manager.create("retry", "repair");
    manager.run_mut("retry").spec.retry_of = Some("x-1".into());
    manager.settle();
    assert_eq!(manager.phase("params"), (Phase::Failed, "InvalidParams"));
    assert_eq!(manager.phase("large"), (Phase::Failed, "InvalidParams"));
    assert_eq!(manager.phase("retry"), (Phase::Failed, "NotRetryable"));
    assert_eq!(manager.phase("missing"), (Phase::Pending, "PlanMissing"));
    // Its plan comes with another revision of the package.
    manager.create("late", "late");
    manager.settle();
    manager.plans.push(note_plan("late"));
    manager.settle();
    assert_eq!(manager.active(), ["late"]);
    manager.now += 3600;
    manager.settle();
    assert_eq!(manager.phase("missing"), (Phase::Failed, "PlanMissing"));
}

#[test]
fn the_number_of_waiting_requests_is_bounded() {
    let mut manager = Manager::new();
    manager.plans.iter_mut().for_each(|plan| plan.concurrency = Concurrency::Queue);
    for index in 0..103 {
        manager.create(&format!("r{index}"), "repair");
    }
    for _ in 0..400 {
        manager.turn();
    }
    assert_eq!(manager.phase("r0").0, Phase::Running);
    assert_eq!(manager.phase("r102"), (Phase::Failed, "TooManyRuns"));
}

#[test]
fn thousands_of_requests_delay_no_loss() {
    let mut manager = Manager::new();
    for index in 0..2000 {
        manager.create(&format!("r{index}"), "backup");
    }
    manager.turn();
    manager.losses = vec![("failover".into(), vec![Member::new("a", None)])];
    let turns = (0..20).position(|_| {
        manager.turn();
        manager.active().iter().any(|name| manager.run(name).cause() == Cause::Loss)
    });
    assert!(turns.is_some());
}

/// Backups are such plans: `take` is requested twice while the run of the schedule, which calls it, is active.
#[test]
fn requests_of_a_plan_that_a_schedule_calls_wait_for_each_other() {
    let mut manager = Manager::new();
    manager.plans.push(plan("periodic", vec![inline("take", "take")]));
    manager.plans.push(Plan { concurrency: Concurrency::Queue, ..note_plan("take") });
    manager.create("scheduled", "periodic");
    manager.run_mut("scheduled").annotations.insert(CAUSE.into(), Cause::Schedule.as_str().into());
    manager.settle();
    assert_eq!(manager.active(), ["scheduled"]);
    manager.create("one", "take");
    manager.create("two", "take");
    for name in ["scheduled", "one", "two"] {
        manager.settle();
        assert_eq!(manager.active(), [name]);
        manager.end(name, Phase::Succeeded);
    }
}

#[test]
fn nothing_starts_while_the_instance_is_paused() {
    let mut manager = Manager::new();
    manager.paused = true;
    manager.spec = json!({"size": 2});
    manager.create("one", "repair");
    manager.settle();
    assert!(manager.active().is_empty());
    manager.paused = false;
    manager.settle();
    assert_eq!(manager.active().len(), 1);
}
