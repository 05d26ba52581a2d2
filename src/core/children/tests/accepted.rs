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
    /// A world whose edit is refused, after everything else is done.
    fn new(blocks: bool) -> Self {
        Self::edited(false, blocks)
    }

    /// A world whose edit is refused and also adds or removes the child `extra`.
    fn edited(has_extra: bool, blocks: bool) -> Self {
        let mut world = World::settled(two(), &json!({"text": "good", "stop": has_extra}));
        world.previous = Some(world.instance.clone());
        world.edit(json!({"text": "bad", "stop": !has_extra}));
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
                    Action::Apply(apply) if is_refused(&apply.desired) => {
                        ActionOutcome::Refused(action, error())
                    }
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

    /// The record without its proof.
    fn record(&self) -> Value {
        let annotation = self.world.instance["metadata"]["annotations"][names::ACCEPTED].as_str().unwrap();
        let mut record: Value = serde_json::from_str(annotation).unwrap();
        record.as_object_mut().unwrap().remove("proof").unwrap();
        record
    }

    fn text(&self, name: &str) -> &Value {
        &self.world.server.objects[&format!("ConfigMap/{name}")]["data"]["text"]
    }

    fn put_record(&mut self, text: &str) {
        self.world.instance["metadata"]["annotations"] = json!({names::ACCEPTED: text});
    }

    fn desired(&self) -> BTreeMap<String, Option<Box<str>>> {
        self.world.objects.iter().map(|(name, object)| (name.clone(), object.desired.clone())).collect()
    }
}

#[test]
fn missing_children_are_restored_while_a_change_is_refused() {
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
        // A field that another client takes from the child of the refused change is restored, too.
        it.world.write("ConfigMap/a-a", |live| live["data"]["text"] = "another".into());
        it.world.log.clear();
        it.settle();
        assert_eq!(it.world.log, ["Repair a as last accepted"]);
        assert_eq!(it.desired(), accepted);
    }
    // The edit is undone: all is as accepted, and the record is removed.
    it.world.edit(json!({"text": "good", "stop": false}));
    assert!(matches!(it.settle(), Verdict::Ready { .. }));
    assert_eq!(it.world.log, ["Record false"]);
}

#[test]
fn missing_children_of_unknown_origin_are_named() {
    let mut it = Refusing::new(true);
    // As after an edit that no manager has seen: the record has the children, and not what they were rendered
    // from.
    let mut record = it.record();
    record.as_object_mut().unwrap().remove("origin").unwrap();
    it.put_record(&it.world.accepted_key.seal(&record.to_string()).unwrap());
    it.world.restart();
    let Verdict::Stalled { message, .. } = it.delete("a-a") else { panic!("not stalled") };
    assert!(message.contains("missing until a change is accepted: a ("), "{message}");
    assert!(it.world.log.is_empty(), "{:?}", it.world.log);
    it.delete("a-fixed");
    assert_eq!(it.world.log, ["Restore fixed as last accepted"]);
}

#[test]
fn record_is_removed_before_a_child_is_pruned() {
    let mut it = Refusing::edited(true, true);
    assert!(it.record()["children"].get("extra").is_some(), "{:#}", it.record());
    it.world.log.clear();
    it.world.edit(json!({"text": "better", "stop": false}));
    assert!(matches!(it.settle(), Verdict::Ready { .. }));
    assert_eq!(it.world.log, ["Update a", "Record false", "Delete a-extra"]);
}

#[test]
fn child_whose_apply_is_refused_is_restored_as_accepted() {
    let mut it = Refusing::new(false);
    // The others get the change; this one is as it was.
    assert_eq!(it.world.log, ["Create extra", "Record true"]);
    let before = it.desired();
    it.delete("a-a");
    assert_eq!(it.world.log, ["Restore a as last accepted"]);
    assert_eq!(it.desired(), before);
}

