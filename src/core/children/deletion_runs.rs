//! The deletion of an `Ask` child is a run: a `PlanRun` of the built-in plan [`DELETE_CHILD`], bound to the uid of the
//! object. It waits until a user with the verb `approve` on the instance approves, which the API server checks
//! (`plan/crds/policy.rs`). Then exactly that object is deleted.
//!
//! Once the object is gone, the instance owns the run, and the garbage collector deletes it with the
//! instance. Until then the annotation on the child, which says that it waits for approval, keeps the run
//! from being forgotten.
//!
//! These runs need no package: they exist for kinds without plans, and for packages that are not loaded.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use super::model::{
    Action, Decision, DeletionRuns, Input, KindInfo, Listing, Observed, ReconcileState, Snapshot, Verdict,
    once,
};
use super::names;
use crate::api::{Gvk, ObjectRef};
use crate::crd::API_VERSION;
use crate::package::DeletionPolicy;
use crate::plan::crds::PLAN_RUN;
use crate::plan::{
    self, Approval, CAUSE, Cause, DELETE_CHILD, Guard, PRUNABLE, Phase, PlanRun, RunAction, RunObject,
    RunStatus, StepPhase, StepState, note_answers, reference,
};

/// The step that waits for approval.
const APPROVE: &str = "approve";
/// The step that deletes the object.
const DELETE: &str = "delete";

/// The name of the run that deletes an object.
fn run_name(instance: &Value, object_uid: &str) -> String {
    let instance = instance["metadata"]["name"].as_str().unwrap_or_default();
    format!("{}-delete-{}", names::label_value(instance), names::short_hash(object_uid, 5))
}

/// The namespace of the runs: that of the instance, or the manager's.
fn namespace(snapshot: &Snapshot) -> &str {
    snapshot.instance["metadata"]["namespace"].as_str().unwrap_or(&snapshot.operator_namespace)
}

/// The parameters of the run that deletes an object. They name the object; child and key are for people.
fn params(observed: &Observed) -> Value {
    let ObjectRef { gvk, namespace, name } = &observed.object;
    let all = [
        ("group", Some(gvk.group()).filter(|group| !group.is_empty())),
        ("kind", Some(&*gvk.kind)),
        ("namespace", namespace.as_deref()),
        ("name", Some(&**name)),
        ("uid", Some(&*observed.uid)),
        ("child", Some(&*observed.child)),
        ("key", observed.key.as_deref()),
    ];
    let named = all.into_iter().filter_map(|(field, value)| Some((field.to_owned(), value?.into())));
    Value::Object(named.collect::<Map<_, _>>())
}

/// Whether a run is about that object.
fn is_about(run: &PlanRun, observed: &Observed) -> bool {
    let (given, own) = (&run.spec.params, params(observed));
    ["group", "kind", "namespace", "name", "uid"].iter().all(|field| given[field] == own[field])
}

fn is_deleting(run: &PlanRun) -> bool {
    run.phase() == Phase::Running && run.status.as_ref().is_some_and(|status| status.step(DELETE).is_some())
}

/// The first answer that counts: it was recorded while the API server checked who gives it, and is no approval by a
/// `ServiceAccount`.
fn answer<'r>(run: &'r PlanRun, status: &RunStatus) -> Option<&'r Approval> {
    let mut counted = status.counted(run).map(|(_, answer)| answer);
    counted.find(|answer| {
        answer.step == APPROVE
            && (answer.verdict == plan::ApprovalDecision::Reject || !answer.is_by_account())
    })
}

impl Snapshot {
    fn deletion_run(&self, observed: &Observed) -> Option<&PlanRun> {
        let deletions = self.deletions.as_ref().filter(|deletions| deletions.unknown.is_none())?;
        // Parameters may be changed while no policy keeps them; the name stays.
        let name = run_name(&self.instance, &observed.uid);
        let is_it = |run: &&PlanRun| {
            run.spec.of.resource == deletions.resource && is_about(run, observed) && run.name == name
        };
        deletions.runs.iter().find(is_it)
    }

