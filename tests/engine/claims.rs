//! Ownership and adoption of objects: instances with the same name, foreign objects, deleted and live
//! instances.

use crate::support::{
    CLAIM, CLUSTER_ROLE, CONFIG_MAP, Kind, LONG, NAMESPACE, SECRET, SERVICE, Scene, condition, eventually,
    find_in, is_ready, kubectl_of, list, managers_requests, plane_of_tests, uid_of,
};
use serde_json::{Value, json};

fn claim(name: &str, spec: &Value) -> String {
    json!({"apiVersion": CLAIM.api_version(), "kind": "Claim", "metadata": {"name": name}, "spec": spec})
        .to_string()
}

fn owner(object: &Value) -> &Value {
    &object["metadata"]["labels"]["operetta.dev/instance-uid"]
}

/// Waits until an instance is Stalled with a message that contains these words.
async fn stalled(scene: &Scene, name: &str, words: &[&str]) {
    let holds = |o: &Value| {
        let stalled = condition(o, "Stalled");
        stalled["status"] == "True" && words.iter().all(|word| stalled["message"].to_string().contains(word))
    };
    scene.until(&format!("to say {words:?}"), CLAIM, name, holds).await;
}

async fn outside(kind: Kind, namespace: Option<&str>, name: &str) -> Option<Value> {
    find_in(&*plane_of_tests().await, kind, namespace, name).await
}

async fn outside_gone(kind: Kind, namespace: Option<&str>, name: &str) {
    eventually(&format!("{name} to be gone"), LONG, async || match outside(kind, namespace, name).await {
        None => Ok(()),
        Some(object) => Err(format!("{object}")),
    })
    .await;
}

/// Their children are cluster-scoped, or in a namespace that is neither instance's.
#[tokio::test]
async fn same_named_instances_in_two_namespaces_share_no_child() {
    let (one, two) = (Scene::new().await, Scene::new().await);
    for (how, kind, namespace) in
        [("cluster", CLUSTER_ROLE, None), ("remote", CONFIG_MAP, Some("kube-public"))]
    {
        let shared = format!("shared-{how}");
        let spec = json!({"kind": how, "name": shared});
        let first = one.apply_ready(CLAIM, how, &claim(how, &spec)).await;
        let before = outside(kind, namespace, &shared).await.unwrap();
        assert_eq!(*owner(&before), uid_of(&first));
        assert_eq!(before["metadata"]["labels"]["operetta.dev/instance-namespace"], one.namespace());

        two.apply(&claim(how, &spec)).await;
        let of_first = format!("claims/{}/{how}", one.namespace());
        stalled(&two, how, &[&shared, "belongs to", &of_first]).await;
        // The annotation `operetta.dev/adopt` does not help: the object belongs to a live instance.
        let plural = kind.plural;
        let place = namespace.unwrap_or("default");
        let args = ["-n", place, "annotate", plural, &shared, "operetta.dev/adopt=true"];
        kubectl_of(&*plane_of_tests().await, &args, "").await.ok();
        two.patch(CLAIM, how, "merge", &json!({"spec": {"text": "another"}})).await;
        stalled(&two, how, &[&shared, "belongs to", &of_first]).await;

        // The second instance can be deleted at once, without what was never its own.
        two.kubectl(&["delete", "claim", how]).await;
        two.gone(CLAIM, how).await;
        let after = outside(kind, namespace, &shared).await.unwrap();
        assert_eq!((uid_of(&after), owner(&after)), (uid_of(&before), owner(&before)));

        // The second gets the object once the first is deleted.
        two.apply(&claim(how, &spec)).await;
        stalled(&two, how, &["belongs to"]).await;
        one.kubectl(&["delete", "claim", how]).await;
        let second = two.ready(CLAIM, how).await;
        let now = outside(kind, namespace, &shared).await.unwrap();
        assert_eq!(*owner(&now), uid_of(&second));
        two.kubectl(&["delete", "claim", how]).await;
        outside_gone(kind, namespace, &shared).await;
    }
}

#[tokio::test]
async fn second_instance_does_not_take_over_a_rendered_name() {
    let scene = Scene::new().await;
    let spec = |text: &str, kind: &str| json!({"kind": kind, "name": "shared", "text": text});
    let first = scene.apply_ready(CLAIM, "first", &claim("first", &spec("first", "config"))).await;
    for (name, kind) in [("second", "config"), ("third", "adopt")] {
        scene.apply(&claim(name, &spec(name, kind))).await;
        stalled(&scene, name, &["ConfigMap", "shared", "belongs to", "/first"]).await;
    }
    let shared = scene.get(CONFIG_MAP, "shared").await;
    assert_eq!((owner(&shared), &shared["data"]["text"]), (&json!(uid_of(&first)), &json!("first")));
    assert!(is_ready(&scene.get(CLAIM, "first").await));
}

