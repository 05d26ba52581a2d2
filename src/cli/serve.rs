//! `/metrics`, `/healthz`, `/readyz` and `/debug/state`, over HTTP. None of them asks the API server.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http::{Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tracing::debug;

use crate::manager::{Monitor, accept};

/// The time for the head of a request. A probe on the same network takes milliseconds.
const HEAD: Duration = Duration::from_secs(2);
/// The time for a whole connection, so that a client that does not read its answer does not occupy a place forever.
const WHOLE: Duration = Duration::from_secs(30);
/// The maximum number of open connections. Beyond it the oldest is closed.
const CONNECTIONS: usize = 64;

/// Serves the endpoints until the future is dropped.
pub(super) async fn serve(listener: TcpListener, monitor: Arc<Monitor>) {
    serve_within(listener, monitor, HEAD).await;
}

async fn serve_within(listener: TcpListener, monitor: Arc<Monitor>, head: Duration) {
    let connection = |stream, _| {
        let connection = connection(stream, Arc::clone(&monitor), head);
        async move {
            if tokio::time::timeout(WHOLE, connection).await.is_err() {
                debug!("a connection to the endpoints exceeded its deadline");
            }
        }
    };
    accept(listener, CONNECTIONS, "the endpoints", connection).await;
}

async fn connection(stream: TcpStream, monitor: Arc<Monitor>, head: Duration) {
    let is_local = stream.peer_addr().is_ok_and(|peer| peer.ip().to_canonical().is_loopback());
    let service = service_fn(move |request: Request<Incoming>| {
        let response = answer(&monitor, request.method(), request.uri().path(), is_local);
        async move { Ok::<_, Infallible>(response) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(head)
        // Otherwise open connections would occupy all places.
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    if let Err(error) = connection.await {
        debug!(%error, "a connection to the endpoints failed");
    }
}

/// `is_local`: whether the client is on this machine, or in this pod, as for `kubectl port-forward`.
fn answer(monitor: &Monitor, method: &Method, path: &str, is_local: bool) -> Response<Full<Bytes>> {
    const TEXT: &str = "text/plain; charset=utf-8";
    let (status, content, body) = match path {
        _ if !matches!(*method, Method::GET | Method::HEAD) => {
            (StatusCode::METHOD_NOT_ALLOWED, TEXT, "only GET\n".to_owned())
        }
        "/metrics" => {
            (StatusCode::OK, "application/openmetrics-text; version=1.0.0; charset=utf-8", monitor.metrics())
        }
        // The state of the API server does not matter: a restart would not help.
        "/healthz" | "/livez" => (StatusCode::OK, TEXT, "ok\n".to_owned()),
        "/readyz" => match monitor.ready() {
            Ok(text) => (StatusCode::OK, TEXT, format!("{text}\n")),
            Err(text) => (StatusCode::SERVICE_UNAVAILABLE, TEXT, format!("{text}\n")),
        },
        // The state names objects of all namespaces.
        "/debug/state" if !is_local => (
            StatusCode::FORBIDDEN,
            TEXT,
            "only from the same machine or pod: use `kubectl port-forward`\n".to_owned(),
        ),
        "/debug/state" => (StatusCode::OK, "application/json", format!("{:#}\n", monitor.state())),
        _ => (
            StatusCode::NOT_FOUND,
            TEXT,
            "available: /metrics, /healthz, /readyz and /debug/state\n".to_owned(),
        ),
    };
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(content));
    response
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    async fn ask(address: std::net::SocketAddr, path: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n").as_bytes()).await.unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        text
    }

    #[test]
    fn the_state_is_shown_only_on_the_same_machine() {
        for (path, is_local, status) in
            [("/debug/state", true, 200), ("/debug/state", false, 403), ("/metrics", false, 200)]
        {
            let response = answer(&Monitor::default(), &Method::GET, path, is_local);
            assert_eq!(response.status(), status, "{path}");
        }
    }

    #[tokio::test]
    async fn stuck_connections_do_not_block_probes() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        // The deadlines are too long to end connections during the test.
        let hour = Duration::from_secs(3_600);
        let server = tokio::spawn(serve_within(listener, Arc::default(), hour));
        let mut stuck = Vec::new();
        for number in 0..200 {
            let mut stream = TcpStream::connect(address).await.unwrap();
            // Half a request head; nothing; a complete request whose answer is not read.
            let sent: &[u8] = match number % 3 {
                0 => b"GET /healthz HTTP/1.1\r\nhost:",
                1 => b"",
                _ => b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n",
            };
            stream.write_all(sent).await.unwrap();
            stuck.push(stream);
        }
        for path in ["/healthz", "/metrics", "/readyz", "/debug/state"] {
            assert!(ask(address, path).await.starts_with("HTTP/1.1 "), "{path}");
        }
        assert!(!server.is_finished());
        server.abort();
    }
}
