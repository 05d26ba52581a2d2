//! The deletion of an instance and its cleanup.

use serde_json::json;

use super::{Manager, note_plan, triggered};
use crate::package::plan::{CleanupFailure, Event};
use crate::plan::{Cause, Cleanup, Directive, Memory, Phase, RunStatus, StepPhase, StepState};

#[test]
fn a_deletion_ends_every_run_and_runs_the_cleanup() {
    let mut manager = Manager::new();
    manager.plans.push(triggered(note_plan("cleanup"), Event::Deleted));
    manager.create("one", "restore");
    manager.create("two", "repair");
    manager.create("three", "backup");
    manager.settle();
    manager.deleting = true;
    manager.settle();
    for name in ["one", "two", "three"] {
        assert_eq!(manager.phase(name), (Phase::Cancelled, "InstanceDeleted"));
    }
    assert_eq!(manager.active(), ["x-2"]);
    assert_eq!(manager.agenda().cleanup, Cleanup::Active);
    let state = StepState { path: "a".into(), phase: StepPhase::Failed, ..StepState::default() };
    manager.run_mut("x-2").status.as_mut().unwrap().steps = vec![state];
    manager.end("x-2", Phase::Failed);
    manager.settle();
    assert!(matches!(manager.agenda().cleanup, Cleanup::Held(name, _) if name == "x-2"));
    manager.create("again", "cleanup");
    manager.run_mut("again").spec.retry_of = Some("x-2".into());
    manager.settle();
    assert_eq!(manager.active(), ["again"]);
    manager.end("again", Phase::Succeeded);
    manager.settle();
    assert_eq!(manager.agenda().cleanup, Cleanup::Done);
}

#[test]
fn a_cleanup_that_failed_runs_again_for_another_spec_or_revision() {
    let mut manager = Manager::new();
    manager.plans.push(triggered(note_plan("cleanup"), Event::Deleted));
    manager.deleting = true;
    manager.settle();
    let fails = |manager: &mut Manager, name: &str| {
        assert_eq!(manager.active(), [name]);
        manager.end(name, Phase::Failed);
        manager.settle();
        assert!(matches!(manager.agenda().cleanup, Cleanup::Held(run, _) if run == name));
    };
    fails(&mut manager, "x-2");
    manager.spec = json!({"size": 2});
    manager.settle();
    fails(&mut manager, "x-3");
    manager.revision = "2".into();
    manager.settle();
    fails(&mut manager, "x-4");
    manager.spec = json!({"size": 1});
    manager.settle();
    manager.end("x-5", Phase::Succeeded);
    assert_eq!(manager.agenda().cleanup, Cleanup::Done);
}

#[test]
fn held_cleanup_does_not_repeat_in_a_terminating_namespace() {
    let mut manager = Manager::new();
    let mut cleanup = triggered(note_plan("cleanup"), Event::Deleted);
    cleanup.on_cleanup_failure = Some(CleanupFailure::Hold);
    manager.plans.push(cleanup);
    manager.deleting = true;
    manager.settle();
    manager.end("x-2", Phase::Failed);
    manager.namespace_terminating = true;
    manager.spec = json!({"size": 2});
    manager.settle();
    assert!(manager.active().is_empty());
    assert!(matches!(manager.agenda().cleanup, Cleanup::Held(run, _) if run == "x-2"));
}

#[test]
fn running_cleanup_is_not_disturbed_by_a_wrong_retry() {
    let mut manager = Manager::new();
    manager.plans.push(triggered(note_plan("cleanup"), Event::Deleted));
    manager.deleting = true;
    manager.settle();
    assert_eq!(manager.active(), ["x-2"]);
    manager.create("again", "cleanup");
    manager.run_mut("again").spec.retry_of = Some("x-2".into());
    manager.settle();
    assert_eq!(manager.active(), ["x-2"]);
    manager.end("x-2", Phase::Succeeded);
    manager.settle();
    assert_eq!(manager.agenda().cleanup, Cleanup::Done);
}

#[test]
fn a_cleanup_in_a_terminating_namespace_is_a_run_of_the_memory() {
    let mut manager = Manager::new();
    manager.plans.push(triggered(note_plan("cleanup"), Event::Deleted));
    (manager.deleting, manager.namespace_terminating) = (true, true);
    manager.settle();
    assert_eq!(manager.runs.len(), 1, "no PlanRun is created");
    let inner = |manager: &Manager| {
        manager.memory.recall(manager.runs.clone()).runs.into_iter().find(|run| run.is_inner)
    };
    let run = inner(&manager).unwrap();
    assert_eq!((run.name.as_str(), run.phase(), run.cause()), ("x-2", Phase::Running, Cause::Cleanup));
    assert_eq!(manager.agenda().active, [("x-2".to_owned(), Directive::Continue)]);
    // Its end is the end of the cleanup, whether it has failed or not.
    for phase in [Phase::Failed, Phase::Succeeded] {
        let status = RunStatus { phase, ..run.status.clone().unwrap() };
        let before = manager.memory.clone();
        manager.memory = manager.memory.with_inner(&run, &status);
        assert_eq!((manager.agenda().cleanup, manager.agenda().writes), (Cleanup::Done, Vec::new()));
        manager.memory = before;
    }
    // A restored instance is in another namespace.
    let restored = manager.memory.restored("other", "2026-01-01T00:00:00Z");
    assert!(restored.runs.iter().all(|run| !run.inner && run.state.phase.is_final()));
    // Without a memory there is nowhere to keep it.
    manager.memory = Memory::new(manager.memory.of.clone(), "i");
    manager.has_memory = false;
    assert_eq!((manager.agenda().cleanup, manager.agenda().writes), (Cleanup::Done, Vec::new()));
}

/// As a namespace that is being deleted does.
#[test]
fn a_cleanup_whose_plan_run_is_being_deleted_goes_on() {
    let mut manager = Manager::new();
    manager.plans.push(triggered(note_plan("cleanup"), Event::Deleted));
    manager.deleting = true;
    manager.settle();
    manager.run_mut("x-2").deleting = true;
    manager.settle();
    assert_eq!(manager.active(), ["x-2"]);
    manager.run_mut("x-2").spec.cancel = true;
    manager.settle();
    assert_eq!(manager.phase("x-2"), (Phase::Cancelled, "Cancelled"));
}
