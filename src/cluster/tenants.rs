//! How many calls of a package run at once, and whose is next. A user who may create instances can let their calls hang, in
//! any number of namespaces, and must not delay the calls of the package's other tenants.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{oneshot, watch};

/// The permits of the tenants of all packages. Every tenant of a package can hold a few, whatever the others hold. Beyond
/// these it takes what its package shares among them. While permits are short, the tenant that holds the fewest is next.
pub struct TenantLimits(Arc<Limits>);

struct Limits {
    /// How many a package shares among its tenants.
    shared: usize,
    /// How many each tenant can hold beside these.
    own: usize,
    /// How many a package can hold in all. Each takes a connection and memory for an answer.
    most: usize,
    packages: Mutex<HashMap<Box<str>, OfPackage>>,
}

/// Whose calls are counted together.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Tenant {
    /// The namespace; empty for all cluster-scoped instances together.
    namespace: Box<str>,
    /// Whether the calls are made for the deletion of instances, which does not wait for other calls of the namespace.
    is_deletion: bool,
}

#[derive(Default)]
struct OfPackage {
    in_flight: usize,
    /// How many of the shared permits are held.
    shared: usize,
    /// The tenants that hold a permit or wait for one.
    tenants: HashMap<Tenant, OfTenant>,
    /// The number of the next call that waits.
    next: u64,
}

#[derive(Default)]
struct OfTenant {
    held: usize,
    /// The calls that wait, in order of arrival.
    waiting: VecDeque<(u64, oneshot::Sender<TenantPermit>)>,
}

/// Permission to make one call, returned when dropped.
pub struct TenantPermit {
    limits: Arc<Limits>,
    package: Box<str>,
    tenant: Tenant,
}

impl Drop for TenantPermit {
    fn drop(&mut self) {
        self.limits.give_back(&self.package, &self.tenant);
    }
}

impl Tenant {
    /// All calls for instances of a namespace.
    pub fn of(namespace: &str) -> Self {
        Self { namespace: namespace.into(), is_deletion: false }
    }

    /// The calls for instances of a namespace that are being deleted.
    pub fn deletion(namespace: &str) -> Self {
        Self { is_deletion: true, ..Self::of(namespace) }
    }
}

impl TenantLimits {
    /// A package shares `shared` permits among its tenants. Each tenant has a sixteenth of that number to itself, until the
    /// package holds sixteen times that number.
    pub fn new(shared: usize) -> Self {
        let (own, packages) = ((shared / 16).max(1), Mutex::default());
        Self(Arc::new(Limits { shared, own, most: 16 * shared, packages }))
    }

    /// A permit for a call for an instance of a namespace. Once the call is for a deletion, a permit for
    /// deletions is taken as well, whichever comes first.
    pub async fn permit_of_either(
        &self,
        package: &str,
        namespace: &str,
        for_deletion: &watch::Sender<bool>,
    ) -> TenantPermit {
        let (usual, deletion) = (Tenant::of(namespace), Tenant::deletion(namespace));
        let of_deletion = async {
            // The sender lives until this future ends, so the wait does not fail.
            let _ = for_deletion.subscribe().wait_for(|is_for_deletion| *is_for_deletion).await;
            self.permit(package, &deletion).await
        };
        tokio::select! {
            biased;
            permit = self.permit(package, &usual) => permit,
            permit = of_deletion => permit,
        }
    }

    /// A permit, as soon as there is one.
    pub async fn permit(&self, package: &str, tenant: &Tenant) -> TenantPermit {
        loop {
            let waiting = match self.0.take_or_wait(package, tenant) {
                Ok(permit) => return permit,
                Err(waiting) => waiting,
            };
            if let Ok(permit) = waiting.await {
                return permit;
            }
        }
    }
}

