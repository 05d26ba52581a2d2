//! What the `podFailurePolicy` of a Job says about a pod that failed.

use operetta_kube_model::facts::{condition, items, name, namespace, number, text};
use serde_json::Value;

/// The action of a rule.
#[derive(Debug)]
pub(super) enum Action {
    /// The Job fails, for this reason.
    Fail(String),
    /// The pod does not count.
    Ignore,
    Count,
}

/// The action of the first rule that matches a pod.
pub(super) fn action(job: &Value, pod: &Value) -> Option<Action> {
    items(&job["spec"]["podFailurePolicy"]["rules"]).iter().enumerate().find_map(|(at, rule)| {
        let why = exit_code(rule, pod).or_else(|| pod_condition(rule, pod))?;
        Some(match text(&rule["action"]) {
            "FailJob" => Action::Fail(format!("{why} matching FailJob rule at index {at}")),
            "Ignore" => Action::Ignore,
            _ => Action::Count,
        })
    })
}

fn exit_code(rule: &Value, pod: &Value) -> Option<String> {
    let wanted = rule.get("onExitCodes").filter(|wanted| wanted.is_object())?;
    let statuses =
        ["containerStatuses", "initContainerStatuses"].iter().flat_map(|list| items(&pod["status"][list]));
    let mut failed = statuses.filter_map(|status| {
        let code = number(&status["state"]["terminated"]["exitCode"]);
        let is_named = wanted["containerName"].is_null() || wanted["containerName"] == status["name"];
        (code != 0 && is_named).then(|| (text(&status["name"]), code))
    });
    let (container, code) = failed.find(|(_, code)| {
        let among = items(&wanted["values"]).iter().any(|value| value.as_i64() == Some(*code));
        among == (wanted["operator"] == "In")
    })?;
    Some(format!(
        "Container {container} for pod {}/{} failed with exit code {code}",
        namespace(pod),
        name(pod)
    ))
}

fn pod_condition(rule: &Value, pod: &Value) -> Option<String> {
    items(&rule["onPodConditions"]).iter().find_map(|wanted| {
        let found = condition(pod, text(&wanted["type"]))?;
        let status = wanted["status"].as_str().unwrap_or("True");
        (found["status"] == status)
            .then(|| format!("Pod {}/{} has condition {}", namespace(pod), name(pod), text(&wanted["type"])))
    })
}
