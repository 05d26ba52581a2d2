//! Deletion of children: approval, retention, ownership, and order.

use super::*;

fn children(policy: &str) -> String {
    format!("children:\n  - id: c\n    template: templates/c.yaml\n    when: spec.size is defined\n{policy}")
}

fn world(policy: &str) -> World {
    let package = package(&children(policy), &[("c", config("{{ name }}-c"))]);
    let mut world = World::new(package, &json!({"size": 1}));
    assert_eq!(world.settle(), Verdict::Ready { children: 1 });
    world.log.clear();
    world
}

fn delete(world: &mut World) {
    world.instance["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    world.log.clear();
}

/// The instance of another uid, after its finalizer was taken off by force.
fn force_removed(world: &mut World) {
    world.instance["metadata"]["uid"] = "uid-2".into();
    world.instance["metadata"]["finalizers"] = json!([]);
    world.log.clear();
}

fn without_owners(world: &mut World) {
    for key in world.objects.keys().cloned().collect::<Vec<_>>() {
        world.write(&key, |live| drop(live["metadata"].as_object_mut().unwrap().remove("ownerReferences")));
    }
}

fn approve(world: &mut World) {
    answer(world, "Approve");
}

fn answer(world: &mut World, verdict: &str) {
    let answer = json!({"step": "approve", "verdict": verdict, "by": "ann"});
    world.runs.patch_deletions(&json!({"approvals": [answer]}));
}

#[test]
fn an_ask_child_is_deleted_only_when_approved() {
    let mut world = world("    deletionPolicy: Ask\n");
    world.edit(json!({}));
    assert_eq!(world.settle(), Verdict::Ready { children: 0 });
    assert_eq!(world.log, ["Ask a-c"]);
    let told = format!("{:?}", world.decide().status);
    assert!(told.contains("DeletionPending") && told.contains("ConfigMap n/a-c (c)"), "{told}");
    approve(&mut world);
    assert_eq!(world.settle(), Verdict::Ready { children: 0 });
    assert!(world.objects.is_empty());
    assert!(!format!("{:?}", world.decide().status).contains("DeletionPending"));
}

#[test]
fn an_ask_child_blocks_the_deletion_of_its_instance() {
    let mut world = world("    deletionPolicy: Ask\n");
    delete(&mut world);
    assert!(
        matches!(world.settle(), Verdict::Deleting { message } if message.contains("operetta plan approve a-delete-"))
    );
    assert_eq!(world.instance["metadata"]["finalizers"], json!([names::FINALIZER]));
    approve(&mut world);
    world.settle();
    assert_eq!(world.log, ["Ask a-c", "Delete a-c"]);
    assert_eq!(world.instance["metadata"]["finalizers"], json!([]));
}

/// The garbage collector leaves an object of which another owner lives.
#[test]
fn a_child_with_another_owner_is_deleted_before_its_instance() {
    let mut world = world("");
    assert!(!prune::has_finalizer(&world.instance));
    world.objects.get_mut("ConfigMap/a-c").unwrap().has_other_owner = true;
    world.settle();
    assert!(prune::has_finalizer(&world.instance));
    delete(&mut world);
    world.settle();
    assert_eq!(world.log, ["Delete a-c"]);
    assert_eq!(world.instance["metadata"]["finalizers"], json!([]));
}

#[test]
fn skip_cleanup_deletes_the_instance_and_keeps_ask_children() {
    let mut world = world("    deletionPolicy: Ask\n");
    delete(&mut world);
    world.instance["metadata"]["annotations"][names::SKIP_CLEANUP] = "true".into();
    world.settle();
    assert_eq!(world.instance["metadata"]["finalizers"], json!([]));
    assert_eq!(world.names(), ["a-c"]);
}

#[test]
fn an_instance_of_a_package_is_retained_unless_the_author_chose() {
    let template =
        "apiVersion: example.org/v1\nkind: Elsewhere\nmetadata: {name: \"{{ name }}\"}\n".to_owned();
    for (policy, retained) in [("", Some(false)), ("    deletionPolicy: Delete\n", None)] {
        let text = format!("children:\n  - id: c\n    template: templates/c.yaml\n{policy}");
        let mut world = World::new(package(&text, &[("c", template.clone())]), &json!({}));
        world.settle();
        let child = world.objects.values().next().unwrap();
        assert_eq!((child.retained, child.owner_reference), (retained, retained.is_none()));
    }
}

#[test]
fn children_of_a_former_instance_follow_their_policy() {
    for (policy, log) in [
        ("    deletionPolicy: Retain\n", vec!["Retain a-c"]),
        ("    deletionPolicy: Ask\n", vec!["Ask a-c"]),
        // It has an ownerReference to the former instance.
        ("", vec![]),
    ] {
        let mut world = world(policy);
        force_removed(&mut world);
        world.instance["spec"] = json!({});
        world.settle();
        assert_eq!(world.log, log, "{policy}");
    }
}

#[test]
fn ordered_children_of_a_deleted_instance_are_pruned_and_orphans_released() {
    let text = "children:\n  - id: c\n    template: templates/c.yaml\n    when: spec.size is defined\n  - id: d\n    template: templates/d.yaml\n    when: spec.size is defined\n    dependsOn: [c]\n  - id: e\n    template: templates/e.yaml\n    when: spec.size is defined\n";
    let templates =
        [("c", config("{{ name }}-c")), ("d", config("{{ name }}-d")), ("e", config("{{ name }}-e"))];
    let mut world = World::new(package(text, &templates), &json!({"size": 1}));
    world.settle();
    assert!(world.objects["ConfigMap/a-e"].owner_reference && !world.objects["ConfigMap/a-e"].guarded);
    without_owners(&mut world);
    force_removed(&mut world);
    world.instance["spec"] = json!({});
    world.settle();
    assert_eq!(world.log, ["Delete a-d", "Orphan a-e", "Delete a-c"]);
}

#[test]
fn orphaning_is_detected_by_finalizer_annotation_or_lost_owner_references() {
    let marked = |world: &mut World| {
        let finalizers = world.instance["metadata"]["finalizers"].as_array_mut();
        finalizers.unwrap().push(names::ORPHAN_FINALIZER.into());
    };
    let noted = |world: &mut World| {
        world.instance["metadata"]["annotations"][names::ORPHANED] = "true".into();
    };
    let stripped = |world: &mut World| {
        without_owners(world);
    };
    for (policy, prepare) in [
        ("    deletionPolicy: Retain\n", &marked as &dyn Fn(&mut World)),
        ("    deletionPolicy: Ask\n", &noted),
        ("", &stripped),
    ] {
        let mut world = world(policy);
        delete(&mut world);
        prepare(&mut world);
        world.settle();
        assert_eq!(world.log, ["Orphan a-c"], "{policy}");
        assert!(!prune::has_finalizer(&world.instance));
    }
}

#[test]
fn namespace_is_deleted_last_and_only_when_empty() {
    let text = "children:\n  - id: ns\n    template: templates/ns.yaml\n    deletionPolicy: Delete\n  - id: c\n    template: templates/c.yaml\n    dependsOn: []\n";
    let space = "apiVersion: v1\nkind: Namespace\nmetadata: {name: space}\n".to_owned();
    let inside = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: in, namespace: space}\n".to_owned();
    let mut world = World::new(package(text, &[("ns", space), ("c", inside)]), &json!({}));
    world.settle();
    assert_eq!(world.objects.len(), 2);
    // Deeper in the graph, and yet last.
    world.objects.get_mut("Namespace/space").unwrap().order = 7;
    delete(&mut world);
    world.occupants.insert("space".into(), "things/space/other".into());
    assert!(
        matches!(world.settle(), Verdict::Deleting { message } if message.contains("things/space/other"))
    );
    assert_eq!(world.log, ["Delete in"]);
    assert!(world.decide().again.is_some());
    world.occupants.clear();
    world.settle();
    assert_eq!(world.log, ["Delete in", "Delete space"]);
}

