//! The rights of a package: granted, taken back, and compared with what is needed.

use std::sync::Arc;

use serde_json::Value;
use tracing::warn;

use super::known::{OperatorReconciler, revision_name};
use super::rollout::Fleet;
use super::{STAGE, View};
use crate::manager::bindings::Granted;
use crate::manager::effects::Effects;
use crate::manager::rights;
use crate::manager::scheduler::{Key, Outcome};
use crate::operators::MissingRights;
use crate::package::Package;

impl OperatorReconciler {
    /// Grants the account the rights of the revisions in use, and takes back others.
    pub(super) async fn grant(
        &self,
        active: &Package,
        object: &Value,
        view: &View,
        fleet: &Fleet,
        again: bool,
    ) -> Granted {
        let mut in_use = rights::in_use(&self.store, &active.name);
        in_use.revisions.insert(revision_name(active));
        in_use.revisions.extend(fleet.recorded());
        in_use.active = Some(revision_name(active));
        let next = view.next.as_deref().map(revision_name);
        let next = [object["spec"]["revision"].as_str(), next.as_deref()];
        let mut reasons = self.store.settings.missing(&active.name);
        reasons.push(object["metadata"]["generation"].to_string());
        let how = (&next[..], reasons, again);
        self.effects.bindings.set(self.effects.means(&self.namespace), &active.name, in_use, how).await
    }

    /// Takes back the rights of a package whose `Operator` is gone, but for those by which the children of instances that were left
    /// are deleted with them.
    pub(super) async fn take_back(&self, name: &Arc<str>) -> Outcome {
        if !self.effects.clients.has_accounts() {
            return Outcome::Done;
        }
        if !self.effects.health.is_registered() || !self.crds.has_published(name) {
            self.scheduler.queue.add_after(Key::Operator(Arc::clone(name)), STAGE);
            return Outcome::Done;
        }
        let in_use = rights::in_use(&self.store, name);
        let means = self.effects.means(&self.namespace);
        match self.effects.bindings.take_back(means, name, in_use).await {
            Ok(()) => Outcome::Done,
            Err(error) => {
                warn!(operator = %name, %error, "the rights of a package whose Operator is gone cannot be taken back");
                Outcome::Failed
            }
        }
    }

    /// The rights that are missing for a package. Sends no request while nothing is missing.
    pub(super) async fn missing_rights(&self, name: &Arc<str>, granted: Granted) -> Option<MissingRights> {
        let Effects { clients, rights, .. } = &*self.effects;
        let refused = self.watches.refused_of(name);
        let Granted { refused: mut manager, gone, changed, .. } = granted;
        manager.extend(self.watches.refused_to_manager(name));
        // A right that was granted may have been taken back.
        let again = !refused.is_empty() || !manager.is_empty();
        let of = |user: String, rights: Vec<String>, manager: Vec<String>| {
            Some(MissingRights { user, rights, refused, manager, gone, changed })
        };
        match rights.missing_of_package(clients, &self.store, name, &self.namespace, again).await {
            Ok(Some(missing)) => {
                manager.extend(missing.of_manager);
                of(missing.user, missing.rights.into_iter().collect(), manager)
            }
            // Packages have no accounts.
            Ok(None) => Some(MissingRights::default()),
            // The manager may not act as the account, and so cannot ask for its rights.
            Err(error) if error.is_unauthorized() => {
                manager.push(error.to_string());
                of(clients.user_of(name).unwrap_or_default(), Vec::new(), manager)
            }
            Err(error) => {
                warn!(operator = %name, %error, "the rights of the package cannot be asked for");
                None
            }
        }
    }
}
