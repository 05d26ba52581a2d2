//! The objects that a new control plane needs, and the requests that create and read them.

use http::header::CONTENT_TYPE;
use serde_json::{Value, json};

use super::Error;

/// The status and the body of a GET request. An error means that the connection failed or the body is not
/// text.
pub(super) async fn get(client: &kube::Client, path: &str) -> Result<(u16, String), kube::Error> {
    let request = http::Request::get(path).body(Vec::new()).map_err(kube::Error::HttpError)?;
    match client.request_text(request).await {
        Ok(body) => Ok((200, body)),
        Err(kube::Error::Api(status)) => Ok((status.code, status.message)),
        Err(error) => Err(error),
    }
}

/// Creates an object.
pub(super) async fn create(client: &kube::Client, path: &str, object: &Value) -> Result<(), Error> {
    let action = || format!("create {}", object["metadata"]["name"]);
    let request = http::Request::post(path)
        .header(CONTENT_TYPE, "application/json")
        .body(object.to_string().into_bytes())
        .map_err(|e| Error::api(action())(kube::Error::HttpError(e)))?;
    client.request::<Value>(request).await.map(drop).map_err(Error::api(action()))
}

/// The default `StorageClass`. It binds volumes immediately, even if no pod uses them.
pub(super) fn storage_class() -> Value {
    json!({
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {
            "name": "local",
            "annotations": {"storageclass.kubernetes.io/is-default-class": "true"},
        },
        "provisioner": "kubernetes.io/host-path",
        "reclaimPolicy": "Delete",
        "volumeBindingMode": "Immediate",
    })
}

/// A fake node. Nodes are spread over zones, so that topology constraints take effect.
pub(super) fn node(number: usize) -> Value {
    let name = format!("fake-{number}");
    let zone = ["zone-a", "zone-b", "zone-c"][(number - 1) % 3];
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": {"kwok.x-k8s.io/node": "fake"},
            "labels": {
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64",
                "topology.kubernetes.io/region": "local",
                "topology.kubernetes.io/zone": zone,
            },
        },
    })
}

/// Whether a `NodeList` has this number of nodes, all Ready and without taints.
pub(super) fn all_schedulable(list: &str, nodes: usize) -> bool {
    let list: Value = serde_json::from_str(list).unwrap_or_default();
    let items = list["items"].as_array().map_or(&[][..], Vec::as_slice);
    let schedulable = |node: &Value| {
        let conditions = node["status"]["conditions"].as_array().map_or(&[][..], Vec::as_slice);
        conditions.iter().any(|c| c["type"] == "Ready" && c["status"] == "True")
            && node["spec"]["taints"].as_array().is_none_or(Vec::is_empty)
    };
    items.len() == nodes && items.iter().all(schedulable)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_nodes_without_taints_are_schedulable() {
        let ready = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
        let tainted = json!({"spec": {"taints": [{"key": "k"}]}, "status": ready["status"].clone()});
        let not_ready = json!({"status": {"conditions": [{"type": "Ready", "status": "False"}]}});
        let cases = [
            (vec![], 0, true),
            (vec![], 1, false),
            (vec![ready.clone()], 1, true),
            (vec![ready.clone(), tainted], 2, false),
            (vec![ready, not_ready], 2, false),
        ];
        for (items, nodes, expected) in cases {
            let list = json!({"items": items}).to_string();
            assert_eq!(all_schedulable(&list, nodes), expected, "{list}");
        }
        assert!(!all_schedulable("no JSON", 1));
    }
}
