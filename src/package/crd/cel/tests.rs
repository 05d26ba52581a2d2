use operetta_kube_model::cel::{Environment, Program};

use super::*;

/// What is wrong with a rule at the root of a schema.
fn problem(rule: &str, schema: &Value) -> Option<(String, String)> {
    let own = Type::of(schema, true);
    let environment = Environment::default().with("self", own.clone()).with("oldSelf", own);
    Program::compile(rule, &environment).err().and_then(|error| explain(&error.problem))
}

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
