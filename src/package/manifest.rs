//! The format of `operator.yaml`: its types, from which both the reader and the JSON Schema come.
//!
//! The doc comments of fields are what an editor shows when the pointer rests on a key.

// Editors show these words as they are; backticks there are for what an author types.
#![allow(clippy::doc_markdown)]

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use semver::{Version, VersionReq};
use serde_json::Value;

use super::decode::{At, Constants, Decode, Decoder, Must, Named, choice, manifest};
use crate::yaml::{Node, NodeValue};

/// The apiVersion of every file of the format.
pub const API_VERSION: &str = "operetta.dev/v1alpha1";
/// The kind of `operator.yaml`.
pub const KIND: &str = "OperatorPackage";

manifest! {
    /// A package: an operator described in YAML.
    pub struct Manifest {
        /// The version of this format.
        "apiVersion" api_version: Must<ApiVersion>,
        /// Always OperatorPackage.
        "kind" kind: Must<Kind>,
        /// The package's name.
        "metadata" metadata: Must<Metadata>,
        /// What the package holds.
        "spec" spec: Must<Spec>,
    }
}

manifest! {
    /// The package's name.
    pub struct Metadata {
        /// The package's name: lower case letters, digits and hyphens, at most 40 characters. It is
        /// part of labels and of the field manager, so it must not change from version to version.
        "name" name: At<PackageName>,
    }
}

manifest! {
    /// What the package holds.
    pub struct Spec {
        /// The version of the package itself: SemVer with three parts, for instance 0.1.0.
        "version" version: Must<At<SemVer>>,
        /// The version of what the package runs, for instance "3.6". For people; read as `operator.appVersion`.
        "appVersion" app_version: Option<String>,
        /// One sentence that says what the package is for.
        "description" description: Option<String>,
        /// URL of a picture.
        "icon" icon: Option<String>,
        /// Words to find the package by.
        "keywords" keywords: Option<Vec<String>>,
        /// URL of the project's home page.
        "home" home: Option<String>,
        /// URLs of the source code.
        "sources" sources: Option<Vec<String>>,
        /// SPDX expression of the licence, for instance Apache-2.0.
        "license" license: Option<String>,
        /// Who looks after the package.
        "maintainers" maintainers: Option<Vec<Maintainer>>,
        /// What must be there for the package to work.
        "requires" requires: Option<Requires>,
        /// RBAC rules that cannot be derived from the templates.
        "permissions" permissions: Option<Vec<Rule>>,
        /// Constants, read as `defaults.x`. They are taken as they are: no templates in here.
        "defaults" defaults: Option<Constants>,
        /// Named values for all resources, read as `let.x`. Each is a template, evaluated when it is
        /// read: `image: "{{ spec.repository }}:{{ spec.version }}"`.
        "let" lets: Option<Named<LetValue>>,
        /// The kinds that the package brings.
        "resources" resources: Must<Vec<At<Resource>>>,
    }
}

manifest! {
    /// Somebody who looks after the package.
    pub struct Maintainer {
        /// A name.
        "name" name: String,
        /// A mail address.
        "email" email: Option<String>,
        /// A URL.
        "url" url: Option<String>,
    }
}

manifest! {
    /// What must be there for the package to work.
    pub struct Requires later ["operators"] {
        /// Versions of Operetta, for instance ">=0.1".
        "operetta" operetta: Option<At<SemVerRange>>,
        /// Versions of Kubernetes, for instance ">=1.30".
        "kubernetes" kubernetes: Option<At<SemVerRange>>,
    }
}

manifest! {
    /// One RBAC rule, as in a ClusterRole.
    pub struct Rule {
        /// API groups; "" is the core group.
        "apiGroups" api_groups: Vec<String>,
        /// Resources in the plural, for instance deployments.
        "resources" resources: Vec<String>,
        /// Names of single objects; without it all.
        "resourceNames" resource_names: Option<Vec<String>>,
        /// For instance get, list, watch, create, patch, delete.
        "verbs" verbs: Vec<String>,
    }
}

