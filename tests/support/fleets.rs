//! Many instances of a package, which upgrades move in stages.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::operators::{Cluster, Package};
use super::{CONFIG_MAP, LONG, Scene, condition, eventually, is_ready, name_of};

/// The value of a child that the API server refuses for an instance of size 13.
pub fn fails_for_13(value: &str) -> String {
    format!("{value}\", \"{{{{ 'not a key' if spec.size == 13 else 'key' }}}}\": \"x")
}

/// Sets how the upgrades of an Operator go on.
pub async fn set_upgrade(cluster: &Cluster, name: &str, upgrade: &Value) {
    cluster.patch(name, &json!({"spec": {"upgrade": upgrade}})).await;
}

/// Creates instances of these sizes, named `i-000` and so on, and waits until all are Ready.
pub async fn create(scene: &Scene, package: &Package, sizes: impl IntoIterator<Item = i64>) {
    let instance = |(index, size): (usize, i64)| {
        serde_json::from_str::<Value>(&package.instance(&format!("i-{index:03}"), &json!({"size": size})))
            .expect("JSON")
    };
    let items: Vec<Value> = sizes.into_iter().enumerate().map(instance).collect();
    scene.apply(&json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string()).await;
    all(scene, package, "Ready", is_ready).await;
}

/// Waits until `holds` is true of all instances.
pub async fn all(scene: &Scene, package: &Package, what: &str, holds: impl Fn(&Value) -> bool) {
    eventually(&format!("all to be {what}"), LONG, async || {
        let instances = scene.list(package.kind()).await;
        let not: Vec<_> = instances.iter().filter(|o| !holds(o)).map(|o| name_of(o).to_owned()).collect();
        if not.is_empty() { Ok(()) } else { Err(not.join(", ")) }
    })
    .await;
}

/// The children by name.
pub async fn children(scene: &Scene) -> BTreeMap<String, Value> {
    let children = scene.list(CONFIG_MAP).await.into_iter();
    let named = children.map(|child| (name_of(&child).to_owned(), child));
    named.filter(|(name, _)| name != "kube-root-ca.crt").collect()
}

/// What a child shows.
pub fn value(child: &Value) -> &str {
    child["data"]["value"].as_str().unwrap_or_default()
}

/// Whether an upgrade is paused.
pub fn is_paused(operator: &Value) -> bool {
    condition(operator, "Ready")["reason"] == "UpgradePaused"
        && condition(operator, "Stalled")["status"] == "True"
}
