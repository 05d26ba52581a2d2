//! PlanRuns whose status, or which themselves, somebody deletes; and instances whose memory is lost.

use super::*;
use crate::plan::RUN_FINALIZER;

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

fn ready() -> World {
    let mut world = deployed();
    open(&mut world);
    assert_eq!(settle(&mut world), Verdict::Ready { children: 1 });
    world
}

/// Decides and acts; the status of the instance is written when nothing is left to do.
fn settle(world: &mut World) -> Verdict {
    let verdict = world.settle();
    if let Some(patch) = status_patch(&world.instance["status"], &world.decide().status.unwrap(), "t") {
        operetta_kube_model::patch::merge(&mut world.instance["status"], &patch);
    }
    verdict
}

fn wipe(world: &mut World, run: &str) {
    world.store().runs.get_mut(run).unwrap().as_object_mut().unwrap().remove("status");
}

fn memory(world: &mut World) -> Value {
    world.store().state.as_ref().unwrap()["spec"].clone()
}

#[test]
fn successful_rollout_is_not_repeated_if_its_plan_run_is_altered() {
    let cases: [fn(&mut World); 3] = [
        |world| wipe(world, "a-1"),
        |world| drop(world.store().runs.remove("a-1")),
        |world| {
            world.store().runs.get_mut("a-1").unwrap()["status"] =
                json!({"phase": "Failed", "cause": "Rollout", "record": {"x": {"value": 1, "sequence": 9}}});
        },
    ];
    for case in cases {
        let mut world = ready();
        case(&mut world);
        world.restart();
        assert_eq!(settle(&mut world), Verdict::Ready { children: 1 });
        assert_eq!(world.phases(), [("deploy".into(), Phase::Succeeded)]);
        assert_eq!(memory(&mut world)["record"], Value::Null, "a forged fact");
        // The next change is still compared with this rollout.
        world.edit(json!({"text": "y"}));
        settle(&mut world);
        assert_eq!(world.phases().len(), 2);
        assert_eq!(world.value("a-c", "text"), "y");
    }
}

#[test]
fn running_rollout_whose_status_is_deleted_fails() {
    let mut world = deployed();
    assert_eq!(world.phases(), [("deploy".into(), Phase::Running)]);
    wipe(&mut world, "a-1");
    world.restart();
    let Verdict::Stalled { message, .. } = settle(&mut world) else { panic!() };
    assert!(message.contains("its state is lost"), "{message}");
    assert_eq!(world.phases(), [("deploy".into(), Phase::Failed)]);
}

#[test]
fn a_deleted_run_is_cancelled_and_released() {
    let mut world = deployed();
    let run = &world.store().runs["a-1"];
    assert_eq!(run["metadata"]["finalizers"], json!([RUN_FINALIZER]));
    world.store().delete("a-1");
    assert_eq!(world.runs.runs.len(), 1, "its finalizer holds it");
    settle(&mut world);
    assert!(world.runs.runs.is_empty(), "it is released");
    // The rollout does not begin anew by itself.
    assert_eq!(world.phases(), [("deploy".into(), Phase::Cancelled)]);
    let runs = world.runs.snapshot(world.now, &world.instance).runs;
    assert_eq!(runs[0].status.as_ref().unwrap().reason, "Deleted");
    // Its finalizer was removed by force.
    let mut world = deployed();
    world.store().runs.clear();
    settle(&mut world);
    assert_eq!(world.phases(), [("deploy".into(), Phase::Cancelled)]);
}

#[test]
fn a_rollout_that_is_deleted_before_it_starts_is_reported_and_can_be_retried() {
    let mut world = ready();
    world.edit(json!({"text": "y"}));
    let is_remembered = |world: &mut World| memory(world)["runs"].as_array().unwrap().len() == 2;
    while !is_remembered(&mut world) {
        let decision = world.decide();
        world.carry_out(decision.actions, decision.target_changes);
    }
    let run = &world.store().runs["a-2"];
    assert!(run["status"].is_null() && run["metadata"]["finalizers"].is_null(), "{run}");
    world.store().delete("a-2");
    let Verdict::Stalled { reason, message } = settle(&mut world) else { panic!() };
    assert!(reason == "RunCancelled" && message.contains("retry"), "{reason}: {message}");
    assert_eq!(world.phases().last(), Some(&("deploy".into(), Phase::Cancelled)));
    request(&mut world, "again", "deploy");
    world.store().runs.get_mut("again").unwrap()["spec"]["retryOf"] = "a-2".into();
    assert_eq!(settle(&mut world), Verdict::Ready { children: 1 });
    assert_eq!(world.value("a-c", "text"), "y");
}

