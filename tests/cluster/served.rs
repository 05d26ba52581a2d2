//! What only a real API server decides: which names it accepts, and how it allocates addresses.

use operetta::api::{ApiKind, BuiltIn, CallError, Class, NameRule};
use operetta::cluster::Cluster;
use operetta::naming;
use serde_json::{Value, json};

use crate::support::{EVENT, LONG, SERVICE, STONE, Scene, condition, eventually, kind, plane, read};

/// Compares the table of rules with the API server's own answers.
#[tokio::test]
async fn the_rules_for_names_are_those_of_the_api_server() {
    let scene = Scene::unmanaged().await;
    let cluster = Cluster::of_kubeconfig(plane().await.kubeconfig_path()).await.unwrap();
    let kinds = [
        ("v1", "ConfigMap"),
        ("v1", "Endpoints"),
        ("v1", "LimitRange"),
        ("v1", "Namespace"),
        ("v1", "Node"),
        ("v1", "PersistentVolume"),
        ("v1", "PersistentVolumeClaim"),
        ("v1", "Pod"),
        ("v1", "PodTemplate"),
        ("v1", "ReplicationController"),
        ("v1", "ResourceQuota"),
        ("v1", "Secret"),
        ("v1", "Service"),
        ("v1", "ServiceAccount"),
        ("apps/v1", "ControllerRevision"),
        ("apps/v1", "DaemonSet"),
        ("apps/v1", "Deployment"),
        ("apps/v1", "ReplicaSet"),
        ("apps/v1", "StatefulSet"),
        ("batch/v1", "CronJob"),
        ("batch/v1", "Job"),
        ("autoscaling/v2", "HorizontalPodAutoscaler"),
        ("networking.k8s.io/v1", "Ingress"),
        ("networking.k8s.io/v1", "IngressClass"),
        ("networking.k8s.io/v1", "NetworkPolicy"),
        ("policy/v1", "PodDisruptionBudget"),
        ("coordination.k8s.io/v1", "Lease"),
        ("discovery.k8s.io/v1", "EndpointSlice"),
        ("scheduling.k8s.io/v1", "PriorityClass"),
        ("storage.k8s.io/v1", "StorageClass"),
        ("rbac.authorization.k8s.io/v1", "Role"),
        ("rbac.authorization.k8s.io/v1", "ClusterRole"),
        ("rbac.authorization.k8s.io/v1", "RoleBinding"),
        ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding"),
    ];
    let long = |length| "a".repeat(length);
    let (label, too_long) = (long(63), long(254));
    let names = [
        "a", "a-b", "1a", "a.b", "A", "a_b", "a:b", "a b", "a?b", "a#b", "é", "-a", "a-", "a..b", "a.-b",
        &label, &too_long, ".", "..", "a/b", "a%b",
    ];
    let mut wrong = Vec::new();
    for (api_version, kind_name) in kinds {
        let kind = ApiKind::built_in(api_version, kind_name);
        let namespace = kind.namespaced.then(|| scene.namespace());
        for name in names {
            let mut body = json!({"apiVersion": api_version, "kind": kind_name, "metadata": {"name": name}});
            match kind_name {
                "PriorityClass" => body["value"] = 1.into(),
                // An address is allocated before the name is checked, and may be refused.
                "Service" => body["spec"] = json!({"clusterIP": "None"}),
                _ => {}
            }
            let refused = loop {
                match cluster.create_checked(&kind, namespace, &body, "test", true).await {
                    // Another test may have created an object with that name.
                    Ok(_) | Err(CallError { class: Class::Conflict, .. }) => break false,
                    // A busy server may not answer in time.
                    Err(CallError { class: Class::Retry, .. }) => {}
                    Err(error) => {
                        assert_eq!(error.code, 422, "{kind_name} {name:?}: {error}");
                        break error.causes.iter().any(|cause| cause.field == "metadata.name");
                    }
                }
            };
            let ours = naming::check(&kind.gvk(), name);
            // Whatever the server accepts must be accepted. Where the rule is known, whatever it refuses must
            // be refused too, except what depends on the version (a Service with a digit first, a StatefulSet
            // with dots) or on another rule (a CronJob leaves room for the names of its Jobs).
            let rule = BuiltIn::find(&kind.group, kind_name).unwrap().names;
            let known = rule != NameRule::PathSegment || name.contains(['/', '%']);
            let stricter = [("Service", "1a"), ("StatefulSet", "a.b"), ("CronJob", &label)];
            let is_known = known && !stricter.contains(&(kind_name, name));
            if ours.is_err() && !refused || ours.is_ok() && refused && is_known {
                wrong
                    .push(format!("{kind_name} {name:?}: we say {ours:?}, the server refuses it: {refused}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// With several `ServiceCIDR`s the API server tries to allocate a fixed address in a random one of them.
#[tokio::test]
async fn fixed_service_addresses_are_accepted_with_several_service_cidrs() {
    let scene = Scene::new().await;
    let range = json!({"apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR",
        "metadata": {"name": scene.namespace()}, "spec": {"cidrs": ["10.96.66.0/24"]}});
    scene.apply(&range.to_string()).await;
    let ready = |range: &Value| condition(range, "Ready")["status"] == "True";
    let ranges = kind("networking.k8s.io/v1", "servicecidrs");
    eventually("the range to be ready", LONG, async || {
        let range = read(&scene.client(), &ranges.path(None, scene.namespace())).await.unwrap();
        if ready(&range) { Ok(()) } else { Err(format!("{:#}", range["status"])) }
    })
    .await;
    let stones = |from: usize| {
        let stone = |i: usize| {
            json!({"apiVersion": STONE.api_version(), "kind": "Stone", "metadata": {"name": format!("s{i}")},
                "spec": {"child": "service-anew", "value": format!("10.96.0.{}", from + i)}})
        };
        json!({"apiVersion": "v1", "kind": "List", "items": (0..16).map(stone).collect::<Vec<_>>()})
    };
    // A dry run of one Service does not permit updates of the others: the address is a part of the signature.
    for from in [120, 140] {
        scene.apply(&stones(from).to_string()).await;
        for i in 0..16 {
            scene.ready(STONE, &format!("s{i}")).await;
            let address = format!("10.96.0.{}", from + i);
            assert_eq!(scene.get(SERVICE, &format!("s{i}")).await["spec"]["clusterIP"], address);
        }
    }
    let is_warning = |e: &Value| e["type"] == "Warning" && e["involvedObject"]["kind"] == "Stone";
    let warnings: Vec<_> = scene.list(EVENT).await.into_iter().filter(is_warning).collect();
    assert!(warnings.is_empty(), "{warnings:#?}");
    // An address outside all ranges is refused before anything is written.
    scene.patch(STONE, "s0", "merge", &json!({"spec": {"value": "10.99.0.1"}})).await;
    let is_refused = |o: &Value| {
        let told = condition(o, "Stalled");
        let message = told["message"].as_str().unwrap_or_default();
        told["reason"] == "ApplyRefused"
            && message.contains("clusterIPs")
            && message.contains("not in the valid range")
    };
    scene.until("refused", STONE, "s0", is_refused).await;
    assert_eq!(scene.get(SERVICE, "s0").await["spec"]["clusterIP"], "10.96.0.140");
    scene.kubectl(&["delete", "servicecidrs.networking.k8s.io", scene.namespace(), "--wait=false"]).await;
}
