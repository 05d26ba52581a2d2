//! Plays one case.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use operetta_embedded::{Obedient, Programs};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::end::End;
use super::ended::Ended;
use super::faults::{CommandFault, Disturbance, Faults, Faulty, RequestFault};
use super::suite::{Action, Break, Case, Expect, Step, Suite};
use super::view::{Kinds, Subject};
use super::watcher::{Reached, Watcher};
use crate::api::{ApiKind, CallError, Gvk};
use crate::apiserver::Server;
use crate::children::plans::{approval_patch, plan_run_kind, run_request};
use crate::clock;
use crate::cluster::{Cluster, Kinds as Discovered, Propagation};
use crate::diag::{Diagnostic, Location};
use crate::manager::{Config, Manager};
use crate::package::Package;
use crate::package::test_file::Address;
use crate::plan::{Of, PlanRun};

/// The field manager of the steps.
const FIELD_MANAGER: &str = "operetta-test";
/// The user who requests and approves runs.
const USER: &str = "operetta:dev";
/// When each play begins: 2026-01-01.
const BEGINNING: i64 = 1_767_225_600;
/// How long a play may take, in its own time.
const DAY: Duration = Duration::from_secs(24 * 3600);
/// How long a step waits for a question, or for a kind to be served.
const PATIENCE: Duration = Duration::from_secs(600);

/// Why a play has failed.
type Failure = Box<Diagnostic>;

/// How long nothing must change at the end until two ends are compared, and how long that is awaited.
const SETTLED: Duration = Duration::from_secs(120);
const SETTLES: Duration = Duration::from_secs(1800);

/// Plays a case in a cluster of its own. With a schedule it goes on until nothing changes.
pub(super) fn play(suites: &[Suite], place: (usize, usize), schedule: Option<&[Disturbance]>) -> Ended {
    let suite = &suites[place.0];
    let case = &suite.cases[place.1];
    let nothing = |failure| Ended {
        place,
        failure: Some(failure),
        passed: Duration::ZERO,
        reached: Reached::new(),
        writes: 0,
        struck: Vec::new(),
        end: End::new(),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => {
            let failure = Diagnostic::error("test::machine", format!("the case cannot be played: {error}"));
            return nothing(Box::new(failure));
        }
    };
    let ended = runtime.block_on(async {
        // What is random in the manager is the same in each play.
        fastrand::seed(1);
        clock::set_virtual(Timestamp::from_second(BEGINNING).unwrap_or_default());
        let began = Instant::now();
        let mut play = Play::new(suite, case);
        play.faults.schedule(schedule.unwrap_or_default());
        let whole = async {
            play.start_manager(&case.location).await?;
            play.steps(case).await?;
            if schedule.is_some() {
                play.settle(&case.location).await?;
            }
            Ok(())
        };
        let limit = tokio::time::timeout(DAY, whole).await;
        let failure = limit.unwrap_or_else(|_| {
            let message = "the case has not ended within a day of its own time";
            Err(Box::new(Diagnostic::error("test::day", message).located(case.location.clone())))
        });
        let end =
            if schedule.is_some() { play.server.read(|api| play.watcher().end(api)) } else { End::new() };
        let reached = std::mem::take(&mut play.watcher().reached);
        let (writes, struck) = play.faults.struck();
        Ended { place, failure: failure.err(), passed: began.elapsed(), reached, writes, struck, end }
    });
    // Tasks of the manager that still wait have nobody to answer to.
    runtime.shutdown_background();
    ended
}

struct Play {
    server: Server,
    cluster: Cluster,
    faults: Faults,
    watcher: Arc<Mutex<Watcher>>,
    discovered: Discovered,
    packages: Vec<Arc<Package>>,
    manager: Option<Manager>,
    began: Instant,
    /// Lets the controllers of the API act.
    _controllers: JoinSet<()>,
}

fn programs(suite: &Suite, faults: &Faults) -> Box<dyn Programs> {
    let inner: Box<dyn Programs> = match &suite.world {
        None => Box::new(Obedient),
        Some(world) => Box::new(world.clone()),
    };
    Box::new(Faulty { inner, faults: faults.clone() })
}

