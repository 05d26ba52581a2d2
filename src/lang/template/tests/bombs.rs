use std::time::{Duration, Instant};

use super::*;

/// Half the stack of a worker thread of tokio, because tests are unoptimised and the manager has callers on
/// the stack.
const STACK: usize = 1 << 20;

/// Runs on a small stack and returns the duration, too.
fn on_a_small_stack(
    text: String,
    run: fn(&str) -> Result<Value, EvalError>,
) -> (Result<Value, EvalError>, Duration) {
    let thread = std::thread::Builder::new().stack_size(STACK).spawn(move || {
        let start = Instant::now();
        let result = run(&text);
        (result, start.elapsed())
    });
    thread.unwrap().join().unwrap()
}

/// A bound that unoptimised code meets on a loaded machine. Optimised and on an idle machine, each case takes
/// less than 60 ms.
const SLOW: Duration = Duration::from_secs(10);

fn defused(text: String, run: fn(&str) -> Result<Value, EvalError>) {
    let shown: String = text.chars().take(80).collect();
    let (result, took) = on_a_small_stack(text, run);
    let (kind, message) = problem(result);
    assert!(
        kind == "limit"
            || message.contains("more than")
            || message.contains("in one another")
            || message.contains("limit"),
        "{shown}: {message}"
    );
    assert!(took < SLOW, "{shown}: {took:?}");
    println!("{:>6} ms  {shown}", took.as_millis());
}

#[test]
fn expensive_expressions_are_refused() {
    let long = |part: &str, times: usize| part.repeat(times);
    for text in [
        "'x' | indent(10 ** 14)".to_owned(),
        "'x\n' | indent(1000000)".to_owned(),
        "'%999999999d' | format(1)".to_owned(),
        "'%.999999999f' | format(1)".to_owned(),
        "'%99999999999999999999s' | format(1)".to_owned(),
        "[1] * 10 ** 11".to_owned(),
        "[[1]] * 18446744073709551615".to_owned(),
        "'abc' * 10 ** 11".to_owned(),
        "10 ** 11 * 'abc'".to_owned(),
        "([1] * 10 ** 11) | sum".to_owned(),
        "spec | to_json(indent=10 ** 17)".to_owned(),
        "spec | tojson(10 ** 17)".to_owned(),
        "range(10 ** 12)".to_owned(),
        "range(0, 18446744073709551615)".to_owned(),
        "range(10 ** 12) | list | length".to_owned(),
        "[1] | batch(10 ** 12, 0)".to_owned(),
        "[1] | slice(10 ** 12, 0)".to_owned(),
        "('x' * 4000) | replace('x', 'y' * 4000) | replace('y', 'z' * 4000)".to_owned(),
        "(((['x' * 1000] * 1000) | join('y' * 1000)) * 3)".to_owned()
            + &long(" | replace('x', 'yyyyyyyyyy')", 9),
        "(range(2000) | join('x' * 2000)) | list | join('x' * 2000)".to_owned(),
        "('x' * 16000000) ~ ('x' * 16000000)".to_owned(),
        "([['x' * 100000] * 100] * 100) | to_json".to_owned(),
        "range(100000) | map('string') | sort | unique | list".to_owned(),
        "1".to_owned() + &long(" + 1", 8_000),
        "'a'".to_owned() + &long(" ~ 'a'", 8_000),
        "1".to_owned() + &long(" and 1", 8_000),
        "1".to_owned() + &long(" < 1", 8_000),
        "1".to_owned() + &long(" ** 1", 8_000),
        "a".to_owned() + &long(".a", 8_000),
        "a".to_owned() + &long("[0]", 8_000),
        "a".to_owned() + &long("()", 8_000),
        "a".to_owned() + &long(" | list", 8_000),
        "a".to_owned() + &long(" is defined", 8_000),
        "1".to_owned() + &long(" if 1 else 1", 8_000),
        "1".to_owned() + &long(" if 1", 8_000),
        long("not ", 8_000) + "1",
        long("-", 8_000) + "1",
        long("(", 8_000) + "1" + &long(")", 8_000),
        long("[", 8_000) + &long("]", 8_000),
        long("{'a':", 8_000) + "1" + &long("}", 8_000),
        long("f(", 8_000) + &long(")", 8_000),
        long("[(", 100) + "1" + &long(")]", 100),
        "x ".to_owned() + &long("y ", 100_000),
    ] {
        defused(text, eval);
    }
}

