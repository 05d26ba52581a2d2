//! `operetta test --cluster`: cases of a package on a real control plane, which is left as it was.

use std::fs;
use std::path::Path;

use tempfile::TempDir;

use crate::support::{self, copy_folder, kubectl_of, own_plane, put_file};

/// Cases of webapp: two that can be played everywhere, and three that cannot.
const CASES: &str = r#"apiVersion: operetta.dev/v1alpha1
kind: PackageTest
before:
- apply: {apiVersion: apps.operetta.dev/v1alpha1, kind: WebApp, metadata: {name: a}, spec: {image: "x:1"}}
- expect: {instance: {conditions: {Ready: "True"}}}
always: ["instance is undefined or instance.metadata.name == 'a'"]
cases:
- name: grows and goes
  steps:
  - patch: WebApp/a
    with: {spec: {replicas: 3}}
  - {patch: WebApp/a, with: {spec: {port: 0}}, refused: spec.port}
  - expect:
      children: {deployment: {spec: {replicas: 3}, status: {readyReplicas: 3}}}
      objects: {Pod/*: 3}
      that: ["pods | select('ready') | length == 3"]
  - restart: manager
  - delete: WebApp/a
  - expect: {instance: absent, objects: {Deployment/a: absent}}
- name: differs
  steps:
  - {expect: {children: {deployment: {spec: {replicas: 7}}}}, within: 2s}
- name: waits
  steps: [{wait: 2h}]
- name: breaks
  steps: [{break: {answer: 409}}]
- name: touches what others have
  steps: [{delete: Namespace/kube-public}]
"#;

fn package() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    copy_folder(Path::new("operators/webapp"), folder.path(), &std::convert::identity);
    fs::remove_dir_all(folder.path().join("tests")).unwrap();
    put_file(&folder.path().join("tests/a.yaml"), CASES);
    folder
}

#[tokio::test]
async fn cases_run_on_a_cluster_and_leave_it_as_it_was() {
    let plane = own_plane().await;
    let folder = package();
    let path = folder.path().to_str().unwrap();
    let held = async || {
        let kinds = "namespaces,crds,validatingadmissionpolicies,validatingadmissionpolicybindings";
        kubectl_of(&plane, &["get", kinds, "-o", "name"], "").await.ok()
    };
    let before = held().await;
    let test = async || {
        let output =
            support::operetta(plane.kubeconfig_path(), &["test", path, "--cluster", "current"]).await;
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        output.stdout + &output.stderr
    };
    let text = test().await;
    for said in [
        "test grows and goes ... ok",
        "test differs ... FAILED",
        "spec.replicas is 1, not 7",
        "test waits ... skipped: ",
        "a.yaml:24:11: `wait: 2h` needs virtual time",
        "test breaks ... skipped: ",
        "`break` needs the embedded API",
        "Namespace kube-public was not created by this case, and is not touched",
        "1 passed; 2 failed; 2 skipped; 0 filtered out",
    ] {
        assert!(text.contains(said), "{said:?} is not in:\n{text}");
    }
    support::eventually("the cluster to be as before", support::ext::LONG, async || {
        let after = held().await;
        if after == before { Ok(()) } else { Err(format!("{before}\nis now\n{after}")) }
    })
    .await;
    // CRDs of somebody else are not changed.
    let crd = fs::read_dir(folder.path().join("crds")).unwrap().next().unwrap().unwrap().path();
    kubectl_of(&plane, &["create", "-f", crd.to_str().unwrap()], "").await.ok();
    let text = test().await;
    assert!(text.contains("the cluster has the CRD") && !text.contains("grows and goes ..."), "{text}");
}
