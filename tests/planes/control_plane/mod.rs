//! The local control plane itself: it is a real Kubernetes, requests can be counted, nothing is left behind,
//! and errors say what to do.

mod openapi;
use std::io::Write;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::ControlPlane;
use crate::support::ext::LONG;
use crate::support::{alive, eventually, kubectl, kubectl_stdin, namespace, options, plane};
use operetta::local::{Component, Environment, Error, Options};
use rustix::process::{Pid, Signal};
use serde_json::{Value, json};

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[tokio::test]
async fn control_plane_is_a_current_kubernetes_with_a_ready_node() {
    let plane = plane().await;
    let version = json(&kubectl(&["get", "--raw", "/version"]).await.ok());
    let minor: u32 = version["minor"].as_str().unwrap().parse().unwrap();
    // The person who runs the tests may have set other, older binaries.
    let theirs = std::env::var_os("KUBEBUILDER_ASSETS").is_some_and(|folder| !folder.is_empty());
    assert!(minor == 36 || theirs && minor >= 30, "{version}");
    let node = json(&kubectl(&["get", "node", "fake-1", "-o", "json"]).await.ok());
    let conditions = node["status"]["conditions"].as_array().unwrap();
    assert!(conditions.iter().any(|c| c["type"] == "Ready" && c["status"] == "True"), "{node}");
    for path in [plane.folder(), plane.kubeconfig_path()] {
        let mode = path.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "others can read {}", path.display());
    }
}

/// `src/kube-model/data` is made from the code of Kubernetes; `src/embedded/README.md` says how.
#[tokio::test]
async fn built_in_schemas_match_the_api_server() {
    plane().await;
    let version = json(&kubectl(&["get", "--raw", "/version"]).await.ok());
    if version["minor"] != "36" {
        return; // binaries of the person who runs the tests
    }
    let index = json(&kubectl(&["get", "--raw", "/openapi/v3"]).await.ok());
    let mut documents = Vec::new();
    for (path, at) in index["paths"].as_object().unwrap() {
        // Take only groups of built-in kinds; other tests may register CRDs.
        let group = path.strip_prefix("apis/").and_then(|rest| rest.split_once('/')).map(|(group, _)| group);
        let built_in = path == "api/v1" || group.is_some_and(|g| !g.contains('.') || g.ends_with(".k8s.io"));
        if built_in {
            let url = at["serverRelativeURL"].as_str().unwrap();
            documents.push(json(&kubectl(&["get", "--raw", url]).await.ok()));
        }
    }
    let (served, known) = (openapi::served(&documents), openapi::known());
    for (served, known) in served.lines().zip(known.lines()) {
        assert_eq!(served, known);
    }
    assert_eq!(served.len(), known.len());
}

