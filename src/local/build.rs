//! Builds the control plane's binaries with Go, from the modules pinned in `go/`, into the cache.
//!
//! The modules are part of this executable, so an installed `operetta` builds the same binaries. A folder of
//! the cache contains the binaries of one module. Its name contains the hash of everything that affects the
//! result:
//!
//! ```text
//! controlplane/<module>-<hash>/bin/    finished binaries, moved here as a whole
//! controlplane/<module>-<hash>/work/   sources and intermediate files
//! controlplane/<module>-<hash>/lock    held by the builder
//! ```

use std::collections::{BTreeMap, VecDeque};
use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};

use data_encoding::HEXLOWER;
use sha2::{Digest, Sha256};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;

use super::error::Error;
use super::tools::{Environment, Module, OnProgress, Progress, Tool};

/// The oldest Go that builds the modules: the `go` line of their `go.mod`.
const OLDEST_GO: &str = "1.26";

/// Declares a module in `go/`, with the file that imports the packages to build.
macro_rules! module {
    ($name:literal, $imports:literal, $ldflags:expr) => {
        Module {
            name: $name,
            files: [
                ("go.mod", include_str!(concat!("go/", $name, "/go.mod"))),
                ("go.sum", include_str!(concat!("go/", $name, "/go.sum"))),
                ($imports, include_str!(concat!("go/", $name, "/", $imports))),
            ],
            ldflags: $ldflags,
        }
    };
}

/// The module of Kubernetes. Without the flags, the server would report version v0.0.0.
const KUBERNETES: Module = module!(
    "kubernetes",
    "tools.go",
    "-s -w -X k8s.io/component-base/version.gitVersion=v1.36.3 \
     -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=36"
);

// Each of these is a separate module, because it requires other versions of common libraries.
const KWOK: Module = module!("kwok", "tools.go", "-s -w");
const CONTAINERD: Module = module!("containerd", "tools.go", "-s -w");
const CNI: Module = module!("cni", "tools.go", "-s -w");
const COREDNS: Module = module!("coredns", "main.go", "-s -w");
const ETCD_3_5: Module = module!("etcd-3.5", "tools.go", "-s -w");
const RCLONE: Module = module!("rclone", "main.go", "-s -w");

/// The module and the Go package of a binary.
const fn source(tool: Tool) -> (&'static Module, &'static str) {
    match tool {
        Tool::Etcd => (&KUBERNETES, "go.etcd.io/etcd/server/v3"),
        Tool::Etcdctl => (&KUBERNETES, "go.etcd.io/etcd/etcdctl/v3"),
        Tool::Etcdutl => (&KUBERNETES, "go.etcd.io/etcd/etcdutl/v3"),
        Tool::KubeApiserver => (&KUBERNETES, "k8s.io/kubernetes/cmd/kube-apiserver"),
        Tool::KubeControllerManager => (&KUBERNETES, "k8s.io/kubernetes/cmd/kube-controller-manager"),
        Tool::KubeScheduler => (&KUBERNETES, "k8s.io/kubernetes/cmd/kube-scheduler"),
        Tool::Kubectl => (&KUBERNETES, "k8s.io/kubernetes/cmd/kubectl"),
        Tool::Kubelet => (&KUBERNETES, "k8s.io/kubernetes/cmd/kubelet"),
        Tool::KubeProxy => (&KUBERNETES, "k8s.io/kubernetes/cmd/kube-proxy"),
        Tool::Kwok => (&KWOK, "sigs.k8s.io/kwok/cmd/kwok"),
        Tool::Containerd => (&CONTAINERD, "github.com/containerd/containerd/v2/cmd/containerd"),
        Tool::ContainerdShim => {
            (&CONTAINERD, "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2")
        }
        Tool::Ctr => (&CONTAINERD, "github.com/containerd/containerd/v2/cmd/ctr"),
        Tool::CniPtp => (&CNI, "github.com/containernetworking/plugins/plugins/main/ptp"),
        Tool::CniLoopback => (&CNI, "github.com/containernetworking/plugins/plugins/main/loopback"),
        Tool::CniHostLocal => (&CNI, "github.com/containernetworking/plugins/plugins/ipam/host-local"),
        Tool::CniPortmap => (&CNI, "github.com/containernetworking/plugins/plugins/meta/portmap"),
        Tool::CoreDns => (&COREDNS, "."),
        Tool::Etcd35 => (&ETCD_3_5, "go.etcd.io/etcd/server/v3"),
        Tool::Etcdctl35 => (&ETCD_3_5, "go.etcd.io/etcd/etcdctl/v3"),
        Tool::Etcdutl35 => (&ETCD_3_5, "go.etcd.io/etcd/etcdutl/v3"),
        Tool::Rclone => (&RCLONE, "."),
        Tool::Other(program) => (&program.module, program.package),
    }
}

