//! The format of `tests/*.yaml`: cases that try a package. `operetta test` plays them; packages do not contain them.
//!
//! Editors show the doc comments of fields as the documentation of a key.

// Editors show these comments unformatted, so backticks are only for text that an author types.
#![allow(clippy::doc_markdown)]

use std::borrow::Cow;
use std::sync::Arc;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::Value;

use super::compile::one_document;
use super::decode::{At, Constants, Decode, Decoder, Must, Named, manifest};
use super::manifest::{ApiVersion, Expression, inline_schema, literal};
use super::plan::parse_duration;
use crate::diag::{Diagnostic, Source};
use crate::yaml::{Node, NodeValue};

/// The kind of the file.
pub const TEST_KIND: &str = "PackageTest";

/// Reads a file of cases. Names and expressions are not checked.
///
/// # Errors
/// All mistakes of the text.
pub fn read_test_file(source: &Arc<Source>) -> Result<PackageTest, Vec<Diagnostic>> {
    let node = one_document(source).map_err(|error| vec![error])?;
    let mut decoder = Decoder::new(source);
    let file = PackageTest::decode(&node, &mut decoder);
    let errors = decoder.finish();
    match file {
        Some(file) if errors.is_empty() => Ok(file),
        _ => Err(errors),
    }
}

literal! {
    /// `PackageTest`.
    TestKind, TEST_KIND
}

manifest! {
    /// Cases that try a package, each in a cluster of its own.
    pub struct PackageTest {
        /// The version of this format.
        "apiVersion" api_version: Must<ApiVersion>,
        /// Always PackageTest.
        "kind" kind: Must<TestKind>,
        /// The file of the world, from the folder of this file. Default: world.yaml, if it exists.
        "world" world: Option<At<String>>,
        /// Folders of other packages that are installed too, from the folder of this file.
        "packages" packages: Option<Vec<At<String>>>,
        /// The steps before those of each case.
        "before" before: Option<Vec<At<Step>>>,
        /// Expressions that hold at any time of each case.
        "always" always: Option<Vec<Expression>>,
        /// Expressions that hold at no time of any case.
        "never" never: Option<Vec<Expression>>,
        /// The cases.
        "cases" cases: Must<Vec<Case>>,
    }
}

manifest! {
    /// A case: steps in their order, in a cluster that no other case has used.
    pub struct Case {
        /// What the case shows; unique in the file.
        "name" name: Must<At<String>>,
        /// Expressions that hold at any time.
        "always" always: Option<Vec<Expression>>,
        /// Expressions that hold at no time.
        "never" never: Option<Vec<Expression>>,
        /// The steps.
        "steps" steps: Must<Vec<At<Step>>>,
    }
}

manifest! {
    /// A step: one of `apply`, `patch`, `delete`, `run`, `approve`, `exec`, `expect`, `wait`, `break`, `restart` and `upgrade`.
    pub struct Step {
        /// Objects that are applied: files from the folder of this file, or manifests.
        "apply" apply: Option<At<Manifests>>,
        /// The object that is changed, as KIND/NAME or NAMESPACE/KIND/NAME, by the merge patch `with`.
        "patch" patch: Option<At<Address>>,
        /// The merge patch.
        "with" with: Option<At<Constants>>,
        /// The object that is deleted.
        "delete" delete: Option<At<Address>>,
        /// The plan that is requested.
        "run" run: Option<At<String>>,
        /// The parameters of the requested run.
        "params" params: Option<At<Constants>>,
        /// The plan whose question is approved.
        "approve" approve: Option<At<String>>,
        /// The instance of `run` and `approve`. Default: the instance that was applied first.
        "of" of: Option<At<Address>>,
        /// The user who applies, patches, deletes, runs, approves or executes, with the rights that roles give. Default: an administrator.
        "as" user: Option<At<String>>,
        /// A command in a container, as kubectl exec runs it.
        "exec" exec: Option<At<Command>>,
        /// The API server refuses the step, with a message that contains this text.
        "refused" refused: Option<At<String>>,
        /// What holds within a time.
        "expect" expect: Option<At<Expect>>,
        /// How long an expectation may take until it holds. Default: 1h.
        "within" within: Option<Length>,
        /// How long it must hold then. Default: 0s.
        "for" holds_for: Option<Length>,
        /// How long nothing else is done, for example 1h.
        "wait" wait: Option<At<Length>>,
        /// What goes wrong from now on.
        "break" breakage: Option<At<Break>>,
        /// The process that ends at once and is started again.
        "restart" restart: Option<At<Process>>,
        /// The folder of another revision of the package, from the folder of this file, that replaces it.
        "upgrade" upgrade: Option<At<String>>,
    }
}