/// Each object breaks a rule that `src/lang/schema` knows in addition to the server's schemas, and the API
/// server must refuse it.
#[tokio::test]
async fn api_server_refuses_what_lint_reports() {
    let namespace = namespace().await;
    let pod = |spec: &str| format!("template: {{metadata: {{labels: {{a: b}}}}, spec: {{{spec}}}}}");
    let deployment = |fields: &str, spec: &str| {
        format!(
            "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: a}}\nspec: {{{fields} selector: {{matchLabels: {{a: b}}}}, {}}}",
            pod(spec)
        )
    };
    let containers = "containers: [{name: a, image: b}]";
    let job = |spec: &str| {
        format!("apiVersion: batch/v1\nkind: Job\nmetadata: {{name: a}}\nspec: {{{}}}", pod(spec))
    };
    let service = |port: &str| {
        format!("apiVersion: v1\nkind: Service\nmetadata: {{name: a}}\nspec: {{ports: [{port}]}}")
    };
    let claim =
        |spec: &str| format!("apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {{name: a}}\n{spec}");
    let config = |data: &str| format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: a}}\n{data}");
    let container = |fields: &str| deployment("", &format!("containers: [{{name: a, image: b, {fields}}}]"));
    let fine = [
        deployment("replicas: 0,", containers),
        container("ports: [{containerPort: 65535, hostPort: 0}]"),
        container("resources: {limits: {memory: 1.5Gi, cpu: 1}}"),
        deployment("", "containers: [{name: a, image: b}], volumes: [{name: v, configMap: {name: x, defaultMode: 511}}]"),
        job("restartPolicy: Never, containers: [{name: a, image: b}]"),
        deployment("", "terminationGracePeriodSeconds: -1, containers: [{name: a, image: b}]"),
        service("{port: 1, targetPort: a}"),
        service("{port: 80, targetPort: 0}"),
        claim("spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}"),
        config("data: {a: '1'}"),
        "apiVersion: rbac.authorization.k8s.io/v1\nkind: RoleBinding\nmetadata: {name: a}\nroleRef: {kind: Role, name: a}\nsubjects: [{kind: Group, name: a}]".to_owned(),
    ];
    let refused = [
        deployment("replicas: -1,", containers),
        deployment("replicas: '1',", containers),
        deployment("replica: 1,", containers),
        deployment("strategy: {type: Recreated},", containers),
        deployment("revisionHistoryLimit: 1.5,", containers),
        deployment("minReadySeconds: -1,", containers),
        deployment("", "restartPolicy: OnFailure, containers: [{name: a, image: b}]"),
        deployment("", "containers: [{name: a}]"),
        deployment("", "containers: [{image: a}]"),
        deployment("", "initContainers: [{name: i}], containers: [{name: a, image: b}]"),
        deployment("", "containers: [{name: a, image: b}, {name: a, image: c}]"),
        deployment("", "containers: [{name: a, image: b}], volumes: [{name: v, configMap: {name: x, defaultMode: 644}}]"),
        deployment("", "securityContext: {runAsUser: -1}, containers: [{name: a, image: b}]"),
        container("ports: [{containerPort: 0}]"),
        container("ports: [{containerPort: 65536}]"),
        container("ports: [{name: x}]"),
        container("imagePullPolicy: always"),
        container("resources: {limits: {memory: 512MB}}"),
        container("env: [{name: A, value: 5}]"),
        container("livenessProbe: {tcpSocket: {port: 70000}}"),
        container("livenessProbe: {tcpSocket: {port: 80}, periodSeconds: -1}"),
        job("containers: [{name: a, image: b}]"),
        job("restartPolicy: Always, containers: [{name: a, image: b}]"),
        service("{port: 0}"),
        service("{port: 80, nodePort: 70000}"),
        service("{port: 80, protocol: tcp}"),
        service("{name: a, port: 80}, {name: b, port: 80}"),
        claim("spec: {resources: {requests: {storage: 1Gi}}}"),
        claim("spec: {accessModes: [ReadWriteOnce]}"),
        claim("spec: {accessModes: [ReadWriteOnce], resources: {limits: {storage: 1Gi}}}"),
        "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: a}".to_owned(),
        "apiVersion: v1\nkind: Service\nmetadata: {name: a}".to_owned(),
        config("data: {a: 1}"),
        config("data: {a: true}"),
        "apiVersion: v1\nkind: Secret\nmetadata: {name: a}\ndata: {a: no-base64!}".to_owned(),
        "apiVersion: autoscaling/v2\nkind: HorizontalPodAutoscaler\nmetadata: {name: a}\nspec: {maxReplicas: 0, scaleTargetRef: {kind: Deployment, name: a}}".to_owned(),
    ];
    let apply = async |text: &str| {
        let args =
            ["-n", &namespace, "apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-"];
        kubectl_stdin(&args, text).await.result()
    };
    let mut wrong = Vec::new();
    for text in &fine {
        wrong.extend(apply(text).await.err().map(|error| format!("{text}\n=> {error}")));
    }
    for text in &refused {
        wrong.extend(apply(text).await.ok().map(|_| format!("{text}\n=> it is taken")));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

#[tokio::test]
async fn pods_become_ready_and_jobs_complete() {
    let namespace = namespace().await;
    let objects = json!({"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": {
            "replicas": 3,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {
                    "initContainers": [{"name": "first", "image": "init:1"}],
                    "containers": [{"name": "web", "image": "nginx:1"}, {"name": "side", "image": "side:1"}],
                },
            },
        }},
        {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "once"}, "spec": {
            "template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "busybox:1"}]}},
        }},
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}, "spec": {
            "selector": {"app": "web"}, "ports": [{"port": 80}],
        }},
    ]});
    kubectl_stdin(&["-n", &namespace, "apply", "-f", "-"], &objects.to_string()).await.ok();
    eventually("three replicas and the Job's completion", LONG, async || {
        let web =
            json(&kubectl(&["-n", &namespace, "get", "deployment", "web", "-o", "json"]).await.result()?);
        let once = json(&kubectl(&["-n", &namespace, "get", "job", "once", "-o", "json"]).await.result()?);
        let ready = web["status"]["readyReplicas"] == 3 && once["status"]["succeeded"] == 1;
        if ready { Ok(()) } else { Err(format!("{} {}", web["status"], once["status"])) }
    })
    .await;
    let pods = json(&kubectl(&["-n", &namespace, "get", "pods", "-l", "app=web", "-o", "json"]).await.ok());
    for pod in pods["items"].as_array().unwrap() {
        let conditions = pod["status"]["conditions"].as_array().unwrap();
        for wanted in ["PodScheduled", "Initialized", "ContainersReady", "Ready"] {
            let holds = conditions.iter().any(|c| c["type"] == wanted && c["status"] == "True");
            assert!(holds, "{wanted} in {conditions:?}");
        }
        assert_eq!(pod["status"]["containerStatuses"].as_array().unwrap().len(), 2, "{pod}");
    }
    eventually("an address for each replica", LONG, async || {
        let slices = kubectl(&["-n", &namespace, "get", "endpointslices", "-o", "json"]).await.result()?;
        match json(&slices)["items"][0]["endpoints"].as_array().map(Vec::len) {
            Some(3) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    kubectl(&["-n", &namespace, "delete", "deployment", "web", "--wait=false"]).await.ok();
    eventually("the pods' end", LONG, async || {
        let pods =
            kubectl(&["-n", &namespace, "get", "pods", "-l", "app=web", "-o", "name"]).await.result()?;
        if pods.is_empty() { Ok(()) } else { Err(pods) }
    })
    .await;
}

#[tokio::test]
async fn claims_are_bound() {
    let namespace = namespace().await;
    let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data"}, "spec": {
        "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}},
    }});
    kubectl_stdin(&["-n", &namespace, "apply", "-f", "-"], &claim.to_string()).await.ok();
    eventually("the claim to be bound", LONG, async || {
        let phase = ["-n", &namespace, "get", "pvc", "data", "-o", "jsonpath={.status.phase}"];
        let phase = kubectl(&phase).await.result()?;
        if phase == "Bound" { Ok(()) } else { Err(phase) }
    })
    .await;
}

