//! Changes that a real API server refuses because the object already exists, for every kind with immutable
//! fields.

use futures::StreamExt;
use serde_json::{Value, json};

use super::edit_of;
use crate::support::ext::{
    BLOCK, CONFIG_MAP, DAEMON_SET, DEPLOYMENT, JOB, Kind, POD, REPLICA_SET, ROCK, ROLE_BINDING, SECRET,
    SERVICE, STATEFUL_SET, Scene, VOLUME_CLAIM, condition, fixture, has_derived_rights, kind, read, uid_of,
};

/// The children that may be recreated: id, kind, whether it is namespaced, and the field that changes.
const CHILDREN: [(&str, Kind, bool, &str); 27] = [
    ("pod", POD, true, "/spec/containers/1/name"),
    ("job", JOB, true, "/spec/template/spec/containers/0/image"),
    ("service", SERVICE, true, "/spec/clusterIP"),
    ("rolebinding", ROLE_BINDING, true, "/roleRef/name"),
    (
        "clusterrolebinding",
        kind("rbac.authorization.k8s.io/v1", "clusterrolebindings"),
        false,
        "/roleRef/name",
    ),
    ("configmap", CONFIG_MAP, true, "/data/value"),
    ("secret", SECRET, true, "/data/value"),
    ("secrettype", SECRET, true, "/type"),
    ("storageclass", kind("storage.k8s.io/v1", "storageclasses"), false, "/parameters/value"),
    ("provisioner", kind("storage.k8s.io/v1", "storageclasses"), false, "/provisioner"),
    ("priorityclass", kind("scheduling.k8s.io/v1", "priorityclasses"), false, "/value"),
    ("csidriver", kind("storage.k8s.io/v1", "csidrivers"), false, "/spec/attachRequired"),
    ("csicapacity", kind("storage.k8s.io/v1", "csistoragecapacities"), true, "/storageClassName"),
    ("attributesclass", kind("storage.k8s.io/v1", "volumeattributesclasses"), false, "/parameters/value"),
    ("ingressclass", kind("networking.k8s.io/v1", "ingressclasses"), false, "/spec/controller"),
    ("runtimeclass", kind("node.k8s.io/v1", "runtimeclasses"), false, "/handler"),
    ("endpointslice", kind("discovery.k8s.io/v1", "endpointslices"), true, "/addressType"),
    ("revision", kind("apps/v1", "controllerrevisions"), true, "/data/value"),
    (
        "resourceclaim",
        kind("resource.k8s.io/v1", "resourceclaims"),
        true,
        "/spec/devices/requests/0/exactly/deviceClassName",
    ),
    (
        "claimtemplate",
        kind("resource.k8s.io/v1", "resourceclaimtemplates"),
        true,
        "/spec/spec/devices/requests/0/exactly/deviceClassName",
    ),
    ("servicecidr", kind("networking.k8s.io/v1", "servicecidrs"), false, "/spec/cidrs/0"),
    ("rock", ROCK, true, "/spec/colour"),
    ("vein", ROCK, true, "/spec/depth"),
    ("deployment", DEPLOYMENT, true, "/spec/selector/matchLabels/value"),
    ("daemonset", DAEMON_SET, true, "/spec/selector/matchLabels/value"),
    ("replicaset", REPLICA_SET, true, "/spec/selector/matchLabels/value"),
    ("statefulset", STATEFUL_SET, true, "/spec/selector/matchLabels/value"),
];

async fn prepare() -> Scene {
    let scene = Scene::new().await;
    let needs = format!("{}/needs/rock.yaml", fixture("frozen"));
    // Tests side by side apply the same.
    scene.kubectl(&["apply", "--server-side", "-f", &needs]).await;
    let crd = "crd/rocks.fixtures.operetta.dev";
    scene.kubectl(&["wait", "--for=condition=Established", "--timeout=300s", crd]).await;
    scene
}

