//! Random plans, run by a manager that dies before and after its writes and effects: they come to the same end.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::build::*;
use super::sim::*;
use crate::package::plan::{OnFailure, Plan, Step};
use crate::plan::*;

/// Makes random plans.
struct Maker {
    random: fastrand::Rng,
    names: usize,
    /// Steps whose first attempts fail.
    replies: Vec<(String, Vec<Result<Reply, crate::plan::request::CallFailure>>)>,
    failing_jobs: Vec<String>,
}

impl Maker {
    fn steps(&mut self, prefix: &str, depth: usize, in_loop: bool) -> Vec<Step> {
        let count = self.random.usize(1..4);
        (0..count).map(|_| self.step(prefix, depth, in_loop)).collect()
    }

    fn step(&mut self, prefix: &str, depth: usize, in_loop: bool) -> Step {
        self.names += 1;
        let name = format!("s{}", self.names);
        let path = format!("{prefix}{name}");
        let member = format!("members[{}]", self.random.u8(0..4));
        let kinds = if depth == 0 { 9 } else { 14 };
        match self.random.u8(0..kinds) {
            0 => apply(&name, &[&member, "a"]),
            1 => delete(&name, &[&member]),
            2 => {
                if self.random.bool() {
                    self.failing_jobs.push(path.clone());
                }
                job(&name).retries(None, 3).output("id", "message.id").records(&name, "outputs.id")
            }
            3 | 4 => {
                let failures = self.random.usize(0..3);
                let reply = || if failures == 1 { cut() } else { status(503, json!(null)) };
                self.replies.push((path.clone(), (0..failures).map(|_| reply()).collect()));
                http(&name, "POST", "http://h/")
                    .retries(None, 2)
                    .output("id", "body.id")
                    .records(&name, "outputs.id")
            }
            5 => {
                self.replies.push((path.clone(), vec![status(400, json!(null))]));
                http(&name, "POST", "http://h/").on_failure(OnFailure::Continue)
            }
            6 => note(&name, &name, if in_loop { "item" } else { "spec.size" }),
            7 => pause(&name, "10s"),
            8 => wait(&name, "spec.size == 3").when(if self.random.bool() { "true" } else { "false" }),
            9 => phase(&name, self.steps(&format!("{path}/"), depth - 1, in_loop)),
            10 => parallel(&name, self.steps(&format!("{path}/"), depth - 1, in_loop)),
            11 if !in_loop => {
                let most = self.random.usize(1..3);
                phase(&name, self.steps(&format!("{path}/"), depth - 1, true)).each("spec.list", "item", most)
            }
            12 if !in_loop => {
                let done = format!("record['{name}'] | default([])");
                let mut steps = self.steps(&format!("{path}/"), depth - 1, true);
                steps.push(note("done", &name, &format!("{done} + [item]")));
                let pick = format!("spec.list | reject('in', {done}) | first");
                phase(&name, steps).repeat(&pick, "item", &format!("{done} | length == 2"), 2)
            }
            _ => inline(&name, "other"),
        }
    }
}

fn sim(seed: u64) -> Sim {
    let mut maker = Maker {
        random: fastrand::Rng::with_seed(seed),
        names: 0,
        replies: Vec::new(),
        failing_jobs: Vec::new(),
    };
    let deploy = plan("deploy", maker.steps("", 2, false));
    let other: Plan = plan(
        "other",
        vec![job("j").records("j", "message.id"), http("h", "POST", "http://h/").retries(None, 1)],
    );
    let mut sim = Sim::new(vec![deploy, other]);
    if seed.is_multiple_of(2) {
        sim.status_mut().cause = Cause::Rollout;
    }
    sim.cluster.replies = maker.replies.into_iter().collect();
    for path in maker.failing_jobs {
        sim.cluster.job_results.insert(path, vec![JobResult::Failed("exit code 1".into())]);
    }
    sim
}

/// The parts of the end of a run that must be the same, whatever happened in between.
#[derive(Debug, Clone, PartialEq)]
struct End {
    phase: Phase,
    message: String,
    steps: BTreeMap<String, StepPhase>,
    record: BTreeMap<String, Value>,
    applied: BTreeSet<String>,
    deleted: BTreeSet<String>,
    live: BTreeSet<String>,
    jobs: BTreeSet<(String, u32)>,
    keys: BTreeSet<String>,
}

