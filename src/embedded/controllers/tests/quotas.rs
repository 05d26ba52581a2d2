//! Quotas: their counts, and workloads whose pods admission refuses.

use super::super::client;
use super::*;

const QUOTAS: &str = "/api/v1/namespaces/default/resourcequotas";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";

fn quota(cluster: &mut Cluster, name: &str, hard: &Value) {
    cluster.create(QUOTAS, &json!({"metadata": {"name": name}, "spec": {"hard": hard}}));
    cluster.settle();
}

fn used(cluster: &mut Cluster, name: &str) -> Value {
    cluster.get(&format!("{QUOTAS}/{name}"))["status"]["used"].clone()
}

fn map(name: &str) -> Value {
    json!({"metadata": {"name": name}})
}

fn refusal((code, answer): (u16, Value)) -> String {
    assert_eq!(code, 403, "{answer:#}");
    answer["message"].as_str().unwrap().to_owned()
}

#[test]
fn quotas_count_what_is_created_and_deleted() {
    let mut cluster = Cluster::new();
    cluster.create(MAPS, &map("before"));
    quota(&mut cluster, "q", &json!({"configmaps": "2", "count/gadgets.example.org": "1"}));
    let status = cluster.get(&format!("{QUOTAS}/q"))["status"].clone();
    assert_eq!(status["hard"], json!({"configmaps": "2", "count/gadgets.example.org": "1"}));
    let before = status["used"]["configmaps"].as_str().unwrap().parse::<u32>().unwrap();
    // A kind that is not served cannot be counted.
    assert_eq!(status["used"].as_object().unwrap().len(), 1);
    cluster
        .patch(&format!("{QUOTAS}/q"), &json!({"spec": {"hard": {"configmaps": (before + 1).to_string()}}}));
    cluster.settle();
    let (code, _) = cluster.send("POST", &format!("{MAPS}?dryRun=All"), &map("a"));
    assert_eq!(code, 201);
    assert_eq!(used(&mut cluster, "q")["configmaps"], before.to_string(), "a dry run is not charged");
    cluster.create(MAPS, &map("a"));
    // The request itself charges it.
    assert_eq!(used(&mut cluster, "q")["configmaps"], (before + 1).to_string());
    let refused = refusal(cluster.send("POST", MAPS, &map("b")));
    let most = before + 1;
    assert_eq!(
        refused,
        format!(
            "configmaps \"b\" is forbidden: exceeded quota: q, requested: configmaps=1, used: configmaps={most}, limited: configmaps={most}"
        )
    );
    refusal(cluster.send("POST", &format!("{MAPS}?dryRun=All"), &map("b")));
    // What exists already is not charged twice.
    cluster
        .patch(&format!("{QUOTAS}/q"), &json!({"spec": {"hard": {"configmaps": (before + 2).to_string()}}}));
    cluster.settle();
    assert_eq!(cluster.send("POST", MAPS, &map("a")).0, 409);
    assert_eq!(used(&mut cluster, "q")["configmaps"], most.to_string());
    cluster.send("DELETE", &format!("{MAPS}/a"), &Value::Null);
    cluster.settle();
    assert_eq!(used(&mut cluster, "q")["configmaps"], before.to_string());
    cluster.create(MAPS, &map("b"));
}

#[test]
fn a_deployment_gets_the_pods_that_its_quota_admits() {
    let mut cluster = Cluster::new();
    quota(&mut cluster, "q", &json!({"pods": "2"}));
    cluster.create(DEPLOYMENTS, &deployment("web", 3));
    cluster.pass(5);
    assert_eq!(cluster.items(PODS).len(), 2);
    assert_eq!(used(&mut cluster, "q"), json!({"pods": "2"}));
    let web = cluster.get(&format!("{DEPLOYMENTS}/web"));
    assert_eq!(conditions(&web)["ReplicaFailure"], "True FailedCreate");
    // A pod that is replaced needs the place of the old one.
    let first = cluster.names(PODS)[0].clone();
    cluster.send("DELETE", &format!("{PODS}/{first}"), &Value::Null);
    cluster.pass(60);
    assert_eq!(cluster.items(PODS).len(), 2);
    // More is admitted, and what was refused is created without another change.
    cluster.patch(&format!("{QUOTAS}/q"), &json!({"spec": {"hard": {"pods": "5"}}}));
    cluster.pass(5);
    assert_eq!(cluster.items(PODS).len(), 3);
    assert_eq!(used(&mut cluster, "q"), json!({"pods": "3"}));
    cluster.patch(&format!("{DEPLOYMENTS}/web"), &json!({"spec": {"replicas": 0}}));
    cluster.pass(60);
    assert_eq!(used(&mut cluster, "q"), json!({"pods": "0"}));
    assert_eq!(cluster.api.next_due(), None);
}

#[test]
fn ended_pods_leave_room_for_others() {
    let mut cluster = Cluster::with(&[("once", ends_after(2, 0))]);
    quota(&mut cluster, "q", &json!({"pods": "1", "count/pods": "9", "requests.cpu": "1"}));
    let pod = |name: &str| {
        json!({"metadata": {"name": name}, "spec": {"restartPolicy": "Never", "containers":
            [{"name": "main", "image": "image:1", "resources": {"requests": {"cpu": "0.75"}}}]}})
    };
    cluster.create(PODS, &pod("once"));
    let refused = refusal(cluster.send("POST", PODS, &pod("two")));
    assert!(
        refused.ends_with("exceeded quota: q, requested: pods=1,requests.cpu=750m, used: pods=1,requests.cpu=750m, limited: pods=1,requests.cpu=1"),
        "{refused}"
    );
    cluster.pass(10);
    assert_eq!(used(&mut cluster, "q"), json!({"count/pods": "1", "pods": "0", "requests.cpu": "0"}));
    cluster.create(PODS, &pod("two"));
}

#[test]
fn a_deployment_goes_on_when_its_namespace_is_relaxed() {
    let mut cluster = Cluster::new();
    let namespace = "/api/v1/namespaces/default";
    let level = |level: &str| json!({"metadata": {"labels": {"pod-security.kubernetes.io/enforce": level}}});
    cluster.patch(namespace, &level("restricted"));
    cluster.create(DEPLOYMENTS, &deployment("web", 1));
    cluster.pass(5);
    assert_eq!(cluster.items(PODS), Vec::<Value>::new());
    let web = cluster.get(&format!("{DEPLOYMENTS}/web"));
    let message = web["status"]["conditions"].to_string();
    assert!(
        message.contains("violates PodSecurity \\\"restricted:latest\\\": allowPrivilegeEscalation"),
        "{message}"
    );
    cluster.patch(namespace, &level("baseline"));
    cluster.pass(5);
    assert_eq!(cluster.items(PODS).len(), 1);
}

#[test]
fn only_what_admission_refuses_is_created_later() {
    let mut cluster = Cluster::new();
    let containers = json!([{"name": "main", "image": "image:1"}]);
    for (spec, is_refused) in
        [(json!({}), false), (json!({"serviceAccountName": "none", "containers": containers}), true)]
    {
        let mut pod = json!({"metadata": {"name": "web", "namespace": "default"}, "spec": spec});
        client::create(&mut cluster.api, "tester", &client::PODS, &mut pod, cluster.now).unwrap_err();
        assert_eq!(std::mem::take(&mut cluster.api.controllers.was_refused), is_refused, "{pod}");
    }
}
