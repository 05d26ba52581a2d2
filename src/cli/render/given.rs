//! The objects of `--with` and `--children`: the live objects beside the instance.

use std::cell::Cell;
use std::collections::HashSet;
use std::sync::Arc;

use serde_json::Value;

use super::UID;
use super::scopes::is_namespaced;
use crate::api::{Gvk, ObjectRef};
use crate::children::{Item, LookupResult, Observed, Paths, RawObject, Referred, ResourceSelector, names};
use crate::diag::{Diagnostic, Source, Span, did_you_mean};
use crate::manager::raw::Raw;
use crate::package::{Child, Package, Resource};
use crate::yaml::{self, Node};

/// One object and its reference.
struct Object {
    id: ObjectRef,
    raw: Raw,
    /// Where it was given, if it must be a child.
    must: Option<(Arc<Source>, Span)>,
    is_child: Cell<bool>,
}

/// The uid that stands for all instances that are gone.
const FORMER: &str = "former";

/// All objects that are given.
#[derive(Default)]
pub(super) struct Given(Vec<Object>);

impl Given {
    /// Adds the objects of a file. `namespace` is the namespace of objects without one, `must`: each must be a child.
    pub(super) fn read(
        &mut self,
        package: &Package,
        source: &Arc<Source>,
        namespace: &str,
        must: bool,
    ) -> Result<(), Vec<Diagnostic>> {
        let documents = yaml::parse(source, &yaml::Options::default()).map_err(|error| vec![error])?;
        let mut wrong = Vec::new();
        for node in documents.iter().flat_map(super::items).filter(|node| !node.is_null()) {
            match object(package, node, namespace) {
                Ok((id, raw)) => {
                    let must = must.then(|| (Arc::clone(source), node.span));
                    self.0.push(Object { id, raw, must, is_child: Cell::new(false) });
                }
                Err(what) => {
                    let error = Diagnostic::error("render::object", what).at(source, node.span);
                    wrong.push(error.help("give objects as `kubectl get -o yaml` prints them"));
                }
            }
        }
        if wrong.is_empty() { Ok(()) } else { Err(wrong) }
    }

    /// The objects whose labels name the instance as their owner: those that a deleted instance of its name has left, and its
    /// own. An instance without a uid does not exist yet: then the
    /// objects that are marked as retained are left.
    pub(super) fn labelled(
        &self,
        package: &Package,
        resource: &Resource,
        instance: &Value,
    ) -> (Vec<Arc<Observed>>, Vec<Arc<Observed>>) {
        let meta = &instance["metadata"];
        let text = |key: &str| meta[key].as_str().unwrap_or_default();
        let kind = names::kind_label(&resource.kind.kind, &resource.kind.group);
        let name = names::label_value(text("name"));
        let is_left = |object: &Observed, owner: Option<&String>| match text("uid") {
            UID => object.retained == Some(true),
            uid => owner.is_some_and(|owner| owner != uid),
        };
        let labelled = self.0.iter().filter_map(|object| {
            let labels = object.raw.metadata.labels.as_ref()?;
            let label = |key: &str| labels.get(key).map(String::as_str);
            let home = label(names::INSTANCE_NAMESPACE).or(object.id.namespace.as_deref());
            let is_ours = label(names::OPERATOR) == Some(&package.name)
                && label(names::KIND) == Some(&kind)
                && label(names::INSTANCE) == Some(&name)
                && home.unwrap_or_default() == text("namespace");
            let child = label(names::CHILD).filter(|_| is_ours)?;
            let annotations = object.raw.metadata.annotations.as_ref();
            let key = annotations.and_then(|a| a.get(names::KEY)).map(String::as_str);
            let observed = object.observe(package, child, key.or(label(names::KEY)), text("uid"))?;
            let has_kind = |known: &Child| known.is_called(child) && known.has_kind(&object.id.gvk);
            object.is_child.set(object.is_child.get() || resource.children.iter().any(has_kind));
            if !is_left(&observed, labels.get(names::INSTANCE_UID)) {
                return Some((false, observed));
            }
            let former = Observed { instance_uid: FORMER.into(), ..(*observed).clone() };
            Some((true, Arc::new(former)))
        });
        let (left, own): (Vec<_>, Vec<_>) = labelled.partition(|(is_left, _)| *is_left);
        let objects = |all: Vec<(bool, Arc<Observed>)>| all.into_iter().map(|(_, object)| object).collect();
        (objects(left), objects(own))
    }

