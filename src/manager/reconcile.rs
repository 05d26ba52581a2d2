//! One instance at a time: observe, decide, act, until nothing is left to do now; then its status.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::Value;
use tracing::{debug, trace, warn};

use super::Shared;
use super::act::Acted;
use super::deciders::LargeTurn;
use super::index::{InstanceKey, KindState};
use super::registry::Registered;
use super::stopped::{Again, Stopped};
use crate::children::{self, Action, Context, Decision, Leaving, Memory, Observed, Refused, Swing, Unlisted};
use crate::cluster::{CallError, Class};
use crate::template::{Budget, Totals};

/// Rounds of observe, decide, act in one go; what is left then waits for its next turn.
const ROUNDS: usize = 8;

/// Bytes of JSON from which an instance is large: parsed it takes several times that.
const LARGE_INSTANCE: usize = 64 << 10;

/// Clashes with other writers in a row before we make way.
const CLASHES: u32 = 4;

/// How many objects an Event names.
const LISTED: usize = 8;

/// What the manager remembers of an instance between its turns.
#[derive(Debug, Default)]
pub(super) struct Mind {
    /// What decisions remember.
    pub memory: Memory,
    /// The last Event of a verdict, so that each transition gets one.
    pub(super) told: Option<(String, String)>,
    /// The last status write that changed nothing: what was there and the patch. The server prunes or
    /// normalises what it says, and the same again would change as little.
    pub(super) vain: Option<String>,
    /// What the server has refused of the last status.
    pub(super) refused: Option<Refused>,
    /// Turns in a row in which a call failed that concerns all of the instance.
    failing: u32,
    /// Turns in a row that ended with something left to do.
    restless: u32,
    /// Writes in a row before which somebody else was first.
    pub(super) clashes: u32,
    /// Which CRDs it was that the server refused or dropped something by.
    schemas: u64,
    /// Whether it needs more than the small budget.
    is_large: bool,
    /// Of one whose last evaluation stopped at a limit.
    stopped: Option<Stopped>,
}

impl Mind {
    /// Whether forgetting it would change nothing.
    pub(super) fn is_empty(&self) -> bool {
        // `previous` is in the index as long as it counts.
        let Memory { failures, kept, release, accepted, reapplied, repairs, previous: _, unrecorded, swings } =
            &self.memory;
        self.told.is_none()
            && self.vain.is_none()
            && self.refused.is_none()
            && self.failing == 0
            && self.restless == 0
            && self.clashes == 0
            && !self.is_large
            && self.stopped.is_none()
            && failures.is_empty()
            && kept.is_empty()
            && release.is_none()
            && accepted.is_empty()
            && reapplied.is_empty()
            && repairs.is_empty()
            && unrecorded.is_none()
            && swings.is_empty()
    }
}

/// How long until the next turn of an instance that does not come to rest. The longest chain of children
/// that may be takes no longer for it; what goes round in a circle must not do so at full speed.
fn pause(restless: u32) -> Duration {
    let free = u32::try_from(children::MAX_CHILDREN / ROUNDS).unwrap_or(u32::MAX);
    let doubled = 2u32.saturating_pow(restless.saturating_sub(free).min(16));
    Duration::from_millis(50).saturating_mul(doubled).min(Duration::from_secs(60))
}

/// How long until the next try after so many writes in a row came second.
pub(super) fn after_clashes(clashes: u32) -> Duration {
    // The first of them are chance.
    let doubled = 2u32.saturating_pow(clashes.saturating_sub(CLASHES).min(16));
    Duration::from_millis(10).saturating_mul(doubled).min(Duration::from_secs(60))
}

/// How a turn ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Nothing more to do before the next event.
    Done,
    /// A call failed; try again, later each time.
    Failed,
}

/// A look at one instance.
pub(super) struct Look {
    pub(super) instance: Value,
    pub(super) observed: Vec<Arc<Observed>>,
    former: Vec<Arc<Observed>>,
    pub(super) kinds: HashMap<(String, String), KindState>,
}

/// What came of an attempt to decide.
enum Decided {
    /// It is gone, or its children are still being listed.
    Nothing,
    /// It stopped at a limit before, and nothing has changed.
    Stopped,
    /// It stopped at a limit before, and is not due again.
    Later(Duration),
    /// The small budget does not do.
    Large,
    /// A decision.
    Made(Box<Made>),
}

/// A decision with what it is about.
struct Made {
    look: Look,
    decision: Decision,
    /// If it stopped at a limit and the status says so: a hash of all that was evaluated.
    input: Option<u64>,
    /// Whether the small budget would have done.
    is_small: bool,
}

impl Shared {
    /// Gives an instance its turn.
    pub(super) async fn reconcile(self: &Arc<Self>, key: &InstanceKey) -> Outcome {
        let mut mind = self.take_mind(key);
        let outcome = self.rounds(key, &mut mind).await;
        self.put_mind(key, mind);
        outcome
    }

