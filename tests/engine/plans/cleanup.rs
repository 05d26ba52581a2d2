//! Deletion: cleanup plans that succeed, block, or are skipped; unanswered requests; terminating namespaces.

use serde_json::{Value, json};

use super::{HALL, ROOM, Stage, api};
use crate::support::plans::{PLAN_RUN, Reaction};
use crate::support::{CONFIG_MAP, LONG, eventually};

const ROOMS: &str = "rooms.fixtures.operetta.dev";
const HALLS: &str = "halls.fixtures.operetta.dev";

#[tokio::test]
async fn cleanup_runs_before_children_are_deleted() {
    let stage = Stage::with(("Room", ROOM), "r", json!({})).await;
    stage.kubectl(&["delete", ROOMS, "r"]).await;
    let items = api().items(&stage.items("r"));
    assert!(items.len() == 1 && items[0].deleted, "{items:#?}");
    stage.gone(CONFIG_MAP, "r-config").await;
    eventually("no run to be left", LONG, async || match stage.runs("r").await.len() {
        0 => Ok(()),
        n => Err(n),
    })
    .await;
}

/// An instance is deleted while its POST is unanswered: the item is created and then removed, never created
/// and forgotten.
#[tokio::test]
async fn deletion_settles_unanswered_requests_first() {
    let stage = Stage::new().await;
    let items = stage.items("r");
    api().always("POST", &items, Reaction::DoneAndSilent);
    stage.create(("Room", ROOM), "r", json!({})).await;
    eventually(
        "the POST",
        LONG,
        async || if api().calls("POST", &items).is_empty() { Err("none") } else { Ok(()) },
    )
    .await;
    stage.kubectl(&["delete", ROOMS, "r", "--wait=false"]).await;
    // Wait until an attempt has ended without an answer.
    eventually("a second attempt", LONG, async || match api().calls("POST", &items).len() {
        2.. => Ok(()),
        n => Err(n),
    })
    .await;
    assert!(api().calls("DELETE", &items).is_empty());
    assert!(stage.find(ROOM, "r").await.is_some());
    api().lift(&items);
    stage.gone(ROOM, "r").await;
    let made = api().items(&items);
    assert!(made.len() == 1 && made[0].deleted, "{made:#?}");
}

/// With `hold` the deletion waits and reports why; it continues when the cause is gone, or by a person's
/// request.
#[tokio::test]
async fn failed_cleanup_blocks_deletion() {
    let stage = Stage::new().await;
    let room = ("Room", ROOM);
    stage.ready_with(room, "r", json!({"fails": true})).await;
    stage.kubectl(&["delete", ROOMS, "r", "--wait=false"]).await;
    let told = stage.stalled(ROOM, "r").await;
    for word in ["cleanup", "refuse", "the cleanup fails"] {
        assert!(told.contains(word), "no {word} in {told}");
    }
    assert!(stage.find(CONFIG_MAP, "r-config").await.is_some(), "children go after the cleanup");
    stage.kubectl(&["annotate", ROOMS, "r", "operetta.dev/skip-cleanup=true"]).await;
    stage.gone(ROOM, "r").await;
    stage.gone(CONFIG_MAP, "r-config").await;

    // An edit that corrects the spec counts as a retry.
    stage.ready_with(room, "s", json!({"fails": true})).await;
    stage.kubectl(&["delete", ROOMS, "s", "--wait=false"]).await;
    stage.stalled(ROOM, "s").await;
    stage.edit(ROOM, "s", json!({"fails": false})).await;
    stage.gone(ROOM, "s").await;
    assert!(api().items(&stage.items("s")).iter().all(|item| item.deleted));
}

#[tokio::test]
async fn failed_cleanup_is_skipped_if_the_package_allows_it() {
    let stage = Stage::with(("Hall", HALL), "h", json!({"fails": true})).await;
    stage.kubectl(&["delete", HALLS, "h"]).await;
    stage.gone(CONFIG_MAP, "h-config").await;
}

/// The API is unreachable for long: the deletion waits, because the cleanup has no timeout.
#[tokio::test]
async fn cleanup_waits_for_an_unreachable_api() {
    let stage = Stage::new().await;
    let items = stage.items("r");
    stage.ready_with(("Room", ROOM), "r", json!({})).await;
    api().always("DELETE", &items, Reaction::Is(503, Value::Null));
    stage.kubectl(&["delete", ROOMS, "r", "--wait=false"]).await;
    eventually("attempts", LONG, async || match api().calls("DELETE", &items).len() {
        3.. => Ok(()),
        n => Err(n),
    })
    .await;
    assert!(stage.find(ROOM, "r").await.is_some());
    api().lift(&items);
    stage.gone(ROOM, "r").await;
    assert!(api().items(&items).iter().all(|item| item.deleted));
}

/// In a terminating namespace no run can be created: the `InstanceState` has the cleanup. One that fails does not block the
/// namespace, and is told where it can be read afterwards.
#[tokio::test]
async fn a_namespace_that_is_deleted_is_cleaned_up() {
    let stage = Stage::with(("Room", ROOM), "r", json!({"fails": true})).await;
    stage.ready_with(("Hall", HALL), "h", json!({})).await;
    let rooms = ["s", "t", "u", "v"];
    for room in rooms {
        stage.ready_with(("Room", ROOM), room, json!({})).await;
    }
    stage.kubectl(&["delete", "namespace", stage.namespace(), "--wait=false"]).await;
    let path = format!("/api/v1/namespaces/{}", stage.namespace());
    eventually("the namespace to be gone", LONG, async || {
        match crate::support::ext::read(&stage.client(), &path).await {
            None => Ok(()),
            Some(namespace) => Err(format!("{:#}", namespace["status"])),
        }
    })
    .await;
    for room in rooms {
        let items = api().items(&stage.items(room));
        assert!(items.len() == 1 && items[0].deleted, "{room}: {items:#?}");
    }
    eventually("an Event about the namespace", LONG, async || {
        let events =
            crate::support::ext::read(&stage.client(), "/apis/events.k8s.io/v1/namespaces/default/events")
                .await;
        let events = events.expect("there are Events");
        let is_it = |event: &&Value| {
            let regarding = &event["regarding"];
            let note = event["note"].as_str().unwrap_or_default();
            regarding["kind"] == "Namespace"
                && regarding["name"] == stage.namespace()
                && event["reason"] == "RunFailed"
                && note.starts_with("Room r: ")
                && note.contains("the cleanup fails")
        };
        let found = events["items"].as_array().is_some_and(|items| items.iter().any(|event| is_it(&event)));
        if found { Ok(()) } else { Err(events.to_string()) }
    })
    .await;
}

/// A deletion ends an active run, and starts none except `cleanup`.
#[tokio::test]
async fn a_deletion_ends_a_run_that_waits() {
    let stage = Stage::new().await;
    let items = stage.items("r");
    api().next("POST", &items, vec![Reaction::Is(503, Value::Null); 200]);
    stage.create(("Room", ROOM), "r", json!({})).await;
    eventually(
        "an attempt",
        LONG,
        async || if api().calls("POST", &items).is_empty() { Err("none") } else { Ok(()) },
    )
    .await;
    let runs = stage.runs("r").await;
    assert_eq!(runs.len(), 1, "{runs:#?}");
    stage.kubectl(&["delete", ROOMS, "r", "--wait=false"]).await;
    stage.gone(ROOM, "r").await;
    assert!(api().items(&items).is_empty(), "it was never made");
    for run in runs {
        stage.gone(PLAN_RUN, crate::support::ext::name_of(&run)).await;
    }
}
