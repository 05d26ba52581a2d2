//! Commands in containers, and calls of servers outside of the Kubernetes API.

use jiff::Timestamp;
use operetta_kube_model::facts::{items, key, text};

use crate::api::Api;
use crate::model::{Failure, Outcome};
use crate::state::State;
use crate::verbs::pods::container;
use crate::world::programs::{Call, CallResponse, Exec, ExecResult, Programs};

impl Api {
    /// Runs a command in a container. Without a name it is that of the pod's only one.
    ///
    /// # Errors
    ///
    /// The answer of the server if there is no such pod, or the container does not run.
    pub fn exec(
        &mut self,
        namespace: &str,
        pod: &str,
        container: &str,
        command: &[String],
        stdin: &[u8],
        now: Timestamp,
    ) -> Result<ExecResult, Failure> {
        self.run(&key(namespace, pod), container, command, stdin, now).map_err(|failure| *failure)
    }

    fn run(
        &mut self,
        key: &str,
        container_name: &str,
        command: &[String],
        stdin: &[u8],
        now: Timestamp,
    ) -> Outcome<ExecResult> {
        let kind = self.state.kinds.find("", "v1", "pods").cloned().ok_or_else(Failure::no_path)?;
        let (_, name) = key.split_once('/').unwrap_or(("", key));
        let object = self.state.store.get("pods", key).ok_or_else(|| Failure::not_found(&kind, name))?;
        let pod = object.bare();
        let container = container(&pod, container_name)?;
        if command.is_empty() {
            return Err(Failure::bad_request("you must specify at least 1 command for the container"));
        }
        if text(&pod["spec"]["nodeName"]).is_empty() {
            return Err(Failure::bad_request(format!("pod {name} does not have a host assigned")));
        }
        let statuses = ["containerStatuses", "initContainerStatuses"]
            .iter()
            .flat_map(|field| items(&pod["status"][field]));
        let runs =
            { statuses }.any(|status| status["name"] == *container && status["state"]["running"].is_object());
        if !runs || !self.controllers.kubelet.is_running(key) {
            let why = format!("unable to upgrade connection: container not found ({container:?})");
            return Err(Failure::internal(why));
        }
        let exec = Exec { pod: &pod, container: &container, command, stdin, now };
        Ok(self.stir(|programs, state| programs.exec(&exec, state)))
    }

    /// Calls a server outside of the Kubernetes API.
    ///
    /// # Errors
    ///
    /// Why no server answers.
    pub fn call(&mut self, call: &Call<'_>) -> Result<CallResponse, String> {
        self.stir(|programs, state| programs.call(call, state))
    }

    /// Asks the programs something that may make other pods ready or not.
    fn stir<T>(&mut self, ask: impl FnOnce(&mut dyn Programs, &State) -> T) -> T {
        let readiness = self.programs.readiness();
        let answer = ask(&mut *self.programs, &self.state);
        self.controllers.kubelet.is_stirred |= self.programs.readiness() != readiness;
        answer
    }
}