    /// Whether an `Ask` child waits for the approval of its deletion. It no longer waits once its run says that it is
    /// being deleted. The policy of the package counts as well: an editor of the object can remove its annotation.
    pub(super) fn awaits_approval(&self, observed: &Observed) -> bool {
        let is_approved = |run: &PlanRun| {
            !run.deleting
                && is_deleting(run)
                && run
                    .status
                    .as_ref()
                    .and_then(|status| answer(run, status))
                    .is_some_and(|answer| answer.verdict == plan::ApprovalDecision::Approve)
        };
        let child = self.child_of(observed);
        let asks = observed.asking.is_some()
            || child.is_some_and(|child| child.deletion_policy == DeletionPolicy::Ask);
        asks && !observed.terminating && !self.deletion_run(observed).is_some_and(is_approved)
    }

    /// What a person does so that an `Ask` child is deleted.
    pub(super) fn how_to_approve(&self, observed: &Observed, state: &ReconcileState) -> String {
        let namespace = namespace(self);
        if state.is_namespace_terminating() {
            return format!(
                "the deletion cannot be approved: the namespace {namespace} is being deleted; the annotation {}=true releases \
                 the instance without it",
                names::SKIP_CLEANUP
            );
        }
        if let Some(reason) = self.deletions.as_ref().and_then(|deletions| deletions.unknown.as_ref()) {
            return format!("whether it is approved is unknown: {reason}");
        }
        match self.deletion_run(observed).filter(|run| run.is_final()) {
            None => {
                let name = run_name(&self.instance, &observed.uid);
                format!("operetta plan approve {name} -n {namespace}")
            }
            Some(run) => {
                let message = run.status.as_ref().map(|status| status.message.as_str()).unwrap_or_default();
                format!("{message}; to ask again: kubectl delete planrun {} -n {namespace}", run.name)
            }
        }
    }
}

/// Adds to a decision what is to be done for the runs that delete children: they are created, moved, ended and pruned.
pub(super) fn arrange(snapshot: &Snapshot, state: &ReconcileState, decision: &mut Decision) {
    let Some(deletions) = &snapshot.deletions else { return };
    if deletions.is_listing && decision.actions.iter().any(Action::removes_finalizer) {
        decision.actions.retain(|action| !action.removes_finalizer());
        decision.input = Input::Loading;
    }
    if deletions.unknown.is_some() || matches!(decision.verdict, Verdict::Paused { .. }) {
        return;
    }
    let (mut actions, mut asked) = (Vec::new(), HashSet::new());
    for observed in once(decision.needs.approvals.iter()) {
        let name = run_name(&snapshot.instance, &observed.uid);
        match (snapshot.deletion_run(observed), deletions.runs.iter().find(|run| run.name == name)) {
            (Some(run), _) => {
                actions.extend(deletions.moved(run).map(|status| RunAction::store(run, &status, Vec::new())));
            }
            // The run of this name is about another object: another client has changed it.
            (None, Some(forged)) => actions.push(delete(forged)),
            (None, None) if state.is_namespace_terminating() => {}
            (None, None) => {
                let run = deletions.new_run(snapshot, observed);
                actions.push(RunAction::Create(RunObject::PlanRun, Box::new(run)));
            }
        }
        asked.insert(name);
    }
    for run in deletions.runs.iter().filter(|run| !run.deleting && !asked.contains(&run.name)) {
        let mut live = snapshot.observed.iter().chain(&snapshot.previous_children);
        match live.find(|observed| is_about(run, observed)) {
            // The approval was for an object that nothing desired. Now it is desired again.
            Some(observed) if is_desired(snapshot, decision, observed) => {
                actions.push(RunAction::If { guard: Guard::IsCurrent, then: Box::new(delete(run)) });
            }
            None if is_listed(snapshot, run) => match deletions.ended(run) {
                Some(status) => {
                    actions.push(if_gone(snapshot, run, RunAction::store(run, &status, Vec::new())));
                }
                None => actions.extend(owned(snapshot, run)),
            },
            Some(_) | None => {}
        }
    }
    let is = |wanted: fn(&Action) -> bool| decision.actions.iter().any(wanted);
    let left = || deletions.runs.iter().filter(|run| !run.deleting);
    if is(|action| matches!(action, Action::RemoveFinalizer)) && snapshot.is_deleting() {
        // The runs are deleted last, just before the finalizer is removed.
        if actions.is_empty() {
            actions.extend(left().map(|run| last(snapshot, run)));
        }
        if !actions.is_empty() {
            decision.actions.retain(|action| !matches!(action, Action::RemoveFinalizer));
        }
    } else if is(|action| matches!(action, Action::ForceRemoveFinalizer)) {
        // Runs that still wait are about objects that stay.
        actions.extend(left().filter(|run| run.is_final()).map(delete));
    } else if actions.is_empty() {
        actions.extend(plan::prunable(&deletions.runs, deletions.now).into_iter().map(delete));
    }
    decision.actions.extend(actions.into_iter().map(|action| Action::Run(Box::new(action))));
}

