//! The memory of an instance: what is decided from after runs have ended. It is the `spec` of the `InstanceState` of the
//! instance, which only managers may write. A `PlanRun` is a request and the progress of a run; once it has ended, only the
//! memory says what it did.

mod forget;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::run::{Cause, Known, Of, Phase, PlanRun, RECOVER, RecordedFact, RunSpec, RunStatus, SCHEDULED_AT};
use super::start::answered;
use super::step_state::StepState;
use super::stored_number;
use crate::names;

/// The format that this version writes, and the newest that it reads: of `InstanceState`s, of the status of PlanRuns, and of
/// origins. An `InstanceState` without a number has format 1. See `docs/stored-formats.md`.
const FORMAT: u64 = 1;

/// The format of a stored memory, if it is newer than this version reads.
pub fn newer_format(spec: &Value) -> Option<u64> {
    spec["format"].as_u64().filter(|format| *format > FORMAT)
}

/// What is remembered of an instance.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Memory {
    /// The instance.
    pub of: Of,
    /// Its uid.
    pub uid: String,
    /// The highest number in the names of its runs.
    #[serde(with = "stored_number")]
    pub number: u64,
    /// The uid of the run that may be active among those that change children.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub active: Option<String>,
    /// The facts that plans have recorded.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub record: BTreeMap<String, RecordedFact>,
    /// The runs that have begun and that something is still decided from, or that the status lists.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub runs: Vec<RememberedRun>,
    /// Whether the instance has been deleted and all of its children with it: nothing is taken over from it. It is always
    /// written, so that a backup that is applied over a memory that has ended says that it has not.
    pub has_ended: bool,
}

/// What is remembered of a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RememberedRun {
    /// The name of the `PlanRun`.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// Its `creationTimestamp`.
    pub created: String,
    /// Its plan.
    pub plan: String,
    /// The name of the failed run that it resumes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_of: Option<String>,
    /// The time that a schedule has set for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scheduled_at: Option<String>,
    /// The digest of the content of its origin.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub origin_digest: Option<String>,
    /// Whether it has no `PlanRun`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub inner: bool,
    /// Whether it has recorded facts, or one that it retries has.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub has_recorded: bool,
    /// The digest of its steps when it ended. A retry resumes these steps, which only the `PlanRun` has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps_digest: Option<String>,
    /// Its state; without steps and facts once the run has ended.
    pub state: RunStatus,
}

/// The runs of an instance, as its memory and the stored `PlanRun`s have them together.
#[derive(Debug, Default)]
pub struct Recalled {
    /// The runs that count: those that the memory names, and new requests.
    pub runs: Vec<PlanRun>,
    /// `PlanRun`s that have ended or were started before, and that the memory does not name, such as restored ones, and questions
    /// about a lost memory. They never run.
    pub strangers: Vec<PlanRun>,
}

/// A digest of a value, for comparison with what is stored.
pub fn content_digest(value: &Value) -> String {
    names::value_hash(value, 32)
}

/// Whether a record lacks a fact, or has an older one.
fn is_news(record: &BTreeMap<String, RecordedFact>, key: &str, fact: &RecordedFact) -> bool {
    record.get(key).is_none_or(|known| known.sequence < fact.sequence)
}

/// Adds facts to a record. Of two facts of one name the newer counts.
fn add<'f>(
    record: &mut BTreeMap<String, RecordedFact>,
    facts: impl IntoIterator<Item = (&'f String, &'f RecordedFact)>,
) {
    for (key, fact) in facts {
        if is_news(record, key, fact) {
            record.insert(key.clone(), fact.clone());
        }
    }
}

/// What is remembered of the state of a run that has ended.
fn ended(state: RunStatus) -> RunStatus {
    RunStatus { steps: Vec::new(), record: BTreeMap::new(), ..state }
}

