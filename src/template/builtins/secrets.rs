//! What is made once and kept: a render gives no value, only a mark where one belongs. The manager fills in
//! the live value, or a new one when it creates the object; so two renders never differ.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use serde_json::Value;

use super::Args;
use crate::template::errors::{Fault, Res};
use crate::template::limits::Run;
use crate::template::value::{Name, Val};

/// Characters of a password, least and most.
const LENGTHS: std::ops::RangeInclusive<usize> = 8..=256;

/// The key of a mark. It is another one in each process, so no value of an instance can pass for a mark.
fn mark() -> &'static str {
    static MARK: OnceLock<String> = OnceLock::new();
    MARK.get_or_init(|| format!("password {:032x}", fastrand::u128(..)))
}

/// `password(length)`: a map, so that it cannot become part of a text unnoticed.
pub(super) fn password(_: &Run<'_>, args: &Args<'_>, _: &[(Name, Val)]) -> Res<Val> {
    let length = args.count(0, 32, *LENGTHS.end())?;
    if !LENGTHS.contains(&length) {
        return Err(Fault::failed(format!(
            "a password has {} to {} characters",
            LENGTHS.start(),
            LENGTHS.end()
        )));
    }
    let length = i128::try_from(length).unwrap_or_default();
    Val::map(BTreeMap::from([(Name::from(mark()), Val::Int(length))]))
}

/// The length of the password that belongs in the place of a rendered value, if it is a mark.
pub(crate) fn password_length(value: &Value) -> Option<usize> {
    let map = value.as_object().filter(|map| map.len() == 1)?;
    usize::try_from(map.get(mark())?.as_u64()?).ok()
}
