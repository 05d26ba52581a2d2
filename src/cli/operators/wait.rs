//! Waits until the revision of an `Operator` is active.

use std::process::ExitCode;
use std::time::Duration;

use tokio::time::Instant;

use super::Failure;
use super::shared::{End, PAUSED, Waiting, refused};
use crate::api::Class;
use crate::children::RIGHTS_MISSING;
use crate::cli::connect::Server;
use crate::cli::out::{self, printable};
use crate::cli::wait::{Look, Wait};
use crate::operators::{self, Standing, standing};

/// How often the `Operator` is read.
const PERIOD: Duration = Duration::from_millis(200);
/// How long a refusal must last: at first the status may still be about the previous revision.
const HOLDS: Duration = Duration::from_secs(3);
/// How long missing rights must last if this command has just granted them: refused watches are opened again
/// after half a minute.
const GRANTED: Duration = Duration::from_secs(45);
/// After how long without an answer of a manager the command says so.
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
    let over = |why: &str| {
        let why = if why.is_empty() { "no manager has answered" } else { why };
        format!("{revision} is not active after {} s: {why}", waiting.timeout.as_secs())
    };
    let look = async || {
        let operator = match server.cluster.get(&operators::kind(), None, name).await {
            Ok(Some(operator)) if operator["spec"]["revision"] == revision => operator,
            Ok(Some(operator)) => {
                let other = operator["spec"]["revision"].as_str().unwrap_or_default();
                return Err(Failure::from(format!(
                    "Operator {name} names {other} now: another client has changed it"
                )));
            }
            Ok(None) => return Err(format!("Operator {name} has been deleted").into()),
            Err(error) if error.class == Class::Retry => return Ok(Look::Waits(String::new())),
            Err(error) => return Err(refused(&format!("Operator {name} cannot be read"), &error)),
        };
        Ok(match standing(&operator).standing {
            Standing::Active(note) => Look::Done(note),
            Standing::Paused(how_far) => {
                let message = format!(
                    "{revision} is applied, and the upgrade goes on when the Operator {name} is not paused any more: {}",
                    printable(&how_far)
                );
                Look::Blocked(Failure::with_code(PAUSED, message), Duration::ZERO)
            }
            Standing::Stalled(reason, message) => {
                let holds = if grants && reason == RIGHTS_MISSING { GRANTED } else { HOLDS };
                Look::Blocked(format!("{reason}: {}", printable(&message)).into(), holds)
            }
            Standing::Progressing(message) => Look::Waits(printable(&message)),
            Standing::Unseen if started.elapsed() > SILENT => Look::Waits(format!(
                "no manager has answered for {} s\n  help: a manager follows Operators if it was started by `operetta run` \
                 without packages, and is the leader",
                SILENT.as_secs()
            )),
            Standing::Unseen => Look::Waits(String::new()),
        })
    };
    let note = Wait::new(PERIOD, waiting.timeout).until(over, look).await?;
    out::line(if note.is_empty() { format!("{revision} is active") } else { printable(&note) });
    Ok(ExitCode::SUCCESS)
}
