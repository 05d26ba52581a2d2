//! `operetta get` and `operetta tree` as users run them, compared with kubectl. They are processes: a command connects by a kubeconfig
//! only, and prints to the standard output of its process.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use crate::support::{
    self, CRD, ControlPlane, ETCD, LONG, OPERETTA, Operetta, Output, POD, Scene, WEB_APP, condition, etcd,
    eventually, file, find_in, is_pod_ready, kubectl_of, own_embedded_plane, own_plane, run,
};
use futures::StreamExt;
use http::Request;
use serde_json::{Value, json};
use tokio::sync::OnceCell;

const CLUSTER: &str = "example-etcd-cluster";

/// The control plane of these tests: `get` shows all kinds, so it has no kinds of other tests.
async fn plane() -> &'static Arc<ControlPlane> {
    static PLANE: OnceCell<Arc<ControlPlane>> = OnceCell::const_new();
    PLANE.get_or_init(own_embedded_plane).await
}

async fn kubectl(args: &[&str]) -> Output {
    kubectl_of(plane().await, args, "").await
}

/// A namespace, and a manager.
async fn managed() -> Scene {
    static MANAGER: OnceCell<Operetta> = OnceCell::const_new();
    MANAGER
        .get_or_init(async || {
            etcd::watch(plane().await);
            run(plane().await, &[etcd::package(), "operators/webapp"]).watching(4).await
        })
        .await;
    Scene::on(plane().await).await
}

/// Runs `operetta` with the kubeconfig of the control plane, or with another.
async fn operetta(kubeconfig: Option<&PathBuf>, args: &[&str]) -> Output {
    let default = plane().await.kubeconfig_path().to_owned();
    support::operetta(kubeconfig.unwrap_or(&default), args).await
}

/// The fields of each line; only the message at the end contains blanks.
fn fields(text: &str) -> Vec<Vec<&str>> {
    text.lines().map(|line| line.split_whitespace().collect()).collect()
}

/// A namespace with an etcd cluster and a web application, both Ready.
async fn ready() -> Scene {
    let scene = managed().await;
    scene.apply(&file("examples/etcd/example-etcd-cluster.yaml")).await;
    scene.apply(&file("examples/webapp/minimal.yaml")).await;
    scene.ready(ETCD, CLUSTER).await;
    scene.ready(WEB_APP, "hello").await;
    scene
}

#[tokio::test]
async fn instances_are_shown_as_kubectl_shows_objects() {
    let scene = ready().await;
    let n = scene.namespace();
    let table = operetta(None, &["get", "-n", n]).await.ok();
    let lines = fields(&table);
    assert_eq!(lines[0], ["KIND", "NAME", "READY", "STATUS", "REASON", "AGE"]);
    assert_eq!(lines[1][..5], ["EtcdCluster", CLUSTER, "True", "Ready", "<none>"]);
    assert_eq!(lines[2][..5], ["WebApp", "hello", "True", "Ready", "<none>"]);
    assert_eq!(lines.len(), 3, "{table}");

    let wide = operetta(None, &["get", "-n", n, "-o", "wide", "--no-headers"]).await.ok();
    let lines = fields(&wide);
    assert_eq!((lines[0][5], lines[0][7]), ("7/7", "etcd"), "{wide}");
    assert_eq!((lines[1][5], lines[1][7]), ("2/2", "webapp"), "{wide}");
    assert!(lines[0][9..].join(" ").contains("children are applied and ready"), "{wide}");

    let category = scene.kubectl(&["get", "operetta", "-o", "name"]).await;
    let etcd = format!("etcdcluster.etcd.database.coreos.com/{CLUSTER}");
    // Operetta's own kinds are in the category as well.
    let found: BTreeSet<_> =
        category.lines().filter(|name| !name.contains(".operetta.dev/") || name.contains(".apps.")).collect();
    assert_eq!(found, BTreeSet::from([etcd.as_str(), "webapp.apps.operetta.dev/hello"]));

    let all = operetta(None, &["get", "-A"]).await.ok();
    assert_eq!(fields(&all)[0][0], "NAMESPACE");
    assert!(fields(&all).iter().any(|line| line[..3] == [n, "WebApp", "hello"]), "{all}");

    // Both print the same objects in the same text, apart from JSON's indentation.
    for args in [
        &["get", "etcdclusters,webapps", "-o", "json"][..],
        &["get", "etcdclusters,webapps", "-o", "yaml"],
        &["get", "etcdclusters,webapps", "-o", "name"],
        &["get", "etcdcluster", CLUSTER, "-o", "yaml"],
        &["get", "webapp/hello", "-o", "name"],
    ] {
        // An object may change between the two commands.
        eventually("the same of both", LONG, async || {
            let ours = operetta(None, &[args, &["-n", n]].concat()).await.ok();
            let theirs = scene.kubectl(args).await;
            let read = |text: &str| serde_json::from_str::<Value>(text).unwrap_or_else(|_| text.into());
            if read(&ours) == read(&theirs) { Ok(()) } else { Err(format!("{ours}\nand\n{theirs}")) }
        })
        .await;
    }

    // Label selectors work as with kubectl.
    scene.kubectl(&["label", "webapp", "hello", "team=blue"]).await;
    let chosen = operetta(None, &["get", "-n", n, "-l", "team in (blue,red)", "-o", "name"]).await.ok();
    assert_eq!(chosen, "webapp.apps.operetta.dev/hello\n");
}

