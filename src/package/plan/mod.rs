//! Compiled plans: ordered procedures of a resource, with all expressions and templates parsed.
//!
//! The manifest types are in `manifest`, the engine that runs plans is in `crate::plan`.

pub(super) mod calls;
pub(super) mod compile;
pub mod cron;
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

/// The variables that answers set.
pub(crate) const ANSWERS: [&str; 9] =
    ["status", "headers", "body", "exitCode", "stdout", "stderr", "json", "message", RECORDED];

/// The variable with the facts that another plan has recorded. The step that runs the plan sees it.
pub const RECORDED: &str = "recorded";
/// The output that says whether a plan has run. Every step that runs another plan has it.
pub const RAN: &str = "ran";

/// What happens when a child's object is lost.
#[derive(Debug, Clone, Default)]
pub enum OnLoss {
    /// The object is applied again.
    #[default]
    Recreate,
    /// The plan with this name runs.
    Plan(String),
    /// A template that yields `Recreate` or the name of a plan.
    Computed(Text),
}

/// One plan of a resource.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Its name, unique in the resource.
    pub name: String,
    /// The events that start it. The implied triggers of `deploy`, `update`, `upgrade` and `cleanup` are
    /// included.
    pub triggers: Vec<Trigger>,
    /// The schema of the parameters of a requested run; `None` if it takes none.
    pub params: Option<Value>,
    /// What happens when a run of the same plan is requested or due while one is active.
    pub concurrency: Concurrency,
    /// Whether it changes children, so that only one such run is active at a time.
    pub exclusive: bool,
    /// Whether the instance is not Ready while a run of the plan is active or waits, or after a run that
    /// failed and left something undone.
    pub affects_ready: bool,
    /// Whether a run that takes precedence may interrupt it.
    pub interruptible: bool,
    /// The priority. Among runs of the same rank, the highest goes first.
    pub priority: u8,
    /// The effect of a failed `cleanup`. `None` is Hold, but Skip in a terminating namespace.
    pub on_cleanup_failure: Option<CleanupFailure>,
    /// The order in which the steps run.
    pub strategy: Strategy,
    /// Its steps, at least one.
    pub steps: Vec<Step>,
    /// The location of its name.
    pub location: Location,
}

/// A trigger of a plan.
#[derive(Debug, Clone)]
pub struct Trigger {
    /// The event.
    pub event: Event,
    /// The trigger counts only while it is true.
    pub when: Option<Expr>,
    /// Its location.
    pub location: Location,
}

/// The event that starts a plan.
#[derive(Debug, Clone)]
pub enum Event {
    /// The instance is new.
    Created,
    /// One of the paths has changed. Without paths: any path of `spec`.
    Changed(Vec<ChangedPath>),
    /// The package revision has changed.
    Upgraded,
    /// The instance is being deleted.
    Deleted,
    /// A condition becomes true.
    Condition {
        /// The condition.
        condition: Expr,
        /// How long it must be true: a text that yields a duration. `None` is no time.
        hold: Option<Text>,
        /// How long it does not count after the end of the plan's own run: a text that yields a duration.
        cooldown: Option<Text>,
        /// Whether it counts while a run changes the objects that it reads (`during: always`).
        always: bool,
    },
    /// A certificate expires soon.
    Expires {
        /// The certificate, PEM or the base64 of it as in the data of a Secret; or a list of certificates, of which the first to expire counts.
        certificate: Expr,
        /// How long before its end: a text that yields a duration.
        before: Text,
        /// How long it does not count after the end of the plan's own run: a text that yields a duration. `None` is an hour.
        cooldown: Option<Text>,
    },
    /// A point in time.
    Schedule {
        /// A cron line or `@every 6h`.
        schedule: Text,
        /// An IANA time zone; `None` is UTC.
        time_zone: Option<Text>,
        /// How late a missed run may start; `None` is any time.
        starting_deadline: Option<Duration>,
        /// No run is due while this is true.
        suspend: Option<Expr>,
    },
}