async fn block(scene: &Scene, child: &str) {
    let block = json!({"apiVersion": BLOCK.api_version(), "kind": "Block", "metadata": {"name": child},
        "spec": {"child": child, "value": "one"}});
    scene.apply_ready(BLOCK, child, &block.to_string()).await;
}

#[tokio::test]
async fn immutable_changes_recreate_the_object_if_the_package_permits() {
    let scene = prepare().await;
    let may_bind = |child: &str| !has_derived_rights() || !child.ends_with("binding");
    let results = futures::stream::iter(CHILDREN.iter().copied().filter(|(child, ..)| may_bind(child)))
        .map(async |(child, kind, namespaced, path)| {
            let path_of = kind.path(namespaced.then(|| scene.namespace()), child);
            let live = async || read(&scene.client(), &path_of).await.unwrap_or_default();
            block(&scene, child).await;
            let before = live().await;
            edit_of(&scene, BLOCK, child, json!({"value": "two"})).await;
            let holds = |o: &Value| {
                let seen = o["status"]["observedGeneration"] == o["metadata"]["generation"];
                seen && (condition(o, "Ready")["status"] == "True"
                    || condition(o, "Stalled")["status"] == "True")
            };
            let told = scene.until("Ready or Stalled", BLOCK, child, holds).await;
            let after = live().await;
            let value = |object: &Value| object.pointer(path).cloned();
            let anew =
                !after.is_null() && uid_of(&before) != uid_of(&after) && value(&before) != value(&after);
            let message = condition(&told, "Ready")["message"].as_str().unwrap_or_default().to_owned();
            (!anew).then(|| format!("{child}: {:?}, then {:?}: {message}", value(&before), value(&after)))
        })
        .buffer_unordered(4)
        .collect::<Vec<_>>()
        .await;
    let failed: Vec<String> = results.into_iter().flatten().collect();
    assert!(failed.is_empty(), "{} of {}:\n{}", failed.len(), CHILDREN.len(), failed.join("\n"));
}

#[tokio::test]
async fn objects_that_hold_data_are_not_recreated() {
    let scene = prepare().await;
    let volumes = kind("v1", "persistentvolumes");
    for (child, kind, namespaced) in [("claim", VOLUME_CLAIM, true), ("volume", volumes, false)] {
        block(&scene, child).await;
        let path = kind.path(namespaced.then(|| scene.namespace()), child);
        let before = read(&scene.client(), &path).await.unwrap();
        edit_of(&scene, BLOCK, child, json!({"value": "two"})).await;
        let words = ["holds data", "by hand"];
        let message = super::stalled_of(&scene, BLOCK, child, "ImmutableField", &words).await;
        assert!(!message.contains("Recreate"), "{message}");
        assert_eq!(uid_of(&read(&scene.client(), &path).await.unwrap()), uid_of(&before));
    }
}

/// The change is invalid only because of another manager's field: the object is not recreated.
#[tokio::test]
async fn refusal_over_a_field_of_others_recreates_nothing() {
    let scene = prepare().await;
    let instance = json!({"apiVersion": BLOCK.api_version(), "kind": "Block", "metadata": {"name": "vein"},
        "spec": {"child": "vein", "value": "two"}});
    scene.apply_ready(BLOCK, "vein", &instance.to_string()).await;
    scene.patch(ROCK, "vein", "merge", &json!({"spec": {"most": 1}})).await;
    let before = scene.get(ROCK, "vein").await;
    // The new value exceeds the limit that the other manager has set.
    edit_of(&scene, BLOCK, "vein", json!({"value": "one"})).await;
    super::stalled_of(&scene, BLOCK, "vein", "ApplyRefused", &["vein", "spec"]).await;
    let after = scene.get(ROCK, "vein").await;
    assert_eq!((uid_of(&after), &after["spec"]["most"]), (uid_of(&before), &json!(1)));
}
