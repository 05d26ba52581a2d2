//! Sketches: templates before rendering, with their literal parts, and expressions as text.
//!
//! A part that depends on an expression or is in a branch is open: it may have any value. So a conclusion
//! from a sketch holds for every instance.

use std::collections::HashSet;
use std::sync::Arc;

use crate::diag::{Location, Source};
use crate::template_scan::{Outlines, lone_expression};
use crate::yaml::{Node, NodeValue};

/// The maximum depth of followed partials.
const MAX_PARTIALS: usize = 8;
/// The maximum depth of entries that are searched.
const MAX_DEPTH: usize = 32;

/// A part of a template.
#[derive(Clone, Copy)]
pub(crate) struct Part<'a> {
    outlines: &'a Outlines,
    source: &'a Arc<Source>,
    node: &'a Node,
}

/// The result of looking up a path.
pub(crate) enum At<'a> {
    /// The path has this part.
    Part(Part<'a>),
    /// The path exists in no instance.
    Absent,
    /// The path may or may not exist.
    Open,
}

/// A scalar.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Text {
    /// A literal.
    Literal(String),
    /// A text with expressions, as written, except for spaces and quotes.
    Computed(String),
}

/// The entries of a map of strings, such as labels.
#[derive(Debug, Default)]
pub(super) struct Texts {
    pub(super) known: Vec<(String, Text)>,
    /// Whether there may be other entries, or other values.
    pub(super) open: bool,
    /// Whether users may add entries, which replace none of the known ones.
    pub(super) users: bool,
    /// The expression that yields the whole map, if it is a single expression.
    pub(super) whole: Option<String>,
}

/// The maps of the value of `<<`.
fn merged_in(value: &Node) -> Vec<&Node> {
    match &value.value {
        NodeValue::Seq(items) => items.iter().collect(),
        _ => vec![value],
    }
}

/// The variables whose values users write.
const OF_USERS: [&str; 3] = ["spec", "labels", "instance"];

/// The variable of [`OF_USERS`] with which an expression without spaces begins.
pub(super) fn user_variable(expression: &str) -> Option<&'static str> {
    let is_of_word = |c: char| c.is_alphanumeric() || c == '_';
    OF_USERS
        .into_iter()
        .find(|root| expression.strip_prefix(root).is_some_and(|rest| !rest.starts_with(is_of_word)))
}

impl Outlines {
    /// The document of a template. Nothing is concluded from one in which a key occurs twice because of branches.
    pub(crate) fn root(&self, path: &str) -> Option<Part<'_>> {
        self.document(path).filter(|_| self.get(path).is_some_and(|outline| !outline.repeats))
    }

    /// The document of a template, with all branches.
    pub(crate) fn document(&self, path: &str) -> Option<Part<'_>> {
        let outline = self.get(path)?;
        Some(Part { outlines: self, source: outline.source(), node: outline.node() })
    }
}

impl<'a> Part<'a> {
    fn with(self, node: &'a Node) -> Self {
        Self { node, ..self }
    }

