//! Operetta's own CRDs are deleted while a manager runs.

use serde_json::{Value, json};

use crate::support::ext::{CONFIG_MAP, DESK, LONG, PROCEDURE, Scene, is_ready, name_of, run_flags};
use crate::support::plans::{INSTANCE_STATE, PLAN_RUN};
use crate::support::{eventually, own_plane_of_tests};

fn instance(name: &str, stage: &str) -> String {
    let spec = json!({"stage": stage});
    json!({"apiVersion": DESK.api_version(), "kind": "Desk", "metadata": {"name": name}, "spec": spec})
        .to_string()
}

fn is_marked(o: &Value) -> bool {
    o["metadata"]["annotations"]["operetta.dev/state"] == o["metadata"]["uid"]
}

/// The CRDs of PlanRuns and InstanceStates are deleted: they are created again, no run is repeated, and a
/// change of the instance starts a run.
#[tokio::test]
async fn deleted_kinds_of_runs_are_created_again() {
    let plane = own_plane_of_tests().await;
    let _manager = run_flags(&plane, &["--leader-elect=false"], &["plans-rules"]).watching(1).await;
    let scene = Scene::on(&plane).await;
    scene.apply_ready(DESK, "d", &instance("d", "one")).await;
    scene.until("marked", DESK, "d", is_marked).await;
    let uid_of = async |name: &str| {
        let crd = scene.kubectl(&["get", "crd", name, "-o", "jsonpath={.metadata.uid}"]).await;
        crd.trim().to_owned()
    };
    let another = async |name: &str, before: &str| {
        eventually(&format!("another CRD {name}"), LONG, async || {
            let uid =
                scene.kubectl_input(&["get", "crd", name, "-o", "jsonpath={.metadata.uid}"], "").await?;
            if uid.trim() == before { Err("still the same".to_owned()) } else { Ok(()) }
        })
        .await;
    };
    let before = uid_of("planruns.operetta.dev").await;
    scene.kubectl(&["delete", "crd", "planruns.operetta.dev"]).await;
    another("planruns.operetta.dev", &before).await;
    // The CRD stays until its last object is gone.
    let before = uid_of("instancestates.operetta.dev").await;
    scene.kubectl(&["delete", "crd", "instancestates.operetta.dev", "--wait=false"]).await;
    assert_eq!(scene.list(INSTANCE_STATE).await.len(), 1);
    scene.apply(&instance("d", "two")).await;
    let holds =
        |o: &Value| is_ready(o) && o["status"]["trace"].as_str().is_some_and(|trace| trace.ends_with("two "));
    let o = scene.until("the change", DESK, "d", holds).await;
    assert_eq!(
        o["status"]["trace"].as_str().map(|trace| trace.matches("deploy:one").count()),
        Some(1),
        "{o:#}"
    );
    let runs = scene.list(PLAN_RUN).await;
    assert_eq!(runs.len(), 1, "{runs:#?}");
    scene.kubectl(&["delete", "desks.fixtures.operetta.dev", "d"]).await;
    another("instancestates.operetta.dev", &before).await;
    scene.apply_ready(DESK, "e", &instance("e", "one")).await;
    let states = scene.list(INSTANCE_STATE).await;
    assert!(states.iter().any(|state| name_of(state).starts_with("e-")), "{states:#?}");
}

/// The CRD of PlanRuns is deleted while a run is active: the API server deletes the run, whose finalizer waits for the manager, and
/// accepts no other. The run is cancelled and released first, and the next run finds the kind again.
#[tokio::test]
async fn an_active_run_does_not_hold_the_kind_of_runs_for_ever() {
    let plane = own_plane_of_tests().await;
    let _manager = run_flags(&plane, &["--leader-elect=false"], &["plans-steps"]).watching(1).await;
    let scene = Scene::on(&plane).await;
    let of = json!({"apiVersion": PROCEDURE.api_version(), "kind": "Procedure", "metadata": {"name": "p"}, "spec": {}});
    scene.apply_ready(PROCEDURE, "p", &of.to_string()).await;
    let active = scene.requested(("Procedure", PROCEDURE), "p", "wait", &json!({}), "Running").await;
    // An edit wants a rollout, which cannot be created meanwhile.
    scene.kubectl(&["delete", "crd", "planruns.operetta.dev", "--wait=false"]).await;
    scene.patch(PROCEDURE, "p", "merge", &json!({"spec": {"size": 3}})).await;
    scene.until("rolled out", CONFIG_MAP, "p-2", |_| true).await;
    scene.ready(PROCEDURE, "p").await;
    let left = scene.list(PLAN_RUN).await;
    assert!(left.iter().all(|run| name_of(run) != active), "{left:#?}");
    scene.requested(("Procedure", PROCEDURE), "p", "apply", &json!({}), "Succeeded").await;
    scene.kubectl(&["delete", "procedures.fixtures.operetta.dev", "p"]).await;
}
