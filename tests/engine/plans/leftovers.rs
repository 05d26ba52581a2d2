//! What runs leave behind and what they find: names that other runs have, deleted statuses, packages that no
//! longer have plans, metrics.

use serde_json::{Value, json};

use super::own::Own;
use super::{DESK, PROCEDURE, Stage};
use crate::support::barrier::Address;
use crate::support::plans::{ADMIN, CONTROLLER_REVISION, PLAN_RUN, phase, steps, story_of};
use crate::support::{CONFIG_MAP, LONG, POD, condition, eventually, is_ready, name_of};

const WORK: &str = "
        deploy:
          steps:
            - {name: all, apply: [config, deployment, service]}
        work:
          steps:
            - {name: gate, wait: {until: children.config.data.open == 'yes'}, timeout: 10m}
            - {name: note, record: {note: \"'done'\"}}
";

/// The next revision of the package has no plans. The run ends with its own revision, a restart does not lose
/// that revision, and everything of the runs is deleted with the instance.
#[tokio::test]
async fn run_ends_if_next_revision_has_no_plans() {
    let own = Own::with_instance("no-plans-left", WORK).await;
    let run = own.request("work").await;
    own.scene.until("waiting", PLAN_RUN, &run, |run| steps(run).contains_key("gate")).await;
    let own = own.without_plans("0.2.0").await;
    let own = own.without_plans("0.2.0").await;
    let waits = |o: &Value| condition(o, "Reconciling")["message"].to_string().contains("gate");
    own.scene.until("the run, which waits", own.kind, "s", waits).await;
    own.scene.patch(CONFIG_MAP, "s-config", "merge", &json!({"data": {"open": "yes"}})).await;
    let done = own.scene.run_is(&run, "Succeeded").await;
    assert_eq!(done["status"]["record"]["note"]["value"], "done", "{}", story_of(&done));
    let is_new =
        |o: &Value| is_ready(o) && o["status"]["revision"].as_str().is_some_and(|r| r.starts_with("0.2.0"));
    own.scene.until("the new revision", own.kind, "s", is_new).await;
    let holds = |config: &Value| config["data"]["version"] == "0.2.0";
    own.scene.until("the new children", CONFIG_MAP, "s-config", holds).await;
    // Without plans an edit is applied at once.
    own.edit(json!({"param": "b"})).await;
    own.scene.until("the edit", CONFIG_MAP, "s-config", |config| config["data"]["param"] == "b").await;
    own.scene.kubectl(&["delete", &own.kind.resource_name(), "s"]).await;
    eventually("nothing of its runs to be left", LONG, async || {
        let runs = own.scene.runs("s").await;
        let origins = own.scene.list(CONTROLLER_REVISION).await;
        let holds = runs.is_empty() && origins.is_empty();
        if holds { Ok(()) } else { Err(format!("{} runs, {} origins", runs.len(), origins.len())) }
    })
    .await;
}

/// `PlanRun`s of other instances have the names that the first runs would get.
#[tokio::test]
async fn names_of_other_runs_are_skipped() {
    let own = Own::new("held-name", WORK).await;
    for (name, of) in [("s-1", "another"), ("s-2", "one-more")] {
        let run = json!({
            "apiVersion": "operetta.dev/v1alpha1", "kind": "PlanRun", "metadata": {"name": name},
            "spec": {"plan": "deploy", "requestedBy": ADMIN, "of": {
                "apiVersion": own.kind.api_version(), "kind": "Server", "resource": "servers", "name": of}},
        });
        own.scene.kubectl_input(&["create", "-f", "-"], &run.to_string()).await.unwrap();
    }
    own.create(json!({})).await;
    own.ready().await;
    let runs = own.scene.runs("s").await;
    assert_eq!(runs.iter().map(name_of).collect::<Vec<_>>(), ["s-3"], "{runs:#?}");
    assert_eq!(phase(&runs[0]), "Succeeded");
}

/// A refused package stores no revision.
#[tokio::test]
async fn refused_package_stores_no_revision() {
    let own = Own::refused("refused-plans", WORK, "was not installed by Operetta").await;
    let label = "operetta.dev/package=kudo-refused-plans";
    match own.scene.kubectl_input(&["get", "operatorrevisions", "-l", label, "-o", "name"], "").await {
        Ok(stored) => assert_eq!(stored.trim(), ""),
        Err(missing) => assert!(missing.contains("doesn't have a resource type"), "{missing}"),
    }
    let parts = own.scene.kubectl(&["get", "configmaps", "-n", "operetta-system", "-o", "name"]).await;
    assert!(!parts.contains("kudo-refused-plans"), "{parts}");
}

#[tokio::test]
async fn runs_and_steps_are_measured() {
    let plans = format!(
        "{WORK}        broken:\n          steps:\n            - {{name: stop, fail: {{message: stopped}}}}\n"
    );
    let own = Own::with_instance("measured-plans", &plans).await;
    let broken = own.request("broken").await;
    own.scene.run_is(&broken, "Failed").await;
    let work = own.request("work").await;
    own.scene.until("waiting", PLAN_RUN, &work, |run| steps(run).contains_key("gate")).await;
    let address = Address::of(own.manager());
    let of = |plan: &str| {
        format!(
            "package=\"kudo-measured-plans\",kind=\"servers.measured-plans.kudo.example.com\",plan=\"{plan}\""
        )
    };
    let expected = [
        format!("operetta_runs_ended_total{{{},phase=\"Succeeded\"}} 1", of("deploy")),
        format!("operetta_runs_ended_total{{{},phase=\"Failed\"}} 1", of("broken")),
        // The counter exists before the first failure; otherwise an alert would see no increase.
        format!("operetta_runs_ended_total{{{},phase=\"Failed\"}} 0", of("work")),
        format!("operetta_run_duration_seconds_count{{{}}} 1", of("deploy")),
        format!("operetta_step_duration_seconds_count{{{},step=\"all\"}} 1", of("deploy")),
        format!("operetta_step_duration_seconds_count{{{},step=\"stop\"}} 1", of("broken")),
        "operetta_runs{package=\"kudo-measured-plans\",kind=\"servers.measured-plans.kudo.example.com\",state=\"active\"} 1".to_owned(),
        "operetta_oldest_run_age_seconds{package=\"kudo-measured-plans\",kind=\"servers.measured-plans.kudo.example.com\",state=\"waiting\"} 0".to_owned(),
    ];
    eventually("all of it in the metrics", LONG, async || {
        let metrics = address.metrics().await;
        match expected.iter().find(|line| !metrics.contains(*line)) {
            None => Ok(()),
            Some(line) => {
                let plans = metrics.lines().filter(|line| line.contains("run") || line.contains("step"));
                Err(format!("no {line} in\n{}", plans.collect::<Vec<_>>().join("\n")))
            }
        }
    })
    .await;
}

/// The status of an instance is deleted after a rollout has succeeded: its plan does not run again, and the
/// next edit counts as a change.
#[tokio::test]
async fn wiped_status_after_a_rollout_repeats_no_run() {
    let stage = Stage::with(("Desk", DESK), "d", json!({})).await;
    let runs = stage.runs("d").await;
    assert_eq!(runs.len(), 1, "{runs:#?}");
    let rollout = name_of(&runs[0]).to_owned();
    let holds = |o: &Value| {
        o["status"]["history"]
            .as_array()
            .is_some_and(|runs| runs.iter().any(|run| run["phase"] == "Succeeded"))
    };
    stage.until("its run in its status", DESK, "d", holds).await;
    stage.wipe(&rollout).await;
    stage.run_is(&rollout, "Succeeded").await;
    // A later run begins and ends: a run that is going to be repeated would have begun by now.
    stage.flag("d-gate", json!({"open": "yes"})).await;
    stage.requested(("Desk", DESK), "d", "hold", &Value::Null, "Succeeded").await;
    let o = stage.ready(DESK, "d").await;
    assert_eq!(stage.runs("d").await.len(), 2, "{:#?}", stage.runs("d").await);
    assert!(!o["status"]["trace"].as_str().unwrap_or_default().contains("deploy:one deploy:one"), "{o:#}");
}

/// The pod of a Job cannot start: the step reports the pod's message.
#[tokio::test]
async fn a_step_says_why_its_job_does_not_start() {
    let stage = Stage::with_commands().await;
    stage.ready_with(("Procedure", PROCEDURE), "p", json!({})).await;
    let run = stage.request(("Procedure", PROCEDURE), "p", "job", &json!({"end": "unpulled"})).await;
    let pod = eventually("its pod", LONG, async || {
        let pods = stage.list(POD).await;
        pods.first().map(|pod| name_of(pod).to_owned()).ok_or("none")
    })
    .await;
    stage.cannot_pull(&pod).await;
    let says = |o: &Value| condition(o, "Reconciling")["message"].to_string().contains("ImagePullBackOff");
    stage.until("the reason of the pod", PROCEDURE, "p", says).await;
    let shown = stage.operetta(&["plan", "status", &run]).await.ok();
    assert!(shown.contains("ImagePullBackOff"), "{shown}");
    stage.cancel(&run).await;
    stage.run_is(&run, "Cancelled").await;
}
