//! The status of an `Operator`.

use serde_json::{Map, Value, json};

use super::facts::{Facts, PROGRESSING, RevisionProgress, SourceRecord};
use super::history;
use crate::printable;

/// Longest message of a condition, in characters; the API allows 32,768.
const MESSAGE: usize = 4_096;
/// How many missing rights the status names.
const MOST_RIGHTS: usize = 200;
/// The conditions of ours. Those from `Reconciling` on are there while they hold, as kstatus has them.
const ACTIVE: &str = "Active";
const READY: &str = "Ready";
const RECONCILING: &str = "Reconciling";
const STALLED: &str = "Stalled";
const RIGHTS_MISSING: &str = "RightsMissing";
/// The condition while stored objects are written in another version of their CRD.
const MIGRATING: &str = "StorageMigrating";
/// The condition while the spec names namespaces that do not exist.
const NAMESPACES: &str = "NamespacesMissing";
/// The condition while kinds are not served that the active revision requires.
const DEPENDENCIES: &str = "DependenciesMissing";
/// The condition of an active revision that is not stored as it is loaded.
const UNSTORED: &str = "RevisionNotStored";
/// The reason of a revision that is not for this version of Kubernetes, and the condition of an active one.
pub const KUBERNETES_UNSUPPORTED: &str = "KubernetesUnsupported";
/// The reason of a revision that the policy does not permit, and the condition of an active one.
pub const UNTRUSTED: &str = "PackageUntrusted";
/// The reason if the revision brings a CRD that another package has taken over.
const HANDED_OVER: &str = "CRDHandedOver";
/// The conditions that the manager writes, and leaves to no other.
pub const CONDITIONS: [&str; 11] = [
    ACTIVE,
    READY,
    RECONCILING,
    STALLED,
    MIGRATING,
    NAMESPACES,
    DEPENDENCIES,
    UNSTORED,
    KUBERNETES_UNSUPPORTED,
    UNTRUSTED,
    RIGHTS_MISSING,
];
/// The reason if stored objects cannot be written in another version of their CRD.
const MIGRATION_FAILED: &str = "MigrationFailed";
/// The reason if all is well but for instances that keep an earlier revision.
const KEPT: &str = "InstancesKept";
/// How many namespaces or CRDs a message names.
const NAMED: usize = 10;

/// The JSON merge patch from the status that is there to the one that should be; `None` if nothing changes. `now` is RFC
/// 3339. Conditions of other writers are kept.
pub fn patch(current: &Value, facts: &Facts<'_>, now: &str) -> Option<Value> {
    let active = facts.active.map(|(revision, _)| revision);
    let before = current["activeRevision"].as_str();
    let mut wanted = Map::new();
    wanted.insert("observedGeneration".into(), facts.generation.into());
    // Nothing was fetched from the source yet.
    if !facts.target.is_empty() {
        wanted.insert("targetRevision".into(), facts.target.into());
        if current["targetRevision"] != facts.target || current["targetSince"].is_null() {
            wanted.insert("targetSince".into(), now.into());
        }
    }
    if facts.source.is_some() || !current["source"].is_null() {
        wanted.insert("source".into(), source(&current["source"], facts.source));
    }
    // What was active stays on record while nothing is: it is tried first after a start.
    if let Some((revision, version)) = facts.active {
        wanted.insert("activeRevision".into(), revision.into());
        wanted.insert("version".into(), version.into());
    }
    if let Some(previous) = before.filter(|before| active.is_some_and(|active| active != *before)) {
        wanted.insert("previousRevision".into(), previous.into());
    }
    if let Some(valid) = facts.valid_defaults {
        wanted.insert("defaults".into(), super::defaults::record(valid));
    }
    if let Some(instances) = facts.instances {
        wanted.insert("instances".into(), instances.iter().map(|(_, count)| count).sum::<usize>().into());
        let revisions = instances.iter().map(|(name, count)| json!({"name": name, "instances": count}));
        wanted.insert("revisions".into(), revisions.collect());
    }
    let rollout = match &facts.progress {
        RevisionProgress::RollingOut(rollout) => Some(rollout.to_json()),
        _ => None,
    };
    if rollout.is_some() || !current["upgrade"].is_null() {
        wanted.insert("upgrade".into(), rollout.unwrap_or_default());
    }
    if let Some(missing) = &facts.rights
        && !(missing.rights.is_empty() && current["missingRights"].is_null())
    {
        let names: Vec<&String> = missing.rights.iter().take(MOST_RIGHTS).collect();
        wanted.insert("missingRights".into(), if names.is_empty() { Value::Null } else { json!(names) });
    }
    wanted.insert("conditions".into(), conditions(current, facts, now));
    if let Some(history) = history::record(current, facts, now) {
        wanted.insert("history".into(), history);
    }
    wanted.retain(|key, value| current.get(key) != Some(&*value));
    (!wanted.is_empty()).then_some(Value::Object(wanted))
}

