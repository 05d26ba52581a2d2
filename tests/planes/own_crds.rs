//! Operetta's own CRDs are deleted while a manager runs.

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use crate::support::ext::{Kind, LONG, Scene, is_ready, kind, name_of, run_flags, watching};
use crate::support::plans::{INSTANCE_STATE, PLAN_RUN, phase};
use crate::support::{eventually, own_embedded_plane};

const DESK: Kind = kind("fixtures.operetta.dev/v1", "desks");

fn instance(name: &str, stage: &str) -> String {
    let spec = json!({"stage": stage});
    json!({"apiVersion": DESK.api_version(), "kind": "Desk", "metadata": {"name": name}, "spec": spec})
        .to_string()
}

#[expect(clippy::disallowed_methods, reason = "API servers store the time of day")]
fn second() -> i64 {
    Timestamp::now().as_second()
}

fn is_marked(o: &Value) -> bool {
    o["metadata"]["annotations"]["operetta.dev/state"] == o["metadata"]["uid"]
}

/// The CRDs of PlanRuns and InstanceStates are deleted: they are created again, no run is repeated, and a
/// change of the instance starts a run.
#[tokio::test]
async fn deleted_kinds_of_runs_are_created_again() {
    let plane = own_embedded_plane().await;
    let mut manager = run_flags(&plane, &["--leader-elect=false"], &["plans-rules"]);
    watching(&mut manager, 1).await;
    let scene = Scene::on(&plane).await;
    scene.apply(&instance("d", "one")).await;
    scene.ready(DESK, "d").await;
    scene.until("marked", DESK, "d", is_marked).await;
    let uid_of = async |name: &str| {
        let crd = scene.kubectl(&["get", "crd", name, "-o", "jsonpath={.metadata.uid}"]).await;
        crd.trim().to_owned()
    };
    let before = uid_of("planruns.operetta.dev").await;
    scene.kubectl(&["delete", "crd", "planruns.operetta.dev"]).await;
    eventually("another CRD of PlanRuns", LONG, async || {
        let args = ["get", "crd", "planruns.operetta.dev", "-o", "jsonpath={.metadata.uid}"];
        let uid = scene.kubectl_input(&args, "").await?;
        if uid.trim() == before { Err("still the same".to_owned()) } else { Ok(()) }
    })
    .await;
    // The CRD stays until its last object is gone.
    scene.kubectl(&["delete", "crd", "instancestates.operetta.dev", "--wait=false"]).await;
    assert_eq!(scene.list(INSTANCE_STATE).await.len(), 1);
    scene.apply(&instance("d", "two")).await;
    let o = scene
        .until("the change", DESK, "d", |o| {
            is_ready(o) && o["status"]["trace"].as_str().is_some_and(|trace| trace.ends_with("two "))
        })
        .await;
    assert_eq!(
        o["status"]["trace"].as_str().map(|trace| trace.matches("deploy:one").count()),
        Some(1),
        "{o:#}"
    );
    let runs = scene.list(PLAN_RUN).await;
    assert_eq!(runs.len(), 1, "{runs:#?}");
    scene.kubectl(&["delete", "desks.fixtures.operetta.dev", "d"]).await;
    eventually("another CRD of InstanceStates", LONG, async || {
        let states = scene.kubectl_input(&["get", "instancestates.operetta.dev", "-o", "name"], "").await;
        states.map(drop)
    })
    .await;
    scene.apply(&instance("e", "one")).await;
    scene.ready(DESK, "e").await;
    let states = scene.list(INSTANCE_STATE).await;
    assert!(states.iter().any(|state| name_of(state).starts_with("e-")), "{states:#?}");
}

/// Before there were `InstanceState`s, facts were in an annotation of PlanRuns, and PlanRuns had no
/// finalizer. Such objects are migrated: no run is repeated, the active one continues, and the facts are kept.
#[tokio::test]
async fn runs_and_facts_from_before_instance_states_are_migrated() {
    let plane = own_embedded_plane().await;
    let scene = Scene::on(&plane).await;
    let mut manager = run_flags(&plane, &["--leader-elect=false"], &["plans-rules"]);
    watching(&mut manager, 1).await;
    scene.apply(&instance("d", "one")).await;
    scene.ready(DESK, "d").await;
    let held = scene.request(("Desk", DESK), "d", "hold", &Value::Null).await;
    scene.run_is(&held, "Running").await;
    scene.until("marked", DESK, "d", is_marked).await;
    eventually("the first run to be released", LONG, async || {
        let run = scene.get(PLAN_RUN, "d-1").await;
        if run["metadata"]["finalizers"].is_null() { Ok(()) } else { Err("not yet") }
    })
    .await;
    manager.kill9();
    drop(manager);

    // Put the objects into that form.
    let policies = "validatingadmissionpolicybindings,validatingadmissionpolicies";
    scene.kubectl(&["delete", policies, "--all"]).await;
    let states = scene.list(INSTANCE_STATE).await;
    assert_eq!(states.len(), 1, "{states:#?}");
    let patch = async |resource: &str, name: &str, patch: Value| {
        scene.kubectl(&["patch", resource, name, "--type=merge", "-p", &patch.to_string()]).await;
    };
    let facts = states[0]["spec"]["record"].to_string();
    assert!(facts.contains("deploy:one"), "{facts}");
    patch("planruns", "d-1", json!({"metadata": {"annotations": {"operetta.dev/record": facts}}})).await;
    patch("planruns", &held, json!({"metadata": {"finalizers": null}})).await;
    patch("instancestates", name_of(&states[0]), json!({"metadata": {"finalizers": null}})).await;
    let unmarked = json!({"metadata": {"annotations": {"operetta.dev/state": null}}});
    patch("desks.fixtures.operetta.dev", "d", unmarked).await;
    // The CRD is created again, later than the instance. API servers store times of creation in whole seconds.
    scene.kubectl(&["delete", "crd", "instancestates.operetta.dev"]).await;
    let created = scene.get(DESK, "d").await["metadata"]["creationTimestamp"].clone();
    let created: Timestamp = created.as_str().unwrap().parse().unwrap();
    eventually(
        "a later second",
        LONG,
        async || {
            if second() > created.as_second() { Ok(()) } else { Err("not yet") }
        },
    )
    .await;

    let mut manager = run_flags(&plane, &["--leader-elect=false"], &["plans-rules"]);
    watching(&mut manager, 1).await;
    scene.until("marked", DESK, "d", is_marked).await;
    scene.apply(&json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "d-gate"}, "data": {"open": "yes"}}).to_string()).await;
    scene.run_is(&held, "Succeeded").await;
    let has_facts =
        |o: &Value| is_ready(o) && o["status"]["trace"] == "deploy:one " && o["status"]["note"] == "held";
    scene.until("the facts", DESK, "d", has_facts).await;
    let runs = scene.list(PLAN_RUN).await;
    assert_eq!(runs.len(), 2, "{runs:#?}");
    assert!(runs.iter().all(|run| phase(run) == "Succeeded"), "{runs:#?}");
    let states = scene.list(INSTANCE_STATE).await;
    assert_eq!(states[0]["spec"]["record"]["trace"]["value"], "deploy:one ", "{states:#?}");
}
