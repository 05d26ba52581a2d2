//! Values that the API server refuses, or would store differently: a condition with reason and remedy, found
//! before any write where possible, without retries in a loop, and without effect on other instances.

mod conflicts;
mod frozen;
mod held;
mod limits;
mod others;
mod places;

use std::time::Duration;

use crate::support::rights::decides;
use crate::support::{
    CONFIG_MAP, DEPLOYMENT, JOB, Kind, LONG, Operetta, POD, ROLE, ROLE_BINDING, SERVICE, SERVICE_ACCOUNT,
    STATEFUL_SET, STONE, Scene, TRIAL, condition, copy_package, eventually, fixture, has_derived_rights,
    kind, kubectl, kubectl_stdin, managers_requests, own_plane_of_tests, plane_of_tests, time_of, uid_of,
};
use operetta::local::AuditEvent;
use serde_json::{Value, json};
use tokio::time::Instant;

fn trial(name: &str, spec: Value) -> String {
    json!({"apiVersion": TRIAL.api_version(), "kind": "Trial", "metadata": {"name": name}, "spec": spec})
        .to_string()
}

async fn edit(scene: &Scene, name: &str, spec: Value) {
    edit_of(scene, TRIAL, name, spec).await;
}

async fn edit_of(scene: &Scene, kind: Kind, name: &str, spec: Value) {
    scene.patch(kind, name, "merge", &json!({"spec": spec})).await;
}

/// Waits until the instance is stalled for this reason at its newest generation. Returns the message.
async fn stalled(scene: &Scene, name: &str, reason: &str, words: &[&str]) -> String {
    stalled_of(scene, TRIAL, name, reason, words).await
}

async fn stalled_of(scene: &Scene, kind: Kind, name: &str, reason: &str, words: &[&str]) -> String {
    let holds = |o: &Value| {
        let told = condition(o, "Stalled");
        told["status"] == "True"
            && told["reason"] == reason
            && o["status"]["observedGeneration"] == o["metadata"]["generation"]
    };
    let instance = scene.until(&format!("Stalled, {reason}"), kind, name, holds).await;
    let message = condition(&instance, "Stalled")["message"].as_str().unwrap().to_owned();
    for word in words {
        assert!(message.contains(word), "{word:?} is not in {message}");
    }
    assert_eq!(condition(&instance, "Ready")["status"], "False");
    message
}

/// The manager's requests in a namespace during this time.
async fn requests(namespace: &str, during: Duration) -> Vec<AuditEvent> {
    let audit = plane_of_tests().await.audit();
    let mark = audit.mark().unwrap();
    tokio::time::sleep(during).await;
    let mut requests = managers_requests(&audit, mark);
    requests.retain(|r| r.uri.contains(&format!("/namespaces/{namespace}/")));
    requests
}

#[tokio::test]
async fn refused_dry_run_leaves_everything_untouched() {
    let scene = Scene::new().await;
    let label = "l".repeat(64);
    scene.apply(&trial("long", json!({"label": label}))).await;
    stalled(
        &scene,
        "long",
        "ApplyRefused",
        &["config", "metadata.labels", "templates/config.yaml:", "the rest of the change waits"],
    )
    .await;
    assert!(scene.find(CONFIG_MAP, "long").await.is_none());
    assert!(scene.find(SERVICE_ACCOUNT, "long").await.is_none(), "the set is written whole or not at all");
    // Retries are rare: after 2 s, 4 s, 8 s.
    let tried = requests(scene.namespace(), Duration::from_secs(6)).await;
    assert!(tried.len() <= 8, "{}", crate::support::ext::list(&tried));
    assert!(
        tried.iter().all(|r| !r.uri.contains("/serviceaccounts/")),
        "{}",
        crate::support::ext::list(&tried)
    );

    // Another instance is not affected.
    let started = Instant::now();
    scene.apply_ready(TRIAL, "good", &trial("good", json!({}))).await;
    eprintln!("the neighbour was ready after {:?}", started.elapsed());
    edit(&scene, "long", json!({"label": "short"})).await;
    scene.ready(TRIAL, "long").await;

    // In an update neither child gets the refused label.
    edit(&scene, "long", json!({"label": label, "text": "changed"})).await;
    stalled(&scene, "long", "ApplyRefused", &["config", "metadata.labels"]).await;
    let account = scene.get(SERVICE_ACCOUNT, "long").await;
    assert_eq!(account["metadata"]["annotations"]["text"], "hello");
}