/// The JSON merge patch of where the package is from.
fn source(current: &Value, record: Option<&SourceRecord>) -> Value {
    let mut wanted = json!(record);
    if let (Some(wanted), Some(current)) = (wanted.as_object_mut(), current.as_object()) {
        let gone = current.keys().filter(|key| !wanted.contains_key(*key)).cloned().collect::<Vec<_>>();
        wanted.extend(gone.into_iter().map(|key| (key, Value::Null)));
    }
    wanted
}

fn conditions(current: &Value, facts: &Facts<'_>, now: &str) -> Value {
    let there = current["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
    let (reason, why) = facts.progress.reason();
    let mut all = Vec::new();
    let mut add = |kind: &str, holds: bool, reason: &str, message: &str| {
        let status = if holds { "True" } else { "False" };
        let old = there.iter().find(|old| old["type"] == kind && old["status"] == status);
        let since = old.map_or(Value::from(now), |old| old["lastTransitionTime"].clone());
        let message = printable::sentence(message);
        let short = printable::clip(&message, MESSAGE);
        all.push(json!({
            "type": kind, "status": status, "reason": reason, "message": short, "lastTransitionTime": since,
            "observedGeneration": facts.generation,
        }));
    };
    let target = facts.target;
    match facts.active {
        Some((active, version)) => {
            add(ACTIVE, true, "Active", &format!("{active} is active: version {version}"));
        }
        None => add(ACTIVE, false, reason, &why),
    }
    let stays = |active: Option<(&str, &str)>| match active {
        Some((active, _)) if facts.is_of_source => format!("{why}; {active} stays active"),
        None if facts.is_of_source => why.clone(),
        Some((active, _)) if active != target => format!("{target}: {why}; {active} stays active"),
        _ => format!("{target}: {why}"),
    };
    // An `OperatorRevision` has the name of its package and a digest.
    let package = target.rsplit_once('-').map_or(target, |(package, _)| package);
    let notes = notes(there, facts, package);
    // What the manager cannot read or write it does not reconcile, whatever is active.
    let is_hindered = facts.rights.as_ref().is_some_and(|missing| !missing.manager.is_empty());
    let grave = notes.iter().find(|(reason, _)| [RIGHTS_MISSING, HANDED_OVER].contains(reason));
    let (is_ready, is_stalled, reason, why) = match (&facts.progress, grave) {
        (RevisionProgress::Active { .. }, Some((reason, why))) => (false, true, *reason, why.clone()),
        (RevisionProgress::Progressing(_), Some((reason, why))) if is_hindered => {
            (false, false, *reason, why.clone())
        }
        (RevisionProgress::Active { .. }, None) => {
            let reason = notes.first().map_or("Active", |(reason, _)| *reason);
            let also: String = notes.iter().flat_map(|(_, why)| ["; ", why]).collect();
            (true, false, reason, format!("{target} is active{also}"))
        }
        (progress, _) => (false, progress.is_stalled(), reason, stays(facts.active)),
    };
    let others = notes.iter().filter(|(other, _)| !is_ready && *other != reason);
    let message = others.fold(why, |message, (_, other)| format!("{message}; {other}"));
    add(READY, is_ready, reason, &message);
    if is_stalled {
        add(STALLED, true, reason, &message);
    } else if !is_ready && !matches!(facts.progress, RevisionProgress::Paused(_)) {
        add(RECONCILING, true, reason, &message);
    }
    let is_ours = |c: &Value| {
        // If the rights are not known now, their condition stays as it was.
        CONDITIONS
            .iter()
            .any(|ours| c["type"] == *ours && (*ours != RIGHTS_MISSING || facts.rights.is_some()))
    };
    if let Some((is_stuck, progress)) = facts.migration {
        add(MIGRATING, true, if is_stuck { MIGRATION_FAILED } else { "Migrating" }, progress);
    }
    if let Some(why) = facts.unstored {
        add(UNSTORED, true, "NotStored", why);
    }
    if let Some(why) = facts.unsupported {
        add(KUBERNETES_UNSUPPORTED, true, KUBERNETES_UNSUPPORTED, &format!("{why}. It stays active"));
    }
    if let Some(why) = facts.untrusted {
        add(UNTRUSTED, true, UNTRUSTED, &format!("{why}. It stays active"));
    }
    for (reason, message) in notes.iter().filter(|(reason, _)| [NAMESPACES, DEPENDENCIES].contains(reason)) {
        add(reason, true, reason, message);
    }
    if let Some(missing) = facts.rights.as_ref().filter(|missing| !missing.is_empty()) {
        add(RIGHTS_MISSING, true, RIGHTS_MISSING, &missing.message(package));
    }
    all.extend(there.iter().filter(|c| !is_ours(c)).cloned());
    Value::Array(all)
}

/// What is wrong beside the revision, the gravest first: each with its reason. The first two keep instances from being reconciled.
/// `there`: the conditions as they are.
fn notes(there: &[Value], facts: &Facts<'_>, package: &str) -> Vec<(&'static str, String)> {
    let mut notes = Vec::new();
    let missing = match &facts.rights {
        Some(missing) => (!missing.is_empty()).then(|| missing.message(package)),
        // What was missing when the API server could be asked last.
        None => there.iter().find(|old| old["type"] == RIGHTS_MISSING).map(|old| text(&old["message"])),
    };
    notes.extend(missing.map(|missing| (RIGHTS_MISSING, missing)));
    if !facts.handed_over.is_empty() {
        notes.push((HANDED_OVER, handed_over(facts, package)));
    }
    notes.extend(facts.unstored.map(|why| (UNSTORED, why.to_owned())));
    notes.extend(facts.unsupported.map(|why| (KUBERNETES_UNSUPPORTED, format!("{why}. It stays active"))));
    notes.extend(facts.untrusted.map(|why| (UNTRUSTED, format!("{why}. It stays active"))));
    notes.extend(facts.missing_dependencies.map(|why| (DEPENDENCIES, why.to_owned())));
    if !facts.missing_namespaces.is_empty() {
        notes.push((NAMESPACES, missing_namespaces(facts.missing_namespaces)));
    }
    let stuck = facts.migration.filter(|(is_stuck, _)| *is_stuck);
    notes.extend(stuck.map(|(_, why)| (MIGRATION_FAILED, why.to_owned())));
    if let RevisionProgress::Active { kept } = &facts.progress {
        notes.extend(kept.message().map(|message| (KEPT, message)));
    }
    notes
}

fn missing_namespaces(missing: &[String]) -> String {
    let more = missing.len().saturating_sub(NAMED);
    let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
    let named = missing.iter().take(NAMED).map(String::as_str).collect::<Vec<_>>().join(", ");
    format!(
        "spec.namespaces.names: there is no namespace {named}{rest}: create it, or correct the name; instances there are \
         served once it exists"
    )
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// The message that the revision brings CRDs which other packages have taken over, with what to do.
fn handed_over(facts: &Facts<'_>, package: &str) -> String {
    let all: Vec<String> =
        facts.handed_over.iter().take(NAMED).map(|(crd, to)| format!("{crd} to {to}")).collect();
    format!(
        "{} is active, but for CRDs that were handed over: {}. Upgrade {package} to a revision without them, or remove it with \
         `operetta uninstall {package}`, which leaves them as they are",
        facts.target,
        all.join(", ")
    )
}

/// The state of a revision, as a live `Operator` shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// No manager has seen the newest spec.
    Unseen,
    /// The manager works on it. The text is what it waits for.
    Progressing(String),
    /// The revision is active. The text is what is to be noted, if anything is.
    Active(String),
    /// The revision is refused or cannot be loaded: another spec, or a change elsewhere, is needed. The texts are
    /// reason and message.
    Stalled(String, String),
    /// The revision waits, because the Operator is paused. The text is how far it is.
    Paused(String),
}

/// What a live `Operator` says of its revision, and the revision that is active.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RevisionStatus {
    /// How far the named revision is.
    pub standing: Standing,
    /// The active revision.
    pub active: Option<String>,
    /// The reason of `Ready`.
    pub reason: String,
}