impl Module {
    /// The name of its folder. It changes with everything that affects a binary.
    fn set_name(&self) -> String {
        let mut hash = Sha256::new();
        for (name, text) in self.files {
            hash.update(format!("{name} {}\n{text}", text.len()));
        }
        hash.update(self.ldflags);
        hash.update([std::env::consts::OS, "-", std::env::consts::ARCH].concat());
        format!("{}-{}", self.name, HEXLOWER.encode(&hash.finalize()[..8]))
    }
}

/// Returns the binaries in the cache; missing ones are built now.
pub(super) async fn ensure(
    tools: &[Tool],
    environment: &Environment,
    progress: &OnProgress,
) -> Result<BTreeMap<Tool, PathBuf>, Error> {
    let cache = environment.cache.as_ref().ok_or(Error::NoCacheFolder)?.join("controlplane");
    let sets: BTreeMap<_, _> =
        tools.iter().map(|tool| source(*tool).0).map(|m| (m.name, m.set_name())).collect();
    let paths: BTreeMap<Tool, PathBuf> = tools
        .iter()
        .map(|tool| (*tool, cache.join(&sets[source(*tool).0.name]).join("bin").join(tool.name())))
        .collect();
    let missing: Vec<Tool> = tools.iter().copied().filter(|tool| !paths[tool].is_file()).collect();
    if missing.is_empty() {
        return Ok(paths);
    }
    let Some(go) = environment.which("go") else {
        return Err(Error::GoMissing {
            missing: missing.into_iter().map(Tool::name).collect(),
            needed: OLDEST_GO,
        });
    };
    let mut part = (0, missing.len());
    for (module, set) in &sets {
        let missing = missing.iter().copied().filter(|tool| source(*tool).0.name == *module);
        let set = cache.join(set);
        build_set(&go, &missing.collect::<Vec<_>>(), &paths, &set, &mut part, progress).await?;
    }
    Ok(paths)
}

/// Builds binaries of one module. `part` is the number of the previous part, and the number of all parts.
async fn build_set(
    go: &Path,
    tools: &[Tool],
    paths: &BTreeMap<Tool, PathBuf>,
    set: &Path,
    part: &mut (usize, usize),
    progress: &OnProgress,
) -> Result<(), Error> {
    if tools.is_empty() {
        return Ok(());
    }
    let bin = set.join("bin");
    fs::create_dir_all(&bin).map_err(Error::io("create", &bin))?;
    // The lock is released when the function ends, or the process is killed.
    let _lock = lock(&set.join("lock"), progress).await?;
    let work = set.join("work");
    // Removes the remains of a builder that was killed.
    if work.exists() {
        fs::remove_dir_all(&work).map_err(Error::io("remove", &work))?;
    }
    for tool in tools {
        part.0 += 1;
        // Another process may have built the binary in the meantime.
        if paths[tool].is_file() {
            continue;
        }
        let started = Instant::now();
        let built = build(go, *tool, &work, *part, progress).await?;
        fs::rename(&built, &paths[tool]).map_err(Error::io("move into its place", &built))?;
        progress(&Progress::Built { tool: *tool, part: part.0, parts: part.1, elapsed: started.elapsed() });
    }
    // Only sources and intermediate files are left, so a failure to remove them does not matter.
    let _ = fs::remove_dir_all(&work);
    Ok(())
}

/// Acquires the lock of a folder, and waits for another builder if necessary.
pub(super) async fn lock(path: &Path, progress: &OnProgress) -> Result<File, Error> {
    let file = File::create(path).map_err(Error::io("create", path))?;
    let mut told = false;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) => {
                if !told {
                    progress(&Progress::Waiting);
                    told = true;
                }
                // The lock is polled, so that waiting can be cancelled.
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
            Err(TryLockError::Error(source)) => {
                return Err(Error::Io { action: "lock", path: path.into(), source });
            }
        }
    }
}