fn steps_digest(steps: &[StepState]) -> String {
    content_digest(&serde_json::to_value(steps).unwrap_or_default())[..32].to_owned()
}

impl RememberedRun {
    fn of(run: &PlanRun, status: &RunStatus) -> Self {
        let is_final = status.phase.is_final();
        let is_replaced = status.phase == Phase::Superseded;
        let approvals = if is_replaced { answered(run) } else { status.approvals.clone() };
        let state = RunStatus { approvals, ..status.clone() };
        Self {
            name: run.name.clone(),
            uid: run.uid.clone(),
            created: run.created.clone(),
            plan: run.spec.plan.clone(),
            retry_of: run.spec.retry_of.clone(),
            scheduled_at: run
                .annotations
                .get(SCHEDULED_AT)
                .filter(|_| status.cause == Cause::Schedule)
                .cloned(),
            origin_digest: None,
            inner: run.is_inner,
            has_recorded: !status.record.is_empty(),
            steps_digest: (is_final && !status.steps.is_empty()).then(|| steps_digest(&status.steps)),
            state: if is_final { ended(state) } else { state },
        }
    }

    /// The run without its object.
    fn run(&self, of: &Of) -> PlanRun {
        let annotations = self.scheduled_at.iter().map(|at| (SCHEDULED_AT.to_owned(), at.clone()));
        PlanRun {
            name: self.name.clone(),
            uid: self.uid.clone(),
            created: self.created.clone(),
            annotations: annotations.collect(),
            spec: RunSpec {
                of: of.clone(),
                plan: self.plan.clone(),
                retry_of: self.retry_of.clone(),
                ..RunSpec::default()
            },
            status: Some(self.state.clone()),
            known: if self.inner { Known::Yes } else { Known::Gone },
            is_inner: self.inner,
            has_recorded: self.has_recorded,
            has_unknown_steps: self.steps_digest.is_some(),
            ..PlanRun::default()
        }
    }
}

impl Memory {
    /// The memory of an instance that has not run anything.
    pub fn new(of: Of, uid: &str) -> Self {
        Self { of, uid: uid.to_owned(), ..Self::default() }
    }

    /// The memory as JSON: the `spec` of the `InstanceState`.
    pub fn to_json(&self) -> Value {
        serde_json::to_value(self).unwrap_or_default()
    }

    /// What the memory says of a run.
    pub fn run(&self, uid: &str) -> Option<&RememberedRun> {
        self.runs.iter().find(|run| run.uid == uid)
    }

    /// The digest of the content that the origin of that name has.
    pub fn origin_digest(&self, name: &str) -> Option<&str> {
        let mut named = self.runs.iter().filter(|run| run.state.origin.as_deref() == Some(name));
        named.find_map(|run| run.origin_digest.as_deref())
    }

    /// The name of an origin with that content.
    pub fn origin_with(&self, digest: &str) -> Option<&str> {
        let is_such = |run: &&RememberedRun| run.origin_digest.as_deref() == Some(digest);
        self.runs.iter().rev().find(is_such)?.state.origin.as_deref()
    }

