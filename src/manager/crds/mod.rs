//! The CRDs of packages. The CRDs of one package are one key of the queue: a pure decision
//! ([`crate::children::crds`]), its execution (`effects`), and the publication of what is ready (`publish`).
//! A single CRD is a key of its own for other work on it: reading the CRD of a package that is not loaded,
//! and listing its objects again.
//!
//! A package is active once all its CRDs are ready; its instances and children are watched from then on. A later change
//! of one CRD (it is edited, deleted, created again) concerns the instances of that kind alone.

mod effects;
mod follow;
mod handover;
mod migrate;
mod migrations;
mod publish;
mod published;
mod state;
mod usage;
mod watch;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::oneshot;
use tracing::warn;

use super::scheduler::{Key, Outcome};
use crate::api::{CallError, Class};
use crate::children::crds::{CrdInfo, Finding, ManagerIdentity, PackageCrds, Wait, WebhookState};
use crate::children::names;
use crate::cluster::Cluster;
use crate::crd;
use crate::package::Package;
pub(super) use effects::{inspect, is_operator_gone};
pub(super) use follow::View;
pub(super) use migrations::Migrations;
use migrations::Turn;
use state::{CRD, Followed, GATHER, INACTIVE, Labelled, State, name_of};
pub(super) use state::{CrdReconciler, First};

/// What is left of the migrations of a package.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Migrated {
    /// No migration can proceed now.
    All,
    /// The next turn of a migration is due after that time.
    Later(Duration),
    /// A migration has failed and is tried again.
    Failed,
}

/// The CRDs that carry the label of a package.
///
/// # Errors
/// The API server cannot be reached.
pub(super) async fn labelled(cluster: &Cluster) -> Result<Vec<Value>, CallError> {
    let mut wait = Duration::from_millis(250);
    let mut attempts = 5;
    loop {
        match cluster.list(&CRD, None, names::OPERATOR).await {
            Err(error) if error.class == Class::Retry && attempts > 1 => {
                attempts -= 1;
                tokio::time::sleep(error.retry_after.unwrap_or(wait)).await;
                wait *= 2;
            }
            result => return result,
        }
    }
}

/// Queues the packages and watches CRDs. `labelled`: the CRDs that carry the label of a
/// package. `first` receives the result of the first reconcile of each package. `awaited`: the `Operator`s whose packages
/// are still being loaded. `stand_ins`: the packages of which another revision takes over.
pub(super) fn start(
    crds: &Arc<CrdReconciler>,
    (packages, stand_ins): (Vec<Arc<Package>>, &BTreeSet<String>),
    labelled: &[Value],
    first: oneshot::Sender<First>,
    awaited: BTreeSet<String>,
) {
    let mut state = crds.lock();
    let with_crds = |package: Arc<Package>| {
        let stands_in = stand_ins.contains(&package.name);
        let package = PackageCrds::new(package);
        if stands_in { package.standing_in() } else { package }
    };
    state.packages = packages.into_iter().map(with_crds).collect();
    if crds.follows {
        state.followed = (0..state.packages.len()).map(|index| (index, Followed::default())).collect();
    }
    state.awaited = awaited;
    state.labelled = labelled.iter().filter_map(|crd| Some((name_of(crd), Labelled::of(crd)?))).collect();
    state.first = Some(first);
    for index in 0..state.packages.len() {
        crds.scheduler.queue.add(state.key(index));
    }
    for crd in state.labelled.keys() {
        crds.scheduler.queue.add_after(Key::Crd(crd.as_str().into()), INACTIVE);
    }
    crds.publish(&mut state);
    drop(state);
    let reconciler = Arc::downgrade(crds);
    crds.watches.open_crds(move |event| {
        if let Some(reconciler) = reconciler.upgrade() {
            reconciler.on_event(event);
        }
    });
}

impl CrdReconciler {
    /// The identity of this manager in decisions about CRDs. `client`: the `clientConfig` of the conversion
    /// webhook, if it has a certificate.
    fn identity<'a>(&'a self, client: Option<&'a Value>) -> ManagerIdentity<'a> {
        let webhook = match (&self.webhook, client) {
            (None, _) => WebhookState::Absent,
            (Some(_), None) => WebhookState::Starting,
            (Some(_), Some(client)) => WebhookState::Up(client),
        };
        ManagerIdentity { webhook, lease: &self.lease, namespace: &self.namespace }
    }

