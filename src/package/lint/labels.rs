//! Reports labels that users choose where the package must: all labels of the instance, and labels that replace those of
//! a selector.

use std::collections::HashSet;

use super::objects::pod_of;
use super::sketch::{At, Part, user_variable};
use crate::Resource;
use crate::diag::Diagnostic;
use crate::template::Lets;
use crate::template_scan::Outlines;

/// Reports the labels of the objects of a resource, and of their pods.
pub(super) fn check(outlines: &Outlines, resource: &Resource, found: &mut Vec<Diagnostic>) {
    let selected = selected(outlines, resource);
    for child in &resource.children {
        let [gvk] = child.kinds.as_slice() else { continue };
        let Some(root) = outlines.root(&child.template) else { continue };
        let pod = pod_of(root, gvk);
        for part in [Some(root), pod].into_iter().flatten() {
            copied(part, "labels", &["labels", "instance.metadata.labels"], &resource.lets, found);
            copied(part, "annotations", &["instance.metadata.annotations"], &resource.lets, found);
        }
        let is_workload = matches!(&*gvk.kind, "Deployment" | "ReplicaSet" | "StatefulSet" | "DaemonSet");
        let pod = pod.filter(|_| is_workload || gvk.is("v1", "Pod"));
        let Some(At::Part(labels)) = pod.map(|pod| pod.at(&["metadata", "labels"])) else { continue };
        let own = match root.at(&["spec", "selector", "matchLabels"]) {
            At::Part(selector) if is_workload => Some(keys(selector)),
            _ => None,
        };
        let mut wanted = selected.clone();
        let is_selected = own.is_some() || !wanted.is_empty();
        wanted.extend(own.into_iter().flatten());
        if is_selected {
            found.extend(replaced(labels, &wanted, &resource.lets));
        }
    }
}

/// The keys that the Services and `PodDisruptionBudget`s of a resource select.
fn selected(outlines: &Outlines, resource: &Resource) -> Vec<String> {
    let mut found = Vec::new();
    for child in &resource.children {
        let [gvk] = child.kinds.as_slice() else { continue };
        let path: &[&str] = match &*gvk.kind {
            "Service" => &["spec", "selector"],
            "PodDisruptionBudget" => &["spec", "selector", "matchLabels"],
            _ => continue,
        };
        if let Some(At::Part(selector)) = outlines.root(&child.template).map(|root| root.at(path)) {
            found.extend(keys(selector));
        }
    }
    found
}

fn keys(selector: Part<'_>) -> Vec<String> {
    selector.texts().known.into_iter().map(|(key, _)| key).collect()
}

/// Reports a map of metadata that gets all entries of that of the instance, which `variables` are.
fn copied(object: Part<'_>, field: &str, variables: &[&str], lets: &Lets, found: &mut Vec<Diagnostic>) {
    let At::Part(map) = object.at(&["metadata", field]) else { return };
    for source in map.sources() {
        let is_copy = expression(source, lets).is_some_and(|text| copies(&text, variables));
        if !is_copy || source.sets(field) {
            continue;
        }
        let message = format!(
            "all {field} of the instance are copied, those of tools as well: Argo CD and Flux would take the object for one of \
             theirs, and delete it"
        );
        let help = if field == "labels" {
            "copy those that the object needs, by name: team: \"{{ labels.team | default(omit) }}\""
        } else {
            "copy those that the object needs, by name: {{ instance.metadata.annotations['example.com/note'] | default(omit) }}"
        };
        let warning = Diagnostic::warning("package::copied-labels", message).located(source.location());
        found.push(warning.path(format!("metadata.{field}")).help(help));
    }
}

/// How many lets are followed, if one is only another one.
const MOST_LETS: usize = 8;

/// The expression of a scalar that consists of one, without spaces; that of a `let` if it only reads one.
fn expression(part: Part<'_>, lets: &Lets) -> Option<String> {
    let mut expression = part.expression()?;
    for _ in 0..MOST_LETS {
        let Some(read) = expression.strip_prefix("let.").and_then(|name| expression_of(lets, name)) else {
            break;
        };
        expression = read;
    }
    Some(expression)
}

/// The expression of a `let` that consists of one, without spaces.
fn expression_of(lets: &Lets, name: &str) -> Option<String> {
    let at = lets.get(name)?.location()?;
    let (before, after) = at.source.text.split_at_checked(at.span.start)?;
    let (key, start) = before.rsplit_once("{{")?;
    let (end, rest) = after.split_once("}}")?;
    let is_begun = key.trim_end().trim_end_matches(['"', '\'']).trim_end().ends_with(':');
    let rest = rest.trim_start_matches(['"', '\'']).trim_start_matches(' ');
    let is_ended = rest.is_empty() || rest.starts_with(['\r', '\n', '#', ',', '}']);
    (is_begun && is_ended).then(|| format!("{start}{end}").split_whitespace().collect())
}

