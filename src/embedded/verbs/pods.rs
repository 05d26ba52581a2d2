//! Subresources of pods that do something: `binding`, `eviction` and `log`.

use jiff::Timestamp;
use operetta_kube_model::facts::{is_ready, is_terminal, items, key, key_of, text, time};
use operetta_kube_model::selector::labels_match;
use serde_json::{Value, json};

use super::delete::{DeleteOptions, delete_one};
use super::response::Response;
use crate::admission;
use crate::model::failure::details;
use crate::model::{Context, Failure, Outcome};
use crate::state::stored::put;
use crate::state::{Live, State};
use crate::world::programs::Programs;

fn success() -> Response {
    Response::json(
        201,
        &json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}),
    )
}

fn body(context: &Context<'_>, kind: &str) -> Outcome<Value> {
    let body: Value = serde_json::from_slice(context.request.body).unwrap_or_default();
    let name = text(&body["metadata"]["name"]);
    if !name.is_empty() && name != context.name() {
        return Err(Failure::bad_request(format!("name in URL does not match name in {kind} object")));
    }
    Ok(body)
}

/// Assigns a pod to a node.
pub(crate) fn bind(state: &mut State, context: &Context<'_>) -> Outcome<Response> {
    let body = body(context, "Binding")?;
    let mut pod = Live::of(state, context)?.value();
    let name = context.name();
    let why = if pod["metadata"]["deletionTimestamp"].is_string() {
        Some(format!("pod {name} is being deleted, cannot be assigned to a host"))
    } else if !text(&pod["spec"]["nodeName"]).is_empty() {
        Some(format!("pod {name} is already assigned to node {}", pod["spec"]["nodeName"]))
    } else if !items(&pod["spec"]["schedulingGates"]).is_empty() {
        Some(format!("pod {name} has non-empty .spec.schedulingGates"))
    } else {
        None
    };
    if let Some(why) = why {
        let message = format!("Operation cannot be fulfilled on pods/binding {name:?}: {why}");
        let mut failure = Failure::new(409, "Conflict", message);
        failure.set_details(details(&[("name", name), ("kind", "pods/binding")]));
        return Err(failure);
    }
    if !context.query.is_dry_run()? {
        assign(state, &mut pod, text(&body["target"]["name"]), context.at);
    }
    Ok(success())
}

/// Deletes a pod unless a budget forbids it.
pub(crate) fn evict(state: &mut State, context: &Context<'_>) -> Outcome<Response> {
    let body = body(context, "Eviction")?;
    let options = DeleteOptions::of(&context.query, &body["deleteOptions"])?;
    let mut pod = Live::of(state, context)?.value();
    let counts = !is_terminal(&pod)
        && pod["status"]["phase"] != "Pending"
        && !pod["metadata"]["deletionTimestamp"].is_string();
    if counts {
        let prefix = key(context.namespace(), "");
        let budgets = state.store.range("poddisruptionbudgets.policy", &prefix, None);
        let budgets: Vec<(String, Value)> = budgets
            .map(|(key, budget)| (key.to_string(), budget.bare()))
            .filter(|(_, budget)| labels_match(&budget["spec"]["selector"], &pod["metadata"]["labels"]))
            .collect();
        match &budgets[..] {
            [] => {}
            [(key, budget)] => {
                if let Some(next) = decrement(budget, &pod, context.at)?
                    && !options.is_dry
                    && let Some(kind) = state.kinds.find("policy", "v1", "poddisruptionbudgets").cloned()
                {
                    put(state, &kind, key, next);
                }
            }
            _ => {
                return Err(Failure::plain(
                    500,
                    "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.",
                ));
            }
        }
    }
    let (kind, key) = (context.kind.clone(), context.key());
    if !options.is_dry {
        let mut conditions = items(&pod["status"]["conditions"]).to_vec();
        conditions.retain(|known| known["type"] != "DisruptionTarget");
        conditions
            .push(json!({"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI",
            "message": "Eviction API: evicting", "lastProbeTime": null, "lastTransitionTime": context.now}));
        pod["status"]["conditions"] = conditions.into();
        options.check(&kind, &pod)?;
        put(state, &kind, &key, pod);
    }
    let Some(object) = state.store.get(kind.storage(), &key).cloned() else {
        return Err(Failure::not_found(&kind, context.name()));
    };
    delete_one(state, &kind, &key, &object, &options.without_version(), &context.now)?;
    Ok(success())
}

