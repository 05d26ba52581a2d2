//! Types of expressions.

use std::rc::Rc;
use std::sync::Arc;

use serde_json::Value;

use super::{Infer, MAX_CALLS, MAX_DEPTH, is_of_spec};
use crate::diag::{Location, Span, did_you_mean};
use crate::schema::{Basic, Field, Fields, Member, Shape, Type};
use crate::template::access;
use crate::template::code::{Kind, Node};
use crate::template::value::{Name, Val};

/// Types without fields and items.
const SCALAR: Basic = Basic::NUMBER;

impl<'a> Infer<'a> {
    /// The type of an expression, which may be absent.
    pub(super) fn infer(&mut self, node: &'a Node) -> Type<'a> {
        if self.fuel == 0 || self.calls > MAX_CALLS || self.depth > MAX_DEPTH {
            return Type::any();
        }
        self.fuel -= 1;
        self.depth += 1;
        let ty = self.of_kind(node);
        self.depth -= 1;
        ty
    }

    fn of_kind(&mut self, node: &'a Node) -> Type<'a> {
        match &node.kind {
            Kind::Const(value) => literal(value),
            Kind::Var(name) => self.variable(name),
            Kind::Attr(base, name) => {
                if self.is_let(base) {
                    return self.let_value(name);
                }
                let base_type = self.infer(base);
                self.member(&base_type, name, node.span)
            }
            Kind::Item(base, key) => self.item_at(base, key, node.span),
            Kind::Slice(parts) => {
                for bound in parts.1.iter().flatten() {
                    self.infer(bound);
                }
                let base = self.need(&parts.0);
                if base.basic.value() == Basic::STRING { Type::string() } else { base }
            }
            Kind::Not(operand) => {
                self.infer(operand);
                Type::of(Basic::BOOL)
            }
            Kind::Neg(operand) => {
                let ty = self.need(operand);
                if ty.basic.misses(Basic::NUMBER | Basic::QUANTITY) {
                    let message = format!("{} cannot be negated", ty.basic.value().shown());
                    self.error("type::operand", node.span, message, None);
                    return Type::any();
                }
                Type::of(Basic::NUMBER | Basic::QUANTITY)
            }
            Kind::And(sides) => {
                let left = self.infer(&sides.0);
                let mark = self.assumed(&sides.0, true);
                let right = self.infer(&sides.1);
                self.forget(mark);
                left.or(right)
            }
            Kind::Or(sides) => {
                let left = self.infer(&sides.0);
                let mark = self.assumed(&sides.0, false);
                let right = self.infer(&sides.1);
                self.forget(mark);
                left.without(Basic::ABSENT | Basic::NULL).or(right)
            }
            Kind::If(parts) => {
                let (test, then, otherwise) = &**parts;
                self.infer(test);
                let mark = self.assumed(test, true);
                let then = self.infer(then);
                self.forget(mark);
                let Some(otherwise) = otherwise else { return then };
                let mark = self.assumed(test, false);
                let otherwise = self.infer(otherwise);
                self.forget(mark);
                then.or(otherwise)
            }
            Kind::Default(parts) => {
                let (value, other, boolean) = &**parts;
                if let Some(boolean) = boolean {
                    self.infer(boolean);
                }
                let value = self.infer(value).without(Basic::ABSENT | Basic::NULL);
                match other {
                    Some(other) => value.or(self.infer(other)),
                    None => value.or(Type::string()),
                }
            }
            Kind::Binary(op, sides) => self.binary(*op, &sides.0, &sides.1, node.span),
            Kind::Compare(first, rest) => self.comparison(first, rest),
            Kind::Test(_, input, args) => {
                self.infer(input);
                for arg in args.iter().flatten() {
                    self.infer(arg);
                }
                Type::of(Basic::BOOL)
            }
            Kind::Filter(filter, input, args) => {
                let input_type = self.infer(input);
                let input_type =
                    if filter.lenient { input_type } else { self.defined(input_type, input.span) };
                self.filter(filter.name, &input_type, args, node.span)
            }
            Kind::Function(function, args, keywords) => {
                let args: Vec<Type<'a>> = args
                    .iter()
                    .map(|arg| arg.as_ref().map_or_else(Type::any, |arg| self.need(arg)))
                    .collect();
                for (_, value) in keywords {
                    self.infer(value);
                }
                self.function(function.name, &args, node.span)
            }
            Kind::Macro(_, args) => {
                for arg in args.iter().flatten() {
                    self.infer(arg);
                }
                Type::of(Basic::STRING | Basic::OTHER)
            }
            Kind::Partial(name, vars) => self.partial(name, vars),
            Kind::Method(base, name, args) => self.method(base, name, args, node.span),
            Kind::List(items) => Type::list(items.iter().map(|item| self.infer(item)).collect()),
            Kind::Map(entries) => self.map(entries),
        }
    }

    /// The types of all branches of an expression.
    pub(super) fn branches(&mut self, node: &'a Node, found: &mut Vec<(Type<'a>, Location)>) {
        match &node.kind {
            Kind::If(parts) => {
                let (test, then, otherwise) = &**parts;
                for (branch, holds) in [(Some(then), true), (otherwise.as_ref(), false)] {
                    let Some(branch) = branch else { continue };
                    let mark = self.assumed(test, holds);
                    self.branches(branch, found);
                    self.forget(mark);
                }
            }
            Kind::Default(parts) => {
                for branch in std::iter::once(&parts.0).chain(&parts.1) {
                    self.branches(branch, found);
                }
            }
            _ => {
                let ty = self.infer(node);
                found.push((ty, self.location(node.span)));
            }
        }
    }

    /// Adds the facts that follow from a test; returns the mark for [`Infer::forget`].
    pub(super) fn assumed(&mut self, test: &'a Node, holds: bool) -> usize {
        let mark = self.mark();
        let facts = self.facts(test, holds);
        self.facts.extend(facts);
        mark
    }

    fn map(&mut self, entries: &'a [(Node, Node)]) -> Type<'a> {
        let mut fields = Fields { entries: Vec::new(), is_open: false };
        for (key, value) in entries {
            let key_type = self.need(key);
            let value_type = self.infer(value);
            match key_type.as_text() {
                Some(text) => fields.entries.push(Field {
                    key: text.to_owned(),
                    at: Some(self.location(key.span)),
                    value: value_type,
                }),
                None => fields.is_open = true,
            }
        }
        Type::map(fields)
    }

    fn variable(&mut self, name: &Name) -> Type<'a> {
        let found = self.names.get(name).or_else(|| self.vars.get(&**name)).cloned();
        found.map_or_else(Type::any, |ty| self.assured(ty))
    }

    /// Removes absence from a type whose path is known to be present.
    fn assured(&self, ty: Type<'a>) -> Type<'a> {
        let is_known = ty.origin.as_ref().is_some_and(|origin| self.facts.contains(origin));
        if is_known { ty.without(Basic::ABSENT) } else { ty }
    }

    /// Whether the node is the variable `let`.
    pub(super) fn is_let(&self, node: &Node) -> bool {
        matches!(&node.kind, Kind::Var(name) if &**name == "let" && self.names.get(name).is_none())
    }

    fn let_value(&mut self, name: &str) -> Type<'a> {
        let Some(text) = self.lets.get(name) else { return Type::any() };
        if self.calls > MAX_CALLS {
            return Type::any();
        }
        self.calls += 1;
        let ty = self.text_type(text, false);
        self.calls -= 1;
        ty
    }

    /// The type of `base.name`.
    pub(super) fn member(&mut self, base: &Type<'a>, name: &str, span: Span) -> Type<'a> {
        let origin: Option<Rc<str>> = base.origin.as_ref().map(|origin| {
            let origin = if &**origin == "instance" && name == "spec" { "" } else { &**origin };
            Rc::from(if origin.is_empty() { name.to_owned() } else { format!("{origin}.{name}") })
        });
        if base.basic.misses(Basic::ANY.without(SCALAR | Basic::STRING | Basic::BOOL | Basic::LIST)) {
            let message = format!("{} has no fields: `{name}`", base.basic.value().shown());
            let help = if base.basic.value().overlaps(Basic::LIST) {
                format!("take one of its items, or `| map(attribute='{name}')`")
            } else {
                format!("use the value itself, without `.{name}`")
            };
            self.error("type::path", span, message, Some(help));
            return Type::any();
        }
        // `error` is the reason why a ref could not be read.
        if name == "error" && base.origin.as_deref().is_some_and(|origin| origin.starts_with("refs.")) {
            return Type::string();
        }
        match base.member(name) {
            Member::Found(mut found) => {
                let inherits = base.basic & Basic::ABSENT;
                let origin = origin.or_else(|| found.origin.clone());
                if let (Shape::Schema(schema), Some(origin)) = (&base.shape, &origin)
                    && is_of_spec(origin)
                    && &**origin != "spec"
                    && !self.is_there(*schema, name)
                {
                    found = found.with(Basic::ABSENT);
                }
                self.assured(found.with(inherits).read_from(origin))
            }
            Member::Missing(names) => {
                let parent = base.origin.as_deref().unwrap_or_default();
                let shown =
                    if parent.is_empty() { name.to_owned() } else { format!("{parent}{}", access(name)) };
                let message = format!("there is no `{shown}`");
                let help = match did_you_mean(name, names.iter().map(String::as_str)) {
                    Some(near) if parent.is_empty() => Some(format!("did you mean `{near}`?")),
                    Some(near) => Some(format!("did you mean `{parent}{}`?", access(near))),
                    None if names.len() <= 20 && !names.is_empty() => {
                        Some(format!("there is {}", names.join(", ")))
                    }
                    None => None,
                };
                self.error("type::path", span, message, help);
                Type::any()
            }
            Member::Unknown => Type::any().read_from(origin),
        }
    }

    fn item_at(&mut self, base: &'a Node, key: &'a Node, span: Span) -> Type<'a> {
        let key_type = self.need(key);
        if self.is_let(base) {
            return match key_type.as_text() {
                Some(name) => {
                    let name = name.to_owned();
                    self.let_value(&name)
                }
                None => Type::any(),
            };
        }
        let base_type = self.infer(base);
        if let Some(origin) = &base_type.origin {
            let at = self.location(key.span);
            self.key(&Rc::clone(origin), &key_type, &at);
        }
        let is_map = base_type.basic.value() == Basic::MAP;
        if is_map && let Some(name) = key_type.as_text() {
            let name = name.to_owned();
            return self.member(&base_type, &name, span);
        }
        if base_type.basic.misses(Basic::ANY.without(SCALAR | Basic::BOOL)) {
            let message = format!("{} has no items", base_type.basic.value().shown());
            self.error("type::path", span, message, None);
            return Type::any();
        }
        if base_type.basic.value() == Basic::LIST && key_type.basic.misses(Basic::INT | Basic::FLOAT) {
            let message = format!(
                "a list is looked up with whole numbers, not with {}",
                key_type.basic.value().shown()
            );
            self.error("type::path", span, message, None);
            return Type::any();
        }
        if base_type.basic.value().overlaps(Basic::STRING) {
            return Type::any();
        }
        let inherits = base_type.basic & Basic::ABSENT;
        Self::item_of(&base_type).with(inherits)
    }

    /// An item of a list, or a value of a map.
    pub(super) fn item_of(base: &Type<'a>) -> Type<'a> {
        let item = base.item();
        match (&item.origin, &base.origin) {
            (None, Some(origin)) => item.read_from(Some(Rc::from(format!("{origin}[]")))),
            _ => item,
        }
    }

    fn partial(&mut self, name: &Name, vars: &'a [(Name, Node)]) -> Type<'a> {
        let given: Vec<_> = vars.iter().map(|(name, node)| (name, self.infer(node))).collect();
        let path = crate::template::partial_path(name);
        let Some(template) = self.engine.template(&path).filter(|_| self.calls < MAX_CALLS) else {
            return Type::any();
        };
        self.calls += 4;
        let before: Vec<_> = given
            .into_iter()
            .map(|(name, ty)| (name.to_string(), self.vars.insert(name.to_string(), ty)))
            .collect();
        let documents = self.within(&template.unit, |infer| infer.documents(&template.unit));
        for (name, old) in before {
            match old {
                Some(old) => self.vars.insert(name, old),
                None => self.vars.remove(&name),
            };
        }
        self.calls -= 4;
        if documents.is_empty() { Type::any() } else { Type::one_of(documents) }
    }
}

/// The type of a constant.
pub(super) fn literal<'a>(value: &Val) -> Type<'a> {
    match value {
        Val::Omit => Type::of(Basic::OMIT),
        Val::Null => Type::literal(&Value::Null),
        Val::Bool(bool) => Type::literal(&Value::Bool(*bool)),
        Val::Int(int) => match i64::try_from(*int) {
            Ok(int) => Type::literal(&Value::from(int)),
            Err(_) => Type::of(Basic::INT),
        },
        Val::Float(float) => Type::literal(&Value::from(*float)),
        Val::Str(text) => Type::literal(&Value::String(text.to_string())),
        Val::List(list) => Type::list(list.items.iter().map(literal).collect()),
        Val::Map(map) => {
            let entries = map.entries.iter().map(|(key, value)| Field {
                key: Arc::clone(key).to_string(),
                at: None,
                value: literal(value),
            });
            Type::map(Fields { entries: entries.collect(), is_open: false })
        }
        _ => Type::any(),
    }
}