#[tokio::test]
async fn all_names_of_kinds_work_and_missing_ones_are_reported() {
    let scene = ready().await;
    let n = scene.namespace();
    for word in
        ["EtcdCluster", "etcdcluster", "etcdclusters", "etcd", "etcdclusters.etcd.database.coreos.com"]
    {
        let line = operetta(None, &["get", word, "-n", n, "-o", "name"]).await.ok();
        assert_eq!(line, format!("etcdcluster.etcd.database.coreos.com/{CLUSTER}\n"), "{word}");
    }
    for (args, told) in [
        (&["webap"][..], "there is no kind webap; did you mean webapp?"),
        (&["pods"], "pods is not a kind of a package"),
        (&["webapp/hello", "-A"], "-A cannot be used with a name"),
        (&["webapp", "hello", "-l", "a=b"], "names or a selector"),
        (&["webapp", "a", "b"], "there is no WebApp b in namespace"),
    ] {
        let place: &[&str] = if args.contains(&"-A") { &[] } else { &["-n", n] };
        let output = operetta(None, &[&["get"], args, place].concat()).await;
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        let stderr = output.fails();
        assert!(stderr.starts_with("error: ") && stderr.contains(told), "{args:?}: {stderr}");
    }
    // Objects that exist are shown even if others do not.
    let output = operetta(None, &["get", "-n", n, "webapp/hello", "webapp/nope", "nope/nope"]).await;
    assert_eq!(fields(&output.stdout)[1][1], "hello");
    assert_eq!(output.fails().lines().count(), 2);

    let empty = Scene::on(plane().await).await;
    let output = operetta(None, &["get", "-n", empty.namespace()]).await;
    assert_eq!(output.stderr, format!("No resources found in {} namespace.\n", empty.namespace()));
    assert_eq!(output.ok(), "");
}