manifest! {
    /// One kind that the package brings: its CustomResourceDefinition, and what belongs to each instance.
    pub struct Resource later ["plans"] {
        /// The CustomResourceDefinition: the path of its file, for instance crds/webapp.yaml, or itself.
        "crd" crd: Must<Crd>,
        /// Whether a CRD that somebody else applies too (GitOps) is shared: theirs is the base, and
        /// only what Operetta needs is added.
        "adopt" adopt: Option<bool>,
        /// Named values of this resource, read as `let.x`; they go before those of the package.
        "let" lets: Option<Named<LetValue>>,
        /// Expression: while it holds, nothing of the instance is written, only reported. For
        /// instance `spec.paused`.
        "paused" paused: Option<Expression>,
        /// Expression: when the instance is Ready. Without it: when all children are ready.
        "readyWhen" ready_when: Option<Expression>,
        /// Objects that an instance reads and does not own; read as `refs.<id>`. They are watched: what
        /// changes in them is followed.
        "refs" refs: Option<Vec<Ref>>,
        /// The Kubernetes objects that belong to an instance. They are created in the order of what
        /// they read of each other; independent ones in parallel.
        "children" children: Option<Vec<ChildEntry>>,
        /// What is shown in the instance's status: a name (or a map of names) to an expression each,
        /// for instance `replicas: children.deployment.status.readyReplicas | default(0)`, or to a JSONPath:
        /// `replicas: {jsonPath: .children.deployment.status.readyReplicas}`.
        "status" status: Option<Status>,
        /// Conditions of the package's own in the instance's status.
        "conditions" conditions: Option<Vec<Condition>>,
    }
}

manifest! {
    /// A Kubernetes object, or with forEach several, that belongs to an instance and is kept as its
    /// template says.
    pub struct Child later [
        "lostWhen", "refs",
    ] {
        /// The child's name in this package; live objects are read as `children.<id>`. It is part of
        /// labels, so it must not change from version to version.
        "id" id: At<ChildId>,
        /// The path of the template, for instance templates/deployment.yaml.
        "template" template: Must<At<String>>,
        /// Expression: the child exists only while it holds. For instance `spec.host is defined`.
        "when" when: Option<Expression>,
        /// One object for each item of a list.
        "forEach" for_each: Option<ForEach>,
        /// With forEach: how many existing members are given a new intent at a time, a number or a
        /// percentage such as 25%. Without it all.
        "maxUnavailable" max_unavailable: Option<At<MaxUnavailable>>,
        /// Ids of children that must be ready before, beside those that the template, `when` and
        /// `forEach` read.
        "dependsOn" depends_on: Option<Vec<At<String>>>,
        /// Expression: when the object (`self`) is ready. Without it the rules of kstatus decide.
        "readyWhen" ready_when: Option<Expression>,
        /// What happens when the child is no longer wanted: Delete (default), Retain (default of
        /// kinds that hold data, such as PersistentVolumeClaim, and of kinds of packages), or Ask.
        "deletionPolicy" deletion_policy: Option<DeletionPolicy>,
        /// What happens when another manager owns one of the fields: Force takes it (default), Fail
        /// reports it.
        "conflictPolicy" conflict_policy: Option<ConflictPolicy>,
        /// What happens when the server refuses a new intent because a field may not be changed any more:
        /// Fail reports it (default), Recreate deletes the object and makes it anew, after a dry run has
        /// shown that a new one would be taken. Not for what holds data.
        "onImmutableChange" on_immutable_change: Option<At<OnImmutableChange>>,
        /// What happens when the object is lost. Recreate makes it anew, generated values included; a child
        /// with `password(...)` or `tls_self_signed(...)` must say so.
        "onLoss" on_loss: Option<OnLoss>,
        /// Fields given up once another manager, such as an autoscaler, owns them: a list of paths,
        /// or one template that gives it: `"{{ ['spec.replicas'] if spec.autoscaling else [] }}"`.
        "yields" yields: Option<Yields>,
        /// Ids that the child had in earlier versions of the package: objects of those ids are this
        /// child's.
        "renamedFrom" renamed_from: Option<Vec<At<String>>>,
        /// Whether an object of that name that somebody else has made is taken over. Without it, only
        /// one with the annotation `operetta.dev/adopt: "true"` is.
        "adopt" adopt: Option<bool>,
        /// Whether an object that is no Secret may hold data of Secrets: whoever may read it reads that data.
        /// Without it, such a template is an error.
        "exposesSecretData" exposes_secret_data: Option<bool>,
    }
}

