//! The variable `authorizer` of policies: asks whether a user may do something.

use std::fmt::{self, Debug};
use std::sync::Arc;

use kube_cel::cel::context::Context;
use kube_cel::cel::extractors::This;
use kube_cel::cel::objects::Opaque;
use kube_cel::cel::{ExecutionError, Value as Cel};

/// Knows what a user may do.
pub trait Authority: Debug + Send + Sync {
    /// Whether the user may do it, and why.
    fn decide(&self, question: &Question) -> (bool, String);

    /// The same for a `ServiceAccount`.
    fn of_account(&self, namespace: &str, name: &str) -> Arc<dyn Authority>;
}

/// A question about rights, as far as it is asked.
#[derive(Clone)]
pub struct Question {
    /// Who knows the answer.
    pub authority: Arc<dyn Authority>,
    /// The verb.
    pub verb: String,
    /// The group of the resource.
    pub group: String,
    /// The resource.
    pub resource: String,
    /// The subresource.
    pub subresource: String,
    /// The namespace of the object.
    pub namespace: String,
    /// The name of the object.
    pub name: String,
    /// The path, if it is not about a resource.
    pub path: Option<String>,
}

impl Debug for Question {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.authority.fmt(f)
    }
}

impl PartialEq for Question {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Eq for Question {}

impl Opaque for Question {
    fn runtime_type_name(&self) -> &'static str {
        "kubernetes.authorization.Authorizer"
    }
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Answer {
    allowed: bool,
    reason: String,
}

impl Opaque for Answer {
    fn runtime_type_name(&self) -> &'static str {
        "kubernetes.authorization.Decision"
    }
}

impl From<Question> for Cel {
    fn from(question: Question) -> Self {
        Self::Opaque(Arc::new(question))
    }
}

fn question(value: &Cel) -> Result<Question, ExecutionError> {
    match value {
        Cel::Opaque(found) => found.downcast_ref::<Question>().cloned(),
        _ => None,
    }
    .ok_or(ExecutionError::NoSuchOverload)
}

fn answer(value: &Cel) -> Result<Answer, ExecutionError> {
    match value {
        Cel::Opaque(found) => found.downcast_ref::<Answer>().cloned(),
        _ => None,
    }
    .ok_or(ExecutionError::NoSuchOverload)
}

/// Registers the functions of authorizers.
pub(super) fn register(context: &mut Context<'_>) {
    let mut field = |name: &'static str, set: fn(&mut Question, String)| {
        context.add_function(name, move |This(this): This<Cel>, text: Arc<String>| {
            let mut question = question(&this)?;
            set(&mut question, text.to_string());
            Ok::<Cel, ExecutionError>(question.into())
        });
    };
    field("group", |question, text| question.group = text);
    field("resource", |question, text| question.resource = text);
    field("subresource", |question, text| question.subresource = text);
    field("namespace", |question, text| question.namespace = text);
    field("name", |question, text| question.name = text);
    field("path", |question, text| question.path = Some(text));
    // Rules of RBAC know no selectors.
    field("fieldSelector", |_, _| {});
    field("labelSelector", |_, _| {});
    context.add_function(
        "serviceAccount",
        |This(this): This<Cel>, namespace: Arc<String>, name: Arc<String>| {
            let mut question = question(&this)?;
            question.authority = question.authority.of_account(&namespace, &name);
            Ok::<Cel, ExecutionError>(question.into())
        },
    );
    context.add_function("check", |This(this): This<Cel>, verb: Arc<String>| {
        let mut question = question(&this)?;
        question.verb = verb.to_string();
        let (allowed, reason) = question.authority.decide(&question);
        Ok::<Cel, ExecutionError>(Cel::Opaque(Arc::new(Answer { allowed, reason })))
    });
    context.add_function("allowed", |This(this): This<Cel>| answer(&this).map(|answer| answer.allowed));
    context
        .add_function("reason", |This(this): This<Cel>| answer(&this).map(|answer| Arc::new(answer.reason)));
    context.add_function("errored", |This(this): This<Cel>| answer(&this).map(|_| false));
    context.add_function("error", |This(this): This<Cel>| answer(&this).map(|_| Arc::new(String::new())));
}