#[tokio::test]
async fn forbidden_kind_is_reported_and_others_are_shown() {
    let scene = ready().await;
    let n = scene.namespace();
    scene
        .apply(&format!(
            "apiVersion: v1
kind: ServiceAccount
metadata: {{name: reader}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {{name: reader}}
rules: [{{apiGroups: [apps.operetta.dev], resources: [webapps], verbs: [get, list, watch]}}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {{name: reader}}
roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: Role, name: reader}}
subjects: [{{kind: ServiceAccount, name: reader, namespace: {n}}}]
"
        ))
        .await;
    let folder = tempfile::tempdir().expect("a folder");
    let kubeconfig = folder.path().join("kubeconfig");
    let token = scene.kubectl(&["create", "token", "reader"]).await;
    std::fs::copy(plane().await.kubeconfig_path(), &kubeconfig).expect("a copy");
    let at = kubeconfig.display().to_string();
    for args in [
        &["set-credentials", "reader", "--token", token.trim()][..],
        &["set-context", "--current", "--user=reader", "--namespace", n],
    ] {
        kubectl(&[&["config", "--kubeconfig", &at], args].concat()).await.ok();
    }
    // Without the right to list CRDs, the kinds come from discovery.
    let output = operetta(Some(&kubeconfig), &["get", "-o", "wide"]).await;
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(fields(&output.stdout)[1][..3], ["WebApp", "hello", "True"]);
    assert!(output.stdout.contains("<unknown>"), "{}", output.stdout);

    scene
        .apply(&format!(
            "apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {{name: {n}-definitions}}
rules: [{{apiGroups: [apiextensions.k8s.io], resources: [customresourcedefinitions], verbs: [list]}}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {{name: {n}-definitions}}
roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: {n}-definitions}}
subjects: [{{kind: ServiceAccount, name: reader, namespace: {n}}}]
"
        ))
        .await;
    // Rights take effect a moment later.
    let output = eventually("the rights", LONG, async || {
        let output = operetta(Some(&kubeconfig), &["get", "-o", "wide"]).await;
        if output.stdout.contains("<unknown>") { Err(output.stdout) } else { Ok(output) }
    })
    .await;
    assert_eq!(output.status.code(), Some(1));
    // The namespace is that of the context.
    assert_eq!(fields(&output.stdout)[1][..3], ["WebApp", "hello", "True"]);
    let told =
        format!("error: this user may not list etcdclusters.etcd.database.coreos.com in namespace {n}: ");
    assert!(output.stderr.lines().any(|line| line.starts_with(&told)), "{}", output.stderr);
    let denied = operetta(Some(&kubeconfig), &["get", "-A"]).await.fails();
    // Another test may have added a kind.
    for kind in ["etcdbackups", "etcdclusters", "etcdrestores", "webapps"] {
        let refused =
            |line: &str| line.contains(&format!("list {kind}.")) && line.contains("in all namespaces: ");
        assert!(denied.lines().any(refused), "{kind}: {denied}");
    }
    assert_eq!(denied.matches("help: -n NAMESPACE").count(), 1, "{denied}");

    let output = operetta(Some(&kubeconfig), &["tree", "webapp/hello"]).await;
    assert_eq!(fields(&output.stdout)[1][..3], ["hello", "WebApp", &format!("{n}/hello")]);
    let told = output.fails();
    assert!(
        told.contains("error: deployments are not shown: this user may not list deployments.apps"),
        "{told}"
    );
    // Rights in the namespace are enough.
    let role = "[{\"op\": \"add\", \"path\": \"/rules/-\", \"value\": {\"apiGroups\": [\"*\"], \"resources\": [\"*\"], \"verbs\": [\"list\"]}}]";
    scene.kubectl(&["patch", "role", "reader", "--type=json", "-p", role]).await;
    let tree = eventually("the rights", LONG, async || {
        operetta(Some(&kubeconfig), &["tree", "webapp/hello"]).await.result()
    })
    .await;
    assert!(tree.contains("Deployment hello") && tree.contains("Service hello"), "{tree}");
}

#[tokio::test]
async fn unreachable_api_server_is_named_with_a_remedy() {
    let folder = tempfile::tempdir().expect("a folder");
    let kubeconfig = folder.path().join("kubeconfig");
    // Use the port of a listener that is closed.
    let port =
        std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("its number").port();
    let text = format!(
        "{{apiVersion: v1, kind: Config, current-context: c, contexts: [{{name: c, context: {{cluster: c, user: u}}}}],
        clusters: [{{name: c, cluster: {{server: 'https://127.0.0.1:{port}'}}}}], users: [{{name: u, user: {{}}}}]}}"
    );
    std::fs::write(&kubeconfig, text).expect("a file");
    for args in [&["get"][..], &["get", "-w"]] {
        let output = operetta(Some(&kubeconfig), args).await;
        assert_eq!(output.status.code(), Some(1));
        let stderr = output.fails();
        assert!(
            stderr.contains(&format!("https://127.0.0.1:{port}/ (context c) cannot be reached")),
            "{stderr}"
        );
    }
}

