//! The garbage collector.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::Value;

use crate::model::{Kind, Object, versions};
use crate::state::State;
use crate::state::store::Place;
use crate::state::stored::put;
use crate::verbs::delete::{DeleteOptions, delete_one};
use crate::verbs::managers::put_as_controller;

/// An object with a kind of it and its key.
type Found = (Arc<Kind>, Arc<str>, Arc<Object>);

fn has_finalizer(object: &Value, name: &str) -> bool {
    object["metadata"]["finalizers"].as_array().is_some_and(|list| list.iter().any(|known| known == name))
}

/// Deletes what has no owner any more, and lets objects go that wait for those below them, among those that changed.
pub(super) fn collect(state: &mut State, changed: &BTreeSet<Place>, now: &str) {
    for place in changed {
        finish(state, place, now);
    }
    for place in changed {
        check_owners(state, place, now);
    }
}

fn found(state: &State, (resource, key): &Place) -> Option<Found> {
    let object = state.store.get(resource, key)?.clone();
    Some((state.kinds.stored(resource)?.clone(), key.clone(), object))
}

/// Lets an object go that is being deleted, once those below it are orphans or gone.
fn finish(state: &mut State, place: &Place, now: &str) {
    let Some((kind, key, object)) = found(state, place).filter(|(_, _, object)| object.is_deleting) else {
        return;
    };
    let Ok(value) = versions::read(&kind, &object) else { return };
    let below: Vec<Place> = state.store.below(&object.uid).cloned().collect();
    if has_finalizer(&value, "orphan") {
        for (kind, key, child) in below.iter().filter_map(|place| found(state, place)).collect::<Vec<_>>() {
            let Ok(mut child) = versions::read(&kind, &child) else { continue };
            without_owners(&mut child, |uid| uid == &*object.uid);
            put_as_controller(state, &kind, &key, child, "", now);
        }
        release(state, &kind, &key, value, "orphan");
    } else if has_finalizer(&value, "foregroundDeletion") {
        let blocks = below.iter().filter_map(|place| found(state, place)).any(|(_, _, child)| {
            let child = &child.parsed().value;
            let owners = child["metadata"]["ownerReferences"].as_array().cloned().unwrap_or_default();
            owners.iter().any(|owner| owner["uid"] == *object.uid && owner["blockOwnerDeletion"] == true)
        });
        if !blocks {
            release(state, &kind, &key, value, "foregroundDeletion");
        }
    }
}

/// Whether the object with a uid waits until those below it are gone.
fn is_foreground(state: &State, uid: &str) -> bool {
    let object = state.store.place(uid).and_then(|(resource, key)| state.store.get(resource, key));
    object.is_some_and(|object| object.is_deleting && object.json.contains("\"foregroundDeletion\""))
}

/// Deletes an object whose owners are gone or being deleted with all below them.
fn check_owners(state: &mut State, place: &Place, now: &str) {
    let Some((kind, key, object)) = found(state, place).filter(|(_, _, object)| !object.owners.is_empty())
    else {
        return;
    };
    let exists = |uid: &str| state.store.place(uid).is_some();
    let waits = object.owners.iter().any(|uid| is_foreground(state, uid));
    let is_solid = object.owners.iter().any(|uid| exists(uid) && !is_foreground(state, uid));
    if is_solid {
        let gone: Vec<Box<str>> = object.owners.iter().filter(|uid| !exists(uid)).cloned().collect();
        if !gone.is_empty() {
            let Ok(mut value) = versions::read(&kind, &object) else { return };
            without_owners(&mut value, |uid| gone.iter().any(|gone| **gone == *uid));
            put_as_controller(state, &kind, &key, value, "", now);
        }
    } else if !object.is_deleting {
        let has_children = state.store.below(&object.uid).next().is_some();
        let policy = if waits && has_children { "Foreground" } else { "Background" };
        let options = DeleteOptions::with_propagation(&object.uid, policy);
        let _ = delete_one(state, &kind, &key, &object, &options, now);
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

fn release(state: &mut State, kind: &Arc<Kind>, key: &str, mut value: Value, finalizer: &str) {
    let list = value["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
    let rest: Vec<Value> = list.into_iter().filter(|known| known != finalizer).collect();
    if let Some(meta) = value["metadata"].as_object_mut() {
        if rest.is_empty() {
            meta.remove("finalizers");
        } else {
            meta.insert("finalizers".to_owned(), rest.into());
        }
    }
    put(state, kind, key, value);
}
