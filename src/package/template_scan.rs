//! Scans the raw text of a template without rendering it: names, namespaces, label keys.
//!
//! Every `{{ }}` is replaced by a word of the same length, and every `{% %}` and `{# #}` by spaces. The rest
//! is parsed as YAML, so positions in the outline are positions in the template. If the result is not valid
//! YAML (for instance an `{% if %}` with two variants of one key), there is no outline, and checks that need
//! one are done on the rendered object instead.

mod namespaces;
mod positions;

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use super::lint::words::boolean_word;
use super::metadata;
use crate::diag::{Diagnostic, Location, Source, Span};
use crate::validation::is_label_value;
use crate::yaml::{self, Duplicates, Merge, Node, NodeValue};

pub use namespaces::Namespaces;
pub(super) use positions::positions_without_outline;

/// The prefix of labels and annotations that only Operetta sets.
pub(super) const OWN_PREFIX: &str = "operetta.dev/";

/// The maximum number of values that checks look at in all templates of a package. A partial counts each time.
pub(super) const MAX_VALUES: usize = 20_000_000;

/// The outline of one template.
#[derive(Debug)]
pub(super) struct Outline {
    source: Arc<Source>,
    node: Node,
    /// The words that follow `set` and `for`.
    assigned: HashSet<String>,
    statements: Statements,
    /// Whether a map has a key several times, because of branches.
    pub(super) repeats: bool,
}

/// The statements of a template, as its text shows them.
#[derive(Debug, Default)]
struct Statements {
    /// The offset of each, and the number of branches, loops and macros that are open after it.
    depths: Vec<(usize, i32)>,
    /// The loops: the place of what is repeated, and the expression of the list.
    loops: Vec<(Span, String)>,
}

/// The outlines of the templates among the files of a package, by path. A file that is not valid YAML without its expressions has none.
#[derive(Debug)]
pub(super) struct Outlines {
    by_path: BTreeMap<String, Outline>,
    /// How many values checks may still look at.
    left: Cell<usize>,
}

impl Outlines {
    pub(super) fn of<'a>(files: impl IntoIterator<Item = (&'a str, &'a Arc<Source>)>) -> Self {
        let files = files.into_iter().filter(|(path, _)| path.starts_with("templates/"));
        let by_path = files.filter_map(|(path, file)| Some((path.to_owned(), Outline::of(file)?))).collect();
        Self { by_path, left: Cell::new(MAX_VALUES) }
    }

    pub(super) fn get(&self, path: &str) -> Option<&Outline> {
        self.by_path.get(path)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &Outline)> {
        self.by_path.iter().map(|(path, outline)| (path.as_str(), outline))
    }

    /// Counts values that a check looks at. Returns false once they are too many.
    pub(super) fn count(&self, values: usize) -> bool {
        self.left.set(self.left.get().saturating_sub(values));
        !self.is_exhausted()
    }

    /// Whether checks were cut off.
    pub(super) fn is_exhausted(&self) -> bool {
        self.left.get() == 0
    }
}

impl Outline {
    pub(super) fn of(source: &Arc<Source>) -> Option<Self> {
        let (blanked, statements) = blank(&source.text)?;
        let blanked = Source::new(source.name.clone(), blanked);
        let options = yaml::Options {
            merge: Merge::Keep,
            duplicate_keys: Duplicates::Keep,
            ..yaml::Options::default()
        };
        let mut documents = yaml::parse(&blanked, &options).ok()?;
        if documents.len() != 1 {
            return None;
        }
        let node = documents.pop()?;
        Some(Self {
            source: Arc::clone(source),
            assigned: assigned(&source.text),
            statements: Statements::of(&source.text, &statements),
            repeats: repeats(&node),
            node,
        })
    }

    /// Whether a statement may set this variable.
    pub(super) fn sets(&self, variable: &str) -> bool {
        self.assigned.contains(variable)
    }

    /// Whether a node is in a branch, a loop or a macro.
    pub(super) fn is_in_branch(&self, node: &Node) -> bool {
        let depths = &self.statements.depths;
        let before = depths.partition_point(|(at, _)| *at < node.span.start);
        depths[..before].last().is_some_and(|(_, depth)| *depth != 0)
    }

    /// The loops of the template: the place of what is repeated, and the expression of the list.
    pub(super) fn loops(&self) -> &[(Span, String)] {
        &self.statements.loops
    }

