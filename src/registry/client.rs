//! Requests to one repository of a registry: authentication, redirects, retries and deadlines.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::header::{
    ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderName, HeaderValue, LOCATION, RETRY_AFTER, USER_AGENT,
    WWW_AUTHENTICATE,
};
use http::{HeaderMap, Method, Request, StatusCode, Uri};
use http_body_util::Full;
use serde::Deserialize;
use tokio::sync::OnceCell;
use tokio::time::{sleep, timeout};

use crate::challenge::{Challenge, escape, is_same_origin, resolve};
use crate::credentials::{CredentialFiles, Credentials};
use crate::error::Error;
use crate::manifest::json;
use crate::reference::Reference;
use crate::transport::{Broken, Head, Transport};

/// How often a request is sent, at most, if the registry is unreachable or overloaded.
pub(crate) const ATTEMPTS: u32 = 5;
/// The longest wait that a registry may ask for.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(60);
/// How many redirects are followed.
const REDIRECTS: usize = 5;
/// The maximum size of the body of an error, and of a token.
const SMALL: u64 = 64 << 10;

/// How registries are called, and layouts are written.
#[derive(Debug, Clone)]
pub struct Options {
    /// Whether plain HTTP is permitted for hosts other than this machine.
    pub plain_http: bool,
    /// Authorities to trust instead of the system's, in PEM. With it, hosts of this machine are called with TLS, too.
    pub ca: Option<Vec<u8>>,
    /// How long one operation may take, retries included, and how long one waits for another process that writes to a layout.
    pub timeout: Duration,
    /// The wait before the first retry; it doubles.
    pub backoff: Duration,
    /// Is called before each wait, with the error and the wait.
    pub on_retry: fn(&Error, Duration),
    /// Is called once before each wait for another process, with the folder of the layout.
    pub on_wait: fn(&Path),
    /// Where credentials are.
    pub credentials: CredentialFiles,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            plain_http: false,
            ca: None,
            timeout: Duration::from_secs(300),
            backoff: Duration::from_millis(500),
            on_retry: |_, _| (),
            on_wait: |_| (),
            credentials: CredentialFiles::of_user(),
        }
    }
}

/// A client of one repository.
#[derive(Debug)]
pub struct Client {
    registry: String,
    repository: String,
    base: Uri,
    transport: Transport,
    options: Options,
    credentials: OnceCell<Option<Credentials>>,
    /// What is sent in `Authorization`, by the access that it gives.
    authorizations: Mutex<HashMap<String, HeaderValue>>,
    /// Whether there was an answer to a request.
    is_answered: AtomicBool,
}

/// A request.
pub(crate) struct Call {
    /// The request in words, for messages.
    pub(crate) what: String,
    pub(crate) method: Method,
    pub(crate) url: Uri,
    pub(crate) headers: Vec<(HeaderName, HeaderValue)>,
    pub(crate) body: Bytes,
    /// The access to the repository that it needs.
    pub(crate) actions: &'static str,
    /// The maximum size of the answer.
    pub(crate) limit: u64,
}

/// An answer.
pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

/// When a request that has failed may be sent again.
pub(crate) enum Retry {
    Never,
    /// After the usual wait.
    Usual,
    /// After the wait that the registry asks for.
    After(Duration),
}

/// A request failed.
pub(crate) struct Failed {
    pub(crate) error: Error,
    pub(crate) retry: Retry,
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self { error, retry: Retry::Never }
    }
}

impl Client {
    /// A client of the repository of a reference. Nothing is sent yet.
    ///
    /// # Errors
    /// The certificates cannot be used.
    pub fn new(reference: &Reference, options: Options) -> Result<Self, Error> {
        let registry = reference.registry.clone();
        // Loopback without a given authority is plain HTTP, as of the registries that tests and `docker run` start.
        let is_plain = options.plain_http || (reference.is_loopback() && options.ca.is_none());
        let host = if registry == "docker.io" { "registry-1.docker.io" } else { &registry };
        let base = format!("{}://{host}/", if is_plain { "http" } else { "https" });
        let unusable = |reason: String| Error::Transport {
            registry: registry.clone(),
            what: "a connection".into(),
            reason,
        };
        Ok(Self {
            base: base.parse().map_err(|_| unusable("its name is no host".into()))?,
            transport: Transport::new(options.ca.as_deref()).map_err(unusable)?,
            repository: reference.repository.clone(),
            credentials: OnceCell::new(),
            authorizations: Mutex::default(),
            is_answered: AtomicBool::new(false),
            registry,
            options,
        })
    }

