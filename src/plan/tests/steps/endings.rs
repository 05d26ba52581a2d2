//! Interrupted, cancelled and retried runs.

use serde_json::json;

use super::super::build::{apply, http, job, plan};
use super::super::sim::{Sim, cut, status};
use crate::plan::request::CallFailure;
use crate::plan::{Directive, Ending, JobResult, Phase, PlanRun, StepPhase, retried};

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
    // It resumes, and is interrupted in its Job.
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

/// Between its attempts a request without an answer is in flight as well, whatever retries its step has.
#[test]
fn a_request_without_an_answer_is_repeated_until_it_is_settled() {
    let ending = Ending { phase: Phase::Cancelled, reason: "Cancelled", message: "by a person".into() };
    for (step, ended) in [
        (http("book", "POST", "http://h/b").retries(None, 2), Phase::Cancelled),
        (http("book", "POST", "http://h/b").retries(Some(1), 2), Phase::Cancelled),
        (http("book", "POST", "http://h/b"), Phase::Cancelled),
        // Not within its timeout.
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
