//! The shell on a current-thread runtime with paused time, over kube's client.

use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::{ConfigMap, ServiceAccount};
use kube::Api;
use kube::api::{ListParams, PostParams, WatchEvent, WatchParams};
use serde_json::json;
use tokio::time::Instant;

use super::*;

/// A server whose time is that of the runtime, and its client.
fn server() -> (Server, kube::Client) {
    let start = Instant::now();
    let epoch: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
    let server = Server::new(move || epoch + start.elapsed());
    let client = server.client();
    let controllers = server.clone();
    tokio::spawn(async move { controllers.run().await });
    (server, client)
}

fn map(name: &str) -> ConfigMap {
    serde_json::from_value(json!({"metadata": {"name": name}})).unwrap()
}

#[tokio::test(start_paused = true)]
async fn watches_end_at_their_timeout_and_have_bookmarks() {
    let (_server, client) = server();
    let maps: Api<ConfigMap> = Api::namespaced(client, "default");
    let version = maps.list(&ListParams::default()).await.unwrap().metadata.resource_version.unwrap();
    let started = Instant::now();
    let events = maps.watch(&WatchParams::default().timeout(200), &version).await.unwrap();
    maps.create(&PostParams::default(), &map("a")).await.unwrap();
    let events: Vec<_> = events.try_collect().await.unwrap();
    assert!(matches!(&events[0], WatchEvent::Added(map) if map.metadata.name.as_deref() == Some("a")));
    let bookmarks = events.iter().filter(|event| matches!(event, WatchEvent::Bookmark(_))).count();
    assert_eq!((events.len(), bookmarks), (4, 3), "{events:?}");
    assert_eq!(started.elapsed().as_secs(), 200);
}

#[tokio::test(start_paused = true)]
async fn controllers_act_after_writes_and_wake_watches() {
    let (_server, client) = server();
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), "new");
    let mut events = accounts.watch(&WatchParams::default(), "0").await.unwrap().boxed();
    let namespaces: Api<k8s_openapi::api::core::v1::Namespace> = Api::all(client);
    let namespace = serde_json::from_value(json!({"metadata": {"name": "new"}})).unwrap();
    namespaces.create(&PostParams::default(), &namespace).await.unwrap();
    let event = events.next().await.unwrap().unwrap();
    assert!(
        matches!(&event, WatchEvent::Added(account) if account.metadata.name.as_deref() == Some("default"))
    );
}

#[tokio::test(start_paused = true)]
async fn large_requests_are_refused() {
    let (_server, client) = server();
    let maps: Api<ConfigMap> = Api::namespaced(client, "default");
    let mut large = map("large");
    large.data = Some([("a".to_owned(), "x".repeat(4 << 20))].into());
    let error = maps.create(&PostParams::default(), &large).await.unwrap_err();
    assert!(matches!(&error, kube::Error::Api(status) if status.code == 413), "{error:?}");
}
