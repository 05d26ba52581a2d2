//! The parent's side of the guard: starts it, sends requests, and records the states of the components.
//!
//! It has no async runtime, because tests share one control plane among many runtimes, and the end of one of
//! them must not stop it. A thread reads the guard's events into a `watch` channel.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use super::guard::{self, ARG0};
use super::node::network::Place;
use super::protocol::{Event, Program, Request, Signal};
use super::{Component, Error};

/// The state of a component.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum State {
    /// The component runs with this process id, and may be paused.
    Running(u32),
    /// The component could not be started.
    NotStarted(String),
    /// The component has ended with this exit status. `wanted`: its end was requested.
    Ended { status: String, wanted: bool },
}

/// The states of all components.
#[derive(Debug, Clone, Default)]
struct Picture {
    folder: Option<(PathBuf, Option<Place>)>,
    states: BTreeMap<String, State>,
    /// The components whose end was requested.
    killing: Vec<String>,
    /// The reason why the guard has ended.
    gone: Option<String>,
}

/// A running guard. Dropping it closes the guard's input, and then the guard cleans up.
#[derive(Debug)]
pub(super) struct Supervisor {
    input: Mutex<Option<ChildStdin>>,
    picture: watch::Sender<Picture>,
}

/// The timeout for the creation of the guard's folder.
const GREETING: Duration = Duration::from_secs(20);

/// The timeout for waiting for the cleanup, which continues after it.
const FAREWELL: Duration = Duration::from_secs(15);

