//! Operators whose packages are in a registry, and the policy of the cluster: what is fetched, and what is refused.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use operetta_registry::{Options, Place, signatures};
use ring::rand::SystemRandom;
use ring::signature::Ed25519KeyPair;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

#[path = "../../../src/registry/tests/sigstore.rs"]
mod sigstore;

use self::sigstore::{ACTIONS, Flaw, Sigstore, WORKFLOW};
use super::registries::{self, Key};
use super::{Cluster, MANAGERS, OPERATOR, Package, Part, SIZE, is_active, says, scene};
use crate::support;
use crate::support::{CONFIG_MAP, LONG, condition, eventually, uid_of};

/// The path of each request, and the credentials that came with it.
type Seen = Arc<Mutex<Vec<(String, Option<String>)>>>;

/// A registry on loopback, which serves OCI layouts below a folder. Repositories below `private/` want
/// the credentials `ann:secret`.
pub(super) struct Registry {
    address: String,
    root: tempfile::TempDir,
    seen: Seen,
    is_gone: Arc<AtomicBool>,
}

impl Registry {
    pub(super) async fn start() -> Self {
        let root = tempfile::tempdir().unwrap();
        let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = socket.local_addr().unwrap().to_string();
        let (seen, is_gone) = (Seen::default(), Arc::<AtomicBool>::default());
        let (folder, log, gone) = (root.path().to_owned(), Arc::clone(&seen), Arc::clone(&is_gone));
        tokio::spawn(async move {
            loop {
                let (stream, _) = socket.accept().await.unwrap();
                if !gone.load(Ordering::Relaxed) {
                    tokio::spawn(answer(stream, folder.clone(), Arc::clone(&log)));
                }
            }
        });
        Self { address, root, seen, is_gone }
    }

    /// The reference of a repository.
    pub(super) fn of(&self, repository: &str) -> String {
        format!("oci://{}/{repository}", self.address)
    }

    /// Writes a package into a repository, beside what is there. Returns its digest.
    pub(super) async fn add(&self, package: &Package, repository: &str) -> String {
        let layout = self.root.path().join(repository);
        std::fs::create_dir_all(layout.parent().unwrap()).unwrap();
        run(&["package", package.folder(), "-o", layout.to_str().unwrap()]).await
    }

    /// Writes a package into a repository, in place of what is there. Returns its digest.
    async fn publish(&self, package: &Package, repository: &str) -> String {
        let _ = std::fs::remove_dir_all(self.root.path().join(repository));
        self.add(package, repository).await
    }

    /// Answers nothing from now on.
    pub(super) fn stop(&self) {
        self.is_gone.store(true, Ordering::Relaxed);
    }

    /// The folder with its repositories, each a layout.
    pub(super) fn folder(&self) -> &Path {
        self.root.path()
    }

    async fn sign(&self, repository: &str, key: &Path) {
        let layout = self.root.path().join(repository);
        run(&["sign", layout.to_str().unwrap(), "--key", key.to_str().unwrap()]).await;
    }
}

/// Signs a package as cosign does in a workflow.
async fn sign_without_key(
    registry: &Registry,
    repository: &str,
    sigstore: &Sigstore,
    workflow: &str,
    flaw: Flaw,
) {
    let layout = registry.root.path().join(repository);
    let mut place = Place::open(layout.to_str().unwrap(), &Options::default()).unwrap();
    let manifest = place.resolve().await.unwrap();
    let bundle = sigstore.sign(manifest.descriptor.digest.hex(), (ACTIONS, workflow), flaw);
    let bundle = bundle.to_string().into_bytes();
    signatures::attach_bundle(&place.store, &manifest, bundle).await.unwrap();
}

async fn run(args: &[&str]) -> String {
    support::operetta(Path::new("/nowhere"), args).await.ok().trim().to_owned()
}

