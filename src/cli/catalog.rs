//! The kinds of all packages in a cluster, and their names on the command line.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures::future::{join, join_all};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::out::printable;
use crate::api::{ApiKind, Apis, CallError, Gvk, ObjectRef, Served};
use crate::children::crds::{PublishedPlan, read_plans};
use crate::children::{NamespaceScope, names, package_of_crd};
use crate::cluster::{Cluster, Query};
use crate::crd::{CATEGORY, GROUP as OWN_GROUP};
use crate::diag::did_you_mean;
use crate::manager::raw::Raw;
use crate::naming;

/// The package of a kind whose CRD this user may not read.
pub(super) const UNKNOWN: &str = "<unknown>";
/// The end of a message about a list of all namespaces.
const ALL_NAMESPACES: &str = " in all namespaces";

/// A kind of a package.
#[derive(Debug, Clone)]
pub(super) struct PackageKind {
    /// The kind and its names.
    pub served: Served,
    /// The package, or [`UNKNOWN`].
    pub package: String,
    /// Kinds of its instances' current and previous children; if the CRD cannot be read, all kinds that they may have.
    pub child_kinds: Vec<Gvk>,
    /// Its plans; `None` if the CRD, which lists them, cannot be read.
    pub plans: Option<Vec<PublishedPlan>>,
    /// Limits the objects that can be children of its instances.
    pub bounds: Arc<Bounds>,
}

/// The kind and the name of KIND/NAME or KIND NAME.
///
/// # Errors
///
/// For people, if the words name no instance.
pub(super) fn kind_and_name(words: &[String]) -> Result<(&str, &str), String> {
    let pair = match words {
        [one] => one.split_once('/'),
        [kind, name] => Some((kind.as_str(), name.as_str())),
        _ => None,
    };
    let is_word = |word: &str| !word.is_empty() && !word.contains('/');
    pair.filter(|(kind, name)| is_word(kind) && is_word(name)).ok_or_else(|| no_instance(&words.join(" ")))
}

/// The message that a word does not name an instance.
pub(super) fn no_instance(word: &str) -> String {
    format!("{} is not an instance: use KIND/NAME; `operetta get` lists the instances", printable(word))
}

/// The end of a message about objects in a namespace.
pub(super) fn in_namespace(namespace: Option<&str>) -> String {
    namespace.map(|namespace| format!(" in namespace {}", printable(namespace))).unwrap_or_default()
}

/// Checks the names on the command line before any request.
///
/// # Errors
///
/// For people: the invalid name and the rule.
pub(super) fn check_names(namespace: Option<&str>, name: Option<&str>) -> Result<(), String> {
    if let Some(namespace) = namespace {
        naming::check_namespace(namespace).map_err(|error| {
            format!("{} cannot be the name of a namespace: {error}", printable(namespace))
        })?;
    }
    if let Some(name) = name {
        naming::check_custom(name)
            .map_err(|error| format!("{} cannot be the name of an instance: {error}", printable(name)))?;
    }
    Ok(())
}

/// Limits the objects that can be children of a kind's instances; labels are not sufficient. See
/// `docs/design/0012-child-membership.md`.
#[derive(Debug)]
pub(super) struct Bounds {
    namespace_scope: NamespaceScope,
    kinds: BTreeSet<Gvk>,
}

impl Bounds {
    /// Whether an object can be a child of an instance in the namespace `home`.
    pub(super) fn hold(&self, home: Option<&str>, kind: &ApiKind, object: &ObjectMeta) -> bool {
        let object = ObjectRef {
            gvk: kind.gvk(),
            namespace: object.namespace.as_deref().map(Into::into),
            name: object.name.as_deref().unwrap_or_default().into(),
        };
        self.namespace_scope.holds(home, &self.kinds, &object)
    }
}

impl PackageKind {
    /// `plural.group`, the name of its CRD.
    pub(super) fn full_name(&self) -> String {
        full_name(&self.served.kind)
    }

    /// Whether its CRD could be read: only then its plans and the kinds of its children are known.
    pub(super) fn is_described(&self) -> bool {
        self.plans.is_some()
    }

