//! The admission policy of `PlanRun`s. A controller cannot see which user has written an object, so the API server checks
//! it.

use serde_json::{Value, json};

use super::admission::{SYSTEM, policy as admission_policy};
use super::instance_state::INSTANCE_STATE;
use super::plan_run::PLAN_RUN;
use super::state_policy::{RESTORE, restores};
use crate::crd::{GROUP, VERSION};
use crate::plan::{CLEANUP, PRUNABLE, TAKEN};

/// The verb that a user needs on an instance to run a plan, and to cancel a run.
pub const RUN: &str = "run";
/// The verb that a user needs on an instance to answer an approve step.
pub const APPROVE: &str = "approve";

/// The name of the policy and of its binding.
pub const POLICY: &str = "planruns.operetta.dev";

/// What every label, annotation and finalizer of Operetta begins with.
const OWN: &str = "operetta.dev/";

/// The `ValidatingAdmissionPolicy`, which checks the writes of all users but managers: see [`super::exemption`].
pub(super) fn policy() -> Value {
    let rules = json!([{
        "apiGroups": [GROUP],
        "apiVersions": [VERSION],
        "operations": ["CREATE", "UPDATE", "DELETE"],
        "resources": [PLAN_RUN.plural, format!("{}/status", PLAN_RUN.plural)],
        "scope": "*",
    }]);
    let mut validations = of_status_and_deletion();
    validations.extend(of_requests());
    validations.extend(of_approvals());
    validations.extend(of_metadata());
    admission_policy(POLICY, &rules, &variables(), &validations)
}

fn allowed(verb: &str) -> String {
    format!("variables.instance.check('{verb}').allowed()")
}

/// The message of a user who lacks a verb.
fn needs(verb: &str, what: &str) -> String {
    format!(
        "'user ' + request.userInfo.username + ' may not {what} of ' + variables.run.spec.of.resource + '/' + \
         variables.run.spec.of.name + ': it needs the verb `{verb}` on ' + variables.run.spec.of.resource + '.' + \
         variables.group"
    )
}

fn variables() -> Value {
    let approvals = "has(object.spec.approvals) ? object.spec.approvals : []";
    let others = |list: &str| format!("size(variables.{list}.filter(a, a.by != request.userInfo.username))");
    let mut all = vec![
        ("isNew", "request.operation == 'CREATE'".to_owned()),
        ("isDeletion", "request.operation == 'DELETE'".to_owned()),
        ("isStatus", "has(request.subResource) && request.subResource == 'status'".to_owned()),
        ("run", "variables.isDeletion ? oldObject : object".to_owned()),
        ("group", "variables.run.spec.of.apiVersion.split('/')[0]".to_owned()),
        (
            "instance",
            "authorizer.group(variables.group).resource(variables.run.spec.of.resource)\
             .namespace(variables.run.metadata.namespace).name(variables.run.spec.of.name)"
                .to_owned(),
        ),
        (
            "hasEnded",
            "has(oldObject.status) && has(oldObject.status.phase) && \
             oldObject.status.phase in ['Succeeded', 'Failed', 'Cancelled', 'Superseded']"
                .to_owned(),
        ),
        ("isSystem", format!("request.userInfo.username in {SYSTEM}")),
        ("approvals", approvals.to_owned()),
        ("oldApprovals", format!("!variables.isNew && {}", approvals.replace("object", "oldObject"))),
        ("all", "size(variables.approvals)".to_owned()),
        ("oldAll", "size(variables.oldApprovals)".to_owned()),
        ("others", others("approvals")),
        ("oldOthers", others("oldApprovals")),
        (
            "steps",
            "!variables.isNew && has(oldObject.status) && has(oldObject.status.steps) ? oldObject.status.steps : []"
                .to_owned(),
        ),
        ("userGroups", "has(request.userInfo.groups) ? request.userInfo.groups : []".to_owned()),
        // The steps that this user answers now, though it is in none of the groups that they ask for.
        (
            "closed",
            "variables.steps.filter(s, has(s.groups) && size(s.groups) > 0 && \
             !s.groups.exists(g, g in variables.userGroups) && \
             size(variables.approvals.filter(a, a.step == s.path)) > size(variables.oldApprovals.filter(a, a.step == s.path)))"
                .to_owned(),
        ),
        (
            "cancels",
            "has(object.spec.cancel) && object.spec.cancel && \
             (variables.isNew || !has(oldObject.spec.cancel) || !oldObject.spec.cancel)"
                .to_owned(),
        ),
        ("restores", restores()),
        ("isTaken", format!("'{TAKEN}' in variables.annotations")),
        ("wasTaken", format!("'{TAKEN}' in variables.oldAnnotations")),
    ];
    for (name, old, field, empty) in [
        ("labels", "oldLabels", "labels", "{}"),
        ("annotations", "oldAnnotations", "annotations", "{}"),
        ("finalizers", "oldFinalizers", "finalizers", "[]"),
        ("owners", "oldOwners", "ownerReferences", "[]"),
    ] {
        let of =
            |object: &str| format!("has({object}.metadata.{field}) ? {object}.metadata.{field} : {empty}");
        all.push((name, of("object")));
        all.push((old, format!("!variables.isNew && {}", of("oldObject"))));
    }
    // Variables may only read those before them.
    all.sort_by_key(|(name, _)| matches!(*name, "isTaken" | "wasTaken"));
    all.into_iter().map(|(name, expression)| json!({"name": name, "expression": expression})).collect()
}

fn forbidden(expression: impl Into<String>, message: impl Into<String>) -> Value {
    json!({"expression": expression.into(), "message": message.into(), "reason": "Forbidden"})
}