    /// A client of another repository of the same registry, over the same connections.
    pub(crate) fn beside(&self, repository: &str) -> Self {
        Self {
            registry: self.registry.clone(),
            repository: repository.to_owned(),
            base: self.base.clone(),
            transport: self.transport.clone(),
            options: self.options.clone(),
            // Credentials may be stored for a repository, and tokens are of one.
            credentials: OnceCell::new(),
            authorizations: Mutex::default(),
            is_answered: AtomicBool::new(self.is_answered.load(Ordering::Relaxed)),
        }
    }

    /// The same with given credentials instead of the stored ones.
    #[must_use]
    pub fn with_credentials(mut self, credentials: Credentials) -> Self {
        self.credentials = OnceCell::new_with(Some(Some(credentials)));
        self
    }

    /// The host.
    pub(crate) fn registry(&self) -> &str {
        &self.registry
    }

    /// The path of the repository.
    pub(crate) fn repository(&self) -> &str {
        &self.repository
    }

    /// Checks that the registry answers, and accepts the credentials if it wants some.
    ///
    /// # Errors
    /// It does not.
    pub async fn ping(&self) -> Result<(), Error> {
        let call = Call { url: self.url("")?, ..self.call(Method::GET, "its API") };
        let reply = self.send(call).await?;
        self.expect(&reply, "its API", &[StatusCode::OK])
    }

    /// A URL of the API.
    pub(crate) fn url(&self, path: &str) -> Result<Uri, Error> {
        resolve(&self.base, &format!("/v2/{path}")).map_err(|reason| self.refused(path, reason))
    }

    /// The URL of a location that the registry names.
    pub(crate) fn locate(&self, base: &Uri, location: &str, what: &str) -> Result<Uri, Error> {
        resolve(base, location).map_err(|reason| self.refused(what, reason))
    }

    /// A request with defaults, to the root of the API.
    pub(crate) fn call(&self, method: Method, what: &str) -> Call {
        Call {
            what: what.to_owned(),
            method,
            url: self.base.clone(),
            headers: Vec::new(),
            body: Bytes::new(),
            actions: "pull",
            limit: SMALL,
        }
    }

    /// Sends a request until there is an answer that is no overload, within the deadline. Only requests that may be
    /// repeated are sent so.
    pub(crate) async fn send(&self, call: Call) -> Result<Reply, Error> {
        let all = async {
            let mut attempt = 0;
            loop {
                let mut body = Vec::new();
                let limit = call.limit;
                match self.once(&call, &mut body, |_, _| limit).await {
                    Ok(head) => {
                        return Ok(Reply { status: head.status, headers: head.headers, body: body.into() });
                    }
                    Err(failed) => self.wait(failed, &mut attempt).await?,
                }
            }
        };
        self.within(&call.what, all).await
    }

    /// Carries out an operation within the deadline.
    pub(crate) async fn within<T>(
        &self,
        what: &str,
        operation: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let waited = self.options.timeout;
        timeout(waited, operation).await.unwrap_or_else(|_| {
            Err(Error::TimedOut { registry: self.registry.clone(), what: what.to_owned(), waited })
        })
    }

    /// Waits before the next attempt; the error if there is none.
    pub(crate) async fn wait(&self, failed: Failed, attempt: &mut u32) -> Result<(), Error> {
        *attempt += 1;
        let wait = match failed.retry {
            Retry::Usual if *attempt < ATTEMPTS => {
                let backoff = self.options.backoff * 2_u32.pow(*attempt - 1);
                backoff.mul_f64(0.5 + fastrand::f64())
            }
            Retry::After(wait) if *attempt < ATTEMPTS => wait,
            _ => return Err(failed.error),
        };
        (self.options.on_retry)(&failed.error, wait);
        sleep(wait).await;
        Ok(())
    }

