use std::convert::Infallible;

use hyper::server::conn::http1 as server;
use hyper::service::service_fn;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::*;
use crate::plan::Pod;
use crate::plan::request::Tls;

/// A cluster whose API server is at this URL.
fn cluster(url: &str) -> Cluster {
    let _ = ring_is_default();
    let config = kube::Config::new(url.parse().unwrap());
    Cluster::of_config(&config, &super::super::ConnectOptions::default()).unwrap()
}

/// A cluster whose API server does not answer.
fn no_cluster() -> Cluster {
    Cluster { host: None, ..cluster("http://127.0.0.1:1") }
}

fn ring_is_default() -> Result<(), ()> {
    rustls::crypto::ring::default_provider().install_default().map_err(|_| ())
}

impl HttpClient {
    /// Sends a request that is for no pod.
    async fn send(&self, request: &HttpRequest) -> Result<HttpReply, CallFailure> {
        self.send_for(&self.0.cluster, request).await
    }
}

/// A client that knows of no address of the API server, and may call these.
fn client_of(cluster: Cluster, allowed: &[&str]) -> HttpClient {
    let client = HttpClient::new(cluster, allowed.iter().map(|target| target.parse().unwrap()).collect());
    *client.0.servers.lock().unwrap() = Some((Instant::now(), Vec::new().into()));
    client
}

fn client(allowed: &[&str]) -> HttpClient {
    client_of(no_cluster(), allowed)
}

fn loopback() -> HttpClient {
    client(&["127.0.0.0/8"])
}

fn get(url: impl Into<String>) -> HttpRequest {
    HttpRequest {
        pod: None,
        method: "GET".into(),
        url: url.into(),
        hosts: Vec::new(),
        headers: Vec::new(),
        body: Vec::new(),
        tls: Tls::default(),
        redirects: 0,
        max_bytes: 1000,
        timeout: Duration::from_secs(10),
    }
}

/// A server that answers by path, and reports each request as `METHOD path body secrets`.
async fn serve() -> (String, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let log = Arc::new(Mutex::new(Vec::new()));
    let requests = Arc::clone(&log);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let requests = Arc::clone(&requests);
            let service =
                service_fn(move |request: Request<Incoming>| answer(request, port, Arc::clone(&requests)));
            tokio::spawn(server::Builder::new().serve_connection(TokioIo::new(stream), service));
        }
    });
    (format!("http://127.0.0.1:{port}"), log)
}

async fn answer(
    request: Request<Incoming>,
    port: u16,
    requests: Arc<Mutex<Vec<String>>>,
) -> Result<http::Response<String>, Infallible> {
    let (parts, body) = request.into_parts();
    let body = String::from_utf8(body.collect().await.unwrap().to_bytes().to_vec()).unwrap();
    let text = |name: &str| parts.headers.get(name).map_or("", |value| value.to_str().unwrap());
    let secrets = format!("{}{}", text("authorization"), text("x-api-key"));
    let path = parts.uri.path();
    requests.lock().unwrap().push(format!("{} {path} {body} {secrets}", parts.method));
    let reply = http::Response::builder();
    let redirect = |code: u16, location: String| reply_to(code, LOCATION, &location);
    Ok(match path {
        "/api/v1/namespaces/n/pods/a" => {
            let meta = json!({"name": "a", "namespace": "n", "uid": "u"});
            let status = json!({"phase": "Running", "podIP": "127.0.0.1"});
            let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "status": status});
            reply.header("Content-Type", "application/json").body(pod.to_string())
        }
        "/json" => reply.header("X-Two", "a").header("X-Two", "b").body(r#"{"a": [1]}"#.into()),
        "/text" => reply.status(503).header(RETRY_AFTER, "7").body("no".into()),
        "/date" => reply.status(429).header(RETRY_AFTER, "Sun, 06 Nov 1994 08:49:37 GMT").body(String::new()),
        "/large" => reply.body("x".repeat(1001)),
        "/zip" => reply.header("Content-Encoding", "gzip").body("x".into()),
        "/metadata" => Ok(redirect(302, "http://169.254.169.254/latest".into())),
        "/localhost/see" => Ok(redirect(303, format!("http://localhost:{port}/json"))),
        "/localhost" => Ok(redirect(307, format!("http://localhost:{port}/json"))),
        "/see" => Ok(redirect(303, "/json".into())),
        "/same" => Ok(redirect(308, "/json".into())),
        "/loop" => Ok(redirect(302, "/loop".into())),
        _ => reply.status(404).body(String::new()),
    }
    .unwrap())
}

