//! Finds all expressions and templates of a plan, with the variables that are visible to them.

use std::sync::Arc;

use super::{
    Action, Auth, Body, ChildPod, Event, Exec, Expect, Http, Plan, RECORDED, Step, Strategy, Trigger,
};
use crate::Resource;
use crate::api::Gvk;
use crate::template::{Engine, Expr, Reads, Text};

/// The variables that are visible to an expression of a plan, in addition to those of the resource.
#[derive(Debug)]
pub(crate) struct PlanScope<'a> {
    /// The plan.
    pub(crate) plan: &'a Plan,
    /// The path of the trigger or step, for example `plans.upgrade.steps[2].steps[0]`.
    pub(crate) path: String,
    /// Whether it is evaluated in a run, so that `run` and `outputs` exist.
    pub(crate) in_run: bool,
    /// The item variables of the loops around it, outermost first.
    pub(crate) items: Vec<&'a str>,
    /// The `when` expressions of the phases around it, outermost first.
    pub(crate) whens: Vec<&'a Expr>,
    /// The visible variables of an answer.
    pub(crate) answers: &'static [&'static str],
    /// The steps whose outputs are visible, nearest first.
    pub(crate) before: Vec<&'a Step>,
    /// The step itself, if the expression is in its record, where its outputs are visible by their names.
    pub(crate) own: Option<&'a Step>,
}

/// One expression or template of a plan.
pub(crate) struct PlanSite<'a> {
    /// The paths that it reads, without following `let`s.
    pub(crate) reads: &'a Reads,
    /// The visible variables.
    pub(crate) scope: Arc<PlanScope<'a>>,
}

/// A step, with the variables that are visible in it.
pub(crate) struct Visit<'a> {
    /// The step.
    pub(crate) step: &'a Step,
    /// The variables that are visible to its list: those of the loops and the steps around it.
    pub(crate) outside: Arc<PlanScope<'a>>,
    /// The variables that are visible to its action and its modifiers.
    pub(crate) inside: Arc<PlanScope<'a>>,
}

impl Action {
    /// The variables that its answer sets.
    pub fn answers(&self) -> &'static [&'static str] {
        match self {
            Self::Http(_) => &["status", "headers", "body"],
            Self::Exec(_) => &["exitCode", "stdout", "stderr", "json"],
            Self::Job { .. } => &["message"],
            Self::Plan(_) => &[RECORDED],
            _ => &[],
        }
    }
}

impl Plan {
    /// All steps, a phase before its steps.
    pub(crate) fn visits(&self) -> Vec<Visit<'_>> {
        let root = PlanScope {
            plan: self,
            path: format!("plans.{}", self.name),
            in_run: true,
            items: Vec::new(),
            whens: Vec::new(),
            answers: &[],
            before: Vec::new(),
            own: None,
        };
        let mut found = Vec::new();
        visit(&self.steps, self.strategy, &root, &mut found);
        found
    }

    /// All steps, also those within phases.
    pub fn all_steps(&self) -> Vec<&Step> {
        self.visits().into_iter().map(|visit| visit.step).collect()
    }

    /// All expressions and templates.
    pub(crate) fn sites<'a>(&'a self, engine: &'a Engine) -> Vec<PlanSite<'a>> {
        let mut found = Vec::new();
        for (index, trigger) in self.triggers.iter().enumerate() {
            let scope = Arc::new(PlanScope {
                plan: self,
                path: format!("plans.{}.trigger[{index}]", self.name),
                in_run: false,
                items: Vec::new(),
                whens: Vec::new(),
                answers: &[],
                before: Vec::new(),
                own: None,
            });
            let add = |reads| PlanSite { reads, scope: Arc::clone(&scope) };
            found.extend(trigger.reads().into_iter().map(add));
        }
        for visit in self.visits() {
            visit.sites(engine, &mut found);
        }
        found
    }
}

