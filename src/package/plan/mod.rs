//! Compiled plans: ordered procedures of a resource, with all expressions and templates parsed.
//!
//! The manifest types are in `manifest`, the engine that runs plans is in `crate::plan`.

pub(super) mod calls;
pub(super) mod compile;
mod duration;
pub(super) mod lint;
pub mod manifest;
pub mod schedule;
pub(super) mod secrecy;
pub(super) mod sites;

use std::time::Duration;

use serde_json::Value;

use crate::api::Gvk;
use crate::diag::Location;
use crate::template::{Engine, EvalError, Expr, Scope, Search, Text};

pub use duration::{parse_duration, written_duration};
pub use manifest::{CleanupFailure, Concurrency, Strategy};

/// The variables of an answer.
pub(crate) const ANSWERS: [&str; 9] =
    ["status", "headers", "body", "exitCode", "stdout", "stderr", "json", "message", RECORDED];

/// Of a step that runs another plan: the variable with the facts that the plan has recorded.
pub const RECORDED: &str = "recorded";
/// The output that each step has that runs another plan: whether the plan has run.
pub const RAN: &str = "ran";

/// What happens when a child is lost.
#[derive(Debug, Clone, Default)]
pub enum OnLoss {
    /// It is applied again.
    #[default]
    Recreate,
    /// The plan of that name runs.
    Plan(String),
    /// A template that yields `Recreate` or the name of a plan.
    Computed(Text),
}

/// One plan of a resource.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Its name, unique in the resource.
    pub name: String,
    /// What starts it; the implied trigger of `deploy`, `update`, `upgrade` and `cleanup` is filled in.
    pub triggers: Vec<Trigger>,
    /// The schema of the parameters of a requested run; `None` if it takes none.
    pub params: Option<Value>,
    /// What happens when a run of the same plan is requested or due while one is active.
    pub concurrency: Concurrency,
    /// Whether it changes children, so that only one such run is active at a time.
    pub exclusive: bool,
    /// Whether the instance is not Ready while a run of it is active, waits, or has failed and left something undone.
    pub affects_ready: bool,
    /// Whether a run that takes precedence may interrupt it.
    pub interruptible: bool,
    /// Among runs of the same rank that with the highest goes first.
    pub priority: u8,
    /// What a failed `cleanup` does; `None` is Hold, and Skip in a terminating namespace.
    pub on_cleanup_failure: Option<CleanupFailure>,
    /// In which order its steps run.
    pub strategy: Strategy,
    /// Its steps, at least one.
    pub steps: Vec<Step>,
    /// The location of its name.
    pub location: Location,
}

/// What starts a plan.
#[derive(Debug, Clone)]
pub struct Trigger {
    /// The event.
    pub event: Event,
    /// Only while it is true.
    pub when: Option<Expr>,
    /// Its location.
    pub location: Location,
}

/// The event that starts a plan.
#[derive(Debug, Clone)]
pub enum Event {
    /// The instance is new.
    Created,
    /// One of the paths has changed; without paths: any path of `spec`.
    Changed(Vec<ChangedPath>),
    /// The package revision has changed.
    Upgraded,
    /// The instance is being deleted.
    Deleted,
    /// A condition holds.
    Condition {
        /// The condition.
        condition: Expr,
        /// How long it must hold, a text that yields a duration; without it no time.
        hold: Option<Text>,
        /// How long after the end of its own run it does not count; the same.
        cooldown: Option<Text>,
        /// Whether it counts while it reads objects that a run changes (`during: always`).
        always: bool,
    },
    /// A point in time.
    Schedule {
        /// A cron line or `@every 6h`.
        schedule: Text,
        /// An IANA time zone; without it UTC.
        time_zone: Option<Text>,
        /// How late a missed run may start; without it at any time.
        starting_deadline: Option<Duration>,
        /// While it is true, no run is due.
        suspend: Option<Expr>,
    },
}

impl Event {
    /// Whether it starts a rollout.
    pub fn is_rollout(&self) -> bool {
        matches!(self, Self::Created | Self::Changed(_) | Self::Upgraded)
    }
}

/// A path of `spec`, or a ref as a whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChangedPath {
    /// The names of the path, `spec` first.
    Spec(Vec<String>),
    /// The id of the ref.
    Ref(String),
}

