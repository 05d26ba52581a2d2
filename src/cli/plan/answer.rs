//! `operetta plan cancel` and `approve`: they change `PlanRun`s.

use std::process::ExitCode;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::target::{FIELD_MANAGER, Run, Target, Which};
use crate::api::Class;
use crate::cli::command::Failure;
use crate::cli::command::{self, is_yes};
use crate::cli::connect;
use crate::cli::out::{self, printable};
use crate::cli::session::{Common, Session};
use crate::plan::{ApprovalDecision, approval_patch, plan_run_kind};

/// How long an active run may take to ask its question.
const QUESTION: Duration = Duration::from_secs(3);

/// How often an approval is written again after another change of the run.
const ATTEMPTS: usize = 5;

/// Cancel a run
///
/// What is in flight is settled first: a Job is deleted, a request without an answer is repeated with the same key until
/// its result is known. What the run has done stays. A cancellation cannot be taken back.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  operetta plan cancel keystore/orders
  operetta plan cancel orders-3 && operetta plan wait orders-3 --for Cancelled

The API server lets a user cancel who has the verb `run` on the instance.

Exit codes: 0 the run is being cancelled; 1 it has ended, is not found or refused; 2 wrong usage.")]
pub(super) struct CancelArgs {
    /// The name of a run, or KIND/NAME of an instance: the run of it that has not ended
    #[arg(value_name = "RUN|KIND/NAME")]
    run: String,

    #[command(flatten)]
    common: Common,
}

pub(super) async fn cancel(args: &CancelArgs) -> Result<ExitCode, Failure> {
    let target = Target::parse(&args.run)?;
    let session = Session::open(&args.common).await?;
    let run = session.find(target, Which::Open).await?.run;
    if run.is_final() {
        return Err(format!("run {} has ended: it is {:?}", run.name, run.phase()).into());
    }
    let patch = json!({"metadata": {"uid": run.uid}, "spec": {"cancel": true}});
    let (namespace, name) = (run.namespace.as_deref(), &run.name);
    let cluster = &session.server.cluster;
    let done = cluster.merge_patch(&plan_run_kind(), namespace, name, None, &patch, FIELD_MANAGER).await;
    done.map_err(|error| {
        Failure::refused(&format!("run {name} cannot be cancelled"), "patch", Some(&run.spec.of), &error)
    })?;
    Ok(out::all(&format!("run {} is being cancelled\n", printable(name)), ExitCode::SUCCESS))
}

/// Approve or reject what a run asks
///
/// A step with `approve` waits until enough people have approved. The deletion of a child with `deletionPolicy: Ask`
/// waits for one approval; the condition `DeletionPending` of the instance names its run. An answer cannot be taken back.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  operetta plan approve keystore/orders
  operetta plan approve orders-3 sure --reject
  operetta plan approve orders-delete-5f1d2c7a90
  operetta plan approve keystore/orders --all

The API server lets a user answer who has the verb `approve` on the instance, and only in their own name.

Exit codes: 0 answered; 1 nothing is asked, several steps ask, not found or refused; 2 wrong usage.")]
pub(super) struct ApproveArgs {
    /// The name of a run, or KIND/NAME of an instance: the run of it that asks
    #[arg(value_name = "RUN|KIND/NAME")]
    run: String,

    /// The step, by its path or its name, if several ask
    step: Option<String>,

    /// Answer all steps that ask, of all runs of the instance
    #[arg(long, conflicts_with = "step")]
    all: bool,

    /// With --all: do not ask for confirmation
    #[arg(short, long, requires = "all")]
    yes: bool,

    /// Reject: the step fails
    #[arg(long)]
    reject: bool,

    #[command(flatten)]
    common: Common,
}

