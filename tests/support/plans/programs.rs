//! What pods of an embedded API do: the same as those of a real control plane with [`super::stages`], and commands run on this
//! machine.

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use operetta_embedded::{Call, CallResponse, Course, Exec, ExecResult, Objects};
use serde_json::Value;

use super::{Api, CRASHES};

/// Pods choose their own fate in annotations.
#[derive(Debug)]
pub struct Programs;

impl operetta_embedded::Programs for Programs {
    fn copy(&self) -> Box<dyn operetta_embedded::Programs> {
        Box::new(Self)
    }

    fn start(&mut self, pod: &Value, _: &dyn Objects, _: Timestamp) -> Course {
        let said = |key: &str| pod["metadata"]["annotations"][format!("script.example.com/{key}")].as_str();
        let has = |image: &str| {
            let mut containers = pod["spec"]["containers"].as_array().into_iter().flatten();
            containers.any(|container| container["image"] == image)
        };
        let message = said("message").unwrap_or_default().to_owned();
        let after = said("after").and_then(|after| after.strip_suffix('s')?.parse().ok());
        let after = Duration::from_secs_f64(after.unwrap_or_default());
        let waits = |why: &str, message: &str| Course {
            waiting: why.to_owned(),
            message: message.to_owned(),
            ..Course::default()
        };
        let cannot_pull = || waits("ImagePullBackOff", "Back-off pulling image: not found");
        let runs = Course { ready_after: Some(Duration::ZERO), message, ..Course::default() };
        let mut owners = pod["metadata"]["ownerReferences"].as_array().into_iter().flatten();
        match said("end") {
            Some("stuck") => waits("ContainerCreating", "stuck"),
            Some("unpulled") => cannot_pull(),
            _ if has("registry.example.com/bad:1") => cannot_pull(),
            _ if has(CRASHES) => Course { ends_after: Some(Duration::from_secs(5)), exit_code: 3, ..runs },
            Some("never") => runs,
            Some("fail") => Course { ends_after: Some(after), exit_code: 3, ..runs },
            Some("succeed") => Course { ends_after: Some(after), ..runs },
            _ if owners.any(|owner| owner["kind"] == "Job") => {
                Course { ends_after: Some(Duration::ZERO), ..runs }
            }
            _ => runs,
        }
    }

    fn stop(&mut self, _: &Value, _: &dyn Objects, _: Timestamp) {}

    fn exec(&mut self, exec: &Exec<'_>, _: &dyn Objects) -> ExecResult {
        let [program, arguments @ ..] = exec.command else { return ExecResult::default() };
        if let Some(result) = super::commands::scripted(exec.command) {
            return result;
        }
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let output = command.spawn().and_then(|mut child| {
            // The command may have ended without reading its input.
            let _ = child.stdin.take().map(|mut stdin| stdin.write_all(exec.stdin));
            child.wait_with_output()
        });
        match output {
            Ok(output) => ExecResult {
                stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
                stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
                exit_code: output.status.code().unwrap_or(137),
                takes: Duration::ZERO,
            },
            Err(error) => ExecResult { stderr: error.to_string(), exit_code: 127, ..ExecResult::default() },
        }
    }

    fn log(&mut self, _: &Value, _: &str, _: &dyn Objects) -> String {
        String::new()
    }

    fn call(&mut self, call: &Call<'_>, _: &dyn Objects) -> Result<CallResponse, String> {
        Api::shared().answer(call)
    }
}
