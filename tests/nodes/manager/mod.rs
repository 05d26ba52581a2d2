//! The manager in pods of a real node, installed by `operetta manager install`.

mod conversion;
mod yaml;

use std::sync::Arc;

use crate::support::ControlPlane;
use operetta::local::{AuditEvent, Mark, Options};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};

use crate::support::barrier::get;
use crate::support::ext::{CONFIG_MAP, DEPLOYMENT, LONG, SERVICE, Scene, WEB_APP, name_of};
use crate::support::rights::{SYSTEM, user};
use crate::support::{OPERETTA, Output, eventually, kubectl_of, operetta, options};

/// Starts a node that has the image of this build.
async fn start(image: &std::path::Path) -> Arc<ControlPlane> {
    let made = tokio::process::Command::new(OPERETTA)
        .args(["manager", "image", "--libraries", "--output"])
        .arg(image)
        .output()
        .await
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let options = Options { real_node: true, images: vec![image.to_owned()], ..options() };
    Arc::new(ControlPlane::start(options).await.unwrap_or_else(|error| panic!("{error}")))
}

struct Cluster {
    plane: Arc<ControlPlane>,
}

/// The manager's requests that were refused for missing rights.
fn denied(requests: &[AuditEvent]) -> Vec<(&str, &str)> {
    requests
        .iter()
        .filter(|request| request.user == user("operetta") && request.code == 403)
        .map(|request| (request.verb.as_str(), request.resource.as_str()))
        .collect()
}

impl Cluster {
    /// Installs the manager by command.
    async fn install(&self) {
        let installed = self.operetta(&["manager", "install", "--timeout", "3m"]).await;
        if !installed.status.success() {
            let pods = self.kubectl(&["describe", "pods"]).await.stdout;
            let logs =
                self.kubectl(&["logs", "-l", "app.kubernetes.io/name=operetta", "--tail=20"]).await.stdout;
            panic!("{}\n{pods}\n{logs}", installed.stderr);
        }
    }

    async fn operetta(&self, args: &[&str]) -> Output {
        operetta(self.plane.kubeconfig_path(), args).await
    }

    async fn kubectl(&self, args: &[&str]) -> Output {
        kubectl_of(&self.plane, &[&["-n", SYSTEM], args].concat(), "").await
    }

    async fn status(&self) -> Value {
        let output = self.operetta(&["manager", "status", "-o", "json"]).await;
        serde_json::from_str(&output.stdout).unwrap_or_default()
    }

    /// The name of the leading pod, once it is another one than `but`.
    async fn leader(&self, but: &str) -> String {
        eventually("a leader", LONG, async || {
            let status = self.status().await;
            let leader = status["leader"].as_str().unwrap_or_default().to_owned();
            if leader.is_empty() || (!but.is_empty() && leader.starts_with(but)) {
                Err(status)
            } else {
                Ok(leader)
            }
        })
        .await
    }
}

#[tokio::test]
async fn manager_runs_unprivileged_and_packages_use_their_rights() {
    let folder = tempfile::tempdir().unwrap();
    let plane = start(&folder.path().join("image")).await;
    let cluster = Cluster { plane: Arc::clone(&plane) };
    cluster.install().await;
    let status = cluster.status().await;
    assert_eq!(status["deployment"]["readyReplicas"], 2, "{status}");
    // The namespace admits no privileged pod.
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "root"}, "spec": {
        "containers": [{"name": "a", "image": "busybox:1.35", "securityContext": {"privileged": true}}]}});
    let refused = kubectl_of(&plane, &["-n", SYSTEM, "apply", "-f", "-"], &pod.to_string()).await.fails();
    assert!(refused.contains("PodSecurity \"restricted"), "{refused}");

    cluster.operetta(&["install", "operators/webapp"]).await.ok();
    let scene = Scene::on(&plane).await;
    let app = "hello";
    let instance = json!({"apiVersion": "apps.operetta.dev/v1alpha1", "kind": "WebApp", "metadata": {"name": app},
        "spec": {"image": "nginx:1.22", "port": 80}});
    scene.apply_ready(WEB_APP, app, &instance.to_string()).await;
    // Each write of a child was made by the manager's account impersonating the package's.
    let requests = plane.audit().requests_since(Mark::START).unwrap();
    let writes = |resource: &str| {
        let of_kind = requests.iter().filter(|r| {
            r.resource == resource
                && r.namespace == scene.namespace()
                && ["create", "patch"].contains(&r.verb.as_str())
        });
        of_kind.filter(|r| r.user == user("operetta")).map(|r| r.acting_as.clone()).collect::<Vec<_>>()
    };
    for kind in [DEPLOYMENT, SERVICE] {
        let made = writes(kind.resource_name().split('.').next().unwrap());
        assert!(!made.is_empty(), "{kind:?}");
        assert!(made.iter().all(|account| *account == user("operetta-webapp")), "{kind:?}: {made:?}");
    }
    assert!(denied(&requests).is_empty(), "{:?}", denied(&requests));

    // The other replica takes over.
    let leader = cluster.leader("").await;
    let pods: Value =
        serde_json::from_str(&cluster.kubectl(&["get", "pods", "-o", "json"]).await.ok()).unwrap();
    let pods: Vec<&str> = pods["items"].as_array().unwrap().iter().map(name_of).collect();
    let leading =
        *pods.iter().find(|pod| leader.starts_with(**pod)).unwrap_or_else(|| panic!("{leader}: {pods:?}"));
    only_those_in_the_pod_see_the_state(&cluster, leading).await;
    cluster.kubectl(&["delete", "pod", leading, "--grace-period=0", "--force"]).await.ok();
    cluster.leader(leading).await;
    scene.patch(WEB_APP, app, "merge", &json!({"spec": {"config": {"A": "b"}}})).await;
    eventually("the change, by the other replica", LONG, async || {
        let maps = scene.names(CONFIG_MAP).await;
        if maps.iter().any(|map| map == app) { Ok(()) } else { Err(maps.join(" ")) }
    })
    .await;
    scene.ready(WEB_APP, app).await;
}

/// `kubectl port-forward` connects from within the pod; the API server's proxy connects from outside.
async fn only_those_in_the_pod_see_the_state(cluster: &Cluster, pod: &str) {
    let proxied = format!("/api/v1/namespaces/{SYSTEM}/pods/{pod}:8080/proxy");
    cluster.kubectl(&["get", "--raw", &format!("{proxied}/healthz")]).await.ok();
    let refused = cluster.kubectl(&["get", "--raw", &format!("{proxied}/debug/state")]).await.fails();
    assert!(refused.contains("orbidden"), "{refused}");

    let mut forward = tokio::process::Command::new(cluster.plane.kubectl().await)
        .arg("--kubeconfig")
        .arg(cluster.plane.kubeconfig_path())
        .args(["-n", SYSTEM, "port-forward", &format!("pod/{pod}"), ":8080"])
        .stdout(std::process::Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(forward.stdout.take().unwrap()).lines();
    // Parse the line `Forwarding from 127.0.0.1:40123 -> 8080`.
    let line = tokio::time::timeout(LONG, lines.next_line()).await.unwrap().unwrap().unwrap();
    let address = line.split_whitespace().find(|word| word.starts_with("127.0.0.1:")).unwrap();
    let (head, body) = get(address, "/debug/state").await;
    assert!(head.contains(" 200 "), "{head}: {body}");
    let state: Value = serde_json::from_str(&body).unwrap();
    assert!(state["watches"].as_array().is_some_and(|all| !all.is_empty()), "{state}");
}
