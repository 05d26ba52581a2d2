//! The rules of children: order, members, drift, refusals.

use super::*;

#[test]
fn independent_children_are_created_at_once_with_an_owner() {
    let package = package(
        "children:\n  - {id: a, template: templates/a.yaml}\n  - {id: b, template: templates/b.yaml, when: spec.host}\n",
        &[("a", config("{{ name }}-a")), ("b", config("{{ name }}-b"))],
    );
    let mut world = World::new(package, &json!({"host": "x"}));
    assert_eq!(world.decide().actions.len(), 2);
    assert_eq!(world.settle(), Verdict::Ready { children: 2 });
    assert!(world.objects.values().all(|o| o.owner_reference));
    assert!(world.instance["metadata"].get("finalizers").is_none());
    world.edit(json!({}));
    assert_eq!(world.settle(), Verdict::Ready { children: 1 });
    assert_eq!(world.names(), ["a-a"]);
}

#[test]
fn ordered_children_wait_and_go_in_reverse_behind_the_finalizer() {
    let mut world = World::new(two_ordered(), &json!({}));
    world.quick = false;
    let verdict = world.settle();
    assert!(
        matches!(&verdict, Verdict::Reconciling { message, .. } if message.contains("b waits for a")),
        "{verdict:?}"
    );
    assert_eq!(world.names(), ["a-a"]);
    assert!(prune::has_finalizer(&world.instance));
    world.ready("a-a");
    world.settle();
    world.ready("a-b");
    assert_eq!(world.settle(), Verdict::Ready { children: 2 });
    assert!(world.objects.values().all(|o| !o.owner_reference));

    world.log.clear();
    world.instance["metadata"]["deletionTimestamp"] = "now".into();
    world.settle();
    assert_eq!(world.log, ["Delete a-b", "Delete a-a"]);
    assert!(!prune::has_finalizer(&world.instance));
}

#[test]
fn json_path_in_the_status_yields_a_value_list_or_nothing() {
    let package = package(
        "children:\n  - {id: a, template: templates/a.yaml}\n  - {id: b, template: templates/b.yaml, when: spec.host is defined}\nstatus:\n  plain: {jsonPath: .children.a.data.text}\n  labels: {jsonPath: \".children.a.metadata.labels['app.kubernetes.io/managed-by']\"}\n  all: {jsonPath: \".children.a.data.*\"}\n  size: {jsonPath: \".children.a.data[?@=='x']\"}\n  gone: {jsonPath: .children.b.data.text}\n  far: {jsonPath: \".children.b.data.*\"}\n",
        &[("a", config("{{ name }}-a")), ("b", config("{{ name }}-b"))],
    );
    let mut world = World::new(package, &json!({"text": "x"}));
    world.settle();
    let patch = |world: &World| status_patch(&json!({}), &world.decide().status.unwrap(), "t").unwrap();
    let status = patch(&world);
    assert_eq!(status["plain"], "x");
    assert_eq!(status["labels"], "operetta");
    assert_eq!(status["all"], json!(["x"]));
    // The CRD says that it is a string: one value.
    assert_eq!(status["size"], "x");
    assert_eq!((status.get("gone"), status.get("far")), (None, None));
    // Unknown is not empty: what is there is kept.
    world.lost.insert("ConfigMap".into());
    let lost = status_patch(&status, &world.decide().status.unwrap(), "t").unwrap();
    assert!(["plain", "all", "size"].iter().all(|name| lost.get(name).is_none()), "{lost}");
}

#[test]
fn max_unavailable_counts_until_ready_and_takes_the_unready_first() {
    let mut world = World::new(members("    maxUnavailable: 1\n"), &json!({"size": 3}));
    world.quick = false;
    world.settle();
    for name in ["a-0", "a-1", "a-2"] {
        world.ready(name);
    }
    assert_eq!(world.settle(), Verdict::Ready { children: 3 });
    world.edit(json!({"size": 3, "text": "new"}));
    world.objects.get_mut("ConfigMap/a-2").unwrap().readiness =
        Readiness::NotReady { reason: "R".into(), message: "broken".into() };
    world.settle();
    assert_eq!(world.log, ["Update m[2]"]);
    world.ready("a-2");
    world.settle();
    assert_eq!(world.log, ["Update m[2]", "Update m[0]"]);
    // A bad update stops at the first member.
    world.settle();
    assert_eq!(world.log.len(), 2);
}

