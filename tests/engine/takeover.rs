//! Fields and objects that change hands: members of unions that the package gives up, a number that it leaves to an
//! autoscaler, objects of a backup, objects with a second owner.

use http::Request;
use serde_json::{Value, json};

use crate::support::ext::{CONFIG_MAP, DEPLOYMENT, Kind, STATEFUL_SET, Scene, kind, run, uid_of};
use crate::support::own_plane_of_tests;

const TAKEOVER: Kind = kind("fixtures.operetta.dev/v1", "takeovers");
const MANAGER: &str = "operetta/takeover";

#[tokio::test]
async fn fields_and_objects_change_hands() {
    let plane = own_plane_of_tests().await;
    let _manager = run(&plane, &["takeover"]).watching(1).await;
    let scene = Scene::on(&plane).await;
    Box::pin(unions(&scene)).await;
    Box::pin(omitted_replicas(&scene)).await;
    Box::pin(restored_objects(&scene)).await;
    Box::pin(second_owner(&scene)).await;
}

fn instance(name: &str, spec: &Value) -> String {
    json!({"apiVersion": TAKEOVER.api_version(), "kind": "Takeover", "metadata": {"name": name}, "spec": spec})
        .to_string()
}

async fn create(scene: &Scene, name: &str, spec: &Value) {
    scene.apply_ready(TAKEOVER, name, &instance(name, spec)).await;
}

async fn edit(scene: &Scene, name: &str, spec: &Value) {
    scene.patch(TAKEOVER, name, "merge", &json!({"spec": spec})).await;
    scene.ready(TAKEOVER, name).await;
}

/// The API server has set `rollingUpdate`, which no manager owns, and refuses it beside the other type.
async fn unions(scene: &Scene) {
    create(scene, "x", &json!({})).await;
    for _ in 0..2 {
        edit(scene, "x", &json!({"variant": "b"})).await;
        let (front, set) = (scene.get(DEPLOYMENT, "x-front").await, scene.get(STATEFUL_SET, "x-set").await);
        assert_eq!(front["spec"]["strategy"], json!({"type": "Recreate"}));
        assert_eq!(set["spec"]["updateStrategy"], json!({"type": "OnDelete"}));
        edit(scene, "x", &json!({"variant": "a"})).await;
        let (front, set) = (scene.get(DEPLOYMENT, "x-front").await, scene.get(STATEFUL_SET, "x-set").await);
        assert_eq!(front["spec"]["strategy"]["type"], "RollingUpdate");
        assert_eq!(set["spec"]["updateStrategy"]["type"], "RollingUpdate");
    }
}

async fn omitted_replicas(scene: &Scene) {
    create(scene, "y", &json!({})).await;
    let replicas = async || scene.get(DEPLOYMENT, "y-loose").await["spec"]["replicas"].clone();
    assert_eq!(replicas().await, 4);
    edit(scene, "y", &json!({"autoscaled": true})).await;
    assert_eq!(replicas().await, 4, "the server's default is 1");
    scene.patch(DEPLOYMENT, "y-loose", "merge", &json!({"spec": {"replicas": 7}})).await;
    edit(scene, "y", &json!({"variant": "b"})).await;
    assert_eq!(replicas().await, 7);
    edit(scene, "y", &json!({"autoscaled": false})).await;
    assert_eq!(replicas().await, 4);
}

/// A backup tool restores objects without managedFields, with other uids, and owns all their fields.
async fn restored_objects(scene: &Scene) {
    let spec = json!({"values": {"keep": "1", "old": "1"}});
    create(scene, "z", &spec).await;
    let mut config = scene.get(CONFIG_MAP, "z").await;
    scene.kubectl(&["delete", "takeover", "z"]).await;
    scene.gone(CONFIG_MAP, "z").await;
    let meta = config["metadata"].as_object_mut().unwrap();
    meta.retain(|field, _| ["name", "namespace", "labels", "annotations"].contains(&field.as_str()));
    let path = CONFIG_MAP.path(Some(scene.namespace()), "");
    let request = Request::post(format!("{}?fieldManager=velero", path.trim_end_matches('/')))
        .header("content-type", "application/json")
        .body(config.to_string().into_bytes())
        .unwrap();
    let restored = scene.client().request::<Value>(request).await.unwrap();
    create(scene, "z", &spec).await;
    let taken = scene.get(CONFIG_MAP, "z").await;
    assert_eq!(uid_of(&taken), uid_of(&restored));
    edit(scene, "z", &json!({"values": {"old": null}})).await;
    let now = scene.get(CONFIG_MAP, "z").await;
    assert_eq!(now["data"], json!({"keep": "1"}), "{:#}", now["metadata"]["managedFields"]);
}

/// The garbage collector leaves an object of which another owner lives.
async fn second_owner(scene: &Scene) {
    create(scene, "w", &json!({"values": {"text": "a"}})).await;
    scene.kubectl(&["create", "configmap", "other"]).await;
    let other = scene.get(CONFIG_MAP, "other").await;
    let owner = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "other", "uid": uid_of(&other)});
    let add = json!([{"op": "add", "path": "/metadata/ownerReferences/0", "value": owner}]);
    scene.patch(CONFIG_MAP, "w", "json", &add).await;
    let guarded = |o: &Value| o["metadata"]["finalizers"] == json!(["operetta.dev/cleanup"]);
    scene.until("guarded", TAKEOVER, "w", guarded).await;
    let owners = scene.get(CONFIG_MAP, "w").await["metadata"]["ownerReferences"].clone();
    assert_eq!(owners.as_array().map(Vec::len), Some(2), "{owners:#}");
    scene.kubectl(&["delete", "takeover", "w"]).await;
    assert!(scene.find(CONFIG_MAP, "w").await.is_none(), "it is gone before its instance");
    let entries = scene.get(CONFIG_MAP, "other").await["metadata"]["managedFields"].clone();
    assert!(!entries.to_string().contains(MANAGER), "the other owner is left alone");
}
