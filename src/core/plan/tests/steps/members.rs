//! Steps that apply and delete children.

use serde_json::json;

use super::super::build::{StepBuild, apply, delete, note, plan, wait};
use super::super::sim::Sim;
use super::member;
use crate::plan::{Member, MemberState, Phase, REMAINING};

#[test]
fn an_apply_step_records_its_members_before_it_writes_them() {
    let mut sim =
        Sim::new(vec![plan("deploy", vec![apply("network", &["a", "b"]), apply("members", &["members"])])]);
    assert_eq!(sim.finish().phase, Phase::Succeeded);
    assert_eq!(sim.cluster.writes.len(), 5);
    assert_eq!(sim.status().applied.len(), 5);
    // The states: the intent of the first step; its result with the intent of the second; the end.
    assert_eq!(sim.history.len(), 3);
}

#[test]
fn steps_without_effects_are_stored_in_one_write() {
    let mut sim = Sim::new(vec![plan(
        "deploy",
        vec![apply("one", &["members[7]"]), wait("two", "spec.size == 3"), note("three", "done", "true")],
    )]);
    assert_eq!(sim.finish().phase, Phase::Succeeded);
    assert_eq!((sim.history.len(), sim.cluster.writes.len()), (1, 0));
    assert_eq!(sim.status().record["done"].value, json!(true));
}

#[test]
fn an_apply_step_applies_dependencies_that_no_step_names() {
    let mut sim =
        Sim::new(vec![plan("deploy", vec![apply("members", &["members"]), apply("later", &["b"])])]);
    sim.cluster.dependencies.insert("members".into(), vec!["a".into(), "b".into()]);
    sim.settle();
    assert_eq!(sim.cluster.writes[0], Member::new("a", None));
    assert_eq!(sim.cluster.writes.last(), Some(&Member::new("b", None)));
}

#[test]
fn a_member_that_does_not_become_ready_stops_the_run_at_its_step() {
    let steps = vec![apply("one", &["members[0]"]).timeout("5m"), apply("two", &["members[1]"])];
    let mut sim = Sim::new(vec![plan("upgrade", steps)]);
    sim.cluster.stuck.push(member(0));
    let status = sim.finish();
    assert_eq!((status.phase, status.reason.as_str()), (Phase::Failed, "Timeout"));
    assert_eq!(status.message, "step `one`: timed out after 5m: members[0]: is not ready");
    assert_eq!(status.applied, [member(0)]);
    assert!(status.used_milliseconds >= 300_000);
    assert_eq!(sim.cluster.writes, [member(0)]);
}

#[test]
fn only_a_step_that_names_no_member_waits_for_turns() {
    for (child, is_named, message) in [
        ("members", false, "members[0]: waits for members[1], and 2 more"),
        ("members[0]", true, "members[0]: is not applied yet"),
    ] {
        let mut sim = Sim::new(vec![plan("upgrade", vec![apply("one", &[child])])]);
        for index in 0..3 {
            let waits_for_turn = Some("waits for members[1]".to_owned());
            let state = MemberState { exists: true, waits_for_turn, ..MemberState::default() };
            sim.cluster.members.insert(member(index), state);
        }
        sim.turn();
        let progress = sim.decide();
        assert!(progress.permits.iter().all(|permit| permit.is_named == is_named), "{progress:?}");
        assert_eq!(progress.waiting[0].message, message);
    }
}

#[test]
fn computed_keys_of_an_apply_step_are_those_of_its_start() {
    let mut sim = Sim::new(vec![plan("upgrade", vec![apply("one", &["members[{{ spec.next }}]", "a"])])]);
    sim.cluster.spec = json!({"next": 1});
    sim.cluster.stuck.push(member(1));
    sim.settle();
    sim.cluster.spec = json!({"next": 2});
    sim.restart();
    assert_eq!(sim.settle().waiting[0].message, "members[1]: is not ready");
    sim.cluster.members.get_mut(&member(1)).unwrap().ready = true;
    assert_eq!(sim.finish().phase, Phase::Succeeded);
    assert_eq!(sim.cluster.writes, [member(1), Member::new("a", None)]);
}

#[test]
fn a_delete_step_records_and_waits_until_the_objects_are_gone() {
    let steps = vec![delete("old", &["members"]), apply("new", &["members[0]"])];
    let mut sim = Sim::new(vec![plan("restore", steps)]);
    for index in 0..4 {
        let state = MemberState { exists: true, current: true, ready: true, ..MemberState::default() };
        sim.cluster.members.insert(member(index), state);
    }
    assert_eq!(sim.finish().phase, Phase::Succeeded);
    assert_eq!(sim.cluster.deleted, [member(0), member(1), member(2), member(3)]);
    assert_eq!(sim.status().deleted, [member(1), member(2), member(3)]);
    assert_eq!(sim.status().applied, [member(0)]);
}

#[test]
fn rollout_applies_the_remaining_members_last() {
    let plans =
        vec![plan("upgrade", vec![apply("network", &["a"])]), plan("resize", vec![apply("network", &["b"])])];
    let mut sim = Sim::rollout(plans);
    assert_eq!(sim.finish().phase, Phase::Succeeded);
    assert_eq!(sim.status().applied.len(), 5);
    let paths: Vec<_> = sim.status().steps.iter().map(|step| step.path.as_str()).collect();
    assert_eq!(paths, ["upgrade/network", "resize/network", REMAINING]);
}

/// The target follows from the facts, so a step after a fact sees the target of the next decision.
#[test]
fn an_apply_after_a_fact_waits_until_the_fact_is_stored() {
    let steps = vec![note("beside", "generation", "1"), apply("volume", &["members[0]"])];
    let mut sim = Sim::new(vec![plan("restore", steps)]);
    assert_eq!(sim.finish().phase, Phase::Succeeded);
    assert!(sim.history[0].record.contains_key("generation") && sim.history[0].applied.is_empty());
    assert_eq!(sim.cluster.writes, [member(0)]);
}
