//! The HTTPS server of the webhook.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use http::{Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinError;
use tokio_rustls::TlsAcceptor;
use tracing::{debug, error, info, warn};

use super::super::accept::{Rank, accept};
use super::bodies::{Bodies, BodyError};
use super::review::Review;
use super::rules::{Known, RulesCache};
use super::{READ, READ_SOON, Webhook, certificates, lock};
use crate::api::ApiKind;
use crate::cluster::Cluster;
use crate::validation::dns_subdomain;

/// The largest request. An API server sends the objects of one request; each has at most 1.5 MiB in etcd.
const MAX_BODY: usize = 32 << 20;
/// The memory of all requests until they are answered.
const BODIES: usize = 64 << 20;
/// How many requests are answered at once. Each counts by its size, because a value takes up to 13 times its text.
const REQUESTS: usize = 16;
/// A request counts one for each of these, up to half of [`REQUESTS`]: an object is 8 MiB at most.
const UNIT: usize = 1 << 20;
/// The time for a body. API servers send it at once.
const BODY: Duration = Duration::from_secs(10);
/// The time for a TLS handshake.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// The time until the head of the next request. API servers close unused connections after 90 s; if the server were the
/// first, a request could be lost.
const IDLE: Duration = Duration::from_secs(120);
/// The time for one request. API servers wait for 30 s.
const WHOLE: Duration = Duration::from_secs(25);
/// The maximum number of open connections.
const CONNECTIONS: usize = 256;

/// Resolves to the present certificate of the webhook.
#[derive(Debug)]
struct Current(Arc<Webhook>);

impl ResolvesServerCert for Current {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        lock(&self.0.material).as_ref().map(|material| Arc::clone(&material.key))
    }
}

impl Webhook {
    /// Serves the webhook until the future is dropped, with the certificates of the Secret, which this does
    /// not write.
    pub async fn serve(self: Arc<Self>, listener: TcpListener, cluster: Cluster) {
        info!(address = ?self.address, "serving the conversion webhook");
        let follow = async {
            loop {
                if let Err(error) = self.read(&cluster).await {
                    warn!(%error, "the certificates of the conversion webhook cannot be read");
                }
                tokio::time::sleep(if self.is_up() { READ } else { READ_SOON }).await;
            }
        };
        tokio::join!(serve(Arc::clone(&self), listener, cluster.clone()), follow);
    }
}

/// Serves the webhook until the future is dropped.
async fn serve(webhook: Arc<Webhook>, listener: TcpListener, cluster: Cluster) {
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
    let rules = RulesCache::new(Box::new(move |crd| {
        let cluster = cluster.clone();
        Box::pin(
            async move { cluster.get(&ApiKind::crd(), None, &crd).await.map_err(|error| error.to_string()) },
        )
    }));
    let server = Arc::new(Server::new(rules));
    let connection =
        |stream, rank| connection(Arc::clone(&server), Arc::clone(&webhook), acceptor.clone(), stream, rank);
    accept(listener, CONNECTIONS, "the conversion webhook", connection).await;
}

/// The rank of a connection that was used for a conversion: API servers keep theirs.
const USED: u8 = 1;
/// The rank of a connection that was used for a conversion, while it has a request.
const IN_USE: u8 = 2;

struct Server {
    rules: RulesCache,
    bodies: Arc<Bodies>,
    requests: Arc<Semaphore>,
}

async fn connection(
    server: Arc<Server>,
    webhook: Arc<Webhook>,
    acceptor: TlsAcceptor,
    stream: TcpStream,
    rank: Rank,
) {
    let _ = stream.set_nodelay(true);
    let Ok(Ok(stream)) = tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await else {
        debug!("a TLS handshake with the conversion webhook failed");
        return;
    };
    requests(server, stream, rank, webhook.retired.subscribe()).await;
}

