//! Carries out one HTTP request of a step or an observation.
//!
//! We resolve the name, check every address, and connect to an address that was checked; nothing resolves it again. Each
//! request has a connection of its own, so whether it was sent is always known. Proxy variables are not read.

mod target;
mod tls;

use std::future::pending;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::header::{
    ACCEPT, CONNECTION, CONTENT_LENGTH, HOST, LOCATION, RETRY_AFTER, TRANSFER_ENCODING, UPGRADE, USER_AGENT,
};
use http::response::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use serde_json::Value;
use tokio::net::{TcpStream, lookup_host};
use tokio::time::error::Elapsed;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tracing::debug;

use super::Cluster;
use super::error::chain;
use super::transport::Guard;
use crate::api::{ApiKind, CallError};
use crate::clock::{Instant, now};
use crate::plan::request::{CallFailure, HttpReply, HttpRequest};
pub use target::AllowedTarget;
use target::{AddressRules, Target};

/// How long a connection to one address may take.
const CONNECT: Duration = Duration::from_secs(5);
/// How long the addresses of the API server are remembered.
const REMEMBER: Duration = Duration::from_secs(600);
/// The longest wait that a server may ask for.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(3600);
/// How much memory the header of an answer may take.
const MAX_HEADER: usize = 64 << 10;

/// Sends HTTP requests. Clones are one client.
#[derive(Clone)]
pub struct HttpClient(Arc<Inner>);

struct Inner {
    cluster: Cluster,
    allowed: Vec<AllowedTarget>,
    /// The addresses of the API server, and when they were looked up.
    servers: Mutex<Option<(Instant, Arc<[IpAddr]>)>>,
}

impl HttpClient {
    /// A client that passes the fence of the cluster, and calls none of its API server's addresses.
    pub fn new(cluster: Cluster, allowed: Vec<AllowedTarget>) -> Self {
        Self(Arc::new(Inner { cluster, allowed, servers: Mutex::default() }))
    }

    /// Sends a request and reads its answer.
    ///
    /// # Errors
    ///
    /// There is no answer, or none that can be used. A message shows the host at most, nothing that may be secret.
    ///
    /// `package`: the connection with the rights of the package, which reads the pod that is called.
    pub async fn send_for(&self, package: &Cluster, request: &HttpRequest) -> Result<HttpReply, CallFailure> {
        let fence = &self.0.cluster.fence;
        if !fence.is_open() {
            return Err(CallFailure::NotSent("this manager is not the leader".into()));
        }
        let is_sent = AtomicBool::new(false);
        let failed = |why: &str| {
            if is_sent.load(Ordering::SeqCst) {
                CallFailure::Unanswered(why.into())
            } else {
                CallFailure::NotSent(why.into())
            }
        };
        tokio::select! {
            biased;
            () = fence.closed() => Err(failed("this manager is no longer the leader")),
            answer = timeout(request.timeout, self.exchange(request, package, &is_sent)) => match answer {
                Ok(answer) => answer,
                Err(_) => {
                    Err(failed(&format!("no complete answer within {} s", request.timeout.as_secs_f64())))
                }
            },
        }
    }

    async fn exchange(
        &self,
        request: &HttpRequest,
        package: &Cluster,
        is_sent: &AtomicBool,
    ) -> Result<HttpReply, CallFailure> {
        let address = match &request.pod {
            Some(pod) => Some(package.pod_address(pod).await?),
            None => None,
        };
        let mut target = Target::parse(&request.url, &request.hosts).map_err(CallFailure::Refused)?;
        let first = target.clone();
        let mut method = Method::from_bytes(request.method.as_bytes())
            .map_err(|_| CallFailure::Refused("the method is none of HTTP".into()))?;
        let mut headers = headers(&request.headers).map_err(CallFailure::Refused)?;
        let mut body = Bytes::from(request.body.clone());
        for followed in 0..=request.redirects {
            let is_first_server = target.is_same_origin(&first);
            if !is_first_server {
                // What the package sends may be secret, and is meant for the server that it names.
                headers = self::headers(&[]).map_err(CallFailure::Refused)?;
            }
            let mut outgoing = Request::new(body.clone());
            *outgoing.method_mut() = method.clone();
            *outgoing.uri_mut() = target
                .path
                .parse()
                .map_err(|_| CallFailure::Refused("the URL's path cannot be sent".into()))?;
            *outgoing.headers_mut() = headers.clone();
            let host = HeaderValue::from_str(&target.authority);
            outgoing.headers_mut().insert(HOST, host.map_err(|e| CallFailure::Refused(e.to_string()))?);
            let (parts, answer) =
                self.roundtrip(&target, address, outgoing, request, is_first_server, is_sent).await?;
            let location = parts.headers.get(LOCATION).filter(|_| is_redirect(parts.status));
            let Some(location) = location.filter(|_| followed < request.redirects) else {
                return reply(&parts, &answer);
            };
            let refused = |why: &str| {
                CallFailure::Refused(format!("{target} redirects, and this is not followed: {why}"))
            };
            let location = location.to_str().map_err(|_| refused("the location is not readable"))?;
            let next = target.redirected(location, &request.hosts).map_err(|why| refused(&why))?;
            let keeps_method = matches!(parts.status.as_u16(), 307 | 308);
            if keeps_method && !body.is_empty() && !next.is_same_origin(&first) {
                return Err(refused("the body would be sent to another server"));
            }
            target = next;
            if !keeps_method && method != Method::GET && method != Method::HEAD {
                method = Method::GET;
                body = Bytes::new();
                headers.remove(http::header::CONTENT_TYPE);
            }
        }
        Err(CallFailure::Refused("it redirects too often".into()))
    }

