//! While a change is refused, the last accepted target is kept up.

use super::*;

fn two() -> Package {
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
    blocks: bool,
}

impl Refusing {
    /// One whose edit is refused, and where all has come to rest.
    fn new(blocks: bool) -> Self {
        let mut world = World::settled(two(), &json!({"text": "good", "stop": false}));
        world.memory.previous = Some(Arc::new(world.instance.clone()));
        world.edit(json!({"text": "bad", "stop": true}));
        let mut refusing = Self { world, blocks };
        refusing.settle();
        refusing
    }

    fn settle(&mut self) -> Verdict {
        let world = &mut self.world;
        for _ in 0..50 {
            let mut actions = world.decide().actions;
            if actions.is_empty() {
                return world.decide().verdict;
            }
            let (mut refused, blocks) = (false, self.blocks);
            let (memory, now) = (&mut world.memory, world.now);
            actions.retain(|action| {
                let Action::Apply(apply) = action else { return true };
                if apply.item != "a" || apply.intent.body["data"]["text"] != "bad" {
                    return true;
                }
                refused = true;
                let status = json!({"code": 422, "reason": "Invalid", "message": "no"});
                let failure = Failure {
                    hash: apply.intent.hash.clone(),
                    error: crate::cluster::CallError::from_status(&serde_json::from_value(status).unwrap()),
                    retry_at: now + Duration::from_secs(900),
                    count: 1,
                    uid: match &apply.expect {
                        Expect::Present(uid) => Some(uid.clone()),
                        Expect::Absent => None,
                    },
                    blocks,
                    version: None,
                };
                memory.failures.insert(apply.item.clone(), failure);
                false
            });
            let is_change = |action: &Action| matches!(action, Action::Apply(apply) if matches!(apply.why, Why::Create | Why::Update));
            for action in actions.into_iter().filter(|action| !(refused && blocks && is_change(action))) {
                world.act(action);
            }
        }
        panic!("never comes to rest: {:?}", world.log);
    }

    fn delete(&mut self, name: &str) -> Verdict {
        self.world.objects.remove(&format!("ConfigMap/{name}")).unwrap();
        self.world.log.clear();
        self.settle()
    }

    fn intents(&self) -> BTreeMap<String, Option<Box<str>>> {
        self.world.objects.iter().map(|(name, object)| (name.clone(), object.intent.clone())).collect()
    }
}

#[test]
fn what_is_missing_comes_back_while_a_change_is_refused() {
    let mut it = Refusing::new(true);
    assert_eq!(it.world.log, ["Record true"]);
    assert_eq!(it.world.names(), ["a-a", "a-fixed"]);
    let accepted = it.intents();
    for restarted in [false, true] {
        if restarted {
            it.world.memory = Memory::default();
            it.world.log.clear();
            it.settle();
            assert!(it.world.log.is_empty(), "{:?}", it.world.log);
        }
        it.delete("a-fixed");
        assert_eq!(it.world.log, ["Restore fixed as last accepted"]);
        it.delete("a-a");
        assert_eq!(it.world.log, ["Restore a as last accepted"], "restarted: {restarted}");
        assert_eq!(it.intents(), accepted);
        // What somebody takes from the one that the change is about is put back as it was.
        it.world.objects.get_mut("ConfigMap/a-a").unwrap().owned = Some(Arc::new(FieldSet::default()));
        it.world.log.clear();
        it.settle();
        assert_eq!(it.world.log, ["Repair a as last accepted"]);
        assert_eq!(it.intents(), accepted);
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
    it.world.memory = Memory::default();
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
    let before = it.intents();
    it.delete("a-a");
    assert_eq!(it.world.log, ["Restore a as last accepted"]);
    assert_eq!(it.intents(), before);
}

#[test]
fn what_was_never_accepted_is_not_made() {
    let mut world = World::new(two(), &json!({"text": "bad", "stop": true}));
    world.memory.previous = Some(Arc::new(world.instance.clone()));
    let mut it = Refusing { world, blocks: true };
    assert!(matches!(it.settle(), Verdict::Stalled { .. }));
    assert!(it.world.log.is_empty() && it.world.objects.is_empty(), "{:?}", it.world.log);
}
