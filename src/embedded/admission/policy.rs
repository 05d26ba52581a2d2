//! `ValidatingAdmissionPolicy`: writes that expressions refuse.

mod matching;

use operetta_kube_model::cel::{self, Scope, plain};
use operetta_kube_model::facts::key;
use operetta_kube_model::selector::labels_match;
use serde_json::{Map, Value, json};

use super::write::Write;
use crate::access::questions;
use crate::model::{Context, Failure, Outcome, Parsed, meta};
use crate::state::State;
use crate::strategy::policy::{Policy, Validation, truth};

/// Whether a write can be denied by a policy at all.
pub(crate) fn has_policies(state: &mut State) -> bool {
    !state.policies().bindings.is_empty()
}

/// Refuses a write that a policy denies.
pub(super) fn admit(state: &mut State, context: &mut Context<'_>, write: &Write<'_>) -> Outcome<()> {
    if context.kind.group == "admissionregistration.k8s.io" {
        return Ok(());
    }
    let policies = state.policies();
    for binding in &policies.bindings {
        let name = binding["spec"]["policyName"].as_str().unwrap_or_default();
        if let Some(policy) = policies.all.get(name)
            && matching::matches(state, context, write, &policy.spec["matchConstraints"])
            && (binding["spec"]["matchResources"].is_null()
                || matching::matches(state, context, write, &binding["spec"]["matchResources"]))
        {
            check(state, context, write, policy, binding)?;
        }
    }
    Ok(())
}

/// Checks a write by a policy that matches it.
fn check(
    state: &mut State,
    context: &mut Context<'_>,
    write: &Write<'_>,
    policy: &Policy,
    binding: &Value,
) -> Outcome<()> {
    let denial = Denial { policy: &policy.name, binding: meta::text(binding, "name") };
    let params = match params(state, context, policy, &binding["spec"]["paramRef"]) {
        Ok(params) => params,
        Err(_) if policy.ignores_failures => return Ok(()),
        Err(why) => {
            return Err(denial.failure(context, write, &format!("failed to configure binding: {why}"), ""));
        }
    };
    let [object, old] = [write.new, write.live].map(|state| state.map(Parsed::whole).unwrap_or_default());
    for params in params {
        let mut scope = Scope::new(Some(&policy.variables));
        scope.set("object", plain(&object));
        scope.set("oldObject", plain(&old));
        scope.set("request", plain(&request(context, write)));
        scope.set("params", plain(&params));
        scope.set("namespaceObject", plain(&matching::namespace(state, context)));
        let (rights, user) = (state.rights(), context.request.user);
        let [authorizer, about] = questions(rights, user, &context.route, write.name);
        scope.set("authorizer", authorizer.into());
        scope.set("authorizer.requestResource", about.into());
        let mut skips = false;
        let mut broken = Vec::new();
        for (name, condition) in &policy.conditions {
            match truth(condition, &scope) {
                Ok(true) => {}
                Ok(false) => skips = true,
                Err(why) => broken.push(format!("error evaluating match condition '{name}': {why}")),
            }
        }
        if skips || !broken.is_empty() && policy.ignores_failures {
            continue;
        }
        if let Some(why) = broken.first() {
            return Err(denial.failure(context, write, why, ""));
        }
        for validation in &policy.validations {
            let Some(message) = validation.check(&scope, policy.ignores_failures) else { continue };
            let actions =
                binding["spec"]["validationActions"].as_array().map(Vec::as_slice).unwrap_or_default();
            if actions.iter().any(|action| action == "Warn") {
                context.warnings.push(format!(
                    "Validation failed for ValidatingAdmissionPolicy '{}' with binding '{}': {message}",
                    denial.policy, denial.binding
                ));
            }
            if actions.iter().any(|action| action == "Deny") {
                return Err(denial.failure(context, write, &message, &validation.reason));
            }
        }
    }
    Ok(())
}

struct Denial<'a> {
    policy: &'a str,
    binding: &'a str,
}

