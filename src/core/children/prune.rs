//! What is done with live objects that nothing desires: they are deleted in reverse order of the graph, retained, orphaned,
//! or wait for approval. Deleting an instance is the case in which nothing is desired. Nothing is rendered here, so a
//! package that no longer loads cannot block a deletion.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::findings::soonest;
use super::model::{
    Action, Decision, Finding, Needs, Observed, Origins, ReconcileState, Removal, Snapshot, Status, Target,
    Verdict, Wait, once,
};
use super::names::{self, Stamp};
use crate::api::Gvk;
use crate::package::DeletionPolicy;

/// How long until a namespace is checked again: the deletion of objects of others in it queues no instance.
const LOOK_AGAIN: Duration = Duration::from_secs(2);

/// Identifies an object: group, kind, namespace and name.
pub(super) type Identity<'a> = (&'a str, &'a str, Option<&'a str>, &'a str);

/// The live objects that nothing desires.
pub(super) struct Undesired<'a> {
    /// The objects to delete, retain, or mark as awaiting approval.
    pub remove: Vec<&'a Arc<Observed>>,
    /// The objects that a user has orphaned.
    pub orphaned: Vec<&'a Arc<Observed>>,
}

impl Undesired<'_> {
    pub(super) fn is_empty(&self) -> bool {
        self.remove.is_empty() && self.orphaned.is_empty()
    }
}

/// What is done about undesired objects now, and what is awaited.
#[derive(Debug, Default)]
pub(super) struct Pruned {
    /// The actions to carry out.
    pub actions: Vec<Action>,
    /// Refusals first, then what holds back the rest, then what waits for approval.
    pub findings: Vec<Finding>,
    /// When to decide again, if no event comes first.
    pub again: Option<Duration>,
    /// The approvals that deletions wait for, and namespaces that may be deleted once it is known that nothing uses them.
    pub needs: Needs,
}

/// The live objects that are not desired. While the instance is not being deleted, kinds that are not listed
/// are left alone.
pub(super) fn undesired<'a>(snapshot: &'a Snapshot, desired: &HashSet<Identity<'_>>) -> Undesired<'a> {
    let is_undesired = |o: &&Arc<Observed>| {
        !desired.contains(&o.object.identity()) && (snapshot.is_deleting() || snapshot.is_listed(&o.object))
    };
    let own = snapshot.observed.iter().filter(|o| o.is_to_go());
    let previous = &snapshot.previous_children;
    let left_behind = previous.iter().filter(|o| is_left_behind(o));
    let orphaned = previous.iter().filter(|o| o.is_orphaned() && !snapshot.is_deleting());
    Undesired {
        remove: once(own.chain(left_behind).filter(is_undesired)),
        orphaned: once(orphaned.filter(is_undesired)),
    }
}

/// Whether a child of a deleted instance is deleted when nothing desires it. The garbage collector deletes those with an
/// ownerReference; a user has orphaned those that have lost theirs.
fn is_left_behind(previous: &Observed) -> bool {
    previous.is_to_go() && previous.guarded && !previous.owner_reference
}

/// What is done about undesired objects now.
pub(super) fn prune(
    snapshot: &Snapshot,
    undesired: &Undesired<'_>,
    state: &ReconcileState,
    now: Duration,
) -> Pruned {
    let mut pruned = Pruned::default();
    let mut wait = None;
    let mut going = Vec::new();
    for object in &undesired.remove {
        // A retained object that still carries an ownerReference would be deleted by the garbage collector.
        if snapshot.is_retained(object) {
            pruned.actions.push(Action::Retain(Arc::clone(object)));
        } else if snapshot.awaits_approval(object) {
            pruned.needs.approvals.push(Arc::clone(object));
            pruned.actions.extend(to_ask(object));
        } else {
            going.push(*object);
        }
    }
    if let Some(batch) = DeletionBatch::of(&going) {
        wait = batch.delete(snapshot, &mut pruned);
    }
    let hidden = hold_back(&mut pruned.actions, snapshot);
    pruned.actions.extend(undesired.orphaned.iter().map(|o| Action::Orphan(Arc::clone(o))));
    let (refusals, again) = hold_refused(&mut pruned.actions, Removal::Deletion, state, now);
    pruned.again = soonest([pruned.again, again]);
    pruned.findings.extend(refusals);
    pruned.findings.extend(hidden.or(wait).map(Finding::Deletion));
    let asks = pruned.needs.approvals.iter().map(|asked| Finding::awaits_approval(snapshot, asked, state));
    pruned.findings.extend(asks);
    pruned
}

