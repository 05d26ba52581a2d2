//! Requests that create an object.

use super::accounts;
use super::response::Response;
use super::write::{read_new, store_new};
use crate::model::{Context, Outcome, meta};
use crate::state::State;

/// Creates an object.
pub(crate) fn create(state: &mut State, context: &mut Context<'_>) -> Outcome<Response> {
    let is_dry = context.query.is_dry_run()?;
    let mut new = read_new(state, context)?;
    meta::settle_namespace(context, &mut new.value)?;
    accounts::wait(state, context, &new.value);
    Ok(Response::of(201, store_new(state, context, new, is_dry)?))
}
