//! Changes of children by others: fields that the package owns are restored, fields of others are kept.

// The table reads better with values than with references.

use crate::support::eventually;
use crate::support::ext::{
    CONFIG_MAP, DEPLOYMENT, FENCE, Kind, LIGHT, LONG, NETWORK_POLICY, ROLE, SECRET, SERVICE, SERVICE_ACCOUNT,
    Scene, WEB_APP, condition, difference, is_ready, uid_of,
};
use futures::StreamExt;
use serde_json::{Value, json};

/// A change that somebody else makes to a child.
enum Damage {
    /// `kubectl patch --type=merge`.
    Merge(Value),
    /// `kubectl patch --type=strategic`.
    Strategic(Value),
    /// `kubectl patch --type=json`.
    Json(Value),
    /// `kubectl ...` with these arguments, in which NAME stands for the child's name.
    Kubectl(&'static [&'static str]),
    /// `kubectl apply --server-side --force-conflicts` of this, with kind and name added.
    Force(Value),
}

use Damage::{Force, Json, Kubectl, Merge, Strategic};

struct Case {
    what: &'static str,
    kind: Kind,
    damage: Damage,
    /// Puts into the original object what is expected to stay of the change.
    stays: fn(&mut Value),
}

fn nothing(_: &mut Value) {}

fn put_back(kind: Kind, what: &'static str, damage: Damage) -> Case {
    Case { what, kind, damage, stays: nothing }
}

fn stays(kind: Kind, what: &'static str, damage: Damage, stays: fn(&mut Value)) -> Case {
    Case { what, kind, damage, stays }
}

fn remove(path: &str) -> Damage {
    Json(json!([{"op": "remove", "path": path}]))
}

fn replace(path: &str, value: impl Into<Value>) -> Damage {
    let value = value.into();
    Json(json!([{"op": "replace", "path": path, "value": value}]))
}

fn add(path: &str, value: impl Into<Value>) -> Damage {
    let value = value.into();
    Json(json!([{"op": "add", "path": path, "value": value}]))
}

fn label(key: &str, value: impl Into<Value>) -> Damage {
    let value = value.into();
    Merge(json!({"metadata": {"labels": {key: value}}}))
}