async fn answer(mut stream: TcpStream, root: PathBuf, seen: Seen) {
    let (mut text, mut buffer) = (Vec::new(), [0; 4096]);
    while !text.windows(4).any(|end| end == b"\r\n\r\n") {
        match stream.read(&mut buffer).await {
            Ok(count) if count > 0 => text.extend_from_slice(&buffer[..count]),
            _ => return,
        }
    }
    let text = String::from_utf8_lossy(&text).into_owned();
    let path = text.split(' ').nth(1).unwrap_or_default().to_owned();
    let credentials = text.lines().find_map(|line| line.strip_prefix("authorization: ").map(str::to_owned));
    seen.lock().unwrap().push((path.clone(), credentials.clone()));
    let wanted = format!("Basic {}", STANDARD.encode("ann:secret"));
    let (status, kind, body) = if path.starts_with("/v2/private/") && credentials.as_ref() != Some(&wanted) {
        ("401 Unauthorized", "x\r\nwww-authenticate: Basic realm=\"r\"".to_owned(), b"{}".to_vec())
    } else {
        match find(&root, &path) {
            Some((kind, body)) => ("200 OK", kind, body),
            None => ("404 Not Found", "application/json".to_owned(), b"{}".to_vec()),
        }
    };
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    let _ = stream.write_all(&[head.as_bytes(), &body].concat()).await;
}

/// The media type and the content of a path, as the layout has it.
fn find(root: &Path, path: &str) -> Option<(String, Vec<u8>)> {
    let (repository, rest) = path.strip_prefix("/v2/")?.rsplit_once('/')?;
    let (repository, what) = repository.rsplit_once('/')?;
    let layout = root.join(repository);
    let index: Value = serde_json::from_slice(&std::fs::read(layout.join("index.json")).ok()?).ok()?;
    let manifests = index["manifests"].as_array()?;
    let blob = |digest: &str| std::fs::read(layout.join("blobs").join(digest.replace(':', "/"))).ok();
    match what {
        "tags" => {
            let tag = |entry: &Value| {
                entry["annotations"]["org.opencontainers.image.ref.name"].as_str().map(str::to_owned)
            };
            let tags: Vec<String> = manifests.iter().filter_map(tag).collect();
            Some((
                "application/json".to_owned(),
                json!({"name": repository, "tags": tags}).to_string().into_bytes(),
            ))
        }
        "blobs" => Some(("application/octet-stream".to_owned(), blob(rest)?)),
        "manifests" => {
            let of_tag = |entry: &&Value| {
                entry["annotations"]["org.opencontainers.image.ref.name"] == rest || entry["digest"] == rest
            };
            let entry = manifests.iter().find(of_tag)?;
            Some((entry["mediaType"].as_str()?.to_owned(), blob(entry["digest"].as_str()?)?))
        }
        "referrers" => {
            let refers = |entry: &&Value| {
                let text = blob(entry["digest"].as_str().unwrap_or_default()).unwrap_or_default();
                serde_json::from_slice::<Value>(&text).unwrap_or_default()["subject"]["digest"] == rest
            };
            let all: Vec<&Value> = manifests.iter().filter(refers).collect();
            let kind = "application/vnd.oci.image.index.v1+json";
            let index = json!({"schemaVersion": 2, "mediaType": kind, "manifests": all});
            Some((kind.to_owned(), index.to_string().into_bytes()))
        }
        _ => None,
    }
}

/// A private key in a file, and the public one in PEM.
fn key(folder: &Path, name: &str) -> (PathBuf, String) {
    let der = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
    let Key { private, public } = registries::key(folder, name, der.as_ref());
    (private.into(), std::fs::read_to_string(public).unwrap())
}

pub(super) fn operator(name: &str, package: &str) -> String {
    json!({"apiVersion": "operetta.dev/v1alpha1", "kind": "Operator", "metadata": {"name": name},
        "spec": {"source": {"package": package}}})
    .to_string()
}

pub(super) async fn apply(cluster: &Cluster, object: &str) {
    cluster.kubectl(&["apply", "--server-side", "-f", "-"], object).await.ok();
}

/// Restarts the manager. The new one must find this condition itself: it is removed from the status meanwhile.
async fn restart_without(cluster: &Cluster, operator: &str, kind: &str) {
    let remove = async || {
        let live = cluster.find(OPERATOR, operator).await.unwrap();
        let mut conditions = live["status"]["conditions"].as_array().unwrap().clone();
        conditions.retain(|condition| condition["type"] != kind);
        let patch = json!({"status": {"conditions": conditions}}).to_string();
        let args = ["patch", "operator", operator, "--subresource=status", "--type=merge", "-p", &patch];
        cluster.kubectl(&args, "").await.ok();
    };
    cluster.restart(remove).await;
}

