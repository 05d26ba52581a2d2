//! Keeping the CRDs of packages right, for as long as the manager runs: a task that looks at those of a package
//! whenever one of them changes, and again when a look has failed.
//!
//! A package is in force once all its CRDs are served as it wants them; its instances and children are watched
//! from then on. What concerns one CRD later (somebody edits it, deletes it, makes it anew) concerns the
//! instances of that kind alone.

mod consider;
mod entry;
mod events;
mod publish;
mod record;
mod stored;
mod wanted;
mod watch;

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::Ordering;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;
use tracing::{error, warn};

use super::hub::{self, Again};
use super::registry::Registered;
use super::watch::Watch;
use super::{Shared, contained};
use crate::children::{names, package_of_crd_value};
use crate::cluster::{ApiKind, CallError, Class, Cluster};
use crate::diag::Diagnostic;
use crate::package::Package;
use consider::{Past, Seen, State};
use entry::{Entry, REVERTS, WINDOW, contested_text, is_news, is_same};
use publish::Later;
use record::{Record, Spent};
use watch::Meta;

/// How long packages that are registered wait for one that is not yet, so that all are watched at once.
const GATHER: Duration = Duration::from_secs(1);
/// How long a package may take to come into force before its instances are cared for as if it were not loaded.
const ORPHANED: Duration = Duration::from_secs(10);
/// How long until the packages' CRDs are listed again when that has failed.
const RELIST: Duration = Duration::from_secs(5);
/// How many packages are looked at at once. A CRD may be a megabyte, and costs the server some work.
const LOOKS: usize = 8;
/// How long the API servers may take to serve a CRD as it is now. Objects listed at once may still be shown
/// as its former text has them (without a status, say), so they are listed once more, and what was put back is
/// not written before.
const SPREAD: Duration = Duration::from_secs(3);

/// The kind of CRDs.
static CRD: LazyLock<ApiKind> = LazyLock::new(ApiKind::crd);

/// How the packages stand after the first look at each.
#[derive(Debug, Default)]
pub(super) struct First {
    /// What keeps packages from being in force.
    pub problems: Vec<Diagnostic>,
    /// Whether one of them may come into force by itself.
    pub is_retrying: bool,
}

/// The CRDs of packages, in force or not.
///
/// # Errors
/// The API server cannot be reached.
pub(super) async fn labelled(cluster: &Cluster) -> Result<Vec<Value>, CallError> {
    let mut wait = Duration::from_millis(250);
    let mut attempts = 5;
    loop {
        match cluster.list(&CRD, None, names::OPERATOR).await {
            Err(error) if error.class == Class::Retry && attempts > 1 => {
                attempts -= 1;
                tokio::time::sleep(error.retry_after.unwrap_or(wait)).await;
                wait *= 2;
            }
            result => {
                return result.map(|mut crds| {
                    crds.retain(|crd| package_of_crd_value(crd).is_some());
                    crds
                });
            }
        }
    }
}

/// What keeps packages from being active in a cluster, as far as reading can tell: their CRDs, and what is stored.
pub(crate) async fn inspect(cluster: &Cluster, package: &Package) -> Vec<Diagnostic> {
    consider::inspect(cluster, &CRD, package).await
}

/// What the registrar begins with, also when it begins anew.
struct Start {
    shared: Arc<Shared>,
    packages: Vec<Arc<Package>>,
    /// The CRDs of any package, if they have just been listed.
    labelled: Mutex<Option<Vec<Value>>>,
    /// Who waits for the first verdict on all packages.
    first: Mutex<Option<oneshot::Sender<First>>>,
}