#[test]
fn expensive_templates_are_refused() {
    let long = |part: &str, times: usize| part.repeat(times);
    for text in [
        "{% set ns = namespace(s='x') %}{% for i in range(64) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}a: {{ ns.s }}".to_owned(),
        "{% set ns = namespace(l=[1]) %}{% for i in range(64) %}{% set ns.l = ns.l + ns.l %}{% endfor %}a: {{ ns.l }}".to_owned(),
        // These are small in memory, but endless as JSON or in a comparison.
        "{% set ns = namespace(l=[1]) %}{% for i in range(64) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}a: {{ ns.l }}".to_owned(),
        "{% set a = namespace(l=[1], m=[1]) %}{% for i in range(64) %}{% set a.l = [a.l, a.l] %}{% set a.m = [a.m, a.m] %}{% endfor %}a: {{ a.l == a.m }}".to_owned(),
        "{% set a = namespace(l=[1], m=[1]) %}{% for i in range(64) %}{% set a.l = [a.l, a.l] %}{% set a.m = [a.m, a.m] %}{% endfor %}a: {{ [a.l, a.m] | sort | length }}".to_owned(),
        "{% set ns = namespace(l=[1]) %}{% for i in range(64) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}a: {{ ns.l | pprint }}".to_owned(),
        // These values are endlessly deep.
        "{% set ns = namespace(l=1) %}{% for i in range(100000) %}{% set ns.l = [ns.l] %}{% endfor %}a: 1".to_owned(),
        "{% set ns = namespace(l=1) %}{% for i in range(100000) %}{% set ns.l = {'a': ns.l} %}{% endfor %}a: 1".to_owned(),
        "{% macro m() %}{{ m() }}{% endmacro %}a: {{ m() }}".to_owned(),
        "{% macro m(x) %}{{ m([x]) ~ m(x) }}{% endmacro %}a: {{ m(1) }}".to_owned(),
        "{% macro m(n) %}{{ m(n - 1) ~ m(n - 1) if n > 0 else 'x' }}{% endmacro %}a: {{ m(20) }}".to_owned(),
        "{% macro m(n) %}{% if n %}{% for i in [1] %}{% if n %}{{ (((m(n - 1) | upper) ~ '') | lower) ~ '' }}{% endif %}{% endfor %}{% endif %}{% endmacro %}a: {{ m(1000) }}".to_owned(),
        "{% for a in range(1000) %}{% for b in range(1000) %}{% for c in range(1000) %}{% endfor %}{% endfor %}{% endfor %}".to_owned(),
        "{% for a in range(1000) %}{% for b in range(1000) %}xxxxxxxxxxxxxxxxxxxxxxxxx{% endfor %}{% endfor %}".to_owned(),
        "{% for a in range(20000) %}\n- {{ 'x' * 1000 }}\n{% endfor %}".to_owned(),
        "{% for a in range(5000) %}\n- {{ spec }}\n{% endfor %}".to_owned() + &long("# x\n", 10),
        "{% set x %}{% for a in range(100) %}xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx{% endfor %}{% endset %}{% set y %}{% for a in range(100) %}{{ x }}{% endfor %}{% endset %}{% for a in range(1000) %}{{ y }}{% endfor %}".to_owned(),
        long("{% if a %}", 8_000) + &long("{% endif %}", 8_000),
        long("{% for a in b %}", 8_000) + &long("{% endfor %}", 8_000),
        long("{% with %}", 8_000) + &long("{% endwith %}", 8_000),
        long("{% set x %}", 8_000) + &long("{% endset %}", 8_000),
        long("{% filter upper %}", 8_000) + &long("{% endfilter %}", 8_000),
        long("{% macro a() %}", 8_000) + &long("{% endmacro %}", 8_000),
        "{% if a %}".to_owned() + &long("{% elif a %}", 8_000) + "{% endif %}",
        "a: ".to_owned() + &long("[", 8_000),
        "a: ".to_owned() + &long("{a: ", 8_000),
        (0..200).map(|n| " ".repeat(n) + "a:\n").collect(),
        "a: ".to_owned() + &"x".repeat(300 << 10),
        "a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1]\n".to_owned()
            + &[('b', 'a'), ('c', 'b'), ('d', 'c'), ('e', 'd'), ('f', 'e'), ('g', 'f')]
                .map(|(new, old)| format!("{new}: &{new} [{}]\n", vec![format!("*{old}"); 9].join(", ")))
                .concat(),
    ] {
        defused(text, render);
    }
}

