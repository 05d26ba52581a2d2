//! Sketches: templates before rendering, with their literal parts, and expressions as text.
//!
//! A part that depends on an expression or is in a branch is open: it may have any value. So a conclusion
//! from a sketch holds for every instance.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::diag::{Location, Source, Span};
use crate::template_scan::{Outline, Outlines, lone_expression};
use crate::yaml::{Node, NodeValue};

/// The maximum depth of followed partials.
const MAX_PARTIALS: usize = 8;
/// The maximum depth of entries that are searched.
const MAX_DEPTH: usize = 32;

/// A part of a template.
#[derive(Clone, Copy)]
pub(crate) struct Part<'a> {
    outlines: &'a Outlines,
    outline: &'a Outline,
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
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
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
    /// The index of each key in `known`.
    index: HashMap<String, usize>,
    /// Whether there may be other entries, or other values.
    pub(super) open: bool,
    /// Whether users may add entries, which replace none of the known ones.
    pub(super) users: bool,
    /// The expression that yields the whole map, if it is a single expression.
    pub(super) whole: Option<String>,
}

impl Texts {
    /// Nothing is known of the entries.
    pub(super) fn unknown() -> Self {
        Self { open: true, ..Self::default() }
    }

    fn add(&mut self, key: &str, text: Text) {
        if let Entry::Vacant(entry) = self.index.entry(key.to_owned()) {
            entry.insert(self.known.len());
            self.known.push((key.to_owned(), text));
        }
    }

    pub(super) fn get(&self, key: &str) -> Option<&Text> {
        self.index.get(key).map(|&index| &self.known[index].1)
    }
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
        Some(Part { outlines: self, outline, node: outline.node() })
    }
}

/// The maps of which a map consists: itself, and those that `<<` merges at any depth, an earlier one before a later one.
/// Each is the map, or the expression that yields it. A partial is read once: it adds nothing the second time.
struct Maps<'a> {
    /// The parts that are not visited yet, the next one last.
    open: Vec<Part<'a>>,
    seen: HashSet<*const Node>,
}

