//! The API on the loopback address, with TLS and a token, for kubectl and other programs.

use std::convert::Infallible;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use http::header::AUTHORIZATION;
use http::{HeaderMap, Request, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use jiff::{SignedDuration, Timestamp};
use operetta_embedded::User;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
};
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tower::BoxError;
use tracing::debug;

use super::reply::status;
use super::{ADMIN, Server};
use crate::local::kubeconfig;
use crate::manager::accept;

/// The most open connections. Each watch has one.
const CONNECTIONS: usize = 1024;
/// How long before its start and for how long a certificate is valid.
const MARGIN: SignedDuration = SignedDuration::from_hours(24);
const VALID: SignedDuration = SignedDuration::from_hours(10 * 365 * 24);

/// Why the API cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// No socket.
    #[error("the API cannot be served on {0}: {1}")]
    Bind(SocketAddr, String),
    /// No certificate or token.
    #[error("the API cannot be served: {0}")]
    Material(BoxError),
}

/// No socket, with the reason.
fn unbound(address: SocketAddr, error: &io::Error) -> ListenError {
    let reason = match error.kind() {
        io::ErrorKind::AddrInUse => "the port is in use by another process".to_owned(),
        io::ErrorKind::AddrNotAvailable => {
            "this machine has no such address; bring its loopback interface up with `ip link set lo up`"
                .to_owned()
        }
        _ => error.to_string(),
    };
    ListenError::Bind(address, reason)
}

/// A socket on which the API can be served.
pub struct Listener {
    socket: TcpListener,
    address: SocketAddr,
    acceptor: TlsAcceptor,
    ca: String,
    token: Arc<str>,
    /// The secret from which tokens of `ServiceAccount`s follow.
    key: String,
}

impl std::fmt::Debug for Listener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Listener").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Listener {
    /// Listens at a port of 127.0.0.1, with a new certificate and token; 0 is a free port.
    pub async fn bind(port: u16, now: Timestamp) -> Result<Self, ListenError> {
        let wanted = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let socket = TcpListener::bind(wanted).await.map_err(|error| unbound(wanted, &error))?;
        let address = socket.local_addr().map_err(|error| unbound(wanted, &error))?;
        let (acceptor, ca) = tls(now).map_err(ListenError::Material)?;
        let random = || kubeconfig::token().map_err(|error| ListenError::Material(error.into()));
        Ok(Self { socket, address, acceptor, ca, token: random()?.into(), key: random()? })
    }

    /// Writes the kubeconfig, which only its owner can read.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write_kubeconfig(&self, path: &Path) -> io::Result<()> {
        let server = format!("https://{}", self.address);
        let text = kubeconfig::text("operetta-embedded", &server, &self.ca, ADMIN, &self.token);
        kubeconfig::write_private(path, &text)
    }

    /// Serves the API until the future is dropped.
    pub async fn serve(self, server: Server) {
        server.with(|api, now| {
            api.set_token_key(self.key);
            api.set_root_ca(self.ca, now);
        });
        let connection =
            |stream, _| connection(server.clone(), self.acceptor.clone(), Arc::clone(&self.token), stream);
        accept(self.socket, CONNECTIONS, "the embedded API", connection).await;
    }
}

async fn connection(server: Server, acceptor: TlsAcceptor, token: Arc<str>, stream: TcpStream) {
    let _ = stream.set_nodelay(true);
    let stream = match acceptor.accept(stream).await {
        Ok(stream) => stream,
        Err(error) => {
            debug!(%error, "a TLS handshake with the embedded API failed");
            return;
        }
    };
    let service = service_fn(move |request: Request<Incoming>| {
        let (server, token) = (server.clone(), Arc::clone(&token));
        async move {
            let user = server.user_of(request.headers(), &token);
            Ok::<_, Infallible>(match user {
                Some(user) => server.answer(request, &user).await,
                None => status(StatusCode::UNAUTHORIZED, "Unauthorized", "Unauthorized"),
            })
        }
    });
    let served = http1::Builder::new().serve_connection(TokioIo::new(stream), service).with_upgrades();
    if let Err(error) = served.await {
        debug!(%error, "a connection to the embedded API failed");
    }
}

impl Server {
    /// The user whose token a request has: that of the kubeconfig, or one of a `ServiceAccount`.
    fn user_of(&self, headers: &HeaderMap, token: &str) -> Option<User> {
        let given = headers.get(AUTHORIZATION)?.to_str().ok()?.strip_prefix("Bearer ")?;
        if are_equal(given, token) {
            Some(self.0.admin.clone())
        } else {
            self.lock().user_of_token(given, self.now())
        }
    }
}

/// Compares tokens in a time that depends on their lengths only.
fn are_equal(a: &str, b: &str) -> bool {
    a.len() == b.len() && a.bytes().zip(b.bytes()).fold(0, |all, (a, b)| all | (a ^ b)) == 0
}

/// A server's TLS, and the PEM of the CA that signed its certificate.
fn tls(now: Timestamp) -> Result<(TlsAcceptor, String), BoxError> {
    let span = |params: &mut CertificateParams| {
        params.not_before = std::time::SystemTime::from(now - MARGIN).into();
        params.not_after = std::time::SystemTime::from(now + VALID).into();
    };
    let mut ca = CertificateParams::default();
    ca.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    ca.distinguished_name.push(DnType::CommonName, "operetta-embedded-ca");
    span(&mut ca);
    let ca = CertifiedIssuer::self_signed(ca, KeyPair::generate()?)?;
    let mut params = CertificateParams::new(["127.0.0.1".to_owned(), "localhost".to_owned()])?;
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    span(&mut params);
    let key = KeyPair::generate()?;
    let certificate = params.signed_by(&key, &ca)?;
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok((TlsAcceptor::from(Arc::new(config)), ca.pem()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_whole_token_is_accepted() {
        let server = Server::new(|| Timestamp::UNIX_EPOCH);
        let user = |value: &str| {
            let headers = HeaderMap::from_iter([(AUTHORIZATION, value.parse().unwrap())]);
            server.user_of(&headers, "abc").map(|user| user.name)
        };
        assert_eq!(user("Bearer abc").as_deref(), Some("operetta:dev"));
        for wrong in ["Bearer ab", "Bearer abcd", "Bearer abd", "Basic abc", "abc", ""] {
            assert_eq!(user(wrong), None, "{wrong}");
        }
        assert_eq!(server.user_of(&HeaderMap::new(), "abc"), None);
    }

    #[tokio::test]
    async fn a_port_in_use_is_named() {
        let first = Listener::bind(0, Timestamp::UNIX_EPOCH).await.unwrap();
        let error =
            Listener::bind(first.address.port(), Timestamp::UNIX_EPOCH).await.unwrap_err().to_string();
        assert!(error.contains(&first.address.to_string()) && error.contains("in use"), "{error}");
    }
}
