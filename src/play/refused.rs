//! Requests that the authorizer has refused to the account of a package, or to the manager: a right is missing, which fails a case.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use http::{Response, StatusCode};
use http_body_util::{BodyExt, Full};
use kube::core::Status;
use serde_json::{Value, json};
use tower::BoxError;

use crate::api::{CallError, says_unauthorized};
use crate::apiserver::reply::{ResponseBody, boxed};
use crate::children::names::MANAGER_NAMESPACE;
use crate::diag::{Diagnostic, Location};
use crate::facts::text;
use crate::rights::{self, MANAGER, Place, Right, Rights};

const RBAC: &str = "rbac.authorization.k8s.io";
/// The words of a refusal to grant rights that the account does not have itself.
const GRANTS: &str = "attempting to grant RBAC permissions not currently held";
/// The words after the name of an account with which the manager says that the account lacks a right.
const SAID: [&str; 2] = ["lacks rights that the package ", "needs the verbs "];

/// The kind and the name of a role.
pub(super) type Role = (String, String);

/// The requests of a play that the authorizer has refused. Clones are the same.
#[derive(Debug, Clone, Default)]
pub(super) struct Refusals(Arc<Mutex<BTreeSet<Refusal>>>);

impl Refusals {
    fn lock(&self) -> MutexGuard<'_, BTreeSet<Refusal>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    pub(super) fn all(&self) -> BTreeSet<Refusal> {
        self.lock().clone()
    }

    /// Forgets the refusals of requests that are allowed now.
    pub(super) fn forget(&self, granted: &[Grant]) {
        self.lock().retain(|refusal| !refusal.is_allowed_by(granted));
    }

    /// Notes the answer to a request for a path if the authorizer has refused it. `role`: the role that it would have bound.
    pub(super) async fn note(
        &self,
        answer: Response<ResponseBody>,
        path: &str,
        role: Option<Role>,
    ) -> Result<Response<ResponseBody>, BoxError> {
        if answer.status() != StatusCode::FORBIDDEN {
            return Ok(answer);
        }
        let (parts, body) = answer.into_parts();
        let body = body.collect().await?.to_bytes();
        if let Some(refusal) = Refusal::of(&body, path, role) {
            self.lock().insert(refusal);
        }
        Ok(Response::from_parts(parts, boxed(Full::new(body))))
    }
}

/// The rights that a binding gives to an account in a namespace.
#[derive(Debug)]
pub(super) struct Grant {
    user: String,
    namespace: String,
    rights: Rights,
}

impl Grant {
    /// What a binding to one account gives. `role`: the role that it binds.
    pub(super) fn of(binding: &Value, role: &Value) -> Self {
        let subject = &binding["subjects"][0];
        let namespace = text(&binding["metadata"]["namespace"]).to_owned();
        let rights = rights::by_rules(role, &Place::Namespace(namespace.clone()));
        Self { user: rights::user(text(&subject["namespace"]), text(&subject["name"])), namespace, rights }
    }

