use super::*;

/// A template, and its expected document for a value `v`.
type Position = (&'static str, fn(&str) -> Value);

/// Texts that would change the document if they were parsed as YAML or as a template.
fn hostile() -> Vec<String> {
    let mut texts: Vec<String> = [
        "x\nkind: ClusterRole",
        "{{ 7*7 }}",
        "{% for x in y %}",
        "{# x #}",
        "true",
        "null",
        "~",
        "",
        " ",
        "0644",
        "1_000",
        "1e3",
        "0x1F",
        "yes",
        "3",
        "2001-01-01",
        "!!python/object",
        "!!binary aGk=",
        "&a *a",
        "*a",
        "<<",
        "\u{1F980}",
        "\"'\"'\\",
        "'",
        "\"",
        "- a",
        "? a",
        "a: b",
        "[a",
        "{a: b",
        "a # b",
        "# a",
        "|",
        ">-\n  a",
        "---\na",
        "...",
        "\t",
        "a\n",
        "\n\na\n\n",
        "a\r\nb",
        "trailing ",
        "\u{feff}a",
        "\u{85}\u{2028}\u{2029}",
        "\u{0}\u{7}\u{1b}[31m",
        "\u{10F7A1}",
        "\u{10F7A2}",
        "\u{10F7A1}0\u{10F7A2}",
        "\u{10F7A1}1\u{10F7A2}",
        "\\u0010F7A1",
        "%YAML 1.1",
        "@x",
        "`x`",
        "$(x) ${x}",
    ]
    .map(str::to_owned)
    .into();
    texts.push("x".repeat(100_000));
    texts.push("- a: b\n".repeat(15_000));
    texts
}

#[test]
fn strings_are_inserted_unchanged_in_every_position() {
    let positions: &[Position] = &[
        ("a: {{ v }}", |v| json!({ "a": v })),
        ("a: \"{{ v }}\"", |v| json!({ "a": v })),
        ("a: '{{ v }}'", |v| json!({ "a": v })),
        ("a: x{{ v }}y", |v| json!({ "a": format!("x{v}y") })),
        ("a: \"x{{ v }}y\"", |v| json!({ "a": format!("x{v}y") })),
        ("a: {{ v }}{{ v }}", |v| json!({ "a": format!("{v}{v}") })),
        ("a: |\n  x\n  {{ v }}\n  y\n", |v| json!({ "a": format!("x\n{v}\ny\n") })),
        ("a: >-\n  x\n  {{ v }}", |v| json!({ "a": format!("x {v}") })),
        ("{{ v }}: 1", |v| json!({ v: 1 })),
        ("\"{{ v }}\": 1", |v| json!({ v: 1 })),
        ("x{{ v }}: 1", |v| json!({ format!("x{v}"): 1 })),
        ("- {{ v }}", |v| json!([v])),
        ("[{{ v }}, b]", |v| json!([v, "b"])),
        ("{a: {{ v }}, {{ v }}x: 1}", |v| json!({ "a": v, format!("{v}x"): 1 })),
        ("{{ v }}", |v| json!(v)),
        ("a: {{ v }} # {{ v }}\nb: 1", |v| json!({ "a": v, "b": 1 })),
        ("# {{ v }}\nb: 1", |_| json!({"b": 1})),
        ("a: {{ [v, {'k': v}] }}", |v| json!({"a": [v, {"k": v}]})),
        ("a: {{ {v: v} }}", |v| json!({"a": {v: v}})),
        ("{% set w = v %}a: {{ w }}", |v| json!({ "a": v })),
        ("{% set w %}{{ v }}{% endset %}a: {{ w }}", |v| json!({ "a": v })),
        (
            "{% macro m(w) %}{{ w }}{% endmacro %}a: {{ m(v) }}\nb: {{ m(v) ~ '' }}",
            |v| json!({ "a": v, "b": v }),
        ),
        ("a: {% filter string %}{{ v }}{% endfilter %}", |v| json!({ "a": v })),
        ("{% for w in [v] %}\n- {{ w }}\n{% endfor %}", |v| json!([v])),
        ("{% if v == v %}\na: {{ v ~ '' }}\n{% endif %}", |v| json!({ "a": v })),
        (
            "a: {{ partial('p.yaml') }}\nb: {{ partial('p.yaml', v='w') }}",
            |v| json!({"a": {"p": v}, "b": {"p": "w"}}),
        ),
        ("a:\n  <<: {{ {v: 1} }}\n  {{ v }}: 2", |v| json!({"a": {v: 2}})),
        ("a: {{ v | to_json | from_json }}", |v| json!({ "a": v })),
        ("a: {{ v | b64encode | b64decode }}", |v| json!({ "a": v })),
        ("a: {{ let.v }}\nb: {{ let.beside }}", |v| json!({ "a": v, "b": format!("<{v}>") })),
    ];
    for (template, expected) in positions {
        let engine = engine(&[("t.yaml", template), ("p.yaml", "p: {{ v }}\n")]);
        let compiled = engine.template("templates/t.yaml").unwrap();
        let lets = [("v", "{{ v }}"), ("beside", "<{{ v }}>")];
        let lets =
            Lets::new(lets.map(|(name, text)| (name.to_owned(), engine.text(text, &at(text)).unwrap())));
        let lets = Arc::new(lets);
        for text in hostile() {
            let scope = scope(&json!({ "v": text })).with("let", Var::Lets(Arc::clone(&lets)));
            let shown: String = text.chars().take(30).collect();
            match engine.render(compiled, &scope) {
                Ok(value) => assert!(value == expected(&text), "{template} with {shown:?}: {value}"),
                Err(error) => panic!("{template} with {shown:?}: {error}"),
            }
        }
    }
}

#[test]
fn placeholder_characters_in_templates_are_errors() {
    for text in [
        "a: \u{10F7A1}0\u{10F7A2}",
        "# \u{10F7A2}",
        "a: \"\\U0010F7A1\"",
        "a: \"\\U0010f7a2\"",
        "{{ name }}\u{10F7A1}",
    ] {
        let (_, errors) = compile(&[("t.yaml", text)]);
        assert!(errors[0].to_string().contains("private-use"), "{text}");
        let error = Engine::empty().text(&format!("{{{{ name }}}}{text}"), &at(text)).unwrap_err();
        assert!(error.to_string().contains("private-use"), "{text}");
    }
}

#[test]
fn errors_never_show_values() {
    let scope = scope(&json!({
        "s": "hunter2", "l": ["hunter2"], "m": {"k": "hunter2", "hash": "hunter2"}, "n": 3,
    }));
    for text in [
        "s + 1",
        "s < 1",
        "s | int",
        "s | float",
        "s | quantity",
        "s | semver",
        "s | b64decode",
        "(s ~ '!') | b64decode",
        "(s ~ ':\\n- ') | from_yaml",
        "('!!x ' ~ s) | from_yaml",
        "(s ~ '{') | from_json",
        "s | cidr_host(1)",
        "s is semver('>=1')",
        "n is in_cidr(s)",
        "s is in_cidr('10.0.0.0/8')",
        "n is semver(s)",
        "l ~ 'x'",
        "m ~ 'x'",
        "l[s]",
        "m[n]",
        "s.upper()",
        "s | bool",
        "l | map(s)",
        "s | round",
        "-s",
        "s | abs",
        "m | select(s)",
        "[1, s] | sort",
        "l | sum",
        "s | format(1)",
        "s | ip_version",
        "n in s",
        "s.x.y",
        "m.kk",
        "s | map('upper')",
        "range(s)",
        "m | join",
        "l | sort(attribute=s)",
        "{l: 1}",
        "s | cidr_subnet(1, 1)",
        "('%d') | format(s)",
        "s | attr('x')",
        "l | attr(s)",
        "s | quantity_in(s)",
        "s is divisibleby(2)",
        "s | dictsort",
        "s | items",
        "s | join(l)",
        "s | batch(s)",
        "s | indent(s)",
        "s is ready",
    ] {
        match eval_in(text, &scope) {
            Ok(_) => {}
            Err(error) => {
                let text_of_error = format!("{error} {error:?}");
                // The error may quote the author's expression, but not the value.
                assert!(!text_of_error.contains("hunter2"), "{text}: {text_of_error}");
            }
        }
    }
    for text in [
        "{{ s }}: 1\n{{ s }}: 2",
        "{{ s }}:\n  a: {{ nope }}",
        "a: {{ {s: nope} }}",
        "a: [{{ s }}\nb: 1",
        "<<: {{ s }}",
    ] {
        let error = render_in(text, &scope).unwrap_err();
        let key_of_author = text.contains("{s: nope}");
        assert!(key_of_author || !format!("{error} {error:?}").contains("hunter2"), "{text}: {error}");
    }
}
