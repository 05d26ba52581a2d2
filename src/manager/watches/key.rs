//! What one watch brings, and which watch brings what a ref reads.

use std::fmt;
use std::sync::Arc;

use kube::runtime::watcher;

use crate::api::{ApiKind, Gvk};
use crate::children::{FieldProjection, ResourceSelector, Select, names};
use crate::field_selector;
use crate::manager::index::ChildPart;
use crate::manager::owned::OwnerField;
use crate::manager::owned_kinds::OwnedKind;
use crate::manager::registry::Registered;
use crate::package::store::objects::REVISION;
use crate::selector::Selector;

/// How many names of one namespace have a watch each.
const NAMES_PER_NAMESPACE: usize = 16;
/// How many watches by name or by labels a kind has.
const SELECTIVE_PER_KIND: usize = 64;
/// How many watches of whole namespaces a kind has.
const NAMESPACES_PER_KIND: usize = 16;

/// One watch: the objects that it selects, and what is kept of each.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct WatchKey {
    pub(super) gvk: Gvk,
    /// `None` is all namespaces.
    pub(super) namespace: Option<Box<str>>,
    /// `None` is all objects.
    pub(super) select: Option<Select>,
    pub(super) projection: Projection,
    /// The package whose account's rights are used, and whose objects are read; `None` is the manager itself,
    /// for all packages.
    pub(super) part: Option<Part>,
}

/// The part of the objects that the account of a package reads. Packages whose accounts differ have a watch each, so that none
/// sees more than it may.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Part {
    /// The package.
    pub(super) package: Arc<str>,
    /// Of children: only those of the instances with this label [`names::KIND`], so that no object is kept twice.
    pub(super) kind: Option<Arc<str>>,
}

/// The package whose account reads what instances read.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Reader {
    pub(super) package: Arc<str>,
    /// Whether its rights are limited to some namespaces, so that it cannot list all.
    pub(super) is_limited: bool,
}

/// What is kept of each object, and for whom.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Projection {
    /// Whole objects in the index: the instances of this CRD.
    Instance(Arc<str>),
    /// In the index, what expressions read of a child.
    Child,
    /// What refs read, until no instance reads it.
    Ref(FieldProjection),
    /// Whole objects in the store, by the instance that they name.
    Owned(OwnerField),
    /// Nothing: a change is a sign that what the API server serves may have changed.
    ApiService,
    /// Nothing: the subscriber gets the metadata of CRDs.
    Crd,
    /// Nothing: the subscriber gets the metadata of `Operator`s, of `OperatorRevision`s with their parts, and of what grants
    /// packages their rights.
    Operator,
    /// Nothing: a change is a sign that an admission policy, or its binding, may not be whole.
    Policy,
}

impl WatchKey {
    /// The instances of a CRD.
    pub(super) fn instances(registered: &Registered) -> Self {
        let kind = &registered.kind;
        let projection = Projection::Instance(Arc::clone(&registered.crd));
        Self::all(kind.gvk(), projection)
    }

    /// The children of a kind, of all packages.
    pub(super) fn children(gvk: &Gvk) -> Self {
        Self::all(gvk.clone(), Projection::Child)
    }

    /// The children of a kind, of one kind of instances, as the account of their package reads them. `namespace`: those in
    /// that namespace; `None` is all.
    pub(super) fn children_of(gvk: &Gvk, registered: &Registered, namespace: Option<&str>) -> Self {
        let kind = Some(registered.kind_label().into());
        let part = Some(Part { package: Arc::clone(&registered.package_name), kind });
        Self { part, namespace: namespace.map(Into::into), ..Self::children(gvk) }
    }

    /// Objects that belong to instances and are kept whole.
    pub(super) fn owned(kind: &OwnedKind) -> Self {
        let select = kind.labels.clone().map(Select::Labels);
        Self { select, ..Self::all(kind.gvk.clone(), Projection::Owned(kind.owner)) }
    }

    /// All CRDs.
    pub(super) fn crds(kind: &ApiKind) -> Self {
        Self::all(kind.gvk(), Projection::Crd)
    }

    /// All `Operator`s, or all `OperatorRevision`s.
    pub(super) fn operators(kind: &ApiKind) -> Self {
        Self::all(kind.gvk(), Projection::Operator)
    }

    /// The parts of stored revisions.
    pub(super) fn parts(kind: &ApiKind, namespace: &str) -> Self {
        let select = Some(Select::Labels(Selector::exists(REVISION)));
        Self { namespace: Some(namespace.into()), select, ..Self::operators(kind) }
    }

    /// The roles or bindings of packages. Children of instances have the same label, and one more.
    pub(super) fn grants(kind: &ApiKind, namespace: Option<&str>) -> Self {
        let select = Some(Select::Labels(Selector::exists(names::OPERATOR).without(names::INSTANCE_UID)));
        Self { namespace: namespace.map(Into::into), select, ..Self::operators(kind) }
    }

    /// The admission policy, or the binding, with that name.
    pub(super) fn policy(kind: &ApiKind, name: &str) -> Self {
        Self { select: Some(Select::Name(name.into())), ..Self::all(kind.gvk(), Projection::Policy) }
    }

    /// The APIs that the server aggregates.
    pub(super) fn api_services(kind: &ApiKind) -> Self {
        Self::all(kind.gvk(), Projection::ApiService)
    }

    fn all(gvk: Gvk, projection: Projection) -> Self {
        Self { gvk, namespace: None, select: None, projection, part: None }
    }

