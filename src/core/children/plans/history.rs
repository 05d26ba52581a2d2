//! What the stored runs of an instance say about its children: which origin each has, and which steps have deleted.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde_json::{Value, json};

use crate::children::model::{InstanceInput, ItemId, Origin, Origins, PlanSnapshot};
use crate::children::names;
use crate::package::plan::Plan;
use crate::plan::{self, Cause, Member, Memory, Phase, PlanRun, content_digest};

/// The runs of an instance, oldest first.
pub(super) struct History<'a> {
    pub(super) runs: Vec<&'a PlanRun>,
}

impl<'a> History<'a> {
    pub(super) fn of(plans: &'a PlanSnapshot) -> Self {
        let mut runs: Vec<&PlanRun> = plans.runs.iter().collect();
        runs.sort_by_key(|run| {
            (plan::start_time(run.status.as_ref(), &run.created), run.number(), run.name.clone())
        });
        Self { runs }
    }

    /// The run that changes children, if one is active.
    pub(super) fn exclusive(&self, plans: &[Plan]) -> Option<&'a PlanRun> {
        self.active().find(|run| is_exclusive(run, plans))
    }

    /// All active runs.
    pub(super) fn active(&self) -> impl Iterator<Item = &'a PlanRun> + '_ {
        self.runs.iter().filter(|run| run.phase() == Phase::Running && run.has_object()).copied()
    }

    /// The rollouts that have started, newest first, up to the newest that has succeeded, which is included.
    pub(super) fn rollouts(&self) -> Vec<&'a PlanRun> {
        let mut found = Vec::new();
        for run in self.runs.iter().rev() {
            let Some(status) = &run.status else { continue };
            if status.cause != Cause::Rollout || status.origin.is_none() || status.phase == Phase::Pending {
                continue;
            }
            found.push(*run);
            if run.has_rolled_out() {
                break;
            }
        }
        found
    }

    /// The items that have existed, according to the rollouts since the last one that has succeeded.
    pub(super) fn created(&self, origins: &Origins<'_>) -> HashSet<ItemId> {
        let mut created = HashSet::new();
        for status in self.rollouts().iter().filter_map(|run| run.status.as_ref()) {
            let existed = status.applied.iter().filter(|member| !status.uncreated.contains(member));
            created.extend(existed.map(|member| origins.in_newest(item_id(member))));
        }
        created
    }

    /// Whether an active run creates a member that no rollout before it has applied, or that one of its own steps has
    /// deleted. `awaited`: what the current steps of active runs have changed.
    pub(super) fn is_coming(&self, member: &Member, awaited: &[Member]) -> bool {
        if !awaited.contains(member) {
            return false;
        }
        let is_applied = |run: &&PlanRun| run.status.as_ref().is_some_and(|s| s.applied.contains(member));
        let is_new = !self
            .rollouts()
            .into_iter()
            .filter(|run| run.phase() != Phase::Running)
            .any(|run| is_applied(&run));
        let value = json!(member);
        let deletes = |run: &PlanRun| {
            let steps = run.status.iter().flat_map(|status| &status.steps);
            steps.flat_map(|step| step.items.iter().flatten()).any(|item| item.value == value)
        };
        is_new || self.active().any(deletes)
    }

    /// The digests of the object refs of the newest rollout whose origin is stored.
    pub(super) fn known_refs<'s>(
        &self,
        stored: &'s HashMap<String, StoredOrigin>,
    ) -> impl Iterator<Item = (&'s String, &'s String)> {
        let rollouts = self.rollouts();
        let origin = rollouts.iter().find_map(|run| stored.get(run.status.as_ref()?.origin.as_ref()?));
        origin.into_iter().flat_map(|origin| &origin.refs)
    }

    /// The members that are lost whatever steps have deleted: those for which a run waits, and those of a run
    /// that has ended without success, until another one applies them.
    fn noted(&self) -> HashSet<&'a Member> {
        let mut noted = HashSet::new();
        for run in &self.runs {
            let Some(status) = &run.status else { continue };
            if run.has_rolled_out() {
                noted.clear();
            }
            for member in &status.applied {
                noted.remove(member);
            }
            if run.cause() == Cause::Loss && (run.phase() == Phase::Pending || run.phase().is_retryable()) {
                noted.extend(&status.lost);
            }
        }
        noted
    }

    /// The members that steps have deleted, and that nothing has applied since.
    pub(super) fn absent(&self) -> Vec<ItemId> {
        let mut absent: Vec<&Member> = Vec::new();
        let noted = self.noted();
        for run in &self.runs {
            let Some(status) = &run.status else { continue };
            absent.retain(|member| !status.applied.contains(member));
            if run.has_rolled_out() {
                absent.clear();
            } else if status.phase != Phase::Succeeded {
                absent.extend(&status.deleted);
            }
        }
        let mut seen = HashSet::new();
        absent.retain(|member| !noted.contains(member) && seen.insert(*member));
        absent.into_iter().map(item_id).collect()
    }

    /// The members that steps have deleted and no step has applied since, whatever became of the runs. Their
    /// absence is no loss.
    pub(super) fn deleted(&self) -> HashSet<ItemId> {
        let mut deleted: HashSet<ItemId> = HashSet::new();
        for run in &self.runs {
            let Some(status) = &run.status else { continue };
            if run.has_rolled_out() {
                deleted.clear();
                continue;
            }
            for member in &status.applied {
                deleted.remove(&item_id(member));
            }
            deleted.extend(status.deleted.iter().map(item_id));
        }
        for member in self.noted() {
            deleted.remove(&item_id(member));
        }
        deleted
    }
}

