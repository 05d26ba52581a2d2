//! The execution of decisions about the CRDs of a package.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tracing::info;

use super::migrations::Turn;
use super::state::{CRD, CrdReconciler};
use crate::api::CallError;
use crate::children::crds::{
    CrdDecision, CrdHistory, CrdOutcome, CrdPatch, CrdSnapshot, CrdState, CrdVersion, DryRun, LossyInstance,
    MANAGER, ManagerIdentity, WebhookState, decide_crd, migrating, refused, served, unmigrated,
};
use crate::cluster::{Cluster, Query, Trial};
use crate::crd::{self, Narrowed};
use crate::diag::Diagnostic;
use crate::manager::raw::Raw;
use crate::operators;
use crate::package::{Package, Resource};

/// Instances in one page: each may have more than a megabyte.
const PAGE: u32 = 50;
/// How long until a candidate is tried again if its account lacks rights.
pub(super) const RIGHTS: Duration = Duration::from_secs(5);

/// The next step for a CRD, before anything is written.
enum Step<'a> {
    /// Nothing is to be written.
    Settled(Box<CrdOutcome>),
    /// The patch is to be applied.
    Apply(Box<CrdSnapshot<'a>>, Box<CrdPatch>, Option<String>),
}

/// Reconciles all CRDs of a package. Nothing is written before everything could be: no CRD is installed while another of
/// the package is refused.
pub(super) async fn reconcile(
    crds: &CrdReconciler,
    package: &Arc<Package>,
    histories: &[CrdHistory],
    now: Duration,
) -> Vec<CrdOutcome> {
    let cluster = crds.effects.clients.own();
    let client = crds.webhook.as_ref().and_then(|webhook| webhook.client_config());
    let identity = crds.identity(client.as_ref());
    let mut steps = Vec::new();
    let sources = sources(crds, package);
    for ((resource, from), history) in package.resources.iter().zip(&sources).zip(histories) {
        let snapshot = read(cluster, (package, resource, from.as_deref()), identity, DryRun::NotSent).await;
        steps.push(advance(cluster, snapshot, history, now, Some(crds)).await);
    }
    let is_refused = |step: &Step<'_>| match step {
        Step::Settled(outcome) => matches!(outcome.state, CrdState::Refused(_) | CrdState::Failed(..)),
        Step::Apply(..) => false,
    };
    let may_install = !steps.iter().any(is_refused);
    // Nothing is prepared if all CRDs are pending: one that is being deleted may be another manager's.
    let is_pending = |step: &Step<'_>| match step {
        Step::Settled(outcome) => matches!(outcome.state, CrdState::Pending(_) | CrdState::Migrating(..)),
        Step::Apply(..) => false,
    };
    if may_install
        && !steps.iter().all(is_pending)
        && package.resources.iter().any(Resource::has_runs)
        && let Err((problem, wait)) = prepare_plans(crds, package).await
    {
        let failed = |resource: &Resource| {
            let problem = problem.clone().located(resource.crd_location.clone());
            let state = CrdState::Failed(problem, wait);
            CrdOutcome { state, seen: None, changed_by: None, spec_written: false }
        };
        return package.resources.iter().map(failed).collect();
    }
    // Rights are granted once all CRDs are accepted.
    if crds.follows && may_install && !steps.iter().all(is_pending) {
        crds.grant(package).await;
    }
    // The package may have been uninstalled, with its CRDs, before this manager has seen it: then no CRD is
    // created again.
    let creates = |step: &Step<'_>| matches!(step, Step::Apply(snapshot, ..) if snapshot.live().is_none());
    let is_gone = crds.follows && steps.iter().any(creates) && is_operator_gone(cluster, &package.name).await;
    let mut outcomes: Vec<(usize, CrdOutcome)> = Vec::new();
    // A CRD is taken over last, when nothing else keeps the package from being active. The former package has it until then.
    let takes_over = |step: &Step<'_>| matches!(step, Step::Apply(snapshot, ..) if snapshot.takes_over());
    let steps = steps.into_iter().zip(histories).enumerate();
    let (taken, others): (Vec<_>, Vec<_>) = steps.partition(|(_, (step, _))| takes_over(step));
    let mut lacking = None;
    if may_install && !taken.is_empty() {
        lacking = crds.lacking_for_taken(package).await.into_iter().next();
    }
    for (position, (step, history)) in others.into_iter().chain(taken) {
        let is_ready = |outcome: &CrdOutcome| {
            matches!(outcome.state, CrdState::Ready(_) | CrdState::Conflicted(_) | CrdState::HandedOver(_))
        };
        let may_take = outcomes.iter().all(|(_, outcome)| is_ready(outcome));
        outcomes.push((
            position,
            match step {
                Step::Apply(snapshot, ..)
                    if let Some((problem, _)) = lacking.as_ref().filter(|_| snapshot.takes_over()) =>
                {
                    outcome(&snapshot, CrdState::Failed(problem.clone(), Some(RIGHTS)), None)
                }
                Step::Apply(snapshot, ..) if snapshot.takes_over() && !may_take => {
                    let why = "another CRD of its package is not ready".to_owned();
                    outcome(&snapshot, CrdState::Pending(why), None)
                }
                Step::Apply(snapshot, ..) if is_gone && snapshot.live().is_none() => outcome(
                    &snapshot,
                    CrdState::Pending(format!("there is no Operator {}", package.name)),
                    None,
                ),
                Step::Settled(outcome) => *outcome,
                Step::Apply(snapshot, patch, changed_by) if may_install || history.was_ready() => {
                    apply(cluster, &snapshot, &patch, changed_by).await
                }
                Step::Apply(snapshot, ..) => outcome(
                    &snapshot,
                    CrdState::Pending("another CRD of its package is refused".to_owned()),
                    None,
                ),
            },
        ));
    }
    outcomes.sort_by_key(|(position, _)| *position);
    outcomes.into_iter().map(|(_, outcome)| outcome).collect()
}

