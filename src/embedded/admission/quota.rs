//! ResourceQuota: what the objects of a namespace may use.

use super::Write;
use crate::api::{Api, Context};
use crate::status::Outcome;

pub(super) fn validate(_: &mut Api, _: &mut Context<'_>, _: &Write<'_>) -> Outcome<()> {
    Ok(())
}
