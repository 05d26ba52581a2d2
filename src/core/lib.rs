//! The decisions of Operetta: what is to be done about an instance, its children, plans and rights. Each is a function of
//! what was seen, of the package and of the time; nothing here waits or talks to an API server.

// Tests may panic; the product reports what went wrong instead.
#![warn(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub mod children;
pub mod names;
pub mod operators;
pub mod plan;
pub mod preview;
pub mod reach;
pub mod rights;

// The crates below, by the paths that the modules of this crate use.
use operetta_kube_model::{facts, selector, validation};
use operetta_lang::{api, backoff, diag, naming, printable, template};
use operetta_package as package;
use operetta_package::{crd, readiness};

#[cfg(test)]
#[allow(dead_code)] // other crates use the rest
#[path = "../../tests/support/crd.rs"]
mod test_crd;
