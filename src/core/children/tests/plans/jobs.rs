//! Jobs of steps as decisions see them.

use super::*;

pub(super) const PLANS: &str = "
children:
  - {id: c, template: templates/c.yaml}
plans:
  deploy:
    steps:
      - {name: all, apply: [c]}
  work:
    steps:
      - {name: work, job: {template: templates/job.yaml}, timeout: 1h}
";

pub(super) const JOB: &str = "apiVersion: batch/v1
kind: Job
spec: {template: {spec: {containers: [{name: main, image: \"example.com/none:1\"}]}}}
";

/// What the run waits for.
fn awaited(world: &World) -> String {
    let decision = world.decide();
    let waits = |finding: &Finding| matches!(finding, Finding::RunWaits { .. });
    decision.findings.iter().find(|finding| waits(finding)).map(ToString::to_string).unwrap_or_default()
}

fn pod(job: &Value, status: &Value) -> Arc<Referred> {
    let value = json!({
        "metadata": {"name": "j-1", "namespace": "n", "uid": "p",
            "labels": {"batch.kubernetes.io/controller-uid": job["metadata"]["uid"]},
            "ownerReferences": [{"controller": true, "uid": job["metadata"]["uid"]}]},
        "status": status,
    });
    referred(value, false)
}

#[test]
fn a_step_says_why_the_pod_of_its_job_does_not_run() {
    let package = package(PLANS, &[("c", config("{{ name }}-c")), ("job", JOB.to_owned())]);
    let mut world = World::with_runs(package, &json!({}));
    world.settle();
    request(&mut world, "mine", "work");
    world.settle();
    let asks_for_pods =
        |world: &World| world.decide().needs.watches.iter().any(|want| &*want.gvk.kind == "Pod");
    // The Job may still be starting: its pods are not watched.
    assert!(awaited(&world).ends_with("is not done"), "{}", awaited(&world));
    assert!(!asks_for_pods(&world) && world.decide().again.is_some_and(|wait| wait.as_secs() <= 5));
    world.now += Duration::from_secs(10);
    assert!(awaited(&world).ends_with("is not done: it has no pod"), "{}", awaited(&world));
    let job = world.store().jobs[0].clone();
    for (status, why) in [
        (
            json!({"phase": "Pending", "containerStatuses": [{"name": "main", "state": {"waiting": {"reason": "ErrImagePull"}}}]}),
            "is not done: pod j-1: container main: ErrImagePull",
        ),
        (
            json!({"phase": "Pending", "containerStatuses": [{"name": "main", "state": {"waiting": {"reason": "CreateContainerConfigError"}}}]}),
            "is not done: pod j-1: container main: CreateContainerConfigError",
        ),
        (
            json!({"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes are available"}]}),
            "0/1 nodes are available",
        ),
        (json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}), "is not done"),
    ] {
        world.foreign = vec![pod(&job, &status)];
        assert!(awaited(&world).ends_with(why), "{}", awaited(&world));
    }
    // Labels alone prove nothing.
    let mut forged = (*pod(&job, &json!({"phase": "Pending"})).value).clone();
    (forged["metadata"]["name"], forged["metadata"]["ownerReferences"]) = ("j-2".into(), json!([]));
    world.foreign = vec![referred(forged, false)];
    assert!(awaited(&world).ends_with("it has no pod"), "{}", awaited(&world));
    // Once it runs, its pods are not watched any more.
    world.store().jobs[0]["status"] = json!({"active": 1, "ready": 1});
    assert!(!asks_for_pods(&world) && awaited(&world).ends_with("is not done"));
}

/// Goes on until a Job is to be created. Returns it.
fn next_job(world: &mut World) -> Value {
    let created = |action: &Action| match action {
        Action::Run(run) => match &**run {
            RunAction::Create(RunObject::Job, job) => Some((**job).clone()),
            _ => None,
        },
        _ => None,
    };
    for _ in 0..50 {
        let decision = world.decide();
        if let Some(job) = decision.actions.iter().find_map(created) {
            return job;
        }
        world.carry_out(decision.actions, decision.target_changes);
    }
    panic!("no Job is created: {:?}", world.phases());
}

/// A tenant creates an object under the name of the Job of a step before the manager does, with the labels of the manager's.
#[test]
fn a_job_that_the_manager_has_not_made_fails_the_attempt_and_is_left_alone() {
    let package = package(PLANS, &[("c", config("{{ name }}-c")), ("job", JOB.to_owned())]);
    let forgeries: [fn(&mut World, Value); 3] = [
        |world, mut job| {
            job["metadata"]["annotations"] = Value::Null;
            world.store().jobs.push(job);
        },
        |world, mut job| {
            job["metadata"]["annotations"]["operetta.dev/run-proof"] = "0123456789abcdef".into();
            world.store().jobs.push(job);
        },
        // The API server has one without the labels, which no watch brings.
        |world, job| {
            world.store().calls.taken.insert(job["metadata"]["name"].as_str().unwrap().into());
        },
    ];
    for forge in forgeries {
        let mut world = World::with_runs(Arc::clone(&package), &json!({}));
        world.settle();
        request(&mut world, "mine", "work");
        let mut job = next_job(&mut world);
        let name = job["metadata"]["name"].clone();
        job["metadata"]["uid"] = "forged".into();
        job["status"] = json!({"conditions": [{"type": "Complete", "status": "True"}]});
        forge(&mut world, job);
        let before = world.store().jobs.clone();
        world.settle();
        let status = world.store().runs["mine"]["status"].clone();
        assert_eq!(
            (&status["phase"], &status["reason"]),
            (&json!("Failed"), &json!("NameTaken")),
            "{status}"
        );
        let message =
            format!("step `work`: Job {} was not created by this run: delete it", name.as_str().unwrap());
        assert_eq!(status["message"], message);
        assert_eq!(world.store().jobs, before, "it is neither read, changed nor deleted");
    }
}

/// A volume claim stays for as long as a pod names it, also one that has ended.
#[test]
fn recorded_jobs_are_deleted_when_a_volume_is_being_deleted() {
    let mut world =
        World::with_runs(package(PLANS, &[("c", config("{{ name }}")), ("job", JOB.to_owned())]), &json!({}));
    world.settle();
    let ended = |name: &str, ttl: Value| {
        json!({"metadata": {"name": name, "namespace": "n", "uid": name, "resourceVersion": "1"},
            "spec": {"ttlSecondsAfterFinished": ttl}, "status": {"conditions": [{"type": "Complete", "status": "True"}]}})
    };
    world.store().jobs = vec![ended("recorded", json!(600)), ended("unread", Value::Null)];
    let deleted = |world: &World| -> Vec<String> {
        let actions = world.decide().actions;
        let name = |action: &Action| match action {
            Action::Run(run) => match &**run {
                RunAction::Delete(RunObject::Job, job) => Some(job.name.clone()),
                _ => None,
            },
            _ => None,
        };
        actions.iter().filter_map(name).collect()
    };
    assert!(deleted(&world).is_empty());
    let claim = world.objects.get_mut("ConfigMap/a").unwrap();
    claim.terminating = true;
    claim.held_by = vec!["kubernetes.io/pvc-protection".into()];
    assert_eq!(deleted(&world), ["recorded"]);
}
