//! What the cluster of a play holds, for expectations and invariants.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::Value;

use super::objects::{Cache, OfKind, Source};
use super::suite::Check;
use crate::api::Apis;
use crate::children::names;
use crate::package::Package;
use crate::package::test_file::Address;
use crate::rights::Owner;
use crate::template::{Live, Scope, Var};

/// The version of each kind that a case can name.
#[derive(Debug, Default)]
pub(super) struct Kinds(BTreeMap<String, String>);

/// The kinds by which the manager and packages have their rights.
const GRANTING: [&str; 5] = ["ServiceAccount", "Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding"];

/// A kind that two groups have, and a case means the core's.
const EVENT: &str = "Event";

impl Kinds {
    /// All kinds that are served: of each the preferred version.
    pub(super) fn of(apis: &Apis) -> Self {
        let mut kinds = BTreeMap::new();
        for served in apis.listable() {
            let (kind, api_version) = (&served.kind.kind, served.kind.api_version());
            if kind == EVENT && api_version == "v1" {
                kinds.insert(kind.clone(), api_version);
            } else {
                kinds.entry(kind.clone()).or_insert(api_version);
            }
        }
        Self(kinds)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn api_version(&self, kind: &str) -> Option<&str> {
        self.0.get(kind).map(String::as_str)
    }

    /// All kinds with their versions.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(kind, api_version)| (kind.as_str(), api_version.as_str()))
    }
}

/// The instance that a case is about.
#[derive(Debug, Clone)]
pub(super) struct Subject {
    pub api_version: String,
    pub kind: String,
    pub namespace: String,
    pub name: String,
    /// Its first uid: that of its children after its end, too.
    pub uid: String,
}

/// An object that was there: its kind, namespace, name and uid.
pub(super) type Identity = (String, String, String, String);

/// The instance of a case and its children, each with its id and key.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub instance: Option<Value>,
    pub children: Vec<(String, Option<String>, Value)>,
}

/// The cluster at one moment.
pub(super) struct View<'a> {
    pub api: &'a dyn Source,
    pub cache: &'a RefCell<Cache>,
    pub kinds: &'a Kinds,
    pub packages: &'a [Arc<Package>],
    pub subject: Option<&'a Subject>,
    pub deleted: &'a BTreeSet<Identity>,
}

