//! Parses the text of a rendered template as YAML while placeholders stand for the values, and then replaces
//! the placeholders by the values. So no value ever passes through the YAML parser.

use std::fmt::Write as _;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::builtins::secrets::{generated_text, is_generated};
use super::code::{Piece, Slot};
use super::errors::{Fault, FaultKind, Res};
use super::json::{JsonPath, JsonSegment, Meter};
use super::limits::{Run, VALUE_BYTES};
use super::value::{Name, Val};
use crate::diag::{Diagnostic, Source, Span};
use crate::yaml::{self, Node, NodeValue, Style};

/// The characters around a placeholder's index. Both are private-use characters that templates may not contain. Values
/// may contain them, because values are never searched.
pub(super) const OPEN: char = '\u{10F7A1}';
pub(super) const CLOSE: char = '\u{10F7A2}';

/// Assembles the text with placeholders.
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
                format!("the text of the document exceeds the limit of {} bytes", 4 * run.limits.output),
                "a Kubernetes object may have about 1 MiB: split it",
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
        let diagnostic = Diagnostic::error(
            "template::documents",
            "the template contains several documents, one is allowed",
        )
        .at(&rendered, second.span)
        .help("move each document to the template of its own child");
        return Err(Box::new(in_template(diagnostic, source, pieces)));
    }
    Ok(documents.pop().unwrap_or(Node { value: NodeValue::Null, span: Span::default(), style: Style::Plain }))
}

/// Converts a diagnostic about the assembled text to one about the template.
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

/// Returns the text with `{{...}}` in place of each placeholder.
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

/// Replaces the placeholders by their values.
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

    /// Charges the values created so far as a result of the evaluation.
    pub(super) fn output(&self) -> Res<()> {
        self.run.output(&self.meter)
    }

    /// The value of the whole document.
    pub(super) fn document(&mut self, node: &Node) -> Res<Value> {
        self.node(node)?.ok_or_else(|| {
            self.fault(
                Fault::failed("`omit` is the whole document").help("use `when` of the child to omit it"),
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

    /// The value of a node; `None` if it is omitted.
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
                self.text(&parts)?
            }
            NodeValue::Seq(items) => {
                let mut out = Vec::with_capacity(items.len());
                for (index, item) in items.iter().enumerate() {
                    self.path.0.push(JsonSegment::Index(index));
                    out.extend(self.node(item)?);
                    self.path.0.pop();
                }
                Value::Array(out)
            }
            NodeValue::Map(entries) => Value::Object(self.map(entries)?),
        }))
    }

    /// The value of a scalar that is a single placeholder: the native value if it is plain, a string if it is
    /// quoted.
    fn alone(&mut self, slot: &Slot, style: Style) -> Res<Option<Value>> {
        let val = self.slot(slot)?;
        if matches!(val, Val::Omit) {
            return Ok(None);
        }
        if style == Style::Plain || is_generated(&val) {
            return self.native(slot, &val).map(Some);
        }
        let text = val.text(self.run).map_err(|fault| {
            let fault = self.fault(fault, Some(slot));
            match val {
                Val::List(_) | Val::Map(_) | Val::Keyed(_) | Val::Live(_) => {
                    fault.help("remove the quotes to insert the native value")
                }
                _ => fault,
            }
        })?;
        self.meter.take(text.len())?;
        Ok(Some(Value::String(text.to_string())))
    }

    /// The native value of a slot.
    fn native(&mut self, slot: &Slot, val: &Val) -> Res<Value> {
        let depth = self.path.0.len();
        let result = val.to_json(self.run, &mut self.meter, &mut self.path);
        let result = result.map_err(|fault| self.fault(fault, Some(slot)));
        self.path.0.truncate(depth);
        result
    }

    /// The value of a text: a string, or the marker of a text with generated values.
    fn text(&mut self, parts: &[Part<'_, '_>]) -> Res<Value> {
        let generated = |part: &Part<'_, '_>| match part {
            Part::Slot(Slot { val: Ok(val), .. }) if is_generated(val) => Some(val.clone()),
            _ => None,
        };
        if parts.iter().all(|part| generated(part).is_none()) {
            return self.string(parts);
        }
        let mut all = Vec::with_capacity(parts.len());
        for part in parts {
            all.push(match (part, generated(part)) {
                (Part::Slot(slot), Some(val)) => self.native(slot, &val)?,
                _ => self.string(std::slice::from_ref(part))?,
            });
        }
        Ok(generated_text(all))
    }

    fn string(&mut self, parts: &[Part<'_, '_>]) -> Res<Value> {
        let text = self.concat(parts)?;
        self.meter.take(text.len())?;
        Ok(Value::String(text))
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

    /// Splits the text of a scalar into text and placeholders.
    fn parts<'t>(&self, text: &'t str, span: Span) -> Res<Vec<Part<'t, 'a>>> {
        let broken = || {
            // A placeholder character can come from YAML itself: for example from an escape in quotes.
            let start = original(span.start, self.pieces);
            Fault::failed("the private-use characters U+10F7A1 and U+10F7A2 are not allowed in a template")
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
                self.path.0.push(JsonSegment::Key("<<".into()));
                self.merge(value, &mut merged)?;
                self.path.0.pop();
                continue;
            }
            let Some(text) = key.as_str() else { continue };
            if !text.contains([OPEN, CLOSE]) {
                self.meter.take(text.len())?;
                self.path.0.push(JsonSegment::Key(text.into()));
                if let Some(value) = self.node(value)? {
                    self.insert(&mut out, text.to_owned(), value, key)?;
                }
                self.path.0.pop();
                continue;
            }
            // The path of an error shows the author's text, not the value of the key, which may be secret.
            self.path.0.push(JsonSegment::Key(self.shown(text)));
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
            let fault = Fault::failed("two keys of this map are equal").help("keep one of them");
            return Err(self.fault(fault, None).at(self.source, Span::new(start, end)));
        }
        map.insert(key, value);
        Ok(())
    }

    /// The maps that `<<` merges; the first one takes precedence.
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
                        .help("add a default: `| default({})`");
                    return Err(self.fault(fault, None).at(self.source, Span::new(start, end)));
                }
            }
        }
        Ok(())
    }
}

/// The error of a value, if there is one: it is the likely cause of text that is not valid YAML.
pub(super) fn first_fault(pieces: &[Piece], source: &Arc<Source>) -> Option<Fault> {
    pieces.iter().find_map(|piece| match piece {
        Piece::Slot(Slot { val: Err(fault), span }) => Some(fault.clone().at(source, *span)),
        _ => None,
    })
}

/// Converts a diagnostic to an error of an evaluation.
pub(super) fn failed(diagnostic: Diagnostic) -> Fault {
    Fault::Problem(Box::new(super::errors::Problem { kind: FaultKind::Failed, diagnostic }))
}
