//! What requests and objects are: kinds and their versions, metadata, failures.

mod autoscalers;
mod context;
pub(crate) mod failure;
pub(crate) mod kinds;
pub(crate) mod meta;
mod object;
pub(crate) mod request;
pub(crate) mod versions;

pub(crate) use context::Context;
pub use failure::Failure;
pub(crate) use failure::Outcome;
pub(crate) use kinds::{Kind, Kinds, Names, Source};
pub(crate) use object::{Object, Parsed, printed};
pub(crate) use request::{Query, Route};
pub use request::{Request, User};
