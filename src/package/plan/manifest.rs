//! The format of `plans` in `operator.yaml`: the types from which the decoder and the JSON Schema are generated.
//!
//! Editors show the doc comments of fields as the documentation of a key.

// Editors show these comments unformatted, so backticks are only for text that an author types.
#![allow(clippy::doc_markdown, rustdoc::broken_intra_doc_links)]

mod action;
mod words;

use std::borrow::Cow;

use crate::decode::{At, Decode, Decoder, Must, Named, choice, manifest};
use crate::manifest::{
    Expression, TemplateText, VariableName, decode_expression, inline_schema, starts, word,
};
use crate::yaml::{Node, NodeValue};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

pub use action::{
    Approve, Auth, Basic, Call, CallMap, Exec, Fail, Http, Job, Members, Method, Of, Patch, Scheme, Tls, Wait,
};
use words::number;
pub use words::{AnyPort, Bytes, Count, Interval, Limit, Parallel, Port, Priority, Redirects, Time};

word! {
    /// The name of a plan or of a step.
    StepName, "^[a-z]([-a-zA-Z0-9]*[a-zA-Z0-9])?$", 40,
    "letters, digits and hyphens, beginning with a lower case letter and ending in a letter or digit",
    |text| {
        text.ends_with(|c: char| c.is_ascii_alphanumeric())
            && starts(text, |c| c.is_ascii_lowercase(), |c| c.is_ascii_alphanumeric() || c == '-')
    }
}

manifest! {
    /// An ordered procedure: what starts it, and its steps.
    pub struct Plan {
        /// What starts the plan: created, changed, upgraded or deleted; {changed: [paths]}; {condition: ...};
        /// {schedule: ...}; {expires: ...}; or a list of them. Default: deploy runs when the instance is created, update when its spec
        /// is changed, upgrade with a new revision of the package, cleanup when the instance is deleted; any other plan
        /// runs only when it is requested, or when another plan runs it.
        "trigger" trigger: Option<Triggers>,
        /// The schema of the parameters of a requested run, a structural OpenAPI schema of type object, available as
        /// `run.params`. Without it a requested run takes no parameters.
        "params" params: Option<At<ParamsSchema>>,
        /// What happens to a second run of this plan while one is active: Forbid (default), Queue or Replace.
        "concurrency" concurrency: Option<At<Concurrency>>,
        /// Whether it is the only such run of the instance. Default: true. A plan that is not exclusive runs beside
        /// others and cannot have apply, delete and plan steps.
        "exclusive" exclusive: Option<At<bool>>,
        /// Whether the instance is not Ready while a run of the plan is active or waits, and after a run that has failed and
        /// left something undone. Default: the value of `exclusive`. A rollout and a cleanup always affect Ready, and so do
        /// children that are not ready, whatever makes them so.
        "affectsReady" affects_ready: Option<At<bool>>,
        /// Whether a run that takes precedence may interrupt it, also where a step of another plan runs it. Default: true.
        "interruptible" interruptible: Option<bool>,
        /// Runs with a higher priority go first, and may interrupt. Among runs for losses and conditions, and among all
        /// others but cleanups: 0 (default) to 100.
        "priority" priority: Option<Priority>,
        /// Of cleanup: what happens when it fails. Hold: the deletion waits (default). Skip: the deletion continues
        /// (default in a terminating namespace).
        "onFailure" on_failure: Option<At<CleanupFailure>>,
        /// In which order its steps run: serial (default) or parallel.
        "strategy" strategy: Option<Strategy>,
        /// The steps.
        "steps" steps: Must<At<Vec<Step>>>,
    }
}

/// An OpenAPI schema.
#[derive(Debug, Clone)]
pub struct ParamsSchema(pub Node);

impl Decode for ParamsSchema {
    fn decode(node: &Node, decoder: &mut Decoder) -> Option<Self> {
        decoder.entries(node, "a schema, such as {type: object, properties: {target: {type: string}}}")?;
        Some(Self(node.clone()))
    }
}

inline_schema!(ParamsSchema, {"type": "object"});

choice! {
    /// What happens to a second run of the same plan.
    #[derive(Default)]
    pub enum Concurrency {
        /// It does not start: a scheduled run is skipped, a requested one fails.
        #[default]
        Forbid,
        /// It waits.
        Queue,
        /// It ends the first.
        Replace,
    }
}

choice! {
    /// What happens when a cleanup fails.
    pub enum CleanupFailure {
        /// The deletion waits.
        Hold,
        /// The deletion continues.
        Skip,
    }
}

