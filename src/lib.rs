//! Operetta: a universal Kubernetes operator. An operator is a folder of YAML; this crate loads it,
//! registers its CRDs and keeps the children of every instance true.
//!
//! `docs/architecture.md` is the map of the code and of the invariants that hold in it.

// Tests may; the product says what went wrong instead.
#![warn(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub mod api;
mod backoff;
pub mod children;
pub mod cli;
mod clock;
pub mod cluster;
pub mod crd;
pub mod diag;
pub mod local;
pub mod manager;
pub mod naming;
pub mod operators;
pub mod package;
pub mod plan;
pub mod preview;
pub mod printable;
pub mod readiness;
pub mod rights;
mod schema;
pub mod template;
pub mod yaml;

#[cfg(test)]
#[path = "../tests/support/crd.rs"]
mod test_crd;