#[tokio::test]
async fn a_watch_prints_what_changes() {
    let scene = ready().await;
    let n = scene.namespace().to_owned();
    let mut watch = Operetta::run(plane().await, &["get", "-n", &n, "--watch"]);
    watch.wait_for("hello", LONG).await;
    scene.kubectl(&["delete", "pod", &format!("{CLUSTER}-1"), "--wait=false"]).await;
    watch.wait_for("Reconciling", LONG).await;
    scene.until("a new one", POD, &format!("{CLUSTER}-1"), is_pod_ready).await;
    scene.ready(ETCD, CLUSTER).await;
    scene.kubectl(&["delete", "webapp", "hello"]).await;
    watch.wait_for("Deleted", LONG).await;
    let output = watch.output();
    let lines = fields(&output);
    assert_eq!(lines[0], ["KIND", "NAME", "READY", "STATUS", "REASON", "AGE"], "{output}");
    let of = |kind: &str| -> Vec<Vec<&str>> {
        lines.iter().filter(|line| line[0] == kind).map(|line| line[2..5].to_vec()).collect()
    };
    let clusters = of("EtcdCluster");
    assert_eq!(clusters[0], ["True", "Ready", "<none>"], "{output}");
    assert!(clusters[1..].iter().any(|line| line[..2] == ["False", "Reconciling"]), "{output}");
    assert_eq!(clusters.last(), Some(&vec!["True", "Ready", "<none>"]), "{output}");
    assert!(clusters.windows(2).all(|pair| pair[0] != pair[1]), "a line twice: {output}");
    assert_eq!(of("WebApp").last(), Some(&vec!["False", "Deleted", "<none>"]), "{output}");
}

#[tokio::test]
async fn works_as_a_kubectl_plugin() {
    let scene = ready().await;
    let folder = tempfile::tempdir().expect("a folder");
    std::os::unix::fs::symlink(OPERETTA, folder.path().join("kubectl-operetta")).expect("a link");
    let plane = plane().await;
    let run = async |args: &[&str]| {
        let output = tokio::process::Command::new(plane.kubectl().await)
            .args(args)
            .env("PATH", folder.path())
            .env("KUBECONFIG", plane.kubeconfig_path())
            .output()
            .await
            .expect("kubectl runs");
        (output.status, String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
    };
    let (status, text) = run(&["operetta", "get", "webapps", "-n", scene.namespace(), "-o", "name"]).await;
    assert!(status.success() && text == "webapp.apps.operetta.dev/hello\n", "{text}");
    let (status, text) = run(&["operetta", "get", "--nonsense"]).await;
    assert!(!status.success() && text.contains("Usage: kubectl operetta get"), "{text}");
}

/// Creates many instances of a package that no manager has, so that nothing reconciles them.
async fn many(plane: &Arc<ControlPlane>, scene: &Scene, count: usize) {
    let crd = "apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: manies.get.operetta.dev, labels: {operetta.dev/operator: many}}
spec:
  group: get.operetta.dev
  names: {kind: Many, plural: manies, singular: many, shortNames: [mn]}
  scope: Namespaced
  versions:
    - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
";
    // Apply the CRD as the registrar does.
    let apply = ["apply", "--server-side", "--field-manager=operetta", "-f", "-"];
    kubectl_of(plane, &apply, crd).await.ok();
    eventually("the CRD to be served", LONG, async || {
        let crd = find_in(plane, CRD, None, "manies.get.operetta.dev").await.unwrap_or_default();
        let established = condition(&crd, "Established")["status"] == "True";
        if established { Ok(()) } else { Err(format!("{:#}", crd["status"])) }
    })
    .await;
    let path = format!("/apis/get.operetta.dev/v1/namespaces/{}/manies", scene.namespace());
    let (client, path) = (scene.client(), path.as_str());
    let make = |i: usize| {
        let client = client.clone();
        async move {
            let body = json!({"apiVersion": "get.operetta.dev/v1", "kind": "Many", "metadata": {"name": format!("m-{i:05}")}});
            let request = Request::post(path)
                .header("Content-Type", "application/json")
                .body(body.to_string().into_bytes())
                .expect("a request");
            client.request::<Value>(request).await.expect("it is created");
        }
    };
    futures::stream::iter(0..count).map(make).buffer_unordered(16).collect::<Vec<_>>().await;
}

#[tokio::test]
async fn many_pages_are_read_and_a_closed_pipe_ends_it_quietly() {
    // Use a separate control plane: a CRD that is not served yet would be an error of `get` without a kind.
    let plane = own_plane().await;
    let kubeconfig = plane.kubeconfig_path().to_owned();
    let scene = Scene::on(&plane).await;
    let n = scene.namespace();
    let count: usize =
        std::env::var("OPERETTA_MANY").ok().and_then(|text| text.parse().ok()).unwrap_or(1_100);
    many(&plane, &scene, count).await;
    let started = Instant::now();
    let table = eventually("the kind to be found", LONG, async || {
        support::operetta(&kubeconfig, &["get", "mn", "-n", n, "--no-headers"]).await.result()
    })
    .await;
    eprintln!("{count} instances in {:.1} s", started.elapsed().as_secs_f32());
    let lines = fields(&table);
    assert_eq!(lines.len(), count);
    for (i, line) in lines.iter().enumerate() {
        assert_eq!(line[..5], ["Many", &format!("m-{i:05}"), "Unknown", "NotObserved", "<none>"]);
    }
    for format in ["json", "wide", "name"] {
        let command = format!("{OPERETTA} get mn -n {n} -o {format} | head -1; echo ${{PIPESTATUS[0]}}");
        let output = tokio::process::Command::new("bash")
            .args(["-c", &command])
            .env("KUBECONFIG", &kubeconfig)
            .output()
            .await
            .expect("bash runs");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.ends_with("\n0\n") && output.stderr.is_empty(), "{text} {:?}", output.stderr);
    }
}

