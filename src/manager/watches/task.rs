//! The task of one watch: it finds the kind, lists and watches, hands over what comes ([`events`]), and marks the watch
//! degraded or unavailable when that fails.

mod events;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::BoxStream;
use kube::api::ListParams;
use kube::core::PartialObjectMeta;
use kube::runtime::watcher::{self, Event};
use tokio::time::timeout_at;
use tracing::{debug, info, warn};

use super::Watches;
use super::key::{Projection, WatchKey};
use super::read_objects::{Object, ReadObjects};
use super::resilient::{self, cause, explain, is_expired};
use super::watch::{Watch, WatchState};
use crate::api::{ApiKind, CallError, Class};
use crate::backoff::{Backoff, Retry};
use crate::children::{ReadError, ResourceSelector, Select};
use crate::clock::Instant;
use crate::cluster::{Cluster, call_error};
use crate::field_selector;
use crate::manager::index::InstanceKey;
use crate::manager::metrics::OfKind;
use crate::manager::raw::Raw;
use crate::readiness;

/// The wait between discovery requests for a kind that is not served. A changed CRD of its group resets it.
const DISCOVERY: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(10));
/// How long the first list of a ref may take before its readers report that they wait.
const FIRST_LIST: Duration = Duration::from_secs(10);
/// The wait before the list for a late selector is tried again. There may be many.
const LATECOMER: Backoff = Backoff::new(Duration::from_secs(2), Duration::from_secs(60));

/// The events of a watch.
type Events = BoxStream<'static, watcher::Result<Event<Raw>>>;

/// The task of one watch.
pub(super) struct Task {
    pub(super) watches: Arc<Watches>,
    pub(super) key: WatchKey,
    pub(super) watch: Arc<Watch>,
}

/// What the server serves of a kind.
enum Discovered {
    Served(Arc<ApiKind>),
    /// The kind is served in this version instead of the requested one.
    OtherVersion(Arc<ApiKind>),
    NotServed,
}

impl Task {
    /// Watches until the task is aborted.
    pub(super) async fn run(&self) {
        let WatchKey { gvk, .. } = &self.key;
        // What the manager itself installs is served soon after; a CRD of anything else is an event.
        let is_installed = matches!(self.key.projection, Projection::Owned(_));
        let mut retry = if is_installed { Retry::new(DISCOVERY) } else { Retry::exhausted(DISCOVERY) };
        let mut was_served = false;
        loop {
            // The notification is enabled first, so that a CRD that appears during the discovery request is
            // not missed.
            let mut nudged = std::pin::pin!(self.watches.discover.notified());
            nudged.as_mut().enable();
            match self.discover(was_served).await {
                Ok(Discovered::Served(_)) if self.watches.is_misplaced(&self.key) => {
                    // A task of its own places the watches: it closes this one, which must not wait for its
                    // own end.
                    let watches = Arc::clone(&self.watches);
                    tokio::spawn(async move { watches.place_children() });
                }
                Ok(Discovered::Served(found)) => {
                    let lost = match self.list_and_watch(&found, &WatchState::Watching).await {
                        Ok(()) if self.is_ref() => ReadError::KindMissing,
                        // Until discovery finds it again, it is neither served nor known to be gone: its objects may
                        // be there in another version.
                        Ok(()) => ReadError::Failed(format!("the API server has stopped serving {gvk}")),
                        Err(error) => self.failed(&error, error.to_string()),
                    };
                    if self.is_child() {
                        self.watches.store.kinds.forget(gvk);
                    }
                    self.mark_unavailable(lost);
                    was_served = true;
                    retry.reset();
                }
                Ok(Discovered::OtherVersion(found)) => {
                    self.watch_other_version(&found).await;
                    retry.reset();
                }
                Ok(Discovered::NotServed) => {
                    let missing = WatchState::Unavailable(ReadError::KindMissing);
                    self.watch.failed(&missing.reason(gvk).unwrap_or_default(), false);
                    if self.is_child() {
                        let own = self.watches.effects.clients.own();
                        self.watches.store.kinds.look_for_hint(own, gvk).await;
                    }
                    self.mark_unavailable(ReadError::KindMissing);
                }
                Err(error) => {
                    let mut text = error.to_string();
                    if self.is_decided_by() {
                        text = format!("{gvk} cannot be discovered: {text}");
                    }
                    let lost = self.failed(&error, text);
                    self.mark_unavailable(lost);
                }
            }
            tokio::select! {
                () = tokio::time::sleep(retry.failed()) => {}
                // Discovery shows a CRD some time after it was created.
                () = nudged => retry.reset(),
            }
        }
    }

