//! HTTP requests to the API, and its responses as HTTP.

use std::io;

use bytes::Bytes;
use futures::stream;
use http::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE, USER_AGENT, WARNING};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode};
use http_body::{Body, Frame};
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited, StreamBody};
use operetta_embedded as embedded;
use operetta_embedded::{User, Watch};
use tokio::sync::watch;
use tower::BoxError;

use super::reply::{ResponseBody, boxed, header, status};
use super::{Answered, Server, exec};

const JSON: &str = "application/json";
const YAML: &str = "application/yaml";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

/// The largest body of a request, as in kube-apiserver.
const MAX_REQUEST: usize = 3 << 20;

impl Server {
    /// Answers a request of a user, and logs it.
    pub(super) async fn answer<B>(&self, request: Request<B>, user: &User) -> Response<ResponseBody>
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let Some(log) = self.0.log.get() else {
            return self.answer_unlogged(request, user, &mut Bytes::new()).await;
        };
        let mut answered = Answered::of(&request, user, self.now());
        let response = self.answer_unlogged(request, user, &mut answered.body).await;
        answered.code = response.status().as_u16();
        log(&answered);
        response
    }

    /// Answers a request of a user; `sent` becomes its body.
    async fn answer_unlogged<B>(
        &self,
        mut request: Request<B>,
        user: &User,
        sent: &mut Bytes,
    ) -> Response<ResponseBody>
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let (method, uri) = (request.method().as_str(), request.uri().to_string());
        let headers = impersonation(request.headers());
        let acting = self.lock().acting_user(user, method, &uri, &headers, self.now());
        let user = match acting {
            Ok(user) => user,
            Err(refusal) => return self.to_http(refusal),
        };
        if let Some(target) = exec::Target::of(request.uri()) {
            return self.exec(&mut request, target, &user);
        }
        let (parts, body) = request.into_parts();
        let body = match Limited::new(body, MAX_REQUEST).collect().await {
            Ok(body) => body.to_bytes(),
            Err(error) if error.is::<LengthLimitError>() => {
                let message = format!("Request entity too large: limit is {MAX_REQUEST}");
                return status(StatusCode::PAYLOAD_TOO_LARGE, "RequestEntityTooLarge", &message);
            }
            Err(error) => return status(StatusCode::BAD_REQUEST, "BadRequest", &error.to_string()),
        };
        let text = |name: HeaderName| header(&parts.headers, &name);
        sent.clone_from(&body);
        let (mut body, mut content) = (body, text(CONTENT_TYPE));
        if content == PROTOBUF
            && let Some(object) = embedded::from_protobuf(&body)
        {
            (body, content) = (object.to_string().into(), JSON);
        }
        // The document of OpenAPI v2 has a form of its own.
        if parts.uri.path() != "/openapi/v2"
            && let Some(refusal) = refuse_media(text(ACCEPT), content, body.is_empty())
        {
            return refusal;
        }
        let mut api = self.lock();
        let before = api.version();
        let response = api.handle(
            &embedded::Request {
                method: parts.method.as_str(),
                uri: parts.uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str),
                content_type: content,
                accept: text(ACCEPT),
                user_agent: text(USER_AGENT),
                user: &user,
                body: &body,
            },
            self.now(),
        );
        // Reads, refusals and dry runs leave nothing to look at.
        let has_written = api.version() != before;
        if has_written {
            self.written(&api);
        }
        drop(api);
        if has_written {
            self.changed();
        }
        self.to_http(response)
    }

    pub(super) fn to_http(&self, response: embedded::Response) -> Response<ResponseBody> {
        let body = match response.body {
            embedded::Body::Text(text) => boxed(Full::new(Bytes::from(text.into_string()))),
            embedded::Body::Bytes(bytes) => boxed(Full::new(Bytes::from(bytes))),
            embedded::Body::Watch(watch) => self.follow(*watch),
        };
        let mut answer = Response::new(body);
        *answer.status_mut() = StatusCode::from_u16(response.code).unwrap_or_default();
        let headers = answer.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(response.content_type));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
        for warning in response.warnings {
            let quoted = warning.replace('\\', "\\\\").replace('"', "\\\"").replace(char::is_control, " ");
            if let Ok(value) = HeaderValue::from_str(&format!("299 - \"{quoted}\"")) {
                headers.append(WARNING, value);
            }
        }
        answer
    }

    /// The events of a watch, each on a line, until it ends. An event is computed when the client reads.
    fn follow(&self, watch: Watch) -> ResponseBody {
        let changes = self.0.changes.subscribe();
        let state = Following { server: self.clone(), watch, changes };
        boxed(StreamBody::new(stream::unfold(state, |mut state| async move {
            let lines = state.next().await?;
            Some((Ok::<_, io::Error>(Frame::data(lines)), state))
        })))
    }
}

struct Following {
    server: Server,
    watch: Watch,
    changes: watch::Receiver<()>,
}

impl Following {
    /// The next events; `None` when the watch has ended.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            // What changes after this wakes the wait below.
            self.changes.borrow_and_update();
            let now = self.server.now();
            let events = self.server.lock().events(&mut self.watch, now)?;
            if !events.is_empty() {
                return Some(Bytes::from(events.join("\n") + "\n"));
            }
            let due = self.watch.due();
            tokio::select! {
                changed = self.changes.changed() => changed.ok()?,
                () = self.server.sleep_until(due) => {}
            }
        }
    }
}

/// The headers that name another user, with names in lower case.
fn impersonation(headers: &HeaderMap) -> Vec<(String, String)> {
    let all = headers.iter().filter(|(name, _)| name.as_str().starts_with("impersonate-"));
    all.filter_map(|(name, value)| Some((name.to_string(), value.to_str().ok()?.to_owned()))).collect()
}

/// The refusal of a request in a form that is not read or written here, such as Protobuf: clients then use JSON.
fn refuse_media(accept: &str, content: &str, is_empty: bool) -> Option<Response<ResponseBody>> {
    let media = |text: &str| text.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let is_written = |part: &str| matches!(&*media(part), JSON | "application/*" | "*/*" | "");
    if !accept.split(',').any(is_written) {
        let message = format!("only the following media types are accepted: {JSON}");
        return Some(status(StatusCode::NOT_ACCEPTABLE, "NotAcceptable", &message));
    }
    let content = media(content);
    let is_read = content.is_empty() || content == JSON || content == YAML || content.contains("patch+");
    if !is_read && !is_empty {
        let message = format!(
            "the body of the request was in an unknown format - accepted media types include: {JSON}"
        );
        return Some(status(StatusCode::UNSUPPORTED_MEDIA_TYPE, "UnsupportedMediaType", &message));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protobuf_is_refused_and_json_beside_it_accepted() {
        let code =
            |accept, content| refuse_media(accept, content, false).map(|refusal| refusal.status().as_u16());
        let table = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
        for accept in
            ["", "*/*", "application/json", table, "application/vnd.kubernetes.protobuf,application/json"]
        {
            assert_eq!(code(accept, "application/json; charset=utf-8"), None, "{accept}");
        }
        assert_eq!(code(PROTOBUF, ""), Some(406));
        assert_eq!(code("application/json", PROTOBUF), Some(415));
        assert_eq!(code("application/json", "application/apply-patch+yaml"), None);
        assert!(refuse_media("", PROTOBUF, true).is_none());
    }
}
