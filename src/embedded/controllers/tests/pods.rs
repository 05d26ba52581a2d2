//! Pods: the scheduler, the kubelet, budgets, Services and subresources.

use super::*;

fn pod(name: &str) -> Value {
    json!({"metadata": {"name": name, "labels": {"app": name}}, "spec": {"containers": [{"name": "main", "image": "image:1",
        "ports": [{"name": "http", "containerPort": 8080}]}]}})
}

#[test]
fn a_pod_has_the_status_of_a_kubelet() {
    let mut cluster = Cluster::new();
    cluster.create(PODS, &pod("web"));
    cluster.settle();
    let web = cluster.get(&format!("{PODS}/web"));
    assert_eq!(web["status"]["phase"], "Running");
    assert_eq!(conditions(&web)["Ready"], "False ContainersNotReady");
    cluster.pass(1);
    let web = cluster.get(&format!("{PODS}/web"));
    let status = &web["status"];
    let types: Vec<&Value> =
        status["conditions"].as_array().unwrap().iter().map(|known| &known["type"]).collect();
    assert_eq!(
        types,
        ["PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"]
    );
    assert!(conditions(&web).values().all(|state| state == "True "), "{:?}", conditions(&web));
    assert_eq!((&status["podIP"], &status["qosClass"]), (&json!("10.244.0.2"), &json!("BestEffort")));
    let main = &status["containerStatuses"][0];
    assert_eq!(
        (&main["ready"], &main["started"], &main["restartCount"]),
        (&json!(true), &json!(true), &json!(0))
    );
    assert_eq!(main["state"]["running"]["startedAt"], "2026-01-01T00:00:00Z");
    let node = cluster.get("/api/v1/nodes/embedded");
    assert_eq!((&node["spec"]["taints"], &*conditions(&node)["Ready"]), (&Value::Null, "True KubeletReady"));
}

#[test]
fn a_pod_that_is_not_ready_says_why() {
    let sick = Course { message: "no leader".to_owned(), ..Course::default() };
    let mut cluster = Cluster::with(&[("db", sick)]);
    cluster.create(PODS, &pod("db"));
    cluster.pass(5);
    let db = cluster.get(&format!("{PODS}/db"));
    let ready =
        db["status"]["conditions"].as_array().unwrap().iter().find(|known| known["type"] == "Ready").unwrap();
    assert_eq!(ready["message"], "containers with unready status: [main]: no leader");
    assert_eq!(cluster.api.next_due(), None);
}

#[test]
fn a_pod_that_no_node_fits_waits_for_one() {
    let mut cluster = Cluster::new();
    let mut picky = pod("picky");
    picky["spec"]["nodeSelector"] = json!({"disk": "fast"});
    cluster.create(PODS, &picky);
    cluster.pass(5);
    let picky = cluster.get(&format!("{PODS}/picky"));
    assert_eq!((&picky["status"]["phase"], &picky["spec"]["nodeName"]), (&json!("Pending"), &Value::Null));
    assert_eq!(conditions(&picky)["PodScheduled"], "False Unschedulable");
    let message = picky["status"]["conditions"][0]["message"].as_str().unwrap();
    assert!(
        message.starts_with("0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector."),
        "{message}"
    );
    cluster.patch("/api/v1/nodes/embedded", &json!({"metadata": {"labels": {"disk": "fast"}}}));
    cluster.pass(5);
    assert_eq!(cluster.get(&format!("{PODS}/picky"))["status"]["phase"], "Running");
}

#[test]
fn a_pod_waits_for_the_objects_that_it_reads() {
    let mut cluster = Cluster::new();
    let mut app = pod("app");
    app["spec"]["containers"][0]["env"] =
        json!([{"name": "PASSWORD", "valueFrom": {"secretKeyRef": {"name": "login", "key": "password"}}}]);
    cluster.create(PODS, &app);
    cluster.pass(5);
    let waiting = |cluster: &mut Cluster| {
        cluster.get(&format!("{PODS}/app"))["status"]["containerStatuses"][0]["state"]["waiting"].clone()
    };
    let wanted = json!({"reason": "CreateContainerConfigError", "message": "secret \"login\" not found"});
    assert_eq!(waiting(&mut cluster), wanted);
    let secret = json!({"metadata": {"name": "login"}, "data": {"password": "eA=="}});
    cluster.create("/api/v1/namespaces/default/secrets", &secret);
    cluster.pass(5);
    assert_eq!(conditions(&cluster.get(&format!("{PODS}/app")))["Ready"], "True ");
}

