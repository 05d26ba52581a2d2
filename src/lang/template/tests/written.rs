//! Tests of which metadata counts as written by the author.

use serde_json::json;

use super::*;

#[test]
fn metadata_from_expressions_is_not_literal() {
    let written = |text: &str| {
        let engine = engine(&[("t.yaml", text)]);
        let template = engine.template("templates/t.yaml").unwrap();
        let meta = json!({"finalizers": ["a/b"], "namespace": "kube-system"});
        let spec = json!({"ns": "kube-system", "list": ["a/b"], "meta": meta, "key": "namespace"});
        let scope = scope(&json!({"spec": spec, "operator": {"namespace": "kube-system"}}));
        engine.render_object(template, &scope).unwrap()
    };
    let literal = json!(["a/b"]);
    for (text, is_written) in [
        ("metadata: {finalizers: [a/b]}", true),
        ("metadata:\n  finalizers:\n    - a/b\n", true),
        ("{% if spec.ns %}\nmetadata: {finalizers: [a/b]}\n{% endif %}", true),
        ("{% macro m() %}[a/b]{% endmacro %}\nmetadata: {finalizers: {{ m() }}}", true),
        ("metadata: {<<: {finalizers: [a/b]}}", true),
        ("metadata: {finalizers: {{ spec.list }}}", false),
        ("metadata: {finalizers: [\"{{ spec.list[0] }}\"]}", false),
        ("{% macro m(x) %}[{{ x }}]{% endmacro %}\nmetadata: {finalizers: {{ m(spec.list[0]) }}}", false),
        ("{% set x = spec.list %}\nmetadata: {finalizers: {{ x }}}", false),
        ("{% set x %}[{{ spec.list[0] }}]{% endset %}\nmetadata: {finalizers: {{ x }}}", false),
        ("metadata: {\"{{ 'finalizers' }}\": [a/b]}", false),
        ("metadata: {{ spec.meta }}", false),
        ("metadata: {<<: {{ spec.meta }}}", false),
        ("metadata: {name: x, <<: [{{ spec.meta }}]}", false),
    ] {
        let (value, written) = written(text);
        assert_eq!(value["metadata"]["finalizers"], literal, "{text}");
        assert_eq!(written.has("finalizers", &literal), is_written, "{text}");
        assert!(!written.has("finalizers", &json!(["c/d"])), "{text}");
    }
    for (text, expression) in [
        ("metadata: {namespace: {{ spec.ns }}}", Some("spec.ns")),
        ("metadata: {namespace: \"{{ operator.namespace }}\"}", Some("operator.namespace")),
        ("metadata: {namespace: \"{{ operator.namespace }}x\"}", None),
        ("metadata: {namespace: kube-system}", None),
        ("metadata: {{ spec.meta }}", None),
        ("metadata: {\"{{ spec.key }}\": kube-system}", None),
    ] {
        let (value, written) = written(text);
        for candidate in ["spec.ns", "operator.namespace"] {
            assert_eq!(written.namespace_is(candidate), expression == Some(candidate), "{text}");
        }
        let is_literal = text.contains("namespace: kube-system");
        assert_eq!(written.has("namespace", &value["metadata"]["namespace"]), is_literal, "{text}");
    }
}
