//! Shared helpers for integration tests: control planes, namespaces, kubectl, polling, and `operetta` as a process or in the thread of
//! the test.

// Each test binary compiles this module and uses only a part of it.
#![allow(dead_code, unreachable_pub, unused_imports)]
// Tests may panic.
#![allow(clippy::expect_used)]

mod actor;
mod apply;
pub mod barrier;
pub mod crd;
pub mod crds;
pub mod dev;
pub mod etcd;
pub mod ext;
pub mod faults;
pub mod fleets;
pub mod handover;
pub mod hold;
mod kubectl;
mod latency;
mod manager;
pub mod operators;
pub mod oracles;
mod plane;
pub mod plans;
pub mod rights;
pub mod routes;
mod says;
mod seed;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fmt::Display;
use std::ops::Deref;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

pub use actor::Actor;
pub use ext::*;
use http::Request;
pub use manager::Operetta;
use operetta::local::Options;
pub use plane::ControlPlane;
use rustix::process::{Pid, Signal, kill_process};
pub(crate) use says::says;
pub use seed::seed;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::runtime::{self, Handle};
use tokio::sync::OnceCell;
use tokio::time::Instant;

/// The `operetta` binary that cargo has built for this test.
pub const OPERETTA: &str = env!("CARGO_BIN_EXE_operetta");

/// Options for a test's control plane: the built binary is the guard, progress goes to stderr, pods can
/// choose their own fate, and commands in pods run on this machine.
pub fn options() -> Options {
    Options {
        guard: Some(OPERETTA.into()),
        stages: Some(plans::stages()),
        exec: true,
        progress: Arc::new(|progress| eprintln!("{progress}")),
        ..Options::default()
    }
}

/// The control plane that all tests of a binary share, with one fake node; it ends with the process.
pub async fn plane() -> &'static Arc<ControlPlane> {
    static PLANE: OnceCell<Arc<ControlPlane>> = OnceCell::const_new();
    PLANE.get_or_init(own_plane).await
}

/// Starts a control plane for one test, with one fake node; it ends when it is dropped.
pub async fn own_plane() -> Arc<ControlPlane> {
    Arc::new(ControlPlane::start(options()).await.unwrap_or_else(|error| panic!("{error}")))
}

/// The control plane of a test that says nothing else: one in its thread, with virtual time, or the real one that all share.
pub async fn plane_of_tests() -> Arc<ControlPlane> {
    thread_local! {
        /// The control plane of a test, with the runtime of that test.
        static OF_TEST: RefCell<Option<(runtime::Id, Arc<ControlPlane>)>> = const { RefCell::new(None) };
    }
    if !is_in_thread() {
        return Arc::clone(plane().await);
    }
    let runtime = Handle::current().id();
    OF_TEST.with_borrow_mut(|of_test| match of_test {
        Some((of, plane)) if *of == runtime => Arc::clone(plane),
        _ => Arc::clone(&of_test.insert((runtime, Arc::new(ControlPlane::in_thread()))).1),
    })
}

/// A control plane for one test alone: in its thread, with virtual time, or a real one.
pub async fn own_plane_of_tests() -> Arc<ControlPlane> {
    if is_in_thread() { Arc::new(ControlPlane::in_thread()) } else { own_plane().await }
}

/// Whether tests that say nothing else have their control plane in their thread: those of `engine`.
fn is_in_thread() -> bool {
    env!("CARGO_CRATE_NAME") == "engine" && !is_all_real()
}

/// Starts an embedded API for one test, which ends when it is dropped. With `OPERETTA_TEST_API=real` it is a real control plane.
pub async fn own_embedded_plane() -> Arc<ControlPlane> {
    Arc::new(ControlPlane::embedded().await)
}

/// Whether tests that take an embedded API run on real control planes.
pub fn is_all_real() -> bool {
    match std::env::var("OPERETTA_TEST_API").as_deref() {
        Err(_) | Ok("embedded") => false,
        Ok("real") => true,
        Ok(other) => panic!("OPERETTA_TEST_API={other}: it is embedded (the default) or real"),
    }
}

