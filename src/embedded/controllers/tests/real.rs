//! The statuses of workloads are those that the controllers of Kubernetes 1.36.3 wrote for the same requests, in the same
//! order. `recorded.jsonl` was recorded from a control plane whose pods became ready a second after their start, and were gone
//! a second after their deletion. A real cluster shows more states in between: there, pods do not change at the same time.

use std::collections::HashMap;

use regex::Regex;

use super::*;

/// A status without times, with stable names.
fn stable(value: &Value, names: &mut HashMap<String, String>) -> Value {
    let times = ["lastUpdateTime", "lastTransitionTime", "lastProbeTime", "startTime", "completionTime"];
    match value {
        Value::Object(map) => map
            .iter()
            .filter(|(key, _)| !times.contains(&key.as_str()))
            .map(|(key, value)| (key.clone(), stable(value, names)))
            .collect::<serde_json::Map<_, _>>()
            .into(),
        Value::Array(items) => items.iter().map(|item| stable(item, names)).collect::<Vec<_>>().into(),
        Value::String(text) => {
            let uid = Regex::new("[0-9a-f]{8}-[0-9a-f-]{27}").unwrap();
            let hashed = Regex::new(r"\b(web|db)-[bcdfghjklmnpqrstvwxz2456789]{7,10}\b").unwrap();
            let text = uid.replace_all(text, "UID");
            let text = hashed.replace_all(&text, |found: &regex::Captures<'_>| {
                let number = names.keys().filter(|name| name.starts_with(&found[1])).count() + 1;
                names.entry(found[0].to_owned()).or_insert_with(|| format!("{}-{number}", &found[1])).clone()
            });
            text.into_owned().into()
        }
        other => other.clone(),
    }
}

/// The requests that were recorded.
fn play() -> Cluster {
    let mut cluster = Cluster::with(&[("bad", ends_after(1, 1)), ("load", ends_after(1, 0))]);
    let agent = json!({"metadata": {"name": "agent"}, "spec": {"selector": {"matchLabels": {"app": "agent"}},
        "template": template("agent", "image:1")}});
    let job = |name: &str| {
        json!({"metadata": {"name": name}, "spec": {"backoffLimit": 0, "template": {"spec":
            {"restartPolicy": "Never", "containers": [{"name": "main", "image": "image:1"}]}}}})
    };
    cluster.create(DEPLOYMENTS, &deployment("web", 2));
    cluster.create(SETS, &stateful_set("db", 2));
    cluster.create("/apis/apps/v1/namespaces/default/daemonsets", &agent);
    cluster.create(JOBS, &job("load"));
    cluster.create(JOBS, &job("bad"));
    cluster.pass(12);
    let change =
        json!({"spec": {"template": {"spec": {"containers": [{"name": "main", "image": "image:2"}]}}}});
    let (web, db) = (format!("{DEPLOYMENTS}/web"), format!("{SETS}/db"));
    cluster.patch(&web, &change);
    cluster.patch(&db, &change);
    cluster.pass(20);
    cluster.patch(&db, &json!({"spec": {"replicas": 1}}));
    cluster.patch(&web, &json!({"spec": {"replicas": 1}}));
    cluster.pass(6);
    cluster
}

#[test]
fn statuses_are_those_of_real_controllers() {
    let cluster = play();
    let mut ours: BTreeMap<(String, String), Vec<Value>> = BTreeMap::new();
    let mut names: HashMap<String, HashMap<String, String>> = HashMap::new();
    for event in cluster.api.state.store.since(0).unwrap() {
        let kind = event.resource.split('.').next().unwrap().to_owned();
        let object = event.object.value();
        let name = match kind.as_str() {
            "replicasets" => &object["spec"]["template"]["spec"]["containers"][0]["image"],
            _ => &object["metadata"]["name"],
        };
        let name = name.as_str().unwrap().to_owned();
        let status = stable(&object["status"], names.entry(kind.clone()).or_default());
        let statuses = ours.entry((kind, name)).or_default();
        if statuses.last() != Some(&status) {
            statuses.push(status);
        }
    }
    let mut real: BTreeMap<(String, String), Vec<Value>> = BTreeMap::new();
    for line in include_str!("recorded.jsonl").lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        let text = |field: &str| line[field].as_str().unwrap().to_owned();
        real.entry((text("kind"), text("name"))).or_default().push(line["status"].clone());
    }
    assert_eq!(real.len(), 7);
    for (key, real) in real {
        let mut rest = real.iter();
        for status in &ours[&key] {
            assert!(
                rest.any(|known| known == status),
                "{key:?} never had this status then: {status:#}\n{real:#?}"
            );
        }
        assert_eq!(ours[&key].last(), real.last(), "{key:?}");
    }
}
