//! Looks at the cluster after every write: invariants, and what the case has reached.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::Value;

use super::absence::Absence;
use super::deeds::bare;
use super::end::End;
use super::ended::{Failure, IMAGE, Reached, failed};
use super::expect::{CheckResult, Problem, evaluate, problems, with_operands};
use super::faults::Faults;
use super::objects::{Cache, Source};
use super::refused;
use super::scene::{Unready, scene};
use super::suite::{Expect, Invariant};
use super::view::{Identity, Kinds, Seen, Subject, View};
use super::witness::Moment;
use crate::api::ApiKind;
use crate::children::{PLAN_REPEATS, REPEATING};
use crate::diag::Location;
use crate::facts::condition;
use crate::package::Package;
use crate::package::test_file::Address;
use crate::template::Engine;

/// What looks at the cluster of a play.
pub(super) struct Watcher {
    kinds: Kinds,
    packages: Vec<Arc<Package>>,
    subject: Option<Subject>,
    pub invariants: Vec<Invariant>,
    /// The first invariant that did not hold.
    pub violated: Option<(Invariant, String)>,
    pub reached: Reached,
    engine: Engine,
    cache: RefCell<Cache>,
    /// What [`Cache::refresh`] said when all was looked at last.
    seen: Option<(u64, bool)>,
    present: BTreeSet<Identity>,
    deleted: BTreeSet<Identity>,
    /// The kinds of which it remembers what is no longer there.
    tracked: BTreeSet<String>,
    /// What cases say is absent, and was not there yet.
    absent: BTreeSet<Absence>,
    /// What of that was there at some moment.
    was_there: BTreeSet<Absence>,
    /// The invariants that were true or false at some moment, by their place.
    decided: BTreeSet<usize>,
    faults: Faults,
}

/// What a watcher remembers.
#[derive(Debug, Clone)]
pub(super) struct Remembered {
    subject: Option<Subject>,
    present: BTreeSet<Identity>,
    deleted: BTreeSet<Identity>,
    was_there: BTreeSet<Absence>,
    decided: BTreeSet<usize>,
}

impl Watcher {
    pub(super) fn new(
        kinds: Kinds,
        packages: Vec<Arc<Package>>,
        invariants: &[Invariant],
        tracked: BTreeSet<String>,
        faults: Faults,
    ) -> Self {
        Self {
            kinds,
            packages,
            subject: None,
            invariants: invariants.to_vec(),
            violated: None,
            reached: Reached::new(),
            engine: Engine::empty(),
            cache: RefCell::default(),
            seen: None,
            present: BTreeSet::new(),
            deleted: BTreeSet::new(),
            tracked,
            absent: BTreeSet::new(),
            was_there: BTreeSet::new(),
            decided: BTreeSet::new(),
            faults,
        }
    }

    pub(super) fn remembered(&self) -> Remembered {
        let Self { subject, present, deleted, was_there, decided, .. } = self;
        Remembered {
            subject: subject.clone(),
            present: present.clone(),
            deleted: deleted.clone(),
            was_there: was_there.clone(),
            decided: decided.clone(),
        }
    }

    pub(super) fn remember(&mut self, remembered: &Remembered) {
        let Remembered { subject, present, deleted, was_there, decided } = remembered.clone();
        (self.subject, self.present, self.deleted) = (subject, present, deleted);
        (self.was_there, self.decided) = (was_there, decided);
        self.cache.get_mut().note_change();
    }

    /// Notes from now on which of these are there at some moment.
    pub(super) fn look_for(&mut self, absences: impl Iterator<Item = Absence>) {
        let absent = absences.filter(|absence| !self.was_there.contains(absence)).collect();
        self.absent = absent;
    }

    /// Whether it was there at some moment, of what it looks for.
    pub(super) fn was_there(&self, absence: &Absence) -> bool {
        self.was_there.contains(absence)
    }

    /// The invariants `always` that have read nothing at any moment, and why.
    pub(super) fn undecided(&self, api: &dyn Source) -> Vec<(&Invariant, String)> {
        let invariants = self.invariants.iter().enumerate();
        let undecided =
            invariants.filter(|(place, invariant)| !invariant.is_never && !self.decided.contains(place));
        let view = self.view(api);
        let with_reason = undecided.map(|(_, invariant)| {
            let check = &invariant.expression;
            let why = match evaluate(&self.engine, check, &view.scope([check])) {
                CheckResult::Undefined(why) | CheckResult::Failed(why) => why,
                CheckResult::True | CheckResult::False => String::new(),
            };
            (invariant, why)
        });
        with_reason.collect()
    }

