//! Writes for runs that the API server refuses: nothing else waits for them.

use super::jobs::{JOB, PLANS};
use super::*;

fn ready() -> World {
    let note = "  note: {steps: [{name: note, record: {note: \"'noted'\"}}]}\n";
    let templates = [("c", config("{{ name }}-c")), ("job", JOB.to_owned())];
    let package = package(&format!("{PLANS}{note}"), &templates);
    let mut world = World::with_runs(package, &json!({"text": "x"}));
    world.settle();
    world
}

/// Carries out decisions until nothing is left to do. The API server refuses the writes with such a subject.
fn settle(world: &mut World, is_refused: impl Fn(&RunAction) -> bool) -> Verdict {
    for _ in 0..50 {
        let decision = world.decide();
        if decision.actions.is_empty() {
            return decision.verdict;
        }
        let (mut accepted, mut refused) = (Vec::new(), Vec::new());
        for action in decision.actions {
            match &action {
                Action::Run(run) if is_refused(run) => refused.push(run.subject().unwrap()),
                // It may say that something was done that was refused.
                Action::Run(run) if matches!(**run, RunAction::Remember(_)) && !refused.is_empty() => {}
                _ => accepted.push(action),
            }
        }
        let mut outcomes: Vec<ActionOutcome> = accepted.into_iter().map(|action| world.act(action)).collect();
        let error = || refusal(403, "Forbidden", "exceeded quota");
        outcomes.extend(refused.into_iter().map(|subject| ActionOutcome::RunRefused(subject, error())));
        world.state.record_all(&outcomes, decision.target_changes, world.now);
    }
    panic!("never comes to rest: {:?}", world.log);
}

fn phase(world: &World, run: &str) -> Value {
    world.runs.runs[run]["status"]["phase"].clone()
}

#[test]
fn nothing_waits_for_a_run_that_cannot_be_created() {
    let mut world = ready();
    world.edit(json!({"text": "y"}));
    request(&mut world, "mine", "note");
    let is_new = |action: &RunAction| matches!(action, RunAction::Create(RunObject::PlanRun, _));
    let Verdict::Reconciling { reason, message } = settle(&mut world, is_new) else { panic!() };
    assert_eq!(reason, "RunActive");
    assert!(message.contains("run a-2: its PlanRun cannot be created: exceeded quota"), "{message}");
    assert_eq!(phase(&world, "mine"), "Succeeded");
    assert_eq!(world.runs.runs["mine"]["metadata"]["finalizers"], json!([]), "it is released");
    assert_eq!(world.value("a-c", "text"), "x");
    // It is tried again, less and less often, until it is accepted.
    let first = world.decide().again.unwrap();
    world.now += first;
    settle(&mut world, is_new);
    assert!(world.decide().again.unwrap() > first);
    world.rest();
    assert_eq!(settle(&mut world, |_| false), Verdict::Ready { children: 1 });
    assert_eq!((phase(&world, "a-2"), world.value("a-c", "text")), (json!("Succeeded"), json!("y")));
}

#[test]
fn nothing_waits_for_a_run_whose_status_is_refused() {
    let mut world = ready();
    request(&mut world, "bad", "note");
    request(&mut world, "good", "note");
    let is_bad = |action: &RunAction| matches!(action, RunAction::Store { run, .. } if run.name == "bad");
    settle(&mut world, is_bad);
    assert_eq!((phase(&world, "bad"), phase(&world, "good")), (Value::Null, json!("Succeeded")));
    world.rest();
    assert_eq!(settle(&mut world, |_| false), Verdict::Ready { children: 1 });
    assert_eq!(phase(&world, "bad"), "Succeeded");
}

#[test]
fn a_step_says_why_its_job_cannot_be_created() {
    let mut world = ready();
    request(&mut world, "mine", "work");
    let is_job = |action: &RunAction| matches!(action, RunAction::Create(RunObject::Job, _));
    let Verdict::Reconciling { message, .. } = settle(&mut world, is_job) else { panic!() };
    assert!(
        message.contains("Job a-work-") && message.contains("cannot be created: exceeded quota"),
        "{message}"
    );
    assert!(world.store().jobs.is_empty());
    world.rest();
    settle(&mut world, |_| false);
    assert_eq!(world.store().jobs.len(), 1);
}
