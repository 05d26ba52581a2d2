//! The status of an instance: a summary for users and for `kubectl wait`. If it is wiped, nothing is lost.

use std::borrow::Cow;

use serde_json::{Map, Value, json};

use super::model::{
    Condition, Context, FAILED, Finding, NAMED, Projection, RECONCILING, STALLED, Status, Target, Verdict,
    join, standard,
};
use crate::operators::upgrade::{self, CHANGING};
use crate::template::EvalError;

/// Longest message of a condition, in characters; the API allows 32,768.
const MESSAGE: usize = 4_096;

/// Conditions of ours that are there only while they apply.
const PASSING: [&str; 9] = [
    RECONCILING,
    STALLED,
    FAILED,
    "DeletionPending",
    RUN_FAILED,
    REPEATING,
    REF_UNKNOWN,
    TRUNCATED,
    CHANGING,
];
/// The condition that names failed runs which leave nothing of the instance undone.
const RUN_FAILED: &str = "RunFailed";
/// The condition that names plans which run again and again.
pub const REPEATING: &str = "Repeating";
/// The condition that names unknown refs which do not affect Ready.
const REF_UNKNOWN: &str = "RefUnknown";

/// Bytes of all projected fields together; with the conditions a status stays below 256 KiB.
const FIELDS: usize = 224 << 10;

/// The type of the condition that says what was shortened; only there while something is.
pub(super) const TRUNCATED: &str = "StatusTruncated";

impl Status {
    /// The status that follows from the package and the verdict.
    pub fn project(ctx: &Context<'_>, target: &Target, verdict: &Verdict) -> Self {
        let engine = &ctx.origin.package.engine;
        let mut projection = Projection::of(ctx, &target.scope);
        let mut conditions = standard(&verdict.summary());
        for condition in &ctx.origin.resource.conditions {
            ctx.budget.about(&format!("the condition {}", condition.type_));
            let holds = engine.truthy(&condition.when, &target.scope);
            let status = match &holds {
                Ok(holds) => Some(*holds),
                Err(EvalError::Undefined(_) | EvalError::NotYet(_)) => Some(false),
                Err(_) => None,
            };
            let message = if let Err(error) = &holds
                && status.is_none()
            {
                error.to_string()
            } else if status == Some(true) {
                match engine.eval_text(&condition.message, &target.scope) {
                    Ok(Some(Value::String(text))) => text,
                    Ok(other) => other.map(|v| v.to_string()).unwrap_or_default(),
                    Err(error) => format!("the message cannot be evaluated: {error}"),
                }
            } else {
                String::new()
            };
            conditions.push(Condition {
                kind: condition.type_.clone(),
                status,
                reason: condition.reason.clone(),
                message,
            });
        }
        if let Some(message) = shorten_fields(&mut projection.fields) {
            let (kind, reason) = (TRUNCATED.to_owned(), "TooLarge".to_owned());
            conditions.push(Condition { kind, status: Some(true), reason, message });
        }
        let generation = ctx.origin.instance["metadata"]["generation"].as_i64().unwrap_or(0);
        Self { generation, observes: true, revision: revision(ctx), conditions, projection }
    }

    /// The status of an instance that was not evaluated to the end: all but the verdict stays as it is.
    pub(super) fn unfinished(ctx: &Context<'_>, verdict: &Verdict) -> Self {
        Self { observes: true, revision: revision(ctx), ..Self::unseen(ctx.origin.instance, verdict) }
    }
}

impl Status {
    /// Adds the active or last run, and the runs that have ended.
    #[must_use]
    pub(super) fn with_runs(mut self, (plan, history): (Option<Value>, Value)) -> Self {
        let fields = [("plan", plan), ("history", Some(history))];
        self.projection.fields.extend(fields.map(|(name, value)| (name.to_owned(), value)));
        self
    }

    /// Adds a condition with the failed runs that leave nothing undone, if there are any.
    #[must_use]
    pub(super) fn failed_runs(self, findings: &[Finding]) -> Self {
        let is_failed = |finding: &&Finding| matches!(finding, Finding::RunFailed { is_undone: false, .. });
        let reason = |finding: &Finding| match finding {
            Finding::RunFailed { reason, .. } => reason.clone(),
            other => other.reason().to_owned(),
        };
        self.passing(RUN_FAILED, findings.iter().filter(is_failed), reason)
    }

