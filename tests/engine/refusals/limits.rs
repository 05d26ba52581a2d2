//! Names, labels, numbers, sizes and expressions beyond what the API server or Operetta accepts.

use std::time::Duration;

use serde_json::{Value, json};

use super::{edit, requests, requests_of, stalled, trial};
use crate::support::{CONFIG_MAP, DEPLOYMENT, Scene, TRIAL, condition, kubectl_stdin};

/// Row 40 of the table in docs/testing.md: names of 254 characters, a label that is not ASCII, an annotation
/// of more than 256 KiB. Accepted values are stored; refused ones are reported and not retried in a loop.
#[tokio::test]
async fn names_labels_and_annotations_that_the_server_refuses() {
    let scene = Scene::new().await;
    // The name has the greatest length, so that of one child is too long.
    let longest = "n".repeat(253);
    let instance = scene.apply_ready(TRIAL, &longest, &trial(&longest, json!({}))).await;
    let label = &scene.get(CONFIG_MAP, &longest).await["metadata"]["labels"]["operetta.dev/instance"];
    assert!(label.as_str().is_some_and(|label| label.len() <= 63), "{label}");
    assert_eq!(instance["status"]["observedGeneration"], 1);
    let wide = "\u{fc}nicode";
    let cases = [
        (longest.as_str(), json!({"fixed": "1"}), "InvalidChild", &["fixed", "metadata.name"][..]),
        ("wide", json!({"label": wide}), "ApplyRefused", &["config", "metadata.labels"]),
        (
            "noted",
            json!({"text": "x".repeat(257 << 10)}),
            "ApplyRefused",
            &["account", "metadata.annotations"],
        ),
    ];
    futures::future::join_all(cases.iter().map(async |(name, spec, reason, words)| {
        // Client-side apply would keep a second copy in an annotation.
        let applied = ["apply", "--server-side", "--force-conflicts", "-f", "-"];
        scene.kubectl_input(&applied, &trial(name, spec.clone())).await.unwrap();
        let message = stalled(&scene, name, reason, words).await;
        assert!(message.len() < 2_000, "{message}");
    }))
    .await;
    let tried = requests(scene.namespace(), Duration::from_secs(6)).await;
    assert!(tried.len() <= 24, "{}", crate::support::ext::list(&tried));
    assert!(scene.find(CONFIG_MAP, "wide").await.is_none());
    // Other instances are not affected, and corrected ones become Ready.
    scene.apply_ready(TRIAL, "good", &trial("good", json!({}))).await;
    for name in ["wide", "noted"] {
        edit(&scene, name, json!({"label": "plain", "text": "short"})).await;
        scene.ready(TRIAL, name).await;
    }
}

#[tokio::test]
async fn large_numbers_are_exact_or_refused() {
    let scene = Scene::new().await;
    let exact = 1_i64 << 53;
    scene.apply(&trial("n", json!({"number": exact}))).await;
    let object = scene.until("exact", DEPLOYMENT, "n", |_| true).await;
    let spec = |o: &Value| o["spec"]["template"]["spec"]["terminationGracePeriodSeconds"].clone();
    assert_eq!(spec(&object), exact);
    edit(&scene, "n", json!({"number": exact + 1})).await;
    stalled(&scene, "n", "InvalidChild", &["number", "terminationGracePeriodSeconds", "2^53"]).await;
    // No request is needed to find this.
    let asked = requests_of(&scene, "n", Duration::from_secs(4)).await;
    assert!(asked.len() <= 4, "{}", crate::support::ext::list(&asked));
    assert_eq!(spec(&scene.get(DEPLOYMENT, "n").await), exact);
    // The status has the exact number, and so has text.
    scene.until("exact", TRIAL, "n", |o| o["status"]["number"] == exact + 1).await;

    // The reason for the refusal: server-side apply rounds the number.
    let rounded = json!({"apiVersion": TRIAL.api_version(), "kind": "Trial", "metadata": {"name": "raw"},
        "spec": {"number": exact + 1}});
    kubectl_stdin(&["-n", scene.namespace(), "apply", "--server-side", "-f", "-"], &rounded.to_string())
        .await
        .ok();
    eprintln!("server-side apply of {}: {}", exact + 1, scene.get(TRIAL, "raw").await["spec"]["number"]);
}

#[tokio::test]
async fn too_many_children_and_too_large_objects() {
    let scene = Scene::new().await;
    scene.apply(&trial("many", json!({"many": 1001}))).await;
    stalled(&scene, "many", "TooManyChildren", &["many", "1000"]).await;
    scene.apply(&trial("large", json!({"copies": 1600, "text": "x".repeat(1000)}))).await;
    stalled(&scene, "large", "LimitExceeded", &["large", "1048576"]).await;
    // Each character takes six bytes as JSON, so the child is within the limit of templates but not of the
    // server.
    scene.apply(&trial("escaped", json!({"copies": 900, "text": "\u{1}".repeat(1000)}))).await;
    stalled(&scene, "escaped", "ApplyRefused", &["large", "bytes", "split it"]).await;
    let tried = requests(scene.namespace(), Duration::from_secs(5)).await;
    assert!(tried.len() <= 20, "{}", crate::support::ext::list(&tried));
    for name in ["many", "large", "escaped"] {
        assert!(scene.find(CONFIG_MAP, &format!("{name}-large")).await.is_none());
    }
    scene.apply_ready(TRIAL, "good", &trial("good", json!({}))).await;
}

#[tokio::test]
async fn failing_expressions_are_reported() {
    let scene = Scene::new().await;
    scene.apply(&trial("when", json!({"size": 1}))).await;
    stalled(&scene, "when", "RenderFailed", &["doubtful", "operator.yaml", "int"]).await;
    let asked = requests_of(&scene, "when", Duration::from_secs(4)).await;
    assert!(asked.len() <= 4, "{}", crate::support::ext::list(&asked));
    // The other children exist, and a corrected instance becomes Ready.
    scene.until("there", CONFIG_MAP, "when", |_| true).await;
    edit(&scene, "when", json!({"text": "1"})).await;
    scene.ready(TRIAL, "when").await;

    // If `paused` cannot be evaluated, the instance counts as paused.
    edit(&scene, "when", json!({"pause": "many", "text": "2"})).await;
    stalled(&scene, "when", "PausedFailed", &["paused", "nothing is written"]).await;
    assert_eq!(scene.get(CONFIG_MAP, "when").await["data"]["text"], "1");
    edit(&scene, "when", json!({"pause": "1"})).await;
    scene.until("resumed", CONFIG_MAP, "when", |o| o["data"]["text"] == "2").await;
}

#[tokio::test]
async fn a_status_that_is_too_large_is_shortened() {
    let scene = Scene::new().await;
    scene.apply(&trial("big", json!({"shown": 60_000}))).await;
    let told = |o: &Value| condition(o, "StatusTruncated")["status"] == "True";
    let big = scene.until("StatusTruncated", TRIAL, "big", told).await;
    assert!(big["status"].to_string().len() < 256 << 10);
    let message = condition(&big, "StatusTruncated")["message"].as_str().unwrap();
    assert!(message.contains("status.shown") && message.contains("of 60000 items"), "{message}");
    scene.ready(TRIAL, "big").await;
    assert_eq!(big["status"]["text"], "hello");
    edit(&scene, "big", json!({"shown": 3})).await;
    scene.until("whole again", TRIAL, "big", |o| o["status"]["shown"] == json!([0, 1, 2]) && !told(o)).await;
}
