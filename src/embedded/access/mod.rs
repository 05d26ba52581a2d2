//! Who may do what: RBAC and impersonation.

mod impersonation;

use std::sync::Arc;

use operetta_kube_model::cel::{Authority, Question};
use operetta_kube_model::field_selector;
use serde_json::Value;

use crate::model::request::versioned;
use crate::model::{Context, Failure, Kind, Outcome, Query, Request, Route, User};
use crate::state::State;
use crate::state::rights::{self, Attributes, Decision, RBAC, Rights};

pub(crate) use impersonation::acting_user;

/// Refuses a request that its user may not send.
pub(crate) fn admit(
    state: &mut State,
    request: &Request<'_>,
    path: &str,
    parts: &[String],
    query: &Query,
) -> Outcome<()> {
    if request.user.is_master() {
        return Ok(());
    }
    asked(request.method, path, parts, query, |wanted| require(state, request.user, wanted))
}

/// Calls `then` with what a request asks for.
fn asked<T>(
    method: &str,
    path: &str,
    parts: &[String],
    query: &Query,
    then: impl FnOnce(&Attributes<'_>) -> T,
) -> T {
    let (group, version, rest) = versioned(parts).unwrap_or_default();
    // Segments after a subresource belong to it.
    let route = Route::parse(group, version, &rest[..rest.len().min(5)])
        .or_else(|| Route::parse(group, version, &rest[..rest.len().min(3)]));
    let Some(route) = route else {
        let verb = if method == "HEAD" { "get".to_owned() } else { method.to_lowercase() };
        return then(&Attributes { verb: &verb, path: Some(path), ..Attributes::default() });
    };
    let name = route.name.as_deref();
    let terms = field_selector::parse(query.get("fieldSelector").unwrap_or_default()).unwrap_or_default();
    let selected = terms.iter().find(|term| term.is_equal && term.path == "metadata.name");
    let selected = selected.map(|term| term.value.as_str());
    let verb = match (method, name) {
        ("GET" | "HEAD", Some(_)) => "get",
        ("GET" | "HEAD", None) if query.flag("watch") => "watch",
        ("GET" | "HEAD", None) => "list",
        ("POST", _) => "create",
        ("PUT", _) => "update",
        ("PATCH", _) => "patch",
        ("DELETE", Some(_)) => "delete",
        _ => "deletecollection",
    };
    let name = name.or_else(|| selected.filter(|_| matches!(verb, "list" | "watch"))).unwrap_or_default();
    then(&attributes(&route, verb, name))
}

/// A request of a route as attributes. A namespace is in itself.
fn attributes<'a>(route: &'a Route, verb: &'a str, name: &'a str) -> Attributes<'a> {
    let is_namespace = route.group.is_empty() && route.plural == "namespaces";
    Attributes {
        verb,
        group: &route.group,
        resource: &route.plural,
        subresource: route.subresource.as_deref().unwrap_or_default(),
        namespace: route.namespace.as_deref().unwrap_or(if is_namespace { name } else { "" }),
        name,
        path: None,
    }
}

/// Answers the questions of policies about the rights of a user.
#[derive(Debug)]
struct Asked {
    rights: Arc<Rights>,
    user: User,
}

impl Authority for Asked {
    fn decide(&self, question: &Question) -> (bool, String) {
        let wanted = Attributes {
            verb: &question.verb,
            group: &question.group,
            resource: &question.resource,
            subresource: &question.subresource,
            namespace: &question.namespace,
            name: &question.name,
            path: question.path.as_deref(),
        };
        let Decision { allowed, reason } = self.rights.decide(&self.user, &wanted);
        (allowed, reason)
    }

    fn of_account(&self, namespace: &str, name: &str) -> Arc<dyn Authority> {
        Arc::new(Self { rights: self.rights.clone(), user: User::account(namespace, name) })
    }
}

/// The variables of policies that ask about the rights of the sender: `authorizer` and `authorizer.requestResource`.
pub(crate) fn questions(rights: Arc<Rights>, user: &User, route: &Route, name: &str) -> [Question; 2] {
    let authority: Arc<dyn Authority> = Arc::new(Asked { rights, user: user.clone() });
    let about = attributes(route, "", name);
    [Attributes::default(), about].map(|about| Question {
        authority: authority.clone(),
        verb: String::new(),
        group: about.group.to_owned(),
        resource: about.resource.to_owned(),
        subresource: about.subresource.to_owned(),
        namespace: about.namespace.to_owned(),
        name: about.name.to_owned(),
        path: None,
    })
}