    /// One request on a connection of its own.
    async fn roundtrip(
        &self,
        target: &Target,
        address: Option<IpAddr>,
        outgoing: Request<Bytes>,
        request: &HttpRequest,
        is_first_server: bool,
        is_sent: &AtomicBool,
    ) -> Result<(Parts, Bytes), CallFailure> {
        if let Some(answer) = self.ask_outside(target, &outgoing, request, is_sent).await {
            return answer;
        }
        let tcp = self.connect(target, address).await?;
        let tcp = Guard::new(TokioIo::new(tcp), self.0.cluster.fence.clone());
        if !target.is_tls {
            return exchange_on(tcp, target, outgoing, request.max_bytes, is_sent).await;
        }
        // Our certificate is for the server that the package names.
        let mut material = request.tls.clone();
        if !is_first_server {
            (material.cert, material.key) = (None, None);
        }
        let config = tls::config(&material).map_err(CallFailure::Refused)?;
        let name = ServerName::try_from(target.host.clone()).map_err(|_| {
            CallFailure::Refused(format!("{} cannot be the name of a TLS server", target.host))
        })?;
        let stream = TlsConnector::from(Arc::new(config))
            .connect(name, TokioIo::new(tcp))
            .await
            .map_err(|error| CallFailure::NotSent(format!("TLS with {target}: {}", chain(&error))))?;
        exchange_on(TokioIo::new(stream), target, outgoing, request.max_bytes, is_sent).await
    }

    /// The answer of what takes the place of the network, if something does. A target that the person who runs the manager
    /// allows explicitly is reached over the network.
    async fn ask_outside(
        &self,
        target: &Target,
        outgoing: &Request<Bytes>,
        HttpRequest { pod, max_bytes, .. }: &HttpRequest,
        is_sent: &AtomicBool,
    ) -> Option<Result<(Parts, Bytes), CallFailure>> {
        let outside = self.0.cluster.outside.as_ref()?;
        if pod.is_none() && self.0.allowed.iter().any(|allowed| allowed.names(&target.host)) {
            return None;
        }
        let max_bytes = *max_bytes;
        let mut request = outgoing.clone();
        if let Some(pod) = pod {
            request.extensions_mut().insert(pod.clone());
        }
        let scheme = if target.is_tls { "https" } else { "http" };
        *request.uri_mut() = match format!("{scheme}://{}{}", target.authority, target.path).parse() {
            Ok(url) => url,
            Err(_) => return Some(Err(CallFailure::Refused("the URL cannot be sent".into()))),
        };
        is_sent.store(true, Ordering::SeqCst);
        Some(match outside.call(request).await {
            Ok(answer) if answer.body().len() > max_bytes => {
                Err(too_large(target, answer.status(), max_bytes))
            }
            Ok(answer) => Ok(answer.into_parts()),
            Err(why) => {
                is_sent.store(false, Ordering::SeqCst);
                Err(CallFailure::NotSent(why))
            }
        })
    }