#[tokio::test]
async fn equal_instances_cost_one_dry_run_of_each_child() {
    let scene = Scene::new().await;
    let audit = plane_of_tests().await.audit();
    let dry_runs = |mark| {
        let mut found = managers_requests(&audit, mark);
        found.retain(|r| {
            r.uri.contains(&format!("/namespaces/{}/", scene.namespace())) && r.uri.contains("dryRun=All")
        });
        found
    };
    let mark = audit.mark().unwrap();
    let many: Vec<Value> = (0..40)
        .map(|i| serde_json::from_str(&trial(&format!("equal-{i}"), json!({"text": i.to_string()}))).unwrap())
        .collect();
    scene.apply(&json!({"apiVersion": "v1", "kind": "List", "items": many}).to_string()).await;
    for i in 0..40 {
        scene.ready(TRIAL, &format!("equal-{i}")).await;
    }
    let found = dry_runs(mark);
    assert_eq!(found.len(), 2, "{}", crate::support::ext::list(&found));
    // An update has another signature, and so has one child more.
    let mark = audit.mark().unwrap();
    for i in 0..5 {
        edit(&scene, &format!("equal-{i}"), json!({"text": "other"})).await;
    }
    for i in 0..5 {
        scene.ready(TRIAL, &format!("equal-{i}")).await;
    }
    assert_eq!(dry_runs(mark).len(), 2);
    let mark = audit.mark().unwrap();
    for i in 0..5 {
        edit(&scene, &format!("equal-{i}"), json!({"many": 3})).await;
    }
    for i in 0..5 {
        scene.ready(TRIAL, &format!("equal-{i}")).await;
    }
    assert_eq!(dry_runs(mark).len(), 1);
}

#[tokio::test]
async fn an_immutable_field_is_named_or_the_object_recreated() {
    let scene = Scene::new().await;
    scene.apply_ready(TRIAL, "a", &trial("a", json!({"fixed": "1", "anew": "1"}))).await;
    let fixed = scene.get(CONFIG_MAP, "a-fixed").await;
    let anew = scene.get(CONFIG_MAP, "a-anew").await;

    edit(&scene, "a", json!({"fixed": "2", "text": "changed"})).await;
    stalled(&scene, "a", "ImmutableField", &["fixed", "data", "onImmutableChange: Recreate", "by hand"])
        .await;
    assert_eq!(scene.get(CONFIG_MAP, "a").await["data"]["text"], "hello", "found before the first write");
    assert_eq!(uid_of(&scene.get(CONFIG_MAP, "a-fixed").await), uid_of(&fixed));
    // The remedy in the message works at once.
    scene.kubectl(&["delete", "configmap", "a-fixed"]).await;
    scene.ready(TRIAL, "a").await;
    assert_eq!(scene.get(CONFIG_MAP, "a-fixed").await["data"]["value"], "2");
    assert_eq!(scene.get(CONFIG_MAP, "a").await["data"]["text"], "changed");

    edit(&scene, "a", json!({"anew": "2"})).await;
    scene.ready(TRIAL, "a").await;
    let other = scene.get(CONFIG_MAP, "a-anew").await;
    assert_eq!(other["data"]["value"], "2");
    assert_ne!(uid_of(&other), uid_of(&anew));

    // An object that would be refused again is not deleted to be recreated.
    edit(&scene, "a", json!({"anew": "3", "label": "l".repeat(64)})).await;
    let reason = |o: &Value| {
        condition(o, "Stalled")["reason"] != "Ready" && condition(o, "Stalled")["status"] == "True"
    };
    scene.until("Stalled", TRIAL, "a", reason).await;
    assert_eq!(uid_of(&scene.get(CONFIG_MAP, "a-anew").await), uid_of(&other));
    edit(&scene, "a", json!({"label": "plain"})).await;
    scene.ready(TRIAL, "a").await;
    assert_eq!(scene.get(CONFIG_MAP, "a-anew").await["data"]["value"], "3");
}

