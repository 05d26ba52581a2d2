//! Words that YAML 1.1, and therefore kubectl, reads as booleans where a string is expected: `y:`, `yes`, `on`.

use std::sync::Arc;

use crate::diag::{Diagnostic, Source, Span};
use crate::yaml::{Node, NodeValue, Style};

/// The fields of Kubernetes objects whose values are strings: maps of strings (`METADATA`, `MAPS`) and lists
/// of strings.
const METADATA: [&str; 2] = ["labels", "annotations"];
const MAPS: [&str; 5] = ["selector", "matchLabels", "nodeSelector", "data", "stringData"];
const LISTS: [&str; 2] = ["args", "command"];

/// The text of a plain scalar that YAML reads as a boolean, except `true` and `false`, with its value.
pub(crate) fn boolean_word<'s>(source: &'s Source, node: &Node) -> Option<(&'s str, bool)> {
    if node.style != Style::Plain {
        return None;
    }
    let text = source.text.get(node.span.start..node.span.end)?.trim();
    Some((text, truth(text)?))
}

/// What to do about the value at this place, if it is a word that is read as a boolean.
pub fn boolean_help(source: &Source, span: Span) -> Option<String> {
    let word = source.text.get(span.start..span.end)?.trim();
    let value = truth(word)?;
    Some(format!("`{word}` is read as {value}, a boolean in YAML 1.1; quote it: \"{word}\""))
}

/// The value of a word that YAML 1.1 reads as a boolean, except `true` and `false`.
fn truth(text: &str) -> Option<bool> {
    let value = match text.to_ascii_lowercase().as_str() {
        "y" | "yes" | "on" => true,
        "n" | "no" | "off" => false,
        _ => return None,
    };
    // Single letters have a lower and an upper case form; longer words have a capitalized form, too.
    let cases = [text.to_ascii_lowercase(), text.to_ascii_uppercase(), capitalized(text)];
    cases.iter().any(|case| case == text).then_some(value)
}

fn capitalized(text: &str) -> String {
    let lower = text.to_ascii_lowercase();
    lower[..1].to_ascii_uppercase() + &lower[1..]
}

/// Reports keys of a file that are read as booleans.
pub(crate) fn keys(source: &Arc<Source>, root: &Node, found: &mut Vec<Diagnostic>) {
    let mut open = vec![root];
    while let Some(node) = open.pop() {
        match &node.value {
            NodeValue::Seq(items) => open.extend(items),
            NodeValue::Map(entries) => {
                for (key, value) in entries {
                    if let Some((word, truth)) = boolean_word(source, key) {
                        let message =
                            format!("the key `{word}` is read as \"{truth}\": it is a boolean in YAML 1.1");
                        let warning = Diagnostic::warning("package::yaml-boolean", message);
                        found.push(warning.at(source, key.span).help(format!("quote it: \"{word}\"")));
                    }
                    open.push(value);
                }
            }
            _ => {}
        }
    }
}

/// Reports values of a template that are read as booleans where Kubernetes requires a string: labels and annotations of
/// all kinds, other fields of built-in kinds.
pub(crate) fn values(source: &Arc<Source>, root: &Node, is_built_in: bool, found: &mut Vec<Diagnostic>) {
    let mut open: Vec<(&str, &Node)> = vec![("", root)];
    while let Some((name, node)) = open.pop() {
        let mut wrong = |value: &Node| {
            if let Some((word, truth)) = boolean_word(source, value) {
                let message = format!(
                    "`{word}` is read as {truth}: it is a boolean in YAML 1.1, but a string is required"
                );
                let error = Diagnostic::error("package::yaml-boolean", message);
                found.push(error.at(source, value.span).help(format!("quote it: \"{word}\"")));
            }
        };
        match &node.value {
            NodeValue::Seq(items) => {
                for item in items {
                    if is_built_in && LISTS.contains(&name) {
                        wrong(item);
                    }
                    if is_built_in
                        && name == "env"
                        && let Some(value) = item.get("value")
                    {
                        wrong(value);
                    }
                    open.push(("", item));
                }
            }
            NodeValue::Map(entries) => {
                for (key, value) in entries {
                    if METADATA.contains(&name) || is_built_in && MAPS.contains(&name) {
                        wrong(value);
                    }
                    open.push((key.as_str().unwrap_or_default(), value));
                }
            }
            _ => {}
        }
    }
}

/// Reports values that are read as booleans where nothing says what is expected. Tools that read YAML 1.2 take them for
/// strings.
pub(crate) fn unclear(source: &Arc<Source>, root: &Node, found: &mut Vec<Diagnostic>) {
    let mut open = vec![root];
    while let Some(node) = open.pop() {
        match &node.value {
            NodeValue::Seq(items) => open.extend(items),
            NodeValue::Map(entries) => open.extend(entries.iter().map(|(_, value)| value)),
            _ => {
                let Some((word, truth)) = boolean_word(source, node) else { continue };
                let message = format!(
                    "`{word}` is read as {truth}: it is a boolean in YAML 1.1, and a string in YAML 1.2"
                );
                let warning = Diagnostic::warning("package::yaml-boolean", message);
                found.push(
                    warning.at(source, node.span).help(format!("write {truth}, or quote it: \"{word}\"")),
                );
            }
        }
    }
}

/// Reports words in a CRD that must be strings: in an `enum`, a default or an example of a field of type string.
pub(crate) fn in_schema(source: &Arc<Source>, root: &Node, found: &mut Vec<Diagnostic>) {
    let mut open = vec![root];
    while let Some(node) = open.pop() {
        match &node.value {
            NodeValue::Seq(items) => open.extend(items),
            NodeValue::Map(entries) => {
                if node.get("type").and_then(Node::as_str) == Some("string") {
                    let listed = node.get("enum").and_then(Node::as_seq).into_iter().flatten();
                    for value in listed.chain(node.get("default")) {
                        if let Some((word, truth)) = boolean_word(source, value) {
                            let message = format!(
                                "`{word}` is read as {truth}: it is a boolean in YAML 1.1, but the field is a string"
                            );
                            let error = Diagnostic::error("package::yaml-boolean", message);
                            found.push(error.at(source, value.span).help(format!("quote it: \"{word}\"")));
                        }
                    }
                }
                open.extend(entries.iter().map(|(_, value)| value));
            }
            _ => {}
        }
    }
}