    /// The message that there is no instance of that name.
    pub(super) fn has_none(&self, namespace: Option<&str>, name: &str) -> String {
        let kind = &self.served.kind;
        let place = in_namespace(namespace.filter(|_| kind.namespaced));
        format!("there is no {} {}{place}", kind.kind, printable(name))
    }

    /// The message that this user may not read the CRD; `meaning` says what follows from it.
    pub(super) fn undescribed(&self, meaning: &str) -> String {
        format!("this user may not get the CRD {}, so {meaning}", self.full_name())
    }

    /// A kind that is known from discovery only. `children`: the kinds that its children may have.
    fn of_discovery(served: &Served, children: &[Gvk]) -> Self {
        let bounds =
            Bounds { namespace_scope: NamespaceScope::HOME, kinds: children.iter().cloned().collect() };
        Self {
            served: served.clone(),
            package: UNKNOWN.to_owned(),
            child_kinds: children.to_vec(),
            plans: None,
            bounds: Arc::new(bounds),
        }
    }
}

/// The kinds of a cluster.
pub(super) struct Catalog {
    /// Kinds of packages, sorted by kind and group.
    pub kinds: Vec<PackageKind>,
    /// CRDs of packages that the server does not serve, or not yet.
    pub unserved: Vec<String>,
    /// All kinds that can be listed.
    pub served: Vec<Served>,
}

impl Catalog {
    /// Reads the kinds from the cluster with three parallel requests. A user who may not list CRDs gets them from
    /// discovery, by their category.
    ///
    /// # Errors
    ///
    /// For people, also if no package is installed.
    pub(super) async fn read(cluster: &Cluster) -> Result<Self, String> {
        let (catalog, _) = Self::read_any(cluster).await?;
        if catalog.kinds.is_empty() && catalog.unserved.is_empty() {
            return Err("no package is installed in this cluster: no CRD was registered by Operetta\n  \
                 help: `operetta run PACKAGE...` installs packages"
                .to_owned());
        }
        Ok(catalog)
    }

    /// Reads the kinds from the cluster, of which there may be none, and what the server serves.
    ///
    /// # Errors
    ///
    /// For people.
    pub(super) async fn read_any(cluster: &Cluster) -> Result<(Self, Apis), String> {
        // The schemas of the CRDs, which may have a megabyte each, are not needed.
        let query = Query { labels: names::OPERATOR, metadata_only: true, ..Query::default() };
        let definitions = ApiKind::crd();
        let crds = cluster.list_all(&definitions, &query, |crd: Raw| crd);
        let (crds, served) = join(crds, cluster.discover()).await;
        let served = served.map_err(|error| format!("the discovery of the API server failed: {error}"))?;
        let listable = served.listable().cloned().collect();
        match crds {
            Ok(crds) => Ok((Self::of(&crds, listable), served)),
            Err(error) if error.code == 403 => Ok((Self::discovered(cluster, listable).await, served)),
            Err(error) => Err(format!("the packages' CRDs cannot be listed: {error}")),
        }
    }

    /// The kinds in the category of Operetta. A user may be allowed to get their CRDs by name.
    async fn discovered(cluster: &Cluster, served: Vec<Served>) -> Self {
        let mut found: Vec<&Served> = Vec::new();
        for one in served.iter().filter(|one| is_of_package(one)) {
            // The preferred version of a group comes first.
            let is_same = |other: &&Served| full_name(&other.kind) == full_name(&one.kind);
            if !found.iter().any(is_same) {
                found.push(one);
            }
        }
        let definition = ApiKind::crd();
        let crds = found.iter().map(|one| {
            let name = full_name(&one.kind);
            let definition = &definition;
            async move { cluster.get_metadata(definition, None, &name).await.ok().flatten() }
        });
        let crds = join_all(crds).await;
        let raws = crds.iter().flatten().filter_map(|crd| Raw::from_value(crd.clone()).ok());
        let mut catalog = Self::of(&raws.collect::<Vec<_>>(), served.clone());
        let children = possible_children(&served);
        let read =
            |one: &Served| crds.iter().flatten().any(|crd| crd["metadata"]["name"] == full_name(&one.kind));
        let unread = found.iter().filter(|one| !read(one));
        catalog.kinds.extend(unread.map(|one| PackageKind::of_discovery(one, &children)));
        catalog.sort();
        catalog
    }

