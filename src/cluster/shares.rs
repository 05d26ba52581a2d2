//! How many calls may be under way at once: each package has some of its own, and all share the rest.
//!
//! A package whose calls hang, say behind a slow webhook, comes to hold all it may hold. What it may hold of
//! the shared part is bounded, and the others' own part it never holds: they go on.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Leave for calls, dealt out to packages.
pub struct Shares {
    own: usize,
    most: usize,
    common: Arc<Semaphore>,
    all: Mutex<HashMap<Box<str>, Share>>,
}

/// A package's leave for calls. Clones are the same share.
#[derive(Clone)]
pub struct Share {
    own: Arc<Semaphore>,
    /// How much of the common part it may hold.
    of_common: Arc<Semaphore>,
    common: Arc<Semaphore>,
}

/// Leave for one call, given back when dropped.
pub struct Permit(#[expect(dead_code, reason = "held, not read")] [Option<OwnedSemaphorePermit>; 2]);

impl Shares {
    /// At most `most` calls of one package at once: an eighth of them are its own, and of the common part,
    /// a quarter larger than `most`, it can hold the rest.
    pub fn new(most: usize) -> Self {
        let most = most.max(2);
        Self {
            own: (most / 8).max(1),
            most,
            common: Arc::new(Semaphore::new(most + most.div_ceil(4))),
            all: Mutex::default(),
        }
    }

    /// The share of a package.
    pub fn of(&self, package: &str) -> Share {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(share) = all.get(package) {
            return share.clone();
        }
        let share = Share {
            own: Arc::new(Semaphore::new(self.own)),
            of_common: Arc::new(Semaphore::new(self.most - self.own)),
            common: Arc::clone(&self.common),
        };
        all.insert(package.into(), share.clone());
        share
    }
}

impl Share {
    /// Leave to make one call, as soon as there is some.
    pub async fn permit(&self) -> Permit {
        if let Ok(own) = Arc::clone(&self.own).try_acquire_owned() {
            return Permit([Some(own), None]);
        }
        let common = async {
            let mine = Arc::clone(&self.of_common).acquire_owned().await.ok();
            [mine, Arc::clone(&self.common).acquire_owned().await.ok()]
        };
        // Nobody closes a semaphore, so none of them fails.
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

    fn take(share: &Share) -> Vec<Permit> {
        std::iter::from_fn(|| share.permit().now_or_never()).collect()
    }

    #[test]
    fn who_holds_all_it_may_holds_up_nobody_else() {
        let shares = Shares::new(32);
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

    #[tokio::test]
    async fn whoever_waits_is_served() {
        let shares = Shares::new(2);
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