    /// The facts: those that are remembered, and those that active runs have recorded since.
    pub fn facts<'r>(&self, runs: impl IntoIterator<Item = &'r PlanRun>) -> BTreeMap<String, RecordedFact> {
        let mut all = self.record.clone();
        add(&mut all, runs.into_iter().flat_map(|run| &run.status).flat_map(|status| &status.record));
        all
    }

    /// The runs that count, given the `PlanRun`s that name the instance.
    pub fn recall(&self, live: Vec<PlanRun>) -> Recalled {
        let mut recalled = Recalled::default();
        let mut missing: BTreeMap<&str, &RememberedRun> =
            self.runs.iter().map(|run| (run.uid.as_str(), run)).collect();
        for mut run in live {
            let Some(remembered) = missing.remove(run.uid.as_str()) else {
                let has_begun =
                    run.taken().is_some() || matches!(run.phase(), Phase::Running | Phase::Interrupted);
                if has_begun || run.is_final() || run.spec.plan == RECOVER {
                    recalled.strangers.push(run);
                } else {
                    recalled.runs.push(run);
                }
                continue;
            };
            run.known = Known::Yes;
            run.has_recorded = remembered.has_recorded;
            if remembered.state.phase.is_final() {
                if run.phase() != remembered.state.phase {
                    run.known = Known::Altered;
                }
                let steps = run.status.take().map(|status| status.steps).unwrap_or_default();
                let is_unaltered = remembered.steps_digest.as_ref() == Some(&steps_digest(&steps));
                run.has_unknown_steps = !is_unaltered && remembered.steps_digest.is_some();
                let steps = if is_unaltered { steps } else { Vec::new() };
                run.status = Some(RunStatus { steps, ..remembered.state.clone() });
            } else if run.status.is_none() && run.is_taken() {
                run.known = Known::Wiped;
                run.status = Some(remembered.state.clone());
            } else if run.status.as_ref().is_some_and(|stored| stored.sequence < remembered.state.sequence) {
                run.is_behind = true;
                run.status = Some(remembered.state.clone());
            }
            recalled.runs.push(run);
        }
        recalled.runs.extend(missing.into_values().map(|run| run.run(&self.of)));
        recalled
    }

    /// The memory with a run that is about to start. `exclusive`: whether it changes children. `origin`: the name of the origin
    /// that it starts from, unless it is a retry, and the digest of its content.
    #[must_use]
    pub fn with_run(&self, run: &PlanRun, exclusive: bool, origin: Option<(&str, String)>) -> Self {
        let mut memory = self.clone();
        if exclusive {
            memory.active = Some(run.uid.clone());
        }
        memory.number = memory.number.max(run.number().unwrap_or_default());
        if memory.run(&run.uid).is_none() {
            let status = RunStatus { cause: run.cause(), ..run.status.clone().unwrap_or_default() };
            let mut remembered = RememberedRun::of(run, &status);
            // A retry goes on with what the run has done that it retries.
            let is_retried = |known: &&RememberedRun| Some(&known.name) == run.spec.retry_of.as_ref();
            remembered.has_recorded |=
                memory.runs.iter().find(is_retried).is_some_and(|run| run.has_recorded);
            (remembered.state.origin, remembered.origin_digest) =
                origin.map(|(name, digest)| (name.to_owned(), digest)).unzip();
            memory.runs.push(remembered);
        }
        memory
    }

    /// The memory with the whole state of a run that has no `PlanRun`.
    #[must_use]
    pub fn with_inner(&self, run: &PlanRun, status: &RunStatus) -> Self {
        let mut memory = self.clone();
        memory.number = memory.number.max(run.number().unwrap_or_default());
        memory.active = Some(run.uid.clone());
        add(&mut memory.record, &status.record);
        let remembered = RememberedRun::of(run, status);
        match memory.runs.iter_mut().find(|known| known.uid == run.uid) {
            Some(known) => *known = remembered,
            None => memory.runs.push(remembered),
        }
        if status.phase.is_final() { memory.pruned() } else { memory }
    }

    /// The memory with what the stored state of active runs says beyond it; `None` if they say nothing more. What has ended
    /// does not change any more. `digest`: of the content of an origin, by its name.
    pub fn absorb<'r>(
        &self,
        runs: impl IntoIterator<Item = (&'r PlanRun, &'r RunStatus)>,
        digest: &dyn Fn(&str) -> Option<String>,
    ) -> Option<Self> {
        let mut memory: Option<Self> = None;
        for (run, status) in runs {
            let known = memory.as_ref().unwrap_or(self);
            let Some(index) = known.runs.iter().position(|known| known.uid == run.uid) else {
                // The run ends without having begun. Its time counts as used: otherwise another run would be
                // created for it.
                if run.is_new_of_schedule() && status.phase.is_final() {
                    let memory = memory.get_or_insert_with(|| self.clone());
                    memory.runs.push(RememberedRun::of(run, status));
                }
                continue;
            };
            let before = &known.runs[index].state;
            let has_news = status.phase.is_final()
                || (&before.applied, &before.uncreated, &before.deleted, &before.origin)
                    != (&status.applied, &status.uncreated, &status.deleted, &status.origin)
                || status.record.iter().any(|(key, fact)| is_news(&known.record, key, fact));
            if before.phase.is_final() || !has_news {
                continue;
            }
            let memory = memory.get_or_insert_with(|| self.clone());
            add(&mut memory.record, &status.record);
            memory.replace(index, RememberedRun::of(run, status), digest);
        }
        memory.map(Self::pruned)
    }

    fn replace(&mut self, index: usize, run: RememberedRun, digest: &dyn Fn(&str) -> Option<String>) {
        let name = run.state.origin.as_deref();
        let before = self.runs[index].origin_digest.take();
        let known = name.and_then(|name| self.origin_digest(name).map(str::to_owned));
        let origin_digest = before
            .filter(|_| self.runs[index].state.origin.as_deref() == name)
            .or(known)
            .or_else(|| digest(name?));
        let has_recorded = run.has_recorded || self.runs[index].has_recorded;
        self.runs[index] = RememberedRun { origin_digest, has_recorded, ..run };
    }

    /// The memory with another state of runs that have ended, by uid.
    #[must_use]
    pub fn with_states(&self, states: impl IntoIterator<Item = (String, RunStatus)>) -> Self {
        let mut memory = self.clone();
        for (uid, state) in states {
            if let Some(run) = memory.runs.iter_mut().find(|run| run.uid == uid) {
                run.state = ended(state);
            }
        }
        memory
    }

    /// The memory with a run that has ended because its object is gone.
    #[must_use]
    pub fn with_gone(&self, uid: &str, status: RunStatus) -> Self {
        self.with_states([(uid.to_owned(), status)]).pruned()
    }

    /// The memory of a restored instance: its facts, and what its runs did. Runs that were active have ended.
    #[must_use]
    pub fn restored(&self, uid: &str, now: &str) -> Self {
        let mut memory = Self { uid: uid.to_owned(), active: None, ..self.clone() };
        for run in &mut memory.runs {
            // Its namespace is another one.
            run.inner = false;
            if run.state.phase.is_final() {
                continue;
            }
            run.state.phase = Phase::Cancelled;
            "Restored".clone_into(&mut run.state.reason);
            let message = "the instance was restored from a backup while the run was active";
            message.clone_into(&mut run.state.message);
            run.state.finished_at = Some(now.to_owned());
            run.state = ended(std::mem::take(&mut run.state));
        }
        memory
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::plan::history::LISTED;
    use crate::plan::stored_number::HIGHEST;
    use crate::plan::{Member, TAKEN};

    fn of() -> Of {
        Of { name: "x".into(), ..Of::default() }
    }

    fn run(name: &str, status: Option<RunStatus>) -> PlanRun {
        PlanRun {
            name: name.into(),
            uid: format!("uid-{name}"),
            created: "2026-01-01T00:00:00Z".into(),
            spec: RunSpec { of: of(), plan: "deploy".into(), ..RunSpec::default() },
            status,
            ..PlanRun::default()
        }
    }

    fn status(phase: Phase) -> RunStatus {
        RunStatus { phase, cause: Cause::Rollout, origin: Some("o".into()), ..RunStatus::default() }
    }

    fn fact(value: u64, sequence: u64) -> BTreeMap<String, RecordedFact> {
        [("a".to_owned(), RecordedFact { value: json!(value), sequence })].into()
    }

    fn origin() -> (&'static str, String) {
        ("o", "digest of o".to_owned())
    }

    fn none(_: &str) -> Option<String> {
        None
    }

    fn absorb(memory: &Memory, run: &PlanRun) -> Option<Memory> {
        memory.absorb([(run, run.status.as_ref().unwrap())], &none)
    }

    #[test]
    fn an_active_run_is_remembered_as_far_as_it_has_come() {
        let member = Member::new("members", Some(json!(0)));
        let mut first = run("x-1", Some(status(Phase::Running)));
        let memory = Memory::new(of(), "i").with_run(&first, true, Some(origin()));
        assert_eq!((memory.active.as_deref(), memory.number), (Some("uid-x-1"), 1));
        assert_eq!(absorb(&memory, &first), None, "steps alone are no news");
        first.status.as_mut().unwrap().applied.push(member.clone());
        first.status.as_mut().unwrap().record = fact(1, 1);
        let memory = absorb(&memory, &first).unwrap();
        assert_eq!(memory.runs[0].state.applied, [member]);
        assert_eq!(memory.record, fact(1, 1));
        assert_eq!(absorb(&memory, &first), None);
    }

    #[test]
    fn ended_run_has_the_state_of_the_memory() {
        let mut first = run("x-1", Some(status(Phase::Running)));
        let memory = Memory::new(of(), "i").with_run(&first, true, Some(origin()));
        first.status = Some(status(Phase::Succeeded));
        let memory = absorb(&memory, &first).unwrap();
        // Somebody has written another state to its object, or has deleted it.
        let mut forged = first.clone();
        forged.status = Some(RunStatus { record: fact(9, 9), ..status(Phase::Running) });
        let recalled = memory.recall(vec![forged.clone()]);
        assert_eq!((recalled.runs[0].phase(), recalled.runs[0].known), (Phase::Succeeded, Known::Altered));
        assert!(recalled.runs[0].status.as_ref().unwrap().record.is_empty());
        assert_eq!(absorb(&memory, &forged), None);
        let recalled = memory.recall(Vec::new());
        assert_eq!((recalled.runs[0].phase(), recalled.runs[0].known), (Phase::Succeeded, Known::Gone));
    }

    #[test]
    fn steps_of_an_ended_run_count_only_if_unaltered() {
        let step = StepState { path: "a".into(), ..StepState::default() };
        let mut first = run("x-1", Some(RunStatus { steps: vec![step], ..status(Phase::Running) }));
        let memory = Memory::new(of(), "i").with_run(&first, true, None);
        first.status.as_mut().unwrap().phase = Phase::Failed;
        let memory = absorb(&memory, &first).unwrap();
        let steps =
            |run: &PlanRun| memory.recall(vec![run.clone()]).runs[0].status.as_ref().unwrap().steps.len();
        assert_eq!(steps(&first), 1);
        first.status.as_mut().unwrap().steps[0].path = "b".into();
        assert_eq!(steps(&first), 0);
    }

    #[test]
    fn runs_missing_from_the_memory_never_run() {
        let memory = Memory::new(of(), "i");
        let mut taken = run("x-1", None);
        taken.annotations.insert(TAKEN.into(), "an earlier uid".into());
        let running = run("x-2", Some(status(Phase::Running)));
        let ended = run("x-3", Some(status(Phase::Succeeded)));
        let request = run("x-4", None);
        let recalled = memory.recall(vec![taken, running, ended, request]);
        let names = |runs: &[PlanRun]| runs.iter().map(|run| run.name.clone()).collect::<Vec<_>>();
        assert_eq!(names(&recalled.runs), ["x-4"]);
        assert_eq!(names(&recalled.strangers), ["x-1", "x-2", "x-3"]);
    }

    #[test]
    fn run_whose_status_was_deleted_counts_as_wiped() {
        let mut first = run("x-1", Some(status(Phase::Running)));
        let memory = Memory::new(of(), "i").with_run(&first, true, Some(origin()));
        first.status = None;
        let recalled = memory.recall(vec![first.clone()]);
        assert_eq!(recalled.runs[0].known, Known::Yes, "nothing of it was done yet");
        first.annotations.insert(TAKEN.into(), first.uid.clone());
        first.finalizers.push(super::super::run::RUN_FINALIZER.into());
        let recalled = memory.recall(vec![first]);
        assert_eq!(recalled.runs[0].known, Known::Wiped);
    }

    #[test]
    fn memory_keeps_a_bounded_number_of_runs() {
        let members: Vec<Member> = (0..50).map(|key| Member::new("members", Some(json!(key)))).collect();
        let mut memory = Memory::new(of(), "i");
        for number in 1..=200 {
            let mut next = run(&format!("x-{number}"), Some(status(Phase::Running)));
            next.created = format!("2026-01-01T{:02}:{:02}:00Z", number / 60, number % 60);
            memory = memory.with_run(&next, true, Some(origin()));
            let state = next.status.as_mut().unwrap();
            state.applied.clone_from(&members);
            state.phase = if number % 100 == 0 { Phase::Succeeded } else { Phase::Failed };
            memory = absorb(&memory, &next).unwrap();
            let applied: usize = memory.runs.iter().map(|run| run.state.applied.len()).sum();
            assert!(applied <= 2 * members.len() + 50 * LISTED, "{applied} after {number}");
        }
        assert!(memory.runs.len() <= LISTED + 1, "{}", memory.runs.len());
        assert_eq!(memory.number, 200);
    }

    #[test]
    fn a_memory_with_numbers_of_any_size_can_be_read_back() {
        let mut first = run("x-1", Some(RunStatus { record: fact(2, 2), ..status(Phase::Running) }));
        let mut memory = Memory::new(of(), "i").with_run(&first, true, Some(origin()));
        let stored = first.status.as_mut().unwrap();
        (stored.sequence, stored.used_milliseconds) = (u64::MAX, u64::MAX);
        stored.record.get_mut("a").unwrap().sequence = u64::MAX;
        memory.number = u64::MAX;
        memory = absorb(&memory, &first).unwrap();
        // The API server has no integers of more than 63 bits, and returns them as floats.
        let read = Memory::deserialize(memory.to_json()).unwrap();
        assert_eq!((read.number, read.runs[0].state.sequence), (HIGHEST, HIGHEST));
        assert_eq!(read.to_json(), memory.to_json());
    }

    #[test]
    fn numbers_that_cannot_be_counted_on_from_are_refused() {
        for (pointer, number) in [
            ("/number", json!(u64::MAX)),
            ("/number", json!(1.844_674_407_370_955_2e19)),
            ("/number", json!(-1)),
            ("/record/a/sequence", json!(HIGHEST + 1)),
            ("/runs/0/state/sequence", json!(HIGHEST + 1)),
            ("/runs/0/state/usedMilliseconds", json!(HIGHEST + 1)),
            ("/runs/0/state/steps/0/sinceMilliseconds", json!(HIGHEST + 1)),
            ("/runs/0/state/steps/0/retryMilliseconds", json!(HIGHEST + 1)),
        ] {
            let step = StepState { retry_milliseconds: Some(1), ..StepState::default() };
            let state = RunStatus { sequence: 1, steps: vec![step], ..status(Phase::Running) };
            let remembered = RememberedRun { state, ..RememberedRun::default() };
            let memory = Memory { record: fact(1, 1), runs: vec![remembered], ..Memory::new(of(), "i") };
            let mut stored = memory.to_json();
            assert_eq!(Memory::deserialize(&stored).unwrap(), memory);
            *stored.pointer_mut(pointer).unwrap() = number;
            assert!(Memory::deserialize(&stored).is_err(), "{pointer}");
        }
    }

    /// A backup that is applied over a memory that has ended must replace that field.
    #[test]
    fn has_ended_is_always_written() {
        assert_eq!(Memory::new(of(), "u").to_json()["hasEnded"], false);
    }
}
