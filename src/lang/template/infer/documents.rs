//! Types of rendered documents: statements are walked, the text is parsed as YAML, and types replace expressions as
//! values do at render time.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::sync::Arc;

use super::Infer;
use crate::diag::{Location, Source, Span};
use crate::schema::{Basic, Field, Fields, Shape, Type, literal_basic};
use crate::template::code::{Assignee, For, Kind, Node, Stmt, Unit};
use crate::template::names::Names;
use crate::template::substitute::{CLOSE, OPEN};
use crate::yaml::{self, Duplicates, Merge, NodeValue, Style};

/// The maximum number of variants of one template.
const MAX_VARIANTS: usize = 32;

/// A piece of the output of a template.
pub(super) enum Part<'a> {
    /// Text, and its offset in the source.
    Raw(&'a str, usize),
    Slot(Type<'a>, Span),
}

/// The output of a variant.
struct Output<'p, 'a> {
    parts: &'p [Part<'a>],
    /// The offset of each part in the text.
    starts: Vec<usize>,
}

/// The number of variants that covers each branch.
fn variants(stmts: &[Stmt]) -> usize {
    let each = stmts.iter().map(|stmt| match stmt {
        Stmt::If { then, otherwise, .. } => variants(then) + variants(otherwise),
        Stmt::For(def) if def.otherwise.is_empty() => variants(&def.body),
        Stmt::For(def) => variants(&def.body) + variants(&def.otherwise),
        Stmt::With { body, .. } | Stmt::SetBlock { body, .. } | Stmt::Filter { body, .. } => variants(body),
        Stmt::Raw(..) | Stmt::Emit(_) | Stmt::Set { .. } | Stmt::Do(_) => 1,
    });
    each.max().unwrap_or(1).min(MAX_VARIANTS)
}

