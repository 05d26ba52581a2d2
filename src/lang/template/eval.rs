//! Evaluates expressions.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use super::builtins::{self, Args, Filter, Test};
use super::code::{Kind, Node, Piece, Unit};
use super::errors::near;
use super::errors::{Fault, Res};
use super::json::{JsonPath, Meter};
use super::limits::Run;
use super::names::Names;
use super::ops;
use super::scope::{Function, Lets, Scope, Var, convert};
use super::value::{Name, STATUS, Unknown, Val};

/// How many levels of [`Limits::nesting`](super::Limits) a macro, a partial or a let counts for, because they
/// need more stack than an operator.
const CALL_LEVELS: usize = 8;

/// The evaluation of one unit in one scope.
pub(super) struct Cx<'r> {
    pub(super) run: &'r Run<'r>,
    pub(super) scope: &'r Scope,
    pub(super) unit: &'r Unit,
    pub(super) names: Names<Val>,
    /// The number of open loops.
    pub(super) loops: usize,
}

impl<'r> Cx<'r> {
    pub(super) fn new(run: &'r Run<'r>, scope: &'r Scope, unit: &'r Unit) -> Self {
        Self { run, scope, unit, names: Names::default(), loops: 0 }
    }

    /// The value of an expression; an error gets its position.
    pub(super) fn eval(&mut self, node: &Node) -> Res<Val> {
        self.run.fuel(1)?;
        match &node.kind {
            // Constants, variables and fields are common and do not count as a level.
            Kind::Const(value) => Ok(value.clone()),
            Kind::Var(name) => Ok(self.variable(name)),
            Kind::Attr(..) => self.attributes(node).map_err(|fault| fault.at(&self.unit.source, node.span)),
            _ => {
                let deeper = self.run.enter(1);
                let result = deeper.and_then(|()| {
                    let result = self.compute(node);
                    self.run.leave(1);
                    result
                });
                result.map_err(|fault| fault.at(&self.unit.source, node.span))
            }
        }
    }

    /// The value of an expression, which must be known and defined.
    fn need(&mut self, node: &Node) -> Res<Val> {
        match self.eval(node)? {
            Val::Undefined => Err(self.undefined(node)),
            value => {
                value.known()?;
                Ok(value)
            }
        }
    }

    pub(super) fn truthy(&mut self, node: &Node) -> Res<bool> {
        self.eval(node)?.truthy().map_err(|fault| fault.at(&self.unit.source, node.span))
    }

    fn variable(&self, name: &Name) -> Val {
        self.lookup(name).unwrap_or(Val::Undefined)
    }

    /// Evaluates `a.b.c`; of a live object, only `c` is converted.
    fn attributes(&mut self, node: &Node) -> Res<Val> {
        let mut names = Vec::new();
        let mut base = node;
        while let Kind::Attr(inner, name) = &base.kind {
            names.push((name, base));
            base = inner;
        }
        let mut value = match &base.kind {
            Kind::Var(name) => self.variable(name),
            _ => self.eval(base)?,
        };
        while let Some((name, at)) = names.pop() {
            value = match &value {
                Val::Live(live) => {
                    let live = Arc::clone(live);
                    let of_status = **name == *STATUS;
                    let mut json = live.json.get(&**name);
                    while let (Some(found), Some((name, _))) = (json, names.last()) {
                        json = found.get(&***name);
                        names.pop();
                    }
                    names.clear();
                    match json {
                        Some(found) if of_status => Val::of_status(self.run, found)?,
                        Some(found) => Val::converted(self.run, found)?,
                        None if of_status => Val::absent(self.run, name),
                        None => Val::Undefined,
                    }
                }
                Val::Lets(lets) => {
                    let lets = Arc::clone(lets);
                    self.let_value(&lets, name)?
                }
                other => ops::attribute(self.run, other, name)
                    .map_err(|fault| fault.at(&self.unit.source, at.span))?,
            };
        }
        Ok(self.named(value, node))
    }

