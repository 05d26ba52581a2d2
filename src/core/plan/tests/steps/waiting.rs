//! What a step waits for: values, approvals, time. What it says when it times out.

use std::time::Duration;

use serde_json::json;

use super::super::build::{StepBuild, apply, approve, exec, job, note, pause, phase, plan, text, wait};
use super::super::sim::{Sim, exit};
use crate::package::plan::{Action, Step};
use crate::plan::{
    Approval, ApprovalDecision, JobResult, Member, MemberState, Phase, Protection, SHOWN_AFTER, StepPhase,
    answered,
};
use crate::template::Var;

#[test]
fn step_with_an_unknown_value_waits_until_its_timeout() {
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
    sim.run.spec.approvals.push(Approval { verdict: ApprovalDecision::Reject, ..yes("bob") });
    assert_eq!(sim.finish().message, "step `sure`: bob has rejected: Delete x?");
}

fn yes(by: &str) -> Approval {
    Approval { step: "sure".into(), verdict: ApprovalDecision::Approve, by: by.into(), ..Approval::default() }
}

const ACCOUNT: &str = "system:serviceaccount:team-a:default";

/// Whoever may create pods in a namespace can act as its accounts, so an admin could approve what they have requested.
#[test]
fn approvals_by_service_accounts_count_only_if_the_step_says_so() {
    let asking = |service_accounts: bool| {
        let mut step = approve("sure", "Sure?", 2);
        if let Action::Approve { service_accounts: counts, .. } = &mut step.action {
            *counts = service_accounts;
        }
        let mut sim = Sim::new(vec![plan("deploy", vec![step])]);
        sim.settle();
        for by in ["bob", ACCOUNT] {
            sim.run.spec.approvals.push(yes(by));
        }
        sim
    };
    let mut sim = asking(false);
    let message = sim.settle().waiting[0].message.clone();
    assert_eq!(message, format!("Sure? (1 of 2 approvals: bob, not counted: {ACCOUNT} (a ServiceAccount))"));
    sim.run.spec.approvals.push(yes("ann"));
    assert_eq!(sim.finish().phase, Phase::Succeeded);
    assert_eq!(asking(true).finish().phase, Phase::Succeeded);
    // A rejection by an account counts.
    let mut sim = asking(false);
    sim.run.spec.approvals.push(Approval { verdict: ApprovalDecision::Reject, ..yes(ACCOUNT) });
    assert_eq!(sim.finish().reason, "Rejected");
}

#[test]
fn waiting_message_shows_the_approvals_so_far() {
    let mut sim = Sim::new(vec![plan("deploy", vec![approve("sure", "Sure?", 2)])]);
    sim.settle();
    sim.run.spec.requested_by = Some("eve".into());
    sim.now += Duration::from_secs(60);
    let now =
        jiff::Timestamp::from_second(1_767_225_600 + i64::try_from(sim.now.as_secs()).unwrap()).unwrap();
    for by in ["eve", "bob", "bob"] {
        sim.run.spec.approvals.push(yes(by));
    }
    let message = sim.settle().waiting[0].message.clone();
    assert_eq!(message, "Sure? (1 of 2 approvals: bob, not counted: eve (the requester))");
    let seen = &sim.status().answers;
    assert!(seen.iter().all(|answer| answer.at == now.to_string()), "{seen:?}");
    assert_eq!(seen.len(), 3);
    assert!(sim.status().message.ends_with(&message));
}

/// The API server compares the groups of a user with those that the status of the step names.
#[test]
fn groups_of_a_step_are_shown_and_bound_to_its_approvals() {
    let with_groups = |groups: &[&str]| {
        let mut step = approve("sure", "Sure?", 1);
        if let Action::Approve { groups: wanted, .. } = &mut step.action {
            *wanted = groups.iter().map(|group| (*group).to_owned()).collect();
        }
        Sim::new(vec![plan("deploy", vec![step])])
    };
    let mut sim = with_groups(&["dba", "leads"]);
    let message = sim.settle().waiting[0].message.clone();
    assert_eq!(message, "Sure? (by members of dba or leads)");
    assert_eq!(sim.status().step("sure").unwrap().groups, ["dba", "leads"]);
    sim.run.spec.approvals.push(yes("bob"));
    assert_eq!(sim.finish().phase, Phase::Succeeded);
    let carried = answered(&sim.run);
    assert_eq!(carried[0].groups, ["dba", "leads"]);
    // Another run that asks the same of fewer people does not take it over.
    for (groups, phase) in [
        (&["dba"][..], Phase::Running),
        (&["dba", "leads"], Phase::Succeeded),
        (&["leads", "x", "dba"], Phase::Succeeded),
        (&[], Phase::Succeeded),
    ] {
        let mut next = with_groups(groups);
        next.run.status.as_mut().unwrap().approvals.clone_from(&carried);
        assert_eq!(next.finish().phase, phase, "{groups:?}");
    }
    let mut unchecked = with_groups(&["dba"]);
    unchecked.run.status.as_mut().unwrap().approvals =
        vec![Approval { message: Some("Sure?".into()), groups: Vec::new(), ..yes("eve") }];
    assert_eq!(unchecked.finish().phase, Phase::Running);
}

