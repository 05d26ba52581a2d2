//! What admission and the controllers do for each other.

use super::*;

const NAMESPACES: &str = "/api/v1/namespaces";

fn message(answer: &Value) -> &str {
    answer["message"].as_str().unwrap_or_default()
}

fn pod(name: &str) -> Value {
    let mut pod = template(name, "image:1");
    pod["metadata"]["name"] = name.into();
    pod
}

#[test]
fn a_deployment_waits_for_its_account() {
    let mut cluster = Cluster::new();
    let mut web = deployment("web", 1);
    web["spec"]["template"]["spec"]["serviceAccountName"] = "web".into();
    cluster.create(DEPLOYMENTS, &web);
    cluster.pass(60);
    assert!(cluster.names(PODS).is_empty());
    let status = cluster.get(&format!("{DEPLOYMENTS}/web"))["status"].clone();
    let failure = status["conditions"].as_array().unwrap().iter().find(|one| one["type"] == "ReplicaFailure");
    let why = message(failure.unwrap());
    assert!(why.starts_with("pods \"web-"), "{why}");
    let reason =
        "-\" is forbidden: error looking up service account default/web: serviceaccount \"web\" not found";
    assert!(why.ends_with(reason), "{why}");
    let account = json!({"metadata": {"name": "web"}, "imagePullSecrets": [{"name": "pull"}],
        "automountServiceAccountToken": false});
    cluster.create("/api/v1/namespaces/default/serviceaccounts", &account);
    cluster.pass(5);
    assert_eq!(cluster.get(&format!("{DEPLOYMENTS}/web"))["status"]["readyReplicas"], 1);
    let spec = cluster.items(PODS)[0]["spec"].clone();
    assert_eq!(spec["imagePullSecrets"], json!([{"name": "pull"}]));
    assert_eq!(spec["volumes"], Value::Null);
}

#[test]
fn each_namespace_has_an_account_and_certificates() {
    let mut cluster = Cluster::new();
    let (shop, now) = (format!("{NAMESPACES}/shop"), cluster.now);
    let map = format!("{shop}/configmaps/kube-root-ca.crt");
    cluster.api.set_root_ca("PEM".to_owned(), now);
    cluster.create(NAMESPACES, &json!({"metadata": {"name": "shop"}}));
    // No controller has acted yet.
    let made = cluster.create(&format!("{shop}/pods"), &pod("web"));
    assert_eq!(
        made["spec"]["volumes"][0]["projected"]["sources"][1]["configMap"]["name"],
        "kube-root-ca.crt"
    );
    cluster.pass(5);
    assert_eq!(conditions(&cluster.get(&format!("{shop}/pods/web")))["Ready"], "True ");
    for other in [NAMESPACES.to_owned() + "/default", shop.clone()] {
        let map = cluster.get(&format!("{other}/configmaps/kube-root-ca.crt"));
        assert_eq!(map["data"], json!({"ca.crt": "PEM"}));
        assert_eq!(map["metadata"]["managedFields"][0]["manager"], "kube-controller-manager");
    }
    cluster.patch(&map, &json!({"data": {"ca.crt": "other", "more": "x"}}));
    cluster.settle();
    assert_eq!(cluster.get(&map)["data"]["ca.crt"], "PEM");
    for path in [map, format!("{shop}/serviceaccounts/default")] {
        cluster.send("DELETE", &path, &Value::Null);
        cluster.settle();
        assert_eq!(cluster.send("GET", &path, &Value::Null).0, 200, "{path}");
    }
    cluster.send("DELETE", &shop, &Value::Null);
    cluster.pass(60);
    assert_eq!(cluster.send("GET", &shop, &Value::Null).0, 404);
}

#[test]
fn a_pod_of_a_bare_api_needs_an_account() {
    let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
    let mut cluster = Cluster { api: Api::bare(now), now };
    cluster.create(NAMESPACES, &json!({"metadata": {"name": "shop"}}));
    let path = format!("{NAMESPACES}/shop/pods");
    let (code, refused) = cluster.send("POST", &path, &pod("web"));
    let wanted = "pods \"web\" is forbidden: error looking up service account shop/default: serviceaccount \"default\" not found";
    assert_eq!((code, message(&refused)), (403, wanted));
    let account = json!({"metadata": {"name": "default"}});
    cluster.create(&format!("{NAMESPACES}/shop/serviceaccounts"), &account);
    cluster.create(&path, &pod("web"));
}

#[test]
fn system_priority_classes_stay() {
    const CLASSES: &str = "/apis/scheduling.k8s.io/v1/priorityclasses";
    let mut cluster = Cluster::new();
    assert_eq!(cluster.names(CLASSES), ["system-cluster-critical", "system-node-critical"]);
    let (code, refused) = cluster.send("DELETE", &format!("{CLASSES}/system-node-critical"), &Value::Null);
    assert_eq!(code, 403, "{refused}");
    assert!(
        message(&refused).ends_with("this is a system priority class and cannot be deleted"),
        "{refused}"
    );
}

#[test]
fn a_claim_grows_only_if_its_class_allows_it() {
    let mut cluster = Cluster::new();
    let class = json!({"metadata": {"name": "fixed"}, "provisioner": "x.y/z"});
    cluster.create("/apis/storage.k8s.io/v1/storageclasses", &class);
    let claims = "/api/v1/namespaces/default/persistentvolumeclaims";
    let claim = json!({"metadata": {"name": "data"}, "spec": {"storageClassName": "fixed", "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "2Gi"}}}});
    cluster.create(claims, &claim);
    cluster.settle();
    let mut resize = |size: &str| {
        let size = json!({"spec": {"resources": {"requests": {"storage": size}}}});
        let (code, answer) = cluster.send("PATCH", &format!("{claims}/data"), &size);
        (code, message(&answer).to_owned())
    };
    let (code, why) = resize("3Gi");
    let grow = "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support resize";
    assert_eq!((code, why), (403, format!("persistentvolumeclaims \"data\" is forbidden: {grow}")));
    let (code, why) = resize("1Gi");
    assert_eq!(code, 422);
    assert!(
        why.ends_with(
            "spec.resources.requests.storage: Forbidden: field can not be less than status.capacity"
        ),
        "{why}"
    );
}
