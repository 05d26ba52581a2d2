//! Carries out one command in a container, over the API server.

use std::error::Error as _;
use std::sync::atomic::{AtomicBool, Ordering};

use k8s_openapi::api::core::v1;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use kube::Api;
use kube::api::AttachParams;
use kube::client::UpgradeConnectionError;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use super::Cluster;
use super::error::chain;
use crate::plan::Pod;
use crate::plan::request::{CallFailure, ExecReply, ExecRequest};
use crate::printable;

impl Cluster {
    /// Runs a command and waits for its end.
    ///
    /// # Errors
    ///
    /// There is no exit code. A message shows neither the command's output nor its input.
    pub async fn exec(&self, request: &ExecRequest) -> Result<ExecReply, CallFailure> {
        if !self.fence.is_open() {
            return Err(CallFailure::NotSent("this manager is not the leader".into()));
        }
        let is_sent = AtomicBool::new(false);
        let failed = |why: String| {
            if is_sent.load(Ordering::SeqCst) {
                CallFailure::Unanswered(why)
            } else {
                CallFailure::NotSent(why)
            }
        };
        tokio::select! {
            biased;
            () = self.fence.closed() => Err(failed("this manager is no longer the leader".into())),
            answer = timeout(request.timeout, self.run(request, &is_sent)) => match answer {
                Ok(answer) => answer,
                Err(_) => Err(failed(format!(
                    "the command in pod {} did not end within {} s", request.pod, request.timeout.as_secs_f64()
                ))),
            },
        }
    }

    async fn run(&self, request: &ExecRequest, is_sent: &AtomicBool) -> Result<ExecReply, CallFailure> {
        let (namespace, name, uid) = (&request.namespace, &request.pod, &request.uid);
        let wanted = Pod { namespace: namespace.clone(), name: name.clone(), uid: uid.clone() };
        let pod = self.live_pod(&wanted).await?;
        let container = container(&pod, request.container.as_deref())?;
        let params = AttachParams::default()
            .container(container)
            .stdin(request.stdin.is_some())
            .stdout(true)
            .stderr(true);
        let api: Api<v1::Pod> = Api::namespaced(self.client.clone(), &request.namespace);
        is_sent.store(true, Ordering::SeqCst);
        let unanswered = |_| {
            let (pod, limit) = (&request.pod, self.deadline.as_secs_f64());
            let why = format!("the request to run a command in pod {pod} was not answered within {limit} s");
            CallFailure::Unanswered(why)
        };
        // A command can take hours, but the server answers before it starts.
        let begun = timeout(self.deadline, api.exec(&request.pod, &request.command, &params));
        let begun = begun.await.map_err(unanswered)?;
        let mut process = begun.map_err(|error| not_begun(&request.pod, &error))?;
        let (Some(stdout), Some(stderr), Some(status)) =
            (process.stdout(), process.stderr(), process.take_status())
        else {
            return Err(CallFailure::Unanswered("the connection has no streams".into()));
        };
        let input = process.stdin().zip(request.stdin.as_ref());
        // A command that ends without reading its input is no failure.
        let stdin = async {
            if let Some((mut writer, text)) = input {
                let _ = writer.write_all(text.as_bytes()).await;
                let _ = writer.shutdown().await;
            }
            std::future::pending().await
        };
        let stdout = async {
            let (bytes, is_whole) = read(stdout, request.max_bytes).await;
            let most = request.max_bytes;
            let too_large =
                || CallFailure::Refused(format!("the command's output is larger than {most} bytes"));
            is_whole.then_some(bytes).ok_or_else(too_large)
        };
        let stderr = async { Ok(read_to_end(stderr, request.max_bytes).await) };
        let status = async { Ok(status.await) };
        let (stdout, stderr, status) = tokio::select! {
            biased;
            ended = futures::future::try_join3(stdout, stderr, status) => ended?,
            never = stdin => never,
        };
        let exit_code = exit_code(&request.pod, status.as_ref())?;
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Ok(ExecReply { exit_code, stdout: text(stdout), stderr: text(stderr) })
    }
}

