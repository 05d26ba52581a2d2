//! Every kind of step and every modifier: each has a requested run, with its end and its visible effects.

use serde_json::{Value, json};

use super::{PROCEDURE, Stage};
use crate::support::plans::{PLAN_RUN, events_about, phase, steps, story_of};
use crate::support::{CONFIG_MAP, LONG, condition, eventually, is_ready};

const KIND: (&str, crate::support::ext::Kind) = ("Procedure", PROCEDURE);

/// A plan, its parameters, the phase in which its run ends, what the run reports, and the instance's status.
struct Case {
    plan: &'static str,
    params: Value,
    ends: &'static str,
    says: &'static [&'static str],
    status: Value,
}

fn case(plan: &'static str, ends: &'static str) -> Case {
    Case { plan, params: Value::Null, ends, says: &[], status: json!({}) }
}

impl Case {
    fn with(self, params: Value) -> Self {
        Self { params, ..self }
    }

    fn says(self, says: &'static [&'static str]) -> Self {
        Self { says, ..self }
    }

    fn status(self, status: Value) -> Self {
        Self { status, ..self }
    }
}

/// Runs a plan of an instance of its own and checks the result.
async fn check(stage: &Stage, number: usize, case: &Case) {
    let name = format!("p{number}");
    stage.ready_with(KIND, &name, json!({})).await;
    let run = stage.request(KIND, &name, case.plan, &case.params).await;
    let run = stage.run_is(&run, case.ends).await;
    let story = story_of(&run);
    for text in case.says {
        assert!(story.contains(text), "{}: no {text:?} in {story}", case.plan);
    }
    let wanted = case.status.as_object().expect("a map");
    let fails = case.ends == "Failed";
    // A failed run that has changed nothing of the instance does not stall it.
    let told_by = |o: &Value| ["Stalled", "RunFailed"].map(|kind| condition(o, kind).clone());
    let holds = |o: &Value| {
        let [stalled, failed] = told_by(o);
        is_ready(o) == stalled.is_null()
            && fails != (stalled.is_null() && failed.is_null())
            && wanted.iter().all(|(key, value)| o["status"][key] == *value)
    };
    let found = stage.until(&format!("{}: {}", case.plan, case.status), PROCEDURE, &name, holds).await;
    if fails {
        let told = Value::from(told_by(&found).to_vec()).to_string();
        assert!(told.contains(case.plan), "{}: {told}", case.plan);
        for text in case.says {
            assert!(told.contains(text), "{}: no {text:?} in {told}", case.plan);
        }
    }
}

async fn all(cases: Vec<Case>) {
    let stage = Stage::new().await;
    let stage = &stage;
    futures::future::join_all(cases.iter().enumerate().map(|(number, case)| check(stage, number, case)))
        .await;
}

#[tokio::test]
async fn steps_of_every_kind_work() {
    all(vec![
        case("apply", "Succeeded"),
        case("delete", "Succeeded").status(json!({"note": "gone"})),
        case("pause", "Succeeded"),
        case("wait-json-path", "Succeeded"),
        case("inline", "Succeeded").status(json!({"note": "from inline"})),
        case("noting", "Succeeded").with(json!({"text": "hello"})).status(json!({"note": "hello"})),
        case("fail", "Failed").says(&["stop", "size is 2"]),
        case("two-records", "Succeeded").status(json!({"note": "12"})),
    ])
    .await;
}

#[tokio::test]
async fn modifiers_decide_what_runs_and_what_a_failure_means() {
    all(vec![
        case("each", "Succeeded").status(json!({"note": "abc"})),
        case("each", "Succeeded")
            .with(json!({"items": ["x", "skip", "not", "y"]}))
            .status(json!({"note": "xy"})),
        case("each", "Succeeded").with(json!({"items": []})),
        case("each-continue", "Succeeded").status(json!({"note": "item 3"})),
        case("phases", "Succeeded").status(json!({"note": "last"})),
        case("parallel-failure", "Failed").says(&["both/bad", "bad"]),
        case("continue", "Succeeded").status(json!({"note": "after"})),
        case("rescue", "Failed").says(&["bad"]).status(json!({"note": "rescued"})),
        case("unless", "Succeeded").status(json!({"note": "two"})),
        case("wait-short", "Failed").says(&["flag"]),
    ])
    .await;
}