    /// Sends a request once; again only with credentials, or where the registry redirects to. The body of the
    /// answer is appended to `body`.
    pub(crate) async fn once(
        &self,
        call: &Call,
        body: &mut Vec<u8>,
        limit: impl Fn(&Head, &mut Vec<u8>) -> u64,
    ) -> Result<Head, Failed> {
        let mut url = call.url.clone();
        let mut is_asked = false;
        let mut redirects = 0;
        loop {
            // Credentials are for the registry only, not for a server that it redirects to.
            let is_ours = is_same_origin(&url, &self.base);
            let kept = body.len();
            let request = self.request(call, &url, is_ours)?;
            let head = self.transport.send(request, body, |head, body| {
                if head.status.is_success() { limit(head, body) } else { body.len() as u64 + SMALL }
            });
            let head = head.await.map_err(|broken| self.broken(call, &url, broken))?;
            self.is_answered.store(true, Ordering::Relaxed);
            if head.status.is_success() {
                return Ok(head);
            }
            let text = body.split_off(kept);
            let is_read = call.method == Method::GET || call.method == Method::HEAD;
            if head.status == StatusCode::UNAUTHORIZED && is_ours && !is_asked {
                is_asked = true;
                self.authenticate(call, &head.headers).await?;
            } else if head.status.is_redirection() && is_read && redirects < REDIRECTS {
                redirects += 1;
                let location = head.headers.get(LOCATION).and_then(|value| value.to_str().ok());
                url = self.locate(&url, location.unwrap_or_default(), &call.what)?;
            } else {
                let head = self.failure(call, &url, head, &text)?;
                body.extend_from_slice(&text);
                return Ok(head);
            }
        }
    }

    fn request(&self, call: &Call, url: &Uri, is_ours: bool) -> Result<Request<Full<Bytes>>, Error> {
        let mut request = Request::new(Full::new(call.body.clone()));
        *request.method_mut() = call.method.clone();
        *request.uri_mut() = url.clone();
        let headers = request.headers_mut();
        let agent = concat!("operetta/", env!("CARGO_PKG_VERSION"));
        headers.insert(USER_AGENT, HeaderValue::from_static(agent));
        for (name, value) in &call.headers {
            headers.append(name, value.clone());
        }
        if is_ours {
            let known = self.authorizations.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(value) = known.get(call.actions) {
                headers.insert(AUTHORIZATION, value.clone());
            }
        }
        if url.host().is_none() {
            return Err(self.refused(&call.what, "its location has no host"));
        }
        Ok(request)
    }

