//! Keeping the CRDs of packages right, for as long as the manager runs: a task that looks at those of a package
//! whenever one of them changes, and again when a look has failed.
//!
//! A package is in force once all its CRDs are served as it wants them; its instances and children are watched
//! from then on. What concerns one CRD later (somebody edits it, deletes it, makes it anew) concerns the
//! instances of that kind alone.

mod consider;
mod wanted;
mod watch;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::Ordering;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::{error, info, warn};

use super::Shared;
use super::hub::Again;
use super::registry::{Registered, Registry};
use crate::children::names;
use crate::cluster::{ApiKind, CallError, Class, Cluster};
use crate::crd;
use crate::diag::{self, Diagnostic};
use crate::package::Package;
use consider::{Facts, Past, Seen, State};
use watch::{CrdEvent, Meta};

/// How long packages that are registered wait for one that is not yet, so that all are watched at once.
const GATHER: Duration = Duration::from_secs(1);
/// How long a package may take to come into force before its instances are cared for as if it were not loaded.
const ORPHANED: Duration = Duration::from_secs(10);
/// How long the server may take to establish a CRD before that is told: many large ones at once keep it busy.
const ESTABLISH: Duration = Duration::from_secs(120);
/// How many packages are looked at at once. A CRD may be a megabyte, and costs the server some work.
const LOOKS: usize = 8;
/// How long until a look that failed is repeated: doubled each time, up to the last.
const RETRY_FIRST: Duration = Duration::from_millis(500);
const RETRY_LAST: Duration = Duration::from_secs(300);
/// How long until what is awaited is looked at although no event has told of it: doubled likewise.
const AWAIT_FIRST: Duration = Duration::from_millis(50);
const AWAIT_LAST: Duration = Duration::from_secs(30);
/// A CRD that is put back so often within [`WINDOW`] is left to whoever does it, until they have let it be for
/// as long.
const REVERTS: usize = 3;
const WINDOW: Duration = Duration::from_secs(600);
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

/// The CRDs that bear the name of a package, in force or not.
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
            result => return result,
        }
    }
}

/// Keeps the CRDs of packages right until it is dropped. `labelled`: the CRDs of any package. What comes back
/// ends with the first verdict on all packages.
pub(super) async fn run(
    shared: Arc<Shared>,
    packages: Vec<Arc<Package>>,
    labelled: Vec<Value>,
    first: oneshot::Sender<First>,
) {
    let (sender, mut events) = mpsc::channel(256);
    let mut looks = JoinSet::new();
    let cluster = shared.clients.own().clone();
    looks.spawn(async move {
        watch::watch(cluster, sender).await;
        Look::Watch
    });
    let mut registrar = Registrar {
        shared,
        packages: packages.into_iter().map(Entry::new).collect(),
        orphans: BTreeMap::new(),
        labelled,
        known: HashMap::new(),
        looks,
        later: Vec::new(),
        first: Some(first),
        is_running: false,
        started: Instant::now(),
    };
    registrar.go_on();
    loop {
        let due = registrar.due();
        tokio::select! {
            event = events.recv() => match event {
                Some(event) => registrar.on_event(event),
                None => return,
            },
            Some(look) = registrar.looks.join_next() => match look {
                Ok(Look::Package(index, seen)) => registrar.on_look(index, seen),
                Ok(Look::Orphan(crd)) => registrar.on_orphan(&crd),
                Ok(Look::Watch) => {}
                Err(failure) => error!(%failure, "a look at a package's CRDs was cut off; this is a bug of Operetta"),
            },
            () = tokio::time::sleep_until(due) => {}
        }
        registrar.go_on();
    }
}

/// What a task has come to.
enum Look {
    Package(usize, Vec<Seen>),
    Orphan(Value),
    Watch,
}

