//! The reconcile of one instance: it decides and acts until nothing is left to do, then writes the status.

mod publish;
mod snapshot;

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tracing::{debug, trace, warn};

use crate::api::{CallError, Class};
use crate::children::{self, Action, ActionOutcome, Decision, Input, Needs, Snapshot, Verdict};
use crate::cluster::Permit;
use crate::facts::condition;
use crate::manager::act::Executor;
use crate::manager::effects::Effects;
use crate::manager::index::InstanceKey;
use crate::manager::plan_api::Unverified;
use crate::manager::registry::Registered;
use crate::manager::scheduler::{Key, Outcome, Scheduler};
use crate::manager::state::{InstanceState, MAX_DECISIONS, Progress};
use crate::manager::status::{Settled, StatusWriter};
use crate::manager::stopped::Evaluate;
use crate::manager::store::Store;
use crate::manager::watches::Watches;
use crate::operators::upgrade::Member;
use crate::plan::RunAction;
use crate::template::Totals;

/// The JSON size in bytes from which an instance is large. Parsed it takes several times that.
const LARGE_INSTANCE: usize = 64 << 10;

/// How soon the `Operator` is reconciled after an instance has changed that was moved to another revision: several are seen
/// at once.
const STAGE: Duration = Duration::from_millis(100);

/// Reconciles instances.
pub(super) struct InstanceReconciler {
    pub(super) store: Arc<Store>,
    pub(super) effects: Arc<Effects>,
    pub(super) scheduler: Arc<Scheduler>,
    pub(super) watches: Arc<Watches>,
    pub(super) executor: Arc<Executor>,
    pub(super) status: StatusWriter,
    /// The manager's namespace, `operator.namespace` in templates.
    pub(super) namespace: String,
}

/// What follows a decision.
enum Next {
    /// Another decision.
    Decide,
    /// A run has moved on. Another decision.
    RunMoved,
    /// A call for a run has waited for an admission webhook in vain. Another decision about the rest.
    WebhookSlow,
    /// The end of the reconcile.
    End(Outcome),
}

/// The result of an attempt to decide.
enum Attempt {
    /// The instance is gone, or its children are still being listed.
    NotReady,
    /// The evaluation stopped at a limit before, and its input has not changed.
    Unchanged,
    /// The evaluation stopped at a limit before, and the next one waits.
    Later(Duration),
    /// The small budget is not enough.
    ExceedsSmallBudget,
    /// Runs must be verified first.
    Unverified(Vec<Unverified>),
    /// A decision.
    Decided(Box<Decided>),
}

/// A decision and its input.
struct Decided {
    snapshot: Snapshot,
    decision: Decision,
    /// A hash of all that was evaluated, if it stopped at a limit and the status reports that.
    input: Option<u64>,
    /// Whether the small budget is enough.
    is_small: bool,
}

impl InstanceReconciler {
    /// Reconciles an instance.
    pub(super) async fn reconcile(self: &Arc<Self>, key: &InstanceKey) -> Outcome {
        let mut state = self.scheduler.take_state(key);
        let outcome = self.decide_and_act(key, &mut state).await;
        self.publish_created(&mut state);
        self.tell_stray_runs(key).await;
        if !self.store.index().has_instance(key) {
            self.scheduler.stopwatches.forget(key);
        } else if !state.is_empty() {
            self.scheduler.put_state(key, state);
        }
        outcome
    }

    fn record(&self, state: &mut InstanceState, progress: Progress<'_>) {
        state.record(progress, self.scheduler.clock.elapsed());
    }