/// A namespace for one test. It is never deleted: that would cost more requests than most tests.
pub struct Namespace {
    name: String,
}

impl Deref for Namespace {
    type Target = str;

    fn deref(&self) -> &str {
        &self.name
    }
}

impl AsRef<OsStr> for Namespace {
    fn as_ref(&self) -> &OsStr {
        self.name.as_ref()
    }
}

impl Display for Namespace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name)
    }
}

/// Creates a namespace on the control plane of the tests.
pub async fn namespace() -> Namespace {
    namespace_on(&plane_of_tests().await).await
}

/// Creates a namespace for a test.
pub async fn namespace_on(plane: &Arc<ControlPlane>) -> Namespace {
    static NUMBER: AtomicUsize = AtomicUsize::new(1);
    namespace_named(plane, &format!("test-{}", NUMBER.fetch_add(1, Ordering::Relaxed))).await
}

/// Creates a namespace, and waits for its `ServiceAccount`, without which no pod is admitted.
pub async fn namespace_named(plane: &Arc<ControlPlane>, name: &str) -> Namespace {
    let client = plane.client().expect("a client");
    let body = json!({"metadata": {"name": name}}).to_string().into_bytes();
    let create = Request::post("/api/v1/namespaces").header("content-type", "application/json");
    let created = client.request::<Value>(create.body(body).expect("a request")).await;
    created.unwrap_or_else(|error| panic!("namespace {name}: {error}"));
    eventually("the ServiceAccount of a new namespace", LONG, async || {
        read(&client, &SERVICE_ACCOUNT.path(Some(name), "default")).await.ok_or("there is none")
    })
    .await;
    Namespace { name: name.to_owned() }
}

/// The timeout of programs that a test waits for: a test that hangs is not named in the output.
const PROGRAM: Duration = Duration::from_secs(600);

/// The output and exit status of a program.
#[derive(Debug, Clone)]
pub struct Output {
    pub command: String,
    pub stdout: String,
    pub stderr: String,
    pub status: ExitStatus,
}

impl Output {
    fn of(command: String, output: &std::process::Output) -> Self {
        Self {
            command,
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
            status: output.status,
        }
    }

    /// Standard output; panics with all output unless the program succeeded.
    #[track_caller]
    pub fn ok(self) -> String {
        self.result().unwrap_or_else(|error| panic!("{error}"))
    }

    /// Standard output, or all output as an error.
    pub fn result(self) -> Result<String, String> {
        if self.status.success() {
            return Ok(self.stdout);
        }
        Err(format!("{}: {}\n{}{}", self.command, self.status, self.stdout, self.stderr))
    }

    /// Standard error; panics with the output unless the program failed.
    #[track_caller]
    pub fn fails(self) -> String {
        assert!(!self.status.success(), "{} succeeds:\n{}", self.command, self.stdout);
        self.stderr
    }
}

/// Runs kubectl as admin of the control plane of the tests.
pub async fn kubectl(args: &[&str]) -> Output {
    kubectl_stdin(args, "").await
}

/// Runs kubectl with this standard input, as for `apply -f -`.
pub async fn kubectl_stdin(args: &[&str], input: &str) -> Output {
    kubectl_of(&*plane_of_tests().await, args, input).await
}

