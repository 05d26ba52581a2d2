//! Deletion of the namespace of an instance: no PlanRun can be created in it, and the memory has the cleanup.

use super::*;

const RESOURCE: &str = "
children:
  - {id: c, template: templates/c.yaml, deletionPolicy: Delete}
plans:
  deploy:
    steps: [{name: all, apply: [c]}]
  cleanup:
    onFailure: FAILURE
    steps:
      - {name: first, record: {first: '1'}}
      - {name: refuse, when: spec.fails, fail: {message: 'no'}}
      - {name: second, record: {second: '2'}}
";

/// An instance that is deleted with its namespace.
fn deleted(on_failure: &str, spec: &Value) -> World {
    let package = package(&RESOURCE.replace("FAILURE", on_failure), &[("c", config("{{ name }}-c"))]);
    let mut world = World::with_runs(package, spec);
    world.settle();
    world.instance["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    world.state.record(&ActionOutcome::NamespaceTerminating, world.now);
    world
}

/// The facts of the memory, and whether it says that the instance has ended.
fn memory(world: &World) -> (Vec<String>, bool) {
    let Some(state) = &world.runs.state else { return (Vec::new(), true) };
    let facts = state["spec"]["record"].as_object().into_iter().flatten().map(|(name, _)| name.clone());
    (facts.collect(), state["spec"]["hasEnded"] == true)
}

#[test]
fn a_cleanup_runs_without_a_plan_run() {
    let mut world = deleted("Hold", &json!({"fails": false, "text": "x"}));
    let mut seen = BTreeSet::new();
    for _ in 0..60 {
        let decision = world.decide();
        if decision.actions.is_empty() || memory(&world).1 {
            break;
        }
        world.carry_out(decision.actions, decision.target_changes);
        seen.extend(memory(&world).0);
        // A manager that starts again goes on, and does not know that the namespace is being deleted.
        world.restart();
    }
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), ["first", "second"]);
    assert!(world.names().is_empty() && memory(&world).1, "{:?}", world.names());
    let runs: Vec<&Value> = world.runs.runs.values().map(|run| &run["spec"]["plan"]).collect();
    assert!(runs.iter().all(|plan| **plan == "deploy"), "{runs:?}");
}

#[test]
fn a_cleanup_that_fails_is_skipped_or_holds() {
    for on_failure in ["Skip", "Hold"] {
        let mut world = deleted(on_failure, &json!({"fails": true, "text": "x"}));
        let verdict = world.settle();
        if on_failure == "Skip" {
            assert!(world.names().is_empty() && memory(&world).1);
            continue;
        }
        assert_eq!(memory(&world), (vec!["first".to_owned()], false));
        let Verdict::Stalled { reason, message } = verdict else { panic!("{verdict:?}") };
        assert_eq!(reason, "CleanupFailed");
        assert!(message.contains("failed: step `refuse`: no; release the instance: annotation"), "{message}");
        world.instance["metadata"]["annotations"][names::SKIP_CLEANUP] = "true".into();
        world.settle();
        assert!(world.names().is_empty() && memory(&world).1);
    }
}
