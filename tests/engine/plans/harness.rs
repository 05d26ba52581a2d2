//! Tests of what the other tests rely on: pods with scripted ends, the HTTP API.

use serde_json::{Value, json};

use crate::support::plans::{Api, Reaction};
use crate::support::{JOB, LONG, POD, Scene, condition, eventually, is_pod_ready};

fn job(name: &str, annotations: &Value, image: &str) -> String {
    json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": {"backoffLimit": 0, "template": {
        "metadata": {"annotations": annotations},
        "spec": {"restartPolicy": "Never", "containers": [{"name": "work", "image": image}]},
    }}})
    .to_string()
}

fn message(pod: &Value) -> &Value {
    &pod["status"]["containerStatuses"][0]["state"]["terminated"]["message"]
}

#[tokio::test]
async fn jobs_end_as_their_annotations_say() {
    let scene = Scene::unmanaged().await;
    let image = "registry.example.com/work:1";
    let script = |end: &str, after: &str| json!({"script.example.com/end": end, "script.example.com/after": after, "script.example.com/message": "{\"id\": 7}"});
    for (name, annotations, image) in [
        ("good", script("succeed", "500ms"), image),
        ("plain", json!({}), image),
        ("bad", script("fail", "0s"), image),
        ("endless", script("never", "0s"), image),
        ("stuck", script("stuck", "0s"), image),
        ("image", script("succeed", "0s"), "registry.example.com/bad:1"),
    ] {
        scene.apply(&job(name, &annotations, image)).await;
    }
    let pod_of = async |name: &str| {
        scene
            .list(POD)
            .await
            .into_iter()
            .find(|pod| pod["metadata"]["labels"]["job-name"] == name)
            .unwrap_or_default()
    };
    for name in ["good", "plain"] {
        scene.until("complete", JOB, name, |job| condition(job, "Complete")["status"] == "True").await;
    }
    assert_eq!(message(&pod_of("good").await), "{\"id\": 7}");
    scene.until("failed", JOB, "bad", |job| condition(job, "Failed")["status"] == "True").await;
    assert_eq!(pod_of("bad").await["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"], 3);
    eventually("a pod that runs on", LONG, async || {
        let pod = pod_of("endless").await;
        if is_pod_ready(&pod) { Ok(()) } else { Err(pod["status"].to_string()) }
    })
    .await;
    for name in ["stuck", "image"] {
        assert_eq!(pod_of(name).await["status"]["phase"], "Pending", "{name}");
    }
    let pod = pod_of("endless").await["metadata"]["name"].as_str().unwrap().to_owned();
    scene.end_pod(&pod).await;
    scene.until("complete", JOB, "endless", |job| condition(job, "Complete")["status"] == "True").await;
}

#[tokio::test]
async fn http_api_answers_as_scripted() {
    let api = Api::start();
    let send = async |method: &str, path: &str, key: &str| -> Option<String> {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let host = api.url().trim_start_matches("http://").to_owned();
        let mut stream = tokio::net::TcpStream::connect(&host).await.unwrap();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: {host}\r\nIdempotency-Key: {key}\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{{}}"
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.ok()?;
        Some(text.split(' ').nth(1)?.to_owned())
    };
    assert_eq!(send("POST", "/n/items", "k").await.as_deref(), Some("201"));
    assert_eq!(send("POST", "/n/items", "k").await.as_deref(), Some("201"));
    assert_eq!((api.items("/n/").len(), api.calls("POST", "/n/items").len()), (1, 2));
    assert_eq!(send("GET", "/n/items/n1", "").await.as_deref(), Some("200"));
    assert_eq!(send("DELETE", "/n/items/n1", "").await.as_deref(), Some("200"));
    assert_eq!(send("GET", "/n/items/n1", "").await.as_deref(), Some("410"));
    api.next("POST", "/n/items", [Reaction::Is(503, Value::Null), Reaction::Cut, Reaction::DoneAndCut]);
    assert_eq!(send("POST", "/n/items", "l").await.as_deref(), Some("503"));
    assert_eq!(send("POST", "/n/items", "l").await, None);
    assert_eq!(api.items("/n/").len(), 1);
    assert_eq!(send("POST", "/n/items", "l").await, None);
    assert_eq!(api.items("/n/").len(), 2);
    assert_eq!(send("POST", "/n/items", "l").await.as_deref(), Some("201"));
    assert_eq!(api.items("/n/").len(), 2);
}