fn reply_to(code: u16, name: HeaderName, value: &str) -> http::Response<String> {
    http::Response::builder().status(code).header(name, value).body(String::new()).unwrap()
}

#[tokio::test]
async fn answers_are_decoded() {
    let (url, _) = serve().await;
    let client = loopback();
    let reply = client.send(&get(format!("{url}/json?x"))).await.unwrap();
    assert_eq!((reply.status, &reply.body), (200, &json!({"a": [1]})));
    assert!(reply.headers.contains(&("x-two".into(), "a, b".into())), "{:?}", reply.headers);
    let reply = client.send(&get(format!("{url}/text"))).await.unwrap();
    assert_eq!((reply.status, reply.body), (503, json!("no")));
    assert_eq!(reply.retry_after, Some(Duration::from_secs(7)));
    let reply = client.send(&get(format!("{url}/date"))).await.unwrap();
    assert_eq!((reply.body, reply.retry_after), (Value::Null, Some(Duration::ZERO)));
    let mut request = get(format!("{url}/echo"));
    request.method = "POST".into();
    request.body = b"hello".to_vec();
    request.headers = vec![("Authorization".into(), "Bearer s3cret".into())];
    let (url, log) = serve().await;
    request.url = format!("{url}/echo");
    assert_eq!(client.send(&request).await.unwrap().status, 404);
    assert_eq!(*log.lock().unwrap(), ["POST /echo hello Bearer s3cret"]);
}

#[tokio::test]
async fn answers_that_cannot_be_used_are_refused() {
    let (url, _) = serve().await;
    for (path, words) in [("large", "larger than 1000 bytes"), ("zip", "compressed")] {
        let error = loopback().send(&get(format!("{url}/{path}"))).await.unwrap_err();
        assert!(matches!(&error, CallFailure::Refused(why) if why.contains(words)), "{error:?}");
    }
}

#[tokio::test]
async fn the_manager_s_own_machine_is_not_called() {
    let (url, log) = serve().await;
    let port = url.rsplit(':').next().unwrap();
    let client = client(&[]);
    for host in [
        "127.0.0.1",
        "127.1",
        "127.0.1",
        "0x7f.0.0.1",
        "0x7f000001",
        "2130706433",
        "0177.0.0.1",
        "017700000001",
        "localhost",
        "LOCALHOST",
        "localhost.",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[::127.0.0.1]",
        "0",
        "0.0.0.0",
        "[::]",
        "169.254.169.254",
        "0xa9fea9fe",
        "2852039166",
        "[::ffff:169.254.169.254]",
        "[fe80::1]",
        "224.0.0.1",
        "[ff02::1]",
    ] {
        let error = client.send(&get(format!("http://{host}:{port}/json"))).await.unwrap_err();
        assert!(
            matches!(&error, CallFailure::Refused(why) if why.contains("--allow-call-to")),
            "{host}: {error:?}"
        );
    }
    assert!(log.lock().unwrap().is_empty());
}

#[tokio::test]
async fn the_api_server_is_not_called() {
    let (url, _) = serve().await;
    for host in ["127.0.0.1", "localhost"] {
        let cluster = Cluster { host: Some(host.into()), ..cluster(&url) };
        let error = HttpClient::new(cluster, Vec::new()).send(&get("http://127.0.0.1:1/")).await.unwrap_err();
        assert!(matches!(&error, CallFailure::Refused(why) if why.contains("API server")), "{error:?}");
    }
    // While its addresses cannot be read, any address may belong to the API server.
    let client = HttpClient::new(no_cluster(), vec!["127.0.0.0/8".parse().unwrap()]);
    let error = client.send(&get(&url)).await.unwrap_err();
    assert!(matches!(&error, CallFailure::NotSent(why) if why.contains("cannot be read")), "{error:?}");
}

