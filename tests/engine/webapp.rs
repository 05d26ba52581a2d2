//! `operators/webapp`: children that come and go with the spec, and fields that are handed over to an autoscaler.

use crate::support::{
    AUTOSCALER, CONFIG_MAP, DEPLOYMENT, DISRUPTION_BUDGET, INGRESS, LONG, SERVICE, Scene, WEB_APP,
    eventually, file, is_ready,
};
use serde_json::{Value, json};

async fn minimal() -> Scene {
    let scene = Scene::new().await;
    scene.apply_ready(WEB_APP, "hello", &file("examples/webapp/minimal.yaml")).await;
    scene
}

async fn edit(scene: &Scene, spec: Value) {
    scene.patch(WEB_APP, "hello", "merge", &json!({"spec": spec})).await;
}

#[tokio::test]
async fn the_examples_become_ready() {
    let scene = Scene::new().await;
    scene.apply(&file("examples/webapp/minimal.yaml")).await;
    scene.apply(&file("examples/webapp/full.yaml")).await;
    scene.ready(WEB_APP, "hello").await;
    scene.ready(WEB_APP, "shop").await;
    for kind in [DEPLOYMENT, SERVICE] {
        assert_eq!(scene.names(kind).await, ["hello", "shop"], "{kind:?}");
    }
    for kind in [CONFIG_MAP, INGRESS, AUTOSCALER, DISRUPTION_BUDGET] {
        assert_eq!(scene.names(kind).await, ["shop"], "{kind:?}");
    }
    let shop = scene.ready(WEB_APP, "shop").await;
    assert_eq!(shop["status"]["url"], "https://shop.example.org");
    assert_eq!(shop["status"]["replicas"], 2);
    let deployment = scene.get(DEPLOYMENT, "shop").await;
    assert_eq!(deployment["spec"]["template"]["spec"]["containers"][0]["ports"][0]["containerPort"], 9898);
    let table = scene.kubectl(&["get", "webapps.apps.operetta.dev"]).await;
    for word in ["NAME", "IMAGE", "REPLICAS", "URL", "READY", "AGE", "https://shop.example.org", "True"] {
        assert!(table.contains(word), "{word} in\n{table}");
    }
}

#[tokio::test]
async fn an_ingress_comes_and_goes_with_the_host() {
    let scene = minimal().await;
    assert_eq!(scene.names(INGRESS).await, [""; 0]);
    edit(&scene, json!({"host": "hello.example.org"})).await;
    let ingress = scene.until("there", INGRESS, "hello", |_| true).await;
    assert_eq!(ingress["spec"]["rules"][0]["host"], "hello.example.org");
    let app = scene.ready(WEB_APP, "hello").await;
    assert_eq!(app["status"]["url"], "http://hello.example.org");
    edit(&scene, json!({"host": "other.example.org"})).await;
    let other = |o: &Value| o["spec"]["rules"][0]["host"] == "other.example.org";
    let changed = scene.until("the other host", INGRESS, "hello", other).await;
    assert_eq!(changed["metadata"]["uid"], ingress["metadata"]["uid"]);
    edit(&scene, json!({"host": null})).await;
    scene.gone(INGRESS, "hello").await;
    let app = scene.ready(WEB_APP, "hello").await;
    assert_eq!(app["status"].get("url"), None);
}

#[tokio::test]
async fn a_new_config_rolls_the_pods() {
    let scene = minimal().await;
    let annotation = |o: &Value| o["spec"]["template"]["metadata"]["annotations"]["config-sha256"].clone();
    assert_eq!(annotation(&scene.get(DEPLOYMENT, "hello").await), Value::Null);
    edit(&scene, json!({"config": {"COLOR": "red"}})).await;
    let first = scene.until("a hash of its config", DEPLOYMENT, "hello", |o| annotation(o).is_string()).await;
    scene.until("red", CONFIG_MAP, "hello", |o| o["data"] == json!({"COLOR": "red"})).await;
    scene.ready(WEB_APP, "hello").await;
    edit(&scene, json!({"config": {"COLOR": "blue"}})).await;
    let changed = |o: &Value| annotation(o).is_string() && annotation(o) != annotation(&first);
    scene.until("another hash", DEPLOYMENT, "hello", changed).await;
    scene.until("blue", CONFIG_MAP, "hello", |o| o["data"] == json!({"COLOR": "blue"})).await;
    edit(&scene, json!({"config": null})).await;
    scene.gone(CONFIG_MAP, "hello").await;
    scene.until("no hash", DEPLOYMENT, "hello", |o| annotation(o).is_null()).await;
    scene.ready(WEB_APP, "hello").await;
}

