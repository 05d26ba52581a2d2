//! Which objects a list or a watch asks for, by labels and fields.

use operetta_kube_model::field_selector::{self, Term};
use operetta_kube_model::selector::Selector;
use serde_json::Value;

use crate::model::{Failure, Kind, Object, Outcome, versions};

/// Which objects of a list are asked for.
#[derive(Debug, Clone, Default)]
pub(crate) struct Selection {
    labels: Selector,
    fields: Vec<Term>,
}

impl Selection {
    pub(crate) fn parse(kind: &Kind, labels: &str, fields: &str) -> Outcome<Self> {
        let labels = Selector::parse_text(labels).map_err(Failure::bad_request)?;
        let mut fields = field_selector::parse(fields).map_err(Failure::bad_request)?;
        for term in &mut fields {
            term.path = selectable(kind, &term.path).map_err(Failure::bad_request)?;
        }
        Ok(Self { labels, fields })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    pub(crate) fn matches(&self, key: &str, object: &Object) -> bool {
        self.labels.fits(|name| object.label(name)) && (self.fields.is_empty() || self.fits(key, object))
    }

    fn fits(&self, key: &str, object: &Object) -> bool {
        let (namespace, name) = key.split_once('/').unwrap_or(("", key));
        let mut parsed: Option<Value> = None;
        self.fields.iter().all(|term| {
            let value = match term.path.as_str() {
                "metadata.name" => name.to_owned(),
                "metadata.namespace" => namespace.to_owned(),
                path => field(parsed.get_or_insert_with(|| versions::selectable(object)), path),
            };
            (value == term.value) == term.is_equal
        })
    }
}

/// The value of a field as the real server selects by it.
fn field(object: &Value, path: &str) -> String {
    let at = |path: &str| path.split('.').fold(object, |at, name| &at[name]);
    let value = match path {
        "status.podIP" => &object["status"]["podIPs"][0]["ip"],
        // Known, but never filled.
        "status.podIPs" => &Value::Null,
        "source" if !at("source.component").is_null() => at("source.component"),
        "source" => at("reportingComponent"),
        path => at(path),
    };
    match value {
        Value::String(text) => text.clone(),
        Value::Null => match path {
            "spec.unschedulable" | "spec.hostNetwork" => "false".to_owned(),
            "status.successful" | "status.replicas" => "0".to_owned(),
            _ => String::new(),
        },
        other => other.to_string(),
    }
}

/// Kinds with fields of their own by which objects can be selected, beside the name.
const SELECTABLE: [(&str, &[&str]); 10] = [
    (
        "pods",
        &[
            "metadata.namespace",
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "spec.hostNetwork",
            "status.phase",
            "status.podIP",
            "status.podIPs",
            "status.nominatedNodeName",
        ],
    ),
    ("nodes", &["spec.unschedulable"]),
    ("namespaces", &["status.phase"]),
    ("secrets", &["metadata.namespace", "type"]),
    ("services", &["metadata.namespace", "spec.clusterIP", "spec.type"]),
    ("replicationcontrollers", &["metadata.namespace", "status.replicas"]),
    (
        "events",
        &[
            "metadata.namespace",
            "involvedObject.kind",
            "involvedObject.namespace",
            "involvedObject.name",
            "involvedObject.uid",
            "involvedObject.apiVersion",
            "involvedObject.resourceVersion",
            "involvedObject.fieldPath",
            "reason",
            "reportingComponent",
            "source",
            "type",
        ],
    ),
    ("jobs.batch", &["metadata.namespace", "status.successful"]),
    ("certificatesigningrequests.certificates.k8s.io", &["spec.signerName"]),
    ("resourceslices.resource.k8s.io", &["spec.nodeName", "spec.driver"]),
];

/// The field that a label of a field selector names, or that objects of the kind cannot be selected by it.
fn selectable(kind: &Kind, label: &str) -> Result<String, String> {
    let found = Ok(label.to_owned());
    let unsupported = || Err(format!("field label not supported: {label}"));
    if label == "metadata.name" {
        return found;
    }
    if let Some(custom) = kind.custom() {
        let is_known = kind.namespaced && label == "metadata.namespace"
            || custom.selectable.iter().any(|known| known == label);
        return if is_known { found } else { unsupported() };
    }
    if kind.resource() == "events.events.k8s.io" {
        // Fields that both groups have, or have renamed.
        return match label {
            "metadata.namespace" | "reason" | "type" => found,
            "reportingController" => Ok("reportingComponent".to_owned()),
            _ => match label.strip_prefix("regarding.") {
                Some(
                    field @ ("kind" | "namespace" | "name" | "uid" | "apiVersion" | "resourceVersion"
                    | "fieldPath"),
                ) => Ok(format!("involvedObject.{field}")),
                _ => unsupported(),
            },
        };
    }
    let own = SELECTABLE.iter().find(|(resource, _)| *resource == kind.resource());
    match (own, kind.resource()) {
        (Some((_, fields)), _) if fields.contains(&label) => found,
        (_, "pods") if label == "spec.host" => Ok("spec.nodeName".to_owned()),
        (_, "jobs.batch") => Err(format!("field label {label:?} not supported for Job")),
        (_, "resourceslices.resource.k8s.io") => {
            let version = kind.api_version();
            Err(format!("field label not supported for {version}, Kind=ResourceSlice: {label}"))
        }
        (Some(_), _) => unsupported(),
        (None, _) if label == "metadata.namespace" => found,
        (None, _) => Err(format!(
            "{label:?} is not a known field selector: only \"metadata.name\", \"metadata.namespace\""
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_refuses_fields_in_its_own_words() {
        let kinds = crate::model::Kinds::built_in();
        let check = |(group, version, plural): (&str, &str, &str), label: &str| {
            selectable(kinds.find(group, version, plural).unwrap(), label)
        };
        let events = ("events.k8s.io", "v1", "events");
        assert_eq!(check(events, "regarding.name").unwrap(), "involvedObject.name");
        assert_eq!(check(events, "reportingController").unwrap(), "reportingComponent");
        assert!(check(events, "involvedObject.name").is_err() && check(events, "regarding.x").is_err());
        assert!(check(("", "v1", "events"), "regarding.name").is_err());
        assert_eq!(check(("", "v1", "pods"), "spec.host").unwrap(), "spec.nodeName");
        for (kind, why) in [
            (("", "v1", "pods"), "field label not supported: x"),
            (("batch", "v1", "jobs"), "field label \"x\" not supported for Job"),
            (
                ("resource.k8s.io", "v1", "resourceslices"),
                "field label not supported for resource.k8s.io/v1, Kind=ResourceSlice: x",
            ),
            (
                ("apps", "v1", "replicasets"),
                "\"x\" is not a known field selector: only \"metadata.name\", \"metadata.namespace\"",
            ),
        ] {
            assert_eq!(check(kind, "x").unwrap_err(), why);
        }
        assert!(check(("apps", "v1", "replicasets"), "status.replicas").is_err());
        assert!(check(("", "v1", "nodes"), "metadata.namespace").is_err());
    }

    #[test]
    fn fields_have_the_values_of_the_server() {
        let pod = serde_json::json!({"spec": {}, "status": {"podIPs": [{"ip": "10.0.0.1"}]}});
        let found = ["status.podIP", "status.podIPs", "spec.hostNetwork", "spec.nodeName"];
        assert_eq!(found.map(|path| field(&pod, path)), ["10.0.0.1", "", "false", ""]);
        let event = serde_json::json!({"source": {}, "reportingComponent": "a"});
        assert_eq!(field(&event, "source"), "a");
        let event = serde_json::json!({"source": {"component": "b"}, "reportingComponent": "a"});
        assert_eq!(field(&event, "source"), "b");
    }
}