    /// The watch that is to bring what an instance reads. One object that is read by name is watched by name, so that
    /// other objects cause no traffic. A connection each for thousands of names would be worse: above a limit, names
    /// of one namespace, and then of all namespaces, share a watch. `reader`: whose account reads, if it has one. `count`
    /// returns how many watches match.
    pub(super) fn route(
        selector: &ResourceSelector,
        reader: Option<&Reader>,
        count: impl Fn(&dyn Fn(&WatchKey) -> bool) -> usize,
    ) -> Self {
        let key = |namespace: Option<Box<str>>, select: Option<Select>| Self {
            gvk: selector.gvk.clone(),
            namespace,
            select,
            projection: Projection::Ref(selector.keep.clone()),
            part: reader.map(|reader| Part { package: Arc::clone(&reader.package), kind: None }),
        };
        let package = reader.map(|reader| &reader.package);
        let same_kind = |key: &Self| {
            let is_ref = matches!(key.projection, Projection::Ref(_));
            is_ref && key.gvk == selector.gvk && key.part.as_ref().map(|part| &part.package) == package
        };
        let selective = |key: &Self| same_kind(key) && key.select.is_some();
        let here = |key: &Self| selective(key) && key.namespace == selector.namespace;
        if count(&here) < NAMES_PER_NAMESPACE && count(&selective) < SELECTIVE_PER_KIND {
            return key(selector.namespace.clone(), Some(selector.select.clone()));
        }
        let shared = key(selector.namespace.clone(), None);
        let namespaces = |key: &Self| same_kind(key) && key.select.is_none();
        let is_limited = reader.is_some_and(|reader| reader.is_limited);
        if is_limited || count(&|key| *key == shared) > 0 || count(&namespaces) < NAMESPACES_PER_KIND {
            shared
        } else {
            key(None, None)
        }
    }

    /// The label [`names::KIND`] of the instances whose children it brings; `None` is all.
    pub(super) fn kind_label(&self) -> Option<&str> {
        self.part.as_ref().and_then(|part| part.kind.as_deref())
    }

    /// Which children of its kind it brings.
    pub(super) fn child_part(&self) -> ChildPart {
        ChildPart { kind: self.kind_label().map(Into::into), namespace: self.namespace.clone() }
    }

    /// Whether the manager is ready only once it is listed.
    pub(super) fn is_essential(&self) -> bool {
        matches!(
            self.projection,
            Projection::Instance(_) | Projection::Child | Projection::Owned(_) | Projection::Policy
        )
    }

    /// What the server is asked to select.
    pub(super) fn config(&self) -> watcher::Config {
        let config = watcher::Config::default();
        match &self.select {
            Some(Select::Name(name)) => config.fields(&field_selector::of_name(name)),
            Some(Select::Labels(selector)) => config.labels(&selector.to_string()),
            None if self.projection == Projection::Child => match self.kind_label() {
                Some(kind) => config.labels(&format!("{},{}={kind}", names::INSTANCE_UID, names::KIND)),
                None => config.labels(names::INSTANCE_UID),
            },
            None => config,
        }
    }
}

impl fmt::Display for WatchKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.projection {
            Projection::Instance(crd) => return write!(f, "instances {crd}"),
            Projection::Child => f.write_str("children ")?,
            Projection::Ref(_) => f.write_str("refs ")?,
            Projection::Owned(_) => f.write_str("owned ")?,
            Projection::ApiService | Projection::Crd | Projection::Operator | Projection::Policy => {}
        }
        write!(f, "{} {}", self.gvk.api_version, self.gvk.kind)?;
        if let Some(namespace) = &self.namespace {
            write!(f, " in {namespace}")?;
        }
        match &self.select {
            Some(Select::Name(name)) => write!(f, " {name}")?,
            Some(Select::Labels(selector)) => write!(f, " with {selector}")?,
            None => {}
        }
        match &self.part {
            Some(Part { package, kind: Some(kind) }) => write!(f, " of {kind}, as package {package}"),
            Some(Part { package, kind: None }) => write!(f, " as package {package}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The watches for these objects, by namespace and name.
    fn routes(reader: Option<&Reader>, read: impl IntoIterator<Item = (String, String)>) -> Vec<WatchKey> {
        let mut keys: Vec<WatchKey> = Vec::new();
        for (namespace, name) in read {
            let selector = ResourceSelector {
                gvk: Gvk::new("v1", "Secret"),
                namespace: Some(namespace.into()),
                select: Select::Name(name.into()),
                keep: FieldProjection { paths: Arc::from([]), content: true },
            };
            let key = WatchKey::route(&selector, reader, |like| keys.iter().filter(|key| like(key)).count());
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
        keys
    }

    #[test]
    fn a_few_names_have_a_watch_each_and_many_share_one() {
        let of_one = || (0..100).map(|number| ("a".to_owned(), format!("s{number}")));
        assert_eq!(
            routes(None, of_one()).len(),
            NAMES_PER_NAMESPACE + 1,
            "names of one namespace share one watch"
        );
        let of_many = (0..1_000).map(|number| (format!("n{number}"), "tls".to_owned()));
        let keys = routes(None, of_one().chain(of_many));
        assert!(keys.len() <= SELECTIVE_PER_KIND + NAMESPACES_PER_KIND + 2, "{} watches", keys.len());
        assert!(keys.iter().any(|key| key.namespace.is_none() && key.select.is_none()));
    }

    #[test]
    fn an_account_of_some_namespaces_never_lists_all() {
        let reader = Reader { package: "p".into(), is_limited: true };
        let read = (0..1_000).map(|number| (format!("n{}", number % 100), format!("s{number}")));
        let keys = routes(Some(&reader), read);
        assert!(keys.iter().all(|key| key.namespace.is_some()));
        assert!(keys.len() <= SELECTIVE_PER_KIND + 100, "{} watches", keys.len());
    }
}
