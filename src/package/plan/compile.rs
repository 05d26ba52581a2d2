//! Compiles `plans` of a resource to [`Plan`]s.

mod action;
mod http;
mod trigger;

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::Value;

use super::manifest::{self, StepName};
use super::{
    Action, Event, Expect, Loop, OnFailure, OnLoss, Output, Plan, RAN, Repeat, Retries, Step, Store,
    Strategy, Trigger,
};
use crate::compiler::{Compiler, Names, near};
use crate::crd;
use crate::decode::{At, Named};
use crate::diag::{Diagnostic, Location};
use crate::lint;
use crate::locate::place;
use crate::manifest::{TemplateText, VariableName};
use crate::template::Text;
use crate::validation::config_key;
use trigger::implied;

/// The maximum numbers of plans of a resource and of steps of a plan: more than a person writes.
const MAX_PLANS: usize = 100;
const MAX_STEPS: usize = 300;
/// The maximum depth of nested steps.
const MAX_DEPTH: usize = 8;
/// The default maximum number of rounds of a step with `repeat`.
const ROUNDS: u32 = 1_000;
/// The default wait before the first repetition.
const BACKOFF: Duration = Duration::from_secs(5);
/// The default maximum wait between two attempts.
pub(crate) const LONGEST_BACKOFF: Duration = Duration::from_secs(5 * 60);

