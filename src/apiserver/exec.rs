//! Commands in containers: the WebSocket protocol of kubectl and kube, with one command's whole output.

use bytes::Bytes;
use futures::{SinkExt as _, StreamExt as _};
use http::header::{
    CONNECTION, HeaderValue, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL, UPGRADE,
};
use http::{Request, Response, StatusCode, Uri};
use http_body_util::Empty;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use operetta_embedded::decoded;
use operetta_embedded::{ExecResult, Failure, User};
use serde_json::{Value, json};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Utf8Bytes;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Message, Role};
use tracing::debug;

use super::Server;
use super::reply::{ResponseBody, boxed, status};

/// The protocols in the order in which they are preferred. Version 5 can say that the input ends.
const PROTOCOLS: [&str; 2] = ["v5.channel.k8s.io", "v4.channel.k8s.io"];
const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const STATUS: u8 = 3;
const CLOSE: u8 = 255;
/// The most bytes of a command's input.
const MAX_STDIN: usize = 4 << 20;
/// How much output one message has.
const PART: usize = 32 << 10;

type Socket = WebSocketStream<TokioIo<Upgraded>>;

/// A command, and the container in which it is to run.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Target {
    namespace: String,
    pod: String,
    container: String,
    command: Vec<String>,
    has_stdin: bool,
}

impl Target {
    /// The target of a request, if it is to run a command.
    pub(super) fn of(uri: &Uri) -> Option<Self> {
        let parts: Vec<&str> = uri.path().split('/').collect();
        let ["", "api", "v1", "namespaces", namespace, "pods", pod, "exec"] = parts[..] else { return None };
        let mut target = Self { namespace: namespace.to_owned(), pod: pod.to_owned(), ..Self::default() };
        let (mut has_stdin, mut is_terminal) = (false, false);
        for pair in uri.query().unwrap_or_default().split('&') {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = decoded(value, true);
            match key {
                "container" => target.container = value,
                "command" => target.command.push(value),
                "stdin" => has_stdin = value != "false",
                "tty" => is_terminal = value != "false",
                _ => {}
            }
        }
        // A person at a terminal does not end the input before there is output.
        target.has_stdin = has_stdin && !is_terminal;
        Some(target)
    }
}

/// The command of a request, for people.
pub(crate) fn command_text(uri: &Uri) -> String {
    let Target { pod, command, .. } = Target::of(uri).unwrap_or_default();
    format!("runs {} in {pod}", command.join(" "))
}

/// Whether a request asks for a WebSocket.
pub(super) fn wants_upgrade<B>(request: &Request<B>) -> bool {
    request.headers().get(UPGRADE).is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"websocket"))
}

impl Server {
    /// Runs the command of a request, and drops what it prints.
    pub(crate) fn carry_out(&self, uri: &Uri) {
        if let Some(target) = Target::of(uri) {
            let _ = self.run_command(&target, &[]);
        }
    }