/// Builds one binary below `work` and returns its path.
async fn build(
    go: &Path,
    tool: Tool,
    work: &Path,
    (part, parts): (usize, usize),
    progress: &OnProgress,
) -> Result<PathBuf, Error> {
    let (module, package) = source(tool);
    let folder = work.join("source").join(module.name);
    fs::create_dir_all(&folder).map_err(Error::io("create", &folder))?;
    for (name, text) in module.files {
        let path = folder.join(name);
        fs::write(&path, text).map_err(Error::io("write", &path))?;
    }
    let output = work.join(tool.name());
    let mut command = Command::new(go);
    command
        .arg("build")
        .args(["-mod=readonly", "-trimpath", "-buildvcs=false", "-ldflags", module.ldflags, "-o"])
        .arg(&output)
        .arg(package)
        .current_dir(&folder)
        .env("CGO_ENABLED", "0")
        .env("GO111MODULE", "on")
        // The settings for the user's own Go projects must not apply here.
        .env("GOWORK", "off")
        .env("GOFLAGS", "")
        .env_remove("GOOS")
        .env_remove("GOARCH")
        .env_remove("GOEXPERIMENT")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    let started = Instant::now();
    let mut child = command.spawn().map_err(Error::io("run", go))?;
    let mut lines = BufReader::new(child.stderr.take().ok_or_else(|| Error::Io {
        action: "read from",
        path: go.into(),
        source: std::io::ErrorKind::BrokenPipe.into(),
    })?)
    .lines();
    let mut last = Last::default();
    let mut tick = tokio::time::interval(Duration::from_secs(1));
    loop {
        tokio::select! {
            line = lines.next_line() => match line {
                Ok(Some(line)) => last.push(line),
                Ok(None) | Err(_) => break,
            },
            _ = tick.tick() => progress(&Progress::Building { tool, part, parts, elapsed: started.elapsed() }),
        }
    }
    let status = child.wait().await.map_err(Error::io("wait for", go))?;
    if status.success() { Ok(output) } else { Err(explain(tool, status, &last.text())) }
}

/// The last lines of an output.
#[derive(Default)]
struct Last(VecDeque<String>);

impl Last {
    const LINES: usize = 15;

    fn push(&mut self, line: String) {
        // Hundreds of these lines may precede the important ones.
        if line.starts_with("go: downloading ") {
            return;
        }
        if self.0.len() == Self::LINES {
            self.0.pop_front();
        }
        self.0.push_back(line);
    }

    fn text(&self) -> String {
        self.0.iter().map(|line| format!("  | {line}")).collect::<Vec<_>>().join("\n")
    }
}

