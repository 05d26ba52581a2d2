//! The I/O of a watch for refs: discovery, list and watch, the lists of those that came late.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, TryStreamExt};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use kube::api::ListParams;
use kube::core::PartialObjectMeta;
use kube::runtime::watcher::{self, Event};
use serde_json::{Value, json};
use tokio::task::AbortHandle;
use tokio::time::Instant;
use tracing::{debug, warn};

use super::source::{Name, Object, SourceKey};
use crate::children::{Blind, Referred, Select, Want, kept};
use crate::cluster::{ApiKind, CallError, Class, scattered};
use crate::manager::Shared;
use crate::manager::hub::{REDISCOVER, REDISCOVER_FIRST, cause, explain, failed, map_event, supervise};
use crate::manager::lasting;
use crate::manager::raw::Raw;
use crate::manager::watch::Watch;
use crate::readiness;

/// How long a first list may take until what reads it is told that it waits.
const FIRST_LIST: Duration = Duration::from_secs(10);
/// How long until a list of a latecomer is tried again: doubled each time, up to the last. There may be many.
const AGAIN_FIRST: Duration = Duration::from_secs(2);
const AGAIN_LAST: Duration = Duration::from_secs(60);

/// Starts to watch.
pub(super) fn spawn(shared: &Arc<Shared>, key: &SourceKey, generation: u64) -> (Arc<Watch>, AbortHandle) {
    let (shared, key) = (Arc::clone(shared), key.clone());
    let watch = Arc::new(Watch::new(format!("refs {key}")));
    let task = supervise(Arc::clone(&watch), None, move |watch| {
        let watching = Watching { shared: Arc::clone(&shared), key: key.clone(), generation };
        async move { watching.run(&watch).await }
    });
    (watch, task.abort_handle())
}

/// Lists what is wanted of a watch that has passed it by.
pub(super) fn fill(shared: &Arc<Shared>, key: &SourceKey, generation: u64, want: &Want) {
    let watching = Watching { shared: Arc::clone(shared), key: key.clone(), generation };
    let want = want.clone();
    tokio::spawn(async move { watching.fill(&want).await });
}

struct Watching {
    shared: Arc<Shared>,
    key: SourceKey,
    generation: u64,
}

impl Watching {
    fn change(&self, change: impl FnOnce(&mut super::Source) -> HashSet<super::InstanceKey>) -> bool {
        self.shared.refs.change(&self.shared, (&self.key, self.generation), change)
    }

    async fn run(&self, watch: &Watch) {
        let mut wait = REDISCOVER;
        let mut was_lost = false;
        loop {
            let mut nudged = std::pin::pin!(self.shared.hub.nudged());
            nudged.as_mut().enable();
            let SourceKey { api_version, kind, .. } = &self.key;
            let (kinds, client) = (&self.shared.kinds, self.shared.clients.own().client());
            // Children may be of this kind, too. Their own watch says when it is gone: forgotten here, it would be
            // missing for instances that nobody wakes when it is found again.
            let found = if was_lost {
                kinds.ask(&client, api_version, kind).await
            } else {
                kinds.find(&client, api_version, kind).await
            };
            match found {
                Ok(Some(found)) => {
                    if let Err(error) = self.watch(&found, watch).await {
                        watch.failed(&error.to_string());
                        self.change(|source| source.lose(blind(&error)));
                    }
                    was_lost = true;
                }
                Ok(None) => {
                    watch.failed(&format!("the API server does not serve {kind} of {api_version}"));
                    self.change(|source| source.lose(Blind::KindMissing));
                }
                Err(error) => {
                    let blind = blind(&error);
                    failed(&self.shared, watch, &format!("{kind}.{api_version}"), &error.to_string());
                    self.change(|source| source.lose(blind));
                }
            }
            tokio::select! {
                () = tokio::time::sleep(wait) => wait = wait.saturating_mul(2).min(REDISCOVER),
                () = nudged => wait = REDISCOVER_FIRST,
            }
        }
    }

    /// Watches until the kind is not served any more.
    async fn watch(&self, kind: &ApiKind, watch: &Watch) -> Result<(), CallError> {
        let mut config = watcher::Config::default();
        match &self.key.select {
            Some(Select::Name(name)) => config = config.fields(&Select::field_selector(name)),
            Some(Select::Labels(selector)) => config = config.labels(&selector.to_string()),
            None => {}
        }
        let cluster = self.shared.clients.own();
        if self.key.keep.content {
            let stream = lasting::watch(cluster, self.api::<Raw>(kind)?, config)
                .map_ok(|event| map_event(&event, |raw| self.object(&raw.metadata, Some(&raw.body))));
            self.consume(watch, stream).await;
        } else {
            let stream = lasting::watch(cluster, self.api::<PartialObjectMeta<Raw>>(kind)?, config)
                .map_ok(|event| map_event(&event, |partial| self.object(&partial.metadata, None)));
            self.consume(watch, stream).await;
        }
        Ok(())
    }

    fn api<K>(&self, kind: &ApiKind) -> Result<Api<K>, CallError>
    where
        K: kube::Resource<DynamicType = kube::core::ApiResource, Scope = kube::core::DynamicResourceScope>,
    {
        self.shared.clients.own().api(kind, self.key.namespace.as_deref())
    }

