//! Moves instances to the active revision of their package, in stages ([`crate::operators::upgrade`]). What a stage does
//! follows from the statuses of the instances alone; a move is one write of such a status.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tracing::{info, warn};

use super::known::OperatorReconciler;
use super::movement::{FailedMove, Movement};
use super::settings::Serves;
use crate::api::{CallError, Class};
use crate::facts::condition;
use crate::manager::crds::View;
use crate::manager::index::{InstanceKey, ReadChange};
use crate::manager::registry::Registered;
use crate::manager::scheduler::{Key, Outcome};
use crate::operators::upgrade::{self, Candidate, Member, Stage};
use crate::operators::{OperatorSpec, RevisionProgress, Rollout, Standing};
use crate::package::store;
use crate::printable;
use crate::selector::Selector;

/// How many instances are moved in one reconcile. The others follow in the next.
const AT_ONCE: usize = 100;
/// How many instances a status names.
const NAMED: usize = 5;
/// How many characters a status has about each instance.
const WHY: usize = 300;
/// How often a move is tried if other clients write the instance meanwhile: an instance that is written all
/// the time must not delay the others.
const ATTEMPTS: usize = 3;
/// How long until a move that has failed is tried again.
const AGAIN: Duration = Duration::from_secs(30);

/// The instances of a package.
pub(super) struct Fleet {
    /// The name of the package.
    package: String,
    pub(super) members: Vec<(InstanceKey, Member)>,
}

impl Fleet {
    /// The names of the revisions that instances record.
    pub(super) fn recorded(&self) -> BTreeSet<String> {
        let recorded = self.members.iter().filter_map(|(_, member)| member.revision.as_deref());
        recorded.map(|revision| store::name_of(&self.package, revision)).collect()
    }
}

impl OperatorReconciler {
    /// The instances of an `Operator`; `None` while they are being listed.
    pub(super) fn fleet(&self, name: &str, view: &View) -> Option<Fleet> {
        let mut members = Vec::new();
        if view.active.is_some() {
            let registry = self.store.registry();
            for registered in registry.iter().filter(|registered| registered.operator() == name) {
                if !self.watches.lists_instances(registered) {
                    return None;
                }
                let index = self.store.index();
                let of_crd = index.members_of(&registered.crd);
                members.extend(of_crd.map(|(key, member)| (key.clone(), member.clone())));
            }
        }
        Some(Fleet { package: name.to_owned(), members })
    }

    /// The instances to move now, and how far the active revision is.
    pub(super) fn plan_moves(
        &self,
        name: &Arc<str>,
        object: &Value,
        target: RevisionProgress,
        view: &View,
        fleet: Option<&Fleet>,
        movement: &mut Movement,
    ) -> (RevisionProgress, Vec<InstanceKey>) {
        let (RevisionProgress::Active { .. }, Some(active)) = (&target, &view.active) else {
            *movement = Movement::default();
            return (target, Vec::new());
        };
        let Some(fleet) = fleet else {
            // After a start the status stays as it is until the instances are listed.
            let is_ready = matches!(crate::operators::standing(object).standing, Standing::Active(_));
            let listed = RevisionProgress::Progressing("its instances are being listed".into());
            return (if is_ready { target } else { listed }, Vec::new());
        };
        let now = self.scheduler.clock.elapsed();
        movement.update(&fleet.members, &active.revision(), now);
        let (spec, stage) = match self.stage(object, fleet, &active.revision(), (movement, now)) {
            Ok(staged) => staged,
            Err(message) => {
                return (
                    RevisionProgress::Refused { reason: "SpecInvalid", message, is_temporary: false },
                    Vec::new(),
                );
            }
        };
        if stage.is_complete() {
            // Instances that keep their revision have it loaded for themselves.
            if self.watches.revisions.drop_former(name) {
                info!(operator = %name, revision = %active.revision(), "all instances were moved to the revision");
                for registered in self.store.registry().iter().filter(|r| r.operator() == &**name) {
                    self.scheduler.queue.add(Key::Crd(Arc::clone(&registered.crd)));
                }
            }
            return (RevisionProgress::Active { kept: stage.kept }, Vec::new());
        }
        let rollout = self.rollout(&stage, movement);
        if spec.paused {
            return (
                RevisionProgress::Paused(format!("spec.paused is true; {}", rollout.message())),
                Vec::new(),
            );
        }
        (RevisionProgress::RollingOut(rollout), stage.moves)
    }

    /// Computes the next stage from the spec and the instances.
    fn stage(
        &self,
        object: &Value,
        fleet: &Fleet,
        target: &str,
        (movement, now): (&Movement, Duration),
    ) -> Result<(OperatorSpec, Stage<InstanceKey>), String> {
        let spec = OperatorSpec::parse(object)?;
        let policy = spec.upgrade.policy()?;
        let pin = spec.upgrade.pin.as_ref().map(Selector::parse).transpose();
        let pin = pin.map_err(|error| format!("spec.upgrade.pin: {error}"))?;
        let is_hold_over = policy.is_hold_over(&object["status"], self.scheduler.clock.now());
        let pin = pin.filter(|_| !is_hold_over);
        let candidates: Vec<_> = fleet
            .members
            .iter()
            .map(|(key, member)| {
                let has_another = member.revision.as_deref().is_some_and(|revision| revision != target);
                let is_pinned = has_another && pin.as_ref().is_some_and(|pin| self.is_of(key, pin));
                let is_served = !has_another || self.is_served(key, fleet);
                let is_overdue = movement.is_overdue(key, now, policy.deadline);
                let attempt = movement.attempt(key, now);
                let (key, member, is_kept_by_pause) = (key.clone(), member.clone(), !is_hold_over);
                Candidate { key, member, is_pinned, is_served, is_kept_by_pause, is_overdue, attempt }
            })
            .collect();
        Ok((spec, upgrade::stage(&candidates, target, &policy)))
    }

