//! Resources by their names, and the objects that a command is about.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::{Mutex, PoisonError};

use serde_json::Value;

use super::super::ext::{self, Kind, name_of};
use super::arguments::Arguments;
use super::session::{Session, encoded, is_missing, refusal};

const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// A resource of a server.
#[derive(Debug, Clone)]
pub(super) struct Resource {
    kind: Kind,
    /// The name of the kind in lower case, with its group.
    pub(super) singular: String,
    pub(super) kind_name: String,
    is_namespaced: bool,
}

impl Resource {
    /// A resource by its plural, singular, short name or kind, alone or followed by its group, or by its version and its group.
    pub(super) async fn named(session: &Session<'_>, text: &str) -> Result<Self, String> {
        let (name, place) = text.split_once('.').map_or((text, None), |(name, place)| (name, Some(place)));
        let name = name.to_lowercase();
        let is_it = |resource: &Value| {
            let is = |field: &Value| field.as_str().is_some_and(|known| known.to_lowercase() == name);
            ["name", "resource", "singularName", "singularResource", "kind"].iter().any(|f| is(&resource[*f]))
                || is(&resource["responseKind"]["kind"])
                || resource["shortNames"].as_array().is_some_and(|names| names.iter().any(is))
        };
        let found = match place {
            Some(place) => Self::in_group(session, place, &is_it).await?,
            None => match Self::in_version(session, "v1", &is_it).await? {
                None => Self::in_any_group(session, &is_it).await?,
                found => found,
            },
        };
        found.ok_or_else(|| format!("error: the server doesn't have a resource type \"{text}\""))
    }

    /// The resource of a manifest.
    async fn of(session: &Session<'_>, manifest: &Value) -> Result<Self, String> {
        let (Some(api), Some(kind)) = (manifest["apiVersion"].as_str(), manifest["kind"].as_str()) else {
            return Err("error: a manifest lacks its apiVersion or kind".to_owned());
        };
        Self::in_version(session, api, &|resource: &Value| resource["kind"] == kind).await?.ok_or_else(|| {
            let name = name_of(manifest);
            format!("error: resource mapping not found for name: \"{name}\": no matches for kind \"{kind}\" in version \"{api}\"")
        })
    }

    /// The first resource of an API version that `is_it` holds for.
    async fn in_version(
        session: &Session<'_>,
        api: &str,
        is_it: &impl Fn(&Value) -> bool,
    ) -> Result<Option<Self>, String> {
        let root = if api.contains('/') { "apis" } else { "api" };
        let list = match session.get(&format!("/{root}/{api}")).await {
            Ok(list) => list,
            Err(error) if is_missing(&error) => return Ok(None),
            Err(error) => return Err(refusal("", &error)),
        };
        let mut resources = list["resources"].as_array().into_iter().flatten();
        let is_subresource = |r: &Value| r["name"].as_str().is_some_and(|name| name.contains('/'));
        Ok(resources.find(|r| !is_subresource(r) && is_it(r)).and_then(|r| Self::read(api, r)))
    }

    /// The first resource of a group, or of its version as in `v1.apps`, that `is_it` holds for. The preferred version comes first.
    async fn in_group(
        session: &Session<'_>,
        place: &str,
        is_it: &impl Fn(&Value) -> bool,
    ) -> Result<Option<Self>, String> {
        let is_version =
            |text: &str| text.strip_prefix('v').is_some_and(|n| n.starts_with(|c: char| c.is_ascii_digit()));
        match place.split_once('.').filter(|(version, _)| is_version(version)) {
            Some((version, "")) => return Self::in_version(session, version, is_it).await,
            Some((version, group)) => {
                return Self::in_version(session, &format!("{group}/{version}"), is_it).await;
            }
            None => {}
        }
        let group = match session.get(&format!("/apis/{place}")).await {
            Ok(group) => group,
            Err(error) if is_missing(&error) => return Ok(None),
            Err(error) => return Err(refusal("", &error)),
        };
        let versions = group["versions"].as_array().into_iter().flatten();
        for version in [&group["preferredVersion"]].into_iter().chain(versions) {
            let api = version["groupVersion"].as_str().unwrap_or_default();
            if let Some(found) = Self::in_version(session, api, is_it).await? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// The first resource of any named group that `is_it` holds for, in the server's order.
    async fn in_any_group(
        session: &Session<'_>,
        is_it: &impl Fn(&Value) -> bool,
    ) -> Result<Option<Self>, String> {
        let all = session.get_as("/apis", AGGREGATED).await.map_err(|error| refusal("", &error))?;
        for group in all["items"].as_array().into_iter().flatten() {
            for version in group["versions"].as_array().into_iter().flatten() {
                let mut resources = version["resources"].as_array().into_iter().flatten();
                if let Some(found) = resources.find(|r| is_it(r)) {
                    let name = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                    let api = format!("{}/{}", name(&group["metadata"]["name"]), name(&version["version"]));
                    return Ok(Self::read(&api, found));
                }
            }
        }
        Ok(None)
    }

    /// An entry of a list of resources, or of the aggregated discovery.
    fn read(api: &str, entry: &Value) -> Option<Self> {
        let plural = entry["resource"].as_str().or(entry["name"].as_str())?;
        let kind_name = entry["responseKind"]["kind"].as_str().or(entry["kind"].as_str())?.to_owned();
        let is_namespaced = entry["scope"] == "Namespaced" || entry["namespaced"] == true;
        let kind = ext::kind(interned(api), interned(plural));
        let singular = match kind.group() {
            "" => kind_name.to_lowercase(),
            group => format!("{}.{group}", kind_name.to_lowercase()),
        };
        Some(Self { kind, singular, kind_name, is_namespaced })
    }

    pub(super) fn group(&self) -> &'static str {
        self.kind.group()
    }

    pub(super) fn api_version(&self) -> &'static str {
        self.kind.api_version()
    }