    /// The client with the rights that the watch uses.
    fn cluster(&self) -> Cluster {
        let clients = &self.watches.effects.clients;
        match &self.key.part {
            Some(part) => clients.watching_for(&part.package),
            None => clients.own().clone(),
        }
    }

    fn is_child(&self) -> bool {
        self.key.projection == Projection::Child
    }

    /// Whether decisions wait for its objects.
    fn is_decided_by(&self) -> bool {
        matches!(self.key.projection, Projection::Child | Projection::Owned(_))
    }

    fn is_ref(&self) -> bool {
        matches!(self.key.projection, Projection::Ref(_))
    }

    async fn discover(&self, was_served: bool) -> Result<Discovered, CallError> {
        let WatchKey { gvk, projection, .. } = &self.key;
        let (kinds, own) = (&self.watches.store.kinds, self.watches.effects.clients.own());
        let found = match projection {
            Projection::Instance(crd) => {
                self.watches.store.registry().get(crd).map(|registered| Arc::clone(&registered.kind))
            }
            // Children may have this kind as well. Only their watch may forget it, because nothing else queues their
            // instances when it is found again.
            Projection::Ref(_) | Projection::Owned(_) if was_served => kinds.ask(own, gvk).await?,
            _ => kinds.find(own, gvk).await?,
        };
        if let Some(found) = found {
            return Ok(Discovered::Served(found));
        }
        if !self.is_child() {
            return Ok(Discovered::NotServed);
        }
        Ok(match kinds.in_any_version(own, gvk).await? {
            // The first answer of discovery did not have the kind yet, the second has.
            Some(found) if found.api_version() == *gvk.api_version => Discovered::Served(found),
            Some(found) => Discovered::OtherVersion(found),
            None => Discovered::NotServed,
        })
    }

    /// Watches the objects of a kind in another version, until the requested one is served, or neither is: they are
    /// the same objects, though nothing can be applied as requested.
    async fn watch_other_version(&self, found: &ApiKind) {
        let WatchKey { gvk, .. } = &self.key;
        let kinds = &self.watches.store.kinds;
        let served = found.gvk();
        info!(kind = %gvk, served = %served.api_version, "the version is not served: another is watched");
        let state = WatchState::OtherVersion(served.api_version.to_string());
        let mut following = std::pin::pin!(self.list_and_watch(found, &state));
        let mut retry = Retry::exhausted(DISCOVERY);
        loop {
            let mut nudged = std::pin::pin!(self.watches.discover.notified());
            nudged.as_mut().enable();
            tokio::select! {
                _ = &mut following => {
                    kinds.forget(&served);
                    let reason = format!("the API server has stopped serving {found}");
                    return self.mark_unavailable(ReadError::Failed(reason));
                }
                () = tokio::time::sleep(retry.failed()) => {}
                () = nudged => retry.reset(),
            }
            // After a failure it is asked again; until then the known kinds are used.
            let asked = kinds.ask(self.watches.effects.clients.own(), gvk).await;
            if matches!(asked, Ok(Some(_))) {
                return;
            }
        }
    }

    /// Lists and watches until the kind is not served any more. Once all is listed, the watch is in `state`.
    async fn list_and_watch(&self, found: &ApiKind, state: &WatchState) -> Result<(), CallError> {
        let whole = self.reads_content(found, state);
        let mut events = self.events(found, whole)?;
        let mut patience = self.is_ref().then(|| Instant::now() + FIRST_LIST);
        loop {
            let event = match patience {
                Some(until) => {
                    let Ok(event) = timeout_at(until, events.next()).await else {
                        patience = None;
                        let text = format!("no answer within {} s", FIRST_LIST.as_secs());
                        self.mark_degraded(ReadError::Failed(text));
                        continue;
                    };
                    event
                }
                None => events.next().await,
            };
            match event {
                None => return Ok(()),
                Some(Ok(event)) => {
                    self.on_event(event, whole, state);
                    self.watch.event();
                }
                Some(Err(error)) if self.is_lost(&error) => return Ok(()),
                Some(Err(_)) => {}
            }
        }
    }

