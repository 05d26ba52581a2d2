//! The `Operator`s of the cluster. Each is a key of the queue: it is read, the revision that it names is loaded and offered
//! to the CRDs ([`super::crds`]), which say how far it is, and the status is written if it differs. What it decides is in
//! [`crate::operators`].

mod dependencies;
mod fetches;
mod known;
mod movement;
mod rights;
mod rollout;
mod settings;
mod source;
mod start;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tracing::{info, warn};

use super::crds::{View, is_operator_gone};
use super::revisions::Failure;
use super::scheduler::{Key, Outcome};
use crate::api::CallError;
use crate::children::RIGHTS_MISSING;
use crate::children::crds::RIGHTS_LACKING;
use crate::children::names::NOTES;
use crate::diag::Diagnostic;
use crate::operators::upgrade::Kept;
use crate::operators::{
    self, Author, Facts, KUBERNETES_UNSUPPORTED, Lost, MissingRights, Next, OperatorSpec, RevisionProgress,
    SourceRecord, Transition, UNTRUSTED,
};
use crate::package::{Package, store};
use dependencies::Dependencies;
pub(super) use known::OperatorReconciler;
use known::{Known, revision_name};
use rollout::Fleet;
pub(super) use settings::{AllSettings, Serves, Settings};
pub(super) use start::{Found, find, start};

/// How often the instances are counted. It costs no request while their number is the same.
const COUNT: Duration = Duration::from_secs(10);
/// How old the server's version may be, for a package that is active.
const VERSION: Duration = Duration::from_secs(600);
/// For how long after a start the stored status stays while the revision that was active before is registered again.
const REGISTERS_AGAIN: Duration = Duration::from_secs(30);
/// How often an Operator is reconciled while its instances are moved to another revision, if no event comes.
const STAGE: Duration = Duration::from_secs(1);

/// What is known of the active revision beside its progress.
#[derive(Clone, Copy)]
struct Doubts<'a> {
    unstored: Option<&'a str>,
    unsupported: Option<&'a str>,
    untrusted: Option<&'a str>,
    /// Which kinds that it requires are not served.
    missing: Option<&'a str>,
    /// Where it is from.
    source: Option<&'a SourceRecord>,
    /// Whether the progress is about its source.
    is_of_source: bool,
}

impl OperatorReconciler {
    /// Queues an `Operator` that has changed.
    fn changed(&self, name: &Arc<str>) {
        self.changes().insert(Arc::clone(name));
        self.scheduler.queue.add(Key::Operator(Arc::clone(name)));
    }