fn end(sim: &mut Sim) -> End {
    let status = sim.finish().clone();
    let names = |members: &[Member]| members.iter().map(Member::to_string).collect();
    let jobs: BTreeSet<(String, u32)> =
        sim.cluster.created_jobs.iter().map(|(step, attempt, _)| (step.clone(), *attempt)).collect();
    assert_eq!(jobs.len(), sim.cluster.created_jobs.len(), "a Job was created twice");
    never_back(&sim.history);
    assert!(sim.decide().status.is_none(), "an ended run changes");
    End {
        phase: status.phase,
        message: status.message.clone(),
        steps: status.steps.iter().map(|step| (step.path.clone(), step.phase)).collect(),
        record: status.record.iter().map(|(key, fact)| (key.clone(), fact.value.clone())).collect(),
        applied: names(&status.applied),
        deleted: names(&status.deleted),
        live: sim.cluster.members.keys().map(Member::to_string).collect(),
        jobs,
        keys: sim.cluster.by_key.keys().cloned().collect(),
    }
}

/// A step that has ended stays as it is; attempts and the used time only grow.
fn never_back(history: &[RunStatus]) {
    for states in history.windows(2) {
        let [before, after] = states else { continue };
        assert!(!before.phase.is_final());
        assert!(before.used_milliseconds <= after.used_milliseconds);
        assert!(before.steps.len() <= after.steps.len());
        for (old, new) in before.steps.iter().zip(&after.steps) {
            assert_eq!(old.path, new.path);
            assert!(old.attempt <= new.attempt);
            assert!(!old.phase.is_final() || old == new, "{} changes after its end", old.path);
        }
    }
}

#[test]
fn a_manager_that_dies_at_any_point_comes_to_the_same_end() {
    for seed in 0..25 {
        let mut undisturbed = sim(seed);
        let expected = end(&mut undisturbed);
        assert_eq!(expected.phase, Phase::Succeeded, "seed {seed}: {}", expected.message);
        for point in 1..=undisturbed.operations {
            for after in [false, true] {
                let mut disturbed = sim(seed);
                disturbed.dies = Box::new(move |operation, is_after| (operation, is_after) == (point, after));
                assert_eq!(
                    end(&mut disturbed),
                    expected,
                    "seed {seed}, operation {point}, after it: {after}"
                );
            }
        }
    }
}

#[test]
fn a_manager_that_dies_often_comes_to_the_same_end() {
    for seed in 0..150 {
        let expected = end(&mut sim(seed));
        let mut disturbed = sim(seed);
        let random = std::cell::RefCell::new(fastrand::Rng::with_seed(seed));
        disturbed.dies = Box::new(move |_, _| random.borrow_mut().u8(0..4) == 0);
        assert_eq!(end(&mut disturbed), expected, "seed {seed}");
    }
}

#[test]
fn a_run_that_is_interrupted_at_any_point_comes_to_the_same_end() {
    let ending = Ending { phase: Phase::Interrupted, reason: "Interrupted", message: String::new() };
    for seed in 0..15 {
        let mut undisturbed = sim(seed);
        let expected = end(&mut undisturbed);
        for point in 1..=undisturbed.operations {
            let mut disturbed = sim(seed);
            for _ in 0..1000 {
                if disturbed.operations >= point || disturbed.status().phase != Phase::Running {
                    break;
                }
                if !disturbed.turn() {
                    let wake = disturbed.decide().wake;
                    disturbed.now += wake.unwrap_or_default();
                }
            }
            disturbed.directive = Directive::Settle(ending.clone());
            for _ in 0..1000 {
                if disturbed.status().phase != Phase::Running {
                    break;
                }
                if !disturbed.turn() {
                    let wake = disturbed.decide().wake;
                    disturbed.now += wake.unwrap_or_default();
                }
            }
            if disturbed.status().phase == Phase::Interrupted {
                let resumed = resumed(disturbed.status());
                disturbed.run.status = Some(resumed);
                disturbed.history.clear();
            }
            disturbed.directive = Directive::Continue;
            let found = end(&mut disturbed);
            // A Job that was deleted runs again as another attempt.
            let without_jobs = |end: &End| End { jobs: BTreeSet::new(), ..end.clone() };
            assert_eq!(without_jobs(&found), without_jobs(&expected), "seed {seed}, operation {point}");
        }
    }
}
