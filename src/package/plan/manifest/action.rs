//! The actions of steps.

// Editors show these comments unformatted, so backticks are only for text that an author types.
#![allow(clippy::doc_markdown, rustdoc::broken_intra_doc_links)]

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

use super::words::{AnyPort, Bytes, Count, Interval, Redirects, Time};
use crate::decode::{At, Decode, Decoder, Must, Named, choice, manifest};
use crate::manifest::{ApiVersionName, Expression, KindName, TemplateText, Tree, inline_schema};
use crate::yaml::{Node, NodeValue};

/// A child, or one member: the id, and the source of the key in brackets.
#[derive(Debug, Clone)]
pub struct Members {
    /// The id of the child.
    pub child: String,
    /// The key of a member, as written between the brackets.
    pub key: Option<String>,
}

impl Decode for Members {
    fn decode(node: &Node, decoder: &mut Decoder) -> Option<Self> {
        let text = String::decode(node, decoder)?;
        if text.starts_with("{{") {
            let message = "the id of a child must be a literal";
            decoder.error_help("package::unknown-child", node, message, "write \"members[{{ i }}]\"");
            return None;
        }
        let Some((child, rest)) = text.split_once('[') else {
            return Some(Self { child: text, key: None });
        };
        let Some(key) = rest.strip_suffix(']').map(str::trim).filter(|key| !key.is_empty()) else {
            let message = format!("`{text}` is not the id of a child, or a member of one");
            decoder.error_help("package::value", node, message, "write \"members[{{ i }}]\"");
            return None;
        };
        Some(Self { child: child.to_owned(), key: Some(key.to_owned()) })
    }
}

inline_schema!(Members, {"type": "string"});

manifest! {
    /// A Job.
    pub struct Job {
        /// The path of its template, for example templates/backup-job.yaml. Its metadata may be left out.
        "template" template: Must<At<String>>,
    }
}

manifest! {
    /// A command in a container of a child.
    pub struct Exec {
        /// The id of a ref by name to another instance of this package, in the same namespace: the child is one of that
        /// instance. Default: a child of this instance.
        "of" of: Option<At<String>>,
        /// The child: a Pod, or a workload of which a ready pod is taken; one member of a forEach child:
        /// "members[{{ i }}]".
        "child" child: At<Members>,
        /// Of a workload: the ordinal of the pod; a template.
        "ordinal" ordinal: Option<Tree>,
        /// The container; a template. Default: the only one, or the pod's default container.
        "container" container: Option<TemplateText>,
        /// The command and its arguments: a list of templates, or one template that yields a list. No shell is
        /// involved.
        "command" command: Must<At<Tree>>,
        /// The standard input; a template. It may hold secret data.
        "stdin" stdin: Option<TemplateText>,
    }
}

choice! {
    /// The method of an HTTP request.
    #[allow(clippy::upper_case_acronyms)]
    pub enum Method {
        /// Reads.
        GET,
        /// Reads the headers.
        HEAD,
        /// Creates.
        POST,
        /// Replaces.
        PUT,
        /// Changes.
        PATCH,
        /// Deletes.
        DELETE,
    }
}

manifest! {
    /// An HTTP request, to a `url`, or to a pod of a `child`. 5xx, 429 and failed connections count as attempts to retry;
    /// any other unexpected answer fails.
    pub struct Http {
        /// GET (default), HEAD, POST, PUT, PATCH or DELETE.
        "method" method: Option<Method>,
        /// The URL; a template. Its host is a literal, or made of `defaults` and `operator`. Values in the path and in
        /// the query are percent-encoded.
        "url" url: Option<TemplateText>,
        /// Instead of a URL: the child whose pod answers, as in exec: a Pod, a workload, or "members[{{ i }}]".
        "child" child: Option<At<Members>>,
        /// With `child`: the id of a ref by name to another instance of this package, in the same namespace, whose child it is.
        "of" of: Option<At<String>>,
        /// With `child`, of a workload: the ordinal of the pod; a template.
        "ordinal" ordinal: Option<Tree>,
        /// With `child`: the port of the pod, or a template that yields one.
        "port" port: Option<AnyPort>,
        /// With `child`: the path and the query, which begin with a slash; a template. Values are percent-encoded. Default: /.
        "path" path: Option<TemplateText>,
        /// With `child`: http (default) or https.
        "scheme" scheme: Option<Scheme>,
        /// With `child`: the name of the server, for TLS and the header Host; a template. Default: the name of the pod.
        "host" host: Option<TemplateText>,
        /// The hosts that a computed host may be, for example "*.example.com".
        "hosts" hosts: Option<Vec<At<String>>>,
        /// Additional headers; templates. They may hold secret data.
        "headers" headers: Option<Named<TemplateText>>,
        /// The body as JSON: any value whose strings are templates. It may hold secret data.
        "json" json: Option<At<Tree>>,
        /// The body as application/x-www-form-urlencoded: names to templates. It may hold secret data.
        "form" form: Option<At<Named<TemplateText>>>,
        /// The body as it is; a template. It may hold secret data.
        "body" body: Option<TemplateText>,
        /// The Idempotency-Key; a template. Default: made of the instance's uid, the run and the step, the same for all
        /// attempts.
        "key" key: Option<TemplateText>,
        /// The credentials.
        "auth" auth: Option<At<Auth>>,
        /// The TLS material.
        "tls" tls: Option<Tls>,
        /// How many redirects are followed. Default: 0.
        "redirects" redirects: Option<Redirects>,
        /// The most bytes of an answer. Default: 1048576 (1 MiB).
        "maxBytes" max_bytes: Option<Bytes>,
        /// How long one attempt may take, for example 30s. Default: 30s.
        "timeout" timeout: Option<Interval>,
    }
}

