//! The commands for packages against registries on loopback: what is pushed, signed, copied, indexed and read again. Registries that
//! demand credentials, lie and break off have their own files, and so have commands that are killed.

mod credentials;
mod faults;
mod kills;
mod lies;

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use crate::archives::files;
use crate::publishing::key;
use crate::registry::{Access, PASSWORD, Registry, USER};
use crate::says::says;

/// The package of a user, and the keys, as seen from the folder with the results.
const WEB: &str = "../input/web";
const OURS: [&str; 2] = ["../input/ours.pem", "../input/ours.pub"];
const THEIRS: &str = "../input/theirs.pub";

/// How much memory a command may use, in KiB.
const MEMORY_KIB: u32 = 1 << 20;

/// A user with a package, and with a home and credentials of their own.
struct User {
    folder: TempDir,
}

impl User {
    fn new() -> Self {
        let user = Self { folder: tempfile::tempdir().unwrap() };
        for folder in ["home", "input", "work", "bin"] {
            fs::create_dir(user.at(folder)).unwrap();
        }
        user.package("web", "0.1.0");
        user
    }

    /// The same with two keys.
    fn with_keys() -> Self {
        let user = Self::new();
        key(&user.at("input"), "ours");
        key(&user.at("input"), "theirs");
        user
    }

