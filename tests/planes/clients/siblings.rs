//! Commands in children of other instances of a package, while somebody forges pods.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::kubectl::Kubectl;
use crate::support::dev::{dev, end};
use crate::support::{LONG, Operetta, copy_folder, eventually};

const SERVER: &str = "examples/packages/sql/instances/main.yaml";

/// The package with a world that notes the pods in which `sql write` has been run.
fn package() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    copy_folder(Path::new("examples/packages/sql"), folder.path(), &std::convert::identity);
    let world = folder.path().join("tests/world.yaml");
    let text = fs::read_to_string(&world).unwrap();
    let noted = "exec:\n- {command: [ran], stdout: \"{{ shared.ran | join(' ') }}\"}\n\
                 - {command: [sql, write, ...], when: pod.metadata.name not in shared.ran, exitCode: 9, do: [{add: shared.ran, item: \
                 \"{{ pod.metadata.name }}\"}]}\n";
    let text = text.replacen("exec:\n", noted, 1).replacen("state:\n", "shared: {ran: []}\nstate:\n", 1);
    fs::write(world, text).unwrap();
    folder
}

/// A copy of the first member under another name, as a tenant who may create pods can make it.
async fn forged(kubectl: &Kubectl, name: &str) -> String {
    let real: Value = serde_json::from_str(&kubectl.says("get pod main-0 -o json", "", &[]).await).unwrap();
    let mut meta = real["metadata"].clone();
    for field in ["uid", "resourceVersion", "creationTimestamp", "generation", "managedFields"] {
        meta.as_object_mut().unwrap().remove(field);
    }
    meta["name"] = name.into();
    let containers = json!([{"name": "sql", "image": "registry.example.com/evil"}]);
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"containers": containers}})
        .to_string()
}

async fn started(folder: &Path, temporary: &Path) -> (Operetta, Kubectl) {
    let mut dev = dev(&[folder.to_str().unwrap(), "--apply", SERVER, "--plain"], temporary);
    dev.wait_for("sqlservers/default/main: Ready", LONG).await;
    let kubectl = Kubectl::of(&dev).await;
    (dev, kubectl)
}

const DATABASE: &str =
    "apply -f examples/packages/sql/instances/shop.yaml -f examples/packages/sql/secrets/password.yaml";

#[tokio::test]
async fn a_pod_with_the_labels_of_a_member_gets_no_command() {
    let (folder, temporary) = (package(), tempfile::tempdir().unwrap());
    let (dev, kubectl) = started(folder.path(), temporary.path()).await;
    // The server is paused, so that the forged pod is not deleted as one of its surplus children. It comes first by its name.
    kubectl.says("annotate sqlserver main operetta.dev/paused=true", "", &["annotated"]).await;
    let pod = forged(&kubectl, "a-main").await;
    kubectl
        .says("apply --server-side --field-manager=operetta/sql -f -", &pod, &["serverside-applied"])
        .await;
    kubectl.says("wait --for=condition=Ready pod/a-main --timeout=300s", "", &["condition met"]).await;
    kubectl.says(DATABASE, "", &["sqldatabase", "created"]).await;
    kubectl.says("wait --for=condition=Ready sqldatabase/shop --timeout=300s", "", &["condition met"]).await;
    let ran = kubectl.says("exec main-0 -- ran", "", &[]).await;
    assert_eq!(ran.trim(), "main-0");
    kubectl.says("annotate sqlserver main operetta.dev/paused-", "", &["annotated"]).await;
    end(dev, temporary.path()).await;
}

#[tokio::test]
async fn a_pod_in_the_place_of_a_member_gets_no_command() {
    let (folder, temporary) = (package(), tempfile::tempdir().unwrap());
    let (dev, kubectl) = started(folder.path(), temporary.path()).await;
    kubectl.says("annotate sqlserver main operetta.dev/paused=true", "", &["annotated"]).await;
    let pod = forged(&kubectl, "main-0").await;
    kubectl.says("delete pod main-0", "", &["deleted"]).await;
    kubectl.says("create -f -", &pod, &["created"]).await;
    kubectl.says("wait --for=condition=Ready pod/main-0 --timeout=300s", "", &["condition met"]).await;
    kubectl.says(DATABASE, "", &["sqldatabase", "created"]).await;
    eventually("the database to say what it waits for", LONG, async || {
        let line = "get sqldatabase shop -o jsonpath={.status.conditions[?(@.type=='Ready')].message}";
        let told = kubectl.says(line, "", &[]).await;
        let is_told = told.contains("step write: members[0] of refs.server does not exist");
        if is_told { Ok(()) } else { Err(told) }
    })
    .await;
    let ran = kubectl.says("exec main-1 -- ran", "", &[]).await;
    assert_eq!(ran.trim(), "");
    // The server goes on: its own pod takes the place.
    kubectl.says("delete pod main-0", "", &["deleted"]).await;
    kubectl.says("annotate sqlserver main operetta.dev/paused-", "", &["annotated"]).await;
    kubectl.says("wait --for=condition=Ready sqldatabase/shop --timeout=300s", "", &["condition met"]).await;
    end(dev, temporary.path()).await;
}
