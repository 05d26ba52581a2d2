//! The format of `tests/world.yaml`: what the programs do that a package deals with. The embedded API plays it; packages do not
//! contain it.
//!
//! Editors show the doc comments of fields as the documentation of a key.

// Editors show these comments unformatted, so backticks are only for text that an author types.
#![allow(clippy::doc_markdown)]

use std::borrow::Cow;
use std::sync::Arc;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

use super::compile::one_document;
use super::decode::{At, Constants, Decode, Decoder, Must, Named, manifest};
use super::lint::words::keys;
use super::manifest::{
    ApiVersion, Expression, LetValue, TemplateText, Tree, VariableName, inline_schema, literal,
};
use super::plan::manifest::{Method, Port, Time};
use crate::diag::{Diagnostic, Source};
use crate::yaml::{Node, NodeValue};

/// The kind of the file.
pub const WORLD_KIND: &str = "World";

/// Reads a world. Names and expressions are not checked.
///
/// # Errors
/// All mistakes of the text.
pub fn read_world(source: &Arc<Source>) -> Result<World, Vec<Diagnostic>> {
    let node = one_document(source).map_err(|error| vec![error])?;
    let mut decoder = Decoder::new(source);
    let world = World::decode(&node, &mut decoder);
    let mut errors = decoder.finish();
    keys(source, &node, &mut errors);
    match world {
        Some(world) if errors.is_empty() => Ok(world),
        _ => Err(errors),
    }
}

literal! {
    /// `World`.
    WorldKind, WORLD_KIND
}

manifest! {
    /// A world: what the programs do that a package deals with. Of each list of rules the first one whose conditions hold answers.
    pub struct World {
        /// The version of this format.
        "apiVersion" api_version: Must<ApiVersion>,
        /// Always World.
        "kind" kind: Must<WorldKind>,
        /// The key of the state that a pod has a part in; a template over pod, owner, env and disks. A pod for which it is undefined
        /// is none of this world's. Default: one state for each instance of a kind of a package; of pods that belong to none, for
        /// each topmost owner.
        "per" per: Option<TemplateText>,
        /// What each state begins with: constants by name, available as `state.x`.
        "state" state: Option<At<Constants>>,
        /// What the state begins with that all share: constants by name, available as `shared.x`.
        "shared" shared: Option<At<Constants>>,
        /// Named values, available as `let.x`. Each is a template that is evaluated where it is read.
        "let" lets: Option<Named<LetValue>>,
        /// What pods do from their start. Without a rule a pod is ready after a second, and one of a Job succeeds after a second.
        "pods" pods: Option<Vec<At<PodRule>>>,
        /// What commands do in containers.
        "exec" exec: Option<Vec<At<ExecRule>>>,
        /// What servers answer.
        "http" http: Option<Vec<At<HttpRule>>>,
        /// What containers have printed. Without a rule: nothing.
        "logs" logs: Option<Vec<At<LogRule>>>,
        /// Which addresses load balancers give Services of the type LoadBalancer. Without a rule: none.
        "loadBalancers" load_balancers: Option<Vec<At<LoadBalancerRule>>>,
    }
}

manifest! {
    /// What a pod does from the start of its containers.
    pub struct PodRule {
        /// Expression: the rule applies while it is true. Default: always.
        "when" when: Option<Expression>,
        /// The time until the containers are ready, for example 3s; `never` if they never are; a template. Default: 1s, or 0s with
        /// endsAfter.
        "readyAfter" ready_after: Option<Delay>,
        /// Expression: after that time the pod is ready only while it is true.
        "readyWhen" ready_when: Option<Expression>,
        /// The time until the containers end, for example 10s; a template. Default: they run until they are stopped.
        "endsAfter" ends_after: Option<Time>,
        /// The exit code of containers that end, 0 to 255; or a template. Default: 0.
        "exitCode" exit_code: Option<Number>,
        /// The termination message of containers that end, which is the result of a Job's pod; or why they are not ready. A template.
        "message" message: Option<TemplateText>,
        /// The reason why the containers do not start, for example ImagePullBackOff, with `message` as its message; a template. They
        /// try again after ten seconds, later after up to five minutes, and when the pod's images change. Default: they start.
        "waiting" waiting: Option<TemplateText>,
        /// How the state changes when the containers start, or try to.
        "do" changes: Option<Vec<Change>>,
    }
}

manifest! {
    /// What a command does in a container.
    pub struct ExecRule {
        /// The command that the rule is for: a list of words. `{name}` is a word, or in other text a part of one, that expressions
        /// read as `name`; {name: regex} is a word that fits a regular expression; `...` is any number of words, once.
        "command" command: Must<At<Vec<Word>>>,
        /// The name of the container. Default: any.
        "container" container: Option<String>,
        /// Expression: the rule applies while it is true. Default: always.
        "when" when: Option<Expression>,
        /// How the state changes. What is printed sees the changed state.
        "do" changes: Option<Vec<Change>>,
        /// The standard output; a template. A list or a map is printed as JSON.
        "stdout" stdout: Option<TemplateText>,
        /// The standard error; a template.
        "stderr" stderr: Option<TemplateText>,
        /// The exit code, 0 to 255; or a template. Default: 0.
        "exitCode" exit_code: Option<Number>,
        /// The time that the command takes, for example 200ms; a template. Default: 0s.
        "takes" takes: Option<Time>,
    }
}

