//! Objects that instances read without owning them, instances of other packages as children, groups, and what
//! the cluster serves. The manager has an account of its own, which may read Secrets only where a test allows
//! it.

use crate::support::rights::decides;
use crate::support::{
    CONFIG_MAP, ECHO, Kind, LATECOMER, LONG, LOOP, OUTER, READER, SERVICE_ACCOUNT, Scene, Shared, condition,
    eventually, file, fixture, is_ready, kubectl, kubectl_stdin, name_of,
};
use operetta::local::{AuditEvent, Mark};
use serde_json::{Value, json};

const USER: &str = "system:serviceaccount:kube-system:reader";

/// A manager that may not read Secrets.
static MANAGER: Shared = Shared::new(
    Some(("reader", "configmaps, serviceaccounts, events, namespaces")),
    &["--leader-elect=false", "--leader-elect-resource-name=refs"],
    || vec![fixture("refs")],
    3,
);

async fn scene() -> Scene {
    Scene::managed(&MANAGER).await
}

/// Allows the manager to read Secrets in the namespace from now on.
async fn allow_secrets(scene: &Scene) {
    let subject = "--serviceaccount=kube-system:reader";
    scene.kubectl(&["create", "rolebinding", "secrets", "--clusterrole=secrets", subject]).await;
    decides(scene.plane(), USER, scene.namespace(), ("watch", "", "secrets"), true).await;
}

async fn reader(scene: &Scene, name: &str, spec: &Value) {
    let object = json!({"apiVersion": READER.api_version(), "kind": "Reader", "metadata": {"name": name}, "spec": spec});
    scene.apply(&object.to_string()).await;
}

async fn config_map(scene: &Scene, name: &str, labels: &Value, data: &Value) {
    let meta = json!({"name": name, "labels": labels});
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data});
    scene.apply(&object.to_string()).await;
}

/// Waits until the condition Ready has this reason. Returns its message.
async fn reason(scene: &Scene, kind: Kind, name: &str, reason: &str) -> String {
    let is = |object: &Value| condition(object, "Ready")["reason"] == reason;
    let object = scene.until(reason, kind, name, is).await;
    condition(&object, "Ready")["message"].as_str().unwrap_or_default().to_owned()
}

async fn holds(scene: &Scene, name: &str, key: &str, value: &str) {
    scene.until(&format!("{key} is {value}"), CONFIG_MAP, name, |o| o["data"][key] == value).await;
}

/// Waits until the manager has handled everything so far.
async fn handled(scene: &Scene) {
    let marker = json!({"apiVersion": READER.api_version(), "kind": "Reader", "metadata": {"name": "marker"}, "spec": {}});
    scene.handled(&scene.address(), &marker.to_string(), READER, &[CONFIG_MAP]).await;
}

/// The manager's requests about a kind in the namespace.
fn requests(scene: &Scene, plural: &str) -> Vec<AuditEvent> {
    let mut all = all_requests(scene);
    let path = format!("/namespaces/{}/{plural}", scene.namespace());
    all.retain(|event| event.uri.contains(&path));
    all
}

/// All requests of the manager.
fn all_requests(scene: &Scene) -> Vec<AuditEvent> {
    let mut all = scene.plane().audit().requests_since(Mark::START).expect("the audit log");
    all.retain(|event| event.user == USER);
    all
}

#[tokio::test]
async fn secret_ref_is_awaited_followed_and_reported_missing() {
    let scene = scene().await;
    allow_secrets(&scene).await;
    reader(&scene, "r", &json!({"secret": "login"})).await;
    let message = reason(&scene, READER, "r", "RefMissing").await;
    let object = format!("Secret {}/login does not exist", scene.namespace());
    assert!(message.contains("refs.secret") && message.contains(&object), "{message}");
    // A child that does not read the Secret exists.
    scene.until("exists", CONFIG_MAP, "r-plain", |_| true).await;
    assert!(scene.find(CONFIG_MAP, "r-copy").await.is_none());

    scene.kubectl(&["create", "secret", "generic", "login", "--from-literal=password=one"]).await;
    scene.ready(READER, "r").await;
    holds(&scene, "r-copy", "password", "one").await;
    let two = json!({"stringData": {"password": "two"}}).to_string();
    scene.kubectl(&["patch", "secret", "login", "--type=merge", "-p", &two]).await;
    holds(&scene, "r-copy", "password", "two").await;

    scene.kubectl(&["delete", "secret", "login"]).await;
    reason(&scene, READER, "r", "RefMissing").await;
    holds(&scene, "r-copy", "password", "two").await;
    // Other children are still maintained.
    reader(&scene, "r", &json!({"secret": "login", "note": "still here"})).await;
    holds(&scene, "r-plain", "note", "still here").await;

    // Only the one Secret was watched, by its name.
    let asked = requests(&scene, "secrets");
    assert!(!asked.is_empty());
    for event in asked {
        assert!(event.uri.contains("fieldSelector=metadata.name%3Dlogin"), "{}", event.uri);
    }
}