/// An Event about a change of `Ready`.
#[derive(Debug, PartialEq, Eq)]
pub struct Transition {
    /// Whether it is a Warning.
    pub is_warning: bool,
    /// The reason, in one word.
    pub reason: String,
    /// The message of the condition.
    pub message: String,
}

/// The Event about a change of the status, if there is one. The loading and registering of a revision has no
/// Event of its own.
pub fn transition(before: &Value, after: &Value) -> Option<Transition> {
    let find = |status: &Value, kind: &str| {
        let conditions = status["conditions"].as_array().into_iter().flatten();
        conditions.into_iter().find(|condition| condition["type"] == kind).cloned().unwrap_or_default()
    };
    let (old, new) = (find(before, READY), find(after, READY));
    let is_activated = before["activeRevision"] != after["activeRevision"];
    let is_same = old["status"] == new["status"] && old["reason"] == new["reason"];
    let was_progressing = new["status"] == "True" && old["reason"] == PROGRESSING;
    if new["reason"] == PROGRESSING || !is_activated && (is_same || was_progressing) {
        return None;
    }
    let is_warning = new["reason"] == RIGHTS_MISSING || !find(after, STALLED).is_null();
    Some(Transition { is_warning, reason: text(&new["reason"]), message: text(&new["message"]) })
}