impl Limits {
    fn packages(&self) -> MutexGuard<'_, HashMap<Box<str>, OfPackage>> {
        self.packages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_or_wait(
        self: &Arc<Self>,
        package: &str,
        tenant: &Tenant,
    ) -> Result<TenantPermit, oneshot::Receiver<TenantPermit>> {
        let mut packages = self.packages();
        let of_package = packages.entry(package.into()).or_default();
        let known = of_package.tenants.get(tenant);
        if known.is_none_or(|known| known.waiting.is_empty()) && of_package.may_take(tenant, self) {
            return Ok(of_package.take(package, tenant, self));
        }
        let (sender, receiver) = oneshot::channel();
        let number = of_package.next;
        of_package.next += 1;
        of_package.tenants.entry(tenant.clone()).or_default().waiting.push_back((number, sender));
        Err(receiver)
    }

    fn give_back(self: &Arc<Self>, package: &str, tenant: &Tenant) {
        let mut given = Vec::new();
        {
            let mut packages = self.packages();
            let Some(of_package) = packages.get_mut(package) else { return };
            of_package.give_back(tenant, self);
            while let Some(next) = of_package.next(self) {
                let Some(of_tenant) = of_package.tenants.get_mut(&next) else { break };
                let Some((_, sender)) = of_tenant.waiting.pop_front() else { break };
                given.push((sender, of_package.take(package, &next, self)));
            }
            if of_package.tenants.is_empty() {
                packages.remove(package);
            }
        }
        for (sender, permit) in given {
            // If nobody waits any more, the permit is dropped, which gives it to another one.
            let _ = sender.send(permit);
        }
    }
}

impl OfPackage {
    fn may_take(&self, tenant: &Tenant, limits: &Limits) -> bool {
        let held = self.tenants.get(tenant).map_or(0, |known| known.held);
        self.in_flight < limits.most && (held < limits.own || self.shared < limits.shared)
    }

    fn take(&mut self, package: &str, tenant: &Tenant, limits: &Arc<Limits>) -> TenantPermit {
        let of_tenant = self.tenants.entry(tenant.clone()).or_default();
        self.shared += usize::from(of_tenant.held >= limits.own);
        of_tenant.held += 1;
        self.in_flight += 1;
        TenantPermit { limits: Arc::clone(limits), package: package.into(), tenant: tenant.clone() }
    }

    fn give_back(&mut self, tenant: &Tenant, limits: &Limits) {
        let Some(of_tenant) = self.tenants.get_mut(tenant) else { return };
        of_tenant.held -= 1;
        self.shared -= usize::from(of_tenant.held >= limits.own);
        self.in_flight -= 1;
        of_tenant.waiting.retain(|(_, sender)| !sender.is_closed());
        if of_tenant.held == 0 && of_tenant.waiting.is_empty() {
            self.tenants.remove(tenant);
        }
    }