impl Compiler<'_> {
    /// Compiles the plans of a resource.
    pub(crate) fn plans(
        &mut self,
        manifests: Vec<(At<String>, manifest::Plan)>,
        names: &Names<'_>,
    ) -> Vec<Plan> {
        if let Some((name, _)) = manifests.get(MAX_PLANS) {
            let message = format!("{} plans are more than {MAX_PLANS}", manifests.len());
            self.diagnostics.push(name.error("package::budget", message));
        }
        let mut plans: Vec<Plan> = Vec::with_capacity(manifests.len());
        for (name, manifest) in manifests.into_iter().take(MAX_PLANS) {
            if let Some(message) = StepName::problem(&name.value) {
                self.diagnostics.push(name.error("package::name", message));
            }
            plans.push(self.plan(&name, manifest, names));
        }
        plans
    }

    fn plan(&mut self, name: &At<String>, manifest: manifest::Plan, names: &Names<'_>) -> Plan {
        let triggers = match manifest.trigger {
            Some(triggers) => {
                triggers.0.into_iter().filter_map(|trigger| self.trigger(trigger, names)).collect()
            }
            None => implied(&name.value, &name.at),
        };
        let on_cleanup_failure = manifest.on_failure.and_then(|on| {
            if triggers.iter().any(|trigger: &Trigger| matches!(trigger.event, Event::Deleted)) {
                return Some(on.value);
            }
            let error =
                on.error("package::value", "onFailure of a plan is only for the plan that runs on deletion");
            self.diagnostics.push(error.help("remove it, or set onFailure on a step"));
            None
        });
        let steps = manifest.steps.0.map(|steps| self.steps(steps, names, 0)).unwrap_or_default();
        let total = count(&steps);
        if total > MAX_STEPS {
            let message = format!("{total} steps are more than {MAX_STEPS}");
            self.diagnostics.push(name.error("package::budget", message).help("split the plan"));
        }
        let exclusive = manifest.exclusive.is_none_or(|exclusive| exclusive.value);
        let chosen = manifest.affects_ready.as_ref();
        let affects_ready = self.plan_affects_ready(&name.value, chosen, exclusive, &triggers);
        Plan {
            name: name.value.clone(),
            triggers,
            params: manifest.params.and_then(|params| self.params(&params)),
            concurrency: manifest.concurrency.map(|concurrency| concurrency.value).unwrap_or_default(),
            exclusive,
            affects_ready,
            interruptible: manifest.interruptible.unwrap_or(true),
            priority: manifest.priority.map_or(0, |priority| priority.0),
            on_cleanup_failure,
            strategy: manifest.strategy.unwrap_or_default(),
            steps,
            location: name.at.clone(),
        }
    }

    /// Compiles the schema of the parameters, which may be anything that a CRD's schema of a field may be.
    fn params(&mut self, params: &At<manifest::ParamsSchema>) -> Option<Value> {
        let schema = params.value.0.to_json();
        let mut sound = true;
        for (path, message, help) in crd::check_schema(&schema) {
            sound = false;
            let span = place(&params.value.0, &path);
            let error = Diagnostic::error("package::params", message).at(&params.at.source, span);
            let path = if path.is_empty() { params.path.clone() } else { format!("{}.{path}", params.path) };
            self.diagnostics.push(Diagnostic { help, ..error.path(path) });
        }
        if sound && schema.get("type").is_none_or(|kind| kind != "object") {
            sound = false;
            let error = params.error("package::params", "the schema of the parameters is not of type object");
            let help = "write params: {type: object, properties: {target: {type: string}}}";
            self.diagnostics.push(error.help(help));
        }
        sound.then_some(schema)
    }

    /// Compiles the steps of a plan or of a phase.
    fn steps(&mut self, steps: At<Vec<manifest::Step>>, names: &Names<'_>, depth: usize) -> Vec<Step> {
        if steps.value.is_empty() && self.complete {
            let error = steps.error("package::empty", "there are no steps");
            self.diagnostics.push(error.help("add one: {name: all, apply: [...]}"));
        }
        if depth == MAX_DEPTH {
            let message = format!("steps are nested deeper than {MAX_DEPTH} levels");
            self.diagnostics
                .push(steps.error("package::budget", message).help("move them to a plan of their own"));
            return Vec::new();
        }
        let mut seen = BTreeSet::new();
        let mut found = Vec::with_capacity(steps.value.len());
        for step in steps.value {
            if !seen.insert(step.name.value.0.clone()) {
                let message = format!("two steps of the same list have the name `{}`", step.name.value.0);
                let error = step.name.error("package::duplicate", message);
                self.diagnostics.push(error.help("rename one of them"));
            }
            found.extend(self.step(step, names, depth));
        }
        found
    }

    fn step(&mut self, manifest: manifest::Step, names: &Names<'_>, depth: usize) -> Option<Step> {
        self.modifiers(&manifest);
        let name = &manifest.name;
        let when = self.optional(manifest.when.as_ref());
        let unless = self.optional(manifest.unless.as_ref());
        let for_each = match &manifest.for_each {
            Some(for_each) => Some(self.step_loop(for_each)?),
            None => None,
        };
        let repeat = match &manifest.repeat {
            Some(repeat) => Some(self.repeat(repeat)?),
            None => None,
        };
        let outputs = self.outputs(manifest.outputs.as_ref());
        let mut named = manifest.outputs.iter().flat_map(|outputs| &outputs.0);
        if let Some((name, _)) = named.find(|(name, _)| name.value == RAN && manifest.plan.is_some()) {
            let error = name.error("package::reserved", format!("each plan step has the output `{RAN}`"));
            self.diagnostics.push(error.help("choose another name"));
        }
        let mut record = Vec::new();
        for (key, value) in manifest.record.iter().flat_map(|record| &record.0) {
            if let Some(message) = name_problem(&key.value) {
                self.diagnostics.push(key.error("package::name", message));
            }
            record.extend(self.expression(&value.0).map(|value| (key.value.clone(), value)));
        }
        let store = match &manifest.store {
            Some(store) => Some(self.store(store, names)?),
            None => None,
        };
        let expect = match manifest.expect.as_ref().map(|expect| &expect.value) {
            Some(expect) => self.expected(expect),
            None => None,
        };
        let on_failure = match &manifest.on_failure {
            None => OnFailure::Fail,
            Some(on) => self.on_failure(on, names),
        };
        if let Some(exec) = &manifest.exec
            && !manifest.idempotent.as_ref().is_some_and(|idempotent| idempotent.value)
            && when.is_none()
            && unless.is_none()
        {
            let message = format!("`{}` may run its command twice after a crash", name.value.0);
            self.diagnostics.push(exec.error("package::idempotent", message).help(
                "add idempotent: true if that does no harm, or a `when` or `unless` that reads what the command changes",
            ));
        }
        Some(Step {
            timeout: manifest.timeout.as_ref().and_then(|timeout| self.text(&timeout.0)),
            retries: manifest.retries.as_ref().map(|retries| Retries {
                limit: retries.value.limit.map(|limit| limit.0),
                backoff: retries.value.backoff.map_or(BACKOFF, |backoff| backoff.0),
                max_backoff: retries.value.max_backoff.map_or(LONGEST_BACKOFF, |backoff| backoff.0),
            }),
            until: self.optional(manifest.until.as_ref()),
            message: self.template_text(manifest.message.as_ref()),
            idempotent: manifest.idempotent.as_ref().is_some_and(|idempotent| idempotent.value),
            force: self.optional(manifest.force.as_ref()),
            interruptible: manifest.interruptible,
            name: name.value.0.clone(),
            location: name.at.clone(),
            when,
            unless,
            for_each,
            repeat,
            on_failure,
            outputs,
            store,
            record,
            expect,
            action: self.action(manifest, names, depth)?,
        })
    }

    /// Reports a step without an action, a step with two actions, and modifiers that do not belong to the
    /// action.
    fn modifiers(&mut self, step: &manifest::Step) {
        let actions = step.actions();
        let name = &step.name;
        let action = match actions.as_slice() {
            [(action, _)] => *action,
            [] if step.record.as_ref().is_some_and(|record| !record.0.is_empty()) => "record",
            [] => {
                if self.complete {
                    let message = format!("the step `{}` does nothing", name.value.0);
                    let help = "add an action: steps, apply, delete, job, exec, http, wait, patch, plan, approve, fail, or \
                                only record";
                    self.diagnostics.push(name.error("package::missing", message).help(help));
                }
                return;
            }
            [(first, _), (second, at), ..] => {
                let message = format!("the step `{}` has two actions: {first} and {second}", name.value.0);
                let error =
                    Diagnostic::error("package::value", message).located(at.0.clone()).path(at.1.clone());
                self.diagnostics.push(error.help("make them two steps"));
                return;
            }
        };
        let modifiers: [(&str, bool, &[&str]); 12] = [
            ("strategy", step.strategy.is_some(), &["steps"]),
            ("repeat", step.repeat.is_some(), &["steps"]),
            ("until", step.until.is_some(), &["apply"]),
            ("retries", step.retries.is_some(), &["job", "exec", "http", "patch"]),
            ("outputs", step.outputs.is_some(), &["job", "exec", "http", "plan"]),
            ("store", step.store.is_some(), &["exec", "http"]),
            ("expect", step.expect.is_some(), &["exec", "http"]),
            ("force", step.force.is_some(), &["delete"]),
            ("idempotent", step.idempotent.is_some(), &["exec"]),
            (
                "timeout",
                step.timeout.is_some(),
                &["steps", "apply", "delete", "job", "exec", "http", "wait", "patch", "plan", "approve"],
            ),
            (
                "message",
                step.message.is_some(),
                &["steps", "apply", "delete", "job", "exec", "http", "wait", "patch", "plan"],
            ),
            ("onFailure", step.on_failure.is_some() && action == "record", &[]),
        ];
        for (modifier, _, of) in modifiers.iter().filter(|(_, given, of)| *given && !of.contains(&action)) {
            let message = format!("`{modifier}` has no effect on the {action} step `{}`", name.value.0);
            let help = match *modifier {
                "repeat" => "put the step into the `steps` of a step with `repeat`".to_owned(),
                "until" => "remove it, or add a step {name: ..., wait: {until: ...}}".to_owned(),
                "message" if action == "approve" => "write approve: {message: ...}".to_owned(),
                "message" if action == "fail" => "write fail: {message: ...}".to_owned(),
                _ if of.is_empty() => "remove it".to_owned(),
                _ => format!("remove it: it belongs to {}", of.join(", ")),
            };
            self.diagnostics.push(name.error("package::value", message).help(help));
        }
        if let Some(repeat) = step.repeat.as_ref().filter(|_| step.for_each.is_some()) {
            let error = repeat.error("package::value", "a step has `forEach` or `repeat`, not both");
            self.diagnostics.push(error.help("put a step with the one into the `steps` of the other"));
        }
        if let Some(expect) = &step.expect
            && action == "exec"
            && matches!(expect.value, manifest::Expect::Statuses(_))
        {
            let error = expect.error("package::value", "statuses are for http; this is an exec step");
            self.diagnostics.push(error.help("write an expression: expect: exitCode == 0"));
        }
    }

    fn step_loop(&mut self, manifest: &manifest::StepForEach) -> Option<Loop> {
        let in_ = manifest.list.0.as_ref().and_then(|list| self.expression(list));
        self.complete &= in_.is_some(); // otherwise the name of the item is unknown
        let as_ = self.item_name(manifest.name.as_ref());
        let max_parallel = manifest.max_parallel.as_ref().and_then(|most| match most {
            manifest::Parallel::Fixed(number) => Some(Text::literal((*number).into())),
            manifest::Parallel::Template(text) => self.text(text),
        });
        Some(Loop { in_: in_?, as_, max_parallel })
    }

    fn repeat(&mut self, manifest: &At<manifest::StepRepeat>) -> Option<Repeat> {
        let repeat = &manifest.value;
        let pick = repeat.pick.0.as_ref().and_then(|pick| self.expression(pick));
        let until = repeat.until.0.as_ref().and_then(|until| self.expression(until));
        self.complete &= pick.is_some() && until.is_some(); // otherwise the name of the item is unknown
        let as_ = self.item_name(repeat.name.as_ref());
        let limit = repeat.limit.map_or(ROUNDS, |limit| limit.0);
        Some(Repeat { pick: pick?, as_, until: until?, limit })
    }

    fn store(&mut self, store: &At<manifest::StepStore>, names: &Names<'_>) -> Option<Store> {
        let child = self.member(&store.value.child, names);
        let mut data = Vec::new();
        for (key, value) in &store.value.data.0.as_ref()?.0 {
            if config_key(&key.value).is_some() {
                let error =
                    key.error("package::name", format!("`{}` cannot be a key of a Secret", key.value));
                self.diagnostics.push(error.help("use letters, digits, hyphens, underscores and dots"));
            }
            data.extend(self.expression(&value.0).map(|value| (key.value.clone(), value)));
        }
        if data.is_empty() && self.complete {
            let error = store.error("package::empty", "nothing is stored");
            self.diagnostics.push(error.help("write data: {token: json.token}"));
        }
        Some(Store { child: child?, data })
    }

    fn item_name(&mut self, name: Option<&At<VariableName>>) -> String {
        let Some(name) = name else { return "item".to_owned() };
        let item = name.value.0.as_str();
        if lint::ROOTS.contains(&item) || super::ANSWERS.contains(&item) {
            let error = name.error("package::reserved", format!("`{item}` is a reserved variable"));
            self.diagnostics.push(error.help("choose another name"));
        }
        item.to_owned()
    }

    fn outputs(&mut self, outputs: Option<&Named<manifest::OutputValue>>) -> Vec<Output> {
        let mut found = Vec::new();
        for (name, value) in outputs.into_iter().flat_map(|outputs| &outputs.0) {
            if let Some(message) = name_problem(&name.value) {
                self.diagnostics.push(name.error("package::name", message));
            }
            let (shown, secret) = match value {
                manifest::OutputValue::Expression(source) => {
                    (self.expression(source).map(|value| (value, None)), false)
                }
                manifest::OutputValue::Map(map) => {
                    let shown = match (&map.value, &map.json_path) {
                        (Some(source), None) => self.expression(&source.0).map(|value| (value, None)),
                        (None, Some(source)) => {
                            let result = self.engine.json_path(&source.value, &source.at);
                            self.note(result, &source.path)
                        }
                        _ => {
                            let message = format!("the output `{}` needs `value` or `jsonPath`", name.value);
                            self.diagnostics.push(name.error("package::value", message));
                            None
                        }
                    };
                    (shown, map.secret.unwrap_or_default())
                }
            };
            found.extend(shown.map(|(value, search)| Output {
                name: name.value.clone(),
                value,
                search,
                secret,
            }));
        }
        found
    }

    /// Compiles `expect` of a step or an observation.
    pub(crate) fn expected(&mut self, expect: &manifest::Expect) -> Option<Expect> {
        Some(match expect {
            manifest::Expect::Statuses(statuses) => Expect::Statuses(statuses.clone()),
            manifest::Expect::Holds(source) => Expect::Holds(self.expression(source)?),
        })
    }

    fn on_failure(&mut self, on: &At<String>, names: &Names<'_>) -> OnFailure {
        match on.value.as_str() {
            "Fail" => OnFailure::Fail,
            "Continue" => OnFailure::Continue,
            name => {
                self.known_plan(on, name, names, &["Fail", "Continue"]);
                OnFailure::Plan(name.to_owned())
            }
        }
    }

    /// Reports a name that is neither a plan nor one of the words that are allowed instead.
    fn known_plan<T>(&mut self, at: &At<T>, name: &str, names: &Names<'_>, words: &[&str]) {
        if names.plans.iter().any(|plan| plan == name) || !self.complete {
            return;
        }
        let error = at.error("package::unknown-plan", format!("there is no plan `{name}`"));
        let known = names.plans.iter().map(String::as_str).chain(words.iter().copied());
        self.diagnostics.push(near(error, name, known));
    }

    /// Compiles `onLoss` of a child.
    pub(crate) fn on_loss(&mut self, source: Option<&TemplateText>, names: &Names<'_>) -> OnLoss {
        let Some(TemplateText(source)) = source else { return OnLoss::Recreate };
        if source.value.contains("{{") {
            return self.text(source).map_or(OnLoss::Recreate, OnLoss::Computed);
        }
        if source.value == "Recreate" {
            return OnLoss::Recreate;
        }
        self.known_plan(source, &source.value, names, &["Recreate"]);
        OnLoss::Plan(source.value.clone())
    }

    /// Reports each `onLoss` that may name a plan in a package without rollout plans. Without a run that
    /// records which objects have existed, no object would be recognised as lost, and it would simply be
    /// created again.
    pub(crate) fn losses_need_rollouts<'a>(
        &mut self,
        children: impl Iterator<Item = (Option<&'a TemplateText>, &'a OnLoss)>,
        plans: &[Plan],
    ) {
        if !self.complete
            || plans.iter().any(|plan| plan.triggers.iter().any(|trigger| trigger.event.is_rollout()))
        {
            return;
        }
        for (source, on_loss) in children {
            if let (Some(TemplateText(source)), OnLoss::Plan(_) | OnLoss::Computed(_)) = (source, on_loss) {
                let error = source.error(
                    "package::loss-without-rollout",
                    "no plan rolls this child out, so its loss is not noticed",
                );
                self.diagnostics.push(error.help(
                    "add a plan `deploy`: it runs when an instance is created, and records what exists",
                ));
            }
        }
    }

    fn action(&mut self, step: manifest::Step, names: &Names<'_>, depth: usize) -> Option<Action> {
        if let Some(steps) = step.steps {
            let strategy = step.strategy.map_or(Strategy::Serial, |strategy| strategy.value);
            return Some(Action::Steps(strategy, self.steps(steps, names, depth + 1)));
        }
        if let Some(members) = step.apply {
            return Some(Action::Apply(self.members(&members, names)));
        }
        if let Some(members) = step.delete {
            return Some(Action::Delete(self.members(&members, names)));
        }
        if let Some(job) = step.job {
            return self.job(&job.value.template, names).map(|template| Action::Job { template });
        }
        if let Some(exec) = step.exec {
            return self.exec(&exec, names).map(Action::Exec);
        }
        if let Some(http) = step.http {
            return self.http(&http, names).map(|http| Action::Http(Box::new(http)));
        }
        if let Some(wait) = step.wait {
            return self.wait(&wait);
        }
        if let Some(patch) = step.patch {
            return self.patch(&patch.value, names).map(|patch| Action::Patch(Box::new(patch)));
        }
        if let Some(call) = step.plan {
            return self.call(&call.value, names).map(Action::Plan);
        }
        if let Some(At { value: approve, .. }) = step.approve {
            return Some(Action::Approve {
                message: self.text(&approve.message.0?.0)?,
                count: approve.count.map_or(1, |count| count.0),
                not_requester: approve.not_requester.unwrap_or_default(),
                service_accounts: approve.service_accounts.unwrap_or_default(),
                groups: approve.groups.unwrap_or_default().into_iter().map(|group| group.value).collect(),
            });
        }
        if let Some(fail) = step.fail {
            return self.text(&fail.value.message.0?.0).map(Action::Fail);
        }
        Some(Action::Record)
    }

    fn template_text(&mut self, source: Option<&TemplateText>) -> Option<Text> {
        source.and_then(|source| self.text(&source.0))
    }
}

