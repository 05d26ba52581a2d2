//! What is known of an `Operator`, from which its status follows.

use operetta_kube_model::fields::entries;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::upgrade::Kept;
use crate::printable;

/// The condition, and the reason, of a revision that is not active yet.
pub(super) const PROGRESSING: &str = "Progressing";
/// The longest text of an entry, in characters.
const TEXT: usize = 300;
/// The field manager of `operetta install`, `upgrade` and `rollback`.
pub const INSTALLER: &str = "operetta-install";
/// Annotation of an `Operator`: the revision that these commands have named, and the user who gave the command, with a space between.
pub const NAMED_BY: &str = "operetta.dev/named-by";

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
    pub progress: RevisionProgress,
    /// Whether the progress is about the source, which comes to no new revision, and not about the target.
    pub is_of_source: bool,
    /// The revision that is active, and the version of the package.
    pub active: Option<(&'a str, &'a str)>,
    /// The values that take the place of the package's defaults, if all of them are valid for the active revision.
    pub valid_defaults: Option<&'a Map<String, Value>>,
    /// How many instances each revision has; `None` while they are being listed.
    pub instances: Option<&'a [(String, usize)]>,
    /// Why the active revision is not stored as it is loaded, if it is not.
    pub unstored: Option<&'a str>,
    /// Where the package is from, and who has signed it; `None` if it is from no registry, or nothing is known yet.
    pub source: Option<&'a SourceRecord>,
    /// Why the policy does not permit the active revision, if it does not.
    pub untrusted: Option<&'a str>,
    /// Why the active revision is not for this version of Kubernetes, if it is not.
    pub unsupported: Option<&'a str>,
    /// Which kinds of others the active revision requires that are not served, and what brings them.
    pub missing_dependencies: Option<&'a str>,
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

/// Where the package of a revision is from, and who has signed it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceRecord {
    /// The reference, as it was named.
    pub package: String,
    /// The digest of the manifest.
    pub digest: String,
    /// The `OperatorRevision` with its files.
    pub revision: String,
    /// The key that has signed it, if the policy demands one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signer: Option<String>,
    /// The `PackagePolicy` that permits it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
}

/// How the rights of a package differ from those that it needs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MissingRights {
    /// The user name of the account.
    pub user: String,
    /// Each right as text, such as `list configmaps in team-a`.
    pub rights: Vec<String>,
    /// The watches that the API server refuses to the account, with its words.
    pub refused: Vec<String>,
    /// What the API server refuses to the manager itself, which then cannot read or report the state of instances, or grant and
    /// take back rights.
    pub manager: Vec<String>,
    /// Roles of the active revision that are gone.
    pub gone: Vec<String>,
    /// Roles of revisions in use with other rules than those with which they were made, which may grant more than is needed.
    pub changed: Vec<String>,
}

impl MissingRights {
    /// Whether the rights are those that are needed.
    pub fn is_empty(&self) -> bool {
        !self.lacks_any() && self.changed.is_empty()
    }

    /// Whether something may come to be allowed that is not now.
    pub fn lacks_any(&self) -> bool {
        let all = [&self.rights, &self.refused, &self.manager, &self.gone];
        all.into_iter().any(|some| !some.is_empty())
    }

    pub(super) fn message(&self, package: &str) -> String {
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
        if !self.gone.is_empty() {
            parts.push(format!("there is no {}", self.gone.join(", ")));
        }
        let again = format!("give `operetta upgrade` with the files of {package} again, or apply");
        let changed = format!("other rules than those of the revision are in {}", self.changed.join(", "));
        if parts.is_empty() {
            return format!("rights are changed: {changed}; {again} its file from Git");
        }
        if !self.changed.is_empty() {
            parts.push(changed);
        }
        format!(
            "rights are missing: {}; {again} what `operetta rbac` prints for the package {package}",
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
pub enum RevisionProgress {
    /// The revision is active, and all instances have it that are to have it.
    Active {
        /// The instances that keep an earlier revision.
        kept: Kept,
    },
    /// The revision is loaded, checked or registered. The text is what it waits for.
    Progressing(String),
    /// The revision is active, and instances are moved to it.
    RollingOut(Rollout),
    /// The revision waits until the `Operator` is not paused any more. The text is how far it is.
    Paused(String),
    /// The revision cannot be loaded.
    NotLoaded(Lost),
    /// The revision is refused.
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

impl RevisionProgress {
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

    pub(super) fn to_json(&self) -> Value {
        let named =
            |all: &[(String, String)]| -> Value { all.iter().map(|(name, _)| name.as_str()).collect() };
        json!({
            "moved": self.moved, "changing": self.changing.1, "waiting": self.waiting,
            "kept": self.kept.count(),
            "failing": named(&self.failing.0), "refused": named(&self.refused.0),
        })
    }
}

/// Who has named the revision of an `Operator`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Author {
    /// The field manager that owns `spec.revision`, such as `kubectl-edit`.
    pub manager: Option<String>,
    /// The user, if a command of Operetta has named it and says so.
    pub user: Option<String>,
}

impl Author {
    /// Reads who has named the revision of a live `Operator`.
    pub fn of(operator: &Value) -> Self {
        let meta = &operator["metadata"];
        let field = if operator["spec"]["source"].is_null() { "revision" } else { "source" };
        let owners = entries(operator).filter(|entry| entry.set().get(&["spec", field]).is_some());
        let last = owners.max_by(|a, b| a.time.cmp(&b.time));
        let manager = last.as_ref().map(|entry| &*entry.owner.manager);
        let named = meta["annotations"][NAMED_BY].as_str().and_then(|named| named.split_once(' '));
        // An annotation stays when another client names a revision.
        let is_ours = |revision: &str| operator["spec"]["revision"] == revision && manager == Some(INSTALLER);
        let user = named.filter(|(revision, _)| is_ours(revision)).map(|(_, user)| short(user));
        Self { manager: manager.map(short), user }
    }
}

pub(super) fn short(text: &str) -> String {
    let text = printable::sentence(text);
    if text.chars().count() <= TEXT {
        return text.into_owned();
    }
    text.chars().take(TEXT - 1).chain(['…']).collect()
}