#[tokio::test]
async fn requests_are_counted_exactly() {
    let plane = plane().await;
    let namespace = namespace().await;
    let audit = plane.audit();
    let mark = audit.mark().unwrap();
    let client = plane.client().unwrap();
    let maps: kube::Api<k8s_openapi::api::core::v1::ConfigMap> = kube::Api::namespaced(client, &namespace);
    let map = serde_json::from_value(json!({"metadata": {"name": "counted"}})).unwrap();
    maps.create(&kube::api::PostParams::default(), &map).await.unwrap();
    maps.get("counted").await.unwrap();
    maps.get("counted").await.unwrap();
    assert!(maps.get("missing").await.is_err());
    let ours = || -> Vec<_> {
        let mut requests = audit.requests_since(mark).unwrap();
        // Other tests use the same user agent, but not this namespace.
        requests.retain(|r| r.user_agent.starts_with("operetta-local/") && r.namespace == *namespace);
        requests
    };
    eventually("the entry of the last request", LONG, async || {
        if ours().iter().any(|r| r.code == 404) { Ok(()) } else { Err(format!("{:?}", ours())) }
    })
    .await;
    let seen: Vec<_> = ours().into_iter().map(|r| (r.verb, r.resource, r.name, r.code, r.user)).collect();
    let expected = [
        ("create", "counted", 201),
        ("get", "counted", 200),
        ("get", "counted", 200),
        ("get", "missing", 404),
    ]
    .map(|(verb, name, code)| (verb.into(), "configmaps".into(), name.into(), code, "admin".into()));
    assert_eq!(seen, expected);
}

/// Tests with a control plane of their own run one at a time, because each takes half a gigabyte.
static TURN: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// A control plane for one test that harms it.
async fn own(nodes: usize) -> ControlPlane {
    ControlPlane::start(Options { nodes, ..options() }).await.unwrap_or_else(|error| panic!("{error}"))
}

