use super::*;

/// The value of an expression whose variable `text` is a short text, or why there is none. It is computed on a small stack.
fn value(expression: &str) -> Result<Cel, String> {
    let expression = expression.to_owned();
    let computed = std::thread::Builder::new().stack_size(1 << 20).spawn(move || {
        let environment = Environment::default().with("text", Type::String);
        let (program, _) = Program::compile(&expression, &environment)?;
        let mut scope = Scope::default();
        scope.set("text", Cel::String(Arc::new("some".to_owned())));
        program.evaluate(&scope)
    });
    computed.unwrap().join().unwrap()
}

fn chain(first: &str, part: impl Fn(usize) -> String, count: usize) -> String {
    (0..count).fold(first.to_owned(), |chain, at| chain + &part(at))
}

#[test]
fn values_that_grow_are_bounded() {
    for expression in [
        chain("['some']", |at| format!(".map(x{at}, x{at} + x{at})"), 36) + "[0].size() > 0",
        chain("[[1, 2]]", |at| format!(".map(x{at}, x{at} + x{at})"), 36) + "[0].size() > 0",
        chain("[0]", |at| format!(".map(x{at}, [x{at}, x{at}])"), 36) + " == [1]",
        chain("[0]", |at| format!(".map(x{at}, {{'a': x{at}, 'b': x{at}}})"), 36) + " == [1]",
        chain("text", |_| format!(".replace('', '{}')", "a".repeat(100)), 20) + ".size() > 0",
        format!("lists.range(2000).map(x, '').join('{}') == ''", "a".repeat(10_000)),
        "lists.range(1000000000000).size() > 0".to_owned(),
        "lists.range(20000).map(x, x).size() > 0".to_owned(),
        "'%.999999999f'.format([1.0]) == ''".to_owned(),
        "'%.65536e'.format([1.0]) == ''".to_owned(),
        format!("{}r'\\'{} == ''", "strings.quote(".repeat(40), ")".repeat(40)),
        format!("lists.range(400).map(x, text.replace('', '{}')).size() > 0", "a".repeat(20_000)),
        format!("lists.range(5000).map(x, '{}').size() > 0", "a".repeat(20_000)),
    ] {
        let found = value(&expression);
        assert!(
            found.as_ref().is_err_and(|why| why.contains(growth::OUT_OF_STEPS)),
            "{expression}: {found:?}"
        );
    }
}

#[test]
fn functions_of_a_value_are_not_called_without_one() {
    assert!(value("format('%.65536e', [1.0]) == ''").is_err());
}

#[test]
fn functions_that_are_bounded_keep_their_results() {
    for expression in [
        "text.replace('o', '0').replace('', '-', 2) == '-s-0me'",
        "['a', text].join(', ') == 'a, some' && [].join() == ''",
        "'%s %.3f%%'.format([text, 1.5]) == 'some 1.500%'",
        "lists.range(3).map(x, x + 1).filter(x, x > 1) == [2, 3]",
        "{'a': [1, text]}.map(key, key + text) == ['asome']",
        "[[1] + [2], [text.size()]].exists(x, x == [4])",
        "!!true && !!!false && 1 - - -1 == 0",
        "text.replace('o', '0', -1) == 's0me'",
        "[timestamp('2026-01-01T00:00:00Z')][0] < timestamp('2027-01-01T00:00:00Z')",
        "[duration('1h')][0] == duration('60m') && [quantity('1Gi')][0].isGreaterThan(quantity('1Mi'))",
        "[null][0] == null && [optional.of(1)][0].value() == 1 && {1: text}[1] == text",
        "[?optional.of(1), ?optional.none()] == [1] && {?'a': optional.of(text)}.a == 'some'",
    ] {
        assert_eq!(value(expression), Ok(Cel::Bool(true)), "{expression}");
    }
}