    /// For an unknown value that is absent from a status: names the field as in the source.
    fn named(&self, value: Val, node: &Node) -> Val {
        match &value {
            Val::Unknown(unknown) if unknown.absent => match self.shown(node) {
                Some(path) => Val::Unknown(Arc::new(Unknown { path, ..(**unknown).clone() })),
                None => value,
            },
            _ => value,
        }
    }

    /// Evaluates `let.name`, once, in a scope without the local variables of blocks and macros.
    fn let_value(&mut self, lets: &Arc<Lets>, name: &Name) -> Res<Val> {
        let Some(text) = lets.get(name) else { return Ok(Val::Undefined) };
        let layer = self.scope.layer_of(lets, name);
        if let Some(value) = layer.remembered(name, self.run.decides) {
            return Ok(value);
        }
        let key = (layer.id(), Arc::clone(name));
        {
            let mut open = self.run.lets.borrow_mut();
            if let Some(start) = open.iter().position(|entry| *entry == key) {
                let mut circle: Vec<&str> = open[start..].iter().map(|(_, name)| &**name).collect();
                circle.push(name);
                let circle = circle.join(" -> ");
                return Err(
                    Fault::failed(format!("lets form a cycle: {circle}")).help("remove one of these reads")
                );
            }
            open.push(key);
        }
        let before = self.run.memory_left();
        let value = self.run.enter(CALL_LEVELS).and_then(|()| {
            let value = text.value(self.run, layer);
            self.run.leave(CALL_LEVELS);
            value
        });
        self.run.lets.borrow_mut().pop();
        let value = match value {
            // The error becomes a value, so that `let.x is known` works for a let that reads an unknown
            // value. The let itself is not absent.
            Err(Fault::Unknown(unknown)) => {
                Val::Unknown(Arc::new(Unknown { absent: false, ..(*unknown).clone() }))
            }
            // All readers of the let would share the namespace, and see each other's changes.
            Ok(Val::Namespace(_)) => return Err(Fault::failed("a namespace cannot be the value of a let")),
            other => other?,
        };
        self.run.keep(before - self.run.memory_left())?;
        layer.remember(name, self.run.decides, value.clone());
        Ok(value)
    }

    /// Only dispatches. The called functions have their own local variables, so that deep expressions need
    /// little stack.
    fn compute(&mut self, node: &Node) -> Res<Val> {
        match &node.kind {
            Kind::Const(value) => Ok(value.clone()),
            Kind::Var(name) => Ok(self.variable(name)),
            Kind::Attr(..) => self.attributes(node),
            Kind::Item(base, key) => self.item(base, key).map(|value| self.named(value, node)),
            Kind::Slice(parts) => self.slice(&parts.0, &parts.1),
            Kind::Not(operand) => self.truthy(operand).map(|truth| Val::Bool(!truth)),
            Kind::Neg(operand) => self.need(operand).and_then(|value| ops::negate(self.run, &value)),
            Kind::And(sides) => self.and_or(&sides.0, &sides.1, true),
            Kind::Or(sides) => self.and_or(&sides.0, &sides.1, false),
            Kind::Binary(..) => self.binary(node),
            Kind::Compare(first, rest) => self.comparison(first, rest),
            Kind::If(parts) => self.if_else(&parts.0, &parts.1, parts.2.as_ref()),
            Kind::Default(parts) => self.default(&parts.0, parts.1.as_ref(), parts.2.as_ref()),
            Kind::Filter(filter, input, args) => self.filter(filter, input, args),
            Kind::Test(test, input, args) => self.test(test, input, args),
            Kind::Function(function, args, keywords) => self.builtin(function, args, keywords),
            Kind::Macro(index, args) => self.macro_call(*index, args),
            Kind::Partial(name, vars) => self.partial(name, vars),
            Kind::Method(base, name, args) => self.method(base, name, args),
            Kind::List(items) => self.list(items),
            Kind::Map(entries) => self.map(entries),
        }
    }