    /// Adds what does not affect Ready: conditions with unknown refs and with plans that run again and again, if there are any, and
    /// runs that wait, in the message of a Ready instance.
    #[must_use]
    pub(super) fn beside(self, findings: &[Finding]) -> Self {
        let refs = findings.iter().filter(|finding| finding.is_ref_beside());
        let repeating = findings.iter().filter(|finding| matches!(finding, Finding::Repeating(_)));
        let status = self.passing(REPEATING, repeating, |finding| finding.reason().to_owned());
        let mut status = status.passing(REF_UNKNOWN, refs, |finding| finding.reason().to_owned());
        let runs: Vec<_> = findings.iter().filter(|finding| finding.is_run_beside()).collect();
        let ready = status.conditions.iter_mut().find(|condition| condition.kind == "Ready");
        if let Some(ready) = ready.filter(|ready| ready.status == Some(true) && !runs.is_empty()) {
            ready.message = format!("{}; meanwhile: {}", ready.message, join(&runs));
        }
        status
    }

    /// Adds a condition about findings, if there are any. Its reason is that of the first.
    fn passing<'f>(
        mut self,
        kind: &str,
        findings: impl Iterator<Item = &'f Finding>,
        reason: impl Fn(&Finding) -> String,
    ) -> Self {
        let findings: Vec<&Finding> = findings.collect();
        if let Some(first) = findings.first() {
            let more = findings.len().saturating_sub(NAMED);
            let rest = if more > 0 { format!("; and {more} more") } else { String::new() };
            let named: Vec<String> = findings.iter().take(NAMED).map(ToString::to_string).collect();
            self.conditions.push(Condition {
                kind: kind.into(),
                status: Some(true),
                reason: reason(first),
                message: format!("{}{rest}", named.join("; ")),
            });
        }
        self
    }

    /// Adds a condition with the deletions that wait for the approval of a person, a sentence each, if there
    /// are any.
    #[must_use]
    pub(super) fn pending(mut self, pending: &[String]) -> Self {
        if !pending.is_empty() {
            let more = pending.len().saturating_sub(NAMED);
            let rest = if more > 0 { format!("; and {more} more") } else { String::new() };
            let named = &pending[..pending.len() - more];
            self.conditions.push(Condition {
                kind: "DeletionPending".into(),
                status: Some(true),
                reason: "AwaitsApproval".into(),
                message: format!("{}{rest}", named.join("; ")),
            });
        }
        self
    }
}

/// The package's revision, unless the CRD's author has another use for the field.
fn revision(ctx: &Context<'_>) -> Option<String> {
    let taken = crate::crd::taken(&ctx.origin.resource.crd, &ctx.origin.resource.kind.version);
    (!taken.contains(&"revision")).then(|| ctx.origin.package.revision())
}

/// The JSON merge patch of `.status` from what is there to what should be; `None` if nothing changed.
/// `now` is RFC 3339. Conditions of other writers are kept.
pub fn patch(current: &Value, status: &Status, now: &str) -> Option<Value> {
    let mut wanted = Map::new();
    if status.observes {
        wanted.insert("observedGeneration".into(), status.generation.into());
    }
    if let Some(revision) = &status.revision {
        wanted.insert("revision".into(), revision.as_str().into());
    }
    wanted.insert("conditions".into(), conditions(current, status, now));
    let mut patch = Map::new();
    for (key, value) in wanted {
        if current.get(&key) != Some(&value) {
            patch.insert(key, value);
        }
    }
    for (name, value) in &status.projection.fields {
        if let Some(value) = value {
            let path: Vec<&str> = name.split('.').collect();
            let there = path.iter().try_fold(current, |at, part| at.get(part)).unwrap_or(&Value::Null);
            if there != value {
                set(&mut patch, &path, replacement(there, value));
            }
        }
    }
    (!patch.is_empty()).then_some(Value::Object(patch))
}

/// A merge patch merges maps: keys that are gone must be nulled.
fn replacement(there: &Value, value: &Value) -> Value {
    match (there, value) {
        (Value::Object(old), Value::Object(new)) => {
            let mut merged: Map<String, Value> = old.keys().map(|k| (k.clone(), Value::Null)).collect();
            for (key, value) in new {
                merged.insert(key.clone(), replacement(old.get(key).unwrap_or(&Value::Null), value));
            }
            Value::Object(merged)
        }
        _ => value.clone(),
    }
}

