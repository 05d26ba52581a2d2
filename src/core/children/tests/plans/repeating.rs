//! Plans whose reason stays after they have run: they let everything else go first, and leave little behind.

use super::*;

const RESOURCE: &str = "
children:
  - {id: c, template: templates/c.yaml}
  - {id: m, template: templates/m.yaml, onLoss: vain}
plans:
  deploy:
    steps: [{name: all, apply: [c, m]}]
  update:
    trigger: {changed: [spec.text]}
    steps: [{name: all, apply: [c, m]}]
  vain:
    affectsReady: false
    steps: [{name: note, record: {lost: '1'}}]
";

fn world(more: &str) -> World {
    let package = package(
        &format!("{RESOURCE}{more}"),
        &[("c", config("{{ name }}-c")), ("m", config("{{ name }}-m"))],
    );
    let mut world = World::with_runs(package, &json!({"text": "x"}));
    world.settle();
    world
}

/// The condition `Repeating`: its reason and message.
fn repeating(world: &World) -> Option<(String, String)> {
    let status = world.decide().status.expect("a status");
    let patch = crate::children::status::patch(&json!({}), &status, "now").expect("a patch");
    let found = crate::facts::condition(&json!({"status": patch}), "Repeating").cloned()?;
    let text = |field: &str| found[field].as_str().unwrap_or_default().to_owned();
    Some((text("reason"), text("message")))
}

/// How often its plan has run in a row.
fn times(world: &World) -> u32 {
    let (_, message) = repeating(world).expect("it repeats");
    let text = message.split("has run ").nth(1).unwrap();
    text.split(' ').next().unwrap().parse().unwrap_or(1)
}

fn runs_of(world: &World, plan: &str) -> usize {
    world.phases().iter().filter(|(name, _)| name == plan).count()
}

fn memory_size(world: &World) -> usize {
    world.runs.state.as_ref().unwrap().to_string().len()
}

/// A plan with a condition that is always true.
fn always(counts: &str, rest: &str) -> String {
    format!("  again:\n    trigger: {{condition: 'true', {counts}}}\n{rest}")
}

#[test]
fn a_condition_that_is_always_true_starves_nothing() {
    let changes = "    steps: [{name: drop, delete: [m]}, {name: back, apply: [m]}]\n";
    let changes_nothing = "    steps: [{name: note, record: {seen: '1'}}]\n    exclusive: false\n";
    for rest in [changes, changes_nothing] {
        let mut world = world(&always("for: 0s", rest));
        world.edit(json!({"text": "x", "alarm": true}));
        world.settle();
        let (reason, message) = repeating(&world).expect("it repeats");
        assert_eq!(reason, "PlanRepeats");
        let says =
            ["plan again has run ", ", and its condition holds still, or again: the next run begins at 20"];
        assert!(says.iter().all(|part| message.contains(part)), "{message}");
        assert_eq!(world.decide().verdict, Verdict::Ready { children: 2 });
        for count in 2..60 {
            let before = times(&world);
            world.rest();
            assert_eq!(world.settle(), Verdict::Ready { children: 2 });
            // Each write of this world takes a second, in which another run may become due.
            let now = times(&world);
            assert!(now > before && now < before + 3, "{before} {now}");
            // An edit is rolled out at once.
            if count % 5 == 0 {
                world.edit(json!({"text": format!("edit {count}"), "alarm": true}));
                assert_eq!(world.settle(), Verdict::Ready { children: 2 });
                assert_eq!(world.value("a-c", "text"), format!("edit {count}"));
            }
        }
        let superseded = world.phases().iter().filter(|(_, phase)| *phase == Phase::Superseded).count();
        assert_eq!(superseded, 0);
        assert!(world.runs.runs.len() <= 31, "{}", world.runs.runs.len());
        assert!(memory_size(&world) < 12_000, "{}", memory_size(&world));
    }
}

/// The time for which a condition has to hold, or does not count, does not hide that it stays.
#[test]
fn a_condition_that_counts_late_runs_less_and_less_often() {
    for counts in ["for: 45s", "for: 0s, cooldown: 45s"] {
        let mut world = world(&always(counts, "    steps: [{name: note, record: {seen: '1'}}]\n"));
        let began = world.now;
        for _ in 0..40 {
            world.rest();
            world.settle();
        }
        let passed = world.now.saturating_sub(began);
        assert!(passed > Duration::from_secs(2 * 3600), "{counts}: {passed:?}");
        assert!(times(&world) > 8, "{counts}: {:?}", repeating(&world));
    }
}

#[test]
fn an_instance_is_not_ready_while_a_lost_child_is_away() {
    let mut world = world("");
    world.remove("ConfigMap/a-m");
    for count in 1..10 {
        for _ in 0..50 {
            let decision = world.decide();
            assert!(!matches!(decision.verdict, Verdict::Ready { .. }), "{:?}", decision.verdict);
            if decision.actions.is_empty() {
                break;
            }
            world.carry_out(decision.actions, decision.target_changes);
        }
        assert_eq!(runs_of(&world, "vain"), count);
        let Verdict::Reconciling { reason, message } = world.decide().verdict else { panic!() };
        assert_eq!(reason, "ChildLost");
        assert!(message.contains("m is lost; the plan vain restores it"), "{message}");
        assert!(repeating(&world).unwrap().1.contains("a child is lost still, or again"));
        world.rest();
    }
    // The other child is still maintained, and edits are rolled out.
    world.edit(json!({"text": "y"}));
    world.settle();
    assert_eq!(world.value("a-c", "text"), "y");
}

#[test]
fn a_memory_does_not_grow_with_the_runs_of_a_plan() {
    let more = "  drop:\n    steps:\n      - {name: drop, delete: [m]}\n      - {name: stop, when: spec.stop, fail: {message: 'no'}}\n      - {name: back, when: spec.back, apply: [m]}\n";
    let mut world = world(more);
    let mut sizes = Vec::new();
    for round in 0..60 {
        world.edit(json!({"text": "x", "stop": round % 3 == 0, "back": round % 2 == 0}));
        request(&mut world, &format!("mine-{round}"), "drop");
        world.settle();
        sizes.push(memory_size(&world));
    }
    assert!(sizes[59] < sizes[20] + 500, "{sizes:?}");
    // What is decided from it is as before: the last run left the child away, and said nothing failed.
    assert_eq!(world.decide().verdict, Verdict::Ready { children: 2 });
}
