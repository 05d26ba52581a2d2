//! The commands of the README, as a new user runs them: each succeeds, and what the README says about it is
//! true.

use std::path::Path;

use tokio::process::Command;

use super::kubectl;
use crate::support::{LONG, Operetta, eventually};

/// Words that a start without errors does not print.
const TROUBLE: [&str; 7] =
    ["ObservationFailed", "Stalled", "no such host", "refused", "failed", "error", "warning"];

/// A `dev` command, and the kubectl commands that the README shows below it.
struct Session {
    dev: Vec<String>,
    kubectl: Vec<String>,
}

fn sessions(page: &str) -> Vec<Session> {
    let mut sessions: Vec<Session> = Vec::new();
    for line in page.lines() {
        if let Some(args) = line.strip_prefix("cargo run -- dev ") {
            let dev = args.split_whitespace().map(str::to_owned).collect();
            sessions.push(Session { dev, kubectl: Vec::new() });
        } else if let (Some(line), Some(session)) = (line.strip_prefix("$ "), sessions.last_mut()) {
            session.kubectl.push(line.to_owned());
        }
    }
    // The last session needs an API to call.
    sessions.retain(|session| !session.kubectl.is_empty());
    sessions
}

/// Runs a line in a shell with the exports that `dev` prints first.
async fn shell(dev: &Operetta, cache: &Path, line: &str) -> Result<String, String> {
    let exports: Vec<String> =
        dev.output().lines().filter(|line| line.starts_with("export ")).map(str::to_owned).collect();
    let kubectl = kubectl::program().await;
    let path = format!("{}:{}", kubectl.parent().unwrap().display(), std::env::var("PATH").unwrap());
    let script = format!("{}\n{line}", exports.join("\n"));
    let running =
        Command::new("sh").args(["-c", &script]).env("KUBECACHEDIR", cache).env("PATH", path).output();
    let ended = tokio::time::timeout(LONG, running).await.unwrap_or_else(|_| panic!("{line} does not end"));
    let ended = ended.unwrap();
    let said = String::from_utf8_lossy(&[&ended.stdout[..], &ended.stderr[..]].concat()).into_owned();
    if ended.status.success() { Ok(said) } else { Err(said) }
}

#[tokio::test]
async fn readme_commands_succeed() {
    let sessions = sessions(&std::fs::read_to_string("README.md").unwrap());
    assert_eq!(sessions.len(), 2);
    // What must be true after the commands.
    let expected = [
        ("service example-etcd-cluster-client", "{.spec.ports[0].port}", "2379"),
        ("deployment hello", "{.spec.replicas}/{.status.readyReplicas}", "5/5"),
    ];
    for (session, (object, path, value)) in sessions.iter().zip(expected) {
        let temporary = tempfile::tempdir().unwrap();
        let cache = tempfile::tempdir().unwrap();
        let all: Vec<&str> = ["dev"].into_iter().chain(session.dev.iter().map(String::as_str)).collect();
        let mut dev = Operetta::run_with(&all, &[("TMPDIR", temporary.path())]);
        dev.wait_for(": Ready: ", LONG).await;
        let told = dev.output();
        for trouble in TROUBLE {
            assert!(!told.contains(trouble), "{trouble} in a healthy start:\n{told}");
        }
        let uid = format!("kubectl get {object} -o 'jsonpath={{.metadata.uid}}'");
        let before = shell(&dev, cache.path(), &uid).await.unwrap();
        for line in &session.kubectl {
            let ended = shell(&dev, cache.path(), line).await;
            assert!(ended.is_ok(), "{line}: {ended:?}");
        }
        // The last command deletes the object.
        let script = format!("{uid} && kubectl get {object} -o 'jsonpath= {path}'");
        eventually(&format!("{object}: {value}"), LONG, async || {
            match shell(&dev, cache.path(), &script).await {
                Ok(said) if said.ends_with(&format!(" {value}")) && !said.starts_with(&before) => Ok(()),
                said => Err(format!("{said:?}")),
            }
        })
        .await;
        let told = dev.output();
        assert!(!told.contains("error") && !told.contains("no such host"), "{told}");
        assert!(dev.end().await.success(), "{}", dev.output());
    }
}
