//! The chart and the kustomization of docs/deploy, rendered by Helm and kubectl themselves: they give the same objects as
//! `operetta manager install`.

use std::collections::BTreeMap;
use std::path::Path;

use crate::support::ControlPlane;
use operetta::local::Tool;
use serde_json::{Value, json};

use crate::programs::{HELM, built};
use crate::support::ext::{CRD, DEPLOYMENT, LONG, file, find_in, kind, name_of};
use crate::support::rights::SYSTEM;
use crate::support::{eventually, kubectl_of, operetta, own_plane};

const CHART: &str = "docs/deploy/chart";
/// The annotation that keeps an object when the chart is uninstalled.
const KEEP: &str = "helm.sh/resource-policy";

/// Runs helm or kubectl. Returns its output.
async fn helm(program: &Path, kubeconfig: &Path, args: &[&str]) -> String {
    let home = tempfile::tempdir().unwrap();
    let output = tokio::process::Command::new(program)
        .args(args)
        .env("KUBECONFIG", kubeconfig)
        .env("HELM_CONFIG_HOME", home.path())
        .env("HELM_CACHE_HOME", home.path())
        .env("HELM_DATA_HOME", home.path())
        .output()
        .await
        .unwrap();
    assert!(
        output.status.success(),
        "{} {args:?}: {}",
        program.display(),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

/// The objects of YAML documents, by kind, namespace and name.
fn objects(text: &str) -> BTreeMap<String, Value> {
    let documents = text.split("\n---\n").map(|document| document.trim_start_matches("---\n"));
    let objects = documents.map(|document| operetta::yaml::from_str(document).unwrap());
    objects
        .filter(|object| !object.is_null())
        .map(|object| {
            let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default().to_owned();
            (format!("{} {namespace}/{}", object["kind"].as_str().unwrap(), name_of(&object)), object)
        })
        .collect()
}

/// The objects that Helm renders, without the annotation that keeps CRDs.
fn rendered(text: &str) -> BTreeMap<String, Value> {
    let mut found = objects(text);
    for object in found.values_mut().filter(|object| object["kind"] == "CustomResourceDefinition") {
        let metadata = object["metadata"].as_object_mut().unwrap();
        let annotations = metadata["annotations"].as_object_mut().unwrap();
        assert_eq!(annotations.remove(KEEP).unwrap(), "keep");
        if annotations.is_empty() {
            metadata.remove("annotations");
        }
    }
    found
}

/// The objects of `manager install` without the namespace, which Helm creates itself.
fn plain(text: &str) -> BTreeMap<String, Value> {
    let mut found = objects(text);
    found.remove(&format!("Namespace /{SYSTEM}"));
    found
}

#[tokio::test]
async fn chart_renders_the_objects_of_manager_install() {
    let (program, nowhere) = (built(HELM).await, Path::new("/dev/null"));
    let args = ["template", "operetta", CHART, "--namespace", SYSTEM, "--kube-version", "1.36.0"];
    let made = rendered(&helm(&program, nowhere, &args).await);
    let expected = plain(&file("docs/deploy/operetta.yaml"));
    assert_eq!(made.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
    for (name, object) in &expected {
        assert_eq!(made[name], *object, "{name}");
    }
    // Set each value, and another namespace.
    let values = ["--set", "image=registry.example.org/operetta:7", "--set", "replicas=3"];
    let args = [&["template", "operetta", CHART, "--namespace", "there"], &values[..]].concat();
    let made = rendered(&helm(&program, nowhere, &args).await);
    let args = ["manager", "install", "--dry-run", "--namespace", "there", "--replicas", "3"];
    let args = [&args[..], &["--image", "registry.example.org/operetta:7"]].concat();
    let mut expected = objects(&operetta(nowhere, &args).await.ok());
    expected.remove("Namespace /there");
    assert_eq!(made, expected);
}

#[tokio::test]
async fn the_kustomization_has_the_objects_of_manager_install() {
    let kubectl = built(Tool::Kubectl).await;
    let made = objects(&helm(&kubectl, Path::new("/dev/null"), &["kustomize", "docs/deploy"]).await);
    let expected =
        objects(&operetta(Path::new("/dev/null"), &["manager", "install", "--dry-run"]).await.ok());
    assert_eq!(made.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
    for (name, object) in &expected {
        assert_eq!(made[name], *object, "{name}");
    }
}

/// A value other than the default for each setting of the chart.
const VALUES: &str = r#"image: registry.example.org/operetta:7
replicas: 1
imagePullSecrets: [{name: registry}]
extraArgs: [--allow-call-to, "bookings.internal", --allow-call-to, 10.0.0.0/8]
resources: {requests: {cpu: 1}, limits: {memory: 2Gi}}
nodeSelector: {kubernetes.io/os: linux}
tolerations: [{key: dedicated, operator: Equal, value: "true", effect: NoSchedule}]
affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: a, operator: Exists}]}]}}}
priorityClassName: system-cluster-critical
networkPolicy:
  enabled: true
  metricsFrom: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: monitoring}}}]
  egress: [{ports: [{port: 443}]}]
