//! What is remembered of CRDs between two reconciles.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::Value;
use tokio::sync::oneshot;

use super::migrations::Migrations;
use super::published::Published;
use crate::api::{ApiKind, Gvk};
use crate::children::crds::{ChildScope, CrdVersion, PackageCrds, lease};
use crate::children::{former_packages, package_of_crd_value};
use crate::crd;
use crate::diag::Diagnostic;
use crate::manager::effects::Effects;
use crate::manager::registry::Registered;
use crate::manager::scheduler::{Key, Scheduler};
use crate::manager::store::Store;
use crate::manager::watches::Watches;
use crate::manager::webhook::Webhook;
use crate::package::Package;

/// How long ready packages wait for others at the start, so that the watches of all begin at once.
pub(super) const GATHER: Duration = Duration::from_secs(1);
/// How long a package may take to become active before its instances are handled as those of a package that is not
/// loaded.
pub(super) const INACTIVE: Duration = Duration::from_secs(10);
/// How long all API servers may take to serve a changed CRD. Objects that are listed at once may still be shown by its
/// former schema (without a status, for example), so they are listed once more after this time.
pub(super) const SPREAD: Duration = Duration::from_secs(3);

/// The kind of CRDs.
pub(super) static CRD: LazyLock<ApiKind> = LazyLock::new(ApiKind::crd);

/// The result of the first reconcile of each package.
#[derive(Debug, Default)]
pub(in crate::manager) struct First {
    /// Why packages are not active.
    pub problems: Vec<Diagnostic>,
    /// Whether a package that is not active may become active without a change.
    pub is_retrying: bool,
}

/// Reconciles the CRDs of packages.
pub(in crate::manager) struct CrdReconciler {
    pub(in crate::manager) store: Arc<Store>,
    pub(in crate::manager) effects: Arc<Effects>,
    pub(in crate::manager) scheduler: Arc<Scheduler>,
    pub(in crate::manager) watches: Arc<Watches>,
    pub(in crate::manager) state: Mutex<State>,
    /// The manager's namespace, `operator.namespace` in templates.
    pub(in crate::manager) namespace: String,
    /// The Lease that the CRDs of its packages name.
    pub(in crate::manager) lease: String,
    /// Whether the `Operator`s of the cluster say which packages are active.
    pub(in crate::manager) follows: bool,
    /// The conversion webhook, if the manager serves one.
    pub(in crate::manager) webhook: Option<Arc<Webhook>>,
    /// The migrations of stored objects that are under way.
    pub(in crate::manager) migrations: Migrations,
}

/// What is remembered of CRDs.
#[derive(Default)]
pub(in crate::manager) struct State {
    /// The packages that are to be active. A package keeps its index.
    pub(super) packages: Vec<PackageCrds>,
    /// The state of the packages of `Operator`s, by the index of the package.
    pub(super) followed: BTreeMap<usize, Followed>,
    /// `Operator`s whose packages are still being loaded at the start.
    pub(super) awaited: BTreeSet<String>,
    /// CRDs that carry the label of a package, by name: what is known of them while no package with them is active.
    pub(super) labelled: BTreeMap<String, Labelled>,
    pub(super) live: LiveCrds,
    /// The kinds whose instances are reconciled, by the name of the CRD.
    pub(super) published: BTreeMap<Arc<str>, Published>,
    /// The kinds of other managers, by the name of the CRD.
    pub(super) others: BTreeMap<String, Arc<Registered>>,
    /// The lists to repeat, by the name of the CRD.
    pub(super) relists: HashMap<String, Relist>,
    /// Receives the result of the first reconcile of each package.
    pub(super) first: Option<oneshot::Sender<First>>,
}

/// All CRDs of the cluster, as the watch has shown them.
#[derive(Default)]
pub(super) struct LiveCrds {
    pub(super) crds: HashMap<String, CrdMeta>,
    /// Whether all have been listed.
    pub(super) is_complete: bool,
    /// The names that a running list has shown so far.
    pub(super) listing: Option<HashSet<String>>,
}

