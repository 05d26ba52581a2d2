//! The kubelet of all nodes: pods start, become ready, end, start again and stop. The [`crate::Programs`] say when.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use operetta_kube_model::facts::{is_deleting, is_terminal, items, key, key_of, namespace, number, text};
use serde_json::Value;

use super::client::{self, KUBELET, PODS, get};
use super::node;
use super::parts::{after, earlier, parse_time, seconds_after};
use super::pod_status::{HOST, Report, State};
use super::scheduler;
use crate::api::Api;
use crate::work::{End, Run};
use crate::world::programs::Course;

/// The time that programs take to stop, if the grace period is not shorter.
const STOP: SignedDuration = SignedDuration::from_secs(1);
/// The first and the longest time before containers that end are started again, and the time after which they count as healthy.
const BACKOFF: (i64, i64) = (10, 300);
const HEALTHY: SignedDuration = SignedDuration::from_secs(600);

/// Tells the programs that a pod starts.
fn begin(api: &mut Api, pod: &Value, now: Timestamp) -> Course {
    let course = api.programs.start(pod, &api.state, now);
    api.controllers.kubelet.is_stirred |= api.programs.readiness().is_some();
    course
}

/// Tells the programs that a pod has ended.
fn halt(api: &mut Api, pod: &Value, now: Timestamp) {
    api.programs.stop(pod, &api.state, now);
    api.controllers.kubelet.is_stirred |= api.programs.readiness().is_some();
}

fn plus(time: Timestamp, span: Duration) -> Timestamp {
    SignedDuration::try_from(span).map_or(time, |span| after(time, span))
}

pub(super) fn sync(api: &mut Api, key: &str, now: Timestamp) -> Option<Timestamp> {
    api.controllers.kubelet.blocked.remove(key);
    let object = api.state.store.get("pods", key).cloned();
    let is_other = |run: &Run| object.as_ref().is_none_or(|object| object.uid != run.uid);
    if api.controllers.kubelet.runs.get(key).is_some_and(is_other) {
        stop(api, key, now);
    }
    let mut pod = object?.bare();
    if is_terminal(&pod) {
        stop(api, key, now);
        if is_deleting(&pod) && number(&pod["metadata"]["deletionGracePeriodSeconds"]) > 0 {
            let _ = client::delete(api, KUBELET, &PODS, &pod, Some(0), now);
        }
        return None;
    }
    if node::has_dead_node(api, &pod) {
        stop(api, key, now);
        api.controllers.kubelet.blocked.insert(key.into());
        return node::give_up(api, pod, now);
    }
    if is_deleting(&pod) {
        return end(api, key, pod, now);
    }
    if text(&pod["spec"]["nodeName"]).is_empty() {
        if !scheduler::schedule(api, &mut pod, now) {
            api.controllers.kubelet.blocked.insert(key.into());
            return None;
        }
        pod = get(api, &PODS, key)?;
    }
    if api.controllers.kubelet.runs.contains_key(key) {
        replace(api, key, &pod, now);
    } else {
        if let Some((reason, message)) = missing(api, &pod) {
            api.controllers.kubelet.blocked.insert(key.into());
            let report = Report {
                state: State::Blocked(reason.to_owned(), message),
                restarts: 0,
                last: None,
                since: parse_time(&pod["status"]["startTime"]).unwrap_or(now),
                address: "",
                unready: "",
            };
            let status = report.status(&pod, now);
            client::set_status(api, KUBELET, &PODS, &mut pod, status, now);
            return None;
        }
        start(api, key, &pod, now);
    }
    progress(api, key, pod, now)
}

fn start(api: &mut Api, key: &str, pod: &Value, now: Timestamp) {
    let Some(object) = api.state.store.get("pods", key).cloned() else { return };
    let kubelet = &mut api.controllers.kubelet;
    kubelet.addresses = kubelet.addresses % 65_000 + 1;
    let number = kubelet.addresses + 1;
    let address = if pod["spec"]["hostNetwork"] == true {
        HOST.to_owned()
    } else {
        format!("10.244.{}.{}", (number >> 8) & 0xff, number & 0xff)
    };
    let course = begin(api, pod, now);
    let run = Run {
        uid: object.uid.clone(),
        pod: object,
        address,
        since: now,
        started: now,
        course,
        restarts: 0,
        failures: 0,
        last: None,
        images: images(pod),
        waits: None,
    };
    api.controllers.kubelet.runs.insert(key.into(), run);
}