manifest! {
    /// Children that share a loop, its keys and a `when`. Between them an order holds key by key: the
    /// quota of `a` waits for the namespace of `a` alone.
    pub struct Group later ["refs"] {
        /// One object of each child for each item of a list.
        "forEach" for_each: Option<ForEach>,
        /// Expression: the children exist only while it holds; of a forEach asked for each item. A
        /// `when` of a child's own holds beside it.
        "when" when: Option<Expression>,
        /// The children. Their ids are like those outside of the group; none has a forEach of its own.
        "children" children: Must<Vec<Child>>,
    }
}

/// A child, or a group of them.
#[derive(Debug, Clone)]
pub enum ChildEntry {
    /// One child.
    Child(Box<Child>),
    /// Several that share a loop.
    Group(Box<Group>),
}

impl Decode for ChildEntry {
    fn decode(node: &Node, decoder: &mut Decoder) -> Option<Self> {
        if node.get("children").is_some() && node.get("template").is_none() {
            return Group::decode(node, decoder).map(|group| Self::Group(Box::new(group)));
        }
        Child::decode(node, decoder).map(|child| Self::Child(Box::new(child)))
    }
}

impl JsonSchema for ChildEntry {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "ChildEntry".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "if": {"required": ["children"]},
            "then": generator.subschema_for::<Group>(),
            "else": generator.subschema_for::<Child>(),
        })
    }
}

manifest! {
    /// An object, or with a selector several, that an instance reads and does not own. While a required
    /// one does not exist, or one cannot be read, it is unknown: what reads it keeps what it has.
    pub struct Ref later ["exec", "http", "every", "expect"] {
        /// The name by which expressions read it: `refs.<id>`.
        "id" id: At<ChildId>,
        /// The apiVersion of the object, for instance v1.
        "apiVersion" api_version: At<ApiVersionName>,
        /// The kind of the object, for instance Secret.
        "kind" kind: At<KindName>,
        /// The name of the object; a template: "{{ spec.tlsSecret }}".
        "name" name: Option<TemplateText>,
        /// In place of a name: all objects whose labels fit, as a list. A label selector (matchLabels
        /// and matchExpressions) or a plain map of labels, or a template that gives one:
        /// "{{ spec.monitorSelector }}".
        "selector" selector: Option<Tree>,
        /// Where the object is: a literal, or "{{ operator.namespace }}". Default: the instance's own
        /// namespace. Only cluster-scoped instances may compute it.
        "namespace" namespace: Option<TemplateText>,
        /// With a selector: `all`, or a list of namespaces, each as `namespace` above. Default: the
        /// instance's own.
        "namespaces" namespaces: Option<At<Namespaces>>,
        /// One object for each item of a list, or with a selector several: the ref is a map by key, and each
        /// key is awaited, absent or unknown by itself.
        "forEach" for_each: Option<ForEach>,
        /// Expression: the object is read only while it holds; else it is undefined. For instance
        /// `spec.tlsSecret is defined`. With forEach it is asked for each item.
        "when" when: Option<Expression>,
        /// Whether the object may be absent, and is undefined then. Without it one that is absent is
        /// awaited.
        "optional" optional: Option<bool>,
    }
}

manifest! {
    /// One object for each item of a list.
    pub struct ForEach {
        /// Expression: the list, for instance `range(spec.size)`.
        "in" list: Must<Expression>,
        /// The name by which the template reads the item. Default: item.
        "as" name: Option<At<VariableName>>,
        /// Expression: what tells the members apart, a string or an integer. Default: the item itself.
        "key" key: Option<Expression>,
    }
}

manifest! {
    /// A condition of the package's own in the instance's status.
    pub struct Condition {
        /// The condition's type in CamelCase, for instance QuorumLost.
        "type" condition_type: At<ConditionName>,
        /// Expression: the condition is True while it holds, else False.
        "when" when: Expression,
        /// Why, as one word in CamelCase.
        "reason" reason: At<ConditionName>,
        /// Why, as a sentence for people; a template: "{{ spec.size }} members tolerate no loss".
        "message" message: Option<TemplateText>,
        /// Whether it may tell data of Secrets: whoever may read the instance reads that data.
        "exposesSecretData" exposes_secret_data: Option<bool>,
    }
}

