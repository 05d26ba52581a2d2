//! Steps without requests: phases, inline plans, waits, pauses, failures.

use serde_json::Value;

use super::super::eval::{NoValue, duration, holds, string};
use super::super::progress::Waiting;
use super::super::run::short;
use super::step::Acted;
use super::{Advancer, At, Failure, Flow};
use crate::package::plan::{Call, RECORDED, Step, Strategy, Until, written_duration};
use crate::template::Text;

/// The message that a condition is not true yet, with its text.
pub(super) fn not_true(text: Option<&str>) -> String {
    match text {
        Some(text) => format!("`{}` is not true yet", short(text)),
        None => "its condition is not true yet".to_owned(),
    }
}

impl Advancer<'_> {
    pub(super) fn phase<'p>(
        &mut self,
        step: &'p Step,
        strategy: Strategy,
        steps: &'p [Step],
        path: &str,
        at: &At<'p>,
        expired: bool,
    ) -> Acted {
        let inner = At { prefix: format!("{path}/"), ..at.clone() };
        self.within(step, path, at, expired, |advancer| advancer.steps(strategy, steps, &inner))
    }

    pub(super) fn inline<'p>(
        &mut self,
        step: &'p Step,
        call: &'p Call,
        path: &str,
        at: &At<'p>,
        expired: bool,
    ) -> Acted {
        let params = match (&call.params, self.state(path).and_then(|state| state.params.clone())) {
            (None, _) => at.params.clone(),
            (Some(_), Some(params)) => params,
            (Some(tree), None) => {
                let scope = self.scope(step, path, at);
                match tree.eval(self.inputs.engine, &scope).map_err(NoValue::from) {
                    Ok(params) => {
                        let params = params.unwrap_or(Value::Null);
                        self.state_mut(path).params = Some(params.clone());
                        params
                    }
                    Err(error) => return self.no_value(step, path, at, expired, error),
                }
            }
        };
        let (depth, prefix) = (at.depth + 1, format!("{path}/"));
        let walk = |advancer: &mut Self| advancer.plan(&call.plan, prefix.clone(), params, depth);
        match self.within(step, path, at, expired, walk) {
            Acted::Done(_) => {
                Acted::Done(vec![(RECORDED, Value::Object(self.recorded(&call.plan, &prefix)))])
            }
            other => other,
        }
    }

    /// Walks what a step contains. After its timeout, what is in flight is settled, and the step fails.
    pub(super) fn within(
        &mut self,
        step: &Step,
        path: &str,
        at: &At<'_>,
        expired: bool,
        walk: impl FnOnce(&mut Self) -> Flow,
    ) -> Acted {
        if !expired {
            return match walk(self) {
                Flow::Done => Acted::done(),
                Flow::Waiting => Acted::Waiting,
                Flow::Failed(failure) => Acted::Failed(failure),
            };
        }
        let (hold, settle) = (self.hold, self.settle);
        let in_flight = std::mem::take(&mut self.progress.in_flight);
        let before = self.progress.waiting.len();
        (self.hold, self.settle) = (true, true);
        let flow = walk(self);
        let settled = !self.progress.in_flight;
        (self.hold, self.settle) = (hold, settle);
        self.progress.in_flight |= in_flight;
        match flow {
            Flow::Done => Acted::done(),
            Flow::Failed(failure) => Acted::Failed(failure),
            Flow::Waiting if settled => {
                let why = self.inner_reason(path, before);
                Acted::Failed(self.timed_out_after(step, path, at, &why))
            }
            Flow::Waiting => Acted::Waiting,
        }
    }

    /// What the steps within a step wait for: the first message that says more than that no step is started any
    /// more. `before`: how many waits were known before those of these steps.
    fn inner_reason(&self, path: &str, before: usize) -> String {
        let says_more = |waiting: &&Waiting| !["Settling", "Paused"].contains(&waiting.reason);
        if let Some(waiting) = self.progress.waiting.iter().skip(before).find(says_more) {
            return format!("step `{}`: {}", waiting.step, waiting.message);
        }
        let is_within = |inner: &str| inner.strip_prefix(path).is_some_and(|rest| rest.starts_with('/'));
        let mut open =
            self.status.steps.iter().filter(|step| is_within(&step.path) && !step.phase.is_final());
        let last = open.rfind(|step| !step.message.is_empty());
        last.map_or_else(
            || "its steps are not done".to_owned(),
            |step| format!("step `{}`, last attempt: {}", step.path, step.message),
        )
    }

    /// Lets a step whose expression has no value wait or fail.
    pub(super) fn no_value(
        &mut self,
        step: &Step,
        path: &str,
        at: &At<'_>,
        expired: bool,
        error: NoValue,
    ) -> Acted {
        match error {
            NoValue::Wrong(why) => Acted::Failed(Failure::new(path, "ExpressionFailed", why)),
            NoValue::Unknown(why) if expired => Acted::Failed(self.timed_out_after(step, path, at, &why)),
            NoValue::Unknown(why) => {
                self.wait_for(step, path, at, "Unknown", &why);
                Acted::Waiting
            }
        }
    }

    pub(super) fn until(
        &mut self,
        step: &Step,
        until: &Until,
        path: &str,
        at: &At<'_>,
        expired: bool,
    ) -> Acted {
        let scope = self.scope(step, path, at);
        let message = not_true(until.expr.text());
        match holds(until.holds(self.inputs.engine, &scope)) {
            Ok(true) => Acted::done(),
            Ok(false) if expired => Acted::Failed(self.timed_out(step, path, at, &message)),
            Ok(false) => {
                self.wait_for(step, path, at, "Waiting", &message);
                Acted::Waiting
            }
            Err(error) => self.no_value(step, path, at, expired, error),
        }
    }

    pub(super) fn pause(&mut self, step: &Step, text: &Text, path: &str, at: &At<'_>) -> Acted {
        let scope = self.scope(step, path, at);
        let pause = match duration(self.inputs.engine, text, &scope, "wait.duration") {
            Ok(pause) => pause,
            Err(error) => return self.no_value(step, path, at, false, error),
        };
        let since = self.since(path);
        if self.used >= since + pause {
            return Acted::done();
        }
        self.await_end(since, pause);
        self.wait_for(step, path, at, "Pausing", &format!("it pauses for {}", written_duration(pause)));
        Acted::Waiting
    }

    pub(super) fn fail_step(
        &mut self,
        step: &Step,
        message: &Text,
        path: &str,
        at: &At<'_>,
        expired: bool,
    ) -> Acted {
        let scope = self.scope(step, path, at);
        match string(self.inputs.engine, message, &scope, "fail.message") {
            Ok(message) => Acted::Failed(Failure::new(path, "FailStep", message)),
            Err(error) => self.no_value(step, path, at, expired, error),
        }
    }
}
