//! The status of a pod as the kubelet writes it.

use data_encoding::HEXLOWER;
use jiff::Timestamp;
use operetta_kube_model::facts::{condition, has_condition, items, name, number, text, time, uid};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use crate::work::End;

/// The address of the node.
pub(super) const HOST: &str = "172.18.0.2";

/// The state of the containers of a pod.
#[derive(Debug, Clone)]
pub(super) enum State {
    /// They cannot start: the reason and the message.
    Blocked(String, String),
    Running {
        since: Timestamp,
        ready: bool,
    },
    /// They have failed and will be started again.
    BackOff {
        seconds: i64,
    },
    Ended(End),
}

/// All that the status says.
#[derive(Debug)]
pub(super) struct Report<'a> {
    pub(super) state: State,
    pub(super) restarts: i64,
    pub(super) last: Option<&'a End>,
    /// When the kubelet saw the pod.
    pub(super) since: Timestamp,
    pub(super) address: &'a str,
    /// Why the containers are not ready.
    pub(super) unready: &'a str,
}

impl Report<'_> {
    fn is_started(&self) -> bool {
        !matches!(self.state, State::Blocked(..))
    }

    /// The status of a pod.
    pub(super) fn status(&self, pod: &Value, now: Timestamp) -> Value {
        let phase = match &self.state {
            // Containers that ran before count as such that stopped.
            State::Blocked(..) if self.last.is_none() => "Pending",
            State::Blocked(..) | State::Running { .. } | State::BackOff { .. } => "Running",
            State::Ended(end) if end.code == 0 => "Succeeded",
            State::Ended(_) => "Failed",
        };
        let mut status = json!({
            "phase": phase,
            "observedGeneration": pod["metadata"]["generation"],
            "conditions": self.conditions(pod, phase, now),
            "hostIP": HOST,
            "hostIPs": [{"ip": HOST}],
            "startTime": time(self.since),
            "containerStatuses": items(&pod["spec"]["containers"]).iter().map(|one| self.container(pod, one)).collect::<Vec<_>>(),
            "qosClass": pod["status"]["qosClass"],
        });
        let init: Vec<Value> =
            items(&pod["spec"]["initContainers"]).iter().map(|one| self.init_container(pod, one)).collect();
        if !init.is_empty() {
            status["initContainerStatuses"] = init.into();
        }
        if !self.address.is_empty() {
            status["podIP"] = self.address.into();
            status["podIPs"] = json!([{"ip": self.address}]);
        }
        for field in ["nominatedNodeName", "ephemeralContainerStatuses", "resourceClaimStatuses"] {
            if let Some(value) = pod["status"].get(field) {
                status[field] = value.clone();
            }
        }
        status
    }

    fn conditions(&self, pod: &Value, phase: &str, now: Timestamp) -> Vec<Value> {
        let names: Vec<&str> =
            items(&pod["spec"]["containers"]).iter().map(|one| text(&one["name"])).collect();
        let why = if self.unready.is_empty() { String::new() } else { format!(": {}", self.unready) };
        let unready = format!("containers with unready status: [{}]{why}", names.join(" "));
        let is_ready = matches!(self.state, State::Running { ready: true, .. });
        let gates = items(&pod["spec"]["readinessGates"]).iter().map(|gate| text(&gate["conditionType"]));
        let closed: Vec<&str> = gates.filter(|gate| !has_condition(pod, gate)).collect();
        let gates = if condition_missing(pod, &closed) {
            let quoted: Vec<String> = closed
                .iter()
                .map(|gate| format!("corresponding condition of pod readiness gate {gate:?} does not exist."))
                .collect();
            quoted.join(", ")
        } else {
            let quoted: Vec<String> = closed
                .iter()
                .map(|gate| format!("the status of pod readiness gate {gate:?} is not \"True\", but False"))
                .collect();
            quoted.join(", ")
        };
        let why = match phase {
            "Succeeded" => Some(("PodCompleted", "")),
            "Failed" => Some(("PodFailed", "")),
            _ if !is_ready => Some(("ContainersNotReady", &*unready)),
            _ => None,
        };
        let why_pod = why.or((!closed.is_empty()).then_some(("ReadinessGatesNotReady", &*gates)));
        let has_sandbox = self.is_started() && phase == "Running"
            || matches!(&self.state, State::Blocked(reason, _) if reason != "ContainerCreating");
        let done = (phase == "Succeeded").then_some(("PodCompleted", ""));
        let mut conditions = vec![
            of("PodReadyToStartContainers", has_sandbox, None),
            of("Initialized", true, done),
            of("Ready", why_pod.is_none(), why_pod),
            of("ContainersReady", why.is_none(), why),
            of("PodScheduled", true, None),
        ];
        for new in &mut conditions {
            let old = condition(pod, text(&new["type"])).filter(|old| old["status"] == new["status"]);
            let since = old.map_or_else(|| time(now).into(), |old| old["lastTransitionTime"].clone());
            new["lastTransitionTime"] = since;
            new["observedGeneration"] = pod["metadata"]["generation"].clone();
        }
        let others = items(&pod["status"]["conditions"]).iter();
        let others = others.filter(|other| !conditions.iter().any(|known| known["type"] == other["type"]));
        let others: Vec<Value> = others.cloned().collect();
        conditions.into_iter().chain(others).collect()
    }

    fn container(&self, pod: &Value, container: &Value) -> Value {
        let id = id(pod, container, self.restarts);
        let mut status = identity(container);
        status["restartCount"] = self.restarts.into();
        status["lastState"] = json!({});
        if let Some(last) = self.last {
            let last_id = self::id(pod, container, self.restarts - i64::from(self.is_running()));
            status["lastState"] = json!({"terminated": terminated(last, &last_id)});
        }
        let (state, ready, started) = match &self.state {
            State::Blocked(reason, message) => {
                let mut waiting = json!({"reason": reason});
                if !message.is_empty() {
                    waiting["message"] = message.clone().into();
                }
                (json!({"waiting": waiting}), false, false)
            }
            State::Running { since, ready } => {
                (json!({"running": {"startedAt": time(*since)}}), *ready, true)
            }
            State::BackOff { seconds } => {
                let place = format!("{}_{}({})", name(pod), text(&pod["metadata"]["namespace"]), uid(pod));
                let container = text(&container["name"]);
                let span = if *seconds < 60 {
                    format!("{seconds}s")
                } else {
                    format!("{}m{}s", seconds / 60, seconds % 60)
                };
                let message = format!("back-off {span} restarting failed container={container} pod={place}");
                (json!({"waiting": {"reason": "CrashLoopBackOff", "message": message}}), false, false)
            }
            State::Ended(end) => (json!({"terminated": terminated(end, &id)}), false, false),
        };
        status["state"] = state;
        status["ready"] = ready.into();
        status["started"] = started.into();
        if self.is_started() {
            status["imageID"] = image_id(container).into();
            status["containerID"] = id.into();
        }
        status
    }

    fn is_running(&self) -> bool {
        matches!(self.state, State::Running { .. })
    }

    fn init_container(&self, pod: &Value, container: &Value) -> Value {
        let id = id(pod, container, 0);
        let mut status = identity(container);
        status["restartCount"] = 0.into();
        status["lastState"] = json!({});
        let is_sidecar = container["restartPolicy"] == "Always";
        let is_over = matches!(self.state, State::Ended(_));
        let (state, ready) = match &self.state {
            State::Blocked(reason, message) if !message.is_empty() && reason != "ContainerCreating" => {
                (json!({"waiting": {"reason": reason, "message": message}}), false)
            }
            State::Blocked(..) => (json!({"waiting": {"reason": "PodInitializing"}}), false),
            _ if is_sidecar && !is_over => (json!({"running": {"startedAt": time(self.since)}}), true),
            _ => {
                let end = End { started: self.since, finished: self.since, code: 0, message: String::new() };
                (json!({"terminated": terminated(&end, &id)}), true)
            }
        };
        status["state"] = state;
        status["ready"] = ready.into();
        status["started"] = (is_sidecar && ready && !is_over).into();
        if self.is_started() {
            status["imageID"] = image_id(container).into();
            status["containerID"] = id.into();
        }
        status
    }
}