    fn of(crds: &[Raw], served: Vec<Served>) -> Self {
        let (mut kinds, mut unserved) = (Vec::new(), Vec::new());
        for crd in crds {
            // A CRD that is a child has the label, too.
            let Some(package) = package_of_crd(&crd.metadata) else { continue };
            let name = crd.metadata.name.clone().unwrap_or_default();
            let text = |map: &Option<std::collections::BTreeMap<String, String>>, key: &str| {
                map.as_ref().and_then(|map| map.get(key)).cloned().unwrap_or_default()
            };
            match served.iter().find(|served| full_name(&served.kind) == name) {
                Some(served) => {
                    let annotations = &crd.metadata.annotations;
                    let child_kinds: Vec<_> =
                        names::read_kinds(&text(annotations, names::CHILD_KINDS)).collect();
                    let places = annotations.as_ref().and_then(|all| all.get(names::CHILD_NAMESPACES));
                    kinds.push(PackageKind {
                        served: served.clone(),
                        package: package.to_owned(),
                        bounds: Arc::new(Bounds {
                            namespace_scope: NamespaceScope::read(places.map(String::as_str)),
                            kinds: child_kinds.iter().cloned().collect(),
                        }),
                        child_kinds,
                        plans: Some(read_plans(&text(annotations, names::PLANS))),
                    });
                }
                // A terminating CRD: its instances are deleted with it.
                None if crd.metadata.deletion_timestamp.is_some() => {}
                None => unserved.push(name),
            }
        }
        let mut catalog = Self { kinds, unserved, served };
        catalog.sort();
        catalog
    }

    fn sort(&mut self) {
        self.kinds.sort_by(|a, b| {
            let key = |kind: &PackageKind| (kind.served.kind.kind.clone(), kind.served.kind.group.clone());
            key(a).cmp(&key(b))
        });
    }

    /// Finds a kind of a package by its kind, plural, singular, short name or `plural.group`.
    ///
    /// # Errors
    ///
    /// For people: an unknown word, a kind without a package, an ambiguous word.
    pub(super) fn find(&self, word: &str) -> Result<&PackageKind, String> {
        let found: Vec<&PackageKind> =
            self.kinds.iter().filter(|kind| is_meant(&kind.served, word)).collect();
        match found[..] {
            [kind] => return Ok(kind),
            [] => {}
            _ => {
                let names: Vec<String> = found.iter().map(|kind| kind.full_name()).collect();
                return Err(format!("{word} is ambiguous: use one of {}", names.join(", ")));
            }
        }
        if let Some(name) = self.unserved.iter().find(|name| {
            name.eq_ignore_ascii_case(word)
                || name.split('.').next().is_some_and(|n| n.eq_ignore_ascii_case(word))
        }) {
            return Err(format!("the API server does not serve {name} (yet); kubectl describe crd {name}"));
        }
        if let Some(other) = self.served.iter().find(|served| is_meant(served, word)) {
            return Err(format!(
                "{} is not a kind of a package: use kubectl",
                printable(&full_name(&other.kind))
            ));
        }
        let near = did_you_mean(
            &word.to_lowercase(),
            self.kinds.iter().flat_map(|kind| {
                let served = &kind.served;
                [served.kind.plural.as_str(), served.singular.as_str()]
                    .into_iter()
                    .chain(served.short_names.iter().map(String::as_str))
            }),
        );
        let word = printable(word);
        Err(near.map_or_else(
            || {
                let mut names: Vec<String> = self.kinds.iter().map(PackageKind::full_name).collect();
                names.truncate(10);
                format!("there is no kind {word}; the kinds of packages are {}", names.join(", "))
            },
            |near| format!("there is no kind {word}; did you mean {near}?"),
        ))
    }

    /// The kind of a package with that group and kind.
    pub(super) fn package_kind(&self, group: &str, kind: &str) -> Option<&PackageKind> {
        self.kinds.iter().find(|known| known.served.kind.group == group && known.served.kind.kind == kind)
    }

