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
      - {{name: works, when: spec.stop, fail: {{message: never}}}}
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
fn member_deleted_by_a_step_is_not_lost() {
    let mut world = deployed("  drop:\n    steps:\n      - {name: drop, delete: ['m[0]']}\n");
    request(&mut world, "mine", "drop");
    assert_eq!(world.settle(), Verdict::Ready { children: 2 });
    let plans = plan_names(&world);
    assert!(!plans.contains(&"failover".to_owned()), "{plans:?}");
    assert_eq!(world.log, ["Delete a-0", "Create m[0]"]);
}

/// The pod of a dead node is being deleted for ever.
#[test]
fn a_step_with_force_deletes_what_is_already_being_deleted() {
    let log = |force: &str, goes_at_once: bool| {
        let drop =
            format!("  drop:\n    steps:\n      - {{name: drop, delete: ['m[0]'], force: '{force}'}}\n");
        let mut world = deployed(&drop);
        let dead = world.objects.get_mut("ConfigMap/a-0").unwrap();
        (dead.terminating, dead.goes_at_once) = (true, goes_at_once);
        request(&mut world, "mine", "drop");
        world.settle();
        world.log
    };
    assert_eq!(log("true", false), ["ForceDelete a-0", "Create m[0]"]);
    assert_eq!(log("children.m[0] is not ready", false), ["ForceDelete a-0", "Create m[0]"]);
    assert!(log("false", false).is_empty());
    assert!(
        log("instance.metadata.annotations.says == children.m[0].metadata.uid", false).is_empty(),
        "what has no value forces nothing"
    );
    assert!(log("true", true).is_empty(), "only a finalizer holds it");
}

