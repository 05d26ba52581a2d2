//! What there is at the moment at which a case fails, for people.

use serde_json::Value;

use super::view::View;
use crate::readiness::{self, Readiness};

/// Phases of steps that are left out.
const QUIET: [&str; 3] = ["Succeeded", "Pending", "Skipped"];
/// The maximum number of pods whose log is shown.
const LOGS: usize = 5;

/// A pod whose log may say why.
pub(super) struct Unready {
    pub namespace: String,
    pub name: String,
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// The instance with its conditions, its children, and the runs, a line each; and pods that are not ready.
pub(super) fn scene(view: &View<'_>) -> (Vec<String>, Vec<Unready>) {
    let mut lines = Vec::new();
    match view.instance() {
        Some(instance) => {
            let object = &instance.value;
            lines.push(format!("{} {}", text(&object["kind"]), text(&object["metadata"]["name"])));
            for condition in object["status"]["conditions"].as_array().into_iter().flatten() {
                lines.push(format!("  {}: {}", text(&condition["type"]), said(condition)));
            }
        }
        None if view.subject.is_some() => lines.push("the instance is not there".to_owned()),
        None => {}
    }
    let mut children = view.children();
    children.sort_by(|a, b| (&a.0, &a.1).cmp(&(&b.0, &b.1)));
    for (id, key, child) in children {
        let key = key.map(|key| format!("[{key}]")).unwrap_or_default();
        let (kind, name) = (text(&child.value["kind"]), text(&child.value["metadata"]["name"]));
        let state = match readiness::of(&child.value) {
            Readiness::Ready => "ready".to_owned(),
            Readiness::NotReady { reason, message } => format!("not ready ({reason}): {message}"),
            Readiness::Failed { reason, message } => format!("failed ({reason}): {message}"),
            Readiness::Terminating => "terminating".to_owned(),
        };
        lines.push(format!("  child {id}{key} {kind}/{name}: {state}"));
    }
    for run in view.runs() {
        let status = &run["status"];
        let message = Some(text(&status["message"])).filter(|message| !message.is_empty());
        let message = message.map(|message| format!(": {message}")).unwrap_or_default();
        let (name, plan) = (text(&run["metadata"]["name"]), text(&run["spec"]["plan"]));
        lines.push(format!("run {name} of plan {plan}: {}{message}", text(&status["phase"])));
        for step in status["steps"].as_array().into_iter().flatten() {
            if !QUIET.contains(&text(&step["phase"])) {
                lines.push(format!("  step {}: {}", text(&step["path"]), said(step)));
            }
        }
    }
    let unready = view.list("Pod", "").into_iter().filter(|pod| !pod.ready).map(|pod| Unready {
        namespace: text(&pod.value["metadata"]["namespace"]).to_owned(),
        name: text(&pod.value["metadata"]["name"]).to_owned(),
    });
    (lines, unready.take(LOGS).collect())
}

/// The status or the phase of a condition or a step, with its reason and its message.
pub(super) fn said(value: &Value) -> String {
    let state = value["status"].as_str().unwrap_or_else(|| text(&value["phase"]));
    match (text(&value["reason"]), text(&value["message"])) {
        ("", "") => state.to_owned(),
        ("", message) => format!("{state}: {message}"),
        (reason, "") => format!("{state} ({reason})"),
        (reason, message) => format!("{state} ({reason}): {message}"),
    }
}
