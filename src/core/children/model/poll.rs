//! What is observed by requests, and what came of it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use crate::plan::request::{ExecReply, ExecRequest, HttpReply, HttpRequest};

/// A request that is made repeatedly. Equal ones are made once for all instances of a package in a namespace,
/// so that tenants cannot affect the requests of other namespaces.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Poll {
    /// The package.
    pub operator: Box<str>,
    /// The namespace of the instances; empty for cluster-scoped ones.
    pub namespace: Arc<str>,
    /// The request.
    pub request: PollRequest,
    /// The interval between two requests.
    pub every: Duration,
    /// The paths of the answer that are read.
    pub keep: Arc<[Vec<String>]>,
}

/// The request of an observation.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum PollRequest {
    /// A request to an HTTP server.
    Http(HttpRequest),
    /// A command in a container.
    Exec(ExecRequest),
}

/// What is known of an observation.
#[derive(Debug, Clone, PartialEq)]
pub enum PollResult {
    /// The request has not been made, or is to be made again.
    Pending,
    /// The request has been pending for longer than the status waits for it in silence.
    Delayed,
    /// The answer, as far as it is read.
    Known(Arc<Value>),
    /// The request failed. Says why, without anything of the answer.
    Failed(String),
}

/// The request in messages, without what may be secret.
impl fmt::Display for Poll {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.request {
            PollRequest::Http(http) => {
                let host = http.url.split('/').nth(2).unwrap_or_default();
                write!(f, "{} {}", http.method, host.rsplit('@').next().unwrap_or_default())
            }
            PollRequest::Exec(exec) => write!(f, "exec {}/{}", exec.namespace, exec.pod),
        }
    }
}

impl Poll {
    /// The value of an HTTP answer.
    pub fn http(&self, reply: HttpReply) -> Value {
        let headers = reply.headers.into_iter().map(|(name, value)| (name, Value::String(value)));
        let headers = Value::Object(headers.collect());
        self.kept(&serde_json::json!({"status": reply.status, "headers": headers, "body": reply.body}))
    }

    /// The value of a command's output.
    ///
    /// # Errors
    ///
    /// `json` is read, and the output is no JSON.
    pub fn exec(&self, reply: ExecReply) -> Result<Value, String> {
        let ExecReply { exit_code, stdout, stderr } = reply;
        let mut value = serde_json::json!({"exitCode": exit_code, "stderr": stderr});
        if self.keep.iter().any(|path| path.first().is_none_or(|first| first == "json")) {
            match serde_json::from_str(&stdout) {
                Ok(json) => value["json"] = json,
                Err(_) if exit_code != 0 => {}
                Err(_) => return Err("the output of the command is not JSON".into()),
            }
        }
        value["stdout"] = stdout.into();
        Ok(self.kept(&value))
    }

    fn kept(&self, value: &Value) -> Value {
        if self.keep.iter().any(Vec::is_empty) {
            return value.clone();
        }
        let mut kept = Value::Object(serde_json::Map::new());
        for path in &*self.keep {
            let mut found = value;
            let mut place = &mut kept;
            for (depth, key) in path.iter().enumerate() {
                // A value that is no map is kept as a whole, so that expressions see its type.
                let Some(next) = found.as_object().and_then(|map| map.get(key)) else { break };
                let is_last = depth + 1 == path.len() || !next.is_object();
                let Some(map) = place.as_object_mut() else { break };
                if is_last {
                    map.insert(key.clone(), next.clone());
                    break;
                }
                place = map.entry(key.as_str()).or_insert_with(|| Value::Object(serde_json::Map::new()));
                found = next;
            }
        }
        kept
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn poll(keep: &[&str]) -> Poll {
        let path = |path: &&str| path.split('.').filter(|key| !key.is_empty()).map(str::to_owned).collect();
        let request = ExecRequest {
            namespace: "n".into(),
            pod: "p".into(),
            uid: "u".into(),
            container: None,
            command: Vec::new(),
            stdin: None,
            max_bytes: 0,
            timeout: Duration::ZERO,
        };
        Poll {
            operator: "o".into(),
            namespace: "n".into(),
            request: PollRequest::Exec(request),
            every: Duration::ZERO,
            keep: keep.iter().map(path).collect(),
        }
    }

    #[test]
    fn answers_keep_only_the_fields_that_are_read() {
        let reply = |body: Value| HttpReply {
            status: 200,
            headers: vec![("date".into(), "now".into()), ("etag".into(), "1".into())],
            body,
            retry_after: None,
        };
        let kept = |keep: &[&str], body: Value| poll(keep).http(reply(body));
        assert_eq!(kept(&["status"], json!(1)), json!({"status": 200}));
        assert_eq!(kept(&["headers.etag"], json!(1)), json!({"headers": {"etag": "1"}}));
        assert_eq!(
            kept(&["body.a", "body.c"], json!({"a": {"b": 1}, "x": 2})),
            json!({"body": {"a": {"b": 1}}})
        );
        assert_eq!(kept(&["body.a.b", "body"], json!({"a": 1})), json!({"body": {"a": 1}}));
        assert_eq!(kept(&["body.a"], json!([1])), json!({"body": [1]}));
        assert_eq!(kept(&[""], json!(null))["headers"]["date"], "now");
    }

    #[test]
    fn output_must_be_json_only_where_json_is_read() {
        let reply =
            |exit_code: i32, stdout: &str| ExecReply { exit_code, stdout: stdout.into(), stderr: "e".into() };
        assert_eq!(poll(&["json.a"]).exec(reply(0, r#"{"a": 1, "b": 2}"#)), Ok(json!({"json": {"a": 1}})));
        assert!(poll(&["json.a"]).exec(reply(0, "secret text")).is_err_and(|why| !why.contains("secret")));
        assert_eq!(poll(&["stdout"]).exec(reply(0, "text")), Ok(json!({"stdout": "text"})));
        assert_eq!(poll(&["json", "exitCode"]).exec(reply(1, "")), Ok(json!({"exitCode": 1})));
    }
}
