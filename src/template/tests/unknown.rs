use super::*;

fn with_unknown() -> Scope {
    let mut scope = usual();
    let refs = [
        ("tls".to_owned(), Var::Unknown("the package may not read it".to_owned())),
        ("gone".to_owned(), Var::Undefined),
        ("one".to_owned(), Var::Object(live(json!({"data": {"a": 1}}), true, true))),
        (
            "peers".to_owned(),
            Var::Keyed(vec![
                (json!(0), Var::Json(json!({"id": 7}))),
                (json!(1), Var::Unknown("it timed out".to_owned())),
            ]),
        ),
    ];
    scope.set("refs", Var::Vars(refs.into()));
    scope
}

#[test]
fn whatever_reads_it_has_no_value() {
    for text in [
        "refs.tls",
        "refs.tls.data",
        "refs.tls['data']",
        "refs.tls.data.a.b | default('x')",
        "refs.tls | default('x')",
        "refs.tls == none",
        "refs.tls != 1",
        "refs.tls < 1",
        "refs.tls is defined",
        "refs.tls is undefined",
        "refs.tls is none",
        "refs.tls is ready",
        "refs.tls is current",
        "refs.tls is string",
        "not refs.tls",
        "refs.tls and true",
        "refs.tls or true",
        "true and refs.tls.x",
        "1 if refs.tls else 2",
        "'a' ~ refs.tls.name",
        "refs.tls + 1",
        "refs.tls | length",
        "refs.tls | to_json",
        "refs.tls | list",
        "[refs.tls] | to_json",
        "[1, refs.tls]",
        "{'a': refs.tls.data}",
        "[refs.tls] | join(',')",
        "[refs.tls, 1] | select | list",
        "[refs.tls] | map('upper') | list",
        "[refs.tls] | map(attribute='x') | to_json",
        "[refs.tls] | sort",
        "1 in [refs.tls]",
        "refs.tls in [1]",
        "1 in refs.tls",
        "'x' | replace('x', refs.tls)",
        "refs.tls.values()",
        "range(refs.tls)",
        "spec.list[refs.tls]",
        "refs.peers[1].id",
        "refs.peers.values() | map(attribute='id') | list",
    ] {
        match eval_in(text, &with_unknown()) {
            Err(EvalError::Unknown { path, reason }) => {
                assert!(path.starts_with("refs."), "{text}: {path}");
                assert!(!reason.is_empty(), "{text}");
            }
            other => panic!("{text}: {other:?}"),
        }
    }
    for text in [
        "x: {{ refs.tls }}",
        "x: \"{{ refs.tls.a }}\"",
        "x: a{{ refs.tls.a }}",
        "{{ refs.tls.a }}: 1",
        "{% if refs.tls %}\na: 1\n{% endif %}",
        "{% for x in refs.tls %}\n- {{ x }}\n{% endfor %}",
        "{% for x in refs.peers.values() %}\n- {{ x.id }}\n{% endfor %}",
        "x:\n  <<: {{ refs.tls.data }}",
        "{% set x = refs.tls %}\na: {{ x }}",
        "{% macro m(x) %}{{ x }}{% endmacro %}\na: {{ m(refs.tls) }}",
        "x: {{ [[refs.tls]] }}",
    ] {
        let (kind, message) = problem(render_in(text, &with_unknown()));
        assert_eq!(kind, "unknown", "{text}: {message}");
        assert!(message.starts_with("`refs."), "{text}: {message}");
    }
}

#[test]
fn only_these_may_look() {
    for (text, expected) in [
        ("refs.tls is known", json!(false)),
        ("refs.tls.data.x is known", json!(false)),
        ("refs.one is known", json!(true)),
        ("refs.gone is known", json!(true)),
        ("refs.tls.error", json!("the package may not read it")),
        ("refs.one.error | default('fine')", json!("fine")),
        ("refs.tls is known and refs.tls.x", json!(false)),
        ("false and refs.tls", json!(false)),
        ("true or refs.tls", json!(true)),
        ("1 if true else refs.tls", json!(1)),
        ("spec.size | default(refs.tls)", json!(3)),
        ("refs.peers | length", json!(2)),
        ("refs.peers[0].id", json!(7)),
        ("refs.peers[1] is known", json!(false)),
        ("refs.peers | known", json!({"0": {"id": 7}})),
        ("(refs.peers | known).values() | map(attribute='id') | list", json!([7])),
        ("[1, refs.tls] | known", json!([1])),
        ("refs.peers.values() | select('known') | list | length", json!(1)),
        ("[refs.tls] | length", json!(1)),
        ("refs.gone | default(5)", json!(5)),
    ] {
        match eval_in(text, &with_unknown()) {
            Ok(value) => assert_eq!(value, expected, "{text}"),
            Err(error) => panic!("{text}: {error}"),
        }
    }
    // Of what is not used, nothing is asked.
    let text = "# {{ refs.tls.x }}\n{% set x = refs.tls %}\na: 1";
    assert_eq!(render_in(text, &with_unknown()).unwrap(), json!({"a": 1}));
}
