//! Looks at the cluster after every write: invariants, and what the case has reached.

use std::collections::BTreeSet;
use std::sync::Arc;

use operetta_embedded::Objects;
use serde_json::Value;

use super::end::End;
use super::expect::{Problem, Said, evaluate, problems};
use super::suite::{Expect, Invariant};
use super::view::{Identity, Kinds, Subject, View};
use crate::package::Package;
use crate::template::Engine;

/// What a case has reached: children that were there, and steps of plans that have run.
pub(crate) type Reached = BTreeSet<String>;

/// What looks at the cluster of a play.
pub(super) struct Watcher {
    pub kinds: Kinds,
    pub packages: Vec<Arc<Package>>,
    pub subject: Option<Subject>,
    pub invariants: Vec<Invariant>,
    /// The first invariant that did not hold.
    pub violated: Option<(Invariant, String)>,
    pub reached: Reached,
    engine: Engine,
    present: BTreeSet<Identity>,
    deleted: BTreeSet<Identity>,
    /// The kinds of which it remembers what is no longer there.
    tracked: BTreeSet<String>,
}

impl Watcher {
    pub(super) fn new(
        kinds: Kinds,
        packages: Vec<Arc<Package>>,
        invariants: &[Invariant],
        tracked: BTreeSet<String>,
    ) -> Self {
        Self {
            kinds,
            packages,
            subject: None,
            invariants: invariants.to_vec(),
            violated: None,
            reached: Reached::new(),
            engine: Engine::empty(),
            present: BTreeSet::new(),
            deleted: BTreeSet::new(),
            tracked,
        }
    }

    fn view<'a>(&'a self, objects: &'a dyn Objects) -> View<'a> {
        View {
            objects,
            kinds: &self.kinds,
            packages: &self.packages,
            subject: self.subject.as_ref(),
            deleted: &self.deleted,
        }
    }

    /// Is called after every write.
    pub(super) fn look(&mut self, objects: &dyn Objects) {
        if !self.tracked.is_empty() {
            self.track(objects);
        }
        if self.violated.is_some() {
            return;
        }
        let scope = self.view(objects).scope(self.invariants.iter().map(|invariant| &invariant.expression));
        let violated = self.invariants.iter().find_map(|invariant| {
            let said = evaluate(&self.engine, &invariant.expression, &scope);
            let why = match (said, invariant.is_never) {
                // What an invariant reads is not there yet.
                (Said::Undefined(_), _) | (Said::True, false) | (Said::False, true) => return None,
                (Said::True, true) => "it is true".to_owned(),
                (Said::False, false) => "it is false".to_owned(),
                (Said::Failed(why), _) => why,
            };
            Some((invariant.clone(), why))
        });
        self.violated = violated;
    }

    /// Remembers what is no longer there.
    fn track(&mut self, objects: &dyn Objects) {
        let mut present = BTreeSet::new();
        let view = self.view(objects);
        for kind in &self.tracked {
            for object in view.list(kind, "") {
                let text = |key: &str| object["metadata"][key].as_str().unwrap_or_default().to_owned();
                present.insert((kind.clone(), text("namespace"), text("name"), text("uid")));
            }
        }
        let gone: Vec<Identity> = self.present.difference(&present).cloned().collect();
        self.deleted.extend(gone);
        self.present = present;
    }

    pub(super) fn problems(&self, expect: &Expect, objects: &dyn Objects) -> Vec<Problem> {
        problems(&self.engine, expect, &self.view(objects))
    }

    pub(super) fn find_run(&self, objects: &dyn Objects, fits: impl Fn(&Value) -> bool) -> Option<Value> {
        self.view(objects).runs().into_iter().rev().find(fits)
    }

    pub(super) fn end(&self, objects: &dyn Objects) -> End {
        super::end::of(&self.view(objects))
    }

    /// Notes what is there.
    pub(super) fn note(&mut self, objects: &dyn Objects) {
        let view = self.view(objects);
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
        self.reached.extend(found);
    }
}

/// The path of a step without the items of loops.
pub(super) fn bare(path: &str) -> String {
    let mut bare = String::new();
    let mut depth = 0;
    for c in path.chars() {
        match c {
            '[' => depth += 1,
            ']' => depth -= 1,
            c if depth == 0 => bare.push(c),
            _ => {}
        }
    }
    bare
}