pub(super) async fn permit(cluster: &Cluster, name: &str, spec: Value) {
    let object = json!({"apiVersion": "operetta.dev/v1alpha1", "kind": "PackagePolicy", "metadata": {"name": name}, "spec": spec});
    apply(cluster, &object.to_string()).await;
}

#[tokio::test]
async fn the_manager_fetches_verifies_and_rolls_out_a_package() {
    let cluster = Cluster::start().await;
    let registry = Registry::start().await;
    let keys = tempfile::tempdir().unwrap();
    let ((ours, public), (theirs, _)) = (key(keys.path(), "ours"), key(keys.path(), "theirs"));
    let package = Package::new("remotes", "0.1.0", "old");
    let first = registry.publish(&package, "acme/remotes").await;
    permit(&cluster, "acme", json!({"prefix": format!("{}/acme", registry.address), "keys": [public]})).await;

    // It is refused until it is signed.
    let tagged = format!("{}:0.1.0", registry.of("acme/remotes"));
    apply(&cluster, &operator("remotes", &tagged)).await;
    let told = cluster.until_refused("remotes", "PackageUntrusted").await;
    assert!(told.contains("PackagePolicy acme does not permit it") && told.contains("not signed"), "{told}");
    let live = cluster.find(OPERATOR, "remotes").await.unwrap();
    assert!(live["status"]["activeRevision"].is_null(), "{live:#}");
    assert_eq!(cluster.find(super::REVISION, &package.revision().await).await, None);
    registry.sign("acme/remotes", &ours).await;
    let live = cluster.until("remotes", "active", is_active).await;
    let source = &live["status"]["source"];
    assert_eq!((&source["package"], &source["digest"]), (&json!(tagged), &json!(first)), "{source}");
    assert!(
        source["policy"] == "acme" && source["signer"].as_str().unwrap().starts_with("sha256:"),
        "{source}"
    );
    assert_eq!(live["status"]["activeRevision"], package.revision().await);
    let scene = scene(&cluster).await;
    package.ready(&scene, "one", &json!({})).await;

    // Another package behind the tag is reported after a restart, and not followed.
    package.write("0.1.0", &[Part::new("remotes", SIZE, "moved")]);
    let moved = registry.publish(&package, "acme/remotes").await;
    cluster.restart(async || ()).await;
    let told = cluster.until_refused("remotes", "TagMoved").await;
    assert!(told.contains(&moved) && told.contains(&first), "{told}");

    // A digest is an upgrade: refused by a foreign key, then accepted.
    registry.sign("acme/remotes", &theirs).await;
    let pinned = format!("{}@{moved}", registry.of("acme/remotes"));
    apply(&cluster, &operator("remotes", &pinned)).await;
    let told = cluster.until_refused("remotes", "PackageUntrusted").await;
    assert!(told.contains("another key"), "{told}");
    let live = cluster.find(OPERATOR, "remotes").await.unwrap();
    assert_eq!(
        (&condition(&live, "Active")["status"], &live["status"]["source"]["digest"]),
        (&json!("True"), &json!(first))
    );
    registry.sign("acme/remotes", &ours).await;
    let live = cluster.until("remotes", "upgraded", is_active).await;
    assert_eq!(live["status"]["source"]["digest"], *moved);
    scene.until("rolled", CONFIG_MAP, "one", |o| o["data"]["value"] == "moved").await;

    // With the registry gone, a restart changes nothing, and what cannot be fetched leaves the last good revision.
    registry.stop();
    cluster.restart(async || ()).await;
    let before = scene.get(CONFIG_MAP, "one").await;
    scene.kubectl(&["delete", "configmap", "one"]).await;
    let holds = |o: &Value| o["data"]["value"] == "moved" && uid_of(o) != uid_of(&before);
    scene.until("made anew", CONFIG_MAP, "one", holds).await;
    cluster.until("remotes", "active after a restart", is_active).await;
    apply(&cluster, &operator("remotes", &format!("{}:0.2.0", registry.of("acme/remotes")))).await;
    let holds = |operator: &Value| {
        condition(operator, "Ready")["reason"] == "SourceUnavailable"
            && condition(operator, "Active")["status"] == "True"
    };
    cluster.until("remotes", "the registry is gone", holds).await;
}

