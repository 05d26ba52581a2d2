//! The rules between the runs of an instance, in a small manager that obeys them.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde_json::{Value, json};

use super::build::*;
use crate::package::plan::{CleanupFailure, Concurrency, Event, Plan, Trigger};
use crate::plan::*;

#[allow(clippy::struct_excessive_bools)] // each is a fact of its own
struct Manager {
    plans: Vec<Plan>,
    runs: Vec<PlanRun>,
    /// All specs that were rolled out, by the name of their origin.
    specs: BTreeMap<String, Value>,
    spec: Value,
    revision: String,
    announced: Option<String>,
    deleting: bool,
    namespace_terminating: bool,
    paused: bool,
    losses: Vec<(String, Vec<Member>)>,
    conditions: Vec<(String, ConditionVerdict)>,
    now: i64,
    created: usize,
    rolls_out: bool,
    /// The names of PlanRuns of others.
    occupied: BTreeSet<String>,
    /// What the status of the instance says.
    succeeded: BTreeSet<String>,
    due: Vec<(String, String, Timestamp)>,
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
            specs: BTreeMap::new(),
            spec: json!({"size": 1}),
            revision: "1".into(),
            announced: None,
            deleting: false,
            namespace_terminating: false,
            paused: false,
            losses: Vec::new(),
            conditions: Vec::new(),
            now: 1_800_000_000,
            created: 0,
            rolls_out: true,
            occupied: BTreeSet::new(),
            succeeded: BTreeSet::new(),
            due: Vec::new(),
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

