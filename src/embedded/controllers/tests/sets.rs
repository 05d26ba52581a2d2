//! Deployments, StatefulSets and DaemonSets.

use super::*;

const REPLICA_SETS: &str = "/apis/apps/v1/namespaces/default/replicasets";
const CLAIMS: &str = "/api/v1/namespaces/default/persistentvolumeclaims";

#[test]
fn a_deployment_tells_how_its_rollout_goes() {
    let mut cluster = Cluster::new();
    cluster.create(DEPLOYMENTS, &deployment("web", 3));
    cluster.settle();
    let web = cluster.get(&format!("{DEPLOYMENTS}/web"));
    assert_eq!(web["status"]["unavailableReplicas"], 3);
    assert_eq!(web["metadata"]["annotations"]["deployment.kubernetes.io/revision"], "1");
    let known = conditions(&web);
    assert_eq!(known["Available"], "False MinimumReplicasUnavailable");
    assert_eq!(known["Progressing"], "True ReplicaSetUpdated");
    cluster.pass(2);
    let web = cluster.get(&format!("{DEPLOYMENTS}/web"));
    let status = &web["status"];
    assert_eq!(
        (
            &status["replicas"],
            &status["readyReplicas"],
            &status["updatedReplicas"],
            &status["availableReplicas"]
        ),
        (&json!(3), &json!(3), &json!(3), &json!(3))
    );
    assert_eq!((&status["observedGeneration"], &status["unavailableReplicas"]), (&json!(1), &Value::Null));
    let known = conditions(&web);
    assert_eq!(known["Available"], "True MinimumReplicasAvailable");
    assert_eq!(known["Progressing"], "True NewReplicaSetAvailable");
    assert_eq!(cluster.api.next_due(), None);
}

#[test]
fn a_set_that_is_created_again_waits_for_the_names_of_the_former_one() {
    let mut cluster = Cluster::new();
    cluster.create(SETS, &stateful_set("db", 1));
    cluster.pass(5);
    let pod = format!("{PODS}/db-0");
    let former = cluster.get(&pod)["metadata"]["uid"].clone();
    cluster.send("DELETE", &format!("{SETS}/db"), &Value::Null);
    cluster.create(SETS, &stateful_set("db", 1));
    cluster.pass(10);
    assert_eq!(cluster.get(&format!("{SETS}/db"))["status"]["readyReplicas"], 1);
    assert_ne!(cluster.get(&pod)["metadata"]["uid"], former);
}

