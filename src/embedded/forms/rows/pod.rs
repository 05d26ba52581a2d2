//! The row of a pod.

use jiff::Timestamp;
use operetta_kube_model::facts::{items, number};
use serde_json::{Value, json};

use super::{age, or_none, text};

/// The conditions of the row of a pod that has ended.
pub(crate) fn conditions(pod: &Value) -> Option<Value> {
    let phase = pod["status"]["phase"].as_str()?;
    let message = match phase {
        "Succeeded" => "The pod has completed successfully.",
        "Failed" => "The pod failed.",
        _ => return None,
    };
    Some(json!([{"type": "Completed", "status": "True", "reason": phase, "message": message}]))
}

/// How often containers were restarted, and when the last one ended before.
#[derive(Default)]
struct Restarts<'a> {
    count: i64,
    last: Option<&'a str>,
}

impl<'a> Restarts<'a> {
    fn add(&mut self, status: &'a Value) {
        self.count += number(&status["restartCount"]);
        self.last = self.last.max(status["lastState"]["terminated"]["finishedAt"].as_str());
    }
}

/// Why a container has ended.
fn end(ended: &Value) -> String {
    let (reason, signal) = (text(&ended["reason"]), number(&ended["signal"]));
    match (reason.is_empty(), signal) {
        (false, _) => reason,
        (true, 0) => format!("ExitCode:{}", number(&ended["exitCode"])),
        (true, signal) => format!("Signal:{signal}"),
    }
}