#[tokio::test]
async fn components_can_be_paused_killed_and_restarted() {
    let _turn = TURN.lock().await;
    let plane = own(0).await;
    let client = plane.client().unwrap();
    let maps: kube::Api<k8s_openapi::api::core::v1::ConfigMap> = kube::Api::namespaced(client, "default");
    let map = serde_json::from_value(json!({"metadata": {"name": "kept"}})).unwrap();
    maps.create(&kube::api::PostParams::default(), &map).await.unwrap();

    plane.pause(Component::ApiServer).unwrap();
    // The guard passes the signal on.
    crate::support::until_paused(plane.pid(Component::ApiServer).unwrap()).await;
    let paused = tokio::time::timeout(Duration::from_millis(500), maps.get("kept")).await;
    assert!(paused.is_err(), "a paused server answers: {paused:?}");
    plane.resume(Component::ApiServer).unwrap();
    maps.get("kept").await.unwrap();

    let stored = plane.etcdctl().args(["get", "--keys-only", "/registry/configmaps/default/kept"]).output();
    let stored = String::from_utf8(stored.unwrap().stdout).unwrap();
    assert_eq!(stored.trim(), "/registry/configmaps/default/kept");

    let before = plane.pid(Component::ApiServer).unwrap();
    plane.kill(Component::ApiServer).await.unwrap();
    assert_eq!(plane.pid(Component::ApiServer), None);
    plane.restart(Component::Etcd).await.unwrap();
    plane.restart(Component::ApiServer).await.unwrap();
    assert_ne!(plane.pid(Component::ApiServer), Some(before));
    maps.get("kept").await.unwrap();
    let quiet = tokio::time::timeout(Duration::from_millis(200), plane.failure()).await;
    assert!(quiet.is_err(), "what was asked for is no failure: {quiet:?}");
    assert!(matches!(plane.pause(Component::Kwok), Err(Error::NoSuchComponent { .. })));

    // An unexpected end is reported, with the log.
    crate::support::signal(plane.pid(Component::ControllerManager).unwrap(), Signal::KILL);
    let failure = tokio::time::timeout(LONG, plane.failure()).await.unwrap().to_string();
    assert!(failure.starts_with("kube-controller-manager ended (signal: 9 (SIGKILL))"), "{failure}");

    let (folder, pids) = traces(&plane);
    plane.stop().await;
    assert_gone(&folder, &pids);
}

/// The folder and the processes of a control plane, including the guard.
fn traces(plane: &ControlPlane) -> (PathBuf, Vec<u32>) {
    let mut pids: Vec<u32> = Component::ALL.iter().filter_map(|c| plane.pid(*c)).collect();
    let status = std::fs::read_to_string(format!("/proc/{}/status", pids[0])).unwrap();
    let guard = status.lines().find_map(|line| line.strip_prefix("PPid:")).unwrap();
    pids.push(guard.trim().parse().unwrap());
    (plane.folder().to_path_buf(), pids)
}

#[track_caller]
fn assert_gone(folder: &Path, pids: &[u32]) {
    assert!(!folder.exists(), "{} is left", folder.display());
    let left: Vec<_> = pids.iter().filter(|pid| alive(**pid)).collect();
    assert!(left.is_empty(), "processes {left:?} of {pids:?} are left");
}

/// Not a test: a process with a control plane, which `abrupt_end_leaves_no_process_or_file` ends abruptly.
#[tokio::test]
#[ignore = "is started by another test"]
async fn child_with_a_control_plane() {
    let Some(report) = std::env::var_os("OPERETTA_TEST_REPORT") else { return };
    // A background process may have inherited that SIGINT is ignored; a handler undoes that.
    let mut interrupt = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::interrupt()).unwrap();
    let plane = own(1).await;
    let client = plane.client().unwrap();
    let claims: kube::Api<k8s_openapi::api::core::v1::PersistentVolumeClaim> =
        kube::Api::namespaced(client.clone(), "default");
    let claim = serde_json::from_value(json!({"metadata": {"name": "data"}, "spec": {
        "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}},
    }}));
    claims.create(&kube::api::PostParams::default(), &claim.unwrap()).await.unwrap();
    let volumes: kube::Api<k8s_openapi::api::core::v1::PersistentVolume> = kube::Api::all(client);
    let volume = eventually("a volume", LONG, async || {
        let list = volumes.list(&kube::api::ListParams::default()).await.map_err(|e| e.to_string())?;
        let path = list.items.first().and_then(|v| Some(v.spec.as_ref()?.host_path.as_ref()?.path.clone()));
        path.ok_or_else(|| "none".to_owned())
    })
    .await;
    let (folder, pids) = traces(&plane);
    let text = json!({"folder": folder, "pids": pids, "volume": volume}).to_string();
    // Write by a rename, because the parent polls for the file.
    let mut file = tempfile::NamedTempFile::new_in(folder).unwrap();
    file.write_all(text.as_bytes()).unwrap();
    std::fs::rename(file.path(), report).unwrap();
    assert!(std::env::var_os("OPERETTA_TEST_PANIC").is_none(), "a panic, as asked");
    interrupt.recv().await;
    std::process::exit(130);
}

