//! The shell of the embedded API: it gives [`Api`] the time, lets its controllers act when something changed or is due,
//! and answers requests, in the process and on loopback.
//!
//! ```no_run
//! # async fn example() {
//! use operetta::apiserver::Server;
//! use operetta::cluster::Cluster;
//!
//! let server = Server::new(jiff::Timestamp::now);
//! let cluster = Cluster::over(server.client(), server.outside());
//! tokio::select! {
//!     () = server.run() => {}
//!     version = cluster.version() => assert_eq!(version.unwrap(), "1.36"),
//! }
//! # }
//! ```
//!
//! There are no threads, sockets or clocks of its own but in [`Listener`], so a [`Server`] works on a current-thread
//! runtime whose time is paused. All waits are tokio's timers, with lengths that are differences of the given time.

mod answer;
mod client;
mod exec;
mod listen;
mod outside;
pub(crate) mod reply;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use operetta_embedded::{Api, User};
use tokio::sync::{Notify, watch};

pub use listen::{ListenError, Listener};

/// The longest time between two looks at the controllers: a suspended machine's timers are late.
const LOOK: Duration = Duration::from_secs(60);

/// An embedded API that is served. Clones are the same server.
#[derive(Clone)]
pub struct Server(Arc<State>);

struct State {
    api: Mutex<Api>,
    /// Wakes watches: something may have changed.
    changes: watch::Sender<()>,
    /// Wakes the controllers: something was written.
    writes: Notify,
    now: Box<dyn Fn() -> Timestamp + Send + Sync>,
    observer: Mutex<Option<Observer>>,
}

type Observer = Box<dyn FnMut(&Api) + Send>;

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").finish_non_exhaustive()
    }
}

impl Server {
    /// An API without objects but the namespaces that every cluster has. `now` is the time for everything that it does.
    pub fn new(now: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        let api = Mutex::new(Api::new(now()));
        Self(Arc::new(State {
            api,
            changes: watch::Sender::new(()),
            writes: Notify::new(),
            now: Box::new(now),
            observer: Mutex::default(),
        }))
    }

    /// Uses the API directly, such as to set the programs in its pods. Watches and controllers look at what changed.
    pub fn with<T>(&self, act: impl FnOnce(&mut Api, Timestamp) -> T) -> T {
        let result = act(&mut self.lock(), self.now());
        self.changed();
        result
    }

    /// Reads the API, and wakes neither controllers nor watches.
    pub fn read<T>(&self, read: impl FnOnce(&Api) -> T) -> T {
        read(&self.lock())
    }

    /// Sets the observer, which is called after each request that writes and each turn of the controllers, before any other
    /// request is answered. The observer must not use this server.
    pub fn observe(&self, observer: impl FnMut(&Api) + Send + 'static) {
        *self.0.observer.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(observer));
    }

    /// Marks changes: each is seen, several at once may be seen as one.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.0.changes.subscribe()
    }

    /// Tells the observer.
    fn written(&self, api: &Api) {
        let mut observer = self.0.observer.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(observer) = observer.as_mut() {
            observer(api);
        }
    }

    /// Lets the controllers act when something was written or is due, until the future is dropped. Without it, requests are
    /// answered and nothing else happens.
    pub async fn run(&self) {
        loop {
            let (has_acted, due) = {
                let (mut api, now) = (self.lock(), self.now());
                let has_acted = api.tick(now);
                if has_acted {
                    self.written(&api);
                }
                (has_acted, api.next_due())
            };
            if has_acted {
                self.0.changes.send_replace(());
                // Requests come in between.
                tokio::task::yield_now().await;
                continue;
            }
            tokio::select! {
                () = self.0.writes.notified() => {}
                () = self.sleep_until(due) => {}
            }
        }
    }

    /// Sleeps until a time, but not for long.
    async fn sleep_until(&self, due: Option<Timestamp>) {
        let wait = match due {
            // Timers count in milliseconds; less would be no wait.
            Some(due) => self.until(due).clamp(Duration::from_millis(1), LOOK),
            None => LOOK,
        };
        tokio::time::sleep(wait).await;
    }

    fn until(&self, due: Timestamp) -> Duration {
        Duration::try_from(due.duration_since(self.now())).unwrap_or_default()
    }

    fn now(&self) -> Timestamp {
        (self.0.now)()
    }

    fn lock(&self) -> MutexGuard<'_, Api> {
        self.0.api.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes controllers and watches.
    fn changed(&self) {
        self.0.changes.send_replace(());
        self.0.writes.notify_one();
    }
}

/// The user of clients in the process and of those that have the token: may do everything.
fn admin() -> User {
    User { name: "operetta:dev".to_owned(), ..User::default() }
}

#[cfg(test)]
mod tests;
