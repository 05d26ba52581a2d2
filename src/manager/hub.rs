//! The watch hub: one watch a kind for the whole process. Events go into the index, and the instances that
//! they concern into the queue.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::{Stream, StreamExt, TryStreamExt};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use kube::core::PartialObjectMeta;
use kube::runtime::watcher::{self, Event};
use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use tokio::task::JoinHandle;
use tracing::{debug, error, info, warn};

use super::Shared;
use super::index::{InstanceKey, KindState, Origin};
use super::lasting;
use super::metrics::OfKind;
use super::raw::Raw;
use super::registry::Registered;
use super::watch::Watch;
use crate::children::{ObjectRef, Observed, Seen, names};
use crate::cluster::{ApiKind, CallError, Class};
use crate::readiness;

/// How long until discovery is asked again for a kind that is not served: at first after a CRD of its group
/// has changed, and at last.
pub(super) const REDISCOVER_FIRST: Duration = Duration::from_millis(50);
pub(super) const REDISCOVER: Duration = Duration::from_secs(10);

/// How long until a watch that ended, which it never should, begins anew.
const RESTART: Duration = Duration::from_secs(2);

/// By name.
type Tasks = HashMap<String, Task>;

struct Task {
    watch: Arc<Watch>,
    handle: JoinHandle<()>,
    /// It only takes away what the watch has brought, which no other may do beside a new watch.
    is_leaving: bool,
}

/// The running watches.
#[derive(Default)]
pub(super) struct Hub {
    tasks: Mutex<Tasks>,
    /// Wakes those that wait for their kind to be served.
    discover: Notify,
}

/// What to do if it is watched already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Again {
    /// Go on as it is.
    Keep,
    /// List all of it anew: what the server shows of the objects has changed though they have not.
    Relist,
}

impl Hub {
    /// Watches the instances of a CRD.
    pub(super) fn watch_instances(&self, shared: &Arc<Shared>, registered: &Arc<Registered>, again: Again) {
        let name = instances_name(&registered.crd);
        shared.index().name_kind(&registered.crd, &registered.kind_label());
        let (shared, registered) = (Arc::clone(shared), Arc::clone(registered));
        self.start(name, again, move |watch| {
            let (shared, registered) = (Arc::clone(&shared), Arc::clone(&registered));
            async move { instances(&shared, &registered, &watch).await }
        });
    }

    /// Watches the children of a kind, all packages' together.
    pub(super) fn watch_children(&self, shared: &Arc<Shared>, api_version: &str, kind: &str, again: Again) {
        let name = children_name(api_version, kind);
        let shared = Arc::clone(shared);
        let (api_version, kind): (Arc<str>, Arc<str>) = (api_version.into(), kind.into());
        self.start(name, again, move |watch| {
            let (shared, api_version, kind) =
                (Arc::clone(&shared), Arc::clone(&api_version), Arc::clone(&kind));
            async move { children(&shared, &api_version, &kind, &watch).await }
        });
    }

    /// Ends the watch of the instances of a CRD that is gone.
    pub(super) fn forget_instances(&self, crd: &str) {
        if let Some(task) = self.lock().remove(&instances_name(crd)) {
            task.handle.abort();
        }
    }

    /// Ends the watches of children of all kinds but these.
    pub(super) fn keep_children(&self, shared: &Arc<Shared>, kinds: &BTreeSet<(String, String)>) {
        let kept: HashSet<String> = kinds.iter().map(|(a, k)| children_name(a, k)).collect();
        let mut tasks = self.lock();
        let is_over = |(name, task): &(&String, &Task)| {
            !task.is_leaving && name.starts_with(CHILDREN) && !kept.contains(*name)
        };
        let over: Vec<String> = tasks.iter().filter(is_over).map(|(name, _)| name.clone()).collect();
        for name in over {
            let kind = name.strip_prefix(CHILDREN).and_then(|kind| kind.split_once(' '));
            let Some((api_version, kind)) = kind.map(|(a, k)| (a.to_owned(), k.to_owned())) else { continue };
            let Some(Task { watch, handle: former, .. }) = tasks.remove(&name) else { continue };
            info!(%api_version, %kind, "no package has it any more: watched no longer");
            former.abort();
            let shared = Arc::clone(shared);
            let handle = tokio::spawn(async move {
                let _ = former.await;
                shared.index().drop_kind(&api_version, &kind);
            });
            tasks.insert(name, Task { watch, handle, is_leaving: true });
        }
    }

