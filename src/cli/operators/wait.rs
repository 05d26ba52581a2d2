//! Waits until the revision of an `Operator` is active.

use std::process::ExitCode;
use std::time::Duration;

use tokio::time::Instant;

use super::{End, Failure, PAUSED, TIMED_OUT, Waiting, refused};
use crate::api::Class;
use crate::children::RIGHTS_MISSING;
use crate::cli::connect::Server;
use crate::cli::out;
use crate::operators::{self, Standing, standing};

/// How often the `Operator` is read.
const PERIOD: Duration = Duration::from_millis(200);
/// How long a refusal must hold: it may be about what was there before.
const HOLDS: Duration = Duration::from_secs(3);
/// The same if rights are missing that were granted a moment ago: watches that were refused are opened again after half a minute.
const GRANTED: Duration = Duration::from_secs(45);
/// After which time without an answer of a manager that is said.
const SILENT: Duration = Duration::from_secs(10);

/// Waits for the revision that the `Operator` names, and prints the progress. `grants`: whether the command has granted its
/// rights.
pub(super) async fn until_active(
    server: &Server,
    (name, revision): (&str, &str),
    grants: bool,
    waiting: &Waiting,
) -> End {
    if waiting.no_wait {
        out::line(format!("Operator {name} names {revision}"));
        return Ok(ExitCode::SUCCESS);
    }
    let started = Instant::now();
    let (mut told, mut stalled_since, mut has_told_silence) = (String::new(), None, false);
    loop {
        let found = match server.cluster.get(&operators::kind(), None, name).await {
            Ok(Some(operator)) if operator["spec"]["revision"] == revision => Some(standing(&operator)),
            Ok(Some(operator)) => {
                let other = operator["spec"]["revision"].as_str().unwrap_or_default();
                return Err(
                    format!("Operator {name} names {other} now: another client has changed it").into()
                );
            }
            Ok(None) => return Err(format!("Operator {name} has been deleted").into()),
            Err(error) if error.class == Class::Retry => None,
            Err(error) => return Err(refused(&format!("Operator {name} cannot be read"), &error)),
        };
        let mut words = String::new();
        let mut stalled = None;
        match found.map(|found| found.standing) {
            Some(Standing::Active(note)) => {
                out::line(if note.is_empty() {
                    format!("{revision} is active")
                } else {
                    out::printable(&note)
                });
                return Ok(ExitCode::SUCCESS);
            }
            Some(Standing::Paused(how_far)) => {
                let message = format!(
                    "{revision} is applied, and the upgrade goes on when the Operator {name} is not paused any more: {}",
                    out::printable(&how_far)
                );
                return Err(Failure::with_code(PAUSED, message));
            }
            Some(Standing::Stalled(reason, message)) => {
                let since = *stalled_since.get_or_insert_with(Instant::now);
                let holds = if grants && reason == RIGHTS_MISSING { GRANTED } else { HOLDS };
                if since.elapsed() > holds {
                    return Err(format!("{reason}: {}", out::printable(&message)).into());
                }
                stalled = Some(since);
            }
            Some(Standing::Progressing(message)) => words = message,
            Some(Standing::Unseen) if started.elapsed() > SILENT && !has_told_silence => {
                has_told_silence = true;
                out::note(format!(
                    "warning: no manager has answered for {} s\n  help: a manager follows Operators if it was started by \
                     `operetta run` without packages, and is the leader",
                    SILENT.as_secs()
                ));
            }
            Some(Standing::Unseen) | None => {}
        }
        stalled_since = stalled;
        if !words.is_empty() && words != told {
            out::note(out::printable(&words));
            told = words;
        }
        if started.elapsed() > waiting.timeout {
            let why =
                if told.is_empty() { "no manager has answered".to_owned() } else { out::printable(&told) };
            let message = format!("{revision} is not active after {} s: {why}", waiting.timeout.as_secs());
            return Err(Failure::with_code(TIMED_OUT, message));
        }
        tokio::time::sleep(PERIOD).await;
    }
}
