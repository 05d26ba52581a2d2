//! What the admission policies have in common: their form, whom they exempt, and whether a stored one is whole.

use data_encoding::HEXLOWER;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// Annotation of the policies and bindings: their version. An older manager leaves those of a newer one as
/// they are.
const POLICY_VERSION: &str = "operetta.dev/policy-version";
/// Grows with every change of a policy.
pub(super) const VERSION: u64 = 2;

/// The longest name of a condition.
const LONGEST: usize = 63;

/// The users of Kubernetes itself that delete objects of namespaces and owners that are gone, as a list of CEL.
pub(super) const SYSTEM: &str = "['system:serviceaccount:kube-system:generic-garbage-collector', \
    'system:serviceaccount:kube-system:namespace-controller', 'system:kube-controller-manager']";

/// A `ValidatingAdmissionPolicy`. Fields that have defaults are written out, so that an apply resets them.
pub(crate) fn policy(name: &str, rules: &Value, variables: &Value, validations: &[Value]) -> Value {
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": name, "annotations": {POLICY_VERSION: VERSION.to_string()}},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {
                "matchPolicy": "Equivalent",
                "namespaceSelector": {},
                "objectSelector": {},
                "resourceRules": rules,
            },
            "variables": variables,
            "validations": validations,
        },
    })
}

/// The `ValidatingAdmissionPolicyBinding` of a policy: it holds everywhere.
pub(crate) fn binding(name: &str) -> Value {
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": name, "annotations": {POLICY_VERSION: VERSION.to_string()}},
        "spec": {"policyName": name, "validationActions": ["Deny"]},
    })
}

/// The part of a policy that exempts a manager: with this user name, its writes are not checked. The conditions of a policy
/// are a map by name, so managers with different users add theirs to one policy by server-side apply, each as a field manager
/// of its own.
pub fn exemption(policy: &str, user: &str) -> Value {
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": policy},
        "spec": {"matchConditions": [condition(user)]},
    })
}

fn condition(user: &str) -> Value {
    json!({
        "name": condition_name(user),
        "expression": format!("{EXEMPTS}{}", Value::String(user.to_owned())),
    })
}

/// What the expression of an exemption begins with; a CEL string follows.
const EXEMPTS: &str = "request.userInfo.username != ";

/// Whether a condition exempts one user and does nothing else.
fn is_exemption(found: &Value) -> bool {
    let text = found["expression"].as_str().and_then(|text| text.strip_prefix(EXEMPTS));
    let user = text.and_then(|text| serde_json::from_str::<String>(text).ok());
    user.is_some_and(|user| condition(&user) == *found)
}

/// Whether a policy exempts that user.
pub fn is_exempt(policy: &Value, user: &str) -> bool {
    let wanted = condition(user);
    conditions(policy).any(|found| found["expression"] == wanted["expression"])
}

fn conditions(policy: &Value) -> impl Iterator<Item = &Value> {
    policy["spec"]["matchConditions"].as_array().into_iter().flatten()
}

/// The field manager that owns the exemption of a user.
pub fn exemption_owner(user: &str) -> String {
    format!("operetta:{}", condition_name(user))
}

/// A name for each user: `NAMESPACE.NAME` of a `ServiceAccount`, a digest of other users.
fn condition_name(user: &str) -> String {
    let account = user.strip_prefix("system:serviceaccount:").map(|account| account.replacen(':', ".", 1));
    let is_name = |text: &String| {
        text.len() <= LONGEST && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '.'))
    };
    account
        .filter(is_name)
        .unwrap_or_else(|| format!("user-{}", &HEXLOWER.encode(&Sha256::digest(user))[..16]))
}

/// How a stored policy or binding compares with what it should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Integrity {
    /// The object is as it should be, or of a newer manager.
    Whole,
    /// An older manager has written the object.
    Outdated,
    /// The object does not exist.
    Missing,
    /// The object checks less, or something else.
    Altered,
}

/// The fields that narrow a policy or a binding.
const NARROWING: [&str; 6] = [
    "/spec/paramKind",
    "/spec/matchConstraints/excludeResourceRules",
    "/spec/matchConstraints/namespaceSelector",
    "/spec/matchConstraints/objectSelector",
    "/spec/matchResources",
    "/spec/paramRef",
];

/// Compares a stored policy or binding with `wanted`. Exemptions of managers do not count.
pub fn integrity(live: Option<&Value>, wanted: &Value) -> Integrity {
    let Some(live) = live else { return Integrity::Missing };
    let version = live["metadata"]["annotations"][POLICY_VERSION].as_str();
    let version: u64 = version.and_then(|text| text.parse().ok()).unwrap_or_default();
    let is_empty = |value: &Value| match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.values().all(Value::is_null),
        _ => false,
    };
    let is_narrow = NARROWING.iter().any(|path| live.pointer(path).is_some_and(|found| !is_empty(found)));
    let is_whole =
        has_all_of(&live["spec"], &wanted["spec"]) && !is_narrow && conditions(live).all(is_exemption);
    match version {
        _ if version > VERSION || is_whole => Integrity::Whole,
        VERSION => Integrity::Altered,
        _ => Integrity::Outdated,
    }
}

/// A merge patch that makes an altered policy or binding whole again.
pub fn repair(live: &Value, wanted: &Value) -> Value {
    let mut patch = json!({"metadata": wanted["metadata"], "spec": wanted["spec"]});
    for path in NARROWING {
        let (parent, field) = path.rsplit_once('/').unwrap_or_default();
        if let Some(Value::Object(parent)) = patch.pointer_mut(parent) {
            parent.insert(field.to_owned(), Value::Null);
        }
    }
    if live["spec"]["matchConditions"].is_array() {
        patch["spec"]["matchConditions"] =
            conditions(live).filter(|found| is_exemption(found)).cloned().collect();
    }
    patch
}

/// Whether an apply of `wanted` would change nothing: the API server adds fields to what is applied, and no items.
pub fn has_all_of(live: &Value, wanted: &Value) -> bool {
    match (live, wanted) {
        (Value::Object(live), Value::Object(wanted)) => {
            wanted.iter().all(|(name, wanted)| has_all_of(live.get(name).unwrap_or(&Value::Null), wanted))
        }
        (Value::Array(live), Value::Array(wanted)) => {
            live.len() == wanted.len()
                && live.iter().zip(wanted).all(|(live, wanted)| has_all_of(live, wanted))
        }
        _ => live == wanted,
    }
}
