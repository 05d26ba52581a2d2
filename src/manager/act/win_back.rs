//! What an apply alone cannot do: taking away what others have put in the place of ours, keeping what is given
//! up until somebody has it, and what was said of an object whose managedFields somebody has emptied.

use serde_json::{Value, json};
use tracing::debug;

use super::NOTES;
use crate::children::fields::{self, FieldPath, Reach};
use crate::children::{Apply, Expect, Intent, ObjectRef};
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

impl Hand<'_> {
    /// Before the apply: items that somebody has put into a keyed list in place of ours are moved into our
    /// entry, so that the apply removes them. Else it would be refused for ever, or leave both. What is
    /// yielded and nobody else has yet gets its live value.
    pub(super) async fn prepare(self, apply: &Apply, body: &mut Value) -> Result<(), CallError> {
        if apply.expect == Expect::Absent {
            return Ok(());
        }
        if apply.lost_items {
            self.win_back(Reach::Items, |_| true, apply.force).await?;
        }
        if self.intent.keep.is_empty() {
            return Ok(());
        }
        let Some(live) = self.live().await? else { return Ok(()) };
        for path in &self.intent.keep {
            let path: Vec<&str> = path.split('.').collect();
            if let Some(value) = path.iter().try_fold(&live, |value, name| value.get(name)) {
                put(body, &path, value);
            }
        }
        Ok(())
    }

    /// After a refusal: what others have put where ours was, and what the server cannot have beside it, is
    /// moved into our entry. Returns whether anything was, so that the same apply may succeed now.
    pub(super) async fn make_way(self, apply: &Apply, refusal: &CallError) -> Result<bool, CallError> {
        if refusal.code != 422 || apply.expect == Expect::Absent || !apply.force {
            return Ok(false);
        }
        self.win_back(Reach::Fields, near(refusal), true).await
    }

    /// Whether [`Hand::make_way`] would move something after such a refusal.
    pub(super) async fn is_in_the_way(self, refusal: &CallError) -> Result<bool, CallError> {
        let Some(live) = self.live().await? else { return Ok(false) };
        let mut strays = fields::strays(&live, &self.intent.body, self.manager, Reach::Fields);
        strays.retain(near(refusal));
        Ok(fields::take_over(&live["metadata"]["managedFields"], self.manager, &strays).is_some())
    }

    async fn win_back(
        self,
        reach: Reach,
        near: impl Fn(&FieldPath) -> bool,
        force: bool,
    ) -> Result<bool, CallError> {
        let object = &self.intent.object;
        for _ in 0..ATTEMPTS {
            let Some(live) = self.live().await? else { return Ok(false) };
            let mut strays = fields::strays(&live, &self.intent.body, self.manager, reach);
            strays.retain(&near);
            let meta = &live["metadata"];
            let Some(entries) = fields::take_over(&meta["managedFields"], self.manager, &strays) else {
                return Ok(false);
            };
            if !force {
                return Err(conflict(object, &strays, &meta["managedFields"]));
            }
            debug!(object = %object, strays = strays.len(), "winning back what somebody else has put there");
            match self.write_entries(&meta["resourceVersion"], &entries).await {
                // Somebody, a controller mostly, was faster.
                Err(error) if error.class == Class::Conflict => {}
                other => return other.map(|_| true),
            }
        }
        Ok(false)
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

/// Which paths a refusal may concern.
fn near(refusal: &CallError) -> impl Fn(&FieldPath) -> bool {
    |path| refusal.causes.iter().any(|cause| path.is_near(&cause.field))
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
