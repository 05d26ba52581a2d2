//! Readiness of `PersistentVolumeClaim`, Service, `PodDisruptionBudget`, `HorizontalPodAutoscaler`,
//! `CustomResourceDefinition` and `APIService`.

use serde_json::Value;

use super::conditions::{Readiness, condition, text, unseen};

pub(super) fn claim(object: &Value) -> Readiness {
    match text(object, "/status/phase").unwrap_or_default() {
        "Bound" => Readiness::Ready,
        "Lost" => Readiness::failed("ClaimLost", "its volume is gone"),
        _ => Readiness::not_ready(
            "NotBound",
            "it is not bound to a volume; where the storage class says WaitForFirstConsumer, a pod must use it first",
        ),
    }
}

pub(super) fn service(object: &Value) -> Readiness {
    if text(object, "/spec/type") != Some("LoadBalancer") {
        return Readiness::Ready;
    }
    let addresses = object.pointer("/status/loadBalancer/ingress").and_then(Value::as_array);
    if text(object, "/spec/clusterIP").unwrap_or_default().is_empty() {
        Readiness::not_ready("NoClusterIP", "it has no cluster IP yet")
    } else if addresses.is_none_or(Vec::is_empty) {
        Readiness::not_ready("NoAddress", "its load balancer has no address yet")
    } else {
        Readiness::Ready
    }
}

pub(super) fn disruption_budget(object: &Value) -> Readiness {
    unseen(object).unwrap_or(Readiness::Ready)
}

/// Missing metrics do not matter, because the target keeps running with its present number of replicas.
pub(super) fn autoscaler(object: &Value) -> Readiness {
    match condition(object, "AbleToScale") {
        Some(able) if able.status == "False" => able.not_ready("NotAbleToScale"),
        _ => Readiness::Ready,
    }
}

pub(super) fn definition(object: &Value) -> Readiness {
    if let Some(names) = condition(object, "NamesAccepted")
        && names.status == "False"
    {
        return names.failed("NamesNotAccepted");
    }
    match condition(object, "Established") {
        Some(established) if established.status == "True" => Readiness::Ready,
        Some(established) if established.status == "False" && established.reason != "Installing" => {
            established.failed("NotEstablished")
        }
        _ => Readiness::not_ready("Installing", "it is not established yet"),
    }
}

pub(super) fn api_service(object: &Value) -> Readiness {
    match condition(object, "Available") {
        Some(available) if available.status == "True" => Readiness::Ready,
        Some(available) => available.not_ready("NotAvailable"),
        None => Readiness::not_ready("NotAvailable", "its availability was not checked yet"),
    }
}
