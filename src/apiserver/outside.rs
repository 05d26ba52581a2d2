//! Servers beyond the API, in place of the network: the programs of the API answer for them.

use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{HeaderName, HeaderValue, Request, Response, StatusCode};
use operetta_embedded::{Call, Reply};

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
            let (parts, body) = request.into_parts();
            let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
            let headers: Vec<(String, String)> =
                parts.headers.iter().map(|(name, value)| (name.to_string(), text(value))).collect();
            let (method, url) = (parts.method.as_str(), parts.uri.to_string());
            let reply = self.with(|api, now| {
                api.call(&Call { method, url: &url, headers: &headers, body: &body, now })
            })?;
            tokio::time::sleep(reply.takes).await;
            Ok(to_http(reply))
        })
    }
}

fn to_http(reply: Reply) -> Response<Bytes> {
    let mut response = Response::new(Bytes::from(reply.body));
    *response.status_mut() = StatusCode::from_u16(reply.status).unwrap_or_default();
    for (name, value) in reply.headers {
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) {
            response.headers_mut().append(name, value);
        }
    }
    response
}
