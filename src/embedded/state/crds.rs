//! The kinds that CRDs define are served.

use jiff::Timestamp;
use serde_json::Value;

use super::State;
use crate::crd::{CRDS, Custom, Hook, Schema};
use crate::model::{Kind, Names, Object, Source, meta};

/// Follows a change of a CRD.
pub(crate) fn changed(state: &mut State, kind: &Kind, object: Option<&Object>) {
    if kind.group != "apiextensions.k8s.io" {
        return;
    }
    if let Some(object) = object {
        let object = &object.parsed().value;
        let name = meta::text(object, "name").to_owned();
        // A CRD that is not served yet is served once the server learns of it.
        if state.lateness.is_none() || state.kinds.stored(&name).is_some() {
            serve(state, &name, object);
        }
    } else {
        let gone: Vec<(String, String)> = state
            .kinds
            .iter()
            .filter(|kind| kind.custom().is_some())
            .filter(|kind| state.store.get(CRDS, &format!("/{}", kind.resource())).is_none())
            .map(|kind| (kind.group.clone(), kind.plural.clone()))
            .collect();
        for (group, plural) in gone {
            state.kinds.remove(&group, &plural);
        }
    }
}

impl State {
    /// Notes when what has changed is known, and lets the server know what it does by now.
    pub(crate) fn inform(&mut self, now: Timestamp) {
        let crds = self.lateness.as_mut().map(|lateness| lateness.follow(&self.store, now));
        crds.iter().flatten().for_each(|key| serve_known(self, key));
    }
}

/// Serves a CRD of which the server knows now, unless it is served already.
fn serve_known(state: &mut State, key: &str) {
    let name = key.trim_start_matches('/');
    if state.kinds.stored(name).is_none()
        && let Some(crd) = state.store.get(CRDS, key).map(|object| object.parsed())
    {
        serve(state, name, &crd.value);
    }
}

/// Serves all CRDs again.
pub(crate) fn serve_all(state: &mut State) {
    let all: Vec<Value> = state.store.range(CRDS, "", None).map(|(_, crd)| crd.bare()).collect();
    for crd in all {
        serve(state, meta::text(&crd, "name"), &crd);
    }
}

/// Serves the versions of a CRD that is established, and keeps the others.
fn serve(state: &mut State, name: &str, crd: &Value) {
    let conditions = crd["status"]["conditions"].as_array().into_iter().flatten();
    let established = conditions.clone().any(|c| c["type"] == "Established" && c["status"] == "True");
    let spec = &crd["spec"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (group, plural) = (text(&spec["group"]), text(&spec["names"]["plural"]));
    if !established {
        state.kinds.remove(&group, &plural);
        return;
    }
    let old = state.kinds.iter().find(|kind| kind.group == group && kind.plural == plural).cloned();
    let is_deleting = !crd["metadata"]["deletionTimestamp"].is_null();
    // Objects that exist were stored by other schemas, unless nothing about the versions changed.
    let has_objects = state.store.range(name, "", None).next().is_some();
    state.kinds.remove(&group, &plural);
    let hook = state.converter.as_ref().filter(|_| spec["conversion"]["strategy"] == "Webhook").and_then(
        |converter| {
            let mut versions = spec["versions"].as_array().into_iter().flatten();
            let storage = versions.find(|version| version["storage"] == true);
            let storage = storage.map(|version| text(&version["name"])).unwrap_or_default();
            Some(Hook { webhook: converter.webhook(crd)?, storage })
        },
    );
    for version in spec["versions"].as_array().into_iter().flatten() {
        let before = old.as_ref().and_then(|old| old.custom());
        let schema = Schema::of(&version["schema"]["openAPIV3Schema"]);
        let same = before.is_some_and(|custom| custom.is_first && custom.schema.json == schema.json);
        let custom = Custom::new(crd, version, schema, !has_objects || same, hook.clone());
        let mut verbs =
            vec!["delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"];
        if is_deleting {
            verbs.retain(|verb| *verb != "create");
        }
        let subresources = ["status", "scale"];
        let subresources = subresources.into_iter().filter(|sub| version["subresources"][sub].is_object());
        let kind = Kind {
            group: group.clone(),
            version: text(&version["name"]),
            plural: plural.clone(),
            kind: text(&spec["names"]["kind"]),
            namespaced: spec["scope"] == "Namespaced",
            verbs: verbs.into_iter().map(str::to_owned).collect(),
            subresources: subresources.map(str::to_owned).collect(),
            names: Names::of(&group, version["name"].as_str().unwrap_or_default(), &plural),
            source: Source::Custom(custom.into()),
        };
        if version["served"] == true {
            state.kinds.insert(kind);
        } else {
            state.kinds.insert_unserved(kind);
        }
    }
}