pub(super) async fn approve(args: &ApproveArgs) -> Result<ExitCode, Failure> {
    let target = Target::parse(&args.run)?;
    let session = Session::open(&args.common).await?;
    let by = connect::user(&session.server.cluster).await?;
    let verdict = if args.reject { ApprovalDecision::Reject } else { ApprovalDecision::Approve };
    if !args.all {
        let run = asking(&session, target).await?;
        let chosen = choose(&run, args.step.as_deref(), ask)?;
        let text = answer(&session, run, &chosen, verdict, &by).await?;
        return Ok(out::all(&text, ExitCode::SUCCESS));
    }
    let mut questions = Vec::new();
    for run in session.find_all(target).await? {
        let steps: Vec<_> =
            run.run.questions().iter().map(|step| (step.path.clone(), run.question(step))).collect();
        questions.extend(steps.into_iter().map(|(path, message)| (run.clone(), path, message)));
    }
    if questions.is_empty() {
        return Err(format!("no run of {} asks for approval", printable(&args.run)).into());
    }
    let line = |text: String, (run, path, message): &(Run, String, String)| {
        text + &printable(&format!("  {}, step {path}: {message}", run.run.name)) + "\n"
    };
    let listed = questions.iter().fold(String::new(), line);
    if !args.yes && !confirmed(&listed, verdict)? {
        return Err("not answered".into());
    }
    let mut text = String::new();
    for (run, path, _) in questions {
        match answer(&session, run, &path, verdict, &by).await {
            Ok(line) => text += &line,
            Err(failure) => return Err(Failure { message: format!("{text}{}", failure.message), ..failure }),
        }
    }
    Ok(out::all(&text, ExitCode::SUCCESS))
}

/// Answers a step of a run. Returns a line that says what was done.
async fn answer(
    session: &Session,
    mut run: Run,
    chosen: &str,
    verdict: ApprovalDecision,
    by: &str,
) -> Result<String, Failure> {
    for attempt in 1.. {
        let name = run.run.name.clone();
        let Some(step) = run.run.questions().into_iter().find(|step| step.path == chosen).cloned() else {
            return Err(format!("step {chosen} of run {name} asks no more").into());
        };
        if run.answers(&step).any(|answer| answer.by == by) {
            return Err(format!(
                "{by} has answered step {chosen} of run {name} already: it waits for others"
            )
            .into());
        }
        let done = write(session, &run, &json!({"step": chosen, "verdict": verdict, "by": by})).await;
        match done {
            Ok(_) => {
                let said = if verdict == ApprovalDecision::Reject { "rejected" } else { "approved" };
                let text = format!("{said}: run {name}, step {chosen}: {}", run.question(&step));
                return Ok(format!("{}\n", printable(&text)));
            }
            Err(error) if error.class == Class::Conflict && attempt < ATTEMPTS => {
                run = session.named(run.run.namespace.as_deref().unwrap_or_default(), &name).await?;
            }
            Err(error) => {
                let what = format!("step {chosen} of run {name} cannot be answered");
                return Err(Failure::refused(&what, "patch", Some(&run.run.spec.of), &error));
            }
        }
    }
    Err("the run changes all the time".into())
}

/// Asks for confirmation on the terminal.
fn confirmed(questions: &str, verdict: ApprovalDecision) -> Result<bool, Failure> {
    let verb = if verdict == ApprovalDecision::Reject { "Reject" } else { "Approve" };
    let answer = command::ask(&format!("These steps ask:\n{questions}{verb} all? [y/N] "))?;
    answer.map(|answer| is_yes(&answer)).ok_or_else(|| {
        Failure::usage(format!("there is no terminal to ask on: add --yes\n{}", questions.trim_end()))
    })
}

/// Appends an approval, unless the run has changed.
async fn write(session: &Session, run: &Run, approval: &Value) -> Result<Value, crate::api::CallError> {
    let patch = approval_patch(&run.object, approval);
    let (namespace, name) = (run.run.namespace.as_deref(), &run.run.name);
    session.server.cluster.merge_patch(&plan_run_kind(), namespace, name, None, &patch, FIELD_MANAGER).await
}