/// Creates an object that imitates the manager's: all labels, the field manager, a finalizer.
async fn forge(namespace: &str, kind: &str, name: &str, instance: &Value, more: &Value) {
    let mut object = json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": name,
        "finalizers": ["example.org/hostage"],
        "annotations": {"operetta.dev/applied-hash": "0123.7", "operetta.dev/order": "7"},
        "labels": {"app.kubernetes.io/managed-by": "operetta", "operetta.dev/operator": "claims",
            "operetta.dev/kind": "Claim.fixtures.operetta.dev",
            "operetta.dev/instance": instance["metadata"]["name"],
            "operetta.dev/instance-namespace": instance["metadata"]["namespace"],
            "operetta.dev/instance-uid": instance["metadata"]["uid"], "operetta.dev/child": "config"}}});
    for (key, value) in more.as_object().into_iter().flatten() {
        object["metadata"]["labels"][key] = value.clone();
    }
    let args = ["-n", namespace, "apply", "--server-side", "--field-manager=operetta/claims", "-f", "-"];
    kubectl_of(&*plane_of_tests().await, &args, &object.to_string()).await.ok();
}

/// A user who may write in another namespace creates objects with the labels of an instance's children. They
/// block neither the instance, nor its deletion, nor the next instance of its name, and the manager does not
/// delete them.
#[tokio::test]
async fn an_object_with_forged_labels_is_not_a_child() {
    let (scene, elsewhere) = (Scene::new().await, Scene::new().await);
    let spec = json!({"kind": "ordered", "name": "mine"});
    let victim = scene.apply_ready(CLAIM, "victim", &claim("victim", &spec)).await;
    // Forge objects in another namespace than the instance's, and of a kind that its package does not have.
    forge(elsewhere.namespace(), "ConfigMap", "hostage", &victim, &json!({})).await;
    forge(scene.namespace(), "Secret", "hostage", &victim, &json!({})).await;
    // Forge an object of an earlier instance with that name, whose uid no longer exists.
    let dead = json!({"operetta.dev/instance-uid": "00000000-0000-0000-0000-000000000000"});
    forge(elsewhere.namespace(), "ConfigMap", "heirloom", &victim, &dead).await;
    // All of them exist when the manager decides about this edit.
    scene.patch(CLAIM, "victim", "merge", &json!({"spec": {"text": "again"}})).await;
    scene.until("again", CONFIG_MAP, "mine", |o| o["data"]["text"] == "again").await;
    scene.ready(CLAIM, "victim").await;
    scene.kubectl(&["delete", "claim", "victim", "--wait=false"]).await;
    scene.gone(CLAIM, "victim").await;
    for name in ["mine", "mine-second"] {
        scene.gone(CONFIG_MAP, name).await;
    }
    scene.apply_ready(CLAIM, "victim", &claim("victim", &spec)).await;
    let untouched = |o: Value| assert!(o["metadata"]["deletionTimestamp"].is_null(), "{o:#}");
    untouched(elsewhere.get(CONFIG_MAP, "hostage").await);
    untouched(elsewhere.get(CONFIG_MAP, "heirloom").await);
    untouched(scene.get(SECRET, "hostage").await);

    // An object that cannot be distinguished from a child is deleted like one, and the message names who
    // holds it, so that a person can act.
    let victim = scene.get(CLAIM, "victim").await;
    forge(scene.namespace(), "ConfigMap", "plausible", &victim, &json!({})).await;
    scene.patch(CLAIM, "victim", "merge", &json!({"spec": {"text": "thrice"}})).await;
    let holds = |o: &Value| {
        let message = condition(o, "Ready")["message"].to_string();
        message.contains("/plausible") && message.contains("example.org/hostage")
    };
    scene.until("to name what holds it", CLAIM, "victim", holds).await;
    scene.patch(CONFIG_MAP, "plausible", "merge", &json!({"metadata": {"finalizers": null}})).await;
    scene.ready(CLAIM, "victim").await;
    for (scene, kind) in [(&elsewhere, CONFIG_MAP), (&scene, SECRET)] {
        scene.patch(kind, "hostage", "merge", &json!({"metadata": {"finalizers": null}})).await;
    }
    elsewhere.patch(CONFIG_MAP, "heirloom", "merge", &json!({"metadata": {"finalizers": null}})).await;
}

