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
use tokio::net::TcpListener;
use tracing::{debug, warn};

use crate::manager::Monitor;

/// How long a client may take to say what it wants.
const HEAD: Duration = Duration::from_secs(10);
/// How many connections may be open.
const CONNECTIONS: usize = 64;

/// Answers until it is dropped.
pub(super) async fn serve(listener: TcpListener, monitor: Arc<Monitor>) {
    let room = Arc::new(tokio::sync::Semaphore::new(CONNECTIONS));
    loop {
        let Ok(place) = Arc::clone(&room).acquire_owned().await else { return };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                warn!(%error, "a connection to /metrics and the rest cannot be accepted");
                tokio::time::sleep(Duration::from_secs(1)).await;
                continue;
            }
        };
        let monitor = Arc::clone(&monitor);
        tokio::spawn(async move {
            let _place = place;
            let service = service_fn(move |request: Request<Incoming>| {
                let response = answer(&monitor, request.method(), request.uri().path());
                async move { Ok::<_, Infallible>(response) }
            });
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD)
                // Else those who keep theirs open take all the places.
                .keep_alive(false)
                .serve_connection(TokioIo::new(stream), service);
            if let Err(error) = connection.await {
                debug!(%error, "a connection to /metrics and the rest has ended badly");
            }
        });
    }
}

fn answer(monitor: &Monitor, method: &Method, path: &str) -> Response<Full<Bytes>> {
    const TEXT: &str = "text/plain; charset=utf-8";
    let (status, content, body) = match path {
        _ if !matches!(*method, Method::GET | Method::HEAD) => {
            (StatusCode::METHOD_NOT_ALLOWED, TEXT, "only GET\n".to_owned())
        }
        "/metrics" => {
            (StatusCode::OK, "application/openmetrics-text; version=1.0.0; charset=utf-8", monitor.metrics())
        }
        // That it answers is all: whether the API server does is no reason to be restarted.
        "/healthz" | "/livez" => (StatusCode::OK, TEXT, "ok\n".to_owned()),
        "/readyz" => match monitor.ready() {
            Ok(text) => (StatusCode::OK, TEXT, format!("{text}\n")),
            Err(text) => (StatusCode::SERVICE_UNAVAILABLE, TEXT, format!("{text}\n")),
        },
        "/debug/state" => (StatusCode::OK, "application/json", format!("{:#}\n", monitor.state())),
        _ => (
            StatusCode::NOT_FOUND,
            TEXT,
            "there are /metrics, /healthz, /readyz and /debug/state\n".to_owned(),
        ),
    };
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(content));
    response
}
