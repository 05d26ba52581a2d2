//! Packages whose managers are tested under faults.

use crate::support::ext::{CONFIG_MAP, JOB, Kind, POD, SECRET, SERVICE};

/// A package whose manager is tested under faults.
#[derive(Debug)]
pub struct Subject {
    pub folder: &'static str,
    /// The package's name.
    pub name: &'static str,
    /// The API group of its kinds, which each case replaces by one of its own.
    pub group: &'static str,
    pub version: &'static str,
    /// The kind of the instances.
    pub kind: &'static str,
    pub plural: &'static str,
    /// Another kind of the package whose instances are children.
    pub inner: Option<&'static str>,
    /// The kinds of children in the instance's namespace that are compared.
    pub children: &'static [Kind],
    /// The kinds of cluster-scoped children, and of children in other namespaces, with the namespace.
    pub elsewhere: &'static [(Kind, Option<&'static str>)],
}

/// The package that nearly all cases use.
pub const WHOLE: Subject = Subject {
    folder: "tests/fixtures/packages/whole",
    name: "whole",
    group: "fixtures.operetta.dev",
    version: "v1",
    kind: "Whole",
    plural: "wholes",
    inner: None,
    children: &[CONFIG_MAP, SECRET, SERVICE, JOB],
    elsewhere: &[],
};

/// A package whose upgrades change one member after another.
pub const FLEETS: Subject = Subject {
    folder: "tests/fixtures/packages/plans-rollouts",
    name: "plans-rollouts",
    group: "fixtures.operetta.dev",
    version: "v1",
    kind: "Fleet",
    plural: "fleets",
    inner: None,
    children: &[CONFIG_MAP, POD],
    elsewhere: &[],
};

/// A package with plans of all steps.
pub const PROCEDURES: Subject = Subject {
    folder: "tests/fixtures/packages/plans-steps",
    name: "plans-steps",
    group: "fixtures.operetta.dev",
    version: "v1",
    kind: "Procedure",
    plural: "procedures",
    inner: None,
    children: &[CONFIG_MAP],
    elsewhere: &[],
};
