//! Children that are lost, and what becomes of them.

use std::collections::BTreeMap;

use serde_json::Value;

use super::history::History;
use crate::children::model::{Block, Context, Finding, Item, Loss, NEWEST, ReconcileState, Target};
use crate::children::names;
use crate::package::plan::OnLoss;
use crate::plan::Member;
use crate::readiness::Readiness;
use crate::template::{EvalError, Text};

/// A lost item.
pub(super) struct LostItem {
    /// Its position in the target.
    position: usize,
    member: Member,
    loss: Loss,
}

/// The lost items that are not simply created again.
pub(super) fn lost(
    ctx: &Context<'_>,
    target: &Target,
    history: &History<'_>,
    (state, awaited): (&ReconcileState, &[Member]),
) -> Vec<LostItem> {
    let items = target.items.iter().enumerate();
    let has_plan = |item: &Item| !matches!(ctx.child(item).on_loss, OnLoss::Recreate);
    let mut items = items.filter(|(_, item)| has_plan(item)).peekable();
    if items.peek().is_none() {
        return Vec::new();
    }
    let mut lost = Vec::new();
    for (position, item) in items {
        let member = Member::new(ctx.origins.child_id(item.child), item.key.clone());
        let memory = ctx.origins.memory(&item.name);
        if is_away_or_failed(ctx, state, item)
            && memory.existed
            && !memory.deleted
            && !history.is_coming(&member, awaited)
            && let Some(loss) = loss(ctx, target, item)
        {
            lost.push(LostItem { position, member, loss });
        }
    }
    lost
}

/// Whether the object of an item is gone, or of no more use.
fn is_away_or_failed(ctx: &Context<'_>, state: &ReconcileState, item: &Item) -> bool {
    match (&item.desired, &item.observed) {
        (Err(_), _) => false,
        (Ok(_), None) => !item.done && !is_recreating(ctx, state, item),
        (Ok(desired), Some(observed)) => {
            let gvk = &desired.object.gvk;
            let by_kind = match &observed.readiness {
                // A container that crashes may recover; a pod in phase Failed does not.
                Readiness::Failed { reason, .. } if gvk.is("v1", "Pod") => reason != "CrashLoopBackOff",
                Readiness::Failed { .. } => gvk.is("v1", "PersistentVolumeClaim"),
                _ => false,
            };
            (by_kind || item.meets_lost_when) && !observed.terminating
        }
    }
}

/// What becomes of a lost item; `None` if it is created again. An `onLoss` without a value decides nothing: an object that
/// is created again without its plan may have lost its data for good.
fn loss(ctx: &Context<'_>, target: &Target, item: &Item) -> Option<Loss> {
    let undecided = |why: String, is_unknown| Some(Loss::Undecided { why, is_unknown });
    let plan = match &ctx.child(item).on_loss {
        OnLoss::Recreate => return None,
        OnLoss::Plan(plan) => plan.clone(),
        OnLoss::Computed(text) => match setting(ctx, target, item, text) {
            Ok(Some(Value::String(name))) if name == "Recreate" => return None,
            Ok(Some(Value::String(name))) => name,
            Ok(None | Some(Value::Null)) | Err(EvalError::Undefined(_)) => {
                return undecided("it has no value".to_owned(), false);
            }
            Ok(Some(_)) => return undecided("its value is no text".to_owned(), false),
            Err(error) => {
                let is_unknown = matches!(error, EvalError::Unknown { .. });
                return undecided(error.to_string(), is_unknown);
            }
        },
    };
    if ctx.origin.resource.plans.iter().any(|known| known.name == plan) {
        return Some(Loss::Plan(plan));
    }
    undecided(format!("the package has no plan `{plan}`"), false)
}

/// The value of a template of an item's child. What a user sets now counts, also if it starts no rollout.
fn setting(ctx: &Context<'_>, target: &Target, item: &Item, text: &Text) -> Result<Option<Value>, EvalError> {
    let package = ctx.origins.at(item.origin).package;
    let is_same = package.revision() == ctx.origin.package.revision();
    package.engine.eval_text(text, target.scope_at(if is_same { NEWEST } else { item.origin }))
}

/// The lost members that a plan restores, by plan.
pub(super) fn losses(lost: &[LostItem]) -> BTreeMap<String, Vec<Member>> {
    let mut losses: BTreeMap<String, Vec<Member>> = BTreeMap::new();
    for item in lost {
        if let Loss::Plan(plan) = &item.loss {
            losses.entry(plan.clone()).or_default().push(item.member.clone());
        }
    }
    losses
}

/// Marks lost items, so that they are not applied. Returns findings about those that nothing else reports.
pub(super) fn mark_lost(target: &mut Target, lost: Vec<LostItem>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for LostItem { position, loss, .. } in lost {
        let item = &mut target.items[position];
        if item.observed.is_some() && matches!(loss, Loss::Undecided { .. }) {
            // The object exists, so no blocked write reports the loss.
            findings.push(Finding::Waiting { item: item.name.clone(), block: Block::Lost(loss.clone()) });
        }
        item.lost = Some(loss);
    }
    findings
}

/// Whether the object of an item was deleted to be created again, and does not exist yet.
pub(super) fn is_recreating(ctx: &Context<'_>, state: &ReconcileState, item: &Item) -> bool {
    let noted = &ctx.snapshot.instance["metadata"]["annotations"][names::recreating(&item.name)];
    item.observed.is_none()
        && item
            .desired
            .as_ref()
            .is_ok_and(|desired| state.is_recreating(&desired.object) || noted.is_string())
}

/// The annotations of the instance that note the recreation of items which exist again, or are not desired any more.
pub(super) fn recreated(ctx: &Context<'_>, target: &Target) -> Vec<String> {
    let annotations = ctx.snapshot.instance["metadata"]["annotations"].as_object();
    let noted = annotations.into_iter().flatten().filter(|(key, _)| key.starts_with(names::RECREATING));
    let is_away = |name: &Value| {
        let mut items = target.items.iter().filter(|item| *name == item.name.as_str());
        items.any(|item| item.observed.as_ref().is_none_or(|live| live.terminating))
    };
    noted.filter(|(_, name)| !is_away(name)).map(|(key, _)| key.clone()).collect()
}
