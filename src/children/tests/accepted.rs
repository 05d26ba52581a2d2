//! While a change is refused, the last accepted target is kept up.

use super::*;

fn two() -> Arc<Package> {
    let fixed =
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: \"{{ name }}-fixed\"}\ndata: {text: same}\n";
    let children = "children:\n  - {id: a, template: templates/a.yaml}\n  - {id: fixed, template: templates/fixed.yaml}\n  - {id: extra, template: templates/extra.yaml, when: spec.stop}\n";
    package(
        children,
        &[("a", config("{{ name }}-a")), ("fixed", fixed.to_owned()), ("extra", config("{{ name }}-extra"))],
    )
}

/// A world whose API server refuses the child `a` with the text `bad`: in a dry run, so that nothing of the change
/// is written, or only when it is applied.
struct Refusing {
    world: World,
}

impl Refusing {
    /// One whose edit is refused, and where all has come to rest.
    fn new(blocks: bool) -> Self {
        let mut world = World::settled(two(), &json!({"text": "good", "stop": false}));
        world.previous = Some(world.instance.clone());
        world.edit(json!({"text": "bad", "stop": true}));
        world.untried = blocks;
        let mut refusing = Self { world };
        refusing.settle();
        refusing
    }

    fn settle(&mut self) -> Verdict {
        let world = &mut self.world;
        for _ in 0..50 {
            let decision = world.decide();
            if decision.actions.is_empty() {
                return decision.verdict;
            }
            let is_refused =
                |desired: &Desired| &*desired.object.name == "a-a" && desired.body["data"]["text"] == "bad";
            let error = || refusal(422, "Invalid", "no").after(Duration::from_secs(900));
            let (mut runs, mut outcomes) = (DryRuns::default(), Vec::new());
            for check in &decision.checks {
                let refused = world.untried && is_refused(&check.desired);
                let result = if refused { DryRun::Refused(error()) } else { DryRun::Passed };
                outcomes.extend(runs.add(check, result));
            }
            for action in runs.permitted(decision.actions) {
                outcomes.push(match &action {
                    Action::Apply(apply) if is_refused(&apply.desired) => Outcome::Refused(action, error()),
                    _ => world.act(action),
                });
            }
            world.state.record_all(&outcomes, decision.target_changes, world.now);
        }
        panic!("never comes to rest: {:?}", world.log);
    }

    fn delete(&mut self, name: &str) -> Verdict {
        self.world.remove(&format!("ConfigMap/{name}")).unwrap();
        self.world.log.clear();
        self.settle()
    }

    fn desired(&self) -> BTreeMap<String, Option<Box<str>>> {
        self.world.objects.iter().map(|(name, object)| (name.clone(), object.desired.clone())).collect()
    }
}

#[test]
fn what_is_missing_comes_back_while_a_change_is_refused() {
    let mut it = Refusing::new(true);
    assert_eq!(it.world.log, ["Record true"]);
    assert_eq!(it.world.names(), ["a-a", "a-fixed"]);
    let accepted = it.desired();
    for restarted in [false, true] {
        if restarted {
            it.world.restart();
            it.world.log.clear();
            it.settle();
            assert!(it.world.log.is_empty(), "{:?}", it.world.log);
        }
        it.delete("a-fixed");
        assert_eq!(it.world.log, ["Restore fixed as last accepted"]);
        it.delete("a-a");
        assert_eq!(it.world.log, ["Restore a as last accepted"], "restarted: {restarted}");
        assert_eq!(it.desired(), accepted);
        // What somebody takes from the one that the change is about is put back as it was.
        it.world.write("ConfigMap/a-a", |live| live["data"]["text"] = "another".into());
        it.world.log.clear();
        it.settle();
        assert_eq!(it.world.log, ["Repair a as last accepted"]);
        assert_eq!(it.desired(), accepted);
    }
    // Back to what it was: all is as accepted, and the record goes.
    it.world.edit(json!({"text": "good", "stop": false}));
    assert!(matches!(it.settle(), Verdict::Ready { .. }));
    assert_eq!(it.world.log, ["Record false"]);
}

#[test]
fn what_cannot_come_back_is_named() {
    let mut it = Refusing::new(true);
    // As after an edit that nobody saw: only what is there was recorded, not of what it was rendered.
    let record = it.world.instance["metadata"]["annotations"][names::ACCEPTED].as_str().unwrap();
    let mut record: Value = serde_json::from_str(record).unwrap();
    record.as_object_mut().unwrap().remove("origin").unwrap();
    it.world.instance["metadata"]["annotations"][names::ACCEPTED] = record.to_string().into();
    it.world.restart();
    let Verdict::Stalled { message, .. } = it.delete("a-a") else { panic!("not stalled") };
    assert!(message.contains("missing until a change is accepted: a ("), "{message}");
    assert!(it.world.log.is_empty(), "{:?}", it.world.log);
    it.delete("a-fixed");
    assert_eq!(it.world.log, ["Restore fixed as last accepted"]);
}

#[test]
fn a_child_whose_own_apply_is_refused_comes_back_too() {
    let mut it = Refusing::new(false);
    // The others get the change; this one is as it was.
    assert_eq!(it.world.log, ["Create extra", "Record true"]);
    let before = it.desired();
    it.delete("a-a");
    assert_eq!(it.world.log, ["Restore a as last accepted"]);
    assert_eq!(it.desired(), before);
}

#[test]
fn what_was_never_accepted_is_not_made() {
    let mut world = World::new(two(), &json!({"text": "bad", "stop": true}));
    world.previous = Some(world.instance.clone());
    world.untried = true;
    let mut it = Refusing { world };
    assert!(matches!(it.settle(), Verdict::Stalled { .. }));
    assert!(it.world.log.is_empty() && it.world.objects.is_empty(), "{:?}", it.world.log);
}