/// Keeps the CRDs of packages right until it is aborted; should it panic, it begins anew with what it finds.
/// `labelled`: the CRDs of any package. `first` ends with the first verdict on all packages.
pub(super) fn start(
    shared: Arc<Shared>,
    packages: Vec<Arc<Package>>,
    labelled: Vec<Value>,
    first: oneshot::Sender<First>,
) -> JoinHandle<()> {
    let (labelled, first) = (Mutex::new(Some(labelled)), Mutex::new(Some(first)));
    let start = Arc::new(Start { shared, packages, labelled, first });
    hub::supervise(Arc::new(Watch::new("packages".into())), None, move |_| run(Arc::clone(&start)))
}

/// Returns only if one of its tasks is broken.
async fn run(start: Arc<Start>) {
    let labelled = start.labelled.lock().unwrap_or_else(PoisonError::into_inner).take();
    // Listed anew: what has happened since it broke, nobody has seen.
    let is_again = labelled.is_none();
    let labelled = match labelled {
        Some(labelled) => labelled,
        None => listed(&start.shared).await,
    };
    let (sender, mut events) = mpsc::channel(256);
    let mut registrar = Registrar::new(start, labelled, is_again);
    let cluster = registrar.shared.clients.own().clone();
    registrar.looks.spawn(async move {
        watch::watch(cluster, sender).await;
        Look::Watch
    });
    registrar.go_on();
    loop {
        let due = registrar.due();
        tokio::select! {
            event = events.recv() => match event {
                Some(event) => registrar.on_event(event),
                None => return,
            },
            Some(look) = registrar.looks.join_next() => match look {
                Ok(Look::Package(index, Ok(seen))) => registrar.on_look(index, seen),
                Ok(Look::Package(index, Err(panic))) => registrar.on_panic(index, &panic),
                Ok(Look::Orphan(crd)) => registrar.on_orphan(&crd),
                Ok(Look::Watch) => return,
                Err(failure) => {
                    error!(%failure, "a task of the packages' CRDs was cut off; this is a bug of Operetta");
                    return;
                }
            },
            () = tokio::time::sleep_until(due) => {}
        }
        registrar.go_on();
    }
}

/// The CRDs of any package, however long it takes.
async fn listed(shared: &Shared) -> Vec<Value> {
    loop {
        match labelled(shared.clients.own()).await {
            Ok(labelled) => return labelled,
            Err(error) => warn!(%error, "the packages' CRDs cannot be listed; trying again"),
        }
        tokio::time::sleep(RELIST).await;
    }
}

/// What a task has come to.
enum Look {
    /// Of the package of that index; or the words of a panic.
    Package(usize, Result<Vec<Seen>, String>),
    Orphan(Value),
    Watch,
}

/// All CRDs of the cluster, as the watch has told.
#[derive(Default)]
struct Known {
    crds: HashMap<String, Meta>,
    /// None is missing.
    is_whole: bool,
}

impl Known {
    /// Whether a CRD of that group is there, or may be.
    fn has_group(&self, group: &str) -> bool {
        let is_of_group = |name: &String| name.split_once('.').is_some_and(|(_, of)| of == group);
        !self.is_whole || self.crds.keys().any(is_of_group)
    }
}

struct Registrar {
    shared: Arc<Shared>,
    packages: Vec<Entry>,
    /// Kinds of packages that are not in force. Their instances are only helped to go.
    orphans: BTreeMap<String, Arc<Registered>>,
    /// Kinds of packages that were in force when the registrar broke, until they are in force anew.
    former: BTreeMap<String, Arc<Registered>>,
    /// Kinds that other managers care for.
    others: BTreeMap<String, Arc<Registered>>,
    /// What was listed at the start, until it is known which of them are orphans.
    labelled: Vec<Value>,
    known: Known,
    looks: JoinSet<Look>,
    later: Vec<(Instant, Later)>,
    start: Arc<Start>,
    /// Not all packages have had a verdict.
    is_gathering: bool,
    /// Something is watched already.
    is_running: bool,
    /// It has begun anew: what the watch tells first may be news.
    is_again: bool,
    started: Instant,
}

