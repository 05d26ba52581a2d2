use super::*;

#[test]
fn unsupported_syntax_is_reported_at_compile_time() {
    for (text, part) in [
        (
            "a: {{ spec.size | uper }}",
            "templates/t.yaml:1:19: there is no filter `uper`; did you mean `upper`?",
        ),
        ("a: {{ spec.size is defnied }}", "there is no test `defnied`; did you mean `defined`?"),
        ("a: {{ rnage(3) }}", "there is no function `rnage`; did you mean `range`?"),
        ("a: {{ upper('x') }}", "it is a filter: `value | upper`"),
        ("a: {{ x | map('uper') }}", "there is no filter `uper`"),
        ("a: {{ x | select('raedy') }}", "did you mean `ready`?"),
        ("a: {{ x | selectattr('y', 'defnied') }}", "did you mean `defined`?"),
        ("a: {{ x | join(sep=',') }}", "`join` has no argument `sep`; it takes d, attribute"),
        ("a: {{ x | sort(revers=true) }}", "did you mean `reverse`?"),
        ("a: {{ x | join(1, 2, 3) }}", "`join` takes at most 2 arguments"),
        ("a: {{ x | replace('a') }}", "`replace` needs the argument `new`"),
        ("a: {{ x | join(',', d=';') }}", "gets an argument twice"),
        ("a: {{ x | safe }}", "`safe` is not supported"),
        ("a: {{ x | toYaml }}", "inserts a value of any type"),
        ("a: {{ now() }}", "the same input must have the same result"),
        ("a: {{ x | random }}", "the same input must have the same result"),
        ("a: {{ debug() }}", "would show secrets"),
        ("a: {{ f(*x) }}", "there is no function `f`"),
        ("a: {{ range(*x) }}", "not supported"),
        ("a: {{ partial(x) }}", "takes the name of a template as a string"),
        ("a: {{ partial('nope.yaml') }}", "there is no template `templates/nope.yaml`"),
        ("a: {{ x[0](1) }}", "this cannot be called"),
        ("a: {{ loop.index }}", "`loop` is outside a loop"),
        ("a: {{ 'x' is defined if y }}", "put the test in parentheses"),
        ("{% include 'x.yaml' %}", "`{% include %}` is not supported; templates are reused by value"),
        ("{% import 'x.yaml' as x %}", "`{% import %}` is not supported"),
        ("{% from 'x.yaml' import x %}", "`{% from ... import %}` is not supported"),
        ("{% extends 'x.yaml' %}", "`{% extends %}` is not supported"),
        ("{% block x %}{% endblock %}", "`{% block %}` is not supported"),
        ("{% autoescape true %}{% endautoescape %}", "not supported"),
        ("{% macro m() %}{% endmacro %}{% call m() %}x{% endcall %}", "`{% call %}` is not supported"),
        ("{% for x in y recursive %}{% endfor %}", "recursive loops are not supported"),
        ("{% if x %}{% macro m() %}{% endmacro %}{% endif %}", "at the top level of the file"),
        ("{% macro m() %}{% endmacro %}{% macro m() %}{% endmacro %}", "two macros `m`"),
        ("{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}", "`m` takes at most 1 arguments; it takes a"),
        ("{% macro m(a) %}{% endmacro %}{{ m }}", "can only be called"),
        ("{% set omit = 1 %}", "`omit` cannot be set"),
        ("{% fro x in y %}", "unknown statement fro; did you mean `for`?"),
        ("a: 1\nb: {{ 1 + }}", "templates/t.yaml:2:1: unexpected"),
        ("a: {{ 99999999999999999999 }}", "does not fit 64 bits"),
        ("a: {{ 'x", "unexpected end of string"),
        ("{% if x %}", "unexpected end"),
        ("a: [1\nb: 2\n", "templates/t.yaml:"),
        ("a: 1\n---\nb: 1\n", "contains several documents"),
        ("{% set x = ns.y.z %}{% set x.y.z = 1 %}", "only fields of a namespace"),
    ] {
        let (_, errors) = compile(&[("t.yaml", text)]);
        let shown = errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
        assert!(shown.contains(part), "{text}: {shown}");
    }
}

#[test]
fn all_mistakes_are_reported() {
    let (engine, errors) = compile(&[
        ("a.yaml", "a: {{ x | uper }}\nb: {{ y | lowr }}\n{{ rnage(1) }}: 1"),
        ("b.yaml", "a: {{ 1 + }}"),
        ("c.yaml", "a: 1"),
    ]);
    assert_eq!(errors.len(), 4, "{errors:?}");
    assert_eq!(engine.paths().collect::<Vec<_>>(), ["templates/c.yaml"]);
}

