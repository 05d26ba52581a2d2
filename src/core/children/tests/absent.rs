//! Expressions that read a field which the status of a live object does not have: children are kept, none is created.

use super::*;

/// A world with a child `a`, of which `b` and the instance read the status.
fn reading(resource: &str) -> World {
    let package = package(
        &format!("children:\n  - {{id: a, template: templates/a.yaml}}\n{resource}"),
        &[
            ("a", config("{{ name }}-a")),
            ("b", config("{{ name }}-b")),
            ("c", config("{{ name }}-{{ 'b' if item is defined else '' }}")),
        ],
    );
    let mut world = World::new(package, &json!({}));
    world.settle();
    world
}

impl World {
    fn status(&mut self, status: &Value) {
        self.write("ConfigMap/a-a", |live| live["status"].clone_from(status));
        self.log.clear();
    }

    fn condition(&self, kind: &str) -> (String, String) {
        let status = self.decide().status.unwrap();
        let patch = crate::children::status_patch(&json!({}), &status, "now").unwrap();
        let condition =
            patch["conditions"].as_array().unwrap().iter().find(|c| c["type"] == kind).unwrap().clone();
        (condition["status"].as_str().unwrap().to_owned(), condition["message"].as_str().unwrap().to_owned())
    }
}

fn is_unknown(verdict: &Verdict) -> bool {
    matches!(verdict, Verdict::Reconciling { reason, message }
        if reason == "DependencyUnknown" && message.contains("children.a.status.n") && message.contains("default("))
}

#[test]
fn unknown_conditions_keep_existing_children_and_create_none() {
    for resource in [
        "  - {id: b, template: templates/b.yaml, when: children.a.status.n == 3}\n",
        "  - {id: b, template: templates/b.yaml, when: let.three}\nlet: {three: \"{{ children.a.status.n == 3 }}\"}\n",
        "  - when: children.a.status.n == 3\n    children: [{id: b, template: templates/b.yaml}]\n",
        "  - {id: b, template: templates/c.yaml, forEach: {in: \"range(children.a.status.n - 2)\"}}\n",
        "  - {id: b, template: templates/c.yaml, forEach: {in: \"[1]\", key: children.a.status.n}}\n",
    ] {
        let mut world = reading(resource);
        let verdict = world.settle();
        assert!(is_unknown(&verdict), "{resource}: {verdict:?}");
        assert_eq!(world.names(), ["a-a"], "{resource}");
        world.status(&json!({"n": 3}));
        assert_eq!(world.settle(), Verdict::Ready { children: 2 }, "{resource}");
        // At zero the controller leaves the field out.
        world.status(&json!({"other": 1}));
        let verdict = world.settle();
        assert!(is_unknown(&verdict), "{resource}: {verdict:?}");
        assert_eq!(world.names(), ["a-a", "a-b"], "{resource}: {:?}", world.log);
        if resource.contains("key:") {
            continue;
        }
        world.status(&json!({"n": 2}));
        assert_eq!(world.settle(), Verdict::Ready { children: 1 }, "{resource}");
    }
}

#[test]
fn a_condition_that_handles_absence_prunes_the_child() {
    for when in ["children.a.status.n | default(0) == 3", "children.a.status.n is defined"] {
        let mut world = reading(&format!("  - {{id: b, template: templates/b.yaml, when: {when}}}\n"));
        world.status(&json!({"n": 3}));
        assert_eq!(world.settle(), Verdict::Ready { children: 2 });
        world.status(&json!({}));
        assert_eq!(world.settle(), Verdict::Ready { children: 1 }, "{when}");
    }
}

#[test]
fn absent_field_makes_conditions_unknown_and_readiness_pending() {
    let mut world = reading(
        "conditions: [{type: Full, when: children.a.status.n == 3, reason: Full, message: full}]\nreadyWhen: children.a.status.n != 3\n",
    );
    let (status, message) = world.condition("Full");
    assert_eq!(status, "Unknown");
    assert!(message.contains("`children.a.status.n`"), "{message}");
    let verdict = world.settle();
    assert!(
        matches!(&verdict, Verdict::Reconciling { message, .. } if message.contains("children.a.status.n")),
        "{verdict:?}"
    );
    world.status(&json!({"n": 4}));
    assert_eq!(world.condition("Full").0, "False");
    assert_eq!(world.settle(), Verdict::Enough { children: 1 });
}

#[test]
fn ready_when_of_a_child_waits_for_its_status() {
    let package = package(
        "children:\n  - {id: a, template: templates/a.yaml, readyWhen: self.status.n != 3}\n",
        &[("a", config("{{ name }}-a"))],
    );
    let mut world = World::new(package, &json!({}));
    let verdict = world.settle();
    assert!(
        matches!(&verdict, Verdict::Reconciling { message, .. } if message.contains("`self.status.n`")),
        "{verdict:?}"
    );
    world.status(&json!({"n": 0}));
    assert_eq!(world.settle(), Verdict::Ready { children: 1 });
}

#[test]
fn child_with_an_absent_dependency_names_the_missing_when() {
    let resource = |when: &str| {
        format!(
            "children:\n  - {{id: a, template: templates/a.yaml, when: spec.host is defined}}\n  - {{id: b, template: templates/b.yaml{when}}}\n"
        )
    };
    let reading = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: \"{{ name }}-b\"}\ndata: {text: \"{{ children.a.data.text }}\"}\n";
    let templates = [("a", config("{{ name }}-a")), ("b", reading.to_owned())];
    let mut world = World::settled(package(&resource(""), &templates), &json!({"host": "x"}));
    world.edit(json!({}));
    let verdict = world.settle();
    assert!(
        matches!(&verdict, Verdict::Stalled { reason, message } if reason == "DependencyAbsent"
            && message.contains("`a` does not exist because its `when` (spec.host is defined) is false")
            && message.contains("`when: children.a is defined`")),
        "{verdict:?}"
    );
    // Both remedies that the message names work.
    for when in [", when: spec.host is defined", ", when: children.a is defined"] {
        let mut world = World::settled(package(&resource(when), &templates), &json!({"host": "x"}));
        world.edit(json!({}));
        assert_eq!(world.settle(), Verdict::Ready { children: 0 }, "{when}");
    }
}
