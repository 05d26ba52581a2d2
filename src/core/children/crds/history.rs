//! What is remembered of one CRD of a package.

use std::time::Duration;

use super::child_scope::{ChildScope, ChildScopeUsage, UnusedChildScope};
use super::model::{CrdInfo, CrdState, CrdVersion};
use crate::backoff::Backoff;

/// After this many changes by another client within [`WINDOW`], a CRD is left as it is until none comes for
/// as long.
pub(super) const CHANGES: usize = 3;
/// The time in which [`CHANGES`] are counted.
pub(super) const WINDOW: Duration = Duration::from_secs(600);
/// The time until the record is checked for unused parts. It doubles with each check, up to the second value.
/// A check costs no request.
const CHECK: Backoff = Backoff::new(Duration::from_secs(5), Duration::from_secs(300));

/// What is remembered of one CRD. Times count from the start of the manager.
#[derive(Debug, Clone, Default)]
pub struct CrdHistory {
    /// The version that was read or written last.
    seen: Option<CrdVersion>,
    /// The live CRD when it was last ready or conflicted.
    info: Option<CrdInfo>,
    served: Served,
    /// When the CRD was restored after a change by another client.
    restored_at: Vec<Duration>,
    conflict: Option<Conflict>,
    unused: UnusedChildScope,
    /// When the record is checked next; `None` if it holds no more than the package needs.
    check_record_at: Option<Duration>,
    record_checks: u32,
    /// The package is active only until another revision takes over, which the manager was about to make
    /// active before it restarted.
    stands_in: bool,
    /// The spec of an existing CRD was written: the API server may now show its instances in another way.
    spec_written: bool,
    /// The package to which the CRD was handed over.
    handed_over: Option<String>,
}

/// Whether the CRD has been ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Served {
    #[default]
    NotYet,
    Once,
    /// The watch has shown that it is gone, and it was not read since. A list that is older than what was read shows that, too: then
    /// the CRD is back with the next event, which is no news.
    Gone,
}

/// Another client changes the CRD repeatedly.
#[derive(Debug, Clone)]
struct Conflict {
    writer: String,
    until: Duration,
}

/// The result of a reconcile of one CRD.
#[derive(Debug)]
pub struct CrdOutcome {
    /// The state of the CRD.
    pub state: CrdState,
    /// The version that was read or written last; `None` if there is none.
    pub seen: Option<CrdVersion>,
    /// The client that had changed the CRD since it was ready.
    pub changed_by: Option<String>,
    /// Whether the CRD existed before and its spec was written.
    pub spec_written: bool,
}

/// What a reconcile has found out about a CRD that was served before.
#[derive(Debug, Default)]
pub(super) struct Shown {
    /// The client that had changed the CRD since it was ready.
    pub changed_by: Option<String>,
    /// The Lease of the manager that the CRD names now and did not name before.
    pub new_lease: Option<String>,
}

impl CrdHistory {
    /// The live CRD when it was last ready or conflicted.
    pub fn info(&self) -> Option<&CrdInfo> {
        self.info.as_ref()
    }

    /// Marks the package as active only until another revision of it takes over, as before the restart.
    pub(crate) fn stand_in(&mut self) {
        self.stands_in = true;
    }

    /// Whether its package only stands in for another revision.
    pub(super) fn stands_in(&self) -> bool {
        self.stands_in && !self.was_ready()
    }

    /// The version that was read or written last.
    pub(super) fn seen(&self) -> Option<&CrdVersion> {
        self.seen.as_ref()
    }

    /// The package to which it was handed over, if it was.
    pub fn handed_over(&self) -> Option<&str> {
        self.handed_over.as_deref()
    }

    /// Remembers that the CRD was handed over. What is known of the CRD is kept until the other package has
    /// it.
    pub(super) fn hand_over(&mut self, to: &str) {
        (self.handed_over, self.served, self.conflict) = (Some(to.to_owned()), Served::NotYet, None);
        (self.unused, self.check_record_at) = (UnusedChildScope::NOTHING, None);
    }

    /// Whether the CRD has been ready.
    pub fn was_ready(&self) -> bool {
        self.served == Served::Once
    }

    /// The part of the CRD's record that can be removed.
    pub(crate) fn unused(&self) -> &UnusedChildScope {
        &self.unused
    }

    /// The field manager that changes it repeatedly, if there is one.
    pub(crate) fn conflicting_writer(&self) -> Option<&str> {
        self.conflict.as_ref().map(|conflict| conflict.writer.as_str())
    }

