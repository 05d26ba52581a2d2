//! The objects of a manager in a cluster.

use serde_json::{Value, json};

use super::values::Settings;
use crate::api::{ApiKind, Gvk};
use crate::children::names;
use crate::operators;
use crate::package::store::objects;
use crate::plan::crds;
use crate::rights::manager::WEBHOOK;
use crate::rights::{self, MANAGER};

/// The port of probes and metrics.
pub(super) const PORT: u16 = 8080;
/// The port of the conversion webhook.
const WEBHOOK_PORT: u16 = 9443;
/// For how many seconds a terminating pod still serves: until every node has removed it from Services.
const DRAIN: u32 = 5;
/// The user as whom the container runs.
const USER: u32 = 65_532;

/// The image that `operetta manager install` uses: that of this version.
pub(super) const IMAGE: &str = concat!("operetta:", env!("CARGO_PKG_VERSION"));

/// One of the objects.
pub(super) struct Part {
    pub object: Value,
    /// The value that says whether it is made; it always is without one.
    pub option: Option<&'static str>,
    /// Whether packages need it, too, so that it stays when only the manager is removed.
    pub is_shared: bool,
}

/// All objects, in an order in which they can be applied. What is installed, written as files and as a chart, and removed, comes
/// from this list.
pub(super) fn all(settings: &Settings) -> Vec<Part> {
    let mut shared = vec![namespace(settings), crds::instance_state(), crds::plan_run()];
    shared.extend([objects::crd(), operators::crd(), operators::policy::crd()]);
    // The manager adds its own exemption to the policies when it starts.
    shared.extend(crds::policies());
    shared.extend(crds::bindings());
    let mut own = rights::manager::manager(&settings.namespace);
    // Applied here and not by the manager: an account cannot be trusted to confine itself.
    own.extend(rights::confinement::objects(&settings.namespace));
    own.extend([deployment(settings), disruption_budget(settings), metrics(settings), webhook(settings)]);
    let optional =
        [("networkPolicy", network_policy(settings)), ("serviceMonitor", service_monitor(settings))];
    let shared = shared.into_iter().map(|object| Part { object, option: None, is_shared: true });
    let own = own.into_iter().map(|object| Part { object, option: None, is_shared: false });
    let optional =
        optional.into_iter().map(|(value, object)| Part { object, option: Some(value), is_shared: false });
    shared.chain(own).chain(optional).collect()
}

/// The objects that are made with these settings.
pub(super) fn made(settings: &Settings) -> Vec<Value> {
    let is_made = |part: &Part| part.option.is_none_or(|value| settings.is_enabled(value));
    all(settings).into_iter().filter(is_made).map(|part| part.object).collect()
}

/// The API kind of one of the objects.
pub(super) fn kind_of(gvk: &Gvk) -> ApiKind {
    let kind = ApiKind::built_in(&gvk.api_version, &gvk.kind);
    // ServiceMonitor is not a kind of Kubernetes, so `built_in` does not know its scope.
    ApiKind { namespaced: kind.namespaced || &*gvk.kind == "ServiceMonitor", ..kind }
}

fn labels() -> Value {
    json!({names::MANAGED_BY: names::NOTES, "app.kubernetes.io/name": MANAGER})
}

/// The labels of the pods.
pub(super) fn selector() -> Value {
    json!({"app.kubernetes.io/name": MANAGER, "app.kubernetes.io/component": "manager"})
}

/// The labels of the pods as a selector of a list request.
pub(super) fn selector_text() -> String {
    let selector = selector();
    let labels = selector.as_object().into_iter().flatten();
    let labels = labels.map(|(label, value)| format!("{label}={}", value.as_str().unwrap_or_default()));
    labels.collect::<Vec<_>>().join(",")
}

fn metadata(settings: &Settings, name: &str) -> Value {
    json!({"name": name, "namespace": settings.namespace, "labels": labels()})
}

