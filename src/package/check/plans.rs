//! Checks the plans of one resource: their expressions, the types of answers and outputs, and calls of other
//! plans.

use super::super::Tree;
use super::super::plan::sites::Visit;
use super::super::plan::{Action, Call, Event, Expect, Members, Plan, RAN};
use super::catalog::KindLookup;
use super::resource::{Check, answer, map};
use crate::diag::{Diagnostic, Location, did_you_mean};
use operetta_lang::schema::{Basic, Conform, Schema, Shape, Type};

impl<'a> Check<'a> {
    /// Sets the types of the keys of forEach children.
    pub(super) fn keys(&mut self) {
        for child in &self.resource.children {
            let Some(for_each) = &child.for_each else { continue };
            self.infer.refuel();
            let list = self.infer.expression(&for_each.in_);
            let item = self.infer.looped(list, &for_each.in_);
            self.infer.set(&for_each.as_, item.clone());
            let key = for_each.key.as_ref().map_or(item, |key| self.infer.expression(key));
            self.infer.unset(&for_each.as_);
            let basic = key.basic.value();
            if basic == Basic::INT || basic == Basic::STRING {
                self.infer.set_keys(format!("children.{}", child.id), basic);
            }
        }
    }

    /// Checks the expressions of a plan and the templates of its Jobs.
    pub(super) fn plan(&mut self, plan: &'a Plan) {
        // An error in the expression of a trigger means that the plan is not started.
        self.infer.reports_absent = false;
        for trigger in &plan.triggers {
            self.infer.refuel();
            let mark = self.infer.mark();
            for expr in trigger.expressions() {
                self.infer.expression(expr);
            }
            if let Some(when) = &trigger.when {
                self.infer.assume(when);
            }
            for text in trigger.texts() {
                self.infer.text(text);
            }
            self.infer.forget(mark);
        }
        self.infer.reports_absent = true;
        // A plan that only a schedule starts runs only while the `when` of that trigger holds.
        let scheduled = match &plan.triggers[..] {
            [trigger] if matches!(trigger.event, Event::Schedule { .. }) => trigger.when.as_ref(),
            _ => None,
        };
        // The types of the items of the loops around a step, outermost first.
        let mut items: Vec<Type<'a>> = Vec::new();
        for visit in plan.visits() {
            self.infer.refuel();
            let step = visit.step;
            items.truncate(visit.outside.items.len());
            let mark = self.infer.mark();
            if let Some(when) = scheduled {
                self.infer.assume(when);
            }
            for (item, ty) in visit.outside.items.iter().zip(&items) {
                self.infer.set(item, ty.clone());
            }
            if let Some(each) = &step.for_each {
                each.max_parallel.iter().for_each(|most| drop(self.infer.text(most)));
                self.infer.unset(&each.as_);
                items.push(self.items(&each.in_, &each.as_));
            }
            visit.inside.whens.iter().for_each(|when| self.infer.assume(when));
            self.earlier(&visit, None);
            self.infer.reports_absent = false;
            for expr in step.decisions() {
                self.infer.expression(expr);
            }
            if let Some(repeat) = &step.repeat {
                let picked = self.infer.expression(&repeat.pick);
                items.push(picked.without(Basic::ABSENT).without(Basic::NULL).widened());
            }
            if let Some(when) = &step.when {
                self.infer.assume(when);
            }
            if let Action::Wait(until) = &step.action {
                self.infer.expression(&until.expr);
            }
            self.answers(&visit);
            self.infer.reports_absent = true;
            let members: &[Members] = match &step.action {
                Action::Apply(members) | Action::Delete(members) => members,
                action => match action.pod() {
                    Some(pod) if pod.of.is_none() => std::slice::from_ref(&pod.child),
                    _ => &[],
                },
            };
            for member in members.iter().chain(step.store.as_ref().map(|store| &store.child)) {
                if let Some(key) = &member.key {
                    let ty = self.infer.text(key);
                    self.infer.key(&format!("children.{}", member.child), &ty, &member.location);
                }
            }
            for text in step.timeout.iter().chain(&step.message).chain(step.action.texts()) {
                self.infer.text(text);
            }
            if let Action::Http(http) = &step.action {
                self.port(http);
            }
            match &step.action {
                Action::Job { template } => self.template(template, &[], &step.location),
                Action::Plan(call) => {
                    let found = self.call(call, &step.location);
                    self.found.extend(found.into_iter().map(|found| found.path(visit.inside.path.clone())));
                }
                _ => {}
            }
            self.infer.forget(mark);
            for item in &visit.inside.items {
                self.infer.unset(item);
            }
        }
        self.infer.unset("outputs");
    }

