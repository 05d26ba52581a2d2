//! Locates the binaries of the control plane: in `KUBEBUILDER_ASSETS`, then in `PATH` if the version is
//! suitable, otherwise in the cache, where they are built once.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::build;
use super::error::Error;

/// A binary of the control plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tool {
    /// etcd, the store of the API server.
    Etcd,
    /// The client of etcd, for inspection.
    Etcdctl,
    /// The API server.
    KubeApiserver,
    /// The controllers of built-in kinds.
    KubeControllerManager,
    /// The scheduler.
    KubeScheduler,
    /// The command line client.
    Kubectl,
    /// The simulator of fake nodes.
    Kwok,
    /// The agent of a real node.
    Kubelet,
    /// The proxy for Services on a real node.
    KubeProxy,
    /// The container runtime of a real node.
    Containerd,
    /// The process between containerd and a pod.
    ContainerdShim,
    /// The client of containerd, for inspection.
    Ctr,
    /// The CNI plugin that connects pods.
    CniPtp,
    /// The CNI plugin for the loopback device.
    CniLoopback,
    /// The CNI plugin that assigns addresses.
    CniHostLocal,
    /// The CNI plugin for host ports.
    CniPortmap,
    /// The DNS server of a real node.
    CoreDns,
    /// etcd's tool for snapshots, for an image.
    Etcdutl,
    /// etcd 3.5, for an image.
    Etcd35,
    /// etcdctl 3.5, for an image.
    Etcdctl35,
    /// etcdutl 3.5, for an image.
    Etcdutl35,
    /// An S3 server and client, for an image.
    Rclone,
    /// The package manager, for tests of charts. No control plane needs it.
    Helm,
}

impl Tool {
    /// The tools of a control plane with fake nodes, in the order of their dependencies.
    pub const CONTROL_PLANE: [Self; 7] = [
        Self::Etcd,
        Self::KubeApiserver,
        Self::KubeControllerManager,
        Self::KubeScheduler,
        Self::Kubectl,
        Self::Kwok,
        Self::Etcdctl,
    ];

    /// The additional tools of a real node and its images. They are always built.
    pub const NODE: &[Self] = &[
        Self::Kubelet,
        Self::KubeProxy,
        Self::Containerd,
        Self::ContainerdShim,
        Self::Ctr,
        Self::CniPtp,
        Self::CniLoopback,
        Self::CniHostLocal,
        Self::CniPortmap,
        Self::CoreDns,
        Self::Etcdutl,
        Self::Etcd35,
        Self::Etcdctl35,
        Self::Etcdutl35,
        Self::Rclone,
    ];

    /// The path of the binary in the cache, which is built if it is missing.
    ///
    /// # Errors
    /// Go is missing, or the build fails.
    pub async fn built(self, environment: &Environment, progress: &OnProgress) -> Result<PathBuf, Error> {
        let binaries = Binaries::built(&[self], environment, progress).await?;
        Ok(binaries.path(self).to_owned())
    }

    /// The file name of the binary.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Etcd | Self::Etcd35 => "etcd",
            Self::Etcdctl | Self::Etcdctl35 => "etcdctl",
            Self::Etcdutl | Self::Etcdutl35 => "etcdutl",
            Self::KubeApiserver => "kube-apiserver",
            Self::KubeControllerManager => "kube-controller-manager",
            Self::KubeScheduler => "kube-scheduler",
            Self::Kubectl => "kubectl",
            Self::Kwok => "kwok",
            Self::Kubelet => "kubelet",
            Self::KubeProxy => "kube-proxy",
            Self::Containerd => "containerd",
            Self::ContainerdShim => "containerd-shim-runc-v2",
            Self::Ctr => "ctr",
            Self::CniPtp => "ptp",
            Self::CniLoopback => "loopback",
            Self::CniHostLocal => "host-local",
            Self::CniPortmap => "portmap",
            Self::CoreDns => "coredns",
            Self::Rclone => "rclone",
            Self::Helm => "helm",
        }
    }

    /// The arguments that print its version.
    const fn version_args(self) -> &'static [&'static str] {
        match self {
            Self::Kubectl => &["version", "--client"],
            Self::Etcdctl => &["version"],
            _ => &["--version"],
        }
    }

    /// The oldest supported version, because of server-side apply and of flags.
    const fn oldest(self) -> Version {
        match self {
            Self::Etcd | Self::Etcdctl => Version(3, 5),
            Self::Kwok => Version(0, 7),
            _ => Version(1, 30),
        }
    }

    /// Whether its version must be that of the API server.
    const fn follows_apiserver(self) -> bool {
        matches!(self, Self::KubeApiserver | Self::KubeControllerManager | Self::KubeScheduler)
    }
}

