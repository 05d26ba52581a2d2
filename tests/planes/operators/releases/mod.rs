//! Upgrades of Operetta itself: clusters as earlier releases have left them, with the present manager.
//!
//! A fixture is the data of etcd, so uids, managedFields, resourceVersions and proofs are those that the release has
//! written. `record.rs` makes one at each release; `upgrade.rs` starts the present manager on every one of them.

mod record;
mod upgrade;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Read as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};

use crate::support::{ControlPlane, DESK, Kind, LONG, Operetta, kind, options};
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use k8s_openapi::jiff::Timestamp;
use operetta::local::{Component, Options, Tool};
use operetta::rights::MANAGER;
use serde_json::Value;

use super::{Cluster, MANAGERS};
use crate::support::rights::kubeconfig;

/// The fixtures, in folders with the version of the release as their name.
const FOLDER: &str = "tests/fixtures/releases";
/// The data of etcd in such a folder.
const DATA: &str = "etcd.tar.gz";
/// What the fixture contains.
const ABOUT: &str = "about.json";
/// The folder of etcd's data in the folder of a control plane.
const ETCD_DATA: &str = "etcd";
/// The namespace of the instances.
const NAMESPACE: &str = "lives";
/// The webhook's address is stored in CRDs, so it must be the same after a restore: an address of this machine that
/// nothing else uses.
const WEBHOOK: &str = "127.0.77.1:9443";

const KEEPER: Kind = kind("fixtures.operetta.dev/v1", "keepers");
const MOTLEY: Kind = kind("fixtures.operetta.dev/v1", "motleys");
const WHOLE: Kind = kind("fixtures.operetta.dev/v1", "wholes");
/// A kind with two versions and a conversion between them.
const SIZE_OLD: Kind = kind("sizes.example.org/v1alpha1", "sizes");
const SIZE_NEW: Kind = kind("sizes.example.org/v1", "sizes");
/// The plural and the package of a kind with a cleanup.
const ROOMS: &str = "rooms";
/// The plural and the former package of a kind that was handed over to the package [`STORES`].
const SHOPS: &str = "shops";
const STORES: &str = "stores";
/// The plural and the package of a kind whose upgrade is paused.
const FLEETS: &str = "fleets";

/// What a fixture contains, by instance. A fixture of a later release may contain more.
const STATES: [&str; 17] = [
    "webapp shop: settled",
    "desk waiting: a rollout in a wait",
    "desk asking: a run that waits for approval",
    "desk saving: a run with a Job",
    "desk broken: a run that has failed",
    "desk nightly: a schedule",
    "desk paused: an edit while it is paused",
    "keeper alive: a record",
    "keeper gone: retained children of a deleted instance",
    "motley many: an approval of a deletion, a generated password, children in other places",
    "whole done: a Job that is done and gone, a retained child",
    "mix refused: a refused change",
    "room leaving: a cleanup that waits for approval",
    "size both: a conversion with values that one version lacks",
    "shop given: a CRD that was handed over",
    "fleet: a paused upgrade in stages",
    "trial secret: a generated certificate",
];

impl Cluster {
    /// The manager as a Deployment runs it: as its own account, with a Lease and the webhook.
    async fn installed_manager(plane: &ControlPlane) -> Operetta {
        let account = kubeconfig(plane, MANAGERS, MANAGER).await;
        let webhook = format!("--webhook-listen={WEBHOOK}");
        let args = ["run", "--impersonate", "--namespace", MANAGERS, "--leader-elect", webhook.as_str()];
        let mut manager = Operetta::run_as_user(plane, &account, &args);
        manager.wait_for("following the Operators of the cluster", LONG).await;
        manager
    }

    async fn with_installed_manager(plane: Arc<ControlPlane>) -> Self {
        let manager = Mutex::new(Self::installed_manager(&plane).await);
        Self { plane, manager }
    }
}

/// Holds the webhook's address for one test at a time, also among processes.
struct Address(#[expect(dead_code, reason = "it is held until it is dropped")] File);

impl Address {
    async fn hold() -> Self {
        tokio::task::spawn_blocking(|| {
            let file = File::create(std::env::temp_dir().join("operetta-releases.lock")).unwrap();
            file.lock().unwrap();
            Self(file)
        })
        .await
        .unwrap()
    }
}

/// The fixtures, by version.
fn releases() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(FOLDER).unwrap_or_else(|error| panic!("{FOLDER}: {error}"));
    let mut all: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    all.retain(|path| path.is_dir());
    all.sort();
    all
}

