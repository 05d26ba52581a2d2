//! The status of an `Operator`.

use serde_json::{Map, Value, json};

use super::history::{self, Author};
use super::upgrade::Kept;
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
const PROGRESSING: &str = "Progressing";
const RIGHTS_MISSING: &str = "RightsMissing";
/// The condition while stored objects are written in another version of their CRD.
const MIGRATING: &str = "StorageMigrating";
/// The condition while the spec names namespaces that do not exist.
const NAMESPACES: &str = "NamespacesMissing";
/// The condition of an active revision that is not stored as it is loaded.
const UNSTORED: &str = "RevisionNotStored";
/// The reason of a revision that is not for this version of Kubernetes, and the condition of an active one.
pub const KUBERNETES_UNSUPPORTED: &str = "KubernetesUnsupported";
/// The reason if the revision brings a CRD that another package has taken over.
const HANDED_OVER: &str = "CRDHandedOver";
/// The conditions that the manager writes, and leaves to no other.
pub const CONDITIONS: [&str; 9] = [
    ACTIVE,
    READY,
    RECONCILING,
    STALLED,
    MIGRATING,
    NAMESPACES,
    UNSTORED,
    KUBERNETES_UNSUPPORTED,
    RIGHTS_MISSING,
];
/// The reason if stored objects cannot be written in another version of their CRD.
const MIGRATION_FAILED: &str = "MigrationFailed";
/// The reason if all is well but for instances that keep an earlier revision.
const KEPT: &str = "InstancesKept";
/// How many namespaces or CRDs a message names.
const NAMED: usize = 10;

/// What is known of an `Operator` at one moment.
#[derive(Debug)]
pub struct Facts<'a> {
    /// Its `metadata.generation`.
    pub generation: i64,
    /// The revision that is to be active.
    pub target: &'a str,
    /// Who has named the revision that is to be active.
    pub author: Author,
    /// How far the revision is that is to be active.
    pub progress: Target,
    /// The revision that is active, and the version of the package.
    pub active: Option<(&'a str, &'a str)>,
    /// The values that take the place of the package's defaults, if all of them are valid for the active revision.
    pub valid_defaults: Option<&'a Map<String, Value>>,
    /// How many instances each revision has; `None` while they are being listed.
    pub instances: Option<&'a [(String, usize)]>,
    /// Why the active revision is not stored as it is loaded, if it is not.
    pub unstored: Option<&'a str>,
    /// Why the active revision is not for this version of Kubernetes, if it is not.
    pub unsupported: Option<&'a str>,
    /// The namespaces that it names and that do not exist.
    pub missing_namespaces: &'a [String],
    /// How far the migration of stored objects is, and whether it does not proceed.
    pub migration: Option<(bool, &'a str)>,
    /// The CRDs of the active revision that other packages have taken over: each CRD, and its package.
    pub handed_over: &'a [(String, String)],
    /// What the account of the package may not do that the package needs, if it has an account; `None` if that cannot be asked
    /// now.
    pub rights: Option<MissingRights>,
}

/// What the account of a package may not do that the package needs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MissingRights {
    /// The user name of the account.
    pub user: String,
    /// Each right as text, such as `list configmaps in team-a`.
    pub rights: Vec<String>,
    /// The watches that the API server refuses to the account, with its words.
    pub refused: Vec<String>,
    /// What the API server refuses to the manager itself, which then cannot read or report the state of
    /// instances.
    pub manager: Vec<String>,
}

impl MissingRights {
    /// Whether nothing is missing.
    pub fn is_empty(&self) -> bool {
        self.rights.is_empty() && self.refused.is_empty() && self.manager.is_empty()
    }

    fn message(&self, package: &str) -> String {
        let mut parts = Vec::new();
        if !self.rights.is_empty() {
            parts.push(format!("{} may not: {}", self.user, self.rights.join(", ")));
        }
        if !self.refused.is_empty() {
            parts.push(format!("refused: {}", self.refused.join("; ")));
        }
        if !self.manager.is_empty() {
            parts.push(format!("refused to the manager: {}", self.manager.join("; ")));
        }
        format!(
            "rights are missing: {}; apply what `operetta rbac` prints for the package {package}",
            parts.join("; ")
        )
    }
}

