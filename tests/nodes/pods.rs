//! What pods need: images, exec, logs, DNS, Services, volumes; and restarts of the node's components.

use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use crate::support::{ControlPlane, LONG, Namespace, eventually, kubectl_of, namespace_on, options};
use operetta::local::{Component, Options};
use operetta::package::image::read_images;
use tokio::sync::{OnceCell, Semaphore, SemaphorePermit};

/// A timeout for anything that involves pods and images, even on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(600);

pub(crate) async fn start() -> Arc<ControlPlane> {
    let described = ["operators/postgresql", "operators/valkey"]
        .into_iter()
        .flat_map(|folder| read_images(Path::new(folder)).unwrap_or_else(|errors| panic!("{errors:?}")))
        .collect();
    let options = Options { real_node: true, described, ..options() };
    Arc::new(ControlPlane::start(options).await.unwrap_or_else(|error| panic!("{error}")))
}

/// The node that tests share.
pub(crate) async fn node() -> Arc<ControlPlane> {
    static NODE: OnceCell<Arc<ControlPlane>> = OnceCell::const_new();
    NODE.get_or_init(start).await.clone()
}

/// Waits for the turn of a test with clusters: more of them at a time would only wait for each other.
pub(crate) async fn turn() -> SemaphorePermit<'static> {
    static TURNS: Semaphore = Semaphore::const_new(3);
    TURNS.acquire().await.expect("it is never closed")
}

/// The pods of a namespace, deleted with this value, because pods of earlier tests would use the processors.
pub(crate) struct Pods {
    node: Arc<ControlPlane>,
    namespace: String,
}

impl Pods {
    pub(crate) fn of(scene: &crate::support::ext::Scene) -> Self {
        Self { node: Arc::clone(scene.plane()), namespace: scene.namespace().to_owned() }
    }
}

impl Drop for Pods {
    fn drop(&mut self) {
        let mut kubectl = std::process::Command::new((**self.node).kubectl());
        kubectl.arg("--kubeconfig").arg(self.node.kubeconfig_path());
        kubectl.args(["delete", "namespace", &self.namespace, "--wait=false"]);
        // If a test has a node of its own, that may end first.
        let _ = kubectl.stdout(Stdio::null()).stderr(Stdio::null()).status();
    }
}

/// A namespace on a node.
struct Scene {
    node: Arc<ControlPlane>,
    namespace: Namespace,
}

impl Scene {
    /// A namespace on the shared node.
    async fn new() -> Self {
        Self::on(node().await).await
    }

    async fn on(node: Arc<ControlPlane>) -> Self {
        let namespace = namespace_on(&node).await;
        Self { node, namespace }
    }

    async fn kubectl(&self, args: &[&str]) -> Result<String, String> {
        kubectl_of(&self.node, &[&["-n", &self.namespace], args].concat(), "").await.result()
    }

    async fn apply(&self, yaml: &str) {
        kubectl_of(&self.node, &["-n", &self.namespace, "apply", "-f", "-"], yaml).await.ok();
    }

    async fn wait(&self, what: &str, condition: &str) {
        let wanted = format!("--for={condition}");
        if let Err(error) = self.kubectl(&["wait", what, &wanted, "--timeout=120s"]).await {
            let pods = self.kubectl(&["describe", "pods"]).await.unwrap_or_default();
            panic!("{error}\n{pods}");
        }
    }

    /// Runs a command in a pod.
    async fn exec(&self, pod: &str, command: &str) -> Result<String, String> {
        self.kubectl(&["exec", pod, "--", "sh", "-c", command]).await
    }
}

/// A pod of busybox that runs until it is deleted.
fn sleeper(name: &str, more: &str) -> String {
    format!(
        "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}}}, spec: {{terminationGracePeriodSeconds: 0{more}, \
         containers: [{{name: main, image: 'busybox:1.35', command: [sh, -c, 'echo started; sleep 9999']}}]}}}}"
    )
}

#[tokio::test]
async fn a_pod_runs_and_has_logs_and_exec() {
    let scene = Scene::new().await;
    scene.apply(&sleeper("a", "")).await;
    scene.wait("pod/a", "condition=Ready").await;
    // A container without a probe is ready before its command has written anything.
    eventually("the log", LONG, async || match scene.kubectl(&["logs", "a"]).await.unwrap() {
        log if log == "started\n" => Ok(()),
        log => Err(log),
    })
    .await;
    assert_eq!(scene.exec("a", "hostname").await.unwrap(), "a\n");
    let failed = scene.exec("a", "exit 3").await.unwrap_err();
    assert!(failed.contains("exit code 3"), "{failed}");
}

