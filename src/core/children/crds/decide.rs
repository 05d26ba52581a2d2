//! The decision about one CRD of a package.

use std::time::Duration;

use serde_json::{Value, json};

use super::child_scope::UnusedChildScope;
use super::compare::{Comparison, CrdPatch, compare, is_established, last_writer, names_refused};
use super::history::CrdHistory;
use super::losses::{self, LossyInstance};
use super::model::{CrdInfo, CrdState, ManagerIdentity, WebhookState, has_status, lease};
use super::package::RIGHTS_LACKING;
use crate::api::{CallError, Class};
use crate::children::crd_owner::package_of_crd_value;
use crate::children::names;
use crate::crd::{self, Narrowed};
use crate::diag::Diagnostic;
use crate::package::{Package, Resource};
use crate::printable;

/// How much of the server's words is reported, in characters: it may print a whole schema.
const WORDS: usize = 4_000;

/// The code of a migration that is not possible.
const UNMIGRATED: &str = "crd::unmigrated";

/// What is known of one CRD of a package at one moment. An effect fills in what the decision asks for.
#[derive(Debug)]
pub struct CrdSnapshot<'a> {
    /// The package.
    pub package: &'a Package,
    /// Its resource with the CRD.
    pub resource: &'a Resource,
    /// The package from which it may take the CRD.
    pub takes_from: Option<&'a str>,
    /// The manager that decides.
    pub manager: ManagerIdentity<'a>,
    /// The live CRD; `None` if it does not exist.
    pub live: Result<Option<Value>, CallError>,
    /// The answer to [`CrdDecision::DryRun`].
    pub dry_run: DryRun,
    /// The answer to [`CrdDecision::CheckInstances`].
    pub lossy: Option<Result<Vec<LossyInstance>, CallError>>,
    /// The answer to [`CrdDecision::ListInstances`].
    pub names: Option<Result<Vec<String>, CallError>>,
}

/// The dry run of an apply.
#[derive(Debug)]
pub enum DryRun {
    /// The dry run has not been sent.
    NotSent,
    /// No dry run is sent: the process only reads.
    Skipped,
    /// The CRD as the server would store it, or why it would not.
    Answered(Result<Box<Value>, CallError>),
}

/// The next step.
#[derive(Debug)]
pub enum CrdDecision<'a> {
    /// Nothing is to be done now. The name is that of the client that has changed the CRD since it was ready,
    /// if one has.
    Settled(CrdState, Option<String>),
    /// Send this apply as a dry run.
    DryRun(Value),
    /// List the instances: the change is not possible while there are any, and they are named.
    ListInstances,
    /// Read the instances of these versions and find those that would lose something.
    CheckInstances(Vec<Narrowed<'a>>),
    /// Write each instance once, so that no version that the package removes is stored any more.
    Migrate,
    /// Apply the patch. The name is that of the client that has changed the CRD since it was ready, if one
    /// has.
    Apply(Box<CrdPatch>, Option<String>),
}

impl CrdSnapshot<'_> {
    /// The live CRD, if it was read and exists.
    pub fn live(&self) -> Option<&Value> {
        self.live.as_ref().ok()?.as_ref()
    }

    /// Whether the CRD is that of another package, from which it is taken over.
    pub fn takes_over(&self) -> bool {
        let owner = self.live().and_then(package_of_crd_value);
        owner.is_some_and(|owner| self.takes_from == Some(&*owner))
    }

    /// Whether the CRD has lost its status subresource since it was ready: a write of a label of an instance would lose
    /// the status.
    pub fn has_lost_status(&self, history: &CrdHistory) -> bool {
        let version = &self.resource.kind.version;
        history.was_ready() && self.live().is_some_and(|live| !has_status(live, version))
    }
}

