//! How a child is written: the apply, and the dry runs that must have passed before.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::Value;

use super::model::{
    Action, Apply, Check, Context, Desired, Expect, Failure, Item, Observed, Ownership, ReconcileState,
    Repair, Target, Why, WritePolicy, owns_extra_fields,
};
use super::{fields, immutable, shape};
use crate::package::plan::OnLoss;
use crate::package::{ImmutableChange, REPLICAS, has_replicas};

/// The apply of an item.
pub(super) fn apply(
    ctx: &Context<'_>,
    target: &Target,
    item: &Item,
    desired: &Desired,
    why: Why,
    (state, now): (&ReconcileState, Duration),
) -> Apply {
    let child = ctx.child(item);
    let live = item.observed.as_deref();
    let policy = write_policy(ctx, target, item);
    Apply {
        item: item.name.clone(),
        desired: desired.clone(),
        expect: expected(item),
        adopts: item.retained.as_ref().map(|object| object.uid.clone()),
        version: live.map(|o| o.resource_version.clone()),
        policy,
        repair: Repair {
            lost_items: why == Why::Repair && live.is_some_and(|o| has_lost_items(desired, o)),
            foreign_fields: matches!(why, Why::Repair | Why::Recheck)
                && live.is_some_and(|o| has_foreign_fields(desired, o, why)),
            omitted_replicas: why == Why::Update && live.is_some_and(|o| omits_replicas(desired, o)),
            is_frequent: why == Why::Repair
                && state.corrections(&desired.object).is_some_and(|c| c.is_frequent(now)),
        },
        requires_live_owner: requires_live_owner(&ctx.snapshot.instance, desired, live),
        shape: None,
        why,
        recreate: item.observed.clone().filter(|_| policy.recreates()),
        notes_recreation: ctx.snapshot.plans.is_some() && !matches!(child.on_loss, OnLoss::Recreate),
    }
}

/// The dry runs that must have passed before the first of the changes is made: one for each shape. Sets the shape of each
/// apply.
pub(super) fn dry_runs(
    ctx: &Context<'_>,
    target: &Target,
    changes: &[&Item],
    state: &ReconcileState,
    actions: &mut [Action],
) -> Vec<Check> {
    let (mut shapes, mut known, mut checks) = (BTreeMap::new(), BTreeSet::new(), Vec::new());
    for item in changes {
        let Ok(desired) = &item.desired else { continue };
        let child = ctx.child(item);
        let expect = expected(item);
        let policy = write_policy(ctx, target, item);
        let mut shape = shape::shape(&ctx.at(item.origin), child, desired, &expect, policy.recreates());
        // A dry run of this desired object was refused, maybe for its values: they are a part of the shape then.
        if state.is_dry_run_refused(item, desired) {
            shape = shape::with_values(shape, desired);
        }
        shapes.insert(&*item.name, shape);
        if !known.insert(shape) {
            continue;
        }
        let depends_on = changes
            .iter()
            .filter(|other| other.name != item.name && other.observed.is_none())
            .filter(|other| other.desired.as_ref().is_ok_and(|other| shape::depends_on(desired, other)))
            .map(|other| other.name.clone())
            .collect();
        checks.push(Check {
            item: item.name.clone(),
            desired: desired.clone(),
            expect,
            policy,
            shape,
            depends_on,
        });
    }
    for action in actions {
        if let Action::Apply(apply) = action {
            apply.shape = shapes.get(&*apply.item).copied();
        }
    }
    checks
}

/// The refusal of a write: of this desired object for this live object, judged with what is permitted now.
pub(in crate::children) fn failure<'s>(
    ctx: &Context<'_>,
    target: &Target,
    item: &Item,
    state: &'s ReconcileState,
) -> Option<&'s Failure> {
    let failure = state.failure_of(item, item.desired.as_ref().ok()?)?;
    (failure.policy == Some(write_policy(ctx, target, item))).then_some(failure)
}

