//! Readiness of CRDs and of objects of custom kinds.

use super::record::Record;
use super::{apply, document};
use crate::support::{LONG, Scene, eventually, kubectl, kubectl_stdin};
use serde_json::{Value, json};

fn definition(group: &str, plural: &str, kind: &str, subresources: &str) -> String {
    format!(
        "apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {{name: {plural}.{group}}}
spec:
  group: {group}
  names: {{kind: {kind}, plural: {plural}}}
  scope: Namespaced
  versions:
    - name: v1
      served: true
      storage: true
      subresources: {subresources}
      schema: {{openAPIV3Schema: {{type: object, x-kubernetes-preserve-unknown-fields: true}}}}
"
    )
}

#[tokio::test]
async fn readiness_of_crds_and_custom_kinds() {
    let scene = Scene::unmanaged().await;
    let crd = ("apiextensions.k8s.io/v1", "CustomResourceDefinition", "customresourcedefinitions");
    let group = "readiness.operetta.dev";
    for (plural, kind, subresources, last, by) in [
        ("things", "Thing", "{status: {}}", "Ready", &["Installing"][..]),
        ("plains", "Plain", "{}", "Ready", &["Installing"]),
        // Two CRDs of a group cannot have one kind.
        ("others", "Thing", "{}", "!ListKindConflict", &["Installing"]),
    ] {
        let record = Record::of(&scene, crd, false, &format!("{plural}.{group}"), None);
        record.watching().await;
        kubectl_stdin(&["apply", "-f", "-"], &definition(group, plural, kind, subresources)).await.ok();
        record.comes_to(last, by).await;
    }
    kubectl(&["delete", "crd", &format!("others.{group}")]).await.ok();

    let api = format!("{group}/v1");
    let record = Record::of(&scene, (&api, "Plain", "plains"), true, "a", Some(false));
    record.watching().await;
    let plain = format!("{{apiVersion: {api}, kind: Plain, metadata: {{name: a}}, spec: {{a: 1}}}}");
    eventually("the kind to be found", LONG, async || {
        scene.kubectl_input(&["apply", "-f", "-"], &document(&plain)).await
    })
    .await;
    record.comes_to("Ready", &[]).await;

    let record = Record::of(&scene, (&api, "Thing", "things"), true, "a", Some(true));
    record.watching().await;
    apply(&scene, &format!("{{apiVersion: {api}, kind: Thing, metadata: {{name: a}}, spec: {{a: 1}}}}"))
        .await;
    record.until("NotObserved").await;
    let status = async |status: Value| {
        let patch = json!({"status": status}).to_string();
        scene.kubectl(&["patch", "thing", "a", "--subresource=status", "--type=merge", "-p", &patch]).await;
    };
    let one =
        |kind: &str, status: &str, reason: &str| json!([{"type": kind, "status": status, "reason": reason}]);
    status(json!({"observedGeneration": 1, "conditions": one("Ready", "False", "Waits")})).await;
    record.until("Waits").await;
    status(json!({"conditions": one("Ready", "True", "Fine")})).await;
    record.until("Ready").await;
    scene.kubectl(&["patch", "thing", "a", "--type=merge", "-p", r#"{"spec":{"a":2}}"#]).await;
    record.until("LatestGenerationNotObserved").await;
    status(json!({"observedGeneration": 2, "conditions": one("Stalled", "True", "Denied")})).await;
    record.until("!Denied").await;
    status(json!({"conditions": one("Reconciling", "True", "Busy")})).await;
    record.until("Busy").await;
    status(json!({"conditions": one("Synced", "False", "Other")})).await;
    record
        .comes_to(
            "Ready",
            &["NotObserved", "Waits", "Ready", "LatestGenerationNotObserved", "!Denied", "Busy"],
        )
        .await;
}
