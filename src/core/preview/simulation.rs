//! The manager's decisions about one instance, carried out on its snapshot.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use operetta_kube_model::patch::merge;
use serde_json::Value;

use super::apply::{completed, make};
use super::diff::differences;
use super::report::{Change, InstanceReport, Refused, Write};
use super::runs::{self, Effect};
use crate::api::{CallError, ObjectRef};
use crate::children::adoption::Adopted;
use crate::children::plans::Revision;
use crate::children::{
    Action, ActionOutcome, Applied, Apply, Check, Decision, DryRun, DryRuns, Expect, LookupResult, Needs,
    Observed, Paths, Poll, PollResult, ReconcileState, ResourceSelector, Severity, Snapshot, Verdict, Why,
    decide, fields, immutable, names, patches,
};
use crate::package::DeletionPolicy;

/// All decisions are made at this time: backoffs never end, so that what is refused stays refused.
const NOW: Duration = Duration::ZERO;
/// How many decisions there are at most, beside two for each child.
const DECISIONS: usize = 64;

/// A live child with all of its content.
#[derive(Debug, Clone)]
pub struct LiveChild {
    /// What decisions need to know of the child.
    pub observed: Arc<Observed>,
    /// The whole object as JSON, managedFields included: parsed it takes many times the memory.
    pub text: Arc<str>,
}

/// A dry run to send.
#[derive(Debug, Clone)]
pub struct Request {
    /// The change.
    pub check: Check,
    /// The whole body of the apply.
    pub body: Value,
    /// Whether one answer counts for all writes of this shape that pass. That an object exists already is no question of
    /// the shape.
    pub is_shared: bool,
}

/// The answer to a [`Request`].
#[derive(Debug, Clone)]
pub enum Response {
    /// The result of the dry run.
    DryRun(DryRun),
    /// An object of that name exists and is not adopted, for this reason.
    Occupied(CallError),
    /// This object exists and would be adopted.
    Adopt(Arc<Value>),
}

/// An object as the API server would store it: with defaults, and values in their canonical form. `None` if that is not known.
pub type Storing = Box<dyn Fn(&Value) -> Option<Value> + Send + Sync>;

/// What comes next.
#[derive(Debug)]
pub enum SimulationState {
    /// Answer each of these with [`Simulation::answer`].
    DryRun(Vec<Request>),
    /// Tell the results of these reads, by `learn_...`.
    Read(Needs),
    /// Nothing is left to do.
    Done(Box<InstanceReport>),
}

/// The simulation of one instance.
pub struct Simulation {
    snapshot: Snapshot,
    state: ReconcileState,
    /// The field manager of the package.
    manager: String,
    /// What expressions read of a live child, by its id.
    reads: Arc<HashMap<String, Paths>>,
    live: HashMap<ObjectRef, Arc<str>>,
    /// The objects that were written, as they are now.
    written: HashMap<ObjectRef, Value>,
    /// What the diff of recreated objects compares with the object before: with the server's defaults.
    recreations: HashMap<ObjectRef, Value>,
    /// What a server makes of an object that is written.
    storing: Option<Storing>,
    /// The objects that were written, as they were before.
    before: HashMap<ObjectRef, Option<Value>>,
    /// The answers, by item and hash of the desired object.
    answers: HashMap<(String, String), Response>,
    /// The shapes that would be recreated, and why.
    recreated: HashMap<u64, CallError>,
    /// Items whose dry run failed only because what they depend on does not exist yet.
    early: HashSet<String>,
    changes: Vec<Change>,
    report: InstanceReport,
    decisions: usize,
    number: u64,
}

impl Simulation {
    /// Starts the simulation of an instance with its live children. `reads`: what expressions read of each
    /// child, by its id.
    pub fn new(
        mut snapshot: Snapshot,
        children: Vec<LiveChild>,
        reads: &Arc<HashMap<String, Paths>>,
        manager: String,
    ) -> Self {
        let meta = &snapshot.instance["metadata"];
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let mut report = InstanceReport {
            kind: text(&snapshot.instance["kind"]).unwrap_or_default(),
            namespace: text(&meta["namespace"]),
            name: text(&meta["name"]).unwrap_or_default(),
            revision: text(&snapshot.instance["status"]["revision"]),
            ..InstanceReport::default()
        };
        report.notes.extend(pending_edit(&snapshot));
        if let Some(plans) = &mut snapshot.plans {
            let uid = meta["uid"].as_str().unwrap_or_default();
            plans.origins.retain(|object| runs::is_of(object, uid));
            plans.jobs.retain(|object| runs::is_of(object, uid));
            report.waits.extend(runs::end_active(plans));
        }
        let live = children.into_iter().map(|child| (child.observed.object.clone(), child.text)).collect();
        Self {
            snapshot,
            state: ReconcileState::default(),
            manager,
            reads: Arc::clone(reads),
            live,
            written: HashMap::new(),
            recreations: HashMap::new(),
            storing: None,
            before: HashMap::new(),
            answers: HashMap::new(),
            recreated: HashMap::new(),
            early: HashSet::new(),
            changes: Vec::new(),
            report,
            decisions: 0,
            number: 0,
        }
    }

