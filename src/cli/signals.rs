//! SIGINT and SIGTERM.

/// A stream of SIGINT and SIGTERM. While it exists, neither ends the process.
pub(super) struct Signals {
    pub(super) interrupt: tokio::signal::unix::Signal,
    pub(super) terminate: tokio::signal::unix::Signal,
}

impl Signals {
    pub(super) fn new() -> std::io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    /// Returns with the next signal.
    pub(super) async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// Returns with the next SIGINT or SIGTERM.
pub(super) async fn shutdown() {
    match Signals::new() {
        Ok(mut signals) => signals.next().await,
        Err(_) => {
            let _ = tokio::signal::ctrl_c().await;
        }
    }
}
