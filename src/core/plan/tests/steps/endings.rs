//! Interrupted, cancelled and retried runs.

use std::time::Duration;

use serde_json::json;

use super::super::build::{StepBuild, apply, approve, fail, http, job, patch, plan, step, text, wait};
use super::super::sim::{Sim, cut, status};
use crate::package::plan::{Action, Call, Of, Step};
use crate::plan::request::CallFailure;
use crate::plan::{Directive, Ending, JobResult, OtherRun, Phase, PlanRun, StepPhase, retried};

#[test]
fn interruption_settles_what_is_in_flight_first() {
    let ending =
        Ending { phase: Phase::Interrupted, reason: "Interrupted", message: "failover goes first".into() };
    let mut sim = Sim::new(vec![plan(
        "deploy",
        vec![http("book", "POST", "http://h/b").retries(None, 2), job("slow"), apply("never", &["a"])],
    )]);
    sim.silent = true;
    sim.turn();
    sim.turn();
    sim.restart();
    sim.directive = Directive::Settle(ending.clone());
    (0..5).for_each(|_| assert!(sim.turn()));
    assert_eq!(sim.status().phase, Phase::Running, "the request is repeated until it is answered");
    sim.silent = false;
    sim.settle();
    assert_eq!(sim.status().phase, Phase::Interrupted);
    assert_eq!((sim.phase_of("book"), sim.phase_of("slow")), (Some(StepPhase::Succeeded), None));
    // The run resumes, and is interrupted in its Job.
    sim.directive = Directive::Continue;
    sim.status_mut().phase = Phase::Running;
    sim.cluster.job_results.insert("slow".into(), vec![JobResult::Reading]);
    sim.settle();
    sim.directive = Directive::Settle(ending);
    sim.settle();
    assert_eq!(sim.status().phase, Phase::Interrupted);
    assert!(sim.cluster.jobs.is_empty());
    sim.directive = Directive::Continue;
    sim.status_mut().phase = Phase::Running;
    assert_eq!(sim.finish().phase, Phase::Succeeded);
    let slow = sim.status().step("slow").unwrap();
    assert_eq!((slow.attempt, slow.failures), (2, 0));
}

#[test]
fn messages_of_a_run_contain_no_unsafe_characters() {
    let message = "over\u{1b}[2J\nthere \u{202e}now";
    let shown = "over\\u{1b}[2J there \\u{202e}now";
    let text = format!("{{{{ {} }}}}", json!(message));
    let mut sim = Sim::new(vec![plan("deploy", vec![fail("stop", &text)])]);
    let status = sim.finish();
    assert_eq!((status.phase, &status.message), (Phase::Failed, &format!("step `stop`: {shown}")));
    assert_eq!(status.steps[0].message, shown);
    let mut sim = Sim::new(vec![plan("deploy", vec![approve("ask", &text, 1)])]);
    sim.settle();
    assert_eq!(sim.status().step("ask").unwrap().message, shown);
}

/// Between its attempts a request without an answer is in flight as well, whatever retries its step has.
#[test]
fn a_request_without_an_answer_is_repeated_until_it_is_settled() {
    let ending = Ending { phase: Phase::Cancelled, reason: "Cancelled", message: "by a person".into() };
    for (step, ended) in [
        (http("book", "POST", "http://h/b").retries(None, 2), Phase::Cancelled),
        (http("book", "POST", "http://h/b").retries(Some(1), 2), Phase::Cancelled),
        (http("book", "POST", "http://h/b"), Phase::Cancelled),
        // The request is not settled within its timeout.
        (http("book", "POST", "http://h/b").timeout("8s"), Phase::Failed),
    ] {
        let mut sim = Sim::new(vec![plan("deploy", vec![step, apply("never", &["a"])])]);
        let not_sent = || Err(CallFailure::NotSent("refused".into()));
        let replies = vec![cut(), cut(), not_sent(), status(503, json!(null)), cut()];
        sim.cluster.replies.insert("book".into(), replies);
        while sim.cluster.requests.is_empty() {
            sim.turn();
        }
        sim.directive = Directive::Settle(ending.clone());
        sim.finish();
        assert_eq!(sim.status().phase, ended, "{:?}", sim.status());
        assert_eq!(sim.phase_of("never"), None);
        let keys: std::collections::BTreeSet<_> =
            sim.cluster.requests.iter().map(|(_, key, _)| key).collect();
        assert_eq!(keys.len(), 1);
        if ended == Phase::Cancelled {
            assert_eq!(sim.phase_of("book"), Some(StepPhase::Succeeded));
            assert_eq!(sim.cluster.requests.len(), 6);
        }
    }
}

#[test]
fn a_paused_run_is_not_cancelled_before_its_request_is_settled() {
    let steps = vec![http("book", "POST", "http://h/b").retries(None, 2)];
    let mut sim = Sim::new(vec![plan("deploy", steps)]);
    sim.cluster.replies.insert("book".into(), vec![cut()]);
    while sim.cluster.requests.is_empty() {
        sim.turn();
    }
    sim.paused = true;
    let message = "by a person".into();
    sim.directive = Directive::Settle(Ending { phase: Phase::Cancelled, reason: "Cancelled", message });
    for _ in 0..5 {
        sim.turn();
    }
    assert_eq!((sim.status().phase, sim.cluster.requests.len()), (Phase::Running, 1));
    sim.paused = false;
    sim.finish();
    assert_eq!((sim.phase_of("book"), sim.cluster.requests.len()), (Some(StepPhase::Succeeded), 2));
}

