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

/// Which cluster, in kubectl's words.
#[derive(Debug, Clone, Default, clap::Args)]
pub(super) struct Place {
    /// The kubeconfig, instead of KUBECONFIG and ~/.kube/config
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,

    /// The kubeconfig's context, instead of its current one
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
}

impl Place {
    /// As it was given, for a command that people are to give next.
    pub(super) fn flags(&self) -> String {
        let file = self.kubeconfig.as_ref().map(|file| format!(" --kubeconfig {}", file.display()));
        let context = self.context.as_ref().map(|context| format!(" --context {context}"));
        [file, context].into_iter().flatten().collect()
    }
}

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
    /// The namespace that kubectl would take: that of the context, else `default`.
    pub(super) fn current_namespace(&self) -> &str {
        &self.config.default_namespace
    }

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
    connect_to(&Place::default(), &ConnectOptions::default()).await
}

/// The same, with options.
///
/// # Errors
/// What is wrong and what to do, for people.
pub(super) async fn connect_with(options: &ConnectOptions) -> Result<Server, String> {
    connect_to(&Place::default(), options).await
}

/// The same, in a place.
///
/// # Errors
/// What is wrong and what to do, for people.
pub(super) async fn connect_in(place: &Place) -> Result<Server, String> {
    connect_to(place, &ConnectOptions::default()).await
}

async fn connect_to(place: &Place, options: &ConnectOptions) -> Result<Server, String> {
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

/// The configuration, and the name of its context. Only who names no place may be in a pod.
async fn configuration(place: &Place) -> Option<(kube::Config, String)> {
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

/// The kubeconfigs that count.
fn files(place: &Place) -> Vec<PathBuf> {
    if let Some(file) = &place.kubeconfig {
        return vec![file.clone()];
    }
    match std::env::var_os("KUBECONFIG").filter(|paths| !paths.is_empty()) {
        Some(paths) => std::env::split_paths(&paths).filter(|path| !path.as_os_str().is_empty()).collect(),
        None => std::env::home_dir().map(|home| home.join(".kube/config")).into_iter().collect(),
    }
}

/// What is wrong with a kubeconfig.
fn wrong(file: &Path, place: &Place) -> Option<String> {
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
        // Without the excerpt, which might show a token.
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
            let told = wrong(&path, &Place::default()).unwrap();
            assert!(told.contains(words) && !told.contains("hunter2"), "{text}: {told}");
        }
        std::fs::write(&path, format!("{contexts}current-context: a\n")).unwrap();
        let place =
            |context: &str| Place { kubeconfig: Some(path.clone()), context: Some(context.to_owned()) };
        assert_eq!(wrong(&path, &Place::default()), None);
        assert_eq!(wrong(&path, &place("a")), None);
        assert!(wrong(&path, &place("b")).unwrap().contains("has no context b\n  help: it has a"));
        std::fs::remove_file(&path).unwrap();
        assert!(wrong(&path, &Place::default()).unwrap().contains("kubeconfig"));
        assert!(wrong(&path, &place("a")).unwrap().starts_with("--kubeconfig names"));
    }
}
