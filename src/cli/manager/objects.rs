//! The objects of a manager in a cluster.

use serde_json::{Value, json};

use crate::children::names;
use crate::operators;
use crate::package::store::objects;
use crate::plan::crds;
use crate::rights::{self, MANAGER};

/// The port of probes and metrics.
pub(super) const PORT: u16 = 8080;
/// The port of the conversion webhook.
const WEBHOOK_PORT: u16 = 9443;
/// The Service of the conversion webhook.
const WEBHOOK: &str = "operetta-webhook";
/// For how many seconds a pod that ends still serves: until every node knows that it goes.
const DRAIN: u32 = 5;
/// The user as whom the container runs.
const USER: u32 = 65_532;

/// How a manager is installed.
#[derive(Debug, Clone)]
pub(super) struct Settings {
    pub namespace: String,
    pub image: String,
    pub replicas: u32,
}

/// The image that `operetta manager install` uses: that of this version.
pub(super) const IMAGE: &str = concat!("operetta:", env!("CARGO_PKG_VERSION"));

/// All objects, in an order in which they can be applied.
pub(super) fn all(settings: &Settings) -> Vec<Value> {
    let mut all = vec![namespace(settings), crds::plan_run(), objects::crd(), operators::crd()];
    // The manager adds its exemption when it starts.
    all.extend([crds::policy(), crds::binding()]);
    all.extend(rights::manager::manager(&settings.namespace));
    all.extend([deployment(settings), disruption_budget(settings), metrics(settings), webhook(settings)]);
    all
}

fn labels() -> Value {
    json!({names::MANAGED_BY: names::NOTES, "app.kubernetes.io/name": MANAGER})
}

fn selector() -> Value {
    json!({"app.kubernetes.io/name": MANAGER, "app.kubernetes.io/component": "manager"})
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

fn deployment(settings: &Settings) -> Value {
    let probe = |path: &str, period: u32| json!({"httpGet": {"path": path, "port": "http"}, "periodSeconds": period, "timeoutSeconds": 5});
    let container = json!({
        "name": "manager",
        "image": settings.image,
        "args": [
            "run", "--impersonate", "--listen", format!("0.0.0.0:{PORT}"), "--log-format", "json",
            "--webhook-listen", format!("0.0.0.0:{WEBHOOK_PORT}"),
            "--webhook-service", format!("{}/{WEBHOOK}", settings.namespace),
        ],
        "ports": [
            {"name": "http", "containerPort": PORT},
            {"name": "webhook", "containerPort": WEBHOOK_PORT},
        ],
        "lifecycle": {"preStop": {"sleep": {"seconds": DRAIN}}},
        "livenessProbe": probe("/healthz", 20),
        "readinessProbe": probe("/readyz", 5),
        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "1Gi"}},
        "securityContext": {
            "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": {"drop": ["ALL"]},
        },
    });
    // Replicas on one node would go down together.
    let apart = json!({"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{
        "weight": 100,
        "podAffinityTerm": {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": selector()}},
    }]}});
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata(settings, MANAGER),
        "spec": {
            "replicas": settings.replicas,
            "selector": {"matchLabels": selector()},
            "template": {
                "metadata": {"labels": selector()},
                "spec": {
                    "serviceAccountName": MANAGER,
                    "automountServiceAccountToken": true,
                    "securityContext": {
                        "runAsNonRoot": true, "runAsUser": USER, "runAsGroup": USER,
                        "seccompProfile": {"type": "RuntimeDefault"},
                    },
                    // A stop ends within 20 s after the drain.
                    "terminationGracePeriodSeconds": 30,
                    "affinity": apart,
                    "containers": [container],
                },
            },
        },
    })
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

/// Leads API servers to the conversion webhook of all replicas that are ready.
fn webhook(settings: &Settings) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": metadata(settings, WEBHOOK),
        "spec": {"selector": selector(), "ports": [{"name": "webhook", "port": 443, "targetPort": "webhook"}]},
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_container_has_no_privilege() {
        let settings = Settings { namespace: "o".into(), image: "i".into(), replicas: 2 };
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
    fn the_webhook_listens_where_its_service_leads() {
        let settings = Settings { namespace: "o".into(), image: "i".into(), replicas: 2 };
        let all = all(&settings);
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
        let settings = Settings { namespace: "o".into(), image: "i".into(), replicas: 2 };
        for object in all(&settings) {
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