    /// Decides and acts until nothing is left to do now, at most [`MAX_DECISIONS`] times.
    async fn decide_and_act(self: &Arc<Self>, key: &InstanceKey, state: &mut InstanceState) -> Outcome {
        let mut large_permit: Option<Permit> = None;
        let mut decisions = 0;
        let mut has_run_moved = false;
        let mut was_webhook_slow = false;
        let mut needs_accepted_key = false;
        let mut has_read_state = false;
        while decisions < MAX_DECISIONS {
            // Events of our own writes arrive during the reconcile. The snapshot below includes them.
            self.scheduler.queue.clear_queued(&key.clone().into());
            if self.store.index().is_to_forget(key) {
                self.watches.forget(key);
                *state = InstanceState::default();
            }
            // The registry is read after that: a kind that leaves the record leaves the index as well, and a
            // reconcile that still needs it would wait for a list that never comes. A later change of the
            // registry queues the key again.
            let Some(registered) = self.store.registry().get(&key.crd) else { return Outcome::Done };
            let is_large = state.is_large || self.store.index().instance_bytes(key) > LARGE_INSTANCE;
            if is_large && large_permit.is_none() {
                trace!("waiting for the permit of a large instance");
                large_permit = Some(self.scheduler.deciders.large_permit(registered.operator()).await);
                decisions = 0;
                continue;
            }
            let needs_key = registered.has_runs || needs_accepted_key;
            let key_error = if needs_key { self.read_key().await.err() } else { None };
            if let Some(error) = key_error.as_ref().filter(|error| error.is_fenced()) {
                return self.failed(key, error);
            }
            self.load_kept(key, &registered);
            trace!("deciding");
            decisions += 1;
            self.record(state, Progress::Schemas(self.store.schemas()));
            let decided = match self.decide(key, &registered, state, large_permit.is_some()).await {
                Attempt::Decided(decided) => *decided,
                Attempt::NotReady | Attempt::Unchanged => return Outcome::Done,
                Attempt::Later(wait) => return self.done_for(key, wait),
                Attempt::ExceedsSmallBudget => {
                    self.record(state, Progress::ExceedsSmallBudget);
                    continue;
                }
                Attempt::Unverified(runs) => {
                    if !self.effects.plan_api.verify(self.effects.clients.own(), runs).await {
                        self.scheduler.queue.add(Key::PlanApi);
                    }
                    continue;
                }
            };
            if is_state_unseen(&decided) && !std::mem::replace(&mut has_read_state, true) {
                match self.read_state(key, &registered, &decided.snapshot.instance).await {
                    Ok(true) => continue,
                    Ok(false) => {}
                    Err(error) => return self.failed(key, &error),
                }
            }
            if decided.decision.needs.accepted_key && !needs_key {
                needs_accepted_key = true;
                continue;
            }
            match self.carry_out(key, &registered, decided, state).await {
                Next::Decide => {}
                Next::RunMoved => has_run_moved = true,
                // Each such call may last half a minute, and other instances wait.
                Next::WebhookSlow if was_webhook_slow => return Outcome::Failed,
                Next::WebhookSlow => was_webhook_slow = true,
                Next::End(outcome) => {
                    // The status reports the error. No event says that the key can be read again.
                    return key_error.map_or(outcome, |error| self.failed(key, &error));
                }
            }
        }
        self.record(state, Progress::Incomplete);
        if let Some(wait) = state.incomplete_wait(has_run_moved) {
            return self.done_for(key, wait);
        }
        // The key goes to the end of its lane: others run first.
        self.scheduler.queue.add(key.clone());
        Outcome::Done
    }

    /// Reads the key of digests and records, once a process.
    async fn read_key(&self) -> Result<(), CallError> {
        if let Err(error) = self.effects.proof_key(&self.namespace).await {
            warn!(%error, "the key of digests and records cannot be read");
            return Err(error);
        }
        Ok(())
    }

    /// Watches what the decision reads, then executes its actions, or writes the status if there are none.
    async fn carry_out(
        &self,
        key: &InstanceKey,
        registered: &Arc<Registered>,
        decided: Decided,
        state: &mut InstanceState,
    ) -> Next {
        let Decided { snapshot, mut decision, input, is_small } = decided;
        let has_stopped = decision.evaluation.exceeded.is_some();
        self.record(state, Progress::Decided { is_small, has_stopped, input });
        // Whatever is not named here was met before the decision counted.
        let Needs {
            watches,
            polls,
            fresh_polls,
            mut revisions,
            approvals,
            namespace_users: _,
            accepted_key: _,
            full_budget: _,
        } = std::mem::take(&mut decision.needs);
        let has_answers = self.watches.poll_for(key, &polls, fresh_polls);
        let is_read = !polls.is_empty() || !revisions.is_empty();
        let is_gone = is_read && !self.store.index().has_instance(key);
        revisions.extend(self.kept_revision(key, registered).map(Into::into));
        let has_revisions = self.watches.revisions.load_for(key, registered.operator(), &revisions);
        if self.watches.watch_for(key, &watches) || has_answers || has_revisions || is_gone {
            return self.after_new_reads(key);
        }
        if snapshot.deletions.is_none() && !approvals.is_empty() {
            return match self.watch_deletion_runs().await {
                // The end of the first list queues the instance.
                Ok(()) => Next::End(Outcome::Done),
                Err(error) => {
                    warn!(%error, "the API of runs cannot be installed; deletions cannot be approved");
                    Next::End(self.failed(key, &error))
                }
            };
        }
        if registered.is_reached()
            && let Some(children) = &decision.children
        {
            let readers = self.store.index().place_children(key, children);
            self.scheduler.add_all(readers);
        }
        self.effects.notify(key, Some(&decision));
        if let Some(conditions) = &decision.conditions {
            let now = self.scheduler.clock.elapsed();
            state.decisions.record(&ActionOutcome::ConditionsWatched(conditions.clone()), now);
        }
        if decision.accepted {
            self.store.index().accept(key, &snapshot.instance);
            self.record(state, Progress::TargetAccepted);
        }
        if decision.actions.is_empty() {
            self.record(state, Progress::NothingLeft(&snapshot));
            return Next::End(self.settle(key, registered, &snapshot.instance, decision, state).await);
        }
        if writes_instance(&decision.actions)
            && let Some(reason) = self.store.held(&key.crd)
        {
            debug!(%reason, "writes to instances of the CRD are on hold; waiting");
            return Next::End(Outcome::Done);
        }
        self.act(key, registered, &snapshot.instance, decision, state).await
    }