#[tokio::test]
async fn abrupt_end_leaves_no_process_or_file() {
    let _turn = TURN.lock().await;
    for way in ["SIGKILL", "Ctrl-C", "panic"] {
        let report = tempfile::tempdir().unwrap();
        let path = report.path().join("report");
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--ignored", "--exact", "control_plane::child_with_a_control_plane", "--nocapture"])
            .env("OPERETTA_TEST_REPORT", &path)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0);
        if way == "panic" {
            command.env("OPERETTA_TEST_PANIC", "1");
        }
        let mut child = command.spawn().unwrap();
        let text = eventually("the child's report", LONG, async || std::fs::read_to_string(&path)).await;
        let report = json(&text);
        let folder = PathBuf::from(report["folder"].as_str().unwrap());
        let volume = PathBuf::from(report["volume"].as_str().unwrap());
        let pids: Vec<u32> = serde_json::from_value(report["pids"].clone()).unwrap();
        assert_eq!(pids.len(), 6, "{report}");
        match way {
            "SIGKILL" => child.kill().unwrap(),
            // Signal the whole foreground group, as a terminal does.
            "Ctrl-C" => {
                let group = Pid::from_child(&child);
                rustix::process::kill_process_group(group, Signal::INT).unwrap();
            }
            _ => {}
        }
        let status = child.wait().unwrap();
        assert!(!status.success(), "{way}: {status}");
        let ended = Instant::now();
        eventually("the end of everything", LONG, async || {
            let left: Vec<_> = pids.iter().filter(|pid| alive(**pid)).collect();
            if left.is_empty() && !folder.exists() { Ok(()) } else { Err(format!("{way}: {left:?}")) }
        })
        .await;
        eprintln!("{way}: gone after {:?}", ended.elapsed());
        assert_gone(&folder, &pids);
        assert!(!volume.exists(), "{way}: {} is left", volume.display());
    }
}

#[tokio::test]
async fn killed_guard_leaves_no_process_or_file() {
    let _turn = TURN.lock().await;
    let plane = own(0).await;
    let (folder, pids) = traces(&plane);
    crate::support::signal(*pids.last().unwrap(), Signal::KILL);
    let failure = tokio::time::timeout(LONG, plane.failure()).await.unwrap().to_string();
    let expected = "the guard process of the control plane has ended (signal: 9 (SIGKILL))";
    assert_eq!(failure, expected);
    eventually("the end of the components", LONG, async || {
        let left: Vec<_> = pids.iter().filter(|pid| alive(**pid)).collect();
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    })
    .await;
    drop(plane);
    assert_gone(&folder, &pids);
}

#[tokio::test]
async fn guard_command_is_refused_for_users() {
    let mut operetta = crate::support::Operetta::run_with(&["__guard"], &[]);
    let status = operetta.wait(LONG).await;
    assert_eq!(status.code(), Some(1));
    operetta.wait_for("this command is internal", LONG).await;
}

/// Starts a control plane that must fail and leave no files. Returns the error.
async fn fails(change: impl FnOnce(&mut Options)) -> String {
    let _turn = TURN.lock().await;
    let folder = tempfile::tempdir().unwrap();
    let mut options = Options { nodes: 0, parent_folder: Some(folder.path().into()), ..options() };
    change(&mut options);
    let error = ControlPlane::start(options).await.expect_err("it is to fail").to_string();
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
    error
}

#[tokio::test]
async fn port_in_use_is_reported() {
    let taken = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = taken.local_addr().unwrap().port();
    let error = fails(|options| options.port = Some(port)).await;
    let expected =
        format!("port {port} of 127.0.0.1 is in use by another process\n  help: choose another port");
    assert!(error.starts_with(&expected), "{error}");
}

#[tokio::test]
async fn unknown_api_server_flag_is_reported() {
    let error = fails(|options| options.apiserver_flags = vec!["--no-such-flag=1".into()]).await;
    assert!(error.contains("kube-apiserver does not know the flag --no-such-flag"), "{error}");
    assert!(error.lines().count() < 12, "{error}");
}

#[tokio::test]
async fn a_missing_go_says_what_to_install() {
    let cache = tempfile::tempdir().unwrap();
    let error = fails(|options| {
        options.environment =
            Environment { assets: None, path: Some(String::new().into()), cache: Some(cache.path().into()) };
    })
    .await;
    assert!(error.contains("Go is needed to build etcd, kube-apiserver"), "{error}");
    assert!(error.contains("install Go 1.26 or newer"), "{error}");
}

#[tokio::test]
async fn unusable_guard_and_timeout_are_reported() {
    let error = fails(|options| options.guard = Some("/bin/true".into())).await;
    assert!(error.contains("the guard process of the control plane has ended"), "{error}");
    let error = fails(|options| options.guard = Some("/no/such/program".into())).await;
    assert!(error.contains("cannot start /no/such/program"), "{error}");
    let error = fails(|options| {
        options.progress = Arc::new(|_| {});
        options.timeout = Duration::from_millis(50);
    })
    .await;
    assert!(error.contains("the control plane is not ready after 0 s: still waiting for"), "{error}");
}
