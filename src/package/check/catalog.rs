//! The kinds known to the checks: the built-in kinds of Kubernetes and those of the packages that are checked
//! together.

use serde_json::Value;

use super::super::Resource;
use super::super::plan::Plan;
use crate::api::Gvk;
use crate::crd;
use crate::diag::{Diagnostic, Severity, did_you_mean};
use operetta_kube_model::built_in::VERSION;
use operetta_lang::schema::{Kubernetes, Schema, gone, successor};

/// One version of a kind of a package.
pub(super) struct Custom<'p> {
    gvk: Gvk,
    schema: Value,
    plans: &'p [Plan],
}

impl<'p> Custom<'p> {
    pub(super) fn new(resource: &'p Resource, augmented: &Value, version: &str) -> Self {
        Self {
            gvk: Gvk::new(format!("{}/{version}", resource.kind.group), resource.kind.kind.as_str()),
            schema: crd::schema_of(augmented, version).cloned().unwrap_or_default(),
            plans: &resource.plans,
        }
    }
}

pub(super) struct Catalog<'a> {
    pub(super) kubernetes: &'a Kubernetes,
    pub(super) customs: &'a [Custom<'a>],
}

/// The result of looking up a kind in the catalog.
pub(super) enum KindLookup<'a> {
    BuiltIn(Schema<'a>),
    Custom(Schema<'a>),
    /// The group is known, but has no such kind.
    Wrong(Problem),
    /// The group is unknown, so the kind may exist.
    Foreign,
}

/// Why a kind does not exist.
pub(super) struct Problem {
    severity: Severity,
    message: String,
    help: Option<String>,
    /// Whether the apiVersion is wrong, and not the kind.
    pub(super) is_version: bool,
}

impl Problem {
    pub(super) fn diagnostic(self) -> Diagnostic {
        let diagnostic = Diagnostic::error("schema::unknown-kind", self.message);
        Diagnostic { severity: self.severity, help: self.help, ..diagnostic }
    }
}

impl<'a> Catalog<'a> {
    /// The plans of a kind; `None` if the kind belongs to none of the checked packages.
    pub(super) fn plans(&self, gvk: &Gvk) -> Option<&'a [Plan]> {
        self.customs.iter().find(|custom| custom.gvk == *gvk).map(|custom| custom.plans)
    }

    pub(super) fn find(&self, gvk: &Gvk) -> KindLookup<'a> {
        if let Some(schema) = self.kubernetes.find(gvk).and_then(|known| self.kubernetes.schema(known)) {
            return KindLookup::BuiltIn(schema);
        }
        let custom = self.customs.iter().find(|custom| custom.gvk == *gvk);
        if let Some(custom) = custom {
            if custom.schema.is_object() {
                return KindLookup::Custom(Schema::of_object(&custom.schema, self.kubernetes));
            }
            return KindLookup::Foreign;
        }
        self.problem(gvk).map_or(KindLookup::Foreign, KindLookup::Wrong)
    }

    fn problem(&self, gvk: &Gvk) -> Option<Problem> {
        let Gvk { api_version, kind } = gvk;
        let wrong = |is_version, message: String, help: Option<String>| {
            Some(Problem { severity: Severity::Error, message, help, is_version })
        };
        if let Some((new, since)) = successor(gvk) {
            let message = format!("Kubernetes {since} removed {kind} from {api_version}");
            return wrong(true, message, Some(format!("write apiVersion: {new}")));
        }
        if let Some(help) = gone(gvk) {
            return wrong(true, format!("there is no {kind} any more"), Some(help.to_owned()));
        }
        let built_in: Vec<&Gvk> = self.kubernetes.kinds().iter().map(|known| &known.gvk).collect();
        let custom: Vec<&Gvk> = self.customs.iter().map(|custom| &custom.gvk).collect();
        let group = gvk.group();
        let of_group = |known: &&&Gvk| known.group() == group;
        let elsewhere = || built_in.iter().chain(&custom).rfind(|known| known.kind == *kind).copied();
        for (kinds, owner) in [(&built_in, "Kubernetes"), (&custom, "the package")] {
            if !kinds.iter().any(|known| of_group(&known)) {
                continue;
            }
            let name = if owner == "Kubernetes" { format!("Kubernetes {VERSION}") } else { owner.to_owned() };
            if let Some(other) = kinds.iter().rfind(|known| known.is_version_of(gvk)) {
                // An alpha or beta version is off by default, but may be enabled in the cluster.
                let may_be_on =
                    owner == "Kubernetes" && ["alpha", "beta"].iter().any(|v| api_version.contains(v));
                let message = format!("{name} serves no {kind} as {api_version}");
                return Some(Problem {
                    severity: if may_be_on { Severity::Warning } else { Severity::Error },
                    message,
                    help: Some(format!("write apiVersion: {}", other.api_version)),
                    is_version: true,
                });
            }
            let near = did_you_mean(kind, kinds.iter().filter(of_group).map(|known| &*known.kind));
            // The kind of a custom group may come from another package.
            if owner != "Kubernetes" && near.is_none() {
                return None;
            }
            // The kind may belong to an alpha or beta version of the group, which is off by default and not
            // in the schemas.
            let is_preview = ["alpha", "beta"].iter().any(|v| api_version.contains(v));
            if owner == "Kubernetes" && is_preview && near.is_none() && elsewhere().is_none() {
                return None;
            }
            let help = match (near, elsewhere()) {
                (Some(near), _) => Some(format!("did you mean `{near}`?")),
                (None, Some(other)) => Some(format!("{kind} is in {}", other.api_version)),
                (None, None) => None,
            };
            let is_version = near.is_none() && help.is_some();
            return wrong(is_version, format!("{name} has no kind {kind} in {api_version}"), help);
        }
        if let Some(other) = elsewhere() {
            // A group without a dot is a built-in group.
            let is_near = strsim::damerau_levenshtein(other.group(), group) <= 2;
            if !group.contains('.') || is_near {
                let message = format!("there is no {kind} in {api_version}");
                return wrong(true, message, Some(format!("write apiVersion: {}", other.api_version)));
            }
            return None;
        }
        if !group.contains('.') {
            let names = built_in.iter().map(|known| &*known.api_version);
            let help = did_you_mean(api_version, names).map(|near| format!("did you mean `{near}`?"));
            return wrong(true, format!("Kubernetes {VERSION} has no API {api_version}"), help);
        }
        None
    }
}