    /// Whether more than the metadata of the objects is read.
    fn reads_content(&self, found: &ApiKind, state: &WatchState) -> bool {
        match &self.key.projection {
            Projection::Instance(_) | Projection::Owned(_) => true,
            // The content differs in another version, so nothing reads it.
            Projection::Child => {
                *state == WatchState::Watching
                    && (readiness::needs_status(&found.group, &found.kind)
                        || self.watches.store.registry().reads_content(&self.key.gvk))
            }
            Projection::Ref(fields) => fields.content,
            Projection::ApiService | Projection::Crd | Projection::Operator | Projection::Policy => false,
        }
    }

    fn events(&self, found: &ApiKind, whole: bool) -> Result<Events, CallError> {
        let cluster = &self.cluster();
        let (namespace, config) = (self.key.namespace.as_deref(), self.key.config());
        if whole {
            return Ok(resilient::watch(cluster, cluster.api::<Raw>(found, namespace)?, config).boxed());
        }
        let api = cluster.api::<PartialObjectMeta<Raw>>(found, namespace)?;
        let events = resilient::watch(cluster, api, config);
        Ok(events.map(|event| event.map(|event| map_event(event, Raw::of_metadata))).boxed())
    }

    /// Counts a failure; returns why the objects are unavailable.
    fn failed(&self, error: &CallError, text: String) -> ReadError {
        self.count_failure(&text, error.code == 403);
        self.read_error(error, text)
    }

    fn read_error(&self, error: &CallError, text: String) -> ReadError {
        match error.class {
            Class::NotFound if self.is_ref() => ReadError::KindMissing,
            _ if matches!(error.code, 401 | 403) => ReadError::Forbidden(text),
            _ => ReadError::Failed(text),
        }
    }

    fn count_failure(&self, text: &str, is_forbidden: bool) {
        let WatchKey { gvk, projection, .. } = &self.key;
        self.watch.failed(text, is_forbidden);
        let kind = match projection {
            Projection::Instance(crd) => crd.to_string(),
            _ => format!("{}.{}", gvk.kind, gvk.api_version),
        };
        self.watches.effects.health.metrics.watch_failures.get_or_create(&OfKind { kind }).inc();
    }

    /// Records an error; `true` if the kind may no longer be served, which discovery has to find out.
    fn is_lost(&self, error: &watcher::Error) -> bool {
        let WatchKey { gvk, .. } = &self.key;
        let mut text = explain(error);
        let (cause, is_expired) = (cause(error), is_expired(error));
        if cause.as_ref().is_some_and(|error| error.code == 429) {
            // The storage of a new kind begins a moment after its CRD is established.
            debug!(watch = %self.watch.name, error = %text, "the server asks to wait; the watch is tried again");
        } else {
            warn!(watch = %self.watch.name, error = %text, "a watch failed; it is tried again");
        }
        let is_forbidden = cause.as_ref().is_some_and(|error| error.code == 403);
        self.count_failure(&text, is_forbidden);
        if self.is_decided_by() {
            let account = self.key.part.as_ref();
            let account = account.and_then(|part| self.watches.effects.clients.user_of(&part.package));
            let place = match &self.key.namespace {
                Some(namespace) => format!("in the namespace {namespace}"),
                None => "in all namespaces".to_owned(),
            };
            let user = account.unwrap_or_else(|| "the manager's account".to_owned());
            let fix = if is_forbidden {
                format!("; {user} needs the verbs list and watch for it, {place}")
            } else {
                String::new()
            };
            text = format!("{gvk} cannot be watched: {text}{fix}");
        }
        let class = cause.as_ref().map(|cause| cause.class);
        if class == Some(Class::NotFound) && (self.is_decided_by() || self.is_ref()) {
            return true;
        }
        let error = match &cause {
            Some(cause) => self.read_error(cause, text),
            None => ReadError::Failed(text),
        };
        // An expired resourceVersion is no refusal: the listed objects stay valid until the next list.
        if class == Some(Class::Permanent) && !is_expired {
            self.mark_unavailable(error);
        } else {
            self.mark_degraded(error);
        }
        false
    }