    /// Reconciles an `Operator`.
    pub(super) async fn reconcile(&self, name: &Arc<str>) -> Outcome {
        let has_changed = self.changes().remove(name);
        let mut known = self.known().remove(name).unwrap_or_default();
        let object = match known.object.take().filter(|_| !has_changed) {
            Some(object) => Some(object),
            None => match self.effects.clients.own().get(&operators::kind(), None, name).await {
                Ok(object) => object,
                Err(error) => {
                    warn!(operator = %name, %error, "the Operator cannot be read");
                    self.known().insert(Arc::clone(name), known);
                    return Outcome::Failed;
                }
            },
        };
        let Some(object) = object.filter(|object| object["metadata"]["deletionTimestamp"].is_null()) else {
            self.store.settings.retract(name);
            self.effects.health.metrics.operator_gone(name);
            self.effects.health.note_rights(name, false);
            return match self.crds.withdraw(name).await {
                Ok(()) => self.take_back(name).await,
                Err(error) => {
                    warn!(operator = %name, %error, "the CRDs of an Operator that is gone cannot be read");
                    Outcome::Failed
                }
            };
        };
        let mut object = object;
        let trouble = self.follow_source(name, &mut object, &mut known).await;
        let (target, view) = self.advance(name, &object, &mut known).await;
        let fleet = self.fleet(name, &view);
        if let Some(active) = &view.active {
            self.keep_stored(name, active, &object, &mut known).await;
        }
        let granted = if let (Some(active), Some(fleet)) = (&view.active, &fleet) {
            let granted = self.grant(active, &object, &view, fleet, known.lacks_rights).await;
            self.prune(active, &object, (fleet, &granted.revisions), &mut known).await;
            granted
        } else {
            self.effects.bindings.granted(name).await
        };
        let (target, moves) =
            self.plan_moves(name, &object, target, &view, fleet.as_ref(), &mut known.movement);
        let rollout = match &target {
            RevisionProgress::RollingOut(rollout) => Some(rollout.clone()),
            _ => None,
        };
        let is_rolling = rollout.is_some();
        // What keeps the source from being followed is reported; the revision before stays, and is rolled out.
        let is_of_source = trouble.is_some();
        let target = trouble.unwrap_or(target);
        let (source, untrusted) = self.check_active(view.active.as_ref(), &object, &mut known).await;
        let rights = self.missing_rights(name, granted).await;
        if let Some(rights) = &rights {
            self.effects.health.note_rights(name, !rights.is_empty());
        }
        known.lacks_rights = rights.as_ref().is_some_and(MissingRights::lacks_any);
        let unsupported = match &view.active {
            Some(active) => self.refuses_kubernetes(active, false, &mut known).await.unwrap_or_default(),
            None => None,
        };
        let missing = match &view.active {
            Some(active) => {
                let (cluster, now) = (self.effects.clients.own(), self.scheduler.clock.elapsed());
                Dependencies::missing(&mut known.dependencies, active, cluster, now).await
            }
            None => None,
        };
        let doubts = Doubts {
            missing: missing.as_deref(),
            unstored: known.unstored.as_deref(),
            unsupported: unsupported.as_deref(),
            untrusted: untrusted.as_deref(),
            source: source.as_ref(),
            is_of_source,
        };
        let is_starting = view.migration.is_none() && (view.active.is_none() || fleet.is_none());
        let keeps = is_starting && self.registers_again(name, &object, &target, &mut known.registers_since);
        let written = if keeps {
            Ok(object)
        } else {
            self.write_status(name, object, (target, rights), &view, fleet.as_ref(), doubts).await
        };
        let outcome = match written {
            Ok(object) => {
                // Instances are moved only once the status records the revision.
                let is_recorded = object["status"]["activeRevision"] == operators::named(&object);
                let moved = if is_recorded {
                    self.move_all(&moves, &view, &mut known.movement).await
                } else {
                    Outcome::Done
                };
                self.effects.note_status(&format!("Operator {name}"), None);
                self.effects.health.metrics.operator(name, &object["status"], rollout.as_ref());
                known.object = Some(object);
                let again = if is_rolling || fleet.is_none() { STAGE } else { COUNT };
                self.scheduler.queue.add_after(Key::Operator(Arc::clone(name)), again);
                moved
            }
            Err(error) => {
                warn!(operator = %name, %error, "the status of the Operator cannot be written");
                self.effects.note_status(&format!("Operator {name}"), Some(&error));
                Outcome::Failed
            }
        };
        self.known().insert(Arc::clone(name), known);
        outcome
    }

