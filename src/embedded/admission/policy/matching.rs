//! Which writes a policy or a binding is about.

use operetta_kube_model::facts::key;
use operetta_kube_model::selector::labels_match;
use serde_json::Value;

use super::super::write::Write;
use crate::model::Context;
use crate::state::State;

/// Whether a write is one of `constraints`.
pub(super) fn matches(state: &State, context: &Context<'_>, write: &Write<'_>, constraints: &Value) -> bool {
    let rules = |field: &str| constraints[field].as_array().map(Vec::as_slice).unwrap_or_default();
    let is_equivalent = constraints["matchPolicy"] != "Exact";
    let is_one = |rule: &&Value| rule_matches(state, context, write, rule, is_equivalent);
    // Bindings need no rules: they only narrow what the policy is about.
    let included = rules("resourceRules");
    (included.is_empty() && constraints["resourceRules"].is_null()
        || included.iter().any(|rule| is_one(&rule)))
        && !rules("excludeResourceRules").iter().any(|rule| is_one(&rule))
        && namespace_matches(state, context, &constraints["namespaceSelector"])
        && object_matches(write, &constraints["objectSelector"])
}

fn has(rule: &Value, field: &str, wanted: impl Fn(&str) -> bool) -> bool {
    rule[field]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .any(|item| item == "*" || wanted(item))
}

fn rule_matches(
    state: &State,
    context: &Context<'_>,
    write: &Write<'_>,
    rule: &Value,
    is_equivalent: bool,
) -> bool {
    let kind = &context.kind;
    let sub = context.subresource();
    let version = |wanted: &str| {
        wanted == kind.version
            || is_equivalent && state.kinds.find(&kind.group, wanted, &kind.plural).is_some()
    };
    let resources = rule["resources"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let resource = |wanted: &str| {
        let (resource, below) = wanted.split_once('/').unwrap_or((wanted, ""));
        (resource == "*" || resource == kind.plural)
            && (below == sub || below == "*" || wanted == "*" && sub.is_empty())
    };
    let scope = match rule["scope"].as_str() {
        Some("Cluster") => !kind.namespaced,
        Some("Namespaced") => kind.namespaced,
        _ => true,
    };
    let names = rule["resourceNames"].as_array().map(Vec::as_slice).unwrap_or_default();
    has(rule, "operations", |wanted| wanted == write.operation)
        && has(rule, "apiGroups", |wanted| wanted == kind.group)
        && has(rule, "apiVersions", version)
        && resources.into_iter().any(resource)
        && scope
        && (names.is_empty() || names.iter().any(|name| *name == write.name))
}

/// The namespace of a write; null if it has none.
pub(super) fn namespace(state: &State, context: &Context<'_>) -> Value {
    let found = state.store.get("namespaces", &key("", context.namespace()));
    found.filter(|_| context.kind.namespaced).map(|found| found.value()).unwrap_or_default()
}

fn namespace_matches(state: &State, context: &Context<'_>, selector: &Value) -> bool {
    let is_empty = selector.as_object().is_none_or(serde_json::Map::is_empty);
    if is_empty || !context.kind.namespaced {
        return true;
    }
    labels_match(selector, &namespace(state, context)["metadata"]["labels"])
}

fn object_matches(write: &Write<'_>, selector: &Value) -> bool {
    let is_empty = selector.as_object().is_none_or(serde_json::Map::is_empty);
    let fits = |object: &Value| object.is_object() && labels_match(selector, &object["metadata"]["labels"]);
    is_empty || fits(write.object()) || fits(write.old())
}
