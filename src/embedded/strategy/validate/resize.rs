//! The subresource `resize` of pods: what it changes, and the rules for it.

use operetta_kube_model::Fault;
use operetta_kube_model::facts::{items, text};
use serde_json::{Map, Value};

use super::checks::Faults;
use super::pods::pod_spec;
use crate::strategy::pods::qos;

const LISTS: [&str; 2] = ["containers", "initContainers"];

fn names<'a>(pod: &'a Value, list: &str) -> Vec<&'a str> {
    items(&pod["spec"][list]).iter().map(|container| text(&container["name"])).collect()
}

/// Makes `object` the live pod with other resources. One with other containers stays as it is, and is refused.
pub(crate) fn keep_resources(live: &Value, object: &mut Value) {
    if LISTS.iter().any(|list| names(live, list) != names(object, list)) {
        return;
    }
    let mut next = live.clone();
    take(&mut next["spec"], &object["spec"], &["resources"]);
    for list in LISTS {
        let containers = next["spec"].get_mut(list).and_then(Value::as_array_mut).into_iter().flatten();
        for (container, given) in containers.zip(items(&object["spec"][list])) {
            take(container, given, &["resources", "resizePolicy"]);
        }
    }
    take(&mut next["metadata"], &object["metadata"], &["uid", "resourceVersion"]);
    *object = next;
}

/// Sets fields as another object has them.
fn take(object: &mut Value, from: &Value, fields: &[&str]) {
    let Some(map) = object.as_object_mut() else { return };
    for field in fields {
        match from.get(field) {
            Some(value) => map.insert((*field).to_owned(), value.clone()),
            None => map.remove(*field),
        };
    }
}

/// Checks a resize.
pub(super) fn resize(live: &Value, object: &Value, faults: &mut Faults) {
    let (old, new) = (&live["spec"], &object["spec"]);
    pod_spec(new, "spec", faults);
    if old["os"]["name"] == "windows" {
        *faults = vec![Fault::forbidden("", "windows pods cannot be resized")];
        return;
    }
    let class = qos(object);
    if live["status"]["qosClass"] != class {
        let why = "Pod QOS Class may not change as a result of resizing";
        faults.push(Fault::invalid("spec", object["status"]["qosClass"].clone(), why));
    }
    let mut statuses = items(&live["status"]["containerStatuses"]).iter();
    let running = statuses.find(|status| !status["state"]["running"].is_null());
    if running.is_some_and(|status| status["resources"].is_null()) {
        faults.push(Fault::forbidden("spec", "Pod running on node without support for resize"));
    }
    of_pod(&old["resources"], &new["resources"], faults);
    if !same_containers(live, object, faults) {
        return;
    }
    for list in ["initContainers", "containers"] {
        for (at, (before, after)) in items(&old[list]).iter().zip(items(&new[list])).enumerate() {
            let path = format!("spec.{list}[{at}]");
            let (was, is) = (&before["resources"], &after["resources"]);
            removed(was, is, &format!("{path}.resources"), "resource", faults);
            let is_init = list == "initContainers";
            if fixed(before) != fixed(after) {
                let (path, why) = if is_init {
                    (&*path, "only cpu and memory resources for init or sidecar containers are mutable")
                } else {
                    ("spec", "only cpu and memory resources are mutable")
                };
                faults.push(Fault::forbidden(path, why));
            }
            let restarts = |policy: &Value| policy["restartPolicy"] == "RestartContainer";
            if is_init
                && before != after
                && after["restartPolicy"] != "Always"
                && items(&after["resizePolicy"]).iter().any(restarts)
            {
                let why =
                    "non-sidecar init containers with a resize policy of RestartContainer cannot be resized";
                faults.push(Fault::forbidden(path, why));
            }
        }
    }
}

/// The rules for the resources of the pod as a whole.
fn of_pod(old: &Value, new: &Value, faults: &mut Faults) {
    let is_set = |resources: &Value| ["requests", "limits"].iter().any(|list| !empty(&resources[*list]));
    if !is_set(old) && !is_set(new) {
        return;
    }
    if !old.is_null() && new.is_null() {
        faults.push(Fault::forbidden("spec.resources", "pod-level resources cannot be removed"));
        return;
    }
    removed(old, new, "spec.resources", "pod-level resource", faults);
    if others(old) != others(new) {
        faults.push(Fault::forbidden("spec", "only cpu and memory resources are mutable at pod-level"));
    }
}

/// Containers are neither added nor removed, nor do they get another name or place.
fn same_containers(live: &Value, object: &Value, faults: &mut Faults) -> bool {
    let before = faults.len();
    for list in LISTS {
        let (old, new) = (names(live, list), names(object, list));
        if old.len() != new.len() {
            let why = format!("{list} may not be added or removed on resize");
            faults.push(Fault::forbidden(format!("spec.{list}"), why));
            continue;
        }
        for (at, _) in old.iter().zip(&new).enumerate().filter(|(_, (old, new))| old != new) {
            let why = format!("{list} may not be renamed or reordered on resize");
            faults.push(Fault::forbidden(format!("spec.{list}[{at}].name"), why));
        }
    }
    faults.len() == before
}

/// Requests and limits may change, and not go.
fn removed(old: &Value, new: &Value, path: &str, what: &str, faults: &mut Faults) {
    for list in ["requests", "limits"] {
        let mut names = old[list].as_object().into_iter().flatten().map(|(name, _)| name);
        if names.any(|name| new[list].get(name).is_none()) {
            faults
                .push(Fault::forbidden(format!("{path}.{list}"), format!("{what} {list} cannot be removed")));
        }
    }
}

fn empty(map: &Value) -> bool {
    map.as_object().is_none_or(Map::is_empty)
}

/// A container with the resources that a resize does not change.
fn fixed(container: &Value) -> Value {
    let mut container = container.clone();
    container["resources"] = others(&container["resources"]);
    container
}

/// Resources other than CPU and memory.
fn others(resources: &Value) -> Value {
    let mut resources = resources.clone();
    for list in ["requests", "limits"] {
        let Some(map) = resources.as_object_mut() else { return Value::Null };
        if let Some(list) = map.get_mut(list).and_then(Value::as_object_mut) {
            list.remove("cpu");
            list.remove("memory");
        }
        if map.get(list).is_some_and(empty) {
            map.remove(list);
        }
    }
    if empty(&resources) { Value::Null } else { resources }
}
