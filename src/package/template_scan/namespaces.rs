//! Which namespaces the template of a child permits.

use std::sync::Arc;

use super::{Outline, lone_expression};
use crate::diag::{Diagnostic, Source, Span};
use crate::naming;

/// The allowed values of a child's `metadata.namespace`. The spec of a namespaced instance must not choose
/// it. Otherwise a user who may create an instance could write to every namespace with the package's
/// permissions. This must be checked in the template, because a rendered object does not show whether the
/// author or a value set the namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Namespaces {
    /// Whether any namespace is allowed, because instances are cluster-scoped.
    any: bool,
    /// Whether the template contains `{{ operator.namespace }}`.
    operator: bool,
    /// The literal namespaces in the template.
    literal: Vec<String>,
}

impl Namespaces {
    /// Whether a rendered child may be in this namespace.
    pub fn allows(&self, rendered: Option<&str>, instance: &str, operator: &str) -> bool {
        rendered.is_none_or(|rendered| {
            self.any
                || rendered == instance
                || (self.operator && rendered == operator)
                || self.literal.iter().any(|literal| literal == rendered)
        })
    }

    /// The allowed namespaces besides the instance's own; `None` means any.
    pub fn beyond<'a>(&'a self, operator: &'a str) -> Option<impl Iterator<Item = &'a str>> {
        let operator = self.operator.then_some(operator);
        (!self.any).then(|| self.literal.iter().map(String::as_str).chain(operator))
    }

    /// Whether any namespace is allowed.
    pub fn are_any(&self) -> bool {
        self.any
    }

    /// Whether the manager's namespace is allowed.
    pub fn has_operator(&self) -> bool {
        self.operator
    }

    /// The literal namespaces.
    pub fn literals(&self) -> &[String] {
        &self.literal
    }

    /// Whether only the instance's own namespace is allowed.
    pub(crate) fn is_own(&self) -> bool {
        !self.any && !self.operator && self.literal.is_empty()
    }

    /// Any namespace is allowed, for children of cluster-scoped instances.
    pub(crate) fn any() -> Self {
        Self { any: true, ..Self::default() }
    }

    /// The allowed namespaces of a child's template, for a namespaced instance. If the text does not show the
    /// namespace, only the instance's own is allowed.
    pub(crate) fn of(
        source: &Arc<Source>,
        outline: Option<&Outline>,
        diagnostics: &mut Vec<Diagnostic>,
    ) -> Self {
        let mut namespaces = Self::default();
        let Some(outline) = outline else {
            if let Some(place) = names_a_namespace(&source.text) {
                let message =
                    "the namespace is unknown, because this text is not valid YAML without its expressions";
                diagnostics.push(unknown_namespace(message).at(source, place));
            }
            return namespaces;
        };
        for node in outline.metadata_all("namespace") {
            let text = outline.text(node);
            if text.contains("{{") {
                match lone_expression(text) {
                    Some("namespace" | "instance.metadata.namespace") => {}
                    Some("operator.namespace") => namespaces.operator = true,
                    _ => diagnostics.push(
                        Diagnostic::error("package::namespace", "a child's namespace must not be computed")
                            .located(outline.location(node))
                            .path("metadata.namespace")
                            .help(
                                "remove it (the default is the instance's own), or write a literal or {{ operator.namespace }}: \
                                 otherwise users who can create an instance could write to any namespace",
                            ),
                    ),
                }
                continue;
            }
            match node.as_str().map(|name| (name, naming::check_namespace(name))) {
                Some((name, Ok(()))) => namespaces.literal.push(name.to_owned()),
                _ if text.contains("{%") => {
                    let message = "the namespace is unknown, because it is assembled from several parts";
                    diagnostics.push(unknown_namespace(message).located(outline.location(node)));
                }
                Some((_, Err(error))) => diagnostics.push(
                    Diagnostic::error("package::namespace", format!("this cannot be a namespace: {error}"))
                        .located(outline.location(node))
                        .path("metadata.namespace")
                        .help(
                            "write the name of a namespace, or remove it (the default is the instance's own)",
                        ),
                ),
                None => {}
            }
        }
        namespaces
    }
}

/// The warning about a namespace that is known only after rendering.
fn unknown_namespace(message: &str) -> Diagnostic {
    Diagnostic::warning("package::namespace-unknown", message).path("metadata.namespace").help(
        "only the instance's own namespace is allowed here; for another one, write `namespace:` with a literal or \
         {{ operator.namespace }}, and put each `{% if %}` on lines of its own so that the text is YAML without it",
    )
}

