//! The kinds that are known: Kubernetes' own and those of the packages that are checked together.

use serde_json::Value;

use super::super::Resource;
use crate::crd;
use crate::diag::{Diagnostic, Severity, did_you_mean};
use crate::schema::{Kubernetes, Schema, gone, kubernetes, successor};

/// A kind that a package brings, in one of its versions.
pub(super) struct Custom {
    api_version: String,
    kind: String,
    schema: Value,
}

impl Custom {
    pub(super) fn new(resource: &Resource, augmented: &Value, version: &str) -> Self {
        Self {
            api_version: format!("{}/{version}", resource.kind.group),
            kind: resource.kind.kind.clone(),
            schema: crd::schema_of(augmented, version).cloned().unwrap_or_default(),
        }
    }
}

pub(super) struct Catalog<'a> {
    pub(super) kubernetes: &'a Kubernetes,
    pub(super) customs: &'a [Custom],
}

/// What is known of a kind.
pub(super) enum Known<'a> {
    BuiltIn(Schema<'a>),
    Custom(Schema<'a>),
    /// There is none of that name, and there should be.
    Wrong(Problem),
    /// Somebody else's.
    Foreign,
}

/// What is wrong with a kind's name.
pub(super) struct Problem {
    severity: Severity,
    message: String,
    help: Option<String>,
    /// Whether it is the apiVersion that is wrong, not the kind.
    pub(super) is_version: bool,
}

impl Problem {
    pub(super) fn diagnostic(self) -> Diagnostic {
        let diagnostic = Diagnostic::error("schema::unknown-kind", self.message);
        Diagnostic { severity: self.severity, help: self.help, ..diagnostic }
    }
}

impl<'a> Catalog<'a> {
    pub(super) fn find(&self, api_version: &str, kind: &str) -> Known<'a> {
        if let Some(schema) =
            self.kubernetes.find(api_version, kind).and_then(|known| self.kubernetes.schema(known))
        {
            return Known::BuiltIn(schema);
        }
        let custom = self.customs.iter().find(|c| c.api_version == api_version && c.kind == kind);
        if let Some(custom) = custom {
            if custom.schema.is_object() {
                return Known::Custom(Schema::of_object(&custom.schema, self.kubernetes));
            }
            return Known::Foreign;
        }
        self.problem(api_version, kind).map_or(Known::Foreign, Known::Wrong)
    }

    fn problem(&self, api_version: &str, kind: &str) -> Option<Problem> {
        let wrong = |is_version, message: String, help: Option<String>| {
            Some(Problem { severity: Severity::Error, message, help, is_version })
        };
        if let Some((new, since)) = successor(api_version, kind) {
            let message = format!("Kubernetes {since} removed {kind} from {api_version}");
            return wrong(true, message, Some(format!("write apiVersion: {new}")));
        }
        if let Some(help) = gone(api_version, kind) {
            return wrong(true, format!("there is no {kind} any more"), Some(help.to_owned()));
        }
        let built_in: Vec<(&str, &str)> =
            self.kubernetes.kinds().iter().map(|k| (k.api_version.as_str(), k.kind.as_str())).collect();
        let custom: Vec<(&str, &str)> =
            self.customs.iter().map(|c| (c.api_version.as_str(), c.kind.as_str())).collect();
        let version = kubernetes::VERSION;
        let group = crd::group_of(api_version);
        let of_group = |known: &&(&str, &str)| crd::group_of(known.0) == group;
        let elsewhere = || {
            let mut versions = built_in.iter().chain(&custom).filter(|(_, k)| *k == kind).map(|(v, _)| *v);
            versions.next_back()
        };
        for (kinds, owner) in [(&built_in, "Kubernetes"), (&custom, "the package")] {
            if !kinds.iter().any(|known| of_group(&known)) {
                continue;
            }
            let name = if owner == "Kubernetes" { format!("Kubernetes {version}") } else { owner.to_owned() };
            if let Some((other, _)) = kinds.iter().rev().find(|known| of_group(known) && known.1 == kind) {
                // A version that is off by default may be on where the package runs.
                let may_be_on =
                    owner == "Kubernetes" && ["alpha", "beta"].iter().any(|v| api_version.contains(v));
                let message = format!("{name} serves no {kind} as {api_version}");
                return Some(Problem {
                    severity: if may_be_on { Severity::Warning } else { Severity::Error },
                    message,
                    help: Some(format!("write apiVersion: {other}")),
                    is_version: true,
                });
            }
            let near = did_you_mean(kind, kinds.iter().filter(of_group).map(|(_, kind)| *kind));
            // Another package may bring more kinds of a custom group.
            if owner != "Kubernetes" && near.is_none() {
                return None;
            }
            // A kind of another version of the group, which is off by default here.
            let is_preview = ["alpha", "beta"].iter().any(|v| api_version.contains(v));
            if owner == "Kubernetes" && is_preview && near.is_none() && elsewhere().is_none() {
                return None;
            }
            let help = match (near, elsewhere()) {
                (Some(near), _) => Some(format!("did you mean `{near}`?")),
                (None, Some(other)) => Some(format!("{kind} is in {other}")),
                (None, None) => None,
            };
            let is_version = near.is_none() && help.is_some();
            return wrong(is_version, format!("{name} has no kind {kind} in {api_version}"), help);
        }
        if let Some(other) = elsewhere() {
            // A group without a dot can only be one of Kubernetes' own.
            let is_near = strsim::damerau_levenshtein(crd::group_of(other), group) <= 2;
            if !group.contains('.') || is_near {
                let message = format!("there is no {kind} in {api_version}");
                return wrong(true, message, Some(format!("write apiVersion: {other}")));
            }
            return None;
        }
        if !group.contains('.') {
            let names = built_in.iter().map(|(api_version, _)| *api_version);
            let help = did_you_mean(api_version, names).map(|near| format!("did you mean `{near}`?"));
            return wrong(true, format!("Kubernetes {version} has no API {api_version}"), help);
        }
        None
    }
}
