//! The order of writes and the gates over targets, without a cluster.

use super::*;
use crate::children::model::{Difference, Drift};
use crate::children::write_order::{Gates, Permit, max_unavailable};

/// Two members that depend on `a`, two that depend on those key by key, and `last`, which depends on all of these.
fn chain() -> Arc<Package> {
    let members = |id: &str, on: &str| {
        format!(
            "  - {{id: {id}, template: templates/{id}.yaml, forEach: {{in: range(2), as: i, key: i}}, dependsOn: [{on}]}}\n"
        )
    };
    let children = format!(
        "children:\n  - {{id: a, template: templates/a.yaml}}\n{}{}  - {{id: last, template: templates/last.yaml, dependsOn: [p]}}\n",
        members("m", "a"),
        members("p", "m")
    );
    let templates = [("a", ""), ("m", "-{{ i }}"), ("p", "-{{ i }}"), ("last", "")];
    package(&children, &templates.map(|(id, key)| (id, config(&format!("{{{{ name }}}}-{id}{key}")))))
}

/// Sets items as applied and ready.
fn settle(target: &mut Target, names: &[&str]) {
    for item in target.items.iter_mut().filter(|item| names.contains(&&*item.name)) {
        (item.done, item.ready) = (true, Ok(()));
    }
}

#[test]
fn child_waits_for_its_dependencies_key_by_key() {
    let world = World::new(chain(), &json!({}));
    world.with(|ctx, mut target| {
        let waits = |target: &Target| -> Vec<String> {
            let graph = Graph::of(ctx.origins, target);
            let text = |item: &Item| match graph.awaited(item) {
                Some(Block::Dependency(other)) => format!("{} for {other}", item.name),
                Some(other) => panic!("{other:?}"),
                None => item.name.clone(),
            };
            target.items.iter().map(text).collect()
        };
        let missing = |name: &str, other: &str| format!("{name} for {other} (does not exist yet)");
        assert_eq!(
            waits(&target),
            [
                "a".to_owned(),
                missing("m[0]", "a"),
                missing("m[1]", "a"),
                missing("p[0]", "m[0]"),
                missing("p[1]", "m[1]"),
                missing("last", "p[0]"),
            ]
        );
        settle(&mut target, &["a", "m[1]", "p[0]"]);
        let p = missing("p[0]", "m[0]");
        assert_eq!(waits(&target), ["a", "m[0]", "m[1]", &p, "p[1]", &missing("last", "p[1]")]);
        // The members of a child that has no value are not known.
        target.open.insert(1, ChildError::TooMany);
        assert_eq!(waits(&target)[3..5], ["p[0] for m", "p[1] for m"]);
        let graph = Graph::of(ctx.origins, &target);
        assert_eq!(graph.awaited_by_child(0), None);
        assert_eq!(graph.awaited_by_child(2), Some(Block::Dependency("m".into())));
        assert_eq!(graph.awaited_by_pruning(), None);
    });
}

/// An order by which nothing may be created or changed.
struct Closed;

impl WriteOrder for Closed {
    fn awaited(&self, _: &Item) -> Option<Block> {
        Some(Block::Run("step 1".into()))
    }

    fn awaited_by_child(&self, _: usize) -> Option<Block> {
        None
    }
}

/// An order by which everything may be created or changed.
struct Open;

impl WriteOrder for Open {
    fn awaited(&self, _: &Item) -> Option<Block> {
        None
    }

    fn awaited_by_child(&self, _: usize) -> Option<Block> {
        None
    }
}

/// An order by which everything may be created or changed, and steps name all members.
struct Named;

impl WriteOrder for Named {
    fn awaited(&self, _: &Item) -> Option<Block> {
        None
    }

    fn awaited_by_child(&self, _: usize) -> Option<Block> {
        None
    }

    fn is_named(&self, _: &Item) -> bool {
        true
    }
}

const LOST: Difference = Difference::Drifted(Drift::FieldsLost);

