//! Controllers that every cluster has: namespaces, CRDs and the garbage collector.

use std::collections::HashSet;
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::api::{Api, key, time};
use crate::kinds::Kind;
use crate::store::Object;
use crate::versions;
use crate::write::{self, DeleteOptions};

type Stored = (Arc<Kind>, Arc<str>, Arc<Object>);

impl Api {
    /// Lets the controllers act once. Returns whether one of them changed something.
    pub fn tick(&mut self, now: Timestamp) -> bool {
        if !std::mem::take(&mut self.is_dirty) {
            return false;
        }
        let aggregated = crate::access::aggregate(self, now);
        let now = time(now);
        let changed = [
            aggregated,
            crate::crd::tick(self, &now),
            accounts(self, &now),
            namespaces(self, &now),
            collect(self, &now),
        ];
        self.is_dirty |= changed.contains(&true);
        changed.contains(&true)
    }
}

/// All objects that `wanted` selects, with a kind of each.
fn objects(api: &Api, wanted: impl Fn(&str, &Object) -> bool) -> Vec<Stored> {
    let mut found = Vec::new();
    for (resource, key, object) in api.store.all() {
        if wanted(key, object)
            && let Some(kind) = api.kinds.stored(resource)
        {
            found.push((kind.clone(), key.clone(), object.clone()));
        }
    }
    found
}

/// Each namespace has a `ServiceAccount`.
fn accounts(api: &mut Api, now: &str) -> bool {
    let missing: Vec<String> = api
        .store
        .range("namespaces", "", None)
        .filter(|(_, object)| !object.is_deleting)
        .filter_map(|(key, _)| key.strip_prefix('/').map(str::to_owned))
        .filter(|namespace| api.store.get("serviceaccounts", &key(namespace, "default")).is_none())
        .collect();
    let Some(kind) = api.kinds.find("", "v1", "serviceaccounts").cloned() else { return false };
    for namespace in &missing {
        let uid = api.uid();
        let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default",
            "namespace": namespace, "uid": uid, "creationTimestamp": now}});
        write::put(api, &kind, &key(namespace, "default"), account);
    }
    !missing.is_empty()
}

/// The content of a namespace is deleted before it is.
fn namespaces(api: &mut Api, now: &str) -> bool {
    let ending: Vec<(Arc<str>, Arc<Object>)> = api
        .store
        .range("namespaces", "", None)
        .filter(|(_, object)| object.is_deleting)
        .map(|(key, object)| (key.clone(), object.clone()))
        .collect();
    let mut changed = false;
    for (name, namespace) in ending {
        let prefix = format!("{}/", name.trim_start_matches('/'));
        let content = objects(api, |key, _| key.starts_with(&prefix));
        for (kind, key, object) in content.iter().filter(|(_, _, object)| !object.is_deleting) {
            let options = DeleteOptions::background(&object.uid);
            changed |= write::delete_one(api, kind, key, object, &options, now).is_ok();
        }
        let mut value = namespace.value();
        if content.is_empty() && value["spec"]["finalizers"].as_array().is_some_and(|list| !list.is_empty()) {
            let finalizers = value["spec"]["finalizers"].as_array().cloned().unwrap_or_default();
            let rest: Vec<Value> =
                finalizers.into_iter().filter(|finalizer| finalizer != "kubernetes").collect();
            value["spec"]["finalizers"] = rest.into();
            if let Some(kind) = api.kinds.find("", "v1", "namespaces").cloned() {
                write::put(api, &kind, &name, value);
                changed = true;
            }
        }
    }
    changed
}

/// Deletes what has no owner any more, and lets objects go that wait for those below them.
fn collect(api: &mut Api, now: &str) -> bool {
    let owned = objects(api, |_, object| !object.owners.is_empty());
    let waiting = objects(api, |_, object| object.is_deleting);
    if owned.is_empty() && waiting.is_empty() {
        return false;
    }
    let uids: HashSet<Box<str>> = api.store.all().map(|(_, _, object)| object.uid.clone()).collect();
    let has = |object: &Value, name: &str| {
        object["metadata"]["finalizers"].as_array().is_some_and(|list| list.iter().any(|known| known == name))
    };
    let (mut foreground, mut changed) = (HashSet::new(), false);
    for (kind, key, object) in &waiting {
        let Ok(value) = versions::read(kind, object) else { continue };
        let below = || owned.iter().filter(|(_, _, child)| child.owners.contains(&object.uid));
        if has(&value, "orphan") {
            for (kind, key, child) in below() {
                let Ok(mut child_value) = versions::read(kind, child) else { continue };
                without_owners(&mut child_value, |uid| uid == &*object.uid);
                write::put_as_collector(api, kind, key, child_value, now);
            }
            release(api, kind, key, value, "orphan");
            changed = true;
        } else if has(&value, "foregroundDeletion") {
            foreground.insert(object.uid.clone());
            let blocks = below().any(|(_, _, child)| {
                let child = child.value();
                let owners = child["metadata"]["ownerReferences"].as_array().cloned().unwrap_or_default();
                owners.iter().any(|owner| owner["uid"] == *object.uid && owner["blockOwnerDeletion"] == true)
            });
            if !blocks {
                release(api, kind, key, value, "foregroundDeletion");
                changed = true;
            }
        }
    }
    for (kind, key, object) in owned {
        let Some(object) =
            api.store.get(&kind.storage(), &key).cloned().filter(|now| now.version == object.version)
        else {
            continue;
        };
        let solid = object.owners.iter().any(|uid| uids.contains(uid) && !foreground.contains(uid));
        let dangling = object.owners.iter().any(|uid| !uids.contains(uid));
        if solid {
            if dangling {
                let Ok(mut value) = versions::read(&kind, &object) else { continue };
                without_owners(&mut value, |uid| !uids.contains(uid));
                write::put_as_collector(api, &kind, &key, value, now);
                changed = true;
            }
        } else if !object.is_deleting {
            let waits = object.owners.iter().any(|uid| foreground.contains(uid));
            let policy = if waits { "Foreground" } else { "Background" };
            let has_children = objects(api, |_, child| child.owners.contains(&object.uid));
            let policy = if has_children.is_empty() { "Background" } else { policy };
            let options = DeleteOptions::with_propagation(&object.uid, policy);
            changed |= write::delete_one(api, &kind, &key, &object, &options, now).is_ok();
        }
    }
    changed
}

fn without_owners(value: &mut Value, gone: impl Fn(&str) -> bool) {
    let owners = value["metadata"]["ownerReferences"].as_array().cloned().unwrap_or_default();
    let rest: Vec<Value> =
        owners.into_iter().filter(|owner| !owner["uid"].as_str().is_some_and(&gone)).collect();
    if let Some(meta) = value["metadata"].as_object_mut() {
        if rest.is_empty() {
            meta.remove("ownerReferences");
        } else {
            meta.insert("ownerReferences".to_owned(), rest.into());
        }
    }
}

fn release(api: &mut Api, kind: &Arc<Kind>, key: &str, mut value: Value, finalizer: &str) {
    let list = value["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
    let rest: Vec<Value> = list.into_iter().filter(|known| known != finalizer).collect();
    if let Some(meta) = value["metadata"].as_object_mut() {
        if rest.is_empty() {
            meta.remove("finalizers");
        } else {
            meta.insert("finalizers".to_owned(), rest.into());
        }
    }
    write::put(api, kind, key, value);
}