impl Registrar {
    /// With what is in force already, if it begins anew.
    fn new(start: Arc<Start>, labelled: Vec<Value>, is_again: bool) -> Self {
        let registry = start.shared.registry();
        let by_name = |loaded: bool| {
            let those = registry.iter().filter(move |registered| registered.package.is_some() == loaded);
            those.map(|registered| (registered.crd.to_string(), Arc::clone(registered))).collect()
        };
        let orphans: BTreeMap<String, _> = by_name(false);
        let mut registrar = Self {
            shared: Arc::clone(&start.shared),
            packages: start.packages.iter().map(|package| Entry::new(Arc::clone(package))).collect(),
            former: by_name(true),
            others: BTreeMap::new(),
            looks: JoinSet::new(),
            known: Known::default(),
            later: Vec::new(),
            start,
            is_gathering: true,
            is_running: is_again,
            is_again,
            started: Instant::now(),
            orphans,
            labelled,
        };
        let is_there = |name: &String| registrar.labelled.iter().any(|crd| crd["metadata"]["name"] == **name);
        let gone: Vec<String> = registrar.orphans.keys().filter(|name| !is_there(name)).cloned().collect();
        for name in gone {
            registrar.on_gone(&name, "");
        }
        registrar
    }

    /// When something is to be done although nothing happens.
    fn due(&self) -> Instant {
        let is_full = self.packages.iter().filter(|p| p.is_looking).count() >= LOOKS;
        // Those that have to wait for another are woken by the end of its look.
        let may_look = |(index, p): &(usize, &Entry)| !is_full && !p.is_looking && !self.is_behind(*index);
        let looks = self.packages.iter().enumerate().filter(may_look).filter_map(|(_, p)| p.next);
        let gathered = self.is_gathering.then(|| self.started + GATHER);
        let later = self.later.iter().map(|(at, _)| *at);
        let is_asked = |p: &&Entry| p.is_published && !p.is_looking;
        let spent = self.packages.iter().filter(is_asked).flat_map(|p| &p.crds);
        let spent = spent.filter(|crd| !crd.is_contested).filter_map(|crd| crd.spent_at);
        let now = Instant::now();
        let due = looks.chain(later).chain(spent).chain(gathered.filter(|at| *at > now)).min();
        due.unwrap_or_else(|| now + Duration::from_secs(3_600))
    }

    /// Starts the looks that are due, publishes what can be, and tells the first verdict.
    fn go_on(&mut self) {
        let now = Instant::now();
        self.find_spent(now);
        for index in 0..self.packages.len() {
            let is_due = self.packages[index].next.is_some_and(|at| at <= now);
            if self.packages.iter().filter(|p| p.is_looking).count() >= LOOKS {
                break;
            }
            if is_due && !self.packages[index].is_looking && !self.is_behind(index) {
                self.look(index, now);
            }
        }
        let (due, later) = std::mem::take(&mut self.later).into_iter().partition(|(at, _)| *at <= now);
        self.later = later;
        for (_, what) in due {
            self.list_once_more(&what);
        }
        let is_decided = self.packages.iter().all(|p| p.verdict.is_some());
        if is_decided || !self.is_gathering || now >= self.started + GATHER {
            self.publish();
        }
        self.shared.monitor.inactive(self.inactive());
        if !is_decided {
            return;
        }
        self.is_gathering = false;
        let first = self.start.first.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(first) = first {
            let verdicts = || self.packages.iter().filter_map(|p| p.verdict.as_ref());
            let problems = verdicts().flat_map(|(problems, _)| problems).cloned().collect();
            let is_retrying = verdicts().any(|(_, is_passing)| *is_passing);
            // Nobody may wait for it any more.
            let _ = first.send(First { problems, is_retrying });
        }
    }

    /// Whether an earlier package that wants one of its CRDs has the first go.
    fn is_behind(&self, index: usize) -> bool {
        let entry = &self.packages[index];
        entry.verdict.is_none()
            && self.packages[..index].iter().any(|p| p.verdict.is_none() && p.shares_a_crd(entry))
    }

