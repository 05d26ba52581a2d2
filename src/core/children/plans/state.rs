//! The memory of an instance as it is stored: an `InstanceState`, which only managers may write. See `crate::plan::Memory`.

use std::collections::BTreeMap;

use k8s_openapi::jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};

use super::history::StoredOrigin;
use crate::children::model::{InstanceMemory, PlanSnapshot};
use crate::children::names;
use crate::crd::API_VERSION;
use crate::plan::crds::INSTANCE_STATE;
use crate::plan::{
    self, Memory, Of, PlanRun, Recalled, RunAction, RunRef, RunStatus, StateWrite, content_digest,
};

/// What the memory of an instance is recalled from.
#[derive(Debug, Clone, Copy)]
pub struct Stored<'a> {
    /// The instance.
    pub instance: &'a Value,
    /// The instance as PlanRuns name it.
    pub of: &'a Of,
    /// The `InstanceState` that has the name for this instance.
    pub object: Option<&'a Value>,
    /// The time of day.
    pub now: Timestamp,
}

/// The name of the `InstanceState` of an instance.
pub fn state_name(of: &Of) -> String {
    let group = of.api_version.split('/').next().unwrap_or_default();
    let digest = names::short_hash(&format!("{}.{group}", of.kind), 5);
    format!("{}-{digest}", names::label_value(&of.name))
}

/// The digest of the content of an origin, by the name of its ControllerRevision.
fn digest_of(origins: &[Value], name: &str) -> Option<String> {
    let origin = origins.iter().find(|origin| origin["metadata"]["name"] == name)?;
    Some(content_digest(&origin["data"]))
}

/// The memory of an instance, and which of its runs count.
pub fn recall(stored: Stored<'_>, runs: Vec<PlanRun>) -> (InstanceMemory, Recalled) {
    let Stored { instance, of, object, now } = stored;
    let metadata = &instance["metadata"];
    let uid = metadata["uid"].as_str().unwrap_or_default();
    let marker = metadata["annotations"][names::STATE].as_str();
    let name = state_name(of);
    let parsed = object.map(|object| Memory::deserialize(&object["spec"]));
    let reference = object.map(RunRef::of);
    if let Some(format) = object.and_then(|object| plan::newer_format(&object["spec"])) {
        let why = format!("a newer version of Operetta has written InstanceState {name}, in format {format}");
        let known = InstanceMemory { object: reference, is_newer: true, ..lost(why) };
        let recalled = known.memory.recall(runs);
        return (known, recalled);
    }
    let own = |memory: Memory| InstanceMemory { memory, ..InstanceMemory::default() };
    let none = || Memory::new(of.clone(), uid);
    let known = match parsed {
        Some(Err(error)) => lost(format!("InstanceState {name} cannot be read: {error}")),
        Some(Ok(memory)) if !is_same(&memory.of, of) => lost(format!(
            "InstanceState {name} is that of {} {} of {}: restore the one of this instance",
            memory.of.kind, memory.of.name, memory.of.api_version
        )),
        Some(Ok(memory)) if memory.uid == uid => own(memory),
        // The memory is left of a former instance.
        Some(Ok(memory)) if memory.has_ended => own(none()),
        // The instance was restored with its memory. Only the instance itself says so: one that was created again under the
        // name of a former one takes nothing over.
        Some(Ok(memory)) if marker == Some(&*memory.uid) => InstanceMemory {
            is_unwritten: true,
            note: Some((
                "StateTakenOver",
                "takes over the InstanceState of the instance that it was restored from: its facts and what its runs did",
            )),
            ..own(memory.restored(uid, &now.to_string()))
        },
        Some(Ok(_)) if marker.is_some() => lost(format!(
            "InstanceState {name} is that of another instance of this name: restore the one of this instance"
        )),
        Some(Ok(_)) => InstanceMemory {
            is_unwritten: true,
            note: Some((
                "StateReplaced",
                "starts as a new instance; the InstanceState of a former instance of this name, which had not ended, is replaced",
            )),
            ..own(none())
        },
        None if marker == Some(uid) => lost(format!("InstanceState {name} is gone: restore it")),
        None if marker.is_some() => lost(format!(
            "the instance is a copy or was restored, and InstanceState {name} is missing: restore it, or remove the annotation \
             {} to start as a new instance",
            names::STATE
        )),
        None => own(none()),
    };
    let recalled = known.memory.recall(runs);
    (InstanceMemory { object: reference, ..known }, recalled)
}

