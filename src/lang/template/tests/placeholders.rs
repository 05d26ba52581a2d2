use super::*;
use crate::api::Gvk;

#[test]
fn position_of_a_placeholder_decides_its_type() {
    for (text, expected) in [
        // A placeholder alone as a plain scalar gives the native value.
        ("x: {{ spec.size }}", json!({"x": 3})),
        ("x: {{ spec.ratio }}", json!({"x": 3.0})),
        ("x: {{ spec.on }}", json!({"x": true})),
        ("x: {{ spec.nothing }}", json!({"x": null})),
        ("x: {{ spec.list }}", json!({"x": [1, 2, 3]})),
        ("x: {{ spec.map }}", json!({"x": {"b": 1, "a": {"c": [10, 20]}}})),
        ("x: {{ spec.digits }}", json!({"x": "10"})),
        ("x: {{ 'true' }}", json!({"x": "true"})),
        ("x: {{ '0644' }}", json!({"x": "0644"})),
        ("x: {{ spec.big }}", json!({"x": 18_446_744_073_709_551_615_u64})),
        ("x: {{ spec.small }}", json!({"x": -9_223_372_036_854_775_808_i64})),
        ("{{ spec.map }}", json!({"b": 1, "a": {"c": [10, 20]}})),
        ("- {{ 1 }}\n- {{ 2 }}", json!([1, 2])),
        ("[{{ 1 }}, {{ 'a' }}]", json!([1, "a"])),
        ("{a: {{ 1 }}, b: {{ {} }}}", json!({"a": 1, "b": {}})),
        ("x: {{ spec.size }}   # why", json!({"x": 3})),
        ("x: {{ 'a # b' }}   # why {{ nope.nope }}", json!({"x": "a # b"})),
        // A placeholder alone in quotes gives a string.
        ("x: \"{{ spec.size }}\"", json!({"x": "3"})),
        ("x: '{{ spec.size }}'", json!({"x": "3"})),
        ("x: \"{{ spec.ratio }}\"", json!({"x": "3"})),
        ("x: \"{{ spec.half }}\"", json!({"x": "0.5"})),
        ("x: \"{{ spec.on }}\"", json!({"x": "true"})),
        // A placeholder beside other text or in a block scalar gives a string.
        ("x: {{ name }}-client", json!({"x": "db-client"})),
        ("x: {{ name }}-{{ spec.size }}", json!({"x": "db-3"})),
        ("x: {{ spec.size }}{{ spec.size }}", json!({"x": "33"})),
        ("x: {{ name }}:v{{ spec.version }}", json!({"x": "db:v3.5.1"})),
        ("x: |\n  a {{ name }}\n  {{ spec.size }}\n", json!({"x": "a db\n3\n"})),
        ("x: |-\n  {{ spec.size }}", json!({"x": "3"})),
        ("x: |\n  {{ spec.size }}\n", json!({"x": "3\n"})),
        ("x: >-\n  {{ name }}\n  {{ spec.on }}", json!({"x": "db true"})),
        ("x: a\n  {{ name }}", json!({"x": "a db"})),
        // A placeholder in a key gives a string.
        ("{{ name }}: 1", json!({"db": 1})),
        ("\"{{ name }}\": 1", json!({"db": 1})),
        ("{{ spec.size }}: 1", json!({"3": 1})),
        ("{{ name }}-x: {{ spec.size }}", json!({"db-x": 3})),
        // `omit` drops the key or item.
        ("x: {{ omit }}\nz: 1", json!({"z": 1})),
        ("x: {{ spec.nope | default(omit) }}\nz: 1", json!({"z": 1})),
        ("- {{ omit }}\n- 1", json!([1])),
        ("x: \"{{ omit }}\"\nz: 1", json!({"z": 1})),
        ("{{ omit }}: 1\nz: 1", json!({"z": 1})),
        ("x: {{ [1, omit, 2] }}\nw: {{ {'a': omit, 'b': 1} }}", json!({"x": [1, 2], "w": {"b": 1}})),
        // Whole documents.
        ("", json!(null)),
        ("# nothing\n", json!(null)),
        ("---\nx: 1\n", json!({"x": 1})),
        // Literal text of the author is read as kubectl reads it.
        ("x: 0644\nw: yes\nz: 1_000", json!({"x": 420, "w": true, "z": 1000})),
    ] {
        assert_eq!(render(text).unwrap_or_else(|error| panic!("{text}: {error}")), expected, "{text}");
    }
}

