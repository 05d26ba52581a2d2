//! Lists of any length, a page at a time.

use std::time::Duration;

use http::Method;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ListMeta;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tracing::debug;

use super::reply::{MAX_PAGE, MAX_REPLY, is_reply_too_large};
use super::{Cluster, JSON, encode};
use crate::api::{ApiKind, CallError, Class};
use crate::backoff::{Backoff, Retry};

/// The number of objects of a page, the same as in kubectl.
const PAGE: u32 = 500;
/// How often a page is requested if the caller does not retry.
const ATTEMPTS: u32 = 4;
/// The wait before a page is requested again.
const AGAIN: Backoff = Backoff::new(Duration::from_millis(250), Duration::from_secs(10));
/// The content type of a list of objects without spec and status.
const METADATA_ONLY: &str =
    "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json";

/// The selection of a list.
#[derive(Debug, Clone, Copy, Default)]
pub struct Query<'a> {
    /// The namespace; `None` is all.
    pub namespace: Option<&'a str>,
    /// A label selector; may be empty.
    pub labels: &'a str,
    /// Whether only metadata is requested.
    pub metadata_only: bool,
    /// The number of objects of a page, for objects that may be large.
    pub page: Option<u32>,
}

#[derive(Deserialize)]
struct Page<T> {
    #[serde(default)]
    metadata: ListMeta,
    /// A server in Go may send null for an empty list.
    #[serde(default = "Option::default")]
    items: Option<Vec<T>>,
}

impl Cluster {
    /// All objects that a label selector matches. The caller retries a failed page.
    ///
    /// # Errors
    /// The first failure.
    pub async fn list(
        &self,
        kind: &ApiKind,
        namespace: Option<&str>,
        selector: &str,
    ) -> Result<Vec<Value>, CallError> {
        let query = Query { namespace, labels: selector, ..Query::default() };
        self.pages(kind, &query, 1, |object| object).await
    }

    /// All objects that a query matches, each reduced to what the caller keeps before the next page arrives.
    ///
    /// # Errors A page fails several times.
    pub async fn list_all<T: DeserializeOwned, R>(
        &self,
        kind: &ApiKind,
        query: &Query<'_>,
        keep: impl Fn(T) -> R,
    ) -> Result<Vec<R>, CallError> {
        self.pages(kind, query, ATTEMPTS, keep).await
    }

    async fn pages<T: DeserializeOwned, R>(
        &self,
        kind: &ApiKind,
        query: &Query<'_>,
        attempts: u32,
        keep: impl Fn(T) -> R,
    ) -> Result<Vec<R>, CallError> {
        let mut kept = Vec::new();
        let (mut limit, mut next) = (query.page.unwrap_or(PAGE), String::new());
        loop {
            let page: Page<T> = match self.page(kind, query, attempts, (limit, &next)).await {
                Err(error) if is_reply_too_large(&error) && limit > 1 => {
                    debug!(%kind, limit, "a page is too large; asking for fewer objects");
                    limit = (limit / 8).max(1);
                    continue;
                }
                // The snapshot of the pages expires after five minutes: then the list is requested as a whole.
                Err(error) if error.code == 410 && !next.is_empty() => {
                    kept.clear();
                    (limit, next) = (0, String::new());
                    continue;
                }
                page => page?,
            };
            kept.extend(page.items.into_iter().flatten().map(&keep));
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => next = token,
                None => return Ok(kept),
            }
        }
    }

    async fn page<T: DeserializeOwned>(
        &self,
        kind: &ApiKind,
        query: &Query<'_>,
        attempts: u32,
        (limit, next): (u32, &str),
    ) -> Result<Page<T>, CallError> {
        let path = path(kind, query, limit, next)?;
        // Without a limit the list is not paged.
        let most = if limit == 0 { MAX_REPLY } else { MAX_PAGE };
        let accept = if query.metadata_only { METADATA_ONLY } else { JSON };
        let mut retry = Retry::new(AGAIN);
        let mut left = attempts;
        loop {
            let permit = self.leave().await;
            let error = match self.send(Method::GET, &path, accept, (None, None), most).await {
                Ok(page) => return Ok(page),
                Err(error) => error,
            };
            drop(permit);
            left = left.saturating_sub(1);
            // A server that does not answer is not retried, because a person may wait.
            if error.class != Class::Retry || error.code == 0 || left == 0 {
                return Err(error);
            }
            debug!(%kind, %error, "trying again");
            let wait = retry.failed();
            tokio::time::sleep(error.retry_after.unwrap_or(wait)).await;
        }
    }
}

fn path(kind: &ApiKind, query: &Query<'_>, limit: u32, next: &str) -> Result<String, CallError> {
    let mut parameters = Vec::new();
    if limit > 0 {
        parameters.push(format!("limit={limit}"));
    }
    for (name, value) in [("labelSelector", query.labels), ("continue", next)] {
        if !value.is_empty() {
            parameters.push(format!("{name}={}", encode(value)));
        }
    }
    let path = super::path::path(kind, query.namespace, None)?;
    Ok(if parameters.is_empty() { path } else { format!("{path}?{}", parameters.join("&")) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_asks_for_one_page() {
        let kind = ApiKind {
            group: "apps".into(),
            version: "v1".into(),
            kind: "Deployment".into(),
            plural: "deployments".into(),
            namespaced: true,
        };
        let all = Query::default();
        assert_eq!(path(&kind, &all, 0, "").unwrap(), "/apis/apps/v1/deployments");
        let some = Query { namespace: Some("n"), labels: "a in (b,c)", ..Query::default() };
        assert_eq!(
            path(&kind, &some, 500, "x=").unwrap(),
            "/apis/apps/v1/namespaces/n/deployments?limit=500&labelSelector=a%20in%20%28b%2Cc%29&continue=x%3D"
        );
    }
}