fn set(map: &mut Map<String, Value>, path: &[&str], value: Value) {
    match path {
        [] => {}
        [last] => {
            map.insert((*last).to_owned(), value);
        }
        [first, rest @ ..] => {
            if let Value::Object(inner) = map.entry(*first).or_insert_with(|| json!({})) {
                set(inner, rest, value);
            }
        }
    }
}

fn conditions(current: &Value, status: &Status, now: &str) -> Value {
    let there = current["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
    let failed = status.failed();
    let mut all: Vec<Value> = status
        .conditions
        .iter()
        .chain(&failed)
        .map(|condition| {
            let old = there.iter().find(|c| c["type"] == condition.kind.as_str());
            let text = match condition.status {
                Some(true) => "True",
                Some(false) => "False",
                None => "Unknown",
            };
            let since = old
                .filter(|old| old["status"] == text)
                .map_or(Value::from(now), |old| old["lastTransitionTime"].clone());
            json!({
                "type": condition.kind, "status": text, "reason": condition.reason,
                "message": shorten(&condition.message), "lastTransitionTime": since,
                "observedGeneration": status.generation,
            })
        })
        .collect();
    // The manager has set this condition. It stays until the change that it announces is complete.
    let is_ready = status.conditions.iter().any(|c| c.kind == "Ready" && c.status == Some(true));
    let changing = there.iter().filter(|c| c["type"] == CHANGING);
    all.extend(changing.filter(|c| !upgrade::is_changed(c, is_ready, status.revision.is_some())).cloned());
    let is_ours = |c: &Value| {
        status.conditions.iter().any(|ours| c["type"] == ours.kind.as_str())
            || PASSING.iter().any(|passing| c["type"] == *passing)
    };
    let foreign = there.iter().filter(|c| !is_ours(c));
    all.extend(foreign.cloned());
    Value::Array(all)
}

/// Shortens fields, the largest first, until the status is small enough. Returns a sentence about what was
/// shortened.
fn shorten_fields(fields: &mut [(String, Option<Value>)]) -> Option<String> {
    let mut sizes: Vec<(usize, usize)> = fields
        .iter()
        .enumerate()
        .filter_map(|(index, (_, value))| Some((bytes(value.as_ref()?), index)))
        .collect();
    let mut total: usize = sizes.iter().map(|(size, _)| size).sum();
    if total <= FIELDS {
        return None;
    }
    sizes.sort_unstable_by(|a, b| b.cmp(a));
    let mut told = Vec::new();
    for (size, index) in sizes {
        if total <= FIELDS {
            break;
        }
        let (name, value) = &mut fields[index];
        let Some(value) = value else { continue };
        let room = FIELDS.saturating_sub(total - size);
        let before = length(value);
        let mut left = room;
        *value = cut(value, &mut left);
        total -= size - bytes(value).min(size);
        told.push(format!("status.{name} ({} of {before})", length(value)));
    }
    Some(format!("the status may have 256 KiB, so these are shortened: {}", told.join(", ")))
}

fn length(value: &Value) -> String {
    match value {
        Value::String(text) => format!("{} characters", text.chars().count()),
        Value::Array(items) => format!("{} items", items.len()),
        Value::Object(map) => format!("{} keys", map.len()),
        _ => "a value".to_owned(),
    }
}

/// About as many bytes as the value has as JSON.
fn bytes(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) => 6,
        Value::Number(_) => 20,
        Value::String(text) => text_bytes(text),
        Value::Array(items) => items.iter().map(|item| bytes(item) + 1).sum::<usize>() + 2,
        Value::Object(map) => map.iter().map(|(k, v)| text_bytes(k) + bytes(v) + 2).sum::<usize>() + 2,
    }
}

fn text_bytes(text: &str) -> usize {
    text.bytes()
        .map(|byte| if byte < 0x20 { 6 } else { 1 + usize::from(matches!(byte, b'"' | b'\\')) })
        .sum::<usize>()
        + 2
}

