//! Statuses of runs that somebody deletes.

use super::*;

fn deployed() -> World {
    let resource = "
children:
  - {id: c, template: templates/c.yaml}
plans:
  deploy:
    steps:
      - {name: all, apply: [c]}
      - {name: gate, wait: {until: \"children.c.data.open == 'yes'\"}, timeout: 1h}
  other:
    steps:
      - {name: note, record: {note: \"'other'\"}}
";
    let mut world =
        World::with_runs(package(resource, &[("c", config("{{ name }}-c"))]), &json!({"text": "x"}));
    world.settle();
    world
}

fn open(world: &mut World) {
    world.write("ConfigMap/a-c", |object| object["data"]["open"] = "yes".into());
}

/// Decides and acts; the status of the instance is written when nothing is left to do.
fn settle(world: &mut World) -> Verdict {
    let verdict = world.settle();
    if let Some(patch) = status_patch(&world.instance["status"], &world.decide().status.unwrap(), "t") {
        server::merge(&mut world.instance["status"], &patch);
    }
    verdict
}

fn wipe(world: &mut World, run: &str) {
    world.store().runs.get_mut(run).unwrap().as_object_mut().unwrap().remove("status");
}

#[test]
fn a_rollout_that_has_succeeded_is_not_repeated_though_its_status_is_deleted() {
    for with_other in [false, true] {
        let mut world = deployed();
        open(&mut world);
        assert_eq!(settle(&mut world), Verdict::Ready { children: 1 });
        if with_other {
            // The status of the instance shows another run now; its history shows both.
            request(&mut world, "mine", "other");
            settle(&mut world);
        }
        let runs = world.phases().len();
        wipe(&mut world, "a-1");
        world.restart();
        assert_eq!(settle(&mut world), Verdict::Ready { children: 1 });
        assert_eq!(world.phases().len(), runs, "{:?}", world.phases());
        let status = &world.store().runs["a-1"]["status"];
        assert_eq!((&status["phase"], &status["reason"]), (&json!("Failed"), &json!("StateLost")));
        // It still is what the next change is compared with.
        world.edit(json!({"text": "y"}));
        settle(&mut world);
        assert_eq!(world.phases().len(), runs + 1);
        assert_eq!(world.value("a-c", "text"), "y");
    }
}

#[test]
fn a_rollout_whose_status_is_deleted_on_its_way_is_not_repeated_by_itself() {
    for forgets_all in [false, true] {
        let mut world = deployed();
        settle(&mut world);
        assert_eq!(world.phases(), [("deploy".into(), Phase::Running)]);
        wipe(&mut world, "a-1");
        if forgets_all {
            world.instance["status"] = json!({});
        }
        world.restart();
        let Verdict::Stalled { message, .. } = settle(&mut world) else { panic!() };
        assert!(
            message.contains("its state is lost") && message.contains("Delete this PlanRun"),
            "{message}"
        );
        assert_eq!(world.phases(), [("deploy".into(), Phase::Failed)]);
        // A person has it repeated.
        world.store().runs.clear();
        settle(&mut world);
        assert_eq!(world.phases(), [("deploy".into(), Phase::Running)]);
    }
}