fn forbidden_with(expression: impl Into<String>, message: impl Into<String>) -> Value {
    json!({"expression": expression.into(), "messageExpression": message.into(), "reason": "Forbidden"})
}

fn of_status_and_deletion() -> Vec<Value> {
    vec![
        forbidden("!variables.isStatus", "only the manager writes the status of a PlanRun"),
        forbidden_with(
            format!("!variables.isDeletion || variables.hasEnded || variables.isSystem || {}", allowed(RUN)),
            needs(RUN, "delete a run that has not ended (which cancels it)"),
        ),
    ]
}

fn of_requests() -> Vec<Value> {
    vec![
        forbidden_with(format!("!variables.isNew || {}", allowed(RUN)), needs(RUN, "run plans")),
        forbidden_with(
            format!("variables.isDeletion || !variables.cancels || {}", allowed(RUN)),
            needs(RUN, "cancel runs"),
        ),
        // Otherwise the requester could approve a run that they requested in the name of another user.
        forbidden(
            "!variables.isNew || variables.isTaken || \
             has(object.spec.requestedBy) && object.spec.requestedBy == request.userInfo.username",
            "spec.requestedBy must be the user who creates the PlanRun: kubectl auth whoami",
        ),
        forbidden(
            format!("!variables.isNew || !object.spec.plan.startsWith('{OWN}')"),
            format!("only the manager creates runs of the plans {OWN}*"),
        ),
        // A failed cleanup may be retried.
        forbidden(
            format!(
                "!variables.isNew || object.spec.plan != '{CLEANUP}' || has(object.spec.retryOf) || variables.isTaken"
            ),
            format!("the plan `{CLEANUP}` cannot be requested: it runs when its instance is deleted"),
        ),
        json!({
            "expression": "variables.isNew || variables.isDeletion || (has(object.spec.params) == has(oldObject.spec.params) && \
                (!has(object.spec.params) || object.spec.params == oldObject.spec.params))",
            "message": "params is immutable: create another PlanRun",
            "reason": "Invalid",
        }),
    ]
}

fn of_approvals() -> Vec<Value> {
    let changed = "variables.others != variables.oldOthers || variables.all != variables.oldAll";
    vec![
        forbidden(
            "variables.isDeletion || variables.others == variables.oldOthers",
            "spec.approvals[].by must be the user who adds the approval",
        ),
        forbidden_with(
            format!("variables.isDeletion || !({changed}) || {}", allowed(APPROVE)),
            needs(APPROVE, "approve steps"),
        ),
        forbidden_with(
            "variables.isDeletion || variables.all == variables.oldAll || size(variables.closed) == 0",
            "'user ' + request.userInfo.username + ' may not answer step ' + variables.closed[0].path + \
             ': only members of these groups may: ' + variables.closed[0].groups.join(', ')",
        ),
    ]
}

/// A CEL expression: whether the entries of Operetta in a map are unchanged.
fn keeps(map: &str, old: &str) -> String {
    format!(
        "variables.{map}.all(key, !key.startsWith('{OWN}') || \
            key in variables.{old} && variables.{old}[key] == variables.{map}[key]) && \
         variables.{old}.all(key, !key.startsWith('{OWN}') || key in variables.{map})"
    )
}

fn of_metadata() -> Vec<Value> {
    let on_update = "variables.isNew || variables.isDeletion || variables.isSystem";
    let on_create = "!variables.isNew || variables.isTaken";
    let own = |list: &str| format!("variables.{list}.filter(f, f.startsWith('{OWN}'))");
    vec![
        // A backup that is put back carries `taken`, and never runs.
        forbidden_with(
            "!variables.isNew || !variables.isTaken || variables.restores",
            format!(
                "'user ' + request.userInfo.username + ' may not restore PlanRuns that have started: it needs the verb `{RESTORE}` on \
                 {}.{GROUP} in the whole cluster'",
                INSTANCE_STATE.plural
            ),
        ),
        forbidden(
            format!(
                "{on_create} || variables.annotations.all(key, !key.startsWith('{OWN}') || key == '{PRUNABLE}')"
            ),
            format!("only the manager sets the annotations {OWN}* of a PlanRun"),
        ),
        forbidden(
            format!("{on_update} || {}", keeps("annotations", "oldAnnotations")),
            format!("only the manager sets the annotations {OWN}* of a PlanRun"),
        ),
        forbidden(
            format!("{on_create} || variables.labels.all(key, !key.startsWith('{OWN}'))"),
            format!("only the manager sets the labels {OWN}* of a PlanRun"),
        ),
        forbidden(
            format!("{on_update} || {}", keeps("labels", "oldLabels")),
            format!("only the manager sets the labels {OWN}* of a PlanRun"),
        ),
        forbidden(
            format!(
                "({on_create} || size({own}) == 0) && ({on_update} || {own} == {old})",
                own = own("finalizers"),
                old = own("oldFinalizers")
            ),
            format!("only the manager sets the finalizers {OWN}* of a PlanRun"),
        ),
        forbidden(
            format!(
                "({on_create} || size(variables.owners) == 0) && ({on_update} || variables.owners == variables.oldOwners)"
            ),
            "only the manager sets the owners of a PlanRun",
        ),
        forbidden(
            format!(
                "{on_update} || !variables.wasTaken || variables.labels == variables.oldLabels && \
                 variables.annotations == variables.oldAnnotations && variables.finalizers == variables.oldFinalizers"
            ),
            "the labels, annotations and finalizers of a PlanRun that has started cannot be changed",
        ),
    ]
}
