//! Probable mistakes in an expression, based on facts about the paths that it reads: conditions with the same result
//! for every instance, comparisons that are never true, equal branches, `omit` where nothing can be omitted.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::Value;

use super::absent::true_of_absent;
use super::code::{Assignee, Comparison, Kind, Node, Stmt, Unit};
use super::contradictions::{contradict, excludes};
use super::nodes::{constant, equal, flat, path, turned, within, words};
use super::reads::Segment;
use super::text::TextUnit;
use super::value::{Name, Val};
use super::{Engine, Expr, Template, Text};
use crate::diag::{Location, Source, Span};

/// The facts about the value at a path that hold for every instance.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Fact {
    /// Whether it has a value in every instance that has a spec.
    pub always: bool,
    /// Whether it has a value in every instance, even without a spec.
    pub certain: bool,
    /// All possible values.
    pub values: Option<Vec<Value>>,
    /// The minimum of a number.
    pub least: Option<f64>,
    /// The maximum of a number.
    pub most: Option<f64>,
    /// The conditions under which it is there; empty if the package sets none.
    pub whens: Vec<String>,
}

/// The facts about a path: its variable and its steps.
pub type Facts<'a> = dyn Fn(&str, &[Segment]) -> Fact + 'a;

/// One probable mistake with its location.
#[derive(Debug, Clone, PartialEq)]
pub struct Mistake {
    /// Its location.
    pub location: Location,
    /// Its kind.
    pub kind: MistakeKind,
}

/// The kind of a probable mistake.
#[derive(Debug, Clone, PartialEq)]
pub enum MistakeKind {
    /// A condition is true, or false, for every instance.
    Always(bool),
    /// A path is compared with an impossible value. Contains the possible values.
    NoSuchValue(Vec<Value>),
    /// Both branches of a condition are the same.
    SameBranches,
    /// `default` is applied to a path that always has a value. Contains whether its argument is `omit`.
    NeverMissing(bool),
    /// A comparison is true, too, while what it reads is not there.
    TrueOfAbsent,
    /// `omit` is used in an expression or a text that cannot be omitted.
    NoOmit,
}

/// The purpose of an expression.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// The expression decides whether something exists or is true, so it should depend on something.
    Condition,
    /// The expression decides something, and may be constant.
    Decision,
    /// The expression yields a value, which may be omitted.
    Value,
}

impl Engine {
    /// The probable mistakes of an expression.
    pub fn expression_mistakes(&self, expr: &Expr, purpose: Purpose, facts: &Facts<'_>) -> Vec<Mistake> {
        let unit = &expr.0.unit;
        let mut finder = Finder::new(&unit.source, facts);
        if purpose == Purpose::Condition {
            finder.condition(&expr.0.node);
        }
        if purpose != Purpose::Value {
            let whens = |root: &str, path: &[Segment]| facts(root, path).whens;
            for node in true_of_absent(&expr.0.node, &unit.source.text, &whens) {
                finder.found(node.span, MistakeKind::TrueOfAbsent);
            }
            within(&expr.0.node, &mut |node| {
                if matches!(node.kind, Kind::Const(Val::Omit)) {
                    finder.found(node.span, MistakeKind::NoOmit);
                }
            });
        }
        finder.node(&expr.0.node);
        finder.mistakes
    }

    /// The probable mistakes of a string of `operator.yaml`.
    pub fn text_mistakes(&self, text: &Text, facts: &Facts<'_>) -> Vec<Mistake> {
        let TextUnit::Template(unit) = &*text.0 else { return Vec::new() };
        let mut finder = Finder::new(&unit.source, facts);
        finder.unit(unit);
        if unit.body.len() > 1 {
            for stmt in &unit.body {
                if let Stmt::Emit(node) = stmt
                    && gives_omit(node)
                {
                    finder.found(node.span, MistakeKind::NoOmit);
                }
            }
        }
        finder.mistakes
    }

    /// The variable names that calls of `partial` pass to partials of the package.
    pub fn partial_variables(&self) -> BTreeSet<String> {
        let mut names = BTreeSet::new();
        for template in self.templates.values() {
            each_node(&template.unit, &mut |node| {
                if let Kind::Partial(_, vars) = &node.kind {
                    names.extend(vars.iter().map(|(name, _)| name.to_string()));
                }
            });
        }
        names
    }
}

