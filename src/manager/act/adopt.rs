//! Adoption: whether an existing object with the name of a new child may become the child.

use serde_json::{Value, json};
use tracing::{debug, info};

use super::super::index::Provenance;
use super::super::registry::Registered;
use super::apply::apply_body;
use super::reclaim::FieldOwnership;
use super::{Executor, GOING, NOTES, Reply};
use crate::api::{ApiKind, CallError, Class};
use crate::children::adoption::{self, Adopted, Adoption, AdoptionContext, Claimant};
use crate::children::{Apply, Expect, Ownership, fields, names};
use crate::cluster::{Cluster, Trial};

impl Executor {
    /// Handles an apply whose precondition failed, because the object exists or is another one than expected:
    /// reads the object, and adopts it if that is allowed.
    pub(super) async fn after_conflict(
        &self,
        cluster: &Cluster,
        registered: &Registered,
        kind: &ApiKind,
        apply: &Apply,
        mut body: Value,
        error: CallError,
    ) -> Result<Reply, CallError> {
        let object = &apply.desired.object;
        let manager = names::field_manager(registered.operator());
        let live = cluster.get(kind, object.namespace.as_deref(), &object.name).await?;
        let Some(live) = live else {
            if let Expect::Present(uid) = &apply.expect {
                self.store.index().remove_child(object, uid, None);
            }
            return Ok(Reply::Again);
        };
        let ours = |label: &str| live["metadata"]["labels"][label] == body["metadata"]["labels"][label];
        let labelled = ours(names::INSTANCE_UID);
        // The object is a child of this instance: the reply to a write was lost, or the cache was stale. If
        // the store cannot take it for a child, because another client has changed its labels, it is applied
        // again.
        if labelled && self.learn_child(object, live.clone(), Provenance::Read).is_some() {
            return Ok(Reply::Again);
        }
        // An object of the package that has handed the kind over counts as one of this package.
        let (owner, mut left) = (registered.owner(), live.clone());
        let former =
            live["metadata"]["labels"][names::OPERATOR].as_str().filter(|name| owner.is_former(name));
        if former.is_some() {
            left["metadata"]["labels"][names::OPERATOR] = owner.package.as_ref().into();
        }
        if !labelled && adoption::is_going(&left, &body) {
            let message = format!("{object} of a former instance of that name is still being deleted");
            return Err(CallError::new(Class::Retry, error.code, "Terminating", message).after(GOING));
        }
        let mut is_taken = labelled;
        let mut adopted = None;
        if !labelled {
            match self.adoption(kind, &left, &body, apply).await? {
                Adoption::Ours => is_taken = true,
                Adoption::Inherited => {
                    if self.is_unseen(registered, apply, &live, &body) {
                        debug!(object = %object, "a former instance has left an object that the decision has not seen");
                        return Ok(Reply::Again);
                    }
                    (is_taken, adopted) = (true, Some(Adopted::Inherited));
                }
                Adoption::HandedOver => {
                    adopted = Some(Adopted::HandedOver);
                    // The values are checked before anything is changed: if they are refused, the object
                    // stays as it is.
                    self.complete_with(&apply.desired, Some(&live), is_taken, &mut body.clone()).await?;
                    migrate(cluster, kind, apply, &live, &manager).await?;
                }
                Adoption::Refused(why) => {
                    let message = format!("{object} {why}");
                    return Err(CallError::new(Class::Conflict, error.code, "AlreadyExists", message));
                }
            }
        }
        let ownership = FieldOwnership { cluster, kind, desired: &apply.desired, manager: &manager };
        let is_first = former.is_none() && fields::of_manager(&live, &manager).is_none();
        if let Some(former) = former {
            ownership.take_over(former, registered.operator()).await?;
        }
        if let Some(meta) = body["metadata"].as_object_mut() {
            meta.remove("resourceVersion");
            meta.insert("uid".into(), live["metadata"]["uid"].clone());
        }
        self.complete_with(&apply.desired, Some(&live), is_taken, &mut body).await?;
        let reply = apply_body(cluster, kind, &body, &manager, apply.policy.conflicts, Trial::None).await?;
        let reply = ownership.own_alone(reply, is_first, apply.policy.conflicts).await;
        Ok(self.applied(apply, reply, adopted))
    }

