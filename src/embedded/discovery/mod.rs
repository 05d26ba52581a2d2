//! What is served: plain and aggregated discovery, the version, health.

pub(crate) mod openapi;
mod openapi_v2;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use crate::crd::priority;
use crate::model::kinds::discovery;
use crate::model::{Failure, Kind, Kinds, Outcome, Request};
use crate::verbs::response::Response;

/// Answers a request about what is served.
pub(crate) fn answer(kinds: &Kinds, request: &Request<'_>, parts: &[&str]) -> Outcome<Response> {
    let aggregated =
        request.accept.split(',').next().unwrap_or_default().contains("as=APIGroupDiscoveryList");
    let ok = |value: Value| Ok(Response::json(200, &value));
    let groups = groups(kinds);
    let find = |name: &str| groups.iter().find(|group| group_name(group) == name);
    let unknown = || Ok(Response::plain(404, "404 page not found\n"));
    match parts {
        ["healthz" | "livez" | "readyz", ..] => Ok(Response::plain(200, "ok")),
        ["version"] => ok(json!({"major": "1", "minor": "36", "emulationMajor": "1", "emulationMinor": "36",
            "minCompatibilityMajor": "1", "minCompatibilityMinor": "35", "gitVersion": "v1.36.3", "gitCommit": "$Format:%H$",
            "gitTreeState": "", "buildDate": "1970-01-01T00:00:00Z", "goVersion": "go1.26.8", "compiler": "gc",
            "platform": "linux/amd64"})),
        [root @ ("api" | "apis")] if aggregated => {
            let items: Vec<&Value> =
                groups.iter().filter(|group| group_name(group).is_empty() == (*root == "api")).collect();
            let list = json!({"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items});
            let mut response = Response::json(200, &list);
            response.content_type = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
            Ok(response)
        }
        ["api"] => ok(json!({"kind": "APIVersions", "versions": ["v1"],
            "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": "127.0.0.1:443"}]})),
        ["apis"] => {
            let named = groups.iter().filter(|group| !group_name(group).is_empty());
            ok(
                json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": named.map(plain_group).collect::<Vec<_>>()}),
            )
        }
        ["apis", name] => match find(name) {
            Some(group) => {
                let mut group = plain_group(group);
                group["kind"] = "APIGroup".into();
                group["apiVersion"] = "v1".into();
                ok(group)
            }
            None => unknown(),
        },
        ["api", "v1"] => match find("") {
            Some(group) => ok(resources(group, "v1", "v1")),
            None => unknown(),
        },
        ["apis", name, version] => match find(name) {
            Some(group) if versions(group).any(|known| known["version"] == *version) => {
                let mut list = resources(group, version, &format!("{name}/{version}"));
                list["apiVersion"] = "v1".into();
                ok(list)
            }
            Some(_) => Err(Failure::no_path()),
            None => unknown(),
        },
        _ => Ok(Response::plain(404, "404 page not found\n")),
    }
}

fn group_name(group: &Value) -> &str {
    group["metadata"]["name"].as_str().unwrap_or_default()
}

fn versions(group: &Value) -> impl Iterator<Item = &Value> {
    group["versions"].as_array().into_iter().flatten()
}

/// The groups as aggregated discovery has them.
fn groups(kinds: &Kinds) -> Vec<Value> {
    let mut groups: Vec<Value> = discovery().to_vec();
    let custom: Vec<&Kind> =
        kinds.iter().map(|kind| &**kind).filter(|kind| kind.custom().is_some()).collect();
    let mut names: Vec<&str> = custom.iter().map(|kind| &*kind.group).collect();
    names.dedup();
    for name in names {
        let of_group: Vec<&&Kind> = custom.iter().filter(|kind| kind.group == name).collect();
        let mut known: Vec<&str> = of_group.iter().map(|kind| &*kind.version).collect();
        known.sort_by_key(|version| std::cmp::Reverse(priority(version)));
        known.dedup();
        let versions = known.iter().map(|version| {
            let resources =
                of_group.iter().filter(|kind| kind.version == *version).map(|kind| resource(kind));
            json!({"version": version, "freshness": "Current", "resources": resources.collect::<Vec<_>>()})
        });
        groups.push(json!({"metadata": {"name": name, "creationTimestamp": null}, "versions": versions.collect::<Vec<_>>()}));
    }
    groups
}

