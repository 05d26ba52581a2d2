//! The subresource `scale`.

use crate::api::{Api, Context};
use crate::request::Response;
use crate::status::{Failure, Outcome};

/// Reads or changes the number of replicas.
pub(crate) fn answer(api: &mut Api, context: &mut Context<'_>, verb: &str) -> Outcome<Response> {
    let _ = api;
    Err(Failure::not_allowed(&context.kind, verb))
}
