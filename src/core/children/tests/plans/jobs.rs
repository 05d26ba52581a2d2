//! Jobs of steps as decisions see them.

use super::*;

const PLANS: &str = "
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

const JOB: &str = "apiVersion: batch/v1
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
    Arc::new(Referred {
        namespace: Some("n".into()),
        name: "j-1".into(),
        value: Arc::new(value),
        ready: false,
    })
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
    forged["metadata"]["ownerReferences"] = json!([]);
    let forged =
        Referred { namespace: Some("n".into()), name: "j-2".into(), value: Arc::new(forged), ready: false };
    world.foreign = vec![Arc::new(forged)];
    assert!(awaited(&world).ends_with("it has no pod"), "{}", awaited(&world));
    // Once it runs, its pods are not watched any more.
    world.store().jobs[0]["status"] = json!({"active": 1, "ready": 1});
    assert!(!asks_for_pods(&world) && awaited(&world).ends_with("is not done"));
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