/// A spec with a path in a name does not lead to requests about another namespace, however the value reaches
/// a child.
#[tokio::test]
async fn path_in_a_name_causes_no_write_elsewhere() {
    let scene = Scene::new().await;
    let victim = format!("{}-victim", scene.namespace());
    kubectl_of(&*plane_of_tests().await, &["create", "namespace", &victim], "").await.ok();
    let audit = plane_of_tests().await.audit();
    let mark = audit.mark().unwrap();
    let names = [
        format!("../../{victim}/configmaps/x"),
        format!("..%2F..%2F{victim}%2Fconfigmaps%2Fx"),
        format!("x?dryRun=All&namespace={victim}"),
        format!("{victim}/x"),
        String::new(),
        "..".to_owned(),
    ];
    for (number, name) in names.iter().enumerate() {
        for kind in ["config", "adopt", "kept", "ordered"] {
            let instance = format!("c{number}-{kind}");
            scene.apply(&claim(&instance, &json!({"kind": kind, "name": name}))).await;
        }
    }
    for number in 0..names.len() {
        for kind in ["config", "adopt", "kept", "ordered"] {
            let instance = format!("c{number}-{kind}");
            scene.until("Stalled", CLAIM, &instance, |o| condition(o, "Stalled")["status"] == "True").await;
        }
    }
    let mut strayed = managers_requests(&audit, mark);
    // The labels of Events may contain the name; the path of a request that acts elsewhere would begin with
    // it.
    strayed.retain(|r| r.namespace == victim || r.uri.contains(&format!("/namespaces/{victim}")));
    assert!(strayed.is_empty(), "{}", list(&strayed));
    let left =
        kubectl_of(&*plane_of_tests().await, &["-n", &victim, "get", "configmaps,secrets", "-o", "name"], "")
            .await
            .ok();
    assert_eq!(left.trim(), "configmap/kube-root-ca.crt");
}

#[tokio::test]
async fn foreign_object_is_adopted_only_on_request() {
    let scene = Scene::new().await;
    let stranger = |name: &str| {
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name},
            "data": {"text": "theirs", "extra": "theirs", "gone": "theirs"}})
        .to_string()
    };
    for (name, kind) in [("annotated", "config"), ("declared", "adopt")] {
        scene.apply(&stranger(name)).await; // client-side
        // A field of another manager, which nobody has declared away.
        scene.patch(CONFIG_MAP, name, "merge", &json!({"data": {"other": "stays"}})).await;
        let before = scene.get(CONFIG_MAP, name).await;
        scene.apply(&claim(name, &json!({"kind": kind, "name": name}))).await;
        if kind == "config" {
            stalled(&scene, name, &["does not belong", "operetta.dev/adopt"]).await;
            assert_eq!(scene.get(CONFIG_MAP, name).await["data"], before["data"]);
            scene.kubectl(&["annotate", "configmap", name, "operetta.dev/adopt=true"]).await;
            scene.patch(CLAIM, name, "merge", &json!({"spec": {"text": "ours"}})).await;
        } else {
            scene.patch(CLAIM, name, "merge", &json!({"spec": {"text": "ours"}})).await;
        }
        let instance = scene.until("ours", CONFIG_MAP, name, |o| o["data"]["text"] == "ours").await;
        scene.ready(CLAIM, name).await;
        assert_eq!(uid_of(&instance), uid_of(&before));
        assert_eq!(instance["data"], json!({"text": "ours", "extra": "x", "other": "stays"}));
        let annotations = instance["metadata"]["annotations"].to_string();
        assert!(!annotations.contains("last-applied-configuration"), "{annotations}");
        // A field that the template no longer has is removed, although a person declared it first.
        scene.patch(CLAIM, name, "merge", &json!({"spec": {"port": 81}})).await;
        scene.until("without it", CONFIG_MAP, name, |o| o["data"].get("extra").is_none()).await;
        // An adopted object is deleted with its instance like any child.
        scene.kubectl(&["delete", "claim", name]).await;
        scene.gone(CONFIG_MAP, name).await;
    }
}

#[tokio::test]
async fn object_of_another_controller_is_not_adopted() {
    let scene = Scene::new().await;
    scene.kubectl(&["create", "configmap", "boss"]).await;
    let boss = scene.get(CONFIG_MAP, "boss").await;
    let owned = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "owned", "ownerReferences": [
        {"apiVersion": "v1", "kind": "ConfigMap", "name": "boss", "uid": uid_of(&boss), "controller": true}]}});
    scene.apply(&owned.to_string()).await;
    scene.apply(&claim("taker", &json!({"kind": "adopt", "name": "owned"}))).await;
    stalled(&scene, "taker", &["cannot be adopted", "ConfigMap boss"]).await;
}

/// Removes the finalizer of `heir` before the manager has deleted everything, so that children remain.
async fn strand(scene: &Scene) {
    let hold = json!({"metadata": {"finalizers": ["example.org/hold"]}});
    scene.patch(CONFIG_MAP, "old-second", "merge", &hold).await;
    scene.kubectl(&["delete", "claim", "heir", "--wait=false"]).await;
    let holds = |o: &Value| !o["metadata"]["deletionTimestamp"].is_null();
    scene.until("terminating", CONFIG_MAP, "old-second", holds).await;
    scene.patch(CLAIM, "heir", "merge", &json!({"metadata": {"finalizers": null}})).await;
    scene.gone(CLAIM, "heir").await;
}

