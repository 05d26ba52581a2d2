//! Packages in real registries, which are compiled from their Go modules: what is pushed and signed is copied through a layout into
//! another registry, and installed from there when the first one is gone. cosign itself verifies what Operetta signs, and signs what
//! Operetta verifies. Registries that lie and break off are those of `tests/offline/registries`.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, Ed25519KeyPair};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::process::{Child, Command};

use super::sources::{apply, operator, permit};
use super::{Cluster, Package, is_active, scene};
use crate::programs::{self, built};
use crate::support::{LONG, eventually, operetta};

/// The registry of the CNCF, with its own command. It has no API for referrers.
const DISTRIBUTION: &str = "distribution";
/// Its predecessor, which most installations have as the image `registry:2`. It has none either.
const DISTRIBUTION_2: &str = "distribution-2";
/// It lists referrers with the type of their config, and does not say that it keeps them.
const GO_CONTAINERREGISTRY: &str = "go-containerregistry";
/// It lists referrers as the specification says.
const OCISERVER: &str = "ociserver";

/// Each registry with the one into which its packages are copied.
const ROUTES: [[&str; 2]; 4] = [
    [DISTRIBUTION, GO_CONTAINERREGISTRY],
    [GO_CONTAINERREGISTRY, DISTRIBUTION_2],
    [DISTRIBUTION_2, OCISERVER],
    [OCISERVER, DISTRIBUTION],
];

const BUNDLE: &str = "application/vnd.dev.sigstore.bundle.v0.3+json";

/// A registry on a free port of loopback. It ends when this is dropped, and when the test is killed, because its standard input is
/// closed then.
struct Registry {
    address: String,
    process: Child,
    _folder: TempDir,
}

impl Registry {
    async fn start(name: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let [data, config, log] = ["data", "config.yaml", "log"].map(|name| folder.path().join(name));
        fs::create_dir(&data).unwrap();
        let mut command = if name == DISTRIBUTION {
            let settings = format!(
                "version: 0.1\nstorage: {{filesystem: {{rootdirectory: \"{}\"}}}}\nhttp: {{addr: \"127.0.0.1:0\"}}\n",
                data.display()
            );
            fs::write(&config, settings).unwrap();
            let mut command = Command::new(built(programs::DISTRIBUTION).await);
            command.arg("serve").arg(&config);
            command
        } else {
            let mut command = Command::new(built(programs::REGISTRIES).await);
            command.arg(name).arg(&data);
            command
        };
        let process = command
            .env("OTEL_TRACES_EXPORTER", "none")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(File::create(&log).unwrap())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        // The port is chosen by the system, and the log names it.
        let address = eventually(&format!("{name} listens"), LONG, async || {
            let text = fs::read_to_string(&log).unwrap();
            let rest = text.split_once("listening on ").map(|(_, rest)| rest);
            let end = |c: char| c == '"' || c.is_whitespace();
            let address = rest.and_then(|rest| Some(rest[..rest.find(end)?].to_owned()));
            address.ok_or(text)
        })
        .await;
        Self { address, process, _folder: folder }
    }

    /// The reference of a repository.
    fn of(&self, repository: &str) -> String {
        format!("oci://{}/{repository}", self.address)
    }

    async fn stop(mut self) {
        self.process.kill().await.unwrap();
    }
}

/// The standard output of a command that succeeds and needs no cluster.
async fn ok(args: &[&str]) -> String {
    operetta(Path::new("/nowhere"), args).await.ok().trim().to_owned()
}

/// Why a package has no signature of this key.
async fn unverified(reference: &str, public: &str) -> String {
    operetta(Path::new("/nowhere"), &["verify", reference, "--key", public]).await.fails()
}

/// The files of a key.
pub(super) struct Key {
    pub(super) private: String,
    pub(super) public: String,
}

