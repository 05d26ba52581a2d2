//! `ResourceQuota`: what the objects of a namespace may use. A write is charged before it is stored; the controller
//! (`controllers/quota.rs`) counts again what was deleted.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use operetta_kube_model::facts::{is_terminal, items, key, text};
use operetta_kube_model::quantity::Quantity;
use operetta_kube_model::selector;
use serde_json::{Map, Value};

use super::claims::class;
use super::resources::{Amounts, add, amounts, is_set_for_pod, total};
use super::write::{Write, forbidden};
use crate::model::{Context, Outcome, Parsed};
use crate::state::State;
use crate::strategy::pods;

/// The resource of the quotas themselves.
const QUOTAS: &str = "resourcequotas";

/// The resource whose objects a name in `hard` counts.
fn counted(name: &str) -> Option<&str> {
    const CLASS: &str = ".storageclass.storage.k8s.io/";
    const PODS: [&str; 9] = [
        "cpu",
        "memory",
        "ephemeral-storage",
        "requests.cpu",
        "requests.memory",
        "requests.ephemeral-storage",
        "limits.cpu",
        "limits.memory",
        "limits.ephemeral-storage",
    ];
    if let Some(resource) = name.strip_prefix("count/") {
        return Some(resource).filter(|resource| !is_event(resource));
    }
    let of_class = name.split_once(CLASS).map(|(_, resource)| resource);
    let requested = name.strip_prefix("requests.").unwrap_or_default();
    match name {
        "configmaps"
        | "persistentvolumeclaims"
        | "pods"
        | "replicationcontrollers"
        | QUOTAS
        | "secrets"
        | "services" => Some(name),
        "services.loadbalancers" | "services.nodeports" => Some("services"),
        "requests.storage" => Some("persistentvolumeclaims"),
        _ if matches!(of_class, Some("persistentvolumeclaims" | "requests.storage")) => {
            Some("persistentvolumeclaims")
        }
        _ if PODS.contains(&name) || is_extended(requested) => Some("pods"),
        _ if name.starts_with("hugepages-") || requested.starts_with("hugepages-") => Some("pods"),
        _ => None,
    }
}

fn is_event(resource: &str) -> bool {
    matches!(resource, "events" | "events.events.k8s.io")
}

/// Whether a node's resource is none of Kubernetes itself.
fn is_extended(name: &str) -> bool {
    name.contains('/') && !name.contains("kubernetes.io/")
        || name.starts_with("deviceclass.resource.kubernetes.io/")
}

/// Whether a write can change what is used.
fn is_charged(context: &Context<'_>, write: &Write<'_>) -> bool {
    let deadline = |pod: &Value| pod["spec"]["activeDeadlineSeconds"].is_number();
    let resource = context.kind.resource();
    match (resource, context.subresource(), write.operation) {
        (_, "", "CREATE") => !is_event(resource),
        ("services", "", "UPDATE")
        | ("pods", "resize", "UPDATE")
        | ("persistentvolumeclaims", "" | "status", "UPDATE") => true,
        ("pods", "", "UPDATE") => deadline(write.old()) != deadline(write.object()),
        _ => false,
    }
}

