//! What all steps share: whether they run, how long they may take, what a failure does.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use serde_json::{Map, Value};

use super::super::action::{CallKey, RunAction, SecretOutputs};
use super::super::eval::{NoValue, duration, truthy};
use super::super::run::{MAX_OUTPUT, MAX_OUTPUTS, MAX_RECORD, ON_FAILURE, short};
use super::super::step_state::StepPhase;
use super::super::stored_number::settled;
use super::{Advancer, At, Failure, Flow, MAX_STEPS, SHOWN_AFTER, millis};
use crate::package::plan::{Action, OnFailure, Output, Repeat, Step, Strategy, written_duration};
use crate::template::{EvalError, Scope, Var};

/// The text in the status in place of a secret output.
pub(crate) const SECRET: &str = "(secret)";

/// The result of the action of a step.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Acted {
    /// The action is done. The variables of its answer: `body`, `message`, `stdout`.
    Done(Vec<(&'static str, Value)>),
    /// Its `when` has excluded it.
    Skipped,
    /// The action goes on later.
    Waiting,
    /// The action has failed for good.
    Failed(Failure),
}

impl Acted {
    pub(super) fn done() -> Self {
        Self::Done(Vec::new())
    }
}

/// A step with `repeat`.
pub(super) struct Rounds<'p> {
    pub(super) step: &'p Step,
    pub(super) repeat: &'p Repeat,
    pub(super) strategy: Strategy,
    pub(super) steps: &'p [Step],
}

