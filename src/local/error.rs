//! What can go wrong while a local control plane is brought up, each with what to do about it.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use super::Component;

/// Why there is no local control plane, or no longer one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Neither the environment nor the home folder says where the binaries may be kept.
    #[error(
        "no folder to keep the built Kubernetes in: none of OPERETTA_CACHE, XDG_CACHE_HOME and HOME is set\n  \
         help: set OPERETTA_CACHE to a folder that you may write to"
    )]
    NoCacheFolder,

    /// A file or folder could not be read or written.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried, such as `write`.
        action: &'static str,
        /// On which path.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },

    /// Something must be built, and there is no Go to build it with.
    #[error(
        "Go is needed to build {} once, and there is no `go` in PATH\n  \
         help: install Go {needed} or newer (https://go.dev/dl/), or put the binaries into a folder \
         and set KUBEBUILDER_ASSETS to it",
        missing.join(", ")
    )]
    GoMissing {
        /// The binaries found nowhere.
        missing: Vec<&'static str>,
        /// The oldest Go that will do.
        needed: &'static str,
    },

    /// The Go in PATH cannot build the pinned Kubernetes.
    #[error(
        "{found} is too old to build Kubernetes: Go {needed} or newer is needed\n  \
         help: install a newer Go (https://go.dev/dl/), or allow it to fetch one itself: GOTOOLCHAIN=auto"
    )]
    GoTooOld {
        /// What it calls itself, or what it said.
        found: String,
        /// The oldest Go that will do.
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
        /// How Go ended.
        status: ExitStatus,
        /// The last lines of its output.
        output: String,
    },

    /// A binary in `KUBEBUILDER_ASSETS` is too old, or is not what its name says.
    #[error(
        "{} is {found}, and at least {needed} is needed\n  \
         help: update what KUBEBUILDER_ASSETS points to, or unset it",
        path.display()
    )]
    Assets {
        /// The binary.
        path: PathBuf,
        /// Its version, or what else was found.
        found: String,
        /// The oldest version that will do.
        needed: String,
    },

    /// The port that was asked for is taken.
    #[error(
        "port {port} of 127.0.0.1 is in use by another process\n  \
         help: choose another port, or none to get a free one"
    )]
    PortInUse {
        /// The port.
        port: u16,
    },

    /// Every free port that was tried was taken by somebody else in the meantime.
    #[error(
        "no free port for kube-apiserver: {} were free, and in use when it came to listen{}",
        tried.iter().map(u16::to_string).collect::<Vec<_>>().join(", "),
        tail(log)
    )]
    NoFreePort {
        /// The ports.
        tried: Vec<u16>,
        /// The last lines of its log.
        log: String,
    },

    /// A component could not be started at all.
    #[error("cannot start {component} ({}): {reason}", program.display())]
    Spawn {
        /// Which.
        component: Component,
        /// Its binary.
        program: PathBuf,
        /// What the system said.
        reason: String,
    },

    /// A component ended on its own.
    #[error("{component} ended ({status}){}{}", hint.as_deref().map(|h| format!(": {h}")).unwrap_or_default(), tail(log))]
    Ended {
        /// Which.
        component: Component,
        /// How.
        status: String,
        /// What its log lets one say: which flag or port was at fault.
        hint: Option<String>,
        /// The last lines of its log.
        log: String,
    },

    /// It took too long.
    #[error("the control plane is not ready after {} s: still waiting for {awaited}{}", waited.as_secs(), tail(log))]
    Timeout {
        /// What was waited for.
        awaited: String,
        /// How long.
        waited: Duration,
        /// The last lines of the log of the component concerned.
        log: String,
    },

    /// The process that watches over the components could not be started or has ended.
    #[error("the process that watches over the control plane {reason}")]
    Guard {
        /// What happened to it.
        reason: String,
    },

    /// A component that this control plane does not have, such as kwok without nodes.
    #[error("this control plane runs no {component}")]
    NoSuchComponent {
        /// Which.
        component: Component,
    },

    /// The API server refused or failed a request.
    #[error("cannot {action}: {source}")]
    Api {
        /// What was tried.
        action: String,
        /// What the client said.
        source: Box<kube::Error>,
    },

    /// The kubeconfig just written cannot be used.
    #[error("cannot make a client from {}: {reason}", path.display())]
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
}

impl Error {
    /// For `map_err`: an I/O error with the action and the path.
    pub(super) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Self::Io { action, path, source }
    }

    /// For `map_err`: a failed request with what it was for.
    pub(super) fn api(action: impl Into<String>) -> impl FnOnce(kube::Error) -> Self {
        let action = action.into();
        move |source| Self::Api { action, source: Box::new(source) }
    }
}

/// The log as an indented block below the message.
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
