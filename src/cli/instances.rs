//! Reads manifests from files and applies them, for `dev --apply`.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use crate::api::{ApiKind, Class, Gvk};
use crate::cluster::{Cluster, Kinds};
use crate::diag::{Diagnostic, Source, Span};
use crate::{package, yaml};

/// A manifest with its location.
pub(super) struct Manifest {
    pub source: Arc<Source>,
    pub span: Span,
    pub object: Value,
}

/// An object that was applied.
pub(super) struct Applied {
    pub kind: Arc<ApiKind>,
    pub namespace: Option<String>,
    pub name: String,
}

/// Maximum size of a file of manifests, in bytes.
const FILE: u64 = 8 << 20;

/// Reads all documents of all files that the user has named beside packages.
///
/// # Errors
///
/// All errors of all files.
pub(super) fn read(
    packages: &[impl AsRef<Path>],
    files: &[PathBuf],
) -> Result<Vec<Manifest>, Vec<Diagnostic>> {
    let (mut manifests, mut errors) = (Vec::new(), Vec::new());
    for file in files {
        match read_file(packages, file) {
            Ok(more) => manifests.extend(more),
            Err(more) => errors.extend(more),
        }
    }
    if errors.is_empty() { Ok(manifests) } else { Err(errors) }
}

fn read_file(packages: &[impl AsRef<Path>], file: &Path) -> Result<Vec<Manifest>, Vec<Diagnostic>> {
    let shown = file.display().to_string();
    let text = package::read_named(packages, file, FILE).map_err(|why| {
        let error = Diagnostic::error("manifest::unreadable", format!("{shown} cannot be read: {why}"));
        vec![error.help("use files of manifests: --apply FILE...")]
    })?;
    parse(&Source::new(shown, text))
}

/// The documents of a file.
///
/// # Errors
///
/// All errors in it.
pub(super) fn parse(source: &Arc<Source>) -> Result<Vec<Manifest>, Vec<Diagnostic>> {
    let documents = yaml::parse(source, &yaml::Options::default()).map_err(|e| vec![e])?;
    let (mut manifests, mut errors) = (Vec::new(), Vec::new());
    for document in documents.iter().filter(|d| !d.is_null()) {
        let object = document.to_json();
        let missing: Vec<&str> = [
            ("apiVersion", &object["apiVersion"]),
            ("kind", &object["kind"]),
            ("metadata.name", &object["metadata"]["name"]),
        ]
        .into_iter()
        .filter(|(_, value)| value.as_str().is_none_or(str::is_empty))
        .map(|(name, _)| name)
        .collect();
        if missing.is_empty() {
            manifests.push(Manifest { source: Arc::clone(source), span: document.span, object });
        } else {
            errors.push(
                Diagnostic::error(
                    "manifest::incomplete",
                    format!("a manifest needs {} as a string", missing.join(", ")),
                )
                .help("YAML reads y, no, on and 12 as other types: quote them")
                .at(source, document.span),
            );
        }
    }
    if errors.is_empty() { Ok(manifests) } else { Err(errors) }
}

/// Applies manifests like `kubectl apply --server-side`, in the namespace that they name or `default`. Waits a short
/// time for newly registered kinds. Also returns those that could not be applied, each with the reason at the
/// manifest's location.
pub(super) async fn apply(
    cluster: &Cluster,
    manifests: Vec<Manifest>,
) -> (Vec<Applied>, Vec<(Manifest, Diagnostic)>) {
    let kinds = Kinds::default();
    let (mut applied, mut refused) = (Vec::new(), Vec::new());
    for manifest in manifests {
        match apply_one(cluster, &kinds, &manifest).await {
            Ok(one) => applied.push(one),
            Err(error) => {
                let error = error.at(&manifest.source, manifest.span);
                refused.push((manifest, error));
            }
        }
    }
    (applied, refused)
}

async fn apply_one(cluster: &Cluster, kinds: &Kinds, manifest: &Manifest) -> Result<Applied, Diagnostic> {
    let mut object = manifest.object.clone();
    let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
    let (api_version, kind_name, name) =
        (text(&object["apiVersion"]), text(&object["kind"]), text(&object["metadata"]["name"]));
    let mut attempts = 0;
    loop {
        attempts += 1;
        let found = kinds.find(cluster, &Gvk::new(&*api_version, &*kind_name)).await;
        let refused = match found {
            Ok(Some(kind)) => {
                let namespace = kind.namespaced.then(|| match object["metadata"]["namespace"].as_str() {
                    Some(namespace) => namespace.to_owned(),
                    None => "default".to_owned(),
                });
                if let Some(namespace) = &namespace {
                    object["metadata"]["namespace"] = namespace.as_str().into();
                }
                match cluster.apply(&kind, &object, "operetta-dev", true).await {
                    Ok(_) => return Ok(Applied { kind, namespace, name }),
                    Err(error) if error.class == Class::Permanent || attempts > 20 => {
                        return Err(Diagnostic::error(
                            "manifest::refused",
                            format!("the API server refuses {kind_name} {name}: {error}"),
                        ));
                    }
                    Err(_) => None,
                }
            }
            Ok(None) => Some(
                Diagnostic::error(
                    "manifest::no-kind",
                    format!("the API server does not serve {kind_name} of {api_version}"),
                )
                .help("is it a kind of one of the packages given?"),
            ),
            Err(error) => Some(Diagnostic::error("manifest::discovery", error.to_string())),
        };
        if let (Some(refused), true) = (refused, attempts > 20) {
            return Err(refused);
        }
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
}
