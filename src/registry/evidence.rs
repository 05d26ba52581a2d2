//! What was checked of a package when it was made, in a form that can be checked again. It has no times and no durations: equal
//! packages that are made by equal commands have equal digests.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::digest::Digest;

/// What was checked, and with what.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evidence {
    /// The version of Operetta.
    pub operetta: String,
    /// What `operetta lint` finds. There are no errors, or the package would not have been made.
    pub lint: Lint,
    /// The cases that were played, if that was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tests: Option<Tests>,
}

/// The findings of a lint.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lint {
    /// How many warnings each rule has.
    pub warnings: BTreeMap<String, u32>,
}

/// Cases that were played on the embedded API.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tests {
    /// The digest of the archive of the files that the cases read, before compression.
    pub files: Digest,
    /// The folder of the package in that archive; empty if the archive is of the folder itself.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub folder: String,
    /// The cases. All pass, or the package would not have been made.
    pub cases: Vec<Case>,
    /// What they have reached.
    pub reached: BTreeMap<String, Reached>,
    /// The images of the pods that ran in them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub images: Vec<String>,
    /// The schedules of disturbances under which they were played, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub explored: Option<Explored>,
}

/// A case.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Case {
    /// Its file in the folder of the package.
    pub file: String,
    /// Its name.
    pub name: String,
    /// How it has ended: `passed`, or `skipped`.
    pub outcome: String,
}

/// How many of something cases have reached.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reached {
    /// What was reached.
    pub reached: usize,
    /// What the package has.
    pub of: usize,
}

/// An exploration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explored {
    /// How many schedules were played. Each has ended as without disturbance.
    pub schedules: usize,
    /// The seed, which decides which.
    pub seed: u64,
}