choice! {
    /// What happens to a child that is no longer wanted.
    pub enum DeletionPolicy {
        /// It is deleted.
        Delete,
        /// It stays.
        Retain,
        /// It stays until a person approves, by `operetta approve`; the condition DeletionPending names it.
        Ask,
    }
}

choice! {
    /// What happens when another field manager owns one of the fields.
    pub enum ConflictPolicy {
        /// The field is taken.
        Force,
        /// The conflict is reported, the child keeps waiting.
        Fail,
    }
}

choice! {
    /// What happens when a field may not be changed on the live object.
    #[derive(Default)]
    pub enum OnImmutableChange {
        /// It is reported.
        #[default]
        Fail,
        /// The object is deleted and made anew.
        Recreate,
    }
}

/// Declares a string that must have a certain form.
macro_rules! word {
    ($(#[$meta:meta])* $name:ident, $pattern:literal, $max:literal, $form:literal, $check:expr) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct $name(pub String);

        impl Decode for $name {
            fn decode(node: &Node, decoder: &mut Decoder) -> Option<Self> {
                let text = String::decode(node, decoder)?;
                let check: fn(&str) -> bool = $check;
                if text.len() <= $max && check(&text) {
                    return Some(Self(text));
                }
                let message = format!(concat!("must be ", $form, ", at most {} characters"), $max);
                decoder.error("package::name", node, message);
                None
            }
        }

        impl JsonSchema for $name {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({"type": "string", "pattern": $pattern, "maxLength": $max})
            }
        }
    };
}

fn starts(text: &str, first: fn(char) -> bool, rest: fn(char) -> bool) -> bool {
    let mut chars = text.chars();
    chars.next().is_some_and(first) && chars.all(rest)
}

word! {
    /// The name of a package.
    PackageName, "^[a-z]([-a-z0-9]*[a-z0-9])?$", 40,
    "lower case letters, digits and hyphens, beginning with a letter and not ending in a hyphen",
    |text| {
        !text.ends_with('-')
            && starts(
                text,
                |c| c.is_ascii_lowercase(),
                |c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-',
            )
    }
}

word! {
    /// The id of a child.
    ChildId, "^[a-z]([-A-Za-z0-9_]*[A-Za-z0-9])?$", 63,
    "letters, digits, hyphens and underscores, beginning with a lower case letter and ending in a letter or digit",
    |text| {
        text.ends_with(|c: char| c.is_ascii_alphanumeric())
            && starts(
                text,
                |c| c.is_ascii_lowercase(),
                |c| c.is_ascii_alphanumeric() || c == '-' || c == '_',
            )
    }
}

word! {
    /// The name of a variable of an expression.
    VariableName, "^[A-Za-z_][A-Za-z0-9_]*$", 63,
    "letters, digits and underscores, not beginning with a digit",
    |text| {
        starts(text, |c| c.is_ascii_alphabetic() || c == '_', |c| c.is_ascii_alphanumeric() || c == '_')
    }
}

word! {
    /// The type or the reason of a condition.
    ConditionName, "^[A-Za-z][A-Za-z0-9]*$", 63,
    "one word in CamelCase, letters and digits",
    |text| starts(text, |c| c.is_ascii_alphabetic(), |c| c.is_ascii_alphanumeric())
}

word! {
    /// The apiVersion of an object.
    ApiVersionName, "^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?v[0-9][a-z0-9]*$", 253,
    "a literal apiVersion such as v1 or apps/v1",
    |text| {
        let (group, version) = text.split_once('/').unwrap_or(("a", text));
        let part = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        !group.is_empty()
            && !group.starts_with(['-', '.'])
            && !group.ends_with(['-', '.'])
            && group.chars().all(|c| part(c) || c == '-' || c == '.')
            && version.strip_prefix('v').is_some_and(|rest| starts(rest, |c| c.is_ascii_digit(), part))
    }
}

