//! What the stages of compiling a package share.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use serde_json::Value;

use super::files::Files;
use super::lint::fields::SpecReads;
use super::manifest;
use super::template_scan::Outlines;
use crate::api::ApiKind;
use crate::diag::{Diagnostic, Location, Source, did_you_mean};
use crate::template::Engine;
use crate::yaml::Node;

/// The state that compiling the parts of a package shares.
pub(super) struct Compiler<'a> {
    pub(super) files: &'a Files,
    pub(super) engine: Arc<Engine>,
    pub(super) outlines: Outlines,
    /// The templates of children.
    pub(super) child_templates: BTreeSet<String>,
    /// The fields of the specs of the package's kinds that are read.
    pub(super) spec_reads: SpecReads,
    /// The `let`s that are read; `None` if an expression may read any of them.
    pub(super) read_lets: Option<BTreeSet<String>>,
    /// Whether every template and expression compiles. Otherwise an unread value may be read by a broken template.
    pub(super) readable: bool,
    /// Whether all of `operator.yaml` could be read. Only then is an unknown name reported.
    pub(super) complete: bool,
    /// The files that are referenced.
    pub(super) used: HashSet<String>,
    pub(super) diagnostics: Vec<Diagnostic>,
}

/// A CRD that could be read.
pub(super) struct Crd {
    pub(super) value: Value,
    pub(super) kind: ApiKind,
    pub(super) location: Location,
    pub(super) node: Node,
    pub(super) source: Arc<Source>,
}

/// A child of the manifest with its group.
pub(super) struct Flat {
    pub(super) child: manifest::Child,
    pub(super) group: Option<usize>,
}

/// The names to which the plans of a resource may refer.
pub(crate) struct Names<'a> {
    /// The ids of the children, and whether each has a forEach.
    pub(crate) children: Vec<(&'a str, bool)>,
    /// The ids of the refs.
    pub(crate) refs: Vec<&'a str>,
    /// The names of the plans.
    pub(crate) plans: Vec<String>,
    /// The schema of the instances.
    pub(crate) schema: Option<&'a Value>,
    /// Whether instances are namespaced.
    pub(crate) namespaced: bool,
}

/// Adds the most similar known name to an error.
pub(crate) fn near<'a>(error: Diagnostic, name: &str, known: impl Iterator<Item = &'a str>) -> Diagnostic {
    let known: Vec<&str> = known.collect();
    match did_you_mean(name, known.iter().copied()) {
        Some(near) => error.help(format!("did you mean `{near}`?")),
        None if known.is_empty() || known.len() > 20 => error,
        None => error.help(format!("there is {}", known.join(", "))),
    }
}