/// Lists that are due when all API servers serve a CRD as it is now.
#[derive(Default)]
pub(super) struct Relist {
    pub(super) at: Duration,
    /// The kinds of children that the CRD defines. Its instances, if it is that of a package, are listed as well.
    pub(super) children: BTreeSet<Gvk>,
}

/// The metadata of a CRD.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CrdMeta {
    pub(super) version: CrdVersion,
    pub(super) generation: i64,
    /// Whether it is the CRD of a package.
    pub(super) is_labelled: bool,
}

/// A CRD with the label of a package.
pub(super) struct Labelled {
    pub(super) version: CrdVersion,
    pub(super) generation: i64,
    pub(super) package: String,
    pub(super) lease: Option<String>,
    pub(super) former: Arc<[Arc<str>]>,
    pub(super) kind: ApiKind,
    pub(super) record: ChildScope,
}

impl Labelled {
    pub(super) fn of(crd: &Value) -> Option<Self> {
        Some(Self {
            version: CrdVersion::of(crd),
            generation: crd["metadata"]["generation"].as_i64().unwrap_or_default(),
            package: package_of_crd_value(crd)?,
            lease: lease(crd).map(str::to_owned),
            former: former_packages(crd).into_iter().map(Into::into).collect(),
            kind: crd::kind(crd)?,
            record: ChildScope::of(crd),
        })
    }
}

impl LiveCrds {
    /// Whether a CRD of that group exists, or may exist.
    pub(super) fn has_group(&self, group: &str) -> bool {
        let is_of_group = |name: &String| name.split_once('.').is_some_and(|(_, of)| of == group);
        !self.is_complete || self.crds.keys().any(is_of_group)
    }
}

impl State {
    /// The key of a package.
    pub(super) fn key(&self, index: usize) -> Key {
        Key::Package(index, self.packages[index].package.name.as_str().into())
    }

    /// Whether every package was reconciled once.
    pub(super) fn is_decided(&self) -> bool {
        self.packages.iter().all(|package| package.acceptance().is_some())
    }

    /// Whether a package with that CRD is given, active or not.
    pub(super) fn is_given(&self, crd: &str) -> bool {
        self.packages.iter().any(|package| package.position(crd).is_some())
    }

    /// Whether a CRD of a package that is not given has changed since it was read.
    pub(super) fn is_unread(&self, crd: &str) -> bool {
        let Some(meta) = self.live.crds.get(crd).filter(|meta| meta.is_labelled) else { return false };
        let read = self.labelled.get(crd);
        !self.is_given(crd) && read.is_none_or(|read| meta.version.is_newer_than(&read.version))
    }

    /// The packages whose instances are reconciled: while another revision is being registered, the former one.
    pub(super) fn shown(&self) -> impl Iterator<Item = &PackageCrds> {
        self.packages.iter().enumerate().filter_map(|(index, package)| {
            if package.is_active {
                return Some(package);
            }
            self.followed.get(&index)?.former.as_deref()
        })
    }

    /// Whether an earlier package with one of its CRDs is to be reconciled first.
    pub(super) fn is_behind(&self, index: usize) -> bool {
        let package = &self.packages[index];
        package.acceptance().is_none()
            && self.packages[..index]
                .iter()
                .any(|earlier| earlier.acceptance().is_none() && earlier.shares_a_crd(package))
    }
}

pub(super) fn name_of(crd: &Value) -> String {
    crd["metadata"]["name"].as_str().unwrap_or_default().to_owned()
}

/// What is known of the package of an `Operator`, beside its CRDs.
#[derive(Default)]
pub(super) struct Followed {
    pub(super) candidate: Option<Candidate>,
    /// The revision whose instances are reconciled until this one is active.
    pub(super) former: Option<Box<PackageCrds>>,
}

/// A revision that is to take the place of the active one.
pub(super) struct Candidate {
    pub(super) package: Arc<Package>,
    pub(super) refusals: Vec<(Diagnostic, bool)>,
    /// When it is tried next, by the manager's clock.
    pub(super) at: Duration,
}

impl CrdReconciler {
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
