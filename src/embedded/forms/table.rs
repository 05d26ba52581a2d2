//! Tables, as kubectl prints them.

use std::collections::HashMap;
use std::sync::OnceLock;

use jiff::Timestamp;
use operetta_kube_model::facts::{has_condition, items, number};
use serde_json::{Value, json};

use super::rows::{self, age, balanced, containers, modes, or_none, pod, selector, text};
use crate::model::{Kind, Query, meta, versions};

/// The columns of built-in kinds as a real server has them: name, type, format, priority, description.
fn columns() -> &'static HashMap<&'static str, Value> {
    static TEXT: &str = include_str!("../data/columns.txt");
    static PARSED: OnceLock<HashMap<&'static str, Value>> = OnceLock::new();
    PARSED.get_or_init(|| {
        let lines = TEXT.lines().filter_map(|line| line.split_once(' '));
        lines.filter_map(|(resource, json)| Some((resource, serde_json::from_str(json).ok()?))).collect()
    })
}

fn column(name: &Value, kind: &Value, format: &Value, priority: &Value, description: &Value) -> Value {
    json!({"name": name, "type": kind, "format": format, "priority": priority, "description": description})
}

/// A table of one object.
pub(crate) fn single(kind: &Kind, object: Value, query: &Query, now: &str, with_columns: bool) -> Value {
    let version = object["metadata"]["resourceVersion"].clone();
    let mut table = table(kind, &[object], query, now, with_columns);
    if !version.is_null() {
        table["metadata"]["resourceVersion"] = version;
    }
    table
}

/// A table of objects.
pub(crate) fn table(kind: &Kind, objects: &[Value], query: &Query, now: &str, with_columns: bool) -> Value {
    let now: Timestamp = now.parse().unwrap_or_default();
    let definitions = if objects.iter().any(is_scale) { scale_columns(kind) } else { definitions(kind) };
    let rows: Vec<Value> = objects
        .iter()
        .map(|object| {
            let mut cells = cells(kind, object, now);
            // The object of a bookmark has no name and no fields.
            if object["metadata"]["name"].is_null() {
                let texts = if kind.custom().is_some() { 1 } else { cells.len() };
                cells.iter_mut().take(texts).filter(|cell| cell.is_null()).for_each(|cell| *cell = "".into());
            }
            let mut row = json!({"cells": cells});
            let ends_initial = object["metadata"]["annotations"]["k8s.io/initial-events-end"] == "true";
            match query.get("includeObject") {
                Some("None") if !ends_initial => row["object"] = Value::Null,
                Some("Object") => row["object"] = object.clone(),
                _ => row["object"] = meta::partial(object),
            }
            if kind.resource() == "pods"
                && let Some(conditions) = pod::conditions(object)
            {
                row["conditions"] = conditions;
            }
            // In this form, the annotation is a field that tables leave out.
            if kind.plural == "daemonsets"
                && let Some(annotations) =
                    row["object"]["metadata"].get_mut("annotations").and_then(Value::as_object_mut)
            {
                annotations.remove("deprecated.daemonset.template.generation");
                if annotations.is_empty()
                    && let Some(meta) = row["object"]["metadata"].as_object_mut()
                {
                    meta.remove("annotations");
                }
            }
            row
        })
        .collect();
    let mut table = json!({"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": {}, "columnDefinitions": definitions, "rows": rows});
    if !with_columns {
        table["columnDefinitions"] = Value::Null;
    }
    table
}

fn definitions(kind: &Kind) -> Vec<Value> {
    let known = columns().get(kind.resource());
    if let (None, Some(known)) = (kind.custom(), known) {
        let all = known.as_array().into_iter().flatten();
        return all.map(|c| column(&c[0], &c[1], &c[2], &c[3], &c[4])).collect();
    }
    let name = columns().get("configmaps").map_or(Value::Null, |columns| columns[0].clone());
    let mut all = vec![column(&name[0], &name[1], &name[2], &name[3], &name[4])];
    if let Some(own) = own_columns(kind) {
        all.extend(own.iter().map(|c| {
            let path = c["jsonPath"].as_str().unwrap_or_default();
            let description = match c["description"].as_str() {
                Some(text) => text.to_owned(),
                None => format!("Custom resource definition column (in JSONPath format): {path}"),
            };
            let or = |value: &Value, other: Value| if value.is_null() { other } else { value.clone() };
            column(
                &c["name"],
                &c["type"],
                &or(&c["format"], "".into()),
                &or(&c["priority"], 0.into()),
                &description.into(),
            )
        }));
    } else {
        let text = if kind.custom().is_some() { "Age" } else { "Created At" };
        let what = definition_of_age();
        all.push(column(&text.into(), &"date".into(), &"".into(), &0.into(), &what.into()));
    }
    all
}

