//! Compiles `plans` of a resource to [`Plan`]s.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::manifest::{self, StepName, TriggerEntry};
use super::{
    Action, Auth, Body, Call, ChangedPath, Event, Exec, Expect, Http, Loop, Members, Of, OnFailure, OnLoss,
    Output, Patch, Plan, Retries, Step, Strategy, Tls, Trigger, Until,
};
use crate::api::Gvk;
use crate::crd::{self, Lookup};
use crate::diag::{Diagnostic, Location, did_you_mean};
use crate::package::compile::{Compiler, place};
use crate::package::decode::{At, Must, Named};
use crate::package::lint;
use crate::package::manifest::{TemplateText, Tree};
use crate::template::Text;

/// More plans, or steps of one plan, than a person writes.
const MAX_PLANS: usize = 100;
const MAX_STEPS: usize = 300;
/// How deep steps may be nested.
const MAX_DEPTH: usize = 8;
/// The wait before the first repetition.
const BACKOFF: Duration = Duration::from_secs(5);
/// The longest wait between two attempts, unless the package says otherwise.
pub(crate) const LONGEST_BACKOFF: Duration = Duration::from_secs(5 * 60);
/// The most bytes of an answer.
const MAX_BYTES: u32 = 1 << 20;
/// How long one attempt of an HTTP request may take.
const ATTEMPT: Duration = Duration::from_secs(30);

/// What the plans of a resource may name.
pub(in crate::package) struct Names<'a> {
    /// The children, and whether they have a forEach.
    pub(in crate::package) children: Vec<(&'a str, bool)>,
    /// The refs.
    pub(in crate::package) refs: Vec<&'a str>,
    /// The plans.
    pub(in crate::package) plans: Vec<String>,
    /// The schema of the instances.
    pub(in crate::package) schema: Option<&'a Value>,
    /// Whether instances are namespaced.
    pub(in crate::package) namespaced: bool,
}

