//! The names of runs.

use jiff::Timestamp;
use serde_json::json;

use super::Manager;
use crate::plan::{Cause, Phase};

#[test]
fn names_held_by_other_runs_are_skipped() {
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

#[test]
fn a_schedule_is_not_kept_from_running_by_a_request_with_its_name() {
    let mut manager = Manager::new();
    manager.create("x-backup-60", "backup");
    manager.due = vec![("backup".into(), "x-backup-60".into(), Timestamp::UNIX_EPOCH)];
    manager.turn();
    assert_eq!(manager.run("x-backup-60-2").cause(), Cause::Schedule);
}

/// Users choose the names of the runs that they request.
#[test]
fn highest_possible_number_in_a_name_does_not_stop_numbering() {
    let mut manager = Manager::new();
    manager.create("x-18446744073709551615", "backup");
    manager.spec = json!({"size": 2});
    manager.settle();
    assert_eq!(manager.phase("x-2").0, Phase::Running);
}
