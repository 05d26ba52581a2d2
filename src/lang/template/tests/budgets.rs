//! Budgets that limit many evaluations together.

use super::*;

fn within(totals: Totals) -> (Arc<Budget>, Scope) {
    let budget = Arc::new(Budget::new(totals));
    let mut scope = Scope::within(Arc::clone(&budget));
    scope.set("n", Var::Json(json!(1_000)));
    (budget, scope)
}

const NONE: Totals = Totals { fuel: u64::MAX, memory: usize::MAX, output: usize::MAX, bodies: usize::MAX };

/// Evaluates a text repeatedly until the budget is exceeded. Returns the number of successes and the exceeded
/// limit.
fn repeat(text: &str, totals: Totals) -> (usize, Exceeded) {
    let (budget, scope) = within(totals);
    for count in 0..10_000 {
        budget.about(&format!("number {count}"));
        // Each evaluation has a derived scope, as members of a forEach do.
        let result = eval_in(text, &scope.with("i", Var::Json(json!(count))));
        if let Some(exceeded) = budget.exceeded() {
            assert_eq!(problem(result).0, "limit");
            return (count, exceeded);
        }
        result.unwrap();
    }
    panic!("{text} never ends");
}

#[test]
fn evaluations_share_a_budget() {
    let cases = [
        ("range(n) | sum", Totals { fuel: 20_000, ..NONE }, "20000 steps for all"),
        ("'x' * n", Totals { memory: 1 << 20, ..NONE }, "1 MiB for all values"),
        ("'x' * n", Totals { output: 1 << 20, ..NONE }, "1 MiB together"),
    ];
    for (text, totals, part) in cases {
        let (count, exceeded) = repeat(text, totals);
        assert!((5..1_200).contains(&count), "{text}: {count}");
        assert_eq!(exceeded.subject, format!("number {count}"));
        assert!(exceeded.is_total && exceeded.error.message.contains(part), "{}", exceeded.error.message);
    }
}

#[test]
fn nothing_is_evaluated_after_a_limit() {
    let (budget, scope) = within(Totals::FULL);
    budget.about("first");
    assert_eq!(problem(eval_in("range(10 ** 9)", &scope)).0, "limit");
    budget.about("second");
    let (kind, message) = problem(eval_in("1 + 1", &scope));
    assert_eq!((kind, message.contains("10 ** 9")), ("limit", false), "{message}");
    let exceeded = budget.exceeded().unwrap();
    assert_eq!((exceeded.subject.as_str(), exceeded.is_total), ("first", false));
    // Errors other than limits end only their own evaluation.
    let (budget, scope) = within(Totals::FULL);
    assert_eq!(problem(eval_in("nothing + 1", &scope)).0, "undefined");
    assert_eq!(eval_in("1 + 1", &scope).unwrap(), json!(2));
    assert!(budget.exceeded().is_none() && budget.used().fits(Totals::SMALL));
}

#[test]
fn lets_and_partials_are_charged_too() {
    let files =
        [("t.yaml", "a: {{ partial('p.yaml') }}"), ("p.yaml", "{% for i in range(n) %}\n- x\n{% endfor %}")];
    let engine = engine(&files);
    let (budget, scope) = within(Totals { fuel: 50_000, ..NONE });
    let template = engine.template("templates/t.yaml").unwrap();
    let count = (0..1_000).take_while(|_| engine.render(template, &scope).is_ok()).count();
    assert!((2..100).contains(&count), "{count}");
    assert!(budget.exceeded().unwrap().is_total);
}

#[test]
fn values_of_instances_and_live_objects_are_charged() {
    let budget = Budget::new(Totals { memory: 100_000, ..NONE });
    budget.about("the instance");
    assert!(budget.charge(&json!({"spec": {"list": [1, 2, 3]}})));
    assert!(!budget.charge(&Value::Array(vec![json!(1); 2_000])));
    assert_eq!(budget.exceeded().unwrap().subject, "the instance");
}

#[test]
fn merged_maps_are_charged_each() {
    let big: serde_json::Map<String, Value> =
        (0..30_000).map(|number| (format!("k{number}"), json!({"a": 1}))).collect();
    let scope = scope(&json!({"spec": {"big": big}}));
    let (kind, message) = problem(eval_in("spec.big | merge(spec.big) | length", &scope));
    assert!(kind == "limit" && message.contains("bytes"), "{kind}: {message}");
}