/// Answers the requests of a connection. The webhook counts its connections by the receivers.
async fn requests<S>(server: Arc<Server>, stream: S, rank: Rank, retired: watch::Receiver<bool>)
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let service = service_fn(move |request: Request<Incoming>| {
        let (server, rank, retired) = (Arc::clone(&server), Arc::clone(&rank), retired.clone());
        async move {
            let _ = rank.compare_exchange(USED, IN_USE, Ordering::Relaxed, Ordering::Relaxed);
            let answer = tokio::time::timeout(WHOLE, server.answer(request)).await;
            let mut answer =
                answer.unwrap_or_else(|_| text(StatusCode::REQUEST_TIMEOUT, "the request took too long\n"));
            if *retired.borrow() {
                answer.headers_mut().insert(header::CONNECTION, header::HeaderValue::from_static("close"));
            }
            if answer.status() == StatusCode::OK || rank.load(Ordering::Relaxed) == IN_USE {
                rank.store(USED, Ordering::Relaxed);
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
    fn new(rules: RulesCache) -> Self {
        Self { rules, bodies: Bodies::new(BODIES), requests: Arc::new(Semaphore::new(REQUESTS)) }
    }

    async fn answer(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let path = request.uri().path().to_owned();
        let parts: Vec<&str> = path.split('/').collect();
        let ["", "convert", crd, digest] = parts[..] else {
            return text(StatusCode::NOT_FOUND, "available: /convert/<crd>/<digest of its rules>\n");
        };
        if [crd, digest].into_iter().any(|part| dns_subdomain(part).is_some()) || !crd.contains('.') {
            return text(StatusCode::NOT_FOUND, "no such CRD\n");
        }
        if request.method() != Method::POST {
            return text(StatusCode::METHOD_NOT_ALLOWED, "only POST\n");
        }
        // The rules are looked up before the body is read, which may take memory and time.
        let known = match self.rules.find(crd, digest).await {
            Ok(known) => known,
            Err(message) => return text(StatusCode::INTERNAL_SERVER_ERROR, &format!("{message}\n")),
        };
        let read = tokio::time::timeout(BODY, self.bodies.read(request.into_body(), MAX_BODY)).await;
        let body = match read {
            Ok(Ok(body)) => body,
            Ok(Err(error)) => {
                let status = match error {
                    BodyError::TooLarge(_) => StatusCode::PAYLOAD_TOO_LARGE,
                    BodyError::CutOff => StatusCode::BAD_REQUEST,
                    BodyError::Busy => StatusCode::SERVICE_UNAVAILABLE,
                };
                return text(status, &format!("{error}\n"));
            }
            Err(_) => return text(StatusCode::REQUEST_TIMEOUT, "the body took too long\n"),
        };
        let Some(permit) = self.permit(body.bytes.len()).await else {
            return text(StatusCode::SERVICE_UNAVAILABLE, "stopping\n");
        };
        let answer = within(permit, move || {
            let Known { rules, stored } = known;
            Review::read(&body.bytes).map(|review| review.answer(&rules, &stored))
        });
        match answer.await {
            Ok(Ok(answer)) => {
                let mut response = Response::new(Full::new(Bytes::from(answer)));
                response
                    .headers_mut()
                    .insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
                response
            }
            Ok(Err(error)) => text(StatusCode::BAD_REQUEST, &format!("{error}\n")),
            Err(error) => {
                error!(%error, "a conversion panicked; this is a bug of Operetta");
                text(StatusCode::INTERNAL_SERVER_ERROR, "the conversion failed\n")
            }
        }
    }

    /// The permit to answer a request of that size.
    async fn permit(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        let units = bytes.div_ceil(UNIT).clamp(1, REQUESTS / 2);
        let units = u32::try_from(units).unwrap_or(1);
        Arc::clone(&self.requests).acquire_many_owned(units).await.ok()
    }
}

/// Runs work that does not wait, beside the threads of the connections. It goes on if no one waits for it any
/// more, so it holds the permit itself. A panic is contained.
async fn within<T: Send + 'static>(
    permit: OwnedSemaphorePermit,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, JoinError> {
    tokio::task::spawn_blocking(move || {
        let done = work();
        drop(permit);
        done
    })
    .await
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
    use serde_json::json;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};

    use super::*;
    use crate::children::names;
    use crate::clock;
    use crate::manager::webhook::certificates::Stored;
    use crate::manager::webhook::{WebhookAddress, lock};

    const RULES: &str = r#"{"group":"g.org","kind":"W","hub":"v1","versions":{"v0":{}}}"#;

    fn server() -> Arc<Server> {
        let read = |name: String| {
            let crd = json!({"metadata": {"annotations": {names::CONVERSION: RULES}}});
            let crd = (name == "ws.g.org").then_some(crd);
            Box::pin(std::future::ready(Ok(crd))) as futures::future::BoxFuture<'static, _>
        };
        Arc::new(Server::new(RulesCache::new(Box::new(read))))
    }

    /// A connection on which this was sent.
    async fn send(server: &Arc<Server>, text: &str) -> DuplexStream {
        let (mut client, stream) = tokio::io::duplex(1 << 20);
        tokio::spawn(requests(Arc::clone(server), stream, Rank::default(), watch::channel(false).1));
        client.write_all(text.as_bytes()).await.unwrap();
        client
    }

    fn head(crd: &str, length: usize) -> String {
        let digest = names::short_hash(RULES, 16);
        format!("POST /convert/{crd}/{digest} HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n")
    }

    async fn answer(mut client: DuplexStream) -> String {
        let mut text = Vec::new();
        let mut part = [0; 4_096];
        loop {
            let count = client.read(&mut part).await.unwrap();
            text.extend_from_slice(&part[..count]);
            let text = String::from_utf8_lossy(&text);
            if count == 0 || text.ends_with('}') || text.ends_with("\n\n") || text.ends_with(")\n") {
                return text.into_owned();
            }
        }
    }

    #[tokio::test]
    async fn stuck_bodies_do_not_delay_other_requests() {
        let server = server();
        let mut stuck = Vec::new();
        for _ in 0..2 * REQUESTS {
            stuck.push(send(&server, &(head("ws.g.org", 1_000) + "{")).await);
        }
        let object = json!({"apiVersion": "g.org/v0", "kind": "W", "metadata": {"name": "x"}});
        let review = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview",
            "request": {"uid": "u", "desiredAPIVersion": "g.org/v1", "objects": [object]}})
        .to_string();
        let answer = answer(send(&server, &(head("ws.g.org", review.len()) + &review)).await).await;
        assert!(answer.starts_with("HTTP/1.1 200") && answer.contains(r#""status":"Success""#), "{answer}");
    }

    #[tokio::test]
    async fn the_body_for_a_crd_without_rules_is_not_awaited() {
        let answer = answer(send(&server(), &(head("xs.g.org", 1_000) + "{")).await).await;
        assert!(answer.starts_with("HTTP/1.1 500") && answer.contains("has no rules"), "{answer}");
    }

    #[tokio::test]
    async fn a_conversion_keeps_its_permit_when_nobody_waits_for_it() {
        let server = server();
        let (go, wait) = std::sync::mpsc::channel::<()>();
        let permit = server.permit(3 * UNIT).await.unwrap();
        let work = within(permit, move || wait.recv());
        assert!(tokio::time::timeout(Duration::from_millis(10), work).await.is_err());
        assert_eq!(server.requests.available_permits(), REQUESTS - 3);
        go.send(()).unwrap();
        let all = server.requests.acquire_many(u32::try_from(REQUESTS).unwrap());
        drop(tokio::time::timeout(Duration::from_mins(1), all).await.unwrap().unwrap());
    }

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
