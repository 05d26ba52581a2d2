//! Which revision of an `Operator` is to be activated next.

use super::OperatorSpec;

/// What is to be done about the revisions of an `Operator`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next<'a> {
    /// Nothing: the revision that it names is active.
    Nothing,
    /// Nothing, because it is paused.
    Paused,
    /// First activate this revision, which was active before the manager started.
    Recorded(&'a str),
    /// Activate the revision that the `Operator` names.
    Named(&'a str),
}

/// Decides which revision is activated next. `active`: the revision that is active in this process.
/// `recorded`: the revision that the status names. It comes first after a start of the manager, so that a
/// revision that is refused does not take the place of one that worked. `is_lost`: whether the recorded
/// revision cannot be loaded.
pub fn next<'a>(
    spec: &'a OperatorSpec,
    active: Option<&str>,
    recorded: Option<&'a str>,
    is_lost: bool,
) -> Next<'a> {
    let named = spec.revision.as_str();
    match (active, recorded.filter(|_| !is_lost)) {
        (Some(active), _) if active == named => Next::Nothing,
        (None, Some(recorded)) if spec.paused || recorded != named => Next::Recorded(recorded),
        _ if spec.paused => Next::Paused,
        _ => Next::Named(named),
    }
}