/// The packages from which a package takes its CRDs over, in the order of its resources.
fn sources(crds: &CrdReconciler, package: &Package) -> Vec<Option<Arc<str>>> {
    let resources = package.resources.iter();
    resources.map(|resource| crds.takes_from(&package.name, resource.crd_name())).collect()
}

/// Whether there is no `Operator` of that name; `false` if that cannot be read.
pub(in crate::manager) async fn is_operator_gone(cluster: &Cluster, name: &str) -> bool {
    let live = cluster.get(&operators::kind(), None, name).await;
    live.is_ok_and(|live| live.is_none_or(|live| !live["metadata"]["deletionTimestamp"].is_null()))
}

/// Installs the API of plans. If the package has plans, its revision is stored, so that its runs can end with it.
async fn prepare_plans(
    crds: &CrdReconciler,
    package: &Arc<Package>,
) -> Result<(), (Diagnostic, Option<Duration>)> {
    crds.watches.install_plan_api().await.map_err(|error| {
        let message = format!("the API of plans cannot be installed: {error}");
        let problem = Diagnostic::error("crd::plans", message).help(
            "allow the manager to create and patch the CustomResourceDefinitions planruns.operetta.dev and \
             operatorrevisions.operetta.dev, and ValidatingAdmissionPolicies and their bindings",
        );
        (problem, error.asked_to_wait())
    })?;
    if package.resources.iter().all(|resource| resource.plans.is_empty()) {
        return Ok(());
    }
    crds.watches.revisions.store(package).await.map_err(|error| {
        let message = format!("the revision {} of the package cannot be stored: {error}", package.revision());
        let problem = Diagnostic::error("crd::revision", message).help(
            "allow the manager to get, list, create and delete operatorrevisions.operetta.dev, and to get, create and \
             delete ConfigMaps in its own namespace",
        );
        (problem, error.asked_to_wait())
    })
}

