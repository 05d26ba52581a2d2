//! What the commands for packages in registries cost, as a user waits for them: whole processes of `operetta` against a registry in
//! memory on loopback, the time until their end and their peak memory.
//!
//! `docs/performance.md`, "Packages in registries", says how to run it. The benchmark fails if the work is not done, and not if it is
//! slow.

// The registry in memory is a part of tests, and may panic as they may.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::needless_pass_by_value)]

#[path = "../support/registry/mod.rs"]
#[allow(dead_code, reason = "tests use the rest")]
mod registry;

use std::fs;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use clap::Parser;
use data_encoding::BASE64;
use operetta_registry::artifact::Kind;
use operetta_registry::index::{self, Entry, Release};
use operetta_registry::{Digest, Options, PackageIndex, Place, PrivateKey, Signers, signatures};
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair};
use serde_json::json;
use tempfile::TempDir;

use crate::registry::{Registry, Request, reply};

/// Errors end the benchmark with a message.
type Result<T, E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;

const ETCD: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/operators/etcd");
const REPOSITORY: &str = "acme/etcd";
/// The packages of the index, and the versions of each.
const PACKAGES: usize = 5_000;
const VERSIONS: usize = 10;
/// How often a function is called that is measured alone.
const CALLS: u32 = 1_000;
/// The pause between two looks at the memory of a process.
const LOOK: Duration = Duration::from_micros(200);

/// The commands for packages in registries: milliseconds until their end, and peak memory
#[derive(Debug, Parser)]
#[command(name = "packages")]
struct Args {
    /// How often each command is run; medians are reported
    #[arg(long, default_value_t = 21, value_name = "N")]
    rounds: usize,

    /// What `cargo bench` passes
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    if !args.bench {
        // `cargo test --all-targets` runs this as well.
        println!("this is a benchmark: cargo bench --bench packages -- --help");
        return ExitCode::SUCCESS;
    }
    match run(args.rounds.max(1)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(rounds: usize) -> Result<()> {
    let lab = Lab::new(rounds)?;
    println!("medians of {rounds}: milliseconds, the fastest and the slowest in brackets, peak memory");
    lab.row("operetta --version", 0, || strings(&["--version"]))?;
    let registry = lab.published()?;
    lab.transfers(&registry)?;
    lab.verification(&registry)?;
    lab.searches()?;
    lab.hostile(&registry)
}

/// A folder with keys, results, and the home of the user.
struct Lab {
    folder: TempDir,
    key: PrivateKey,
    rounds: usize,
}

impl Lab {
    fn new(rounds: usize) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let random = SystemRandom::new();
        let der = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &random);
        let der = BASE64.encode(der.map_err(|_| "the system has no random numbers")?.as_ref());
        let pem = format!("-----BEGIN PRIVATE KEY-----\n{der}\n-----END PRIVATE KEY-----\n");
        let key = PrivateKey::parse("key.pem", pem.as_bytes())?;
        fs::write(folder.path().join("key.pem"), pem)?;
        fs::write(folder.path().join("key.pub"), key.public().pem())?;
        Ok(Self { folder, key, rounds })
    }

