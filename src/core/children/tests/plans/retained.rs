//! Plans of an instance whose former instance of that name has left objects.

use super::*;

/// The plan records in its first step what the former instance has left.
const RESOURCE: &str = "
children:
  - {id: state, template: templates/state.yaml, deletionPolicy: Retain}
plans:
  deploy:
    steps:
      - {name: know, when: record.primary is undefined, record: {primary: \"retained.state.data.primary | default('m-0')\"}}
      - {name: all, apply: [state]}
      - {name: adopted, when: retained.state is undefined, record: {adopted: true}}
  promote:
    steps:
      - {name: note, record: {primary: \"'m-1'\"}}
      - {name: apply, apply: [state]}
";

#[test]
fn first_step_records_facts_of_the_former_instance() {
    let template = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: \"{{ name }}-state\"}\ndata: {primary: \"{{ record.primary | default('unknown') }}\", text: \"{{ spec.text | default('x') }}\"}\n";
    let mut world = World::with_runs(package(RESOURCE, &[("state", template.to_owned())]), &json!({}));
    assert_eq!(world.settle(), Verdict::Ready { children: 1 });
    assert_eq!(world.value("a-state", "primary"), "m-0");
    request(&mut world, "mine", "promote");
    world.settle();
    assert_eq!(world.value("a-state", "primary"), "m-1");

    world.instance["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    world.settle();
    world.instance["metadata"]["deletionTimestamp"] = Value::Null;
    world.instance["metadata"]["uid"] = "uid-2".into();
    world.instance["metadata"]["finalizers"] = json!([]);
    world.instance["metadata"]["annotations"] = json!({});
    world.instance["status"] = Value::Null;
    world.runs = RunStore::default();
    world.restart();
    world.log.clear();
    // That only retained objects exist makes no difference: the instance is new.
    assert_eq!(world.settle(), Verdict::Ready { children: 1 });
    assert_eq!(world.phases(), [("deploy".into(), Phase::Succeeded)]);
    assert_eq!(world.log, ["Create state"]);
    assert_eq!(world.value("a-state", "primary"), "m-1");
    // `deploy` runs again, and the object is an ordinary child by now.
    world.edit(json!({"text": "y"}));
    assert_eq!(world.settle(), Verdict::Ready { children: 1 });
    assert_eq!(world.phases().len(), 2);
    assert_eq!(world.value("a-state", "primary"), "m-1");
    let runs = world.runs.snapshot(world.now, &world.instance).runs;
    let recorded = format!("{:?}", runs[0].status);
    assert!(recorded.contains("adopted"), "{recorded}");
}
