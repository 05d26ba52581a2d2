//! `kubectl apply` and `kubectl patch` without a process, which would cost a tenth of a second and a download
//! of the schemas each.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, PoisonError};

use http::Request;
use serde_json::{Map, Value, json};

use super::eventually;
use super::ext::{Kind, LONG, Scene, read};

/// The annotation in which `kubectl apply` keeps the manifest.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

impl Scene {
    /// Does the same as `kubectl apply -f -`.
    pub async fn apply(&self, manifests: &str) {
        // A text of several documents is left to kubectl.
        if let Ok(manifest) = operetta::yaml::from_str(manifests)
            // kubectl has its own rules for null values.
            && !has_null(&manifest)
            && self.apply_in_process(&manifest).await
        {
            return;
        }
        // A server names a new kind in its discovery up to seconds after it serves it.
        eventually("kubectl apply", LONG, async || {
            match self.kubectl_input(&["apply", "-f", "-"], manifests).await {
                Err(error) if error.contains("no matches for kind") => Err(error),
                applied => Ok(applied.unwrap_or_else(|error| panic!("{error}"))),
            }
        })
        .await;
    }

    /// Applies custom resources, and objects that do not exist yet, as kubectl does. Returns false for
    /// everything else and on any error, so that kubectl does it: applying again is harmless.
    async fn apply_in_process(&self, manifest: &Value) -> bool {
        let items = match manifest["items"].as_array() {
            Some(items) => items.as_slice(),
            None => std::slice::from_ref(manifest),
        };
        for item in items {
            if self.apply_one(item).await.is_none() {
                return false;
            }
        }
        true
    }

    async fn apply_one(&self, manifest: &Value) -> Option<()> {
        let meta = &manifest["metadata"];
        let (kind, is_namespaced) = served(&self.client(), manifest).await?;
        let namespace = is_namespaced.then_some(self.namespace());
        if meta.get("namespace").is_some_and(|own| own.as_str() != namespace) {
            return None;
        }
        let name = meta["name"].as_str()?;
        let mut modified = manifest.clone();
        let meta = modified["metadata"].as_object_mut()?;
        if let Some(namespace) = namespace {
            meta.insert("namespace".into(), namespace.into());
        }
        meta.entry("annotations").or_insert_with(|| json!({}));
        let text = format!("{modified}\n");
        modified["metadata"]["annotations"][LAST_APPLIED] = text.into();
        let query = "fieldManager=kubectl-client-side-apply&fieldValidation=Strict";
        let Some(current) = read(&self.client(), &kind.path(namespace, name)).await else {
            let path = kind.path(namespace, "");
            let request = Request::post(format!("{}?{query}", path.trim_end_matches('/')));
            return self.send(request.header("content-type", "application/json"), &modified).await.map(drop);
        };
        // kubectl patches lists in built-in kinds by rules of their own.
        let is_custom = kind.group().contains("operetta.dev") || kind.group().ends_with("example.org");
        if !is_custom && has_list(manifest) {
            return None;
        }
        let last = current["metadata"]["annotations"][LAST_APPLIED].as_str().unwrap_or("{}");
        let patch = three_way(&serde_json::from_str(last).ok()?, &modified, &current);
        if patch.as_object().is_some_and(Map::is_empty) {
            return Some(());
        }
        self.send_patch(kind, name, namespace, ("merge", query), &patch).await.map(drop)
    }

    /// Does the same as `kubectl patch --type=TYPE`.
    pub async fn patch(&self, kind: Kind, name: &str, how: &str, patch: &Value) {
        let namespace = self.namespace();
        let before = read(&self.client(), &kind.path(Some(namespace), name)).await;
        let query = "fieldManager=kubectl-patch&fieldValidation=Strict";
        let after = self.send_patch(kind, name, Some(namespace), (how, query), patch).await;
        if let (Some(before), Some(after)) = (before, after) {
            let version = |o: &Value| o["metadata"]["resourceVersion"].clone();
            // The patch that removes the last finalizer deletes the object, which then has no later version.
            let is_ended = !before["metadata"]["deletionTimestamp"].is_null();
            assert!(is_ended || version(&before) != version(&after), "{patch} does nothing");
        } else {
            let how = format!("--type={how}");
            let plural = kind.resource_name();
            let told = self.kubectl(&["patch", &plural, name, &how, "-p", &patch.to_string()]).await;
            assert!(!told.contains("no change"), "{patch} does nothing: {told}");
        }
    }

