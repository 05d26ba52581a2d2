//! The chart of docs/deploy, by Helm itself: it makes the objects of `operetta manager install`, and installs them.

use std::collections::BTreeMap;
use std::path::Path;

use operetta::local::{ControlPlane, Tool};
use serde_json::{Value, json};

use crate::support::ext::{CRD, DEPLOYMENT, LONG, file, find_in, kind, name_of};
use crate::support::rights::SYSTEM;
use crate::support::{eventually, operetta, options, own_plane};

const CHART: &str = "docs/deploy/chart";
/// What keeps an object when the chart is uninstalled.
const KEEP: &str = "helm.sh/resource-policy";

/// Runs helm; its output.
async fn helm(helm: &Path, kubeconfig: &Path, args: &[&str]) -> String {
    let home = tempfile::tempdir().unwrap();
    let output = tokio::process::Command::new(helm)
        .args(args)
        .env("KUBECONFIG", kubeconfig)
        .env("HELM_CONFIG_HOME", home.path())
        .env("HELM_CACHE_HOME", home.path())
        .env("HELM_DATA_HOME", home.path())
        .output()
        .await
        .unwrap();
    assert!(output.status.success(), "helm {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

async fn built() -> std::path::PathBuf {
    let options = options();
    let found = Tool::Helm.built(&options.environment, &options.progress).await;
    found.unwrap_or_else(|error| panic!("{error}"))
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

/// What Helm makes, without the annotation that keeps CRDs.
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

/// The plain objects without the namespace, which Helm makes.
fn plain(text: &str) -> BTreeMap<String, Value> {
    let mut found = objects(text);
    found.remove(&format!("Namespace /{SYSTEM}"));
    found
}

#[tokio::test]
async fn the_chart_makes_the_plain_objects() {
    let (program, nowhere) = (built().await, Path::new("/dev/null"));
    let args = ["template", "operetta", CHART, "--namespace", SYSTEM, "--kube-version", "1.36.0"];
    let made = rendered(&helm(&program, nowhere, &args).await);
    let expected = plain(&file("docs/deploy/operetta.yaml"));
    assert_eq!(made.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
    for (name, object) in &expected {
        assert_eq!(made[name], *object, "{name}");
    }
    // Each value, and another namespace.
    let values = ["--set", "image=registry.example.org/operetta:7", "--set", "replicas=3"];
    let args = [&["template", "operetta", CHART, "--namespace", "there"], &values[..]].concat();
    let made = rendered(&helm(&program, nowhere, &args).await);
    let args = ["manager", "install", "--dry-run", "--namespace", "there", "--replicas", "3"];
    let args = [&args[..], &["--image", "registry.example.org/operetta:7"]].concat();
    let mut expected = objects(&operetta(nowhere, &args).await.ok());
    expected.remove("Namespace /there");
    assert_eq!(made, expected);
}

async fn replicas(plane: &ControlPlane) -> Value {
    let found = find_in(plane, DEPLOYMENT, Some(SYSTEM), "operetta").await;
    found.map_or(Value::Null, |deployment| deployment["spec"]["replicas"].clone())
}

#[tokio::test]
async fn the_chart_is_installed_upgraded_and_uninstalled() {
    const POLICY: crate::support::ext::Kind =
        kind("admissionregistration.k8s.io/v1", "validatingadmissionpolicies");
    let program = built().await;
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
        if deployment["status"]["readyReplicas"] == 2 {
            Ok(())
        } else {
            Err(deployment["status"].to_string())
        }
    })
    .await;
    // The command takes the objects over, and Helm takes them back.
    operetta(plane.kubeconfig_path(), &["manager", "install", "--replicas", "1", "--wait", "false"])
        .await
        .ok();
    assert_eq!(replicas(&plane).await, 1);
    let upgrade = ["upgrade", "operetta", CHART, "--set", "replicas=3", "--force-conflicts"];
    run(&[&upgrade, &place[..]].concat()).await;
    assert_eq!(replicas(&plane).await, 3);
    // Without its CRDs all Operators and runs would be gone.
    run(&[&["uninstall", "operetta"], &place[..]].concat()).await;
    assert_eq!(replicas(&plane).await, json!(null));
    assert!(find_in(&plane, CRD, None, "operators.operetta.dev").await.is_some());
}
