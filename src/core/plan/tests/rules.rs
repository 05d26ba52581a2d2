//! The rules between the runs of an instance, in a small manager that obeys them.

mod cleanup;
mod interruptions;
mod names;
mod protected;
mod repeating;
mod requests;
mod rollouts;

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde_json::{Value, json};

use super::build::*;
use crate::package::plan::{Event, Plan, Trigger};
use crate::plan::*;

#[allow(clippy::struct_excessive_bools)] // each is a fact of its own
struct Manager {
    plans: Vec<Plan>,
    runs: Vec<PlanRun>,
    /// All specs and refs that were rolled out, by the name of their origin.
    origins: BTreeMap<String, (Value, BTreeMap<String, String>)>,
    spec: Value,
    /// The digests of the refs.
    refs: BTreeMap<String, String>,
    revision: String,
    memory: Memory,
    deleting: bool,
    namespace_terminating: bool,
    has_memory: bool,
    paused: bool,
    losses: Vec<(String, Vec<Member>)>,
    conditions: Vec<(String, ConditionState)>,
    /// The plans whose condition has held ever since their last run has ended.
    staying: Vec<String>,
    now: i64,
    created: usize,
    rolls_out: bool,
    /// The names that PlanRuns of others hold.
    occupied: BTreeSet<String>,
    due: Vec<(String, String, Timestamp)>,
    protection: Protection,
}

fn triggered(mut plan: Plan, event: Event) -> Plan {
    let location = plan.location.clone();
    plan.triggers.push(Trigger { event, when: None, location });
    plan
}

fn note_plan(name: &str) -> Plan {
    plan(name, vec![note("a", name, "1")])
}

impl Manager {
    fn new() -> Self {
        let plans = vec![
            triggered(note_plan("deploy"), Event::Created),
            triggered(note_plan("update"), Event::Changed(Vec::new())),
            note_plan("failover"),
            note_plan("repair"),
            Plan { exclusive: false, ..note_plan("backup") },
            Plan { interruptible: false, ..note_plan("restore") },
        ];
        let mut manager = Self {
            plans,
            runs: Vec::new(),
            origins: BTreeMap::new(),
            spec: json!({"size": 1}),
            refs: BTreeMap::new(),
            revision: "1".into(),
            memory: Memory::new(Of { name: "x".into(), ..Of::default() }, "i"),
            deleting: false,
            namespace_terminating: false,
            has_memory: true,
            paused: false,
            losses: Vec::new(),
            conditions: Vec::new(),
            staying: Vec::new(),
            now: 1_800_000_000,
            created: 0,
            rolls_out: true,
            occupied: BTreeSet::new(),
            due: Vec::new(),
            protection: Protection::default(),
        };
        manager.settle();
        manager.end("x-1", Phase::Succeeded);
        assert_eq!(manager.run("x-1").cause(), Cause::Rollout);
        manager.settle();
        manager
    }

    fn time(&self) -> Timestamp {
        Timestamp::from_second(self.now).unwrap()
    }

    fn origin_name(&self) -> String {
        format!("o-{}-{}{:?}", self.revision, self.spec, self.refs)
    }

    fn agenda(&self) -> Agenda {
        let runs = self.memory.recall(self.runs.clone()).runs;
        let name = self.origin_name();
        let none = serde_json::Map::new();
        let revision = |name: &str| name.split('-').nth(1).unwrap_or_default().to_owned();
        let revisions: BTreeMap<&String, String> =
            self.origins.keys().map(|name| (name, revision(name))).collect();
        let stored = |name: &str| {
            let (name, (spec, refs)) = self.origins.get_key_value(name)?;
            Some(ComparedOrigin {
                name,
                revision: &revisions[name],
                spec,
                labels: &none,
                annotations: &none,
                refs,
            })
        };
        let in_store: Vec<ComparedOrigin<'_>> = self.origins.keys().filter_map(|name| stored(name)).collect();
        let newest = ComparedOrigin {
            name: &name,
            revision: &self.revision,
            spec: &self.spec,
            labels: &none,
            annotations: &none,
            refs: &self.refs,
        };
        let started: Vec<&PlanRun> = runs
            .iter()
            .filter(|run| {
                run.cause() == Cause::Rollout && run.status.as_ref().is_some_and(|s| s.origin.is_some())
            })
            .collect();
        let last = started.iter().rposition(|run| run.phase() == Phase::Succeeded);
        let in_use: Vec<ComparedOrigin<'_>> = started[last.unwrap_or_default()..]
            .iter()
            .filter_map(|run| stored(run.status.as_ref()?.origin.as_ref()?))
            .collect();
        let none = BTreeSet::new();
        let change = Change {
            plans: &self.plans,
            newest,
            in_use: &in_use,
            initial: last.is_none(),
            changed_children: &none,
            unfinished: None,
            holds: &|_| true,
        };
        agenda(&Situation {
            is_refused: &|_| false,
            plans: &self.plans,
            runs: &runs,
            instance: "x",
            occupied: &self.occupied,
            deleting: self.deleting,
            skip_cleanup: false,
            namespace_terminating: self.namespace_terminating,
            has_memory: self.has_memory,
            paused: self.paused,
            active: self.memory.active.as_deref(),
            number: self.memory.number,
            newest,
            origins: &in_store,
            rollout: select(&change).filter(|_| self.rolls_out),
            is_read: &|_| false,
            losses: self.losses.clone(),
            conditions: self.conditions.clone(),
            staying: self.staying.clone(),
            due: self.due.clone(),
            wrong_params: &|_, params| (params == "wrong").then(|| "params must be an object".into()),
            protection: &self.protection,
            now: self.time(),
        })
    }

