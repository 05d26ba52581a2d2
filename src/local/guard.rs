//! The guard: a separate process that runs the components of a control plane, and cleans up when its parent ends.
//!
//! It is the same executable, started as `operetta __guard watch FOLDER`. Its standard input is a pipe that
//! only its parent holds. When the parent ends for any reason, the input ends, and the guard kills the
//! components and removes their folder. It has its own process group, so a Ctrl-C in the terminal reaches
//! only the parent. Each component is started through `operetta __guard exec`, which makes Linux kill it
//! together with the guard. So even a SIGKILL of the guard leaves no process behind.
//!
//! For a control plane with a real node, the guard has two parts: `operetta __guard node FOLDER` creates
//! namespaces, and in them `operetta __guard serve FOLDER` runs the components: see `node/namespaces.rs`.
//!
//! The components need no orderly shutdown (etcd runs without fsync, in a folder that is removed afterwards), and a
//! kube-apiserver without etcd takes minutes to stop. So they are killed.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, BufRead, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, WaitOptions, kill_process, wait};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use super::protocol::{Event, Program, Request, Signal};
use super::{node, volumes};

/// The hidden subcommand of the guard.
pub const COMMAND: &str = "__guard";

/// The name in process lists, instead of `/proc/self/exe`.
pub(super) const ARG0: &str = "operetta";

/// The environment variables that components receive. Others would change their behaviour: etcd reads every `ETCD_*`,
/// Kubernetes `KUBECONFIG`, `KUBE_FEATURE_*` and more.
const ENVIRONMENT: [&str; 5] = ["PATH", "HOME", "TMPDIR", "TZ", "GOGC"];

/// The time that killed components have to end. They take longer only if they hang in the kernel.
const GRACE: Duration = Duration::from_secs(5);

