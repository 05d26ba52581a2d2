//! Reads the objects of an instance: one list per kind of children, selected by label, and one or two per workload.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt::Write as _;
use std::sync::Arc;

use futures::StreamExt;
use futures::stream;

use crate::api::{ApiKind, CallError, Gvk, Served};
use crate::children::names;
use crate::cli::catalog::{Catalog, PackageKind, full_name, unreadable};
use crate::cli::model::{self, Node, NodePosition};
use crate::cli::session::Session;
use crate::cli::show::named;
use crate::cluster::Query;
use crate::manager::raw::Raw;
use crate::readiness;

/// How many lists run at once.
const AT_ONCE: usize = 8;
/// The maximum depth of children that are instances.
const DEPTH: usize = 10;
/// How many kinds a note names.
const NAMED: usize = 5;
/// The maximum number of instances in one list request: the selector is part of the URL.
const UIDS: usize = 50;

/// A tree, and what it may lack.
pub(super) struct Found {
    pub root: Node,
    /// Objects may be missing.
    pub warnings: Vec<String>,
    /// Objects could not be read.
    pub problems: Vec<String>,
}

/// Reads trees.
pub(super) struct Gather<'a> {
    pub session: &'a Session,
    pub catalog: &'a Catalog,
}

/// An instance whose children are not read yet.
struct Open<'a> {
    uid: String,
    namespace: Option<String>,
    kind: &'a PackageKind,
    /// The instance has a finalizer, so children may be in other namespaces.
    has_finalizer: bool,
}

impl<'a> Open<'a> {
    fn of(raw: &Raw, kind: &'a PackageKind) -> Self {
        Self {
            uid: raw.metadata.uid.clone().unwrap_or_default(),
            namespace: raw.metadata.namespace.clone(),
            kind,
            has_finalizer: raw.metadata.finalizers.iter().flatten().any(|name| name == names::FINALIZER),
        }
    }

    /// Whether an object that names the instance can be its child.
    fn can_have(&self, api: &ApiKind, raw: &Raw) -> bool {
        self.kind.bounds.hold(self.namespace.as_deref(), api, &raw.metadata)
    }
}

/// The result of one list.
#[derive(Default)]
struct Listed {
    objects: Vec<Raw>,
    /// Whether a controller reports progress in the status of this kind.
    reports: bool,
    warning: Option<String>,
    problem: Option<String>,
    /// The kind, if this user may not list it and children of it are only possible.
    denied: Option<String>,
}

