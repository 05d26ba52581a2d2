//! The API server of the kubeconfig, and words for what keeps people from it. A kubeconfig holds credentials:
//! nothing of it is shown but names of contexts and the server's address.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::cluster::{CallError, Cluster, ConnectOptions};
use crate::diag::Source;
use crate::yaml;

/// What to do without an API server.
const HELP: &str =
    "help: set KUBECONFIG to the kubeconfig of a cluster, or try `operetta dev`, which brings its own";

/// An API server that answers.
pub(super) struct Server {
    pub cluster: Cluster,
    pub config: kube::Config,
    /// The kubeconfig's current context, or `in-cluster`.
    pub context: String,
    pub address: String,
    /// `1.36`.
    pub version: String,
}

/// The context of a pod that speaks with its own API server.
const IN_CLUSTER: &str = "in-cluster";

impl Server {
    /// The namespace of the pod that this process runs in; elsewhere the default.
    pub(super) fn namespace(&self, default: &str) -> String {
        if self.context == IN_CLUSTER { self.config.default_namespace.clone() } else { default.to_owned() }
    }
}

/// Connects to the API server that KUBECONFIG, `~/.kube/config` or the pod's service account names.
///
/// # Errors
/// What is wrong and what to do, for people.
pub(super) async fn connect() -> Result<Server, String> {
    connect_with(&ConnectOptions::default()).await
}

/// The same, with options.
///
/// # Errors
/// What is wrong and what to do, for people.
pub(super) async fn connect_with(options: &ConnectOptions) -> Result<Server, String> {
    let Ok(config) = kube::Config::infer().await else {
        return Err(files().iter().find_map(|file| wrong(file)).unwrap_or_else(|| {
            let files: Vec<String> = files().iter().map(|file| file.display().to_string()).collect();
            format!("{} cannot be used: it is not the text of a kubeconfig\n  {HELP}", files.join(", "))
        }));
    };
    let address = config.cluster_url.to_string();
    let context = kube::config::Kubeconfig::read().ok().and_then(|file| file.current_context);
    let context = context.unwrap_or_else(|| IN_CLUSTER.to_owned());
    let cluster = Cluster::of_config(&config, options).map_err(|error| error.to_string())?;
    let version = cluster.version().await.map_err(|error| refused(&error, &address, &context))?;
    Ok(Server { cluster, config, context, address, version })
}

/// The kubeconfigs that count.
fn files() -> Vec<PathBuf> {
    match std::env::var_os("KUBECONFIG").filter(|paths| !paths.is_empty()) {
        Some(paths) => std::env::split_paths(&paths).filter(|path| !path.as_os_str().is_empty()).collect(),
        None => std::env::home_dir().map(|home| home.join(".kube/config")).into_iter().collect(),
    }
}

/// What is wrong with a kubeconfig.
fn wrong(file: &Path) -> Option<String> {
    let shown = file.display().to_string();
    let text = match std::fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let named = std::env::var_os("KUBECONFIG").is_some();
            return Some(if named {
                format!("KUBECONFIG names {shown}, and there is no such file\n  {HELP}")
            } else {
                format!(
                    "no API server is configured: KUBECONFIG is not set, there is no {shown}, and this is not a \
                     pod\n  {HELP}"
                )
            });
        }
        Err(error) => return Some(format!("the kubeconfig {shown} cannot be read: {error}")),
    };
    let documents = match yaml::parse(&Source::new(shown.as_str(), text), &yaml::Options::default()) {
        Ok(documents) => documents,
        // Without the excerpt, which might show a token.
        Err(error) => {
            let place = error.location.map_or_else(|| shown.clone(), |place| place.to_string());
            return Some(format!("{place}: the kubeconfig is not YAML: {}", error.message));
        }
    };
    let object = documents.first().map(yaml::Node::to_json).unwrap_or_default();
    let contexts: Vec<&str> =
        object["contexts"].as_array().into_iter().flatten().filter_map(|c| c["name"].as_str()).collect();
    let choose = format!("help: choose one of {}: kubectl config use-context NAME", contexts.join(", "));
    match object.get("current-context").and_then(Value::as_str).filter(|context| !context.is_empty()) {
        _ if contexts.is_empty() => Some(format!("the kubeconfig {shown} has no contexts\n  {HELP}")),
        None => Some(format!("the kubeconfig {shown} has no current-context\n  {choose}")),
        Some(current) if !contexts.contains(&current) => {
            Some(format!("the kubeconfig {shown} has no context {current}, its current-context\n  {choose}"))
        }
        Some(_) => None,
    }
}

/// Why the first question was not answered.
fn refused(error: &CallError, address: &str, context: &str) -> String {
    let of = format!("the API server {address} (context {context})");
    match error.code {
        0 => {
            // What the libraries put before it says nothing to people.
            let reason = error.to_string();
            let reason = ["tcp connect error: ", "client error (Connect): ", "ServiceError: "]
                .iter()
                .find_map(|mark| reason.split_once(mark).map(|(_, rest)| rest))
                .unwrap_or(&reason);
            format!(
                "{of} cannot be reached: {reason}\n  help: is it running, and is KUBECONFIG right? `operetta dev` \
                 brings its own"
            )
        }
        401 => format!("{of} refuses the credentials of the kubeconfig: {error}\n  help: log in anew"),
        403 => format!("{of} does not let this user in: {error}"),
        _ => format!("{of} cannot be used: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_with_a_kubeconfig_is_told_without_its_secrets() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kubeconfig");
        let contexts = "contexts: [{name: a, context: {cluster: a, user: a}}]\n";
        for (text, words) in [
            ("users: [{name: a, user: {token: hunter2}},\n".to_owned(), "kubeconfig:1:"),
            ("token: hunter2\n".to_owned(), "no contexts"),
            (contexts.to_owned(), "no current-context\n  help: choose one of a"),
            (format!("{contexts}current-context: b\n"), "has no context b"),
        ] {
            std::fs::write(&path, &text).unwrap();
            let told = wrong(&path).unwrap();
            assert!(told.contains(words) && !told.contains("hunter2"), "{text}: {told}");
        }
        std::fs::write(&path, format!("{contexts}current-context: a\n")).unwrap();
        assert_eq!(wrong(&path), None);
        std::fs::remove_file(&path).unwrap();
        assert!(wrong(&path).unwrap().contains("kubeconfig"));
    }
}
