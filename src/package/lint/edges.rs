//! Checks of references between children: reads of the child's own id, names of members, dependencies without effect,
//! and refs that nothing reads.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::Value;

use super::known::ROOTS;
use super::sketch::At;
use crate::compiler::Flat;
use crate::diag::{Diagnostic, Location};
use crate::expression_sites::{Parts, Role};
use crate::graph;
use crate::template::{Engine, Expr, ReadPath, Reads, Scope, Segment, access};
use crate::template_scan::Outlines;

/// The first segment of a path below a variable.
fn id_of<'p>(path: &'p ReadPath, root: &str) -> Option<&'p str> {
    match path.segments.first() {
        Some(Segment::Key(id)) if path.root == root => Some(id),
        _ => None,
    }
}

/// Reports a child that reads itself by its id instead of `self`.
pub(super) fn self_reads(engine: &Arc<Engine>, parts: &Parts) -> Vec<Diagnostic> {
    let mut found = Vec::new();
    for usage in parts.expression_sites(engine) {
        let Some(child) = usage.child.map(|child| &parts.children[child]) else { continue };
        // Members of a forEach child may read each other.
        if child.for_each.is_some() {
            continue;
        }
        let help = match usage.role {
            Role::Template => "use `self`: the live object of the child, undefined before it exists",
            Role::Member => {
                "`when` decides whether the child exists, so it cannot depend on the child; read what the child depends on"
            }
            _ => continue,
        };
        for path in graph::expand_lets([usage.reads], &parts.lets) {
            if id_of(path, "children") == Some(child.id.as_str()) {
                let message = format!("the child `{}` reads itself", child.id);
                let warning = Diagnostic::warning("package::self-read", message);
                found.push(warning.located(path.location.clone()).help(help));
            }
        }
    }
    found
}

/// Reports children that depend on `retained.<id>`. It becomes undefined once the object is adopted, so the
/// children would change again.
pub(super) fn retained_reads(engine: &Arc<Engine>, parts: &Parts) -> Vec<Diagnostic> {
    let mut found = Vec::new();
    for usage in parts.expression_sites(engine).iter().filter(|usage| usage.renders()) {
        let Some(child) = usage.child.map(|child| &parts.children[child]) else { continue };
        for path in graph::expand_lets([usage.reads], &parts.lets) {
            let Some(id) = id_of(path, "retained") else { continue };
            if !parts.children.iter().any(|child| child.id == id) {
                continue; // reported elsewhere
            }
            let message = format!(
                "`retained{}` is undefined as soon as the instance has adopted the object, so `{}` changes again then",
                access(id),
                child.id
            );
            let help = match usage.role {
                Role::Template if child.id == id => {
                    "read `self`, which is the same object before and after".to_owned()
                }
                _ => format!(
                    "read `children{}`, which is the same object before and after; or record what it says in the first \
                     step of `deploy`, and read `record`",
                    access(id)
                ),
            };
            let warning = Diagnostic::warning("package::retained-read", message);
            found.push(warning.located(path.location.clone()).help(help));
        }
    }
    found
}