#[test]
fn gates_say_what_blocks_each_write() {
    let mut world = World::settled(members("    maxUnavailable: 1\n"), &json!({"size": 3, "text": "x"}));
    world.edit(json!({"size": 3, "text": "y"}));
    let permits = |world: &World,
                   order: &dyn WriteOrder,
                   prepare: &dyn Fn(&mut Target, &mut Gates<'_>),
                   asked: &[(usize, Difference)]| {
        world.with(|ctx, mut target| {
            let limits = max_unavailable(ctx, &target, &mut Vec::new());
            let items = target.items.clone();
            let changes: Vec<&Item> = items.iter().collect();
            let mut gates = Gates::new(ctx, order, &target, &changes, &limits, (&world.state, world.now));
            prepare(&mut target, &mut gates);
            let permit = |(index, difference): &(usize, Difference)| {
                let item = &target.items[*index];
                match gates.permit(&target, item, *difference) {
                    Permit::Now => "now".to_owned(),
                    Permit::Blocked(Block::Backoff(_)) => "Backoff".to_owned(),
                    Permit::Blocked(block) => format!("{block:?}"),
                }
            };
            asked.iter().map(permit).collect::<Vec<_>>()
        })
    };
    let same = |_: &mut Target, _: &mut Gates<'_>| {};
    let (missing, outdated) = (Difference::Missing, Difference::Outdated);
    // One member is updated at a time. A missing one is unavailable anyway, and is never blocked.
    let asked = [(0, outdated), (1, outdated), (2, missing), (1, LOST)];
    let turn = |holder: &str| format!("MaxUnavailable(Some(\"{holder}\"))");
    let first = turn("m[0], which is being changed");
    assert_eq!(permits(&world, &Open, &same, &asked), ["now", &first, "now", "now"]);
    let third = turn("m[2], which is being changed");
    assert_eq!(permits(&world, &Open, &same, &[(2, missing), (0, outdated)]), ["now", &third]);
    // A step that names the member is not blocked.
    assert_eq!(permits(&world, &Named, &same, &asked), ["now"; 4]);
    // An order blocks changes, and no repair.
    let run = r#"Run("step 1")"#;
    assert_eq!(permits(&world, &Closed, &same, &asked), [run, run, run, "now"]);
    let lost = |target: &mut Target, _: &mut Gates<'_>| {
        target.items[1].lost = Some(Loss::Plan("failover".into()));
    };
    let asked = [(1, LOST), (1, missing), (0, outdated)];
    assert_eq!(
        permits(&world, &Open, &lost, &asked),
        [r#"Lost(Plan("failover"))"#, r#"Lost(Plan("failover"))"#, "now"]
    );
    let later = |target: &mut Target, _: &mut Gates<'_>| target.items[1].is_later = true;
    assert_eq!(permits(&world, &Open, &later, &asked), ["Size", "Size", "now"]);
    let paused = |_: &mut Target, gates: &mut Gates<'_>| gates.is_paused = true;
    assert_eq!(permits(&world, &Open, &paused, &asked), ["Paused"; 3]);
    // A refusal blocks its own item, a refused dry run all changes; neither blocks repair.
    let asked = [(0, outdated), (1, outdated), (1, LOST)];
    let apply = world.decide().actions.remove(0);
    let mut refused = World {
        objects: world.objects.clone(),
        server: std::mem::take(&mut world.server),
        ..World::new(Arc::clone(&world.package), &json!({"size": 3, "text": "y"}))
    };
    refused.refuse(apply, refusal(422, "Invalid", "no"));
    assert_eq!(permits(&refused, &Open, &same, &asked), ["Backoff", "now", "now"]);
    refused.untried = true;
    let check = refused.decide().checks.remove(0);
    refused
        .state
        .record(&ActionOutcome::DryRunRefused(Box::new(check), refusal(422, "Invalid", "no")), refused.now);
    assert_eq!(permits(&refused, &Open, &same, &asked), ["DryRun", "DryRun", "now"]);
}

#[test]
fn max_unavailable_is_a_number_percentage_or_expression() {
    for (max, limit) in [
        ("2", Some(2)),
        ("50%", Some(2)),
        ("1%", Some(1)),
        ("\"{{ spec.size - 3 }}\"", Some(1)),
        ("\"{{ omit }}\"", None),
    ] {
        let world = World::new(members(&format!("    maxUnavailable: {max}\n")), &json!({"size": 4}));
        let limits = world.with(|ctx, target| max_unavailable(ctx, &target, &mut Vec::new()));
        assert_eq!(limits.get(&0).copied(), limit, "{max}");
    }
    for (max, reason) in
        [("\"{{ spec.text }}\"", "InvalidMaxUnavailable"), ("\"{{ spec.host }}\"", "RenderFailed")]
    {
        let world =
            World::new(members(&format!("    maxUnavailable: {max}\n")), &json!({"size": 4, "text": "many"}));
        let mut findings = Vec::new();
        let limits = world.with(|ctx, target| max_unavailable(ctx, &target, &mut findings));
        assert_eq!(limits.get(&0), Some(&0), "no member is changed");
        assert_eq!(findings.iter().map(Finding::reason).collect::<Vec<_>>(), [reason]);
    }
}
