//! `decide` against a little world: actions are carried out on a map of objects as an API server would, one
//! or some or none of them at a time, and the world must come to rest at the target.

mod absent;
mod accepted;
mod budgets;
mod going;
mod jobs;
mod limits;
mod marks;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::*;
use crate::children::fields::FieldSet;
use crate::package::{Files, compile};
use crate::readiness::Readiness;
use crate::template::Totals;

mod refs;

const CRD: &str = "
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: things.example.org}
spec:
  group: example.org
  scope: Namespaced
  names: {kind: Thing, listKind: ThingList, plural: things, singular: thing}
  versions:
    - name: v1
      served: true
      storage: true
      schema:
        openAPIV3Schema:
          type: object
          properties:
            spec:
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

fn package(resource: &str, templates: &[(&str, String)]) -> Package {
    let indented = resource.lines().fold(String::new(), |text, line| text + "      " + line + "\n");
    let operator = format!(
        "apiVersion: operetta.dev/v1alpha1\nkind: OperatorPackage\nmetadata: {{name: p}}\nspec:\n  version: 0.1.0\n  resources:\n    - crd: crds/thing.yaml\n{indented}"
    );
    let mut files =
        vec![("operator.yaml".to_owned(), operator), ("crds/thing.yaml".to_owned(), CRD.to_owned())];
    files.extend(templates.iter().map(|(name, text)| (format!("templates/{name}.yaml"), text.clone())));
    match compile(&Files::from_texts("p", files)) {
        Ok((package, _)) => package,
        Err(errors) => panic!("{}", crate::diag::render(&errors, false)),
    }
}

/// Objects by `kind/name`, and the instance.
struct World {
    package: Package,
    instance: Value,
    objects: BTreeMap<String, Observed>,
    memory: Memory,
    now: Duration,
    serial: u64,
    /// What refs may name, of any kind.
    foreign: Vec<Arc<Referred>>,
    /// Kinds that cannot be listed now.
    lost: BTreeSet<String>,
    /// Those of them that are there in another version.
    elsewhere: BTreeSet<String>,
    /// Those of them that the server has.
    unlisted: Vec<Unlisted>,
    /// New objects are ready at once.
    quick: bool,
    /// Children of a dead instance of that name.
    former: Vec<Arc<Observed>>,
    /// What lies in namespaces.
    occupants: BTreeMap<String, String>,
    log: Vec<String>,
    /// Whether no shape has been tried yet.
    untried: bool,
    /// What each decision may use.
    totals: Totals,
}

impl World {
    fn new(package: Package, spec: &Value) -> Self {
        let instance = json!({"apiVersion": "example.org/v1", "kind": "Thing", "spec": spec,
            "metadata": {"name": "a", "namespace": "n", "uid": "uid-1", "generation": 1, "resourceVersion": "1"}});
        Self {
            package,
            instance,
            objects: BTreeMap::new(),
            memory: Memory::default(),
            now: Duration::ZERO,
            serial: 100,
            foreign: Vec::new(),
            lost: BTreeSet::new(),
            elsewhere: BTreeSet::new(),
            unlisted: Vec::new(),
            quick: true,
            former: Vec::new(),
            occupants: BTreeMap::new(),
            log: Vec::new(),
            untried: false,
            totals: Totals::FULL,
        }
    }

    /// One that has all that it wants.
    fn settled(package: Package, spec: &Value) -> Self {
        let mut world = Self::new(package, spec);
        world.settle();
        world.log.clear();
        world
    }

    fn decide(&self) -> Decision {
        self.decide_and_count().0
    }

    /// With what it used.
    fn decide_and_count(&self) -> (Decision, Totals) {
        self.with_context(|ctx| (decide(ctx, &self.memory, self.now), ctx.budget.used()))
    }

    fn target(&self) -> Target {
        self.with_context(target)
    }

