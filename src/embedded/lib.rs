//! A Kubernetes API as a value: requests and the time go in, responses come out. Nothing here waits, does I/O, reads a clock
//! or throws dice. README.md says what is exact and what is left out.

// Tests may panic; the product reports what went wrong instead.
#![warn(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
// A failure is large and rare, so results hold it in a box.
#![allow(clippy::unnecessary_box_returns)]

mod access;
mod admission;
mod allocation;
mod api;
mod apply;
mod autoscalers;
mod body;
mod controllers;
mod crd;
mod decode;
mod defaults;
mod deletion;
mod discovery;
mod fields;
mod gc;
mod kinds;
mod last_applied;
mod meta;
mod openapi;
mod openapi_v2;
mod patching;
mod pods;
mod policy;
mod programs;
mod protobuf;
mod read;
mod request;
mod rows;
mod scale;
mod schema;
mod selection;
mod services;
mod status;
mod store;
mod stored;
mod strategy;
mod subresources;
mod table;
mod validate;
mod versions;
mod watch;
mod work;
mod world;
mod write;

// Makes the modules of the crate `operetta-kube-model` available under `crate::`.
use operetta_kube_model::{facts, quantity, selector, validation};

pub use api::Api;
pub use programs::{Call, Course, Exec, ExecResult, Obedient, Objects, Programs, Reply, Stamp};
pub use protobuf::from_protobuf;
pub use request::{Body, Request, Response, User, decoded};
pub use status::Failure;
pub use store::Size;
pub use versions::{Converter, Webhook};
pub use watch::Watch;
pub use world::World;

#[cfg(test)]
mod recorded;
#[cfg(test)]
mod replayed;

#[cfg(test)]
mod access_tests;
