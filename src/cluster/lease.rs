//! Leader election by a Lease: one of several managers writes, the others stand by.
//!
//! A Lease does not fence: its former holder may not know yet that it is lost. So the leader stops writing before
//! another can begin: its [`Fence`] closes `renew` after the last successful renewal was *sent*, by a clock that also
//! counts suspended time. Others wait for `duration`, which is longer, after the last change that they have seen.
//! Clocks of different machines are never compared.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tracing::{debug, info, warn};

use super::fence::uptime;
use super::{Cluster, Fence};
use crate::api::{ApiKind, CallError, Class};
use crate::backoff::jitter;

/// The field manager of the Lease.
const MANAGER: &str = "operetta";

/// The settings of a Lease.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The namespace of the Lease. It is created if it is missing.
    pub namespace: String,
    /// The name of the Lease.
    pub name: String,
    /// The identity of this process. It is unique.
    pub identity: String,
    /// How long others wait after the last renewal that they have seen.
    pub duration: Duration,
    /// How long after its last renewal the leader writes.
    pub renew: Duration,
    /// How long between two attempts to take or renew it.
    pub retry: Duration,
}

/// A Lease object.
#[derive(Debug, Clone)]
struct Record(Value);

impl Record {
    fn holder(&self) -> &str {
        self.0["spec"]["holderIdentity"].as_str().unwrap_or_default()
    }

    fn duration(&self) -> Duration {
        Duration::from_secs(self.0["spec"]["leaseDurationSeconds"].as_u64().unwrap_or_default())
    }

    fn version(&self) -> &str {
        self.0["metadata"]["resourceVersion"].as_str().unwrap_or_default()
    }
}

/// The last change of the Lease that a candidate has seen.
#[derive(Debug, Default)]
struct Seen {
    version: String,
    /// When it was seen, in [`uptime`].
    at: Duration,
}

impl Seen {
    /// Whether the Lease, as just read, is free: it has no holder, or was not renewed for its duration.
    fn is_free(&mut self, record: &Record, ours: Duration, now: Duration) -> bool {
        if record.version() != self.version {
            *self = Self { version: record.version().to_owned(), at: now };
        }
        record.holder().is_empty() || now.saturating_sub(self.at) >= record.duration().max(ours)
    }
}

/// A candidate for the Lease.
pub struct Election {
    cluster: Cluster,
    settings: Settings,
    fence: Fence,
    seen: Seen,
}

/// The result of an attempt to renew a Lease.
enum Renewed {
    Yes(Value),
    /// We still hold it, but it has changed: try again.
    Changed(Value),
    /// Another process holds it.
    Taken(String),
}

/// A leader, as long as it is one. The Lease is renewed in the background.
pub struct Leadership {
    fence: Fence,
    lost: watch::Receiver<Option<String>>,
    stop: watch::Sender<bool>,
    task: JoinHandle<Election>,
    record: watch::Receiver<Value>,
}

impl Election {
    /// A candidate. `cluster` is for requests about the Lease, `fence` for all other writes.
    pub fn new(cluster: Cluster, settings: Settings, fence: Fence) -> Self {
        Self { cluster, settings, fence, seen: Seen::default() }
    }

    /// Waits until this process leads. `standing_by` is called with the leader whenever it changes.
    pub async fn lead(mut self, mut standing_by: impl FnMut(&str)) -> Leadership {
        let mut said = String::new();
        loop {
            let asked = uptime();
            match self.attempt(asked).await {
                Ok(Ok(record)) => {
                    info!(lease = %self.lease(), identity = %self.settings.identity, "leading");
                    return self.hold(asked, record);
                }
                Ok(Err(holder)) => {
                    if said != holder {
                        info!(lease = %self.lease(), %holder, "another manager leads; standing by");
                        standing_by(&holder);
                        said = holder;
                    }
                }
                Err(error) => {
                    let error = error.to_string();
                    if said != error {
                        warn!(lease = %self.lease(), %error, "the Lease cannot be taken; trying again");
                        said = error;
                    }
                }
            }
            tokio::time::sleep(jitter(self.settings.retry, fastrand::f64())).await;
        }
    }

    fn lease(&self) -> String {
        format!("{}/{}", self.settings.namespace, self.settings.name)
    }

