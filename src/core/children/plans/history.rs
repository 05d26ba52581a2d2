//! What the stored runs of an instance say about its children: which origin each has, and which steps have deleted.

use std::collections::{BTreeMap, HashMap};

use serde_json::{Value, json};

use crate::children::model::{InstanceInput, ItemId, ItemMemory, Origin, Origins, PlanSnapshot};
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
        self.runs.iter().copied().filter(|run| run.is_active())
    }

    /// The rollouts that have started, newest first, up to the newest that has succeeded, which is included.
    pub(super) fn rollouts(&self) -> Vec<&'a PlanRun> {
        let mut found = Vec::new();
        for run in self.runs.iter().rev() {
            if !run.is_rollout() {
                continue;
            }
            found.push(*run);
            if run.has_rolled_out() {
                break;
            }
        }
        found
    }

    /// The name of the origin of the last rollout that has succeeded.
    pub(super) fn rolled_out(&self) -> Option<&'a str> {
        let run = self.rollouts().pop().filter(|run| run.has_rolled_out())?;
        run.status.as_ref()?.origin.as_deref()
    }

    /// What is remembered of each item. `position`: of the origin of that name, if it is in use, and whether its package is
    /// missing.
    pub(super) fn items(
        &self,
        origins: &Origins<'_>,
        position: impl Fn(&str) -> Option<(usize, bool)>,
    ) -> HashMap<ItemId, ItemMemory> {
        let id = |member: &Member| origins.in_newest(item_id(member));
        let mut items: HashMap<ItemId, ItemMemory> = HashMap::new();
        for run in &self.runs {
            let Some(status) = &run.status else { continue };
            let (is_rollout, has_rolled_out) = (run.is_rollout(), run.has_rolled_out());
            if has_rolled_out {
                items.clear();
            }
            let origin = status.origin.as_deref().filter(|_| is_rollout && !has_rolled_out);
            let origin = origin.and_then(&position);
            for member in &status.applied {
                let item = items.entry(id(member)).or_default();
                (item.deleted, item.absent, item.lost) = (false, false, false);
                item.is_reached |= is_rollout;
                item.existed |= is_rollout && !status.uncreated.contains(member);
                if let Some((position, is_missing)) = origin {
                    (item.origin, item.is_held) = (Some(position), is_missing);
                }
            }
            if has_rolled_out {
                continue;
            }
            for member in &status.deleted {
                let item = items.entry(id(member)).or_default();
                item.deleted = true;
                item.absent |= status.phase != Phase::Succeeded;
            }
            if run.cause() == Cause::Loss && (run.phase() == Phase::Pending || run.phase().is_retryable()) {
                for member in &status.lost {
                    items.entry(id(member)).or_default().lost = true;
                }
            }
        }
        for item in items.values_mut().filter(|item| item.lost) {
            (item.deleted, item.absent) = (false, false);
        }
        items
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
}

/// Whether a run is of a plan that changes children.
pub(super) use crate::plan::is_exclusive;

/// The item of a member.
pub(super) fn item_id(member: &Member) -> ItemId {
    let key = member.key.as_ref().map(names::key_text);
    ItemId::new(&member.child, key.as_deref())
}

/// What rollouts start from: a revision of the package, and the instance. A ControllerRevision holds it.
#[derive(Debug, Clone)]
pub(super) struct StoredOrigin {
    /// The name that the ControllerRevision has, or gets.
    pub(super) name: String,
    /// The revision of the package.
    pub(super) revision: String,
    /// The instance as it was, or is.
    pub(super) input: InstanceInput,
    /// The digests of the object refs.
    pub(super) refs: BTreeMap<String, String>,
}

impl StoredOrigin {
    /// The origin of the instance as it is. An origin that is stored with the same content keeps its name.
    pub(super) fn new(origin: &Origin<'_>, refs: BTreeMap<String, String>, memory: &Memory) -> Self {
        let (revision, input) = (origin.package.revision(), InstanceInput::of(origin.instance));
        let new = Self { name: String::new(), revision, input, refs };
        let data = new.data();
        let new_name =
            || format!("{}-{}", origin.name(), names::short_hash(&format!("{} {data}", origin.uid()), 5));
        let name = memory.origin_with(&content_digest(&data)).map_or_else(new_name, str::to_owned);
        Self { name, ..new }
    }

    /// The origin in a ControllerRevision.
    fn read(object: &Value) -> Option<Self> {
        let data = &object["data"];
        Some(Self {
            name: object["metadata"]["name"].as_str()?.to_owned(),
            revision: data["revision"].as_str()?.to_owned(),
            input: serde_json::from_value(data["instance"].clone()).ok()?,
            refs: serde_json::from_value(data["refs"].clone()).unwrap_or_default(),
        })
    }

    /// What the ControllerRevision holds.
    pub(super) fn data(&self) -> Value {
        let mut data = json!({"revision": self.revision, "instance": self.input});
        if !self.refs.is_empty() {
            data["refs"] = json!(self.refs);
        }
        data
    }

    /// The origin as plans are selected by it.
    pub(super) fn compared(&self) -> plan::ComparedOrigin<'_> {
        plan::ComparedOrigin {
            name: &self.name,
            revision: &self.revision,
            spec: self.input.spec(),
            labels: self.input.labels(),
            annotations: self.input.annotations(),
            refs: &self.refs,
        }
    }
}

/// The stored origins, by name. An origin whose content was altered counts as missing.
pub(super) fn origins(plans: &PlanSnapshot) -> HashMap<String, StoredOrigin> {
    let unaltered = plans.origins.iter().filter(|origin| plans.is_unaltered(origin));
    unaltered.filter_map(StoredOrigin::read).map(|origin| (origin.name.clone(), origin)).collect()
}
