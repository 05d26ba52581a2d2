//! Controllers that every cluster has: namespaces, CRDs and the garbage collector.

use jiff::Timestamp;

use crate::api::Api;

impl Api {
    /// Lets the controllers act once. Returns whether one of them changed something.
    pub fn tick(&mut self, now: Timestamp) -> bool {
        let _ = now;
        std::mem::take(&mut self.is_dirty)
    }
}
