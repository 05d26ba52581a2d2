//! CRDs that are children of instances, and CRDs with forged labels: neither counts as the CRD of a package. It is here for the
//! commands `get` and `tree`, which are processes.

use std::path::Path;
use std::process::Command;

use crate::support::ControlPlane;
use serde_json::{Value, json};

use crate::support::crds::{crd, schema};
use crate::support::ext::{CONFIG_MAP, CRD, Kind, LONG, condition, find_in, is_ready, kind, run};
use crate::support::{OPERETTA, eventually, kubectl_of};

const MAKER: Kind = kind("crds.example.org/v1", "makers");
const HOLDER: Kind = kind("crds.example.org/v1", "holders");
const GIZMO: Kind = kind("made.example.org/v1", "gizmos");

/// A package with a CRD as a child, and with another kind whose child is an instance of that CRD.
fn package(root: &Path) -> String {
    for part in ["crds", "templates"] {
        std::fs::create_dir_all(root.join(part)).unwrap();
    }
    let write = |path: &str, text: &str| std::fs::write(root.join(path), text).unwrap();
    write("crds/maker.yaml", &crd("makers", "Maker", &schema("")));
    write("crds/holder.yaml", &crd("holders", "Holder", &schema("")));
    let made = crd("gizmos", "Gizmo", &schema("")).replace("crds.example.org", "made.example.org");
    write(
        "templates/crd.yaml",
        &made
            .replace("gizmos.", "{{ name }}s.")
            .replace("name: {{ name }}s.made.example.org", "name: \"{{ name }}s.made.example.org\""),
    );
    write(
        "templates/gizmo.yaml",
        "apiVersion: made.example.org/v1\nkind: Gizmo\nmetadata: {name: \"{{ name }}\"}\n",
    );
    write(
        "templates/after.yaml",
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: \"{{ children.gizmo.metadata.name }}-after\"}\n",
    );
    write(
        "operator.yaml",
        "apiVersion: operetta.dev/v1alpha1
kind: OperatorPackage
metadata: {name: maker}
spec:
  version: 0.1.0
  resources:
    - crd: crds/maker.yaml
      children:
        - {id: crd, template: templates/crd.yaml, deletionPolicy: Delete}
    - crd: crds/holder.yaml
      children:
        - {id: gizmo, template: templates/gizmo.yaml}
        - {id: after, template: templates/after.yaml}
",
    );
    root.to_str().unwrap().to_owned()
}

fn get(plane: &ControlPlane, args: &[&str]) -> (bool, String) {
    let output = Command::new(OPERETTA)
        .args(args)
        .env("KUBECONFIG", plane.kubeconfig_path())
        .env("NO_COLOR", "1")
        .output()
        .unwrap();
    let told =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    (output.status.success(), told)
}

#[tokio::test]
async fn a_crd_created_as_a_child_does_not_belong_to_a_package() {
    let root = tempfile::tempdir().unwrap();
    let plane = ControlPlane::embedded().await;
    let package = package(root.path());
    let mut manager = run(&plane, &[&package]).watching(2).await;
    let apply =
        async |object: Value| kubectl_of(&plane, &["apply", "-f", "-"], &object.to_string()).await.ok();
    let find = async |kind: Kind, name: &str| find_in(&plane, kind, Some("default"), name).await;
    let instance = |kind: &str, name: &str| json!({"apiVersion": "crds.example.org/v1", "kind": kind, "metadata": {"name": name, "namespace": "default"}, "spec": {}});
    apply(instance("Maker", "gizmo")).await;
    eventually("the CRD is made", LONG, async || {
        find(MAKER, "gizmo").await.filter(is_ready).ok_or_else(|| manager.output())
    })
    .await;
    let name = "gizmos.made.example.org";
    let made = find_in(&plane, CRD, None, name).await.unwrap();
    assert_eq!(made["metadata"]["labels"]["operetta.dev/operator"], "maker", "it is labelled as a child");
    assert_eq!(condition(&made, "Established")["status"], "True");

    // A CRD whose author has forged the labels and annotations of a package's CRD.
    let forged =
        crd("forgeds", "Forged", &schema("")).replace("crds.example.org", "made.example.org").replace(
            "metadata: {name: forgeds.made.example.org}",
            "metadata: {name: forgeds.made.example.org, labels: {operetta.dev/operator: maker, \
         app.kubernetes.io/managed-by: operetta}, annotations: {operetta.dev/child-kinds: v1/ConfigMap, \
         operetta.dev/child-namespaces: '*'}}",
        );
    kubectl_of(&plane, &["apply", "-f", "-"], &forged).await.ok();
    apply(json!({"apiVersion": "made.example.org/v1", "kind": "Gizmo", "metadata": {"name": "free", "namespace": "default"}})).await;

    // The child of that kind is ready by its own rules and is deleted with its instance.
    apply(instance("Holder", "h")).await;
    let held = async |manager: &crate::support::Operetta| {
        eventually("the holder is Ready", LONG, async || {
            find(HOLDER, "h").await.filter(is_ready).ok_or_else(|| manager.output())
        })
        .await
    };
    held(&manager).await;
    assert!(find(CONFIG_MAP, "h-after").await.is_some());

    // A manager that starts when all of it exists decides the same.
    manager.kill9();
    let again = run(&plane, &[&package]).watching(2).await;
    held(&again).await;
    for kind in ["gizmos", "forgeds"] {
        let (is_there, told) = get(&plane, &["get", kind]);
        assert!(!is_there && told.contains("is not a kind of a package"), "{told}");
        let (is_there, told) = get(&plane, &["tree", kind, "free"]);
        assert!(!is_there && told.contains("is not a kind of a package"), "{told}");
    }
    let (is_fine, told) = get(&plane, &["get"]);
    assert!(is_fine && told.contains("Holder") && !told.contains("Gizmo"), "{told}");

    kubectl_of(&plane, &["delete", "holders.crds.example.org", "h"], "").await.ok();
    eventually("the child of that kind is deleted", LONG, async || {
        find(GIZMO, "h").await.map_or(Ok(()), |gizmo| Err(format!("{gizmo:#}")))
    })
    .await;
    assert!(find(GIZMO, "free").await.is_some());
    for output in [manager.output(), again.output()] {
        let said: Vec<&str> = output
            .lines()
            .filter(|line| line.contains("made.example.org") && !line.contains("the CRD of children"))
            .filter(|line| line.contains("package not active") || line.contains("watching instances"))
            .collect();
        assert!(said.is_empty(), "{said:#?}");
    }
    kubectl_of(&plane, &["delete", "makers.crds.example.org", "gizmo"], "").await.ok();
    eventually("the CRD is deleted", LONG, async || {
        find_in(&plane, CRD, None, name).await.map_or(Ok(()), |crd| Err(format!("{crd:#}")))
    })
    .await;
    plane.stop().await;
}