#[test]
fn missing_and_terminating_members_count_as_unavailable() {
    let mut world = World::new(members("    maxUnavailable: 1\n"), &json!({"size": 3}));
    world.settle();
    world.quick = false;
    world.edit(json!({"size": 3, "text": "new"}));
    world.objects.get_mut("ConfigMap/a-2").unwrap().terminating = true;
    world.objects.get_mut("ConfigMap/a-2").unwrap().readiness = Readiness::Terminating;
    world.settle();
    assert!(world.log.is_empty(), "{:?}", world.log);
    world.remove("ConfigMap/a-2");
    world.settle();
    assert_eq!(world.log, ["Create m[2]"]);
    world.ready("a-2");
    world.settle();
    assert_eq!(world.log, ["Create m[2]", "Update m[0]"]);
}

#[test]
fn scaling_leaves_the_other_members_unchanged() {
    let mut world = World::new(members(""), &json!({"size": 3}));
    world.settle();
    let uids: Vec<_> = world.objects.values().map(|o| o.uid.clone()).collect();
    world.edit(json!({"size": 5}));
    assert_eq!(world.settle(), Verdict::Ready { children: 5 });
    world.edit(json!({"size": 3}));
    assert_eq!(world.settle(), Verdict::Ready { children: 3 });
    assert_eq!(world.objects.values().map(|o| o.uid.clone()).collect::<Vec<_>>(), uids);
}

#[test]
fn drift_is_repaired_even_where_order_would_wait() {
    let mut world = World::settled(two_ordered(), &json!({}));
    // `a` is not ready, and somebody took the text of `b`.
    world.objects.get_mut("ConfigMap/a-a").unwrap().readiness =
        Readiness::NotReady { reason: "R".into(), message: "m".into() };
    world.write("ConfigMap/a-b", |live| live["data"]["text"] = "another".into());
    world.settle();
    assert_eq!(world.log, ["Repair b"]);
}

#[test]
fn a_foreign_change_is_answered_once_in_thirty_seconds() {
    let mut world = World::settled(members(""), &json!({"size": 1}));
    let change = |world: &mut World, text: &str| {
        world.write("ConfigMap/a-0", |live| live["data"]["more"] = text.into());
    };
    change(&mut world, "one");
    world.settle();
    assert_eq!(world.log, ["Recheck m[0]"]);
    change(&mut world, "two");
    world.now = Duration::from_secs(10);
    let decision = world.decide();
    assert!(decision.actions.is_empty());
    assert_eq!(decision.again, Some(Duration::from_secs(20)));
    world.now = Duration::from_secs(31);
    assert_eq!(world.decide().actions.len(), 1);
}

#[test]
fn members_of_an_unlisted_kind_are_not_pruned() {
    let mut world = World::settled(members(""), &json!({"size": 2}));
    world.lost.insert("ConfigMap".into());
    world.edit(json!({"size": 0}));
    assert!(!matches!(world.settle(), Verdict::Ready { children: 2 }));
    assert!(world.log.is_empty(), "{:?}", world.log);
    assert_eq!(world.objects.len(), 2);
}

#[test]
fn child_that_cannot_be_rendered_holds_back_only_pruning() {
    let package = package(
        "children:\n  - {id: a, template: templates/a.yaml}\n  - {id: b, template: templates/b.yaml, when: spec.host}\n",
        &[("a", config("{{ name }}-{{ 10 // spec.size }}")), ("b", config("{{ name }}-b"))],
    );
    let mut world = World::new(package, &json!({"size": 1}));
    assert_eq!(world.settle(), Verdict::Ready { children: 1 });
    world.edit(json!({"size": 0, "host": "x"}));
    let verdict = world.settle();
    assert!(
        matches!(&verdict, Verdict::Stalled { reason, message } if reason == "RenderFailed" && message.contains("templates/a.yaml")),
        "{verdict:?}"
    );
    assert_eq!(world.names(), ["a-10", "a-b"]);
}

