//! What the runs of an instance say about its children before anything is rendered: the origins in use and their packages.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use serde_json::{Map, Value};

use super::history::{History, StoredOrigin, is_exclusive, origins};
use crate::children::desired::refs;
use crate::children::model::{
    Action, Context, Decision, Finding, Item, LiveValues, NEWEST, Needs, NoPackage, Origin, Origins,
    PlanSnapshot, Problem, Refs, Snapshot, Target, Verdict,
};
use crate::package::{Package, Resource};
use crate::plan::{self, PlanRun};
use crate::template::{Budget, Var};

/// What the runs say about the children, before anything is rendered.
pub(super) struct Past<'a> {
    pub(super) snapshot: &'a Snapshot,
    pub(super) plans: &'a PlanSnapshot,
    /// The instance as it is now, with the active revision.
    pub(super) origin: Origin<'a>,
    pub(super) history: History<'a>,
    /// The origin of the instance as it is.
    pub(super) current: StoredOrigin,
    /// The stored origins in use; the first is the newest if an active run has another than the instance.
    pub(super) used: Vec<(StoredOrigin, Source<'a>)>,
    /// The stored origins that are not in use.
    pub(super) unused: Vec<StoredOrigin>,
    /// The active runs with another origin than the newest that decide nothing about the children: those that change none, and
    /// one that has gone on after others.
    pub(super) beside: Vec<(&'a PlanRun, Source<'a>)>,
    /// Whether the newest origin is the first of `used`.
    pub(super) is_fixed: bool,
    /// The name of the newest origin.
    pub(super) newest: String,
    /// The earlier revisions that these origins and runs name.
    pub(super) revisions: BTreeSet<String>,
    /// The refs of the instance as it is now.
    pub(super) refs: Refs,
    /// The live objects, parsed for the refs.
    pub(super) live: LiveValues,
    pub(super) record: Map<String, Value>,
}

/// An instance as it was, and its package if that is known.
pub(super) struct Source<'a> {
    instance: Value,
    pub(super) package: Result<(&'a Package, &'a Resource), NoPackage>,
}

impl Source<'_> {
    fn origin(&self) -> Option<Origin<'_>> {
        let (package, resource) = self.package.as_ref().ok().copied()?;
        Some(Origin { package, resource, instance: &self.instance })
    }
}

/// What the items are rendered from, according to the runs.
pub(super) struct Ordered<'o> {
    pub(super) origins: Origins<'o>,
    /// Whether a rollout has succeeded.
    pub(super) has_previous: bool,
    /// The positions of [`Past::used`]; `None` for an origin whose package is missing.
    pub(super) positions: Vec<Option<usize>>,
    /// The positions for the runs of [`Past::beside`], by the name of the run.
    pub(super) beside: HashMap<String, Option<usize>>,
}

