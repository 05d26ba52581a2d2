//! Tests of managers against a real control plane that all of them share. Each test has its own namespace,
//! and its own kinds or objects.

// Tests may panic.
#![allow(clippy::unwrap_used, clippy::expect_used)]
#![allow(clippy::needless_pass_by_value)]

#[path = "../support/mod.rs"]
mod support;

mod bad_input;
mod plan_commands;
mod readiness;
mod routes;
mod served;
