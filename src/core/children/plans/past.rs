//! What the runs of an instance say about its children before anything is rendered: the origins in use and their packages.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use serde_json::{Map, Value};

use super::history::{History, NewOrigin, StoredOrigin, is_exclusive, item_id, origins};
use crate::children::desired::refs;
use crate::children::model::{
    Action, Context, Decision, Finding, Item, ItemId, NEWEST, Needs, NoPackage, Origin, Origins,
    PlanSnapshot, Refs, Snapshot, Target, Verdict,
};
use crate::package::{Package, Resource};
use crate::plan::{self, PlanRun};
use crate::template::{Budget, Var};

/// What the runs say about the children, before anything is rendered.
pub(super) struct Past<'a> {
    pub(super) history: History<'a>,
    pub(super) current: NewOrigin,
    /// The origins in use; the first is the newest if an active run has another than the instance.
    pub(super) used: Vec<StoredOrigin>,
    /// The stored origins that are not in use.
    pub(super) unused: Vec<StoredOrigin>,
    /// The instances of `used`.
    pub(super) instances: Vec<Value>,
    /// The packages of `used`.
    pub(super) packages: Vec<Result<(&'a Package, &'a Resource), NoPackage>>,
    /// The active runs that change no children and began with another revision than the newest origin has.
    pub(super) beside: Vec<Beside<'a>>,
    /// Whether the newest origin is the first of `used`.
    pub(super) is_fixed: bool,
    /// The name of the newest origin.
    pub(super) newest: String,
    /// The earlier revisions that these origins and runs name.
    pub(super) revisions: BTreeSet<String>,
    /// The refs of the instance as it is now.
    pub(super) refs: Refs,
    pub(super) record: Map<String, Value>,
}

/// An active run with a revision of its own.
pub(super) struct Beside<'a> {
    pub(super) run: &'a PlanRun,
    pub(super) instance: Value,
    pub(super) package: Result<(&'a Package, &'a Resource), NoPackage>,
}

/// What the items are rendered from, according to the runs.
pub(super) struct Ordered<'o> {
    pub(super) origins: Origins<'o>,
    /// Whether a rollout has succeeded.
    pub(super) has_previous: bool,
    /// The position of the origin of the last rollout that has succeeded, if its package is known.
    pub(super) previous: Option<usize>,
    /// The positions of [`Past::used`]; `None` for an origin whose package is missing.
    pub(super) positions: Vec<Option<usize>>,
    /// The items that were recorded with an origin whose package is missing.
    pub(super) held: Vec<String>,
    /// The positions for the runs of [`Past::beside`], by the name of the run.
    pub(super) beside: HashMap<String, Option<usize>>,
}

impl<'a> Past<'a> {
    pub(super) fn of(snapshot: &'a Snapshot, plans: &'a PlanSnapshot, current: Origin<'a>) -> Self {
        let history = History::of(plans);
        let mut stored = origins(plans);
        let facts = plans.facts();
        let record: Map<String, Value> = facts.into_iter().map(|(key, fact)| (key, fact.value)).collect();
        let refs = refs_now(snapshot, current, &history, &stored, &record);
        let mut digests = refs.digests.clone();
        for (id, digest) in history.known_refs(&stored) {
            // While a ref is unknown, its last known digest counts.
            if current.resource.refs.iter().any(|reference| reference.id == *id) {
                digests.entry(id.clone()).or_insert_with(|| digest.clone());
            }
        }
        let new = NewOrigin::of(&current, digests, &plans.state.memory);
        let revision_of = |run: &PlanRun| run.status.as_ref().and_then(|status| status.revision.clone());
        let is_earlier = |run: &PlanRun| revision_of(run).filter(|revision| *revision != new.revision);
        let is_exclusive = |run: &&PlanRun| {
            let own = is_earlier(run).and_then(|revision| plans.package(&revision, current).ok());
            is_exclusive(run, &own.map_or(current.resource, |(_, resource)| resource).plans)
        };
        let active = history.active().find(is_exclusive);
        let mut fixed = None;
        if let Some(run) = active
            && let Some(name) = run.status.as_ref().and_then(|status| status.origin.clone())
            && name != new.name
        {
            if let Some(revision) = is_earlier(run) {
                // If the ControllerRevision was deleted, the revision is known from the run.
                stored.entry(name.clone()).or_insert_with(|| new.of_revision(&name, &revision, current));
            }
            fixed = Some(name).filter(|name| stored.contains_key(name));
        }
        let newest = fixed.clone().unwrap_or_else(|| new.name.clone());
        let mut names: Vec<String> = fixed.into_iter().collect();
        let is_fixed = !names.is_empty();
        // A package without rollouts applies all children from its newest origin, unless a run of an earlier revision is active.
        let has_rollouts = is_fixed || plan::has_rollouts(&current.resource.plans);
        let rollouts = if has_rollouts { history.rollouts() } else { Vec::new() };
        for name in rollouts.iter().filter_map(|run| run.status.as_ref()?.origin.clone()) {
            if name != newest && !names.contains(&name) && stored.contains_key(&name) {
                names.push(name);
            }
        }
        let newest_revision =
            stored.get(&newest).filter(|_| is_fixed).map_or(new.revision.clone(), |o| o.revision.clone());
        let mut beside = Vec::new();
        for run in history.active().filter(|run| active.is_none_or(|active| active.name != run.name)) {
            let Some(revision) = revision_of(run).filter(|revision| *revision != newest_revision) else {
                continue;
            };
            let origin = run.status.as_ref().and_then(|status| stored.get(status.origin.as_ref()?));
            let instance = origin.map(|origin| origin.input.restored(&snapshot.instance));
            let instance = instance.unwrap_or_else(|| snapshot.instance.clone());
            beside.push(Beside { run, instance, package: plans.package(&revision, current) });
        }
        let used: Vec<StoredOrigin> = names.iter().filter_map(|name| stored.remove(name)).collect();
        let instances = used.iter().map(|origin| origin.input.restored(&snapshot.instance)).collect();
        let unused = stored.into_values().collect();
        let packages = used.iter().map(|origin| plans.package(&origin.revision, current)).collect();
        let named = used.iter().map(|origin| origin.revision.clone());
        let named = named.chain(history.active().filter_map(revision_of));
        let revisions = named.filter(|revision| *revision != new.revision).collect();
        let current = new;
        Self {
            history,
            current,
            used,
            unused,
            instances,
            packages,
            beside,
            is_fixed,
            newest,
            revisions,
            refs,
            record,
        }
    }

