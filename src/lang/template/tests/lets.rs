use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

fn lets(engine: &Engine, entries: &[(&str, &str)]) -> Arc<Lets> {
    Arc::new(Lets::new(
        entries.iter().map(|(name, text)| ((*name).to_owned(), engine.text(text, &at(text)).unwrap())),
    ))
}

fn with(entries: &[(&str, &str)]) -> Scope {
    usual().with("let", Var::Lets(lets(&Engine::empty(), entries)))
}

#[test]
fn lets_are_evaluated_in_the_scope_of_their_reader() {
    let scope = with(&[
        ("image", "repo:v{{ spec.version }}"),
        ("twice", "{{ let.image }}-{{ let.image }}"),
        ("size", "{{ spec.size }}"),
        ("nope", "{{ spec.nope }}"),
        ("left", "{{ omit }}"),
        ("item", "{{ i }}"),
        ("unknown", "{{ refs.tls.x }}"),
        ("bad", "{{ 1 / 0 }}"),
    ])
    .with("refs", Var::Vars([("tls".to_owned(), Var::Unknown("why".to_owned()))].into()));
    for (text, expected) in [
        ("let.image", json!("repo:v3.5.1")),
        ("let.twice", json!("repo:v3.5.1-repo:v3.5.1")),
        ("let.size + 1", json!(4)),
        ("let['size']", json!(3)),
        ("let.nope | default('d')", json!("d")),
        ("let.nope is defined", json!(false)),
        ("let.unknown is known", json!(false)),
        ("[let.left, 1]", json!([1])),
    ] {
        assert_eq!(
            eval_in(text, &scope).unwrap_or_else(|error| panic!("{text}: {error}")),
            expected,
            "{text}"
        );
    }
    assert_eq!(
        problem(eval_in("let.unknown", &scope)),
        ("unknown", "`refs.tls.x` is unknown: why".to_owned())
    );
    assert!(problem(eval_in("let.sise", &scope)).1.contains("did you mean `size`?"));
    assert!(problem(eval_in("let.bad", &scope)).1.contains("operator.yaml:1:4: division by zero"));
    assert!(problem(eval_in("let", &scope)).1.contains("the set of all lets"));
    // A let sees the variable of the scope, not that of the loop.
    let text = "{% for i in [1] %}\na: {{ let.item | default('none') }}\n{% endfor %}";
    assert_eq!(render_in(text, &scope).unwrap(), json!({"a": "none"}));
    assert_eq!(eval_in("let.item", &scope.with("i", Var::Json(json!(5)))).unwrap(), json!(5));
    assert_eq!(render_in("a: {{ let.left }}\nb: 1", &scope).unwrap(), json!({"b": 1}));
}

#[test]
fn cycles_of_lets_are_named() {
    let entries = [
        ("a", "{{ let.b }}"),
        ("b", "x{{ let.c }}"),
        ("c", "{{ let.a if spec.on else 1 }}"),
        ("d", "{{ let.d }}"),
    ];
    let (kind, message) = problem(eval_in("let.a", &with(&entries)));
    assert_eq!(kind, "failed");
    assert!(message.contains("lets form a cycle: a -> b -> c -> a"), "{message}");
    assert!(problem(eval_in("let.d", &with(&entries))).1.contains("cycle: d -> d"));
    let names = |cycle: &[&str]| Some(cycle.iter().map(ToString::to_string).collect::<Vec<_>>());
    assert_eq!(lets(&Engine::empty(), &entries).cycle(), names(&["a", "b", "c", "a"]));
    assert_eq!(lets(&Engine::empty(), &entries[..2]).cycle(), None);
    assert_eq!(lets(&Engine::empty(), &entries[3..]).cycle(), names(&["d", "d"]));
}

#[test]
fn lets_are_evaluated_once_in_the_outermost_possible_scope() {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let count = Function::new(move |args| {
        counted.fetch_add(1, Ordering::Relaxed);
        Ok(args.first().cloned().unwrap_or(Value::Null))
    });
    let scope = with(&[
        ("shared", "{{ f.count(spec.size) }}"),
        ("own", "{{ f.count(i) }}"),
        ("both", "{{ let.shared ~ let.own }}"),
    ])
    .with("f", Var::Vars([("count".to_owned(), Var::Function(count))].into()));
    for i in 0..4 {
        let member = scope.with("i", Var::Json(json!(i)));
        assert_eq!(
            eval_in("[let.shared, let.shared, let.both, let.both]", &member).unwrap()[3],
            json!(format!("3{i}"))
        );
    }
    // `shared` is evaluated once, `own` once for each member.
    assert_eq!(calls.load(Ordering::Relaxed), 5);
    // With another value of a variable that it reads, a let is evaluated again.
    let other = scope.with("spec", Var::Json(json!({"size": 9})));
    assert_eq!(eval_in("let.shared", &other).unwrap(), json!(9));
    assert_eq!(eval_in("let.shared", &scope).unwrap(), json!(3));
    assert_eq!(calls.load(Ordering::Relaxed), 6);
    let mut changed = scope.clone();
    changed.set("spec", Var::Json(json!({"size": 1})));
    assert_eq!(eval_in("let.shared", &changed).unwrap(), json!(1));
    assert_eq!(eval_in("let.shared", &scope).unwrap(), json!(3));
}
