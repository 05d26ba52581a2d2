//! Server-side apply field sets: which leaves of a desired object we still own, and how to win back a keyed
//! list that another client has edited. See `docs/design/0016-field-ownership-and-refused-edits.md`.
//!
//! The API server records in `metadata.managedFields` which manager owns which field. An object
//! whose entry of ours no longer covers the whole desired object has drifted; to see that takes its metadata
//! only, no schema and no content. What the server (1.36) does, and what this module relies on:
//!
//! - A leaf of what we applied is in our entry: scalars, empty maps, nulls, whole atomic maps and
//!   lists. A manager that changes one takes it from our entry; one that removes it takes it from every entry.
//! - An empty *keyed* list or set (`env: []`) is in no entry, an empty atomic list
//!   (`ingress: []`) is. Ours alone does not tell them apart: see [`uncovered_beside`].
//! - In a map with open keys an entry that lost all below `f:x` reads `"f:x": {}`, just like an
//!   atomic one. Again only the other entries tell.
//! - Once managedFields have been emptied, the next apply finds that all was there before anybody applied:
//!   an entry `before-first-apply` then owns everything beside ours.
//! - An item of a keyed list that was renamed leaves scraps in our entry (fields whose value was
//!   empty), but the item itself (`"."`) is gone from it.

mod adopt;
mod conflicting;
mod cover;
mod intern;
mod merge;
mod owned;
mod path;
mod release;
mod repair;
#[cfg(test)]
mod tests;

pub use adopt::{adopt_client_side, hand_over, take_from_updates};
pub use conflicting::conflicting_manager;
pub use cover::{lost_items, uncovered, uncovered_beside};
pub use intern::interned;
pub use merge::{applied, merged, recreated};
pub use owned::{is_taken_over, of_child, of_manager, of_others};
pub use path::FieldPath;
pub use release::{excess, is_in_version, release};
pub use repair::{conflicting_items, excluding, former_members, holder, is_ownerless, move_to_ours};