/// Whether both name the same instance. The name of an `InstanceState` has a short digest of the kind.
fn is_same(one: &Of, other: &Of) -> bool {
    let group = |of: &Of| of.api_version.split('/').next().unwrap_or_default().to_owned();
    (group(one), &one.kind, &one.name) == (group(other), &other.kind, &other.name)
}

fn lost(why: String) -> InstanceMemory {
    InstanceMemory { lost: Some(why), ..InstanceMemory::default() }
}

/// The ControllerRevisions of an instance, among those of all instances of its name: the label names the
/// instance, or, if it was restored, the memory knows the content.
pub fn own_origins(mut origins: Vec<Value>, uid: &str, memory: &Memory) -> Vec<Value> {
    origins.retain(|origin| {
        let known = origin["metadata"]["name"].as_str().and_then(|name| memory.origin_digest(name));
        origin["metadata"]["labels"][names::RUN_OF] == uid
            || known.is_some_and(|known| known == content_digest(&origin["data"]))
    });
    origins
}

impl PlanSnapshot {
    /// The memory with what the stored state of active runs says beyond it, if it says more. `next`: the states that are about
    /// to be stored, by uid.
    pub(super) fn absorbed(&self, next: &[(&str, &RunStatus)], current: &StoredOrigin) -> Option<Memory> {
        let digest = |name: &str| {
            let is_current = || (name == current.name).then(|| content_digest(&current.data()));
            digest_of(&self.origins, name).or_else(is_current)
        };
        let status_of =
            |run: &'_ PlanRun| next.iter().find(|(uid, _)| *uid == run.uid).map(|(_, status)| *status);
        let is_live = |run: &&PlanRun| run.known == plan::Known::Yes && !run.is_inner;
        let wiped = |run: &&PlanRun| run.known == plan::Known::Wiped && status_of(run).is_some();
        let runs = self.runs.iter().filter(|run| is_live(run) || wiped(run) || run.is_new_of_schedule());
        let runs = runs.filter_map(|run| Some((run, status_of(run).or(run.status.as_ref())?)));
        self.state.memory.absorb(runs, &digest)
    }

    /// The facts of the instance. What a PlanRun says and the memory does not confirm is no fact.
    pub(super) fn facts(&self) -> BTreeMap<String, plan::RecordedFact> {
        self.state.memory.facts(self.runs.iter().filter(|run| run.known == plan::Known::Yes))
    }

    /// Writes the memory of the instance.
    pub(super) fn remember(&self, memory: &Memory) -> RunAction {
        RunAction::Remember(self.state_write(memory))
    }

    /// A write of the memory of the instance.
    pub(super) fn state_write(&self, memory: &Memory) -> StateWrite {
        StateWrite {
            state: self.state.object.clone(),
            body: Box::new(json!({
                "apiVersion": API_VERSION,
                "kind": INSTANCE_STATE.kind,
                "metadata": {
                    "name": state_name(&memory.of),
                    "namespace": self.namespace,
                    "labels": {names::MANAGED_BY: "operetta"},
                    "finalizers": [names::STATE],
                },
                "spec": memory.to_json(),
            })),
            note: self.state.note,
        }
    }

    /// Whether the content of an origin is what it was when a run was started from it.
    pub(super) fn is_unaltered(&self, origin: &Value) -> bool {
        let name = origin["metadata"]["name"].as_str().unwrap_or_default();
        let known = self.state.memory.origin_digest(name);
        known.is_none_or(|known| known == content_digest(&origin["data"]))
    }

    /// Notes that the instance has nothing left, before its finalizer is removed; `None` if that is noted.
    pub(super) fn ended(&self) -> Option<RunAction> {
        let is_noted =
            self.state.object.is_none() || self.state.lost.is_some() || self.state.memory.has_ended;
        (!is_noted).then(|| self.remember(&Memory { has_ended: true, ..self.state.memory.clone() }))
    }

    /// Deletes the memory once the instance is gone.
    pub(super) fn forget(&self) -> Option<RunAction> {
        Some(RunAction::DeleteState(self.state.object.clone()?))
    }
}
