//! A phase with `repeat`: its steps run in rounds, each for an item that is picked, and stored, when the round begins.

use serde_json::Value;

use super::super::eval::{NoValue, holds};
use super::super::names::round_key;
use super::super::run::short;
use super::super::step_state::{LoopItem, StepPhase};
use super::each::MAX_ITEMS_BYTES;
use super::simple::not_true;
use super::step::{Acted, Rounds};
use super::{Advancer, At, Failure, MAX_STEPS, millis};
use crate::template::{EvalError, Var};

impl Advancer<'_> {
    pub(super) fn in_rounds<'p>(
        &mut self,
        rounds: &Rounds<'p>,
        path: &str,
        at: &At<'p>,
        expired: bool,
    ) -> Acted {
        let items = self.state(path).and_then(|state| state.items.as_deref()).unwrap_or_default();
        let last = items.last().cloned();
        let open = last.filter(|item| !self.has_succeeded(&round_path(path, item)));
        let item = match open {
            Some(item) => item,
            None => match self.pick(rounds, path, at, expired) {
                Ok(item) => item,
                Err(acted) => return acted,
            },
        };
        self.round(rounds, &item, path, at, expired)
    }

    fn has_succeeded(&self, path: &str) -> bool {
        self.state(path).is_some_and(|state| state.phase == StepPhase::Succeeded)
    }

    /// Walks the steps of a round. Its end is stored before anything is decided from what it has changed.
    fn round<'p>(
        &mut self,
        rounds: &Rounds<'p>,
        item: &LoopItem,
        path: &str,
        at: &At<'p>,
        expired: bool,
    ) -> Acted {
        let own = round_path(path, item);
        let scope = at.scope.with(&rounds.repeat.as_, Var::Json(item.value.clone()));
        let inner = At { prefix: format!("{own}/"), scope, ..at.clone() };
        self.state_mut(&own).phase = StepPhase::Running; // a retry resumes the round
        let walk = |advancer: &mut Self| advancer.steps(rounds.strategy, rounds.steps, &inner);
        match self.within(rounds.step, path, at, expired, walk) {
            Acted::Done(_) => {
                self.end(&own, StepPhase::Succeeded);
                let used = millis(self.used);
                self.state_mut(path).since_milliseconds = used;
                self.wait(path, "Observing", format!("the end of round {} is being stored", item.key));
                Acted::Waiting
            }
            Acted::Failed(failure) => {
                let state = self.state_mut(&own);
                state.reason.clone_from(&failure.reason);
                state.message = short(&failure.message);
                self.end(&own, StepPhase::Failed);
                Acted::Failed(failure)
            }
            other => other,
        }
    }

    /// Picks the item of the next round, which is stored. `Err`: there is none, or none yet.
    fn pick(
        &mut self,
        rounds: &Rounds<'_>,
        path: &str,
        at: &At<'_>,
        expired: bool,
    ) -> Result<LoopItem, Acted> {
        let Rounds { step, repeat, .. } = rounds;
        self.has_outputs = true;
        let engine = self.inputs.engine;
        let scope = self.scope(step, path, at);
        match holds(engine.truthy(&repeat.until, &scope)) {
            Ok(true) => {
                self.state_mut(path).items.get_or_insert_default();
                return Err(Acted::done());
            }
            Ok(false) => {}
            Err(error) => return Err(self.no_value(step, path, at, expired, error)),
        }
        let mut items = self.state(path).and_then(|state| state.items.clone()).unwrap_or_default();
        let failed = |reason: &str, message: String| Err(Acted::Failed(Failure::new(path, reason, message)));
        if items.len() >= repeat.limit as usize {
            let message = format!("after {} rounds {}", items.len(), not_true(repeat.until.text()));
            return failed("TooManyRounds", message);
        }
        let picked = match engine.eval_optional(&repeat.pick, &scope) {
            Err(EvalError::NotYet(_) | EvalError::Undefined(_)) => Ok(None),
            other => other.map_err(NoValue::from),
        };
        let value = match picked {
            Ok(value) => value.filter(|value| !value.is_null()),
            Err(error) => return Err(self.no_value(step, path, at, expired, error)),
        };
        let nothing = match repeat.pick.text() {
            Some(text) => format!("`{}` yields nothing for the next round yet", short(text)),
            None => "there is nothing for the next round yet".to_owned(),
        };
        if expired {
            return Err(Acted::Failed(self.timed_out(step, path, at, &nothing)));
        }
        if self.hold {
            self.wait(path, if self.inputs.paused { "Paused" } else { "Settling" }, "no round is started");
            return Err(Acted::Waiting);
        }
        let Some(value) = value else {
            self.wait_for(step, path, at, "Picking", &nothing);
            return Err(Acted::Waiting);
        };
        let known: usize = items.iter().map(|item| bytes(&item.value)).sum();
        if known + bytes(&value) > MAX_ITEMS_BYTES {
            let message = format!("the items of its rounds are larger than {} KiB", MAX_ITEMS_BYTES >> 10);
            return failed("ListTooLarge", message);
        }
        if self.status.steps.len() >= MAX_STEPS {
            let message = format!("the run has more than {MAX_STEPS} steps after {} rounds", items.len());
            return failed("TooManySteps", message);
        }
        let item = LoopItem { key: round_key(items.len() + 1, &value), value };
        items.push(item.clone());
        self.state_mut(path).items = Some(items);
        Ok(item)
    }
}

fn round_path(path: &str, item: &LoopItem) -> String {
    format!("{path}[{}]", item.key)
}

fn bytes(value: &Value) -> usize {
    value.to_string().len()
}
