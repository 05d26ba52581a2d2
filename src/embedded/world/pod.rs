//! The facts about a pod that a world reads: its owner, its environment variables, and the owners of its data.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use operetta_kube_model::facts::{controller, items};
use serde_json::{Map, Value, json};

use super::programs::Objects;

/// Labels that Operetta sets on what belongs to an instance.
const KIND: &str = "operetta.dev/kind";
const INSTANCE: &str = "operetta.dev/instance";
const INSTANCE_NAMESPACE: &str = "operetta.dev/instance-namespace";

/// The most owners that are followed.
const MOST_OWNERS: usize = 16;

/// The apiVersions of kinds, by `Kind.group`; an empty one if no CRD has the kind.
pub(super) type Kinds = BTreeMap<String, String>;

/// The text at a path of keys, or an empty one.
fn text<'v>(value: &'v Value, path: &[&str]) -> &'v str {
    path.iter().fold(value, |value, key| &value[*key]).as_str().unwrap_or_default()
}

/// The instance that a pod belongs to; otherwise its topmost owner, or the pod.
pub(super) fn owner(pod: &Value, objects: &dyn Objects, kinds: &mut Kinds) -> Value {
    let mut object = pod.clone();
    for _ in 0..MOST_OWNERS {
        if let Some(instance) = instance(&object, objects, kinds) {
            return instance;
        }
        let first = items(&object["metadata"]["ownerReferences"]).first();
        let Some(reference) = controller(&object).or(first) else { break };
        let (version, kind) = (text(reference, &["apiVersion"]), text(reference, &["kind"]));
        let namespace = text(&object, &["metadata", "namespace"]).to_owned();
        let find = |namespace| {
            let found = objects.object(version, kind, namespace, text(reference, &["name"]));
            found.filter(|found| found["metadata"]["uid"] == reference["uid"])
        };
        let Some(found) = find(&namespace).or_else(|| find("")) else {
            return json!({"apiVersion": version, "kind": kind,
                "metadata": {"name": reference["name"], "namespace": namespace, "uid": reference["uid"]}});
        };
        object = found;
    }
    object
}

/// The instance that labels name. An instance that is gone has only its name.
fn instance(object: &Value, objects: &dyn Objects, kinds: &mut Kinds) -> Option<Value> {
    let labels = &object["metadata"]["labels"];
    let (kind, name) = (labels[KIND].as_str()?, labels[INSTANCE].as_str()?);
    let namespace = labels[INSTANCE_NAMESPACE].as_str();
    let namespace = namespace.unwrap_or_else(|| text(object, &["metadata", "namespace"]));
    let version = kinds.entry(kind.to_owned()).or_insert_with(|| api_version(kind, objects)).clone();
    let kind = kind.split_once('.').map_or(kind, |(kind, _)| kind);
    objects.object(&version, kind, namespace, name).or_else(|| {
        let metadata = json!({"name": name, "namespace": namespace});
        Some(json!({"apiVersion": version, "kind": kind, "metadata": metadata}))
    })
}

/// The apiVersion in which a CRD stores a kind, which is given as `Kind.group`.
fn api_version(label: &str, objects: &dyn Objects) -> String {
    let Some((kind, group)) = label.split_once('.') else { return String::new() };
    let definitions = objects.objects("apiextensions.k8s.io/v1", "CustomResourceDefinition", "");
    let is_it = |definition: &&Value| {
        let spec = &definition["spec"];
        text(spec, &["group"]) == group && text(spec, &["names", "kind"]) == kind
    };
    let versions = definitions.iter().find(is_it).map(|definition| &definition["spec"]["versions"]);
    let mut versions = versions.and_then(Value::as_array).into_iter().flatten();
    let stored = versions.find(|version| version["storage"] == true);
    stored.map_or_else(String::new, |version| format!("{group}/{}", text(version, &["name"])))
}

/// The key of the state of an owner's pods.
pub(super) fn key(owner: &Value) -> String {
    let metadata = &owner["metadata"];
    let [namespace, name, uid] = ["namespace", "name", "uid"].map(|key| text(metadata, &[key]));
    format!("{} {namespace}/{name} {uid}", text(owner, &["kind"]))
}

