//! The admission policy of `PlanRun`s. A controller cannot see which user has written an object, so the API server checks
//! it.

use data_encoding::HEXLOWER;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::{APPROVE, PLAN_RUN, RUN};
use crate::crd::{GROUP, VERSION};
use crate::plan::{PRUNABLE, TAKEN};

/// The name of the policy and of its binding.
pub const POLICY: &str = "planruns.operetta.dev";

/// The longest name of a condition.
const LONGEST: usize = 63;

/// What every annotation of Operetta begins with.
const OWN: &str = "operetta.dev/";

/// The `ValidatingAdmissionPolicy`, which checks the writes of all users but managers: see [`exemption`].
pub fn policy() -> Value {
    let allowed = |verb: &str| format!("variables.instance.check('{verb}').allowed()");
    let changed = "variables.others != variables.oldOthers || variables.all != variables.oldAll";
    let needs = |verb: &str, what: &str| {
        format!(
            "'user ' + request.userInfo.username + ' may not {what} of ' + object.spec.of.resource + '/' + \
             object.spec.of.name + ': it needs the verb `{verb}` on ' + object.spec.of.resource + '.' + variables.group"
        )
    };
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": POLICY},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": [{
                "apiGroups": [GROUP],
                "apiVersions": [VERSION],
                "operations": ["CREATE", "UPDATE"],
                "resources": [PLAN_RUN.plural],
            }]},
            "variables": [
                {"name": "group", "expression": "object.spec.of.apiVersion.split('/')[0]"},
                {
                    "name": "instance",
                    "expression": "authorizer.group(variables.group).resource(object.spec.of.resource)\
                        .namespace(object.metadata.namespace).name(object.spec.of.name)",
                },
                {"name": "isNew", "expression": "request.operation == 'CREATE'"},
                {"name": "approvals", "expression": "has(object.spec.approvals) ? object.spec.approvals : []"},
                {
                    "name": "oldApprovals",
                    "expression": "!variables.isNew && has(oldObject.spec.approvals) ? oldObject.spec.approvals : []",
                },
                {"name": "all", "expression": "size(variables.approvals)"},
                {"name": "oldAll", "expression": "size(variables.oldApprovals)"},
                {
                    "name": "others",
                    "expression": "size(variables.approvals.filter(a, a.by != request.userInfo.username))",
                },
                {
                    "name": "oldOthers",
                    "expression": "size(variables.oldApprovals.filter(a, a.by != request.userInfo.username))",
                },
                {
                    "name": "annotations",
                    "expression": "has(object.metadata.annotations) ? object.metadata.annotations : {}",
                },
                {
                    "name": "oldAnnotations",
                    "expression": "!variables.isNew && has(oldObject.metadata.annotations) ? oldObject.metadata.annotations : {}",
                },
                {
                    "name": "cancels",
                    "expression": "has(object.spec.cancel) && object.spec.cancel && \
                        (variables.isNew || !has(oldObject.spec.cancel) || !oldObject.spec.cancel)",
                },
            ],
            "validations": [
                {
                    "expression": format!("!variables.isNew || {}", allowed(RUN)),
                    "messageExpression": needs(RUN, "run plans"),
                    "reason": "Forbidden",
                },
                {
                    "expression": format!("!variables.cancels || {}", allowed(RUN)),
                    "messageExpression": needs(RUN, "cancel runs"),
                    "reason": "Forbidden",
                },
                {
                    // Else the requester could approve a run that they requested in the name of another user.
                    "expression": format!(
                        "!variables.isNew || '{TAKEN}' in variables.annotations || \
                            has(object.spec.requestedBy) && object.spec.requestedBy == request.userInfo.username"
                    ),
                    "message": "spec.requestedBy must be the user who creates the PlanRun: kubectl auth whoami",
                    "reason": "Forbidden",
                },
                {
                    "expression": format!("!variables.isNew || !object.spec.plan.startsWith('{OWN}')"),
                    "message": format!("only the manager creates runs of the plans {OWN}*"),
                    "reason": "Forbidden",
                },
                {
                    "expression": "variables.others == variables.oldOthers",
                    "message": "spec.approvals[].by must be the user who adds the approval",
                    "reason": "Forbidden",
                },
                {
                    "expression": format!("!({changed}) || {}", allowed(APPROVE)),
                    "messageExpression": needs(APPROVE, "approve steps"),
                    "reason": "Forbidden",
                },
                {
                    "expression": "variables.isNew || (has(object.spec.params) == has(oldObject.spec.params) && \
                        (!has(object.spec.params) || object.spec.params == oldObject.spec.params))",
                    "message": "params is immutable: create another PlanRun",
                    "reason": "Invalid",
                },
                {
                    // A backup that is put back carries `taken`, and never runs.
                    "expression": format!(
                        "variables.isNew ? '{taken}' in variables.annotations || \
                            variables.annotations.all(key, !key.startsWith('{OWN}') || key == '{prunable}') : \
                            variables.annotations.all(key, !key.startsWith('{OWN}') || \
                                key in variables.oldAnnotations && variables.oldAnnotations[key] == variables.annotations[key]) && \
                            variables.oldAnnotations.all(key, !key.startsWith('{OWN}') || key in variables.annotations)",
                        taken = TAKEN,
                        prunable = PRUNABLE,
                    ),
                    "message": format!("only the manager sets the annotations {OWN}* of a PlanRun"),
                    "reason": "Forbidden",
                },
            ],
        },
    })
}

/// The part of the policy that exempts a manager: with this user name, its writes are not checked. The conditions of a policy
/// are a map by name, so managers with different users add theirs to one policy by server-side apply, each as a field manager
/// of its own.
pub fn exemption(user: &str) -> Value {
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": POLICY},
        "spec": {"matchConditions": [{
            "name": condition_name(user),
            "expression": format!("request.userInfo.username != {}", quoted(user)),
        }]},
    })
}

/// Whether a policy exempts that user.
pub fn is_exempt(policy: &Value, user: &str) -> bool {
    let wanted = &exemption(user)["spec"]["matchConditions"][0]["expression"];
    let conditions = policy["spec"]["matchConditions"].as_array();
    conditions.is_some_and(|all| all.iter().any(|condition| &condition["expression"] == wanted))
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

/// The `ValidatingAdmissionPolicyBinding`: the policy holds everywhere.
pub fn binding() -> Value {
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": POLICY},
        "spec": {"policyName": POLICY, "validationActions": ["Deny"]},
    })
}

/// A CEL string.
fn quoted(text: &str) -> String {
    Value::String(text.to_owned()).to_string()
}