/// Decides what to do next about a CRD.
pub fn decide_crd<'a>(snapshot: &'a CrdSnapshot<'_>, history: &CrdHistory, now: Duration) -> CrdDecision<'a> {
    let CrdSnapshot { package, resource, takes_from, .. } = snapshot;
    let of = (*package, *resource);
    let name = resource.crd_name();
    let live = match &snapshot.live {
        Ok(live) => live.as_ref(),
        Err(error) => return settled(unreadable(resource, error)),
    };
    // The objects are being migrated for a revision that takes over soon: neither its CRD nor the migration
    // may be undone.
    if let Some(live) = live.filter(|live| history.stands_in() && is_migrating(live, resource)) {
        let mut state = served(live, resource);
        if let CrdState::Ready(info) = &mut state {
            info.outdated.clear();
        }
        return settled(state);
    }
    let mut manager = snapshot.manager;
    // A manager takes a CRD over when it starts. Later two managers must not take it from each other for ever.
    if let Some(lease) = live.filter(|_| history.was_ready()).and_then(lease) {
        if lease != manager.lease {
            manager.webhook = WebhookState::Foreign;
        }
        manager.lease = lease;
    }
    let mut patch = match compare(live, of, *takes_from, &manager, history.unused()) {
        Comparison::Same => {
            return settled(live.map_or_else(|| pending(resource), |live| served(live, resource)));
        }
        Comparison::NoCertificate => {
            let why = format!("the conversion webhook, which the CRD {name} needs, has no certificate yet");
            return settled(CrdState::Pending(why));
        }
        Comparison::Terminating => {
            let why = format!("the CRD {name} is being deleted; it is created again once it is gone");
            return settled(CrdState::Pending(why));
        }
        Comparison::HandedOver(to) => return settled(CrdState::HandedOver(to)),
        Comparison::Refused(problem) => {
            return settled(CrdState::Refused(problem.located(resource.crd_location.clone())));
        }
        Comparison::Differs(patch) => patch,
    };
    // If only an unused part of the record is to be removed, the CRD has not changed.
    let is_same_but_for_record = || {
        let compared = compare(live, of, *takes_from, &manager, &UnusedChildScope::NOTHING);
        !history.unused().is_nothing() && matches!(compared, Comparison::Same)
    };
    // Another certificate of the webhook is not a change by another client.
    let is_ours = |live: &Value| {
        let info = CrdInfo::of(live, resource);
        history.info().is_some_and(|ready| ready.has_same_spec(&info)) && patch.differs_from_applied(live)
    };
    let changed_since_ready =
        live.filter(|live| history.was_ready() && !is_same_but_for_record() && !is_ours(live));
    if let Some(live) = live.filter(|_| patch.with_spec) {
        let found = crd::incompatible(live, &json!({"spec": patch.spec}));
        if !found.is_empty() {
            return match &snapshot.names {
                None => CrdDecision::ListInstances,
                Some(Err(error)) => settled(unchecked(resource, error)),
                Some(Ok(names)) => settled(CrdState::Refused(losses::impossible(&found, names, resource))),
            };
        }
    }
    if let Some(live) = live.filter(|_| patch.with_spec) {
        match patch.keep_stored_versions(live, resource, &manager) {
            Err(problem) => return settled(CrdState::Refused(problem)),
            Ok(true) if !patch.with_spec => return CrdDecision::Migrate,
            Ok(_) => {}
        }
    }
    match (&snapshot.dry_run, live) {
        (DryRun::NotSent, _) => return CrdDecision::DryRun(patch.body(name, live)),
        // An unused part of the record does no harm.
        (DryRun::Answered(Err(_)), Some(live)) if history.was_ready() && changed_since_ready.is_none() => {
            return settled(served(live, resource));
        }
        (DryRun::Answered(Err(error)), _) => return settled(refused(resource, error)),
        // The server may write the same spec in another way.
        (DryRun::Answered(Ok(tried)), Some(live)) if patch.with_spec && live["spec"] == tried["spec"] => {
            if patch.is_interim {
                return CrdDecision::Migrate;
            }
            if patch.has_metadata(live) {
                return settled(served(live, resource));
            }
            patch.with_spec = false;
        }
        (DryRun::Answered(Ok(_)) | DryRun::Skipped, _) => {}
    }
    if let Some(live) = live.filter(|_| patch.with_spec) {
        let refusal = match &snapshot.lossy {
            Some(Ok(instances)) => losses::refusal(instances, &patch.spec, resource),
            Some(Err(error)) => return settled(unchecked(resource, error)),
            None => match losses::narrowed(live, &patch.spec) {
                narrowed if narrowed.is_empty() => None,
                narrowed => return CrdDecision::CheckInstances(narrowed),
            },
        };
        if let Some(refusal) = refusal {
            return settled(CrdState::Refused(refusal));
        }
    }
    let Some(live) = changed_since_ready else { return CrdDecision::Apply(patch, None) };
    let writer = last_writer(live).unwrap_or_else(|| "another client".to_owned());
    if history.may_restore(now) {
        CrdDecision::Apply(patch, Some(writer))
    } else {
        CrdDecision::Settled(CrdState::Conflicted(CrdInfo::of(live, resource)), Some(writer))
    }
}

/// Whether a manager has migrated some objects of the CRD as it is, and the version that the resource reads is still served.
fn is_migrating(live: &Value, resource: &Resource) -> bool {
    let meta = &live["metadata"];
    let of = format!("{}/{}/", meta["uid"].as_str().unwrap_or_default(), meta["generation"]);
    let is_begun =
        meta["annotations"][names::MIGRATED].as_str().is_some_and(|record| record.starts_with(&of));
    is_begun && has_status(live, &resource.kind.version)
}