#[test]
fn errors_name_template_line_and_path() {
    for (text, kind, part) in [
        (
            "a:\n  - b: {{ spec.nope }}",
            "undefined",
            "templates/t.yaml:2:11: `spec.nope` is undefined (a[0].b)",
        ),
        ("a: x-{{ spec.nope }}", "undefined", "`spec.nope` is undefined (a)"),
        ("a: \"{{ spec.nope }}\"", "undefined", "`spec.nope` is undefined (a)"),
        ("a: \"{{ spec.nothing }}\"", "failed", "null cannot be part of a text (a)"),
        ("a: x{{ spec.nothing }}", "failed", "null cannot be part of a text"),
        ("a: \"{{ spec.list }}\"", "failed", "a list cannot be part of a text"),
        ("a: x{{ spec.map }}", "failed", "a map cannot be part of a text"),
        ("a: x{{ omit }}", "failed", "`omit` cannot be part of a text"),
        ("{{ omit }}", "failed", "`omit` is the whole document"),
        ("a: 1\n---\nb: 2", "failed", "contains several documents"),
        ("a: 1\na: 2", "failed", "is a duplicate"),
        ("{{ name }}: 1\ndb: 2", "failed", "two keys of this map are equal"),
        ("a: {{ {'b': [spec.nope]} }}", "undefined", "a value within it is undefined, at a.b[0]"),
        ("a: [\n", "failed", "templates/t.yaml:"),
    ] {
        let (found, message) = problem(render(text));
        assert_eq!(found, kind, "{text}: {message}");
        assert!(message.contains(part), "{text}: {message}");
    }
}

#[test]
fn merge_keys_accept_maps_from_expressions() {
    let files = [
        ("labels.yaml", "app: {{ name }}\ntier: one\n"),
        ("empty.yaml", "# nothing\n"),
        ("one.yaml", "l:\n  <<: {{ partial('labels.yaml') }}\n  tier: two\n"),
        ("two.yaml", "l:\n  tier: two\n  <<: [{{ {'a': 1, 'b': 1} }}, {{ {'b': 2, 'c': 2} }}]\n"),
        ("flow.yaml", "l: {<<: {{ partial(\"labels.yaml\") }}, role: replica}\n"),
        ("none.yaml", "l:\n  a: 1\n  <<: {{ partial('empty.yaml') | default({}) }}\n"),
        ("plain.yaml", "l:\n  <<: {a: 1, b: {{ name }}}\n  a: 2\n"),
        ("null.yaml", "l:\n  <<: {{ partial('empty.yaml') }}\n"),
        ("omit.yaml", "l:\n  a: 1\n  <<: {{ omit }}\n"),
    ];
    let engine = engine(&files);
    let render = |path: &str| engine.render(engine.template(&format!("templates/{path}")).unwrap(), &usual());
    for (path, expected) in [
        ("one.yaml", json!({"l": {"app": "db", "tier": "two"}})),
        ("two.yaml", json!({"l": {"a": 1, "b": 1, "c": 2, "tier": "two"}})),
        ("flow.yaml", json!({"l": {"app": "db", "tier": "one", "role": "replica"}})),
        ("none.yaml", json!({"l": {"a": 1}})),
        ("plain.yaml", json!({"l": {"a": 2, "b": "db"}})),
        ("omit.yaml", json!({"l": {"a": 1}})),
        ("empty.yaml", json!(null)),
    ] {
        assert_eq!(render(path).unwrap_or_else(|error| panic!("{path}: {error}")), expected, "{path}");
    }
    assert!(problem(render("null.yaml")).1.contains("not null (l.<<)"));
}

