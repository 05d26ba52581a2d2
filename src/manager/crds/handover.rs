//! A CRD is handed over from one package to another if the `Operator` of the new one says so (`spec.takesOver`): an
//! administrator does, and no package. The handover is one write of the CRD, by which its label names the other package. Until
//! the new package is active, the former one has the kind; in between no reconcile has both.

use std::collections::BTreeSet;
use std::sync::Arc;

use tracing::info;

use super::effects;
use super::state::{CRD, CrdReconciler, State};
use crate::api::CallError;
use crate::children::crds::{ChildScope, PackageCrds, RIGHTS_LACKING};
use crate::children::package_of_crd_value;
use crate::diag::Diagnostic;
use crate::manager::rights;
use crate::package::{Package, Resource};

impl State {
    /// If two packages have had the same CRD, it belongs to the one that has seen the newer version of it.
    /// The other one has handed it over, and learns that from the CRD later.
    pub(super) fn hand_over_shared(&mut self, index: usize) {
        let State { packages, followed, .. } = self;
        let Some((before, [package, after @ ..])) = packages.split_at_mut_checked(index) else { return };
        if !package.is_active {
            return;
        }
        let of = Arc::clone(&package.package);
        let former = followed.values_mut().filter_map(|followed| followed.former.as_deref_mut());
        let others = before.iter_mut().chain(after).filter(|other| other.is_active).chain(former);
        for other in others.filter(|other| other.package.name != of.name) {
            for crd in of.resources.iter().map(Resource::crd_name) {
                let (Some(ours), Some(theirs)) = (package.had(crd), other.had(crd)) else { continue };
                let is_theirs = theirs.is_newer_than(ours);
                let (from, to) = if is_theirs {
                    (&mut *package, other.package.name.clone())
                } else {
                    (&mut *other, of.name.clone())
                };
                info!(%crd, from = %from.package.name, %to, "handed over");
                from.hand_over(crd, &to);
            }
        }
    }

    /// Whether a CRD of a package was handed over, and the other package has it. While that one is not active yet, the
    /// instances are reconciled as before. After a restart nothing is before: they wait until the other package was tried.
    pub(super) fn is_gone_from(&self, package: &PackageCrds, crd: &str) -> bool {
        let Some(position) = package.position(crd) else { return false };
        let Some(to) = package.crds()[position].handed_over() else { return false };
        let is_shown = self.shown().any(|other| *other.package.name == *to && other.keeps(crd));
        let mut others = self.packages.iter();
        let awaited = others.find(|other| *other.package.name == *to && other.keeps(crd));
        let was_ours = package.crds()[position].info().is_some();
        is_shown || awaited.is_none_or(|other| !was_ours && other.acceptance().is_none())
    }
}

impl CrdReconciler {
    /// The package from which a package may take a CRD, if its `Operator` says so and the `Operator` of the
    /// other one does not say the reverse.
    pub(super) fn takes_from(&self, package: &str, crd: &str) -> Option<Arc<str>> {
        let from = self.store.settings.takes_from(package, crd)?;
        (!self.says(&from, crd, package)).then_some(from)
    }

    /// Whether the `Operator` of a package says that it takes a CRD from another one.
    fn says(&self, package: &str, crd: &str, from: &str) -> bool {
        self.store.settings.takes_from(package, crd).is_some_and(|said| *said == *from)
    }

    /// The refusals of CRDs that other active packages have.
    pub(super) fn claims(&self, state: &State, package: &PackageCrds) -> Vec<Diagnostic> {
        let says = |package: &str, crd: &str, from: &str| self.says(package, crd, from);
        package.claims(state.shown_besides(&package.package.name), &says)
    }

    /// The CRDs of a package that were handed over, each with the package that has it, and with a hint if
    /// both are to take it from each other.
    pub(super) fn handed_over(&self, package: &PackageCrds) -> Vec<(String, String)> {
        let name = &*package.package.name;
        let told = |(crd, to): (&str, &str)| {
            let is_said_by_both = self.says(name, crd, to) && self.says(to, crd, name);
            let hint = if is_said_by_both {
                format!(
                    " (spec.takesOver of both Operators names it: remove it from that of {to} to take it back)"
                )
            } else {
                String::new()
            };
            (crd.to_owned(), format!("{to}{hint}"))
        };
        package.handed_over().map(told).collect()
    }

    /// Tries packages again after a change of an `Operator`: it may take over CRDs, and a refusal of it or of
    /// others may be over.
    pub(in crate::manager) fn try_again(&self, name: &str) {
        let mut state = self.lock();
        for package in &mut state.packages {
            if package.package.name == name || package.handed_over().next().is_some() {
                package.read_crds();
            }
        }
        self.retry_refused(&mut state);
    }

    /// What keeps a package from managing the children of CRDs that it is about to take over: rights that its account lacks. The
    /// former package keeps the CRDs until nothing does.
    pub(super) async fn lacking_for_taken(&self, package: &Package) -> Vec<(Diagnostic, bool)> {
        let mut problems = Vec::new();
        if !self.effects.clients.has_accounts() {
            return problems;
        }
        for resource in &package.resources {
            match self.lacking_for(package, resource).await {
                Ok(None) => {}
                Ok(Some(message)) => problems.push((Diagnostic::error(RIGHTS_LACKING, message), false)),
                Err(error) => {
                    let message =
                        format!("the rights of the package {} are not known: {error}", package.name);
                    problems.push((Diagnostic::error("rights::unread", message), true));
                }
            }
        }
        problems
    }

    async fn lacking_for(&self, package: &Package, resource: &Resource) -> Result<Option<String>, CallError> {
        let name = resource.crd_name();
        let Some(from) = self.takes_from(&package.name, name) else { return Ok(None) };
        let cluster = self.effects.clients.own();
        let live = cluster.get(&CRD, None, name).await?;
        let Some(live) = live.filter(|live| package_of_crd_value(live).as_deref() == Some(&*from)) else {
            return Ok(None);
        };
        let instances = effects::names(cluster, Some(&live)).await?;
        let homes: BTreeSet<Option<Arc<str>>> =
            instances.iter().map(|name| name.split_once('/').map(|(home, _)| home.into())).collect();
        let clients = &self.effects.clients;
        let left = ChildScope::of(&live);
        let left = Some((&left.kinds, &left.namespaces));
        rights::lacking(clients, &self.store, (package, left), &homes, &self.namespace).await
    }
}
