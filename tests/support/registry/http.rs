//! Requests and answers of HTTP/1.1, as far as clients of registries send them.

use std::collections::BTreeMap;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use serde_json::json;

/// The maximum size of a request.
const BODY_BYTES: usize = 64 << 20;
/// What paths below a repository begin with; the longer ones first.
const PARTS: [&str; 5] = ["/blobs/uploads/", "/blobs/", "/manifests/", "/referrers/", "/tags/list"];

/// A request that came.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) query: String,
    pub(crate) at: Instant,
    headers: BTreeMap<String, String>,
    pub(super) body: Vec<u8>,
}

impl Request {
    /// The next request of a connection.
    pub(super) fn read(lines: &mut BufReader<TcpStream>) -> Option<Self> {
        let mut line = String::new();
        if lines.read_line(&mut line).ok()? == 0 {
            return None;
        }
        let at = Instant::now();
        let mut words = line.split_whitespace();
        let (method, target) = (words.next()?.to_owned(), words.next()?);
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let mut headers = BTreeMap::new();
        loop {
            let mut header = String::new();
            lines.read_line(&mut header).ok()?;
            let Some((name, value)) = header.trim_end().split_once(':') else { break };
            headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
        }
        let length = headers.get("content-length").map_or(Some(0), |text| text.parse().ok())?;
        if length > BODY_BYTES || headers.contains_key("transfer-encoding") {
            return None;
        }
        let mut body = vec![0; length];
        lines.read_exact(&mut body).ok()?;
        Some(Self { path: path.to_owned(), query: query.to_owned(), method, at, headers, body })
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }

    pub(super) fn without_body(&self) -> Self {
        Self { body: Vec::new(), ..self.clone() }
    }

    /// Whether it has this method, and this in its path.
    pub(crate) fn is(&self, method: &str, part: &str) -> bool {
        self.method == method && self.path.contains(part)
    }

    fn is_read(&self) -> bool {
        self.method == "GET" || self.method == "HEAD"
    }

    /// The values of a parameter.
    pub(super) fn parameters(&self, name: &str) -> Vec<String> {
        let pairs = self.query.split('&').filter_map(|pair| pair.split_once('='));
        pairs.filter(|(found, _)| *found == name).map(|(_, value)| decode(value)).collect()
    }

    /// The repository, the part of the API and the rest of the path.
    pub(super) fn split(&self) -> Option<(&str, &'static str, &str)> {
        let path = self.path.strip_prefix("/v2/")?;
        PARTS.iter().find_map(|part| path.split_once(part).map(|(name, rest)| (name, *part, rest)))
    }

    /// The access that it needs.
    pub(super) fn scope(&self) -> Option<String> {
        if self.path == "/v2/_catalog" {
            return Some("registry:catalog:*".to_owned());
        }
        let actions = if self.is_read() { "pull" } else { "pull,push" };
        self.split().map(|(repository, ..)| format!("repository:{repository}:{actions}"))
    }
}

/// An answer.
#[derive(Debug, Clone)]
pub(crate) struct Reply {
    status: u16,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
    end: End,
}

#[derive(Debug, Clone, Copy)]
enum End {
    Whole,
    Cut,
    Endless,
}

/// A whole answer.
pub(crate) fn reply(status: u16, headers: &[(&str, &str)], body: impl Into<Vec<u8>>) -> Reply {
    let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    Reply { status, headers, body: body.into(), end: End::Whole }
}

/// An error of the registry.
pub(crate) fn error(status: u16, code: &str) -> Reply {
    reply(status, &[], json!({"errors": [{"code": code, "message": "by the test"}]}).to_string())
}

impl Reply {
    /// The same with a header.
    pub(super) fn with(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// The same, but the connection ends in the middle of the body.
    pub(crate) fn cut(self) -> Self {
        Self { end: End::Cut, ..self }
    }

    /// The same, but the body is repeated for ever.
    pub(crate) fn endless(self) -> Self {
        Self { end: End::Endless, ..self }
    }

    /// Sends it. Returns whether the connection goes on.
    pub(super) fn send(&self, mut stream: &TcpStream, is_head: bool, sent: &AtomicU64) -> io::Result<bool> {
        let length = match self.end {
            End::Endless => "connection: close\r\n".to_owned(),
            _ if self.status == 204 => String::new(),
            _ => format!("content-length: {}\r\n", self.body.len()),
        };
        let headers: Vec<String> =
            self.headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let head = format!("HTTP/1.1 {} x\r\n{}{length}\r\n", self.status, headers.concat());
        let body: &[u8] = match self.end {
            _ if is_head || self.status == 204 => &[],
            End::Cut => &self.body[..self.body.len() / 2],
            _ => &self.body[..],
        };
        stream.write_all(&[head.as_bytes(), body].concat())?;
        sent.fetch_add(body.len() as u64, Ordering::Relaxed);
        if is_head {
            return Ok(true);
        }
        match self.end {
            End::Whole => Ok(true),
            End::Cut => Ok(false),
            // Until the client closes the connection.
            End::Endless => loop {
                stream.write_all(&self.body)?;
                sent.fetch_add(self.body.len() as u64, Ordering::Relaxed);
            },
        }
    }
}

/// A value of a query as it was before it was escaped.
fn decode(text: &str) -> String {
    let mut parts = text.split('%');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        bytes.push(u8::from_str_radix(&part[..2], 16).expect("two digits"));
        bytes.extend_from_slice(&part.as_bytes()[2..]);
    }
    String::from_utf8(bytes).expect("UTF-8")
}
