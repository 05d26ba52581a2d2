//! Runs whose reason stays, or comes back soon.

use serde_json::json;

use super::Manager;
use crate::plan::{Cause, ConditionState, Member, Phase};

fn due(plans: &[&str]) -> Vec<(String, ConditionState)> {
    plans.iter().map(|plan| ((*plan).to_owned(), ConditionState::Due)).collect()
}

fn lost(member: &str) -> Vec<(String, Vec<Member>)> {
    vec![("failover".into(), vec![Member::new(member, None)])]
}

/// Whether the waits are as expected: the creation of a run takes a second, too.
fn are_about(waits: &[i64], expected: &[i64]) -> bool {
    waits.len() == expected.len()
        && waits.iter().zip(expected).all(|(wait, expected)| (*expected..=expected + 1).contains(wait))
}

impl Manager {
    /// The active run ends so; what follows is decided.
    fn ends(&mut self, phase: Phase) {
        let active = self.active()[0].to_owned();
        self.end(&active, phase);
        self.settle();
    }

    /// Waits until another run begins. Returns for how many seconds.
    fn waits(&mut self) -> i64 {
        let began = self.now;
        while self.active().is_empty() {
            let wake = self.agenda().wake.expect("nothing wakes it");
            self.now += i64::try_from(wake.as_secs()).unwrap().max(1);
            self.settle();
        }
        self.now - began
    }

    /// What is said of plans that run again and again.
    fn repeating(&self) -> Vec<(String, u32)> {
        self.agenda().repeating.into_iter().map(|found| (found.plan, found.count)).collect()
    }
}

#[test]
fn a_condition_that_stays_starts_its_plan_less_and_less_often() {
    let mut manager = Manager::new();
    manager.conditions = due(&["failover"]);
    manager.settle();
    assert_eq!((manager.active(), manager.repeating()), (vec!["x-2"], Vec::new()));
    let mut waits = Vec::new();
    for count in 1..12 {
        manager.ends(Phase::Succeeded);
        assert_eq!((manager.active(), manager.repeating()), (vec![""; 0], vec![("failover".into(), count)]));
        waits.push(manager.waits());
        assert_eq!(manager.repeating(), [("failover".into(), count)]);
    }
    assert!(are_about(&waits, &[10, 20, 40, 80, 160, 320, 640, 1280, 2560, 3600, 3600]), "{waits:?}");
    // It becomes false, and true again after a while.
    manager.conditions.clear();
    manager.ends(Phase::Succeeded);
    assert_eq!(manager.repeating(), []);
    manager.now += 2 * 3600 + 1;
    manager.conditions = due(&["failover"]);
    manager.settle();
    assert_eq!((manager.active().len(), manager.repeating()), (1, Vec::new()));
}

/// It has to hold for a minute before it counts again, as `for` may say.
#[test]
fn a_condition_that_stays_and_counts_late_is_no_exception() {
    let mut manager = Manager::new();
    (manager.conditions, manager.staying) = (due(&["failover"]), vec!["failover".to_owned()]);
    manager.settle();
    let mut waits = Vec::new();
    for _ in 0..6 {
        manager.conditions.clear();
        manager.ends(Phase::Succeeded);
        let ended = manager.now;
        manager.now += 60;
        manager.conditions = due(&["failover"]);
        manager.settle();
        manager.waits();
        waits.push(manager.now - ended);
    }
    assert!(are_about(&waits, &[60, 60, 60, 80, 160, 320]), "{waits:?}");
    // All others go first by now.
    let urgent = manager.active()[0].to_owned();
    manager.spec = json!({"size": 2});
    manager.settle();
    assert_eq!(manager.phase(&urgent), (Phase::Interrupted, "Interrupted"));
}

/// Both become true again and again.
#[test]
fn two_conditions_that_undo_each_other_run_less_and_less_often() {
    let mut manager = Manager::new();
    let began = manager.now;
    for (turn, plan) in ["failover", "repair"].into_iter().cycle().take(20).enumerate() {
        manager.conditions = due(&[plan]);
        manager.settle();
        manager.waits();
        manager.ends(Phase::Succeeded);
        assert!(turn < 2 || !manager.repeating().is_empty(), "{turn}");
    }
    assert!(manager.now - began > 2000, "{}", manager.now - began);
}

