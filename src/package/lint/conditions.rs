//! Conditions and comparisons with the same result for every instance, and `default` without effect.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::Value;

use super::generated::{Quoting, quoting};
use super::known::ResourceInfo;
use crate::crd::schema_fact;
use crate::diag::{Diagnostic, Location};
use crate::expression_sites::Parts;
use crate::plan::{Event, Plan};
use crate::template::{Engine, Expr, Fact, Mistake, MistakeKind, Purpose, Scope, Segment, Template, Text};
use crate::{RefSource, Yields};

/// Reports conditions and comparisons that have the same result for every instance of a resource.
pub(super) fn conditions(engine: &Arc<Engine>, parts: &Parts, known: &ResourceInfo) -> Vec<Diagnostic> {
    let given = engine.partial_variables();
    let finder = Finder { engine, parts, known, given };
    finder.all()
}

struct Finder<'a> {
    engine: &'a Arc<Engine>,
    parts: &'a Parts,
    known: &'a ResourceInfo<'a>,
    /// The variables that some partial receives. In a template they may have any value.
    given: BTreeSet<String>,
}

impl Finder<'_> {
    fn all(&self) -> Vec<Diagnostic> {
        let mut found = Vec::new();
        let mut add = |mistakes: Vec<Mistake>, what: &str| {
            found.extend(mistakes.iter().map(|mistake| diagnostic(mistake, what)));
        };
        let parts = self.parts;
        for reference in &parts.refs {
            let lists = reference.for_each.iter();
            for expr in lists.clone().map(|each| &each.in_).chain(lists.filter_map(|each| each.key.as_ref()))
            {
                add(self.expression(expr, Purpose::Decision), "");
            }
            if let Some(when) = &reference.when {
                add(self.expression(when, Purpose::Condition), "the ref");
            }
            if let RefSource::Name(name, _) = &reference.target {
                add(self.text(name), "");
            }
            if let RefSource::Observe(_) = &reference.target {
                reference.target_texts().into_iter().for_each(|text| add(self.text(text), ""));
            }
        }
        for expr in parts.paused.iter().chain(&parts.ready_when) {
            add(self.expression(expr, Purpose::Decision), "");
        }
        for field in &parts.status {
            add(self.expression(&field.expr, Purpose::Value), "");
        }
        for condition in &parts.conditions {
            add(self.expression(&condition.when, Purpose::Condition), "the condition");
            add(self.text(&condition.message), "");
        }
        let mut templates = BTreeSet::new();
        let mut groups = BTreeSet::new();
        for child in &parts.children {
            if let Some(each) = &child.for_each {
                for expr in [Some(&each.in_), each.key.as_ref()].into_iter().flatten() {
                    add(self.expression(expr, Purpose::Decision), "");
                }
            }
            if let Some(when) = child.group_when.as_ref().filter(|_| groups.insert(child.group)) {
                add(self.expression(when, Purpose::Condition), "the group");
            }
            if let Some(when) = &child.when {
                add(self.expression(when, Purpose::Condition), "the child");
            }
            if let Some(ready) = &child.ready_when {
                add(self.expression(ready, Purpose::Decision), "");
            }
            for (_, text) in child.settings() {
                add(self.text(text), "");
            }
            match &child.yields {
                Some(Yields::One(text)) => add(self.text(text), ""),
                Some(Yields::List(texts)) => texts.iter().for_each(|text| add(self.text(text), "")),
                None => {}
            }
            if templates.insert(child.template.as_str())
                && let Some(template) = self.engine.template(&child.template)
            {
                add(template.mistakes(&|root, path| self.fact_in_template(root, path)), "");
            }
        }
        for (_, text) in parts.lets.iter() {
            add(self.text(text), "");
        }
        for trigger in parts.plans.iter().flat_map(|plan| &plan.triggers) {
            if let Event::Condition { condition, .. } = &trigger.event {
                add(self.expression(condition, Purpose::Decision), "");
            }
        }
        for visit in parts.plans.iter().flat_map(Plan::visits) {
            let step = visit.step;
            for expr in step.when.iter().chain(&step.unless) {
                add(self.expression(expr, Purpose::Decision), "");
            }
            let around = visit.inside.whens.iter().map(|when| (*when, true));
            let own =
                step.when.iter().map(|when| (when, true)).chain(step.unless.iter().map(|expr| (expr, false)));
            let all: Vec<_> = around.chain(own).collect();
            if let Some(last) = step.when.as_ref().or(step.unless.as_ref())
                && self.engine.contradict(&all)
            {
                add(
                    vec![Mistake { location: last.location(), kind: MistakeKind::Always(false) }],
                    "the step",
                );
            }
        }
        found
    }

    fn expression(&self, expr: &Expr, purpose: Purpose) -> Vec<Mistake> {
        let mut mistakes =
            self.engine.expression_mistakes(expr, purpose, &|root, path| self.fact(root, path));
        // An expression that reads nothing has the same value for all instances.
        let reads_nothing = expr.reads().paths.is_empty() && expr.reads().generates.is_empty();
        let is_told = mistakes.iter().any(|mistake| matches!(mistake.kind, MistakeKind::Always(_)));
        if purpose == Purpose::Condition
            && reads_nothing
            && !is_told
            && let Ok(truth) = self.engine.truthy(expr, &Scope::new())
        {
            mistakes.push(Mistake { location: expr.location(), kind: MistakeKind::Always(truth) });
        }
        mistakes
    }

    fn text(&self, text: &Text) -> Vec<Mistake> {
        self.engine.text_mistakes(text, &|root, path| self.fact(root, path))
    }

    fn fact_in_template(&self, root: &str, path: &[Segment]) -> Fact {
        if self.given.contains(root) { Fact::default() } else { self.fact(root, path) }
    }

    /// The facts about a path that the CRD and the package guarantee.
    fn fact(&self, root: &str, path: &[Segment]) -> Fact {
        let always = Fact { always: true, certain: true, ..Fact::default() };
        let path = match (root, path) {
            ("spec", path) => path,
            ("instance", [Segment::Key(spec), path @ ..]) if spec == "spec" => path,
            ("name", []) => return always,
            ("namespace", []) if self.known.namespaced => return always,
            ("refs", [Segment::Key(id)]) => {
                let Some(reference) = self.parts.refs.iter().find(|reference| reference.id == *id) else {
                    return Fact::default();
                };
                let is_there = reference.when.is_none()
                    && (reference.for_each.is_some() || reference.is_list() || !reference.optional);
                let whens = reference.when.as_ref().map(Expr::conjuncts).unwrap_or_default();
                return Fact { always: is_there, whens, ..Fact::default() };
            }
            ("children", [Segment::Key(id)]) => {
                let child =
                    self.parts.children.iter().find(|child| child.id == *id && child.for_each.is_none());
                let whens =
                    child.map(|child| child.when.iter().chain(&child.group_when).flat_map(Expr::conjuncts));
                return Fact { whens: whens.into_iter().flatten().collect(), ..Fact::default() };
            }
            _ => return Fact::default(),
        };
        let keys: Option<Vec<&str>> = path
            .iter()
            .map(|segment| match segment {
                Segment::Key(key) => Some(key.as_str()),
                _ => None,
            })
            .collect();
        match (self.known.schema, keys) {
            (Some(schema), Some(keys)) if !keys.is_empty() => from_schema(schema, &keys),
            _ => Fact::default(),
        }
    }
}