    async fn send_patch(
        &self,
        kind: Kind,
        name: &str,
        namespace: Option<&str>,
        (how, query): (&str, &str),
        patch: &Value,
    ) -> Option<Value> {
        let how = match how {
            "strategic" => "strategic-merge-patch",
            "json" => "json-patch",
            _ => "merge-patch",
        };
        let request = Request::patch(format!("{}?{query}", kind.path(namespace, name)));
        self.send(request.header("content-type", format!("application/{how}+json")), patch).await
    }

    async fn send(&self, request: http::request::Builder, body: &Value) -> Option<Value> {
        let request = request.body(body.to_string().into_bytes()).ok()?;
        self.client().request::<Value>(request).await.ok()
    }
}

/// The kind of a manifest, and whether its objects are in namespaces, as discovery says.
pub(super) async fn served(client: &kube::Client, manifest: &Value) -> Option<(Kind, bool)> {
    type Served = HashMap<(String, String), (Kind, bool)>;
    static SERVED: LazyLock<Mutex<Served>> = LazyLock::new(Mutex::default);
    let (api, kind) = (manifest["apiVersion"].as_str()?.to_owned(), manifest["kind"].as_str()?.to_owned());
    let key = (api.clone(), kind.clone());
    let known = SERVED.lock().unwrap_or_else(PoisonError::into_inner).get(&key).copied();
    if known.is_some() {
        return known;
    }
    let root = if api.contains('/') { "apis" } else { "api" };
    let list = read(client, &format!("/{root}/{api}")).await?;
    let is_it = |r: &&Value| r["kind"] == *kind && r["name"].as_str().is_some_and(|name| !name.contains('/'));
    let found = list["resources"].as_array()?.iter().find(is_it)?;
    let kind = Kind::of(api, found["name"].as_str()?.to_owned());
    let served = (kind, found["namespaced"].as_bool()?);
    SERVED.lock().unwrap_or_else(PoisonError::into_inner).insert(key, served);
    Some(served)
}

/// Does the same as `kubectl apply --server-side --force-conflicts -f -`. Returns false on any error, so that kubectl does it and says
/// why: applying again is harmless.
pub(super) async fn apply_server_side(client: &kube::Client, objects: &[Value]) -> bool {
    for object in objects {
        if apply_one_server_side(client, object).await.is_none() {
            return false;
        }
    }
    true
}

async fn apply_one_server_side(client: &kube::Client, object: &Value) -> Option<()> {
    let (kind, is_namespaced) = served(client, object).await?;
    let meta = &object["metadata"];
    let namespace = is_namespaced.then(|| meta["namespace"].as_str().unwrap_or("default"));
    let path = kind.path(namespace, meta["name"].as_str()?);
    let request = Request::patch(format!("{path}?fieldManager=kubectl&force=true&fieldValidation=Strict"))
        .header("content-type", "application/apply-patch+yaml")
        .body(object.to_string().into_bytes());
    client.request::<Value>(request.ok()?).await.ok().map(drop)
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

/// The merge patch of `kubectl apply`: what is new or differs from the live object, minus what only the last
/// manifest had.
fn three_way(last: &Value, modified: &Value, current: &Value) -> Value {
    let mut patch = Map::new();
    for (key, value) in modified.as_object().into_iter().flatten() {
        match (value, current.get(key)) {
            (Value::Object(_), Some(live @ Value::Object(_))) => {
                let inner = three_way(&last[key], value, live);
                if inner.as_object().is_some_and(|inner| !inner.is_empty()) {
                    patch.insert(key.clone(), inner);
                }
            }
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
    let patch = three_way(&last, &modified, &current);
    assert_eq!(patch, json!({"spec": {"a": 1, "b": null, "c": {"d": null, "e": [1]}}}));
    assert_eq!(three_way(&modified, &modified, &modified), json!({}));
}