    /// The served kind with that `apiVersion` and kind.
    pub(super) fn served(&self, gvk: &Gvk) -> Option<&Served> {
        self.served.iter().find(|known| known.kind.gvk() == *gvk)
    }
}

/// Whether discovery says that a kind is one of a package: its CRD has the category that Operetta adds.
fn is_of_package(served: &Served) -> bool {
    served.kind.group != OWN_GROUP && served.categories.iter().any(|category| category == CATEGORY)
}

/// The kinds that children in the namespace of an instance may have, in the preferred version of each group. Objects that
/// record what happens carry labels of instances, and are no children.
fn possible_children(served: &[Served]) -> Vec<Gvk> {
    let mut found: Vec<Gvk> = Vec::new();
    for kind in served.iter().map(|one| &one.kind).filter(|kind| kind.namespaced && kind.group != OWN_GROUP) {
        let gvk = kind.gvk();
        let is_record = matches!(&*kind.kind, "Event" | "ControllerRevision");
        if !is_record && !found.iter().any(|other| other.is_version_of(&gvk)) {
            found.push(gvk);
        }
    }
    found
}

/// A hint for a user who may not list all namespaces, if one of these problems is about that.
pub(super) fn hint_of(problems: &[String]) -> Option<&'static str> {
    let is_about_all = |problem: &String| problem.contains(ALL_NAMESPACES);
    problems
        .iter()
        .any(is_about_all)
        .then_some("help: -n NAMESPACE shows what is in a namespace that this user may read")
}

/// `plural.group`, or `plural` in the core group.
pub(super) fn full_name(kind: &Arc<ApiKind>) -> String {
    if kind.group.is_empty() { kind.plural.clone() } else { format!("{}.{}", kind.plural, kind.group) }
}

/// Whether a word names a kind. Like kubectl, it ignores case.
pub(super) fn is_meant(served: &Served, word: &str) -> bool {
    let kind = &served.kind;
    let is = |name: &str, word: &str| !name.is_empty() && name.eq_ignore_ascii_case(word);
    let names = |word: &str| {
        is(&kind.plural, word)
            || is(&kind.kind, word)
            || is(&served.singular, word)
            || served.short_names.iter().any(|name| is(name, word))
    };
    if names(word) {
        return true;
    }
    word.split_once('.').is_some_and(|(name, rest)| {
        let versioned = rest.split_once('.').filter(|(version, _)| *version == kind.version);
        names(name) && (is(&kind.group, rest) || versioned.is_some_and(|(_, group)| is(&kind.group, group)))
    })
}

