use super::*;

#[test]
fn expressions_have_expected_values() {
    check_values(&[
        ("spec.size", json!(3)),
        ("spec.map.a.c[1]", json!(20)),
        ("spec['map']['b']", json!(1)),
        ("spec.list[-1]", json!(3)),
        ("spec.list[1:]", json!([2, 3])),
        ("spec.list[::-1]", json!([3, 2, 1])),
        ("spec.text[1:3]", json!("el")),
        ("1 + 2 * 3 - 4 / 2", json!(5)),
        ("[7 // 2, 7 % 2, 2 ** 10, 5 / 2]", json!([3, 1, 1024, 2.5])),
        ("-spec.size", json!(-3)),
        ("-9223372036854775808", json!(-9_223_372_036_854_775_808_i64)),
        ("spec.big - 1", json!(18_446_744_073_709_551_614_u64)),
        ("'a' ~ 1 ~ true ~ 3.0", json!("a1true3")),
        ("'a' + 'b'", json!("ab")),
        ("['ab' * 3, [1] * 2]", json!(["ababab", [1, 1]])),
        ("[1] + [2]", json!([1, 2])),
        ("{'a': 1, 'b': [2]}", json!({"a": 1, "b": [2]})),
        ("1 if spec.on else 2", json!(1)),
        ("1 if spec.nope.deep else 2", json!(2)),
        ("spec.nope or 'x'", json!("x")),
        ("spec.text and spec.size", json!(3)),
        ("not spec.nope", json!(true)),
        ("none", json!(null)),
        ("null", json!(null)),
        ("'\\udbfd\\udfa1' | length", json!(1)),
        ("spec.map.items() | length", json!(2)),
        ("spec.map.keys()", json!(["a", "b"])),
        ("spec.map.values() | length", json!(2)),
        ("[spec.map.get('b'), spec.map.get('z', 7), spec.map.get('z')]", json!([1, 7, null])),
    ]);
}

#[test]
fn comparisons_of_mixed_types_are_errors() {
    check_values(&[
        ("1 < 2", json!(true)),
        ("3 <= 3.0", json!(true)),
        ("'a' < 'b'", json!(true)),
        ("1 < 2 < 3", json!(true)),
        ("1 < 3 < 2", json!(false)),
        ("3 > 2 >= 2 != 1", json!(true)),
        ("1 == 1.0", json!(true)),
        ("1 == '1'", json!(false)),
        ("1 == true", json!(false)),
        ("none == false", json!(false)),
        ("spec.nope == none", json!(false)),
        ("spec.nope == spec.nada", json!(true)),
        ("spec.nope.deep == 3", json!(false)),
        ("spec.nope != 3", json!(true)),
        ("[1, {'a': 2}] == [1.0, {'a': 2}]", json!(true)),
        ("18446744073709551615 == 18446744073709551615.0", json!(false)),
        ("9007199254740993 > 9007199254740992.0", json!(true)),
        ("2 in spec.list", json!(true)),
        ("'2' in spec.list", json!(false)),
        ("'ell' in spec.text", json!(true)),
        ("'a' in spec.map", json!(true)),
        ("4 not in spec.list", json!(true)),
        ("spec.nope | default(7) < 8", json!(true)),
    ]);
    check_problems(&[
        ("none < 3", "not yet", "null has no order"),
        ("spec.nope < 3", "not yet", "undefined"),
        ("3 >= spec.nope.deep", "not yet", "undefined"),
        ("'5Gi' > 10", "not yet", "a string and a number"),
        ("true < 2", "not yet", "a boolean and a number"),
        ("{} < {}", "not yet", "a map has no order"),
        ("1 < 2 < none", "not yet", "null"),
        ("[3, none] | sort", "not yet", "null"),
        ("[3, '4'] | sort", "not yet", "order"),
        ("[none] | sort", "not yet", "null"),
        ("[spec.nope] | max", "not yet", "undefined"),
        ("['1', 2] | min", "not yet", "order"),
        ("spec.items | sort(attribute='n')", "not yet", "undefined"),
        ("spec.items | max(attribute='n')", "not yet", "undefined"),
        ("spec.items | selectattr('n', 'lt', 3) | list", "not yet", "undefined"),
        ("range(none)", "not yet", "null"),
        ("none + 1", "not yet", "null"),
        ("2 in spec.nope", "undefined", "undefined"),
        ("1 in 'abc'", "failed", "a string contains strings"),
        ("spec.nope + 1", "undefined", "`spec.nope` is undefined"),
        ("spec.nope ~ 'x'", "undefined", "`spec.nope` is undefined"),
        ("'a' ~ none", "failed", "null cannot be part of a text"),
        ("'a' ~ [1]", "failed", "a list cannot be part of a text"),
        ("'a' + 1", "failed", "`+` does not take a string and a number"),
        ("spec.map + 1", "failed", "`+` does not take a map and a number"),
        ("1 / 0", "failed", "division by zero"),
        ("1 % 0", "failed", "division by zero"),
        ("spec.big + 1", "failed", "64 bits"),
        ("2 ** 64", "failed", "64 bits"),
        ("2 ** 999999999999", "failed", "64 bits"),
        ("10.0 ** 400", "failed", "finite"),
        ("spec.map[1]", "failed", "this map is looked up with strings, not with a number"),
        ("spec.list['0']", "failed", "a list is looked up with whole numbers, not with a string"),
        ("spec.list[spec.nope]", "undefined", "`spec.nope` is undefined"),
        ("spec.nope", "undefined", "`spec.nope` is undefined"),
        ("spec.text.upper()", "failed", "it is a filter: `| upper`"),
    ]);
}