/// The container of a pod: the named one, or the only one. Annotations of the pod do not choose it, because users who may
/// change the pod write them.
fn container(pod: &Value, named: Option<&str>) -> Result<String, CallFailure> {
    let name = pod["metadata"]["name"].as_str().unwrap_or_default();
    let names: Vec<&str> = ["containers", "initContainers"]
        .iter()
        .filter_map(|field| pod["spec"][field].as_array())
        .flatten()
        .filter_map(|container| container["name"].as_str())
        .collect();
    let main = pod["spec"]["containers"].as_array().map_or(0, Vec::len);
    let container = match named {
        Some(container) => container,
        None if main == 1 => names[0],
        None => {
            return Err(CallFailure::Refused(format!(
                "pod {name} has several containers: set `container` to one of {}",
                names.join(", ")
            )));
        }
    };
    if !names.contains(&container) {
        return Err(CallFailure::Refused(format!(
            "pod {name} has no container {}; it has {}",
            printable::line(container),
            names.join(", ")
        )));
    }
    let status = ["containerStatuses", "initContainerStatuses"]
        .iter()
        .filter_map(|field| pod["status"][field].as_array())
        .flatten()
        .find(|status| status["name"] == *container);
    if status.is_some_and(|status| status["state"]["running"].is_null()) {
        return Err(CallFailure::NotSent(format!("container {container} of pod {name} is not running")));
    }
    Ok(container.to_owned())
}