    /// Whether all CRDs have been listed, and those of the package are in the registry.
    pub(super) fn has_published(&self, package: &str) -> bool {
        let state = self.lock();
        let mut of_package = state.labelled.iter().filter(|(_, labelled)| labelled.package == package);
        state.live.is_complete && of_package.all(|(crd, _)| state.published.contains_key(&**crd))
    }

    /// Reads the CRDs again after the CA of the conversion webhook, which they have to name, has changed.
    pub(super) fn webhook_changed(&self) {
        let mut state = self.lock();
        for index in 0..state.packages.len() {
            let package = &mut state.packages[index];
            if !package.is_withdrawn() && package.package.resources.iter().any(|r| r.conversion.is_some()) {
                package.read_crds();
                let key = state.key(index);
                self.scheduler.queue.add(key);
            }
        }
    }

    /// Reconciles the CRDs of a package.
    pub(super) async fn reconcile_package(&self, index: usize) -> Outcome {
        let candidate = self.try_candidate(index).await;
        let outcome = self.reconcile_active(index).await;
        self.tell_operator(index);
        if candidate == Outcome::Failed { candidate } else { outcome }
    }

    /// Reconciles the CRDs of a package as it is to be active now.
    async fn reconcile_active(&self, index: usize) -> Outcome {
        let now = self.scheduler.clock.elapsed();
        let started = {
            let mut state = self.lock();
            // The end of the earlier package's reconcile queues this one.
            if state.is_behind(index) {
                return Outcome::Done;
            }
            self.check_records(&mut state, index, now);
            let (package, live) = (&state.packages[index], &state.live);
            let version = |crd: &str| live.crds.get(crd).map(|meta| meta.version.clone());
            package.is_read_due(version, live.is_complete, now).then(|| {
                let claims = self.claims(&state, package);
                (Arc::clone(&package.package), package.crds().to_vec(), claims)
            })
        };
        if let Some((package, histories, claims)) = started {
            let is_first = |state: &State| state.packages[index].acceptance().is_none();
            let outcomes = if claims.is_empty() {
                Some(effects::reconcile(self, &package, &histories, now).await)
            } else {
                None
            };
            let mut state = self.lock();
            // The package was withdrawn, or another revision has taken its place.
            if !Arc::ptr_eq(&state.packages[index].package, &package) || state.packages[index].is_withdrawn()
            {
                self.scheduler.queue.add(state.key(index));
                return Outcome::Done;
            }
            let was_first = is_first(&state);
            let now = self.scheduler.clock.elapsed();
            let findings = match outcomes {
                Some(outcomes) => state.packages[index].record(outcomes, self.identity(None), now),
                None => state.packages[index].record_claims(claims, now),
            };
            state.hand_over_shared(index);
            self.report(&state, index, findings);
            if was_first && !is_first(&state) {
                self.queue_undecided(&state);
            }
        }
        self.publish(&mut self.lock());
        let migrated = self.migrate_stored(index).await;
        let state = self.lock();
        let key = state.key(index);
        let now = self.scheduler.clock.elapsed();
        if !state.is_decided()
            && let Some(rest) = GATHER.checked_sub(now)
        {
            self.scheduler.queue.add_after(key.clone(), rest);
        }
        match state.packages[index].wait() {
            Wait::Backoff => Outcome::Failed,
            Wait::Event if migrated == Migrated::Failed => Outcome::Failed,
            wait => {
                let at = if let Wait::Until(at) = wait { Some(at.saturating_sub(now)) } else { None };
                let turn = if let Migrated::Later(wait) = migrated { Some(wait) } else { None };
                if let Some(wait) = [at, turn].into_iter().flatten().min() {
                    self.scheduler.queue.add_after(key, wait);
                }
                Outcome::Done
            }
        }
    }