/// How far instances are moved to the active revision.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rollout {
    /// How many instances have the revision, or change to it.
    pub moved: usize,
    /// The first instances that have not been ready since they were moved, and the number of all of them.
    pub changing: (Vec<String>, usize),
    /// How many instances are still to be moved.
    pub waiting: usize,
    /// The instances that keep their revision.
    pub kept: Kept,
    /// The first instances that fail since they were moved, each with why, and the number of all of them.
    pub failing: (Vec<(String, String)>, usize),
    /// The first instances that cannot be moved, each with why, and the number of all of them.
    pub refused: (Vec<(String, String)>, usize),
    /// Whether no other instance is moved because of those that fail.
    pub is_paused: bool,
}

/// How far the revision is that an `Operator` names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// It is active, and all instances have it that are to have it.
    Active {
        /// The instances that keep an earlier revision.
        kept: Kept,
    },
    /// It is loaded, checked or registered: with what it waits for.
    Progressing(String),
    /// It is active, and instances are moved to it.
    RollingOut(Rollout),
    /// It waits until the `Operator` is not paused any more: with how far it is.
    Paused(String),
    /// It cannot be loaded.
    NotLoaded(Lost),
    /// It is refused.
    Refused {
        /// The reason, in one word.
        reason: &'static str,
        /// Why, and what to do.
        message: String,
        /// Whether that may pass without a change.
        is_temporary: bool,
    },
}

/// Why a revision cannot be loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lost {
    /// The reason, in one word.
    pub reason: &'static str,
    /// Why it cannot be loaded.
    pub message: String,
    /// Whether it may pass by itself.
    pub is_temporary: bool,
}

impl Target {
    pub(super) fn reason(&self) -> (&'static str, String) {
        match self {
            Self::Active { .. } => ("Active", String::new()),
            Self::Progressing(what) => (PROGRESSING, what.clone()),
            Self::RollingOut(rollout) => (rollout.reason(), rollout.message()),
            Self::Paused(how_far) => ("Paused", how_far.clone()),
            Self::NotLoaded(lost) => (lost.reason, lost.message.clone()),
            Self::Refused { reason, message, .. } => (reason, message.clone()),
        }
    }

    pub(super) fn is_stalled(&self) -> bool {
        match self {
            Self::Active { .. } | Self::Progressing(_) | Self::Paused(_) => false,
            Self::RollingOut(rollout) => rollout.is_stalled(),
            Self::NotLoaded(Lost { is_temporary, .. }) | Self::Refused { is_temporary, .. } => !is_temporary,
        }
    }
}

impl Rollout {
    /// How many instances are in each state.
    pub fn counts(&self) -> [(&'static str, usize); 6] {
        [
            ("moved", self.moved),
            ("changing", self.changing.1),
            ("waiting", self.waiting),
            ("kept", self.kept.count()),
            ("failing", self.failing.1),
            ("refused", self.refused.1),
        ]
    }

    /// The reason, in one word.
    pub fn reason(&self) -> &'static str {
        match (self.is_paused, self.waiting) {
            (false, _) if self.is_stalled() => "UpgradeFailed",
            (false, _) => "Upgrading",
            (true, 0) => "UpgradeFailed",
            (true, _) => "UpgradePaused",
        }
    }

    /// Whether it does not proceed by itself.
    pub fn is_stalled(&self) -> bool {
        self.is_paused || (self.refused.1 > 0 && self.waiting == 0 && self.changing.1 == 0)
    }