impl Event {
    /// Whether it starts a rollout.
    pub fn is_rollout(&self) -> bool {
        matches!(self, Self::Created | Self::Changed(_) | Self::Upgraded)
    }
}

/// A path of `spec`, a label, an annotation, or a ref as a whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChangedPath {
    /// The names of the path, beginning with `spec`.
    Spec(Vec<String>),
    /// A label or an annotation of the instance.
    Metadata {
        /// `labels` or `annotations`.
        field: &'static str,
        /// The key.
        key: String,
    },
    /// The id of the ref.
    Ref(String),
}

/// One step of a plan.
#[derive(Debug, Clone)]
pub struct Step {
    /// Its name, unique among its siblings.
    pub name: String,
    /// The action.
    pub action: Action,
    /// The step is skipped unless this is true.
    pub when: Option<Expr>,
    /// The step is skipped if this is true.
    pub unless: Option<Expr>,
    /// The step runs once for each item of the list.
    pub for_each: Option<Loop>,
    /// Its steps run in rounds.
    pub repeat: Option<Repeat>,
    /// The timeout: a text that yields a duration such as `10m`. `None` is the default of the action.
    pub timeout: Option<Text>,
    /// The repetition of failed attempts; `None` is no repetition.
    pub retries: Option<Retries>,
    /// The condition for the end of an apply step. The default is that its children are ready.
    pub until: Option<Expr>,
    /// The effect of a failure.
    pub on_failure: OnFailure,
    /// Values for later steps.
    pub outputs: Vec<Output>,
    /// What of the answer is written into a Secret before the step succeeds.
    pub store: Option<Store>,
    /// Facts that are kept beyond the run. They are written when the step succeeds.
    pub record: Vec<(String, Expr)>,
    /// The text of the condition while it waits.
    pub message: Option<Text>,
    /// The answers that are a success (http, exec).
    pub expect: Option<Expect>,
    /// Whether an exec may be repeated if the manager crashed and it is unknown whether the command ran.
    pub idempotent: bool,
    /// While it is true, a delete step does not wait for grace periods and nodes.
    pub force: Option<Expr>,
    /// Whether the run may be interrupted at this step. If true, even by runs of the same rank. `None` is the
    /// setting of the phase or the plan.
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
    /// The maximum number of items that run at the same time: a text that yields a number from 1 to 1000. `None` is
    /// one after another.
    pub max_parallel: Option<Text>,
}

/// Parts of an answer that are written into a Secret child.
#[derive(Debug, Clone)]
pub struct Store {
    /// The Secret.
    pub child: Members,
    /// The keys of its data, with their values.
    pub data: Vec<(String, Expr)>,
}

/// Rounds of the steps of a phase.
#[derive(Debug, Clone)]
pub struct Repeat {
    /// The item of the next round; undefined or null: the step waits.
    pub pick: Expr,
    /// The name of the item.
    pub as_: String,
    /// The step is done when it is true.
    pub until: Expr,
    /// The maximum number of rounds.
    pub limit: u32,
}

impl Step {
    /// Whether its outputs are a list, with an entry for each item.
    pub fn is_loop(&self) -> bool {
        self.for_each.is_some() || self.repeat.is_some()
    }

    /// The variable of its loop.
    pub fn item(&self) -> Option<&str> {
        let each = self.for_each.as_ref().map(|each| &each.as_);
        each.or(self.repeat.as_ref().map(|repeat| &repeat.as_)).map(String::as_str)
    }
}

/// How a failed attempt is repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retries {
    /// The maximum number of repetitions; `None` is unlimited, until the timeout.
    pub limit: Option<u32>,
    /// The wait before the first repetition. It doubles with each one.
    pub backoff: Duration,
    /// The maximum wait between two attempts.
    pub max_backoff: Duration,
}

/// The effect of a failed step.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum OnFailure {
    /// The run fails.
    #[default]
    Fail,
    /// The run continues.
    Continue,
    /// Another plan of the resource runs inline, and then the step has failed.
    Plan(String),
}