    async fn rounds(self: &Arc<Self>, key: &InstanceKey, mind: &mut Mind) -> Outcome {
        let mut large: Option<LargeTurn> = None;
        let mut rounds = 0..ROUNDS;
        while rounds.next().is_some() {
            // Our own writes come back as events while this turn goes on; the look below sees them.
            self.queue.looking(key);
            // Only after that: a kind that leaves the record leaves the index as well, and who looked for it would
            // wait for a list that never comes. Whoever changes the registry from here on brings us back.
            let Some(registered) = self.registry().get(&key.crd) else { return Outcome::Done };
            let registered = &registered;
            mind.is_large |= self.index().instance_bytes(key) > LARGE_INSTANCE;
            if mind.is_large && large.is_none() {
                trace!("waiting for the turn of a large instance");
                large = Some(self.deciders.large_turn(registered.operator()).await);
                rounds = 0..ROUNDS;
                continue;
            }
            trace!("deciding");
            self.forget_verdicts(mind);
            mind.memory.previous = self.index().previous(key).map(Arc::new);
            let Made { look, decision, input, is_small } =
                match self.decided(key, registered, mind, large.is_some()).await {
                    Decided::Made(made) => *made,
                    Decided::Nothing | Decided::Stopped => return Outcome::Done,
                    Decided::Later(pause) => {
                        self.queue.add_after(key.clone(), pause);
                        return Outcome::Done;
                    }
                    Decided::Large => {
                        mind.is_large = true;
                        continue;
                    }
                };
            mind.is_large = !is_small;
            if decision.exceeded.is_some() {
                let now = self.started.elapsed();
                mind.stopped.get_or_insert_default().note(input, decision.wants.clone(), now);
            } else {
                mind.stopped = None;
            }
            if self.refs.follow(self, key, &decision.wants) {
                if !self.index().has_instance(key) {
                    self.refs.follow(self, key, &[]);
                    return Outcome::Done;
                }
                // What others read as well is known already; else its watch brings us back.
                continue;
            }
            if let Some(observer) = &self.observer {
                observer(key, Some(&decision));
            }
            if decision.accepted {
                self.index().accept(key, &look.instance);
                mind.memory.accept();
            }
            if decision.actions.is_empty() {
                mind.restless = 0;
                mind.failing = 0;
                mind.memory.keep(look.observed.iter().chain(&look.former));
                mind.memory.swings.sweep(self.started.elapsed());
                if decision.pending {
                    // A moment later it is known: nobody shall read in a status that it was not.
                    return Outcome::Done;
                }
                return self.settle(key, registered, &look, decision, mind).await;
            }
            let writes_instance =
                decision.actions.iter().any(|a| matches!(a, Action::AddFinalizer | Action::RecordJobs(_)));
            if writes_instance && let Some(why) = self.held(&key.crd) {
                debug!(%why, "its CRD is not as it should be; waiting");
                return Outcome::Done;
            }
            debug!(actions = decision.actions.len(), "acting");
            let Decision { checks, actions, swings, status, .. } = decision;
            match self.act(key, registered, &look.instance, &checks, actions, &mut mind.memory).await {
                Ok(acted) if acted.waits => return Outcome::Done,
                Ok(acted) => {
                    mind.failing = 0;
                    mind.clashes = if acted.clashed { mind.clashes.saturating_add(1) } else { 0 };
                    let done = |swing: &&Swing| {
                        [&acted.updated, &acted.deleted, &acted.retained]
                            .iter()
                            .any(|objects| objects.contains(&swing.object))
                    };
                    mind.memory.swings.note(swings.iter().filter(done), self.started.elapsed());
                    self.tell_acted(&look.instance, &acted);
                }
                Err(error) if error.class == Class::Conflict || error.class == Class::NotFound => {
                    debug!(%error, "somebody else was first; reading again");
                    if let Err(error) = self.refresh(key, registered).await {
                        warn!(%error, "the instance cannot be read");
                        return self.failed(key, &error);
                    }
                    mind.clashes = mind.clashes.saturating_add(1);
                }
                Err(error) => {
                    warn!(%error, "acting failed; trying again");
                    mind.failing = mind.failing.saturating_add(1);
                    // Once is chance; who looks at the instance need not know.
                    if mind.failing > 1
                        && let Some(status) = status
                    {
                        self.tell_failure(key, registered, &look, status, &error, mind).await;
                    }
                    return self.failed(key, &error);
                }
            }
            if mind.clashes > CLASHES {
                self.queue.add_after(key.clone(), after_clashes(mind.clashes));
                return Outcome::Done;
            }
        }
        mind.restless = mind.restless.saturating_add(1);
        self.queue.add_after(key.clone(), pause(mind.restless));
        Outcome::Done
    }

