//! Namespaces that are being deleted: first their pods end, then all else goes, and conditions say what remains.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use operetta_kube_model::facts::{is_terminal, items, number, text};
use serde_json::{Value, json};

use crate::model::{Kind, Object};
use crate::state::State;
use crate::state::stored::put;
use crate::verbs::delete::{DeleteOptions, delete_one};
use crate::verbs::managers::put_as_controller;

/// The conditions, each with its reason and message while nothing is wrong.
const CONDITIONS: [(&str, &str, &str); 5] = [
    ("NamespaceDeletionDiscoveryFailure", "ResourcesDiscovered", "All resources successfully discovered"),
    (
        "NamespaceDeletionGroupVersionParsingFailure",
        "ParsedGroupVersions",
        "All legacy kube types successfully parsed",
    ),
    (
        "NamespaceDeletionContentFailure",
        "ContentDeleted",
        "All content successfully deleted, may be waiting on finalization",
    ),
    ("NamespaceContentRemaining", "ContentRemoved", "All content successfully removed"),
    ("NamespaceFinalizersRemaining", "ContentHasNoFinalizers", "All content-preserving finalizers finished"),
];

/// An object with a kind of it and its key.
type Found = (Arc<Kind>, Arc<str>, Arc<Object>);

/// Problems by the type of the condition that reports them: reason and message.
type Problems = BTreeMap<&'static str, (&'static str, String)>;

/// Terminates all namespaces that are being deleted.
pub(super) fn terminate_all(state: &mut State, now: &str) {
    let namespaces = state.store.range("namespaces", "", None);
    let ending = namespaces.filter(|(_, object)| object.is_deleting).map(|(key, _)| key.clone());
    for key in ending.collect::<Vec<Arc<str>>>() {
        terminate(state, &key, now);
    }
}

/// Deletes the content of a namespace that is being deleted, and lets it go if it is empty.
pub(super) fn terminate(state: &mut State, key: &str, now: &str) {
    let Some(kind) = state.kinds.find("", "v1", "namespaces").cloned() else { return };
    let ending = state.store.get("namespaces", key).filter(|namespace| namespace.is_deleting);
    let Some(mut value) = ending.map(|namespace| namespace.bare()) else { return };
    if !items(&value["spec"]["finalizers"]).iter().any(|known| known == "kubernetes") {
        return;
    }
    let (is_empty, problems) = delete_content(state, key, &value, now);
    if put_conditions(&mut value, &problems, now) {
        put_as_controller(state, &kind, key, value, "status", now);
    }
    let latest = state.store.get("namespaces", key).map(|object| object.bare());
    if let Some(mut value) = latest.filter(|_| is_empty) {
        let rest: Vec<Value> = items(&value["spec"]["finalizers"])
            .iter()
            .filter(|known| *known != "kubernetes")
            .cloned()
            .collect();
        value["spec"]["finalizers"] = rest.into();
        put(state, &kind, key, value);
    }
}

/// When the pods of a namespace that is being deleted should have ended, if that is to come.
pub(super) fn due(state: &State, key: &str, now: Timestamp) -> Option<Timestamp> {
    let namespace = state.store.get("namespaces", key).filter(|object| object.is_deleting)?.bare();
    let pods = objects(state, "pods", &prefix(key));
    grace_end(&namespace, &pods).filter(|end| *end > now && !pods.is_empty())
}

fn prefix(key: &str) -> String {
    format!("{}/", key.trim_start_matches('/'))
}

/// The objects of a resource in a namespace, with a kind of each.
fn objects(state: &State, resource: &str, prefix: &str) -> Vec<Found> {
    let Some(kind) = state.kinds.stored(resource) else { return Vec::new() };
    let objects = state.store.range(resource, prefix, None);
    objects.map(|(key, object)| (kind.clone(), key.clone(), object.clone())).collect()
}

/// The end of the longest grace period of pods that have not ended.
fn grace_end(namespace: &Value, pods: &[Found]) -> Option<Timestamp> {
    let since: Timestamp = text(&namespace["metadata"]["deletionTimestamp"]).parse().ok()?;
    let pods = pods.iter().map(|(_, _, pod)| pod.bare()).filter(|pod| !is_terminal(pod));
    let grace = pods.map(|pod| number(&pod["spec"]["terminationGracePeriodSeconds"])).max().unwrap_or(0);
    since.checked_add(SignedDuration::from_secs(grace)).ok()
}