/// Refuses a write that exceeds a quota. Returns all quotas that count it, with what is used after it.
pub(super) fn charge(state: &State, context: &Context<'_>, write: &Write<'_>) -> Outcome<Vec<Value>> {
    if context.namespace().is_empty() || !is_charged(context, write) {
        return Ok(Vec::new());
    }
    let prefix = key(context.namespace(), "");
    let quotas = state.store.range(QUOTAS, &prefix, None).map(|(_, quota)| quota.parsed());
    let quotas: Vec<Arc<Parsed>> = quotas.collect();
    if quotas.is_empty() {
        return Ok(Vec::new());
    }
    let (resource, object) = (context.kind.resource(), write.object());
    let refuse = |why: String| Err(forbidden(context, object, &why));
    let mut matching = Vec::new();
    for quota in quotas.iter().map(|quota| &quota.value) {
        let [hard, used] = ["hard", "used"].map(|field| amounts(&quota["status"][field]));
        let names: Vec<&str> =
            hard.keys().map(String::as_str).filter(|name| counted(name) == Some(resource)).collect();
        if names.is_empty() || !in_scopes(quota, resource, object) {
            continue;
        }
        let quota_name = text(&quota["metadata"]["name"]);
        if let Some(missing) = missing(resource, object, &names) {
            return refuse(format!("failed quota: {quota_name}: must specify {missing}"));
        }
        if names.iter().any(|name| !used.contains_key(*name)) {
            let names = names.join(",");
            return refuse(format!("status unknown for quota: {quota_name}, resources: {names}"));
        }
        matching.push((quota, hard, used));
    }
    let now = context.at;
    let usage_now = usage(resource, object, now);
    let mut charges = Vec::new();
    for (quota, hard, used) in matching {
        let mut delta = usage_now.clone();
        if write.operation == "UPDATE" && in_scopes(quota, resource, write.old()) {
            for (name, before) in usage(resource, write.old(), now) {
                if let Some(amount) = delta.get_mut(&name) {
                    *amount += -before;
                }
            }
        }
        delta.retain(|name, amount| *amount > Quantity::default() && hard.contains_key(name));
        let mut sum = used.clone();
        add(&mut sum, &delta);
        let is_more =
            |name: &&String| hard.get(*name).zip(sum.get(*name)).is_some_and(|(most, sum)| sum > most);
        let exceeded: Vec<&String> = delta.keys().filter(is_more).collect();
        // The status of a claim, which a controller writes, is charged in any case.
        if !exceeded.is_empty() && context.subresource() != "status" {
            let shown = |all: &Amounts| {
                let parts = exceeded.iter().filter_map(|name| Some(format!("{name}={}", all.get(*name)?)));
                parts.collect::<Vec<_>>().join(",")
            };
            return refuse(format!(
                "exceeded quota: {}, requested: {}, used: {}, limited: {}",
                text(&quota["metadata"]["name"]),
                shown(&delta),
                shown(&used),
                shown(&hard)
            ));
        }
        if !delta.is_empty() {
            let mut charged = quota.clone();
            charged["status"]["used"] = as_json(&sum);
            charges.push(charged);
        }
    }
    let place = key(context.namespace(), write.name);
    let is_taken = write.operation == "CREATE" && state.store.get(context.kind.storage(), &place).is_some();
    Ok(if write.is_dry || is_taken { Vec::new() } else { charges })
}

fn as_json(all: &Amounts) -> Value {
    let entries = all.iter().map(|(name, amount)| (name.clone(), amount.to_string().into()));
    Value::Object(entries.collect::<Map<_, _>>())
}

/// What the containers of a pod must specify because a quota counts it: cpu and memory, and nothing else.
fn missing(resource: &str, pod: &Value, names: &[&str]) -> Option<String> {
    const REQUIRED: [&str; 6] =
        ["cpu", "limits.cpu", "limits.memory", "memory", "requests.cpu", "requests.memory"];
    if resource != "pods" || is_set_for_pod(pod) {
        return None;
    }
    let containers = ["containers", "initContainers"].iter().flat_map(|list| items(&pod["spec"][*list]));
    let specified: Vec<(&str, Amounts)> = containers
        .map(|container| {
            let of = |list: &str| amounts(&container["resources"][list]);
            (text(&container["name"]), by_quota_names(&of("requests"), &of("limits")))
        })
        .collect();
    let mut faults = Vec::new();
    for name in REQUIRED.into_iter().filter(|name| names.contains(name)) {
        let without = specified.iter().filter(|(_, amounts)| !amounts.contains_key(name));
        let without: BTreeSet<&str> = without.map(|(container, _)| *container).collect();
        if !without.is_empty() {
            faults.push(format!("{name} for: {}", Vec::from_iter(without).join(",")));
        }
    }
    (!faults.is_empty()).then(|| faults.join("; "))
}