    /// Its source text.
    pub(super) fn source(&self) -> &Arc<Source> {
        &self.source
    }

    /// Its document. A key of several branches is there several times.
    pub(super) fn node(&self) -> &Node {
        &self.node
    }

    /// Its document, with the last entry of each key.
    pub(super) fn last(&self) -> Cow<'_, Node> {
        if self.repeats { Cow::Owned(last(&self.node)) } else { Cow::Borrowed(&self.node) }
    }

    /// The source text of a node.
    pub(super) fn text(&self, node: &Node) -> &str {
        self.source.text.get(node.span.start..node.span.end).unwrap_or_default().trim()
    }

    fn location(&self, node: &Node) -> Location {
        Location::new(&self.source, node.span)
    }

    fn metadata(&self, key: &str) -> Option<&Node> {
        self.node.get("metadata")?.get(key)
    }

    /// The values of a metadata field, in all branches.
    fn metadata_all(&self, field: &str) -> Vec<&Node> {
        entries_of(&self.node, "metadata")
            .flat_map(|(_, metadata)| entries_of(metadata, field))
            .map(|(_, value)| value)
            .collect()
    }

    /// The source text of `metadata.name`.
    pub(super) fn name(&self) -> Option<&str> {
        self.metadata("name").map(|node| self.text(node))
    }

    /// Checks fields that a child's template must or must not set.
    pub(super) fn fields(&self, diagnostics: &mut Vec<Diagnostic>) {
        let never = |(key, _): &&(Node, Node)| key.as_str().is_some_and(|key| metadata::NEVER.contains(&key));
        let of_metadata =
            || entries_of(&self.node, "metadata").filter_map(|(_, metadata)| fields_of(metadata)).flatten();
        for (key, _) in entries_of(&self.node, "status").chain(of_metadata().filter(never)) {
            let message =
                format!("`{}` must not be in the template of a child", key.as_str().unwrap_or_default());
            let help = "Operetta and the API server set it; remove it";
            diagnostics
                .push(Diagnostic::error("package::field", message).located(self.location(key)).help(help));
        }
        for (key, value) in of_metadata().filter(|entry| !never(entry) && !entry.0.is_merge_key()) {
            let name = key.as_str().unwrap_or_default();
            if self.text(key).contains("{{")
                || metadata::may_come_from_values(name)
                || !self.text(value).contains("{{")
            {
                continue;
            }
            let message = format!("`metadata.{name}` must not be computed");
            diagnostics.push(
                Diagnostic::error("package::metadata", message)
                    .located(self.location(key))
                    .help("values may set only name, namespace, labels and annotations: use a literal"),
            );
        }
        if let Some((key, metadata)) = self.node.entry("metadata")
            && let NodeValue::Map(_) = metadata.value
            && metadata.get("name").is_none()
            && metadata.get("<<").is_none()
        {
            let error =
                Diagnostic::error("package::field", "`metadata.name` is missing").located(self.location(key));
            diagnostics.push(error.help("name the object after the instance: {{ name }}"));
        }
        self.written_name(diagnostics);
        let pods = self.node.get("spec").and_then(|spec| spec.get("template"));
        for metadata in [Some(&self.node), pods].into_iter().flatten().filter_map(|node| node.get("metadata"))
        {
            self.written_labels(metadata, diagnostics);
        }
    }

    /// Reports a literal part of a name that no API server accepts. Only for groups in which all names follow
    /// one rule.
    fn written_name(&self, diagnostics: &mut Vec<Diagnostic>) {
        let group = self.node.get("apiVersion").and_then(Node::as_str);
        let Some(name) =
            self.metadata("name").filter(|_| matches!(group, Some("v1" | "apps/v1" | "batch/v1")))
        else {
            return;
        };
        let is_taken = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.');
        let wrong = name
            .as_str()
            .filter(|_| !self.text(name).contains("{%"))
            .and_then(|text| text.find(|c| !is_taken(c)));
        if wrong.is_some() {
            let message = "a name may contain only lower case letters, digits, `-` and `.`";
            let error = Diagnostic::error("package::object-name", message).located(self.location(name));
            diagnostics.push(error.path("metadata.name").help("correct it, or use `| dns_label`"));
        }
    }

    /// Reports literal labels and annotations that no API server accepts.
    fn written_labels(&self, metadata: &Node, diagnostics: &mut Vec<Diagnostic>) {
        for field in ["labels", "annotations"] {
            let Some(NodeValue::Map(entries)) = metadata.get(field).map(|map| &map.value) else { continue };
            for (key, value) in entries {
                let is_written = |node| !self.text(node).contains("{{") && !self.text(node).contains("{%");
                let name = key.as_str().unwrap_or_default();
                if name == "<<" {
                    continue;
                }
                let mut wrong = |node, message: String, help: &str| {
                    let error = Diagnostic::error("package::label", message).located(self.location(node));
                    diagnostics.push(error.path(format!("metadata.{field}")).help(help));
                };
                let rule = "letters, digits, `-`, `_` and `.`, a letter or digit at both ends, 63 at most";
                let last = name.rsplit_once('/').map_or(name, |(_, last)| last);
                if is_written(key) && (last.is_empty() || !is_label_value(last)) {
                    wrong(key, format!("`{name}` cannot be a key of {field}"), rule);
                }
                match &value.value {
                    _ if !is_written(value) => {}
                    // Words such as `yes` are checked elsewhere, for all positions.
                    NodeValue::Bool(_) if boolean_word(&self.source, value).is_some() => {}
                    NodeValue::Bool(_) | NodeValue::Number(_) => {
                        wrong(value, format!("{field} must be strings"), "quote it");
                    }
                    NodeValue::String(text) if field == "labels" && !is_label_value(text) => {
                        wrong(value, "this cannot be the value of a label".to_owned(), rule);
                    }
                    _ => {}
                }
            }
        }
    }

    /// Reports labels and annotations that only Operetta sets.
    pub(super) fn own_keys(&self, is_child: bool, diagnostics: &mut Vec<Diagnostic>) {
        // A partial may consist of a map of labels.
        self.own_keys_in(&self.node, !is_child, diagnostics);
    }

    fn own_keys_in(&self, node: &Node, is_labels: bool, diagnostics: &mut Vec<Diagnostic>) {
        match &node.value {
            NodeValue::Map(entries) => {
                for (key, value) in entries {
                    let name = key.as_str().unwrap_or_default();
                    if is_labels && name.starts_with(OWN_PREFIX) {
                        diagnostics.push(
                            Diagnostic::error(
                                "package::own-label",
                                format!("`{name}`: labels and annotations of {OWN_PREFIX} are reserved for Operetta"),
                            )
                            .located(self.location(key))
                            .help("use another prefix"),
                        );
                    }
                    let labels = name == "labels" || name == "annotations" || (is_labels && name == "<<");
                    self.own_keys_in(value, labels, diagnostics);
                }
            }
            NodeValue::Seq(items) => {
                for item in items {
                    self.own_keys_in(item, is_labels, diagnostics);
                }
            }
            _ => {}
        }
    }
}

