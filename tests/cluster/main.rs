//! Tests of managers against a real control plane that all of them share. Each has a namespace, and kinds or objects, of its own.

// Failing is what tests are for.
#![allow(clippy::unwrap_used, clippy::expect_used)]
#![allow(clippy::needless_pass_by_value)]

#[path = "../support/mod.rs"]
mod support;

mod bad_input;
mod claims;
mod composition;
mod deletion;
mod drift;
mod etcd;
mod observations;
mod plan_commands;
mod plans;
mod readiness;
mod refs;
mod refusals;
mod routes;
mod values;
mod webapp;
