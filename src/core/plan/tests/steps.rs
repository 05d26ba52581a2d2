//! Every kind of step, and its modifiers.

mod calls;
mod endings;
mod flow;
mod jobs;
mod members;
mod repeat;
mod store;
mod waiting;

use serde_json::json;

use crate::plan::Member;

fn member(index: u64) -> Member {
    Member::new("members", Some(json!(index)))
}
