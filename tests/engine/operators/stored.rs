//! The stored revision of an active package is deleted or altered while the manager runs.

use serde_json::{Value, json};

use crate::support::operators::{Cluster, MANAGERS, Package, is_active, repaired, scene};
use crate::support::{CONFIG_MAP, LONG, REVISION, eventually, find_in, uid_of};

/// Waits for an Event of the Operator with these words.
async fn told(cluster: &Cluster, operator: &str, words: &str) {
    eventually(words, LONG, async || {
        let events = cluster.kubectl(&["get", "events", "-n", "default", "-o", "json"], "").await.ok();
        let events: Value = serde_json::from_str(&events).unwrap();
        let events = events["items"].as_array().into_iter().flatten();
        let notes: Vec<String> = events
            .filter(|event| {
                event["involvedObject"]["name"] == operator && event["reason"] == "RevisionRestored"
            })
            .map(|event| event["message"].as_str().unwrap_or_default().to_owned())
            .collect();
        if notes.iter().any(|note| note.contains(words)) { Ok(()) } else { Err(format!("{notes:?}")) }
    })
    .await;
}

#[tokio::test]
async fn stored_revision_of_an_active_package_is_restored() {
    let cluster = &Cluster::start().await;
    let package = Package::new("keeps", "0.1.0", "old");
    let revision = cluster.put_active(&package).await;
    let scene = scene(cluster).await;
    package.ready(&scene, "one", &json!({})).await;
    let part = format!("{revision}-0");
    let find_part = async || find_in(&cluster.plane, CONFIG_MAP, Some(MANAGERS), &part).await;
    let stored = find_part().await.unwrap();
    // Wait until it exists again as another object.
    let again = async |before: &Value, what: &str| {
        eventually(what, LONG, async || match find_part().await {
            Some(live) if uid_of(&live) != uid_of(before) && live["binaryData"] == stored["binaryData"] => {
                Ok(live)
            }
            other => Err(format!("{:#}", other.unwrap_or_default()["metadata"])),
        })
        .await
    };
    // Delete a part.
    cluster.kubectl(&["delete", "configmap", "-n", MANAGERS, &part], "").await.ok();
    let live = again(&stored, "the deleted part").await;
    told(cluster, "keeps", &format!("ConfigMap {MANAGERS}/{part} of the active revision")).await;
    // Change the metadata of a part, whose data is immutable.
    let patch = json!({"metadata": {"ownerReferences": null}}).to_string();
    cluster
        .kubectl(&["patch", "configmap", "-n", MANAGERS, &part, "--type=merge", "-p", &patch], "")
        .await
        .ok();
    let live = again(&live, "the altered part").await;
    // Delete the revision itself; the garbage collector deletes its parts.
    let before = cluster.find(REVISION, &revision).await.unwrap();
    cluster.kubectl(&["delete", "operatorrevision", &revision], "").await.ok();
    eventually("the deleted revision", LONG, async || match cluster.find(REVISION, &revision).await {
        Some(live) if uid_of(&live) != uid_of(&before) => Ok(()),
        _ => Err("it is not there"),
    })
    .await;
    told(cluster, "keeps", &format!("OperatorRevision {revision}")).await;
    again(&live, "the part of the new revision").await;
    cluster.until("keeps", "active", is_active).await;
    // The stored revision can be loaded.
    cluster.restart(async || {}).await;
    repaired(&scene, "old").await;
}