#[test]
fn allowed_nesting_fits_a_small_stack() {
    let long = |part: &str, times: usize| part.repeat(times);
    for text in [
        "1".to_owned() + &long(" + 1", 150),
        "a".to_owned() + &long(".a", 150) + " is defined",
        "'a'".to_owned() + &long(" | upper", 150),
        long("not ", 150) + "1",
        long("(", 30) + "1" + &long(")", 30),
        long("[", 30) + &long("]", 30),
        "1".to_owned() + &long(" if 1 else 1", 60),
    ] {
        let shown: String = text.chars().take(40).collect();
        let (result, _) = on_a_small_stack(text, eval);
        result.unwrap_or_else(|error| panic!("{shown}: {error}"));
    }
    let text = "{% macro m(n) %}{% if n %}{{ m(n - 1) }}x{% endif %}{% endmacro %}a: {{ m(12) }}";
    let (result, _) = on_a_small_stack(text.to_owned(), render);
    assert_eq!(result.unwrap(), json!({"a": "xxxxxxxxxxxx"}));
    let text = long("{% if spec.on %}", 39) + "a: 1" + &long("{% endif %}", 39);
    let (result, _) = on_a_small_stack(text, render);
    assert_eq!(result.unwrap(), json!({"a": 1}));
}

#[test]
fn every_read_of_a_large_object_is_charged() {
    let big = json!({"data": {"blob": "x".repeat(500_000), "list": vec![1; 50_000]}});
    let scope = usual().with("self", Var::Object(live(big, true, true)));
    for text in [
        "{% for i in range(10000) %}\n# {{ self.data }}\n{% endfor %}",
        "{% for i in range(10000) %}\n# {{ self['data'] }}\n{% endfor %}",
        "{% for i in range(10000) %}\n# {{ [self] | map(attribute='data') }}\n{% endfor %}",
        "{% for i in range(10000) %}\n# {{ self.data.blob ~ 'x' }}\n{% endfor %}",
        "{% for i in range(10000) %}\n# {{ self | to_json }}\n{% endfor %}",
        "{% for i in range(10000) %}\n# {{ self.data.list | to_json | from_json }}\n{% endfor %}",
        "a: {{ self.data.list | to_json(indent=8) | indent(1000) }}",
    ] {
        let start = Instant::now();
        let (kind, message) = problem(render_in(text, &scope));
        assert_eq!(kind, "limit", "{text}: {message}");
        assert!(start.elapsed() < SLOW, "{text}");
        println!("{:>6} ms  {text}", start.elapsed().as_millis());
    }
}

