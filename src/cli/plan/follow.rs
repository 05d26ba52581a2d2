//! Follows a run to its end, and shows its progress.

use std::process::ExitCode;
use std::time::Duration;

use serde_json::Value;

use super::draw::{Changes, sentence, title, tree, waits};
use super::shared::exit_code;
use super::target::Run;
use crate::api::{ApiKind, Class};
use crate::children::NOT_LOADED;
use crate::cli::command::BLOCKED;
use crate::cli::command::Failure;
use crate::cli::out::{self, printable};
use crate::cli::session::Session;
use crate::cli::show::{Screen, Terminal};
use crate::cli::wait::{Look, Wait};
use crate::facts::condition;
use crate::plan::{Of, Phase, plan_run_kind};

/// How often a run is read.
const PERIOD: Duration = Duration::from_millis(500);
/// How long an instance must be blocked before the command gives up: a manager that has just started loads
/// packages first.
const HOLDS: Duration = Duration::from_secs(10);
/// The reasons of `Ready` with which no run of an instance goes on before a person acts.
const NO_RUNS: [&str; 7] =
    [NOT_LOADED, "NestedTooDeep", "Paused", "RevisionMissing", "StateMissing", "StateNewer", "TooManyValues"];

/// When to stop following a run.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct StopAt {
    /// The phase at which to stop; `None`: the end of the run.
    pub phase: Option<Phase>,
    /// The longest time to follow the run.
    pub timeout: Option<Duration>,
}

/// How progress is shown.
enum Show {
    Nothing,
    /// One line per change.
    Lines(Changes),
    /// The tree, drawn over the previous one. While the run goes on, its end is shown: that is where the progress is.
    Live(Screen),
}

impl Show {
    fn new(is_quiet: bool) -> Self {
        if is_quiet {
            Self::Nothing
        } else if Terminal::is_live() {
            Self::Live(Screen::default())
        } else {
            Self::Lines(Changes::default())
        }
    }

    /// Returns false if the reader has closed the output.
    fn show(&mut self, run: &Run, instance: Option<&Value>) -> bool {
        let now = crate::clock::now();
        match self {
            Self::Nothing => true,
            Self::Lines(changes) => {
                let lines = changes.next(run, instance, now);
                lines.is_empty() || out::line(lines.join("\n"))
            }
            Self::Live(screen) => {
                let text = format!("{}\n{}", title(&run.run), tree(run, instance, Terminal::stdout(), now));
                let drawn = if run.run.is_final() {
                    screen.draw(&text.lines().collect::<Vec<_>>())
                } else {
                    screen.draw_end(&text)
                };
                drawn.is_ok()
            }
        }
    }
}

/// Follows a run. Returns its last state, and the exit code.
///
/// # Errors
///
/// The run is deleted, or the API server refuses to show it.
pub(super) async fn follow(
    session: &Session,
    (namespace, name): (&str, &str),
    until: StopAt,
    is_quiet: bool,
) -> Result<(Run, ExitCode), Failure> {
    let (mut show, mut troubled) = (Show::new(is_quiet), false);
    let wait = Wait { period: PERIOD, timeout: until.timeout, is_quiet: true };
    let over = |why: &str| format!("the time is over before run {name} has ended; {why}");
    let look = async || {
        let found = session.server.cluster.get(&plan_run_kind(), Some(namespace), name).await;
        let run = match found {
            Ok(Some(object)) => Run::new(object)?,
            Ok(None) => return Err(format!("run {name} has been deleted").into()),
            Err(error) if error.class == Class::Retry => {
                let words = format!("run {name} cannot be read now: {error}; trying again");
                if !std::mem::replace(&mut troubled, true) {
                    out::note(format!("warning: {words}"));
                }
                return Ok(Look::Waits(words));
            }
            Err(error) => {
                return Err(Failure::refused(&format!("run {name} cannot be read"), "get", None, &error));
            }
        };
        troubled = false;
        let instance = instance(session, &run).await;
        if !show.show(&run, instance.as_ref()) {
            return Ok(Look::Done((run, ExitCode::SUCCESS)));
        }
        if let Some(code) = reached(run.run.phase(), until.phase) {
            return Ok(Look::Done((run, ExitCode::from(code))));
        }
        Ok(match instance.as_ref().and_then(blocks) {
            Some(why) => {
                let message = format!(
                    "run {name} does not go on before its instance does: {why}\n  help: it stays requested, and `operetta plan wait \
                     {name} -n {namespace}` waits for it again"
                );
                Look::Blocked(Failure::with_code(BLOCKED, message), HOLDS)
            }
            None => Look::Waits(state(&run, instance.as_ref())),
        })
    };
    wait.until(over, look).await
}

/// Where a run is, and what it waits for.
fn state(run: &Run, instance: Option<&Value>) -> String {
    let phase = format!("it is {:?}", run.run.phase());
    match waits(instance, &run.run.name) {
        Some((step, why)) => printable(&format!("{phase}, step {step}: {why}")),
        None => match sentence(&run.run) {
            why if why.is_empty() => phase,
            why => format!("{phase}: {why}"),
        },
    }
}

/// Why no run of an instance goes on until a person acts.
fn blocks(instance: &Value) -> Option<String> {
    let ready = condition(instance, "Ready")?;
    let (reason, message) = (ready["reason"].as_str()?, ready["message"].as_str().unwrap_or_default());
    NO_RUNS.contains(&reason).then(|| printable(&format!("{reason}: {message}")))
}

/// The exit code, once a run has reached the wanted phase or cannot reach it.
fn reached(phase: Phase, wanted: Option<Phase>) -> Option<u8> {
    match wanted {
        Some(wanted) if wanted == phase => Some(0),
        // The run has ended in another phase than the wanted one.
        Some(_) if phase.is_final() => Some(exit_code(phase).max(1)),
        None if phase.is_final() => Some(exit_code(phase)),
        _ => None,
    }
}

/// The instance of a run, if it can be read: its conditions say what the run waits for.
pub(super) async fn instance(session: &Session, run: &Run) -> Option<Value> {
    if run.run.is_final() {
        return None;
    }
    let Of { api_version, kind, resource, name } = &run.run.spec.of;
    let (group, version) = api_version.split_once('/')?;
    // A cluster-scoped instance has no namespace in its path, and is not found.
    let kind = ApiKind {
        group: group.to_owned(),
        version: version.to_owned(),
        kind: kind.clone(),
        plural: resource.clone(),
        namespaced: true,
    };
    session.server.cluster.get(&kind, run.run.namespace.as_deref(), name).await.ok().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_ends_at_the_wanted_phase_or_the_end() {
        use Phase::{Cancelled, Failed, Interrupted, Running, Succeeded};
        for (phase, wanted, expected) in [
            (Running, None, None),
            (Succeeded, None, Some(0)),
            (Failed, None, Some(1)),
            (Cancelled, None, Some(3)),
            (Running, Some(Running), Some(0)),
            (Interrupted, Some(Running), None),
            (Succeeded, Some(Running), Some(1)),
            (Cancelled, Some(Cancelled), Some(0)),
            (Cancelled, Some(Succeeded), Some(3)),
        ] {
            assert_eq!(reached(phase, wanted), expected, "{phase:?} {wanted:?}");
        }
    }
}
