//! The binaries of a control plane, and the environment in which they are located.

use std::ffi::OsString;
use std::fmt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// A Go module, whose text is part of this executable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Module {
    /// Its name, with which its folder in the cache begins.
    pub name: &'static str,
    /// `go.mod`, `go.sum` and the file that imports what is built: names and texts.
    pub files: [(&'static str, &'static str); 3],
    /// The flags of the linker.
    pub ldflags: &'static str,
}

/// A program of a module.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Program {
    /// The file name of the binary.
    pub name: &'static str,
    /// Its Go package.
    pub package: &'static str,
    /// The module.
    pub module: Module,
}

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
    /// A program that no control plane needs, of a module of the caller. Tests have such ones.
    Other(&'static Program),
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
            Self::Other(program) => program.name,
        }
    }

    /// The arguments that print its version.
    pub(super) const fn version_args(self) -> &'static [&'static str] {
        match self {
            Self::Kubectl => &["version", "--client"],
            Self::Etcdctl => &["version"],
            _ => &["--version"],
        }
    }

    /// The oldest supported version, because of server-side apply and of flags.
    pub(super) const fn oldest(self) -> Version {
        match self {
            Self::Etcd | Self::Etcdctl => Version(3, 5),
            Self::Kwok => Version(0, 7),
            _ => Version(1, 30),
        }
    }

    /// Whether its version must be that of the API server.
    pub(super) const fn follows_apiserver(self) -> bool {
        matches!(self, Self::KubeApiserver | Self::KubeControllerManager | Self::KubeScheduler)
    }
}

/// A version: major and minor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Version(pub(super) u32, pub(super) u32);

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

impl Version {
    /// Finds the first `N.N` in the version output of a binary.
    pub(super) fn find(text: &str) -> Option<Self> {
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
    /// An image of a real node is being built: its name.
    Image(String),
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
            Self::Image(name) => write!(f, "building the image {name}"),
            Self::Starting => f.write_str("starting the local control plane"),
            Self::Ready { elapsed } => {
                write!(f, "the local control plane is ready after {:.1} s", elapsed.as_secs_f32())
            }
        }
    }
}

/// Receives every [`Progress`].
pub type OnProgress = Arc<dyn Fn(&Progress) + Send + Sync>;
