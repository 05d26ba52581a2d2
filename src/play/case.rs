//! Plays one case: starts the API and the manager, has the steps carried out ([`step`]), and waits for the end.

mod step;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use operetta_embedded::{Obedient, Programs};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::bounds;
use super::course::{Course, Part, Start};
use super::end::End;
use super::ended::{Ended, Failure, failed};
use super::faults::{Faults, Faulty};
use super::steps::{tracked, violation};
use super::suite::{Action, Step, Suite};
use super::update::Edit;
use super::view::Kinds;
use super::watcher::Watcher;
use crate::apiserver::Server;
use crate::clock;
use crate::cluster::{Cluster, Kinds as Discovered};
use crate::diag::{Diagnostic, Location};
use crate::manager::{Config, Manager, Webhook, WebhookAddress};
use crate::package::Package;

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
}

/// The manager of a case converts instances between the versions of their kinds.
fn config() -> Config {
    Config { webhook: Some(Webhook::new(WebhookAddress::Process, "", "")), ..Config::default() }
}
