//! The protocol between a control plane and its guard: one JSON value per line, requests on the guard's standard input,
//! events on its standard output.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::node::network::Place;

/// A request to the guard.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Request {
    /// Starts a program. Its name must differ from those of the running programs.
    Start(Program),
    /// Sends a signal to a program. Nothing happens if it is not running.
    Signal {
        /// The name of the program.
        name: String,
        /// The signal.
        signal: Signal,
    },
    /// Stops all programs and removes the folder, as at the end of the input.
    Stop,
}

/// A program to run in the guard's folder.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Program {
    /// A unique name.
    pub(super) name: String,
    /// The executable.
    pub(super) path: PathBuf,
    /// The arguments.
    pub(super) args: Vec<String>,
    /// The file to which its output is appended.
    pub(super) log: PathBuf,
}

/// The signals that can be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Signal {
    /// SIGSTOP.
    Pause,
    /// SIGCONT.
    Resume,
    /// SIGKILL.
    Kill,
}

/// An event from the guard.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Event {
    /// The first event: the folder exists.
    Ready {
        /// The path of the folder.
        folder: PathBuf,
        /// The network and cgroup of a real node.
        node: Option<Place>,
    },
    /// The guard cannot continue and ends.
    Failed {
        /// The reason.
        reason: String,
    },
    /// A program was started.
    Started {
        /// The name of the program.
        name: String,
        /// The process id.
        pid: u32,
    },
    /// A program could not be started.
    NotStarted {
        /// The name of the program.
        name: String,
        /// The reason.
        reason: String,
    },
    /// A program has ended.
    Ended {
        /// The name of the program.
        name: String,
        /// The exit status as text: `exit status: 1`.
        status: String,
    },
}