    /// What the server has refused or dropped by other CRDs than those of now is tried again.
    fn forget_verdicts(&self, mind: &mut Mind) {
        let schemas = self.schemas.load(Ordering::Relaxed);
        if std::mem::replace(&mut mind.schemas, schemas) != schemas {
            mind.memory.failures.clear();
            mind.memory.accepted.clear();
            mind.vain = None;
            mind.refused = None;
        }
    }

    /// What is known of the instance now; `None` if it is gone or its children are still being listed.
    fn look(&self, key: &InstanceKey, registered: &Registered) -> Option<Look> {
        let mut index = self.index();
        let instance = index.instance(key).or_else(|| index.ghost(key))?;
        let kinds: HashMap<_, _> = registered
            .child_kinds
            .iter()
            .map(|(a, k)| ((a.clone(), k.clone()), index.kind_state(a, k)))
            .collect();
        // `end_kind` and `lose_kind` queue everybody, so nobody is forgotten here.
        if kinds.values().any(|state| *state == KindState::Syncing) {
            return None;
        }
        let uid = instance["metadata"]["uid"].as_str().unwrap_or_default();
        // Anybody can write a label; where an object lies tells whether it can be a child.
        let home = key.namespace.as_deref();
        let (mut observed, mut former) = (index.children_of(uid), index.former_of(key, uid));
        observed.retain(|o| registered.reaches(home, &o.object));
        former.retain(|o| registered.reaches(home, &o.object));
        Some(Look { instance, observed, former, kinds })
    }

    /// Looks and decides, on another thread.
    async fn decided(
        self: &Arc<Self>,
        key: &InstanceKey,
        registered: &Arc<Registered>,
        mind: &mut Mind,
        is_large: bool,
    ) -> Decided {
        let memory = std::mem::take(&mut mind.memory);
        let stopped = mind.stopped.take();
        let (shared, key, registered) = (Arc::clone(self), key.clone(), Arc::clone(registered));
        let decide = move || {
            let decided = shared.decided_here(&key, &registered, &memory, stopped.as_ref(), is_large);
            (decided, memory, stopped)
        };
        let decided;
        (decided, mind.memory, mind.stopped) = self.deciders.run(is_large, decide).await;
        decided
    }

    fn decided_here(
        self: &Arc<Self>,
        key: &InstanceKey,
        registered: &Registered,
        memory: &Memory,
        stopped: Option<&Stopped>,
        is_large: bool,
    ) -> Decided {
        let Some(look) = self.look(key, registered) else { return Decided::Nothing };
        let input = |wants: &[children::Want]| self.input(key, registered, &look, wants);
        // To go, it needs no evaluation.
        if look.instance["metadata"]["deletionTimestamp"].is_null()
            && let Some(stopped) = stopped
        {
            match stopped.again(input, self.started.elapsed()) {
                Again::Now => {}
                Again::Later(pause) => return Decided::Later(pause),
                Again::Never => return Decided::Stopped,
            }
        }
        let totals = if is_large { Totals::FULL } else { Totals::SMALL };
        let budget = Arc::new(Budget::new(totals));
        let Some(decision) = self.decide(key, registered, &look, memory, Arc::clone(&budget)) else {
            return Decided::Nothing;
        };
        let is_total = decision.exceeded.as_ref().is_some_and(|exceeded| exceeded.is_total);
        let is_small = !is_total && !decision.is_partial && budget.fits(Totals::SMALL);
        if !is_large && !is_small {
            return Decided::Large;
        }
        let is_said = |decision: &Decision| {
            let status = decision.status.as_ref();
            status.is_none_or(|status| children::status_patch(&look.instance["status"], status, "").is_none())
        };
        let input = (decision.exceeded.is_some() && is_said(&decision)).then(|| input(&decision.wants));
        Decided::Made(Box::new(Made { look, decision, input, is_small }))
    }

