//! Settings of an Operator for the instances of its package: defaults, and the namespaces that are served.

use serde_json::{Value, json};

use crate::support::ext::{CONFIG_MAP, OPERATOR, condition, is_ready};
use crate::support::operators::{Cluster, Package, Part, SIZE, is_active, is_observed, repaired, scene};

async fn patch(cluster: &Cluster, operator: &str, spec: &Value) {
    cluster.patch(operator, &json!({"spec": spec})).await;
    cluster.until(operator, "observed", is_observed).await;
}

#[tokio::test]
async fn an_operator_overrides_the_defaults_of_its_package() {
    let cluster = Cluster::start().await;
    let defaults = "  defaults: {greeting: hello, count: 2}\n".to_owned();
    let part =
        Part { plans: defaults, ..Part::new("greets", SIZE, "{{ defaults.greeting }} {{ defaults.count }}") };
    let package = cluster.with(Package::of("greets", "0.1.0", &[part])).await;
    let scene = scene(&cluster).await;
    scene.apply(&package.instance("one", &json!({}))).await;
    let shows = async |value: &str| {
        scene.until(value, CONFIG_MAP, "one", |o| o["data"]["value"] == value).await;
    };
    shows("hello 2").await;
    patch(&cluster, "greets", &json!({"defaults": {"greeting": "hi"}})).await;
    shows("hi 2").await;
    cluster.until("greets", "active", is_active).await;
    // The defaults are known before the first instance is reconciled.
    let child = scene.get(CONFIG_MAP, "one").await;
    cluster.restart(async || {}).await;
    package.ready(&scene, "two", &json!({})).await;
    let after = scene.get(CONFIG_MAP, "one").await;
    assert_eq!(after["metadata"]["resourceVersion"], child["metadata"]["resourceVersion"]);
    // While one default is wrong the last valid defaults stay in effect, also after a restart. The Operator
    // names all wrong ones.
    patch(&cluster, "greets", &json!({"defaults": {"greting": "x", "greeting": 3, "count": 4}})).await;
    let told = cluster.until_refused("greets", "SpecInvalid").await;
    assert!(told.contains("spec.defaults.greting") && told.contains("it has count, greeting"), "{told}");
    assert!(
        told.contains("spec.defaults.greeting") && told.contains("a string there, not a number"),
        "{told}"
    );
    repaired(&scene, "hi 2").await;
    cluster.restart(async || {}).await;
    repaired(&scene, "hi 2").await;
    patch(&cluster, "greets", &json!({"defaults": {"greting": null, "greeting": "ho"}})).await;
    shows("ho 4").await;
    patch(&cluster, "greets", &json!({"defaults": null})).await;
    shows("hello 2").await;
    cluster.until("greets", "active", is_active).await;
}

/// A namespace whose name is wrong, or which is created later.
#[tokio::test]
async fn missing_namespace_is_reported_and_served_once_created() {
    let cluster = &*Cluster::shared().await;
    let package = cluster.with(Package::new("absents", "0.1.0", "{{ spec.size }}")).await;
    let here = scene(cluster).await;
    let late = format!("{}-late", here.namespace());
    patch(cluster, "absents", &json!({"namespaces": {"names": [here.namespace(), late]}})).await;
    let is_told = |operator: &Value| {
        let missing = condition(operator, "NamespacesMissing");
        missing["message"]
            .as_str()
            .is_some_and(|told| told.contains(&format!("no namespace {late}: create it")))
    };
    let operator = cluster.until("absents", "told", is_told).await;
    assert!(is_active(&operator), "{operator:#}");
    let instance = package.instance("one", &json!({}));
    here.apply_ready(package.kind(), "one", &instance).await;
    cluster.kubectl(&["create", "namespace", &late], "").await.ok();
    cluster.kubectl(&["apply", "-n", &late, "-f", "-"], &instance).await.ok();
    let wait =
        ["wait", "-n", &late, "--for=condition=Ready", "absents.ops.example.org/one", "--timeout=180s"];
    cluster.kubectl(&wait, "").await.ok();
    cluster.until("absents", "no longer told", |o| condition(o, "NamespacesMissing").is_null()).await;
}

