//! Tokens of service accounts: opaque texts that only this API knows.

use std::sync::Arc;

use data_encoding::HEXLOWER;
use jiff::{SignedDuration, Timestamp};
use operetta_kube_model::Fault;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::api::{Api, Context, key, time};
use crate::facts::texts;
use crate::kinds::{Kind, Names, Source};
use crate::request::{Response, User};
use crate::schema::definition;
use crate::status::{Failure, Outcome};
use crate::write;

use super::review::user_info;

/// The audience of the API server.
const OWN: &str = "https://kubernetes.default.svc";

/// A token that was given out.
#[derive(Debug, Clone)]
pub(crate) struct Token {
    namespace: String,
    name: String,
    uid: String,
    id: String,
    audiences: Vec<String>,
    expires: Timestamp,
}

impl Api {
    /// Sets the secret from which tokens of `ServiceAccount`s follow, before the API is served to other processes. Without it the same
    /// requests get the same tokens in every API, so anyone who sends them to another API knows the tokens of this one.
    pub fn set_token_key(&mut self, key: String) {
        self.token_key = key;
    }

    /// The user of a token that this API has given out, while it is valid.
    pub fn user_of_token(&self, token: &str, now: Timestamp) -> Option<User> {
        let token = self.live_token(token, now)?;
        token.audiences.iter().any(|audience| audience == OWN).then(|| token.user())
    }

    fn live_token(&self, token: &str, now: Timestamp) -> Option<&Token> {
        let token = self.tokens.get(token).filter(|token| token.expires > now)?;
        let account = self.store.get("serviceaccounts", &key(&token.namespace, &token.name))?;
        (*account.uid == *token.uid).then_some(token)
    }
}

impl Token {
    fn user(&self) -> User {
        let id = format!("JTI={}", self.id);
        User {
            uid: self.uid.clone(),
            extra: [("authentication.kubernetes.io/credential-id".to_owned(), vec![id])].into(),
            ..User::account(&self.namespace, &self.name)
        }
    }
}

/// Gives out a token of a `ServiceAccount`.
pub(crate) fn create(api: &mut Api, context: &mut Context<'_>) -> Outcome<Response> {
    let account = api.live(context)?;
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
    let mut object = write::read_new(api, context)?;
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
    let token = Token {
        namespace: text(&meta["namespace"]),
        name: text(&meta["name"]),
        uid: text(&meta["uid"]),
        id: api.uid(),
        audiences: texts(&spec["audiences"]),
        expires,
    };
    let digest = Sha256::new().chain_update(&api.token_key).chain_update(&token.id).finalize();
    let opaque = format!("embedded-token-{}", HEXLOWER.encode(&digest));
    for field in ["name", "namespace", "uid"] {
        object["metadata"][field] = meta[field].clone();
    }
    object["metadata"]["creationTimestamp"] = context.now.clone().into();
    object["status"] = json!({"token": opaque, "expirationTimestamp": time(expires)});
    api.tokens.insert(opaque, token);
    Ok(Response::json(201, &object))
}

/// Answers whose token it is.
pub(super) fn review(api: &Api, spec: &Value, now: &str) -> Outcome<Value> {
    let token = spec["token"].as_str().unwrap_or_default();
    if token.is_empty() {
        return Err(Failure::bad_request("token is required for TokenReview in authentication"));
    }
    let now = now.parse().unwrap_or_default();
    let Some(token) = api.live_token(token, now) else {
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
    Ok(json!({"authenticated": true, "user": user_info(&token.user()), "audiences": common}))
}