manifest! {
    /// What a server answers to a request: one outside of the cluster, or with `path` one in a pod.
    pub struct HttpRule {
        /// The method of the request. Default: any.
        "method" method: Option<Method>,
        /// The URL without its query: `{name}` is a part up to the next slash, which expressions read as `name`.
        "url" url: Option<At<String>>,
        /// Instead of a URL: the path of a request to a pod, without its query, with `{name}` as in a URL. The state is that of the
        /// pod.
        "path" path: Option<At<String>>,
        /// With `path`: the port. Default: any.
        "port" port: Option<At<Port>>,
        /// Expression: the rule applies while it is true. Default: always.
        "when" when: Option<Expression>,
        /// The key of the state that the server has; a template. Default: scheme, host and port of the URL.
        "per" per: Option<TemplateText>,
        /// How the state changes. The answer sees the changed state.
        "do" changes: Option<Vec<Change>>,
        /// The status, 100 to 599; or a template. Default: 200.
        "status" status: Option<Number>,
        /// Headers of the answer; templates.
        "headers" headers: Option<Named<TemplateText>>,
        /// The body as JSON: any value whose strings are templates.
        "json" json: Option<At<Tree>>,
        /// The body as it is; a template.
        "body" body: Option<TemplateText>,
        /// The time that the answer takes, for example 200ms; a template. Default: 0s.
        "takes" takes: Option<Time>,
        /// Why the answer does not arrive, though the changes are made; a template: connection reset by peer.
        "fails" fails: Option<TemplateText>,
    }
}

manifest! {
    /// What a container has printed.
    pub struct LogRule {
        /// The name of the container. Default: any.
        "container" container: Option<String>,
        /// Expression: the rule applies while it is true. Default: always.
        "when" when: Option<Expression>,
        /// The text; a template.
        "text" text: Must<TemplateText>,
    }
}

manifest! {
    /// The address that a load balancer gives a Service.
    pub struct LoadBalancerRule {
        /// Expression: the rule applies while it is true. Default: always.
        "when" when: Option<Expression>,
        /// The address: an IP or a host name; a template. An empty text: none.
        "address" address: Must<TemplateText>,
    }
}

manifest! {
    /// One change of the state: `set` alone, `add`, `remove` or `change`. It sees what the changes before it have made.
    pub struct Change {
        /// Values by their place, for example {state.leader: "{{ id }}"}: any values whose strings are templates. `omit` removes the
        /// key. With `change`: the fields of the items.
        "set" set: Option<At<Named<Tree>>>,
        /// The list that gets another item, for example state.members.
        "add" add: Option<At<String>>,
        /// The new item: any value whose strings are templates.
        "item" item: Option<Tree>,
        /// The list or map that loses items.
        "remove" remove: Option<At<String>>,
        /// The list or map whose items change.
        "change" change: Option<At<String>>,
        /// Expression: which items are removed or changed; each is `item`, and in a map its key is `key`. Default: all.
        "where" where_: Option<Expression>,
        /// Expression: the change is made only if it is true. Default: always.
        "when" when: Option<Expression>,
        /// The change is made for each item of a list.
        "forEach" for_each: Option<Each>,
    }
}

manifest! {
    /// A list, and the name of its items.
    pub struct Each {
        /// Expression: the list.
        "in" list: Expression,
        /// The name of the item in expressions.
        "as" name: At<VariableName>,
    }
}

/// A duration, a template that yields one, or `never`, which is `None`.
#[derive(Debug, Clone)]
pub struct Delay(pub Option<Time>);

impl Decode for Delay {
    fn decode(node: &Node, decoder: &mut Decoder) -> Option<Self> {
        if node.as_str() == Some("never") {
            return Some(Self(None));
        }
        Time::decode(node, decoder).map(|time| Self(Some(time)))
    }
}

inline_schema!(Delay, {"type": "string", "pattern": "^([0-9]+(ms|s|m|h|d))+$|^never$|\\{\\{"});

/// A whole number, or a template that yields one.
#[derive(Debug, Clone)]
pub struct Number(pub At<Tree>);

impl Decode for Number {
    fn decode(node: &Node, decoder: &mut Decoder) -> Option<Self> {
        let is_template = node.as_str().is_some_and(|text| text.contains("{{"));
        if !is_template && !matches!(&node.value, NodeValue::Number(number) if number.is_u64()) {
            decoder.mismatch(node, "a number from 0, or a template");
            return None;
        }
        At::decode(node, decoder).map(Self)
    }
}

inline_schema!(Number, {"type": ["integer", "string"]});

/// One word of a command.
#[derive(Debug, Clone)]
pub enum Word {
    /// Any number of words.
    Rest(At<()>),
    /// Text, in which `{name}` is any text.
    Text(At<String>),
    /// A word that fits a regular expression, if there is one.
    Capture(At<String>, Option<At<String>>),
}

impl Decode for Word {
    fn decode(node: &Node, decoder: &mut Decoder) -> Option<Self> {
        let NodeValue::Map(entries) = &node.value else {
            return Some(match node.as_str() {
                Some("...") => Self::Rest(decoder.place(node, ())),
                _ => Self::Text(At::decode(node, decoder)?),
            });
        };
        let [(key, value)] = entries.as_slice() else {
            decoder.mismatch(node, "a word, or a name with a regular expression");
            return None;
        };
        let name = decoder.place(key, key.as_str().unwrap_or_default().to_owned());
        let pattern = if value.is_null() { None } else { Some(At::decode(value, decoder)?) };
        Some(Self::Capture(name, pattern))
    }
}

inline_schema!(Word, {"type": ["string", "object"]});
