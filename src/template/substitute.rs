//! The tree of a rendered template: its text, in which placeholders stand for values, is parsed as
//! YAML; then the values take the places of the placeholders. So no value ever meets the YAML parser.

use std::fmt::Write as _;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::code::{Piece, Slot};
use super::errors::{Fault, FaultKind, Res};
use super::json::{JsonPath, Meter, Step};
use super::limits::{Run, VALUE_BYTES};
use super::value::{Name, Val};
use crate::diag::{Diagnostic, Source, Span};
use crate::yaml::{self, Node, NodeValue, Style};

/// The characters round a placeholder's index. Both are private-use and refused in templates; values
/// may hold them, for values are never searched.
pub(super) const OPEN: char = '\u{10F7A1}';
pub(super) const CLOSE: char = '\u{10F7A2}';

/// The text with placeholders.
pub(super) fn assemble(run: &Run<'_>, pieces: &[Piece]) -> Res<String> {
    let mut text = String::new();
    for (index, piece) in pieces.iter().enumerate() {
        match piece {
            Piece::Raw(raw, _) => text.push_str(raw),
            Piece::Slot(_) => {
                let _ = write!(text, "{OPEN}{index}{CLOSE}");
            }
        }
        if text.len() > 4 * run.limits.output {
            return Err(Fault::limit(
                format!("the text of the document passes the limit of {} bytes", 4 * run.limits.output),
                "an object of Kubernetes can hold no more than about 1 MiB: split it",
            ));
        }
    }
    Ok(text)
}

/// The document of an assembled text; null if it is empty.
pub(super) fn parse(text: String, source: &Arc<Source>, pieces: &[Piece]) -> Result<Node, Box<Diagnostic>> {
    let rendered = Source::new(source.name.clone(), text);
    let options = yaml::Options {
        merge: yaml::Merge::Keep,
        duplicate_keys: yaml::Duplicates::Error,
        ..yaml::Options::default()
    };
    let mut documents = yaml::parse(&rendered, &options)
        .map_err(|diagnostic| Box::new(in_template(diagnostic, source, pieces)))?;
    if let [_, second, ..] = documents.as_slice() {
        let diagnostic =
            Diagnostic::error("template::documents", "a template is one document, this one has more")
                .at(&rendered, second.span)
                .help("take out the `---` between, and make a child of each document");
        return Err(Box::new(in_template(diagnostic, source, pieces)));
    }
    Ok(documents.pop().unwrap_or(Node { value: NodeValue::Null, span: Span::default(), style: Style::Plain }))
}

/// A diagnostic about the assembled text as one about the template.
fn in_template(mut diagnostic: Diagnostic, source: &Arc<Source>, pieces: &[Piece]) -> Diagnostic {
    if let Some(location) = &mut diagnostic.location {
        let start = original(location.span.start, pieces);
        let end = original(location.span.end, pieces).max(start);
        location.source = Arc::clone(source);
        location.span = Span::new(start, end);
    }
    diagnostic.message = without_placeholders(&diagnostic.message);
    diagnostic.path = diagnostic.path.map(|path| without_placeholders(&path));
    diagnostic.help = diagnostic.help.map(|help| without_placeholders(&help));
    diagnostic
}

/// The offset in the template of an offset in the assembled text.
fn original(offset: usize, pieces: &[Piece]) -> usize {
    let mut at = 0;
    let mut last = 0;
    for (index, piece) in pieces.iter().enumerate() {
        let (length, place) = match piece {
            Piece::Raw(raw, place) => (raw.len(), *place),
            Piece::Slot(slot) => {
                (OPEN.len_utf8() + CLOSE.len_utf8() + index.to_string().len(), slot.span.start)
            }
        };
        if offset < at + length {
            return match piece {
                Piece::Raw(..) => place + (offset - at),
                Piece::Slot(_) => place,
            };
        }
        last = match piece {
            Piece::Raw(..) => place + length,
            Piece::Slot(slot) => slot.span.end,
        };
        at += length;
    }
    last
}

/// `{{...}}` for each placeholder.
fn without_placeholders(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(OPEN) {
        out.push_str(before);
        out.push_str("{{...}}");
        rest = after.split_once(CLOSE).map_or("", |(_, rest)| rest);
    }
    out.push_str(rest);
    out
}

/// Puts the values in the places of the placeholders.
pub(super) struct Substitute<'a> {
    run: &'a Run<'a>,
    source: &'a Arc<Source>,
    pieces: &'a [Piece],
    meter: Meter,
    path: JsonPath,
}