    /// Switches to the protocol of a command, and runs it.
    pub(super) fn exec<B>(
        &self,
        request: &mut Request<B>,
        target: Target,
        user: &User,
    ) -> Response<ResponseBody> {
        if let Some(refusal) = self.refuse_exec(request, &target, user) {
            return refusal;
        }
        let refuse = |message: &str| status(StatusCode::BAD_REQUEST, "BadRequest", message);
        if !wants_upgrade(request) {
            return refuse("Upgrade request required");
        }
        let headers = request.headers();
        let offered = headers.get_all(SEC_WEBSOCKET_PROTOCOL).iter().filter_map(|value| value.to_str().ok());
        let offered: Vec<&str> = offered.flat_map(|list| list.split(',')).map(str::trim).collect();
        let Some(protocol) = PROTOCOLS.into_iter().find(|protocol| offered.contains(protocol)) else {
            return refuse("the protocol must be v5.channel.k8s.io or v4.channel.k8s.io");
        };
        let accept = headers.get(SEC_WEBSOCKET_KEY).map(|key| derive_accept_key(key.as_bytes()));
        let Some(Ok(accept)) = accept.map(|accept| HeaderValue::from_str(&accept)) else {
            return refuse("the header Sec-WebSocket-Key is missing");
        };
        let upgrade = hyper::upgrade::on(request);
        let server = self.clone();
        tokio::spawn(async move {
            match upgrade.await {
                Ok(upgraded) => {
                    let upgraded = TokioIo::new(upgraded);
                    let socket = WebSocketStream::from_raw_socket(upgraded, Role::Server, None).await;
                    server.session(socket, &target).await;
                }
                Err(error) => debug!(%error, "a connection was not switched to WebSocket"),
            }
        });
        let mut response = Response::new(boxed(Empty::new()));
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        let headers = response.headers_mut();
        headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
        headers.insert(SEC_WEBSOCKET_ACCEPT, accept);
        headers.insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(protocol));
        response
    }

    /// The refusal of a command that the user may not run, or of which there is no pod.
    fn refuse_exec<B>(
        &self,
        request: &Request<B>,
        target: &Target,
        user: &User,
    ) -> Option<Response<ResponseBody>> {
        let ask = |method: &str, uri: &str, user: &User| {
            let request = operetta_embedded::Request {
                method,
                uri,
                content_type: "",
                accept: "",
                user_agent: "",
                user,
                body: &[],
            };
            self.lock().handle(&request, self.now())
        };
        let uri = request.uri().to_string();
        // The API answers this with a refusal in any case; that of a user without rights is the one that counts.
        let rights = ask(request.method().as_str(), &uri, user);
        if rights.code == StatusCode::FORBIDDEN {
            return Some(self.to_http(rights));
        }
        let Target { namespace, pod, .. } = target;
        let found = ask("GET", &format!("/api/v1/namespaces/{namespace}/pods/{pod}"), &self.0.admin);
        (found.code != StatusCode::OK).then(|| self.to_http(found))
    }

    /// Reads the input, runs the command and sends what it printed, then how it ended.
    async fn session(&self, mut socket: Socket, target: &Target) {
        let Some(stdin) = input(&mut socket, target.has_stdin).await else { return };
        let messages = match self.run_command(target, &stdin) {
            Ok(result) => {
                tokio::select! {
                    () = tokio::time::sleep(result.takes) => {}
                    // The client has gone.
                    () = closed(&mut socket) => return,
                }
                let stdout = parts(STDOUT, result.stdout.as_bytes());
                let stderr = parts(STDERR, result.stderr.as_bytes());
                let end = message(STATUS, ended(result.exit_code).to_string().as_bytes());
                stdout.chain(stderr).chain([end]).collect()
            }
            Err(failure) => vec![message(STATUS, failure.to_json().to_string().as_bytes())],
        };
        for message in messages {
            if socket.feed(message).await.is_err() {
                return;
            }
        }
        // kubectl takes any other end for a failure.
        let end = CloseFrame { code: CloseCode::Normal, reason: Utf8Bytes::default() };
        let _ = socket.close(Some(end)).await;
        closed(&mut socket).await;
    }

    fn run_command(&self, target: &Target, stdin: &[u8]) -> Result<ExecResult, Failure> {
        let Target { namespace, pod, container, command, .. } = target;
        self.with(|api, now| api.exec(namespace, pod, container, command, stdin, now))
    }
}

/// The whole input; `None` if the client has gone.
async fn input(socket: &mut Socket, is_wanted: bool) -> Option<Vec<u8>> {
    let mut input = Vec::new();
    if !is_wanted {
        return Some(input);
    }
    loop {
        match socket.next().await?.ok()? {
            Message::Binary(bytes) => match &bytes[..] {
                [CLOSE, STDIN, ..] => return Some(input),
                [STDIN, data @ ..] if input.len() + data.len() <= MAX_STDIN => input.extend_from_slice(data),
                [STDIN, ..] => return None,
                _ => {}
            },
            // Version 4 has no other way to end the input.
            Message::Close(_) => return Some(input),
            _ => {}
        }
    }
}

/// Returns when the client has closed the connection.
async fn closed(socket: &mut Socket) {
    while let Some(Ok(message)) = socket.next().await {
        if message.is_close() {
            return;
        }
    }
}

fn parts(channel: u8, text: &[u8]) -> impl Iterator<Item = Message> + use<'_> {
    text.chunks(PART).map(move |part| message(channel, part))
}

fn message(channel: u8, data: &[u8]) -> Message {
    Message::Binary(Bytes::from([&[channel], data].concat()))
}

/// The status of a command that ended.
fn ended(code: i32) -> Value {
    if code == 0 {
        return json!({"metadata": {}, "status": "Success"});
    }
    json!({"metadata": {}, "status": "Failure", "reason": "NonZeroExitCode",
        "message": format!("command terminated with exit code {code}"),
        "details": {"causes": [{"reason": "ExitCode", "message": code.to_string()}]}})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_for_commands_are_recognized() {
        let target = |uri: &str| Target::of(&uri.parse().unwrap());
        let found = target(
            "/api/v1/namespaces/n/pods/p/exec?command=sh&command=-c&command=a%20b&container=c&stdin=true",
        );
        let command = ["sh", "-c", "a b"].map(str::to_owned).to_vec();
        let (namespace, pod, container) = ("n".to_owned(), "p".to_owned(), "c".to_owned());
        assert_eq!(found, Some(Target { namespace, pod, container, command, has_stdin: true }));
        let terminal = target("/api/v1/namespaces/n/pods/p/exec?command=sh&stdin=true&tty=true").unwrap();
        assert!(!terminal.has_stdin);
        assert_eq!(target("/api/v1/namespaces/n/pods/p/log"), None);
    }
}