    /// Whether a revision that the runs need is being loaded.
    pub(super) fn is_loading(&self) -> bool {
        let beside = self.beside.iter().map(|beside| &beside.package);
        self.packages.iter().chain(beside).any(|package| matches!(package, Err(NoPackage::Loading)))
    }

    /// The active run that changes children, if its revision cannot be loaded.
    pub(super) fn held(&self) -> Option<(&'a PlanRun, Finding)> {
        let package = self.packages.first().filter(|_| self.is_fixed)?;
        let why = package.as_ref().err()?.reason()?;
        let is_its = |run: &&PlanRun| {
            run.status.as_ref().and_then(|status| status.origin.as_ref()) == Some(&self.newest)
        };
        let run = self.history.active().find(is_its)?;
        let (revision, name) = (self.used[0].revision.clone(), Some(run.name.clone()));
        Some((run, Finding::RevisionMissing { revision, run: name, why: why.to_string() }))
    }

    /// The revisions of children that cannot be loaded.
    pub(super) fn missing(&self) -> Vec<Finding> {
        let mut found: BTreeMap<&str, Finding> = BTreeMap::new();
        for (origin, package) in self.used.iter().zip(&self.packages) {
            if let Some(why) = package.as_ref().err().and_then(NoPackage::reason) {
                let (revision, why) = (origin.revision.clone(), why.to_string());
                found.insert(&origin.revision, Finding::RevisionMissing { revision, run: None, why });
            }
        }
        found.into_values().collect()
    }

