//! `operetta plan`: the plans of instances, and their runs. One file per group of commands.

mod answer;
mod draw;
mod follow;
mod history;
mod list;
mod logs;
mod params;
mod request;
mod status;
mod target;

use std::process::ExitCode;
use std::time::Duration;

use clap::Subcommand;

use super::command::{Failure, Output, Shown, duration, end};
use super::out;
use super::session::{Common, Session};
use crate::api::CallError;
use crate::plan::{Of, Phase};

/// The exit code of a run that was cancelled or superseded.
const STOPPED: u8 = 3;

/// Run plans, and watch, answer and cancel their runs
///
/// A plan is a named procedure of a package, such as a backup or an upgrade in a certain order. A run is one execution
/// of a plan for one instance. Every run is an object of the kind `PlanRun`.
#[derive(Debug, clap::Args)]
#[command(
    arg_required_else_help = true,
    after_help = "Examples:
  operetta plan list etcdcluster/prod
  operetta plan run etcdcluster/prod backup --param target=s3://backups --wait
  operetta plan status etcdcluster/prod
  operetta plan approve etcdcluster/prod
  operetta plan retry etcdcluster/prod --wait --timeout 10m

RUN is the name of a PlanRun, such as prod-3. KIND/NAME is an instance and stands for the run of it that is meant: the \
active one, or the last one.

Exit codes of run --wait, retry --wait and wait: 0 the run has succeeded; 1 it has failed, or is not found, or the API \
server refuses; 2 wrong usage; 3 it was cancelled or superseded; 4 --timeout is over, and the run continues; 5 the run does \
not go on before a person acts, because its instance is paused, for example.
Exit codes of the others: 0 success, 1 not found, refused or no API server, 2 wrong usage."
)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(request::RunArgs),
    List(list::Args),
    Status(status::Args),
    History(history::Args),
    Cancel(answer::CancelArgs),
    Retry(request::RetryArgs),
    Approve(answer::ApproveArgs),
    Wait(status::WaitArgs),
    Logs(logs::Args),
}

pub(super) async fn run(args: &Args) -> ExitCode {
    end(match &args.command {
        Command::Run(args) => request::run(args).await,
        Command::List(args) => list::run(args).await,
        Command::Status(args) => status::status(args).await,
        Command::History(args) => history::run(args).await,
        Command::Cancel(args) => answer::cancel(args).await,
        Command::Retry(args) => request::retry(args).await,
        Command::Approve(args) => answer::approve(args).await,
        Command::Wait(args) => status::wait(args).await,
        Command::Logs(args) => logs::run(args).await,
    })
}

/// Whether to wait for the end of a run.
#[derive(Debug, clap::Args)]
struct Waiting {
    /// Wait for the end of the run, and show its progress
    #[arg(short, long)]
    wait: bool,

    /// How long to wait, such as 10m [default: without limit]
    #[arg(long, value_name = "DURATION", value_parser = duration, requires = "wait")]
    timeout: Option<Duration>,
}

/// What a table shows, and how.
#[derive(Debug, clap::Args)]
struct Listing {
    /// The instance [default: all instances of the namespace]
    #[arg(value_name = "KIND/NAME")]
    instance: Option<String>,

    /// Instances of all namespaces
    #[arg(short = 'A', long, conflicts_with_all = ["namespace", "instance"])]
    all_namespaces: bool,

    #[command(flatten)]
    shown: Shown,

    #[command(flatten)]
    common: Common,
}

impl Failure {
    /// The API server's refusal of a request about `PlanRun`s. `verb` is that of RBAC.
    fn refused(what: &str, verb: &str, of: Option<&Of>, error: &CallError) -> Self {
        let words = out::printable(&error.to_string());
        let message = match (error.code, words.split_once("denied request: ")) {
            (_, Some((_, why))) => match of.filter(|_| why.contains("needs the verb")) {
                Some(of) => {
                    let group = of.api_version.split('/').next().unwrap_or_default();
                    let verb = why.split('`').nth(1).unwrap_or("run");
                    format!(
                        "{what}: {why}\n  help: a Role with the rule {{apiGroups: [{group}], resources: [{}], verbs: \
                         [{verb}]}} allows it",
                        of.resource
                    )
                }
                None => format!("{what}: {why}"),
            },
            (403, None) => format!(
                "{what}: {words}\n  help: a Role with the rule {{apiGroups: [operetta.dev], resources: [planruns], \
                 verbs: [{verb}]}} allows it"
            ),
            (404, None) => format!(
                "{what}: {words}\n  help: the API server has PlanRuns once a manager runs a package with plans; does \
                 the namespace exist?"
            ),
            _ => format!("{what}: {words}"),
        };
        message.into()
    }
}

/// The exit code of the phase in which a run ended.
fn exit_code(phase: Phase) -> u8 {
    match phase {
        Phase::Succeeded => 0,
        Phase::Cancelled | Phase::Superseded => STOPPED,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Class;

    #[test]
    fn each_end_of_a_run_has_an_exit_code() {
        for (phase, code) in [
            (Phase::Succeeded, 0),
            (Phase::Failed, 1),
            (Phase::Cancelled, STOPPED),
            (Phase::Superseded, STOPPED),
        ] {
            assert_eq!(exit_code(phase), code, "{phase:?}");
        }
    }

    #[test]
    fn refusals_say_which_rule_is_missing() {
        let of = Of {
            api_version: "example.com/v1".into(),
            kind: "Shop".into(),
            resource: "shops".into(),
            name: "a".into(),
        };
        let refused = |words: &str| {
            let error = CallError::new(Class::Permanent, 403, "Forbidden", words);
            Failure::refused("the run cannot be created", "create", Some(&of), &error).message
        };
        let policy = "planruns.operetta.dev \"a-backup-x\" is forbidden: ValidatingAdmissionPolicy \
            'planruns.operetta.dev' with binding 'planruns.operetta.dev' denied request: ";
        let told = refused(&format!(
            "{policy}user bob may not run plans of shops/a: it needs the verb `run` on shops.example.com"
        ));
        assert!(
            told.starts_with("the run cannot be created: user bob may not run plans of shops/a"),
            "{told}"
        );
        assert!(told.contains("{apiGroups: [example.com], resources: [shops], verbs: [run]}"), "{told}");
        let told = refused(&format!("{policy}spec.requestedBy must be the user who creates the PlanRun"));
        assert_eq!(
            told,
            "the run cannot be created: spec.requestedBy must be the user who creates the PlanRun"
        );
        let told = refused("User \"bob\" cannot create resource \"planruns\"");
        assert!(told.contains("resources: [planruns], verbs: [create]"), "{told}");
    }
}
