//! Fields of other managers on an object whose apply is refused keep their owners and their values.

use operetta::local::AuditEvent;
use serde_json::{Value, json};

use super::{edit_of, stalled_of};
use crate::support::{DEPLOYMENT, Kind, NEIGHBOUR, Scene, TANK, VOLUME_CLAIM, eventually, fixture};

const MANAGER: &str = "operetta/neighbours";

async fn prepare() -> Scene {
    let scene = Scene::new().await;
    let needs = format!("{}/needs/tank.yaml", fixture("neighbours"));
    // Tests side by side apply the same.
    scene.kubectl(&["apply", "--server-side", "-f", &needs]).await;
    let crd = "crd/tanks.fixtures.operetta.dev";
    scene.kubectl(&["wait", "--for=condition=Established", "--timeout=300s", crd]).await;
    scene
}

async fn neighbour(scene: &Scene, child: &str) {
    let instance = json!({"apiVersion": NEIGHBOUR.api_version(), "kind": "Neighbour",
        "metadata": {"name": child}, "spec": {"child": child}});
    scene.apply_ready(NEIGHBOUR, child, &instance.to_string()).await;
}

/// The fields of `spec` in the manager's entry of managedFields.
fn owned(object: &Value) -> Vec<String> {
    let entries = object["metadata"]["managedFields"].as_array().unwrap();
    let ours = entries.iter().find(|e| e["manager"] == MANAGER && e["operation"] == "Apply").unwrap();
    ours["fieldsV1"]["f:spec"].as_object().unwrap().keys().map(|key| key.replace("f:", "")).collect()
}

/// Adds fields of `spec` to the manager's entry, as earlier versions did after a refusal.
async fn damage(scene: &Scene, kind: Kind, name: &str, fields: &[&str]) {
    eventually("the entry to be written", crate::support::ext::LONG, async || {
        let live = scene.get(kind, name).await;
        let mut entries = live["metadata"]["managedFields"].clone();
        for entry in entries.as_array_mut().unwrap() {
            let is_ours = entry["manager"] == MANAGER && entry["operation"] == "Apply";
            let Some(spec) = entry["fieldsV1"]["f:spec"].as_object_mut() else { continue };
            for field in fields {
                spec.remove(&format!("f:{field}"));
                if is_ours {
                    spec.insert(format!("f:{field}"), json!({}));
                }
            }
        }
        let patch = json!([
            {"op": "replace", "path": "/metadata/resourceVersion", "value": live["metadata"]["resourceVersion"]},
            {"op": "replace", "path": "/metadata/managedFields", "value": entries},
        ]);
        let request = http::Request::patch(kind.path(Some(scene.namespace()), name))
            .header("content-type", "application/json-patch+json")
            .body(patch.to_string().into_bytes())
            .unwrap();
        scene.client().request::<Value>(request).await
    })
    .await;
}

#[tokio::test]
async fn refused_selector_changes_no_field_of_others() {
    let scene = prepare().await;
    neighbour(&scene, "deployment").await;
    let theirs = json!({"spec": {"replicas": 5, "progressDeadlineSeconds": 120}});
    scene.patch(DEPLOYMENT, "deployment", "merge", &theirs).await;
    edit_of(&scene, NEIGHBOUR, "deployment", json!({"selector": "two", "seconds": 1})).await;
    stalled_of(&scene, NEIGHBOUR, "deployment", "ImmutableField", &["spec.selector"]).await;
    let live = scene.get(DEPLOYMENT, "deployment").await;
    assert_eq!(owned(&live), ["selector", "template"], "{:#}", live["metadata"]["managedFields"]);
    edit_of(&scene, NEIGHBOUR, "deployment", json!({"selector": "one", "image": "a:2"})).await;
    scene.ready(NEIGHBOUR, "deployment").await;
    let live = scene.get(DEPLOYMENT, "deployment").await;
    assert_eq!(live["spec"]["template"]["spec"]["containers"][0]["image"], "a:2");
    assert_eq!(
        (&live["spec"]["replicas"], &live["spec"]["progressDeadlineSeconds"]),
        (&json!(5), &json!(120))
    );
}

#[tokio::test]
async fn refused_validation_rule_changes_no_field_of_others() {
    let scene = prepare().await;
    neighbour(&scene, "tank").await;
    scene.patch(TANK, "tank", "merge", &json!({"spec": {"replicas": 5}})).await;
    // The value exceeds `high`, which is ours, and then `replicas`, which is another manager's and would fit
    // without the rule.
    for (low, seconds) in [(9, 1), (6, 2)] {
        edit_of(&scene, NEIGHBOUR, "tank", json!({"low": low, "seconds": seconds})).await;
        stalled_of(&scene, NEIGHBOUR, "tank", "ApplyRefused", &["spec"]).await;
        let live = scene.get(TANK, "tank").await;
        assert_eq!(owned(&live), ["high", "low"], "{:#}", live["metadata"]["managedFields"]);
    }
    edit_of(&scene, NEIGHBOUR, "tank", json!({"low": 2})).await;
    scene.ready(NEIGHBOUR, "tank").await;
    let live = scene.get(TANK, "tank").await;
    assert_eq!((&live["spec"]["low"], &live["spec"]["replicas"]), (&json!(2), &json!(5)));
}

