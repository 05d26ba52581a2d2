//! The errors of a local control plane, each with a solution.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use super::Component;

/// The reason why a local control plane could not be started or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No environment variable determines a folder for the binaries.
    #[error(
        "no folder to keep the built Kubernetes in: none of OPERETTA_CACHE, XDG_CACHE_HOME and HOME is set\n  \
         help: set OPERETTA_CACHE to a folder that you may write to"
    )]
    NoCacheFolder,

    /// A file or folder could not be read or written.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// The attempted action, such as `write`.
        action: &'static str,
        /// The path.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },

    /// Binaries must be built, but Go is missing.
    #[error(
        "Go is needed to build {} once, and there is no `go` in PATH\n  \
         help: install Go {needed} or newer (https://go.dev/dl/), or put the binaries into a folder \
         and set KUBEBUILDER_ASSETS to it",
        missing.join(", ")
    )]
    GoMissing {
        /// The missing binaries.
        missing: Vec<&'static str>,
        /// The oldest supported Go.
        needed: &'static str,
    },

    /// The Go in PATH cannot build the pinned Kubernetes.
    #[error(
        "{found} is too old to build Kubernetes: Go {needed} or newer is needed\n  \
         help: install a newer Go (https://go.dev/dl/), or allow it to fetch one itself: GOTOOLCHAIN=auto"
    )]
    GoTooOld {
        /// The version of this Go, or its output.
        found: String,
        /// The oldest supported Go.
        needed: &'static str,
    },

    /// Go could not fetch the modules.
    #[error(
        "Go could not download what {tool} is built from; its last lines:\n{output}\n  \
         help: check the network and the Go proxy settings (`go env GOPROXY`), or put the binaries into a \
         folder and set KUBEBUILDER_ASSETS to it"
    )]
    Download {
        /// The binary that was being built.
        tool: &'static str,
        /// The last lines of Go's output.
        output: String,
    },

    /// `go build` failed.
    #[error("building {tool} failed ({status}); Go's last lines:\n{output}")]
    Build {
        /// The binary that was being built.
        tool: &'static str,
        /// The exit status of Go.
        status: ExitStatus,
        /// The last lines of its output.
        output: String,
    },

    /// A binary in `KUBEBUILDER_ASSETS` is too old, or is another program than its name says.
    #[error(
        "{} is {found}, and at least {needed} is needed\n  \
         help: update what KUBEBUILDER_ASSETS points to, or unset it",
        path.display()
    )]
    Assets {
        /// The binary.
        path: PathBuf,
        /// Its version, or a description of what was found instead.
        found: String,
        /// The oldest supported version.
        needed: String,
    },

    /// The requested port is in use.
    #[error(
        "port {port} of 127.0.0.1 is in use by another process\n  \
         help: choose another port, or none to get a free one"
    )]
    PortInUse {
        /// The port.
        port: u16,
    },

    /// Several free ports were tried, and another process took each of them in the meantime.
    #[error(
        "no free port for kube-apiserver: {} were free, and in use when it came to listen{}",
        tried.iter().map(u16::to_string).collect::<Vec<_>>().join(", "),
        tail(log)
    )]
    NoFreePort {
        /// The ports that were tried.
        tried: Vec<u16>,
        /// The last lines of the log of kube-apiserver.
        log: String,
    },

    /// A component could not be started.
    #[error("cannot start {component} ({}): {reason}", program.display())]
    Spawn {
        /// The component.
        component: Component,
        /// Its binary.
        program: PathBuf,
        /// The error of the operating system.
        reason: String,
    },

    /// A component ended unexpectedly.
    #[error("{component} ended ({status}){}{}", hint.as_deref().map(|h| format!(": {h}")).unwrap_or_default(), tail(log))]
    Ended {
        /// The component.
        component: Component,
        /// Its exit status.
        status: String,
        /// The cause that its log shows, such as a wrong flag or a used port.
        hint: Option<String>,
        /// The last lines of its log.
        log: String,
    },

    /// The timeout was exceeded.
    #[error("the control plane is not ready after {} s: still waiting for {awaited}{}", waited.as_secs(), tail(log))]
    Timeout {
        /// The awaited state.
        awaited: String,
        /// The time that was waited.
        waited: Duration,
        /// The last lines of the log of the component concerned.
        log: String,
    },

    /// This machine does not meet the requirements of a real node.
    #[error("a real node needs what this machine does not have:{}", list(missing))]
    NodeRequirements {
        /// The missing requirements, each with a solution.
        missing: Vec<String>,
    },

    /// An image of a real node could not be built.
    #[error("{at}: {reason}")]
    Image {
        /// The place in its description.
        at: String,
        /// The reason.
        reason: String,
    },

    /// An OCI layout cannot be used.
    #[error("{}: {reason}\n  help: `operetta manager image` writes such a folder", path.display())]
    Layout {
        /// The folder of the layout.
        path: PathBuf,
        /// The reason.
        reason: String,
    },

    /// The certificate with which kube-apiserver calls the kubelet could not be created.
    #[error("cannot make the certificate for the kubelet: {reason}")]
    Certificate {
        /// The reason.
        reason: String,
    },

    /// The guard process could not be started or has ended.
    #[error("the guard process of the control plane {reason}")]
    Guard {
        /// What happened to the guard, as the end of the sentence.
        reason: String,
    },

    /// The control plane does not have the component, such as kwok without nodes.
    #[error("this control plane runs no {component}")]
    NoSuchComponent {
        /// The component.
        component: Component,
    },

    /// The API server refused or failed a request.
    #[error("cannot {action}: {source}")]
    Api {
        /// The attempted action.
        action: String,
        /// The error of the client.
        source: Box<kube::Error>,
    },

    /// The kubeconfig that was just written cannot be used.
    #[error("cannot make a client from {}: {reason}", path.display())]
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
}

impl Error {
    /// Adds the action and the path to an I/O error; for `map_err`.
    pub(super) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Self::Io { action, path, source }
    }

    /// Adds the purpose to a failed request; for `map_err`.
    pub(super) fn api(action: impl Into<String>) -> impl FnOnce(kube::Error) -> Self {
        let action = action.into();
        move |source| Self::Api { action, source: Box::new(source) }
    }
}

/// Writes items as a list below the message.
fn list(items: &[String]) -> String {
    items.iter().flat_map(|item| ["\n  - ", item]).collect()
}

/// Writes a log as an indented block below the message.
fn tail(log: &str) -> String {
    if log.is_empty() {
        return String::new();
    }
    let mut out = String::from("; the last lines of its log:");
    for line in log.lines() {
        out.push_str("\n  | ");
        out.push_str(line);
    }
    out
}