    fn agenda(&self) -> Agenda {
        let origin_name = |spec: &Value, revision: &str| format!("o-{revision}-{spec}");
        let name = origin_name(&self.spec, &self.revision);
        let refs = BTreeMap::new();
        let revision = |name: &str| name.split('-').nth(1).unwrap_or_default().to_owned();
        let revisions: BTreeMap<&String, String> =
            self.specs.keys().map(|name| (name, revision(name))).collect();
        let stored = |name: &str| {
            let (name, spec) = self.specs.get_key_value(name)?;
            Some(Origin { name, revision: &revisions[name], spec, refs: &refs })
        };
        let in_store: Vec<Origin<'_>> = self.specs.keys().filter_map(|name| stored(name)).collect();
        let newest = Origin { name: &name, revision: &self.revision, spec: &self.spec, refs: &refs };
        let started: Vec<&PlanRun> = self
            .runs
            .iter()
            .filter(|run| {
                run.cause() == Cause::Rollout && run.status.as_ref().is_some_and(|s| s.origin.is_some())
            })
            .collect();
        let last = started.iter().rposition(|run| run.phase() == Phase::Succeeded);
        let in_use: Vec<Origin<'_>> = started[last.unwrap_or_default()..]
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
            plans: &self.plans,
            runs: &self.runs,
            instance: "x",
            succeeded: self.succeeded.clone(),
            occupied: &self.occupied,
            deleting: self.deleting,
            skip_cleanup: false,
            namespace_terminating: self.namespace_terminating,
            paused: self.paused,
            announced: self.announced.as_deref(),
            newest,
            origins: &in_store,
            rollout: select(&change).filter(|_| self.rolls_out),
            losses: self.losses.clone(),
            conditions: self.conditions.clone(),
            due: self.due.clone(),
            wrong_params: &|_, params| (params == "wrong").then(|| "params must be an object".into()),
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

    /// Does one write. `false`: there is none.
    fn turn(&mut self) -> bool {
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
                        self.specs.insert(origin.clone(), self.spec.clone());
                    }
                    self.run_mut(&run).status = Some(*status);
                }
                RunWrite::Take { run } => {
                    let run = self.run_mut(&run);
                    assert!(run.status.is_some());
                    run.annotations.insert(TAKEN.into(), run.uid.clone());
                }
                RunWrite::Announce { run } => self.announced = Some(self.run(&run).uid.clone()),
            }
            return true;
        }
        for (name, directive) in agenda.active {
            if let Directive::Settle(ending) | Directive::Abandon(ending) = directive {
                let now = self.time().to_string();
                let run = self.run_mut(&name);
                let answers = run.spec.approvals.len();
                let status = run.status.as_mut().unwrap();
                status.parked = (ending.phase == Phase::Interrupted && status.only_asks()).then_some(answers);
                status.phase = ending.phase;
                ending.reason.clone_into(&mut status.reason);
                status.finished_at = Some(now);
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

#[test]
fn requests_run_in_the_order_of_arrival_one_at_a_time() {
    let mut manager = Manager::new();
    manager.create("one", "failover");
    manager.create("two", "repair");
    manager.create("beside", "backup");
    manager.settle();
    assert_eq!(manager.active(), ["one", "beside"]);
    assert_eq!(manager.agenda().waiting, [("two".to_owned(), "run one goes first".to_owned())]);
    manager.end("one", Phase::Failed);
    manager.settle();
    assert_eq!(manager.active(), ["two", "beside"]);
}

#[test]
fn a_loss_interrupts_a_request_which_then_resumes() {
    let mut manager = Manager::new();
    manager.create("one", "repair");
    manager.settle();
    manager.losses = vec![("failover".into(), vec![Member::new("members", Some(json!(1)))])];
    manager.settle();
    assert_eq!(manager.phase("one"), (Phase::Interrupted, "Interrupted"));
    assert_eq!(manager.active(), ["x-2"]);
    assert_eq!(manager.run("x-2").status.as_ref().unwrap().lost.len(), 1);
    // It fails: others get their turn before it is repeated.
    manager.end("x-2", Phase::Failed);
    manager.settle();
    assert_eq!(manager.active(), ["one"]);
    manager.now += 60;
    manager.settle();
    assert_eq!(manager.active(), ["x-3"]);
    manager.losses.clear();
    manager.end("x-3", Phase::Succeeded);
    manager.settle();
    assert_eq!(manager.active(), ["one"]);
}

#[test]
fn a_run_that_must_not_be_interrupted_is_not() {
    let mut manager = Manager::new();
    manager.create("one", "restore");
    manager.settle();
    manager.losses = vec![("failover".into(), vec![Member::new("a", None)])];
    manager.spec = json!({"size": 2});
    manager.settle();
    assert_eq!(manager.active(), ["one"]);
    manager.end("one", Phase::Succeeded);
    manager.settle();
    assert_eq!(manager.active(), ["x-2"]);
    assert_eq!(manager.run("x-2").cause(), Cause::Loss);
}

#[test]
fn a_newer_spec_replaces_a_rollout_and_a_newer_revision_follows() {
    let mut manager = Manager::new();
    manager.spec = json!({"size": 2});
    manager.settle();
    assert_eq!(manager.active(), ["x-2"]);
    assert_eq!(manager.run("x-2").status.as_ref().unwrap().plans, ["update"]);
    manager.revision = "2".into();
    manager.settle();
    assert_eq!(manager.active(), ["x-2"]);
    manager.spec = json!({"size": 3});
    manager.settle();
    assert_eq!(manager.phase("x-2"), (Phase::Superseded, "NewerSpec"));
    assert_eq!(manager.active(), ["x-3"]);
    assert_eq!(manager.run("x-3").status.as_ref().unwrap().revision.as_deref(), Some("2"));
}

#[test]
fn a_failed_rollout_is_tried_again_only_for_a_reason() {
    let mut manager = Manager::new();
    manager.spec = json!({"size": 2});
    manager.settle();
    let state = StepState { path: "a".into(), phase: StepPhase::Failed, attempt: 1, ..StepState::default() };
    manager.run_mut("x-2").status.as_mut().unwrap().steps = vec![state];
    manager.end("x-2", Phase::Failed);
    manager.settle();
    assert!(manager.active().is_empty());
    manager.create("again", "update");
    manager.run_mut("again").spec.retry_of = Some("x-2".into());
    manager.settle();
    assert_eq!(manager.active(), ["again"]);
    let (again, before) =
        (manager.run("again").status.clone().unwrap(), manager.run("x-2").status.clone().unwrap());
    assert_eq!((again.cause, &again.id, &again.origin), (Cause::Rollout, &before.id, &before.origin));
    assert_eq!((again.steps[0].phase, again.steps[0].attempt), (StepPhase::Pending, 1));
    manager.end("again", Phase::Failed);
    manager.settle();
    assert!(manager.active().is_empty());
    manager.revision = "2".into();
    manager.settle();
    assert_eq!(manager.active(), ["x-3"]);
}

#[test]
fn an_interrupted_rollout_is_decided_again() {
    let mut manager = Manager::new();
    manager.spec = json!({"size": 2});
    manager.settle();
    manager.losses = vec![("failover".into(), vec![Member::new("a", None)])];
    manager.settle();
    let loss = manager.active()[0].to_owned();
    assert_eq!(manager.run(&loss).cause(), Cause::Loss);
    manager.losses.clear();
    manager.end(&loss, Phase::Succeeded);
    manager.settle();
    assert_eq!(manager.phase("x-2"), (Phase::Superseded, "DecidedAgain"));
    let active = manager.active()[0].to_owned();
    assert_eq!(manager.run(&active).cause(), Cause::Rollout);
    assert_ne!(active, "x-2");
}

#[test]
fn runs_that_wait_for_approval_block_nobody_and_do_not_swap_places_forever() {
    let mut manager = Manager::new();
    manager.create("one", "repair");
    manager.settle();
    manager.asks("one");
    manager.create("two", "failover");
    manager.settle();
    assert_eq!(manager.phase("one"), (Phase::Interrupted, "AwaitsApproval"));
    manager.asks("two");
    manager.settle();
    assert_eq!(manager.active(), ["two"]);
    let yes = Approval { step: "sure".into(), verdict: Verdict::Approve, by: "ann".into(), message: None };
    manager.run_mut("one").spec.approvals.push(yes);
    manager.settle();
    assert_eq!(manager.active(), ["one"]);
}

#[test]
fn an_approval_carries_over_to_a_rollout_that_asks_the_same() {
    let mut manager = Manager::new();
    manager.spec = json!({"size": 2});
    manager.settle();
    manager.asks("x-2");
    let yes = Approval { step: "sure".into(), verdict: Verdict::Approve, by: "ann".into(), message: None };
    manager.run_mut("x-2").spec.approvals.push(yes);
    manager.spec = json!({"size": 3});
    manager.settle();
    let carried = &manager.run("x-3").status.as_ref().unwrap().approvals;
    assert_eq!((carried[0].by.as_str(), carried[0].message.as_deref()), ("ann", Some("Sure?")));
}

#[test]
fn a_second_run_of_a_plan_is_refused_waits_or_takes_its_place() {
    for (concurrency, first, second) in [
        (Concurrency::Forbid, Phase::Running, (Phase::Failed, "AlreadyRunning")),
        (Concurrency::Queue, Phase::Running, (Phase::Pending, "")),
        (Concurrency::Replace, Phase::Superseded, (Phase::Running, "")),
    ] {
        for name in ["backup", "repair"] {
            let mut manager = Manager::new();
            manager.plans.iter_mut().find(|plan| plan.name == name).unwrap().concurrency = concurrency;
            manager.create("one", name);
            manager.settle();
            manager.create("two", name);
            manager.settle();
            assert_eq!(manager.phase("one").0, first, "{concurrency:?} {name}");
            assert_eq!(manager.phase("two"), second, "{concurrency:?} {name}");
        }
    }
}

#[test]
fn a_cancelled_run_ends_and_does_not_come_back() {
    let mut manager = Manager::new();
    manager.create("one", "repair");
    manager.create("two", "failover");
    manager.settle();
    for name in ["one", "two"] {
        manager.run_mut(name).spec.cancel = true;
    }
    manager.settle();
    assert_eq!((manager.phase("one").0, manager.phase("two").0), (Phase::Cancelled, Phase::Cancelled));
    assert!(manager.active().is_empty());
}

#[test]
fn a_taken_run_without_status_never_runs() {
    let mut manager = Manager::new();
    for (name, taken) in [("own", "uid-2"), ("other", "elsewhere")] {
        manager.create(name, "repair");
        manager.run_mut(name).annotations.insert(TAKEN.into(), taken.into());
    }
    manager.settle();
    assert_eq!(manager.phase("own"), (Phase::Failed, "StateLost"));
    assert_eq!(manager.phase("other"), (Phase::Failed, "StateLost"));
    // The same in mid-run.
    manager.create("one", "repair");
    manager.settle();
    manager.run_mut("one").status = None;
    manager.settle();
    assert_eq!(manager.phase("one"), (Phase::Failed, "StateLost"));
}

#[test]
fn wrong_requests_fail_with_a_reason() {
    let mut manager = Manager::new();
    manager.create("params", "repair");
    manager.run_mut("params").spec.params = json!("wrong");
    manager.create("large", "repair");
    manager.run_mut("large").left_out = Some("they take too much".into());
    manager.create("missing", "nothing");
    manager.create("retry", "repair");
    manager.run_mut("retry").spec.retry_of = Some("x-1".into());
    manager.settle();
    assert_eq!(manager.phase("params"), (Phase::Failed, "InvalidParams"));
    assert_eq!(manager.phase("large"), (Phase::Failed, "InvalidParams"));
    assert_eq!(manager.phase("retry"), (Phase::Failed, "NotRetryable"));
    assert_eq!(manager.phase("missing"), (Phase::Pending, "PlanMissing"));
    // Its plan comes with another revision of the package.
    manager.create("late", "late");
    manager.settle();
    manager.plans.push(note_plan("late"));
    manager.settle();
    assert_eq!(manager.active(), ["late"]);
    manager.now += 3600;
    manager.settle();
    assert_eq!(manager.phase("missing"), (Phase::Failed, "PlanMissing"));
}

#[test]
fn the_number_of_waiting_requests_is_bounded() {
    let mut manager = Manager::new();
    manager.plans.iter_mut().for_each(|plan| plan.concurrency = Concurrency::Queue);
    for index in 0..103 {
        manager.create(&format!("r{index}"), "repair");
    }
    for _ in 0..400 {
        manager.turn();
    }
    assert_eq!(manager.phase("r0").0, Phase::Running);
    assert_eq!(manager.phase("r102"), (Phase::Failed, "TooManyRuns"));
}

#[test]
fn a_deletion_ends_every_run_and_runs_the_cleanup() {
    let mut manager = Manager::new();
    manager.plans.push(triggered(note_plan("cleanup"), Event::Deleted));
    manager.create("one", "restore");
    manager.create("two", "repair");
    manager.create("three", "backup");
    manager.settle();
    manager.deleting = true;
    manager.settle();
    for name in ["one", "two", "three"] {
        assert_eq!(manager.phase(name), (Phase::Cancelled, "InstanceDeleted"));
    }
    assert_eq!(manager.active(), ["x-2"]);
    assert_eq!(manager.agenda().cleanup, Cleanup::Active);
    let state = StepState { path: "a".into(), phase: StepPhase::Failed, ..StepState::default() };
    manager.run_mut("x-2").status.as_mut().unwrap().steps = vec![state];
    manager.end("x-2", Phase::Failed);
    manager.settle();
    assert!(matches!(manager.agenda().cleanup, Cleanup::Held(name, _) if name == "x-2"));
    manager.create("again", "cleanup");
    manager.run_mut("again").spec.retry_of = Some("x-2".into());
    manager.settle();
    assert_eq!(manager.active(), ["again"]);
    manager.end("again", Phase::Succeeded);
    manager.settle();
    assert_eq!(manager.agenda().cleanup, Cleanup::Done);
}

#[test]
fn a_cleanup_that_failed_runs_again_for_another_spec_or_revision() {
    let mut manager = Manager::new();
    manager.plans.push(triggered(note_plan("cleanup"), Event::Deleted));
    manager.deleting = true;
    manager.settle();
    let fails = |manager: &mut Manager, name: &str| {
        assert_eq!(manager.active(), [name]);
        manager.end(name, Phase::Failed);
        manager.settle();
        assert!(matches!(manager.agenda().cleanup, Cleanup::Held(run, _) if run == name));
    };
    fails(&mut manager, "x-2");
    manager.spec = json!({"size": 2});
    manager.settle();
    fails(&mut manager, "x-3");
    manager.revision = "2".into();
    manager.settle();
    fails(&mut manager, "x-4");
    manager.spec = json!({"size": 1});
    manager.settle();
    manager.end("x-5", Phase::Succeeded);
    assert_eq!(manager.agenda().cleanup, Cleanup::Done);
}

#[test]
fn a_held_cleanup_does_not_run_again_in_a_namespace_that_is_being_deleted() {
    let mut manager = Manager::new();
    let mut cleanup = triggered(note_plan("cleanup"), Event::Deleted);
    cleanup.on_cleanup_failure = Some(CleanupFailure::Hold);
    manager.plans.push(cleanup);
    manager.deleting = true;
    manager.settle();
    manager.end("x-2", Phase::Failed);
    manager.namespace_terminating = true;
    manager.spec = json!({"size": 2});
    manager.settle();
    assert!(manager.active().is_empty());
    assert!(matches!(manager.agenda().cleanup, Cleanup::Held(run, _) if run == "x-2"));
}

#[test]
fn a_condition_runs_its_plan_and_a_half_done_run_is_resumed() {
    let mut manager = Manager::new();
    manager.conditions = vec![("failover".into(), ConditionVerdict::Due)];
    manager.settle();
    assert_eq!(manager.active(), ["x-2"]);
    let status = manager.run_mut("x-2").status.as_mut().unwrap();
    status.record.insert("primary".into(), Recorded { value: json!(1), sequence: 1 });
    status.steps = vec![StepState { path: "a".into(), phase: StepPhase::Failed, ..StepState::default() }];
    manager.conditions = vec![("failover".into(), ConditionVerdict::Cleared)];
    manager.end("x-2", Phase::Failed);
    manager.settle();
    assert!(manager.active().is_empty());
    manager.now += 60;
    manager.settle();
    assert_eq!(manager.active(), ["x-3"]);
    assert_eq!(manager.run("x-3").status.as_ref().unwrap().id, manager.run("x-2").uid);
}

#[test]
fn nothing_starts_while_the_instance_is_paused() {
    let mut manager = Manager::new();
    manager.paused = true;
    manager.spec = json!({"size": 2});
    manager.create("one", "repair");
    manager.settle();
    assert!(manager.active().is_empty());
    manager.paused = false;
    manager.settle();
    assert_eq!(manager.active().len(), 1);
}

#[test]
fn thousands_of_requests_delay_no_loss() {
    let mut manager = Manager::new();
    for index in 0..2000 {
        manager.create(&format!("r{index}"), "backup");
    }
    manager.turn();
    manager.losses = vec![("failover".into(), vec![Member::new("a", None)])];
    let turns = (0..20).position(|_| {
        manager.turn();
        manager.active().iter().any(|name| manager.run(name).cause() == Cause::Loss)
    });
    assert!(turns.is_some());
}

#[test]
fn a_cleanup_that_runs_is_not_disturbed_by_a_wrong_retry() {
    let mut manager = Manager::new();
    manager.plans.push(triggered(note_plan("cleanup"), Event::Deleted));
    manager.deleting = true;
    manager.settle();
    assert_eq!(manager.active(), ["x-2"]);
    manager.create("again", "cleanup");
    manager.run_mut("again").spec.retry_of = Some("x-2".into());
    manager.settle();
    assert_eq!(manager.active(), ["x-2"]);
    manager.end("x-2", Phase::Succeeded);
    manager.settle();
    assert_eq!(manager.agenda().cleanup, Cleanup::Done);
}

#[test]
fn a_spec_that_is_edited_back_to_a_failed_one_is_rolled_out_again() {
    let mut manager = Manager::new();
    manager.spec = json!({"size": 2});
    manager.settle();
    manager.end("x-2", Phase::Failed);
    manager.settle();
    manager.spec = json!({"size": 3});
    manager.settle();
    assert_eq!(manager.active(), ["x-3"]);
    manager.spec = json!({"size": 2});
    manager.settle();
    assert_eq!((manager.phase("x-3").0, manager.active()), (Phase::Superseded, vec!["x-4"]));
}

#[test]
fn an_interrupted_retry_of_a_rollout_is_decided_again() {
    let mut manager = Manager::new();
    manager.spec = json!({"size": 2});
    manager.settle();
    let state = StepState { path: "a".into(), phase: StepPhase::Failed, ..StepState::default() };
    manager.run_mut("x-2").status.as_mut().unwrap().steps = vec![state];
    manager.end("x-2", Phase::Failed);
    manager.create("x-3", "update");
    manager.run_mut("x-3").spec.retry_of = Some("x-2".into());
    manager.settle();
    assert_eq!(manager.active(), ["x-3"]);
    manager.losses = vec![("failover".into(), vec![Member::new("a", None)])];
    manager.settle();
    let loss = manager.active()[0].to_owned();
    manager.losses.clear();
    manager.end(&loss, Phase::Succeeded);
    manager.settle();
    assert_eq!(manager.run(manager.active()[0]).cause(), Cause::Rollout);
}

#[test]
fn names_that_other_runs_hold_are_passed_over() {
    let mut manager = Manager::new();
    manager.occupied = ["x-2", "x-3", "x-5", "x-backup-60", "x-backup-60-2"].map(str::to_owned).into();
    manager.spec = json!({"size": 2});
    manager.settle();
    assert_eq!(manager.phase("x-4").0, Phase::Running);
    manager.end("x-4", Phase::Succeeded);
    manager.spec = json!({"size": 3});
    manager.settle();
    assert_eq!(manager.phase("x-6").0, Phase::Running);
    manager.due = vec![("backup".into(), "x-backup-60".into(), Timestamp::UNIX_EPOCH)];
    manager.turn();
    assert_eq!(manager.run("x-backup-60-3").spec.plan, "backup");
}

/// Whoever requests a run names it.
#[test]
fn a_request_with_the_highest_of_numbers_does_not_end_them() {
    let mut manager = Manager::new();
    manager.create("x-18446744073709551615", "backup");
    manager.spec = json!({"size": 2});
    manager.settle();
    assert_eq!(manager.phase("x-2").0, Phase::Running);
}

#[test]
fn what_a_run_is_beside_others_is_said_by_its_own_revision() {
    let mut manager = Manager::new();
    manager.create("b", "backup");
    manager.create("r", "restore");
    manager.settle();
    assert_eq!(manager.active(), ["b", "r"]);
    // The next revision has other plans of these names, or none.
    manager.revision = "2".into();
    manager.plans.retain(|plan| plan.name != "backup");
    manager.plans.iter_mut().for_each(|plan| plan.interruptible = true);
    manager.losses = vec![("failover".into(), vec![Member::new("a", None)])];
    manager.settle();
    assert_eq!(manager.active(), ["b", "r"], "the restore may not be interrupted");
    manager.end("r", Phase::Succeeded);
    manager.settle();
    let active = manager.active();
    assert!(active.len() == 2 && active[0] == "b", "the failover runs beside the backup: {active:?}");
}

/// As of a backup: `take` is requested while the schedule's run is active, twice.
#[test]
fn requests_of_a_plan_that_a_schedule_calls_wait_for_each_other() {
    let mut manager = Manager::new();
    manager.plans.push(plan("periodic", vec![inline("take", "take")]));
    manager.plans.push(Plan { concurrency: Concurrency::Queue, ..note_plan("take") });
    manager.create("scheduled", "periodic");
    manager.run_mut("scheduled").annotations.insert(CAUSE.into(), Cause::Schedule.as_str().into());
    manager.settle();
    assert_eq!(manager.active(), ["scheduled"]);
    manager.create("one", "take");
    manager.create("two", "take");
    for name in ["scheduled", "one", "two"] {
        manager.settle();
        assert_eq!(manager.active(), [name]);
        manager.end(name, Phase::Succeeded);
    }
}
