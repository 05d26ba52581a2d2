//! Pods that die.

use jiff::Timestamp;
use operetta_embedded::{Api, Objects, Request, User};
use serde_json::Value;

/// Whether a pod loses no data when it is gone, and is expected to run for ever.
fn is_expendable(pod: &Value) -> bool {
    let volumes = pod["spec"]["volumes"].as_array();
    let is_kept = |volume: &Value| volume["emptyDir"].is_null() && volume["ephemeral"].is_null();
    pod["spec"]["restartPolicy"] == "Always"
        && pod["metadata"]["deletionTimestamp"].is_null()
        && volumes.is_none_or(|volumes| volumes.iter().all(is_kept))
        && !pod["metadata"]["labels"].as_object().is_none_or(serde_json::Map::is_empty)
}

/// The pods that lose no data when they are gone.
pub(super) fn expendable(objects: &dyn Objects) -> Vec<Value> {
    objects.objects("v1", "Pod", "").into_iter().filter(is_expendable).collect()
}

/// Kills one of the pods that lose no data, as the loss of its node does. Returns its name and uid.
pub(super) fn kill(api: &mut Api, number: usize, now: Timestamp) -> Option<(String, String)> {
    let pods = expendable(api.objects());
    let pod = pods.get(number % pods.len().max(1))?;
    let text = |key: &str| pod["metadata"][key].as_str().unwrap_or_default().to_owned();
    let uri = format!("/api/v1/namespaces/{}/pods/{}?gracePeriodSeconds=0", text("namespace"), text("name"));
    let user = User { groups: vec!["system:masters".to_owned()], ..User::default() };
    let request = Request {
        method: "DELETE",
        uri: &uri,
        content_type: "application/json",
        accept: "",
        user_agent: "",
        user: &user,
        body: b"{}",
    };
    api.handle(&request, now);
    Some((text("name"), text("uid")))
}