serviceMonitor: {enabled: true, interval: 1m, labels: {release: prometheus}}
"#;
/// Values that remove defaults.
const EMPTY: &str = "resources: null\naffinity: null\nnetworkPolicy: {enabled: true, metricsFrom: []}\nserviceMonitor: {enabled: true}\n";

#[tokio::test]
async fn chart_and_command_agree_on_all_values() {
    let (program, nowhere) = (built(HELM).await, Path::new("/dev/null"));
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap();
    for values in [VALUES, EMPTY] {
        std::fs::write(path, values).unwrap();
        let args = ["template", "operetta", CHART, "--namespace", SYSTEM, "--values", path];
        let made = rendered(&helm(&program, nowhere, &args).await);
        let args = ["manager", "install", "--dry-run", "--values", path];
        let expected = plain(&operetta(nowhere, &args).await.ok());
        assert_eq!(made.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
        for (name, object) in &expected {
            assert_eq!(made[name], *object, "{name}");
        }
        for kind in ["NetworkPolicy", "ServiceMonitor"] {
            assert!(made.contains_key(&format!("{kind} {SYSTEM}/operetta")), "{kind}");
        }
        let pod = &made[&format!("Deployment {SYSTEM}/operetta")]["spec"]["template"]["spec"];
        assert_eq!(pod["priorityClassName"].is_null(), values == EMPTY);
    }
}

/// The API server accepts all values, and objects that are no longer wanted are deleted.
#[tokio::test]
async fn values_can_be_applied_and_removed() {
    const POLICY: crate::support::ext::Kind = kind("networking.k8s.io/v1", "networkpolicies");
    let plane = own_plane().await;
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap();
    let install = async |more: &[&str]| {
        let args = [&["manager", "install", "--wait", "false", "--values", path], more].concat();
        operetta(plane.kubeconfig_path(), &args).await
    };
    std::fs::write(path, VALUES).unwrap();
    let refused = install(&[]).await;
    assert!(
        !refused.status.success() && refused.stderr.contains("no Prometheus Operator"),
        "{}",
        refused.stderr
    );
    install(&["--set", "serviceMonitor.enabled=false"]).await.ok();
    let pod = async || {
        let deployment = find_in(&plane, DEPLOYMENT, Some(SYSTEM), "operetta").await.unwrap();
        deployment["spec"]["template"]["spec"].clone()
    };
    let found = pod().await;
    assert_eq!(found["nodeSelector"], json!({"kubernetes.io/os": "linux"}));
    assert_eq!(found["imagePullSecrets"], json!([{"name": "registry"}]));
    assert_eq!(found["tolerations"][0]["key"], "dedicated");
    assert_eq!(found["priorityClassName"], "system-cluster-critical");
    assert_eq!(
        found["containers"][0]["resources"],
        json!({"requests": {"cpu": "1", "memory": "128Mi"}, "limits": {"memory": "2Gi"}})
    );
    assert!(find_in(&plane, POLICY, Some(SYSTEM), "operetta").await.is_some());
    std::fs::write(path, "# None.\n").unwrap();
    let told = install(&[]).await;
    assert!(told.stderr.contains("NetworkPolicy operetta deleted"), "{}", told.stderr);
    assert!(find_in(&plane, POLICY, Some(SYSTEM), "operetta").await.is_none());
    let found = pod().await;
    assert!(found["tolerations"].is_null() && found["nodeSelector"].is_null(), "{found}");
    // A value that the API server does not accept is refused.
    let refused = install(&["--set", "tolerations=[{kye: a}]"]).await;
    assert!(!refused.status.success() && refused.stderr.contains("kye"), "{}", refused.stderr);
}

async fn replicas(plane: &ControlPlane) -> Value {
    let found = find_in(plane, DEPLOYMENT, Some(SYSTEM), "operetta").await;
    found.map_or(Value::Null, |deployment| deployment["spec"]["replicas"].clone())
}

#[tokio::test]
async fn the_chart_is_installed_upgraded_and_uninstalled() {
    const POLICY: crate::support::ext::Kind =
        kind("admissionregistration.k8s.io/v1", "validatingadmissionpolicies");
    let program = built(HELM).await;
    let plane = own_plane().await;
    let run = async |args: &[&str]| helm(&program, plane.kubeconfig_path(), args).await;
    let place = ["--namespace", SYSTEM];
    run(&[&["install", "operetta", CHART, "--create-namespace"], &place[..]].concat()).await;
    assert_eq!(replicas(&plane).await, 2);
    for crd in ["operators", "operatorrevisions", "planruns"] {
        assert!(find_in(&plane, CRD, None, &format!("{crd}.operetta.dev")).await.is_some(), "{crd}");
    }
    assert!(find_in(&plane, POLICY, None, "planruns.operetta.dev").await.is_some());
    eventually("the pods, which fake nodes run", LONG, async || {
        let deployment = find_in(&plane, DEPLOYMENT, Some(SYSTEM), "operetta").await.unwrap_or_default();
        let holds = deployment["status"]["readyReplicas"] == 2;
        if holds { Ok(()) } else { Err(deployment["status"].to_string()) }
    })
    .await;
    // The roles of the manager had other names before the first release.
    let labels = json!({"app.kubernetes.io/managed-by": "operetta", "app.kubernetes.io/name": "operetta"});
    let (api, group) = ("rbac.authorization.k8s.io/v1", "rbac.authorization.k8s.io");
    let former: Vec<Value> = ["operetta", "operetta-packages"]
        .into_iter()
        .flat_map(|name| {
            let metadata = json!({"name": name, "labels": labels});
            let subjects = [json!({"kind": "ServiceAccount", "name": "operetta", "namespace": SYSTEM})];
            let to = json!({"apiGroup": group, "kind": "ClusterRole", "name": name});
            [
                json!({"apiVersion": api, "kind": "ClusterRole", "metadata": metadata, "rules": []}),
                json!({
                    "apiVersion": api, "kind": "ClusterRoleBinding", "metadata": metadata, "roleRef": to, "subjects": subjects,
                }),
            ]
        })
        .collect();
    let former = json!({"apiVersion": "v1", "kind": "List", "items": former}).to_string();
    kubectl_of(&plane, &["create", "-f", "-"], &former).await.ok();
    // The command takes over the objects, and Helm takes them back.
    operetta(plane.kubeconfig_path(), &["manager", "install", "--replicas", "1", "--wait", "false"])
        .await
        .ok();
    assert_eq!(replicas(&plane).await, 1);
    let roles =
        ["get", "clusterroles,clusterrolebindings", "-l", "app.kubernetes.io/name=operetta", "-o", "name"];
    let roles = kubectl_of(&plane, &roles, "").await.ok();
    assert!(roles.contains("/operetta-manager"), "{roles}");
    let is_former = |line: &str| line.ends_with("/operetta") || line.ends_with("/operetta-packages");
    assert!(!roles.lines().any(is_former), "{roles}");
    let upgrade = ["upgrade", "operetta", CHART, "--set", "replicas=3", "--force-conflicts"];
    run(&[&upgrade, &place[..]].concat()).await;
    assert_eq!(replicas(&plane).await, 3);
    let refused = operetta(plane.kubeconfig_path(), &["manager", "uninstall"]).await;
    assert!(refused.stderr.contains("`helm uninstall operetta -n operetta-system`"), "{}", refused.stderr);
    assert_eq!(replicas(&plane).await, 3);
    // Without its CRDs all Operators and runs would be deleted.
    run(&[&["uninstall", "operetta"], &place[..]].concat()).await;
    assert_eq!(replicas(&plane).await, json!(null));
    assert!(find_in(&plane, CRD, None, "operators.operetta.dev").await.is_some());
}
