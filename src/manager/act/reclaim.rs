//! What an apply alone cannot do to managedFields: reclaiming fields from other managers, giving up fields that are not
//! ours, and owning alone what others have created or restored.

use serde_json::{Value, json};
use tracing::{debug, warn};

use super::NOTES;
use crate::api::{ApiKind, CallError, Cause, Class, ObjectRef};
use crate::children::fields::{self, FieldPath};
use crate::children::{Apply, Desired, Expect, names};
use crate::cluster::Cluster;
use crate::package::{ConflictPolicy, REPLICAS};

/// How often a patch of managedFields is tried while other clients write the object. After that nothing is applied: it would remove
/// what has not left our entry.
const ATTEMPTS: usize = 5;

/// The manager to which the API server attributes what existed before the first apply.
const BEFORE_FIRST_APPLY: &str = "before-first-apply";

/// Ownership of the fields of one object: what is applied, and by which manager.
#[derive(Clone, Copy)]
pub(super) struct FieldOwnership<'a> {
    pub cluster: &'a Cluster,
    pub kind: &'a ApiKind,
    pub desired: &'a Desired,
    pub manager: &'a str,
}

/// Fields of other managers that were moved into our entry, so that the next apply removes them.
pub(super) struct Moved {
    paths: Vec<FieldPath>,
    /// The managedFields as they were.
    before: Value,
    /// The resourceVersion since then.
    version: Value,
}

impl Moved {
    /// Makes the precondition of an apply, if it has one, that nothing was written since.
    pub(super) fn renew(&self, body: &mut Value) {
        // An index would insert null, which a server takes for an object without a version, and refuses.
        if let Some(version) = body["metadata"].get_mut("resourceVersion") {
            version.clone_from(&self.version);
        }
    }
}

