//! Kubernetes Events, on transitions only. They are published one at a time in the background, and slowly while
//! instances are reconciled, so that a rollout of thousands does not wait for them. Events that do not fit into the queue
//! are dropped and counted.
//!
//! The recorder of kube-rs merges Events with the same reason and keeps the first text. Ours merges only Events with the
//! same text.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::mpsc;
use tracing::{debug, warn};

use super::health::Health;
use crate::api::{ApiKind, CallError, Class};
use crate::clock::{Clock, Instant};
use crate::cluster::Cluster;
use crate::printable;

/// How many Events may wait.
const QUEUE: usize = 4_096;
/// An Event with the same text as one of this age or less is counted on that one.
const SERIES: Duration = Duration::from_secs(600);
/// How many recent Events are remembered for series.
const RECENT: usize = 1_024;
/// The pause after an Event while instances are reconciled.
const PACE: Duration = Duration::from_millis(200);
/// The longest text, in bytes; the API allows 1,024.
pub(super) const NOTE: usize = 1_000;

/// A handle to publish Events.
#[derive(Clone)]
pub(super) struct Events {
    sender: mpsc::Sender<Entry>,
    health: Arc<Health>,
}

/// An Event that is not published yet.
struct Entry {
    regarding: Value,
    warning: bool,
    reason: String,
    note: String,
}

impl Entry {
    /// Whether it says that a run of an instance in a namespace has failed.
    fn is_of_run(&self) -> bool {
        self.warning && self.reason == "RunFailed" && self.regarding["namespace"].is_string()
    }
}

impl Events {
    /// Starts the publisher; it ends with the last handle. `active` is how many reconciles run now.
    pub(super) fn start(
        cluster: Cluster,
        active: Arc<AtomicUsize>,
        health: Arc<Health>,
        clock: Clock,
    ) -> Self {
        let (sender, mut receiver) = mpsc::channel::<Entry>(QUEUE);
        let mut publisher = Publisher { cluster, clock, recent: HashMap::new() };
        tokio::spawn(async move {
            while let Some(entry) = receiver.recv().await {
                let mut published = publisher.publish(&entry).await;
                if let Err(error) = &published
                    && entry.is_of_run()
                    && (error.is_namespace_terminating() || error.class == Class::NotFound)
                {
                    // A namespace that is being deleted accepts no Events.
                    published = publisher.publish(&publisher.of_namespace(&entry).await).await;
                }
                match published {
                    Ok(()) => {}
                    // This process no longer leads. The next leader publishes what happens then.
                    Err(error) if error.is_fenced() => return,
                    Err(error) if error.is_namespace_terminating() || error.class == Class::NotFound => {
                        debug!(reason = %entry.reason, %error, "an Event was refused");
                    }
                    Err(error) => warn!(reason = %entry.reason, %error, "an Event could not be published"),
                }
                if active.load(Ordering::Relaxed) > 0 {
                    tokio::time::sleep(PACE).await;
                }
            }
        });
        Self { sender, health }
    }

    /// Publishes an Event about an object.
    pub(super) fn publish(&self, instance: &Value, warning: bool, reason: &str, note: &str) {
        let meta = &instance["metadata"];
        let regarding = json!({
            "apiVersion": instance["apiVersion"], "kind": instance["kind"],
            "namespace": meta["namespace"], "name": meta["name"], "uid": meta["uid"],
        });
        let entry = Entry { regarding, warning, reason: reason.to_owned(), note: shorten(note) };
        self.health.metrics.events.inc();
        if self.sender.try_send(entry).is_err() {
            let dropped = self.health.metrics.events_dropped.inc() + 1;
            if dropped.is_power_of_two() {
                warn!(dropped, "more Events than can be published");
            }
        }
    }
}

struct Publisher {
    cluster: Cluster,
    clock: Clock,
    /// The recent Events by object, reason and text: the name, how often it happened, and when last.
    recent: HashMap<(String, String, String), (String, u64, Instant)>,
}

impl Publisher {
    /// An Event about an object as one about its namespace: it is in `default`, and stays when the namespace is gone.
    async fn of_namespace(&self, entry: &Entry) -> Entry {
        let regarding = &entry.regarding;
        let name = regarding["namespace"].as_str().unwrap_or_default();
        let kind = ApiKind::built_in("v1", "Namespace");
        let selector = format!("kubernetes.io/metadata.name={name}");
        let found = self.cluster.list(&kind, None, &selector).await.unwrap_or_default();
        let uid = found.first().map_or(Value::Null, |namespace| namespace["metadata"]["uid"].clone());
        let what = format!(
            "{} {}",
            regarding["kind"].as_str().unwrap_or_default(),
            regarding["name"].as_str().unwrap_or_default()
        );
        Entry {
            regarding: json!({"apiVersion": "v1", "kind": "Namespace", "name": name, "uid": uid}),
            warning: entry.warning,
            reason: entry.reason.clone(),
            note: shorten(&format!("{what}: {}", entry.note)),
        }
    }

    async fn publish(&mut self, entry: &Entry) -> Result<(), CallError> {
        let kind = ApiKind::built_in("events.k8s.io/v1", "Event");
        let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
        // By convention Events about cluster-scoped objects are in `default`.
        let namespace = entry.regarding["namespace"].as_str().unwrap_or("default").to_owned();
        let now = self.clock.now();
        let time = format!("{now:.6}");
        let key = (text(&entry.regarding["uid"]), entry.reason.clone(), entry.note.clone());
        if let Some((name, count, at)) = self.recent.get_mut(&key).filter(|(_, _, at)| at.elapsed() < SERIES)
        {
            let patch = json!({"series": {"count": *count + 1, "lastObservedTime": time}});
            match self.cluster.merge_patch(&kind, Some(&namespace), name, None, &patch, "operetta").await {
                Err(error) if error.class == Class::NotFound => {}
                result => {
                    *count += 1;
                    *at = Instant::now();
                    return result.map(drop);
                }
            }
        }
        let name =
            format!("{}.{:x}{:04x}", text(&entry.regarding["name"]), now.as_nanosecond(), fastrand::u16(..));
        let body = json!({
            "apiVersion": "events.k8s.io/v1", "kind": "Event",
            "metadata": {"name": name, "namespace": namespace},
            "eventTime": time,
            "reportingController": "operetta", "reportingInstance": "operetta",
            "action": "Reconcile", "type": if entry.warning { "Warning" } else { "Normal" },
            "reason": entry.reason, "note": entry.note, "regarding": entry.regarding,
        });
        self.cluster.create(&kind, Some(&namespace), &body, "operetta").await?;
        if self.recent.len() >= RECENT {
            self.recent.retain(|_, (_, _, at)| at.elapsed() < SERIES);
            if self.recent.len() >= RECENT {
                self.recent.clear();
            }
        }
        self.recent.insert(key, (name, 1, Instant::now()));
        Ok(())
    }
}

/// At most [`NOTE`] bytes, cut between words.
fn shorten(note: &str) -> String {
    printable::clip_bytes(&printable::sentence(note), NOTE).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_cut_between_characters() {
        assert_eq!(shorten("short"), "short");
        let long = shorten(&"é".repeat(1_000));
        assert!(long.len() <= NOTE && long.ends_with('…'));
    }
}