/// One step of a plan.
#[derive(Debug, Clone)]
pub struct Step {
    /// Its name, unique among its siblings.
    pub name: String,
    /// What it does.
    pub action: Action,
    /// It is skipped unless this is true.
    pub when: Option<Expr>,
    /// It is skipped if this is true.
    pub unless: Option<Expr>,
    /// Once for each item of a list.
    pub for_each: Option<Loop>,
    /// How long it may take, a text that yields a duration such as `10m`; `None`: the default of its action.
    pub timeout: Option<Text>,
    /// How a failed attempt is repeated; `None`: it is not.
    pub retries: Option<Retries>,
    /// When an apply step is done, instead of the readiness of its children.
    pub until: Option<Expr>,
    /// What a failure of it does.
    pub on_failure: OnFailure,
    /// Values for later steps.
    pub outputs: Vec<Output>,
    /// Facts that are kept beyond the run, written with the success of the step.
    pub record: Vec<(String, Expr)>,
    /// The text of the condition while it waits.
    pub message: Option<Text>,
    /// Which answers are a success (http, exec).
    pub expect: Option<Expect>,
    /// Whether an exec may be repeated after a crash.
    pub idempotent: bool,
    /// Whether the run may be interrupted at this step; `None`: as outside of it. If true, also by runs of the same rank.
    pub interruptible: Option<bool>,
    /// The location of its name.
    pub location: Location,
}

/// The loop of a step.
#[derive(Debug, Clone)]
pub struct Loop {
    /// The list.
    pub in_: Expr,
    /// The name of the item.
    pub as_: String,
    /// How many items at once; 1 is serial.
    pub max_parallel: usize,
}

/// How a failed attempt is repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retries {
    /// The most repetitions; `None`: until the timeout.
    pub limit: Option<u32>,
    /// The wait before the first repetition; it doubles.
    pub backoff: Duration,
    /// The longest wait between two attempts.
    pub max_backoff: Duration,
}

/// What a failed step does.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum OnFailure {
    /// The run fails.
    #[default]
    Fail,
    /// The run continues.
    Continue,
    /// Another plan of the resource runs inline; then the step has failed.
    Plan(String),
}

/// A value for later steps, read as `outputs.<step>.<name>` (as `outputs.<name>` within the step's own `record`).
#[derive(Debug, Clone)]
pub struct Output {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: Expr,
    /// The JSONPath it was written as, if so.
    pub search: Option<Search>,
    /// Whether it is kept in a Secret.
    pub secret: bool,
}

/// Which answers are a success.
#[derive(Debug, Clone)]
pub enum Expect {
    /// One of these HTTP statuses.
    Statuses(Vec<u16>),
    /// An expression over the answer.
    Holds(Expr),
}

/// One child, one member of it, or all of its members: `peers`, `members[{{ i }}]`.
#[derive(Debug, Clone)]
pub struct Members {
    /// The id of the child.
    pub child: String,
    /// The key of one member; without it all of them.
    pub key: Option<Text>,
    /// Its location.
    pub location: Location,
}

/// What a step does.
#[derive(Debug, Clone)]
pub enum Action {
    /// Its steps.
    Steps(Strategy, Vec<Step>),
    /// Applies children.
    Apply(Vec<Members>),
    /// Deletes children.
    Delete(Vec<Members>),
    /// Runs a Job.
    Job {
        /// The path of its template.
        template: String,
    },
    /// Runs a command in a container of a child.
    Exec(Exec),
    /// Sends an HTTP request.
    Http(Box<Http>),
    /// Waits until something holds.
    Wait(Box<Until>),
    /// Waits for a time, a text that yields a duration.
    Pause(Text),
    /// Patches an object that is no child.
    Patch(Box<Patch>),
    /// Runs another plan.
    Plan(Call),
    /// Waits for people.
    Approve {
        /// What they are asked.
        message: Text,
        /// How many must approve.
        count: u32,
        /// Whether the requester's own approval does not count.
        not_requester: bool,
        /// Whether approvals by `ServiceAccount`s count.
        service_accounts: bool,
        /// The groups whose members may answer; empty: all users with the verb `approve`.
        groups: Vec<String>,
    },
    /// Fails the run.
    Fail(Text),
    /// Only records.
    Record,
}

/// What a step waits for.
#[derive(Debug, Clone)]
pub struct Until {
    /// An expression that is to be true; with `search` the value to search.
    pub expr: Expr,
    /// A JSONPath that is to find something in the value.
    pub search: Option<Search>,
    /// Of a JSONPath: whether it is one, even if it needs no search.
    pub is_path: bool,
    /// The value that a JSONPath is to find; without it any.
    pub value: Option<Tree>,
}