#[tokio::test]
async fn credentials_come_from_the_pull_secret() {
    let cluster = Cluster::start().await;
    let registry = Registry::start().await;
    let package = Package::new("privates", "0.1.0", "old");
    registry.publish(&package, "private/privates").await;
    let other = Package::new("openly", "0.1.0", "old");
    registry.publish(&other, "open/openly").await;
    apply(&cluster, &operator("privates", &registry.of("private/privates"))).await;
    // One registry that refuses does not hold up another Operator.
    apply(&cluster, &operator("openly", &format!("{}:0.1.0", registry.of("open/openly")))).await;
    cluster.until("openly", "active", is_active).await;
    let told = cluster.until_refused("privates", "SourceUnavailable").await;
    assert!(told.contains(&format!("the Secret {MANAGERS}/operetta-pull")), "{told}");
    let config =
        json!({"auths": {(registry.address.clone()): {"auth": STANDARD.encode("ann:secret")}}}).to_string();
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "operetta-pull", "namespace": MANAGERS},
        "type": "kubernetes.io/dockerconfigjson", "stringData": {".dockerconfigjson": config}});
    apply(&cluster, &secret.to_string()).await;
    // A version that is not named is the newest one: this registry lists none.
    apply(&cluster, &operator("privates", &format!("{}:0.1.0", registry.of("private/privates")))).await;
    cluster.until("privates", "active", is_active).await;
    let seen = registry.seen.lock().unwrap().clone();
    assert!(
        seen.iter().filter(|(path, _)| path.contains("/open/")).all(|(_, credentials)| credentials.is_none())
    );
    // A policy that comes later leaves it active. The signature is found by itself.
    let keys = tempfile::tempdir().unwrap();
    let (ours, public) = key(keys.path(), "ours");
    permit(&cluster, "all", json!({"prefix": "", "keys": [public]})).await;
    let is_untrusted = |o: &Value| condition(o, "PackageUntrusted")["status"] == "True";
    cluster.until("privates", "untrusted and active", |o| is_untrusted(o) && is_active(o)).await;
    registry.sign("private/privates", &ours).await;
    let holds = |o: &Value| !is_untrusted(o) && o["status"]["source"]["policy"] == "all";
    cluster.until("privates", "trusted", holds).await;
    cluster.kubectl(&["delete", "packagepolicies", "--all"], "").await.ok();
    // A package of another name.
    apply(&cluster, &operator("others", &format!("{}:0.1.0", registry.of("open/openly")))).await;
    let told = cluster.until_refused("others", "SourceInvalid").await;
    assert!(told.contains("is the package openly: an Operator has the name of its package"), "{told}");
}