/// Writes a key in PKCS #8 and its public part.
pub(super) fn key(folder: &Path, name: &str, der: &[u8]) -> Key {
    let text = STANDARD.encode(der);
    let pem = format!("-----BEGIN PRIVATE KEY-----\n{text}\n-----END PRIVATE KEY-----\n");
    let public = operetta_registry::PrivateKey::parse(name, pem.as_bytes()).unwrap().public().pem();
    let file = |ending: &str, text: &str| {
        let path = folder.join(format!("{name}.{ending}"));
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    Key { private: file("pem", &pem), public: file("pub", &public) }
}

/// A package, the keys that sign it, and a folder for what is pulled.
struct Publisher {
    folder: TempDir,
    package: Package,
    /// Of each type that Operetta knows.
    keys: [Key; 2],
    foreign: Key,
}

impl Publisher {
    fn new(name: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let random = SystemRandom::new();
        let ecdsa = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &random).unwrap();
        let ed25519 = || Ed25519KeyPair::generate_pkcs8(&random).unwrap();
        let keys =
            [key(folder.path(), "ecdsa", ecdsa.as_ref()), key(folder.path(), "ed25519", ed25519().as_ref())];
        let foreign = key(folder.path(), "foreign", ed25519().as_ref());
        let package = Package::new(name, "0.1.0", "travelled");
        // It is attached to the package.
        fs::write(Path::new(package.folder()).join("README.md"), "# Travels\n").unwrap();
        Self { folder, package, keys, foreign }
    }

    /// The path of a result.
    fn at(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }

    /// Pushes the package into a repository. Returns its digest.
    async fn push(&self, repository: &str) -> String {
        let pushed = ok(&["push", self.package.folder(), repository]).await;
        let (tagged, digest) = pushed.split_once('@').unwrap();
        assert_eq!(tagged, format!("{repository}:0.1.0"));
        digest.to_owned()
    }

    /// Signs what is at a reference by each key.
    async fn sign(&self, reference: &str) {
        for key in &self.keys {
            assert!(ok(&["sign", reference, "--key", &key.private]).await.starts_with(reference));
        }
    }

    /// Checks that the package is at a reference, with both signatures and the README.
    async fn is_at(&self, reference: &str, digest: &str) {
        let (archive, pulled) = (self.at("archive.tgz"), self.at("pulled.tgz"));
        ok(&["package", self.package.folder(), "-o", &archive]).await;
        for key in &self.keys {
            let verified = ok(&["verify", reference, "--key", &key.public]).await;
            assert!(verified.ends_with(digest), "{reference}: {verified}");
            ok(&["pull", reference, "-o", &pulled, "--key", &key.public]).await;
            assert!(fs::read(&pulled).unwrap() == fs::read(&archive).unwrap(), "{reference}");
            fs::remove_file(&pulled).unwrap();
        }
        fs::remove_file(&archive).unwrap();
        let refused = unverified(reference, &self.foreign.public).await;
        assert!(refused.contains("no valid signature"), "{reference}: {refused}");
        let shown: Value = serde_json::from_str(&ok(&["inspect", reference, "-o", "json"]).await).unwrap();
        assert_eq!(shown["signatures"].as_array().map(Vec::len), Some(2), "{reference}: {shown}");
        let referrers = shown["referrers"].as_array().unwrap();
        let mut types: Vec<&str> =
            referrers.iter().map(|one| one["artifactType"].as_str().unwrap_or("none")).collect();
        types.sort_unstable();
        assert_eq!(types, [BUNDLE, BUNDLE, "text/markdown"], "{reference}");
    }
}

/// Publishes a package in one registry and installs it from another one when the first is gone.
async fn travels([from, to]: [&str; 2], name: &str) {
    let publisher = Publisher::new(name);
    let (first, second) = (Registry::start(from).await, Registry::start(to).await);
    let repository = first.of("acme/travels");
    let digest = publisher.push(&repository).await;
    let published = format!("{repository}@{digest}");
    let unsigned = unverified(&published, &publisher.keys[0].public).await;
    assert!(unsigned.contains("it is not signed"), "{unsigned}");
    publisher.sign(&published).await;
    // What is there is pushed again without a change.
    assert_eq!(publisher.push(&repository).await, digest);
    publisher.is_at(&published, &digest).await;

    let (layout, through, direct) =
        (publisher.at("layout"), second.of("through/layout"), second.of("direct"));
    ok(&["copy", &published, &layout]).await;
    ok(&["copy", &published, &direct]).await;
    first.stop().await;
    publisher.is_at(&layout, &digest).await;
    ok(&["copy", &layout, &through]).await;
    let (through, direct) = (format!("{through}@{digest}"), format!("{direct}@{digest}"));
    for reference in [&through, &direct] {
        publisher.is_at(reference, &digest).await;
    }
    // The tags of signatures are no versions.
    let listed: Value =
        serde_json::from_str(&ok(&["versions", &second.of("through/layout"), "-o", "json"]).await).unwrap();
    assert_eq!(listed["versions"].as_array().map(Vec::len), Some(1), "{listed}");
    assert_eq!(listed["versions"][0]["version"], "0.1.0");

    let cluster = Cluster::shared().await;
    let told = cluster.operetta(&["install", &through, "--key", &publisher.foreign.public]).await.fails();
    assert!(told.contains("no valid signature"), "{told}");
    cluster.operetta(&["install", &through, "--key", &publisher.keys[0].public]).await.ok();
    let is_from = |o: &Value| is_active(o) && o["status"]["source"]["digest"] == *digest;
    cluster.until(name, "active from the second registry", is_from).await;
    let (scene, package) = (scene(cluster).await, &publisher.package);
    package.ready(&scene, "one", &json!({})).await;
}

