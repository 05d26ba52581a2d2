//! A restart does not change what instances have observed: until the new process has an answer, the known
//! value stays.

use std::time::Duration;

use operetta::local::AuditEvent;
use serde_json::{Value, json};

use crate::support::ext::{
    LONG, Scene, WATCHER, condition, copy_folder, fixture, is_ready, list, managers_requests, run_flags,
};
use crate::support::plans::{Api, LOOPBACK, Reaction};
use crate::support::{ControlPlane, Operetta, eventually};

/// Where the API has what the instances of this test observe.
const PATH: &str = "/observing";

const INSTANCES: usize = 30;

/// More instances than concurrent observations, and a slow API: the last answers come after five seconds.
const SLOW: Duration = Duration::from_millis(2_500);

async fn manager(plane: &ControlPlane, folder: &str) -> Operetta {
    let flags = ["--leader-elect=false", "--leader-elect-resource-name=observing", LOOPBACK];
    run_flags(plane, &flags, &[folder]).watching(1).await
}

fn instance(name: &str) -> String {
    let meta = json!({"name": name});
    json!({"apiVersion": "fixtures.operetta.dev/v1", "kind": "Watcher", "metadata": meta, "spec": {"references": []}})
        .to_string()
}

#[tokio::test]
async fn restart_writes_no_status_of_observing_instances() {
    let api = Api::shared();
    let folder = tempfile::tempdir().unwrap();
    copy_folder(fixture("observed").as_ref(), folder.path(), &|text| {
        text.replace("http://api.invalid", &(api.url() + PATH)).replace("timeout: 2s", "timeout: 20s")
    });
    let folder = folder.path().to_str().unwrap();
    let scene = Scene::unmanaged().await;
    let mut running = manager(scene.plane(), folder).await;
    let names: Vec<String> = (0..INSTANCES).map(|number| format!("w{number}")).collect();
    for name in &names {
        scene.apply(&instance(name)).await;
    }
    for name in &names {
        scene.ready(WATCHER, name).await;
    }
    let audit = scene.plane().audit();
    let asked = || api.calls("GET", PATH).len();
    for slowness in [Duration::ZERO, SLOW] {
        api.lift(PATH);
        api.always("GET", PATH, Reaction::Later(slowness));
        let mark = audit.mark().unwrap();
        running.end().await;
        let before = asked();
        running = manager(scene.plane(), folder).await;
        // Every observation is answered twice.
        eventually("observations", LONG, async || {
            let count = asked() - before;
            if count > 2 * INSTANCES + 16 { Ok(()) } else { Err(format!("{count}")) }
        })
        .await;
        let mut writes = managers_requests(&audit, mark);
        let is_of_instance = |r: &AuditEvent| r.resource == "watchers" && r.namespace == scene.namespace();
        writes.retain(|r| r.writes() && is_of_instance(r));
        let told = list(&writes);
        assert!(writes.is_empty(), "{slowness:?}: {} writes of {INSTANCES} instances:\n{told}", writes.len());
    }
    // A real change is still reported: here that there is no answer.
    api.lift(PATH);
    api.always("GET", PATH, Reaction::DoneAndSilent);
    running.end().await;
    let _running = manager(scene.plane(), folder).await;
    let is_told = |object: &Value| {
        let ready = condition(object, "Ready");
        !is_ready(object) && ready["reason"] == "ObservationFailed"
    };
    for name in &names {
        scene.until("no answer is told", WATCHER, name, is_told).await;
    }
    api.lift(PATH);
}