manifest! {
    /// A command in a container, and what it prints.
    pub struct Command {
        /// The pod, as NAME or NAMESPACE/NAME.
        "pod" pod: Must<At<String>>,
        /// The container. Default: the pod's only one.
        "container" container: Option<String>,
        /// The program and its arguments.
        "command" command: Must<Vec<String>>,
        /// Its standard input.
        "stdin" stdin: Option<String>,
        /// A part of its standard output.
        "stdout" stdout: Option<String>,
        /// A part of its standard error.
        "stderr" stderr: Option<String>,
        /// Its exit code. Default: 0.
        "exitCode" exit_code: Option<Whole>,
    }
}

literal! {
    /// `manager`: the process that can be started again.
    Process, "manager"
}

manifest! {
    /// What holds. Maps are partial: fields that they do not name may have any value, and null stands for an absent field. Of a list
    /// of maps each item fits another item that is there; a list of other values is the whole list.
    pub struct Expect {
        /// The instance that was applied first, in part; or `absent`.
        "instance" instance: Option<At<Partial>>,
        /// The children of that instance, by the id of the child or with its key in brackets after it: in part, `absent`, or how many there are.
        "children" children: Option<Named<Partial>>,
        /// Other objects, by KIND/NAME or NAMESPACE/KIND/NAME: in part, or `absent`. KIND/* is how many there are.
        "objects" objects: Option<Named<Partial>>,
        /// Runs of plans, oldest first, each in part: {plan: resize, phase: Succeeded}. Other runs may be there.
        "runs" runs: Option<Vec<At<Part>>>,
        /// Events, each in part. Of the message a part of the text is enough.
        "events" events: Option<Vec<At<Part>>>,
        /// Expressions.
        "that" that: Option<Vec<Expression>>,
    }
}

manifest! {
    /// What goes wrong: commands, or requests to the API server.
    pub struct Break {
        /// Commands that begin with these words fail.
        "exec" exec: Option<At<Vec<String>>>,
        /// The exit code of the commands. Default: 1.
        "exitCode" exit_code: Option<Whole>,
        /// What the commands print: their standard output.
        "stdout" stdout: Option<String>,
        /// Their standard error.
        "stderr" stderr: Option<String>,
        /// Requests of the manager with this verb, for example patch; `write` stands for all that write. Default: write.
        "verb" verb: Option<At<String>>,
        /// Requests of the manager about this resource, for example statefulsets.
        "resource" resource: Option<At<String>>,
        /// The status code of the answer: 409, 429, 500 and others; `lost`: carried out and not answered; `cut`: not carried out and
        /// not answered.
        "answer" answer: Option<At<Reply>>,
        /// How many commands or requests. Default: 1.
        "times" times: Option<Whole>,
    }
}

/// A part of an object.
#[derive(Debug, Clone)]
pub struct Part {
    /// The part.
    pub value: Value,
    /// Where each of its values is written.
    pub node: Arc<Node>,
}

impl Part {
    fn of(node: &Node) -> Self {
        Self { value: node.to_json(), node: Arc::new(node.clone()) }
    }
}

impl Decode for Part {
    fn decode(node: &Node, decoder: &mut Decoder) -> Option<Self> {
        decoder.entries(node, "a map")?;
        Some(Self::of(node))
    }
}

inline_schema!(Part, {"type": "object"});

/// A part of an object, `absent`, or a number of objects.
#[derive(Debug, Clone)]
pub enum Partial {
    /// A part of an object.
    Part(At<Part>),
    /// There is none.
    Absent(At<()>),
    /// There are this many.
    Count(At<u64>),
}

impl Decode for Partial {
    fn decode(node: &Node, decoder: &mut Decoder) -> Option<Self> {
        match &node.value {
            NodeValue::Map(_) => Some(Self::Part(decoder.place(node, Part::of(node)))),
            NodeValue::Number(number) if number.is_u64() => {
                Some(Self::Count(decoder.place(node, number.as_u64().unwrap_or_default())))
            }
            _ if node.as_str() == Some("absent") => Some(Self::Absent(decoder.place(node, ()))),
            _ => {
                decoder.mismatch(node, "a map, a number, or absent");
                None
            }
        }
    }
}

inline_schema!(Partial, {"type": ["object", "integer", "string"]});