/// Why there is no connection to the container. Commands start only after the server has switched protocols.
fn not_begun(pod: &str, error: &kube::Error) -> CallFailure {
    if let kube::Error::UpgradeConnection(UpgradeConnectionError::ProtocolSwitch(code)) = error {
        let why = match code.as_u16() {
            403 => "the permission to `get` and `create` pods/exec is missing".to_owned(),
            404 => "it does not exist".to_owned(),
            _ => format!("the API server answers {code}"),
        };
        return CallFailure::NotSent(format!("no command can be run in pod {pod}: {why}"));
    }
    let why = format!("no command can be run in pod {pod}: {}", chain(error));
    let mut source: Option<&(dyn std::error::Error + 'static)> = error.source();
    while let Some(inner) = source {
        if inner
            .downcast_ref::<hyper_util::client::legacy::Error>()
            .is_some_and(hyper_util::client::legacy::Error::is_connect)
        {
            return CallFailure::NotSent(why);
        }
        source = inner.source();
    }
    CallFailure::Unanswered(why)
}

/// The exit code that the status of a command contains.
fn exit_code(pod: &str, status: Option<&Status>) -> Result<i32, CallFailure> {
    let Some(status) = status else {
        return Err(CallFailure::Unanswered(format!(
            "the connection to pod {pod} was cut before the command ended"
        )));
    };
    if status.status.as_deref() == Some("Success") {
        return Ok(0);
    }
    let causes = status.details.as_ref().and_then(|details| details.causes.as_ref());
    let code = causes.into_iter().flatten().find(|cause| cause.reason.as_deref() == Some("ExitCode"));
    if let Some(code) = code.and_then(|cause| cause.message.as_ref()?.parse().ok()) {
        return Ok(code);
    }
    let message = status.message.as_deref().unwrap_or("the API server gives no reason");
    if let Some(why) = unreached(message) {
        let why = printable::sentence(why);
        return Err(CallFailure::NotSent(format!(
            "no command was run in pod {pod}: the API server does not reach the kubelet of its node: {why}"
        )));
    }
    let why = format!("the command in pod {pod} was not run to its end: {}", printable::sentence(message));
    let says = |words: &[&str]| words.iter().any(|word| message.contains(word));
    Err(if says(&["executable file not found", "no such file or directory", "permission denied"]) {
        CallFailure::Refused(why)
    } else if says(&["error dialing backend", "unable to upgrade connection", "container not found"]) {
        CallFailure::NotSent(why)
    } else {
        CallFailure::Unanswered(why)
    })
}

/// Why the API server has no connection to a kubelet, without the URL of its request, which has the whole command.
fn unreached(message: &str) -> Option<&str> {
    let (_, request) = message.split_once("error sending request: ")?;
    let (_, why) = request.split_once("\": ")?;
    why.starts_with("dial ").then_some(why)
}

/// What a stream brings, and whether that is all: no more than `most` bytes are read.
async fn read(stream: impl AsyncRead + Unpin, most: usize) -> (Vec<u8>, bool) {
    let mut bytes = Vec::new();
    let limit = u64::try_from(most).unwrap_or(u64::MAX).saturating_add(1);
    let _ = stream.take(limit).read_to_end(&mut bytes).await;
    let is_whole = bytes.len() <= most;
    (bytes, is_whole)
}

/// The beginning of what a stream brings; the rest is dropped.
async fn read_to_end(mut stream: impl AsyncRead + Unpin, most: usize) -> Vec<u8> {
    let (mut bytes, _) = read(&mut stream, most).await;
    bytes.truncate(most);
    let _ = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
    bytes
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn status(value: Value) -> Status {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn a_status_becomes_an_exit_code_or_a_failure() {
        let code = |value: Value| exit_code("a", Some(&status(value)));
        assert_eq!(code(json!({"status": "Success"})), Ok(0));
        let failed = json!({
            "status": "Failure", "reason": "NonZeroExitCode", "message": "command terminated with exit code 7",
            "details": {"causes": [{"reason": "ExitCode", "message": "7"}]},
        });
        assert_eq!(code(failed), Ok(7));
        let says = |message: &str| code(json!({"status": "Failure", "message": message})).unwrap_err();
        assert!(matches!(says("container not found (\"x\")"), CallFailure::NotSent(_)));
        assert!(matches!(says("exec: \"x\": executable file not found in $PATH"), CallFailure::Refused(_)));
        assert!(matches!(says("the runtime went away"), CallFailure::Unanswered(_)));
        assert!(matches!(exit_code("a", None), Err(CallFailure::Unanswered(_))));
        let unreached = says(
            "Internal error occurred: error sending request: Post \"https://fake-2:10250/exec/n/a/x?command=etcdctl\": dial tcp: \
             lookup fake-2: no such host",
        );
        let why = "no command was run in pod a: the API server does not reach the kubelet of its node: dial tcp: lookup fake-2: no \
                   such host";
        assert_eq!(unreached, CallFailure::NotSent(why.into()));
    }

    #[test]
    fn the_container_is_the_named_or_the_only_one() {
        let mut pod = json!({
            "metadata": {"name": "a"}, "spec": {"containers": [{"name": "x"}]},
            "status": {"containerStatuses": [{"name": "x", "state": {"running": {}}}]},
        });
        assert_eq!(container(&pod, None), Ok("x".into()));
        assert!(matches!(container(&pod, Some("y")), Err(CallFailure::Refused(_))));
        pod["spec"]["containers"] = json!([{"name": "x"}, {"name": "y"}]);
        assert!(matches!(container(&pod, None), Err(CallFailure::Refused(_))));
        pod["metadata"]["annotations"] = json!({"kubectl.kubernetes.io/default-container": "y"});
        let error = container(&pod, None).unwrap_err().to_string();
        assert!(error.contains("set `container` to one of x, y"), "{error}");
        assert_eq!(container(&pod, Some("y")), Ok("y".into()));
        pod["status"]["containerStatuses"][0]["state"] = json!({"waiting": {}});
        assert!(matches!(container(&pod, Some("x")), Err(CallFailure::NotSent(_))));
    }

    #[tokio::test]
    async fn output_is_bounded() {
        assert_eq!(read(&b"abc"[..], 3).await, (b"abc".to_vec(), true));
        assert!(!read(&b"abcd"[..], 3).await.1);
        assert_eq!(read_to_end(&b"abcd"[..], 3).await, b"abc");
    }
}