/// Another manager holds a field of a child that an edit is about.
#[test]
fn change_and_accepted_target_back_off_separately() {
    let mut world = World::settled(two(), &json!({"text": "good", "stop": false}));
    world.previous = Some(world.instance.clone());
    world.edit(json!({"text": "bad", "stop": false}));
    world.write("ConfigMap/a-a", |live| live["data"]["text"] = "another".into());
    let mut tried: BTreeMap<String, Vec<Duration>> = BTreeMap::new();
    for _ in 0..200 {
        world.now += Duration::from_millis(100);
        let decision = world.decide();
        let mut outcomes = Vec::new();
        for action in decision.actions {
            outcomes.push(match &action {
                Action::Apply(apply) if &*apply.desired.object.name == "a-a" => {
                    tried.entry(apply.item.clone()).or_default().push(world.now);
                    ActionOutcome::Refused(action, refusal(409, "Conflict", "another manager holds it"))
                }
                _ => world.act(action),
            });
        }
        world.state.record_all(&outcomes, decision.target_changes, world.now);
    }
    assert!(tried.keys().eq(["a", "a as last accepted"]), "{tried:?}");
    for (item, times) in &tried {
        assert!(times.len() >= 3, "{item}: {times:?}");
        for (pair, pause) in times.windows(2).zip([2, 4]) {
            assert!(pair[1] >= pair[0] + Duration::from_secs(pause).mul_f64(0.8), "{item}: {times:?}");
        }
    }
}

#[test]
fn never_accepted_target_is_not_created() {
    let mut world = World::new(two(), &json!({"text": "bad", "stop": true}));
    world.previous = Some(world.instance.clone());
    world.untried = true;
    let mut it = Refusing { world };
    assert!(matches!(it.settle(), Verdict::Stalled { .. }));
    assert!(it.world.log.is_empty() && it.world.objects.is_empty(), "{:?}", it.world.log);
}

/// A user writes the record by hand, with a spec that the API server has never seen, and makes the target fail.
#[test]
fn forged_record_renders_nothing() {
    let children = "children:\n  - {id: fixed, template: templates/fixed.yaml}\n  - id: m\n    template: templates/m.yaml\n    forEach: {in: range(spec.size), as: i, key: i}\n";
    let templates = [("fixed", config("{{ name }}-fixed")), ("m", config("{{ name }}-{{ i }}"))];
    let package = package(children, &templates);
    let spec = json!({"text": "forged", "size": 1});
    let hash = World::settled(package.clone(), &spec).objects["ConfigMap/a-0"].desired.clone().unwrap();
    let record = json!({"uid": "uid-1", "children": {"m[0]": hash}, "origin": {"spec": spec}}).to_string();
    let sealed = AcceptedKey::new(b"key").seal(&record).unwrap();
    for (annotation, is_made) in [
        (record.clone(), false),
        (AcceptedKey::new(b"another").seal(&record).unwrap(), false),
        (sealed.replace("forged", "another"), false),
        // With a valid proof the forged spec is rendered: that is what the proof prevents.
        (sealed, true),
    ] {
        let mut it = Refusing { world: World::settled(package.clone(), &json!({"text": "good", "size": 0})) };
        it.world.edit(json!({"text": "good", "size": "none"}));
        it.put_record(&annotation);
        let Verdict::Stalled { message, .. } = it.settle() else { panic!("not stalled") };
        let log = &it.world.log;
        assert_eq!(it.world.objects.contains_key("ConfigMap/a-0"), is_made, "{annotation}: {log:?}");
        assert!(!message.contains("missing"), "a forged record has no children: {message}");
        // A new record takes the place of the forged one.
        let record = it.record();
        assert_eq!(record["children"]["m[0]"].is_string(), is_made, "{record}");
        assert!(record["children"]["fixed"].is_string(), "{record}");
    }
}

/// Earlier versions wrote records without a proof.
#[test]
fn record_without_proof_is_replaced_and_no_child_changes() {
    let mut it = Refusing::new(true);
    let before = it.world.server.objects.clone();
    let unproven = it.record();
    it.put_record(&unproven.to_string());
    it.world.restart();
    it.world.log.clear();
    it.settle();
    assert_eq!(it.world.log, ["Record true"]);
    assert_eq!(it.world.server.objects, before);
    // The spec before the edit is not taken from the record without a proof.
    assert_eq!(it.record(), json!({"uid": "uid-1", "children": unproven["children"]}));
    it.delete("a-fixed");
    assert_eq!(it.world.log, ["Restore fixed as last accepted"]);
    it.world.edit(json!({"text": "better", "stop": false}));
    it.settle();
    assert_eq!(it.world.log, ["Update a", "Record false"]);
}

