//! Requests that the authorizer has refused to the account of a package, or to the manager: a right is missing, which fails a case.

use std::collections::BTreeSet;

use kube::core::Status;
use serde_json::{Value, json};

use crate::api::CallError;
use crate::children::names::MANAGER_NAMESPACE;
use crate::diag::{Diagnostic, Location};
use crate::rights::{self, MANAGER};

const RBAC: &str = "rbac.authorization.k8s.io";
/// The words of a refusal to grant rights that the account does not have itself.
const GRANTS: &str = "attempting to grant RBAC permissions not currently held";
/// The words with which a condition says that a right is missing.
const SAID: [&str; 3] = [" is forbidden: ", "lacks rights", "needs the verbs"];

/// The kind and the name of a role.
pub(super) type Role = (String, String);

/// A request that the authorizer has refused.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Refusal {
    /// What the API server says.
    message: String,
    /// The role that the request would have bound.
    role: Option<Role>,
    /// The namespace of the request.
    namespace: Option<String>,
}

impl Refusal {
    /// Reads the answer to a request for a path; `None` if it is another refusal. `role`: the role that the request would have bound.
    pub(super) fn of(answer: &[u8], path: &str, role: Option<Role>) -> Option<Self> {
        let status: Status = serde_json::from_slice(answer).ok()?;
        let is_refused = CallError::from_status(&status).is_unauthorized();
        is_refused.then(|| Self { message: status.message, role, namespace: namespace_of(path) })
    }

    /// Whether the account of a package lacked a right in one of these namespaces.
    pub(super) fn is_in(&self, namespaces: &BTreeSet<&str>) -> bool {
        let is_there = |namespace: &str| namespaces.contains(namespace);
        self.namespace.as_deref().is_some_and(is_there) && !self.is_of_manager()
    }

    fn is_of_manager(&self) -> bool {
        self.message.contains(&format!("\"{}\"", rights::user(MANAGER_NAMESPACE, MANAGER)))
    }

    /// The rules of `permissions` with which the account of a package may send the request. The manager has none.
    fn permissions(&self) -> Vec<Value> {
        if self.is_of_manager() {
            return Vec::new();
        }
        match &self.role {
            _ if !self.message.contains(GRANTS) => lacking(&self.message).into_iter().collect(),
            Some((kind, name)) => {
                let resource = if kind == "Role" { "roles" } else { "clusterroles" };
                let names = [name];
                vec![
                    json!({"apiGroups": [RBAC], "resources": [resource], "resourceNames": names, "verbs": ["bind"]}),
                ]
            }
            None => self.message.lines().filter_map(granted).collect(),
        }
    }
}

fn namespace_of(path: &str) -> Option<String> {
    let (_, rest) = path.split_once("/namespaces/")?;
    rest.split('/').next().map(str::to_owned)
}

/// The role that a request binds, by its path and body.
pub(super) fn role_of(path: &str, body: &[u8]) -> Option<Role> {
    if !path.contains("rolebindings") {
        return None;
    }
    let binding: Value = serde_json::from_slice(body).ok()?;
    let text = |field: &str| binding["roleRef"][field].as_str().map(str::to_owned);
    Some((text("kind")?, text("name")?))
}

/// The rule for a request: `User "a" cannot create resource "pods/exec" in API group "" in the namespace "b"`.
fn lacking(message: &str) -> Option<Value> {
    let (_, rest) = message.split_once("\" cannot ")?;
    let (verb, rest) = rest.split_once(" resource \"")?;
    let (resource, rest) = rest.split_once("\" in API group \"")?;
    let (group, _) = rest.split_once('"')?;
    Some(json!({"apiGroups": [group], "resources": [resource], "verbs": [verb]}))
}

/// The rule of a line such as `{APIGroups:["apps"], Resources:["deployments"], Verbs:["get" "list"]}`.
fn granted(line: &str) -> Option<Value> {
    let words = |name: &str| -> Option<Vec<String>> {
        let (_, rest) = line.split_once(&format!("{name}:["))?;
        let (words, _) = rest.split_once(']')?;
        Some(words.split(' ').map(|word| word.trim_matches('"').to_owned()).collect())
    };
    let mut rule = json!({
        "apiGroups": words("APIGroups")?, "resources": words("Resources")?, "verbs": words("Verbs")?,
    });
    if let Some(names) = words("ResourceNames") {
        rule["resourceNames"] = names.into();
    }
    Some(rule)
}

/// Whether the message of a condition says that a right is missing.
pub(super) fn says(message: &str) -> bool {
    message.contains(&rights::user(MANAGER_NAMESPACE, "")) && SAID.iter().any(|words| message.contains(words))
}

