//! The values with which a manager is installed: those of the Helm chart, by flags and files of `operetta manager install`.

use std::fmt::Write as _;

use serde_json::{Map, Value, json};

use crate::diag::did_you_mean;
use crate::rights::MANAGER;
use crate::yaml;

/// The image that `operetta manager install` uses: that of this version.
pub(super) const IMAGE: &str = concat!("operetta:", env!("CARGO_PKG_VERSION"));
/// The value that says whether an object is made.
pub(super) const ENABLED: &str = "enabled";

/// How a manager is installed.
#[derive(Debug, Clone)]
pub(super) struct Settings {
    pub namespace: String,
    /// The values of the chart.
    pub values: Value,
}

impl Settings {
    /// The default values in that namespace.
    pub(super) fn defaults(namespace: &str) -> Self {
        Self { namespace: namespace.to_owned(), values: defaults() }
    }

    /// Whether an optional object is made.
    pub(super) fn is_enabled(&self, value: &str) -> bool {
        self.values[value][ENABLED] == true
    }
}

/// The labels of the pods.
pub(super) fn selector() -> Value {
    json!({"app.kubernetes.io/name": MANAGER, "app.kubernetes.io/component": "manager"})
}

/// The default affinity: replicas on one node would go down together.
fn affinity() -> Value {
    json!({"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{
        "weight": 100,
        "podAffinityTerm": {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": selector()}},
    }]}})
}

