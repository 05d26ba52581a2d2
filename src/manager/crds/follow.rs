//! Packages of `Operator`s: they come, change their revision and go while the manager runs. Another revision is a candidate
//! until it is known that all its CRDs will be accepted; then it takes the place of the active one, whose instances are
//! reconciled as before until the new CRDs are ready.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tracing::{info, warn};

use super::effects::{self, RIGHTS};
use super::state::{CRD, Candidate, CrdReconciler, Followed, Labelled, State};
use crate::api::CallError;
use crate::children::crds::{MIGRATING, PackageCrds, RIGHTS_LACKING, left_behind};
use crate::diag::Diagnostic;
use crate::manager::rights;
use crate::manager::scheduler::{Key, Outcome};
use crate::package::{Package, Resource};

/// How long until a refused candidate is tried again if no CRD of it changes.
const AGAIN: Duration = Duration::from_secs(60);
/// How long until a candidate is tried again if other packages or instances keep it from being active.
const SOON: Duration = Duration::from_secs(1);

/// The package of an `Operator`.
#[derive(Default)]
pub(in crate::manager) struct View {
    /// The active revision.
    pub(in crate::manager) active: Option<Arc<Package>>,
    /// The revision that is to be active next.
    pub(in crate::manager) next: Option<Arc<Package>>,
    /// Why it is not active yet.
    pub(in crate::manager) problems: Vec<Diagnostic>,
    /// Whether all these problems may pass by themselves.
    pub(in crate::manager) is_temporary: bool,
    /// How far the migration of stored objects is, and whether it does not proceed.
    pub(in crate::manager) migration: Option<(bool, String)>,
    /// The CRDs of the active revision that belong to other packages now: each CRD, and its package.
    pub(in crate::manager) handed_over: Vec<(String, String)>,
}

impl State {
    /// The packages whose instances are reconciled, except that one.
    pub(super) fn shown_besides<'a>(&'a self, package: &'a str) -> impl Iterator<Item = &'a PackageCrds> {
        self.shown().filter(move |shown| shown.package.name != package)
    }

    pub(super) fn index_of(&self, package: &str) -> Option<usize> {
        self.packages.iter().position(|known| known.package.name == package)
    }
}

impl CrdReconciler {
    /// Makes this package of an `Operator` the one that is to be active. Returns `false` if the manager was
    /// given a package of that name.
    pub(in crate::manager) fn offer(&self, package: &Arc<Package>) -> bool {
        let mut state = self.lock();
        state.awaited.remove(&package.name);
        let Some(index) = state.index_of(&package.name) else {
            let index = state.packages.len();
            state.packages.push(PackageCrds::new(Arc::clone(package)));
            state.followed.insert(index, Followed::default());
            self.scheduler.queue.add(state.key(index));
            return true;
        };
        let State { packages, followed, .. } = &mut *state;
        let (known, Some(followed)) = (&mut packages[index], followed.get_mut(&index)) else { return false };
        let is_candidate = |candidate: &Candidate| candidate.package.digest == package.digest;
        if known.is_withdrawn() {
            (*known, *followed) = (PackageCrds::new(Arc::clone(package)), Followed::default());
        } else if known.package.digest == package.digest {
            followed.candidate = None;
            return true;
        } else if followed.candidate.as_ref().is_some_and(is_candidate) {
            return true;
        } else {
            followed.candidate =
                Some(Candidate { package: Arc::clone(package), refusals: Vec::new(), at: Duration::ZERO });
        }
        self.scheduler.queue.add(state.key(index));
        true
    }

    /// Withdraws a package that no `Operator` names any more. Its instances and their children stay as they
    /// are.
    ///
    /// # Errors
    /// A CRD cannot be read.
    pub(in crate::manager) async fn withdraw(&self, name: &str) -> Result<(), CallError> {
        let (index, crds) = {
            let mut state = self.lock();
            state.awaited.remove(name);
            let Some(index) = state.index_of(name) else { return Ok(()) };
            if !state.followed.contains_key(&index) || state.packages[index].is_withdrawn() {
                return Ok(());
            }
            let former = state.followed[&index].former.as_deref();
            let packages = former.into_iter().chain([&state.packages[index]]);
            let resources = packages.flat_map(|package| &package.package.resources);
            (index, resources.map(|resource| resource.crd_name().to_owned()).collect::<Vec<_>>())
        };
        let mut read = Vec::new();
        for crd in crds {
            let live = self.effects.clients.own().get(&CRD, None, &crd).await?;
            read.extend(live.as_ref().and_then(Labelled::of).map(|labelled| (crd, labelled)));
        }
        let mut state = self.lock();
        for resource in &state.packages[index].package.resources {
            self.forget_migration(resource.crd_name());
        }
        state.packages[index].withdraw();
        state.followed.insert(index, Followed::default());
        state.labelled.extend(read.into_iter().filter(|(_, labelled)| labelled.package == name));
        info!(package = %name, "no Operator brings this package any more: its instances are left as they are");
        // Other packages may be refused because of its CRDs.
        self.retry_refused(&mut state);
        self.publish(&mut state);
        Ok(())
    }