/// A part of a scalar's text.
enum Part<'t, 'a> {
    Text(&'t str),
    Slot(&'a Slot),
}

impl<'a> Substitute<'a> {
    pub(super) fn new(run: &'a Run<'a>, source: &'a Arc<Source>, pieces: &'a [Piece]) -> Self {
        let meter = Meter::new(run.limits.output);
        Self { run, source, pieces, meter, path: JsonPath::default() }
    }

    /// Counts what has been made so far as a result of the evaluation.
    pub(super) fn output(&self) -> Res<()> {
        self.run.output(&self.meter)
    }

    /// The value of the whole document.
    pub(super) fn document(&mut self, node: &Node) -> Res<Value> {
        self.node(node)?.ok_or_else(|| {
            self.fault(
                Fault::failed("`omit` is the whole document").help("use `when` of the child to leave it out"),
                None,
            )
        })
    }

    fn fault(&self, fault: Fault, slot: Option<&Slot>) -> Fault {
        let fault = fault.path(|| self.path.to_string());
        match slot {
            Some(slot) => fault.at(self.source, slot.span),
            None => fault,
        }
    }

    /// The value of a slot, which must not be an error.
    fn slot(&self, slot: &Slot) -> Res<Val> {
        let val = slot.val.clone().map_err(|fault| self.fault(fault, Some(slot)))?;
        match val.known() {
            Ok(_) => Ok(val),
            Err(fault) => Err(fault),
        }
    }

    /// None if it is left out.
    fn node(&mut self, node: &Node) -> Res<Option<Value>> {
        self.meter.take(8)?;
        self.run.memory(VALUE_BYTES)?;
        Ok(Some(match &node.value {
            NodeValue::Null => Value::Null,
            NodeValue::Bool(bool) => Value::Bool(*bool),
            NodeValue::Number(number) => Value::Number(number.clone()),
            NodeValue::String(text) => {
                if !text.contains([OPEN, CLOSE]) {
                    self.meter.take(text.len())?;
                    self.run.memory(text.len())?;
                    return Ok(Some(Value::String(text.clone())));
                }
                let parts = self.parts(text, node.span)?;
                if let [Part::Slot(slot)] = parts.as_slice()
                    && node.style != Style::Block
                {
                    return self.alone(slot, node.style);
                }
                let text = self.concat(&parts)?;
                self.meter.take(text.len())?;
                Value::String(text)
            }
            NodeValue::Seq(items) => {
                let mut out = Vec::with_capacity(items.len());
                for (index, item) in items.iter().enumerate() {
                    self.path.0.push(Step::Index(index));
                    out.extend(self.node(item)?);
                    self.path.0.pop();
                }
                Value::Array(out)
            }
            NodeValue::Map(entries) => Value::Object(self.map(entries)?),
        }))
    }

    /// A placeholder alone: plain its native value, in quotes a string.
    fn alone(&mut self, slot: &Slot, style: Style) -> Res<Option<Value>> {
        let val = self.slot(slot)?;
        if matches!(val, Val::Omit) {
            return Ok(None);
        }
        if style == Style::Plain {
            let depth = self.path.0.len();
            let result = val.to_json(self.run, &mut self.meter, &mut self.path);
            let result = result.map_err(|fault| self.fault(fault, Some(slot)));
            self.path.0.truncate(depth);
            return result.map(Some);
        }
        let text = val.text(self.run).map_err(|fault| {
            let fault = self.fault(fault, Some(slot));
            match val {
                Val::List(_) | Val::Map(_) | Val::Keyed(_) | Val::Live(_) => {
                    fault.help("leave out the quotes to insert it as it is")
                }
                _ => fault,
            }
        })?;
        self.meter.take(text.len())?;
        Ok(Some(Value::String(text.to_string())))
    }

    fn concat(&self, parts: &[Part<'_, '_>]) -> Res<String> {
        let mut out = String::new();
        for part in parts {
            match part {
                Part::Text(text) => out.push_str(text),
                Part::Slot(slot) => {
                    let text =
                        self.slot(slot)?.text(self.run).map_err(|fault| self.fault(fault, Some(slot)))?;
                    self.run.memory(text.len())?;
                    out.push_str(&text);
                }
            }
        }
        Ok(out)
    }

    /// Text and placeholders of a scalar.
    fn parts<'t>(&self, text: &'t str, span: Span) -> Res<Vec<Part<'t, 'a>>> {
        let broken = || {
            // Only text that YAML itself changed can be: an escape in quotes, for instance.
            let start = original(span.start, self.pieces);
            Fault::failed("the private-use characters U+10F7A1 and U+10F7A2 cannot stand in a template")
                .at(self.source, Span::new(start, start))
        };
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once(OPEN) {
            let (index, after) = after.split_once(CLOSE).ok_or_else(broken)?;
            let piece = index.parse().ok().and_then(|index: usize| self.pieces.get(index));
            let Some(Piece::Slot(slot)) = piece else { return Err(broken()) };
            if before.contains(CLOSE) {
                return Err(broken());
            }
            if !before.is_empty() {
                parts.push(Part::Text(before));
            }
            parts.push(Part::Slot(slot));
            rest = after;
        }
        if rest.contains(CLOSE) {
            return Err(broken());
        }
        if !rest.is_empty() {
            parts.push(Part::Text(rest));
        }
        Ok(parts)
    }

    fn map(&mut self, entries: &[(Node, Node)]) -> Res<Map<String, Value>> {
        self.run.map(entries.len())?;
        let mut out = Map::new();
        let mut merged: Vec<Map<String, Value>> = Vec::new();
        for (key, value) in entries {
            if key.is_merge_key() {
                self.path.0.push(Step::Key("<<".into()));
                self.merge(value, &mut merged)?;
                self.path.0.pop();
                continue;
            }
            let Some(text) = key.as_str() else { continue };
            if !text.contains([OPEN, CLOSE]) {
                self.meter.take(text.len())?;
                self.path.0.push(Step::Key(text.into()));
                if let Some(value) = self.node(value)? {
                    self.insert(&mut out, text.to_owned(), value, key)?;
                }
                self.path.0.pop();
                continue;
            }
            // The path shows what the author wrote, not the value that made the key.
            self.path.0.push(Step::Key(self.shown(text)));
            let parts = self.parts(text, key.span)?;
            let omitted = match parts.as_slice() {
                [Part::Slot(slot)] => matches!(self.slot(slot)?, Val::Omit),
                _ => false,
            };
            if !omitted {
                let text = self.concat(&parts)?;
                self.meter.take(text.len())?;
                if let Some(value) = self.node(value)? {
                    self.insert(&mut out, text, value, key)?;
                }
            }
            self.path.0.pop();
        }
        for map in merged {
            for (key, value) in map {
                out.entry(key).or_insert(value);
            }
        }
        Ok(out)
    }

    fn shown(&self, text: &str) -> Name {
        let mut out = String::new();
        for part in self.parts(text, Span::default()).unwrap_or_default() {
            match part {
                Part::Text(text) => out.push_str(text),
                Part::Slot(slot) => {
                    let expr = self.source.text.get(slot.span.start..slot.span.end).unwrap_or("...");
                    let _ = write!(out, "{{{{ {expr} }}}}");
                }
            }
        }
        out.into()
    }

    fn insert(&self, map: &mut Map<String, Value>, key: String, value: Value, node: &Node) -> Res<()> {
        if map.contains_key(&key) {
            let start = original(node.span.start, self.pieces);
            let end = original(node.span.end, self.pieces).max(start);
            let fault = Fault::failed("two keys of this map come to the same").help("keep one of them");
            return Err(self.fault(fault, None).at(self.source, Span::new(start, end)));
        }
        map.insert(key, value);
        Ok(())
    }

    /// The maps that a `<<` brings, the first wins.
    fn merge(&mut self, node: &Node, merged: &mut Vec<Map<String, Value>>) -> Res<()> {
        let Some(value) = self.node(node)? else { return Ok(()) };
        let maps = match value {
            Value::Array(items) => items,
            other => vec![other],
        };
        for map in maps {
            match map {
                Value::Object(map) => merged.push(map),
                other => {
                    let what = match other {
                        Value::Null => "null",
                        Value::Array(_) => "a list",
                        _ => "a scalar",
                    };
                    let start = original(node.span.start, self.pieces);
                    let end = original(node.span.end, self.pieces).max(start);
                    let fault = Fault::failed(format!("`<<` takes a map or a list of maps, not {what}"))
                        .help("say what stands for nothing: `| default({})`");
                    return Err(self.fault(fault, None).at(self.source, Span::new(start, end)));
                }
            }
        }
        Ok(())
    }
}

/// The error that is behind a text that is no YAML: one of the values, if one failed.
pub(super) fn first_fault(pieces: &[Piece], source: &Arc<Source>) -> Option<Fault> {
    pieces.iter().find_map(|piece| match piece {
        Piece::Slot(Slot { val: Err(fault), span }) => Some(fault.clone().at(source, *span)),
        _ => None,
    })
}

/// A diagnostic as an error of an evaluation.
pub(super) fn failed(diagnostic: Diagnostic) -> Fault {
    Fault::Problem(Box::new(super::errors::Problem { kind: FaultKind::Failed, diagnostic }))
}
