//! `operators/webapp` with real pods on a node.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::{
    AUTOSCALER, DEPLOYMENT, DISRUPTION_BUDGET, LONG, POD, SERVICE, Scene, WEB_APP, condition, eventually,
    is_pod_ready, is_ready, run_as, uid_of,
};

/// A client that requests the page all the time, each time over a new connection.
struct Visitor {
    pages: Arc<AtomicUsize>,
    failures: Arc<Mutex<Vec<String>>>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Visitor {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Visitor {
    fn start(address: String) -> Self {
        let (pages, failures) = (Arc::<AtomicUsize>::default(), Arc::<Mutex<Vec<String>>>::default());
        let (served, failed) = (Arc::clone(&pages), Arc::clone(&failures));
        let task = tokio::spawn(async move {
            loop {
                match page(&address).await {
                    Ok(()) => drop(served.fetch_add(1, Ordering::Relaxed)),
                    Err(error) => failed.lock().unwrap_or_else(PoisonError::into_inner).push(error),
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        });
        Self { pages, failures, task }
    }

    async fn sees_more(&self) {
        let before = self.pages.load(Ordering::Relaxed);
        eventually("more pages", LONG, async || {
            let now = self.pages.load(Ordering::Relaxed);
            if now > before + 20 { Ok(()) } else { Err(now) }
        })
        .await;
    }

    fn check(&self) {
        let failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        let pages = self.pages.load(Ordering::Relaxed);
        assert!(failures.is_empty(), "{} of {pages} requests failed: {failures:?}", failures.len());
        eprintln!("{pages} pages, 0 failed requests");
    }
}

async fn page(address: &str) -> Result<(), String> {
    let ask = async {
        let mut stream = TcpStream::connect((address, 80)).await?;
        stream.write_all(b"GET / HTTP/1.1\r\nHost: hello\r\nConnection: close\r\n\r\n").await?;
        let mut text = String::new();
        stream.read_to_string(&mut text).await?;
        Ok::<_, std::io::Error>(text)
    };
    let text = tokio::time::timeout(Duration::from_secs(30), ask).await.map_err(|_| "no answer")?;
    let text = text.map_err(|error| error.to_string())?;
    if text.starts_with("HTTP/1.1 200") && text.contains("Welcome to nginx") { Ok(()) } else { Err(text) }
}

#[tokio::test]
async fn a_page_is_served_while_pods_are_replaced() {
    let node = crate::pods::node().await;
    let _manager = run_as("webapp", &node, &["operators/webapp"]).watching(1).await;
    let scene = Scene::on(&node).await;
    let spec = json!({
        "image": "nginx:1.22.1", "port": 80, "replicas": 2, "minAvailable": 1, "config": {"COLOR": "red"},
        "resources": {"requests": {"cpu": "10m"}}, "autoscaling": {"min": 2, "max": 3},
    });
    let app = json!({"apiVersion": WEB_APP.api_version(), "kind": "WebApp", "metadata": {"name": "hello"}, "spec": spec});
    scene.apply_ready(WEB_APP, "hello", &app.to_string()).await;
    scene.until("enough pods", DISRUPTION_BUDGET, "hello", |o| o["status"]["disruptionsAllowed"] == 1).await;
    // There are no metrics here, which the condition reports.
    scene
        .until("no metrics", AUTOSCALER, "hello", |o| condition(o, "ScalingActive")["status"] == "False")
        .await;

    let service = scene.get(SERVICE, "hello").await;
    let address = service["spec"]["clusterIP"].as_str().unwrap().to_owned();
    // kube-proxy gets endpoints a moment after the Deployment is available.
    eventually("a page", LONG, async || page(&address).await).await;
    let visitor = Visitor::start(address);
    visitor.sees_more().await;
    let before: Vec<String> = scene.list(POD).await.iter().map(|pod| uid_of(pod).to_owned()).collect();
    scene.patch(WEB_APP, "hello", "merge", &json!({"spec": {"config": {"COLOR": "blue"}}})).await;
    eventually("other pods", LONG, async || {
        let pods = scene.list(POD).await;
        let fresh = |pod: &&serde_json::Value| !before.contains(&uid_of(pod).to_owned()) && is_pod_ready(pod);
        if pods.len() == 2 && pods.iter().filter(fresh).count() == 2 { Ok(()) } else { Err(pods.len()) }
    })
    .await;
    scene.ready(WEB_APP, "hello").await;
    let pods = scene.list(POD).await;
    let name = pods[0]["metadata"]["name"].as_str().unwrap();
    assert_eq!(scene.kubectl(&["exec", name, "--", "sh", "-c", "echo $COLOR"]).await, "blue\n");
    visitor.sees_more().await;
    visitor.check();

    // An image that does not exist gives the pod's own reason, and the page is still served.
    scene.patch(WEB_APP, "hello", "merge", &json!({"spec": {"image": "nginx:9.99.9"}})).await;
    let is_told = |o: &serde_json::Value| {
        let failing = condition(o, "PodsFailing");
        let message = failing["message"].as_str().unwrap_or_default();
        let reasons = ["ErrImagePull", "ImagePullBackOff"];
        failing["status"] == "True" && reasons.iter().any(|reason| message.contains(reason))
    };
    let object = scene.until("the pod's reason", WEB_APP, "hello", is_told).await;
    let message = condition(&object, "PodsFailing")["message"].as_str().unwrap_or_default();
    eprintln!("{message}");
    assert!(message.contains("nginx:9.99.9") && message.contains("container web"), "{message}");
    assert!(!is_ready(&object));
    visitor.sees_more().await;
    visitor.check();
    scene.patch(WEB_APP, "hello", "merge", &json!({"spec": {"image": "nginx:1.22.1"}})).await;
    scene.ready(WEB_APP, "hello").await;
    scene
        .until("no failing pods", WEB_APP, "hello", |o| condition(o, "PodsFailing")["status"] == "False")
        .await;
    visitor.check();
    assert_eq!(scene.get(DEPLOYMENT, "hello").await["status"]["readyReplicas"], 2);
}