#[test]
fn condition_is_ignored_while_it_reads_awaited_members() {
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

/// A duration from the spec may be invalid: this is reported before the duration is needed, and no run
/// starts.
#[test]
fn invalid_duration_of_a_condition_is_reported_at_once() {
    let alarm = "  alarm:\n    exclusive: false\n    affectsReady: true\n    \
                 trigger: {condition: spec.stop, for: \"{{ spec.text }}\", cooldown: 1h}\n    steps:\n      - {name: note, record: {alarm: 'true'}}\n";
    let mut world = World::with_runs(package_of(alarm), &json!({"size": 2, "text": "x"}));
    let Verdict::Stalled { reason, message } = world.settle() else { panic!("x is no duration") };
    assert_eq!(reason, "RunFailed");
    assert!(message.contains("alarm failed: InvalidDuration: for: `x` is not a duration"), "{message}");
    let alarms = |world: &World| world.phases().iter().filter(|(plan, _)| plan == "alarm").count();
    world.edit(json!({"size": 2, "text": "x", "stop": true}));
    world.settle();
    assert_eq!(alarms(&world), 0);
    world.edit(json!({"size": 2, "text": "0s", "stop": true}));
    assert_eq!(world.settle(), Verdict::Ready { children: 2 });
    assert_eq!(alarms(&world), 1);
}

/// A manager that dies while it recreates a child leaves a note on the instance.
#[test]
fn recreated_child_is_not_lost() {
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

/// Settles while the server creates no object of that name.
fn settle_without(world: &mut World, name: &str) {
    for _ in 0..50 {
        let decision = world.decide();
        let is_other = |action: &Action| match action {
            Action::Apply(apply) => *apply.desired.object.name != *name,
            _ => true,
        };
        let actions: Vec<Action> = decision.actions.into_iter().filter(is_other).collect();
        if actions.is_empty() {
            return;
        }
        world.carry_out(actions, decision.target_changes);
    }
    panic!("never comes to rest: {:?}", world.log);
}

/// The API server does not let a lost member come back: the step says so, and so does the run when its time is over.
#[test]
fn a_step_says_why_an_apply_is_refused() {
    let mut world = deployed("");
    world.remove("ConfigMap/a-1");
    let refuse = |world: &mut World| {
        for _ in 0..20 {
            let decision = world.decide();
            let mut outcomes = Vec::new();
            for action in decision.actions {
                outcomes.push(match &action {
                    Action::Apply(apply) if &*apply.desired.object.name == "a-1" => {
                        ActionOutcome::Refused(action, refusal(403, "Forbidden", "exceeded quota: q"))
                    }
                    _ => world.act(action),
                });
            }
            world.state.record_all(&outcomes, decision.target_changes, world.now);
        }
    };
    refuse(&mut world);
    let findings: Vec<String> = world.decide().findings.iter().map(ToString::to_string).collect();
    let step = findings.iter().find(|finding| finding.contains("step back"));
    assert!(step.is_some_and(|step| step.contains("exceeded quota: q")), "{findings:?}");
    world.pass(Duration::from_secs(601));
    refuse(&mut world);
    let runs = world.runs.snapshot(world.now, &world.instance).runs;
    let failed = runs.iter().find(|run| run.phase() == Phase::Failed);
    let failed = failed.unwrap_or_else(|| panic!("{:?} {:?}", world.phases(), world.log));
    let status = failed.status.as_ref().unwrap();
    assert!(status.message.contains("exceeded quota: q"), "{}", status.message);
}

fn is_failed_over(world: &World) -> bool {
    world.phases().iter().any(|(plan, _)| plan == "failover")
}

#[test]
fn a_recorded_member_that_was_never_created_is_not_lost() {
    let mut world = deployed("");
    world.edit(json!({"size": 3, "text": "x"}));
    settle_without(&mut world, "a-2");
    assert_eq!(world.phases()[1], ("deploy".into(), Phase::Running));
    world.store().runs.get_mut("a-2").unwrap()["spec"]["cancel"] = true.into();
    settle_without(&mut world, "a-2");
    assert_eq!(world.phases()[1], ("deploy".into(), Phase::Cancelled));
    world.restart();
    // The member is created like any other child now.
    world.settle();
    assert!(!is_failed_over(&world), "{:?}", world.phases());
    assert_eq!(world.log, ["Create m[2]"]);
    // A member that has existed can be lost.
    world.remove("ConfigMap/a-2");
    world.settle();
    assert!(is_failed_over(&world), "{:?}", world.phases());
}

/// A rollout gets its turn between the failed runs of the plan, and records the member without its object.
#[test]
fn a_lost_member_that_a_rollout_records_is_still_lost() {
    let resource = "
children:
  - {id: m, template: templates/m.yaml, onLoss: failover, forEach: {in: range(spec.size), as: i, key: i}}
plans:
  deploy:
    steps:
      - {name: all, apply: [m]}
  failover:
    steps:
      - {name: never, when: spec.stop, fail: {message: never}}
      - {name: back, apply: [m]}
";
    let package = package(resource, &[("m", config("{{ name }}-{{ i }}"))]);
    let mut world = World::with_runs(package, &json!({"size": 2, "text": "x", "stop": true}));
    assert_eq!(world.settle(), Verdict::Ready { children: 2 });
    world.remove("ConfigMap/a-1");
    world.settle();
    assert_eq!(world.phases()[1], ("failover".into(), Phase::Failed));
    world.edit(json!({"size": 2, "text": "y", "stop": true}));
    settle_without(&mut world, "a-1");
    let rollout = world.phases().iter().rposition(|(plan, _)| plan == "deploy").unwrap();
    let rollout = format!("a-{}", rollout + 1);
    let runs = world.runs.snapshot(world.now, &world.instance).runs;
    let recorded = &runs.iter().find(|run| run.name == rollout).unwrap().status.as_ref().unwrap().applied;
    assert!(
        recorded.contains(&crate::plan::Member::new("m", Some(json!(1)))),
        "the rollout has come to it: {recorded:?}"
    );
    world.store().runs.get_mut(&rollout).unwrap()["spec"]["cancel"] = true.into();
    settle_without(&mut world, "a-1");
    world.edit(json!({"size": 2, "text": "y", "stop": false}));
    world.now += Duration::from_secs(3_600);
    assert_eq!(world.settle(), Verdict::Ready { children: 2 });
    let phases = world.phases();
    assert!(phases.contains(&("failover".into(), Phase::Succeeded)), "{phases:?}");
}

#[test]
fn a_member_that_a_record_adds_is_lost_only_after_it_existed() {
    let resource = "
children:
  - {id: m, template: templates/m.yaml, onLoss: failover, forEach: {in: range(record.count | default(1)), as: i, key: i}}
plans:
  deploy:
    steps:
      - {name: all, apply: [m]}
  grow:
    steps:
      - {name: count, record: {count: '2'}}
  failover:
    steps:
      - {name: back, apply: [m]}
";
    let mut world = World::with_runs(package(resource, &[("m", config("{{ name }}-{{ i }}"))]), &json!({}));
    assert_eq!(world.settle(), Verdict::Ready { children: 1 });
    request(&mut world, "mine", "grow");
    settle_without(&mut world, "a-1");
    assert!(!is_failed_over(&world), "{:?}", world.phases());
    assert_eq!(world.settle(), Verdict::Ready { children: 2 });
    assert!(!is_failed_over(&world), "{:?}", world.phases());
    world.restart();
    world.remove("ConfigMap/a-1");
    assert_eq!(world.settle(), Verdict::Ready { children: 2 });
    assert!(is_failed_over(&world), "{:?}", world.phases());
}

#[test]
fn an_on_loss_without_a_value_decides_nothing() {
    let resource = "
refs:
  - {id: mode, apiVersion: v1, kind: Secret, name: mode, optional: true}
children:
  - {id: m, template: templates/m.yaml, onLoss: 'EXPRESSION'}
plans:
  deploy:
    steps:
      - {name: all, apply: [m]}
  failover:
    steps:
      - {name: back, apply: [m]}
";
    for (expression, stalls, why) in [
        ("{{ spec.host }}", true, "it has no value"),
        ("{{ spec.host if spec.host is defined else none }}", true, "it has no value"),
        ("{{ spec.size }}", true, "its value is no text"),
        ("{{ spec.text }}", true, "the package has no plan `x`"),
        ("{{ 'failover' if refs.mode is defined else spec.host }}", false, "no rights"),
    ] {
        let resource = resource.replace("'EXPRESSION'", &format!("\"{expression}\""));
        let package = package(&resource, &[("m", config("{{ name }}-m"))]);
        let mut world = World::with_runs(package, &json!({"text": "x", "size": 1}));
        assert_eq!(world.settle(), Verdict::Ready { children: 1 }, "{expression}");
        world.log.clear();
        world.lost.insert("Secret".into());
        world.remove("ConfigMap/a-m");
        let verdict = world.settle();
        assert_eq!(world.log, [""; 0], "{expression}");
        assert_eq!(world.phases().len(), 1, "{expression}");
        let decision = world.decide();
        let said: Vec<String> = decision.findings.iter().map(ToString::to_string).collect();
        assert!(
            said.iter()
                .any(|text| text.contains("m is lost, and its onLoss decides nothing") && text.contains(why)),
            "{expression}: {said:?}"
        );
        assert_eq!(matches!(verdict, Verdict::Stalled { .. }), stalls, "{expression}: {verdict:?}");
    }
    // The edit that gives it a value counts, though it starts no rollout.
    let resource = resource.replace("'EXPRESSION'", "\"{{ spec.host }}\"");
    let package = package(&resource, &[("m", config("{{ name }}-m"))]);
    for (value, plans) in [("Recreate", &["deploy"][..]), ("failover", &["deploy", "failover"])] {
        let mut world = World::with_runs(Arc::clone(&package), &json!({"text": "x"}));
        world.settle();
        world.remove("ConfigMap/a-m");
        world.settle();
        world.edit(json!({"text": "x", "host": value}));
        assert_eq!(world.settle(), Verdict::Ready { children: 1 });
        // No change of a target: no rollout beside the plan of the loss.
        let runs = plan_names(&world);
        assert_eq!(runs, plans, "{value}");
        assert_eq!(world.log, ["Create m"], "{value}");
    }
}

/// A member is lost while a rollout that adds another one has not come to it. The run for the loss applies all members: the new one,
/// too, which no rollout has reached.
#[test]
fn run_for_a_loss_applies_members_no_rollout_has_reached() {
    let grow = "  grow:
    trigger: {changed: [spec.size]}
    steps:
      - {name: gate, wait: {until: record.lost is defined}}
      - {name: new, apply: [m]}
";
    let mut world = deployed(grow);
    world.edit(json!({"size": 3, "text": "x"}));
    world.settle();
    assert_eq!(world.phases()[1], ("grow".into(), Phase::Running));
    world.remove("ConfigMap/a-0");
    world.settle();
    let phases = world.phases();
    assert!(
        phases.contains(&("failover".into(), Phase::Succeeded)),
        "{phases:?}\n{:?}",
        world.decide().findings
    );
    assert_eq!(world.names(), ["a-0", "a-1", "a-2"]);
    // The rollout is decided again, and ends.
    assert_eq!(phases.last(), Some(&("grow".into(), Phase::Succeeded)));
    assert_eq!(world.settle(), Verdict::Ready { children: 3 });
}

/// What a failed run for a loss has noted is dropped when a run restores the child.
#[test]
fn restored_loss_is_not_remembered() {
    let drop = "  drop:
    steps:
      - {name: drop, delete: ['m[0]']}
      - {name: never, fail: {message: never}}
";
    let mut world = World::with_runs(package_of(drop), &json!({"size": 2, "stop": true}));
    assert_eq!(world.settle(), Verdict::Ready { children: 2 });
    world.remove("ConfigMap/a-0");
    world.settle();
    assert_eq!(world.phases()[1], ("failover".into(), Phase::Failed));
    // It has deleted what was left, and the child is lost nevertheless.
    world.edit(json!({"size": 2, "stop": false}));
    world.now += Duration::from_secs(60);
    assert_eq!(world.settle(), Verdict::Ready { children: 2 });
    assert!(world.phases().contains(&("failover".into(), Phase::Succeeded)), "{:?}", world.phases());
    let losses = |world: &World| world.phases().iter().filter(|(plan, _)| plan == "failover").count();
    let before = losses(&world);
    request(&mut world, "mine", "drop");
    world.settle();
    assert_eq!((losses(&world), world.names()), (before, vec!["a-1"]), "{:?}", world.phases());
}

/// While the API server refuses every member, each that is missing is named, also the one whose run was interrupted.
#[test]
fn all_missing_members_are_named_while_applies_are_refused() {
    let resource = "
children:
  - {id: m, template: templates/m.yaml, onLoss: failover, forEach: {in: range(spec.size), as: i, key: i}}
plans:
  deploy:
    steps:
      - {name: all, apply: [m]}
  failover:
    steps:
      - {name: back, interruptible: true, forEach: {in: run.lost, as: lost}, apply: ['m[{{ lost.key }}]']}
";
    let package = package(resource, &[("m", config("{{ name }}-{{ i }}"))]);
    let mut world = World::with_runs(package, &json!({"size": 3, "text": "x"}));
    assert_eq!(world.settle(), Verdict::Ready { children: 3 });
    let mut message = String::new();
    for member in [1, 0] {
        world.remove(&format!("ConfigMap/a-{member}"));
        for _ in 0..20 {
            let decision = world.decide();
            if let Verdict::Stalled { message: told, .. } = &decision.verdict {
                message.clone_from(told);
            }
            let mut outcomes = Vec::new();
            for action in decision.actions {
                outcomes.push(match &action {
                    Action::Apply(_) => {
                        ActionOutcome::Refused(action, refusal(403, "Forbidden", "exceeded quota: q"))
                    }
                    _ => world.act(action),
                });
            }
            world.state.record_all(&outcomes, decision.target_changes, world.now);
        }
    }
    assert!(message.contains("m[0]") && message.contains("m[1]"), "{message}");
    assert_eq!(message.matches("exceeded quota: q").count(), 1, "{message}");
}

/// A member is lost again after the run for its loss has restored it, while that run waits for what the member must do next: another
/// run restores it, and the first one goes on. However often that happens there are at most two.
#[test]
fn member_that_is_lost_again_while_its_run_continues_is_restored() {
    let resource = "
children:
  - {id: m, template: templates/m.yaml, onLoss: failover, forEach: {in: range(spec.size), as: i, key: i}}
plans:
  deploy:
    steps:
      - {name: all, apply: [m]}
  failover:
    steps:
      - {name: back, forEach: {in: run.lost, as: lost}, apply: ['m[{{ lost.key }}]']}
      - {name: joined, interruptible: true, wait: {until: \"children.m[0] is defined and children.m[0].data.joined == 'yes'\"}}
";
    let package = package(resource, &[("m", config("{{ name }}-{{ i }}"))]);
    let mut world = World::with_runs(package, &json!({"size": 2, "text": "x"}));
    assert_eq!(world.settle(), Verdict::Ready { children: 2 });
    let mut open = Vec::new();
    for _ in 0..4 {
        world.remove("ConfigMap/a-0");
        world.now += Duration::from_secs(1);
        world.settle();
        let runs = world.phases().into_iter().filter(|(plan, phase)| plan == "failover" && !phase.is_final());
        open.push((runs.count(), world.names().contains(&"a-0")));
    }
    assert_eq!(open, [(1, true), (2, true), (2, false), (2, false)]);
    request(&mut world, "mine", "deploy");
    world.settle();
    assert_eq!(world.phases().len(), 4, "{:?}", world.phases());
}
