//! A running `operetta`: a process, or a manager in the thread of the test, whose time is virtual.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use operetta::cluster::Cluster;
use operetta::manager::{Config, Manager, Monitor, Phase};
use operetta::package::Package;
use operetta_embedded::User;
use rustix::process::Signal;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tracing::subscriber::DefaultGuard;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::{EnvFilter, Layer as _, fmt};

use super::plane::{mortal_client, outside_of};
use super::{ControlPlane, LASTING, LONG, OPERETTA, managers_requests, signal};

/// The pause between two looks at the output.
const LOOK: Duration = Duration::from_millis(20);

/// A running `operetta`, killed when this is dropped or when this process ends for whatever reason.
pub struct Operetta {
    command: String,
    body: Body,
}

enum Body {
    Process(Process),
    Thread(InThread),
}

impl Operetta {
    /// Starts `operetta` with these arguments against the control plane. Unless the arguments say otherwise, a manager runs without
    /// leader election, so that it need not wait for the Lease of a killed one.
    pub fn run(plane: &ControlPlane, args: &[&str]) -> Self {
        if plane.is_in_thread() {
            return Self::in_thread(plane, None, args);
        }
        Self::run_as_user(plane, plane.kubeconfig_path(), &without_election(args))
    }

    /// Like [`Self::run`], as a `ServiceAccount`.
    pub async fn run_as_account(plane: &ControlPlane, namespace: &str, name: &str, args: &[&str]) -> Self {
        if plane.is_in_thread() {
            return Self::in_thread(plane, Some(User::account(namespace, name)), args);
        }
        let kubeconfig = super::rights::kubeconfig(plane, namespace, name).await;
        Self::run_as_user(plane, &kubeconfig, &without_election(args))
    }

    fn in_thread(plane: &ControlPlane, user: Option<User>, args: &[&str]) -> Self {
        let body = Body::Thread(InThread::start(plane, user, args));
        Self { command: format!("operetta {}", args.join(" ")), body }
    }

    /// Starts the process `operetta` with another kubeconfig for the control plane.
    pub fn run_as_user(plane: &ControlPlane, kubeconfig: &Path, args: &[&str]) -> Self {
        // Put the file into the control plane's folder, which is removed even if this is never dropped.
        let output = tempfile::NamedTempFile::new_in(plane.folder()).expect("a file for the output");
        Self::start(args, &[("KUBECONFIG", kubeconfig)], output)
    }

    /// Starts the process `operetta` with these arguments and additions to its environment.
    pub fn run_with(args: &[&str], environment: &[(&str, &Path)]) -> Self {
        Self::start(args, environment, tempfile::NamedTempFile::new().expect("a file for the output"))
    }

    fn start(args: &[&str], environment: &[(&str, &Path)], output: tempfile::NamedTempFile) -> Self {
        let command = format!("operetta {}", args.join(" "));
        Self { command, body: Body::Process(Process::start(args, environment, output)) }
    }

    /// The output so far.
    pub fn output(&self) -> String {
        match &self.body {
            Body::Process(process) => {
                String::from_utf8_lossy(&std::fs::read(process.output.path()).unwrap_or_default())
                    .into_owned()
            }
            Body::Thread(manager) => manager.log.since(manager.began),
        }
    }

    /// Its process ID; panics for a manager in the thread of the test.
    pub fn pid(&self) -> u32 {
        match &self.body {
            Body::Process(process) => process.child.id(),
            Body::Thread(_) => panic!("{} is no process", self.command),
        }
    }

    /// The state of the manager in the thread of the test; `None` for a process.
    pub(super) fn monitor(&self) -> Option<Arc<Monitor>> {
        match &self.body {
            Body::Process(_) => None,
            Body::Thread(manager) => Some(Arc::clone(&manager.monitor)),
        }
    }

    fn has_ended(&mut self) -> Option<ExitStatus> {
        match &mut self.body {
            Body::Process(process) => process.child.try_wait().expect("its state is known"),
            Body::Thread(manager) => manager.ended.get().copied(),
        }
    }

