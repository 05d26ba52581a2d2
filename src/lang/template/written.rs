//! Records which metadata of an object is literal in the template and which comes from an expression. The
//! rendered object does not show whether a field was chosen by the author of the package or the author of the
//! instance.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use super::code::Piece;
use super::substitute::{CLOSE, OPEN};
use crate::diag::Source;
use crate::yaml::{Node, NodeValue};

/// The metadata that the author of the package has written literally.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Written {
    /// Fields of `metadata` without any expression in key or value.
    fields: BTreeMap<String, Value>,
    /// The expression, if `metadata.namespace` consists of a single expression.
    namespace: Option<String>,
}

impl Written {
    /// Whether the author of the package has written this field of the metadata with this value.
    pub fn has(&self, field: &str, value: &Value) -> bool {
        self.fields.get(field) == Some(value)
    }

    /// Whether `metadata.namespace` consists of this expression alone.
    pub fn namespace_is(&self, expression: &str) -> bool {
        self.namespace.as_deref() == Some(expression)
    }

    /// Reads it from the tree of a template before placeholders are replaced.
    pub(super) fn of(root: &Node, source: &Arc<Source>, pieces: &[Piece]) -> Self {
        let mut written = Self::default();
        let Some(metadata) = root.get("metadata") else { return written };
        written.add(metadata);
        written.namespace = metadata.get("namespace").and_then(Node::as_str).and_then(|text| {
            let index: usize = text.strip_prefix(OPEN)?.strip_suffix(CLOSE)?.parse().ok()?;
            let Piece::Slot(slot) = pieces.get(index)? else { return None };
            Some(source.text.get(slot.span.start..slot.span.end)?.trim().to_owned())
        });
        written
    }

    /// Adds the fields of a map. Existing fields take precedence, as with `<<`.
    fn add(&mut self, map: &Node) {
        let NodeValue::Map(entries) = &map.value else { return };
        for (key, value) in entries.iter().filter(|(key, _)| !key.is_merge_key()) {
            if let Some(name) = key.as_str().filter(|_| is_literal(key) && is_literal(value)) {
                self.fields.entry(name.to_owned()).or_insert_with(|| value.to_json());
            }
        }
        for (_, merged) in entries.iter().filter(|(key, _)| key.is_merge_key()) {
            match &merged.value {
                NodeValue::Seq(maps) => maps.iter().for_each(|map| self.add(map)),
                _ => self.add(merged),
            }
        }
    }
}

/// Whether a node contains no expression.
fn is_literal(node: &Node) -> bool {
    match &node.value {
        NodeValue::String(text) => !text.contains([OPEN, CLOSE]),
        NodeValue::Seq(items) => items.iter().all(is_literal),
        NodeValue::Map(entries) => entries.iter().all(|(key, value)| is_literal(key) && is_literal(value)),
        NodeValue::Null | NodeValue::Bool(_) | NodeValue::Number(_) => true,
    }
}