#[test]
fn missing_paths_are_undefined() {
    check_values(
        &[
            ("spec.a.b.c is defined", json!(false)),
            ("spec.a['b'][0].c is undefined", json!(true)),
            ("spec.a.b.c | default('x')", json!("x")),
            ("spec.nothing | default('x')", json!("x")),
            ("spec.nothing.deep | default('x')", json!("x")),
            ("spec.text.deep | default('x')", json!("x")),
            ("spec.empty | default('x')", json!("")),
            ("spec.empty | default('x', true)", json!("x")),
            ("spec.empty | default('x', boolean=true)", json!("x")),
            ("spec.nope | default", json!("")),
            ("spec.list[7] | default(0)", json!(0)),
            // The replacement is evaluated only if it is needed.
            ("spec.size | default(1 / 0)", json!(3)),
            ("spec.nope | default(spec.list | map(attribute='x') | list)", json!([null, null, null])),
        ][..12],
    );
    check_problems(&[
        ("spec.nope | default(spec.nada)", "undefined", "undefined"),
        ("spec.nope | upper", "undefined", "`spec.nope` is undefined"),
        ("spec.nope | length", "undefined", "`spec.nope` is undefined"),
        ("[spec.nope] | to_json", "undefined", "[0]"),
    ]);
}

#[test]
fn truthiness_and_items_of_values() {
    let engine = Engine::empty();
    let scope = usual();
    for (text, expected) in [
        ("spec.nope", false),
        ("spec.nothing", false),
        ("spec.none", false),
        ("spec.empty", false),
        ("0", false),
        ("0.0", false),
        ("spec.list", true),
        ("'false'", true),
        ("spec.size", true),
    ] {
        let expr = engine.expression(text, &at(text)).unwrap();
        assert_eq!(engine.truthy(&expr, &scope).unwrap(), expected, "{text}");
    }
    for (text, expected) in [
        ("range(spec.size)", vec![json!(0), json!(1), json!(2)]),
        ("range(1, 10, 4)", vec![json!(1), json!(5), json!(9)]),
        ("range(3, 0, -1)", vec![json!(3), json!(2), json!(1)]),
        ("range(0)", vec![]),
        ("spec.map", vec![json!("a"), json!("b")]),
        ("spec.items | map(attribute='name')", vec![json!("x"), json!("y"), json!("z")]),
    ] {
        let expr = engine.expression(text, &at(text)).unwrap();
        assert_eq!(engine.items(&expr, &scope).unwrap(), expected, "{text}");
    }
    let expr = engine.expression("spec.nope", &at("spec.nope")).unwrap();
    assert_eq!(problem(engine.items(&expr, &scope)).0, "undefined");
    let expr = engine.expression("spec.size", &at("spec.size")).unwrap();
    assert!(problem(engine.items(&expr, &scope)).1.contains("operator.yaml:1:1: a number is not a list"));
}

#[test]
fn texts_of_operator_yaml_have_expected_values() {
    let engine = Engine::empty();
    for (text, expected) in [
        ("plain", Some(json!("plain"))),
        ("{{ spec.size }}", Some(json!(3))),
        ("{{ spec.map }}", Some(json!({"b": 1, "a": {"c": [10, 20]}}))),
        ("{{ spec.size }} ", Some(json!("3 "))),
        ("v{{ spec.version }}", Some(json!("v3.5.1"))),
        ("{% if spec.on %}on{% else %}off{% endif %}", Some(json!("on"))),
        ("{{ omit }}", None),
        ("{{ spec.nope | default(omit) }}", None),
        ("{{ none }}", Some(json!(null))),
        ("#{{ spec.size }}: {{ name }}\n- x", Some(json!("#3: db\n- x"))),
    ] {
        let compiled = engine.text(text, &at(text)).unwrap();
        assert_eq!(engine.eval_text(&compiled, &usual()).unwrap(), expected, "{text}");
    }
    for (text, kind, part) in [
        ("{{ spec.nope }}", "undefined", "operator.yaml:1:4: `spec.nope` is undefined"),
        ("x{{ spec.nope }}", "undefined", "`spec.nope` is undefined"),
        ("x{{ omit }}", "failed", "`omit` cannot be part of a text"),
        ("x{{ none }}", "failed", "null cannot be part of a text"),
        ("x{{ spec.list }}", "failed", "a list cannot be part of a text"),
    ] {
        let compiled = engine.text(text, &at(text)).unwrap();
        let (found, message) = problem(engine.eval_text(&compiled, &usual()));
        assert_eq!(found, kind, "{text}: {message}");
        assert!(message.contains(part), "{text}: {message}");
    }
    assert_eq!(engine.eval_text(&Text::literal(json!(7)), &usual()).unwrap(), Some(json!(7)));
}

