//! `HorizontalPodAutoscaler` in `autoscaling/v1`, which knows a target for the CPU only. What else v2 has is in annotations.

use serde_json::{Map, Value, json};

const METRICS: &str = "autoscaling.alpha.kubernetes.io/metrics";
const BEHAVIOR: &str = "autoscaling.alpha.kubernetes.io/behavior";
const CONDITIONS: &str = "autoscaling.alpha.kubernetes.io/conditions";
const CURRENT: &str = "autoscaling.alpha.kubernetes.io/current-metrics";

/// Converts to `autoscaling/v1`, or from it to v2.
pub(crate) fn convert(value: &mut Value, to_v1: bool) {
    if to_v1 { old(value) } else { new(value) }
}

/// Whether a metric is the one that v1 has a field for.
fn is_cpu(metric: &Value) -> bool {
    metric["resource"]["name"] == "cpu" && metric["resource"]["target"]["type"] == "Utilization"
}

fn remove(map: &mut Value, field: &str) -> Option<Value> {
    map.as_object_mut()?.remove(field).filter(|value| !value.is_null())
}

fn old(value: &mut Value) {
    let mut kept = Map::new();
    let mut keep = |name: &str, value: Option<Value>| {
        if let Some(value) = value {
            kept.insert(name.to_owned(), value.to_string().into());
        }
    };
    let spec = &mut value["spec"];
    if let Some(Value::Array(mut metrics)) = remove(spec, "metrics") {
        if let Some(at) = metrics.iter().position(is_cpu) {
            let target = metrics.remove(at)["resource"]["target"]["averageUtilization"].take();
            spec["targetCPUUtilizationPercentage"] = target;
        }
        keep(METRICS, Some(metrics).filter(|metrics| !metrics.is_empty()).map(Value::from));
    }
    keep(BEHAVIOR, remove(spec, "behavior"));
    keep(CONDITIONS, remove(&mut value["status"], "conditions"));
    keep(CURRENT, remove(&mut value["status"], "currentMetrics"));
    for (name, text) in kept {
        value["metadata"]["annotations"][name] = text;
    }
}

fn new(value: &mut Value) {
    let mut take = |name: &str| -> Option<Value> {
        let annotations = value["metadata"].get_mut("annotations")?;
        let text = remove(annotations, name)?;
        if annotations.as_object().is_some_and(Map::is_empty) {
            remove(&mut value["metadata"], "annotations");
        }
        serde_json::from_str(text.as_str()?).ok()
    };
    let (metrics, behavior) = (take(METRICS), take(BEHAVIOR));
    let (conditions, current) = (take(CONDITIONS), take(CURRENT));
    let mut metrics = metrics.and_then(|metrics| metrics.as_array().cloned()).unwrap_or_default();
    if let Some(target) = remove(&mut value["spec"], "targetCPUUtilizationPercentage") {
        metrics.push(json!({"type": "Resource", "resource": {"name": "cpu",
            "target": {"type": "Utilization", "averageUtilization": target}}}));
    }
    if !metrics.is_empty() {
        value["spec"]["metrics"] = metrics.into();
    }
    for (part, field, found) in [
        ("spec", "behavior", behavior),
        ("status", "conditions", conditions),
        ("status", "currentMetrics", current),
    ] {
        if let Some(found) = found {
            value[part][field] = found;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_v2_survive_conversion_to_v1_and_back() {
        let metric = |name: &str| json!({"type": "Resource", "resource": {"name": name, "target": {"type": "Utilization", "averageUtilization": 5}}});
        let before = json!({"metadata": {"name": "a"}, "spec": {"maxReplicas": 3, "metrics": [metric("memory"), metric("cpu")],
            "behavior": {"scaleDown": {"stabilizationWindowSeconds": 10}}}, "status": {"conditions": [{"type": "x"}]}});
        let mut value = before.clone();
        convert(&mut value, true);
        assert_eq!(value["spec"], json!({"maxReplicas": 3, "targetCPUUtilizationPercentage": 5}));
        convert(&mut value, false);
        assert_eq!(value, before);
    }
}
