//! Records what is there in place of what is expected: values in the text of a test file are replaced, and nothing else.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::Value;

use super::expect::{Problem, Why, Written};
use super::matching::Difference;
use crate::diag::{Location, Source, Span};
use crate::yaml::{self, Node, NodeValue, PathItem, Style};

/// A value of a test file that another takes the place of.
#[derive(Debug, Clone)]
pub(crate) struct Edit {
    at: Location,
    text: String,
    /// The place, for people.
    place: String,
    /// The value that is written there now, and the new one, for people.
    before: String,
    after: String,
}

/// An edit that has been made, or could not be made.
#[derive(Debug)]
pub(crate) struct Change {
    pub at: Location,
    pub what: String,
    /// Whether cases disagree about the value, so that it stays.
    pub is_disputed: bool,
}

/// Notes what the file must say for a problem to vanish. Returns false if that cannot be said by other values.
pub(super) fn record(problem: &Problem<'_>, edits: &mut Vec<Edit>) -> bool {
    let found = match (&problem.why, problem.written) {
        (Why::Count { found, .. }, Written::Count(count)) => {
            let (text, place) = (found.to_string(), problem.what.clone());
            let (before, after) = (count.value.to_string(), text.clone());
            vec![Some(Edit { at: count.at.clone(), text, place, before, after })]
        }
        (Why::Differs(differences), Written::Part(part)) => {
            let of = |difference| of_difference(difference, &part.value.node, &part.at.source, &problem.what);
            differences.iter().flat_map(of).collect()
        }
        _ => return false,
    };
    let is_whole = found.iter().all(Option::is_some);
    edits.extend(found.into_iter().flatten());
    is_whole
}

/// The edits for one difference; `None` stands for what cannot be recorded.
fn of_difference(
    difference: &Difference,
    part: &Node,
    source: &Arc<Source>,
    what: &str,
) -> Vec<Option<Edit>> {
    // Which item an author means by one that nothing fits is not known.
    if difference.is_item {
        return vec![None];
    }
    let mut node = part;
    let mut flow = part.style == Style::Flow;
    for item in &difference.place {
        // `conditions: {Ready: "True"}` is written for a map.
        let Some(next) = node.at(std::slice::from_ref(item)) else { break };
        node = next;
        flow |= node.style == Style::Flow;
    }
    let place = format!("{what}: {}", difference.path);
    let found = difference.found.clone().unwrap_or_default();
    if let (NodeValue::Seq(written), Value::Array(found)) = (&node.value, &found) {
        return list(node, written, found, &Context { source, place, flow });
    }
    vec![Context { source, place, flow }.replace(node, &found)]
}

struct Context<'a> {
    source: &'a Arc<Source>,
    place: String,
    /// Whether the value is within brackets or braces.
    flow: bool,
}

impl Context<'_> {
    fn text(&self, node: &Node) -> &str {
        self.source.text.get(node.span.start..node.span.end).unwrap_or_default()
    }

    fn edit(&self, span: Span, text: String, node: &Node, found: &Value) -> Edit {
        let (before, after) = (flow(&node.to_json()), flow(found));
        Edit { at: Location::new(self.source, span), text, place: self.place.clone(), before, after }
    }

    fn replace(&self, node: &Node, found: &Value) -> Option<Edit> {
        let written = self.text(node).trim_end();
        // The header of a block scalar is before its text.
        if node.style == Style::Block || matches!(node.value, NodeValue::Map(_)) && node.style != Style::Flow
        {
            return None;
        }
        let span = Span::new(node.span.start, node.span.start + written.len());
        let is_single = node.style == Style::Quoted && written.starts_with('\'');
        let text = match found {
            Value::String(text) if is_single && !text.contains(|c: char| c == '\'' || c.is_control()) => {
                format!("'{text}'")
            }
            Value::String(text) if node.style == Style::Quoted => Value::from(text.as_str()).to_string(),
            // A value that is left out is null.
            value if written.is_empty() => format!(" {}", flow(value)),
            value => flow(value),
        };
        Some(self.edit(span, text, node, found))
    }
}

