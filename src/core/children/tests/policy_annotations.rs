//! Annotations of deletion policies on objects: those set by a person hold; those set by Operetta on undesired objects are
//! removed when the objects are desired again.

use super::*;

fn on(policy: &str) -> Arc<Package> {
    let policy = if policy.is_empty() { String::new() } else { format!(", deletionPolicy: {policy}") };
    package(
        &format!(
            "children:\n  - {{id: c, template: templates/c.yaml, when: spec.host is defined{policy}}}\n"
        ),
        &[("c", config("{{ name }}-c"))],
    )
}

impl World {
    fn c(&self) -> &Observed {
        &self.objects["ConfigMap/a-c"]
    }

    /// A person annotates the child as retained, or removes the annotation.
    fn keep(&mut self, keeps: bool) {
        self.write("ConfigMap/a-c", |live| {
            let annotations = &mut live["metadata"]["annotations"];
            if keeps {
                annotations[names::RETAINED] = "true".into();
            } else {
                annotations.as_object_mut().unwrap().remove(names::RETAINED);
            }
        });
    }

    fn delete(&mut self) {
        self.log.clear();
        self.instance["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        self.settle();
    }
}

#[test]
fn owned_child_retained_by_a_person_is_kept() {
    let mut world = World::settled(on(""), &json!({"host": "x"}));
    assert!(world.c().owner_reference);
    world.keep(true);
    assert_eq!(world.settle(), Verdict::Ready { children: 1 });
    assert!(!world.c().owner_reference, "the garbage collector would take it");
    assert!(world.c().guarded && prune::has_finalizer(&world.instance));
    assert_eq!(world.c().retained, Some(true), "what a person has said stays");
    assert_eq!(world.log, ["Update c"]);
    world.delete();
    assert_eq!((world.names(), &world.log[..]), (vec!["a-c"], &[][..]));
}

#[test]
fn removing_the_retained_annotation_restores_the_owner_reference() {
    let mut world = World::settled(on(""), &json!({"host": "x"}));
    world.keep(true);
    world.settle();
    world.keep(false);
    assert_eq!(world.settle(), Verdict::Ready { children: 1 });
    assert!(world.c().owner_reference && world.c().retained.is_none());
    assert!(!prune::has_finalizer(&world.instance));
}

#[test]
fn an_undesired_child_annotated_as_retained_loses_its_owner_reference() {
    // The child is annotated and undesired at once: it was never applied as retained.
    let mut world = World::settled(on(""), &json!({"host": "x"}));
    world.keep(true);
    world.edit(json!({}));
    assert_eq!(world.settle(), Verdict::Ready { children: 0 });
    assert_eq!(world.log, ["Retain a-c"]);
    assert!(!world.c().owner_reference);
    // An instance that is deleted and has to wait for something else behaves in the same way.
    let mut world = World::settled(on(""), &json!({"host": "x"}));
    world.instance["metadata"]["finalizers"] = json!([names::FINALIZER]);
    world.keep(true);
    world.delete();
    assert_eq!((world.names(), &world.log[..]), (vec!["a-c"], &["Retain a-c".to_owned()][..]));
    assert!(!world.c().owner_reference);
}

#[test]
fn annotations_of_a_former_deletion_policy_are_removed() {
    for (policy, says) in [("Retain", "Retain a-c"), ("Ask", "Ask a-c")] {
        let mut world = World::settled(on(policy), &json!({"host": "x"}));
        world.edit(json!({}));
        world.settle();
        assert_eq!(world.log, [says]);
        world.package = on("");
        world.edit(json!({"host": "x"}));
        assert_eq!(world.settle(), Verdict::Ready { children: 1 });
        assert_eq!(world.log, ["Update c", "Unmark a-c"], "{policy}");
        assert!(world.c().owner_reference);
        assert_eq!((world.c().retained, world.c().asking), (None, None), "{policy}");
        world.edit(json!({}));
        assert_eq!(world.settle(), Verdict::Ready { children: 0 }, "{policy}");
        assert_eq!((world.names(), &world.log[..]), (vec![], &["Delete a-c".to_owned()][..]), "{policy}");
    }
    // The policy changes from Retain to Ask.
    let mut world = World::settled(on("Retain"), &json!({"host": "x"}));
    world.edit(json!({}));
    world.settle();
    world.package = on("Ask");
    world.edit(json!({"host": "x"}));
    world.settle();
    assert_eq!((world.c().retained, world.c().asking), (None, Some(false)));
}