#[tokio::test]
async fn a_forbidden_ref_is_unknown_until_it_is_allowed() {
    let scene = scene().await;
    scene.kubectl(&["create", "secret", "generic", "login", "--from-literal=password=one"]).await;
    reader(&scene, "r", &json!({"secret": "login"})).await;
    let message = reason(&scene, READER, "r", "RefForbidden").await;
    assert!(message.contains("may not be read"), "{message}");
    allow_secrets(&scene).await;
    scene.ready(READER, "r").await;
    holds(&scene, "r-copy", "password", "one").await;

    // The right is withdrawn: the child made from the Secret stays as it is, the others are maintained, and
    // the manager does not ask in a loop.
    scene.kubectl(&["delete", "rolebinding", "secrets"]).await;
    decides(scene.plane(), USER, scene.namespace(), ("watch", "", "secrets"), false).await;
    scene.kubectl(&["create", "secret", "generic", "other", "--from-literal=password=two"]).await;
    reader(&scene, "r", &json!({"secret": "other", "note": "goes on"})).await;
    reason(&scene, READER, "r", "RefForbidden").await;
    holds(&scene, "r-plain", "note", "goes on").await;
    holds(&scene, "r-copy", "password", "one").await;
    let asked = || {
        let mut requests = requests(&scene, "");
        requests.retain(|r| !r.uri.contains("marker") && r.resource != "events");
        requests
    };
    let before = asked().len();
    handled(&scene).await;
    let asked = asked();
    assert!(asked.len() - before <= 8, "{}", crate::support::ext::list(&asked[before..]));
    holds(&scene, "r-copy", "password", "one").await;
    allow_secrets(&scene).await;
    scene.ready(READER, "r").await;
    holds(&scene, "r-copy", "password", "two").await;
}

#[tokio::test]
async fn spec_causes_no_request_in_another_namespace() {
    let scene = scene().await;
    allow_secrets(&scene).await;
    for (name, secret) in [
        ("a", "../../kube-system/secrets/x"),
        ("b", "x,metadata.namespace=kube-system"),
        ("c", "kube-system/x"),
    ] {
        reader(&scene, name, &json!({"secret": secret})).await;
        reason(&scene, READER, name, "InvalidRef").await;
    }
    assert!(requests(&scene, "secrets").is_empty());
    let mut all = all_requests(&scene);
    all.retain(|event| event.uri.contains("kube-system") && event.uri.contains("secrets"));
    assert!(all.is_empty(), "{:?}", all.iter().map(|event| &event.uri).collect::<Vec<_>>());
}

#[tokio::test]
async fn optional_ref_may_appear_and_disappear() {
    let scene = scene().await;
    reader(&scene, "r", &json!({})).await;
    scene.ready(READER, "r").await;
    assert!(scene.find(CONFIG_MAP, "r-followed").await.is_none());
    config_map(&scene, "r-extra", &json!({}), &json!({"more": "a"})).await;
    holds(&scene, "r-followed", "more", "a").await;
    config_map(&scene, "r-extra", &json!({}), &json!({"more": "b"})).await;
    holds(&scene, "r-followed", "more", "b").await;
    scene.kubectl(&["delete", "configmap", "r-extra"]).await;
    scene.gone(CONFIG_MAP, "r-followed").await;
    scene.ready(READER, "r").await;
}

#[tokio::test]
async fn selector_ref_follows_matching_objects() {
    let scene = scene().await;
    config_map(&scene, "b", &json!({"peer": "yes"}), &json!({})).await;
    config_map(&scene, "c", &json!({"peer": "no"}), &json!({})).await;
    reader(&scene, "r", &json!({"peers": {"matchLabels": {"peer": "yes"}}})).await;
    let peers = async |wanted: Value| {
        scene.until(&format!("{wanted}"), READER, "r", |o| o["status"]["peers"] == wanted).await;
    };
    peers(json!(["b"])).await;
    config_map(&scene, "a", &json!({"peer": "yes"}), &json!({})).await;
    peers(json!(["a", "b"])).await;
    config_map(&scene, "c", &json!({"peer": "yes"}), &json!({})).await;
    config_map(&scene, "b", &json!({"peer": "no"}), &json!({})).await;
    peers(json!(["a", "c"])).await;
    scene.kubectl(&["delete", "configmap", "a", "c"]).await;
    peers(json!([])).await;
    let no = json!({"matchExpressions": [{"key": "peer", "operator": "In", "values": ["no", "perhaps"]}]});
    reader(&scene, "r", &json!({"peers": no})).await;
    peers(json!(["b"])).await;
    reader(&scene, "r", &json!({"peers": {"matchLabels": {"a b": "c"}}})).await;
    reason(&scene, READER, "r", "InvalidRef").await;
    // An unknown list is not an empty one: the status field keeps its value.
    assert_eq!(scene.get(READER, "r").await["status"]["peers"], json!(["b"]));
}

