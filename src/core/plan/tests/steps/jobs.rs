//! Steps that run a Job.

use std::time::Duration;

use serde_json::json;

use super::super::build::{StepBuild, apply, http, job, phase, plan};
use super::super::sim::Sim;
use crate::plan::{JobResult, Phase, RecordedFact};

#[test]
fn a_job_runs_once_and_hands_over_its_outputs() {
    let steps = vec![
        job("add").output("id", "message.id").records("member", "outputs.id"),
        http("tell", "POST", "http://h/{{ outputs.add.id }}"),
    ];
    let mut sim = Sim::new(vec![plan("deploy", steps)]);
    assert_eq!(sim.finish().phase, Phase::Succeeded);
    assert_eq!(sim.cluster.created_jobs.len(), 1);
    assert_eq!(sim.status().step("add").unwrap().outputs["id"], json!(7));
    assert_eq!(sim.status().record["member"], RecordedFact { value: json!(7), sequence: 1 });
    assert!(sim.status().step("add").unwrap().objects[0].uid.is_some());
    // Its result was recorded before it got a TTL.
    assert!(sim.cluster.jobs.values().all(|job| job.has_ttl));
}

#[test]
fn a_failed_job_is_retried_under_another_name() {
    let mut sim = Sim::new(vec![plan("deploy", vec![job("add").retries(Some(3), 5)])]);
    sim.cluster.job_results.insert("add".into(), vec![JobResult::Failed("exit code 1".into()); 2]);
    assert_eq!(sim.finish().phase, Phase::Succeeded);
    let state = sim.status().step("add").unwrap();
    assert_eq!((state.attempt, state.failures, state.objects.len()), (3, 2, 3));
    let mut names: Vec<_> = sim.cluster.created_jobs.iter().map(|(_, _, name)| name).collect();
    names.dedup();
    assert_eq!(names.len(), 3);
    assert!(sim.status().used_milliseconds >= 15_000);
}

#[test]
fn job_without_retries_fails_its_step_with_the_reason() {
    let mut sim =
        Sim::new(vec![plan("deploy", vec![phase("grow", vec![job("add")]), apply("never", &["a"])])]);
    sim.cluster.job_results.insert("grow/add".into(), vec![JobResult::Failed("exit code 1".into())]);
    let status = sim.finish();
    assert_eq!((status.phase, status.reason.as_str()), (Phase::Failed, "JobFailed"));
    assert!(status.message.starts_with("step `grow/add`: Job x-add-"), "{}", status.message);
    assert!(status.message.ends_with("failed: exit code 1"), "{}", status.message);
    assert_eq!(sim.phase_of("never"), None);
}

#[test]
fn a_recorded_job_that_disappears_is_a_failed_attempt() {
    let mut sim = Sim::new(vec![plan("deploy", vec![job("add")])]);
    sim.cluster.job_results.insert("add".into(), vec![JobResult::Reading]);
    sim.settle();
    assert!(sim.status().step("add").unwrap().objects[0].uid.is_some());
    sim.cluster.jobs.clear();
    assert_eq!(sim.finish().reason, "JobGone");
    assert_eq!(sim.cluster.created_jobs.len(), 1);
}

#[test]
fn missing_outputs_fail_the_step_without_another_job() {
    let mut sim =
        Sim::new(vec![plan("deploy", vec![job("add").output("id", "message.id.x").retries(Some(3), 1)])]);
    sim.cluster.job_results.insert("add".into(), vec![JobResult::Completed(Some("done".into()))]);
    assert_eq!(sim.finish().reason, "OutputsMissing");
    assert_eq!(sim.cluster.created_jobs.len(), 1);
}

#[test]
fn a_job_that_takes_too_long_is_deleted_before_the_step_fails() {
    let mut sim = Sim::new(vec![plan("deploy", vec![job("add").timeout("1m").retries(None, 1)])]);
    sim.cluster.job_results.insert("add".into(), vec![JobResult::Reading]);
    assert_eq!(sim.finish().reason, "Timeout");
    assert!(sim.cluster.jobs.is_empty());
}

#[test]
fn job_whose_pod_does_not_start_is_a_failed_attempt() {
    for (retries, ended, reason) in [(1, Phase::Succeeded, ""), (0, Phase::Failed, "JobNotStarted")] {
        let mut sim = Sim::new(vec![plan("deploy", vec![job("add").retries(Some(retries), 1)])]);
        sim.cluster.job_results.insert("add".into(), vec![JobResult::Reading]);
        while sim.cluster.jobs.is_empty() {
            sim.turn();
        }
        let stuck = sim.cluster.jobs.values_mut().next().unwrap();
        stuck.result = None;
        stuck.message = Some("pod a: container work: ErrImagePull".into());
        stuck.start_left = Some(Duration::from_secs(30));
        for _ in 0..5 {
            sim.turn();
        }
        assert_eq!(sim.cluster.jobs.len(), 1, "it may start yet");
        sim.cluster.jobs.values_mut().next().unwrap().start_left = Some(Duration::ZERO);
        let status = sim.finish().clone();
        assert_eq!((status.phase, status.reason.as_str()), (ended, reason), "{status:?}");
        assert_eq!(sim.cluster.created_jobs.len(), 1 + usize::try_from(retries).unwrap());
        if ended == Phase::Failed {
            assert!(
                status.message.contains("within 5 minutes: pod a: container work: ErrImagePull"),
                "{status:?}"
            );
        }
    }
}
