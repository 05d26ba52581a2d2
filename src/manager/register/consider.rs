//! One look at the CRDs of a package: what is wrong with them is mended, and told how they stand.

use std::time::Duration;

use serde_json::Value;
use tracing::{debug, info};

use super::record::{Record, Spent};
use super::stored;
use super::wanted::{self, MANAGER, Ours, Stand, Wrong};
use crate::cluster::{ApiKind, CallError, Class, Cluster, Trial};
use crate::diag::Diagnostic;
use crate::package::{Package, Resource};

/// How much of the server's words is told, in characters: it may print a whole schema.
const WORDS: usize = 4_000;

/// What this process has seen of a CRD before.
#[derive(Debug, Clone, Default)]
pub(super) struct Past {
    /// It was as it should be: what is wrong now, somebody has put back.
    pub was_right: bool,
    /// Whether it may be mended once more.
    pub may_mend: bool,
    /// What is on record and of no use any more.
    pub spent: Spent,
}

/// How a CRD stands after the look.
#[derive(Debug)]
pub(super) enum State {
    /// It is as it should be.
    Right(Facts),
    /// It is not served yet, or still being deleted: an event will tell.
    Awaited(String),
    /// Somebody puts it back again and again, and it is left to them.
    Contested(Facts),
    /// It cannot be had: only another CRD, or another package, helps.
    Refused(Diagnostic),
    /// It could not be looked at or written now.
    Failed(Diagnostic, Option<Duration>),
}

/// What the manager needs to know of a live CRD.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Facts {
    /// Which CRD of that name.
    pub uid: String,
    /// Which spec of it.
    pub generation: i64,
    /// Which state of it was looked at.
    pub resource_version: String,
    /// Whether the version that the package is about has its status subresource.
    pub has_status: bool,
    /// Where children of its instances are, or were.
    pub record: Record,
    /// Which manager it says cares for it.
    pub lease: Option<String>,
}

