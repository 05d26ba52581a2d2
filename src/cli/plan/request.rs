//! `operetta plan run` and `retry`: they create `PlanRun`s.

use std::path::PathBuf;
use std::process::ExitCode;

use serde_json::{Value, json};

use super::follow::{StopAt, follow};
use super::params::params;
use super::shared::Waiting;
use super::status::{document, name};
use super::target::{FIELD_MANAGER, Instance, Run, Target, Which, text};
use crate::children::crds::PublishedPlan;
use crate::cli::command::{Failure, Output};
use crate::cli::connect;
use crate::cli::out::{self, printable};
use crate::cli::session::{Common, Session};
use crate::diag::did_you_mean;
use crate::plan::{self, Of, plan_run_kind, run_request};
use crate::yaml;

/// How a run is requested.
#[derive(Debug, clap::Args)]
struct Request {
    #[command(flatten)]
    waiting: Waiting,

    /// Output format
    #[arg(short, long, value_enum, value_name = "FORMAT")]
    output: Option<Output>,

    #[command(flatten)]
    common: Common,
}

/// Request a run of a plan
///
/// Creates a `PlanRun`. The API server lets a user do so who has the verb `run` on the instance.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  operetta plan run keystore/orders restore --param backup=2026-11-21
  operetta plan run keystore/orders restore --params restore.yaml --wait --timeout 30m
  run=$(operetta plan run keystore/orders backup -o name) && operetta plan wait $run

--param has the type that the plan's schema says; lists and maps are YAML: --param 'hosts=[a, b]'.

Exit codes: 0 the run is requested, or with --wait has succeeded; 1 refused or not found, or with --wait failed; 2 wrong \
usage; with --wait also 3 cancelled or superseded, 4 --timeout is over, and the run continues, 5 it does not go on before a \
person acts.")]
pub(super) struct RunArgs {
    /// The instance
    #[arg(value_name = "KIND/NAME")]
    instance: String,

    /// The plan; `operetta plan list KIND/NAME` lists them
    #[arg(value_name = "PLAN")]
    plan: String,

    /// A parameter; repeatable
    #[arg(short, long, value_name = "KEY=VALUE")]
    param: Vec<String>,

    /// A file with a map of parameters, YAML or JSON; --param takes precedence
    #[arg(long, value_name = "FILE")]
    params: Option<PathBuf>,

    #[command(flatten)]
    request: Request,
}

pub(super) async fn run(args: &RunArgs) -> Result<ExitCode, Failure> {
    let (kind, name) = Target::instance(&args.instance)?;
    let file = args.params.as_ref().map(read).transpose()?;
    let session = Session::open(&args.request.common).await?;
    let instance = session.instance(kind, name).await?;
    let plan = plan(&instance, &args.plan)?;
    if plan.is_none() {
        let text = instance.kind.undescribed("only the manager checks the plan and its parameters");
        out::note(format!("note: {text}"));
    }
    let params = params(plan, file, &args.param)?;
    let namespace = session.namespace_of_runs(&instance).await?;
    let spec = json!({"of": instance.of(), "plan": args.plan, "params": params});
    create(&session, (&namespace, &instance.of()), spec, &args.request).await
}

fn read(path: &PathBuf) -> Result<Value, Failure> {
    let shown = path.display();
    let text = std::fs::read_to_string(path)
        .map_err(|error| Failure::usage(format!("{shown} cannot be read: {}", out::reason(&error))))?;
    yaml::from_str(&text).map_err(|error| Failure::usage(format!("{shown}: {}", error.message)))
}