/// The API server refuses any pod with more rights than the manager's.
fn namespace(settings: &Settings) -> Value {
    let mut labels = labels();
    for mode in ["enforce", "audit", "warn"] {
        labels[format!("pod-security.kubernetes.io/{mode}")] = "restricted".into();
    }
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": settings.namespace, "labels": labels}})
}

/// The default affinity: replicas on one node would go down together.
pub(super) fn affinity() -> Value {
    json!({"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{
        "weight": 100,
        "podAffinityTerm": {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": selector()}},
    }]}})
}

/// Sets a field, unless the value is empty: a list, a map or a text.
fn set(object: &mut Value, field: &str, value: &Value) {
    let is_empty = match value {
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        Value::String(text) => text.is_empty(),
        _ => value.is_null(),
    };
    if !is_empty {
        object[field] = value.clone();
    }
}

fn deployment(settings: &Settings) -> Value {
    let values = &settings.values;
    let probe = |path: &str, period: u32| json!({"httpGet": {"path": path, "port": "http"}, "periodSeconds": period, "timeoutSeconds": 5});
    let mut args: Vec<Value> = own_flags(&settings.namespace).into_iter().map(Value::from).collect();
    match &values["extraArgs"] {
        Value::Array(more) => args.extend(more.iter().cloned()),
        more => args.push(more.clone()),
    }
    let mut container = json!({
        "name": "manager",
        "image": values["image"],
        "args": args,
        "ports": [
            {"name": "http", "containerPort": PORT},
            {"name": "webhook", "containerPort": WEBHOOK_PORT},
        ],
        "lifecycle": {"preStop": {"sleep": {"seconds": DRAIN}}},
        "livenessProbe": probe("/healthz", 20),
        "readinessProbe": probe("/readyz", 5),
        "securityContext": {
            "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": {"drop": ["ALL"]},
        },
    });
    set(&mut container, "resources", &values["resources"]);
    let mut pod = json!({
        "serviceAccountName": MANAGER,
        "automountServiceAccountToken": true,
        "securityContext": {
            "runAsNonRoot": true, "runAsUser": USER, "runAsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        // A stop ends within 20 s after the drain.
        "terminationGracePeriodSeconds": 30,
        "containers": [container],
    });
    for field in ["affinity", "imagePullSecrets", "nodeSelector", "priorityClassName", "tolerations"] {
        set(&mut pod, field, &values[field]);
    }
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata(settings, MANAGER),
        "spec": {
            "replicas": values["replicas"],
            "selector": {"matchLabels": selector()},
            "template": {"metadata": {"labels": selector()}, "spec": pod},
        },
    })
}

/// The command line of a manager, before the flags that the user adds.
pub(super) fn own_flags(namespace: &str) -> [String; 10] {
    [
        "run".to_owned(),
        "--impersonate".to_owned(),
        "--listen".to_owned(),
        format!("0.0.0.0:{PORT}"),
        "--log-format".to_owned(),
        "json".to_owned(),
        "--webhook-listen".to_owned(),
        format!("0.0.0.0:{WEBHOOK_PORT}"),
        "--webhook-service".to_owned(),
        format!("{namespace}/{WEBHOOK}"),
    ]
}

fn disruption_budget(settings: &Settings) -> Value {
    json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": metadata(settings, MANAGER),
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": selector()}},
    })
}

fn metrics(settings: &Settings) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": metadata(settings, "operetta-metrics"),
        "spec": {"selector": selector(), "ports": [{"name": "http", "port": PORT, "targetPort": "http"}]},
    })
}

/// The Service by which API servers reach the conversion webhook of all ready replicas.
fn webhook(settings: &Settings) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": metadata(settings, WEBHOOK),
        "spec": {"selector": selector(), "ports": [{"name": "webhook", "port": 443, "targetPort": "webhook"}]},
    })
}