    /// Waits until the output contains this text; panics if it ends before.
    pub async fn wait_for(&mut self, text: &str, timeout: Duration) {
        let started = Instant::now();
        loop {
            // Check this first: if it has ended, the output read below is complete.
            let ended = self.has_ended();
            if self.output().contains(text) {
                return;
            }
            assert!(
                ended.is_none() && started.elapsed() < timeout,
                "{} has not printed {text:?} within {:.1} s ({}); its output:\n{}",
                self.command,
                started.elapsed().as_secs_f32(),
                ended.map_or("it runs".into(), |status| status.to_string()),
                self.output(),
            );
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Waits until it ends.
    pub async fn wait(&mut self, timeout: Duration) -> ExitStatus {
        let started = Instant::now();
        loop {
            if let Some(status) = self.has_ended() {
                self.kill9();
                return status;
            }
            assert!(
                started.elapsed() < timeout,
                "{} does not end; its output:\n{}",
                self.command,
                self.output()
            );
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Sends SIGINT, as Ctrl-C does.
    pub fn interrupt(&self) {
        match &self.body {
            Body::Process(process) => signal(process.child.id(), Signal::INT),
            Body::Thread(manager) => drop(manager.stop.send(true)),
        }
    }

    /// Does the same as [`Self::interrupt`], and waits until it ends.
    pub async fn end(&mut self) -> ExitStatus {
        self.interrupt();
        self.wait(LONG).await
    }

    /// Sends SIGKILL and waits for the end.
    pub fn kill9(&mut self) {
        match &mut self.body {
            Body::Process(process) => process.kill(),
            Body::Thread(manager) => manager.kill(),
        }
    }

    /// Kills it when it has made this many writes from now on, or after this time. In the thread of the test it does not learn of
    /// the last one; a process may make some more.
    pub async fn kill_after(&mut self, plane: &ControlPlane, writes: usize, at_most: Duration) {
        let (audit, started) = (plane.audit(), Instant::now());
        let mark = audit.mark().expect("the audit log");
        if let Body::Thread(manager) = &self.body {
            manager.writes_left.store(writes, Ordering::Relaxed);
        }
        let is_over = || match &self.body {
            Body::Process(_) => {
                managers_requests(&audit, mark).iter().filter(|request| request.writes()).count() >= writes
            }
            Body::Thread(manager) => !manager.lives.load(Ordering::Relaxed),
        };
        while !is_over() && started.elapsed() < at_most {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        self.kill9();
    }
}

/// The arguments, which turn leader election of a manager off unless they say otherwise.
fn without_election<'a>(args: &[&'a str]) -> Vec<&'a str> {
    let mut args = args.to_vec();
    if args.first() == Some(&"run") && !args.iter().any(|arg| arg.starts_with("--leader-elect")) {
        args.push("--leader-elect=false");
    }
    args
}

impl std::fmt::Debug for Operetta {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.command)
    }
}

impl Drop for Operetta {
    fn drop(&mut self) {
        self.kill9();
    }
}

struct Process {
    child: Child,
    /// A process that reads a pipe from this process and kills `operetta` when the pipe closes; statics are
    /// not dropped.
    undertaker: Child,
    output: tempfile::NamedTempFile,
}