impl Supervisor {
    /// Starts the guard. Returns it with the folder that it created, and with the network and cgroup of a
    /// real node.
    pub(super) async fn start(
        executable: Option<&Path>,
        parent_folder: &Path,
        with_node: bool,
    ) -> Result<(Self, PathBuf, Option<Place>), Error> {
        let executable = match executable {
            Some(path) => path.to_path_buf(),
            None => guard::own_executable().map_err(Error::io("find", Path::new("the running program")))?,
        };
        let mut child = Command::new(&executable)
            .arg0(ARG0)
            .args([guard::COMMAND, if with_node { "node" } else { "watch" }])
            .arg(parent_folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // A Ctrl-C in the terminal must reach only the parent.
            .process_group(0)
            .spawn()
            .map_err(Error::io("start", &executable))?;
        let input = child.stdin.take();
        let picture = watch::Sender::new(Picture::default());
        let events = picture.clone();
        std::thread::Builder::new()
            .name("operetta-guard".into())
            .spawn(move || read_events(child, &events))
            .map_err(Error::io("start a thread for", &executable))?;
        let supervisor = Self { input: Mutex::new(input), picture };
        let mut seen = supervisor.picture.subscribe();
        let greeting = seen.wait_for(|picture| picture.folder.is_some() || picture.gone.is_some());
        let (folder, node) = match tokio::time::timeout(GREETING, greeting).await {
            Ok(Ok(picture)) => match (&picture.folder, &picture.gone) {
                (Some(folder), _) => folder.clone(),
                (None, reason) => {
                    return Err(Error::Guard { reason: reason.clone().unwrap_or_default() });
                }
            },
            _ => {
                return Err(Error::Guard {
                    reason: format!("({} {}) does not answer", executable.display(), guard::COMMAND),
                });
            }
        };
        drop(seen);
        Ok((supervisor, folder, node))
    }

    fn send(&self, request: &Request) -> Result<(), Error> {
        let mut line = serde_json::to_vec(request).map_err(|e| Error::Guard { reason: e.to_string() })?;
        line.push(b'\n');
        let mut input = self.input.lock().unwrap_or_else(PoisonError::into_inner);
        match input.as_mut().map(|input| input.write_all(&line).and_then(|()| input.flush())) {
            Some(Ok(())) => Ok(()),
            _ => Err(Error::Guard { reason: self.gone() }),
        }
    }

    fn gone(&self) -> String {
        self.picture.borrow().gone.clone().unwrap_or_else(|| "is gone".into())
    }

    /// Whether the guard has ended.
    pub(super) fn guard_is_gone(&self) -> bool {
        self.picture.borrow().gone.is_some()
    }

    /// Starts the program of a component. Returns when it has started, even if it has already ended again.
    pub(super) async fn run(
        &self,
        component: Component,
        path: &Path,
        args: Vec<String>,
        log: PathBuf,
    ) -> Result<(), Error> {
        let name = component.name().to_owned();
        self.picture.send_modify(|picture| {
            picture.states.remove(&name);
            picture.killing.retain(|killing| *killing != name);
        });
        let mut seen = self.picture.subscribe();
        self.send(&Request::Start(Program { name: name.clone(), path: path.into(), args, log }))?;
        let known = seen
            .wait_for(|picture| picture.states.contains_key(&name) || picture.gone.is_some())
            .await
            .map(|picture| picture.states.get(&name).cloned());
        match known {
            Ok(Some(State::NotStarted(reason))) => {
                Err(Error::Spawn { component, program: path.into(), reason })
            }
            Ok(Some(_)) => Ok(()),
            _ => Err(Error::Guard { reason: self.gone() }),
        }
    }

    /// The state of a component; `None` if it was never started.
    pub(super) fn state(&self, component: Component) -> Option<State> {
        self.picture.borrow().states.get(component.name()).cloned()
    }

    /// Pauses or resumes a component.
    pub(super) fn signal(&self, component: Component, signal: Signal) -> Result<(), Error> {
        match self.state(component) {
            Some(_) => self.send(&Request::Signal { name: component.name().into(), signal }),
            None => Err(Error::NoSuchComponent { component }),
        }
    }

    /// Kills a component, and returns when it has ended.
    pub(super) async fn kill(&self, component: Component) -> Result<(), Error> {
        let name = component.name();
        let mut seen = self.picture.subscribe();
        self.picture.send_modify(|picture| picture.killing.push(name.into()));
        self.signal(component, Signal::Kill)?;
        let ended = seen.wait_for(|picture| {
            picture.gone.is_some() || !matches!(picture.states.get(name), Some(State::Running(_)))
        });
        match ended.await {
            Ok(picture) if picture.gone.is_none() => Ok(()),
            _ => Err(Error::Guard { reason: self.gone() }),
        }
    }

    /// Waits until a component ends for another reason than [`Self::kill`], or until the guard ends.
    pub(super) async fn unwanted_end(&self) -> UnwantedEnd {
        fn find(picture: &Picture) -> Option<UnwantedEnd> {
            if let Some(reason) = &picture.gone {
                return Some(UnwantedEnd::Guard(reason.clone()));
            }
            // The components are checked in the order in which they were started, because the first one is
            // the likely cause.
            Component::ALL.iter().find_map(|component| match picture.states.get(component.name()) {
                Some(State::Ended { status, wanted: false }) => {
                    Some(UnwantedEnd::Component(*component, status.clone()))
                }
                _ => None,
            })
        }
        let mut seen = self.picture.subscribe();
        let found = seen.wait_for(|picture| find(picture).is_some()).await.ok();
        found.and_then(|picture| find(&picture)).unwrap_or_else(|| UnwantedEnd::Guard(self.gone()))
    }

    /// Requests the cleanup and waits until the guard has ended.
    pub(super) async fn stop(&self) {
        let mut seen = self.picture.subscribe();
        // Errors are ignored, because a guard that has ended reads no requests.
        let _ = self.send(&Request::Stop);
        self.input.lock().unwrap_or_else(PoisonError::into_inner).take();
        let gone = seen.wait_for(|picture| picture.gone.is_some());
        let _ = tokio::time::timeout(FAREWELL, gone).await;
    }
}

/// The process that ended unexpectedly.
#[derive(Debug)]
pub(super) enum UnwantedEnd {
    /// A component, with its exit status.
    Component(Component, String),
    /// The guard, with the reason.
    Guard(String),
}

/// Reads the events of the guard until it ends.
fn read_events(mut child: Child, picture: &watch::Sender<Picture>) {
    let mut reason = None;
    for line in child.stdout.take().map(BufReader::new).into_iter().flat_map(BufRead::lines) {
        let Some(event) = line.ok().and_then(|line| serde_json::from_str::<Event>(&line).ok()) else {
            reason = Some("sent an unexpected message: is it Operetta of the same version?".into());
            break;
        };
        if let Event::Failed { reason: why } = event {
            reason = Some(why);
            break;
        }
        picture.send_modify(|picture| picture.note(event));
    }
    let mut stderr = String::new();
    if let Some(pipe) = child.stderr.take() {
        let _ = pipe.take(4096).read_to_string(&mut stderr);
    }
    let status = child.wait().map_or_else(|error| error.to_string(), |status| status.to_string());
    let reason = match (reason, stderr.trim()) {
        (Some(reason), _) => reason,
        (None, "") => format!("has ended ({status})"),
        (None, stderr) => format!("has ended ({status}): {stderr}"),
    };
    picture.send_modify(|picture| picture.gone = Some(reason));
}

impl Picture {
    fn note(&mut self, event: Event) {
        match event {
            Event::Ready { folder, node } => self.folder = Some((folder, node)),
            Event::Failed { reason } => self.gone = Some(reason),
            Event::Started { name, pid } => {
                self.states.insert(name, State::Running(pid));
            }
            Event::NotStarted { name, reason } => {
                self.states.insert(name, State::NotStarted(reason));
            }
            Event::Ended { name, status } => {
                let wanted = self.killing.contains(&name);
                self.states.insert(name, State::Ended { status, wanted });
            }
        }
    }
}
