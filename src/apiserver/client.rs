//! Clients in the same process, without sockets.

use std::convert::Infallible;

use http::header::HOST;
use http::{HeaderValue, Request, Response};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use kube::client::Body;
use operetta_embedded::User;
use tower::BoxError;

use super::Server;
use super::exec::wants_upgrade;
use super::reply::{ResponseBody, boxed};

/// The size of the buffers of an upgraded connection.
const BUFFER: usize = 64 << 10;

impl Server {
    /// A client whose requests are answered in the process. Call it within a runtime.
    pub fn client(&self) -> kube::Client {
        self.client_as(self.0.admin.clone())
    }

    /// A client of a user.
    pub fn client_as(&self, user: User) -> kube::Client {
        let server = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let (server, user) = (server.clone(), user.clone());
            async move {
                if wants_upgrade(&request) {
                    return server.upgrade(request, user).await;
                }
                Ok::<_, BoxError>(server.answer(request, &user).await)
            }
        });
        kube::Client::new(service, "default")
    }

    /// Sends a request that changes the protocol over a connection in memory: only hyper makes the streams of an
    /// upgrade.
    async fn upgrade(
        &self,
        mut request: Request<Body>,
        user: User,
    ) -> Result<Response<ResponseBody>, BoxError> {
        let (ours, theirs) = tokio::io::duplex(BUFFER);
        let server = self.clone();
        let service = service_fn(move |request: Request<Incoming>| {
            let (server, user) = (server.clone(), user.clone());
            async move { Ok::<_, Infallible>(server.answer(request, &user).await) }
        });
        let served =
            hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(theirs), service);
        tokio::spawn(served.with_upgrades());
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(ours)).await?;
        tokio::spawn(connection.with_upgrades());
        request.headers_mut().insert(HOST, HeaderValue::from_static("embedded"));
        Ok(sender.send_request(request).await?.map(boxed))
    }
}
