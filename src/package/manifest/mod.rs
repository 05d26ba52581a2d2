//! The format of `operator.yaml`: the types from which the decoder and the JSON Schema are generated.
//!
//! Editors show the doc comments of fields as the documentation of a key.

// Editors show these comments unformatted, so backticks are only for text that an author types.
#![allow(clippy::doc_markdown)]

mod conversion;
mod expressions;
mod settings;
mod status;
mod words;

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

pub use self::conversion::{Conversion, ConversionRule};
pub(super) use self::expressions::decode_expression;
pub use self::expressions::{Expression, LetValue, TemplateText, Tree};
pub use self::settings::{Crd, MaxUnavailable, Namespaces, OnImmutableChange, Yields};
pub use self::status::{Status, StatusField, StatusValue};
pub use self::words::{
    API_VERSION, ApiVersion, ApiVersionName, ChildId, ConditionName, ImmutableChange, KIND, Kind, KindName,
    PackageName, Repository, SemVer, SemVerRange, Sha256, VariableName,
};
pub(super) use self::words::{inline_schema, literal, starts, word};
use super::decode::{At, Constants, Decode, Decoder, Must, Named, choice, manifest};
use super::plan;
use super::plan::manifest::Plan;
use crate::yaml::Node;

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
        /// Kinds that the package uses, and that another package or operator brings.
        "apis" apis: Option<Vec<At<RequiredApi>>>,
    }
}

manifest! {
    /// A kind that another package or operator brings.
    pub struct RequiredApi {
        /// The apiVersion of the kind, for example cache.example.org/v1.
        "apiVersion" api_version: Must<At<ApiVersionName>>,
        /// The kind, for example Cache.
        "kind" kind: Must<At<KindName>>,
        /// The repository of a package that brings it: oci://HOST/PATH, without tag and digest. `operetta package` chooses
        /// the version and records its digest.
        "package" package: Option<Repository>,
        /// Supported versions of that package, for example "^1.2". Default: all that are no pre-release.
        "version" version: Option<At<SemVerRange>>,
        /// Whether the package does without it, such as behind a `when`: then nothing is installed for it. Default: false.
        "optional" optional: Option<bool>,
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
        /// How objects are converted between the versions of the CRD, if their schemas differ.
        "conversion" conversion: Option<At<Conversion>>,
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
        /// Recreate deletes the object and creates it again, after a dry run has shown that the new object is valid; Orphan
        /// does the same and keeps what the object owns, such as the pods of a StatefulSet; or a template that yields one
        /// of them. Recreate and Orphan are not allowed for kinds that hold data.
        "onImmutableChange" on_immutable_change: Option<At<OnImmutableChange>>,
        /// What happens when the object is lost: Recreate creates it again, with new generated values; else the name of
        /// a plan, or a template that yields either. Default: Recreate. Required for a child with `password(...)`,
        /// `tls_self_signed(...)`, `tls_ca(...)` or `tls_signed(...)`.
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
        /// Whether the instance is not Ready while the ref is unknown: it does not exist, cannot be read, or has no answer
        /// that is expected. Otherwise the condition RefUnknown names it. Default: true, unless it is observed only in runs,
        /// or only `status`, `conditions` and plans that do not affect Ready read it.
        "affectsReady" affects_ready: Option<At<bool>>,
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
