//! Field managers that own or keep changing the same fields.

use std::time::Duration;

use serde_json::{Value, json};

use super::{requests, stalled, trial};
use crate::support::ext::{CONFIG_MAP, Scene, TRIAL};

#[tokio::test]
async fn a_conflict_names_field_and_manager() {
    let scene = Scene::new().await;
    scene.apply_ready(TRIAL, "c", &trial("c", json!({}))).await;
    let theirs =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"text": "mine"}});
    scene
        .kubectl_input(
            &["apply", "--server-side", "--force-conflicts", "--field-manager=somebody", "-f", "-"],
            &theirs.to_string(),
        )
        .await
        .unwrap();
    stalled(&scene, "c", "ApplyConflict", &["config", ".data.text", "somebody"]).await;
    assert_eq!(scene.get(CONFIG_MAP, "c").await["data"]["text"], "mine");
}

#[tokio::test]
async fn repairs_against_a_conflicting_manager_slow_down() {
    let scene = Scene::new().await;
    scene.apply_ready(TRIAL, "war", &trial("war", json!({}))).await;
    let path =
        format!("/api/v1/namespaces/{}/serviceaccounts/war?fieldManager=rival&force=true", scene.namespace());
    let theirs = json!({"apiVersion": "v1", "kind": "ServiceAccount",
        "metadata": {"name": "war", "annotations": {"text": "theirs"}}});
    let client = scene.client();
    let rival = tokio::spawn(async move {
        loop {
            let request = http::Request::patch(&path)
                .header("content-type", "application/apply-patch+yaml")
                .body(theirs.to_string().into_bytes())
                .unwrap();
            client.request::<Value>(request).await.unwrap();
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    stalled(
        &scene,
        "war",
        "FieldManagerConflict",
        &["account", "rival", "metadata.annotations.text", "yields"],
    )
    .await;
    let mut tried = requests(scene.namespace(), Duration::from_secs(6)).await;
    // Earlier Events may still be sent.
    tried.retain(|r| r.resource != "events");
    assert!(tried.len() <= 4, "{}", crate::support::ext::list(&tried));
    // Other instances are not affected.
    scene.apply_ready(TRIAL, "peace", &trial("peace", json!({}))).await;
    rival.abort();
}