#[tokio::test]
async fn claim_expanded_by_others_keeps_its_volume() {
    let scene = prepare().await;
    neighbour(&scene, "claim").await;
    scene.until("bound", VOLUME_CLAIM, "claim", |o| o["status"]["phase"] == "Bound").await;
    let size = |size: &str| json!({"spec": {"resources": {"requests": {"storage": size}}}});
    scene.patch(VOLUME_CLAIM, "claim", "merge", &size("2Gi")).await;
    // A claim cannot shrink: that is reported, and not as a missing right.
    stalled_of(
        &scene,
        NEIGHBOUR,
        "claim",
        "ResizeRefused",
        &["claim", "spec.resources.requests.storage", "never shrinks"],
    )
    .await;
    let live = scene.get(VOLUME_CLAIM, "claim").await;
    assert!(!owned(&live).contains(&"volumeName".to_owned()), "{:#}", live["metadata"]["managedFields"]);
    assert_eq!(live["spec"]["resources"]["requests"]["storage"], "2Gi");

    // A claim that an earlier version has damaged is healed: the manager's entry has only what it applies,
    // and the claim keeps its values.
    damage(&scene, VOLUME_CLAIM, "claim", &["volumeName"]).await;
    edit_of(&scene, NEIGHBOUR, "claim", json!({"seconds": 3})).await;
    let healed = |o: &Value| !owned(o).contains(&"volumeName".to_owned());
    let live = scene.until("healed", VOLUME_CLAIM, "claim", healed).await;
    assert!(live["spec"]["volumeName"].is_string());
}

/// An admission plugin refuses it with 403.
#[tokio::test]
async fn refused_claim_growth_is_not_a_missing_right() {
    let scene = prepare().await;
    let instance = json!({"apiVersion": NEIGHBOUR.api_version(), "kind": "Neighbour",
        "metadata": {"name": "fixed"}, "spec": {"child": "claim", "class": "fixed"}});
    scene.apply(&instance.to_string()).await;
    scene.until("bound", VOLUME_CLAIM, "fixed", |o| o["status"]["phase"] == "Bound").await;
    edit_of(&scene, NEIGHBOUR, "fixed", json!({"size": "2Gi"})).await;
    let words = ["claim", "only dynamically provisioned", "allowVolumeExpansion"];
    stalled_of(&scene, NEIGHBOUR, "fixed", "ResizeRefused", &words).await;
}

/// Changes a field of another manager. The manager applies the object once more, because another client has changed it; damage that is
/// done before would be lost fields.
async fn edited(scene: &Scene, kind: Kind, name: &str) {
    let audit = scene.plane().audit();
    let mark = audit.mark().unwrap();
    scene.patch(kind, name, "merge", &json!({"spec": {"replicas": 4}})).await;
    eventually("an apply after the edit", crate::support::ext::LONG, async || {
        let requests = audit.requests_since(mark).unwrap();
        let is_apply = |r: &AuditEvent| {
            r.verb == "patch"
                && (&*r.resource, &*r.namespace, &*r.name) == (kind.plural, scene.namespace(), name)
                && r.uri.contains("fieldManager=operetta%2F")
                && !r.uri.contains("dryRun")
        };
        if requests.iter().any(is_apply) { Ok(()) } else { Err("none yet") }
    })
    .await;
}

#[tokio::test]
async fn fields_taken_from_others_are_released() {
    let scene = prepare().await;
    neighbour(&scene, "deployment").await;
    neighbour(&scene, "tank").await;
    edited(&scene, DEPLOYMENT, "deployment").await;
    edited(&scene, TANK, "tank").await;
    for kind in [DEPLOYMENT, TANK] {
        let name = if kind.plural == TANK.plural { "tank" } else { "deployment" };
        damage(&scene, kind, name, &["replicas"]).await;
        let healed = |o: &Value| !owned(o).contains(&"replicas".to_owned());
        scene.until("healed", kind, name, healed).await;
        edit_of(&scene, NEIGHBOUR, name, json!({"image": "a:3"})).await;
        scene.ready(NEIGHBOUR, name).await;
        assert_eq!(scene.get(kind, name).await["spec"]["replicas"], 4, "{name}");
    }
}
