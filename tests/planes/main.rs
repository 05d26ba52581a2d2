//! Tests that stop, count or restart a control plane or a manager, which the tests of `cluster` share.

// Tests may panic.
#![allow(clippy::unwrap_used, clippy::expect_used)]
#![allow(clippy::needless_pass_by_value)]

#[path = "../support/mod.rs"]
mod support;

mod cases;
mod clients;
mod clock;
mod control_plane;
mod crash;
mod crds;
mod dev;
mod differential;
mod edits;
mod embedded;
mod exec;
mod faults;
mod get;
mod helm;
mod leader;
mod lists;
mod observing;
mod operators;
mod outage;
mod own_crds;
mod passwords;
mod plan_faults;
mod plan_runs;
mod plans;
mod preview;
mod programs;
mod protection;
mod quiet;
mod refusals;
mod retained;
mod rights;
mod takeover;
