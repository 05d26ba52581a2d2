//! Objects that a deleted instance of the same name has left: templates and expressions see them before they are adopted.

use super::*;

/// A `ConfigMap` that names the primary, and members that read from it who is primary.
const CLUSTER: &str = "
children:
  - {id: state, template: templates/state.yaml, deletionPolicy: Retain, when: not spec.stop | default(false)}
  - {id: m, template: templates/m.yaml, deletionPolicy: Retain, forEach: {in: range(spec.size), as: i, key: i}}
status:
  left: retained.state.data.primary | default('none')
  leftMembers: retained.m | length
  primary: children.state.data.primary | default('none')
  members: children.m | length
  ready: children.state is ready
  allReady: children.m is ready
";

const STATE: &str = "apiVersion: v1
kind: ConfigMap
metadata: {name: \"{{ name }}-state\"}
data: {primary: \"{{ self.data.primary | default('m-0') }}\"}
";

const MEMBER: &str = "apiVersion: v1
kind: ConfigMap
metadata: {name: \"{{ name }}-m-{{ i }}\"}
data: {role: \"{{ 'primary' if children.state.data.primary == 'm-' ~ i else 'replica' }}\"}
";

fn cluster() -> World {
    let templates = [("state", STATE.to_owned()), ("m", MEMBER.to_owned())];
    let mut world = World::new(package(CLUSTER, &templates), &json!({"size": 2}));
    assert_eq!(world.settle(), Verdict::Ready { children: 3 });
    // A failover.
    world.write("ConfigMap/a-state", |object| object["data"]["primary"] = "m-1".into());
    assert_eq!(world.settle(), Verdict::Ready { children: 3 });
    assert_eq!(value(&world, "a-m-1", "role"), "primary");
    world
}

/// The instance is deleted, and created again under its name.
fn create_again(world: &mut World) {
    world.instance["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    world.settle();
    let metadata = &mut world.instance["metadata"];
    assert_eq!(metadata["finalizers"], json!([]));
    metadata["deletionTimestamp"] = Value::Null;
    metadata["uid"] = "uid-2".into();
    metadata["annotations"] = json!({});
    world.instance["status"] = Value::Null;
    world.restart();
    world.log.clear();
}

fn value(world: &World, name: &str, key: &str) -> Value {
    world.server.objects[&format!("ConfigMap/{name}")]["data"][key].clone()
}

/// A projected status field.
fn shown(world: &World, field: &str) -> Value {
    let status = status_patch(&Value::Null, &world.decide().status.unwrap(), "t").unwrap();
    status[field].clone()
}

#[test]
fn new_instance_reads_and_adopts_retained_objects() {
    let mut world = cluster();
    create_again(&mut world);
    let left = world.snapshot().retained().count();
    assert_eq!(left, 3);
    assert_eq!(world.settle(), Verdict::Ready { children: 3 });
    assert_eq!(world.log, ["Create state", "Create m[0]", "Create m[1]"]);
    assert_eq!(value(&world, "a-state", "primary"), "m-1");
    assert_eq!(
        (value(&world, "a-m-0", "role"), value(&world, "a-m-1", "role")),
        ("replica".into(), "primary".into())
    );
    assert!(world.objects.values().all(|object| *object.instance_uid == *"uid-2"));
    assert_eq!(world.snapshot().retained().count(), 0);
}

#[test]
fn retained_objects_are_visible_but_not_ready_until_adopted() {
    let mut world = cluster();
    create_again(&mut world);
    let fields = ["left", "leftMembers", "primary", "members", "ready", "allReady"];
    let all = |world: &World| Value::Array(fields.iter().map(|field| shown(world, field)).collect());
    assert_eq!(all(&world), json!(["m-1", 2, "m-1", 2, false, false]));
    let decision = world.decide();
    let reason = |(name, _, ready): &ChildLine| (name.clone(), ready.clone().unwrap_err());
    let reasons: BTreeMap<_, _> = decision.children.iter().flatten().map(reason).collect();
    assert!(reasons["state"].contains("is not adopted yet"), "{reasons:?}");
    world.settle();
    assert_eq!(all(&world), json!(["none", 0, "m-1", 2, true, true]));
}

#[test]
fn undesired_retained_objects_stay_visible_and_block_nothing() {
    let mut world = cluster();
    create_again(&mut world);
    world.edit(json!({"size": 1, "stop": true}));
    // The members read the state, which is not in the target.
    assert_eq!(world.settle(), Verdict::Ready { children: 1 });
    assert_eq!(world.log, ["Create m[0]"]);
    assert_eq!(value(&world, "a-m-0", "role"), "replica");
    let fields = ["left", "leftMembers", "primary", "members", "allReady"];
    let all = Value::Array(fields.iter().map(|field| shown(&world, field)).collect());
    assert_eq!(all, json!(["m-1", 1, "m-1", 2, true]));
}

#[test]
fn nothing_is_created_while_retained_objects_are_unknown() {
    let mut world = cluster();
    create_again(&mut world);
    world.lost.insert("ConfigMap".into());
    assert!(world.decide().actions.is_empty(), "{:?}", world.decide().actions);
    world.with(|_, target| {
        let errors = target.items.iter().map(|item| item.desired.as_ref().unwrap_err().reason());
        assert_eq!(errors.collect::<Vec<_>>(), ["DependencyUnknown"; 3]);
    });
}

#[test]
fn an_object_that_the_garbage_collector_deletes_is_not_retained() {
    let mut world = cluster();
    create_again(&mut world);
    for object in world.objects.values_mut() {
        object.owner_reference = true;
    }
    assert_eq!(shown(&world, "left"), "none");
    assert_eq!(shown(&world, "primary"), "none");
}

/// A backup tool restores objects without our entry in their managedFields.
#[test]
fn restored_objects_are_visible_as_well() {
    let mut world = cluster();
    create_again(&mut world);
    for name in ["a-state", "a-m-0", "a-m-1"] {
        world.strip(&format!("ConfigMap/{name}"));
    }
    assert_eq!(world.settle(), Verdict::Ready { children: 3 });
    assert_eq!(value(&world, "a-m-1", "role"), "primary");
}

/// Each instance has an object of its own name, because the name has the uid.
#[test]
fn last_applied_of_several_retained_objects_is_visible() {
    let state = STATE.replace("{{ name }}-state", "{{ name }}-{{ instance.metadata.uid }}");
    let resource = "children:\n  - {id: state, template: templates/state.yaml, deletionPolicy: Retain}\nstatus:\n  left: retained.state.metadata.name | default('none')\n";
    let mut world = World::new(package(resource, &[("state", state)]), &json!({}));
    world.settle();
    world.write("ConfigMap/a-uid-1", |object| object["data"]["primary"] = "m-1".into());
    world.settle();
    create_again(&mut world);
    assert_eq!(world.settle(), Verdict::Ready { children: 1 });
    // The retained object is `self` of the new one, which has another name.
    assert_eq!(value(&world, "a-uid-2", "primary"), "m-1");
    world.write("ConfigMap/a-uid-2", |object| object["data"]["primary"] = "m-2".into());
    world.settle();
    create_again(&mut world);
    world.instance["metadata"]["uid"] = "uid-3".into();
    for (name, applied) in [("a-uid-1", 10), ("a-uid-2", 20)] {
        let object = world.objects.get_mut(&format!("ConfigMap/{name}")).unwrap();
        object.mark = DriftFingerprint::Generation(1, applied);
    }
    assert_eq!(shown(&world, "left"), "a-uid-2");
    world.settle();
    assert_eq!(value(&world, "a-uid-3", "primary"), "m-2");
}