    async fn consume(
        &self,
        watch: &Watch,
        stream: impl futures::Stream<Item = watcher::Result<Event<Object>>> + Send,
    ) {
        let mut stream = std::pin::pin!(stream);
        let patience = Instant::now() + FIRST_LIST;
        let mut patient = true;
        loop {
            let event = if patient {
                tokio::select! {
                    event = stream.next() => event,
                    () = tokio::time::sleep_until(patience) => {
                        patient = false;
                        let why = format!("no answer within {} s", FIRST_LIST.as_secs());
                        self.change(|source| source.falter(why));
                        continue;
                    }
                }
            } else {
                stream.next().await
            };
            match event {
                None => return,
                Some(Ok(event)) => {
                    let listed = matches!(event, Event::InitDone);
                    self.on_event(event);
                    if listed { watch.listed() } else { watch.event() }
                }
                Some(Err(error)) => {
                    let text = explain(&error);
                    warn!(watch = %watch.name, error = %text, "a watch for refs failed; trying again");
                    let SourceKey { api_version, kind, .. } = &self.key;
                    failed(&self.shared, watch, &format!("{kind}.{api_version}"), &text);
                    let Some(error) = cause(&error) else { continue };
                    if error.class == Class::NotFound {
                        self.change(|source| source.lose(Blind::KindMissing));
                        return;
                    }
                    // An expired resourceVersion is no refusal: what was listed is good until the next list.
                    if error.class == Class::Permanent && error.code != 410 {
                        let blind = blind(&error);
                        self.change(|source| source.lose(blind));
                    } else {
                        self.change(|source| source.falter(error.to_string()));
                    }
                }
            }
        }
    }

    fn on_event(&self, event: Event<Object>) {
        self.change(|source| match event {
            Event::Init => {
                source.begin();
                HashSet::new()
            }
            Event::InitApply(object) | Event::Apply(object) => source.put(object),
            Event::Delete(object) => {
                let name: Name = (object.referred.namespace, object.referred.name);
                source.delete(&name, &object.resource_version)
            }
            Event::InitDone => source.end(),
        });
    }

    /// What is kept of an object.
    fn object(&self, metadata: &ObjectMeta, body: Option<&Value>) -> Object {
        let SourceKey { api_version, kind, keep, .. } = &self.key;
        let ready = match body {
            Some(body) => {
                let reports = self.shared.kinds.reports_status(api_version, kind);
                readiness::of_kind(body, reports).is_ready()
            }
            None => metadata.deletion_timestamp.is_none(),
        };
        let made;
        let body = if let Some(body) = body {
            body
        } else {
            let bare = ObjectMeta { managed_fields: None, ..metadata.clone() };
            made = json!({"metadata": bare});
            &made
        };
        Object {
            referred: Referred {
                namespace: metadata.namespace.as_deref().map(Into::into),
                name: metadata.name.as_deref().unwrap_or_default().into(),
                value: Arc::new(kept(api_version, kind, metadata, Some(body), &keep.paths)),
                ready,
            },
            resource_version: metadata.resource_version.as_deref().unwrap_or_default().into(),
            // A watch of their own has no need to look at them again.
            labels: metadata.labels.clone().filter(|_| self.key.select.is_none()),
        }
    }

    async fn fill(&self, want: &Want) {
        let mut wait = AGAIN_FIRST;
        loop {
            match self.list(want).await {
                Ok(objects) => {
                    self.change(|source| source.fill(want, objects));
                    return;
                }
                Err(error) => {
                    debug!(%want, %error, "it cannot be listed; trying again");
                    tokio::time::sleep(error.asked_to_wait().unwrap_or_else(|| scattered(wait))).await;
                    wait = wait.saturating_mul(2).min(AGAIN_LAST);
                }
            }
            // Nobody wants it any more.
            if !self.change(|_| HashSet::new()) {
                return;
            }
        }
    }

    async fn list(&self, want: &Want) -> Result<Vec<Object>, CallError> {
        let SourceKey { api_version, kind, .. } = &self.key;
        let found = self.shared.kinds.find(&self.shared.clients.own().client(), api_version, kind).await?;
        let Some(found) = found else { return Ok(Vec::new()) };
        let params = match &want.select {
            Select::Name(name) => ListParams::default().fields(&Select::field_selector(name)),
            Select::Labels(selector) => ListParams::default().labels(&selector.to_string()),
        };
        let narrow = Self {
            shared: Arc::clone(&self.shared),
            key: SourceKey { namespace: want.namespace.clone(), ..self.key.clone() },
            generation: self.generation,
        };
        let list = narrow.api::<Raw>(&found)?.list(&params).await.map_err(|e| CallError::from_kube(&e))?;
        Ok(list.items.iter().map(|raw| self.object(&raw.metadata, Some(&raw.body))).collect())
    }
}

fn blind(error: &CallError) -> Blind {
    match error.class {
        Class::NotFound => Blind::KindMissing,
        _ if error.code == 403 || error.code == 401 => Blind::Forbidden(error.to_string()),
        _ => Blind::Failed(error.to_string()),
    }
}