/// Annotates an object as awaiting approval, if it is not annotated yet.
pub(super) fn to_ask(observed: &Arc<Observed>) -> Option<Action> {
    (observed.asking != Some(true)).then(|| Action::Ask(Arc::clone(observed)))
}

/// The objects of the highest order: they are deleted before those of lower orders. A namespace that contains
/// some of them comes after these.
struct DeletionBatch<'a>(Vec<&'a Arc<Observed>>);

impl<'a> DeletionBatch<'a> {
    fn of(going: &[&'a Arc<Observed>]) -> Option<Self> {
        let holds = |namespace: &Observed| {
            is_namespace(namespace)
                && going.iter().any(|o| o.object.namespace.as_deref() == Some(&*namespace.object.name))
        };
        let candidates: Vec<_> = going.iter().filter(|o| !holds(o)).copied().collect();
        let highest = candidates.iter().map(|o| o.order).max()?;
        Some(Self(candidates.into_iter().filter(|o| o.order == highest).collect()))
    }

    /// Deletes what is not being deleted yet. A namespace stays while it is used. Returns what lower orders
    /// wait for.
    fn delete(&self, snapshot: &Snapshot, pruned: &mut Pruned) -> Option<Wait> {
        let mut in_use = None;
        for object in self.0.iter().filter(|o| !o.terminating) {
            let name = &*object.object.name;
            let user = if is_namespace(object) { snapshot.namespace_users.get(name) } else { Some(&None) };
            match user {
                Some(None) => pruned.actions.push(Action::Delete(Arc::clone(object))),
                Some(Some(user)) => {
                    pruned.again = Some(LOOK_AGAIN);
                    in_use = Some(Wait::NamespaceInUse { object: object.object.clone(), user: user.clone() });
                }
                None => pruned.needs.namespace_users.push(name.to_owned()),
            }
        }
        let wait = |o: &&Arc<Observed>| Wait::Terminating {
            object: o.object.clone(),
            held_by: if o.terminating { o.held_by.clone() } else { Vec::new() },
        };
        let terminating = self.0.iter().filter(|o| o.terminating).max_by_key(|o| !o.held_by.is_empty());
        terminating.map(wait).or(in_use).or_else(|| self.0.first().map(wait))
    }
}

fn is_namespace(observed: &Observed) -> bool {
    observed.object.gvk.is("v1", "Namespace")
}

/// Removes deletions that wait because objects that may depend on the deleted one cannot be listed. Returns the first.
fn hold_back(actions: &mut Vec<Action>, snapshot: &Snapshot) -> Option<Wait> {
    let unreadable: Vec<_> = snapshot
        .unreadable()
        .map(|(kind, reason)| (kind, reason, kind.highest_order(snapshot.resource())))
        .collect();
    let mut hidden = None;
    actions.retain(|action| {
        let Action::Delete(observed) = action else { return true };
        let above = unreadable.iter().find(|(.., order)| order.is_none_or(|order| order > observed.order));
        if let Some((kind, reason, _)) = above {
            hidden.get_or_insert_with(|| Wait::Unlisted {
                object: observed.object.clone(),
                gvk: kind.gvk.clone(),
                reason: (*reason).to_owned(),
            });
        }
        above.is_none()
    });
    hidden
}

/// Removes actions that the server has refused and whose backoff has not ended.
fn hold_refused(
    actions: &mut Vec<Action>,
    what: Removal,
    state: &ReconcileState,
    now: Duration,
) -> (Vec<Finding>, Option<Duration>) {
    let (mut findings, mut again) = (Vec::new(), None);
    actions.retain(|action| {
        let Some(observed) = action.removed() else { return true };
        let failure = state.removal_failure(action).and_then(|failure| Some((failure, failure.rest(now)?)));
        let Some((failure, rest)) = failure else { return true };
        again = soonest([again, Some(rest)]);
        let (object, error) = (observed.object.clone(), failure.error.clone());
        findings.push(Finding::RemovalRefused { object, what, error });
        false
    });
    (findings, again)
}

/// Kinds that the package no longer uses and that cannot be listed: objects of them may be left to prune.
pub(super) fn kinds_not_listed(snapshot: &Snapshot, origins: &Origins<'_>) -> Vec<Finding> {
    let children = || (0..origins.children()).filter_map(|number| origins.child(number));
    let is_used = |gvk: &Gvk| children().any(|child| child.has_kind(gvk));
    let unused = snapshot.unreadable().filter(|(kind, _)| !is_used(&kind.gvk));
    unused
        .map(|(kind, reason)| Finding::KindNotListed {
            gvk: kind.gvk.clone(),
            reason: reason.to_owned(),
            crd: origins.newest().resource.crd_name().to_owned(),
        })
        .collect()
}

/// Removes what was noted on objects while nothing desired them, unless the policy of the child says the
/// same: otherwise an outdated policy would retain them, or hold their deletion until it is approved.
pub(super) fn outdated_notes(target: &Target, state: &ReconcileState, now: Duration) -> Pruned {
    let mut actions = Vec::new();
    for item in target.items.iter().filter(|item| item.is_current()) {
        let (Ok(desired), Some(observed)) = (&item.desired, &item.observed) else { continue };
        let policy = Stamp::read(&desired.hash).policy;
        let noted = observed.noted;
        if noted.retained && policy != Some(DeletionPolicy::Retain)
            || noted.pending && policy != Some(DeletionPolicy::Ask)
        {
            actions.push(Action::Unmark(Arc::clone(observed)));
        }
    }
    let (findings, again) = hold_refused(&mut actions, Removal::Unmarking, state, now);
    Pruned { actions, findings, again, ..Pruned::default() }
}

/// Decides about an instance that is being deleted, whether or not its package is loaded.
pub(super) fn delete_instance(snapshot: &Snapshot, state: &ReconcileState, now: Duration) -> Decision {
    let Snapshot { instance, observed, .. } = snapshot;
    let undesired = undesired(snapshot, &HashSet::new());
    let mut message = "waits for the garbage collector or the finalizers of others";
    let pruned = if is_orphaning(instance, observed) {
        message = "orphaning its children (--cascade=orphan)";
        orphan_all(snapshot, state, now)
    } else if !has_finalizer(instance) {
        // Without the finalizer, all children carry ownerReferences.
        Pruned::default()
    } else if annotated(instance, names::SKIP_CLEANUP) {
        skip_cleanup(snapshot, &undesired, state)
    } else {
        let mut pruned = prune(snapshot, &undesired, state, now);
        if pruned.findings.is_empty() {
            finalize(&mut pruned, state, now);
        }
        pruned
    };
    let Pruned { actions, findings, again, needs } = pruned;
    let is_held = |o: &&Arc<Observed>| o.terminating && !o.held_by.is_empty();
    let is_reported = findings.iter().any(Finding::holds_deletion)
        || (!findings.is_empty() && undesired.remove.iter().any(is_held));
    let verdict = Verdict::Deleting {
        message: findings.first().map_or_else(|| message.to_owned(), ToString::to_string),
    };
    let status = is_reported.then(|| Status::deleting(instance, &verdict).pending(&pending(&findings)));
    let line = |o: &Arc<Observed>| {
        let name = names::item_name(&o.child, o.key.as_deref());
        (name, Some(o.object.clone()), Err("is being deleted".to_owned()))
    };
    let children = Some(observed.iter().map(line).collect());
    Decision { actions, status, again, children, needs, ..Decision::idle(verdict) }
}

/// What waits for the approval of a person, a sentence each.
pub(super) fn pending(findings: &[Finding]) -> Vec<String> {
    let pending = findings.iter().filter(|finding| matches!(finding, Finding::AwaitsApproval { .. }));
    pending.map(ToString::to_string).collect()
}

/// Removes the finalizer: nothing is left that it guards.
fn finalize(pruned: &mut Pruned, state: &ReconcileState, now: Duration) {
    let failure = state.finalizer_failure().and_then(|failure| Some((failure, failure.rest(now)?)));
    if let Some((failure, rest)) = failure {
        pruned.again = Some(rest);
        pruned.findings.push(Finding::FinalizerStays { error: failure.error.clone() });
    } else if pruned.actions.is_empty() {
        pruned.actions.push(Action::RemoveFinalizer);
    }
}

/// Orphans all children: nothing is deleted.
fn orphan_all(snapshot: &Snapshot, state: &ReconcileState, now: Duration) -> Pruned {
    let mut pruned = Pruned::default();
    let of_ours = snapshot.observed.iter().filter(|o| o.is_made_by_us());
    let mut actions: Vec<Action> = of_ours.cloned().map(Action::Orphan).collect();
    if actions.is_empty() {
        pruned.actions.extend(has_finalizer(&snapshot.instance).then_some(Action::RemoveFinalizer));
        return pruned;
    }
    (pruned.findings, pruned.again) = hold_refused(&mut actions, Removal::Orphaning, state, now);
    if !annotated(&snapshot.instance, names::ORPHANED) {
        pruned.actions.push(Action::MarkOrphaned);
    }
    pruned.actions.extend(actions);
    pruned
}

/// A user does not want to wait: everything that may be deleted is deleted at once, in no order, and the finalizer is
/// removed. Objects that await approval and retained objects stay.
fn skip_cleanup(snapshot: &Snapshot, undesired: &Undesired<'_>, state: &ReconcileState) -> Pruned {
    let mut pruned = Pruned::default();
    let may_go = |o: &&&Arc<Observed>| !o.terminating && !snapshot.awaits_approval(o);
    let action = |observed: &&Arc<Observed>| {
        let observed = Arc::clone(observed);
        if snapshot.is_retained(&observed) { Action::Retain(observed) } else { Action::Delete(observed) }
    };
    let removals = undesired.remove.iter().filter(may_go).map(action);
    pruned.actions.extend(removals.filter(|action| state.removal_failure(action).is_none()));
    if pruned.actions.is_empty() {
        pruned.actions.push(Action::ForceRemoveFinalizer);
    }
    pruned
}

/// Whether the instance was deleted with `--cascade=orphan`. The garbage collector removes the mark as soon
/// as it has removed the ownerReferences of the children, so children without theirs show it, too.
fn is_orphaning(instance: &Value, observed: &[Arc<Observed>]) -> bool {
    if has(instance, names::ORPHAN_FINALIZER)
        || instance["metadata"]["annotations"][names::ORPHANED].is_string()
    {
        return true;
    }
    !has(instance, "foregroundDeletion")
        && observed.iter().any(|o| o.is_orphaned())
        && observed.iter().filter(|o| o.is_made_by_us()).all(|o| !o.owner_reference)
}

/// Whether our finalizer is on the object.
pub(super) fn has_finalizer(object: &Value) -> bool {
    has(object, names::FINALIZER)
}

fn has(object: &Value, finalizer: &str) -> bool {
    object["metadata"]["finalizers"].as_array().is_some_and(|all| all.iter().any(|f| f == finalizer))
}

fn annotated(object: &Value, annotation: &str) -> bool {
    object["metadata"]["annotations"][annotation] == "true"
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, HashMap};