#[test]
fn statements_render_expected_documents() {
    for (text, expected) in [
        ("{% if spec.on %}\na: 1\n{% else %}\nb: 1\n{% endif %}", json!({"a": 1})),
        (
            "{% if spec.nope.deep %}\na: 1\n{% elif spec.off %}\nc: 1\n{% else %}\nb: 1\n{% endif %}",
            json!({"b": 1}),
        ),
        ("{% for i in spec.list %}\n- {{ i }}\n{% endfor %}", json!([1, 2, 3])),
        (
            "{% for i in spec.list if i > 1 %}\n- {{ loop.index }}:{{ i }}\n{% endfor %}",
            json!(["1:2", "2:3"]),
        ),
        ("{% for i in spec.none %}\n- {{ i }}\n{% else %}\nnone: true\n{% endfor %}", json!({"none": true})),
        (
            "{% for k, v in spec.map | dictsort %}\n{{ k }}: {{ v }}\n{% endfor %}",
            json!({"a": {"c": [10, 20]}, "b": 1}),
        ),
        ("{% for k in spec.map %}\n- {{ k }}\n{% endfor %}", json!(["a", "b"])),
        ("{% set x = spec.size + 1 %}\na: {{ x }}", json!({"a": 4})),
        ("{% set a, b = [1, 2] %}\na: {{ a }}\nb: {{ b }}", json!({"a": 1, "b": 2})),
        ("{% with x = 2 %}a: {{ x }}{% endwith %}", json!({"a": 2})),
        // A variable that is set in the body of a loop is local to the body.
        ("{% set x = 1 %}{% for i in spec.list %}{% set x = i %}{% endfor %}a: {{ x }}", json!({"a": 1})),
        (
            "{% set ns = namespace(n=0) %}{% for i in spec.list %}{% set ns.n = ns.n + i %}{% endfor %}a: {{ ns.n }}",
            json!({"a": 6}),
        ),
        // A variable that is set in a branch stays set after it.
        ("{% if spec.on %}{% set x = 1 %}{% endif %}a: {{ x }}", json!({"a": 1})),
        (
            "x: |\n  a\n  {%- for k in ['p', 'q'] %}\n  {{ k }} = 1\n  {%- endfor %}\nz: 1",
            json!({"x": "a\np = 1\nq = 1\n", "z": 1}),
        ),
        (
            "{% for i in [1, 2, 3] %}\n- [{{ loop.first }}, {{ loop.last }}, {{ loop.previtem | default(0) }}, {{ loop.cycle('a', 'b') }}]\n{% endfor %}",
            json!([[true, false, 0, "a"], [false, false, 1, "b"], [false, true, 2, "a"]]),
        ),
        ("{# a comment #}a: {% raw %}'{{ x }}'{% endraw %}", json!({"a": "{{ x }}"})),
    ] {
        assert_eq!(render(text).unwrap_or_else(|error| panic!("{text}: {error}")), expected, "{text}");
    }
}

#[test]
fn macros_and_blocks_keep_values_typed() {
    for (text, expected) in [
        // The emitted result of a macro counts as written at that position; values keep their types.
        (
            "{% macro port(n, p=80) %}{name: {{ n }}, port: {{ p }}}{% endmacro %}\na: {{ port('x') }}\nb: {{ port('y', p=spec.size) }}",
            json!({"a": {"name": "x", "port": 80}, "b": {"name": "y", "port": 3}}),
        ),
        (
            "{% macro m(x) %}{{ x }}{% endmacro %}\na: {{ m(spec.size) }}\nb: \"{{ m(spec.size) }}\"\nc: {{ m(3) }}-x",
            json!({"a": 3, "b": "3", "c": "3-x"}),
        ),
        // In an expression, the result of a macro is a string.
        (
            "{% macro m(x) %}<{{ x }}>{% endmacro %}\na: {{ m(3) ~ '!' }}\nb: {{ m(3) | upper }}\nc: {{ m('a') == '<a>' }}\nd: {{ [m(1)] }}",
            json!({"a": "<3>!", "b": "<3>", "c": true, "d": ["<1>"]}),
        ),
        // A value in the result of a macro never becomes structure.
        (
            "{% macro m(x) %}{{ x }}{% endmacro %}\na: {{ m('x\\nkind: ClusterRole') }}",
            json!({"a": "x\nkind: ClusterRole"}),
        ),
        (
            "{% set x %}a-{{ spec.size }}{% endset %}\nv: {{ x }}\nw: {{ x | length }}",
            json!({"v": "a-3", "w": 3}),
        ),
        ("{% set x | upper %}a-{{ name }}{% endset %}\nv: {{ x }}", json!({"v": "A-DB"})),
        ("v: {% filter upper %}a: {{ name }}{% endfilter %}", json!({"v": "A: DB"})),
        (
            "{% macro fact(n) %}{{ n * (fact(n - 1) | int) if n > 1 else 1 }}{% endmacro %}\na: {{ fact(5) | int }}",
            json!({"a": 120}),
        ),
        // A macro sees the variables of the top level, but not those of the caller's loop.
        (
            "{% set top = 1 %}{% macro m() %}{{ top }}{{ i | default('-') }}{% endmacro %}{% for i in [1] %}\na: {{ m() }}x{% endfor %}",
            json!({"a": "1-x"}),
        ),
    ] {
        assert_eq!(render(text).unwrap_or_else(|error| panic!("{text}: {error}")), expected, "{text}");
    }
}