/// A version: major and minor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Version(u32, u32);

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

impl Version {
    /// Finds the first `N.N` in the version output of a binary.
    fn find(text: &str) -> Option<Self> {
        let text = text.trim_start_matches(|c: char| !c.is_ascii_digit());
        text.split(|c: char| !(c.is_ascii_digit() || c == '.')).find_map(|word| {
            let mut parts = word.split('.');
            Some(Self(parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
        })
    }
}

/// The environment variables that locate binaries, as a value that tests can replace.
#[derive(Debug, Clone, Default)]
pub struct Environment {
    /// `KUBEBUILDER_ASSETS`: a folder of binaries.
    pub assets: Option<PathBuf>,
    /// `PATH`; also used to find Go.
    pub path: Option<OsString>,
    /// The folder of built binaries: `OPERETTA_CACHE`, otherwise `operetta` in `XDG_CACHE_HOME`, otherwise
    /// `operetta` in `~/.cache`.
    pub cache: Option<PathBuf>,
}

impl Environment {
    /// Reads the environment of this process.
    pub fn of_process() -> Self {
        let folder = |name| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
        Self {
            assets: folder("KUBEBUILDER_ASSETS"),
            path: std::env::var_os("PATH"),
            cache: folder("OPERETTA_CACHE")
                .or_else(|| Some(folder("XDG_CACHE_HOME")?.join("operetta")))
                .or_else(|| Some(folder("HOME")?.join(".cache").join("operetta"))),
        }
    }

    /// Finds an executable in `PATH`.
    pub(super) fn which(&self, name: &str) -> Option<PathBuf> {
        std::env::split_paths(self.path.as_deref()?)
            .filter(|folder| folder.is_absolute())
            .map(|folder| folder.join(name))
            .find(|path| is_executable(path))
    }
}

fn is_executable(path: &Path) -> bool {
    path.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

/// The progress of locating and building binaries and of starting the components. `Display` writes a line for
/// people.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Progress {
    /// Another process builds the same binaries; this one waits for it.
    Waiting,
    /// A part is being built. This is reported every second.
    Building {
        /// The tool.
        tool: Tool,
        /// The number of the part, from 1.
        part: usize,
        /// The number of parts.
        parts: usize,
        /// The time so far.
        elapsed: Duration,
    },
    /// A part has been built.
    Built {
        /// The tool.
        tool: Tool,
        /// The number of the part, from 1.
        part: usize,
        /// The number of parts.
        parts: usize,
        /// The build time.
        elapsed: Duration,
    },
    /// The images of a real node are being built.
    Images,
    /// The components are being started.
    Starting,
    /// The control plane is ready.
    Ready {
        /// The duration of the start, without building.
        elapsed: Duration,
    },
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Waiting => f.write_str("waiting for another process that builds Kubernetes"),
            Self::Building { tool, part, parts, elapsed } => {
                write!(f, "building {} ({part} of {parts}), {} s", tool.name(), elapsed.as_secs())
            }
            Self::Built { tool, part, parts, elapsed } => {
                write!(f, "built {} ({part} of {parts}) in {:.1} s", tool.name(), elapsed.as_secs_f32())
            }
            Self::Images => f.write_str("making the images of the node"),
            Self::Starting => f.write_str("starting the local control plane"),
            Self::Ready { elapsed } => {
                write!(f, "the local control plane is ready after {:.1} s", elapsed.as_secs_f32())
            }
        }
    }
}

/// Receives every [`Progress`].
pub type OnProgress = Arc<dyn Fn(&Progress) + Send + Sync>;

/// The located binaries.
#[derive(Debug, Clone, Default)]
pub(super) struct Binaries(BTreeMap<Tool, PathBuf>);

impl Binaries {
    /// Returns binaries that are built here; missing ones are built now.
    pub(super) async fn built(
        tools: &[Tool],
        environment: &Environment,
        progress: &OnProgress,
    ) -> Result<Self, Error> {
        Ok(Self(build::ensure(tools, environment, progress).await?))
    }