impl manifest::Step {
    /// The actions of the step, with their locations and paths.
    fn actions(&self) -> Vec<(&'static str, (Location, String))> {
        fn at<T>(at: &At<T>) -> (Location, String) {
            (at.at.clone(), at.path.clone())
        }
        let all = [
            ("steps", self.steps.as_ref().map(at)),
            ("apply", self.apply.as_ref().map(at)),
            ("delete", self.delete.as_ref().map(at)),
            ("job", self.job.as_ref().map(at)),
            ("exec", self.exec.as_ref().map(at)),
            ("http", self.http.as_ref().map(at)),
            ("wait", self.wait.as_ref().map(at)),
            ("patch", self.patch.as_ref().map(at)),
            ("plan", self.plan.as_ref().map(at)),
            ("approve", self.approve.as_ref().map(at)),
            ("fail", self.fail.as_ref().map(at)),
        ];
        all.into_iter().filter_map(|(action, at)| Some((action, at?))).collect()
    }
}

fn count(steps: &[Step]) -> usize {
    let inner = |step: &Step| match &step.action {
        Action::Steps(_, steps) => count(steps),
        _ => 0,
    };
    steps.iter().map(|step| 1 + inner(step)).sum()
}

/// The problem of the name of an output or of a record. A name with hyphens is read as `outputs.x['a-b']`.
fn name_problem(name: &str) -> Option<&'static str> {
    let first = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    let fits =
        first && name.len() <= 63 && name.chars().all(|c| c.is_ascii_alphanumeric() || "_-".contains(c));
    (!fits).then_some(
        "must be letters, digits, underscores and hyphens, beginning with a letter or an underscore, at most 63 characters",
    )
}