fn containers(pod: &Value) -> impl Iterator<Item = &Value> {
    let lists = ["containers", "initContainers"].map(|list| pod["spec"][list].as_array());
    lists.into_iter().flatten().flatten()
}

/// The environment of all containers together; the first container that sets a variable decides.
pub(super) fn env(pod: &Value, objects: &dyn Objects) -> Map<String, Value> {
    let mut env = Map::new();
    for container in containers(pod) {
        let mut own = Map::new();
        for source in container["envFrom"].as_array().into_iter().flatten() {
            let data =
                [("ConfigMap", "configMapRef"), ("Secret", "secretRef")].iter().find_map(|(kind, key)| {
                    let name = source[*key]["name"].as_str()?;
                    Some(data(pod, kind, name, objects))
                });
            let prefix = text(source, &["prefix"]);
            own.extend(
                data.unwrap_or_default().into_iter().map(|(name, value)| (format!("{prefix}{name}"), value)),
            );
        }
        for variable in container["env"].as_array().into_iter().flatten() {
            let from = &variable["valueFrom"];
            let value = match variable.get("value") {
                Some(value) => value.clone(),
                None => referenced(pod, from, objects).unwrap_or_default(),
            };
            own.insert(text(variable, &["name"]).to_owned(), value);
        }
        for (name, value) in own {
            env.entry(name).or_insert(value);
        }
    }
    env
}

/// The value of a variable that comes from elsewhere.
fn referenced(pod: &Value, from: &Value, objects: &dyn Objects) -> Option<Value> {
    if let Some(path) = from["fieldRef"]["fieldPath"].as_str() {
        let pointer = match path.strip_suffix("']").and_then(|path| path.split_once("['")) {
            Some((map, key)) => format!("/{}/{}", map.replace('.', "/"), key.replace('/', "~1")),
            None => format!("/{}", path.replace('.', "/")),
        };
        return pod.pointer(&pointer).cloned();
    }
    let (kind, reference) = [("ConfigMap", "configMapKeyRef"), ("Secret", "secretKeyRef")]
        .into_iter()
        .find_map(|(kind, key)| Some((kind, from.get(key)?)))?;
    data(pod, kind, text(reference, &["name"]), objects).remove(text(reference, &["key"]))
}

/// The data of a `ConfigMap` or of a Secret.
fn data(pod: &Value, kind: &str, name: &str, objects: &dyn Objects) -> Map<String, Value> {
    let object = objects.object("v1", kind, text(pod, &["metadata", "namespace"]), name).unwrap_or_default();
    let data = object["data"].as_object().cloned().unwrap_or_default();
    if kind == "ConfigMap" {
        return data;
    }
    let decode = |value: Value| {
        let bytes = STANDARD.decode(value.as_str().unwrap_or_default()).unwrap_or_default();
        Value::from(String::from_utf8_lossy(&bytes).into_owned())
    };
    data.into_iter().map(|(name, value)| (name, decode(value))).collect()
}

/// The uid of the owner of the data at each path at which a container mounts a volume: of the claim, null if it is gone; for other
/// volumes of the pod, because they begin with it.
pub(super) fn disks(pod: &Value, objects: &dyn Objects) -> Map<String, Value> {
    let volumes = pod["spec"]["volumes"].as_array().map_or(&[][..], Vec::as_slice);
    let mounts =
        containers(pod).flat_map(|container| container["volumeMounts"].as_array().into_iter().flatten());
    let found = mounts.map(|mount| {
        let volume = volumes.iter().find(|volume| volume["name"] == mount["name"]);
        let claim = volume.and_then(|volume| volume["persistentVolumeClaim"]["claimName"].as_str());
        let uid = match claim {
            None => pod["metadata"]["uid"].clone(),
            Some(claim) => {
                let namespace = text(pod, &["metadata", "namespace"]);
                let claim = objects.object("v1", "PersistentVolumeClaim", namespace, claim);
                claim.map_or(Value::Null, |claim| claim["metadata"]["uid"].clone())
            }
        };
        (text(mount, &["mountPath"]).to_owned(), uid)
    });
    found.collect()
}