#[tokio::test]
async fn redirects_are_off_by_default_and_each_is_checked() {
    let (url, log) = serve().await;
    let client = loopback();
    let reply = client.send(&get(format!("{url}/same"))).await.unwrap();
    assert_eq!(reply.status, 308, "off by default");

    let mut request = get("");
    request.redirects = 3;
    request.method = "POST".into();
    request.body = b"b".to_vec();
    request.headers = vec![("authorization".into(), "t".into()), ("x-api-key".into(), "k".into())];
    let mut send = async |path: &str, hosts: &[&str]| {
        request.url = format!("{url}/{path}");
        request.hosts = hosts.iter().map(ToString::to_string).collect();
        log.lock().unwrap().clear();
        let reply = client.send(&request).await;
        (reply.map(|reply| reply.status), log.lock().unwrap().last().cloned().unwrap_or_default())
    };
    assert_eq!(send("same", &[]).await, (Ok(200), "POST /json b tk".into()));
    assert_eq!(send("see", &[]).await, (Ok(200), "GET /json  tk".into()));
    assert_eq!(send("loop", &[]).await.0, Ok(302), "the last answer");
    // Another host must be allowed, and gets neither the headers of the package nor its body.
    assert!(matches!(send("localhost", &[]).await.0, Err(CallFailure::Refused(_))));
    let both = ["127.0.0.1", "localhost"];
    assert_eq!(send("localhost/see", &both).await, (Ok(200), "GET /json  ".into()));
    let (refused, last) = send("localhost", &both).await;
    assert!(matches!(&refused, Err(CallFailure::Refused(why)) if why.contains("body")), "{refused:?}");
    assert_eq!(last, "POST /localhost b tk", "the only request");
    let refused = send("metadata", &["127.0.0.1", "169.254.169.254"]).await.0;
    assert!(matches!(&refused, Err(CallFailure::Refused(why)) if why.contains("link-local")), "{refused:?}");
}

/// A server that treats each connection in the same way.
async fn raw<F: Future<Output = ()> + Send + 'static>(treat: fn(TcpStream) -> F) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(treat(stream));
        }
    });
    url
}

/// Sends a request to a server that reads it. Returns the answer that is awaited, and the server's end of the connection.
async fn awaited(client: HttpClient) -> (JoinHandle<Result<HttpReply, CallFailure>>, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let request = get(format!("http://{}/", listener.local_addr().unwrap()));
    let answer = tokio::spawn(async move { client.send(&request).await });
    let (mut stream, _) = listener.accept().await.unwrap();
    assert!(stream.read(&mut [0; 4096]).await.unwrap() > 0);
    (answer, stream)
}

#[tokio::test]
async fn errors_say_whether_a_request_was_sent() {
    let client = loopback();
    let send = async |url: &str| client.send(&get(url)).await.unwrap_err();
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let error = send(&format!("http://{free}/")).await;
    assert!(matches!(&error, CallFailure::NotSent(why) if why.contains("refused")), "{error:?}");
    let error = send("http://name.invalid/").await;
    assert!(matches!(&error, CallFailure::NotSent(why) if why.contains("name.invalid")), "{error:?}");

    let cut = raw(|mut stream| async move {
        let _ = stream.read(&mut [0; 4096]).await;
    });
    let error = send(&cut.await).await;
    assert!(
        matches!(&error, CallFailure::Unanswered(why) if why.contains("closed the connection")),
        "{error:?}"
    );
    let half = raw(|mut stream| async move {
        let _ = stream.read(&mut [0; 4096]).await;
        let _ = stream.write_all(b"HTTP/1.1 201 Created\r\nContent-Length: 10\r\n\r\nx").await;
    });
    let error = send(&half.await).await;
    assert!(matches!(&error, CallFailure::Unanswered(why) if why.contains("status 201")), "{error:?}");
}