/// A package that is to be in force.
struct Entry {
    package: Arc<Package>,
    crds: Vec<Crd>,
    /// A look at it is under way.
    is_looking: bool,
    /// Something has happened meanwhile, which the look may or may not have seen.
    is_overtaken: bool,
    /// When it is looked at next.
    next: Option<Instant>,
    /// Looks in a row that came to nothing.
    failures: u32,
    /// Since when something is awaited.
    awaiting: Option<Instant>,
    /// What keeps it from being in force, and whether that may pass by itself; `None` before the first look.
    verdict: Option<(Vec<Diagnostic>, bool)>,
    /// What was told of that last.
    told: String,
    /// It is in force: its kinds are watched.
    is_published: bool,
}

/// A CRD of a package.
#[derive(Default)]
struct Crd {
    facts: Option<Facts>,
    was_right: bool,
    /// When somebody put it back.
    reverts: Vec<Instant>,
    is_contested: bool,
    /// Who put it back last, while it is contested.
    contender: Option<String>,
    /// Its objects are to be listed once more when it is served everywhere.
    was_changed: bool,
}

impl Entry {
    fn new(package: Arc<Package>) -> Self {
        let crds = package.resources.iter().map(|_| Crd::default()).collect();
        Self {
            package,
            crds,
            is_looking: false,
            is_overtaken: false,
            next: Some(Instant::now()),
            failures: 0,
            awaiting: None,
            verdict: None,
            told: String::new(),
            is_published: false,
        }
    }

    fn position(&self, crd: &str) -> Option<usize> {
        self.package.resources.iter().position(|resource| resource.crd_name() == crd)
    }

    fn is_complete(&self) -> bool {
        self.crds.iter().all(|crd| crd.facts.is_some())
    }

    fn shares_a_crd(&self, other: &Self) -> bool {
        self.package.resources.iter().any(|resource| other.position(resource.crd_name()).is_some())
    }
}

impl Crd {
    /// Whether it may be mended: not after the third time.
    fn may_mend(&self, now: Instant) -> bool {
        let recent = self.reverts.iter().filter(|at| now.duration_since(**at) < WINDOW).count();
        !self.is_contested && recent + 1 < REVERTS
    }
}

struct Registrar {
    shared: Arc<Shared>,
    packages: Vec<Entry>,
    /// Kinds of packages that are not in force. Their instances are only helped to go.
    orphans: BTreeMap<String, Arc<Registered>>,
    /// What was listed at the start, until it is known which of them are orphans.
    labelled: Vec<Value>,
    /// All CRDs of the cluster, as the watch has told.
    known: HashMap<String, Meta>,
    looks: JoinSet<Look>,
    later: Vec<(Instant, Later)>,
    first: Option<oneshot::Sender<First>>,
    /// Something is watched already.
    is_running: bool,
    started: Instant,
}

/// What is to be listed once more.
#[derive(PartialEq, Eq)]
enum Later {
    /// Instances, which are written from then on.
    Instances(Arc<str>),
    Children(String, String),
}

impl Registrar {
    /// When something is to be done although nothing happens.
    fn due(&self) -> Instant {
        let is_full = self.packages.iter().filter(|p| p.is_looking).count() >= LOOKS;
        // Those that have to wait for another are woken by the end of its look.
        let may_look = |(index, p): &(usize, &Entry)| !is_full && !p.is_looking && !self.is_behind(*index);
        let looks = self.packages.iter().enumerate().filter(may_look).filter_map(|(_, p)| p.next);
        let gathered = self.first.is_some().then(|| self.started + GATHER);
        let later = self.later.iter().map(|(at, _)| *at);
        let now = Instant::now();
        let due = looks.chain(later).chain(gathered.filter(|at| *at > now)).min();
        due.unwrap_or_else(|| now + Duration::from_secs(3_600))
    }

