//! A `readyWhen` replaces the readiness rule of the kind.

use crate::support::ext::{CONFIG_MAP, DEPLOYMENT, GATE, Scene, condition};
use operetta::readiness::{Readiness, of};
use serde_json::{Value, json};

#[tokio::test]
async fn ready_when_replaces_the_rule_of_the_kind() {
    let scene = Scene::new().await;
    let gate = |needs: &str| {
        json!({"apiVersion": GATE.api_version(), "kind": "Gate", "metadata": {"name": "g"}, "spec": {"needs": needs}})
            .to_string()
    };
    let ready = |what: &'static [&'static str]| {
        move |o: &Value| {
            let message = condition(o, "Ready")["message"].to_string();
            what.iter().all(|word| message.contains(word))
        }
    };
    scene.apply(&gate("yes")).await;
    // No node runs the Deployment's pods, and yet `readyWhen` is met.
    scene.until("there", CONFIG_MAP, "g-after-early", |_| true).await;
    let deployment = scene.get(DEPLOYMENT, "g").await;
    assert_ne!(of(&deployment), Readiness::Ready);
    // The ConfigMap exists, and yet its `readyWhen` is not met.
    let waits = ready(&["after-late waits for late", "readyWhen is not met yet"]);
    scene.until("waiting", GATE, "g", waits).await;
    scene.patch(CONFIG_MAP, "g-late", "merge", &json!({"data": {"open": "no"}})).await;
    scene
        .until("waiting", GATE, "g", ready(&["after-late waits for late", "readyWhen is not met yet"]))
        .await;
    assert!(scene.find(CONFIG_MAP, "g-after-late").await.is_none());
    scene.patch(CONFIG_MAP, "g-late", "merge", &json!({"data": {"open": "yes"}})).await;
    scene.until("there", CONFIG_MAP, "g-after-late", |_| true).await;
    // The instance itself is Ready although not all its children are.
    scene.ready(GATE, "g").await;
    assert_ne!(of(&scene.get(DEPLOYMENT, "g").await), Readiness::Ready);

    // A `readyWhen` that fails counts as not met, and its error is reported.
    scene.patch(CONFIG_MAP, "g-odd", "merge", &json!({"data": {"number": "many"}})).await;
    scene.apply(&gate("more")).await;
    scene
        .until("waiting", GATE, "g", ready(&["after-odd waits for odd", "readyWhen", "not a whole number"]))
        .await;
    assert_eq!(scene.get(CONFIG_MAP, "g-after-odd").await["data"]["needs"], "yes");
    scene.patch(CONFIG_MAP, "g-odd", "merge", &json!({"data": {"number": "2"}})).await;
    scene.until("changed", CONFIG_MAP, "g-after-odd", |o| o["data"]["needs"] == "more").await;
    scene.until("waiting", GATE, "g", ready(&["readyWhen is not met yet"])).await;
    // Only `readyWhen` decides, and the message claims no more than that.
    scene.patch(CONFIG_MAP, "g-late", "merge", &json!({"data": {"open": "more"}})).await;
    scene.until("Ready", GATE, "g", ready(&["readyWhen is met, 6 children are applied"])).await;
    scene.ready(GATE, "g").await;
}
