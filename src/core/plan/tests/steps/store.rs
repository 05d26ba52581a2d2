//! Steps that write parts of their answers into a Secret.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use super::super::build::{StepBuild, exec, note, plan};
use super::super::sim::{Sim, exit};
use crate::plan::{Phase, retried};

fn encoded(text: &str) -> Value {
    STANDARD.encode(text).into()
}

/// A run with the step `init`, which stores a key in the Secret `b`, if that exists.
fn init(data: Option<Map<String, Value>>) -> Sim {
    let step =
        exec("init", "members[0]").idempotent().stores("b", "root", "json.root").records("code", "exitCode");
    let mut sim = Sim::new(vec![plan("deploy", vec![step, note("after", "after", "1")])]);
    // The command prints the same key when it is repeated.
    let answer = exit(0, r#"{"root": "s3cret"}"#);
    sim.cluster.replies.insert("init".into(), vec![answer.clone(), answer]);
    sim.cluster
        .members
        .insert(super::member(0), crate::plan::MemberState { exists: true, ..Default::default() });
    sim.cluster.secret_data.extend(data.map(|data| ("b".to_owned(), data)));
    sim
}

#[test]
fn parts_of_an_answer_are_in_the_secret_before_the_step_is_done() {
    let mut undisturbed = init(Some(Map::new()));
    assert_eq!(undisturbed.finish().phase, Phase::Succeeded);
    for point in 0..=undisturbed.operations {
        for after in [false, true] {
            let mut sim = init(Some(Map::new()));
            sim.dies = Box::new(move |operation, is_after| (operation, is_after) == (point, after));
            let status = sim.finish().clone();
            assert_eq!(status.phase, Phase::Succeeded, "{point} {after}: {}", status.message);
            assert_eq!(sim.cluster.secret_data["b"]["root"], encoded("s3cret"));
            assert_eq!(status.record["code"].value, json!(0));
            let stored: Vec<String> = sim.history.iter().map(|status| status.to_json().to_string()).collect();
            assert!(!stored.concat().contains("s3cret"), "{stored:?}");
            assert!(status.step("init").is_some_and(|step| step.held));
        }
    }
}

#[test]
fn step_is_not_run_if_the_secret_has_its_key() {
    let mut sim = init(Some(Map::from_iter([("root".to_owned(), encoded("old"))])));
    let status = sim.finish().clone();
    assert_eq!(
        (status.phase, status.reason.as_str()),
        (Phase::Failed, "AlreadyStored"),
        "{}",
        status.message
    );
    assert!(sim.cluster.requests.is_empty());
    assert_eq!(sim.cluster.secret_data["b"]["root"], encoded("old"));
}

#[test]
fn answer_waits_for_its_secret_and_never_overwrites_a_key() {
    let mut sim = init(Some(Map::new()));
    while sim.cluster.requests.is_empty() {
        sim.turn();
    }
    // The Secret is deleted, and created by somebody else.
    sim.cluster.secret_data.clear();
    assert_eq!(sim.settle().waiting[0].reason, "StoreMissing");
    sim.cluster.secret_data.insert("b".into(), Map::from_iter([("root".to_owned(), encoded("other"))]));
    let status = sim.finish().clone();
    assert_eq!(
        (status.phase, status.reason.as_str()),
        (Phase::Failed, "StoreConflict"),
        "{}",
        status.message
    );
    assert_eq!(sim.cluster.secret_data["b"]["root"], encoded("other"));
    // A retry stores the answer that is kept.
    sim.cluster.secret_data.insert("b".into(), Map::new());
    sim.run.status = Some(retried(&sim.run, jiff::Timestamp::UNIX_EPOCH));
    assert_eq!(sim.finish().phase, Phase::Succeeded);
    assert_eq!(sim.cluster.requests.len(), 1);
    assert_eq!(sim.cluster.secret_data["b"]["root"], encoded("s3cret"));
}

#[test]
fn request_is_not_repeated_before_it_is_known_whether_its_answer_is_stored() {
    let mut sim = init(Some(Map::new()));
    while sim.memory_has_no_secrets() {
        sim.turn();
    }
    sim.restart();
    sim.cluster.is_unread = true;
    assert_eq!(sim.settle().waiting[0].message, "Secret x is being listed");
    sim.cluster.is_unread = false;
    assert_eq!(sim.finish().phase, Phase::Succeeded);
    assert_eq!(sim.cluster.requests.len(), 1);
}

#[test]
fn step_waits_until_its_secret_exists() {
    let mut sim = init(None);
    assert_eq!(sim.settle().waiting[0].message, "b, in which it stores, does not exist");
    assert!(sim.cluster.requests.is_empty());
    sim.cluster.secret_data.insert("b".into(), Map::new());
    assert_eq!(sim.finish().phase, Phase::Succeeded);
}

#[test]
fn value_that_is_no_string_is_not_lost() {
    let mut sim = init(Some(Map::new()));
    sim.cluster.replies.insert("init".into(), vec![exit(0, r#"{"root": {"a": "s3cret"}}"#)]);
    let status = sim.finish().clone();
    assert_eq!(status.reason, "StoreFailed");
    assert!(status.message.contains("is kept in Secret x-outputs-"), "{}", status.message);
    assert!(!status.message.contains("s3cret"), "{}", status.message);
}
