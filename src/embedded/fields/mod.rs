//! How writes change who owns which fields: the merge, comparison and removal of values that server-side apply is made of.
//! The algorithms are those of structured-merge-diff, over JSON.

mod compare;
pub(crate) mod manager;
mod merge;
mod remove;
mod rules;
mod typed;

pub(crate) use manager::Managed;
pub(crate) use rules::{Conflicts, Refused, Rules};
pub(crate) use typed::{check, go_value, joined};

/// The paths of the fields of a value.
pub(crate) fn field_paths(typed: crate::schema::Typed<'_>, value: &serde_json::Value) -> Vec<String> {
    typed::field_set(typed, value).paths()
}