    /// Tries again what is refused, because the reason may be gone.
    pub(super) fn retry_refused(&self, state: &mut State) {
        for index in 0..state.packages.len() {
            state.packages[index].read_again();
            if let Some(candidate) = state.followed.get_mut(&index).and_then(|f| f.candidate.as_mut()) {
                candidate.at = Duration::ZERO;
            }
            self.scheduler.queue.add(state.key(index));
        }
    }

    /// The state of the package of an `Operator`, for its status.
    pub(in crate::manager) fn view(&self, name: &str) -> View {
        let state = self.lock();
        let Some(index) = state.index_of(name).filter(|index| !state.packages[*index].is_withdrawn()) else {
            return View::default();
        };
        let (known, Some(followed)) = (&state.packages[index], state.followed.get(&index)) else {
            return View::default();
        };
        let shown = if known.is_active { Some(known) } else { followed.former.as_deref() };
        let crds = known.package.resources.iter().map(Resource::crd_name);
        let migration = self.migrations.progress(crds);
        let active = shown.map(|shown| Arc::clone(&shown.package));
        let handed_over = shown.map(|shown| self.handed_over(shown)).unwrap_or_default();
        if let Some(Candidate { package, refusals, .. }) = &followed.candidate {
            let is_temporary = !refusals.is_empty() && refusals.iter().all(|(_, is_temporary)| *is_temporary);
            let problems = refusals.iter().map(|(problem, _)| problem.clone()).collect();
            let next = Some(Arc::clone(package));
            return View { active, next, problems, is_temporary, migration, handed_over };
        }
        if known.is_active {
            return View { active, migration, handed_over, ..View::default() };
        }
        let (problems, is_temporary) = match known.acceptance() {
            Some(acceptance) => (acceptance.problems.clone(), acceptance.is_temporary),
            None => (Vec::new(), false),
        };
        // A migration takes its time, which is no refusal.
        let problems = problems.into_iter().filter(|problem| problem.code != MIGRATING).collect();
        let next = Some(Arc::clone(&known.package));
        View { active, next, problems, is_temporary, migration, handed_over }
    }

    /// Tries the candidate of a package, if there is one and it is due. If nothing keeps it from being active, it takes the
    /// place of the active revision.
    pub(super) async fn try_candidate(&self, index: usize) -> Outcome {
        let now = self.scheduler.clock.elapsed();
        let (package, gone, mut refusals) = {
            let state = self.lock();
            let candidate = state.followed.get(&index).and_then(|followed| followed.candidate.as_ref());
            let Some(candidate) = candidate else { return Outcome::Done };
            if let Some(rest) = candidate.at.checked_sub(now).filter(|rest| !rest.is_zero()) {
                self.scheduler.queue.add_after(state.key(index), rest);
                return Outcome::Done;
            }
            let claims = self.claims(&state, &PackageCrds::new(Arc::clone(&candidate.package)));
            let mut refusals: Vec<(Diagnostic, bool)> =
                claims.into_iter().map(|claim| (claim, false)).collect();
            let gone = gone(&state.packages[index], &candidate.package);
            let known = gone.iter().map(|crd| (crd, self.store.instances_of(crd).len()));
            refusals.extend(
                known
                    .filter(|(_, count)| *count > 0)
                    .map(|(crd, count)| (left_behind(crd, count, &candidate.package), false)),
            );
            (Arc::clone(&candidate.package), gone, refusals)
        };
        // These refusals are checked again soon, because that costs no request.
        let mut again = if refusals.is_empty() { AGAIN } else { SOON };
        // The store may not have listed all instances yet, so the API server is asked.
        if refusals.is_empty() {
            refusals = self.live_left_behind(&gone, &package).await;
        }
        if refusals.is_empty() {
            refusals = effects::try_out(self, &package).await;
        }
        if refusals.is_empty() {
            self.grant(&package).await;
            refusals = self.lacking_rights(&package).await;
            if refusals.is_empty() {
                refusals = self.lacking_for_taken(&package).await;
            }
            again = RIGHTS;
        }
        let mut state = self.lock();
        let now = self.scheduler.clock.elapsed();
        let key = state.key(index);
        let State { packages, followed, .. } = &mut *state;
        let Some(followed) = followed.get_mut(&index) else { return Outcome::Done };
        let Some(candidate) = followed.candidate.as_mut().filter(|c| Arc::ptr_eq(&c.package, &package))
        else {
            // Another candidate has replaced it meanwhile.
            self.scheduler.queue.add(key);
            return Outcome::Done;
        };
        if refusals.is_empty() {
            followed.candidate = None;
            let former = std::mem::replace(&mut packages[index], PackageCrds::new(package));
            for resource in &former.package.resources {
                self.forget_migration(resource.crd_name());
            }
            let gone = former.package.resources.iter().map(|resource| resource.crd_name().to_owned());
            let gone: Vec<String> = gone.filter(|crd| packages[index].position(crd).is_none()).collect();
            if former.is_active {
                followed.former = Some(Box::new(former));
            }
            for crd in gone {
                self.scheduler.queue.add(Key::Crd(crd.into()));
            }
            return Outcome::Done;
        }
        let is_temporary = refusals.iter().all(|(_, is_temporary)| *is_temporary);
        if candidate.refusals != refusals {
            for (problem, _) in &refusals {
                warn!(package = %package.name, revision = %package.revision(), code = problem.code,
                    "the revision is refused: {}", problem.message);
            }
        }
        candidate.refusals = refusals;
        candidate.at = now + if is_temporary { Duration::from_millis(100) } else { again };
        if is_temporary {
            return Outcome::Failed;
        }
        self.scheduler.queue.add_after(key, again);
        Outcome::Done
    }