#[tokio::test]
async fn new_instance_adopts_children_of_a_deleted_namesake() {
    let scene = Scene::new().await;
    let spec = |name: &str| json!({"kind": "ordered", "name": name});
    scene.apply_ready(CLAIM, "heir", &claim("heir", &spec("old"))).await;
    let before = scene.get(CONFIG_MAP, "old").await;
    strand(&scene).await;
    // The new instance adopts one remaining child and waits for the deletion of the other.
    scene.apply(&claim("heir", &spec("old"))).await;
    scene.until("taken again", CONFIG_MAP, "old", |o| owner(o) != owner(&before)).await;
    scene.patch(CONFIG_MAP, "old-second", "merge", &json!({"metadata": {"finalizers": null}})).await;
    scene.ready(CLAIM, "heir").await;
    assert_eq!(uid_of(&scene.get(CONFIG_MAP, "old").await), uid_of(&before));

    // A new instance with other children's names prunes what remains.
    strand(&scene).await;
    scene.apply(&claim("heir", &spec("new"))).await;
    scene.patch(CONFIG_MAP, "old-second", "merge", &json!({"metadata": {"finalizers": null}})).await;
    scene.gone(CONFIG_MAP, "old").await;
    scene.ready(CLAIM, "heir").await;
}

#[tokio::test]
async fn conflict_policy_fail_reports_conflicts_and_still_reclaims_retained_children() {
    let scene = Scene::new().await;
    scene.apply_ready(CLAIM, "kept", &claim("kept", &json!({"kind": "kept", "name": "kept"}))).await;
    let retained =
        |text: &'static str| move |o: &Value| o["metadata"]["annotations"]["operetta.dev/retained"] == text;
    scene.patch(CLAIM, "kept", "merge", &json!({"spec": {"kind": "none"}})).await;
    scene.until("retained", CONFIG_MAP, "kept", retained("true")).await;
    scene.patch(CLAIM, "kept", "merge", &json!({"spec": {"kind": "kept"}})).await;
    scene.until("taken again", CONFIG_MAP, "kept", retained("false")).await;
    scene.ready(CLAIM, "kept").await;

    // A port that somebody has put in place of ours is reported, not removed.
    scene.apply_ready(CLAIM, "polite", &claim("polite", &json!({"kind": "service", "name": "polite"}))).await;
    scene
        .kubectl(&[
            "patch",
            "service",
            "polite",
            "--type=json",
            "--field-manager=kubectl-edit",
            "-p",
            r#"[{"op":"replace","path":"/spec/ports/0/port","value":81}]"#,
        ])
        .await;
    stalled(&scene, "polite", &["spec.ports", "81", "kubectl-edit"]).await;
    let ports = scene.get(SERVICE, "polite").await["spec"]["ports"].clone();
    assert_eq!(ports[0]["port"], 81, "{ports}");
}

#[tokio::test]
async fn a_namespace_is_deleted_only_when_it_is_empty() {
    let scene = Scene::new().await;
    let space = format!("{}-space", scene.namespace());
    scene.apply_ready(CLAIM, "space", &claim("space", &json!({"kind": "space", "name": space}))).await;
    let inside = async |args: &[&str], input: &str| {
        let mut all = vec!["-n", space.as_str()];
        all.extend(args);
        kubectl_of(&*plane_of_tests().await, &all, input).await.ok();
    };
    inside(&["apply", "-f", "-"], &claim("tenant", &json!({"kind": "kept", "name": "data"}))).await;
    eventually("the tenant to be Ready", LONG, async || match outside(CLAIM, Some(&space), "tenant").await {
        Some(tenant) if is_ready(&tenant) => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
    scene.kubectl(&["delete", "claim", "space", "--wait=false"]).await;
    let names = |what: String| move |o: &Value| o["status"]["conditions"].to_string().contains(&what);
    scene.until("to name the tenant", CLAIM, "space", names(format!("claims/{space}/tenant"))).await;
    inside(&["delete", "claim", "tenant"], "").await;
    // The retained ConfigMap would be deleted with the namespace.
    scene.until("to name what is retained", CLAIM, "space", names(format!("ConfigMap {space}/data"))).await;
    let namespace = outside(NAMESPACE, None, &space).await.unwrap();
    assert!(namespace["metadata"]["deletionTimestamp"].is_null());
    inside(&["delete", "configmap", "data"], "").await;
    scene.gone(CLAIM, "space").await;
    outside_gone(NAMESPACE, None, &space).await;
}
