//! What is written after the dry runs of a change.

use super::*;

fn in_a_namespace() -> World {
    let text = "children:\n  - {id: ns, template: templates/ns.yaml}\n  - {id: c, template: templates/c.yaml}\n  - {id: d, template: templates/d.yaml}\n";
    let templates = [
        ("ns", "apiVersion: v1\nkind: Namespace\nmetadata: {name: space}\n".to_owned()),
        ("c", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: in, namespace: space}\n".to_owned()),
        ("d", config("{{ name }}-d")),
    ];
    let mut world = World::new(package(text, &templates), &json!({}));
    world.untried = true;
    world
}

fn applied(actions: &[Action]) -> Vec<&str> {
    fn item(action: &Action) -> Option<&str> {
        let Action::Apply(apply) = action else { return None };
        Some(&apply.item)
    }
    actions.iter().filter_map(item).collect()
}

#[test]
fn item_refused_because_another_is_missing_is_written_after_it() {
    let world = in_a_namespace();
    let decision = world.decide();
    assert_eq!(applied(&decision.actions), ["ns", "c", "d"]);
    let (mut runs, missing) =
        (DryRuns::default(), refusal(404, "NotFound", "namespaces \"space\" not found"));
    for check in &decision.checks {
        let of_namespace = !check.depends_on.is_empty();
        assert_eq!(of_namespace, check.item == "c");
        let result = if of_namespace { DryRun::Refused(missing.clone()) } else { DryRun::Passed };
        assert_eq!(result.passes(check), (!of_namespace).then_some(true));
        assert!(runs.add(check, result).is_none(), "it says nothing yet");
    }
    assert_eq!(applied(&runs.permitted(decision.actions.clone())), ["ns", "d"]);
    // Where the other one is not applied now, the server itself says what is wrong.
    let rest = decision.actions.into_iter().filter(|a| applied(std::slice::from_ref(a)) != ["ns"]).collect();
    assert_eq!(applied(&runs.permitted(rest)), ["c", "d"]);
}

#[test]
fn refused_or_pending_dry_runs_hold_the_whole_change() {
    let decision = in_a_namespace().decide();
    let mut runs = DryRuns::default();
    runs.wait();
    assert!(runs.is_pending() && runs.permitted(decision.actions.clone()).is_empty());
    let outcome = runs.add(&decision.checks[0], DryRun::Refused(refusal(403, "Forbidden", "no rights")));
    assert!(matches!(outcome, Some(ActionOutcome::DryRunRefused(check, _)) if check.item == "ns"));
    assert!(!runs.is_pending() && runs.permitted(decision.actions).is_empty());
}
