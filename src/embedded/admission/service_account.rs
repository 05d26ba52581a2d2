//! `ServiceAccount`: a pod has an account that exists, the pull secrets of its account, and a token.

use std::sync::Arc;

use operetta_kube_model::facts::{ROOT_CA, items, key, text};
use serde_json::{Value, json};

use super::write::{Write, forbidden, is_new_pod, is_pod};
use crate::model::{Context, Outcome, Parsed};
use crate::state::{Active, State};
use crate::strategy::LIMITED;

const TOKEN_PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
const VOLUME_PREFIX: &str = "kube-api-access-";
/// The annotation of pods that a kubelet has read from a file.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// Whether the plugin is off, as envtest has it: without kube-controller-manager no namespace has an account.
fn is_off(state: &State) -> bool {
    state.active == Active::Server
}

pub(super) fn mutate(
    state: &mut State,
    context: &mut Context<'_>,
    pod: &mut Value,
    old: &Value,
) -> Outcome<()> {
    if is_off(state) || !is_new_pod(context, old) || is_mirror(pod) {
        return Ok(());
    }
    if text(&pod["spec"]["serviceAccountName"]).is_empty() {
        pod["spec"]["serviceAccountName"] = "default".into();
        pod["spec"]["serviceAccount"] = "default".into();
    }
    let account = account(state, context, pod)?;
    let account = &account.value;
    let names = ["name", "generateName"].map(|field| text(&pod["metadata"][field]));
    let name = names.into_iter().find(|name| !name.is_empty()).unwrap_or_default();
    let is_dry = context.query.is_dry_run()?;
    let suffix = state.suffix("volume", "pods", &key(context.namespace(), name), is_dry);
    let spec = &mut pod["spec"];
    let own = spec["automountServiceAccountToken"].as_bool();
    if own.or(account["automountServiceAccountToken"].as_bool()).unwrap_or(true) {
        mount_token(&suffix, spec);
    }
    let secrets = items(&account["imagePullSecrets"]);
    if items(&spec["imagePullSecrets"]).is_empty() && !secrets.is_empty() {
        spec["imagePullSecrets"] = secrets.iter().map(|secret| json!({"name": secret["name"]})).collect();
    }
    Ok(())
}

pub(super) fn validate(state: &mut State, context: &mut Context<'_>, write: &Write<'_>) -> Outcome<()> {
    if is_off(state) || !is_new_pod(context, write.old()) {
        return Ok(());
    }
    let pod = write.object();
    let spec = &pod["spec"];
    if is_mirror(pod) {
        let has_token = |volume: &Value| {
            items(&volume["projected"]["sources"])
                .iter()
                .any(|source| !source["serviceAccountToken"].is_null())
        };
        let why = if !text(&spec["serviceAccountName"]).is_empty() {
            "a mirror pod may not reference service accounts"
        } else if !secrets(spec).is_empty() || !items(&spec["imagePullSecrets"]).is_empty() {
            "a mirror pod may not reference secrets"
        } else if items(&spec["volumes"]).iter().any(has_token) {
            "a mirror pod may not use ServiceAccountToken volume projections"
        } else {
            return Ok(());
        };
        return Err(forbidden(context, pod, why));
    }
    let account = account(state, context, pod)?;
    let account = &account.value;
    let is_limited = text(&account["metadata"]["annotations"][LIMITED]);
    if !["1", "t", "T", "true", "TRUE", "True"].contains(&is_limited) {
        return Ok(());
    }
    let name = text(&account["metadata"]["name"]);
    let names = |list: &Value, wanted: &str| items(list).iter().any(|known| known["name"] == wanted);
    let other = secrets(spec).into_iter().find(|(_, secret)| !names(&account["secrets"], secret));
    if let Some((place, secret)) = other {
        let why = format!(
            "{place}secret.secretName=\"{secret}\" is not allowed because service account {name} does not reference that secret"
        );
        return Err(forbidden(context, pod, &why));
    }
    for (at, secret) in
        items(&spec["imagePullSecrets"]).iter().map(|secret| text(&secret["name"])).enumerate()
    {
        if !names(&account["imagePullSecrets"], secret) {
            let why = format!(
                "imagePullSecrets[{at}].name=\"{secret}\" is not allowed because service account {name} does not reference that imagePullSecret"
            );
            return Err(forbidden(context, pod, &why));
        }
    }
    Ok(())
}