impl Process {
    fn start(args: &[&str], environment: &[(&str, &Path)], output: tempfile::NamedTempFile) -> Self {
        // Open both for appending, so that stdout and stderr do not overwrite each other.
        let append = || File::options().append(true).open(output.path()).expect("the file for the output");
        let child = Command::new(OPERETTA)
            .args(args)
            .envs(environment.iter().copied())
            .stdin(Stdio::null())
            .stdout(append())
            .stderr(append())
            .spawn()
            .expect("operetta runs");
        let undertaker = Command::new("sh")
            .args(["-c", "read _; kill -9 $0", &child.id().to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("sh runs");
        Self { child, undertaker, output }
    }

    fn kill(&mut self) {
        // End the undertaker first: once `operetta` has ended, its process ID may belong to another process.
        let _ = self.undertaker.kill();
        let _ = self.undertaker.wait();
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A manager in the thread of the test.
struct InThread {
    log: Log,
    /// The length of the log when it started.
    began: usize,
    monitor: Arc<Monitor>,
    stop: watch::Sender<bool>,
    ended: Arc<OnceLock<ExitStatus>>,
    /// Nothing that it still sends arrives once it is killed.
    lives: Arc<AtomicBool>,
    /// After how many writes it is killed.
    writes_left: Arc<AtomicUsize>,
    running: JoinHandle<()>,
}

impl InThread {
    /// Starts it as this user; `None`: as the admin.
    fn start(plane: &ControlPlane, user: Option<User>, args: &[&str]) -> Self {
        let (server, log) = plane.thread().expect("the control plane of this thread");
        let began = log.since(0).len();
        let (mut config, mut folders) = (Config::default(), Vec::new());
        let (mut of_lease, mut lease) = ("operetta-system", "operetta");
        for arg in args {
            match arg.split_once('=') {
                None if *arg == "run" => {}
                Some(("--leader-elect-resource-name", name)) => lease = name,
                // What packages call is answered in the thread.
                Some(("--allow-call-to", _) | ("--leader-elect", "false")) => {}
                Some(("--namespace", namespace)) => namespace.clone_into(&mut config.namespace),
                Some(("--leader-elect-resource-namespace", namespace)) => of_lease = namespace,
                None if !arg.starts_with('-') => folders.push(PathBuf::from(arg)),
                _ => panic!("a manager in the thread of a test does not know {arg}"),
            }
        }
        config.lease = format!("{of_lease}/{lease}");
        config.follows_operators = folders.is_empty();
        let monitor = Arc::clone(&config.monitor);
        let (lives, ended) = (Arc::new(AtomicBool::new(true)), Arc::<OnceLock<ExitStatus>>::default());
        let writes_left = Arc::new(AtomicUsize::new(usize::MAX));
        let (is_alive, left) = (Arc::clone(&lives), Arc::clone(&writes_left));
        let inner = user.map_or_else(|| server.client(), |user| server.client_as(user));
        let client = mortal_client(inner, move |has_written| {
            if has_written && left.fetch_sub(1, Ordering::Relaxed) == 1 {
                is_alive.store(false, Ordering::Relaxed);
            }
            is_alive.load(Ordering::Relaxed)
        });
        let is_alive = Arc::clone(&lives);
        let cluster = Cluster::over(client, outside_of(server, move || is_alive.load(Ordering::Relaxed)));
        let (stop, stopping) = watch::channel(false);
        let (end, text) = (Arc::clone(&ended), log.clone());
        let running = tokio::spawn(async move {
            let code = lead(cluster, &folders, config, stopping, &text).await;
            let _ = end.set(ExitStatus::from_raw(code << 8));
        });
        Self { log: log.clone(), began, monitor, stop, ended, lives, writes_left, running }
    }

    fn kill(&mut self) {
        self.lives.store(false, Ordering::Relaxed);
        self.running.abort();
        let _ = self.ended.set(ExitStatus::from_raw(9));
    }
}

/// Runs a manager of these packages until it is to stop. Returns the exit code.
async fn lead(
    cluster: Cluster,
    folders: &[PathBuf],
    config: Config,
    mut stopping: watch::Receiver<bool>,
    log: &Log,
) -> i32 {
    let packages = folders.iter().filter_map(|folder| load(folder, log)).collect();
    config.monitor.enter(Phase::Leading);
    match Manager::start(cluster, packages, config).await {
        Ok(manager) => {
            for problem in &manager.problems {
                log.line(&format!("{problem:?}"));
            }
            let _ = stopping.wait_for(|stop| *stop).await;
            manager.stop().await;
            0
        }
        Err(error) => {
            log.line(&format!("error: {error}"));
            1
        }
    }
}

/// Loads a package; logs why it is invalid. Packages that no test changes are loaded once, or by several tests at once.
fn load(folder: &Path, log: &Log) -> Option<Arc<Package>> {
    static LOADED: LazyLock<Mutex<HashMap<PathBuf, Arc<Package>>>> = LazyLock::new(Mutex::default);
    let loaded = || LOADED.lock().unwrap_or_else(PoisonError::into_inner);
    let known = loaded().get(folder).cloned();
    if known.is_some() {
        return known;
    }
    match operetta::package::load(folder) {
        Ok((package, _)) => {
            let package = Arc::new(package);
            // A test may change a copy of its own, which is elsewhere.
            if folder.is_relative() || folder.starts_with(LASTING) {
                loaded().insert(folder.to_owned(), Arc::clone(&package));
            }
            Some(package)
        }
        Err(errors) => {
            for error in errors {
                log.line(&format!("{error:?}"));
            }
            None
        }
    }
}

/// The log of all managers in the thread of a test.
#[derive(Debug, Clone, Default)]
pub(super) struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    /// A log that gets from now on what is logged in this thread.
    pub(super) fn of_this_thread() -> Self {
        let log = Self::default();
        log.follow(None);
        log
    }

    /// Lets a judge have from now on what is logged in this thread, too.
    pub(super) fn judged_by(&self, judge: &super::oracles::Logs) {
        self.follow(Some(judge.clone()));
    }

    fn follow(&self, judge: Option<super::oracles::Logs>) {
        thread_local! {
            static LOGGING: RefCell<Option<DefaultGuard>> = const { RefCell::new(None) };
        }
        let writer = self.clone();
        let shown = fmt::layer()
            .with_writer(move || writer.clone())
            .with_target(false)
            .with_ansi(false)
            .with_filter(EnvFilter::new("warn,kube_client=off,kube_runtime=error,operetta=info"));
        let judged = judge.map(|judge| {
            let filter = EnvFilter::new(super::oracles::Logs::FILTER);
            fmt::layer().with_writer(move || judge.clone()).with_ansi(false).with_filter(filter)
        });
        let subscriber = tracing_subscriber::registry().with(shown).with(judged);
        LOGGING.with_borrow_mut(|logging| {
            // The end of a guard puts back the subscriber before it.
            *logging = None;
            *logging = Some(tracing::subscriber::set_default(subscriber));
        });
    }

    /// The text from a byte on.
    pub(super) fn since(&self, start: usize) -> String {
        let bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&bytes[start..]).into_owned()
    }

    fn line(&self, line: &str) {
        let mut bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        bytes.extend_from_slice(line.as_bytes());
        bytes.push(b'\n');
    }
}

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
