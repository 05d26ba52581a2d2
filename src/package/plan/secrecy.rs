//! Checks secret data in plans. It is allowed in `auth`, `tls`, headers, bodies and `stdin` of a step, and in
//! secret outputs. Everything else of a plan is visible.

use std::collections::BTreeMap;

use super::sites::{PlanScope, Visit};
use super::{Action, Expect, Plan, Step};
use crate::secrecy::Checker;
use crate::template::{Expr, Taint, TaintScope, TaintTree, Text, access};

impl Checker<'_> {
    /// Checks the plans of a resource; `scope` contains the secret data that is visible to all its expressions.
    pub(crate) fn plans(&mut self, plans: &[Plan], scope: &TaintScope<'_>) {
        for plan in plans {
            for (index, trigger) in plan.triggers.iter().enumerate() {
                self.path = Some(format!("plans.{}.trigger[{index}]", plan.name));
                for expr in trigger.decisions() {
                    self.decision(expr, scope, "when a plan runs");
                }
                for text in trigger.texts() {
                    self.text(
                        text,
                        scope,
                        "decide when a plan runs",
                        "take it from the spec, or use a literal",
                    );
                }
            }
            for visit in plan.visits() {
                self.path = Some(visit.inside.path.clone());
                step(self, &visit, scope);
            }
        }
        self.path = None;
    }
}

fn step(checker: &mut Checker<'_>, visit: &Visit<'_>, base: &TaintScope<'_>) {
    let step = visit.step;
    let scope = |of: &PlanScope<'_>| TaintScope {
        roots: roots(of, base),
        lets: base.lets,
        positions: base.positions,
    };
    let mut inside = scope(&visit.inside);
    if let Some(each) = &step.for_each {
        let outside = scope(&visit.outside);
        let list = checker.engine.taint_of(&each.in_, &outside);
        // The items are shown in the status of the run.
        if let Some(taint) = list.any() {
            let help = "loop over names, and read the Secrets by name";
            checker.error(&taint, &each.in_.location(), "be the list of a forEach", help);
        }
        if let Some(most) = &each.max_parallel {
            checker.text(
                most,
                &outside,
                "decide how many items run at once",
                "take the number from the spec",
            );
        }
        inside.roots.remove(&each.as_);
    }
    let inside = &inside;
    if let Some(repeat) = &step.repeat
        && let Some(taint) = checker.engine.taint_of(&repeat.pick, inside).any()
    {
        let help = "pick a name, and read the Secret by its name";
        checker.error(&taint, &repeat.pick.location(), "be picked by a repeat", help);
    }
    for expr in step.decisions() {
        checker.decision(expr, inside, "whether a step runs, or is done");
    }
    if let Action::Wait(until) = &step.action {
        checker.decision(&until.expr, inside, "whether a step is done");
    }
    let mut public: Vec<&Text> = step.timeout.iter().chain(&step.message).collect();
    public.extend(step.store.iter().filter_map(|store| store.child.key.as_ref()));
    match &step.action {
        Action::Exec(exec) => exec.public(&mut public),
        Action::Http(http) => http.public(&mut public),
        action => public.extend(action.texts()),
    }
    let (place, help) = match &step.action {
        Action::Exec(_) => (
            "be in the command of an exec, its container or its message",
            "write it to stdin: processes and audit logs show arguments",
        ),
        Action::Http(_) => (
            "be in the URL of a request, its key or its message",
            "put it into auth, headers or the body: logs show URLs",
        ),
        Action::Patch(_) => {
            ("be in a patch", "objects that are no children are not secret: pass the name of a Secret")
        }
        Action::Plan(_) => {
            ("be a parameter of a plan", "parameters are in the status of the run: pass the name of a Secret")
        }
        _ => ("be shown in a step", "messages and keys are visible: take them from the spec"),
    };
    for text in public {
        checker.text(text, inside, place, help);
    }
    if let Action::Job { template } = &step.action
        && let Some(template) = checker.engine.template(template)
    {
        for inserted in checker.engine.taint_of_template(template, inside) {
            let help = "let the pod read the Secret itself (secretKeyRef, a volume)";
            checker.error(&inserted.taint, &inserted.location, "be in a Job", help);
        }
    }
    let mut answered = scope(&visit.answered());
    let mut recording = scope(&visit.recording());
    if step.store.is_some() {
        let secret = ["headers", "body", "stdout", "stderr", "json"];
        for name in step.action.answers().iter().filter(|name| secret.contains(name)) {
            let taint = || TaintTree::tainted(Taint::held(*name));
            answered.roots.insert((*name).to_owned(), taint());
            recording.roots.insert((*name).to_owned(), taint());
        }
    }
    if let Some(Expect::Holds(expr)) = &step.expect {
        checker.decision(expr, &answered, "whether a step succeeds");
    }
    let mut shown = |expr: &Expr, scope: &TaintScope<'_>, place: &str, help: &str| {
        if let Some(taint) = checker.engine.taint_of(expr, scope).any() {
            checker.error(&taint, &expr.location(), place, help);
        }
    };
    for output in step.outputs.iter().filter(|output| !output.secret) {
        shown(
            &output.value,
            &answered,
            "be an output",
            "write {value: <expression>, secret: true}: it is kept in a Secret",
        );
    }
    for (_, value) in &step.record {
        shown(
            value,
            &recording,
            "be recorded",
            "records are in the status of runs: record the name of a Secret",
        );
    }
}

/// The secret data that an expression can read: that of the resource, and secret outputs.
fn roots(scope: &PlanScope<'_>, base: &TaintScope<'_>) -> BTreeMap<String, TaintTree> {
    let mut roots = base.roots.clone();
    for item in &scope.items {
        roots.remove(*item);
    }
    let own = scope.own.into_iter().flat_map(outputs);
    let steps = scope.before.iter().rev().filter_map(|step| {
        let tree = TaintTree::map(outputs(step));
        tree.any()?;
        let tree = if step.is_loop() { TaintTree::list_of(tree) } else { tree };
        Some((step.name.clone(), tree))
    });
    let outputs = TaintTree::map(steps.chain(own));
    if outputs.any().is_some() {
        roots.insert("outputs".to_owned(), outputs);
    }
    roots
}

/// The secret outputs of a step.
fn outputs(step: &Step) -> impl Iterator<Item = (String, TaintTree)> {
    step.outputs.iter().filter(|output| output.secret).map(|output| {
        let taint = Taint::held(format!("outputs{}{}", access(&step.name), access(&output.name)));
        (output.name.clone(), TaintTree::tainted(taint))
    })
}