fn is_mirror(pod: &Value) -> bool {
    !pod["metadata"]["annotations"][MIRROR].is_null()
}

/// Whether a new pod is to have the account that its namespace gets, and did not get yet: kube-apiserver waits for it.
pub(crate) fn awaits_account(state: &State, context: &Context<'_>, pod: &Value) -> bool {
    state.active == Active::All
        && is_pod(context)
        && !is_mirror(pod)
        && matches!(text(&pod["spec"]["serviceAccountName"]), "" | "default")
        && state.store.get("serviceaccounts", &key(context.namespace(), "default")).is_none()
}

/// The account of a pod.
fn account(state: &State, context: &Context<'_>, pod: &Value) -> Outcome<Arc<Parsed>> {
    let name = text(&pod["spec"]["serviceAccountName"]);
    let place = key(context.namespace(), name);
    let found = state.store.get("serviceaccounts", &place).map(|account| account.parsed());
    found.ok_or_else(|| {
        let why = format!("error looking up service account {place}: serviceaccount {name:?} not found");
        forbidden(context, pod, &why)
    })
}

/// Mounts a token in each container that has nothing at its path.
fn mount_token(suffix: &str, spec: &mut Value) {
    let mut names = items(&spec["volumes"]).iter().map(|volume| text(&volume["name"]));
    let known = names.find(|name| name.starts_with(VOLUME_PREFIX)).map(str::to_owned);
    let has_volume = known.is_some();
    let name = known.unwrap_or_else(|| format!("{VOLUME_PREFIX}{suffix}"));
    let mut is_used = false;
    for list in ["initContainers", "containers"] {
        for container in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            let mut mounts = items(&container["volumeMounts"]).to_vec();
            if mounts.iter().any(|mount| mount["mountPath"] == TOKEN_PATH) {
                continue;
            }
            mounts.push(json!({"name": name, "readOnly": true, "mountPath": TOKEN_PATH}));
            container["volumeMounts"] = mounts.into();
            is_used = true;
        }
    }
    if has_volume || !is_used {
        return;
    }
    let mut volumes = items(&spec["volumes"]).to_vec();
    volumes.push(json!({"name": name, "projected": {"defaultMode": 420, "sources": [
        {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
        {"configMap": {"name": ROOT_CA, "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}]}},
    ]}}));
    spec["volumes"] = volumes.into();
}

/// The Secrets that volumes and variables of a pod use, each with the beginning of the message about it.
fn secrets(spec: &Value) -> Vec<(String, &str)> {
    let volumes = items(&spec["volumes"]).iter();
    let mut found: Vec<(String, &str)> = volumes
        .filter_map(|volume| Some(("volume with ".to_owned(), volume["secret"]["secretName"].as_str()?)))
        .collect();
    for (list, what) in [("initContainers", "init container"), ("containers", "container")] {
        for container in items(&spec[list]) {
            let name = text(&container["name"]);
            for variable in items(&container["env"]) {
                if let Some(secret) = variable["valueFrom"]["secretKeyRef"]["name"].as_str() {
                    let variable = text(&variable["name"]);
                    found.push((format!("{what} {name} with envVar {variable} referencing "), secret));
                }
            }
            for source in items(&container["envFrom"]) {
                if let Some(secret) = source["secretRef"]["name"].as_str() {
                    found.push((format!("{what} {name} with envFrom referencing "), secret));
                }
            }
        }
    }
    found
}
