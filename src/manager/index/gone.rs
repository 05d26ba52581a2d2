//! Recently deleted objects, so that no reply that was in flight brings them back.

use std::collections::HashMap;
use std::time::Duration;

use crate::clock::Instant;

/// Deleted objects, by uid, with the resourceVersion of the deletion. A reply or a live read that was in flight when
/// the watch reported the deletion must not bring them back, because no later event would remove them.
#[derive(Default)]
pub(in crate::manager) struct Gone {
    ends: HashMap<Box<str>, End>,
    /// The number of entries at which old ones are removed: twice what the last sweep left, so that sweeps stay cheap
    /// when thousands of objects are deleted at once.
    sweep_at: usize,
}

struct End {
    resource_version: Box<str>,
    at: Instant,
    /// The uid of the instance, if the object was a child that we had applied.
    of: Option<Box<str>>,
}

impl Gone {
    pub(in crate::manager) fn add(&mut self, uid: &str, resource_version: &str, of: Option<&str>) {
        if self.ends.len() >= self.sweep_at.max(1_024) {
            self.ends.retain(|_, end| end.at.elapsed() < REMEMBERED);
            self.sweep_at = self.ends.len() * 2;
        }
        // A watch and a live read may both report it. The child was known only at the first report.
        let of = of.map(Into::into).or_else(|| self.ends.remove(uid).and_then(|end| end.of));
        let end = End { resource_version: resource_version.into(), at: Instant::now(), of };
        self.ends.insert(uid.into(), end);
    }

    /// Whether that resourceVersion is older than the deletion of that uid. An object that only lost a label may come
    /// back with its uid and a newer resourceVersion.
    pub(in crate::manager) fn covers(&self, uid: &str, resource_version: &str) -> bool {
        self.ends.get(uid).is_some_and(|end| !older(&end.resource_version, resource_version))
    }

    /// Whether the object of that uid was a child of the instance.
    pub(in crate::manager) fn was_child_of(&self, uid: &str, instance_uid: &str) -> bool {
        self.ends.get(uid).is_some_and(|end| end.of.as_deref() == Some(instance_uid))
    }
}

/// How long a deletion is remembered: longer than the deadline of a call.
const REMEMBERED: Duration = Duration::from_secs(120);

/// Whether `a` is older than `b`. resourceVersions of one kind are numbers that grow.
pub(in crate::manager) fn older(a: &str, b: &str) -> bool {
    matches!((a.parse::<u64>(), b.parse::<u64>()), (Ok(a), Ok(b)) if a < b)
}