/// Runs the hidden subcommand. `args` are those after [`COMMAND`] on the command line.
///
/// Must be called first in `main`, before threads and runtimes.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let mut args = args.into_iter();
    let result = match args.next().as_deref().and_then(OsStr::to_str) {
        Some("watch") => with_folder(&mut args, false, |folder| {
            tell(&Event::Ready { folder: folder.into(), node: None });
            serve(folder)
        }),
        Some("node") => with_folder(&mut args, true, node::namespaces::run),
        Some("serve") => serve(&args.next().map(PathBuf::from).unwrap_or_default()),
        Some("registry") => registry(args),
        Some("exec") => exec(args),
        _ => Err(io::Error::other("this command is internal: it guards a local control plane")),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "{COMMAND}: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Replaces this process by the program in `args`, after asking the kernel to kill it together with the guard.
fn exec(mut args: impl Iterator<Item = OsString>) -> io::Result<()> {
    let guard = args.next().and_then(|pid| pid.to_str()?.parse::<i32>().ok());
    let program = args.next().ok_or_else(|| io::Error::other("no program"))?;
    #[cfg(any(target_os = "linux", target_os = "android"))]
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    // If the guard ended before the line above, the signal will never come.
    if rustix::process::getppid().map(Pid::as_raw_pid) != guard {
        return Err(io::Error::other("the guard is gone"));
    }
    Err(Command::new(&program).args(args).exec())
}

/// Sends an event to the parent. An error is ignored, because if the parent has ended, the input ends, too.
pub(super) fn tell(event: &Event) {
    if let Ok(mut line) = serde_json::to_vec(event) {
        line.push(b'\n');
        let mut out = io::stdout().lock();
        let _ = out.write_all(&line).and_then(|()| out.flush());
    }
}

/// Serves images; the arguments are a folder and an address.
fn registry(mut args: impl Iterator<Item = OsString>) -> io::Result<()> {
    match (args.next(), args.next().as_deref().and_then(OsStr::to_str)) {
        (Some(folder), Some(address)) => node::registry::main(Path::new(&folder), address),
        _ => Err(io::Error::other("no folder and address")),
    }
}

/// Creates a folder in the folder that is the next argument, runs `serve` with it, and removes it with all
/// volumes.
fn with_folder(
    args: &mut impl Iterator<Item = OsString>,
    has_data: bool,
    serve: impl FnOnce(&Path) -> io::Result<()>,
) -> io::Result<()> {
    let parent_folder = args.next().map_or_else(std::env::temp_dir, PathBuf::from);
    let folder = tempfile::Builder::new()
        .prefix("operetta-")
        .permissions(fs::Permissions::from_mode(0o700))
        .tempdir_in(&parent_folder)
        .and_then(|folder| folder.path().canonicalize().map(|path| (folder, path)));
    let (folder, path) = match folder {
        Ok(found) => found,
        Err(error) => {
            tell(&Event::Failed {
                reason: format!("cannot make a folder in {}: {error}", parent_folder.display()),
            });
            return Err(error);
        }
    };
    let served = serve(&path);
    volumes::remove(&path, has_data);
    drop(folder);
    // Killed components cannot prevent the removal. But another process may create a file at that moment, so
    // the removal is repeated once.
    if path.exists() {
        fs::remove_dir_all(&path)?;
    }
    served
}

/// Serves the parent until it ends or requests the end, and then kills the components.
fn serve(folder: &Path) -> io::Result<()> {
    let mut guard = Guard { folder: folder.into(), running: BTreeMap::new() };
    // The runtime has one thread, because the kernel kills the components when the *thread* that started them
    // ends.
    let served = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .and_then(|runtime| runtime.block_on(guard.serve()));
    guard.kill_all();
    served
}

/// A command that runs a program in a folder, and that the kernel kills together with this process.
pub(super) fn command(program: &Path, folder: &Path) -> io::Result<Command> {
    let mut command = Command::new(own_executable()?);
    command
        .arg0(ARG0)
        .args([COMMAND, "exec"])
        .arg(std::process::id().to_string())
        .arg(program)
        .current_dir(folder)
        .env_clear()
        .envs(ENVIRONMENT.iter().filter_map(|name| Some((name, std::env::var_os(name)?))))
        .stdin(Stdio::null());
    Ok(command)
}

/// The running components.
struct Guard {
    folder: PathBuf,
    running: BTreeMap<String, Child>,
}

impl Guard {
    /// Runs until the input ends, or a request or a signal stops it.
    async fn serve(&mut self) -> io::Result<()> {
        let mut child = signal(SignalKind::child())?;
        // SIGTERM comes from people and at shutdown. SIGINT and SIGHUP are ignored: the parent handles
        // Ctrl-C, and a closed terminal ends the parent.
        let mut terminate = signal(SignalKind::terminate())?;
        let _interrupt = signal(SignalKind::interrupt())?;
        let _hangup = signal(SignalKind::hangup())?;
        let mut requests = read_requests();
        loop {
            tokio::select! {
                request = requests.recv() => match request {
                    Some(Request::Start(program)) => self.start(program),
                    Some(Request::Signal { name, signal }) => self.signal(&name, signal),
                    Some(Request::Stop) | None => return Ok(()),
                },
                _ = child.recv() => self.reap(),
                _ = terminate.recv() => return Ok(()),
            }
        }
    }

    fn start(&mut self, program: Program) {
        match self.spawn(&program) {
            Ok(child) => {
                tell(&Event::Started { name: program.name.clone(), pid: child.id() });
                self.running.insert(program.name, child);
            }
            Err(error) => tell(&Event::NotStarted { name: program.name, reason: error.to_string() }),
        }
    }

    fn spawn(&self, program: &Program) -> io::Result<Child> {
        if self.running.contains_key(&program.name) {
            return Err(io::Error::other("it runs already"));
        }
        // This is checked here, because `exec` could report it only in the log of the component.
        let found = fs::metadata(&program.path)?;
        if !found.is_file() || found.permissions().mode() & 0o111 == 0 {
            return Err(io::Error::from(io::ErrorKind::PermissionDenied));
        }
        let log = fs::OpenOptions::new().create(true).append(true).mode(0o600).open(&program.log)?;
        command(&program.path, &self.folder)?.args(&program.args).stdout(log.try_clone()?).stderr(log).spawn()
    }

    /// Records components that have ended. The first process of a namespace also gets orphaned processes as
    /// children, which are ignored.
    fn reap(&mut self) {
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            let pid = u32::try_from(pid.as_raw_pid()).unwrap_or_default();
            let ended =
                self.running.iter().find(|(_, child)| child.id() == pid).map(|(name, _)| name.clone());
            if let Some(name) = ended {
                self.running.remove(&name);
                tell(&Event::Ended { name, status: ExitStatus::from_raw(status.as_raw()).to_string() });
            }
        }
    }

    fn signal(&mut self, name: &str, signal: Signal) {
        // Only this thread reaps children, so the process id still belongs to the child.
        let pid = self.running.get(name).and_then(|child| Pid::from_raw(i32::try_from(child.id()).ok()?));
        if let Some(pid) = pid {
            let signal = match signal {
                Signal::Pause => rustix::process::Signal::STOP,
                Signal::Resume => rustix::process::Signal::CONT,
                Signal::Kill => rustix::process::Signal::KILL,
            };
            // The process may have ended already; then SIGCHLD follows.
            let _ = kill_process(pid, signal);
        }
    }

    /// Kills all components, including paused ones, and waits for their end.
    fn kill_all(&mut self) {
        for child in self.running.values_mut() {
            let _ = child.kill();
        }
        let started = Instant::now();
        while !self.running.is_empty() && started.elapsed() < GRACE {
            self.reap();
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// Receives the requests of the parent. The channel is closed when the input ends. The thread ends with the
/// process.
fn read_requests() -> mpsc::UnboundedReceiver<Request> {
    let (sender, receiver) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in io::stdin().lock().lines() {
            let Some(request) = line.ok().and_then(|line| serde_json::from_str(&line).ok()) else {
                break;
            };
            if sender.send(request).is_err() {
                break;
            }
        }
    });
    receiver
}

/// The path of this executable, if possible by a name that stays valid if the file is replaced.
pub(super) fn own_executable() -> io::Result<PathBuf> {
    let link = Path::new("/proc/self/exe");
    if cfg!(target_os = "linux") && link.exists() { Ok(link.to_path_buf()) } else { std::env::current_exe() }
}