    fn decide(
        self: &Arc<Self>,
        key: &InstanceKey,
        registered: &Registered,
        look: &Look,
        memory: &Memory,
        budget: Arc<Budget>,
    ) -> Option<Decision> {
        let occupant = |namespace: &str| self.index().occupant(namespace, key);
        let unlisted: Vec<Unlisted> = look
            .kinds
            .iter()
            .filter_map(|((api_version, kind), state)| match state {
                KindState::Unknown(reason) => Some(Unlisted {
                    api_version: api_version.clone(),
                    kind: kind.clone(),
                    reason: reason.clone(),
                    order: None,
                }),
                _ => None,
            })
            .collect();
        let Some((package, resource)) = registered.resource() else {
            let deleting = !look.instance["metadata"]["deletionTimestamp"].is_null();
            let leaving = Leaving {
                instance: &look.instance,
                observed: &look.observed,
                former: &look.former,
                occupant: &occupant,
                unlisted: &unlisted,
            };
            if deleting {
                return Some(children::decide_deletion(&leaving, memory, self.started.elapsed()));
            }
            let why = registered.inactive.as_ref()?;
            return Some(Decision::not_loaded(&look.instance, why.to_string()));
        };
        let registry = self.registry();
        let is_package_kind = |api_version: &str, kind: &str| registry.is_instance_kind(api_version, kind);
        let namespaced =
            |api_version: &str, kind: &str| self.kinds.known(api_version, kind).map(|k| k.namespaced);
        let unknown = |api_version: &str, kind: &str| {
            let state = look.kinds.get(&(api_version.to_owned(), kind.to_owned()))?;
            let reason = state.reason(api_version, kind)?;
            let hint = (*state == KindState::NotServed).then(|| self.kinds.hint(api_version, kind));
            Some(hint.map_or_else(|| reason.clone(), |hint| format!("{reason}; {hint}")))
        };
        let listed = |api_version: &str, kind: &str| {
            let state = look.kinds.get(&(api_version.to_owned(), kind.to_owned()));
            state.is_none_or(|state| matches!(state, KindState::Synced | KindState::Elsewhere(_)))
        };
        let apis = if resource.reads_cluster { self.served.get(self) } else { None };
        let ctx = Context {
            package,
            resource,
            instance: &look.instance,
            operator_namespace: &self.namespace,
            observed: &look.observed,
            namespaced: &namespaced,
            unknown: &unknown,
            listed: &listed,
            unlisted: &unlisted,
            checked: &|shape| self.shapes.passed(shape),
            former: &look.former,
            is_package_kind: &is_package_kind,
            occupant: &occupant,
            refs: &|want| self.refs.find(key, want),
            apis: apis.as_ref(),
            budget,
        };
        Some(children::decide(&ctx, memory, self.started.elapsed()))
    }

    /// A call failed that concerns the instance as a whole. Where the server says when to come back, it is then.
    pub(super) fn failed(&self, key: &InstanceKey, error: &CallError) -> Outcome {
        match error.asked_to_wait() {
            Some(wait) => {
                self.queue.add_after(key.clone(), wait);
                Outcome::Done
            }
            None => Outcome::Failed,
        }
    }

    /// Reads the instance live; what is gone leaves the index.
    pub(super) async fn refresh(
        &self,
        key: &InstanceKey,
        registered: &Registered,
    ) -> Result<Option<Value>, CallError> {
        let cluster = self.for_instances(registered);
        let live = cluster.get(&registered.kind, key.namespace.as_deref(), &key.name).await?;
        if let Some(object) = &live {
            self.learn_instance(key, object);
        } else {
            let mut index = self.index();
            let uid =
                index.instance(key).map(|i| i["metadata"]["uid"].as_str().unwrap_or_default().to_owned());
            if let Some(uid) = uid {
                index.remove_instance(key, &uid, None);
            }
        }
        Ok(live)
    }

    /// Takes a live instance, or the reply to a write of it, into the index.
    pub(super) fn learn_instance(&self, key: &InstanceKey, object: &Value) {
        let mut object = object.clone();
        if let Some(meta) = object["metadata"].as_object_mut() {
            meta.remove("managedFields");
        }
        self.index().put_instance(key.clone(), &object);
    }

    fn tell_acted(&self, instance: &Value, acted: &Acted) {
        let here = instance["metadata"]["namespace"].as_str();
        for (reason, verb, objects) in [
            ("Created", "created", &acted.created),
            ("Adopted", "took over", &acted.adopted),
            ("Updated", "updated", &acted.updated),
            ("Repaired", "restored what somebody else changed in", &acted.repaired),
            ("Recreated", "deletes, to make it anew,", &acted.replaced),
            ("Deleted", "deleted", &acted.deleted),
            ("Retained", "keeps", &acted.retained),
            ("DeletionPending", "waits for approval to delete", &acted.asked),
            ("Orphaned", "lets go of", &acted.orphaned),
        ] {
            if objects.is_empty() {
                continue;
            }
            let mut names: Vec<String> = objects
                .iter()
                .map(|object| match object.namespace.as_deref() {
                    Some(namespace) if Some(namespace) != here => object.to_string(),
                    _ => format!("{} {}", object.kind, object.name),
                })
                .collect();
            names.sort();
            let more = names.len().saturating_sub(LISTED);
            names.truncate(LISTED);
            let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
            self.events.publish(instance, false, reason, &format!("{verb} {}{rest}", names.join(", ")));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_chains_are_not_slowed_down_and_circles_are() {
        for (restless, wait) in [(1, 50), (125, 50), (126, 100), (130, 1_600), (u32::MAX, 60_000)] {
            assert_eq!(pause(restless), Duration::from_millis(wait), "{restless}");
        }
    }
}