#[tokio::test]
async fn timeout_is_of_the_whole_answer() {
    let (silent, _held) = awaited(loopback()).await;
    let (slow, mut stream) = awaited(loopback()).await;
    stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
    // From now on, time passes as soon as everything waits for it.
    tokio::time::pause();
    tokio::spawn(async move {
        while stream.write_all(b"x").await.is_ok() {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    });
    for answer in [silent, slow] {
        let error = answer.await.unwrap().unwrap_err();
        assert!(matches!(&error, CallFailure::Unanswered(why) if why.contains("within 10 s")), "{error:?}");
    }
}

#[tokio::test]
async fn a_manager_that_does_not_lead_sends_nothing() {
    let (url, log) = serve().await;
    let fence = super::super::Fence::shut();
    let client = client_of(no_cluster().fenced(fence.clone()), &["127.0.0.0/8"]);
    assert!(matches!(client.send(&get(format!("{url}/json"))).await, Err(CallFailure::NotSent(_))));
    assert!(log.lock().unwrap().is_empty());

    let fence = super::super::Fence::open();
    let client = client_of(no_cluster().fenced(fence.clone()), &["127.0.0.0/8"]);
    let (answer, _held) = awaited(client).await;
    fence.close();
    assert!(matches!(answer.await.unwrap(), Err(CallFailure::Unanswered(_))));
}

#[tokio::test]
async fn headers_that_would_change_the_request_are_refused() {
    let client = loopback();
    for (name, value) in [
        ("Host", "a"),
        ("Content-Length", "1"),
        ("Transfer-Encoding", "chunked"),
        ("a b", "c"),
        ("X-A", "s3cret\r\nb: c"),
    ] {
        let mut request = get("http://127.0.0.1:1/");
        request.headers = vec![(name.into(), value.into())];
        let error = client.send(&request).await.unwrap_err();
        assert!(matches!(&error, CallFailure::Refused(why) if !why.contains("s3cret")), "{error:?}");
    }
}

#[tokio::test]
async fn tls_with_a_given_ca_and_a_client_certificate() {
    let _ = ring_is_default();
    let ca = || {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
    };
    let (ours, other) = (ca(), ca());
    let signed = |name: &str| {
        let key = KeyPair::generate().unwrap();
        let cert = CertificateParams::new(vec![name.to_owned()]).unwrap().signed_by(&key, &ours).unwrap();
        (cert.pem(), key.serialize_pem())
    };
    let (cert, key) = signed("localhost");
    let mut roots = rustls::RootCertStore::empty();
    roots.add(ours.der().clone()).unwrap();
    let clients = rustls::server::WebPkiClientVerifier::builder(Arc::new(roots)).build().unwrap();
    let config = rustls::ServerConfig::builder().with_client_cert_verifier(clients).with_single_cert(
        vec![CertificateDer::from_pem_slice(cert.as_bytes()).unwrap()],
        PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap(),
    );
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config.unwrap()));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(stream) = acceptor.accept(stream).await else { return };
                let service = service_fn(async |_| Ok::<_, Infallible>(http::Response::new("1".to_owned())));
                let _ = server::Builder::new().serve_connection(TokioIo::new(stream), service).await;
            });
        }
    });

    let send = async |host: &str, tls: Tls| {
        let mut request = get(format!("https://{host}:{port}/"));
        request.tls = tls;
        client(&["127.0.0.0/8", "localhost"]).send(&request).await
    };
    let (cert, key) = signed("client");
    let whole = Tls { ca: Some(ours.pem()), cert: Some(cert), key: Some(key) };
    assert_eq!(send("localhost", whole.clone()).await.unwrap().body, json!(1));
    // Nothing is sent to a server whose certificate is not trusted for its name.
    for (host, ca) in [("127.0.0.1", Some(ours.pem())), ("localhost", Some(other.pem())), ("localhost", None)]
    {
        let error = send(host, Tls { ca, ..whole.clone() }).await.unwrap_err();
        assert!(matches!(&error, CallFailure::NotSent(why) if why.contains("certificate")), "{error:?}");
    }
    let anonymous = Tls { cert: None, key: None, ..whole.clone() };
    assert!(send("localhost", anonymous).await.is_err());
    for (tls, words) in [
        (Tls { ca: Some("s3cret".into()), ..whole.clone() }, "tls.ca contains no certificate"),
        (Tls { key: Some("s3cret".into()), ..whole.clone() }, "tls.key contains no private key"),
        (Tls { key: None, ..whole.clone() }, "needs tls.key"),
        (Tls { cert: Some(other.pem()), ..whole }, "cannot be used"),
    ] {
        let error = send("localhost", tls).await.unwrap_err();
        assert!(matches!(&error, CallFailure::Refused(why) if why.contains(words)), "{error:?}");
    }
}

