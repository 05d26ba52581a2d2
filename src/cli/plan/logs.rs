//! `operetta plan logs`: the logs of the Jobs of a run.

use std::process::ExitCode;

use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::LogParams;
use serde_json::Value;

use super::target::{Target, Which};
use crate::api::ApiKind;
use crate::cli::command::Failure;
use crate::cli::out::{self, printable};
use crate::cli::session::{Common, Session};
use crate::cluster::call_error;
use crate::facts::controller_uid;
use crate::plan::{AttemptObject, StepState};

/// The most bytes of the log of one container.
const MOST: i64 = 8 << 20;

/// Show the logs of a run's Jobs
///
/// Prints the logs of the pods of every attempt of the steps with a `job`. Pods that are gone, by the Job's TTL or by
/// hand, have no logs any more; the status of the run has the last lines of a failure.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  operetta plan logs keystore/orders
  operetta plan logs orders-3 dump --tail 100

Exit codes: 0 success; 1 there are no logs, not found or no API server; 2 wrong usage.")]
pub(super) struct Args {
    /// The name of a run, or KIND/NAME of an instance: its active run, else its last one
    #[arg(value_name = "RUN|KIND/NAME")]
    run: String,

    /// The step, by its path or its name [default: all]
    step: Option<String>,

    /// Only the last lines of each container
    #[arg(long, value_name = "LINES")]
    tail: Option<u32>,

    #[command(flatten)]
    common: Common,
}

pub(super) async fn run(args: &Args) -> Result<ExitCode, Failure> {
    let target = Target::parse(&args.run)?;
    let session = Session::open(&args.common).await?;
    let run = session.find(target, Which::Current).await?.run;
    let namespace = run.namespace.as_deref().unwrap_or_default();
    let steps = run.status.as_ref().map(|status| &status.steps[..]).unwrap_or_default();
    let chosen = chosen(steps, args.step.as_deref()).map_err(|why| format!("run {}: {why}", run.name))?;
    let api: Api<Pod> = Api::namespaced(session.server.cluster.client(), namespace);
    let (mut is_any, mut problems) = (false, Vec::new());
    for step in chosen {
        for (object, attempt) in attempts(step) {
            let labels = format!("batch.kubernetes.io/job-name={}", object.name);
            let pods =
                session.server.cluster.list(&ApiKind::built_in("v1", "Pod"), Some(namespace), &labels).await;
            let mut pods =
                pods.map_err(|error| format!("the pods of Job {} cannot be listed: {error}", object.name))?;
            // Pods of other owners may have the labels of the Job.
            pods.retain(|pod| object.uid.as_deref().is_none_or(|uid| controller_uid(pod) == Some(uid)));
            if pods.is_empty() {
                problems.push(format!(
                    "step {}, attempt {attempt}: the pods of Job {} are gone",
                    step.path, object.name
                ));
            }
            for (pod, container) in pods.iter().flat_map(containers) {
                let params = LogParams {
                    container: Some(container.to_owned()),
                    tail_lines: args.tail.map(i64::from),
                    limit_bytes: Some(MOST),
                    ..LogParams::default()
                };
                match api.logs(pod, &params).await {
                    Ok(log) => {
                        is_any = true;
                        let title = printable(&format!(
                            "==> step {}, attempt {attempt}, pod {pod}, container {container}",
                            step.path
                        ));
                        if !out::text(&format!("{title}\n{}", ended(&crate::printable::lines(&log)))) {
                            return Ok(ExitCode::SUCCESS);
                        }
                    }
                    Err(error) => {
                        let why = unread(pod, container, &call_error(&error).to_string());
                        problems.push(format!("step {}, attempt {attempt}: {why}", step.path));
                    }
                }
            }
        }
    }
    for problem in &problems {
        out::note(format!("{}: {problem}", if is_any { "warning" } else { "error" }));
    }
    Ok(if is_any { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The last Jobs of a step, which its status remembers, with the numbers of their attempts.
fn attempts(step: &StepState) -> impl Iterator<Item = (&AttemptObject, u32)> {
    let last = step.attempt.max(u32::try_from(step.objects.len()).unwrap_or(u32::MAX));
    let numbers = (1..=last).rev().take(step.objects.len());
    let numbers: Vec<u32> = numbers.collect();
    step.objects.iter().zip(numbers.into_iter().rev())
}

/// The message that the log of a container cannot be read. Most errors of the API server name the pod
/// already.
fn unread(pod: &str, container: &str, error: &str) -> String {
    if error.contains(pod) {
        return error.to_owned();
    }
    format!("the log of container {container} of pod {pod} cannot be read: {error}")
}

/// The steps with Jobs: all, or those of a name.
fn chosen<'s>(steps: &'s [StepState], named: Option<&str>) -> Result<Vec<&'s StepState>, String> {
    let is_named = |path: &str| {
        named.is_none_or(|named| {
            let rest = path.strip_prefix(named);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '[']))
                || path.rsplit('/').next().and_then(|last| last.split('[').next()) == Some(named)
        })
    };
    let with_jobs = || steps.iter().filter(|step| !step.objects.is_empty());
    let found: Vec<&StepState> = with_jobs().filter(|step| is_named(&step.path)).collect();
    if !found.is_empty() {
        return Ok(found);
    }
    let paths: Vec<&str> = with_jobs().map(|step| step.path.as_str()).collect();
    Err(match (named, paths.is_empty()) {
        (_, true) => "no step has a Job yet".to_owned(),
        (Some(named), _) => {
            format!("step {} has no Job\n  help: these have: {}", printable(named), paths.join(", "))
        }
        (None, _) => String::new(),
    })
}

