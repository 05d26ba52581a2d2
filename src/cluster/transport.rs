//! The connection to an API server: kube's layers, with additions. Dead connections are detected, writes stop when
//! the fence closes, and requests are counted.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use http::{HeaderName, HeaderValue, Request, Response, Uri};
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_timeout::TimeoutConnector;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::rt::TokioExecutor;
use kube::client::{Body, ConfigExt};
use tower::{BoxError, Service, ServiceBuilder};

use super::reply::Bounded;
use super::{Fence, Requests};

/// Why a connection cannot be configured.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// No kubeconfig and not in a pod, or one that cannot be read.
    #[error(
        "no Kubernetes API server is configured: {0}; set KUBECONFIG, or try `operetta dev`, which brings its own"
    )]
    Config(String),
    /// The configuration was read, but no client could be made of it.
    #[error("the kubeconfig cannot be used: {0}")]
    Client(String),
    /// A variable of the environment names a proxy.
    #[error(
        "{0} names a proxy, and API servers are not called through proxies\n  \
         help: give the command without the variable: env -u {0} operetta ..."
    )]
    Proxy(&'static str),
}

/// The deadline to connect.
const CONNECT: Duration = Duration::from_secs(5);
/// How long the server may be silent while a reply is awaited. A watch gets at least a bookmark every minute.
const SILENCE: Duration = Duration::from_secs(150);
/// TCP keepalive: the idle time, the interval and the number of probes.
const KEEPALIVE: (Duration, Duration, u32) = (Duration::from_secs(30), Duration::from_secs(10), 3);

/// The header that names the user as whom a request is made.
const IMPERSONATE: HeaderName = HeaderName::from_static("impersonate-user");

/// A client of that configuration.
pub(super) fn client(
    config: &kube::Config,
    fence: Fence,
    requests: &Requests,
) -> Result<kube::Client, ConnectError> {
    let unusable = |e: kube::Error| ConnectError::Client(e.to_string());
    if let Some(proxy) = &config.proxy_url {
        return Err(proxied(proxy, |name| std::env::var(name).ok()));
    }
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    let (idle, interval, probes) = KEEPALIVE;
    tcp.set_keepalive(Some(idle));
    tcp.set_keepalive_interval(Some(interval));
    tcp.set_keepalive_retries(Some(probes));
    let tls = config.rustls_https_connector_with_connector(Guard::new(tcp, fence)).map_err(unusable)?;
    let mut connector = TimeoutConnector::new(tls);
    connector.set_connect_timeout(Some(CONNECT));
    connector.set_read_timeout(Some(SILENCE));
    connector.set_write_timeout(Some(SILENCE));
    // Otherwise the time that a connection waits for its next request would count as silence.
    connector.set_reset_reader_on_write(true);
    let http: Client<_, Body> = Client::builder(TokioExecutor::new()).build(connector);
    let service = ServiceBuilder::new()
        .layer_fn(|inner| Counted { inner, requests: requests.clone() })
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer().map_err(unusable)?)
        .layer(config.extra_headers_layer().map_err(unusable)?)
        .map_err(BoxError::from)
        .service(http);
    Ok(kube::Client::new(service, config.default_namespace.clone()))
}

/// Why a proxy is not used. Where the kubeconfig names none, kube takes the first of the variables that is not empty.
fn proxied(proxy: &Uri, variable: impl Fn(&str) -> Option<String>) -> ConnectError {
    let value = |name: &&str| variable(name).filter(|value| !value.is_empty());
    match ["HTTPS_PROXY", "https_proxy"].into_iter().find(|name| value(name).is_some()) {
        Some(name) if value(&name).and_then(|value| value.parse::<Uri>().ok()).as_ref() == Some(proxy) => {
            ConnectError::Proxy(name)
        }
        _ => ConnectError::Client(
            "its proxy-url names a proxy, and API servers are not called through proxies".into(),
        ),
    }
}

/// A client whose requests name another user.
pub(super) fn impersonate(client: kube::Client, user: HeaderValue) -> kube::Client {
    let namespace = client.default_namespace().to_owned();
    let service = tower::service_fn(move |mut request: Request<Body>| {
        request.headers_mut().insert(IMPERSONATE, user.clone());
        let client = client.clone();
        async move { client.send(request).await }
    });
    kube::Client::new(service, namespace)
}

/// Counts requests, measures the time to the head of the reply, and limits its size.
#[derive(Clone)]
struct Counted<S> {
    inner: S,
    requests: Requests,
}

impl<S, B> Service<Request<Body>> for Counted<S>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Future: Send + 'static,
    S::Error: Send,
{
    type Response = Response<Bounded<B>>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let asked = self.requests.begin(&request);
        let is_watch = asked.is_watch();
        let requests = self.requests.clone();
        let started = Instant::now();
        let answer = self.inner.call(request);
        Box::pin(async move {
            let answer = answer.await;
            let code = answer.as_ref().map_or(0, |answer| answer.status().as_u16());
            requests.end(asked, code, started.elapsed());
            answer.map(|answer| Bounded::wrap(answer, is_watch))
        })
    }
}

