//! Plays one case: starts the API and the manager, has the steps carried out ([`step`]), and waits for the end.

mod rest;
mod scene;
mod step;
mod vacuous;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use operetta_embedded::{DefaultPrograms, Programs, Stamp};
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::bounds;
use super::course::{Course, Part, Start};
use super::end::End;
use super::ended::{Ended, Failure, failed};
use super::faults::{Faults, Faulty};
use super::installed::{self, beginning};
use super::refused::{self, Grant};
use super::steps::{expect_refusal, tracked, violation};
use super::suite::{Action, Step, Suite};
use super::update::Edit;
use super::view::Kinds;
use super::watcher::Watcher;
use crate::api::ApiKind;
use crate::apiserver::Server;
use crate::clock;
use crate::cluster::{Cluster, Kinds as Discovered};
use crate::diag::{Diagnostic, Location};
use crate::manager::{Config, Manager, Webhook, WebhookAddress};
use crate::package::Package;
use crate::random::Randomness;

/// How long a play may take, in its own time.
const DAY: Duration = Duration::from_secs(24 * 3600);
/// How long a step waits for a question, or for a kind to be served, and the end of a case for plans that run again and again.
const PATIENCE: Duration = Duration::from_secs(600);

/// How long instances may still quote a refusal after the right was granted: the manager tries again within half of that.
const QUOTED: Duration = Duration::from_secs(60);

