//! LimitRanger: the defaults and limits of LimitRanges.

use serde_json::Value;

use super::Write;
use crate::api::{Api, Context};
use crate::status::Outcome;

pub(super) fn mutate(_: &mut Api, _: &mut Context<'_>, _: &mut Value, _: &Value) -> Outcome<()> {
    Ok(())
}

pub(super) fn validate(_: &mut Api, _: &mut Context<'_>, _: &Write<'_>) -> Outcome<()> {
    Ok(())
}
