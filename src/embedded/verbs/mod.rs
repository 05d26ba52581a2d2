//! The verbs: what requests do to the state, and what they answer.

pub(crate) mod accounts;
mod apply;
pub(crate) mod create;
pub(crate) mod delete;
mod last_applied;
pub(crate) mod managers;
pub(crate) mod patch;
pub(crate) mod pods;
pub(crate) mod read;
pub(crate) mod response;
pub(crate) mod reviews;
pub(crate) mod scale;
mod services;
pub(crate) mod tokens;
pub(crate) mod watch;
pub(crate) mod write;