/// Returns whether nothing is left, and what is wrong.
fn delete_content(state: &mut State, key: &str, namespace: &Value, now: &str) -> (bool, Problems) {
    let prefix = prefix(key);
    let mut failures = BTreeMap::new();
    let mut problems = Problems::new();
    let before = objects(state, "pods", &prefix);
    let end = grace_end(namespace, &before);
    let left = sweep(state, before, &mut failures, now);
    let finalizers = count_finalizers(&left);
    if !left.is_empty() {
        let is_late = now.parse::<Timestamp>().is_ok_and(|now| end.is_none_or(|end| end <= now));
        if is_late && finalizers.is_empty() {
            let name = key.trim_start_matches('/');
            let why =
                format!("unexpected items still remain in namespace: {name} for gvr: /v1, Resource=pods");
            failures.entry("pods".to_owned()).or_insert(why);
        }
        note_failures(&failures, &mut problems);
        return (false, problems);
    }
    let others: Vec<Found> =
        state.store.resources().flat_map(|resource| objects(state, resource, &prefix)).collect();
    let left = sweep(state, others, &mut failures, now);
    note_failures(&failures, &mut problems);
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for (kind, ..) in &left {
        *counts.entry(format!("{}.{}", kind.plural, kind.group)).or_default() += 1;
    }
    let listed = |counts: &BTreeMap<String, usize>, between: &str| {
        let all = counts.iter().map(|(name, count)| format!("{name} {between} {count} resource instances"));
        all.collect::<Vec<_>>().join(", ")
    };
    if !counts.is_empty() {
        let message = format!("Some resources are remaining: {}", listed(&counts, "has"));
        problems.insert("NamespaceContentRemaining", ("SomeResourcesRemain", message));
    }
    let finalizers = count_finalizers(&left);
    if !finalizers.is_empty() {
        let all = listed(&finalizers, "in");
        let message = format!("Some content in the namespace has finalizers remaining: {all}");
        problems.insert("NamespaceFinalizersRemaining", ("SomeFinalizersRemain", message));
    }
    (left.is_empty() && failures.is_empty(), problems)
}

/// Deletes objects. Returns those that are left; `failures` is the first one of each resource.
fn sweep(
    state: &mut State,
    content: Vec<Found>,
    failures: &mut BTreeMap<String, String>,
    now: &str,
) -> Vec<Found> {
    for (kind, key, object) in content.iter().filter(|(_, _, object)| !object.is_deleting) {
        let options = DeleteOptions::background(&object.uid);
        if let Err(failure) = delete_one(state, kind, key, object, &options, now) {
            failures.entry(kind.resource().to_owned()).or_insert_with(|| failure.message().to_owned());
        }
    }
    let left = content.into_iter().filter_map(|(kind, key, _)| {
        let object = state.store.get(kind.storage(), &key)?.clone();
        Some((kind, key, object))
    });
    left.collect()
}

fn count_finalizers(content: &[Found]) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for (_, _, object) in content {
        for finalizer in items(&object.bare()["metadata"]["finalizers"]) {
            *counts.entry(text(finalizer).to_owned()).or_default() += 1;
        }
    }
    counts
}

fn note_failures(failures: &BTreeMap<String, String>, problems: &mut Problems) {
    if failures.is_empty() {
        return;
    }
    let mut messages: Vec<&str> = failures.values().map(String::as_str).collect();
    messages.sort_unstable();
    let message =
        format!("Failed to delete all resource types, {} remaining: {}", messages.len(), messages.join(", "));
    problems.insert("NamespaceDeletionContentFailure", ("ContentDeletionFailed", message));
}

/// Returns whether a condition has changed.
fn put_conditions(namespace: &mut Value, problems: &Problems, now: &str) -> bool {
    let mut conditions = items(&namespace["status"]["conditions"]).to_vec();
    let mut is_changed = false;
    for (kind, reason, message) in CONDITIONS {
        let (status, reason, message) = match problems.get(kind) {
            Some((reason, message)) => ("True", *reason, message.as_str()),
            None => ("False", reason, message),
        };
        let mut new = json!({"type": kind, "status": status, "lastTransitionTime": now, "reason": reason,
            "message": message});
        let Some(old) = conditions.iter_mut().find(|known| known["type"] == kind) else {
            conditions.push(new);
            is_changed = true;
            continue;
        };
        if old["status"] == status {
            new["lastTransitionTime"] = old["lastTransitionTime"].clone();
        }
        is_changed |= *old != new;
        *old = new;
    }
    namespace["status"]["conditions"] = conditions.into();
    is_changed
}