/// Sends nothing after the process has ceased to lead, not even buffered writes.
#[derive(Clone)]
pub(super) struct Guard<T> {
    inner: T,
    fence: Fence,
}

impl<T> Guard<T> {
    /// A connection behind a fence.
    pub(super) fn new(inner: T, fence: Fence) -> Self {
        Self { inner, fence }
    }
}

impl<T> Service<Uri> for Guard<T>
where
    T: Service<Uri>,
    T::Future: Send + 'static,
{
    type Response = Guard<T::Response>;
    type Error = T::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, T::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), T::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let connecting = self.inner.call(uri);
        let fence = self.fence.clone();
        Box::pin(async move { Ok(Guard::new(connecting.await?, fence)) })
    }
}

impl<T: Read + Unpin> Read for Guard<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, buffer)
    }
}

impl<T: Write + Unpin> Guard<T> {
    fn check(&self) -> io::Result<()> {
        if self.fence.is_over() {
            return Err(io::Error::new(io::ErrorKind::ConnectionAborted, "this process leads no more"));
        }
        Ok(())
    }
}

impl<T: Write + Unpin> Write for Guard<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.check()?;
        Pin::new(&mut self.inner).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check()?;
        Pin::new(&mut self.inner).poll_write_vectored(cx, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check()?;
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

impl<T: Connection> Connection for Guard<T> {
    fn connected(&self) -> Connected {
        self.inner.connected()
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use hyper::server::conn::http1;
    use hyper::service::service_fn;
    use hyper_util::rt::TokioIo;
    use serde_json::json;

    use super::super::fence::uptime;
    use super::super::{ApiKind, Cluster, ConnectOptions};
    use super::*;

    #[test]
    fn the_source_of_a_proxy_is_named() {
        let proxy: Uri = "http://proxy.example:3128".parse().unwrap();
        let source = |set: &[(&str, &str)]| {
            let of =
                |name: &str| set.iter().find(|(set, _)| *set == name).map(|(_, value)| (*value).to_owned());
            proxied(&proxy, of).to_string()
        };
        let ours = "http://proxy.example:3128";
        assert!(source(&[("HTTPS_PROXY", ours)]).contains("env -u HTTPS_PROXY operetta"));
        assert!(
            source(&[("HTTPS_PROXY", ""), ("https_proxy", ours)]).starts_with("https_proxy names a proxy")
        );
        for set in [&[][..], &[("HTTPS_PROXY", "http://other.example:3128"), ("https_proxy", ours)]] {
            assert!(source(set).starts_with("the kubeconfig cannot be used: its proxy-url"), "{set:?}");
        }
    }

    /// A server that replies to everything with one object, and the number of its requests.
    async fn server() -> (Uri, Arc<AtomicUsize>) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let uri = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
        let requests = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&requests);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let count = Arc::clone(&count);
                let service = service_fn(move |_| {
                    count.fetch_add(1, Ordering::SeqCst);
                    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": "n"}});
                    async move { Ok::<_, Infallible>(Response::new(object.to_string())) }
                });
                tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
            }
        });
        (uri, requests)
    }

    #[tokio::test]
    async fn a_standby_only_reads_and_a_former_leader_sends_nothing() {
        let (uri, requests) = server().await;
        let fence = Fence::shut();
        let options = ConnectOptions { fence: fence.clone(), ..ConnectOptions::default() };
        let cluster = Cluster::of_config(&kube::Config::new(uri), &options).unwrap();
        let kind = ApiKind {
            group: String::new(),
            version: "v1".into(),
            kind: "ConfigMap".into(),
            plural: "configmaps".into(),
            namespaced: true,
        };
        let body = json!({"metadata": {"name": "a"}});
        let write = || cluster.create(&kind, Some("n"), &body, "operetta");
        let read = || cluster.get(&kind, Some("n"), "a");

        read().await.unwrap();
        assert!(write().await.unwrap_err().is_fenced());
        assert_eq!(requests.load(Ordering::SeqCst), 1);
        fence.extend(uptime() + Duration::from_secs(60));
        write().await.unwrap();
        assert_eq!(requests.load(Ordering::SeqCst), 2);

        fence.extend(uptime());
        assert!(write().await.unwrap_err().is_fenced());
        // A write that has passed the first check is stopped at the connection, old or new.
        for _ in 0..2 {
            let error = read().await.unwrap_err();
            assert_eq!(error.code, 0, "{error}");
        }
        assert_eq!(requests.load(Ordering::SeqCst), 2, "something was sent");
    }
}
