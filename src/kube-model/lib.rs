//! What Kubernetes says about objects, without a server and without what Operetta adds: one copy for packages, for the
//! engine and for the embedded API, whose recorded answers of a real kube-apiserver test it.

// Only tests may panic; product code returns an error instead.
#![warn(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub mod age;
pub mod built_in;
pub mod cel;
pub mod crd;
pub mod facts;
mod fault;
pub mod field_selector;
pub mod fields;
pub mod patch;
pub mod quantity;
pub mod schema;
pub mod selector;
pub mod validation;

pub use fault::Fault;
