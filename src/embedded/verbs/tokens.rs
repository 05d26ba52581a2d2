//! The subresource `token` of service accounts, and reviews of tokens.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use operetta_kube_model::Fault;
use operetta_kube_model::facts::{key, texts, time};
use serde_json::{Value, json};

use super::response::Response;
use super::write::read_new;
use crate::model::{Context, Failure, Kind, Names, Outcome, Source};
use crate::schema::definition;
use crate::state::tokens::{OWN, Token};
use crate::state::{Live, State};

/// Gives out a token of a `ServiceAccount`.
pub(crate) fn create(state: &mut State, context: &mut Context<'_>) -> Outcome<Response> {
    let account = Live::of(state, context)?.value();
    let typed = definition("authentication.v1.TokenRequest").ok_or_else(Failure::no_path)?;
    context.kind = Arc::new(Kind {
        group: "authentication.k8s.io".to_owned(),
        version: "v1".to_owned(),
        plural: "tokenrequests".to_owned(),
        kind: "TokenRequest".to_owned(),
        namespaced: true,
        verbs: Vec::new(),
        subresources: Vec::new(),
        names: Names::of("authentication.k8s.io", "v1", "tokenrequests"),
        source: Source::BuiltIn(typed),
    });
    let mut object = read_new(state, context)?.whole();
    let spec = &mut object["spec"];
    if spec["expirationSeconds"].is_null() {
        spec["expirationSeconds"] = 3600.into();
    }
    if spec["audiences"].as_array().is_none_or(Vec::is_empty) {
        spec["audiences"] = json!([OWN]);
    }
    let seconds = spec["expirationSeconds"].as_i64().unwrap_or_default();
    if seconds < 600 {
        let fault = Fault::invalid(
            "spec.expirationSeconds",
            seconds,
            "may not specify a duration less than 10 minutes",
        );
        return Err(Failure::invalid("authentication.k8s.io", "TokenRequest", "", &[fault]));
    }
    let meta = &account["metadata"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let expires = context.now.parse::<Timestamp>().unwrap_or_default() + SignedDuration::from_secs(seconds);
    let place = key(text(&meta["namespace"]).as_str(), text(&meta["name"]).as_str());
    let id = state.uid("tokens", &place, false);
    state.note_creation("tokens", &place);
    let token = Token {
        namespace: text(&meta["namespace"]),
        name: text(&meta["name"]),
        uid: text(&meta["uid"]),
        id,
        audiences: texts(&spec["audiences"]),
        expires,
    };
    let text = state.tokens.issue(token);
    for field in ["name", "namespace", "uid"] {
        object["metadata"][field] = meta[field].clone();
    }
    object["metadata"]["creationTimestamp"] = context.now.clone().into();
    object["status"] = json!({"token": text, "expirationTimestamp": time(expires)});
    Ok(Response::json(201, &object))
}

/// Answers whose token it is.
pub(super) fn review(state: &State, spec: &Value, now: &str) -> Outcome<Value> {
    let token = spec["token"].as_str().unwrap_or_default();
    if token.is_empty() {
        return Err(Failure::bad_request("token is required for TokenReview in authentication"));
    }
    let now = now.parse().unwrap_or_default();
    let Some(token) = state.tokens.live(token, &state.store, now) else {
        return Ok(json!({"user": {}, "error": "invalid bearer token"}));
    };
    let mut wanted = texts(&spec["audiences"]);
    if wanted.is_empty() {
        wanted.push(OWN.to_owned());
    }
    let common: Vec<&String> = wanted.iter().filter(|audience| token.audiences.contains(audience)).collect();
    if common.is_empty() {
        let list = |all: &[String]| all.iter().map(|one| format!("{one:?}")).collect::<Vec<_>>().join(" ");
        let error = format!(
            "[invalid bearer token, token audiences [{}] is invalid for the target audiences [{}]]",
            list(&token.audiences),
            list(&wanted)
        );
        return Ok(json!({"user": {}, "error": error}));
    }
    Ok(json!({"authenticated": true, "user": token.user().info(), "audiences": common}))
}