fn settled<'a>(state: CrdState) -> CrdDecision<'a> {
    CrdDecision::Settled(state, None)
}

fn pending(resource: &Resource) -> CrdState {
    CrdState::Pending(format!("the API server has not established the CRD {}", resource.crd_name()))
}

/// The state of a CRD that is as the package wants it: ready, unless the API server does not serve it.
pub fn served(live: &Value, resource: &Resource) -> CrdState {
    if is_established(live) {
        return CrdState::Ready(CrdInfo::of(live, resource));
    }
    match names_refused(live) {
        Some(message) => {
            let message = format!("the names of the CRD {} are taken: {message}", resource.crd_name());
            let problem = Diagnostic::error("crd::names", message)
                .help("two CRDs of one group cannot share kind, plural or short names");
            CrdState::Refused(problem.located(resource.crd_location.clone()))
        }
        None => pending(resource),
    }
}

/// The state after a failed apply.
pub fn refused(resource: &Resource, error: &CallError) -> CrdState {
    // A CRD holds no secrets, and the value is the mistake.
    let words = error.whole().split_whitespace().collect::<Vec<_>>().join(" ");
    let short = printable::clip(&words, WORDS);
    let name = resource.crd_name();
    if error.is_unauthorized() {
        let message = format!("rights are missing: the manager may not write the CRD {name}: {short}");
        let problem = Diagnostic::error(RIGHTS_LACKING, message)
            .located(resource.crd_location.clone())
            .help("apply the roles of the package, which name its CRDs: `operetta rbac PACKAGE` prints them");
        // The role of a package that has just been installed reaches the manager's after a moment.
        return CrdState::Failed(problem, None);
    }
    let message = format!("the API server refuses the CRD {name}: {short}");
    let problem = Diagnostic::error("crd::refused", message).located(resource.crd_location.clone());
    match error.class {
        Class::Permanent => CrdState::Refused(
            problem.help("correct the CRD; `kubectl apply --dry-run=server -f` checks it the same way"),
        ),
        // Another writer was first: read again.
        Class::Conflict => CrdState::Failed(problem, Some(Duration::from_millis(100))),
        Class::Retry | Class::NotFound => CrdState::Failed(problem, error.asked_to_wait()),
    }
}

/// The state while objects are stored in a version that the package removes. `wait`: until the next turn of the migration.
pub fn migrating(resource: &Resource, wait: Duration) -> CrdState {
    let why = format!(
        "the objects of the CRD {} are being migrated from a version that the package removes",
        resource.crd_name()
    );
    CrdState::Migrating(why, wait)
}

/// The state after a failed migration of the instances.
pub fn unmigrated(resource: &Resource, reason: &str, is_temporary: bool) -> CrdState {
    let message = format!("the objects of the CRD {} cannot be migrated: {reason}", resource.crd_name());
    let problem = Diagnostic::error(UNMIGRATED, message).located(resource.crd_location.clone());
    if is_temporary {
        return CrdState::Failed(problem, None);
    }
    CrdState::Refused(
        problem.help("correct these objects, or keep the removed version in the CRD of the package"),
    )
}

/// The refusal of a revision that no longer has a CRD with instances.
pub fn left_behind(crd: &str, count: usize, package: &Package) -> Diagnostic {
    let instances = if count == 1 { "is 1 instance".to_owned() } else { format!("are {count} instances") };
    let message = format!(
        "the revision {} of the package {} has no resource with the CRD {crd}, of which there {instances}",
        package.revision(),
        package.name
    );
    Diagnostic::error("crd::left-behind", message).help(format!(
        "hand the CRD over to another package that brings it (`operetta install PACKAGE --take-over-from {}`, or \
         spec.takesOver of its Operator), delete these instances first, or keep the resource in the package",
        package.name
    ))
}

/// The state after a failed list of the instances.
fn unchecked(resource: &Resource, error: &CallError) -> CrdState {
    let name = resource.crd_name();
    let message = format!(
        "the CRD {name} stays as it is: its schema narrows, and the instances that may lose values cannot be listed: {error}"
    );
    let problem = Diagnostic::error("crd::unread", message).located(resource.crd_location.clone());
    CrdState::Failed(problem, error.asked_to_wait())
}

/// The state after a failed read.
fn unreadable(resource: &Resource, error: &CallError) -> CrdState {
    let message = format!("the CRD {} cannot be read: {error}", resource.crd_name());
    let problem = Diagnostic::error("crd::unreachable", message).located(resource.crd_location.clone());
    match error.class {
        Class::Permanent => {
            CrdState::Refused(problem.help("allow the manager to get, list, watch and patch CRDs"))
        }
        _ => CrdState::Failed(problem, error.asked_to_wait()),
    }
}