    fn look(&mut self, index: usize, now: Instant) {
        // In force here is in force, whatever has become of the label.
        let others = self.packages.iter().enumerate().filter(|(other, _)| *other != index);
        let claims: Vec<Diagnostic> = others
            .filter(|(_, p)| p.is_published)
            .flat_map(|(_, other)| {
                let mine = &self.packages[index].package.resources;
                mine.iter().filter_map(|resource| {
                    other.position(resource.crd_name())?;
                    let claimed = wanted::claimed(resource.crd_name(), &other.package.name);
                    Some(claimed.located(resource.crd_location.clone()))
                })
            })
            .collect();
        let entry = &mut self.packages[index];
        entry.next = None;
        if !claims.is_empty() {
            entry.judge(claims, false, now);
            return;
        }
        entry.is_looking = true;
        let package = Arc::clone(&entry.package);
        let past: Vec<Past> = entry
            .crds
            .iter()
            .map(|crd| Past {
                was_right: crd.was_right,
                may_mend: crd.may_mend(now),
                spent: crd.spent.clone(),
            })
            .collect();
        let shared = Arc::clone(&self.shared);
        self.looks.spawn(async move {
            let hold = |crd: &str| shared.hold(crd, Some("it has been put back".into()));
            let (lease, namespace) = (&shared.lease, &shared.namespace);
            let ours = wanted::Ours { lease, namespace, spent: &Spent::NOTHING };
            let seen = consider::consider((shared.clients.own(), ours), &CRD, &package, &past, &hold);
            Look::Package(index, contained(seen).await)
        });
    }

    fn on_look(&mut self, index: usize, seen: Vec<Seen>) {
        let now = Instant::now();
        let (mut problems, mut awaited, mut is_passing, mut after) = (Vec::new(), Vec::new(), false, None);
        let (mut changed, mut recorded, mut refused) = (Vec::new(), Vec::new(), Vec::new());
        let entry = &mut self.packages[index];
        entry.is_looking = false;
        for (position, seen) in seen.into_iter().enumerate() {
            let crd = &mut entry.crds[position];
            crd.was_changed |= seen.was_changed;
            if let State::Right(facts) | State::Contested(facts) = &seen.state
                && let Some(lease) = crd.taken_by(facts).filter(|lease| *lease != self.shared.lease)
            {
                warn!(
                    package = %entry.package.name, %lease,
                    "another manager has this package in force as well: end one of them, or give them different \
                     packages"
                );
            }
            match seen.state {
                State::Right(facts) => {
                    let needed = Record::needed(&entry.package.resources[position], &self.shared.namespace);
                    crd.on_record(&facts.record, &needed, now);
                    if seen.reverted_by.is_some() {
                        crd.reverts.retain(|at| now.duration_since(*at) < WINDOW);
                        crd.reverts.push(now);
                    }
                    let is_same = is_same(crd.facts.as_ref(), &facts);
                    if !is_same || crd.is_contested || seen.reverted_by.is_some() {
                        changed.push((position, seen.reverted_by));
                    } else if crd.facts.as_ref().is_some_and(|before| before.record != facts.record) {
                        recorded.push(position);
                    }
                    (crd.facts, crd.was_right, crd.is_contested) = (Some(facts), true, false);
                }
                State::Contested(facts) => {
                    let is_same = is_same(crd.facts.as_ref(), &facts)
                        && crd.facts.as_ref().is_some_and(|before| before.record == facts.record);
                    if !is_same || !crd.is_contested {
                        crd.reverts.push(now);
                        crd.reverts.drain(..crd.reverts.len().saturating_sub(REVERTS));
                        crd.contender.clone_from(&seen.reverted_by);
                        changed.push((position, seen.reverted_by));
                    }
                    (crd.facts, crd.is_contested) = (Some(facts), true);
                    let again = crd.reverts.last().map_or(now, |last| *last + WINDOW);
                    if again <= now {
                        // They have let it be: one more try.
                        crd.is_contested = false;
                        crd.reverts.clear();
                    }
                    entry.next = Some(entry.next.map_or(again, |next| next.min(again)));
                }
                State::Awaited(why) => awaited.push(why),
                State::Refused(problem) => {
                    if problem.code == stored::CODE && !entry.told.contains(&problem.message) {
                        refused.push((position, problem.message.clone()));
                    }
                    problems.push(problem);
                }
                State::Failed(problem, wait) => {
                    is_passing = true;
                    after = after.max(wait);
                    problems.push(problem);
                }
            }
        }
        entry.conclude(problems, &awaited, is_passing, after, now);
        if std::mem::take(&mut entry.is_overtaken) {
            let mut crds = entry.package.resources.iter().zip(&entry.crds);
            if crds.any(|(r, crd)| is_news(self.known.crds.get(r.crd_name()), crd.facts.as_ref())) {
                entry.next = Some(now);
            }
        }
        for (position, text) in refused {
            let resource = &self.packages[index].package.resources[position];
            self.tell_of_crd(resource.crd_name(), "SchemaRefused", &text);
        }
        self.explain_orphans();
        for position in recorded {
            self.on_record(index, position);
        }
        for (position, reverted_by) in changed {
            self.on_change(index, position, reverted_by);
        }
    }

