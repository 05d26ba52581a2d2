//! Reads the pod that a request is sent to, or that a command runs in.

use std::net::IpAddr;

use serde_json::Value;

use super::Cluster;
use crate::api::ApiKind;
use crate::plan::Pod;
use crate::plan::request::CallFailure;

impl Cluster {
    /// The live pod; another one of its name is not it.
    pub(super) async fn live_pod(&self, Pod { namespace, name, uid }: &Pod) -> Result<Value, CallFailure> {
        let pod = self
            .get(&ApiKind::built_in("v1", "Pod"), Some(namespace), name)
            .await
            .map_err(|error| CallFailure::NotSent(format!("pod {name} cannot be read: {error}")))?;
        pod.filter(|pod| pod["metadata"]["uid"] == **uid)
            .ok_or_else(|| CallFailure::NotSent(format!("pod {name} is gone")))
    }

    /// The address of a pod. Only its kubelet writes it.
    pub(super) async fn pod_address(&self, pod: &Pod) -> Result<IpAddr, CallFailure> {
        address(&pod.name, &self.live_pod(pod).await?)
    }
}

fn address(name: &str, pod: &Value) -> Result<IpAddr, CallFailure> {
    if pod["spec"]["hostNetwork"] == true {
        let message = format!("pod {name} has the network of its node, where other programs may answer");
        return Err(CallFailure::Refused(message));
    }
    if !pod["metadata"]["deletionTimestamp"].is_null() {
        return Err(CallFailure::NotSent(format!("pod {name} is being deleted")));
    }
    // A pod that has ended keeps its address in the status, and another pod may get it.
    if pod["status"]["phase"] != "Running" {
        return Err(CallFailure::NotSent(format!("pod {name} is not running")));
    }
    let address = pod["status"]["podIP"].as_str().and_then(|ip| ip.parse().ok());
    address.ok_or_else(|| CallFailure::NotSent(format!("pod {name} has no address yet")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_running_pods_with_an_address_of_their_own_are_called() {
        let running = json!({"status": {"phase": "Running", "podIP": "10.1.2.3"}});
        assert_eq!(address("a", &running), Ok("10.1.2.3".parse().unwrap()));
        for (change, wanted) in [
            (json!({"spec": {"hostNetwork": true}}), "the network of its node"),
            (json!({"metadata": {"deletionTimestamp": "now"}}), "is being deleted"),
            (json!({"status": {"phase": "Succeeded", "podIP": "10.1.2.3"}}), "is not running"),
            (json!({"status": {"phase": "Running"}}), "has no address yet"),
        ] {
            let mut pod = running.clone();
            for (key, value) in change.as_object().unwrap() {
                pod[key] = value.clone();
            }
            let error = address("a", &pod).unwrap_err().to_string();
            assert!(error.contains(wanted), "{error}");
        }
    }
}
