//! Renders requests of steps and observations.

use std::time::Duration;

use serde_json::{Value, json};

use super::eval::{Eval, NoValue, as_string, optional, string, value};
use super::names::keyed_digest;
use super::request::Pod;
use super::request::{ExecRequest, HttpRequest, PatchRequest, Request, Tls};
use crate::package::plan::{self, Auth, Body, Exec, Http, POD_URL, Patch};
use crate::template::{Engine, Scope, Text};

/// The most bytes of the output of a command.
const MAX_EXEC_BYTES: usize = 1 << 20;

/// The request of an http step or observation. `key` is its `Idempotency-Key`, unless it has its own; `pod` is called if it
/// is for one.
pub(crate) fn http(
    engine: &Engine,
    http: &Http,
    scope: &Scope,
    key: Option<&str>,
    pod: Option<Pod>,
) -> Eval<HttpRequest> {
    let text = |text: &Text, what: &str| string(engine, text, scope, what);
    let mut headers = Vec::new();
    for (name, value) in &http.headers {
        if let Some(value) = optional(engine, value, scope)? {
            let value = as_string(&value)
                .ok_or_else(|| NoValue::Wrong(format!("the header {name} is not a string")))?;
            headers.push((name.clone(), value));
        }
    }
    let has = |headers: &[(String, String)], name: &str| {
        headers.iter().any(|(known, _)| known.eq_ignore_ascii_case(name))
    };
    let (body, content_type) = body(engine, &http.body, scope)?;
    if let Some(content_type) = content_type
        && !has(&headers, "content-type")
    {
        headers.push(("Content-Type".into(), content_type.into()));
    }
    match &http.auth {
        Some(Auth::Bearer(token)) => {
            if let Some(token) = optional(engine, token, scope)? {
                let token = as_string(&token)
                    .ok_or_else(|| NoValue::Wrong("auth.bearer is not a string".to_owned()))?;
                headers.push(("Authorization".into(), format!("Bearer {}", token.trim())));
            }
        }
        Some(Auth::Basic(user, password)) => {
            use base64::Engine as _;
            let (user, password) = (text(user, "auth.basic")?, text(password, "auth.basic")?);
            plan::check_user(&user).map_err(|why| NoValue::Wrong(why.to_owned()))?;
            let encoded = base64::engine::general_purpose::STANDARD.encode(format!("{user}:{password}"));
            headers.push(("Authorization".into(), format!("Basic {encoded}")));
        }
        None => {}
    }
    let own_key = http.key.as_ref().map(|key| text(key, "key")).transpose()?;
    if let Some(key) = &own_key {
        plan::check_key(key).map_err(|why| NoValue::Wrong(why.to_owned()))?;
    }
    if let Some(key) = own_key.as_deref().or(key)
        && !has(&headers, "idempotency-key")
    {
        headers.push(("Idempotency-Key".into(), key.to_owned()));
    }
    let pem = |text: Option<&Text>| -> Eval<Option<String>> {
        let Some(text) = text else { return Ok(None) };
        Ok(optional(engine, text, scope)?.as_ref().and_then(as_string))
    };
    let tls = match &http.tls {
        Some(tls) => {
            Tls { ca: pem(tls.ca.as_ref())?, cert: pem(tls.cert.as_ref())?, key: pem(tls.key.as_ref())? }
        }
        None => Tls::default(),
    };
    Ok(HttpRequest {
        method: http.method.clone(),
        url: url(engine, http, scope, pod.as_ref())?,
        pod,
        hosts: http.hosts.clone(),
        headers,
        body,
        tls,
        redirects: http.redirects,
        max_bytes: http.max_bytes,
        timeout: http.attempt_timeout,
    })
}

fn url(engine: &Engine, http: &Http, scope: &Scope, pod: Option<&Pod>) -> Eval<String> {
    let url = engine.eval_url(&http.url, scope)?;
    let (Some(to), Some(pod)) = (&http.to, pod) else { return Ok(url) };
    let port = value(engine, &to.port, scope, "the port")?;
    let port = port.as_u64().filter(|port| (1..=65535).contains(port));
    let port = port.ok_or_else(|| NoValue::Wrong("the port is not a number from 1 to 65535".to_owned()))?;
    let host = match &to.host {
        Some(host) => string(engine, host, scope, "host")?,
        None => pod.name.clone(),
    };
    let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    if host.is_empty() || !host.chars().all(is_name) {
        return Err(NoValue::Wrong("`host` is not the name of a host".to_owned()));
    }
    let path = url.strip_prefix(POD_URL).unwrap_or_default();
    Ok(format!("{}://{host}:{port}{path}", to.scheme))
}

