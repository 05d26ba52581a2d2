//! `LimitRanger`: default requests and limits of containers, and bounds for containers, pods and claims.

use std::sync::Arc;

use operetta_kube_model::facts::{items, key, text};
use operetta_kube_model::quantity::Quantity;
use serde_json::Value;

use super::resources::{Amounts, amounts, total};
use super::write::{Write, forbidden};
use crate::model::{Context, Outcome, Parsed};
use crate::state::State;

/// The annotation that says which requests and limits are defaults.
const ANNOTATION: &str = "kubernetes.io/limit-ranger";

/// The `LimitRange`s that concern a write.
fn ranges(state: &State, context: &Context<'_>, old: &Value) -> Vec<Arc<Parsed>> {
    let applies = match (context.kind.resource(), context.subresource()) {
        ("pods", "") => old.is_null(),
        ("pods", "resize") => !old.is_null(),
        ("persistentvolumeclaims", "") => true,
        _ => false,
    };
    if !applies || old["metadata"]["deletionTimestamp"].is_string() {
        return Vec::new();
    }
    let prefix = key(context.namespace(), "");
    state.store.range("limitranges", &prefix, None).map(|(_, range)| range.parsed()).collect()
}

pub(super) fn mutate(
    state: &mut State,
    context: &mut Context<'_>,
    object: &mut Value,
    old: &Value,
) -> Outcome<()> {
    if context.kind.resource() == "pods" {
        for range in ranges(state, context, old) {
            set_defaults(&range.value["spec"]["limits"], object);
        }
    }
    Ok(())
}

/// Gives containers the requests and limits that they do not have.
fn set_defaults(limits: &Value, pod: &mut Value) {
    let mut notes: Vec<String> = Vec::new();
    for (list, what) in [("containers", "container"), ("initContainers", "init container")] {
        let containers = pod["spec"].get_mut(list).and_then(Value::as_array_mut);
        for container in containers.into_iter().flatten() {
            for (source, target, word) in
                [("defaultRequest", "requests", "request"), ("default", "limits", "limit")]
            {
                let defaults = items(limits).iter().filter(|limit| limit["type"] == "Container");
                let mut set: Vec<&str> = Vec::new();
                for (name, value) in
                    defaults.flat_map(|limit| limit[source].as_object().into_iter().flatten())
                {
                    let entry = &mut container["resources"][target][name];
                    if entry.is_null() {
                        *entry = value.clone();
                        set.push(name);
                    }
                }
                if !set.is_empty() {
                    let name = text(&container["name"]);
                    notes.push(format!("{} {word} for {what} {name}", set.join(", ")));
                }
            }
        }
    }
    if !notes.is_empty() {
        let note = format!("LimitRanger plugin set: {}", notes.join("; "));
        pod["metadata"]["annotations"][ANNOTATION] = note.into();
    }
}

pub(super) fn validate(state: &mut State, context: &mut Context<'_>, write: &Write<'_>) -> Outcome<()> {
    if write.operation == "DELETE" {
        return Ok(());
    }
    let object = write.object();
    for range in ranges(state, context, write.old()) {
        let mut faults: Vec<String> = Vec::new();
        for limit in items(&range.value["spec"]["limits"]) {
            check(limit, context.kind.resource(), object, &mut faults);
        }
        match &faults[..] {
            [] => {}
            [one] => return Err(forbidden(context, object, one)),
            all => return Err(forbidden(context, object, &format!("[{}]", all.join(", ")))),
        }
    }
    Ok(())
}

