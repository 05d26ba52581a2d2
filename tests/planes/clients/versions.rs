//! Several versions of a CRD on `operetta dev`: kubectl reads and writes instances in each.

use serde_json::{Value, json};

use super::kubectl::Kubectl;
use crate::support::dev::{dev, end};
use crate::support::ext::{LONG, put_file};

const PACKAGE: &str = "apiVersion: operetta.dev/v1alpha1
kind: OperatorPackage
metadata: {name: sizes}
spec:
  version: 0.1.0
  resources:
  - crd: crds/size.yaml
    conversion:
      versions:
        v1alpha1:
        - {move: spec.replicas, to: spec.size}
        - {default: spec.mode, value: fast}
        - {keep: spec.note}
    children:
    - {id: config, template: templates/config.yaml}
";
const CONFIG: &str =
    "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: \"{{ name }}\"}\ndata: {value: \"{{ spec.size }}\"}\n";

/// The CRD, with another schema in each version.
fn crd() -> String {
    let version = |name: &str, storage: bool, fields: Value| {
        json!({"name": name, "served": true, "storage": storage, "schema": {"openAPIV3Schema": {"type": "object",
            "properties": {"spec": {"type": "object", "properties": fields}}}}})
    };
    let (text, number) = (json!({"type": "string"}), json!({"type": "integer"}));
    let old = version("v1alpha1", false, json!({"replicas": number, "note": text}));
    let mode = json!({"type": "string", "enum": ["fast", "safe"]});
    let new = version("v1", true, json!({"size": number, "mode": mode}));
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "sizes.example.org"}, "spec": {"group": "example.org", "scope": "Namespaced",
        "names": {"kind": "Size", "plural": "sizes", "singular": "size", "listKind": "SizeList"},
        "versions": [old, new]}})
    .to_string()
}

fn size(name: &str, spec: &Value) -> String {
    json!({"apiVersion": "example.org/v1alpha1", "kind": "Size", "metadata": {"name": name}, "spec": spec})
        .to_string()
}

#[tokio::test]
async fn instances_are_read_and_written_in_both_versions() {
    let (temporary, package) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for (file, text) in [
        ("operator.yaml", PACKAGE.to_owned()),
        ("crds/size.yaml", crd()),
        ("templates/config.yaml", CONFIG.to_owned()),
    ] {
        put_file(&package.path().join(file), text);
    }
    let first = temporary.path().join("first.yaml");
    std::fs::write(&first, size("a", &json!({"replicas": 3, "note": "kept"}))).unwrap();
    let args = [package.path().to_str().unwrap(), "--apply", first.to_str().unwrap(), "--plain"];
    let mut dev = dev(&args, temporary.path());
    dev.wait_for("sizes/default/a: Ready", LONG).await;
    std::fs::remove_file(&first).unwrap();
    let kubectl = Kubectl::of(&dev).await;
    let spec = async |version: &str, name: &str| -> Value {
        let said = kubectl.says(&format!("get sizes.{version}.example.org {name} -o json"), "", &[]).await;
        serde_json::from_str::<Value>(&said).unwrap()["spec"].take()
    };
    assert_eq!(spec("v1", "a").await, json!({"size": 3, "mode": "fast"}));
    assert_eq!(spec("v1alpha1", "a").await, json!({"replicas": 3, "note": "kept"}));
    // What one version lacks survives writes in it, whichever way they are made.
    let patch = "patch sizes.v1.example.org a --type=merge -p {\"spec\":{\"mode\":\"safe\"}}";
    kubectl.says(patch, "", &["patched"]).await;
    for (number, flags) in [(4, ""), (5, " --server-side --force-conflicts")] {
        let text = size("a", &json!({"replicas": number, "note": "kept"}));
        kubectl.says(&format!("apply{flags} -f -"), &text, &["size.example.org/a"]).await;
        assert_eq!(spec("v1", "a").await, json!({"size": number, "mode": "safe"}));
        assert_eq!(spec("v1alpha1", "a").await, json!({"replicas": number, "note": "kept"}));
        let line = format!("wait --for=jsonpath={{.data.value}}={number} configmap/a --timeout=300s");
        kubectl.says(&line, "", &["condition met"]).await;
    }
    kubectl.says("get sizes.v1alpha1.example.org", "", &["NAME", "READY", "a"]).await;
    let stored = "get crd sizes.example.org -o jsonpath={.status.storedVersions}";
    kubectl.says(stored, "", &["[\"v1\"]"]).await;
    kubectl.says("delete sizes.v1alpha1.example.org a", "", &["deleted"]).await;
    end(dev, temporary.path()).await;
}
