//! What is served.

use crate::api::Api;
use crate::request::{Request, Response};
use crate::status::{Failure, Outcome};

/// Answers a request about what is served.
pub(crate) fn answer(api: &Api, request: &Request<'_>, parts: &[&str]) -> Outcome<Response> {
    let _ = (api, request, parts);
    Err(Failure::no_path())
}
