//! The compiled rules of a file.

use std::collections::BTreeSet;
use std::sync::Arc;

use operetta_lang::diag::Location;
use operetta_lang::template::{Engine, Expr, Lets, Text};
use operetta_package::Tree;
use operetta_package::decode::At;
use serde_json::Value;

use super::pattern::{Command, Pattern};

/// A file, compiled.
#[derive(Debug)]
pub(super) struct Rules {
    pub(super) engine: Engine,
    /// Its path, for messages.
    pub(super) name: String,
    pub(super) per: Option<At<Text>>,
    pub(super) state: Value,
    pub(super) shared: Value,
    pub(super) lets: Arc<Lets>,
    pub(super) pods: Vec<PodRule>,
    pub(super) exec: Vec<ExecRule>,
    pub(super) http: Vec<HttpRule>,
    pub(super) logs: Vec<LogRule>,
    pub(super) balancers: Vec<BalancerRule>,
    /// The variables that its expressions read.
    pub(super) reads: BTreeSet<String>,
}

/// Whether a rule applies. Without an expression it does.
pub(super) type When = Option<At<Expr>>;

/// When a pod is ready.
#[derive(Debug)]
pub(super) enum Delay {
    Default,
    Never,
    After(At<Text>),
}

#[derive(Debug)]
pub(super) struct PodRule {
    /// Where it is written.
    pub(super) written: At<()>,
    pub(super) when: When,
    pub(super) ready_after: Delay,
    pub(super) ready_when: When,
    pub(super) ends_after: Option<At<Text>>,
    pub(super) exit_code: Option<At<Text>>,
    pub(super) message: Option<At<Text>>,
    pub(super) waiting: Option<At<Text>>,
    pub(super) changes: Vec<Change>,
}

#[derive(Debug)]
pub(super) struct ExecRule {
    /// Where it is written.
    pub(super) written: At<()>,
    pub(super) command: Command,
    pub(super) container: Option<String>,
    pub(super) when: When,
    pub(super) changes: Vec<Change>,
    pub(super) stdout: Option<At<Text>>,
    pub(super) stderr: Option<At<Text>>,
    pub(super) exit_code: Option<At<Text>>,
    pub(super) takes: Option<At<Text>>,
}

#[derive(Debug)]
pub(super) struct HttpRule {
    /// Where it is written.
    pub(super) written: At<()>,
    pub(super) method: Option<String>,
    /// The whole URL, or of a rule for pods the path.
    pub(super) url: Pattern,
    /// Whether it is a rule for pods.
    pub(super) is_pod: bool,
    /// The port of the pod; `None` is any.
    pub(super) port: Option<u16>,
    pub(super) when: When,
    pub(super) per: Option<At<Text>>,
    pub(super) changes: Vec<Change>,
    pub(super) status: Option<At<Text>>,
    pub(super) headers: Vec<(String, At<Text>)>,
    pub(super) json: Option<At<Tree>>,
    pub(super) body: Option<At<Text>>,
    pub(super) takes: Option<At<Text>>,
    pub(super) fails: Option<At<Text>>,
}

#[derive(Debug)]
pub(super) struct LogRule {
    /// Where it is written.
    pub(super) written: At<()>,
    pub(super) container: Option<String>,
    pub(super) when: When,
    pub(super) text: At<Text>,
}

#[derive(Debug)]
pub(super) struct BalancerRule {
    /// Where it is written.
    pub(super) written: At<()>,
    pub(super) when: When,
    pub(super) address: At<Text>,
}

/// A change of the state.
#[derive(Debug)]
pub(super) struct Change {
    pub(super) when: When,
    /// The list, and the name of its items.
    pub(super) each: Option<(At<Expr>, String)>,
    pub(super) operation: Operation,
}

#[derive(Debug)]
pub(super) enum Operation {
    Set(Vec<(Place, Tree)>),
    Add(Place, Tree),
    Remove(Place, When),
    /// Fields of items.
    Change(Place, When, Vec<(Place, Tree)>),
}

/// A place in the state, in the shared state, or in an item.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) is_shared: bool,
    pub(super) keys: Vec<String>,
    /// As it is written.
    pub(super) text: String,
    pub(super) at: Location,
    pub(super) path: String,
}
