//! What Operetta is written in: the names and kinds of API objects, YAML, the schemas of Kubernetes, templates and
//! expressions. All of it is a function of its input.

// Tests may; the product says what went wrong instead.
#![warn(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

// `kube-core` needs a version of Kubernetes, which this dependency chooses.
use k8s_openapi as _;

pub mod api;
pub mod backoff;
pub mod diag;
pub mod naming;
pub mod printable;
pub mod schema;
pub mod template;
pub mod yaml;
