//! The HTTPS server of the webhook.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;
use tracing::{debug, error, warn};

use super::super::accept::accept;
use super::review::Review;
use super::{Current, Webhook, certificates};
use crate::cluster::Cluster;

/// The largest request. An API server sends the objects of one request; each has at most 1.5 MiB in etcd.
const MAX_BODY: usize = 32 << 20;
/// How many requests are read and answered at once, so that large ones do not take all memory.
const REQUESTS: usize = 16;
/// The time for a TLS handshake.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// The time until the head of the next request. API servers close unused connections after 90 s; if the server were the
/// first, a request could be lost.
const IDLE: Duration = Duration::from_secs(120);
/// The time for one request. API servers wait for 30 s.
const WHOLE: Duration = Duration::from_secs(25);
/// The maximum number of open connections. Beyond it the oldest is closed.
const CONNECTIONS: usize = 256;

/// Serves until it is dropped.
pub(super) async fn serve(webhook: Arc<Webhook>, listener: TcpListener, cluster: Cluster) {
    let config = rustls::ServerConfig::builder_with_provider(certificates::provider())
        .with_safe_default_protocol_versions()
        .map(|builder| {
            builder.with_no_client_auth().with_cert_resolver(Arc::new(Current(Arc::clone(&webhook))))
        });
    let mut config = match config {
        Ok(config) => config,
        Err(error) => {
            error!(%error, "TLS cannot be used; the conversion webhook is not served");
            return;
        }
    };
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let server = Arc::new(Server { webhook, cluster, requests: Semaphore::new(REQUESTS) });
    let connection = |stream| connection(Arc::clone(&server), acceptor.clone(), stream);
    accept(listener, CONNECTIONS, "the conversion webhook", connection).await;
}

struct Server {
    webhook: Arc<Webhook>,
    cluster: Cluster,
    requests: Semaphore,
}

async fn connection(server: Arc<Server>, acceptor: TlsAcceptor, stream: TcpStream) {
    let _ = stream.set_nodelay(true);
    let Ok(Ok(stream)) = tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await else {
        debug!("a TLS handshake with the conversion webhook failed");
        return;
    };
    // The webhook counts its connections by these.
    let retired = server.webhook.retired.subscribe();
    let service = service_fn(move |request: Request<Incoming>| {
        let server = Arc::clone(&server);
        let retired = retired.clone();
        async move {
            let answer = tokio::time::timeout(WHOLE, server.answer(request)).await;
            let mut answer =
                answer.unwrap_or_else(|_| text(StatusCode::REQUEST_TIMEOUT, "the request took too long\n"));
            if *retired.borrow() {
                answer.headers_mut().insert(header::CONNECTION, header::HeaderValue::from_static("close"));
            }
            Ok::<_, Infallible>(answer)
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE)
        .serve_connection(TokioIo::new(stream), service);
    if let Err(error) = connection.await {
        debug!(%error, "a connection to the conversion webhook failed");
    }
}

impl Server {
    async fn answer(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let path = request.uri().path().to_owned();
        let parts: Vec<&str> = path.split('/').collect();
        let ["", "convert", crd, digest] = parts[..] else {
            return text(StatusCode::NOT_FOUND, "available: /convert/<crd>/<digest of its rules>\n");
        };
        let is_name = |text: &str| {
            !text.is_empty()
                && text.len() <= 253
                && text
                    .bytes()
                    .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'.'))
        };
        if !is_name(crd) || !crd.contains('.') || !is_name(digest) {
            return text(StatusCode::NOT_FOUND, "no such CRD\n");
        }
        if request.method() != Method::POST {
            return text(StatusCode::METHOD_NOT_ALLOWED, "only POST\n");
        }
        let Ok(_permit) = self.requests.acquire().await else {
            return text(StatusCode::SERVICE_UNAVAILABLE, "stopping\n");
        };
        let Ok(body) = Limited::new(request.into_body(), MAX_BODY).collect().await else {
            let message = format!("the body is larger than {} MiB, or was cut off\n", MAX_BODY >> 20);
            return text(StatusCode::PAYLOAD_TOO_LARGE, &message);
        };
        let body = body.to_bytes();
        let rules = self.webhook.rules(&self.cluster, crd, digest).await;
        let crd = crd.to_owned();
        // Not on the threads of the connections. A panic is contained.
        let answer = tokio::task::spawn_blocking(move || {
            let review = Review::read(&body).map_err(|error| error.to_string())?;
            Ok::<_, String>(match rules {
                Ok(rules) => review.answer(&rules),
                Err(message) => {
                    warn!(%crd, "objects cannot be converted: {message}");
                    review.refuse(&message)
                }
            })
        });
        match answer.await {
            Ok(Ok(answer)) => {
                let mut response = Response::new(Full::new(Bytes::from(answer.to_string())));
                response
                    .headers_mut()
                    .insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
                response
            }
            Ok(Err(message)) => text(StatusCode::BAD_REQUEST, &format!("{message}\n")),
            Err(error) => {
                error!(%error, "a conversion panicked; this is a bug of Operetta");
                text(StatusCode::INTERNAL_SERVER_ERROR, "the conversion failed\n")
            }
        }
    }
}

fn text(status: StatusCode, text: &str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(text.to_owned())));
    *response.status_mut() = status;
    response
}

#[cfg(test)]
mod tests {
    use rustls::pki_types::ServerName;
    use rustls::pki_types::pem::PemObject as _;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;
    use crate::clock;
    use crate::manager::webhook::certificates::Stored;
    use crate::manager::webhook::{WebhookAddress, lock};

    #[tokio::test]
    async fn a_connection_ends_with_the_first_answer_after_the_webhook_is_retired() {
        let webhook = Webhook::new(WebhookAddress::url("https://127.0.0.1:1").unwrap(), "o", "o");
        let names = vec!["127.0.0.1".to_owned()];
        let stored = Stored::default().renewed(&names, clock::now()).unwrap().unwrap();
        webhook.load(&stored);
        let ca = lock(&webhook.material).as_ref().unwrap().ca.clone();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        // No request reaches an API server.
        let unused = |_: Request<kube::client::Body>| async {
            Err::<Response<kube::client::Body>, tower::BoxError>("not used".into())
        };
        let cluster = Cluster::new(kube::Client::new(tower::service_fn(unused), "default"));
        let server = tokio::spawn(serve(Arc::clone(&webhook), listener, cluster));

        let mut roots = rustls::RootCertStore::empty();
        roots.add(rustls::pki_types::CertificateDer::from_pem_slice(ca.as_bytes()).unwrap()).unwrap();
        let config = rustls::ClientConfig::builder_with_provider(certificates::provider())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let name = ServerName::try_from("127.0.0.1").unwrap();
        let stream = TcpStream::connect(address).await.unwrap();
        let mut stream =
            tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap();
        let mut answers = String::new();
        for is_retired in [false, true] {
            if is_retired {
                webhook.retire();
            }
            stream.write_all(b"GET /nothing HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
            let mut answer = Vec::new();
            while !answer.ends_with(b"digest of its rules>\n") {
                let mut bytes = [0; 1_024];
                let count = stream.read(&mut bytes).await.unwrap();
                assert!(count > 0, "{}", String::from_utf8_lossy(&answer));
                answer.extend_from_slice(&bytes[..count]);
            }
            answers = String::from_utf8(answer).unwrap();
            assert_eq!(answers.contains("connection: close"), is_retired, "{answers}");
        }
        assert_eq!(stream.read(&mut [0; 1]).await.unwrap(), 0, "{answers}");
        webhook.retired.closed().await;
        server.abort();
    }
}