impl Play {
    fn new(suite: &Suite, case: &Case) -> Self {
        let server = Server::new(clock::now);
        let faults = Faults::default();
        server.with(|api, _| api.set_programs(programs(suite, &faults)));
        let mut controllers = JoinSet::new();
        let controlled = server.clone();
        controllers.spawn(async move { controlled.run().await });
        let cluster = Cluster::over(server.client(), server.outside());
        let expected = case.steps.iter().flat_map(|step| match &step.action {
            Action::Expect(expect) => &expect.that[..],
            _ => &[],
        });
        let checks = case.invariants.iter().map(|invariant| &invariant.expression).chain(expected);
        let tracked = checks
            .filter(|check| check.reads.contains("deleted"))
            .flat_map(|check| check.kinds.iter().cloned());
        let tracked = tracked.collect();
        let watcher = Watcher::new(Kinds::default(), suite.packages.clone(), &case.invariants, tracked);
        let watcher = Arc::new(Mutex::new(watcher));
        let seen = Arc::clone(&watcher);
        server.observe(move |api| seen.lock().unwrap_or_else(PoisonError::into_inner).look(api));
        Self {
            server,
            cluster,
            faults,
            watcher,
            discovered: Discovered::default(),
            packages: suite.packages.clone(),
            manager: None,
            began: Instant::now(),
            _controllers: controllers,
        }
    }

    fn watcher(&self) -> MutexGuard<'_, Watcher> {
        self.watcher.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a manager. Nothing that one before it sends arrives any more.
    async fn start_manager(&mut self, at: &Location) -> Result<(), Failure> {
        self.manager = None;
        let started = loop {
            self.faults.cut();
            let cluster = Cluster::over(self.faults.client(self.server.client()), self.server.outside());
            tokio::select! {
                biased;
                () = self.faults.killed() => {}
                started = Manager::start(cluster, self.packages.clone(), Config::default()) => break started,
            }
        };
        let manager = started.map_err(|error| failed(at, format!("the manager does not start: {error}")))?;
        if let Some(problem) = manager.problems.first().filter(|_| !manager.is_retrying) {
            return Err(Box::new(problem.clone()));
        }
        self.manager = Some(manager);
        self.discover(at).await
    }

    /// Asks which kinds are served.
    async fn discover(&self, at: &Location) -> Result<(), Failure> {
        let apis = self.cluster.discover().await.map_err(|error| failed(at, error.to_string()))?;
        self.watcher().kinds = Kinds::of(&apis);
        Ok(())
    }

    async fn steps(&mut self, case: &Case) -> Result<(), Failure> {
        for step in &case.steps {
            self.step(step).await.map_err(|mut failure| {
                if failure.location.is_none() {
                    failure.location = Some(step.location.clone());
                }
                failure
            })?;
            self.note();
            self.invariants()?;
        }
        Ok(())
    }

    fn note(&self) {
        self.server.read(|api| self.watcher().note(api));
    }

    /// Fails if an invariant did not hold, or the world has a mistake.
    fn invariants(&self) -> Result<(), Failure> {
        if let Some(fault) = self.server.read(operetta_embedded::Api::faults).into_iter().next() {
            return Err(Box::new(fault));
        }
        let Some((invariant, why)) = self.watcher().violated.clone() else { return Ok(()) };
        let word = if invariant.is_never { "never" } else { "always" };
        let text = &invariant.expression.text;
        let message = format!("{word}: {text}: {why}, {} after the start", self.passed());
        Err(Box::new(Diagnostic::error("test::invariant", message).located(invariant.expression.location)))
    }

    fn passed(&self) -> String {
        crate::package::plan::written_duration(Duration::from_secs(self.began.elapsed().as_secs()))
    }

    async fn step(&mut self, step: &Step) -> Result<(), Failure> {
        let at = &step.location;
        let done = match &step.action {
            Action::Apply(objects) => {
                let mut done = Ok(());
                for object in objects {
                    done = self.apply(&object.value, at).await?;
                    if done.is_err() {
                        break;
                    }
                }
                done
            }
            Action::Patch(address, patch) => {
                let (kind, namespace) = self.kind(address, at).await?;
                let namespace = namespace.as_deref();
                self.cluster
                    .merge_patch(&kind, namespace, &address.name, None, patch, FIELD_MANAGER)
                    .await
                    .map(drop)
            }
            Action::Delete(address) => {
                let (kind, namespace) = self.kind(address, at).await?;
                let namespace = namespace.as_deref();
                let found = self.cluster.get(&kind, namespace, &address.name).await;
                let Some(object) = found.map_err(|error| failed(at, error.to_string()))? else {
                    return Err(failed(at, format!("there is no {} {}", address.kind, address.name)));
                };
                let text = |key: &str| object["metadata"][key].as_str().unwrap_or_default();
                let version = (text("uid"), text("resourceVersion"));
                self.cluster
                    .delete(&kind, namespace, &address.name, version, Propagation::Background)
                    .await
                    .map(drop)
            }
            Action::Run { plan, params, of } => self.run(plan, params.as_ref(), of.as_ref(), at).await?,
            Action::Approve { plan, of } => return self.approve(plan, of.as_ref(), at).await,
            Action::Expect(expect) => return self.expect(expect, at).await,
            Action::Wait(length) => {
                let end = Instant::now() + *length;
                let mut changes = self.server.changes();
                while Instant::now() < end {
                    self.turn(&mut changes, end, at).await?;
                }
                return Ok(());
            }
            Action::Break(Break::Commands { words, exit_code, stderr, times }) => {
                let (words, stderr) = (words.clone(), stderr.clone());
                self.faults.add_commands(CommandFault { words, exit_code: *exit_code, stderr, left: *times });
                return Ok(());
            }
            Action::Break(Break::Requests { verb, resource, answer, times }) => {
                let (verb, resource) = (verb.clone(), resource.clone());
                self.faults.add_requests(RequestFault { verb, resource, answer: *answer, left: *times });
                return Ok(());
            }
            Action::RestartManager => return self.start_manager(at).await,
            Action::Upgrade(package) => {
                if let Some(manager) = self.manager.take() {
                    manager.stop().await;
                }
                self.packages[0] = Arc::clone(package);
                self.watcher().packages.clone_from(&self.packages);
                return self.start_manager(at).await;
            }
        };
        match (done, &step.refused) {
            (Ok(()), None) => Ok(()),
            (Ok(()), Some(text)) => Err(failed(at, format!("the API server accepts it; expected: {text}"))),
            (Err(error), None) => Err(failed(at, format!("the API server refuses it: {error}"))),
            (Err(error), Some(text)) if error.to_string().contains(text) => Ok(()),
            (Err(error), Some(text)) => {
                Err(failed(at, format!("the API server refuses it, but not for {text:?}: {error}")))
            }
        }
    }

