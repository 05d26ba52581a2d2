//! Requests in the name of somebody else.

use std::collections::BTreeMap;

use super::{asked, require};
use crate::model::request::{decoded, segments};
use crate::model::{Failure, Outcome, Query, User};
use crate::state::State;
use crate::state::rights::Attributes;

const USER: &str = "impersonate-user";
const GROUP: &str = "impersonate-group";
const UID: &str = "impersonate-uid";
const EXTRA: &str = "impersonate-extra-";

const ANONYMOUS: &str = "system:anonymous";
const AUTHENTICATED: &str = "system:authenticated";
const UNAUTHENTICATED: &str = "system:unauthenticated";
const NODE: &str = "system:node:";

/// The group of users and what belongs to them.
const AUTHENTICATION: &str = "authentication.k8s.io";

/// The user in whose name a request is handled: that of its `Impersonate-*` headers, otherwise the sender. Names of headers
/// are in lower case. A failure if the sender may not act as this user.
pub(crate) fn acting_user(
    state: &mut State,
    sender: &User,
    method: &str,
    uri: &str,
    headers: &[(String, String)],
) -> Outcome<User> {
    if !headers.iter().any(|(name, _)| name.starts_with("impersonate-")) {
        return Ok(sender.clone());
    }
    let mut user = wanted(headers)?;
    check(state, sender, &user, method, uri)?;
    complete(&mut user);
    Ok(user)
}

/// The user that headers name.
fn wanted(headers: &[(String, String)]) -> Outcome<User> {
    let all = |wanted: &str| {
        let headers = headers.iter().filter(|(name, _)| name == wanted);
        headers.map(|(_, value)| value.clone()).collect::<Vec<_>>()
    };
    let mut user = User {
        name: all(USER).into_iter().next().unwrap_or_default(),
        uid: all(UID).into_iter().next().unwrap_or_default(),
        groups: all(GROUP),
        extra: BTreeMap::new(),
    };
    for (name, value) in headers {
        if let Some(key) = name.strip_prefix(EXTRA) {
            user.extra.entry(decoded(key, false)).or_default().push(value.clone());
        }
    }
    if user.name.is_empty() {
        return Err(Failure::bad_request(format!("requested {user:?} without impersonating a user name")));
    }
    Ok(user)
}

/// Adds the groups that a user has by the name.
fn complete(user: &mut User) {
    if user.groups.is_empty()
        && let Some((namespace, name)) = user.service_account()
    {
        user.groups = User::account(namespace, name).groups;
    }
    let own = if user.name == ANONYMOUS { UNAUTHENTICATED } else { AUTHENTICATED };
    if !user.groups.iter().any(|group| group == own || group == UNAUTHENTICATED) {
        user.groups.push(own.to_owned());
    }
}

/// The way in which a request may be sent for a user without the verb `impersonate`.
fn mode(user: &User) -> Option<&'static str> {
    let only_name = user.uid.is_empty() && user.groups.is_empty() && user.extra.is_empty();
    if user.service_account().is_some() {
        only_name.then_some("serviceaccount")
    } else if user.name.starts_with(NODE) {
        only_name.then_some("arbitrary-node")
    } else {
        Some("user-info")
    }
}

/// Refuses a sender who may not send this request as a user: neither constrained to requests like it, nor at all.
fn check(state: &mut State, sender: &User, user: &User, method: &str, uri: &str) -> Outcome<()> {
    if sender.is_master() {
        return Ok(());
    }
    let constrained = mode(user).map(|mode| {
        let (path, query) = uri.split_once('?').unwrap_or((uri, ""));
        asked(method, path, &segments(path), &Query::parse(query), |wanted| {
            let verb = format!("impersonate-on:{mode}:{}", wanted.verb);
            require(state, sender, &Attributes { verb: &verb, ..wanted.clone() })
        })?;
        check_parts(state, sender, user, &format!("impersonate:{mode}"))
    });
    match constrained {
        Some(Ok(())) => Ok(()),
        // The first reason counts.
        Some(Err(failure)) => check_parts(state, sender, user, "impersonate").map_err(|_| failure),
        None => check_parts(state, sender, user, "impersonate"),
    }
}

/// Refuses a sender who lacks a verb for a part of a user.
fn check_parts(state: &mut State, sender: &User, user: &User, verb: &str) -> Outcome<()> {
    let is_constrained = verb != "impersonate";
    let extra = Attributes { verb, group: AUTHENTICATION, ..Attributes::default() };
    let base = Attributes { group: if is_constrained { AUTHENTICATION } else { "" }, ..extra.clone() };
    let identity = match (user.service_account(), user.name.strip_prefix(NODE)) {
        (Some((namespace, name)), _) => {
            Attributes { resource: "serviceaccounts", namespace, name, ..base.clone() }
        }
        (None, Some(name)) if is_constrained => Attributes { resource: "nodes", name, ..base.clone() },
        _ => Attributes { resource: "users", name: &user.name, ..base.clone() },
    };
    require(state, sender, &identity)?;
    if !user.uid.is_empty() {
        require(state, sender, &Attributes { resource: "uids", name: &user.uid, ..extra.clone() })?;
    }
    for group in &user.groups {
        require(state, sender, &Attributes { resource: "groups", name: group, ..base.clone() })?;
    }
    for (key, values) in &user.extra {
        for value in values {
            let part = Attributes { resource: "userextras", subresource: key, name: value, ..extra.clone() };
            require(state, sender, &part)?;
        }
    }
    Ok(())
}
