//! `decide` against an API server in memory: its actions are carried out, one or some or none of them at a time, and the
//! world must come to rest at the target. Requests, and what is observed and recorded of replies, are the product's own.

mod absent;
mod accepted;
mod budgets;
mod deletion;
mod deletion_runs;
mod dry_runs;
mod findings;
mod jobs;
mod limits;
mod origins;
mod plans;
mod policy_annotations;
mod ready;
mod render;
mod retained;
mod rules;
mod server;
mod siblings;
mod snapshot;
mod write_order;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::decide_target::decide_target;
use super::write_order::{Graph, WriteOrder};
use super::*;
use crate::api::{CallError, Gvk, ObjectRef};
use crate::package::{Files, Package, compile};
use crate::readiness::Readiness;
use crate::template::{Budget, Totals};
use crate::test_crd::crd_to_properties;

mod refs;

use super::tests::server::Server;

/// The properties of the CRD's schema.
const PROPERTIES: &str = "            spec:
              type: object
              properties:
                size: {type: integer}
                text: {type: string}
                host: {type: string}
                stop: {type: boolean}
                fails: {type: boolean}
                back: {type: boolean}
                alarm: {type: boolean}
                smoke: {type: boolean}
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

/// A cluster in memory with one instance, and what the manager remembers of it. Objects are named by
/// `kind/name`.
#[expect(clippy::struct_excessive_bools, reason = "they have nothing to do with each other")]
#[derive(Clone)]
struct World {
    package: Arc<Package>,
    instance: Value,
    objects: BTreeMap<String, Observed>,
    /// The objects of the API server.
    server: Server,
    state: ReconcileState,
    /// The instance before the edit that is not accepted yet.
    previous: Option<Value>,
    now: Duration,
    /// Objects that refs may name, of any kind.
    foreign: Vec<Arc<Referred>>,
    /// Kinds that cannot be listed now.
    lost: BTreeSet<String>,
    /// Kinds that are listed in another version only.
    elsewhere: BTreeSet<String>,
    /// Kinds that the server has and that cannot be listed.
    unlisted: Vec<String>,
    /// Whether new objects are ready at once.
    quick: bool,
    /// The user of each namespace.
    occupants: BTreeMap<String, String>,
    log: Vec<String>,
    /// Whether decisions keep their dry runs, because none has passed yet.
    untried: bool,
    /// What each decision may use.
    totals: Totals,
    /// The objects of runs.
    runs: plans::RunStore,
    /// Whether the kind has plans.
    has_plans: bool,
    /// Whether the package is loaded.
    is_loaded: bool,
    accepted_key: AcceptedKey,
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
            accepted_key: AcceptedKey::new(b"key"),
        }
    }

    /// A world that has reached its target.
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
            let is_new = snapshot.look_up(&decision.needs.watches, |want| self.refs(want));
            let asked = !decision.needs.namespace_users.is_empty();
            for namespace in std::mem::take(&mut decision.needs.namespace_users) {
                let user = self.occupants.get(&namespace).cloned();
                snapshot.namespace_users.insert(namespace, user);
            }
            if !is_new && !asked {
                // Dry runs that have passed are not sent again.
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
        snapshot.accepted_key = self.accepted_key.clone();
        snapshot.plans = self.has_plans.then(|| Box::new(self.runs.snapshot(self.now, &self.instance)));
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

    /// Calls a function with the target of the instance as it is.
    fn with<T>(&self, use_it: impl FnOnce(&Context<'_>, Target) -> T) -> T {
        let snapshot = self.snapshot();
        let origins = Origins::one(snapshot.origin().unwrap());
        let ctx = Context::new(&snapshot, &origins, Budget::default());
        let target = target(&ctx);
        use_it(&ctx, target)
    }

    /// Looks up foreign objects by kind and name.
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

    /// Carries out an action that the server accepts. Returns the outcome.
    fn act(&mut self, action: Action) -> ActionOutcome {
        self.log.extend(told(&action));
        match action {
            Action::Apply(apply) => {
                let key = id(&apply.desired.object);
                let is_settled = self.objects.get(&key).is_some_and(|o| o.readiness == Readiness::Ready)
                    && matches!(apply.why, Why::Repair | Why::Recheck);
                let manager = names::field_manager(&self.package.name);
                let mut body = apply.expect.body(&apply.desired);
                let mut adopted = None;
                // What the executor does with an object that a former instance has left.
                if let Some(left) = self.objects.get(&key).filter(|_| apply.expect == Expect::Absent) {
                    assert_eq!(apply.adopts.as_ref(), Some(&left.uid), "{}: not seen", apply.item);
                    body["metadata"]["resourceVersion"] = Value::Null;
                    body["metadata"]["uid"] = Value::from(&*left.uid);
                    adopted = Some(adoption::Adopted::Inherited);
                }
                let reply = self.server.apply(&key, &body, &manager);
                assert!(reply.is_some(), "{}: not as expected", apply.item);
                let readiness = if self.quick || is_settled {
                    Readiness::Ready
                } else {
                    Readiness::NotReady { reason: "Starting".into(), message: "starts".into() }
                };
                let mut live = self.observe(&key).unwrap();
                live.readiness = readiness;
                self.objects.insert(key, live.clone());
                let applied = Applied { apply: *apply, live: live.into(), adopted, conflict: None };
                return ActionOutcome::Applied(Box::new(applied));
            }
            Action::Delete(ref observed) | Action::ForceDelete(ref observed) => {
                drop(self.remove(&id(&observed.object)));
            }
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
                        operetta_kube_model::patch::merge(&mut self.instance, &patch);
                    }
                }
            },
        }
        ActionOutcome::Done(action)
    }

    /// The object as the product sees it; `None` if it is no child.
    fn observe(&self, key: &str) -> Option<Observed> {
        let mut body = self.server.objects[key].clone();
        let metadata = serde_json::from_value(body["metadata"].clone()).unwrap();
        body["metadata"].as_object_mut().unwrap().remove("managedFields");
        let gvk = Gvk::of(&body).unwrap();
        RawObject { gvk: &gvk, metadata: &metadata, body: Some(&body), reports: false }
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
                observed.baseline = present.baseline.clone();
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
        let mut outcomes: Vec<ActionOutcome> = Vec::new();
        for action in actions {
            match self.runs.refusal(&action) {
                Some(outcome) => outcomes.push(outcome),
                // It may say that something was done that was refused.
                None if plans::writes_memory(&action) && outcomes.iter().any(plans::is_refusal) => break,
                None => outcomes.push(self.act(action)),
            }
        }
        self.state.record_all(&outcomes, changes, self.now);
    }

    /// Corrects drift. The conflicting manager is looked up where the apply asks for it.
    fn correct(&mut self, apply: Box<Apply>) {
        let contested = apply.repair.is_frequent;
        let ActionOutcome::Applied(mut applied) = self.act(Action::Apply(apply)) else { unreachable!() };
        applied.conflict = contested.then(|| (".data.text".to_owned(), Some("gitops".to_owned())));
        self.state.record(&ActionOutcome::Applied(applied), self.now);
    }

    /// The server refuses an action.
    fn refuse(&mut self, action: Action, error: CallError) {
        self.state.record(&ActionOutcome::Refused(action, error), self.now);
    }

    /// Decides and acts until nothing is left to do. Returns the last verdict.
    fn settle(&mut self) -> Verdict {
        for _ in 0..200 {
            let decision = self.decide();
            if let Some(conditions) = decision.conditions {
                self.state.record(&ActionOutcome::ConditionsWatched(conditions), self.now);
            }
            if decision.actions.is_empty() {
                return decision.verdict;
            }
            self.carry_out(decision.actions, decision.target_changes);
        }
        panic!("never comes to rest: {:?}", self.log);
    }

    /// Forgets what the manager remembers, as a restart does.
    fn restart(&mut self) {
        self.state = ReconcileState::default();
        self.previous = None;
    }

    /// Waits until what was refused is tried again.
    fn rest(&mut self) {
        self.pass(self.decide().again.unwrap());
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

/// An object that refs may name, in the namespace of the instance.
fn referred(value: Value, ready: bool) -> Arc<Referred> {
    let name = value["metadata"]["name"].as_str().unwrap().into();
    Arc::new(Referred { namespace: Some("n".into()), name, value: Arc::new(value), ready })
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
        Action::ForceDelete(observed) => ("ForceDelete", observed),
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
