//! The column CHILDREN: how many children of each instance are ready.

use std::collections::HashMap;
use std::sync::Arc;

use futures::StreamExt;
use futures::stream;

use super::row::{Counts, Row};
use super::{AT_ONCE, Get};
use crate::api::{Gvk, Served};
use crate::children::names;
use crate::cli::catalog::{Bounds, unreadable};
use crate::cli::model::{Node, NodePosition, child_position, complete};
use crate::cli::out;
use crate::cluster::Query;
use crate::manager::raw::Raw;
use crate::readiness;

impl Get<'_> {
    /// Counts ready children by the uid of their instance, with one list per kind.
    pub(super) async fn count(&self, rows: &[(Row, Arc<Bounds>)], problems: &mut Vec<String>) -> Counts {
        let of: HashMap<&str, (&Row, &Bounds)> =
            rows.iter().map(|(row, bounds)| (row.object.uid.as_str(), (row, &**bounds))).collect();
        let mut kinds: Vec<(&Gvk, Option<&str>)> = Vec::new();
        for task in self.tasks.iter().filter(|task| task.kind.is_described()) {
            let namespace = task.namespace.as_deref();
            kinds.extend(task.kind.child_kinds.iter().map(|gvk| (gvk, namespace)));
        }
        kinds.sort_unstable();
        // A list of all namespaces sorts first and contains those of each namespace.
        kinds.dedup_by(|b, a| a == b || (a.0, None) == (b.0, a.1));
        // The API server serves an object in every version of its kind: one served version is enough.
        let all = kinds.clone();
        kinds.retain(|of| !all.iter().any(|other| self.is_counted_by(*of, *other)));
        kinds.retain(|(gvk, _)| {
            let is_served = self.catalog.served(gvk).is_some();
            if !is_served {
                out::note(format!(
                    "warning: children of kind {gvk} are not counted: the API server does not serve it"
                ));
            }
            is_served
        });
        let lists = stream::iter(kinds).map(|(gvk, namespace)| self.count_kind(gvk, namespace, &of));
        let mut counts = Counts::new();
        for list in lists.buffered(AT_ONCE).collect::<Vec<_>>().await {
            match list {
                Ok(children) => {
                    for (uid, ready) in children.into_iter().flatten() {
                        let count = counts.entry(uid).or_default();
                        count.0 += usize::from(ready);
                        count.1 += 1;
                    }
                }
                Err(problem) => problems.push(problem),
            }
        }
        counts
    }

    /// Whether a list in another version of the kind contains the same objects.
    fn is_counted_by(
        &self,
        (gvk, namespace): (&Gvk, Option<&str>),
        (other, place): (&Gvk, Option<&str>),
    ) -> bool {
        let served = |gvk| self.catalog.served(gvk).is_some();
        other.is_version_of(gvk)
            && other != gvk
            && (place.is_none() || place == namespace)
            && served(other)
            && (!served(gvk) || other > gvk || (place.is_none() && namespace.is_some()))
    }

    async fn count_kind(
        &self,
        gvk: &Gvk,
        namespace: Option<&str>,
        of: &HashMap<&str, (&Row, &Bounds)>,
    ) -> Result<Vec<Option<(String, bool)>>, String> {
        let Some(served) = self.catalog.served(gvk) else { return Ok(Vec::new()) };
        let whole = readiness::needs_status(&served.kind.group, &gvk.kind);
        let query = Query { namespace, labels: names::INSTANCE_UID, metadata_only: !whole, page: None };
        let reports = whole && self.session.server.cluster.reports(served).await;
        let reports = whole.then_some(reports);
        let keep = |raw: Raw| {
            let uid = raw.metadata.labels.as_ref()?.get(names::INSTANCE_UID)?;
            let (row, bounds) = of.get(uid.as_str())?;
            bounds
                .hold(row.object.namespace.as_deref(), &served.kind, &raw.metadata)
                .then(|| counted(raw, served, reports))?
        };
        let list = self.session.server.cluster.list_all(&served.kind, &query, keep);
        list.await
            .map_err(|e| format!("children are not counted: {}", unreadable(&served.kind, namespace, &e)))
    }
}

/// The uid of a child's instance, and whether the child is ready. `None` for a copy of a child, and for an object that
/// is no longer desired and is retained or waits for approval. `reports`: see [`readiness::of_kind`]; `None` if only
/// metadata is known.
fn counted(mut raw: Raw, served: &Served, reports: Option<bool>) -> Option<(String, bool)> {
    complete(&served.kind, &mut raw.body);
    let position = child_position(&raw)?;
    let NodePosition::Child { instance, .. } = &position else { return None };
    let uid = instance.clone();
    let node = Node::object(position, &raw, reports.is_some(), reports.unwrap_or_default());
    node.is_desired().then(|| (uid, node.object.is_ready()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::ApiKind;

    #[test]
    fn retained_children_are_not_counted() {
        let config_map = Served {
            kind: Arc::new(ApiKind {
                group: String::new(),
                version: "v1".into(),
                kind: "ConfigMap".into(),
                plural: "configmaps".into(),
                namespaced: true,
            }),
            singular: "configmap".into(),
            short_names: Vec::new(),
            categories: Vec::new(),
            has_status: false,
            is_listable: true,
        };
        for (annotation, is_counted) in [("x", true), (names::RETAINED, false), (names::PENDING, false)] {
            let object = serde_json::json!({"metadata": {
                "name": "c", "labels": {names::INSTANCE_UID: "u"}, "annotations": {annotation: "true"},
                "managedFields": [{"manager": "operetta/p", "operation": "Apply"}],
            }});
            let raw = Raw::from_value(object).unwrap();
            assert_eq!(counted(raw, &config_map, None).is_some(), is_counted, "{annotation}");
        }
    }
}
