//! The accept loop of the HTTP servers.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};
use tracing::{debug, warn};

/// Accepts connections until it is dropped. At most `limit` are open: beyond that the oldest unfinished one is closed for a new
/// one, so that stuck clients do not block others.
pub async fn accept<F>(
    listener: TcpListener,
    limit: usize,
    server: &str,
    mut connection: impl FnMut(TcpStream) -> F,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let mut open = JoinSet::new();
    let mut oldest: VecDeque<AbortHandle> = VecDeque::new();
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                warn!(%error, "accepting a connection to {server} failed");
                tokio::time::sleep(Duration::from_secs(1)).await;
                continue;
            }
        };
        while open.try_join_next().is_some() {}
        oldest.retain(|connection| !connection.is_finished());
        if oldest.len() >= limit
            && let Some(first) = oldest.pop_front()
        {
            debug!("too many connections to {server}: closing the oldest");
            first.abort();
        }
        oldest.push_back(open.spawn(connection(stream)));
    }
}