    /// The refusals of CRDs with instances that a revision does not have any more, as the API server has them.
    async fn live_left_behind(&self, gone: &[String], package: &Package) -> Vec<(Diagnostic, bool)> {
        let cluster = self.effects.clients.own();
        let mut refusals = Vec::new();
        for crd in gone {
            let live = match cluster.get(&CRD, None, crd).await {
                Ok(live) => effects::names(cluster, live.as_ref()).await,
                Err(error) => Err(error),
            };
            match live {
                Ok(names) if names.is_empty() => {}
                Ok(names) => refusals.push((left_behind(crd, names.len(), package), false)),
                Err(error) => {
                    let message = format!("it is not known whether the CRD {crd} has instances: {error}");
                    refusals.push((Diagnostic::error("crd::unread", message), true));
                }
            }
        }
        refusals
    }

    /// Grants the rights of a revision that is about to be active.
    pub(super) async fn grant(&self, package: &Package) {
        let settings = self.store.settings.get(&package.name);
        let names = settings.as_ref().and_then(|settings| settings.names().cloned());
        self.effects.bindings.offer(self.effects.means(&self.namespace), package, names).await;
    }

    /// The rights that the account of a package lacks for a revision. Such a revision would harm the
    /// instances of the active one as well, because the kinds of children are watched for all instances.
    async fn lacking_rights(&self, package: &Package) -> Vec<(Diagnostic, bool)> {
        if !self.effects.clients.has_accounts() {
            return Vec::new();
        }
        let mut homes = BTreeSet::new();
        let registry = self.store.registry();
        for registered in registry.iter().filter(|registered| registered.operator() == package.name) {
            if !self.watches.lists_instances(registered) {
                let message = format!("the instances of the CRD {} are being listed", registered.crd);
                return vec![(Diagnostic::error("crd::unlisted", message), true)];
            }
            homes.extend(self.store.instances_of(&registered.crd).into_iter().map(|key| key.namespace));
        }
        let clients = &self.effects.clients;
        match rights::lacking(clients, &self.store, (package, None), &homes, &self.namespace).await {
            Ok(None) => Vec::new(),
            Ok(Some(message)) => vec![(Diagnostic::error(RIGHTS_LACKING, message), false)],
            Err(error) => {
                let message = format!("the rights of the package {} are not known: {error}", package.name);
                vec![(Diagnostic::error("rights::unread", message), true)]
            }
        }
    }

    /// Tries candidates again that may wait for a CRD which has changed.
    pub(super) fn crd_of_candidate(&self, state: &mut State, crd: &str) {
        let mut due = Vec::new();
        for (index, followed) in &mut state.followed {
            if let Some(candidate) = &mut followed.candidate
                && candidate.package.position(crd).is_some()
                && !candidate.refusals.is_empty()
            {
                candidate.at = Duration::ZERO;
                due.push(*index);
            }
        }
        for index in due {
            self.scheduler.queue.add(state.key(index));
        }
    }

    /// Queues the `Operator` of a package that is not active, because a CRD of its changes: if the `Operator` is gone, fewer rights may be
    /// needed. A manager that is given folders follows none.
    pub(super) fn tell_gone_operator(&self, labelled: Option<&Labelled>) {
        if let Some(labelled) = labelled.filter(|_| self.follows) {
            self.scheduler.queue.add(Key::Operator(labelled.package.as_str().into()));
        }
    }

    /// Queues the `Operator` of a package, whose status may have to change.
    pub(super) fn tell_operator(&self, index: usize) {
        let state = self.lock();
        if state.followed.contains_key(&index) && !state.packages[index].is_withdrawn() {
            let name = state.packages[index].package.name.as_str();
            self.scheduler.queue.add(Key::Operator(name.into()));
        }
    }
}

/// The CRDs of a package that another revision of it does not have. What was handed over is not its own any more.
fn gone(package: &PackageCrds, next: &Package) -> Vec<String> {
    let crds = package.package.resources.iter().map(Resource::crd_name).filter(|crd| package.keeps(crd));
    crds.filter(|crd| next.position(crd).is_none()).map(str::to_owned).collect()
}
