//! Who owns which fields: field sets and the entries of `managedFields`, which are read and written as structured-merge-diff
//! does. What an entry means to its reader, and how a write changes the entries, is not here.

mod entry;
mod key;
mod set;
#[cfg(test)]
mod tests;
mod value;

pub use entry::{Entry, Fields, MANAGED, Owner, UNOWNED, entries, read, sort, to_value, write};
pub use key::{Fit, Key, quote};
pub use set::FieldSet;
pub use value::{compare, same};
