//! What is desired: the children of an instance, rendered into objects.

mod building;
mod generated;
mod metadata;
mod object;
pub(super) mod render;

pub(super) use building::refs;
pub use building::target;