impl<'a> Infer<'a> {
    /// The document of each variant that is valid YAML.
    pub(super) fn documents(&mut self, unit: &'a Unit) -> Vec<Type<'a>> {
        let in_macros = unit.macros.iter().map(|def| variants(&def.body)).max().unwrap_or(1);
        let count = variants(&unit.body).max(in_macros);
        let mut documents = Vec::new();
        for variant in 0..count {
            self.variant = variant;
            self.names = Names::default();
            let mark = self.mark();
            let mut parts = Vec::new();
            self.stmts(&unit.body, &mut parts);
            documents.extend(self.document(&parts));
            self.forget(mark);
        }
        // A truncated analysis cannot report missing fields.
        if self.fuel == 0 { Vec::new() } else { documents }
    }

    /// Infers the type of text with expressions, each of which must have a text form.
    pub(super) fn string(&mut self, body: &'a [Stmt]) -> Type<'a> {
        let mut parts = Vec::new();
        self.stmts(body, &mut parts);
        for part in parts {
            if let Part::Slot(ty, span) = part {
                let ty = self.defined(ty, span);
                self.in_text(&ty, span);
            }
        }
        Type::string()
    }

    pub(super) fn stmts(&mut self, stmts: &'a [Stmt], out: &mut Vec<Part<'a>>) {
        let mark = self.mark();
        for stmt in stmts {
            if self.fuel == 0 {
                break;
            }
            self.fuel -= 1;
            match stmt {
                Stmt::Raw(text, offset) => out.push(Part::Raw(text, *offset)),
                Stmt::Emit(node) => self.emit(node, out),
                Stmt::Do(node) => {
                    self.infer(node);
                }
                Stmt::Set { target, value } => {
                    let ty = self.infer(value);
                    self.assign(target, ty);
                }
                Stmt::SetBlock { target, filter, body } => {
                    self.block(body);
                    if let Some(filter) = filter {
                        self.infer(filter);
                    }
                    let ty =
                        if filter.is_some() { Type::any() } else { Type::of(Basic::STRING | Basic::OTHER) };
                    self.assign(target, ty);
                }
                Stmt::Filter { filter, body } => {
                    self.block(body);
                    let ty = self.infer(filter);
                    out.push(Part::Slot(ty, filter.span));
                }
                Stmt::If { test, then, otherwise } => self.branch(test, then, otherwise, out),
                Stmt::With { assignments, body } => {
                    self.names.open();
                    for (target, value) in assignments {
                        let ty = self.infer(value);
                        self.assign(target, ty);
                    }
                    self.stmts(body, out);
                    self.names.close();
                }
                Stmt::For(def) => self.for_loop(def, out),
            }
        }
        self.forget(mark);
    }

    fn block(&mut self, body: &'a [Stmt]) {
        self.names.open();
        self.stmts(body, &mut Vec::new());
        self.names.close();
    }

    fn branch(&mut self, test: &'a Node, then: &'a [Stmt], otherwise: &'a [Stmt], out: &mut Vec<Part<'a>>) {
        self.infer(test);
        let first = variants(then);
        let all = first + variants(otherwise);
        let before = self.variant;
        let pick = self.variant % all;
        let holds = pick < first;
        let mark = self.assumed(test, holds);
        self.variant = if holds { pick } else { pick - first };
        self.stmts(if holds { then } else { otherwise }, out);
        self.variant = before;
        self.forget(mark);
    }

    fn for_loop(&mut self, def: &'a For, out: &mut Vec<Part<'a>>) {
        let iterated = self.infer(&def.iter);
        let iterated = self.iterable(iterated, def.iter.span);
        let item = Self::each_of(&iterated);
        if !def.otherwise.is_empty() {
            let first = variants(&def.body);
            let pick = self.variant % (first + variants(&def.otherwise));
            if pick >= first {
                let before = std::mem::replace(&mut self.variant, pick - first);
                self.stmts(&def.otherwise, out);
                self.variant = before;
                return;
            }
        }
        self.names.open();
        self.names.push("loop".into(), Type::any());
        self.assign(&def.target, item);
        let mark = self.mark();
        if let Some(filter) = &def.filter {
            self.infer(filter);
            self.assumed(filter, true);
        }
        self.stmts(&def.body, out);
        self.forget(mark);
        self.names.close();
    }

    /// The iterated value: a list, or the keys of a map.
    pub(super) fn iterable(&mut self, ty: Type<'a>, span: Span) -> Type<'a> {
        let ty = self.defined(ty, span);
        if ty.basic.misses(Basic::LIST | Basic::MAP | Basic::OTHER) {
            let got = ty.basic.value();
            let message = format!("{} is not a list", got.shown());
            let help = got.overlaps(Basic::NUMBER).then(|| "to count, loop over `range(x)`".to_owned());
            self.error("type::loop", span, message, help);
            return Type::any();
        }
        ty
    }

    /// The type of a loop variable.
    pub(super) fn each_of(iterated: &Type<'a>) -> Type<'a> {
        match iterated.basic.value() {
            Basic::LIST => Self::item_of(iterated),
            Basic::MAP if !matches!(iterated.shape, Shape::Each(_)) => Type::string(),
            _ => Type::any(),
        }
    }

    fn assign(&mut self, target: &'a Assignee, ty: Type<'a>) {
        match target {
            Assignee::Name(name) => self.names.set(name, ty),
            Assignee::Field(..) => {}
            Assignee::List(targets, _) => {
                let items = match &ty.shape {
                    Shape::List(items) if items.len() == targets.len() => items.to_vec(),
                    _ => vec![Type::any(); targets.len()],
                };
                for (target, item) in targets.iter().zip(items) {
                    self.assign(target, item);
                }
            }
        }
    }

    /// A macro call produces the macro's statements, everything else a value.
    fn emit(&mut self, node: &'a Node, out: &mut Vec<Part<'a>>) {
        let Kind::Macro(index, args) = &node.kind else {
            let ty = self.infer(node);
            out.push(Part::Slot(ty, node.span));
            return;
        };
        let Some(def) = self.macros.get(*index).filter(|_| self.calls < super::MAX_CALLS) else {
            out.push(Part::Slot(Type::any(), node.span));
            return;
        };
        let given: Vec<Option<Type<'a>>> =
            args.iter().map(|arg| arg.as_ref().map(|arg| self.infer(arg))).collect();
        let hidden = self.names.open_macro();
        self.calls += 2;
        for ((name, default), arg) in def.params.iter().zip(given) {
            let ty = match (arg, default) {
                (Some(ty), _) => ty,
                (None, Some(default)) => self.infer(default),
                (None, None) => Type::any(),
            };
            self.names.push(Arc::clone(name), ty);
        }
        self.stmts(&def.body, out);
        self.calls -= 2;
        self.names.close_macro(hidden);
    }

    /// The document of a variant. `None` if it is not valid YAML, which happens for impossible combinations
    /// of conditions.
    fn document(&mut self, parts: &[Part<'a>]) -> Option<Type<'a>> {
        let mut text = String::new();
        let mut starts = Vec::with_capacity(parts.len());
        for (index, part) in parts.iter().enumerate() {
            starts.push(text.len());
            match part {
                Part::Raw(raw, _) => text.push_str(raw),
                Part::Slot(..) => {
                    let _ = write!(text, "{OPEN}{index}{CLOSE}");
                }
            }
        }
        self.fuel = self.fuel.saturating_sub(text.len() / 32);
        if self.fuel == 0 {
            return None;
        }
        let options = yaml::Options {
            merge: Merge::Keep,
            duplicate_keys: Duplicates::Last,
            ..yaml::Options::default()
        };
        let mut documents = yaml::parse(&Source::new("", text), &options).ok()?;
        if documents.len() != 1 {
            return None;
        }
        Some(self.node(&documents.pop()?, &Output { parts, starts }))
    }

    fn written(&self, span: Span, output: &Output<'_, 'a>) -> Location {
        let start = output.original(span.start);
        self.location(Span::new(start, output.original(span.end).max(start)))
    }

    fn node(&mut self, node: &yaml::Node, output: &Output<'_, 'a>) -> Type<'a> {
        let at = self.written(node.span, output);
        match &node.value {
            NodeValue::Null | NodeValue::Bool(_) | NodeValue::Number(_) => {
                let value = node.to_json();
                let mut ty = Type::literal(&value);
                ty.basic = literal_basic(&value);
                ty.written(at)
            }
            NodeValue::String(text) => self.scalar(text, node.style, output, at),
            NodeValue::Seq(items) => {
                Type::list(items.iter().map(|item| self.node(item, output)).collect()).written(at)
            }
            NodeValue::Map(entries) => {
                let fields = self.fields(entries, output);
                Type::map(fields).written(at)
            }
        }
    }

    fn fields(&mut self, entries: &[(yaml::Node, yaml::Node)], output: &Output<'_, 'a>) -> Fields<'a> {
        let mut fields = Fields { entries: Vec::new(), is_open: false };
        let mut merged = Vec::new();
        for (key, value) in entries {
            let at = self.written(key.span, output);
            let value = self.node(value, output);
            if key.is_merge_key() {
                match &value.shape {
                    Shape::List(items) => merged.extend(items.iter().cloned()),
                    _ => merged.push(value),
                }
                continue;
            }
            let text = key.as_str().unwrap_or_default();
            let key = if text.contains(OPEN) {
                let key_type = self.scalar(text, Style::Quoted, output, at.clone());
                fields.is_open = true;
                key_type.as_text().unwrap_or_default().to_owned()
            } else {
                text.to_owned()
            };
            fields.entries.push(Field { key, at: Some(at), value });
        }
        merge(&mut fields, &merged);
        fields
    }

    /// A scalar with or without placeholders.
    fn scalar(&mut self, text: &str, style: Style, output: &Output<'_, 'a>, at: Location) -> Type<'a> {
        if !text.contains(OPEN) {
            return Type::literal(&serde_json::Value::String(text.to_owned())).written(at);
        }
        let mut slots = Vec::new();
        let mut is_alone = true;
        let mut rest = text;
        while let Some((before, after)) = rest.split_once(OPEN) {
            let Some((index, after)) = after.split_once(CLOSE) else { return Type::any() };
            is_alone &= before.is_empty() && after.is_empty();
            match index.parse().ok().and_then(|index: usize| output.parts.get(index)) {
                Some(Part::Slot(ty, span)) => slots.push((ty.clone(), *span)),
                _ => return Type::any(),
            }
            rest = after;
        }
        let place = at;
        if is_alone
            && style != Style::Block
            && let [(ty, span)] = slots.as_slice()
        {
            let ty = self.defined(ty.clone(), *span);
            if style == Style::Plain {
                return ty.written(self.location(*span));
            }
            if ty.basic.value().overlaps(Basic::LIST | Basic::MAP) && ty.basic.misses(super::operators::TEXT)
            {
                // A list or a map in quotes is always an error.
                let message =
                    format!("{} in quotes cannot be converted to a string", ty.basic.value().shown());
                let help = "remove the quotes to insert the native value".to_owned();
                self.error("type::text", *span, message, Some(help));
                return Type::any();
            }
            if ty.basic == Basic::OMIT || ty.basic.is_any() {
                let mut string = Type::of(Basic::STRING | (ty.basic & Basic::OMIT));
                string.quoted = Some(ty.basic);
                return string.written(place);
            }
            let mut string = Type::of(Basic::STRING | (ty.basic & Basic::OMIT));
            if ty.basic.value() == Basic::STRING {
                string.shape = ty.shape.clone();
                if !matches!(string.shape, Shape::Literal(_) | Shape::Schema(_)) {
                    string.shape = Shape::Unknown;
                }
            }
            string.quoted = Some(ty.basic);
            return string.written(place);
        }
        for (ty, span) in slots {
            let ty = self.defined(ty, span);
            self.in_text(&ty, span);
        }
        Type::string().written(place)
    }
}

/// Adds the entries of maps that `<<` merges: existing entries take precedence.
fn merge<'a>(fields: &mut Fields<'a>, merged: &[Type<'a>]) {
    if merged.is_empty() {
        return;
    }
    let mut known: HashSet<String> = fields.entries.iter().map(|field| field.key.clone()).collect();
    for ty in merged {
        let Shape::Map(more) = &ty.shape else {
            fields.is_open = true;
            continue;
        };
        fields.is_open |= more.is_open;
        for field in &more.entries {
            if known.insert(field.key.clone()) || field.key.is_empty() {
                fields.entries.push(field.clone());
            }
        }
    }
}

impl Output<'_, '_> {
    /// The offset in the template of an offset in the text.
    fn original(&self, offset: usize) -> usize {
        let Some(index) = self.starts.partition_point(|start| *start <= offset).checked_sub(1) else {
            return 0;
        };
        let (part, within) = (&self.parts[index], offset - self.starts[index]);
        match part {
            Part::Raw(raw, place) => place + within.min(raw.len()),
            Part::Slot(_, span) => {
                let length = OPEN.len_utf8() + CLOSE.len_utf8() + index.to_string().len();
                // Only the end of the text is behind its part.
                if within < length { span.start } else { span.end }
            }
        }
    }
}