#[test]
fn mistakes_in_expressions_are_explained() {
    let engine = Engine::empty();
    for (text, part) in [
        ("", "the expression is empty"),
        ("  ", "the expression is empty"),
        ("{{ spec.size }}", "expressions are written without braces here"),
        ("spec.size ==", "unexpected end of input"),
        ("spec.size = 3", "unexpected input after expression"),
        ("a b", "unexpected input"),
        ("spec.x | nope", "there is no filter `nope`"),
    ] {
        let error = engine.expression(text, &at(text)).unwrap_err();
        assert!(error.to_string().contains(part), "{text}: {error}");
        assert!(error.location.is_some(), "{text}");
    }
}

#[test]
fn errors_have_positions_in_operator_yaml() {
    let source = Source::new(
        "operator.yaml",
        "when: spec.sise > 3\nname: 'it''s {{ spec.nme }}'\nurl: \"{{ spec.url }}\"\n",
    );
    let engine = Engine::empty();
    let scope = usual();
    let when = Location::new(&source, Span::new(6, 19));
    let expr = engine.expression("spec.sise > 3", &when).unwrap();
    let (kind, message) = problem(engine.eval(&expr, &scope));
    assert_eq!(
        (kind, message.as_str()),
        ("not yet", "operator.yaml:1:7: `spec.sise` is undefined and has no order; did you mean `size`?")
    );
    // A text that YAML writes differently, here with a doubled quote, has the position of the whole string.
    let name = Location::new(&source, Span::new(26, 48));
    let text = engine.text("it's {{ spec.nme }}", &name).unwrap();
    let (_, message) = problem(engine.eval_text(&text, &scope));
    assert!(message.starts_with("operator.yaml:2:7: the value is undefined"), "{message}");
    let start = source.text.find("\"{{ spec.url").unwrap();
    let url = Location::new(&source, Span::new(start, start + 16));
    let text = engine.text("{{ spec.url }}", &url).unwrap();
    let (_, message) = problem(engine.eval_text(&text, &scope));
    assert!(message.starts_with("operator.yaml:3:10: `spec.url` is undefined"), "{message}");
}

#[test]
fn undefined_variables_suggest_near_names() {
    for (text, part) in [
        ("spce.size", "there is no variable `spce`; did you mean `spec`?"),
        ("spec.sise", "did you mean `size`?"),
        ("spec.map.a.d.e", "`spec.map.a.d.e` is undefined"),
        ("zzzzzz", "there is no variable `zzzzzz`; there are name, namespace, spec"),
        ("spce.size + 1", "did you mean `spec`?"),
    ] {
        let (kind, message) = problem(eval(text));
        assert_eq!(kind, "undefined");
        assert!(message.contains(part), "{text}: {message}");
    }
    let (_, message) = problem(render("{% set image = 1 %}a: {{ imgae }}"));
    assert!(message.contains("did you mean `image`?"), "{message}");
    let (_, message) = problem(render("{% for item in spec.lst %}{% endfor %}"));
    assert!(
        message.contains("templates/t.yaml:1:16: `spec.lst` is undefined") && message.contains("`list`"),
        "{message}"
    );
}

/// No other name is suggested, because the name itself is right.
#[test]
fn missing_children_and_refs_are_named() {
    let nothing = || Var::Vars([("first".to_owned(), Var::Undefined)].into());
    let mut scope = usual();
    scope.set("children", nothing());
    scope.set("refs", nothing());
    for (text, part) in [
        ("children.first.data.stage", "the child `first` does not exist, or not yet"),
        ("children.fisrt.data.stage", "did you mean `first`?"),
        ("refs.first.data.stage", "`refs.first` has no object now"),
    ] {
        let (_, message) = problem(eval_in(text, &scope));
        let suggested = message.contains("did you mean") == part.contains("did you mean");
        assert!(message.contains(part) && suggested, "{text}: {message}");
    }
}

#[test]
fn errors_in_partials_and_lets_have_their_position() {
    let engine =
        engine(&[("t.yaml", "a:\n  b: {{ partial('p.yaml') }}"), ("p.yaml", "x: 1\nz: {{ 1 / n }}")]);
    let template = engine.template("templates/t.yaml").unwrap();
    let (_, message) = problem(engine.render(template, &scope(&json!({"n": 0}))));
    assert_eq!(message, "templates/p.yaml:2:7: division by zero (z)");
}

#[test]
fn yaml_errors_have_their_position_in_the_template() {
    let long =
        "a: {{ spec.text }}{{ spec.text }}\nb: {{ spec.text }}\nc: [{{ spec.size }}\nd: {{ spec.size }}\n";
    let (_, errors) = compile(&[("t.yaml", long)]);
    let location = errors[0].location.as_ref().unwrap();
    let (line, _) = location.source.line_col(location.span.start);
    assert!((3..=5).contains(&line), "{}", errors[0]);
    assert!(!errors[0].to_string().contains('\u{10F7A1}'));
    let (_, message) = problem(render("{% if spec.on %}\na: {{ name }}\na: {{ name }}\n{% endif %}"));
    assert!(message.contains("templates/t.yaml:3:1:"), "{message}");
}
