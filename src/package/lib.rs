//! Packages: the format of `operator.yaml`, loading, linting.
//!
//! [`load()`] reads a folder and reports all its errors. [`compile()`] does the same with files in memory.
//! Both return a [`Package`]: everything that a decision about an instance needs, with all expressions and
//! templates parsed.

// Only tests may panic; product code returns an error instead.
#![warn(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod apis;
pub mod capability;
mod check;
mod child;
mod chosen_account;
mod compile;
mod compiler;
mod conflicts;
mod conversion;
pub mod crd;
pub mod decode;
pub mod dependencies;
mod expression_sites;
mod files;
mod graph;
pub mod image;
mod images;
mod key;
mod lint;
mod load;
mod locate;
pub mod lock;
mod made;
pub mod manifest;
mod metadata;
mod model;
mod observation;
mod order;
mod others;
mod permissions;
pub mod plan;
pub mod powers;
pub mod readiness;
mod ready;
mod refs;
mod requires;
mod resource;
pub mod schema;
mod scope;
mod secrecy;
mod status_types;
pub mod store;
mod tarball;
mod template_scan;
#[cfg(test)]
#[path = "../../tests/support/crd.rs"]
mod test_crd;
pub mod test_file;
pub mod world;

// Makes the modules of the crates below available under `crate::`.
use operetta_kube_model::{facts, validation};
use operetta_lang::{api, diag, naming, printable, template, yaml};

pub use check::{check, is_news};
pub use compile::{compile, sort};
pub use conflicts::conflicts;
pub use files::{Files, LOCK, OPERATOR_YAML, UNREADABLE};
pub use images::images;
pub use key::key_problem;
pub use lint::grants::Granted;
pub use lint::words::boolean_help;
pub use load::{inspect, load};
pub use locate::{locate, place};
pub use made::{Made, made};
pub use manifest::{ConflictPolicy, DeletionPolicy, ImmutableChange};
pub use metadata::{NEVER, may_come_from_values};
pub(crate) use model::is_secret;
pub use model::{
    Call, Child, Condition, ForEach, Locked, MaxUnavailable, NamespaceRef, NamespaceRefs, Observation,
    OnImmutableChange, Package, Permission, REPLICAS, Ref, RefSource, RequiredApi, Resource, StatusField,
    Tree, Yields, has_replicas, holds_data,
};
pub use observation::MAX_ANSWER;
pub use scope::{FileScope, Unread, plain, read_named, text};
pub use tarball::{archived, load_archive};
pub use template_scan::Namespaces;