word! {
    /// The kind of an object.
    KindName, "^[A-Z][A-Za-z0-9]*$", 63,
    "a literal kind in CamelCase such as Secret",
    |text| starts(text, |c| c.is_ascii_uppercase(), |c| c.is_ascii_alphanumeric())
}

/// A word that is always the same.
macro_rules! literal {
    ($(#[$meta:meta])* $name:ident, $word:expr) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy)]
        pub struct $name;

        impl Decode for $name {
            fn decode(node: &Node, decoder: &mut Decoder) -> Option<Self> {
                let text = String::decode(node, decoder)?;
                if text != $word {
                    decoder.error("package::kind", node, format!("must be {}, is {text}", $word));
                    return None;
                }
                Some(Self)
            }
        }

        impl JsonSchema for $name {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({"type": "string", "const": $word})
            }
        }
    };
}

literal! {
    /// `operetta.dev/v1alpha1`.
    ApiVersion, API_VERSION
}
literal! {
    /// `OperatorPackage`.
    Kind, KIND
}

/// A type whose JSON Schema stands inline.
macro_rules! inline_schema {
    ($name:ident, $schema:tt) => {
        impl JsonSchema for $name {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!($schema)
            }
        }
    };
}

/// A version with three parts.
#[derive(Debug, Clone)]
pub struct SemVer(pub Version);

impl Decode for SemVer {
    fn decode(node: &Node, decoder: &mut Decoder) -> Option<Self> {
        let text = match &node.value {
            NodeValue::Number(_) => decoder.text(node).to_owned(),
            _ => String::decode(node, decoder)?,
        };
        match Version::parse(&text) {
            Ok(version) => Some(Self(version)),
            Err(error) => {
                let message = format!("`{text}` is not a SemVer version: {error}");
                decoder.error_help(
                    "package::version",
                    node,
                    message,
                    "write three parts, for instance 0.1.0",
                );
                None
            }
        }
    }
}

inline_schema!(SemVer, {
    "type": "string",
    "pattern": "^[0-9]+\\.[0-9]+\\.[0-9]+(-[0-9A-Za-z.-]+)?(\\+[0-9A-Za-z.-]+)?$"
});

/// A range of versions, in Cargo's notation.
#[derive(Debug, Clone)]
pub struct SemVerRange(pub VersionReq);

impl Decode for SemVerRange {
    fn decode(node: &Node, decoder: &mut Decoder) -> Option<Self> {
        let text = String::decode(node, decoder)?;
        match VersionReq::parse(&text) {
            Ok(range) => Some(Self(range)),
            Err(error) => {
                let message = format!("`{text}` is not a range of versions: {error}");
                decoder.error_help("package::version", node, message, "write for instance \">=1.30\"");
                None
            }
        }
    }
}

inline_schema!(SemVerRange, {"type": "string"});

/// A CustomResourceDefinition: in a file, or here.
#[derive(Debug, Clone)]
pub enum Crd {
    /// The path of its file.
    Path(At<String>),
    /// Itself.
    Inline(At<Node>),
}

impl Decode for Crd {
    fn decode(node: &Node, decoder: &mut Decoder) -> Option<Self> {
        match &node.value {
            NodeValue::String(path) => Some(Self::Path(decoder.place(node, path.clone()))),
            NodeValue::Map(_) => Some(Self::Inline(decoder.place(node, node.clone()))),
            _ => {
                decoder.mismatch(node, "a path, or a CustomResourceDefinition");
                None
            }
        }
    }
}

inline_schema!(Crd, {"type": ["string", "object"]});

/// The source of an expression: a string without braces, or `true` or `false`; in places that give a
/// value also a number.
#[derive(Debug, Clone)]
pub struct Expression(pub At<String>);

impl Decode for Expression {
    fn decode(node: &Node, decoder: &mut Decoder) -> Option<Self> {
        if matches!(node.value, NodeValue::Number(_)) {
            decoder.mismatch(node, "an expression");
            return None;
        }
        decode_expression(node, decoder).map(Self)
    }
}

inline_schema!(Expression, {"type": ["string", "boolean"]});

