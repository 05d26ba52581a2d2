//! Plays cases on a real control plane, in real time. Each has a namespace of its own, which is removed afterwards. Nothing is
//! touched that this process has not created.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use operetta_embedded::Stamp;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::commands;
use super::disturbance::mixed;
use super::ended::{Ended, Failure, failed};
use super::faults::Faults;
use super::objects::Source;
use super::possible::impediment;
use super::steps::{FIELD_MANAGER, approval, asks, checks, judge, request, tracked, unmet, violation};
use super::suite::{Action, Case, Command, Expect, Step, Suite};
use super::view::Kinds;
use super::watcher::Watcher;
use crate::api::{ApiKind, CallError, Class, Gvk};
use crate::cluster::{Cluster, Kinds as Discovered, Propagation};
use crate::diag::{Diagnostic, Location};
use crate::manager::{Config, Manager};
use crate::package::plan::written_duration;
use crate::package::test_file::Address;
use crate::plan::plan_run_kind;

/// The Lease of the manager, so another manager keeps its kinds.
const LEASE: &str = "operetta-system/operetta-test";
/// The label of the namespaces.
const LABEL: &str = "operetta-test";
/// How often one looks.
const POLL: Duration = Duration::from_millis(250);
/// How long an expectation may take at most, and a question, a kind and a deletion.
const PATIENCE: Duration = Duration::from_secs(180);

/// A control plane on which cases are played.
pub(crate) struct Ground {
    managed: Managed,
    is_local: bool,
    user: String,
    /// The case that is being played.
    ongoing: Option<Play>,
}

impl Ground {
    pub(crate) fn new(cluster: Cluster, is_local: bool, user: String) -> Self {
        Self { managed: Managed { cluster, running: None }, is_local, user, ongoing: None }
    }

    /// Plays a case, or says why it cannot be played here.
    pub(crate) async fn play(&mut self, suites: &[Suite], place: (usize, usize)) -> Ended {
        let (suite, case) = (&suites[place.0], &suites[place.0].cases[place.1]);
        let mut ended = Ended::of(place);
        if let Some(why) = impediment(suite, case, self.is_local) {
            ended.skipped = Some(why);
            return ended;
        }
        let began = Instant::now();
        let managed = &mut self.managed;
        let play = self.ongoing.insert(Play::new(managed.cluster.clone(), self.user.clone(), suite, case));
        let played = async {
            managed.start(suites, place.0, &case.location).await?;
            play.begin(&case.location).await?;
            for step in &case.steps {
                if matches!(step.action, Action::RestartManager) {
                    managed.stop().await;
                    managed.start(suites, place.0, &step.location).await?;
                } else {
                    play.step(step).await?;
                }
                let snapshot = play.look(&step.location).await?;
                play.watcher.note(&snapshot);
            }
            Ok(())
        };
        ended.failure = played.await.err();
        let left = play.remove(&case.location).await;
        ended.failure = ended.failure.or(left.err());
        ended.reached = std::mem::take(&mut play.watcher.reached);
        ended.passed = began.elapsed();
        self.ongoing = None;
        ended
    }

    /// Removes what an interrupted case has left, and stops the manager.
    pub(crate) async fn end(&mut self, at: &Location) -> Result<(), Failure> {
        let left = match self.ongoing.take() {
            Some(mut play) => play.remove(at).await,
            None => Ok(()),
        };
        self.managed.stop().await;
        left
    }
}

/// The manager on a control plane.
struct Managed {
    cluster: Cluster,
    /// The suite whose packages it has.
    running: Option<(usize, Manager)>,
}

impl Managed {
    /// Starts it with the packages of a suite, if it does not run with them yet.
    async fn start(&mut self, suites: &[Suite], suite: usize, at: &Location) -> Result<(), Failure> {
        if self.running.as_ref().is_some_and(|(of, _)| *of == suite) {
            return Ok(());
        }
        self.stop().await;
        let config = Config { lease: LEASE.to_owned(), ..Config::default() };
        let started = Manager::start(self.cluster.clone(), suites[suite].packages.clone(), config).await;
        let manager = started.map_err(|error| failed(at, format!("the manager does not start: {error}")))?;
        if let Some(problem) = manager.problems.first().filter(|_| !manager.is_retrying) {
            return Err(Box::new(problem.clone()));
        }
        self.running = Some((suite, manager));
        Ok(())
    }

    async fn stop(&mut self) {
        if let Some((_, manager)) = self.running.take() {
            manager.stop().await;
        }
    }
}

