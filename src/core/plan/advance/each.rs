//! A step with a loop: once for each item of a list that is stored when the step is reached.

use serde_json::Value;

use super::super::eval::{Eval, NoValue, value};
use super::super::names::item_keys;
use super::super::run::short;
use super::super::step_state::{LoopItem, StepPhase};
use super::{Advancer, At, Failure, Flow};
use crate::package::plan::{Loop, Step};
use crate::template::{Engine, Scope, Var};

/// The most bytes of the list of a loop.
pub(super) const MAX_ITEMS_BYTES: usize = 128 << 10;

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
        // A template counts as it was when the step was reached: with fewer, items that have begun would stand.
        let stored = self.state(path).and_then(|state| state.max_parallel);
        let literal = || each.max_parallel.as_ref()?.as_literal()?.as_u64()?.try_into().ok();
        let most: u16 = stored.or_else(literal).unwrap_or(1);
        let flow = self.side_by_side(&paths, most.into(), |advancer, index| {
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
            self.wait(
                path,
                if self.inputs.paused { "Paused" } else { "Settling" },
                "the step is not started",
            );
            return Ok(None);
        }
        self.state_mut(path);
        let scope = self.scope(step, path, at);
        let engine = self.inputs.engine;
        let listed = engine.items(&each.in_, &scope).map_err(NoValue::from);
        let found = listed.and_then(|values| Ok((values, max_parallel(engine, each, &scope)?)));
        let (values, max_parallel): (Vec<Value>, _) = match found {
            Ok(found) => found,
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
        state.max_parallel = max_parallel;
        Ok(Some(items))
    }
}

/// The value of a template for how many items run at once; `None` if the package has a number, or nothing.
fn max_parallel(engine: &Engine, each: &Loop, scope: &Scope) -> Eval<Option<u16>> {
    let Some(text) = each.max_parallel.as_ref().filter(|text| text.as_literal().is_none()) else {
        return Ok(None);
    };
    let number = value(engine, text, scope, "maxParallel")?;
    let valid =
        number.as_u64().and_then(|number| u16::try_from(number).ok()).filter(|n| (1..=1000).contains(n));
    valid.map(Some).ok_or_else(|| {
        NoValue::Wrong(short(&format!("maxParallel is {number}, not a whole number from 1 to 1000")))
    })
}