#[tokio::test]
async fn pods_survive_the_recreation_of_their_statefulset() {
    let scene = Scene::new().await;
    let stone = |size: &str| {
        json!({"apiVersion": STONE.api_version(), "kind": "Stone", "metadata": {"name": "kept"},
            "spec": {"child": "statefulset-orphan", "value": size}})
    };
    let owner = |pod: &Value| pod["metadata"]["ownerReferences"][0]["uid"].as_str().map(str::to_owned);
    scene.apply(&stone("1Gi").to_string()).await;
    let pod = scene.until("a pod", POD, "kept-0", |pod| owner(pod).is_some()).await;
    let set = scene.get(STATEFUL_SET, "kept").await;
    assert_eq!(owner(&pod).as_deref(), Some(uid_of(&set)));

    scene.apply(&stone("2Gi").to_string()).await;
    let size = "/spec/volumeClaimTemplates/0/spec/resources/requests/storage";
    let new =
        scene.until("another size", STATEFUL_SET, "kept", |o| o.pointer(size) == Some(&json!("2Gi"))).await;
    assert_ne!(uid_of(&new), uid_of(&set));
    let adopted = |pod: &Value| owner(pod).as_deref() == Some(uid_of(&new));
    let kept = scene.until("adopted", POD, "kept-0", adopted).await;
    assert_eq!(uid_of(&kept), uid_of(&pod), "the pod was not replaced");
}

/// Row 29 of the table in docs/testing.md: clusterIP, volumeClaimTemplates, a Job's template, a selector. The
/// change is found before the first write; the object is recreated only if the package says so.
#[tokio::test]
async fn immutable_fields_of_built_in_kinds_are_reported_or_recreated() {
    let scene = Scene::new().await;
    let stone = |name: &str, child: &str, value: &str| {
        json!({"apiVersion": STONE.api_version(), "kind": "Stone", "metadata": {"name": name},
            "spec": {"child": child, "value": value}})
        .to_string()
    };
    let cases = [
        ("service", SERVICE, ["10.96.0.101", "10.96.0.102"], "/spec/clusterIP", "clusterIP"),
        (
            "statefulset",
            STATEFUL_SET,
            ["1Mi", "2Mi"],
            "/spec/volumeClaimTemplates/0/spec/resources/requests/storage",
            "spec",
        ),
        ("job", JOB, ["a:1", "a:2"], "/spec/template/spec/containers/0/image", "spec.template"),
        ("deployment", DEPLOYMENT, ["one", "two"], "/spec/selector/matchLabels/value", "spec.selector"),
    ];
    futures::future::join_all(cases.iter().map(async |(child, kind, [before, after], path, field)| {
        let value = |object: &Value| object.pointer(path).cloned().unwrap_or_default();
        // Without permission to recreate it, the object is left alone.
        scene.apply_ready(STONE, child, &stone(child, child, before)).await;
        let first = scene.get(*kind, child).await;
        scene.apply(&stone(child, child, after)).await;
        let holds = |o: &Value| condition(o, "Stalled")["reason"] == "ImmutableField";
        let told = scene.until("Stalled", STONE, child, holds).await;
        let message = condition(&told, "Stalled")["message"].as_str().unwrap().to_owned();
        for word in [*child, *field, "onImmutableChange: Recreate", "the rest of the change waits"] {
            assert!(message.contains(word), "{child}: {word:?} is not in {message}");
        }
        let now = scene.get(*kind, child).await;
        assert_eq!((uid_of(&now), value(&now)), (uid_of(&first), json!(before)), "{child}");
        assert_eq!(scene.get(CONFIG_MAP, child).await["data"]["value"], *before, "{child}");
        let tried = requests_of(&scene, child, Duration::from_secs(5)).await;
        assert!(tried.len() <= 8, "{}", crate::support::ext::list(&tried));
        // Reverting the edit resolves it.
        scene.apply_ready(STONE, child, &stone(child, child, before)).await;
        assert_eq!(uid_of(&scene.get(*kind, child).await), uid_of(&first));
    }))
    .await;
    futures::future::join_all(cases.iter().map(async |(child, kind, [before, after], path, _)| {
        let name = format!("{child}-anew");
        // Use another address, because only one Service can have an address.
        let other = |value: &str| value.replace("10.96.0.10", "10.96.0.11");
        scene.apply_ready(STONE, &name, &stone(&name, &name, &other(before))).await;
        let first = scene.get(*kind, &name).await;
        scene.apply_ready(STONE, &name, &stone(&name, &name, &other(after))).await;
        let now = scene.get(*kind, &name).await;
        assert_ne!(uid_of(&now), uid_of(&first), "{child}");
        assert_eq!(now.pointer(path), Some(&json!(other(after))), "{child}");
        assert_eq!(scene.get(CONFIG_MAP, &name).await["data"]["value"], other(after), "{child}");
    }))
    .await;
}

