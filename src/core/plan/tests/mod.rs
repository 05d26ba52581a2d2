//! Tests of the engine, on a cluster that is a few maps.

pub(super) mod build;
mod crashes;
mod rules;
mod select;
mod sim;
mod steps;