#[test]
fn containers_that_fail_start_again_after_a_growing_time() {
    let crash = Course { message: "no disk".to_owned(), ..ends_after(1, 2) };
    let mut cluster = Cluster::with(&[("app", crash)]);
    cluster.create(PODS, &pod("app"));
    let main =
        |cluster: &mut Cluster| cluster.get(&format!("{PODS}/app"))["status"]["containerStatuses"][0].clone();
    cluster.pass(1);
    let first = main(&mut cluster);
    assert_eq!(
        (&first["restartCount"], &first["lastState"]["terminated"]["exitCode"]),
        (&json!(1), &json!(2))
    );
    assert_eq!(first["lastState"]["terminated"]["message"], "no disk");
    cluster.pass(1);
    assert_eq!(main(&mut cluster)["state"]["waiting"]["reason"], "CrashLoopBackOff");
    cluster.pass(10);
    assert_eq!(main(&mut cluster)["restartCount"], 2);
    cluster.pass(20);
    assert_eq!(main(&mut cluster)["restartCount"], 2);
    cluster.pass(1);
    assert_eq!(main(&mut cluster)["restartCount"], 3);
    assert_eq!(cluster.get(&format!("{PODS}/app"))["status"]["phase"], "Running");
}

#[test]
fn a_pod_is_gone_when_its_programs_have_stopped() {
    let mut cluster = Cluster::new();
    cluster.create(PODS, &pod("a"));
    cluster.create(PODS, &pod("b"));
    cluster.pass(5);
    cluster.send("DELETE", &format!("{PODS}/a"), &Value::Null);
    cluster.send("DELETE", &format!("{PODS}/b?gracePeriodSeconds=0"), &Value::Null);
    cluster.settle();
    assert_eq!(cluster.names(PODS), ["a"]);
    cluster.pass(1);
    assert!(cluster.names(PODS).is_empty());
}

/// The kubelet does not answer: what it has said last remains, and the pod goes only without a grace period.
#[test]
fn a_pod_of_a_dead_node_goes_only_by_force() {
    let mut cluster = Cluster::new();
    cluster.create(PODS, &pod("db"));
    cluster.pass(5);
    let taint = |taints: Value| json!({"spec": {"taints": taints}});
    let dead = taint(json!([{"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}]));
    cluster.patch("/api/v1/nodes/embedded", &dead);
    cluster.pass(1);
    let db = cluster.get(&format!("{PODS}/db"));
    assert_eq!(conditions(&db)["Ready"], "False ");
    assert_eq!(conditions(&db)["ContainersReady"], "True ");
    cluster.create(PODS, &pod("other"));
    cluster.pass(298);
    let other = cluster.get(&format!("{PODS}/other"));
    let message = other["status"]["conditions"][0]["message"].as_str().unwrap();
    assert!(
        message.starts_with(
            "0/1 nodes are available: 1 node(s) had untolerated taint {node.kubernetes.io/unreachable: }."
        ),
        "{message}"
    );
    assert_eq!(cluster.get(&format!("{PODS}/db"))["metadata"]["deletionTimestamp"], Value::Null);
    cluster.pass(3600);
    assert_ne!(cluster.get(&format!("{PODS}/db"))["metadata"]["deletionTimestamp"], Value::Null);
    cluster.send("DELETE", &format!("{PODS}/db?gracePeriodSeconds=0"), &Value::Null);
    cluster.settle();
    assert_eq!(cluster.names(PODS), ["other"]);
    cluster.patch("/api/v1/nodes/embedded", &taint(Value::Null));
    cluster.pass(5);
    assert_eq!(conditions(&cluster.get(&format!("{PODS}/other")))["Ready"], "True ");
}

#[test]
fn an_eviction_waits_for_the_budget() {
    let mut cluster = Cluster::new();
    cluster.create(DEPLOYMENTS, &deployment("web", 2));
    let budgets = "/apis/policy/v1/namespaces/default/poddisruptionbudgets";
    let budget = json!({"metadata": {"name": "web"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}}});
    cluster.create(budgets, &budget);
    cluster.pass(5);
    let status = cluster.get(&format!("{budgets}/web"))["status"].clone();
    let numbers = ["currentHealthy", "desiredHealthy", "expectedPods", "disruptionsAllowed"]
        .map(|field| status[field].clone());
    assert_eq!(numbers, [json!(2), json!(1), json!(2), json!(1)]);
    assert_eq!(status["conditions"][0]["reason"], "SufficientPods");
    let names = cluster.names(PODS);
    let eviction =
        |name: &str| json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}});
    let (code, answer) = cluster.send("POST", &format!("{PODS}/{}/eviction", names[0]), &eviction(&names[0]));
    assert_eq!((code, &answer["status"]), (201, &json!("Success")));
    let (code, answer) = cluster.send("POST", &format!("{PODS}/{}/eviction", names[1]), &eviction(&names[1]));
    assert_eq!((code, &answer["reason"]), (429, &json!("TooManyRequests")));
    assert_eq!(answer["message"], "Cannot evict pod as it would violate the pod's disruption budget.");
    assert_eq!(answer["details"]["causes"][0]["reason"], "DisruptionBudget");
    assert_eq!(
        conditions(&cluster.get(&format!("{PODS}/{}", names[0])))["DisruptionTarget"],
        "True EvictionByEvictionAPI"
    );
    cluster.settle();
    let (code, answer) = cluster.send("POST", &format!("{PODS}/{}/eviction", names[1]), &eviction(&names[1]));
    let message = "The disruption budget web needs 1 healthy pods and has 1 currently";
    assert_eq!((code, &answer["details"]["causes"][0]["message"]), (429, &json!(message)));
    cluster.pass(5);
    let (code, _) = cluster.send("POST", &format!("{PODS}/{}/eviction", names[1]), &eviction(&names[1]));
    assert_eq!(code, 201);
}