impl<'a> Past<'a> {
    pub(super) fn of(snapshot: &'a Snapshot, plans: &'a PlanSnapshot, current: Origin<'a>) -> Self {
        let history = History::of(plans);
        let mut stored = origins(plans);
        let facts = plans.facts();
        let record: Map<String, Value> = facts.into_iter().map(|(key, fact)| (key, fact.value)).collect();
        let live = LiveValues::default();
        let refs = refs_now((snapshot, &live), current, &history, &stored, &record);
        let mut digests = refs.digests.clone();
        for (id, digest) in history.known_refs(&stored) {
            // While a ref is unknown, its last known digest counts.
            if current.resource.refs.iter().any(|reference| reference.id == *id) {
                digests.entry(id.clone()).or_insert_with(|| digest.clone());
            }
        }
        for reference in current.resource.refs.iter().filter(|reference| reference.gvk.is_some()) {
            // Without it, the object would be no change when it comes.
            if refs.problems.get(&reference.id).is_some_and(Problem::is_absence) {
                digests.entry(reference.id.clone()).or_insert_with(|| plans.digest(&Value::Null));
            }
        }
        let new = StoredOrigin::new(&current, digests, &plans.state.memory);
        let revision_of = |run: &PlanRun| run.status.as_ref().and_then(|status| status.revision.clone());
        let is_earlier = |run: &PlanRun| revision_of(run).filter(|revision| *revision != new.revision);
        let decides = |run: &&PlanRun| {
            // What other runs have rolled out while one was interrupted stays.
            if run.status.as_ref().is_some_and(|status| status.continued) {
                return false;
            }
            let own = is_earlier(run).and_then(|revision| plans.package(&revision, current).ok());
            is_exclusive(run, &own.map_or(current.resource, |(_, resource)| resource).plans)
        };
        let active = history.active().find(decides);
        let mut fixed = None;
        if let Some(run) = active
            && let Some(name) = run.status.as_ref().and_then(|status| status.origin.clone())
            && name != new.name
        {
            if let Some(revision) = is_earlier(run) {
                // If the ControllerRevision was deleted, the revision is known from the run.
                let of_revision = || StoredOrigin { name: name.clone(), revision, ..new.clone() };
                stored.entry(name.clone()).or_insert_with(of_revision);
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
        let source = |revision: &str, origin: Option<&StoredOrigin>| {
            let instance = origin.map(|origin| origin.input.restored(&snapshot.instance));
            let instance = instance.unwrap_or_else(|| snapshot.instance.clone());
            Source { instance, package: plans.package(revision, current) }
        };
        let mut beside = Vec::new();
        for run in history.active().filter(|run| active.is_none_or(|active| active.name != run.name)) {
            let Some(revision) = revision_of(run) else { continue };
            let origin = run.status.as_ref().and_then(|status| stored.get(status.origin.as_ref()?));
            if revision != newest_revision || origin.is_some_and(|origin| origin.name != newest) {
                beside.push((run, source(&revision, origin)));
            }
        }
        let used = names.iter().filter_map(|name| stored.remove(name));
        let used: Vec<(StoredOrigin, Source<'_>)> = used
            .map(|origin| {
                let source = source(&origin.revision, Some(&origin));
                (origin, source)
            })
            .collect();
        let unused = stored.into_values().collect();
        let named = used.iter().map(|(origin, _)| origin.revision.clone());
        let named = named.chain(history.active().filter_map(revision_of));
        let revisions = named.filter(|revision| *revision != new.revision).collect();
        Self {
            snapshot,
            plans,
            origin: current,
            history,
            current: new,
            used,
            unused,
            beside,
            is_fixed,
            newest,
            revisions,
            refs,
            live,
            record,
        }
    }

    /// Whether a revision that the runs need is being loaded.
    pub(super) fn is_loading(&self) -> bool {
        let used = self.used.iter().map(|(_, source)| source);
        let mut sources = used.chain(self.beside.iter().map(|(_, source)| source));
        sources.any(|source| matches!(source.package, Err(NoPackage::Loading)))
    }

    /// The active run that changes children, if its revision cannot be loaded.
    pub(super) fn held(&self) -> Option<(&'a PlanRun, Finding)> {
        let (origin, source) = self.used.first().filter(|_| self.is_fixed)?;
        let why = source.package.as_ref().err()?.reason()?;
        let is_its = |run: &&PlanRun| {
            run.status.as_ref().and_then(|status| status.origin.as_ref()) == Some(&self.newest)
        };
        let run = self.history.active().find(is_its)?;
        let (revision, name) = (origin.revision.clone(), Some(run.name.clone()));
        Some((run, Finding::RevisionMissing { revision, run: name, why: why.to_string() }))
    }

    /// The revisions of children that cannot be loaded.
    pub(super) fn missing(&self) -> Vec<Finding> {
        let mut found: BTreeMap<&str, Finding> = BTreeMap::new();
        for (origin, source) in &self.used {
            if let Some(why) = source.package.as_ref().err().and_then(NoPackage::reason) {
                let (revision, why) = (origin.revision.clone(), why.to_string());
                found.insert(&origin.revision, Finding::RevisionMissing { revision, run: None, why });
            }
        }
        found.into_values().collect()
    }

    /// All stored origins.
    pub(super) fn stored(&self) -> Vec<plan::ComparedOrigin<'_>> {
        self.used().chain(&self.unused).map(StoredOrigin::compared).collect()
    }

    /// The stored origins in use.
    pub(super) fn used(&self) -> impl Iterator<Item = &StoredOrigin> {
        self.used.iter().map(|(origin, _)| origin)
    }

    /// The digests that the origin at a position was rolled out with.
    pub(super) fn digests(&self, ordered: &Ordered<'_>, position: usize) -> &BTreeMap<String, String> {
        let index = ordered.positions.iter().position(|known| *known == Some(position));
        index.map_or(&self.current.refs, |index| &self.used[index].0.refs)
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
    pub(super) fn ordered<'o>(&'o self) -> Ordered<'o> {
        let origin = |index: usize| self.used[index].1.origin();
        let newest = self.is_fixed.then(|| origin(0)).flatten().unwrap_or(self.origin);
        let mut earlier = Vec::new();
        let mut add = |origin: Origin<'o>| {
            earlier.push(origin);
            earlier.len()
        };
        let of_used = |index: usize| {
            if index == 0 && self.is_fixed { Some(NEWEST) } else { origin(index).map(&mut add) }
        };
        let positions: Vec<Option<usize>> = (0..self.used.len()).map(of_used).collect();
        let mut of_run = |source: &'o Source<'_>| source.origin().map(&mut add);
        let beside = self.beside.iter().map(|(run, source)| (run.name.clone(), of_run(source))).collect();
        let index_of = |name: &str| self.used().position(|origin| origin.name == name);
        // The position of an origin in use, and whether its package is missing.
        let position_of = |name: &str| match index_of(name).map(|index| positions[index]) {
            Some(position) => Some((position.unwrap_or(NEWEST), position.is_none())),
            None => (name == self.newest).then_some((NEWEST, false)),
        };
        let rolled_out = self.history.rolled_out();
        let previous = rolled_out.and_then(&position_of);
        let previous_spec = rolled_out.filter(|_| previous.is_some()).map(|name| {
            let instance = index_of(name).map_or(newest.instance, |index| &self.used[index].1.instance);
            instance["spec"].clone()
        });
        let has_plans = !newest.resource.plans.is_empty();
        let origins = Origins::new(
            newest,
            earlier,
            previous.filter(|(_, is_missing)| !is_missing).map(|(position, _)| position),
        );
        let mut items = self.history.items(&origins, position_of);
        if !has_plans {
            // No step would apply absent items again.
            for item in items.values_mut() {
                item.absent = false;
            }
        }
        let origins = origins
            .with_items(items)
            .with_variable("record", Var::Json(Value::Object(self.record.clone())))
            .with_variable("previous", previous_spec.map_or(Var::Undefined, Var::Json))
            .with_plans();
        Ordered { origins, has_previous: previous.is_some(), positions, beside }
    }
}

