//! The names of runs.

use jiff::Timestamp;
use serde_json::json;

use super::Manager;
use crate::plan::Phase;

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