impl Template {
    /// The probable mistakes of the template.
    pub fn mistakes(&self, facts: &Facts<'_>) -> Vec<Mistake> {
        let mut finder = Finder::new(&self.unit.source, facts);
        finder.unit(&self.unit);
        finder.mistakes
    }

    /// The locations of expressions in `{{ }}` whose value may be `omit`.
    pub fn omits(&self) -> Vec<Location> {
        let mut found = Vec::new();
        each_stmt(&self.unit, &mut |stmt| {
            if let Stmt::Emit(node) = stmt
                && gives_omit(node)
            {
                found.push(Location::new(&self.unit.source, node.span));
            }
        });
        found
    }
}

/// Whether the value of an expression may be `omit`.
fn gives_omit(node: &Node) -> bool {
    match &node.kind {
        Kind::Const(Val::Omit) => true,
        Kind::Default(parts) => gives_omit(&parts.0) || parts.1.as_ref().is_some_and(gives_omit),
        Kind::If(parts) => gives_omit(&parts.1) || parts.2.as_ref().is_some_and(gives_omit),
        Kind::Or(sides) => gives_omit(&sides.0) || gives_omit(&sides.1),
        _ => false,
    }
}

struct Finder<'a> {
    source: &'a Arc<Source>,
    facts: &'a Facts<'a>,
    /// Names that the template itself sets: nothing is known about them.
    locals: BTreeSet<Name>,
    mistakes: Vec<Mistake>,
}

impl<'a> Finder<'a> {
    fn new(source: &'a Arc<Source>, facts: &'a Facts<'a>) -> Self {
        Self { source, facts, locals: BTreeSet::new(), mistakes: Vec::new() }
    }

    fn found(&mut self, span: Span, kind: MistakeKind) {
        let mistake = Mistake { location: Location::new(self.source, span), kind };
        if !self.mistakes.contains(&mistake) {
            self.mistakes.push(mistake);
        }
    }

    fn unit(&mut self, unit: &Unit) {
        let mut locals = BTreeSet::new();
        each_stmt(unit, &mut |stmt| match stmt {
            Stmt::For(def) => names(&def.target, &mut locals),
            Stmt::Set { target, .. } | Stmt::SetBlock { target, .. } => names(target, &mut locals),
            Stmt::With { assignments, .. } => {
                for (target, _) in assignments {
                    names(target, &mut locals);
                }
            }
            _ => {}
        });
        locals.extend(unit.macros.iter().flat_map(|def| def.params.iter().map(|(name, _)| Arc::clone(name))));
        self.locals = locals;
        each_stmt(unit, &mut |stmt| {
            if let Stmt::If { test, then, otherwise } = stmt {
                self.condition(test);
                let source = Arc::clone(self.source);
                let written = |stmts: &[Stmt]| written(stmts, &source).filter(|text| !text.is_empty());
                if written(then).is_some_and(|text| written(otherwise) == Some(text)) {
                    self.found(test.span, MistakeKind::SameBranches);
                }
            }
        });
        each_node(unit, &mut |node| self.one(node));
    }

    /// Reports a condition that does not depend on anything.
    fn condition(&mut self, node: &Node) {
        if let Some(truth) = self.truth(node) {
            self.found(node.span, MistakeKind::Always(truth));
        }
    }

    fn node(&mut self, node: &Node) {
        within(node, &mut |node| self.one(node));
    }

    fn one(&mut self, node: &Node) {
        match &node.kind {
            Kind::Compare(first, rest) => {
                if let [(op, second)] = rest.as_slice() {
                    self.comparison(node.span, *op, first, second);
                }
            }
            Kind::If(parts) => {
                let (test, then, otherwise) = &**parts;
                self.condition(test);
                let text = |node: &Node| self.source.text.get(node.span.start..node.span.end).map(words);
                if let Some(otherwise) = otherwise
                    && then.span != otherwise.span
                    && text(then).is_some_and(|then| !then.is_empty() && Some(then) == text(otherwise))
                {
                    self.found(node.span, MistakeKind::SameBranches);
                }
            }
            Kind::Default(parts) => {
                let (value, other, boolean) = &**parts;
                if boolean.is_none()
                    && let Some(other) = other
                {
                    let (fact, omit) = (self.fact(value), gives_omit(other));
                    if fact.certain || fact.always && omit {
                        self.found(node.span, MistakeKind::NeverMissing(omit));
                    }
                }
            }
            _ => {}
        }
    }

