//! What the raw text of a template says without being rendered: names, namespaces, label keys.
//!
//! Every `{{ }}` is replaced by a word of the same length and every `{% %}` and `{# #}` by spaces; what
//! is left is parsed as YAML, so places in the outline are places in the template. Where that gives
//! no YAML (an `{% if %}` with two variants of one key), there is no outline: checks that need one are
//! left to the rendered object.

use std::sync::Arc;

use crate::diag::{Diagnostic, Location, Source};
use crate::yaml::{self, Duplicates, Merge, Node, NodeValue};

/// Keys of labels and annotations that only Operetta sets.
const OWN_PREFIX: &str = "operetta.dev/";

/// Fields of an object that are no intent: parent and key.
const FORBIDDEN: [(&str, &str); 7] = [
    ("", "status"),
    ("metadata", "generateName"),
    ("metadata", "uid"),
    ("metadata", "resourceVersion"),
    ("metadata", "ownerReferences"),
    ("metadata", "managedFields"),
    ("metadata", "deletionTimestamp"),
];

/// The outline of one template.
#[derive(Debug)]
pub(super) struct Outline {
    source: Arc<Source>,
    node: Node,
}

/// What `metadata.namespace` of a child may be. An instance's spec must not choose it, else whoever
/// may create an instance writes everywhere with the package's rights; a rendered object alone does
/// not show who chose.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Namespaces {
    /// Instances are cluster-scoped: they may choose.
    any: bool,
    /// `{{ operator.namespace }}` stands in the template.
    operator: bool,
    /// Literals that stand in the template.
    literal: Vec<String>,
}

impl Namespaces {
    /// Whether a rendered child may have that namespace.
    pub fn allows(&self, rendered: Option<&str>, instance: &str, operator: &str) -> bool {
        rendered.is_none_or(|rendered| {
            self.any
                || rendered == instance
                || (self.operator && rendered == operator)
                || self.literal.iter().any(|literal| literal == rendered)
        })
    }

    /// The namespaces beside the instance's own that it allows; `None`: any.
    pub fn beyond<'a>(&'a self, operator: &'a str) -> Option<impl Iterator<Item = &'a str>> {
        let operator = self.operator.then_some(operator);
        (!self.any).then(|| self.literal.iter().map(String::as_str).chain(operator))
    }

    /// Of the children of cluster-scoped instances.
    pub(super) fn any() -> Self {
        Self { any: true, ..Self::default() }
    }

    /// What the template of a child of a namespaced instance says.
    pub(super) fn of(source: &Source, outline: Option<&Outline>, diagnostics: &mut Vec<Diagnostic>) -> Self {
        let mut namespaces = Self::default();
        let Some(outline) = outline else {
            // Every literal that stands beside such a key: all of them are the author's choice.
            for line in source.text.lines() {
                let value = line.trim_start().strip_prefix("namespace:").unwrap_or_default();
                let value = value.split('#').next().unwrap_or_default().trim().trim_matches(['"', '\'']);
                match lone_expression(value) {
                    Some("operator.namespace") => namespaces.operator = true,
                    None if !value.is_empty() && !value.contains('{') => {
                        namespaces.literal.push(value.to_owned());
                    }
                    _ => {}
                }
            }
            return namespaces;
        };
        let Some(node) = outline.metadata("namespace") else { return namespaces };
        let text = outline.text(node);
        if !text.contains("{{") {
            namespaces.literal.extend(node.as_str().map(str::to_owned));
            return namespaces;
        }
        match lone_expression(text) {
            Some("namespace" | "instance.metadata.namespace") => {}
            Some("operator.namespace") => namespaces.operator = true,
            _ => diagnostics.push(
                Diagnostic::error("package::namespace", "a child's namespace must not be computed")
                    .located(outline.location(node))
                    .path("metadata.namespace")
                    .help(
                        "leave it out (the instance's own), or write a literal or {{ operator.namespace }}: \
                         else whoever may create an instance could write to any namespace",
                    ),
            ),
        }
        namespaces
    }
}

impl Outline {
    pub(super) fn of(source: &Arc<Source>) -> Option<Self> {
        let blanked = Source::new(source.name.clone(), blank(&source.text)?);
        let options = yaml::Options {
            merge: Merge::Keep,
            duplicate_keys: Duplicates::Last,
            ..yaml::Options::default()
        };
        let mut documents = yaml::parse(&blanked, &options).ok()?;
        if documents.len() != 1 {
            return None;
        }
        Some(Self { source: Arc::clone(source), node: documents.pop()? })
    }

    fn text(&self, node: &Node) -> &str {
        self.source.text.get(node.span.start..node.span.end).unwrap_or_default().trim()
    }

    fn location(&self, node: &Node) -> Location {
        Location::new(&self.source, node.span)
    }

    fn metadata(&self, key: &str) -> Option<&Node> {
        self.node.get("metadata")?.get(key)
    }

    /// How `metadata.name` is written.
    pub(super) fn name(&self) -> Option<&str> {
        self.metadata("name").map(|node| self.text(node))
    }

