//! A Kubernetes API as a value: requests and the time go in, responses come out. Nothing here waits, does I/O, reads a clock
//! or throws dice. README.md says what is exact and what is left out.

// Tests may panic; the product reports what went wrong instead.
#![warn(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
// A failure is large and rare, so results hold it in a box.
#![allow(clippy::unnecessary_box_returns)]

mod access;
mod admission;
mod api;
mod body;
mod controllers;
mod crd;
mod decode;
mod defaults;
mod discovery;
mod dispatch;
mod fields;
mod forms;
mod model;
mod schema;
mod seed;
mod selection;
mod state;
mod strategy;
mod verbs;
mod work;
mod world;

pub use api::Api;
pub use body::protobuf::from_protobuf;
pub use body::stored;
pub use crd::{Converter, Webhook};
pub use model::request::decoded;
pub use model::{Failure, Request, User};
pub use state::store::Size;
pub use verbs::response::{Body, Response};
pub use verbs::watch::Watch;
pub use world::programs::{
    Call, CallResponse, Course, DefaultPrograms, Exec, ExecResult, Objects, Programs, Stamp,
};
pub use world::{Mention, Mentioned, World};

#[cfg(test)]
mod tests;
