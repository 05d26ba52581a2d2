//! Tests of the binary on the embedded API: they need no control plane.

// Tests may panic.
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "../support/mod.rs"]
mod support;

mod clients;
mod dev;
mod kubectl;
mod readme;
mod siblings;
mod versions;
mod workloads;