/// The edits of a list of values that are no maps: of those items that differ, and of the end.
fn list(node: &Node, written: &[Node], found: &[Value], context: &Context<'_>) -> Vec<Option<Edit>> {
    let all = Value::from(found);
    let is_block = node.style == Style::Indented && !context.flow;
    let end = |node: &Node| node.span.start + context.text(node).trim_end().len();
    let whole = Span::new(node.span.start, end(node));
    let (Some(last), false) = (written.last(), found.is_empty()) else {
        return vec![Some(context.edit(whole, flow(&all), node, &all))];
    };
    let same = written.iter().zip(found).filter(|(item, found)| item.to_json() != **found);
    let mut edits: Vec<Option<Edit>> = same.map(|(item, found)| context.replace(item, found)).collect();
    let (kept, more) = (written.len().min(found.len()), &found[written.len().min(found.len())..]);
    if !is_block {
        // Commas are between items, so a list of another length is written anew.
        return if written.len() == found.len() {
            edits
        } else {
            vec![Some(context.edit(whole, flow(&all), node, &all))]
        };
    }
    if !more.is_empty() {
        let start = node.span.start;
        let line = context.source.text[..start].rfind('\n').map_or(0, |at| at + 1);
        let indent = " ".repeat(context.source.text[line..start].chars().count());
        let lines: Vec<String> = more.iter().map(|item| format!("\n{indent}- {}", flow(item))).collect();
        let text = lines.concat();
        edits.push(Some(context.edit(Span::new(end(last), end(last)), text, node, &all)));
    } else if let (true, Some(kept)) = (written.len() > found.len(), written.get(kept - 1)) {
        let line_end =
            |at: usize| context.source.text[at..].find('\n').map_or(context.source.text.len(), |n| at + n);
        let span = Span::new(line_end(end(kept)), line_end(end(last)));
        edits.push(Some(context.edit(span, String::new(), node, &all)));
    }
    edits
}

/// A value on one line.
pub(super) fn flow(value: &Value) -> String {
    match value {
        Value::String(text) => plain(text),
        Value::Array(items) => format!("[{}]", items.iter().map(flow).collect::<Vec<_>>().join(", ")),
        Value::Object(map) => {
            let entries = map.iter().map(|(key, value)| format!("{}: {}", plain(key), flow(value)));
            format!("{{{}}}", entries.collect::<Vec<_>>().join(", "))
        }
        scalar => scalar.to_string(),
    }
}

/// A string without quotes where it can be read so.
pub(super) fn plain(text: &str) -> String {
    let is_simple = !text.is_empty()
        && text.chars().all(|c| c.is_alphanumeric() || "-_./ ".contains(c))
        && text.starts_with(|c: char| c.is_alphanumeric() || c == '.')
        && !text.ends_with(' ');
    let read = yaml::parse(&Source::new("", format!("[{text}]")), &yaml::Options::default());
    let same = read.is_ok_and(|nodes| {
        nodes.first().and_then(|node| node.at(&[PathItem::Index(0)])).and_then(Node::as_str) == Some(text)
    });
    if is_simple && same { text.to_owned() } else { Value::from(text).to_string() }
}