/// Whether a decision has found out that an object is desired. A decision that does not ask for the deletion
/// does not show this: it may have come only to the applies before it, or to no target at all.
fn is_desired(snapshot: &Snapshot, decision: &Decision, observed: &Observed) -> bool {
    !(snapshot.is_deleting() || decision.input == Input::Loading || observed.terminating)
        && decision.children.iter().flatten().any(|(_, object, _)| object.as_ref() == Some(&observed.object))
}

/// Makes the instance the owner of a run that has ended and whose object is gone: the garbage collector deletes it with the
/// instance, also if no manager looks for such runs by then. A run that is still needed has no owner: a foreground deletion
/// of the instance would delete it before the object.
fn owned(snapshot: &Snapshot, run: &PlanRun) -> Option<RunAction> {
    if snapshot.is_deleting() || !run.owners.is_empty() {
        return None;
    }
    let (instance, meta) = (&snapshot.instance, &snapshot.instance["metadata"]);
    let owner = json!({
        "apiVersion": instance["apiVersion"], "kind": instance["kind"], "name": meta["name"], "uid": meta["uid"],
    });
    let patch = json!({"metadata": {"ownerReferences": [owner]}});
    Some(RunAction::Change(RunObject::PlanRun, reference(run), Box::new(patch)))
}

/// Whether a run is about an object of that kind.
fn is_of_kind(run: &PlanRun, gvk: &Gvk) -> bool {
    let text = |field: &str| run.spec.params[field].as_str().unwrap_or_default();
    *gvk.kind == *text("kind") && gvk.group() == text("group")
}

/// Makes an action depend on a live read that shows that the object of the run is gone. Watches may be
/// behind, and a run that has ended does not come back with its approval.
fn if_gone(snapshot: &Snapshot, run: &PlanRun, then: RunAction) -> RunAction {
    let Some(kind) = snapshot.kinds.iter().find(|kind| is_of_kind(run, &kind.gvk)) else { return then };
    let text = |field: &str| run.spec.params[field].as_str();
    let object = ObjectRef {
        gvk: kind.gvk.clone(),
        namespace: text("namespace").map(Into::into),
        name: text("name").unwrap_or_default().into(),
    };
    let uid = text("uid").unwrap_or_default().to_owned();
    RunAction::If { guard: Guard::IsGone(object, uid), then: Box::new(then) }
}

/// Deletes a run at the end of its instance. A run that has not succeeded may be a person's rejection, so it
/// is deleted only once its object is gone.
fn last(snapshot: &Snapshot, run: &PlanRun) -> RunAction {
    if run.phase() == Phase::Succeeded { delete(run) } else { if_gone(snapshot, run, delete(run)) }
}

/// Whether the objects of the kind that a run is about are known.
fn is_listed(snapshot: &Snapshot, run: &PlanRun) -> bool {
    let mut kinds = snapshot.kinds.iter().filter(|kind| is_of_kind(run, &kind.gvk)).peekable();
    let is_listed = |kind: &KindInfo| matches!(kind.listing, Listing::Listed | Listing::OtherVersion(_));
    kinds.peek().is_none() || kinds.any(is_listed)
}

fn delete(run: &PlanRun) -> RunAction {
    RunAction::Delete(RunObject::PlanRun, reference(run))
}