    use serde_json::json;

    use super::*;
    use crate::children::model::{KindInfo, Listing, RawObject};
    use crate::template::Totals;

    /// A child of the instance at that depth in the graph.
    fn child(kind: &str, name: &str, order: u32) -> Observed {
        let metadata = serde_json::from_value(json!({
            "name": name, "namespace": "n", "uid": name, "resourceVersion": "7",
            "labels": {names::OPERATOR: "o", names::CHILD: name, names::INSTANCE_UID: "i"},
            "annotations": {names::INTENT: format!("h.{order}")},
            "managedFields": [{"manager": "operetta/o", "operation": "Apply", "fieldsV1": {"f:data": {}}}],
        }));
        let gvk = Gvk::new("v1", kind);
        let metadata = &metadata.unwrap();
        let seen = RawObject { gvk: &gvk, metadata, body: None, reports: false };
        seen.observe(|_, _| Arc::from([])).unwrap()
    }

    /// An instance that is being deleted, and whose package is not loaded.
    fn deleting(children: Vec<Observed>) -> Snapshot {
        Snapshot {
            owner: crate::children::KindOwner::first("o"),
            instance: json!({"metadata": {"uid": "i", "deletionTimestamp": "t", "finalizers": [names::FINALIZER]}}),
            previous: None,
            package: Err("it is not loaded".into()),
            defaults: Arc::default(),
            operator_namespace: String::new(),
            closed: Arc::default(),
            observed: children.into_iter().map(Arc::new).collect(),
            previous_children: Vec::new(),
            kinds: Vec::new(),
            refs: BTreeMap::new(),
            siblings: None,
            polls: HashMap::new(),
            namespace_users: BTreeMap::new(),
            plans: None,
            accepted_key: super::super::AcceptedKey::Unread,
            deletions: None,
            apis: None,
            limits: Totals::NONE,
        }
    }

