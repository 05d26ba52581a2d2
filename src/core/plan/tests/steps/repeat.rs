//! Steps that run in rounds, each for an item that is picked when the round begins.

use serde_json::json;

use super::super::build::{StepBuild, apply, fail, http, note, pause, phase, plan};
use super::super::sim::{Sim, status};
use super::member;
use crate::package::plan::Step;
use crate::plan::{Phase, RecordedFact, StepPhase, retried};

/// Rounds with these steps for the items of `spec.list` that are not in `record.done`, and a last step that puts the item there.
fn rounds(mut steps: Vec<Step>) -> Step {
    steps.push(note("done", "done", "record.done | default([]) + [x]"));
    let pick = "spec.list | reject('in', record.done | default([])) | first";
    phase("all", steps).repeat(pick, "x", "record.done | default([]) | length == 2", 5)
}

#[test]
fn each_round_picks_its_item_when_it_begins() {
    let ask = http("ask", "POST", "http://h/{{ x }}").output("id", "body.id");
    let steps = vec![
        rounds(vec![ask]),
        note("sum", "sum", "[outputs.all | length, outputs.all[1].item, outputs.all[1].ask.id]"),
    ];
    let mut sim = Sim::new(vec![plan("deploy", steps)]);
    sim.turn();
    // The item of the round that has begun does not change, also across a restart.
    sim.restart();
    sim.cluster.spec = json!({"size": 3, "list": ["z", "p", "y"]});
    let status = sim.finish();
    assert_eq!(status.phase, Phase::Succeeded, "{}", status.message);
    assert_eq!(status.record["done"].value, json!(["p", "z"]));
    assert_eq!(status.record["sum"].value, json!([2, "z", "b-1"]));
    let steps: Vec<_> = sim.cluster.requests.iter().map(|(step, ..)| step.as_str()).collect();
    assert_eq!(steps, ["all[1-p]/ask", "all[2-z]/ask"]);
}

#[test]
fn item_that_is_picked_twice_has_another_key_in_each_round() {
    let count = note("count", "count", "record.count | default(0) + 1");
    let loop_ = phase("all", vec![http("ask", "POST", "http://h/"), count]).repeat(
        "'p'",
        "x",
        "record.count | default(0) == 2",
        5,
    );
    let mut sim = Sim::new(vec![plan("deploy", vec![loop_])]);
    assert_eq!(sim.finish().phase, Phase::Succeeded);
    assert_eq!(sim.cluster.requests.len(), 2);
    assert_ne!(sim.cluster.requests[0].1, sim.cluster.requests[1].1);
}

#[test]
fn loop_without_a_round_is_an_empty_list() {
    let steps = vec![
        phase("all", vec![fail("no", "never")]).repeat("'x'", "x", "spec.size == 3", 5),
        pause("rest", "5s"),
        note("sum", "sum", "outputs.all | length"),
    ];
    let mut sim = Sim::new(vec![plan("deploy", steps)]);
    assert_eq!(sim.finish().phase, Phase::Succeeded);
    assert_eq!(sim.status().record["sum"].value, json!(0));
}

#[test]
fn step_waits_while_nothing_is_picked() {
    let loop_ = phase("all", vec![note("done", "done", "x")]).repeat("spec.next", "x", "record.done == 2", 5);
    let mut sim = Sim::new(vec![plan("deploy", vec![loop_.timeout("5m")])]);
    let progress = sim.settle();
    let waiting = &progress.waiting[0];
    let message = "`spec.next` yields nothing for the next round yet";
    assert_eq!((waiting.reason, waiting.message.as_str()), ("Picking", message));
    assert!(sim.status().steps[0].items.is_none());
    // The timeout holds for each round.
    sim.now += std::time::Duration::from_secs(200);
    sim.cluster.spec = json!({"size": 3, "next": 1});
    sim.turn();
    sim.cluster.spec = json!({"size": 3, "next": null});
    assert_eq!(sim.settle().waiting[0].reason, "Picking");
    sim.now += std::time::Duration::from_secs(200);
    assert_eq!(sim.settle().waiting[0].reason, "Picking");
    let status = sim.finish();
    assert_eq!(status.message, format!("step `all`: timed out after 5m: {message}"));
    assert_eq!(status.used_milliseconds, 500_000);
    assert_eq!(status.record["done"].value, json!(1));
}

#[test]
fn rounds_are_limited() {
    let loop_ = phase("all", vec![note("done", "done", "x")]).repeat("spec.size", "x", "record.done == 2", 3);
    let mut sim = Sim::new(vec![plan("deploy", vec![loop_])]);
    let status = sim.finish();
    assert_eq!(status.reason, "TooManyRounds");
    assert_eq!(status.message, "step `all`: after 3 rounds `record.done == 2` is not true yet");
}

#[test]
fn retry_resumes_the_round_that_failed() {
    let mut sim = Sim::new(vec![plan("deploy", vec![rounds(vec![http("ask", "POST", "http://h/{{ x }}")])])]);
    sim.cluster.replies.insert("all[2-q]/ask".into(), vec![status(400, json!(null))]);
    assert_eq!(sim.finish().message, "step `all[2-q]/ask`: the server answered 400");
    assert_eq!(sim.phase_of("all[2-q]"), Some(StepPhase::Failed));
    sim.remembered.insert("done".to_owned(), RecordedFact { value: json!(["p"]), sequence: 1 });
    sim.run.status = Some(retried(&sim.run, jiff::Timestamp::UNIX_EPOCH));
    sim.cluster.by_key.clear();
    sim.cluster.spec = json!({"size": 3, "list": ["r", "q"]});
    assert_eq!(sim.finish().phase, Phase::Succeeded);
    assert_eq!(sim.status().record["done"].value, json!(["p", "q"]));
}

#[test]
fn end_of_a_round_is_stored_before_the_next_one_is_picked() {
    let replace = apply("replace", &["members[{{ x }}]"]);
    let until = "children.members | length == 3";
    let loop_ = phase("all", vec![replace]).repeat("children.members | default({}) | length", "x", until, 5);
    let mut sim = Sim::new(vec![plan("deploy", vec![loop_])]);
    sim.observes = true;
    assert_eq!(sim.finish().phase, Phase::Succeeded);
    assert_eq!(sim.cluster.writes, [member(0), member(1), member(2)]);
    for states in sim.history.windows(2) {
        let ended = |path: &str| states[0].step(path).is_some_and(|step| step.phase == StepPhase::Succeeded);
        for (before, path) in [("all[1-0]", "all[2-1]"), ("all[2-1]", "all[3-2]")] {
            assert!(
                states[1].step(path).is_none() || ended(before),
                "{path} begins after {before} is stored"
            );
        }
    }
}
