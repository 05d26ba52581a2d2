//! The step `exec`: a command in a container, as kubectl exec runs it.

use std::time::Duration;

use super::ended::{Failure, failed};
use super::suite::Command;
use crate::api::ApiKind;
use crate::cluster::Cluster;
use crate::diag::Location;
use crate::plan::request::ExecRequest;

/// The most bytes of output.
const OUTPUT: usize = 1 << 20;
/// How long a command may take.
const TIMEOUT: Duration = Duration::from_secs(600);

pub(super) async fn run(cluster: &Cluster, command: &Command, at: &Location) -> Result<(), Failure> {
    let Command { namespace, pod, words, .. } = command;
    let found = cluster.get(&ApiKind::built_in("v1", "Pod"), Some(namespace), pod).await;
    let Some(found) = found.map_err(|error| failed(at, error.about(false).to_string()))? else {
        return Err(failed(at, format!("there is no Pod {pod} in namespace {namespace}")));
    };
    let request = ExecRequest {
        namespace: namespace.clone(),
        pod: pod.clone(),
        uid: found["metadata"]["uid"].as_str().unwrap_or_default().to_owned(),
        container: command.container.clone(),
        command: words.clone(),
        stdin: command.stdin.clone(),
        max_bytes: OUTPUT,
        timeout: TIMEOUT,
    };
    let words = words.join(" ");
    let reply = cluster
        .exec(&request)
        .await
        .map_err(|error| failed(at, format!("`{words}` in pod {pod} does not run: {error}")))?;
    let is_part = |part: &Option<String>, text: &str| part.as_ref().is_none_or(|part| text.contains(part));
    let wrong = if reply.exit_code != command.exit_code {
        format!("ends with exit code {}, not {}", reply.exit_code, command.exit_code)
    } else if !is_part(&command.stdout, &reply.stdout) {
        format!("does not print {:?}", command.stdout.as_deref().unwrap_or_default())
    } else if !is_part(&command.stderr, &reply.stderr) {
        format!("does not print {:?} as error", command.stderr.as_deref().unwrap_or_default())
    } else {
        return Ok(());
    };
    let help = format!("stdout: {}\nstderr: {}", reply.stdout, reply.stderr);
    let mut failure = failed(at, format!("`{words}` in pod {pod} {wrong}"));
    failure.help = Some(help);
    Err(failure)
}