/// The node with the last entry of each key.
fn last(node: &Node) -> Node {
    let value = match &node.value {
        NodeValue::Map(entries) => {
            let mut known = HashMap::new();
            let mut kept: Vec<(Node, Node)> = Vec::new();
            for (key, value) in entries {
                let entry = (key.clone(), last(value));
                let at = *known.entry(key.as_str()).or_insert(kept.len());
                match kept.get_mut(at).filter(|_| !key.is_merge_key()) {
                    Some(earlier) => *earlier = entry,
                    None => kept.push(entry),
                }
            }
            NodeValue::Map(kept)
        }
        NodeValue::Seq(items) => NodeValue::Seq(items.iter().map(last).collect()),
        scalar => scalar.clone(),
    };
    Node { value, span: node.span, style: node.style }
}

/// Whether a map in the node has a key several times.
fn repeats(node: &Node) -> bool {
    match &node.value {
        NodeValue::Map(entries) => {
            let mut keys = HashSet::new();
            let own =
                entries.iter().filter(|(key, _)| !key.is_merge_key()).filter_map(|(key, _)| key.as_str());
            !own.into_iter().all(|key| keys.insert(key)) || entries.iter().any(|(_, value)| repeats(value))
        }
        NodeValue::Seq(items) => items.iter().any(repeats),
        _ => false,
    }
}

/// The entries of a node, if it is a map.
fn fields_of(node: &Node) -> Option<&Vec<(Node, Node)>> {
    match &node.value {
        NodeValue::Map(entries) => Some(entries),
        _ => None,
    }
}

