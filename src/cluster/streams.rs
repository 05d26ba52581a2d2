//! Whether the API server supports streaming lists. That is known after it has refused one.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::api::CallError;

/// How long until a server that refused is asked again. It may have been upgraded.
const AGAIN: Duration = Duration::from_secs(600);

/// The last refusal. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Streams(Arc<Mutex<Option<Instant>>>);

impl Streams {
    /// Whether to request a streaming list.
    pub fn may_come(&self) -> bool {
        let refused = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        refused.is_none_or(|at| at.elapsed() >= AGAIN)
    }

    /// Records a refusal; `true` if it is the first for a while.
    pub fn note_refusal(&self) -> bool {
        let news = self.may_come();
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        news
    }
}

/// Whether the server refused a list because it does not support streaming lists or has them disabled. Other refusals
/// are about the account or the selector and concern any list.
pub fn refuses_streams(error: &CallError) -> bool {
    matches!(error.code, 400 | 422)
        && ["sendInitialEvents", "resourceVersionMatch"].iter().any(|word| error.whole().contains(word))
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn refused_streams_are_requested_again_after_an_interval() {
        let streams = Streams::default();
        assert!(streams.may_come());
        assert!(streams.clone().note_refusal() && !streams.note_refusal());
        assert!(!streams.may_come());
        tokio::time::advance(AGAIN).await;
        assert!(streams.may_come() && streams.note_refusal());
    }

    #[test]
    fn refusals_of_streaming_lists_are_recognized() {
        let said = |code: u16, reason: &str, message: &str| {
            refuses_streams(&CallError::from_status(&Status::failure(message, reason).with_code(code)))
        };
        // Words of 1.36 with WatchList=false, and of servers before 1.27.
        let switched_off = "ListOptions.meta.k8s.io \"\" is invalid: sendInitialEvents: Forbidden: sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled";
        assert!(said(422, "Invalid", switched_off));
        let unknown = "ListOptions.meta.k8s.io \"\" is invalid: resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden for watch";
        assert!(said(422, "Invalid", unknown));
        let rights = "secrets is forbidden: User \"sendInitialEvents\" cannot watch resource \"secrets\"";
        assert!(!said(403, "Forbidden", rights));
        assert!(!said(400, "BadRequest", "unable to parse requirement: <nil>"));
        assert!(!said(503, "ServiceUnavailable", "sendInitialEvents"));
    }
}