/// Runs kubectl as admin of any control plane.
pub async fn kubectl_of(plane: &ControlPlane, args: &[&str], input: &str) -> Output {
    if plane.is_in_thread() {
        return in_process(plane, args, input).await;
    }
    let mut child = tokio::process::Command::new(plane.kubectl().await)
        .arg("--kubeconfig")
        .arg(plane.kubeconfig_path())
        // kubectl's own limit for a discovery request is 32 s; a busy machine may need longer.
        .arg("--request-timeout=5m")
        .args(args)
        // Keep the discovery cache apart from that of the person who runs the tests.
        .env("KUBECACHEDIR", plane.folder().join("kubectl-cache"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("kubectl runs");
    let mut stdin = child.stdin.take().expect("it was asked for");
    // kubectl may have ended without reading its input.
    let _ = stdin.write_all(input.as_bytes()).await;
    drop(stdin);
    let command = format!("kubectl {}", args.join(" "));
    ended(command, child.wait_with_output()).await
}

/// What kubectl does, without a process.
async fn in_process(plane: &ControlPlane, args: &[&str], input: &str) -> Output {
    let command = format!("kubectl {}", args.join(" "));
    let client = plane.client().expect("a client");
    let done = kubectl::run(&client, None, args, input).await;
    let (stdout, stderr) =
        match done.unwrap_or_else(|| panic!("{command} needs a process: not in the thread of a test")) {
            Ok(stdout) => (stdout, String::new()),
            Err(stderr) => (String::new(), stderr),
        };
    let status = ExitStatus::from_raw(if stderr.is_empty() { 0 } else { 1 << 8 });
    Output { command, stdout, stderr, status }
}

/// Waits until a program has ended.
async fn ended(
    command: String,
    running: impl Future<Output = std::io::Result<std::process::Output>>,
) -> Output {
    let output = tokio::time::timeout(PROGRAM, running).await;
    let output = output.unwrap_or_else(|_| panic!("{command} has not ended within {PROGRAM:?}"));
    Output::of(command, &output.expect("a program"))
}

/// Runs `operetta` with a kubeconfig until it ends.
pub async fn operetta(kubeconfig: &Path, args: &[&str]) -> Output {
    let running = tokio::process::Command::new(OPERETTA)
        .args(args)
        .env("KUBECONFIG", kubeconfig)
        .env("NO_COLOR", "1")
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    ended(format!("operetta {}", args.join(" ")), running).await
}

/// A message that is built only when it is shown: most polls fail, and few of their errors are shown.
pub struct Lazy<F>(pub F);

impl<F: Fn() -> String> Display for Lazy<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0())
    }
}

/// Whether the long form of the tests is requested.
pub fn is_long() -> bool {
    std::env::var_os("OPERETTA_SWEEP").is_some()
}

/// Polls until `check` returns a value; panics with its last error after `timeout`.
pub async fn eventually<T, E: Display>(
    what: &str,
    timeout: Duration,
    mut check: impl AsyncFnMut() -> Result<T, E>,
) -> T {
    let started = Instant::now();
    loop {
        let asked = Instant::now();
        let error = match check().await {
            Ok(value) => return value,
            Err(error) => error,
        };
        assert!(
            started.elapsed() < timeout,
            "{what}: not within {:.1} s; at last: {error}",
            timeout.as_secs_f32()
        );
        // Poll more slowly the longer it takes, and never most of the time: other tests need the processor.
        let pause = (started.elapsed() / 16).max(asked.elapsed() * 2);
        tokio::time::sleep(pause.clamp(Duration::from_millis(20), Duration::from_millis(500))).await;
    }
}

/// Sends a signal to a process.
pub fn signal(pid: u32, signal: Signal) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).expect("a process number");
    kill_process(pid, signal).expect("the process is there");
}

/// Whether a process exists and is not a zombie.
pub fn alive(pid: u32) -> bool {
    state_of(pid).is_some_and(|state| state != 'Z')
}

/// All descendants of a process that still runs.
pub fn descendants(pid: u32) -> BTreeSet<u32> {
    let mut parents = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let Ok(stat) = std::fs::read_to_string(entry.path().join("stat")) else { continue };
        let parent = stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(1)?.parse::<u32>().ok());
        parents.push((pid, parent.unwrap_or_default()));
    }
    let mut found = BTreeSet::from([pid]);
    loop {
        let more: Vec<u32> = parents
            .iter()
            .filter(|(p, parent)| found.contains(parent) && !found.contains(p))
            .map(|(p, _)| *p)
            .collect();
        if more.is_empty() {
            return found;
        }
        found.extend(more);
    }
}

/// Waits until a process is stopped by SIGSTOP.
pub async fn until_paused(pid: u32) {
    eventually("a process to pause", LONG, async || match state_of(pid) {
        Some('T') => Ok(()),
        state => Err(format!("{state:?}")),
    })
    .await;
}

/// The state of a process, as `ps` shows it.
fn state_of(pid: u32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}