    fn run(&self, name: &str) -> &PlanRun {
        self.runs.iter().find(|run| run.name == name).unwrap_or_else(|| panic!("no run {name}"))
    }

    fn run_mut(&mut self, name: &str) -> &mut PlanRun {
        self.runs.iter_mut().find(|run| run.name == name).unwrap()
    }

    fn phase(&self, name: &str) -> (Phase, &str) {
        let run = self.run(name);
        (run.phase(), run.status.as_ref().map_or("", |status| &status.reason))
    }

    fn create(&mut self, name: &str, plan: &str) {
        self.created += 1;
        self.now += 1;
        let of = Of { name: "x".into(), ..Of::default() };
        self.runs.push(PlanRun {
            name: name.into(),
            uid: format!("uid-{}", self.created),
            created: self.time().to_string(),
            spec: RunSpec { of, plan: plan.into(), ..RunSpec::default() },
            ..PlanRun::default()
        });
    }

    /// Adds to the memory what the runs have stored.
    fn absorb(&mut self) {
        let states = self.runs.iter().filter_map(|run| Some((run, run.status.as_ref()?)));
        if let Some(memory) = self.memory.absorb(states, &|_| None) {
            self.memory = memory;
        }
    }

    /// Carries out one write. `false`: there is none.
    fn turn(&mut self) -> bool {
        self.absorb();
        let agenda = self.agenda();
        let running: Vec<_> = self.runs.iter().filter(|run| run.phase() == Phase::Running).collect();
        let exclusive = running.iter().filter(|run| is_exclusive(run, &self.plans)).count();
        assert!(exclusive <= 1, "two runs are active");
        if let Some(write) = agenda.writes.first().cloned() {
            match write {
                RunWrite::Create(new) => {
                    assert!(self.runs.iter().all(|run| run.name != new.name));
                    self.create(&new.name, &new.plan);
                    let run = self.runs.last_mut().unwrap();
                    run.annotations.insert(CAUSE.into(), new.cause.as_str().into());
                    run.spec.retry_of = new.retry_of;
                }
                RunWrite::Status { run, status } => {
                    let before = self.run(&run).phase();
                    assert!(!before.is_final(), "{run} has ended");
                    if let Some(origin) = &status.origin {
                        self.origins.insert(origin.clone(), (self.spec.clone(), self.refs.clone()));
                    }
                    self.run_mut(&run).status = Some(*status);
                }
                RunWrite::Take { run } => {
                    let run = self.run_mut(&run);
                    assert_eq!(run.phase(), Phase::Running);
                    run.annotations.insert(TAKEN.into(), run.uid.clone());
                    run.finalizers.push(RUN_FINALIZER.into());
                }
                RunWrite::Register { run, exclusive } => {
                    let run = self.run(&run);
                    assert!(run.status.is_some() || run.cause() != Cause::Request);
                    let origin = self.origin_name();
                    let origin = run.spec.retry_of.is_none().then(|| (origin.as_str(), String::new()));
                    self.memory = self.memory.with_run(run, exclusive, origin);
                }
                RunWrite::StartInner(new) => {
                    self.create(&new.name, &new.plan);
                    let run = self.runs.last_mut().unwrap();
                    run.is_inner = true;
                    let start = Start { cause: new.cause, plans: vec![new.plan], ..Start::default() };
                    let status = started(run, start, Timestamp::from_second(self.now).unwrap());
                    self.memory = self.memory.with_inner(run, &status);
                    self.runs.pop();
                }
                RunWrite::EndGone { run, status } => {
                    let uid = self.memory.runs.iter().find(|known| known.name == run).unwrap().uid.clone();
                    self.memory = self.memory.with_gone(&uid, *status);
                }
            }
            return true;
        }
        for (name, directive) in agenda.active {
            if let Directive::Settle(ending) | Directive::Abandon(ending) = directive {
                let (now, protection) = (self.time(), self.protection.clone());
                let run = self.run_mut(&name);
                let answers = run.spec.approvals.len();
                let mut noted = run.status.clone().unwrap();
                note_answers(run, &mut noted, &protection, now);
                let status = run.status.insert(noted);
                status.parked = (ending.phase == Phase::Interrupted && status.only_asks()).then_some(answers);
                status.phase = ending.phase;
                ending.reason.clone_into(&mut status.reason);
                status.finished_at = Some(now.to_string());
                return true;
            }
        }
        false
    }

    fn settle(&mut self) {
        for _ in 0..200 {
            if !self.turn() {
                return;
            }
        }
        panic!("it does not settle: {:?}", self.agenda());
    }

    fn end(&mut self, name: &str, phase: Phase) {
        let now = self.time().to_string();
        let run = self.run_mut(name);
        assert_eq!(run.phase(), Phase::Running);
        let status = run.status.as_mut().unwrap();
        (status.phase, status.finished_at) = (phase, Some(now));
    }

    fn asks(&mut self, name: &str) {
        let state = StepState {
            path: "sure".into(),
            phase: StepPhase::Running,
            message: "Sure?".into(),
            asked: Some(0),
            ..StepState::default()
        };
        self.run_mut(name).status.as_mut().unwrap().steps = vec![state];
    }

    fn active(&self) -> Vec<&str> {
        self.runs.iter().filter(|run| run.phase() == Phase::Running).map(|run| run.name.as_str()).collect()
    }
}
