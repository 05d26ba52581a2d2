//! The format of `operator.yaml`: the types from which the decoder and the JSON Schema are generated.
//!
//! Editors show the doc comments of fields as the documentation of a key.

// Editors show these comments unformatted, so backticks are only for text that an author types.
#![allow(clippy::doc_markdown)]

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use semver::{Version, VersionReq};
use serde_json::Value;

use super::decode::{At, Constants, Decode, Decoder, Must, Named, choice, manifest};
use super::plan;
use super::plan::manifest::Plan;
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
        /// The content of the package.
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
    /// The content of the package.
    pub struct Spec {
        /// The version of the package: SemVer with three parts, for example 0.1.0.
        "version" version: Must<At<SemVer>>,
        /// The version of the application, for example "3.6". Informational; available as `operator.appVersion`.
        "appVersion" app_version: Option<String>,
        /// One sentence that describes the package.
        "description" description: Option<String>,
        /// URL of an icon.
        "icon" icon: Option<String>,
        /// Search keywords.
        "keywords" keywords: Option<Vec<String>>,
        /// URL of the project's home page.
        "home" home: Option<String>,
        /// URLs of the source code.
        "sources" sources: Option<Vec<String>>,
        /// SPDX expression of the licence, for example Apache-2.0.
        "license" license: Option<String>,
        /// The maintainers of the package.
        "maintainers" maintainers: Option<Vec<Maintainer>>,
        /// Requirements of the package.
        "requires" requires: Option<Requires>,
        /// RBAC rules that cannot be derived from the templates.
        "permissions" permissions: Option<Vec<At<Rule>>>,
        /// Constants, available as `defaults.x`. Templates are not allowed here.
        "defaults" defaults: Option<Constants>,
        /// Named values for all resources, available as `let.x`. Each is a template that is evaluated where it is read:
        /// `image: "{{ spec.repository }}:{{ spec.version }}"`.
        "let" lets: Option<Named<LetValue>>,
        /// The kinds of the package.
        "resources" resources: Must<Vec<At<Resource>>>,
    }
}

manifest! {
    /// A maintainer of the package.
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
    /// Requirements of the package.
    pub struct Requires later ["operators"] {
        /// Supported versions of Operetta, for example ">=0.1".
        "operetta" operetta: Option<At<SemVerRange>>,
        /// Supported versions of Kubernetes, for example ">=1.30".
        "kubernetes" kubernetes: Option<At<SemVerRange>>,
    }
}

manifest! {
    /// One RBAC rule, as in a ClusterRole.
    pub struct Rule {
        /// API groups; "" is the core group.
        "apiGroups" api_groups: Vec<String>,
        /// Plural resource names, for example deployments.
        "resources" resources: Vec<String>,
        /// Names of single objects. Default: all objects.
        "resourceNames" resource_names: Option<Vec<String>>,
        /// For example get, list, watch, create, patch, delete.
        "verbs" verbs: Vec<String>,
    }
}

manifest! {
    /// One kind of the package: its CustomResourceDefinition, and the objects of each instance.
    pub struct Resource {
        /// The CustomResourceDefinition: the path of its file, for example crds/webapp.yaml, or the object itself.
        "crd" crd: Must<Crd>,
        /// Whether to adopt a CRD that another tool applies, for example from Git: its text is the base, and only the
        /// additions that Operetta needs are made.
        "adopt" adopt: Option<bool>,
        /// Named values of this resource, available as `let.x`; they take precedence over those of the package.
        "let" lets: Option<Named<LetValue>>,
        /// Expression: while it is true, nothing of the instance is written, only reported. For example `spec.paused`.
        "paused" paused: Option<Expression>,
        /// Expression: when the instance is Ready. Default: when all children are ready.
        "readyWhen" ready_when: Option<Expression>,
        /// Objects that an instance reads and does not own, available as `refs.<id>`. They are watched: a change
        /// reconciles the instance.
        "refs" refs: Option<Vec<Ref>>,
        /// The Kubernetes objects that belong to an instance. A child is created after the children that it reads;
        /// independent children are created in parallel.
        "children" children: Option<Vec<ChildEntry>>,
        /// The fields of the instance's status: a name (or a map of names) to an expression, for example
        /// `replicas: children.deployment.status.readyReplicas | default(0)`, or to a JSONPath:
        /// `replicas: {jsonPath: .children.deployment.status.readyReplicas}`.
        "status" status: Option<Status>,
        /// The package's own conditions in the instance's status.
        "conditions" conditions: Option<Vec<Condition>>,
        /// Ordered procedures by name. deploy, update, upgrade and cleanup have an implied trigger. The order matters:
        /// plans that one change selects run in the order of the file.
        "plans" plans: Option<Named<Plan>>,
    }
}

