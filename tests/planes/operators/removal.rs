//! Removing packages by command, and what happens to their instances.

use std::collections::BTreeSet;

use serde_json::json;

use super::{Cluster, MANAGERS, OPERATOR, Package, Part, REVISION, SIZE, is_active, says, scene};
use crate::support::{
    CONFIG_MAP, LONG, NAMESPACE, eventually, identity, is_ready, kubectl_of, operetta, own_plane,
};

/// A `--timeout` that is longer than tests wait for a program: a command ends before because it knows the cause.
const LATE: &str = "--timeout=1h";

/// Fault 19: an uninstall is refused while there are instances; afterwards nothing remains.
#[tokio::test]
async fn uninstall_is_refused_while_there_are_instances() {
    let cluster = Cluster::on(own_plane().await).await;
    let keys = async || -> BTreeSet<String> {
        let kinds = "operators,operatorrevisions,customresourcedefinitions";
        let all = cluster.kubectl(&["get", kinds, "-o", "name"], "").await.ok();
        let parts = cluster.kubectl(&["-n", MANAGERS, "get", "configmaps", "-o", "name"], "").await.ok();
        all.lines().chain(parts.lines()).map(ToOwned::to_owned).collect()
    };
    cluster.kubectl(&["create", "namespace", MANAGERS], "").await.ok();
    // Kubernetes creates one ConfigMap in each namespace.
    let before = eventually("the ConfigMap of Kubernetes", LONG, async || {
        let keys = keys().await;
        if keys.contains("configmap/kube-root-ca.crt") { Ok(keys) } else { Err(format!("{keys:?}")) }
    })
    .await;
    let package = cluster.installed(Package::new("goes", "0.1.0", "{{ spec.size }}")).await;
    package.write("0.2.0", &[super::Part::new("goes", super::SIZE, "new {{ spec.size }}")]);
    cluster.operetta(&["upgrade", package.folder()]).await.ok();
    let scene = scene(&cluster).await;
    for name in ["a", "b"] {
        package.ready(&scene, name, &json!({})).await;
    }
    let (code, told) = cluster.told(&["uninstall", "goes"]).await;
    assert_eq!(code, 1, "{told}");
    assert!(told.contains("2 instances: ") && told.contains(&format!("{}/a", scene.namespace())), "{told}");
    assert!(told.contains("--instances delete"), "{told}");
    assert!(is_active(&cluster.find(OPERATOR, "goes").await.unwrap()));
    says(cluster.told(&["uninstall", "gose"]).await, 1, &["did you mean goes?"]);

    cluster.operetta(&["uninstall", "goes", "--instances", "delete"]).await.ok();
    scene.gone(CONFIG_MAP, "a").await;
    scene.gone(CONFIG_MAP, "b").await;
    eventually("nothing to be left", LONG, async || {
        let left: Vec<String> = keys().await.difference(&before).cloned().collect();
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    })
    .await;
    // The package can be installed again.
    cluster.install(&package).await;
    scene.apply(&package.instance("c", &json!({}))).await;
    scene.until("made", CONFIG_MAP, "c", |o| o["data"]["value"] == "new 1").await;
}

#[tokio::test]
async fn orphaned_instances_stay_as_they_are() {
    let cluster = Cluster::shared().await;
    let package = Package::new("orphans", "0.1.0", "{{ spec.size }}");
    let revision = package.revision().await;
    cluster.install(&package).await;
    let scene = scene(cluster).await;
    package.ready(&scene, "one", &json!({})).await;
    let child = scene.get(CONFIG_MAP, "one").await;
    let told = cluster.operetta(&["uninstall", "orphans", "--instances", "orphan"]).await.ok();
    assert!(told.contains("nothing manages its 1 instance"), "{told}");
    assert!(cluster.find(OPERATOR, "orphans").await.is_none());
    assert!(cluster.find(REVISION, &revision).await.is_some());
    scene.until("unmanaged", package.kind(), "one", |o| !is_ready(o)).await;
    let after = scene.get(CONFIG_MAP, "one").await;
    assert_eq!(identity(&after), identity(&child));
    cluster.install(&package).await;
    scene.ready(package.kind(), "one").await;
    assert_eq!(identity(&scene.get(CONFIG_MAP, "one").await), identity(&child));
}