    /// Tries to take the Lease. Returns it, or its holder.
    async fn attempt(&mut self, now: Duration) -> Result<Result<Value, String>, CallError> {
        let Some(record) = self.within(self.read()).await? else {
            return Ok(match self.create().await {
                Ok(record) => Ok(record),
                Err(error) if error.class == Class::Conflict => Err("another process".to_owned()),
                Err(error) => return Err(error),
            });
        };
        let record = Record(record);
        // The Lease was read after `now`, so one that is unchanged was unchanged until then.
        if !self.seen.is_free(&record, self.settings.duration, now) {
            return Ok(Err(record.holder().to_owned()));
        }
        let former = record.holder().to_owned();
        let mut body = record.0;
        let transitions = body["spec"]["leaseTransitions"].as_u64().unwrap_or_default() + 1;
        body["spec"] = self.spec(&Value::Null, transitions);
        match self.within(self.replace(&body)).await {
            Ok(record) => Ok(Ok(record)),
            Err(error) if error.class == Class::Conflict => {
                Ok(Err(if former.is_empty() { "another process".to_owned() } else { former }))
            }
            Err(error) => Err(error),
        }
    }

    fn spec(&self, acquired: &Value, transitions: u64) -> Value {
        let now = Value::from(format!("{:.6}", crate::clock::now()));
        json!({
            "holderIdentity": self.settings.identity,
            "leaseDurationSeconds": self.settings.duration.as_secs().max(1),
            "acquireTime": if acquired.is_null() { now.clone() } else { acquired.clone() },
            "renewTime": now,
            "leaseTransitions": transitions,
        })
    }

    async fn read(&self) -> Result<Option<Value>, CallError> {
        self.cluster
            .get(
                &ApiKind::built_in("coordination.k8s.io/v1", "Lease"),
                Some(&self.settings.namespace),
                &self.settings.name,
            )
            .await
    }

    async fn replace(&self, body: &Value) -> Result<Value, CallError> {
        self.cluster.replace(&ApiKind::built_in("coordination.k8s.io/v1", "Lease"), body, MANAGER).await
    }

    /// Creates the Lease, and its namespace if it is missing.
    async fn create(&self) -> Result<Value, CallError> {
        let namespace = self.settings.namespace.as_str();
        let body = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"name": self.settings.name, "namespace": namespace},
            "spec": self.spec(&Value::Null, 0),
        });
        let kind = ApiKind::built_in("coordination.k8s.io/v1", "Lease");
        let create = || self.within(self.cluster.create(&kind, Some(namespace), &body, MANAGER));
        match create().await {
            Err(error) if error.class == Class::NotFound => {}
            result => return result,
        }
        let made = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
        match self
            .within(self.cluster.create(&ApiKind::built_in("v1", "Namespace"), None, &made, MANAGER))
            .await
        {
            Ok(_) => info!(%namespace, "made the namespace of the Lease"),
            Err(error) if error.class == Class::Conflict => {}
            Err(mut error) => {
                error.message = format!(
                    "there is no namespace {namespace} for it, and it cannot be made: {}; make it, name another \
                     with --namespace, or run a single manager with --leader-elect=false",
                    error.message
                );
                return Err(error);
            }
        }
        create().await
    }

    /// Calls about the Lease have a shorter deadline, so that there is time for another attempt.
    async fn within<T>(&self, call: impl Future<Output = Result<T, CallError>>) -> Result<T, CallError> {
        let deadline = self.settings.renew / 2;
        tokio::time::timeout(deadline, call).await.unwrap_or_else(|_| Err(CallError::timeout(deadline)))
    }

    fn hold(self, taken: Duration, record: Value) -> Leadership {
        self.fence.extend(taken + self.settings.renew);
        let (stop, stopped) = watch::channel(false);
        let (lose, lost) = watch::channel(None);
        let (keep, kept) = watch::channel(record);
        let fence = self.fence.clone();
        let task = tokio::spawn(self.renew(taken, stopped, lose, keep));
        Leadership { fence, lost, stop, task, record: kept }
    }

    /// Renews the Lease as it was last seen.
    async fn renew_once(&self, mut held: Value) -> Result<Renewed, CallError> {
        let transitions = held["spec"]["leaseTransitions"].as_u64().unwrap_or_default();
        held["spec"] = self.spec(&held["spec"]["acquireTime"], transitions);
        match self.within(self.replace(&held)).await {
            // Something has written the Lease: a label, or our own write whose reply was lost.
            Err(error) if matches!(error.class, Class::Conflict | Class::NotFound) => {}
            result => return result.map(Renewed::Yes),
        }
        let Some(live) = self.within(self.read()).await? else {
            // A deletion does not take it from us; the first process that creates it holds it.
            return self.create().await.map(Renewed::Yes);
        };
        Ok(match Record(live.clone()).holder() {
            holder if holder == self.settings.identity => Renewed::Changed(live),
            "" => Renewed::Taken("nobody".to_owned()),
            holder => Renewed::Taken(holder.to_owned()),
        })
    }

    /// Renews until told to stop, or until the Lease is lost.
    async fn renew(
        self,
        taken: Duration,
        mut stopped: watch::Receiver<bool>,
        lose: watch::Sender<Option<String>>,
        record: watch::Sender<Value>,
    ) -> Self {
        let mut until = taken + self.settings.renew;
        let mut wait = self.settings.retry;
        loop {
            tokio::select! {
                _ = stopped.wait_for(|stop| *stop) => return self,
                () = tokio::time::sleep(wait) => {}
            }
            wait = self.settings.retry;
            let asked = uptime();
            if asked >= until {
                self.fence.close();
                let renew = self.settings.renew.as_secs_f32();
                lose.send_replace(Some(format!("it could not be renewed for {renew} s")));
                return self;
            }
            // The leader stops waiting for a reply when its time is over.
            let held = record.borrow().clone();
            let result = tokio::time::timeout(until.saturating_sub(asked), self.renew_once(held)).await;
            let result = match result {
                Ok(Ok(Renewed::Yes(live))) => Ok(live),
                Ok(Ok(Renewed::Changed(live))) => {
                    record.send_replace(live);
                    wait = Duration::ZERO;
                    continue;
                }
                Ok(Ok(Renewed::Taken(holder))) => {
                    self.fence.close();
                    lose.send_replace(Some(format!("{holder} holds it now")));
                    return self;
                }
                Ok(Err(error)) => Err(error),
                Err(_) => Err(CallError::timeout(self.settings.renew)),
            };
            match result {
                Ok(live) => {
                    until = asked + self.settings.renew;
                    self.fence.extend(until);
                    record.send_replace(live);
                    debug!(lease = %self.lease(), "renewed");
                }
                Err(error) => {
                    warn!(lease = %self.lease(), %error, "the Lease could not be renewed; trying again");
                    wait = self.settings.retry / 2;
                }
            }
            // The loop wakes at the end of the leader's time, however long calls take.
            wait = wait.min(until.saturating_sub(uptime()));
        }
    }
}