    fn slice(&mut self, base: &Node, bounds: &[Option<Node>; 3]) -> Res<Val> {
        let base = self.need(base)?;
        let mut values = [Val::Null, Val::Null, Val::Null];
        for (value, bound) in values.iter_mut().zip(bounds) {
            if let Some(bound) = bound {
                *value = self.need(bound)?;
            }
        }
        let [start, stop, step] = &values;
        Ok(ops::slice(self.run, &base, [start, stop, step])?.drawn_from(self.run, &base, "[...]"))
    }

    fn and_or(&mut self, left: &Node, right: &Node, and: bool) -> Res<Val> {
        let left = self.eval(left)?;
        if left.truthy()? == and { self.eval(right) } else { Ok(left) }
    }

    fn if_else(&mut self, test: &Node, then: &Node, otherwise: Option<&Node>) -> Res<Val> {
        if self.truthy(test)? {
            self.eval(then)
        } else {
            otherwise.map_or(Ok(Val::Undefined), |otherwise| self.eval(otherwise))
        }
    }

    /// `a + b + c` is left-recursive, so it is evaluated in a loop.
    fn binary(&mut self, node: &Node) -> Res<Val> {
        let mut chain = Vec::new();
        let mut first = node;
        while let Kind::Binary(op, sides) = &first.kind {
            chain.push((*op, &sides.1, first.span));
            first = &sides.0;
        }
        let mut left = self.need(first)?;
        while let Some((op, right, span)) = chain.pop() {
            self.run.fuel(1)?;
            let right = self.need(right)?;
            let result = ops::binary(self.run, op, &left, &right);
            left = result.map_err(|fault| fault.at(&self.unit.source, span))?;
        }
        Ok(left)
    }

    fn filter(&mut self, filter: &'static Filter, input: &Node, args: &[Option<Node>]) -> Res<Val> {
        let input = if filter.lenient { self.eval(input)? } else { self.need(input)? };
        let args = self.arguments(args)?;
        filter.call(self.run, &input, &args)
    }

    fn test(&mut self, test: &'static Test, input: &Node, args: &[Option<Node>]) -> Res<Val> {
        let input = self.eval(input)?;
        let args = self.arguments(args)?;
        test.call(self.run, &input, &args).map(Val::Bool)
    }

    fn builtin(
        &mut self,
        function: &'static builtins::Function,
        args: &[Option<Node>],
        keywords: &[(Name, Node)],
    ) -> Res<Val> {
        let args = self.needed_arguments(args)?;
        let keywords = self.keywords(keywords)?;
        (function.run)(self.run, &Args::of_function(&args, function), &keywords)
    }

    fn list(&mut self, items: &[Node]) -> Res<Val> {
        self.run.items(items.len())?;
        let items = items.iter().map(|item| self.eval(item)).collect::<Res<Vec<_>>>()?;
        Val::list(items)
    }

    fn item(&mut self, base: &Node, key: &Node) -> Res<Val> {
        let base = self.eval(base)?;
        let key = self.need(key)?;
        match &base {
            Val::Lets(lets) => {
                let name = key.text(self.run)?;
                let lets = Arc::clone(lets);
                self.let_value(&lets, &name)
            }
            Val::Live(live) => match (&*live.json, &key) {
                (Value::Object(_), Val::Str(name)) => live.field(self.run, name),
                _ => ops::item(self.run, live.whole(), &key),
            },
            base => ops::item(self.run, base, &key),
        }
    }

    fn comparison(&mut self, first: &Node, rest: &[(super::code::Comparison, Node)]) -> Res<Val> {
        let mut left = self.eval(first)?;
        let mut left_node = first;
        for (op, node) in rest {
            let right = self.eval(node)?;
            // The error names the undefined side.
            let compared = ops::compare(self.run, *op, &left, &right).map_err(|fault| {
                let culprit = match (&left, &right) {
                    (Val::Undefined, _) => left_node,
                    (_, Val::Undefined) => node,
                    _ => return fault,
                };
                let fault = match self.shown(culprit) {
                    Some(text) => fault.message(format!("`{text}` is undefined and has no order")),
                    None => fault,
                };
                self.name_undefined(fault, culprit)
            })?;
            if !compared {
                return Ok(Val::Bool(false));
            }
            (left, left_node) = (right, node);
        }
        Ok(Val::Bool(true))
    }

