//! The embedded API as a server in the process: requests of clients reach it without a socket.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use futures::stream;
use http::{HeaderMap, Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use jiff::Timestamp;
use kube::client::Body;
use operetta_embedded::{self as embedded, Api, Watch};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::clock;

/// How long a watch waits at most before it looks for bookmarks and its end.
const LOOK: std::time::Duration = std::time::Duration::from_secs(60);

/// An embedded API that clients in this process share.
#[derive(Clone)]
pub struct Server {
    api: Arc<Mutex<Api>>,
    changed: watch::Sender<u64>,
}

impl Server {
    pub fn start(api: Api) -> Self {
        let server = Self { api: Arc::new(Mutex::new(api)), changed: watch::Sender::new(0) };
        let controllers = server.clone();
        tokio::spawn(async move { controllers.control().await });
        server
    }

    pub fn api(&self) -> MutexGuard<'_, Api> {
        self.api.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets the controllers act after each change.
    async fn control(&self) {
        let mut changes = self.changed.subscribe();
        loop {
            let acted = self.api().tick(clock::now());
            if acted {
                self.changed.send_modify(|version| *version += 1);
                changes.mark_unchanged();
                tokio::task::yield_now().await;
            } else {
                let _ = changes.changed().await;
            }
        }
    }

    pub fn client(&self) -> kube::Client {
        let server = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let server = server.clone();
            async move { Ok::<_, Infallible>(server.answer(request).await) }
        });
        kube::Client::new(service, "default")
    }

    async fn answer(&self, request: Request<Body>) -> Response<UnsyncBoxBody<Bytes, Infallible>> {
        let (parts, body) = request.into_parts();
        let body = body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
        let user = embedded::User::default();
        let uri = parts.uri.path_and_query().map_or("/", |p| p.as_str());
        let reply = self.api().handle(
            &embedded::Request {
                method: parts.method.as_str(),
                uri,
                content_type: header(&parts.headers, "content-type"),
                accept: header(&parts.headers, "accept"),
                user_agent: header(&parts.headers, "user-agent"),
                user: &user,
                body: &body,
            },
            clock::now(),
        );
        if parts.method != http::Method::GET {
            self.changed.send_modify(|version| *version += 1);
        }
        if std::env::var_os("PLAY_TRACE").is_some() {
            eprintln!("{} {} {uri} -> {}", clock::now(), parts.method, reply.code);
        }
        let mut response = Response::builder().status(reply.code).header("content-type", reply.content_type);
        for warning in &reply.warnings {
            response = response.header("warning", format!("299 - {warning:?}"));
        }
        let body = match reply.body {
            embedded::Body::Text(text) => Full::new(Bytes::from(text.into_string())).boxed_unsync(),
            embedded::Body::Watch(watch) => self.stream(*watch),
        };
        response.body(body).unwrap_or_default()
    }

    pub fn dump(&self) -> String {
        let mut text = String::new();
        for path in ["/apis/web.example.org/v1/webapps", "/apis/apps/v1/deployments", "/api/v1/events", "/apis/web.example.com/v1/webapps"] {
            let user = embedded::User::default();
            let reply = self.api().handle(&embedded::Request { method: "GET", uri: path, content_type: "", accept: "application/json", user_agent: "x", user: &user, body: b"" }, clock::now());
            if let embedded::Body::Text(t) = reply.body { text += &t; text += "\n"; }
        }
        text
    }

    fn stream(&self, watch: Watch) -> UnsyncBoxBody<Bytes, Infallible> {
        let changes = self.changed.subscribe();
        let state = (self.clone(), watch, changes);
        let events = stream::unfold(state, |(server, mut watch, mut changes)| async move {
            loop {
                changes.mark_unchanged();
                let events = server.api().events(&mut watch, clock::now())?;
                if !events.is_empty() {
                    let mut text = events.join("\n");
                    text.push('\n');
                    return Some((Ok(Frame::data(Bytes::from(text))), (server, watch, changes)));
                }
                tokio::select! {
                    _ = changes.changed() => {}
                    () = sleep_until(Instant::now() + LOOK) => {}
                }
            }
        });
        StreamBody::new(events).boxed_unsync()
    }
}

fn header<'a>(headers: &'a HeaderMap, name: &str) -> &'a str {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

/// The first moment of a play.
pub fn beginning() -> Timestamp {
    Timestamp::from_second(1_800_000_000).unwrap_or_default()
}