/// The answer to a request that fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reply {
    /// A status code; the request is not carried out.
    Code(u16),
    /// The request is carried out, and its answer is lost.
    Lost,
    /// The request is not carried out, and no answer comes.
    Cut,
}

impl Decode for Reply {
    fn decode(node: &Node, decoder: &mut Decoder) -> Option<Self> {
        let code = match &node.value {
            NodeValue::Number(number) => number.as_u64().and_then(|code| u16::try_from(code).ok()),
            _ => None,
        };
        match (code, node.as_str()) {
            (Some(code @ 400..=599), _) => Some(Self::Code(code)),
            (_, Some("lost")) => Some(Self::Lost),
            (_, Some("cut")) => Some(Self::Cut),
            _ => {
                decoder.mismatch(node, "a status code from 400 to 599, lost, or cut");
                None
            }
        }
    }
}

inline_schema!(Reply, {"type": ["integer", "string"]});

/// A whole number from 0.
#[derive(Debug, Clone, Copy)]
pub struct Whole(pub u32);

impl Decode for Whole {
    fn decode(node: &Node, decoder: &mut Decoder) -> Option<Self> {
        let found = match &node.value {
            NodeValue::Number(number) => number.as_u64().and_then(|number| u32::try_from(number).ok()),
            _ => None,
        };
        if found.is_none() {
            decoder.mismatch(node, "a whole number from 0");
        }
        found.map(Self)
    }
}

inline_schema!(Whole, {"type": "integer", "minimum": 0});

/// A length of time.
#[derive(Debug, Clone, Copy)]
pub struct Length(pub std::time::Duration);

impl Decode for Length {
    fn decode(node: &Node, decoder: &mut Decoder) -> Option<Self> {
        let text = String::decode(node, decoder)?;
        match parse_duration(&text) {
            Ok(found) => Some(Self(found)),
            Err(message) => {
                decoder.error("test::duration", node, message);
                None
            }
        }
    }
}

inline_schema!(Length, {"type": "string", "pattern": "^([0-9]+(ms|s|m|h|d))+$"});

/// Objects that are applied.
#[derive(Debug, Clone)]
pub struct Manifests(pub Vec<Manifest>);

/// A file of manifests, or one manifest.
#[derive(Debug, Clone)]
pub enum Manifest {
    /// A path.
    File(At<String>),
    /// An object.
    Object(At<Value>),
}

impl Decode for Manifests {
    fn decode(node: &Node, decoder: &mut Decoder) -> Option<Self> {
        let one = |node: &Node, decoder: &mut Decoder| {
            if let NodeValue::Map(_) = &node.value {
                return Some(Manifest::Object(decoder.place(node, node.to_json())));
            }
            At::<String>::decode(node, decoder).map(Manifest::File)
        };
        match &node.value {
            NodeValue::Seq(items) => {
                items.iter().map(|item| one(item, decoder)).collect::<Option<_>>().map(Self)
            }
            _ => one(node, decoder).map(|one| Self(vec![one])),
        }
    }
}

inline_schema!(Manifests, {"type": ["object", "string", "array"]});

/// The address of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    /// The namespace; `default` if none is given.
    pub namespace: String,
    /// The kind.
    pub kind: String,
    /// The name; `*` stands for all.
    pub name: String,
}

impl Address {
    /// Reads `KIND/NAME` or `NAMESPACE/KIND/NAME`.
    pub fn parse(text: &str) -> Option<Self> {
        let parts: Vec<&str> = text.split('/').collect();
        let (namespace, kind, name) = match parts[..] {
            [kind, name] => ("default", kind, name),
            [namespace, kind, name] => (namespace, kind, name),
            _ => return None,
        };
        let is_kind = kind.starts_with(|c: char| c.is_ascii_uppercase());
        (is_kind && !name.is_empty() && !namespace.is_empty()).then(|| Self {
            namespace: namespace.to_owned(),
            kind: kind.to_owned(),
            name: name.to_owned(),
        })
    }
}

impl Decode for Address {
    fn decode(node: &Node, decoder: &mut Decoder) -> Option<Self> {
        let text = String::decode(node, decoder)?;
        let address = Self::parse(&text);
        if address.is_none() {
            let message = format!("`{text}` is no KIND/NAME, for example Pod/shop-0");
            decoder.error("test::address", node, message);
        }
        address
    }
}

inline_schema!(Address, {"type": "string", "pattern": "^([^/]+/)?[A-Z][^/]*/[^/]+$"});
