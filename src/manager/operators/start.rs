//! The start: the kinds `Operator` and `OperatorRevision` are installed, and the packages that were active before are
//! loaded, so that no instance is without its package in between.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use kube::runtime::watcher::Event;
use serde_json::Value;
use tracing::{info, warn};

use super::known::{Known, OperatorReconciler, revision_name};
use super::settings::Settings;
use crate::api::{ApiKind, CallError, Class, Gvk};
use crate::manager::bindings::Bindings;
use crate::manager::plan_api::install_objects;
use crate::manager::raw::Raw;
use crate::manager::scheduler::Key;
use crate::operators::{self, Next, OperatorSpec, PACKAGE, policy};
use crate::package::Package;
use crate::package::store::objects;

/// How often the `Operator`s are listed until the API server serves their kind, and how long between.
const ATTEMPTS: u32 = 150;
const BETWEEN: Duration = Duration::from_millis(200);

/// How long changes of roles and bindings are gathered before the manager looks at them.
const SETTLE: Duration = Duration::from_secs(1);

/// The `Operator`s at the start.
#[derive(Default)]
pub(in crate::manager) struct Found {
    /// Their packages.
    pub(in crate::manager) packages: Vec<Arc<Package>>,
    /// The names of packages whose `Operator`s name another revision, which takes over.
    pub(in crate::manager) stand_ins: BTreeSet<String>,
    /// The names of `Operator`s whose packages cannot be loaded yet.
    pub(in crate::manager) awaited: BTreeSet<String>,
}

/// Installs the kinds, and loads the packages of all `Operator`s.
///
/// # Errors
/// The API server refuses the kinds, or cannot be reached.
pub(in crate::manager) async fn find(reconciler: &OperatorReconciler) -> Result<Found, CallError> {
    let cluster = reconciler.effects.clients.own();
    let kinds = [(ApiKind::crd(), operators::crd()), (ApiKind::crd(), objects::crd())];
    let mut attempts = 0;
    let all = loop {
        attempts += 1;
        let installed = match install_objects(cluster, &kinds).await {
            Ok(_) => install_policies(reconciler).await,
            Err(error) => Err(error),
        };
        let listed = match installed {
            Ok(()) => cluster.list(&operators::kind(), None, "").await,
            Err(error) => Err(error),
        };
        match listed {
            Ok(all) => break all,
            // The API server does not serve the kind yet, or another manager installs it.
            Err(error) if error.class != Class::Permanent && attempts < ATTEMPTS => {
                tokio::time::sleep(error.retry_after.unwrap_or(BETWEEN)).await;
            }
            Err(error) => return Err(error),
        }
    };
    let mut found = Found::default();
    for operator in all {
        let Some(name) = operator["metadata"]["name"].as_str() else { continue };
        let mut known = Known::default();
        match first(reconciler, name, &operator, &mut known).await {
            Some(package) => {
                let (named, is_paused) = (operators::named(&operator), &operator["spec"]["paused"]);
                if named != revision_name(&package) && *is_paused != true {
                    found.stand_ins.insert(name.to_owned());
                }
                found.packages.push(package);
            }
            None => {
                found.awaited.insert(name.to_owned());
            }
        }
        reconciler.known().insert(name.into(), known);
    }
    Ok(found)
}

/// Installs the kind of policies. An account that `operetta manager install` of an earlier version has made has no right to it: then the
/// policies are not watched, but read whenever a package is checked.
async fn install_policies(reconciler: &OperatorReconciler) -> Result<(), CallError> {
    match install_objects(reconciler.effects.clients.own(), &[(ApiKind::crd(), policy::crd())]).await {
        Ok(_) => reconciler.policies.watched(),
        Err(error) if error.class == Class::Permanent => {
            warn!(%error, "the kind PackagePolicy cannot be installed: apply `operetta manager install` of this version");
        }
        Err(error) => return Err(error),
    }
    Ok(())
}

/// The package of an `Operator` that is registered first: the one that was active before, if it can be loaded.
async fn first(
    reconciler: &OperatorReconciler,
    name: &str,
    operator: &Value,
    known: &mut Known,
) -> Option<Arc<Package>> {
    let spec = OperatorSpec::parse(operator).ok()?;
    // The first instances must not be reconciled without these settings.
    let set = |active: Option<&Package>| {
        let defaults = operators::effective_defaults(&spec, &operator["status"], active);
        let settings = Settings::of(&spec, defaults, &reconciler.namespace);
        settings.map(|settings| reconciler.store.settings.set(name, settings))
    };
    if let Err(message) = set(None) {
        warn!(operator = %name, "{message}");
        return None;
    }
    let recorded = operator["status"]["activeRevision"].as_str();
    if spec.revision.is_empty() {
        return None;
    }
    for is_lost in [false, true] {
        let revision = match operators::next(&spec, None, recorded, is_lost) {
            Next::Recorded(revision) | Next::Named(revision) => revision,
            Next::Nothing | Next::Paused => return None,
        };
        match reconciler.load_next(name, revision, Some(revision) != recorded, known).await {
            Ok(package) => {
                // The spec has been read already.
                let _ = set(Some(&package));
                return Some(package);
            }
            Err(lost) => warn!(operator = %name, revision, "the revision cannot be loaded: {}", lost.message),
        }
    }
    None
}

