//! Tests on a real node: pods run. As root, with what `docs/testing.md` lists.

// Failing is what tests are for.
#![allow(clippy::unwrap_used, clippy::expect_used)]
#![allow(clippy::needless_pass_by_value)]

#[path = "../support/mod.rs"]
mod support;

mod etcd;
mod manager;
mod pods;
mod teardown;
mod webapp;
