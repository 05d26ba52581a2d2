//! Makes the fixture of a release: `cargo test --test planes releases::record -- --ignored`.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::{
    ABOUT, Address, DATA, DESK, FLEETS, FOLDER, KEEPER, MOTLEY, NAMESPACE, ROOMS, SHOPS, SIZE_NEW, SIZE_OLD,
    STATES, STORES, WHOLE, now, pack,
};
use crate::operators::{Cluster, Package, Part, SIZE, is_active, kind_named};
use crate::support::fleets::{fails_for_13, is_paused};
use crate::support::plans::{PLAN_RUN, steps};
use crate::support::{
    CONFIG_MAP, JOB, MIX, SECRET, Scene, TRIAL, VOLUME_CLAIM, WEB_APP, condition, copy_folder, file, fixture,
    is_ready, name_of, namespace_named, own_plane, put_file, rights,
};

/// Plans with a cleanup that waits for approval.
const CLEANUP: &str = "      plans:
        deploy:
          steps: [{name: all, apply: [config]}]
        cleanup:
          steps: [{name: sure, approve: {message: \"Remove {{ name }}?\"}}]
";

/// A child in no namespace.
const PRIORITY: &str = r#"apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: "{{ namespace }}-{{ name }}"}
value: 1
description: "{{ children.remote.data.stage }}"
"#;

#[tokio::test]
#[ignore = "writes a fixture: once for each release"]
async fn record() {
    let _address = Address::hold().await;
    let plane = own_plane().await;
    rights::manager(&plane).await;
    let cluster = Cluster::with_installed_manager(plane).await;
    let plane = &cluster.plane;
    let scene = Scene::of(plane, namespace_named(plane, NAMESPACE).await);
    settled_children(&cluster, &scene).await;
    runs(&cluster, &scene).await;
    crds(&cluster, &scene).await;
    stages(&cluster, &scene).await;
    // As in a cluster in which the node of the manager fails.
    cluster.manager.lock().unwrap().kill9();
    let folder = Path::new(FOLDER).join(env!("CARGO_PKG_VERSION"));
    std::fs::create_dir_all(&folder).unwrap();
    let version: Value =
        serde_json::from_str(&cluster.kubectl(&["version", "-o", "json"], "").await.ok()).unwrap();
    let about = json!({
        "kubernetes": version["serverVersion"]["gitVersion"], "recorded": now().to_string(), "states": STATES,
    });
    std::fs::write(folder.join(ABOUT), format!("{about:#}\n")).unwrap();
    pack(plane, &folder.join(DATA)).await;
}

/// Installs a package from a folder.
async fn install(cluster: &Cluster, folder: &str) {
    cluster.operetta(&["install", folder, "--accept-rights"]).await.ok();
}

async fn apply(scene: &Scene, kind: (&str, &str), name: &str, spec: Value) {
    let instance = json!({"apiVersion": kind.0, "kind": kind.1, "metadata": {"name": name}, "spec": spec});
    scene.apply(&instance.to_string()).await;
}

/// Instances without runs.
async fn settled_children(cluster: &Cluster, scene: &Scene) {
    const V1: &str = "fixtures.operetta.dev/v1";
    // The package `trial` may write there.
    scene.kubectl(&["create", "namespace", "trial-elsewhere"]).await;
    for name in ["mix", "trial", "whole"] {
        install(cluster, &fixture(name)).await;
    }
    // Instead of a ClusterRole, which would need all of its rights.
    let motley = tempfile::tempdir().unwrap();
    copy_folder(Path::new(&fixture("motley")), motley.path(), &|text| {
        if text.contains("kind: ClusterRole") { PRIORITY.to_owned() } else { text }
    });
    install(cluster, motley.path().to_str().unwrap()).await;
    install(cluster, "operators/webapp").await;
    scene.apply(&file("examples/webapp/full.yaml")).await;
    scene.kubectl(&["create", "configmap", "many-settings", "--from-literal=colour=red"]).await;
    apply(scene, (V1, "Motley"), "many", json!({})).await;
    apply(scene, (V1, "Whole"), "done", json!({"job": true})).await;
    apply(scene, (V1, "Mix"), "refused", json!({"members": [{"name": "a"}], "replicas": 1})).await;
    apply(scene, (V1, "Trial"), "secret", json!({"secret": 16, "tls": ["secret.example.org"]})).await;
    for (kind, name) in
        [(WEB_APP, "shop"), (MOTLEY, "many"), (WHOLE, "done"), (MIX, "refused"), (TRIAL, "secret")]
    {
        scene.ready(kind, name).await;
    }
    // The deletion of a child waits for approval.
    scene.patch(MOTLEY, "many", "merge", &json!({"spec": {"asked": false}})).await;
    let asks = |o: &Value| condition(o, "DeletionPending")["status"] == "True";
    scene.until("asking", MOTLEY, "many", asks).await;
    // The Job is done and deleted, and a child is retained.
    let is_recorded = |o: &Value| o["metadata"]["annotations"]["operetta.dev/completed-jobs"].is_string();
    scene.until("the Job to be recorded", WHOLE, "done", is_recorded).await;
    scene.kubectl(&["delete", "job", "done"]).await;
    scene.patch(WHOLE, "done", "merge", &json!({"spec": {"keep": false}})).await;
    let is_retained = |o: &Value| o["metadata"]["annotations"]["operetta.dev/retained"] == "true";
    scene.until("retained", CONFIG_MAP, "done-kept", is_retained).await;
    scene.gone(JOB, "done").await;
    scene.until("Ready", WHOLE, "done", is_ready).await;
    // A Deployment cannot have so many.
    scene.patch(MIX, "refused", "merge", &json!({"spec": {"replicas": -1, "greeting": "moved"}})).await;
    let is_recorded = |o: &Value| o["metadata"]["annotations"]["operetta.dev/accepted"].is_string();
    scene.until("the accepted target", MIX, "refused", is_recorded).await;
    for name in ["secret", "many"] {
        let of_secret = |o: &Value| o["metadata"]["annotations"]["operetta.dev/generated-proof"].is_string();
        let secrets = scene.list(SECRET).await;
        assert!(secrets.iter().any(|o| name_of(o).starts_with(name) && of_secret(o)), "{name}");
    }
}

/// Instances with runs.
async fn runs(cluster: &Cluster, scene: &Scene) {
    const V1: &str = "fixtures.operetta.dev/v1";
    for name in ["keeper", "plans-rules"] {
        install(cluster, &fixture(name)).await;
    }
    let rooms =
        Package::of(ROOMS, "0.1.0", &[Part { plans: CLEANUP.to_owned(), ..Part::new(ROOMS, SIZE, "x") }]);
    install(cluster, rooms.folder()).await;
    scene.apply(&rooms.instance("leaving", &json!({}))).await;
    let open = |_: &str| json!({});
    for (name, spec) in [
        ("waiting", json!({"gate": "shut"})),
        ("nightly", json!({"schedule": "* * * * *"})),
        ("asking", open("")),
        ("saving", open("")),
        ("broken", open("")),
        ("paused", open("")),
    ] {
        apply(scene, (V1, "Desk"), name, spec).await;
    }
    for name in ["alive", "gone"] {
        apply(scene, (V1, "Keeper"), name, json!({"size": 2})).await;
    }
    let desk = ("Desk", DESK);
    let holds = |run: &Value| steps(run).get("gate").is_some_and(|step| step["phase"] == "Running");
    scene.run_of("waiting", "deploy", holds).await;
    for name in ["asking", "saving", "broken", "paused"] {
        scene.ready(DESK, name).await;
    }
    let asking = scene.requested(desk, "asking", "sure", &Value::Null, "Running").await;
    scene.until("asked", PLAN_RUN, &asking, |run| steps(run).contains_key("ask")).await;
    let saving = scene.request(desk, "saving", "backup", &json!({"end": "never"})).await;
    let is_active = |job: &Value| job["status"]["active"] == 1;
    let holds =
        |run: &Value| steps(run).get("dump").is_some_and(|step| step["objects"][0]["uid"].is_string());
    let run = scene.until("a Job", PLAN_RUN, &saving, holds).await;
    let job = steps(&run)["dump"]["objects"][0]["name"].as_str().unwrap().to_owned();
    scene.until("it runs", JOB, &job, is_active).await;
    scene.kubectl(&["create", "configmap", "broken-gate", "--from-literal=open=no"]).await;
    scene.requested(desk, "broken", "broken", &json!({"mode": "bad"}), "Failed").await;
    // An edit while the instance is paused is not rolled out.
    scene.kubectl(&["annotate", &DESK.resource_name(), "paused", "operetta.dev/paused=true"]).await;
    scene.patch(DESK, "paused", "merge", &json!({"spec": {"stage": "two"}})).await;
    let holds = |o: &Value| o["status"]["observedGeneration"] == o["metadata"]["generation"];
    scene.until("paused", DESK, "paused", holds).await;
    // A schedule has had a run, and is then suspended: its times depend on the clock.
    scene.run_of("nightly", "nightly", |run| run["status"]["phase"] == "Succeeded").await;
    scene.patch(DESK, "nightly", "merge", &json!({"spec": {"suspend": true}})).await;
    scene.until("Ready", DESK, "nightly", is_ready).await;
    for name in ["alive", "gone"] {
        scene.ready(KEEPER, name).await;
        scene.requested(("Keeper", KEEPER), name, "failover", &Value::Null, "Succeeded").await;
        let holds = |o: &Value| o["data"]["primary"] == "1";
        scene.until("the primary", CONFIG_MAP, &format!("{name}-state"), holds).await;
        scene.ready(KEEPER, name).await;
    }
    scene.kubectl(&["delete", &KEEPER.resource_name(), "gone"]).await;
    scene.gone(KEEPER, "gone").await;
    scene.get(VOLUME_CLAIM, "gone-data-0").await;
    scene.ready(rooms.kind(), "leaving").await;
    scene.kubectl(&["delete", &rooms.kind().resource_name(), "leaving", "--wait=false"]).await;
    scene.run_of("leaving", "cleanup", |run| steps(run).contains_key("sure")).await;
}

/// Kinds with several versions, and of a former package.
async fn crds(cluster: &Cluster, scene: &Scene) {
    let root = tempfile::tempdir().unwrap();
    let folder = sizes(root.path());
    install(cluster, folder.to_str().unwrap()).await;
    apply(scene, (SIZE_OLD.api_version(), "Size"), "both", json!({"replicas": 3, "note": "kept"})).await;
    apply(scene, (SIZE_NEW.api_version(), "Size"), "new", json!({"size": 2, "mode": "safe"})).await;
    scene.ready(SIZE_NEW, "both").await;
    scene.ready(SIZE_NEW, "new").await;
    let former = Package::new(SHOPS, "0.1.0", "x");
    install(cluster, former.folder()).await;
    former.ready(scene, "given", &json!({})).await;
    let next = Package::of(STORES, "0.1.0", &[Part::new(SHOPS, SIZE, "x")]);
    cluster.operetta(&["install", next.folder(), "--accept-rights", "--take-over-from", SHOPS]).await.ok();
    cluster.until(STORES, "active", is_active).await;
    let holds = |o: &Value| o["metadata"]["labels"]["operetta.dev/operator"] == STORES;
    scene.until("taken over", CONFIG_MAP, "given", holds).await;
    scene.ready(kind_named(SHOPS), "given").await;
}

/// An upgrade in stages that has stopped at an instance that fails.
async fn stages(cluster: &Cluster, scene: &Scene) {
    let package = Package::new(FLEETS, "0.1.0", "old");
    install(cluster, package.folder()).await;
    let patch = json!({"spec": {"upgrade": {"maxUnavailable": 1}}}).to_string();
    cluster.kubectl(&["patch", "operator", FLEETS, "--type=merge", "-p", &patch], "").await.ok();
    for (index, size) in [1, 13, 1].into_iter().enumerate() {
        let name = format!("i-{index}");
        package.ready(scene, &name, &json!({"size": size})).await;
    }
    package.write("0.2.0", &[Part::new(FLEETS, SIZE, &fails_for_13("new"))]);
    let (_, told) = cluster.told(&["upgrade", package.folder(), "--accept-rights"]).await;
    cluster.until(FLEETS, &format!("paused: {told}"), is_paused).await;
}

/// A package whose kind has two versions and a conversion.
fn sizes(root: &Path) -> PathBuf {
    let folder = root.join("sizes");
    let version = |name: &str, is_stored: bool, fields: &Value| {
        json!({
            "name": name, "served": true, "storage": is_stored,
            "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": {"type": "object", "properties": fields}}}},
        })
    };
    let old = json!({"replicas": {"type": "integer"}, "note": {"type": "string"}});
    let new = json!({"size": {"type": "integer"}, "mode": {"type": "string", "enum": ["fast", "safe"]}});
    let crd = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("sizes.{}", SIZE_NEW.group())},
        "spec": {
            "group": SIZE_NEW.group(), "scope": "Namespaced",
            "names": {"kind": "Size", "plural": "sizes", "singular": "size", "listKind": "SizeList"},
            "versions": [version("v1alpha1", false, &old), version("v1", true, &new)],
        },
    });
    let mut manifest = String::from(
        "apiVersion: operetta.dev/v1alpha1\nkind: OperatorPackage\nmetadata: {name: sizes}\nspec:\n  version: 0.1.0\n  resources:\n",
    );
    let _ = write!(
        manifest,
        "    - crd: crds/sizes.yaml\n      conversion:\n        versions:\n          v1alpha1:\n            - {{move: spec.replicas, to: \
         spec.size}}\n            - {{default: spec.mode, value: fast}}\n            - {{keep: spec.note}}\n      children: [{{id: \
         config, template: templates/config.yaml}}]\n"
    );
    let config = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: \"{{ name }}-size\"}\ndata: {size: \"{{ spec.size }}\"}\n";
    for (path, text) in [
        ("crds/sizes.yaml", crd.to_string()),
        ("templates/config.yaml", config.to_owned()),
        ("operator.yaml", manifest),
    ] {
        put_file(&folder.join(path), text);
    }
    folder
}