    /// Runs a turn of the migration of each CRD of an active package whose storage version has changed.
    async fn migrate_stored(&self, index: usize) -> Migrated {
        let due: Vec<(usize, CrdInfo)> = {
            let state = self.lock();
            let package = &state.packages[index];
            let crds = package.crds().iter().enumerate().filter(|_| package.is_active);
            let known = crds.filter_map(|(position, crd)| Some((position, crd.info()?.clone())));
            let (due, others): (Vec<_>, Vec<_>) = known
                .partition(|(_, info)| !info.outdated.is_empty() && info.lease.as_ref() == Some(&self.lease));
            for (position, _) in others {
                self.forget_migration(package.package.resources[position].crd_name());
            }
            due
        };
        let mut migrated = Migrated::All;
        for (position, info) in due {
            let crd = {
                let state = self.lock();
                state.packages[index].package.resources[position].crd_name().to_owned()
            };
            let cluster = self.effects.clients.own();
            let live = match cluster.get(&CRD, None, &crd).await {
                Ok(live) => live.filter(|live| live["metadata"]["uid"] == info.uid.as_str()),
                Err(error) => {
                    warn!(%crd, %error, "the CRD cannot be read; its stored objects are not migrated yet");
                    migrated = Migrated::Failed;
                    continue;
                }
            };
            let Some(live) = live else { continue };
            let outdated = crd::outdated_versions(&live).join(", ");
            let storage = crd::storage_version(&live).unwrap_or_default().to_owned();
            let (is_warning, reason, text) = match self.migrate(&live).await {
                Ok(Turn::Later(wait)) => {
                    migrated = match migrated {
                        Migrated::All => Migrated::Later(wait),
                        Migrated::Later(other) => Migrated::Later(other.min(wait)),
                        Migrated::Failed => Migrated::Failed,
                    };
                    continue;
                }
                Ok(Turn::Done(_)) if outdated.is_empty() => continue,
                Ok(Turn::Done(count)) => (
                    false,
                    "StorageMigrated",
                    format!(
                        "objects that were stored as {outdated} are stored as {storage} now ({count} written)"
                    ),
                ),
                Err(error) => {
                    if error.is_temporary() {
                        migrated = Migrated::Failed;
                    }
                    let text = format!(
                        "the objects that are stored as {outdated} cannot be migrated to {storage}: {error}"
                    );
                    (true, "StorageMigrationFailed", text)
                }
            };
            if is_warning {
                warn!(%crd, "{text}");
            }
            let regarding = json!({
                "apiVersion": "apiextensions.k8s.io/v1", "kind": CRD.kind,
                "metadata": {"name": crd, "uid": info.uid},
            });
            self.effects.events.publish(&regarding, is_warning, reason, &text);
        }
        migrated
    }

    /// Records a panic in the reconcile of a package, which the queue tries again.
    pub(super) fn package_panicked(&self, index: usize, panic: &str) {
        let mut state = self.lock();
        let findings = state.packages[index].record_panic(panic);
        self.report(&state, index, findings);
        self.queue_undecided(&state);
        self.publish(&mut state);
        drop(state);
        self.tell_operator(index);
    }

    /// Does what is left to do about one CRD.
    pub(super) async fn reconcile_crd(&self, crd: &Arc<str>) -> Outcome {
        let is_unread = self.lock().is_unread(crd);
        let read = if is_unread {
            match self.effects.clients.own().get(&CRD, None, crd).await {
                Ok(live) => Some(live),
                Err(error) => {
                    warn!(%crd, %error, "cannot read the CRD of a package that is not loaded");
                    return Outcome::Failed;
                }
            }
        } else {
            None
        };
        let mut state = self.lock();
        if let Some(live) = read {
            let before = match live.as_ref().and_then(Labelled::of) {
                Some(read) => state.labelled.insert(crd.to_string(), read),
                None => state.labelled.remove(&**crd),
            };
            self.tell_gone_operator(before.as_ref());
        }
        self.relist(&mut state, crd);
        self.publish(&mut state);
        Outcome::Done
    }

    /// Queues packages that were not reconciled yet: they may have waited for another one.
    fn queue_undecided(&self, state: &State) {
        for (index, package) in state.packages.iter().enumerate() {
            if package.acceptance().is_none() {
                self.scheduler.queue.add(state.key(index));
            }
        }
    }

    fn report(&self, state: &State, index: usize, findings: Vec<Finding>) {
        let package = &state.packages[index];
        let name = &package.package.name;
        let crd_name = |position: usize| package.package.resources[position].crd_name();
        for finding in findings {
            match finding {
                Finding::Problem(problem) => {
                    warn!(package = %name, code = problem.code, "{}", problem.message);
                }
                Finding::OtherManager(position, lease) => {
                    warn!(
                        package = %name, crd = crd_name(position), %lease,
                        "another manager has this package active too: stop one of them, or give them different packages"
                    );
                }
                Finding::Warning(position, reason, text) => {
                    let crd = crd_name(position);
                    warn!(%crd, package = %name, "{text}");
                    let uid = package.crds()[position].info().map(|info| &info.uid);
                    let uid = uid.or_else(|| state.live.crds.get(crd).map(|meta| &meta.version.uid));
                    let regarding = json!({
                        "apiVersion": "apiextensions.k8s.io/v1", "kind": CRD.kind,
                        "metadata": {"name": crd, "uid": uid},
                    });
                    self.effects.events.publish(&regarding, true, reason, &text);
                }
            }
        }
    }
}
