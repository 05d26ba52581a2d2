//! The lists with which watches begin: streams where the server has them, pages where it does not.

use std::collections::BTreeSet;

use crate::support::ControlPlane;
use crate::support::ext::{LIGHT, LONG, list, managers_requests, run};
use crate::support::{eventually, kubectl_of, options, own_plane};
use operetta::local::{AuditEvent, Mark, Options};
use serde_json::json;

/// The kinds of the package `light`, including its own.
const KINDS: [&str; 3] = ["configmaps", "lights", "secrets"];

/// What the managers of a control plane have listed since a mark: as streams, and in pages.
fn lists(plane: &ControlPlane, mark: Mark) -> (Vec<AuditEvent>, Vec<AuditEvent>) {
    let mut all = managers_requests(&plane.audit(), mark);
    // The registrar of CRDs lists them once in addition to its watch.
    all.retain(|r| r.streams_list() || r.verb == "list" && r.resource != "customresourcedefinitions");
    all.into_iter().partition(AuditEvent::streams_list)
}

fn resources(events: &[AuditEvent]) -> BTreeSet<&str> {
    events.iter().map(|event| event.resource.as_str()).collect()
}

/// Checks that a manager notices an instance, a child that was deleted while no manager ran, and a child that
/// is deleted while it runs. Returns the mark of the second manager's start, which finds no new kind.
async fn keeps(plane: &ControlPlane) -> Mark {
    let kubectl = async |args: &[&str], input: &str| kubectl_of(plane, args, input).await.ok();
    let gone_and_back = async |what: &str, uid: &str| {
        eventually(what, LONG, async || {
            let found =
                kubectl_of(plane, &["get", "configmap", "l", "-o", "jsonpath={.metadata.uid}"], "").await;
            match found.result() {
                Ok(now) if now != uid => Ok(now),
                other => Err(format!("{other:?}")),
            }
        })
        .await
    };
    let light =
        json!({"apiVersion": LIGHT.api_version(), "kind": "Light", "metadata": {"name": "l"}, "spec": {}});
    let mut manager = run(plane, &["light"]).watching(1).await;
    kubectl(&["apply", "-f", "-"], &light.to_string()).await;
    let ready = ["wait", "--for=condition=Ready", "--timeout=300s", "light/l"];
    kubectl(&ready, "").await;
    let first = gone_and_back("a child", "").await;
    kubectl(&["delete", "configmap", "l"], "").await;
    let second = gone_and_back("the child again", &first).await;
    kubectl(&ready, "").await;
    manager.kill9();
    kubectl(&["delete", "configmap", "l"], "").await;
    let mark = plane.audit().mark().unwrap();
    let mut manager = run(plane, &["light"]).watching(1).await;
    gone_and_back("what went meanwhile", &second).await;
    kubectl(&ready, "").await;
    manager.end().await;
    mark
}

#[tokio::test]
async fn lists_are_streams() {
    let plane = own_plane().await;
    let (streams, pages) = lists(&plane, keeps(&plane).await);
    assert!(pages.is_empty(), "{}", list(&pages));
    assert!(resources(&streams).is_superset(&KINDS.into()), "{}", list(&streams));
    for stream in &streams {
        assert_eq!(stream.code, 200, "{}", list(&streams));
        // It asks for the newest state, not for whatever the server has cached.
        assert!(stream.uri.ends_with("&resourceVersion="), "{}", stream.uri);
    }
}

#[tokio::test]
async fn server_without_streams_is_asked_once_then_paged() {
    let flags = vec!["--feature-gates=WatchList=false".to_owned()];
    let plane = ControlPlane::start(Options { apiserver_flags: flags, ..options() });
    let plane = plane.await.unwrap_or_else(|error| panic!("{error}"));
    let (streams, pages) = lists(&plane, keeps(&plane).await);
    assert!(resources(&pages).is_superset(&KINDS.into()), "{}", list(&pages));
    assert!(streams.iter().all(|stream| stream.code == 422), "{}", list(&streams));
    // Watches that begin at the same moment do not know of each other's refusal.
    assert!((1..=4).contains(&streams.len()), "{}", list(&streams));
    plane.stop().await;
}
