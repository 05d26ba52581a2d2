//! The defaults of the built-in kinds. Those that are constant are in `data/defaults.txt`; the others are here.

use std::collections::HashMap;
use std::sync::OnceLock;

use operetta_kube_model::crd::default_names;
use serde_json::{Map, Value, json};

use crate::schema::{Basic, Typed};

type Constants = HashMap<&'static str, Vec<(&'static str, Value)>>;

/// The defaults that are constant, by definition.
fn constants() -> &'static Constants {
    static TEXT: &str = include_str!("data/defaults.txt");
    static PARSED: OnceLock<Constants> = OnceLock::new();
    PARSED.get_or_init(|| {
        let mut all = Constants::new();
        for line in TEXT.lines() {
            let mut parts = line.splitn(3, ' ');
            if let (Some(definition), Some(field), Some(json)) = (parts.next(), parts.next(), parts.next())
                && let Ok(value) = serde_json::from_str(json)
            {
                all.entry(definition).or_default().push((field, value));
            }
        }
        all
    })
}

/// Sets the defaults of an object.
pub(crate) fn fill(typed: Typed<'_>, value: &mut Value) {
    let node = typed.node();
    match (node.basic, value) {
        // Only a Job gets the defaults of its spec.
        (Basic::Object, Value::Object(map)) if &*node.name == "batch.v1.JobTemplateSpec" => {
            if let Some(template) = map.get_mut("spec").and_then(|spec| spec.get_mut("template"))
                && let Some(typed) = crate::schema::definition("core.v1.PodTemplateSpec")
            {
                fill(typed, template);
            }
        }
        (Basic::Object, Value::Object(map)) if !node.fields.is_empty() => {
            special(&node.name, map);
            for (field, default) in constants().get(&*node.name).into_iter().flatten() {
                let is_absent = match map.get(*field) {
                    None | Some(Value::Null) => true,
                    // Only a pointer tells the zero value from none.
                    Some(Value::String(text)) => {
                        text.is_empty() && typed.named(field).is_some_and(|(field, _)| !field.is_pointer)
                    }
                    Some(_) => false,
                };
                if is_absent {
                    map.insert((*field).to_owned(), default.clone());
                }
            }
            for (name, value) in map.iter_mut().filter(|(_, value)| value.is_object() || value.is_array()) {
                if let Some((_, typed)) = typed.named(name) {
                    fill(typed, value);
                }
            }
            later(&node.name, map);
        }
        (Basic::Object, Value::Object(map)) => {
            if let Some(typed) = typed.extra().filter(|extra| extra.node().basic == Basic::Object) {
                map.values_mut().for_each(|value| fill(typed, value));
            }
        }
        (Basic::Array, Value::Array(items)) => {
            if let Some(typed) = typed.items().filter(|items| items.node().basic == Basic::Object) {
                for value in items {
                    fill(typed, value);
                }
            }
        }
        _ => {}
    }
}

fn is_absent(map: &Map<String, Value>, field: &str) -> bool {
    map.get(field).is_none_or(|value| value.is_null() || value == "")
}

fn put(map: &mut Map<String, Value>, field: &str, value: Value) {
    if is_absent(map, field) {
        map.insert(field.to_owned(), value);
    }
}

