//! What the stages of the decision about a CRD share.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::child_scope::ChildScope;
use crate::children::crd_owner::former_packages;
use crate::children::names;
use crate::crd;
use crate::diag::Diagnostic;
use crate::package::Resource;

/// The field manager of CRDs.
pub const MANAGER: &str = names::REGISTRAR;

/// The manager that a CRD names as the one that reconciles its instances.
#[derive(Debug, Clone, Copy)]
pub struct ManagerIdentity<'a> {
    /// Its conversion webhook.
    pub webhook: WebhookState<'a>,
    /// Namespace and name of its Lease.
    pub lease: &'a str,
    /// Its namespace, `operator.namespace` in templates.
    pub namespace: &'a str,
}

/// The conversion webhook of a manager.
#[derive(Debug, Clone, Copy)]
pub enum WebhookState<'a> {
    /// Another manager is responsible for it: a live CRD keeps its conversion.
    Foreign,
    /// The manager serves none.
    Absent,
    /// The manager has no certificate yet.
    Starting,
    /// The manager serves it: the `clientConfig` without the path of the kind.
    Up(&'a Value),
}

/// The state of one CRD of a package.
#[derive(Debug)]
pub enum CrdState {
    /// The API server serves it as the package wants it.
    Ready(CrdInfo),
    /// The API server does not serve it yet, or is deleting it: wait for an event.
    Pending(String),
    /// Its stored objects are being migrated before a version is removed. The duration is the time until the
    /// next turn.
    Migrating(String, Duration),
    /// Another client changes it repeatedly, so it is left as it is.
    Conflicted(CrdInfo),
    /// The package cannot have it. Only a change of the CRD or of the package helps.
    Refused(Diagnostic),
    /// The CRD was handed over to the package of that name: nothing is to be done about it.
    HandedOver(String),
    /// A request failed. The duration is how long the server asks to wait, if it does.
    Failed(Diagnostic, Option<Duration>),
}

/// The properties of a live CRD that the manager uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CrdInfo {
    /// Its uid.
    pub uid: String,
    /// Its generation, which identifies its spec.
    pub generation: i64,
    /// Whether the version that the package uses has the status subresource.
    pub has_status: bool,
    /// The kinds and namespaces of children of its instances.
    pub record: ChildScope,
    /// The versions, beside the storage version, in which objects may be stored.
    pub outdated: Vec<String>,
    /// The Lease of the manager that it names.
    pub lease: Option<String>,
    /// The packages that had it before, oldest first.
    pub former: Vec<Arc<str>>,
}

impl CrdInfo {
    /// Reads the properties of a live CRD.
    pub(super) fn of(crd: &Value, resource: &Resource) -> Self {
        Self {
            uid: crd["metadata"]["uid"].as_str().unwrap_or_default().to_owned(),
            generation: crd["metadata"]["generation"].as_i64().unwrap_or_default(),
            has_status: has_status(crd, &resource.kind.version),
            record: ChildScope::of(crd),
            // The versions of a CRD that another tool applies are the business of that tool.
            outdated: if resource.adopt {
                Vec::new()
            } else {
                crd::outdated_versions(crd).into_iter().map(str::to_owned).collect()
            },
            lease: lease(crd).map(str::to_owned),
            former: former_packages(crd).into_iter().map(Into::into).collect(),
        }
    }

    /// Whether it is the same CRD with the same spec.
    pub(crate) fn has_same_spec(&self, other: &Self) -> bool {
        (&self.uid, self.generation) == (&other.uid, other.generation)
    }
}

/// One version of a live CRD.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CrdVersion {
    /// Its uid.
    pub uid: String,
    /// Its resourceVersion.
    pub resource_version: String,
}

impl CrdVersion {
    /// The version of a live CRD.
    pub fn of(crd: &Value) -> Self {
        let text = |field: &str| crd["metadata"][field].as_str().unwrap_or_default().to_owned();
        Self { uid: text("uid"), resource_version: text("resourceVersion") }
    }

    /// Whether this version is newer than `read`. Versions whose order is unknown count as newer if they
    /// differ.
    pub fn is_newer_than(&self, read: &Self) -> bool {
        let number = |version: &Self| version.resource_version.parse::<u64>();
        self.uid != read.uid
            || match (number(self), number(read)) {
                (Ok(this), Ok(read)) => this > read,
                _ => self.resource_version != read.resource_version,
            }
    }
}

/// The Lease of the manager that reconciles the instances of a CRD, by its annotation.
pub fn lease(crd: &Value) -> Option<&str> {
    crd["metadata"]["annotations"][names::MANAGER].as_str()
}

/// Whether a version of a CRD has the status subresource.
pub(super) fn has_status(crd: &Value, version: &str) -> bool {
    let versions = crd["spec"]["versions"].as_array().map(Vec::as_slice).unwrap_or_default();
    versions.iter().any(|v| v["name"] == version && v["subresources"]["status"].is_object())
}