/// Each value: its name, its description and its default.
fn all() -> [(&'static str, &'static str, Value); 11] {
    [
        ("image", "The image of the manager, which the nodes must be able to pull.", IMAGE.into()),
        ("replicas", "How many managers run: one leads, the others stand by.", 2.into()),
        (
            "imagePullSecrets",
            "Secrets in the manager's namespace with which the image is pulled, such as [{name: registry}].",
            json!([]),
        ),
        (
            "extraArgs",
            "More flags of `operetta run`, such as [--allow-call-to, bookings.internal].",
            json!([]),
        ),
        (
            "resources",
            "What a manager may use. docs/performance.md says what instances cost.",
            json!({"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "1Gi"}}),
        ),
        ("nodeSelector", "Labels of the nodes on which managers run.", json!({})),
        ("tolerations", "Taints of nodes on which managers run nevertheless.", json!([])),
        (
            "affinity",
            "Where managers run. A node that goes down should not take all of them with it.",
            affinity(),
        ),
        ("priorityClassName", "The PriorityClass of the pods, such as system-cluster-critical.", "".into()),
        (
            "networkPolicy",
            "A NetworkPolicy: the webhook is open to API servers, and metrics to the peers in metricsFrom (all, if there are\n\
             none). Without rules for egress all of it is allowed: to the API server, to DNS, and to what packages call.",
            json!({ENABLED: false, "metricsFrom": [{"namespaceSelector": {}}], "egress": []}),
        ),
        (
            "serviceMonitor",
            "A ServiceMonitor for the Prometheus Operator, which must be installed, with the labels by which it finds it.",
            json!({ENABLED: false, "labels": {}, "interval": "30s"}),
        ),
    ]
}

/// The default of each value.
pub(super) fn defaults() -> Value {
    all().into_iter().map(|(name, _, value)| (name.to_owned(), value)).collect::<Map<_, _>>().into()
}

/// The defaults as YAML, each with its description as a comment.
pub(super) fn documented() -> String {
    let mut text = String::new();
    for (name, about, value) in all() {
        for line in about.lines() {
            let _ = writeln!(text, "# {line}");
        }
        text.push_str(&yaml::to_string(&json!({name: value})));
    }
    text
}

/// Sets values over others, as Helm does: maps are merged, and `null` takes a value away.
///
/// # Errors
/// There is no such value, or it has another type.
pub(super) fn merge(values: &mut Value, given: &Value) -> Result<(), String> {
    let Some(given) = given.as_object() else {
        return Err(format!(
            "the values must be a map, as in values.yaml of the chart, and are {}",
            article(given)
        ));
    };
    merge_known(values, given, "")
}

/// Merges into a map whose fields are fixed: others are refused.
fn merge_known(values: &mut Value, given: &Map<String, Value>, above: &str) -> Result<(), String> {
    for (name, value) in given {
        let Some(known) = values.get_mut(name) else {
            let names: Vec<&str> =
                values.as_object().into_iter().flatten().map(|(name, _)| name.as_str()).collect();
            let help = did_you_mean(name, names.iter().copied()).map_or_else(
                || format!("there are {}", names.join(", ")),
                |near| format!("did you mean {near}?"),
            );
            return Err(format!("there is no value {above}{name}; {help}"));
        };
        match (&mut *known, value) {
            (Value::Array(items), Value::Null) => items.clear(),
            (Value::Object(fields), Value::Null) if !fields.contains_key(ENABLED) => fields.clear(),
            (Value::String(text), Value::Null) if name != "image" => text.clear(),
            (Value::Object(fields), Value::Object(given)) if fields.contains_key(ENABLED) => {
                merge_known(known, given, &format!("{above}{name}."))?;
            }
            (Value::Object(_), Value::Object(_)) => merge_free(known, value),
            (Value::Number(_), Value::Number(number)) if !number.is_u64() => {
                return Err(format!("{above}{name} must be 0 or more, and is {number}"));
            }
            (known, value) if std::mem::discriminant(known) == std::mem::discriminant(value) => {
                known.clone_from(value);
            }
            (known, value) => {
                return Err(format!("{above}{name} must be {}, and is {}", article(known), article(value)));
            }
        }
    }
    Ok(())
}

/// Merges into a map of a Kubernetes type, which may get any fields.
fn merge_free(into: &mut Value, given: &Value) {
    let (Value::Object(fields), Value::Object(given)) = (&mut *into, given) else {
        into.clone_from(given);
        return;
    };
    for (name, value) in given {
        if value.is_null() {
            fields.remove(name);
        } else {
            merge_free(fields.entry(name.as_str()).or_insert(Value::Null), value);
        }
    }
}

/// Reads `PATH=VALUE`: a path with dots, and YAML.
///
/// # Errors
/// It is not of that form.
pub(super) fn assignment(text: &str) -> Result<Value, String> {
    let (path, value) = text.split_once('=').ok_or("PATH=VALUE, such as networkPolicy.enabled=true")?;
    let value = yaml::from_str(value).map_err(|error| format!("the value is no YAML: {}", error.message))?;
    if path.split('.').any(str::is_empty) {
        return Err("the path is one of values.yaml, such as networkPolicy.enabled".to_owned());
    }
    Ok(path.rsplit('.').fold(value, |inner, field| json!({field: inner})))
}

fn article(value: &Value) -> &'static str {
    match value {
        Value::Null => "nothing",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "a map",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn merged(given: &Value) -> Result<Value, String> {
        let mut values = defaults();
        merge(&mut values, given).map(|()| values)
    }

    #[test]
    fn values_are_merged_as_helm_does() {
        let given = json!({
            "resources": {"limits": {"memory": "2Gi", "cpu": 2}}, "tolerations": [{"operator": "Exists"}],
            "networkPolicy": {"enabled": true}, "affinity": null, "priorityClassName": "high",
        });
        let values = merged(&given).unwrap();
        assert_eq!(
            values["resources"],
            json!({"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "2Gi", "cpu": 2}})
        );
        assert_eq!(values["tolerations"], json!([{"operator": "Exists"}]));
        assert_eq!(values["networkPolicy"]["metricsFrom"], json!([{"namespaceSelector": {}}]));
        assert_eq!(values["affinity"], json!({}));
        let values = merged(&json!({"resources": {"limits": null}, "extraArgs": null})).unwrap();
        assert_eq!(values["resources"], json!({"requests": {"cpu": "100m", "memory": "128Mi"}}));
    }

    #[test]
    fn values_that_do_not_exist_or_have_another_type_are_refused() {
        for (given, words) in [
            (json!([]), "must be a map"),
            (json!({"nodeSelektor": {}}), "did you mean nodeSelector?"),
            (
                json!({"networkPolicy": {"enable": true}}),
                "no value networkPolicy.enable; did you mean enabled?",
            ),
            (json!({"tolerations": {"key": "a"}}), "tolerations must be a list, and is a map"),
            (json!({"image": null}), "image must be a text"),
            (json!({"networkPolicy": true}), "must be a map"),
            (json!({"replicas": -1}), "replicas must be 0 or more"),
        ] {
            let error = merged(&given).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn assignments_have_a_path_and_yaml() {
        assert_eq!(assignment("replicas=3"), Ok(json!({"replicas": 3})));
        assert_eq!(
            assignment("nodeSelector={kubernetes.io/os: linux}"),
            Ok(json!({"nodeSelector": {"kubernetes.io/os": "linux"}}))
        );
        assert_eq!(assignment("networkPolicy.enabled=true"), Ok(json!({"networkPolicy": {"enabled": true}})));
        for wrong in ["replicas", "a..b=1", "=1", "a={"] {
            assert!(assignment(wrong).is_err(), "{wrong}");
        }
    }
}
