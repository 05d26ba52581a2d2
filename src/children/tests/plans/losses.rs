//! Lost children, and conditions.

use super::*;

fn package_of(more: &str) -> Arc<Package> {
    let resource = format!(
        "
children:
  - {{id: m, template: templates/m.yaml, onLoss: failover, forEach: {{in: range(spec.size), as: i, key: i}}, lostWhen: self.data.broken is defined}}
plans:
  deploy:
    steps:
      - {{name: all, apply: [m]}}
  failover:
    steps:
      - {{name: note, record: {{lost: run.lost}}}}
      - {{name: again, forEach: {{in: run.lost, as: lost}}, delete: ['m[{{{{ lost.key }}}}]']}}
      - {{name: back, apply: [m]}}
{more}"
    );
    package(&resource, &[("m", config("{{ name }}-{{ i }}"))])
}

fn deployed(more: &str) -> World {
    let mut world = World::with_runs(package_of(more), &json!({"size": 2, "text": "x"}));
    assert_eq!(world.settle(), Verdict::Ready { children: 2 });
    world.log.clear();
    world
}

#[test]
fn a_child_that_meets_lost_when_is_lost() {
    let mut world = deployed("");
    world.write("ConfigMap/a-1", |object| object["data"]["broken"] = "yes".into());
    assert_eq!(world.settle(), Verdict::Ready { children: 2 });
    assert_eq!(world.phases()[1], ("failover".into(), Phase::Succeeded));
    assert_eq!(world.log, ["Delete a-1", "Create m[1]"]);
}

#[test]
fn what_a_step_has_deleted_is_not_lost() {
    let mut world = deployed("  drop:\n    steps:\n      - {name: drop, delete: ['m[0]']}\n");
    request(&mut world, "mine", "drop");
    assert_eq!(world.settle(), Verdict::Ready { children: 2 });
    let plans: Vec<String> = world.phases().into_iter().map(|(plan, _)| plan).collect();
    assert!(!plans.contains(&"failover".to_owned()), "{plans:?}");
    assert_eq!(world.log, ["Delete a-0", "Create m[0]"]);
}

#[test]
fn a_condition_does_not_count_while_it_reads_what_a_run_awaits() {
    let condition = |during: &str| {
        format!(
            "  replace:\n    steps:\n      - {{name: mark, record: {{marked: \"'yes'\"}}}}\n      - {{name: drop, delete: ['m[0]']}}\n      - {{name: back, apply: ['m[0]']}}\n  \
             alarm:\n    exclusive: false\n    trigger: {{condition: \"record.marked is defined and children.m[0] is not ready\", for: 0s, {during}}}\n    \
             steps:\n      - {{name: note, record: {{alarm: \"'yes'\"}}}}\n"
        )
    };
    for (during, count) in [("cooldown: 1h", 0), ("cooldown: 1h, during: always", 1)] {
        let mut world = deployed(&condition(during));
        world.quick = false;
        request(&mut world, "mine", "replace");
        world.settle();
        let alarms = world.phases().iter().filter(|(plan, _)| plan == "alarm").count();
        assert_eq!(alarms, count, "{during}: {:?}", world.phases());
    }
}

/// A manager that dies while it recreates a child leaves a note on the instance.
#[test]
fn what_is_recreated_is_not_lost() {
    let mut world = deployed("");
    let note = crate::children::names::recreating("m[1]");
    world.instance["metadata"]["annotations"] = json!({note.as_str(): "m[1]"});
    world.remove("ConfigMap/a-1");
    assert_eq!(world.settle(), Verdict::Ready { children: 2 });
    assert_eq!(world.log, ["Create m[1]"]);
    assert!(world.instance["metadata"]["annotations"].get(&note).is_none(), "the note goes");
    // The next time it is lost.
    world.remove("ConfigMap/a-1");
    world.settle();
    assert_eq!(world.phases()[1], ("failover".into(), Phase::Succeeded));
}