/// Checks an object by one item of a `LimitRange`.
fn check(limit: &Value, resource: &str, object: &Value, faults: &mut Vec<String>) {
    let (kind, spec) = (text(&limit["type"]), &object["spec"]);
    let checked: Vec<(Amounts, Amounts)> = match (kind, resource) {
        ("Container", "pods") => {
            let containers = items(&spec["containers"]).iter().chain(items(&spec["initContainers"]));
            let of = |container: &Value, list: &str| amounts(&container["resources"][list]);
            containers.map(|container| (of(container, "requests"), of(container, "limits"))).collect()
        }
        ("Pod", "pods") => vec![(total(object, "requests", false), total(object, "limits", false))],
        ("PersistentVolumeClaim", "persistentvolumeclaims") => {
            vec![(amounts(&spec["resources"]["requests"]), Amounts::new())]
        }
        _ => return,
    };
    for (requests, limits) in &checked {
        for bound in ["min", "max", "maxLimitRequestRatio"] {
            for (name, most) in amounts(&limit[bound]) {
                let usage = (requests.get(&name), limits.get(&name));
                let why = match bound {
                    "min" => below(usage, most)
                        .map(|why| format!("minimum {name} usage per {kind} is {most}{why}")),
                    "max" => above(usage, most, resource == "pods")
                        .map(|why| format!("maximum {name} usage per {kind} is {most}{why}")),
                    // A claim has no limits.
                    _ if resource != "pods" => None,
                    _ => disproportionate(usage, most).map(|why| {
                        format!("{name} max limit to request ratio per {kind} is {most}, but {why}")
                    }),
                };
                let new = why.filter(|why| !faults.contains(why));
                faults.extend(new);
            }
        }
    }
}

/// The request and the limit of a resource.
type Usage<'a> = (Option<&'a Quantity>, Option<&'a Quantity>);

fn below((request, limit): Usage<'_>, least: Quantity) -> Option<String> {
    match (request, limit) {
        (None, _) => Some(".  No request is specified".to_owned()),
        (Some(request), _) if *request < least => Some(format!(", but request is {request}")),
        (_, Some(limit)) if *limit < least => Some(format!(", but limit is {limit}")),
        _ => None,
    }
}

fn above((request, limit): Usage<'_>, most: Quantity, has_limits: bool) -> Option<String> {
    match (request, limit) {
        (_, None) if has_limits => Some(".  No limit is specified".to_owned()),
        (None, _) if !has_limits => Some(".  No request is specified".to_owned()),
        (_, Some(limit)) if *limit > most => Some(format!(", but limit is {limit}")),
        (Some(request), _) if *request > most => Some(format!(", but request is {request}")),
        _ => None,
    }
}

