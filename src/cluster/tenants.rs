//! How many calls of a package run at once for one namespace. A user who may create instances can let their calls hang, and must
//! not take the permits of the package from its other tenants.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::limits::{ConcurrencyLimits, Permit};

/// The permits of the namespaces of all packages. Any namespace can take three quarters of the permits of a package, in order of
/// arrival, within what all packages share. The last quarter is reserved for its namespaces, each of which can hold a few.
pub struct TenantLimits {
    packages: ConcurrencyLimits,
    reserved: usize,
    few: usize,
    all: Mutex<HashMap<Box<str>, Reserved>>,
}

struct Reserved {
    all: Arc<Semaphore>,
    /// How many of them a namespace can have. A namespace that has none is forgotten.
    of_namespaces: HashMap<Box<str>, Weak<Semaphore>>,
}

/// Permission to make one call, returned when dropped.
pub enum TenantPermit {
    /// One that any namespace can take.
    First(Permit),
    /// One of those that are reserved, and of those that the namespace can have.
    Reserved([Option<OwnedSemaphorePermit>; 2]),
}

impl TenantLimits {
    /// At most `most` of one package at once.
    pub fn new(most: usize) -> Self {
        let reserved = most.div_ceil(4);
        let packages = ConcurrencyLimits::new(most - reserved);
        Self { packages, reserved, few: (most / 16).max(1), all: Mutex::default() }
    }

    /// A permit, as soon as there is one. All cluster-scoped instances of a package count as one namespace, which is empty.
    pub async fn permit(&self, package: &str, namespace: &str) -> TenantPermit {
        let package_limit = self.packages.of(package);
        let [reserved, of_namespace] = self.reserved(package, namespace);
        // No code closes a semaphore, so acquiring never fails.
        let reserved = async {
            let own = of_namespace.acquire_owned().await.ok();
            [own, reserved.acquire_owned().await.ok()]
        };
        tokio::select! {
            biased;
            first = package_limit.permit() => TenantPermit::First(first),
            reserved = reserved => TenantPermit::Reserved(reserved),
        }
    }

    fn reserved(&self, package: &str, namespace: &str) -> [Arc<Semaphore>; 2] {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let reserved = all.entry(package.into()).or_insert_with(|| Reserved {
            all: Arc::new(Semaphore::new(self.reserved)),
            of_namespaces: HashMap::new(),
        });
        let known = reserved.of_namespaces.get(namespace).and_then(Weak::upgrade);
        let of_namespace = known.unwrap_or_else(|| {
            reserved.of_namespaces.retain(|_, semaphore| semaphore.strong_count() > 0);
            let semaphore = Arc::new(Semaphore::new(self.few));
            reserved.of_namespaces.insert(namespace.into(), Arc::downgrade(&semaphore));
            semaphore
        });
        [Arc::clone(&reserved.all), of_namespace]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    fn take(limits: &TenantLimits, package: &str, namespace: &str) -> Vec<TenantPermit> {
        std::iter::from_fn(|| limits.permit(package, namespace).now_or_never()).collect()
    }

    #[test]
    fn a_namespace_that_holds_all_its_permits_leaves_some_to_others() {
        let limits = TenantLimits::new(64);
        let mut held = take(&limits, "p", "hostile");
        assert_eq!(held.len(), 48 + 4);
        let others = ["a", "b", "c"].map(|name| take(&limits, "p", name));
        assert!(others.iter().all(|permits| permits.len() == 4));
        assert_eq!(take(&limits, "p", "").len(), 0, "64 are held");
        drop(others);
        assert_eq!(take(&limits, "p", "").len(), 4);
        assert_eq!(take(&limits, "p", "hostile").len(), 0);
        // Those of the namespace are free again, whatever the others hold.
        held.truncate(48);
        assert_eq!(take(&limits, "p", "hostile").len(), 4);
        drop(held);
        assert_eq!(take(&limits, "p", "a").len(), 48 + 4, "one that is alone has what it may have");
    }

    #[test]
    fn one_that_holds_permits_of_all_packages_leaves_some_to_others() {
        let limits = TenantLimits::new(64);
        let held: Vec<_> = ["p", "q", "r"].iter().flat_map(|name| take(&limits, name, "hostile")).collect();
        assert!(held.len() > 64);
        for package in ["p", "q", "r"] {
            assert_eq!(take(&limits, package, "other").len(), 4, "{package}");
        }
    }

    #[test]
    fn namespaces_without_calls_are_forgotten() {
        let limits = TenantLimits::new(16);
        for number in 0..1_000 {
            assert_eq!(take(&limits, "p", &number.to_string()).len(), 12 + 1);
        }
        assert!(limits.all.lock().unwrap()["p"].of_namespaces.len() <= 1);
    }

    #[tokio::test]
    async fn a_waiting_call_gets_the_first_permit_that_is_returned() {
        let limits = Arc::new(TenantLimits::new(16));
        let mut held = take(&limits, "p", "a");
        assert_eq!(held.len(), 12 + 1);
        let waiting = tokio::spawn({
            let limits = Arc::clone(&limits);
            async move { limits.permit("p", "a").await }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        held.truncate(12);
        drop(waiting.await.unwrap());
    }
}
