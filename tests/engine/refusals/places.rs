//! Names, namespaces and metadata that come from a spec cannot reach objects other than the intended ones.

use std::path::Path;

use serde_json::{Value, json};

use super::LONG;
use crate::support::ext::{
    CONFIG_MAP, PLACE, REALM, ROLE, Scene, condition, find_in, list, managers_requests,
};
use crate::support::{self, OPERETTA, eventually, kubectl, kubectl_stdin, plane_of_tests};

fn place(name: &str, spec: Value) -> String {
    json!({"apiVersion": PLACE.api_version(), "kind": "Place", "metadata": {"name": name}, "spec": spec})
        .to_string()
}

async fn scene() -> Scene {
    let scene = Scene::new().await;
    for kind in [PLACE, REALM] {
        let crd = format!("crd/{}.fixtures.operetta.dev", kind.plural);
        eventually(&crd, LONG, async || {
            kubectl(&["wait", "--for=condition=established", "--timeout=60s", &crd]).await.result()
        })
        .await;
    }
    scene
}

/// Names that would change the request if they were put into a path unescaped.
const HOSTILE: [&str; 12] = [
    "kube-root-ca.crt?watch=1",
    "web#",
    "web%2Fproxy",
    "web/proxy",
    ".",
    "..",
    "../../../../api/v1/secrets",
    "a b",
    "a\nb",
    "a\u{7f}",
    "a\u{202e}b",
    "",
];

#[tokio::test]
async fn hostile_names_of_children_and_refs_are_refused_before_any_request() {
    let scene = scene().await;
    let audit = plane_of_tests().await.audit();
    let mark = audit.mark().unwrap();
    for (number, name) in HOSTILE.iter().enumerate() {
        for field in ["config", "service"] {
            scene.apply(&place(&format!("{field}-{number}"), json!({field: name}))).await;
        }
        scene.apply(&place(&format!("ref-{number}"), json!({"ref": name}))).await;
    }
    for (number, name) in HOSTILE.iter().enumerate() {
        for field in ["config", "service"] {
            let words: &[&str] = if name.is_empty() {
                &[field, "metadata.name"]
            } else {
                &[field, "metadata.name", "it must"]
            };
            let message = stalled_place(&scene, &format!("{field}-{number}"), "InvalidChild", words).await;
            assert!(name.len() < 3 || !message.contains(name), "{message}");
        }
        stalled_place(&scene, &format!("ref-{number}"), "InvalidRef", &["refs.other", "its name"]).await;
    }
    let mut asked = managers_requests(&audit, mark);
    asked.retain(|r| {
        r.uri.contains(&format!("/namespaces/{}/", scene.namespace()))
            && r.resource != "places"
            && r.resource != "events"
    });
    assert!(asked.is_empty(), "{}", list(&asked));
}

/// Waits until the instance is stalled for this reason with these words. Returns the message.
async fn stalled_place(scene: &Scene, name: &str, reason: &str, words: &[&str]) -> String {
    let holds = |o: &Value| {
        condition(o, "Stalled")["reason"] == reason
            && o["status"]["observedGeneration"] == o["metadata"]["generation"]
    };
    let instance = scene.until(&format!("Stalled, {reason}"), PLACE, name, holds).await;
    let message = condition(&instance, "Stalled")["message"].as_str().unwrap().to_owned();
    for word in words {
        assert!(message.contains(word), "{word:?} is not in {message}");
    }
    message
}

#[tokio::test]
async fn odd_valid_names_are_one_path_segment() {
    let scene = scene().await;
    // RBAC kinds accept every name that can be a path segment.
    let name = "system:a b?dryRun=All#c&d;e,f=g\\h+é";
    scene.apply_ready(PLACE, "odd", &place("odd", json!({"role": name}))).await;
    let roles = scene.list(ROLE).await;
    assert_eq!(roles.len(), 1);
    assert_eq!(roles[0]["metadata"]["name"], name);
    scene.apply(&place("reader", json!({"roleRef": name}))).await;
    scene.until("the ref is read", PLACE, "reader", |o| o["status"]["role"] == name).await;
    // It is also repaired and deleted under that name.
    scene.kubectl(&["delete", "role", name]).await;
    eventually("the role comes back", LONG, async || {
        if scene.list(ROLE).await.is_empty() { Err("there is none") } else { Ok(()) }
    })
    .await;
    scene.kubectl(&["delete", "places.fixtures.operetta.dev", "odd"]).await;
    eventually("the role is deleted", LONG, async || {
        if scene.list(ROLE).await.is_empty() { Ok(()) } else { Err("it is there") }
    })
    .await;
}