/// Defaults that depend on other fields, before the constant ones are set.
fn special(definition: &str, map: &mut Map<String, Value>) {
    match definition {
        "core.v1.PodSpec" => pod_spec(map),
        "core.v1.Container" | "core.v1.EphemeralContainer" => {
            let image = map.get("image").and_then(Value::as_str).unwrap_or_default();
            put(map, "imagePullPolicy", pull_policy(image).into());
        }
        "core.v1.ImageVolumeSource" => {
            let image = map.get("reference").and_then(Value::as_str).unwrap_or_default();
            put(map, "pullPolicy", pull_policy(image).into());
        }
        "core.v1.Volume" if map.len() <= 1 => put(map, "emptyDir", json!({})),
        "core.v1.Pod" => pod(map),
        "apps.v1.DeploymentStrategy"
        | "apps.v1.DaemonSetUpdateStrategy"
        | "apps.v1.StatefulSetUpdateStrategy" => {
            put(map, "type", "RollingUpdate".into());
            if map["type"] == "RollingUpdate" {
                put(map, "rollingUpdate", json!({}));
            }
        }
        "apps.v1.RollingUpdateDeployment" => {
            put(map, "maxUnavailable", "25%".into());
            put(map, "maxSurge", "25%".into());
        }
        "apps.v1.RollingUpdateDaemonSet" => {
            put(map, "maxUnavailable", 1.into());
            put(map, "maxSurge", 0.into());
        }
        "apps.v1.StatefulSetSpec" => put(map, "persistentVolumeClaimRetentionPolicy", json!({})),
        "batch.v1.JobSpec" => {
            if is_absent(map, "completions") && is_absent(map, "parallelism") {
                map.insert("completions".to_owned(), 1.into());
            }
            put(map, "parallelism", 1.into());
            if !is_absent(map, "backoffLimitPerIndex") {
                put(map, "backoffLimit", i32::MAX.into());
            }
            let policy = if is_absent(map, "podFailurePolicy") { "TerminatingOrFailed" } else { "Failed" };
            put(map, "podReplacementPolicy", policy.into());
        }
        "core.v1.ServicePort" => {
            let target = map.get("targetPort");
            if target.is_none_or(|target| target == 0 || target == "")
                && let Some(port) = map.get("port").cloned()
            {
                map.insert("targetPort".to_owned(), port);
            }
        }
        "core.v1.ServiceSpec" => service(map),
        "core.v1.Service" => balanced(map),
        "networking.v1.NetworkPolicySpec"
            if map.get("policyTypes").and_then(Value::as_array).is_none_or(Vec::is_empty) =>
        {
            let egress = map.get("egress").and_then(Value::as_array).is_some_and(|rules| !rules.is_empty());
            let types = if egress { json!(["Ingress", "Egress"]) } else { json!(["Ingress"]) };
            map.insert("policyTypes".to_owned(), types);
        }
        "rbac.v1.Subject" if map.get("kind").is_some_and(|kind| kind == "User" || kind == "Group") => {
            put(map, "apiGroup", "rbac.authorization.k8s.io".into());
        }
        "rbac.v1.RoleRef" => put(map, "apiGroup", "rbac.authorization.k8s.io".into()),
        "autoscaling.v1.HorizontalPodAutoscalerSpec" => {
            put(map, "targetCPUUtilizationPercentage", 80.into());
        }
        "autoscaling.v2.HorizontalPodAutoscalerSpec"
            if map.get("metrics").and_then(Value::as_array).is_none_or(Vec::is_empty) =>
        {
            map.insert(
                "metrics".to_owned(),
                json!([{"type": "Resource", "resource": {"name": "cpu",
                    "target": {"type": "Utilization", "averageUtilization": 80}}}]),
            );
        }
        "autoscaling.v2.HorizontalPodAutoscalerBehavior" => behavior(map),
        "apiextensions.v1.CustomResourceDefinitionSpec" => {
            put(map, "conversion", json!({"strategy": "None"}));
            if let Some(names) = map.get_mut("names") {
                default_names(names);
            }
        }
        "core.v1.Namespace" => {
            let name = map["metadata"]["name"].clone();
            if name.as_str().is_some_and(|name| !name.is_empty()) {
                map["metadata"]["labels"]["kubernetes.io/metadata.name"] = name;
            }
        }
        "core.v1.LimitRangeItem" => limits(map),
        "core.v1.ReplicationController" => controller(map),
        "core.v1.ReplicationControllerSpec" => put(map, "replicas", 1.into()),
        "apps.v1.DaemonSet" => {
            let annotations = &mut map["metadata"]["annotations"];
            if annotations["deprecated.daemonset.template.generation"].is_null() {
                annotations["deprecated.daemonset.template.generation"] = "1".into();
            }
        }
        "admissionregistration.v1.MatchResources"
        | "admissionregistration.v1.ValidatingWebhook"
        | "admissionregistration.v1.MutatingWebhook" => {
            put(map, "namespaceSelector", json!({}));
            put(map, "objectSelector", json!({}));
        }
        "core.v1.Secret" => {
            if let Some(Value::Object(texts)) = map.remove("stringData") {
                let data = map.entry("data").or_insert_with(|| json!({}));
                for (key, text) in texts {
                    data[key] = encoded(text.as_str().unwrap_or_default()).into();
                }
            }
        }
        "resource.v1.ExactDeviceRequest" | "resource.v1.DeviceSubRequest" => {
            put(map, "allocationMode", "ExactCount".into());
            if map["allocationMode"] == "ExactCount" {
                put(map, "count", 1.into());
            }
        }
        _ => {}
    }
}

fn encoded(text: &str) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(text)
}

/// Defaults that depend on those of fields below.
fn later(definition: &str, map: &mut Map<String, Value>) {
    if definition == "apps.v1.StatefulSet"
        && let Some(Value::Array(claims)) =
            map.get_mut("spec").and_then(|spec| spec.get_mut("volumeClaimTemplates"))
    {
        for claim in claims {
            claim["apiVersion"] = "v1".into();
            claim["kind"] = "PersistentVolumeClaim".into();
        }
    }
}

fn pull_policy(image: &str) -> &'static str {
    let last = image.rsplit('/').next().unwrap_or_default();
    let latest = !image.contains('@') && last.split_once(':').is_none_or(|(_, tag)| tag == "latest");
    if latest { "Always" } else { "IfNotPresent" }
}

