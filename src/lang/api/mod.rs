//! The values that all layers share: kinds, object references, failed calls, and what the API server serves. No I/O.

mod apis;
mod built_in;
mod error;
mod kind;
mod object;
mod refusal;
mod served;
mod words;

pub use apis::Apis;
pub use built_in::{BuiltIn, NameRule};
pub use error::{CallError, Cause, Class, MAX_BODY};
pub use kind::{ApiKind, Gvk, group_of, split_api_version};
pub use object::ObjectRef;
pub use refusal::says_unauthorized;
pub use served::Served;
