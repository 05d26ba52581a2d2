//! How failed runs are reported.

use super::*;

fn world() -> World {
    let resource = "
children:
  - {id: m, template: templates/m.yaml, onLoss: repair}
plans:
  deploy:
    steps:
      - {name: all, apply: [m]}
      - {name: stop, when: spec.stop, fail: {message: stopped}}
  backup:
    steps:
      - {name: dump, when: spec.stop, fail: {message: no space left}}
  beside:
    exclusive: false
    steps:
      - {name: dump, when: spec.stop, fail: {message: no disk}}
  promote:
    steps:
      - {name: note, record: {primary: '1'}}
      - {name: stop, fail: {message: half-way}}
  repair:
    steps:
      - {name: stop, when: spec.stop, fail: {message: not repaired}}
      - {name: back, apply: [m]}
";
    let package = package(resource, &[("m", config("{{ name }}-m"))]);
    let mut world = World::with_runs(package, &json!({"text": "x"}));
    assert_eq!(world.settle(), Verdict::Ready { children: 1 });
    world
}

/// The reason and message of the condition `RunFailed`.
fn failed(world: &mut World) -> Option<(String, String)> {
    let status = world.decide().status.expect("a status");
    let patch = crate::children::status::patch(&json!({}), &status, "now").expect("a patch");
    let found = crate::facts::condition(&json!({"status": patch}), "RunFailed").cloned()?;
    let text = |field: &str| found[field].as_str().unwrap_or_default().to_owned();
    Some((text("reason"), text("message")))
}

#[test]
fn a_failed_request_that_changes_nothing_leaves_the_instance_ready() {
    for (plan, why) in [("backup", "no space left"), ("beside", "no disk")] {
        let mut world = world();
        assert_eq!(failed(&mut world), None);
        world.edit(json!({"text": "x", "stop": true}));
        world.settle();
        request(&mut world, "mine", plan);
        assert_eq!(world.settle(), Verdict::Ready { children: 1 }, "{plan}");
        let (reason, message) = failed(&mut world).expect(plan);
        assert_eq!(reason, "FailStep");
        let expected = format!("plan {plan} (run mine) failed: FailStep: step `dump`: {why}");
        assert_eq!(message, expected);
        // The next run of the plan removes the condition.
        world.edit(json!({"text": "x", "stop": false}));
        world.settle();
        request(&mut world, "next", plan);
        assert_eq!(world.settle(), Verdict::Ready { children: 1 });
        assert_eq!(failed(&mut world), None, "{plan}");
    }
}

#[test]
fn a_failed_request_that_has_recorded_facts_stalls_the_instance() {
    let mut world = world();
    request(&mut world, "mine", "promote");
    let Verdict::Stalled { reason, message } = world.settle() else { panic!() };
    assert!(reason == "RunFailed" && message.contains("half-way"), "{reason}: {message}");
    assert_eq!(failed(&mut world), None, "one condition says it");
}

#[test]
fn failed_rollout_stays_reported_after_a_successful_request() {
    let mut world = world();
    world.edit(json!({"text": "y", "stop": true}));
    assert!(matches!(world.settle(), Verdict::Stalled { .. }));
    request(&mut world, "mine", "repair");
    world.settle();
    request(&mut world, "other", "beside");
    let Verdict::Stalled { message, .. } = world.settle() else { panic!() };
    assert!(message.contains("plan deploy") && message.contains("stopped"), "{message}");
    world.edit(json!({"text": "y", "stop": false}));
    assert_eq!(world.settle(), Verdict::Ready { children: 1 });
}

#[test]
fn a_failed_run_for_a_loss_stalls_the_instance_while_the_loss_lasts() {
    let mut world = world();
    world.edit(json!({"text": "x", "stop": true}));
    world.settle();
    let lost = world.objects["ConfigMap/a-m"].clone();
    let stored = world.server.objects["ConfigMap/a-m"].clone();
    world.remove("ConfigMap/a-m");
    let Verdict::Stalled { message, .. } = world.settle() else { panic!() };
    assert!(message.contains("not repaired"), "{message}");
    // A person restores the child.
    world.objects.insert("ConfigMap/a-m".into(), lost);
    world.server.objects.insert("ConfigMap/a-m".into(), stored);
    assert_eq!(world.settle(), Verdict::Ready { children: 1 });
    assert!(failed(&mut world).is_some_and(|(_, message)| message.contains("not repaired")));
}