#[tokio::test]
async fn too_large_values_fail_the_step_that_stores_them() {
    all(vec![
        case("large", "Failed").says(&["large", "32 KiB"]),
        case("text-job", "Failed").with(json!({"message": "x".repeat(4097)})).says(&["work", "4 KiB"]),
    ])
    .await;
}

/// A step that is skipped or done is listed by its path; a step that was not reached has no state.
#[tokio::test]
async fn run_reports_the_state_of_each_step() {
    let stage = Stage::with(KIND, "p", json!({})).await;
    for (plan, wanted) in [
        ("phases", &["first", "first/a", "first/b", "second", "second/slow", "second/quick", "last"][..]),
        ("each", &["items", "items[a]", "items[b]", "items[c]"]),
        ("inline", &["before", "called", "called/pause", "with", "with/note"]),
    ] {
        let run = stage.request(KIND, "p", plan, &Value::Null).await;
        let run = stage.run_is(&run, "Succeeded").await;
        let found = steps(&run);
        for path in wanted {
            assert!(found.contains_key(*path), "{plan}: no {path} in {}", story_of(&run));
        }
    }
    let run = stage.request(KIND, "p", "fail", &Value::Null).await;
    let run = stage.run_is(&run, "Failed").await;
    assert!(!steps(&run).contains_key("never"), "{}", story_of(&run));
}

#[tokio::test]
async fn wait_reports_its_condition_and_ends_when_true() {
    let stage = Stage::with(KIND, "p", json!({})).await;
    let run = stage.requested(KIND, "p", "wait", &Value::Null, "Running").await;
    let waits =
        |o: &Value| condition(o, "Reconciling")["message"].to_string().contains("the flag of p is not up");
    stage.until("its message", PROCEDURE, "p", waits).await;
    stage.flag("p-flag", json!({"up": "yes"})).await;
    stage.run_is(&run, "Succeeded").await;
    let done = stage.ready(PROCEDURE, "p").await;
    assert!(condition(&done, "Reconciling").is_null(), "{:#}", done["status"]);
}

/// Each transition of a run gives an Event of the instance.
#[tokio::test]
async fn transitions_of_runs_give_events() {
    let stage = Stage::with(KIND, "p", json!({})).await;
    for (plan, ends) in [("pause", "Succeeded"), ("fail", "Failed")] {
        let run = stage.request(KIND, "p", plan, &Value::Null).await;
        stage.run_is(&run, ends).await;
        eventually("Events", LONG, async || {
            let about = events_about(&stage, "p").await;
            let told = about.lines().filter(|line| line.contains(&run)).count();
            if told >= 2 { Ok(()) } else { Err(about) }
        })
        .await;
    }
}

#[tokio::test]
async fn an_apply_has_its_own_readiness() {
    let stage = Stage::with(KIND, "p", json!({})).await;
    let run = stage.requested(KIND, "p", "until", &Value::Null, "Running").await;
    stage.flag("p-flag", json!({"up": "yes"})).await;
    stage.run_is(&run, "Succeeded").await;
}

/// The `when` of a phase is evaluated when the run reaches it.
#[tokio::test]
async fn the_when_of_a_phase_is_decided_once() {
    let stage = Stage::with(KIND, "p", json!({})).await;
    let run = stage.request(KIND, "p", "decided-once", &Value::Null).await;
    let inside = |run: &Value| steps(run).contains_key("phase/flag");
    stage.until("within the phase", PLAN_RUN, &run, inside).await;
    stage.flag("p-flag", json!({"up": "yes"})).await;
    stage.run_is(&run, "Succeeded").await;
    stage.until("the second step", PROCEDURE, "p", |o| o["status"]["note"] == "still here").await;
}

#[tokio::test]
async fn a_patch_changes_an_object_that_is_no_child() {
    let stage = Stage::with(KIND, "p", json!({})).await;
    stage.flag("mine", json!({"kept": "yes"})).await;
    stage.requested(KIND, "p", "patch", &json!({"target": "mine"}), "Succeeded").await;
    assert_eq!(stage.get(CONFIG_MAP, "mine").await["data"], json!({"kept": "yes", "marked": "p"}));
    let run = stage.request(KIND, "p", "patch", &json!({"target": "missing"})).await;
    let run = stage.run_is(&run, "Failed").await;
    assert!(story_of(&run).contains("missing"), "{}", story_of(&run));
}

