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
mod conversion;
mod exec;
mod listen;
mod log;
mod outside;
pub(crate) mod reply;

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use operetta_embedded::{Api, User};
use tokio::sync::{Notify, watch};

pub(crate) use exec::command_text;
pub use listen::{ListenError, Listener};
pub use log::Answered;

/// The longest time between two looks at the controllers: a suspended machine's timers are late.
const LOOK: Duration = Duration::from_secs(60);

/// The name of the user who may do everything.
const ADMIN: &str = "operetta:dev";

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
    log: OnceLock<log::Log>,
    admin: User,
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
        Self::of_admin(ADMIN, now)
    }

    /// Like [`Self::new`], with the name of the user of clients in the process and of those that have the token, who may do
    /// everything.
    pub fn of_admin(name: &str, now: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        let mut api = Api::new(now());
        api.set_converter(Arc::new(conversion::Rules));
        Self::with_admin(api, name, now)
    }

    /// Like [`Self::new`], as kube-apiserver is without kube-controller-manager: only CRDs are established and removed.
    pub fn without_controllers(now: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        let mut api = Api::alone(now());
        api.set_converter(Arc::new(conversion::Rules));
        Self::with_admin(api, ADMIN, now)
    }

    /// A server of an API that has objects already.
    pub(crate) fn of(api: Api, now: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        Self::with_admin(api, ADMIN, now)
    }

    fn with_admin(api: Api, name: &str, now: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        Self(Arc::new(State {
            api: Mutex::new(api),
            changes: watch::Sender::new(()),
            writes: Notify::new(),
            now: Box::new(now),
            observer: Mutex::default(),
            log: OnceLock::new(),
            admin: User { name: name.to_owned(), ..User::default() },
        }))
    }

    /// Uses the API directly, such as to set the programs in its pods. Watches and controllers look at what changed.
    pub fn with<T>(&self, act: impl FnOnce(&mut Api, Timestamp) -> T) -> T {
        let mut api = self.lock();
        let before = api.version();
        let result = act(&mut api, self.now());
        let has_written = api.version() != before;
        drop(api);
        if has_written {
            self.0.changes.send_replace(());
        }
        // What programs were asked may concern the controllers.
        self.0.writes.notify_one();
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

    /// Sets what is told of each request once it is answered, and of a watch once it has begun. Only the first call has an
    /// effect.
    pub fn log_requests(&self, log: impl Fn(&Answered) + Send + Sync + 'static) {
        let _ = self.0.log.set(Box::new(log));
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

#[cfg(test)]
mod tests;