#[tokio::test]
async fn only_served_namespaces_are_reconciled() {
    let cluster = Cluster::start().await;
    let package = cluster.with(Package::new("serves", "0.1.0", "{{ spec.size }}")).await;
    let (here, there) = (scene(&cluster).await, scene(&cluster).await);
    patch(&cluster, "serves", &json!({"namespaces": {"names": [here.namespace()]}})).await;
    let unserved = |o: &Value| {
        let told = condition(o, "Ready")["message"].as_str().unwrap_or_default();
        condition(o, "Ready")["status"] != "True" && told.contains("does not serve the namespace")
    };
    let instance = package.instance("one", &json!({"size": 2}));
    for scene in [&here, &there] {
        scene.apply(&instance).await;
    }
    here.ready(package.kind(), "one").await;
    there.until("not served", package.kind(), "one", unserved).await;
    assert!(there.find(CONFIG_MAP, "one").await.is_none());
    // Namespaces are selected by labels, which can be added and removed.
    let selector = json!({"namespaces": {"names": null, "selector": {"matchLabels": {"tier": "gold"}}}});
    patch(&cluster, "serves", &selector).await;
    here.until("not served", package.kind(), "one", unserved).await;
    cluster.kubectl(&["label", "namespace", there.namespace(), "tier=gold"], "").await.ok();
    there.ready(package.kind(), "one").await;
    repaired(&there, "2").await;
    // Existing children stay, also when another manager starts.
    assert_eq!(here.get(CONFIG_MAP, "one").await["data"]["value"], "2");
    cluster.restart(async || {}).await;
    repaired(&there, "2").await;
    here.patch(package.kind(), "one", "merge", &json!({"spec": {"size": 3}})).await;
    // An upgrade does not wait for instances in other namespaces, and does not change them.
    package.write("0.2.0", &[Part::new("serves", SIZE, "new {{ spec.size }}")]);
    cluster.put_active(&package).await;
    there.until("upgraded", CONFIG_MAP, "one", |o| o["data"]["value"] == "new 2").await;
    assert_eq!(here.get(CONFIG_MAP, "one").await["data"]["value"], "2");
    cluster.kubectl(&["label", "namespace", here.namespace(), "tier=gold"], "").await.ok();
    here.until("upgraded", CONFIG_MAP, "one", |o| o["data"]["value"] == "new 3").await;
    here.until("Ready", package.kind(), "one", is_ready).await;
    // Deletion works in a namespace that is not served.
    cluster.kubectl(&["label", "namespace", here.namespace(), "tier-"], "").await.ok();
    here.until("not served", package.kind(), "one", unserved).await;
    here.kubectl(&["delete", "serves.ops.example.org", "one"]).await;
    here.gone(CONFIG_MAP, "one").await;
    // A namespace that does not exist is served once it does.
    let later = "serves-later";
    let names = json!({"namespaces": {"names": [here.namespace(), later], "selector": null}});
    patch(&cluster, "serves", &names).await;
    cluster.until("serves", "active", is_active).await;
    cluster.kubectl(&["create", "namespace", later], "").await.ok();
    cluster.kubectl(&["-n", later, "apply", "-f", "-"], &package.instance("one", &json!({}))).await.ok();
    let args = ["-n", later, "wait", "--for=condition=Ready", "serves.ops.example.org/one", "--timeout=180s"];
    cluster.kubectl(&args, "").await.ok();
    let both = json!({"spec": {"namespaces": {"names": [], "selector": {}}}}).to_string();
    let told =
        cluster.kubectl(&["patch", "operator", "serves", "--type=merge", "-p", &both], "").await.fails();
    assert!(told.contains("set one of names and selector"), "{told}");
    assert!(is_active(&cluster.find(OPERATOR, "serves").await.unwrap()));
}