/// Finds the reason why `go build` failed in its output.
fn explain(tool: Tool, status: ExitStatus, output: &str) -> Error {
    let says = |texts: &[&str]| texts.iter().any(|text| output.contains(text));
    let tool = tool.name();
    let output = output.to_owned();
    // Go reports this since version 1.21; older versions cannot even parse the file.
    if says(&["requires go >= ", "invalid go version", "toolchain not available"]) {
        let found = output
            .split_once("(running ")
            .and_then(|(_, rest)| rest.split([';', ')']).next())
            .map_or_else(|| "the `go` in PATH".to_owned(), str::to_owned);
        return Error::GoTooOld { found, needed: OLDEST_GO };
    }
    let network = [
        "dial tcp",
        "no such host",
        "i/o timeout",
        "TLS handshake",
        "proxyconnect",
        "network is unreachable",
        "connection reset",
        "unexpected EOF",
        "module lookup disabled",
    ];
    if says(&network) { Error::Download { tool, output } } else { Error::Build { tool, status, output } }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::sync::{Arc, Mutex};

    use super::*;

    #[test]
    fn failures_are_explained() {
        let cases = [
            (
                "go: go.mod requires go >= 1.26.0 (running go 1.24.2; GOTOOLCHAIN=local)",
                "go 1.24.2 is too old",
            ),
            ("go.mod:3: invalid go version '1.26.0': must match format 1.23", "the `go` in PATH is too old"),
            (
                "go: k8s.io/api@v0.36.3: Get \"https://proxy\": dial tcp: lookup proxy: no such host",
                "download",
            ),
            ("main.go:1:1: undefined: x", "building etcd failed"),
        ];
        for (output, expected) in cases {
            let error = explain(Tool::Etcd, ExitStatus::from_raw(256), output).to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn the_last_lines_are_kept() {
        let mut last = Last::default();
        for i in 0..40 {
            last.push(format!("line {i}"));
            last.push("go: downloading k8s.io/api v0.36.3".into());
        }
        assert!(
            last.text().starts_with("  | line 25\n") && last.text().ends_with("line 39"),
            "{}",
            last.text()
        );
    }

    #[test]
    fn versions_and_packages_match_the_go_modules() {
        let tools = || Tool::CONTROL_PLANE.iter().chain(Tool::NODE);
        for (module, _) in tools().map(|tool| source(*tool)) {
            assert!(module.files[0].1.contains(&format!("\ngo {OLDEST_GO}")), "{}", module.name);
        }
        let version = KUBERNETES.ldflags.split("gitVersion=").nth(1).unwrap().split(' ').next().unwrap();
        assert!(KUBERNETES.files[0].1.contains(&format!("k8s.io/kubernetes {version}\n")), "{version}");
        for tool in tools() {
            let (module, package) = source(*tool);
            assert!(package == "." || module.files[2].1.contains(&format!("\"{package}\"")), "{package}");
        }
    }

    /// A `go` that records its arguments, or fails if a file `fail` exists beside it. Another process writes it,
    /// because a file that this process has open for writing cannot be executed.
    fn fake_go(folder: &Path) -> Environment {
        let script = r#"#!/bin/sh
here=$(dirname "$0")
echo "go: downloading k8s.io/api" >&2
for last; do case "$before" in -o) out=$last;; esac; before=$last; done
if [ -e "$here/fail" ]; then cat "$here/fail" >&2; exit 1; fi
test -f go.mod && test -f go.sum && test -f tools.go && echo "$last" > "$out" && echo "$last" >> "$here/built"
"#;
        let status = std::process::Command::new("sh")
            .args(["-c", r#"printf %s "$2" > "$1/go" && chmod 755 "$1/go""#, "sh"])
            .arg(folder)
            .arg(script)
            .status();
        assert!(status.unwrap().success());
        Environment { assets: None, path: Some(folder.into()), cache: Some(folder.join("cache")) }
    }

    #[tokio::test]
    async fn missing_binaries_are_built_once() {
        let root = tempfile::tempdir().unwrap();
        let environment = fake_go(root.path());
        let seen = Arc::new(Mutex::new(Vec::new()));
        let progress: OnProgress = {
            let seen = seen.clone();
            Arc::new(move |p| seen.lock().unwrap().push(p.clone()))
        };
        let built = || std::fs::read_to_string(root.path().join("built")).unwrap_or_default();

        std::fs::write(root.path().join("fail"), "x.go:1: undefined: y\n").unwrap();
        let error = ensure(&[Tool::Etcd], &environment, &progress).await.unwrap_err().to_string();
        let expected = "building etcd failed (exit status: 1); Go's last lines:\n  | x.go:1: undefined: y";
        assert_eq!(error, expected);
        std::fs::remove_file(root.path().join("fail")).unwrap();

        let first = ensure(&[Tool::Etcd], &environment, &progress).await.unwrap();
        assert_eq!(std::fs::read_to_string(&first[&Tool::Etcd]).unwrap(), "go.etcd.io/etcd/server/v3\n");
        let second = ensure(&[Tool::Etcd, Tool::Kwok], &environment, &progress).await.unwrap();
        assert_eq!(second[&Tool::Etcd], first[&Tool::Etcd]);
        assert_eq!(built(), "go.etcd.io/etcd/server/v3\nsigs.k8s.io/kwok/cmd/kwok\n");

        let parts: Vec<_> = seen
            .lock()
            .unwrap()
            .iter()
            .filter_map(|p| match p {
                Progress::Built { tool, part, parts, .. } => Some((*tool, *part, *parts)),
                _ => None,
            })
            .collect();
        assert_eq!(parts, [(Tool::Etcd, 1, 1), (Tool::Kwok, 1, 1)]);
        let set = first[&Tool::Etcd].parent().unwrap().parent().unwrap();
        assert!(!set.join("work").exists());
        // Go is not needed if all binaries exist.
        let without_go = Environment { path: None, ..environment.clone() };
        assert_eq!(ensure(&[Tool::Kwok], &without_go, &progress).await.unwrap().len(), 1);
    }

    #[tokio::test]
    async fn parallel_builders_build_once() {
        let root = tempfile::tempdir().unwrap();
        let environment = fake_go(root.path());
        let progress: OnProgress = Arc::new(|_| {});
        let both = tokio::join!(
            ensure(&[Tool::Etcd, Tool::Kubectl], &environment, &progress),
            ensure(&[Tool::Kubectl, Tool::Etcd], &environment, &progress),
        );
        assert_eq!(both.0.unwrap(), both.1.unwrap());
        assert_eq!(std::fs::read_to_string(root.path().join("built")).unwrap().lines().count(), 2);
    }

    #[tokio::test]
    async fn a_second_builder_waits_for_the_first() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("lock");
        let seen = Arc::new(Mutex::new(Vec::new()));
        let progress: OnProgress = {
            let seen = seen.clone();
            Arc::new(move |p| seen.lock().unwrap().push(p.clone()))
        };
        let first = lock(&path, &progress).await.unwrap();
        let second = tokio::time::timeout(Duration::from_millis(500), lock(&path, &progress)).await;
        assert!(second.is_err());
        assert_eq!(*seen.lock().unwrap(), [Progress::Waiting]);
        drop(first);
        lock(&path, &progress).await.unwrap();
    }
}