/// The facts about a field of the spec that its schema guarantees.
fn from_schema(schema: &Value, keys: &[&str]) -> Fact {
    let Some((always, schema, has_spec)) = schema_fact(schema, keys) else { return Fact::default() };
    let number = |key: &str| schema.get(key).and_then(Value::as_f64);
    let is_number = schema.get("type").is_some_and(|kind| kind == "integer" || kind == "number");
    let mut values = schema.get("enum").and_then(Value::as_array).cloned();
    if let Some(values) = &mut values
        && schema.get("nullable") == Some(&Value::Bool(true))
    {
        values.push(Value::Null);
    }
    Fact {
        always,
        certain: always && has_spec,
        values,
        least: number("minimum").filter(|_| is_number),
        most: number("maximum").filter(|_| is_number),
        whens: Vec::new(),
    }
}

/// The diagnostic for a mistake. `what` names the owner of a condition.
fn diagnostic(mistake: &Mistake, what: &str) -> Diagnostic {
    let (code, message, help) = match &mistake.kind {
        MistakeKind::Always(truth) => {
            let word = if *truth { "always true" } else { "never true" };
            let help = match (what, truth) {
                ("", _) => {
                    "a required field, one with a default and a ref that is not optional always have a value; keep one of the branches"
                }
                (_, true) => {
                    "a required field, one with a default and a ref that is not optional always have a value; compare the value, or remove the condition"
                }
                (_, false) => "no instance fulfils it; correct the condition, or remove what it belongs to",
            };
            let message = match what {
                "" => format!("this condition is {word}"),
                what => format!("the `when` of {what} is {word}"),
            };
            ("package::always", message, help.to_owned())
        }
        MistakeKind::NoSuchValue(values) => {
            let values: Vec<String> = values
                .iter()
                .filter(|value| !value.is_null())
                .map(|value| value.as_str().map_or_else(|| value.to_string(), str::to_owned))
                .collect();
            let help = format!("the CRD allows {}", values.join(", "));
            ("package::always", "the field never has this value".to_owned(), help)
        }
        MistakeKind::SameBranches => {
            let help = "change one of them, or remove the condition";
            ("package::no-effect", "both branches are the same".to_owned(), help.to_owned())
        }
        MistakeKind::NeverMissing(omit) => {
            let message = if *omit {
                "there is nothing to omit: the field always has a value"
            } else {
                "this `default` is never used: the field always has a value"
            };
            let help = "the CRD has a default for the field, or requires it; remove the filter, or the default of the CRD";
            ("package::no-effect", message.to_owned(), help.to_owned())
        }
        MistakeKind::TrueOfAbsent => {
            let help = "a ref or child with a `when` is absent while its `when` is false, and what is absent differs from everything: compare `... | default('')`, or test it with `is defined`";
            (
                "package::absent",
                "this is true, too, while what it reads is absent".to_owned(),
                help.to_owned(),
            )
        }
        MistakeKind::NoOmit => return no_omit(&mistake.location),
    };
    Diagnostic::warning(code, message).located(mistake.location.clone()).help(help)
}

fn no_omit(at: &Location) -> Diagnostic {
    let message = "`omit` has no effect here: it removes a key or a list item";
    Diagnostic::error("package::omit", message)
        .located(at.clone())
        .help("use a value: `| default('')`, or test it with `is defined`")
}

/// Reports `omit` in an expression that is only part of a text.
pub(crate) fn omitted_text(engine: &Engine) -> Vec<Diagnostic> {
    let omits = engine.paths().filter_map(|path| engine.template(path)).flat_map(Template::omits);
    let in_text = |at: &Location| {
        let quoting = quoting(&at.source.text, at.span.start, at.span.end);
        matches!(quoting, Some(Quoting::InText | Quoting::Block))
    };
    omits.filter(in_text).map(|at| no_omit(&at)).collect()
}