/// What is left of instances that nothing manages holds no namespace: an active run, the state, the instance itself.
#[tokio::test]
async fn namespaces_of_unmanaged_instances_end() {
    let cluster = Cluster::shared().await;
    let plans = "      plans:
        deploy: {steps: [{name: all, apply: [config]}]}
        hold: {steps: [{name: hold, wait: {until: spec.size == 9}, timeout: 10m}]}
        cleanup: {steps: [{name: stop, fail: {message: it never runs}}]}
";
    for way in ["orphan", "operator"] {
        let name = format!("{way}holds");
        let part = Part { plans: plans.to_owned(), ..Part::new(&name, SIZE, "{{ spec.size }}") };
        let package = cluster.installed(Package::of(&name, "0.1.0", &[part])).await;
        let scene = scene(cluster).await;
        let one = package.ready(&scene, "one", &json!({})).await;
        let of = one["kind"].as_str().unwrap();
        scene.requested((of, package.kind()), "one", "hold", &json!({}), "Running").await;
        if way == "orphan" {
            let told = cluster.operetta(&["uninstall", &name, "--instances", "orphan"]).await.ok();
            assert!(told.contains("nothing manages its 1 instance"), "{told}");
        } else {
            cluster.kubectl(&["delete", "operator", &name], "").await.ok();
        }
        scene.until("unmanaged", package.kind(), "one", |o| !is_ready(o)).await;
        let namespace = scene.namespace();
        cluster.kubectl(&["delete", "namespace", namespace, "--wait=false"], "").await.ok();
        eventually(&format!("{way}: the namespace to be gone"), LONG, async || {
            if cluster.find(NAMESPACE, namespace).await.is_none() {
                return Ok(());
            }
            let kinds =
                format!("planruns,instancestates,controllerrevisions,{name}.ops.example.org,configmaps");
            let left = cluster.kubectl(&["get", &kinds, "-n", namespace, "-o", "yaml"], "").await;
            Err(left.stdout)
        })
        .await;
    }
}

/// Fault 23: no manager runs, and instances have its finalizer.
#[tokio::test]
async fn uninstall_without_a_manager_reports_what_is_missing() {
    let cluster = Cluster::start().await;
    let package = cluster.installed(Package::new("halts", "0.1.0", "{{ spec.size }}")).await;
    let scene = scene(&cluster).await;
    package.ready(&scene, "one", &json!({})).await;
    let finalizers = json!({"metadata": {"finalizers": ["operetta.dev/cleanup"]}});
    cluster
        .restart(async || {
            // A manager would remove a finalizer that is not needed.
            scene.patch(package.kind(), "one", "merge", &finalizers).await;
            let (code, told) =
                cluster.told(&["uninstall", "halts", "--instances", "delete", "--timeout", "4s"]).await;
            assert!(
                code == 4
                    && told.contains("finalizers: operetta.dev/cleanup")
                    && told.contains("a manager must run"),
                "{code} {told}"
            );
            assert!(cluster.find(OPERATOR, "halts").await.is_some());
        })
        .await;
    cluster.operetta(&["uninstall", "halts", "--instances", "delete"]).await.ok();
    scene.gone(CONFIG_MAP, "one").await;
    assert!(cluster.crd("halts.ops.example.org").await.is_none());
}