    fn view<'a>(&'a self, api: &'a dyn Source) -> View<'a> {
        View {
            api,
            cache: &self.cache,
            kinds: &self.kinds,
            packages: &self.packages,
            subject: self.subject.as_ref(),
            deleted: &self.deleted,
        }
    }

    /// Notes an object that a step has applied: the first instance of the package is what the case is about.
    pub(super) fn note_applied(&mut self, kind: &ApiKind, object: &Value) {
        let mut resources = self.packages.iter().take(1).flat_map(|package| &package.resources);
        let is_instance =
            resources.any(|resource| resource.kind.group == kind.group && resource.kind.kind == kind.kind);
        if is_instance && self.subject.is_none() {
            let text = |key: &str| object["metadata"][key].as_str().unwrap_or_default().to_owned();
            self.subject = Some(Subject {
                api_version: kind.api_version(),
                kind: kind.kind.clone(),
                namespace: text("namespace"),
                name: text("name"),
                uid: text("uid"),
            });
            self.cache.get_mut().note_change();
        }
    }

    /// The instance that a step is about: the one that it names, or the one that the case is about.
    pub(super) fn instance(&self, named: Option<&Address>, at: &Location) -> Result<Address, Failure> {
        let subject = self.subject.as_ref().map(|subject| Address {
            namespace: subject.namespace.clone(),
            kind: subject.kind.clone(),
            name: subject.name.clone(),
        });
        let given = named.cloned().or(subject);
        given.ok_or_else(|| failed(at, "no instance has been applied: name one with `of`"))
    }

    pub(super) fn packages(&self) -> &[Arc<Package>] {
        &self.packages
    }

    pub(super) fn kinds(&self) -> &Kinds {
        &self.kinds
    }

    pub(super) fn set_kinds(&mut self, kinds: Kinds) {
        self.kinds = kinds;
        self.cache.get_mut().note_change();
    }

    pub(super) fn set_packages(&mut self, packages: &[Arc<Package>]) {
        self.packages = packages.to_vec();
        self.cache.get_mut().note_change();
    }

    /// A plan that runs again and again although its runs succeed: the instance, and what its status says.
    pub(super) fn repeating(&self, api: &dyn Source) -> Option<String> {
        let view = self.view(api);
        let resources = self.packages.iter().flat_map(|package| &package.resources);
        let mut instances = resources.flat_map(|resource| {
            let kind = &resource.kind.kind;
            view.list(kind, "").into_iter().map(move |instance| (kind, instance.value))
        });
        instances.find_map(|(kind, instance)| {
            let found = condition(&instance, REPEATING).filter(|found| found["reason"] == PLAN_REPEATS)?;
            let name = instance["metadata"]["name"].as_str().unwrap_or_default();
            Some(format!("{kind} {name}: {}", found["message"].as_str().unwrap_or_default()))
        })
    }

    /// What instances say of rights that are missing.
    pub(super) fn lacking(&self, api: &dyn Source) -> Vec<String> {
        let view = self.view(api);
        let resources = self.packages.iter().flat_map(|package| &package.resources);
        let mut said = Vec::new();
        for kind in resources.map(|resource| &resource.kind.kind) {
            for instance in view.list(kind, "") {
                let name = instance.value["metadata"]["name"].as_str().unwrap_or_default();
                let conditions = instance.value["status"]["conditions"].as_array().into_iter().flatten();
                let messages = conditions.filter_map(|condition| condition["message"].as_str());
                for message in messages.filter(|message| refused::says(message)) {
                    let line = format!("{kind} {name}: {message}");
                    if !said.contains(&line) {
                        said.push(line);
                    }
                }
            }
        }
        said
    }

    /// A number that is the same as long as nothing has changed that was read.
    pub(super) fn version(&self, api: &dyn Source) -> u64 {
        self.cache.borrow_mut().refresh(api)
    }

    /// Is called after every write, and at the end: a case may write nothing.
    pub(super) fn look(&mut self, api: &dyn Source) {
        let is_mourning = self.faults.is_mourning();
        if self.seen == Some((self.version(api), is_mourning)) {
            return;
        }
        // Before the kinds are known, nothing can be listed, and nothing is missed.
        if !self.tracked.is_empty() && !self.kinds.is_empty() {
            self.track(api);
        }
        if !self.absent.is_empty() && !self.kinds.is_empty() {
            self.witness(api);
        }
        self.check(api);
        self.seen = Some((self.version(api), is_mourning));
    }