    /// All stored origins.
    pub(super) fn stored(&self) -> Vec<plan::ComparedOrigin<'_>> {
        self.used.iter().chain(&self.unused).map(StoredOrigin::compared).collect()
    }

    /// The digests that the origin at a position was rolled out with.
    pub(super) fn digests(&self, ordered: &Ordered<'_>, position: usize) -> &BTreeMap<String, String> {
        let index = ordered.positions.iter().position(|known| *known == Some(position));
        index.map_or(&self.current.refs, |index| &self.used[index].refs)
    }

    /// The items that exist and read an object that has changed since their origin was rolled out.
    pub(super) fn outdated_refs(
        &self,
        ctx: &Context<'_>,
        ordered: &Ordered<'_>,
        target: &Target,
    ) -> HashSet<String> {
        let is_outdated = |item: &&Item| {
            let (then, now) = (self.digests(ordered, item.origin), target.digests.get(item.origin));
            let is_other = |id: &String| match (then.get(id), now.and_then(|now| now.get(id))) {
                (Some(then), Some(now)) => plan::is_other_digest(then, now),
                _ => false,
            };
            item.observed.is_some() && ctx.child(item).reads_refs.iter().any(is_other)
        };
        target.items.iter().filter(is_outdated).map(|item| item.name.clone()).collect()
    }

    /// What the items are rendered from. An origin whose package is missing renders nothing: its items keep
    /// what they have.
    pub(super) fn ordered<'o>(&'o self, current: Origin<'o>) -> Ordered<'o> {
        let origin = |index: usize| {
            let (package, resource) = self.packages[index].as_ref().ok().copied()?;
            Some(Origin { package, resource, instance: &self.instances[index] })
        };
        let newest = self.is_fixed.then(|| origin(0)).flatten().unwrap_or(current);
        let mut earlier = Vec::new();
        let mut add = |origin: Origin<'o>| {
            earlier.push(origin);
            earlier.len()
        };
        let of_used = |index: usize| {
            if index == 0 && self.is_fixed { Some(NEWEST) } else { origin(index).map(&mut add) }
        };
        let positions: Vec<Option<usize>> = (0..self.used.len()).map(of_used).collect();
        let mut of_run = |beside: &'o Beside<'_>| {
            let (package, resource) = beside.package.as_ref().ok().copied()?;
            Some(add(Origin { package, resource, instance: &beside.instance }))
        };
        let beside = self.beside.iter().map(|one| (one.run.name.clone(), of_run(one))).collect();
        let (mut recorded, mut has_previous, mut previous) = (HashMap::new(), false, None);
        let mut previous_spec = None;
        for run in self.history.rollouts() {
            let Some(status) = &run.status else { continue };
            let Some(name) = &status.origin else { continue };
            let index = self.used.iter().position(|origin| origin.name == *name);
            let position = match index {
                Some(index) => positions[index],
                None if *name == self.newest => Some(NEWEST),
                None => continue,
            };
            if run.has_rolled_out() {
                (has_previous, previous) = (true, position);
                let instance = index.map_or(newest.instance, |index| &self.instances[index]);
                previous_spec = Some(instance["spec"].clone());
            } else {
                for member in &status.applied {
                    recorded.entry(item_id(member)).or_insert(position);
                }
            }
        }
        let held: Vec<ItemId> = recorded
            .iter()
            .filter(|(_, position)| position.is_none())
            .map(|(item, _)| item.clone())
            .collect();
        let recorded = recorded.into_iter().map(|(item, position)| (item, position.unwrap_or(NEWEST)));
        // Without plans no step would apply absent items again.
        let has_plans = !newest.resource.plans.is_empty();
        let absent = if has_plans { self.history.absent() } else { Vec::new() };
        let origins = Origins::new(newest, earlier, recorded, previous)
            .with_absent(absent)
            .with_variable("record", Var::Json(Value::Object(self.record.clone())))
            .with_variable("previous", previous_spec.map_or(Var::Undefined, Var::Json))
            .with_plans();
        let held = held.into_iter().map(|item| origins.in_newest(item).to_string()).collect();
        Ordered { origins, has_previous, previous, positions, held, beside }
    }
}

/// The refs of the instance as it is now, whatever origin an active run has.
fn refs_now(
    snapshot: &Snapshot,
    current: Origin<'_>,
    history: &History<'_>,
    stored: &HashMap<String, StoredOrigin>,
    record: &Map<String, Value>,
) -> Refs {
    if current.resource.refs.iter().all(|reference| reference.gvk.is_none()) {
        return Refs::default();
    }
    let rollouts = history.rollouts();
    let previous = rollouts.last().filter(|run| run.has_rolled_out());
    let previous = previous.and_then(|run| stored.get(run.status.as_ref()?.origin.as_ref()?));
    let previous = previous.map_or(Var::Undefined, |origin| Var::Json(origin.spec.clone()));
    let origins = Origins::one(current)
        .with_variable("record", Var::Json(Value::Object(record.clone())))
        .with_variable("previous", previous);
    refs(&Context::new(snapshot, &origins, Budget::new(snapshot.limits)))
}

impl Past<'_> {
    /// A decision that has only a verdict. The objects that the instance reads stay watched.
    pub(super) fn idle(&self, verdict: Verdict) -> Decision {
        let (watches, revisions) = (self.refs.wants.clone(), self.revisions.clone());
        Decision { needs: Needs { watches, revisions, ..Needs::default() }, ..Decision::idle(verdict) }
    }
}

/// The decision while the memory lacks what the runs have stored: it is written before anything is done for them.
pub(super) fn until_remembered(plans: &PlanSnapshot, past: &Past<'_>) -> Option<Decision> {
    let unwritten = plans.state.is_unwritten.then(|| plans.state.memory.clone());
    let memory = plans.absorbed(&[], (&past.current.name, &past.current.data)).or(unwritten)?;
    let message = "what the runs of the instance have done is being stored".to_owned();
    let action = Action::Run(Box::new(plans.remember(&memory)));
    let verdict = Verdict::Reconciling { reason: "Storing".into(), message };
    Some(Decision { actions: vec![action], ..past.idle(verdict) })
}