/// A failed cleanup waits for a person, and then so would the command: it ends at once and says how to
/// continue.
#[tokio::test]
async fn uninstall_ends_when_a_person_must_decide() {
    let cluster = Cluster::shared().await;
    let plans = "      plans:
        deploy: {steps: [{name: all, apply: [config]}]}
        cleanup: {steps: [{name: stop, when: spec.size == 7, fail: {message: the bucket is not empty}}]}
";
    let part = Part { plans: plans.to_owned(), ..Part::new("sticks", SIZE, "{{ spec.size }}") };
    let package = cluster.installed(Package::of("sticks", "0.1.0", &[part])).await;
    let scene = scene(cluster).await;
    for (name, size) in [("bad", 7), ("good", 1)] {
        package.ready(&scene, name, &json!({"size": size})).await;
    }
    let uninstall = ["uninstall", "sticks", "--instances", "delete", LATE];
    let (code, told) = cluster.told(&uninstall).await;
    assert_eq!(code, 5, "{told}");
    let named = format!("Stick {}/bad: CleanupFailed: ", scene.namespace());
    assert!(told.contains(&named) && told.contains("the bucket is not empty"), "{told}");
    assert!(told.contains("retry it, change the spec, or release the instance"), "{told}");
    assert!(told.contains("waits for you"), "{told}");
    assert!(is_active(&cluster.find(OPERATOR, "sticks").await.unwrap()));
    // `operetta get` shows the same.
    let shown = cluster.operetta(&["get", "sticks", "-n", scene.namespace()]).await.ok();
    assert!(shown.contains("Stalled") && shown.contains("CleanupFailed"), "{shown}");

    let skip = json!({"metadata": {"annotations": {"operetta.dev/skip-cleanup": "true"}}});
    scene.patch(package.kind(), "bad", "merge", &skip).await;
    cluster.operetta(&uninstall).await.ok();
    assert!(cluster.find(OPERATOR, "sticks").await.is_none());
}

/// Whether an object of the manager or its packages exists.
async fn exists(cluster: &Cluster, kind: &str, name: &str) -> bool {
    let args = ["-n", MANAGERS, "get", kind, name, "-o", "name", "--ignore-not-found"];
    let output = cluster.kubectl(&args, "").await;
    // Without its CRD the kind does not exist.
    output.status.success() && !output.stdout.is_empty()
}

#[tokio::test]
async fn manager_install_ends_when_its_pods_cannot_be_created() {
    let plane = own_plane().await;
    kubectl_of(&plane, &["create", "namespace", MANAGERS], "").await.ok();
    kubectl_of(&plane, &["-n", MANAGERS, "create", "quota", "none", "--hard=pods=0"], "").await.ok();
    eventually("the quota", LONG, async || {
        let args = ["-n", MANAGERS, "get", "quota", "none", "-o", "jsonpath={.status.hard.pods}"];
        let hard = kubectl_of(&plane, &args, "").await.ok();
        if hard == "0" { Ok(()) } else { Err(hard) }
    })
    .await;
    let install = ["manager", "install", "--replicas", "1", LATE];
    let ended = operetta(plane.kubeconfig_path(), &install).await;
    assert_eq!(ended.status.code(), Some(5), "{}", ended.stderr);
    assert!(ended.stderr.contains("exceeded quota"), "{}", ended.stderr);
}

