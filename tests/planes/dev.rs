//! `operetta dev`: a cluster, the packages and the manager in one command, which leaves nothing behind.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::support::{LONG, Operetta, alive, descendants, eventually};
use rustix::process::Signal;

/// The control plane starts in seconds; building it, which the first of all tests may have to do, takes
/// minutes.
const START: Duration = Duration::from_secs(900);

const EXAMPLE: &str = "examples/etcd/example-etcd-cluster.yaml";

/// Starts `operetta dev --cluster local` with its own folder for temporary files.
fn dev(args: &[&str], temporary: &Path) -> Operetta {
    let mut all = vec!["dev", "--cluster", "local"];
    all.extend(args);
    Operetta::run_with(&all, &[("TMPDIR", temporary)])
}

/// Waits until no process and no file is left.
async fn nothing_left(pids: &BTreeSet<u32>, temporary: &Path) {
    eventually("everything to be gone", LONG, async || {
        let processes: Vec<_> = pids.iter().filter(|pid| alive(**pid)).collect();
        let files: Vec<_> = std::fs::read_dir(temporary).unwrap().map(|e| e.unwrap().path()).collect();
        let holds = processes.is_empty() && files.is_empty();
        if holds { Ok(()) } else { Err(format!("{processes:?} {files:?}")) }
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
    assert!(pids.len() >= 6, "{pids:?}: a guard and the components");
    let status = dev.end().await;
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