/// The plan of that name; `None` if this user may not read which plans there are.
fn plan<'i>(instance: &'i Instance, name: &str) -> Result<Option<&'i PublishedPlan>, Failure> {
    let (of, name) = (instance.text(), printable(name));
    if name == "cleanup" {
        return Err(format!(
            "{of}: the plan cleanup runs when the instance is deleted, and cannot be requested"
        )
        .into());
    }
    let Some(plans) = &instance.kind.plans else { return Ok(None) };
    if let Some(plan) = plans.iter().find(|plan| plan.name == name) {
        return Ok(Some(plan));
    }
    if plans.is_empty() {
        return Err(format!("{of}: the package {} has no plans for this kind", instance.kind.package).into());
    }
    let names: Vec<&str> = plans.iter().map(|plan| plan.name.as_str()).collect();
    Err(match did_you_mean(&name, names.iter().copied()) {
        Some(near) => format!("{of} has no plan {name}; did you mean {near}?"),
        None => format!("{of} has no plan {name}; its plans are {}", names.join(", ")),
    }
    .into())
}

/// Retry a failed or cancelled run at the step where it ended
///
/// Creates a `PlanRun` that resumes it: steps that have succeeded do not run again.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  operetta plan retry keystore/orders
  operetta plan retry orders-3 --wait --timeout 10m

Exit codes: 0 the retry is requested, or with --wait has succeeded; 1 neither failed nor cancelled, refused or not found, or with --wait \
failed; 2 wrong usage; with --wait also 3 cancelled or superseded, 4 --timeout is over, and the run continues, 5 it does not \
go on before a person acts.")]
pub(super) struct RetryArgs {
    /// The name of a failed run, or KIND/NAME of an instance: its last failed run
    #[arg(value_name = "RUN|KIND/NAME")]
    run: String,

    #[command(flatten)]
    request: Request,
}

pub(super) async fn retry(args: &RetryArgs) -> Result<ExitCode, Failure> {
    let target = Target::parse(&args.run)?;
    let session = Session::open(&args.request.common).await?;
    let failed = session.find(target, Which::Failed).await?.run;
    let of = &failed.spec.of;
    if !failed.phase().is_retryable() {
        return Err(plan::not_retryable(&failed.name, failed.phase()).into());
    }
    if !failed.has_started() {
        return Err(format!(
            "run {} has not started, so there is nothing to retry\n  help: request another run: operetta plan \
             run {} {}",
            failed.name,
            text(of),
            failed.spec.plan,
        )
        .into());
    }
    let spec = json!({
        "of": of, "plan": failed.spec.plan, "params": failed.spec.params, "retryOf": failed.name,
    });
    let namespace = failed.namespace.clone().unwrap_or_default();
    create(&session, (&namespace, of), spec, &args.request).await
}

fn created(run: &Run) -> String {
    format!("{} created\n", name(&run.run.name))
}

/// Creates a `PlanRun`, and waits for its end if that is wanted.
async fn create(
    session: &Session,
    (namespace, of): (&str, &Of),
    mut spec: Value,
    request: &Request,
) -> Result<ExitCode, Failure> {
    spec["requestedBy"] = connect::user(&session.server.cluster).await?.into();
    let kind = plan_run_kind();
    let plan = spec["plan"].as_str().unwrap_or_default();
    let body = run_request(of, namespace, spec.clone());
    let made = session.server.cluster.create(&kind, Some(namespace), &body, FIELD_MANAGER).await;
    let what = format!("a run of plan {plan} of {} cannot be requested", text(of));
    let run = Run::new(made.map_err(|error| Failure::refused(&what, "create", Some(of), &error))?)?;
    let Request { waiting, output, .. } = request;
    let is_text = matches!(output, None | Some(Output::Wide));
    if !waiting.wait {
        let text = document(&run, *output).unwrap_or_else(|| created(&run));
        return Ok(out::all(&text, ExitCode::SUCCESS));
    }
    if is_text {
        out::text(&created(&run));
    }
    let until = StopAt { phase: None, timeout: waiting.timeout };
    let (run, code) = follow(session, (namespace, &run.run.name), until, !is_text).await?;
    Ok(match document(&run, *output) {
        Some(text) => out::all(&text, code),
        None => code,
    })
}