impl Advancer<'_> {
    /// Walks one step, or the items of its loop.
    pub(super) fn step<'p>(&mut self, step: &'p Step, at: &At<'p>) -> Flow {
        let path = format!("{}{}", at.prefix, step.name);
        let outside = self.interruptible.take();
        let flow = match &step.for_each {
            Some(each) => self.each(step, each, &path, at),
            None => self.one(step, &path, at),
        };
        if flow == Flow::Waiting {
            self.interruptible = self.interruptible.or(step.interruptible);
        }
        // The run may be interrupted only if all steps that wait side by side permit it.
        self.interruptible = match (outside, self.interruptible) {
            (Some(one), Some(other)) => Some(one && other),
            (one, other) => one.or(other),
        };
        flow
    }

    /// Walks one step, or one item of a loop.
    pub(super) fn one<'p>(&mut self, step: &'p Step, path: &str, at: &At<'p>) -> Flow {
        if let Some(flow) = self.ended(step, path) {
            return flow;
        }
        if self.state(path).is_none() {
            if self.hold {
                let reason = if self.inputs.paused { "Paused" } else { "Settling" };
                self.wait(path, reason, "the step is not started");
                return Flow::Waiting;
            }
            if self.status.steps.len() >= MAX_STEPS {
                let message = format!("the run has more than {MAX_STEPS} steps");
                return Flow::Failed(Failure::new(path, "TooManySteps", message));
            }
            self.state_mut(path);
        }
        if self.state(path).is_some_and(|state| state.failing) {
            return self.handle_failure(step, path, at);
        }
        let timeout = match self.timeout(step, path, at) {
            Ok(timeout) => timeout,
            Err(failure) => return self.fail(step, path, at, failure),
        };
        let since = self.since(path);
        let expired = timeout.is_some_and(|timeout| self.used >= since + timeout);
        let acted = self.decide(step, path, at, expired).unwrap_or_else(|| self.act(step, path, at, expired));
        let has_acted = !matches!(acted, Acted::Skipped);
        let flow = match acted {
            Acted::Done(answer) => match self.succeed(step, path, at, &answer) {
                Ok(true) => Flow::Done,
                Ok(false) => Flow::Waiting,
                Err(failure) => self.fail(step, path, at, failure),
            },
            Acted::Skipped => {
                self.end(path, StepPhase::Skipped);
                Flow::Done
            }
            Acted::Failed(failure) => self.fail(step, path, at, failure),
            Acted::Waiting => Flow::Waiting,
        };
        if flow == Flow::Waiting
            && let Some(timeout) = timeout
            && !expired
        {
            self.await_end(since, timeout);
        }
        if flow == Flow::Done && has_acted && self.outdates_observations(step, path) {
            self.wait(path, "Observing", "the observations are being repeated");
            return Flow::Waiting;
        }
        flow
    }

    /// Whether a step creates an object beside the instance, or is answered in one, for a run whose namespace accepts none.
    fn lacks_namespace(&mut self, step: &Step, path: &str, at: &At<'_>) -> bool {
        let needs_object = match &step.action {
            Action::Approve { .. } | Action::Job { .. } => true,
            Action::Plan(call) => call.of.is_some(),
            _ => step.store.is_some() || step.outputs.iter().any(|output| output.secret),
        };
        self.run.is_inner && needs_object && matches!(self.condition(step, path, at), Ok(true))
    }

    /// Whether what follows a step that has just ended must not be decided by observations made before its effect. Its
    /// result is stored first, and each stored result repeats the observations.
    fn outdates_observations(&self, step: &Step, path: &str) -> bool {
        let has_effect = match &step.action {
            Action::Apply(_)
            | Action::Delete(_)
            | Action::Job { .. }
            | Action::Exec(_)
            | Action::Http(_)
            | Action::Patch(_) => true,
            Action::Plan(call) => call.of.is_some(),
            _ => false,
        };
        let was_reached = self.index.get(path).is_some_and(|index| *index < self.stored.steps.len());
        has_effect && was_reached && self.inputs.has_observations && !self.hold
    }

    /// What a step that has ended means for what follows.
    pub(super) fn ended(&self, step: &Step, path: &str) -> Option<Flow> {
        let state = self.state(path).filter(|state| state.phase.is_final())?;
        Some(if state.phase == StepPhase::Failed && step.on_failure != OnFailure::Continue {
            Flow::Failed(Failure::new(path, &state.reason, state.message.clone()))
        } else {
            Flow::Done
        })
    }

    pub(super) fn since(&self, path: &str) -> Duration {
        Duration::from_millis(
            self.state(path).map_or_else(|| millis(self.used), |state| state.since_milliseconds),
        )
    }

    pub(super) fn end(&mut self, path: &str, phase: StepPhase) {
        let now = self.inputs.now.to_string();
        let state = self.state_mut(path);
        state.phase = phase;
        state.in_flight = false;
        state.retry_milliseconds = None;
        state.finished_at = Some(now);
    }

    /// Decides whether a step that is reached runs. `None`: it does.
    fn decide(&mut self, step: &Step, path: &str, at: &At<'_>, expired: bool) -> Option<Acted> {
        if self.state(path)?.phase != StepPhase::Pending {
            return None;
        }
        // Actions with attempts decide before each attempt.
        if !has_attempts(&step.action) {
            match self.condition(step, path, at) {
                Ok(true) => {}
                Ok(false) => return Some(Acted::Skipped),
                Err(error) => return Some(self.no_value(step, path, at, expired, error)),
            }
            if self.hold {
                self.wait(path, "Settling", "the step is not started");
                return Some(Acted::Waiting);
            }
        }
        self.state_mut(path).phase = StepPhase::Running;
        None
    }

    /// Whether `when` and `unless` let the step run.
    pub(super) fn condition(&mut self, step: &Step, path: &str, at: &At<'_>) -> Result<bool, NoValue> {
        if step.when.is_none() && step.unless.is_none() {
            return Ok(true);
        }
        let scope = self.scope(step, path, at);
        let engine = self.inputs.engine;
        if let Some(when) = &step.when
            && !truthy(engine, when, &scope)?
        {
            return Ok(false);
        }
        match &step.unless {
            Some(unless) => truthy(engine, unless, &scope).map(|excluded| !excluded),
            None => Ok(true),
        }
    }

    /// How long the step may take.
    pub(super) fn timeout(
        &mut self,
        step: &Step,
        path: &str,
        at: &At<'_>,
    ) -> Result<Option<Duration>, Failure> {
        let Some(text) = &step.timeout else {
            let default = match step.action {
                Action::Steps(..) | Action::Plan(_) | Action::Approve { .. } | Action::Pause(_) => None,
                Action::Job { .. } => Some(Duration::from_secs(60 * 60)),
                _ => Some(Duration::from_secs(10 * 60)),
            };
            return Ok(default.filter(|_| !self.holds_deletion(at.plan)));
        };
        let scope = match text.as_literal() {
            Some(_) => Scope::new(),
            None => self.scope(step, path, at),
        };
        match duration(self.inputs.engine, text, &scope, "timeout") {
            Ok(timeout) => Ok(Some(timeout)),
            Err(NoValue::Unknown(_)) => Ok(None),
            Err(NoValue::Wrong(why)) => Err(Failure::new(path, "ExpressionFailed", why)),
        }
    }

    fn act<'p>(&mut self, step: &'p Step, path: &str, at: &At<'p>, expired: bool) -> Acted {
        match &step.action {
            Action::Steps(strategy, steps) => match &step.repeat {
                None => self.phase(step, *strategy, steps, path, at, expired),
                Some(repeat) => {
                    let rounds = Rounds { step, repeat, strategy: *strategy, steps };
                    self.in_rounds(&rounds, path, at, expired)
                }
            },
            Action::Plan(call) if call.of.is_none() => self.inline(step, call, path, at, expired),
            Action::Apply(members) => self.apply(step, members, path, at, expired),
            Action::Delete(members) => self.delete(step, members, path, at, expired),
            Action::Wait(until) => self.until(step, until, path, at, expired),
            Action::Pause(text) => self.pause(step, text, path, at),
            _ if self.lacks_namespace(step, path, at) => {
                let message = "it needs an object in the namespace of the instance, which is being deleted";
                Acted::Failed(Failure::new(path, "NamespaceTerminating", message))
            }
            Action::Approve { .. } => self.approve(step, path, at, expired),
            Action::Fail(message) => self.fail_step(step, message, path, at, expired),
            Action::Record => Acted::done(),
            Action::Job { .. } | Action::Exec(_) | Action::Http(_) | Action::Patch(_) | Action::Plan(_) => {
                self.attempts(step, path, at, expired)
            }
        }
    }

    /// Records the success of a step, with its outputs and facts. `false`: something is still to be awaited.
    fn succeed(
        &mut self,
        step: &Step,
        path: &str,
        at: &At<'_>,
        answer: &[(&'static str, Value)],
    ) -> Result<bool, Failure> {
        if step.outputs.is_empty() && step.record.is_empty() && step.store.is_none() {
            self.end(path, StepPhase::Succeeded);
            return Ok(true);
        }
        let mut scope = self.scope(step, path, at);
        for (name, value) in answer {
            scope = scope.with(name, Var::Json(value.clone()));
        }
        if let Some(store) = &step.store
            && !self.store(step, store, path, at, &scope, answer)?
        {
            return Ok(false);
        }
        let mut outputs = match self.outputs(&step.outputs, &scope, path) {
            Ok(outputs) => outputs,
            Err(NoValue::Unknown(why)) => return Ok(self.await_values(step, path, at, &why)),
            Err(NoValue::Wrong(why)) => return Err(Failure::new(path, "OutputsMissing", why)),
        };
        let own = self.own_outputs(path, at, &outputs);
        let scope = scope.with("outputs", Var::Json(Value::Object(own)));
        let mut facts = Vec::with_capacity(step.record.len());
        for (key, expr) in &step.record {
            match self.inputs.engine.eval(expr, &scope).map_err(NoValue::from) {
                Ok(value) => match settled(value) {
                    Ok(value) => facts.push((key, value)),
                    Err(why) => {
                        return Err(Failure::new(path, "RecordFailed", format!("record `{key}`: {why}")));
                    }
                },
                Err(NoValue::Unknown(why)) => return Ok(self.await_values(step, path, at, &why)),
                Err(NoValue::Wrong(why)) => {
                    return Err(Failure::new(path, "RecordFailed", format!("record `{key}`: {why}")));
                }
            }
        }
        if !self.hide_secrets(&step.outputs, &mut outputs, path) {
            return Ok(false);
        }
        let known: usize = self.status.steps.iter().map(|step| bytes(&step.outputs)).sum();
        if known + bytes(&outputs) > MAX_OUTPUTS {
            let message = format!("the outputs of the run are larger than {} KiB", MAX_OUTPUTS >> 10);
            return Err(Failure::new(path, "OutputsTooLarge", message));
        }
        let mut record = self.record();
        record.extend(facts.iter().map(|(key, value)| ((*key).clone(), value.clone())));
        if serde_json::to_string(&record).map_or(0, |text| text.len()) > MAX_RECORD {
            let message = format!("the record of the instance is larger than {} KiB", MAX_RECORD >> 10);
            return Err(Failure::new(path, "RecordTooLarge", message));
        }
        for (key, value) in facts {
            self.set_record(key, value);
        }
        self.has_outputs |= !outputs.is_empty();
        let state = self.state_mut(path);
        state.outputs = outputs;
        state.held = step.store.is_some();
        self.end(path, StepPhase::Succeeded);
        Ok(true)
    }

    fn await_values(&mut self, step: &Step, path: &str, at: &At<'_>, why: &str) -> bool {
        self.progress.in_flight |= self.state(path).is_some_and(|state| state.in_flight);
        self.wait_for(step, path, at, "Unknown", why);
        false
    }

    /// The declared outputs of an answer.
    fn outputs(&self, declared: &[Output], scope: &Scope, path: &str) -> Result<Map<String, Value>, NoValue> {
        let mut outputs = Map::new();
        for output in declared {
            let name = &output.name;
            let wrong = |why: String| NoValue::Wrong(format!("output `{name}`: {why}"));
            let value = match self.inputs.engine.eval_optional(&output.value, scope) {
                Ok(Some(value)) => value,
                Ok(None) => continue,
                Err(error @ EvalError::Unknown { .. }) => return Err(error.into()),
                Err(error) => return Err(wrong(short(&error.to_string()))),
            };
            let value = match &output.search {
                Some(search) => search.of(&value, search.is_singular()).map_err(wrong)?,
                None => value,
            };
            if value.is_null() && output.search.is_some() {
                return Err(wrong("the JSONPath matches nothing in the answer".into()));
            }
            let value = settled(value).map_err(wrong)?;
            if value.to_string().len() > MAX_OUTPUT {
                return Err(wrong(format!("it is larger than {} KiB", MAX_OUTPUT >> 10)));
            }
            outputs.insert(name.clone(), value);
        }
        let _ = path;
        Ok(outputs)
    }

    /// Replaces secret outputs by a placeholder, once they are stored. `false`: they are not stored yet.
    fn hide_secrets(&mut self, declared: &[Output], outputs: &mut Map<String, Value>, path: &str) -> bool {
        let secret: Map<String, Value> = declared
            .iter()
            .filter(|output| output.secret)
            .filter_map(|output| Some((output.name.clone(), outputs.get(&output.name)?.clone())))
            .collect();
        if secret.is_empty() {
            return true;
        }
        if self.inputs.cluster.secrets(path).is_none() {
            let body = self.inputs.instance.outputs(self.run, path, &secret);
            self.progress.effects.push(RunAction::StoreSecrets {
                step: CallKey::new(&self.run.uid, path, 0),
                values: SecretOutputs(secret),
                secret: Box::new(body),
            });
            self.wait_in_flight(path, "StoringSecrets", "secret outputs are being stored");
            return false;
        }
        for name in secret.keys() {
            outputs.insert(name.clone(), Value::String(SECRET.into()));
        }
        true
    }

    /// Ends a step that has failed, or starts the plan for its failure.
    pub(super) fn fail<'p>(&mut self, step: &'p Step, path: &str, at: &At<'p>, failure: Failure) -> Flow {
        let state = self.state_mut(path);
        failure.reason.clone_into(&mut state.reason);
        state.message = short(&failure.message);
        state.in_flight = false;
        state.retry_milliseconds = None;
        if matches!(step.on_failure, OnFailure::Plan(_)) {
            self.state_mut(path).failing = true;
            return self.handle_failure(step, path, at);
        }
        self.state_mut(path).ignored = step.on_failure == OnFailure::Continue;
        self.end(path, StepPhase::Failed);
        // The failure names the innermost step.
        let mut flow = self.ended(step, path).unwrap_or(Flow::Waiting);
        if let Flow::Failed(shown) = &mut flow {
            shown.step = failure.step;
        }
        flow
    }

    /// Runs the plan for the failure of a step; then the step has failed.
    pub(super) fn handle_failure<'p>(&mut self, step: &'p Step, path: &str, at: &At<'p>) -> Flow {
        let OnFailure::Plan(name) = &step.on_failure else {
            self.end(path, StepPhase::Failed);
            return self.ended(step, path).unwrap_or(Flow::Waiting);
        };
        let flow = self.plan(name, format!("{path}{ON_FAILURE}"), at.params.clone(), at.depth + 1);
        match flow {
            Flow::Waiting => return Flow::Waiting,
            Flow::Done => {}
            Flow::Failed(failure) => {
                let state = self.state_mut(path);
                let message = format!("{}; then plan `{name}` failed: {}", state.message, failure.message);
                state.message = short(&message);
            }
        }
        self.end(path, StepPhase::Failed);
        self.ended(step, path).unwrap_or(Flow::Waiting)
    }

    /// The message that a step has for people, if it has one.
    fn own_message(&mut self, step: &Step, path: &str, at: &At<'_>) -> Option<String> {
        let text = step.message.as_ref()?;
        let scope = self.scope(step, path, at);
        let value = self.inputs.engine.eval_text(text, &scope).ok()??;
        super::super::eval::as_string(&value)
    }

    /// Says what a step waits for: its own message, if it has one and has waited for a while. A wait that is over at once is
    /// none for people.
    pub(super) fn wait_for(
        &mut self,
        step: &Step,
        path: &str,
        at: &At<'_>,
        reason: &'static str,
        message: &str,
    ) {
        let shown_at = self.since(path) + SHOWN_AFTER;
        let mut own = None;
        if self.used >= shown_at || self.was_reached_before(path) {
            own = self.own_message(step, path, at);
        } else if step.message.is_some() {
            self.wake_at(shown_at);
        }
        self.wait(path, reason, own.unwrap_or_else(|| message.to_owned()));
    }

    /// Whether a step was reached a while ago by the time of day. After a restart, the time that the run had used since its last
    /// transition is not known.
    fn was_reached_before(&self, path: &str) -> bool {
        let reached =
            self.state(path).and_then(|state| state.started_at.as_deref()?.parse::<Timestamp>().ok());
        let age =
            reached.and_then(|reached| Duration::try_from(self.inputs.now.duration_since(reached)).ok());
        age.is_some_and(|age| age >= SHOWN_AFTER)
    }

    /// The failure of a step that took too long: what it waited for, in its own words if it has some.
    pub(super) fn timed_out(&mut self, step: &Step, path: &str, at: &At<'_>, message: &str) -> Failure {
        let own = self.own_message(step, path, at).unwrap_or_else(|| message.to_owned());
        let after = self.written_timeout(step, path, at);
        Failure::new(path, "Timeout", format!("timed out{after}: {own}"))
    }

    /// The failure of a step that took too long, with a reason that its own message cannot know.
    pub(super) fn timed_out_after(&mut self, step: &Step, path: &str, at: &At<'_>, reason: &str) -> Failure {
        let own = self.own_message(step, path, at).map(|own| format!(": {own}")).unwrap_or_default();
        let after = self.written_timeout(step, path, at);
        Failure::new(path, "Timeout", format!("timed out{after}{own}; {reason}"))
    }

    /// The timeout of a step for messages: ` after 10m`.
    fn written_timeout(&mut self, step: &Step, path: &str, at: &At<'_>) -> String {
        let timeout = self.timeout(step, path, at).ok().flatten();
        timeout.map(|timeout| format!(" after {}", written_duration(timeout))).unwrap_or_default()
    }
}

/// Whether the action consists of attempts, each with its own decision.
pub(super) fn has_attempts(action: &Action) -> bool {
    matches!(action, Action::Job { .. } | Action::Exec(_) | Action::Http(_))
}

fn bytes(outputs: &Map<String, Value>) -> usize {
    outputs.values().map(|value| value.to_string().len()).sum()
}