#[test]
fn a_cancelled_run_deletes_its_job_and_stays_cancelled() {
    let ending =
        Ending { phase: Phase::Cancelled, reason: "Cancelled", message: "the run was cancelled".into() };
    for directive in [Directive::Settle(ending.clone()), Directive::Abandon(ending)] {
        let mut sim = Sim::new(vec![plan("deploy", vec![job("slow"), apply("never", &["a"])])]);
        sim.cluster.job_results.insert("slow".into(), vec![JobResult::Reading]);
        sim.settle();
        assert_eq!(sim.cluster.jobs.len(), 1);
        sim.directive = directive;
        sim.settle();
        assert_eq!((sim.status().phase, sim.cluster.jobs.len()), (Phase::Cancelled, 0));
        assert!(sim.decide().status.is_none() && sim.cluster.writes.is_empty());
    }
}

/// The requested run is Pending, for its instance does not exist.
#[test]
fn a_cancelled_run_cancels_the_run_that_it_has_requested() {
    let of = Of { gvk: crate::api::Gvk::new("e/v1", "Etcd"), name: text("other") };
    let call = Call { plan: "restore".into(), of: Some(of), params: None };
    let mut sim =
        Sim::new(vec![plan("deploy", vec![step("other", Action::Plan(call)), apply("never", &["a"])])]);
    while sim.cluster.runs.is_empty() {
        sim.turn();
    }
    for run in sim.cluster.runs.values_mut() {
        let OtherRun::Found { phase, .. } = run else { panic!("{run:?}") };
        *phase = Phase::Pending;
    }
    sim.settle();
    assert_eq!(sim.status().phase, Phase::Running);
    let message = "the run was cancelled".into();
    sim.directive = Directive::Settle(Ending { phase: Phase::Cancelled, reason: "Cancelled", message });
    sim.settle();
    assert_eq!(sim.status().phase, Phase::Cancelled, "{}", sim.status().message);
    let is_cancelled = |run: &OtherRun| matches!(run, OtherRun::Found { phase: Phase::Cancelled, .. });
    assert!(sim.cluster.runs.values().all(is_cancelled));
}

#[test]
fn a_retried_run_continues_at_its_failed_step() {
    let steps = vec![
        job("add").output("id", "message.id"),
        http("book", "POST", "http://h/{{ outputs.add.id }}"),
        apply("end", &["a"]),
    ];
    let mut sim = Sim::new(vec![plan("deploy", steps)]);
    sim.cluster.replies.insert("book".into(), vec![status(422, json!(null))]);
    assert_eq!(sim.finish().phase, Phase::Failed);
    let now = "2026-01-01T01:00:00Z".parse().unwrap();
    let retry = retried(&sim.run, now);
    sim.run = PlanRun { name: "x-2".into(), uid: "second".into(), status: Some(retry), ..sim.run.clone() };
    sim.restart();
    sim.cluster.by_key.clear();
    sim.history.clear();
    assert_eq!(sim.finish().phase, Phase::Succeeded);
    assert_eq!(sim.cluster.created_jobs.len(), 1, "a step that has succeeded does not run again");
    assert_eq!(sim.cluster.requests[0].1, sim.cluster.requests[1].1, "the key is that of the first run");
    assert_eq!(sim.status().step("book").unwrap().attempt, 2);
}

#[test]
fn a_patch_is_tried_again_until_the_timeout_of_its_step() {
    let again = || Err(CallFailure::TryAgain("too many requests".into(), Some(Duration::from_secs(7))));
    let run = |step: Step, replies: Vec<_>| {
        let mut sim = Sim::new(vec![plan("deploy", vec![step])]);
        sim.cluster.replies.insert("mark".into(), replies);
        sim.finish();
        (sim.status().phase, sim.status().reason.clone(), sim.cluster.requests.len())
    };
    assert_eq!(run(patch("mark"), vec![again(); 9]), (Phase::Succeeded, String::new(), 10));
    let refused = Err(CallFailure::Refused("no such object".into()));
    assert_eq!(run(patch("mark"), vec![again(), refused]), (Phase::Failed, "Refused".into(), 2));
    assert_eq!(
        run(patch("mark").retries(Some(1), 2), vec![again(); 20]),
        (Phase::Failed, "TryAgain".into(), 2)
    );
    let (phase, reason, requests) = run(patch("mark").timeout("20s"), vec![again(); 20]);
    assert_eq!((phase, reason.as_str(), requests), (Phase::Failed, "Timeout", 3));
}

/// A manager that dies loses at most an eighth of a step's timeout of its waiting time.
#[test]
fn waiting_time_of_a_step_survives_restarts() {
    let mut sim = Sim::new(vec![plan("deploy", vec![wait("ready", "spec.never is defined").timeout("10m")])]);
    let from = sim.now;
    for _ in 0..1000 {
        let wake = sim.settle().wake;
        if sim.status().phase != Phase::Running {
            break;
        }
        sim.now += wake.unwrap().min(Duration::from_secs(20));
        // The manager dies every two minutes.
        if sim.now.checked_sub(from).unwrap().as_secs().is_multiple_of(120) {
            sim.restart();
        }
    }
    assert_eq!((sim.status().phase, sim.status().reason.as_str()), (Phase::Failed, "Timeout"));
    let passed = sim.now.checked_sub(from).unwrap();
    assert!(passed >= Duration::from_secs(600) && passed <= Duration::from_secs(1200), "{passed:?}");
    assert!(sim.history.len() < 20, "{}", sim.history.len());
}