/// The entries of a map with this key. There are several if branches set it.
fn entries_of<'a>(node: &'a Node, key: &str) -> impl Iterator<Item = &'a (Node, Node)> {
    let entries = fields_of(node).into_iter().flatten();
    entries.filter(move |(name, _)| name.as_str() == Some(key))
}

/// The expression of a text that consists of one `{{ }}`, quoted or not.
pub(super) fn lone_expression(text: &str) -> Option<&str> {
    let text = text.trim_matches(['"', '\'']).trim();
    let inner = text.strip_prefix("{{")?.strip_suffix("}}")?;
    (!inner.contains("{{")).then(|| inner.trim_matches('-').trim())
}

/// The words that follow `set` and `for` in a text.
fn assigned(text: &str) -> HashSet<String> {
    let rests = ["set ", "for "].into_iter().flat_map(|word| text.match_indices(word));
    let rests = rests.map(|(at, word)| &text[at + word.len()..]);
    let word = |rest: &str| {
        let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
        rest[..end].to_owned()
    };
    rests.map(word).collect()
}

impl Statements {
    fn of(text: &str, places: &[Span]) -> Self {
        let mut found = Self::default();
        let (mut depth, mut open) = (0, Vec::new());
        for place in places {
            let statement = text[place.start..place.end].trim_matches(['{', '%', '-', '+', '}']).trim();
            let (word, rest) = statement.split_once(char::is_whitespace).unwrap_or((statement, ""));
            depth += match word {
                "if" | "for" | "macro" | "filter" | "with" => 1,
                word if word.starts_with("end") && word != "endset" => -1,
                _ => 0,
            };
            found.depths.push((place.start, depth));
            if word == "for" {
                let list = rest.split_once(" in ").map_or("", |(_, list)| list.trim());
                open.push(found.loops.len());
                found.loops.push((Span::new(place.end, text.len()), list.to_owned()));
            } else if word == "endfor"
                && let Some(index) = open.pop()
            {
                found.loops[index].0.end = place.start;
            }
        }
        found
    }
}

/// Replaces all Jinja in a text without changing its length, and finds the statements; `None` if a block is not closed.
fn blank(text: &str) -> Option<(String, Vec<Span>)> {
    let mut out = String::with_capacity(text.len());
    let mut statements = Vec::new();
    let mut rest = text;
    while let Some(open) = rest.find('{') {
        let (before, block) = rest.split_at(open);
        out.push_str(before);
        let (end, filler) = match block.as_bytes().get(1) {
            Some(b'{') => (close(block, "}}")?, b'x'),
            Some(b'%') => (close(block, "%}")?, b' '),
            Some(b'#') => (block.find("#}")? + 2, b' '),
            _ => {
                out.push('{');
                rest = &block[1..];
                continue;
            }
        };
        if block.starts_with("{%") {
            statements.push(Span::new(out.len(), out.len() + end));
        }
        for byte in block[..end].bytes() {
            // A statement over several lines keeps its line breaks, but an expression becomes one word.
            out.push(char::from(if byte == b'\n' && filler == b' ' { b'\n' } else { filler }));
        }
        rest = &block[end..];
    }
    out.push_str(rest);
    Some((out, statements))
}

