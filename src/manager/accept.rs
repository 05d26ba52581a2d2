//! The accept loop of the HTTP servers.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};
use tracing::{debug, warn};

/// The rank of a connection: if there are too many, those of a lower rank are closed first. It is zero at
/// first, and the server raises it.
pub(super) type Rank = Arc<AtomicU8>;

/// Accepts connections until the future is dropped. At most `limit` are open: beyond that the oldest
/// unfinished one of the lowest rank is closed for a new one, so that stuck clients do not block others.
pub async fn accept<F>(
    listener: TcpListener,
    limit: usize,
    server: &str,
    mut connection: impl FnMut(TcpStream, Rank) -> F,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let mut open = JoinSet::new();
    let mut oldest: VecDeque<(AbortHandle, Rank)> = VecDeque::new();
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
        oldest.retain(|(connection, _)| !connection.is_finished());
        if oldest.len() >= limit
            && let Some(least) = least(oldest.iter().map(|(_, rank)| rank))
            && let Some((connection, _)) = oldest.remove(least)
        {
            debug!("too many connections to {server}: closing one");
            connection.abort();
        }
        let rank = Rank::default();
        oldest.push_back((open.spawn(connection(stream, Arc::clone(&rank))), rank));
    }
}

/// The position of the first connection with the lowest rank.
fn least<'a>(ranks: impl Iterator<Item = &'a Rank>) -> Option<usize> {
    ranks.enumerate().min_by_key(|(_, rank)| rank.load(Ordering::Relaxed)).map(|(position, _)| position)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_connection_of_the_lowest_rank_is_closed() {
        for (ranks, closed) in
            [(&[2, 1, 0, 1, 0][..], Some(2)), (&[2, 1, 1], Some(1)), (&[2, 2], Some(0)), (&[], None)]
        {
            let ranks: Vec<Rank> = ranks.iter().map(|rank| Arc::new(AtomicU8::new(*rank))).collect();
            assert_eq!(least(ranks.iter()), closed);
        }
    }
}
