//! Which objects a workload owns: orphans that it selects are adopted, objects that it no longer selects are released.

use jiff::Timestamp;
use operetta_kube_model::facts::{controller_uid, is_deleting, name, namespace, uid};
use operetta_kube_model::selector::labels_match;
use serde_json::{Value, json};

use super::client::{self, MANAGER, PODS, Resource, get};
use super::parts::owner;
use crate::api::Api;

/// The objects of a resource that a workload owns, by name.
pub(super) fn claim(
    api: &mut Api,
    (kind, workload): (&Resource, &Value),
    resource: &Resource,
    now: Timestamp,
) -> Vec<Value> {
    let selector = &workload["spec"]["selector"];
    let selects = |object: &Value| labels_match(selector, &object["metadata"]["labels"]);
    let mut claimed = Vec::new();
    for mut object in client::below(api, resource, uid(workload)) {
        if controller_uid(&object) != Some(uid(workload)) {
            continue;
        }
        if selects(&object) || is_deleting(&object) {
            claimed.push(object);
        } else if !is_deleting(workload) {
            let owners = object["metadata"]["ownerReferences"].as_array().cloned().unwrap_or_default();
            let others: Vec<Value> =
                owners.into_iter().filter(|owner| owner["uid"] != uid(workload)).collect();
            object["metadata"]["ownerReferences"] = others.into();
            let _ = client::update(api, MANAGER, resource, "", &mut object, now);
        }
    }
    if is_deleting(workload) {
        return claimed;
    }
    for (_, key) in api.state.store.orphans(resource.name, namespace(workload)) {
        let Some(mut object) = get(api, resource, &key) else { continue };
        if selects(&object) && !is_deleting(&object) {
            object["metadata"]["ownerReferences"] = json!([owner(kind, workload)]);
            if client::update(api, MANAGER, resource, "", &mut object, now).is_ok() {
                claimed.push(object);
            }
        }
    }
    claimed.sort_by(|a, b| name(a).cmp(name(b)));
    claimed
}

/// The pods of a namespace that a label selector selects, by name.
pub(super) fn selected(api: &Api, namespace: &str, selector: &Value) -> Vec<Value> {
    let fits = |pod: &Value| labels_match(selector, &pod["metadata"]["labels"]);
    match api.controllers.labelled(namespace, selector["matchLabels"].as_object()) {
        Some(keys) => keys.iter().filter_map(|key| get(api, &PODS, key)).filter(fits).collect(),
        None => client::list(api, &PODS, namespace).into_iter().filter(fits).collect(),
    }
}