    /// Whether the message of a condition is about a right of the account in the namespace.
    pub(super) fn is_meant_by(&self, message: &str) -> bool {
        let refused = format!("in the namespace {:?}", self.namespace);
        // The manager has asked for all rights, and lists them.
        let listed = [',', ';', ' '].map(|end| format!(" in {}{end}", self.namespace));
        message.contains(&self.user)
            && (message.contains(&refused) || listed.iter().any(|words| message.contains(words)))
    }
}

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

    /// Whether one of these grants gives the right that was missing. None does if the account was to grant rights: it must have them
    /// itself.
    pub(super) fn is_allowed_by(&self, grants: &[Grant]) -> bool {
        self.grant_for(grants).is_some()
    }

    fn grant_for<'g>(&self, grants: &'g [Grant]) -> Option<&'g Grant> {
        let (user, right) = self.lacking()?;
        grants.iter().find(|grant| grant.user == user && grant.rights.grants(&right))
    }

    /// The user and the right that the request needs, as its refusal says:
    /// `pods "a" is forbidden: User "b" cannot create resource "pods/exec" in API group "" in the namespace "c"`.
    fn lacking(&self) -> Option<(&str, Right)> {
        let (object, rest) = self.message.split_once(" is forbidden: User \"")?;
        let (user, rest) = rest.split_once("\" cannot ")?;
        let (verb, rest) = rest.split_once(" resource \"")?;
        let (resource, rest) = rest.split_once("\" in API group \"")?;
        let (group, _) = rest.split_once('"')?;
        let right = Right {
            place: self.namespace.clone().map_or(Place::Cluster, Place::Namespace),
            group: group.to_owned(),
            resource: resource.to_owned(),
            name: object.split_once(' ').map(|(_, name)| name.trim_matches('"').to_owned()),
            verb: verb.to_owned(),
        };
        Some((user, right))
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
            _ if !self.message.contains(GRANTS) => {
                let lacking = self.lacking().map(|(_, Right { group, resource, verb, .. })| {
                    json!({"apiGroups": [group], "resources": [resource], "verbs": [verb]})
                });
                lacking.into_iter().collect()
            }
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

/// Whether the message of a condition says that the account of a package, or the manager's, lacks a right.
pub(super) fn says(message: &str) -> bool {
    let account = rights::user(MANAGER_NAMESPACE, "");
    let is_said = |rest: &str| {
        rest.split_once(' ').is_some_and(|(_, rest)| SAID.iter().any(|words| rest.starts_with(words)))
    };
    message.contains(&account) && (says_unauthorized(message) || message.split(&account).skip(1).any(is_said))
}

/// Leaves out what was refused in namespaces that do not exist. A manager that is killed when they are gone starts anew, and reads all
/// once more.
pub(super) fn leave_out_absent(refusals: &mut BTreeSet<Refusal>, said: &mut Vec<String>, absent: &[Grant]) {
    refusals.retain(|refusal| !refusal.is_allowed_by(absent));
    said.retain(|message| !absent.iter().any(|grant| grant.is_meant_by(message)));
}

/// The failure of a case, if rights were missing: they are the reason for whatever `other` it has failed of. `said`: what instances
/// say of them. `absent`: what could not be granted, for its namespace does not exist. `at`: where the case has missed the first.
pub(super) fn failure(
    (refusals, said, absent): (&BTreeSet<Refusal>, Vec<String>, &[Grant]),
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
    let (mut namespaces, mut rules) = (BTreeSet::new(), BTreeSet::new());
    for refusal in refusals {
        match refusal.grant_for(absent) {
            Some(grant) => drop(namespaces.insert(grant.namespace.as_str())),
            None => rules.extend(refusal.permissions().iter().map(rights::flow)),
        }
    }
    if !namespaces.is_empty() {
        let names = namespaces.into_iter().collect::<Vec<_>>().join(", ");
        lines.push(format!("the package has its rights in these namespaces once they exist: {names}"));
    }
    if !rules.is_empty() {
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
    }

    #[test]
    fn conditions_say_that_a_right_is_missing() {
        let user = "system:serviceaccount:operetta-system:operetta-x";
        for message in [
            format!("role (Role n/a): {GRANT}"),
            format!("Secret other/a may not be read: {ACCOUNT}"),
            format!("{user} lacks rights that the package x needs: list secrets"),
            format!(
                "v1 Secret cannot be watched: no; {user} needs the verbs list and watch for it, in all namespaces"
            ),
        ] {
            assert!(says(&message), "{message}");
        }
        let policy =
            "configmaps \"a\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request";
        for message in [
            "pods \"a\" is forbidden: exceeded quota".to_owned(),
            format!("config (ConfigMap n/a): {policy}: {user} may not name it so"),
            format!(
                "config (ConfigMap n/a): admission webhook \"w\" denied the request: {user} is forbidden: it lacks rights"
            ),
            ACCOUNT.replace(user, "eve"),
        ] {
            assert!(!says(&message), "{message}");
        }
    }

    /// The rights that the account of the package x gets in a namespace by a role with this rule.
    fn grant(namespace: &str, rule: &Value) -> Grant {
        let account = json!({"kind": "ServiceAccount", "namespace": "operetta-system", "name": "operetta-x"});
        let binding = json!({"metadata": {"namespace": namespace}, "subjects": [account]});
        Grant::of(&binding, &json!({"rules": [rule]}))
    }

    fn to_secrets(verbs: &[&str]) -> Grant {
        grant("other", &json!({"apiGroups": [""], "resources": ["secrets"], "verbs": verbs}))
    }

    #[test]
    fn only_rights_that_allow_a_request_make_its_refusal_forgotten() {
        let is_allowed =
            |message: &str, grant: Grant| refusal(message, None).unwrap().is_allowed_by(&[grant]);
        assert!(is_allowed(ACCOUNT, to_secrets(&["get", "list"])));
        assert!(!is_allowed(ACCOUNT, to_secrets(&["get"])));
        let all = json!({"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]});
        assert!(is_allowed(ACCOUNT, grant("other", &all)) && !is_allowed(ACCOUNT, grant("a", &all)));
        // That the account may not grant rights is no matter of the namespace.
        assert!(!is_allowed(GRANT, grant("other", &all)));
        // What the account of another package or the manager lacks, this one does not give.
        for other in [":operetta-y", ":operetta"] {
            assert!(!is_allowed(&ACCOUNT.replace(":operetta-x", other), to_secrets(&["list"])));
        }
        // A role may be for some objects only.
        let named = |name: &str| {
            let names = [name];
            grant(
                "other",
                &json!({"apiGroups": [""], "resources": ["secrets"], "resourceNames": names, "verbs": ["list"]}),
            )
        };
        assert!(!is_allowed(ACCOUNT, named("a")));
        let of_a = ACCOUNT.replacen("secrets is", "secrets \"a\" is", 1);
        assert!(is_allowed(&of_a, named("a")) && !is_allowed(&of_a, named("b")));
    }

    #[test]
    fn refusals_are_about_the_namespace_of_the_request() {
        assert_eq!(namespace_of("/apis/apps/v1/deployments"), None);
        assert_eq!(namespace_of("/api/v1/namespaces/other").as_deref(), Some("other"));
        let grant = to_secrets(&["list"]);
        assert!(grant.is_meant_by(ACCOUNT));
        assert!(!grant.is_meant_by(&ACCOUNT.replace("\"other\"", "\"another\"")));
        let listed = |place: &str| {
            format!("{} lacks rights that the package x needs: list secrets in {place}; apply", grant.user)
        };
        assert!(grant.is_meant_by(&listed("other")) && !grant.is_meant_by(&listed("others")));
    }

    #[test]
    fn refusals_in_absent_namespaces_are_left_out() {
        let mut refusals: BTreeSet<Refusal> =
            [ACCOUNT, GRANT].into_iter().filter_map(|message| refusal(message, None)).collect();
        let mut said = vec![format!("Mini a: {ACCOUNT}"), format!("Mini a: {GRANT}")];
        leave_out_absent(&mut refusals, &mut said, &[to_secrets(&["list"])]);
        assert_eq!(refusals, BTreeSet::from([refusal(GRANT, None).unwrap()]));
        assert_eq!(said, [format!("Mini a: {GRANT}")]);
        leave_out_absent(&mut refusals, &mut said, &[]);
        assert_eq!((refusals.len(), said.len()), (1, 1));
    }

    #[tokio::test]
    async fn refusals_are_noted_and_forgotten() {
        let refusals = Refusals::default();
        for (code, message) in [(403, ACCOUNT), (403, GRANT), (403, "exceeded quota"), (409, ACCOUNT)] {
            let code = StatusCode::from_u16(code).unwrap();
            let answer = crate::apiserver::reply::status(code, "Forbidden", message);
            let answer = refusals.note(answer, "/api/v1/namespaces/other/secrets", None).await.unwrap();
            let body = answer.into_body().collect().await.unwrap().to_bytes();
            let status: Value = serde_json::from_slice(&body).unwrap();
            assert_eq!(status["message"], message);
        }
        assert_eq!(refusals.all().len(), 2);
        refusals.forget(&[to_secrets(&["list"])]);
        assert_eq!(refusals.all(), BTreeSet::from([refusal(GRANT, None).unwrap()]));
        assert!(!refusals.is_empty());
    }

    #[test]
    fn missing_right_is_the_reason_for_what_else_has_failed() {
        let at = Location::new(&Source::new("a.yaml", "cases: []\n"), Span::new(0, 5));
        assert_eq!(failure((&BTreeSet::new(), Vec::new(), &[]), None, &at), None);
        let other = Diagnostic::error("test::expect", "it does not hold").help("Pod/*: 0, not 1");
        let refusals: BTreeSet<Refusal> = refusal(ACCOUNT, None).into_iter().collect();
        let said = vec!["Mini a: Secret other/key may not be read".to_owned()];
        let told = failure((&refusals, said, &[]), Some(Box::new(other)), &at).unwrap();
        assert_eq!(told.message, "a right is missing: Mini a: Secret other/key may not be read");
        let help = told.help.unwrap();
        let lines: Vec<&str> = help.lines().collect();
        assert!(lines[0] == ACCOUNT && lines[1].contains("operator.yaml: [{apiGroups: [\"\"]"), "{help}");
        assert_eq!(lines[2..], ["it does not hold", "Pod/*: 0, not 1"]);
        assert_eq!(told.location.as_ref(), Some(&at));
        let once = "the package has its rights in these namespaces once they exist: other";
        let told = failure((&refusals, Vec::new(), &[to_secrets(&["list"])]), None, &at).unwrap();
        assert_eq!(told.help.as_deref(), Some(once));
        // A namespace does not give what the package is not to have in it.
        let told = failure((&refusals, Vec::new(), &[to_secrets(&["get"])]), None, &at).unwrap();
        assert!(told.help.unwrap().contains("add to permissions in operator.yaml: [{apiGroups: [\"\"]"));
    }
}
