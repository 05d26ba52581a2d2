//! The `spec` of an `Operator`.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::upgrade::{MaxUnavailable, Policy};
use crate::reach;

/// The `spec` of an `Operator`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct OperatorSpec {
    /// The name of the `OperatorRevision` that is to be active. With a source, the one that was fetched from it last.
    pub revision: String,
    /// Where the manager fetches the package, if the spec names no revision.
    pub source: Option<SourceSpec>,
    /// Whether the active revision stays, whatever [`Self::revision`] says, and no instance is moved to it.
    pub paused: bool,
    /// How instances are moved to another revision.
    pub upgrade: UpgradeSpec,
    /// Values that take the place of the package's defaults.
    pub defaults: Map<String, Value>,
    /// The namespaces whose instances are reconciled; `None` for all.
    pub namespaces: Option<NamespacesSpec>,
    /// The namespaces that are open to the package, though they are closed to others.
    #[serde(rename = "systemNamespaces")]
    pub system_namespaces: BTreeSet<String>,
    /// The CRDs that other packages hand over to this one.
    #[serde(rename = "takesOver")]
    pub takes_over: Vec<TakeOver>,
}

/// A package in a registry.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SourceSpec {
    /// The reference, `oci://HOST/PATH` with a tag, a digest or both.
    pub package: String,
    /// The Secret in the manager's namespace with the credentials of registries; [`PULL_SECRET`] if it is not set.
    pub pull_secret: Option<String>,
}

/// The Secret in the manager's namespace with the credentials of registries, if an `Operator` names no other.
pub const PULL_SECRET: &str = "operetta-pull";

impl SourceSpec {
    /// The Secret with the credentials.
    pub fn secret(&self) -> &str {
        self.pull_secret.as_deref().unwrap_or(PULL_SECRET)
    }
}

/// A CRD that a package takes over from another one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
pub struct TakeOver {
    /// The name of the CRD.
    pub crd: String,
    /// The package that has it.
    pub from: String,
}

/// A choice of namespaces: by name, or by a selector.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct NamespacesSpec {
    /// The names of the namespaces.
    pub names: Option<BTreeSet<String>>,
    /// A label selector.
    pub selector: Option<Value>,
}

/// How instances are moved to another revision, as it is written.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct UpgradeSpec {
    max_unavailable: Option<Value>,
    pause_on_failure: Option<bool>,
    progress_deadline_seconds: Option<u32>,
    max_hold_seconds: Option<u32>,
    /// A label selector: these instances keep their revision.
    pub pin: Option<Value>,
}

impl UpgradeSpec {
    /// The policy. Fields that are not set have their defaults.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn policy(&self) -> Result<Policy, String> {
        let default = Policy::default();
        let parse = |value| {
            MaxUnavailable::parse(value).map_err(|error| format!("spec.upgrade.maxUnavailable: {error}"))
        };
        let max_unavailable = self.max_unavailable.as_ref().map(parse).transpose()?;
        Ok(Policy {
            max_unavailable: max_unavailable.unwrap_or(default.max_unavailable),
            pause_on_failure: self.pause_on_failure.unwrap_or(default.pause_on_failure),
            deadline: self
                .progress_deadline_seconds
                .map_or(default.deadline, |seconds| Duration::from_secs(seconds.into())),
            max_hold: self.max_hold_seconds.map(|seconds| Duration::from_secs(seconds.into())),
        })
    }
}

impl OperatorSpec {
    /// The namespaces into which the package writes nothing for instances elsewhere.
    pub fn closed(&self, manager_namespace: &str) -> BTreeSet<String> {
        let served = self.namespaces.as_ref().and_then(|namespaces| namespaces.names.as_ref());
        let is_named = |name: &&str| {
            self.system_namespaces.contains(*name) || served.is_some_and(|served| served.contains(*name))
        };
        reach::closed(manager_namespace)
            .into_iter()
            .filter(|name| !is_named(name))
            .map(str::to_owned)
            .collect()
    }

    /// Reads the spec of a live `Operator`. The CRD guarantees the types.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(operator: &Value) -> Result<Self, String> {
        let mut spec: Self =
            serde_json::from_value(operator["spec"].clone()).map_err(|error| format!("spec: {error}"))?;
        named(operator).clone_into(&mut spec.revision);
        let is_empty = spec.revision.is_empty() && spec.source.is_none();
        if is_empty { Err("spec.revision is empty".into()) } else { Ok(spec) }
    }
}

/// The revision that a live `Operator` names: in its spec, or the last one that was fetched from its source. Empty: none was yet.
pub fn named(operator: &Value) -> &str {
    let (spec, status) = (&operator["spec"], &operator["status"]);
    let fetched = status["source"]["revision"].as_str().or(status["activeRevision"].as_str());
    if spec["source"].is_null() { spec["revision"].as_str() } else { fetched }.unwrap_or_default()
}
