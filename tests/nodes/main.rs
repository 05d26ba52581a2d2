//! Tests on a real node, which runs pods. They need root and what `docs/testing.md` lists.

// Tests may panic.
#![allow(clippy::unwrap_used, clippy::expect_used)]
#![allow(clippy::needless_pass_by_value)]

#[path = "../support/mod.rs"]
mod support;

mod database;
mod etcd;
mod figures;
mod manager;
mod mortals;
mod pods;
mod postgresql;
mod teardown;
mod tls;
mod valkey;
mod webapp;
