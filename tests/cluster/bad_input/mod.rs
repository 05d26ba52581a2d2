//! Invalid input of all kinds: each mistake is reported with its place and a remedy, the exit code is not 0, nothing is
//! applied in part, and no other package or instance is affected.

mod generated;
mod limits;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::support::{
    BROKEN_RENDER, CONFIG_MAP, CRD, ControlPlane, ECHO, LIGHT, LONG, OPERETTA, SERVICE, Scene, condition,
    eventually, file, find_in, fixture, kubectl_of, options, read, run,
};
use operetta::local::Options;
use serde_json::{Value, json};

/// A package with one mistake: a row of the table in the fixtures' README.
struct Broken {
    package: String,
    /// `file:line`, if the mistake can be found without a cluster.
    place: Option<String>,
    /// Whether the mistake is only a warning and the package works.
    is_warning: bool,
    /// Whether the package loads, because only `lint` finds the mistake.
    loads: bool,
}

fn table() -> Vec<Broken> {
    let readme = file("tests/fixtures/packages/README.md");
    let rows = readme.lines().filter_map(|line| {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let package = cells.get(1)?.strip_prefix("`broken-")?.strip_suffix('`')?;
        let place = cells.get(2)?;
        let loads = place.contains("the package loads");
        let is_seen = !loads || place.contains("by `lint`");
        let place = place.split(',').next()?;
        Some(Broken {
            package: format!("broken-{package}"),
            place: (place.contains(':') && is_seen).then(|| place.to_owned()),
            is_warning: cells.get(3)?.contains("a warning"),
            loads,
        })
    });
    let rows: Vec<Broken> = rows.collect();
    let folders = std::fs::read_dir("tests/fixtures/packages").unwrap();
    let folders =
        folders.filter(|e| e.as_ref().unwrap().file_name().to_string_lossy().starts_with("broken-"));
    assert_eq!(rows.len(), folders.count(), "each broken package has a row in the README");
    rows
}

