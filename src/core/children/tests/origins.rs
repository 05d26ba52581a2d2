//! Targets whose items have different origins, as during a run.

use super::*;
use crate::children::model::ItemMemory;

/// An instance in the middle of a rollout.
struct Rollout {
    world: World,
    /// The package and the instance before.
    before: (Arc<Package>, Value),
    /// What the rollout has reached.
    reached: Vec<&'static str>,
    absent: Vec<ItemId>,
    lost: Vec<&'static str>,
}

/// An order that writes what the rollout has reached, in the order of the graph, and what is missing of the
/// rest.
struct RolloutOrder<'t> {
    graph: Graph<'t>,
    reached: &'t [&'static str],
}

impl WriteOrder for RolloutOrder<'_> {
    fn awaited(&self, item: &Item) -> Option<Block> {
        if self.reached.contains(&&*item.name) {
            return self.graph.awaited(item);
        }
        let is_missing = item.origin != NEWEST && item.observed.is_none();
        (!is_missing).then(|| Block::Run("step 1 of the run a-1".into()))
    }

    fn awaited_by_child(&self, number: usize) -> Option<Block> {
        self.graph.awaited_by_child(number)
    }

    fn awaited_by_pruning(&self) -> Option<Block> {
        Some(Block::Run("the end of the run a-1".into()))
    }
}

impl Rollout {
    /// All of `before` is there and ready; then the package and the spec change.
    fn new(before: Arc<Package>, spec: &Value, newest: &Arc<Package>, new_spec: Value) -> Self {
        let mut world = World::settled(Arc::clone(&before), spec);
        let before = (before, world.instance.clone());
        world.package = Arc::clone(newest);
        world.edit(new_spec);
        Self { world, before, reached: Vec::new(), absent: Vec::new(), lost: Vec::new() }
    }

