//! What an apply alone cannot do: taking away what others have put in the place of ours, keeping what is given
//! up until somebody has it, and what was said of an object whose managedFields somebody has emptied.

use serde_json::{Value, json};
use tracing::{debug, warn};

use super::NOTES;
use crate::children::fields::{self, FieldPath, FieldSet};
use crate::children::{Apply, Expect, Intent, ObjectRef, names};
use crate::cluster::{ApiKind, CallError, Cause, Class, Cluster};

/// How often a patch of managedFields is made anew because somebody else wrote the object meanwhile.
const ATTEMPTS: usize = 5;

/// Whom the API server makes the owner of all that was there before the first apply.
const BEFORE_FIRST_APPLY: &str = "before-first-apply";

/// What is applied, and by whom.
#[derive(Clone, Copy)]
pub(super) struct Hand<'a> {
    pub cluster: &'a Cluster,
    pub kind: &'a ApiKind,
    pub intent: &'a Intent,
    pub manager: &'a str,
}

/// Fields of others that are in our entry now, so that the next apply removes them.
pub(super) struct Moved {
    paths: Vec<FieldPath>,
    /// The managedFields as they were.
    before: Value,
}

impl Hand<'_> {
    /// Before the apply. Items that somebody has put into a keyed list in place of ours are moved into our entry, so
    /// that the apply removes them: otherwise the apply would be refused again and again, or leave both. Fields of others that
    /// an earlier version has moved there leave the entry. What is yielded and has no other owner yet gets its live value.
    pub(super) async fn prepare(self, apply: &Apply, body: &mut Value) -> Result<Option<Moved>, CallError> {
        if apply.expect == Expect::Absent {
            return Ok(None);
        }
        if apply.exceeds {
            self.release_excess(&apply.expect).await?;
        }
        let mut moved = None;
        if apply.lost_items {
            let all = |live: &Value| fields::strays(live, &self.intent.body, self.manager);
            moved = self.win_back(all, apply.force).await?;
        }
        if self.intent.keep.is_empty() {
            return Ok(moved);
        }
        let live = match self.live().await {
            Ok(Some(live)) => live,
            Ok(None) => return Ok(moved),
            Err(error) => {
                if let Some(moved) = &moved {
                    self.give_back(moved).await;
                }
                return Err(error);
            }
        };
        for path in &self.intent.keep {
            let path: Vec<&str> = path.split('.').collect();
            if let Some(value) = path.iter().try_fold(&live, |value, name| value.get(name)) {
                put(body, &path, value);
            }
        }
        Ok(moved)
    }

    /// After a refusal: items of others in place of ours, and fields of others that the server names as excluding
    /// ours, are moved into our entry. If
    /// something was moved, the same apply may succeed now; if it does not, see [`Hand::give_back`].
    pub(super) async fn make_way(
        self,
        apply: &Apply,
        refusal: &CallError,
    ) -> Result<Option<Moved>, CallError> {
        if refusal.code != 422 || apply.expect == Expect::Absent || !apply.force {
            return Ok(None);
        }
        self.win_back(|live| self.named_by(live, refusal), true).await
    }

    /// Whether [`Hand::make_way`] would move something after such a refusal.
    pub(super) async fn is_in_the_way(self, refusal: &CallError) -> Result<bool, CallError> {
        if refusal.code != 422 {
            return Ok(false);
        }
        let Some(live) = self.live().await? else { return Ok(false) };
        let strays = self.named_by(&live, refusal);
        Ok(fields::take_over(&live["metadata"]["managedFields"], self.manager, &strays).is_some())
    }

    /// What of others is at fault: items in place of ours in a list that the server names, and fields that it
    /// names as excluding ours.
    fn named_by(self, live: &Value, refusal: &CallError) -> Vec<FieldPath> {
        let mut paths = fields::strays(live, &self.intent.body, self.manager);
        paths.retain(|path| refusal.causes.iter().any(|cause| path.is_in_list_of(&cause.field)));
        let exclusive = refusal.exclusive_fields().unwrap_or_default();
        paths.extend(fields::excluding(live, &self.intent.body, self.manager, exclusive).unwrap_or_default());
        paths
    }

    async fn win_back(
        self,
        find: impl Fn(&Value) -> Vec<FieldPath>,
        force: bool,
    ) -> Result<Option<Moved>, CallError> {
        let object = &self.intent.object;
        for _ in 0..ATTEMPTS {
            let Some(live) = self.live().await? else { return Ok(None) };
            let paths = find(&live);
            let meta = &live["metadata"];
            let Some(entries) = fields::take_over(&meta["managedFields"], self.manager, &paths) else {
                return Ok(None);
            };
            if !force {
                return Err(conflict(object, &paths, &meta["managedFields"]));
            }
            debug!(object = %object, strays = paths.len(), "winning back what somebody else has put there");
            match self.write_entries(&meta["resourceVersion"], &entries).await {
                // Somebody, a controller mostly, was faster.
                Err(error) if error.class == Class::Conflict => {}
                Err(error) => return Err(error),
                Ok(_) => return Ok(Some(Moved { paths, before: meta["managedFields"].clone() })),
            }
        }
        Ok(None)
    }

    /// After an apply that was refused all the same: what was moved goes back to its owners. Otherwise the next
    /// apply that succeeds, perhaps of another intent, would remove it.
    pub(super) async fn give_back(self, moved: &Moved) {
        let result = self.rewrite(|live| {
            let entries = &live["metadata"]["managedFields"];
            fields::release(entries, self.manager, &moved.paths, Some(&moved.before))
        });
        if let Err(error) = result.await {
            warn!(object = %self.intent.object, %error, "fields of others stay in our entry until the next apply");
        }
    }

    /// What our entry has beyond the intent with which the object was applied last is not ours.
    async fn release_excess(self, expect: &Expect) -> Result<(), CallError> {
        self.rewrite(|live| {
            let meta = &live["metadata"];
            let is_same = *expect == Expect::Present(meta["uid"].as_str()?.into());
            let owned = FieldSet::of_manager(live, self.manager)?;
            let entries = &meta["managedFields"];
            // In another version of the kind fields may have other names.
            let is_as_applied = meta["annotations"][names::INTENT] == *self.intent.hash
                && fields::is_in_version(entries, self.manager, &self.intent.object.api_version);
            let all = fields::uncovered(&self.intent.body, &owned).is_none();
            let paths = fields::excess(&self.intent.body, &owned, &self.intent.keep, all);
            fields::release(entries, self.manager, &paths, None).filter(|_| is_same && is_as_applied)
        })
        .await
    }

    /// Changes the managedFields of the live object; `None` leaves them.
    async fn rewrite(self, change: impl Fn(&Value) -> Option<Value>) -> Result<(), CallError> {
        for _ in 0..ATTEMPTS {
            let Some(live) = self.live().await? else { return Ok(()) };
            let Some(entries) = change(&live) else { return Ok(()) };
            match self.write_entries(&live["metadata"]["resourceVersion"], &entries).await {
                Err(error) if error.class == Class::Conflict => {}
                result => return result.map(drop),
            }
        }
        Ok(())
    }

    /// Where managedFields were emptied, the server takes all that it finds for somebody's, who would keep
    /// what we let go of later. Nobody is more like it. If that fails now, it costs no more than that.
    pub(super) async fn disown_the_rest(self, reply: Value) -> Value {
        let is_former = |entry: &Value| entry["manager"] == BEFORE_FIRST_APPLY;
        let Some(entries) = reply["metadata"]["managedFields"].as_array() else { return reply };
        if !entries.iter().any(is_former) {
            return reply;
        }
        let entries: Value = entries.iter().filter(|entry| !is_former(entry)).cloned().collect();
        match self.write_entries(&reply["metadata"]["resourceVersion"], &entries).await {
            Ok(patched) => patched,
            Err(error) => {
                debug!(object = %self.intent.object, %error, "an owner of what was there before stays");
                reply
            }
        }
    }

    async fn live(self) -> Result<Option<Value>, CallError> {
        let object = &self.intent.object;
        self.cluster.get(self.kind, object.namespace.as_deref(), &object.name).await
    }

    async fn write_entries(self, version: &Value, entries: &Value) -> Result<Value, CallError> {
        let object = &self.intent.object;
        let patch = json!([
            // A test that fails would be a 422, like a patch that can never do; this is a 409.
            {"op": "replace", "path": "/metadata/resourceVersion", "value": version},
            {"op": "replace", "path": "/metadata/managedFields", "value": entries},
        ]);
        self.cluster.json_patch(self.kind, object.namespace.as_deref(), &object.name, &patch, NOTES).await
    }
}

/// What the server says of a field that another manager has taken, said of items that stand in the way.
fn conflict(object: &ObjectRef, strays: &[FieldPath], managed_fields: &Value) -> CallError {
    let causes = strays.iter().map(|stray| Cause {
        field: stray.to_string(),
        reason: "FieldManagerConflict".into(),
        message: format!("conflict with {:?}", fields::holder(managed_fields, stray).unwrap_or("?")),
    });
    let message = format!("somebody else has put other items in place of those of {object}");
    let mut error = CallError::new(Class::Conflict, 409, "Conflict", message);
    error.causes = causes.collect();
    error
}

/// Sets a field, unless something that is no map is in its way.
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
