//! The variable `authorizer` of policies: asks whether a user may do something.

use std::fmt;
use std::sync::Arc;

use kube_cel::cel::context::Context;
use kube_cel::cel::extractors::This;
use kube_cel::cel::objects::Opaque;
use kube_cel::cel::{ExecutionError, Value as Cel};

use crate::access::{Attributes, Decision, Rights};
use crate::request::User;

/// A question about rights, as far as it is asked.
#[derive(Clone)]
struct Question {
    rights: Arc<Rights>,
    user: Arc<User>,
    group: String,
    resource: String,
    subresource: String,
    namespace: String,
    name: String,
    path: Option<String>,
}

impl fmt::Debug for Question {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "authorizer of {:?}", self.user.name)
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
struct Answer(Decision);

impl Opaque for Answer {
    fn runtime_type_name(&self) -> &'static str {
        "kubernetes.authorization.Decision"
    }
}

/// The authorizer for a user, who is asked about `about`.
pub(crate) fn authorizer(rights: Arc<Rights>, user: &User, about: &Attributes<'_>) -> Cel {
    Cel::Opaque(Arc::new(Question {
        rights,
        user: Arc::new(user.clone()),
        group: about.group.to_owned(),
        resource: about.resource.to_owned(),
        subresource: about.subresource.to_owned(),
        namespace: about.namespace.to_owned(),
        name: about.name.to_owned(),
        path: None,
    }))
}

fn question(value: &Cel) -> Result<Question, ExecutionError> {
    match value {
        Cel::Opaque(found) => found.downcast_ref::<Question>().cloned(),
        _ => None,
    }
    .ok_or(ExecutionError::NoSuchOverload)
}

fn decision(value: &Cel) -> Result<Decision, ExecutionError> {
    match value {
        Cel::Opaque(found) => found.downcast_ref::<Answer>().map(|answer| answer.0.clone()),
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
            Ok::<Cel, ExecutionError>(Cel::Opaque(Arc::new(question)))
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
            let groups = ["system:serviceaccounts", "system:authenticated"].map(str::to_owned);
            question.user = Arc::new(User {
                name: format!("system:serviceaccount:{namespace}:{name}"),
                groups: groups.into_iter().chain([format!("system:serviceaccounts:{namespace}")]).collect(),
                ..User::nobody()
            });
            Ok::<Cel, ExecutionError>(Cel::Opaque(Arc::new(question)))
        },
    );
    context.add_function("check", |This(this): This<Cel>, verb: Arc<String>| {
        let question = question(&this)?;
        let wanted = Attributes {
            verb: &verb,
            group: &question.group,
            resource: &question.resource,
            subresource: &question.subresource,
            namespace: &question.namespace,
            name: &question.name,
            path: question.path.as_deref(),
        };
        let answer = question.rights.decide(&question.user, &wanted);
        Ok::<Cel, ExecutionError>(Cel::Opaque(Arc::new(Answer(answer))))
    });
    context.add_function("allowed", |This(this): This<Cel>| decision(&this).map(|decision| decision.allowed));
    context.add_function("reason", |This(this): This<Cel>| {
        decision(&this).map(|decision| Arc::new(decision.reason))
    });
    context.add_function("errored", |This(this): This<Cel>| decision(&this).map(|_| false));
    context.add_function("error", |This(this): This<Cel>| decision(&this).map(|_| Arc::new(String::new())));
}
