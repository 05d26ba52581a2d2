//! Commands of kubectl carried out by a client, without a process: that would cost a tenth of a second, and is impossible on an
//! embedded API in this process while tokio's clock is paused.
//!
//! Output and errors are those of kubectl as far as tests read them. Tables of `-o wide` and most other outputs are unknown here.

mod apply;
mod arguments;
mod create;
mod delete;
mod edit;
mod output;
mod read;
mod resources;
mod session;

use std::fmt::Display;
use std::time::Duration;

use arguments::Arguments;
use session::Session;

use super::{LONG, eventually};

/// The output or the error of a command; `None` if the command is unknown here.
type Outcome = Option<Result<String, String>>;

/// Carries out a command of kubectl; `None` if it is none of those that are known here. `namespace`: that of the command if it names
/// none.
pub(super) async fn run(
    client: &kube::Client,
    namespace: Option<&str>,
    args: &[&str],
    input: &str,
) -> Outcome {
    let args = Arguments::parse(args)?;
    let session = Session::new(client, namespace, &args);
    match *args.words.first()? {
        "annotate" => edit::mark(&session, &args, "annotations").await,
        "label" => edit::mark(&session, &args, "labels").await,
        "patch" => edit::patch(&session, &args).await,
        "scale" => edit::scale(&session, &args).await,
        "replace" => edit::replace(&session, &args, input).await,
        "apply" => apply::apply(&session, &args, input).await,
        "create" => create::create(&session, &args, input).await,
        "delete" => delete::delete(&session, &args).await,
        "get" => read::get(&session, &args).await,
        "wait" => read::wait(&session, &args).await,
        _ => None,
    }
}

/// The output if nothing has failed; else all errors. kubectl, too, goes on after an error.
fn outcome(output: String, errors: &[String]) -> Result<String, String> {
    if errors.is_empty() { Ok(output) } else { Err(errors.join("\n")) }
}

/// Polls until `check` returns a value. The end of a timeout is an error, as for kubectl; if it is zero, a panic after long.
async fn within<T, E: Display>(
    timeout: Duration,
    what: &str,
    check: impl AsyncFnMut() -> Result<T, E>,
) -> Result<T, String> {
    if timeout.is_zero() {
        return Ok(eventually(what, LONG, check).await);
    }
    let waits = tokio::time::timeout(timeout, eventually(what, timeout + LONG, check)).await;
    waits.map_err(|_| format!("error: timed out waiting for {what}"))
}