    /// Writes the package with another version.
    fn package(&self, folder: &str, version: &str) {
        for (path, text) in files() {
            let path = self.at("input").join(folder).join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text.replace("version: 0.1.0", &format!("version: {version}"))).unwrap();
        }
        fs::write(self.at("input").join(folder).join("README.md"), "# web\n\nA site.\n").unwrap();
    }

    fn at(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    /// The file with the credentials.
    fn config(&self) -> PathBuf {
        self.at("docker/config.json")
    }

    /// A command with bounded memory, in the folder with the results.
    fn command(&self, args: &[&str]) -> Command {
        self.limited(&format!("ulimit -v {MEMORY_KIB}"), args)
    }

    /// A command with limits that a shell sets.
    fn limited(&self, limits: &str, args: &[&str]) -> Command {
        let mut command = Command::new("sh");
        let limited = format!("{limits}; exec \"$0\" \"$@\"");
        let path = std::env::var("PATH").unwrap_or_default();
        command
            .args(["-c", &limited, env!("CARGO_BIN_EXE_operetta")])
            .args(args)
            .current_dir(self.at("work"))
            .env("PATH", format!("{}:{path}", self.at("bin").display()))
            .env("HOME", self.at("home"))
            .env("DOCKER_CONFIG", self.at("docker"))
            .env("OPERETTA_CACHE", self.at("cache"))
            // Each thread takes address space.
            .env("TOKIO_WORKER_THREADS", "2")
            .env("NO_COLOR", "1");
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

    fn run(&self, args: &[&str]) -> Output {
        self.command(args).stdin(Stdio::null()).output().unwrap()
    }

    /// `operetta login` with this password on standard input.
    fn login(&self, registry: &Registry, password: &str) -> Output {
        let args = ["login", &registry.address, "-u", USER, "--password-stdin"];
        let mut command = self.command(&args);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(format!("{password}\n").as_bytes()).unwrap();
        child.wait_with_output().unwrap()
    }

    /// Stores the credentials that the registry accepts.
    fn log_in(&self, registry: &Registry) {
        let output = self.login(registry, PASSWORD);
        assert!(output.status.success(), "{}", text(&output.stderr));
    }

    /// The standard output of a command that succeeds.
    #[track_caller]
    fn ok(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
        text(&output.stdout).trim_end().to_owned()
    }

    /// The exit code and the error of a command that fails, in one line.
    #[track_caller]
    fn fails(&self, args: &[&str]) -> (i32, String) {
        failure(args, &self.run(args))
    }

    /// What is in the folder with the results.
    fn results(&self) -> Vec<String> {
        let entries = fs::read_dir(self.at("work")).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    /// Whether there is no result, or a layout that lists nothing: the next attempt uses what it has.
    fn has_nothing(&self) -> bool {
        match &self.results()[..] {
            [] => true,
            [layout] if layout == "layout" => {
                let index: Value = serde_json::from_slice(&self.read("layout/index.json")).unwrap();
                index["manifests"].as_array().is_some_and(Vec::is_empty)
            }
            _ => false,
        }
    }

    fn read(&self, result: &str) -> Vec<u8> {
        fs::read(self.at("work").join(result)).unwrap()
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The exit code and the error, which is the only one. What to do comes in the lines below it.
#[track_caller]
fn failure(args: &[&str], output: &Output) -> (i32, String) {
    let message = text(&output.stderr);
    assert!(output.stdout.is_empty(), "{args:?}: {}", text(&output.stdout));
    let errors: Vec<&str> = message.lines().filter(|line| line.starts_with("error: ")).collect();
    let [error] = errors[..] else { panic!("{args:?}: {message}") };
    (output.status.code().expect("an exit code"), error.to_owned())
}

#[test]
fn package_is_pulled_as_it_was_pushed() {
    let (user, registry) = (User::new(), Registry::start());
    user.ok(&["package", WEB, "-o", "web.tgz"]);
    let archive = user.read("web.tgz");
    let repository = registry.place("acme/web");
    let name = user.ok(&["push", WEB, &repository]);
    let (tagged, digest) = name.split_once('@').unwrap();
    assert_eq!(tagged, format!("{repository}:0.1.0"));
    assert_eq!(registry.content().tag("acme/web", "0.1.0"), Some(digest));
    // The second push sends no blob.
    let uploads = registry.count("POST", "/blobs/uploads/");
    assert!(uploads > 0);
    assert_eq!(user.ok(&["push", WEB, &repository]), name);
    assert_eq!(registry.count("POST", "/blobs/uploads/"), uploads);
    let by_digest = format!("{repository}@{digest}");
    for reference in [&*name, tagged, &by_digest, &repository] {
        let printed = user.ok(&["pull", reference, "-o", "pulled.tgz"]);
        assert!(printed.ends_with(digest), "{reference}: {printed}");
        assert!(user.read("pulled.tgz") == archive, "{reference}");
        fs::remove_file(user.at("work/pulled.tgz")).unwrap();
    }
    // Without -o, the file has the name and the version.
    user.ok(&["pull", &repository]);
    assert!(user.read("web-0.1.0.tgz") == archive);

    let other = registry.place("acme/archive");
    user.ok(&["push", "web.tgz", &other]);
    user.ok(&["pull", &other, "-o", "other.tgz"]);
    assert!(user.read("other.tgz") == archive);

    // A version is not replaced without --force.
    user.package("changed", "0.1.0");
    fs::write(user.at("input/changed/README.md"), "# web\n\nAnother site.\n").unwrap();
    let push = ["push", "../input/changed", &repository];
    says(user.fails(&push), 1, &["the tag 0.1.0 already is", digest]);
    assert_eq!(registry.content().tag("acme/web", "0.1.0"), Some(digest));
    let forced = user.ok(&[&push[..], &["--force"]].concat());
    assert!(!forced.ends_with(digest), "{forced}");
}

/// With the API for referrers on one side and without it on the other.
#[test]
fn signatures_travel_between_registries_and_layouts() {
    for has_referrers in [true, false] {
        let user = User::with_keys();
        let [private, public] = OURS;
        let first = Registry::new(Access::Open, has_referrers);
        let second = Registry::new(Access::Open, !has_referrers);
        user.ok(&["package", WEB, "-o", "web.tgz"]);
        let archive = user.read("web.tgz");
        let from = user.ok(&["push", WEB, &first.place("acme/web")]);
        let digest = from.split_once('@').unwrap().1;
        let verify = |reference: &str| {
            assert!(user.ok(&["verify", reference, "--key", public]).ends_with(digest), "{reference}");
            let (code, error) = user.fails(&["verify", reference, "--key", THEIRS]);
            assert!(code == 1 && error.contains("no valid signature"), "{reference}: {error}");
        };
        let (code, error) = user.fails(&["verify", &from, "--key", public]);
        assert!(code == 1 && error.contains("it is not signed"), "{error}");
        let (code, _) = user.fails(&["pull", &from, "-o", "unsigned", "--key", public]);
        assert!(code == 1 && !user.at("work/unsigned").exists());
        assert_eq!(user.ok(&["sign", &from, "--key", private]), from);
        verify(&from);

        user.ok(&["pull", &from, "-o", "pulled", "--key", public]);
        user.ok(&["copy", &from, "copied"]);
        let (through, direct) = (second.place("mirror/web"), second.place("direct/web"));
        user.ok(&["copy", "copied", &through]);
        assert_eq!(user.ok(&["copy", &from, &direct]), format!("{direct}:0.1.0@{digest}"));
        drop(first);
        for reference in ["pulled", "copied", &through, &direct] {
            verify(reference);
            user.ok(&["pull", reference, "-o", "web.tgz", "--key", public]);
            assert!(user.read("web.tgz") == archive, "{reference}");
        }
        // Where a registry lists no referrers, a tag does.
        let list = format!("sha256-{}", digest.trim_start_matches("sha256:"));
        assert_eq!(second.content().tag("direct/web", &list).is_some(), has_referrers);
        assert!(second.count("GET", "/referrers/") > 0);
    }
}

#[test]
fn an_index_in_a_registry_is_searched_and_shown() {
    for has_referrers in [true, false] {
        let user = User::with_keys();
        let [private, public] = OURS;
        let registry = Registry::new(Access::Bearer, has_referrers);
        user.log_in(&registry);
        let repository = registry.place("acme/web");
        user.package("next", "0.2.0");
        user.ok(&["push", WEB, &repository, "--tag", "stable"]);
        let next = user.ok(&["push", "../input/next", &repository]);
        user.ok(&["sign", &next, "--key", private]);
        user.ok(&["push", WEB, &registry.place("other/web")]);

        let (place, index) = (format!("{}/acme", registry.address), registry.place("acme/index"));
        let build = ["catalog", "build", &place, "--push", &index, "--key", private, "--strict"];
        let name = user.ok(&build);
        assert!(name.starts_with(&format!("{index}:latest@sha256:")), "{name}");
        // The index itself is no package, and equal registries give equal bytes.
        assert_eq!(user.ok(&build), name);

        let catalog = ["--catalog", &index, "--catalog-key", public];
        let with = |args: &[&str]| {
            let args: Vec<&str> = args.iter().chain(&catalog).copied().collect();
            user.ok(&args)
        };
        assert_eq!(with(&["search", "web", "-o", "name"]), next);
        let found: Value = serde_json::from_str(&with(&["search", "-o", "json"])).unwrap();
        assert_eq!(found.as_array().map(Vec::len), Some(1), "{found}");
        assert_eq!(found[0]["versions"][0]["signers"].as_array().map(Vec::len), Some(1), "{found}");
        let shown: Value = serde_json::from_str(&with(&["show", "web:stable", "-o", "json"])).unwrap();
        assert_eq!(shown["version"], "0.1.0");
        assert!(with(&["show", "web"]).contains("A site."));
        let listed: Value =
            serde_json::from_str(&user.ok(&["versions", &repository, "--signers", "-o", "json"])).unwrap();
        let versions = listed["versions"].as_array().unwrap();
        assert_eq!((versions.len(), &versions[0]["version"]), (2, &Value::from("0.2.0")));
        assert_eq!(versions[0]["signers"].as_array().map(Vec::len), Some(1), "{listed}");
        assert_eq!(versions[1]["tags"], serde_json::json!(["stable"]));

        let (code, error) = user.fails(&["search", "web", "--catalog", &index, "--catalog-key", THEIRS]);
        assert!(code == 1 && error.contains("no valid signature"), "{error}");
        // A package is no index.
        says(user.fails(&["search", "web", "--catalog", &repository]), 1, &["does not exist"]);
    }
}

/// The files of a result, by their paths.
fn snapshot(path: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    let mut pending = vec![path.to_owned()];
    while let Some(next) = pending.pop() {
        if next.is_dir() {
            pending.extend(fs::read_dir(&next).unwrap().map(|entry| entry.unwrap().path()));
        } else {
            found.push((next.strip_prefix(path).unwrap().to_owned(), fs::read(&next).unwrap()));
        }
    }
    found.sort();
    found
}
