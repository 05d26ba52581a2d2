//! The stored revisions of a package.

use serde_json::Value;

use super::Failure;
use super::shared::refused;
use crate::cli::model::name_of;
use crate::cluster::Cluster;
use crate::manager::{load_revision, sources};
use crate::operators::PACKAGE;
use crate::package::Package;
use crate::package::store::{StoredRevision, objects};

/// A stored revision.
pub(super) struct Revision {
    pub name: String,
    pub version: String,
    pub created: String,
    /// The package in a registry that it is from.
    pub reference: Option<String>,
}

impl Revision {
    fn of(object: &Value) -> Self {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        Self {
            name: name_of(object).to_owned(),
            version: text(&object["spec"]["version"]),
            created: text(&object["metadata"]["creationTimestamp"]),
            reference: sources::provenance_of(object).map(|from| from.reference),
        }
    }
}

/// The `OperatorRevision`s of a package.
pub(super) async fn objects_of(cluster: &Cluster, package: &str) -> Result<Vec<Value>, Failure> {
    let listed = cluster.list(&objects::kind(), None, &format!("{PACKAGE}={package}")).await;
    listed.map_err(|error| refused("the OperatorRevisions cannot be listed", &error))
}

/// The revisions of a package, the newest last.
pub(super) async fn of(cluster: &Cluster, package: &str) -> Result<Vec<Revision>, Failure> {
    let mut found: Vec<Revision> = objects_of(cluster, package).await?.iter().map(Revision::of).collect();
    found.sort_by(|a, b| (&a.created, &a.name).cmp(&(&b.created, &b.name)));
    Ok(found)
}

/// The revision that a person means: its name, the start of its digest, or its version.
pub(super) fn find<'a>(all: &'a [Revision], package: &str, wanted: &str) -> Result<&'a Revision, String> {
    let prefix = format!("{package}-");
    let is_wanted = |revision: &&Revision| {
        let digest = revision.name.strip_prefix(&prefix);
        revision.name == wanted
            || revision.version == wanted
            || (wanted.len() >= 4 && digest.is_some_and(|digest| digest.starts_with(wanted)))
    };
    let found: Vec<&Revision> = all.iter().filter(is_wanted).collect();
    match found.as_slice() {
        [one] => Ok(one),
        [] if all.is_empty() => Err(format!("there is no stored revision of the package {package}")),
        [] => Err(format!(
            "the package {package} has no stored revision {wanted}; there are {}",
            shown(all.iter())
        )),
        several => Err(format!("{wanted} may be {}: give the name", shown(several.iter().copied()))),
    }
}

fn shown<'a>(revisions: impl Iterator<Item = &'a Revision>) -> String {
    let each = revisions.map(|revision| format!("{} ({})", revision.name, revision.version));
    each.collect::<Vec<_>>().join(", ")
}

/// The active package of an `Operator`, if one is active.
///
/// # Errors
/// Why it cannot be loaded.
pub(super) async fn active(cluster: &Cluster, operator: &Value) -> Result<Option<Package>, String> {
    let Some(name) = operator["status"]["activeRevision"].as_str() else { return Ok(None) };
    let live = cluster.get(&objects::kind(), None, name).await.map_err(|error| error.to_string())?;
    let live = live.ok_or_else(|| format!("there is no OperatorRevision {name}"))?;
    let stored = StoredRevision::parse(name, &live["spec"]).map_err(|error| error.to_string())?;
    let namespace = live["metadata"]["labels"][objects::PARTS_NAMESPACE].as_str().unwrap_or_default();
    let packages = [stored.package.as_str().into()];
    let loaded = load_revision(cluster, namespace, &packages, &stored.revision()).await;
    loaded.map(Some).map_err(|(why, _)| why)
}

/// Whether a stored revision is whole: its parts are there, and are what was stored.
pub(super) async fn is_whole(cluster: &Cluster, object: &Value, namespace: &str) -> Result<bool, Failure> {
    let Ok(stored) = StoredRevision::parse(name_of(object), &object["spec"]) else { return Ok(false) };
    let kind = crate::api::ApiKind::built_in("v1", "ConfigMap");
    let mut parts = Vec::new();
    for part in &stored.parts {
        let live = cluster.get(&kind, Some(namespace), &part.name).await;
        let live = live.map_err(|error| refused(&format!("ConfigMap {namespace}/{}", part.name), &error))?;
        match live.as_ref().map(objects::part_data) {
            Some(Ok(data)) => parts.push(data),
            _ => return Ok(false),
        }
    }
    Ok(crate::package::store::unpack(&stored, &parts).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_revision_is_found_by_name_digest_or_version() {
        let revision = |name: &str, version: &str| Revision {
            name: name.to_owned(),
            version: version.to_owned(),
            created: String::new(),
            reference: None,
        };
        let all = [
            revision("a-0123456789", "1.0.0"),
            revision("a-0123999999", "1.1.0"),
            revision("a-aaaaaaaaaa", "1.1.0"),
        ];
        for (wanted, expected) in [
            ("a-0123456789", Ok("a-0123456789")),
            ("01234", Ok("a-0123456789")),
            ("1.0.0", Ok("a-0123456789")),
            ("aaaa", Ok("a-aaaaaaaaaa")),
            ("012", Err("no stored revision 012; there are a-0123456789 (1.0.0), ")),
            ("0123", Err("0123 may be a-0123456789 (1.0.0), a-0123999999 (1.1.0): give the name")),
            ("1.1.0", Err("1.1.0 may be ")),
        ] {
            match (find(&all, "a", wanted).map(|found| found.name.as_str()), expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found, expected),
                (Err(found), Err(expected)) => assert!(found.contains(expected), "{found}"),
                (found, _) => panic!("{wanted}: {found:?}"),
            }
        }
        assert!(find(&[], "a", "x").is_err());
    }
}