/// Reports members of a forEach child with the same name or key.
pub(crate) fn members(
    engine: &Arc<Engine>,
    parts: &Parts,
    outlines: &Outlines,
    manifests: &[Flat],
    found: &mut Vec<Diagnostic>,
) {
    for (child, flat) in parts.children.iter().zip(manifests) {
        let (Some(each), Some(item)) = (&child.for_each, child.item()) else { continue };
        let lists =
            |reads: &Reads| graph::expand_lets([reads], &parts.lets).iter().any(|path| path.root == item);
        constant_list(engine, &each.in_, each.key.as_ref(), found);
        let is_constant = each.in_.reads().paths.is_empty();
        if is_constant && engine.items(&each.in_, &Scope::new()).is_ok_and(|items| items.len() < 2) {
            continue;
        }
        if let Some(key) = &each.key
            && !lists(key.reads())
        {
            let message = format!(
                "the key of `{}` does not read `{item}`: all items would have the same key",
                child.id
            );
            let error = Diagnostic::warning("package::same-object", message).located(key.location());
            found.push(error.help(format!("use a unique key per item: `{item}`, or a field of it")));
        }
        let Some(template) = engine.template(&child.template) else { continue };
        let Some(root) = outlines.root(&child.template) else { continue };
        if !lists(template.reads()) {
            continue; // the template does not read the item at all, which is reported elsewhere
        }
        let reads_item = |path: &[&str]| match root.at(path) {
            At::Part(part) => {
                // The item may come in through a variable of the template, a macro or a partial.
                let open = part.has_statements() || part.written().contains('(');
                let span = part.node().span;
                let here: Vec<&ReadPath> = template
                    .reads()
                    .paths
                    .iter()
                    .filter(|path| path.location.source == *part.source())
                    .filter(|path| (span.start..span.end).contains(&path.location.span.start))
                    .collect();
                let known = written_roots(part.written());
                let is_local = known.iter().any(|root| !ROOTS.contains(&root.as_str()) && root != item);
                open || is_local || reads(&here, parts, item)
            }
            At::Absent => false,
            At::Open => true,
        };
        if !reads_item(&["metadata", "name"]) && !reads_item(&["metadata", "namespace"]) {
            let At::Part(name) = root.at(&["metadata", "name"]) else { continue };
            let message = format!(
                "the name of `{}` does not contain `{item}`: all its members would be one object",
                flat.child.id.value.0
            );
            let error = Diagnostic::warning("package::same-object", message).located(name.location());
            found.push(
                error
                    .path("metadata.name")
                    .help(format!("use it in the name: {{{{ name }}}}-{{{{ {item} }}}}")),
            );
        }
    }
}

fn reads(paths: &[&ReadPath], parts: &Parts, item: &str) -> bool {
    paths.iter().any(|path| {
        path.root == item
            || id_of(path, "let").and_then(|name| parts.lets.get(name)).is_some_and(|text| {
                graph::expand_lets([text.reads()], &parts.lets).iter().any(|path| path.root == item)
            })
            || (path.root == "let"
                && path.segments.first().is_none_or(|first| !matches!(first, Segment::Key(_))))
    })
}

/// The variables in the expressions of a text.
fn written_roots(text: &str) -> Vec<String> {
    let inner = text.split("{{").skip(1).filter_map(|rest| rest.split("}}").next());
    let mut found = Vec::new();
    for expression in inner {
        let mut quote = None;
        let mut word = String::new();
        let mut before = ' ';
        for c in expression.chars().chain([' ']) {
            match (quote, c) {
                (Some(open), _) if open == c => quote = None,
                (Some(_), _) => {}
                (None, '\'' | '"') => quote = Some(c),
                (None, c) if c.is_alphanumeric() || c == '_' => word.push(c),
                (None, c) => {
                    let is_root =
                        !matches!(before, '.' | '|') && word.starts_with(|c: char| c.is_alphabetic());
                    let is_word = ["and", "or", "not", "in", "is", "if", "else", "true", "false", "none"]
                        .contains(&word.as_str());
                    if is_root && !is_word {
                        found.push(word.clone());
                    }
                    if !word.is_empty() {
                        before = ' ';
                    }
                    word.clear();
                    if !c.is_whitespace() {
                        before = c;
                    }
                }
            }
        }
    }
    found
}

