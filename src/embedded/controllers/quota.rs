//! `ResourceQuota`s: what the objects of their namespace use.

use jiff::Timestamp;

use super::client::{self, MANAGER, QUOTAS, get};
use crate::admission::recounted;
use crate::api::Api;

pub(super) fn sync(api: &mut Api, key: &str, now: Timestamp) -> Option<Timestamp> {
    let mut quota = get(api, &QUOTAS, key)?;
    let (status, due) = recounted(&api.state, &quota, now);
    client::set_status(api, MANAGER, &QUOTAS, &mut quota, status, now);
    due
}