impl<'a> Iterator for Maps<'a> {
    type Item = Result<Part<'a>, Part<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let part = self.open.pop()?;
            let Some(map) = part.resolved(0) else { return Some(Err(part)) };
            if !self.seen.insert(std::ptr::from_ref(map.node)) {
                continue;
            }
            let merged = map.merged();
            if !map.counts(1 + map.node.as_map().map_or(0, <[_]>::len) + merged.len()) {
                self.open.clear();
                return Some(Err(part));
            }
            self.open.extend(merged.into_iter().rev());
            return Some(Ok(map));
        }
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
        self.outline.source()
    }

    pub(super) fn location(self) -> Location {
        Location::new(self.source(), self.node.span)
    }

    /// Counts values that a check compares. Returns false once they are too many, of which lint warns.
    pub(super) fn counts(self, values: usize) -> bool {
        self.outlines.count(values)
    }

    /// The source text of the part.
    pub(super) fn written(self) -> &'a str {
        self.outline.text(self.node)
    }

    /// Whether part of it is in a branch or a loop.
    pub(super) fn has_statements(self) -> bool {
        self.written().contains("{%")
    }

    /// Whether it is in a branch, a loop or a macro of its template.
    pub(super) fn is_in_branch(self) -> bool {
        self.outline.is_in_branch(self.node)
    }

    /// The lists of the loops around it.
    pub(super) fn lists(self) -> Vec<&'a str> {
        let (loops, span) = (self.outline.loops(), self.node.span);
        let is_around = |(place, _): &&(Span, String)| place.start <= span.start && span.end <= place.end;
        let around = if self.counts(loops.len()) { loops } else { &[] };
        around.iter().filter(is_around).map(|(_, list)| list.as_str()).collect()
    }

    /// Whether it is null in all branches.
    fn is_nothing(self) -> bool {
        self.node.is_null() && !self.has_statements()
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
        let mut open = false;
        for map in self.maps() {
            let Ok(map) = map else {
                open = true;
                continue;
            };
            let NodeValue::Map(entries) = &map.node.value else {
                open |= !map.is_nothing();
                continue;
            };
            if let Some((_, value)) = entries.iter().rfind(|(name, _)| name.as_str() == Some(key)) {
                return At::Part(map.with(value));
            }
            open |= entries.iter().any(|(name, _)| !name.is_merge_key() && map.with(name).is_computed());
        }
        if open { At::Open } else { At::Absent }
    }

    fn maps(self) -> Maps<'a> {
        Maps { open: vec![self], seen: HashSet::new() }
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
        let mut keys = Vec::new();
        for map in self.maps() {
            let map = map.ok()?;
            match &map.node.value {
                NodeValue::Map(_) => keys.extend(map.own_keys()),
                NodeValue::Null => {}
                _ => return None,
            }
        }
        Some(keys)
    }

    /// The keys of a map itself, without those that `<<` merges.
    pub(super) fn own_keys(self) -> impl Iterator<Item = Self> {
        let entries = self.node.as_map().unwrap_or_default();
        entries.iter().filter(|(key, _)| !key.is_merge_key()).map(move |(key, _)| self.with(key))
    }

    /// The maps that `<<` merges into a map, in the order of the file: an earlier one wins.
    pub(super) fn merged(self) -> Vec<Self> {
        let NodeValue::Map(entries) = &self.node.value else { return Vec::new() };
        let values = entries.iter().filter(|(name, _)| name.is_merge_key());
        values.flat_map(|(_, value)| merged_in(value)).map(|map| self.with(map)).collect()
    }

    /// The expressions that yield entries of a map which its text does not show: all of them, or those that `<<` merges.
    pub(super) fn sources(self) -> Vec<Self> {
        self.maps().filter_map(Result::err).collect()
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
        self.outline.sets(variable)
    }

    /// Calls `found` with the key and the value of each entry, at any depth and in all branches. An item of a list has
    /// an empty key.
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
        if depth >= MAX_DEPTH || !self.counts(1) {
            return;
        }
        let Some(part) = self.resolved(0) else { return };
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
                    let item = part.with(item);
                    found("", item);
                    item.entries_within(depth + 1, seen, found);
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
        for map in self.maps() {
            let map = match map {
                Ok(map) => map,
                Err(part) if part.is_of_users() && !std::ptr::eq(part.node, self.node) => {
                    texts.users = true;
                    continue;
                }
                Err(_) => {
                    texts.open = true;
                    continue;
                }
            };
            // The maps of users that come before it win.
            texts.open |= texts.users;
            let NodeValue::Map(entries) = &map.node.value else {
                texts.open |= !map.is_nothing();
                continue;
            };
            for (name, value) in entries.iter().filter(|(name, _)| !name.is_merge_key()) {
                match map.with(value).text() {
                    Some(text) if !map.with(name).is_computed() => {
                        texts.add(name.as_str().unwrap_or_default(), text);
                    }
                    _ => texts.open = true,
                }
            }
            // An entry in a branch does not exist in all instances, which does not matter here. But in another
            // branch it may have another value.
            texts.open |= map.has_statements();
        }
        texts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::template_scan::MAX_VALUES;

    #[test]
    fn entries_of_partials_are_read_once_at_each_depth() {
        let text = "a: {{ partial('x.yaml') }}\nb: {{ partial('x.yaml') }}\n";
        let path = "templates/x.yaml".to_owned();
        let outlines = Outlines::of([(path.as_str(), &Source::new(path.clone(), text))]);
        let mut count = 0;
        outlines.root(&path).expect("document").each_entry(&mut |_, _| count += 1);
        assert_eq!(count, 2 * MAX_DEPTH);
    }

    fn outlines(files: &[(&str, String)]) -> Outlines {
        let files: Vec<_> =
            files.iter().map(|(path, text)| (*path, Source::new(*path, text.clone()))).collect();
        Outlines::of(files.iter().map(|(path, source)| (*path, source)))
    }

    /// Two partials, each of which merges both many times.
    #[test]
    fn merged_partials_are_read_once() {
        let merges = |name: &str| format!("{{{{ partial('{name}') }}}}, ").repeat(50);
        let files = [
            ("templates/a.yaml", format!("a: 1\n<<: [{}{{b: 2}}]\n", merges("a.yaml") + &merges("b.yaml"))),
            ("templates/b.yaml", format!("c: 3\n<<: [{}]\n", merges("a.yaml") + &merges("b.yaml"))),
        ];
        let outlines = outlines(&files);
        let root = outlines.root("templates/a.yaml").expect("document");
        let texts = root.texts();
        let known: Vec<&str> = texts.known.iter().map(|(key, _)| key.as_str()).collect();
        assert_eq!((known, texts.open), (vec!["a", "c", "b"], false));
        assert!(matches!(root.get("d"), At::Absent));
        assert!(matches!(root.get("c"), At::Part(_)));
        assert_eq!(root.all_keys().map(|keys| keys.len()), Some(3));
        assert!(root.sources().is_empty());
        assert!(!outlines.is_exhausted());
    }

    #[test]
    fn nothing_is_known_once_checks_are_cut_off() {
        let outlines = outlines(&[("templates/a.yaml", "a: 1\n".to_owned())]);
        let root = outlines.root("templates/a.yaml").expect("document");
        assert!(root.counts(1));
        assert!(!root.counts(usize::MAX));
        assert!(matches!(root.get("b"), At::Open) && root.texts().open && root.all_keys().is_none());
        root.each_entry(&mut |key, _| panic!("{key}"));
    }

    #[test]
    fn merged_maps_and_items_count() {
        let merges = "{{ partial('b.yaml') }}, ".repeat(10);
        let files =
            [("templates/a.yaml", format!("<<: [{merges}]\n")), ("templates/b.yaml", "b: 1\n".to_owned())];
        let searches: [fn(Part<'_>); 2] =
            [|root| assert!(matches!(root.get("c"), At::Open)), |root| root.each_entry(&mut |_, _| ())];
        for search in searches {
            let outlines = outlines(&files);
            let root = outlines.root("templates/a.yaml").expect("document");
            assert!(root.counts(MAX_VALUES - 10));
            search(root);
            assert!(outlines.is_exhausted());
        }
    }

    #[test]
    fn variables_and_branches_of_statements_are_known() {
        let text = "a: 1\n{% set name = 'x' %}\n{%- for i in y %}\nb: 2\n{% endfor %}\nc: 3\n";
        let outlines = outlines(&[("templates/a.yaml", text.to_owned())]);
        let root = outlines.root("templates/a.yaml").expect("document");
        for (name, wanted) in [("name", true), ("i", true), ("nam", false), ("y", false)] {
            assert_eq!(root.sets(name), wanted, "{name}");
        }
        for (key, wanted) in [("a", false), ("b", true), ("c", false)] {
            let At::Part(part) = root.get(key) else { panic!("no {key}") };
            assert_eq!(part.is_in_branch(), wanted, "{key}");
            assert_eq!(part.lists(), if wanted { vec!["y"] } else { Vec::new() }, "{key}");
        }
    }
}
