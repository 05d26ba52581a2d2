//! Servers beyond the API, in place of the network: the programs of the API answer for them.

use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{HeaderName, HeaderValue, Request, Response, StatusCode};
use operetta_embedded::{Api, Call, CallResponse};
use serde_json::Value;

use super::Server;
use crate::cluster::Outside;
use crate::plan::Pod;

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
            let called = parts.extensions.get::<Pod>();
            let reply = self.with(|api, now| {
                let pod = called.map(|pod| running(api, pod)).transpose()?;
                api.call(&Call { pod: pod.as_ref(), method, url: &url, headers: &headers, body: &body, now })
            })?;
            tokio::time::sleep(reply.takes).await;
            Ok(to_http(reply))
        })
    }
}

/// A pod that answers requests.
fn running(api: &Api, Pod { namespace, name, uid }: &Pod) -> Result<Value, String> {
    let pod = api.objects().object("v1", "Pod", namespace, name);
    let pod = pod.filter(|pod| pod["metadata"]["uid"] == **uid && pod["status"]["phase"] == "Running");
    pod.ok_or_else(|| format!("pod {name} does not run"))
}

fn to_http(reply: CallResponse) -> Response<Bytes> {
    let mut response = Response::new(Bytes::from(reply.body));
    *response.status_mut() = StatusCode::from_u16(reply.status).unwrap_or_default();
    for (name, value) in reply.headers {
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) {
            response.headers_mut().append(name, value);
        }
    }
    response
}