    /// Loads the next revision and offers it to the CRDs. Returns how far the named revision is.
    async fn advance(&self, name: &Arc<str>, object: &Value, known: &mut Known) -> (RevisionProgress, View) {
        let view = self.crds.view(name);
        let spec = match OperatorSpec::parse(object) {
            Ok(spec) => spec,
            Err(message) => {
                return (
                    RevisionProgress::Refused { reason: "SpecInvalid", message, is_temporary: false },
                    view,
                );
            }
        };
        if let Err(message) = self.set(name, &spec, &object["status"], &view) {
            return (RevisionProgress::Refused { reason: "SpecInvalid", message, is_temporary: false }, view);
        }
        if spec.revision.is_empty() {
            return (RevisionProgress::Progressing("its source is fetched first".into()), view);
        }
        let active = view.active.as_deref().map(revision_name);
        let recorded = object["status"]["activeRevision"].as_str();
        let mut is_lost = known.lost.is_some() && known.lost.as_deref() == recorded;
        loop {
            let wanted = match operators::next(&spec, active.as_deref(), recorded, is_lost) {
                Next::Nothing => {
                    // A candidate may have been offered before: the active revision takes its place.
                    if let Some(active) = view.active.as_ref().filter(|_| view.next.is_some()) {
                        self.crds.offer(active);
                        return (RevisionProgress::Active { kept: Kept::default() }, self.crds.view(name));
                    }
                    return (RevisionProgress::Active { kept: Kept::default() }, view);
                }
                Next::Paused => return (RevisionProgress::Paused("spec.paused is true".into()), view),
                Next::Recorded(recorded) => recorded,
                Next::Named(named) => named,
            };
            let is_new = Some(wanted) != recorded && Some(wanted) != active.as_deref();
            match self.load_next(name, wanted, is_new, known).await {
                Ok(package) => {
                    known.retry.reset();
                    if !self.crds.offer(&package) {
                        let message = "the manager was given a package of that name as a folder".to_owned();
                        return (
                            RevisionProgress::Refused {
                                reason: "GivenAsFolder",
                                message,
                                is_temporary: false,
                            },
                            view,
                        );
                    }
                    let view = self.crds.view(name);
                    return (progress(&view, &spec), view);
                }
                Err(lost) => {
                    if matches!(
                        lost.reason,
                        "RevisionMissing" | "PartMissing" | "RevisionAltered" | UNTRUSTED
                    ) {
                        known.source.is_lost = true;
                    }
                    self.scheduler.queue.add_after(Key::Operator(Arc::clone(name)), known.retry.failed());
                    if wanted != spec.revision && !lost.is_temporary && !spec.paused {
                        warn!(operator = %name, revision = wanted, "the recorded revision cannot be loaded: {}", lost.message);
                        (known.lost, is_lost) = (Some(wanted.to_owned()), true);
                        continue;
                    }
                    return (RevisionProgress::NotLoaded(lost), view);
                }
            }
        }
    }

    /// Takes the settings of an `Operator` into the store, and queues its instances if the settings have
    /// changed.
    ///
    /// # Errors
    /// What is wrong with it.
    fn set(&self, name: &str, spec: &OperatorSpec, status: &Value, view: &View) -> Result<(), String> {
        let defaults = operators::effective_defaults(spec, status, view.active.as_deref());
        let settings = Settings::of(spec, defaults, &self.namespace)?;
        if settings.reads_namespaces() {
            self.watches.open_operator_kind(&start::namespaces());
        }
        if self.store.settings.set(name, settings) {
            self.watches.place_children();
            self.queue_instances(name);
            self.crds.try_again(name);
        }
        // The defaults of a revision that is not active are not known yet.
        let named = view.active.as_ref().filter(|active| revision_name(active) == spec.revision);
        let wrong = named.map(|named| named.wrong_defaults(&spec.defaults)).unwrap_or_default();
        if wrong.is_empty() {
            return Ok(());
        }
        let wrong = wrong.join("; spec.defaults.");
        Err(format!("spec.defaults.{wrong}. Until all are right, the last valid defaults stay in effect"))
    }

    /// Queues the instances of a package.
    fn queue_instances(&self, package: &str) {
        for registered in self.store.registry().iter().filter(|r| r.operator() == package) {
            self.scheduler.add_all(self.store.instances_of(&registered.crd));
        }
    }