/// A value for later steps, read as `outputs.<step>.<name>`, or as `outputs.<name>` within the step's own
/// `record`.
#[derive(Debug, Clone)]
pub struct Output {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: Expr,
    /// The JSONPath to search in the value, if it is written as a JSONPath.
    pub search: Option<Search>,
    /// Whether it is kept in a Secret.
    pub secret: bool,
}

/// The answers that are a success.
#[derive(Debug, Clone)]
pub enum Expect {
    /// One of these HTTP statuses.
    Statuses(Vec<u16>),
    /// An expression over the answer.
    Holds(Expr),
}

/// A child with all its members, or one member: `peers`, `members[{{ i }}]`.
#[derive(Debug, Clone)]
pub struct Members {
    /// The id of the child.
    pub child: String,
    /// The key of one member; `None` is all members.
    pub key: Option<Text>,
    /// The location of the reference.
    pub location: Location,
}

/// The action of a step.
#[derive(Debug, Clone)]
pub enum Action {
    /// A phase: runs its steps.
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
    /// Waits for a condition.
    Wait(Box<Until>),
    /// Waits for a time: a text that yields a duration.
    Pause(Text),
    /// Patches an object that is not a child.
    Patch(Box<Patch>),
    /// Runs another plan.
    Plan(Call),
    /// Waits for approvals by people.
    Approve {
        /// The question to the people.
        message: Text,
        /// The required number of approvals.
        count: u32,
        /// Whether the requester's own approval does not count.
        not_requester: bool,
        /// Whether approvals by `ServiceAccount`s count.
        service_accounts: bool,
        /// The groups whose members may answer. If empty, all users with the verb `approve` may.
        groups: Vec<String>,
    },
    /// Fails the run.
    Fail(Text),
    /// Does nothing but record facts.
    Record,
}

/// The condition for which a step waits.
#[derive(Debug, Clone)]
pub struct Until {
    /// An expression that must become true. With `search`, the value to search.
    pub expr: Expr,
    /// A JSONPath that must find something in the value.
    pub search: Option<Search>,
    /// Whether the condition is written as a JSONPath, even if it needs no search.
    pub is_path: bool,
    /// The value that the JSONPath must find; `None` is any value.
    pub value: Option<Tree>,
}