/// The budget once a pod is evicted; `None` if the pod does not count. An error if none may be evicted.
fn decrement(budget: &Value, pod: &Value, now: Timestamp) -> Outcome<Option<Value>> {
    let status = &budget["status"];
    let number = |field: &str| status[field].as_i64().unwrap_or(0);
    let name = text(&budget["metadata"]["name"]);
    let (healthy, desired) = (number("currentHealthy"), number("desiredHealthy"));
    if !is_ready(pod)
        && (budget["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
            || healthy >= desired && desired > 0)
    {
        return Ok(None);
    }
    let refused = |message: String, seconds: i64| {
        let why = "Cannot evict pod as it would violate the pod's disruption budget.";
        let mut failure = Failure::new(429, "TooManyRequests", why);
        if seconds > 0 {
            failure.set_details(json!({"retryAfterSeconds": seconds}));
        }
        Err(failure.caused(vec![("DisruptionBudget", message, String::new())]))
    };
    if number("observedGeneration") < budget["metadata"]["generation"].as_i64().unwrap_or(0) {
        return refused(format!("The disruption budget {name} is still being processed by the server."), 10);
    }
    let allowed = number("disruptionsAllowed");
    if allowed == 0 {
        let message = if healthy <= desired {
            format!("The disruption budget {name} needs {desired} healthy pods and has {healthy} currently")
        } else {
            format!("The disruption budget {name} does not allow evicting pods currently")
        };
        return refused(message, 0);
    }
    let mut next = budget.clone();
    next["status"]["disruptionsAllowed"] = (allowed - 1).into();
    if allowed == 1 {
        next["status"]["conditions"] = budget_condition(budget, 0, now);
    }
    next["status"]["disruptedPods"][text(&pod["metadata"]["name"])] = time(now).into();
    Ok(Some(next))
}

/// The container that a request is about.
pub(crate) fn container(pod: &Value, name: &str) -> Outcome<String> {
    let names = |field: &str| -> Vec<&str> {
        items(&pod["spec"][field]).iter().map(|container| text(&container["name"])).collect()
    };
    let (containers, init) = (names("containers"), names("initContainers"));
    let pod_name = text(&pod["metadata"]["name"]);
    if name.is_empty() {
        if let ([one], []) = (&containers[..], &init[..]) {
            return Ok((*one).to_owned());
        }
        let init = if init.is_empty() {
            String::new()
        } else {
            format!(" or one of the init containers: [{}]", init.join(" "))
        };
        let containers = containers.join(" ");
        let message = format!(
            "a container name must be specified for pod {pod_name}, choose one of: [{containers}]{init}"
        );
        return Err(Failure::bad_request(message));
    }
    if containers.contains(&name) || init.contains(&name) {
        return Ok(name.to_owned());
    }
    Err(Failure::bad_request(format!("container {name} is not valid for pod {pod_name}")))
}

/// Reads the output of a container.
pub(crate) fn log(state: &State, programs: &mut dyn Programs, context: &Context<'_>) -> Outcome<Response> {
    let pod = Live::of(state, context)?.value();
    let container = container(&pod, context.query.get("container").unwrap_or_default())?;
    if text(&pod["spec"]["nodeName"]).is_empty() {
        return Ok(Response::plain(200, ""));
    }
    let statuses =
        ["containerStatuses", "initContainerStatuses"].iter().flat_map(|field| items(&pod["status"][field]));
    let status = { statuses }.find(|status| status["name"] == *container).cloned().unwrap_or_default();
    let waiting = text(&status["state"]["waiting"]["reason"]);
    let has_run = status["lastState"]["terminated"].is_object();
    if context.query.flag("previous") && !has_run {
        let why = format!(
            "previous terminated container {container:?} in pod {:?} not found",
            text(&pod["metadata"]["name"])
        );
        return Err(Failure::bad_request(why));
    }
    if !waiting.is_empty() && !has_run {
        let pod_name = text(&pod["metadata"]["name"]);
        let why = format!("container {container:?} in pod {pod_name:?} is waiting to start: {waiting}");
        return Err(Failure::bad_request(why));
    }
    let mut printed = programs.log(&pod, &container, state);
    if let Some(lines) = context.query.get("tailLines").and_then(|lines| lines.parse::<usize>().ok()) {
        let all: Vec<&str> = printed.split_inclusive('\n').collect();
        printed = all[all.len().saturating_sub(lines)..].concat();
    }
    Ok(Response::plain(200, &printed))
}

/// Assigns a pod to a node.
pub(crate) fn assign(state: &mut State, pod: &mut Value, node: &str, now: Timestamp) -> bool {
    let Some(kind) = state.kinds.find("", "v1", "pods").cloned() else { return false };
    pod["spec"]["nodeName"] = node.into();
    let mut conditions = items(&pod["status"]["conditions"]).to_vec();
    conditions.retain(|known| known["type"] != "PodScheduled");
    conditions.push(json!({"type": "PodScheduled", "status": "True", "lastProbeTime": null,
        "lastTransitionTime": time(now)}));
    pod["status"]["conditions"] = conditions.into();
    admission::put_topology(state, pod);
    put(state, &kind, &key_of(pod), pod.clone());
    true
}

/// The condition `DisruptionAllowed`.
pub(crate) fn budget_condition(budget: &Value, allowed: i64, now: Timestamp) -> Value {
    let (status, reason) =
        if allowed > 0 { ("True", "SufficientPods") } else { ("False", "InsufficientPods") };
    let old = items(&budget["status"]["conditions"]).first();
    let since = old.filter(|old| old["status"] == status).map(|old| old["lastTransitionTime"].clone());
    json!([{"type": "DisruptionAllowed", "status": status, "reason": reason, "message": "",
        "observedGeneration": budget["metadata"]["generation"],
        "lastTransitionTime": since.unwrap_or_else(|| time(now).into())}])
}