/// What the package and the live object permit. An object is not recreated if an earlier version of the package or a user
/// has marked it to stay.
fn write_policy(ctx: &Context<'_>, target: &Target, item: &Item) -> WritePolicy {
    let child = ctx.child(item);
    let is_to_stay = item.observed.as_ref().is_some_and(|o| o.is_to_stay());
    WritePolicy {
        conflicts: child.conflict_policy,
        ownership: if child.adopt { Ownership::Adopt } else { Ownership::Own },
        on_immutable_change: match immutable::policy(ctx, target, item) {
            Ok(policy) if !is_to_stay => policy,
            _ => ImmutableChange::Fail,
        },
    }
}

/// Whether the instance must be read live before the apply, because the cache may not show yet that it is deleted.
///
/// An object that is created too late for its owner is deleted by the garbage collector. So the first children of an
/// instance, which has no status yet, need no live read if they carry an ownerReference; but a Job must not run for an
/// owner that is gone. A child that was there before may be missing because the garbage collector has deleted it with its
/// owner. An object that exists must not get an owner that is gone: it would be deleted.
fn requires_live_owner(instance: &Value, desired: &Desired, observed: Option<&Observed>) -> bool {
    let is_owned = desired.body["metadata"].get("ownerReferences").is_some();
    let is_new = instance["status"]["conditions"].as_array().is_none_or(Vec::is_empty);
    match observed {
        None => !(is_owned && is_new) || desired.completion.is_some(),
        Some(observed) => is_owned && !observed.owner_reference,
    }
}

/// The precondition of an apply of the item.
fn expected(item: &Item) -> Expect {
    item.observed.as_ref().map_or(Expect::Absent, |o| Expect::Present(o.uid.clone()))
}

/// Whether our entry has lost an item of a list: another item may stand in its place.
fn has_lost_items(desired: &Desired, observed: &Observed) -> bool {
    let owned = observed.owned.as_ref();
    owned.is_some_and(|owned| fields::lost_items(&desired.body, owned, &observed.foreign))
}

/// Whether our entry has fields of other managers. If our entry was written since our last apply, another client has
/// applied under our name, and the next apply removes what it added.
fn has_foreign_fields(desired: &Desired, observed: &Observed, why: Why) -> bool {
    observed.mark.applied() == observed.baseline.applied()
        && owns_extra_fields(desired, observed, why == Why::Recheck)
}

/// Whether the desired object leaves out the number of replicas, which we have applied. The API server would set its default,
/// 1, if an apply removed the number.
fn omits_replicas(desired: &Desired, observed: &Observed) -> bool {
    let [spec, replicas] = REPLICAS;
    has_replicas(&desired.object.gvk)
        && desired.body[spec].get(replicas).is_none()
        && !desired.keep.iter().any(|path| path.split('.').eq(REPLICAS))
        && observed.owned.as_ref().is_some_and(|owned| owned.get(&REPLICAS).is_some())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::api::{Gvk, ObjectRef};
    use crate::children::model::Completion;

    #[test]
    fn only_the_first_owned_children_are_created_without_a_live_read() {
        let new = json!({"metadata": {"uid": "u"}});
        let old = json!({"metadata": {"uid": "u"}, "status": {"conditions": [{"type": "Ready"}]}});
        let desired = |metadata: Value, is_job: bool| Desired {
            object: ObjectRef { gvk: Gvk::new("v1", "ConfigMap"), namespace: None, name: "a".into() },
            body: Arc::new(json!({"metadata": metadata})),
            hash: String::new(),
            generated: Vec::new(),
            keep: Vec::new(),
            yields: Vec::new(),
            completion: is_job.then(|| Completion { token: String::new(), recorded: false }),
        };
        let owned = json!({"ownerReferences": []});
        for (instance, metadata, is_job, is_required) in [
            (&new, &owned, false, false),
            (&new, &owned, true, true),
            (&new, &json!({}), false, true),
            (&old, &owned, false, true),
            (&old, &json!({}), false, true),
        ] {
            let desired = desired(metadata.clone(), is_job);
            let required = requires_live_owner(instance, &desired, None);
            assert_eq!(required, is_required, "{instance} {metadata} {is_job}");
        }
    }
}
