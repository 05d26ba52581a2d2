//! What a step waits for: values, approvals, time. What it says when it times out.

use serde_json::json;

use super::super::build::{apply, approve, exec, job, note, pause, phase, plan, text, wait};
use super::super::sim::{Sim, exit};
use crate::package::plan::Step;
use crate::plan::{Approval, JobResult, Member, MemberState, Phase, StepPhase, Verdict};
use crate::template::Var;

#[test]
fn unknown_waits_until_the_timeout() {
    let mut sim = Sim::new(vec![plan("deploy", vec![note("note", "x", "1").when("refs.api.ok")])]);
    sim.cluster.refs.insert("api".into(), Var::Unknown("it is not reached".into()));
    let progress = sim.settle();
    assert_eq!(progress.waiting[0].reason, "Unknown");
    assert_eq!(sim.phase_of("note"), Some(StepPhase::Pending));
    sim.cluster.refs.insert("api".into(), Var::Json(json!({"ok": false})));
    sim.settle();
    assert_eq!(sim.phase_of("note"), Some(StepPhase::Skipped));

    let mut sim = Sim::new(vec![plan("deploy", vec![note("note", "x", "1").when("refs.api.ok")])]);
    sim.cluster.refs.insert("api".into(), Var::Unknown("it is not reached".into()));
    assert_eq!(sim.finish().reason, "Timeout");
}

#[test]
fn approvals_are_bound_to_their_question() {
    let yes =
        |by: &str| Approval { step: "sure".into(), verdict: Verdict::Approve, by: by.into(), message: None };
    let mut sim = Sim::new(vec![plan("deploy", vec![approve("sure", "Delete {{ name }}?", 2)])]);
    sim.run.spec.approvals.push(yes("early"));
    let progress = sim.settle();
    assert!(progress.awaits_approval && !progress.in_flight);
    assert_eq!(progress.waiting[0].message, "Delete x? (0 of 2 approvals)");
    for by in ["eve", "ann", "ann"] {
        sim.run.spec.approvals.push(yes(by));
    }
    assert_eq!(sim.finish().phase, Phase::Running);
    sim.run.spec.approvals.push(yes("bob"));
    assert_eq!(sim.finish().phase, Phase::Succeeded);

    let mut sim = Sim::new(vec![plan("deploy", vec![approve("sure", "Delete {{ name }}?", 1)])]);
    sim.settle();
    sim.run.spec.approvals.push(Approval { verdict: Verdict::Reject, ..yes("bob") });
    assert_eq!(sim.finish().message, "step `sure`: bob has rejected: Delete x?");
}

#[test]
fn a_requester_who_is_not_known_cannot_be_told_from_others() {
    let mut sim = Sim::new(vec![plan("deploy", vec![approve("sure", "Delete?", 1)])]);
    sim.run.spec.requested_by = None;
    assert_eq!(sim.finish().reason, "RequesterUnknown");
}

#[test]
fn a_pause_takes_its_time_and_none_while_the_instance_is_paused() {
    let mut sim = Sim::new(vec![plan("deploy", vec![pause("rest", "10s")])]);
    sim.settle();
    sim.paused = true;
    sim.now += std::time::Duration::from_secs(100);
    sim.settle();
    assert_eq!(sim.status().phase, Phase::Running);
    sim.paused = false;
    sim.settle();
    assert_eq!(sim.status().phase, Phase::Running);
    assert_eq!(sim.finish().phase, Phase::Succeeded);
}

#[test]
fn a_timeout_says_how_long_and_what_was_last() {
    let saying = |step: Step, words: &str| Step { message: Some(text(words)), ..step };
    // Attempts: their last reason stands beside the words of the step.
    let exec = saying(exec("run", "a").idempotent().retries(None, 1).timeout("1h30m"), "it is added");
    let mut sim = Sim::new(vec![plan("deploy", vec![exec])]);
    sim.cluster.replies.insert("run".into(), vec![exit(1, ""); 100]);
    let progress = sim.settle();
    assert_eq!(progress.waiting[0].message, "it is added");
    assert_eq!(sim.finish().message, "step `run`: timed out after 1h30m: it is added; a does not exist");
    sim = Sim::new(sim.plans);
    sim.cluster
        .members
        .insert(Member::new("a", None), MemberState { exists: true, ..MemberState::default() });
    sim.cluster.replies.insert("run".into(), vec![exit(1, ""); 100]);
    assert_eq!(
        sim.finish().message,
        "step `run`: timed out after 1h30m: it is added; last attempt: the command ended with exit code 1: no"
    );

    // A Job that is deleted because the time is over.
    let mut sim = Sim::new(vec![plan("deploy", vec![job("add").timeout("1m")])]);
    sim.cluster.job_results.insert("add".into(), vec![JobResult::Reading]);
    sim.settle();
    let (name, job) = sim.cluster.jobs.iter_mut().next().unwrap();
    job.message = Some("container a: ErrImagePull".into());
    let expected = format!(
        "step `add`: timed out after 1m; last attempt: Job {name} was not done: container a: ErrImagePull"
    );
    assert_eq!(sim.finish().message, expected);

    // A phase: what its steps wait for.
    let inner = vec![wait("gate", "spec.size == 4"), apply("late", &["members"])];
    let mut sim = Sim::new(vec![plan("deploy", vec![phase("all", inner).timeout("5m")])]);
    assert_eq!(
        sim.finish().message,
        "step `all`: timed out after 5m; step `all/gate`: `spec.size == 4` is not true yet"
    );

    // An unknown value: the words of the step do not say it.
    let wait = saying(wait("quorum", "refs.api.ok").timeout("5m"), "too few members");
    let mut sim = Sim::new(vec![plan("deploy", vec![wait])]);
    sim.cluster.refs.insert("api".into(), Var::Unknown("it is not reached".into()));
    let message = sim.finish().message.clone();
    assert!(message.starts_with("step `quorum`: timed out after 5m: too few members; "), "{message}");
    assert!(message.contains("it is not reached"), "{message}");
}
