//! Locates the binaries of the control plane: in `KUBEBUILDER_ASSETS`, then in `PATH` if the version is
//! suitable, otherwise in the cache, where they are built once.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::build;
use super::error::Error;
use super::tools::{Environment, OnProgress, Tool, Version};

/// The located binaries.
#[derive(Debug, Clone, Default)]
pub(super) struct Binaries(BTreeMap<Tool, PathBuf>);

impl Binaries {
    /// Returns binaries that are built here; missing ones are built now.
    pub(super) async fn built(
        tools: &[Tool],
        environment: &Environment,
        progress: &OnProgress,
    ) -> Result<Self, Error> {
        Ok(Self(build::ensure(tools, environment, progress).await?))
    }

    /// The path of a located binary.
    pub(super) fn path(&self, tool: Tool) -> &Path {
        self.0.get(&tool).map_or_else(|| Path::new(tool.name()), PathBuf::as_path)
    }
}

impl Tool {
    /// The path of the binary in the cache, which is built if it is missing.
    ///
    /// # Errors
    /// Go is missing, or the build fails.
    pub async fn built(self, environment: &Environment, progress: &OnProgress) -> Result<PathBuf, Error> {
        let binaries = Binaries::built(&[self], environment, progress).await?;
        Ok(binaries.path(self).to_owned())
    }
}

/// Locates the binaries, and builds the missing ones.
pub(super) async fn locate(
    tools: &[Tool],
    environment: &Environment,
    progress: &OnProgress,
) -> Result<Binaries, Error> {
    let mut found = BTreeMap::new();
    for tool in tools {
        if let Some(path) = in_assets(*tool, environment).await? {
            found.insert(*tool, path);
        }
    }
    // Kubernetes' own binaries belong together: one from PATH is used only with an API server of the same
    // version.
    let mut of_path = BTreeMap::new();
    for tool in tools.iter().filter(|tool| !found.contains_key(tool)) {
        if let Some(fitting) = in_path(*tool, environment).await {
            of_path.insert(*tool, fitting);
        }
    }
    let set: Vec<_> = tools.iter().filter(|tool| tool.follows_apiserver()).collect();
    let whole = set.iter().all(|tool| of_path.contains_key(tool))
        && set.windows(2).all(|pair| of_path[pair[0]].1 == of_path[pair[1]].1);
    of_path.retain(|tool, _| whole || !tool.follows_apiserver());
    found.extend(of_path.into_iter().map(|(tool, (path, _))| (tool, path)));

    let missing: Vec<Tool> = tools.iter().copied().filter(|tool| !found.contains_key(tool)).collect();
    if !missing.is_empty() {
        found.extend(build::ensure(&missing, environment, progress).await?);
    }
    Ok(Binaries(found))
}

/// Checks the binary in `KUBEBUILDER_ASSETS`. The variable was set on purpose, so an unsuitable binary is an
/// error.
async fn in_assets(tool: Tool, environment: &Environment) -> Result<Option<PathBuf>, Error> {
    let Some(path) = environment.assets.as_ref().map(|folder| folder.join(tool.name())) else {
        return Ok(None);
    };
    if !path.exists() {
        return Ok(None);
    }
    match version(tool, &path).await {
        Ok(version) if version >= tool.oldest() => Ok(Some(path)),
        other => Err(Error::Assets {
            path,
            found: other.map_or_else(|what| what, |version| format!("version {version}")),
            needed: tool.oldest().to_string(),
        }),
    }
}

/// Checks the binary in `PATH`; `None` if its version is unsuitable.
async fn in_path(tool: Tool, environment: &Environment) -> Option<(PathBuf, Version)> {
    let path = environment.which(tool.name())?;
    let version = version(tool, &path).await.ok()?;
    (version >= tool.oldest()).then_some((path, version))
}

/// The timeout for printing a version.
const VERSION_TIMEOUT: Duration = Duration::from_secs(10);