    /// Loads the package of a revision. A new one must support the version of this cluster; one that was
    /// active stays active.
    async fn load_next(
        &self,
        operator: &str,
        revision: &str,
        is_new: bool,
        known: &mut Known,
    ) -> Result<Arc<Package>, Lost> {
        let package = self.load(operator, revision, known).await?;
        if is_new && let Err(lost) = self.refuses_package(&package, known).await {
            // Another signature may be stored meanwhile.
            known.loaded = None;
            return Err(lost);
        }
        match self.refuses_kubernetes(&package, is_new, known).await {
            Ok(Some(message)) if is_new => {
                Err(Lost { reason: KUBERNETES_UNSUPPORTED, message, is_temporary: false })
            }
            Ok(_) => Ok(package),
            Err(_) if !is_new => Ok(package),
            Err(error) => {
                let message = format!("the version of the API server cannot be read: {error}");
                Err(Lost { reason: KUBERNETES_UNSUPPORTED, message, is_temporary: true })
            }
        }
    }

    /// Why a package does not support this cluster. `again`: asks the server even if it was asked a short
    /// while ago.
    async fn refuses_kubernetes(
        &self,
        package: &Package,
        again: bool,
        known: &mut Known,
    ) -> Result<Option<String>, CallError> {
        if package.kubernetes.is_none() {
            return Ok(None);
        }
        let now = self.scheduler.clock.elapsed();
        let is_recent = |(asked, _): &&(Duration, String)| !again && now.saturating_sub(*asked) < VERSION;
        if known.kubernetes.as_ref().as_ref().is_none_or(|x| !is_recent(x)) {
            known.kubernetes = Some((now, self.effects.clients.own().version().await?));
        }
        Ok(known.kubernetes.as_ref().and_then(|(_, version)| package.refuses_kubernetes(version)))
    }

    /// The package of a revision, as it is stored.
    async fn load(&self, operator: &str, revision: &str, known: &mut Known) -> Result<Arc<Package>, Lost> {
        if let Some(loaded) = known.loaded.as_ref().filter(|loaded| revision_name(loaded) == revision) {
            return Ok(Arc::clone(loaded));
        }
        let restored = match self.watches.revisions.loader().read(revision, &mut known.unloadable).await {
            Ok(restored) => restored,
            Err(Failure::Lost { reason, message }) => {
                return Err(Lost { reason, message, is_temporary: false });
            }
            Err(Failure::Call { message, is_temporary }) => {
                return Err(Lost { reason: "RevisionUnreadable", message, is_temporary });
            }
        };
        if restored.package.name != operator {
            let message = format!(
                "OperatorRevision {revision} is of the package {}: an Operator has the name of its package",
                restored.package.name
            );
            return Err(Lost { reason: "RevisionInvalid", message, is_temporary: false });
        }
        // Without an owner the revision works, but its parts stay when it is deleted.
        if let Err(error) = self.watches.revisions.adopt(&restored).await {
            warn!(%operator, revision, %error, "the parts of the revision cannot be given their owner");
        }
        info!(%operator, revision, "the revision is loaded");
        known.provenances.remove(revision);
        known.provenances.extend(restored.provenance.map(|one| (revision.to_owned(), Arc::new(one))));
        let package = Arc::new(restored.package);
        known.loaded = Some(Arc::clone(&package));
        Ok(package)
    }

    /// Stores the active revision again if others have deleted or changed it. Without that it would be missed at the next start.
    async fn keep_stored(&self, name: &str, active: &Arc<Package>, object: &Value, known: &mut Known) {
        let (revision, revisions) = (revision_name(active), &self.watches.revisions);
        if !revisions.has_changed(&revision) {
            known.unstored = None;
            return;
        }
        // An uninstallation deletes the Operator and its revisions: then nothing is stored again.
        if is_operator_gone(self.effects.clients.own(), name).await {
            return;
        }
        let provenance = known.provenances.get(&revision).cloned();
        match revisions.restore(active, provenance.as_deref()).await {
            Ok((mended, provenance)) => {
                known.unstored = None;
                known.provenances.extend(provenance.map(|one| (revision.clone(), Arc::new(one))));
                if mended.is_empty() {
                    return;
                }
                let message = format!(
                    "{} of the active revision {revision} had been deleted or changed, and was stored again as it is \
                     loaded: see who has rights to change it",
                    mended.join(", ")
                );
                warn!(operator = %name, "{message}");
                self.effects.events.publish(object, true, "RevisionRestored", &message);
            }
            Err(error) => {
                let message = format!(
                    "the active revision {revision} was deleted or changed, and cannot be stored again: {error}. It stays \
                     active in this manager; the next one that starts cannot load it"
                );
                warn!(operator = %name, "{message}");
                known.unstored = Some(message);
                self.scheduler.queue.add_after(Key::Operator(name.into()), known.retry.failed());
            }
        }
    }