/// The end of a block. As in MiniJinja, strings and brackets within the block are skipped.
fn close(block: &str, end: &str) -> Option<usize> {
    let mut quote = None;
    let mut skip = false;
    let mut depth = 0_usize;
    for (index, c) in block.char_indices().skip(2) {
        match (quote, c) {
            _ if skip => skip = false,
            (Some(_), '\\') => skip = true,
            (Some(open), _) if open == c => quote = None,
            (None, '\'' | '"') => quote = Some(c),
            (None, _) if depth == 0 && block[index..].starts_with(end) => return Some(index + end.len()),
            (None, '(' | '[' | '{') => depth += 1,
            (None, ')' | ']' | '}') => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outline(text: &str) -> Option<Outline> {
        Outline::of(&Source::new("t.yaml", text))
    }

    #[test]
    fn blanking_keeps_positions() {
        for (text, wanted) in [
            ("a: {{ x }}b", "a: xxxxxxxb"),
            ("a: {{ '}}' }}", "a: xxxxxxxxxx"),
            ("a: {{ {'a': {}} }}", "a: xxxxxxxxxxxxxxx"),
            ("a: {{ {'a': {}}}}", "a: xxxxxxxxxxxxxx"),
            ("{% if a %}\nb: 1\n{% endif %}", "          \nb: 1\n           "),
            ("a: {b: 1} # {# x #}", "a: {b: 1} #        "),
            ("{{ 'ß' }}", "xxxxxxxxxx"),
        ] {
            let (blanked, _) = blank(text).unwrap();
            assert_eq!(blanked, wanted);
            assert_eq!(blanked.len(), text.len());
        }
        for text in ["{{", "{{ '}}", "{% if", "{# x"] {
            assert_eq!(blank(text), None, "{text}");
        }
    }

    #[test]
    fn only_names_labels_and_annotations_may_be_computed() {
        for (text, errors) in [
            ("metadata: {name: a, finalizers: [example.org/x]}", 0),
            ("metadata: {name: a, finalizers: \"{{ spec.x }}\"}", 1),
            ("metadata: {name: a, finalizers: [example.org/x, \"{{ spec.x }}\"]}", 1),
            ("metadata:\n  name: a\n  finalizers:\n{% for f in spec.x %}\n    - {{ f }}\n{% endfor %}", 1),
            (
                "metadata:\n  name: a\n{% if x %}\n  finalizers: [a/b]\n{% else %}\n  finalizers: {{ spec.x }}\n{% endif %}",
                1,
            ),
            (
                "metadata: {name: \"{{ spec.x }}\", labels: {{ spec.x }}, annotations: {a: \"{{ spec.x }}\"}}",
                0,
            ),
            ("metadata: {name: a, ownerReferences: [], generateName: b, selfLink: c}", 3),
            ("metadata: {{ spec.x }}", 0),
            ("metadata: {name: a, <<: {{ spec.x }}}", 0),
        ] {
            let mut diagnostics = Vec::new();
            outline(text).unwrap().fields(&mut diagnostics);
            assert_eq!(diagnostics.len(), errors, "{text}: {diagnostics:?}");
        }
    }

    #[test]
    fn invalid_literal_names_and_labels_are_reported() {
        let long = format!("metadata: {{name: a, labels: {{a: {}}}}}", "b".repeat(64));
        for (text, errors) in [
            (
                "metadata: {name: \"{{ name | upper }}\", labels: {a: b, c.d/e-f: \"\", g: {{ x }}, h: \"1\"}}",
                0,
            ),
            (
                "metadata: {name: a, labels: {a: 1, b: true}, annotations: {c: 2, d: any text, e: \"{{ x }}\"}}",
                3,
            ),
            ("metadata: {name: a, labels: {a: some text, \"b c\": d, \"{{ x }}\": e, <<: {f: 1}}}", 2),
            ("metadata: {name: a}\nspec: {template: {metadata: {labels: {a: 1}}}}", 1),
            (&long, 1),
            ("apiVersion: v1\nmetadata: {name: \"A_{{ name }}\"}", 1),
            ("apiVersion: v1\nmetadata: {name: \"{{ name ~ 'A' }}-b.c\"}", 0),
            ("apiVersion: v1\nmetadata:\n  name: a{% if x %}-b{% endif %}\n", 0),
            ("apiVersion: rbac.authorization.k8s.io/v1\nmetadata: {name: \"system:{{ name }}\"}", 0),
        ] {
            let mut diagnostics = Vec::new();
            outline(text).unwrap().fields(&mut diagnostics);
            assert_eq!(diagnostics.len(), errors, "{text}: {diagnostics:?}");
        }
    }

    #[test]
    fn reserved_labels_are_reported_at_every_position() {
        for (text, is_child, errors) in [
            ("metadata: {labels: {operetta.dev/x: y}}", true, 1),
            ("metadata:\n  annotations:\n    operetta.dev/x: {{ y }}\n", true, 1),
            ("spec: {template: {metadata: {labels: {operetta.dev/x: y}}}}", true, 1),
            ("metadata: {labels: {<<: {operetta.dev/x: y}}}", true, 1),
            ("spec: {selector: {operetta.dev/x: y}}", true, 0),
            ("operetta.dev/x: y", false, 1),
            ("operetta.dev.example/x: y", false, 0),
        ] {
            let mut diagnostics = Vec::new();
            outline(text).unwrap().own_keys(is_child, &mut diagnostics);
            assert_eq!(diagnostics.len(), errors, "{text}");
        }
    }
}