    /// The path of all objects, in a namespace if there are namespaces.
    pub(super) fn collection(&self, namespace: Option<&str>) -> String {
        let path = self.kind.path(namespace.filter(|_| self.is_namespaced), "");
        path.trim_end_matches('/').to_owned()
    }
}

/// A text that lives forever, once however often it is asked for.
fn interned(text: &str) -> &'static str {
    static KNOWN: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let found = known.get(text).copied();
    found.unwrap_or_else(|| {
        let text: &'static str = text.to_owned().leak();
        known.insert(text);
        text
    })
}

/// An object that a command is about.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) resource: Resource,
    /// The path of all objects of its resource in its namespace.
    pub(super) collection: String,
    pub(super) name: String,
}

impl Target {
    fn new(resource: &Resource, namespace: &str, name: &str) -> Self {
        Self {
            resource: resource.clone(),
            collection: resource.collection(Some(namespace)),
            name: name.to_owned(),
        }
    }

    /// The path of the object, or of a subresource of it.
    pub(super) fn path(&self, subresource: Option<&str>) -> String {
        let subresource = subresource.map(|subresource| format!("/{subresource}")).unwrap_or_default();
        format!("{}/{}{subresource}", self.collection, encoded(&self.name))
    }

    /// `RESOURCE/NAME`.
    pub(super) fn shown(&self) -> String {
        format!("{}/{}", self.resource.singular, self.name)
    }
}

/// The resources of `RESOURCE,...`.
pub(super) async fn resources(session: &Session<'_>, text: &str) -> Result<Vec<Resource>, String> {
    let mut resources = Vec::new();
    for name in text.split(',') {
        resources.push(Resource::named(session, name).await?);
    }
    Ok(resources)
}

/// The objects of `RESOURCE,... NAME ...` or of `RESOURCE/NAME ...`; with `--all` or a selector those that exist.
pub(super) async fn targets(
    session: &Session<'_>,
    args: &Arguments<'_>,
    words: &[&str],
) -> Result<Vec<Target>, String> {
    let mut targets = Vec::new();
    let Some((first, names)) = words.split_first() else {
        return Err("error: You must provide one or more resources".to_owned());
    };
    if first.contains('/') {
        for (resource, name) in words.iter().filter_map(|word| word.split_once('/')) {
            targets.push(Target::new(&Resource::named(session, resource).await?, session.home(), name));
        }
        return Ok(targets);
    }
    for resource in resources(session, first).await? {
        if names.is_empty() && (args.is("all") || args.flag("selector").is_some()) {
            for object in list(session, args, &resource).await? {
                let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default();
                targets.push(Target::new(&resource, namespace, name_of(&object)));
            }
        }
        targets.extend(names.iter().map(|name| Target::new(&resource, session.home(), name)));
        if targets.is_empty() && !args.is("all") && args.flag("selector").is_none() {
            return Err("error: resource(s) were provided, but no name was specified".to_owned());
        }
    }
    Ok(targets)
}

/// The objects of a resource that the command selects, with their kind.
pub(super) async fn list(
    session: &Session<'_>,
    args: &Arguments<'_>,
    resource: &Resource,
) -> Result<Vec<Value>, String> {
    let namespace = (!args.is("all-namespaces")).then(|| session.home());
    let mut path = resource.collection(namespace) + "?";
    for (flag, parameter) in [("selector", "labelSelector"), ("field-selector", "fieldSelector")] {
        if let Some(selector) = args.flag(flag) {
            let _ = write!(path, "{parameter}={}&", encoded(selector));
        }
    }
    let mut list = session.get(&path).await.map_err(|error| refusal("", &error))?;
    let Value::Array(mut items) = list["items"].take() else { return Ok(Vec::new()) };
    for item in &mut items {
        item["apiVersion"] = resource.api_version().into();
        item["kind"] = resource.kind_name.clone().into();
    }
    Ok(items)
}

/// A manifest and what it is about. The name may be empty.
pub(super) struct Object {
    pub(super) target: Target,
    pub(super) manifest: Value,
}

/// Finds the resources of manifests, and adds their namespace to those that name none.
pub(super) async fn objects(session: &Session<'_>, manifests: Vec<Value>) -> Vec<Result<Object, String>> {
    let mut known = BTreeMap::new();
    let mut objects = Vec::new();
    for mut manifest in manifests {
        let key = (manifest["apiVersion"].to_string(), manifest["kind"].to_string());
        let found: Result<Resource, String> = if let Some(found) = known.get(&key) {
            Result::clone(found)
        } else {
            let found = Resource::of(session, &manifest).await;
            known.insert(key, found.clone());
            found
        };
        objects.push(found.and_then(|resource| {
            let own = manifest["metadata"]["namespace"].as_str();
            let namespace = own.unwrap_or_else(|| session.home()).to_owned();
            if resource.is_namespaced {
                if session.namespace.is_some_and(|given| given != namespace) {
                    return Err(format!(
                        "error: the namespace from the provided object \"{namespace}\" does not match the namespace \"{}\"",
                        session.home(),
                    ));
                }
                manifest["metadata"]["namespace"] = namespace.clone().into();
            }
            Ok(Object { target: Target::new(&resource, &namespace, name_of(&manifest)), manifest })
        }));
    }
    objects
}