    /// Compares objects as a server stores them, and not as they are applied.
    #[must_use]
    pub fn storing(self, storing: Storing) -> Self {
        Self { storing: Some(storing), ..self }
    }

    /// Goes on until something must be asked, or nothing is left to do.
    pub fn advance(&mut self) -> SimulationState {
        if self.snapshot.is_deleting() {
            self.report.skipped = Some("it is being deleted".to_owned());
            return SimulationState::Done(Box::new(std::mem::take(&mut self.report)));
        }
        loop {
            let mut decision = decide(&self.snapshot, &self.state, NOW);
            let mut needs = decision.needs.unread(&self.snapshot);
            let polls = std::mem::take(&mut needs.polls);
            if !needs.is_empty() {
                return SimulationState::Read(needs);
            }
            if self.add_polls(polls) {
                continue;
            }
            let requests = self.requests(&decision);
            if !requests.is_empty() {
                return SimulationState::DryRun(requests);
            }
            self.decisions += 1;
            let checks = std::mem::take(&mut decision.checks);
            let is_refused = self.record_dry_runs(&checks);
            let actions = self.permitted(&checks, std::mem::take(&mut decision.actions));
            let mut has_moved = is_refused;
            for action in actions {
                has_moved |= self.carry_out(action);
            }
            if !has_moved {
                return SimulationState::Done(Box::new(self.finish(&decision)));
            }
            if self.decisions > DECISIONS + 2 * decision.children.as_ref().map_or(0, Vec::len) {
                self.report.refused.push(Refused {
                    item: None,
                    object: None,
                    reason: "Oscillating".to_owned(),
                    message: format!("after {} decisions there is still something to do", self.decisions),
                });
                return SimulationState::Done(Box::new(self.finish(&decision)));
            }
        }
    }

    /// Takes the answer to a dry run.
    pub fn answer(&mut self, check: &Check, answer: Response) {
        self.answers.insert((check.item.clone(), check.desired.hash.clone()), answer);
    }

    /// Takes what is known of the objects that a ref names.
    pub fn learn_refs(&mut self, selector: ResourceSelector, found: LookupResult) {
        self.snapshot.refs.insert(selector, found);
    }

    /// Takes an earlier revision of the package.
    pub fn learn_revision(&mut self, revision: &str, found: Revision) {
        if let Some(plans) = &mut self.snapshot.plans {
            plans.revisions.insert(revision.into(), found);
        }
    }

    /// Takes who uses a namespace, beside this instance.
    pub fn learn_namespace(&mut self, namespace: String, user: Option<String>) {
        self.snapshot.namespace_users.insert(namespace, user);
    }

    /// Answers observations with a failure, because they are requests to others, which a preview does not
    /// send. Returns whether there were any new ones.
    fn add_polls(&mut self, polls: Vec<Arc<Poll>>) -> bool {
        let failed = || PollResult::Failed("a preview makes no observations".to_owned());
        let known = self.snapshot.polls.len();
        self.snapshot.polls.extend(polls.into_iter().map(|poll| (poll, failed())));
        self.snapshot.polls.len() > known
    }

    /// The dry runs whose answers are missing: of each shape that changes, and of each object that is created.
    fn requests(&self, decision: &Decision) -> Vec<Request> {
        let is_open = |check: &Check| {
            !self.early.contains(&check.item)
                && !self.answers.contains_key(&(check.item.clone(), check.desired.hash.clone()))
        };
        let mut requests = Vec::new();
        for check in decision.checks.iter().filter(|check| is_open(check)) {
            requests.push(self.request(check.clone()));
        }
        for action in &decision.actions {
            let Action::Apply(apply) = action else { continue };
            let is_asked = |request: &Request| request.check.item == apply.item;
            if apply.why != Why::Create || requests.iter().any(is_asked) {
                continue;
            }
            let shape = apply.shape.unwrap_or_default();
            let like = decision.checks.iter().find(|check| check.shape == shape);
            let check = Check {
                item: apply.item.clone(),
                desired: apply.desired.clone(),
                expect: apply.expect.clone(),
                policy: apply.policy,
                shape,
                depends_on: like.map(|check| check.depends_on.clone()).unwrap_or_default(),
            };
            if is_open(&check) {
                requests.push(self.request(check));
            }
        }
        requests
    }

