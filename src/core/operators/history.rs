//! The history of an `Operator`: which revisions it has named, who has named them, and what became of each.

use serde_json::{Map, Value, json};

use super::facts::{Author, Facts, RevisionProgress, short};

/// How many entries the status has at most.
const MOST: usize = 10;
/// The history to be written; `None` if there is none. `current`: the present status.
pub(super) fn record(current: &Value, facts: &Facts<'_>, now: &str) -> Option<Value> {
    let mut all = current["history"].as_array().cloned().unwrap_or_default();
    if !facts.target.is_empty() && current["targetRevision"] != facts.target {
        if let Some(last) = all.first_mut().filter(|last| last["endedAt"].is_null()) {
            last["result"] = "Superseded".into();
            last["endedAt"] = now.into();
        }
        let Author { manager, user } = &facts.author;
        let fields = [
            ("revision", Some(facts.target)),
            ("fromRevision", current["activeRevision"].as_str()),
            ("fromVersion", current["version"].as_str()),
            ("manager", manager.as_deref()),
            ("user", user.as_deref()),
            ("startedAt", Some(now)),
        ];
        let fields = fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?.into())));
        all.insert(0, Value::Object(fields.collect::<Map<_, _>>()));
        all.truncate(MOST);
    }
    let last = all.first_mut()?;
    if last["revision"] == facts.target && last["endedAt"].is_null() {
        let (reason, why) = facts.progress.reason();
        let (result, message) = match &facts.progress {
            RevisionProgress::Active { .. } => ("Completed", None),
            RevisionProgress::Paused(_) => ("Paused", Some(why)),
            progress if progress.is_stalled() => ("Stalled", Some(format!("{reason}: {why}"))),
            _ => ("InProgress", None),
        };
        last["result"] = result.into();
        if result == "Completed" {
            last["endedAt"] = now.into();
        }
        if let Some((_, version)) = facts.active.filter(|(active, _)| *active == facts.target) {
            last["version"] = version.into();
        }
        if let Some(fields) = last.as_object_mut() {
            fields.remove("message");
            fields.extend(message.map(|message| ("message".to_owned(), short(&message).into())));
        }
    }
    Some(Value::Array(all))
}

/// The schema of the history.
pub(super) fn schema() -> Value {
    let text = |description: &str| json!({"type": "string", "description": description});
    let time =
        |description: &str| json!({"type": "string", "format": "date-time", "description": description});
    json!({
        "type": "array", "maxItems": MOST, "x-kubernetes-list-type": "atomic",
        "description": "The revisions that the spec has named last, the newest first.",
        "items": {
            "type": "object",
            "required": ["revision", "startedAt", "result"],
            "properties": {
                "revision": text("The OperatorRevision that the spec named."),
                "version": text("The version of the package in it, if it became active."),
                "fromRevision": text("The OperatorRevision that was active until then."),
                "fromVersion": text("The version of the package in that."),
                "manager": text("The field manager that has named it, such as kubectl-edit."),
                "user": text("The user who gave the command, as `operetta install`, `upgrade` and `rollback` record it."),
                "startedAt": time("Since when the spec named it, as the manager has seen it."),
                "endedAt": time("Since when all instances have it that are to have it, or another one was named."),
                "result": text("InProgress, Paused, Stalled, Completed, or Superseded: another revision was named before it was completed."),
                "message": text("Why it is paused or stalled."),
            },
        },
    })
}