/// Whether a run is of a plan that changes children.
pub(super) use crate::plan::is_exclusive;

/// The item of a member.
pub(super) fn item_id(member: &Member) -> ItemId {
    let key = member.key.as_ref().map(names::key_text);
    ItemId::new(&member.child, key.as_deref())
}

/// A stored origin.
pub(super) struct StoredOrigin {
    /// The name of its ControllerRevision.
    pub(super) name: String,
    /// The revision of the package.
    pub(super) revision: String,
    /// The instance as it was when it was stored.
    pub(super) input: InstanceInput,
    /// The spec of the instance as it was when it was stored.
    pub(super) spec: Value,
    /// The digests of the object refs.
    pub(super) refs: BTreeMap<String, String>,
}

impl StoredOrigin {
    /// The origin as plans are selected by it.
    pub(super) fn compared(&self) -> plan::ComparedOrigin<'_> {
        plan::ComparedOrigin {
            name: &self.name,
            revision: &self.revision,
            spec: &self.spec,
            refs: &self.refs,
        }
    }
}

/// The origin of the instance as it is now.
pub(super) struct NewOrigin {
    /// The name that its ControllerRevision has, or gets.
    pub(super) name: String,
    pub(super) revision: String,
    /// The digests of the object refs.
    pub(super) refs: BTreeMap<String, String>,
    /// What the ControllerRevision holds.
    pub(super) data: Value,
}

impl NewOrigin {
    /// The origin of the instance as it is. An origin that is stored with the same content keeps its name.
    pub(super) fn of(origin: &Origin<'_>, refs: BTreeMap<String, String>, memory: &Memory) -> Self {
        let revision = origin.package.revision();
        let mut data = json!({"revision": revision, "instance": InstanceInput::of(origin.instance)});
        if !refs.is_empty() {
            data["refs"] = json!(refs);
        }
        let new_name =
            || format!("{}-{}", origin.name(), names::short_hash(&format!("{} {data}", origin.uid()), 5));
        let name = memory.origin_with(&content_digest(&data)).map_or_else(new_name, str::to_owned);
        Self { name, revision, refs, data }
    }

    /// This origin with an earlier revision of the package, under the name of the origin that has that
    /// revision.
    pub(super) fn of_revision(&self, name: &str, revision: &str, origin: Origin<'_>) -> StoredOrigin {
        StoredOrigin {
            name: name.to_owned(),
            revision: revision.to_owned(),
            input: InstanceInput::of(origin.instance),
            spec: origin.instance["spec"].clone(),
            refs: self.refs.clone(),
        }
    }

    /// The origin as plans are selected by it.
    pub(super) fn compared(&self) -> plan::ComparedOrigin<'_> {
        let spec = &self.data["instance"]["spec"];
        plan::ComparedOrigin { name: &self.name, revision: &self.revision, spec, refs: &self.refs }
    }
}

/// The stored origins, by name. An origin whose content was altered counts as missing.
pub(super) fn origins(plans: &PlanSnapshot) -> HashMap<String, StoredOrigin> {
    let parse = |object: &Value| {
        let name = object["metadata"]["name"].as_str()?.to_owned();
        let data = &object["data"];
        let input = serde_json::from_value(data["instance"].clone()).ok()?;
        let revision = data["revision"].as_str()?.to_owned();
        let spec = data["instance"]["spec"].clone();
        let refs = serde_json::from_value(data["refs"].clone()).unwrap_or_default();
        Some((name.clone(), StoredOrigin { name, revision, input, spec, refs }))
    };
    plans.origins.iter().filter(|origin| plans.is_unaltered(origin)).filter_map(parse).collect()
}
