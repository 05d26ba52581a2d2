//! A registry in memory on loopback. `lie` may answer a request instead of it.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::BodyExt as _;
use hyper::body::{Body, Frame, Incoming};
use hyper_util::rt::TokioIo;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::PrivatePkcs8KeyDer;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use crate::{CredentialFiles, Digest, Options, Place};

/// A request that came.
#[derive(Debug, Clone)]
pub(super) struct Seen {
    pub(super) method: Method,
    pub(super) path: String,
    pub(super) authorization: Option<String>,
    pub(super) range: Option<String>,
}

/// An answer: pieces of a body, of which the last may be repeated for ever, or cut off.
pub(super) struct Answer {
    pub(super) response: Response<()>,
    pub(super) pieces: Vec<Bytes>,
    pub(super) end: End,
}

#[derive(Clone, Copy, PartialEq)]
pub(super) enum End {
    Whole,
    Cut,
    Endless,
}

pub(super) fn answer(status: u16, headers: &[(&str, &str)], body: impl Into<Bytes>) -> Answer {
    let mut response = Response::builder().status(status);
    for (name, value) in headers {
        response = response.header(*name, *value);
    }
    Answer { response: response.body(()).unwrap(), pieces: vec![body.into()], end: End::Whole }
}

type Lie = dyn Fn(&Seen, usize) -> Option<Answer> + Send + Sync;

pub(super) struct Server {
    pub(super) address: String,
    pub(super) state: Arc<Mutex<State>>,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) seen: Vec<Seen>,
    pub(super) blobs: BTreeMap<String, Bytes>,
    pub(super) manifests: BTreeMap<String, (String, Bytes)>,
    pub(super) uploads: BTreeMap<String, Vec<u8>>,
    pub(super) has_referrers: bool,
}

impl Server {
    pub(super) async fn start() -> Self {
        Self::lying(|_, _| None).await
    }

    /// A registry that gives other answers to some requests: `lie` gets the request, and how many came before with the
    /// same method and path.
    pub(super) async fn lying(lie: impl Fn(&Seen, usize) -> Option<Answer> + Send + Sync + 'static) -> Self {
        Self::serve(lie, None).await
    }

    /// An honest registry with TLS, and the authority that signed its certificate.
    pub(super) async fn secured() -> (Self, String) {
        let mut ca = CertificateParams::default();
        ca.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        let ca = CertifiedIssuer::self_signed(ca, KeyPair::generate().unwrap()).unwrap();
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &ca).unwrap();
        let key = PrivatePkcs8KeyDer::from(key.serialize_der()).into();
        let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)
            .unwrap();
        (Self::serve(|_, _| None, Some(Arc::new(config).into())).await, ca.pem())
    }

    async fn serve(
        lie: impl Fn(&Seen, usize) -> Option<Answer> + Send + Sync + 'static,
        tls: Option<TlsAcceptor>,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let state = Arc::new(Mutex::new(State { has_referrers: true, ..State::default() }));
        let (shared, lie): (_, Arc<Lie>) = (Arc::clone(&state), Arc::new(lie));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (state, lie) = (Arc::clone(&shared), Arc::clone(&lie));
                let service = hyper::service::service_fn(move |request| {
                    let (state, lie) = (Arc::clone(&state), Arc::clone(&lie));
                    async move { Ok::<_, Infallible>(respond(&state, &*lie, request).await) }
                });
                let connection = hyper::server::conn::http1::Builder::new();
                let Some(tls) = tls.clone() else {
                    tokio::spawn(connection.serve_connection(TokioIo::new(stream), service));
                    continue;
                };
                tokio::spawn(async move {
                    let Ok(stream) = tls.accept(stream).await else { return };
                    let _ = connection.serve_connection(TokioIo::new(stream), service).await;
                });
            }
        });
        Self { address, state }
    }

    pub(super) fn place(&self, rest: &str) -> Place {
        Place::open(&format!("oci://{}/{rest}", self.address), &options()).unwrap()
    }

    pub(super) fn seen(&self) -> Vec<Seen> {
        self.state.lock().unwrap().seen.clone()
    }

    /// How many requests with this method have this in their path.
    pub(super) fn count(&self, method: &Method, part: &str) -> usize {
        self.seen().iter().filter(|seen| seen.method == *method && seen.path.contains(part)).count()
    }
}