fn visit<'a>(steps: &'a [Step], strategy: Strategy, around: &PlanScope<'a>, found: &mut Vec<Visit<'a>>) {
    for (index, step) in steps.iter().enumerate() {
        let mut before: Vec<&Step> = Vec::new();
        if strategy == Strategy::Serial {
            steps[..index].iter().rev().for_each(|step| earlier(step, &mut before));
        }
        before.extend(&around.before);
        let outside = Arc::new(PlanScope {
            path: format!("{}.steps[{index}]", around.path),
            items: around.items.clone(),
            whens: around.whens.clone(),
            before,
            ..*around
        });
        let inside = match &step.for_each {
            None => Arc::clone(&outside),
            Some(each) => Arc::new(outside.with_item(&each.as_)),
        };
        found.push(Visit { step, outside, inside: Arc::clone(&inside) });
        if let Action::Steps(strategy, steps) = &step.action {
            let mut within = inside.copy();
            within.whens.extend(&step.when);
            within.items.extend(step.repeat.as_ref().map(|repeat| repeat.as_.as_str()));
            visit(steps, *strategy, &within, found);
        }
    }
}

/// Adds a step and, if it is a phase that runs once, its steps.
fn earlier<'a>(step: &'a Step, found: &mut Vec<&'a Step>) {
    found.push(step);
    if let (Action::Steps(_, steps), false) = (&step.action, step.is_loop()) {
        steps.iter().rev().for_each(|step| earlier(step, found));
    }
}

impl<'a> PlanScope<'a> {
    fn copy(&self) -> Self {
        Self {
            path: self.path.clone(),
            items: self.items.clone(),
            whens: self.whens.clone(),
            before: self.before.clone(),
            ..*self
        }
    }

    fn with_item(&self, item: &'a str) -> Self {
        let mut scope = self.copy();
        scope.items.push(item);
        scope
    }
}

impl<'a> Visit<'a> {
    /// The variables that are visible to `expect` and `outputs`.
    pub(crate) fn answered(&self) -> Arc<PlanScope<'a>> {
        Arc::new(PlanScope { answers: self.step.action.answers(), ..self.inside.copy() })
    }

    /// The variables that are visible to `record`.
    pub(crate) fn recording(&self) -> Arc<PlanScope<'a>> {
        let answers = self.step.action.answers();
        Arc::new(PlanScope { answers, own: Some(self.step), ..self.inside.copy() })
    }

    fn sites(&self, engine: &'a Engine, found: &mut Vec<PlanSite<'a>>) {
        let step = self.step;
        let mut add = |scope: &Arc<PlanScope<'a>>, reads: &'a Reads| {
            found.push(PlanSite { reads, scope: Arc::clone(scope) });
        };
        if let Some(each) = &step.for_each {
            add(&self.outside, each.in_.reads());
            each.max_parallel.iter().for_each(|most| add(&self.outside, most.reads()));
        }
        step.repeat.iter().for_each(|repeat| add(&self.inside, repeat.pick.reads()));
        for expr in step.decisions() {
            add(&self.inside, expr.reads());
        }
        let stored = step.store.as_ref().and_then(|store| store.child.key.as_ref());
        for text in step.timeout.iter().chain(&step.message).chain(stored).chain(step.action.texts()) {
            add(&self.inside, text.reads());
        }
        if let Action::Wait(until) = &step.action {
            add(&self.inside, until.expr.reads());
        }
        if let Action::Job { template } = &step.action
            && let Some(template) = engine.template(template)
        {
            add(&self.inside, template.reads());
        }
        let answered = self.answered();
        if let Some(Expect::Holds(expr)) = &step.expect {
            add(&answered, expr.reads());
        }
        for output in &step.outputs {
            add(&answered, output.value.reads());
        }
        for (_, value) in step.store.iter().flat_map(|store| &store.data) {
            add(&answered, value.reads());
        }
        let recording = self.recording();
        for (_, value) in &step.record {
            add(&recording, value.reads());
        }
    }
}

impl Step {
    /// The expressions that decide about the step before it has an answer: `when`, `unless`, `until`.
    pub(crate) fn decisions(&self) -> impl Iterator<Item = &Expr> {
        let rounds = self.repeat.as_ref().map(|repeat| &repeat.until);
        self.when.iter().chain(&self.unless).chain(&self.until).chain(&self.force).chain(rounds)
    }
}

impl Trigger {
    /// Its expressions.
    pub(crate) fn expressions(&self) -> Vec<&Expr> {
        let certificate = match &self.event {
            Event::Expires { certificate, .. } => Some(certificate),
            _ => None,
        };
        certificate.into_iter().chain(self.decisions()).collect()
    }

    /// The expressions whose value decides. Of a certificate only the end of its validity does.
    pub(crate) fn decisions(&self) -> Vec<&Expr> {
        let own = match &self.event {
            Event::Condition { condition, .. } => Some(condition),
            Event::Schedule { suspend, .. } => suspend.as_ref(),
            _ => None,
        };
        own.into_iter().chain(&self.when).collect()
    }