impl FieldOwnership<'_> {
    /// Before the apply: items of a keyed list that another manager has put in place of ours are moved into our entry, so
    /// that the apply removes them. Otherwise the apply is refused each time, or leaves both. Fields of other managers
    /// leave our entry. A yielded field that has no other owner yet gets its live value.
    pub(super) async fn prepare(self, apply: &Apply, body: &mut Value) -> Result<Option<Moved>, CallError> {
        if apply.expect == Expect::Absent {
            return Ok(None);
        }
        if apply.repair.foreign_fields {
            self.release_excess(&apply.expect).await?;
        }
        if apply.repair.omitted_replicas {
            self.release_replicas(&apply.expect).await?;
        }
        let mut moved = None;
        if apply.repair.lost_items {
            let all = |live: &Value| fields::conflicting_items(live, &self.desired.body, self.manager);
            moved = self.reclaim(all, apply.policy.conflicts).await?;
            if let Some(moved) = &moved {
                moved.renew(body);
            }
        }
        if let Err(error) = self.respect_yields(body).await {
            if let Some(moved) = &moved {
                self.give_back(moved).await;
            }
            return Err(error);
        }
        Ok(moved)
    }

    /// Reads the object once more before an apply that concerns yielded fields, and makes what was read its precondition. There is
    /// no apply if another manager has taken over a field that it sets.
    async fn respect_yields(self, body: &mut Value) -> Result<(), CallError> {
        let (keep, set) = (&self.desired.keep, &self.desired.yields);
        if keep.is_empty() && set.is_empty() {
            return Ok(());
        }
        let Some(live) = self.live().await? else { return Ok(()) };
        for text in set {
            let path: Vec<&str> = text.split('.').collect();
            if fields::is_taken_over(&live, self.manager, &path) {
                let message = format!("another manager has set {text} of {} meanwhile", self.desired.object);
                return Err(CallError::new(Class::Conflict, 409, "Conflict", message));
            }
        }
        for text in keep {
            let path: Vec<&str> = text.split('.').collect();
            if let Some(value) = path.iter().try_fold(&live, |value, name| value.get(name)) {
                put(body, &path, value);
            }
        }
        body["metadata"]["resourceVersion"] = live["metadata"]["resourceVersion"].clone();
        Ok(())
    }

    /// After a refusal: items of other managers in place of ours, fields that the server names as excluding ours, and
    /// former members of unions are moved into our entry. If something was moved, the same apply may succeed now; if it
    /// does not, see [`FieldOwnership::give_back`].
    pub(super) async fn resolve_conflict(
        self,
        apply: &Apply,
        refusal: &CallError,
    ) -> Result<Option<Moved>, CallError> {
        if refusal.code != 422 || apply.expect == Expect::Absent {
            return Ok(None);
        }
        let find = |live: &Value| self.conflicting_fields(live, refusal, apply.policy.conflicts);
        self.reclaim(find, ConflictPolicy::Force).await
    }

    /// Whether [`FieldOwnership::resolve_conflict`] would move something after such a refusal.
    pub(super) async fn is_resolvable(
        self,
        refusal: &CallError,
        conflicts: ConflictPolicy,
    ) -> Result<bool, CallError> {
        if refusal.code != 422 {
            return Ok(false);
        }
        let Some(live) = self.live().await? else { return Ok(false) };
        let conflicting = self.conflicting_fields(&live, refusal, conflicts);
        Ok(fields::move_to_ours(&live["metadata"]["managedFields"], self.manager, &conflicting).is_some())
    }

    /// The fields of others that a refusal is about: items in place of ours in a list that the server names, fields that it
    /// names as excluding ours, and former members of unions. None if conflicts are to fail and a manager owns one of them.
    fn conflicting_fields(
        self,
        live: &Value,
        refusal: &CallError,
        conflicts: ConflictPolicy,
    ) -> Vec<FieldPath> {
        let (desired, manager) = (&*self.desired.body, self.manager);
        let mut paths = fields::conflicting_items(live, desired, manager);
        paths.retain(|path| refusal.causes.iter().any(|cause| path.is_in_list_of(&cause.field)));
        let exclusive = refusal.exclusive_fields().unwrap_or_default();
        paths.extend(fields::excluding(live, desired, manager, exclusive).unwrap_or_default());
        if !refusal.is_immutable_change() && !refusal.is_of_policy() {
            let faults = refusal.causes.iter().map(|cause| cause.field.as_str());
            paths.extend(fields::former_members(live, desired, manager, faults));
        }
        if conflicts == ConflictPolicy::Fail && !paths.iter().all(|path| fields::is_ownerless(live, path)) {
            paths.clear();
        }
        paths
    }

    async fn reclaim(
        self,
        find: impl Fn(&Value) -> Vec<FieldPath>,
        conflicts: ConflictPolicy,
    ) -> Result<Option<Moved>, CallError> {
        let object = &self.desired.object;
        let mut attempts = 1..ATTEMPTS;
        loop {
            let Some(live) = self.live().await? else { return Ok(None) };
            let paths = find(&live);
            let meta = &live["metadata"];
            let Some(entries) = fields::move_to_ours(&meta["managedFields"], self.manager, &paths) else {
                return Ok(None);
            };
            if conflicts == ConflictPolicy::Fail {
                return Err(conflict(object, &paths, &live));
            }
            debug!(object = %object, fields = paths.len(), "reclaiming fields from other managers");
            match self.write_entries(&meta["resourceVersion"], &entries, None).await {
                // Another client, mostly a controller, has written the object meanwhile: try again.
                Err(error) if error.class == Class::Conflict && attempts.next().is_some() => {}
                Err(error) => return Err(error),
                Ok(reply) => {
                    let version = reply["metadata"]["resourceVersion"].clone();
                    return Ok(Some(Moved { paths, before: meta["managedFields"].clone(), version }));
                }
            }
        }
    }

    /// Gives moved fields back to their owners after an apply that was refused nevertheless. Otherwise the
    /// next apply that succeeds, perhaps of another desired object, would remove them.
    pub(super) async fn give_back(self, moved: &Moved) {
        let result = self.rewrite(|live| {
            let entries = &live["metadata"]["managedFields"];
            Some((fields::release(entries, self.manager, &moved.paths, Some(&moved.before))?, None))
        });
        if let Err(error) = result.await {
            warn!(object = %self.desired.object, %error, "fields of others stay in our entry until the next apply");
        }
    }

    /// Takes over an object that was applied for a package which has handed its kind over: the label names ours, and what the
    /// other one has applied is our apply from now on. Both change at once, so that the object is a child at any time. The
    /// live object is that of the other package until then.
    pub(super) async fn take_over(self, former: &str, package: &str) -> Result<(), CallError> {
        let (from, to) = (names::field_manager(former), names::field_manager(package));
        let label = format!("/metadata/labels/{}", names::OPERATOR.replace('/', "~1"));
        let label = json!({"op": "replace", "path": label, "value": package});
        self.rewrite(|live| {
            let meta = &live["metadata"];
            let is_theirs = meta["labels"][names::OPERATOR] == former;
            let entries = is_theirs.then(|| fields::hand_over(&meta["managedFields"], &from, &to))??;
            Some((entries, Some(label.clone())))
        })
        .await
    }

    /// Releases the fields of our entry that the desired object does not have, if the object was last applied
    /// with it.
    async fn release_excess(self, expect: &Expect) -> Result<(), CallError> {
        self.rewrite(|live| {
            let meta = &live["metadata"];
            let is_same = *expect == Expect::Present(meta["uid"].as_str()?.into());
            let owned = fields::of_manager(live, self.manager)?;
            let entries = &meta["managedFields"];
            // In another version of the kind fields may have other names.
            let is_as_applied = meta["annotations"][names::INTENT] == *self.desired.hash
                && fields::is_in_version(entries, self.manager, &self.desired.object.gvk.api_version);
            let all = fields::uncovered(&self.desired.body, &owned).is_none();
            let paths = fields::excess(&self.desired.body, &owned, &self.desired.keep, all);
            let released = fields::release(entries, self.manager, &paths, None)?;
            (is_same && is_as_applied).then_some((released, None))
        })
        .await
    }

    /// Releases the number of replicas, which the desired object leaves out: if the apply removed it, the API server would set
    /// its default.
    async fn release_replicas(self, expect: &Expect) -> Result<(), CallError> {
        let replicas = [FieldPath::of(&REPLICAS)];
        self.rewrite(|live| {
            let meta = &live["metadata"];
            let is_same = *expect == Expect::Present(meta["uid"].as_str()?.into());
            let released = fields::release(&meta["managedFields"], self.manager, &replicas, None)?;
            is_same.then_some((released, None))
        })
        .await
    }

    /// Changes the managedFields of the live object, and what else the patch has; `None` leaves them.
    async fn rewrite(
        self,
        change: impl Fn(&Value) -> Option<(Value, Option<Value>)>,
    ) -> Result<(), CallError> {
        let mut attempts = 1..ATTEMPTS;
        loop {
            let Some(live) = self.live().await? else { return Ok(()) };
            let Some((entries, more)) = change(&live) else { return Ok(()) };
            match self.write_entries(&live["metadata"]["resourceVersion"], &entries, more).await {
                Err(error) if error.class == Class::Conflict && attempts.next().is_some() => {}
                result => return result.map(drop),
            }
        }
    }

    /// After an apply: removes the entry that the server adds to an object without managedFields, and, if our entry is new on
    /// an object that existed (`is_first`), our fields from the entries of plain writes, unless conflicts are to fail. Both
    /// would keep the fields that we give up later. Returns the object as it is then.
    pub(super) async fn own_alone(self, reply: Value, is_first: bool, conflicts: ConflictPolicy) -> Value {
        let meta = &reply["metadata"];
        let takes = is_first && conflicts == ConflictPolicy::Force;
        let Some(entries) = self.alone(&meta["managedFields"], takes) else { return reply };
        let error = match self.write_entries(&meta["resourceVersion"], &entries, None).await {
            Ok(patched) => return patched,
            Err(error) => error,
        };
        // A controller has written its status, as controllers do when an object appears.
        let result = if error.class == Class::Conflict {
            self.rewrite(|live| Some((self.alone(&live["metadata"]["managedFields"], takes)?, None))).await
        } else {
            Err(error)
        };
        if let Err(error) = result {
            warn!(object = %self.desired.object, %error, "other clients still own fields that we apply");
        }
        reply
    }

    /// The managedFields that [`FieldOwnership::own_alone`] writes; `None` if it changes nothing.
    fn alone(self, managed_fields: &Value, takes: bool) -> Option<Value> {
        let is_former = |entry: &Value| entry["manager"] == BEFORE_FIRST_APPLY;
        let all = managed_fields.as_array()?;
        let taken = if takes { fields::take_from_updates(managed_fields, self.manager) } else { None };
        if taken.is_none() && !all.iter().any(is_former) {
            return None;
        }
        let rest = taken.as_ref().and_then(Value::as_array).unwrap_or(all);
        Some(rest.iter().filter(|entry| !is_former(entry)).cloned().collect())
    }

    async fn live(self) -> Result<Option<Value>, CallError> {
        let object = &self.desired.object;
        self.cluster.get(self.kind, object.namespace.as_deref(), &object.name).await
    }

    /// Writes the managedFields, and `more` with them.
    async fn write_entries(
        self,
        version: &Value,
        entries: &Value,
        more: Option<Value>,
    ) -> Result<Value, CallError> {
        let object = &self.desired.object;
        let mut patch = vec![
            // An outdated resourceVersion is answered with 409. A failed `test` would be a 422, like a patch
            // that can never succeed.
            json!({"op": "replace", "path": "/metadata/resourceVersion", "value": version}),
            json!({"op": "replace", "path": "/metadata/managedFields", "value": entries}),
        ];
        patch.extend(more);
        let (namespace, patch) = (object.namespace.as_deref(), Value::Array(patch));
        self.cluster.json_patch(self.kind, namespace, &object.name, None, &patch, NOTES).await
    }
}