#[test]
fn objects_of_a_former_child_id_belong_to_the_renamed_child() {
    let text = "children:\n  - id: c\n    template: templates/c.yaml\n    renamedFrom: [old, older]\n  - id: d\n    template: templates/d.yaml\n";
    let reader = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: d}\ndata: {text: \"{{ children.c.metadata.name }}\"}\n";
    let mut world =
        World::new(package(text, &[("c", config("c")), ("d", reader.to_owned())]), &json!({"text": "x"}));
    world.settle();
    let before = world.objects["ConfigMap/c"].uid.clone();
    world.objects.get_mut("ConfigMap/c").unwrap().child = "older".into();
    world.log.clear();
    world.settle();
    assert!(world.log.is_empty(), "what reads it sees it all the time: {:?}", world.log);
    assert_eq!(world.objects["ConfigMap/c"].uid, before);
}

/// A kind of a higher order cannot be listed: the objects that it may depend on are kept, and the condition names it.
#[test]
fn unlisted_kind_delays_the_deletion_of_its_dependencies() {
    let package = package(
        "children:\n  - {id: a, template: templates/a.yaml}\n  - {id: b, template: templates/b.yaml, dependsOn: [a]}\n  - {id: c, template: templates/c.yaml, dependsOn: [b]}\n",
        &[
            ("a", config("{{ name }}-a")),
            ("b", "apiVersion: v1\nkind: Secret\nmetadata: {name: \"{{ name }}-b\"}\n".to_owned()),
            ("c", config("{{ name }}-c")),
        ],
    );
    let mut world = World::new(package, &json!({}));
    world.settle();
    let secret = world.objects.remove("Secret/a-b").unwrap();
    world.unlisted = vec!["Secret".into()];
    delete(&mut world);
    let verdict = world.settle();
    assert!(
        matches!(&verdict, Verdict::Deleting { message } if message.contains("each Secret of v1") && message.contains("forbidden")),
        "{verdict:?}"
    );
    assert!(world.decide().status.is_some(), "the status is not written");
    assert_eq!(world.log, ["Delete a-c"], "what depends on it is deleted");
    // A kind that the package does not have may be of any order.
    world.unlisted = vec!["Pod".into()];
    world.settle();
    assert_eq!(world.log, ["Delete a-c"]);
    world.unlisted.clear();
    world.objects.insert("Secret/a-b".into(), secret);
    world.settle();
    assert_eq!(world.log, ["Delete a-c", "Delete a-b", "Delete a-a"]);
}