/// Declares an enum of lower-case words.
macro_rules! words {
    ($(#[$meta:meta])* pub enum $name:ident { $($(#[$variant_meta:meta])* $variant:ident = $word:literal,)* }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name {
            $($(#[$variant_meta])* $variant,)*
        }

        impl Decode for $name {
            fn decode(node: &Node, decoder: &mut Decoder) -> Option<Self> {
                let word = String::decode(node, decoder)?;
                match word.as_str() {
                    $($word => Some(Self::$variant),)*
                    _ => {
                        let keys = crate::decode::Keys { known: &[$($word),*], later: &[] };
                        decoder.no_such_choice(node, &word, keys);
                        None
                    }
                }
            }
        }

        inline_schema!($name, {"type": "string", "enum": [$($word),*]});
    };
}

words! {
    /// In which order steps run.
    #[derive(Default)]
    pub enum Strategy {
        /// One after another.
        #[default]
        Serial = "serial",
        /// Side by side.
        Parallel = "parallel",
    }
}

words! {
    /// An event without further fields.
    pub enum EventName {
        /// The instance is new.
        Created = "created",
        /// Any path of its spec has changed.
        Changed = "changed",
        /// The package revision has changed.
        Upgraded = "upgraded",
        /// The instance is being deleted.
        Deleted = "deleted",
    }
}

words! {
    /// When a condition counts.
    pub enum During {
        /// Also while the active run changes what it reads.
        Always = "always",
    }
}

/// One trigger, or several.
#[derive(Debug, Clone)]
pub struct Triggers(pub Vec<At<TriggerEntry>>);

impl Decode for Triggers {
    fn decode(node: &Node, decoder: &mut Decoder) -> Option<Self> {
        match &node.value {
            NodeValue::Seq(_) => Vec::decode(node, decoder).map(Self),
            _ => At::decode(node, decoder).map(|one| Self(vec![one])),
        }
    }
}

impl JsonSchema for Triggers {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Triggers".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let one = generator.subschema_for::<TriggerEntry>();
        json_schema!({"anyOf": [one.clone(), {"type": "array", "items": one}]})
    }
}

/// A bare word, or a map.
#[derive(Debug, Clone)]
pub enum TriggerEntry {
    /// A word.
    Word(EventName),
    /// A map.
    Map(Box<Trigger>),
}

impl Decode for TriggerEntry {
    fn decode(node: &Node, decoder: &mut Decoder) -> Option<Self> {
        match &node.value {
            NodeValue::String(_) => EventName::decode(node, decoder).map(Self::Word),
            _ => Trigger::decode(node, decoder).map(|trigger| Self::Map(Box::new(trigger))),
        }
    }
}

impl JsonSchema for TriggerEntry {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "TriggerEntry".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let words = generator.subschema_for::<EventName>();
        json_schema!({"anyOf": [words, generator.subschema_for::<Trigger>()]})
    }
}

manifest! {
    /// A trigger: `event`, `changed`, `condition`, `expires` or `schedule`, and what belongs to it.
    pub struct Trigger {
        /// An event without further fields: created, changed, upgraded or deleted.
        "event" event: Option<EventName>,
        /// Paths of the spec such as spec.size, or refs as a whole such as refs.tls: the plan runs when one of them
        /// changes. A path takes precedence over the paths that contain it.
        "changed" changed: Option<Vec<At<String>>>,
        /// Expression: the plan runs when it becomes true.
        "condition" condition: Option<Expression>,
        /// With a condition: how long it must hold: a duration such as 30s, or a template that yields one. Default: 0s.
        "for" hold: Option<Time>,
        /// With a condition or `expires`: how long after the end of the plan's own run it does not count: a duration, or a
        /// template that yields one. Default: 0s, with `expires` 1h.
        "cooldown" cooldown: Option<Time>,
        /// With a condition: always, if it counts while the active run changes the objects that it reads.
        "during" during: Option<At<During>>,
        /// Expression: a certificate, such as `children.tls.data['tls.crt']`, or a list of them: the plan runs when the first of
        /// them is about to expire.
        "expires" expires: Option<Expression>,
        /// With `expires`: how long before the end of the certificate: a duration such as 30d, or a template that yields
        /// one.
        "before" before: Option<Time>,
        /// A cron line with five fields such as "0 3 * * *", or "@every 6h"; a template.
        "schedule" schedule: Option<TemplateText>,
        /// With a schedule: the IANA time zone, for example Europe/Rome; a template. Default: UTC.
        "timeZone" time_zone: Option<TemplateText>,
        /// With a schedule: how late a missed run may start, for example 1h. Default: any time.
        "startingDeadline" starting_deadline: Option<At<Interval>>,
        /// With a schedule: an expression; while it is true no run is due.
        "suspend" suspend: Option<Expression>,
        /// Expression: the trigger counts only while it is true.
        "when" when: Option<Expression>,
    }
}