/// The manager's requests about objects with a name during this time.
async fn requests_of(scene: &Scene, name: &str, during: Duration) -> Vec<AuditEvent> {
    let mut requests = requests(scene.namespace(), during).await;
    requests.retain(|r| r.name == name);
    requests
}

#[tokio::test]
async fn terminating_namespace_is_reported() {
    let scene = Scene::new().await;
    scene.apply(&trial("absent", json!({"elsewhere": true}))).await;
    stalled(&scene, "absent", "ApplyRefused", &["elsewhere", "trial-elsewhere", "not found"]).await;
    assert!(scene.find(CONFIG_MAP, "absent").await.is_none());
    let held = json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "holds", "namespace": "trial-elsewhere", "finalizers": ["example.org/hold"]}});
    kubectl(&["create", "namespace", "trial-elsewhere"]).await.ok();
    kubectl_stdin(&["apply", "-f", "-"], &held.to_string()).await.ok();
    kubectl(&["delete", "namespace", "trial-elsewhere", "--wait=false"]).await.ok();

    scene.apply(&trial("a", json!({"elsewhere": true}))).await;
    stalled(&scene, "a", "NamespaceTerminating", &["elsewhere", "trial-elsewhere"]).await;
    let tried = requests("trial-elsewhere", Duration::from_secs(5)).await;
    assert!(tried.len() <= 6, "{}", crate::support::ext::list(&tried));
    scene.apply_ready(TRIAL, "good", &trial("good", json!({}))).await;
    let free = json!({"metadata": {"finalizers": null}}).to_string();
    kubectl(&["-n", "trial-elsewhere", "patch", "configmap", "holds", "--type=merge", "-p", &free])
        .await
        .ok();
}

#[tokio::test]
async fn changed_role_ref_is_refused_before_creating_the_role() {
    let scene = Scene::new().await;
    scene.apply_ready(TRIAL, "r", &trial("r", json!({"role": "reader"}))).await;
    let binding = scene.get(ROLE_BINDING, "r").await;
    // roleRef is immutable, which is found before the new Role is created, except where the dry run of the
    // binding needs the Role.
    edit(&scene, "r", json!({"role": "writer"})).await;
    stalled(&scene, "r", "ImmutableField", &["binding", "roleRef"]).await;
    assert!(has_derived_rights() || scene.find(ROLE, "writer").await.is_none());
    assert_eq!(scene.get(ROLE_BINDING, "r").await["roleRef"], binding["roleRef"]);
    edit(&scene, "r", json!({"role": "reader"})).await;
    scene.ready(TRIAL, "r").await;
}

