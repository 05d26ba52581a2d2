//! The target of an instance, and what to do to reach it.

pub mod fields;
