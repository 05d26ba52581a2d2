//! Carries out what the rules between runs demand: writes of runs and steps of active runs. Both are stored in the memory of the
//! instance, and shown in PlanRuns.

use serde::Deserialize;
use serde_json::{Value, json};

use super::Runs;
use crate::children::model::Finding;
use crate::children::plans::refused::hold;
use crate::plan::{
    self, Agenda, Directive, Guard, JobState, Known, NewRun, Phase, PlanRun, RUN_FINALIZER, RunAction,
    RunObject, RunWrite, SCHEDULED_AT, SHOWN_AFTER, TAKEN, reference,
};

impl Runs<'_> {
    /// Carries out what the rules between runs demand.
    pub(super) fn carry_out(&mut self, agenda: Agenda) {
        self.outcome.wake = [self.outcome.wake, agenda.wake].into_iter().flatten().min();
        self.outcome.cleanup = agenda.cleanup;
        for (name, why) in &agenda.waiting {
            if let Some(run) = self.run(name) {
                self.waits_at(run, "", why);
            }
        }
        for write in &agenda.refused {
            self.report_refused(write);
        }
        let mut repeating = agenda.repeating;
        repeating.sort_by_key(|repeating| repeating.is_in_vain);
        self.outcome.findings.extend(repeating.into_iter().map(Finding::Repeating));
        // A write may change the rest: after the first one the runs are decided again.
        if let Some(write) = agenda.writes.first() {
            self.write(write);
        } else {
            for (name, directive) in &agenda.active {
                if let Some(run) = self.run(name) {
                    self.advance(run, directive);
                }
            }
        }
        self.hold_refused();
        self.remember_stored();
        self.show();
        self.outcome.actions.extend(self.plans.in_the_way(&self.ctx.snapshot.observed));
        self.hold_refused();
        if self.outcome.actions.is_empty() {
            self.tidy();
        }
        self.prune();
    }

    /// Leaves out what the API server has refused a moment ago.
    pub(super) fn hold_refused(&mut self) {
        let again = hold(&mut self.outcome.actions, (self.state, self.now));
        self.outcome.wake = [self.outcome.wake, again].into_iter().flatten().min();
    }

    /// Adds to the memory what the actions are about to store. If a run goes on, the same write does both;
    /// the end of a run is added afterwards, because its `PlanRun` is written first.
    fn remember_stored(&mut self) {
        if self.remember_inner() {
            return;
        }
        let current = &self.past.current;
        if let [RunAction::Store { run, status, memory, .. }] = &mut self.outcome.actions[..]
            && let Some(known) = self.plans.runs.iter().find(|known| known.uid == run.uid)
            && known.known == Known::Yes
            && known.phase() == Phase::Running
            && status["phase"] == "Running"
            && let Ok(next) = plan::RunStatus::deserialize(&**status)
        {
            let absorbed = self.plans.absorbed(&[(&run.uid, &next)], current);
            *memory = absorbed.map(|absorbed| Box::new(self.plans.state_write(&absorbed)));
            return;
        }
        let stored = |action: &RunAction| match action {
            RunAction::Store { run, status, .. } => {
                Some((run.uid.clone(), plan::RunStatus::deserialize(&**status).ok()?))
            }
            _ => None,
        };
        let inner = |action: &'_ RunAction| match action {
            RunAction::If { then, .. } => stored(then),
            action => stored(action),
        };
        let next: Vec<(String, plan::RunStatus)> = self.outcome.actions.iter().filter_map(inner).collect();
        if next.is_empty() {
            return;
        }
        let next: Vec<(&str, &plan::RunStatus)> =
            next.iter().map(|(uid, status)| (uid.as_str(), status)).collect();
        if let Some(memory) = self.plans.absorbed(&next, current) {
            self.outcome.actions.push(self.plans.remember(&memory));
        }
    }

    /// Shows people, in the PlanRuns, the states that only the memory has: those of quick steps are never
    /// shown.
    fn show(&mut self) {
        for run in self.plans.runs.iter().filter(|run| run.is_behind) {
            let shown = self.outcome.actions.iter().any(|action| match action {
                RunAction::Store { run: stored, .. } => stored.uid == run.uid,
                _ => false,
            });
            if shown {
                continue;
            }
            let elapsed = self.plans.elapsed.get(&run.uid).copied().unwrap_or_default();
            if elapsed < SHOWN_AFTER && !self.is_paused {
                let rest = SHOWN_AFTER.saturating_sub(elapsed);
                self.outcome.wake = Some(self.outcome.wake.map_or(rest, |known| known.min(rest)));
            } else if let Some(status) = &run.status {
                let mut shown = status.to_json();
                if let Some(message) = self.messages.remove(&run.name) {
                    shown["message"] = message.into();
                }
                self.outcome.actions.push(RunAction::Show(reference(run), Box::new(shown)));
            }
        }
    }

    fn write(&mut self, write: &RunWrite) {
        let current = &self.past.current;
        match write {
            RunWrite::Create(new) => {
                let body = self.new_run(new);
                self.outcome.actions.push(RunAction::Create(RunObject::PlanRun, Box::new(body)));
            }
            RunWrite::Take { run } => {
                if let Some(run) = self.run(run) {
                    let mut finalizers = run.finalizers.clone();
                    if !run.has_finalizer() {
                        finalizers.push(RUN_FINALIZER.to_owned());
                    }
                    let patch =
                        json!({"metadata": {"annotations": {TAKEN: run.uid}, "finalizers": finalizers}});
                    self.outcome.actions.push(RunAction::Change(
                        RunObject::PlanRun,
                        reference(run),
                        Box::new(patch),
                    ));
                }
            }
            RunWrite::Register { run, exclusive } => {
                if let Some(run) = self.run(run) {
                    let memory = &self.plans.state.memory;
                    let digest = || {
                        let known = memory.origin_digest(&current.name).map(str::to_owned);
                        known.unwrap_or_else(|| plan::content_digest(&current.data()))
                    };
                    let is_retry = run.spec.retry_of.is_some();
                    let origin = (!is_retry).then(|| (current.name.as_str(), digest()));
                    let memory = memory.with_run(run, *exclusive, origin);
                    self.outcome.actions.push(self.plans.remember(&memory));
                }
            }
            RunWrite::StartInner(new) => {
                let started = self.start_inner(new);
                self.outcome.actions.push(started);
            }
            RunWrite::EndGone { run, status } => {
                if let Some(run) = self.run(run) {
                    let memory = self.plans.state.memory.with_gone(&run.uid, (**status).clone());
                    let then = Box::new(self.plans.remember(&memory));
                    let mut object = reference(run);
                    object.namespace.clone_from(&self.plans.namespace);
                    self.outcome.actions.push(RunAction::If { guard: Guard::RunIsGone(object), then });
                }
            }
            RunWrite::Status { run, status } => {
                let Some(run) = self.run(run) else { return };
                let is_stored = |name: &String| {
                    self.plans.origins.iter().any(|origin| origin["metadata"]["name"] == name.as_str())
                };
                if status.origin.as_ref() == Some(&current.name) && !is_stored(&current.name) {
                    let number = u64::try_from(self.plans.origins.len()).unwrap_or_default() + 1;
                    let body = self.instance.revision(&current.name, &current.data(), number);
                    self.outcome.actions.push(RunAction::Create(RunObject::Origin, Box::new(body)));
                }
                self.outcome.actions.push(RunAction::store(run, status, Vec::new()));
            }
        }
    }

    fn new_run(&self, new: &NewRun) -> Value {
        let at = new.scheduled_at.map(|at| (SCHEDULED_AT, at.to_string()));
        let annotations: Vec<(&str, String)> = at.into_iter().collect();
        let mut body = self.instance.plan_run(&new.name, &new.plan, new.cause, &annotations);
        if let Some(retry_of) = &new.retry_of {
            body["spec"]["retryOf"] = retry_of.as_str().into();
        }
        body
    }

    fn advance(&mut self, run: &PlanRun, directive: &Directive) {
        if self.has_no_revision(run) {
            if *directive != Directive::Continue {
                return self.outcome.actions.extend(self.abandoned(run));
            }
            let revision = run.status.as_ref().and_then(|status| status.revision.clone()).unwrap_or_default();
            let package = self.plans.package(&revision, self.ctx.origin);
            let why = package.err().and_then(|why| Some(why.reason()?.to_owned())).unwrap_or_default();
            let run = Some(run.name.clone());
            return self.outcome.findings.push(Finding::RevisionMissing { revision, run, why });
        }
        // With the placeholder in place of a secret a step would send a wrong request.
        if *directive == Directive::Continue
            && let Some(message) = self.run_view(run).unread_secrets()
        {
            self.outcome.waits = true;
            return self.waits_at(run, "", &message);
        }
        let known = self.progresses.remove(&*run.name).filter(|_| *directive == Directive::Continue);
        let mut progress = known.unwrap_or_else(|| self.progress(run, directive));
        let before = self.outcome.actions.len();
        let mut actions = progress.actions(run).into_iter();
        if matches!(directive, Directive::Settle(ending) if ending.phase == Phase::Superseded) {
            // An outdated instance may lack the very change that the run rolls out. If the guard does not
            // hold, the actions behind it are not carried out either.
            if let Some(first) = actions.next() {
                self.outcome.actions.push(RunAction::If { guard: Guard::IsCurrent, then: Box::new(first) });
            }
        }
        self.outcome.actions.extend(actions);
        if !progress.waiting.is_empty() {
            self.outcome.waits = true;
            self.messages.insert(run.name.clone(), progress.message());
        }
        let refused = |action: &RunAction| {
            let (error, _) = self.state.refused_run(&action.subject()?, self.now)?;
            Some(match action {
                RunAction::Create(sort, body) => {
                    let (kind, name) =
                        (sort.kind().kind, body["metadata"]["name"].as_str().unwrap_or_default());
                    format!("{kind} {name} cannot be created: {error}")
                }
                _ => format!("what it writes is refused: {error}"),
            })
        };
        if let Some(message) = self.outcome.actions[before..].iter().find_map(refused) {
            self.messages.insert(run.name.clone(), message.clone());
            self.waits_at(run, "", &message);
        }
        for waiting in &progress.waiting {
            self.waits_at(run, &waiting.step, &waiting.message);
        }
        self.outcome.permits.extend(progress.permits);
        self.outcome.wake = [self.outcome.wake, progress.wake].into_iter().flatten().min();
        let objects = run.status.iter().flat_map(|status| &status.steps).flat_map(|step| &step.objects);
        let named: Vec<&str> = objects.map(|object| object.name.as_str()).collect();
        let view = self.run_view(run);
        let is_own = |name: &str| {
            named.contains(&name) && matches!(plan::ClusterView::job(&view, name), JobState::Found(_))
        };
        let unread = self.plans.unread_jobs(is_own);
        self.outcome.actions.extend(unread);
    }
}