manifest! {
    /// A Kubernetes object, or several with forEach, that belongs to an instance and is reconciled to match its
    /// template.
    pub struct Child later ["refs"] {
        /// The id of the child in this package; live objects are available as `children.<id>`. It is part of labels, so
        /// it must not change between versions.
        "id" id: At<ChildId>,
        /// The path of the template, for example templates/deployment.yaml.
        "template" template: Must<At<String>>,
        /// Expression: the child exists only while it is true. For example `spec.host is defined`.
        "when" when: Option<Expression>,
        /// One object for each item of a list.
        "forEach" for_each: Option<ForEach>,
        /// With forEach: how many existing members are updated at a time, a number or a percentage such as 25%.
        /// Default: all.
        "maxUnavailable" max_unavailable: Option<At<MaxUnavailable>>,
        /// Ids of children that must be ready first, in addition to those that the template, `when` and `forEach` read.
        "dependsOn" depends_on: Option<Vec<At<String>>>,
        /// Expression: when the object (`self`) is ready. Default: the rules of kstatus.
        "readyWhen" ready_when: Option<Expression>,
        /// What happens when the child is no longer desired: Delete (default), Retain (default of kinds that hold data,
        /// such as PersistentVolumeClaim, and of kinds of packages), or Ask.
        "deletionPolicy" deletion_policy: Option<DeletionPolicy>,
        /// What happens when another manager owns one of the fields: Force takes the field (default), Fail reports the
        /// conflict.
        "conflictPolicy" conflict_policy: Option<ConflictPolicy>,
        /// What happens when the API server refuses a change because a field is immutable: Fail reports it (default),
        /// Recreate deletes the object and creates it again, after a dry run has shown that the new object is valid; or a
        /// template that yields either. Recreate is not allowed for kinds that hold data.
        "onImmutableChange" on_immutable_change: Option<At<OnImmutableChange>>,
        /// What happens when the object is lost: Recreate creates it again, with new generated values; else the name of
        /// a plan, or a template that yields either. Default: Recreate. Required for a child with `password(...)` or
        /// `tls_self_signed(...)`.
        "onLoss" on_loss: Option<TemplateText>,
        /// Expression: the object (`self`) counts as lost while it is true, in addition to being gone.
        "lostWhen" lost_when: Option<Expression>,
        /// Fields that are released once another manager, such as an autoscaler, owns them: a list of paths, or one
        /// template that yields a list: `"{{ ['spec.replicas'] if spec.autoscaling else [] }}"`.
        "yields" yields: Option<Yields>,
        /// Ids of the child in earlier versions of the package: objects with those ids belong to this child.
        "renamedFrom" renamed_from: Option<Vec<At<String>>>,
        /// Whether to adopt an existing object of that name. Default: only with the annotation
        /// `operetta.dev/adopt: "true"` on the object.
        "adopt" adopt: Option<bool>,
        /// Whether an object that is not a Secret may contain data of Secrets, which everybody who may read the object
        /// can read. Without it, such a template is an error.
        "exposesSecretData" exposes_secret_data: Option<bool>,
    }
}