/// The problems with the CRDs of a package as they are in the cluster. Nothing is written, not even as a dry run.
pub(in crate::manager) async fn inspect(cluster: &Cluster, package: &Package) -> Vec<Diagnostic> {
    let manager = ManagerIdentity { webhook: WebhookState::Foreign, lease: "", namespace: "" };
    let sources = vec![None; package.resources.len()];
    let problems = examine(cluster, (package, &sources), manager, || DryRun::Skipped).await;
    problems.into_iter().map(|(problem, _)| problem).collect()
}

/// What would keep a package from being active, found by dry runs; and whether that may pass by itself.
pub(super) async fn try_out(crds: &CrdReconciler, package: &Package) -> Vec<(Diagnostic, bool)> {
    let client = crds.webhook.as_ref().and_then(|webhook| webhook.client_config());
    let of = (package, &*sources(crds, package));
    examine(crds.effects.clients.own(), of, crds.identity(client.as_ref()), || DryRun::NotSent).await
}

async fn examine(
    cluster: &Cluster,
    (package, sources): (&Package, &[Option<Arc<str>>]),
    manager: ManagerIdentity<'_>,
    dry_run: impl Fn() -> DryRun,
) -> Vec<(Diagnostic, bool)> {
    let mut problems = Vec::new();
    let history = CrdHistory::default();
    for (resource, from) in package.resources.iter().zip(sources) {
        let snapshot = read(cluster, (package, resource, from.as_deref()), manager, dry_run()).await;
        if let Step::Settled(outcome) = advance(cluster, snapshot, &history, Duration::ZERO, None).await {
            match outcome.state {
                CrdState::Refused(problem) => problems.push((problem, false)),
                CrdState::Failed(problem, _) => problems.push((problem, true)),
                CrdState::Ready(_)
                | CrdState::Pending(_)
                | CrdState::Migrating(..)
                | CrdState::Conflicted(_)
                | CrdState::HandedOver(_) => {}
            }
        }
    }
    problems
}

async fn read<'a>(
    cluster: &Cluster,
    (package, resource, takes_from): (&'a Package, &'a Resource, Option<&'a str>),
    manager: ManagerIdentity<'a>,
    dry_run: DryRun,
) -> CrdSnapshot<'a> {
    let live = cluster.get(&CRD, None, resource.crd_name()).await;
    CrdSnapshot { package, resource, takes_from, manager, live, dry_run, lossy: None, names: None }
}

/// Does what the decisions ask for until something is to be written or nothing is left to do. Without `crds` nothing is
/// written, not even for a migration.
async fn advance<'a>(
    cluster: &Cluster,
    mut snapshot: CrdSnapshot<'a>,
    history: &CrdHistory,
    now: Duration,
    crds: Option<&CrdReconciler>,
) -> Step<'a> {
    let name = snapshot.resource.crd_name();
    let hold = |crds: &CrdReconciler| crds.store.hold(name, Some("its CRD has been changed".into()));
    loop {
        match decide_crd(&snapshot, history, now) {
            CrdDecision::DryRun(body) => {
                if let Some(crds) = crds.filter(|_| snapshot.has_lost_status(history)) {
                    hold(crds);
                }
                let answer = cluster.apply_as(&CRD, &body, MANAGER, true, Trial::This).await;
                snapshot.dry_run = DryRun::Answered(answer.map(Box::new));
            }
            CrdDecision::ListInstances => {
                let names = names(cluster, snapshot.live()).await;
                snapshot.names = Some(names);
            }
            CrdDecision::CheckInstances(narrowed) => {
                let lossy = lossy(cluster, snapshot.live(), narrowed).await;
                snapshot.lossy = Some(lossy);
            }
            CrdDecision::Migrate => {
                let Some((crds, live)) = crds.zip(snapshot.live()) else {
                    let state = migrating(snapshot.resource, Duration::ZERO);
                    return settled(&snapshot, state, None);
                };
                match crds.migrate(live).await {
                    Ok(Turn::Done(_)) => {}
                    Ok(Turn::Later(wait)) => {
                        let state = migrating(snapshot.resource, wait);
                        return settled(&snapshot, state, None);
                    }
                    Err(error) => {
                        let state = unmigrated(snapshot.resource, &error.to_string(), error.is_temporary());
                        return settled(&snapshot, state, None);
                    }
                }
                let of = (snapshot.package, snapshot.resource, snapshot.takes_from);
                snapshot = read(cluster, of, snapshot.manager, DryRun::NotSent).await;
            }
            CrdDecision::Settled(state, changed_by) => {
                return settled(&snapshot, state, changed_by);
            }
            CrdDecision::Apply(patch, changed_by) => {
                if let Some(crds) = crds.filter(|_| changed_by.is_some() && patch.with_spec) {
                    hold(crds);
                }
                return Step::Apply(Box::new(snapshot), patch, changed_by);
            }
        }
    }
}