manifest! {
    /// One step of a plan: a name, one action, and when and how it runs.
    pub struct Step {
        /// The name of the step, unique among the steps beside it. It is part of the names of Jobs, of approvals and of
        /// Idempotency-Keys.
        "name" name: At<StepName>,
        /// Action: a phase. Its steps run one after another, or side by side with strategy: parallel.
        "steps" steps: Option<At<Vec<Step>>>,
        /// With steps: serial (default) or parallel.
        "strategy" strategy: Option<At<Strategy>>,
        /// Action: applies these children and waits until they are ready. An id of a child, or one member of a forEach
        /// child: "members[{{ i }}]".
        "apply" apply: Option<At<Vec<At<Members>>>>,
        /// Action: deletes these children, or members, and waits until they are gone.
        "delete" delete: Option<At<Vec<At<Members>>>>,
        /// Of delete: an expression. While it is true, Pods go at once: without a grace period and without an answer of their
        /// node, also those that are already being deleted. Only for what certainly does not run.
        "force" force: Option<Expression>,
        /// Action: runs a Job and waits until it has finished.
        "job" job: Option<At<Job>>,
        /// Action: runs a command in a container of a child.
        "exec" exec: Option<At<Exec>>,
        /// Action: sends an HTTP request.
        "http" http: Option<At<Http>>,
        /// Action: waits for an expression, a JSONPath or a time.
        "wait" wait: Option<At<Wait>>,
        /// Action: patches an object that is no child.
        "patch" patch: Option<At<Patch>>,
        /// Action: runs another plan of this kind within this run, or a plan of another instance.
        "plan" plan: Option<At<Call>>,
        /// Action: waits until people approve.
        "approve" approve: Option<At<Approve>>,
        /// Action: fails the run with a message.
        "fail" fail: Option<At<Fail>>,
        /// Expression: the step is skipped unless it is true. For job, exec and http it is decided before each attempt,
        /// else once.
        "when" when: Option<Expression>,
        /// Expression: the step is skipped if it is true.
        "unless" unless: Option<Expression>,
        /// The step runs once for each item of a list.
        "forEach" for_each: Option<StepForEach>,
        /// Of steps: they run in rounds, each for an item that is picked when the round begins, until an expression is true.
        "repeat" repeat: Option<At<StepRepeat>>,
        /// How long the step may take: a duration such as 10m or 1h30m, or a template that yields one. Default: 10m, of
        /// a job 1h, of phases, plan and approve steps none. With repeat it holds for each round.
        "timeout" timeout: Option<Time>,
        /// How a failed attempt of a job, exec or http is repeated. Default: it is not.
        "retries" retries: Option<At<Retries>>,
        /// Of apply: an expression that says when the step is done. Default: when the children are ready.
        "until" until: Option<Expression>,
        /// What happens when the step fails: Fail (default) fails the run, Continue goes on with the next step; or the
        /// name of a plan that runs within this run before the step fails.
        "onFailure" on_failure: Option<At<String>>,
        /// Of job, exec, http and plan: values for later steps, read as `outputs.<step>.<name>`. A name to an expression
        /// over the answer (http: status, headers, body; exec: exitCode, stdout, stderr, json; job: message; plan: recorded),
        /// or to {jsonPath: .body.id}. A plan step also has the output `ran`.
        "outputs" outputs: Option<Named<OutputValue>>,
        /// Of exec and http: writes secret parts of the answer into a Secret child before the step counts as done, never over
        /// keys that the Secret has.
        "store" store: Option<At<StepStore>>,
        /// Facts that are kept beyond the run, read as `record.<name>` and written with the success of the step. A name
        /// to an expression over the answer, or `outputs.<name>` of this step.
        "record" record: Option<Named<Constant>>,
        /// The text of the condition while the step waits; a template.
        "message" message: Option<TemplateText>,
        /// Of http: the statuses that are a success, default any 2xx. Of http and exec: an expression over the answer.
        "expect" expect: Option<At<Expect>>,
        /// Of exec: whether the command may be repeated when it is not known whether it ran.
        "idempotent" idempotent: Option<At<bool>>,
        /// Whether a run that takes precedence may interrupt the run at this step, whatever the plan says. `true` also
        /// lets others of the same rank go first, such as the run for another loss. Of a phase it holds for its steps.
        "interruptible" interruptible: Option<bool>,
    }
}

