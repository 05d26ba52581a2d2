//! An instance is deleted and created again under its name while objects of the first one exist: the package
//! reads them before they are adopted, so that no former replica is taken for the primary.

use std::process::Command;

use serde_json::{Value, json};

use crate::support::ext::{CONFIG_MAP, Kind, LONG, Scene, VOLUME_CLAIM, fixture, name_of, run, uid_of};
use crate::support::faults::case::{Case, Subject};
use crate::support::plans::events_about;
use crate::support::{ControlPlane, OPERETTA, Operetta, eventually, own_plane_of_tests};

const KEEPER: Kind = crate::support::ext::kind("fixtures.operetta.dev/v1", "keepers");

async fn start(plane: &ControlPlane) -> Operetta {
    run(plane, &["keeper"]).watching(1).await
}

fn keeper() -> String {
    json!({"apiVersion": KEEPER.api_version(), "kind": "Keeper", "metadata": {"name": "k"}, "spec": {}})
        .to_string()
}

/// The value of a key in a `ConfigMap`.
async fn said(scene: &Scene, name: &str, key: &str) -> Value {
    scene.get(CONFIG_MAP, name).await["data"][key].clone()
}

/// Checks that the second member is the primary, as the first instance has recorded, and that the objects are
/// those of the first.
async fn knows(scene: &Scene, first: &str, volumes: &[String]) {
    let instance = scene.ready(KEEPER, "k").await;
    assert_ne!(uid_of(&instance), first);
    assert_eq!(instance["status"]["primary"], 1, "{:#}", instance["status"]);
    assert_eq!(said(scene, "k-state", "primary").await, "1");
    assert_eq!(said(scene, "k-memo", "first").await, first);
    assert_eq!(
        (said(scene, "k-0", "role").await, said(scene, "k-1", "role").await),
        ("replica".into(), "primary".into())
    );
    assert_eq!(uids(scene).await, volumes);
    let desired = instance["spec"]["size"].as_u64().unwrap();
    for member in 0..desired {
        let volume = scene.get(VOLUME_CLAIM, &format!("k-data-{member}")).await;
        assert_eq!(volume["metadata"]["labels"]["operetta.dev/instance-uid"], uid_of(&instance));
    }
    // Volumes that it does not desire stay with the former instance, and are still found.
    assert_eq!(instance["status"]["volumes"], volumes.len(), "{:#}", instance["status"]);
}

async fn uids(scene: &Scene) -> Vec<String> {
    let mut uids: Vec<_> = scene.list(VOLUME_CLAIM).await.iter().map(|o| uid_of(o).to_owned()).collect();
    uids.sort();
    uids
}

async fn delete(scene: &Scene) {
    scene.kubectl(&["delete", "keeper", "k"]).await;
    scene.gone(CONFIG_MAP, "k-0").await;
    for name in ["k-state", "k-memo"] {
        let left = scene.get(CONFIG_MAP, name).await;
        assert_eq!(left["metadata"]["annotations"]["operetta.dev/retained"], "true", "{left:#}");
    }
}