    /// Decides again after the instance has read objects that were not watched for it. If other instances
    /// read them, they are known already; otherwise their watch queues the instance.
    fn after_new_reads(&self, key: &InstanceKey) -> Next {
        if self.store.index().has_instance(key) {
            return Next::Decide;
        }
        self.watches.watch_for(key, &[]);
        self.watches.poll_for(key, &[], false);
        self.watches.revisions.forget(key);
        Next::End(Outcome::Done)
    }

    /// Writes the status, once nothing is left to do now.
    async fn settle(
        &self,
        key: &InstanceKey,
        registered: &Registered,
        instance: &Value,
        decision: Decision,
        state: &mut InstanceState,
    ) -> Outcome {
        // Refs are still loading: a status would report them as unknown for a moment.
        if decision.input == Input::Loading {
            return Outcome::Done;
        }
        if let Some(wait) = decision.again {
            self.scheduler.queue.add_after(key.clone(), wait);
        }
        // The answers bring another decision, so a status that reports this generation already is not written
        // now.
        let is_reported = instance["status"]["observedGeneration"] == instance["metadata"]["generation"];
        if decision.input == Input::Unanswered && is_reported {
            return Outcome::Done;
        }
        let settled = self.status.settle(key, registered, instance, decision, state).await;
        if registered.is_staged
            && (Member::of(instance).is_changing() || self.kept_revision(key, registered).is_some())
        {
            // The next stage of an upgrade may begin, or the instance may be moved.
            self.scheduler.queue.add_after(Key::Operator(registered.operator().into()), STAGE);
        }
        match settled {
            Settled::Done => Outcome::Done,
            Settled::RetryAfter(wait) => self.done_for(key, wait),
            Settled::Failed(error) => self.failed(key, &error),
        }
    }

    /// Executes the actions of a decision.
    async fn act(
        &self,
        key: &InstanceKey,
        registered: &Arc<Registered>,
        instance: &Value,
        decision: Decision,
        state: &mut InstanceState,
    ) -> Next {
        debug!(actions = decision.actions.len(), "acting");
        let Decision { checks, actions, target_changes, status, .. } = decision;
        let moves_run = actions.iter().any(|action| {
            let Action::Run(action) = action else { return false };
            matches!(&**action, RunAction::Store { status, .. } if status["phase"] == "Running")
        });
        let mut outcomes = Vec::new();
        let result = self.executor.act(key, registered, instance, &checks, actions, &mut outcomes).await;
        if moves_run {
            // The next step must be decided with present answers, not with ones that may be a minute old.
            let is_deleting = !instance["metadata"]["deletionTimestamp"].is_null();
            self.watches.refresh(key, is_deleting);
        }
        self.record(state, Progress::Acted(&result, &outcomes, target_changes));
        self.count_failures(&outcomes);
        match result {
            Ok(()) if outcomes.iter().any(|outcome| matches!(outcome, ActionOutcome::DryRunPending)) => {
                return Next::End(Outcome::Done);
            }
            Ok(()) => self.publish_effects(instance, &outcomes, state),
            Err(error) if matches!(error.class, Class::Conflict | Class::NotFound) => {
                debug!(%error, "the instance has changed; reading it");
                if let Err(error) = self.executor.refresh(key, registered).await {
                    warn!(%error, "the instance cannot be read");
                    return Next::End(self.failed(key, &error));
                }
            }
            Err(error) => {
                warn!(%error, "acting failed; trying again");
                if state.keeps_failing()
                    && let Some(status) = status
                {
                    self.status.report_failure(key, registered, instance, status, &error, state).await;
                }
                return Next::End(self.failed(key, &error));
            }
        }
        if state.must_yield() {
            return Next::End(self.done_for(key, state.conflict_wait()));
        }
        if outcomes.iter().any(|outcome| matches!(outcome, ActionOutcome::WebhookSlow)) {
            return Next::WebhookSlow;
        }
        if moves_run { Next::RunMoved } else { Next::Decide }
    }

