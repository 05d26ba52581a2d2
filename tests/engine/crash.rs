//! The manager may be killed at any moment: its successor finishes the work, and nothing is created twice or
//! left over.
//!
//! The moments depend on `OPERETTA_TEST_SEED`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::oracles::{self, State, differences};
use crate::support::{
    CHAIN, CONFIG_MAP, DISRUPTION_BUDGET, ETCD, Kind, LIGHT, LONG, Operetta, POD, ROLE, SECRET, SERVICE,
    SERVICE_ACCOUNT, Scene, VOLUME_CLAIM, etcd, eventually, is_ready, name_of, own_plane_of_tests, run, seed,
};
use futures::StreamExt;
use kube::api::DynamicObject;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

fn packages() -> [&'static str; 3] {
    ["light", "ordered", etcd::package()]
}

const INSTANCES: [Kind; 3] = [LIGHT, CHAIN, ETCD];

const CHILDREN: [Kind; 8] =
    [CONFIG_MAP, SECRET, SERVICE, SERVICE_ACCOUNT, ROLE, POD, DISRUPTION_BUDGET, VOLUME_CLAIM];

/// How often the manager is killed during the rollout, and again during the edit.
const KILLS: usize = 5;

/// After this time a manager that has nothing left to write is killed as well.
const GIVE_UP: Duration = Duration::from_secs(10);

/// The manifests of twenty instances, or of the same with edited specs.
fn manifests(edited: bool) -> String {
    let pick = |first: Value, second: Value| if edited { second } else { first };
    let mut items = Vec::new();
    for i in 0..8 {
        let spec = pick(json!({}), json!({"greeting": format!("hello {i}"), "port": 9000 + i}));
        items.push(instance(LIGHT, "Light", &format!("light-{i}"), &spec));
    }
    for i in 0..6 {
        // Members are added, kept and removed; the retained child is released and adopted again.
        let first = json!({"size": 2, "stage": "one", "keep": i != 4});
        let mut second = json!({"size": 1 + i % 3, "stage": "two", "keep": i % 2 == 0});
        second["image"] = "registry.k8s.io/pause:3.11".into();
        items.push(instance(CHAIN, "Chain", &format!("chain-{i}"), &pick(first, second)));
    }
    for i in 0..6 {
        let first = json!({"size": 1 + i % 3, "version": "3.2.13"});
        let second = json!({"size": 3 - i % 3, "version": "3.2.14"});
        items.push(instance(ETCD, "EtcdCluster", &format!("etcd-{i}"), &pick(first, second)));
    }
    json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string()
}

fn instance(kind: Kind, name: &str, metadata_name: &str, spec: &Value) -> Value {
    json!({"apiVersion": kind.api_version(), "kind": name, "metadata": {"name": metadata_name}, "spec": spec})
}

async fn all_ready(scene: &Scene, manager: &Operetta) {
    eventually("all to be Ready", LONG, async || {
        let mut waits = Vec::new();
        for kind in INSTANCES {
            let instances = scene.list(kind).await;
            waits.extend(instances.iter().filter(|o| !is_ready(o)).map(|o| name_of(o).to_owned()));
        }
        if waits.is_empty() {
            return Ok(());
        }
        let output = manager.output();
        let lines: Vec<&str> = output.lines().collect();
        Err(format!("{} are not\n{}", waits.join(", "), lines[lines.len().saturating_sub(30)..].join("\n")))
    })
    .await;
}

/// All instances and all that they have made.
async fn state(scene: &Scene) -> State {
    oracles::state(scene, &INSTANCES, &CHILDREN, &[]).await
}

/// The uids that each child has had, by kind and name.
type UidsByChild = Arc<Mutex<BTreeMap<String, BTreeSet<String>>>>;

/// Watches all children from now on. The audit log does not suffice: it does not record the results of
/// requests whose client was killed.
async fn watch_children(scene: &Scene) -> UidsByChild {
    let seen = UidsByChild::default();
    for kind in CHILDREN {
        let api = Api::<DynamicObject>::namespaced_with(scene.client(), scene.namespace(), &kind.resource());
        let seen = Arc::clone(&seen);
        let (listed, wait) = tokio::sync::oneshot::channel();
        let mut listed = Some(listed);
        tokio::spawn(async move {
            let mut events = Box::pin(watcher(api, watcher::Config::default()));
            while let Some(event) = events.next().await {
                match event.expect("the watch goes on") {
                    Event::Apply(object) if is_child(&object) => {
                        let name = format!("{} {}", kind.plural, object.name_any());
                        seen.lock()
                            .unwrap()
                            .entry(name)
                            .or_default()
                            .insert(object.uid().unwrap_or_default());
                    }
                    Event::InitDone => drop(listed.take().map(|listed| listed.send(()))),
                    _ => {}
                }
            }
        });
        wait.await.expect("a list");
    }
    seen
}

fn is_child(object: &DynamicObject) -> bool {
    object.labels().contains_key("operetta.dev/instance-uid")
}

/// Starts and kills the manager during its writes several times; then lets one finish.
async fn storm(scene: &Scene, random: &mut fastrand::Rng) {
    let plane = scene.plane();
    for _ in 0..KILLS {
        run(plane, &packages()).kill_after(plane, random.usize(1..=25), GIVE_UP).await;
    }
    let mut manager = run(plane, &packages()).watching(packages().len()).await;
    all_ready(scene, &manager).await;
    manager.kill9();
}

#[tokio::test]
async fn rollout_and_edit_survive_kills_at_random_moments() {
    let mut random = fastrand::Rng::with_seed(seed());
    let plane = own_plane_of_tests().await;
    etcd::watch(&plane);

    let calm = Scene::on(&plane).await;
    let seen_undisturbed = watch_children(&calm).await;
    let mut manager = run(&plane, &packages()).watching(packages().len()).await;
    for edited in [false, true] {
        calm.apply(&manifests(edited)).await;
        all_ready(&calm, &manager).await;
    }
    manager.kill9();
    let expected = state(&calm).await;
    assert!(expected.len() > 100, "{} objects", expected.len());
    let versions = versions(&calm).await;

    let disturbed = Scene::on(&plane).await;
    let seen = watch_children(&disturbed).await;
    for edited in [false, true] {
        disturbed.apply(&manifests(edited)).await;
        storm(&disturbed, &mut random).await;
    }
    // The garbage collector may still be deleting.
    eventually("the state of an undisturbed run", LONG, async || {
        let found = state(&disturbed).await;
        if found == expected { Ok(()) } else { Err(differences(&expected, &found)) }
    })
    .await;

    // No child was created twice.
    let seen = seen.lock().unwrap().clone();
    let twice: Vec<_> = seen.iter().filter(|(_, uids)| uids.len() != 1).collect();
    assert!(twice.is_empty(), "created more than once: {twice:?}");
    let seen_undisturbed = seen_undisturbed.lock().unwrap().clone();
    assert!(seen.keys().eq(seen_undisturbed.keys()), "{seen:?}\n{seen_undisturbed:?}");

    // None of the later managers has changed settled children.
    assert_eq!(self::versions(&calm).await, versions);
}

/// The resourceVersion of each child.
async fn versions(scene: &Scene) -> BTreeMap<String, String> {
    let mut versions = BTreeMap::new();
    for kind in CHILDREN {
        for object in scene.list(kind).await {
            let name = format!("{} {}", kind.plural, name_of(&object));
            versions.insert(name, object["metadata"]["resourceVersion"].to_string());
        }
    }
    versions
}
