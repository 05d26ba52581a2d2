//! Detects when instances become Ready by one watch, which is the same for the manager and the bare client.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{ApiResource, DynamicObject};
use kube::runtime::watcher::{self, Event};
use operetta::package::Resource;
use serde_json::Value;
use tokio::sync::{Notify, mpsc};

use crate::Result;
use crate::bare::instance_kind;

/// The timeout for all instances to be Ready; when it expires, something is broken.
const LIMIT: Duration = Duration::from_secs(600);

/// A watch of a namespace's instances.
pub(crate) struct Readiness {
    receiver: mpsc::UnboundedReceiver<(String, Instant)>,
    task: tokio::task::JoinHandle<()>,
}

/// When instances became Ready.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Times {
    /// When the first instance became Ready.
    pub(crate) first: Instant,
    /// When the last instance became Ready.
    pub(crate) last: Instant,
}

impl Readiness {
    /// Starts watching.
    pub(crate) fn watch(client: kube::Client, resource: &Resource, namespace: &str) -> Self {
        let kind: ApiResource = instance_kind(resource).resource();
        let api: Api<DynamicObject> = Api::namespaced_with(client, namespace, &kind);
        let (sender, receiver) = mpsc::unbounded_channel();
        let task = tokio::spawn(async move {
            let mut events = watcher::watcher(api, watcher::Config::default()).boxed();
            while let Some(event) = events.next().await {
                if let Ok(Event::Apply(object) | Event::InitApply(object)) = event
                    && is_ready(&object)
                    && sender.send((object.metadata.name.unwrap_or_default(), Instant::now())).is_err()
                {
                    return;
                }
            }
        });
        Self { receiver, task }
    }

    /// Waits until `count` instances are Ready. Calls `alive` now and then, which fails if that cannot happen
    /// any more.
    pub(crate) async fn all(mut self, count: usize, mut alive: impl FnMut() -> Result<()>) -> Result<Times> {
        let started = Instant::now();
        let mut ready = HashSet::with_capacity(count);
        let mut first = None;
        loop {
            match tokio::time::timeout(Duration::from_millis(500), self.receiver.recv()).await {
                Ok(Some((name, at))) => {
                    ready.insert(name);
                    let first = *first.get_or_insert(at);
                    if ready.len() == count {
                        return Ok(Times { first, last: at });
                    }
                }
                Ok(None) => return Err("the watch of the instances has ended".into()),
                Err(_) => alive()?,
            }
            if started.elapsed() > LIMIT {
                return Err(format!(
                    "{} of {count} instances are Ready after {} s",
                    ready.len(),
                    LIMIT.as_secs()
                )
                .into());
            }
        }
    }
}

impl Drop for Readiness {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A watch of the `ConfigMap`s of a namespace.
pub(crate) struct Changes {
    receiver: mpsc::UnboundedReceiver<(Instant, DynamicObject)>,
    task: tokio::task::JoinHandle<()>,
}

impl Changes {
    /// Starts watching: every later change is seen.
    pub(crate) async fn watch(client: kube::Client, namespace: &str) -> Self {
        let kind = ApiResource::erase::<ConfigMap>(&());
        let api: Api<DynamicObject> = Api::namespaced_with(client, namespace, &kind);
        let (sender, receiver) = mpsc::unbounded_channel();
        let listed = Arc::new(Notify::new());
        let is_listed = Arc::clone(&listed);
        let task = tokio::spawn(async move {
            let mut events = watcher::watcher(api, watcher::Config::default()).boxed();
            while let Some(event) = events.next().await {
                if matches!(event, Ok(Event::InitDone)) {
                    is_listed.notify_one();
                }
                if let Ok(Event::Apply(object)) = event
                    && sender.send((Instant::now(), object)).is_err()
                {
                    return;
                }
            }
        });
        listed.notified().await;
        Self { receiver, task }
    }

    /// Waits until `holds` is true of the object with that name. Returns when.
    pub(crate) async fn until(
        &mut self,
        name: &str,
        holds: impl Fn(&DynamicObject) -> bool,
    ) -> Result<Instant> {
        let search = async {
            loop {
                match self.receiver.recv().await {
                    Some((at, object)) if object.metadata.name.as_deref() == Some(name) && holds(&object) => {
                        return Ok(at);
                    }
                    Some(_) => {}
                    None => return Err("the watch of the ConfigMaps has ended"),
                }
            }
        };
        let found = tokio::time::timeout(Duration::from_secs(60), search).await;
        Ok(found.map_err(|_| format!("{name} is not put right"))??)
    }
}

impl Drop for Changes {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Whether an instance is Ready at its newest generation.
fn is_ready(object: &DynamicObject) -> bool {
    let status = &object.data["status"];
    let current = status["observedGeneration"].as_i64() == object.metadata.generation;
    let conditions = status["conditions"].as_array().map_or(&[][..], Vec::as_slice);
    let holds = |c: &Value| c["type"] == "Ready" && c["status"] == "True";
    current && conditions.iter().any(holds)
}