#[test]
fn expressions_read_live_objects() {
    let mut scope = usual();
    let member = |name: &str| json!({"metadata": {"name": name}, "status": {"n": 1}});
    let members = vec![
        (json!(0), live(member("db-0"), true, true)),
        (json!(1), live(member("db-1"), false, true)),
        (json!(2), live(member("db-2"), true, false)),
    ];
    scope.set("self", Var::Object(live(member("me"), true, false)));
    scope.set(
        "children",
        Var::Vars(
            [
                ("members".to_owned(), Var::Map(members)),
                ("one".to_owned(), Var::Object(live(member("one"), true, true))),
                ("gone".to_owned(), Var::Undefined),
            ]
            .into(),
        ),
    );
    scope.set(
        "cluster",
        Var::Vars(
            [
                ("version".to_owned(), Var::Json(json!("1.36"))),
                (
                    "has".to_owned(),
                    Var::Function(Function::new(|args| match args {
                        [Value::String(text)] => Ok(json!(text == "policy/v1")),
                        _ => Err("it takes one group and version".to_owned()),
                    })),
                ),
            ]
            .into(),
        ),
    );
    for (text, expected) in [
        ("self.metadata.name", json!("me")),
        ("self is ready and self is not current", json!(true)),
        ("children.members[0].metadata.name", json!("db-0")),
        ("children.members[0] is ready", json!(true)),
        ("children.members[1] is ready", json!(false)),
        ("children.members[2] is current", json!(false)),
        ("children.members[7] is defined", json!(false)),
        ("children.members[7] is ready", json!(false)),
        ("children.members is ready", json!(false)),
        ("children.one is ready and children.one is current", json!(true)),
        ("children.gone is ready", json!(false)),
        ("children.gone.status.x == 3", json!(false)),
        ("children.gone is defined", json!(false)),
        ("children.members | length", json!(3)),
        ("children.members.keys()", json!([0, 1, 2])),
        (
            "children.members.values() | select('ready') | map(attribute='metadata.name') | list",
            json!(["db-0", "db-2"]),
        ),
        (
            "children.members.values() | reject('ready') | map(attribute='metadata.name') | list",
            json!(["db-1"]),
        ),
        ("children.members.values() | map(attribute='status.n') | sum", json!(3)),
        ("children.members.items() | map('first') | list", json!([0, 1, 2])),
        ("children.members | list", json!([0, 1, 2])),
        ("1 in children.members", json!(true)),
        ("children.members.get(9, 'none')", json!("none")),
        ("cluster.has('policy/v1') and not cluster.has('x/v1')", json!(true)),
        ("children.one", member("one")),
        ("children.one['metadata']['name']", json!("one")),
        ("children.one.metadata | length", json!(1)),
        ("children.one.keys()", json!(["metadata", "status"])),
    ] {
        assert_eq!(
            eval_in(text, &scope).unwrap_or_else(|error| panic!("{text}: {error}")),
            expected,
            "{text}"
        );
    }
    for (text, part) in [
        ("children.members['0']", "keys that are each a number, not with a string"),
        ("children.members.x", "keys that are each a number"),
        ("children.members | select('ready') | list", "takes a child or a ref, not a number"),
        ("'0' in children.members", "keys that are each a number"),
        ("children.one.metadata is ready", "takes a child or a ref"),
        ("cluster.has(1)", "`has`: it takes one group and version"),
        ("children.one ~ ''", "an object cannot be part of a text"),
    ] {
        let (_, message) = problem(eval_in(text, &scope));
        assert!(message.contains(part), "{text}: {message}");
    }
}

#[test]
fn numbers_and_maps_pass_through_unchanged() {
    let value = json!({
        "z": 1, "a": [u64::MAX, i64::MIN, 0, -1, 0.1, 1e300, -1e-300, 5e-324, 3.0, 1.0e15],
        "m": {"y": null, "x": true, "Ω": "é"}
    });
    let scope = scope(&json!({ "v": value }));
    assert_eq!(eval_in("v", &scope).unwrap().to_string(), value.to_string());
    assert_eq!(render_in("x: {{ v }}", &scope).unwrap()["x"].to_string(), value.to_string());
    assert_eq!(eval_in("v | to_json | from_json", &scope).unwrap().to_string(), value.to_string());
    assert_eq!(eval_in("v | to_yaml | from_yaml", &scope).unwrap()["m"], value["m"]);
}