    /// Reports a comparison with an impossible value, alone or in a list.
    fn comparison(&mut self, span: Span, op: Comparison, first: &Node, second: &Node) {
        let pairs: Vec<(&Node, &Node)> = match (op, &second.kind) {
            (Comparison::Eq | Comparison::Ne, _) => vec![(first, second), (second, first)],
            (Comparison::In | Comparison::NotIn, Kind::List(items)) => {
                items.iter().map(|item| (first, item)).collect()
            }
            _ => return,
        };
        for (path, value) in pairs {
            let (Some(values), Some(value)) = (self.fact(path).values, constant(value)) else { continue };
            let same_type = |known: &Value| known.is_string() == value.is_string();
            if !value.is_null()
                && values.iter().any(same_type)
                && !values.iter().any(|known| equal(known, &value))
            {
                self.found(span, MistakeKind::NoSuchValue(values));
            }
        }
    }

    fn fact(&self, node: &Node) -> Fact {
        match path(node) {
            Some((root, segments)) if !self.locals.contains(&root) => (self.facts)(&root, &segments),
            _ => Fact::default(),
        }
    }

    /// The constant result of a condition, if it has one.
    fn truth(&self, node: &Node) -> Option<bool> {
        match &node.kind {
            Kind::Const(value) => value.truthy().ok().filter(|_| !matches!(value, Val::Omit)),
            Kind::Not(operand) => self.truth(operand).map(|truth| !truth),
            Kind::And(_) => {
                let sides = flat(node, true);
                let truths: Vec<_> = sides.iter().map(|side| self.truth(side)).collect();
                let text = self.source.text.as_str();
                let written: Vec<_> = sides.iter().map(|side| (*side, text, true)).collect();
                if truths.contains(&Some(false)) || contradict(&written) || excludes(&sides, Comparison::Eq) {
                    return Some(false);
                }
                truths.iter().all(|truth| *truth == Some(true)).then_some(true)
            }
            Kind::Or(_) => {
                let sides = flat(node, false);
                let truths: Vec<_> = sides.iter().map(|side| self.truth(side)).collect();
                if truths.contains(&Some(true)) || excludes(&sides, Comparison::Ne) {
                    return Some(true);
                }
                truths.iter().all(|truth| *truth == Some(false)).then_some(false)
            }
            Kind::Test(test, input, _) => match test.name {
                "defined" => self.fact(input).always.then_some(true),
                "undefined" => self.fact(input).always.then_some(false),
                _ => None,
            },
            Kind::Compare(first, rest) => match rest.as_slice() {
                [(op, second)] => self.compared(*op, first, second),
                _ => None,
            },
            Kind::Var(_) | Kind::Attr(..) | Kind::Item(..) => {
                let fact = self.fact(node);
                let is_number = fact.least.is_some() || fact.most.is_some();
                let never_zero =
                    fact.least.is_some_and(|least| least > 0.0) || fact.most.is_some_and(|most| most < 0.0);
                let never_empty = fact.values.as_ref().is_some_and(|values| values.iter().all(is_true));
                (fact.always && (is_number && never_zero || !is_number && never_empty)).then_some(true)
            }
            _ => None,
        }
    }

