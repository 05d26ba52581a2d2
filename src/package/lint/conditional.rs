//! Warns if a child reads a conditional child without handling its absence.

use std::collections::{BTreeMap, BTreeSet};

use super::super::Child;
use super::super::expression_sites::{ExpressionSite, Parts, Role};
use super::super::graph;
use crate::diag::Diagnostic;
use crate::template::{Engine, Expr, ReadPath, Segment, access};

/// Warns about each child that cannot be rendered while the `when` of a child that it reads is false.
pub(super) fn unguarded(engine: &Engine, parts: &Parts) -> Vec<Diagnostic> {
    let mut reads: BTreeMap<usize, Vec<(Role, &ReadPath)>> = BTreeMap::new();
    for ExpressionSite { reads: found, child, role, .. } in parts.expression_sites(engine) {
        let Some(child) = child else { continue };
        let paths = graph::expand_lets([found], &parts.lets).into_iter().map(|path| (role, path));
        reads.entry(child).or_default().extend(paths);
    }
    let mut found = Vec::new();
    for (index, paths) in &reads {
        let Some(reader) = parts.children.get(*index) else { continue };
        let mut told = BTreeSet::new();
        for (role, path) in paths {
            let Some(id) = child_of(path) else { continue };
            let Some(other) = parts.children.iter().find(|child| child.id == id && child.id != reader.id)
            else {
                continue;
            };
            // A forEach child always yields a map, possibly an empty one.
            if path.guarded || path.flag || !fails(*role) || other.for_each.is_some() {
                continue;
            }
            let mut whens = whens(other, reader).filter(|when| !is_guarded(when, other, paths, parts));
            if let Some(when) = whens.next()
                && told.insert(id)
            {
                found.push(warning(reader, other, when, path));
            }
        }
    }
    found
}

/// The child whose object a path reads.
fn child_of(path: &ReadPath) -> Option<&str> {
    match (path.root.as_str(), path.segments.first()) {
        ("children", Some(Segment::Key(id))) => Some(id),
        _ => None,
    }
}

/// Whether an undefined value is an error in this role. In a `when` it only counts as false.
fn fails(role: Role) -> bool {
    matches!(role, Role::List | Role::Yields | Role::Template)
}

/// The conditions for the existence of the other child, except those that the reader has literally, too.
fn whens<'a>(other: &'a Child, reader: &'a Child) -> impl Iterator<Item = &'a Expr> {
    let own =
        |when: &&Expr| reader.when.iter().chain(&reader.group_when).all(|mine| mine.text() != when.text());
    other.when.iter().chain(&other.group_when).filter(own)
}

/// Whether the reader tests the other child, or all paths in its `when`, before it reads it.
fn is_guarded(when: &Expr, other: &Child, paths: &[(Role, &ReadPath)], parts: &Parts) -> bool {
    let asks = || paths.iter().filter(|(role, path)| path.guarded || path.flag || *role == Role::Member);
    let asks_for_it = asks().any(|(_, path)| child_of(path) == Some(&other.id));
    let wanted = graph::expand_lets([when.reads()], &parts.lets);
    let mut wanted = wanted.iter().filter(|path| path.root != "let").peekable();
    let same = |a: &ReadPath, b: &ReadPath| a.root == b.root && a.segments == b.segments;
    let asks_for_the_same =
        wanted.peek().is_some() && wanted.all(|path| asks().any(|(_, asked)| same(path, asked)));
    asks_for_it || asks_for_the_same
}

fn warning(reader: &Child, other: &Child, when: &Expr, path: &ReadPath) -> Diagnostic {
    let (reader, other) = (&reader.id, &other.id);
    let condition = when.text().map_or_else(|| "its `when` holds".to_owned(), |text| format!("`{text}`"));
    let message = format!("`{reader}` reads `{path}`, but the child `{other}` exists only when {condition}");
    let same = when.text().map(|text| format!("`when: {text}`, as `{other}` has, or ")).unwrap_or_default();
    Diagnostic::warning("package::absent-child", message).located(path.location.clone()).help(format!(
        "give `{reader}` {same}`when: children{} is defined`; or add a default: `| default(...)`",
        access(other)
    ))
}
