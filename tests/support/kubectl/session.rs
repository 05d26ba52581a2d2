//! Requests of one command, and the texts of errors.

use http::Request;
use http::request::Builder;
use serde_json::Value;

use super::arguments::Arguments;

/// The server's answer to a request.
pub(super) type Answer = Result<Value, kube::Error>;

/// Where and as whom a command sends its requests.
pub(super) struct Session<'a> {
    client: &'a kube::Client,
    /// The namespace that the command or its caller names.
    pub(super) namespace: Option<&'a str>,
    user: Option<&'a str>,
    groups: Vec<&'a str>,
}

impl<'a> Session<'a> {
    pub(super) fn new(client: &'a kube::Client, namespace: Option<&'a str>, args: &Arguments<'a>) -> Self {
        Self {
            client,
            namespace: args.flag("namespace").or(namespace),
            user: args.flag("as"),
            groups: args.all("as-group"),
        }
    }

    /// The namespace of objects that name none.
    pub(super) fn home(&self) -> &'a str {
        self.namespace.unwrap_or("default")
    }

    pub(super) async fn get(&self, path: &str) -> Answer {
        self.answer(Request::get(path), String::new()).await
    }

    /// Reads a path in a form of its own.
    pub(super) async fn get_as(&self, path: &str, accept: &str) -> Answer {
        self.answer(Request::get(path).header("accept", accept), String::new()).await
    }

    /// Sends a body whose content type is `application/KIND`.
    pub(super) async fn send(&self, request: Builder, kind: &str, body: &Value) -> Answer {
        self.answer(request.header("content-type", format!("application/{kind}")), body.to_string()).await
    }

    async fn answer(&self, mut request: Builder, body: String) -> Answer {
        if let Some(user) = self.user {
            request = request.header("impersonate-user", user);
        }
        for group in &self.groups {
            request = request.header("impersonate-group", *group);
        }
        let request = request.body(body.into_bytes()).map_err(kube::Error::HttpError)?;
        self.client.request(request).await
    }
}

/// Whether the server says that what was requested does not exist.
pub(super) fn is_missing(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404)
}

/// An error as kubectl prints it. `when` precedes the server's message.
pub(super) fn refusal(when: &str, error: &kube::Error) -> String {
    let kube::Error::Api(status) = error else { return format!("error: {when}{error}") };
    let details = status.details.as_ref().filter(|details| !details.kind.is_empty());
    if let Some(details) = details.filter(|_| status.is_invalid()) {
        let what = format!("The {} \"{}\" is invalid:", details.kind, details.name);
        let mut causes: Vec<String> =
            details.causes.iter().map(|cause| format!("{}: {}", cause.field, cause.message)).collect();
        causes.dedup();
        return match causes.as_slice() {
            [] => format!("{what} {}", status.message),
            [cause] => format!("{what} {cause}"),
            causes => format!("{what} \n* {}", causes.join("\n* ")),
        };
    }
    match &*status.reason {
        "" => format!("Error from server: {when}{}", status.message),
        reason => format!("Error from server ({reason}): {when}{}", status.message),
    }
}

/// A text as a value in a query.
pub(super) fn encoded(text: &str) -> String {
    text.bytes().fold(String::new(), |encoded, byte| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' => {
            encoded + &char::from(byte).to_string()
        }
        byte => format!("{encoded}%{byte:02X}"),
    })
}

#[test]
fn query_values_are_encoded() {
    assert_eq!(encoded("a.b/c=d in (é)"), "a.b%2Fc%3Dd%20in%20%28%C3%A9%29");
}

#[test]
fn refusals_read_like_those_of_kubectl() {
    let refused = |status: Value| {
        let status: kube::core::Status = serde_json::from_value(status).expect("a Status");
        refusal("when: ", &kube::Error::Api(status.boxed()))
    };
    let missing =
        serde_json::json!({"reason": "NotFound", "code": 404, "message": "configmaps \"x\" not found"});
    assert_eq!(refused(missing), "Error from server (NotFound): when: configmaps \"x\" not found");
    let invalid = serde_json::json!({"reason": "Invalid", "code": 422, "message": "...", "details":
        {"kind": "Light", "name": "l", "causes": [{"field": "spec.a", "message": "no"}]}});
    assert_eq!(refused(invalid), "The Light \"l\" is invalid: spec.a: no");
}