#[tokio::test]
async fn hostile_namespaces_of_cluster_scoped_instances_are_refused() {
    let scene = scene().await;
    let prefix = scene.namespace().to_owned();
    let audit = plane_of_tests().await.audit();
    let mark = audit.mark().unwrap();
    let hostile =
        ["default/configmaps/x?", "default?watch=1", "..", "a b", "default;x", "Default", "a.b", ""];
    let realm = |name: &str, spec: Value| {
        json!({"apiVersion": REALM.api_version(), "kind": "Realm", "metadata": {"name": name}, "spec": spec})
            .to_string()
    };
    for (number, namespace) in hostile.iter().enumerate() {
        kubectl_stdin(
            &["apply", "-f", "-"],
            &realm(&format!("{prefix}-c{number}"), json!({"namespace": namespace})),
        )
        .await
        .ok();
        let spec = json!({"ref": "kube-root-ca.crt", "refNamespace": namespace});
        kubectl_stdin(&["apply", "-f", "-"], &realm(&format!("{prefix}-r{number}"), spec)).await.ok();
    }
    let good = realm(
        &format!("{prefix}-good"),
        json!({"namespace": scene.namespace(), "ref": "kube-root-ca.crt", "refNamespace": "default"}),
    );
    kubectl_stdin(&["apply", "-f", "-"], &good).await.ok();
    let stalled = async |name: String, reason: &str, word: &str| {
        eventually(&format!("{name} is stalled: {reason}"), LONG, async || {
            let object = find_in(&*plane_of_tests().await, REALM, None, &name).await.unwrap();
            let told = condition(&object, "Stalled");
            let message = told["message"].as_str().unwrap_or_default();
            let is = told["reason"] == reason && message.contains(word);
            if is { Ok(()) } else { Err(format!("{:#}", object["status"])) }
        })
        .await;
    };
    for number in 0..hostile.len() {
        stalled(format!("{prefix}-c{number}"), "InvalidChild", "metadata.namespace").await;
        stalled(format!("{prefix}-r{number}"), "InvalidRef", "its namespace").await;
    }
    scene.until("the child of the good one", CONFIG_MAP, &format!("{prefix}-good-there"), |_| true).await;
    let asked = managers_requests(&audit, mark);
    let wrong: Vec<_> = asked
        .iter()
        .filter(|r| {
            r.uri.contains("/namespaces/default")
                && !r.uri.starts_with("/api/v1/namespaces/default/configmaps?")
        })
        // The manager also reads the addresses of the API server, which other tests' packages may not call.
        .filter(|r| !["events", "leases", "endpointslices"].contains(&r.resource.as_str()))
        .filter(|r| r.uri != "/api/v1/namespaces/default/services/kubernetes")
        .cloned()
        .collect();
    assert!(wrong.is_empty(), "{}", list(&wrong));
    kubectl(&["delete", "realms.fixtures.operetta.dev", "--all", "--wait=false"]).await.ok();
}