/// The kinds that a case looks at.
fn kinds_of(suite: &Suite, case: &Case) -> BTreeSet<String> {
    let mut kinds: BTreeSet<String> = ["Pod", "PlanRun", "Event"].into_iter().map(str::to_owned).collect();
    for resource in suite.packages.iter().flat_map(|package| &package.resources) {
        kinds.insert(resource.kind.kind.clone());
        kinds.extend(resource.kinds().into_iter().map(|gvk| gvk.kind.to_string()));
    }
    kinds.extend(checks([case]).flat_map(|check| check.kinds.iter().cloned()));
    for step in &case.steps {
        if let Action::Expect(expect) = &step.action {
            kinds.extend(expect.objects.iter().map(|(_, address, _)| address.kind.clone()));
        }
    }
    kinds
}

/// What the namespace of a case holds at one moment.
#[derive(Default)]
struct Snapshot {
    /// The number of the snapshot.
    number: u64,
    objects: BTreeMap<(String, String), Vec<Value>>,
}

impl Source for Snapshot {
    fn stamp(&self, _: &str, _: &str) -> Stamp {
        Stamp { objects: self.number, ..Stamp::default() }
    }

    fn versions(&self, api_version: &str, kind: &str) -> Vec<(String, u64)> {
        let all = self.objects.get(&(api_version.to_owned(), kind.to_owned()));
        let version = |object: &Value| {
            let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default();
            // Equal texts are equal objects; that versions are numbers is not relied on.
            let hash = text("uid").bytes().chain(text("resourceVersion").bytes());
            let version = hash.fold(0, |hash, byte| mixed(hash, u64::from(byte)));
            (format!("{}/{}", text("namespace"), text("name")), version)
        };
        all.into_iter().flatten().map(version).collect()
    }

    fn object(&self, api_version: &str, kind: &str, namespace: &str, name: &str) -> Option<Value> {
        let of = |object: &&Value| {
            let meta = &object["metadata"];
            meta["name"] == name && meta["namespace"].as_str().unwrap_or_default() == namespace
        };
        self.objects.get(&(api_version.to_owned(), kind.to_owned()))?.iter().find(of).cloned()
    }
}

struct Play {
    cluster: Cluster,
    user: String,
    namespace: String,
    discovered: Discovered,
    watcher: Watcher,
    kinds: BTreeSet<String>,
    /// How often it has looked at the namespace.
    looks: u64,
    /// The objects without a namespace that this case has created.
    created: Vec<(Arc<ApiKind>, String)>,
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

impl Play {
    fn new(cluster: Cluster, user: String, suite: &Suite, case: &Case) -> Self {
        let packages = suite.packages.clone();
        Self {
            cluster,
            user,
            namespace: format!("{LABEL}-{}", fastrand::u32(..)),
            discovered: Discovered::default(),
            watcher: Watcher::new(
                Kinds::default(),
                packages,
                &case.invariants,
                tracked([case]),
                Faults::default(),
            ),
            kinds: kinds_of(suite, case),
            looks: 0,
            created: Vec::new(),
        }
    }