    /// `value | default(other)`: `other` is evaluated only if it is needed.
    fn default(&mut self, value: &Node, other: Option<&Node>, boolean: Option<&Node>) -> Res<Val> {
        let value = self.eval(value)?;
        let replace = value.is_absent()
            || match value.known()? {
                Val::Null => true,
                known => match boolean {
                    Some(boolean) => self.truthy(boolean)? && !known.truthy()?,
                    None => false,
                },
            };
        match (replace, other) {
            (false, _) => Ok(value),
            (true, Some(other)) => self.eval(other),
            (true, None) => Ok(Val::str("")),
        }
    }

    fn arguments(&mut self, args: &[Option<Node>]) -> Res<Vec<Option<Val>>> {
        args.iter().map(|arg| arg.as_ref().map(|node| self.eval(node)).transpose()).collect()
    }

    fn needed_arguments(&mut self, args: &[Option<Node>]) -> Res<Vec<Option<Val>>> {
        args.iter().map(|arg| arg.as_ref().map(|node| self.need(node)).transpose()).collect()
    }

    fn keywords(&mut self, keywords: &[(Name, Node)]) -> Res<Vec<(Name, Val)>> {
        keywords.iter().map(|(name, node)| Ok((Arc::clone(name), self.eval(node)?))).collect()
    }

    fn map(&mut self, entries: &[(Node, Node)]) -> Res<Val> {
        self.run.items(entries.len())?;
        self.run.map(entries.len())?;
        let mut keyed = Vec::with_capacity(entries.len());
        let mut only_strings = true;
        for (key, value) in entries {
            let key = match self.need(key)? {
                key @ (Val::Str(_) | Val::Int(_) | Val::Bool(_)) => key,
                key @ Val::Fragment(_) => Val::Str(key.text(self.run)?),
                other => return Err(Fault::failed(format!("{} cannot be a key", other.kind()))),
            };
            only_strings &= matches!(key, Val::Str(_));
            keyed.push((key, self.eval(value)?));
        }
        if !only_strings {
            return Val::keyed(keyed);
        }
        let mut map = BTreeMap::new();
        for (key, value) in keyed {
            if let Val::Str(key) = key {
                map.insert(key, value);
            }
        }
        Val::map(map)
    }

    /// A macro sees its arguments, the variables of the top level of its file, and the variables of the scope.
    fn macro_call(&mut self, index: usize, args: &[Option<Node>]) -> Res<Val> {
        let unit = self.unit;
        let Some(def) = unit.macros.get(index) else { return Ok(Val::Undefined) };
        let args = self.arguments(args)?;
        self.run.enter(CALL_LEVELS).map_err(|fault| fault.help(format!("see the macro `{}`", def.name)))?;
        let hidden = self.names.open_macro();
        let loops = std::mem::take(&mut self.loops);
        let mut pieces = Vec::new();
        let body = || -> Res<()> {
            for ((name, default), arg) in def.params.iter().zip(args) {
                let value = match (arg, default) {
                    (Some(arg), _) => arg,
                    (None, Some(default)) => self.eval(default)?,
                    (None, None) => Val::Undefined,
                };
                self.names.push(Arc::clone(name), value);
            }
            self.exec(&def.body, &mut pieces)
        };
        let result = body();
        self.names.close_macro(hidden);
        self.loops = loops;
        self.run.leave(CALL_LEVELS);
        result.map(|()| Val::Fragment(Arc::new(pieces)))
    }