#[tokio::test]
async fn replicas_belong_to_the_autoscaler_until_the_spec_sets_them() {
    let scene = minimal().await;
    let replicas = |n: i64| move |o: &Value| o["spec"]["replicas"] == n;
    edit(&scene, json!({"replicas": 2, "resources": {"requests": {"cpu": "10m"}}})).await;
    scene.until("two replicas", DEPLOYMENT, "hello", replicas(2)).await;

    edit(&scene, json!({"autoscaling": {"min": 1, "max": 9}})).await;
    let autoscaler = scene.until("there", AUTOSCALER, "hello", |_| true).await;
    assert_eq!(autoscaler["spec"]["maxReplicas"], 9);
    let holds = |o: &Value| o["status"]["observedGeneration"] == o["metadata"]["generation"];
    scene.until("seen", WEB_APP, "hello", holds).await;
    // An autoscaler scales like this. Nobody has scaled before, so the field changes its owner here.
    scene.kubectl(&["scale", "deployment", "hello", "--replicas=4"]).await;
    let ours = |o: &Value| {
        let entries = o["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
        let ours =
            entries.into_iter().find(|e| e["manager"] == "operetta/webapp" && e["operation"] == "Apply");
        ours.is_some_and(|e| !e["fieldsV1"]["f:spec"]["f:replicas"].is_null())
    };
    scene.until("replicas given up", DEPLOYMENT, "hello", |o| replicas(4)(o) && !ours(o)).await;
    // Neither a later repair nor a new spec takes the field back, also if the manager has not seen yet who has it.
    edit(&scene, json!({"image": "example.org/other:1"})).await;
    let image = |o: &Value| o["spec"]["template"]["spec"]["containers"][0]["image"] == "example.org/other:1";
    scene.until("the new image", DEPLOYMENT, "hello", image).await;
    let wrong = json!({"spec": {"template": {"spec": {"containers": [{"name": "web", "image": "example.org/wrong:1"}]}}}});
    scene.patch(DEPLOYMENT, "hello", "strategic", &wrong).await;
    scene.until("its image again", DEPLOYMENT, "hello", image).await;
    let marker = json!({"apiVersion": WEB_APP.api_version(), "kind": "WebApp", "metadata": {"name": "marker"},
        "spec": {"image": "example.org/web:1"}});
    scene.handled(&scene.address(), &marker.to_string(), WEB_APP, &[DEPLOYMENT]).await;
    let deployment = scene.get(DEPLOYMENT, "hello").await;
    assert_eq!(deployment["spec"]["replicas"], 4);

    edit(&scene, json!({"autoscaling": null})).await;
    scene.gone(AUTOSCALER, "hello").await;
    scene.until("two replicas again", DEPLOYMENT, "hello", |o| replicas(2)(o) && ours(o)).await;
    scene.until("two in its status", WEB_APP, "hello", |o| is_ready(o) && o["status"]["replicas"] == 2).await;
}

#[tokio::test]
async fn refusals_by_the_schema_name_the_field() {
    let scene = minimal().await;
    let base = file("examples/webapp/minimal.yaml");
    let long = "a".repeat(64);
    let cases = [
        ("  tlsSecret: x", "so it needs host"),
        ("  replicas: -1", "spec.replicas"),
        ("  autoscaling: {min: 3, max: 2}", "min must not be greater than max"),
        ("  sise: 3", "sise"),
    ];
    for (line, message) in cases {
        let manifest = base.replace("name: hello", "name: refused") + line + "\n";
        let error = scene.kubectl_input(&["apply", "-f", "-"], &manifest).await.expect_err(line);
        assert!(error.contains(message), "{line}: {error}");
    }
    let manifest = base.replace("name: hello", &format!("name: {long}"));
    let error = scene.kubectl_input(&["apply", "-f", "-"], &manifest).await.expect_err("a long name");
    assert!(error.contains("at most 63 characters"), "{error}");
    eventually("nothing to be made of them", LONG, async || {
        let names = scene.names(SERVICE).await;
        if names == ["hello"] { Ok(()) } else { Err(format!("{names:?}")) }
    })
    .await;
}
