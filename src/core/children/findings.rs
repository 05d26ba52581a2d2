//! Findings of the stages: what is said about an item, a ref or a refusal, from what is known of it.

use std::time::Duration;

use super::model::{
    Block, ChildError, Context, Desired, Failure, Finding, Item, Observed, ReconcileState, Refusal, Remedy,
    Snapshot, Target, Why,
};
use super::{immutable, names};
use crate::api::CallError;
use crate::package::{Child, DeletionPolicy, ImmutableChange, holds_data, locate};
use crate::template::EvalError;

/// How many places in templates a message names.
const PLACES: usize = 3;

impl Finding {
    /// Something has no value. If it reads an unknown ref, the reason is that ref's.
    pub(super) fn no_value(name: &str, error: &ChildError, target: &Target) -> Self {
        let problem = match error {
            ChildError::Eval(EvalError::Unknown { path, .. }) => target.refs.problem_of(path),
            _ => None,
        };
        let (reason, is_waiting) = match problem {
            Some((_, problem)) => (problem.reason, problem.is_waiting),
            None => (error.reason(), error.is_waiting()),
        };
        let unknown_ref = problem.map(|(id, _)| id.to_owned());
        let affects_ready = problem.is_none_or(|(_, problem)| problem.affects_ready);
        let (name, error) = (name.to_owned(), error.clone());
        Self::NoValue { name, error, reason, is_waiting, unknown_ref, affects_ready }
    }

    /// A child waits for others, and not even the number of its members is known.
    pub(super) fn no_value_yet(name: &str, error: &ChildError, target: &Target) -> Self {
        match Self::no_value(name, error, target) {
            Self::NoValue { name, error, unknown_ref, affects_ready, .. } => {
                let reason = error.reason();
                Self::NoValue { name, reason, is_waiting: true, error, unknown_ref, affects_ready }
            }
            other => other,
        }
    }

    /// Unknown refs that no other finding is about.
    pub(super) fn unknown_refs(target: &Target, findings: &[Self]) -> Vec<Self> {
        let is_reported = |id: &String| {
            findings.iter().any(
                |finding| matches!(finding, Self::NoValue { unknown_ref: Some(known), .. } if known == id),
            )
        };
        let unreported = target.refs.problems.iter().filter(|(id, _)| !is_reported(id));
        unreported
            .map(|(id, problem)| Self::UnknownRef {
                id: id.clone(),
                reason: problem.reason,
                message: problem.message.clone(),
                is_waiting: problem.is_waiting,
                affects_ready: problem.affects_ready,
            })
            .collect()
    }

    /// An apply of a child was refused.
    pub(super) fn refused(
        ctx: &Context<'_>,
        target: &Target,
        item: &Item,
        desired: &Desired,
        failure: &Failure,
    ) -> Self {
        let (error, child) = (&failure.error, ctx.child(item));
        Self::ApplyRefused(Box::new(Refusal {
            item: item.name.clone(),
            object: desired.object.clone(),
            error: error.clone(),
            is_dry_run: failure.is_dry_run,
            places: places(&ctx.at(item.origin), child, error),
            remedy: remedy(child, item, desired, error, || immutable::policy(ctx, target, item)),
        }))
    }

    /// A child waits to be written.
    pub(super) fn waiting(item: &Item, block: Block) -> Self {
        Self::Waiting { item: item.name.clone(), block }
    }

    /// A child is being deleted, and is created again afterwards.
    pub(super) fn terminating(item: &Item) -> Self {
        Self::Terminating { item: item.name.clone(), state: item.unready() }
    }

    /// Another manager keeps changing a field. `conflict`: the field and the manager, if they were looked up.
    pub(super) fn field_manager_conflict(
        item: &Item,
        observed: &Observed,
        conflict: Option<(&str, Option<&str>)>,
    ) -> Self {
        let (field, manager) = conflict.unwrap_or(("fields", None));
        Self::FieldManagerConflict {
            item: item.name.clone(),
            object: observed.object.clone(),
            field: field.to_owned(),
            manager: manager.unwrap_or("another client").to_owned(),
        }
    }

    /// An object whose deletion waits for approval.
    pub(super) fn awaits_approval(snapshot: &Snapshot, observed: &Observed, state: &ReconcileState) -> Self {
        Self::AwaitsApproval {
            object: observed.object.clone(),
            item: names::item_name(&observed.child, observed.key.as_deref()),
            how: snapshot.how_to_approve(observed, state),
        }
    }

    /// What would be written if the instance were not paused; `None` if that may change nothing.
    pub(super) fn paused(item: &Item, why: Why) -> Option<Self> {
        let write = match why {
            Why::Create | Why::Restore => "create",
            Why::Update => "update",
            Why::Repair => "repair",
            Why::Recheck => return None,
        };
        Some(Self::Paused { write, what: item.name.clone() })
    }
}

fn remedy(
    child: &Child,
    item: &Item,
    desired: &Desired,
    error: &CallError,
    policy: impl FnOnce() -> Result<ImmutableChange, String>,
) -> Option<Remedy> {
    // The package may set Recreate only for such a child.
    let may_be_recreated =
        child.deletion_policy == DeletionPolicy::Delete && !child.kinds.iter().any(holds_data);
    match error {
        _ if is_refused_resize(desired, error) => Some(Remedy::Resize),
        _ if !error.is_immutable_change() => None,
        _ => match policy() {
            Err(why) => Some(Remedy::PolicyUnknown(why)),
            Ok(ImmutableChange::Recreate | ImmutableChange::Orphan) => {
                let is_kept = item.observed.as_ref().is_some_and(|live| live.is_to_stay());
                is_kept.then_some(Remedy::RetainedObject)
            }
            Ok(ImmutableChange::Fail) if may_be_recreated => Some(Remedy::MayRecreate),
            Ok(ImmutableChange::Fail) => Some(Remedy::NeverRecreated),
        },
    }
}

/// Whether a claim is refused because of its size alone. An admission plugin refuses it with 403, which is no missing
/// right, and validation with 422.
fn is_refused_resize(desired: &Desired, error: &CallError) -> bool {
    const SIZE: &str = "spec.resources.requests.storage";
    let is_size = match error.code {
        403 => !error.is_unauthorized() && error.message.contains("resize"),
        422 => !error.causes.is_empty() && error.causes.iter().all(|cause| cause.field == SIZE),
        _ => false,
    };
    is_size && &*desired.object.gvk.kind == "PersistentVolumeClaim"
}

/// Where the child's template writes the fields that the server names.
fn places(ctx: &Context<'_>, child: &Child, error: &CallError) -> Vec<String> {
    let mut places = Vec::new();
    for field in error.fields() {
        // Operetta renders the text of a Secret as data.
        let texts = field.strip_prefix("data").map(|rest| format!("stringData{rest}"));
        let found = [Some(field.to_owned()), texts]
            .into_iter()
            .flatten()
            .find_map(|field| locate(&ctx.origin.package.engine, &child.template, &field));
        if let Some(location) = found.map(|location| location.to_string())
            && !places.contains(&location)
        {
            places.push(location);
        }
        if places.len() == PLACES {
            break;
        }
    }
    places
}

/// The soonest of several times, if there is any.
pub(super) fn soonest(times: impl IntoIterator<Item = Option<Duration>>) -> Option<Duration> {
    times.into_iter().flatten().min()
}