fn decode_expression(node: &Node, decoder: &mut Decoder) -> Option<At<String>> {
    let text = match &node.value {
        NodeValue::String(text) if text.trim().is_empty() => {
            decoder.error("package::expression", node, "the expression is empty");
            return None;
        }
        NodeValue::String(text) => {
            let braces = text.trim().strip_prefix("{{").and_then(|text| text.strip_suffix("}}"));
            if let Some(inner) = braces {
                let help = format!("write: {}", inner.trim());
                let message = "expressions are written without braces";
                decoder.error_help("package::expression", node, message, help);
                return None;
            }
            text.clone()
        }
        NodeValue::Bool(value) => value.to_string(),
        NodeValue::Number(value) => value.to_string(),
        NodeValue::Null => {
            decoder.mismatch(node, "an expression");
            return None;
        }
        NodeValue::Seq(_) | NodeValue::Map(_) => {
            let text = decoder.text(node);
            let shape = if matches!(node.value, NodeValue::Seq(_)) { "a list" } else { "a map" };
            let help = if text.contains('\n') {
                "write the expression as one string, in quotes".to_owned()
            } else {
                format!("quote it: \"{}\"", text.replace('"', "'"))
            };
            let message = format!("an expression must be a string, YAML reads this as {shape}");
            decoder.error_help("package::quote", node, message, help);
            return None;
        }
    };
    Some(decoder.place(node, text))
}

/// The source of a template in `operator.yaml`: a string with `{{ }}`.
#[derive(Debug, Clone)]
pub struct TemplateText(pub At<String>);

impl Decode for TemplateText {
    fn decode(node: &Node, decoder: &mut Decoder) -> Option<Self> {
        At::decode(node, decoder).map(Self)
    }
}

inline_schema!(TemplateText, {"type": "string"});

/// The value of a `let`: a template, or a constant.
#[derive(Debug, Clone)]
pub enum LetValue {
    /// A string, which may hold `{{ }}`.
    Text(At<String>),
    /// Anything else.
    Constant(Value),
}

impl Decode for LetValue {
    fn decode(node: &Node, decoder: &mut Decoder) -> Option<Self> {
        if let NodeValue::String(text) = &node.value {
            return Some(Self::Text(decoder.place(node, text.clone())));
        }
        if let Some(template) = find_template(node) {
            let help = "write the whole as one expression: \"{{ ['a', name] }}\", \"{{ {'app': name} }}\"";
            let message = "a list or a map here is a constant, it cannot hold a template";
            decoder.error_help("package::type", template, message, help);
            return None;
        }
        Some(Self::Constant(node.to_json()))
    }
}

/// A string with braces in a list or a map.
fn find_template(node: &Node) -> Option<&Node> {
    match &node.value {
        NodeValue::String(text) => text.contains("{{").then_some(node),
        NodeValue::Seq(items) => items.iter().find_map(find_template),
        NodeValue::Map(entries) => entries.iter().find_map(|(_, value)| find_template(value)),
        _ => None,
    }
}

inline_schema!(LetValue, {});

/// What happens when an object is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnLoss {
    /// It is made anew.
    Recreate,
}

impl Decode for OnLoss {
    fn decode(node: &Node, decoder: &mut Decoder) -> Option<Self> {
        let word = String::decode(node, decoder)?;
        if word != "Recreate" {
            let message = "this version of Operetta does not do plans yet";
            decoder.error_help("package::not-yet", node, message, "onLoss can be Recreate");
            return None;
        }
        Some(Self::Recreate)
    }
}

inline_schema!(OnLoss, {"type": "string", "enum": ["Recreate"]});

/// How many members of a forEach child may be unavailable while they are given a new intent.
#[derive(Debug, Clone)]
pub enum MaxUnavailable {
    /// That many, at least 1.
    Number(u64),
    /// That part of all, 1 to 100.
    Percent(u64),
    /// A template that gives either.
    Text(String),
}

impl MaxUnavailable {
    /// A number from 1, as number or string, or a percentage from `1%` to `100%`.
    pub fn parse(value: &Value) -> Option<Self> {
        let text = match value {
            Value::Number(number) => number.to_string(),
            Value::String(text) => text.clone(),
            _ => return None,
        };
        if let Some(percent) = text.strip_suffix('%') {
            return percent.parse().ok().filter(|percent| (1..=100).contains(percent)).map(Self::Percent);
        }
        text.parse().ok().filter(|number| *number >= 1).map(Self::Number)
    }
}