fn is_scale(object: &Value) -> bool {
    object["kind"] == "Scale" && object["apiVersion"] == "autoscaling/v1"
}

/// The columns of the subresource `scale`.
fn scale_columns(kind: &Kind) -> Vec<Value> {
    let known = columns().get("scales.autoscaling").and_then(Value::as_array);
    let mut all: Vec<Value> =
        known.into_iter().flatten().map(|c| column(&c[0], &c[1], &c[2], &c[3], &c[4])).collect();
    if let ([name, desired, available, age], true) = (&mut all[..], kind.custom().is_some()) {
        name["format"] = "name".into();
        desired["description"] = "Number of desired replicas".into();
        available["description"] = "Number of actual replicas".into();
        age["type"] = "date".into();
    }
    all
}

fn scale_cells(kind: &Kind, object: &Value, now: Timestamp) -> Vec<Value> {
    let meta = &object["metadata"];
    let desired = match &object["spec"]["replicas"] {
        Value::Null if kind.custom().is_none() => 0.into(),
        found => found.clone(),
    };
    let available = object["status"]["replicas"].clone();
    vec![meta["name"].clone(), desired, available, age(&meta["creationTimestamp"], now).into()]
}

fn definition_of_age() -> String {
    let known = columns().get("roles.rbac.authorization.k8s.io");
    known.and_then(|columns| columns[1][4].as_str()).unwrap_or_default().to_owned()
}

fn own_columns(kind: &Kind) -> Option<&[Value]> {
    let columns = kind.custom()?.version["additionalPrinterColumns"].as_array()?;
    Some(columns).filter(|columns| !columns.is_empty()).map(Vec::as_slice)
}

