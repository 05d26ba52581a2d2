//! Failed calls as the client library reports them.

use crate::api::CallError;

/// What an error of the client library says.
pub fn call_error(error: &kube::Error) -> CallError {
    if let kube::Error::Api(status) = error {
        return CallError::from_status(status);
    }
    CallError::unreachable(&chain(error))
}

/// An error and its sources, `a: b: c`.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut out = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        let text = inner.to_string();
        if !out.contains(&text) {
            out.push_str(": ");
            out.push_str(&text);
        }
        source = inner.source();
    }
    out
}