#[test]
fn facts_survive_the_runs_that_recorded_them() {
    let mut world = ready();
    request(&mut world, "mine", "other");
    settle(&mut world);
    assert_eq!(memory(&mut world)["record"]["note"]["value"], "other");
    world.store().runs.clear();
    world.restart();
    assert_eq!(settle(&mut world), Verdict::Ready { children: 1 });
    assert_eq!(memory(&mut world)["record"]["note"]["value"], "other");
    assert_eq!(world.phases().len(), 2);
}

#[test]
fn restored_runs_never_run() {
    let mut world = ready();
    let mut restored = world.store().runs["a-1"].clone();
    restored["metadata"]["name"] = "a-9".into();
    restored["metadata"]["uid"] = "another".into();
    restored.as_object_mut().unwrap().remove("status");
    world.store().runs.insert("a-9".into(), restored);
    assert_eq!(settle(&mut world), Verdict::Ready { children: 1 });
    let status = &world.store().runs["a-9"]["status"];
    assert_eq!((&status["phase"], &status["reason"]), (&json!("Failed"), &json!("StateLost")));
    // Its name is not taken again.
    world.edit(json!({"text": "y"}));
    settle(&mut world);
    assert_eq!(world.value("a-c", "text"), "y");
}

#[test]
fn instance_without_its_memory_waits_for_a_person() {
    for (verdict, runs) in [("Approve", 0), ("Reject", 1)] {
        let mut world = ready();
        world.store().state = None;
        world.store().runs.clear();
        world.remove("ConfigMap/a-c");
        world.restart();
        let Verdict::Stalled { reason, message } = settle(&mut world) else { panic!() };
        assert_eq!(reason, "StateMissing");
        assert!(message.contains("operetta plan approve a-recover-"), "{message}");
        assert!(!world.server.objects.contains_key("ConfigMap/a-c"), "nothing is created");
        let question = world.store().runs.keys().next().unwrap().clone();
        let answer = |by: &str| json!({"step": "approve", "verdict": verdict, "by": by});
        let account = answer("system:serviceaccount:n:default");
        let spec = &mut world.store().runs.get_mut(&question).unwrap()["spec"];
        spec["approvals"] = json!([account]);
        assert!(matches!(settle(&mut world), Verdict::Stalled { .. }));
        let spec = &mut world.store().runs.get_mut(&question).unwrap()["spec"];
        spec["approvals"] = json!([account, answer("ann")]);
        settle(&mut world);
        let rollouts = world.store().runs.keys().filter(|name| **name != question).count();
        assert_eq!(rollouts, runs, "{verdict}");
        assert!(world.server.objects.contains_key("ConfigMap/a-c"), "{verdict}");
        assert_eq!(world.store().runs[&question]["status"]["phase"], "Succeeded");
    }
}

/// Answers have no time of their own: one that is noted only after the pause would count.
#[test]
fn an_unchecked_answer_about_a_paused_instance_never_counts() {
    let mut world = ready();
    world.store().state = None;
    world.store().runs.clear();
    world.restart();
    settle(&mut world);
    let question = world.store().runs.keys().next().unwrap().clone();
    world.instance["metadata"]["annotations"][names::PAUSED] = "true".into();
    world.store().protection.broken = Some("the policy is missing".into());
    let answer = json!({"step": "approve", "verdict": "Approve", "by": "ann"});
    world.store().runs.get_mut(&question).unwrap()["spec"]["approvals"] = json!([answer]);
    settle(&mut world);
    world.store().protection.broken = None;
    settle(&mut world);
    world.instance["metadata"]["annotations"].as_object_mut().unwrap().remove(names::PAUSED);
    assert!(matches!(settle(&mut world), Verdict::Stalled { .. }));
    assert_eq!(world.store().runs[&question]["status"]["phase"], "Running");
}