    /// Starts the looks that are due, publishes what can be, and tells the first verdict.
    fn go_on(&mut self) {
        let now = Instant::now();
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
        if is_decided || self.first.is_none() || now >= self.started + GATHER {
            self.publish();
        }
        if is_decided && let Some(first) = self.first.take() {
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
            .map(|crd| Past { was_right: crd.was_right, may_mend: crd.may_mend(now) })
            .collect();
        let shared = Arc::clone(&self.shared);
        self.looks.spawn(async move {
            let hold = |crd: &str| shared.hold(crd, Some("it has been put back".into()));
            let seen = consider::consider(shared.clients.own(), &CRD, &package, &past, &hold).await;
            Look::Package(index, seen)
        });
    }

    fn on_look(&mut self, index: usize, seen: Vec<Seen>) {
        let now = Instant::now();
        let (mut problems, mut awaited, mut is_passing, mut after) = (Vec::new(), Vec::new(), false, None);
        let mut changed = Vec::new();
        let entry = &mut self.packages[index];
        entry.is_looking = false;
        for (position, seen) in seen.into_iter().enumerate() {
            let crd = &mut entry.crds[position];
            crd.was_changed |= seen.was_changed;
            match seen.state {
                State::Right(facts) => {
                    let facts = Some(facts);
                    if seen.reverted_by.is_some() {
                        crd.reverts.retain(|at| now.duration_since(*at) < WINDOW);
                        crd.reverts.push(now);
                    }
                    if !is_same(crd.facts.as_ref(), facts.as_ref())
                        || crd.is_contested
                        || seen.reverted_by.is_some()
                    {
                        changed.push((position, seen.reverted_by));
                    }
                    (crd.facts, crd.was_right, crd.is_contested) = (facts, true, false);
                }
                State::Contested(facts) => {
                    let facts = Some(facts);
                    if !is_same(crd.facts.as_ref(), facts.as_ref()) || !crd.is_contested {
                        crd.reverts.push(now);
                        crd.reverts.drain(..crd.reverts.len().saturating_sub(REVERTS));
                        crd.contender.clone_from(&seen.reverted_by);
                        changed.push((position, seen.reverted_by));
                    }
                    (crd.facts, crd.is_contested) = (facts, true);
                    let again = crd.reverts.last().map_or(now, |last| *last + WINDOW);
                    if again <= now {
                        // They have let it be: one more try.
                        crd.is_contested = false;
                        crd.reverts.clear();
                    }
                    entry.next = Some(entry.next.map_or(again, |next| next.min(again)));
                }
                State::Awaited(why) => awaited.push(why),
                State::Refused(problem) => problems.push(problem),
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
            if crds.any(|(r, crd)| is_news(self.known.get(r.crd_name()), crd.facts.as_ref())) {
                entry.next = Some(now);
            }
        }
        for (position, reverted_by) in changed {
            self.on_change(index, position, reverted_by);
        }
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
            let about = json!({
                "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
                "metadata": {"name": name, "uid": facts.uid},
            });
            self.shared.events.publish(&about, true, reason, &text);
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
        self.shared.schemas.fetch_add(1, Ordering::Relaxed);
        if let Some(registered) = self.shared.registry().get(&crd) {
            self.shared.hub.watch_instances(&self.shared, &registered, Again::Relist);
        }
        self.list_later(Later::Instances(crd));
    }

    fn list_later(&mut self, what: Later) {
        self.later.retain(|(_, other)| *other != what);
        self.later.push((Instant::now() + SPREAD, what));
    }

    fn list_once_more(&self, what: &Later) {
        match what {
            Later::Instances(crd) => {
                if let Some(registered) = self.shared.registry().get(crd) {
                    if registered.contested.is_none() {
                        self.shared.hold(crd, None);
                    }
                    self.shared.hub.watch_instances(&self.shared, &registered, Again::Relist);
                }
            }
            Later::Children(api_version, kind) => {
                self.shared.hub.watch_children(&self.shared, api_version, kind, Again::Relist);
            }
        }
    }

    /// Puts into force what can be.
    fn publish(&mut self) {
        let ready: Vec<usize> = (0..self.packages.len())
            .filter(|index| !self.packages[*index].is_published && self.packages[*index].is_complete())
            .collect();
        for index in &ready {
            let entry = &mut self.packages[*index];
            entry.is_published = true;
            info!(package = %entry.package.name, "in force");
        }
        let orphans = self.adopt_orphans();
        if ready.is_empty() && orphans.is_empty() {
            return;
        }
        self.rebuild();
        let registry = self.shared.registry();
        let is_first = !std::mem::replace(&mut self.is_running, true);
        let mut kinds: BTreeMap<(String, String), bool> = BTreeMap::new();
        let mut entries: Vec<Arc<Registered>> = Vec::new();
        for index in ready {
            let entry = &mut self.packages[index];
            for (crd, resource) in entry.crds.iter_mut().zip(&entry.package.resources) {
                let name = resource.crd_name();
                let Some(registered) = registry.get(name) else { continue };
                for (api_version, kind) in &registered.child_kinds {
                    let reads = registered.reads_content(api_version, kind);
                    *kinds.entry((api_version.clone(), kind.clone())).or_default() |= reads;
                }
                if std::mem::take(&mut crd.was_changed) {
                    // What is listed before the new text is served everywhere may show no status.
                    self.shared.hold(name, Some("it has just been augmented".into()));
                    self.later.push((Instant::now() + SPREAD, Later::Instances(name.into())));
                }
                entries.push(registered);
            }
        }
        for name in orphans {
            let Some(registered) = registry.get(&name) else { continue };
            for kind in &registered.child_kinds {
                kinds.entry(kind.clone()).or_default();
            }
            entries.push(registered);
        }
        for ((api_version, kind), reads) in kinds {
            // Those that are watched already were looked at without what this package reads of them.
            let again = if reads && !is_first { Again::Relist } else { Again::Keep };
            self.shared.hub.watch_children(&self.shared, &api_version, &kind, again);
        }
        for registered in entries {
            let again = if is_first { Again::Keep } else { Again::Relist };
            self.shared.hub.watch_instances(&self.shared, &registered, again);
        }
    }

    /// Takes in the CRDs that no package in force has; gives the names of the new ones.
    fn adopt_orphans(&mut self) -> Vec<String> {
        let (mut found, mut waiting) = (Vec::new(), Vec::new());
        let may_wait = self.started.elapsed() < ORPHANED;
        for crd in std::mem::take(&mut self.labelled) {
            let name = crd["metadata"]["name"].as_str().unwrap_or_default().to_owned();
            if self.is_in_force(&name) || self.orphans.contains_key(&name) {
                continue;
            }
            let is_awaited = |p: &Entry| p.verdict.is_none() && p.position(&name).is_some();
            if may_wait && self.packages.iter().any(is_awaited) {
                waiting.push(crd);
                continue;
            }
            let Some(kind) = crd::kind(&crd) else { continue };
            warn!(crd = %name, "its package is not in force: instances are left as they are, and helped to go when they are deleted");
            let registered = Registered {
                crd: name.as_str().into(),
                kind: self.shared.kinds.insert((&kind).into()),
                package: None,
                child_kinds: wanted::recorded_kinds(&crd),
                contested: None,
            };
            self.orphans.insert(name.clone(), Arc::new(registered));
            found.push(name);
        }
        self.labelled = waiting;
        found
    }

    fn is_in_force(&self, crd: &str) -> bool {
        self.packages.iter().any(|p| p.is_published && p.position(crd).is_some())
    }

    fn on_orphan(&mut self, crd: &Value) {
        self.labelled.push(crd.clone());
    }

    /// Swaps in a registry of what is in force now.
    fn rebuild(&mut self) {
        let mut all: Vec<Arc<Registered>> = Vec::new();
        for entry in self.packages.iter().filter(|p| p.is_published) {
            for (index, (crd, resource)) in entry.crds.iter().zip(&entry.package.resources).enumerate() {
                let name = resource.crd_name();
                self.orphans.remove(name);
                let mut child_kinds = crd.facts.as_ref().map(|f| f.child_kinds.clone()).unwrap_or_default();
                child_kinds.extend(resource.children.iter().flat_map(|child| child.kinds.iter().cloned()));
                all.push(Arc::new(Registered {
                    crd: name.into(),
                    kind: self.shared.kinds.insert((&resource.kind).into()),
                    package: Some((Arc::clone(&entry.package), index)),
                    child_kinds,
                    contested: contested_text(name, &entry.package, crd).map(Into::into),
                }));
            }
        }
        all.extend(self.orphans.values().cloned());
        self.shared.set_registry(Registry::new(all));
    }

    fn on_event(&mut self, event: CrdEvent) {
        match event {
            CrdEvent::Seen(name, meta, is_first) => {
                let before = self.known.insert(name.clone(), meta.clone());
                if before.as_ref() == Some(&meta) {
                    return;
                }
                self.shared.served.crds_changed();
                self.look_again(&name, Some(&meta));
                // What comes with the first list has not changed since it was found.
                let changed =
                    before.map_or(!is_first, |b| (&b.uid, b.generation) != (&meta.uid, meta.generation));
                self.on_child_kind(&name, changed);
                if meta.is_labelled
                    && !self.is_ours(&name)
                    && !self.orphans.contains_key(&name)
                    && self.first.is_none()
                {
                    self.look_at_orphan(name);
                }
            }
            CrdEvent::Gone(name, uid) => {
                self.known.remove(&name);
                self.shared.served.crds_changed();
                self.on_gone(&name, &uid);
                self.look_again(&name, None);
                self.on_child_kind(&name, true);
            }
        }
    }

    /// Looks at the packages that want a CRD, unless their last look saw as much of it.
    fn look_again(&mut self, name: &str, meta: Option<&Meta>) {
        for entry in &mut self.packages {
            let Some(position) = entry.position(name) else { continue };
            let seen = entry.crds[position].facts.as_ref();
            if entry.is_looking {
                entry.is_overtaken = true;
            } else if is_news(meta, seen) {
                entry.next = Some(Instant::now());
                entry.failures = 0;
            }
        }
    }

    fn is_ours(&self, crd: &str) -> bool {
        self.packages.iter().any(|p| p.position(crd).is_some())
    }

    fn look_at_orphan(&mut self, name: String) {
        let shared = Arc::clone(&self.shared);
        self.looks.spawn(async move {
            match shared.clients.own().get(&CRD, None, &name).await {
                Ok(Some(crd)) => Look::Orphan(crd),
                // Gone again; or its next event tells.
                Ok(None) | Err(_) => Look::Orphan(Value::Null),
            }
        });
    }

    /// A CRD is gone, and all its instances with it.
    fn on_gone(&mut self, name: &str, uid: &str) {
        let mut was_known = self.orphans.remove(name).is_some();
        for entry in &mut self.packages {
            let Some(position) = entry.position(name) else { continue };
            let crd = &mut entry.crds[position];
            // Or it has been made anew already.
            if crd.facts.as_ref().is_some_and(|facts| facts.uid == uid) {
                *crd = Crd::default();
                was_known |= entry.is_published;
            }
        }
        if !was_known {
            return;
        }
        info!(crd = %name, "gone");
        self.shared.hub.forget_instances(name);
        let gone = self.shared.index().drop_instances(&name.into());
        for key in gone {
            self.shared.forget(&key);
        }
        self.rebuild();
    }

    /// A CRD may be that of children.
    fn on_child_kind(&mut self, name: &str, has_changed: bool) {
        let Some((plural, group)) = name.split_once('.') else { return };
        let registry = self.shared.registry();
        let kinds: BTreeSet<(String, String)> =
            registry.iter().flat_map(|registered| registered.child_kinds.iter().cloned()).collect();
        let of_group = kinds
            .into_iter()
            .filter(|(api_version, _)| api_version.split_once('/').is_some_and(|(of, _)| of == group));
        let mut is_concerned = false;
        for (api_version, kind) in of_group {
            let served = self.shared.kinds.known(&api_version, &kind);
            if served.is_none_or(|served| served.plural != plural) {
                is_concerned = true;
                continue;
            }
            if has_changed {
                info!(crd = %name, %kind, "the CRD of children has changed");
                self.shared.kinds.forget(&api_version, &kind);
                self.shared.schemas.fetch_add(1, Ordering::Relaxed);
                self.shared.index().unsettle_kind(&api_version, &kind);
                self.shared.hub.watch_children(&self.shared, &api_version, &kind, Again::Relist);
                self.list_later(Later::Children(api_version, kind));
            }
        }
        if is_concerned {
            self.shared.hub.rediscover();
        }
    }
}

impl Entry {
    /// Draws the conclusion from a look: in force, to be looked at again, or not to be had.
    fn conclude(
        &mut self,
        mut problems: Vec<Diagnostic>,
        awaited: &[String],
        is_passing: bool,
        after: Option<Duration>,
        now: Instant,
    ) {
        if problems.is_empty() && awaited.is_empty() {
            (self.failures, self.awaiting) = (0, None);
            self.judge(Vec::new(), false, now);
            return;
        }
        self.failures = self.failures.saturating_add(1);
        let doubled = |first: Duration, last: Duration| {
            first.saturating_mul(2u32.saturating_pow(self.failures.saturating_sub(1).min(16))).min(last)
        };
        if problems.is_empty() {
            let since = *self.awaiting.get_or_insert(now);
            self.wake(now + doubled(AWAIT_FIRST, AWAIT_LAST));
            if now.duration_since(since) < ESTABLISH {
                return;
            }
            let waited = ESTABLISH.as_secs();
            problems.extend(awaited.iter().map(|why| {
                Diagnostic::error("crd::not-established", format!("{why}, for more than {waited} s"))
            }));
            self.judge(problems, true, now);
            return;
        }
        let wait = if is_passing { doubled(RETRY_FIRST, RETRY_LAST) } else { RETRY_LAST };
        let wait = after.unwrap_or_else(|| wait.mul_f64(0.8 + 0.4 * fastrand::f64()));
        self.wake(now + wait);
        self.judge(problems, is_passing, now);
    }

    fn wake(&mut self, at: Instant) {
        self.next = Some(self.next.map_or(at, |next| next.min(at)));
    }

    /// Records how it stands, and tells it if that is news.
    fn judge(&mut self, problems: Vec<Diagnostic>, is_passing: bool, now: Instant) {
        let text = diag::render(&problems, false);
        let name = &self.package.name;
        // The first verdict is told by whoever has started the manager.
        if self.verdict.is_some() && self.told != text {
            for problem in &problems {
                warn!(package = %name, code = problem.code, "{}", problem.message);
            }
        }
        if !problems.is_empty() && !is_passing {
            self.wake(now + RETRY_LAST);
        }
        self.told = text;
        self.verdict = Some((problems, is_passing));
    }
}

/// What is told of a contested CRD.
fn contested_text(name: &str, package: &Package, crd: &Crd) -> Option<String> {
    let facts = crd.facts.as_ref().filter(|_| crd.is_contested)?;
    let lost =
        if facts.has_status { "" } else { " Without its status subresource no instance can be written." };
    Some(format!(
        "the CRD {name} has been put back {REVERTS} times in {} minutes, last by {}, without what Operetta adds, and \
         is left as it is.{lost} Keep what `operetta crd` prints for the package {} where the CRD comes from.",
        WINDOW.as_secs() / 60,
        crd.contender.as_deref().unwrap_or("somebody"),
        package.name,
    ))
}

/// Whether nothing of it has changed that concerns instances.
fn is_same(before: Option<&Facts>, now: Option<&Facts>) -> bool {
    let key = |facts: &Facts| (facts.uid.clone(), facts.generation, facts.child_kinds.clone());
    before.map(key) == now.map(key)
}

/// Whether what the watch tells of a CRD is more than was looked at.
fn is_news(meta: Option<&Meta>, seen: Option<&Facts>) -> bool {
    match (meta, seen) {
        (Some(meta), Some(facts)) => {
            facts.uid != meta.uid || is_later(&meta.resource_version, &facts.resource_version)
        }
        (None, None) => false,
        _ => true,
    }
}

/// Whether a resourceVersion is later than another; if that cannot be told, it is.
fn is_later(a: &str, b: &str) -> bool {
    match (a.parse::<u64>(), b.parse::<u64>()) {
        (Ok(a), Ok(b)) => a > b,
        _ => a != b,
    }
}