/// Requests and limits by the names that they have in quotas.
fn by_quota_names(requests: &Amounts, limits: &Amounts) -> Amounts {
    const PLAIN: [&str; 3] = ["cpu", "memory", "ephemeral-storage"];
    let mut all = Amounts::new();
    for (name, amount) in requests {
        let is_plain = PLAIN.contains(&name.as_str()) || name.starts_with("hugepages-");
        if is_plain {
            all.insert(name.clone(), *amount);
        }
        if is_plain || is_extended(name) {
            all.insert(format!("requests.{name}"), *amount);
        }
    }
    let limits = limits.iter().filter(|(name, _)| PLAIN.contains(&name.as_str()));
    all.extend(limits.map(|(name, amount)| (format!("limits.{name}"), *amount)));
    all
}

/// The amounts that an object uses.
fn usage(resource: &str, object: &Value, now: Timestamp) -> Amounts {
    let mut all = Amounts::from([(format!("count/{resource}"), Quantity::count(1))]);
    let mut count = |name: &str, number: usize| {
        all.insert(name.to_owned(), Quantity::count(number));
    };
    let spec = &object["spec"];
    match resource {
        "configmaps" | "replicationcontrollers" | QUOTAS | "secrets" => count(resource, 1),
        "pods" if !is_terminal(object) && stuck_at(object).is_none_or(|stuck| now <= stuck) => {
            count("pods", 1);
            all.extend(by_quota_names(&total(object, "requests", true), &total(object, "limits", true)));
        }
        "services" => {
            let ports = items(&spec["ports"]);
            let explicit = ports.iter().filter(|port| port["nodePort"].as_i64().unwrap_or(0) != 0).count();
            let is_balancer = spec["type"] == "LoadBalancer";
            count("services", 1);
            count("services.loadbalancers", usize::from(is_balancer));
            let ports = match text(&spec["type"]) {
                "LoadBalancer" if spec["allocateLoadBalancerNodePorts"] == false => explicit,
                "LoadBalancer" | "NodePort" => ports.len(),
                _ => 0,
            };
            count("services.nodeports", ports);
        }
        "persistentvolumeclaims" => {
            let class = class(object);
            let mut found = Amounts::from([("persistentvolumeclaims".to_owned(), Quantity::count(1))]);
            let wanted = amounts(&spec["resources"]["requests"]).remove("storage");
            let allocated = amounts(&object["status"]["allocatedResources"]).remove("storage");
            if let Some(wanted) = wanted {
                let larger = allocated.filter(|allocated| *allocated > wanted);
                // Bytes are whole.
                let amount = larger.unwrap_or(wanted).rounded_up();
                found.insert("requests.storage".to_owned(), amount);
            }
            for (name, amount) in found {
                if !class.is_empty() {
                    all.insert(format!("{class}.storageclass.storage.k8s.io/{name}"), amount);
                }
                all.insert(name, amount);
            }
        }
        _ => {}
    }
    all
}

/// From when on a pod that is being deleted is no longer counted: its node seems to be lost.
fn stuck_at(pod: &Value) -> Option<Timestamp> {
    let meta = &pod["metadata"];
    let grace = meta["deletionGracePeriodSeconds"].as_i64()?;
    let deleted: Timestamp = text(&meta["deletionTimestamp"]).parse().ok()?;
    deleted.checked_add(SignedDuration::from_secs(grace)).ok()
}

