//! Plays one case.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use operetta_embedded::{Obedient, Programs};
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::bounds;
use super::commands;
use super::course::{Course, Part, Start};
use super::end::End;
use super::ended::{Ended, Failure, failed};
use super::faults::{Faults, Faulty};
use super::steps::{FIELD_MANAGER, approval, asks, judge, request, tracked, unmet, violation};
use super::suite::{Action, Break, Expect, Step, Suite};
use super::update::{Edit, record};
use super::view::Kinds;
use super::watcher::Watcher;
use crate::api::{ApiKind, CallError, Class, Gvk};
use crate::apiserver::Server;
use crate::clock;
use crate::cluster::{Cluster, Kinds as Discovered, Propagation};
use crate::diag::{Diagnostic, Location};
use crate::manager::{Config, Manager, Webhook, WebhookAddress};
use crate::package::Package;
use crate::package::test_file::Address;
use crate::plan::plan_run_kind;

/// The user who requests and approves runs.
const USER: &str = "operetta:dev";
/// The user of the manager. What admission policies let it write, they let nobody else write.
const MANAGER: &str = "operetta:manager";
/// When each play begins: 2026-01-01.
const BEGINNING: i64 = 1_767_225_600;
/// How long a play may take, in its own time.
const DAY: Duration = Duration::from_secs(24 * 3600);
/// How long a step waits for a question, or for a kind to be served, and the end of a case for plans that run again and again.
const PATIENCE: Duration = Duration::from_secs(600);

/// How long nothing must change at the end until two ends are compared, and how long that is awaited.
const SETTLED: Duration = Duration::from_secs(120);
const SETTLES: Duration = Duration::from_secs(1800);
/// How long nothing must change until an end counts that is as expected.
const QUIET: Duration = Duration::from_secs(15);

/// Plays a case in a cluster of its own.
pub(super) fn play(course: Course<'_>) -> Ended {
    on_runtime(course.place, async || {
        let mut play = Play::new(&course);
        let bounded = bounds::exceeded(play.server.clone(), &course.case().location);
        let whole = async {
            play.start_manager(&course.case().location).await?;
            play.steps(course.steps()).await?;
            if course.schedule.is_some() {
                play.settle(&course.case().location, course.end).await?;
            }
            play.come_to_rest(&course.case().location).await
        };
        let failure = tokio::select! {
            biased;
            why = bounded => Err(("test::bounds", why)),
            ended = tokio::time::timeout(DAY, whole) => {
                ended.map_err(|_| ("test::day", "the case has not ended within a day of its own time".to_owned()))
            }
        };
        let failure = failure.unwrap_or_else(|(code, message)| {
            Err(Box::new(Diagnostic::error(code, message).located(course.case().location.clone())))
        });
        let end = if course.schedule.is_some() { play.end() } else { End::new() };
        let mut reached = std::mem::take(&mut play.watcher().reached);
        if let Some(start) = course.start {
            reached.extend(start.reached.iter().cloned());
        }
        let (deeds, struck, requests) = play.faults.done();
        let passed = play.passed + play.began.elapsed();
        let edits = play.edits.take().unwrap_or_default();
        let observes = course.suites[course.place.0].observes;
        let seen = observes.then(|| play.server.read(|api| play.watcher().seen(api)));
        let failure = failure.err();
        Ended {
            failure,
            passed,
            reached,
            deeds,
            requests,
            struck,
            end,
            edits,
            seen,
            ..Ended::of(course.place)
        }
    })
    .unwrap_or_else(|failure| Ended { failure: Some(failure), ..Ended::of(course.place) })
}

/// Starts a manager and plays the steps before the cases of a file. `None` if they fail, or if something that they break lasts.
pub(super) fn start(suites: &[Suite], suite: usize) -> Option<Start> {
    let course = Course { part: Part::Before, ..Course::whole(suites, (suite, 0)) };
    let lasts = |step: &Step| matches!(step.action, Action::Break(_));
    // What is recorded or observed is of whole plays.
    let is_whole = suites[suite].records || suites[suite].observes;
    if is_whole || course.steps().iter().any(lasts) {
        return None;
    }
    let started = on_runtime(course.place, async || {
        let mut play = Play::new(&course);
        let bounded = bounds::exceeded(play.server.clone(), &course.case().location);
        let whole = async {
            play.start_manager(&course.case().location).await?;
            play.steps(course.steps()).await?;
            play.settle(&course.case().location, None).await
        };
        tokio::select! {
            biased;
            why = bounded => return Err(Box::new(Diagnostic::error("test::bounds", why))),
            done = whole => done?,
        }
        let api = play.server.read(|api| api.copy(|programs| programs));
        let passed = play.began.elapsed();
        let packages = play.packages.clone();
        let mut watcher = play.watcher();
        let (remembered, reached) = (watcher.remembered(), std::mem::take(&mut watcher.reached));
        drop(watcher);
        Ok::<_, Failure>(Start { api: Mutex::new(api), passed, packages, remembered, reached })
    });
    started.ok()?.ok()
}

