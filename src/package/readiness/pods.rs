//! Readiness of Pods.

use serde_json::Value;

use super::conditions::{Readiness, condition, presentable, text};
use super::containers::{self as tracked, statuses};

pub(super) fn pod(object: &Value) -> Readiness {
    match text(object, "/status/phase").unwrap_or_default() {
        "Succeeded" => Readiness::Ready,
        "Failed" => {
            let reason =
                text(object, "/status/reason").filter(|reason| !reason.is_empty()).unwrap_or("PodFailed");
            Readiness::failed(reason, ended(object).unwrap_or_else(|| "it has failed".to_owned()))
        }
        "Running" => running(object),
        "Pending" => pending(object),
        "" => Readiness::not_ready("PodNotObserved", "it has no phase yet"),
        phase => Readiness::not_ready("PodNotReady", format!("it is in phase {phase}")),
    }
}

fn running(object: &Value) -> Readiness {
    let ready = condition(object, "Ready");
    if ready.is_some_and(|ready| ready.status == "True") {
        let outdated = tracked::outdated(object);
        if outdated.is_empty() {
            return Readiness::Ready;
        }
        let message = containers(&outdated, "runs with its former image and is not replaced yet");
        return Readiness::not_ready("ContainerNotReplaced", message);
    }
    let stuck = waiting(object);
    let crashing: Vec<&str> =
        stuck.iter().filter(|(_, reason)| *reason == "CrashLoopBackOff").map(|(name, _)| *name).collect();
    if !crashing.is_empty() {
        return Readiness::failed("CrashLoopBackOff", containers(&crashing, "CrashLoopBackOff"));
    }
    if let Some((name, reason)) = stuck.first() {
        return Readiness::not_ready(reason, containers(&[name], reason));
    }
    let unready: Vec<&str> = statuses(object, "containerStatuses")
        .filter(|status| status["ready"] == false)
        .filter_map(|status| status["name"].as_str())
        .collect();
    if !unready.is_empty() {
        return Readiness::not_ready("ContainersNotReady", containers(&unready, "not ready"));
    }
    // All containers are ready, so a readiness gate is missing.
    match ready {
        Some(ready) => ready.not_ready("PodNotReady"),
        None => Readiness::not_ready("PodNotReady", "it runs but is not ready"),
    }
}

fn pending(object: &Value) -> Readiness {
    if let Some(scheduled) = condition(object, "PodScheduled")
        && scheduled.status == "False"
    {
        return scheduled.not_ready("PodNotScheduled");
    }
    match waiting(object).first() {
        Some((name, reason)) => Readiness::not_ready(reason, containers(&[name], reason)),
        None => Readiness::not_ready("PodPending", "it has not started yet"),
    }
}

/// Names the containers in a message: `container etcd: ImagePullBackOff`, `containers a, b: not ready`.
fn containers(names: &[&str], what: &str) -> String {
    let noun = if names.len() == 1 { "container" } else { "containers" };
    format!("{noun} {}: {what}", names.join(", "))
}

/// The waiting containers with their reasons, except those that only wait for their turn.
fn waiting(object: &Value) -> Vec<(&str, &str)> {
    ["initContainerStatuses", "containerStatuses"]
        .into_iter()
        .flat_map(|list| statuses(object, list))
        .filter_map(|status| {
            let reason = status.pointer("/state/waiting/reason")?.as_str()?;
            let name = status["name"].as_str()?;
            (!matches!(reason, "" | "PodInitializing" | "ContainerCreating")).then_some((name, reason))
        })
        .collect()
}

/// The reason why a Pod failed: its own message, or else the first container that failed.
fn ended(object: &Value) -> Option<String> {
    if let Some(message) = text(object, "/status/message").filter(|message| !message.is_empty()) {
        return Some(presentable(message));
    }
    ["initContainerStatuses", "containerStatuses"]
        .into_iter()
        .flat_map(|list| statuses(object, list))
        .find_map(|status| {
            let end = status.pointer("/state/terminated")?;
            let code = end["exitCode"].as_i64().filter(|code| *code != 0)?;
            let reason = end["reason"].as_str().filter(|reason| !reason.is_empty()).unwrap_or("Error");
            Some(containers(&[status["name"].as_str()?], &format!("{reason}, exit code {code}")))
        })
}