    /// What an answer of this URL that is no success means.
    fn failure(&self, call: &Call, url: &Uri, head: Head, text: &[u8]) -> Result<Head, Failed> {
        let status = head.status;
        let is_denied = matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN);
        let overloaded = [408, 425, 429, 500, 502, 503, 504].contains(&status.as_u16());
        if overloaded {
            let after = head.headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok());
            let after = after.and_then(|text| text.trim().parse().ok()).map(Duration::from_secs);
            let retry = after.map_or(Retry::Usual, |after| Retry::After(after.min(MAX_RETRY_AFTER)));
            return Err(Failed { error: self.status_of(url, status, &call.what, text), retry });
        }
        if is_denied && !is_same_origin(url, &self.base) {
            // It has got no credentials, so others would change nothing.
            let what = format!("{}, for which {} redirects to it", call.what, self.registry);
            return Err(self.status_of(url, status, &what, text).into());
        }
        if is_denied {
            return Err(self.unauthorized(&call.what, &message(text)).into());
        }
        if status.is_redirection() && status != StatusCode::NOT_MODIFIED {
            return Err(self
                .refused(&call.what, "it redirects too often, or a request that changes something")
                .into());
        }
        Ok(head)
    }

    fn broken(&self, call: &Call, url: &Uri, broken: Broken) -> Failed {
        let (reason, retry) = match broken {
            Broken::TooLarge => {
                return Error::TooLarge { what: call.what.clone(), limit: call.limit }.into();
            }
            // A registry that has answered restarts. Before, a person who has mistyped the port wants to know it at once.
            Broken::Refused(reason) => {
                let is_answered = self.is_answered.load(Ordering::Relaxed);
                (reason, if is_answered { Retry::Usual } else { Retry::Never })
            }
            // A wrong certificate does not become right.
            Broken::Connection(reason) if reason.contains("certificate") => (reason, Retry::Never),
            Broken::Connection(reason) => (reason, Retry::Usual),
        };
        Failed {
            error: Error::Transport { registry: self.host(url), what: call.what.clone(), reason },
            retry,
        }
    }

    /// The host that a URL is of, for messages.
    fn host(&self, url: &Uri) -> String {
        let other = url.authority().filter(|_| !is_same_origin(url, &self.base));
        other.map_or_else(|| self.registry.clone(), ToString::to_string)
    }

    /// Answers the challenge of a registry.
    async fn authenticate(&self, call: &Call, headers: &HeaderMap) -> Result<(), Failed> {
        let mut challenges = headers.get_all(WWW_AUTHENTICATE).iter().filter_map(|value| value.to_str().ok());
        let challenge = challenges.find_map(Challenge::parse);
        let challenge = challenge.ok_or_else(|| {
            self.refused(&call.what, "it wants an authentication that is neither Basic nor Bearer")
        })?;
        let find = || self.options.credentials.find(&self.registry, &self.repository);
        let credentials = self.credentials.get_or_try_init(find).await?.clone();
        let value = match challenge {
            Challenge::Basic => match credentials {
                Some(Credentials::Password { user, password }) => basic(&user, &password),
                _ => return Err(self.unauthorized(&call.what, "").into()),
            },
            Challenge::Bearer { realm, service, scope } => {
                // Without a repository, a token only proves who asks.
                let own = match self.repository.as_str() {
                    "" => String::new(),
                    repository => format!("repository:{repository}:{}", call.actions),
                };
                let scope = scope.unwrap_or(own);
                let token = self.token(call, &realm, service.as_deref(), &scope, credentials).await?;
                format!("Bearer {token}")
            }
        };
        let mut value = HeaderValue::from_str(&value)
            .map_err(|_| self.refused(&call.what, "its token cannot be part of a header"))?;
        value.set_sensitive(true);
        let mut known = self.authorizations.lock().unwrap_or_else(PoisonError::into_inner);
        known.insert(call.actions.to_owned(), value);
        Ok(())
    }

    /// A token of the server that the registry names. It gets the credentials of the registry, as clients of registries do.
    async fn token(
        &self,
        call: &Call,
        realm: &str,
        service: Option<&str>,
        scope: &str,
        credentials: Option<Credentials>,
    ) -> Result<String, Failed> {
        #[derive(Deserialize)]
        struct Token {
            token: Option<String>,
            access_token: Option<String>,
        }
        let realm = self.locate(&self.base, realm, "a token")?;
        let mut query: Vec<(&str, &str)> = service.map(|service| ("service", service)).into_iter().collect();
        query.extend(scope.split(' ').filter(|scope| !scope.is_empty()).map(|scope| ("scope", scope)));
        let mut request = Request::new(Full::default());
        let mut authorization = None;
        let mut path = realm.to_string();
        match &credentials {
            Some(Credentials::IdentityToken(token)) => {
                query.extend([
                    ("grant_type", "refresh_token"),
                    ("client_id", "operetta"),
                    ("refresh_token", token),
                ]);
                *request.method_mut() = Method::POST;
                *request.body_mut() = Full::from(form(&query));
                let kind = HeaderValue::from_static("application/x-www-form-urlencoded");
                request.headers_mut().insert(CONTENT_TYPE, kind);
            }
            other => {
                path.push(if path.contains('?') { '&' } else { '?' });
                path.push_str(&form(&query));
                if let Some(Credentials::Password { user, password }) = other {
                    authorization = HeaderValue::from_str(&basic(user, password)).ok();
                }
            }
        }
        let url: Uri =
            path.parse().map_err(|_| self.refused("a token", "the URL for tokens is not valid"))?;
        *request.uri_mut() = url.clone();
        request.headers_mut().insert(ACCEPT, HeaderValue::from_static("application/json"));
        if let Some(mut value) = authorization {
            value.set_sensitive(true);
            request.headers_mut().insert(AUTHORIZATION, value);
        }
        let mut body = Vec::new();
        let ask = Call { what: "a token".into(), ..self.call(Method::GET, "") };
        let head = self.transport.send(request, &mut body, |_, _| SMALL).await;
        let head = head.map_err(|broken| self.broken(&ask, &url, broken))?;
        if !head.status.is_success() {
            // It has got the credentials of the registry, so what it refuses is refused by the registry.
            let head = self.failure(&ask, &self.base, head, &body)?;
            return Err(match head.status {
                StatusCode::BAD_REQUEST | StatusCode::NOT_FOUND => {
                    self.unauthorized(&call.what, &message(&body))
                }
                status => self.status(status, "a token", &body),
            }
            .into());
        }
        let token: Token = json("the token", &body)?;
        let token = token.token.filter(|token| !token.is_empty()).or(token.access_token);
        token.ok_or_else(|| self.refused("a token", "there is none in it").into())
    }

    /// The error unless the status is one of these.
    pub(crate) fn expect(&self, reply: &Reply, what: &str, expected: &[StatusCode]) -> Result<(), Error> {
        if expected.contains(&reply.status) {
            return Ok(());
        }
        if reply.status == StatusCode::NOT_FOUND {
            return Err(Error::NotFound { what: what.to_owned() });
        }
        Err(self.status(reply.status, what, &reply.body))
    }

    fn status(&self, status: StatusCode, what: &str, text: &[u8]) -> Error {
        self.status_of(&self.base, status, what, text)
    }

    fn status_of(&self, url: &Uri, status: StatusCode, what: &str, text: &[u8]) -> Error {
        Error::Status {
            registry: self.host(url),
            status: status.as_u16(),
            what: what.to_owned(),
            message: message(text),
        }
    }

    pub(crate) fn refused(&self, what: &str, reason: &str) -> Error {
        Error::Refused { registry: self.registry.clone(), what: what.to_owned(), reason: reason.to_owned() }
    }

    fn unauthorized(&self, what: &str, message: &str) -> Error {
        let known = self.credentials.get().is_some_and(Option::is_some);
        let mut reason =
            if known { "the credentials do not suffice" } else { "no credentials are stored" }.to_owned();
        if !message.is_empty() {
            reason = format!("{reason} ({message})");
        }
        Error::Unauthorized { registry: self.registry.clone(), what: what.to_owned(), reason }
    }
}

fn basic(user: &str, password: &str) -> String {
    format!("Basic {}", STANDARD.encode(format!("{user}:{password}")))
}

fn form(pairs: &[(&str, &str)]) -> String {
    let pairs = pairs.iter().map(|(name, value)| format!("{name}={}", escape(value)));
    pairs.collect::<Vec<_>>().join("&")
}

/// The message in the body of an error, as far as it is one.
fn message(body: &[u8]) -> String {
    #[derive(Deserialize)]
    struct Errors {
        errors: Vec<Message>,
    }
    #[derive(Deserialize)]
    struct Message {
        #[serde(default)]
        code: String,
        #[serde(default)]
        message: String,
    }
    let errors: Option<Errors> = serde_json::from_slice(body).ok();
    let first = errors.and_then(|errors| errors.errors.into_iter().next());
    first.map(|first| Error::shown(&format!("{} {}", first.code, first.message))).unwrap_or_default()
}