#[tokio::test]
async fn names_on_the_command_line_are_checked_before_anything_is_asked() {
    let operetta = async |args: &[&str]| support::operetta(Path::new("/nonexistent"), args).await;
    for name in ["a?b", "..", "a%2Fb", "a b", "A"] {
        let target = format!("places/{name}");
        for args in [&["get", "places", name][..], &["tree", "places", name], &["plan", "approve", &target]] {
            let told = operetta(args).await.fails();
            assert!(told.contains("cannot be the name of an instance: it must"), "{args:?}: {told}");
        }
        let of = ["-n", name];
        for args in [&["get", "places"][..], &["tree", "places", "x"], &["plan", "approve", "places/x"]] {
            let told = operetta(&[args, &of].concat()).await.fails();
            assert!(told.contains("cannot be the name of a namespace: it must"), "{args:?}: {told}");
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("instance.yaml");
    for (metadata, word) in [
        (json!({"name": "a/b"}), "the name of an instance"),
        (json!({"name": "a", "namespace": "a?b"}), "the name of a namespace"),
    ] {
        let instance =
            json!({"apiVersion": PLACE.api_version(), "kind": "Place", "metadata": metadata, "spec": {}});
        std::fs::write(&file, instance.to_string()).unwrap();
        let args = ["render", "tests/fixtures/packages/places", "-f", file.to_str().unwrap()];
        let told = operetta(&args).await.fails();
        assert!(told.contains(word), "{told}");
    }
}

#[tokio::test]
async fn a_computed_namespace_must_be_the_instances_own() {
    let scene = scene().await;
    // The template contains `namespace: kube-public`, but not as the namespace of the object.
    scene.apply(&place("public", json!({"variant": "kube-public"}))).await;
    scene.apply(&place("home", json!({"variant": "home"}))).await;
    scene.apply(&place("own", json!({"variant": scene.namespace()}))).await;
    let merged = json!({"merged": {"namespace": "kube-public"}});
    scene.apply(&place("merged", merged)).await;
    let inserted = json!({"inserted": {"name": "inserted", "namespace": "kube-public"}});
    scene.apply(&place("inserted", inserted)).await;
    for name in ["public", "merged", "inserted"] {
        stalled_place(&scene, name, "InvalidChild", &["renders a namespace that is not the instance's"])
            .await;
    }
    for name in ["home", "own"] {
        scene.ready(PLACE, name).await;
        scene.get(CONFIG_MAP, &format!("{name}-variant")).await;
    }
    for name in ["public-variant", "merged-merged", "inserted"] {
        let there = find_in(&*plane_of_tests().await, CONFIG_MAP, Some("kube-public"), name).await;
        assert!(there.is_none(), "{name}");
    }
    // Lint names the remedy.
    let lint = std::process::Command::new(OPERETTA)
        .args(["lint", "tests/fixtures/packages/places"])
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&lint.stdout).into_owned() + &String::from_utf8_lossy(&lint.stderr);
    for word in ["variant.yaml:8", "the namespace is unknown", "only the instance's own namespace is allowed"]
    {
        assert!(told.contains(word), "{word}: {told}");
    }
    assert_eq!(told.matches("the namespace is unknown").count(), 1, "{told}");
}

#[tokio::test]
async fn values_set_only_labels_and_annotations_of_metadata() {
    let scene = scene().await;
    let owner = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "a", "uid": "b"}]);
    let hostile = [
        (json!({"finalizers": ["example.org/canary"]}), "metadata.finalizers from a value"),
        (json!({"ownerReferences": owner}), "metadata.ownerReferences"),
        (json!({"generateName": "canary-"}), "metadata.generateName"),
        (json!({"deletionTimestamp": "2026-01-01T00:00:00Z"}), "metadata.deletionTimestamp"),
        (json!({"managedFields": []}), "metadata.managedFields"),
        (json!({"resourceVersion": "1"}), "metadata.resourceVersion"),
        (json!({"uid": "canary"}), "metadata.uid"),
        (json!({"creationTimestamp": "2026-01-01T00:00:00Z"}), "a field of metadata from a value"),
        (json!({"canary": "canary"}), "a field of metadata from a value"),
        (json!({"labels": {"operetta.dev/instance-uid": "canary"}}), "labels of operetta.dev/*"),
        (json!({"annotations": {"operetta.dev/retained": "canary"}}), "annotations of operetta.dev/*"),
    ];
    for (number, (metadata, _)) in hostile.iter().enumerate() {
        scene.apply(&place(&format!("merged-{number}"), json!({"merged": metadata}))).await;
        let mut whole = metadata.clone();
        whole["name"] = format!("whole-{number}").into();
        scene.apply(&place(&format!("inserted-{number}"), json!({"inserted": whole}))).await;
    }
    for (number, (_, word)) in hostile.iter().enumerate() {
        for way in ["merged", "inserted"] {
            let message =
                stalled_place(&scene, &format!("{way}-{number}"), "InvalidChild", &[way, word]).await;
            assert!(!message.contains("canary"), "{message}");
        }
    }
    assert!(scene.names(CONFIG_MAP).await.is_empty());
    let good = json!({"labels": {"team": "blue"}, "annotations": {"note": "x"}});
    scene.apply_ready(PLACE, "good", &place("good", json!({"merged": good}))).await;
    let object = scene.get(CONFIG_MAP, "good-merged").await;
    assert_eq!(
        (&object["metadata"]["labels"]["team"], &object["metadata"]["annotations"]["note"]),
        (&json!("blue"), &json!("x"))
    );
    // Metadata that the author has written in the template is accepted.
    scene.apply_ready(PLACE, "written", &place("written", json!({"written": true}))).await;
    let object = scene.get(CONFIG_MAP, "written-written").await;
    assert_eq!(object["metadata"]["finalizers"], json!(["example.org/written"]));
    scene.kubectl(&["delete", "places.fixtures.operetta.dev", "written"]).await;
    let holds = |o: &Value| !o["metadata"]["deletionTimestamp"].is_null();
    scene.until("held by its finalizer", CONFIG_MAP, "written-written", holds).await;
    scene.patch(CONFIG_MAP, "written-written", "merge", &json!({"metadata": {"finalizers": null}})).await;
    scene.gone(CONFIG_MAP, "written-written").await;
}