/// Refuses what a user may not do.
pub(crate) fn require(state: &mut State, user: &User, wanted: &Attributes<'_>) -> Outcome<()> {
    let decision = state.rights().decide(user, wanted);
    if decision.allowed { Ok(()) } else { Err(denied(user, wanted, &decision)) }
}

fn denied(user: &User, wanted: &Attributes<'_>, decision: &Decision) -> Box<Failure> {
    let Attributes { verb, group, resource, subresource, namespace, name, path } = wanted;
    let reason = if decision.reason.is_empty() { String::new() } else { format!(": {}", decision.reason) };
    let who = format!("User {:?} cannot {verb}", user.name);
    if let Some(path) = path {
        let mut failure = Failure::new(403, "Forbidden", format!("forbidden: {who} path {path:?}{reason}"));
        failure.set_details(serde_json::json!({}));
        return failure;
    }
    let slash = if subresource.is_empty() { "" } else { "/" };
    let place = if namespace.is_empty() {
        "at the cluster scope".to_owned()
    } else {
        format!("in the namespace {namespace:?}")
    };
    let why =
        format!("{who} resource \"{resource}{slash}{subresource}\" in API group {group:?} {place}{reason}");
    Failure::denied(group, resource, name, &why)
}

/// A write that makes an object although its verb is another one.
pub(crate) fn admit_create(state: &mut State, context: &Context<'_>) -> Outcome<()> {
    if context.request.user.is_master() {
        return Ok(());
    }
    let wanted = attributes(&context.route, "create", context.name());
    require(state, context.request.user, &wanted)
}

/// Nobody gives rights that they do not have, unless they may escalate or bind.
pub(crate) fn admit_rights(
    state: &mut State,
    context: &Context<'_>,
    live: Option<&Value>,
    object: &Value,
) -> Outcome<()> {
    let kind = context.kind.clone();
    let user = context.request.user;
    if kind.group != RBAC || user.is_master() || live.is_some_and(|live| is_same_but_garbage(live, object)) {
        return Ok(());
    }
    let name = crate::model::meta::text(object, "name").to_owned();
    let namespace = context.namespace().to_owned();
    let rights = state.rights();
    let (verb, resource, role) = if kind.plural.ends_with("bindings") {
        let (role_kind, role) = rights::role_ref(object);
        ("bind", if role_kind == "Role" { "roles" } else { "clusterroles" }, role)
    } else {
        ("escalate", &*kind.plural, context.name())
    };
    let wanted = Attributes {
        verb,
        group: RBAC,
        resource,
        namespace: &namespace,
        name: role,
        ..Attributes::default()
    };
    if rights.decide(user, &wanted).allowed {
        return Ok(());
    }
    let given;
    let rules = if verb == "escalate" {
        given = rights::Rule::all(object);
        &given[..]
    } else {
        let (role_kind, role) = rights::role_ref(object);
        rights.role(role_kind, role, &namespace).map_err(|_| Failure::not_found(&kind, role))?
    };
    confirm(&rights, user, (&kind, &name, &namespace), rules)
}

fn confirm(
    rights: &Rights,
    user: &User,
    (kind, name, namespace): (&Kind, &str, &str),
    rules: &[rights::Rule],
) -> Outcome<()> {
    let (own, errors) = rights.rules_for(user, namespace);
    let missing = rights::missing(&own, rules);
    if missing.is_empty() {
        return Ok(());
    }
    let groups: Vec<String> = user.groups.iter().map(|group| format!("{group:?}")).collect();
    let errors = if errors.is_empty() {
        String::new()
    } else {
        format!("; resolution errors: [{}]", rights::aggregate(&errors))
    };
    let why = format!(
        "user {:?} (groups=[{}]) is attempting to grant RBAC permissions not currently held:\n{}{errors}",
        user.name,
        groups.join(" "),
        missing.join("\n")
    );
    Err(Failure::forbidden(kind, name, &why))
}

/// Whether only what the garbage collector looks at was changed.
fn is_same_but_garbage(live: &Value, object: &Value) -> bool {
    let bare = |value: &Value| {
        let mut value = value.clone();
        if let Some(meta) = value["metadata"].as_object_mut() {
            for field in ["ownerReferences", "finalizers", "managedFields", "resourceVersion"] {
                meta.remove(field);
            }
        }
        value
    };
    let changed = live["metadata"]["ownerReferences"] != object["metadata"]["ownerReferences"]
        || live["metadata"]["finalizers"] != object["metadata"]["finalizers"];
    changed && bare(live) == bare(object)
}