    /// A connection to the address, or to one of the host's addresses, all of which must be allowed.
    async fn connect(&self, target: &Target, address: Option<IpAddr>) -> Result<TcpStream, CallFailure> {
        let servers = self.servers().await?;
        let rules = AddressRules { allowed: &self.0.allowed, servers: &servers };
        let is_pod = address.is_some();
        let addresses: Vec<SocketAddr> = match address {
            Some(address) => vec![SocketAddr::new(address, target.port)],
            None => lookup_host((target.host.as_str(), target.port))
                .await
                .map_err(|error| {
                    CallFailure::NotSent(format!("{} cannot be resolved: {error}", target.host))
                })?
                .collect(),
        };
        for address in &addresses {
            // The name of a pod decides nothing.
            let host = if is_pod { address.ip().to_string() } else { target.host.clone() };
            rules.check(&host, address.ip()).map_err(CallFailure::Refused)?;
        }
        let mut last = "it has no address".to_owned();
        for address in addresses {
            last = match timeout(CONNECT, TcpStream::connect(address)).await {
                Ok(Ok(stream)) => {
                    let _ = stream.set_nodelay(true);
                    return Ok(stream);
                }
                Ok(Err(error)) => error.to_string(),
                Err(_) => format!("no connection within {} s", CONNECT.as_secs()),
            };
        }
        Err(CallFailure::NotSent(format!("{target} cannot be reached: {last}")))
    }

    /// The addresses of the API server: of the kubeconfig's host, and of the Service `kubernetes` with its
    /// endpoints. If they cannot be read, those that were read last are used; without any, nothing is called.
    async fn servers(&self) -> Result<Arc<[IpAddr]>, CallFailure> {
        let known = self.0.servers.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some((_, servers)) = known.as_ref().filter(|(since, _)| since.elapsed() < REMEMBER) {
            return Ok(Arc::clone(servers));
        }
        let cluster = &self.0.cluster;
        let (services, endpoint_slices) = (services(), endpoint_slices());
        let service = cluster.get(&services, Some("default"), "kubernetes");
        let selector = "kubernetes.io/service-name=kubernetes";
        let slices = cluster.list(&endpoint_slices, Some("default"), selector);
        let (service, slices) = tokio::join!(timeout(CONNECT, service), timeout(CONNECT, slices));
        let (service, slices) = match (readable(service), readable(slices)) {
            (Ok(service), Ok(slices)) => (service.flatten(), slices),
            (Err(why), _) | (_, Err(why)) => {
                return known.map(|(_, servers)| servers).ok_or_else(|| {
                    let what = "the addresses of the API server, which must not be called, cannot be read";
                    CallFailure::NotSent(format!("{what}: {why}"))
                });
            }
        };
        let mut found = Vec::new();
        for host in cluster.server_host().into_iter().chain(["kubernetes.default.svc"]) {
            if let Ok(Ok(addresses)) = timeout(CONNECT, lookup_host((host, 443))).await {
                found.extend(addresses.map(|address| address.ip()));
            }
        }
        found.extend(addresses(&service.unwrap_or_default()["spec"]["clusterIPs"]));
        for slice in slices.unwrap_or_default() {
            for endpoint in slice["endpoints"].as_array().into_iter().flatten() {
                found.extend(addresses(&endpoint["addresses"]));
            }
        }
        found.sort();
        found.dedup();
        let found: Arc<[IpAddr]> = found.into();
        let known = Some((Instant::now(), Arc::clone(&found)));
        *self.0.servers.lock().unwrap_or_else(PoisonError::into_inner) = known;
        Ok(found)
    }
}

/// The value that was read; `None` if this manager has no right to read it, or the server has no such kind.
fn readable<T>(read: Result<Result<T, CallError>, Elapsed>) -> Result<Option<T>, String> {
    match read {
        Ok(Ok(value)) => Ok(Some(value)),
        Ok(Err(error)) if matches!(error.code, 403 | 404) => {
            debug!(%error, "the Service kubernetes or its endpoints cannot be read");
            Ok(None)
        }
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("no answer within {} s", CONNECT.as_secs())),
    }
}

fn addresses(list: &Value) -> impl Iterator<Item = IpAddr> {
    list.as_array().into_iter().flatten().filter_map(|ip| ip.as_str()?.parse().ok())
}

fn services() -> ApiKind {
    kind("", "Service", "services")
}

fn endpoint_slices() -> ApiKind {
    kind("discovery.k8s.io", "EndpointSlice", "endpointslices")
}

fn kind(group: &str, kind: &str, plural: &str) -> ApiKind {
    let (group, version) = (group.to_owned(), "v1".to_owned());
    ApiKind { group, version, kind: kind.into(), plural: plural.into(), namespaced: true }
}