    fn partial(&mut self, name: &Name, vars: &[(Name, Node)]) -> Res<Val> {
        let path = super::partial_path(name);
        let Some(template) = self.run.engine.template(&path) else {
            return Err(Fault::failed(format!("there is no template `{path}`")));
        };
        let mut given = Vec::with_capacity(vars.len());
        for (name, node) in vars {
            let value = match self.eval(node)? {
                // The positions in a fragment belong to this template, so it becomes a string.
                value @ Val::Fragment(_) => Val::Str(value.text(self.run)?),
                value => value,
            };
            given.push((Arc::clone(name), value));
        }
        let layered;
        let scope = if given.is_empty() {
            self.scope
        } else {
            layered = self.scope.layer(given);
            &layered
        };
        self.run.enter(2 * CALL_LEVELS)?;
        let value = template.render(self.run, scope, false);
        self.run.leave(2 * CALL_LEVELS);
        Val::converted(self.run, &value?)
    }

    fn method(&mut self, base_node: &Node, name: &Name, args: &[Node]) -> Res<Val> {
        let base = self.need(base_node)?;
        let args = args.iter().map(|arg| self.eval(arg).map(Some)).collect::<Res<Vec<_>>>()?;
        if let Val::Map(map) = &base
            && let Some(Val::Function(function)) = map.entries.get(name)
        {
            return self.function(&function.clone(), name, &args);
        }
        let is_map = match &base {
            Val::Map(_) | Val::Keyed(_) => true,
            Val::Live(live) => live.json.is_object(),
            _ => false,
        };
        match (&**name, args.as_slice()) {
            // Like `default`: the argument replaces an absent value.
            ("get", [Some(key), Some(default)]) if is_map => {
                let found = ops::item(self.run, &base, key)?;
                Ok(if found.is_absent() { default.clone() } else { found })
            }
            ("keys" | "values" | "items", []) if is_map => match builtins::filter(name) {
                Some(filter) => filter.call(self.run, &base, &[]),
                None => Ok(Val::Undefined),
            },
            ("get", [Some(key)]) if is_map => match ops::item(self.run, &base, key)? {
                Val::Undefined => Ok(Val::Null),
                found => Ok(found),
            },
            ("cycle", choices) if !choices.is_empty() => match &base {
                Val::Loop(state) => {
                    Ok(choices.get(state.index0 % choices.len()).cloned().flatten().unwrap_or(Val::Undefined))
                }
                _ => Err(no_method(&base, name)),
            },
            _ => Err(no_method(&base, name)),
        }
    }

    fn function(&self, function: &Function, name: &str, args: &[Option<Val>]) -> Res<Val> {
        let mut plain = Vec::with_capacity(args.len());
        let mut meter = Meter::new(self.run.limits.output);
        for arg in args.iter().flatten() {
            plain.push(arg.to_json(self.run, &mut meter, &mut JsonPath::default())?);
        }
        match (function.0)(&plain) {
            Ok(Var::Json(value)) => Val::converted(self.run, &value),
            Ok(other) => Ok(convert(name, other)),
            Err(message) => Err(Fault::failed(format!("`{name}`: {message}"))),
        }
    }

    /// The value of a whole expression: a fragment becomes a string.
    pub(super) fn finished(&mut self, node: &Node) -> Res<Val> {
        match self.eval(node)? {
            value @ Val::Fragment(_) => {
                value.text(self.run).map(Val::Str).map_err(|fault| fault.at(&self.unit.source, node.span))
            }
            value => Ok(value),
        }
    }

    /// The text that statements produce.
    pub(super) fn text(&mut self, pieces: Vec<Piece>) -> Res<Name> {
        Val::Fragment(Arc::new(pieces)).text(self.run)
    }
}

fn no_method(base: &Val, name: &str) -> Fault {
    let fault = Fault::failed(format!("{} has no method `{name}`", base.kind()));
    let known = ["keys", "values", "items", "get"];
    if builtins::filter(name).is_some() {
        return fault.help(format!("it is a filter: `| {name}`"));
    }
    match near(name, known) {
        Some(near) => fault.help(format!("did you mean `{near}()`?")),
        None => fault.help(
            "maps have keys(), values(), items() and get(key, default); for the rest there are filters",
        ),
    }
}