impl Compiler<'_> {
    /// Compiles the plans of a resource.
    pub(in crate::package) fn plans(
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
        Plan {
            name: name.value.clone(),
            triggers,
            params: manifest.params.and_then(|params| self.params(&params)),
            concurrency: manifest.concurrency.map(|concurrency| concurrency.value).unwrap_or_default(),
            exclusive,
            interruptible: manifest.interruptible.unwrap_or(true),
            on_cleanup_failure,
            strategy: manifest.strategy.unwrap_or_default(),
            steps,
            location: name.at.clone(),
        }
    }

    /// The schema of the parameters: what a CRD's schema of a field may be.
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

    fn trigger(&mut self, entry: At<TriggerEntry>, names: &Names<'_>) -> Option<Trigger> {
        let At { value, at: location, path } = entry;
        let trigger = match value {
            TriggerEntry::Word(name) => return Some(Trigger { event: event(name), when: None, location }),
            TriggerEntry::Map(trigger) => *trigger,
        };
        let whole = At { value: (), at: location.clone(), path };
        let kinds = [
            ("event", trigger.event.is_some()),
            ("changed", trigger.changed.is_some()),
            ("condition", trigger.condition.is_some()),
            ("schedule", trigger.schedule.is_some()),
        ];
        let kinds: Vec<&str> = kinds.into_iter().filter_map(|(kind, given)| given.then_some(kind)).collect();
        let [kind] = kinds.as_slice() else {
            let (message, help) = if kinds.is_empty() {
                let message = "the trigger has none of `event`, `changed`, `condition` and `schedule`";
                (message.to_owned(), "add one, for example {changed: [spec.size]}")
            } else {
                (format!("the trigger has {}", kinds.join(" and ")), "make it a list of two triggers")
            };
            self.diagnostics.push(whole.error("package::value", message).help(help));
            return None;
        };
        let belongs = [
            ("for", "condition", trigger.hold.is_some()),
            ("cooldown", "condition", trigger.cooldown.is_some()),
            ("during", "condition", trigger.during.is_some()),
            ("timeZone", "schedule", trigger.time_zone.is_some()),
            ("startingDeadline", "schedule", trigger.starting_deadline.is_some()),
            ("suspend", "schedule", trigger.suspend.is_some()),
        ];
        for (key, of, _) in belongs.iter().filter(|(_, of, given)| *given && of != kind) {
            let error = whole.error("package::value", format!("`{key}` requires `{of}`"));
            self.diagnostics.push(error.help("remove it"));
        }
        let when = self.optional(trigger.when.as_ref());
        let duration = |interval: Option<At<manifest::Interval>>| interval.map(|interval| interval.value.0);
        let event = if let Some(name) = trigger.event {
            event(name)
        } else if let Some(paths) = trigger.changed {
            if paths.is_empty() {
                let error = whole.error("package::empty", "`changed` lists no path");
                self.diagnostics.push(error.help("add one, or write changed for any path of the spec"));
            }
            Event::Changed(paths.iter().filter_map(|path| self.changed(path, names)).collect())
        } else if let Some(condition) = &trigger.condition {
            Event::Condition {
                condition: self.expression(condition)?,
                hold: duration(trigger.hold).unwrap_or_default(),
                cooldown: duration(trigger.cooldown).unwrap_or_default(),
                always: trigger.during.is_some(),
            }
        } else {
            let schedule = trigger.schedule.as_ref()?;
            Event::Schedule {
                schedule: self.text(&schedule.0)?,
                time_zone: self.template_text(trigger.time_zone.as_ref()),
                starting_deadline: duration(trigger.starting_deadline),
                suspend: self.optional(trigger.suspend.as_ref()),
            }
        };
        Some(Trigger { event, when, location })
    }

    /// A path of the spec, or a ref as a whole.
    fn changed(&mut self, path: &At<String>, names: &Names<'_>) -> Option<ChangedPath> {
        let mut keys = path.value.split('.');
        let (root, keys) = (keys.next().unwrap_or_default(), keys.collect::<Vec<_>>());
        if path.value.contains(['[', '{', '(', ' ', '|']) || keys.iter().any(|key| key.is_empty()) {
            let error = path.error("package::value", format!("`{}` is not a path of the spec", path.value));
            self.diagnostics.push(error.help("write names joined by dots: spec.pod.resources"));
            return None;
        }
        match (root, keys.as_slice()) {
            ("spec", keys) => {
                let full: Vec<&str> = std::iter::once("spec").chain(keys.iter().copied()).collect();
                if let Some(schema) = names.schema
                    && let Lookup::Unknown { candidates, .. } = crd::lookup(schema, &full)
                {
                    let message = format!("the CRD's schema has no {}", path.value);
                    let error = path.error("package::unknown-path", message);
                    let last = full.last().copied().unwrap_or_default();
                    let near = did_you_mean(last, candidates.iter().map(String::as_str));
                    let help = near.map(|near| format!("did you mean `{near}`?"));
                    self.diagnostics.push(Diagnostic { help, ..error });
                }
                Some(ChangedPath::Spec(full.into_iter().map(str::to_owned).collect()))
            }
            ("refs", [id]) => {
                if self.complete && !names.refs.contains(id) {
                    let error = path.error("package::unknown-ref", format!("there is no ref `{id}`"));
                    self.diagnostics.push(near(error, id, names.refs.iter().copied()));
                }
                Some(ChangedPath::Ref((*id).to_owned()))
            }
            ("refs", [id, ..]) => {
                let error = path.error("package::value", "a trigger takes a ref as a whole");
                self.diagnostics.push(error.help(format!("write refs.{id}")));
                None
            }
            _ => {
                let message = format!("`{}` is neither a path of the spec nor a ref", path.value);
                let help = "write spec.x or refs.x; for live objects and observations use {condition: ...}";
                self.diagnostics.push(path.error("package::value", message).help(help));
                None
            }
        }
    }

    /// Steps side by side: a plan's, or a phase's.
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
                let message = format!("two steps beside each other have the name `{}`", step.name.value.0);
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
        let outputs = self.outputs(manifest.outputs.as_ref());
        let mut record = Vec::new();
        for (key, value) in manifest.record.iter().flat_map(|record| &record.0) {
            if let Some(message) = variable_problem(&key.value) {
                self.diagnostics.push(key.error("package::name", message));
            }
            record.extend(self.expression(&value.0).map(|value| (key.value.clone(), value)));
        }
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
            name: name.value.0.clone(),
            location: name.at.clone(),
            when,
            unless,
            for_each,
            on_failure,
            outputs,
            record,
            expect,
            action: self.action(manifest, names, depth)?,
        })
    }

    /// Reports a step without an action, one with two, and modifiers that its action does not have.
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
        let calls: &[&str] = &["job", "exec", "http"];
        let modifiers: [(&str, bool, &[&str]); 9] = [
            ("strategy", step.strategy.is_some(), &["steps"]),
            ("until", step.until.is_some(), &["apply"]),
            ("retries", step.retries.is_some(), calls),
            ("outputs", step.outputs.is_some(), calls),
            ("expect", step.expect.is_some(), &["exec", "http"]),
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
                "until" => "remove it, or add a step {name: ..., wait: {until: ...}}".to_owned(),
                "message" if action == "approve" => "write approve: {message: ...}".to_owned(),
                "message" if action == "fail" => "write fail: {message: ...}".to_owned(),
                _ if of.is_empty() => "remove it".to_owned(),
                _ => format!("remove it: it belongs to {}", of.join(", ")),
            };
            self.diagnostics.push(name.error("package::value", message).help(help));
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
        self.complete &= in_.is_some(); // else the name of the item is not known
        let as_ = manifest.name.as_ref().map_or("item", |name| name.value.0.as_str()).to_owned();
        if let Some(name) = &manifest.name
            && (lint::ROOTS.contains(&as_.as_str()) || super::ANSWERS.contains(&as_.as_str()))
        {
            let error = name.error("package::reserved", format!("`{as_}` is a reserved variable"));
            self.diagnostics.push(error.help("choose another name"));
        }
        let max_parallel = manifest.max_parallel.as_ref().map_or(1, |max| max.value.0);
        Some(Loop { in_: in_?, as_, max_parallel: usize::try_from(max_parallel).unwrap_or(1) })
    }

    fn outputs(&mut self, outputs: Option<&Named<manifest::OutputValue>>) -> Vec<Output> {
        let mut found = Vec::new();
        for (name, value) in outputs.into_iter().flat_map(|outputs| &outputs.0) {
            if let Some(message) = variable_problem(&name.value) {
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

    /// What a step or an observation expects of an answer.
    pub(in crate::package) fn expected(&mut self, expect: &manifest::Expect) -> Option<Expect> {
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

    /// Reports a plan that does not exist; `words` may stand in its place.
    fn known_plan<T>(&mut self, at: &At<T>, name: &str, names: &Names<'_>, words: &[&str]) {
        if names.plans.iter().any(|plan| plan == name) || !self.complete {
            return;
        }
        let error = at.error("package::unknown-plan", format!("there is no plan `{name}`"));
        let known = names.plans.iter().map(String::as_str).chain(words.iter().copied());
        self.diagnostics.push(near(error, name, known));
    }

    /// Compiles `onLoss` of a child.
    pub(in crate::package) fn on_loss(&mut self, source: Option<&TemplateText>, names: &Names<'_>) -> OnLoss {
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

    /// Reports each `onLoss` that may name a plan in a package where no plan rolls out: no run records what has existed, so
    /// nothing would be lost, and every object would simply be created again.
    pub(in crate::package) fn losses_need_rollouts<'a>(
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
            return self.http(&http).map(|http| Action::Http(Box::new(http)));
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
            });
        }
        if let Some(fail) = step.fail {
            return self.text(&fail.value.message.0?.0).map(Action::Fail);
        }
        Some(Action::Record)
    }

    fn members(&mut self, members: &At<Vec<At<manifest::Members>>>, names: &Names<'_>) -> Vec<Members> {
        if members.value.is_empty() && self.complete {
            let error = members.error("package::empty", "the list names no child");
            self.diagnostics.push(error.help("add the id of a child"));
        }
        members.value.iter().filter_map(|member| self.member(member, names)).collect()
    }

    /// A child or one member of it.
    pub(in crate::package) fn member(
        &mut self,
        source: &At<manifest::Members>,
        names: &Names<'_>,
    ) -> Option<Members> {
        let manifest::Members { child, key } = &source.value;
        let has_loop = names.children.iter().find(|(id, _)| id == child).map(|(_, has_loop)| *has_loop);
        match has_loop {
            None if self.complete => {
                let error = source.error("package::unknown-child", format!("there is no child `{child}`"));
                self.diagnostics.push(near(error, child, names.children.iter().map(|(id, _)| *id)));
            }
            Some(false) if key.is_some() => {
                let message = format!("`{child}` has no forEach, so it has no members");
                self.diagnostics.push(source.error("package::value", message).help(format!("write {child}")));
            }
            _ => {}
        }
        let key = match key {
            Some(key) => Some(self.member_key(key, source)?),
            None => None,
        };
        Some(Members { child: child.clone(), key, location: source.at.clone() })
    }

    /// The key of a member: an integer, a string in quotes or without, or a template.
    fn member_key(&mut self, key: &str, source: &At<manifest::Members>) -> Option<Text> {
        let quoted = ['"', '\''].into_iter().find_map(|quote| key.strip_prefix(quote)?.strip_suffix(quote));
        if let Some(inner) = quoted {
            return Some(Text::literal(Value::String(inner.to_owned())));
        }
        if let Ok(number) = key.parse::<i64>() {
            return Some(Text::literal(number.into()));
        }
        self.text(&At { value: key.to_owned(), at: source.at.clone(), path: source.path.clone() })
    }

    fn job(&mut self, template: &Must<At<String>>, names: &Names<'_>) -> Option<String> {
        let path = template.0.as_ref()?;
        self.file(path, "templates/")?;
        let engine = Arc::clone(&self.engine);
        let Some(template) = engine.template(&path.value) else {
            self.readable = false; // it does not compile, which was said
            return None;
        };
        let kinds = self.note(template.kinds().map(<[Gvk]>::to_vec), &path.path)?;
        if let Some(other) = kinds.iter().find(|kind| !kind.is("batch/v1", "Job")) {
            let message = format!("the template of a job step is a {}, not a Job", other.kind);
            let help = "write apiVersion: batch/v1 and kind: Job; other objects are children";
            self.diagnostics.push(path.error("package::job", message).help(help));
        }
        self.generates_nothing(&template.reads().generates);
        if names.namespaced {
            let outline = self.outlines.get(&path.value);
            let own = crate::package::Namespaces::of(template.source(), outline, &mut self.diagnostics);
            if !own.is_own() {
                let message = "the Job of a namespaced instance is in the namespace of the instance";
                self.diagnostics
                    .push(path.error("package::namespace", message).help("remove metadata.namespace"));
            }
        }
        Some(path.value.clone())
    }

    /// A command in a container: of a step, or of an observation.
    pub(in crate::package) fn exec(&mut self, exec: &At<manifest::Exec>, names: &Names<'_>) -> Option<Exec> {
        let At { value: manifest, .. } = exec;
        let child = self.member(&manifest.child, names);
        let ordinal = match &manifest.ordinal {
            None => None,
            Some(Tree::Text(source)) => Some(self.text(source)?),
            Some(Tree::Constant(value @ Value::Number(_))) => Some(Text::literal(value.clone())),
            Some(_) => {
                let error = exec
                    .error("package::type", "the ordinal must be a number, or a template that yields one");
                self.diagnostics.push(error.help("write ordinal: 0"));
                return None;
            }
        };
        let command = manifest.command.0.as_ref()?;
        match &command.value {
            Tree::List(items) if items.is_empty() => {
                self.diagnostics.push(command.error("package::empty", "the command is empty"));
            }
            Tree::List(items) => {
                if items.iter().any(|item| !matches!(item, Tree::Text(_) | Tree::Constant(_))) {
                    let error =
                        command.error("package::type", "an argument must be a string, a number or a boolean");
                    self.diagnostics.push(error.help("use to_json for a list or a map"));
                }
            }
            Tree::Text(source) if source.value.contains("{{") => {}
            Tree::Text(source) => {
                let words: Vec<&str> = source.value.split_whitespace().collect();
                let error = command.error("package::type", "the command must be a list: no shell splits it");
                self.diagnostics.push(error.help(format!("write [{}]", words.join(", "))));
            }
            Tree::Map(_) | Tree::Constant(_) => {
                self.diagnostics
                    .push(command.error("package::type", "the command must be a list of strings"));
            }
        }
        Some(Exec {
            ordinal,
            container: self.template_text(manifest.container.as_ref()),
            command: self.tree(&command.value)?,
            stdin: self.template_text(manifest.stdin.as_ref()),
            child: child?,
        })
    }

    /// An HTTP request: of a step, or of an observation.
    pub(in crate::package) fn http(&mut self, http: &At<manifest::Http>) -> Option<Http> {
        let manifest = &http.value;
        let bodies = [
            ("json", manifest.json.is_some()),
            ("form", manifest.form.is_some()),
            ("body", manifest.body.is_some()),
        ];
        let bodies: Vec<&str> = bodies.into_iter().filter_map(|(key, given)| given.then_some(key)).collect();
        if let [first, second, ..] = bodies.as_slice() {
            let message = format!("the request has two bodies: {first} and {second}");
            self.diagnostics.push(http.error("package::value", message).help("remove one of them"));
        }
        let method = manifest.method.unwrap_or(manifest::Method::GET);
        if let (Some(body), manifest::Method::GET | manifest::Method::HEAD) = (bodies.first(), method)
            && self.complete
        {
            let message = format!("a {method:?} request has no body, and this has `{body}`");
            self.diagnostics
                .push(http.error("package::value", message).help("set method: POST, PUT or PATCH"));
        }
        let url = manifest.url.0.as_ref().and_then(|url| self.text(&url.0));
        let body = if let Some(json) = &manifest.json {
            self.tree(&json.value).map(Body::Json)
        } else if let Some(form) = &manifest.form {
            Some(Body::Form(self.named(&form.value)))
        } else if let Some(body) = &manifest.body {
            self.text(&body.0).map(Body::Raw)
        } else {
            Some(Body::Empty)
        };
        let auth = manifest.auth.as_ref().map(|auth| self.auth(auth));
        let headers = manifest.headers.as_ref().map(|headers| self.headers(headers)).unwrap_or_default();
        let hosts = manifest.hosts.iter().flatten().filter_map(|host| self.host(host)).collect();
        let key = self.template_text(manifest.key.as_ref());
        let tls = manifest.tls.as_ref().map(|tls| Tls {
            ca: self.template_text(tls.ca.as_ref()),
            cert: self.template_text(tls.cert.as_ref()),
            key: self.template_text(tls.key.as_ref()),
        });
        if let Some(tls) = &manifest.tls
            && tls.cert.is_some() != tls.key.is_some()
        {
            let error =
                http.error("package::missing", "a client certificate needs both tls.cert and tls.key");
            self.diagnostics.push(error.help("add the other one"));
        }
        Some(Http {
            method: format!("{method:?}"),
            url: url?,
            hosts,
            headers,
            body: body?,
            key,
            auth: auth.map_or(Some(None), |auth| auth.map(Some))?,
            tls,
            redirects: manifest.redirects.map_or(0, |redirects| redirects.0),
            max_bytes: usize::try_from(manifest.max_bytes.map_or(MAX_BYTES, |bytes| bytes.0))
                .unwrap_or(usize::MAX),
            attempt_timeout: manifest.timeout.map_or(ATTEMPT, |timeout| timeout.0),
        })
    }

    fn auth(&mut self, auth: &At<manifest::Auth>) -> Option<Auth> {
        match (&auth.value.bearer, &auth.value.basic) {
            (Some(bearer), None) => self.text(&bearer.0).map(Auth::Bearer),
            (None, Some(basic)) => {
                let username = self.text(&basic.username.0.as_ref()?.0);
                let password = self.text(&basic.password.0.as_ref()?.0);
                Some(Auth::Basic(username?, password?))
            }
            (None, None) => {
                let error = auth.error("package::missing", "auth has neither `bearer` nor `basic`");
                self.diagnostics
                    .push(error.help("write auth: {bearer: \"{{ refs.token.data.token | b64decode }}\"}"));
                None
            }
            (Some(_), Some(_)) => {
                let error = auth.error("package::value", "auth has `bearer` and `basic`");
                self.diagnostics.push(error.help("remove one of them"));
                None
            }
        }
    }

    fn named(&mut self, named: &Named<TemplateText>) -> Vec<(String, Text)> {
        let text =
            |(name, value): &(At<String>, TemplateText)| Some((name.value.clone(), self.text(&value.0)?));
        named.0.iter().filter_map(text).collect()
    }

    fn headers(&mut self, headers: &Named<TemplateText>) -> Vec<(String, Text)> {
        for (name, _) in &headers.0 {
            let token = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
            let own = match name.value.to_ascii_lowercase().as_str() {
                "authorization" => "auth: {bearer: ...}",
                "idempotency-key" => "key: ...",
                "host" | "content-length" | "transfer-encoding" | "connection" => "",
                _ if !name.value.is_empty() && name.value.chars().all(token) => continue,
                _ => {
                    let message = format!("`{}` is not the name of a header", name.value);
                    self.diagnostics.push(name.error("package::name", message));
                    continue;
                }
            };
            let message = format!("Operetta sets the header {}", name.value);
            let help = if own.is_empty() { "remove it".to_owned() } else { format!("write {own}") };
            self.diagnostics.push(name.error("package::value", message).help(help));
        }
        self.named(headers)
    }

    /// A host that a computed host may be: a name, or `*.` and a name.
    fn host(&mut self, host: &At<String>) -> Option<String> {
        let name = host.value.strip_prefix("*.").unwrap_or(&host.value);
        let label = |label: &str| {
            !label.is_empty()
                && label.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
        };
        if name.split('.').all(label) {
            return Some(host.value.clone());
        }
        let message = format!("`{}` is not a host", host.value);
        let help = "write a literal in lower case without port: api.example.com or *.example.com";
        self.diagnostics.push(host.error("package::value", message).help(help));
        None
    }

    fn wait(&mut self, wait: &At<manifest::Wait>) -> Option<Action> {
        let manifest = &wait.value;
        match (&manifest.until, &manifest.json_path, &manifest.duration) {
            (Some(until), None, None) => {
                if manifest.value.is_some() {
                    let error = wait.error("package::value", "`value` requires jsonPath");
                    self.diagnostics.push(error.help("compare in the expression: until: x == 3"));
                }
                let expr = self.expression(until)?;
                Some(Action::Wait(Box::new(Until { expr, search: None, is_path: false, value: None })))
            }
            (None, Some(path), None) => {
                let result = self.engine.json_path(&path.value, &path.at);
                let (expr, search) = self.note(result, &path.path)?;
                let value = match &manifest.value {
                    Some(value) => Some(self.tree(value)?),
                    None => None,
                };
                Some(Action::Wait(Box::new(Until { expr, search, is_path: true, value })))
            }
            (None, None, Some(duration)) => self.text(&duration.0).map(Action::Pause),
            _ if !self.complete => None,
            _ => {
                let error =
                    wait.error("package::value", "wait takes one of `until`, `jsonPath` and `duration`");
                self.diagnostics
                    .push(error.help("write wait: {until: children.x is ready}, or wait: {duration: 10s}"));
                None
            }
        }
    }

    fn patch(&mut self, manifest: &manifest::Patch, names: &Names<'_>) -> Option<Patch> {
        let merge = manifest.merge.0.as_ref()?;
        if !matches!(merge.value, Tree::Map(_)) {
            let error = merge.error("package::type", "a merge patch must be a map");
            self.diagnostics.push(error.help("write merge: {metadata: {labels: {a: b}}}"));
        }
        let namespace = match &manifest.namespace {
            Some(namespace) => {
                self.namespace(namespace, names.namespaced)?;
                Some(self.text(&namespace.0)?)
            }
            None => None,
        };
        Some(Patch {
            gvk: Gvk::new(manifest.api_version.value.0.as_str(), manifest.kind.value.0.as_str()),
            name: self.text(&manifest.name.0.as_ref()?.0)?,
            namespace,
            merge: self.tree(&merge.value)?,
        })
    }

    fn call(&mut self, call: &manifest::Call, names: &Names<'_>) -> Option<Call> {
        let map = match call {
            manifest::Call::Name(name) => {
                self.known_plan(name, &name.value, names, &[]);
                return Some(Call { plan: name.value.clone(), of: None, params: None });
            }
            manifest::Call::Map(map) => map,
        };
        let name = map.name.0.as_ref()?;
        if map.of.is_none() {
            self.known_plan(name, &name.value, names, &[]);
        }
        let params = match &map.params {
            Some(params) => {
                if !matches!(&params.value, Tree::Map(_) | Tree::Text(_)) {
                    let error = params.error("package::type", "params must be a map");
                    self.diagnostics.push(error.help("write params: {from: 0}"));
                }
                Some(self.tree(&params.value)?)
            }
            None => None,
        };
        let of = match &map.of {
            Some(of) => Some(Of {
                gvk: Gvk::new(of.api_version.value.0.as_str(), of.kind.value.0.as_str()),
                name: self.text(&of.name.0.as_ref()?.0)?,
            }),
            None => None,
        };
        Some(Call { plan: name.value.clone(), of, params })
    }

    fn template_text(&mut self, source: Option<&TemplateText>) -> Option<Text> {
        source.and_then(|source| self.text(&source.0))
    }
}

