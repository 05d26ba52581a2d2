//! The guard: a process of its own that runs the components of a control plane and outlives whoever
//! asked for them just long enough to clear up.
//!
//! It is the same executable, started as `operetta __guard watch FOLDER`. Its standard input is a
//! pipe that only its parent holds: when the parent ends, in whatever way, the input ends, and the guard
//! kills the components and removes their folder. It is in a process group of its own, so a Ctrl-C in
//! the terminal reaches the parent alone. Each component goes through `operetta __guard exec`, which has
//! Linux kill it with the guard: so not even SIGKILL to the guard leaves a process behind.
//!
//! Nothing a component holds is worth an orderly end (etcd runs without fsync, in a folder about to be
//! removed), and a kube-apiserver whose etcd is gone takes minutes to stop: so they are killed.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, BufRead, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, kill_process};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use super::protocol::{Event, Program, Request, Signal};
use super::volumes;

/// The hidden subcommand by which an executable offers itself as guard.
pub const COMMAND: &str = "__guard";

/// What process lists show, where the path would be `/proc/self/exe`.
pub(super) const ARG0: &str = "operetta";

/// Environment variables that components get to see. Others would change what they do: etcd reads every
/// `ETCD_*`, Kubernetes `KUBECONFIG`, `KUBE_FEATURE_*` and more.
const ENVIRONMENT: [&str; 4] = ["PATH", "HOME", "TMPDIR", "TZ"];

/// How long killed components may take to vanish: longer only if they hang in the kernel.
const GRACE: Duration = Duration::from_secs(5);

/// The hidden subcommand: `args` are what follows [`COMMAND`] on the command line.
///
/// To be called first in `main`, before threads and runtimes.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let mut args = args.into_iter();
    let result = match args.next().as_deref().and_then(OsStr::to_str) {
        Some("watch") => watch(&args.next().map_or_else(std::env::temp_dir, PathBuf::from)),
        Some("exec") => exec(args),
        _ => Err(io::Error::other(
            "this command is for Operetta itself: it watches over a local control plane",
        )),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "{COMMAND}: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Becomes the program `args` names, after having asked the kernel to end it together with the guard.
fn exec(mut args: impl Iterator<Item = OsString>) -> io::Result<()> {
    let guard = args.next().and_then(|pid| pid.to_str()?.parse::<i32>().ok());
    let program = args.next().ok_or_else(|| io::Error::other("no program"))?;
    #[cfg(any(target_os = "linux", target_os = "android"))]
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    // If the guard ended before the line above, no signal will come.
    if rustix::process::getppid().map(Pid::as_raw_pid) != guard {
        return Err(io::Error::other("the guard is gone"));
    }
    Err(Command::new(&program).args(args).exec())
}

/// Says something to the parent, which may be gone: then the end of input follows.
fn tell(event: &Event) {
    if let Ok(mut line) = serde_json::to_vec(event) {
        line.push(b'\n');
        let mut out = io::stdout().lock();
        let _ = out.write_all(&line).and_then(|()| out.flush());
    }
}

/// Serves the parent until it is gone or says so, then clears up.
fn watch(parent_folder: &Path) -> io::Result<()> {
    let folder = tempfile::Builder::new()
        .prefix("operetta-")
        .permissions(fs::Permissions::from_mode(0o700))
        .tempdir_in(parent_folder)
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
    let mut guard = Guard { folder: path.clone(), running: BTreeMap::new() };
    tell(&Event::Ready { folder: path.clone() });
    // One thread: the kernel kills the components when the *thread* that started them ends.
    let served = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .and_then(|runtime| runtime.block_on(guard.serve()));
    guard.kill_all();
    volumes::remove(&path);
    drop(folder);
    // A component that was just writing when it was killed cannot hinder this; a file made by somebody
    // else in the meantime can: once more.
    if path.exists() {
        fs::remove_dir_all(&path)?;
    }
    served
}

/// The components that run.
struct Guard {
    folder: PathBuf,
    running: BTreeMap<String, Child>,
}

impl Guard {
    /// Until the input ends, a request says stop, or a signal does.
    async fn serve(&mut self) -> io::Result<()> {
        let mut child = signal(SignalKind::child())?;
        // Sent by people and by systems that shut down; Ctrl-C is the parent's business, and a terminal
        // that closes ends the parent.
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
        // `exec` could not say so: its only voice is the log.
        let found = fs::metadata(&program.path)?;
        if !found.is_file() || found.permissions().mode() & 0o111 == 0 {
            return Err(io::Error::from(io::ErrorKind::PermissionDenied));
        }
        let log = fs::OpenOptions::new().create(true).append(true).mode(0o600).open(&program.log)?;
        Command::new(own_executable()?)
            .arg0(ARG0)
            .args([COMMAND, "exec"])
            .arg(std::process::id().to_string())
            .arg(&program.path)
            .args(&program.args)
            .current_dir(&self.folder)
            .env_clear()
            .envs(ENVIRONMENT.iter().filter_map(|name| Some((name, std::env::var_os(name)?))))
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
    }

    /// Takes note of components that have ended.
    fn reap(&mut self) {
        self.running.retain(|name, child| match child.try_wait() {
            Ok(None) => true,
            Ok(Some(status)) => {
                tell(&Event::Ended { name: name.clone(), status: status.to_string() });
                false
            }
            Err(error) => {
                tell(&Event::Ended { name: name.clone(), status: error.to_string() });
                false
            }
        });
    }

    fn signal(&mut self, name: &str, signal: Signal) {
        // Reaping happens in this thread only: the number is still that of our child.
        let pid = self.running.get(name).and_then(|child| Pid::from_raw(i32::try_from(child.id()).ok()?));
        if let Some(pid) = pid {
            let signal = match signal {
                Signal::Pause => rustix::process::Signal::STOP,
                Signal::Resume => rustix::process::Signal::CONT,
                Signal::Kill => rustix::process::Signal::KILL,
            };
            // It may have ended a moment ago; then SIGCHLD is on its way.
            let _ = kill_process(pid, signal);
        }
    }

    /// Ends every component, paused ones too, and waits for their end.
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

/// The requests of the parent; closed when the input ends. The thread ends with the process.
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

/// This executable: by a name that stays right when the file is replaced meanwhile, where there is one.
pub(super) fn own_executable() -> io::Result<PathBuf> {
    let link = Path::new("/proc/self/exe");
    if cfg!(target_os = "linux") && link.exists() { Ok(link.to_path_buf()) } else { std::env::current_exe() }
}
