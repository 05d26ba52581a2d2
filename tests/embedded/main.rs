//! Tests of the binary on the embedded API: they need no control plane and no other program.

// Tests may panic.
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "../support/mod.rs"]
mod support;

mod dev;
