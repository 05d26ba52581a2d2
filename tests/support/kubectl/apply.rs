//! `kubectl apply`, of the client and of the server.

use http::Request;
use serde_json::{Map, Value, json};

use super::arguments::Arguments;
use super::output::Output;
use super::resources::{Object, Target, objects};
use super::session::{Session, is_missing, refusal};
use super::{Outcome, outcome};

/// The annotation in which `kubectl apply` keeps the manifest.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

pub(super) async fn apply(session: &Session<'_>, args: &Arguments<'_>, input: &str) -> Outcome {
    args.only(&["field-manager", "filename", "force-conflicts", "output", "server-side", "validate"])?;
    let output = Output::of(args)?;
    let is_server_side = args.is("server-side");
    let query = args.query(if is_server_side { "kubectl" } else { "kubectl-client-side-apply" })?;
    let (mut text, mut errors) = (String::new(), Vec::new());
    for object in objects(session, args.manifests(input)?).await {
        let applied = match object {
            Ok(object) if object.target.name.is_empty() => {
                Err("error: resource name may not be empty".to_owned())
            }
            Ok(Object { target, manifest }) => {
                let applied = if is_server_side {
                    let query = format!("{query}&force={}", args.is("force-conflicts"));
                    on_server(session, &target, &query, &manifest).await
                } else {
                    on_client(session, &target, &query, manifest).await?
                };
                applied.map(|(object, done)| output.about(&target, object, args, done))
            }
            Err(error) => Err(error),
        };
        match applied {
            Ok(applied) => text += &applied,
            Err(error) => errors.push(error),
        }
    }
    Some(outcome(text, &errors))
}

/// An object as the server has it, and what was done to it.
type Applied = Result<(Value, &'static str), String>;

async fn on_server(session: &Session<'_>, target: &Target, query: &str, manifest: &Value) -> Applied {
    let request = Request::patch(format!("{}?{query}", target.path(None)));
    match session.send(request, "apply-patch+yaml", manifest).await {
        Ok(object) => Ok((object, "serverside-applied")),
        Err(kube::Error::Api(status)) if status.is_conflict() => Err(format!("error: {}", status.message)),
        Err(error) => Err(refusal("", &error)),
    }
}

/// `None` where kubectl merges lists by rules of their own, and for null values in the manifest of an object that exists.
async fn on_client(
    session: &Session<'_>,
    target: &Target,
    query: &str,
    mut modified: Value,
) -> Option<Applied> {
    let annotations = &mut modified["metadata"]["annotations"];
    if annotations.is_null() {
        *annotations = json!({});
    }
    annotations.as_object_mut()?.remove(LAST_APPLIED);
    let has_null = has_null(&modified);
    let text = format!("{modified}\n");
    modified["metadata"]["annotations"][LAST_APPLIED] = text.into();
    let current = match session.get(&target.path(None)).await {
        Ok(current) => current,
        Err(error) if is_missing(&error) => {
            prune_nulls(&mut modified);
            let request = Request::post(format!("{}?{query}", target.collection));
            let created = session.send(request, "json", &modified).await;
            return Some(match created {
                Ok(created) => Ok((created, "created")),
                Err(error) => Err(refusal("error when creating \"STDIN\": ", &error)),
            });
        }
        Err(error) => return Some(Err(refusal("", &error))),
    };
    if has_null {
        return None;
    }
    let last = current["metadata"]["annotations"][LAST_APPLIED].as_str().unwrap_or("{}");
    let lists = lists_of(target.resource.group());
    let patch = three_way(&serde_json::from_str(last).ok()?, &modified, &current, lists);
    if patch.as_object().is_some_and(Map::is_empty) {
        return Some(Ok((current, "unchanged")));
    }
    if lists == Lists::Merged && has_list(&patch) {
        return None;
    }
    let request = Request::patch(format!("{}?{query}", target.path(None)));
    Some(match session.send(request, "merge-patch+json", &patch).await {
        Ok(patched) => Ok((patched, "configured")),
        Err(error) => Err(refusal("error when patching \"STDIN\": ", &error)),
    })
}

/// Removes null values of maps.
fn prune_nulls(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, value| !value.is_null());
            fields.values_mut().for_each(prune_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(prune_nulls),
        _ => {}
    }
}