    /// Marks the objects as unknown until a list succeeds again.
    fn mark_unavailable(&self, error: ReadError) {
        if self.is_ref() {
            self.change(|objects| objects.mark_unavailable(error));
        } else if self.watch.mark_unavailable(error) {
            self.on_unavailable();
        }
    }

    fn mark_degraded(&self, error: ReadError) {
        if self.is_ref() {
            self.change(|objects| objects.mark_degraded(error));
        } else if self.watch.mark_degraded(error) {
            self.on_unavailable();
        }
    }

    fn on_unavailable(&self) {
        if self.is_decided_by() {
            let WatchKey { gvk, .. } = &self.key;
            let reason = self.watch.state().reason(gvk).unwrap_or_default();
            warn!(%gvk, %reason, "its objects are unknown");
            self.watches.scheduler.add_all(self.concerned());
        }
    }

    /// The instances that decide by what the watch brings.
    fn concerned(&self) -> Vec<InstanceKey> {
        let store = &self.watches.store;
        let of_kind = self.key.kind_label().and_then(|label| store.registry().by_kind_label(label));
        of_kind.map_or_else(|| store.all_instances(), |registered| store.instances_of(&registered.crd))
    }

    /// Changes what refs read of this watch, unless it is closed, and queues the instances that are
    /// concerned. Returns whether it is open.
    fn change(&self, change: impl FnOnce(&mut ReadObjects) -> HashSet<InstanceKey>) -> bool {
        let concerned = self.watches.change(&self.key, &self.watch, change);
        let is_open = concerned.is_some();
        self.watches.scheduler.add_all(concerned.into_iter().flatten());
        is_open
    }

    /// Lists the objects of a selector that was added to a shared watch after its list.
    pub(super) async fn fill(&self, selector: &ResourceSelector) {
        let mut retry = Retry::new(LATECOMER);
        loop {
            match self.list(selector).await {
                Ok(objects) => {
                    self.change(|read| read.fill(selector, objects));
                    return;
                }
                Err(error) => {
                    debug!(%selector, %error, "it cannot be listed; trying again");
                    let wait = retry.failed();
                    tokio::time::sleep(error.asked_to_wait().unwrap_or(wait)).await;
                }
            }
            // The watch was closed: nothing reads it any more.
            if !self.change(|_| HashSet::new()) {
                return;
            }
        }
    }

    async fn list(&self, selector: &ResourceSelector) -> Result<Vec<Object>, CallError> {
        let WatchKey { gvk, projection, .. } = &self.key;
        let cluster = self.cluster();
        let found = self.watches.store.kinds.find(self.watches.effects.clients.own(), gvk).await?;
        let (Some(found), Projection::Ref(fields)) = (found, projection) else { return Ok(Vec::new()) };
        let params = match &selector.select {
            Select::Name(name) => ListParams::default().fields(&field_selector::of_name(name)),
            Select::Labels(selector) => ListParams::default().labels(&selector.to_string()),
        };
        let api = cluster.api::<Raw>(&found, selector.namespace.as_deref())?;
        let list = api.list(&params).await.map_err(|e| call_error(&e))?;
        // The list has whole objects. Only a part may be kept.
        Ok(list.items.iter().map(|raw| self.object(raw, fields)).collect())
    }
}

fn map_event<A, B>(event: Event<A>, f: impl Fn(A) -> B) -> Event<B> {
    match event {
        Event::Apply(object) => Event::Apply(f(object)),
        Event::Delete(object) => Event::Delete(f(object)),
        Event::InitApply(object) => Event::InitApply(f(object)),
        Event::Init => Event::Init,
        Event::InitDone => Event::InitDone,
    }
}
