//! Tests of the engine, in a world that is a few maps.

pub(super) mod build;
mod crashes;
mod rules;
mod select;
mod sim;
mod steps;
