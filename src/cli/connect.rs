//! Connects to the API server of the kubeconfig, and explains failures. A kubeconfig contains credentials, so messages
//! show only names of contexts and the server's address.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::api::{ApiKind, CallError};
use crate::cluster::{Cluster, ConnectOptions};
use crate::diag::Source;
use crate::yaml;

/// The help of errors about a missing API server.
const HELP: &str =
    "help: set KUBECONFIG to the kubeconfig of a cluster, or use `operetta dev`, which starts its own";

/// The options of kubectl that select a cluster.
#[derive(Debug, Clone, Default, clap::Args)]
pub(super) struct ClusterOptions {
    /// The kubeconfig, instead of KUBECONFIG and ~/.kube/config
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,

    /// The kubeconfig's context, instead of its current one
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
}

/// A reachable API server.
pub(super) struct Server {
    pub cluster: Cluster,
    pub config: kube::Config,
    /// The kubeconfig's current context, or `in-cluster`.
    pub context: String,
    pub address: String,
    /// `1.36`.
    pub version: String,
}

/// The context of a pod that uses its own API server.
const IN_CLUSTER: &str = "in-cluster";

impl Server {
    /// The namespace of the context, or `default`, like kubectl.
    pub(super) fn current_namespace(&self) -> &str {
        &self.config.default_namespace
    }

    /// The namespace of the pod of this process; outside a pod the default.
    pub(super) fn namespace(&self, default: &str) -> String {
        if self.context == IN_CLUSTER { self.config.default_namespace.clone() } else { default.to_owned() }
    }
}

/// Connects to the API server of KUBECONFIG, `~/.kube/config` or the pod's service account.
///
/// # Errors
///
/// The problem and its solution, for people.
pub(super) async fn connect() -> Result<Server, String> {
    connect_to(&ClusterOptions::default(), &ConnectOptions::default()).await
}

/// Connects with client options.
///
/// # Errors
///
/// The problem and its solution, for people.
pub(super) async fn connect_with(options: &ConnectOptions) -> Result<Server, String> {
    connect_to(&ClusterOptions::default(), options).await
}

/// Connects to the selected cluster.
///
/// # Errors
///
/// The problem and its solution, for people.
pub(super) async fn connect_in(place: &ClusterOptions) -> Result<Server, String> {
    connect_to(place, &ConnectOptions::default()).await
}

async fn connect_to(place: &ClusterOptions, options: &ConnectOptions) -> Result<Server, String> {
    let Some((config, context)) = configuration(place).await else {
        return Err(files(place).iter().find_map(|file| wrong(file, place)).unwrap_or_else(|| {
            let files: Vec<String> = files(place).iter().map(|file| file.display().to_string()).collect();
            format!("{} cannot be used: it is not the text of a kubeconfig\n  {HELP}", files.join(", "))
        }));
    };
    let address = config.cluster_url.to_string();
    let cluster = Cluster::of_config(&config, options).map_err(|error| error.to_string())?;
    let version = cluster.version().await.map_err(|error| refused(&error, &address, &context))?;
    Ok(Server { cluster, config, context, address, version })
}

/// The name with which the API server authenticates the user of this connection.
///
/// # Errors
///
/// For people, if the API server does not say it.
pub(super) async fn user(cluster: &Cluster) -> Result<String, String> {
    let kind = ApiKind::built_in("authentication.k8s.io/v1", "SelfSubjectReview");
    let unknown = "the API server does not say which user this is";
    let answer = cluster.review(&kind, &json!({"apiVersion": kind.api_version(), "kind": kind.kind})).await;
    let answer = answer.map_err(|error| format!("{unknown}: {error}"))?;
    answer["status"]["userInfo"]["username"].as_str().map(str::to_owned).ok_or_else(|| unknown.to_owned())
}

/// The configuration, and the name of its context. The pod's service account is used only if no option selects a
/// cluster.
async fn configuration(place: &ClusterOptions) -> Option<(kube::Config, String)> {
    let read = |file: &PathBuf| kube::config::Kubeconfig::read_from(file);
    let kubeconfig = place.kubeconfig.as_ref().map_or_else(kube::config::Kubeconfig::read, read).ok();
    let current = kubeconfig.as_ref().and_then(|file| file.current_context.clone());
    let context = place.context.clone().or(current).unwrap_or_else(|| IN_CLUSTER.to_owned());
    let config = if place.kubeconfig.is_none() && place.context.is_none() {
        kube::Config::infer().await.ok()?
    } else {
        let options =
            kube::config::KubeConfigOptions { context: place.context.clone(), ..Default::default() };
        kube::Config::from_custom_kubeconfig(kubeconfig?, &options).await.ok()?
    };
    Some((config, context))
}

