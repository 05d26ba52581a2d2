//! Observations: an HTTP API decides which children exist. While it does not answer, nothing is decided. The API is the server of
//! the example, so the manager is a process in real time.

#[allow(dead_code, unreachable_pub)] // the example uses the rest
#[path = "../../examples/bookings/server.rs"]
mod bookings;

use std::net::SocketAddr;
use std::path::Path;

use bookings::{Fault, Faults, Server};
use serde_json::{Value, json};

use crate::support::barrier::Address;
use crate::support::ext::{CONFIG_MAP, LONG, Scene, WATCHER, condition, copy_folder, fixture, run_flags};
use crate::support::plans::LOOPBACK;
use crate::support::{ControlPlane, Operetta, eventually, own_embedded_plane};

async fn server(at: SocketAddr) -> Server {
    let start = async || {
        let server = Server::start(at, Some("s3cret".into()), Faults::default()).await;
        server.map_err(|error| error.to_string())
    };
    eventually("the API listens", LONG, start).await
}

/// Starts a manager of a copy of the package that calls this server.
async fn manager(plane: &ControlPlane, server: &Server, folder: &Path) -> Operetta {
    let package = fixture("observed");
    copy_folder(package.as_ref(), folder, &|text| text.replace("http://api.invalid", &server.url()));
    run_flags(plane, &[LOOPBACK], &[folder.to_str().unwrap()]).watching(1).await
}

async fn ready(scene: &Scene, reason: &str) -> String {
    let is = |object: &Value| condition(object, "Ready")["reason"] == reason;
    let object = scene.until(reason, WATCHER, "r", is).await;
    condition(&object, "Ready")["message"].as_str().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn a_failed_observation_is_unknown_and_not_empty() {
    let first = server(([127, 0, 0, 1], 0).into()).await;
    let folder = tempfile::tempdir().unwrap();
    let scene = Scene::on(&own_embedded_plane().await).await;
    let manager = manager(scene.plane(), &first, folder.path()).await;
    let object = |references: &Value| {
        json!({"apiVersion": "fixtures.operetta.dev/v1", "kind": "Watcher", "metadata": {"name": "r"}, "spec": {"references": references}})
            .to_string()
    };
    scene.apply(&object(&json!([]))).await;

    // Without the token the API answers with an error, which says nothing about bookings.
    let message = ready(&scene, "ObservationFailed").await;
    assert!(message.contains("refs.booking") && message.contains("status 401"), "{message}");
    assert!(!message.contains("token is wrong"), "the body is not shown: {message}");
    scene.until("exists", CONFIG_MAP, "r-plain", |_| true).await;
    let token = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "r-token"}, "stringData": {"token": "s3cret"}});
    scene.apply(&token.to_string()).await;
    ready(&scene, "Ready").await;
    assert!(scene.find(CONFIG_MAP, "r-copy").await.is_none(), "404 is an answer");

    // Changes in the API are observed, for each key.
    first.book("r", &json!({"seats": 2}));
    scene.until("is there", CONFIG_MAP, "r-copy", |copy| copy["data"]["order"] == "2").await;
    scene.until("booked", WATCHER, "r", |object| object["status"]["state"] == "booked").await;
    first.book("a", &json!({}));
    scene.apply(&object(&json!(["a", "b"]))).await;
    scene.until("has a number", CONFIG_MAP, "r-a", |one| one["data"]["number"] == "B00002").await;
    let message = ready(&scene, "ObservationFailed").await;
    assert!(message.contains("refs.each[\"b\"]") && message.contains("status 404"), "{message}");
    first.book("b", &json!({}));
    scene.until("has a number", CONFIG_MAP, "r-b", |one| one["data"]["number"] == "B00003").await;
    ready(&scene, "Ready").await;

    // Whichever way the API fails, nothing is deleted, and the other children are maintained.
    for fault in [Fault::Error, Fault::CutAfter, Fault::Throttle] {
        first.set_faults(Faults { always: Some(fault), ..Faults::default() });
        ready(&scene, "ObservationFailed").await;
        first.set_faults(Faults::default());
        ready(&scene, "Ready").await;
    }
    let api = first.address;
    drop(first);
    let is_refused = |object: &Value| {
        let ready = condition(object, "Ready");
        ready["reason"] == "ObservationFailed" && ready["message"].to_string().contains("refused")
    };
    scene.until("refused", WATCHER, "r", is_refused).await;
    scene.kubectl(&["delete", "configmap", "r-plain"]).await;
    scene.until("is restored", CONFIG_MAP, "r-plain", |_| true).await;
    // Wait until every observation has failed again and the manager has handled that.
    let address = Address::of(&manager);
    let failures = async || {
        let state = address.state().await;
        let all = state["observations"].as_array().expect("observations").clone();
        all.iter().map(|one| one["failures"].as_u64().expect("a number")).collect::<Vec<_>>()
    };
    eventually("every observation to fail twice", LONG, async || {
        let now = failures().await;
        if now.len() >= 3 && now.iter().all(|count| *count >= 2) { Ok(()) } else { Err(format!("{now:?}")) }
    })
    .await;
    scene.idle(&address).await;
    for name in ["r-copy", "r-a", "r-b"] {
        assert!(scene.find(CONFIG_MAP, name).await.is_some(), "{name} is deleted while nothing is known");
    }
    let live = scene.until("its state", WATCHER, "r", |_| true).await;
    assert_eq!(live["status"]["state"], "booked", "what was known stays");

    // An API that has lost all data answers, and that counts: once everything is known, children that are not
    // booked are deleted.
    scene.apply(&object(&json!([]))).await;
    let second = server(api).await;
    let is_gone = async || match scene.find(CONFIG_MAP, "r-copy").await {
        None => Ok(()),
        Some(_) => Err("it exists"),
    };
    eventually("the copy goes", LONG, is_gone).await;
    assert!(second.log().iter().all(|seen| seen.method == "GET"));
}
