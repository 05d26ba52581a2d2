//! SIGINT and SIGTERM.

use tokio::signal::unix::{Signal, SignalKind, signal};

/// A stream of SIGINT and SIGTERM. While it exists, neither ends the process. A command makes it before it starts or prints
/// anything, and keeps it: a signal that nobody waits for is lost.
pub(super) struct Signals {
    pub(super) interrupt: Signal,
    pub(super) terminate: Signal,
}

impl Signals {
    pub(super) fn new() -> Result<Self, String> {
        let of = |kind| signal(kind).map_err(|error| format!("signals cannot be received: {error}"));
        Ok(Self { interrupt: of(SignalKind::interrupt())?, terminate: of(SignalKind::terminate())? })
    }

    /// Returns with the next signal.
    pub(super) async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