/// Lets API servers reach the webhook, whose addresses no policy can name, and the given peers the metrics. Where no egress is
/// given, all is allowed: packages may call other systems.
fn network_policy(settings: &Settings) -> Value {
    let values = &settings.values["networkPolicy"];
    let metrics = json!({"from": values["metricsFrom"], "ports": [{"port": PORT, "protocol": "TCP"}]});
    let webhook = json!({"ports": [{"port": WEBHOOK_PORT, "protocol": "TCP"}]});
    let mut spec = json!({"podSelector": {"matchLabels": selector()}, "ingress": [webhook, metrics]});
    set(&mut spec, "egress", &values["egress"]);
    json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": metadata(settings, MANAGER),
        "spec": spec,
    })
}

/// Tells the Prometheus Operator where the metrics are.
fn service_monitor(settings: &Settings) -> Value {
    let values = &settings.values["serviceMonitor"];
    let mut metadata = metadata(settings, MANAGER);
    for (label, value) in values["labels"].as_object().into_iter().flatten() {
        metadata["labels"][label] = value.clone();
    }
    let endpoint = json!({"interval": values["interval"], "port": "http", "path": "/metrics"});
    json!({
        "apiVersion": "monitoring.coreos.com/v1", "kind": "ServiceMonitor", "metadata": metadata,
        // Only the Service for metrics has a port of that name. Helm gives Services another label of who manages them.
        "spec": {"selector": {"matchLabels": {"app.kubernetes.io/name": MANAGER}}, "endpoints": [endpoint]},
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_container_has_no_privilege() {
        let settings = Settings::defaults("o");
        let deployment = deployment(&settings);
        let pod = &deployment["spec"]["template"]["spec"];
        let container = &pod["containers"][0]["securityContext"];
        assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
        assert_eq!(container["readOnlyRootFilesystem"], true);
        assert_eq!(container["allowPrivilegeEscalation"], false);
        assert_eq!(container["capabilities"]["drop"], json!(["ALL"]));
        assert_eq!(
            deployment["spec"]["selector"]["matchLabels"],
            deployment["spec"]["template"]["metadata"]["labels"]
        );
    }

    #[test]
    fn the_webhook_service_targets_the_listening_port() {
        let settings = Settings::defaults("o");
        let all = made(&settings);
        let named = |kind: &str, name: &str| {
            all.iter().find(|object| object["kind"] == kind && object["metadata"]["name"] == name).unwrap()
        };
        let (service, pod) = (named("Service", WEBHOOK), &named("Deployment", MANAGER)["spec"]["template"]);
        let container = &pod["spec"]["containers"][0];
        let args: Vec<&str> =
            container["args"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
        let flag = |name: &str| args[args.iter().position(|arg| *arg == name).unwrap() + 1];
        assert_eq!(flag("--webhook-service"), "o/operetta-webhook");
        let target = &service["spec"]["ports"][0]["targetPort"];
        let ports = container["ports"].as_array().unwrap();
        let port = ports.iter().find(|port| port["name"] == *target).unwrap();
        assert!(flag("--webhook-listen").ends_with(&format!(":{}", port["containerPort"])));
        assert_eq!(service["spec"]["selector"], pod["metadata"]["labels"]);
        // 443 is what `--webhook-service` means without a port.
        assert_eq!(service["spec"]["ports"][0]["port"], 443);
    }

    #[test]
    fn no_rule_has_a_wildcard_or_grants_rights() {
        let settings = Settings::defaults("o");
        for object in made(&settings) {
            for rule in object["rules"].as_array().into_iter().flatten() {
                let words: Vec<&str> = ["apiGroups", "resources", "verbs"]
                    .iter()
                    .flat_map(|field| rule[field].as_array().into_iter().flatten())
                    .filter_map(Value::as_str)
                    .collect();
                let refused = ["*", "escalate", "bind", "impersonate"];
                assert!(!words.iter().any(|word| refused.contains(word)), "{rule}");
            }
        }
    }
}
