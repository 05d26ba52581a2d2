//! The account and the `ConfigMap` with the certificates of the server that each namespace gets.

use jiff::Timestamp;
use operetta_kube_model::facts::{ROOT_CA, key};
use serde_json::{Value, json};

use super::write::write_as;
use crate::admission::awaits_account;
use crate::model::{Context, User};
use crate::state::{Active, State};

/// Creates the default account of the namespace if a new pod needs it: kube-apiserver waits until it exists.
pub(crate) fn wait(state: &mut State, context: &Context<'_>, pod: &Value) {
    if awaits_account(state, context, pod) {
        give(state, [context.namespace()], context.at);
    }
}

/// Gives namespaces a `ServiceAccount` and the certificates of the server, as kube-controller-manager does.
pub(crate) fn give<'a>(state: &mut State, namespaces: impl IntoIterator<Item = &'a str>, now: Timestamp) {
    const AGENT: &str = "kube-controller-manager";
    const DESCRIPTION: &str = "kubernetes.io/description";
    if state.active == Active::Server {
        return;
    }
    let user = User::default();
    let data = json!({"ca.crt": state.root_ca});
    let text = format!("\"data\":{data}");
    for namespace in namespaces {
        if state.store.get("namespaces", &key("", namespace)).is_none_or(|found| found.is_deleting) {
            continue;
        }
        let path = format!("/api/v1/namespaces/{namespace}");
        if state.store.get("serviceaccounts", &key(namespace, "default")).is_none() {
            let account = json!({"metadata": {"name": "default"}});
            let _ = write_as(state, (AGENT, &user), &format!("{path}/serviceaccounts"), account, now);
        }
        let known = state.store.get("configmaps", &key(namespace, ROOT_CA)).cloned();
        if known.as_ref().is_some_and(|map| map.json.contains(&text) && map.json.contains(DESCRIPTION)) {
            continue;
        }
        let mut map = known.as_ref().map_or_else(|| json!({"metadata": {"name": ROOT_CA}}), |map| map.bare());
        map["data"] = data.clone();
        map["metadata"]["annotations"][DESCRIPTION] = "Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints such as the internal service IP or kubernetes.default.svc. No other usage is guaranteed across distributions of Kubernetes clusters.".into();
        let name = if known.is_some() { format!("/{ROOT_CA}") } else { String::new() };
        let _ = write_as(state, (AGENT, &user), &format!("{path}/configmaps{name}"), map, now);
    }
}
