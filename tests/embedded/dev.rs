//! `operetta dev` on the embedded API.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::Value;

use crate::support::dev::{dev, end, nothing_left};
use crate::support::{LONG, OPERETTA, Operetta, copy_folder, eventually, fixture, says};

const HELLO: &str = "examples/packages/hello";
const EXAMPLE: &str = "examples/etcd/example-etcd-cluster.yaml";
const WORLD: &str = "examples/packages/hello/instances/world.yaml";

#[tokio::test]
async fn until_ready_exits_with_0() {
    let temporary = tempfile::tempdir().unwrap();
    let started = Instant::now();
    let mut dev = dev(&[HELLO, "--apply", WORLD, "--until-ready"], temporary.path());
    let status = dev.wait(LONG).await;
    let told = dev.output();
    eprintln!("from nothing to Ready in {:?}", started.elapsed());
    assert!(status.success(), "{status}: {told}");
    assert!(told.contains("export KUBECONFIG=") && told.contains("Greeting world is Ready"), "{told}");
    nothing_left(temporary.path());
}

#[test]
fn wrong_usage_exits_with_2() {
    let run = |args: &[&str]| {
        let ended = std::process::Command::new(OPERETTA).arg("dev").args(args).output().unwrap();
        (ended.status.code(), String::from_utf8(ended.stderr).unwrap())
    };
    says(run(&[HELLO, "--cluster", "kind"]), Some(2), &["embedded, local, current"]);
    says(run(&[HELLO, "--cluster", "embedded", "--node"]), Some(2), &["--node needs --cluster local"]);
    let (code, told) = run(&["--no-controllers", "--cluster", "current"]);
    assert!(code == Some(2) && told.contains("--no-controllers needs --cluster embedded"), "{told}");
    says(run(&["--plain"]), Some(2), &["<PACKAGE>..."]);
}

#[tokio::test]
async fn no_controllers_serves_the_api_alone() {
    let temporary = tempfile::tempdir().unwrap();
    let mut dev = dev(&["--no-controllers", "--plain"], temporary.path());
    dev.wait_for("export KUBECONFIG=", LONG).await;
    let client = operetta::cluster::Cluster::of_kubeconfig(&kubeconfig_of(&dev)).await.unwrap().client();
    let send = async |request: http::request::Builder, body: &[u8]| {
        let request = request.header("content-type", "application/json").body(body.to_vec()).unwrap();
        client.request::<Value>(request).await.unwrap()
    };
    // Controllers would give it a ServiceAccount before it is deleted, and remove it afterwards.
    send(http::Request::post("/api/v1/namespaces"), br#"{"metadata":{"name":"a"}}"#).await;
    let gone = send(http::Request::delete("/api/v1/namespaces/a"), b"").await;
    assert_eq!(gone["status"]["phase"], "Terminating", "{gone}");
    let account = http::Request::get("/api/v1/namespaces/default/serviceaccounts/default");
    let missing = client.request::<Value>(account.body(Vec::new()).unwrap()).await.unwrap_err();
    assert!(matches!(&missing, kube::Error::Api(status) if status.code == 404), "{missing}");
    end(dev, temporary.path()).await;
}

#[tokio::test]
async fn failure_exits_with_1_and_the_cause() {
    let temporary = tempfile::tempdir().unwrap();
    let bad = format!("{}/instances/bad.yaml", fixture("broken-render"));
    let args = [&fixture("broken-render"), "--apply", &bad, "--until-ready", "--timeout", "2"];
    let mut stalled = dev(&args, temporary.path());
    let status = stalled.wait(LONG).await;
    let told = stalled.output();
    assert_eq!(status.code(), Some(1), "{told}");
    assert!(told.contains("bad is not ready") && told.contains("templates/config.yaml:4"), "{told}");

    // An instance that the API server refuses is reported with its file and line.
    let refused = temporary.path().join("refused.yaml");
    let text = std::fs::read_to_string(EXAMPLE).unwrap().replace("size: 3", "size: 99");
    std::fs::write(&refused, format!("# a comment\n---\n{text}")).unwrap();
    let mut refusing =
        dev(&["operators/etcd", "--apply", refused.to_str().unwrap(), "--until-ready"], temporary.path());
    let status = refusing.wait(LONG).await;
    let told = refusing.output();
    assert_eq!(status.code(), Some(1), "{told}");
    assert!(told.contains("refused.yaml:3") && told.contains("spec.size"), "{told}");
    std::fs::remove_file(refused).unwrap();
    nothing_left(temporary.path());

    // A package that cannot be loaded is reported before anything is started.
    let mut broken = dev(&[&fixture("broken-yaml")], temporary.path());
    let status = broken.wait(LONG).await;
    assert_eq!(status.code(), Some(1));
    assert!(
        broken.output().contains("operator.yaml:9") && !broken.output().contains("KUBECONFIG"),
        "{}",
        broken.output()
    );
}

/// The kubeconfig that a process has printed.
fn kubeconfig_of(dev: &Operetta) -> PathBuf {
    let output = dev.output();
    output
        .lines()
        .find_map(|line| Some(line.strip_prefix("export KUBECONFIG=")?.into()))
        .expect("a kubeconfig")
}

#[tokio::test]
async fn only_the_user_who_has_started_it_gets_in() {
    let token = async || {
        let temporary = tempfile::tempdir().unwrap();
        let mut dev = dev(&[HELLO, "--plain"], temporary.path());
        dev.wait_for("export KUBECONFIG=", LONG).await;
        let kubeconfig = kubeconfig_of(&dev);
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&kubeconfig), mode(kubeconfig.parent().unwrap())), (0o600, 0o700));
        let client = operetta::cluster::Cluster::of_kubeconfig(&kubeconfig).await.unwrap().client();
        let token = eventually("a token of a ServiceAccount", LONG, async || {
            let request = http::Request::post("/api/v1/namespaces/default/serviceaccounts/default/token");
            let request = request.header("content-type", "application/json").body(b"{}".to_vec()).unwrap();
            let answer = client.request::<Value>(request).await.map_err(|error| error.to_string())?;
            answer["status"]["token"].as_str().map(str::to_owned).ok_or_else(|| answer.to_string())
        })
        .await;
        end(dev, temporary.path()).await;
        token
    };
    // The same requests to another process.
    assert_ne!(token().await, token().await);
}

