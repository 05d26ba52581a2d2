//! The status of an `Operator`.

use serde_json::{Map, Value, json};

/// Longest message of a condition, in characters; the API allows 32,768.
const MESSAGE: usize = 4_096;
/// How many missing rights the status names.
const MOST_RIGHTS: usize = 200;
/// The conditions of ours. The last three are there while they hold, as kstatus has them.
const ACTIVE: &str = "Active";
const READY: &str = "Ready";
const RECONCILING: &str = "Reconciling";
const STALLED: &str = "Stalled";
const RIGHTS_MISSING: &str = "RightsMissing";
/// There while stored objects are written in another version of their CRD.
const MIGRATING: &str = "StorageMigrating";
/// There while the spec names namespaces that do not exist.
const NAMESPACES: &str = "NamespacesMissing";
/// How many of them it names.
const NAMED: usize = 10;

/// What is known of an `Operator` at one moment.
#[derive(Debug)]
pub struct Facts<'a> {
    /// Its `metadata.generation`.
    pub generation: i64,
    /// The revision that is to be active.
    pub target: &'a str,
    /// How far it is.
    pub progress: Target,
    /// The revision that is active, and the version of the package.
    pub active: Option<(&'a str, &'a str)>,
    /// How many instances each revision has; `None` while they are being listed.
    pub instances: Option<&'a [(String, usize)]>,
    /// The namespaces that it names and that do not exist.
    pub missing_namespaces: &'a [String],
    /// How far the migration of stored objects is, and whether it does not proceed.
    pub migration: Option<(bool, &'a str)>,
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
    /// The watches that the API server refuses, with its words.
    pub refused: Vec<String>,
}

impl MissingRights {
    fn is_empty(&self) -> bool {
        self.rights.is_empty() && self.refused.is_empty()
    }

    fn message(&self, package: &str) -> String {
        let mut parts = Vec::new();
        if !self.rights.is_empty() {
            parts.push(format!("{} may not: {}", self.user, self.rights.join(", ")));
        }
        if !self.refused.is_empty() {
            parts.push(format!("refused: {}", self.refused.join("; ")));
        }
        format!("apply what `operetta rbac` prints for the package {package}; {}", parts.join("; "))
    }
}

/// How far instances are moved to the active revision.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rollout {
    /// How many have it, or change to it.
    pub moved: usize,
    /// The first of those that were not ready since they were moved, and how many they are.
    pub changing: (Vec<String>, usize),
    /// How many are still to be moved.
    pub waiting: usize,
    /// How many keep their revision.
    pub kept: usize,
    /// The first of those that fail since they were moved, with why, and how many they are.
    pub failing: (Vec<(String, String)>, usize),
    /// The first of those that cannot be moved, with why, and how many they are.
    pub refused: (Vec<(String, String)>, usize),
    /// Whether no other instance is moved because of those that fail.
    pub is_paused: bool,
}

/// How far the revision is that an `Operator` names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// It is active.
    Active,
    /// It is loaded, checked or registered: with what it waits for.
    Progressing(String),
    /// It is active, and instances are moved to it.
    RollingOut(Rollout),
    /// It waits until the `Operator` is not paused any more.
    Paused,
    /// It cannot be loaded.
    NotLoaded(Lost),
    /// It is refused.
    Refused {
        /// In one word.
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
    /// In one word.
    pub reason: &'static str,
    /// Why.
    pub message: String,
    /// Whether it may pass by itself.
    pub is_temporary: bool,
}

impl Target {
    fn reason(&self) -> (&'static str, String) {
        match self {
            Self::Active => ("Active", String::new()),
            Self::Progressing(what) => ("Progressing", what.clone()),
            Self::RollingOut(rollout) => (rollout.reason(), rollout.message()),
            Self::Paused => ("Paused", "spec.paused is true".to_owned()),
            Self::NotLoaded(lost) => (lost.reason, lost.message.clone()),
            Self::Refused { reason, message, .. } => (reason, message.clone()),
        }
    }

