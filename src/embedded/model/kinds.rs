//! The kinds that are served: built-in ones as a real server lists them, and those of CRDs.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock, OnceLock};

use operetta_kube_model::built_in::resources;
use operetta_kube_model::facts::texts;
use serde_json::Value;

use crate::crd::Custom;
use crate::schema::{self, Typed, built_in};

/// One version of a kind.
#[derive(Debug)]
#[allow(clippy::struct_field_names)] // The name of Kubernetes.
pub(crate) struct Kind {
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) plural: String,
    pub(crate) kind: String,
    pub(crate) namespaced: bool,
    pub(crate) verbs: Vec<String>,
    pub(crate) subresources: Vec<String>,
    pub(crate) names: Names,
    pub(crate) source: Source,
}

/// Texts that name a kind, which every request needs.
#[derive(Debug)]
pub(crate) struct Names {
    api_version: String,
    resource: String,
}

impl Names {
    pub(crate) fn of(group: &str, version: &str, plural: &str) -> Self {
        if group.is_empty() {
            return Self { api_version: version.to_owned(), resource: plural.to_owned() };
        }
        Self { api_version: format!("{group}/{version}"), resource: format!("{plural}.{group}") }
    }
}

/// Where the schema of a kind is from.
#[derive(Debug)]
pub(crate) enum Source {
    BuiltIn(Typed<'static>),
    Custom(Arc<Custom>),
}

impl Kind {
    /// `apps/v1`, or `v1`.
    pub(crate) fn api_version(&self) -> &str {
        &self.names.api_version
    }

    /// `deployments.apps`, as messages and the store name the resource.
    pub(crate) fn resource(&self) -> &str {
        &self.names.resource
    }

    /// The resource under which its objects are stored.
    pub(crate) fn storage(&self) -> &str {
        if self.group == "events.k8s.io" { &self.plural } else { self.resource() }
    }

    /// The part of the key in etcd that names the resource.
    pub(crate) fn registry(&self) -> String {
        match (&self.source, &*self.group, &*self.plural) {
            (Source::Custom(_), group, plural) => format!("{group}/{plural}"),
            (_, "", "services") => "services/specs".to_owned(),
            (_, "", "endpoints") => "services/endpoints".to_owned(),
            (_, "", "nodes") => "minions".to_owned(),
            (_, "networking.k8s.io", "ingresses") => "ingress".to_owned(),
            (_, _, plural) => plural.to_owned(),
        }
    }

    pub(crate) fn typed(&self) -> Typed<'_> {
        match &self.source {
            Source::BuiltIn(typed) => *typed,
            Source::Custom(custom) => custom.typed(),
        }
    }

    pub(crate) fn custom(&self) -> Option<&Custom> {
        match &self.source {
            Source::BuiltIn(_) => None,
            Source::Custom(custom) => Some(custom),
        }
    }

    /// The package of its internal Go type, as messages name it.
    pub(crate) fn go_package(&self) -> &str {
        match (&self.source, &*self.group) {
            (Source::Custom(_), _) => "unstructured",
            (_, "" | "events.k8s.io") => "core",
            (_, group) => group.split('.').next().unwrap_or_default(),
        }
    }

    /// The Go type of its objects, as messages name it.
    pub(crate) fn go_type(&self) -> String {
        let name = if self.custom().is_some() { "Unstructured" } else { &*self.kind };
        format!("*{}.{name}", self.go_package())
    }

    pub(crate) fn allows(&self, verb: &str) -> bool {
        self.verbs.iter().any(|known| known == verb)
    }

    pub(crate) fn has_subresource(&self, name: &str) -> bool {
        self.subresources.iter().any(|known| known == name)
    }
}

/// The kinds that are served now, in the order of group, version and plural.
#[derive(Debug, Clone, Default)]
pub(crate) struct Kinds {
    all: Vec<Arc<Kind>>,
    /// Versions of CRDs that are not served: managers of fields may still name them.
    unserved: Vec<Arc<Kind>>,
}

/// The discovery documents of the built-in kinds.
pub(crate) fn discovery() -> &'static [Value] {
    static PARSED: OnceLock<Vec<Value>> = OnceLock::new();
    PARSED.get_or_init(operetta_kube_model::built_in::discovery)
}