    pub(crate) fn node(self) -> &'a Node {
        self.node
    }

    pub(super) fn source(self) -> &'a Arc<Source> {
        self.source
    }

    pub(super) fn location(self) -> Location {
        Location::new(self.source, self.node.span)
    }

    /// The source text of the part.
    pub(super) fn written(self) -> &'a str {
        self.source.text.get(self.node.span.start..self.node.span.end).unwrap_or_default().trim()
    }

    /// Whether part of it is in a branch or a loop.
    pub(super) fn has_statements(self) -> bool {
        self.written().contains("{%")
    }

    /// Whether it is in a branch, a loop or a macro of its template.
    pub(super) fn is_in_branch(self) -> bool {
        let before = self.source.text.get(..self.node.span.start).unwrap_or_default();
        let words = before
            .split("{%")
            .skip(1)
            .filter_map(|rest| rest.trim_start_matches(['-', '+']).split_whitespace().next());
        let depth = words.fold(0_i32, |depth, word| match word {
            "if" | "for" | "macro" | "filter" | "with" => depth + 1,
            word if word.starts_with("end") && word != "endset" => depth - 1,
            _ => depth,
        });
        depth != 0
    }

    /// Whether it is a scalar with expressions.
    fn is_computed(self) -> bool {
        self.is_scalar() && self.written().contains("{{")
    }

    pub(crate) fn is_scalar(self) -> bool {
        !matches!(self.node.value, NodeValue::Map(_) | NodeValue::Seq(_))
    }

    /// The document of a partial, if the part is a lone call of a partial without variables.
    fn resolved(self, depth: usize) -> Option<Self> {
        if !self.is_computed() {
            return Some(self);
        }
        if depth >= MAX_PARTIALS {
            return None;
        }
        let call = lone_expression(self.written())?.strip_prefix("partial(")?.strip_suffix(')')?.trim();
        let name = call.strip_prefix(['"', '\''])?.strip_suffix(['"', '\''])?;
        if name.contains(['"', '\'', ',']) {
            return None;
        }
        let path = if name.starts_with("templates/") { name.to_owned() } else { format!("templates/{name}") };
        self.outlines.root(&path)?.resolved(depth + 1)
    }

    /// The value of a key. If the map itself does not have the key, maps that `<<` merges are searched.
    pub(crate) fn get(self, key: &str) -> At<'a> {
        self.get_within(key, 0)
    }

    fn get_within(self, key: &str, depth: usize) -> At<'a> {
        let Some(part) = self.resolved(depth) else { return At::Open };
        let NodeValue::Map(entries) = &part.node.value else {
            return if part.node.is_null() && !part.has_statements() { At::Absent } else { At::Open };
        };
        if let Some((_, value)) = entries.iter().rfind(|(name, _)| name.as_str() == Some(key)) {
            return At::Part(part.with(value));
        }
        let mut open = false;
        for (name, value) in entries {
            if name.is_merge_key() {
                for map in merged_in(value) {
                    match part.with(map).get_within(key, depth + 1) {
                        At::Part(found) => return At::Part(found),
                        At::Open => open = true,
                        At::Absent => {}
                    }
                }
            } else {
                open |= part.with(name).is_computed();
            }
        }
        if open { At::Open } else { At::Absent }
    }

    /// Looks up a path of keys.
    pub(super) fn at(self, path: &[&str]) -> At<'a> {
        let mut here = self;
        for key in path {
            match here.get(key) {
                At::Part(part) => here = part,
                other => return other,
            }
        }
        At::Part(here)
    }

    /// The items of a list; `None` if values may add other items.
    pub(super) fn items(self) -> Option<Vec<Self>> {
        let part = self.resolved(0)?;
        match &part.node.value {
            NodeValue::Seq(items) if !part.has_statements() => {
                Some(items.iter().map(|item| part.with(item)).collect())
            }
            NodeValue::Null if !part.has_statements() => Some(Vec::new()),
            _ => None,
        }
    }

    /// The items of a list in all branches; `None` if values may add others.
    pub(crate) fn all_items(self) -> Option<Vec<Self>> {
        let part = self.resolved(0)?;
        match &part.node.value {
            NodeValue::Seq(items) => items.iter().map(|item| part.with(item).resolved(0)).collect(),
            NodeValue::Null => Some(Vec::new()),
            _ => None,
        }
    }

    /// The keys of a map in all branches; `None` if values may add others.
    pub(super) fn all_keys(self) -> Option<Vec<Self>> {
        self.keys_within(0)
    }

    fn keys_within(self, depth: usize) -> Option<Vec<Self>> {
        let part = self.resolved(depth)?;
        match &part.node.value {
            NodeValue::Map(entries) => {
                let mut keys = Vec::with_capacity(entries.len());
                for (key, value) in entries {
                    if key.is_merge_key() {
                        keys.extend(part.with(value).keys_within(depth + 1)?);
                    } else {
                        keys.push(part.with(key));
                    }
                }
                Some(keys)
            }
            NodeValue::Null => Some(Vec::new()),
            _ => None,
        }
    }

    /// The maps that `<<` merges into a map, in the order of the file: an earlier one wins.
    pub(super) fn merged(self) -> Vec<Self> {
        let NodeValue::Map(entries) = &self.node.value else { return Vec::new() };
        let values = entries.iter().filter(|(name, _)| name.is_merge_key());
        values.flat_map(|(_, value)| merged_in(value)).map(|map| self.with(map)).collect()
    }

    /// The expressions that yield entries of a map which its text does not show: all of them, or those that `<<` merges.
    pub(super) fn sources(self) -> Vec<Self> {
        let mut found = Vec::new();
        self.add_sources(&mut found, 0);
        found
    }

    fn add_sources(self, found: &mut Vec<Self>, depth: usize) {
        match self.resolved(depth) {
            Some(part) => part.merged().into_iter().for_each(|map| map.add_sources(found, depth + 1)),
            None => found.push(self),
        }
    }

    /// The expression of a scalar that consists of one, without spaces.
    pub(super) fn expression(self) -> Option<String> {
        let expression = lone_expression(self.written()).filter(|_| self.is_computed())?;
        Some(expression.split_whitespace().collect())
    }

    /// Whether it is an expression whose value a user writes: a field of the spec, or metadata of the instance.
    pub(super) fn is_of_users(self) -> bool {
        let expression = self.expression();
        expression.and_then(|text| user_variable(&text)).is_some_and(|name| !self.sets(name))
    }

    /// Whether a statement of its file may set this variable.
    pub(super) fn sets(self, variable: &str) -> bool {
        let text = &self.source.text;
        ["set", "for"].iter().any(|word| text.contains(&format!("{word} {variable}")))
    }

    /// Calls `found` with the key and the value of each entry, at any depth and in all branches.
    pub(crate) fn each_entry(self, found: &mut dyn FnMut(&str, Self)) {
        self.entries_within(0, &mut HashSet::new(), found);
    }

    /// `seen`: the documents of partials that were read, by depth. Each is read once at a depth: partials that call others twice
    /// would have exponentially many entries.
    fn entries_within(
        self,
        depth: usize,
        seen: &mut HashSet<(usize, *const Node)>,
        found: &mut dyn FnMut(&str, Self),
    ) {
        let Some(part) = self.resolved(0).filter(|_| depth < MAX_DEPTH) else { return };
        let is_partial = !std::ptr::eq(part.node, self.node);
        if is_partial && !seen.insert((depth, std::ptr::from_ref(part.node))) {
            return;
        }
        match &part.node.value {
            NodeValue::Map(entries) => {
                for (key, value) in entries {
                    let value = part.with(value);
                    found(key.as_str().unwrap_or_default(), value);
                    value.entries_within(depth + 1, seen, found);
                }
            }
            NodeValue::Seq(items) => {
                for item in items {
                    part.with(item).entries_within(depth + 1, seen, found);
                }
            }
            _ => {}
        }
    }

    /// The text of a scalar outside branches.
    pub(super) fn text(self) -> Option<Text> {
        let written = self.written();
        if written.contains("{%") {
            return None;
        }
        if written.contains("{{") {
            let plain = written.trim_matches(['"', '\'']);
            return Some(Text::Computed(plain.split_whitespace().collect()));
        }
        match &self.node.value {
            NodeValue::String(text) => Some(Text::Literal(text.clone())),
            NodeValue::Number(number) => Some(Text::Literal(number.to_string())),
            NodeValue::Bool(value) => Some(Text::Literal(value.to_string())),
            _ => None,
        }
    }

    /// The entries of a map of strings.
    pub(super) fn texts(self) -> Texts {
        let mut texts = Texts::default();
        if self.is_computed() && !self.has_statements() {
            texts.whole = Some(self.written().trim_matches(['"', '\'']).split_whitespace().collect());
        }
        self.add_texts(&mut texts, 0);
        texts
    }

    fn add_texts(self, texts: &mut Texts, depth: usize) {
        let Some(part) = self.resolved(depth) else {
            texts.open = true;
            return;
        };
        let NodeValue::Map(entries) = &part.node.value else {
            texts.open |= !part.node.is_null() || part.has_statements();
            return;
        };
        for (name, value) in entries.iter().filter(|(name, _)| !name.is_merge_key()) {
            let key = name.as_str().unwrap_or_default();
            match part.with(value).text() {
                _ if part.with(name).is_computed() => texts.open = true,
                Some(text) if !texts.known.iter().any(|(known, _)| known == key) => {
                    texts.known.push((key.to_owned(), text));
                }
                Some(_) => {}
                None => texts.open = true,
            }
        }
        for map in part.merged() {
            if map.is_of_users() {
                texts.users = true;
            } else {
                // Maps that come before it win.
                texts.open |= texts.users;
                map.add_texts(texts, depth + 1);
            }
        }
        // An entry in a branch does not exist in all instances, which does not matter here. But in another
        // branch it may have another value.
        texts.open |= part.has_statements();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_of_partials_are_read_once_at_each_depth() {
        let text = "a: {{ partial('x.yaml') }}\nb: {{ partial('x.yaml') }}\n";
        let path = "templates/x.yaml".to_owned();
        let outlines = Outlines::of(&[(path.clone(), Source::new(path.clone(), text))]);
        let mut count = 0;
        outlines.root(&path).expect("document").each_entry(&mut |_, _| count += 1);
        assert_eq!(count, 2 * MAX_DEPTH);
    }
}