fn recreates(world: &World) -> bool {
    match &world.decide().actions[..] {
        [Action::Apply(apply)] => apply.recreate.is_some(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn on_immutable_change_may_be_computed() {
    for (value, wanted) in [
        ("{{ 'Recreate' if spec.size > 0 else 'Fail' }}", true),
        ("{{ 'Recreate' if spec.size > 9 else 'Fail' }}", false),
        ("{{ 'Orphan' if spec.size > 0 else 'Fail' }}", true),
        // Without a value, or with a wrong one, nothing is deleted.
        ("{{ 'Recreated' if spec.size > 0 else 'Fail' }}", false),
        ("{{ 'Recreate' if spec.text > 1 else 'Fail' }}", false),
        ("{{ omit }}", false),
    ] {
        let mut world = world(&format!("    onImmutableChange: \"{value}\"\n"));
        for object in world.objects.values_mut() {
            object.desired = Some("another".into());
        }
        assert_eq!(recreates(&world), wanted, "{value}");
        world.untried = true;
        assert_eq!(world.decide().checks[0].policy.recreates(), wanted, "{value}");
    }
}

/// The package now says Delete and Recreate; the live object still has the annotation of a policy that keeps it.
#[test]
fn an_object_annotated_to_stay_is_not_recreated() {
    for (retained, asking, wanted) in [
        (None, None, true),
        (Some(false), None, false),
        (None, Some(false), false),
        (None, Some(true), false),
    ] {
        let mut world = world("    onImmutableChange: Recreate\n");
        for object in world.objects.values_mut() {
            object.desired = Some("another".into());
            (object.retained, object.asking) = (retained, asking);
        }
        assert_eq!(recreates(&world), wanted);
        world.untried = true;
        assert_eq!(world.decide().checks[0].policy.recreates(), wanted);
    }
}

/// When somebody changes the labels of a child, its template still reads `self`.
#[test]
fn self_is_found_by_name_if_labels_were_changed() {
    let template = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: \"{{ name }}-c\"}\ndata: {text: \"{{ self.data.text | default(spec.text) }}\"}\n";
    let package =
        package("children:\n  - {id: c, template: templates/c.yaml}\n", &[("c", template.to_owned())]);
    let mut world = World::new(package, &json!({"text": "first"}));
    world.settle();
    world.edit(json!({"text": "second"}));
    for (child, key) in [("c", Some("x")), ("x", None), ("c", None)] {
        for object in world.objects.values_mut() {
            (object.child, object.key) = (child.into(), key.map(Into::into));
        }
        assert!(world.decide().actions.is_empty(), "{child} {key:?}");
    }
}

/// One object, watched in two versions of its kind: desired in one version, it is not undesired in the other.
#[test]
fn object_watched_in_two_versions_counts_once() {
    let mut world = world("");
    let mut twin = world.objects["ConfigMap/a-c"].clone();
    for version in ["v0", "v2"] {
        twin.object.gvk.api_version = version.into();
        world.objects.insert(version.into(), twin.clone());
    }
    assert!(world.decide().actions.is_empty(), "{:?}", world.decide().actions);
    // When it is no longer desired it is deleted, and only once.
    world.edit(json!({}));
    let deleted = world.decide().actions;
    assert!(matches!(&deleted[..], [Action::Delete(_)]), "{deleted:?}");
}

/// Only another version of a kind is served: an undesired object is deleted, the state of a desired one is unknown.
#[test]
fn a_kind_served_only_in_another_version_is_pruned_and_not_applied() {
    let mut world = world("");
    world.lost.insert("ConfigMap".into());
    world.edit(json!({}));
    assert!(world.decide().actions.is_empty(), "it is unknown");
    world.elsewhere.insert("ConfigMap".into());
    assert!(matches!(&world.decide().actions[..], [Action::Delete(_)]));
    world.edit(json!({"size": 2}));
    assert!(world.decide().actions.is_empty());
    let verdict = world.decide().verdict;
    assert!(!matches!(verdict, Verdict::Ready { .. }), "{verdict:?}");
}

/// A kind of earlier versions of the package cannot be listed: objects that it may depend on are not pruned before it, and
/// the instance is not reported as Ready.
#[test]
fn an_unlisted_kind_is_not_reported_as_pruned() {
    let text = children("  - {id: s, template: templates/s.yaml, when: spec.size is defined}\n");
    let secret = "apiVersion: v1\nkind: Secret\nmetadata: {name: \"{{ name }}-s\"}\n".to_owned();
    let templates = [("c", config("{{ name }}-c")), ("s", secret)];
    let mut world = World::settled(package(&text, &templates), &json!({"size": 1}));
    world.unlisted = vec!["Pod".into()];
    let waits = |world: &World, words: &str| {
        let decision = world.decide();
        assert!(decision.actions.is_empty(), "{:?}", decision.actions);
        assert!(
            matches!(&decision.verdict, Verdict::Reconciling { reason, message }
                if reason == "Pruning" && message.contains("Pod of v1") && message.contains(words)),
            "{:?}",
            decision.verdict
        );
    };
    waits(&world, "annotation operetta.dev/child-kinds of the CRD");
    world.edit(json!({}));
    waits(&world, "ConfigMap n/a-c stays until");
    // An unlisted kind that a child has is reported by that child, and has its order.
    world.unlisted = vec!["Secret".into()];
    let decision = world.decide();
    assert!(matches!(&decision.actions[..], [Action::Delete(o)] if &*o.object.name == "a-c"));
}

/// Refuses the dry run of the only change, as for an immutable field.
fn refuse(world: &mut World) {
    let check = world.decide().checks.remove(0);
    let error = refusal(422, "Invalid", "spec.x: field is immutable");
    world.state.record(&ActionOutcome::DryRunRefused(Box::new(check), error), world.now);
}

/// The world with another package: its objects, and what is remembered, stay.
fn upgraded(policies: &str, before: World) -> World {
    let world = self::world(policies);
    World { package: world.package, untried: true, ..before }
}

#[test]
fn refusal_counts_only_for_the_policy_it_was_judged_with() {
    for (before, after) in [
        ("", "    onImmutableChange: Recreate\n"),
        ("    conflictPolicy: Fail\n", ""),
        ("", "    adopt: true\n"),
        (
            "    onImmutableChange: \"{{ 'Fail' if spec.size > 0 else 'Recreate' }}\"\n",
            "    onImmutableChange: Recreate\n",
        ),
    ] {
        let mut world = world(before);
        for object in world.objects.values_mut() {
            object.desired = Some("another".into());
        }
        world.untried = true;
        refuse(&mut world);
        let decision = world.decide();
        assert!(matches!(decision.verdict, Verdict::Stalled { .. }), "{before}: {:?}", decision.verdict);
        // Another package with the same policies renders the same, so the refusal counts.
        let world = upgraded(before, world);
        assert!(world.decide().checks.is_empty(), "{before}");
        let world = upgraded(after, world);
        let decision = world.decide();
        assert_eq!(decision.checks.len(), 1, "{after}: it is tried at once");
        assert!(!matches!(decision.verdict, Verdict::Stalled { .. }), "{after}: {:?}", decision.verdict);
    }
}

#[test]
fn refused_deletion_does_not_delay_marking_as_retained() {
    let mut world = world("");
    let observed = Arc::new(world.objects.values().next().unwrap().clone());
    let error = refusal(403, "Forbidden", "no");
    world.state.record(&ActionOutcome::Refused(Action::Delete(Arc::clone(&observed)), error), world.now);
    let is_refused = |action: &Action| world.state.removal_failure(action).is_some();
    assert!(is_refused(&Action::Delete(Arc::clone(&observed))));
    assert!(!is_refused(&Action::Retain(observed)));
}

/// In one revision the policy changes and the child is no longer rendered, so that its object never gets the new mark.
#[test]
fn object_no_longer_rendered_follows_the_safer_policy() {
    for (before, after, log) in [
        ("", "    deletionPolicy: Retain\n", "Retain a-c"),
        ("    deletionPolicy: Retain\n", "", "Retain a-c"),
        ("", "    deletionPolicy: Ask\n", "Ask a-c"),
        ("", "", "Delete a-c"),
    ] {
        let before = world(before);
        let text = children(after).replace("spec.size is defined", "spec.size > 9");
        let package = package(&text, &[("c", config("{{ name }}-c"))]);
        let mut world = World { package, ..before };
        world.settle();
        assert_eq!(world.log, [log], "{after}");
    }
}