#[tokio::test]
async fn a_request_to_a_pod_goes_to_its_address() {
    let (url, _) = serve().await;
    let package = cluster(&url);
    let pod = |uid: &str| Pod { namespace: "n".into(), name: "a".into(), uid: uid.into() };
    let port = url.rsplit(':').next().unwrap();
    let mut request = HttpRequest { pod: Some(pod("u")), ..get(format!("http://s.invalid:{port}/json")) };
    let client = client_of(no_cluster(), &["127.0.0.0/8"]);
    assert_eq!(client.send_for(&package, &request).await.unwrap().body, json!({"a": [1]}));
    // The rules of addresses hold, whatever names are allowed.
    let strict = client_of(no_cluster(), &["s.invalid"]);
    let refused = strict.send_for(&package, &request).await;
    assert!(matches!(&refused, Err(CallFailure::Refused(why)) if why.contains("127.0.0.1")), "{refused:?}");
    request.pod = Some(pod("another"));
    let gone = client.send_for(&package, &request).await;
    assert!(matches!(&gone, Err(CallFailure::NotSent(why)) if why.contains("pod a is gone")), "{gone:?}");
}

/// Answers for a.example alone.
struct Simulated;

impl super::super::Outside for Simulated {
    fn call(
        &self,
        request: Request<Bytes>,
    ) -> futures::future::BoxFuture<'_, Result<http::Response<Bytes>, String>> {
        let url = request.uri().to_string();
        let answer = match request.uri().path() {
            _ if request.uri().host() != Some("a.example") => Err(format!("no server at {url}")),
            "/large" => Ok(http::Response::new(vec![b'x'; 1001].into())),
            "/see" => Ok(reply_to(303, LOCATION, "/found").map(Bytes::from)),
            _ => Ok(http::Response::new(json!({"url": url}).to_string().into())),
        };
        Box::pin(async move { answer })
    }
}

#[tokio::test]
async fn simulated_servers_answer_unless_a_target_is_allowed() {
    let cluster = || Cluster { outside: Some(Arc::new(Simulated)), ..no_cluster() };
    let client = client_of(cluster(), &[]);
    let mut request = get("http://a.example/see?x");
    request.redirects = 1;
    assert_eq!(client.send(&request).await.unwrap().body, json!({"url": "http://a.example/found"}));
    let error = client.send(&get("http://a.example/large")).await.unwrap_err();
    assert!(matches!(&error, CallFailure::Refused(why) if why.contains("larger than 1000 bytes")), "{error}");
    request.hosts = vec!["b.example".into()];
    assert!(matches!(client.send(&request).await, Err(CallFailure::Refused(_))));

    // The network is reached only if the target is allowed explicitly.
    let (url, _) = serve().await;
    let error = client.send(&get(format!("{url}/json"))).await.unwrap_err();
    assert!(matches!(&error, CallFailure::NotSent(why) if why.contains("no server at")), "{error}");
    let client = client_of(cluster(), &["127.0.0.0/8"]);
    assert_eq!(client.send(&get(format!("{url}/json"))).await.unwrap().body, json!({"a": [1]}));
}