impl Kinds {
    /// The built-in kinds.
    pub(crate) fn built_in() -> Self {
        static KINDS: OnceLock<Kinds> = OnceLock::new();
        KINDS.get_or_init(Self::read).clone()
    }

    fn read() -> Self {
        let definitions = definitions();
        let mut kinds = Self::default();
        for (group, version, resource) in resources(discovery()) {
            let kind = resource["responseKind"]["kind"].as_str().unwrap_or_default();
            let plural = resource["resource"].as_str().unwrap_or_default().to_owned();
            let names = Names::of(group, version, &plural);
            let Some(typed) = definitions.get(&format!("{} {kind}", names.api_version)) else { continue };
            let subresources = resource["subresources"].as_array().into_iter().flatten();
            let kind = Kind {
                group: group.to_owned(),
                version: version.to_owned(),
                kind: kind.to_owned(),
                namespaced: resource["scope"] == "Namespaced",
                verbs: texts(&resource["verbs"]),
                subresources: subresources
                    .filter_map(|sub| sub["subresource"].as_str().map(str::to_owned))
                    .collect(),
                names,
                plural,
                source: Source::BuiltIn(*typed),
            };
            kinds.insert(kind);
        }
        kinds
    }

    /// Where a kind is, or would be.
    fn position(&self, group: &str, version: &str, plural: &str) -> Result<usize, usize> {
        self.all.binary_search_by(|kind| {
            (&*kind.group, &*kind.version, &*kind.plural).cmp(&(group, version, plural))
        })
    }

    pub(crate) fn find(&self, group: &str, version: &str, plural: &str) -> Option<&Arc<Kind>> {
        self.all.get(self.position(group, version, plural).ok()?)
    }

    /// A version of a resource, whether it is served or not.
    pub(crate) fn known(&self, group: &str, version: &str, plural: &str) -> Option<&Arc<Kind>> {
        self.find(group, version, plural).or_else(|| {
            let mut all = self.unserved.iter();
            all.find(|kind| kind.group == group && kind.version == version && kind.plural == plural)
        })
    }

    /// Any version of the resource that is stored under this name.
    pub(crate) fn stored(&self, storage: &str) -> Option<&Arc<Kind>> {
        self.all.iter().find(|kind| kind.storage() == storage)
    }

    /// The kind with this apiVersion and name.
    pub(crate) fn named(&self, api_version: &str, kind: &str) -> Option<&Arc<Kind>> {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        self.iter().find(|known| known.kind == kind && known.group == group && known.version == version)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Kind>> {
        self.all.iter()
    }

    pub(crate) fn insert(&mut self, kind: Kind) {
        match self.position(&kind.group, &kind.version, &kind.plural) {
            Ok(at) => self.all[at] = Arc::new(kind),
            Err(at) => self.all.insert(at, Arc::new(kind)),
        }
    }

    /// Adds a version that is not served.
    pub(crate) fn insert_unserved(&mut self, kind: Kind) {
        self.unserved.push(Arc::new(kind));
    }

    /// Removes all versions of a resource.
    pub(crate) fn remove(&mut self, group: &str, plural: &str) {
        let is_kept = |kind: &Arc<Kind>| kind.group != group || kind.plural != plural;
        self.all.retain(is_kept);
        self.unserved.retain(is_kept);
    }
}

/// Whether kube-apiserver knows a kind.
pub(crate) fn is_known(api_version: &str, kind: &str) -> bool {
    typed(api_version, kind).is_some()
}

/// The definition of a kind that kube-apiserver knows.
pub(crate) fn typed(api_version: &str, kind: &str) -> Option<Typed<'static>> {
    definitions().get(&format!("{api_version} {kind}")).copied()
}

/// The definitions of kinds, by apiVersion and kind.
fn definitions() -> &'static BTreeMap<String, Typed<'static>> {
    static KINDS: LazyLock<BTreeMap<String, Typed<'static>>> = LazyLock::new(|| {
        let all = schema::definitions().filter_map(|(name, json)| {
            let json: Value = serde_json::from_str(json).ok()?;
            Some((json["kind"].as_str()?.to_owned(), built_in().find(name)?))
        });
        all.collect()
    });
    &KINDS
}
