//! Kubernetes Events, on transitions only. They are a courtesy: one at a time in the background, so that a
//! rollout of thousands does not wait for them; what does not fit the queue is dropped and counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use serde_json::Value;
use tokio::sync::mpsc;
use tracing::{debug, warn};

/// How many Events may wait.
const QUEUE: usize = 4_096;
/// An Event that takes longer is given up.
const DEADLINE: Duration = Duration::from_secs(10);

/// Where Events are handed in.
#[derive(Clone)]
pub(super) struct Events {
    sender: mpsc::Sender<(ObjectReference, Event)>,
    dropped: Arc<AtomicU64>,
}

impl Events {
    /// Starts the publisher; it ends with the last handle.
    pub(super) fn start(client: kube::Client) -> Self {
        let (sender, mut receiver) = mpsc::channel::<(ObjectReference, Event)>(QUEUE);
        let reporter = Reporter { controller: "operetta".into(), instance: None };
        let recorder = Recorder::new(client, reporter);
        tokio::spawn(async move {
            while let Some((about, event)) = receiver.recv().await {
                match tokio::time::timeout(DEADLINE, recorder.publish(&event, &about)).await {
                    Ok(Ok(())) => {}
                    // A namespace on its way out takes no Events; that is no fault.
                    Ok(Err(kube::Error::Api(status))) if status.code == 403 || status.code == 404 => {
                        debug!(reason = %event.reason, code = status.code, "an Event was refused");
                    }
                    Ok(Err(error)) => warn!(reason = %event.reason, %error, "an Event could not be published"),
                    Err(_) => warn!(reason = %event.reason, "an Event could not be published in time"),
                }
            }
        });
        Self { sender, dropped: Arc::default() }
    }

    /// Hands in an Event about an instance.
    pub(super) fn publish(&self, instance: &Value, warning: bool, reason: &str, note: String) {
        let text = |v: &Value| v.as_str().map(str::to_owned);
        let meta = &instance["metadata"];
        let about = ObjectReference {
            api_version: text(&instance["apiVersion"]),
            kind: text(&instance["kind"]),
            namespace: text(&meta["namespace"]),
            name: text(&meta["name"]),
            uid: text(&meta["uid"]),
            ..ObjectReference::default()
        };
        let event = Event {
            type_: if warning { EventType::Warning } else { EventType::Normal },
            reason: reason.to_owned(),
            // The API allows 1,024 bytes.
            note: Some(note.chars().take(250).collect()),
            action: "Reconcile".into(),
            secondary: None,
        };
        if self.sender.try_send((about, event)).is_err() {
            let dropped = self.dropped.fetch_add(1, Ordering::Relaxed) + 1;
            if dropped.is_power_of_two() {
                warn!(dropped, "more Events than can be published");
            }
        }
    }
}