/// The kubeconfig files in use.
fn files(place: &ClusterOptions) -> Vec<PathBuf> {
    if let Some(file) = &place.kubeconfig {
        return vec![file.clone()];
    }
    match std::env::var_os("KUBECONFIG").filter(|paths| !paths.is_empty()) {
        Some(paths) => std::env::split_paths(&paths).filter(|path| !path.as_os_str().is_empty()).collect(),
        None => std::env::home_dir().map(|home| home.join(".kube/config")).into_iter().collect(),
    }
}

/// The problem of a kubeconfig.
fn wrong(file: &Path, place: &ClusterOptions) -> Option<String> {
    let shown = file.display().to_string();
    let text = match std::fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let named = match (&place.kubeconfig, std::env::var_os("KUBECONFIG")) {
                (Some(_), _) => Some("--kubeconfig"),
                (None, named) => named.filter(|paths| !paths.is_empty()).map(|_| "KUBECONFIG"),
            };
            return Some(match named {
                Some(by) => format!("{by} names {shown}, and there is no such file\n  {HELP}"),
                None => format!(
                    "no API server is configured: KUBECONFIG is not set, there is no {shown}, and this is not a \
                     pod\n  {HELP}"
                ),
            });
        }
        Err(error) => return Some(format!("the kubeconfig {shown} cannot be read: {error}")),
    };
    let documents = match yaml::parse(&Source::new(shown.as_str(), text), &yaml::Options::default()) {
        Ok(documents) => documents,
        // Without the excerpt, which may contain a token.
        Err(error) => {
            let place = error.location.map_or_else(|| shown.clone(), |place| place.to_string());
            return Some(format!("{place}: the kubeconfig is not YAML: {}", error.message));
        }
    };
    let object = documents.first().map(yaml::Node::to_json).unwrap_or_default();
    let contexts: Vec<&str> =
        object["contexts"].as_array().into_iter().flatten().filter_map(|c| c["name"].as_str()).collect();
    let names = contexts.join(", ");
    let choose = format!("help: choose one of {names}: kubectl config use-context NAME");
    let current = object.get("current-context").and_then(Value::as_str).filter(|name| !name.is_empty());
    match (place.context.as_deref(), current) {
        _ if contexts.is_empty() => Some(format!("the kubeconfig {shown} has no contexts\n  {HELP}")),
        (Some(named), _) if !contexts.contains(&named) => {
            Some(format!("the kubeconfig {shown} has no context {named}\n  help: it has {names}"))
        }
        (None, None) => Some(format!("the kubeconfig {shown} has no current-context\n  {choose}")),
        (None, Some(current)) if !contexts.contains(&current) => {
            Some(format!("the kubeconfig {shown} has no context {current}, its current-context\n  {choose}"))
        }
        _ => None,
    }
}

/// Why the first request failed.
fn refused(error: &CallError, address: &str, context: &str) -> String {
    let of = format!("the API server {address} (context {context})");
    match error.code {
        0 => {
            // These prefixes of the libraries do not help people.
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
        401 => format!("{of} refuses the credentials of the kubeconfig: {error}\n  help: log in again"),
        403 => format!("{of} does not let this user in: {error}"),
        _ => format!("{of} cannot be used: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kubeconfig_errors_contain_no_credentials() {
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
            let told = wrong(&path, &ClusterOptions::default()).unwrap();
            assert!(told.contains(words) && !told.contains("hunter2"), "{text}: {told}");
        }
        std::fs::write(&path, format!("{contexts}current-context: a\n")).unwrap();
        let place = |context: &str| ClusterOptions {
            kubeconfig: Some(path.clone()),
            context: Some(context.to_owned()),
        };
        assert_eq!(wrong(&path, &ClusterOptions::default()), None);
        assert_eq!(wrong(&path, &place("a")), None);
        assert!(wrong(&path, &place("b")).unwrap().contains("has no context b\n  help: it has a"));
        std::fs::remove_file(&path).unwrap();
        assert!(wrong(&path, &ClusterOptions::default()).unwrap().contains("kubeconfig"));
        assert!(wrong(&path, &place("a")).unwrap().starts_with("--kubeconfig names"));
    }
}
