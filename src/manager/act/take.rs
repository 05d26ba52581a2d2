//! An object stands where a child should be created: whose it is, and whether it may be taken.

use serde_json::{Value, json};
use tracing::{debug, info};

use super::super::Shared;
use super::super::index::Origin;
use super::super::registry::Registered;
use super::apply::apply_body;
use super::{Applied, GOING, NOTES, secrets};
use crate::children::{Apply, Expect, ObjectRef, fields, names};
use crate::cluster::{ApiKind, CallError, Class, Cluster, Trial};

/// What may be done with an object that is in the way.
enum Taking {
    /// It is this instance's, or was that of a former one of its name.
    Ours,
    /// It is foreign, and handed over.
    Adopt,
    /// It is somebody's: who, and what to do.
    No(String),
}

impl Shared {
    /// The object is there though it should not, or is another than expected: look, and take it if it is
    /// ours to take.
    pub(super) async fn after_conflict(
        &self,
        cluster: &Cluster,
        registered: &Registered,
        kind: &ApiKind,
        apply: &Apply,
        mut body: Value,
        error: CallError,
    ) -> Result<Applied, CallError> {
        let object = &apply.intent.object;
        let manager = names::field_manager(registered.operator());
        let live = cluster.get(kind, object.namespace.as_deref(), &object.name).await?;
        let Some(live) = live else {
            if let Expect::Present(uid) = &apply.expect {
                self.index().remove_child(object, uid, None);
            }
            return Ok(Applied::Again);
        };
        let ours = |label: &str| live["metadata"]["labels"][label] == body["metadata"]["labels"][label];
        let labelled = ours(names::INSTANCE_UID);
        // Ours after all: a write whose reply was lost, or a stale cache. Unless somebody took the labels by
        // which we would know it: then it is told what it is once more.
        if labelled && self.learn_child(object, live.clone(), Origin::Read).is_some() {
            return Ok(Applied::Again);
        }
        if !labelled && is_going(&live, &body) {
            let message = format!("{object} of a former instance of that name is still being deleted");
            return Err(CallError::new(Class::Retry, error.code, "Terminating", message).after(GOING));
        }
        let is_trusted = self.is_trusted(&apply.intent, &live, &manager);
        let mut is_taken = labelled;
        let mut is_adopted = false;
        if !labelled {
            match self.taking(kind, &live, &body, apply).await? {
                Taking::Ours => {
                    is_taken = true;
                    // One of a former instance; not one of this instance's that somebody has changed.
                    is_adopted = live["metadata"]["labels"][names::INSTANCE_UID].is_string();
                }
                Taking::Adopt => {
                    is_adopted = true;
                    // Before it gets an entry of ours, which would make it trusted.
                    let origin = secrets::Origin { is_taken, is_trusted };
                    secrets::fill(&apply.intent, Some(&live), origin, &mut body.clone())?;
                    migrate(cluster, kind, apply, &live, &manager).await?;
                }
                Taking::No(why) => {
                    let message = format!("{object} {why}");
                    return Err(CallError::new(Class::Conflict, error.code, "NameTaken", message));
                }
            }
        }
        if let Some(meta) = body["metadata"].as_object_mut() {
            meta.remove("resourceVersion");
            meta.insert("uid".into(), live["metadata"]["uid"].clone());
        }
        secrets::fill(&apply.intent, Some(&live), secrets::Origin { is_taken, is_trusted }, &mut body)?;
        let reply = apply_body(cluster, kind, &body, &manager, apply.force, Trial::None).await?;
        Ok(match self.applied(apply, reply) {
            Applied::Done(observed, _) if is_adopted => Applied::Adopted(observed),
            other => other,
        })
    }

