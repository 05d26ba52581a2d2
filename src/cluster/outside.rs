//! Servers beyond the API server: what answers the HTTP requests of packages in place of the network.

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Request, Response};

/// Answers HTTP requests of steps and observations, such as in a simulated cluster.
pub trait Outside: Send + Sync {
    /// Answers a request with a whole URL; one to a pod has the [`crate::plan::Pod`] as an extension. The error says why no
    /// server is known there.
    fn call(&self, request: Request<Bytes>) -> BoxFuture<'_, Result<Response<Bytes>, String>>;
}
