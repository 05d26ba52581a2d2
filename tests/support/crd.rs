//! The text of `CustomResourceDefinition`s for tests.

use std::fmt::Write as _;

/// The text of a namespaced CRD with one version, `v1`. `version` is the rest of that version.
pub(crate) fn crd(group: &str, plural: &str, kind: &str, version: &str) -> String {
    let singular = kind.to_lowercase();
    let text = format!(
        "apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {{name: {plural}.{group}}}
spec:
  group: {group}
  scope: Namespaced
  names: {{kind: {kind}, plural: {plural}, singular: {singular}, listKind: {kind}List}}
  versions:
    - name: v1
      served: true
      storage: true
"
    );
    version.trim_start_matches('\n').lines().fold(text, |mut text, line| {
        let _ = writeln!(text, "      {line}");
        text
    })
}

/// The text of a namespaced CRD up to the properties of its schema, which the caller appends with an indent
/// of twelve.
pub(crate) fn crd_to_properties(group: &str, plural: &str, kind: &str) -> String {
    crd(group, plural, kind, "schema:\n  openAPIV3Schema:\n    type: object\n    properties:\n")
}

/// The text of a namespaced CRD whose instances may have any field.
pub(crate) fn open_crd(group: &str, plural: &str, kind: &str) -> String {
    let schema = "schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}";
    crd(group, plural, kind, schema)
}