    /// Kinds that are not served may be by now.
    pub(super) fn rediscover(&self) {
        self.discover.notify_waiters();
    }

    /// Ends when [`Hub::rediscover`] is called next.
    pub(super) fn nudged(&self) -> Notified<'_> {
        self.discover.notified()
    }

    /// All watches, by name.
    pub(super) fn view(&self) -> Vec<Arc<Watch>> {
        let tasks = self.lock();
        let watching = tasks.values().filter(|task| !task.is_leaving);
        let mut all: Vec<_> = watching.map(|task| Arc::clone(&task.watch)).collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }

    /// What has not been listed yet, and may be soon.
    pub(super) fn unlisted(&self) -> Vec<String> {
        self.view().iter().filter(|watch| watch.is_awaited()).map(|watch| watch.name.clone()).collect()
    }

    /// What the server does not let us watch, and why.
    pub(super) fn refused(&self) -> Vec<String> {
        self.view().iter().filter_map(|watch| watch.refusal()).collect()
    }

    /// Ends all watches.
    pub(super) fn stop(&self) {
        for (_, task) in self.lock().drain() {
            task.handle.abort();
        }
    }

    /// Starts a watch, and starts it again should it panic or end.
    fn start<F: Future<Output = ()> + Send>(
        &self,
        name: String,
        again: Again,
        run: impl Fn(Arc<Watch>) -> F + Send + 'static,
    ) {
        let mut tasks = self.lock();
        let is_on = |task: &Task| !task.is_leaving && !task.handle.is_finished();
        if again == Again::Keep && tasks.get(&name).is_some_and(is_on) {
            return;
        }
        debug!(watch = %name, ?again, "watching");
        let (watch, former) = match tasks.remove(&name) {
            Some(task) if task.is_leaving => (Arc::new(Watch::new(name.clone())), Some(task.handle)),
            Some(task) => {
                task.handle.abort();
                (task.watch, Some(task.handle))
            }
            None => (Arc::new(Watch::new(name.clone())), None),
        };
        let handle = supervise(Arc::clone(&watch), former, run);
        tasks.insert(name, Task { watch, handle, is_leaving: false });
    }

    fn lock(&self) -> MutexGuard<'_, Tasks> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn instances_name(crd: &str) -> String {
    format!("instances {crd}")
}

/// With what the names of the watches of children begin.
const CHILDREN: &str = "children ";

fn children_name(api_version: &str, kind: &str) -> String {
    format!("{CHILDREN}{api_version} {kind}")
}

/// Runs a watch once a former one has ended, and runs it again should it panic or end.
pub(super) fn supervise<F: Future<Output = ()> + Send>(
    watch: Arc<Watch>,
    former: Option<JoinHandle<()>>,
    run: impl Fn(Arc<Watch>) -> F + Send + 'static,
) -> JoinHandle<()> {
    tokio::spawn(async move {
        // What the former one is about to tell must not come after what this one has listed.
        if let Some(former) = former {
            let _ = former.await;
        }
        loop {
            let panic = super::contained(run(Arc::clone(&watch))).await.err();
            let panic = panic.as_deref().unwrap_or("none");
            error!(watch = %watch.name, %panic, "a watch ended; this is a bug of Operetta, it is started again");
            watch.failed("it ended");
            tokio::time::sleep(RESTART).await;
        }
    })
}

async fn instances(shared: &Arc<Shared>, registered: &Arc<Registered>, watch: &Watch) {
    let resource = registered.kind.resource();
    let cluster = shared.clients.own();
    let api: Api<Raw> = Api::all_with(cluster.client(), &resource);
    let mut stream = std::pin::pin!(lasting::watch(cluster, api, watcher::Config::default()));
    while let Some(event) = stream.next().await {
        match event {
            Ok(event) => {
                let listed = matches!(event, Event::InitDone);
                on_instance(shared, registered, event);
                // What was listed is in the index before anybody is told that it is.
                if listed { watch.listed() } else { watch.event() }
            }
            Err(error) => {
                let text = explain(&error);
                warn!(crd = %registered.crd, error = %text, "the watch of instances failed; trying again");
                failed(shared, watch, &registered.crd, &text);
                if cause(&error).is_some_and(|error| error.code == 403) {
                    watch.refused();
                }
            }
        }
    }
}