fn condition_missing(pod: &Value, gates: &[&str]) -> bool {
    gates.iter().any(|gate| condition(pod, gate).is_none())
}

fn of(kind: &str, is_true: bool, why: Option<(&str, &str)>) -> Value {
    let status = if is_true { "True" } else { "False" };
    let mut condition = json!({"type": kind, "status": status, "lastProbeTime": null});
    if let Some((reason, message)) = why {
        condition["reason"] = reason.into();
        if !message.is_empty() {
            condition["message"] = message.into();
        }
    }
    condition
}

fn identity(container: &Value) -> Value {
    let resources = &container["resources"];
    let mut status =
        json!({"name": container["name"], "image": container["image"], "imageID": "", "resources": {}});
    if resources.is_object() {
        status["resources"] = resources.clone();
    }
    if resources["requests"].is_object() {
        status["allocatedResources"] = resources["requests"].clone();
    }
    status
}

fn sha(text: &str) -> String {
    HEXLOWER.encode(&Sha256::digest(text))
}

fn image_id(container: &Value) -> String {
    let image = text(&container["image"]);
    let name = image.split('@').next().unwrap_or(image);
    let name = name.rsplit_once(':').filter(|(_, tag)| !tag.contains('/')).map_or(name, |(name, _)| name);
    format!("{name}@sha256:{}", sha(image))
}

fn id(pod: &Value, container: &Value, restarts: i64) -> String {
    format!("containerd://{}", sha(&format!("{}/{}/{restarts}", uid(pod), text(&container["name"]))))
}

fn terminated(end: &End, id: &str) -> Value {
    let reason = if end.code == 0 { "Completed" } else { "Error" };
    let mut state = Map::new();
    state.insert("exitCode".to_owned(), end.code.into());
    state.insert("reason".to_owned(), reason.into());
    if !end.message.is_empty() {
        state.insert("message".to_owned(), end.message.clone().into());
    }
    state.insert("startedAt".to_owned(), time(end.started).into());
    state.insert("finishedAt".to_owned(), time(end.finished).into());
    state.insert("containerID".to_owned(), id.into());
    state.into()
}

/// The restarts that the status of a pod counts.
pub(super) fn restarts(pod: &Value) -> i64 {
    items(&pod["status"]["containerStatuses"])
        .iter()
        .map(|one| number(&one["restartCount"]))
        .max()
        .unwrap_or(0)
}