impl Until {
    /// Whether it holds. An error means "not yet", as in `until` and `readyWhen`.
    ///
    /// # Errors
    ///
    /// It has no value now.
    pub fn holds(&self, engine: &Engine, scope: &Scope) -> Result<bool, EvalError> {
        if !self.is_path {
            return engine.truthy(&self.expr, scope);
        }
        let Some(found) = engine.eval_optional(&self.expr, scope)? else { return Ok(false) };
        let found = match self.search.as_ref().map(|search| search.of(&found, false)) {
            None => vec![found],
            Some(Ok(Value::Array(found))) => found,
            Some(_) => return Ok(false),
        };
        let wanted = match &self.value {
            Some(value) => value.eval(engine, scope)?,
            None => None,
        };
        let is_wanted = |found: &Value| wanted.as_ref().map_or(!found.is_null(), |wanted| wanted == found);
        Ok(!found.is_empty() && found.iter().all(is_wanted))
    }
}

/// A command in a container.
#[derive(Debug, Clone)]
pub struct Exec {
    /// In which child.
    pub child: Members,
    /// Of a workload: the ordinal of the pod.
    pub ordinal: Option<Text>,
    /// The container; without it the pod's only or default one.
    pub container: Option<Text>,
    /// The command and its arguments: it yields a list of strings, numbers and booleans.
    pub command: Tree,
    /// Its input.
    pub stdin: Option<Text>,
}

/// An HTTP request.
#[derive(Debug, Clone)]
pub struct Http {
    /// For example POST.
    pub method: String,
    /// Where to: rendered by [`Engine::eval_url`]. The host is no value of a tenant, unless `hosts` lists it.
    pub url: Text,
    /// Hosts that a computed host may be: `*.example.com`.
    pub hosts: Vec<String>,
    /// Additional headers.
    pub headers: Vec<(String, Text)>,
    /// The body.
    pub body: Body,
    /// The `Idempotency-Key`; without it it derives from the instance, the run and the step.
    pub key: Option<Text>,
    /// Who we are.
    pub auth: Option<Auth>,
    /// PEM texts: the CA that signs the server's certificate, our certificate and its key.
    pub tls: Option<Tls>,
    /// How many redirects are followed.
    pub redirects: u8,
    /// The most bytes of an answer.
    pub max_bytes: usize,
    /// How long one attempt may take.
    pub attempt_timeout: Duration,
}

/// The body of an HTTP request.
#[derive(Debug, Clone)]
pub enum Body {
    /// None.
    Empty,
    /// JSON, each string of it a text.
    Json(Tree),
    /// `application/x-www-form-urlencoded`.
    Form(Vec<(String, Text)>),
    /// As it is.
    Raw(Text),
}

/// A tree of values with texts at its leaves.
pub use super::refs::Tree;

/// Credentials of an HTTP request.
#[derive(Debug, Clone)]
pub enum Auth {
    /// A bearer token; no header while it is `omit`.
    Bearer(Text),
    /// User and password.
    Basic(Text, Text),
}

/// Checks the user name of basic authentication.
///
/// # Errors
/// It contains a colon, after which the server would read the password.
pub fn check_user(user: &str) -> Result<(), &'static str> {
    let is_right = !user.contains(':');
    is_right
        .then_some(())
        .ok_or("auth.basic.username contains `:`, which no user name of basic authentication can have")
}

/// Checks the `key` of an HTTP request.
///
/// # Errors
/// It is empty: all requests would have the same key, and servers would take each for a repetition of the first.
pub fn check_key(key: &str) -> Result<(), &'static str> {
    let is_right = !key.trim().is_empty();
    is_right.then_some(()).ok_or("`key` is empty: each effect needs an idempotency key of its own")
}

/// TLS material of an HTTP request, PEM.
#[derive(Debug, Clone)]
pub struct Tls {
    /// The CA.
    pub ca: Option<Text>,
    /// Our certificate.
    pub cert: Option<Text>,
    /// Its key.
    pub key: Option<Text>,
}

/// A patch of an object that is no child.
#[derive(Debug, Clone)]
pub struct Patch {
    /// Its kind.
    pub gvk: Gvk,
    /// Its name.
    pub name: Text,
    /// Its namespace: a literal or `operator.namespace`; without it that of the instance.
    pub namespace: Option<Text>,
    /// The JSON merge patch.
    pub merge: Tree,
}

/// A run of another plan.
#[derive(Debug, Clone)]
pub struct Call {
    /// Its name.
    pub plan: String,
    /// Of another instance; without it the plan runs inline in this run.
    pub of: Option<Of>,
    /// Its parameters; without them inline plans have those of this run.
    pub params: Option<Tree>,
}

/// Another instance.
#[derive(Debug, Clone)]
pub struct Of {
    /// Its kind.
    pub gvk: Gvk,
    /// Its name; it is in the same namespace.
    pub name: Text,
}

#[cfg(test)]
mod tests;