pub(super) fn options() -> Options {
    Options {
        backoff: Duration::from_millis(1),
        timeout: Duration::from_secs(20),
        credentials: CredentialFiles::default(),
        ..Options::default()
    }
}

async fn respond(state: &Mutex<State>, lie: &Lie, request: Request<Incoming>) -> Response<Pieces> {
    let (parts, body) = request.into_parts();
    let header = |name: &str| parts.headers.get(name).map(|value| value.to_str().unwrap().to_owned());
    let seen = Seen {
        method: parts.method.clone(),
        path: parts.uri.to_string(),
        authorization: header("authorization"),
        range: header("range"),
    };
    let body = body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    let before = {
        let mut state = state.lock().unwrap();
        let same = |other: &&Seen| other.method == seen.method && other.path == seen.path;
        let before = state.seen.iter().filter(same).count();
        state.seen.push(seen.clone());
        before
    };
    let answer = lie(&seen, before);
    let answer = answer.unwrap_or_else(|| state.lock().unwrap().honest(&seen, &header, body));
    let pieces = answer.pieces.into_iter().collect();
    answer.response.map(|()| Pieces { left: pieces, end: answer.end, waits: 5 })
}

impl State {
    fn honest(&mut self, seen: &Seen, header: &dyn Fn(&str) -> Option<String>, body: Bytes) -> Answer {
        let (path, query) = seen.path.split_once('?').unwrap_or((&seen.path, ""));
        let missing = || answer(404, &[], r#"{"errors":[{"code":"NOT_FOUND","message":"nothing"}]}"#);
        let Some(path) = path.strip_prefix("/v2/") else { return missing() };
        if path.is_empty() {
            return answer(200, &[], "{}");
        }
        if path == "_catalog" {
            let names = self.manifests.keys().filter_map(|key| key.rsplit_once('/')).map(|(name, _)| name);
            let names: std::collections::BTreeSet<&str> = names.collect();
            return answer(200, &[], json!({"repositories": names}).to_string());
        }
        let is_read = seen.method == Method::GET || seen.method == Method::HEAD;
        if let Some((_, upload)) = path.split_once("/blobs/uploads/") {
            return self.upload(&seen.method, upload, query, header, &body);
        }
        if let Some((_, digest)) = path.split_once("/blobs/") {
            return match self.blobs.get(digest) {
                Some(blob) => {
                    let start = seen.range.as_deref().and_then(|range| {
                        range.strip_prefix("bytes=")?.strip_suffix('-')?.parse::<usize>().ok()
                    });
                    match start {
                        Some(start) => {
                            let part = format!("bytes {start}-{}/{}", blob.len() - 1, blob.len());
                            answer(206, &[("content-range", &part)], blob.slice(start..))
                        }
                        None => answer(200, &[], blob.clone()),
                    }
                }
                None => missing(),
            };
        }
        if let Some((repository, reference)) = path.split_once("/manifests/") {
            let key = format!("{repository}/{reference}");
            if is_read {
                let found = self.manifests.get(&key);
                return found.map_or_else(missing, |(kind, bytes)| {
                    answer(200, &[("content-type", kind)], bytes.clone())
                });
            }
            let kind = header("content-type").unwrap();
            let digest = Digest::of(&body);
            let subject = serde_json::from_slice::<Value>(&body).unwrap()["subject"]["digest"].clone();
            self.manifests.insert(format!("{repository}/{digest}"), (kind.clone(), body.clone()));
            self.manifests.insert(key, (kind, body));
            let subject = subject.as_str().filter(|_| self.has_referrers);
            let headers: Vec<_> = subject.map(|subject| ("oci-subject", subject)).into_iter().collect();
            return answer(201, &headers, "");
        }
        if let Some((_, subject)) = path.split_once("/referrers/").filter(|_| self.has_referrers) {
            let all =
                self.manifests.iter().filter(|(key, _)| key.contains("/sha256:")).map(|(_, found)| found);
            let found: Vec<Value> = all
                .filter_map(|(kind, bytes)| {
                    let manifest: Value = serde_json::from_slice(bytes).unwrap();
                    (manifest["subject"]["digest"] == subject).then(|| {
                        json!({"mediaType": kind, "digest": Digest::of(bytes).to_string(), "size": bytes.len(),
                            "artifactType": manifest["config"]["mediaType"]})
                    })
                })
                .collect();
            return answer(200, &[], json!({"schemaVersion": 2, "manifests": found}).to_string());
        }
        if path.ends_with("/tags/list") {
            let repository = path.trim_end_matches("/tags/list");
            let all = self.manifests.keys().filter_map(|key| key.rsplit_once('/'));
            let tags = all.filter(|(name, _)| *name == repository).map(|(_, tag)| tag);
            let tags: Vec<&str> = tags.filter(|tag| !tag.starts_with("sha256:")).collect();
            return answer(200, &[], json!({"name": "x", "tags": tags}).to_string());
        }
        missing()
    }

    fn upload(
        &mut self,
        method: &Method,
        id: &str,
        query: &str,
        header: &dyn Fn(&str) -> Option<String>,
        body: &[u8],
    ) -> Answer {
        let location = |id: &str| format!("/v2/x/blobs/uploads/{id}?state=1");
        let range = |upload: &[u8]| format!("0-{}", upload.len().saturating_sub(1));
        if method == Method::POST {
            let mounted = query.strip_prefix("mount=").and_then(|rest| rest.split('&').next());
            if mounted.is_some_and(|digest| self.blobs.contains_key(digest)) {
                return answer(201, &[("location", "/v2/x/blobs/y")], "");
            }
            let id = format!("u{}", self.uploads.len());
            self.uploads.insert(id.clone(), Vec::new());
            return answer(202, &[("location", &location(&id))], "");
        }
        let Some(upload) = self.uploads.get_mut(id) else { return answer(404, &[], "") };
        match *method {
            Method::GET => answer(204, &[("range", &range(upload)), ("location", &location(id))], ""),
            Method::PATCH => {
                let start = header("content-range").unwrap();
                if start.split('-').next().unwrap().parse::<usize>().unwrap() != upload.len() {
                    return answer(416, &[("range", &range(upload)), ("location", &location(id))], "");
                }
                upload.extend_from_slice(body);
                answer(202, &[("range", &range(upload)), ("location", &location(id))], "")
            }
            Method::PUT => {
                upload.extend_from_slice(body);
                let bytes = Bytes::from(upload.clone());
                let digest = Digest::of(&bytes).to_string();
                if !query.contains(&format!("digest={digest}")) {
                    return answer(400, &[], r#"{"errors":[{"code":"DIGEST_INVALID"}]}"#);
                }
                self.blobs.insert(digest, bytes);
                answer(201, &[], "")
            }
            _ => answer(204, &[], ""),
        }
    }
}

/// The body of an answer.
pub(super) struct Pieces {
    left: std::collections::VecDeque<Bytes>,
    end: End,
    /// How often it waits before it is cut, so that what was sent leaves.
    waits: u32,
}

impl Body for Pieces {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, std::io::Error>>> {
        let piece = match (self.left.len(), self.end) {
            (1, End::Endless) => self.left.front().cloned(),
            (0, End::Cut) if self.waits > 0 => {
                self.waits -= 1;
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            (0, End::Cut) => {
                self.end = End::Whole;
                return Poll::Ready(Some(Err(std::io::ErrorKind::ConnectionReset.into())));
            }
            _ => self.left.pop_front(),
        };
        Poll::Ready(piece.map(|piece| Ok(Frame::data(piece))))
    }
}
