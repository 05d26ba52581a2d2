//! Operetta: a universal Kubernetes operator. An operator is a folder of YAML; this crate loads it,
//! registers its CRDs and keeps the children of every instance true.
//!
//! `docs/architecture.md` is the map of the code and of the invariants that hold in it.

// Only tests may panic; the product reports what went wrong.
#![warn(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub mod apiserver;
pub mod cli;
pub mod clock;
pub mod cluster;
pub mod manager;
mod memory;
mod play;
pub mod random;

pub use operetta_core::{children, operators, plan, preview, reach, rights};
pub use operetta_lang::{api, diag, naming, printable, template, yaml};
pub use operetta_local as local;
pub use operetta_package as package;
pub use operetta_package::{crd, readiness};

use operetta_kube_model::{age, facts, field_selector, selector, validation};
use operetta_lang::backoff;

#[cfg(test)]
#[allow(dead_code)] // other crates use the rest
#[path = "../tests/support/crd.rs"]
mod test_crd;
