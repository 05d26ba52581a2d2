//! Amounts of resources: of containers and of whole pods.

use std::collections::BTreeMap;

use operetta_kube_model::facts::{condition, items};
use operetta_kube_model::quantity::Quantity;
use serde_json::Value;

/// Quantities by the names of resources.
pub(super) type Amounts = BTreeMap<String, Quantity>;

/// The quantities of a map such as `requests`.
pub(super) fn amounts(map: &Value) -> Amounts {
    let entries = map.as_object().into_iter().flatten();
    entries.filter_map(|(name, value)| Some((name.clone(), Quantity::saturating(value.as_str()?)?))).collect()
}

pub(super) fn add(all: &mut Amounts, more: &Amounts) {
    for (name, amount) in more {
        *all.entry(name.clone()).or_default() += *amount;
    }
}

/// Raises amounts to those of another map where they are less.
fn raise(all: &mut Amounts, least: &Amounts) {
    for (name, amount) in least {
        let known = all.entry(name.clone()).or_insert(*amount);
        *known = (*amount).max(*known);
    }
}

/// The `requests` or `limits` of a pod. Quotas also count its overhead, and what its containers have while they are resized.
pub(super) fn total(pod: &Value, list: &str, is_quota: bool) -> Amounts {
    let spec = &pod["spec"];
    let of = |container: &Value| {
        let wanted = amounts(&container["resources"][list]);
        if is_quota { effective(pod, container, list, wanted) } else { wanted }
    };
    let mut all = Amounts::new();
    for container in items(&spec["containers"]) {
        add(&mut all, &of(container));
    }
    let (mut sidecars, mut initial) = (Amounts::new(), Amounts::new());
    for container in items(&spec["initContainers"]) {
        let mut used = of(container);
        if container["restartPolicy"] == "Always" {
            add(&mut all, &used);
            add(&mut sidecars, &used);
            used.clone_from(&sidecars);
        } else {
            add(&mut used, &sidecars);
        }
        raise(&mut initial, &used);
    }
    raise(&mut all, &initial);
    let of_pod = amounts(&spec["resources"][list]).into_iter();
    all.extend(of_pod.filter(|(name, _)| is_pod_level(name) || is_quota && name.starts_with("hugepages-")));
    if is_quota {
        for (name, overhead) in amounts(&spec["overhead"]) {
            if list == "requests" || all.get(&name).is_some_and(|limit| !limit.is_zero()) {
                *all.entry(name).or_default() += overhead;
            }
        }
    }
    all
}

/// Whether a pod as a whole can have such resources.
fn is_pod_level(name: &str) -> bool {
    name == "cpu" || name == "memory"
}

/// Whether a pod as a whole has requests or limits.
pub(super) fn is_set_for_pod(pod: &Value) -> bool {
    let names = |list: &str| amounts(&pod["spec"]["resources"][list]).into_keys();
    let mut all = names("requests").chain(names("limits"));
    all.any(|name| is_pod_level(&name) || name.starts_with("hugepages-"))
}

/// The largest of what a container asks for, what it is allocated and what it runs with.
fn effective(pod: &Value, container: &Value, list: &str, wanted: Amounts) -> Amounts {
    let statuses =
        ["containerStatuses", "initContainerStatuses"].iter().flat_map(|field| items(&pod["status"][*field]));
    let is_own = |status: &&Value| status["name"] == container["name"] && status["resources"].is_object();
    let Some(status) = { statuses }.find(is_own) else { return wanted };
    let pending = condition(pod, "PodResizePending");
    let is_infeasible = pending.is_some_and(|condition| condition["reason"] == "Infeasible");
    let mut all = if is_infeasible { Amounts::new() } else { wanted };
    raise(&mut all, &amounts(&status["resources"][list]));
    if list == "requests" {
        raise(&mut all, &amounts(&status["allocatedResources"]));
    }
    all
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn shown(pod: &Value, list: &str, is_quota: bool) -> String {
        let all = total(pod, list, is_quota);
        all.iter().map(|(name, amount)| format!("{name}={amount}")).collect::<Vec<_>>().join(",")
    }

    #[test]
    fn init_containers_need_their_maximum_beside_sidecars() {
        let of = |cpu: &str| json!({"requests": {"cpu": cpu, "memory": "128Mi"}, "limits": {"cpu": cpu}});
        let mut pod = json!({"spec": {
            "containers": [{"name": "a", "resources": of("500m")}, {"name": "b", "resources": of("250m")}],
            "initContainers": [
                {"name": "s", "restartPolicy": "Always", "resources": of("100m")},
                {"name": "i", "resources": of("2")},
            ],
            "overhead": {"cpu": "10m", "memory": "1Mi"},
        }});
        // 2 and the sidecar's 100m is more than what runs later.
        assert_eq!(shown(&pod, "requests", false), "cpu=2100m,memory=384Mi");
        assert_eq!(shown(&pod, "limits", false), "cpu=2100m");
        assert_eq!(shown(&pod, "requests", true), "cpu=2110m,memory=385Mi");
        assert_eq!(shown(&pod, "limits", true), "cpu=2110m");
        pod["spec"]["resources"] = json!({"requests": {"cpu": "1"}});
        assert!(is_set_for_pod(&pod));
        assert_eq!(shown(&pod, "requests", false), "cpu=1,memory=384Mi");
    }

    #[test]
    fn quotas_count_what_a_container_still_has() {
        let pod = json!({"spec": {"containers": [{"name": "a", "resources": {"requests": {"cpu": "1"}}}]},
            "status": {"containerStatuses": [{"name": "a", "resources": {"requests": {"cpu": "2"}},
                "allocatedResources": {"cpu": "1500m"}}]}});
        assert_eq!(shown(&pod, "requests", true), "cpu=2");
        assert_eq!(shown(&pod, "requests", false), "cpu=1");
    }
}