/// The containers of a pod, each with the name of the pod.
fn containers(pod: &Value) -> Vec<(&str, &str)> {
    let name = pod["metadata"]["name"].as_str().unwrap_or_default();
    let all = ["initContainers", "containers"].map(|field| pod["spec"][field].as_array());
    let all = all.into_iter().flatten().flatten();
    all.filter_map(|container| Some((name, container["name"].as_str()?))).collect()
}

/// The text, with a line break at its end.
fn ended(text: &str) -> String {
    if text.is_empty() || text.ends_with('\n') { text.to_owned() } else { format!("{text}\n") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_have_the_numbers_of_their_attempts() {
        let of = |attempt, jobs: usize| {
            let objects = (0..jobs).map(|n| AttemptObject { name: format!("j{n}"), uid: None }).collect();
            let step = StepState { attempt, objects, ..StepState::default() };
            attempts(&step).map(|(object, number)| format!("{} {number}", object.name)).collect::<Vec<_>>()
        };
        assert_eq!(of(2, 2), ["j0 1", "j1 2"]);
        // The status remembers only the last Jobs.
        assert_eq!(of(12, 2), ["j0 11", "j1 12"]);
        assert_eq!(of(0, 0), [""; 0]);
    }

    #[test]
    fn an_unread_log_names_its_pod_once() {
        let waits = "container \"main\" in pod \"j-1\" is waiting to start: ErrImagePull";
        assert_eq!(unread("j-1", "main", waits), waits);
        assert_eq!(
            unread("j-1", "main", "timed out"),
            "the log of container main of pod j-1 cannot be read: timed out"
        );
    }

    #[test]
    fn steps_are_chosen_by_path_or_name() {
        let step = |path: &str, jobs: usize| StepState {
            path: path.into(),
            objects: (0..jobs).map(|n| AttemptObject { name: format!("j{n}"), uid: None }).collect(),
            ..StepState::default()
        };
        let steps = [step("a", 1), step("each", 0), step("each[1]/dump", 2), step("each[2]/dump", 1)];
        let of = |named| chosen(&steps, named).map(|all| all.len());
        assert_eq!(of(None), Ok(3));
        assert_eq!(of(Some("a")), Ok(1));
        assert_eq!(of(Some("each")), Ok(2));
        assert_eq!(of(Some("dump")), Ok(2));
        assert_eq!(of(Some("each[2]/dump")), Ok(1));
        assert!(of(Some("x")).unwrap_err().contains("these have: a, each[1]/dump"));
        assert!(chosen(&[], None).unwrap_err().contains("no step has a Job"));
    }
}