    /// Its templates.
    pub(crate) fn texts(&self) -> Vec<&Text> {
        match &self.event {
            Event::Condition { hold, cooldown, .. } => hold.iter().chain(cooldown).collect(),
            Event::Expires { before, cooldown, .. } => std::iter::once(before).chain(cooldown).collect(),
            Event::Schedule { schedule, time_zone, .. } => {
                std::iter::once(schedule).chain(time_zone).collect()
            }
            _ => Vec::new(),
        }
    }

    fn reads(&self) -> Vec<&Reads> {
        let expressions = self.expressions().into_iter().map(Expr::reads);
        expressions.chain(self.texts().into_iter().map(Text::reads)).collect()
    }
}

impl Action {
    /// The pod of a child that it reaches.
    pub fn pod(&self) -> Option<&ChildPod> {
        match self {
            Self::Exec(exec) => Some(&exec.pod),
            Self::Http(http) => http.to.as_ref().map(|to| &to.pod),
            _ => None,
        }
    }

    /// Its templates.
    pub(crate) fn texts(&self) -> Vec<&Text> {
        let mut texts = Vec::new();
        match self {
            Self::Apply(members) | Self::Delete(members) => {
                texts.extend(members.iter().filter_map(|member| member.key.as_ref()));
            }
            Self::Exec(exec) => {
                exec.public(&mut texts);
                texts.extend(&exec.stdin);
            }
            Self::Http(http) => {
                http.public(&mut texts);
                texts.extend(http.secret());
            }
            Self::Pause(text) | Self::Fail(text) | Self::Approve { message: text, .. } => texts.push(text),
            Self::Patch(patch) => {
                texts.extend(std::iter::once(&patch.name).chain(&patch.namespace));
                patch.merge.texts(&mut texts);
            }
            Self::Plan(call) => {
                texts.extend(call.of.as_ref().map(|of| &of.name));
                if let Some(params) = &call.params {
                    params.texts(&mut texts);
                }
            }
            Self::Wait(until) => {
                if let Some(value) = &until.value {
                    value.texts(&mut texts);
                }
            }
            Self::Steps(..) | Self::Job { .. } | Self::Record => {}
        }
        texts
    }
}

impl ChildPod {
    /// The kind whose child it is. `find`: the kind of the package that another instance has.
    pub fn owner<'a>(
        &self,
        resource: &'a Resource,
        find: impl FnOnce(&Gvk) -> Option<&'a Resource>,
    ) -> Option<&'a Resource> {
        match &self.of {
            None => Some(resource),
            Some(of) => find(resource.reference(&of.reference)?.gvk.as_ref()?),
        }
    }

    fn texts<'a>(&'a self, texts: &mut Vec<&'a Text>) {
        texts.extend(self.of.iter().map(|of| &of.uid).chain(&self.child.key).chain(&self.ordinal));
    }
}

impl Exec {
    /// Adds the texts that are visible to users.
    pub(crate) fn public<'a>(&'a self, texts: &mut Vec<&'a Text>) {
        self.pod.texts(texts);
        texts.extend(&self.container);
        self.command.texts(texts);
    }
}

impl Http {
    /// Adds the texts that are visible to users.
    pub(crate) fn public<'a>(&'a self, texts: &mut Vec<&'a Text>) {
        if let Some(to) = &self.to {
            to.pod.texts(texts);
            texts.extend(std::iter::once(&to.port).chain(&to.host));
        }
        texts.extend(std::iter::once(&self.url).chain(&self.key));
    }

    /// The texts that may contain secret data.
    pub(crate) fn secret(&self) -> Vec<&Text> {
        let mut texts: Vec<&Text> = self.headers.iter().map(|(_, value)| value).collect();
        match &self.body {
            Body::Empty => {}
            Body::Json(tree) => tree.texts(&mut texts),
            Body::Form(fields) => texts.extend(fields.iter().map(|(_, value)| value)),
            Body::Raw(text) => texts.push(text),
        }
        match &self.auth {
            None => {}
            Some(Auth::Bearer(token)) => texts.push(token),
            Some(Auth::Basic(user, password)) => texts.extend([user, password]),
        }
        if let Some(tls) = &self.tls {
            texts.extend(tls.ca.iter().chain(&tls.cert).chain(&tls.key));
        }
        texts
    }
}
