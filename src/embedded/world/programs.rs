//! What programs do: those in pods, and the servers that packages call. A world answers for them; without one, [`DefaultPrograms`] does.

use std::fmt::Debug;
use std::time::Duration;

use jiff::Timestamp;
use operetta_lang::diag::Diagnostic;
use serde_json::Value;

/// Reads objects of the cluster.
pub trait Objects {
    /// The object as stored; `None` if there is none.
    fn object(&self, api_version: &str, kind: &str, namespace: &str, name: &str) -> Option<Value>;

    /// All objects of a kind in a namespace, by name; in all namespaces if it is empty.
    fn objects(&self, api_version: &str, kind: &str, namespace: &str) -> Vec<Value>;

    /// The version of an object, if it has one: as long as it is the same, so is the object.
    fn version(&self, _api_version: &str, _kind: &str, _namespace: &str, _name: &str) -> Option<u64> {
        None
    }
}

/// When the objects of a kind have changed last: as long as it is the same, reading them gives the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stamp {
    /// The version of the last change of an object.
    pub objects: u64,
    /// The version of the last change of CRDs, if a CRD defines the kind.
    pub definition: u64,
}

/// The course of a pod from its start.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Course {
    /// The time from the start of the containers until they are ready; `None` if they never are.
    pub ready_after: Option<Duration>,
    /// The time from the start of the containers until they end; `None` if they run until they are stopped.
    pub ends_after: Option<Duration>,
    /// The exit code of containers that end.
    pub exit_code: i32,
    /// The termination message of containers that end, and the reason why they are not ready.
    pub message: String,
    /// Why the containers do not start, such as `ImagePullBackOff`; [`Self::message`] says more. Empty if they start.
    pub waiting: String,
}

/// A command in a container.
#[derive(Debug, Clone)]
pub struct Exec<'a> {
    /// The pod.
    pub pod: &'a Value,
    /// The name of the container.
    pub container: &'a str,
    /// The program and its arguments.
    pub command: &'a [String],
    /// The standard input.
    pub stdin: &'a [u8],
    /// The time.
    pub now: Timestamp,
}

/// The output and the end of a command.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ExecResult {
    /// The standard output.
    pub stdout: String,
    /// The standard error.
    pub stderr: String,
    /// The exit code.
    pub exit_code: i32,
    /// The time that the command takes.
    pub takes: Duration,
}

/// A request to a server outside of the Kubernetes API, or to a pod.
#[derive(Debug, Clone)]
pub struct Call<'a> {
    /// The pod that is called, which runs.
    pub pod: Option<&'a Value>,
    /// The method in capital letters.
    pub method: &'a str,
    /// The whole URL.
    pub url: &'a str,
    /// The headers, with names in lower case.
    pub headers: &'a [(String, String)],
    /// The body.
    pub body: &'a [u8],
    /// The time.
    pub now: Timestamp,
}

/// The response of the server.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CallResponse {
    /// The status code.
    pub status: u16,
    /// The headers, with names in lower case.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Vec<u8>,
    /// The time that the response takes.
    pub takes: Duration,
}

/// What programs do. Implementations read no clock and throw no dice: the same calls in the same order get the same results.
pub trait Programs: Debug + Send {
    /// The same programs once more, in the state that they are in.
    fn copy(&self) -> Box<dyn Programs>;

    /// A pod has been scheduled, and its containers start now.
    fn start(&mut self, pod: &Value, objects: &dyn Objects, now: Timestamp) -> Course;

    /// Whether a pod is ready whose course makes it so: something that it needs may be missing now. Asked whenever the kubelet looks
    /// at a pod that runs, once [`Course::ready_after`] has passed.
    fn ready(&mut self, _pod: &Value, _objects: &dyn Objects, _now: Timestamp) -> bool {
        true
    }

    /// What the programs remember.
    fn memory(&self) -> Value {
        Value::Null
    }

    /// Takes the place of programs with this memory. `pods` run already, and keep their course.
    fn resume(&mut self, _memory: &Value, _pods: &[Value], _objects: &dyn Objects, _now: Timestamp) {}

    /// What went wrong in the description of the programs, as far as it was asked.
    fn faults(&self) -> Vec<Diagnostic> {
        Vec::new()
    }

    /// If [`Programs::ready`] depends on more than the pod: a number that changes with what it depends on. Then the kubelet asks
    /// about all pods again.
    fn readiness(&self) -> Option<u64> {
        None
    }

    /// The pod has ended, or is deleted.
    fn stop(&mut self, pod: &Value, objects: &dyn Objects, now: Timestamp);

    /// Runs a command in a container that runs.
    fn exec(&mut self, exec: &Exec<'_>, objects: &dyn Objects) -> ExecResult;

    /// What a container has printed.
    fn log(&mut self, pod: &Value, container: &str, objects: &dyn Objects) -> String;

    /// The address, an IP or a host name, that a load balancer gives a Service.
    fn address(&mut self, _service: &Value, _objects: &dyn Objects, _now: Timestamp) -> Option<String> {
        None
    }

    /// Answers a request; the error says why no server answers.
    ///
    /// # Errors
    ///
    /// No server is known at this URL.
    fn call(&mut self, call: &Call<'_>, objects: &dyn Objects) -> Result<CallResponse, String>;
}

/// Programs without a world: pods are ready after a second, pods of Jobs succeed after a second, commands fail and no server answers.
#[derive(Debug, Default)]
pub struct DefaultPrograms;

impl Programs for DefaultPrograms {
    fn copy(&self) -> Box<dyn Programs> {
        Box::new(Self)
    }

    fn start(&mut self, pod: &Value, _: &dyn Objects, _: Timestamp) -> Course {
        let second = Some(Duration::from_secs(1));
        let owners = pod["metadata"]["ownerReferences"].as_array();
        if owners.is_some_and(|owners| owners.iter().any(|owner| owner["kind"] == "Job")) {
            Course { ready_after: Some(Duration::ZERO), ends_after: second, ..Course::default() }
        } else {
            Course { ready_after: second, ..Course::default() }
        }
    }

    fn stop(&mut self, _: &Value, _: &dyn Objects, _: Timestamp) {}

    fn exec(&mut self, exec: &Exec<'_>, _: &dyn Objects) -> ExecResult {
        let program = exec.command.first().map_or("", String::as_str);
        let stderr = format!(
            "no world says what {program} does in a container named {}: add tests/world.yaml to the package\n",
            exec.container
        );
        ExecResult { stderr, exit_code: 127, ..ExecResult::default() }
    }

    fn log(&mut self, _: &Value, _: &str, _: &dyn Objects) -> String {
        String::new()
    }

    fn call(&mut self, call: &Call<'_>, _: &dyn Objects) -> Result<CallResponse, String> {
        Err(format!("no world says what {} answers: add tests/world.yaml to the package", call.url))
    }
}