/// The kind of namespaces.
pub(super) fn namespaces() -> ApiKind {
    ApiKind { namespaced: false, ..ApiKind::built_in("v1", "Namespace") }
}

/// Watches `Operator`s and their revisions. All known `Operator`s are queued by the first list.
pub(in crate::manager) fn start(reconciler: &Arc<OperatorReconciler>) {
    for name in reconciler.known().keys() {
        reconciler.scheduler.queue.add(Key::Operator(Arc::clone(name)));
    }
    let weak = Arc::downgrade(reconciler);
    reconciler.watches.open_operators(
        &[operators::kind(), objects::kind(), policy::kind()],
        move |kind, event| {
            if let Some(reconciler) = weak.upgrade() {
                reconciler.on_event(kind, event);
            }
        },
    );
    reconciler.watches.open_parts(&reconciler.namespace);
    if reconciler.effects.clients.has_accounts() {
        for (kind, is_of_manager) in Bindings::watched() {
            let namespace = is_of_manager.then_some(reconciler.namespace.as_str());
            reconciler.watches.open_grants(&kind, namespace);
        }
    }
    if reconciler.policies.is_watched() {
        reconciler.watches.open_operator_kind(&policy::kind());
    }
    if !reconciler.store.settings.readers().is_empty() {
        reconciler.watches.open_operator_kind(&namespaces());
    }
    info!(operators = reconciler.known().len(), "following the Operators of the cluster");
}

impl OperatorReconciler {
    /// Handles an event of a namespace, whose labels may decide whether its instances are reconciled.
    fn on_namespace(&self, event: Event<Raw>) {
        let settings = &self.store.settings;
        let has_changed = match event {
            Event::Init => false,
            Event::InitApply(raw) | Event::Apply(raw) => {
                let name = raw.metadata.name.unwrap_or_default();
                settings.label(&name, Some(raw.metadata.labels.unwrap_or_default()))
            }
            // Instances in a deleted namespace may still be being deleted.
            Event::Delete(raw) => settings.label(&raw.metadata.name.unwrap_or_default(), None),
            Event::InitDone => settings.listed(),
        };
        if has_changed {
            for (package, by_label) in settings.readers() {
                if by_label {
                    self.queue_instances(&package);
                }
                self.scheduler.queue.add(Key::Operator(package.as_str().into()));
            }
        }
    }

    fn on_event(&self, kind: &Gvk, event: Event<Raw>) {
        if *kind == namespaces().gvk() {
            return self.on_namespace(event);
        }
        if let Some(kind) = Bindings::watched_kind(kind) {
            let mut due = self.effects.bindings.on_event(kind, event);
            // A tenant may create RoleBindings that name any package.
            due.retain(|package| kind.starts_with("Cluster") || self.known().contains_key(package));
            return due
                .into_iter()
                .for_each(|package| self.scheduler.queue.add_after(Key::Operator(package), SETTLE));
        }
        if *kind == policy::kind().gvk() {
            self.policies.invalidate();
            let names: Vec<Arc<str>> = self.known().keys().cloned().collect();
            return names.into_iter().for_each(|name| self.scheduler.queue.add(Key::Operator(name)));
        }
        if *kind != operators::kind().gvk() {
            for package in self.watches.revisions.on_event(kind, &event) {
                self.scheduler.queue.add(Key::Operator(package.as_str().into()));
            }
        }
        let metadata = match event {
            Event::InitApply(raw) | Event::Apply(raw) | Event::Delete(raw) => raw.metadata,
            // An Operator that was deleted before the watch began is read, and found to be gone.
            Event::InitDone if *kind == operators::kind().gvk() => {
                let names: Vec<Arc<str>> = self.known().keys().cloned().collect();
                return names.iter().for_each(|name| self.changed(name));
            }
            Event::Init | Event::InitDone => return,
        };
        if *kind == operators::kind().gvk() {
            let version = metadata.resource_version.as_deref();
            let name: Arc<str> = metadata.name.unwrap_or_default().into();
            if !self.is_known(&name, version) {
                self.changed(&name);
            }
        } else if let Some(package) = metadata.labels.as_ref().and_then(|labels| labels.get(PACKAGE)) {
            // The revision that the Operator names may exist now.
            self.scheduler.queue.add(Key::Operator(package.as_str().into()));
        }
    }

    /// Whether this version of an `Operator` was read or written by us.
    fn is_known(&self, name: &Arc<str>, version: Option<&str>) -> bool {
        let known = self.known();
        let object = known.get(name).and_then(|known| known.object.as_ref());
        object.is_some_and(|object| object["metadata"]["resourceVersion"].as_str() == version)
    }
}