/// A step that runs a plan of another instance creates a request there, and waits for its end.
#[tokio::test]
async fn a_plan_of_another_instance_is_requested_there() {
    let stage = Stage::with(KIND, "p", json!({})).await;
    stage.ready_with(KIND, "q", json!({})).await;
    stage.requested(KIND, "p", "other", &json!({"instance": "q"}), "Succeeded").await;
    stage.until("its note", PROCEDURE, "q", |o| o["status"]["note"] == "p").await;
    let there = stage.runs("q").await;
    assert!(
        there.iter().any(|run| run["spec"]["plan"] == "noting" && phase(run) == "Succeeded"),
        "{there:#?}"
    );
    let run = stage.request(KIND, "p", "other", &json!({"instance": "nobody"})).await;
    let waits = |run: &Value| story_of(run).contains("nobody");
    stage.until("what it waits for", PLAN_RUN, &run, waits).await;
    stage.cancel(&run).await;
    stage.run_is(&run, "Cancelled").await;
}

#[tokio::test]
async fn people_approve_and_reject() {
    let stage = Stage::with(KIND, "p", json!({})).await;
    let run = stage.request(KIND, "p", "approve", &Value::Null).await;
    let asks = |run: &Value| story_of(run).contains("Delete the data of p?");
    stage.until("the question", PLAN_RUN, &run, asks).await;
    let shown = |o: &Value| o["status"].to_string().contains("Delete the data of p?");
    stage.until("the question", PROCEDURE, "p", shown).await;
    // A run that only waits for approval does not block other runs.
    stage.requested(KIND, "p", "noting", &json!({"text": "meanwhile"}), "Succeeded").await;
    stage.answer(&run, "sure", "Approve").await;
    stage.run_is(&run, "Succeeded").await;
    stage.until("its note", PROCEDURE, "p", |o| o["status"]["note"] == "approved").await;

    let run = stage.request(KIND, "p", "approve", &Value::Null).await;
    stage.until("the question", PLAN_RUN, &run, asks).await;
    stage.answer(&run, "sure", "Reject").await;
    let run = stage.run_is(&run, "Failed").await;
    assert!(story_of(&run).contains("admin"), "{}", story_of(&run));
}

/// Secret outputs are only in a Secret, and after the end of the run nowhere.
#[tokio::test]
async fn a_secret_output_is_kept_in_a_secret() {
    let stage = Stage::with(KIND, "p", json!({})).await;
    let canary = "canary-51ab";
    let params = json!({"message": json!({"id": canary}).to_string()});
    let name = stage.request(KIND, "p", "secret-output", &params).await;
    let holding = async || {
        let all = stage.list(crate::support::ext::SECRET).await;
        let held = all.iter().filter(|o| {
            let data = o["data"].as_object().cloned().unwrap_or_default();
            data.values().any(|value| {
                use base64::Engine;
                let bytes =
                    base64::engine::general_purpose::STANDARD.decode(value.as_str().unwrap_or_default());
                bytes.is_ok_and(|bytes| String::from_utf8_lossy(&bytes).contains(canary))
            })
        });
        held.count()
    };
    let are_held = async |most: usize| {
        eventually(&format!("{most} Secrets with the output"), LONG, async || match holding().await {
            count if count == most => Ok(()),
            count => Err(format!("{count} Secrets hold it")),
        })
        .await;
    };
    // The Secret exists while a later step may read it.
    are_held(1).await;
    stage.flag("p-flag", json!({"up": "yes"})).await;
    let run = stage.run_is(&name, "Succeeded").await;
    // The parameters of the run, which the requester has written, are not hidden.
    assert!(!run["status"].to_string().contains(canary), "{}", story_of(&run));
    assert!(run["status"].to_string().contains("visible"), "{}", story_of(&run));
    assert!(!stage.get(PROCEDURE, "p").await["status"].to_string().contains(canary));
    are_held(0).await;
    let holds = |run: &Value| run["status"].to_string().contains("(secret, not kept)");
    stage.until("its end in the run", PLAN_RUN, &name, holds).await;
}