    fn compared(&self, op: Comparison, first: &Node, second: &Node) -> Option<bool> {
        if let (Some(left), Some(right)) = (constant(first), constant(second)) {
            return match op {
                Comparison::Eq => Some(equal(&left, &right)),
                Comparison::Ne => Some(!equal(&left, &right)),
                _ => order(op, left.as_f64()?, right.as_f64()?),
            };
        }
        if let (Some(left), Some(right)) = (path(first), path(second)) {
            return match op {
                Comparison::Eq if left == right => Some(true),
                Comparison::Ne | Comparison::Lt | Comparison::Gt if left == right => Some(false),
                _ => None,
            };
        }
        if let (Comparison::In | Comparison::NotIn, Kind::List(items)) = (op, &second.kind) {
            let fact = self.fact(first);
            let values = fact.values?;
            let items = items.iter().map(constant).collect::<Option<Vec<_>>>()?;
            let has = |value: &Value| items.iter().any(|item| equal(item, value));
            let truth = match (values.iter().any(has), values.iter().all(has)) {
                (false, _) => Some(false),
                (true, true) if fact.always => Some(true),
                _ => None,
            };
            return truth.map(|truth| truth == (op == Comparison::In));
        }
        let (fact, op, value) = match (constant(first), constant(second)) {
            (None, Some(value)) => (self.fact(first), op, value),
            (Some(value), None) => (self.fact(second), turned(op), value),
            _ => return None,
        };
        if let Some(values) = &fact.values {
            let same = values.iter().any(|known| equal(known, &value));
            return match op {
                Comparison::Eq if !same => Some(false),
                Comparison::Ne if !same => Some(true),
                Comparison::Eq if values.len() == 1 && fact.always => Some(true),
                Comparison::Ne if values.len() == 1 && fact.always => Some(false),
                _ => None,
            };
        }
        let value = value.as_f64()?;
        let (least, most) = (fact.least.unwrap_or(f64::NEG_INFINITY), fact.most.unwrap_or(f64::INFINITY));
        match op {
            Comparison::Lt | Comparison::Le | Comparison::Gt | Comparison::Ge => {
                let (low, high) = (order(op, least, value)?, order(op, most, value)?);
                (low == high).then_some(low).filter(|truth| !truth || fact.always)
            }
            Comparison::Eq if value < least || value > most => Some(false),
            Comparison::Ne if value < least || value > most => Some(true),
            _ => None,
        }
    }
}

fn order(op: Comparison, left: f64, right: f64) -> Option<bool> {
    match op {
        Comparison::Lt => Some(left < right),
        Comparison::Le => Some(left <= right),
        Comparison::Gt => Some(left > right),
        Comparison::Ge => Some(left >= right),
        _ => None,
    }
}

fn is_true(value: &Value) -> bool {
    match value {
        Value::String(text) => !text.is_empty(),
        Value::Bool(value) => *value,
        Value::Number(number) => number.as_f64() != Some(0.0),
        _ => false,
    }
}

/// The source text of statements, without white space. `None` if they contain a block.
fn written(stmts: &[Stmt], source: &Source) -> Option<String> {
    let mut text = String::new();
    for stmt in stmts {
        match stmt {
            Stmt::Raw(raw, _) => text.push_str(raw),
            Stmt::Emit(node) => {
                text.push_str("{{");
                text.push_str(source.text.get(node.span.start..node.span.end)?);
                text.push_str("}}");
            }
            _ => return None,
        }
    }
    Some(words(&text))
}

/// A name that a template gives a generated password, and where it uses the name.
#[derive(Debug, Clone)]
pub struct GeneratedName {
    /// The expression that generates it.
    pub call: Location,
    /// Where `{{ name }}` inserts it.
    pub inserted: Vec<Location>,
    /// Whether it is also used in a way that only a render can follow, such as in a partial.
    pub is_passed_on: bool,
    /// Expressions that would have to know the password, such as a filter of it.
    pub computed: Vec<Location>,
}

impl Template {
    /// The names that the template gives generated passwords. A name that is assigned more than once is left out.
    pub fn generated_names(&self) -> Vec<GeneratedName> {
        let unit = &self.unit;
        let mut assigned: Vec<(&Assignee, Option<&Node>)> = Vec::new();
        let mut has_blocks = !unit.macros.is_empty();
        each_stmt(unit, &mut |stmt| match stmt {
            Stmt::For(def) => assigned.push((&def.target, None)),
            Stmt::With { assignments, .. } => {
                assigned.extend(assignments.iter().map(|(target, _)| (target, None)));
            }
            Stmt::Set { target, value } => assigned.push((target, Some(value))),
            Stmt::SetBlock { target, .. } => {
                assigned.push((target, None));
                has_blocks = true;
            }
            Stmt::Filter { .. } => has_blocks = true,
            Stmt::Raw(..) | Stmt::Emit(_) | Stmt::If { .. } | Stmt::Do(_) => {}
        });
        let assigns = |target: &Assignee, name: &Name| {
            let mut all = BTreeSet::new();
            names(target, &mut all);
            all.contains(name)
        };
        let named = assigned.iter().filter_map(|(target, value)| match (target, value) {
            (Assignee::Name(name), Some(value)) if may_be_password(value) => Some((name, *value)),
            _ => None,
        });
        let once = named
            .filter(|(name, _)| assigned.iter().filter(|(target, _)| assigns(target, name)).count() == 1);
        once.map(|(name, value)| uses(unit, name, value, has_blocks)).collect()
    }
}

