//! `operetta install` of a package in a registry, killed at each of its writes: the next one ends as if nothing had been.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};

use serde_json::Value;

use super::sources::Registry;
use super::{Cluster, MANAGERS, Package};
use crate::support::OPERETTA;

/// The kinds that an installation writes.
const KINDS: &str = "namespaces,operators.operetta.dev,operatorrevisions.operetta.dev,configmaps,serviceaccounts,roles,rolebindings,\
                     clusterroles,clusterrolebindings";
/// What controllers write by themselves.
const OF_CONTROLLERS: [&str; 2] = ["default", "kube-root-ca.crt"];
/// What two installations do not have in common.
const OF_TIME: [&str; 5] = ["uid", "resourceVersion", "generation", "creationTimestamp", "managedFields"];

/// The objects of the cluster by kind, namespace and name.
async fn objects(cluster: &Cluster) -> BTreeMap<[String; 3], Value> {
    let text = cluster.kubectl(&["get", KINDS, "--all-namespaces", "-o", "json"], "").await.ok();
    let mut list: Value = serde_json::from_str(&text).unwrap();
    let items = list["items"].as_array_mut().unwrap().drain(..);
    let objects = items.map(|mut object| {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let metadata = &object["metadata"];
        let key = [text(&object["kind"]), text(&metadata["namespace"]), text(&metadata["name"])];
        strip(&mut object);
        (key, object)
    });
    objects.filter(|([.., name], _)| !OF_CONTROLLERS.contains(&name.as_str())).collect()
}

fn strip(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|name, _| !OF_TIME.contains(&name.as_str()));
            fields.values_mut().for_each(strip);
        }
        Value::Array(items) => items.iter_mut().for_each(strip),
        _ => {}
    }
}

/// Deletes what is not there without an installation.
async fn clear(cluster: &Cluster, before: &BTreeMap<[String; 3], Value>) {
    for [kind, namespace, name] in objects(cluster).await.into_keys() {
        if !before.contains_key(&[kind.clone(), namespace.clone(), name.clone()]) {
            let kind = kind.to_lowercase();
            let args = ["delete", &kind, &name, "--namespace", &namespace, "--ignore-not-found"];
            cluster.kubectl(&args, "").await.ok();
        }
    }
    assert_eq!(objects(cluster).await, *before);
}

// The registry goes on while the test waits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn install_that_was_killed_is_completed_by_the_next_one() {
    let cluster = Cluster::start().await;
    let Some(hold) = cluster.plane.hold() else {
        eprintln!("skipped: only the embedded API lets a command wait for an answer");
        return;
    };
    // It has registered the kinds; nobody else writes from now on.
    cluster.manager.lock().unwrap().kill9();
    let managers = format!("{{apiVersion: v1, kind: Namespace, metadata: {{name: {MANAGERS}}}}}");
    cluster.kubectl(&["apply", "--server-side", "-f", "-"], &managers).await.ok();
    let registry = Registry::start().await;
    let package = Package::new("shots", "0.1.0", "old");
    registry.add(&package, "acme/shots").await;
    let reference = format!("{}:0.1.0", registry.of("acme/shots"));
    let install = ["install", &reference, "--no-wait"];

    let before = objects(&cluster).await;
    cluster.operetta(&install).await.ok();
    let expected = objects(&cluster).await;
    assert!(expected.len() > before.len() + 2, "{expected:#?}");
    let mut kills = 0;
    loop {
        clear(&cluster, &before).await;
        hold.after(kills);
        let mut process = Command::new(OPERETTA)
            .args(install)
            .env("KUBECONFIG", cluster.plane.kubeconfig_path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let is_held = hold.until_held(|| process.try_wait().unwrap().is_some());
        process.kill().unwrap();
        let status = process.wait().unwrap();
        hold.release();
        if !is_held {
            assert!(status.success(), "{status}");
            break;
        }
        cluster.operetta(&install).await.ok();
        assert_eq!(objects(&cluster).await, expected, "killed after {} writes", kills + 1);
        kills += 1;
    }
    assert!(kills > 3, "there are more than {kills} writes");
}