    /// Whether a deleted instance of that name has left the object and the decision was made without it, because a watch
    /// lags. Templates may read the object, and an apply of what they rendered without it would overwrite what it says. It is
    /// in the index afterwards.
    fn is_unseen(&self, registered: &Registered, apply: &Apply, live: &Value, body: &Value) -> bool {
        let object = &apply.desired.object;
        let uid = live["metadata"]["uid"].as_str().unwrap_or_default();
        if apply.adopts.as_deref() == Some(uid)
            || self.learn_child(object, live.clone(), Provenance::Read).is_none()
        {
            return false;
        }
        let instance = body["metadata"]["labels"][names::INSTANCE_UID].as_str().unwrap_or_default();
        let index = self.store.index();
        let Some(key) = index.by_uid(instance) else { return false };
        let mut left = index.previous_children(key, instance).into_iter();
        left.any(|left| *left.uid == *uid && !left.owner_reference)
            && registered.reaches(key.namespace.as_deref(), object)
    }

    /// Whether an object that is not labelled as a child of this instance may be adopted.
    async fn adoption(
        &self,
        kind: &ApiKind,
        live: &Value,
        body: &Value,
        apply: &Apply,
    ) -> Result<Adoption, CallError> {
        let claimant = Claimant::of(live);
        let uid = live["metadata"]["uid"].as_str().unwrap_or_default();
        let instance = body["metadata"]["labels"][names::INSTANCE_UID].as_str().unwrap_or_default();
        let known = {
            let index = self.store.index();
            let owner = claimant.and_then(|claimant| index.by_uid(claimant.uid)).map(ToString::to_string);
            AdoptionContext { owner, was_child: index.was_child_of(uid, instance) }
        };
        let found = adoption::adoption(
            kind,
            &apply.desired.object,
            live,
            body,
            apply.policy.ownership == Ownership::Adopt,
            &known,
        );
        if found != Adoption::HandedOver {
            return Ok(found);
        }
        let living = match claimant {
            Some(claimant) => self.living(claimant, live).await?,
            None => None,
        };
        Ok(living.or_else(|| adoption::controlled(live)).map_or(found, Adoption::Refused))
    }

    /// Why an object is not adopted if the instance that its labels name is alive, though the index does not know its
    /// uid.
    async fn living(&self, claimant: Claimant<'_>, object: &Value) -> Result<Option<String>, CallError> {
        let Some(registered) = self.store.registry().by_kind_label(claimant.kind) else {
            return Ok(claimant.unknown(object));
        };
        let cluster = self.effects.for_instances(&registered);
        let live = cluster.get(&registered.kind, claimant.namespace, claimant.name).await?;
        Ok(live.filter(|live| live["metadata"]["uid"] == *claimant.uid).map(|_| claimant.refusal()))
    }
}

/// Moves the fields of client-side apply into our entry before an adoption, so that the apply replaces them,
/// and later ones remove what they leave out.
async fn migrate(
    cluster: &Cluster,
    kind: &ApiKind,
    apply: &Apply,
    live: &Value,
    manager: &str,
) -> Result<(), CallError> {
    let object = &apply.desired.object;
    let meta = &live["metadata"];
    info!(object = %object, child = %apply.item, "adopting an object that another client created");
    let Some(entries) = fields::adopt_client_side(&meta["managedFields"], manager) else { return Ok(()) };
    debug!(object = %object, "migrating the fields of client-side apply");
    let patch = json!([
        {"op": "replace", "path": "/metadata/resourceVersion", "value": meta["resourceVersion"]},
        {"op": "replace", "path": "/metadata/managedFields", "value": entries},
    ]);
    cluster.json_patch(kind, object.namespace.as_deref(), &object.name, None, &patch, NOTES).await.map(drop)
}