manifest! {
    /// Children that share a loop, its keys and a `when`. Between them, order applies per key: the quota of `a` waits
    /// only for the namespace of `a`.
    pub struct Group later ["refs"] {
        /// One object of each child for each item of a list.
        "forEach" for_each: Option<ForEach>,
        /// Expression: the children exist only while it is true; with forEach it is evaluated for each item. A child
        /// may have its own `when` in addition.
        "when" when: Option<Expression>,
        /// The children. Their ids are used like those outside the group. They cannot have their own forEach.
        "children" children: Must<Vec<Child>>,
    }
}

/// A child, or a group of children.
#[derive(Debug, Clone)]
pub enum ChildEntry {
    /// One child.
    Child(Box<Child>),
    /// Several children that share a loop.
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
    /// An object, or several with a selector, that an instance reads and does not own; or an observation of something
    /// that Kubernetes does not know, with exec or http. While a required object does not exist, or the ref cannot be
    /// read, it is unknown: everything that reads it keeps its current value.
    pub struct Ref {
        /// The id of the ref, available to expressions as `refs.<id>`.
        "id" id: At<ChildId>,
        /// The apiVersion of the object, for example v1.
        "apiVersion" api_version: Option<Must<At<ApiVersionName>>>,
        /// The kind of the object, for example Secret.
        "kind" kind: Option<Must<At<KindName>>>,
        /// The name of the object; a template: "{{ spec.tlsSecret }}".
        "name" name: Option<TemplateText>,
        /// Instead of a name: all objects with matching labels, as a list. A label selector (matchLabels and
        /// matchExpressions), a plain map of labels, or a template that yields one: "{{ spec.monitorSelector }}".
        "selector" selector: Option<Tree>,
        /// The namespace of the object: a literal, or "{{ operator.namespace }}". Default: the instance's own
        /// namespace. Only cluster-scoped instances may compute it.
        "namespace" namespace: Option<TemplateText>,
        /// With a selector: `all`, or a list of namespaces, each like `namespace` above. Default: the instance's own
        /// namespace.
        "namespaces" namespaces: Option<At<Namespaces>>,
        /// One object (or list, with a selector) for each item of a list: the ref is a map by key, and each key is
        /// awaited, absent or unknown separately.
        "forEach" for_each: Option<ForEach>,
        /// Expression: the object is read only while it is true; otherwise the ref is undefined. For example
        /// `spec.tlsSecret is defined`. With forEach it is evaluated for each item.
        "when" when: Option<Expression>,
        /// Whether the object may be absent, and is then undefined. Without it an absent object is awaited.
        "optional" optional: Option<bool>,
        /// An observation: a command in a container of a child. The ref has exitCode, stdout, stderr, and json if the
        /// output is JSON.
        "exec" exec: Option<Must<At<plan::manifest::Exec>>>,
        /// An observation: an HTTP request. The ref has status, headers (by lower-case name) and body.
        "http" http: Option<Must<At<plan::manifest::Http>>>,
        /// Of an observation: how often it is made, at least 5s, for example 1m. Default: 30s. It is repeated before
        /// each step of a plan that reads it.
        "every" every: Option<At<plan::manifest::Interval>>,
        /// Of an observation: whether it is made only while a plan runs; otherwise the ref is unknown. For what only steps
        /// read.
        "onlyInRuns" only_in_runs: Option<At<bool>>,
        /// Of an observation: which answers count; any other makes the ref unknown. A list of statuses (http), or an
        /// expression over the answer. Default: the statuses 200 to 299, or exitCode 0.
        "expect" expect: Option<At<plan::manifest::Expect>>,
    }
}

manifest! {
    /// One object for each item of a list.
    pub struct ForEach {
        /// Expression: the list, for example `range(spec.size)`.
        "in" list: Must<Expression>,
        /// The name of the item in the template. Default: item.
        "as" name: Option<At<VariableName>>,
        /// Expression: the key of the member, a string or an integer. Default: the item itself.
        "key" key: Option<Expression>,
    }
}

