//! Controllers that every cluster has: namespaces and the garbage collector.

mod namespaces;

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::api::{Api, key};
use crate::deletion::{self, DeleteOptions};
use crate::facts::ROOT_CA;
use crate::kinds::Kind;
use crate::store::{Object, Place};
use crate::work::Active;
use crate::{stored, versions, write};

pub(crate) use namespaces::{due, terminate, terminate_all};

type Stored = (Arc<Kind>, Arc<str>, Arc<Object>);

/// Gives namespaces a `ServiceAccount` and the certificates of the server, as kube-controller-manager does.
pub(crate) fn accounts<'a>(api: &mut Api, namespaces: impl IntoIterator<Item = &'a str>, now: Timestamp) {
    const AGENT: &str = "kube-controller-manager";
    const DESCRIPTION: &str = "kubernetes.io/description";
    if api.controllers.active == Active::Server {
        return;
    }
    let data = json!({"ca.crt": api.root_ca});
    let text = format!("\"data\":{data}");
    for namespace in namespaces {
        if api.store.get("namespaces", &key("", namespace)).is_none_or(|found| found.is_deleting) {
            continue;
        }
        let path = format!("/api/v1/namespaces/{namespace}");
        if api.store.get("serviceaccounts", &key(namespace, "default")).is_none() {
            let account = json!({"metadata": {"name": "default"}});
            api.write_as(AGENT, "POST", &format!("{path}/serviceaccounts"), account, now);
        }
        let known = api.store.get("configmaps", &key(namespace, ROOT_CA)).cloned();
        if known.as_ref().is_some_and(|map| map.json.contains(&text) && map.json.contains(DESCRIPTION)) {
            continue;
        }
        let mut map = known.as_ref().map_or_else(|| json!({"metadata": {"name": ROOT_CA}}), |map| map.bare());
        map["data"] = data.clone();
        map["metadata"]["annotations"][DESCRIPTION] = "Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints such as the internal service IP or kubernetes.default.svc. No other usage is guaranteed across distributions of Kubernetes clusters.".into();
        let (method, name) =
            if known.is_some() { ("PUT", format!("/{ROOT_CA}")) } else { ("POST", String::new()) };
        api.write_as(AGENT, method, &format!("{path}/configmaps{name}"), map, now);
    }
}

fn has_finalizer(object: &Value, name: &str) -> bool {
    object["metadata"]["finalizers"].as_array().is_some_and(|list| list.iter().any(|known| known == name))
}

/// Deletes what has no owner any more, and lets objects go that wait for those below them, among those that changed.
pub(crate) fn collect(api: &mut Api, changed: &BTreeSet<Place>, now: &str) {
    for place in changed {
        finish(api, place, now);
    }
    for place in changed {
        check_owners(api, place, now);
    }
}

fn stored(api: &Api, (resource, key): &Place) -> Option<Stored> {
    let object = api.store.get(resource, key)?.clone();
    Some((api.kinds.stored(resource)?.clone(), key.clone(), object))
}

/// Lets an object go that is being deleted, once those below it are orphans or gone.
fn finish(api: &mut Api, place: &Place, now: &str) {
    let Some((kind, key, object)) = stored(api, place).filter(|(_, _, object)| object.is_deleting) else {
        return;
    };
    let Ok(value) = versions::read(&kind, &object) else { return };
    let below: Vec<Place> = api.store.below(&object.uid).cloned().collect();
    if has_finalizer(&value, "orphan") {
        for (kind, key, child) in below.iter().filter_map(|place| stored(api, place)).collect::<Vec<_>>() {
            let Ok(mut child) = versions::read(&kind, &child) else { continue };
            without_owners(&mut child, |uid| uid == &*object.uid);
            write::put_as_controller(api, &kind, &key, child, "", now);
        }
        release(api, &kind, &key, value, "orphan");
    } else if has_finalizer(&value, "foregroundDeletion") {
        let blocks = below.iter().filter_map(|place| stored(api, place)).any(|(_, _, child)| {
            let child = &child.parsed().value;
            let owners = child["metadata"]["ownerReferences"].as_array().cloned().unwrap_or_default();
            owners.iter().any(|owner| owner["uid"] == *object.uid && owner["blockOwnerDeletion"] == true)
        });
        if !blocks {
            release(api, &kind, &key, value, "foregroundDeletion");
        }
    }
}

/// Whether the object with a uid waits until those below it are gone.
fn is_foreground(api: &Api, uid: &str) -> bool {
    let object = api.store.place(uid).and_then(|(resource, key)| api.store.get(resource, key));
    object.is_some_and(|object| object.is_deleting && object.json.contains("\"foregroundDeletion\""))
}

/// Deletes an object whose owners are gone or being deleted with all below them.
fn check_owners(api: &mut Api, place: &Place, now: &str) {
    let Some((kind, key, object)) = stored(api, place).filter(|(_, _, object)| !object.owners.is_empty())
    else {
        return;
    };
    let exists = |uid: &str| api.store.place(uid).is_some();
    let waits = object.owners.iter().any(|uid| is_foreground(api, uid));
    let is_solid = object.owners.iter().any(|uid| exists(uid) && !is_foreground(api, uid));
    if is_solid {
        let gone: Vec<Box<str>> = object.owners.iter().filter(|uid| !exists(uid)).cloned().collect();
        if !gone.is_empty() {
            let Ok(mut value) = versions::read(&kind, &object) else { return };
            without_owners(&mut value, |uid| gone.iter().any(|gone| **gone == *uid));
            write::put_as_controller(api, &kind, &key, value, "", now);
        }
    } else if !object.is_deleting {
        let has_children = api.store.below(&object.uid).next().is_some();
        let policy = if waits && has_children { "Foreground" } else { "Background" };
        let options = DeleteOptions::with_propagation(&object.uid, policy);
        let _ = deletion::delete_one(api, &kind, &key, &object, &options, now);
    }
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
    stored::put(api, kind, key, value);
}