#[test]
fn a_service_has_the_addresses_of_its_pods() {
    let mut cluster = Cluster::new();
    let service = json!({"metadata": {"name": "web"}, "spec": {"selector": {"app": "web"},
        "ports": [{"name": "http", "port": 80, "targetPort": "http"}]}});
    cluster.create("/api/v1/namespaces/default/services", &service);
    cluster.create(PODS, &pod("web"));
    cluster.create(PODS, &pod("other"));
    cluster.settle();
    let selector = "labelSelector=kubernetes.io/service-name%3Dweb";
    let slices = &format!("/apis/discovery.k8s.io/v1/namespaces/default/endpointslices?{selector}");
    let slice = cluster.items(slices).remove(0);
    assert_eq!(slice["endpoints"][0]["conditions"]["ready"], false);
    cluster.pass(1);
    let slice = cluster.items(slices).remove(0);
    assert_eq!(slice["endpoints"].as_array().unwrap().len(), 1);
    assert_eq!(slice["endpoints"][0]["conditions"]["ready"], true);
    assert_eq!(slice["ports"][0]["port"], 8080);
    assert_eq!(slice["metadata"]["labels"]["kubernetes.io/service-name"], "web");
    cluster.send("DELETE", &format!("{PODS}/web"), &Value::Null);
    cluster.pass(2);
    assert!(cluster.items(slices)[0]["endpoints"].as_array().is_none_or(Vec::is_empty));
}

#[test]
fn a_load_balancer_has_the_address_that_the_world_gives() {
    let mut cluster = Cluster::new();
    let services = "/api/v1/namespaces/default/services";
    let service =
        json!({"metadata": {"name": "web"}, "spec": {"type": "LoadBalancer", "ports": [{"port": 80}]}});
    cluster.create(services, &service);
    cluster.settle();
    let web = format!("{services}/web");
    assert_eq!(cluster.get(&web)["status"], json!({"loadBalancer": {}}), "there is no cloud");
    let text = "apiVersion: operetta.dev/v1alpha1\nkind: World\nloadBalancers:\n\
                - {when: service.metadata.labels.name, address: '{{ service.metadata.labels.name }}.example.com'}\n\
                - {address: 203.0.113.7}\n";
    let world = crate::World::parse(&[operetta_lang::diag::Source::new("w.yaml", text)]).unwrap();
    cluster.api.set_programs(Box::new(world), cluster.now);
    cluster.patch(&web, &json!({"metadata": {"annotations": {"a": "b"}}}));
    cluster.settle();
    let ingress = |cluster: &mut Cluster| cluster.get(&web)["status"]["loadBalancer"]["ingress"].clone();
    assert_eq!(ingress(&mut cluster), json!([{"ip": "203.0.113.7", "ipMode": "VIP"}]));
    cluster.patch(&web, &json!({"metadata": {"labels": {"name": "web"}}}));
    cluster.settle();
    assert_eq!(ingress(&mut cluster), json!([{"hostname": "web.example.com"}]));
    cluster.patch(&web, &json!({"spec": {"type": "ClusterIP"}}));
    cluster.settle();
    assert_eq!(cluster.get(&web)["status"], json!({"loadBalancer": {}}));
}

