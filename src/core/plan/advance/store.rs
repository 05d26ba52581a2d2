//! Steps with `store`: parts of the answer are written into a Secret child before the step counts as done.
//!
//! The whole answer is first stored in the Secret of the run. So it is not lost if the manager dies, and none of it is in the state of
//! the run. From there it is written into the child: keys that the child has are never changed.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};

use super::super::action::{CallKey, RunAction, SecretOutputs};
use super::super::eval::{Eval, NoValue, as_string, value};
use super::super::inputs::LiveSecret;
use super::super::instance::outputs_name;
use super::super::member::Member;
use super::step::Acted;
use super::{Advancer, At, Failure};
use crate::package::plan::{Step, Store};
use crate::template::Scope;

/// The name of the answer beside the secret outputs of a step. No output can have it.
const ANSWER: &str = "(answer)";

impl Advancer<'_> {
    /// The answer of a step with `store`, once it is in the Secret of the run.
    pub(super) fn held_answer(&self, step: &Step, path: &str) -> Option<Vec<(&'static str, Value)>> {
        step.store.as_ref()?;
        let mut held = self.inputs.cluster.secrets(path)?.remove(ANSWER)?;
        let names = step.action.answers().iter();
        Some(names.filter_map(|name| Some((*name, held.as_object_mut()?.remove(*name)?))).collect())
    }

    fn secret_of(
        &self,
        step: &Step,
        store: &Store,
        path: &str,
        at: &At<'_>,
    ) -> Eval<(Member, Option<LiveSecret>)> {
        let key = match &store.child.key {
            Some(text) => {
                let scope = self.scope(step, path, at);
                Some(value(self.inputs.engine, text, &scope, "the key of the member")?)
            }
            None => None,
        };
        let member = Member::new(store.child.child.clone(), key);
        let secret = self.inputs.cluster.secret(&member).map_err(NoValue::Unknown)?;
        Ok((member, secret))
    }

    /// Why no attempt may be made: its answer could not be stored.
    pub(super) fn no_room(&mut self, step: &Step, store: &Store, path: &str, at: &At<'_>) -> Option<Acted> {
        match self.secret_of(step, store, path, at) {
            Err(error) => Some(self.no_value(step, path, at, false, error)),
            Ok((member, None)) => {
                self.wait_for(
                    step,
                    path,
                    at,
                    "StoreMissing",
                    &format!("{member}, in which it stores, does not exist"),
                );
                Some(Acted::Waiting)
            }
            Ok((_, Some(secret))) => {
                let (key, _) = store.data.iter().find(|(key, _)| secret.data.0.contains_key(key))?;
                let message = format!(
                    "Secret {} has the key `{key}`, which this step would store, so it is not run: remove the key by hand if its \
                     value is not needed any more, or exclude the step by `when`",
                    secret.object.name
                );
                Some(Acted::Failed(Failure::new(path, "AlreadyStored", message)))
            }
        }
    }

    /// Stores the answer, first in the Secret of the run, then in the child. `false`: it is not stored yet.
    pub(super) fn store(
        &mut self,
        step: &Step,
        store: &Store,
        path: &str,
        at: &At<'_>,
        answered: &Scope,
        answer: &[(&'static str, Value)],
    ) -> Result<bool, Failure> {
        if self.held_answer(step, path).is_none() {
            let all: Map<String, Value> =
                answer.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
            let values = Map::from_iter([(ANSWER.to_owned(), Value::Object(all))]);
            let secret = Box::new(self.inputs.instance.outputs(self.run, path, &values));
            let key = CallKey::new(&self.run.uid, path, 0);
            self.progress.effects.push(RunAction::StoreSecrets {
                step: key,
                values: SecretOutputs(values),
                secret,
            });
            self.wait_in_flight(path, "StoringSecrets", "the answer is being stored");
            return Ok(false);
        }
        if self.inputs.cluster.has_stored(path) {
            return Ok(true);
        }
        let holder = outputs_name(self.run);
        let fail = |reason: &str, why: String| {
            Failure::new(
                path,
                reason,
                format!("{why}. The answer is kept in Secret {holder} until the PlanRun is deleted"),
            )
        };
        let mut data = Map::new();
        for (key, expr) in &store.data {
            // The message of the error may have parts of the answer.
            let Ok(Some(text)) = self.inputs.engine.eval(expr, answered).map(|value| as_string(&value))
            else {
                return Err(fail(
                    "StoreFailed",
                    format!("`{key}` of `store` yields no string for this answer"),
                ));
            };
            data.insert(key.clone(), STANDARD.encode(text).into());
        }
        let (member, secret) = match self.secret_of(step, store, path, at) {
            Ok(found) => found,
            Err(NoValue::Unknown(why)) => return self.not_stored(step, path, at, &why, &fail),
            Err(NoValue::Wrong(why)) => return Err(fail("StoreFailed", why)),
        };
        let Some(secret) = secret else {
            return self.not_stored(
                step,
                path,
                at,
                &format!("{member}, in which it stores, does not exist"),
                &fail,
            );
        };
        let has = |key: &String| secret.data.0.get(key);
        if let Some((key, _)) = data.iter().find(|(key, value)| has(key).is_some_and(|known| known != *value))
        {
            let why = format!(
                "Secret {} has another value of `{key}`, which is not overwritten",
                secret.object.name
            );
            return Err(fail("StoreConflict", why));
        }
        data.retain(|key, _| has(key).is_none());
        if data.is_empty() {
            return Ok(true);
        }
        if self.inputs.paused {
            self.wait(path, "Paused", "its answer is not stored");
            return Ok(false);
        }
        let key = CallKey::new(&self.run.uid, path, 0);
        let effect = RunAction::StoreInChild { step: key, secret: secret.object, data: SecretOutputs(data) };
        self.progress.effects.push(effect);
        self.wait_in_flight(path, "StoringSecrets", format!("its answer is being stored in {member}"));
        Ok(false)
    }

    /// The answer cannot be stored now. It is kept: the step waits until its timeout.
    fn not_stored(
        &mut self,
        step: &Step,
        path: &str,
        at: &At<'_>,
        why: &str,
        fail: &dyn Fn(&str, String) -> Failure,
    ) -> Result<bool, Failure> {
        let since = self.since(path);
        if self.timeout(step, path, at)?.is_some_and(|timeout| self.used >= since + timeout) {
            return Err(fail("Timeout", format!("timed out: {why}")));
        }
        self.wait_for(step, path, at, "StoreMissing", why);
        Ok(false)
    }
}