    /// Whether the instance is reconciled.
    fn is_served(&self, key: &InstanceKey, fleet: &Fleet) -> bool {
        let all = &self.store.settings;
        let settings = all.get(&fleet.package);
        settings.is_none_or(|settings| all.serves(&settings, key.namespace.as_deref()) == Serves::Yes)
    }

    /// Whether a selector selects an instance.
    fn is_of(&self, key: &InstanceKey, selector: &Selector) -> bool {
        let instance = self.store.index().instance(key).unwrap_or_default();
        selector.fits(|key| instance["metadata"]["labels"][key].as_str())
    }

    /// Describes a stage for people.
    fn rollout(&self, stage: &Stage<InstanceKey>, movement: &Movement) -> Rollout {
        let why = |key: &InstanceKey| {
            let instance = self.store.index().instance(key).unwrap_or_default();
            let ready = condition(&instance, "Ready");
            let message = ready.and_then(|ready| ready["message"].as_str()).unwrap_or_default();
            let late =
                if Member::of(&instance).is_stalled() { "" } else { "not ready within the deadline: " };
            printable::clip(&format!("{late}{message}"), WHY).into_owned()
        };
        let refusal = |key: &InstanceKey| {
            let refusal = movement.failed.get(key).and_then(|failed| failed.refusal.as_deref());
            (key.to_string(), printable::clip(refusal.unwrap_or_default(), WHY).into_owned())
        };
        let refused = stage.refused.iter().take(NAMED).map(refusal).collect();
        let failing = stage.failing.iter().take(NAMED).map(|key| (key.to_string(), why(key))).collect();
        let changing = stage.changing.iter().take(NAMED).map(ToString::to_string).collect();
        Rollout {
            moved: stage.moved,
            changing: (changing, stage.changing.len()),
            waiting: stage.waiting,
            kept: stage.kept,
            failing: (failing, stage.failing.len()),
            refused: (refused, stage.refused.len()),
            is_paused: stage.is_paused,
        }
    }

    /// Moves these instances to the active revision.
    pub(super) async fn move_all(
        &self,
        keys: &[InstanceKey],
        view: &View,
        movement: &mut Movement,
    ) -> Outcome {
        let Some(active) = &view.active else { return Outcome::Done };
        let revision = active.revision();
        let mut outcome = Outcome::Done;
        for key in keys.iter().take(AT_ONCE) {
            let Some(registered) = self.store.registry().get(&key.crd) else { continue };
            // Another revision, or none, has taken its place meanwhile; or the CRD is not as it should be.
            if registered.revision().as_deref() != Some(&*revision) || self.store.held(&key.crd).is_some() {
                continue;
            }
            let Err(error) = self.move_one(key, &registered, &revision).await else {
                movement.failed.remove(key);
                continue;
            };
            if error.is_fenced() {
                return Outcome::Failed;
            }
            warn!(instance = %key, %revision, %error, "the instance cannot be moved to the revision");
            let refusal = (error.class == Class::Permanent).then(|| error.to_string());
            if refusal.is_none() {
                outcome = Outcome::Failed;
            }
            let at = self.scheduler.clock.elapsed() + AGAIN;
            movement.failed.insert(key.clone(), FailedMove { at, refusal });
        }
        outcome
    }

    /// Moves an instance, unless it has changed so that it is not to be moved now.
    async fn move_one(
        &self,
        key: &InstanceKey,
        registered: &Registered,
        revision: &str,
    ) -> Result<(), CallError> {
        let Some(mut instance) = self.store.index().instance(key) else { return Ok(()) };
        let cluster = self.effects.for_instances(registered);
        let (kind, namespace) = (&registered.kind, key.namespace.as_deref());
        let mut attempts = 0;
        loop {
            attempts += 1;
            let meta = &instance["metadata"];
            let generation = meta["generation"].as_i64().unwrap_or_default();
            let now = format!("{:.0}", self.scheduler.clock.now());
            let body = json!({
                "metadata": {"resourceVersion": meta["resourceVersion"], "uid": meta["uid"]},
                "status": upgrade::moved(&instance["status"], generation, revision, &now),
            });
            match cluster.merge_patch(kind, namespace, &key.name, Some("status"), &body, "operetta").await {
                Ok(moved) => {
                    self.store.learn_instance(key, &moved);
                    self.scheduler.queue.add(key.clone());
                    return Ok(());
                }
                Err(error) if error.class == Class::NotFound => return Ok(()),
                Err(error) if error.class == Class::Conflict => {
                    let uid = meta["uid"].clone();
                    let live = cluster.get(kind, namespace, &key.name).await?;
                    if self.store.learn_read(key, uid.as_str(), live.as_ref()) != ReadChange::None {
                        self.scheduler.queue.add(key.clone());
                    }
                    let Some(live) = live.filter(|live| live["metadata"]["uid"] == uid) else {
                        return Ok(());
                    };
                    let member = Member::of(&live);
                    let is_same = member.revision.as_deref() == instance["status"]["revision"].as_str();
                    if !is_same || member.is_busy() || !live["metadata"]["deletionTimestamp"].is_null() {
                        return Ok(());
                    }
                    if attempts == ATTEMPTS {
                        return Err(error);
                    }
                    instance = live;
                }
                Err(error) => return Err(error),
            }
        }
    }
}