    /// Deletes revisions that nothing needs, once for each active one.
    async fn prune(
        &self,
        active: &Package,
        object: &Value,
        (fleet, granted): (&Fleet, &BTreeSet<String>),
        known: &mut Known,
    ) {
        let name = revision_name(active);
        if known.pruned.as_ref() == Some(&name) {
            return;
        }
        let status = &object["status"];
        let fetched = &status["source"]["revision"];
        let keep =
            [&object["spec"]["revision"], &status["activeRevision"], &status["previousRevision"], fetched];
        let recorded = fleet.recorded();
        let keep = keep.into_iter().filter_map(Value::as_str).chain(recorded.iter().map(String::as_str));
        let handed_over = self.recorded_elsewhere(&active.name);
        let keep = keep.chain(granted.iter().chain(&handed_over).map(String::as_str));
        let keep: Vec<&str> = keep.collect();
        if let Err(error) = self.watches.revisions.prune(active, &keep).await {
            warn!(package = %active.name, %error, "stored revisions that are not used cannot be pruned");
        }
        known.pruned = Some(name);
    }

    /// The names of the revisions of a package that instances record, of kinds that the package has handed
    /// over.
    fn recorded_elsewhere(&self, package: &str) -> BTreeSet<String> {
        let (registry, index) = (self.store.registry(), self.store.index());
        let gone = registry.iter().filter(|registered| registered.owner().is_former(package));
        let members = gone.flat_map(|registered| index.members_of(&registered.crd));
        let recorded = members.filter_map(|(_, member)| member.revision.as_deref());
        recorded.map(|revision| store::name_of(package, revision)).collect()
    }

    /// Whether the stored status stays for now: this process has started a short while ago, and registers the revision that
    /// was active before, or lists its instances. A restart is no news.
    fn registers_again(
        &self,
        name: &Arc<str>,
        object: &Value,
        target: &RevisionProgress,
        since: &mut Option<Duration>,
    ) -> bool {
        let is_registering = matches!(target, RevisionProgress::Progressing(_));
        let (meta, status) = (&object["metadata"], &object["status"]);
        let was_active =
            status["activeRevision"].is_string() && status["observedGeneration"] == meta["generation"];
        if !is_registering || !was_active {
            return false;
        }
        let now = self.scheduler.clock.elapsed();
        let until = *since.get_or_insert(now) + REGISTERS_AGAIN;
        let left = until.saturating_sub(now);
        if !left.is_zero() {
            self.scheduler.queue.add_after(Key::Operator(Arc::clone(name)), left);
        }
        !left.is_zero()
    }

