//! `decide` against an API server in memory: its actions are carried out, one or some or none of them at a time, and the
//! world must come to rest at the target. Requests, and what is observed and recorded of replies, are the product's own.

mod absent;
mod accepted;
mod budgets;
mod deletion_runs;
mod dry_runs;
mod findings;
mod going;
mod jobs;
mod limits;
mod marks;
mod origins;
mod plans;
mod render;
mod schedule;
mod server;
mod snapshot;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::decide::decide_target;
use super::schedule::{Graph, Schedule};
use super::*;
use crate::api::{CallError, Gvk, ObjectRef};
use crate::package::{Files, Package, compile};
use crate::readiness::Readiness;
use crate::template::{Budget, Totals};
use crate::test_crd::crd_to_properties;

mod refs;

use server::Server;

/// The properties of the CRD's schema.
const PROPERTIES: &str = "            spec:
              type: object
              properties:
                size: {type: integer}
                text: {type: string}
                host: {type: string}
                stop: {type: boolean}
            status:
              type: object
              x-kubernetes-preserve-unknown-fields: true
              properties: {size: {type: string}}
";

fn config(name: &str) -> String {
    format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: \"{name}\"}}\ndata: {{text: \"{{{{ spec.text | default('') }}}}\"}}\n"
    )
}

fn package(resource: &str, templates: &[(&str, String)]) -> Arc<Package> {
    let indented = resource.lines().fold(String::new(), |text, line| text + "      " + line + "\n");
    let operator = format!(
        "apiVersion: operetta.dev/v1alpha1\nkind: OperatorPackage\nmetadata: {{name: p}}\nspec:\n  version: 0.1.0\n  resources:\n    - crd: crds/thing.yaml\n{indented}"
    );
    let mut files = vec![
        ("operator.yaml".to_owned(), operator),
        ("crds/thing.yaml".to_owned(), crd_to_properties("example.org", "things", "Thing") + PROPERTIES),
    ];
    files.extend(templates.iter().map(|(name, text)| (format!("templates/{name}.yaml"), text.clone())));
    match compile(&Files::from_texts("p", files)) {
        Ok((package, _)) => Arc::new(package),
        Err(errors) => panic!("{}", crate::diag::render(&errors, false)),
    }
}

/// Objects by `kind/name`, and the instance.
#[expect(clippy::struct_excessive_bools, reason = "they have nothing to do with each other")]
struct World {
    package: Arc<Package>,
    instance: Value,
    objects: BTreeMap<String, Observed>,
    /// What the API server has.
    server: Server,
    state: ReconcileState,
    /// The instance before the edit that is not accepted yet.
    previous: Option<Value>,
    now: Duration,
    /// What refs may name, of any kind.
    foreign: Vec<Arc<Referred>>,
    /// Kinds that cannot be listed now.
    lost: BTreeSet<String>,
    /// Those of them that are there in another version.
    elsewhere: BTreeSet<String>,
    /// Kinds that the server has and that cannot be listed.
    unlisted: Vec<String>,
    /// New objects are ready at once.
    quick: bool,
    /// What lies in namespaces.
    occupants: BTreeMap<String, String>,
    log: Vec<String>,
    /// Whether no shape has been tried yet.
    untried: bool,
    /// What each decision may use.
    totals: Totals,
    /// What belongs to runs.
    runs: plans::RunStore,
    /// Whether the kind has plans.
    has_plans: bool,
    /// Whether the package is loaded.
    is_loaded: bool,
}

impl World {
    fn new(package: Arc<Package>, spec: &Value) -> Self {
        let instance = json!({"apiVersion": "example.org/v1", "kind": "Thing", "spec": spec,
            "metadata": {"name": "a", "namespace": "n", "uid": "uid-1", "generation": 1, "resourceVersion": "1"}});
        Self {
            package,
            instance,
            objects: BTreeMap::new(),
            server: Server::default(),
            state: ReconcileState::default(),
            previous: None,
            now: Duration::ZERO,
            foreign: Vec::new(),
            lost: BTreeSet::new(),
            elsewhere: BTreeSet::new(),
            unlisted: Vec::new(),
            quick: true,
            occupants: BTreeMap::new(),
            log: Vec::new(),
            untried: false,
            totals: Totals::FULL,
            runs: plans::RunStore::default(),
            has_plans: false,
            is_loaded: true,
        }
    }

