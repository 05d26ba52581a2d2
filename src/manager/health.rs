//! What the parts of a manager report of themselves: metrics, the phase of the process, and why packages are not active.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::metrics::Metrics;
use crate::cluster::Requests;

/// What the parts of a manager report of themselves.
pub(super) struct Health {
    pub(super) metrics: Metrics,
    phase: Mutex<Phase>,
    registered: AtomicBool,
    hindrances: Mutex<Hindrances>,
}

/// Why packages are not active.
#[derive(Default)]
pub(super) struct Hindrances {
    /// The folders of packages that cannot be loaded.
    pub(super) broken: Vec<String>,
    /// Packages whose CRDs cannot be registered, with the reason.
    pub(super) inactive: Vec<String>,
    /// Packages that lack rights, or have some that cannot be taken back.
    pub(super) lacking: BTreeSet<String>,
    /// What would keep packages from being active if a standby led; `None` until it has checked.
    pub(super) ahead: Option<Vec<String>>,
}

/// The phase of the process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Phase {
    /// It connects.
    Starting,
    /// Another process leads, which is named.
    StandingBy(String),
    /// It reconciles.
    Leading,
    /// It ends.
    Stopping,
}

impl Health {
    pub(super) fn new(requests: &Requests) -> Self {
        Self {
            metrics: Metrics::new(requests),
            phase: Mutex::new(Phase::Starting),
            registered: AtomicBool::new(false),
            hindrances: Mutex::default(),
        }
    }

    pub(super) fn enter(&self, phase: Phase) {
        self.metrics.leader.set(i64::from(phase == Phase::Leading));
        *self.phase.lock().unwrap_or_else(PoisonError::into_inner) = phase;
    }

    pub(super) fn phase(&self) -> Phase {
        self.phase.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Records that the first reconcile of each package's CRDs has ended.
    pub(super) fn registered(&self) {
        self.registered.store(true, Ordering::SeqCst);
    }

    pub(super) fn is_registered(&self) -> bool {
        self.registered.load(Ordering::SeqCst)
    }

    /// Records whether the rights of a package are not as they should be.
    pub(super) fn note_rights(&self, package: &str, is_lacking: bool) {
        let lacking = &mut self.hindrances().lacking;
        if is_lacking {
            lacking.insert(package.to_owned());
        } else {
            lacking.remove(package);
        }
    }

    pub(super) fn hindrances(&self) -> MutexGuard<'_, Hindrances> {
        self.hindrances.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