    fn decide(snapshot: &Snapshot) -> (Vec<String>, String) {
        let decision = delete_instance(snapshot, &ReconcileState::default(), Duration::ZERO);
        let told = |action: &Action| match action {
            Action::Delete(o) => format!("delete {}", o.object.name),
            Action::Retain(o) => format!("retain {}", o.object.name),
            Action::Ask(o) => format!("ask {}", o.object.name),
            other => format!("{other:?}"),
        };
        let Verdict::Deleting { message } = decision.verdict else { panic!("{:?}", decision.verdict) };
        (decision.actions.iter().map(told).collect(), message)
    }

    #[test]
    fn deletion_without_a_package_goes_in_reverse_order() {
        let (low, high) = (child("ConfigMap", "low", 0), child("ConfigMap", "high", 1));
        let kept = Observed { retained: Some(false), ..child("ConfigMap", "kept", 3) };
        let asked = Observed { asking: Some(false), ..child("ConfigMap", "asked", 3) };
        let (actions, message) = decide(&deleting(vec![low.clone(), high, kept, asked]));
        assert_eq!(actions, ["retain kept", "ask asked", "delete high"]);
        assert_eq!(message, "ConfigMap n/high is being deleted");
        let terminating = Observed { terminating: true, held_by: vec!["x/y".into()], ..low.clone() };
        let (actions, message) = decide(&deleting(vec![terminating]));
        assert!(actions.is_empty() && message.ends_with("held by finalizer x/y"), "{message}");
        assert_eq!(decide(&deleting(Vec::new())).0, ["RemoveFinalizer"]);
        // A kind that cannot be listed may have objects of any order.
        let mut snapshot = deleting(vec![low]);
        let kind = KindInfo::listed(Gvk::new("v1", "Pod"), true);
        snapshot.kinds.push(KindInfo { listing: Listing::Unreadable("forbidden".into()), ..kind });
        let (actions, message) = decide(&snapshot);
        assert!(actions.is_empty() && message.contains("each Pod of v1"), "{actions:?} {message}");
    }

    #[test]
    fn namespace_is_deleted_only_when_known_to_be_unused() {
        let mut snapshot = deleting(vec![child("Namespace", "space", 0)]);
        let decision = delete_instance(&snapshot, &ReconcileState::default(), Duration::ZERO);
        assert!(decision.actions.is_empty() && decision.needs.namespace_users == ["space"], "{decision:?}");
        snapshot.namespace_users.insert("space".into(), Some("things/space/b".into()));
        let (actions, message) = decide(&snapshot);
        assert!(actions.is_empty() && message.contains("things/space/b"), "{message}");
        snapshot.namespace_users.insert("space".into(), None);
        assert_eq!(decide(&snapshot).0, ["delete space"]);
    }
}