/// The components that use etcd's data, the last user first.
const USERS: [Component; 4] =
    [Component::Kwok, Component::Scheduler, Component::ControllerManager, Component::ApiServer];

/// Stops a control plane and writes etcd's data into an archive.
async fn pack(plane: &ControlPlane, archive: &Path) {
    for component in USERS {
        plane.kill(component).await.unwrap();
    }
    let Options { environment, progress, .. } = options();
    let etcdutl = Tool::Etcdutl.built(&environment, &progress).await.unwrap();
    let run = |mut command: Command| {
        let output = command.output().unwrap();
        assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let etcdctl = |args: &[&str]| {
        let mut command = plane.etcdctl();
        command.args(args);
        run(command)
    };
    let status: Value = serde_json::from_str(&etcdctl(&["endpoint", "status", "-w", "json"])).unwrap();
    let revision = status[0]["Status"]["header"]["revision"].to_string();
    etcdctl(&["compact", "--physical", &revision]);
    etcdctl(&["defrag"]);
    etcdctl(&["snapshot", "save", "snapshot.db"]);
    let mut command = Command::new(etcdutl);
    let peer = "unix://peer.sock:0";
    command.current_dir(plane.folder()).args([
        "snapshot",
        "restore",
        "snapshot.db",
        "--data-dir",
        "restored",
    ]);
    command.args([
        &format!("--initial-cluster=default={peer}"),
        &format!("--initial-advertise-peer-urls={peer}"),
    ]);
    run(command);
    // The log of writes is mostly empty space.
    let root = plane.folder().join("restored");
    for entry in std::fs::read_dir(root.join("member/wal")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "wal") {
            let bytes = std::fs::read(&path).unwrap();
            let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| (last / 8 + 1) * 8);
            std::fs::write(&path, &bytes[..end]).unwrap();
        } else {
            std::fs::remove_file(&path).unwrap();
        }
    }
    let file = BufWriter::new(File::create(archive).unwrap());
    let mut archive = tar::Builder::new(GzEncoder::new(file, Compression::best()));
    archive.append_dir_all(".", root).unwrap();
    archive.into_inner().unwrap().finish().unwrap();
}

/// Replaces the data of a control plane by that of an archive.
async fn unpack(plane: &ControlPlane, archive: &Path) {
    for component in USERS.into_iter().chain([Component::Etcd]) {
        plane.kill(component).await.unwrap();
    }
    let data = plane.folder().join(ETCD_DATA);
    std::fs::remove_dir_all(&data).unwrap();
    let file = File::open(archive).unwrap_or_else(|error| panic!("{}: {error}", archive.display()));
    tar::Archive::new(GzDecoder::new(file)).unpack(&data).unwrap();
    for component in [Component::Etcd].into_iter().chain(USERS.into_iter().rev()) {
        plane.restart(component).await.unwrap();
    }
}

/// The time of day.
#[expect(clippy::disallowed_methods, reason = "certificates of a fixture age with the clock of the system")]
fn now() -> Timestamp {
    Timestamp::now()
}

/// What a fixture says about itself.
fn about(release: &Path) -> Value {
    let mut text = String::new();
    File::open(release.join(ABOUT)).unwrap().read_to_string(&mut text).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// The revision of etcd in which each object was last written, by its key.
fn written(plane: &ControlPlane) -> BTreeMap<String, u64> {
    let mut command = plane.etcdctl();
    command.args(["get", "/registry/", "--prefix", "--keys-only", "-w", "json"]);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let list: Value = serde_json::from_slice(&output.stdout).unwrap();
    let decode = |key: &Value| {
        let bytes = data_encoding::BASE64.decode(key.as_str().unwrap().as_bytes()).unwrap();
        String::from_utf8(bytes).unwrap()
    };
    let items = list["kvs"].as_array().unwrap().iter();
    items.map(|item| (decode(&item["key"]), item["mod_revision"].as_u64().unwrap())).collect()
}