/// As much of a value as there is room for, from its beginning.
fn cut(value: &Value, room: &mut usize) -> Value {
    let size = bytes(value);
    if size <= *room {
        *room -= size;
        return value.clone();
    }
    match value {
        Value::Array(items) => {
            *room = room.saturating_sub(2);
            let fits = items.iter().take_while(|item| take(room, bytes(item) + 1));
            Value::Array(fits.cloned().collect())
        }
        Value::Object(map) => {
            *room = room.saturating_sub(2);
            let fits = map.iter().take_while(|(key, value)| take(room, text_bytes(key) + bytes(value) + 2));
            Value::Object(fits.map(|(key, value)| (key.clone(), value.clone())).collect())
        }
        Value::String(text) => {
            *room = room.saturating_sub(16);
            let fits: String = text
                .chars()
                .take_while(|c| take(room, if *c < ' ' { 6 } else { c.len_utf8() + 1 }))
                .collect();
            Value::String(fits + "…")
        }
        other => other.clone(),
    }
}

fn take(room: &mut usize, size: usize) -> bool {
    let fits = size <= *room;
    *room = if fits { *room - size } else { 0 };
    fits
}

fn shorten(message: &str) -> String {
    let message = crate::printable::sentence(message);
    match crate::printable::clip(&message, MESSAGE) {
        Cow::Borrowed(whole) => whole.to_owned(),
        Cow::Owned(clipped) => clipped + " (shortened)",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(verdict: &Verdict) -> Status {
        let fields = vec![
            ("members.ready".into(), Some(json!({"a": 1}))),
            ("kept".into(), None),
            ("gone".into(), Some(Value::Null)),
        ];
        Status {
            generation: 2,
            observes: true,
            revision: Some("p-1".into()),
            conditions: standard(&verdict.summary()),
            projection: Projection { fields, faults: Vec::new() },
        }
    }

    fn merged(mut target: Value, patch: &Value) -> Value {
        operetta_kube_model::patch::merge(&mut target, patch);
        target
    }

    #[test]
    fn large_fields_are_shortened_and_reported() {
        let mut fields = vec![
            ("small".to_owned(), Some(json!([1, 2, 3]))),
            ("list".to_owned(), Some(Value::Array(vec![json!({"name": "x".repeat(100)}); 3_000]))),
            ("text".to_owned(), Some(Value::String("\u{1}é".repeat(40_000)))),
            ("kept".to_owned(), None),
        ];
        let told = shorten_fields(&mut fields).unwrap();
        let size = |value: &Option<Value>| value.as_ref().map_or(0, |v| v.to_string().len());
        let total: usize = fields.iter().map(|(_, value)| size(value)).sum();
        assert!((FIELDS / 2..=FIELDS).contains(&total), "{total}");
        assert_eq!(fields[0].1, Some(json!([1, 2, 3])));
        assert!(told.contains("status.list (") && told.contains("of 3000 items"), "{told}");
        assert_eq!(shorten_fields(&mut fields), None);
        // Once nothing is shortened, the condition is removed.
        let there = json!({"conditions": [{"type": TRUNCATED}, {"type": "Foreign"}]});
        let ready = Verdict::Ready { children: 2 };
        let patched = patch(&there, &status(&ready), "t").unwrap();
        let types: Vec<_> =
            patched["conditions"].as_array().unwrap().iter().map(|c| c["type"].clone()).collect();
        assert_eq!(types, ["Ready", "Foreign"]);
    }

    #[test]
    fn unchanged_status_needs_no_patch_and_keeps_transition_times() {
        let ready = Verdict::Ready { children: 2 };
        let before = json!({"kept": 7, "gone": 8, "members": {"ready": {"b": 2}}, "conditions": [{"type": "Foreign", "status": "True"}]});
        let first = merged(before.clone(), &patch(&before, &status(&ready), "t1").unwrap());
        assert_eq!((&first["kept"], first.get("gone")), (&json!(7), None));
        assert_eq!(first["members"], json!({"ready": {"a": 1}}));
        assert_eq!(first["conditions"][1]["type"], "Foreign");
        assert_eq!(patch(&first, &status(&ready), "t2"), None);
        let waiting = Verdict::Reconciling { reason: "R".into(), message: "m".into() };
        let second = merged(first.clone(), &patch(&first, &status(&waiting), "t2").unwrap());
        let told = |instance: &Value| -> Vec<String> {
            let all = instance["conditions"].as_array().unwrap().iter();
            all.map(|c| format!("{} {}", c["type"].as_str().unwrap(), c["lastTransitionTime"])).collect()
        };
        assert_eq!(told(&second)[..2], [r#"Ready "t2""#, r#"Reconciling "t2""#]);
        let third = merged(second.clone(), &patch(&second, &status(&ready), "t3").unwrap());
        assert_eq!(told(&third)[..2], [r#"Ready "t3""#, "Foreign null"]);
    }
}
