//! Instances without a namespace: their runs and Jobs are in the manager's namespace.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::CONTINENT;
use crate::support::ext::{
    CONFIG_MAP, JOB, Kind, LONG, Scene, condition, find_in, fixture, is_ready, name_of, read, run_flags,
};
use crate::support::plans::{ADMIN, PLAN_RUN, phase, plans_of, story_of};
use crate::support::{ControlPlane, Operetta, eventually, own_embedded_plane};

/// The namespace of the manager.
const HOME: &str = "home-of-continents";
const CONTINENTS: &str = "continents.fixtures.operetta.dev";

async fn manager(plane: &ControlPlane) -> Operetta {
    let namespace = format!("--namespace={HOME}");
    let flags = [
        "--leader-elect=false",
        "--leader-elect-resource-name=cluster-scoped",
        "--leader-elect-resource-namespace=default",
        &namespace,
    ];
    run_flags(plane, &flags, &[&fixture("plans-cluster-scoped")]).watching(1).await
}

/// The objects of a kind in the manager's namespace.
async fn at_home(scene: &Scene, kind: Kind) -> Vec<Value> {
    let path = kind.path(Some(HOME), "");
    let list = read(&scene.client(), path.trim_end_matches('/')).await.unwrap_or_default();
    list["items"].as_array().cloned().unwrap_or_default()
}

/// Waits until a plan has a run in that phase.
async fn run_of(scene: &Scene, plan: &str, wanted: &str) -> Value {
    eventually(&format!("a run of {plan}: {wanted}"), LONG, async || {
        let runs = at_home(scene, PLAN_RUN).await;
        let of_plan = |run: &&Value| plans_of(run).contains(&plan) && phase(run) == wanted;
        runs.iter().find(of_plan).cloned().ok_or_else(|| runs.iter().map(story_of).collect::<String>())
    })
    .await
}

async fn continent(scene: &Scene) -> Option<Value> {
    find_in(scene.plane(), CONTINENT, None, "africa").await
}

async fn settled(scene: &Scene, stages: &str) {
    eventually("it to be Ready", LONG, async || match continent(scene).await {
        Some(continent) if is_ready(&continent) && continent["status"]["stages"] == stages => Ok(()),
        other => Err(format!("{:#}", other.unwrap_or_default())),
    })
    .await;
}

#[tokio::test]
async fn cluster_scoped_runs_are_in_the_managers_namespace() {
    let plane = own_embedded_plane().await;
    let scene = Scene::on(&plane).await;
    let manager = manager(&plane).await;
    let instance = |stage: &str| {
        json!({"apiVersion": CONTINENT.api_version(), "kind": "Continent", "metadata": {"name": "africa"},
            "spec": {"namespace": scene.namespace(), "stage": stage}})
        .to_string()
    };
    // Runs start when the instance is created and when it is edited.
    scene.apply(&instance("one")).await;
    settled(&scene, "one ").await;
    scene.apply(&instance("two")).await;
    settled(&scene, "one two ").await;
    assert_eq!(scene.get(CONFIG_MAP, "africa-data").await["data"]["stage"], "two");
    assert_eq!(at_home(&scene, JOB).await.len(), 2);
    let status = continent(&scene).await.unwrap_or_default()["status"].clone();
    assert_eq!(status["plan"]["name"], "africa-2", "{status:#}");
    assert_eq!(status["history"].as_array().map(Vec::len), Some(2), "{status:#}");

    // Runs are requested by the command line and by kubectl, continued, and cancelled.
    let operetta = async |args: &[&str]| scene.operetta_anywhere(args).await.ok();
    let told = operetta(&["plan", "run", "continent/africa", "hold", "--param", "why=so"]).await;
    assert!(told.contains("hold"), "{told}");
    run_of(&scene, "hold", "Running").await;
    let gate = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "africa-gate"}, "data": {"open": "yes"}});
    scene.apply(&gate.to_string()).await;
    run_of(&scene, "hold", "Succeeded").await;
    scene.kubectl(&["delete", "configmap", "africa-gate"]).await;
    let request = json!({"apiVersion": PLAN_RUN.api_version(), "kind": "PlanRun",
        "metadata": {"name": "mine", "namespace": HOME},
        "spec": {"of": {"apiVersion": CONTINENT.api_version(), "kind": "Continent", "resource": "continents", "name": "africa"},
            "plan": "hold", "requestedBy": ADMIN}});
    scene.kubectl_input(&["-n", HOME, "create", "-f", "-"], &request.to_string()).await.unwrap();
    run_of(&scene, "hold", "Running").await;
    let told = operetta(&["plan", "status", "continent/africa"]).await;
    assert!(told.contains("mine") && told.contains("gate"), "{told}");
    operetta(&["plan", "cancel", "continent/africa"]).await;
    run_of(&scene, "hold", "Cancelled").await;
    // Requests in other namespaces fail, and their messages do not reveal whether the instance exists.
    let elsewhere = request.to_string().replace(HOME, scene.namespace());
    let of_nothing = elsewhere.replace("africa", "atlantis").replace("mine", "of-nothing");
    for request in [elsewhere, of_nothing] {
        scene.apply(&request).await;
    }
    for name in ["mine", "of-nothing"] {
        eventually("the request to fail", LONG, async || {
            let run = scene.get(PLAN_RUN, name).await;
            let status = &run["status"];
            let message =
                format!("Continent is cluster-scoped: runs of this kind belong in the namespace {HOME}");
            let is_told = status["phase"] == "Failed" && status["reason"] == "WrongNamespace";
            if is_told && status["message"] == message { Ok(()) } else { Err(format!("{run:#}")) }
        })
        .await;
    }

    // The instance is deleted: the cleanup runs, the child with `Ask` waits for approval, and nothing
    // remains.
    scene.kubectl(&["delete", CONTINENTS, "africa", "--wait=false"]).await;
    run_of(&scene, "cleanup", "Succeeded").await;
    let asking = run_of(&scene, "operetta.dev/delete-child", "Running").await;
    let command = format!("operetta plan approve {} -n {HOME}", name_of(&asking));
    eventually("the command", LONG, async || {
        let pending = condition(&continent(&scene).await.unwrap_or_default(), "DeletionPending").clone();
        if pending.to_string().contains(&command) { Ok(()) } else { Err(pending) }
    })
    .await;
    scene.gone(CONFIG_MAP, "africa-config").await;
    operetta(&["plan", "approve", "continent/africa"]).await;
    eventually("it to be gone", LONG, async || match continent(&scene).await {
        None => Ok(()),
        Some(left) => Err(format!("{left:#}")),
    })
    .await;
    assert!(scene.find(CONFIG_MAP, "africa-data").await.is_none());
    eventually("no run and no Job to be left", LONG, async || {
        let left: BTreeSet<String> = at_home(&scene, PLAN_RUN)
            .await
            .iter()
            .chain(&at_home(&scene, JOB).await)
            .map(|object| name_of(object).to_owned())
            .collect();
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    })
    .await;
    assert_eq!(phase(&scene.get(PLAN_RUN, "mine").await), "Failed");
    drop(manager);
}