#[test]
fn a_rolling_update_keeps_within_surge_and_unavailability() {
    let mut cluster = Cluster::new();
    let mut web = deployment("web", 4);
    web["spec"]["strategy"] = json!({"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 1}});
    cluster.create(DEPLOYMENTS, &web);
    cluster.pass(5);
    let change =
        json!({"spec": {"template": {"spec": {"containers": [{"name": "main", "image": "image:2"}]}}}});
    cluster.patch(&format!("{DEPLOYMENTS}/web"), &change);
    let end = cluster.now + SignedDuration::from_secs(60);
    let mut most = 0;
    loop {
        while cluster.api.tick(cluster.now) {
            let pods = cluster.items(PODS);
            let alive = pods.iter().filter(|pod| pod["metadata"]["deletionTimestamp"].is_null());
            let ready = alive
                .clone()
                .filter(|pod| conditions(pod).get("Ready").is_some_and(|state| state.starts_with("True")))
                .count();
            assert!(ready >= 3, "{ready} pods are ready");
            most = most.max(alive.count());
        }
        match cluster.api.next_due().filter(|due| *due <= end) {
            Some(due) => cluster.now = due,
            None => break,
        }
    }
    assert_eq!(most, 5);
    let pods = cluster.items(PODS);
    assert_eq!(pods.len(), 4);
    assert!(pods.iter().all(|pod| pod["spec"]["containers"][0]["image"] == "image:2"));
    let sets = cluster.items(REPLICA_SETS);
    let mut sizes: Vec<i64> = sets.iter().map(|set| set["spec"]["replicas"].as_i64().unwrap()).collect();
    sizes.sort_unstable();
    assert_eq!(sizes, [0, 4]);
    let web = cluster.get(&format!("{DEPLOYMENTS}/web"));
    assert_eq!(web["metadata"]["annotations"]["deployment.kubernetes.io/revision"], "2");
    assert_eq!(conditions(&web)["Progressing"], "True NewReplicaSetAvailable");
}

#[test]
fn a_rollout_that_stands_still_exceeds_its_deadline() {
    let mut cluster = Cluster::with(&[("web", Course::default())]);
    cluster.create(DEPLOYMENTS, &deployment("web", 1));
    cluster.pass(590);
    assert_eq!(
        conditions(&cluster.get(&format!("{DEPLOYMENTS}/web")))["Progressing"],
        "True ReplicaSetUpdated"
    );
    cluster.pass(20);
    let web = cluster.get(&format!("{DEPLOYMENTS}/web"));
    assert_eq!(conditions(&web)["Progressing"], "False ProgressDeadlineExceeded");
    assert_eq!(cluster.api.next_due(), None);
}

#[test]
fn recreate_starts_new_pods_when_the_old_ones_are_gone() {
    let mut cluster = Cluster::new();
    let mut web = deployment("web", 2);
    web["spec"]["strategy"] = json!({"type": "Recreate"});
    cluster.create(DEPLOYMENTS, &web);
    cluster.pass(5);
    let change =
        json!({"spec": {"template": {"spec": {"containers": [{"name": "main", "image": "image:2"}]}}}});
    cluster.patch(&format!("{DEPLOYMENTS}/web"), &change);
    cluster.settle();
    assert!(cluster.items(PODS).iter().all(|pod| pod["spec"]["containers"][0]["image"] == "image:1"));
    cluster.pass(5);
    let images: Vec<Value> =
        cluster.items(PODS).iter().map(|pod| pod["spec"]["containers"][0]["image"].clone()).collect();
    assert_eq!(images, ["image:2", "image:2"]);
    cluster.patch(&format!("{DEPLOYMENTS}/web"), &json!({"spec": {"replicas": 5, "paused": true}}));
    cluster.pass(5);
    assert_eq!(cluster.items(PODS).len(), 5);
    assert_eq!(
        conditions(&cluster.get(&format!("{DEPLOYMENTS}/web")))["Progressing"],
        "Unknown DeploymentPaused"
    );
}

#[test]
fn a_pod_that_is_lost_is_replaced() {
    let mut cluster = Cluster::new();
    cluster.create(DEPLOYMENTS, &deployment("web", 2));
    cluster.pass(5);
    let before = cluster.names(PODS);
    let status = json!({"status": {"phase": "Failed", "reason": "Evicted"}});
    cluster.patch(&format!("{PODS}/{}/status", before[0]), &status);
    cluster.pass(5);
    let pods = cluster.items(PODS);
    assert_eq!(pods.len(), 3, "a pod that failed stays until it is collected");
    let web = cluster.get(&format!("{DEPLOYMENTS}/web"));
    assert_eq!((&web["status"]["replicas"], &web["status"]["readyReplicas"]), (&json!(2), &json!(2)));
    cluster.send("DELETE", &format!("{PODS}/{}", before[1]), &Value::Null);
    cluster.pass(5);
    assert!(!cluster.names(PODS).contains(&before[1]));
    assert_eq!(cluster.get(&format!("{DEPLOYMENTS}/web"))["status"]["readyReplicas"], 2);
}

#[test]
fn a_stateful_set_grows_and_shrinks_in_order() {
    let mut cluster = Cluster::new();
    cluster.create(SETS, &stateful_set("db", 3));
    cluster.settle();
    assert_eq!(cluster.names(PODS), ["db-0"]);
    cluster.pass(1);
    assert_eq!(cluster.names(PODS), ["db-0", "db-1"]);
    cluster.pass(2);
    assert_eq!(cluster.names(PODS), ["db-0", "db-1", "db-2"]);
    let db = cluster.get(&format!("{SETS}/db"));
    let status = &db["status"];
    assert_eq!(
        (&status["replicas"], &status["readyReplicas"], &status["currentReplicas"]),
        (&json!(3), &json!(3), &json!(3))
    );
    assert_eq!(status["currentRevision"], status["updateRevision"]);
    cluster.patch(&format!("{SETS}/db"), &json!({"spec": {"replicas": 1}}));
    cluster.settle();
    let deleting = |pods: Vec<Value>| -> Vec<bool> {
        pods.iter().map(|pod| pod["metadata"]["deletionTimestamp"].is_string()).collect()
    };
    assert_eq!(deleting(cluster.items(PODS)), [false, false, true]);
    cluster.pass(1);
    assert_eq!(deleting(cluster.items(PODS)), [false, true]);
    cluster.pass(5);
    assert_eq!(cluster.names(PODS), ["db-0"]);
    let pod = cluster.get(&format!("{PODS}/db-0"));
    assert_eq!(pod["metadata"]["labels"]["apps.kubernetes.io/pod-index"], "0");
    assert_eq!((&pod["spec"]["hostname"], &pod["spec"]["subdomain"]), (&json!("db-0"), &json!("db")));
}

#[test]
fn a_parallel_stateful_set_does_all_at_once() {
    let mut cluster = Cluster::new();
    let mut db = stateful_set("db", 3);
    db["spec"]["podManagementPolicy"] = "Parallel".into();
    cluster.create(SETS, &db);
    cluster.settle();
    assert_eq!(cluster.names(PODS).len(), 3);
    cluster.patch(&format!("{SETS}/db"), &json!({"spec": {"replicas": 0}}));
    cluster.settle();
    assert!(cluster.items(PODS).iter().all(|pod| pod["metadata"]["deletionTimestamp"].is_string()));
    cluster.pass(2);
    assert!(cluster.names(PODS).is_empty());
}

#[test]
fn a_stateful_set_is_updated_from_its_last_pod_down_to_the_partition() {
    let mut cluster = Cluster::new();
    let mut db = stateful_set("db", 3);
    db["spec"]["updateStrategy"] = json!({"type": "RollingUpdate", "rollingUpdate": {"partition": 1}});
    cluster.create(SETS, &db);
    cluster.pass(10);
    let change =
        json!({"spec": {"template": {"spec": {"containers": [{"name": "main", "image": "image:2"}]}}}});
    cluster.patch(&format!("{SETS}/db"), &change);
    cluster.settle();
    let images = |cluster: &mut Cluster| -> Vec<String> {
        let pods = cluster.items(PODS);
        pods.iter().map(|pod| pod["spec"]["containers"][0]["image"].as_str().unwrap().to_owned()).collect()
    };
    cluster.pass(1);
    assert_eq!(images(&mut cluster), ["image:1", "image:1", "image:2"]);
    cluster.pass(10);
    assert_eq!(images(&mut cluster), ["image:1", "image:2", "image:2"]);
    let db = cluster.get(&format!("{SETS}/db"));
    assert_eq!((&db["status"]["updatedReplicas"], &db["status"]["currentReplicas"]), (&json!(2), &json!(1)));
    assert_ne!(db["status"]["currentRevision"], db["status"]["updateRevision"]);
    let partition = json!({"spec": {"updateStrategy": {"rollingUpdate": {"partition": 0}}}});
    cluster.patch(&format!("{SETS}/db"), &partition);
    cluster.pass(10);
    let db = cluster.get(&format!("{SETS}/db"));
    assert_eq!(db["status"]["currentRevision"], db["status"]["updateRevision"]);
    assert_eq!((&db["status"]["updatedReplicas"], &db["status"]["currentReplicas"]), (&json!(3), &json!(3)));
    assert_eq!(cluster.names("/apis/apps/v1/namespaces/default/controllerrevisions").len(), 2);
}

fn with_claims(name: &str, replicas: i64) -> Value {
    let mut db = stateful_set(name, replicas);
    db["spec"]["volumeClaimTemplates"] = json!([{"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}}}}]);
    db["spec"]["template"]["spec"]["containers"][0]["volumeMounts"] =
        json!([{"name": "data", "mountPath": "/data"}]);
    db
}

#[test]
fn claims_are_bound_and_kept() {
    let mut cluster = Cluster::new();
    cluster.create(SETS, &with_claims("db", 2));
    cluster.pass(10);
    let volumes = &cluster.get(&format!("{PODS}/db-0"))["spec"]["volumes"][0];
    assert_eq!(volumes["persistentVolumeClaim"]["claimName"], "data-db-0");
    assert_eq!(cluster.names(CLAIMS), ["data-db-0", "data-db-1"]);
    let claim = cluster.get(&format!("{CLAIMS}/data-db-0"));
    assert_eq!(
        (&claim["status"]["phase"], &claim["status"]["capacity"]["storage"]),
        (&json!("Bound"), &json!("1Gi"))
    );
    assert_eq!(claim["spec"]["storageClassName"], "standard");
    let volume = claim["spec"]["volumeName"].as_str().unwrap().to_owned();
    let volume = cluster.get(&format!("/api/v1/persistentvolumes/{volume}"));
    assert_eq!(
        (&volume["status"]["phase"], &volume["spec"]["claimRef"]["name"]),
        (&json!("Bound"), &json!("data-db-0"))
    );
    cluster.send("DELETE", &format!("{SETS}/db"), &json!({"propagationPolicy": "Foreground"}));
    cluster.pass(10);
    assert!(cluster.names(PODS).is_empty() && cluster.names(SETS).is_empty());
    assert_eq!(cluster.names(CLAIMS), ["data-db-0", "data-db-1"]);
    cluster.create(SETS, &with_claims("db", 1));
    cluster.pass(2);
    assert_eq!(cluster.get(&format!("{CLAIMS}/data-db-0"))["metadata"]["uid"], claim["metadata"]["uid"]);
    // A claim in use stays until its pod is gone.
    cluster.send("DELETE", &format!("{CLAIMS}/data-db-0"), &Value::Null);
    cluster.pass(2);
    assert!(cluster.names(CLAIMS).contains(&"data-db-0".to_owned()));
    cluster.patch(&format!("{SETS}/db"), &json!({"spec": {"replicas": 0}}));
    cluster.pass(5);
    assert_eq!(cluster.names(CLAIMS), ["data-db-1"]);
    assert_eq!(cluster.names("/api/v1/persistentvolumes").len(), 1);
}

#[test]
fn claims_go_as_the_retention_policy_says() {
    let mut cluster = Cluster::new();
    let mut db = with_claims("db", 3);
    db["spec"]["persistentVolumeClaimRetentionPolicy"] =
        json!({"whenScaled": "Delete", "whenDeleted": "Delete"});
    cluster.create(SETS, &db);
    cluster.pass(10);
    cluster.patch(&format!("{SETS}/db"), &json!({"spec": {"replicas": 2}}));
    cluster.pass(10);
    assert_eq!(cluster.names(CLAIMS), ["data-db-0", "data-db-1"]);
    cluster.send("DELETE", &format!("{SETS}/db"), &Value::Null);
    cluster.pass(10);
    assert!(cluster.names(CLAIMS).is_empty());
}

#[test]
fn a_stateful_set_that_is_created_again_adopts_its_pods() {
    let mut cluster = Cluster::new();
    let db = cluster.create(SETS, &stateful_set("db", 2));
    cluster.pass(10);
    let before: Vec<Value> = cluster.items(PODS).iter().map(|pod| pod["metadata"]["uid"].clone()).collect();
    cluster.send("DELETE", &format!("{SETS}/db"), &json!({"propagationPolicy": "Orphan"}));
    cluster.pass(10);
    assert!(cluster.items(PODS).iter().all(|pod| pod["metadata"]["ownerReferences"].is_null()));
    let again = cluster.create(SETS, &stateful_set("db", 2));
    assert_ne!(db["metadata"]["uid"], again["metadata"]["uid"]);
    cluster.pass(10);
    let pods = cluster.items(PODS);
    assert!(pods.iter().all(|pod| pod["metadata"]["ownerReferences"][0]["uid"] == again["metadata"]["uid"]));
    assert_eq!(pods.iter().map(|pod| pod["metadata"]["uid"].clone()).collect::<Vec<_>>(), before);
}

#[test]
fn a_daemon_set_has_a_pod_on_the_node() {
    let mut cluster = Cluster::new();
    let uri = "/apis/apps/v1/namespaces/default/daemonsets";
    let set = json!({"metadata": {"name": "agent"}, "spec": {"selector": {"matchLabels": {"app": "agent"}},
        "template": template("agent", "image:1")}});
    cluster.create(uri, &set);
    cluster.pass(5);
    let agent = cluster.get(&format!("{uri}/agent"));
    let status = &agent["status"];
    assert_eq!(
        (&status["desiredNumberScheduled"], &status["numberReady"], &status["numberAvailable"]),
        (&json!(1), &json!(1), &json!(1))
    );
    let change =
        json!({"spec": {"template": {"spec": {"containers": [{"name": "main", "image": "image:2"}]}}}});
    cluster.patch(&format!("{uri}/agent"), &change);
    cluster.pass(5);
    let pods = cluster.items(PODS);
    assert_eq!((pods.len(), &pods[0]["spec"]["containers"][0]["image"]), (1, &json!("image:2")));
    assert_eq!(pods[0]["spec"]["nodeName"], "embedded");
    assert_eq!(cluster.get(&format!("{uri}/agent"))["status"]["updatedNumberScheduled"], 1);
}

#[test]
fn pods_go_with_their_owner_after_their_grace_period() {
    let mut cluster = Cluster::new();
    cluster.create(DEPLOYMENTS, &deployment("web", 2));
    cluster.pass(5);
    cluster.send("DELETE", &format!("{DEPLOYMENTS}/web"), &json!({"propagationPolicy": "Foreground"}));
    cluster.settle();
    let pods = cluster.items(PODS);
    assert_eq!(pods.len(), 2);
    assert!(pods.iter().all(|pod| pod["metadata"]["deletionGracePeriodSeconds"] == 30));
    assert_eq!(cluster.names(DEPLOYMENTS), ["web"]);
    cluster.pass(2);
    assert!(cluster.names(PODS).is_empty() && cluster.names(REPLICA_SETS).is_empty());
    assert!(cluster.names(DEPLOYMENTS).is_empty());
}

#[test]
fn templates_in_any_form_come_to_rest() {
    let mut cluster = Cluster::new();
    let odd = |name: &str| {
        let mut template = template(name, "image:1");
        template["metadata"]["annotations"] = json!({});
        template["metadata"]["creationTimestamp"] = Value::Null;
        template["spec"]["nodeSelector"] = json!({});
        template["spec"]["initContainers"] = json!([{"name": "init", "image": "image:1"}]);
        template["spec"]["volumes"] = json!([{"name": "tmp", "emptyDir": {}}]);
        let main = &mut template["spec"]["containers"][0];
        main["env"] = json!([{"name": "A", "value": ""}]);
        main["resources"] =
            json!({"limits": {"cpu": "1000m", "memory": 1_048_576}, "requests": {"cpu": 0.5}});
        main["readinessProbe"] = json!({"tcpSocket": {"port": 80}});
        template
    };
    let mut web = deployment("web", 1);
    web["spec"]["template"] = odd("web");
    web["metadata"]["annotations"] = json!({"a": "b"});
    let mut db = with_claims("db", 1);
    db["spec"]["template"] = odd("db");
    let agent = json!({"metadata": {"name": "agent"}, "spec": {"selector": {"matchLabels": {"app": "agent"}}, "template": odd("agent")}});
    cluster.create(DEPLOYMENTS, &web);
    cluster.create(SETS, &db);
    cluster.create("/apis/apps/v1/namespaces/default/daemonsets", &agent);
    cluster.pass(10);
    assert!(cluster.items(PODS).iter().all(|pod| conditions(pod)["Ready"] == "True "));
    assert_eq!(cluster.names(PODS).len(), 3);
    assert_eq!((cluster.names(REPLICA_SETS).len(), cluster.api.next_due()), (1, None));
    cluster.patch(&format!("{DEPLOYMENTS}/web"), &json!({"metadata": {"annotations": {"a": "c"}}}));
    cluster.pass(10);
    assert_eq!(cluster.items(REPLICA_SETS)[0]["metadata"]["annotations"]["a"], "c");
    assert_eq!(cluster.names(REPLICA_SETS).len(), 1);
}
