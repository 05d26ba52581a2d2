//! What a case may take of the machine. Who tests a package may not have written it.

use std::io::Write as _;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, LazyLock};
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::ended::Failure;
use crate::apiserver::Server;
use crate::diag::{Diagnostic, Location};
use crate::memory;
use crate::printable;

/// How long a case may take, in real time. It ends only what goes on for ever.
const WALL: Duration = Duration::from_secs(600);
/// How long a case may then be busy without coming back, until the command ends.
const GRACE: Duration = Duration::from_secs(60);
/// How many bytes of memory the command may take for itself, and for each processor of the machine.
const MEMORY: [usize; 2] = [2 << 30, 1 << 30];
/// How often the memory is looked at.
const LOOK: Duration = Duration::from_millis(100);
/// How long all cases of a package may take, in real time.
const RUN: Duration = Duration::from_secs(3600);
/// How many objects the cluster of a case may have.
const OBJECTS: usize = 12_000;
/// How many bytes of JSON these may take.
const BYTES: usize = 256 << 20;

/// The failure of a case that is not played because those before it have taken all the time.
pub(super) fn too_late(passed: Duration) -> Option<Failure> {
    let message =
        || format!("the cases have taken more than {} minutes: play fewer with --case", RUN.as_secs() / 60);
    (passed > RUN).then(|| Box::new(Diagnostic::error("test::bounds", message())))
}

/// Ends the command when files of cases take too much time or memory until this is dropped.
pub(super) fn loading(folder: &Path) -> Alarm {
    Alarm::after(WALL, folder.display().to_string())
}

/// Waits until a case exceeds its bounds. Says which.
/// `place` is where its case is.
pub(super) async fn exceeded(server: Server, place: &Location) -> String {
    exceeds(server, WALL, place.to_string()).await
}

async fn exceeds(server: Server, wall: Duration, place: String) -> String {
    let (mut changes, alarm) = (server.changes(), Alarm::after(wall, place));
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

/// An alarm in real time, for a thread whose own time moves as soon as nothing is left to do. A play that is busy cannot be ended, so if it
/// does not come back, or fills the memory, the command ends.
pub(super) struct Alarm {
    rings: Arc<Notify>,
    /// The thread ends when this is dropped.
    _end: Sender<()>,
}

impl Alarm {
    fn after(wall: Duration, place: String) -> Self {
        let (end, is_ended) = channel();
        let rings = Arc::new(Notify::new());
        let ring = Arc::clone(&rings);
        thread::spawn(move || {
            let memory = *MEMORY_BOUND;
            let mut last = watch(&is_ended, wall, memory);
            if last == Last::Busy {
                ring.notify_one();
                last = watch(&is_ended, GRACE, memory);
            }
            let why = match last {
                Last::Ended => return,
                Last::Busy => format!("it has been busy for more than {} minutes", wall.as_secs() / 60),
                Last::Full => format!("the cases take more than {} MiB of memory", memory >> 20),
            };
            let place = printable::line(&place);
            let told = format!("error: {place}: {why}; the results of other cases are lost\n");
            drop(std::io::stderr().write_all(printable::inert(&told).as_bytes()));
            std::process::exit(1)
        });
        Self { rings, _end: end }
    }
}

/// How many bytes of memory the command may take.
static MEMORY_BOUND: LazyLock<usize> = LazyLock::new(|| {
    let wanted = MEMORY[0] + MEMORY[1] * thread::available_parallelism().map_or(1, usize::from);
    memory::limit().map_or(wanted, |limit| wanted.min(limit / 4 * 3))
});

/// How a play ends a time in which it is watched.
#[derive(Debug, PartialEq)]
enum Last {
    Ended,
    Busy,
    Full,
}

/// Watches a play for some time.
fn watch(is_ended: &Receiver<()>, time: Duration, memory: usize) -> Last {
    let began = Instant::now();
    while let Some(left) = time.checked_sub(began.elapsed()) {
        if is_ended.recv_timeout(left.min(LOOK)) != Err(RecvTimeoutError::Timeout) {
            return Last::Ended;
        }
        if memory::resident().is_some_and(|bytes| bytes > memory) {
            return Last::Full;
        }
    }
    Last::Busy
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
            told = exceeds(Server::new(clock::now), wall, String::new()) => told,
            () = spins => unreachable!(),
        };
        assert!(told.contains("of real time"), "{told}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_case_with_too_many_objects_is_ended() {
        let server = Server::new(clock::now);
        let told = tokio::spawn(exceeds(server.clone(), WALL, String::new()));
        let cluster = crate::cluster::Cluster::over(server.client(), server.outside());
        let kind = crate::api::ApiKind::built_in("v1", "ConfigMap");
        for number in 0..=OBJECTS {
            if told.is_finished() {
                break;
            }
            let body = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": format!("a-{number}"), "namespace": "default"}});
            cluster.create(&kind, Some("default"), &body, "test").await.unwrap();
        }
        assert_eq!(told.await.unwrap(), "the cluster of the case has more than 12000 objects");
    }

    #[test]
    fn a_play_that_is_busy_or_fills_the_memory_is_noticed() {
        let time = Duration::from_millis(300);
        let (end, is_ended) = channel();
        assert_eq!(watch(&is_ended, time, usize::MAX), Last::Busy);
        if memory::resident().is_some() {
            assert_eq!(watch(&is_ended, WALL, 1), Last::Full);
        }
        drop::<Sender<()>>(end);
        assert_eq!(watch(&is_ended, WALL, 1), Last::Ended);
    }
}