    fn at(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    fn command(&self, args: &[String]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_operetta"));
        command
            .args(args)
            .current_dir(self.folder.path())
            .env("HOME", self.folder.path())
            .env("DOCKER_CONFIG", self.at("docker"))
            .env("OPERETTA_CACHE", self.at("cache"))
            .env("NO_COLOR", "1")
            .stdin(Stdio::null());
        for name in [
            "REGISTRY_AUTH_FILE",
            "XDG_CONFIG_HOME",
            "XDG_RUNTIME_DIR",
            "OPERETTA_CATALOG",
            "OPERETTA_CATALOG_KEY",
        ] {
            command.env_remove(name);
        }
        command
    }

    /// Runs a command that ends with this code. Returns the milliseconds.
    fn timed(&self, args: &[String], code: i32) -> Result<f64> {
        let started = Instant::now();
        let output = self.command(args).output()?;
        let took = started.elapsed();
        if output.status.code() == Some(code) {
            return Ok(took.as_secs_f64() * 1e3);
        }
        let told = String::from_utf8_lossy(&output.stderr);
        Err(format!("operetta {}: {}\n{told}", args.join(" "), output.status).into())
    }

    /// Runs a command. Returns its peak memory in KiB, as it was at most a moment before its end.
    fn peak(&self, args: &[String]) -> Result<u64> {
        let mut child = self.command(args).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        let path = format!("/proc/{}/status", child.id());
        let mut peak = 0;
        while child.try_wait()?.is_none() {
            let status = fs::read_to_string(&path).unwrap_or_default();
            let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
            let now: Option<u64> = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
            peak = now.unwrap_or_default().max(peak);
            thread::sleep(LOOK);
        }
        Ok(peak)
    }

    /// Prints what a command costs that ends with this code. `prepare` gives its arguments before each run.
    fn row(&self, name: &str, code: i32, mut prepare: impl FnMut() -> Vec<String>) -> Result<()> {
        let mut times = Vec::new();
        for _ in 0..self.rounds {
            times.push(self.timed(&prepare(), code)?);
        }
        // Apart, for the looks cost time.
        let mut peaks = Vec::new();
        for _ in 0..self.rounds.min(5) {
            peaks.push(self.peak(&prepare())?);
        }
        times.sort_by(f64::total_cmp);
        let (fastest, slowest) = (times[0], times[times.len() - 1]);
        let peak = peaks.into_iter().max().unwrap_or_default() >> 10;
        println!(
            "{name:<52} {:>8.1} ms  ({fastest:.1} to {slowest:.1})  {peak:>4} MiB",
            times[times.len() / 2]
        );
        Ok(())
    }

    /// Removes a result.
    fn remove(&self, name: &str) {
        let _ = fs::remove_file(self.at(name));
        let _ = fs::remove_dir_all(self.at(name));
    }

    /// A registry with the package, signed, as the tag `1`.
    fn published(&self) -> Result<Registry> {
        let registry = Registry::start();
        let reference = format!("{}:1", registry.place(REPOSITORY));
        self.timed(&strings(&["push", ETCD, &reference]), 0)?;
        self.timed(&strings(&["sign", &reference, "--key", "key.pem"]), 0)?;
        self.timed(&strings(&["copy", &reference, "layout"]), 0)?;
        Ok(registry)
    }

    fn transfers(&self, registry: &Registry) -> Result<()> {
        let reference = format!("{}:1", registry.place(REPOSITORY));
        let reference = reference.as_str();
        let mut empty = None;
        self.row("push operators/etcd", 0, || {
            strings(&["push", ETCD, &empty.insert(Registry::start()).place(REPOSITORY)])
        })?;
        self.row("push operators/etcd, all of it is there", 0, || strings(&["push", ETCD, reference]))?;
        for (name, args) in [
            ("pull operators/etcd to a .tgz", &["pull", reference, "-o", "pulled.tgz"][..]),
            ("pull operators/etcd to a layout", &["pull", reference, "-o", "pulled"]),
            (
                "pull operators/etcd to a .tgz, --key",
                &["pull", reference, "-o", "pulled.tgz", "--key", "key.pub"],
            ),
        ] {
            self.row(name, 0, || {
                self.remove(args[3]);
                strings(args)
            })?;
        }
        Ok(())
    }

    fn verification(&self, registry: &Registry) -> Result<()> {
        let reference = format!("{}:1", registry.place(REPOSITORY));
        for (name, from) in [("verify from a registry", &*reference), ("verify from a layout", "layout")] {
            self.row(name, 0, || strings(&["verify", from, "--key", "key.pub"]))?;
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let mut place = Place::open(&self.at("layout").display().to_string(), &Options::default())?;
        let signers = Signers::of_keys(vec![self.key.public()]);
        let manifest = runtime.block_on(place.resolve())?;
        let found = runtime.block_on(signatures::find(&place.store, &manifest))?;
        let started = Instant::now();
        for _ in 0..CALLS {
            signatures::check("the package", &manifest, &found, &signers)?;
        }
        function("verify alone: the check of a signature", started);
        let started = Instant::now();
        for _ in 0..CALLS {
            let manifest = runtime.block_on(place.resolve())?;
            let found = runtime.block_on(signatures::find(&place.store, &manifest))?;
            signatures::check("the package", &manifest, &found, &signers)?;
        }
        function("verify alone: with what it reads of a layout", started);
        Ok(())
    }

    fn searches(&self) -> Result<()> {
        let bytes = catalogue()?;
        fs::write(self.at("index.json"), &bytes)?;
        fs::write(self.at("index.json.sigstore.json"), index::sign(&bytes, &self.key)?)?;
        println!("an index of {PACKAGES} packages with {VERSIONS} versions: {} KiB", bytes.len() >> 10);
        for (name, word) in [("no hit", "nowhere"), ("10 hits", "package-424"), ("all are hits", "clusters")]
        {
            let args = strings(&["search", word, "--catalog", "index.json"]);
            self.row(&format!("search, {name}"), 0, || args.clone())?;
        }
        let args = ["search", "package-424", "--catalog", "index.json", "--catalog-key", "key.pub"];
        self.row("search, 10 hits, --catalog-key", 0, || strings(&args))
    }

    /// Commands that read from a registry that lies, and fail.
    fn hostile(&self, honest: &Registry) -> Result<()> {
        let content = honest.content();
        let mut layers = content.tagged(REPOSITORY, "1");
        layers["layers"] = vec![layers["layers"][0].clone(); 100_000].into();
        let layers = layers.to_string();
        let tags: Vec<String> = (0..10_000).map(|number| format!("0.0.{number}")).collect();
        let tags = json!({"name": REPOSITORY, "tags": tags}).to_string();
        let spaces = || reply(200, &[], vec![b' '; 64 << 10]).endless();
        let is_manifest = |request: &Request| request.is("GET", "/manifests/1");

        let lying = || Registry::with(&content);
        let pull = |registry: &Registry, tag: &str| {
            strings(&["pull", &format!("{}{tag}", registry.place(REPOSITORY)), "-o", "hostile.tgz"])
        };
        let registry = lying();
        registry.lie(move |request| is_manifest(request).then(spaces));
        self.row("pull, endless manifest", 1, || pull(&registry, ":1"))?;
        let registry = lying();
        registry.lie(move |request| request.is("GET", "/blobs/").then(spaces));
        self.row("pull, endless blob", 1, || pull(&registry, ":1"))?;
        let registry = lying();
        registry.lie(move |request| is_manifest(request).then(|| reply(200, &[], layers.clone())));
        self.row("pull, manifest with 100,000 layers", 1, || pull(&registry, ":1"))?;
        let registry = lying();
        registry.lie(move |request| request.is("GET", "/tags/").then(|| reply(200, &[], tags.clone())));
        self.row("pull, 10,000 tags, and the newest is missing", 1, || pull(&registry, ""))
    }
}

/// Prints what a call of a function costs.
fn function(name: &str, started: Instant) {
    println!("{name:<52} {:>8.3} ms", started.elapsed().as_secs_f64() * 1e3 / f64::from(CALLS));
}

fn strings(args: &[&str]) -> Vec<String> {
    args.iter().map(|arg| (*arg).to_owned()).collect()
}

/// An index as a large catalogue has it.
fn catalogue() -> Result<Bytes> {
    let entry = |number: usize| {
        let name = format!("package-{number:04}");
        let releases = (0..VERSIONS).rev().map(|version| Release {
            version: format!("1.{version}.0"),
            digest: Digest::of(format!("{name} {version}").as_bytes()),
            level: Some(3),
            signers: vec![format!("sha256:{}", Digest::of(b"a key").hex())],
            deprecated: None,
        });
        Entry {
            repository: format!("oci://registry.example/team-{}/{name}", number % 50),
            app_version: Some("17.2".to_owned()),
            description: Some(format!(
                "Clusters of the database number {number}, with backups and upgrades."
            )),
            readme: Some("It moves, backs up and restores what is stored in it. ".repeat(10)),
            kinds: vec![Kind {
                group: format!("databases-{number}.example.org"),
                kind: format!("Database{number}"),
                versions: vec!["v1".to_owned()],
            }],
            kubernetes: Some(">=1.30".to_owned()),
            channels: Vec::new(),
            versions: releases.collect(),
            more: 0,
            name,
        }
    };
    Ok(PackageIndex::new((0..PACKAGES).map(entry).collect()).bytes()?)
}