fn on_instance(shared: &Arc<Shared>, registered: &Arc<Registered>, event: Event<Raw>) {
    match event {
        Event::Init => shared.index().begin_instances(&registered.crd),
        Event::InitApply(raw) | Event::Apply(raw) => {
            let key = instance_key(&registered.crd, &raw);
            if raw.is_cut && raw.metadata.deletion_timestamp.is_none() {
                // It must not be rendered from a part of it. To help it go, a part will do.
                warn!(instance = %key, "it is nested too deeply to be read, and is left as it is");
                shared.index().list_instance(&key);
                let (shared, registered) = (Arc::clone(shared), Arc::clone(registered));
                tokio::spawn(async move { shared.tell_unreadable(&key, &registered, &raw.body).await });
                return;
            }
            if shared.index().put_instance(key.clone(), &raw.body) {
                shared.queue.add(key);
            }
        }
        Event::Delete(raw) => {
            let key = instance_key(&registered.crd, &raw);
            let (uid, version) = (raw.metadata.uid.as_deref(), raw.metadata.resource_version.as_deref());
            let mut index = shared.index();
            index.remove_instance(&key, uid.unwrap_or_default(), version);
            let haunts = index.ghost(&key).is_some();
            drop(index);
            shared.forget(&key);
            if haunts {
                shared.queue.add(key);
            }
        }
        Event::InitDone => {
            let mut index = shared.index();
            let gone = index.end_instances(&registered.crd);
            // Children may have been listed before their instances: only now do all know each other.
            let all: Vec<InstanceKey> = index.instances_of(&registered.crd).cloned().collect();
            drop(index);
            info!(crd = %registered.crd, instances = all.len(), "watching instances");
            for key in gone {
                shared.forget(&key);
            }
            for key in all {
                shared.queue.add(key);
            }
        }
    }
}

fn instance_key(crd: &Arc<str>, raw: &Raw) -> InstanceKey {
    InstanceKey {
        crd: Arc::clone(crd),
        namespace: raw.metadata.namespace.as_deref().map(Into::into),
        name: raw.metadata.name.as_deref().unwrap_or_default().into(),
    }
}

async fn children(shared: &Arc<Shared>, api_version: &Arc<str>, kind: &Arc<str>, watch: &Watch) {
    let mut wait = REDISCOVER;
    loop {
        // Heard from here on: a CRD that comes while discovery is asked is not missed.
        let mut nudged = std::pin::pin!(shared.hub.nudged());
        nudged.as_mut().enable();
        match shared.kinds.find(&shared.clients.own().client(), api_version, kind).await {
            Ok(Some(found)) => {
                watch_kind(shared, &found, api_version, kind, watch, &KindState::Synced).await;
                // Until discovery finds it again, nobody shall take it for served. Nor for gone, before it is known
                // whether its objects are there in another version.
                shared.kinds.forget(api_version, kind);
                let reason = format!("the API server has stopped serving {kind} of {api_version}");
                lose(shared, api_version, kind, &KindState::Unknown(reason));
                wait = REDISCOVER_FIRST;
            }
            Ok(None) => {
                match shared.kinds.in_any_version(&shared.clients.own().client(), api_version, kind).await {
                    // It is there again, as the one answer says and the other did not yet.
                    Ok(Some(found)) if found.api_version() == **api_version => wait = REDISCOVER_FIRST,
                    Ok(Some(found)) => {
                        follow(shared, &found, api_version, kind, watch).await;
                        wait = REDISCOVER_FIRST;
                    }
                    Ok(None) => {
                        watch.failed(&KindState::NotServed.reason(api_version, kind).unwrap_or_default());
                        shared.kinds.look_for_hint(shared.clients.own(), api_version, kind).await;
                        lose(shared, api_version, kind, &KindState::NotServed);
                    }
                    Err(error) => undiscovered(shared, api_version, kind, watch, &error),
                }
            }
            Err(error) => undiscovered(shared, api_version, kind, watch, &error),
        }
        tokio::select! {
            () = tokio::time::sleep(wait) => wait = wait.saturating_mul(2).min(REDISCOVER),
            // Discovery learns of a CRD some time after it is there.
            () = nudged => wait = REDISCOVER_FIRST,
        }
    }
}

fn undiscovered(
    shared: &Arc<Shared>,
    api_version: &Arc<str>,
    kind: &Arc<str>,
    watch: &Watch,
    error: &CallError,
) {
    let reason = format!("{kind} of {api_version} cannot be discovered: {error}");
    failed(shared, watch, &format!("{kind}.{api_version}"), &reason);
    lose(shared, api_version, kind, &KindState::Unknown(reason));
}

