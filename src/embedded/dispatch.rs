//! The dispatcher: a request, the verb that it asks for, and the response.

use jiff::Timestamp;
use serde_json::Value;

use crate::discovery::{self, openapi};
use crate::model::request::{segments, versioned};
use crate::model::{Context, Failure, Kind, Outcome, Query, Request, Route};
use crate::state::State;
use crate::verbs::response::Response;
use crate::verbs::{create, delete, patch, pods, read, reviews, scale, tokens, write};
use crate::world::programs::Programs;
use crate::{access, strategy};

/// Answers a request. `given` is its body, if a controller sends it as a value.
pub(crate) fn handle(
    state: &mut State,
    programs: &mut dyn Programs,
    request: &Request<'_>,
    given: Option<Value>,
    now: Timestamp,
) -> Response {
    respond(state, programs, request, given, now).unwrap_or_else(|failure| Response::refusal(&failure))
}

fn respond(
    state: &mut State,
    programs: &mut dyn Programs,
    request: &Request<'_>,
    given: Option<Value>,
    now: Timestamp,
) -> Outcome<Response> {
    let (path, query) = request.uri.split_once('?').unwrap_or((request.uri, ""));
    let query = Query::parse(query);
    let parts = segments(path);
    access::admit(state, request, path, &parts, &query)?;
    let Some((group, version, rest)) = versioned(&parts) else {
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        if parts.first() == Some(&"openapi") {
            return Ok(openapi::answer(&state.kinds, request.accept, &parts));
        }
        return discovery::answer(&state.kinds, request, &parts);
    };
    let route = Route::parse(group, version, rest).ok_or_else(Failure::no_path)?;
    let Some(kind) = state.kinds.find(group, version, &route.plural).cloned() else {
        if state.kinds.iter().any(|kind| kind.group == group && kind.version == version) {
            return Err(Failure::no_path());
        }
        return Ok(Response::plain(404, "404 page not found\n"));
    };
    if kind.namespaced && route.namespace.is_none() && route.name.is_some()
        || !kind.namespaced && route.namespace.is_some()
    {
        return Err(Failure::no_path());
    }
    let mut context = Context::new(kind, route, query, request, now);
    context.given = given;
    context.warnings.extend(strategy::deprecation(&context.kind));
    let response = dispatch(state, programs, &mut context);
    let mut response = response.unwrap_or_else(|failure| Response::refusal(&failure));
    if (request.method != "GET" || context.subresource() == "scale")
        && let Err(failure) = read::transform(&context, &mut response)
    {
        response = Response::refusal(&failure);
    }
    response.warnings.append(&mut context.warnings);
    Ok(response)
}

/// Lets a verb answer a request about objects.
fn dispatch(state: &mut State, programs: &mut dyn Programs, context: &mut Context<'_>) -> Outcome<Response> {
    let kind = context.kind.clone();
    let method = context.request.method;
    let sub = context.subresource().to_owned();
    if !sub.is_empty() && !kind.has_subresource(&sub) {
        return Err(Failure::no_path());
    }
    let verb = match (method, context.route.name.is_some()) {
        ("GET", true) => "get",
        ("GET", false) if context.query.flag("watch") => "watch",
        ("GET", false) => "list",
        ("POST", false) => "create",
        ("POST", true) if !sub.is_empty() => "create",
        ("PUT", true) => "update",
        ("PATCH", true) => "patch",
        ("DELETE", true) => "delete",
        ("DELETE", false) => "deletecollection",
        _ => return Err(Failure::not_allowed()),
    };
    if sub.is_empty() && !kind.allows(verb) {
        return Err(Failure::not_allowed());
    }
    match (verb, &*sub) {
        ("get", "" | "status" | "resize") => read::get(state, context),
        ("list", _) => read::list(state, context),
        ("watch", _) => read::watch(state, context),
        ("create", "") if is_review(&kind) => reviews::create(state, context),
        ("create", "") => create::create(state, context),
        ("create", "token") => tokens::create(state, context),
        ("update", "" | "status" | "finalize" | "resize") => write::update(state, context),
        ("patch", "" | "status" | "finalize" | "resize") => patch::patch(state, context),
        ("delete", "") => delete::delete(state, context),
        ("deletecollection", "") => delete::delete_collection(state, context),
        (_, "scale") => scale::answer(state, context, verb),
        ("create", "binding") => pods::bind(state, context),
        ("create", "eviction") => pods::evict(state, context),
        ("get", "log") => pods::log(state, programs, context),
        _ => Err(Failure::not_allowed()),
    }
}

/// Whether objects of the kind are answered and not stored.
fn is_review(kind: &Kind) -> bool {
    matches!(&*kind.group, "authorization.k8s.io" | "authentication.k8s.io")
}