fn settled<'a>(snapshot: &CrdSnapshot<'_>, state: CrdState, changed_by: Option<String>) -> Step<'a> {
    Step::Settled(Box::new(outcome(snapshot, state, changed_by)))
}

fn outcome(snapshot: &CrdSnapshot<'_>, state: CrdState, changed_by: Option<String>) -> CrdOutcome {
    CrdOutcome { state, seen: snapshot.live().map(CrdVersion::of), changed_by, spec_written: false }
}

async fn apply(
    cluster: &Cluster,
    snapshot: &CrdSnapshot<'_>,
    patch: &CrdPatch,
    changed_by: Option<String>,
) -> CrdOutcome {
    let (name, live) = (snapshot.resource.crd_name(), snapshot.live());
    match cluster.apply(&CRD, &patch.body(name, live), MANAGER, true).await {
        Ok(written) => {
            match (live, &changed_by) {
                (None, _) => info!(crd = %name, "created"),
                (Some(_), Some(_)) => info!(crd = %name, "restored"),
                (Some(_), None) => info!(crd = %name, with_spec = patch.with_spec, "updated"),
            }
            let resource = snapshot.resource;
            CrdOutcome {
                state: if patch.is_interim {
                    migrating(resource, Duration::ZERO)
                } else {
                    served(&written, resource)
                },
                seen: Some(CrdVersion::of(&written)),
                changed_by,
                spec_written: live.is_some() && patch.with_spec,
            }
        }
        Err(error) => outcome(snapshot, refused(snapshot.resource, &error), None),
    }
}

/// The names of all instances.
pub(super) async fn names(cluster: &Cluster, live: Option<&Value>) -> Result<Vec<String>, CallError> {
    let Some(kind) = live.and_then(crd::kind) else { return Ok(Vec::new()) };
    let query = Query { metadata_only: true, ..Query::default() };
    let mut names = cluster.list_all(&kind, &query, |raw: Raw| full_name(&raw)).await?;
    names.sort();
    Ok(names)
}

/// `namespace/name`, or `name`.
fn full_name(raw: &Raw) -> String {
    let name = raw.metadata.name.as_deref().unwrap_or_default();
    match &raw.metadata.namespace {
        Some(namespace) => format!("{namespace}/{name}"),
        None => name.to_owned(),
    }
}

/// The stored instances that would lose values.
pub(super) async fn lossy(
    cluster: &Cluster,
    live: Option<&Value>,
    versions: Vec<Narrowed<'_>>,
) -> Result<Vec<LossyInstance>, CallError> {
    let mut found = Vec::new();
    let Some(mut kind) = live.and_then(crd::kind) else { return Ok(found) };
    for narrowed in versions {
        narrowed.version.clone_into(&mut kind.version);
        let query = Query { page: Some(PAGE), ..Query::default() };
        let find = |raw: Raw| {
            let (uid, name) = (raw.metadata.uid.clone().unwrap_or_default(), full_name(&raw));
            let body = raw.cut.is_none().then(|| raw.whole());
            LossyInstance::find(&narrowed, &uid, &name, body.as_ref())
        };
        found.extend(cluster.list_all(&kind, &query, find).await?.into_iter().flatten());
    }
    Ok(found)
}