/// Watches the objects of a kind in another version, until the one that is asked for is served, or neither is: they
/// are the same, though nothing can be applied as it was asked for.
async fn follow(
    shared: &Arc<Shared>,
    found: &ApiKind,
    api_version: &Arc<str>,
    kind: &Arc<str>,
    watch: &Watch,
) {
    let how = KindState::Elsewhere(found.api_version());
    info!(%api_version, %kind, served = %found.api_version(), "its version is not served: another is watched");
    let mut watching = std::pin::pin!(watch_kind(shared, found, api_version, kind, watch, &how));
    let mut wait = REDISCOVER;
    loop {
        let mut nudged = std::pin::pin!(shared.hub.nudged());
        nudged.as_mut().enable();
        tokio::select! {
            () = &mut watching => {
                shared.kinds.forget(&found.api_version(), kind);
                let reason = format!("the API server has stopped serving {found}");
                return lose(shared, api_version, kind, &KindState::Unknown(reason));
            }
            () = tokio::time::sleep(wait) => wait = wait.saturating_mul(2).min(REDISCOVER),
            () = nudged => wait = REDISCOVER_FIRST,
        }
        // What cannot be told now is asked again; until then what is known serves.
        let asked = shared.kinds.ask(&shared.clients.own().client(), api_version, kind).await;
        if matches!(asked, Ok(Some(_))) {
            return;
        }
    }
}

/// Watches until the kind is not served any more; once listed it is known as `how`.
async fn watch_kind(
    shared: &Arc<Shared>,
    found: &ApiKind,
    api_version: &Arc<str>,
    kind: &Arc<str>,
    watch: &Watch,
    how: &KindState,
) {
    let config = watcher::Config::default().labels(names::INSTANCE_UID);
    let resource = found.resource();
    let cluster = shared.clients.own();
    // In another version the content is of another form: nothing shall read it.
    let whole = *how == KindState::Synced
        && (readiness::needs_status(&found.group, &found.kind)
            || shared.registry().reads_content(api_version, kind));
    let reads = |operator: &str, child: &str| shared.registry().reads(operator, child);
    if whole {
        let api = Api::<Raw>::all_with(cluster.client(), &resource);
        let stream = lasting::watch(cluster, api, config).map_ok(|event| {
            map_event(&event, |raw| {
                let reports = shared.kinds.reports_status(api_version, kind);
                Fed::new(api_version, kind, &raw.metadata, raw.observe(api_version, kind, reports, reads))
            })
        });
        consume(shared, (api_version, kind, how), watch, stream).await;
    } else {
        let api = Api::<PartialObjectMeta<Raw>>::all_with(cluster.client(), &resource);
        let stream = lasting::watch(cluster, api, config).map_ok(|event| {
            map_event(&event, |partial| {
                let seen =
                    Seen { api_version, kind, metadata: &partial.metadata, body: None, reports: false };
                Fed::new(api_version, kind, &partial.metadata, seen.observe(reads))
            })
        });
        consume(shared, (api_version, kind, how), watch, stream).await;
    }
}

/// What is told of one object: the child, if it is one of ours.
struct Fed {
    uid: String,
    resource_version: Option<String>,
    observed: Option<Observed>,
    object: ObjectRef,
}

impl Fed {
    fn new(
        api_version: &Arc<str>,
        kind: &Arc<str>,
        metadata: &ObjectMeta,
        observed: Option<Observed>,
    ) -> Self {
        Self {
            uid: metadata.uid.clone().unwrap_or_default(),
            resource_version: metadata.resource_version.clone(),
            observed,
            object: ObjectRef {
                api_version: Arc::clone(api_version),
                kind: Arc::clone(kind),
                namespace: metadata.namespace.as_deref().map(Into::into),
                name: metadata.name.as_deref().unwrap_or_default().into(),
            },
        }
    }
}