impl Facts {
    pub(super) fn of(crd: &Value, resource: &Resource) -> Self {
        Self {
            uid: crd["metadata"]["uid"].as_str().unwrap_or_default().to_owned(),
            generation: crd["metadata"]["generation"].as_i64().unwrap_or_default(),
            resource_version: crd["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned(),
            has_status: wanted::has_status(crd, &resource.kind.version),
            record: Record::of(crd),
            lease: wanted::lease(crd).map(str::to_owned),
        }
    }
}

/// What a look at one CRD came to.
#[derive(Debug)]
pub(super) struct Seen {
    pub state: State,
    /// Who had put it back to another text, if it was right before.
    pub reverted_by: Option<String>,
    /// It was written, and existed before: what the server shows of its objects may change.
    pub was_changed: bool,
}

impl Seen {
    fn new(state: State) -> Self {
        Self { state, reverted_by: None, was_changed: false }
    }
}

/// A CRD that is to be written.
struct Draft {
    live: Option<Value>,
    wrong: Box<Wrong>,
    with_spec: bool,
    reverted_by: Option<String>,
}

/// Looks at all CRDs of a package, and mends them, on behalf of this manager. Nothing is written before all could be; so none
/// is installed of a package of which another is refused. `hold` is called with a CRD that was right and has lost its
/// status subresource, before anything else is asked.
pub(super) async fn consider(
    (cluster, ours): (&Cluster, Ours<'_>),
    crd: &ApiKind,
    package: &Package,
    past: &[Past],
    hold: &(dyn Fn(&str) + Sync),
) -> Vec<Seen> {
    let mut drafts = Vec::new();
    let mut seen: Vec<Option<Seen>> = Vec::new();
    for (resource, past) in package.resources.iter().zip(past) {
        let ours = Ours { spent: &past.spent, ..ours };
        match look((cluster, ours), crd, package, resource, past, hold).await {
            Ok(state) => {
                seen.push(Some(state));
                drafts.push(None);
            }
            Err(draft) => {
                seen.push(None);
                drafts.push(Some(draft));
            }
        }
    }
    let is_refused = |seen: &Option<Seen>| {
        seen.as_ref().is_some_and(|s| matches!(s.state, State::Refused(_) | State::Failed(..)))
    };
    let may_install = !seen.iter().any(is_refused);
    let mut all = Vec::new();
    for (((resource, past), seen), draft) in package.resources.iter().zip(past).zip(seen).zip(drafts) {
        all.push(match (seen, draft) {
            (Some(seen), _) => seen,
            (None, Some(draft)) if may_install || past.was_right => {
                write(cluster, crd, resource, *draft).await
            }
            (None, _) => Seen::new(State::Awaited("another CRD of its package is refused".to_owned())),
        });
    }
    all
}

/// Reads a CRD and compares; gives what is to be written, tried as a dry run, as the error.
async fn look(
    (cluster, mut ours): (&Cluster, Ours<'_>),
    crd: &ApiKind,
    package: &Package,
    resource: &Resource,
    past: &Past,
    hold: &(dyn Fn(&str) + Sync),
) -> Result<Seen, Box<Draft>> {
    let name = resource.crd_name();
    let live = match cluster.get(crd, None, name).await {
        Ok(live) => live,
        Err(error) => return Ok(Seen::new(unreachable(resource, &error))),
    };
    // Whoever begins takes it over; two that run must not take it from each other for ever.
    let is_anothers = |live: &&Value| past.was_right && wanted::lease(live).is_some();
    if let Some(lease) = live.as_ref().filter(is_anothers).and_then(wanted::lease) {
        ours.lease = lease;
    }
    let wrong = match wanted::stand(live.as_ref(), package, resource, ours) {
        Stand::Right => return Ok(Seen::new(served(&live.unwrap_or_default(), resource))),
        Stand::Going => {
            let why = format!("the CRD {name} is being deleted, and made anew when it is gone");
            return Ok(Seen::new(State::Awaited(why)));
        }
        Stand::Refused(problem) => {
            return Ok(Seen::new(State::Refused(problem.located(resource.crd_location.clone()))));
        }
        Stand::Wrong(wrong) => wrong,
    };
    // If only what is of no use any more is to go, nobody has put anything back.
    let spares = Ours { spent: &Spent::NOTHING, ..ours };
    let was_right = past.was_right
        && (past.spent.is_nothing()
            || !matches!(wanted::stand(live.as_ref(), package, resource, spares), Stand::Right));
    if was_right && live.as_ref().is_some_and(|live| !wanted::has_status(live, &resource.kind.version)) {
        hold(name);
    }
    let mut with_spec = wrong.spec_differs;
    let body = wrong.body(name, live.as_ref(), with_spec);
    match cluster.apply_as(crd, &body, MANAGER, true, Trial::This).await {
        Ok(tried) => {
            // The server may write the same in another way.
            if let Some(live) = live.as_ref().filter(|live| with_spec && live["spec"] == tried["spec"]) {
                if wrong.metadata_is_there(live) {
                    return Ok(Seen::new(served(live, resource)));
                }
                with_spec = false;
            }
        }
        // It is right but for what is of no use any more, and that does no harm.
        Err(error) if past.was_right && !was_right => {
            debug!(crd = %name, %error, "its record cannot be made shorter");
            return Ok(Seen::new(served(&live.unwrap_or_default(), resource)));
        }
        Err(error) => return Ok(Seen::new(refused(resource, &error))),
    }
    if let Some(live) = live.as_ref().filter(|_| with_spec) {
        match stored::refusal(cluster, live, &wrong.spec, resource).await {
            Ok(None) => {}
            Ok(Some(problem)) => return Ok(Seen::new(State::Refused(problem))),
            Err(error) => return Ok(Seen::new(unread(resource, &error))),
        }
    }
    let mut reverted_by = None;
    if let Some(live) = live.as_ref().filter(|_| was_right) {
        reverted_by = Some(wanted::last_writer(live).unwrap_or_else(|| "somebody".to_owned()));
        if !past.may_mend {
            let state = State::Contested(Facts::of(live, resource));
            return Ok(Seen { state, reverted_by, was_changed: false });
        }
        if with_spec {
            hold(name);
        }
    }
    Err(Box::new(Draft { live, wrong, with_spec, reverted_by }))
}

async fn write(cluster: &Cluster, crd: &ApiKind, resource: &Resource, draft: Draft) -> Seen {
    let name = resource.crd_name();
    let body = draft.wrong.body(name, draft.live.as_ref(), draft.with_spec);
    match cluster.apply(crd, &body, MANAGER, true).await {
        Ok(live) => {
            match (&draft.live, &draft.reverted_by) {
                (None, _) => info!(crd = %name, "made"),
                (Some(_), Some(_)) => info!(crd = %name, "mended"),
                (Some(_), None) => info!(crd = %name, with_spec = draft.with_spec, "augmented"),
            }
            Seen {
                state: served(&live, resource),
                reverted_by: draft.reverted_by,
                was_changed: draft.live.is_some() && draft.with_spec,
            }
        }
        Err(error) => Seen::new(refused(resource, &error)),
    }
}

/// A CRD that is as it should be: right, unless the server does not serve it yet.
fn served(live: &Value, resource: &Resource) -> State {
    let name = resource.crd_name();
    if wanted::is_established(live) {
        return State::Right(Facts::of(live, resource));
    }
    if let Some(message) = wanted::names_refused(live) {
        let message = format!("the names of the CRD {name} are taken: {message}");
        let problem = Diagnostic::error("crd::names", message)
            .help("two CRDs of one group cannot share kind, plural or short names");
        return State::Refused(problem.located(resource.crd_location.clone()));
    }
    State::Awaited(format!("the API server has not established the CRD {name}"))
}

fn refused(resource: &Resource, error: &CallError) -> State {
    let name = resource.crd_name();
    // A CRD holds no secrets, and the value is what is wrong.
    let words = error.whole().split_whitespace().collect::<Vec<_>>().join(" ");
    let short: String = words.chars().take(WORDS).collect();
    let dots = if short.len() < words.len() { "…" } else { "" };
    let message = format!("the API server refuses the CRD {name}: {short}{dots}");
    let problem = Diagnostic::error("crd::refused", message).located(resource.crd_location.clone());
    match error.class {
        Class::Permanent => State::Refused(
            problem.help("mend the CRD; `kubectl apply --dry-run=server -f` tries it the same way"),
        ),
        // Somebody was first, or no answer: look again.
        Class::Conflict => State::Failed(problem, Some(Duration::from_millis(100))),
        Class::Retry | Class::NotFound => State::Failed(problem, error.asked_to_wait()),
    }
}

/// What is wrong with the CRDs of a package as they are in the cluster, whoever reads; nothing is written.
pub(super) async fn inspect(cluster: &Cluster, crd: &ApiKind, package: &Package) -> Vec<Diagnostic> {
    let mut problems = Vec::new();
    for resource in &package.resources {
        let live = match cluster.get(crd, None, resource.crd_name()).await {
            Ok(Some(live)) => live,
            Ok(None) => continue,
            Err(error) => {
                problems.extend(problem(unreachable(resource, &error)));
                continue;
            }
        };
        let ours = Ours { lease: "", namespace: "", spent: &Spent::NOTHING };
        match wanted::stand(Some(&live), package, resource, ours) {
            Stand::Refused(problem) => problems.push(problem.located(resource.crd_location.clone())),
            Stand::Wrong(wrong) if wrong.spec_differs => {
                match stored::refusal(cluster, &live, &wrong.spec, resource).await {
                    Ok(found) => problems.extend(found),
                    Err(error) => problems.extend(problem(unread(resource, &error))),
                }
            }
            Stand::Right | Stand::Going | Stand::Wrong(_) => {}
        }
    }
    problems
}

fn problem(state: State) -> Option<Diagnostic> {
    match state {
        State::Refused(problem) | State::Failed(problem, _) => Some(problem),
        State::Right(_) | State::Awaited(_) | State::Contested(_) => None,
    }
}

/// Its schema changes, and whether that costs its instances something cannot be told.
fn unread(resource: &Resource, error: &CallError) -> State {
    let name = resource.crd_name();
    let message = format!(
        "the CRD {name} stays as it is: its schema narrows, and the instances that may lose values cannot be listed: {error}"
    );
    let problem = Diagnostic::error("crd::unread", message).located(resource.crd_location.clone());
    State::Failed(problem, error.asked_to_wait())
}

fn unreachable(resource: &Resource, error: &CallError) -> State {
    let message = format!("the CRD {} cannot be read: {error}", resource.crd_name());
    let problem = Diagnostic::error("crd::unreachable", message).located(resource.crd_location.clone());
    match error.class {
        Class::Permanent => {
            State::Refused(problem.help("the manager must be allowed to get, list, watch and patch CRDs"))
        }
        _ => State::Failed(problem, error.asked_to_wait()),
    }
}
