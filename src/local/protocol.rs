//! What a control plane and its guard say to each other: one JSON value a line, requests on the
//! guard's standard input, events on its standard output.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// To the guard.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Request {
    /// Run a program under a name that no running program has.
    Start(Program),
    /// Send a signal to the program of that name; nothing happens if it does not run.
    Signal {
        /// Of the program.
        name: String,
        /// Which.
        signal: Signal,
    },
    /// End everything and remove the folder: the same as the end of input.
    Stop,
}

/// A program to run in the guard's folder.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Program {
    /// Unique name.
    pub(super) name: String,
    /// Binary.
    pub(super) path: PathBuf,
    /// Its arguments.
    pub(super) args: Vec<String>,
    /// Gets its output, appended.
    pub(super) log: PathBuf,
}

/// Signals that tests and the control plane use.
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

/// From the guard.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Event {
    /// First of all: the folder exists.
    Ready {
        /// Its path.
        folder: PathBuf,
    },
    /// The guard cannot do its work and ends.
    Failed {
        /// Why.
        reason: String,
    },
    /// A program runs.
    Started {
        /// Of the program.
        name: String,
        /// Process number.
        pid: u32,
    },
    /// A program could not be started.
    NotStarted {
        /// Of the program.
        name: String,
        /// Why.
        reason: String,
    },
    /// A program has ended.
    Ended {
        /// Of the program.
        name: String,
        /// How, for people: `exit status: 1`.
        status: String,
    },
}