    /// Whether a change of another client may be undone now.
    pub(crate) fn may_restore(&self, now: Duration) -> bool {
        match &self.conflict {
            Some(conflict) => conflict.until <= now,
            None => {
                self.restored_at.iter().filter(|at| now.saturating_sub(**at) < WINDOW).count() + 1 < CHANGES
            }
        }
    }

    /// Whether a version of the CRD, or its absence, is newer than what was read or written last.
    pub fn is_news(&self, live: Option<&CrdVersion>) -> bool {
        match (live, &self.seen) {
            (Some(live), Some(seen)) => live.is_newer_than(seen),
            (live, seen) => live.is_some() != seen.is_some(),
        }
    }

    /// Whether to read the CRD although it has not changed: because it was shown as gone, to remove unused parts of its record,
    /// or after a conflict.
    pub(super) fn is_read_due(&self, now: Duration) -> bool {
        self.served == Served::Gone
            || !self.unused.is_nothing()
            || self.conflict.as_ref().is_some_and(|conflict| conflict.until <= now)
    }

    /// When the CRD is due for a check if no event comes.
    pub(super) fn due_at(&self) -> Option<Duration> {
        match &self.conflict {
            Some(conflict) => Some(conflict.until),
            None => self.check_record_at,
        }
    }

    /// Whether the check of the record is due.
    pub(super) fn is_check_due(&self, now: Duration) -> bool {
        self.conflict.is_none() && self.info.is_some() && self.check_record_at.is_some_and(|at| at <= now)
    }

    /// Whether the spec was written since the last call.
    pub fn take_spec_written(&mut self) -> bool {
        std::mem::take(&mut self.spec_written)
    }

    /// Remembers the result of a reconcile. `needed`: the record that the templates need.
    pub(super) fn record(&mut self, outcome: &CrdOutcome, needed: &ChildScope, now: Duration) -> Shown {
        self.seen.clone_from(&outcome.seen);
        if self.served == Served::Gone {
            self.served = Served::NotYet;
        }
        self.spec_written |= outcome.spec_written;
        if let CrdState::HandedOver(to) = &outcome.state {
            self.hand_over(to);
        }
        let (CrdState::Ready(info) | CrdState::Conflicted(info)) = &outcome.state else {
            return Shown::default();
        };
        self.handed_over = None;
        let before = self.info.replace(info.clone());
        let has_same_spec = before.as_ref().is_some_and(|before| before.has_same_spec(info));
        let new_lease = info
            .lease
            .clone()
            .filter(|lease| before.as_ref().and_then(|before| before.lease.as_ref()) != Some(lease));
        let mut changed_by = outcome.changed_by.clone();
        if let CrdState::Ready(_) = &outcome.state {
            self.unused = UnusedChildScope::NOTHING;
            if before.is_none_or(|before| before.record != info.record) {
                self.check_record_at = None;
            }
            let again = self.check_record_at.unwrap_or(now + self.until_check());
            self.check_record_at = info.record.exceeds(needed).then_some(again);
            if changed_by.is_some() {
                self.restored_at.retain(|at| now.saturating_sub(*at) < WINDOW);
                self.restored_at.push(now);
            }
            (self.served, self.conflict) = (Served::Once, None);
        } else if has_same_spec && self.conflict.is_some() {
            changed_by = None;
        } else {
            let writer = changed_by.clone().unwrap_or_default();
            self.conflict = Some(Conflict { writer, until: now + WINDOW });
        }
        Shown { changed_by, new_lease }
    }

    /// Remembers that the CRD with that uid is gone. Returns whether it was known.
    pub(super) fn record_gone(&mut self, uid: &str) -> bool {
        let is_known = self.info.as_ref().is_some_and(|info| info.uid == uid);
        if is_known {
            *self = Self { served: Served::Gone, ..Self::default() };
        }
        is_known
    }

    /// Remembers a check of the record.
    pub(super) fn record_check(&mut self, usage: &ChildScopeUsage, needed: &ChildScope, now: Duration) {
        self.check_record_at = Some(now + self.until_check());
        self.record_checks = self.record_checks.saturating_add(1);
        if let Some(info) = &self.info {
            self.unused = info.record.unused(needed, usage);
        }
    }

    /// The time until the next check. It grows with each check, so a client that adds to the record
    /// repeatedly causes few.
    fn until_check(&self) -> Duration {
        CHECK.exact(self.record_checks.saturating_add(1))
    }
}