impl manifest::Step {
    /// Its actions, with their places.
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

fn event(name: manifest::EventName) -> Event {
    match name {
        manifest::EventName::Created => Event::Created,
        manifest::EventName::Changed => Event::Changed(Vec::new()),
        manifest::EventName::Upgraded => Event::Upgraded,
        manifest::EventName::Deleted => Event::Deleted,
    }
}

/// The trigger of a plan that has none.
fn implied(name: &str, at: &Location) -> Vec<Trigger> {
    let event = match name {
        "deploy" => Event::Created,
        "update" => Event::Changed(Vec::new()),
        "upgrade" => Event::Upgraded,
        "cleanup" => Event::Deleted,
        _ => return Vec::new(),
    };
    vec![Trigger { event, when: None, location: at.clone() }]
}

fn count(steps: &[Step]) -> usize {
    let inner = |step: &Step| match &step.action {
        Action::Steps(_, steps) => count(steps),
        _ => 0,
    };
    steps.iter().map(|step| 1 + inner(step)).sum()
}

/// What is wrong with the name of an output or of a record.
fn variable_problem(name: &str) -> Option<&'static str> {
    let first = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    let fits = first && name.len() <= 63 && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    (!fits).then_some(
        "must be letters, digits and underscores, not beginning with a digit, at most 63 characters",
    )
}

/// The error with the nearest known name.
fn near<'a>(error: Diagnostic, name: &str, known: impl Iterator<Item = &'a str>) -> Diagnostic {
    let known: Vec<&str> = known.collect();
    match did_you_mean(name, known.iter().copied()) {
        Some(near) => error.help(format!("did you mean `{near}`?")),
        None if known.is_empty() || known.len() > 20 => error,
        None => error.help(format!("there is {}", known.join(", "))),
    }
}