/// Where a template uses the name of a generated password.
fn uses(unit: &Unit, name: &Name, value: &Node, has_blocks: bool) -> GeneratedName {
    let at = |span: Span| Location::new(&unit.source, span);
    let is_name = |node: &Node| matches!(&node.kind, Kind::Var(other) if other == name);
    let (mut inserted, mut computed, mut count) = (Vec::new(), Vec::new(), 0);
    each_stmt(unit, &mut |stmt| {
        if let Stmt::Emit(node) = stmt
            && is_name(node)
        {
            inserted.push(at(node.span));
        }
    });
    let is_certain = is_password(value);
    each_node(unit, &mut |node| {
        count += usize::from(is_name(node));
        let is_computed = match &node.kind {
            Kind::Filter(filter, input, _) => !filter.lenient && is_name(input),
            Kind::Test(test, input, _) => !test.flag && is_name(input),
            Kind::Binary(_, sides) => is_name(&sides.0) || is_name(&sides.1),
            Kind::Compare(first, rest) => is_name(first) || rest.iter().any(|(_, node)| is_name(node)),
            _ => false,
        };
        if is_computed && is_certain {
            computed.push(at(node.span));
        }
    });
    let is_passed_on = has_blocks || count > inserted.len();
    GeneratedName { call: at(value.span), inserted, is_passed_on, computed }
}

fn is_password(node: &Node) -> bool {
    matches!(&node.kind, Kind::Function(function, ..) if function.name == "password")
}

/// Whether it is a call of `password`, or has one as its default or in a branch.
fn may_be_password(node: &Node) -> bool {
    match &node.kind {
        Kind::Default(parts) => parts.1.as_ref().is_some_and(is_password),
        Kind::If(parts) => is_password(&parts.1) || parts.2.as_ref().is_some_and(is_password),
        _ => is_password(node),
    }
}

fn names(target: &Assignee, out: &mut BTreeSet<Name>) {
    match target {
        Assignee::Name(name) => {
            out.insert(Arc::clone(name));
        }
        Assignee::Field(..) => {}
        Assignee::List(targets, _) => targets.iter().for_each(|target| names(target, out)),
    }
}

/// Calls `f` with each statement, including nested ones.
fn each_stmt<'u>(unit: &'u Unit, f: &mut dyn FnMut(&'u Stmt)) {
    let mut open: Vec<&[Stmt]> = vec![&unit.body];
    open.extend(unit.macros.iter().map(|def| def.body.as_slice()));
    while let Some(stmts) = open.pop() {
        for stmt in stmts {
            f(stmt);
            match stmt {
                Stmt::For(def) => open.extend([def.body.as_slice(), def.otherwise.as_slice()]),
                Stmt::If { then, otherwise, .. } => open.extend([then.as_slice(), otherwise.as_slice()]),
                Stmt::With { body, .. } | Stmt::SetBlock { body, .. } | Stmt::Filter { body, .. } => {
                    open.push(body);
                }
                Stmt::Raw(..) | Stmt::Emit(_) | Stmt::Set { .. } | Stmt::Do(_) => {}
            }
        }
    }
}

/// Calls `f` with each expression, including nested ones.
fn each_node<'u>(unit: &'u Unit, f: &mut dyn FnMut(&'u Node)) {
    let mut all: Vec<&Node> = Vec::new();
    each_stmt(unit, &mut |stmt| match stmt {
        Stmt::Emit(node) | Stmt::Do(node) => all.push(node),
        Stmt::For(def) => {
            all.push(&def.iter);
            all.extend(&def.filter);
        }
        Stmt::If { test, .. } => all.push(test),
        Stmt::With { assignments, .. } => all.extend(assignments.iter().map(|(_, value)| value)),
        Stmt::Set { value, .. } => all.push(value),
        Stmt::SetBlock { filter, .. } => all.extend(filter),
        Stmt::Filter { filter, .. } => all.push(filter),
        Stmt::Raw(..) => {}
    });
    all.extend(unit.macros.iter().flat_map(|def| def.params.iter().filter_map(|(_, value)| value.as_ref())));
    for node in all {
        within(node, f);
    }
}