manifest! {
    /// One of the package's own conditions in the instance's status.
    pub struct Condition {
        /// The condition's type in CamelCase, for example QuorumLost.
        "type" condition_type: At<ConditionName>,
        /// Expression: the condition is True while it is true, else False.
        "when" when: Expression,
        /// The reason, one word in CamelCase.
        "reason" reason: At<ConditionName>,
        /// The message, a sentence for people; a template: "{{ spec.size }} members tolerate no loss".
        "message" message: Option<TemplateText>,
        /// Whether the message may contain data of Secrets, which everybody who may read the instance can read.
        "exposesSecretData" exposes_secret_data: Option<bool>,
    }
}

choice! {
    /// What happens to a child that is no longer desired.
    pub enum DeletionPolicy {
        /// The object is deleted.
        Delete,
        /// The object stays.
        Retain,
        /// The object stays until a person approves the deletion with `operetta plan approve`; the condition DeletionPending
        /// names it.
        Ask,
    }
}

choice! {
    /// What happens when another field manager owns one of the fields.
    pub enum ConflictPolicy {
        /// The field is taken.
        Force,
        /// The conflict is reported, and the child waits.
        Fail,
    }
}

choice! {
    /// What happens when a field of the live object cannot be changed.
    pub enum ImmutableChange {
        /// It is reported.
        Fail,
        /// The object is deleted and created again.
        Recreate,
    }
}