impl DeletionRuns {
    fn new_run(&self, snapshot: &Snapshot, observed: &Observed) -> Value {
        let (instance, home) = (&snapshot.instance, namespace(snapshot));
        let meta = &instance["metadata"];
        let (kind, name) = (&instance["kind"], meta["name"].as_str().unwrap_or_default());
        let gvk = Gvk::of(instance);
        let group = gvk.as_ref().map(Gvk::group).unwrap_or_default();
        json!({
            "apiVersion": API_VERSION,
            "kind": PLAN_RUN.kind,
            "metadata": {
                "name": run_name(instance, &observed.uid),
                "namespace": home,
                "labels": {
                    names::MANAGED_BY: "operetta",
                    names::KIND: names::kind_label(kind.as_str().unwrap_or_default(), group),
                    names::INSTANCE: names::label_value(name),
                },
                "annotations": {CAUSE: Cause::Deletion.as_str(), PRUNABLE: "true"},
            },
            "spec": {
                "of": {"apiVersion": instance["apiVersion"], "kind": kind, "resource": self.resource, "name": name},
                "plan": DELETE_CHILD,
                "params": params(observed),
            },
        })
    }

    /// The next state of a run whose object waits for approval; `None` if the state stays as it is.
    fn moved(&self, run: &PlanRun) -> Option<RunStatus> {
        if run.is_final() || run.deleting {
            return None;
        }
        let Some(status) = &run.status else {
            if self.protection.is_awaited() && !run.spec.approvals.is_empty() {
                return None;
            }
            let mut started = self.started(run);
            note_answers(run, &mut started, &self.protection, self.now);
            return Some(started);
        };
        let noted = run.noted(&self.protection, self.now);
        let status = noted.as_ref().unwrap_or(status);
        let answer = answer(run, status);
        if let Some(answer) = answer.filter(|answer| answer.verdict == plan::ApprovalDecision::Reject) {
            let message = format!("{} has rejected the deletion", answer.by);
            return Some(self.end(status, Phase::Failed, "Rejected", message));
        }
        if run.spec.cancel {
            return Some(self.end(
                status,
                Phase::Cancelled,
                "Cancelled",
                "a user has cancelled it".to_owned(),
            ));
        }
        let Some(answer) = answer.filter(|_| status.step(DELETE).is_none()) else {
            return noted;
        };
        let mut status = status.clone();
        for step in &mut status.steps {
            step.phase = StepPhase::Succeeded;
            step.finished_at = Some(self.now.to_string());
        }
        let message = format!("approved by {}", answer.by);
        status.steps.push(StepState { message, ..self.step(DELETE) });
        Some(status)
    }

    /// The last state of a run whose object is gone; `None` if it has ended.
    fn ended(&self, run: &PlanRun) -> Option<RunStatus> {
        if run.is_final() {
            return None;
        }
        let status = run.status.clone().unwrap_or_else(|| self.started(run));
        Some(if is_deleting(run) {
            self.end(&status, Phase::Succeeded, "", String::new())
        } else {
            let message = "the object is gone, or is no child of the instance any more".to_owned();
            self.end(&status, Phase::Superseded, "ObjectGone", message)
        })
    }

    fn started(&self, run: &PlanRun) -> RunStatus {
        let text = |field: &str| run.spec.params[field].as_str();
        let object = [text("namespace"), text("name")].into_iter().flatten().collect::<Vec<_>>().join("/");
        let item = names::item_name(text("child").unwrap_or_default(), text("key"));
        let message = format!("Delete {} {object} ({item})?", text("kind").unwrap_or_default());
        RunStatus {
            phase: Phase::Running,
            cause: Cause::Deletion,
            id: run.uid.clone(),
            plans: vec![DELETE_CHILD.to_owned()],
            started_at: Some(self.now.to_string()),
            steps: vec![StepState { message, asked: Some(0), ..self.step(APPROVE) }],
            ..RunStatus::default()
        }
    }

    fn step(&self, path: &str) -> StepState {
        StepState {
            path: path.to_owned(),
            phase: StepPhase::Running,
            started_at: Some(self.now.to_string()),
            ..StepState::default()
        }
    }

    fn end(&self, status: &RunStatus, phase: Phase, reason: &str, message: String) -> RunStatus {
        let mut status = status.clone();
        let now = Some(self.now.to_string());
        for step in status.steps.iter_mut().filter(|step| !step.phase.is_final()) {
            let has_succeeded = phase == Phase::Succeeded;
            step.phase = if has_succeeded { StepPhase::Succeeded } else { StepPhase::Failed };
            step.finished_at.clone_from(&now);
            if !has_succeeded {
                (step.reason, step.message) = (reason.to_owned(), message.clone());
            }
        }
        RunStatus { phase, reason: reason.to_owned(), message, finished_at: now, ..status }
    }
}
