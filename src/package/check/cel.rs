//! Checks the CEL rules of a CRD without an API server that compiles them.

use crate::crd;
use crate::diag::Diagnostic;
use crate::yaml::{self, Node};
use crate::{Resource, place};

/// Reports rules that an API server refuses. Only `lint` does this; for a manager, its API server does.
pub(super) fn check(resource: &Resource) -> Vec<Diagnostic> {
    let at = &resource.crd_location;
    let problems = crd::cel_problems(&resource.crd);
    if problems.is_empty() {
        return Vec::new();
    }
    let documents = yaml::parse(&at.source, &yaml::Options::default()).unwrap_or_default();
    // The CRD is a whole file, or a part of `operator.yaml`.
    let node = documents
        .iter()
        .find_map(|root| if at.span.end == 0 { Some(root) } else { find(root, at.span.start) });
    let diagnostic = |(path, message, help): (String, String, Option<String>)| {
        let error = Diagnostic { help, ..Diagnostic::error("package::cel", message) };
        let error = match node {
            Some(node) => error.at(&at.source, place(node, &path)),
            None => error.located(at.clone()),
        };
        error.path(path)
    };
    problems.into_iter().map(diagnostic).collect()
}

/// The outermost map that begins at that offset.
fn find(node: &Node, start: usize) -> Option<&Node> {
    if node.span.start == start && node.as_map().is_some() {
        return Some(node);
    }
    let entries = node.as_map().into_iter().flatten().map(|(_, value)| value);
    entries.chain(node.as_seq().into_iter().flatten()).find_map(|below| find(below, start))
}
