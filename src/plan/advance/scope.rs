//! The variables of a step: `run`, `record` and `outputs`.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::super::run::StepPhase;
use super::{At, Walk};
use crate::package::plan::{Action, Step};
use crate::template::{Scope, Var};

impl Walk<'_> {
    /// The variables of a step.
    pub(super) fn scope(&self, step: &Step, path: &str, at: &At<'_>) -> Scope {
        let attempt = self.state(path).map_or(1, |state| state.attempt.max(1));
        let run = json!({
            "id": self.stored.id,
            "name": self.run.name,
            "plan": at.plan.name,
            "step": step.name,
            "attempt": attempt,
            "startedAt": self.stored.started_at,
            "params": if at.params.is_null() { json!({}) } else { at.params.clone() },
            "lost": self.stored.lost,
        });
        let scope = at.scope.with("run", Var::Json(run));
        let scope = if self.fresh.is_empty() {
            scope
        } else {
            let record: Map<String, Value> = self.record().into_iter().collect();
            scope.with("record", Var::Json(Value::Object(record)))
        };
        scope.with("outputs", Var::Json(Value::Object(self.visible_outputs(path, at))))
    }

    /// The outputs that a step sees, and its own: by name, and below the name of the step.
    pub(super) fn own_outputs(
        &self,
        path: &str,
        at: &At<'_>,
        own: &Map<String, Value>,
    ) -> Map<String, Value> {
        let mut all = self.visible_outputs(path, at);
        let name = path.rsplit('/').next().unwrap_or(path);
        let name = name.split('[').next().unwrap_or(name);
        all.insert(name.to_owned(), Value::Object(own.clone()));
        all.extend(own.clone());
        all
    }

    /// The outputs of the steps of the plan: those of the same item, else those further outward.
    fn visible_outputs(&self, path: &str, at: &At<'_>) -> Map<String, Value> {
        let mut all = Map::new();
        if self.has_outputs {
            self.collect(&at.plan.steps, &at.root, path, &mut all);
        }
        all
    }

    fn collect(&self, steps: &[Step], prefix: &str, path: &str, all: &mut Map<String, Value>) {
        let mut around = None;
        for step in steps {
            let own = format!("{prefix}{}", step.name);
            let inner = match &step.action {
                Action::Steps(_, inner) => inner.as_slice(),
                _ => &[],
            };
            if step.for_each.is_some() {
                let items = self.state(&own).and_then(|state| state.items.as_deref()).unwrap_or_default();
                let mut list = Vec::with_capacity(items.len());
                for item in items {
                    let item_path = format!("{own}[{}]", item.key);
                    let nested = format!("{item_path}/");
                    if path.starts_with(&nested) {
                        around = Some((inner, nested));
                        continue;
                    }
                    if self.state(&item_path).is_some_and(|state| state.phase == StepPhase::Succeeded) {
                        let mut entry = Map::from_iter([("item".to_owned(), item.value.clone())]);
                        entry.extend(self.outputs_of(&item_path));
                        self.collect(inner, &nested, "", &mut entry);
                        list.push(Value::Object(entry));
                    }
                }
                if self.state(&own).is_some() {
                    all.insert(step.name.clone(), Value::Array(list));
                }
                continue;
            }
            let outputs = self.outputs_of(&own);
            if !outputs.is_empty() {
                all.insert(step.name.clone(), Value::Object(outputs));
            }
            let nested = format!("{own}/");
            if inner.is_empty() {
                continue;
            }
            if path.starts_with(&nested) {
                around = Some((inner, nested));
            } else {
                self.collect(inner, &nested, path, all);
            }
        }
        // The nearest come last, and hide others of the same name.
        if let Some((inner, nested)) = around {
            self.collect(inner, &nested, path, all);
        }
    }

    /// The outputs of one step, secret ones filled in.
    fn outputs_of(&self, path: &str) -> Map<String, Value> {
        let Some(state) = self.state(path) else { return Map::new() };
        let mut outputs = state.outputs.clone();
        let is_secret = |value: &Value| value == super::step::SECRET;
        if outputs.values().any(is_secret)
            && let Some(secrets) = self.world.observed.secrets(path)
        {
            let secrets: BTreeMap<String, Value> = secrets.into_iter().collect();
            for (name, value) in &mut outputs {
                if let Some(secret) = secrets.get(name).filter(|_| is_secret(value)) {
                    *value = secret.clone();
                }
            }
        }
        outputs
    }
}