/// A value that does not exist yet is awaited. A comparison that can never hold an answer is a mistake, which
/// somebody has to correct.
#[test]
fn when_that_compares_text_with_a_number_stalls() {
    for (when, expected) in
        [("'5' > spec.size", "RenderFailed"), ("children.b.data.n > 1", "DependencyNotReady")]
    {
        let package = package(
            &format!(
                "children:\n  - {{id: a, template: templates/a.yaml, when: \"{when}\"}}\n  - {{id: b, template: templates/b.yaml}}\n"
            ),
            &[("a", config("{{ name }}-a")), ("b", config("{{ name }}-b"))],
        );
        let mut world = World::new(package, &json!({"size": 1}));
        match (world.settle(), expected) {
            (Verdict::Stalled { reason, message }, "RenderFailed") => {
                assert!(reason == expected && message.contains("`| int`"), "{reason} {message}");
            }
            (Verdict::Reconciling { reason, .. }, "DependencyNotReady") => assert_eq!(reason, expected),
            (other, _) => panic!("{when}: {other:?}"),
        }
    }
}

#[test]
fn retained_children_stay_and_are_adopted_again() {
    let mut world = World::new(members("    deletionPolicy: Retain\n"), &json!({"size": 2}));
    world.settle();
    world.edit(json!({"size": 1}));
    assert_eq!(world.settle(), Verdict::Ready { children: 1 });
    assert_eq!(world.log, ["Retain a-1"]);
    assert_eq!(world.objects.len(), 2);
    // What was retained lost the annotation's value to another manager: the apply takes it back.
    world.edit(json!({"size": 2}));
    assert_eq!(world.settle(), Verdict::Ready { children: 2 });
    assert!(world.objects.values().all(|o| o.retained == Some(false)));
    world.instance["metadata"]["deletionTimestamp"] = "now".into();
    world.settle();
    assert_eq!(world.objects.len(), 2);
    assert!(!prune::has_finalizer(&world.instance));
}

fn checked(decision: &Decision) -> Vec<&str> {
    decision.checks.iter().map(|check| check.item.as_str()).collect()
}

#[test]
fn whole_change_is_dry_run_before_the_first_write() {
    let mut world = World::new(two_ordered(), &json!({}));
    assert!(world.decide().checks.is_empty());
    world.untried = true;
    // Items that wait for others are tried, too.
    assert_eq!(checked(&world.decide()), ["a", "b"]);
    world.settle();
    assert!(world.decide().checks.is_empty(), "nothing is to be written");
    // An update has another shape; a repair has none.
    let first: BTreeSet<u64> = {
        let mut fresh = World::new(two_ordered(), &json!({}));
        fresh.untried = true;
        fresh.decide().checks.iter().map(|check| check.shape).collect()
    };
    world.edit(json!({"text": "x"}));
    let decision = world.decide();
    assert_eq!(checked(&decision), ["a", "b"]);
    assert!(decision.checks.iter().all(|check| !first.contains(&check.shape)));

    // Equal members have one shape.
    let mut world = World::new(members(""), &json!({"size": 3}));
    world.untried = true;
    assert_eq!(checked(&world.decide()), ["m[0]"]);
}

#[test]
fn refused_dry_run_holds_the_whole_change() {
    let mut world = World::new(two_ordered(), &json!({}));
    let message =
        "configmaps is forbidden: User \"u\" cannot patch resource \"configmaps\" in API group \"\"";
    let error = refusal(403, "Forbidden", message);
    let refused = {
        let mut other = World::new(two_ordered(), &json!({}));
        other.untried = true;
        let check = other.decide().checks.into_iter().find(|check| check.item == "b").unwrap();
        ActionOutcome::DryRunRefused(Box::new(check), error)
    };
    world.state.record(&refused, world.now);
    let verdict = world.settle();
    assert!(world.objects.is_empty(), "{:?}", world.names());
    let Verdict::Stalled { reason, message } = verdict else { panic!("{verdict:?}") };
    assert_eq!(reason, "Forbidden");
    assert!(message.contains("the rest of the change waits"), "{message}");
    world.rest();
    // When its backoff has ended it is tried again, and so are the others.
    world.untried = true;
    assert_eq!(checked(&world.decide()), ["a", "b"]);
    // Existing objects are repaired nevertheless.
    let mut world = World::settled(two_ordered(), &json!({}));
    world.state.record(&refused, world.now);
    world.remove("ConfigMap/a-b");
    world.strip("ConfigMap/a-a");
    world.log.clear();
    world.settle();
    assert_eq!(world.log, ["Repair a", "Record true"]);
}