#[tokio::test]
async fn the_policy_binds_commands_and_stored_revisions() {
    let cluster = Cluster::start().await;
    let registry = Registry::start().await;
    let keys = tempfile::tempdir().unwrap();
    let (ours, public) = key(keys.path(), "ours");
    std::fs::write(keys.path().join("ours.pub"), &public).unwrap();
    let (package, folder) =
        (Package::new("stricts", "0.1.0", "old"), Package::new("folders", "0.1.0", "old"));
    registry.publish(&package, "acme/stricts").await;
    cluster.install(&folder).await;
    let reference = format!("{}:0.1.0", registry.of("acme/stricts"));
    registry.sign("acme/stricts", &ours).await;
    let public_file = keys.path().join("ours.pub");
    let prefix = format!("{}/acme", registry.address);
    let args = ["trust", &reference, "--key", public_file.to_str().unwrap(), "--prefix", &prefix];
    let printed = cluster.operetta(&args).await.ok();
    cluster.kubectl(&["apply", "-f", "-"], &printed).await.ok();

    // What was active stays, and says that it is not permitted; also after a restart.
    for _ in 0..2 {
        let holds = |operator: &Value| {
            condition(operator, "PackageUntrusted")["status"] == "True" && is_active(operator)
        };
        let live = cluster.until("folders", "untrusted and active", holds).await;
        let told = condition(&live, "PackageUntrusted")["message"].to_string();
        assert!(told.contains("no registry") && told.contains("It stays active"), "{told}");
        restart_without(&cluster, "folders", "PackageUntrusted").await;
    }
    // The command refuses a new version of it, and so does the manager if the objects are applied.
    folder.write("0.2.0", &[Part::new("folders", SIZE, "new")]);
    let (code, told) = cluster.told(&["upgrade", folder.folder()]).await;
    assert!(code == 1 && told.contains("the policy of the cluster denies the package"), "{code} {told}");
    for object in folder.printed().await {
        cluster
            .kubectl(&["apply", "--server-side", "--force-conflicts", "-f", "-"], &object.to_string())
            .await
            .ok();
    }
    cluster.until_refused("folders", "PackageUntrusted").await;

    // The signed one is installed by the command, and its proof is stored with it.
    says(cluster.told(&["install", &reference]).await, 0, &["permitted by the PackagePolicy"]);
    let live = cluster.until("stricts", "active", is_active).await;
    assert!(live["status"]["source"]["signer"].is_string(), "{live:#}");
    registry.stop();
    cluster.restart(async || ()).await;
    cluster.until("stricts", "active after a restart", is_active).await;
    let annotation = "operetta.dev/provenance-";
    cluster.kubectl(&["annotate", "operatorrevision", &package.revision().await, annotation], "").await.ok();
    eventually("the proof is stored again", LONG, async || {
        let revision = cluster.find(super::REVISION, &package.revision().await).await.unwrap();
        let found = revision["metadata"]["annotations"]["operetta.dev/provenance"].is_string();
        if found { Ok(()) } else { Err(format!("{revision:#}")) }
    })
    .await;

    // Without any policy all are permitted again.
    cluster.kubectl(&["delete", "packagepolicies", "--all"], "").await.ok();
    let holds = |o: &Value| is_active(o) && condition(o, "PackageUntrusted").is_null();
    cluster.until("folders", "permitted", holds).await;
}

#[tokio::test]
async fn identities_permit_what_their_workflow_has_signed() {
    let cluster = Cluster::start().await;
    let registry = Registry::start().await;
    let (ours, theirs) = (Sigstore::new(), Sigstore::new());
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("root.json");
    std::fs::write(&root, ours.root().to_string()).unwrap();
    let package = Package::new("keyless", "0.1.0", "old");
    registry.publish(&package, "acme/keyless").await;
    let reference = format!("{}:0.1.0", registry.of("acme/keyless"));
    let root = root.to_str().unwrap();
    let trust = ["trust", &reference, "--trusted-root", root];

    // The same workflow, proven by somebody else, is nobody.
    let workflow = format!("{WORKFLOW}@refs/tags/v0.1.0");
    sign_without_key(&registry, "acme/keyless", &theirs, &workflow, Flaw::None).await;
    says(cluster.told(&trust).await, 1, &[&workflow, "by nobody whom"]);
    sign_without_key(&registry, "acme/keyless", &ours, &workflow, Flaw::None).await;
    let (_, verified) = cluster
        .told(&["verify", &reference, "--trusted-root", root, "--issuer", ACTIONS, "--subject", WORKFLOW])
        .await;
    assert!(verified.contains(&workflow), "{verified}");
    let other = format!("{WORKFLOW}2");
    let args = ["verify", &reference, "--trusted-root", root, "--issuer", ACTIONS, "--subject", &other];
    says(cluster.told(&args).await, 1, &[&format!("it is of {workflow}")]);
    let printed = cluster.operetta(&trust).await.ok();
    cluster.kubectl(&["apply", "-f", "-"], &printed).await.ok();

    apply(&cluster, &operator("keyless", &reference)).await;
    let live = cluster.until("keyless", "active", is_active).await;
    assert_eq!(live["status"]["source"]["signer"], format!("{workflow} (of {ACTIONS})"));
    registry.is_gone.store(true, Ordering::Relaxed);
    cluster.restart(async || ()).await;
    cluster.until("keyless", "active after a restart", is_active).await;
    registry.is_gone.store(false, Ordering::Relaxed);

    // Another workflow of the same repository is refused, and the active revision stays.
    package.write("0.2.0", &[Part::new("keyless", SIZE, "new")]);
    registry.publish(&package, "acme/keyless").await;
    let fork = format!("{}@refs/tags/v0.2.0", WORKFLOW.replace("release", "build"));
    sign_without_key(&registry, "acme/keyless", &ours, &fork, Flaw::None).await;
    apply(&cluster, &operator("keyless", &format!("{}:0.2.0", registry.of("acme/keyless")))).await;
    let told = cluster.until_refused("keyless", "PackageUntrusted").await;
    assert!(told.contains(&format!("it is of {fork}")), "{told}");
    // What a policy must have is said by the API server.
    let spec = json!({"prefix": "x", "identities": [{"issuer": ACTIONS, "subject": WORKFLOW}]});
    let object = json!({"apiVersion": "operetta.dev/v1alpha1", "kind": "PackagePolicy", "metadata": {"name": "x"}, "spec": spec});
    let refused = cluster.kubectl(&["apply", "--server-side", "-f", "-"], &object.to_string()).await;
    assert!(refused.stderr.contains("set together"), "{}", refused.stderr);
}

