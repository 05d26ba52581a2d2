//! The admission policy of `InstanceState`s: what decides about an instance is written by managers alone.

use serde_json::{Value, json};

use super::admission::{SYSTEM, policy as admission_policy};
use super::instance_state::INSTANCE_STATE;
use crate::crd::GROUP;

/// The name of the policy and of its binding.
pub const STATE_POLICY: &str = "instancestates.operetta.dev";

/// The verb that a user needs on `instancestates` in the whole cluster to write them by hand, as a restore of a backup does.
/// No role of Operetta has it, and no Role of a namespace can give it.
pub const RESTORE: &str = "restore";

/// A CEL expression: whether the user may restore what managers have written.
pub(super) fn restores() -> String {
    format!("authorizer.group('{GROUP}').resource('{}').check('{RESTORE}').allowed()", INSTANCE_STATE.plural)
}

/// The `ValidatingAdmissionPolicy`, which checks the writes of all users but managers.
pub(super) fn policy() -> Value {
    let rules = json!([{
        "apiGroups": [GROUP],
        "apiVersions": ["*"],
        "operations": ["CREATE", "UPDATE", "DELETE"],
        "resources": [INSTANCE_STATE.plural, format!("{}/*", INSTANCE_STATE.plural)],
        "scope": "*",
    }]);
    let variables = json!([
        {"name": "isSystem", "expression": format!("request.operation != 'CREATE' && request.userInfo.username in {SYSTEM}")},
        {"name": "restores", "expression": restores()},
    ]);
    let validation = json!({
        "expression": "variables.isSystem || variables.restores",
        "messageExpression": format!(
            "'user ' + request.userInfo.username + ' may not write InstanceStates: only managers and users with the verb \
             `{RESTORE}` on {}.{GROUP} in the whole cluster may'",
            INSTANCE_STATE.plural
        ),
        "reason": "Forbidden",
    });
    admission_policy(STATE_POLICY, &rules, &variables, &[validation])
}