impl Until {
    /// Whether the condition is true. As in `until` and `readyWhen`, errors mean that it is not yet true.
    ///
    /// # Errors
    /// The condition cannot be evaluated now.
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

/// A pod of a child.
#[derive(Debug, Clone)]
pub struct ChildPod {
    /// The other instance whose child it is; `None` is this instance.
    pub of: Option<Other>,
    /// The child: a Pod, or a workload.
    pub child: Members,
    /// The ordinal of the pod, if the child is a workload.
    pub ordinal: Option<Text>,
}

/// Another instance of the same package, in the same namespace.
#[derive(Debug, Clone)]
pub struct Other {
    /// The ref that reads it.
    pub reference: String,
    /// Its uid, which the ref brings.
    pub uid: Text,
    /// The location of `of` in `operator.yaml`.
    pub location: Location,
}

impl Other {
    /// The message while the ref is undefined.
    pub fn missing(&self) -> String {
        let id = &self.reference;
        format!(
            "refs.{id} does not exist; to leave this out until it does, write `when: refs.{id} is defined`"
        )
    }
}

/// A command in a container.
#[derive(Debug, Clone)]
pub struct Exec {
    /// The pod that runs the command.
    pub pod: ChildPod,
    /// The container; `None` is the pod's only or default container.
    pub container: Option<Text>,
    /// The command and its arguments. The value must be a list of strings, numbers and booleans.
    pub command: Tree,
    /// The standard input.
    pub stdin: Option<Text>,
}

/// An HTTP request.
#[derive(Debug, Clone)]
pub struct Http {
    /// The method, for example POST.
    pub method: String,
    /// The pod that answers; `None` is the host of the URL.
    pub to: Option<PodPort>,
    /// The URL, rendered by [`Engine::eval_url`]. A tenant cannot choose its host, unless `hosts` lists it. That of a pod
    /// begins with [`POD_URL`], in whose place its own scheme, name and port are put.
    pub url: Text,
    /// The hosts that a computed host may be, for example `*.example.com`.
    pub hosts: Vec<String>,
    /// Additional headers.
    pub headers: Vec<(String, Text)>,
    /// The body.
    pub body: Body,
    /// The `Idempotency-Key`; `None` is one that is derived from the instance, the run and the step.
    pub key: Option<Text>,
    /// The credentials.
    pub auth: Option<Auth>,
    /// The CA of the server's certificate, and our certificate with its key, as PEM texts.
    pub tls: Option<Tls>,
    /// The maximum number of redirects that are followed.
    pub redirects: u8,
    /// The maximum number of bytes of an answer.
    pub max_bytes: usize,
    /// The timeout of one attempt.
    pub attempt_timeout: Duration,
}

/// The beginning of the URL of a pod as it is compiled.
pub const POD_URL: &str = "http://pod";

/// A port of a pod of a child.
#[derive(Debug, Clone)]
pub struct PodPort {
    /// The pod.
    pub pod: ChildPod,
    /// The port.
    pub port: Text,
    /// `http` or `https`.
    pub scheme: &'static str,
    /// The name of the server, for TLS and the header `Host`; `None` is the name of the pod.
    pub host: Option<Text>,
}

/// The body of an HTTP request.
#[derive(Debug, Clone)]
pub enum Body {
    /// No body.
    Empty,
    /// JSON, in which each string is a text.
    Json(Tree),
    /// A form: `application/x-www-form-urlencoded`.
    Form(Vec<(String, Text)>),
    /// A text that is sent unchanged.
    Raw(Text),
}

/// A tree of values with texts at its leaves.
pub use super::model::Tree;

/// Credentials of an HTTP request.
#[derive(Debug, Clone)]
pub enum Auth {
    /// A bearer token. While it is `omit`, no header is sent.
    Bearer(Text),
    /// A user and a password.
    Basic(Text, Text),
}

/// Checks the user name of basic authentication.
///
/// # Errors
/// The name contains a colon. The server would read the text after it as the password.
pub fn check_user(user: &str) -> Result<(), &'static str> {
    let is_right = !user.contains(':');
    is_right
        .then_some(())
        .ok_or("auth.basic.username contains `:`, which no user name of basic authentication can have")
}

/// Checks the `key` of an HTTP request.
///
/// # Errors
/// The key is empty. All requests would have the same key, and servers would treat each as a repetition of
/// the first.
pub fn check_key(key: &str) -> Result<(), &'static str> {
    let is_right = !key.trim().is_empty();
    is_right.then_some(()).ok_or("`key` is empty: each effect needs an idempotency key of its own")
}

/// The TLS material of an HTTP request, as PEM texts.
#[derive(Debug, Clone)]
pub struct Tls {
    /// The CA that signs the server's certificate.
    pub ca: Option<Text>,
    /// The client's certificate.
    pub cert: Option<Text>,
    /// The key of the client's certificate.
    pub key: Option<Text>,
}

/// A patch of an object that is not a child.
#[derive(Debug, Clone)]
pub struct Patch {
    /// The kind of the object.
    pub gvk: Gvk,
    /// The name of the object.
    pub name: Text,
    /// The namespace of the object: a literal or `operator.namespace`. `None` is that of the instance.
    pub namespace: Option<Text>,
    /// The JSON merge patch.
    pub merge: Tree,
}

/// A call of another plan.
#[derive(Debug, Clone)]
pub struct Call {
    /// The name of the plan.
    pub plan: String,
    /// The other instance whose plan it is; `None` runs a plan of this resource inline in this run.
    pub of: Option<Of>,
    /// The parameters; `None` gives an inline plan those of this run.
    pub params: Option<Tree>,
}

/// Another instance.
#[derive(Debug, Clone)]
pub struct Of {
    /// The kind of the instance.
    pub gvk: Gvk,
    /// The name of the instance, which is in the same namespace.
    pub name: Text,
}

#[cfg(test)]
mod tests;
