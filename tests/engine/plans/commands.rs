//! `operetta plan`: its output, and the exit codes that scripts use.

use serde_json::{Value, json};

use super::{DESK, PROCEDURE, Stage};
use crate::support::plans::{PLAN_RUN, phase, story_of};

const DESKS: (&str, crate::support::ext::Kind) = ("Desk", DESK);
const PROCEDURES: (&str, crate::support::ext::Kind) = ("Procedure", PROCEDURE);

fn json_of(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[tokio::test]
async fn a_run_is_requested_awaited_and_shown() {
    let stage = Stage::with_commands().await;
    stage.ready_with(PROCEDURES, "p", json!({})).await;
    let list = stage.operetta(&["plan", "list", "procedures.fixtures.operetta.dev/p"]).await.ok();
    for plan in ["deploy", "job", "approve"] {
        assert!(
            list.lines().any(|line| line.split_whitespace().next() == Some(plan)),
            "no {plan} in\n{list}"
        );
    }
    let told =
        stage.operetta(&["plan", "run", "procedures.fixtures.operetta.dev/p", "phases", "--wait"]).await.ok();
    for step in ["first", "a", "b", "second", "slow", "quick", "last"] {
        assert!(told.contains(step), "no {step} in\n{told}");
    }
    stage
        .operetta(&[
            "plan",
            "run",
            "procedures.fixtures.operetta.dev/p",
            "noting",
            "--param",
            "text=from the command line",
            "--wait",
        ])
        .await
        .ok();
    stage.until("its note", PROCEDURE, "p", |o| o["status"]["note"] == "from the command line").await;

    let status = stage.operetta(&["plan", "status", "procedures.fixtures.operetta.dev/p"]).await.ok();
    assert!(status.contains("noting") && status.contains("note") && status.contains("Succeeded"), "{status}");
    let status = json_of(
        &stage.operetta(&["plan", "status", "procedures.fixtures.operetta.dev/p", "-o", "json"]).await.ok(),
    );
    assert!(status.to_string().contains("noting"), "{status:#}");
    let history = stage.operetta(&["plan", "history", "procedures.fixtures.operetta.dev/p"]).await.ok();
    for plan in ["deploy", "phases", "noting"] {
        assert!(history.contains(plan), "no {plan} in\n{history}");
    }
    json_of(
        &stage.operetta(&["plan", "history", "procedures.fixtures.operetta.dev/p", "-o", "json"]).await.ok(),
    );
}

#[tokio::test]
async fn failure_gives_an_exit_code_and_can_be_retried() {
    let stage = Stage::with_commands().await;
    stage.ready_with(DESKS, "d", json!({})).await;
    let output = stage.operetta(&["plan", "run", "desk/d", "broken", "--param", "mode=good", "--wait"]).await;
    assert_eq!(output.status.code(), Some(1), "{output:#?}");
    let told = format!("{}{}", output.stdout, output.stderr);
    assert!(told.contains("two") && told.contains("the gate is not open"), "{told}");
    let waited = stage.operetta(&["plan", "wait", "desk/d"]).await;
    assert_eq!(waited.status.code(), Some(1), "{waited:#?}");
    stage.flag("d-gate", json!({"open": "yes"})).await;
    stage.operetta(&["plan", "retry", "desk/d", "--wait"]).await.ok();
    stage.until("done", DESK, "d", |o| o["status"]["note"] == "one three").await;
    let again = stage.operetta(&["plan", "retry", "desk/d"]).await.fails();
    assert!(again.contains("not failed") || again.contains("Succeeded"), "{again}");
    for args in [
        &["plan", "run", "desk/d", "sleep"][..],
        &["plan", "run", "desk/nobody", "hold"],
        &["plan", "run", "desk/d", "broken", "--param", "mode=ugly"],
    ] {
        let told = stage.operetta(args).await.fails();
        assert!(!told.is_empty(), "{args:?}");
    }
}

#[tokio::test]
async fn a_run_is_cancelled_and_a_question_answered() {
    let stage = Stage::with_commands().await;
    stage.ready_with(DESKS, "d", json!({})).await;
    let held = stage.requested(DESKS, "d", "hold", &Value::Null, "Running").await;
    let timed_out = stage.operetta(&["plan", "wait", "desk/d", "--timeout", "1s"]).await;
    assert!(!timed_out.status.success(), "{timed_out:#?}");
    stage.operetta(&["plan", "cancel", "desk/d"]).await.ok();
    stage.run_is(&held, "Cancelled").await;
    let run = stage.request(DESKS, "d", "sure", &Value::Null).await;
    let holds = |run: &Value| story_of(run).contains("Delete the data of d, stage one?");
    stage.until("the question", PLAN_RUN, &run, holds).await;
    let asked = stage.operetta(&["plan", "approve", "desk/d"]).await.ok();
    let run = stage.run_is(&run, "Succeeded").await;
    assert!(asked.contains("sure"), "{asked}");
    assert_eq!(run["spec"]["approvals"][0]["by"], "admin", "{}", story_of(&run));
    let rejected = stage.request(DESKS, "d", "sure", &Value::Null).await;
    stage.until("the question", PLAN_RUN, &rejected, |run| phase(run) == "Running").await;
    stage.operetta(&["plan", "approve", "desk/d", "--reject"]).await.ok();
    stage.run_is(&rejected, "Failed").await;
}