#[tokio::test]
async fn a_service_is_resolved_and_answers() {
    let scene = Scene::new().await;
    let web = "
{apiVersion: v1, kind: Service, metadata: {name: web}, spec: {selector: {app: web}, ports: [{port: 8080, targetPort: 80}]}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: web, image: 'nginx:1.22', readinessProbe: {httpGet: {port: 80}, periodSeconds: 1}}]}
---
";
    scene.apply(&format!("{web}{}", sleeper("client", ""))).await;
    scene.wait("deployment/web", "condition=Available").await;
    scene.wait("pod/client", "condition=Ready").await;
    for name in [
        "web",
        &format!("web.{}.svc", scene.namespace),
        &format!("web.{}.svc.cluster.local", scene.namespace),
    ] {
        // kube-proxy and DNS get endpoints a moment after the Deployment is available.
        let page = eventually(name, LONG, async || {
            scene.exec("client", &format!("wget -qO- http://{name}:8080")).await
        })
        .await;
        assert!(page.contains("Welcome to nginx"), "{page}");
    }
    // This machine can reach Services as well.
    let address =
        scene.kubectl(&["get", "service", "web", "-o", "jsonpath={.spec.clusterIP}"]).await.unwrap();
    tokio::time::timeout(LONG, tokio::net::TcpStream::connect((address.as_str(), 8080)))
        .await
        .unwrap()
        .unwrap();
    let unknown = scene.exec("client", "nslookup nothing.example.com").await.unwrap_err();
    assert!(unknown.contains("NXDOMAIN"), "{unknown}");
}

#[tokio::test]
async fn a_volume_keeps_its_data_when_the_pod_is_replaced() {
    let scene = Scene::new().await;
    let claim = "{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: data}, spec: {accessModes: [ReadWriteOnce], \
                 resources: {requests: {storage: 1Gi}}}}";
    let pod = |name: &str| {
        format!(
            "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}}}, spec: {{terminationGracePeriodSeconds: 0, \
             containers: [{{name: main, image: 'busybox:1.35', command: [sleep, '9999'], \
             volumeMounts: [{{name: data, mountPath: /data}}]}}], \
             volumes: [{{name: data, persistentVolumeClaim: {{claimName: data}}}}]}}}}"
        )
    };
    scene.apply(claim).await;
    scene.apply(&pod("first")).await;
    scene.wait("pod/first", "condition=Ready").await;
    scene.exec("first", "echo kept > /data/file").await.unwrap();
    scene.kubectl(&["delete", "pod", "first"]).await.unwrap();
    scene.apply(&pod("second")).await;
    scene.wait("pod/second", "condition=Ready").await;
    assert_eq!(scene.exec("second", "cat /data/file").await.unwrap(), "kept\n");
}

#[tokio::test]
async fn every_image_of_the_node_runs() {
    let scene = Scene::new().await;
    let versions = [
        ("etcd-3-4", "quay.io/coreos/etcd:v3.4.23", "etcd --version && etcdctl version", "3.4.23"),
        (
            "etcd-3-5",
            "quay.io/coreos/etcd:v3.5.35",
            "etcd --version && etcdctl version && etcdutl version",
            "3.5.35",
        ),
        (
            "etcd-3-6",
            "quay.io/coreos/etcd:v3.6.8",
            "etcd --version && etcdctl version && etcdutl version",
            "3.6.8",
        ),
        ("nginx", "nginx:1.22.1", "nginx -v 2>&1", "1.22.1"),
        ("rclone", "rclone/rclone:1.73.5", "rclone version", "rclone"),
        ("busybox", "busybox:1.35.0", "busybox | head -1", "v1.35.0"),
    ];
    for (name, image, command, _) in versions {
        scene
            .apply(&format!(
                "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}}}, spec: {{restartPolicy: Never, \
                 containers: [{{name: main, image: '{image}', command: [sh, -c, '{command}']}}]}}}}"
            ))
            .await;
    }
    for (name, _, _, version) in versions {
        scene.wait(&format!("pod/{name}"), "jsonpath={.status.phase}=Succeeded").await;
        let log = scene.kubectl(&["logs", name]).await.unwrap();
        assert!(log.contains(version), "{name}: {log}");
    }
}

#[tokio::test]
async fn missing_image_is_reported_by_the_pod() {
    let scene = Scene::new().await;
    scene.apply(&sleeper("a", "").replace("busybox:1.35", "quay.io/coreos/etcd:v3.99.0")).await;
    eventually("the reason", LONG, async || {
        let path = "jsonpath={.status.containerStatuses[0].state.waiting.reason}";
        match scene.kubectl(&["get", "pod", "a", "-o", path]).await?.as_str() {
            "ErrImagePull" | "ImagePullBackOff" => Ok(()),
            other => Err(other.to_owned()),
        }
    })
    .await;
}

#[tokio::test]
async fn pods_survive_a_restart_of_kubelet_and_containerd() {
    let scene = Scene::on(start().await).await;
    scene.apply(&sleeper("a", "")).await;
    scene.wait("pod/a", "condition=Ready").await;
    let started = scene.exec("a", "stat -c %Y /proc/1").await.unwrap();
    for component in [Component::Kubelet, Component::Containerd] {
        scene.node.kill(component).await.unwrap();
        scene.node.restart(component).await.unwrap();
        let again = eventually("exec", LONG, async || scene.exec("a", "stat -c %Y /proc/1").await).await;
        assert_eq!(again, started, "after {component}");
    }
    let quiet = tokio::time::timeout(Duration::from_millis(200), scene.node.failure()).await;
    assert!(quiet.is_err(), "{quiet:?}");
}