/// A resource of a CRD.
fn resource(kind: &Kind) -> Value {
    let names = kind.custom().map(|custom| custom.names.clone()).unwrap_or_default();
    let response =
        |group: &str, version: &str, kind: &str| json!({"group": group, "version": version, "kind": kind});
    let own = response(&kind.group, &kind.version, &kind.kind);
    let mut entry = json!({"resource": kind.plural, "responseKind": own, "scope": if kind.namespaced { "Namespaced" } else { "Cluster" },
        "singularResource": names["singular"], "verbs": kind.verbs});
    for field in ["shortNames", "categories"] {
        if !names[field].is_null() {
            entry[field] = names[field].clone();
        }
    }
    let subresources: Vec<Value> = kind
        .subresources
        .iter()
        .map(|name| {
            let kind = if name == "scale" { response("autoscaling", "v1", "Scale") } else { own.clone() };
            json!({"subresource": name, "responseKind": kind, "verbs": ["get", "patch", "update"]})
        })
        .collect();
    if !subresources.is_empty() {
        entry["subresources"] = subresources.into();
    }
    entry
}

fn plain_group(group: &Value) -> Value {
    let name = group_name(group);
    let versions: Vec<Value> = versions(group)
        .map(|version| {
            let version = version["version"].as_str().unwrap_or_default();
            json!({"groupVersion": format!("{name}/{version}"), "version": version})
        })
        .collect();
    json!({"name": name, "preferredVersion": versions.first(), "versions": versions})
}

/// The resources of a version, with their subresources.
fn resources(group: &Value, version: &str, group_version: &str) -> Value {
    let mut list = Vec::new();
    let found = versions(group).find(|known| known["version"] == version);
    for resource in found.and_then(|version| version["resources"].as_array()).into_iter().flatten() {
        let namespaced = resource["scope"] == "Namespaced";
        let mut entry = Map::new();
        let mut put = |key: &str, value: Value| {
            if !value.is_null() {
                entry.insert(key.to_owned(), value);
            }
        };
        put("name", resource["resource"].clone());
        put("singularName", resource["singularResource"].clone());
        put("namespaced", namespaced.into());
        put("kind", resource["responseKind"]["kind"].clone());
        put("verbs", resource["verbs"].clone());
        put("shortNames", resource["shortNames"].clone());
        put("categories", resource["categories"].clone());
        let is_stored =
            resource["verbs"].as_array().is_some_and(|verbs| verbs.iter().any(|verb| verb == "watch"));
        if is_stored {
            put("storageVersionHash", hash(group_name(group), version, resource).into());
        }
        list.push(Value::Object(entry));
        for sub in resource["subresources"].as_array().into_iter().flatten() {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let name = format!("{}/{}", text(&resource["resource"]), text(&sub["subresource"]));
            let mut entry = json!({"name": name, "singularName": "", "namespaced": namespaced,
                "kind": sub["responseKind"]["kind"], "verbs": sub["verbs"]});
            for key in ["group", "version"] {
                let value = text(&sub["responseKind"][key]);
                if !value.is_empty()
                    && group_version
                        != format!(
                            "{}/{}",
                            text(&sub["responseKind"]["group"]),
                            text(&sub["responseKind"]["version"])
                        )
                {
                    entry[key] = value.into();
                }
            }
            list.push(entry);
        }
    }
    json!({"kind": "APIResourceList", "groupVersion": group_version, "resources": list})
}

/// The hash of the version in which objects are stored.
fn hash(group: &str, version: &str, resource: &Value) -> String {
    let kind = resource["responseKind"]["kind"].as_str().unwrap_or_default();
    // These kinds have an older version in which they are stored.
    let (group, version) = match (group, kind) {
        ("events.k8s.io", "Event") => ("", "v1"),
        ("autoscaling", "HorizontalPodAutoscaler") => ("autoscaling", "v2"),
        _ => (group, version),
    };
    STANDARD.encode(&Sha256::digest(format!("{group}/{version}/{kind}"))[..8])
}