#[test]
fn repeated_drift_names_the_other_manager_and_slows_down() {
    let mut world = World::new(members(""), &json!({"size": 1}));
    world.settle();
    let mut repairs = 0;
    loop {
        world.strip("ConfigMap/a-0");
        let decision = world.decide();
        let Some(Action::Apply(apply)) = decision.actions.into_iter().next() else { break };
        assert_eq!(apply.why, Why::Repair);
        repairs += 1;
        assert_eq!(apply.repair.is_frequent, repairs == 20, "who it is is asked before it rests");
        world.correct(apply);
        assert!(repairs <= 20, "it never ends");
    }
    assert_eq!(repairs, 20);
    let decision = world.decide();
    let Verdict::Stalled { reason, message } = decision.verdict else { panic!("{:?}", decision.verdict) };
    assert_eq!(reason, "FieldManagerConflict");
    assert!(message.contains("gitops changes .data.text") && message.contains("yields"), "{message}");
    assert_eq!(decision.again, Some(Duration::from_secs(30)));
    // There is one correction each half minute; an hour later all is forgotten.
    world.now = Duration::from_secs(30);
    assert_eq!(world.decide().actions.len(), 1);
    world.settle();
    world.strip("ConfigMap/a-0");
    assert!(world.decide().actions.is_empty());
    world.now = Duration::from_secs(3_600);
    assert_eq!(world.settle(), Verdict::Ready { children: 1 });
}

#[test]
fn refused_child_waits_and_blocks_no_other() {
    let mut world = World::new(members(""), &json!({"size": 2}));
    let apply = world.decide().actions.swap_remove(0);
    world.refuse(apply, refusal(422, "Invalid", "no"));
    let verdict = world.settle();
    assert!(matches!(&verdict, Verdict::Stalled { reason, .. } if reason == "ApplyRefused"), "{verdict:?}");
    assert_eq!(world.names(), ["a-1"]);
    assert!(world.decide().again.is_some());
    // Another desired object is tried at once.
    world.edit(json!({"size": 2, "text": "mended"}));
    assert_eq!(world.settle(), Verdict::Ready { children: 2 });
}

#[test]
fn children_that_render_the_same_object_are_refused() {
    let package = package(
        "children:\n  - {id: a, template: templates/a.yaml}\n  - {id: b, template: templates/b.yaml}\n  - {id: c, template: templates/c.yaml}\n",
        &[
            ("a", config("{{ name }}-x")),
            ("b", config("{{ name }}-{{ spec.host }}")),
            ("c", config("{{ name }}-c")),
        ],
    );
    let mut world = World::new(package, &json!({"host": "y"}));
    assert_eq!(world.settle(), Verdict::Ready { children: 3 });
    world.edit(json!({"host": "x", "text": "new"}));
    let verdict = world.settle();
    assert!(
        matches!(&verdict, Verdict::Stalled { reason, message } if reason == "InvalidChild" && message.contains("so does b")),
        "{verdict:?}"
    );
    assert_eq!(world.log, ["Update c", "Record true"]);
    assert_eq!(world.names(), ["a-c", "a-x", "a-y"]);
}

#[test]
fn refused_deletion_is_reported_and_blocks_no_other() {
    let mut world = World::new(members(""), &json!({"size": 3}));
    world.settle();
    let error = refusal(403, "Forbidden", "x is forbidden: User \"u\" cannot patch");
    let kept = Arc::new(world.objects["ConfigMap/a-2"].clone());
    world.refuse(Action::Delete(kept), error);
    world.edit(json!({"size": 1}));
    let verdict = world.settle();
    assert!(
        matches!(&verdict, Verdict::Stalled { reason, .. } if reason == "DeletionRefused"),
        "{verdict:?}"
    );
    assert_eq!(world.names(), ["a-0", "a-2"]);
    world.rest();
    assert_eq!(world.settle(), Verdict::Ready { children: 1 });
}

