//! Fault 12: etcd and the API server really stop and come back. Nothing is deleted because of a cache, and
//! the manager recovers by itself.

use std::time::Duration;

use operetta::local::Component;
use serde_json::{Value, json};

use crate::support::faults::case::{Case, WHOLE};
use crate::support::faults::{Verb, story};
use crate::support::{CONFIG_MAP, LONG, SECRET, SERVICE, eventually, own_plane, uid_of};

const NAMES: [&str; 3] = ["one", "two", "three"];

/// How long an outage lasts: longer than the deadline of calls in these tests.
const GONE: Duration = Duration::from_secs(6);

/// The uids of all children.
async fn uids(case: &Case) -> Vec<String> {
    let mut uids = Vec::new();
    for kind in [CONFIG_MAP, SECRET, SERVICE] {
        uids.extend(case.scene.list(kind).await.iter().map(|o| uid_of(o).to_owned()));
    }
    uids.sort();
    uids
}

/// Waits until the API server can read and write its store again.
async fn serves(case: &Case) {
    let put = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "probe"}}).to_string();
    eventually("the API server to be back", LONG, async || {
        case.scene.kubectl_input(&["apply", "--server-side", "-f", "-"], &put).await
    })
    .await;
    case.scene.kubectl(&["delete", "configmap", "probe"]).await;
}

/// Checks the state after an outage: all children are the same objects, and the manager handles an edit and a
/// manual deletion without help.
async fn has_recovered(case: &Case, what: &str, before: &[String], mark: usize, stage: &str) {
    serves(case).await;
    let log = case.wire.since(mark);
    let deletes: Vec<_> = log.iter().filter(|e| e.call.verb == Verb::Delete).cloned().collect();
    assert!(deletes.is_empty(), "{what}: {}", story(&deletes));
    assert_eq!(uids(case).await, before, "{what}: children are others");
    for name in NAMES {
        case.apply(name, &json!({"stage": stage})).await;
    }
    for name in NAMES {
        case.ready(name).await;
        let member = case.scene.get(CONFIG_MAP, &format!("{name}-b")).await;
        assert_eq!(member["data"]["stage"], stage, "{what}");
    }
    case.scene.kubectl(&["delete", "configmap", "one-a"]).await;
    let is_there = |o: &Value| o["data"]["stage"] == stage;
    case.scene.until("made anew", CONFIG_MAP, "one-a", is_there).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn outage_of_etcd_and_api_server_loses_nothing() {
    let plane = own_plane().await;
    let case = Case::on(&plane, &WHOLE, 0).await.with_deadline(Duration::from_secs(3));
    let process = case.start().await;
    for name in NAMES {
        case.apply(name, &json!({"stage": "one"})).await;
    }
    for name in NAMES {
        case.ready(name).await;
    }
    case.quiet().await;

    // etcd hangs: lists from the server's cache may succeed, other requests do not. The watches are ended as
    // well, so that the manager has to send requests.
    let (before, mark) = (uids(&case).await, case.wire.mark());
    plane.pause(Component::Etcd).expect("etcd is paused");
    case.wire.fail_watches(None, 410);
    tokio::time::sleep(GONE).await;
    plane.resume(Component::Etcd).expect("etcd goes on");
    has_recovered(&case, "etcd hung", &before, mark, "two").await;

    // The server hangs during an edit.
    let (before, mark) = (uids(&case).await, case.wire.mark());
    case.apply("two", &json!({"stage": "in between"})).await;
    plane.pause(Component::ApiServer).expect("the API server is paused");
    tokio::time::sleep(GONE).await;
    plane.resume(Component::ApiServer).expect("the API server goes on");
    has_recovered(&case, "the API server hung", &before, mark, "three").await;

    // Both are killed. A manager that starts meanwhile cannot work, but does no harm.
    let (before, mark) = (uids(&case).await, case.wire.mark());
    plane.kill(Component::ApiServer).await.expect("the API server is killed");
    plane.kill(Component::Etcd).await.expect("etcd is killed");
    tokio::time::sleep(GONE).await;
    plane.restart(Component::Etcd).await.expect("etcd starts");
    plane.restart(Component::ApiServer).await.expect("the API server starts");
    has_recovered(&case, "both were killed", &before, mark, "four").await;

    let process = case.stays(process, &NAMES).await;

    // An instance is deleted while etcd hangs.
    case.delete("three").await;
    plane.pause(Component::Etcd).expect("etcd is paused");
    tokio::time::sleep(GONE).await;
    plane.resume(Component::Etcd).expect("etcd goes on");
    case.gone("three").await;
    for name in ["three-first", "three-second", "three-a"] {
        assert!(case.scene.find(CONFIG_MAP, name).await.is_none(), "{name}");
    }
    assert!(case.scene.find(CONFIG_MAP, "three-kept").await.is_some());
    case.finish(process).await;
}
