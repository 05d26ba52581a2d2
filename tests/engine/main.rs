//! Tests of managers and packages, each with the embedded API and its managers in its own thread, where time is virtual. With
//! `OPERETTA_TEST_API=real` all share a real control plane.

// Tests may panic.
#![allow(clippy::unwrap_used, clippy::expect_used)]
#![allow(clippy::needless_pass_by_value)]

#[path = "../support/mod.rs"]
mod support;

mod claims;
mod composition;
mod crash;
mod crds;
mod deletion;
mod differential;
mod drift;
mod etcd;
mod faults;
mod observations;
mod observing;
mod operators;
mod own_crds;
mod passwords;
mod plan_faults;
mod plan_runs;
mod plans;
mod protection;
mod refs;
mod refusals;
mod refused_calls;
mod retained;
mod routes;
mod takeover;
mod values;
mod webapp;
