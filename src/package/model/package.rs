//! A compiled package.

use std::sync::Arc;

use semver::{Version, VersionReq};
use serde_json::{Map, Value};

use super::required::{Locked, RequiredApi};
use super::resource::Resource;
use crate::api::Gvk;
use crate::diag::Location;
use crate::files::Files;
use crate::powers::Powers;
use crate::store;
use crate::template::Engine;

/// A compiled package.
#[derive(Debug)]
pub struct Package {
    /// Its name: a DNS label of at most 40 characters.
    pub name: String,
    /// The location of its name in `operator.yaml`.
    pub location: Location,
    /// Its version.
    pub version: Version,
    /// The version of the application.
    pub app_version: Option<String>,
    /// The description, one sentence.
    pub description: Option<String>,
    /// The supported versions of Kubernetes.
    pub kubernetes: Option<VersionReq>,
    /// The kinds of others that it requires.
    pub required: Vec<RequiredApi>,
    /// The packages that were chosen for them, each after those that it requires itself.
    pub locked: Vec<Locked>,
    /// SHA-256 of all files, in hex.
    pub digest: String,
    /// What its pods may do beside what is in them, as its files show.
    pub powers: Powers,
    /// The RBAC rules that cannot be derived from templates and refs.
    pub permissions: Vec<Permission>,
    /// The constants, `defaults.x`: an object.
    pub defaults: Value,
    /// The templates.
    pub engine: Arc<Engine>,
    /// Its kinds; at least one, without duplicates.
    pub resources: Vec<Resource>,
    /// The files from which it was compiled. Their root is the folder, as given.
    pub files: Files,
}

impl Package {
    /// The index of the resource of a CRD.
    pub fn position(&self, crd: &str) -> Option<usize> {
        self.resources.iter().position(|resource| resource.crd_name() == crd)
    }

    /// Its name and version, for people.
    pub fn title(&self) -> String {
        format!("{} {}", self.name, self.version)
    }

    /// The resource of a kind, in any version.
    pub fn resource_of(&self, gvk: &Gvk) -> Option<&Resource> {
        self.resources.iter().find(|resource| resource.is_of(gvk))
    }

    /// Whether a template renders objects of this kind.
    pub fn has_child_kind(&self, gvk: &Gvk) -> bool {
        self.resources.iter().flat_map(|resource| &resource.children).any(|child| child.has_kind(gvk))
    }

    /// The identity of this package: its version with the start of the digest, `0.1.0-3f1c22ab90`.
    pub fn revision(&self) -> String {
        store::revision(&self.version.to_string(), &self.digest)
    }

    /// The constants `defaults.x` with overrides. An override for an unknown constant, or of another type
    /// than the constant, is ignored: see [`Self::wrong_defaults`].
    pub fn defaults_with(&self, overrides: &Map<String, Value>) -> Value {
        let mut defaults = self.defaults.clone();
        for (name, value) in overrides {
            if let Some(default) = defaults.get_mut(name).filter(|default| is_like(default, value)) {
                default.clone_from(value);
            }
        }
        defaults
    }

    /// The overrides that are ignored, each with the reason.
    pub fn wrong_defaults(&self, overrides: &Map<String, Value>) -> Vec<String> {
        let wrong = overrides.iter().filter_map(|(name, value)| match self.defaults.get(name) {
            None => {
                let known = self.defaults.as_object().into_iter().flatten().map(|(name, _)| name.as_str());
                let known: Vec<&str> = known.collect();
                let has = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
                Some(format!("{name}: the package {} has no such default; it has {has}", self.name))
            }
            Some(default) if !is_like(default, value) => Some(format!(
                "{name}: the package {} has {} there, not {}",
                self.name,
                type_of(default),
                type_of(value)
            )),
            Some(_) => None,
        });
        wrong.collect()
    }

    /// The resource of an instance of this kind, in any served version.
    pub fn resource(&self, gvk: &Gvk) -> Option<&Resource> {
        self.resources.iter().find(|resource| resource.served_kinds().any(|served| served == *gvk))
    }
}

/// Whether a value may override a default.
fn is_like(default: &Value, value: &Value) -> bool {
    default.is_null() || type_of(default) == type_of(value)
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "a map",
    }
}

/// One rule of `permissions`.
#[derive(Debug, Clone)]
pub struct Permission {
    /// The API groups; an empty one is the core group.
    pub api_groups: Vec<String>,
    /// The plural resource names, possibly with a subresource.
    pub resources: Vec<String>,
    /// The names of single objects; empty means all objects.
    pub resource_names: Vec<String>,
    /// The verbs.
    pub verbs: Vec<String>,
    /// Its location in `operator.yaml`.
    pub location: Location,
    /// The path of the rule in `operator.yaml`.
    pub path: String,
}