/// Attack: the question is created with its answer while nobody is checked, and seen once a policy is back.
#[test]
fn an_answer_with_which_a_question_was_forged_never_counts() {
    let mut world = ready();
    world.store().state = None;
    world.store().runs.clear();
    world.restart();
    settle(&mut world);
    let question = world.store().runs.keys().next().unwrap().clone();
    let forged = world.store().runs.get_mut(&question).unwrap();
    forged.as_object_mut().unwrap().remove("status");
    forged["metadata"]["creationTimestamp"] = "2020-01-01T00:00:00Z".into();
    forged["spec"]["approvals"] = json!([{"step": "approve", "verdict": "Approve", "by": "ann"}]);
    world.store().protection.since = Some("2021-01-01T00:00:00Z".parse().unwrap());
    assert!(matches!(settle(&mut world), Verdict::Stalled { .. }));
    assert_eq!(world.store().runs[&question]["status"]["phase"], "Running");
}

#[test]
fn the_memory_of_a_restored_instance_is_taken_over() {
    let mut world = ready();
    request(&mut world, "mine", "other");
    settle(&mut world);
    world.store().runs.clear();
    world.instance["metadata"]["uid"] = "restored".into();
    world.remove("ConfigMap/a-c");
    world.restart();
    settle(&mut world);
    let memory = memory(&mut world);
    assert_eq!((&memory["uid"], &memory["record"]["note"]["value"]), (&json!("restored"), &json!("other")));
    assert_eq!(world.instance["metadata"]["annotations"]["operetta.dev/state"], "restored");
}

#[test]
fn a_copy_of_an_instance_without_its_memory_is_not_deployed() {
    let mut world = ready();
    let before = world.phases().len();
    world.store().state = None;
    world.store().runs.clear();
    world.instance["metadata"]["uid"] = "copy".into();
    world.remove("ConfigMap/a-c");
    let Verdict::Stalled { message, .. } = settle(&mut world) else { panic!() };
    assert!(message.contains("remove the annotation operetta.dev/state"), "{message}");
    world.instance["metadata"]["annotations"].as_object_mut().unwrap().remove("operetta.dev/state");
    settle(&mut world);
    assert_eq!(world.phases().len(), before);
}

/// A user strips the finalizer, so that the instance goes without an end, and creates it again under its name.
#[test]
fn an_instance_that_is_created_again_takes_over_no_memory() {
    let mut world = ready();
    request(&mut world, "mine", "other");
    settle(&mut world);
    assert_eq!(memory(&mut world)["hasEnded"], false);
    world.store().runs.clear();
    world.instance["metadata"]["uid"] = "again".into();
    world.instance["metadata"]["annotations"].as_object_mut().unwrap().remove("operetta.dev/state");
    world.remove("ConfigMap/a-c");
    world.restart();
    settle(&mut world);
    open(&mut world);
    assert_eq!(settle(&mut world), Verdict::Ready { children: 1 });
    let memory = memory(&mut world);
    assert_eq!((&memory["uid"], &memory["record"]["note"]), (&json!("again"), &Value::Null));
    assert_eq!(plan_names(&world), ["deploy"], "it is rolled out anew");
    assert_eq!(world.instance["metadata"]["annotations"]["operetta.dev/state"], "again");
}

#[test]
fn the_memory_of_another_instance_is_not_taken_over() {
    for (field, value) in
        [("uid", "third"), ("of/kind", "Other"), ("of/name", "b"), ("of/apiVersion", "other.org/v1")]
    {
        let mut world = ready();
        let state = world.store().state.as_mut().unwrap();
        *state.pointer_mut(&format!("/spec/{field}")).unwrap() = value.into();
        world.restart();
        let Verdict::Stalled { reason, message } = settle(&mut world) else { panic!("{field}") };
        assert_eq!(reason, "StateMissing", "{field}");
        assert!(message.contains("restore the one of this instance"), "{message}");
    }
    // Another version of the kind is the same instance.
    let mut world = ready();
    world.store().state.as_mut().unwrap()["spec"]["of"]["apiVersion"] = "example.org/v2".into();
    world.restart();
    assert_eq!(settle(&mut world), Verdict::Ready { children: 1 });
}

#[test]
fn state_of_a_newer_format_waits_for_a_newer_operetta() {
    let mut world = ready();
    let written = world.store().state.clone().unwrap();
    world.store().state.as_mut().unwrap()["spec"]["format"] = 2.into();
    request(&mut world, "mine", "other");
    world.restart();
    world.edit(json!({"text": "y"}));
    let Verdict::Stalled { reason, message } = settle(&mut world) else {
        panic!("{:?}", world.decide().verdict)
    };
    assert_eq!(reason, "StateNewer");
    assert!(message.contains("format 2") && message.contains("upgrade Operetta"), "{message}");
    // Nothing is changed, and nobody is asked whether to go on without it.
    assert_eq!(world.value("a-c", "text"), "x");
    assert_eq!(world.store().runs.len(), 2);
    assert!(world.store().runs["mine"]["status"].is_null(), "the request has not begun");
    assert_eq!(memory(&mut world)["format"], 2);
    // A newer version, which knows the format, goes on.
    world.store().state = Some(written);
    world.restart();
    settle(&mut world);
    assert_eq!(world.value("a-c", "text"), "y");
    assert!(world.phases().iter().all(|(_, phase)| *phase == Phase::Succeeded), "{:?}", world.phases());
}