    async fn begin(&mut self, at: &Location) -> Result<(), Failure> {
        let body = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.namespace, "labels": {LABEL: "true"}}});
        let created =
            self.cluster.create(&ApiKind::built_in("v1", "Namespace"), None, &body, FIELD_MANAGER).await;
        created.map_err(|error| failed(at, format!("no namespace can be created: {error}")))?;
        self.discover(at).await
    }

    async fn discover(&mut self, at: &Location) -> Result<(), Failure> {
        let apis = self.cluster.discover().await.map_err(|error| failed(at, error.to_string()))?;
        self.watcher.set_kinds(Kinds::of(&apis));
        Ok(())
    }

    /// The kind of an object. That of a package may be served a little later.
    async fn served(&mut self, gvk: &Gvk, at: &Location) -> Result<Arc<ApiKind>, Failure> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let found = self.discovered.find(&self.cluster, gvk).await;
            if let Some(kind) = found.map_err(|error| failed(at, error.to_string()))? {
                if self.watcher.kinds().api_version(&gvk.kind).is_none() {
                    self.discover(at).await?;
                }
                return Ok(kind);
            }
            if Instant::now() >= deadline {
                let message = format!("the API server serves no {} of {}", gvk.kind, gvk.api_version);
                return Err(failed(at, message));
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// The kind of an address; its objects are in the namespace of the case, or this case has created them.
    async fn kind(&mut self, address: &Address, at: &Location) -> Result<Arc<ApiKind>, Failure> {
        let Some(api_version) = self.watcher.kinds().api_version(&address.kind).map(str::to_owned) else {
            return Err(failed(at, format!("the API server serves no kind {}", address.kind)));
        };
        let kind = self.served(&Gvk::new(api_version, address.kind.as_str()), at).await?;
        let is_own = kind.namespaced
            || self.created.iter().any(|(of, name)| of.kind == kind.kind && *name == address.name);
        if !is_own {
            let message =
                format!("{} {} was not created by this case, and is not touched", address.kind, address.name);
            return Err(failed(at, message));
        }
        Ok(kind)
    }

    async fn step(&mut self, step: &Step) -> Result<(), Failure> {
        let at = &step.location;
        let itself = self.cluster.clone();
        if let Some(user) = &step.user {
            self.cluster = itself.acting_as(user).map_err(|error| failed(at, error.to_string()))?;
        }
        let done = self.act(step).await;
        self.cluster = itself;
        let done = done.map_err(|mut failure| {
            failure.location.get_or_insert_with(|| at.clone());
            failure
        });
        judge(done?, step.refused.as_deref(), at)
    }

    async fn act(&mut self, step: &Step) -> Result<Result<(), CallError>, Failure> {
        let at = &step.location;
        let user = step.user.clone().unwrap_or_else(|| self.user.clone());
        let namespace = self.namespace.clone();
        let place = |kind: &ApiKind| kind.namespaced.then_some(&*namespace);
        Ok(match &step.action {
            Action::Apply(objects) => {
                for object in objects {
                    if let Err(error) = self.apply(&object.value, at).await? {
                        return Ok(Err(error));
                    }
                }
                Ok(())
            }
            Action::Patch(address, patch) => {
                let kind = self.kind(address, at).await?;
                let (cluster, name) = (&self.cluster, &address.name);
                cluster.merge_patch(&kind, place(&kind), name, None, patch, FIELD_MANAGER).await.map(drop)
            }
            Action::Delete(address) => {
                let kind = self.kind(address, at).await?;
                self.delete(&kind, place(&kind), &address.name).await?
            }
            Action::Run { plan, params, of } => {
                let address = self.watcher.instance(of.as_ref(), at)?;
                let kind = self.kind(&address, at).await?;
                let body = request(&kind, (&namespace, &address.name), (plan, params.as_ref(), &user));
                self.cluster.create(&plan_run_kind(), Some(&namespace), &body, FIELD_MANAGER).await.map(drop)
            }
            Action::Approve { plan, of } => {
                let of = self.watcher.instance(of.as_ref(), at)?.name;
                let kind = plan_run_kind();
                loop {
                    let run = self.asking(plan, &of, at).await?;
                    let (name, patch) = (text(&run["metadata"]["name"]), approval(&run, &user));
                    let patched =
                        self.cluster.merge_patch(&kind, Some(&namespace), &name, None, &patch, FIELD_MANAGER);
                    match patched.await {
                        // The manager has written meanwhile.
                        Err(error) if error.class == Class::Conflict => {}
                        done => break done.map(drop),
                    }
                }
            }
            Action::Exec(command) => {
                let command = Command { namespace, ..command.clone() };
                commands::run(&self.cluster, &command, at).await?;
                Ok(())
            }
            Action::Expect(expect) => {
                self.expect(&self.mapped(expect), at).await?;
                Ok(())
            }
            Action::Wait(length) => {
                let end = Instant::now() + *length;
                while Instant::now() < end {
                    self.look(at).await?;
                    tokio::time::sleep(POLL).await;
                }
                Ok(())
            }
            // These are impediments or steps of the ground.
            Action::Break(_) | Action::Upgrade(_) | Action::RestartManager => Ok(()),
        })
    }

    async fn apply(&mut self, object: &Value, at: &Location) -> Result<Result<(), CallError>, Failure> {
        let kind = self.served(&Gvk::new(text(&object["apiVersion"]), text(&object["kind"])), at).await?;
        let (mut object, name) = (object.clone(), text(&object["metadata"]["name"]));
        if kind.namespaced {
            object["metadata"]["namespace"] = self.namespace.as_str().into();
        } else if !self.created.iter().any(|(of, known)| of.kind == kind.kind && *known == name) {
            let live = self.cluster.get(&kind, None, &name).await;
            if live.map_err(|error| failed(at, error.to_string()))?.is_some() {
                return Err(failed(at, format!("{} {name} exists already, and is not touched", kind.kind)));
            }
            self.created.push((Arc::clone(&kind), name));
        }
        let applied = match self.cluster.apply(&kind, &object, FIELD_MANAGER, true).await {
            Ok(applied) => applied,
            Err(error) => return Ok(Err(error)),
        };
        self.watcher.note_applied(&kind, &applied);
        Ok(Ok(()))
    }

    async fn delete(
        &self,
        kind: &ApiKind,
        namespace: Option<&str>,
        name: &str,
    ) -> Result<Result<(), CallError>, Failure> {
        let object = match self.cluster.get(kind, namespace, name).await {
            Ok(Some(object)) => object,
            Ok(None) => {
                let message = format!("there is no {} {name}", kind.kind);
                return Err(Box::new(Diagnostic::error("test::failed", message)));
            }
            Err(error) => return Ok(Err(error)),
        };
        let version = (&*text(&object["metadata"]["uid"]), &*text(&object["metadata"]["resourceVersion"]));
        Ok(self.cluster.delete(kind, namespace, name, version, Propagation::Background).await.map(drop))
    }

    /// The newest run of a plan that asks.
    async fn asking(&mut self, plan: &str, of: &str, at: &Location) -> Result<Arc<Value>, Failure> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let snapshot = self.look(at).await?;
            if let Some(run) = self.watcher.find_run(&snapshot, |run| asks(run, plan, of)) {
                return Ok(run);
            }
            if Instant::now() >= deadline {
                let patience = written_duration(PATIENCE);
                return Err(failed(at, format!("no run of plan {plan} has asked within {patience}")));
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// What is expected, in the namespace of this case.
    fn mapped(&self, expect: &Expect) -> Expect {
        let mut expect = expect.clone();
        for (_, address, _) in &mut expect.objects {
            address.namespace.clone_from(&self.namespace);
        }
        expect
    }

    /// Reads what there is, and fails if an invariant does not hold.
    async fn look(&mut self, at: &Location) -> Result<Snapshot, Failure> {
        self.looks += 1;
        let mut snapshot = Snapshot { number: self.looks, ..Snapshot::default() };
        for kind in &self.kinds {
            let Some(api_version) = self.watcher.kinds().api_version(kind) else { continue };
            let gvk = Gvk::new(api_version, kind.as_str());
            let found = self.discovered.find(&self.cluster, &gvk).await;
            let Ok(Some(served)) = found else { continue };
            let namespace = served.namespaced.then_some(&*self.namespace);
            let listed = self.cluster.list(&served, namespace, "").await;
            let mut objects = listed.map_err(|error| failed(at, error.to_string()))?;
            for object in &mut objects {
                // Items of lists name no kind.
                object["apiVersion"] = api_version.into();
                object["kind"] = kind.as_str().into();
            }
            snapshot.objects.insert((api_version.to_owned(), kind.clone()), objects);
        }
        self.watcher.look(&snapshot);
        let Some((invariant, why)) = &self.watcher.violated else { return Ok(snapshot) };
        Err(violation(invariant, why, ""))
    }

    async fn expect(&mut self, expect: &Expect, at: &Location) -> Result<(), Failure> {
        let within = expect.within.min(PATIENCE);
        let deadline = Instant::now() + within;
        let mut since: Option<Instant> = None;
        loop {
            let snapshot = self.look(at).await?;
            let problems = self.watcher.problems(expect, &snapshot);
            let now = Instant::now();
            if problems.is_empty() {
                if now >= *since.get_or_insert(now) + expect.holds_for {
                    return Ok(());
                }
            } else if now >= deadline || since.is_some() {
                let message = match since {
                    Some(since) => {
                        format!(
                            "it held for {:.1} s of {}",
                            (now - since).as_secs_f64(),
                            written_duration(expect.holds_for)
                        )
                    }
                    None => format!("it does not hold within {}", written_duration(within)),
                };
                return Err(unmet(message, &problems, at));
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Removes what the case has created: instances first, while the manager can clean up.
    async fn remove(&mut self, at: &Location) -> Result<(), Failure> {
        let wrong = |error: CallError| failed(at, format!("namespace {LABEL}-* is not removed: {error}"));
        let resources: Vec<Gvk> = { self.watcher.packages().iter() }
            .flat_map(|package| &package.resources)
            .filter_map(|resource| resource.served_kinds().next())
            .collect();
        let deadline = Instant::now() + PATIENCE;
        for gvk in resources {
            let Ok(Some(kind)) = self.discovered.find(&self.cluster, &gvk).await else { continue };
            if !kind.namespaced {
                continue;
            }
            let namespace = Some(&*self.namespace);
            loop {
                let left = self.cluster.list(&kind, namespace, "").await.map_err(wrong)?;
                if left.is_empty() || Instant::now() >= deadline {
                    break;
                }
                for object in left.iter().filter(|object| object["metadata"]["deletionTimestamp"].is_null()) {
                    let _ = self.delete(&kind, namespace, &text(&object["metadata"]["name"])).await;
                }
                tokio::time::sleep(POLL).await;
            }
        }
        for (kind, name) in std::mem::take(&mut self.created) {
            let _ = self.delete(&kind, None, &name).await;
        }
        let kind = ApiKind::built_in("v1", "Namespace");
        if let Ok(Err(error)) = self.delete(&kind, None, &self.namespace).await {
            return Err(wrong(error));
        }
        loop {
            let left = self.cluster.get(&kind, None, &self.namespace).await.map_err(wrong)?;
            if left.is_none() {
                return Ok(());
            }
            if Instant::now() >= deadline + PATIENCE {
                return Err(failed(at, format!("namespace {} is still being deleted", self.namespace)));
            }
            tokio::time::sleep(POLL).await;
        }
    }
}
