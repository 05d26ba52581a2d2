//! The conversion webhook of a manager in a cluster: every replica serves it.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use operetta::local::Mark;
use serde_json::{Value, json};

use super::{Cluster, denied, start};
use crate::support::rights::SYSTEM;
use crate::support::{
    CONFIG_MAP, CRD, Kind, LONG, SECRET, Scene, eventually, find_in, kind, name_of, put_file, read,
};

const OLD: Kind = kind("sizes.example.org/v1alpha1", "sizes");
const NEW: Kind = kind("sizes.example.org/v1", "sizes");

/// A package whose kind has two versions.
fn write(folder: &Path) {
    let write = |path: &str, text: &str| put_file(&folder.join(path), text);
    let version = |name: &str, storage: bool, fields: &str| {
        format!(
            "    - name: {name}\n      served: true\n      storage: {storage}\n      schema:\n        openAPIV3Schema:\n          \
             {{type: object, properties: {{spec: {{type: object, properties: {{{fields}}}}}}}}}\n"
        )
    };
    write(
        "crds/size.yaml",
        &format!(
            "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {{name: sizes.sizes.example.org}}\n\
             spec:\n  group: sizes.example.org\n  scope: Namespaced\n  names: {{kind: Size, listKind: SizeList, plural: sizes, \
             singular: size}}\n  versions:\n{}{}",
            version("v1alpha1", false, "replicas: {type: integer}, note: {type: string}"),
            version("v1", true, "size: {type: integer}, mode: {type: string}"),
        ),
    );
    write(
        "templates/config.yaml",
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: \"{{ name }}\"}\ndata: {size: \"{{ spec.size }}\"}\n",
    );
    write(
        "operator.yaml",
        "apiVersion: operetta.dev/v1alpha1\nkind: OperatorPackage\nmetadata: {name: sizes}\nspec:\n  version: 0.1.0\n  \
         resources:\n    - crd: crds/size.yaml\n      conversion:\n        versions:\n          v1alpha1:\n            \
         - {move: spec.replicas, to: spec.size}\n            - {default: spec.mode, value: fast}\n            \
         - {keep: spec.note}\n      children: [{id: config, template: templates/config.yaml}]\n",
    );
}

fn size(version: &str, name: &str, spec: &Value) -> String {
    json!({"apiVersion": format!("sizes.example.org/{version}"), "kind": "Size", "metadata": {"name": name},
        "spec": spec})
    .to_string()
}

impl Cluster {
    /// The names of the manager's pods, once the desired number is ready and none is being deleted.
    async fn pods(&self) -> Vec<String> {
        eventually("two ready managers", LONG, async || {
            let text = self.kubectl(&["get", "pods", "-o", "json"]).await.result()?;
            let list: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
            let pods = list["items"].as_array().cloned().unwrap_or_default();
            let is_up = |pod: &Value| {
                pod["metadata"]["deletionTimestamp"].is_null() && crate::support::ext::is_pod_ready(pod)
            };
            if pods.len() == 2 && pods.iter().all(is_up) {
                Ok(pods.iter().map(|pod| name_of(pod).to_owned()).collect())
            } else {
                Err(format!("{} pods", pods.len()))
            }
        })
        .await
    }
}

#[tokio::test]
async fn objects_are_converted_by_every_replica() {
    let folder = tempfile::tempdir().unwrap();
    let plane = start(&folder.path().join("image")).await;
    let cluster = Cluster { plane: Arc::clone(&plane) };
    cluster.install().await;
    let package = folder.path().join("package");
    write(&package);
    cluster.operetta(&["install", package.to_str().unwrap()]).await.ok();
    let scene = Scene::on(&plane).await;
    // Objects are written in each version, and read in the other.
    scene.apply(&size("v1alpha1", "old", &json!({"replicas": 3, "note": "kept"}))).await;
    scene.apply(&size("v1", "new", &json!({"size": 4, "mode": "safe"}))).await;
    for (name, replicas) in [("old", 3), ("new", 4)] {
        scene.ready(NEW, name).await;
        assert_eq!(scene.get(NEW, name).await["spec"]["size"], replicas);
        assert_eq!(scene.get(OLD, name).await["spec"]["replicas"], replicas);
        assert_eq!(scene.get(CONFIG_MAP, name).await["data"]["size"], replicas.to_string());
    }
    assert_eq!(scene.get(OLD, "old").await["spec"], json!({"replicas": 3, "note": "kept"}));
    assert_eq!(scene.get(NEW, "new").await["spec"], json!({"size": 4, "mode": "safe"}));
    let crd = find_in(&plane, CRD, None, "sizes.sizes.example.org").await.unwrap();
    let client_config = &crd["spec"]["conversion"]["webhook"]["clientConfig"];
    assert_eq!(client_config["service"]["name"], "operetta-webhook", "{client_config}");
    let secret = find_in(&plane, SECRET, Some(SYSTEM), "operetta-webhook").await.unwrap();
    assert_eq!(client_config["caBundle"], secret["data"]["ca.crt"]);

    let (stop, reads) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let failures = Arc::new(AtomicUsize::new(0));
    let reader = tokio::spawn({
        let (stop, reads, failures) = (Arc::clone(&stop), Arc::clone(&reads), Arc::clone(&failures));
        let (client, path) = (scene.client(), OLD.path(Some(scene.namespace()), "new"));
        async move {
            while !stop.load(Ordering::Relaxed) {
                match read(&client, &path).await {
                    Some(object) => {
                        assert_eq!(object["spec"], json!({"replicas": 4}));
                        reads.fetch_add(1, Ordering::Relaxed);
                    }
                    None => {
                        failures.fetch_add(1, Ordering::Relaxed);
                    }
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    });
    // Each replica ends, so that the other one alone serves: gracefully as in an update, and then at once.
    for force in [&[][..], &[], &["--grace-period=0", "--force"]] {
        let pods = cluster.pods().await;
        let leader = cluster.leader("").await;
        let leading = pods.iter().find(|pod| leader.starts_with(*pod)).unwrap();
        let before = reads.load(Ordering::Relaxed);
        let args: Vec<&str> = ["delete", "pod", leading].iter().chain(force).copied().collect();
        cluster.kubectl(&args).await.ok();
        eventually("reads while a replica is missing, and after that", LONG, async || {
            let more = reads.load(Ordering::Relaxed) - before;
            if more > 50 || reader.is_finished() { Ok(()) } else { Err(format!("{more} reads")) }
        })
        .await;
        // During a drain the node's network may fail for a while, which is not what this test checks.
        eprintln!("{force:?}: {} reads have failed so far", failures.load(Ordering::Relaxed));
    }
    cluster.pods().await;
    stop.store(true, Ordering::Relaxed);
    reader.await.unwrap();
    scene.apply(&size("v1alpha1", "old", &json!({"replicas": 5, "note": "kept"}))).await;
    scene.until("the change", CONFIG_MAP, "old", |child| child["data"]["size"] == "5").await;
    let requests = plane.audit().requests_since(Mark::START).unwrap();
    assert!(denied(&requests).is_empty(), "{:?}", denied(&requests));
}