fn disproportionate((request, limit): Usage<'_>, most: Quantity) -> Option<String> {
    let Some(request) = request.filter(|request| !request.is_zero()) else {
        return Some("no request is specified or request is 0".to_owned());
    };
    let Some(limit) = limit.filter(|limit| !limit.is_zero()) else {
        return Some("no limit is specified or limit is 0".to_owned());
    };
    let ratio = limit.ratio(*request).unwrap_or_default();
    (ratio > most.to_float()).then(|| format!("provided ratio is {ratio:.6}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn faults(limit: &Value, resource: &str, object: &Value) -> Vec<String> {
        let mut faults = Vec::new();
        check(limit, resource, object, &mut faults);
        faults
    }

    #[test]
    fn containers_get_defaults_and_an_annotation() {
        let limits = json!([{"type": "Pod"}, {"type": "Container", "default": {"cpu": "1", "memory": "1Gi"},
            "defaultRequest": {"cpu": "100m", "memory": "1Mi"}}]);
        let mut pod = json!({"metadata": {}, "spec": {
            "containers": [{"name": "a"}, {"name": "b", "resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "3", "memory": "3"}}}],
            "initContainers": [{"name": "i", "resources": {"requests": {"cpu": "1", "memory": "1"}, "limits": {"cpu": "1", "memory": "1"}}}],
        }});
        set_defaults(&limits, &mut pod);
        let both =
            json!({"requests": {"cpu": "100m", "memory": "1Mi"}, "limits": {"cpu": "1", "memory": "1Gi"}});
        assert_eq!(pod["spec"]["containers"][0]["resources"], both);
        assert_eq!(
            pod["spec"]["containers"][1]["resources"]["requests"],
            json!({"cpu": "2", "memory": "1Mi"})
        );
        let note = "LimitRanger plugin set: cpu, memory request for container a; cpu, memory limit for container a; memory request for container b";
        assert_eq!(pod["metadata"]["annotations"], json!({ANNOTATION: note}));
        let before = pod.clone();
        set_defaults(&limits, &mut pod);
        assert_eq!(pod, before);
    }

    #[test]
    fn bounds_apply_to_requests_limits_and_their_ratio() {
        let pod = |resources: Value| json!({"spec": {"containers": [{"name": "a", "resources": resources}]}});
        let limit = json!({"type": "Container", "min": {"cpu": "100m"}, "max": {"cpu": "1"}, "maxLimitRequestRatio": {"cpu": "3"}});
        let cases: [(Value, Value, &[&str]); 7] = [
            (json!({"cpu": "500m"}), json!({"cpu": "1"}), &[]),
            (
                json!({"cpu": "300m"}),
                json!({"cpu": "1"}),
                &["cpu max limit to request ratio per Container is 3, but provided ratio is 3.333333"],
            ),
            (
                json!({"cpu": "50m"}),
                json!({"cpu": "100m"}),
                &["minimum cpu usage per Container is 100m, but request is 50m"],
            ),
            (
                json!({"cpu": "1"}),
                json!({"cpu": "2"}),
                &["maximum cpu usage per Container is 1, but limit is 2"],
            ),
            (
                json!({"cpu": "1"}),
                json!({}),
                &[
                    "maximum cpu usage per Container is 1.  No limit is specified",
                    "cpu max limit to request ratio per Container is 3, but no limit is specified or limit is 0",
                ],
            ),
            (
                json!({}),
                json!({"cpu": "1"}),
                &[
                    "minimum cpu usage per Container is 100m.  No request is specified",
                    "cpu max limit to request ratio per Container is 3, but no request is specified or request is 0",
                ],
            ),
            (
                json!({"cpu": "-1n"}),
                json!({"cpu": "-1e21"}),
                &[
                    "minimum cpu usage per Container is 100m, but request is -1n",
                    "cpu max limit to request ratio per Container is 3, but provided ratio is 1000000000000000019884624838656.000000",
                ],
            ),
        ];
        for (requests, limits, wanted) in cases {
            assert_eq!(faults(&limit, "pods", &pod(json!({"requests": requests, "limits": limits}))), wanted);
        }
        let whole = json!({"type": "Pod", "max": {"memory": "1Gi"}});
        let two = json!({"limits": {"memory": "600Mi"}});
        let two = json!({"spec": {"containers": [{"resources": two}, {"resources": two}]}});
        assert_eq!(
            faults(&whole, "pods", &two),
            ["maximum memory usage per Pod is 1Gi, but limit is 1200Mi"]
        );
    }

    #[test]
    fn claims_are_bounded_by_their_requests() {
        let claim = json!({"spec": {"resources": {"requests": {"storage": "3Gi"}}}});
        let limit =
            |bound: &str, size: &str| json!({"type": "PersistentVolumeClaim", bound: {"storage": size}});
        let check = |bound: &str, size: &str| faults(&limit(bound, size), "persistentvolumeclaims", &claim);
        assert_eq!(
            check("max", "2Gi"),
            ["maximum storage usage per PersistentVolumeClaim is 2Gi, but request is 3Gi"]
        );
        assert_eq!(
            check("min", "4Gi"),
            ["minimum storage usage per PersistentVolumeClaim is 4Gi, but request is 3Gi"]
        );
        assert_eq!(check("max", "3Gi"), Vec::<String>::new());
        assert_eq!(faults(&limit("max", "2Gi"), "pods", &json!({})), Vec::<String>::new());
    }
}
