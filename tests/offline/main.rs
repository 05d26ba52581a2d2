//! Tests without a control plane.

// Tests may panic.
#![allow(clippy::unwrap_used, clippy::expect_used)]
#![allow(clippy::needless_pass_by_value)]

mod archives;
mod argocd;
mod cases;
mod catalogues;
#[path = "../support/crd.rs"]
#[allow(dead_code, reason = "the other tests use all of it")]
mod crd;
mod explored;
mod hostile;
mod lint;
mod publishing;
mod registries;
#[path = "../support/registry/mod.rs"]
mod registry;
mod render;
#[path = "../support/says.rs"]
mod says;
mod takeover;
