//! While an edit is refused, the accepted state is maintained, also by another manager process.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use super::{edit, stalled, trial};
use crate::support::ext::{
    CONFIG_MAP, Kind, LONG, SERVICE_ACCOUNT, Scene, TRIAL, condition, copy_folder, fixture, uid_of,
};
use crate::support::{Operetta, eventually, plane_of_tests};

const RECORD: &str = "operetta.dev/accepted";

fn record(instance: &Value) -> &Value {
    &instance["metadata"]["annotations"][RECORD]
}

async fn delete(scene: &Scene, kind: Kind, name: &str) {
    let before = scene.get(kind, name).await;
    let resource = kind.plural;
    scene.kubectl(&["delete", resource, name]).await;
    let anew = |o: &Value| uid_of(o) != uid_of(&before);
    let after = scene.until("to be there again", kind, name, anew).await;
    for field in ["data", "labels", "annotations", "ownerReferences"] {
        let at = |o: &Value| if field == "data" { o[field].clone() } else { o["metadata"][field].clone() };
        assert_eq!(at(&before), at(&after), "{name}: {field}");
    }
}

/// Checks that deleted and edited children come back as they were accepted, whether or not the refused edit
/// changes them.
async fn is_kept_up(scene: &Scene, name: &str) {
    // The edit changes the ServiceAccount and the ConfigMap, and the ConfigMap is refused.
    delete(scene, SERVICE_ACCOUNT, name).await;
    delete(scene, CONFIG_MAP, name).await;
    delete(scene, CONFIG_MAP, &format!("{name}-fixed")).await;
    for (kind, name) in [(SERVICE_ACCOUNT, name.to_owned()), (CONFIG_MAP, format!("{name}-fixed"))] {
        let before = scene.get(kind, &name).await;
        // Remove the owner: with a wrong one the garbage collector would delete the object.
        let other = json!({"metadata": {"ownerReferences": null, "labels": {"operetta.dev/child": "x"}}});
        scene.patch(kind, &name, "merge", &other).await;
        let mended = |o: &Value| {
            ["ownerReferences", "labels"]
                .iter()
                .all(|field| o["metadata"][field] == before["metadata"][field])
        };
        scene.until("mended", kind, &name, mended).await;
    }
}

#[tokio::test]
async fn refused_edit_does_not_stop_drift_correction() {
    let scene = Scene::new().await;
    let accepted = scene.apply_ready(TRIAL, "held", &trial("held", json!({"fixed": "1"}))).await;
    assert!(record(&accepted).is_null());
    edit(&scene, "held", json!({"label": "l".repeat(64), "text": "changed", "secret": 1})).await;
    stalled(&scene, "held", "ApplyRefused", &["config", "metadata.labels", "the rest of the change waits"])
        .await;
    scene.until("recorded", TRIAL, "held", |o| record(o).is_string()).await;
    is_kept_up(&scene, "held").await;
    let told = stalled(&scene, "held", "ApplyRefused", &["config", "metadata.labels"]).await;
    assert!(!told.contains("missing"), "{told}");
    assert!(scene.find(crate::support::ext::SECRET, "held").await.is_none());
    scene.idle(&scene.address()).await;
    // Meanwhile the manager sends only the retries of the edit.
    let asked = super::requests(scene.namespace(), Duration::from_secs(5)).await;
    // Earlier Events may still be sent.
    let tries = |uri: &str| uri.contains("dryRun") || uri.contains("/events");
    let others: Vec<_> = asked.into_iter().filter(|r| !tries(&r.uri)).collect();
    assert!(others.is_empty(), "{}", crate::support::ext::list(&others));
    edit(&scene, "held", json!({"label": "short"})).await;
    scene.ready(TRIAL, "held").await;
    scene.until("forgotten", TRIAL, "held", |o| record(o).is_null()).await;
    assert_eq!(scene.get(CONFIG_MAP, "held").await["data"]["text"], "changed");
}

#[tokio::test]
async fn next_manager_process_maintains_the_accepted_state() {
    let scene = Scene::unmanaged().await;
    // Use a kind that the shared manager does not handle.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("again");
    copy_folder(Path::new(&fixture("trial")), &path, &|text| {
        text.replace("fixtures.operetta.dev", "again.operetta.dev").replace("name: trial\n", "name: again\n")
    });
    let kind = Kind::of("again.operetta.dev/v1".into(), "trials".into());
    let start = async || {
        // Use another Lease, so that the two managers ignore each other's packages.
        let lease = "--leader-elect-resource-name=again";
        let args = ["run", "--leader-elect=false", lease, path.to_str().unwrap()];
        Operetta::run(&*plane_of_tests().await, &args).watching(1).await
    };
    let apply = async |spec: Value| {
        let text = trial("again", spec).replace("fixtures.operetta.dev", "again.operetta.dev");
        scene.apply(&text).await;
    };
    let refused = async || {
        scene
            .until("Stalled", kind, "again", |o| {
                condition(o, "Stalled")["reason"] == "ApplyRefused"
                    && o["status"]["observedGeneration"] == o["metadata"]["generation"]
            })
            .await
    };
    let mut manager = start().await;
    apply(json!({"fixed": "1"})).await;
    scene.ready(kind, "again").await;
    let bad = json!({"fixed": "1", "label": "l".repeat(64), "text": "changed"});
    apply(bad.clone()).await;
    refused().await;
    scene.until("recorded", kind, "again", |o| record(o).is_string()).await;
    manager.kill9();
    // Change the object while no manager runs.
    let accounts = scene.get(SERVICE_ACCOUNT, "again").await;
    scene.kubectl(&["delete", "serviceaccount", "again"]).await;
    let mut manager = start().await;
    let back = scene.until("there again", SERVICE_ACCOUNT, "again", |_| true).await;
    assert_eq!(back["metadata"]["annotations"], accounts["metadata"]["annotations"]);
    is_kept_up(&scene, "again").await;
    // No manager has seen the former spec: children that the edit does not change come back, and the others
    // are named.
    apply(json!({"fixed": "1"})).await;
    scene.ready(kind, "again").await;
    scene.until("forgotten", kind, "again", |o| record(o).is_null()).await;
    manager.kill9();
    apply(bad).await;
    let mut manager = start().await;
    refused().await;
    scene.until("recorded", kind, "again", |o| record(o).is_string()).await;
    delete(&scene, CONFIG_MAP, "again-fixed").await;
    scene.kubectl(&["delete", "serviceaccount", "again"]).await;
    eventually("Ready to name it", LONG, async || {
        let instance = scene.get(kind, "again").await;
        let told = condition(&instance, "Ready")["message"].as_str().unwrap_or_default().to_owned();
        if told.contains("missing until a change is accepted: account") { Ok(()) } else { Err(told) }
    })
    .await;
    manager.kill9();
}
