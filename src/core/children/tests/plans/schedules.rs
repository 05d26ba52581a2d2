//! Runs of schedules beside runs that last.

use super::*;
use crate::plan;

/// An instance whose plan is due each minute, and whose first run of it waits.
fn waiting(concurrency: &str) -> World {
    let resource = format!(
        "
refs:
  - {{id: opener, apiVersion: v1, kind: Secret, name: opener, optional: true}}
children:
  - {{id: a, template: templates/a.yaml}}
plans:
  deploy:
    steps:
      - {{name: all, apply: [a]}}
  nightly:
    trigger: {{schedule: '* * * * *'}}
    exclusive: false
    concurrency: {concurrency}
    steps:
      - {{name: gate, wait: {{until: refs.opener is defined}}}}
"
    );
    let mut world =
        World::with_runs(package(&resource, &[("a", config("{{ name }}-a"))]), &json!({"text": "x"}));
    world.instance["metadata"]["creationTimestamp"] = world.runs.time().to_string().into();
    world.settle();
    world.now += Duration::from_secs(70);
    world.settle();
    assert_eq!(runs(&world), [Phase::Running], "the first one");
    world
}

/// The runs of the schedule, from the oldest.
fn runs(world: &World) -> Vec<Phase> {
    let phases = world.phases().into_iter();
    phases.filter(|(plan, _)| plan == "nightly").map(|(_, phase)| phase).collect()
}

/// The time of a run that is skipped has been used: no other one is created for it.
#[test]
fn due_run_beside_an_active_one_is_skipped_once() {
    let mut world = waiting("Forbid");
    for skipped in 1..4 {
        world.now += Duration::from_secs(60);
        world.settle();
        let runs = runs(&world);
        assert_eq!(runs.iter().filter(|phase| **phase == Phase::Cancelled).count(), skipped, "{runs:?}");
        assert_eq!(runs.len(), skipped + 1, "{runs:?}");
    }
    let time = |run: &Value| run["metadata"]["annotations"][plan::SCHEDULED_AT].to_string();
    let times: BTreeSet<String> =
        world.runs.runs.values().filter(|run| run["spec"]["plan"] == "nightly").map(time).collect();
    assert_eq!(times.len(), 4, "{times:?}");
    world.restart();
    world.settle();
    assert_eq!(runs(&world).len(), 4);
    world.foreign.push(referred(json!({"metadata": {"name": "opener", "namespace": "n"}}), true));
    world.settle();
    assert!(runs(&world).contains(&Phase::Succeeded), "{:?}", runs(&world));
}

/// A person who cancels a run that waits does not get another one for the same time.
#[test]
fn a_run_that_is_cancelled_before_it_begins_is_not_created_again() {
    let mut world = waiting("Queue");
    world.now += Duration::from_secs(60);
    world.settle();
    assert_eq!(runs(&world), [Phase::Running, Phase::Pending]);
    let pending = world.runs.runs.values_mut().find(|run| run["status"]["phase"] == "Pending");
    pending.unwrap()["spec"]["cancel"] = true.into();
    world.settle();
    assert_eq!(runs(&world), [Phase::Running, Phase::Cancelled]);
}