/// Runs a play on a thread whose clock moves as soon as nothing is left to do.
fn on_runtime<T>(place: (usize, usize), play: impl AsyncFnOnce() -> T) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
    let runtime = runtime.map_err(|error| {
        let message = format!("case {} of file {} cannot be played: {error}", place.1 + 1, place.0 + 1);
        Box::new(Diagnostic::error("test::machine", message))
    })?;
    let result = runtime.block_on(async {
        // What is random in the manager is the same in each play.
        fastrand::seed(1);
        play().await
    });
    // Tasks of the manager that still wait have nobody to answer to.
    runtime.shutdown_background();
    Ok(result)
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
    /// How much time had passed before it began.
    passed: Duration,
    /// What the file must say instead; `None` if that is not recorded.
    edits: Option<Vec<Edit>>,
    /// Lets the controllers of the API act.
    _controllers: JoinSet<()>,
}

impl Play {
    fn new(course: &Course<'_>) -> Self {
        let (suite, case) = (&course.suites[course.place.0], course.case());
        let passed = course.start.map_or(Duration::ZERO, |start| start.passed);
        clock::set_virtual(Timestamp::from_second(BEGINNING).unwrap_or_default() + passed);
        let faults = Faults::default();
        faults.schedule(course.schedule.unwrap_or_default(), course.traced);
        #[cfg(test)]
        faults.plant(suite.bug);
        let with_faults = |inner: Box<dyn Programs>| -> Box<dyn Programs> {
            Box::new(Faulty { inner, faults: faults.clone() })
        };
        let server = if let Some(start) = course.start {
            let api = start.api.lock().unwrap_or_else(PoisonError::into_inner);
            Server::of(api.copy(with_faults), clock::now)
        } else {
            let server = Server::new(clock::now);
            let programs: Box<dyn Programs> = match &suite.world {
                None => Box::new(Obedient),
                Some(world) => Box::new(world.clone()),
            };
            server.with(|api, now| api.set_programs(with_faults(programs), now));
            server
        };
        let mut controllers = JoinSet::new();
        let controlled = server.clone();
        controllers.spawn(async move { controlled.run().await });
        let cluster = Cluster::over(server.client(), server.outside());
        // The steps before the cases know what has been deleted for all of them.
        let cases = if course.part == Part::Before { &suite.cases[..] } else { std::slice::from_ref(case) };
        let packages = course.start.map_or_else(|| suite.packages.clone(), |start| start.packages.clone());
        let invariants =
            if course.part == Part::Before { &case.invariants[..case.shared] } else { &case.invariants };
        let mut watcher =
            Watcher::new(Kinds::default(), packages.clone(), invariants, tracked(cases), faults.clone());
        if let Some(start) = course.start {
            watcher.remember(&start.remembered);
        }
        let watcher = Arc::new(Mutex::new(watcher));
        let seen = Arc::clone(&watcher);
        server.observe(move |api| seen.lock().unwrap_or_else(PoisonError::into_inner).look(api));
        Self {
            server,
            cluster,
            faults,
            watcher,
            discovered: Discovered::default(),
            packages,
            manager: None,
            began: Instant::now(),
            passed,
            edits: suite.records.then(Vec::new),
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
            let cluster = Cluster::over(
                self.faults.client(&self.server, self.server.client_of(MANAGER)),
                self.faults.outside(&self.server),
            );
            tokio::select! {
                biased;
                () = self.faults.killed() => {}
                started = Manager::start(cluster, self.packages.clone(), config()) => break started,
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
        self.watcher().set_kinds(Kinds::of(&apis));
        Ok(())
    }

    async fn steps(&mut self, steps: &[Step]) -> Result<(), Failure> {
        for step in steps {
            self.step(step).await.map_err(|mut failure| {
                failure.location.get_or_insert_with(|| step.location.clone());
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
        if let Some(violation) = self.faults.violation() {
            return Err(Box::new(Diagnostic::error("test::invariant", violation)));
        }
        let Some((invariant, why)) = self.watcher().violated.clone() else { return Ok(()) };
        Err(violation(&invariant, &why, &format!(", {} after the start", self.passed())))
    }

    fn passed(&self) -> String {
        let passed = self.passed + self.began.elapsed();
        crate::package::plan::written_duration(Duration::from_secs(passed.as_secs()))
    }

    /// Does a step as its user.
    async fn step(&mut self, step: &Step) -> Result<(), Failure> {
        let acting = match &step.user {
            Some(user) => self.cluster.acting_as(user),
            None => Ok(self.cluster.clone()),
        };
        let acting = acting.map_err(|error| failed(&step.location, error.to_string()))?;
        let itself = std::mem::replace(&mut self.cluster, acting);
        let done = self.act(step).await;
        self.cluster = itself;
        done
    }

    async fn act(&mut self, step: &Step) -> Result<(), Failure> {
        let at = &step.location;
        let user = step.user.as_deref().unwrap_or(USER);
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
                let (mut changes, deadline) = (self.server.changes(), Instant::now() + PATIENCE);
                loop {
                    changes.mark_unchanged();
                    let found = self.cluster.get(&kind, namespace, &address.name).await;
                    let Some(object) = found.map_err(|error| failed(at, error.to_string()))? else {
                        // A disturbance may have killed it, and it comes back.
                        if self.faults.is_mourning() {
                            self.turn(&mut changes, deadline, at).await?;
                            continue;
                        }
                        return Err(failed(at, format!("there is no {} {}", address.kind, address.name)));
                    };
                    let text = |key: &str| object["metadata"][key].as_str().unwrap_or_default();
                    let version = (text("uid"), text("resourceVersion"));
                    let deletion = self.cluster.delete(
                        &kind,
                        namespace,
                        &address.name,
                        version,
                        Propagation::Background,
                    );
                    match deletion.await {
                        // It has been written in between.
                        Err(error) if error.class == Class::Conflict && Instant::now() < deadline => {}
                        done => break done.map(drop),
                    }
                }
            }
            Action::Run { plan, params, of } => {
                self.run((plan, params.as_ref(), user), of.as_ref(), at).await?
            }
            Action::Approve { plan, of } => self.approve((plan, user), of.as_ref(), at).await?,
            Action::Exec(command) => return commands::run(&self.cluster, command, at).await,
            Action::Expect(expect) => return self.expect(expect, at).await,
            Action::Wait(length) => {
                let end = Instant::now() + *length;
                let mut changes = self.server.changes();
                while Instant::now() < end {
                    self.turn(&mut changes, end, at).await?;
                }
                return Ok(());
            }
            Action::Break(Break::Commands(fault)) => {
                self.faults.add_commands(fault.clone());
                return Ok(());
            }
            Action::Break(Break::Requests(fault)) => {
                self.faults.add_requests(fault.clone());
                return Ok(());
            }
            Action::RestartManager => return self.start_manager(at).await,
            Action::Upgrade(package) => {
                if let Some(manager) = self.manager.take() {
                    manager.stop().await;
                }
                self.packages[0] = Arc::clone(package);
                self.watcher().set_packages(&self.packages);
                return self.start_manager(at).await;
            }
        };
        judge(done, step.refused.as_deref(), at)
    }

    /// A kind. That of a package may come later, if a request of the manager has failed.
    async fn served(&mut self, gvk: &Gvk, at: &Location) -> Result<Arc<ApiKind>, Failure> {
        let (mut changes, deadline) = (self.server.changes(), Instant::now() + PATIENCE);
        loop {
            changes.mark_unchanged();
            let found = self.discovered.find(&self.cluster, gvk).await;
            if let Some(kind) = found.map_err(|error| failed(at, error.to_string()))? {
                if self.watcher().kinds().api_version(&gvk.kind).is_none() {
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
        let api_version = self.watcher().kinds().api_version(&address.kind).map(str::to_owned);
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
        self.watcher().note_applied(&kind, &applied);
        Ok(Ok(()))
    }

    async fn run(
        &mut self,
        run: (&str, Option<&Value>, &str),
        of: Option<&Address>,
        at: &Location,
    ) -> Result<Result<(), CallError>, Failure> {
        let address = self.watcher().instance(of, at)?;
        let (kind, namespace) = self.kind(&address, at).await?;
        let namespace = namespace.unwrap_or_else(|| Config::default().namespace);
        let body = request(&kind, (&namespace, &address.name), run);
        let runs = plan_run_kind();
        Ok(self.cluster.create(&runs, Some(&namespace), &body, FIELD_MANAGER).await.map(drop))
    }

    /// Approves the first question of the newest run of a plan, as soon as there is one.
    async fn approve(
        &mut self,
        (plan, user): (&str, &str),
        of: Option<&Address>,
        at: &Location,
    ) -> Result<Result<(), CallError>, Failure> {
        let address = self.watcher().instance(of, at)?;
        let (mut changes, deadline) = (self.server.changes(), Instant::now() + PATIENCE);
        loop {
            changes.mark_unchanged();
            let found =
                self.server.read(|api| self.watcher().find_run(api, |run| asks(run, plan, &address.name)));
            let is_late = Instant::now() >= deadline;
            if let Some(run) = found {
                let (kind, patch) = (plan_run_kind(), approval(&run, user));
                let meta = &run["metadata"];
                let (namespace, name) =
                    (meta["namespace"].as_str(), meta["name"].as_str().unwrap_or_default());
                let patched = self.cluster.merge_patch(&kind, namespace, name, None, &patch, FIELD_MANAGER);
                match patched.await {
                    // The manager has written meanwhile.
                    Err(error) if error.class == Class::Conflict && !is_late => {}
                    done => return Ok(done.map(drop)),
                }
            } else if is_late {
                let message = format!("no run of plan {plan} has asked within {} s", PATIENCE.as_secs());
                return Err(failed(at, message));
            } else {
                self.turn(&mut changes, deadline, at).await?;
            }
        }
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

    /// Waits until nothing changes any more: a short time if all that goes wrong has struck and the end is as expected.
    async fn settle(&mut self, at: &Location, expected: Option<&End>) -> Result<(), Failure> {
        let (mut changes, limit) = (self.server.changes(), Instant::now() + SETTLES);
        loop {
            changes.mark_unchanged();
            let began = Instant::now();
            let (quiet, settled) = (began + QUIET, began + SETTLED);
            self.turn(&mut changes, quiet, at).await?;
            self.invariants()?;
            if Instant::now() >= limit {
                return Ok(());
            }
            if Instant::now() < quiet {
                continue;
            }
            if expected.is_some_and(|expected| self.faults.have_struck() && *expected == self.end()) {
                return Ok(());
            }
            self.turn(&mut changes, settled, at).await?;
            self.invariants()?;
            if Instant::now() >= settled {
                return Ok(());
            }
        }
    }

    /// Waits until no plan runs again and again.
    async fn come_to_rest(&mut self, at: &Location) -> Result<(), Failure> {
        let (mut changes, limit) = (self.server.changes(), Instant::now() + PATIENCE);
        while let Some(why) = self.repeating() {
            if Instant::now() >= limit {
                let message = format!("the case does not come to rest: {why}");
                return Err(Box::new(Diagnostic::error("test::rest", message).located(at.clone())));
            }
            changes.mark_unchanged();
            self.turn(&mut changes, limit, at).await?;
            self.invariants()?;
        }
        Ok(())
    }

    fn repeating(&self) -> Option<String> {
        self.server.read(|api| self.watcher().repeating(api))
    }

    /// What there is now.
    fn end(&self) -> End {
        let mut end = self.server.read(|api| self.watcher().end(api));
        end.extend(self.faults.tallies());
        end
    }

    async fn expect(&mut self, expect: &Expect, at: &Location) -> Result<(), Failure> {
        let deadline = Instant::now() + expect.within;
        let mut changes = self.server.changes();
        let mut since: Option<Instant> = None;
        let (mut problems, mut seen) = (Vec::new(), None);
        loop {
            changes.mark_unchanged();
            self.invariants()?;
            self.server.read(|api| {
                let watcher = self.watcher();
                if seen != Some(watcher.version(api)) {
                    problems = watcher.problems(expect, api);
                    seen = Some(watcher.version(api));
                }
            });
            let now = Instant::now();
            let is_over = now >= deadline && since.is_none() && !problems.is_empty();
            if let Some(edits) = self.edits.as_mut().filter(|_| is_over) {
                problems.retain(|problem| !record(problem, edits));
                if problems.is_empty() {
                    return Ok(());
                }
            }
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
                    let repeating = self.repeating().map(|why| format!("; meanwhile, {why}"));
                    return Err(unmet(
                        format!(
                            "{message}, {} after the start{}",
                            self.passed(),
                            repeating.unwrap_or_default()
                        ),
                        &problems,
                        at,
                    ));
                }
                deadline
            };
            self.turn(&mut changes, next, at).await?;
        }
    }
}

/// The manager of a case converts instances between the versions of their kinds.
fn config() -> Config {
    Config { webhook: Some(Webhook::new(WebhookAddress::Process, "", "")), ..Config::default() }
}
