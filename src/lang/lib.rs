//! The base of Operetta: names and kinds of API objects, YAML, the schemas of Kubernetes, templates and
//! expressions. Every function depends on its input only.

// Only tests may panic; product code returns an error instead.
#![warn(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

// `kube-core` needs a version of Kubernetes, which a feature of this dependency selects.
use k8s_openapi as _;

pub mod api;
pub mod backoff;
pub mod diag;
pub mod naming;
pub mod printable;
pub mod schema;
pub mod template;
pub mod yaml;