#[test]
fn reading_one_field_of_many_objects_is_cheap() {
    let object = json!({
        "metadata": {"name": "x", "managedFields": vec![json!({"f:metadata": {"f:labels": {"f:a": {}}}}); 100]},
        "spec": {"containers": [{"image": "i"}]},
    });
    let members = (0..1_000).map(|i| (json!(i), live(object.clone(), true, true))).collect();
    let scope = usual().with("m", Var::Map(members));
    for text in [
        "m.values() | map(attribute='metadata.name') | list | length",
        "m.values() | select('ready') | selectattr('metadata.name', 'eq', 'x') | list | length",
        "m.values() | sort(attribute='spec.containers.0.image') | list | length",
        "m.values() | selectattr('metadata.nope', 'undefined') | list | length",
    ] {
        assert_eq!(
            eval_in(text, &scope).unwrap_or_else(|error| panic!("{text}: {error}")),
            json!(1_000),
            "{text}"
        );
    }
    let text = "names: {% for x in m.values() %}{{ x.metadata.name }}{% endfor %}";
    assert_eq!(render_in(text, &scope).unwrap(), json!({"names": "x".repeat(1_000)}));
}

#[test]
fn number_of_paths_per_variable_is_limited() {
    let many = "{% set x = x.a or x.b or x %}".repeat(2_000) + "{{ x }}";
    let branches = "{% if a %}{% set x = x.a or x.b %}{% endif %}".repeat(2_000) + "{{ x }}";
    let long = "{% set x = x.a %}".repeat(10_000) + "{{ x }}";
    for text in [many, branches, long] {
        let start = Instant::now();
        let (engine, errors) = compile(&[("t.yaml", &text)]);
        assert!(errors.is_empty(), "{errors:?}");
        assert!(engine.template("templates/t.yaml").unwrap().reads().paths.len() < 20_000);
        assert!(start.elapsed() < SLOW, "{:?}", start.elapsed());
        println!("{:>6} ms  {}", start.elapsed().as_millis(), &text[..40]);
    }
}

#[test]
fn deep_chains_of_lets_are_an_error() {
    let entries = (0..500).map(|n| (format!("x{n}"), format!("{{{{ let.x{} }}}}", n + 1)));
    let engine = Engine::empty();
    let lets = Lets::new(entries.map(|(name, text)| (name, engine.text(&text, &at(&text)).unwrap())));
    assert_eq!(lets.cycle(), None);
    let scope = usual().with("let", Var::Lets(Arc::new(lets)));
    let thread =
        std::thread::Builder::new().stack_size(STACK).spawn(move || problem(eval_in("let.x0", &scope)));
    assert_eq!(thread.unwrap().join().unwrap().0, "limit");
}

/// The text consists of pseudo-random bytes from a fixed seed.
#[test]
fn arbitrary_text_does_not_panic() {
    let words = [
        "{{",
        "}}",
        "{%",
        "%}",
        "{#",
        "#}",
        "-",
        "+",
        " ",
        "\n",
        "\r",
        "a",
        "spec",
        ".",
        "[",
        "]",
        "(",
        ")",
        "{",
        "}",
        "|",
        "~",
        "'",
        "\"",
        "\\",
        "if",
        "else",
        "elif",
        "for",
        "in",
        "endfor",
        "endif",
        "set",
        "endset",
        "macro",
        "endmacro",
        "raw",
        "endraw",
        "is",
        "not",
        "0x",
        "1e",
        "1",
        "_",
        "é",
        "\u{10FFFF}",
        "\u{0}",
        "=",
        "==",
        "<",
        "**",
        "*",
        "//",
        "%",
        ",",
        ":",
        "filter",
        "upper",
        "partial",
        "omit",
        "loop",
        "&",
        "---",
        "<<",
        "- ",
        "0b",
        "9999999999999999999999999999999999999999999",
    ];
    let mut random = fastrand::Rng::with_seed(7);
    for _ in 0..3_000 {
        let text: String = (0..random.usize(1..24)).map(|_| words[random.usize(0..words.len())]).collect();
        let _ = render(&text);
        let _ = eval(&text);
        let _ = render(&format!("a: {{{{ {text} }}}}"));
        let _ = render(&format!("{{% {text} %}}"));
    }
}