/// The failure of a case, if rights were missing: they are the reason for whatever `other` it has failed of. `said`: what instances
/// say of them. `absent`: the namespaces in which rights could not be granted. `at`: where the case has missed the first.
pub(super) fn failure(
    (refusals, said, absent): (&BTreeSet<Refusal>, Vec<String>, &BTreeSet<&str>),
    other: Option<Box<Diagnostic>>,
    at: &Location,
) -> Option<Box<Diagnostic>> {
    let mut lines = said;
    // The rules that a role may not grant are on lines of their own.
    let on_one_line = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    lines.extend(refusals.iter().map(|refusal| on_one_line(&refusal.message)));
    // The message is the same in several namespaces if it is about what a role grants.
    lines.dedup();
    if lines.is_empty() {
        return other;
    }
    let message = format!("a right is missing: {}", lines.remove(0));
    let rules: BTreeSet<String> =
        refusals.iter().flat_map(Refusal::permissions).map(|rule| rights::flow(&rule)).collect();
    if !absent.is_empty() {
        let names = absent.iter().copied().collect::<Vec<_>>().join(", ");
        lines.push(format!("the package has its rights in these namespaces once they exist: {names}"));
    } else if !rules.is_empty() {
        let rules = rules.into_iter().collect::<Vec<_>>().join(", ");
        lines.push(format!("if the package is to have it, add to permissions in operator.yaml: [{rules}]"));
    }
    let mut place = None;
    if let Some(Diagnostic { message, location, help, .. }) = other.map(|other| *other) {
        place = location;
        lines.push(message);
        lines.extend(help);
    }
    let failure = Diagnostic::error("test::rights", message).located(place.unwrap_or_else(|| at.clone()));
    Some(Box::new(failure.help(lines.join("\n"))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diag::{Source, Span};

    fn refusal(message: &str, role: Option<Role>) -> Option<Refusal> {
        let status = json!({"kind": "Status", "status": "Failure", "code": 403, "reason": "Forbidden", "message": message});
        Refusal::of(status.to_string().as_bytes(), "/api/v1/namespaces/other/secrets", role)
    }

    const GRANT: &str = "roles.rbac.authorization.k8s.io \"a\" is forbidden: user \"system:serviceaccount:operetta-system:operetta-x\" \
                         (groups=[]) is attempting to grant RBAC permissions not currently held:\n\
                         {APIGroups:[\"\"], Resources:[\"pods\"], ResourceNames:[\"b\"], Verbs:[\"get\" \"list\"]}";
    const ACCOUNT: &str = "secrets is forbidden: User \"system:serviceaccount:operetta-system:operetta-x\" cannot list resource \
                           \"secrets\" in API group \"\" in the namespace \"other\"";

    fn rules(refusal: Option<Refusal>) -> Vec<String> {
        refusal.unwrap().permissions().iter().map(rights::flow).collect()
    }

    #[test]
    fn missing_permissions_are_named_as_rules() {
        assert_eq!(
            rules(refusal(ACCOUNT, None)),
            ["{apiGroups: [\"\"], resources: [secrets], verbs: [list]}"]
        );
        let granted = "{apiGroups: [\"\"], resourceNames: [b], resources: [pods], verbs: [get, list]}";
        assert_eq!(rules(refusal(GRANT, None)), [granted]);
        let role = role_of(
            "/apis/rbac.authorization.k8s.io/v1/namespaces/n/rolebindings/b",
            br#"{"roleRef": {"kind": "ClusterRole", "name": "edit"}}"#,
        );
        let bind = "{apiGroups: [rbac.authorization.k8s.io], resourceNames: [edit], resources: [clusterroles], verbs: [bind]}";
        assert_eq!(rules(refusal(GRANT, role)), [bind]);
        // What the manager itself lacks, no package can add.
        assert!(rules(refusal(&ACCOUNT.replace(":operetta-x", ":operetta"), None)).is_empty());
    }

    #[test]
    fn other_refusals_are_no_missing_rights() {
        assert_eq!(refusal("pods \"a\" is forbidden: exceeded quota: q", None), None);
        assert_eq!(Refusal::of(b"Forbidden", "", None), None);
        assert!(
            says(&format!("role (Role n/a): {GRANT}")) && !says("pods \"a\" is forbidden: exceeded quota")
        );
    }

    #[test]
    fn refusals_are_about_the_namespace_of_the_request() {
        let is_in =
            |refusal: Option<Refusal>, namespace| refusal.unwrap().is_in(&BTreeSet::from([namespace]));
        assert!(is_in(refusal(ACCOUNT, None), "other") && is_in(refusal(GRANT, None), "other"));
        assert!(!is_in(refusal(ACCOUNT, None), "secrets"));
        // No right of the account helps the manager.
        assert!(!is_in(refusal(&ACCOUNT.replace(":operetta-x", ":operetta"), None), "other"));
        assert_eq!(namespace_of("/apis/apps/v1/deployments"), None);
        assert_eq!(namespace_of("/api/v1/namespaces/other").as_deref(), Some("other"));
    }

    #[test]
    fn missing_right_is_the_reason_for_what_else_has_failed() {
        let at = Location::new(&Source::new("a.yaml", "cases: []\n"), Span::new(0, 5));
        let (nothing, nowhere) = (BTreeSet::new(), BTreeSet::new());
        assert_eq!(failure((&nothing, Vec::new(), &nowhere), None, &at), None);
        let other = Diagnostic::error("test::expect", "it does not hold").help("Pod/*: 0, not 1");
        let refusals: BTreeSet<Refusal> = refusal(ACCOUNT, None).into_iter().collect();
        let said = vec!["Mini a: key may not be read".to_owned()];
        let told = failure((&refusals, said, &nowhere), Some(Box::new(other)), &at).unwrap();
        assert_eq!(told.message, "a right is missing: Mini a: key may not be read");
        let help = told.help.unwrap();
        let lines: Vec<&str> = help.lines().collect();
        assert!(lines[0] == ACCOUNT && lines[1].contains("operator.yaml: [{apiGroups: [\"\"]"), "{help}");
        assert_eq!(lines[2..], ["it does not hold", "Pod/*: 0, not 1"]);
        assert_eq!(told.location.as_ref(), Some(&at));
        let told = failure((&refusals, Vec::new(), &BTreeSet::from(["other"])), None, &at).unwrap();
        assert_eq!(
            told.help.as_deref(),
            Some("the package has its rights in these namespaces once they exist: other")
        );
    }
}