/// The images of the containers of a pod, with the resources that no container gets while it runs.
fn images(pod: &Value) -> String {
    let image = |container: &Value| {
        let policies = items(&container["resizePolicy"]).iter();
        let policies = policies.filter(|policy| policy["restartPolicy"] == "RestartContainer");
        let fixed = policies.map(|policy| {
            let (name, resources) = (text(&policy["resourceName"]), &container["resources"]);
            format!(" {name} {} {}", resources["requests"][name], resources["limits"][name])
        });
        text(&container["image"]).to_owned() + &fixed.collect::<Vec<_>>().concat()
    };
    items(&pod["spec"]["containers"]).iter().map(image).collect::<Vec<_>>().join(" ")
}

/// Starts the containers again if their images have changed, whatever the restart policy is.
fn replace(api: &mut Api, key: &str, pod: &Value, now: Timestamp) {
    let images = images(pod);
    let Some(run) = api.controllers.kubelet.runs.get(key).filter(|run| run.images != images) else { return };
    let mut run = run.clone();
    if api.controllers.kubelet.is_running(key) {
        let code = if pod["spec"]["restartPolicy"] == "Always" { 0 } else { 143 };
        run.last = Some(End { started: run.started, finished: now, code, message: String::new() });
        let old = run.pod.value();
        halt(api, &old, now);
    }
    run.restarts += i64::from(run.last.is_some());
    (run.started, run.failures, run.waits, run.images) = (now, 0, None, images);
    run.course = begin(api, pod, now);
    api.controllers.kubelet.runs.insert(key.into(), run);
}

/// Stops the programs of a pod that has ended or is gone.
fn stop(api: &mut Api, key: &str, now: Timestamp) {
    if let Some(run) = api.controllers.kubelet.runs.remove(key) {
        let pod = run.pod.bare();
        halt(api, &pod, now);
    }
}

/// Ends a pod that is being deleted, and removes it.
fn end(api: &mut Api, key: &str, mut pod: Value, now: Timestamp) -> Option<Timestamp> {
    let run = api.controllers.kubelet.runs.get(key).cloned();
    let mut status = pod["status"].clone();
    if let Some(run) = run {
        let deadline = parse_time(&pod["metadata"]["deletionTimestamp"]).unwrap_or(now);
        let grace = number(&pod["metadata"]["deletionGracePeriodSeconds"]);
        let stops = after(seconds_after(deadline, -grace), STOP).min(deadline);
        if now < stops {
            return Some(stops);
        }
        // Servers stop in order when they are asked to, other programs are interrupted.
        let code = if pod["spec"]["restartPolicy"] == "Always" { 0 } else { 143 };
        let end = End { started: run.started, finished: now, code, message: String::new() };
        stop(api, key, now);
        let report = report(&run, State::Ended(end));
        status = report.status(&pod, now);
    } else {
        status["phase"] = "Failed".into();
    }
    client::set_status(api, KUBELET, &PODS, &mut pod, status, now);
    let _ = client::delete(api, KUBELET, &PODS, &pod, Some(0), now);
    None
}

/// Brings a pod to where its course is now, and writes its status.
fn progress(api: &mut Api, key: &str, mut pod: Value, now: Timestamp) -> Option<Timestamp> {
    let mut run = api.controllers.kubelet.runs.get(key)?.clone();
    let policy = text(&pod["spec"]["restartPolicy"]).to_owned();
    let limit =
        pod["spec"]["activeDeadlineSeconds"].as_i64().map(|seconds| seconds_after(run.since, seconds));
    if limit.is_some_and(|limit| limit <= now) {
        return fail(api, key, pod, &run, now);
    }
    let mut is_over = None;
    let ends = run.course.ends_after.map(|span| plus(run.started, span));
    if run.waits.is_none() && ends.is_some_and(|ends| ends <= now) {
        let code = run.course.exit_code;
        let end = End { started: run.started, finished: now, code, message: run.course.message.clone() };
        if policy == "Never" || policy == "OnFailure" && code == 0 {
            is_over = Some(end);
        } else {
            if now.duration_since(run.started) >= HEALTHY {
                run.failures = 0;
            }
            let seconds = backoff(run.failures);
            run.failures += 1;
            run.last = Some(end);
            run.waits = Some((seconds_after(now, seconds), seconds));
        }
    }
    if run.waits.is_some_and(|(until, _)| until <= now) {
        run.waits = None;
        run.restarts += i64::from(run.course.waiting.is_empty());
        run.started = now;
        let report = report(&run, State::Running { since: now, ready: false });
        pod["status"] = report.status(&pod, now);
        run.course = begin(api, &pod, now);
        pod = get(api, &PODS, key)?;
    }
    if run.waits.is_none() && !run.course.waiting.is_empty() {
        run.failures += 1;
        let seconds = backoff(run.failures);
        run.waits = Some((seconds_after(now, seconds), seconds));
    }
    let readies = run.course.ready_after.map(|span| plus(run.started, span));
    let may_be_ready = run.waits.is_none() && readies.is_some_and(|readies| readies <= now);
    let is_ready = may_be_ready && api.programs.ready(&pod, &api.state, now);
    let (state, due) = match (&is_over, run.waits) {
        (Some(end), _) => (State::Ended(end.clone()), None),
        (None, Some((until, _))) if !run.course.waiting.is_empty() => {
            (State::Blocked(run.course.waiting.clone(), run.course.message.clone()), Some(until))
        }
        (None, Some((until, seconds))) => (State::BackOff { seconds }, Some(until)),
        (None, None) => {
            let ends = run.course.ends_after.map(|span| plus(run.started, span));
            let next = if may_be_ready { ends } else { earlier(readies, ends) };
            (State::Running { since: run.started, ready: is_ready }, next)
        }
    };
    let status = report(&run, state).status(&pod, now);
    api.controllers.kubelet.runs.insert(key.into(), run);
    if is_over.is_some() {
        stop(api, key, now);
    }
    client::set_status(api, KUBELET, &PODS, &mut pod, status, now);
    // The programs see the pod as it is when they stop.
    let object = api.state.store.get("pods", key).cloned();
    if let (Some(run), Some(object)) = (api.controllers.kubelet.runs.get_mut(key), object) {
        run.pod = object;
    }
    if is_over.is_some() { None } else { earlier(due, limit) }
}