fn cells(kind: &Kind, object: &Value, now: Timestamp) -> Vec<Value> {
    let (meta, spec, status) = (&object["metadata"], &object["spec"], &object["status"]);
    let name = meta["name"].clone();
    let old: Value = age(&meta["creationTimestamp"], now).into();
    if is_scale(object) {
        return scale_cells(kind, object, now);
    }
    if kind.custom().is_some() {
        return custom_cells(kind, object, now);
    }
    let template = &spec["template"]["spec"];
    let [names, images] = containers(template);
    let size = |field: &str| object[field].as_object().map_or(0, serde_json::Map::len);
    match kind.resource() {
        "configmaps" => vec![name, (size("data") + size("binaryData")).into(), old],
        "secrets" => vec![name, object["type"].clone(), size("data").into(), old],
        "serviceaccounts" => vec![name, old],
        "namespaces" => vec![name, status["phase"].clone(), old],
        "services" => {
            let ports: Vec<String> = items(&spec["ports"])
                .iter()
                .map(|port| {
                    let node = if port["nodePort"].is_null() {
                        String::new()
                    } else {
                        format!(":{}", port["nodePort"])
                    };
                    format!("{}{node}/{}", port["port"], text(&port["protocol"]))
                })
                .collect();
            let external: Vec<String> = items(&spec["externalIPs"]).iter().map(text).collect();
            let outside = match spec["type"].as_str() {
                Some("LoadBalancer") => {
                    let all = [balanced(status), external].concat();
                    if all.is_empty() { "<pending>".to_owned() } else { all.join(",") }
                }
                Some("ExternalName") => text(&spec["externalName"]),
                _ => or_none(external.join(",")),
            };
            let ip = or_none(text(&spec["clusterIPs"][0]));
            vec![
                name,
                spec["type"].clone(),
                ip.into(),
                outside.into(),
                or_none(ports.join(",")).into(),
                old,
                selector(&spec["selector"]).into(),
            ]
        }
        "deployments.apps" => {
            let ready = format!("{}/{}", number(&status["readyReplicas"]), number(&spec["replicas"]));
            // An object without fields is that of a bookmark.
            let selected =
                if spec["selector"].is_null() { String::new() } else { selector(&spec["selector"]) };
            vec![
                name,
                ready.into(),
                number(&status["updatedReplicas"]).into(),
                number(&status["availableReplicas"]).into(),
                old,
                names,
                images,
                selected.into(),
            ]
        }
        "statefulsets.apps" => {
            let ready = format!("{}/{}", number(&status["readyReplicas"]), number(&spec["replicas"]));
            vec![name, ready.into(), old, names, images]
        }
        "replicasets.apps" => vec![
            name,
            number(&spec["replicas"]).into(),
            number(&status["replicas"]).into(),
            number(&status["readyReplicas"]).into(),
            old,
            names,
            images,
            selector(&spec["selector"]).into(),
        ],
        "daemonsets.apps" => {
            let count = |field: &str| -> Value { number(&status[field]).into() };
            let nodes = selector(&template["nodeSelector"]);
            vec![
                name,
                count("desiredNumberScheduled"),
                count("currentNumberScheduled"),
                count("numberReady"),
                count("updatedNumberScheduled"),
                count("numberAvailable"),
                nodes.into(),
                old,
                names,
                images,
                selector(&spec["selector"]).into(),
            ]
        }
        "jobs.batch" => {
            let holds = |kind: &str| has_condition(object, kind);
            let state = if holds("Complete") {
                "Complete"
            } else if holds("Failed") {
                "Failed"
            } else if !meta["deletionTimestamp"].is_null() {
                "Terminating"
            } else {
                let states = ["Suspended", "FailureTarget", "SuccessCriteriaMet"];
                states.into_iter().find(|state| holds(state)).unwrap_or("Running")
            };
            let (succeeded, parallel) = (number(&status["succeeded"]), number(&spec["parallelism"]));
            let done = match spec["completions"].as_i64() {
                Some(wanted) => format!("{succeeded}/{wanted}"),
                None if parallel > 1 => format!("{succeeded}/1 of {parallel}"),
                None => format!("{succeeded}/1"),
            };
            let duration = match (&status["startTime"], &status["completionTime"]) {
                (Value::Null, _) => String::new(),
                (start, Value::Null) => age(start, now),
                (start, end) => age(start, end.as_str().and_then(|end| end.parse().ok()).unwrap_or(now)),
            };
            vec![
                name,
                state.into(),
                done.into(),
                duration.into(),
                old,
                names,
                images,
                selector(&spec["selector"]).into(),
            ]
        }
        "cronjobs.batch" => {
            let [names, images] = containers(&spec["jobTemplate"]["spec"]["template"]["spec"]);
            let last = if status["lastScheduleTime"].is_null() {
                "<none>".to_owned()
            } else {
                age(&status["lastScheduleTime"], now)
            };
            let suspend = if spec["suspend"] == true { "True" } else { "False" };
            let zone = or_none(text(&spec["timeZone"]));
            vec![
                name,
                spec["schedule"].clone(),
                zone.into(),
                suspend.into(),
                items(&status["active"]).len().into(),
                last.into(),
                old,
                names,
                images,
                selector(&spec["jobTemplate"]["spec"]["selector"]).into(),
            ]
        }
        "pods" => pod::cells(object, name, old, now),
        "persistentvolumeclaims" => {
            let is_bound = !text(&spec["volumeName"]).is_empty();
            let [capacity, modes] = if is_bound {
                [text(&status["capacity"]["storage"]), modes(&status["accessModes"])]
            } else {
                [String::new(), String::new()]
            };
            vec![
                name,
                rows::phase(object),
                text(&spec["volumeName"]).into(),
                capacity.into(),
                modes.into(),
                text(&spec["storageClassName"]).into(),
                rows::or(&spec["volumeAttributesClassName"], "<unset>"),
                old,
                spec["volumeMode"].clone(),
            ]
        }
        "ingresses.networking.k8s.io" => {
            let rules = items(&spec["rules"]);
            let hosts = rules.iter().enumerate().map(|(at, rule)| (at, text(&rule["host"])));
            let hosts: Vec<(usize, String)> = hosts.filter(|(_, host)| !host.is_empty()).take(3).collect();
            // The others are those that follow the third host, and counted with those before it that have none.
            let has_more = hosts.get(2).is_some_and(|(at, _)| at + 1 < rules.len());
            let more = if has_more { format!(" + {} more...", rules.len() - 3) } else { String::new() };
            let hosts: Vec<String> = hosts.into_iter().map(|(_, host)| host).collect();
            let hosts = if hosts.is_empty() { "*".to_owned() } else { hosts.join(",") + &more };
            let ports = if items(&spec["tls"]).is_empty() { "80" } else { "80, 443" };
            vec![
                name,
                or_none(text(&spec["ingressClassName"])).into(),
                hosts.into(),
                balanced(status).join(",").into(),
                ports.into(),
                old,
            ]
        }
        "poddisruptionbudgets.policy" => {
            let or = |value: &Value| if value.is_null() { "N/A".to_owned() } else { text(value) };
            vec![
                name,
                or(&spec["minAvailable"]).into(),
                or(&spec["maxUnavailable"]).into(),
                number(&status["disruptionsAllowed"]).into(),
                old,
            ]
        }
        "leases.coordination.k8s.io" => vec![name, text(&spec["holderIdentity"]).into(), old],
        "rolebindings.rbac.authorization.k8s.io" | "clusterrolebindings.rbac.authorization.k8s.io" => {
            let role = format!("{}/{}", text(&object["roleRef"]["kind"]), text(&object["roleRef"]["name"]));
            let of = |kind: &str| -> Value {
                let found = items(&object["subjects"]).iter().filter(|subject| subject["kind"] == kind);
                let names: Vec<String> = found
                    .map(|subject| match subject["namespace"].as_str().filter(|n| !n.is_empty()) {
                        Some(namespace) => format!("{namespace}/{}", text(&subject["name"])),
                        None => text(&subject["name"]),
                    })
                    .collect();
                names.join(", ").into()
            };
            vec![name, role.into(), old, of("User"), of("Group"), of("ServiceAccount")]
        }
        "networkpolicies.networking.k8s.io" => vec![name, selector(&spec["podSelector"]).into(), old],
        "events" | "events.events.k8s.io" => {
            let object = &versions::old_event(object);
            let involved = &object["involvedObject"];
            let what = format!("{}/{}", text(&involved["kind"]).to_lowercase(), text(&involved["name"]));
            let series = &object["series"];
            let count =
                if series.is_null() { number(&object["count"]).max(1) } else { number(&series["count"]) };
            let first_of = |times: &[&Value]| -> Value {
                let time = times.iter().find(|time| time.is_string());
                time.map_or_else(|| age(&Value::Null, now), |time| age(time, now)).into()
            };
            let (first, made) = (&object["firstTimestamp"], &object["eventTime"]);
            let source: Vec<String> = [("component", "reportingComponent"), ("host", "reportingInstance")]
                .iter()
                .map(|(old, new)| (text(&object["source"][*old]), text(&object[*new])))
                .map(|(old, new)| if old.is_empty() { new } else { old })
                .filter(|part| !part.is_empty())
                .collect();
            vec![
                first_of(&[&series["lastObservedTime"], &object["lastTimestamp"], first, made]),
                object["type"].clone(),
                object["reason"].clone(),
                what.into(),
                text(&involved["fieldPath"]).into(),
                source.join(", ").into(),
                text(&object["message"]).trim().into(),
                first_of(&[first, made]),
                count.into(),
                name,
            ]
        }
        _ => rows::cells(kind.resource(), object, now),
    }
}