fn body(engine: &Engine, body: &Body, scope: &Scope) -> Eval<(Vec<u8>, Option<&'static str>)> {
    Ok(match body {
        Body::Empty => (Vec::new(), None),
        Body::Json(tree) => {
            let value = tree.eval(engine, scope)?.unwrap_or(Value::Null);
            (value.to_string().into_bytes(), Some("application/json"))
        }
        Body::Form(fields) => {
            let mut pairs = Vec::with_capacity(fields.len());
            for (name, value) in fields {
                if let Some(value) = optional(engine, value, scope)? {
                    let value = as_string(&value)
                        .ok_or_else(|| NoValue::Wrong(format!("the form field {name} is not a string")))?;
                    pairs.push(format!("{}={}", form_encoded(name), form_encoded(&value)));
                }
            }
            (pairs.join("&").into_bytes(), Some("application/x-www-form-urlencoded"))
        }
        Body::Raw(text) => (string(engine, text, scope, "body")?.into_bytes(), None),
    })
}

/// A text in `application/x-www-form-urlencoded`.
fn form_encoded(text: &str) -> String {
    use std::fmt::Write as _;
    text.bytes().fold(String::with_capacity(text.len()), |mut encoded, byte| {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'*' | b'-' | b'.' | b'_' => {
                encoded.push(char::from(byte));
            }
            b' ' => encoded.push('+'),
            _ => {
                let _ = write!(encoded, "%{byte:02X}");
            }
        }
        encoded
    })
}

/// The request of an exec step or observation, to that pod.
pub(crate) fn exec(
    engine: &Engine,
    exec: &Exec,
    scope: &Scope,
    pod: Pod,
    timeout: Duration,
) -> Eval<ExecRequest> {
    let wrong = || NoValue::Wrong("command is not a list of strings".to_owned());
    let Some(Value::Array(command)) = exec.command.eval(engine, scope)? else { return Err(wrong()) };
    let command: Option<Vec<String>> = command.iter().map(as_string).collect();
    let command = command.filter(|command| !command.is_empty()).ok_or_else(wrong)?;
    let optional_string =
        |text: Option<&Text>, what: &str| text.map(|text| string(engine, text, scope, what)).transpose();
    Ok(ExecRequest {
        namespace: pod.namespace,
        pod: pod.name,
        uid: pod.uid,
        container: optional_string(exec.container.as_ref(), "container")?,
        command,
        stdin: optional_string(exec.stdin.as_ref(), "stdin")?,
        max_bytes: MAX_EXEC_BYTES,
        timeout,
    })
}

/// The request of a patch step.
pub(super) fn patch(engine: &Engine, patch: &Patch, scope: &Scope, namespace: &str) -> Eval<PatchRequest> {
    let merge = patch.merge.eval(engine, scope)?.unwrap_or(Value::Null);
    let namespace = match &patch.namespace {
        Some(text) => string(engine, text, scope, "namespace")?,
        None => namespace.to_owned(),
    };
    let name = string(engine, &patch.name, scope, "name")?;
    crate::naming::check(&patch.gvk, &name)
        .map_err(|error| NoValue::Wrong(format!("the name of the patched {}: {error}", patch.gvk.kind)))?;
    Ok(PatchRequest { gvk: patch.gvk.clone(), namespace, name, merge })
}

/// The instance that a step names.
pub(super) fn other(engine: &Engine, of: &plan::Of, scope: &Scope) -> Eval<super::run::Of> {
    let name = string(engine, &of.name, scope, "of.name")?;
    crate::naming::check_custom(&name)
        .map_err(|error| NoValue::Wrong(format!("the name of the {}: {error}", of.gvk.kind)))?;
    Ok(super::run::Of {
        api_version: of.gvk.api_version.to_string(),
        kind: of.gvk.kind.to_string(),
        resource: String::new(),
        name,
    })
}

/// A hash of what a request asks for. Credentials are no part of it: a rotated token does not change the request.
pub(super) fn hash(key: &[u8], request: &Request) -> String {
    let value = match request {
        Request::Http(http) => {
            let headers: Vec<_> =
                http.headers.iter().filter(|(name, _)| !name.eq_ignore_ascii_case("authorization")).collect();
            // Another pod of the child gets the same request.
            let url = match &http.pod {
                Some(_) => http.url.splitn(4, '/').nth(3).unwrap_or_default(),
                None => &http.url,
            };
            json!([http.method, url, headers, http.body])
        }
        Request::Exec(exec) => json!([exec.pod, exec.container, exec.command, exec.stdin]),
        Request::Patch(patch) => json!([patch.gvk.to_string(), patch.namespace, patch.name, patch.merge]),
    };
    keyed_digest(key, &value)
}