    /// Checks the invariants.
    fn check(&mut self, api: &dyn Source) {
        if self.violated.is_some() {
            return;
        }
        let is_mourning = self.faults.is_mourning();
        let counts = |(_, invariant): &(usize, &Invariant)| {
            let reads = &invariant.expression.reads;
            !is_mourning || !(reads.contains("pods") || reads.contains("children"))
        };
        let counting: Vec<(usize, &Invariant)> = self.invariants.iter().enumerate().filter(counts).collect();
        let scope = self.view(api).scope(counting.iter().map(|(_, invariant)| &invariant.expression));
        let mut decided = Vec::new();
        let violated = counting.into_iter().find_map(|(place, invariant)| {
            let said = evaluate(&self.engine, &invariant.expression, &scope);
            if matches!(said, CheckResult::True | CheckResult::False) {
                decided.push(place);
            }
            let with_operands = |said| with_operands(said, &self.engine, &invariant.expression, &scope);
            let why = match (said, invariant.is_never) {
                // What an invariant reads is not there yet.
                (CheckResult::Undefined(_), _) | (CheckResult::True, false) | (CheckResult::False, true) => {
                    return None;
                }
                (CheckResult::True, true) => with_operands("it is true"),
                (CheckResult::False, false) => with_operands("it is false"),
                (CheckResult::Failed(why), _) => why,
            };
            Some((invariant.clone(), why))
        });
        self.decided.extend(decided);
        self.violated = violated;
    }

    /// Notes what is there of what cases say is absent.
    fn witness(&mut self, api: &dyn Source) {
        let view = self.view(api);
        let mut moment = Moment::of(&view);
        let found: Vec<Absence> = self.absent.iter().filter(|absence| moment.has(absence)).cloned().collect();
        for absence in found {
            self.absent.remove(&absence);
            self.was_there.insert(absence);
        }
    }

    /// Remembers what is no longer there.
    fn track(&mut self, api: &dyn Source) {
        let mut present = BTreeSet::new();
        let view = self.view(api);
        for kind in &self.tracked {
            for object in view.list(kind, "") {
                let text = |key: &str| object.value["metadata"][key].as_str().unwrap_or_default().to_owned();
                present.insert((kind.clone(), text("namespace"), text("name"), text("uid")));
            }
        }
        let gone = self.present.difference(&present).filter(|(.., uid)| !self.faults.has_killed(uid));
        let gone: Vec<Identity> = gone.cloned().collect();
        self.deleted.extend(gone);
        self.present = present;
    }

    pub(super) fn problems<'e>(&self, expect: &'e Expect, api: &dyn Source) -> Vec<Problem<'e>> {
        problems(&self.engine, expect, &self.view(api))
    }

    pub(super) fn find_run(&self, api: &dyn Source, fits: impl Fn(&Value) -> bool) -> Option<Arc<Value>> {
        self.view(api).runs().into_iter().rev().find(|run| fits(run))
    }

    pub(super) fn end(&self, api: &dyn Source) -> End {
        super::end::of(&self.view(api))
    }

    pub(super) fn scene(&self, api: &dyn Source) -> (Vec<String>, Vec<Unready>) {
        scene(&self.view(api))
    }

    pub(super) fn seen(&self, api: &dyn Source) -> Seen {
        let view = self.view(api);
        let instance = view.instance().map(|instance| instance.value.as_ref().clone());
        let children =
            view.children().into_iter().map(|(id, key, child)| (id, key, child.value.as_ref().clone()));
        Seen { instance, children: children.collect() }
    }

    /// Notes what is there.
    pub(super) fn note(&mut self, api: &dyn Source) {
        let view = self.view(api);
        let kind = self.subject.as_ref().map(|subject| subject.kind.clone()).unwrap_or_default();
        let children = view.children().into_iter().map(|(id, ..)| format!("{kind} child {id}"));
        let mut found: Vec<String> = children.collect();
        for run in view.runs() {
            let plan = run["spec"]["plan"].as_str().unwrap_or_default();
            let of = run["spec"]["of"]["kind"].as_str().unwrap_or_default();
            found.push(format!("{of} plan {plan}"));
            for step in run["status"]["steps"].as_array().into_iter().flatten() {
                let state = step["phase"].as_str().or_else(|| step["state"].as_str()).unwrap_or_default();
                let path = step["path"].as_str().or_else(|| step["name"].as_str()).unwrap_or_default();
                if !["Pending", "Skipped", ""].contains(&state) {
                    found.push(format!("{of} plan {plan} step {}", bare(path)));
                }
            }
        }
        for pod in view.list("Pod", "") {
            for containers in ["containers", "initContainers"] {
                let containers = pod.value["spec"][containers].as_array().into_iter().flatten();
                let images = containers.filter_map(|container| container["image"].as_str());
                found.extend(images.map(|image| format!("{IMAGE}{image}")));
            }
        }
        self.reached.extend(found);
    }
}