/// The manager of the test is not the installed one, whose pods are fake.
#[tokio::test]
async fn removing_the_manager_keeps_managed_objects_by_default() {
    const UNINSTALL: [&str; 2] = ["manager", "uninstall"];
    const MANAGER: [(&str, &str); 10] = [
        ("deployment", "operetta"),
        ("service", "operetta-webhook"),
        ("service", "operetta-metrics"),
        ("poddisruptionbudget", "operetta"),
        ("networkpolicy", "operetta"),
        ("serviceaccount", "operetta"),
        ("clusterrole", "operetta-manager"),
        ("clusterrolebinding", "operetta-manager:packages"),
        ("rolebinding", "operetta-manager"),
        ("validatingadmissionpolicy", "operetta-system.manager.operetta.dev"),
    ];
    const OWN: [(&str, &str); 5] = [
        ("namespace", MANAGERS),
        ("crd", "operators.operetta.dev"),
        ("crd", "planruns.operetta.dev"),
        ("validatingadmissionpolicy", "planruns.operetta.dev"),
        ("validatingadmissionpolicybinding", "instancestates.operetta.dev"),
    ];
    let cluster = Cluster::start().await;
    let install =
        ["manager", "install", "--wait", "false", "--replicas", "1", "--set", "networkPolicy.enabled=true"];
    cluster.operetta(&install).await.ok();
    let package = cluster.installed(Package::new("stays", "0.1.0", "{{ spec.size }}")).await;
    let scene = scene(&cluster).await;
    package.ready(&scene, "one", &json!({})).await;
    let child = scene.get(CONFIG_MAP, "one").await;

    says(cluster.told(&UNINSTALL).await, 1, &["1 package is installed: stays"]);
    let keep = [&UNINSTALL[..], &["--packages", "keep"]].concat();
    says(cluster.told(&[&keep[..], &["--all"]].concat()).await, 2, &["--all deletes the CRD of Operators"]);
    for (kind, name) in MANAGER.iter().chain(&OWN) {
        assert!(exists(&cluster, kind, name).await, "{kind} {name}");
    }
    // Imitate a leader that was started by hand. The manager of this test has no leader election.
    #[expect(clippy::disallowed_methods, reason = "a Lease has the time of day")]
    let now = format!("{:.6}", k8s_openapi::jiff::Timestamp::now());
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "operetta", "namespace": MANAGERS},
        "spec": {"holderIdentity": "laptop_1", "leaseDurationSeconds": 3600, "renewTime": now},
    });
    cluster.kubectl(&["create", "-f", "-"], &lease.to_string()).await.ok();
    let (code, told) = cluster.told(&[&keep[..], &["--timeout", "1s"]].concat()).await;
    assert!(code == 4 && told.contains("laptop_1 still holds the Lease"), "{told}");
    cluster.kubectl(&["-n", MANAGERS, "delete", "lease", "operetta"], "").await.ok();
    assert!(exists(&cluster, "clusterrole", "operetta-manager").await);
    cluster
        .restart(async || {
            let told = cluster.operetta(&keep).await.ok();
            assert!(told.contains("the manager is removed"), "{told}");
            for (kind, name) in MANAGER {
                assert!(!exists(&cluster, kind, name).await, "{kind} {name} is left");
            }
            for (kind, name) in OWN {
                assert!(exists(&cluster, kind, name).await, "{kind} {name}");
            }
            assert!(is_active(&cluster.find(OPERATOR, "stays").await.unwrap()));
            let after = scene.get(CONFIG_MAP, "one").await;
            assert_eq!(identity(&after), identity(&child));
            // Repeating the command does nothing.
            cluster.operetta(&keep).await.ok();
        })
        .await;
    // Another manager continues.
    scene.patch(package.kind(), "one", "merge", &json!({"spec": {"size": 3}})).await;
    scene.until("managed", CONFIG_MAP, "one", |o| o["data"]["value"] == "3").await;

    cluster.operetta(&[&UNINSTALL[..], &["--packages", "delete"]].concat()).await.ok();
    scene.gone(CONFIG_MAP, "one").await;
    assert!(cluster.find(OPERATOR, "stays").await.is_none());
    cluster.manager.lock().unwrap().kill9();
    // Runs and states of another manager's instances have Operetta's own kinds.
    let metadata = json!({
        "name": "others.other.example.org", "labels": {"operetta.dev/operator": "other"},
        "annotations": {"operetta.dev/manager": "elsewhere/operetta"},
    });
    let names = json!({"kind": "Other", "plural": "others"});
    let schema = json!({"openAPIV3Schema": {"type": "object"}});
    let versions = json!([{"name": "v1", "served": true, "storage": true, "schema": schema}]);
    let spec =
        json!({"group": "other.example.org", "scope": "Namespaced", "names": names, "versions": versions});
    let crd = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": metadata, "spec": spec});
    let create = ["apply", "--server-side", "--field-manager", "operetta", "-f", "-"];
    cluster.kubectl(&create, &crd.to_string()).await.ok();
    let (code, told) = cluster.told(&[&UNINSTALL[..], &["--all"]].concat()).await;
    assert!(code == 1 && told.contains("the other manager of others.other.example.org"), "{told}");
    assert!(exists(&cluster, "crd", "planruns.operetta.dev").await);
    cluster.kubectl(&["delete", "crd", "others.other.example.org"], "").await.ok();
    let told = cluster.operetta(&[&UNINSTALL[..], &["--all"]].concat()).await.ok();
    assert!(told.contains("all that was its own are removed"), "{told}");
    for (kind, name) in &OWN[1..] {
        assert!(!exists(&cluster, kind, name).await, "{kind} {name} is left");
    }
    let namespace = cluster.find(NAMESPACE, MANAGERS).await;
    assert!(namespace.is_none_or(|namespace| namespace["metadata"]["deletionTimestamp"].is_string()));
}