fn cases() -> Vec<Case> {
    let kinds = [CONFIG_MAP, SECRET, SERVICE, ROLE, NETWORK_POLICY, DEPLOYMENT];
    let [config, secret, service, role, policy, deployment] =
        kinds.map(|kind| move |what, damage| put_back(kind, what, damage));
    vec![
        config("a value is edited", Merge(json!({"data": {"greeting": "hacked"}}))),
        config("a key is removed", Merge(json!({"data": {"greeting": null}}))),
        config("all data is removed", remove("/data")),
        stays(CONFIG_MAP, "a key is added", Merge(json!({"data": {"extra": "1"}})), |o| {
            o["data"]["extra"] = "1".into();
        }),
        stays(
            CONFIG_MAP,
            "one value is edited, one added",
            Merge(json!({"data": {"greeting": "hacked", "extra": "1"}})),
            |o| o["data"]["extra"] = "1".into(),
        ),
        config("another manager applies by force", Force(json!({"data": {"greeting": "mine"}}))),
        config("it is deleted", Kubectl(&["delete", "configmap", "NAME"])),
        config("a label of ours is removed", label("app.kubernetes.io/managed-by", Value::Null)),
        config(
            "the label with the instance's uid is removed",
            label("operetta.dev/instance-uid", Value::Null),
        ),
        config("the label with the instance's uid is edited", label("operetta.dev/instance-uid", "x")),
        config("the label with the instance's name is edited", label("operetta.dev/instance", "x")),
        config("the label with the child's id is edited", label("operetta.dev/child", "x")),
        config("the label with the child's id is removed", label("operetta.dev/child", Value::Null)),
        config("the label with the package is edited", label("operetta.dev/operator", "x")),
        config("all labels are removed", remove("/metadata/labels")),
        config(
            "the hash of the intent is edited",
            Merge(json!({"metadata": {"annotations": {"operetta.dev/applied-hash": "x"}}})),
        ),
        config("all annotations are removed", remove("/metadata/annotations")),
        config("the owner is removed", remove("/metadata/ownerReferences")),
        config(
            "managedFields are cleared, a value edited",
            Merge(json!({"metadata": {"managedFields": [{}]}, "data": {"greeting": "hacked"}})),
        ),
        stays(
            CONFIG_MAP,
            "a label and an annotation are added",
            Merge(json!({"metadata": {"labels": {"team": "a"}, "annotations": {"note": "b"}}})),
            |o| {
                o["metadata"]["labels"]["team"] = "a".into();
                o["metadata"]["annotations"]["note"] = "b".into();
            },
        ),
        secret("a value is edited", Merge(json!({"data": {"greeting": "aGFja2Vk"}}))),
        secret("a key is removed", Merge(json!({"data": {"greeting": null}}))),
        secret("a value is edited as text", Merge(json!({"stringData": {"greeting": "hacked"}}))),
        stays(SECRET, "a key is added", Merge(json!({"data": {"extra": "YQ=="}})), |o| {
            o["data"]["extra"] = "YQ==".into();
        }),
        service("its selector is edited", Merge(json!({"spec": {"selector": {"light": "other"}}}))),
        service("its selector is narrowed", Merge(json!({"spec": {"selector": {"more": "x"}}}))),
        service("its port is edited", replace("/spec/ports/0/port", 81)),
        service("its port is renamed", replace("/spec/ports/0/name", "other")),
        stays(
            SERVICE,
            "a port is added",
            add(
                "/spec/ports/-",
                json!({"name": "metrics", "port": 9100, "protocol": "TCP", "targetPort": 9100}),
            ),
            |o| {
                let port = json!({"name": "metrics", "port": 9100, "protocol": "TCP", "targetPort": 9100});
                o["spec"]["ports"].as_array_mut().unwrap().push(port);
            },
        ),
        service("it is deleted", Kubectl(&["delete", "service", "NAME"])),
        put_back(
            SERVICE_ACCOUNT,
            "its token is mounted",
            Merge(json!({"automountServiceAccountToken": true})),
        ),
        role(
            "its rules are replaced",
            Merge(json!({"rules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]})),
        ),
        role(
            "a rule is added",
            add("/rules/-", json!({"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]})),
        ),
        role("a verb is added", add("/rules/0/verbs/-", "delete")),
        role("its rules are removed", Merge(json!({"rules": []}))),
        policy(
            "a rule is added to an empty list",
            Merge(json!({"spec": {"ingress": [{"from": [{"podSelector": {}}]}]}})),
        ),
        policy(
            "it selects other pods",
            Merge(json!({"spec": {"podSelector": {"matchLabels": {"app": "other"}}}})),
        ),
        deployment(
            "its image is set",
            Strategic(
                json!({"spec": {"template": {"spec": {"containers": [{"name": "web", "image": "example.org/wrong:1"}]}}}}),
            ),
        ),
        deployment("it is scaled", Kubectl(&["scale", "deployment", "NAME", "--replicas=3"])),
        deployment(
            "its probe asks elsewhere",
            replace("/spec/template/spec/containers/0/readinessProbe/httpGet/path", "/other"),
        ),
        deployment("its probe is removed", remove("/spec/template/spec/containers/0/readinessProbe")),
        deployment(
            "its port is edited",
            replace("/spec/template/spec/containers/0/ports/0/containerPort", 81),
        ),
        deployment("its container is renamed", replace("/spec/template/spec/containers/0/name", "other")),
        stays(
            DEPLOYMENT,
            "a container is added",
            Strategic(json!({"spec": {"template": {"spec": {"containers": [side_car()]}}}})),
            |o| o["spec"]["template"]["spec"]["containers"].as_array_mut().unwrap().push(side_car()),
        ),
        stays(
            DEPLOYMENT,
            "its pods get an annotation, as kubectl rollout restart does",
            Merge(json!({"spec": {"template": {"metadata": {"annotations": {"restartedAt": "now"}}}}})),
            |o| o["spec"]["template"]["metadata"]["annotations"] = json!({"restartedAt": "now"}),
        ),
        deployment(
            "it is deleted",
            Kubectl(&["delete", "deployment", "NAME", "--cascade=foreground", "--wait=false"]),
        ),
    ]
}

fn side_car() -> Value {
    json!({
        "name": "side-car", "image": "example.org/side-car:1", "imagePullPolicy": "IfNotPresent", "resources": {},
        "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
    })
}

/// An instance that has a child of the kind, and the instance's kind.
fn instance_of(kind: Kind, name: &str) -> (Kind, Value) {
    let (of, kind, spec) = match kind.plural {
        "deployments" => (WEB_APP, "WebApp", json!({"image": "example.org/web:1"})),
        "networkpolicies" => (FENCE, "Fence", json!({})),
        _ => (LIGHT, "Light", json!({})),
    };
    (of, json!({"apiVersion": of.api_version(), "kind": kind, "metadata": {"name": name}, "spec": spec}))
}

/// The object without fields that change by themselves.
fn essence(mut object: Value) -> Value {
    if let Some(map) = object.as_object_mut() {
        map.remove("status");
    }
    let meta = object["metadata"].as_object_mut().unwrap();
    for field in ["managedFields", "resourceVersion", "generation", "uid", "creationTimestamp"] {
        meta.remove(field);
    }
    if let Some(annotations) = meta.get_mut("annotations").and_then(Value::as_object_mut) {
        annotations.remove("deployment.kubernetes.io/revision");
    }
    // Sort lists of named items, whose order does not matter.
    for path in ["/spec/ports", "/spec/template/spec/containers"] {
        if let Some(Value::Array(items)) = object.pointer_mut(path) {
            items.sort_by_key(|item| item["name"].to_string());
        }
    }
    object
}

async fn inflict(scene: &Scene, case: &Case, name: &str) {
    match &case.damage {
        Merge(patch) => scene.patch(case.kind, name, "merge", patch).await,
        Strategic(patch) => scene.patch(case.kind, name, "strategic", patch).await,
        Json(patch) => scene.patch(case.kind, name, "json", patch).await,
        Kubectl(args) => {
            let args: Vec<String> = args.iter().map(|arg| arg.replace("NAME", name)).collect();
            scene.kubectl(&args.iter().map(String::as_str).collect::<Vec<_>>()).await;
        }
        Force(body) => {
            let live = scene.get(case.kind, name).await;
            let mut body = body.clone();
            body["apiVersion"] = live["apiVersion"].clone();
            body["kind"] = live["kind"].clone();
            body["metadata"] = json!({"name": name});
            let args = ["apply", "--server-side", "--force-conflicts", "--field-manager=other", "-f", "-"];
            scene.kubectl_input(&args, &body.to_string()).await.unwrap();
        }
    }
}

#[tokio::test]
async fn owned_fields_are_restored_and_fields_of_others_are_kept() {
    let scene = Scene::new().await;
    let cases = cases();
    // Each case has an instance of its own, because repairs of one object delay each other.
    let name = |i: usize| format!("case-{i}");
    let items: Vec<Value> =
        cases.iter().enumerate().map(|(i, case)| instance_of(case.kind, &name(i)).1).collect();
    scene.apply(&json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string()).await;
    let mut before = Vec::new();
    for (i, case) in cases.iter().enumerate() {
        scene.ready(instance_of(case.kind, "").0, &name(i)).await;
        before.push(essence(scene.get(case.kind, &name(i)).await));
    }
    let damages = cases.iter().enumerate().map(async |(i, case)| inflict(&scene, case, &name(i)).await);
    futures::stream::iter(damages).buffer_unordered(4).collect::<Vec<()>>().await;
    let wrong = async || {
        let mut wrong = Vec::new();
        for (i, case) in cases.iter().enumerate() {
            let mut expected = before[i].clone();
            (case.stays)(&mut expected);
            let now = scene.find(case.kind, &name(i)).await.map_or(Value::Null, |o| {
                if o["metadata"]["deletionTimestamp"].is_null() { essence(o) } else { Value::Null }
            });
            let expected = if now.is_null() { expected } else { essence(expected) };
            if now != expected {
                wrong.push(format!(
                    "{} {}: {}: {}",
                    case.kind.plural,
                    name(i),
                    case.what,
                    difference(&expected, &now, "")
                ));
            }
        }
        let right = wrong.is_empty();
        if right { Ok(()) } else { Err(format!("{} of {}:\n{}", wrong.len(), cases.len(), wrong.join("\n"))) }
    };
    eventually("all to be as it was, but for what others added", LONG, &wrong).await;
    for (i, case) in cases.iter().enumerate() {
        scene.ready(instance_of(case.kind, "").0, &name(i)).await;
    }
    // The manager changes nothing more.
    scene.handled(&scene.address(), &light("marker"), LIGHT, &[CONFIG_MAP, SERVICE]).await;
    wrong().await.unwrap();
}

fn light(name: &str) -> String {
    instance_of(CONFIG_MAP, name).1.to_string()
}

#[tokio::test]
async fn foreign_object_is_not_adopted_without_annotation() {
    let scene = Scene::new().await;
    scene.kubectl(&["create", "configmap", "mine", "--from-literal=greeting=theirs"]).await;
    let theirs = scene.get(CONFIG_MAP, "mine").await;
    scene.apply(&light("mine")).await;
    let stalled = |o: &Value| condition(o, "Stalled")["status"] == "True";
    let instance = scene.until("Stalled", LIGHT, "mine", stalled).await;
    let told = condition(&instance, "Stalled");
    assert_eq!(told["reason"], "AlreadyExists", "{told}");
    let message = told["message"].as_str().unwrap();
    for part in ["config", "ConfigMap", "mine", "operetta.dev/adopt"] {
        assert!(message.contains(part), "{part:?} in {message}");
    }
    assert_eq!(condition(&instance, "Ready")["status"], "False");
    // The other children do not wait for this one.
    scene.until("there", SERVICE, "mine", |_| true).await;
    let now = scene.get(CONFIG_MAP, "mine").await;
    assert_eq!(now["metadata"]["resourceVersion"], theirs["metadata"]["resourceVersion"]);

    scene.kubectl(&["annotate", "configmap", "mine", "operetta.dev/adopt=true"]).await;
    scene.ready(LIGHT, "mine").await;
    let now = scene.get(CONFIG_MAP, "mine").await;
    assert_eq!((uid_of(&now), &now["data"]["greeting"]), (uid_of(&theirs), &json!("hello")));
}

#[tokio::test]
async fn annotated_object_is_adopted_at_once() {
    let scene = Scene::new().await;
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "given", "annotations": {"operetta.dev/adopt": "true"}},
        "data": {"greeting": "theirs", "more": "x"}});
    scene.apply(&map.to_string()).await;
    scene.kubectl(&["label", "configmap", "given", "team=a"]).await;
    let before = scene.get(CONFIG_MAP, "given").await;
    scene.apply_ready(LIGHT, "given", &light("given")).await;
    let now = scene.get(CONFIG_MAP, "given").await;
    assert_eq!(uid_of(&now), uid_of(&before));
    // Fields of the former declaration are ours now; fields that others have set stay.
    assert_eq!(now["data"], json!({"greeting": "hello", "port": "8080"}));
    assert_eq!(now["metadata"]["labels"]["team"], "a");
}

#[tokio::test]
async fn paused_instance_writes_nothing() {
    let scene = Scene::new().await;
    scene.apply_ready(LIGHT, "held", &light("held")).await;
    scene.kubectl(&["annotate", "lights.fixtures.operetta.dev", "held", "operetta.dev/paused=true"]).await;
    let paused = |o: &Value| condition(o, "Ready")["reason"] == "Paused";
    scene.until("paused", LIGHT, "held", paused).await;
    scene.patch(CONFIG_MAP, "held", "merge", &json!({"data": {"greeting": "hacked"}})).await;
    scene.kubectl(&["delete", "role", "held"]).await;
    scene.patch(LIGHT, "held", "merge", &json!({"spec": {"port": 81}})).await;
    scene.handled(&scene.address(), &light("marker"), LIGHT, &[CONFIG_MAP, ROLE]).await;
    let reports = |o: &Value| {
        let message = condition(o, "Ready")["message"].as_str().unwrap_or_default().to_owned();
        message.contains("then it would ") && message.contains("create role")
    };
    scene.until("what would be written is reported", LIGHT, "held", reports).await;
    assert_eq!(scene.get(CONFIG_MAP, "held").await["data"], json!({"greeting": "hacked", "port": "8080"}));
    assert!(scene.find(ROLE, "held").await.is_none());
    scene.kubectl(&["annotate", "lights.fixtures.operetta.dev", "held", "operetta.dev/paused-"]).await;
    let repaired = |o: &Value| o["data"] == json!({"greeting": "hello", "port": "81"});
    scene.until("as it should be", CONFIG_MAP, "held", repaired).await;
    scene.until("back", ROLE, "held", |_| true).await;
    scene.until("Ready", LIGHT, "held", is_ready).await;
}

#[tokio::test]
async fn a_removed_status_is_restored() {
    let scene = Scene::new().await;
    scene.apply(&light("wiped")).await;
    let before = scene.ready(LIGHT, "wiped").await["status"].clone();
    scene
        .kubectl(&[
            "patch",
            "light",
            "wiped",
            "--subresource=status",
            "--type=json",
            "-p",
            r#"[{"op":"remove","path":"/status"}]"#,
        ])
        .await;
    let after = scene.ready(LIGHT, "wiped").await["status"].clone();
    assert_eq!(after["greeting"], before["greeting"]);
    assert_eq!(after["conditions"].as_array().map(Vec::len), before["conditions"].as_array().map(Vec::len));
}
