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
fn expressions_over_unknown_values_have_no_value() {
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
fn only_three_forms_accept_unknown_values() {
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
    // An unknown value that is not used has no effect.
    let text = "# {{ refs.tls.x }}\n{% set x = refs.tls %}\na: 1";
    assert_eq!(render_in(text, &with_unknown()).unwrap(), json!({"a": 1}));
}

/// A live child of which the controller has written `status.ready: 1` and a list of one condition.
fn with_status() -> Scope {
    let mut scope = usual();
    let some = json!({"spec": {}, "status": {"ready": 1, "inner": {}, "conditions": [{"type": "A", "status": "True"}]}});
    let none = json!({"spec": {}});
    let members =
        vec![(json!(0), live(some.clone(), true, true)), (json!(1), live(none.clone(), true, true))];
    let children = [
        ("a".to_owned(), Var::Object(live(some, true, true))),
        ("b".to_owned(), Var::Object(live(none, true, true))),
        ("gone".to_owned(), Var::Undefined),
        ("m".to_owned(), Var::Map(members)),
    ];
    scope.set("children", Var::Vars(children.into()));
    let let_ = |text: &str| Engine::empty().text(text, &at(text)).unwrap();
    let lets = Lets::new([
        ("x".to_owned(), let_("{{ children.a.status.x }}")),
        ("three".to_owned(), let_("{{ children.a.status.x == 3 }}")),
        ("loop".to_owned(), let_("{% for m in children.m.values() %}{{ m.status.ready }}{% endfor %}")),
    ]);
    scope.set("let", Var::Lets(Arc::new(lets)));
    scope
}

fn decides(text: &str, scope: &Scope) -> Result<bool, EvalError> {
    let engine = Engine::empty();
    engine.truthy(&engine.expression(text, &at(text)).unwrap(), scope)
}

#[test]
fn absent_status_fields_are_unknown_in_decisions() {
    let scope = with_status();
    for text in [
        "children.a.status.x == 3",
        "children.a.status.x != 3",
        "children.a.status.x > 3",
        "children.a.status.x",
        "not children.a.status.x",
        "children.a.status.x or true",
        "children.a.status.x.y.error == 3",
        "children.a.status.inner.x == 3",
        "children.a['status'].x == 3",
        "children.a.status['x'] == 3",
        "children.a.status.get('x') == 3",
        "children.b.status.x == 3",
        "children.b.status == none",
        "children.m[1].status.ready == 1",
        "children.a.status.x is none",
        "children.a.status.x is string",
        "children.a.status.x in [1]",
        "1 if children.a.status.x else 2",
        "children.a.status.conditions[1].status == 'True'",
        "(children.a.status.conditions | selectattr('type', 'eq', 'B') | first).status == 'True'",
        "(children.a.status.conditions | selectattr('type', 'eq', 'B') | list)[0].status == 'True'",
        "children.a.status.conditions | selectattr('reason', 'eq', 'B') | list | length > 0",
        "children.a.status.conditions | map(attribute='reason') | list == ['x']",
        "children.m.values() | selectattr('status.ready', 'eq', 1) | list | length == 1",
        "children.m.values() | map(attribute='status.ready') | sum == 1",
        "children.m.values() | sum(attribute='status.ready') == 1",
        "let.x == 3",
        "let.three",
        "let.three | default(false)",
        "let.loop == '1'",
    ] {
        match decides(text, &scope) {
            Err(EvalError::Unknown { reason, .. }) => {
                assert!(reason.contains("the status"), "{text}: {reason}");
            }
            other => panic!("{text}: {other:?}"),
        }
    }
    let path = |text| match decides(text, &scope) {
        Err(EvalError::Unknown { path, .. }) => path,
        other => panic!("{text}: {other:?}"),
    };
    assert_eq!(path("children.a.status.inner.x == 3"), "children.a.status.inner.x");
    assert_eq!(path("children.b.status.x.y == 3"), "children.b.status.x.y");
}

#[test]
fn default_and_is_defined_resolve_absent_status_fields() {
    let scope = with_status();
    for (text, expected) in [
        ("children.a.status.ready == 1", true),
        ("children.a.status.x is defined", false),
        ("children.a.status.x is undefined", true),
        ("children.b.status is defined", false),
        ("children.b.status.x.y is not defined", true),
        ("children.a.status.x | default(0) == 0", true),
        ("children.a.status.x.y | default(3) == 3", true),
        ("children.a.status.get('x', 3) == 3", true),
        ("let.x | default(3) == 3", true),
        ("let.x is defined", false),
        ("children.m.values() | map(attribute='status.ready', default=0) | sum == 1", true),
        ("children.m.values() | map(attribute='status.ready') | map('default', 0) | sum == 1", true),
        ("children.m.values() | selectattr('status.ready', 'defined') | list | length == 1", true),
        ("(children.a.status.conditions | selectattr('type', 'eq', 'A') | first).status == 'True'", true),
        ("children.a.status.conditions | selectattr('type', 'eq', 'B') | list | length == 0", true),
        ("((children.a.status.x | default([])) | first) is defined", false),
        // A field outside the status, or of a child that is known not to exist, is absent, not unknown.
        ("children.a.spec.x == 3", false),
        ("children.gone.status.x == 3", false),
        ("spec.status.x == 3", false),
    ] {
        match decides(text, &scope) {
            Ok(found) => assert_eq!(found, expected, "{text}"),
            Err(error) => panic!("{text}: {error}"),
        }
    }
}

#[test]
fn absent_status_fields_are_undefined_outside_decisions() {
    let scope = with_status();
    assert!(decides("let.three", &scope).is_err());
    for (text, expected) in [
        ("children.a.status.x == 3", json!(false)),
        ("let.three", json!(false)),
        ("let.x is defined", json!(false)),
        ("1 if children.b.status.x else 2", json!(2)),
    ] {
        assert_eq!(eval_in(text, &scope).unwrap(), expected, "{text}");
    }
    assert!(decides("let.three", &scope).is_err());
    let text = "{% if children.a.status.x == 3 %}\na: 1\n{% else %}\na: 2\n{% endif %}";
    assert_eq!(render_in(text, &scope).unwrap(), json!({"a": 2}));
}