/// Whether an object is in all scopes of a quota.
fn in_scopes(quota: &Value, resource: &str, object: &Value) -> bool {
    const NONE: &[Value] = &[];
    let spec = &quota["spec"];
    let plain = items(&spec["scopes"]).iter().map(|scope| (text(scope), "Exists", NONE));
    let selected = items(&spec["scopeSelector"]["matchExpressions"]).iter();
    let selected =
        selected.map(|one| (text(&one["scopeName"]), text(&one["operator"]), items(&one["values"])));
    plain.chain(selected).all(|(scope, operator, values)| {
        let spec = &object["spec"];
        match (resource, scope) {
            ("pods", "Terminating") => spec["activeDeadlineSeconds"].is_number(),
            ("pods", "NotTerminating") => !spec["activeDeadlineSeconds"].is_number(),
            ("pods", "BestEffort") => pods::qos(object) == "BestEffort",
            ("pods", "NotBestEffort") => pods::qos(object) != "BestEffort",
            ("pods", "PriorityClass") => has(&[text(&spec["priorityClassName"])], operator, values),
            ("pods", "CrossNamespacePodAffinity") => selects_other_namespaces(&spec["affinity"]),
            ("persistentvolumeclaims", "VolumeAttributesClass") => {
                let status = &object["status"];
                let target = &status["modifyVolumeStatus"]["targetVolumeAttributesClassName"];
                let current = &status["currentVolumeAttributesClassName"];
                has(&[&spec["volumeAttributesClassName"], current, target].map(text), operator, values)
            }
            _ => false,
        }
    })
}

/// Whether one of the names fulfils a selector; those that are empty are no names.
fn has(names: &[&str], operator: &str, values: &[Value]) -> bool {
    let fits = |name: Option<&str>| selector::fits(operator, values, name);
    let mut names = names.iter().copied().filter(|name| !name.is_empty()).peekable();
    if names.peek().is_none() { fits(None) } else { names.any(|name| fits(Some(name))) }
}

fn selects_other_namespaces(affinity: &Value) -> bool {
    ["podAffinity", "podAntiAffinity"].iter().any(|kind| {
        let required = items(&affinity[*kind]["requiredDuringSchedulingIgnoredDuringExecution"]).iter();
        let preferred = items(&affinity[*kind]["preferredDuringSchedulingIgnoredDuringExecution"]).iter();
        required
            .chain(preferred.map(|term| &term["podAffinityTerm"]))
            .any(|term| !items(&term["namespaces"]).is_empty() || term["namespaceSelector"].is_object())
    })
}

/// The status of a quota as its namespace is now, and when it changes by itself.
pub(crate) fn recounted(state: &State, quota: &Value, now: Timestamp) -> (Value, Option<Timestamp>) {
    let hard = &quota["spec"]["hard"];
    let prefix = key(text(&quota["metadata"]["namespace"]), "");
    // Resources that cannot be counted keep their value.
    let mut used = amounts(&quota["status"]["used"]);
    let mut sum = Amounts::new();
    let mut due: Option<Timestamp> = None;
    let names = amounts(hard);
    let resources = names.keys().filter_map(|name| counted(name));
    let is_served = |resource: &&str| state.kinds.stored(resource).is_some_and(|kind| kind.namespaced);
    for resource in resources.filter(is_served).collect::<BTreeSet<&str>>() {
        let own = names.keys().filter(|name| counted(name) == Some(resource));
        sum.extend(own.map(|name| (name.clone(), Quantity::default())));
        let objects = state.store.range(resource, &prefix, None);
        if !["pods", "services", "persistentvolumeclaims"].contains(&resource) {
            // All objects of such a resource use the same, and none is in a scope.
            if in_scopes(quota, resource, &Value::Null) {
                let count = Quantity::count(objects.count());
                sum.extend(usage(resource, &Value::Null, now).into_keys().map(|name| (name, count)));
            }
            continue;
        }
        for (_, object) in objects {
            let parsed = object.parsed();
            if in_scopes(quota, resource, &parsed.value) {
                add(&mut sum, &usage(resource, &parsed.value, now));
            }
            let stuck = stuck_at(&parsed.value).filter(|stuck| *stuck >= now && resource == "pods");
            let next = stuck.and_then(|stuck| stuck.checked_add(SignedDuration::from_secs(1)).ok());
            due = due.into_iter().chain(next).min();
        }
    }
    used.extend(sum);
    used.retain(|name, _| names.contains_key(name));
    let status = [("hard", hard.clone()), ("used", as_json(&used))];
    let status = status.into_iter().filter(|(_, all)| all.as_object().is_some_and(|all| !all.is_empty()));
    (Value::Object(status.map(|(field, all)| (field.to_owned(), all)).collect()), due)
}