#[test]
fn an_object_with_copied_labels_is_neither_deleted_nor_awaited() {
    let mut world = World::new(two_ordered(), &json!({}));
    world.settle();
    let mut copy = world.objects["ConfigMap/a-a"].clone();
    copy.object.name = "copy".into();
    copy.owned = None;
    world.objects.insert("ConfigMap/copy".into(), copy);
    assert_eq!(world.settle(), Verdict::Ready { children: 2 });
    assert_eq!(world.names(), ["a-a", "a-b", "copy"]);
    world.instance["metadata"]["deletionTimestamp"] = "now".into();
    world.settle();
    assert_eq!(world.names(), ["copy"]);
    assert!(!prune::has_finalizer(&world.instance));
}

#[test]
fn paused_instance_writes_nothing() {
    let mut world = World::new(members(""), &json!({"size": 1}));
    world.instance["metadata"]["annotations"] = json!({names::PAUSED: "true"});
    let paused = |world: &mut World, what: &str| {
        let message = format!("paused: nothing is written until it is resumed{what}");
        assert_eq!(world.settle(), Verdict::Paused { message });
    };
    paused(&mut world, "; then it would create m[0]");
    assert!(world.objects.is_empty());
    world.instance["metadata"]["annotations"] = json!({});
    world.settle();
    world.log.clear();
    world.instance["metadata"]["annotations"] = json!({names::PAUSED: "true"});
    paused(&mut world, "");
    // What it would write is computed nevertheless.
    world.write("ConfigMap/a-0", |live| live["data"]["text"] = "drifted".into());
    paused(&mut world, "; then it would repair m[0]");
    world.edit(json!({"size": 3, "text": "new"}));
    paused(&mut world, "; then it would create m[1], create m[2], update m[0]");
    world.edit(json!({"size": 0}));
    paused(&mut world, "; then it would prune ConfigMap n/a-0");
    world.edit(json!({"size": 2_000}));
    let Verdict::Paused { message } = world.settle() else { panic!("not paused") };
    assert!(message.ends_with("resumed; m: more than 1000 children; an instance may have 1000"), "{message}");
    assert!(world.log.is_empty(), "{:?}", world.log);
}

#[test]
fn too_many_children_are_refused() {
    let mut world = World::new(members(""), &json!({"size": 1_001}));
    assert!(matches!(world.settle(), Verdict::Stalled { reason, .. } if reason == "TooManyChildren"));
    assert!(world.objects.is_empty());
}

/// Whatever part of the actions is carried out before a crash, the world ends as if there had been no crash.
#[test]
fn crashes_between_actions_end_in_the_same_world() {
    let steps = [json!({"size": 3, "host": "x"}), json!({"size": 5, "text": "t"}), json!({"size": 2})];
    let make = || {
        package(
            "children:
  - {id: base, template: templates/base.yaml}
  - id: m
    template: templates/m.yaml
    forEach: {in: range(spec.size), as: i, key: i}
    maxUnavailable: 2
    dependsOn: [base]
  - {id: last, template: templates/last.yaml, when: spec.host, dependsOn: [m]}
",
            &[
                ("base", config("{{ name }}-base")),
                ("m", config("{{ name }}-{{ i }}")),
                ("last", config("{{ name }}-last")),
            ],
        )
    };
    let shape = |world: &World| {
        world.objects.iter().map(|(k, o)| (k.clone(), o.desired.clone(), o.order)).collect::<Vec<_>>()
    };
    let mut reference = World::new(make(), &json!({}));
    let mut expected = Vec::new();
    for step in &steps {
        reference.edit(step.clone());
        assert!(matches!(reference.settle(), Verdict::Ready { .. }));
        expected.push(shape(&reference));
    }
    for seed in 0..100 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut world = World::new(make(), &json!({}));
        for (step, expected) in steps.iter().zip(&expected) {
            world.edit(step.clone());
            for _ in 0..random.usize(0..12) {
                let actions = world.decide().actions;
                let done = random.usize(0..=actions.len());
                for action in actions.into_iter().take(done) {
                    world.act(action);
                }
                world.restart();
                if random.u8(..) < 40
                    && let Some(key) =
                        world.objects.keys().nth(random.usize(0..world.objects.len().max(1))).cloned()
                {
                    world.remove(&key);
                }
            }
            assert!(matches!(world.settle(), Verdict::Ready { .. }), "seed {seed}");
            assert_eq!(shape(&world), *expected, "seed {seed}");
        }
    }
}