    fn is_stalled(&self) -> bool {
        match self {
            Self::Active | Self::Progressing(_) | Self::Paused => false,
            Self::RollingOut(rollout) => rollout.is_stalled(),
            Self::NotLoaded(Lost { is_temporary, .. }) | Self::Refused { is_temporary, .. } => !is_temporary,
        }
    }
}

impl Rollout {
    /// In one word.
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
        let (moved, kept) = (self.moved, self.kept);
        let kept = if kept > 0 { format!("; {kept} keep their revision") } else { String::new() };
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
            "moved": self.moved, "changing": self.changing.1, "waiting": self.waiting, "kept": self.kept,
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
    // What was active stays on record while nothing is: it is tried first after a start.
    if let Some((revision, version)) = facts.active {
        wanted.insert("activeRevision".into(), revision.into());
        wanted.insert("version".into(), version.into());
    }
    if let Some(previous) = before.filter(|before| active.is_some_and(|active| active != *before)) {
        wanted.insert("previousRevision".into(), previous.into());
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
        let short: String = message.chars().take(MESSAGE).collect();
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
    match &facts.progress {
        Target::Active => add(READY, true, "Active", &format!("{target} is active")),
        _ => add(READY, false, reason, &stays(facts.active)),
    }
    let is_reconciling = match &facts.progress {
        Target::Active | Target::Paused => false,
        other => !other.is_stalled(),
    };
    if facts.progress.is_stalled() {
        add(STALLED, true, reason, &stays(facts.active));
    } else if is_reconciling {
        add(RECONCILING, true, reason, &stays(facts.active));
    }
    let mut ours = vec![ACTIVE, READY, RECONCILING, STALLED, MIGRATING, NAMESPACES];
    if let Some((is_stuck, progress)) = facts.migration {
        add(MIGRATING, true, if is_stuck { "MigrationFailed" } else { "Migrating" }, progress);
    }
    if !facts.missing_namespaces.is_empty() {
        let more = facts.missing_namespaces.len().saturating_sub(NAMED);
        let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
        let named =
            facts.missing_namespaces.iter().take(NAMED).map(String::as_str).collect::<Vec<_>>().join(", ");
        let message = format!(
            "spec.namespaces.names: there is no namespace {named}{rest}: create it, or correct the name; instances there are \
             served once it exists"
        );
        add(NAMESPACES, true, NAMESPACES, &message);
    }
    if let Some(missing) = &facts.rights {
        ours.push(RIGHTS_MISSING);
        if !missing.is_empty() {
            // An `OperatorRevision` has the name of its package and a digest.
            let package = target.rsplit_once('-').map_or(target, |(package, _)| package);
            add(RIGHTS_MISSING, true, RIGHTS_MISSING, &missing.message(package));
        }
    }
    let is_ours = |c: &Value| ours.iter().any(|ours| c["type"] == *ours);
    all.extend(there.iter().filter(|c| !is_ours(c)).cloned());
    Value::Array(all)
}

/// What a live `Operator` says of a revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// No manager has seen the newest spec.
    Unseen,
    /// The manager is at it: with what it says.
    Progressing(String),
    /// The revision is active.
    Active,
    /// It is refused or cannot be loaded; another spec, or a change elsewhere, is needed. With reason and message.
    Stalled(String, String),
    /// It waits, because the Operator is paused.
    Paused,
}

/// What a live `Operator` says of its revision, and the revision that is active.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observed {
    /// How far the named revision is.
    pub standing: Standing,
    /// The active revision.
    pub active: Option<String>,
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
    let standing = if !is_seen {
        Standing::Unseen
    } else if holds(READY) {
        Standing::Active
    } else if holds(STALLED) {
        Standing::Stalled(text(ready, "reason"), text(ready, "message"))
    } else if text(ready, "reason") == "Paused" {
        Standing::Paused
    } else {
        Standing::Progressing(text(ready, "message"))
    };
    Observed { standing, active }
}