    /// How far it is and what it waits for, or why it does not proceed and what to do.
    pub fn message(&self) -> String {
        let total = self.moved + self.waiting + self.refused.1;
        let named = |names: &mut dyn Iterator<Item = String>, count: usize| {
            let names: Vec<String> = names.collect();
            let more = count.saturating_sub(names.len());
            let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
            format!("{}{rest}", names.join(", "))
        };
        let moved = self.moved;
        let kept = self.kept.message().map(|kept| format!("; {kept}")).unwrap_or_default();
        let (refused, count) = &self.refused;
        let refused = if *count == 0 {
            String::new()
        } else {
            let named = named(&mut refused.iter().map(|(name, why)| format!("{name} ({why})")), *count);
            format!("; {count} cannot be moved, which is tried again: {named}")
        };
        let (failing, count) = &self.failing;
        if self.is_paused {
            let failing = named(&mut failing.iter().map(|(name, why)| format!("{name} ({why})")), *count);
            let rest = match self.waiting {
                0 => String::new(),
                1 => "; 1 other instance keeps its revision until then".to_owned(),
                waiting => format!("; {waiting} other instances keep their revision until then"),
            };
            return format!(
                "{moved} of {total} instances were moved, and {count} of them fail: {failing}. Correct or delete them, or \
                 return with `operetta rollback`{rest}{kept}{refused}"
            );
        }
        let (changing, count) = &self.changing;
        let waits = match count {
            0 => String::new(),
            _ => format!("; waiting for {}", named(&mut changing.iter().cloned(), *count)),
        };
        format!("{moved} of {total} instances were moved{waits}{kept}{refused}")
    }

    fn to_json(&self) -> Value {
        let named =
            |all: &[(String, String)]| -> Value { all.iter().map(|(name, _)| name.as_str()).collect() };
        json!({
            "moved": self.moved, "changing": self.changing.1, "waiting": self.waiting,
            "kept": self.kept.count(),
            "failing": named(&self.failing.0), "refused": named(&self.refused.0),
        })
    }
}

/// The JSON merge patch from the status that is there to the one that should be; `None` if nothing changes. `now` is RFC
/// 3339. Conditions of other writers are kept.
pub fn patch(current: &Value, facts: &Facts<'_>, now: &str) -> Option<Value> {
    let active = facts.active.map(|(revision, _)| revision);
    let before = current["activeRevision"].as_str();
    let mut wanted = Map::new();
    wanted.insert("observedGeneration".into(), facts.generation.into());
    wanted.insert("targetRevision".into(), facts.target.into());
    if current["targetRevision"] != facts.target || current["targetSince"].is_null() {
        wanted.insert("targetSince".into(), now.into());
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
        Target::RollingOut(rollout) => Some(rollout.to_json()),
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
        (Target::Active { .. }, Some((reason, why))) => (false, true, *reason, why.clone()),
        (Target::Progressing(_), Some((reason, why))) if is_hindered => (false, false, *reason, why.clone()),
        (Target::Active { .. }, None) => {
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
    } else if !is_ready && !matches!(facts.progress, Target::Paused(_)) {
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
    if let Some((_, message)) = notes.iter().find(|(reason, _)| *reason == NAMESPACES) {
        add(NAMESPACES, true, NAMESPACES, message);
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
    if !facts.missing_namespaces.is_empty() {
        notes.push((NAMESPACES, missing_namespaces(facts.missing_namespaces)));
    }
    let stuck = facts.migration.filter(|(is_stuck, _)| *is_stuck);
    notes.extend(stuck.map(|(_, why)| (MIGRATION_FAILED, why.to_owned())));
    if let Target::Active { kept } = &facts.progress {
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
    /// It is refused or cannot be loaded: another spec, or a change elsewhere, is needed. The texts are reason and
    /// message.
    Stalled(String, String),
    /// It waits, because the Operator is paused. The text is how far it is.
    Paused(String),
}

/// What a live `Operator` says of its revision, and the revision that is active.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observed {
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
pub fn standing(operator: &Value) -> Observed {
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
        && status["targetRevision"] == operator["spec"]["revision"];
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
    Observed { standing, active, reason }
}