    /// The path of a located binary.
    pub(super) fn path(&self, tool: Tool) -> &Path {
        self.0.get(&tool).map_or_else(|| Path::new(tool.name()), PathBuf::as_path)
    }
}

/// Locates the binaries, and builds the missing ones.
pub(super) async fn locate(
    tools: &[Tool],
    environment: &Environment,
    progress: &OnProgress,
) -> Result<Binaries, Error> {
    let mut found = BTreeMap::new();
    for tool in tools {
        if let Some(path) = in_assets(*tool, environment).await? {
            found.insert(*tool, path);
        }
    }
    // Kubernetes' own binaries belong together: one from PATH is used only with an API server of the same
    // version.
    let mut of_path = BTreeMap::new();
    for tool in tools.iter().filter(|tool| !found.contains_key(tool)) {
        if let Some(fitting) = in_path(*tool, environment).await {
            of_path.insert(*tool, fitting);
        }
    }
    let set: Vec<_> = tools.iter().filter(|tool| tool.follows_apiserver()).collect();
    let whole = set.iter().all(|tool| of_path.contains_key(tool))
        && set.windows(2).all(|pair| of_path[pair[0]].1 == of_path[pair[1]].1);
    of_path.retain(|tool, _| whole || !tool.follows_apiserver());
    found.extend(of_path.into_iter().map(|(tool, (path, _))| (tool, path)));

    let missing: Vec<Tool> = tools.iter().copied().filter(|tool| !found.contains_key(tool)).collect();
    if !missing.is_empty() {
        found.extend(build::ensure(&missing, environment, progress).await?);
    }
    Ok(Binaries(found))
}

/// Checks the binary in `KUBEBUILDER_ASSETS`. The variable was set on purpose, so an unsuitable binary is an
/// error.
async fn in_assets(tool: Tool, environment: &Environment) -> Result<Option<PathBuf>, Error> {
    let Some(path) = environment.assets.as_ref().map(|folder| folder.join(tool.name())) else {
        return Ok(None);
    };
    if !path.exists() {
        return Ok(None);
    }
    match version(tool, &path).await {
        Ok(version) if version >= tool.oldest() => Ok(Some(path)),
        other => Err(Error::Assets {
            path,
            found: other.map_or_else(|what| what, |version| format!("version {version}")),
            needed: tool.oldest().to_string(),
        }),
    }
}

/// Checks the binary in `PATH`; `None` if its version is unsuitable.
async fn in_path(tool: Tool, environment: &Environment) -> Option<(PathBuf, Version)> {
    let path = environment.which(tool.name())?;
    let version = version(tool, &path).await.ok()?;
    (version >= tool.oldest()).then_some((path, version))
}

/// The timeout for printing a version.
const VERSION_TIMEOUT: Duration = Duration::from_secs(10);

