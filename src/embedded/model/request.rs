//! Requests as they arrive, and what they ask for.

use std::collections::BTreeMap;

use operetta_kube_model::Fault;
use serde_json::{Map, Value, json};

use super::{Failure, Outcome};

/// Who sends a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// The name.
    pub name: String,
    /// The uid; often empty.
    pub uid: String,
    /// The groups. An authenticated user is in `system:authenticated`.
    pub groups: Vec<String>,
    /// Extra attributes, such as the id of the credential.
    pub extra: BTreeMap<String, Vec<String>>,
}

/// The group whose members may do everything.
const MASTERS: &str = "system:masters";

impl Default for User {
    /// A user who may do everything.
    fn default() -> Self {
        Self {
            name: "system:admin".to_owned(),
            uid: String::new(),
            groups: vec![MASTERS.to_owned(), "system:authenticated".to_owned()],
            extra: BTreeMap::new(),
        }
    }
}

impl User {
    /// A `ServiceAccount`.
    pub fn account(namespace: &str, name: &str) -> Self {
        Self {
            name: format!("system:serviceaccount:{namespace}:{name}"),
            uid: String::new(),
            groups: vec![
                "system:serviceaccounts".to_owned(),
                format!("system:serviceaccounts:{namespace}"),
                "system:authenticated".to_owned(),
            ],
            extra: BTreeMap::new(),
        }
    }

    /// The user as reviews and policies show it.
    pub(crate) fn info(&self) -> Value {
        let mut info = Map::new();
        let mut put = |name: &str, value: Value| info.insert(name.to_owned(), value);
        if !self.name.is_empty() {
            put("username", self.name.clone().into());
        }
        if !self.uid.is_empty() {
            put("uid", self.uid.clone().into());
        }
        if !self.groups.is_empty() {
            put("groups", self.groups.clone().into());
        }
        if !self.extra.is_empty() {
            put("extra", json!(self.extra));
        }
        info.into()
    }

    pub(crate) fn is_master(&self) -> bool {
        self.groups.iter().any(|group| group == MASTERS)
    }

    /// The namespace and name, if it is a `ServiceAccount`.
    pub(crate) fn service_account(&self) -> Option<(&str, &str)> {
        let (namespace, name) = self.name.strip_prefix("system:serviceaccount:")?.split_once(':')?;
        (!namespace.is_empty() && !name.is_empty() && !name.contains(':')).then_some((namespace, name))
    }
}

/// A request, as it arrives over HTTP.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// `GET`, `POST`, `PUT`, `PATCH` or `DELETE`.
    pub method: &'a str,
    /// The path with the query.
    pub uri: &'a str,
    /// The header `Content-Type`.
    pub content_type: &'a str,
    /// The header `Accept`.
    pub accept: &'a str,
    /// The header `User-Agent`: its first part is the manager of fields, if the request names none.
    pub user_agent: &'a str,
    /// Who sends it.
    pub user: &'a User,
    /// The body.
    pub body: &'a [u8],
}

/// The query of a request.
#[derive(Debug, Clone, Default)]
pub(crate) struct Query(Vec<(String, String)>);

impl Query {
    pub(crate) fn parse(text: &str) -> Self {
        let pairs = text.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decoded(key, true), decoded(value, true))
        });
        Self(pairs.collect())
    }

    pub(crate) fn get(&self, key: &str) -> Option<&str> {
        let found = self.0.iter().find(|(known, _)| known == key).map(|(_, value)| value.as_str());
        found.filter(|value| !value.is_empty())
    }

    pub(crate) fn has(&self, key: &str) -> bool {
        self.0.iter().any(|(known, _)| known == key)
    }

    pub(crate) fn flag(&self, key: &str) -> bool {
        self.0.iter().any(|(known, value)| known == key && !matches!(value.as_str(), "0" | "false"))
    }

    pub(crate) fn all(&self, key: &str) -> impl Iterator<Item = &str> {
        self.0.iter().filter(move |(known, _)| known == key).map(|(_, value)| value.as_str())
    }

    /// Whether nothing is to be stored.
    pub(crate) fn is_dry_run(&self) -> Outcome<bool> {
        let mut is_dry = false;
        for value in self.all("dryRun").filter(|value| !value.is_empty()) {
            if value != "All" {
                let fault = Fault::not_supported("dryRun", json!([value]), &["All"]);
                return Err(Failure::invalid("meta.k8s.io", "CreateOptions", "", &[fault]));
            }
            is_dry = true;
        }
        Ok(is_dry)
    }
}

