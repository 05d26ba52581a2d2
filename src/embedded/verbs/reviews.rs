//! Reviews: questions about rights, users and tokens. They are answered and not stored.

use operetta_kube_model::Fault;
use operetta_kube_model::facts::texts;
use serde_json::{Map, Value, json};

use super::response::Response;
use super::tokens;
use super::write::read_new;
use crate::model::{Context, Failure, Outcome, User};
use crate::state::State;
use crate::state::rights::{Attributes, Decision, Rule, aggregate};

/// Answers a review.
pub(crate) fn create(state: &mut State, context: &mut Context<'_>) -> Outcome<Response> {
    let mut object = read_new(state, context)?.whole();
    let user = context.request.user.clone();
    let namespace = context.namespace().to_owned();
    object["status"] = match &*context.kind.plural {
        "selfsubjectaccessreviews" => access(state, &user, &object["spec"])?,
        "subjectaccessreviews" => access(state, &subject(&object["spec"])?, &object["spec"])?,
        "localsubjectaccessreviews" => {
            let subject = subject(&object["spec"])?;
            let asked = &object["spec"]["resourceAttributes"]["namespace"];
            if asked.as_str().unwrap_or_default() != namespace {
                let shown = asked.as_str().unwrap_or_default();
                let why = "must match metadata.namespace";
                return Err(invalid(Fault::invalid("spec.resourceAttributes.namespace", shown, why)));
            }
            object["metadata"]["namespace"] = namespace.into();
            access(state, &subject, &object["spec"])?
        }
        "selfsubjectrulesreviews" => {
            let status = rules(state, &user, &object["spec"])?;
            object["spec"] = json!({});
            object["metadata"] = json!({});
            status
        }
        "selfsubjectreviews" => {
            object["metadata"] = json!({"creationTimestamp": context.now});
            json!({"userInfo": user.info()})
        }
        "tokenreviews" => tokens::review(state, &object["spec"], &context.now)?,
        _ => return Err(Failure::not_allowed()),
    };
    Ok(Response::json(201, &object))
}

/// A review that is no question. The server does not know its kind at that point.
fn invalid(fault: Fault) -> Box<Failure> {
    Failure::invalid("authorization.k8s.io", "", "", &[fault])
}

/// The user that a review asks about.
fn subject(spec: &Value) -> Outcome<User> {
    let text = |field: &str| spec[field].as_str().unwrap_or_default().to_owned();
    let user = User {
        name: text("user"),
        uid: text("uid"),
        groups: texts(&spec["groups"]),
        extra: spec["extra"]
            .as_object()
            .into_iter()
            .flatten()
            .map(|(key, values)| (key.clone(), texts(values)))
            .collect(),
    };
    if user.name.is_empty() && user.groups.is_empty() {
        return Err(invalid(Fault::invalid(
            "spec.user",
            "",
            "at least one of user or group must be specified",
        )));
    }
    Ok(user)
}

fn access(state: &mut State, user: &User, spec: &Value) -> Outcome<Value> {
    let (about, path) = (&spec["resourceAttributes"], &spec["nonResourceAttributes"]);
    if about.is_object() == path.is_object() {
        let why = "exactly one of nonResourceAttributes or resourceAttributes must be specified";
        let fault = if about.is_object() {
            Fault::invalid(
                "spec.nonResourceAttributes",
                path.clone(),
                "cannot be specified in combination with resourceAttributes",
            )
        } else {
            Fault::invalid("spec.resourceAttributes", Value::Null, why)
        };
        return Err(invalid(fault));
    }
    let text = |value: &'static str| if about.is_object() { &about[value] } else { &path[value] };
    let text = |field| text(field).as_str().unwrap_or_default();
    let wanted = Attributes {
        verb: text("verb"),
        group: text("group"),
        resource: text("resource"),
        subresource: text("subresource"),
        namespace: text("namespace"),
        name: text("name"),
        path: path.is_object().then(|| text("path")),
    };
    let Decision { allowed, reason } = state.rights().decide(user, &wanted);
    let mut status = json!({"allowed": allowed});
    if !reason.is_empty() {
        status["reason"] = reason.into();
    }
    Ok(status)
}

fn rules(state: &mut State, user: &User, spec: &Value) -> Outcome<Value> {
    let namespace = spec["namespace"].as_str().filter(|namespace| !namespace.is_empty());
    let namespace = namespace.ok_or_else(|| Failure::bad_request("no namespace on request"))?;
    let rights = state.rights();
    let all = Rule { verbs: vec!["*".to_owned()], ..Rule::default() };
    let star = || vec!["*".to_owned()];
    let everything =
        [Rule { groups: star(), resources: star(), ..all.clone() }, Rule { urls: star(), ..all }];
    let (mut rules, errors) = rights.rules_for(user, namespace);
    if user.is_master() {
        rules.splice(0..0, &everything);
    }
    let shown = |fields: &[(&str, &Vec<String>)]| -> Value {
        let fields = fields.iter().filter(|(_, items)| !items.is_empty());
        fields
            .map(|(name, items)| ((*name).to_owned(), (*items).clone().into()))
            .collect::<Map<_, _>>()
            .into()
    };
    let of_resources = rules.iter().filter(|rule| !rule.resources.is_empty()).map(|rule| {
        shown(&[
            ("verbs", &rule.verbs),
            ("apiGroups", &rule.groups),
            ("resources", &rule.resources),
            ("resourceNames", &rule.names),
        ])
    });
    let of_paths = rules.iter().filter(|rule| !rule.urls.is_empty());
    let of_paths = of_paths.map(|rule| shown(&[("verbs", &rule.verbs), ("nonResourceURLs", &rule.urls)]));
    let mut status = json!({
        "resourceRules": of_resources.collect::<Vec<_>>(),
        "nonResourceRules": of_paths.collect::<Vec<_>>(),
        "incomplete": false,
    });
    if !errors.is_empty() {
        status["evaluationError"] = aggregate(&errors).into();
    }
    Ok(status)
}