    /// One that has all that it wants.
    fn settled(package: Arc<Package>, spec: &Value) -> Self {
        let mut world = Self::new(package, spec);
        world.settle();
        world.log.clear();
        world
    }

    fn decide(&self) -> Decision {
        let mut snapshot = self.snapshot();
        loop {
            let mut decision = decide(&snapshot, &self.state, self.now);
            let is_new = snapshot.look_up(&decision.wants, |want| self.refs(want));
            let asked = !decision.namespaces.is_empty();
            for namespace in std::mem::take(&mut decision.namespaces) {
                let user = self.occupants.get(&namespace).cloned();
                snapshot.namespace_users.insert(namespace, user);
            }
            if !is_new && !asked {
                // What has passed is not tried again.
                decision.checks.retain(|_| self.untried);
                return decision;
            }
        }
    }

    fn snapshot(&self) -> Snapshot {
        let active = ActivePackage::new(&self.package, 0).unwrap();
        let mut snapshot = Snapshot::new(active, self.instance.clone(), |gvk| &*gvk.kind != "ClusterRole");
        let uid = &self.instance["metadata"]["uid"];
        let all = self.objects.values().cloned().map(Arc::new);
        (snapshot.observed, snapshot.previous_children) = all.partition(|o| *uid == *o.instance_uid);
        if !self.is_loaded {
            snapshot.package = Err("it is broken".into());
        }
        snapshot.limits = self.totals;
        snapshot.plans = self.has_plans.then(|| Box::new(self.runs.snapshot(self.now)));
        snapshot.deletions = Some(Box::new(self.runs.deletions(self.now)));
        snapshot.previous.clone_from(&self.previous);
        for info in &mut snapshot.kinds {
            info.is_instance_kind = &*info.gvk.kind == "Elsewhere";
            let why = format!("{} is lost", info.gvk.kind);
            if self.elsewhere.contains(&*info.gvk.kind) {
                info.listing = Listing::OtherVersion(why);
            } else if self.lost.contains(&*info.gvk.kind) {
                info.listing = Listing::NotServed(why);
            }
        }
        for kind in &self.unlisted {
            snapshot.kinds.retain(|info| *info.gvk.kind != **kind);
            let info = KindInfo::listed(Gvk::new("v1", kind.as_str()), true);
            snapshot.kinds.push(KindInfo { listing: Listing::Unreadable("forbidden".into()), ..info });
        }
        snapshot
    }