#[tokio::test]
async fn map_of_refs_follows_its_list() {
    let scene = scene().await;
    config_map(&scene, "r-a", &json!({}), &json!({"value": "1"})).await;
    reader(&scene, "r", &json!({"parts": ["a", "b"]})).await;
    holds(&scene, "r-got-a", "value", "1").await;
    let message = reason(&scene, READER, "r", "RefMissing").await;
    let object = format!("ConfigMap {}/r-b does not exist", scene.namespace());
    assert!(message.contains("refs.parts[\"b\"]") && message.contains(&object), "{message}");
    config_map(&scene, "r-b", &json!({}), &json!({"value": "2"})).await;
    scene.ready(READER, "r").await;
    holds(&scene, "r-got-b", "value", "2").await;
    config_map(&scene, "r-b", &json!({}), &json!({"value": "3"})).await;
    holds(&scene, "r-got-b", "value", "3").await;
    let values = async |wanted: Value| {
        scene.until(&format!("{wanted}"), READER, "r", |o| o["status"]["partValues"] == wanted).await;
    };
    values(json!(["1", "3"])).await;

    // Only objects in the list are watched.
    let watched = |name: &str| {
        let asked = requests(&scene, "configmaps");
        asked.iter().filter(|e| e.uri.contains(&format!("metadata.name%3D{name}"))).count()
    };
    reader(&scene, "r", &json!({"parts": ["b", "c"]})).await;
    reason(&scene, READER, "r", "RefMissing").await;
    eventually("a watch of r-c", LONG, async || match watched("r-c") {
        0 => Err("nobody asks for it".to_owned()),
        _ => Ok(()),
    })
    .await;
    // A child of a removed key is not pruned before all desired children exist.
    config_map(&scene, "r-c", &json!({}), &json!({"value": "4"})).await;
    scene.gone(CONFIG_MAP, "r-got-a").await;
    values(json!(["3", "4"])).await;
    // A change of an object that has left the list causes no reconcile.
    config_map(&scene, "r-a", &json!({}), &json!({"value": "9"})).await;
    config_map(&scene, "r-c", &json!({}), &json!({"value": "5"})).await;
    values(json!(["3", "5"])).await;
    // A key with a path reads nothing in another namespace.
    reader(&scene, "r", &json!({"parts": ["b", "../kube-system/x"]})).await;
    reason(&scene, READER, "r", "InvalidRef").await;
    assert!(requests(&scene, "configmaps").iter().all(|e| !e.uri.contains("kube-system")));
}

#[tokio::test]
async fn json_paths_show_what_they_find() {
    let scene = scene().await;
    config_map(&scene, "one", &json!({"peer": "yes"}), &json!({})).await;
    let peers = json!({"matchExpressions": [{"key": "peer", "operator": "Exists"}]});
    reader(&scene, "r", &json!({"note": "hello", "peers": peers})).await;
    let shows = async |named: Value| {
        scene
            .until(&format!("{named}"), READER, "r", |o| {
                o["status"]["note"] == "hello" && o["status"]["named"] == named
            })
            .await
    };
    let object = shows(json!("one")).await;
    assert_eq!(object["status"]["partValues"], json!([]));
    // Two matches are reported where the schema wants one value.
    config_map(&scene, "two", &json!({"peer": "yes"}), &json!({})).await;
    let told = |o: &Value| {
        let failed = condition(o, "StatusFailed");
        failed["status"] == "True"
            && failed["message"]
                .as_str()
                .is_some_and(|m| m.contains("status.named") && m.contains("2 values"))
    };
    scene.until("StatusFailed", READER, "r", told).await;
    config_map(&scene, "two", &json!({"peer": "no"}), &json!({})).await;
    shows(json!("one")).await;
    scene.kubectl(&["delete", "configmap", "one"]).await;
    shows(Value::Null).await;
}

#[tokio::test]
async fn many_refs_by_name_share_one_watch() {
    const MANY: usize = 40;
    let scene = scene().await;
    for number in 0..MANY {
        if number % 2 == 0 {
            config_map(&scene, &format!("r{number}-extra"), &json!({}), &json!({"more": "a"})).await;
        }
        reader(&scene, &format!("r{number}"), &json!({})).await;
    }
    for number in 0..MANY {
        let name = format!("r{number}");
        scene.ready(READER, &name).await;
        config_map(&scene, &format!("{name}-extra"), &json!({}), &json!({"more": "b"})).await;
    }
    for number in 0..MANY {
        holds(&scene, &format!("r{number}-followed"), "more", "b").await;
    }
    let watches: Vec<_> = requests(&scene, "configmaps").into_iter().filter(|e| e.verb == "watch").collect();
    let shared = watches.iter().filter(|event| !event.uri.contains("Selector")).count();
    assert!(shared > 0 && watches.len() < MANY, "{} watches, {shared} of them shared", watches.len());
    // Nothing reads these objects any more.
    scene.kubectl(&["delete", "readers", "--all"]).await;
}