/// Headers of a request. Messages show names only, because values may be secret.
fn headers(given: &[(String, String)]) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::with_capacity(given.len() + 2);
    headers.insert(USER_AGENT, HeaderValue::from_static(concat!("operetta/", env!("CARGO_PKG_VERSION"))));
    headers.insert(ACCEPT, HeaderValue::from_static("application/json, */*;q=0.5"));
    let mut seen = Vec::with_capacity(given.len());
    for (name, value) in given {
        let name = HeaderName::from_bytes(name.as_bytes())
            .map_err(|_| format!("{} cannot be the name of a header", crate::printable::line(name)))?;
        if [HOST, CONTENT_LENGTH, TRANSFER_ENCODING, CONNECTION, UPGRADE].contains(&name) {
            return Err(format!("the header {name} cannot be set"));
        }
        let mut value = HeaderValue::from_str(value).map_err(|_| {
            format!("the value of the header {name} contains characters that a header cannot have")
        })?;
        value.set_sensitive(true);
        if seen.contains(&name) {
            headers.append(name, value);
        } else {
            seen.push(name.clone());
            headers.insert(name, value);
        }
    }
    Ok(headers)
}

/// Sends a request on a connection and reads the whole answer.
async fn exchange_on<T>(
    io: T,
    target: &Target,
    outgoing: Request<Bytes>,
    max_bytes: usize,
    is_sent: &AtomicBool,
) -> Result<(Parts, Bytes), CallFailure>
where
    T: hyper::rt::Read + hyper::rt::Write + Unpin,
{
    let (mut sender, connection) = http1::Builder::new()
        .max_buf_size(MAX_HEADER)
        .handshake(io)
        .await
        .map_err(|error| CallFailure::NotSent(format!("{target}: {}", chain(&error))))?;
    let drive = async {
        let _ = connection.await;
        pending().await
    };
    let exchange = async {
        is_sent.store(true, Ordering::SeqCst);
        let answer = sender.try_send_request(outgoing.map(Full::new)).await.map_err(|mut error| {
            let is_unsent = error.take_message().is_some();
            let why = format!("{target} closed the connection: {}", chain(error.error()));
            if is_unsent { CallFailure::NotSent(why) } else { CallFailure::Unanswered(why) }
        })?;
        let (parts, body) = answer.into_parts();
        let body = read(body, max_bytes).await.map_err(|(is_too_large, error)| {
            let status = parts.status.as_u16();
            if is_too_large {
                return too_large(target, parts.status, max_bytes);
            }
            CallFailure::Unanswered(format!("the answer of {target} (status {status}) broke off: {error}"))
        })?;
        Ok((parts, body))
    };
    tokio::select! {
        biased;
        answer = exchange => answer,
        answer = drive => answer,
    }
}

/// Reads the whole body. The error says first whether the body is too large.
async fn read(body: Incoming, max_bytes: usize) -> Result<Bytes, (bool, String)> {
    match Limited::new(body, max_bytes).collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) => Err((error.is::<LengthLimitError>(), chain(&*error))),
    }
}

fn too_large(target: &Target, status: StatusCode, max_bytes: usize) -> CallFailure {
    let status = status.as_u16();
    CallFailure::Refused(format!("the answer of {target} (status {status}) is larger than {max_bytes} bytes"))
}

fn is_redirect(status: StatusCode) -> bool {
    matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308)
}

fn reply(parts: &Parts, body: &Bytes) -> Result<HttpReply, CallFailure> {
    if let Some(encoding) = parts.headers.get(http::header::CONTENT_ENCODING)
        && !encoding.as_bytes().eq_ignore_ascii_case(b"identity")
    {
        return Err(CallFailure::Refused("the answer is compressed, though this was not asked for".into()));
    }
    let mut headers: Vec<(String, String)> = Vec::with_capacity(parts.headers.len());
    for name in parts.headers.keys() {
        let values: Vec<_> = parts
            .headers
            .get_all(name)
            .iter()
            .map(|value| String::from_utf8_lossy(value.as_bytes()))
            .collect();
        headers.push((name.as_str().to_owned(), values.join(", ")));
    }
    let body = if body.is_empty() {
        Value::Null
    } else {
        serde_json::from_slice(body).unwrap_or_else(|_| String::from_utf8_lossy(body).into_owned().into())
    };
    let retry_after =
        parts.headers.get(RETRY_AFTER).and_then(|value| retry_after(value.to_str().ok()?.trim()));
    Ok(HttpReply { status: parts.status.as_u16(), headers, body, retry_after })
}

/// Parses `Retry-After`: seconds, or a date.
fn retry_after(text: &str) -> Option<Duration> {
    let wait = if let Ok(seconds) = text.parse() {
        Duration::from_secs(seconds)
    } else {
        let date = k8s_openapi::jiff::fmt::rfc2822::parse(text).ok()?.timestamp();
        Duration::try_from(date.duration_since(now())).unwrap_or_default()
    };
    Some(wait.min(MAX_RETRY_AFTER))
}

#[cfg(test)]
mod tests;