/// Plays a case in a cluster of its own.
pub(super) fn play(course: Course<'_>) -> Ended {
    on_runtime(course.place, async || {
        let mut play = Play::new(&course);
        let bounded = bounds::exceeded(play.server.clone(), &course.case().location);
        let whole = async {
            let at = &course.case().location;
            let ended = async {
                let steps = async {
                    play.start_manager(at).await?;
                    play.steps(course.steps()).await
                };
                let ended = tokio::time::timeout(DAY, steps).await;
                ended.unwrap_or_else(|_| {
                    let message = "the case has not ended within a day of its own time";
                    Err(Box::new(Diagnostic::error("test::day", message).located(at.clone())))
                })?;
                if course.schedule.is_some() {
                    play.settle(at, course.end).await?;
                    return play.come_to_rest(at, true).await;
                }
                play.come_to_rest(at, false).await?;
                // What is only observed need not say anything.
                if course.suites[course.place.0].observes { Ok(()) } else { play.vacuous(course.case()) }
            }
            .await;
            ended.and(play.outlast_quotes(at).await)
        };
        let failure = tokio::select! {
            biased;
            why = bounded => {
                Err(Box::new(Diagnostic::error("test::bounds", why).located(course.case().location.clone())))
            }
            ended = whole => ended,
        };
        let case = course.case();
        let failure = play.with_refusals(failure.err(), &case.steps, &case.location);
        // Schedules tell stories instead, and a cluster that is too large is not told of.
        let is_told = |failure: &Failure| course.schedule.is_none() && failure.code != "test::bounds";
        let scene = if failure.as_ref().is_some_and(is_told) { play.scene().await } else { Vec::new() };
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
        Ended {
            failure,
            scene,
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
        if let Some(failure) = play.with_refusals(None, course.steps(), &course.case().location) {
            return Err(failure);
        }
        let api = play.server.read(|api| api.copy(|programs| programs));
        let passed = play.began.elapsed();
        let packages = play.packages.clone();
        let mut watcher = play.watcher();
        let (remembered, reached) = (watcher.remembered(), std::mem::take(&mut watcher.reached));
        drop(watcher);
        let (api, bindings) = (Mutex::new(api), std::mem::take(&mut play.bindings));
        Ok::<_, Failure>(Start { api, bindings, passed, packages, remembered, reached })
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
    /// The kinds of the CRDs that cases apply.
    kinds: Vec<ApiKind>,
    /// The bindings that grant rights in namespaces.
    bindings: Vec<Value>,
    /// When namespaces had changed last as it was looked which of the bindings are absent.
    looked: Option<Stamp>,
    /// When rights in namespaces were granted last.
    granted_at: Option<Instant>,
    /// Where the first refusal of the authorizer that counts was noticed.
    refused_at: Option<Location>,
    /// Whether something goes wrong that the case does not say.
    is_disturbed: bool,
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
        clock::set_virtual(beginning() + passed);
        let faults = Faults::default();
        faults.schedule(course.schedule.unwrap_or_default(), course.traced);
        #[cfg(test)]
        faults.plant(suite.bug);
        let with_faults = |inner: Box<dyn Programs>| -> Box<dyn Programs> {
            Box::new(Faulty { inner, faults: faults.clone() })
        };
        let installed = suite.installed();
        let server = if let Some(start) = course.start {
            let api = start.api.lock().unwrap_or_else(PoisonError::into_inner);
            Server::of(api.copy(with_faults), clock::now)
        } else {
            let server = Server::of(installed.copy(), clock::now);
            let programs: Box<dyn Programs> = match &suite.world {
                None => Box::new(DefaultPrograms),
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
        let bindings = course.start.map_or(&installed.bindings, |start| &start.bindings).clone();
        let invariants =
            if course.part == Part::Before { &case.invariants[..case.shared] } else { &case.invariants };
        let mut watcher =
            Watcher::new(Kinds::default(), packages.clone(), invariants, tracked(cases), faults.clone());
        if let Some(start) = course.start {
            watcher.remember(&start.remembered);
        }
        // What disturbances keep from being there is no mistake of the case.
        if course.schedule.is_none() {
            let claims = cases.iter().flat_map(|case| &case.claims);
            watcher.look_for(claims.map(|claim| claim.absence.clone()));
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
            kinds: installed.kinds.clone(),
            bindings,
            looked: None,
            granted_at: None,
            refused_at: None,
            is_disturbed: course.schedule.is_some_and(|schedule| !schedule.is_empty()),
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
                self.faults.client(&self.server, self.server.client_as(installed::manager())),
                self.faults.outside(&self.server),
            );
            tokio::select! {
                biased;
                () = self.faults.killed() => {}
                started = Manager::start(cluster, self.packages.clone(), config(&self.server)) => break started,
            }
        };
        let manager = started.map_err(|error| failed(at, format!("the manager does not start: {error}")))?;
        if let Some(problem) = manager.problems.first().filter(|_| !manager.is_retrying) {
            return Err(Box::new(problem.clone()));
        }
        self.manager = Some(manager);
        self.discover(at).await
    }

    /// Grants a revision its rights. Those of the revisions before stay: instances and what they have left may use them.
    async fn grant(&mut self, package: &Package, at: &Location) -> Result<(), Failure> {
        let objects = installed::granting(package, &self.packages, &self.kinds);
        self.bindings.extend(installed::in_namespaces(&objects));
        if installed::grant(&self.server, &objects, Instant::now() + PATIENCE).await {
            return Ok(());
        }
        Err(failed(at, format!("the manager does not get its rights within {} s", PATIENCE.as_secs())))
    }

    /// Grants rights in namespaces that have come into being, for the first time or again.
    fn grant_pending(&mut self) {
        if self.bindings.is_empty() {
            return;
        }
        let changed = self.server.read(|api| api.stamp("v1", "Namespace"));
        if self.looked.replace(changed) == Some(changed) {
            return;
        }
        let absent = self.server.read(|api| installed::absent(api, &self.bindings));
        if absent.is_empty() {
            return;
        }
        let granted = self.server.with(|api, now| {
            let applied = installed::apply(api, absent, now);
            installed::grants(api, applied)
        });
        if granted.is_empty() {
            return;
        }
        self.granted_at = Some(Instant::now());
        self.faults.refusals().forget(&granted);
        if self.faults.refusals().is_empty() {
            self.refused_at = None;
        }
    }

    /// What the packages may not do because its namespace does not exist.
    fn absent(&self) -> Vec<Grant> {
        self.server.read(|api| installed::grants(api, installed::absent(api, &self.bindings)))
    }

    /// What instances say of rights that are missing.
    fn said(&self) -> Vec<String> {
        self.server.read(|api| self.watcher().lacking(api))
    }

    /// Waits while instances quote refusals of what is granted by now.
    async fn outlast_quotes(&mut self, at: &Location) -> Result<(), Failure> {
        let Some(until) = self.granted_at.map(|granted| granted + QUOTED) else { return Ok(()) };
        let mut changes = self.server.changes();
        while Instant::now() < until && self.faults.refusals().is_empty() && !self.said().is_empty() {
            if !self.absent().is_empty() {
                break;
            }
            changes.mark_unchanged();
            self.turn(&mut changes, until, at).await?;
            self.invariants()?;
        }
        Ok(())
    }

    /// The failure of a case: `other`, with the rights that were missing, unless `steps` expect that.
    fn with_refusals(&self, other: Option<Failure>, steps: &[Step], at: &Location) -> Option<Failure> {
        if expect_refusal(steps) {
            return other;
        }
        let (mut refusals, mut said, absent) = (self.faults.refusals().all(), self.said(), self.absent());
        if self.is_disturbed {
            refused::leave_out_absent(&mut refusals, &mut said, &absent);
        }
        refused::failure((&refusals, said, &absent), other, self.refused_at.as_ref().unwrap_or(at))
    }

    /// Asks which kinds are served.
    async fn discover(&self, at: &Location) -> Result<(), Failure> {
        let apis = self.cluster.discover().await.map_err(|error| failed(at, error.to_string()))?;
        self.watcher().set_kinds(Kinds::of(&apis));
        Ok(())
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

    /// Waits for a change or a time, and starts the manager again if it was killed.
    async fn turn(
        &mut self,
        changes: &mut watch::Receiver<()>,
        until: Instant,
        at: &Location,
    ) -> Result<(), Failure> {
        self.grant_pending();
        tokio::select! {
            biased;
            () = self.faults.killed() => self.start_manager(at).await?,
            _ = changes.changed() => {}
            () = tokio::time::sleep_until(until) => {}
        }
        Ok(())
    }

    /// What there is now.
    fn end(&self) -> End {
        let mut end = self.server.read(|api| self.watcher().end(api));
        end.extend(self.faults.tallies());
        end
    }
}

/// The manager of a case acts as the accounts of packages, and converts instances between the versions of their kinds. What it
/// generates is the same in each play.
fn config(server: &Server) -> Config {
    let webhook = Webhook::new(WebhookAddress::Process, "", "");
    let server = server.clone();
    let creations =
        move |namespace: &str, name: &str| server.read(|api| api.creations("v1", "Secret", namespace, name));
    let randomness = Randomness::seeded(creations);
    Config { impersonate: true, webhook: Some(webhook), randomness, ..Config::default() }
}
