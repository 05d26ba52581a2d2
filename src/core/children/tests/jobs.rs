//! Jobs that have completed are done.

use super::*;

const JOB: &str = "apiVersion: batch/v1
kind: Job
metadata: {name: \"{{ name }}-job\", labels: {text: \"{{ spec.text | default('') }}\"}}
spec:
  ttlSecondsAfterFinished: {{ spec.size | default(omit) }}
  template: {spec: {restartPolicy: Never, containers: [{name: a, image: \"{{ spec.host }}\"}]}}
";

/// A Job, and a child that exists only while the Job is ready.
fn world(spec: &Value) -> World {
    let package = package(
        "children:\n  - {id: job, template: templates/job.yaml, readyWhen: self.status.succeeded == 1}\n  - {id: after, template: templates/after.yaml, when: children.job is ready and children.job.status.succeeded == 1}\n",
        &[("job", JOB.to_owned()), ("after", config("{{ name }}-after"))],
    );
    World::new(package, spec)
}

impl World {
    fn complete(&mut self) {
        let complete = json!({"succeeded": 1, "conditions": [{"type": "Complete", "status": "True"}]});
        self.write("Job/a-job", |live| live["status"] = complete);
        self.log.clear();
    }

    fn ttl(&self) -> bool {
        self.server.objects["Job/a-job"]["spec"]["ttlSecondsAfterFinished"].is_number()
    }

    fn creations(&mut self) -> usize {
        self.settle();
        self.log.iter().filter(|line| *line == "Create job").count()
    }
}

#[test]
fn completed_job_is_not_created_again() {
    for spec in [json!({"host": "x", "size": 5}), json!({"host": "x"})] {
        let mut world = world(&spec);
        assert_eq!(world.creations(), 1);
        assert!(!world.ttl(), "it must not be swept before its completion is recorded");
        world.complete();
        assert_eq!(world.settle(), Verdict::Ready { children: 2 });
        assert_eq!(world.ttl(), spec["size"].is_number());
        world.objects.get_mut("Job/a-job").unwrap().terminating = true;
        assert_eq!(world.decide().verdict, Verdict::Ready { children: 2 }, "on its way out");
        world.remove("Job/a-job");
        world.log.clear();
        world.restart();
        assert_eq!(world.settle(), Verdict::Ready { children: 2 });
        assert_eq!((world.names(), &world.log[..]), (vec!["a-after"], &[][..]));
    }
}

#[test]
fn only_another_job_spec_runs_the_job_again() {
    let mut world = world(&json!({"host": "x", "size": 5}));
    world.settle();
    world.complete();
    world.settle();
    world.remove("Job/a-job");
    for spec in [
        json!({"host": "x", "size": 7}),
        json!({"host": "x", "size": 7, "text": "label"}),
        json!({"host": "x"}),
    ] {
        world.edit(spec.clone());
        assert_eq!(world.creations(), 0, "{spec}");
    }
    world.edit(json!({"host": "y"}));
    assert_eq!(world.creations(), 1);
    // The record of the former spec is removed.
    world.complete();
    world.settle();
    let recorded = world.instance["metadata"]["annotations"][names::COMPLETED_JOBS].as_str().unwrap();
    assert_eq!(recorded.len(), 16, "{recorded}");
    // A person removes the record, so that the Job runs once more.
    world.remove("Job/a-job");
    world.instance["metadata"]["annotations"] = json!({});
    assert_eq!(world.creations(), 1);
}

#[test]
fn job_that_has_not_completed_is_created_again() {
    let mut world = world(&json!({"host": "x", "size": 5}));
    world.settle();
    world.remove("Job/a-job");
    world.log.clear();
    assert_eq!(world.creations(), 1);
    // It has no TTL before its completion is recorded, so a failed Job stays.
    assert!(!world.ttl());
}

#[test]
fn completion_is_remembered_while_the_job_cannot_be_rendered() {
    let mut world = world(&json!({"host": "x"}));
    world.settle();
    world.complete();
    world.settle();
    world.remove("Job/a-job");
    world.edit(json!({}));
    assert!(matches!(world.settle(), Verdict::Stalled { .. }));
    world.edit(json!({"host": "x"}));
    assert_eq!(world.creations(), 0);
}
