//! The APIs that the API server serves, read from discovery once and used by the whole crate.

use std::sync::Arc;

use kube_core::discovery::v2::APIGroupDiscovery;

use super::{ApiKind, CallError, Class, Gvk, Served};
use crate::diag::did_you_mean;

/// The APIs that discovery has found.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Apis {
    version: String,
    /// The resources of each `group/version`, in the server's order: the preferred version of a group first.
    /// `None` if the server of that group does not answer.
    served: Vec<(String, Option<Vec<Served>>)>,
}

/// The hint for a kind that resembles no served kind.
const INSTALLED: &str = "is its CRD installed?";

impl Apis {
    /// Creates it from the groups of aggregated discovery.
    pub fn new(groups: impl IntoIterator<Item = APIGroupDiscovery>) -> Self {
        let mut apis = Self::default();
        for group in groups {
            let name = group.metadata.and_then(|metadata| metadata.name).unwrap_or_default();
            for version in group.versions {
                let number = version.version.unwrap_or_default();
                let is_stale = version.freshness.as_deref() == Some("Stale");
                let resources = version.resources.into_iter();
                let served = resources.filter_map(|r| Served::of(&name, &number, r)).collect();
                let api_version = if name.is_empty() { number } else { format!("{name}/{number}") };
                apis.served.push((api_version, (!is_stale).then_some(served)));
            }
        }
        apis
    }

    /// Returns the same APIs, as served by a server of this version.
    #[must_use]
    pub fn with_version(self, version: String) -> Self {
        Self { version, ..self }
    }

    /// The server's version, for instance `1.36`.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Whether an API is served, for instance `policy/v1` or `policy/v1/PodDisruptionBudget`. `None` if that
    /// is unknown because the server of its group does not answer.
    ///
    /// # Errors
    /// The text is not the name of an API.
    pub fn has(&self, api: &str) -> Result<Option<bool>, String> {
        let (version, kind) = match api.rsplit_once('/') {
            Some((version, kind)) if kind.starts_with(|c: char| c.is_ascii_uppercase()) => {
                (version, Some(kind))
            }
            _ => (api, None),
        };
        let number = version.rsplit('/').next().unwrap_or_default();
        if version.matches('/').count() > 1 || !number.starts_with('v') {
            return Err("wanted an API such as 'policy/v1', or 'policy/v1/PodDisruptionBudget'".into());
        }
        Ok(match (self.served.iter().find(|(known, _)| known == version), kind) {
            (None, _) => Some(false),
            (Some((_, None)), _) => None,
            (Some((_, Some(_))), None) => Some(true),
            (Some((_, Some(served))), Some(kind)) => Some(served.iter().any(|one| one.kind.kind == kind)),
        })
    }

    /// The resource of a kind; `None` if the server has none.
    ///
    /// # Errors
    /// The server of the kind's group does not answer.
    pub fn find(&self, gvk: &Gvk) -> Result<Option<&Served>, CallError> {
        match self.served.iter().find(|(api_version, _)| **api_version == *gvk.api_version) {
            None => Ok(None),
            Some((_, Some(served))) => Ok(served.iter().find(|one| *one.kind.kind == *gvk.kind)),
            Some((api_version, None)) => Err(no_answer(api_version)),
        }
    }

    /// The resource of a kind in any version of its group, the preferred one first.
    ///
    /// # Errors
    /// No known version has the kind, and the server of another version does not answer.
    pub fn find_in_any_version(&self, gvk: &Gvk) -> Result<Option<&Served>, CallError> {
        let mut failed = None;
        for (api_version, _) in &self.served {
            let other = Gvk::new(api_version.as_str(), Arc::clone(&gvk.kind));
            if other.group() == gvk.group() {
                match self.find(&other) {
                    Ok(None) => {}
                    Ok(found) => return Ok(found),
                    Err(error) => failed = Some(error),
                }
            }
        }
        failed.map_or(Ok(None), Err)
    }

    /// All resources whose objects can be listed, the preferred version of each group first.
    pub fn listable(&self) -> impl Iterator<Item = &Served> {
        self.served.iter().filter_map(|(_, served)| served.as_ref()).flatten().filter(|one| one.is_listable)
    }

    /// A hint for a kind that is not served: the same kind in another version or group, or a kind with a
    /// similar name. Kinds of the same group come before those of others.
    pub fn hint(&self, gvk: &Gvk) -> String {
        let (kind, group) = (&*gvk.kind, gvk.group());
        let versions = |is_meant: &dyn Fn(&ApiKind) -> bool| {
            let mut all: Vec<String> =
                self.listable().filter(|s| is_meant(&s.kind)).map(|s| s.kind.api_version()).collect();
            all.sort();
            all.dedup();
            all
        };
        let same = versions(&|other| other.kind == kind && other.group == group);
        let elsewhere = versions(&|other| other.kind == kind);
        match (same.as_slice(), elsewhere.as_slice()) {
            ([], []) => {}
            ([], [one]) => return format!("did you mean {kind} of {one}?"),
            ([], many) => return format!("did you mean {kind} of one of {}?", many.join(", ")),
            ([one], _) => return format!("did you mean {one}?"),
            (many, _) => return format!("it serves these versions: {}", many.join(", ")),
        }
        let near = |is_meant: &dyn Fn(&ApiKind) -> bool| {
            let names = self.listable().filter(|s| is_meant(&s.kind)).map(|s| s.kind.kind.as_str());
            let name = did_you_mean(kind, names)?;
            let of = versions(&|other| other.kind == name && is_meant(other));
            Some(format!("did you mean {name} of {}? If not, install its CRD", of.join(" or ")))
        };
        near(&|other| other.group == group)
            .or_else(|| near(&|_| true))
            .unwrap_or_else(|| INSTALLED.to_owned())
    }
}