/// The text of a file after the edits, and what they are. An edit about which cases disagree is left out.
pub(crate) fn rewrite<'e>(text: &str, edits: impl IntoIterator<Item = &'e Edit>) -> (String, Vec<Change>) {
    let mut by_span: BTreeMap<Span, Vec<&Edit>> = BTreeMap::new();
    for edit in edits {
        by_span.entry(edit.at.span).or_default().push(edit);
    }
    let (mut new, mut at, mut changes) = (String::new(), 0, Vec::new());
    for (span, edits) in by_span {
        let Some(first) = edits.first() else { continue };
        let texts: BTreeSet<&str> = edits.iter().map(|edit| edit.text.as_str()).collect();
        let is_disputed = texts.len() > 1 || span.start < at;
        if !is_disputed {
            new += text.get(at..span.start).unwrap_or_default();
            new += &first.text;
            at = span.end;
        }
        let values: BTreeSet<&str> = edits.iter().map(|edit| edit.after.as_str()).collect();
        let values = values.into_iter().collect::<Vec<_>>().join(" or ");
        let what = format!("{}: {} -> {values}", first.place, first.before);
        changes.push(Change { at: first.at.clone(), what, is_disputed });
    }
    new += text.get(at..).unwrap_or_default();
    (new, changes)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::matching::differences;
    use super::*;

    /// What a file with this part becomes if the object is found.
    fn updated(part: &str, found: &Value) -> String {
        let source = Source::new("a.yaml", part);
        let node = yaml::parse(&source, &yaml::Options::default()).unwrap().remove(0);
        let found = differences(&node.to_json(), Some(found), "");
        let edits = found.iter().flat_map(|one| of_difference(one, &node, &source, "x"));
        let edits: Vec<Edit> = edits.map(|edit| edit.expect("it can be recorded")).collect();
        rewrite(part, &edits).0
    }

    #[test]
    fn only_values_that_differ_are_replaced() {
        let text = "# first\na: 1   # one\nb: {c: \"x\", d: 'y', e: z}\nf:\n  g: true\nh: null\n";
        let found =
            json!({"a": 2, "b": {"c": "True", "d": "it", "e": "no"}, "f": {"g": false}, "h": {"i": [1]}});
        let new =
            "# first\na: 2   # one\nb: {c: \"True\", d: 'it', e: \"no\"}\nf:\n  g: false\nh: {i: [1]}\n";
        assert_eq!(updated(text, &found), new);
        assert_eq!(
            updated(text, &json!({"a": 1, "b": {"c": "x", "d": "y", "e": "z"}, "f": {"g": true}})),
            text
        );
        assert_eq!(updated("a: 1\n", &json!({})), "a: null\n");
    }

    #[test]
    fn lists_keep_the_items_that_are_the_same() {
        let block = "l:\n- a # first\n- b\n- c\nm: 1\n";
        assert_eq!(updated(block, &json!({"l": ["a", "x", "c"], "m": 1})), block.replace("- b", "- x"));
        assert_eq!(
            updated(block, &json!({"l": ["a", "b", "c", "d"], "m": 2})),
            "l:\n- a # first\n- b\n- c\n- d\nm: 2\n"
        );
        assert_eq!(updated(block, &json!({"l": ["a"], "m": 1})), "l:\n- a # first\nm: 1\n");
        assert_eq!(updated("l: [a, b] # x\n", &json!({"l": ["a"]})), "l: [a] # x\n");
        assert_eq!(updated("l: [a, b]\n", &json!({"l": ["a", "c"]})), "l: [a, c]\n");
        let maps = "l:\n- name: a\n  port: 1 # one\n- {name: b, port: 2}\n";
        let found = json!({"l": [{"name": "b", "port": 3}, {"name": "a", "port": 4}]});
        assert_eq!(updated(maps, &found), "l:\n- name: a\n  port: 4 # one\n- {name: b, port: 3}\n");
    }

    #[test]
    fn disputed_values_stay() {
        let source = Source::new("a.yaml", "a: 1\n");
        let edit = |text: &str| Edit {
            at: Location::new(&source, Span::new(3, 4)),
            text: text.to_owned(),
            place: "x: a".to_owned(),
            before: "1".to_owned(),
            after: text.to_owned(),
        };
        let (text, changes) = rewrite("a: 1\n", &[edit("2"), edit("3")]);
        assert!(
            text == "a: 1\n" && changes[0].is_disputed && changes[0].what.contains("2 or 3"),
            "{changes:?}"
        );
        assert_eq!(rewrite("a: 1\n", &[edit("2"), edit("2")]).0, "a: 2\n");
    }
}
