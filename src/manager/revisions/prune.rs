//! Deletes stored revisions of a package that nothing uses.

use std::collections::HashSet;

use serde_json::Value;
use tracing::{info, warn};

use super::Revisions;
use crate::api::{ApiKind, CallError, Class};
use crate::children::names;
use crate::cluster::Query;
use crate::manager::bindings::delete_roles_of;
use crate::package::Package;
use crate::package::store::{self, objects};
use crate::plan::plan_run_kind;

/// How many of the newest revisions are kept besides the active one, used or not.
const KEPT: usize = 5;

impl Revisions {
    /// Deletes the revisions of a package that this manager has stored, but for the active one, the newest, those that an
    /// origin or a run names, and those to keep. Their roles are deleted before them, and their parts by the garbage collector.
    pub(in crate::manager) async fn prune(&self, package: &Package, keep: &[&str]) -> Result<(), CallError> {
        let cluster = self.effects.clients.own();
        let (of_package, of_manager) = (objects::PACKAGE, objects::PARTS_NAMESPACE);
        let selector = format!("{of_package}={},{of_manager}={}", package.name, self.namespace);
        let mut stored = cluster.list(&objects::kind(), None, &selector).await?;
        let active = store::name(&package.name, &package.digest);
        let old = unneeded(&mut stored, &active);
        if old.is_empty() {
            return Ok(());
        }
        let used = self.used(&package.name).await?;
        for revision in old {
            let name = revision["metadata"]["name"].as_str().unwrap_or_default();
            if !used.contains(name) && !keep.contains(&name) {
                if self.effects.clients.has_accounts()
                    && let Err(error) = delete_roles_of(cluster, &package.name, name).await
                {
                    // Without the revision, nothing would say whose they are.
                    warn!(package = %package.name, %error, "the roles of {name} cannot be deleted, so it stays");
                    continue;
                }
                cluster.delete_object(&objects::kind(), revision).await?;
                info!(package = %package.name, "OperatorRevision {name} is deleted: nothing uses it");
            }
        }
        Ok(())
    }

    /// The names of the revisions that origins and runs of any instance name.
    async fn used(&self, package: &str) -> Result<HashSet<String>, CallError> {
        let cluster = self.effects.clients.own();
        let name = |revision: &Value| Some(store::name_of(package, revision.as_str()?));
        let query = Query { labels: names::RUN_OF, ..Query::default() };
        let kind = ApiKind::built_in("apps/v1", "ControllerRevision");
        let origins =
            cluster.list_all(&kind, &query, |origin: Value| name(&origin["data"]["revision"])).await?;
        let runs = |run: Value| name(&run["status"]["revision"]);
        let runs = match cluster.list_all(&plan_run_kind(), &Query::default(), runs).await {
            // No package of this cluster has needed runs yet.
            Err(error) if error.class == Class::NotFound => Vec::new(),
            runs => runs?,
        };
        Ok(origins.into_iter().chain(runs).flatten().collect())
    }
}

/// The revisions that are neither active nor among the newest.
fn unneeded<'a>(stored: &'a mut Vec<Value>, active: &str) -> &'a [Value] {
    stored.retain(|revision| revision["metadata"]["name"] != active);
    let created = |revision: &Value| revision["metadata"]["creationTimestamp"].as_str().map(str::to_owned);
    stored.sort_by_key(|revision| std::cmp::Reverse(created(revision)));
    stored.get(KEPT..).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_active_and_the_newest_revisions_are_kept() {
        let revision = |name: &str, second: u32| json!({"metadata": {"name": name, "creationTimestamp": format!("2026-01-01T00:00:{second:02}Z")}});
        let mut stored: Vec<Value> = (0..8).map(|second| revision(&format!("r{second}"), second)).collect();
        let old: Vec<&Value> =
            unneeded(&mut stored, "r0").iter().map(|old| &old["metadata"]["name"]).collect();
        assert_eq!(old, ["r2", "r1"]);
        let mut few = vec![revision("r1", 1)];
        assert!(unneeded(&mut few, "r0").is_empty());
    }
}