/// What `kubectl apply` does with lists.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Lists {
    /// It replaces them.
    Replaced,
    /// It merges most of them by keys of their items.
    Merged,
}

/// kubectl knows the types of the groups of Kubernetes itself. Those of RBAC have no list with a key.
fn lists_of(group: &str) -> Lists {
    let is_unknown = group.contains('.') && !group.ends_with(".k8s.io");
    let is_plain =
        ["apiextensions.k8s.io", "apiregistration.k8s.io", "rbac.authorization.k8s.io"].contains(&group);
    if is_unknown || is_plain { Lists::Replaced } else { Lists::Merged }
}

fn has_null(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.iter().any(has_null),
        Value::Object(fields) => fields.values().any(has_null),
        _ => false,
    }
}

fn has_list(value: &Value) -> bool {
    value.is_array() || value.as_object().is_some_and(|fields| fields.values().any(has_list))
}

/// Whether a live value has everything that a manifest wants, in lists at the same places.
fn covers(live: &Value, wanted: &Value) -> bool {
    match (live, wanted) {
        (Value::Object(live), Value::Object(wanted)) => {
            wanted.iter().all(|(key, wanted)| live.get(key).is_some_and(|live| covers(live, wanted)))
        }
        (Value::Array(live), Value::Array(wanted)) => {
            live.len() == wanted.len() && live.iter().zip(wanted).all(|(live, wanted)| covers(live, wanted))
        }
        (live, wanted) => live == wanted,
    }
}

/// The merge patch of `kubectl apply`: what is new or differs from the live object, minus what only the last
/// manifest had.
fn three_way(last: &Value, modified: &Value, current: &Value, lists: Lists) -> Value {
    let mut patch = Map::new();
    for (key, value) in modified.as_object().into_iter().flatten() {
        match (value, current.get(key)) {
            (Value::Object(_), Some(live @ Value::Object(_))) => {
                let inner = three_way(&last[key], value, live, lists);
                if inner.as_object().is_some_and(|inner| !inner.is_empty()) {
                    patch.insert(key.clone(), inner);
                }
            }
            // A list that has not changed since the last manifest may have defaults.
            (Value::Array(_), Some(live))
                if lists == Lists::Merged && last.get(key) == Some(value) && covers(live, value) => {}
            (value, live) if live != Some(value) => drop(patch.insert(key.clone(), value.clone())),
            _ => {}
        }
    }
    for key in last.as_object().into_iter().flatten().map(|(key, _)| key) {
        if modified.get(key).is_none() && current.get(key).is_some() {
            patch.insert(key.clone(), Value::Null);
        }
    }
    patch.into()
}

#[test]
fn apply_patch_has_changes_and_removals() {
    let last = json!({"spec": {"a": 1, "b": 2, "c": {"d": 1}}});
    let modified = json!({"spec": {"a": 1, "c": {"e": [1]}}});
    let current = json!({"spec": {"a": 3, "b": 2, "c": {"d": 1, "e": [2]}, "others": 1}});
    let patch = three_way(&last, &modified, &current, Lists::Replaced);
    assert_eq!(patch, json!({"spec": {"a": 1, "b": null, "c": {"d": null, "e": [1]}}}));
    assert_eq!(three_way(&modified, &modified, &modified, Lists::Replaced), json!({}));
}

#[test]
fn defaults_in_merged_lists_are_left() {
    let manifest = json!({"ports": [{"port": 80}]});
    let live = json!({"ports": [{"port": 80, "protocol": "TCP"}]});
    assert_eq!(three_way(&manifest, &manifest, &live, Lists::Merged), json!({}));
    assert_eq!(three_way(&manifest, &manifest, &live, Lists::Replaced), manifest);
    let changed = json!({"ports": [{"port": 81}]});
    assert_eq!(three_way(&manifest, &changed, &live, Lists::Merged), changed);
}

#[test]
fn kubectl_merges_lists_of_built_in_kinds() {
    for group in ["", "apps", "networking.k8s.io"] {
        assert_eq!(lists_of(group), Lists::Merged, "{group}");
    }
    for group in ["fixtures.operetta.dev", "rbac.authorization.k8s.io", "apiextensions.k8s.io"] {
        assert_eq!(lists_of(group), Lists::Replaced, "{group}");
    }
}