    /// Ends the reconcile; the next one is after that time, or after an event.
    fn done_for(&self, key: &InstanceKey, wait: Duration) -> Outcome {
        self.scheduler.queue.add_after(key.clone(), wait);
        Outcome::Done
    }

    /// Ends the reconcile after a call failed that concerns the whole instance. The server may have said when
    /// to try again.
    fn failed(&self, key: &InstanceKey, error: &CallError) -> Outcome {
        error.asked_to_wait().map_or(Outcome::Failed, |wait| self.done_for(key, wait))
    }

    /// Takes a snapshot and decides, on another thread.
    async fn decide(
        self: &Arc<Self>,
        key: &InstanceKey,
        registered: &Arc<Registered>,
        state: &mut InstanceState,
        is_large: bool,
    ) -> Attempt {
        let owned = std::mem::take(state);
        let (this, key, registered) = (Arc::clone(self), key.clone(), Arc::clone(registered));
        let decide = move || (this.decide_here(&key, &registered, &owned, is_large), owned);
        let attempt;
        (attempt, *state) = self.scheduler.deciders.run(is_large, decide).await;
        attempt
    }

    fn decide_here(
        &self,
        key: &InstanceKey,
        registered: &Registered,
        state: &InstanceState,
        is_large: bool,
    ) -> Attempt {
        let limits = if is_large { Totals::FULL } else { Totals::SMALL };
        let Some(mut snapshot) = self.snapshot(key, registered, limits) else { return Attempt::NotReady };
        let unverified = self.effects.plan_api.unverified(snapshot.countable_runs());
        if !unverified.is_empty() {
            return Attempt::Unverified(unverified);
        }
        let now = self.scheduler.clock.elapsed();
        // A deletion evaluates nothing.
        if !snapshot.is_deleting() {
            match state.evaluate(|| snapshot.evaluated(), now) {
                Evaluate::Now => {}
                Evaluate::Later(wait) => return Attempt::Later(wait),
                Evaluate::OnChange => return Attempt::Unchanged,
            }
        }
        let mut decision = children::decide(&snapshot, &state.decisions, now);
        if !decision.needs.namespace_users.is_empty() {
            let index = self.store.index();
            for namespace in std::mem::take(&mut decision.needs.namespace_users) {
                let user = index.namespace_user(&namespace, key);
                snapshot.namespace_users.insert(namespace, user);
            }
            drop(index);
            decision = children::decide(&snapshot, &state.decisions, now);
        }
        if decision.needs.full_budget {
            return Attempt::ExceedsSmallBudget;
        }
        let is_reported = |decision: &Decision| {
            let status = decision.status.as_ref();
            status.is_none_or(|status| {
                children::status_patch(&snapshot.instance["status"], status, "").is_none()
            })
        };
        let input =
            (decision.evaluation.exceeded.is_some() && is_reported(&decision)).then(|| snapshot.evaluated());
        let is_small = decision.evaluation.is_small();
        Attempt::Decided(Box::new(Decided { snapshot, decision, input, is_small }))
    }
}

/// Whether an instance lacks its `InstanceState`, and its status does not say so yet: the watch of these objects may be behind that
/// of the instances. This happens when both are restored.
fn is_state_unseen(Decided { snapshot, decision, .. }: &Decided) -> bool {
    let Verdict::Stalled { reason, .. } = &decision.verdict else { return false };
    let has_none = || snapshot.plans.as_ref().is_some_and(|plans| plans.state.object.is_none());
    let said = || condition(&snapshot.instance, "Stalled").map(|stalled| &stalled["reason"]);
    reason == "StateMissing" && has_none() && said().is_none_or(|said| said != reason)
}

/// Whether an action writes the instance, which needs its CRD to be as it should.
fn writes_instance(actions: &[Action]) -> bool {
    actions.iter().any(|action| matches!(action, Action::AddFinalizer | Action::RecordJobs(_)))
}