/// Each of them is read in linear time, on a small stack.
#[test]
fn depth_and_length_are_bounded_before_anything_recurses() {
    let nested = |open: &str, close: &str| format!("{}1{} == 1", open.repeat(5_000), close.repeat(5_000));
    let many = |first: &str, part: &str| first.to_owned() + &part.repeat(30_000 / part.len());
    for (expression, is_refused) in [
        (nested("(", ")"), true),
        (nested("[", "]"), true),
        (nested("f(", ")"), true),
        (nested("!!(", ")"), true),
        (format!("{}1{} == 1", "(".repeat(60), format!("{})", " + 1".repeat(50)).repeat(60)), true),
        (format!("{}1{}", "f(".repeat(60), format!("{})", ".a".repeat(50)).repeat(60)), true),
        (many("1", " + 1") + " == 2", true),
        (many("1", ".a"), true),
        (many("1 + 1", " + text.?names") + " == 2", true),
        (many("", "! ") + "true", true),
        (many("text", ".labels") + " == 'a'", true),
        (many("[1]", "[0]") + " == 1", true),
        (many("text", ".trim()") + " == ''", true),
        (many("", "true ? true : ") + "true", true),
        (many("", "true && false ? true : ") + "true", true),
        (many("1", " in [1]"), true),
        (format!("'{}' == 'b'", "a".repeat(100_000)), true),
        (format!("{}true{}", "!!(".repeat(41), ")".repeat(41)), false),
        (chain("1", |_| " + 1".to_owned(), 200) + " == 201", false),
        (chain("1", |_| " + (1 + 2)".to_owned(), 100) + " == 301", false),
        (chain("text", |_| ".trim()".to_owned(), 80) + " == text", false),
        (format!("{}true", "true ? true : ".repeat(200)), false),
        (format!("{}1{} == 1", "(".repeat(60), ")".repeat(60)), false),
        (format!("{}1{} == {}1{}", "[".repeat(60), "]".repeat(60), "[".repeat(60), "]".repeat(60)), false),
        (chain("true", |_| " && text == 'some'".to_owned(), 4_000), false),
        (many("true", " && {'a': text}.?a.hasValue()"), false),
        (many("true", " || [text].all(x, x.size() == 4)"), false),
        (many("[", "1, ") + "1] != []", false),
        (many("[", "1 == 2 ? 1 : 2, ") + "1] != []", false),
        (format!("'{}' != 'b'", many("", "(.+")), false),
    ] {
        let found = value(&expression);
        let shown: String = expression.chars().take(40).collect();
        assert_eq!(found.is_err(), is_refused, "{shown}: {found:?}");
        if !is_refused {
            assert_eq!(found, Ok(Cel::Bool(true)), "{shown}");
        }
    }
}

#[test]
fn tokens_are_those_of_the_grammar() {
    let count = |rule: &str| tokens::tokens(rule).map(|tokens| tokens.len() - 1).map_err(|(why, _)| why);
    for (rule, wanted) in [
        ("1.a.b", 5),
        ("1.5e3 .5 0x1F 12u 0x1fU 1e-3", 6),
        (r#"'' "" """a "" b""" '''a '' b''' r'\' R"\" b'a' bR'\' '\x41\u00e9\101\?'"#, 9),
        ("a // b ' c\n d", 2),
        ("!a-b", 4),
    ] {
        assert_eq!(count(rule), Ok(wanted), "{rule}");
    }
    for rule in ["self.`a-b`", r"'\q'", "'a\rb'", "'a\nb'", "`a + b`", "`a", "'''a''", "#", "\u{a0}", "a = b"]
    {
        assert!(count(rule).is_err(), "{rule}");
    }
}

#[test]
fn pairs_of_signs_have_no_effect() {
    for (rule, wanted) in [
        ("!!a && !!!b", "  a &&   !b"),
        ("a - - -1 == --2", "a -    1 ==   2"),
        ("a - -1 != !b", "a - -1 != !b"),
        ("[--1, !!(a)]", "[  1,   (a)]"),
        ("'!!' == \"--\"", "'!!' == \"--\""),
    ] {
        assert_eq!(tokens::readable(rule, &tokens::tokens(rule).unwrap()), wanted, "{rule}");
    }
}

#[test]
fn names_in_backticks_are_refused() {
    let environment = Environment::default().with("self", Type::Dyn);
    let error = Program::compile("1 < self.`x-y`", &environment).unwrap_err();
    let Problem::Syntax(_, help) = &error.problem else { panic!("{error}") };
    assert_eq!(help, "write `self.x__dash__y`");
}

#[test]
fn selected_fields_share_their_types() {
    let of = |below: serde_json::Value| serde_json::json!({"type": "object", "properties": {"x-y": below}});
    let schema = of(of(serde_json::json!({"type": "string"})));
    let environment = Environment::default().with("self", Type::of(&schema, true));
    let selected = || match Program::compile("self.x__dash__y", &environment) {
        Ok((_, Type::Object(fields))) => fields,
        other => panic!("{other:?}"),
    };
    assert!(Arc::ptr_eq(&selected(), &selected()));
}