#[tokio::test]
async fn a_tree_shows_what_belongs_to_an_instance() {
    let scene = ready().await;
    let n = scene.namespace();
    let tree = operetta(None, &["tree", "etcdcluster", CLUSTER, "-n", n]).await.ok();
    let lines = fields(&tree);
    assert_eq!(lines[0], ["NAME", "OBJECT", "READY", "STATUS", "AGE", "MESSAGE"]);
    assert_eq!(lines[1][..5], [CLUSTER, "EtcdCluster", &format!("{n}/{CLUSTER}"), "True", "Ready"], "{tree}");
    let line = |words: &[&str]| lines.iter().any(|line| line.windows(words.len()).any(|part| part == words));
    assert!(line(&["client", "Service", &format!("{CLUSTER}-client"), "True", "Ready"]), "{tree}");
    assert!(line(&["members", "3/3"]), "{tree}");
    assert!(line(&["[2]", "Pod", &format!("{CLUSTER}-2"), "True", "Ready"]), "{tree}");
    assert!(tree.contains("\n\nAvailable"), "{tree}");

    // The tree has the children that the label finds, and the pods that a workload owns.
    let shape = operetta(None, &["tree", "webapp/hello", "-n", n, "-o", "json"]).await.ok();
    let shape: Value = serde_json::from_str(&shape).expect("JSON");
    let uid = scene.get(WEB_APP, "hello").await["metadata"]["uid"].clone();
    assert_eq!(
        (&shape["kind"], &shape["instance"]["object"]["uid"], &shape["problems"]),
        (&json!("Tree"), &uid, &json!([]))
    );
    let label = format!("operetta.dev/instance-uid={}", uid.as_str().unwrap_or_default());
    let theirs = scene.kubectl(&["get", "deployments,services,ingresses", "-l", &label, "-o", "json"]).await;
    let theirs: Value = serde_json::from_str(&theirs).expect("JSON");
    let uids = |list: &Value, path: &str| -> BTreeSet<String> {
        let items = list.as_array().map(Vec::as_slice).unwrap_or_default();
        items.iter().filter_map(|item| item.pointer(path)?.as_str().map(str::to_owned)).collect()
    };
    let children = &shape["instance"]["children"];
    assert_eq!(uids(children, "/object/uid"), uids(&theirs["items"], "/metadata/uid"));
    let deployment = children.as_array().and_then(|all| all.iter().find(|child| child["id"] == "deployment"));
    let set = &deployment.expect("it is a child")["dependents"][0];
    assert_eq!((&set["object"]["kind"], &set["ready"]), (&json!("ReplicaSet"), &json!(true)));
    let pods = scene.list(POD).await;
    let pods: Vec<&Value> = pods
        .iter()
        .filter(|pod| pod["metadata"]["ownerReferences"][0]["uid"] == set["object"]["uid"])
        .collect();
    assert_eq!(pods.len(), 1);
    assert_eq!(set["dependents"][0]["object"]["uid"], pods[0]["metadata"]["uid"]);
    let yaml = operetta(None, &["tree", "webapp/hello", "-n", n, "-o", "yaml"]).await.ok();
    assert_eq!(operetta::yaml::from_str(&yaml).expect("YAML"), shape);

    for (args, told) in [
        (&["etcdcluster"][..], "etcdcluster is not an instance: use KIND/NAME"),
        (&["webapp/nope"], "there is no WebApp nope in namespace"),
        (&["webap/hello"], "did you mean webapp?"),
        (&["pod/x"], "pods is not a kind of a package"),
    ] {
        let output = operetta(None, &[&["tree", "-n", n], args].concat()).await;
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        let stderr = output.fails();
        assert!(stderr.contains(told), "{args:?}: {stderr}");
    }
}

