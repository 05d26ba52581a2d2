//! What the API server serves: its version and its APIs, as expressions ask for them.

use std::collections::{BTreeMap, BTreeSet};

use futures::future::try_join;
use http::Method;
use kube::core::discovery::v2::{APIGroupDiscovery, APIGroupDiscoveryList};

use super::{CallError, Cluster};

/// Asks for all groups with all their kinds in one document.
const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// What discovery has said.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Apis {
    version: String,
    /// By `group/version` the kinds; none if the server of that group does not answer.
    served: BTreeMap<String, Option<BTreeSet<String>>>,
}

impl Apis {
    /// The server's version, `1.36`.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Whether an API is served: `policy/v1`, or `policy/v1/PodDisruptionBudget`. `None` if that cannot be
    /// told, for its server does not answer.
    ///
    /// # Errors
    /// The text names no API.
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
        Ok(match (self.served.get(version), kind) {
            (None, _) => Some(false),
            (Some(None), _) => None,
            (Some(Some(_)), None) => Some(true),
            (Some(Some(kinds)), Some(kind)) => Some(kinds.contains(kind)),
        })
    }

    /// Takes in a group as aggregated discovery has it.
    fn add(&mut self, group: APIGroupDiscovery) {
        let name = group.metadata.and_then(|metadata| metadata.name).unwrap_or_default();
        for version in group.versions {
            let number = version.version.unwrap_or_default();
            let api_version = if name.is_empty() { number } else { format!("{name}/{number}") };
            let is_stale = version.freshness.as_deref() == Some("Stale");
            let kinds = || version.resources.into_iter().filter_map(|r| r.response_kind?.kind).collect();
            self.served.insert(api_version, (!is_stale).then(kinds));
        }
    }
}

impl Cluster {
    /// Asks what the server serves.
    ///
    /// # Errors
    /// It does not say.
    pub async fn apis(&self) -> Result<Apis, CallError> {
        let mut apis = Apis { version: self.version().await?, ..Apis::default() };
        for group in self.groups().await? {
            apis.add(group);
        }
        Ok(apis)
    }

    /// Aggregated discovery: all groups with all their kinds, in two requests. Needs Kubernetes 1.30.
    ///
    /// # Errors
    /// One of the two fails.
    pub(super) async fn groups(&self) -> Result<Vec<APIGroupDiscovery>, CallError> {
        let ask = |path| self.send(Method::GET, path, AGGREGATED, (None, None), super::reply::MAX_PAGE);
        let (core, groups) = try_join(ask("/api"), ask("/apis")).await?;
        let mut all = Vec::new();
        for list in [core, groups] {
            let list: APIGroupDiscoveryList = serde_json::from_value(list)
                .map_err(|_| CallError::unreachable("the answer is no list of API groups"))?;
            all.extend(list.items);
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_does_not_answer_is_unknown_and_not_absent() {
        let mut apis = Apis::default();
        let pdb =
            json!([{"resource": "poddisruptionbudgets", "responseKind": {"kind": "PodDisruptionBudget"}}]);
        let mut add = |groups: serde_json::Value| {
            let groups: Vec<APIGroupDiscovery> = serde_json::from_value(groups).unwrap();
            for group in groups {
                apis.add(group);
            }
        };
        add(json!([
            {"metadata": {"name": "policy"}, "versions": [{"version": "v1", "resources": pdb, "freshness": "Current"}]},
            {"metadata": {"name": "metrics.k8s.io"}, "versions": [{"version": "v1beta1", "freshness": "Stale"}]},
        ]));
        add(json!([{"metadata": {}, "versions": [
            {"version": "v1", "resources": [{"responseKind": {"kind": "Pod"}}], "freshness": "Current"},
        ]}]));
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
    }
}
