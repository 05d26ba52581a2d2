//! Converts the events of the parser to a flat store of nodes, within the limits.
//!
//! Nothing here recurses, and aliases are not expanded: an alias is a second link to the same node, and only
//! its cost is counted. Therefore a document that would explode is refused as fast as its text can be read.
//! [`super::tree`] then builds the nodes, at a known depth.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use granit_parser::{Event, Parser, ScalarStyle, StructureStyle, Tag as ParserTag};

use super::scalar::{self, Scalar, Tag};
use super::{Limits, Node, NodeValue, Options, PathItem, Style, show_path, syntax, tree};
use crate::diag::{Diagnostic, Source, Span};

/// A node of the store, and the cost of a copy.
pub(super) struct Raw {
    pub(super) kind: Kind,
    pub(super) span: Span,
    pub(super) style: Style,
    /// Whether an alias points to it, so that it must be copied.
    pub(super) shared: bool,
    /// The number of values in it, including itself.
    nodes: usize,
    /// The number of bytes of the strings in it.
    bytes: usize,
    /// The number of nested collections in it, including itself.
    height: usize,
}

pub(super) enum Kind {
    Scalar(Scalar),
    /// A `<<` without quotes.
    Merge,
    Seq(Vec<Link>),
    Map(Vec<(Link, Link)>),
}

/// A use of a node: the node itself, or an alias of it elsewhere.
#[derive(Clone, Copy)]
pub(super) struct Link {
    pub(super) node: usize,
    pub(super) span: Span,
}

/// A collection that is not closed yet.
struct Frame {
    node: usize,
    items: Items,
    nodes: usize,
    bytes: usize,
    height: usize,
    end: usize,
}

enum Items {
    Seq(Vec<Link>),
    Map(Vec<(Link, Link)>, Option<Link>),
}

struct Loader<'a> {
    source: &'a Arc<Source>,
    limits: Limits,
    store: Vec<Raw>,
    frames: Vec<Frame>,
    /// The node of each anchor of the current document.
    anchors: HashMap<usize, usize>,
    root: Option<Link>,
    nodes: usize,
    alias_bytes: usize,
    aliases: usize,
}

pub(super) fn parse(source: &Arc<Source>, options: &Options) -> Result<Vec<Node>, Diagnostic> {
    let limits = options.limits;
    if source.text.len() > limits.bytes {
        return Err(Diagnostic::error(
            "yaml::limit",
            format!("the text has {} bytes; at most {} are read", source.text.len(), limits.bytes),
        )
        .at(source, Span::default()));
    }
    if let Some(error) = syntax::forbidden_character(source) {
        return Err(error);
    }
    let mut parser_options = granit_parser::options! {
        flow_nesting_limit: limits.depth,
        block_nesting_limit: limits.depth,
        emit_anchor_events: true,
    };
    parser_options.set_emit_comments(false);

    let mut loader = Loader {
        source,
        limits,
        store: Vec::new(),
        frames: Vec::new(),
        anchors: HashMap::new(),
        root: None,
        nodes: 0,
        alias_bytes: 0,
        aliases: 0,
    };
    let mut documents = Vec::new();
    let mut last_is_empty = false;
    for event in Parser::new_from_str_with_options(&source.text, parser_options) {
        let (event, at) = match event {
            Ok(event) => event,
            Err(error) => return Err(syntax::diagnostic(source, &error, limits.depth)),
        };
        let span = byte_span(source, &at);
        let tag_span = at.tag_span().map_or(span, |tag| byte_span(source, &tag));
        match event {
            Event::DocumentStart(..) => loader.begin(),
            Event::DocumentEnd => {
                let document = loader.finish(options, span)?;
                last_is_empty = document.is_null() && document.span.start == document.span.end;
                documents.push(document);
            }
            Event::Scalar(text, style, anchor, tag) => {
                loader.scalar(&text, style, anchor, tag.as_deref(), span, tag_span)?;
            }
            Event::SequenceStart(style, anchor, tag) => {
                loader.check_collection_tag(tag.as_deref(), "seq", tag_span)?;
                loader.open(Items::Seq(Vec::new()), style, anchor, span)?;
            }
            Event::MappingStart(style, anchor, tag) => {
                loader.check_collection_tag(tag.as_deref(), "map", tag_span)?;
                loader.open(Items::Map(Vec::new(), None), style, anchor, span)?;
            }
            Event::SequenceEnd | Event::MappingEnd => loader.close(span),
            Event::Alias(id) => loader.alias(id, span)?,
            Event::Anchor(_, name) => loader.check_anchor(&name, span)?,
            _ => {}
        }
    }
    if last_is_empty {
        documents.pop();
    }
    Ok(documents)
}