/// Text without percent-encoding; in a query, `+` is a space.
pub fn decoded(text: &str, is_query: bool) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let hex = |at: usize| after.get(at).and_then(|&digit| char::from(digit).to_digit(16));
        rest = after;
        match (byte, hex(0), hex(1)) {
            (b'%', Some(high), Some(low)) => {
                bytes.extend(u8::try_from(high * 16 + low));
                rest = &after[2..];
            }
            (b'+', ..) if is_query => bytes.push(b' '),
            _ => bytes.push(byte),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The parts of the path of an object, a list or a subresource.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Route {
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) namespace: Option<String>,
    pub(crate) plural: String,
    pub(crate) name: Option<String>,
    pub(crate) subresource: Option<String>,
}

impl Route {
    /// Parses the segments after the version.
    pub(crate) fn parse(group: &str, version: &str, rest: &[String]) -> Option<Self> {
        let mut route = Self { group: group.to_owned(), version: version.to_owned(), ..Self::default() };
        let mut rest = rest;
        if let [first, namespace, plural, ..] = rest
            && first == "namespaces"
            && !(group.is_empty() && rest.len() == 3 && ["status", "finalize"].contains(&&**plural))
        {
            route.namespace = Some(namespace.clone());
            rest = &rest[2..];
        }
        let mut parts = rest.iter().cloned();
        route.plural = parts.next().filter(|plural| !plural.is_empty())?;
        route.name = parts.next();
        route.subresource = parts.next();
        parts.next().is_none().then_some(route)
    }
}

/// The group and the version that the path of a resource names, and the segments after them.
pub(crate) fn versioned(parts: &[String]) -> Option<(&str, &str, &[String])> {
    match parts {
        [root, version, rest @ ..] if root == "api" && !rest.is_empty() => Some(("", version.as_str(), rest)),
        [root, group, version, rest @ ..] if root == "apis" && !rest.is_empty() => {
            Some((group.as_str(), version.as_str(), rest))
        }
        _ => None,
    }
}

/// The segments of a path.
pub(crate) fn segments(path: &str) -> Vec<String> {
    path.split('/').filter(|part| !part.is_empty()).map(|part| decoded(part, false)).collect()
}

/// The manager of fields of a request.
pub(crate) fn manager(query: &Query, user_agent: &str) -> String {
    if let Some(name) = query.get("fieldManager") {
        return name.to_owned();
    }
    user_agent.split('/').next().unwrap_or_default().chars().take(128).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_name_objects_lists_and_subresources() {
        let route = |path: &str| Route::parse("", "v1", &segments(path));
        let pods = route("namespaces/a/pods/b/status").unwrap();
        assert_eq!(
            (pods.namespace.as_deref(), &*pods.plural, pods.name.as_deref(), pods.subresource.as_deref()),
            (Some("a"), "pods", Some("b"), Some("status"))
        );
        let namespace = route("namespaces/a/status").unwrap();
        assert_eq!((&*namespace.plural, namespace.name.as_deref()), ("namespaces", Some("a")));
        assert_eq!(route("namespaces/a").unwrap().namespace, None);
        assert_eq!(route("nodes").unwrap().plural, "nodes");
        assert_eq!(route("a/b/c/d"), None);
        let query = Query::parse("labelSelector=a%3Db+c&watch=1&limit=");
        assert_eq!(
            (query.get("labelSelector"), query.flag("watch"), query.get("limit")),
            (Some("a=b c"), true, None)
        );
    }
}