#[test]
fn commands_run_in_containers_that_run() {
    let mut cluster = Cluster::with(&[]);
    cluster.create(PODS, &pod("web"));
    let command = ["ls".to_owned(), "-l".to_owned()];
    let now = cluster.now;
    let failed = cluster.api.exec("default", "web", "", &command, b"", now).unwrap_err();
    assert_eq!((failed.code(), failed.message()), (400, "pod web does not have a host assigned"));
    cluster.settle();
    let result = cluster.api.exec("default", "web", "", &command, b"", now).unwrap();
    assert_eq!(result.stdout, "ls -l in main of 1");
    let failed = cluster.api.exec("default", "web", "side", &command, b"", now).unwrap_err();
    assert_eq!((failed.code(), failed.message()), (400, "container side is not valid for pod web"));
    let failed = cluster.api.exec("default", "none", "", &command, b"", now).unwrap_err();
    assert_eq!((failed.code(), failed.message()), (404, "pods \"none\" not found"));
    assert_eq!(cluster.get(&format!("{PODS}/web/log")), "first\nlast of main\n");
    assert_eq!(cluster.get(&format!("{PODS}/web/log?tailLines=1&container=main")), "last of main\n");
    let call = Call { pod: None, method: "GET", url: "http://x/", headers: &[], body: b"", now };
    assert_eq!(cluster.api.call(&call).unwrap().body, b"http://x/");
}

#[test]
fn a_scheduler_of_the_user_can_bind_pods() {
    let mut cluster = Cluster::new();
    let mut own = pod("own");
    own["spec"]["nodeSelector"] = json!({"no": "where"});
    cluster.create(PODS, &own);
    let binding = json!({"metadata": {"name": "own"}, "target": {"kind": "Node", "name": "embedded"}});
    cluster.create(&format!("{PODS}/own/binding"), &binding);
    let (code, answer) = cluster.send("POST", &format!("{PODS}/own/binding"), &binding);
    assert_eq!(code, 409);
    let wanted = "Operation cannot be fulfilled on pods/binding \"own\": pod own is already assigned to node \"embedded\"";
    assert_eq!(answer["message"], wanted);
    cluster.pass(2);
    assert_eq!(cluster.get(&format!("{PODS}/own"))["status"]["phase"], "Running");
}