async fn consume(
    shared: &Arc<Shared>,
    (api_version, kind, how): (&Arc<str>, &Arc<str>, &KindState),
    watch: &Watch,
    stream: impl Stream<Item = watcher::Result<Event<Fed>>> + Send,
) {
    let mut stream = std::pin::pin!(stream);
    while let Some(event) = stream.next().await {
        match event {
            Ok(event) => {
                let listed = matches!(event, Event::InitDone);
                on_child(shared, (api_version, kind, how), event);
                if listed { watch.listed() } else { watch.event() }
            }
            Err(error) => {
                let text = explain(&error);
                warn!(%api_version, %kind, error = %text, "the watch of children failed; trying again");
                failed(shared, watch, &format!("{kind}.{api_version}"), &text);
                let fix = match cause(&error) {
                    Some(error) if error.code == 403 => {
                        watch.refused();
                        "; the manager's account needs the verbs list and watch for it, in all namespaces"
                    }
                    _ => "",
                };
                let reason = format!("{kind} of {api_version} cannot be watched: {text}{fix}");
                if cause(&error).is_some_and(|error| error.class == Class::NotFound) {
                    return;
                }
                if is_refusal(&error) {
                    lose(shared, api_version, kind, &KindState::Unknown(reason));
                } else if shared.index().falter_kind(api_version, kind, &reason) {
                    shared.queue_all();
                }
            }
        }
    }
}

pub(super) fn failed(shared: &Arc<Shared>, watch: &Watch, kind: &str, error: &str) {
    watch.failed(error);
    shared.monitor.metrics.watch_failures.get_or_create(&OfKind { kind: kind.to_owned() }).inc();
}

fn on_child(
    shared: &Arc<Shared>,
    (api_version, kind, how): (&Arc<str>, &Arc<str>, &KindState),
    event: Event<Fed>,
) {
    let concerned = match event {
        Event::Init => {
            shared.index().begin_kind(api_version, kind);
            Vec::new()
        }
        Event::InitApply(fed) | Event::Apply(fed) => {
            match fed.observed {
                Some(observed) => shared.index().put_child(observed, Origin::Watch),
                // Somebody took a label of ours: it is no child that we would know.
                None => shared.index().remove_child(&fed.object, &fed.uid, None).into_iter().collect(),
            }
        }
        Event::Delete(fed) => {
            let version = fed.resource_version.as_deref();
            shared.index().remove_child(&fed.object, &fed.uid, version).into_iter().collect()
        }
        Event::InitDone => shared.index().end_kind(api_version, kind, how),
    };
    for key in concerned {
        shared.queue.add(key);
    }
}

fn lose(shared: &Arc<Shared>, api_version: &Arc<str>, kind: &Arc<str>, lost: &KindState) {
    if shared.index().lose_kind(api_version, kind, lost.clone()) {
        let reason = lost.reason(api_version, kind).unwrap_or_default();
        warn!(%api_version, %kind, %reason, "its objects are unknown");
        shared.queue_all();
    }
}

pub(super) fn map_event<A, B>(event: &Event<A>, f: impl Fn(&A) -> B) -> Event<B> {
    match event {
        Event::Apply(object) => Event::Apply(f(object)),
        Event::Delete(object) => Event::Delete(f(object)),
        Event::InitApply(object) => Event::InitApply(f(object)),
        Event::Init => Event::Init,
        Event::InitDone => Event::InitDone,
    }
}

pub(super) fn cause(error: &watcher::Error) -> Option<CallError> {
    match error {
        watcher::Error::InitialListFailed(e)
        | watcher::Error::WatchStartFailed(e)
        | watcher::Error::WatchFailed(e) => Some(CallError::from_kube(e)),
        watcher::Error::WatchError(status) => Some(CallError::from_status(status)),
        watcher::Error::NoResourceVersion => None,
    }
}

pub(super) fn explain(error: &watcher::Error) -> String {
    cause(error).map_or_else(|| error.to_string(), |e| e.to_string())
}

/// Whether the server no longer knows the resourceVersion at which a watch was to go on.
pub(super) fn is_expired(error: &watcher::Error) -> bool {
    cause(error).is_some_and(|e| e.code == 410)
}

/// Not allowed, or not served any more: what exists is unknown until a list succeeds again. A refused
/// watch with an expired resourceVersion (410) is no refusal.
fn is_refusal(error: &watcher::Error) -> bool {
    !is_expired(error) && cause(error).is_some_and(|e| matches!(e.class, Class::Permanent | Class::NotFound))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_watch_that_panics_or_ends_is_started_again() {
        let hub = Hub::default();
        let runs = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&runs);
        hub.start("x".into(), Again::Keep, move |_| {
            let run = count.fetch_add(1, Ordering::SeqCst);
            async move {
                assert!(run > 0, "the first panics");
                if run > 1 {
                    std::future::pending::<()>().await;
                }
            }
        });
        tokio::time::sleep(RESTART * 10).await;
        assert_eq!(runs.load(Ordering::SeqCst), 3);
        assert_eq!(hub.view()[0].to_json()["failures"], 2);
        hub.stop();
        assert!(hub.view().is_empty());
    }
}