fn operetta(args: &[&str], kubeconfig: &Path) -> Output {
    Command::new(OPERETTA)
        .args(args)
        .env("KUBECONFIG", kubeconfig)
        .env("NO_COLOR", "1")
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

#[test]
fn lint_names_the_place_of_each_mistake() {
    for broken in table() {
        let folder = fixture(&broken.package);
        let output = operetta(&["lint", &folder, "-o", "json"], Path::new("/nonexistent"));
        let Some(place) = &broken.place else {
            assert_eq!(output.status.code(), Some(0), "{folder}: {}", text(&output));
            continue;
        };
        let expected = i32::from(!broken.is_warning);
        assert_eq!(output.status.code(), Some(expected), "{folder}: {}", text(&output));
        let findings: Value = serde_json::from_slice(&output.stdout).unwrap();
        // Notes are about valid parts of the package.
        let findings: Vec<&Value> =
            findings.as_array().unwrap().iter().filter(|found| found["severity"] != "note").collect();
        let severity = if broken.is_warning { "warning" } else { "error" };
        let found = findings.iter().any(|f| {
            let here = format!("{}:{}", f["file"].as_str().unwrap_or_default(), f["line"]);
            f["severity"] == severity && here.ends_with(place.as_str())
        });
        assert!(found, "{folder}: {place} is not in {findings:#?}");
        assert_eq!(findings.len(), 1, "{folder}: one mistake is one finding: {findings:#?}");
        // The remedy is in the help, or obvious.
        assert!(findings.iter().all(|f| !f["message"].as_str().unwrap_or_default().is_empty()));

        let strict = operetta(&["lint", &folder, "--strict"], Path::new("/nonexistent"));
        assert_eq!(strict.status.code(), Some(1), "{folder}: {}", text(&strict));
        assert!(text(&strict).contains(place.as_str()), "{folder}: {place} is not in {}", text(&strict));
    }
}

#[test]
fn missing_files_and_api_servers_are_reported() {
    let nowhere = tempfile::tempdir().unwrap();
    let missing = nowhere.path().join("missing");
    let missing = missing.to_str().unwrap();
    let empty = nowhere.path().to_str().unwrap();
    let good = fixture("echo");
    let garbage = nowhere.path().join("kubeconfig");
    std::fs::write(&garbage, "a: [").unwrap();
    let absent = nowhere.path().join("absent");
    let manifest = nowhere.path().join("instance.yaml");
    std::fs::write(&manifest, "apiVersion: v1\nkind: [\n").unwrap();
    let manifest = manifest.to_str().unwrap();
    let refused = nowhere.path().join("refused");
    let nobody = "apiVersion: v1\nkind: Config\ncurrent-context: a\ncontexts: [{name: a, context: {cluster: a, user: a}}]\nclusters: [{name: a, cluster: {server: 'http://127.0.0.1:9'}}]\nusers: [{name: a, user: {}}]\n";
    std::fs::write(&refused, nobody).unwrap();
    let cases: [(&[&str], &Path, i32, &[&str]); 11] = [
        (&["lint", missing], &absent, 2, &["missing"]),
        (&["lint", empty], &absent, 2, &["operator.yaml"]),
        (&["run", missing], &refused, 1, &["missing"]),
        (&["run", empty], &refused, 1, &["operator.yaml"]),
        (&["run", &good], &absent, 1, &["absent"]),
        (&["run", &good], &garbage, 1, &["kubeconfig"]),
        (&["run", &good], &refused, 1, &["API server"]),
        (&["run", "--unknown"], &absent, 2, &["--unknown"]),
        (&["dev"], &absent, 2, &["PACKAGE"]),
        (&["dev", &good, "--apply", missing], &absent, 1, &["missing", "cannot be read"]),
        (&["dev", &good, "--apply", manifest], &absent, 1, &["instance.yaml:"]),
    ];
    for (args, kubeconfig, code, words) in cases {
        let output = operetta(args, kubeconfig);
        let told = text(&output);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {told}");
        for word in words {
            assert!(told.contains(word), "{args:?}: {word:?} is not in {told}");
        }
        assert!(!told.contains("panicked"), "{args:?}: {told}");
    }
}

async fn crds(plane: &ControlPlane) -> Vec<String> {
    let list = read(&plane.client().unwrap(), "/apis/apiextensions.k8s.io/v1/customresourcedefinitions")
        .await
        .unwrap();
    list["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|o| o["metadata"]["name"].as_str().unwrap().to_owned())
        .collect()
}

#[tokio::test]
async fn broken_package_applies_nothing_and_others_work() {
    let plane = ControlPlane::start(Options { nodes: 0, ..options() }).await.unwrap();
    for broken in table() {
        let folder = fixture(&broken.package);
        let is_broken = !broken.is_warning && broken.package != "broken-render";
        if !is_broken {
            continue;
        }
        let mut manager = run(&plane, &[&folder]);
        let status = manager.wait(LONG).await;
        let told = manager.output();
        assert_eq!(status.code(), Some(1), "{folder}: {told}");
        let place = broken.place.filter(|_| !broken.loads).unwrap_or_else(|| "crds/broken.yaml".to_owned());
        assert!(told.contains(&place), "{folder}: {place} is not in {told}");
        assert_eq!(crds(&plane).await, [""; 0], "{folder} has left something");
    }
    let refused = run_to_end(&plane, &fixture("broken-crd-cel")).await;
    for words in
        ["brokencrdcels.fixtures.operetta.dev", "properties[greeting]", "kubectl apply --dry-run=server"]
    {
        assert!(refused.contains(words), "{words:?} is not in {refused}");
    }
    two_kinds_one_of_which_is_refused(&plane).await;

    // Load the broken packages together with a good one.
    let packages = ["broken-yaml", "broken-crd-cel", "echo", "nowhere"];
    let mut manager = run(&plane, &packages).watching(1).await;
    assert_eq!(crds(&plane).await, ["echoes.fixtures.operetta.dev"]);
    let told = manager.output();
    for place in ["operator.yaml:9", "crds/broken.yaml", "nowhere"] {
        assert!(told.contains(place), "{place} is not in {told}");
    }
    let manifest = file(&format!("{}/instances/plain.yaml", fixture("echo")));
    kubectl_of(&plane, &["apply", "-f", "-"], &manifest).await.ok();
    eventually("the good package's child", LONG, async || {
        find_in(&plane, CONFIG_MAP, Some("default"), "plain").await.ok_or_else(|| manager.output())
    })
    .await;
    manager.kill9();

    somebody_elses_crd_is_left_alone(&plane).await;
    plane.stop().await;
}

async fn run_to_end(plane: &ControlPlane, folder: &str) -> String {
    let mut manager = run(plane, &[folder]);
    let status = manager.wait(LONG).await;
    assert_eq!(status.code(), Some(1), "{}", manager.output());
    manager.output()
}

/// A package with a valid kind and an invalid one: the valid one is not registered either.
async fn two_kinds_one_of_which_is_refused(plane: &ControlPlane) {
    let folder = tempfile::tempdir().unwrap();
    let package = folder.path().join("two");
    crate::support::ext::copy_folder(Path::new(&fixture("broken-crd-cel")), &package, &|text| text);
    let good = file(&format!("{}/crds/echo.yaml", fixture("echo")));
    std::fs::write(package.join("crds/good.yaml"), good).unwrap();
    let manifest = std::fs::read_to_string(package.join("operator.yaml")).unwrap();
    let first = "  resources:\n    - {crd: crds/good.yaml, children: []}\n";
    std::fs::write(package.join("operator.yaml"), manifest.replace("  resources:\n", first)).unwrap();
    run_to_end(plane, package.to_str().unwrap()).await;
    assert_eq!(crds(plane).await, [""; 0], "half a package");
}

async fn somebody_elses_crd_is_left_alone(plane: &ControlPlane) {
    let crd = file(&format!("{}/crds/light.yaml", fixture("light")));
    kubectl_of(plane, &["create", "-f", "-"], &crd).await.ok();
    let before = find_in(plane, CRD, None, "lights.fixtures.operetta.dev").await.unwrap();
    let manager = run(plane, &["light", "echo"]).watching(1).await;
    let told = manager.output();
    assert!(told.contains("lights.fixtures.operetta.dev") && told.contains("adopt: true"), "{told}");
    let after = find_in(plane, CRD, None, "lights.fixtures.operetta.dev").await.unwrap();
    assert_eq!(after["metadata"]["labels"], before["metadata"]["labels"]);
    assert_eq!(after["spec"], before["spec"]);
}

#[tokio::test]
async fn a_render_error_names_its_place_and_affects_no_other_instance() {
    let scene = Scene::new().await;
    for name in ["bad", "good"] {
        scene.apply(&file(&format!("{}/instances/{name}.yaml", fixture("broken-render")))).await;
    }
    scene.ready(BROKEN_RENDER, "good").await;
    let bad =
        scene.until("Stalled", BROKEN_RENDER, "bad", |o| condition(o, "Stalled")["status"] == "True").await;
    let told = condition(&bad, "Stalled");
    assert_eq!(told["reason"], "RenderFailed", "{told}");
    let message = told["message"].as_str().unwrap();
    for part in ["config", "templates/config.yaml:4", "spec.greeting"] {
        assert!(message.contains(part), "{part:?} is not in {message}");
    }
    assert_eq!(condition(&bad, "Ready")["status"], "False");
    assert!(scene.find(CONFIG_MAP, "bad").await.is_none());
    // The manager does not retry in a loop, but tries again when the instance changes.
    scene.patch(BROKEN_RENDER, "bad", "merge", &json!({"spec": {"greeting": "hello"}})).await;
    scene.ready(BROKEN_RENDER, "bad").await;
    // An instance that can no longer be rendered keeps its children.
    scene.patch(BROKEN_RENDER, "bad", "merge", &json!({"spec": {"greeting": null}})).await;
    scene.until("Stalled", BROKEN_RENDER, "bad", |o| condition(o, "Stalled")["status"] == "True").await;
    scene.idle(&scene.address()).await;
    assert_eq!(scene.get(CONFIG_MAP, "bad").await["data"]["greeting"], "hello");
    scene.kubectl(&["delete", "brokenrender", "bad"]).await;
    scene.gone(CONFIG_MAP, "bad").await;
}

#[tokio::test]
async fn long_instance_names_are_shortened_in_labels() {
    let scene = Scene::new().await;
    let manifest = file(&format!("{}/instances/long-name.yaml", fixture("echo")));
    scene.apply(&manifest).await;
    let name = "aaaaaaaaaabbbbbbbbbbccccccccccddddddddddeeeeeeeeeeffffffffffgggg";
    // A ConfigMap may have this name; only the label is shortened.
    scene.ready(ECHO, name).await;
    let map = scene.get(CONFIG_MAP, name).await;
    let label = map["metadata"]["labels"]["operetta.dev/instance"].as_str().unwrap();
    assert!(label.len() <= 63 && label.starts_with("aaaaaaaaaabbbbbbbbbb"), "{label}");

    // A Service may not have it.
    let name = "b".repeat(64);
    let name = name.as_str();
    let light =
        json!({"apiVersion": LIGHT.api_version(), "kind": "Light", "metadata": {"name": name}, "spec": {}});
    scene.apply(&light.to_string()).await;
    let stalled = |o: &Value| condition(o, "Stalled")["status"] == "True";
    let instance = scene.until("Stalled", LIGHT, name, stalled).await;
    let told = condition(&instance, "Stalled");
    // The rules for names of the kind find it, without a request.
    assert_eq!(told["reason"], "InvalidChild", "{told}");
    let message = told["message"].as_str().unwrap();
    for part in ["service", "Service", "metadata.name", "longer than 63"] {
        assert!(message.contains(part), "{part:?} is not in {message}");
    }
    assert!(scene.find(SERVICE, name).await.is_none());
    scene.kubectl(&["delete", "light", name]).await;
    scene.gone(LIGHT, name).await;
}
