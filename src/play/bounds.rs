//! What a case may take of the machine. Who tests a package may not have written it.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use tokio::sync::Notify;

use super::ended::Failure;
use crate::apiserver::Server;
use crate::diag::Diagnostic;

/// How long a case may take, in real time. It ends only what goes on for ever.
const WALL: Duration = Duration::from_secs(600);
/// How long all cases of a package may take, in real time.
const RUN: Duration = Duration::from_secs(3600);
/// How many objects the cluster of a case may have.
const OBJECTS: usize = 20_000;
/// How many bytes of JSON these may take.
const BYTES: usize = 256 << 20;

/// The failure of a case that is not played because those before it have taken all the time.
pub(super) fn too_late(passed: Duration) -> Option<Failure> {
    let message =
        || format!("the cases have taken more than {} minutes: play fewer with --case", RUN.as_secs() / 60);
    (passed > RUN).then(|| Box::new(Diagnostic::error("test::bounds", message())))
}

/// Waits until a case exceeds its bounds. Says which.
pub(super) async fn exceeded(server: Server) -> String {
    exceeds(server, WALL).await
}

async fn exceeds(server: Server, wall: Duration) -> String {
    let (mut changes, alarm) = (server.changes(), Alarm::after(wall));
    loop {
        changes.mark_unchanged();
        let size = server.read(operetta_embedded::Api::size);
        if size.objects > OBJECTS {
            return format!("the cluster of the case has more than {OBJECTS} objects");
        }
        if size.bytes > BYTES {
            return format!("the objects of the case take more than {} MiB", BYTES >> 20);
        }
        tokio::select! {
            biased;
            () = alarm.rings.notified() => {
                return format!("the case has taken more than {} minutes of real time", wall.as_secs() / 60);
            }
            // The server stays for as long as the case.
            _ = changes.changed() => {}
        }
    }
}

/// An alarm in real time, for a thread whose own time moves as soon as nothing is left to do.
struct Alarm {
    rings: Arc<Notify>,
    /// The thread ends when this is dropped.
    _end: Sender<()>,
}

impl Alarm {
    fn after(wall: Duration) -> Self {
        let (end, is_ended) = channel();
        let rings = Arc::new(Notify::new());
        let ring = Arc::clone(&rings);
        thread::spawn(move || {
            if is_ended.recv_timeout(wall) == Err(RecvTimeoutError::Timeout) {
                ring.notify_one();
            }
        });
        Self { rings, _end: end }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::clock;

    /// A time that passes without end in virtual time, and a time in which nothing happens.
    #[tokio::test(start_paused = true)]
    async fn a_case_that_goes_on_for_ever_is_ended() {
        let spins = async {
            loop {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let wall = Duration::from_millis(50);
        let told = tokio::select! {
            told = exceeds(Server::new(clock::now), wall) => told,
            () = spins => unreachable!(),
        };
        assert!(told.contains("of real time"), "{told}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_case_with_too_many_objects_is_ended() {
        let server = Server::new(clock::now);
        let told = tokio::spawn(exceeded(server.clone()));
        let cluster = crate::cluster::Cluster::over(server.client(), server.outside());
        let kind = crate::api::ApiKind::built_in("v1", "ConfigMap");
        for number in 0..=OBJECTS {
            if told.is_finished() {
                break;
            }
            let body = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": format!("a-{number}"), "namespace": "default"}});
            cluster.create(&kind, Some("default"), &body, "test").await.unwrap();
        }
        assert_eq!(told.await.unwrap(), "the cluster of the case has more than 20000 objects");
    }
}
