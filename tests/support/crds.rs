//! Packages of the group `crds.example.org` that tests of CRDs write, and what they read of the CRDs.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use super::{CRD, Kind, LONG, OPERETTA, Scene, condition, eventually, find_in, kubectl, plane_of_tests};

/// The text of a CRD.
pub fn crd(plural: &str, kind: &str, version: &str) -> String {
    super::crd::crd("crds.example.org", plural, kind, version)
}

/// The rest of a CRD version: a schema whose spec has these fields.
pub fn schema(fields: &str) -> String {
    format!(
        "schema: {{openAPIV3Schema: {{type: object, properties: {{spec: {{type: object, properties: {{{fields}}}}}}}}}}}"
    )
}

/// The field of most kinds.
pub const SIZE: &str = "size: {type: integer, default: 1}";

/// The template of a child that shows a value of the spec.
pub fn config(value: &str) -> String {
    format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: \"{{{{ name }}}}\"}}\ndata: {{value: \"{{{{ {value} }}}}\"}}\n"
    )
}

/// Writes a package with one resource and these children. Returns its folder.
pub fn package(root: &Path, name: &str, crd: &str, adopt: bool, children: &[&str]) -> String {
    let folder = root.join(name);
    std::fs::create_dir_all(folder.join("crds")).expect("a folder");
    std::fs::create_dir_all(folder.join("templates")).expect("a folder");
    std::fs::write(folder.join("crds/crd.yaml"), crd).expect("a file");
    let mut manifest = format!(
        "apiVersion: operetta.dev/v1alpha1
kind: OperatorPackage
metadata: {{name: {name}}}
spec:
  version: 0.1.0
  resources:
    - crd: crds/crd.yaml
      adopt: {adopt}
      children:
"
    );
    for (index, child) in children.iter().enumerate() {
        std::fs::write(folder.join(format!("templates/c{index}.yaml")), child).expect("a file");
        let after = if index == 0 { String::new() } else { format!(", dependsOn: [c{}]", index - 1) };
        let _ = writeln!(manifest, "        - {{id: c{index}, template: templates/c{index}.yaml{after}}}");
    }
    std::fs::write(folder.join("operator.yaml"), manifest).expect("a file");
    folder.to_str().expect("text").to_owned()
}

/// A CRD with these versions: name, whether it is the storage version, and the fields of its spec.
pub fn versions(plural: &str, kind: &str, versions: &[(&str, bool, Value)]) -> String {
    let versions: Vec<Value> = versions
        .iter()
        .map(|(name, storage, fields)| {
            json!({
                "name": name, "served": true, "storage": storage,
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                    "spec": {"type": "object", "properties": fields},
                }}},
            })
        })
        .collect();
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.crds.example.org")},
        "spec": {
            "group": "crds.example.org", "scope": "Namespaced",
            "names": {
                "kind": kind, "plural": plural, "singular": kind.to_lowercase(), "listKind": format!("{kind}List"),
            },
            "versions": versions,
        },
    })
    .to_string()
}

/// An instance of a kind of the group.
pub fn instance(kind: &str, name: &str, spec: &Value) -> String {
    json!({"apiVersion": "crds.example.org/v1", "kind": kind, "metadata": {"name": name}, "spec": spec})
        .to_string()
}

/// Runs a command of `operetta` that needs no cluster, and must neither fail nor warn. Returns its output.
pub fn operetta(args: &[&str]) -> String {
    let output = Command::new(OPERETTA).args(args).env("NO_COLOR", "1").output().expect("operetta runs");
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    let stdout = String::from_utf8(output.stdout).expect("text");
    assert!(output.status.success() && told.is_empty(), "{args:?}: {told}{stdout}");
    stdout
}

/// The CRD of a kind of the group.
pub async fn live(plural: &str) -> Option<Value> {
    find_in(&*plane_of_tests().await, CRD, None, &format!("{plural}.crds.example.org")).await
}

/// Whether the first version of a CRD has a status, which authors leave out.
pub fn has_status(crd: &Value) -> bool {
    crd["spec"]["versions"][0]["subresources"]["status"].is_object()
}

/// Waits until a CRD exists and `holds` is true of it.
pub async fn until_crd(plural: &str, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
    eventually(&format!("the CRD {plural}: {what}"), LONG, async || match live(plural).await {
        Some(crd) if holds(&crd) => Ok(crd),
        Some(mut crd) => {
            crd["metadata"]["managedFields"].take();
            Err(format!("{crd:#}"))
        }
        None => Err("there is none".to_owned()),
    })
    .await
}

/// Waits until the CRD has these versions and these stored versions.
pub async fn until_versions(plural: &str, versions: &[&str], stored: &[&str]) {
    let holds = |crd: &Value| {
        let all = crd["spec"]["versions"].as_array().into_iter().flatten();
        let names: Vec<&str> = all.filter_map(|version| version["name"].as_str()).collect();
        names == versions && crd["status"]["storedVersions"] == json!(stored)
    };
    until_crd(plural, &format!("the versions {versions:?}, stored {stored:?}"), holds).await;
}

/// Waits for an Event about the CRD with this reason. Returns its message.
pub async fn until_event(plural: &str, reason: &str) -> String {
    let name = format!("{plural}.crds.example.org");
    eventually(&format!("the Event {reason} of the CRD {plural}"), LONG, async || {
        let events = kubectl(&["get", "events", "-n", "default", "-o", "json"]).await.ok();
        let events: Value = serde_json::from_str(&events).expect("JSON");
        let mut events = events["items"].as_array().into_iter().flatten();
        let found = events.find(|e| e["reason"] == reason && e["involvedObject"]["name"] == *name);
        found.and_then(|event| event["message"].as_str()).map(str::to_owned).ok_or("none")
    })
    .await
}

/// Waits until an instance reports that its package is not active. Returns the message.
pub async fn not_loaded(scene: &Scene, kind: Kind, name: &str, words: &[&str]) -> String {
    let holds = |o: &Value| {
        let (ready, stalled) = (condition(o, "Ready"), condition(o, "Stalled"));
        let message = ready["message"].as_str().unwrap_or_default();
        ready["status"] == "Unknown"
            && ready["reason"] == "PackageNotLoaded"
            && stalled["status"] == "True"
            && words.iter().all(|word| message.contains(word))
    };
    let object = scene.until("PackageNotLoaded", kind, name, holds).await;
    condition(&object, "Ready")["message"].as_str().expect("a message").to_owned()
}
