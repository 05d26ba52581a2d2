//! Commands in containers through a real API server; kwok runs them on this machine.

use std::time::Duration;

use operetta::cluster::Cluster;
use operetta::plan::request::{CallFailure, ExecReply, ExecRequest};

use serde_json::json;

use crate::support::plans::Commands;
use crate::support::{LONG, POD, Scene, eventually, is_pod_ready, kubectl_of, namespace_on, plane, run_as};

#[tokio::test]
async fn commands_return_output_and_exit_code() {
    let plane = plane().await;
    let namespace = namespace_on(plane).await;
    kubectl_of(plane, &["-n", &namespace, "run", "a", "--image=x"], "").await.ok();
    let pod = ["-n", &namespace, "get", "pod", "a", "-o", "jsonpath={.metadata.uid} {.status.phase}"];
    let uid = eventually("a running pod", LONG, async || {
        let pod = kubectl_of(plane, &pod, "").await.result()?;
        pod.strip_suffix(" Running").map(str::to_owned).ok_or(pod)
    })
    .await;
    let cluster = Cluster::of_kubeconfig(plane.kubeconfig_path()).await.unwrap();
    let request = |command: &str| ExecRequest {
        namespace: namespace.to_string(),
        pod: "a".into(),
        uid: uid.clone(),
        container: None,
        command: ["sh", "-c", command].map(str::to_owned).to_vec(),
        stdin: None,
        max_bytes: 1000,
        timeout: Duration::from_secs(60),
    };
    let reply = |exit_code: i32, stdout: &str, stderr: &str| {
        Ok(ExecReply { exit_code, stdout: stdout.into(), stderr: stderr.into() })
    };

    assert_eq!(cluster.exec(&request("echo out; echo err >&2")).await, reply(0, "out\n", "err\n"));
    assert_eq!(cluster.exec(&request("echo 'a b' \"$0\"")).await, reply(0, "a b sh\n", ""));
    // Unlike a kubelet, kwok reports no exit code and does not close standard input.
    let failed = cluster.exec(&request("exit 7")).await;
    assert!(
        matches!(&failed, Err(CallFailure::Unanswered(why)) if why.contains("exit status 7")),
        "{failed:?}"
    );
    let mut with_input = request("read line; echo $line.");
    with_input.stdin = Some("s3cret\n".into());
    assert_eq!(cluster.exec(&with_input).await, reply(0, "s3cret.\n", ""));
    // The command need not read its input.
    with_input.stdin = Some("x".repeat(16 << 10));
    with_input.command = vec!["true".into()];
    assert_eq!(cluster.exec(&with_input).await, reply(0, "", ""));

    let large = cluster.exec(&request("yes | head -c 2000")).await;
    assert!(matches!(&large, Err(CallFailure::Refused(why)) if why.contains("1000 bytes")), "{large:?}");
    let large = cluster.exec(&request("yes | head -c 200000 >&2")).await.unwrap();
    assert_eq!((large.exit_code, large.stderr.len()), (0, 1000));

    // Once the command runs, its time passes at once.
    let folder = tempfile::tempdir().unwrap();
    let begun = folder.path().join("begun");
    let mut slow = request(&format!("touch {}; sleep 300", begun.display()));
    slow.timeout = Duration::from_secs(20);
    let passes = async {
        eventually("the command", LONG, async || begun.exists().then_some(()).ok_or("not begun")).await;
        tokio::time::pause();
    };
    let (slow, ()) = tokio::join!(cluster.exec(&slow), passes);
    tokio::time::resume();
    assert!(matches!(&slow, Err(CallFailure::Unanswered(why)) if why.contains("within 20 s")), "{slow:?}");

    let mut replaced = request("echo");
    replaced.uid = "another".into();
    assert!(matches!(cluster.exec(&replaced).await, Err(CallFailure::NotSent(_))));
    replaced.pod = "b".into();
    assert!(matches!(cluster.exec(&replaced).await, Err(CallFailure::NotSent(_))));
    let mut elsewhere = request("echo");
    elsewhere.container = Some("b".into());
    let elsewhere = cluster.exec(&elsewhere).await;
    assert!(
        matches!(&elsewhere, Err(CallFailure::Refused(why)) if why.contains("it has a")),
        "{elsewhere:?}"
    );
    let mut missing = request("echo");
    missing.command = vec!["no-such-command".into()];
    let missing = cluster.exec(&missing).await;
    assert!(missing.is_err(), "{missing:?}");
}

#[tokio::test]
async fn observations_run_commands_in_pods() {
    let plane = plane().await;
    let namespace = namespace_on(plane).await;
    let _manager = run_as("probed", plane, &["probed"]).watching(1).await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("members");
    std::fs::write(&file, r#"{"members": ["a", "b"]}"#).unwrap();
    // A pod with the labels of a workload is not used unless the workload is its controller.
    kubectl_of(plane, &["-n", &namespace, "run", "a-any-0", "--image=x", "--labels=any=p"], "").await.ok();
    let object = json!({
        "apiVersion": "fixtures.operetta.dev/v1", "kind": "Prober", "metadata": {"name": "p"}, "spec": {"file": file},
    });
    kubectl_of(plane, &["-n", &namespace, "apply", "-f", "-"], &object.to_string()).await.ok();
    let status = async |path: &str, expected: &str| {
        let path = format!("jsonpath={{.status.{path}}}");
        eventually(expected, LONG, async || {
            let found = kubectl_of(plane, &["-n", &namespace, "get", "prober", "p", "-o", &path], "")
                .await
                .result()?;
            if found.contains(expected) { Ok(found) } else { Err(found) }
        })
        .await
    };
    status("members", "2").await;
    status("first", "a").await;
    status("text", r#"{"members": ["a", "b"]}"#).await;
    std::fs::write(&file, r#"{"members": ["c", "b", "d"]}"#).unwrap();
    status("members", "3").await;
    status("first", "c").await;

    // An observation that fails keeps its earlier value and is reported. If several fail, the one that is
    // read first is reported.
    std::fs::write(&file, "s3cret").unwrap();
    let message = status("conditions[?(@.type==\"RefUnknown\")].message", "is not JSON").await;
    assert!(message.contains("refs.") && !message.contains("s3cret"), "{message}");
    assert_eq!(status("members", "3").await, "3");
    std::fs::write(&file, r#"{"members": []}"#).unwrap();
    status("members", "0").await;
}

#[tokio::test]
async fn commands_run_on_this_machine() {
    let scene = Scene::unmanaged().await;
    let commands = Commands::new();
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"},
        "spec": {"containers": [{"name": "main", "image": "a:1"}]}});
    scene.apply(&pod.to_string()).await;
    scene.until("ready", POD, "p", is_pod_ready).await;
    commands.prints("say", "hello\n");
    let script = commands.script();
    assert_eq!(scene.kubectl(&["exec", "p", "--", "sh", &script, "say", "a b"]).await, "hello\n");
    assert_eq!(commands.calls("say"), ["say a b"]);
    commands.fails("say", Some("no"));
    let told = scene.kubectl_input(&["exec", "p", "--", "sh", &script, "say"], "").await.unwrap_err();
    assert!(told.contains("no") && told.contains('3'), "{told}");
}
