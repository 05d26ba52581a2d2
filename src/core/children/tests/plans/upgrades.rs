//! Another revision of the package while runs of an earlier one are active.

use super::*;

/// A package whose templates, plans and records say which it is.
fn package_of(which: &str) -> Arc<Package> {
    let resource = format!(
        "
children:
  - {{id: one, template: templates/one.yaml}}
  - {{id: two, template: templates/two.yaml}}
plans:
  deploy:
    steps:
      - {{name: all, apply: [one, two]}}
  upgrade:
    trigger: upgraded
    steps:
      - {{name: one, apply: [one]}}
      - {{name: gate, wait: {{until: children.one.data.upgrade == 'yes'}}, timeout: 1h}}
      - {{name: two, apply: [two]}}
  work:
    steps:
      - {{name: gate, wait: {{until: children.one.data.open == 'yes'}}, timeout: 1h}}
      - {{name: note, record: {{note: \"'{which}'\"}}}}
  backup:
    exclusive: false
    steps:
      - {{name: gate, wait: {{until: children.one.data.open == 'yes'}}, timeout: 1h}}
      - {{name: note, record: {{saved: \"'{which}'\"}}}}
"
    );
    let config = |id: &str| {
        let name = format!("{{{{ name }}}}-{id}");
        format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: \"{name}\"}}\ndata: {{text: {which}}}\n")
    };
    package(&resource, &[("one", config("one")), ("two", config("two"))])
}

fn open(world: &mut World, gate: &str) {
    world.write("ConfigMap/a-one", |object| object["data"][gate] = "yes".into());
}

/// An instance of the old package; `plan` waits at its gate. Then the package is the new one.
fn upgraded(plan: Option<&str>) -> (World, Arc<Package>) {
    let old = package_of("old");
    let mut world = World::with_runs(Arc::clone(&old), &json!({}));
    assert_eq!(world.settle(), Verdict::Ready { children: 2 });
    if let Some(plan) = plan {
        request(&mut world, "mine", plan);
        world.settle();
        assert_eq!(world.phase(plan), Phase::Running);
    }
    world.package = package_of("new");
    world.log.clear();
    (world, old)
}

impl World {
    fn loads(&mut self, revision: &Package, known: Revision) {
        self.store().revisions.insert(revision.revision().into(), known);
    }

    /// The phase of the newest run of a plan.
    fn phase(&self, plan: &str) -> Phase {
        let phases = self.phases();
        phases.iter().rfind(|(of, _)| of == plan).unwrap_or_else(|| panic!("{phases:?}")).1
    }

    fn texts(&self) -> [Value; 2] {
        ["a-one", "a-two"].map(|name| self.value(name, "text"))
    }

    fn recorded(&self, key: &str) -> Value {
        let runs = self.runs.runs.values();
        runs.map(|run| run["status"]["record"][key]["value"].clone())
            .find(|value| !value.is_null())
            .unwrap_or_default()
    }
}

#[test]
fn a_run_finishes_with_its_own_revision() {
    let (mut world, old) = upgraded(Some("work"));
    let decision = world.decide();
    assert!(decision.input == Input::Loading && decision.actions.is_empty());
    assert_eq!(decision.needs.revisions, BTreeSet::from([old.revision()]));
    world.loads(&old, Revision::Loaded(Arc::clone(&old)));
    world.settle();
    assert_eq!(world.log, [""; 0]);
    // Its revision renders all children meanwhile.
    world.remove("ConfigMap/a-two");
    world.settle();
    assert_eq!(world.texts(), ["old", "old"]);
    open(&mut world, "open");
    world.settle();
    assert_eq!(world.recorded("note"), "old");
    open(&mut world, "upgrade");
    assert_eq!(world.settle(), Verdict::Ready { children: 2 });
    assert_eq!(world.texts(), ["new", "new"]);
    assert_eq!(world.phase("upgrade"), Phase::Succeeded);
    assert!(world.decide().needs.revisions.is_empty());
}

#[test]
fn nothing_is_changed_while_the_revision_of_a_run_is_missing() {
    let (mut world, old) = upgraded(Some("work"));
    world.loads(&old, Revision::Missing("ConfigMap m/p-1-0 does not exist".into()));
    world.write("ConfigMap/a-two", |object| object["data"]["text"] = "mine".into());
    let Verdict::Stalled { reason, message } = world.settle() else { panic!() };
    assert_eq!(reason, "RevisionMissing");
    assert!(message.contains("run mine began with revision") && message.contains("p-1-0"), "{message}");
    assert_eq!(world.log, [""; 0]);
    assert_eq!(world.texts(), ["old", "mine"]);
    // With the revision restored, the run goes on.
    let missing = world.store().revisions.clone();
    world.loads(&old, Revision::Loaded(Arc::clone(&old)));
    world.settle();
    assert_eq!(world.texts(), ["old", "old"]);
    // If a person gives the run up, the new revision is rolled out.
    world.store().revisions = missing;
    world.store().runs.get_mut("mine").unwrap()["spec"]["cancel"] = true.into();
    world.settle();
    assert_eq!(world.phase("work"), Phase::Cancelled);
    open(&mut world, "upgrade");
    assert_eq!(world.settle(), Verdict::Ready { children: 2 });
    assert_eq!(world.texts(), ["new", "new"]);
}

#[test]
fn children_of_an_earlier_revision_follow_the_upgrade_one_by_one() {
    for is_missing in [false, true] {
        let (mut world, old) = upgraded(None);
        let known =
            if is_missing { Revision::Missing("gone".into()) } else { Revision::Loaded(Arc::clone(&old)) };
        world.loads(&old, known);
        world.settle();
        assert_eq!(world.phase("upgrade"), Phase::Running);
        assert_eq!(world.texts(), ["new", "old"]);
        world.write("ConfigMap/a-two", |object| object["data"]["text"] = "mine".into());
        world.settle();
        // What cannot be rendered is left as it is, and never rendered from another revision.
        assert_eq!(world.texts(), ["new", if is_missing { "mine" } else { "old" }]);
        let is_said = |finding: &Finding| matches!(finding, Finding::RevisionMissing { run: None, .. });
        assert_eq!(world.decide().findings.iter().any(is_said), is_missing);
        open(&mut world, "upgrade");
        assert_eq!(world.settle(), Verdict::Ready { children: 2 });
        assert_eq!(world.texts(), ["new", "new"]);
    }
}

#[test]
fn non_exclusive_run_keeps_its_revision_during_an_upgrade() {
    for is_missing in [false, true] {
        let (mut world, old) = upgraded(Some("backup"));
        let known =
            if is_missing { Revision::Missing("gone".into()) } else { Revision::Loaded(Arc::clone(&old)) };
        world.loads(&old, known);
        world.settle();
        open(&mut world, "upgrade");
        world.settle();
        assert_eq!(world.texts(), ["new", "new"]);
        assert_eq!(world.phase("backup"), Phase::Running);
        open(&mut world, "open");
        let verdict = world.settle();
        if is_missing {
            assert!(
                matches!(&verdict, Verdict::Stalled { reason, .. } if reason == "RevisionMissing"),
                "{verdict:?}"
            );
            world.store().runs.get_mut("mine").unwrap()["spec"]["cancel"] = true.into();
            assert_eq!(world.settle(), Verdict::Ready { children: 2 });
            assert_eq!(world.phase("backup"), Phase::Cancelled);
        } else {
            assert_eq!(verdict, Verdict::Ready { children: 2 });
            assert_eq!(world.recorded("saved"), "old");
        }
    }
}

#[test]
fn a_missing_revision_does_not_hold_a_deletion() {
    let (mut world, old) = upgraded(Some("work"));
    // What cannot be read may still be there.
    world.loads(&old, Revision::Unreadable("403".into()));
    world.instance["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    assert!(matches!(world.settle(), Verdict::Deleting { message } if message.contains("403")));
    assert_eq!(world.objects.len(), 2);
    world.loads(&old, Revision::Missing("gone".into()));
    world.settle();
    assert!(world.objects.is_empty(), "{:?}", world.log);
    assert!(world.phases().iter().all(|(_, phase)| *phase != Phase::Running));
}

/// A package with the children of [`package_of`] and without plans.
fn without_plans() -> Arc<Package> {
    let resource = "
children:
  - {id: one, template: templates/one.yaml}
  - {id: two, template: templates/two.yaml}
";
    package(resource, &[("one", config("{{ name }}-one")), ("two", config("{{ name }}-two"))])
}

#[test]
fn a_run_finishes_though_the_new_revision_has_no_plans() {
    let (mut world, old) = upgraded(Some("work"));
    world.package = without_plans();
    world.edit(json!({"text": "new"}));
    // The edit does not concern the run. Until it has ended, its revision renders everything.
    world.loads(&old, Revision::Loaded(Arc::clone(&old)));
    world.settle();
    assert_eq!(world.phase("work"), Phase::Running);
    assert_eq!(world.texts(), ["old", "old"]);
    open(&mut world, "open");
    assert_eq!(world.settle(), Verdict::Ready { children: 2 });
    assert_eq!(world.phase("work"), Phase::Succeeded);
    assert_eq!(world.recorded("note"), "old");
    // Without plans the dependency graph is the rollout.
    assert_eq!(world.texts(), ["new", "new"]);
    assert!(world.decide().needs.revisions.is_empty(), "the earlier revision is not needed any more");
    world.edit(json!({"text": "newer"}));
    assert_eq!(world.settle(), Verdict::Ready { children: 2 });
    assert_eq!(world.texts(), ["newer", "newer"]);
    // The deletion of the instance removes everything of its runs.
    world.instance["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    world.settle();
    assert!(world.objects.is_empty(), "{:?}", world.log);
    assert!(world.store().runs.is_empty() && world.store().origins.is_empty());
}

#[test]
fn rollout_finishes_in_its_order_without_plans_in_the_new_revision() {
    let (mut world, old) = upgraded(None);
    world.loads(&old, Revision::Loaded(Arc::clone(&old)));
    world.settle();
    assert_eq!(world.phase("upgrade"), Phase::Running);
    let new = std::mem::replace(&mut world.package, without_plans());
    world.loads(&new, Revision::Loaded(Arc::clone(&new)));
    world.settle();
    assert_eq!(world.texts(), ["new", "old"], "the gate is closed");
    open(&mut world, "upgrade");
    world.settle();
    assert_eq!(world.phase("upgrade"), Phase::Succeeded);
    assert_eq!(world.texts(), ["", ""]);
}

#[test]
fn runs_that_wait_end_if_the_new_revision_has_no_plans() {
    let (mut world, old) = upgraded(Some("work"));
    request(&mut world, "next", "upgrade");
    world.loads(&old, Revision::Loaded(Arc::clone(&old)));
    world.package = old;
    world.settle();
    assert_eq!(world.phases().iter().filter(|(_, phase)| *phase == Phase::Pending).count(), 1);
    let old = std::mem::replace(&mut world.package, without_plans());
    world.loads(&old, Revision::Loaded(Arc::clone(&old)));
    open(&mut world, "open");
    assert_eq!(world.settle(), Verdict::Ready { children: 2 });
    let status = world.store().runs["next"]["status"].clone();
    assert_eq!((&status["phase"], &status["reason"]), (&json!("Failed"), &json!("PlanMissing")), "{status}");
    assert_eq!(world.texts(), ["", ""]);
}

#[test]
fn a_package_that_is_not_loaded_leaves_no_runs_behind() {
    let (mut world, _) = upgraded(Some("work"));
    world.instance["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    world.is_loaded = false;
    world.settle();
    assert!(world.objects.is_empty(), "{:?}", world.log);
    assert!(world.store().runs.is_empty() && world.store().origins.is_empty());
}

#[test]
fn non_exclusive_run_finishes_if_the_new_revision_lacks_its_plan() {
    for is_missing in [false, true] {
        let (mut world, old) = upgraded(Some("backup"));
        let resource = "
children:
  - {id: one, template: templates/one.yaml}
  - {id: two, template: templates/two.yaml}
plans:
  deploy:
    steps:
      - {name: all, apply: [one, two]}
";
        world.package =
            package(resource, &[("one", config("{{ name }}-one")), ("two", config("{{ name }}-two"))]);
        let known =
            if is_missing { Revision::Missing("gone".into()) } else { Revision::Loaded(Arc::clone(&old)) };
        world.loads(&old, known);
        world.settle();
        // The upgrade does not wait for it.
        assert_eq!(world.texts(), ["", ""]);
        assert_eq!(world.phase("backup"), Phase::Running);
        if is_missing {
            continue;
        }
        open(&mut world, "open");
        assert_eq!(world.settle(), Verdict::Ready { children: 2 });
        assert_eq!(world.phase("backup"), Phase::Succeeded);
        assert_eq!(world.recorded("saved"), "old");
    }
}