    /// The target of the instance as it is.
    fn with<T>(&self, use_it: impl FnOnce(&Context<'_>, Target) -> T) -> T {
        let snapshot = self.snapshot();
        let origins = Origins::one(Origin::now(&snapshot).unwrap());
        let ctx = Context::new(&snapshot, &origins, Budget::default());
        let target = target(&ctx);
        use_it(&ctx, target)
    }

    /// Foreign objects that are there, by kind and name.
    fn refs(&self, want: &ResourceSelector) -> LookupResult {
        if self.lost.contains(&*want.gvk.kind) {
            return LookupResult::Unknown(ReadError::Forbidden("no rights".into()));
        }
        let there = |object: &&Arc<Referred>| match &want.select {
            Select::Name(name) => object.name == *name,
            Select::Labels(_) => true,
        };
        let own = |object: &&Arc<Referred>| want.namespace.is_none() || want.namespace == object.namespace;
        LookupResult::Known(self.foreign.iter().filter(there).filter(own).cloned().collect())
    }

    /// Carries out an action that the server takes; what it came to.
    fn act(&mut self, action: Action) -> Outcome {
        self.log.extend(told(&action));
        match action {
            Action::Apply(apply) => {
                let key = id(&apply.desired.object);
                let is_settled = self.objects.get(&key).is_some_and(|o| o.readiness == Readiness::Ready)
                    && matches!(apply.why, Why::Repair | Why::Recheck);
                let manager = names::field_manager(&self.package.name);
                let reply = self.server.apply(&key, &apply.expect.body(&apply.desired), &manager);
                assert!(reply.is_some(), "{}: not as expected", apply.item);
                let readiness = if self.quick || is_settled {
                    Readiness::Ready
                } else {
                    Readiness::NotReady { reason: "Starting".into(), message: "starts".into() }
                };
                let mut live = self.observe(&key).unwrap();
                live.readiness = readiness;
                self.objects.insert(key, live.clone());
                let applied = Applied { apply: *apply, live: live.into(), adopted: false, conflict: None };
                return Outcome::Applied(Box::new(applied));
            }
            Action::Delete(ref observed) => drop(self.remove(&id(&observed.object))),
            Action::Run(ref run) => {
                self.runs.carry_out((**run).clone(), &mut self.instance);
            }
            _ => match action.removed() {
                Some(observed) => {
                    let key = id(&observed.object);
                    let live = self.server.objects.get(&key).filter(|_| patches::reads_live(&action));
                    let patch = patches::of_child(&action, live).expect("a live object");
                    assert!(
                        self.server.patch(&key, &patch, names::NOTES).is_some(),
                        "{key}: not as expected"
                    );
                    self.learn(&key, true);
                }
                None => {
                    if let Some(patch) = patches::of_instance(&action, &self.instance) {
                        server::merge(&mut self.instance, &patch);
                    }
                }
            },
        }
        Outcome::Done(action)
    }

    /// The object as the product sees it; nothing if it is none of its.
    fn observe(&self, key: &str) -> Option<Observed> {
        let mut body = self.server.objects[key].clone();
        let metadata = serde_json::from_value(body["metadata"].clone()).unwrap();
        body["metadata"].as_object_mut().unwrap().remove("managedFields");
        let gvk = Gvk::of(&body).unwrap();
        Seen { gvk: &gvk, metadata: &metadata, body: Some(&body), reports: false }
            .observe(|_, _| Arc::from([vec![]]))
    }

    /// Takes in what the server has now, as a reply to a write of ours or as an event.
    fn learn(&mut self, key: &str, is_own_write: bool) {
        let Some(mut observed) = self.observe(key) else {
            self.objects.remove(key);
            return;
        };
        if let Some(present) = self.objects.get(key) {
            observed.readiness = present.readiness.clone();
            if !is_own_write {
                observed.settled = present.settled.clone();
            }
        }
        self.objects.insert(key.to_owned(), observed);
    }

    /// Another client writes an object.
    fn write(&mut self, key: &str, change: impl FnOnce(&mut Value)) {
        self.server.write(key, "another", change);
        self.learn(key, false);
    }

    /// Another client empties the managedFields of an object.
    fn strip(&mut self, key: &str) {
        self.server.objects.get_mut(key).unwrap()["metadata"]["managedFields"] = json!([]);
        self.learn(key, false);
    }

    /// Another client deletes an object.
    fn remove(&mut self, key: &str) -> Option<Observed> {
        self.server.objects.remove(key);
        self.objects.remove(key)
    }

    /// Carries out a decision.
    fn carry_out(&mut self, actions: Vec<Action>, changes: Vec<TargetChange>) {
        let outcomes: Vec<Outcome> = actions.into_iter().map(|action| self.act(action)).collect();
        self.state.record_all(&outcomes, changes, self.now);
    }

    /// Corrects drift; who takes the fields is looked up where that is asked for.
    fn correct(&mut self, apply: Box<Apply>) {
        let contested = apply.repair.is_frequent;
        let Outcome::Applied(mut applied) = self.act(Action::Apply(apply)) else { unreachable!() };
        applied.conflict = contested.then(|| (".data.text".to_owned(), Some("gitops".to_owned())));
        self.state.record(&Outcome::Applied(applied), self.now);
    }

    /// The server refuses an action.
    fn refuse(&mut self, action: Action, error: CallError) {
        self.state.record(&Outcome::Refused(action, error), self.now);
    }

    /// Decides and acts until nothing is left to do; the last verdict.
    fn settle(&mut self) -> Verdict {
        for _ in 0..200 {
            let decision = self.decide();
            if decision.actions.is_empty() {
                return decision.verdict;
            }
            self.carry_out(decision.actions, decision.target_changes);
        }
        panic!("never comes to rest: {:?}", self.log);
    }

    /// The world as a manager sees it that has just started.
    fn restart(&mut self) {
        self.state = ReconcileState::default();
        self.previous = None;
    }

    /// Waits until what was refused is tried again.
    fn rest(&mut self) {
        self.now += self.decide().again.unwrap();
    }

    fn names(&self) -> Vec<&str> {
        self.objects.values().map(|o| &*o.object.name).collect()
    }

    fn ready(&mut self, name: &str) {
        for object in self.objects.values_mut().filter(|o| &*o.object.name == name) {
            object.readiness = Readiness::Ready;
        }
    }

    fn edit(&mut self, spec: Value) {
        self.instance["spec"] = spec;
        self.instance["metadata"]["generation"] =
            (self.instance["metadata"]["generation"].as_i64().unwrap() + 1).into();
        self.log.clear();
    }
}

fn refusal(code: u16, reason: &str, message: &str) -> CallError {
    let status = json!({"code": code, "reason": reason, "message": message});
    CallError::from_status(&serde_json::from_value(status).unwrap())
}

fn id(object: &ObjectRef) -> String {
    format!("{}/{}", object.gvk.kind, object.name)
}

/// What the log says of an action.
fn told(action: &Action) -> Option<String> {
    let (verb, observed) = match action {
        Action::Apply(apply) => return Some(format!("{:?} {}", apply.why, apply.item)),
        Action::Record(record) => return Some(format!("Record {}", record.is_some())),
        Action::RecordJobs(_) => return Some("RecordJobs".to_owned()),
        Action::Delete(observed) => ("Delete", observed),
        Action::Retain(observed) => ("Retain", observed),
        Action::Ask(observed) => ("Ask", observed),
        Action::Orphan(observed) => ("Orphan", observed),
        Action::Unmark(observed) => ("Unmark", observed),
        _ => return None,
    };
    Some(format!("{verb} {}", observed.object.name))
}

fn two_ordered() -> Arc<Package> {
    package(
        "children:\n  - {id: a, template: templates/a.yaml}\n  - {id: b, template: templates/b.yaml, dependsOn: [a]}\n",
        &[("a", config("{{ name }}-a")), ("b", config("{{ name }}-b"))],
    )
}

fn members(extra: &str) -> Arc<Package> {
    package(
        &format!(
            "children:\n  - id: m\n    template: templates/m.yaml\n    forEach: {{in: range(spec.size), as: i, key: i}}\n{extra}"
        ),
        &[("m", config("{{ name }}-{{ i }}"))],
    )
}

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
fn a_json_path_in_the_status_finds_one_value_or_a_list_or_nothing() {
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
fn members_that_are_gone_or_going_count_as_unavailable() {
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
fn members_come_and_go_and_the_others_stay() {
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
fn unknown_is_not_empty() {
    let mut world = World::settled(members(""), &json!({"size": 2}));
    world.lost.insert("ConfigMap".into());
    world.edit(json!({"size": 0}));
    assert!(!matches!(world.settle(), Verdict::Ready { children: 2 }));
    assert!(world.log.is_empty(), "{:?}", world.log);
    assert_eq!(world.objects.len(), 2);
}

#[test]
fn a_child_that_cannot_be_rendered_holds_back_the_pruning_but_not_the_others() {
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

/// What has no order yet is awaited; what never has one is a mistake, and somebody has to mend it.
#[test]
fn a_when_that_compares_text_with_a_number_is_a_mistake() {
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
fn retained_children_stay_and_are_taken_again() {
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
fn what_nobody_has_tried_is_checked_whole_before_the_first_write() {
    let mut world = World::new(two_ordered(), &json!({}));
    assert!(world.decide().checks.is_empty());
    world.untried = true;
    // Also what waits for its turn.
    assert_eq!(checked(&world.decide()), ["a", "b"]);
    world.settle();
    assert!(world.decide().checks.is_empty(), "nothing is to be written");
    // An update is another shape; one that is repaired is none.
    let first: BTreeSet<u64> = {
        let mut fresh = World::new(two_ordered(), &json!({}));
        fresh.untried = true;
        fresh.decide().checks.iter().map(|check| check.shape).collect()
    };
    world.edit(json!({"text": "x"}));
    let decision = world.decide();
    assert_eq!(checked(&decision), ["a", "b"]);
    assert!(decision.checks.iter().all(|check| !first.contains(&check.shape)));

    // Equal members are one shape.
    let mut world = World::new(members(""), &json!({"size": 3}));
    world.untried = true;
    assert_eq!(checked(&world.decide()), ["m[0]"]);
}

#[test]
fn what_a_dry_run_refused_holds_the_whole_change_until_it_is_mended() {
    let mut world = World::new(two_ordered(), &json!({}));
    let message =
        "configmaps is forbidden: User \"u\" cannot patch resource \"configmaps\" in API group \"\"";
    let error = refusal(403, "Forbidden", message);
    let refused = {
        let mut other = World::new(two_ordered(), &json!({}));
        other.untried = true;
        let check = other.decide().checks.into_iter().find(|check| check.item == "b").unwrap();
        Outcome::DryRunRefused(Box::new(check), error)
    };
    world.state.record(&refused, world.now);
    let verdict = world.settle();
    assert!(world.objects.is_empty(), "{:?}", world.names());
    let Verdict::Stalled { reason, message } = verdict else { panic!("{verdict:?}") };
    assert_eq!(reason, "Forbidden");
    assert!(message.contains("nothing of this change is written"), "{message}");
    world.rest();
    // When its time has come it is tried again, and so are the others.
    world.untried = true;
    assert_eq!(checked(&world.decide()), ["a", "b"]);
    // What exists is repaired nevertheless.
    let mut world = World::settled(two_ordered(), &json!({}));
    world.state.record(&refused, world.now);
    world.remove("ConfigMap/a-b");
    world.strip("ConfigMap/a-a");
    world.log.clear();
    world.settle();
    assert_eq!(world.log, ["Repair a", "Record true"]);
}

#[test]
fn who_keeps_changing_a_field_is_named_and_no_war_is_waged() {
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
    // One each half a minute; and an hour later all is forgotten.
    world.now = Duration::from_secs(30);
    assert_eq!(world.decide().actions.len(), 1);
    world.settle();
    world.strip("ConfigMap/a-0");
    assert!(world.decide().actions.is_empty());
    world.now = Duration::from_secs(3_600);
    assert_eq!(world.settle(), Verdict::Ready { children: 1 });
}

#[test]
fn a_refused_child_waits_and_stops_nobody_else() {
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
fn two_children_that_are_one_object_are_refused_and_the_object_stays() {
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
fn a_deletion_that_is_refused_is_told_and_stops_nobody_else() {
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
fn who_merely_copied_our_labels_is_neither_deleted_nor_waited_for() {
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
fn paused_writes_nothing() {
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
    // What it would do is computed as ever.
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

/// Whatever part of the actions is carried out before a crash, the world ends as if there had been none.
#[test]
fn every_schedule_ends_in_the_same_world() {
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
