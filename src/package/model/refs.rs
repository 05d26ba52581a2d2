//! Refs: objects and observations that an instance reads and does not own.

use std::sync::Arc;
use std::time::Duration;

use super::child::ForEach;
use super::tree::Tree;
use crate::api::Gvk;
use crate::diag::Location;
use crate::plan::{ChildPod, Exec, Expect, Http};
use crate::template::{Expr, Reads, Text};

/// A ref: one object, the objects that a selector matches, or an observation.
#[derive(Debug)]
pub struct Ref {
    /// The id, as in `refs.<id>`.
    pub id: String,
    /// The kind of the objects; `None` for an observation.
    pub gvk: Option<Gvk>,
    /// What the ref reads.
    pub target: RefSource,
    /// The loop, if the ref is a map by key.
    pub for_each: Option<ForEach>,
    /// A condition: the ref is read only while it is true.
    pub when: Option<Expr>,
    /// Whether the ref is undefined if the object does not exist. Otherwise it is unknown.
    pub optional: bool,
    /// Whether the instance is not Ready while the ref is unknown.
    pub affects_ready: bool,
    /// The paths of an object that expressions read: sorted, none within another, each ending before its
    /// first computed key. An empty path is the whole object.
    pub reads: Arc<[Vec<String>]>,
    /// Whether an expression tests its state, such as `is ready`.
    pub asks_state: bool,
    /// The location of its id in `operator.yaml`.
    pub location: Location,
}

/// What a ref reads.
#[derive(Debug)]
pub enum RefSource {
    /// The object with a name.
    Name(Text, NamespaceRef),
    /// All objects with matching labels.
    Select(Tree, NamespaceRefs),
    /// The answer to a request.
    Observe(Box<Observation>),
}

/// A namespace. The spec of a namespaced instance must not choose it. Otherwise a user who may create an
/// instance could read every namespace with the package's permissions.
#[derive(Debug)]
pub enum NamespaceRef {
    /// The instance's own namespace.
    Own,
    /// The manager's namespace.
    Operator,
    /// A literal name.
    Literal(String),
    /// A computed name, for cluster-scoped instances only.
    Computed(Text),
}

/// The namespaces of a selector.
#[derive(Debug)]
pub enum NamespaceRefs {
    /// All namespaces.
    All,
    /// These namespaces.
    List(Vec<NamespaceRef>),
}

impl Ref {
    /// The reads of all its expressions, without following `let`s.
    pub(crate) fn own_reads(&self) -> Vec<&Reads> {
        self.list_reads().into_iter().chain(self.item_reads()).collect()
    }

    /// The reads of the list of its forEach.
    pub(crate) fn list_reads(&self) -> Option<&Reads> {
        self.for_each.as_ref().map(|for_each| for_each.in_.reads())
    }

    /// The reads that are repeated for each item, or made once without a list.
    pub(crate) fn item_reads(&self) -> Vec<&Reads> {
        let key = self.for_each.as_ref().and_then(|for_each| for_each.key.as_ref());
        key.into_iter().chain(&self.when).map(Expr::reads).chain(self.target_reads()).collect()
    }

    /// The reads of the name, selector and namespaces, or of the request.
    pub(crate) fn target_reads(&self) -> Vec<&Reads> {
        let mut texts = self.target_texts();
        if let Some(Call::Exec(exec)) = self.call() {
            texts.extend(&exec.stdin);
        }
        if let Some(Call::Http(http)) = self.call() {
            texts.extend(http.secret());
        }
        texts.into_iter().map(Text::reads).collect()
    }

    /// The request of an observation.
    pub fn call(&self) -> Option<&Call> {
        self.observation().map(|observation| &observation.call)
    }

    /// The observation, if it is one.
    pub fn observation(&self) -> Option<&Observation> {
        match &self.target {
            RefSource::Observe(observation) => Some(observation),
            RefSource::Name(..) | RefSource::Select(..) => None,
        }
    }

    /// The texts of the name, selector and namespaces, or those texts of a request that users can see.
    pub(crate) fn target_texts(&self) -> Vec<&Text> {
        let mut texts = Vec::new();
        match &self.target {
            RefSource::Name(name, namespace) => {
                texts.push(name);
                texts.extend(namespace.text());
            }
            RefSource::Select(selector, namespaces) => {
                selector.texts(&mut texts);
                if let NamespaceRefs::List(namespaces) = namespaces {
                    texts.extend(namespaces.iter().filter_map(NamespaceRef::text));
                }
            }
            RefSource::Observe(observation) => match &observation.call {
                Call::Exec(exec) => exec.public(&mut texts),
                Call::Http(http) => http.public(&mut texts),
            },
        }
        texts
    }

    /// The number of segments between the ref and one of its objects: the key of a forEach, the index of a
    /// list.
    pub(crate) fn steps(&self) -> usize {
        usize::from(self.for_each.is_some()) + usize::from(self.is_list())
    }

    /// Whether its value is a list of objects.
    pub fn is_list(&self) -> bool {
        matches!(self.target, RefSource::Select(..))
    }
}

impl NamespaceRef {
    fn text(&self) -> Option<&Text> {
        match self {
            Self::Computed(text) => Some(text),
            Self::Own | Self::Operator | Self::Literal(_) => None,
        }
    }
}

/// An observation: a request that is repeated, and which answers are accepted.
#[derive(Debug)]
pub struct Observation {
    /// The request.
    pub call: Call,
    /// The interval between requests.
    pub every: Duration,
    /// Whether the request is made only while a plan runs.
    pub only_in_runs: bool,
    /// The accepted answers. The default is the statuses 200 to 299, or exit code 0.
    pub expect: Option<Expect>,
    /// The paths of the answer that `expect` reads.
    pub expect_reads: Vec<Vec<String>>,
}

/// The request of an observation.
#[derive(Debug)]
pub enum Call {
    /// A command in a container of a child.
    Exec(Exec),
    /// An HTTP request.
    Http(Box<Http>),
}

impl Call {
    /// The pod of a child that it reaches.
    pub fn pod(&self) -> Option<&ChildPod> {
        match self {
            Self::Exec(exec) => Some(&exec.pod),
            Self::Http(http) => http.to.as_ref().map(|to| &to.pod),
        }
    }
}

impl Observation {
    /// The fields of an answer.
    pub fn fields(&self) -> &'static [&'static str] {
        match &self.call {
            Call::Http(_) => &["status", "headers", "body"],
            Call::Exec(_) => &["exitCode", "stdout", "stderr", "json"],
        }
    }

    /// The key in `operator.yaml`: `http` or `exec`.
    pub(crate) fn verb(&self) -> &'static str {
        match &self.call {
            Call::Http(_) => "http",
            Call::Exec(_) => "exec",
        }
    }

    /// The paths that `expect` reads.
    pub(crate) fn expect_site(&self) -> Option<&Reads> {
        match &self.expect {
            Some(Expect::Holds(expr)) => Some(expr.reads()),
            Some(Expect::Statuses(_)) | None => None,
        }
    }
}
