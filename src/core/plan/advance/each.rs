//! A step with a loop: once for each item of a list that is stored when the step is reached.

use serde_json::Value;

use super::super::eval::NoValue;
use super::super::names::item_keys;
use super::super::run::{LoopItem, StepPhase, short};
use super::{Advancer, At, Failure, Flow};
use crate::package::plan::{Loop, Step};
use crate::template::Var;

/// The most bytes of the list of a loop.
const MAX_ITEMS_BYTES: usize = 128 << 10;

impl Advancer<'_> {
    pub(super) fn each<'p>(&mut self, step: &'p Step, each: &'p Loop, path: &str, at: &At<'p>) -> Flow {
        if let Some(flow) = self.ended(step, path) {
            return flow;
        }
        if self.state(path).is_some_and(|state| state.failing) {
            return self.handle_failure(step, path, at);
        }
        let stored = self.state(path).and_then(|state| state.items.clone());
        let items = match stored {
            Some(items) => items,
            None => match self.list(step, each, path, at) {
                Ok(Some(items)) => items,
                Ok(None) => return Flow::Waiting,
                Err(failure) => return self.fail(step, path, at, failure),
            },
        };
        let paths: Vec<String> = items.iter().map(|item| format!("{path}[{}]", item.key)).collect();
        let flow = self.side_by_side(&paths, each.max_parallel.max(1), |advancer, index| {
            let scope = at.scope.with(&each.as_, Var::Json(items[index].value.clone()));
            advancer.one(step, &paths[index], &At { scope, ..at.clone() })
        });
        match &flow {
            Flow::Done => self.end(path, StepPhase::Succeeded),
            // The items have their own `onFailure`: it has run.
            Flow::Failed(failure) => {
                let state = self.state_mut(path);
                state.reason.clone_from(&failure.reason);
                state.message = short(&failure.message);
                self.end(path, StepPhase::Failed);
            }
            Flow::Waiting => {}
        }
        flow
    }

    /// The list of a loop that is reached, which is stored. `None`: it is not known yet.
    fn list(
        &mut self,
        step: &Step,
        each: &Loop,
        path: &str,
        at: &At<'_>,
    ) -> Result<Option<Vec<LoopItem>>, Failure> {
        if self.hold {
            self.wait(path, if self.world.paused { "Paused" } else { "Settling" }, "the step is not started");
            return Ok(None);
        }
        self.state_mut(path);
        let scope = self.scope(step, path, at);
        let values: Vec<Value> = match self.world.engine.items(&each.in_, &scope).map_err(NoValue::from) {
            Ok(values) => values,
            Err(NoValue::Wrong(why)) => return Err(Failure::new(path, "ExpressionFailed", why)),
            Err(NoValue::Unknown(why)) => {
                let since = self.since(path);
                if let Some(timeout) = self.timeout(step, path, at)? {
                    if self.used >= since + timeout {
                        return Err(self.timed_out_after(step, path, at, &why));
                    }
                    self.await_end(since, timeout);
                }
                self.wait_for(step, path, at, "Unknown", &why);
                return Ok(None);
            }
        };
        if values.iter().map(|value| value.to_string().len()).sum::<usize>() > MAX_ITEMS_BYTES {
            let message = format!("the list is larger than {} KiB", MAX_ITEMS_BYTES >> 10);
            return Err(Failure::new(path, "ListTooLarge", message));
        }
        let keys = item_keys(&values);
        let items = keys.into_iter().zip(values).map(|(key, value)| LoopItem { key, value });
        let items: Vec<LoopItem> = items.collect();
        self.has_outputs = true;
        let state = self.state_mut(path);
        state.phase = StepPhase::Running;
        state.items = Some(items.clone());
        Ok(Some(items))
    }
}
