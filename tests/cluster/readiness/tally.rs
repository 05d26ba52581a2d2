//! Tests with `tests/fixtures/packages/tally`: fields that a controller omits from a status, children whose
//! mark outlives a policy, Jobs that are swept, and refusals with different causes.

use std::path::Path;

use serde_json::{Value, json};

use crate::support::{
    CONFIG_MAP, DEPLOYMENT, JOB, Kind, LONG, Operetta, Scene, VOLUME_CLAIM, condition, copy_folder,
    eventually, fixture, is_ready, kind, managers_requests, plane, run_flags, uid_of,
};

const TALLY: Kind = kind("fixtures.operetta.dev/v1", "tallies");
const LEASE: [&str; 2] = ["--leader-elect-resource-name", "tally"];

fn tally(name: &str, spec: &Value) -> String {
    json!({"apiVersion": TALLY.api_version(), "kind": "Tally", "metadata": {"name": name}, "spec": spec})
        .to_string()
}

async fn start(package: &str) -> Operetta {
    run_flags(plane().await, &LEASE, &[package]).watching(1).await
}

/// Writes a copy of the package with one text replaced. Returns its folder.
fn variant(folder: &tempfile::TempDir, from: &str, to: &str) -> String {
    copy_folder(Path::new(&fixture("tally")), folder.path(), &|text| text.replace(from, to));
    folder.path().to_str().unwrap().to_owned()
}