#[tokio::test]
async fn recreated_instance_reads_objects_of_the_former_one() {
    let plane = own_plane_of_tests().await;
    let mut manager = start(&plane).await;
    let scene = Scene::on(&plane).await;
    scene.apply(&keeper()).await;
    let first = uid_of(&scene.ready(KEEPER, "k").await).to_owned();
    assert_eq!(said(&scene, "k-0", "role").await, "primary");
    scene.requested(("Keeper", KEEPER), "k", "failover", &Value::Null, "Succeeded").await;
    scene.ready(KEEPER, "k").await;
    assert_eq!(said(&scene, "k-1", "role").await, "primary");
    let volumes = uids(&scene).await;

    // The running manager knows the remaining objects when the new instance is created.
    delete(&scene).await;
    // Render what a new instance would have, offline: time may stand still meanwhile.
    let folder = tempfile::tempdir().unwrap();
    let (live, new) = (folder.path().join("live.yaml"), folder.path().join("new.yaml"));
    std::fs::write(&live, scene.kubectl(&["get", "configmaps,persistentvolumeclaims", "-o", "yaml"]).await)
        .unwrap();
    let mut instance: Value = serde_json::from_str(&keeper()).unwrap();
    instance["metadata"]["namespace"] = scene.namespace().into();
    std::fs::write(&new, instance.to_string()).unwrap();
    let paths = [&live, &new].map(|path| path.to_str().unwrap());
    let package = fixture("keeper");
    let args = ["render", package.as_str(), "-f", paths[1], "--with", paths[0], "-o", "json"];
    let output = Command::new(OPERETTA).args(args).output().unwrap();
    let rendered: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    let state = rendered["items"].as_array().unwrap().iter().find(|item| name_of(item) == "k-state");
    assert_eq!(state.unwrap()["data"]["primary"], "1", "{rendered:#}");

    scene.apply(&keeper()).await;
    knows(&scene, &first, &volumes).await;
    eventually("Events that name what was adopted", LONG, async || {
        let events = events_about(&scene, "k").await;
        let adopted: Vec<_> =
            events.lines().filter(|line| line.contains("of a former instance of that name: ")).collect();
        let names = [
            "ConfigMap k-memo",
            "ConfigMap k-state",
            "PersistentVolumeClaim k-data-0",
            "PersistentVolumeClaim k-data-1",
        ];
        let has_all = names.iter().all(|name| adopted.iter().any(|line| line.contains(name)));
        let is_reason = adopted.iter().all(|line| line.starts_with("Adopted: "));
        if has_all && is_reason { Ok(()) } else { Err(events) }
    })
    .await;

    // `deploy` runs again and no longer reads remaining objects.
    scene.patch(KEEPER, "k", "merge", &json!({"spec": {"size": 3}})).await;
    scene.until("a third member", CONFIG_MAP, "k-2", |o| o["data"]["role"] == "replica").await;
    scene.ready(KEEPER, "k").await;
    let volumes = uids(&scene).await;
    knows(&scene, &first, &volumes).await;

    // A new manager knows nothing: it creates nothing before it has listed the remaining objects.
    delete(&scene).await;
    manager.kill9();
    scene.apply(&keeper()).await;
    let _manager = start(&plane).await;
    knows(&scene, &first, &volumes).await;
}

const SUBJECT: Subject = Subject {
    folder: "tests/fixtures/packages/keeper",
    name: "keeper",
    group: "fixtures.operetta.dev",
    version: "v1",
    kind: "Keeper",
    plural: "keepers",
    inner: None,
    children: &[CONFIG_MAP, VOLUME_CLAIM],
    elsewhere: &[],
};

/// A backup tool restores a child while the watch of its kind lags: the apply finds the object, and it is
/// read before it is changed.
#[tokio::test]
async fn object_not_seen_by_watches_is_read_before_adoption() {
    let case = Case::of(&SUBJECT, 0).await;
    let process = case.start().await;
    case.quiet().await;
    // Take the labels of a child, as a backup has them.
    case.apply_ready("other", &json!({})).await;
    let mut labels = case.scene.get(CONFIG_MAP, "other-memo").await["metadata"]["labels"].clone();
    labels["operetta.dev/instance"] = "k".into();
    labels["operetta.dev/instance-uid"] = "of-the-former-one".into();
    case.wire.freeze("configmaps");
    let restored = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "k-memo", "labels": labels, "annotations": {"operetta.dev/retained": "true"}},
        "data": {"first": "before"},
    });
    case.scene.kubectl_input(&["create", "-f", "-"], &restored.to_string()).await.unwrap();
    let instance = case.apply_ready("k", &json!({})).await;
    let memo = case.scene.get(CONFIG_MAP, "k-memo").await;
    assert_eq!(memo["data"]["first"], "before", "{memo:#}");
    assert_eq!(memo["metadata"]["labels"]["operetta.dev/instance-uid"], uid_of(&instance));
    case.finish(process).await;
}