fn pod_spec(map: &mut Map<String, Value>) {
    put(map, "securityContext", json!({}));
    // Two names of one field.
    let account = ["serviceAccountName", "serviceAccount"].into_iter().find_map(|field| {
        map.get(field).and_then(Value::as_str).filter(|name| !name.is_empty()).map(str::to_owned)
    });
    if let Some(account) = account {
        map.insert("serviceAccountName".to_owned(), account.clone().into());
        map.insert("serviceAccount".to_owned(), account.into());
    }
    if map.get("hostNetwork") == Some(&true.into()) {
        for list in ["containers", "initContainers"] {
            let containers = map.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten();
            for port in containers.filter_map(|c| c.get_mut("ports").and_then(Value::as_array_mut)).flatten()
            {
                if port.get("hostPort").is_none() {
                    port["hostPort"] = port["containerPort"].clone();
                }
            }
        }
    }
}

fn pod(map: &mut Map<String, Value>) {
    let Some(spec) = map.get_mut("spec").and_then(Value::as_object_mut) else { return };
    put(spec, "enableServiceLinks", true.into());
    for list in ["containers", "initContainers"] {
        for container in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            let limits = container["resources"]["limits"].as_object().cloned().unwrap_or_default();
            for (name, value) in limits {
                let requests = &mut container["resources"]["requests"];
                if requests[&name].is_null() {
                    requests[&name] = value;
                }
            }
        }
    }
}

fn service(map: &mut Map<String, Value>) {
    put(map, "sessionAffinity", "None".into());
    if map["sessionAffinity"] == "None" {
        map.remove("sessionAffinityConfig");
    } else if map["sessionAffinity"] == "ClientIP" {
        put(map, "sessionAffinityConfig", json!({"clientIP": {"timeoutSeconds": 10800}}));
    }
    put(map, "type", "ClusterIP".into());
    let kind = map["type"].clone();
    let has_addresses = map.get("externalIPs").and_then(Value::as_array).is_some_and(|all| !all.is_empty());
    if kind == "NodePort" || kind == "LoadBalancer" || kind == "ClusterIP" && has_addresses {
        put(map, "externalTrafficPolicy", "Cluster".into());
    }
    if kind == "LoadBalancer" {
        put(map, "allocateLoadBalancerNodePorts", true.into());
    }
    if kind != "ExternalName" {
        put(map, "internalTrafficPolicy", "Cluster".into());
    }
}

/// The addresses that a load balancer has given a Service are virtual ones.
fn balanced(map: &mut Map<String, Value>) {
    if map.get("spec").is_none_or(|spec| spec["type"] != "LoadBalancer") {
        return;
    }
    let given = map.get_mut("status").and_then(|status| status.pointer_mut("/loadBalancer/ingress"));
    let given = given.and_then(Value::as_array_mut).into_iter().flatten();
    for entry in given.filter_map(Value::as_object_mut) {
        if entry.get("ip").and_then(Value::as_str).is_some_and(|ip| !ip.is_empty()) {
            put(entry, "ipMode", "VIP".into());
        }
    }
}

fn controller(map: &mut Map<String, Value>) {
    let labels = map["spec"]["template"]["metadata"]["labels"].clone();
    if labels.is_object() {
        if map["spec"]["selector"].is_null() {
            map["spec"]["selector"] = labels.clone();
        }
        if map["metadata"]["labels"].is_null() {
            map["metadata"]["labels"] = labels;
        }
    }
}

fn behavior(map: &mut Map<String, Value>) {
    let up = json!({"stabilizationWindowSeconds": 0, "selectPolicy": "Max", "policies": [
        {"type": "Pods", "value": 4, "periodSeconds": 15}, {"type": "Percent", "value": 100, "periodSeconds": 15}]});
    let down =
        json!({"selectPolicy": "Max", "policies": [{"type": "Percent", "value": 100, "periodSeconds": 15}]});
    for (field, rules) in [("scaleUp", up), ("scaleDown", down)] {
        let given = map.entry(field).or_insert_with(|| json!({}));
        for (name, value) in rules.as_object().into_iter().flatten() {
            if given[name].is_null() {
                given[name] = value.clone();
            }
        }
    }
}

fn limits(map: &mut Map<String, Value>) {
    if map.get("type") != Some(&"Container".into()) {
        return;
    }
    let mut from = |source: &str, target: &str| {
        let values = map.get(source).and_then(Value::as_object).cloned().unwrap_or_default();
        for (name, value) in values {
            let entry = map.entry(target).or_insert_with(|| json!({}));
            if entry[&name].is_null() {
                entry[&name] = value;
            }
        }
    };
    from("max", "default");
    from("default", "defaultRequest");
    from("min", "defaultRequest");
}