    /// Fields of a child that its template must, or must not, give.
    pub(super) fn fields(&self, diagnostics: &mut Vec<Diagnostic>) {
        let ours = FORBIDDEN.iter().filter_map(|(parent, key)| {
            let parent = if parent.is_empty() { Some(&self.node) } else { self.node.get(parent) };
            parent?.entry(key).map(|(key, _)| key)
        });
        for key in ours {
            let message =
                format!("`{}` must not stand in the template of a child", key.as_str().unwrap_or_default());
            let help = "Operetta and the API server set it; remove it";
            diagnostics
                .push(Diagnostic::error("package::field", message).located(self.location(key)).help(help));
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

    /// A name whose written part no API server takes. Only of groups in which all names follow one rule.
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
            let message = "a name may have lower case letters, digits, `-` and `.` only";
            let error = Diagnostic::error("package::object-name", message).located(self.location(name));
            diagnostics
                .push(error.path("metadata.name").help("write it so, or let `| dns_label` make it so"));
        }
    }

    /// Labels and annotations that are written out and that no API server takes.
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
                    NodeValue::Bool(_) | NodeValue::Number(_) => {
                        wrong(value, format!("{field} are text"), "put it in quotes");
                    }
                    NodeValue::String(text) if field == "labels" && !is_label_value(text) => {
                        wrong(value, "this cannot be the value of a label".to_owned(), rule);
                    }
                    _ => {}
                }
            }
        }
    }

    /// Labels and annotations that only Operetta sets.
    pub(super) fn own_keys(&self, is_child: bool, diagnostics: &mut Vec<Diagnostic>) {
        // A partial may be the map of labels itself.
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
                                format!("`{name}`: labels and annotations of {OWN_PREFIX} are set by Operetta alone"),
                            )
                            .located(self.location(key))
                            .help("use a prefix of your own"),
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

/// Whether an API server takes a text as the value of a label; as the name in its key, too, unless it is empty.
pub fn is_label_value(text: &str) -> bool {
    let ends_well = |b: Option<&u8>| b.is_none_or(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    bytes.len() <= 63
        && bytes.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
        && ends_well(bytes.first())
        && ends_well(bytes.last())
}

/// The expression of a text that is one `{{ }}` alone, quoted or not.
pub(super) fn lone_expression(text: &str) -> Option<&str> {
    let text = text.trim_matches(['"', '\'']).trim();
    let inner = text.strip_prefix("{{")?.strip_suffix("}}")?;
    (!inner.contains("{{")).then(|| inner.trim_matches('-').trim())
}

/// The text with the same length, without Jinja; nothing if a block is not closed.
fn blank(text: &str) -> Option<String> {
    let mut out = String::with_capacity(text.len());
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
        for byte in block[..end].bytes() {
            // Lines stay lines where a statement spans several; an expression stays one word.
            out.push(char::from(if byte == b'\n' && filler == b' ' { b'\n' } else { filler }));
        }
        rest = &block[end..];
    }
    out.push_str(rest);
    Some(out)
}

/// One past the end of a block: strings and brackets within it are skipped, as MiniJinja does.
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
    fn blanking_keeps_places() {
        for (text, wanted) in [
            ("a: {{ x }}b", "a: xxxxxxxb"),
            ("a: {{ '}}' }}", "a: xxxxxxxxxx"),
            ("a: {{ {'a': {}} }}", "a: xxxxxxxxxxxxxxx"),
            ("a: {{ {'a': {}}}}", "a: xxxxxxxxxxxxxx"),
            ("{% if a %}\nb: 1\n{% endif %}", "          \nb: 1\n           "),
            ("a: {b: 1} # {# x #}", "a: {b: 1} #        "),
            ("{{ 'ß' }}", "xxxxxxxxxx"),
        ] {
            let blanked = blank(text).unwrap();
            assert_eq!(blanked, wanted);
            assert_eq!(blanked.len(), text.len());
        }
        for text in ["{{", "{{ '}}", "{% if", "{# x"] {
            assert_eq!(blank(text), None, "{text}");
        }
    }

    #[test]
    fn namespaces_are_absent_literal_or_ours() {
        for (namespace, allowed, errors) in [
            ("", &["own"][..], 0),
            ("kube-system", &["own", "kube-system"], 0),
            ("\"kube-system\"", &["own", "kube-system"], 0),
            ("{{ namespace }}", &["own"], 0),
            ("\"{{ instance.metadata.namespace }}\"", &["own"], 0),
            ("{{ operator.namespace }}", &["own", "manager"], 0),
            ("{{ spec.namespace }}", &["own"], 1),
            ("a-{{ name }}", &["own"], 1),
            ("{{ labels.a }}{{ namespace }}", &["own"], 1),
        ] {
            let line = if namespace.is_empty() { String::new() } else { format!("namespace: {namespace}") };
            let source = Source::new("t.yaml", format!("metadata:\n  name: a\n  {line}\n"));
            let outline = Outline::of(&source).unwrap();
            let mut diagnostics = Vec::new();
            let namespaces = Namespaces::of(&source, Some(&outline), &mut diagnostics);
            assert_eq!(diagnostics.len(), errors, "{namespace}");
            // Without an outline the rendered object is checked all the same.
            assert_eq!(Namespaces::of(&source, None, &mut Vec::new()), namespaces, "{namespace}");
            for candidate in ["own", "manager", "kube-system", "other"] {
                let allows = namespaces.allows(Some(candidate), "own", "manager");
                assert_eq!(allows, allowed.contains(&candidate), "{namespace}: {candidate}");
            }
            assert!(namespaces.allows(None, "own", "manager"));
        }
        assert!(Namespaces::any().allows(Some("other"), "own", "manager"));
    }

    #[test]
    fn what_is_written_out_and_no_server_takes_is_found() {
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
    fn labels_of_ours_are_found_wherever_labels_are() {
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