/// A loss interrupts a rollout whose children are all applied: its other steps run afterwards.
#[test]
fn interrupted_rollout_runs_its_remaining_steps() {
    let resource = "
children:
  - {id: m, template: templates/m.yaml, onLoss: repair}
  - {id: gate, template: templates/gate.yaml}
plans:
  deploy:
    steps:
      - {name: all, apply: [m]}
      - {name: wait, when: previous is defined, wait: {until: children.gate.data.open == 'yes'}}
      - {name: note, record: {told: spec.text}}
  repair:
    steps:
      - {name: back, apply: [m]}
";
    let gate = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: \"{{ name }}-gate\"}\n".to_owned();
    let package = package(resource, &[("m", config("{{ name }}-m")), ("gate", gate)]);
    let mut world = World::with_runs(package, &json!({"text": "x"}));
    assert_eq!(world.settle(), Verdict::Ready { children: 2 });
    world.edit(json!({"text": "y"}));
    world.settle();
    assert_eq!(world.phases()[1], ("deploy".into(), Phase::Running));
    assert_eq!(world.value("a-m", "text"), "y");
    world.remove("ConfigMap/a-m");
    world.settle();
    assert!(world.phases().contains(&("repair".into(), Phase::Succeeded)), "{:?}", world.phases());
    world.write("ConfigMap/a-gate", |object| object["data"] = json!({"open": "yes"}));
    assert_eq!(world.settle(), Verdict::Ready { children: 2 });
    let told: Vec<&Value> =
        world.runs.runs.values().map(|run| &run["status"]["record"]["told"]["value"]).collect();
    assert!(told.contains(&&json!("y")), "{:?}", world.phases());
}

/// What a step computes of parameters has a budget of its own. If it is exceeded, that step fails, its
/// handler runs, and the rest of the instance goes on.
#[test]
fn a_step_that_exceeds_a_limit_fails_and_stops_nothing_else() {
    let resource = "
children:
  - {id: m, template: templates/m.yaml}
plans:
  deploy:
    steps:
      - {name: all, apply: [m]}
  count:
    params: {type: object, required: [most], properties: {most: {type: integer}}}
    steps:
      - name: all
        onFailure: tell
        steps: [{name: sum, record: {sum: range(run.params.most) | sum}}]
  tell:
    steps: [{name: told, record: {told: \"'yes'\"}}]
status: {told: record.told}
";
    let small = Totals { fuel: 5_000, ..Totals::FULL };
    for (totals, most) in [(Totals::FULL, 900_000), (small, 9_000)] {
        let package = package(resource, &[("m", config("{{ name }}-m"))]);
        let mut world = World::with_runs(package, &json!({"text": "x"}));
        assert_eq!(world.settle(), Verdict::Ready { children: 1 });
        world.totals = totals;
        request(&mut world, "mine", "count");
        world.store().runs.get_mut("mine").unwrap()["spec"]["params"] = json!({"most": most});
        world.edit(json!({"text": "y"}));
        let decision = world.decide();
        assert!(decision.evaluation.exceeded.is_none(), "{:?}", decision.verdict);
        world.settle();
        let status = world.store().runs["mine"]["status"].clone();
        assert_eq!((&status["phase"], &status["reason"]), (&json!("Failed"), &json!("RecordFailed")));
        assert!(status["message"].as_str().unwrap().contains("limit"), "{status:#}");
        assert!(status["steps"].to_string().contains("told"), "{status:#}");
        // A deleted child is still created again.
        let key = world.objects.keys().next().unwrap().clone();
        assert!(world.remove(&key).is_some());
        world.settle();
        assert!(world.objects.contains_key(&key));
    }
}
