//! The objects of `--with`: the live objects beside the instance.

use std::collections::HashSet;
use std::sync::Arc;

use serde_json::Value;

use super::UID;
use super::scopes::is_namespaced;
use crate::api::{Gvk, ObjectRef};
use crate::children::{Item, LookupResult, Observed, Paths, Referred, ResourceSelector, Seen, Select, names};
use crate::diag::{Diagnostic, Source};
use crate::manager::raw::Raw;
use crate::package::{Package, Resource};
use crate::yaml::{self, Node};

/// One object and its reference.
struct Object {
    id: ObjectRef,
    raw: Raw,
}

/// The uid of the instances that are gone.
const FORMER: &str = "former";

/// All objects.
#[derive(Default)]
pub(super) struct Given(Vec<Object>);

impl Given {
    /// Adds the objects of a file. `namespace` is the namespace of objects without one.
    pub(super) fn read(
        &mut self,
        package: &Package,
        source: &Arc<Source>,
        namespace: &str,
    ) -> Result<(), Vec<Diagnostic>> {
        let documents = yaml::parse(source, &yaml::Options::default()).map_err(|error| vec![error])?;
        let mut wrong = Vec::new();
        for node in documents.iter().flat_map(super::items).filter(|node| !node.is_null()) {
            match object(package, node, namespace) {
                Ok(object) => self.0.push(object),
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
                object.observe(package, &resource.children[item.child].id, key.as_deref(), uid)
            })
            .collect()
    }

    /// The objects that a ref selects.
    pub(super) fn find(&self, want: &ResourceSelector) -> LookupResult {
        let fits = |object: &&Object| {
            object.id.gvk == want.gvk
                && want.namespace.as_deref().is_none_or(|space| object.id.namespace.as_deref() == Some(space))
                && match &want.select {
                    Select::Name(name) => object.id.name == *name,
                    Select::Labels(selector) => selector.fits(object.raw.metadata.labels.as_ref()),
                }
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

    /// A live value of `data` of an object.
    pub(super) fn data(&self, object: &ObjectRef, key: &str) -> Option<&Value> {
        let object = self.0.iter().find(|given| given.id.identity() == object.identity())?;
        object.raw.body["data"].get(key)
    }
}

impl Object {
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
        let seen = Seen { gvk: &self.id.gvk, metadata: &metadata, body, reports: true };
        let observed = seen.observe(|_, _| Arc::clone(&whole))?;
        Some(Arc::new(Observed { object: self.id.clone(), owned: Some(Arc::default()), ..observed }))
    }
}

fn object(package: &Package, node: &Node, namespace: &str) -> Result<Object, String> {
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
    Ok(Object { id, raw })
}