/// A signature that was made in time does not expire. One that was made later is refused, and so is one whose authority was not valid
/// then.
#[tokio::test]
async fn expired_proofs_are_refused_and_the_last_good_revision_stays() {
    const REPOSITORY: &str = "acme/agings";
    let cluster = Cluster::start().await;
    let registry = Registry::start().await;
    let sigstore = Sigstore::new();
    let workflow = format!("{WORKFLOW}@refs/heads/main");
    let trust = async |root: &Value| {
        let identities = json!([{"issuer": ACTIONS, "subject": WORKFLOW}]);
        let prefix = format!("{}/acme", registry.address);
        let spec = json!({"prefix": prefix, "identities": identities, "trustedRoot": root.to_string()});
        permit(&cluster, "acme", spec).await;
    };
    let mut root = sigstore.root();
    trust(&root).await;
    let package = Package::new("agings", "0.1.0", "old");
    let first = registry.publish(&package, REPOSITORY).await;
    sign_without_key(&registry, REPOSITORY, &sigstore, &workflow, Flaw::Aged).await;
    apply(&cluster, &operator("agings", &format!("{}:0.1.0", registry.of(REPOSITORY)))).await;
    let live = cluster.until("agings", "active", is_active).await;
    assert_eq!(live["status"]["source"]["digest"], *first);

    package.write("0.2.0", &[Part::new("agings", SIZE, "new")]);
    let second = registry.publish(&package, REPOSITORY).await;
    sign_without_key(&registry, REPOSITORY, &sigstore, &workflow, Flaw::Late).await;
    apply(&cluster, &operator("agings", &format!("{}:0.2.0", registry.of(REPOSITORY)))).await;
    let told = cluster.until_refused("agings", "PackageUntrusted").await;
    assert!(told.contains("a certificate of its chain had expired"), "{told}");
    let live = cluster.find(OPERATOR, "agings").await.unwrap();
    assert_eq!(
        (&condition(&live, "Active")["status"], &live["status"]["source"]["digest"]),
        (&json!("True"), &json!(first))
    );
    assert_eq!(cluster.find(super::REVISION, &package.revision().await).await, None);
    sign_without_key(&registry, REPOSITORY, &sigstore, &workflow, Flaw::None).await;
    let live = cluster.until("agings", "upgraded", is_active).await;
    assert_eq!(live["status"]["source"]["digest"], *second);

    // The authority's time was over before the signature. What is active stays, also after a restart.
    root["certificateAuthorities"][0]["validFor"]["end"] = json!("2021-01-01T00:00:00Z");
    trust(&root).await;
    for _ in 0..2 {
        let is_untrusted = |o: &Value| condition(o, "PackageUntrusted")["status"] == "True" && is_active(o);
        let live = cluster.until("agings", "untrusted and active", is_untrusted).await;
        let told = condition(&live, "PackageUntrusted")["message"].to_string();
        assert!(told.contains("no trusted certificate authority is valid at"), "{told}");
        assert_eq!(live["status"]["activeRevision"], package.revision().await);
        restart_without(&cluster, "agings", "PackageUntrusted").await;
    }
}