pub(crate) fn cells(pod: &Value, name: Value, old: Value, now: Timestamp) -> Vec<Value> {
    let (spec, status) = (&pod["spec"], &pod["status"]);
    let phase = text(&status["phase"]);
    let conditions = items(&status["conditions"]);
    let holds =
        |kind: &Value| conditions.iter().any(|known| known["type"] == *kind && known["status"] == "True");
    let is_gated = |known: &Value| known["type"] == "PodScheduled" && known["reason"] == "SchedulingGated";
    let mut reason = match text(&status["reason"]) {
        _ if conditions.iter().any(is_gated) => "SchedulingGated".to_owned(),
        reason if reason.is_empty() => phase.clone(),
        reason => reason,
    };

    let first = items(&spec["initContainers"]);
    let sidecars = || first.iter().filter(|container| container["restartPolicy"] == "Always");
    let total = items(&spec["containers"]).len() + sidecars().count();
    let (mut ready, mut starts) = (0, None);
    let (mut restarts, mut of_sidecars) = (Restarts::default(), Restarts::default());
    for (at, container) in items(&status["initContainerStatuses"]).iter().enumerate() {
        restarts.add(container);
        let is_sidecar = sidecars().any(|known| known["name"] == container["name"]);
        if is_sidecar {
            of_sidecars.add(container);
        }
        let ended = &container["state"]["terminated"];
        if ended.is_object() && number(&ended["exitCode"]) == 0 {
            continue;
        }
        if is_sidecar && container["started"] == true {
            ready += usize::from(container["ready"] == true);
            continue;
        }
        let waits = text(&container["state"]["waiting"]["reason"]);
        starts = Some(if ended.is_object() {
            format!("Init:{}", end(ended))
        } else if !waits.is_empty() && waits != "PodInitializing" {
            format!("Init:{waits}")
        } else {
            format!("Init:{at}/{}", first.len())
        });
        break;
    }
    let is_initialized = starts.is_none() || holds(&"Initialized".into());
    reason = starts.unwrap_or(reason);
    if is_initialized {
        restarts = of_sidecars;
        let (mut runs, mut error) = (false, String::new());
        for container in items(&status["containerStatuses"]).iter().rev() {
            restarts.add(container);
            let state = &container["state"];
            let (waits, ended) = (text(&state["waiting"]["reason"]), &state["terminated"]);
            if !waits.is_empty() {
                reason = waits;
            } else if ended.is_object() {
                reason = end(ended);
                if number(&ended["exitCode"]) != 0 {
                    error.clone_from(&reason);
                }
            } else if container["ready"] == true && state["running"].is_object() {
                runs = true;
                ready += 1;
            }
        }
        if reason == "Completed" {
            if runs && holds(&"Ready".into()) {
                "Running".clone_into(&mut reason);
            } else if !error.is_empty() {
                reason = error;
            } else if runs {
                "NotReady".clone_into(&mut reason);
            }
        }
    }
    if !pod["metadata"]["deletionTimestamp"].is_null() {
        if status["reason"] == "NodeLost" {
            "Unknown".clone_into(&mut reason);
        } else if phase != "Succeeded" && phase != "Failed" {
            "Terminating".clone_into(&mut reason);
        }
    }

    let restarts = match restarts {
        Restarts { count, last: Some(last) } if count != 0 => {
            format!("{count} ({} ago)", age(&last.into(), now))
        }
        Restarts { count, .. } => count.to_string(),
    };
    let gates = items(&spec["readinessGates"]);
    let open = gates.iter().filter(|gate| holds(&gate["conditionType"])).count();
    let gates = if gates.is_empty() { "<none>".to_owned() } else { format!("{open}/{}", gates.len()) };
    let of = |value: &Value| -> Value { or_none(text(value)).into() };
    vec![
        name,
        format!("{ready}/{total}").into(),
        reason.into(),
        restarts.into(),
        old,
        of(&status["podIPs"][0]["ip"]),
        of(&spec["nodeName"]),
        of(&status["nominatedNodeName"]),
        gates.into(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(pod: &Value) -> String {
        let now = "2026-01-01T01:00:00Z".parse().unwrap();
        let cells = cells(pod, "p".into(), "1h".into(), now);
        cells[1..4].iter().map(text).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn a_pod_shows_the_step_that_it_is_at() {
        let running = json!({"name": "c", "ready": true, "restartCount": 0, "state": {"running": {}}});
        let mut pod = json!({"metadata": {}, "spec": {"containers": [{"name": "c"}],
            "initContainers": [{"name": "a"}, {"name": "s", "restartPolicy": "Always"}]},
            "status": {"phase": "Pending", "initContainerStatuses": [{"name": "a", "restartCount": 2, "state": {"running": {}}}]}});
        assert_eq!(shown(&pod), "0/2 Init:0/2 2");
        pod["status"]["initContainerStatuses"][0]["state"] = json!({"terminated": {"exitCode": 3}});
        assert_eq!(shown(&pod), "0/2 Init:ExitCode:3 2");
        pod["status"]["initContainerStatuses"] = json!([
            {"name": "a", "restartCount": 2, "state": {"terminated": {"exitCode": 0, "reason": "Completed"}}},
            {"name": "s", "restartCount": 1, "started": true, "ready": true, "state": {"running": {}},
                "lastState": {"terminated": {"finishedAt": "2026-01-01T00:55:00Z"}}}]);
        pod["status"]["phase"] = "Running".into();
        pod["status"]["containerStatuses"] = json!([running]);
        assert_eq!(shown(&pod), "2/2 Running 1 (5m ago)");
        pod["status"]["containerStatuses"][0]["state"] = json!({"waiting": {"reason": "CrashLoopBackOff"}});
        assert_eq!(shown(&pod), "1/2 CrashLoopBackOff 1 (5m ago)");
        pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:59:00Z".into();
        assert_eq!(shown(&pod), "1/2 Terminating 1 (5m ago)");

        let ended =
            |code: i32, reason: &str| json!({"state": {"terminated": {"exitCode": code, "reason": reason}}});
        let pod = json!({"spec": {"containers": [{}, {}]}, "status": {"phase": "Running",
            "conditions": [{"type": "Ready", "status": "False"}], "containerStatuses": [ended(0, "Completed"), running]}});
        assert_eq!(shown(&pod), "1/2 NotReady 0");
        let pod = json!({"spec": {"containers": [{}, {}]}, "status": {"phase": "Failed",
            "containerStatuses": [ended(0, "Completed"), ended(1, "Error")]}});
        assert_eq!(shown(&pod), "0/2 Error 0");
        assert_eq!(conditions(&pod).unwrap()[0]["reason"], "Failed");
    }
}