#[test]
fn a_namespace_that_is_deleted_takes_all_workloads_along() {
    let mut cluster = Cluster::with(&[("load", ready_after(0))]);
    cluster.create("/api/v1/namespaces", &json!({"metadata": {"name": "shop"}}));
    let apps = "/apis/apps/v1/namespaces/shop";
    cluster.create(&format!("{apps}/deployments"), &deployment("web", 2));
    let mut db = stateful_set("db", 1);
    db["spec"]["volumeClaimTemplates"] = json!([{"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}}}}]);
    cluster.create(&format!("{apps}/statefulsets"), &db);
    let job = json!({"metadata": {"name": "load"}, "spec": {"template": {"spec":
        {"restartPolicy": "Never", "containers": [{"name": "main", "image": "image:1"}]}}}});
    cluster.create("/apis/batch/v1/namespaces/shop/jobs", &job);
    cluster.pass(5);
    assert_eq!(cluster.names("/api/v1/namespaces/shop/pods").len(), 4);
    cluster.send("DELETE", "/api/v1/namespaces/shop", &Value::Null);
    cluster.pass(5);
    assert!(!cluster.names("/api/v1/namespaces").contains(&"shop".to_owned()));
    assert!(cluster.names("/api/v1/persistentvolumes").is_empty());
    assert_eq!(cluster.api.next_due(), None);
}

#[test]
fn a_pod_gets_other_resources_and_restarts_only_if_its_policy_says_so() {
    let mut cluster = Cluster::new();
    let mut web = pod("web");
    web["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": "1", "memory": "1Gi"}});
    web["spec"]["containers"][0]["resizePolicy"] =
        json!([{"resourceName": "memory", "restartPolicy": "RestartContainer"}]);
    cluster.create(PODS, &web);
    cluster.pass(5);
    let path = format!("{PODS}/web");
    let resized = |cluster: &mut Cluster, requests: Value| {
        let mut web = cluster.get(&path);
        web["spec"]["containers"][0]["resources"]["requests"] = requests;
        web["metadata"]["labels"]["other"] = "dropped".into();
        let (code, answer) = cluster.send("PUT", &format!("{path}/resize"), &web);
        cluster.pass(5);
        (code, answer["message"].as_str().unwrap_or_default().to_owned(), cluster.get(&path))
    };
    let (code, _, web) = resized(&mut cluster, json!({"cpu": "2", "memory": "1Gi"}));
    assert_eq!((code, &web["metadata"]["labels"]), (200, &json!({"app": "web"})));
    let main = &web["status"]["containerStatuses"][0];
    assert_eq!(main["resources"], json!({"requests": {"cpu": "2", "memory": "1Gi"}}));
    assert_eq!((&main["allocatedResources"]["cpu"], &main["restartCount"]), (&json!("2"), &json!(0)));
    assert_eq!(
        (&web["metadata"]["generation"], &web["status"]["observedGeneration"]),
        (&json!(2), &json!(2))
    );
    let (_, _, web) = resized(&mut cluster, json!({"cpu": "2", "memory": "2Gi"}));
    assert_eq!(web["status"]["containerStatuses"][0]["restartCount"], 1);
    let (code, message, _) = resized(&mut cluster, json!({"cpu": "100", "memory": "1Ti"}));
    assert_eq!(code, 403);
    assert_eq!(
        message,
        "pods \"web\" is forbidden: node didn't have enough allocatable resources: cpu, requested: 100000, allocatable: 64000; memory, requested: 1099511627776, allocatable: 274877906944"
    );
    let (code, message, _) = resized(&mut cluster, json!({"memory": "2Gi"}));
    assert!(code == 422 && message.contains("resource requests cannot be removed"), "{message}");
    // It gets defaults, without the annotation that says so.
    let limits = json!([{"type": "Container", "default": {"cpu": "8"}}]);
    let range = json!({"metadata": {"name": "cpu"}, "spec": {"limits": limits}});
    cluster.create("/api/v1/namespaces/default/limitranges", &range);
    let (code, message, web) = resized(&mut cluster, json!({"cpu": "3", "memory": "2Gi"}));
    assert_eq!((code, &web["metadata"]["annotations"]), (200, &Value::Null), "{message}");
    assert_eq!(web["spec"]["containers"][0]["resources"]["limits"], json!({"cpu": "8"}));
}

#[test]
fn a_namespace_deletes_its_pods_first_and_says_what_remains() {
    let mut cluster = Cluster::new();
    let shop = "/api/v1/namespaces/shop";
    cluster.create("/api/v1/namespaces", &json!({"metadata": {"name": "shop"}}));
    cluster.settle();
    let settings = json!({"metadata": {"name": "settings", "finalizers": ["x.y/z"]}});
    cluster.create(&format!("{shop}/configmaps"), &settings);
    cluster.create(&format!("{shop}/pods"), &pod("web"));
    cluster.pass(5);
    // The node does not answer any more, so the pod stays.
    let taint = json!([{"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}]);
    cluster.patch("/api/v1/nodes/embedded", &json!({"spec": {"taints": taint}}));
    cluster.pass(1);
    cluster.send("DELETE", shop, &Value::Null);
    cluster.pass(20);
    let states = conditions(&cluster.get(shop));
    assert_eq!(states["NamespaceDeletionContentFailure"], "False ContentDeleted");
    assert_eq!(states["NamespaceContentRemaining"], "False ContentRemoved");
    let settings = format!("{shop}/configmaps/settings");
    assert_eq!(cluster.get(&settings)["metadata"]["deletionTimestamp"], Value::Null);
    cluster.pass(20);
    let states = conditions(&cluster.get(shop));
    assert_eq!(states["NamespaceDeletionContentFailure"], "True ContentDeletionFailed");
    cluster.send("DELETE", &format!("{shop}/pods/web?gracePeriodSeconds=0"), &Value::Null);
    cluster.pass(5);
    let ending = cluster.get(shop);
    let states = conditions(&ending);
    assert_eq!(states["NamespaceDeletionContentFailure"], "False ContentDeleted");
    assert_eq!(states["NamespaceFinalizersRemaining"], "True SomeFinalizersRemain");
    let remaining = &ending["status"]["conditions"][3];
    assert_eq!(remaining["message"], "Some resources are remaining: configmaps. has 1 resource instances");
    cluster.patch(&settings, &json!({"metadata": {"finalizers": null}}));
    cluster.pass(1);
    assert_eq!(cluster.get(shop)["code"], 404);
}

#[test]
fn a_claim_can_wait_for_its_pod_grow_and_use_a_volume_that_exists() {
    let mut cluster = Cluster::new();
    let class = json!({"metadata": {"name": "late"}, "provisioner": "x.y/z", "volumeBindingMode": "WaitForFirstConsumer",
        "allowVolumeExpansion": true});
    cluster.create("/apis/storage.k8s.io/v1/storageclasses", &class);
    let claims = "/api/v1/namespaces/default/persistentvolumeclaims";
    let claim = |name: &str, class: &str| {
        json!({"metadata": {"name": name}, "spec": {"storageClassName": class, "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}}}})
    };
    cluster.create(claims, &claim("data", "late"));
    cluster.create(claims, &claim("own", ""));
    cluster.settle();
    assert!(cluster.items(claims).iter().all(|claim| claim["status"]["phase"] == "Pending"));
    let mut web = pod("web");
    web["spec"]["volumes"] = json!([{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]);
    cluster.create(PODS, &web);
    let volume = json!({"metadata": {"name": "disk"}, "spec": {"capacity": {"storage": "2Gi"}, "accessModes": ["ReadWriteOnce"],
        "hostPath": {"path": "/disk"}}});
    cluster.create("/api/v1/persistentvolumes", &volume);
    cluster.pass(2);
    assert_eq!(conditions(&cluster.get(&format!("{PODS}/web")))["Ready"], "True ");
    let own = cluster.get(&format!("{claims}/own"));
    assert_eq!(
        (&own["spec"]["volumeName"], &own["status"]["capacity"]["storage"]),
        (&json!("disk"), &json!("2Gi"))
    );
    let grow = json!({"spec": {"resources": {"requests": {"storage": "3Gi"}}}});
    cluster.patch(&format!("{claims}/data"), &grow);
    cluster.settle();
    assert_eq!(cluster.get(&format!("{claims}/data"))["status"]["capacity"]["storage"], "3Gi");
    // A volume of the user is kept.
    cluster.send("DELETE", &format!("{claims}/own"), &Value::Null);
    cluster.settle();
    assert_eq!(cluster.get("/api/v1/persistentvolumes/disk")["status"]["phase"], "Released");
}

#[test]
fn a_class_of_attributes_stays_while_a_claim_names_it() {
    let mut cluster = Cluster::new();
    let classes = "/apis/storage.k8s.io/v1/volumeattributesclasses";
    let class = json!({"metadata": {"name": "fast"}, "driverName": "x.y", "parameters": {"iops": "9"}});
    cluster.create(classes, &class);
    let fast = format!("{classes}/fast");
    assert_eq!(cluster.get(&fast)["metadata"]["finalizers"], json!(["kubernetes.io/vac-protection"]));
    let claims = "/api/v1/namespaces/default/persistentvolumeclaims";
    let claim = json!({"metadata": {"name": "data"}, "spec": {"volumeAttributesClassName": "fast",
        "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}});
    cluster.create(claims, &claim);
    cluster.settle();
    cluster.send("DELETE", &fast, &Value::Null);
    cluster.settle();
    assert!(cluster.get(&fast)["metadata"]["deletionTimestamp"].is_string());
    cluster.send("DELETE", &format!("{claims}/data"), &Value::Null);
    cluster.settle();
    assert_eq!(cluster.get(&fast)["code"], 404);
}

#[test]
fn controllers_that_missed_events_look_at_all_objects() {
    let mut cluster = Cluster::with(&[("load", ready_after(0))]);
    cluster.create(DEPLOYMENTS, &deployment("web", 2));
    let job = json!({"metadata": {"name": "load"}, "spec": {"template": {"spec":
        {"restartPolicy": "Never", "containers": [{"name": "main", "image": "image:1"}]}}}});
    cluster.create(JOBS, &job);
    cluster.create(PODS, &pod("bare"));
    cluster.pass(5);
    cluster.send("DELETE", &format!("{DEPLOYMENTS}/web"), &json!({"propagationPolicy": "Foreground"}));
    cluster.send("DELETE", &format!("{JOBS}/load"), &json!({"propagationPolicy": "Background"}));
    cluster.send("DELETE", &format!("{PODS}/bare?gracePeriodSeconds=0"), &Value::Null);
    cluster.create(DEPLOYMENTS, &deployment("new", 1));
    cluster.api.state.store.compact(10_000);
    cluster.pass(5);
    let pods = cluster.names(PODS);
    assert!(pods.len() == 1 && pods[0].starts_with("new-"), "{pods:?}");
    assert_eq!(cluster.names(DEPLOYMENTS), ["new"]);
    assert!(cluster.api.controllers.kubelet.runs.len() == 1 && cluster.api.next_due().is_none());
}

#[test]
fn containers_that_cannot_start_wait_and_try_again() {
    let broken = Course {
        waiting: "ImagePullBackOff".to_owned(),
        message: "no such image".to_owned(),
        ..Course::default()
    };
    let mut cluster = Cluster::with(&[("app", broken)]);
    cluster.create(PODS, &pod("app"));
    cluster.pass(35);
    let app = cluster.get(&format!("{PODS}/app"));
    let main = &app["status"]["containerStatuses"][0];
    let waiting = json!({"reason": "ImagePullBackOff", "message": "no such image"});
    assert_eq!((&main["state"]["waiting"], &main["restartCount"]), (&waiting, &json!(0)));
    assert_eq!((&app["status"]["phase"], &main["imageID"]), (&json!("Pending"), &json!("")));
    assert_eq!(conditions(&app)["Ready"], "False ContainersNotReady");
    let due = cluster.api.next_due().unwrap();
    assert_eq!(due.duration_since(cluster.now), SignedDuration::from_secs(35), "after 10, 20 and 40 seconds");
    // Now the image is there.
    let now = cluster.now;
    cluster.api.set_programs(Box::new(Script::default()), now);
    cluster.pass(36);
    let app = cluster.get(&format!("{PODS}/app"));
    assert_eq!((&app["status"]["phase"], &*conditions(&app)["Ready"]), (&json!("Running"), "True "));
}

#[test]
fn a_changed_image_restarts_the_containers_of_a_pod() {
    let once = Course { ready_after: Some(Duration::ZERO), ..ends_after(100, 0) };
    let mut cluster = Cluster::with(&[("once", once)]);
    let mut once = pod("once");
    once["spec"]["restartPolicy"] = "Never".into();
    cluster.create(PODS, &once);
    cluster.create(PODS, &pod("web"));
    cluster.pass(5);
    for (name, code) in [("once", 143), ("web", 0)] {
        let mut containers = pod(name)["spec"]["containers"].take();
        containers[0]["image"] = "image:2".into();
        let live = cluster.get(&format!("{PODS}/{name}"));
        containers[0]["volumeMounts"] = live["spec"]["containers"][0]["volumeMounts"].clone();
        cluster.patch(&format!("{PODS}/{name}"), &json!({"spec": {"containers": containers}}));
        cluster.pass(1);
        let pod = cluster.get(&format!("{PODS}/{name}"));
        let main = &pod["status"]["containerStatuses"][0];
        assert_eq!((&main["restartCount"], &main["image"]), (&json!(1), &json!("image:2")), "{main:#}");
        assert_eq!(main["lastState"]["terminated"]["exitCode"], code);
        assert_eq!(conditions(&pod)["Ready"], "True ");
    }
}

#[test]
fn a_generated_name_is_one_that_no_object_has() {
    let pods = "/api/v1/namespaces/default/pods";
    let mut one = template("web", "image:1");
    one["metadata"]["generateName"] = "web-".into();
    let name = Cluster::new().create(pods, &one)["metadata"]["name"].clone();
    let mut taken = template("web", "image:1");
    taken["metadata"]["name"] = name.clone();
    let mut cluster = Cluster::new();
    cluster.create(pods, &taken);
    assert_ne!(cluster.create(pods, &one)["metadata"]["name"], name);
}