#[test]
fn answers_that_the_api_server_has_not_checked_never_count() {
    let mut sim = Sim::new(vec![plan("deploy", vec![approve("sure", "Sure?", 1)])]);
    sim.settle();
    sim.protection.broken = Some("the policy is missing".into());
    sim.run.spec.approvals.push(yes("eve"));
    sim.run.spec.approvals.push(Approval { verdict: ApprovalDecision::Reject, ..yes("eve") });
    let message = sim.settle().waiting[0].message.clone();
    assert!(message.ends_with("but answers do not count now: the policy is missing"), "{message}");
    sim.protection = Protection::default();
    let message = sim.settle().waiting[0].message.clone();
    assert_eq!(message, "Sure? (not counted: eve (not checked by an admission policy))");
    assert!(answered(&sim.run).is_empty());
    sim.run.spec.approvals.push(yes("ann"));
    assert_eq!(sim.finish().phase, Phase::Succeeded);
    assert_eq!(answered(&sim.run).len(), 1);

    // While a changed policy is being checked, an answer waits.
    let mut sim = Sim::new(vec![plan("deploy", vec![approve("sure", "Sure?", 1)])]);
    sim.settle();
    sim.protection.is_unknown = true;
    sim.run.spec.approvals.push(yes("ann"));
    assert_eq!(sim.finish().phase, Phase::Running);
    sim.protection = Protection::default();
    assert_eq!(sim.finish().phase, Phase::Succeeded);
}

#[test]
fn unknown_requester_cannot_be_excluded_from_approving() {
    let mut sim = Sim::new(vec![plan("deploy", vec![approve("sure", "Delete?", 1)])]);
    sim.run.spec.requested_by = None;
    assert_eq!(sim.finish().reason, "RequesterUnknown");
}

#[test]
fn pause_step_does_not_count_time_while_instance_is_paused() {
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

fn saying(step: Step, words: &str) -> Step {
    Step { message: Some(text(words)), ..step }
}

/// Most waits are over at once, and a message about them would be read as trouble.
#[test]
fn a_message_is_shown_once_the_step_has_waited_for_a_while() {
    let steps =
        vec![saying(wait("quorum", "refs.api.ok"), "too few members"), wait("other", "refs.api.more")];
    let mut sim = Sim::new(vec![plan("deploy", steps)]);
    sim.cluster.refs.insert("api".into(), Var::Json(json!({"ok": false, "more": false})));
    let progress = sim.settle();
    assert_eq!(progress.waiting[0].message, "`refs.api.ok` is not true yet");
    assert_eq!(progress.wake, Some(SHOWN_AFTER), "it is decided once more");
    let stored = sim.history.len();
    sim.now += SHOWN_AFTER;
    let progress = sim.settle();
    assert_eq!(progress.waiting[0].message, "too few members");
    assert!(progress.wake > Some(Duration::from_secs(10)), "{:?}", progress.wake);
    assert_eq!(sim.history.len(), stored, "and nothing is written");
    sim.restart();
    assert_eq!(sim.settle().waiting[0].message, "too few members", "a restart hides nothing");
    // Time of the step itself counts.
    sim.cluster.refs.insert("api".into(), Var::Json(json!({"ok": true, "more": false})));
    let progress = sim.settle();
    assert_eq!(progress.waiting[0].message, "`refs.api.more` is not true yet");
    assert!(progress.wake > Some(Duration::from_secs(10)), "a step without a message needs no decision more");
}

#[test]
fn timeout_message_says_how_long_and_what_was_awaited() {
    // Attempts: their last reason stands beside the words of the step.
    let exec = saying(exec("run", "a").idempotent().retries(None, 1).timeout("1h30m"), "it is added");
    let mut sim = Sim::new(vec![plan("deploy", vec![exec])]);
    sim.cluster.replies.insert("run".into(), vec![exit(1, ""); 100]);
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