/// The error about items of another manager in place of ours, in the form in which the server reports field
/// conflicts.
fn conflict(object: &ObjectRef, conflicting_items: &[FieldPath], live: &Value) -> CallError {
    let causes = conflicting_items.iter().map(|conflicting| Cause {
        field: conflicting.to_string(),
        reason: "FieldManagerConflict".into(),
        message: format!(
            "conflict with {:?}",
            fields::holder(live, conflicting).unwrap_or_else(|| "?".to_owned())
        ),
    });
    let message = format!("another manager has put other items in place of those of {object}");
    let mut error = CallError::new(Class::Conflict, 409, "Conflict", message);
    error.causes = causes.collect();
    error
}

/// Sets a field, unless a parent of it is no map.
fn put(body: &mut Value, path: &[&str], value: &Value) {
    match path {
        [] => body.clone_from(value),
        [first, rest @ ..] => {
            if let Value::Object(map) = body {
                put(map.entry((*first).to_owned()).or_insert_with(|| json!({})), rest, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_precondition_that_there_is_becomes_newer() {
        let moved = Moved { paths: Vec::new(), before: Value::Null, version: "7".into() };
        let mut with = json!({"metadata": {"name": "a", "resourceVersion": "5"}});
        moved.renew(&mut with);
        assert_eq!(with["metadata"]["resourceVersion"], "7");
        let mut without = json!({"metadata": {"name": "a"}});
        moved.renew(&mut without);
        assert_eq!(without, json!({"metadata": {"name": "a"}}));
    }
}