    fn request(&self, check: Check) -> Request {
        let live = self.content(&check.desired.object);
        let body = completed(&check.desired, check.expect.body(&check.desired), live.as_ref());
        Request { is_shared: check.expect != Expect::Absent, check, body }
    }

    /// An object as it is now.
    fn content(&self, object: &ObjectRef) -> Option<Value> {
        if let Some(written) = self.written.get(object) {
            return Some(written.clone());
        }
        self.live.get(object).and_then(|text| serde_json::from_str(text).ok())
    }

    fn answer_to(&self, item: &str, hash: &str) -> Option<&Response> {
        self.answers.get(&(item.to_owned(), hash.to_owned()))
    }

    /// Takes the results of dry runs into the state. Returns whether a change was refused.
    fn record_dry_runs(&mut self, checks: &[Check]) -> bool {
        let mut is_refused = false;
        for check in checks {
            let answer = self.answer_to(&check.item, &check.desired.hash).cloned();
            match answer {
                Some(Response::DryRun(DryRun::Recreate(refusal))) => {
                    self.recreated.insert(check.shape, refusal);
                }
                Some(Response::DryRun(DryRun::Refused(error)))
                    if !check.depends_on.is_empty() && matches!(error.code, 403 | 404) =>
                {
                    self.early.insert(check.item.clone());
                }
                Some(Response::DryRun(DryRun::Refused(error))) => {
                    self.state.record(&ActionOutcome::DryRunRefused(Box::new(check.clone()), error), NOW);
                    is_refused = true;
                }
                _ => {}
            }
        }
        is_refused
    }

    /// The actions that are carried out now, as the manager does.
    fn permitted(&self, checks: &[Check], actions: Vec<Action>) -> Vec<Action> {
        let mut runs = DryRuns::default();
        for check in checks {
            let answer = self.answer_to(&check.item, &check.desired.hash);
            if let Some(Response::DryRun(result @ DryRun::Refused(_))) = answer {
                // What it depends on may be written by now, though not in the cluster.
                runs.add(check, result.clone());
            }
        }
        runs.permitted(actions)
    }

    /// Carries out an action on the snapshot. Returns whether the next decision may differ.
    fn carry_out(&mut self, action: Action) -> bool {
        self.number += 1;
        match action {
            Action::Apply(apply) => self.apply(*apply),
            Action::Delete(observed) | Action::ForceDelete(observed) => {
                self.note_removal(&observed, Write::Pruned);
                self.forget(&observed);
                true
            }
            Action::Orphan(observed) => {
                self.note_removal(&observed, Write::Orphaned);
                self.forget(&observed);
                true
            }
            Action::Retain(observed) => {
                self.note_removal(&observed, Write::Retained);
                self.change(&observed, |observed| {
                    observed.retained = Some(true);
                    observed.noted.retained = true;
                    observed.owner_reference = false;
                });
                true
            }
            Action::Ask(observed) => {
                self.note_removal(&observed, Write::AwaitsApproval);
                self.change(&observed, |observed| {
                    observed.asking = Some(true);
                    observed.noted.pending = true;
                });
                true
            }
            Action::Unmark(observed) => {
                self.note_removal(&observed, Write::Unmarked);
                self.change(&observed, |observed| {
                    observed.retained = observed.retained.filter(|_| !observed.noted.retained);
                    observed.asking = observed.asking.filter(|_| !observed.noted.pending);
                    observed.noted = crate::children::Noted::default();
                });
                true
            }
            Action::Run(action) => match runs::carry_out(&mut self.snapshot, &action, self.number) {
                Effect::Ignored => false,
                Effect::Changed => true,
                Effect::Started(plan) => {
                    self.report.plans.push(plan);
                    true
                }
            },
            action @ (Action::AddFinalizer
            | Action::RemoveFinalizer
            | Action::ForceRemoveFinalizer
            | Action::MarkOrphaned
            | Action::Record(_)
            | Action::RecordJobs(_)) => self.patch_instance(&action),
        }
    }

    fn patch_instance(&mut self, action: &Action) -> bool {
        let Some(patch) = patches::of_instance(action, &self.snapshot.instance) else { return false };
        let before = self.snapshot.instance.clone();
        merge(&mut self.snapshot.instance, &patch);
        before != self.snapshot.instance
    }