/// What started it may have it ignore SIGINT, as nohup does: until its own handler is there, an interruption is lost.
#[tokio::test]
async fn an_interruption_ends_it_as_soon_as_it_has_printed_something() {
    for _ in 0..20 {
        let temporary = tempfile::tempdir().unwrap();
        let dev = dev(&[HELLO, "--plain"], temporary.path());
        let started = Instant::now();
        while dev.output().is_empty() {
            assert!(started.elapsed() < LONG, "nothing is printed");
            std::thread::yield_now();
        }
        end(dev, temporary.path()).await;
    }
}

/// Whoever tries a package may not have written it.
#[tokio::test]
async fn links_out_of_a_package_and_pipes_are_refused_before_anything_is_started() {
    let (temporary, package) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    copy_folder(Path::new(HELLO), package.path(), &std::convert::identity);
    std::fs::create_dir_all(package.path().join("tests/images")).unwrap();
    let folder = package.path().to_str().unwrap();
    let instance = package.path().join("instances/more.yaml");
    let files: [(&str, &[&str]); 3] = [
        ("tests/world.yaml", &["--plain"]),
        ("tests/images/more.yaml", &["--cluster", "local", "--node", "--plain"]),
        ("instances/more.yaml", &["--plain", "--apply", instance.to_str().unwrap()]),
    ];
    for (path, flags) in files {
        let file = package.path().join(path);
        for (target, why) in [("/proc/self/environ", "it is outside of"), ("", "it is no regular file")] {
            if target.is_empty() {
                assert!(std::process::Command::new("mkfifo").arg(&file).status().unwrap().success());
            } else {
                std::os::unix::fs::symlink(target, &file).unwrap();
            }
            let mut refusing = dev(&[&[folder][..], flags].concat(), temporary.path());
            let status = refusing.wait(LONG).await;
            // A long line is wrapped.
            let told = refusing.output().replace("\n  │ ", " ");
            assert_eq!(status.code(), Some(1), "{path}: {told}");
            assert!(told.contains(why) && !told.contains("PATH="), "{path}: {told}");
            assert!(!told.contains("KUBECONFIG="), "{path}: {told}");
            std::fs::remove_file(&file).unwrap();
        }
    }
    nothing_left(temporary.path());
}

#[tokio::test]
async fn a_package_is_reloaded_when_its_files_change() {
    let (temporary, package) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    copy_folder(Path::new("examples/packages/hello"), package.path(), &std::convert::identity);
    let template = package.path().join("templates/card.yaml");
    let good = std::fs::read_to_string(&template).unwrap();
    // One instance is refused by the API server and another is accepted: the refusal does not end the
    // command.
    let refused = package.path().join("instances/refused.yaml");
    let instance = std::fs::read_to_string("examples/packages/hello/instances/world.yaml").unwrap();
    std::fs::write(
        &refused,
        instance.replace("name: world", "name: refused").replace("spec:", "spec:\n  times: many"),
    )
    .unwrap();
    let world = "examples/packages/hello/instances/world.yaml";
    let folder = package.path().to_str().unwrap();
    let mut dev = dev(&[folder, "--apply", refused.to_str().unwrap(), world, "--plain"], temporary.path());
    dev.wait_for("greetings/default/world: Ready", LONG).await;
    dev.wait_for("refused.yaml:1", LONG).await;
    let cluster = operetta::cluster::Cluster::of_kubeconfig(&kubeconfig_of(&dev)).await.unwrap();
    let maps = kube::Api::<ConfigMap>::namespaced(cluster.client(), "default");
    let text = async || {
        maps.get_opt("world").await.unwrap().map_or_else(String::new, |map| map.data.unwrap()["text"].clone())
    };
    assert_eq!(text().await, "Hello, World!");

    // A broken package is reported once, with the place; the last good version repairs manual changes.
    std::fs::write(&template, good.replace("metadata:", "metadata: [")).unwrap();
    dev.wait_for("hello cannot be reloaded; its last good revision", LONG).await;
    assert!(dev.output().contains("card.yaml:"), "{}", dev.output());
    maps.delete("world", &kube::api::DeleteParams::default()).await.unwrap();
    eventually("the child of the last good version", LONG, async || {
        let text = text().await;
        if text == "Hello, World!" { Ok(()) } else { Err(text) }
    })
    .await;

    // A corrected package with another text is loaded.
    std::fs::write(&template, good.replace("metadata:", "# new\nmetadata:").replace("Hello", "Hi")).unwrap();
    dev.wait_for("reloaded hello: revision", LONG).await;
    eventually("the child of the new version", LONG, async || {
        let text = text().await;
        if text.starts_with("Hi, ") { Ok(()) } else { Err(text) }
    })
    .await;
    let told = dev.output();
    assert!(!told.contains(" WARN ") && !told.contains("panicked"), "{told}");
    end(dev, temporary.path()).await;
}
