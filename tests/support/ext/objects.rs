//! What objects say.

use std::collections::BTreeSet;

use http::Request;
use serde_json::Value;

use super::Kind;
use crate::support::ControlPlane;

/// Reads a path; `None` if nothing is there.
pub async fn read(client: &kube::Client, path: &str) -> Option<Value> {
    let request = Request::get(path).body(Vec::new()).expect("a request");
    match client.request::<Value>(request).await {
        Ok(object) => Some(object),
        Err(kube::Error::Api(status)) if status.code == 404 => None,
        Err(error) => panic!("GET {path}: {error}"),
    }
}

/// Reads an object of any control plane.
pub async fn find_in(plane: &ControlPlane, kind: Kind, namespace: Option<&str>, name: &str) -> Option<Value> {
    read(&plane.client().expect("a client"), &kind.path(namespace, name)).await
}

/// The condition with this type; null if the object has none.
pub fn condition<'a>(object: &'a Value, kind: &str) -> &'a Value {
    let conditions = object["status"]["conditions"].as_array().map_or(&[][..], Vec::as_slice);
    conditions.iter().find(|c| c["type"] == kind).unwrap_or(&Value::Null)
}

/// Whether an instance is Ready at its newest generation.
pub fn is_ready(object: &Value) -> bool {
    let seen = object["status"]["observedGeneration"] == object["metadata"]["generation"];
    seen && condition(object, "Ready")["status"] == "True"
}

/// Whether a pod is ready.
pub fn is_pod_ready(pod: &Value) -> bool {
    condition(pod, "Ready")["status"] == "True" && pod["metadata"]["deletionTimestamp"].is_null()
}

/// `metadata.name`.
pub fn name_of(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

/// `metadata.uid`.
pub fn uid_of(object: &Value) -> &str {
    object["metadata"]["uid"].as_str().unwrap_or_default()
}

/// The uid and the version, which are those of before if nothing was written.
pub fn identity(object: &Value) -> (&str, &str) {
    (uid_of(object), object["metadata"]["resourceVersion"].as_str().unwrap_or_default())
}

/// The paths at which two values differ, for messages.
pub fn difference(expected: &Value, found: &Value, path: &str) -> String {
    if let (Value::Object(a), Value::Object(b)) = (expected, found) {
        let keys: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
        let differ = keys.into_iter().filter(|key| a.get(*key) != b.get(*key)).map(|key| {
            let (a, b) = (a.get(key).unwrap_or(&Value::Null), b.get(key).unwrap_or(&Value::Null));
            difference(a, b, &format!("{path}.{key}"))
        });
        return differ.collect::<Vec<_>>().join(", ");
    }
    format!("{path} is {found}, not {expected}")
}