fn says(kind: &'static str, words: &'static [&'static str]) -> impl Fn(&Value) -> bool {
    move |object| {
        let told = condition(object, kind).to_string();
        words.iter().all(|word| told.contains(word))
    }
}

async fn edit(scene: &Scene, name: &str, spec: Value) {
    scene.patch(TALLY, name, "merge", &json!({"spec": spec})).await;
}

/// One test for all cases, because the last two restart the manager of the package.
#[tokio::test]
async fn absent_fields_kept_children_swept_jobs_and_refusals() {
    let scene = Scene::unmanaged().await;
    let manager = start("tally").await;
    tokio::join!(
        a_number_that_is_left_out_decides_nothing(&scene),
        a_person_keeps_an_owned_child(&scene),
        an_invalid_limit_is_reported(&scene),
        refusals_are_told_apart(&scene),
    );
    let manager = a_swept_job_is_done(&scene, manager).await;
    marks_do_not_outlive_their_policy(&scene, manager).await;
}

/// A controller omits `readyReplicas` when there are none: the expression that reads it is unknown.
async fn a_number_that_is_left_out_decides_nothing(scene: &Scene) {
    scene.apply(&tally("count", &json!({"replicas": 1}))).await;
    scene.until("1 ready", DEPLOYMENT, "count", |o| o["status"]["readyReplicas"] == 1).await;
    let holds = |o: &Value| is_ready(o) && condition(o, "Full")["status"] == "False";
    scene.until("not full", TALLY, "count", holds).await;
    edit(scene, "count", json!({"replicas": 2})).await;
    let full = scene.until("there", CONFIG_MAP, "count-full", |_| true).await;
    scene.until("full", TALLY, "count", |o| condition(o, "Full")["status"] == "True").await;
    edit(scene, "count", json!({"replicas": 0})).await;
    scene.until("left out", DEPLOYMENT, "count", |o| o["status"].get("readyReplicas").is_none()).await;
    let unknown = says("Ready", &["DependencyUnknown", "children.web.status.readyReplicas", "default("]);
    scene.until("told", TALLY, "count", |o| unknown(o) && condition(o, "Full")["status"] == "Unknown").await;
    // The manager has evaluated the missing number and has not deleted the child.
    assert_eq!(uid_of(&scene.get(CONFIG_MAP, "count-full").await), uid_of(&full));
    edit(scene, "count", json!({"replicas": 1})).await;
    scene.gone(CONFIG_MAP, "count-full").await;
}

/// The annotation `operetta.dev/retained` keeps a child that its owner would otherwise take with it.
async fn a_person_keeps_an_owned_child(scene: &Scene) {
    let owners = |o: &Value| o["metadata"]["ownerReferences"].as_array().map_or(0, Vec::len);
    for name in ["kept", "given"] {
        scene.apply_ready(TALLY, name, &tally(name, &json!({"plain": true}))).await;
        let child = format!("{name}-plain");
        assert_eq!(owners(&scene.get(CONFIG_MAP, &child).await), 1);
        scene.kubectl(&["annotate", "configmap", &child, "operetta.dev/retained=true"]).await;
        scene.until("nobody's to collect", CONFIG_MAP, &child, |o| owners(o) == 0).await;
    }
    // The child is still repaired.
    edit(scene, "kept", json!({"text": "new"})).await;
    scene.until("changed", CONFIG_MAP, "kept-plain", |o| o["data"]["text"] == "new").await;
    scene.kubectl(&["annotate", "configmap", "given-plain", "operetta.dev/retained-"]).await;
    scene.until("owned again", CONFIG_MAP, "given-plain", |o| owners(o) == 1).await;
    for name in ["kept", "given"] {
        scene.kubectl(&["delete", "tally", name]).await;
        scene.gone(TALLY, name).await;
    }
    // The garbage collector handles both alike: once it has deleted the one, the other is known to stay.
    scene.gone(CONFIG_MAP, "given-plain").await;
    let kept = scene.get(CONFIG_MAP, "kept-plain").await;
    assert_eq!(kept["metadata"]["annotations"]["operetta.dev/retained"], "true");
    assert!(kept["metadata"]["deletionTimestamp"].is_null());
}

/// A limit in the spec that is not a number is reported.
async fn an_invalid_limit_is_reported(scene: &Scene) {
    scene.apply_ready(TALLY, "limit", &tally("limit", &json!({"parts": 2}))).await;
    edit(scene, "limit", json!({"limit": "some", "text": "new"})).await;
    let told = says("Stalled", &["InvalidMaxUnavailable", "maxUnavailable of part", "neither a number"]);
    scene.until("told", TALLY, "limit", told).await;
    assert_eq!(scene.get(CONFIG_MAP, "limit-part-0").await["data"]["text"], "");
    edit(scene, "limit", json!({"limit": "50%"})).await;
    scene.ready(TALLY, "limit").await;
    assert_eq!(scene.get(CONFIG_MAP, "limit-part-1").await["data"]["text"], "new");
}

/// Refusals of a quantity and of a claim's size have different reasons.
async fn refusals_are_told_apart(scene: &Scene) {
    scene.apply(&tally("cpu", &json!({"replicas": 0, "cpu": "1zz"}))).await;
    scene
        .until("told", TALLY, "cpu", says("Stalled", &["ApplyRefused", "web", "quantities must match"]))
        .await;
    edit(scene, "cpu", json!({"cpu": "1"})).await;
    scene.until("there", DEPLOYMENT, "cpu", |_| true).await;

    scene.apply(&tally("disk", &json!({"storage": "1Gi"}))).await;
    let claim = scene.until("there", VOLUME_CLAIM, "disk", |_| true).await;
    // Mark the claim as bound to a volume that cannot be resized.
    let bound = json!({"status": {"phase": "Bound"}}).to_string();
    let args =
        ["patch", "persistentvolumeclaim", "disk", "--subresource=status", "--type=merge", "-p", &bound];
    scene.kubectl(&args).await;
    edit(scene, "disk", json!({"storage": "2Gi"})).await;
    let refused = scene
        .until(
            "told",
            TALLY,
            "disk",
            says("Stalled", &["claim", "only dynamically provisioned pvc can be resized"]),
        )
        .await;
    assert_eq!(condition(&refused, "Stalled")["reason"], "ResizeRefused");
    assert_eq!(uid_of(&scene.get(VOLUME_CLAIM, "disk").await), uid_of(&claim));
}

/// The Job's TTL is 0, so it is deleted as soon as it has ended.
async fn a_swept_job_is_done(scene: &Scene, manager: Operetta) -> Operetta {
    let audit = plane().await.audit();
    let mark = audit.mark().unwrap();
    let runs = || {
        let mut requests = managers_requests(&audit, mark);
        requests.retain(|r| {
            r.resource == "jobs"
                && r.code == 201
                && r.uri.contains(scene.namespace())
                && !r.uri.contains("dryRun")
        });
        requests.len()
    };
    scene.apply_ready(TALLY, "job", &tally("job", &json!({"job": "work"}))).await;
    scene.gone(JOB, "job").await;
    // The manager has seen the Job end and the instance is Ready: a decision after this edit knows that.
    edit(scene, "job", json!({"plain": true, "text": "after"})).await;
    scene.until("made", CONFIG_MAP, "job-plain", |_| true).await;
    scene.ready(TALLY, "job").await;
    assert_eq!(runs(), 1, "it ran again");
    // A restarted manager knows it as well.
    drop(manager);
    let manager = start("tally").await;
    edit(scene, "job", json!({"text": "restarted"})).await;
    scene.until("changed", CONFIG_MAP, "job-plain", |o| o["data"]["text"] == "restarted").await;
    scene.ready(TALLY, "job").await;
    assert_eq!(runs(), 1, "it ran again after a restart");
    // A changed spec is another Job.
    edit(scene, "job", json!({"job": "more"})).await;
    eventually("the second run", LONG, async || if runs() == 2 { Ok(()) } else { Err(runs()) }).await;
    scene.gone(JOB, "job").await;
    scene.ready(TALLY, "job").await;
    assert_eq!(runs(), 2);
    manager
}

/// The annotations `operetta.dev/retained` and `operetta.dev/deletion-pending` are removed when the policy no
/// longer asks for them.
async fn marks_do_not_outlive_their_policy(scene: &Scene, manager: Operetta) {
    drop(manager);
    let mark = |name: &str| format!("operetta.dev/{name}");
    for (policy, noted) in [("Retain", "retained"), ("Ask", "deletion-pending")] {
        let folder = tempfile::tempdir().unwrap();
        let plain = "{id: plain, template: templates/plain.yaml, when: spec.plain}";
        let other = plain.replace('}', &format!(", deletionPolicy: {policy}}}"));
        // Add a misspelt kind that nothing serves.
        let misspelt = "\n        - {id: misspelt, template: templates/misspelt.yaml, when: spec.misspelt}";
        let package = variant(&folder, plain, &(other + misspelt));
        let template = "apiVersion: fixtures.operetta.dev/v1\nkind: Taly\nmetadata: {name: \"{{ name }}\"}\n";
        std::fs::write(folder.path().join("templates/misspelt.yaml"), template).unwrap();
        let manager = start(&package).await;
        scene.apply(&tally("kind", &json!({"misspelt": true}))).await;
        let meant =
            says("Stalled", &["KindMissing", "Taly of fixtures.operetta.dev/v1", "did you mean Tally"]);
        scene.until("told", TALLY, "kind", meant).await;
        scene.kubectl(&["delete", "tally", "kind"]).await;
        let name = policy.to_lowercase();
        let child = format!("{name}-plain");
        scene.apply_ready(TALLY, &name, &tally(&name, &json!({"plain": true}))).await;
        edit(scene, &name, json!({"plain": false})).await;
        let is_noted = |o: &Value| o["metadata"]["annotations"][mark(noted)] == "true";
        let before = scene.until("noted", CONFIG_MAP, &child, is_noted).await;
        drop(manager);
        // The package would delete the child now, but the spec wants it again first.
        let manager = start("tally").await;
        edit(scene, &name, json!({"plain": true})).await;
        let is_free = |o: &Value| o["metadata"]["annotations"].get(mark(noted)).is_none();
        let after = scene.until("free of the mark", CONFIG_MAP, &child, is_free).await;
        assert_eq!(uid_of(&before), uid_of(&after));
        scene.ready(TALLY, &name).await;
        edit(scene, &name, json!({"plain": false})).await;
        scene.gone(CONFIG_MAP, &child).await;
        drop(manager);
    }
}