/// Whether an expression without spaces yields all entries of one of these variables. A filter may leave some out.
fn copies(expression: &str, variables: &[&str]) -> bool {
    let mut parts = expression.split('|');
    let first = parts.next().unwrap_or_default();
    let mut others = Vec::new();
    for part in parts {
        match part.strip_prefix("combine(").or_else(|| part.strip_prefix("merge(")) {
            Some(other) => others.push(other.trim_end_matches(')')),
            None if part.starts_with("default(") => {}
            None => return false,
        }
    }
    variables.contains(&first) || others.iter().any(|other| variables.contains(other))
}

/// Reports labels of pods of which users replace one that a selector needs.
fn replaced(labels: Part<'_>, wanted: &[String], lets: &Lets) -> Option<Diagnostic> {
    let warning = |at: Part<'_>, message: String, help: &str| {
        let warning = Diagnostic::warning("package::selector", message).located(at.location());
        warning.path("metadata.labels").help(help)
    };
    if let Some(expression) = expression(labels, lets) {
        let users = last_combined(&expression)?;
        let variable = user_variable(users).filter(|variable| !labels.sets(variable))?;
        let message = format!(
            "`{users}` may replace a label that the selector needs: users of `{variable}` could take pods away from their \
             selector"
        );
        let help = "merge in the other order, so that the labels of the package win: {{ spec.labels | combine({'app': name}) }}";
        return Some(warning(labels, message, help));
    }
    let maps = labels.merged();
    let users = maps.iter().position(|map| map.is_of_users())?;
    let mut safe = literals(labels.own_keys())?;
    for map in &maps[..users] {
        safe.extend(literals(map.all_keys()?)?);
    }
    for map in maps[users + 1..].iter().filter(|map| !map.is_of_users()) {
        let keys = literals(map.all_keys()?)?;
        let is_replaced = |key: &&String| keys.contains(key.as_str()) && !safe.contains(key.as_str());
        if let Some(key) = wanted.iter().find(is_replaced) {
            let written = maps[users].expression().unwrap_or_default();
            let message = format!("`{written}` may replace the label `{key}`, which the selector needs");
            let help = "list it after the labels of the package: in `<<` the first map wins";
            return Some(warning(maps[users], message, help));
        }
    }
    None
}

/// The texts of keys; `None` if one is computed.
fn literals<'a>(keys: impl IntoIterator<Item = Part<'a>>) -> Option<HashSet<&'a str>> {
    keys.into_iter().map(|key| key.node().as_str().filter(|_| !key.written().contains("{{"))).collect()
}

/// The argument of `combine` or `merge`, if that is the last filter of an expression without spaces.
fn last_combined(expression: &str) -> Option<&str> {
    let begins =
        ["|combine(", "|merge("].iter().filter_map(|open| Some(expression.rfind(*open)? + open.len()));
    let inside = expression.get(begins.max()?..)?.strip_suffix(')')?;
    let mut depth = 0_i32;
    for c in inside.chars() {
        depth += match c {
            '(' => 1,
            ')' => -1,
            _ => 0,
        };
        if depth < 0 {
            return None; // another filter follows
        }
    }
    (depth == 0).then_some(inside)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_copies_are_told_from_selections() {
        let of = |text: &str| copies(text, &["labels", "instance.metadata.labels"]);
        for text in [
            "labels",
            "labels|default({})",
            "instance.metadata.labels",
            "{'app':name}|combine(labels)",
            "let.own|combine(labels|default({}))",
            "{'app':name}|merge(labels)",
        ] {
            assert!(of(text), "{text}");
        }
        for text in ["labels.team", "let.labels", "labels|select('x')", "spec.labels", "labelsifspec.xelse{}"]
        {
            assert!(!of(text), "{text}");
        }
    }

    #[test]
    fn last_combined_map_wins() {
        for (text, wanted) in [
            ("let.own|combine(spec.labels)", Some("spec.labels")),
            ("let.own|combine(spec.labels|default({}))", Some("spec.labels|default({})")),
            ("spec.labels|combine(let.own)", Some("let.own")),
            ("let.own|combine(spec.labels)|combine(let.own)", Some("let.own")),
            ("let.own|merge(spec.labels)", Some("spec.labels")),
            ("let.own|merge(spec.labels)|combine(let.own)", Some("let.own")),
            ("let.own|combine(spec.labels)|dictsort", None),
            ("(let.own|combine(spec.labels)|x)", None),
            ("spec.labels", None),
        ] {
            assert_eq!(last_combined(text), wanted, "{text}");
        }
    }
}