impl Gather<'_> {
    /// Reads the tree of an instance.
    ///
    /// # Errors
    ///
    /// If the instance itself cannot be read.
    pub(super) async fn tree(&self, kind: &PackageKind, name: &str) -> Result<Found, String> {
        let object = self.session.read(kind, Some(self.session.namespace()), name).await?;
        let raw = Raw::from_value(object).map_err(|error| format!("{name}: {error}"))?;
        let root = Node::instance(NodePosition::Root, &raw);

        let (mut nodes, mut workloads) = (Vec::new(), Vec::new());
        let (mut warnings, mut problems) = (BTreeSet::new(), BTreeSet::new());
        let mut known: HashSet<String> = HashSet::from([root.object.uid.clone()]);
        let mut denied = BTreeSet::new();
        let mut undescribed: BTreeMap<String, &PackageKind> = BTreeMap::new();
        let mut level = vec![Open::of(&raw, kind)];
        for _ in 0..DEPTH {
            if level.is_empty() {
                break;
            }
            let mut next = Vec::new();
            let without_crd = level.iter().map(|open| open.kind).filter(|kind| !kind.is_described());
            undescribed.extend(without_crd.map(|kind| (kind.full_name(), kind)));
            for (served, listed) in self.children(&level).await {
                warnings.extend(listed.warning);
                denied.extend(listed.denied);
                problems.extend(listed.problem);
                let Some(served) = served else { continue };
                let (group, api_kind) = (served.group.as_str(), served.kind.as_str());
                for raw in listed.objects {
                    let uid = raw.metadata.uid.clone().unwrap_or_default();
                    let position = model::child_position(&raw).filter(|position| {
                        let open = level.iter().find(|open| position.is_of(&open.uid));
                        open.is_some_and(|open| open.can_have(served, &raw)) && known.insert(uid)
                    });
                    let Some(position) = position else { continue };
                    if let Some(kind) = self.catalog.package_kind(group, api_kind) {
                        nodes.push(Node::instance(position, &raw));
                        next.push(Open::of(&raw, kind));
                        continue;
                    }
                    let whole = readiness::needs_status(group, api_kind);
                    nodes.push(Node::object(position, &raw, whole, listed.reports));
                    if model::selector(&raw.body).is_some() {
                        workloads.push(raw);
                    }
                }
            }
            level = next;
        }
        for listed in self.dependents(&workloads).await {
            problems.extend(listed.problem);
            for raw in listed.objects {
                let uid = raw.metadata.uid.clone().unwrap_or_default();
                let owner = model::owner(&raw).filter(|_| !model::is_spent(&raw) && known.insert(uid));
                nodes.extend(
                    owner.map(|owner| Node::object(NodePosition::Dependent { owner }, &raw, true, false)),
                );
            }
        }
        warnings.extend(undescribed.values().map(|kind| undescribed_children(kind, &denied)));
        Ok(Found {
            root: model::grow(root, nodes),
            warnings: warnings.into_iter().collect(),
            problems: problems.into_iter().collect(),
        })
    }

    /// Lists the children of some instances, kind by kind, each with the served kind.
    async fn children<'l>(&'l self, level: &'l [Open<'l>]) -> Vec<(Option<&'l ApiKind>, Listed)> {
        let mut kinds: BTreeMap<&'l Gvk, Vec<&'l Open<'l>>> = BTreeMap::new();
        for open in level {
            for gvk in &open.kind.child_kinds {
                kinds.entry(gvk).or_default().push(open);
            }
        }
        let lists = kinds.into_iter().flat_map(|(kind, opens)| {
            opens.chunks(UIDS).map(|some| (kind, some.to_vec())).collect::<Vec<_>>()
        });
        stream::iter(lists)
            .map(|(gvk, opens)| async move {
                let Some(served) = self.catalog.served(gvk) else {
                    // Usually an optional API, of which no objects exist.
                    let warning =
                        format!("children of kind {gvk} are not shown: the API server does not serve it");
                    return (None, Listed { warning: Some(warning), ..Listed::default() });
                };
                let mut listed = self.children_of_kind(served, &opens).await;
                listed.reports =
                    !listed.objects.is_empty() && self.session.server.cluster.reports(served).await;
                (Some(&*served.kind), listed)
            })
            .buffered(AT_ONCE)
            .collect()
            .await
    }

    /// Lists the children of a kind in all namespaces, because a child may be in another namespace than its
    /// instance. Without that permission, lists in the namespaces of the instances.
    async fn children_of_kind(&self, served: &Served, opens: &[&Open<'_>]) -> Listed {
        let uids: Vec<&str> = opens.iter().map(|open| open.uid.as_str()).collect();
        let labels = format!("{} in ({})", names::INSTANCE_UID, uids.join(","));
        let api = &served.kind;
        let metadata_only = !readiness::needs_status(&api.group, &api.kind);
        let all = Query { labels: &labels, metadata_only, ..Query::default() };
        if opens.iter().all(|open| !open.kind.is_described()) {
            return self.possible_children(api, all, opens).await;
        }
        let error = match self.list(api, &all).await {
            Ok(objects) => return Listed { objects, ..Listed::default() },
            Err(error) => error,
        };
        let own: BTreeSet<&str> = opens.iter().filter_map(|open| open.namespace.as_deref()).collect();
        if error.code != 403 || !api.namespaced || own.is_empty() {
            return Listed { problem: Some(unshown(api, None, &error)), ..Listed::default() };
        }
        let mut listed = Listed::default();
        for namespace in &own {
            match self.list(api, &Query { namespace: Some(namespace), ..all }).await {
                Ok(objects) => listed.objects.extend(objects),
                Err(error) => listed.problem = Some(unshown(api, Some(namespace), &error)),
            }
        }
        if listed.problem.is_none() && opens.iter().any(|open| open.has_finalizer || open.namespace.is_none())
        {
            let position = own.into_iter().collect::<Vec<_>>().join(", ");
            listed.warning = Some(format!(
                "this user may list {} in namespace {position} only: children elsewhere are not shown",
                api.plural
            ));
        }
        listed
    }

    /// Lists objects of a kind that may have children, in the namespaces of the instances. Objects that only
    /// have copies of the labels are no children.
    async fn possible_children(&self, api: &ApiKind, query: Query<'_>, opens: &[&Open<'_>]) -> Listed {
        let own: BTreeSet<&str> = opens.iter().filter_map(|open| open.namespace.as_deref()).collect();
        let mut listed = Listed::default();
        for namespace in own {
            match self.list(api, &Query { namespace: Some(namespace), ..query }).await {
                Ok(objects) => listed.objects.extend(objects.into_iter().filter(Raw::is_applied)),
                Err(error) if error.code == 403 => listed.denied = Some(full_name(&Arc::new(api.clone()))),
                Err(error) => listed.warning = Some(unshown(api, Some(namespace), &error)),
            }
        }
        listed
    }

    /// Lists the `ReplicaSets` and Pods of workloads.
    async fn dependents(&self, workloads: &[Raw]) -> Vec<Listed> {
        let mut lists: Vec<(Gvk, String, String)> = Vec::new();
        for workload in workloads {
            let Some(selector) = model::selector(&workload.body) else { continue };
            let namespace = workload.metadata.namespace.clone().unwrap_or_default();
            if workload.body["kind"] == "Deployment" {
                lists.push((Gvk::new("apps/v1", "ReplicaSet"), namespace.clone(), selector.clone()));
            }
            lists.push((Gvk::new("v1", "Pod"), namespace, selector));
        }
        stream::iter(lists)
            .map(|(gvk, namespace, labels)| async move {
                let Some(served) = self.catalog.served(&gvk) else { return Listed::default() };
                let query = Query { namespace: Some(&namespace), labels: &labels, ..Query::default() };
                match self.list(&served.kind, &query).await {
                    Ok(objects) => Listed { objects, ..Listed::default() },
                    Err(error) => Listed {
                        problem: Some(unshown(&served.kind, Some(&namespace), &error)),
                        ..Listed::default()
                    },
                }
            })
            .buffered(AT_ONCE)
            .collect()
            .await
    }

    async fn list(&self, kind: &ApiKind, query: &Query<'_>) -> Result<Vec<Raw>, CallError> {
        let named = |mut raw: Raw| {
            model::complete(kind, &mut raw.body);
            raw
        };
        self.session.server.cluster.list_all(kind, query, named).await
    }
}

/// The warning about what the tree may lack because this user may not read a CRD.
fn undescribed_children(kind: &PackageKind, denied: &BTreeSet<String>) -> String {
    let mut text = kind.undescribed(
        "children are searched in the namespace of their instance, and those elsewhere are not shown",
    );
    if !denied.is_empty() {
        let names: Vec<&String> = denied.iter().collect();
        let names = named(&names, NAMED);
        let _ = write!(text, "; nor are children of kinds that this user may not list: {names}");
    }
    text
}

fn unshown(kind: &ApiKind, namespace: Option<&str>, error: &CallError) -> String {
    format!("{} are not shown: {}", kind.plural, unreadable(kind, namespace, error))
}
