use super::*;

fn schema() -> Value {
    serde_json::json!({
        "type": "object",
        "properties": {
            "size": {"type": "integer"},
            "host": {"type": "string"},
            "since": {"type": "string", "format": "date-time"},
            "port": {"x-kubernetes-int-or-string": true},
            "tls": {"type": "object", "properties": {"on": {"type": "boolean"}}},
            "names": {"type": "array", "items": {"type": "object", "properties": {"name": {"type": "string"}}}},
            "labels": {"type": "object", "additionalProperties": {"type": "string"}},
            "x-y": {"type": "integer"},
        }
    })
}

#[test]
fn rules_of_kubernetes_documentation_are_accepted() {
    for rule in [
        "self.size >= 1 && self.size <= 9",
        "!has(self.host) || self.host.matches('^[a-z.]+$')",
        "self.names.all(x, x.name.startsWith('a') && size(x.name) < 5)",
        "self.labels['a'] == 'b' || 'x' in self.labels",
        "has(self.tls.on) ? self.tls.on : true",
        "self.names.map(n, n.name).isSorted()",
        "self.size == oldSelf.size",
        "quantity(self.host).isLessThan(quantity('1Gi'))",
        "self.since < timestamp('2020-01-01T00:00:00Z')",
        "type(self.port) == int ? self.port > 0 : self.port.endsWith('%')",
        "self.metadata.name.size() <= 40",
        "self.x__dash__y > 1",
        "self.?host.orValue('') != ''",
        "[1, 2, 3,].exists(i, i == self.size)",
        "{'a': 1}['a'] == self.size",
        "self.host == r'a\\d' || self.host == \"\"\"a\nb\"\"\"",
        "-self.size < 0 && self.size % 2 == 0 // even",
        "duration('1h') > duration('30m')",
        "self.names.exists_one(x, x.name == 'a') != self.tls.on",
        "size(self.labels) * 2 + 1 > 1.5",
        "self.names[0].name == 'a'",
        "!format.dns1123Label().validate(self.host).hasValue()",
        "cel.bind(n, self.size, n > 1 && n < 5)",
        "sets.contains(self.names.map(x, x.name), ['a'])",
        "0x1F > self.size && 1u < 2u && 1e-3 < 2.0",
        "self.tls == {'on': true}",
    ] {
        assert_eq!(problem(rule, &schema()), None, "{rule}");
    }
}

#[test]
fn rules_that_do_not_compile_are_found() {
    for (rule, wanted) in [
        ("self.size => 1", "`=` is no operator: `=> 1`"),
        ("self.size = 1", "`=` is no operator"),
        ("self.size > 1 & self.size < 3", "`&` is no operator"),
        ("self.size >", "the rule ends where a value is expected"),
        ("(self.size > 1", "`)` is expected"),
        ("self.size > 1)", "an operator is expected at `)`"),
        ("self.size > 1 and self.size < 3", "an operator is expected at `and self.size < 3`"),
        ("self.host == 'a", "a string has no end"),
        ("self.sise > 1", "no field self.sise"),
        ("self.tls.of", "no field self.tls.of"),
        ("has(self.names[0].nam)", "no field self.names[].nam"),
        ("self.host > 3", "`>` does not compare a string with a number"),
        ("self.size == '3'", "does not compare a number with a string"),
        ("self.tls.on == 'true'", "does not compare a boolean with a string"),
        ("slef.size > 1", "there is no variable `slef`"),
        ("self.size > 1 ? true", "`:` is expected"),
        ("not self.tls.on", "an operator is expected"),
        ("self.size > 1 # no", "unexpected character"),
    ] {
        let found = problem(rule, &schema());
        assert!(found.as_ref().is_some_and(|(text, _)| text.contains(wanted)), "{rule}: {found:?}");
    }
    let text = serde_json::json!({"type": "string"});
    assert!(problem("self > 3", &text).is_some());
    assert_eq!(problem("self.size() > 3 && self == oldSelf", &text), None);
}

/// Each of them is read in linear time, on a small stack.
#[test]
fn rules_that_are_too_deep_or_long_are_refused() {
    let many = |part: &str| part.repeat(30_000 / part.len());
    let nested = |open: &str, close: &str| format!("{}1{} == 1", open.repeat(5_000), close.repeat(5_000));
    for (rule, is_refused) in [
        (nested("(", ")"), true),
        (nested("[", "]"), true),
        (nested("f(", ")"), true),
        (nested("!!(", ")"), true),
        (format!("{}1{}", "(".repeat(60), format!("{})", " + 1".repeat(50)).repeat(60)), true),
        (format!("{}1{}", "f(".repeat(60), format!("{})", ".a".repeat(50)).repeat(60)), true),
        (format!("1{} == 2", many(" + 1")), true),
        (format!("1{}", many(".a")), true),
        (format!("1 + 1{} == 2", many(" + self.?names")), true),
        (format!("{}true", many("! ")), true),
        (format!("self{} == 'a'", many(".labels")), true),
        (format!("self.names{} == 1", many("[0]")), true),
        (format!("self.host{} == ''", many(".trim()")), true),
        (format!("{}true", many("true ? true : ")), true),
        (format!("{}true", many("true && false ? true : ")), true),
        (format!("1{}", many(" in [1]")), true),
        (format!("'{}' == 'b'", "a".repeat(100_000)), true),
        (format!("true{}", many(" && self.size > 1")), false),
        (format!("true{}", many(" && self.?host.hasValue()")), false),
        (format!("true{}", many(" || self.names.all(x, x.name == 'a')")), false),
        (format!("[{}1] == []", many("1, ")), false),
        (format!("[{}1] == []", many("1 == 2 ? 1 : 2, ")), false),
        (format!("'{}' == 'b'", many("(.+")), false),
        (format!("self.size == {}1{}", "(".repeat(60), ")".repeat(60)), false),
        (format!("self.size{} == 1", " + (1 + 2)".repeat(100)), false),
    ] {
        let small = std::thread::Builder::new().stack_size(1 << 20);
        let found = {
            let rule = rule.clone();
            small.spawn(move || problem(&rule, &schema())).unwrap().join().unwrap()
        };
        assert_eq!(found.is_some(), is_refused, "{}: {found:?}", rule.chars().take(60).collect::<String>());
    }
}

#[test]
fn tokens_are_those_of_the_grammar() {
    let count = |rule: &str| tokens(rule).map(|tokens| tokens.len() - 1).map_err(|(why, _)| why);
    for (rule, wanted) in [
        ("1.a.b", 5),
        ("1.5e3 .5 0x1F 12u 0x1fU 1e-3", 6),
        (r#"'' "" """a "" b""" '''a '' b''' r'\' R"\" b'a' bR'\' '\x41\u00e9\101\?'"#, 9),
        ("a // b ' c\n d", 2),
        ("self.`a-b/c.d`", 3),
        ("!a-b", 4),
    ] {
        assert_eq!(count(rule), Ok(wanted), "{rule}");
    }
    for rule in [r"'\q'", "'a\rb'", "'a\nb'", "`a + b`", "`a", "'''a''", "#", "\u{a0}", "a = b"] {
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
        assert_eq!(tokens::readable(rule).unwrap(), wanted, "{rule}");
    }
}