#[tokio::test]
async fn package_travels_from_distribution() {
    travels(ROUTES[0], "trips").await;
}

#[tokio::test]
async fn package_travels_from_go_containerregistry() {
    travels(ROUTES[1], "tours").await;
}

#[tokio::test]
async fn package_travels_from_distribution_2() {
    travels(ROUTES[2], "rides").await;
}

#[tokio::test]
async fn package_travels_from_ociserver() {
    travels(ROUTES[3], "sails").await;
}

/// cosign with a home and a key of its own.
struct Cosign {
    program: PathBuf,
    home: TempDir,
}

/// The arguments that sign in the present format. Without a signing config and a trusted root of its own, cosign asks those of Sigstore.
const SIGN: [&str; 5] = ["--signing-config", "services.json", "--trusted-root", "root.json", "--yes"];
/// Those that sign in the format of cosign 2, which is a tag.
const SIGN_2: [&str; 4] =
    ["--new-bundle-format=false", "--use-signing-config=false", "--tlog-upload=false", "--yes"];

impl Cosign {
    async fn new() -> Self {
        let cosign = Self { program: built(programs::COSIGN).await, home: tempfile::tempdir().unwrap() };
        for args in [
            &["generate-key-pair"][..],
            &["signing-config", "create", "--out", "services.json"],
            &["trusted-root", "create", "--out", "root.json"],
        ] {
            cosign.run(args).await.unwrap();
        }
        cosign
    }

    /// The path of its public key.
    fn public(&self) -> String {
        self.home.path().join("cosign.pub").to_str().unwrap().to_owned()
    }

