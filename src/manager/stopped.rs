//! Instances whose evaluation stopped at a limit. The same input would end the same, at the highest price there is:
//! so it is evaluated again once its input has changed, and if that keeps changing, later each time.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use super::Shared;
use super::index::InstanceKey;
use super::reconcile::Look;
use super::registry::Registered;
use crate::children::{Found, Want};

/// How many evaluations in a row may stop at a limit before there are pauses between them.
const FREE: u32 = 3;
/// The first pause; the next ones double.
const PAUSE_FIRST: Duration = Duration::from_secs(1);
/// The longest pause.
const PAUSE_LAST: Duration = Duration::from_secs(60);

/// What is remembered of an instance whose evaluation stopped at a limit.
#[derive(Debug, Default)]
pub(super) struct Stopped {
    /// The input, if the status says already what came of it.
    input: Option<u64>,
    /// What its refs named: part of the input.
    wants: Vec<Want>,
    /// How often in a row.
    count: u32,
    /// Not evaluated again before this time.
    not_before: Duration,
}

/// Whether to evaluate.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Again {
    /// Now.
    Now,
    /// After a pause.
    Later(Duration),
    /// Nothing has changed.
    Never,
}

impl Stopped {
    /// Whether to evaluate what is there now.
    pub(super) fn again(&self, input: impl FnOnce(&[Want]) -> u64, now: Duration) -> Again {
        if self.input.is_some_and(|before| before == input(&self.wants)) {
            return Again::Never;
        }
        match self.not_before.checked_sub(now) {
            Some(pause) if !pause.is_zero() => Again::Later(pause),
            _ => Again::Now,
        }
    }

    /// It was evaluated, and stopped at a limit.
    pub(super) fn note(&mut self, input: Option<u64>, wants: Vec<Want>, now: Duration) {
        (self.input, self.wants) = (input, wants);
        self.count = self.count.saturating_add(1);
        if let Some(doubled) = self.count.checked_sub(FREE) {
            let pause = PAUSE_FIRST.saturating_mul(2u32.saturating_pow(doubled)).min(PAUSE_LAST);
            self.not_before = now + pause;
        }
    }
}

impl Shared {
    /// A hash of all that a decision evaluates: the package, the instance, and what is read of its children and refs.
    pub(super) fn input(
        &self,
        key: &InstanceKey,
        registered: &Registered,
        look: &Look,
        wants: &[Want],
    ) -> u64 {
        let mut hasher = DefaultHasher::new();
        if let Some((package, resource)) = registered.resource() {
            package.digest.hash(&mut hasher);
            if resource.reads_cluster {
                format!("{:?}", self.served.known()).hash(&mut hasher);
            }
        }
        let mut instance = look.instance.clone();
        if let Some(metadata) = instance["metadata"].as_object_mut() {
            metadata.remove("resourceVersion");
        }
        instance.to_string().hash(&mut hasher);
        let mut kinds: Vec<_> = look.kinds.iter().map(|(kind, state)| (kind, format!("{state:?}"))).collect();
        kinds.sort();
        kinds.hash(&mut hasher);
        let mut children: Vec<_> = look.observed.iter().collect();
        children.sort_by(|a, b| a.object.cmp(&b.object));
        for child in children {
            (&child.object, &child.uid, &child.child, &child.key, &child.live).hash(&mut hasher);
            (child.terminating, format!("{:?}", child.readiness)).hash(&mut hasher);
        }
        for want in wants {
            match self.refs.find(key, want) {
                Found::Known(objects) => {
                    for object in objects {
                        (&object.namespace, &object.name, object.ready).hash(&mut hasher);
                        object.value.to_string().hash(&mut hasher);
                    }
                }
                Found::Pending => 0.hash(&mut hasher),
                Found::Unknown(why) => format!("{why:?}").hash(&mut hasher),
            }
        }
        hasher.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_input_is_not_evaluated_again_and_changing_ones_ever_later() {
        let secs = Duration::from_secs;
        let mut stopped = Stopped::default();
        // The status does not say it yet.
        stopped.note(None, Vec::new(), secs(0));
        assert_eq!(stopped.again(|_| 1, secs(0)), Again::Now);
        stopped.note(Some(1), Vec::new(), secs(0));
        assert_eq!(stopped.again(|_| 1, secs(1_000)), Again::Never);
        assert_eq!(stopped.again(|_| 2, secs(0)), Again::Now);
        let mut pauses = Vec::new();
        for input in 2..12 {
            stopped.note(Some(input), Vec::new(), secs(0));
            assert_eq!(stopped.again(|_| input, secs(0)), Again::Never);
            match stopped.again(|_| 99, secs(0)) {
                Again::Later(pause) => pauses.push(pause.as_secs()),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60, 60, 60]);
        assert_eq!(stopped.again(|_| 99, secs(60)), Again::Now);
    }
}