/// The run that asks. A run that has just started may ask in a moment.
async fn asking(session: &Session, target: Target<'_>) -> Result<Run, Failure> {
    let deadline = Instant::now() + QUESTION;
    loop {
        let found = session.find(target, Which::Asking).await;
        let may_ask = match (&found, target) {
            (Ok(run), _) if !run.run.questions().is_empty() => return found,
            (Ok(run), _) => !run.run.is_final(),
            (Err(_), Target::Run(_)) => false,
            (Err(_), Target::Instance(..)) => {
                session.find(target, Which::Current).await.is_ok_and(|run| !run.run.is_final())
            }
        };
        if !may_ask || Instant::now() >= deadline {
            let run = found?.run;
            return Err(format!("run {} asks for no approval: it is {:?}", run.name, run.phase()).into());
        }
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
}

/// The path of the step to answer. `ask` chooses one of several.
fn choose(
    run: &Run,
    named: Option<&str>,
    ask: impl FnOnce(&[(String, String)]) -> Result<usize, Failure>,
) -> Result<String, Failure> {
    let is_named =
        |path: &str| named.is_none_or(|named| path == named || path.rsplit('/').next() == Some(named));
    let questions = run.run.questions();
    let mut found: Vec<(String, String)> = questions
        .iter()
        .filter(|step| is_named(&step.path))
        .map(|step| (step.path.clone(), run.question(step)))
        .collect();
    match (found.len(), named) {
        (0, named) => {
            let paths: Vec<&str> = questions.iter().map(|step| step.path.as_str()).collect();
            let named = printable(named.unwrap_or_default());
            Err(format!(
                "step {named} of run {} asks for no approval\n  help: these do: {}",
                run.run.name,
                paths.join(", ")
            )
            .into())
        }
        (1, _) => Ok(found.remove(0).0),
        _ => {
            let index = ask(&found)?;
            Ok(found.swap_remove(index).0)
        }
    }
}

/// Asks on the terminal which of several questions is answered.
fn ask(questions: &[(String, String)]) -> Result<usize, Failure> {
    let lines: String = questions
        .iter()
        .enumerate()
        .map(|(index, (path, message))| printable(&format!("  {}. {path}: {message}", index + 1)) + "\n")
        .collect();
    let question = format!("Several steps ask:\n{lines}Which one? [1-{}] ", questions.len());
    let Some(answer) = command::ask(&question)? else {
        return Err(format!("several steps ask: name one\n{}", lines.trim_end()).into());
    };
    let number = answer.parse::<usize>().ok().filter(|number| (1..=questions.len()).contains(number));
    number.map(|number| number - 1).ok_or_else(|| "not answered".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_several_steps_is_chosen() {
        let step = |path: &str| json!({"path": path, "phase": "Running", "asked": 0, "message": "Sure?"});
        let run = |paths: &[&str]| {
            let steps: Vec<Value> = paths.iter().map(|path| step(path)).collect();
            Run::new(json!({"metadata": {"name": "a-1"}, "spec": {}, "status": {"phase": "Running", "steps": steps}}))
                .unwrap()
        };
        let of = |paths: &[&str], named| {
            choose(&run(paths), named, |_| Err("several".into())).map_err(|failure| failure.message)
        };
        assert_eq!(of(&["x/sure"], None).unwrap(), "x/sure");
        assert_eq!(of(&["x/sure", "y/ask"], Some("ask")).unwrap(), "y/ask");
        assert_eq!(of(&["x/sure", "y/sure"], Some("y/sure")).unwrap(), "y/sure");
        assert_eq!(of(&["x/sure", "y/sure"], Some("sure")).unwrap_err(), "several");
        assert!(of(&["x/sure"], Some("no")).unwrap_err().contains("these do: x/sure"));
        assert_eq!(choose(&run(&["a", "b"]), None, |all| Ok(all.len() - 1)).unwrap(), "b");
    }
}