choice! {
    /// How a pod is called.
    #[allow(non_camel_case_types)]
    pub enum Scheme {
        /// Without TLS.
        http,
        /// With TLS.
        https,
    }
}

manifest! {
    /// Credentials: `bearer` or `basic`.
    pub struct Auth {
        /// A bearer token; a template. No header is sent while it is `omit`.
        "bearer" bearer: Option<TemplateText>,
        /// A user and a password.
        "basic" basic: Option<Basic>,
    }
}

manifest! {
    /// A user and a password.
    pub struct Basic {
        /// The user; a template.
        "username" username: Must<TemplateText>,
        /// The password; a template.
        "password" password: Must<TemplateText>,
    }
}

manifest! {
    /// TLS material, PEM.
    pub struct Tls {
        /// The certificate of the CA that signs the server's certificate; a template. Default: those of the system.
        "ca" ca: Option<TemplateText>,
        /// The client's certificate; a template.
        "cert" cert: Option<TemplateText>,
        /// The key of the client's certificate; a template.
        "key" key: Option<TemplateText>,
    }
}

manifest! {
    /// Waits for an expression, a JSONPath or a time.
    pub struct Wait {
        /// Expression: the step is done when it is true.
        "until" until: Option<Expression>,
        /// A JSONPath (RFC 9535) that starts at the variables: .children.members.status.readyReplicas. The step is done
        /// when it finds a value, or the given one.
        "jsonPath" json_path: Option<At<String>>,
        /// With jsonPath: the value that it must find; a template, or a number or boolean.
        "value" value: Option<Tree>,
        /// How long to wait, for example 10s, or a template that yields a duration.
        "duration" duration: Option<Time>,
    }
}

manifest! {
    /// A JSON merge patch of an object that is no child.
    pub struct Patch {
        /// The apiVersion of the object, for example v1.
        "apiVersion" api_version: At<ApiVersionName>,
        /// The kind of the object, for example Node.
        "kind" kind: At<KindName>,
        /// The name of the object; a template.
        "name" name: Must<TemplateText>,
        /// The namespace of the object: a literal, or "{{ operator.namespace }}". Default: the instance's own.
        "namespace" namespace: Option<TemplateText>,
        /// The JSON merge patch: any value whose strings are templates.
        "merge" merge: Must<At<Tree>>,
    }
}

/// The name of a plan, or a map.
#[derive(Debug, Clone)]
pub enum Call {
    /// A plan of this resource, with the parameters of this run.
    Name(At<String>),
    /// A map.
    Map(Box<CallMap>),
}

impl Decode for Call {
    fn decode(node: &Node, decoder: &mut Decoder) -> Option<Self> {
        match &node.value {
            NodeValue::String(_) => At::decode(node, decoder).map(Self::Name),
            _ => CallMap::decode(node, decoder).map(|map| Self::Map(Box::new(map))),
        }
    }
}

impl JsonSchema for Call {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Call".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        json_schema!({"anyOf": [{"type": "string"}, generator.subschema_for::<CallMap>()]})
    }
}

manifest! {
    /// Another plan.
    pub struct CallMap {
        /// The name of the plan.
        "name" name: Must<At<String>>,
        /// Another instance in the same namespace, whose plan it is.
        "of" of: Option<Of>,
        /// The parameters: a map whose strings are templates. Default: those of this run.
        "params" params: Option<At<Tree>>,
    }
}

manifest! {
    /// Another instance.
    pub struct Of {
        /// Its apiVersion.
        "apiVersion" api_version: At<ApiVersionName>,
        /// Its kind.
        "kind" kind: At<KindName>,
        /// Its name; a template.
        "name" name: Must<TemplateText>,
    }
}

manifest! {
    /// Waits until people approve.
    pub struct Approve {
        /// What they are asked; a template.
        "message" message: Must<TemplateText>,
        /// How many must approve. Default: 1.
        "count" count: Option<Count>,
        /// Whether the requester's own approval does not count. Default: false.
        "notRequester" not_requester: Option<bool>,
        /// The groups of users whose members may answer, for example [dba]. Without it: all users with the verb approve on
        /// the instance.
        "groups" groups: Option<Vec<At<String>>>,
        /// Whether approvals by ServiceAccounts count. Whoever may create pods in a namespace can act as any of its
        /// accounts. Default: false.
        "serviceAccounts" service_accounts: Option<bool>,
    }
}

manifest! {
    /// Fails the run.
    pub struct Fail {
        /// Why; a template.
        "message" message: Must<TemplateText>,
    }
}
