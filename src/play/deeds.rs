//! What the managers of a play have done: for stories, and for what must not be done twice.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{Method, Request};
use operetta_embedded::Objects;
use serde_json::Value;

use super::disturbance::Target;
use super::end::{End, cleaned};
use crate::crd::API_VERSION;
use crate::plan::crds::INSTANCE_STATE;

/// Objects in which managers keep what they know: writing them has no effect by itself.
const BOOKKEEPING: [&str; 6] = [
    "planruns",
    "instancestates",
    "controllerrevisions",
    "operatorrevisions",
    "leases",
    "customresourcedefinitions",
];

/// Something that a manager has done beyond reading.
#[derive(Debug, Clone)]
pub(crate) struct Deed {
    pub target: Target,
    pub number: u64,
    /// The time since the start.
    pub at: Duration,
    /// What, for people.
    pub text: String,
    /// Whether it changes more than what managers know.
    pub is_effect: bool,
    /// The step that has decided it, if that was noted.
    pub by: Option<Decider>,
    /// How many pods could die, if that was noted.
    pub pods: usize,
}

impl Deed {
    /// What is done, and at which step of which plans: the same for what is repeated there, in this play or in another one.
    pub(super) fn moment(&self) -> String {
        let by = self.by.as_ref();
        let step = by.map(|by| format!("{}/{}", by.plans.join("+"), bare(&by.step))).unwrap_or_default();
        format!("at {step}: {}", cleaned(&self.text))
    }
}

/// A step of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Decider {
    /// The kind of the instance.
    pub kind: String,
    pub run: String,
    pub plans: Vec<String>,
    pub step: String,
}

#[derive(Debug, Default)]
pub(super) struct Deeds {
    pub all: Vec<Deed>,
    /// Whether the deciders are noted.
    pub traced: bool,
    /// Why what was done must never be done.
    pub violation: Option<String>,
    counts: BTreeMap<Target, u64>,
    /// The Jobs that were created, by their name without what is generated.
    jobs: BTreeMap<String, BTreeSet<String>>,
    /// The bodies of calls by method, URL and Idempotency-Key.
    keys: BTreeMap<String, BTreeMap<String, Bytes>>,
}

impl Deeds {
    /// Counts a deed. Returns its number.
    pub(super) fn note(&mut self, deed: Deed) -> u64 {
        let count = self.counts.entry(deed.target).or_default();
        *count += 1;
        self.all.push(Deed { number: *count, ..deed });
        *count
    }

    /// Notes the creation of a Job.
    pub(super) fn note_job(&mut self, parts: &Parts, body: &Bytes) {
        let is_job = parts.method == Method::POST
            && parts.uri.path().ends_with("/jobs")
            && !parts.uri.query().unwrap_or_default().contains("dryRun");
        if !is_job {
            return;
        }
        let job: Value = serde_json::from_slice(body).unwrap_or_default();
        let name = job["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        self.jobs.entry(cleaned(&name)).or_default().insert(name);
    }

    /// Notes a call of a package. Calls with one Idempotency-Key are one request.
    pub(super) fn note_call(&mut self, request: &Request<Bytes>) {
        let key = request.headers().get("idempotency-key").and_then(|key| key.to_str().ok());
        let Some(key) = key.filter(|_| *request.method() != Method::GET) else { return };
        let what = format!("{} {}", request.method(), request.uri());
        let first = self
            .keys
            .entry(what.clone())
            .or_default()
            .entry(key.to_owned())
            .or_insert_with(|| request.body().clone());
        if first != request.body() {
            self.violation =
                Some(format!("{what} was sent twice with one Idempotency-Key and different bodies"));
        }
    }

    /// How many Jobs and calls there were, by what they are about.
    pub(super) fn tallies(&self) -> End {
        let jobs = self.jobs.iter().map(|(name, all)| (format!("Jobs {name} that were created"), all.len()));
        let calls = self
            .keys
            .iter()
            .map(|(what, keys)| (format!("Idempotency-Keys of {}", cleaned(what)), keys.len()));
        jobs.chain(calls).map(|(what, count)| (what, vec![count.into()])).collect()
    }
}

/// What a path is about: the resource, the name and the subresource; empty for discovery.
fn about(path: &str) -> Vec<&str> {
    let path: Vec<&str> = path.split('/').skip(1).collect();
    let rest = if path.first() == Some(&"api") { path.get(2..) } else { path.get(3..) }.unwrap_or_default();
    match rest {
        ["namespaces", _, inner @ ..] if !inner.is_empty() => inner.to_vec(),
        rest => rest.to_vec(),
    }
}

/// A request that reads, for people.
pub(super) fn read_text(path: &str) -> String {
    let what = about(path).join("/");
    format!("reads {}", if what.is_empty() { path } else { &what })
}

/// A request that writes, for people, and whether it changes more than what managers know.
pub(super) fn request_text(parts: &Parts, body: &Bytes) -> (String, bool) {
    let rest = about(parts.uri.path());
    let is_apply = parts
        .headers
        .get("content-type")
        .is_some_and(|value| value.as_bytes().starts_with(b"application/apply"));
    let verb = match parts.method {
        Method::POST => "creates",
        Method::PUT => "replaces",
        Method::DELETE => "deletes",
        _ if is_apply => "applies",
        _ => "patches",
    };
    let mut what = rest.join("/");
    if parts.method == Method::POST {
        let object: Value = serde_json::from_slice(body).unwrap_or_default();
        what = format!("{what}/{}", object["metadata"]["name"].as_str().unwrap_or_default());
    }
    let is_trial = parts.uri.query().unwrap_or_default().contains("dryRun=All");
    let is_effect = !is_trial
        && !what.ends_with("/status")
        && rest.first().is_none_or(|resource| !BOOKKEEPING.contains(resource));
    (if is_trial { format!("{verb} {what} as a dry run") } else { format!("{verb} {what}") }, is_effect)
}

/// Whether a request makes an object that must not exist.
pub(super) fn is_creation(parts: &Parts, body: &Bytes) -> bool {
    let has_version = || {
        let object: Value = serde_json::from_slice(body).unwrap_or_default();
        object["metadata"]["resourceVersion"] == "1"
    };
    parts.method == Method::POST || parts.method == Method::PATCH && has_version()
}

/// The step that an active run is at, as the memories of instances have it.
pub(super) fn decider(objects: &dyn Objects) -> Option<Decider> {
    let states = objects.objects(API_VERSION, INSTANCE_STATE.kind, "");
    states.iter().find_map(|state| {
        let spec = &state["spec"];
        let runs = spec["runs"].as_array().into_iter().flatten();
        runs.rev().find_map(|run| {
            let status = &run["state"];
            let steps = status["steps"].as_array().filter(|_| status["phase"] == "Running")?;
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let step = steps.iter().rev().find(|step| step["phase"] == "Running").or(steps.last())?;
            let mut plans: Vec<String> = status["plans"].as_array().into_iter().flatten().map(text).collect();
            if plans.is_empty() {
                plans.push(text(&run["plan"]));
            }
            Some(Decider {
                kind: text(&spec["of"]["kind"]),
                run: text(&run["name"]),
                plans,
                step: text(&step["path"]),
            })
        })
    })
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
