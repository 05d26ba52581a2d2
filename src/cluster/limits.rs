//! How many calls or reconciles run at once: each package has permits of its own, and all packages share the rest.
//!
//! A package whose calls hang, for example behind a slow webhook, takes all permits that it can have. These are only some
//! of the shared permits and none of the other packages' own, so the other packages continue.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The permits of all packages.
pub struct ConcurrencyLimits {
    own: usize,
    most: usize,
    common: Arc<Semaphore>,
    all: Mutex<HashMap<Box<str>, PackageLimit>>,
}

/// The permits of a package. Clones share them.
#[derive(Clone)]
pub struct PackageLimit {
    own: Arc<Semaphore>,
    /// How many of the common permits it can have.
    of_common: Arc<Semaphore>,
    common: Arc<Semaphore>,
}

/// Permission to run one call or reconcile, returned when dropped.
pub struct Permit(#[expect(dead_code, reason = "held, not read")] [Option<OwnedSemaphorePermit>; 2]);

impl ConcurrencyLimits {
    /// Limits each package to `most` permits at once. An eighth of them are its own. It takes the rest from a
    /// common part, which has a quarter more than `most` and is shared by all packages.
    pub fn new(most: usize) -> Self {
        let most = most.max(2);
        Self {
            own: (most / 8).max(1),
            most,
            common: Arc::new(Semaphore::new(most + most.div_ceil(4))),
            all: Mutex::default(),
        }
    }

    /// Limits all packages to `total` permits at once, and each to `most`. No package has permits of its own.
    pub fn common(total: usize, most: usize) -> Self {
        Self { own: 0, most, common: Arc::new(Semaphore::new(total)), all: Mutex::default() }
    }

    /// These limits, with at most `most` permits for one package.
    #[must_use]
    pub fn narrow(self, package: &str, most: usize) -> Self {
        let narrow = Self { own: self.own.min(most), most: self.most.min(most), ..self };
        drop(narrow.of(package));
        Self { own: self.own, most: self.most, ..narrow }
    }

    /// The permits of a package.
    pub fn of(&self, package: &str) -> PackageLimit {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(share) = all.get(package) {
            return share.clone();
        }
        let share = PackageLimit {
            own: Arc::new(Semaphore::new(self.own)),
            of_common: Arc::new(Semaphore::new(self.most - self.own)),
            common: Arc::clone(&self.common),
        };
        all.insert(package.into(), share.clone());
        share
    }
}

impl PackageLimit {
    /// A permit, if there is one now.
    pub fn try_permit(&self) -> Option<Permit> {
        if let Ok(own) = Arc::clone(&self.own).try_acquire_owned() {
            return Some(Permit([Some(own), None]));
        }
        let mine = Arc::clone(&self.of_common).try_acquire_owned().ok()?;
        Some(Permit([Some(mine), Some(Arc::clone(&self.common).try_acquire_owned().ok()?)]))
    }

    /// A permit, as soon as there is one.
    pub async fn permit(&self) -> Permit {
        if let Some(permit) = self.try_permit() {
            return permit;
        }
        let common = async {
            let mine = Arc::clone(&self.of_common).acquire_owned().await.ok();
            [mine, Arc::clone(&self.common).acquire_owned().await.ok()]
        };
        // No code closes a semaphore, so acquiring never fails.
        tokio::select! {
            biased;
            own = Arc::clone(&self.own).acquire_owned() => Permit([own.ok(), None]),
            common = common => Permit(common),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    fn take(share: &PackageLimit) -> Vec<Permit> {
        std::iter::from_fn(|| share.permit().now_or_never()).collect()
    }

    #[test]
    fn a_package_that_holds_all_its_permits_delays_no_other() {
        let shares = ConcurrencyLimits::new(32);
        let (slow, slower, other) = (shares.of("slow"), shares.of("slower"), shares.of("other"));
        let held = take(&slow);
        assert_eq!(held.len(), 32, "one that is alone has what it may have");
        let more = take(&slower);
        assert_eq!(more.len(), 16, "its own, and what is left of the common part");
        let permits = take(&other);
        assert_eq!(permits.len(), 4, "its own are always there");
        assert_eq!(take(&shares.of("other")).len(), 0, "a name is one share");
        drop(held);
        assert_eq!(take(&other).len(), 28);
    }

    #[test]
    fn one_package_may_hold_fewer_than_the_others() {
        let limits = ConcurrencyLimits::new(32).narrow("narrow", 8);
        assert_eq!(take(&limits.of("narrow")).len(), 8);
        assert_eq!(take(&limits.of("other")).len(), 32);
    }

    #[tokio::test]
    async fn a_waiting_caller_gets_a_returned_permit() {
        let shares = ConcurrencyLimits::new(2);
        let share = shares.of("a");
        let mut held = take(&share);
        assert_eq!(held.len(), 2);
        let waiting = tokio::spawn({
            let share = share.clone();
            async move { share.permit().await }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        held.pop();
        drop(waiting.await.unwrap());
        assert_eq!(take(&share).len(), 1);
    }
}
