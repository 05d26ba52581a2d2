//! Converts the flat store to [`Node`]s: expands aliases, converts keys to strings, and resolves merge keys.
//!
//! The recursion is as deep as the document, which the loader has limited.

use std::collections::HashMap;
use std::sync::Arc;

use super::load::{Kind, Link, Raw};
use super::scalar::Scalar;
use super::{Duplicates, Merge, Node, NodeValue, Options, PathItem, show_path};
use crate::diag::{Diagnostic, Source, Span};

pub(super) fn build(
    source: &Arc<Source>,
    options: &Options,
    store: &mut [Raw],
    root: Link,
) -> Result<Node, Diagnostic> {
    Builder { source, options, store, path: Vec::new() }.node(root, false)
}

struct Builder<'a> {
    source: &'a Arc<Source>,
    options: &'a Options,
    store: &'a mut [Raw],
    path: Vec<PathItem>,
}

/// The entries of a map, indexed by key.
#[derive(Default)]
struct Entries {
    list: Vec<(Node, Node)>,
    /// Index in the list, and whether the map itself has the key (not only a merged one).
    by_key: HashMap<String, (usize, bool)>,
}

impl Entries {
    /// Sets an entry. The last value takes precedence, at the position of the first.
    fn set(&mut self, text: String, key: Node, value: Node, own: bool) {
        if let Some(known) = self.by_key.get_mut(&text) {
            known.1 |= own;
            self.list[known.0] = (key, value);
        } else {
            self.by_key.insert(text, (self.list.len(), own));
            self.list.push((key, value));
        }
    }
}

