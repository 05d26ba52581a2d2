//! Servers beyond the API, in place of the network: the programs of the API answer for them.

use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Request, Response};

use super::Server;
use crate::cluster::Outside;

impl Server {
    /// What answers the HTTP requests of packages.
    pub fn outside(&self) -> Arc<dyn Outside> {
        Arc::new(self.clone())
    }
}

impl Outside for Server {
    fn call(&self, request: Request<Bytes>) -> BoxFuture<'_, Result<Response<Bytes>, String>> {
        Box::pin(async move {
            Err(format!("no world says what {} answers: add tests/world.yaml to the package", request.uri()))
        })
    }
}
