//! A watch that records the states of an object.

use std::sync::{Arc, Mutex, PoisonError};

use crate::support::{LONG, Scene, eventually};
use futures::StreamExt;
use kube::Api;
use kube::api::{ApiResource, DynamicObject};
use kube::runtime::watcher::{self, Event};
use operetta::readiness::{Readiness, needs_status, of, of_custom};
use serde_json::{Value, json};

/// An object whose states are recorded: `Ready`, `Terminating`, or the reason why it is not ready, with a `!`
/// before the reason of a failure.
pub(super) struct Record {
    what: String,
    states: Arc<Mutex<Vec<String>>>,
    watch: tokio::task::JoinHandle<()>,
}

impl Drop for Record {
    fn drop(&mut self) {
        self.watch.abort();
    }
}

fn state(object: &Value, custom: Option<bool>) -> String {
    let readiness = custom.map_or_else(|| of(object), |has_status| of_custom(object, has_status));
    let (api, kind) = (object["apiVersion"].as_str().unwrap_or_default(), &object["kind"]);
    let group = api.split_once('/').map_or("", |(group, _)| group);
    if custom.is_none() && !needs_status(group, kind.as_str().unwrap_or_default()) {
        let metadata = json!({"apiVersion": api, "kind": kind, "metadata": object["metadata"]});
        if of(&metadata) != readiness {
            return format!("not told by metadata: {readiness:?}");
        }
    }
    match readiness {
        Readiness::Ready => "Ready".to_owned(),
        Readiness::Terminating => "Terminating".to_owned(),
        Readiness::NotReady { reason, .. } => reason,
        Readiness::Failed { reason, .. } => format!("!{reason}"),
    }
}

impl Record {
    /// Watches an object that does not exist yet. `custom` says for a custom kind whether it has a status
    /// subresource.
    pub(super) fn of(
        scene: &Scene,
        (api, kind, plural): (&str, &str, &str),
        namespaced: bool,
        name: &str,
        custom: Option<bool>,
    ) -> Self {
        let (group, version) = api.split_once('/').unwrap_or(("", api));
        let resource = ApiResource {
            group: group.into(),
            version: version.into(),
            api_version: api.into(),
            kind: kind.into(),
            plural: plural.into(),
        };
        let objects: Api<DynamicObject> = if namespaced {
            Api::namespaced_with(scene.client(), scene.namespace(), &resource)
        } else {
            Api::all_with(scene.client(), &resource)
        };
        let states: Arc<Mutex<Vec<String>>> = Arc::default();
        let seen = Arc::clone(&states);
        let (api, kind) = (api.to_owned(), kind.to_owned());
        let what = format!("{kind} {name}");
        let config = watcher::Config::default().fields(&format!("metadata.name={name}"));
        let watch = tokio::spawn(async move {
            let mut events = kube::runtime::watcher(objects, config).boxed();
            while let Some(event) = events.next().await {
                let state = match event {
                    Ok(Event::Apply(object) | Event::InitApply(object)) => {
                        let mut object = serde_json::to_value(object).expect("JSON");
                        object["apiVersion"] = api.as_str().into();
                        object["kind"] = kind.as_str().into();
                        state(&object, custom)
                    }
                    Ok(Event::Delete(_)) => "gone".to_owned(),
                    Ok(Event::InitDone) => "watching".to_owned(),
                    _ => continue,
                };
                let mut states = seen.lock().unwrap_or_else(PoisonError::into_inner);
                if states.last() != Some(&state) {
                    states.push(state);
                }
            }
        });
        Self { what, states, watch }
    }

    pub(super) fn states(&self) -> Vec<String> {
        self.states.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until the watch is open, so that no state is missed.
    pub(super) async fn watching(&self) {
        self.until("watching").await;
    }

    pub(super) async fn until(&self, last: &str) {
        eventually(&format!("{}: {last}", self.what), LONG, async || {
            let states = self.states();
            if states.last().is_some_and(|state| state == last) { Ok(()) } else { Err(format!("{states:?}")) }
        })
        .await;
    }

    /// Waits until the object is in state `last`, and checks that it had no states in between except `by`.
    pub(super) async fn comes_to(&self, last: &str, by: &[&str]) {
        self.until(last).await;
        let states = self.states();
        let way = &states[1..states.len() - 1];
        assert!(way.iter().all(|state| by.contains(&state.as_str())), "{}: {states:?}", self.what);
        eprintln!("{}: {}", self.what, states[1..].join(", "));
    }

    /// Clears the recorded states before the next change.
    pub(super) fn again(&self) {
        *self.states.lock().unwrap_or_else(PoisonError::into_inner) = vec!["watching".to_owned()];
    }
}