#[test]
fn a_rollout_goes_before_the_third_run_in_a_row() {
    let mut manager = Manager::new();
    manager.conditions = due(&["failover"]);
    manager.settle();
    for _ in 0..2 {
        manager.ends(Phase::Succeeded);
        manager.waits();
    }
    let third = manager.active()[0].to_owned();
    manager.spec = json!({"size": 2});
    manager.settle();
    assert_eq!(manager.phase(&third), (Phase::Interrupted, "Interrupted"));
    let rollout = manager.active()[0].to_owned();
    assert_eq!(manager.run(&rollout).cause(), Cause::Rollout);
    manager.now += 3600;
    manager.settle();
    assert_eq!(manager.active(), [rollout]);
    manager.ends(Phase::Succeeded);
    assert_eq!(manager.active(), [third]);
}

#[test]
fn a_failed_run_stays_urgent_for_a_while() {
    let mut manager = Manager::new();
    manager.losses = lost("a");
    manager.settle();
    let mut urgent = Vec::new();
    for _ in 0..8 {
        manager.ends(Phase::Failed);
        manager.create(&format!("mine-{}", manager.now), "repair");
        manager.settle();
        let active = manager.active()[0].to_owned();
        let wake = manager.agenda().wake.unwrap();
        manager.now += i64::try_from(wake.as_secs()).unwrap() + 1;
        manager.settle();
        urgent.push(manager.active() != [active.clone()]);
        if manager.active() == [active] {
            manager.ends(Phase::Succeeded);
        }
        while manager.run(manager.active()[0]).cause() != Cause::Loss {
            manager.ends(Phase::Succeeded);
        }
    }
    assert_eq!(urgent, [true, true, true, true, true, false, false, false]);
}

#[test]
fn a_run_for_another_loss_begins_at_once() {
    let mut manager = Manager::new();
    manager.losses = lost("a");
    manager.settle();
    manager.ends(Phase::Succeeded);
    assert_eq!((manager.active().len(), manager.repeating()), (0, vec![("failover".into(), 1)]));
    manager.losses = lost("b");
    manager.settle();
    assert_eq!((manager.active().len(), manager.repeating()), (1, Vec::new()));
    // The first is still lost when it has ended.
    manager.losses = vec![("failover".into(), vec![Member::new("b", None), Member::new("a", None)])];
    manager.ends(Phase::Succeeded);
    assert_eq!((manager.active().len(), manager.repeating()), (1, vec![("failover".into(), 1)]));
    manager.ends(Phase::Succeeded);
    assert!(manager.waits() >= 18);
}

/// A rollout whose steps change what the instance reads, or two instances that read each other.
#[test]
fn rollouts_that_nobody_asks_for_wait() {
    let mut manager = Manager::new();
    let named =
        crate::package::plan::Event::Changed(vec![crate::package::plan::ChangedPath::Ref("named".into())]);
    manager.plans.push(super::triggered(super::note_plan("rotate"), named));
    let change = |manager: &mut Manager| {
        let digest = format!("v1:{}", manager.now);
        manager.refs.insert("named".into(), digest);
        manager.settle();
    };
    // It is known from a rollout on.
    manager.refs.insert("named".into(), "v1:0".into());
    manager.spec = json!({"size": 2});
    manager.settle();
    manager.ends(Phase::Succeeded);
    manager.now += 3600;
    change(&mut manager);
    let mut waits = Vec::new();
    for _ in 0..6 {
        manager.now += 1;
        change(&mut manager);
        manager.ends(Phase::Succeeded);
        waits.push(manager.waits());
    }
    assert!(are_about(&waits, &[0, 0, 0, 10, 20, 40]), "{waits:?}");
    assert_eq!(manager.repeating(), [("rotate".into(), 6)]);
    // An edit does not wait.
    manager.ends(Phase::Succeeded);
    change(&mut manager);
    assert!(manager.active().is_empty());
    manager.spec = json!({"size": 7});
    manager.settle();
    assert_eq!((manager.active().len(), manager.repeating()), (1, Vec::new()));
    // A failed one is not tried again at once, because its own steps may have changed it.
    manager.ends(Phase::Failed);
    change(&mut manager);
    assert!(manager.active().is_empty());
    assert!(are_about(&[manager.waits()], &[10]));
}

/// A plan that edits the spec of its own instance ends by a newer spec, or starts its next run.
#[test]
fn rollouts_that_edit_their_instance_have_a_highest_rate() {
    let mut manager = Manager::new();
    manager.now += 3600;
    let began = manager.now;
    for size in 2..32 {
        manager.now += 1;
        manager.spec = json!({"size": size});
        manager.settle();
        manager.waits();
        if size % 2 == 0 {
            manager.ends(Phase::Succeeded);
        }
    }
    assert!(manager.now - began > 200, "{}", manager.now - began);
}