#[tokio::test]
async fn missing_rights_for_a_kind_are_reported() {
    const LIGHT: Kind = kind("limited.operetta.dev/v1", "lights");
    let package = copy_package(&fixture("light"), "fixtures.operetta.dev", LIGHT.group(), |text| text);
    let plane = own_plane_of_tests().await;
    let scene = Scene::on(&plane).await;
    let rules = |secrets: &[&str]| {
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "limited"}, "rules": [
            {"apiGroups": ["apiextensions.k8s.io", "limited.operetta.dev", "events.k8s.io", "coordination.k8s.io"], "resources": ["*"], "verbs": ["*"]},
            {"apiGroups": ["rbac.authorization.k8s.io"], "resources": ["roles"], "verbs": ["*"]},
            {"apiGroups": [""], "resources": ["configmaps", "services", "serviceaccounts", "events"], "verbs": ["*"]},
            {"apiGroups": [""], "resources": ["secrets"], "verbs": secrets},
        ]})
        .to_string()
    };
    scene.kubectl_input(&["apply", "-f", "-"], &rules(&["get"])).await.unwrap();
    scene.kubectl(&["create", "serviceaccount", "limited"]).await;
    let account = format!("--serviceaccount={}:limited", scene.namespace());
    scene.kubectl(&["create", "clusterrolebinding", "limited", "--clusterrole=limited", &account]).await;
    let user = operetta::rights::user(scene.namespace(), "limited");
    decides(&plane, &user, "", ("list", LIGHT.group(), "lights"), true).await;
    let audit = plane.audit();
    let mark = audit.mark().unwrap();
    let lease = format!("--leader-elect-resource-namespace={}", scene.namespace());
    let args = ["run", &lease, "--leader-elect-resource-name=limited", package.path().to_str().unwrap()];
    let manager = Operetta::run_as_account(&plane, scene.namespace(), "limited", &args).await;
    let mut manager = manager.watching(1).await;

    let light = |name: &str| {
        json!({"apiVersion": LIGHT.api_version(), "kind": "Light", "metadata": {"name": name}, "spec": {}})
            .to_string()
    };
    scene.apply(&light("early")).await;
    // What the manager may not list is unknown and reported, and it asks less and less often.
    let unknown = |o: &Value| {
        let message = condition(o, "Ready")["message"].as_str().unwrap_or_default();
        message.contains("cannot watch resource") && message.contains("needs the verbs list and watch")
    };
    scene.until("Unknown", LIGHT, "early", unknown).await;
    let lists = eventually("three attempts to list", LONG, async || {
        let mut lists = audit.requests_since(mark).unwrap();
        lists.retain(|r| r.user.ends_with(":limited") && r.resource == "secrets" && r.verb == "watch");
        if lists.len() >= 3 { Ok(lists) } else { Err(lists.len()) }
    })
    .await;
    let took = time_of(&lists[2]).duration_since(time_of(&lists[0]));
    assert!(took.as_secs_f64() > 1.0, "{}", crate::support::ext::list(&lists));
    scene.kubectl_input(&["apply", "-f", "-"], &rules(&["get", "list", "watch"])).await.unwrap();
    let forbidden = |o: &Value| condition(o, "Stalled")["reason"] == "Forbidden";
    scene.until("listed, and Forbidden", LIGHT, "early", forbidden).await;
    scene.kubectl(&["delete", "lights.limited.operetta.dev", "early"]).await;

    scene.apply(&light("l")).await;
    let instance = scene.until("Forbidden", LIGHT, "l", forbidden).await;
    let message = condition(&instance, "Stalled")["message"].as_str().unwrap();
    for word in ["secret", "cannot patch resource", "the rest of the change waits"] {
        assert!(message.contains(word), "{word:?} is not in {message}");
    }
    assert!(scene.find(CONFIG_MAP, "l").await.is_none(), "{}", manager.output());
    let mark = audit.mark().unwrap();
    // An attempt may consist of several requests.
    let tried = eventually("another attempt", LONG, async || {
        let mut tried = audit.requests_since(mark).unwrap();
        // Lists in all namespaces are repeated as well, but are not attempts.
        tried.retain(|r| r.user.ends_with(":limited") && r.namespace == scene.namespace());
        tried.retain(|r| r.resource == "secrets" && r.verb == "patch");
        if tried.len() >= 3 { Ok(tried) } else { Err(crate::support::ext::list(&tried)) }
    })
    .await;
    let took = time_of(&tried[2]).duration_since(time_of(&tried[0]));
    assert!(took.as_secs_f64() > 0.5, "{}", crate::support::ext::list(&tried));
    // Once the right is granted, the instance becomes Ready by itself.
    scene.kubectl_input(&["apply", "-f", "-"], &rules(&["*"])).await.unwrap();
    scene.ready(LIGHT, "l").await;
    manager.end().await;
}