fn byte_span(source: &Source, span: &granit_parser::Span) -> Span {
    let end = source.text.len();
    let start = span.start.byte_offset().unwrap_or(end).min(end);
    Span::new(start, span.end.byte_offset().unwrap_or(start).clamp(start, end))
}

impl Loader<'_> {
    fn begin(&mut self) {
        self.store.clear();
        self.frames.clear();
        self.anchors.clear();
        self.root = None;
    }

    fn finish(&mut self, options: &Options, span: Span) -> Result<Node, Diagnostic> {
        let Some(root) = self.root.take() else {
            return Ok(Node {
                value: NodeValue::Null,
                span: Span::new(span.start, span.start),
                style: Style::Plain,
            });
        };
        tree::build(self.source, options, &mut self.store, root)
    }

    fn scalar(
        &mut self,
        text: &str,
        style: ScalarStyle,
        anchor: usize,
        tag: Option<&ParserTag>,
        mut span: Span,
        tag_span: Span,
    ) -> Result<(), Diagnostic> {
        let style = match style {
            ScalarStyle::Plain => Style::Plain,
            ScalarStyle::SingleQuoted | ScalarStyle::DoubleQuoted => Style::Quoted,
            ScalarStyle::Literal | ScalarStyle::Folded => Style::Block,
        };
        let mut text = text;
        if style == Style::Plain {
            // The parser's span of a plain scalar may include the blanks after it, and its text of a missing
            // scalar is `~`.
            let written = self.source.text[span.start..span.end].trim_end();
            span.end = span.start + written.len();
            if written.is_empty() {
                text = "";
            }
            self.check_plain_in_flow(text, span, tag.map(|_| tag_span))?;
        }
        let name = tag.map(tag_name);
        let kind = match name.as_deref() {
            None if style != Style::Plain => {
                let text =
                    if self.lacks_last_break(text, style, span) { &text[..text.len() - 1] } else { text };
                Kind::Scalar(Scalar::String(text.to_owned()))
            }
            None | Some("merge") if text == "<<" => Kind::Merge,
            None => Kind::Scalar(scalar::resolve(text)),
            Some("!") => Kind::Scalar(Scalar::String(text.to_owned())),
            Some(name) => {
                let Some(known) = Tag::named(name) else {
                    return Err(self.unknown_tag(tag, tag_span));
                };
                Kind::Scalar(scalar::tagged(known, text).map_err(|expected| {
                    self.error("yaml::tag", format!("the value of `!!{name}` is not {expected}"), span)
                })?)
            }
        };
        let node = self.push(kind, style, span, anchor);
        self.store[node].bytes = text.len();
        self.count(1, span)?;
        self.attach(node, span);
        Ok(())
    }

    /// Whether the last line break of a block scalar comes only from the parser: at the end of a text without
    /// one, the parser adds it and kubectl does not.
    fn lacks_last_break(&self, value: &str, style: Style, span: Span) -> bool {
        let text = &self.source.text;
        let Some(value) = value.strip_suffix('\n') else { return false };
        if style != Style::Block || span.end < text.len() || text.ends_with(['\n', '\r']) {
            return false;
        }
        let mut lines = text.rsplit('\n');
        let last = lines.next().unwrap_or_default();
        let before = lines.next().unwrap_or_default().trim_end_matches('\r');
        if !last.trim().is_empty() {
            return true;
        }
        // Blanks that only indent are not a line of the value. More blanks than that are.
        let last_of_value = value.rsplit('\n').next().unwrap_or_default();
        let blanks = !last_of_value.is_empty() && last.ends_with(last_of_value);
        let header_before = value.is_empty() && !before.trim().is_empty();
        header_before || (blanks && (!before.trim().is_empty() || last.len() >= before.len()))
    }

    /// Refuses texts that kubectl and other readers understand differently in a collection in brackets:
    /// `{a:}` has the key `a:` for kubectl and `a` for others, `[?a]` contains a map for kubectl and a string
    /// for others.
    fn check_plain_in_flow(&self, text: &str, span: Span, tag: Option<Span>) -> Result<(), Diagnostic> {
        if !self.frames.last().is_some_and(|frame| self.store[frame.node].style == Style::Flow) {
            return Ok(());
        }
        if let Some(tag) = tag
            && self.source.text[tag.end..].starts_with(',')
        {
            let message = "a comma directly after a YAML tag belongs to the tag for kubectl";
            return Err(self
                .error("yaml::syntax", message.to_owned(), tag)
                .help("insert a space between them"));
        }
        if text.is_empty() {
            return Ok(());
        }
        if text.starts_with('?') {
            let message = "a plain value in brackets cannot begin with `?`";
            return Err(self.error("yaml::syntax", message.to_owned(), span).help("quote the value"));
        }
        let after = self.source.text[span.end..].trim_start_matches([' ', '\t']);
        if after.starts_with(':') && after[1..].starts_with([',', ']', '}']) {
            let message = "a `:` directly before a comma or a closing bracket is read differently by kubectl";
            let help = "write the value, `null` if there is none; quote the `:` if it belongs to a string";
            return Err(self.error("yaml::syntax", message.to_owned(), span).help(help));
        }
        Ok(())
    }

    /// Refuses names of anchors of which kubectl parses only a part.
    fn check_anchor(&self, name: &str, span: Span) -> Result<(), Diagnostic> {
        if name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-') {
            return Ok(());
        }
        let message = "the name of an anchor has only ASCII letters, digits, `-` and `_`";
        Err(self
            .error("yaml::alias", message.to_owned(), span)
            .help("if the ampersand belongs to the value, quote the value"))
    }

    fn open(
        &mut self,
        items: Items,
        style: StructureStyle,
        anchor: usize,
        span: Span,
    ) -> Result<(), Diagnostic> {
        let style = match style {
            StructureStyle::Flow => Style::Flow,
            StructureStyle::Block => Style::Indented,
        };
        let mut span = span;
        if style == Style::Indented && matches!(items, Items::Seq(_)) {
            // The event of a list that is indented like its key comes after the first dash.
            let before = self.source.text[..span.start].trim_end();
            if !self.source.text[span.start..].starts_with('-') && before.ends_with('-') {
                span.start = before.len() - 1;
            }
        }
        self.check_depth(1, span)?;
        self.count(1, span)?;
        let node = self.push(Kind::Seq(Vec::new()), style, span, anchor);
        self.frames.push(Frame { node, items, nodes: 1, bytes: 0, height: 0, end: span.end });
        Ok(())
    }

    fn close(&mut self, span: Span) {
        let Some(frame) = self.frames.pop() else { return };
        let raw = &mut self.store[frame.node];
        raw.kind = match frame.items {
            Items::Seq(items) => Kind::Seq(items),
            Items::Map(entries, _) => Kind::Map(entries),
        };
        // The parser notices the end of an indented collection only at the next token, so the collection ends
        // with its last value.
        raw.span.end = if raw.style == Style::Flow { span.end } else { frame.end.max(raw.span.start) };
        raw.nodes = frame.nodes;
        raw.bytes = frame.bytes;
        raw.height = frame.height + 1;
        let span = raw.span;
        self.attach(frame.node, span);
    }

    fn alias(&mut self, id: usize, span: Span) -> Result<(), Diagnostic> {
        let name = self.source.text.get(span.start..span.end).unwrap_or("*").to_owned();
        self.aliases += 1;
        if self.aliases > self.limits.aliases {
            return Err(self.limit(format!("there are more than {} aliases", self.limits.aliases), span));
        }
        let Some(&node) = self.anchors.get(&id) else {
            return Err(self.error("yaml::alias", format!("there is no anchor `{name}` before it"), span));
        };
        if self.frames.iter().any(|frame| frame.node == node) {
            return Err(self.error(
                "yaml::alias",
                format!("`{name}` is inside the value that it refers to"),
                span,
            ));
        }
        let Raw { nodes, bytes, height, .. } = self.store[node];
        self.check_depth(height, span)?;
        self.count(nodes, span)?;
        self.alias_bytes = self.alias_bytes.saturating_add(bytes);
        if self.alias_bytes > self.limits.bytes {
            return Err(self.limit(format!("the aliases repeat more than {} bytes", self.limits.bytes), span));
        }
        self.store[node].shared = true;
        self.attach(node, span);
        Ok(())
    }

    fn push(&mut self, kind: Kind, style: Style, span: Span, anchor: usize) -> usize {
        let node = self.store.len();
        self.store.push(Raw { kind, span, style, shared: false, nodes: 1, bytes: 0, height: 0 });
        if anchor != 0 {
            self.anchors.insert(anchor, node);
        }
        node
    }

    /// Adds a finished value to the open collection, or makes it the document.
    fn attach(&mut self, node: usize, span: Span) {
        let link = Link { node, span };
        let Raw { nodes, bytes, height, .. } = self.store[node];
        let Some(frame) = self.frames.last_mut() else {
            self.root = Some(link);
            return;
        };
        frame.nodes = frame.nodes.saturating_add(nodes);
        frame.bytes = frame.bytes.saturating_add(bytes);
        frame.height = frame.height.max(height);
        frame.end = frame.end.max(span.end);
        match &mut frame.items {
            Items::Seq(items) => items.push(link),
            Items::Map(entries, key) => match key.take() {
                None => *key = Some(link),
                Some(key) => entries.push((key, link)),
            },
        }
    }

    fn count(&mut self, nodes: usize, span: Span) -> Result<(), Diagnostic> {
        self.nodes = self.nodes.saturating_add(nodes);
        if self.nodes > self.limits.nodes {
            let message = format!("there are more than {} values, aliases expanded", self.limits.nodes);
            return Err(self.limit(message, span));
        }
        Ok(())
    }

    fn check_depth(&self, height: usize, span: Span) -> Result<(), Diagnostic> {
        if self.frames.len() + height > self.limits.depth {
            return Err(syntax::too_deep(self.source, self.limits.depth, span));
        }
        Ok(())
    }

    fn check_collection_tag(
        &self,
        tag: Option<&ParserTag>,
        expected: &str,
        span: Span,
    ) -> Result<(), Diagnostic> {
        let Some(name) = tag.map(tag_name) else { return Ok(()) };
        if name == expected || name == "!" {
            return Ok(());
        }
        if name == "map" || name == "seq" || Tag::named(&name).is_some() {
            let what = if expected == "map" { "a map" } else { "a list" };
            return Err(self.error("yaml::tag", format!("`!!{name}` is before {what}"), span));
        }
        Err(self.unknown_tag(tag, span))
    }

    fn unknown_tag(&self, tag: Option<&ParserTag>, span: Span) -> Diagnostic {
        let tag = tag.map(ParserTag::original).unwrap_or_default();
        self.error("yaml::tag", format!("`{tag}` is an unknown YAML tag"), span)
            .help("if the exclamation mark belongs to the value, quote the value")
    }

    fn limit(&self, message: String, span: Span) -> Diagnostic {
        self.error("yaml::limit", message, span)
    }

    fn error(&self, code: &'static str, message: String, span: Span) -> Diagnostic {
        let diagnostic = Diagnostic::error(code, message).at(self.source, span);
        let path = show_path(&self.path());
        if path.is_empty() { diagnostic } else { diagnostic.path(path) }
    }

    /// The path of the next value.
    fn path(&self) -> Vec<PathItem> {
        let item = |frame: &Frame| match &frame.items {
            Items::Seq(items) => Some(PathItem::Index(items.len())),
            Items::Map(_, key) => match &self.store[key.as_ref()?.node].kind {
                Kind::Scalar(scalar) => scalar.key().ok().map(PathItem::Key),
                Kind::Merge => Some(PathItem::from("<<")),
                Kind::Seq(_) | Kind::Map(_) => None,
            },
        };
        self.frames.iter().filter_map(item).collect()
    }
}

/// The name of a tag in YAML's own namespace; `!` for the tag that means only "not plain"; otherwise the
/// whole tag.
fn tag_name(tag: &ParserTag) -> Cow<'_, str> {
    let (handle, suffix) = tag.parts();
    if (handle == "!" && suffix.is_empty()) || (handle.is_empty() && suffix == "!") {
        return Cow::Borrowed("!");
    }
    tag.suffix_in_namespace("tag:yaml.org,2002:").unwrap_or_else(|| Cow::Owned(tag.original()))
}