    /// Sets the types of the outputs of the steps before a step, and of the step itself.
    fn earlier(&mut self, visit: &Visit<'a>, own: Option<&[(String, Type<'a>)]>) {
        let mut entries: Vec<(String, Type<'a>)> = own.map(<[_]>::to_vec).unwrap_or_default();
        for step in &visit.inside.before {
            if entries.iter().any(|(name, _)| *name == step.name) {
                continue;
            }
            let known = self.outputs.get(&std::ptr::from_ref(*step));
            let one = known.map_or_else(Type::any, |outputs| map(outputs.clone(), true));
            let each = step.is_loop();
            entries.push((step.name.clone(), if each { Type::each(Basic::LIST, one) } else { one }));
        }
        self.infer.set("outputs", map(entries, true));
    }

    /// Checks what a step reads from its answer, and keeps the types of its outputs.
    fn answers(&mut self, visit: &Visit<'a>) {
        let step = visit.step;
        for name in step.action.answers() {
            self.infer.set(name, answer(name));
        }
        let mut outputs = Vec::new();
        for output in &step.outputs {
            let ty = self.infer.expression(&output.value);
            let is_value = output.search.is_none() && !output.secret;
            outputs.push((output.name.clone(), if is_value { ty.widened() } else { Type::any() }));
        }
        for (_, value) in step.store.iter().flat_map(|store| &store.data) {
            self.infer.expression(value);
        }
        if matches!(step.action, Action::Plan(_)) {
            outputs.push((RAN.to_owned(), Type::of(Basic::BOOL)));
        }
        if let Some(Expect::Holds(expr)) = &step.expect {
            self.infer.expression(expr);
        }
        self.earlier(visit, Some(&outputs));
        for (_, value) in &step.record {
            self.infer.expression(value);
        }
        self.outputs.insert(step, outputs);
        self.earlier(visit, None);
        for name in step.action.answers() {
            self.infer.unset(name);
        }
    }

    /// Checks the call of another plan as the manager does at run time: whether the plan exists, and its
    /// parameters. A plan of another package can be checked only if both packages are checked together.
    fn call(&mut self, call: &'a Call, at: &Location) -> Vec<Diagnostic> {
        let error = |code, message: String| Diagnostic::error(code, message).located(at.clone());
        let plans = match &call.of {
            None => self.resource.plans.as_slice(),
            Some(of) => match (self.catalog.plans(&of.gvk), self.catalog.find(&of.gvk)) {
                (Some(plans), _) => plans,
                (None, KindLookup::Wrong(problem)) => return vec![problem.diagnostic().located(at.clone())],
                (None, KindLookup::BuiltIn(_)) => &[],
                (None, KindLookup::Custom(_) | KindLookup::Foreign) => return Vec::new(),
            },
        };
        let Some(plan) = plans.iter().find(|plan| plan.name == call.plan) else {
            // An unknown plan of the same resource is already reported.
            let Some(of) = &call.of else { return Vec::new() };
            let message = format!("{} has no plan `{}`", of.gvk.kind, call.plan);
            let near = did_you_mean(&call.plan, plans.iter().map(|plan| plan.name.as_str()));
            let help = match near {
                Some(near) => format!("did you mean `{near}`?"),
                None if plans.is_empty() => format!("{} has no plans", of.gvk.kind),
                None => {
                    let names: Vec<&str> = plans.iter().map(|plan| plan.name.as_str()).collect();
                    format!("there is {}", names.join(", "))
                }
            };
            return vec![error("package::unknown-plan", message).help(help)];
        };
        let given = match &call.params {
            Some(params) => self.tree_type(params),
            // The called plan of the same instance gets the parameters of the calling run.
            None if call.of.is_none() => return Vec::new(),
            None => map([], false),
        };
        let what = format!("`params` of the plan `{}`", plan.name);
        match &plan.params {
            Some(schema) => {
                let mut check = Conform::new(what, None, None);
                check.check(&given, Schema::new(schema, self.catalog.kubernetes), at);
                check.finish()
            }
            None if matches!(&given.shape, Shape::Map(fields) if !fields.entries.is_empty()) => {
                let message = format!("the plan `{}` takes no parameters", plan.name);
                vec![error("package::params", message).help("remove params, or add them to the plan")]
            }
            None => Vec::new(),
        }
    }

    /// The type of a tree of texts. That a text may be absent is not part of its type here.
    fn tree_type(&mut self, tree: &'a Tree) -> Type<'a> {
        match tree {
            Tree::Text(text) => {
                let ty = self.infer.text(text).without(Basic::ABSENT);
                match text.location() {
                    Some(at) if ty.at.is_none() => ty.written(at),
                    _ => ty,
                }
            }
            Tree::List(items) => Type::list(items.iter().map(|item| self.tree_type(item)).collect()),
            Tree::Map(entries) => {
                let typed = entries.iter().map(|(key, value)| (key.clone(), self.tree_type(value)));
                map(typed.collect::<Vec<_>>(), false)
            }
        }
    }
}