/// Finds the place where a text without an outline sets a `namespace` other than the instance's own.
fn names_a_namespace(text: &str) -> Option<Span> {
    let mut offset = 0;
    for line in text.split_inclusive('\n') {
        let start = offset;
        offset += line.len();
        if line.trim_start().starts_with('#') {
            continue;
        }
        for (at, _) in line.match_indices("namespace") {
            let rest = line[at + "namespace".len()..].trim_start_matches(['"', '\'']);
            let Some(value) = rest.strip_prefix(':') else { continue };
            let value = value.split([',', '}', '#']).next().unwrap_or_default();
            let whole = rest[1..].trim_start().trim_start_matches(['"', '\'']);
            let own = whole.find("}}").and_then(|end| lone_expression(&whole[..end + 2]));
            if !value.trim().is_empty() && !matches!(own, Some("namespace" | "instance.metadata.namespace")) {
                return Some(Span::new(start + at, start + at + "namespace".len()));
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespaces_in_all_branches_are_allowed() {
        for (text, allowed, errors, warnings) in [
            // The author wrote both branches, so both namespaces are allowed.
            (
                "metadata:\n{% if x %}\n  namespace: a\n{% else %}\n  namespace: b\n{% endif %}",
                &["a", "b"][..],
                0,
                0,
            ),
            (
                "{% if x %}\nmetadata: {namespace: a}\n{% else %}\nmetadata: {namespace: b}\n{% endif %}",
                &["a", "b"],
                0,
                0,
            ),
            // One of the branches is computed, in either order.
            (
                "metadata:\n{% if x %}\n  namespace: {{ spec.x }}\n{% else %}\n  namespace: b\n{% endif %}",
                &["b"],
                1,
                0,
            ),
            (
                "metadata:\n{% if x %}\n  namespace: b\n{% else %}\n  namespace: {{ spec.x }}\n{% endif %}",
                &["b"],
                1,
                0,
            ),
            ("metadata: {namespace: a{% if x %}-b{% endif %}}", &[], 0, 1),
            ("metadata: {namespace: \"{% if x %}a{% else %}b{% endif %}\"}", &[], 0, 1),
            ("metadata: {namespace: A_b}", &[], 1, 0),
            // No `namespace` of these texts is that of the object.
            ("metadata: {name: x}\nsubjects: [{namespace: a}]", &[], 0, 0),
            ("metadata: {{ spec.metadata }}\ndata: {namespace: a}", &[], 0, 0),
            ("{% macro m() %}\nnamespace: a\n{% endmacro %}\nmetadata: {name: x}", &[], 0, 0),
            // These are not valid YAML without the expressions.
            ("metadata: {% if x %}{name: a}{% else %}{namespace: a}{% endif %}", &[], 0, 1),
            ("data: {% if x %}{a: b}{% else %}{c: d}{% endif %}\nx: |\n  namespace: a\n", &[], 0, 1),
            (
                "data: {% if x %}{a: b}{% else %}{c: d}{% endif %}\nmetadata: {namespace: \"{{ spec.x }}\"}",
                &[],
                0,
                1,
            ),
            (
                "data: {% if x %}{a: b}{% else %}{c: d}{% endif %}\nmetadata: {namespace: {{ namespace }}}",
                &[],
                0,
                0,
            ),
            ("data: {% if x %}{a: b}{% else %}{c: d}{% endif %}\n# namespace: a\n", &[], 0, 0),
        ] {
            let source = Source::new("t.yaml", text);
            let mut diagnostics = Vec::new();
            let namespaces = Namespaces::of(&source, Outline::of(&source).as_ref(), &mut diagnostics);
            let found = diagnostics.iter().filter(|d| d.is_error()).count();
            assert_eq!((found, diagnostics.len() - found), (errors, warnings), "{text}: {diagnostics:?}");
            for candidate in ["a", "b", "a-b", "kube-system"] {
                let allows = namespaces.allows(Some(candidate), "own", "manager");
                assert_eq!(allows, allowed.contains(&candidate), "{text}: {candidate}");
            }
        }
    }

    #[test]
    fn only_literal_and_operator_namespaces_are_allowed() {
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
            // Without an outline, only the instance's own namespace is allowed.
            let mut warnings = Vec::new();
            assert_eq!(Namespaces::of(&source, None, &mut warnings), Namespaces::default(), "{namespace}");
            let is_own = namespace.is_empty()
                || matches!(lone_expression(namespace), Some(e) if e.ends_with("namespace") && !e.contains("operator") && !e.contains("spec"));
            assert_eq!(warnings.len(), usize::from(!is_own), "{namespace}: {warnings:?}");
            assert!(!warnings.iter().any(Diagnostic::is_error));
            for candidate in ["own", "manager", "kube-system", "other"] {
                let allows = namespaces.allows(Some(candidate), "own", "manager");
                assert_eq!(allows, allowed.contains(&candidate), "{namespace}: {candidate}");
            }
            assert!(namespaces.allows(None, "own", "manager"));
        }
        assert!(Namespaces::any().allows(Some("other"), "own", "manager"));
    }
}
