//! Steps that send a request or execute a command.

use serde_json::json;

use super::super::build::{StepBuild, exec, http, note, plan, text};
use super::super::sim::{Sim, cut, exit, status};
use super::member;
use crate::package::plan::{Action, Auth};
use crate::plan::{CallKey, Member, MemberState, Phase, RunAction, RunStatus, StepPhase, idempotency_key};
use crate::template::Var;

#[test]
fn http_retries_use_one_key_and_give_up_on_other_answers() {
    let mut sim = Sim::new(vec![plan("deploy", vec![http("book", "POST", "http://h/b").retries(None, 2)])]);
    sim.cluster
        .replies
        .insert("book".into(), vec![cut(), status(503, json!(null)), status(429, json!(null))]);
    assert_eq!(sim.finish().phase, Phase::Succeeded);
    assert_eq!(sim.cluster.requests.len(), 4);
    assert!(
        sim.cluster.requests.iter().all(|(_, key, _)| *key == idempotency_key("instance", "root", "book"))
    );

    let mut sim = Sim::new(vec![plan("deploy", vec![http("book", "POST", "http://h/b").retries(None, 2)])]);
    sim.cluster.replies.insert("book".into(), vec![status(400, json!("secret"))]);
    let status = sim.finish();
    assert_eq!(
        (status.reason.as_str(), status.message.as_str()),
        ("UnexpectedAnswer", "step `book`: the server answered 400")
    );
    assert_eq!(sim.cluster.requests.len(), 1);
}

#[test]
fn a_request_with_an_unusable_user_or_key_is_not_sent() {
    let unusable = [
        ("auth.basic.username contains `:`", None, Some("{{ name }}:b")),
        ("`key` is empty", Some("{{ '' }}"), None),
        ("`key` is empty", Some("{{ ' ' }}"), None),
    ];
    for (words, key, user) in unusable {
        let mut book = http("book", "POST", "http://h/b");
        if let Action::Http(http) = &mut book.action {
            http.key = key.map(text);
            http.auth = user.map(|user| Auth::Basic(text(user), text("{{ 'x:y' }}")));
        }
        let mut sim = Sim::new(vec![plan("deploy", vec![book])]);
        let status = sim.finish();
        assert_eq!(status.phase, Phase::Failed);
        assert!(status.message.contains(words), "{}", status.message);
        assert!(sim.cluster.requests.is_empty());
    }
}

#[test]
fn request_that_may_have_been_sent_is_not_changed() {
    let mut sim = Sim::new(vec![plan("deploy", vec![http("book", "POST", "http://h/b").retries(None, 2)])]);
    sim.silent = true;
    assert!(sim.turn());
    sim.turn();
    sim.restart();
    // Unchanged: it is repeated.
    let repeated = sim.decide();
    assert!(
        matches!(&repeated.effects[..], [RunAction::Call(CallKey { attempt: 1, .. }, _)]),
        "{repeated:?}"
    );
    sim.cluster.spec = json!({"size": 4});
    sim.silent = false;
    assert_eq!(sim.finish().reason, "RequestChanged");
    assert!(sim.cluster.requests.is_empty());
}

#[test]
fn a_condition_that_clears_ends_the_attempts() {
    let mut sim = Sim::new(vec![plan(
        "deploy",
        vec![http("book", "POST", "http://h/b").when("not refs.booked").retries(None, 2)],
    )]);
    sim.cluster.refs.insert("booked".into(), Var::Json(json!(false)));
    sim.cluster.replies.insert("book".into(), vec![cut()]);
    sim.settle();
    sim.cluster.refs.insert("booked".into(), Var::Json(json!(true)));
    assert_eq!(sim.finish().phase, Phase::Succeeded);
    assert_eq!(sim.phase_of("book"), Some(StepPhase::Skipped));
    assert_eq!(sim.cluster.requests.len(), 1);
}

#[test]
fn a_command_is_repeated_after_a_restart_only_if_that_is_safe() {
    for (step, expected) in [
        (exec("run", "a"), "OutcomeUnknown"),
        (exec("run", "a").idempotent(), ""),
        (exec("run", "a").when("spec.size == 3"), ""),
    ] {
        let mut sim = Sim::new(vec![plan("deploy", vec![step])]);
        let state = MemberState { exists: true, ..MemberState::default() };
        sim.cluster.members.insert(Member::new("a", None), state);
        sim.silent = true;
        sim.turn();
        sim.turn();
        sim.restart();
        sim.silent = false;
        assert_eq!(sim.finish().reason, expected);
    }
}

#[test]
fn a_command_is_retried_until_its_timeout() {
    let mut sim =
        Sim::new(vec![plan("deploy", vec![exec("run", "a").idempotent().retries(None, 1).timeout("30s")])]);
    let state = MemberState { exists: true, ..MemberState::default() };
    sim.cluster.members.insert(Member::new("a", None), state);
    sim.cluster.replies.insert("run".into(), vec![exit(1, ""); 100]);
    let status = sim.finish();
    assert_eq!(status.reason, "Timeout");
    assert_eq!(
        status.message,
        "step `run`: timed out after 30s; last attempt: the command ended with exit code 1: no"
    );
    assert_eq!(status.step("run").unwrap().failures, 5);
}

#[test]
fn secret_outputs_are_not_in_the_status() {
    let mut made = http("make", "POST", "http://h/").output("token", "body.id");
    made.outputs[0].secret = true;
    let mut sim =
        Sim::new(vec![plan("deploy", vec![made, http("use", "POST", "http://h/{{ outputs.make.token }}")])]);
    assert_eq!(sim.finish().phase, Phase::Succeeded);
    assert!(!sim.status().to_json().to_string().contains("b-1"));
    assert_eq!(sim.cluster.requests.len(), 2);
}

/// An observation that was made before an effect says nothing about what follows.
#[test]
fn steps_after_an_effect_use_new_observations() {
    let remove = exec("remove", "members[0]").idempotent();
    let steps = vec![remove, note("again", "seen", "true").when("spec.size == 3")];
    for observes in [false, true] {
        let mut sim = Sim::new(vec![plan("resize", steps.clone())]);
        let state = MemberState { exists: true, current: true, ready: true, ..MemberState::default() };
        sim.cluster.members.insert(member(0), state);
        sim.observes = observes;
        assert_eq!(sim.finish().phase, Phase::Succeeded);
        let is_done = |status: &&RunStatus| status.steps[0].phase == StepPhase::Succeeded;
        let first = sim.history.iter().find(is_done).unwrap();
        assert_eq!(
            first.steps.len(),
            if observes { 1 } else { 2 },
            "the next step is in a decision of its own"
        );
    }
}
