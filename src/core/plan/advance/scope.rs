//! The variables of a step: `run`, `record` and `outputs`.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use super::super::run::ON_FAILURE;
use super::super::step_state::StepPhase;
use super::{Advancer, At};
use crate::package::plan::{Action, OnFailure, RAN, Step};
use crate::template::{Scope, Var};

impl Advancer<'_> {
    /// The variables of a step.
    pub(super) fn scope(&self, step: &Step, path: &str, at: &At<'_>) -> Scope {
        let attempt = self.state(path).map_or(1, |state| state.attempt.max(1));
        let mut run = json!({
            "id": self.stored.id,
            "name": self.run.name,
            "plan": at.plan.name,
            "cause": self.stored.cause.as_str(),
            "step": step.name,
            "attempt": attempt,
            "startedAt": self.stored.started_at,
            "params": if at.params.is_null() { json!({}) } else { at.params.clone() },
            "lost": self.stored.lost,
        });
        if let Some((failed, _)) = path.rsplit_once(ON_FAILURE)
            && let Some(state) = self.state(failed)
        {
            run["failure"] = json!({"step": failed, "reason": state.reason, "message": state.message});
        }
        let scope = at.scope.with("run", Var::Json(run));
        let scope = if self.fresh.is_empty() {
            scope
        } else {
            let record: Map<String, Value> = self.record().into_iter().collect();
            scope.with("record", Var::Json(Value::Object(record)))
        };
        scope.with("outputs", Var::Json(Value::Object(self.visible_outputs(path, at))))
    }

    /// The outputs of the steps that a step sees, and its own outputs: by name, and below the name of the step.
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

    /// The outputs of the steps of the plan. If several items of loops have an output, the item that contains the
    /// step counts.
    fn visible_outputs(&self, path: &str, at: &At<'_>) -> Map<String, Value> {
        let mut all = Map::new();
        if self.has_outputs || runs_plans(&at.plan.steps) {
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
            if step.is_loop() {
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
                        entry.extend(self.outputs_of(step, &item_path));
                        self.collect(inner, &nested, "", &mut entry);
                        list.push(Value::Object(entry));
                    }
                }
                if self.state(&own).is_some() {
                    all.insert(step.name.clone(), Value::Array(list));
                }
                continue;
            }
            let outputs = self.outputs_of(step, &own);
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

    /// The outputs of one step, secret ones filled in. A step that runs a plan also says whether the plan has
    /// run.
    fn outputs_of(&self, step: &Step, path: &str) -> Map<String, Value> {
        let state = self.state(path);
        let mut outputs = state.map(|state| state.outputs.clone()).unwrap_or_default();
        if matches!(step.action, Action::Plan(_)) {
            let ran = state.is_some_and(|state| state.phase == StepPhase::Succeeded);
            outputs.insert(RAN.to_owned(), ran.into());
        }
        let is_secret = |value: &Value| value == super::step::SECRET;
        if outputs.values().any(is_secret)
            && let Some(secrets) = self.inputs.cluster.secrets(path)
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

    /// The facts that a plan has recorded where a step of this run has run it, also in runs that this one
    /// retries.
    pub(super) fn recorded(&self, plan: &str, prefix: &str) -> Map<String, Value> {
        let mut keys = BTreeSet::new();
        self.recorded_by_plan(plan, prefix, &mut keys);
        let mut record = self.record();
        keys.into_iter().filter_map(|key| record.remove_entry(key)).collect()
    }

    fn recorded_by_plan<'k>(&'k self, plan: &str, prefix: &str, keys: &mut BTreeSet<&'k str>) {
        if let Some(plan) = self.plans.iter().find(|known| known.name == plan) {
            self.recorded_by(&plan.steps, prefix, keys);
        }
    }

    fn recorded_by<'k>(&'k self, steps: &'k [Step], prefix: &str, keys: &mut BTreeSet<&'k str>) {
        for step in steps {
            let own = format!("{prefix}{}", step.name);
            let items = self.state(&own).and_then(|state| state.items.as_deref()).filter(|_| step.is_loop());
            let paths = match items {
                // The rounds of a `repeat` record nothing for the step itself.
                Some(items) => (items.iter().map(|item| format!("{own}[{}]", item.key)))
                    .chain(step.repeat.is_some().then(|| own.clone()))
                    .collect(),
                None => vec![own],
            };
            for path in paths {
                let Some(state) = self.state(&path) else { continue };
                if state.phase == StepPhase::Succeeded {
                    keys.extend(step.record.iter().map(|(key, _)| key.as_str()));
                }
                match &step.action {
                    Action::Steps(_, inner) => self.recorded_by(inner, &format!("{path}/"), keys),
                    Action::Plan(call) if call.of.is_none() => {
                        self.recorded_by_plan(&call.plan, &format!("{path}/"), keys);
                    }
                    _ => {}
                }
                if let OnFailure::Plan(plan) = &step.on_failure {
                    self.recorded_by_plan(plan, &format!("{path}{ON_FAILURE}"), keys);
                }
            }
        }
    }
}

/// Whether one of the steps runs another plan.
fn runs_plans(steps: &[Step]) -> bool {
    steps.iter().any(|step| match &step.action {
        Action::Plan(_) => true,
        Action::Steps(_, inner) => runs_plans(inner),
        _ => false,
    })
}
