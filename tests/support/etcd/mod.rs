//! An etcdctl for pods that no kubelet runs: `etcdctl.sh` keeps each cluster's list of members. A watch here
//! tells the script about the pods.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, Mutex, PoisonError};

use crate::support::ControlPlane;
use futures::StreamExt;
use kube::Api;
use kube::api::DynamicObject;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{Config, Event, watcher};
use serde_json::Value;

use super::ext::{CONFIG_MAP, Kind, POD, Scene, copy_folder, is_pod_ready, lasting_folder, name_of};

static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| {
    let folder = lasting_folder("etcdctl");
    std::fs::write(folder.join("etcdctl.sh"), include_str!("etcdctl.sh")).expect("a script");
    folder
});

static PACKAGE: LazyLock<PathBuf> = LazyLock::new(|| {
    let folder = lasting_folder("etcd");
    copy_folder(Path::new("operators/etcd"), &folder, &|text| scripted(&text));
    folder
});

/// The folder of the etcd package that calls the scripted etcdctl.
pub fn package() -> &'static str {
    PACKAGE.to_str().expect("UTF-8")
}

/// The text of a file of the package, with etcdctl replaced by the script.
pub fn scripted(text: &str) -> String {
    let script = FOLDER.join("etcdctl.sh");
    text.replace("[etcdctl, ", &format!("[sh, {}, '{{{{ namespace }}}}/{{{{ name }}}}', ", script.display()))
}

/// From now on, writes the state of the members' pods of a control plane to where the script reads it.
pub fn watch(plane: &ControlPlane) {
    static WATCHED: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());
    if !WATCHED.lock().unwrap_or_else(PoisonError::into_inner).insert(plane.folder().to_owned()) {
        return;
    }
    if plane.is_in_thread() {
        let client = plane.client().expect("a client");
        tokio::spawn(async {
            tokio::join!(on_change(client.clone(), POD, pods), on_change(client, CONFIG_MAP, founders))
        });
        return;
    }
    let kubeconfig = Kubeconfig::read_from(plane.kubeconfig_path()).expect("a kubeconfig");
    // Each test has its own runtime, which ends with the test; the watch must outlive it.
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let options = KubeConfigOptions::default();
            let config = kube::Config::from_custom_kubeconfig(kubeconfig, &options).await;
            let client = kube::Client::try_from(config.expect("a configuration")).expect("a client");
            tokio::join!(on_change(client.clone(), POD, pods), on_change(client, CONFIG_MAP, founders));
        });
    });
}

/// Calls `write` with all objects of a kind whenever one of them changes.
async fn on_change(client: kube::Client, kind: Kind, write: fn(&BTreeMap<String, Value>, &Value)) {
    let api = Api::<DynamicObject>::all_with(client, &kind.resource());
    let mut known = BTreeMap::new();
    let mut events = Box::pin(watcher(api, Config::default().labels("app=etcd")).default_backoff());
    while let Some(event) = events.next().await {
        let (object, is_gone) = match event {
            Ok(Event::Apply(object) | Event::InitApply(object)) => (object, false),
            Ok(Event::Delete(object)) => (object, true),
            Ok(Event::Init | Event::InitDone) | Err(_) => continue,
        };
        let object = serde_json::to_value(object).expect("JSON");
        let key = format!("{}/{}", object["metadata"]["namespace"], name_of(&object));
        if is_gone {
            known.remove(&key);
        } else {
            known.insert(key, object.clone());
        }
        write(&known, &object);
    }
}

/// The script's file for the cluster that an object belongs to.
fn path(object: &Value, what: &str) -> PathBuf {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (namespace, cluster) =
        (&object["metadata"]["namespace"], &object["metadata"]["labels"]["etcd_cluster"]);
    FOLDER.join(format!("{}.{}.{what}", text(namespace), text(cluster)))
}

/// Replaces a file by a rename: the script may be reading it now.
fn replace(path: &Path, text: &str) {
    let fresh = path.with_extension("fresh");
    std::fs::write(&fresh, text).expect("a file");
    std::fs::rename(fresh, path).expect("a file");
}

fn pods(known: &BTreeMap<String, Value>, changed: &Value) {
    let path_of_pods = path(changed, "pods");
    let of_cluster = known.values().filter(|pod| path(pod, "pods") == path_of_pods);
    let lines = of_cluster.filter(|pod| is_pod_ready(pod)).map(|pod| {
        let ordinal = name_of(pod).rsplit('-').next().unwrap_or_default().to_owned();
        // Take the image that runs: after a change of the spec the pod runs the old one for a moment.
        let image = pod["status"]["containerStatuses"][0]["image"].as_str().unwrap_or_default();
        format!("{ordinal} {}\n", image.rsplit(":v").next().unwrap_or_default())
    });
    replace(&path_of_pods, &lines.collect::<String>());
}

fn founders(_: &BTreeMap<String, Value>, changed: &Value) {
    replace(&path(changed, "founders"), changed["data"]["founders"].as_str().unwrap_or_default());
}

impl Scene {
    /// The calls of etcdctl for a cluster that begin with `begin`.
    pub fn etcdctl_calls(&self, cluster: &str, begin: &str) -> Vec<String> {
        let path = FOLDER.join(format!("{}.{cluster}.calls", self.namespace()));
        let all = std::fs::read_to_string(path).unwrap_or_default();
        all.lines().filter(|line| line.starts_with(begin)).map(ToOwned::to_owned).collect()
    }
}