impl Decode for MaxUnavailable {
    fn decode(node: &Node, decoder: &mut Decoder) -> Option<Self> {
        if let NodeValue::String(text) = &node.value
            && text.contains("{{")
        {
            return Some(Self::Text(text.clone()));
        }
        let found = Self::parse(&node.to_json());
        if found.is_none() {
            decoder.error("package::type", node, "must be a number from 1, or a percentage from 1% to 100%");
        }
        found
    }
}

inline_schema!(MaxUnavailable, {
    "oneOf": [{"type": "integer", "minimum": 1}, {"type": "string", "pattern": "^[0-9]+%?$|\\{\\{"}]
});

/// Fields given up once another manager owns them.
#[derive(Debug, Clone)]
pub enum Yields {
    /// One template that gives the list.
    One(TemplateText),
    /// The paths, each a template.
    List(Vec<TemplateText>),
}

impl Decode for Yields {
    fn decode(node: &Node, decoder: &mut Decoder) -> Option<Self> {
        match node.value {
            NodeValue::Seq(_) => Vec::decode(node, decoder).map(Self::List),
            _ => TemplateText::decode(node, decoder).map(Self::One),
        }
    }
}

inline_schema!(Yields, {"oneOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]});

/// The namespaces in which a selector looks.
#[derive(Debug, Clone)]
pub enum Namespaces {
    /// Every one.
    All,
    /// These.
    List(Vec<TemplateText>),
}

impl Decode for Namespaces {
    fn decode(node: &Node, decoder: &mut Decoder) -> Option<Self> {
        match &node.value {
            NodeValue::String(text) if text == "all" => Some(Self::All),
            NodeValue::Seq(_) => Vec::decode(node, decoder).map(Self::List),
            _ => {
                decoder.mismatch(node, "`all`, or a list of namespaces");
                None
            }
        }
    }
}

inline_schema!(Namespaces, {"oneOf": [{"const": "all"}, {"type": "array", "items": {"type": "string"}}]});

/// Any YAML whose strings are templates.
#[derive(Debug, Clone)]
pub enum Tree {
    /// A template.
    Text(At<String>),
    /// A list of them.
    List(Vec<Tree>),
    /// A map of them.
    Map(Vec<(String, Tree)>),
    /// A number, a boolean or null.
    Constant(Value),
}

impl Decode for Tree {
    fn decode(node: &Node, decoder: &mut Decoder) -> Option<Self> {
        Some(match &node.value {
            NodeValue::String(text) => Self::Text(decoder.place(node, text.clone())),
            NodeValue::Seq(_) => Self::List(Vec::decode(node, decoder)?),
            NodeValue::Map(_) => {
                let mut entries = Vec::new();
                for (key, _, value) in decoder.entries(node, "a map")? {
                    let value = decoder.in_key(key, |decoder| Self::decode(value, decoder))?;
                    entries.push((key.to_owned(), value));
                }
                Self::Map(entries)
            }
            _ => Self::Constant(node.to_json()),
        })
    }
}

inline_schema!(Tree, {"type": ["string", "object"]});

/// The projected status: dotted names to expressions.
#[derive(Debug, Clone)]
pub struct Status(pub Vec<StatusField>);

/// One projected field.
#[derive(Debug, Clone)]
pub struct StatusField {
    /// Its dotted name, for instance `members.ready`, at the place of the last key.
    pub name: At<String>,
    /// What it shows.
    pub value: StatusValue,
    /// Whether it may show data of Secrets.
    pub exposes_secret_data: bool,
}

/// What a field of the status shows.
#[derive(Debug, Clone)]
pub enum StatusValue {
    /// The value of an expression.
    Expression(Expression),
    /// What a JSONPath finds.
    JsonPath(At<String>),
}

impl Decode for Status {
    fn decode(node: &Node, decoder: &mut Decoder) -> Option<Self> {
        let mut fields = Vec::new();
        decode_status(node, decoder, "", &mut fields)?;
        Some(Self(fields))
    }
}

const EXPOSES: &str =
    "Whether the field may show data of Secrets: whoever may read the instance reads that data.";

fn decode_status(node: &Node, decoder: &mut Decoder, prefix: &str, out: &mut Vec<StatusField>) -> Option<()> {
    for (key, key_node, value) in decoder.entries(node, "a map from names to expressions")? {
        decoder.in_key(key, |decoder| {
            if key == "jsonPath" && !prefix.is_empty() {
                let message = "`jsonPath` stands alone in its map";
                return decoder.error_help("package::value", key_node, message, "remove the other keys");
            }
            let named = VariableName::decode(key_node, decoder);
            let name = if prefix.is_empty() { key.to_owned() } else { format!("{prefix}.{key}") };
            let mut exposes_secret_data = false;
            let shown = match &value.value {
                NodeValue::Map(_) if value.get("exposesSecretData").is_some() => {
                    decode_exposing(value, decoder, &mut exposes_secret_data)
                }
                NodeValue::Map(entries) => match entries.as_slice() {
                    [(_, path)] if value.get("jsonPath").is_some() => decoder
                        .in_key("jsonPath", |decoder| At::decode(path, decoder))
                        .map(StatusValue::JsonPath),
                    _ => {
                        decode_status(value, decoder, &name, out);
                        None
                    }
                },
                _ => decode_expression(value, decoder).map(|text| StatusValue::Expression(Expression(text))),
            };
            if let Some(value) = shown
                && named.is_some()
            {
                out.push(StatusField { name: decoder.place(key_node, name), value, exposes_secret_data });
            }
        });
    }
    Some(())
}

/// `{value: expression, exposesSecretData: true}`, or with `jsonPath` in place of `value`.
fn decode_exposing(node: &Node, decoder: &mut Decoder, exposes: &mut bool) -> Option<StatusValue> {
    let mut shown = None;
    for (key, key_node, value) in decoder.entries(node, "a map with `value` or `jsonPath`")? {
        decoder.in_key(key, |decoder| match key {
            "exposesSecretData" => *exposes = bool::decode(value, decoder).unwrap_or_default(),
            "value" if shown.is_none() => {
                shown =
                    decode_expression(value, decoder).map(|text| StatusValue::Expression(Expression(text)));
            }
            "jsonPath" if shown.is_none() => shown = At::decode(value, decoder).map(StatusValue::JsonPath),
            _ => decoder.error_help(
                "package::value",
                key_node,
                "beside `exposesSecretData` stands `value`, an expression, or `jsonPath`",
                "write {value: <expression>, exposesSecretData: true}",
            ),
        });
    }
    if shown.is_none() {
        decoder.error_help(
            "package::missing",
            node,
            "`exposesSecretData` stands beside `value` or `jsonPath`",
            "write {value: <expression>, exposesSecretData: true}",
        );
    }
    shown
}

impl JsonSchema for Status {
    fn schema_name() -> Cow<'static, str> {
        "Status".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "object",
            "description": "A name (or a map of names) to an expression or a JSONPath each.",
            "additionalProperties": {"anyOf": [
                {"type": ["string", "boolean", "number"]},
                {
                    "type": "object",
                    "description": "What a JSONPath (RFC 9535) finds, from the variables on.",
                    "required": ["jsonPath"],
                    "additionalProperties": false,
                    "properties": {
                        "jsonPath": {
                            "type": "string",
                            "description": "For instance .children.deployment.status.conditions[?(@.type=='Available')].status. \
                                What finds several values gives a list, or the only one where the CRD's schema of the field is no list.",
                        },
                        "exposesSecretData": {"type": "boolean", "description": EXPOSES},
                    },
                },
                {
                    "type": "object",
                    "description": "An expression that may show data of Secrets.",
                    "required": ["value", "exposesSecretData"],
                    "additionalProperties": false,
                    "properties": {
                        "value": {"type": ["string", "boolean", "number"], "description": "The expression."},
                        "exposesSecretData": {"type": "boolean", "description": EXPOSES},
                    },
                },
                generator.subschema_for::<Self>(),
            ]}
        })
    }
}