#[test]
fn an_altered_origin_is_not_rendered() {
    let mut world = ready();
    for origin in &mut world.store().origins {
        origin["data"]["instance"]["spec"]["text"] = "forged".into();
    }
    world.restart();
    settle(&mut world);
    assert_eq!(world.value("a-c", "text"), "x");
    world.edit(json!({"text": "y"}));
    settle(&mut world);
    assert_eq!(world.value("a-c", "text"), "y");
}

/// An instance with a run that asks, beside its rollout. The size 3 exceeds the limit of what an instance may evaluate.
fn asking() -> World {
    let text = "data: {text: \"{{ 'x' * (10 ** 9 if spec.size == 3 else 1) }}\"}\n";
    let body = format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: \"{{{{ name }}}}-c\"}}\n{text}");
    let mut world = World::with_runs(package(ASKS, &[("c", body)]), &json!({"size": 1}));
    world.settle();
    request(&mut world, "mine", "ask");
    world.settle();
    world
}

const ASKS: &str = "
children:
  - {id: c, template: templates/c.yaml}
plans:
  deploy:
    steps:
      - {name: all, apply: [c]}
  ask:
    exclusive: false
    steps:
      - {name: sure, approve: {message: \"'Sure?'\"}}
      - {name: note, record: {note: \"'x'\"}}
  cleanup:
    steps:
      - {name: sure, approve: {message: \"'Sure?'\"}}
";

/// Attack: an answer is given while no policy checks who gives it, and something holds the instance until one does.
fn forge_answer(world: &mut World, run: &str) {
    world.store().protection.broken = Some("the policy is missing".into());
    let answer = json!({"step": "sure", "verdict": "Approve", "by": "eve"});
    world.store().runs.get_mut(run).unwrap()["spec"]["approvals"] = json!([answer]);
    settle(world);
    world.store().protection.broken = None;
    settle(world);
}

fn phase_of(world: &mut World, run: &str) -> Value {
    world.store().runs[run]["status"]["phase"].clone()
}

#[test]
fn an_unchecked_answer_never_counts_when_the_package_was_not_loaded() {
    let mut world = asking();
    world.is_loaded = false;
    forge_answer(&mut world, "mine");
    world.is_loaded = true;
    settle(&mut world);
    assert_eq!(phase_of(&mut world, "mine"), "Running");
}

#[test]
fn an_unchecked_answer_never_counts_when_a_limit_was_exceeded() {
    let mut world = asking();
    world.edit(json!({"size": 3}));
    forge_answer(&mut world, "mine");
    world.edit(json!({"size": 1}));
    settle(&mut world);
    assert_eq!(phase_of(&mut world, "mine"), "Running");
}

#[test]
fn an_unchecked_answer_never_counts_when_the_state_was_lost() {
    let mut world = asking();
    let state = world.store().state.take();
    world.restart();
    forge_answer(&mut world, "mine");
    world.store().state = state;
    settle(&mut world);
    assert_eq!(phase_of(&mut world, "mine"), "Running");
}

#[test]
fn an_unchecked_answer_never_counts_when_the_revision_of_a_cleanup_was_missing() {
    let mut world = asking();
    world.instance["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    settle(&mut world);
    let is_cleanup = |run: &Value| run["spec"]["plan"] == "cleanup";
    let name = world.store().runs.iter().find(|(_, run)| is_cleanup(run)).unwrap().0.clone();
    let other = package(ASKS, &[("c", config("{{ name }}-c"))]);
    let old = std::mem::replace(&mut world.package, other);
    let revision = old.revision();
    world.store().revisions.insert(revision.clone().into(), Revision::Missing("gone".into()));
    forge_answer(&mut world, &name);
    world.store().revisions.insert(revision.into(), Revision::Loaded(old));
    settle(&mut world);
    assert_eq!(phase_of(&mut world, &name), "Running");
}