    /// The standard output, or all output as an error.
    async fn run(&self, args: &[&str]) -> Result<String, String> {
        let output = Command::new(&self.program)
            .args(args)
            .current_dir(self.home.path())
            .env("HOME", self.home.path())
            .env("DOCKER_CONFIG", self.home.path())
            .env("COSIGN_PASSWORD", "")
            // It reaches registries on loopback, for which no proxy is used, and no other host.
            .env("HTTPS_PROXY", "http://127.0.0.1:9")
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output();
        let ended = tokio::time::timeout(LONG, output).await;
        let ended = ended.unwrap_or_else(|_| panic!("cosign {args:?} does not end")).unwrap();
        let [out, err] = [ended.stdout, ended.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        if ended.status.success() { Ok(out) } else { Err(format!("cosign {args:?}: {out}{err}")) }
    }

    /// Signs what is at a reference by its key.
    async fn sign(&self, reference: &str, how: &[&str]) {
        let args = ["sign", "--key", "cosign.key", "--allow-http-registry=true", image(reference)];
        self.run(&[&args[..], how].concat()).await.unwrap();
    }

    /// Checks that what is at a reference is signed by a key.
    async fn verify(&self, reference: &str, public: &str, how: &[&str]) -> Result<(), String> {
        let args = ["verify", "--key", public, "--insecure-ignore-tlog=true", "--allow-http-registry=true"];
        let said = self.run(&[&args[..], how, &[image(reference)]].concat()).await?;
        let digest = reference.split_once('@').unwrap().1;
        let found: Value = serde_json::from_str(said.trim()).unwrap();
        assert_eq!(found[0]["critical"]["image"]["docker-manifest-digest"], *digest, "{said}");
        Ok(())
    }
}

/// A reference as cosign names images.
fn image(reference: &str) -> &str {
    reference.trim_start_matches("oci://")
}

#[tokio::test]
async fn cosign_verifies_what_operetta_signs() {
    let (cosign, publisher) = (Cosign::new().await, Publisher::new("inked"));
    for [from, to] in ROUTES {
        let (first, second) = (Registry::start(from).await, Registry::start(to).await);
        let repository = first.of("acme/inked");
        let published = format!("{repository}@{}", publisher.push(&repository).await);
        let digest = published.split_once('@').unwrap().1;
        let refused = cosign.verify(&published, &publisher.keys[0].public, &[]).await.unwrap_err();
        assert!(refused.contains("no signatures found"), "{from}: {refused}");
        publisher.sign(&published).await;
        let (layout, copied) = (publisher.at(from), second.of("acme/copied"));
        ok(&["copy", &published, &layout]).await;
        ok(&["copy", &layout, &copied]).await;
        for reference in [&published, &format!("{copied}@{digest}")] {
            for key in &publisher.keys {
                cosign
                    .verify(reference, &key.public, &[])
                    .await
                    .unwrap_or_else(|error| panic!("{from}, {to}: {error}"));
            }
            let refused = cosign.verify(reference, &publisher.foreign.public, &[]).await.unwrap_err();
            assert!(refused.contains("failed to verify signature"), "{from}, {to}: {refused}");
        }
    }
}

#[tokio::test]
async fn operetta_verifies_what_cosign_signs() {
    let (cosign, publisher) = (Cosign::new().await, Publisher::new("sealed"));
    let public = cosign.public();
    let formats: [(&[&str], &str, &[&str]); 2] =
        [(&SIGN, "Sigstore bundle v0.3", &[]), (&SIGN_2, "cosign 2", &["--new-bundle-format=false"])];
    for [from, to] in ROUTES {
        let (first, second) = (Registry::start(from).await, Registry::start(to).await);
        for (how, format, verify) in formats {
            let name = format.replace(' ', "-").to_lowercase();
            let (repository, copied) = (first.of(&name), second.of(&name));
            let published = format!("{repository}@{}", publisher.push(&repository).await);
            let digest = published.split_once('@').unwrap().1;
            cosign.sign(&published, how).await;
            let layout = publisher.at(&format!("{from}-{name}"));
            ok(&["copy", &published, &layout]).await;
            ok(&["copy", &layout, &copied]).await;
            let copied = format!("{copied}@{digest}");
            for reference in [&published, &layout, &copied] {
                let verified =
                    operetta(Path::new("/nowhere"), &["verify", reference, "--key", &public]).await;
                let said = format!("{}{}", verified.stdout, verified.stderr);
                assert!(verified.status.success(), "{from}, {to}: {said}");
                assert!(said.contains(format) && said.contains(digest), "{from}, {to}: {said}");
                let refused = unverified(reference, &publisher.foreign.public).await;
                assert!(refused.contains("no valid signature"), "{from}, {to}: {refused}");
            }
            let again = cosign.verify(&copied, &public, verify).await;
            again.unwrap_or_else(|error| panic!("{from}, {to}: {error}"));
        }
    }
}

#[tokio::test]
async fn policy_permits_what_cosign_has_signed() {
    let (cosign, publisher) = (Cosign::new().await, Publisher::new("minted"));
    let cluster = Cluster::start().await;
    let registry = Registry::start(DISTRIBUTION).await;
    let public = fs::read_to_string(cosign.public()).unwrap();
    let prefix = format!("{}/acme", registry.address);
    permit(&cluster, "acme", json!({"prefix": prefix, "keys": [public]})).await;
    let repository = registry.of("acme/minted");
    let digest = publisher.push(&repository).await;
    apply(&cluster, &operator("minted", &format!("{repository}:0.1.0"))).await;
    let told = cluster.until_refused("minted", "PackageUntrusted").await;
    assert!(told.contains("not signed"), "{told}");
    cosign.sign(&format!("{repository}@{digest}"), &SIGN).await;
    let live = cluster.until("minted", "active", is_active).await;
    assert_eq!(live["status"]["source"]["digest"], *digest, "{live:#}");
    assert_eq!(live["status"]["source"]["policy"], "acme", "{live:#}");
}