#[test]
fn partials_render_with_their_variables() {
    let engine = engine(&[
        ("labels.yaml", "app: {{ name }}\n"),
        ("list.yaml", "{% for i in range(n | default(2)) %}\n- {{ i }}\n{% endfor %}"),
        (
            "t.yaml",
            "a: {{ partial('labels.yaml') }}\nb: {{ partial('labels.yaml', name='x') }}\nc: {{ partial('list.yaml', n=3) | length }}\nd: {{ partial('list.yaml') | map(attribute='x') | select | list }}",
        ),
        ("count.yaml", "{{ [n] + partial('count.yaml', n=n - 1) if n > 0 else [] }}"),
        ("deep.yaml", "{{ partial('deep.yaml') }}"),
    ]);
    let template = engine.template("templates/t.yaml").unwrap();
    assert_eq!(
        engine.render(template, &usual()).unwrap(),
        json!({"a": {"app": "db"}, "b": {"app": "x"}, "c": 3, "d": []})
    );
    let count = engine.template("templates/count.yaml").unwrap();
    assert_eq!(engine.render(count, &scope(&json!({"n": 3}))).unwrap(), json!([3, 2, 1]));
    let deep = engine.template("templates/deep.yaml").unwrap();
    assert_eq!(problem(engine.render(deep, &usual())).0, "limit");

    let (_, errors) = compile(&[("labels.yaml", "a: 1"), ("t.yaml", "a: {{ partial('labls.yaml') }}")]);
    assert_eq!(errors.len(), 1);
    assert!(errors[0].to_string().contains("did you mean `labels.yaml`?"), "{}", errors[0]);
}

#[test]
fn one_template_renders_in_many_threads() {
    let engine =
        engine(&[("t.yaml", "{% if n % 2 %}\nodd: {{ n }}\n{% else %}\neven: {{ n }}\n{% endif %}")]);
    let template = engine.template("templates/t.yaml").unwrap();
    std::thread::scope(|threads| {
        for start in 0..4 {
            let (engine, template) = (&engine, template);
            threads.spawn(move || {
                for n in start..start + 50 {
                    let key = if n % 2 == 0 { "even" } else { "odd" };
                    assert_eq!(engine.render(template, &scope(&json!({"n": n}))).unwrap(), json!({key: n}));
                }
            });
        }
    });
}

#[test]
fn kinds_of_a_template_are_found_in_its_text() {
    let pair = |api_version: &str, kind: &str| Gvk::new(api_version, kind);
    for (text, expected) in [
        ("apiVersion: v1\nkind: Pod\n", vec![pair("v1", "Pod")]),
        ("# x\nkind: \"Pod\"   # why\n'apiVersion': 'v1'\nspec:\n  kind: Other", vec![pair("v1", "Pod")]),
        (
            "{% if spec.on %}\napiVersion: v1\nkind: A\n{% else %}\napiVersion: v2\nkind: B\n{% endif %}\n",
            vec![pair("v1", "A"), pair("v2", "B")],
        ),
        (
            "apiVersion: v1\n{% if spec.on %}\nkind: A\n{% else %}\nkind: B\n{% endif %}",
            vec![pair("v1", "A"), pair("v1", "B")],
        ),
        ("{% if spec.on %}\napiVersion: v1\nkind: A\n{% endif %}\n", vec![pair("v1", "A")]),
    ] {
        let engine = engine(&[("t.yaml", text)]);
        assert_eq!(engine.template("templates/t.yaml").unwrap().kinds().unwrap(), expected, "{text}");
    }
    for (text, part) in [
        ("app: x", "no apiVersion and no kind"),
        ("apiVersion: v1\nkind: {{ name }}", "computes"),
        ("apiVersion: v1\n{% if spec.on %}\nkind: A\n{% endif %}", "no kind"),
        ("kind: A", "no apiVersion"),
    ] {
        let engine = engine(&[("t.yaml", text)]);
        let error = engine.template("templates/t.yaml").unwrap().kinds().unwrap_err();
        assert!(error.to_string().contains(part), "{text}: {error}");
    }
}