impl View<'_> {
    fn of_kind(&self, api_version: &str, kind: &str) -> Arc<OfKind> {
        self.cache.borrow_mut().of(self.api, api_version, kind)
    }

    fn object(&self, api_version: &str, kind: &str, namespace: &str, name: &str) -> Option<Live> {
        let (_, object) = self.of_kind(api_version, kind).get(&format!("{namespace}/{name}"))?.clone();
        Some(object)
    }

    pub(super) fn find(&self, address: &Address) -> Option<Live> {
        let api_version = self.kinds.api_version(&address.kind)?;
        self.object(api_version, &address.kind, &address.namespace, &address.name)
            .or_else(|| self.object(api_version, &address.kind, "", &address.name))
    }

    /// The objects of a kind in a namespace, or in all if it is empty: without those that Kubernetes makes in each namespace, those by
    /// which packages have their rights, and the namespace of the manager.
    pub(super) fn list(&self, kind: &str, namespace: &str) -> Vec<Live> {
        let Some(api_version) = self.kinds.api_version(kind) else { return Vec::new() };
        let of_kind = self.of_kind(api_version, kind);
        let is_in = |key: &str| {
            let place = key.split_once('/').map_or("", |(place, _)| place);
            namespace.is_empty() || place.is_empty() || place == namespace
        };
        let is_given = |key: &str| match (kind, key.split_once('/')) {
            ("ConfigMap", Some((_, "kube-root-ca.crt")))
            | ("ServiceAccount", Some((_, "default")))
            | ("Namespace", Some((_, names::MANAGER_NAMESPACE))) => true,
            ("Service" | "Endpoints" | "EndpointSlice", _) => key == "default/kubernetes",
            _ => false,
        };
        let grants = GRANTING.contains(&kind);
        let is_granting = |object: &Live| grants && Owner::of(&object.value) != Owner::Other;
        let listed = of_kind.iter().filter(|(key, _)| is_in(key) && !is_given(key));
        let listed = listed.map(|(_, (_, object))| object).filter(|object| !is_granting(object));
        listed.cloned().collect()
    }

    /// The instance that the case is about.
    pub(super) fn instance(&self) -> Option<Live> {
        let subject = self.subject?;
        self.object(&subject.api_version, &subject.kind, &subject.namespace, &subject.name)
    }

    /// The children of the instance: their id, their key, and the object.
    pub(super) fn children(&self) -> Vec<(String, Option<String>, Live)> {
        let Some(subject) = self.subject else { return Vec::new() };
        // An instance that was made again has another uid; what the first one has left is found by the uid of that one.
        let instance = self.instance();
        let uid = instance
            .as_ref()
            .and_then(|instance| instance.value["metadata"]["uid"].as_str())
            .unwrap_or(&subject.uid);
        let resources = self.packages.iter().flat_map(|package| &package.resources);
        let kinds: BTreeSet<_> =
            resources.flat_map(|resource| &resource.children).flat_map(|child| &child.kinds).collect();
        let mut found = Vec::new();
        for gvk in kinds {
            for (_, object) in self.of_kind(&gvk.api_version, &gvk.kind).values() {
                let meta = &object.value["metadata"];
                let labels = &meta["labels"];
                if labels[names::INSTANCE_UID] != *uid {
                    continue;
                }
                let Some(id) = labels[names::CHILD].as_str().map(str::to_owned) else { continue };
                let annotation = meta["annotations"][names::KEY].as_str();
                let key = annotation.or_else(|| labels[names::KEY].as_str()).map(str::to_owned);
                found.push((id, key, object.clone()));
            }
        }
        found
    }

    /// The runs of plans, oldest first.
    pub(super) fn runs(&self) -> Vec<Arc<Value>> {
        let mut runs: Vec<_> = self.list("PlanRun", "").into_iter().map(|run| run.value).collect();
        let order = |run: &Arc<Value>| {
            let meta = &run["metadata"];
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            (
                text(&meta["creationTimestamp"]),
                meta["uid"].as_str().map(|uid| uid.rsplit('-').next().unwrap_or_default().to_owned()),
            )
        };
        runs.sort_by_key(order);
        runs
    }

    /// The variables that expressions read.
    pub(super) fn scope<'c>(&self, checks: impl IntoIterator<Item = &'c Check>) -> Scope {
        let (mut reads, mut kinds) = (BTreeSet::new(), BTreeSet::new());
        for check in checks {
            reads.extend(check.reads.iter().map(String::as_str));
            kinds.extend(check.kinds.iter().cloned());
        }
        let mut scope = Scope::new();
        let reads = |name: &str| reads.contains(name);
        if reads("instance") {
            scope.set("instance", self.instance().map_or(Var::Undefined, Var::Object));
        }
        if reads("children") {
            let mut children: BTreeMap<String, Vec<(Option<String>, Live)>> = BTreeMap::new();
            let resources = self.packages.iter().flat_map(|package| &package.resources);
            let resource =
                resources.into_iter().find(|r| self.subject.is_some_and(|s| s.kind == r.kind.kind));
            let declared = resource.map(|resource| &resource.children).into_iter().flatten();
            let each: BTreeSet<&str> =
                declared.clone().filter(|child| child.for_each.is_some()).map(|child| &*child.id).collect();
            for child in declared {
                children.insert(child.id.clone(), Vec::new());
            }
            for (id, key, object) in self.children() {
                children.entry(id).or_default().push((key, object));
            }
            let children = children.into_iter().map(|(id, mut objects)| {
                let var = if each.contains(&*id) {
                    Var::Map(objects.into_iter().map(|(key, object)| (key_of(key), object)).collect())
                } else {
                    objects.pop().map_or(Var::Undefined, |(_, object)| Var::Object(object))
                };
                (id, var)
            });
            scope.set("children", Var::Vars(children.collect()));
        }
        if reads("runs") {
            scope.set("runs", Var::List(self.runs().into_iter().map(Var::Shared).collect()));
        }
        if reads("pods") {
            scope.set("pods", Var::List(self.list("Pod", "").into_iter().map(Var::Object).collect()));
        }
        if reads("objects") {
            let lists = kinds.iter().filter(|kind| self.kinds.api_version(kind).is_some()).map(|kind| {
                let objects = self.list(kind, "").into_iter().map(Var::Object);
                (kind.clone(), Var::List(objects.collect()))
            });
            scope.set("objects", Var::Vars(lists.collect()));
        }
        if reads("deleted") {
            let lists = kinds.iter().filter(|kind| self.kinds.api_version(kind).is_some()).map(|kind| {
                let names =
                    self.deleted.iter().filter(|(of, ..)| of == kind).map(|(_, _, name, _)| name.as_str());
                (kind.clone(), Var::Json(names.collect()))
            });
            scope.set("deleted", Var::Vars(lists.collect()));
        }
        scope
    }
}

/// A key as expressions have it: numbers are numbers.
fn key_of(key: Option<String>) -> Value {
    match key {
        None => Value::Null,
        Some(key) => key.parse::<i64>().map_or_else(|_| key.into(), Value::from),
    }
}