    /// A kind. That of a package may come later, if a request of the manager has failed.
    async fn served(&mut self, gvk: &Gvk, at: &Location) -> Result<Arc<ApiKind>, Failure> {
        let (mut changes, deadline) = (self.server.changes(), Instant::now() + PATIENCE);
        loop {
            changes.mark_unchanged();
            let found = self.discovered.find(&self.cluster, gvk).await;
            if let Some(kind) = found.map_err(|error| failed(at, error.to_string()))? {
                if self.watcher().kinds.api_version(&gvk.kind).is_none() {
                    self.discover(at).await?;
                }
                return Ok(kind);
            }
            let is_ours = self.packages.iter().flat_map(|package| &package.resources);
            let is_ours = { is_ours }.any(|resource| resource.kind.kind == *gvk.kind);
            if !is_ours || Instant::now() >= deadline {
                return Err(failed(
                    at,
                    format!("the API server serves no {} of {}", gvk.kind, gvk.api_version),
                ));
            }
            self.turn(&mut changes, deadline, at).await?;
        }
    }

    /// The kind of an address, and its namespace if the kind has one.
    async fn kind(
        &mut self,
        address: &Address,
        at: &Location,
    ) -> Result<(Arc<ApiKind>, Option<String>), Failure> {
        let api_version = self.watcher().kinds.api_version(&address.kind).map(str::to_owned);
        let Some(api_version) = api_version else {
            return Err(failed(at, format!("the API server serves no kind {}", address.kind)));
        };
        let kind = self.served(&Gvk::new(api_version, address.kind.as_str()), at).await?;
        let namespace = kind.namespaced.then(|| address.namespace.clone());
        Ok((kind, namespace))
    }

