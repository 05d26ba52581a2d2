//! One HTTP request after another to one registry: connections, TLS, timeouts, bounded bodies.

use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};
use tokio::time::timeout;

/// How long a connection may take.
const CONNECT: Duration = Duration::from_secs(10);
/// How long a registry may take to begin an answer, and to continue one.
pub(crate) const STALL: Duration = Duration::from_secs(30);

/// A client of HTTP.
#[derive(Debug, Clone)]
pub(crate) struct Transport(Client<HttpsConnector<HttpConnector>, Full<Bytes>>);

/// The head of an answer.
pub(crate) struct Head {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
}

/// Why there is no answer, or no whole one.
pub(crate) enum Broken {
    /// The connection failed or ended.
    Connection(String),
    /// Nothing listens on the port.
    Refused(String),
    /// The body is larger than the limit.
    TooLarge,
}

impl Transport {
    /// A client that trusts the system's authorities, or only those in `ca` (PEM).
    pub(crate) fn new(ca: Option<&[u8]>) -> Result<Self, String> {
        let provider = Arc::new(ring::default_provider());
        let verifier = match ca {
            Some(ca) => given_roots(ca, &provider)?,
            None => system_roots(&provider)?,
        };
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .dangerous()
            .with_custom_certificate_verifier(verifier)
            .with_no_client_auth();
        let mut http = HttpConnector::new();
        http.enforce_http(false);
        http.set_connect_timeout(Some(CONNECT));
        http.set_nodelay(true);
        // Which scheme a registry is called by is decided by its name and the flags.
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(config)
            .https_or_http()
            .enable_http1()
            .wrap_connector(http);
        Ok(Self(Client::builder(TokioExecutor::new()).build(connector)))
    }

    /// Sends a request. The body of the answer is appended to `body`, which keeps what was read if the connection
    /// breaks; `limit` is how many bytes it may have then.
    pub(crate) async fn send(
        &self,
        request: Request<Full<Bytes>>,
        body: &mut Vec<u8>,
        limit: impl FnOnce(&Head, &mut Vec<u8>) -> u64,
    ) -> Result<Head, Broken> {
        let stalled = || Broken::Connection(format!("no answer within {} s", STALL.as_secs()));
        let answer = timeout(STALL, self.0.request(request)).await.map_err(|_| stalled())?;
        let (parts, incoming) = answer.map_err(|error| failed(&error))?.into_parts();
        let head = Head { status: parts.status, headers: parts.headers };
        let limit = limit(&head, body);
        match read(incoming, body, limit).await {
            // The body of an error is for people only.
            Err(_) if head.status.is_client_error() || head.status.is_server_error() => Ok(head),
            Err(broken) => Err(broken),
            Ok(()) => Ok(head),
        }
    }
}

async fn read(mut incoming: Incoming, body: &mut Vec<u8>, limit: u64) -> Result<(), Broken> {
    loop {
        let frame = timeout(STALL, incoming.frame()).await;
        let frame = frame
            .map_err(|_| Broken::Connection(format!("the answer stood still for {} s", STALL.as_secs())))?;
        let Some(frame) = frame else { return Ok(()) };
        let frame = frame.map_err(|error| Broken::Connection(chain(&error)))?;
        let Some(data) = frame.data_ref() else { continue };
        if (body.len() + data.len()) as u64 > limit {
            return Err(Broken::TooLarge);
        }
        body.extend_from_slice(data);
    }
}

fn given_roots(pem: &[u8], provider: &Arc<CryptoProvider>) -> Result<Arc<dyn ServerCertVerifier>, String> {
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let certificates = read.ok().filter(|found| !found.is_empty());
    let certificates = certificates.ok_or("the file of --ca contains no certificate in PEM")?;
    let mut roots = RootCertStore::empty();
    for certificate in certificates {
        let added = roots.add(certificate);
        added.map_err(|error| format!("the file of --ca contains an unusable certificate: {error}"))?;
    }
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider));
    Ok(verifier.build().map_err(|error| format!("the file of --ca cannot be used: {error}"))?)
}

fn system_roots(provider: &Arc<CryptoProvider>) -> Result<Arc<dyn ServerCertVerifier>, String> {
    let verifier = rustls_platform_verifier::Verifier::new(Arc::clone(provider));
    verifier.map(|verifier| Arc::new(verifier) as Arc<dyn ServerCertVerifier>).map_err(|error| {
        format!(
            "this system has no CA certificates ({error})\n  help: install ca-certificates, or use --ca FILE"
        )
    })
}

/// Why a request was not answered.
fn failed(error: &(dyn std::error::Error + 'static)) -> Broken {
    let mut causes = std::iter::successors(Some(error), |error| error.source());
    let is_refused = causes.any(|cause| {
        cause.downcast_ref::<io::Error>().is_some_and(|io| io.kind() == ErrorKind::ConnectionRefused)
    });
    if is_refused { Broken::Refused(chain(error)) } else { Broken::Connection(chain(error)) }
}

/// An error with its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.ends_with(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}