/// The refs of the instance as it is now, whatever origin an active run has.
fn refs_now(
    (snapshot, live): (&Snapshot, &LiveValues),
    current: Origin<'_>,
    history: &History<'_>,
    stored: &HashMap<String, StoredOrigin>,
    record: &Map<String, Value>,
) -> Refs {
    if current.resource.refs.iter().all(|reference| reference.gvk.is_none()) {
        return Refs::default();
    }
    let previous = history.rolled_out().and_then(|name| stored.get(name));
    let previous = previous.map_or(Var::Undefined, |origin| Var::Json(origin.input.spec().clone()));
    let origins = Origins::one(current)
        .with_variable("record", Var::Json(Value::Object(record.clone())))
        .with_variable("previous", previous);
    refs(&Context::new(snapshot, &origins, Budget::new(snapshot.limits)).with_live(live))
}

impl Past<'_> {
    /// A decision that has only a verdict. The objects that the instance reads stay watched.
    pub(super) fn idle(&self, verdict: Verdict) -> Decision {
        let (watches, revisions) = (self.refs.wants.clone(), self.revisions.clone());
        Decision { needs: Needs { watches, revisions, ..Needs::default() }, ..Decision::idle(verdict) }
    }
}

/// The decision while the memory lacks what the runs have stored: it is written before anything is done for them.
pub(super) fn until_remembered(past: &Past<'_>) -> Option<Decision> {
    let plans = past.plans;
    let unwritten = plans.state.is_unwritten.then(|| plans.state.memory.clone());
    let memory = plans.absorbed(&[], &past.current).or(unwritten)?;
    let message = "what the runs of the instance have done is being stored".to_owned();
    let action = Action::Run(Box::new(plans.remember(&memory)));
    let verdict = Verdict::Reconciling { reason: "Storing".into(), message };
    Some(Decision { actions: vec![action], ..past.idle(verdict) })
}