#[test]
fn record_is_kept_and_not_used_without_its_key() {
    let mut it = Refusing::new(true);
    let key = std::mem::replace(&mut it.world.accepted_key, AcceptedKey::Unread);
    let annotations = it.world.instance["metadata"]["annotations"].clone();
    assert!(it.world.decide().needs.accepted_key);
    it.world.accepted_key = AcceptedKey::Unreadable("Secret x cannot be read".into());
    let Verdict::Stalled { message, .. } = it.delete("a-a") else { panic!("not stalled") };
    assert!(message.contains("not restored until a change is accepted: Secret x"), "{message}");
    assert!(it.world.decide().needs.accepted_key);
    assert!(it.world.log.is_empty(), "{:?}", it.world.log);
    assert_eq!(it.world.instance["metadata"]["annotations"], annotations);
    it.world.accepted_key = key;
    it.settle();
    assert_eq!(it.world.log, ["Restore a as last accepted"]);
    assert!(!it.world.decide().needs.accepted_key);
    // The removal of the record needs no key.
    it.world.accepted_key = AcceptedKey::Unread;
    it.world.edit(json!({"text": "good", "stop": false}));
    it.settle();
    assert_eq!(it.world.log, ["Record false"]);
    assert!(!World::settled(two(), &json!({"text": "x", "stop": false})).decide().needs.accepted_key);
}

/// A package with plans: `a` is refused in the spec `bad`, `b` never changes.
fn with_plans(which: &str) -> Arc<Package> {
    let resource = "
children:
  - {id: a, template: templates/a.yaml}
  - {id: b, template: templates/b.yaml}
plans:
  deploy:
    steps:
      - {name: all, apply: [a, b]}
      - {name: note, record: {note: \"'noted'\"}}
  drop:
    steps:
      - {name: old, delete: [b]}
      - {name: stop, fail: {message: stopped}}
";
    let config = |name: &str, text: &str| {
        format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: \"{{{{ name }}}}-{name}\"}}\n\
             data: {{text: {text}, note: \"{{{{ record.note | default('') }}}}\"}}\n"
        )
    };
    package(resource, &[("a", config("a", which)), ("b", config("b", "fixed"))])
}

fn rolled_out(package: Arc<Package>) -> Refusing {
    let mut world = World::with_runs(package, &json!({"text": "good"}));
    assert_eq!(world.settle(), Verdict::Ready { children: 2 });
    world.log.clear();
    Refusing { world }
}

/// Cancels the run of that number.
fn cancel(world: &mut World, run: &str) {
    world.runs.runs.get_mut(run).unwrap()["spec"]["cancel"] = true.into();
}

#[test]
fn child_that_a_step_has_deleted_is_not_restored_as_accepted() {
    let mut it = rolled_out(with_plans("\"{{ spec.text }}\""));
    it.world.previous = Some(it.world.instance.clone());
    it.world.edit(json!({"text": "bad"}));
    it.settle();
    assert_eq!(it.world.log, ["Record true"]);
    cancel(&mut it.world, "a-2");
    plans::request(&mut it.world, "mine", "drop");
    let Verdict::Stalled { message, .. } = it.settle() else { panic!("not stalled") };
    assert_eq!(it.world.names(), ["a-a"], "{:?}: {message}", it.world.log);
    assert!(!message.contains("missing until"), "{message}");
    // What no step has deleted is still maintained, with the facts that runs have recorded.
    for restarted in [false, true] {
        if restarted {
            it.world.restart();
            it.settle();
        }
        it.delete("a-a");
        assert_eq!(it.world.log, ["Restore a as last accepted"], "restarted: {restarted}");
        assert_eq!(it.text("a-a"), "good");
    }
}

#[test]
fn child_that_a_new_revision_may_not_change_is_restored_from_the_former_one() {
    let before = with_plans("good");
    let mut it = rolled_out(Arc::clone(&before));
    it.world.runs.knows(&before);
    it.world.package = with_plans("bad");
    it.settle();
    assert_eq!(it.text("a-a"), "good");
    for restarted in [false, true] {
        if restarted {
            it.world.restart();
            it.settle();
        }
        let verdict = it.delete("a-a");
        assert_eq!(it.world.log, ["Restore a as last accepted"], "restarted: {restarted}: {verdict:?}");
        assert_eq!(it.text("a-a"), "good");
    }
}
