//! The dry run before the first write: of each child in whose shape nothing has been written yet.
//!
//! It finds missing rights, refusals of policies and fields that may not be changed while nothing has been
//! touched. See `docs/design/0004-what-a-dry-run-covers.md`.

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use serde_json::Value;
use tracing::{debug, warn};

use super::super::Shared;
use super::super::index::InstanceKey;
use super::super::registry::Registered;
use super::super::shapes::Claim;
use super::win_back::Hand;
use super::{immutable, secrets};
use crate::children::{Check, Expect, Memory, names};
use crate::cluster::{ApiKind, CallError, Class, Cluster, Trial};

/// What the dry runs came to.
pub(super) enum Checked {
    /// All that is to be written now may be, but for these items.
    Passed {
        /// Refused for the lack of what is made first: they are looked at anew afterwards.
        later: Vec<(String, Vec<String>)>,
    },
    /// One is refused: nothing is written. It is remembered.
    Refused,
    /// Another instance tries the same shape now, and this one is queued when it has.
    Elsewhere,
}

/// What one dry run came to.
enum Answer {
    Passed,
    /// It says nothing about the shape.
    Unknown,
    Refused(CallError),
}

/// Tells those who wait however the try ends, also when it is cut off.
struct Flight<'a> {
    shared: &'a Shared,
    shape: u64,
    passed: Option<bool>,
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        for key in self.shared.shapes.land(self.shape, self.passed) {
            self.shared.queue.add(key);
        }
    }
}

impl Shared {
    /// Tries what has not been tried in this shape.
    ///
    /// # Errors
    /// The server gives no answer now: that says nothing about any child.
    pub(super) async fn check(
        &self,
        key: &InstanceKey,
        registered: &Registered,
        checks: &[Check],
        memory: &mut Memory,
    ) -> Result<Checked, CallError> {
        let (mut mine, mut elsewhere) = (Vec::new(), false);
        for check in checks {
            match self.shapes.claim(check.shape, key) {
                Claim::Try => mine.push(check),
                Claim::Wait => elsewhere = true,
                Claim::Passed => {}
            }
        }
        let mut running: FuturesUnordered<_> = mine
            .into_iter()
            .map(|check| async move {
                let mut flight = Flight { shared: self, shape: check.shape, passed: None };
                let answer = self.try_out(check, registered).await;
                flight.passed = match &answer {
                    Ok(Answer::Passed) => Some(true),
                    Ok(Answer::Refused(_)) if check.leans_on.is_empty() => Some(false),
                    _ => None,
                };
                (check, answer)
            })
            .collect();
        let (mut later, mut refused, mut failed) = (Vec::new(), false, None);
        while let Some((check, answer)) = running.next().await {
            match answer {
                Ok(Answer::Passed | Answer::Unknown) => {}
                Ok(Answer::Refused(error))
                    if !check.leans_on.is_empty() && matches!(error.code, 403 | 404) =>
                {
                    debug!(object = %check.intent.object, %error, "may be for the lack of what is made first");
                    later.push((check.item.clone(), check.leans_on.clone()));
                }
                Ok(Answer::Refused(error)) => {
                    refused = true;
                    warn!(object = %check.intent.object, child = %check.item, %error, "a dry run was refused");
                    self.remember_blocked(check, error, memory);
                }
                Err(error) => failed = Some(error),
            }
        }
        match failed {
            Some(error) => Err(error),
            None if refused => Ok(Checked::Refused),
            None if elsewhere => Ok(Checked::Elsewhere),
            None => Ok(Checked::Passed { later }),
        }
    }

    async fn try_out(&self, check: &Check, registered: &Registered) -> Result<Answer, CallError> {
        let object = &check.intent.object;
        let Some(kind) = self.kinds.known(&object.api_version, &object.kind) else {
            return Ok(Answer::Unknown);
        };
        let manager = names::field_manager(registered.operator());
        let mut body = (*check.intent.body).clone();
        match &check.expect {
            Expect::Absent => body["metadata"]["resourceVersion"] = "1".into(),
            Expect::Present(uid) => body["metadata"]["uid"] = Value::from(&**uid),
        }
        let cluster = self.for_children(registered);
        let is_trusted = |live: &Value| self.is_trusted(&check.intent, live, &manager);
        match secrets::complete(&cluster, &kind, &check.intent, &check.expect, &is_trusted, &mut body).await {
            Ok(()) => {}
            // It says nothing about the shape; the apply says it.
            Err(error) if matches!(error.reason.as_str(), secrets::LOST | secrets::FOREIGN) => {
                return Ok(Answer::Unknown);
            }
            Err(error) => return sort(error),
        }
        let reply = cluster.apply_as(&kind, &body, &manager, check.force, Trial::This).await;
        let Err(error) = reply else { return Ok(Answer::Passed) };
        if check.expect == Expect::Absent {
            return sort(error);
        }
        // Somebody has put something in its place, which the apply takes away.
        if check.force {
            let hand = Hand { cluster: &cluster, kind: &kind, intent: &check.intent, manager: &manager };
            if hand.is_in_the_way(&error).await? {
                return Ok(Answer::Unknown);
            }
        }
        let error = immutable::classify(&cluster, &kind, &check.intent, &manager, error).await;
        if check.recreate && error.is_immutable_change() {
            return match try_anew(&cluster, &kind, &check.intent.body, &manager).await {
                Ok(()) => Ok(Answer::Unknown),
                Err(error) => sort(error),
            };
        }
        sort(error)
    }
}

/// Whether the server would take the object if there were none: tried under a name that it makes up.
pub(super) async fn try_anew(
    cluster: &Cluster,
    kind: &ApiKind,
    body: &Value,
    manager: &str,
) -> Result<(), CallError> {
    let mut body = body.clone();
    let namespace = body["metadata"]["namespace"].as_str().map(str::to_owned);
    if let Some(meta) = body["metadata"].as_object_mut()
        && let Some(Value::String(name)) = meta.remove("name")
    {
        meta.insert("generateName".into(), format!("{name}-").into());
    }
    cluster.create_checked(kind, namespace.as_deref(), &body, manager, true).await.map(drop)
}

/// What a failure says about the child.
fn sort(error: CallError) -> Result<Answer, CallError> {
    // A webhook with side effects that it does not hold back: it will be asked for good.
    if error.code == 400 && error.message.contains("does not support dry run") {
        return Ok(Answer::Passed);
    }
    match error.class {
        // Not as expected, or another manager's: the apply reads it live and says whose it is.
        Class::Conflict => Ok(Answer::Unknown),
        Class::Retry if matches!(error.code, 0 | 401 | 429 | 503 | 504) => Err(error),
        Class::Retry | Class::NotFound | Class::Permanent => Ok(Answer::Refused(error)),
    }
}
