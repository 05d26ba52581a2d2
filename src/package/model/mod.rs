//! What is compiled from a package: everything that a decision about an instance needs, with all expressions and templates
//! parsed. The types of plans are in [`crate::plan`].

mod child;
mod package;
mod refs;
mod required;
mod resource;
mod tree;

pub(crate) use child::is_secret;
pub use child::{
    Child, ForEach, MaxUnavailable, OnImmutableChange, REPLICAS, Yields, has_replicas, holds_data,
};
pub use package::{Package, Permission};
pub use refs::{Call, NamespaceRef, NamespaceRefs, Observation, Ref, RefSource};
pub use required::{Locked, RequiredApi};
pub use resource::{Condition, Resource, StatusField};
pub use tree::Tree;