/// Declares a string with a required form.
macro_rules! word {
    ($(#[$meta:meta])* $name:ident, $pattern:literal, $max:literal, $form:literal, $check:expr) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct $name(pub String);

        impl $name {
            /// What is wrong with a text.
            pub fn problem(text: &str) -> Option<String> {
                let check: fn(&str) -> bool = $check;
                let fits = text.len() <= $max && check(text);
                (!fits).then(|| format!(concat!("must be ", $form, ", at most {} characters"), $max))
            }
        }

        impl Decode for $name {
            fn decode(node: &Node, decoder: &mut Decoder) -> Option<Self> {
                let text = String::decode(node, decoder)?;
                match Self::problem(&text) {
                    None => Some(Self(text)),
                    Some(message) => {
                        decoder.error("package::name", node, message);
                        None
                    }
                }
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

pub(super) fn starts(text: &str, first: fn(char) -> bool, rest: fn(char) -> bool) -> bool {
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
    /// The name of a variable in expressions.
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

/// A string with one allowed value.
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

/// A type whose JSON Schema is inline.
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

pub(super) use {inline_schema, word};

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
                decoder.error_help("package::version", node, message, "write three parts, for example 0.1.0");
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
                decoder.error_help("package::version", node, message, "write for example \">=1.30\"");
                None
            }
        }
    }
}

inline_schema!(SemVerRange, {"type": "string"});

/// A CustomResourceDefinition: in a file, or inline.
#[derive(Debug, Clone)]
pub enum Crd {
    /// The path of its file.
    Path(At<String>),
    /// The object itself.
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

/// The source of an expression: a string without braces, or `true` or `false`; for values also a number.
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

pub(super) fn decode_expression(node: &Node, decoder: &mut Decoder) -> Option<At<String>> {
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
    /// A string, which may contain `{{ }}`.
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
            let help =
                "write the whole value as one expression: \"{{ ['a', name] }}\", \"{{ {'app': name} }}\"";
            let message = "a list or a map here is a constant and cannot contain a template";
            decoder.error_help("package::type", template, message, help);
            return None;
        }
        Some(Self::Constant(node.to_json()))
    }
}

/// Finds a string with braces in a list or a map.
fn find_template(node: &Node) -> Option<&Node> {
    match &node.value {
        NodeValue::String(text) => text.contains("{{").then_some(node),
        NodeValue::Seq(items) => items.iter().find_map(find_template),
        NodeValue::Map(entries) => entries.iter().find_map(|(_, value)| find_template(value)),
        _ => None,
    }
}

inline_schema!(LetValue, {});

/// How many members of a forEach child may be unavailable while they are updated.
#[derive(Debug, Clone)]
pub enum MaxUnavailable {
    /// A number, at least 1.
    Number(u64),
    /// A percentage of all members, 1 to 100.
    Percent(u64),
    /// A template that yields either.
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

/// What happens when a field of the live object cannot be changed.
#[derive(Debug, Clone)]
pub enum OnImmutableChange {
    /// A literal.
    Word(ImmutableChange),
    /// A template that yields one.
    Text(String),
}

impl Decode for OnImmutableChange {
    fn decode(node: &Node, decoder: &mut Decoder) -> Option<Self> {
        match &node.value {
            NodeValue::String(text) if text.contains("{{") => Some(Self::Text(text.clone())),
            _ => ImmutableChange::decode(node, decoder).map(Self::Word),
        }
    }
}

inline_schema!(OnImmutableChange, {
    "oneOf": [{"enum": ["Fail", "Recreate"]}, {"type": "string", "pattern": "\\{\\{"}]
});

/// Fields that are released once another manager owns them.
#[derive(Debug, Clone)]
pub enum Yields {
    /// One template that yields the list.
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

/// The namespaces of a selector.
#[derive(Debug, Clone)]
pub enum Namespaces {
    /// All namespaces.
    All,
    /// These namespaces.
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

/// Any YAML value whose strings are templates.
#[derive(Debug, Clone)]
pub enum Tree {
    /// A template.
    Text(At<String>),
    /// A list of such values.
    List(Vec<Tree>),
    /// A map of such values.
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

inline_schema!(Tree, {"type": ["string", "object", "array", "number", "boolean"]});

/// The projected status: dotted names to expressions.
#[derive(Debug, Clone)]
pub struct Status(pub Vec<StatusField>);

/// One projected field.
#[derive(Debug, Clone)]
pub struct StatusField {
    /// Its dotted name, for example `members.ready`, located at the last key.
    pub name: At<String>,
    /// Its value.
    pub value: StatusValue,
    /// Whether it may contain data of Secrets.
    pub exposes_secret_data: bool,
}

/// The value of a status field.
#[derive(Debug, Clone)]
pub enum StatusValue {
    /// The value of an expression.
    Expression(Expression),
    /// The result of a JSONPath.
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
    "Whether the field may contain data of Secrets, which everybody who may read the instance can read.";

fn decode_status(node: &Node, decoder: &mut Decoder, prefix: &str, out: &mut Vec<StatusField>) -> Option<()> {
    for (key, key_node, value) in decoder.entries(node, "a map from names to expressions")? {
        decoder.in_key(key, |decoder| {
            if key == "jsonPath" && !prefix.is_empty() {
                let message = "`jsonPath` must be the only key of its map";
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
                "`exposesSecretData` requires `value`, an expression, or `jsonPath`",
                "write {value: <expression>, exposesSecretData: true}",
            ),
        });
    }
    if shown.is_none() {
        decoder.error_help(
            "package::missing",
            node,
            "`exposesSecretData` requires `value` or `jsonPath`",
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
                    "description": "The result of a JSONPath (RFC 9535) that starts at the variables.",
                    "required": ["jsonPath"],
                    "additionalProperties": false,
                    "properties": {
                        "jsonPath": {
                            "type": "string",
                            "description": "For example .children.deployment.status.conditions[?(@.type=='Available')].status. \
                                What finds several values gives a list, or the only one where the CRD's schema of the field is no list.",
                        },
                        "exposesSecretData": {"type": "boolean", "description": EXPOSES},
                    },
                },
                {
                    "type": "object",
                    "description": "An expression that may contain data of Secrets.",
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
