//! Tests that need processes, the Lease, RBAC, or a control plane of their own: one that they stop, or whose requests they count.

// Tests may panic.
#![allow(clippy::unwrap_used, clippy::expect_used)]
#![allow(clippy::needless_pass_by_value)]

#[path = "../support/mod.rs"]
mod support;

mod cases;
mod clients;
mod clock;
mod control_plane;
mod crds;
mod dev;
mod edits;
mod embedded;
mod exec;
mod get;
mod helm;
mod leader;
mod lists;
mod operators;
mod outage;
mod plans;
mod preview;
mod programs;
mod quiet;
mod rights;