/// Reads the status of a live `Operator`.
pub fn standing(operator: &Value) -> RevisionStatus {
    let status = &operator["status"];
    let find = |kind: &str| {
        let conditions = status["conditions"].as_array().into_iter().flatten();
        conditions.into_iter().find(|condition| condition["type"] == kind)
    };
    let text = |condition: Option<&Value>, field: &str| {
        condition.and_then(|condition| condition[field].as_str()).unwrap_or_default().to_owned()
    };
    let holds = |kind: &str| find(kind).is_some_and(|condition| condition["status"] == "True");
    let active = status["activeRevision"].as_str().filter(|_| holds(ACTIVE)).map(str::to_owned);
    let is_seen = status["observedGeneration"] == operator["metadata"]["generation"]
        && status["observedGeneration"].is_i64()
        && (status["targetRevision"] == operator["spec"]["revision"]
            || !operator["spec"]["source"].is_null());
    let ready = find(READY);
    let (reason, message) = (text(ready, "reason"), text(ready, "message"));
    let standing = if !is_seen {
        Standing::Unseen
    } else if holds(READY) {
        Standing::Active(if reason == "Active" { String::new() } else { message })
    } else if holds(STALLED) {
        Standing::Stalled(reason.clone(), message)
    } else if reason == "Paused" {
        Standing::Paused(message)
    } else {
        Standing::Progressing(message)
    };
    RevisionStatus { standing, active, reason }
}