    fn apply(&mut self, apply: Apply) -> bool {
        let object = apply.desired.object.clone();
        let answer = self.answer_to(&apply.item, &apply.desired.hash).cloned();
        let (mut live, mut adopted) = (self.content(&object), None);
        match answer {
            Some(Response::Occupied(error)) => return self.refuse(apply, error),
            Some(Response::DryRun(DryRun::Refused(error)))
                if apply.why == Why::Create && !matches!(error.code, 403 | 404) =>
            {
                return self.refuse(apply, error);
            }
            Some(Response::Adopt(value)) if apply.expect == Expect::Absent => {
                adopted = Some((*value).clone());
            }
            _ => {}
        }
        let refusal = apply.shape.and_then(|shape| self.recreated.get(&shape)).cloned();
        let refusal = refusal.filter(|_| apply.expect != Expect::Absent);
        if let Some(refusal) = &refusal {
            let is_instance = self.snapshot.is_instance_kind(&object.gvk);
            let package = is_instance.then_some("of its kind");
            if let Err(error) = immutable::permit_recreation(&object, refusal, package, Ok(())) {
                return self.refuse(apply, error);
            }
        }
        let observed = self.snapshot.observed.iter().find(|known| known.object == object).cloned();
        self.before.entry(object.clone()).or_insert_with(|| adopted.clone().or_else(|| live.clone()));
        let is_adopted = adopted.is_some();
        if refusal.is_some() {
            live = None;
        } else if is_adopted {
            live = adopted;
        }
        let write = match apply.why {
            _ if refusal.is_some() => Write::Recreated,
            Why::Create if is_adopted => Write::Adopted,
            Why::Create | Why::Restore => Write::Created,
            Why::Update => Write::Updated,
            Why::Repair | Why::Recheck => Write::Repaired,
        };
        let body = completed(&apply.desired, (*apply.desired.body).clone(), live.as_ref());
        if let Some(former) = self.before.get(&object).and_then(Option::as_ref).filter(|_| refusal.is_some())
        {
            self.recreations.insert(object.clone(), fields::recreated(former, &body));
        }
        let before = observed.as_deref().filter(|_| refusal.is_none());
        let reads = |child: &str| self.reads.get(child).cloned().unwrap_or_else(|| Arc::from([]));
        let made = make(&apply, &body, (live.as_ref(), before), self.number, &self.manager, reads);
        let Some(made) = made else { return false };
        let observed = Arc::new(made.observed);
        self.snapshot.observed.retain(|known| known.object != object);
        self.snapshot.previous_children.retain(|known| known.object.identity() != object.identity());
        self.snapshot.observed.push(Arc::clone(&observed));
        self.snapshot.observed.sort_by(|a, b| a.object.cmp(&b.object));
        self.written.insert(object.clone(), made.content);
        let item = apply.item.clone();
        let adopted = is_adopted.then_some(Adopted::HandedOver);
        let applied = Applied { apply, live: observed, adopted, conflict: None };
        self.state.record(&ActionOutcome::Applied(Box::new(applied)), NOW);
        self.note(&item, &object, write);
        true
    }

    fn refuse(&mut self, apply: Apply, error: CallError) -> bool {
        self.state.record(&ActionOutcome::Refused(Action::Apply(Box::new(apply)), error), NOW);
        true
    }

    /// Notes a write. A second one of an object adds nothing.
    fn note(&mut self, item: &str, object: &ObjectRef, write: Write) {
        if self.changes.iter().any(|change| change.object == *object && !is_removal(change.write)) {
            return;
        }
        self.changes.push(Change {
            item: item.to_owned(),
            object: object.clone(),
            write,
            fields: Vec::new(),
            restarts_pods: false,
        });
    }

    fn note_removal(&mut self, observed: &Observed, write: Write) {
        self.report.notes.extend(policy_note(&self.snapshot, observed, write));
        self.changes.push(Change {
            item: names::item_name(&observed.child, observed.key.as_deref()),
            object: observed.object.clone(),
            write,
            fields: Vec::new(),
            restarts_pods: false,
        });
    }

    fn forget(&mut self, observed: &Observed) {
        let is_it = |known: &Arc<Observed>| known.uid == observed.uid;
        self.snapshot.observed.retain(|known| !is_it(known));
        self.snapshot.previous_children.retain(|known| !is_it(known));
    }