fn custom_cells(kind: &Kind, object: &Value, now: Timestamp) -> Vec<Value> {
    let mut cells = vec![object["metadata"]["name"].clone()];
    let Some(columns) = own_columns(kind) else {
        let created = &object["metadata"]["creationTimestamp"];
        cells.push(if created.is_null() { Value::Null } else { age(created, now).into() });
        return cells;
    };
    for column in columns {
        let value =
            at_path(object, column["jsonPath"].as_str().unwrap_or_default()).filter(|it| !it.is_null());
        cells.push(match (column["type"].as_str().unwrap_or_default(), value) {
            ("date", Some(value)) => age(value, now).into(),
            ("integer" | "number", Some(value @ Value::Number(_)))
            | ("boolean", Some(value @ Value::Bool(_))) => value.clone(),
            ("string", Some(value)) => text(value).into(),
            _ => Value::Null,
        });
    }
    cells
}

/// The value at a JSONPath: fields, indices, the last item `[-1:]` and the filter `[?(@.a=="b")]`.
fn at_path<'a>(object: &'a Value, path: &str) -> Option<&'a Value> {
    let mut at = object;
    let mut rest = path;
    while !rest.is_empty() {
        if let Some(filter) = rest.strip_prefix("[?(@.") {
            let (condition, after) = filter.split_once(")]")?;
            let (field, wanted) = condition.split_once("==")?;
            let wanted = wanted.trim().trim_matches(['"', '\'']);
            at = at.as_array()?.iter().find(|item| item[field.trim()] == wanted)?;
            rest = after;
        } else if let Some(index) = rest.strip_prefix('[') {
            let (index, after) = index.split_once(']')?;
            at = match index.parse::<usize>() {
                Ok(index) => at.get(index)?,
                Err(_) if index == "-1:" => at.as_array()?.last()?,
                Err(_) => at.get(index.trim_matches(['"', '\'']))?,
            };
            rest = after;
        } else {
            let field = rest.strip_prefix('.')?;
            let mut end = field.len();
            let mut escaped = false;
            for (index, c) in field.char_indices() {
                if !escaped && (c == '.' || c == '[') {
                    end = index;
                    break;
                }
                escaped = c == '\\';
            }
            at = at.get(field[..end].replace('\\', ""))?;
            rest = &field[end..];
        }
    }
    Some(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_columns_are_followed() {
        let object =
            json!({"a": {"b.c": 1}, "all": [{"name": "x", "is": 1}, {"name": "y", "is": 2}], "none": []});
        for (path, expected) in [
            (r".a.b\.c", Some(json!(1))),
            (".all[0].is", Some(json!(1))),
            (".all[-1:].is", Some(json!(2))),
            (".none[-1:].is", None),
            (r#".all[?(@.name=="y")].is"#, Some(json!(2))),
        ] {
            assert_eq!(at_path(&object, path).cloned(), expected, "{path}");
        }
    }
}