    /// Whether an object that is not labelled as this instance's may become its: it was made for it and
    /// somebody changed the label, it was that of a former instance of the same name and nobody owns it any
    /// more, or a person or the package says so. Never that of another living instance.
    async fn taking(
        &self,
        kind: &ApiKind,
        live: &Value,
        body: &Value,
        apply: &Apply,
    ) -> Result<Taking, CallError> {
        let meta = &live["metadata"];
        let wanted = &body["metadata"];
        let label = |meta: &Value, label: &str| meta["labels"][label].as_str().map(str::to_owned);
        let uid = label(wanted, names::INSTANCE_UID).unwrap_or_default();
        let owners = meta["ownerReferences"].as_array().map(Vec::as_slice).unwrap_or_default();
        if let Some(former) = label(meta, names::INSTANCE_UID)
            && let Some(owner) = self.index().by_uid(&former).map(ToString::to_string)
        {
            return Ok(Taking::No(belongs(&owner)));
        }
        // The hash of an intent covers the instance's uid, so no other object has it.
        let intent = |meta: &Value| meta["annotations"][names::INTENT].as_str().map(str::to_owned);
        let made_for_it = intent(meta).is_some() && intent(meta) == intent(wanted);
        // One kind, namespace and name has one instance at a time, and this one lives.
        let same = [names::OPERATOR, names::KIND, names::INSTANCE, names::INSTANCE_NAMESPACE]
            .iter()
            .all(|name| label(meta, name) == label(wanted, name));
        if made_for_it || owners.iter().any(|owner| owner["uid"] == *uid) || (same && owners.is_empty()) {
            return Ok(Taking::Ours);
        }
        // Whoever applies a piece of it under our name takes everything else from it, labels, owner and hash
        // included. It is the same object nevertheless, and we have seen whose it was.
        let object = meta["uid"].as_str().unwrap_or_default();
        let stripped = label(meta, names::INSTANCE_UID).is_none() && owners.is_empty();
        if stripped && self.index().was_child_of(object, &uid) {
            return Ok(Taking::Ours);
        }
        let annotated = meta["annotations"][names::ADOPT] == "true";
        if !annotated && !apply.adopt {
            return Ok(Taking::No(format!(
                "exists and does not belong to this instance: delete it, or hand it over by `{}`; it is tried again \
                 within minutes, and at once when the instance changes",
                handing_over(kind, &apply.intent.object)
            )));
        }
        if let Some(owner) = self.living_owner(meta).await? {
            return Ok(Taking::No(belongs(&owner)));
        }
        if let Some(owner) = owners.iter().find(|owner| owner["controller"] == true) {
            let text = |field: &str| owner[field].as_str().unwrap_or_default().to_owned();
            return Ok(Taking::No(format!(
                "cannot be adopted: {} {} controls it; delete that one first, leaving this (--cascade=orphan)",
                text("kind"),
                text("name")
            )));
        }
        Ok(Taking::Adopt)
    }

    /// The living instance whose child an object is by its labels, though the index does not know its uid.
    async fn living_owner(&self, meta: &Value) -> Result<Option<String>, CallError> {
        let label = |label: &str| meta["labels"][label].as_str();
        let Some(uid) = label(names::INSTANCE_UID) else { return Ok(None) };
        let (kind, name) =
            (label(names::KIND).unwrap_or_default(), label(names::INSTANCE).unwrap_or_default());
        let Some(registered) = self.registry().by_kind_label(kind) else {
            // Perhaps another manager's. A person who annotates the object knows.
            let known = meta["annotations"][names::ADOPT] == "true";
            return Ok((!known).then(|| format!("{kind} {name}, a kind that this manager does not know")));
        };
        let namespace = label(names::INSTANCE_NAMESPACE).or(meta["namespace"].as_str());
        let namespace = namespace.filter(|namespace| !namespace.is_empty());
        let live = self.for_instances(&registered).get(&registered.kind, namespace, name).await?;
        Ok(live.filter(|live| live["metadata"]["uid"] == uid).map(|_| format!("{kind} {name}")))
    }
}

/// The command by which a person hands an object over.
fn handing_over(kind: &ApiKind, object: &ObjectRef) -> String {
    let group = if kind.group.is_empty() { String::new() } else { format!(".{}", kind.group) };
    let place = object.namespace.as_ref().map(|namespace| format!("-n {namespace} ")).unwrap_or_default();
    format!("kubectl {place}annotate {}{group} {} {}=true", kind.plural, object.name, names::ADOPT)
}

/// Before an adoption: what client-side apply declared becomes our declaration, so that the apply replaces
/// it, and later ones remove what they leave out.
async fn migrate(
    cluster: &Cluster,
    kind: &ApiKind,
    apply: &Apply,
    live: &Value,
    manager: &str,
) -> Result<(), CallError> {
    let object = &apply.intent.object;
    let meta = &live["metadata"];
    info!(object = %object, child = %apply.item, "taking over an object that somebody else has made");
    let Some(entries) = fields::take_client_side(&meta["managedFields"], manager) else { return Ok(()) };
    debug!(object = %object, "migrating the fields of client-side apply");
    let patch = json!([
        {"op": "replace", "path": "/metadata/resourceVersion", "value": meta["resourceVersion"]},
        {"op": "replace", "path": "/metadata/managedFields", "value": entries},
    ]);
    cluster.json_patch(kind, object.namespace.as_deref(), &object.name, &patch, NOTES).await.map(drop)
}

fn belongs(owner: &str) -> String {
    format!(
        "belongs to {owner}, which lives: two instances cannot share it; give one of them another name, or delete \
         it there"
    )
}

/// Whether the object was a child of a former instance of the same name and is on its way out: terminating,
/// or the garbage collector's.
fn is_going(live: &Value, body: &Value) -> bool {
    let meta = &live["metadata"];
    let label = |meta: &Value, label: &str| meta["labels"][label].as_str().map(str::to_owned);
    let same = [names::OPERATOR, names::KIND, names::INSTANCE, names::INSTANCE_NAMESPACE]
        .iter()
        .all(|name| label(meta, name) == label(&body["metadata"], name));
    let Some(former) = label(meta, names::INSTANCE_UID).filter(|_| same) else { return false };
    let owned = meta["ownerReferences"].as_array().is_some_and(|all| all.iter().any(|o| o["uid"] == *former));
    former.as_str() != body["metadata"]["labels"][names::INSTANCE_UID]
        && (owned || !meta["deletionTimestamp"].is_null())
}