    /// The objects with the name of one of the items that are not observed yet.
    pub(super) fn named<'o>(
        &self,
        package: &Package,
        resource: &Resource,
        items: &[Item],
        known: impl Iterator<Item = &'o Arc<Observed>>,
        uid: &str,
    ) -> Vec<Arc<Observed>> {
        let known: HashSet<_> = known.map(|o| o.object.identity()).collect();
        let missing = items.iter().filter(|item| item.observed.is_none());
        missing
            .filter_map(|item| {
                let identity = item.desired.as_ref().ok()?.object.identity();
                let object = self.0.iter().find(|object| object.id.identity() == identity)?;
                if known.contains(&identity) {
                    return None;
                }
                let key = item.key.as_ref().map(names::key_text);
                object.is_child.set(true);
                object.observe(package, &resource.children[item.child].id, key.as_deref(), uid)
            })
            .collect()
    }

    /// The objects that a ref selects.
    pub(super) fn find(&self, want: &ResourceSelector) -> LookupResult {
        let fits = |object: &&Object| {
            let (id, labels) = (&object.id, object.raw.metadata.labels.as_ref());
            id.gvk == want.gvk && want.fits(id.namespace.as_deref(), &id.name, labels)
        };
        let referred = |object: &Object| {
            Arc::new(Referred {
                namespace: object.id.namespace.as_deref().map(Into::into),
                name: object.id.name.clone(),
                value: Arc::new(object.raw.body.clone()),
                ready: crate::readiness::of_kind(&object.raw.body, true).is_ready(),
            })
        };
        let mut found: Vec<_> = self.0.iter().filter(fits).map(referred).collect();
        found.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
        LookupResult::Known(found)
    }

    /// The objects that must be children of the instances, and are none.
    pub(super) fn strays(&self, package: &Package) -> Vec<Diagnostic> {
        let strays = self.0.iter().filter(|object| !object.is_child.get());
        let strays = strays.filter_map(|object| Some((object, object.must.as_ref()?)));
        strays.map(|(object, (source, span))| object.stray(package).at(source, *span)).collect()
    }

    /// A live value of `data` of an object.
    pub(super) fn data(&self, object: &ObjectRef, key: &str) -> Option<&Value> {
        let object = self.0.iter().find(|given| given.id.identity() == object.identity())?;
        object.raw.body["data"].get(key)
    }
}

impl Object {
    /// The error that says why the object is no child.
    fn stray(&self, package: &Package) -> Diagnostic {
        let what = format!("{} {}", self.id.gvk.kind, self.id.name);
        let wrong = |why: String| Diagnostic::error("render::children", format!("{what} is no child: {why}"));
        let Some(id) = self.raw.metadata.labels.as_ref().and_then(|labels| labels.get(names::CHILD)) else {
            return wrong("no instance has a child of that kind and name".to_owned()).help(
                "`operetta render PACKAGE -f INSTANCE -o name` lists the children; one that is not desired any more needs its \
                 labels and annotations, as `kubectl get -o yaml` prints them",
            );
        };
        let all = || package.resources.iter().flat_map(|resource| &resource.children);
        let kinds: Vec<&str> = all()
            .filter(|child| child.is_called(id))
            .flat_map(|child| &child.kinds)
            .map(|gvk| &*gvk.kind)
            .collect();
        if kinds.is_empty() {
            let ids: Vec<&str> = all().map(|child| child.id.as_str()).collect();
            return wrong(format!("the package {} has no child `{id}`, as its label says", package.name))
                .help(match did_you_mean(id, ids.iter().copied()) {
                    Some(near) => format!("did you mean `{near}`?"),
                    None => format!("it has {}", ids.join(", ")),
                });
        }
        if !kinds.contains(&&*self.id.gvk.kind) {
            return wrong(format!("the child `{id}`, as its label says, is a {}", kinds.join(" or a ")));
        }
        wrong("its labels name another instance".to_owned())
            .help("give the instance with -f, or correct the labels of operetta.dev")
    }

    /// The object as a child of the instance of that uid: the given objects have neither matching uids nor managedFields.
    fn observe(&self, package: &Package, child: &str, key: Option<&str>, uid: &str) -> Option<Arc<Observed>> {
        let mut metadata = self.raw.metadata.clone();
        let labels = metadata.labels.get_or_insert_default();
        labels.insert(names::INSTANCE_UID.into(), uid.into());
        labels.insert(names::OPERATOR.into(), package.name.clone());
        labels.insert(names::CHILD.into(), child.into());
        if let Some(key) = key {
            labels.insert(names::KEY.into(), names::label_value(key));
            metadata.annotations.get_or_insert_default().insert(names::KEY.into(), key.into());
        }
        let body = Some(&self.raw.body);
        let whole: Paths = Arc::from([Vec::new()]);
        let seen = RawObject { gvk: &self.id.gvk, metadata: &metadata, body, reports: true };
        let observed = seen.observe(|_, _| Arc::clone(&whole))?;
        Some(Arc::new(Observed { object: self.id.clone(), owned: Some(Arc::default()), ..observed }))
    }
}

fn object(package: &Package, node: &Node, namespace: &str) -> Result<(ObjectRef, Raw), String> {
    let mut body = node.to_json();
    let text = |pointer: &str| body.pointer(pointer).and_then(Value::as_str).filter(|text| !text.is_empty());
    let (Some(api_version), Some(kind), Some(name)) =
        (text("/apiVersion"), text("/kind"), text("/metadata/name"))
    else {
        return Err("an object needs apiVersion, kind and metadata.name".to_owned());
    };
    let gvk = Gvk::new(api_version, kind);
    let space = text("/metadata/namespace").unwrap_or(namespace);
    let space = is_namespaced(package, &gvk).then_some(space);
    let id = ObjectRef { gvk, namespace: space.map(Into::into), name: name.into() };
    if let Some(space) = &id.namespace {
        body["metadata"]["namespace"] = (&**space).into();
    }
    let raw = Raw::from_value(body).map_err(|error| format!("metadata is not as it should be: {error}"))?;
    Ok((id, raw))
}