manifest! {
    /// The step runs once for each item of a list.
    pub struct StepForEach {
        /// Expression: the list, for example `range(spec.size)`.
        "in" list: Must<Expression>,
        /// The name of the item. Default: item.
        "as" name: Option<At<VariableName>>,
        /// How many items run side by side, from 1 to 1000; or a template, whose value when the step is reached counts.
        /// Default: 1.
        "maxParallel" max_parallel: Option<Parallel>,
    }
}

manifest! {
    /// The steps run in rounds, each for an item that is picked when the round begins.
    pub struct StepRepeat {
        /// Expression: the item of the next round. It is stored when the round begins, and stays the same until the round has
        /// ended. While it yields nothing (undefined or null), the step waits.
        "pick" pick: Must<Expression>,
        /// The name of the item. Default: item.
        "as" name: Option<At<VariableName>>,
        /// Expression: the step is done when it is true. It is evaluated before each round.
        "until" until: Must<Expression>,
        /// The most rounds, from 1 to 1000; the step fails if another one is needed. Default: 1000.
        "limit" limit: Option<Count>,
    }
}

manifest! {
    /// What of the answer is written into a Secret.
    pub struct StepStore {
        /// The child, a Secret; or one member of a forEach child: "keys[{{ i }}]".
        "child" child: At<Members>,
        /// Keys of the Secret's data, each with an expression over the answer that yields a string.
        "data" data: Must<Named<Constant>>,
    }
}

manifest! {
    /// How a failed attempt is repeated.
    pub struct Retries {
        /// How many times. Default: until the timeout of the step.
        "limit" limit: Option<Limit>,
        /// The wait before the first repetition, for example 5s; it doubles up to `maxBackoff`. Default: 5s.
        "backoff" backoff: Option<Interval>,
        /// The longest wait between two attempts. Default: 5m.
        "maxBackoff" max_backoff: Option<Interval>,
    }
}

/// Statuses, or an expression over the answer.
#[derive(Debug, Clone)]
pub enum Expect {
    /// HTTP statuses.
    Statuses(Vec<u16>),
    /// An expression.
    Holds(Expression),
}

impl Decode for Expect {
    fn decode(node: &Node, decoder: &mut Decoder) -> Option<Self> {
        match &node.value {
            NodeValue::Seq(items) => {
                let mut statuses = Vec::with_capacity(items.len());
                for (index, item) in items.iter().enumerate() {
                    let status = decoder.in_item(index, |decoder| number(item, decoder, 100, 599));
                    statuses.extend(status.and_then(|status| u16::try_from(status).ok()));
                }
                if items.is_empty() {
                    decoder.error("package::empty", node, "no status is expected");
                }
                Some(Self::Statuses(statuses))
            }
            NodeValue::Number(status) => {
                let message = "must be a list of statuses, or an expression";
                decoder.error_help("package::type", node, message, format!("write [{status}]"));
                None
            }
            _ => Expression::decode(node, decoder).map(Self::Holds),
        }
    }
}

inline_schema!(Expect, {
    "anyOf": [
        {"type": ["string", "boolean"]},
        {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 100, "maximum": 599}},
    ]
});

/// The source of an expression that yields a value: also a YAML boolean or number.
#[derive(Debug, Clone)]
pub struct Constant(pub Expression);

impl Decode for Constant {
    fn decode(node: &Node, decoder: &mut Decoder) -> Option<Self> {
        decode_expression(node, decoder).map(|text| Self(Expression(text)))
    }
}

inline_schema!(Constant, {"type": ["string", "boolean", "number"]});

/// The value of an output.
#[derive(Debug, Clone)]
pub enum OutputValue {
    /// An expression.
    Expression(Expression),
    /// A map.
    Map(Box<OutputMap>),
}

impl Decode for OutputValue {
    fn decode(node: &Node, decoder: &mut Decoder) -> Option<Self> {
        match &node.value {
            NodeValue::Map(_)
                if ["value", "jsonPath", "secret"].iter().any(|key| node.get(key).is_some()) =>
            {
                OutputMap::decode(node, decoder).map(|map| Self::Map(Box::new(map)))
            }
            _ => decode_expression(node, decoder).map(|text| Self::Expression(Expression(text))),
        }
    }
}

impl JsonSchema for OutputValue {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "OutputValue".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let map = generator.subschema_for::<OutputMap>();
        json_schema!({"anyOf": [{"type": ["string", "boolean", "number"]}, map]})
    }
}

manifest! {
    /// An output: `value` or `jsonPath`.
    pub struct OutputMap {
        /// Expression: the value.
        "value" value: Option<Constant>,
        /// A JSONPath (RFC 9535) over the answer, for example .body.id.
        "jsonPath" json_path: Option<At<String>>,
        /// Whether it is kept in a Secret and never shown. It may then hold secret data.
        "secret" secret: Option<bool>,
    }
}