/// An object has the labels and the field manager of a child, but is in a namespace where no template can
/// create one.
#[tokio::test]
async fn an_object_with_forged_labels_is_not_shown_as_a_child() {
    let scene = ready().await;
    let n = scene.namespace();
    let elsewhere = Scene::on(plane().await).await;
    let map = format!("{CLUSTER}-bootstrap");
    let real: Value =
        serde_json::from_str(&scene.kubectl(&["get", "configmap", &map, "-o", "json"]).await).expect("JSON");
    let mut forged = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {
        "name": "forged", "labels": real["metadata"]["labels"], "annotations": real["metadata"]["annotations"],
    }});
    forged["metadata"]["labels"]["operetta.dev/instance-namespace"] = n.into();
    let apply = ["apply", "--server-side", "--field-manager=operetta/etcd", "-f", "-"];
    elsewhere.kubectl_input(&apply, &forged.to_string()).await.expect("applied");

    let of = format!("etcd/{CLUSTER}");
    let tree = operetta(None, &["tree", &of, "-n", n]).await.ok();
    assert!(tree.contains(&map) && !tree.contains("forged"), "{tree}");
    let wide = operetta(None, &["get", "etcd", "-A", "-o", "wide"]).await.ok();
    let lines = fields(&wide);
    let line = lines.iter().find(|line| line[0] == n).expect("the cluster");
    assert_eq!(line[6], "7/7", "{wide}");
    forged["metadata"]["annotations"]["operetta.dev/deletion-pending"] = "true".into();
    elsewhere.kubectl_input(&apply, &forged.to_string()).await.expect("applied");
    let kubeconfig = plane().await.kubeconfig_path().display().to_string();
    let args = ["plan", "approve", &of, "--all", "--yes", "-n", n, "--kubeconfig", &kubeconfig];
    let refused = operetta(None, &args).await.fails();
    assert!(refused.contains("asks for approval"), "{refused}");
}

#[tokio::test]
async fn a_tree_shows_what_holds_a_child_and_what_is_awaited() {
    let scene = ready().await;
    let n = scene.namespace();
    let pod = format!("{CLUSTER}-1");
    let hold = |finalizers: Value| json!({"metadata": {"finalizers": finalizers}});
    scene.patch(POD, &pod, "merge", &hold(json!(["test.operetta.dev/hold"]))).await;
    scene.kubectl(&["delete", "pod", &pod, "--wait=false"]).await;
    let reconciling = |o: &Value| condition(o, "Reconciling")["status"] == "True";
    scene.until("not ready", ETCD, CLUSTER, reconciling).await;
    let tree = operetta(None, &["tree", &format!("etcd/{CLUSTER}"), "-n", n]).await.ok();
    let line = tree.lines().find(|line| line.contains(&format!("Pod {pod} "))).unwrap_or_default();
    assert!(
        line.contains("Terminating") && line.ends_with("waits for the finalizer test.operetta.dev/hold"),
        "{tree}"
    );
    assert!(tree.contains("2/3"), "{tree}");
    let message = condition(&scene.get(ETCD, CLUSTER).await, "Reconciling")["message"].clone();
    let awaited = tree.lines().find(|line| line.starts_with("Reconciling (")).unwrap_or_default();
    assert!(awaited.ends_with(message.as_str().unwrap_or("?")), "{message} {tree}");
    let mut watch = Operetta::run(plane().await, &["tree", &format!("etcd/{CLUSTER}"), "-n", n, "--watch"]);
    watch.wait_for("2/3", LONG).await;
    scene.patch(POD, &pod, "merge", &hold(Value::Null)).await;
    watch.wait_for("3/3", LONG).await;
}
