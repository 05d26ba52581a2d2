//! For how long this process has run what is active: time that a run spends while no manager works does not count.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::index::InstanceKey;
use crate::plan::{Phase, PlanRun, Stopwatch};

/// For how long this process has run the active runs of each instance, by their uids.
#[derive(Default)]
pub(super) struct Stopwatches(Mutex<HashMap<InstanceKey, HashMap<String, Stopwatch>>>);

impl Stopwatches {
    /// For how long each active run of an instance has been running. The others are forgotten.
    pub(super) fn read(
        &self,
        key: &InstanceKey,
        runs: &[PlanRun],
        now: Duration,
        is_paused: bool,
    ) -> HashMap<String, Duration> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut known = all.remove(key).unwrap_or_default();
        let (mut active, mut elapsed) = (HashMap::new(), HashMap::new());
        for run in runs {
            let Some(status) = run.status.as_ref().filter(|status| status.phase == Phase::Running) else {
                continue;
            };
            let mut stopwatch = known.remove(&run.uid).unwrap_or_default();
            elapsed.insert(run.uid.clone(), stopwatch.read(status.used_milliseconds, now, is_paused));
            active.insert(run.uid.clone(), stopwatch);
        }
        if !active.is_empty() {
            all.insert(key.clone(), active);
        }
        elapsed
    }

    /// Forgets an instance that is gone.
    pub(super) fn forget(&self, key: &InstanceKey) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
    }
}
