//! Moves instances to the active revision of their package, in stages ([`crate::operators::upgrade`]). What a stage does
//! follows from the statuses of the instances alone; a move is one write of such a status.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::{Value, json};
use tracing::{info, warn};

use super::{OperatorReconciler, Serves};
use crate::api::Class;
use crate::children::Selector;
use crate::manager::crds::View;
use crate::manager::index::InstanceKey;
use crate::manager::reconcile::Outcome;
use crate::manager::scheduler::Key;
use crate::operators::upgrade::{self, Candidate, Member, Stage};
use crate::operators::{OperatorSpec, Rollout, Target};
use crate::package::store;

/// How many instances are moved in one reconcile. The others follow in the next.
const AT_ONCE: usize = 100;
/// How many instances a status names.
const NAMED: usize = 5;
/// How much it says of each, in characters.
const WHY: usize = 300;

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

    /// The instances to move now, and how far the revision is that is active.
    pub(super) fn plan_moves(
        &self,
        name: &Arc<str>,
        object: &Value,
        target: Target,
        view: &View,
        fleet: Option<&Fleet>,
    ) -> (Target, Vec<InstanceKey>) {
        let (Target::Active, Some(active)) = (&target, &view.active) else { return (target, Vec::new()) };
        let Some(fleet) = fleet else {
            // After a start: what the status says holds.
            let is_ready = crate::operators::standing(object).standing == crate::operators::Standing::Active;
            let listed = Target::Progressing("its instances are being listed".into());
            return (if is_ready { target } else { listed }, Vec::new());
        };
        let (spec, stage) = match self.stage(object, fleet, &active.revision()) {
            Ok(staged) => staged,
            Err(message) => {
                return (Target::Refused { reason: "SpecInvalid", message, is_temporary: false }, Vec::new());
            }
        };
        if stage.is_complete() {
            // Those that keep their revision have it loaded for themselves.
            if self.watches.revisions.drop_former(name) {
                info!(operator = %name, revision = %active.revision(), "all instances were moved to the revision");
                for registered in self.store.registry().iter().filter(|r| r.operator() == &**name) {
                    self.scheduler.queue.add(Key::Crd(Arc::clone(&registered.crd)));
                }
            }
            return (target, Vec::new());
        }
        if spec.paused {
            return (Target::Paused, Vec::new());
        }
        (Target::RollingOut(self.rollout(&stage)), stage.moves)
    }

    /// The next stage.
    fn stage(
        &self,
        object: &Value,
        fleet: &Fleet,
        target: &str,
    ) -> Result<(OperatorSpec, Stage<InstanceKey>), String> {
        let spec = OperatorSpec::parse(object)?;
        let policy = spec.upgrade.policy()?;
        let pin = spec.upgrade.pin.as_ref().map(Selector::parse).transpose();
        let pin = pin.map_err(|error| format!("spec.upgrade.pin: {error}"))?;
        let candidates: Vec<_> = fleet
            .members
            .iter()
            .map(|(key, member)| {
                let has_another = member.revision.as_deref().is_some_and(|revision| revision != target);
                let is_pinned = has_another
                    && (pin.as_ref().is_some_and(|pin| self.is_of(key, pin)) || !self.is_served(key, fleet));
                Candidate { key: key.clone(), member: member.clone(), is_pinned }
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
        let labels = instance["metadata"]["labels"].as_object().into_iter().flatten();
        let labels: BTreeMap<String, String> =
            labels.filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned()))).collect();
        selector.fits(Some(&labels))
    }

    /// A stage for people.
    fn rollout(&self, stage: &Stage<InstanceKey>) -> Rollout {
        let why = |key: &InstanceKey| {
            let instance = self.store.index().instance(key).unwrap_or_default();
            let ready = crate::children::condition(&instance, "Ready");
            let message = ready.and_then(|ready| ready["message"].as_str()).unwrap_or_default();
            message.chars().take(WHY).collect::<String>()
        };
        let failing = stage.failing.iter().take(NAMED).map(|key| (key.to_string(), why(key))).collect();
        let changing = stage.changing.iter().take(NAMED).map(ToString::to_string).collect();
        Rollout {
            moved: stage.moved,
            changing: (changing, stage.changing.len()),
            waiting: stage.waiting,
            kept: stage.kept,
            failing: (failing, stage.failing.len()),
            is_paused: stage.is_paused,
        }
    }

    /// Moves these instances to the active revision.
    pub(super) async fn move_all(&self, keys: &[InstanceKey], view: &View) -> Outcome {
        let Some(active) = &view.active else { return Outcome::Done };
        let revision = active.revision();
        let mut outcome = Outcome::Done;
        for key in keys.iter().take(AT_ONCE) {
            let Some(registered) = self.store.registry().get(&key.crd) else { continue };
            // Another revision, or none, has taken its place meanwhile; or the CRD is not as it should be.
            if registered.revision().as_deref() != Some(&*revision) || self.store.held(&key.crd).is_some() {
                continue;
            }
            let Some(instance) = self.store.index().instance(key) else { continue };
            let meta = &instance["metadata"];
            let generation = meta["generation"].as_i64().unwrap_or_default();
            let now = format!("{:.0}", self.scheduler.clock.now());
            let body = json!({
                "metadata": {"resourceVersion": meta["resourceVersion"], "uid": meta["uid"]},
                "status": upgrade::moved(&instance["status"], generation, &revision, &now),
            });
            let cluster = self.effects.for_instances(&registered);
            let (kind, namespace) = (&registered.kind, key.namespace.as_deref());
            match cluster.merge_patch(kind, namespace, &key.name, Some("status"), &body, "operetta").await {
                Ok(moved) => {
                    self.store.learn_instance(key, &moved);
                    self.scheduler.queue.add(key.clone());
                }
                // It has changed: the next reconcile sees how.
                Err(error) if matches!(error.class, Class::Conflict | Class::NotFound) => {}
                Err(error) => {
                    warn!(instance = %key, %revision, %error, "the instance cannot be moved to the revision");
                    outcome = Outcome::Failed;
                }
            }
        }
        outcome
    }
}