/// The version of a binary, or the reason why it is unusable.
async fn version(tool: Tool, path: &Path) -> Result<Version, String> {
    let output = tokio::process::Command::new(path)
        .args(tool.version_args())
        // Without this, kubectl may ask a plugin or a cluster.
        .env("KUBECONFIG", "/dev/null")
        .stdin(std::process::Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = tokio::time::timeout(VERSION_TIMEOUT, output)
        .await
        .map_err(|_| "without an answer when asked for its version".to_owned())?
        .map_err(|error| format!("not to be run ({error})"))?;
    if !output.status.success() {
        return Err(format!("failing when asked for its version ({})", output.status));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    Version::find(&text).ok_or_else(|| "of an unknown version".to_owned())
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::sync::Arc;

    use super::*;

    #[test]
    fn versions_are_parsed_from_output() {
        let cases = [
            ("Kubernetes v1.36.3\n", Some(Version(1, 36))),
            ("Client Version: v1.32.4-dispatcher\nKustomize Version: v5.5.0\n", Some(Version(1, 32))),
            ("etcd Version: 3.6.8\nGit SHA: Not provided\n", Some(Version(3, 6))),
            ("kwok version v0.8.0 go1.26.8 (linux/amd64)\n", Some(Version(0, 8))),
            ("go version go1.26.8 linux/amd64", Some(Version(1, 26))),
            ("v2 beta 1.5", Some(Version(1, 5))),
            ("no version", None),
            ("", None),
        ];
        for (text, expected) in cases {
            assert_eq!(Version::find(text), expected, "{text:?}");
        }
    }

    /// Creates a script that prints a version. Another process writes it, because a program that another test
    /// starts would inherit the open file, and a file that is open for writing cannot be executed.
    fn fake(folder: &Path, name: &str, version: &str) {
        std::fs::create_dir_all(folder).unwrap();
        let status = std::process::Command::new("sh")
            .args(["-c", r#"printf '#!/bin/sh\necho %s\n' "$2" > "$1" && chmod 755 "$1""#, "sh"])
            .arg(folder.join(name))
            .arg(format!("'{version}'"))
            .status();
        assert!(status.unwrap().success());
    }

    fn quiet() -> OnProgress {
        Arc::new(|_| {})
    }

    #[tokio::test]
    async fn assets_precede_path_and_old_versions_are_skipped() {
        let root = tempfile::tempdir().unwrap();
        let (assets, path) = (root.path().join("assets"), root.path().join("path"));
        fake(&assets, "etcd", "3.6.8");
        fake(&path, "etcd", "3.6.9");
        fake(&path, "kubectl", "v1.32.4");
        fake(&path, "etcdctl", "3.4.0");
        let environment = Environment {
            assets: Some(assets.clone()),
            path: Some(path.clone().into()),
            cache: Some(root.path().join("cache")),
        };
        let found = locate(&[Tool::Etcd, Tool::Kubectl], &environment, &quiet()).await.unwrap();
        assert_eq!(found.path(Tool::Etcd), assets.join("etcd"));
        assert_eq!(found.path(Tool::Kubectl), path.join("kubectl"));
        // An etcdctl that is too old is ignored, and there is no Go to build one.
        let error = locate(&[Tool::Etcdctl], &environment, &quiet()).await.unwrap_err();
        assert!(matches!(error, Error::GoMissing { ref missing, .. } if *missing == ["etcdctl"]), "{error}");
    }

    #[tokio::test]
    async fn unsuitable_assets_are_an_error() {
        let root = tempfile::tempdir().unwrap();
        fake(root.path(), "kube-apiserver", "Kubernetes v1.25.0");
        let environment = Environment { assets: Some(root.path().into()), ..Environment::default() };
        let error = locate(&[Tool::KubeApiserver], &environment, &quiet()).await.unwrap_err().to_string();
        assert!(error.contains("kube-apiserver is version 1.25, and at least 1.30 is needed"), "{error}");
        assert!(error.contains("KUBEBUILDER_ASSETS"), "{error}");
    }

    #[tokio::test]
    async fn kubernetes_binaries_in_path_must_match_the_api_server() {
        let tools = [Tool::KubeApiserver, Tool::KubeScheduler];
        for (scheduler, together) in [(Some("v1.34.1"), true), (Some("v1.35.0"), false), (None, false)] {
            let root = tempfile::tempdir().unwrap();
            fake(root.path(), "kube-apiserver", "v1.34.0");
            if let Some(version) = scheduler {
                fake(root.path(), "kube-scheduler", version);
            }
            let environment = Environment {
                assets: None,
                path: Some(root.path().into()),
                cache: Some(root.path().join("cache")),
            };
            let result = locate(&tools, &environment, &quiet()).await;
            match result {
                Ok(found) => {
                    assert!(together, "{scheduler:?}");
                    assert!(found.path(Tool::KubeApiserver).starts_with(root.path()));
                }
                Err(Error::GoMissing { missing, .. }) => {
                    assert!(!together, "{scheduler:?}");
                    assert_eq!(missing, ["kube-apiserver", "kube-scheduler"]);
                }
                Err(error) => panic!("{error}"),
            }
        }
    }

    #[tokio::test]
    async fn missing_binaries_without_go_are_explained() {
        let root = tempfile::tempdir().unwrap();
        let environment =
            Environment { assets: None, path: Some(OsString::new()), cache: Some(root.path().join("cache")) };
        let error = locate(&Tool::CONTROL_PLANE, &environment, &quiet()).await.unwrap_err().to_string();
        for part in ["Go is needed", "kube-apiserver", "kwok", "https://go.dev/dl/", "KUBEBUILDER_ASSETS"] {
            assert!(error.contains(part), "{part} in {error}");
        }
    }
}