/// Why objects of a kind cannot be read, for people.
pub(super) fn unreadable(kind: &ApiKind, namespace: Option<&str>, error: &CallError) -> String {
    let name = full_name(&Arc::new(kind.clone()));
    let place = match namespace {
        Some(_) if kind.namespaced => in_namespace(namespace),
        None if kind.namespaced => ALL_NAMESPACES.to_owned(),
        _ => String::new(),
    };
    match error.code {
        403 => format!("this user may not list {name}{place}: {}", printable(&error.to_string())),
        _ => format!("{name} cannot be listed{place}: {}", printable(&error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn served(group: &str, kind: &str, short: &[&str]) -> Served {
        let singular = kind.to_lowercase();
        Served {
            kind: Arc::new(ApiKind {
                group: group.into(),
                version: "v1".into(),
                kind: kind.into(),
                plural: format!("{singular}s"),
                namespaced: true,
            }),
            singular,
            short_names: short.iter().map(|name| (*name).to_owned()).collect(),
            categories: Vec::new(),
            has_status: true,
            is_listable: true,
        }
    }

    fn catalog() -> Catalog {
        let crd = |name: &str| {
            Raw::from_value(serde_json::json!({"metadata": {"name": name,
                "labels": {"operetta.dev/operator": "p"},
                "managedFields": [{"manager": "operetta", "operation": "Apply", "fieldsType": "FieldsV1",
                    "fieldsV1": {"f:metadata": {"f:labels": {"f:operetta.dev/operator": {}}}}}],
                "annotations": {"operetta.dev/child-kinds": "apps/v1/Deployment,v1/Service"}}}))
            .unwrap()
        };
        let all = vec![
            served("", "Pod", &["po"]),
            served("a.example.org", "Database", &["db"]),
            served("b.example.org", "Database", &[]),
            served("a.example.org", "WebApp", &["wa"]),
        ];
        let crds =
            ["webapps.a.example.org", "databases.a.example.org", "databases.b.example.org", "lates.x.y"];
        Catalog::of(&crds.map(crd), all)
    }

    #[test]
    fn discovery_shows_the_kinds_of_packages_and_of_possible_children() {
        let of = |group: &str, version: &str, kind: &str, category: &str, namespaced: bool| {
            let mut served = served(group, kind, &[]);
            served.categories = vec![category.to_owned()];
            served.kind = Arc::new(ApiKind { version: version.into(), namespaced, ..(*served.kind).clone() });
            served
        };
        let all = [
            of("a.example.org", "v1", "WebApp", CATEGORY, true),
            of(OWN_GROUP, "v1alpha1", "PlanRun", CATEGORY, true),
            of("", "v1", "Pod", "all", true),
            of("", "v1", "Event", "", true),
            of("", "v1", "Node", "", false),
            of("apps", "v1", "Deployment", "all", true),
            of("apps", "v1beta1", "Deployment", "all", true),
            of("apps", "v1", "ControllerRevision", "", true),
        ];
        let names = |kinds: Vec<&Served>| kinds.iter().map(|one| one.kind.kind.clone()).collect::<Vec<_>>();
        assert_eq!(names(all.iter().filter(|one| is_of_package(one)).collect()), ["WebApp"]);
        let children = [
            Gvk::new("a.example.org/v1", "WebApp"),
            Gvk::new("v1", "Pod"),
            Gvk::new("apps/v1", "Deployment"),
        ];
        assert_eq!(possible_children(&all), children);
        let kind = PackageKind::of_discovery(&all[0], &children);
        assert!(
            !kind.is_described() && kind.undescribed("x").contains("the CRD webapps.a.example.org, so x")
        );
        let object =
            |namespace: &str| ObjectMeta { namespace: Some(namespace.into()), ..ObjectMeta::default() };
        let pod = &all[2].kind;
        assert!(
            kind.bounds.hold(Some("n"), pod, &object("n")) && !kind.bounds.hold(Some("n"), pod, &object("m"))
        );
    }

    #[test]
    fn kinds_are_found_by_all_kubectl_names() {
        let catalog = catalog();
        for word in ["WebApp", "webapp", "webapps", "wa", "webapps.a.example.org", "webapps.v1.a.example.org"]
        {
            assert_eq!(catalog.find(word).unwrap().full_name(), "webapps.a.example.org", "{word}");
        }
        let kind = catalog.find("wa").unwrap();
        let pairs = [Gvk::new("apps/v1", "Deployment"), Gvk::new("v1", "Service")];
        assert_eq!((kind.package.as_str(), &kind.child_kinds[..]), ("p", &pairs[..]));
    }

    #[test]
    fn instances_are_parsed_as_kind_and_name() {
        let of = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            kind_and_name(&words).map(|(kind, name)| format!("{kind} {name}"))
        };
        assert_eq!(of(&["a/b"]).unwrap(), "a b");
        assert_eq!(of(&["a", "b"]).unwrap(), "a b");
        for words in [&["a"][..], &["a/"], &["/b"], &["a/b/c"], &["a", "b/c"]] {
            assert!(of(words).is_err(), "{words:?}");
        }
    }

    #[test]
    fn unknown_and_ambiguous_kinds_are_explained() {
        let catalog = catalog();
        for (word, told) in [
            ("webap", "did you mean webapp?"),
            ("Databases", "use one of databases.a.example.org, databases.b.example.org"),
            ("pods", "pods is not a kind of a package"),
            ("lates", "does not serve lates.x.y"),
            ("lates.x.y", "does not serve lates.x.y"),
            ("nothing-like-it", "the kinds of packages are databases.a.example.org"),
            ("", "there is no kind"),
        ] {
            let error = catalog.find(word).unwrap_err();
            assert!(error.contains(told), "{word}: {error}");
        }
        assert_eq!(catalog.find("db").unwrap().full_name(), "databases.a.example.org");
    }
}