    /// A look was cut off by a panic: it says nothing, and is tried again.
    fn on_panic(&mut self, index: usize, panic: &str) {
        let entry = &mut self.packages[index];
        entry.is_looking = false;
        error!(%panic, package = %entry.package.name, "a look at its CRDs panicked; this is a bug of Operetta");
        let problem = Diagnostic::error("crd::panic", format!("a look at the CRDs panicked: {panic}"))
            .help("this is a bug of Operetta; the look is tried again");
        entry.conclude(vec![problem], &[], true, None, Instant::now());
    }

    /// A Warning on a CRD.
    fn tell_of_crd(&self, name: &str, reason: &str, text: &str) {
        let seen = |p: &Entry| Some(p.crds[p.position(name)?].facts.as_ref()?.uid.clone());
        let uid = self.packages.iter().find_map(seen);
        let uid = uid.or_else(|| self.known.crds.get(name).map(|meta| meta.uid.clone()));
        let about = json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": name, "uid": uid},
        });
        self.shared.events.publish(&about, true, reason, text);
    }

    /// A CRD of a package is another one than before, has another text, or is contested.
    fn on_change(&mut self, index: usize, position: usize, reverted_by: Option<String>) {
        let entry = &self.packages[index];
        let resource = &entry.package.resources[position];
        let (name, crd) = (resource.crd_name(), &entry.crds[position]);
        let Some(facts) = &crd.facts else { return };
        let contested = contested_text(name, &entry.package, crd);
        if let Some(who) = reverted_by {
            let (reason, text) = match &contested {
                Some(text) => ("CRDContested", text.clone()),
                None => ("CRDMended", format!("{who} has changed it; what Operetta needs has been put back")),
            };
            warn!(crd = %name, package = %entry.package.name, "{text}");
            self.tell_of_crd(name, reason, &text);
        }
        if let Some(text) = contested {
            self.shared.hold(name, (!facts.has_status).then(|| text.into()));
        }
        if !entry.is_published {
            self.shared.hold(name, None);
            return;
        }
        let crd: Arc<str> = name.into();
        self.rebuild();
        self.watch_children_of(&crd);
        self.shared.schemas.fetch_add(1, Ordering::Relaxed);
        if let Some(registered) = self.shared.registry().get(&crd) {
            self.shared.hub.watch_instances(&self.shared, &registered, Again::Relist);
        }
        self.list_later(Later::Instances(crd));
    }
}