    /// The tenant whose call is next: deletions first, then the tenant that holds the fewest, then the one that has waited
    /// longest.
    fn next(&mut self, limits: &Limits) -> Option<Tenant> {
        if self.in_flight >= limits.most {
            return None;
        }
        let waiting = self
            .tenants
            .iter()
            .filter(|(tenant, of_tenant)| !of_tenant.waiting.is_empty() && self.may_take(tenant, limits));
        let rank = |(tenant, of_tenant): &(&Tenant, &OfTenant)| {
            (!tenant.is_deletion, of_tenant.held, of_tenant.waiting.front().map(|(number, _)| *number))
        };
        waiting.min_by_key(rank).map(|(tenant, _)| tenant.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    fn take(limits: &TenantLimits, package: &str, tenant: &Tenant) -> Vec<TenantPermit> {
        std::iter::from_fn(|| limits.permit(package, tenant).now_or_never()).collect()
    }

    #[test]
    fn a_namespace_that_holds_all_it_can_delays_no_other() {
        let limits = TenantLimits::new(64);
        let held = take(&limits, "p", &Tenant::of("hostile"));
        assert_eq!(held.len(), 64 + 4, "one that is alone has what is shared");
        for package in ["p", "q"] {
            assert_eq!(
                take(&limits, package, &Tenant::of("other")).len(),
                if package == "p" { 4 } else { 68 }
            );
        }
        assert_eq!(take(&limits, "p", &Tenant::of("")).len(), 4);
        drop(held);
        assert_eq!(take(&limits, "p", &Tenant::of("other")).len(), 68);
    }

    /// The number of namespaces does not matter.
    #[test]
    fn calls_of_many_namespaces_delay_no_neighbour() {
        let limits = TenantLimits::new(64);
        let hostile: Vec<Tenant> = (0..200).map(|number| Tenant::of(&number.to_string())).collect();
        let _held: Vec<_> = hostile.iter().flat_map(|tenant| take(&limits, "p", tenant)).collect();
        let mut waiting: Vec<_> = hostile.iter().map(|tenant| Box::pin(limits.permit("p", tenant))).collect();
        assert!(waiting.iter_mut().all(|waits| waits.now_or_never().is_none()));
        assert_eq!(take(&limits, "p", &Tenant::of("neighbour")).len(), 4);
        // Deletions in one of these namespaces are not delayed either.
        assert_eq!(take(&limits, "p", &Tenant::deletion("7")).len(), 4);
    }

    #[tokio::test]
    async fn a_waiting_call_may_use_a_deletion_permit_once_it_deletes() {
        let limits = TenantLimits::new(16);
        let _held = take(&limits, "p", &Tenant::of("a"));
        let for_deletion = watch::Sender::new(false);
        let mut waits = Box::pin(limits.permit_of_either("p", "a", &for_deletion));
        assert!((&mut waits).now_or_never().is_none());
        for_deletion.send_replace(true);
        assert!(waits.await.tenant.is_deletion);
    }

    #[tokio::test]
    async fn the_tenant_with_the_fewest_permits_is_next() {
        let limits = TenantLimits::new(16);
        // The namespaces hold 16 shared permits and one each, up to 256.
        let mut held: Vec<_> =
            (0..300).flat_map(|number| take(&limits, "p", &Tenant::of(&number.to_string()))).collect();
        assert_eq!(held.len(), 256);
        let tenants = [Tenant::of("0"), Tenant::of("new"), Tenant::of("newer"), Tenant::deletion("0")];
        let mut waiting: Vec<_> = tenants.iter().map(|tenant| Box::pin(limits.permit("p", tenant))).collect();
        assert!(waiting.iter_mut().all(|waits| waits.now_or_never().is_none()));
        let mut served = Vec::new();
        for _ in 0..4 {
            held.pop();
            for (index, waits) in waiting.iter_mut().enumerate() {
                if served.iter().all(|(known, _)| *known != index)
                    && let Some(permit) = waits.now_or_never()
                {
                    served.push((index, permit));
                }
            }
        }
        let order: Vec<usize> = served.iter().map(|(index, _)| *index).collect();
        assert_eq!(order, [3, 1, 2], "namespace 0 has what is shared already");
        drop(waiting);
        drop((held, served));
        assert!(limits.0.packages().is_empty(), "tenants without calls are forgotten");
    }

    #[tokio::test]
    async fn an_abandoned_wait_passes_its_permit_on() {
        let limits = TenantLimits::new(16);
        let mut held = take(&limits, "p", &Tenant::of("a"));
        assert_eq!(held.len(), 17);
        let a = Tenant::of("a");
        let mut gone = Box::pin(limits.permit("p", &a));
        let mut waits = Box::pin(limits.permit("p", &a));
        assert!((&mut gone).now_or_never().is_none() && (&mut waits).now_or_never().is_none());
        held.pop();
        // `gone` was given the permit, and does not take it.
        drop(gone);
        drop(waits.await);
        assert_eq!(take(&limits, "p", &a).len(), 1);
    }
}