impl Denial<'_> {
    fn failure(&self, context: &Context<'_>, write: &Write<'_>, message: &str, reason: &str) -> Box<Failure> {
        let why = format!(
            "ValidatingAdmissionPolicy '{}' with binding '{}' denied request: {message}",
            self.policy, self.binding
        );
        let (code, reason) = match reason {
            "Unauthorized" => (401, "Unauthorized"),
            "Forbidden" => (403, "Forbidden"),
            "RequestEntityTooLarge" => (413, "RequestEntityTooLarge"),
            _ => (422, "Invalid"),
        };
        // A deletion of many names none of them.
        let name = if write.name.is_empty() { "Unknown" } else { write.name };
        Failure::refused(&context.kind, name, &why, (code, reason))
    }
}

/// The parameters of a binding: one round of checks each. Without a kind of parameters there is one, null.
fn params(state: &State, context: &Context<'_>, policy: &Policy, of: &Value) -> Result<Vec<Value>, String> {
    let wanted = &policy.spec["paramKind"];
    if wanted.is_null() || of.is_null() {
        return Ok(vec![Value::Null]);
    }
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let api_version = text(&wanted["apiVersion"]);
    let (group, version) = api_version.split_once('/').unwrap_or(("", &api_version));
    let kind = state
        .kinds
        .iter()
        .find(|kind| kind.group == group && kind.version == version && wanted["kind"] == *kind.kind);
    let kind = kind.ok_or_else(|| "failed to find resource referenced by paramKind".to_owned())?;
    let given = text(&of["namespace"]);
    let namespace = match (kind.namespaced, given.is_empty()) {
        (false, _) => String::new(),
        (true, true) => context.namespace().to_owned(),
        (true, false) => given,
    };
    let found: Vec<Value> = if let Some(name) = of["name"].as_str().filter(|name| !name.is_empty()) {
        let found = state.store.get(kind.storage(), &key(&namespace, name));
        found.into_iter().map(|found| found.value()).collect()
    } else {
        let prefix = key(&namespace, "");
        let all = state.store.range(kind.storage(), &prefix, None).map(|(_, found)| found.value());
        all.filter(|found| labels_match(&of["selector"], &found["metadata"]["labels"])).collect()
    };
    if found.is_empty() && of["parameterNotFoundAction"] != "Allow" {
        return Err("no params found for policy binding with `Deny` parameterNotFoundAction".to_owned());
    }
    Ok(found)
}

/// The variable `request`.
fn request(context: &Context<'_>, write: &Write<'_>) -> Value {
    let kind = &context.kind;
    let resource = json!({"group": kind.group, "version": kind.version, "resource": kind.plural});
    let named = json!({"group": kind.group, "version": kind.version, "kind": kind.kind});
    let mut request = Map::new();
    for (name, text) in [
        ("subResource", context.subresource()),
        ("requestSubResource", context.subresource()),
        ("name", write.name),
        ("namespace", context.namespace()),
        ("operation", write.operation),
    ] {
        if !text.is_empty() {
            request.insert(name.to_owned(), text.into());
        }
    }
    for (name, value) in [
        ("kind", named.clone()),
        ("requestKind", named),
        ("resource", resource.clone()),
        ("requestResource", resource),
        ("userInfo", context.request.user.info()),
        ("dryRun", write.is_dry.into()),
    ] {
        request.insert(name.to_owned(), value);
    }
    request.into()
}

impl Validation {
    /// The message, if the write is to be denied.
    fn check(&self, scope: &Scope<'_>, ignores_failures: bool) -> Option<String> {
        match truth(&self.expression, scope) {
            Ok(true) => None,
            Ok(false) => {
                let made = self.message_expression.as_ref().and_then(|message| message.as_ref().ok());
                let made = made.and_then(|program| program.evaluate(scope).ok()).map(|text| cel::text(&text));
                let made = made.map(|text| text.trim().to_owned());
                let made =
                    made.filter(|text| !text.is_empty() && !text.contains('\n') && text.len() <= 5 << 10);
                Some(made.unwrap_or_else(|| self.message.clone()))
            }
            Err(_) if ignores_failures => None,
            Err(why) => Some(format!("expression '{}' resulted in error: {why}", self.text)),
        }
    }
}
