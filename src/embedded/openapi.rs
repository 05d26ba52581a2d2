//! OpenAPI v3 documents.

use crate::api::Api;
use crate::request::Response;
use crate::status::{Failure, Outcome};

/// Answers a request about schemas.
pub(crate) fn answer(api: &Api, parts: &[&str]) -> Outcome<Response> {
    let _ = (api, parts);
    Err(Failure::no_path())
}