    fn with_context<T>(&self, then: impl FnOnce(&Context<'_>) -> T) -> T {
        let observed: Vec<_> = self.objects.values().cloned().map(Arc::new).collect();
        let unknown = |_: &str, kind: &str| self.lost.contains(kind).then(|| format!("{kind} is lost"));
        let ctx = Context {
            package: &self.package,
            resource: &self.package.resources[0],
            instance: &self.instance,
            operator_namespace: "operetta-system",
            observed: &observed,
            namespaced: &|_, kind| Some(kind != "ClusterRole"),
            unknown: &unknown,
            unlisted: &self.unlisted,
            listed: &|_, kind| !self.lost.contains(kind) || self.elsewhere.contains(kind),
            checked: &|_| !self.untried,
            former: &self.former,
            is_package_kind: &|_, kind| kind == "Elsewhere",
            occupant: &|namespace| self.occupants.get(namespace).cloned(),
            refs: &|want| self.refs(want),
            apis: None,
            budget: Arc::new(Budget::new(self.totals)),
        };
        then(&ctx)
    }

    /// Foreign objects that are there, by kind and name.
    fn refs(&self, want: &Want) -> Found {
        if self.lost.contains(&*want.kind) {
            return Found::Unknown(Blind::Forbidden("no rights".into()));
        }
        let there = |object: &&Arc<Referred>| match &want.select {
            Select::Name(name) => object.name == *name,
            Select::Labels(_) => true,
        };
        let own = |object: &&Arc<Referred>| want.namespace.is_none() || want.namespace == object.namespace;
        Found::Known(self.foreign.iter().filter(there).filter(own).cloned().collect())
    }

    fn act(&mut self, action: Action) {
        self.serial += 1;
        match action {
            Action::AddFinalizer => self.instance["metadata"]["finalizers"] = json!([names::FINALIZER]),
            Action::RemoveFinalizer | Action::LetGo => self.instance["metadata"]["finalizers"] = json!([]),
            Action::Apply(apply) => {
                let before = self.objects.get(&id(&apply.intent.object));
                assert_eq!(before.is_none(), apply.expect == Expect::Absent, "{}", apply.item);
                self.log.push(format!("{:?} {}", apply.why, apply.item));
                let readiness = if self.quick
                    || before.is_some_and(|b| {
                        b.readiness == Readiness::Ready && matches!(apply.why, Why::Repair | Why::Recheck)
                    }) {
                    Readiness::Ready
                } else {
                    Readiness::NotReady { reason: "Starting".into(), message: "starts".into() }
                };
                let uid = before.map_or_else(|| format!("u{}", self.serial).into(), |b| b.uid.clone());
                let mut observed = observe(&apply.intent, uid, self.serial, readiness);
                // Marks that others than the apply have set stay.
                if let Some(before) = before {
                    let meta = &apply.intent.body["metadata"]["annotations"];
                    if before.retained == Some(true) && meta[names::RETAINED].is_null() {
                        (observed.retained, observed.noted.retained) = (Some(true), before.noted.retained);
                    }
                    if before.asking == Some(Asking::Yes) && meta[names::PENDING].is_null() {
                        (observed.asking, observed.noted.pending) = (Some(Asking::Yes), before.noted.pending);
                    }
                    observed.completed = before.completed;
                    let live: Value = serde_json::from_str(before.live.as_deref().unwrap()).unwrap();
                    if let Some(status) = live.get("status") {
                        let mut body = (*apply.intent.body).clone();
                        body["status"] = status.clone();
                        observed.live = Some(body.to_string().into());
                    }
                }
                self.objects.insert(id(&observed.object), observed);
            }
            Action::Delete(observed) => {
                self.log.push(format!("Delete {}", observed.object.name));
                self.objects.remove(&id(&observed.object));
                self.former.retain(|o| o.object != observed.object);
            }
            Action::Ask(observed) => {
                self.log.push(format!("Ask {}", observed.object.name));
                if let Some(object) = self.objects.get_mut(&id(&observed.object)) {
                    object.asking = Some(Asking::Yes);
                    object.noted.pending = true;
                }
            }
            Action::Orphan(observed) => {
                self.log.push(format!("Orphan {}", observed.object.name));
                self.objects.remove(&id(&observed.object));
                self.former.retain(|o| o.object != observed.object);
            }
            Action::Record(record) => {
                self.log.push(format!("Record {}", record.is_some()));
                self.instance["metadata"]["annotations"][names::ACCEPTED] = record.into();
            }
            Action::Unmark(observed) => {
                self.log.push(format!("Unmark {}", observed.object.name));
                if let Some(object) = self.objects.get_mut(&id(&observed.object)) {
                    object.retained = object.retained.filter(|_| !object.noted.retained);
                    object.asking = object.asking.filter(|_| !object.noted.pending);
                    object.noted = Noted::default();
                }
            }
            Action::RecordJobs(text) => {
                self.log.push("RecordJobs".into());
                self.instance["metadata"]["annotations"][names::COMPLETED_JOBS] = text.into();
            }
            Action::MarkOrphaned => {
                self.instance["metadata"]["annotations"][names::ORPHANED] = "true".into();
            }
            Action::Retain(observed) => {
                self.log.push(format!("Retain {}", observed.object.name));
                if let Some(object) = self.objects.get_mut(&id(&observed.object)) {
                    object.retained = Some(true);
                    object.noted.retained = true;
                    object.guarded |= object.owner_reference;
                    object.owner_reference = false;
                }
            }
        }
    }

    /// Decides and acts until nothing is left to do; the last verdict.
    fn settle(&mut self) -> Verdict {
        for _ in 0..200 {
            let decision = self.decide();
            if decision.actions.is_empty() {
                return decision.verdict;
            }
            self.memory.swings.note(&decision.swings, self.now);
            for action in decision.actions {
                self.act(action);
            }
        }
        panic!("never comes to rest: {:?}", self.log);
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

fn id(object: &ObjectRef) -> String {
    format!("{}/{}", object.kind, object.name)
}

/// The object as it would be observed after the apply of an intent.
fn observe(intent: &Intent, uid: Box<str>, version: u64, readiness: Readiness) -> Observed {
    let meta = &intent.body["metadata"];
    let text = |v: &Value| v.as_str().map(Box::from);
    let mark = Mark::Generation(i64::try_from(version).unwrap(), 0);
    Observed {
        object: intent.object.clone(),
        uid,
        instance_uid: meta["labels"][names::INSTANCE_UID].as_str().unwrap().into(),
        resource_version: version.to_string().into(),
        child: text(&meta["labels"][names::CHILD]).unwrap(),
        key: text(&meta["annotations"][names::KEY]).or_else(|| text(&meta["labels"][names::KEY])),
        claim: names::Claim::default(),
        order: meta["annotations"][names::ORDER].as_str().map_or(0, |order| order.parse().unwrap()),
        guarded: meta["annotations"][names::ORDER].is_string(),
        intent: Some(intent.hash.as_str().into()),
        owned: Some(FieldSet::parse(&owned(&intent.body)).unwrap().interned()),
        foreign: FieldSet::default().interned(),
        settled: mark.clone(),
        mark,
        terminating: false,
        held_by: Vec::new(),
        owner_reference: meta.get("ownerReferences").is_some(),
        retained: meta["annotations"][names::RETAINED].as_str().map(|t| t == "true"),
        asking: meta["annotations"][names::PENDING].as_str().map(|_| Asking::No),
        noted: Noted::default(),
        completed: false,
        readiness,
        live: Some(intent.body.to_string().into()),
    }
}

/// The fieldsV1 of maps and scalars, as server-side apply would write it; lists as atoms.
fn owned(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            map.iter().map(|(k, v)| (format!("f:{k}"), owned(v))).collect::<serde_json::Map<_, _>>().into()
        }
        _ => json!({}),
    }
}

fn two_ordered() -> Package {
    package(
        "children:\n  - {id: a, template: templates/a.yaml}\n  - {id: b, template: templates/b.yaml, dependsOn: [a]}\n",
        &[("a", config("{{ name }}-a")), ("b", config("{{ name }}-b"))],
    )
}

fn members(extra: &str) -> Package {
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
    assert!(deletion::has_finalizer(&world.instance));
    world.ready("a-a");
    world.settle();
    world.ready("a-b");
    assert_eq!(world.settle(), Verdict::Ready { children: 2 });
    assert!(world.objects.values().all(|o| !o.owner_reference));

    world.log.clear();
    world.instance["metadata"]["deletionTimestamp"] = "now".into();
    world.settle();
    assert_eq!(world.log, ["Delete a-b", "Delete a-a"]);
    assert!(!deletion::has_finalizer(&world.instance));
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
    world.objects.remove("ConfigMap/a-2");
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
    let b = world.objects.get_mut("ConfigMap/a-b").unwrap();
    b.owned = Some(FieldSet::default().interned());
    world.settle();
    assert_eq!(world.log, ["Repair b"]);
}

#[test]
fn a_foreign_change_is_answered_once_in_thirty_seconds() {
    let mut world = World::settled(members(""), &json!({"size": 1}));
    world.objects.get_mut("ConfigMap/a-0").unwrap().mark = Mark::Generation(999, 0);
    world.memory.reapplied.insert(world.objects["ConfigMap/a-0"].object.clone(), Duration::ZERO);
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
    for (when, expected) in [("'5' > spec.size", "RenderFailed"), ("children.b.data.n > 1", "NotYet")] {
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
            (Verdict::Reconciling { reason, .. }, "NotYet") => assert_eq!(reason, expected),
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
    world.objects.get_mut("ConfigMap/a-1").unwrap().owned = Some(FieldSet::default().interned());
    world.edit(json!({"size": 2}));
    assert_eq!(world.settle(), Verdict::Ready { children: 2 });
    assert!(world.objects.values().all(|o| o.retained == Some(false)));
    world.instance["metadata"]["deletionTimestamp"] = "now".into();
    world.settle();
    assert_eq!(world.objects.len(), 2);
    assert!(!deletion::has_finalizer(&world.instance));
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
    let status = json!({"code": 403, "reason": "Forbidden", "message": message});
    let error = crate::cluster::CallError::from_status(&serde_json::from_value(status).unwrap());
    let hash = {
        let mut other = World::new(two_ordered(), &json!({}));
        other.settle();
        other.objects["ConfigMap/a-b"].intent.as_deref().unwrap().to_owned()
    };
    let failure = Failure {
        hash,
        error,
        retry_at: Duration::from_secs(9),
        count: 1,
        uid: None,
        blocks: true,
        version: None,
    };
    world.memory.failures.insert("b".into(), failure);
    let verdict = world.settle();
    assert!(world.objects.is_empty(), "{:?}", world.names());
    let Verdict::Stalled { reason, message } = verdict else { panic!("{verdict:?}") };
    assert_eq!(reason, "Forbidden");
    assert!(message.contains("nothing of this change is written"), "{message}");
    assert_eq!(world.decide().again, Some(Duration::from_secs(9)));
    // When its time has come it is tried again, and so are the others.
    world.now = Duration::from_secs(9);
    world.untried = true;
    assert_eq!(checked(&world.decide()), ["a", "b"]);
    // What exists is repaired nevertheless.
    let mut world =
        World { memory: std::mem::take(&mut world.memory), ..World::new(two_ordered(), &json!({})) };
    let failures = std::mem::take(&mut world.memory.failures);
    world.settle();
    world.memory.failures = failures;
    world.objects.remove("ConfigMap/a-b");
    world.objects.get_mut("ConfigMap/a-a").unwrap().owned = None;
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
        world.objects.get_mut("ConfigMap/a-0").unwrap().owned = None;
        let decision = world.decide();
        let Some(Action::Apply(apply)) = decision.actions.into_iter().next() else { break };
        assert_eq!(apply.why, Why::Repair);
        repairs += 1;
        assert_eq!(apply.contested, repairs == 20, "who it is is asked before it rests");
        let rival = apply.contested.then(|| (".data.text".to_owned(), Some("gitops".to_owned())));
        let (object, now) = (apply.intent.object.clone(), world.now);
        world.act(Action::Apply(apply));
        Repairs::count(&mut world.memory, &object, now, rival);
        assert!(repairs <= 20, "it never ends");
    }
    assert_eq!(repairs, 20);
    let decision = world.decide();
    let Verdict::Stalled { reason, message } = decision.verdict else { panic!("{:?}", decision.verdict) };
    assert_eq!(reason, "Contested");
    assert!(message.contains("gitops changes .data.text") && message.contains("yields"), "{message}");
    assert_eq!(decision.again, Some(Duration::from_secs(30)));
    // One each half a minute; and an hour later all is forgotten.
    world.now = Duration::from_secs(30);
    assert_eq!(world.decide().actions.len(), 1);
    let object = world.objects["ConfigMap/a-0"].object.clone();
    let now = world.now;
    Repairs::count(&mut world.memory, &object, now, None);
    assert!(world.decide().actions.is_empty());
    world.now = Duration::from_secs(3_600);
    assert_eq!(world.settle(), Verdict::Ready { children: 1 });
}

#[test]
fn a_refused_child_waits_and_stops_nobody_else() {
    let mut world = World::new(members(""), &json!({"size": 2}));
    let hash = match &world.decide().actions[0] {
        Action::Apply(apply) => apply.intent.hash.clone(),
        other => panic!("{other:?}"),
    };
    let status = json!({"code": 422, "reason": "Invalid", "message": "no"});
    let error = crate::cluster::CallError::from_status(&serde_json::from_value(status).unwrap());
    world.memory.failures.insert(
        "m[0]".into(),
        Failure {
            hash,
            error,
            retry_at: Duration::from_secs(9),
            count: 1,
            uid: None,
            blocks: false,
            version: None,
        },
    );
    let verdict = world.settle();
    assert!(matches!(&verdict, Verdict::Stalled { reason, .. } if reason == "ApplyRefused"), "{verdict:?}");
    assert_eq!(world.names(), ["a-1"]);
    assert_eq!(world.decide().again, Some(Duration::from_secs(9)));
    // Another intent is tried at once.
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
    let status =
        json!({"code": 403, "reason": "Forbidden", "message": "x is forbidden: User \"u\" cannot patch"});
    let error = crate::cluster::CallError::from_status(&serde_json::from_value(status).unwrap());
    let kept = &world.objects["ConfigMap/a-2"];
    let failure = Failure {
        hash: kept.uid.to_string(),
        error,
        retry_at: Duration::from_secs(9),
        count: 1,
        uid: None,
        blocks: false,
        version: None,
    };
    world.memory.kept.insert(kept.object.clone(), failure);
    world.edit(json!({"size": 1}));
    let verdict = world.settle();
    assert!(
        matches!(&verdict, Verdict::Stalled { reason, .. } if reason == "DeletionRefused"),
        "{verdict:?}"
    );
    assert_eq!(world.names(), ["a-0", "a-2"]);
    assert_eq!(world.decide().again, Some(Duration::from_secs(9)));
    world.now = Duration::from_secs(9);
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
    assert!(!deletion::has_finalizer(&world.instance));
}

#[test]
fn paused_writes_nothing() {
    let mut world = World::new(members(""), &json!({"size": 1}));
    world.instance["metadata"]["annotations"] = json!({names::PAUSED: "true"});
    assert_eq!(world.settle(), Verdict::Paused);
    assert!(world.objects.is_empty());
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
        world.objects.iter().map(|(k, o)| (k.clone(), o.intent.clone(), o.order)).collect::<Vec<_>>()
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
                world.memory = Memory::default();
                if random.u8(..) < 40
                    && let Some(key) =
                        world.objects.keys().nth(random.usize(0..world.objects.len().max(1))).cloned()
                {
                    world.objects.remove(&key);
                }
            }
            assert!(matches!(world.settle(), Verdict::Ready { .. }), "seed {seed}");
            assert_eq!(shape(&world), *expected, "seed {seed}");
        }
    }
}