    fn change(&mut self, observed: &Observed, change: impl Fn(&mut Observed)) {
        let Snapshot { observed: own, previous_children, .. } = &mut self.snapshot;
        for known in own.iter_mut().chain(previous_children).filter(|known| known.uid == observed.uid) {
            change(Arc::make_mut(known));
        }
    }

    fn finish(&mut self, decision: &Decision) -> InstanceReport {
        let mut report = std::mem::take(&mut self.report);
        for change in &mut self.changes {
            let Some(after) = self.written.get(&change.object).filter(|_| !is_removal(change.write)) else {
                continue;
            };
            let before = self.before.get(&change.object).and_then(Option::as_ref);
            let made = self.recreations.get(&change.object).unwrap_or(after);
            let stored = before.zip(self.storing.as_ref()).and_then(|(before, stored)| {
                // A part that is applied as a whole has lost the defaults that the object before has.
                Some((stored(before)?, stored(made)?))
            });
            change.fields = match &stored {
                Some((before, made)) => differences(Some(before), made),
                None => differences(before, made),
            };
            change.restarts_pods = restarts_pods(change, after);
        }
        report.changes = std::mem::take(&mut self.changes);
        for finding in &decision.findings {
            let (item, object) = finding.subject();
            match finding.severity() {
                Severity::Stalled => report.refused.push(Refused {
                    item: item.map(str::to_owned),
                    object: object.map(ToString::to_string),
                    reason: finding.reason().to_owned(),
                    message: finding.to_string(),
                }),
                Severity::Waiting => report.waits.push(finding.to_string()),
                // The write of the report shows it.
                Severity::Pending => {}
            }
        }
        if let Verdict::Stalled { reason, message } = &decision.verdict
            && !decision.findings.iter().any(|finding| finding.severity() == Severity::Stalled)
        {
            let (reason, message) = (reason.clone(), message.clone());
            report.refused.push(Refused { item: None, object: None, reason, message });
        }
        report.waits.dedup();
        report
    }
}

/// The note that the instance was edited and the manager has not handled the edit yet.
fn pending_edit(snapshot: &Snapshot) -> Option<String> {
    let handled = snapshot.instance["status"]["observedGeneration"].as_i64()?;
    let now = snapshot.instance["metadata"]["generation"].as_i64().filter(|now| *now > handled)?;
    let revision = snapshot.package.as_ref().ok()?.package().revision();
    Some(format!(
        "an edit of its spec is pending (generation {now}, of which {handled} is handled): it is carried out with revision \
         {revision}, unless the manager handles it before"
    ))
}

/// The note about which of two policies counts, where the revision and what was applied last differ.
fn policy_note(snapshot: &Snapshot, observed: &Observed, write: Write) -> Option<String> {
    let was_said = match write {
        Write::Retained if observed.is_kept_by_person() => return None,
        Write::Retained => observed.retained.is_some(),
        Write::AwaitsApproval => observed.asking.is_some(),
        _ => return None,
    };
    let child = snapshot.child_of(observed)?;
    let says = snapshot.deletion_policy(child, &observed.object.gvk);
    let (object, id) = (&observed.object, &child.id);
    let counts = if write == Write::Retained { DeletionPolicy::Retain } else { DeletionPolicy::Ask };
    match (was_said, says == counts) {
        (false, true) => Some(format!(
            "{object} ({id}) was last applied with another deletionPolicy than {counts:?}, which this revision says and by \
             which the object stays: the safer one counts"
        )),
        (true, false) => Some(format!(
            "{object} ({id}) was last applied with deletionPolicy {counts:?}, by which it stays; {says:?} of this revision does \
             not count for it, because nothing desires it any more"
        )),
        _ => None,
    }
}

fn is_removal(write: Write) -> bool {
    matches!(
        write,
        Write::Pruned | Write::Orphaned | Write::Retained | Write::AwaitsApproval | Write::Unmarked
    )
}

/// Whether a write restarts pods.
fn restarts_pods(change: &Change, after: &Value) -> bool {
    let is_workload = match change.object.gvk.parts() {
        ("apps/v1", "Deployment" | "StatefulSet" | "DaemonSet") => true,
        ("v1", "Pod") => return change.write == Write::Recreated,
        _ => false,
    };
    let is_manual = after["spec"]["updateStrategy"]["type"] == "OnDelete";
    let in_template = || change.fields.iter().any(|field| field.path.starts_with("spec.template."));
    match change.write {
        Write::Recreated => is_workload,
        Write::Updated | Write::Adopted | Write::Repaired => is_workload && !is_manual && in_template(),
        _ => false,
    }
}