impl Builder<'_> {
    /// Builds a node. `shared`: whether it is used elsewhere, so that it must be copied instead of taken.
    fn node(&mut self, link: Link, shared: bool) -> Result<Node, Diagnostic> {
        let raw = &mut self.store[link.node];
        let shared = shared || raw.shared;
        let style = raw.style;
        let value = match &mut raw.kind {
            Kind::Merge => NodeValue::String("<<".to_owned()),
            Kind::Scalar(Scalar::Null) => NodeValue::Null,
            Kind::Scalar(Scalar::Bool(bool)) => NodeValue::Bool(*bool),
            Kind::Scalar(Scalar::Int(int)) => NodeValue::Number((*int).into()),
            Kind::Scalar(Scalar::Uint(int)) => NodeValue::Number((*int).into()),
            Kind::Scalar(Scalar::Float(float)) => match Scalar::float_number(*float) {
                Some(number) => NodeValue::Number(number),
                None => {
                    return Err(self
                        .error("yaml::number", "JSON has no infinity and no NaN", link.span)
                        .help("quote it if a string is meant"));
                }
            },
            Kind::Scalar(Scalar::String(text)) => NodeValue::String(take(text, shared)),
            Kind::Seq(items) => {
                let items = take(items, shared);
                NodeValue::Seq(self.seq(items, shared)?)
            }
            Kind::Map(entries) => {
                let entries = take(entries, shared);
                NodeValue::Map(self.map(entries, shared)?)
            }
        };
        Ok(Node { value, span: link.span, style })
    }

    fn seq(&mut self, items: Vec<Link>, shared: bool) -> Result<Vec<Node>, Diagnostic> {
        let mut nodes = Vec::with_capacity(items.len());
        for (index, item) in items.into_iter().enumerate() {
            self.path.push(PathItem::Index(index));
            nodes.push(self.node(item, shared)?);
            self.path.pop();
        }
        Ok(nodes)
    }

    fn map(&mut self, links: Vec<(Link, Link)>, shared: bool) -> Result<Vec<(Node, Node)>, Diagnostic> {
        let mut entries = Entries::default();
        for (key, value) in links {
            let is_merge = matches!(self.store[key.node].kind, Kind::Merge);
            if is_merge && self.options.merge == Merge::Resolve {
                self.merge(&mut entries, value, shared)?;
                continue;
            }
            let (text, node) = self.key(key)?;
            self.path.push(PathItem::Key(text.clone()));
            // A kept merge key may occur several times, and all of them merge.
            let known = entries.by_key.get(&text).filter(|(_, own)| *own && !is_merge);
            if let (Some((first, _)), Duplicates::Error) = (known, self.options.duplicate_keys) {
                let first = entries.list[*first].0.span;
                return Err(self.duplicate(&text, first, key.span));
            }
            let value = self.node(value, shared)?;
            self.path.pop();
            if is_merge || self.options.duplicate_keys == Duplicates::Keep {
                entries.list.push((node, value));
            } else {
                entries.set(text, node, value, true);
            }
        }
        Ok(entries.list)
    }

    /// The text of a key, and its node.
    fn key(&self, link: Link) -> Result<(String, Node), Diagnostic> {
        let raw = &self.store[link.node];
        let text = match &raw.kind {
            Kind::Merge => Ok("<<".to_owned()),
            Kind::Scalar(scalar) => scalar.key(),
            Kind::Seq(_) => Err("a list cannot be a map key"),
            Kind::Map(_) => Err("a map cannot be a map key"),
        };
        match text {
            Ok(text) => {
                let value = NodeValue::String(text.clone());
                Ok((text, Node { value, span: link.span, style: raw.style }))
            }
            Err(message) => Err(match self.double_braces(link) {
                Some(span) => self
                    .error("yaml::key", "`{{` starts a map here, not an expression", span)
                    .help("quote the expression: \"{{ ... }}\""),
                None => self.error("yaml::key", message, link.span).help("quote it if a string is meant"),
            }),
        }
    }

    /// The position of a `{{ }}` whose inner braces are this key.
    fn double_braces(&self, link: Link) -> Option<Span> {
        let Span { start, end } = link.span;
        let before = self.source.text.get(..start)?;
        let inner = self.source.text.get(start..end)?;
        let closed = self.source.text.get(end..)?.starts_with('}');
        (before.ends_with('{') && inner.starts_with('{'))
            .then(|| Span::new(start - 1, end + usize::from(closed)))
    }

    /// Merges the entries of a map, or of a list of maps, into `entries`. They override existing entries, as
    /// with kubectl.
    fn merge(&mut self, entries: &mut Entries, value: Link, shared: bool) -> Result<(), Diagnostic> {
        let raw = &self.store[value.node];
        let maps = match &raw.kind {
            Kind::Map(_) => vec![value],
            // A list must be written in place. An alias of a list is refused, as kubectl does.
            Kind::Seq(items) if value.span == raw.span => items.clone(),
            _ => return Err(self.no_map(value.span)),
        };
        let shared = shared || self.store[value.node].shared;
        self.path.push(PathItem::from("<<"));
        // Backwards, so that the first map of the list takes precedence.
        for map in maps.into_iter().rev() {
            let NodeValue::Map(merged) = self.node(map, shared)?.value else {
                return Err(self.no_map(map.span));
            };
            for (key, value) in merged {
                let text = key.as_str().unwrap_or_default().to_owned();
                entries.set(text, key, value, false);
            }
        }
        self.path.pop();
        Ok(())
    }

    fn no_map(&self, span: Span) -> Diagnostic {
        self.error("yaml::merge", "`<<` takes a map or a list of maps", span)
    }

    fn duplicate(&self, key: &str, first: Span, second: Span) -> Diagnostic {
        let (line, column) = self.source.line_col(first.start);
        self.error(
            "yaml::duplicate-key",
            format!(
                "the key `{key}` is a duplicate in this map; it is first at line {line}, column {column}"
            ),
            second,
        )
        .label("again here")
        .help("keep one of them")
    }

    fn error(&self, code: &'static str, message: impl Into<String>, span: Span) -> Diagnostic {
        let diagnostic = Diagnostic::error(code, message).at(self.source, span);
        if self.path.is_empty() { diagnostic } else { diagnostic.path(show_path(&self.path)) }
    }
}

fn take<T: Clone + Default>(value: &mut T, shared: bool) -> T {
    if shared { value.clone() } else { std::mem::take(value) }
}