    fn with<T>(&self, use_it: impl FnOnce(&Context<'_>, &Target) -> T) -> T {
        let snapshot = self.world.snapshot();
        let (package, before) = &self.before;
        let instance = InstanceInput::of(before).restored(&snapshot.instance);
        let earlier = Origin { package, resource: &package.resources[0], instance: &instance };
        let origins = Origins::new(snapshot.origin().unwrap(), vec![earlier], Some(1));
        let reached = ItemMemory { origin: Some(NEWEST), ..ItemMemory::default() };
        let absent = ItemMemory { absent: true, ..ItemMemory::default() };
        let reached = self.reached.iter().map(|name| (origins.in_newest(ItemId::named(name)), reached));
        let items = reached.chain(self.absent.iter().map(|item| (item.clone(), absent))).collect();
        let origins = origins.with_items(items);
        let ctx = Context::new(&snapshot, &origins, Budget::default());
        let mut target = target(&ctx);
        for item in &mut target.items {
            let lost = self.lost.iter().find(|lost| **lost == item.name);
            item.lost = lost.map(|_| Loss::Plan("failover".into()));
        }
        use_it(&ctx, &target)
    }

    fn decide(&self) -> Decision {
        self.with(|ctx, target| {
            let order = RolloutOrder { graph: Graph::of(ctx.origins, target), reached: &self.reached };
            let decision = decide_target(ctx, target, &order, (&self.world.state, self.world.now));
            Decision { checks: Vec::new(), ..decision }
        })
    }

    fn settle(&mut self) -> Verdict {
        for _ in 0..50 {
            let decision = self.decide();
            if decision.actions.is_empty() {
                return decision.verdict;
            }
            self.world.carry_out(decision.actions, decision.target_changes);
        }
        panic!("never comes to rest: {:?}", self.world.log);
    }

    /// The items by name: the position of the origin of each, and its text or error.
    fn items(&self) -> Vec<(String, usize, String)> {
        self.with(|_, target| {
            let item = |item: &Item| {
                let text = match &item.desired {
                    Ok(desired) => desired.body["data"]["text"].as_str().unwrap_or("as it is").to_owned(),
                    Err(error) => error.to_string(),
                };
                (item.name.clone(), item.origin, text)
            };
            target.items.iter().map(item).collect()
        })
    }

    fn text(&self, name: &str) -> &str {
        self.world.server.objects[&format!("ConfigMap/{name}")]["data"]["text"].as_str().unwrap()
    }
}

fn item(name: &str, origin: usize, text: &str) -> (String, usize, String) {
    (name.to_owned(), origin, text.to_owned())
}

#[test]
fn members_that_a_run_has_not_reached_keep_their_origin() {
    let package = members("");
    let (old, new) = (json!({"size": 3, "text": "old"}), json!({"size": 4, "text": "new"}));
    let mut rollout = Rollout::new(Arc::clone(&package), &old, &package, new);
    // The fourth is in no other target, so it is of the newest, and waits for the run.
    let Verdict::Reconciling { message, .. } = rollout.settle() else { panic!("not reconciling") };
    assert_eq!(message, "m[3] waits for step 1 of the run a-1");
    assert!(rollout.world.log.is_empty(), "{:?}", rollout.world.log);
    rollout.reached = vec!["m[1]", "m[3]"];
    rollout.settle();
    assert_eq!(rollout.world.log, ["Create m[3]", "Update m[1]"]);
    // The items come in the order of the newest origin.
    let origins: Vec<usize> = rollout.items().iter().map(|(_, origin, _)| *origin).collect();
    assert_eq!(origins, [1, 0, 1, 0]);
    // What is not reached is enforced as it was: drift is repaired, and what is gone comes back.
    rollout.world.log.clear();
    rollout.world.remove("ConfigMap/a-0");
    rollout.world.write("ConfigMap/a-2", |live| live["data"]["text"] = "drifted".into());
    rollout.settle();
    assert_eq!(rollout.world.log, ["Create m[0]", "Repair m[2]"]);
    assert_eq!(["a-0", "a-1", "a-2", "a-3"].map(|name| rollout.text(name)), ["old", "new", "old", "new"]);
}

#[test]
fn item_of_an_earlier_origin_stays_until_pruning_is_permitted() {
    let package = members("");
    let old = json!({"size": 3, "text": "old"});
    let mut rollout = Rollout::new(Arc::clone(&package), &old, &package, json!({"size": 1, "text": "old"}));
    rollout.world.remove("ConfigMap/a-2");
    rollout.reached = vec!["m[0]"];
    rollout.settle();
    assert_eq!(rollout.world.log, ["Create m[2]"]);
    assert_eq!(rollout.world.names(), ["a-0", "a-1", "a-2"]);
    // Once a step has deleted one, it is not in the target, and not missing.
    rollout.world.remove("ConfigMap/a-2");
    rollout.absent = vec![ItemId::new("m", Some("2"))];
    rollout.world.log.clear();
    assert_eq!(rollout.settle(), Verdict::Ready { children: 2 });
    assert!(rollout.world.log.is_empty());
    // What is there and not in the target waits for the end of the run.
    rollout.absent.push(ItemId::new("m", Some("1")));
    let Verdict::Reconciling { message, .. } = rollout.settle() else { panic!("not reconciling") };
    assert_eq!(message, "the deletion of ConfigMap n/a-1 waits for the end of the run a-1");
    assert_eq!(rollout.world.names(), ["a-0", "a-1"]);
    // Without a run all items have one origin.
    assert_eq!(rollout.world.settle(), Verdict::Ready { children: 1 });
    assert_eq!(rollout.world.names(), ["a-0"]);
}

/// A package of `ConfigMap`s that are named after their child; `b` reads `a`.
fn texts(children: &[(&str, &str, &str)]) -> Arc<Package> {
    let entries = children
        .iter()
        .map(|(id, extra, _)| format!("  - {{id: {id}, template: templates/{id}.yaml{extra}}}\n"));
    let template = |text: &str, name: &str| {
        format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\ndata: {{text: \"{text}\"}}\n")
    };
    let templates: Vec<_> = children
        .iter()
        .map(|(id, _, text)| {
            let (name, text) = text.split_once('=').unwrap_or((id, text));
            (*id, template(text, name))
        })
        .collect();
    package(&format!("children:\n{}", entries.collect::<String>()), &templates)
}

#[test]
fn child_missing_in_the_newest_package_renders_from_its_own() {
    let before = texts(&[
        ("a", "", "1"),
        ("gone", "", "{{ children.a.data.text }}"),
        ("b", "", "{{ children.gone.data.text }}"),
    ]);
    let newest =
        texts(&[("new", "", "2"), ("a", "", "2"), ("b", ", dependsOn: [new]", "{{ children.a.data.text }}")]);
    let mut rollout = Rollout::new(before, &json!({}), &newest, json!({}));
    let order = |rollout: &Rollout| {
        rollout.with(|ctx, _| {
            let order = ctx.origins.in_order();
            order.into_iter().map(|number| ctx.origins.child_id(number).to_owned()).collect::<Vec<_>>()
        })
    };
    assert_eq!(order(&rollout), ["new", "a", "gone", "b"], "dependencies of all origins first");
    rollout.world.remove("ConfigMap/gone");
    rollout.settle();
    assert_eq!(rollout.world.log, ["Create gone"]);
    assert_eq!(rollout.text("gone"), "1");
    rollout.reached = vec!["a"];
    rollout.settle();
    // An earlier origin reads what is live.
    assert_eq!(rollout.world.log, ["Create gone", "Update a"]);
    assert_eq!(rollout.items()[3], item("gone", 1, "2"), "{:?}", rollout.items());
    rollout.reached = vec!["a", "new", "b"];
    rollout.settle();
    assert_eq!(rollout.world.log[2..], ["Create new", "Update b"]);
    rollout.world.log.clear();
    assert_eq!(rollout.world.settle(), Verdict::Ready { children: 3 });
    assert_eq!(rollout.world.log, ["Delete gone"]);
}

#[test]
fn a_renamed_child_is_the_same_in_all_origins() {
    let before = texts(&[("old", "", "x=1"), ("reader", "", "{{ children.old.data.text }}")]);
    let newest =
        texts(&[("new", ", renamedFrom: [old]", "x=2"), ("reader", "", "{{ children.new.data.text }}")]);
    let mut rollout = Rollout::new(before, &json!({}), &newest, json!({}));
    rollout.settle();
    assert!(rollout.world.log.is_empty(), "{:?}", rollout.world.log);
    assert_eq!(rollout.items(), [item("new", 1, "as it is"), item("reader", 1, "as it is")]);
    rollout.reached = vec!["new"];
    rollout.settle();
    assert_eq!(rollout.world.log, ["Update new"]);
    assert_eq!(rollout.text("x"), "2");
    // Recorded under its earlier id.
    rollout.reached = vec!["old"];
    assert_eq!(rollout.items()[0].1, NEWEST);
}

#[test]
fn an_object_moves_to_another_child_when_the_run_reaches_it() {
    let before = texts(&[("one", "", "x=1")]);
    let newest = texts(&[("other", "", "x=2")]);
    let mut rollout = Rollout::new(before, &json!({}), &newest, json!({}));
    rollout.world.write("ConfigMap/x", |live| live["data"]["text"] = "drifted".into());
    rollout.settle();
    assert_eq!(rollout.world.log, ["Repair one"]);
    rollout.reached = vec!["other"];
    assert_eq!(rollout.settle(), Verdict::Ready { children: 1 });
    assert_eq!(rollout.world.log, ["Repair one", "Update other"]);
}

#[test]
fn a_lost_item_is_neither_created_nor_repaired() {
    let package = members("");
    let spec = json!({"size": 2, "text": "x"});
    let mut rollout = Rollout::new(Arc::clone(&package), &spec, &package, spec.clone());
    rollout.lost = vec!["m[0]", "m[1]"];
    rollout.world.remove("ConfigMap/a-0");
    rollout.world.write("ConfigMap/a-1", |live| live["data"]["text"] = "drifted".into());
    let Verdict::Reconciling { message, .. } = rollout.settle() else { panic!("not reconciling") };
    assert_eq!(
        message,
        "m[0] is lost; the plan failover restores it; m[1] is lost; the plan failover restores it"
    );
    assert!(rollout.world.log.is_empty());
    rollout.lost.clear();
    rollout.settle();
    assert_eq!(rollout.world.log, ["Create m[0]", "Repair m[1]"]);
}

#[test]
fn no_member_counts_as_new_while_earlier_ones_are_unknown() {
    let each = ", forEach: {in: children.a.status.items}";
    let before = texts(&[("a", "", "1"), ("m", each, "m-{{ item }}=old")]);
    let newest = texts(&[("a", "", "1"), ("m", ", forEach: {in: \"['x', 'y']\"}", "m-{{ item }}=new")]);
    let mut world = World::new(Arc::clone(&before), &json!({}));
    world.settle();
    world.write("ConfigMap/a", |live| live["status"] = json!({"items": ["x"]}));
    assert_eq!(world.settle(), Verdict::Ready { children: 2 });
    let before = (before, world.instance.clone());
    world.package = newest;
    let mut rollout = Rollout { world, before, reached: Vec::new(), absent: Vec::new(), lost: Vec::new() };
    let names = |rollout: &Rollout| {
        rollout.items().into_iter().map(|(name, origin, _)| (name, origin)).collect::<Vec<_>>()
    };
    let of = |name: &str, origin| (name.to_owned(), origin);
    assert_eq!(names(&rollout), [of("a", 1), of("m[x]", 1), of("m[y]", 0)]);
    rollout.world.write("ConfigMap/a", |live| live["status"] = json!({}));
    assert_eq!(names(&rollout), [of("a", 1)]);
    rollout.reached = vec!["m[y]"];
    assert_eq!(names(&rollout), [of("a", 1), of("m[y]", 0)]);
    rollout.settle();
    assert!(rollout.world.names().contains(&"m-x"), "what is unknown is not pruned");
}
