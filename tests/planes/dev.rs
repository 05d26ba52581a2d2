//! `operetta dev`: a cluster, the packages and the manager in one command, which leaves nothing behind.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::support::ext::{LONG, fixture};
use crate::support::{Operetta, alive, descendants, eventually};
use k8s_openapi::api::core::v1::ConfigMap;
use rustix::process::Signal;

/// The control plane starts in seconds; building it, which the first of all tests may have to do, takes
/// minutes.
const START: Duration = Duration::from_secs(900);

const EXAMPLE: &str = "examples/etcd/example-etcd-cluster.yaml";

/// Starts `operetta dev` with its own folder for temporary files.
fn dev(args: &[&str], temporary: &Path) -> Operetta {
    let mut all = vec!["dev"];
    all.extend(args);
    Operetta::run_with(&all, &[("TMPDIR", temporary)])
}

/// Waits until no process and no file is left.
async fn nothing_left(pids: &BTreeSet<u32>, temporary: &Path) {
    eventually("everything to be gone", LONG, async || {
        let processes: Vec<_> = pids.iter().filter(|pid| alive(**pid)).collect();
        let files: Vec<_> = std::fs::read_dir(temporary).unwrap().map(|e| e.unwrap().path()).collect();
        if processes.is_empty() && files.is_empty() {
            Ok(())
        } else {
            Err(format!("{processes:?} {files:?}"))
        }
    })
    .await;
}

#[tokio::test]
async fn until_ready_exits_with_0() {
    let temporary = tempfile::tempdir().unwrap();
    let started = Instant::now();
    let mut dev = dev(&["operators/etcd", "--apply", EXAMPLE, "--until-ready"], temporary.path());
    dev.wait_for("export KUBECONFIG=", START).await;
    let pids = descendants(dev.pid());
    assert!(pids.len() >= 6, "{pids:?}: a guard and the components");
    let status = dev.wait(LONG).await;
    eprintln!("from nothing to Ready in {:?}", started.elapsed());
    let told = dev.output();
    assert!(status.success(), "{status}: {told}");
    assert!(told.contains("EtcdCluster example-etcd-cluster is Ready"), "{told}");
    nothing_left(&pids, temporary.path()).await;
}

#[tokio::test]
async fn dev_shows_events_and_ends_on_ctrl_c() {
    let temporary = tempfile::tempdir().unwrap();
    let mut dev =
        dev(&["operators/etcd", "operators/webapp", "--apply", EXAMPLE, "--nodes", "1"], temporary.path());
    dev.wait_for("export KUBECONFIG=", START).await;
    let name = "etcdclusters/default/example-etcd-cluster: ";
    dev.wait_for(&format!("{name}Ready"), LONG).await;
    let output = dev.output();
    for i in 0..3 {
        let member = format!("{name}members[{i}] (Pod default/example-etcd-cluster-{i})");
        let told = |how: &str| output.lines().any(|line| line.starts_with(&member) && line.ends_with(how));
        assert!(told("does not exist yet") && told("ready"), "{member} in\n{output}");
    }
    let told = dev.output();
    let line = told.lines().find_map(|line| line.strip_prefix("export KUBECONFIG=")).unwrap();
    assert!(Path::new(line).is_file(), "{line} is no file");
    assert!(Path::new(line).starts_with(temporary.path()), "{line}");
    assert!(!told.contains('\u{1b}'), "no colours without a terminal: {told:?}");

    let pids = descendants(dev.pid());
    dev.interrupt();
    let status = dev.wait(LONG).await;
    assert!(status.success(), "{status}: {}", dev.output());
    nothing_left(&pids, temporary.path()).await;
}

#[tokio::test]
async fn killed_dev_leaves_no_process_or_file() {
    // Kill it right after its start, and later while it works.
    let (early, late) = ("export KUBECONFIG=", "etcdclusters/default/example-etcd-cluster: ");
    for (signal, after) in [(Signal::KILL, early), (Signal::TERM, late), (Signal::KILL, late)] {
        let temporary = tempfile::tempdir().unwrap();
        let mut dev = dev(&["operators/etcd", "--apply", EXAMPLE], temporary.path());
        dev.wait_for(early, START).await;
        dev.wait_for(after, LONG).await;
        let pids = descendants(dev.pid());
        crate::support::signal(dev.pid(), signal);
        dev.wait(LONG).await;
        nothing_left(&pids, temporary.path()).await;
    }
}

#[tokio::test]
async fn failure_exits_with_1_and_the_cause() {
    let temporary = tempfile::tempdir().unwrap();
    let bad = format!("{}/instances/bad.yaml", fixture("broken-render"));
    let args = [&fixture("broken-render"), "--apply", &bad, "--until-ready", "--timeout", "2"];
    let mut stalled = dev(&args, temporary.path());
    let status = stalled.wait(START).await;
    let told = stalled.output();
    assert_eq!(status.code(), Some(1), "{told}");
    assert!(told.contains("bad is not ready") && told.contains("templates/config.yaml:4"), "{told}");

    // An instance that the API server refuses is reported with its file and line.
    let refused = temporary.path().join("refused.yaml");
    let text = std::fs::read_to_string(EXAMPLE).unwrap().replace("size: 3", "size: 99");
    std::fs::write(&refused, format!("# a comment\n---\n{text}")).unwrap();
    let mut refusing =
        dev(&["operators/etcd", "--apply", refused.to_str().unwrap(), "--until-ready"], temporary.path());
    let status = refusing.wait(START).await;
    let told = refusing.output();
    assert_eq!(status.code(), Some(1), "{told}");
    assert!(told.contains("refused.yaml:3") && told.contains("spec.size"), "{told}");
    std::fs::remove_file(refused).unwrap();
    nothing_left(&BTreeSet::new(), temporary.path()).await;

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

/// Copies a folder.
fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().flatten() {
        let to = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &to);
        } else {
            std::fs::copy(entry.path(), to).unwrap();
        }
    }
}

#[tokio::test]
async fn a_package_is_reloaded_when_its_files_change() {
    let (temporary, package) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    copy(Path::new("examples/packages/hello"), package.path());
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
    dev.wait_for("greetings/default/world: Ready", START).await;
    assert!(dev.output().contains("refused.yaml:1"), "{}", dev.output());
    let kubeconfig =
        dev.output().lines().find_map(|l| Some(l.strip_prefix("export KUBECONFIG=")?.to_owned())).unwrap();
    let cluster = operetta::cluster::Cluster::of_kubeconfig(Path::new(&kubeconfig)).await.unwrap();
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
    let pids = descendants(dev.pid());
    dev.interrupt();
    let status = dev.wait(LONG).await;
    assert!(status.success(), "{status}: {}", dev.output());
    nothing_left(&pids, temporary.path()).await;
}