fn report(run: &Run, state: State) -> Report<'_> {
    Report {
        state,
        restarts: run.restarts,
        last: run.last.as_ref(),
        since: run.since,
        address: &run.address,
        // The message of containers that end or wait is about that.
        unready: if run.course.ends_after.is_none() && run.course.waiting.is_empty() {
            &run.course.message
        } else {
            ""
        },
    }
}

/// The seconds before containers that have failed so often are started again.
fn backoff(failures: u32) -> i64 {
    match failures {
        0 => 0,
        failures => (BACKOFF.0 << (failures - 1).min(10)).min(BACKOFF.1),
    }
}

/// Ends a pod that ran for too long.
fn fail(api: &mut Api, key: &str, mut pod: Value, run: &Run, now: Timestamp) -> Option<Timestamp> {
    let end = End { started: run.started, finished: now, code: 137, message: String::new() };
    let mut status = report(run, State::Ended(end)).status(&pod, now);
    status["reason"] = "DeadlineExceeded".into();
    status["message"] = "Pod was active on the node longer than the specified deadline".into();
    stop(api, key, now);
    client::set_status(api, KUBELET, &PODS, &mut pod, status, now);
    None
}

/// The object that a pod needs and that does not exist, as the reason and message of its containers.
fn missing(api: &Api, pod: &Value) -> Option<(&'static str, String)> {
    let is_absent = |resource: &str, name: &Value| {
        api.state.store.get(resource, &key(namespace(pod), text(name))).is_none()
    };
    for volume in items(&pod["spec"]["volumes"]) {
        let sources = items(&volume["projected"]["sources"]).iter().chain([volume]);
        for source in sources {
            for (resource, source, name) in [
                ("configmaps", &source["configMap"], &source["configMap"]["name"]),
                ("secrets", &source["secret"], &source["secret"]["secretName"]),
                ("secrets", &source["secret"], &source["secret"]["name"]),
            ] {
                if name.is_string() && source["optional"] != true && is_absent(resource, name) {
                    return Some(("ContainerCreating", String::new()));
                }
            }
        }
    }
    let containers = ["initContainers", "containers"].iter().flat_map(|list| items(&pod["spec"][list]));
    for container in containers {
        let from = items(&container["envFrom"]).iter().flat_map(|from| {
            [("configmaps", "configmap", &from["configMapRef"]), ("secrets", "secret", &from["secretRef"])]
        });
        let env = items(&container["env"]).iter().flat_map(|env| {
            let from = &env["valueFrom"];
            [
                ("configmaps", "configmap", &from["configMapKeyRef"]),
                ("secrets", "secret", &from["secretKeyRef"]),
            ]
        });
        for (resource, what, source) in from.chain(env) {
            if !source["name"].is_string() || source["optional"] == true {
                continue;
            }
            let found = api.state.store.get(resource, &key(namespace(pod), text(&source["name"])));
            let Some(found) = found.map(|found| found.bare()) else {
                let message = format!("{what} {} not found", source["name"]);
                return Some(("CreateContainerConfigError", message));
            };
            let key = text(&source["key"]);
            if !key.is_empty() && found["data"][key].is_null() && found["binaryData"][key].is_null() {
                let what = if what == "secret" { "Secret" } else { "ConfigMap" };
                let message = format!("couldn't find key {key} in {what} {}", key_of(&found));
                return Some(("CreateContainerConfigError", message));
            }
        }
    }
    None
}
