//! Requests in the name of somebody else.

use std::collections::BTreeMap;

use crate::api::Api;
use crate::request::{Response, User, decoded};
use crate::status::{Failure, Outcome};

use super::{Attributes, require};

const USER: &str = "impersonate-user";
const GROUP: &str = "impersonate-group";
const UID: &str = "impersonate-uid";
const EXTRA: &str = "impersonate-extra-";

impl Api {
    /// The user in whose name a request is handled: that of its `Impersonate-*` headers, otherwise the sender. Names of headers
    /// are in lower case.
    ///
    /// # Errors
    ///
    /// The response to send if the sender may not act as this user.
    pub fn acting_user(&mut self, sender: &User, headers: &[(String, String)]) -> Result<User, Response> {
        if !headers.iter().any(|(name, _)| name.starts_with("impersonate-")) {
            return Ok(sender.clone());
        }
        impersonate(self, sender, headers).map_err(|failure| Response::json(failure.code, &failure.to_json()))
    }
}

fn impersonate(api: &mut Api, sender: &User, headers: &[(String, String)]) -> Outcome<User> {
    let all = |wanted: &str| {
        headers.iter().filter(|(name, _)| name == wanted).map(|(_, value)| value.clone()).collect::<Vec<_>>()
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
        return Err(Failure::internal("headers of impersonation without Impersonate-User"));
    }
    check(api, sender, &user)?;
    if user.groups.is_empty()
        && let Some((namespace, _)) = user.service_account()
    {
        user.groups =
            vec!["system:serviceaccounts".to_owned(), format!("system:serviceaccounts:{namespace}")];
    }
    let own = if user.name == ANONYMOUS { UNAUTHENTICATED } else { AUTHENTICATED };
    if !user.groups.iter().any(|group| group == own || group == UNAUTHENTICATED) {
        user.groups.push(own.to_owned());
    }
    Ok(user)
}

const ANONYMOUS: &str = "system:anonymous";
const AUTHENTICATED: &str = "system:authenticated";
const UNAUTHENTICATED: &str = "system:unauthenticated";

/// Refuses a sender who may not act as a user.
fn check(api: &mut Api, sender: &User, user: &User) -> Outcome<()> {
    let base = Attributes { verb: "impersonate", ..Attributes::default() };
    let identity = match user.service_account() {
        Some((namespace, name)) => {
            Attributes { resource: "serviceaccounts", namespace, name, ..base.clone() }
        }
        None => Attributes { resource: "users", name: &user.name, ..base.clone() },
    };
    require(api, sender, &identity)?;
    for group in &user.groups {
        require(api, sender, &Attributes { resource: "groups", name: group, ..base.clone() })?;
    }
    let base = Attributes { group: "authentication.k8s.io", ..base };
    for (key, value) in
        user.extra.iter().flat_map(|(key, values)| values.iter().map(move |value| (key, value)))
    {
        require(
            api,
            sender,
            &Attributes { resource: "userextras", subresource: key, name: value, ..base.clone() },
        )?;
    }
    if !user.uid.is_empty() {
        require(api, sender, &Attributes { resource: "uids", name: &user.uid, ..base })?;
    }
    Ok(())
}