impl Leadership {
    /// Returns, with the reason, when this process no longer leads.
    pub async fn lost(&mut self) -> String {
        if let Ok(reason) = self.lost.wait_for(Option::is_some).await {
            return reason.clone().unwrap_or_default();
        }
        // The task ends without a reason only if it panics.
        self.fence.close();
        "its renewal ended".to_owned()
    }

    /// Stops writing and releases the Lease, so that the next leader begins at once.
    pub async fn release(self) {
        self.fence.close();
        self.stop.send_replace(true);
        let Ok(election) = self.task.await else { return };
        if self.lost.borrow().is_some() {
            return;
        }
        let mut body = self.record.borrow().clone();
        let transitions = body["spec"]["leaseTransitions"].as_u64().unwrap_or_default();
        body["spec"] = election.spec(&body["spec"]["acquireTime"], transitions);
        body["spec"]["holderIdentity"] = "".into();
        body["spec"]["leaseDurationSeconds"] = 1.into();
        match election.within(election.replace(&body)).await {
            Ok(_) => info!(lease = %election.lease(), "released"),
            Err(error) => {
                warn!(lease = %election.lease(), %error, "the Lease could not be released; others wait until it has run out");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(holder: &str, version: &str) -> Record {
        Record(json!({
            "metadata": {"resourceVersion": version},
            "spec": {"holderIdentity": holder, "leaseDurationSeconds": 15},
        }))
    }

    #[test]
    fn a_lease_that_is_unchanged_for_its_duration_is_free() {
        let secs = Duration::from_secs;
        let ours = secs(15);
        let mut seen = Seen::default();
        assert!(!seen.is_free(&record("a", "1"), ours, secs(1_000)), "just seen for the first time");
        assert!(!seen.is_free(&record("a", "1"), ours, secs(1_014)));
        assert!(!seen.is_free(&record("a", "2"), ours, secs(1_015)), "renewed");
        // This process was stopped; the Lease shows that others continued.
        assert!(!seen.is_free(&record("a", "9"), ours, secs(9_000)));
        assert!(seen.is_free(&record("a", "9"), ours, secs(9_015)));
        assert!(!seen.is_free(&record("a", "9"), secs(60), secs(9_015)), "ours is longer");
        assert!(seen.is_free(&record("", "10"), ours, secs(9_016)), "given back");
    }
}