    /// Applies an object, in the namespace `default` if it names none.
    async fn apply(&mut self, object: &Value, at: &Location) -> Result<Result<(), CallError>, Failure> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let gvk = Gvk::new(text(&object["apiVersion"]), text(&object["kind"]));
        let kind = self.served(&gvk, at).await?;
        let mut object = object.clone();
        if kind.namespaced && object["metadata"]["namespace"].is_null() {
            object["metadata"]["namespace"] = "default".into();
        }
        let applied = match self.cluster.apply(&kind, &object, FIELD_MANAGER, true).await {
            Ok(applied) => applied,
            Err(error) => return Ok(Err(error)),
        };
        let is_instance = self.packages[0]
            .resources
            .iter()
            .any(|resource| resource.kind.group == kind.group && resource.kind.kind == kind.kind);
        let mut watcher = self.watcher();
        if is_instance && watcher.subject.is_none() {
            watcher.subject = Some(Subject {
                api_version: kind.api_version(),
                kind: kind.kind.clone(),
                namespace: text(&object["metadata"]["namespace"]),
                name: text(&object["metadata"]["name"]),
                uid: text(&applied["metadata"]["uid"]),
            });
        }
        Ok(Ok(()))
    }

    /// The instance that a step is about.
    fn of(&self, of: Option<&Address>, at: &Location) -> Result<Address, Failure> {
        let subject = self.watcher().subject.as_ref().map(|subject| Address {
            namespace: subject.namespace.clone(),
            kind: subject.kind.clone(),
            name: subject.name.clone(),
        });
        let given = of.cloned().or(subject);
        given.ok_or_else(|| failed(at, "no instance has been applied: name one with `of`".to_owned()))
    }

    async fn run(
        &mut self,
        plan: &str,
        params: Option<&Value>,
        of: Option<&Address>,
        at: &Location,
    ) -> Result<Result<(), CallError>, Failure> {
        let address = self.of(of, at)?;
        let (kind, namespace) = self.kind(&address, at).await?;
        let of = Of {
            api_version: kind.api_version(),
            kind: kind.kind.clone(),
            resource: kind.plural.clone(),
            name: address.name.clone(),
        };
        let namespace = namespace.unwrap_or_else(|| Config::default().namespace);
        let spec = json!({"plan": plan, "params": params, "requestedBy": USER});
        let body = run_request(&of, &namespace, spec);
        let runs = plan_run_kind();
        Ok(self.cluster.create(&runs, Some(&namespace), &body, FIELD_MANAGER).await.map(drop))
    }

    /// Approves the first question of the newest run of a plan, as soon as there is one.
    async fn approve(&mut self, plan: &str, of: Option<&Address>, at: &Location) -> Result<(), Failure> {
        let address = self.of(of, at)?;
        let asks = |run: &Value| {
            run["spec"]["plan"] == plan
                && run["spec"]["of"]["name"] == *address.name
                && question(run).is_some()
        };
        let (mut changes, deadline) = (self.server.changes(), Instant::now() + PATIENCE);
        let run = loop {
            changes.mark_unchanged();
            if let Some(run) = self.server.read(|api| self.watcher().find_run(api, asks)) {
                break run;
            }
            if Instant::now() >= deadline {
                let message = format!("no run of plan {plan} has asked within {} s", PATIENCE.as_secs());
                return Err(failed(at, message));
            }
            self.turn(&mut changes, deadline, at).await?;
        };
        let patch = approval_patch(&run, &json!({"step": question(&run), "verdict": "Approve", "by": USER}));
        let (namespace, name) = (run["metadata"]["namespace"].as_str(), run["metadata"]["name"].as_str());
        let kind = plan_run_kind();
        let done = self
            .cluster
            .merge_patch(&kind, namespace, name.unwrap_or_default(), None, &patch, FIELD_MANAGER)
            .await;
        done.map(drop).map_err(|error| failed(at, format!("the API server refuses the approval: {error}")))
    }

    /// Waits for a change or a time, and starts the manager again if it was killed.
    async fn turn(
        &mut self,
        changes: &mut watch::Receiver<()>,
        until: Instant,
        at: &Location,
    ) -> Result<(), Failure> {
        tokio::select! {
            biased;
            () = self.faults.killed() => self.start_manager(at).await?,
            _ = changes.changed() => {}
            () = tokio::time::sleep_until(until) => {}
        }
        Ok(())
    }

    /// Waits until nothing changes any more.
    async fn settle(&mut self, at: &Location) -> Result<(), Failure> {
        let (mut changes, limit) = (self.server.changes(), Instant::now() + SETTLES);
        loop {
            changes.mark_unchanged();
            let quiet = Instant::now() + SETTLED;
            self.turn(&mut changes, quiet, at).await?;
            self.invariants()?;
            if Instant::now() >= quiet || Instant::now() >= limit {
                return Ok(());
            }
        }
    }

    async fn expect(&mut self, expect: &Expect, at: &Location) -> Result<(), Failure> {
        let deadline = Instant::now() + expect.within;
        let mut changes = self.server.changes();
        let mut since: Option<Instant> = None;
        loop {
            changes.mark_unchanged();
            self.invariants()?;
            let problems = self.server.read(|api| self.watcher().problems(expect, api));
            let now = Instant::now();
            let next = if problems.is_empty() {
                let since = *since.get_or_insert(now);
                if now >= since + expect.holds_for {
                    return Ok(());
                }
                since + expect.holds_for
            } else {
                if now >= deadline || since.is_some() {
                    let length = |of: Duration| crate::package::plan::written_duration(of);
                    let message = match since {
                        Some(since) => {
                            format!("it held for {} of {}", length(now - since), length(expect.holds_for))
                        }
                        None => format!("it does not hold within {}", length(expect.within)),
                    };
                    let lines: Vec<String> =
                        problems.iter().flat_map(super::expect::Problem::lines).collect();
                    let message = format!("{message}, {} after the start", self.passed());
                    return Err(Box::new(
                        Diagnostic::error("test::expect", message).located(at.clone()).help(lines.join("\n")),
                    ));
                }
                deadline
            };
            self.turn(&mut changes, next, at).await?;
        }
    }
}

/// The path of the step of a run that asks.
fn question(run: &Value) -> Option<String> {
    let run = PlanRun::parse(run).ok()?;
    run.questions().first().map(|step| step.path.clone())
}

fn failed(at: &Location, message: impl Into<String>) -> Failure {
    Box::new(Diagnostic::error("test::failed", message.into()).located(at.clone()))
}
