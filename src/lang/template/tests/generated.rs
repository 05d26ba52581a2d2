use super::*;

/// The parts of a rendered field.
fn parts(text: &str) -> Vec<GeneratedPart> {
    let value = render(text).unwrap_or_else(|error| panic!("{text}: {error}"));
    generated_parts(&value["x"]).unwrap_or_else(|| panic!("{text}: nothing is generated"))
}

fn password(number: u64) -> GeneratedPart {
    GeneratedPart::Password { number, length: 20 }
}

fn literal(text: &str) -> GeneratedPart {
    GeneratedPart::Literal(text.to_owned())
}

#[test]
fn text_around_a_generated_value_is_kept_apart() {
    for (text, wanted) in [
        ("x: {{ password(20) }}", vec![password(1)]),
        ("x: \"{{ password(20) }}\"", vec![password(1)]),
        ("x: |-\n  {{ password(20) }}", vec![password(1)]),
        ("x: |\n  {{ password(20) }}\n", vec![password(1), literal("\n")]),
        ("x: a-{{ password(20) }}", vec![literal("a-"), password(1)]),
        (
            "{% set p = password(20) %}\nx: \"{{ name }}:{{ p }}{{ p }}\"",
            vec![literal("db"), literal(":"), password(1), password(1)],
        ),
        ("x: \"{{ password(20) }}{{ password(20) }}\"", vec![password(1), password(2)]),
        (
            "{% macro conf(p) %}pass = {{ p }}{% endmacro %}\nx: \"{{ conf(password(20)) }};\"",
            vec![literal("pass = "), password(1), literal(";")],
        ),
        ("x: {{ spec.none_such | default(password(20)) }}", vec![password(1)]),
    ] {
        assert_eq!(parts(text), wanted, "{text}");
    }
    // A value of an instance that looks like YAML, or like a marker, is text.
    let evil = scope(&json!({"spec": {"user": "a: {b: c}\n"}}));
    let value = render_in("x: \"{{ spec.user }}{{ password(20) }}\"", &evil).unwrap();
    assert_eq!(generated_parts(&value["x"]), Some(vec![literal("a: {b: c}\n"), password(1)]));
    let mark = value["x"].as_object().unwrap().keys().next().unwrap().clone();
    let known = scope(&json!({"spec": {"user": mark}}));
    assert_eq!(generated_parts(&render_in("x: \"{{ spec.user }}\"", &known).unwrap()["x"]), None);
}

#[test]
fn partials_take_and_give_generated_values() {
    let engine = engine(&[
        ("t.yaml", "{% set p = password(20) %}\nx: \"{{ partial('url.yaml', p=p) }}/db\"\nb: {{ p }}"),
        ("url.yaml", "\"db://u:{{ p }}@h\""),
    ]);
    let value = engine.render(engine.template("templates/t.yaml").unwrap(), &usual()).unwrap();
    let wanted = [literal("db://u:"), password(1), literal("@h"), literal("/db")];
    assert_eq!(generated_parts(&value["x"]), Some(wanted.to_vec()));
    assert_eq!(generated_parts(&value["b"]), Some(vec![password(1)]));
}

#[test]
fn certificate_has_two_halves() {
    let half = |key: &str| GeneratedPart::Half { number: 1, key: key.to_owned() };
    let text = "{% set c = tls_ca('a') %}\nx: \"{{ c['tls.crt'] }}{{ c['tls.key'] }}\"\nb: {{ c }}\nz: {<<: {{ c }}}";
    let value = render(text).unwrap();
    assert_eq!(generated_parts(&value["x"]), Some(vec![half("tls.crt"), half("tls.key")]));
    for field in ["b", "z"] {
        let mut map = value[field].as_object().unwrap().clone();
        let (number, certificate) = take_certificate(&mut map).unwrap();
        assert_eq!((number, certificate.common_name.as_str()), (1, "a"));
        assert_eq!(generated_parts(&map["tls.key"]), Some(vec![half("tls.key")]));
    }
}

#[test]
fn nothing_can_be_computed_with_a_generated_value() {
    let why = "is known only when it is applied";
    check_problems(&[
        ("password(20) | sha256", "failed", why),
        ("password(20) | length", "failed", why),
        ("password(20) | b64encode", "failed", why),
        ("'a' ~ password(20)", "failed", why),
        ("password(20) == 'a'", "failed", why),
        ("'a' in [password(20)] or password(20) != 'a'", "failed", why),
        ("password(20) is string", "failed", why),
        ("[password(20)] | to_json", "failed", why),
        ("{'a': password(20)} | to_yaml", "failed", why),
        ("tls_ca('a') | to_json", "failed", why),
        ("tls_ca('a')['tls.key'] | b64encode", "failed", why),
    ]);
    for text in [
        "x: {% for c in password(20) %}{{ c }}{% endfor %}",
        "{{ password(20) }}: x",
        "{% set x %}{{ password(20) }}{% endset %}\nx: {{ x | indent(2) }}",
    ] {
        assert!(problem(render(text)).1.contains(why), "{text}");
    }
    check_values(&[
        ("password(20) is defined", json!(true)),
        ("'some' if password(20) else 'none'", json!("some")),
    ]);
}