fn no_answer(api_version: &str) -> CallError {
    let message = format!("the server of the API {api_version} does not answer");
    CallError::new(Class::Retry, 503, "ServiceUnavailable", message)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn apis(groups: Value) -> Apis {
        let groups: Vec<APIGroupDiscovery> = serde_json::from_value(groups).unwrap();
        Apis::new(groups)
    }

    fn kind(kind: &str) -> Value {
        json!({"resource": "things", "responseKind": {"kind": kind}, "verbs": ["list"], "scope": "Namespaced"})
    }

    #[test]
    fn group_without_an_answer_is_unknown() {
        let apis = apis(json!([
            {"metadata": {"name": "policy"}, "versions": [
                {"version": "v1", "resources": [kind("PodDisruptionBudget")], "freshness": "Current"},
            ]},
            {"metadata": {"name": "metrics.k8s.io"}, "versions": [{"version": "v1beta1", "freshness": "Stale"}]},
            {"metadata": {}, "versions": [{"version": "v1", "resources": [kind("Pod")], "freshness": "Current"}]},
        ]));
        for (api, answer) in [
            ("policy/v1", Some(true)),
            ("policy/v1/PodDisruptionBudget", Some(true)),
            ("policy/v1/PodDisruptionBudge", Some(false)),
            ("policy/v2", Some(false)),
            ("v1", Some(true)),
            ("v1/Pod", Some(true)),
            ("v1/Thing", Some(false)),
            ("metrics.k8s.io/v1beta1", None),
            ("metrics.k8s.io/v1beta1/NodeMetrics", None),
            ("metrics.k8s.io/v1", Some(false)),
        ] {
            assert_eq!(apis.has(api), Ok(answer), "{api}");
        }
        for api in ["", "policy", "Pod", "a/b/v1", "policy/v1/pods"] {
            assert!(apis.has(api).is_err(), "{api}");
        }
        assert!(apis.find(&Gvk::new("metrics.k8s.io/v1beta1", "NodeMetrics")).is_err());
        assert!(apis.find(&Gvk::new("v1", "Pod")).unwrap().is_some());
        assert!(apis.find(&Gvk::new("v1", "Thing")).unwrap().is_none());
    }

    #[test]
    fn kind_is_found_in_any_served_version() {
        let of = |versions: &[(&str, bool)], name: &str| {
            let versions = versions.iter().map(|(version, answers)| {
                let freshness = if *answers { "Current" } else { "Stale" };
                json!({"version": version, "resources": [kind("Gadget")], "freshness": freshness})
            });
            let versions: Vec<Value> = versions.collect();
            let apis = apis(json!([{"metadata": {"name": "example.org"}, "versions": versions}]));
            let found = apis.find_in_any_version(&Gvk::new("example.org/v1", name));
            found.map(|found| found.map(|served| served.kind.version.clone()))
        };
        assert_eq!(of(&[("v1", true), ("v2", true)], "Gadget").unwrap().as_deref(), Some("v1"));
        assert_eq!(of(&[("v2", true)], "Gadget").unwrap().as_deref(), Some("v2"));
        assert_eq!(of(&[("v2", true)], "Widget").unwrap(), None);
        assert_eq!(of(&[], "Gadget").unwrap(), None);
        assert!(of(&[("v1", false), ("v2", true)], "Widget").is_err());
    }

    #[test]
    fn hint_names_similar_kinds() {
        let group = |name: &str, versions: &[(&str, &str)]| {
            let versions: Vec<Value> = versions
                .iter()
                .map(|(version, name)| json!({"version": version, "resources": [kind(name)]}))
                .collect();
            json!({"metadata": {"name": name}, "versions": versions})
        };
        let apis = apis(json!([
            group("", &[("v1", "Service")]),
            group("apps", &[("v1", "Deployment")]),
            group("networking.k8s.io", &[("v1", "Ingress")]),
            group("serving.example.org", &[("v1", "Service")]),
            group("example.org", &[("v1", "Gadget"), ("v2", "Gadget")]),
        ]));
        for (api_version, name, expected) in [
            ("apps/v1", "Deploymnet", "did you mean Deployment of apps/v1? If not, install its CRD"),
            ("v1", "Deployment", "did you mean Deployment of apps/v1?"),
            ("extensions/v1beta1", "Ingress", "did you mean Ingress of networking.k8s.io/v1?"),
            ("v2", "Service", "did you mean v1?"),
            ("other.org/v1", "Service", "did you mean Service of one of serving.example.org/v1, v1?"),
            ("example.org/v1beta1", "Gadget", "it serves these versions: example.org/v1, example.org/v2"),
            (
                "example.org/v1",
                "Gaget",
                "did you mean Gadget of example.org/v1 or example.org/v2? If not, install its CRD",
            ),
            ("monitoring.coreos.com/v1", "ServiceMonitor", INSTALLED),
        ] {
            assert_eq!(apis.hint(&Gvk::new(api_version, name)), expected, "{api_version} {name}");
        }
    }
}
