//! Discovery: asks the API server what it serves, in two requests, however many kinds. Needs Kubernetes 1.30.

use futures::future::try_join;
use http::Method;
use kube::core::discovery::v2::APIGroupDiscoveryList;

use super::{Cluster, reply};
use crate::api::{Apis, CallError};

/// Asks for all groups with all their kinds in one document.
const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

impl Cluster {
    /// What the server serves. Its version is not asked for.
    ///
    /// # Errors
    /// One of the two requests fails. Groups of an aggregated API server that does not answer are no error.
    pub async fn discover(&self) -> Result<Apis, CallError> {
        let ask = |path| self.send(Method::GET, path, AGGREGATED, (None, None), reply::MAX_PAGE);
        let (core, groups) = try_join(ask("/api"), ask("/apis")).await?;
        let mut all = Vec::new();
        for list in [core, groups] {
            let list: APIGroupDiscoveryList = serde_json::from_value(list)
                .map_err(|_| CallError::unreachable("the answer is no list of API groups"))?;
            all.extend(list.items);
        }
        Ok(Apis::new(all))
    }

    /// What the server serves, and its version.
    ///
    /// # Errors
    /// One of the three requests fails.
    pub async fn apis(&self) -> Result<Apis, CallError> {
        Ok(self.discover().await?.with_version(self.version().await?))
    }
}