#[tokio::test]
async fn feedback_through_a_ref_is_stopped() {
    let scene = scene().await;
    let object =
        json!({"apiVersion": LOOP.api_version(), "kind": "Loop", "metadata": {"name": "l"}, "spec": {}});
    scene.apply(&object.to_string()).await;
    let message = reason(&scene, LOOP, "l", "Oscillating").await;
    assert!(message.starts_with("loop:"), "{message}");
    let writes = |plural: &str| {
        let requests = requests(&scene, plural);
        requests.iter().filter(|event| event.writes() && !event.uri.contains("marker")).count()
    };
    let before = (writes("configmaps"), writes("loops"));
    assert!(before.0 <= 12, "{before:?}");
    handled(&scene).await;
    assert_eq!((writes("configmaps"), writes("loops")), before, "it goes on");
    // A change of the instance resets the guard.
    scene.kubectl(&["patch", "loop", "l", "--type=merge", "-p", r#"{"spec":{"note":"x"}}"#]).await;
    let holds = |o: &Value| {
        o["data"]["count"]
            .as_str()
            .and_then(|count| count.parse::<usize>().ok())
            .is_some_and(|count| count > 11)
    };
    scene.until("counts on", CONFIG_MAP, "l-loop", holds).await;
}

#[tokio::test]
async fn child_of_a_kind_that_appears_and_disappears() {
    // The manager of other tests handles the kind `Echo`.
    Scene::new().await;
    let scene = scene().await;
    reader(&scene, "r", &json!({})).await;
    let served = async |wanted: bool| {
        scene.until(&format!("served {wanted}"), READER, "r", |o| o["status"]["served"] == wanted).await
    };
    let version = served(false).await["status"]["version"].clone();
    assert!(version.as_str().is_some_and(|version| version.starts_with("1.")), "{version}");
    let spec = json!({"environments": [{"name": "dev"}, {"name": "prod", "bare": true}, {"name": "never"}]});
    let object =
        json!({"apiVersion": OUTER.api_version(), "kind": "Outer", "metadata": {"name": "o"}, "spec": spec});
    scene.apply(&object.to_string()).await;

    // A kind that is missing delays only its own child and its dependents.
    let message = reason(&scene, OUTER, "o", "KindMissing").await;
    assert!(message.contains("late") && message.contains("Latecomer"), "{message}");
    holds(&scene, "o-after", "length", "5").await;
    assert!(is_ready(&scene.get(ECHO, "o-inner").await), "it was not waited for");
    scene.until("the group", CONFIG_MAP, "o-dev", |o| o["data"]["account"].is_string()).await;
    let mut accounts: Vec<String> =
        scene.list(SERVICE_ACCOUNT).await.iter().map(|o| name_of(o).to_owned()).collect();
    accounts.sort();
    assert_eq!(accounts, ["default", "o-dev", "o-prod"]);
    assert!(scene.find(CONFIG_MAP, "o-prod").await.is_none());

    let crd = file(&format!("{}/instances/latecomer.yaml", fixture("refs")));
    for round in 0..2 {
        kubectl_stdin(&["apply", "-f", "-"], &crd).await.ok();
        served(true).await;
        let late = scene.until("exists", LATECOMER, "o-late", |_| true).await;
        assert_eq!(late["spec"]["greeting"], "hello");
        // The controller of that kind has not seen the object yet.
        let message = reason(&scene, OUTER, "o", "ChildrenNotReady").await;
        assert!(message.contains("late"), "{round}: {message}");
        let status = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}}).to_string();
        scene
            .kubectl(&["patch", "latecomer", "o-late", "--subresource=status", "--type=merge", "-p", &status])
            .await;
        scene.ready(OUTER, "o").await;
        kubectl(&["delete", "crd", "latecomers.fixtures.operetta.dev"]).await.ok();
        reason(&scene, OUTER, "o", "KindMissing").await;
        served(false).await;
        holds(&scene, "o-after", "length", "5").await;
    }
    // A kind that cannot be listed does not block deletion for ever.
    scene.kubectl(&["delete", "outer", "o", "--wait=false"]).await;
    eventually("the end of the instance", LONG, async || match scene.find(OUTER, "o").await {
        None => Ok(()),
        Some(object) => Err(format!("{:#}", object["status"])),
    })
    .await;
}