/// Reports empty or duplicate keys in a literal list.
pub(super) fn constant_list(engine: &Engine, list: &Expr, key: Option<&Expr>, found: &mut Vec<Diagnostic>) {
    let is_constant = |expr: &Expr| expr.reads().paths.is_empty() && expr.reads().generates.is_empty();
    if let Some(key) = key.filter(|key| is_constant(key))
        && engine.eval(key, &Scope::new()).is_ok_and(|value| value == Value::String(String::new()))
    {
        let error = Diagnostic::error("package::value", "the key of forEach is the empty string");
        found.push(
            error.located(key.location()).help("use a unique key per item: the item, or a field of it"),
        );
        return;
    }
    if key.is_some() || !is_constant(list) {
        return;
    }
    let mut seen = BTreeSet::new();
    for (index, item) in engine.items(list, &Scope::new()).unwrap_or_default().iter().enumerate() {
        let problem = crate::key_problem(item);
        let message = match problem {
            Some(problem) => format!("item {index} of forEach: {problem}"),
            None if !seen.insert(item.to_string()) => {
                format!("item {index} of forEach is a duplicate: {item}")
            }
            None => continue,
        };
        let error = Diagnostic::error("package::same-object", message).located(list.location());
        found.push(error.help("use a unique key per item"));
    }
}

/// Reports dependencies without effect: duplicates, and dependencies on a child that never exists.
pub(crate) fn depends_on(engine: &Engine, parts: &Parts, manifests: &[Flat]) -> Vec<Diagnostic> {
    let mut found = Vec::new();
    let never = |id: &str| {
        let child = parts.children.iter().find(|child| child.id == id);
        let when = child.into_iter().flat_map(|child| child.when.iter().chain(&child.group_when));
        let constant =
            |when: &Expr| when.reads().paths.is_empty() && engine.truthy(when, &Scope::new()) == Ok(false);
        when.into_iter().any(constant)
    };
    for flat in manifests {
        let mut seen = BTreeSet::new();
        for on in flat.child.depends_on.iter().flatten() {
            let id = on.value.as_str();
            let message = if !seen.insert(id) {
                format!("dependsOn lists `{id}` twice")
            } else if never(id) {
                format!("`{id}` never exists, so the dependency has no effect")
            } else {
                continue;
            };
            let warning = Diagnostic::warning("package::no-effect", message).located(on.at.clone());
            found.push(warning.path(on.path.clone()).help("remove it"));
        }
    }
    found
}

/// Reports refs that nothing reads.
pub(crate) fn unused_refs(engine: &Arc<Engine>, parts: &Parts) -> Vec<Diagnostic> {
    let mut read: BTreeSet<&str> = BTreeSet::new();
    let uses = parts.expression_sites(engine);
    let lets: Vec<&Reads> = parts.lets.iter().map(|(_, text)| text.reads()).collect();
    let all = uses.iter().map(|usage| usage.reads).chain(lets);
    for path in all.flat_map(|reads| &reads.paths) {
        match id_of(path, "refs") {
            Some(id) => {
                read.insert(id);
            }
            None if path.root == "refs" => return Vec::new(),
            None => {}
        }
    }
    let unread = parts.refs.iter().filter(|reference| !read.contains(reference.id.as_str()));
    unread
        .map(|reference| {
            let message = format!("nothing reads the ref `{}`", reference.id);
            Diagnostic::warning("package::unused", message).located(reference.location.clone()).help(format!(
                "read it as refs{}, or remove it: it is watched or observed nevertheless",
                access(&reference.id)
            ))
        })
        .collect()
}

/// The `let`s that are read, directly or through others; `None` if an expression may read any of them.
pub(crate) fn read_lets(engine: &Arc<Engine>, parts: &Parts) -> Option<BTreeSet<String>> {
    let mut read = BTreeSet::new();
    let uses = parts.expression_sites(engine);
    let lets = parts.lets.iter().map(|(_, text)| text.reads());
    for path in uses.iter().map(|usage| usage.reads).chain(lets).flat_map(|reads| &reads.paths) {
        match id_of(path, "let") {
            Some(name) => {
                read.insert(name.to_owned());
            }
            None if path.root == "let" => return None,
            None => {}
        }
    }
    Some(read)
}

/// The warning about an unread `let`.
pub(crate) fn unused_let(name: &str, at: &Location) -> Diagnostic {
    Diagnostic::warning("package::unused", format!("nothing reads let.{name}"))
        .located(at.clone())
        .help("read it, or remove it")
}