/// The version of a binary, or the reason why it is unusable.
async fn version(tool: Tool, path: &Path) -> Result<Version, String> {
    let output = tokio::process::Command::new(path)
        .args(tool.version_args())
        // Without this, kubectl may ask a plugin or a cluster.
        .env("KUBECONFIG", "/dev/null")
        .stdin(std::process::Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = tokio::time::timeout(VERSION_TIMEOUT, output)
        .await
        .map_err(|_| "without an answer when asked for its version".to_owned())?
        .map_err(|error| format!("not to be run ({error})"))?;
    if !output.status.success() {
        return Err(format!("failing when asked for its version ({})", output.status));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    Version::find(&text).ok_or_else(|| "of an unknown version".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_parsed_from_output() {
        let cases = [
            ("Kubernetes v1.36.3\n", Some(Version(1, 36))),
            ("Client Version: v1.32.4-dispatcher\nKustomize Version: v5.5.0\n", Some(Version(1, 32))),
            ("etcd Version: 3.6.8\nGit SHA: Not provided\n", Some(Version(3, 6))),
            ("kwok version v0.8.0 go1.26.8 (linux/amd64)\n", Some(Version(0, 8))),
            ("go version go1.26.8 linux/amd64", Some(Version(1, 26))),
            ("v2 beta 1.5", Some(Version(1, 5))),
            ("no version", None),
            ("", None),
        ];
        for (text, expected) in cases {
            assert_eq!(Version::find(text), expected, "{text:?}");
        }
    }

    /// Creates a script that prints a version. Another process writes it, because a program that another test
    /// starts would inherit the open file, and a file that is open for writing cannot be executed.
    fn fake(folder: &Path, name: &str, version: &str) {
        std::fs::create_dir_all(folder).unwrap();
        let status = std::process::Command::new("sh")
            .args(["-c", r#"printf '#!/bin/sh\necho %s\n' "$2" > "$1" && chmod 755 "$1""#, "sh"])
            .arg(folder.join(name))
            .arg(format!("'{version}'"))
            .status();
        assert!(status.unwrap().success());
    }

    fn quiet() -> OnProgress {
        Arc::new(|_| {})
    }

    #[tokio::test]
    async fn assets_precede_path_and_old_versions_are_skipped() {
        let root = tempfile::tempdir().unwrap();
        let (assets, path) = (root.path().join("assets"), root.path().join("path"));
        fake(&assets, "etcd", "3.6.8");
        fake(&path, "etcd", "3.6.9");
        fake(&path, "kubectl", "v1.32.4");
        fake(&path, "etcdctl", "3.4.0");
        let environment = Environment {
            assets: Some(assets.clone()),
            path: Some(path.clone().into()),
            cache: Some(root.path().join("cache")),
        };
        let found = locate(&[Tool::Etcd, Tool::Kubectl], &environment, &quiet()).await.unwrap();
        assert_eq!(found.path(Tool::Etcd), assets.join("etcd"));
        assert_eq!(found.path(Tool::Kubectl), path.join("kubectl"));
        // An etcdctl that is too old is ignored, and there is no Go to build one.
        let error = locate(&[Tool::Etcdctl], &environment, &quiet()).await.unwrap_err();
        assert!(matches!(error, Error::GoMissing { ref missing, .. } if *missing == ["etcdctl"]), "{error}");
    }

    #[tokio::test]
    async fn unsuitable_assets_are_an_error() {
        let root = tempfile::tempdir().unwrap();
        fake(root.path(), "kube-apiserver", "Kubernetes v1.25.0");
        let environment = Environment { assets: Some(root.path().into()), ..Environment::default() };
        let error = locate(&[Tool::KubeApiserver], &environment, &quiet()).await.unwrap_err().to_string();
        assert!(error.contains("kube-apiserver is version 1.25, and at least 1.30 is needed"), "{error}");
        assert!(error.contains("KUBEBUILDER_ASSETS"), "{error}");
    }

    #[tokio::test]
    async fn kubernetes_binaries_in_path_must_match_the_api_server() {
        let tools = [Tool::KubeApiserver, Tool::KubeScheduler];
        for (scheduler, together) in [(Some("v1.34.1"), true), (Some("v1.35.0"), false), (None, false)] {
            let root = tempfile::tempdir().unwrap();
            fake(root.path(), "kube-apiserver", "v1.34.0");
            if let Some(version) = scheduler {
                fake(root.path(), "kube-scheduler", version);
            }
            let environment = Environment {
                assets: None,
                path: Some(root.path().into()),
                cache: Some(root.path().join("cache")),
            };
            let result = locate(&tools, &environment, &quiet()).await;
            match result {
                Ok(found) => {
                    assert!(together, "{scheduler:?}");
                    assert!(found.path(Tool::KubeApiserver).starts_with(root.path()));
                }
                Err(Error::GoMissing { missing, .. }) => {
                    assert!(!together, "{scheduler:?}");
                    assert_eq!(missing, ["kube-apiserver", "kube-scheduler"]);
                }
                Err(error) => panic!("{error}"),
            }
        }
    }

    #[tokio::test]
    async fn missing_binaries_without_go_are_explained() {
        let root = tempfile::tempdir().unwrap();
        let environment =
            Environment { assets: None, path: Some(OsString::new()), cache: Some(root.path().join("cache")) };
        let error = locate(&Tool::CONTROL_PLANE, &environment, &quiet()).await.unwrap_err().to_string();
        for part in ["Go is needed", "kube-apiserver", "kwok", "https://go.dev/dl/", "KUBEBUILDER_ASSETS"] {
            assert!(error.contains(part), "{part} in {error}");
        }
    }
}