    /// Writes the status, if it differs. Returns the object with that status.
    async fn write_status(
        &self,
        name: &str,
        object: Value,
        (progress, rights): (RevisionProgress, Option<MissingRights>),
        view: &View,
        fleet: Option<&Fleet>,
        doubts: Doubts<'_>,
    ) -> Result<Value, CallError> {
        let active = view.active.as_deref().map(|active| (revision_name(active), active.version.to_string()));
        let instances = fleet.map(|fleet| self.instances(fleet, view));
        let missing = self.store.settings.missing(name);
        let spec = OperatorSpec::parse(&object).unwrap_or_default();
        let is_valid = |active: &&Arc<Package>| active.wrong_defaults(&spec.defaults).is_empty();
        let valid_defaults = view.active.as_ref().filter(is_valid).map(|_| &spec.defaults);
        let valid_defaults =
            valid_defaults.filter(|valid| !valid.is_empty() || !object["status"]["defaults"].is_null());
        let facts = Facts {
            generation: object["metadata"]["generation"].as_i64().unwrap_or_default(),
            target: object["spec"]["revision"].as_str().unwrap_or_default(),
            author: Author::of(&object),
            progress,
            active: active.as_ref().map(|(revision, version)| (revision.as_str(), version.as_str())),
            valid_defaults,
            instances: instances.as_deref(),
            rights,
            is_of_source: doubts.is_of_source,
            source: doubts.source,
            untrusted: doubts.untrusted,
            unstored: doubts.unstored,
            unsupported: doubts.unsupported,
            missing_dependencies: doubts.missing,
            missing_namespaces: &missing,
            handed_over: &view.handed_over,
            migration: view.migration.as_ref().map(|(is_stuck, text)| (*is_stuck, text.as_str())),
        };
        let now = self.scheduler.clock.now().to_string();
        let Some(patch) = operators::patch(&object["status"], &facts, &now) else { return Ok(object) };
        // The write is for exactly the object that was read, because the status is about its generation.
        let meta = &object["metadata"];
        let patch = serde_json::json!({
            "metadata": {"uid": meta["uid"], "resourceVersion": meta["resourceVersion"]},
            "status": patch,
        });
        let (cluster, kind) = (self.effects.clients.own(), operators::kind());
        let written = cluster.merge_patch(&kind, None, name, Some("status"), &patch, NOTES).await?;
        if let Some(Transition { is_warning, reason, message }) =
            operators::transition(&object["status"], &written["status"])
        {
            if is_warning {
                warn!(operator = %name, reason, "{message}");
            }
            self.effects.events.publish(&written, is_warning, &reason, &message);
        }
        Ok(written)
    }

    /// How many instances each revision has.
    fn instances(&self, fleet: &Fleet, view: &View) -> Vec<(String, usize)> {
        let Some(active) = &view.active else { return Vec::new() };
        let (name, revision) = (revision_name(active), active.revision());
        let mut counts = BTreeMap::from([(name.clone(), 0)]);
        for (key, member) in &fleet.members {
            let used = match &member.revision {
                Some(recorded) if **recorded != *revision => store::name_of(&active.name, recorded),
                _ => self.watches.revisions.used_by(key).unwrap_or_else(|| name.clone()),
            };
            *counts.entry(used).or_default() += 1;
        }
        counts.into_iter().collect()
    }
}

/// The name of the `OperatorRevision` of a package.
/// How far the revision is that the spec names.
fn progress(view: &View, spec: &OperatorSpec) -> RevisionProgress {
    let is_named = |package: &&Arc<Package>| revision_name(package) == spec.revision;
    match (&view.next, &view.active) {
        (None, Some(active)) if is_named(&active) => RevisionProgress::Active { kept: Kept::default() },
        (Some(next), _) if is_named(&next) && !view.problems.is_empty() => {
            let message = view.problems.iter().map(told).collect::<Vec<_>>().join("; ");
            let is_of_rights = view.problems.iter().all(|problem| problem.code == RIGHTS_LACKING);
            let reason = if is_of_rights { RIGHTS_MISSING } else { "CRDRefused" };
            // The manager tries again all the same; a person must grant them.
            let is_temporary = view.is_temporary && !is_of_rights;
            RevisionProgress::Refused { reason, message, is_temporary }
        }
        (Some(next), _) if is_named(&next) => {
            let registered = || "its CRDs are being registered".to_owned();
            RevisionProgress::Progressing(
                view.migration.as_ref().map_or_else(registered, |(_, text)| text.clone()),
            )
        }
        _ if spec.paused => RevisionProgress::Paused("spec.paused is true".into()),
        _ => RevisionProgress::Progressing(
            "the revision that was active before is being registered first".into(),
        ),
    }
}

/// A problem and what to do about it.
fn told(problem: &Diagnostic) -> String {
    match &problem.help {
        Some(help) => format!("{}: {help}", problem.message),
        None => problem.message.clone(),
    }
}
