//! What goes wrong in a play: requests of the manager that fail, and commands.

mod programs;

use std::collections::BTreeSet;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use futures::future::BoxFuture;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, BodyStream, StreamBody};
use kube::client::Body;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until};
use tower::BoxError;

use super::deeds::{Deed, Deeds, decider, is_creation, read_text, request_text};
use super::disturbance::{Disturbance, InjectedFault, Target, delay, mixed};
use super::end::End;
use super::refused::{Refusals, role_of};
use super::suite::{CommandFault, RequestFault};
use crate::apiserver::reply::{ResponseBody, boxed, status};
use crate::apiserver::{Server, command_text};
use crate::cluster::Outside;
use crate::diag::Location;
use crate::package::test_file::Reply;

pub(super) use programs::Faulty;

/// A disturbance that has struck.
#[derive(Debug, Clone)]
pub(crate) struct Struck {
    pub disturbance: Disturbance,
    /// What it has struck, for people.
    pub text: String,
    /// The pod that has died.
    pub pod: Option<String>,
    /// The time since the start.
    pub at: Duration,
}

/// The faults of a play. Clones are the same.
#[derive(Debug, Clone)]
pub(super) struct Faults(Arc<Mutex<State>>, Arc<Signals>, Refusals);

#[derive(Debug, Default)]
struct Signals {
    killed: Notify,
    watches_end: Notify,
}

/// A fault that a case injects.
#[derive(Debug)]
struct Injected<T> {
    fault: T,
    /// Its step.
    at: Location,
    has_struck: bool,
}

impl<T> Injected<T> {
    fn new(fault: T, at: &Location) -> Self {
        Self { fault, at: at.clone(), has_struck: false }
    }
}

#[derive(Debug)]
struct State {
    requests: Vec<Injected<RequestFault>>,
    commands: Vec<Injected<CommandFault>>,
    schedule: Vec<Disturbance>,
    /// The seed of the order of events, if it is not the usual one.
    order: Option<u64>,
    deeds: Deeds,
    /// All requests of managers so far: what a play costs.
    sent: u64,
    struck: Vec<Struck>,
    /// Counts the managers: nothing that a former one sends arrives.
    generation: u64,
    /// Until when watches deliver nothing.
    late_until: Option<Instant>,
    /// Until when expressions about pods do not count, for one has died.
    mourning_until: Option<Instant>,
    /// Until when no pod can be created.
    no_pods_until: Option<Instant>,
    /// The uids of pods that disturbances have killed.
    dead: BTreeSet<String>,
    began: Instant,
    /// What is wrong with the engine, in tests of exploration itself.
    #[cfg(test)]
    bug: Option<super::planted::Bug>,
}

/// How long expressions about pods do not count when one has died.
const MOURNING: Duration = Duration::from_secs(120);

impl Default for Faults {
    fn default() -> Self {
        let state = State {
            requests: Vec::new(),
            commands: Vec::new(),
            schedule: Vec::new(),
            order: None,
            deeds: Deeds::default(),
            sent: 0,
            struck: Vec::new(),
            generation: 0,
            late_until: None,
            mourning_until: None,
            no_pods_until: None,
            dead: BTreeSet::new(),
            began: Instant::now(),
            #[cfg(test)]
            bug: None,
        };
        Self(Arc::new(Mutex::new(state)), Arc::default(), Refusals::default())
    }
}

impl Faults {
    fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn add_requests(&self, fault: RequestFault, at: &Location) {
        self.with(|state| state.requests.push(Injected::new(fault, at)));
    }

    pub(super) fn add_commands(&self, fault: CommandFault, at: &Location) {
        self.with(|state| state.commands.push(Injected::new(fault, at)));
    }

    /// The steps whose faults have struck nothing.
    pub(super) fn unstruck(&self) -> Vec<Location> {
        fn of<T>(faults: &[Injected<T>]) -> impl Iterator<Item = Location> {
            faults.iter().filter(|fault| !fault.has_struck).map(|fault| fault.at.clone())
        }
        self.with(|state| of(&state.requests).chain(of(&state.commands)).collect())
    }

    /// Cuts off all clients that were made before.
    pub(super) fn cut(&self) {
        self.with(|state| state.generation += 1);
    }

    /// Sets what goes wrong. With `traced`, who decided each deed is noted.
    pub(super) fn schedule(&self, schedule: &[Disturbance], traced: bool) {
        self.with(|state| {
            state.schedule = schedule.to_vec();
            let order = schedule.iter().find(|disturbance| disturbance.what == InjectedFault::Order);
            state.order = order.map(|order| order.choice);
            if let Some(&disturbance) = order {
                let text = "all that the manager sees".to_owned();
                state.struck.push(Struck { disturbance, text, pod: None, at: Duration::ZERO });
            }
            state.deeds.traced = traced;
        });
    }

    #[cfg(test)]
    pub(super) fn plant(&self, bug: Option<super::planted::Bug>) {
        self.with(|state| state.bug = bug);
    }

    /// What the managers have done, what has struck, and how many requests there were.
    pub(super) fn done(&self) -> (Vec<Deed>, Vec<Struck>, u64) {
        self.with(|state| (state.deeds.all.clone(), state.struck.clone(), state.sent))
    }

    /// Counts that must be the same in the end as without disturbance: Jobs and calls.
    pub(super) fn tallies(&self) -> End {
        self.with(|state| state.deeds.tallies())
    }

    /// The requests that the authorizer has refused.
    pub(super) fn refusals(&self) -> &Refusals {
        &self.2
    }

    /// Why what was done must never be done.
    pub(super) fn violation(&self) -> Option<String> {
        self.with(|state| state.deeds.violation.clone())
    }

    /// Whether a pod has died by a disturbance.
    pub(super) fn has_killed(&self, uid: &str) -> bool {
        self.with(|state| state.dead.contains(uid))
    }

    /// Whether expressions about pods do not count, for one has died.
    pub(super) fn is_mourning(&self) -> bool {
        self.with(|state| state.mourning_until.is_some_and(|until| Instant::now() < until))
    }

    /// Whether all disturbances have struck.
    pub(super) fn have_struck(&self) -> bool {
        self.with(|state| state.struck.len() >= state.schedule.len())
    }

    /// Waits until a disturbance kills the manager.
    pub(super) async fn killed(&self) {
        self.1.killed.notified().await;
    }

    fn kill(&self) {
        self.cut();
        self.1.killed.notify_one();
    }

    fn is_former(&self, generation: u64) -> bool {
        self.with(|state| state.generation != generation)
    }

    /// Counts something that is done, and says what happens to it.
    fn strikes(
        &self,
        server: &Server,
        target: Target,
        text: String,
        is_effect: bool,
    ) -> (u64, Option<Disturbance>) {
        let traced = self.with(|state| state.deeds.traced);
        let (by, pods) = if traced {
            server.read(|api| (decider(api.objects()), super::pods::expendable(api.objects()).len()))
        } else {
            (None, 0)
        };
        self.with(|state| {
            let at = state.began.elapsed();
            let deed = Deed { target, number: 0, at, text: text.clone(), is_effect, by, pods };
            let number = state.deeds.note(deed);
            let found =
                state.schedule.iter().find(|one| one.target == target && one.number == number).copied();
            if let Some(disturbance) = found {
                state.struck.push(Struck { disturbance, text, pod: None, at });
            }
            (number, found)
        })
    }

    /// Whether a request creates or changes a pod while that is impossible.
    fn are_no_pods(&self, method: &Method, path: &str) -> bool {
        *method != Method::DELETE
            && path.split('/').any(|part| part == "pods")
            && self.with(|state| state.no_pods_until.is_some_and(|until| Instant::now() < until))
    }

    fn of_request(&self, method: &Method, path: &str) -> Option<Reply> {
        let verb = match *method {
            Method::GET => "get",
            Method::POST => "create",
            Method::PUT => "update",
            Method::PATCH => "patch",
            Method::DELETE => "delete",
            _ => return None,
        };
        self.with(|state| {
            let injected = state.requests.iter_mut().find(|Injected { fault, .. }| {
                let is_verb = fault.verb == verb || fault.verb == "write" && verb != "get";
                let is_resource = |resource: &str| path.split('/').any(|part| part == resource);
                fault.left > 0 && is_verb && fault.resource.as_deref().is_none_or(is_resource)
            })?;
            injected.has_struck = true;
            injected.fault.left -= 1;
            Some(injected.fault.answer)
        })
    }

    /// A client of the server through which these faults strike, until [`Faults::cut`].
    pub(super) fn client(&self, server: &Server, inner: kube::Client) -> kube::Client {
        let (faults, server) = (self.clone(), server.clone());
        let generation = self.with(|state| state.generation);
        let namespace = inner.default_namespace().to_owned();
        let service = tower::service_fn(move |request: Request<Body>| {
            let (faults, server, inner) = (faults.clone(), server.clone(), inner.clone());
            async move {
                if faults.is_former(generation) {
                    return std::future::pending().await;
                }
                let uri = request.uri().clone();
                let (path, query) = (uri.path(), uri.query().unwrap_or_default());
                faults.with(|state| state.sent += u64::from(!is_access_review(path)));
                let answer = if query.contains("watch=true") {
                    let watch = path.bytes().fold(0, |hash, byte| mixed(hash, u64::from(byte)));
                    let answer = inner.send(request).await?;
                    if answer.status() == StatusCode::FORBIDDEN {
                        faults.refusals().note(answer.map(boxed), path, None).await?
                    } else {
                        faults.watch(answer, watch)
                    }
                } else if path.ends_with("/exec") {
                    let answer = faults.command(&server, &inner, request).await?;
                    faults.refusals().note(answer, path, None).await?
                } else {
                    faults.request(&server, &inner, request).await?
                };
                // A manager that has been killed meanwhile hears nothing.
                if faults.is_former(generation) {
                    return std::future::pending().await;
                }
                Ok::<_, BoxError>(answer)
            }
        });
        kube::Client::new(service, namespace)
    }

    /// A request that is no watch and no command.
    async fn request(
        &self,
        server: &Server,
        inner: &kube::Client,
        mut request: Request<Body>,
    ) -> Result<Response<ResponseBody>, BoxError> {
        let uri = request.uri().clone();
        let path = uri.path();
        let is_write =
            *request.method() != Method::GET && !path.contains("/events") && !path.ends_with("reviews");
        let is_review = is_access_review(path);
        let (mut number, mut found, mut creates, mut role) = (0, None, false, None);
        if is_write {
            let (parts, body) = request.into_parts();
            let body = body.collect_bytes().await?;
            creates = is_creation(&parts, &body);
            role = role_of(parts.uri.path(), &body);
            #[cfg(test)]
            let (parts, body) = match self.with(|state| state.bug) {
                Some(bug) => bug.alter(parts, body),
                None => (parts, body),
            };
            let (text, is_effect) = request_text(&parts, &body);
            self.with(|state| state.deeds.note_job(&parts, &body));
            request = Request::from_parts(parts, Body::from(body));
            (number, found) = self.strikes(server, Target::Write, text, is_effect);
        } else if *request.method() == Method::GET {
            found = self.strikes(server, Target::Read, read_text(path), false).1;
        }
        let fault = match found.map(|one| one.what) {
            None if is_write && self.are_no_pods(request.method(), request.uri().path()) => {
                Some(Reply::Code(500))
            }
            None if is_review => None,
            None => self.of_request(request.method(), request.uri().path()),
            Some(InjectedFault::Lost) => Some(Reply::Lost),
            Some(InjectedFault::Cut) => Some(Reply::Cut),
            Some(InjectedFault::Conflict) => Some(Reply::Code(409)),
            Some(InjectedFault::Busy) => Some(Reply::Code(429)),
            Some(InjectedFault::Broken) => Some(Reply::Code(500)),
            Some(InjectedFault::KillBefore) => {
                self.kill();
                return std::future::pending().await;
            }
            // No precondition keeps what creates from coming late: only the fence of the former leader does.
            Some(InjectedFault::TakenOver) if !creates => {
                let (inner, late) = (inner.clone(), found.map(Disturbance::seconds).unwrap_or_default());
                tokio::spawn(async move {
                    sleep(late).await;
                    let _ = inner.send(request).await;
                });
                self.kill();
                return std::future::pending().await;
            }
            Some(_) => None,
        };
        let answer = match fault {
            Some(Reply::Code(code)) => return Ok(refusal(code)),
            Some(Reply::Cut) => return Err(broken().into()),
            Some(Reply::Lost) => {
                let _ = inner.send(request).await?.into_body().collect().await;
                return Err(broken().into());
            }
            None => self.refusals().note(inner.send(request).await?.map(boxed), path, role).await?,
        };
        match found {
            Some(Disturbance { what: InjectedFault::KillAfter | InjectedFault::TakenOver, .. }) => {
                self.kill();
            }
            Some(Disturbance { what: InjectedFault::WatchesEnd, .. }) => self.1.watches_end.notify_waiters(),
            Some(one) if one.what == InjectedFault::WatchesLate => {
                self.with(|state| state.late_until = Some(Instant::now() + one.seconds()));
            }
            Some(one) if one.what == InjectedFault::PodDies => self.kill_pod(server, one),
            Some(one) if one.what == InjectedFault::Slow => sleep(one.seconds()).await,
            _ => {}
        }
        if is_write {
            self.wait_in_order(number).await;
        }
        Ok(answer)
    }

    /// A command in a container.
    async fn command(
        &self,
        server: &Server,
        inner: &kube::Client,
        request: Request<Body>,
    ) -> Result<Response<ResponseBody>, BoxError> {
        let text = command_text(request.uri());
        let (_, found) = self.strikes(server, Target::Command, text, false);
        let Some(one) = found else { return Ok(inner.send(request).await?.map(boxed)) };
        let what = one.what;
        if !matches!(what, InjectedFault::Cut | InjectedFault::PodDies) {
            server.carry_out(request.uri());
        }
        match what {
            InjectedFault::PodDies => {
                let answer = inner.send(request).await?.map(boxed);
                self.kill_pod(server, one);
                return Ok(answer);
            }
            InjectedFault::KillAfter => self.kill(),
            InjectedFault::Late => {}
            _ => return Err(broken().into()),
        }
        std::future::pending().await
    }

    /// A pod that loses no data with its end is gone at once, as with its node, and for some time none may be created.
    fn kill_pod(&self, server: &Server, one: Disturbance) {
        let killed = server.with(|api, now| super::pods::kill(api, one.pod(), now));
        let Some((name, uid)) = killed else { return };
        self.with(|state| {
            state.no_pods_until = Some(Instant::now() + one.seconds());
            if let Some(struck) = state.struck.last_mut() {
                struck.pod = Some(name);
            }
            state.dead.insert(uid);
            state.mourning_until = Some(Instant::now() + MOURNING);
        });
    }

    /// The answer to a watch, which ends when all watches end, and may be late.
    fn watch(&self, answer: Response<Body>, watch: u64) -> Response<ResponseBody> {
        let (faults, signals) = (self.clone(), Arc::clone(&self.1));
        answer.map(|body| {
            let end = async move { signals.watches_end.notified().await };
            let frames = BodyStream::new(body).then(move |frame| {
                let faults = faults.clone();
                async move {
                    faults.wait_in_order(watch).await;
                    while let Some(until) =
                        faults.with(|state| state.late_until.filter(|until| *until > Instant::now()))
                    {
                        sleep_until(until).await;
                    }
                    frame
                }
            });
            boxed(StreamBody::new(Box::pin(frames.take_until(Box::pin(end)))))
        })
    }

    /// Waits as long as the order of events says, if there is one.
    async fn wait_in_order(&self, of: u64) {
        let (order, elapsed) = self.with(|state| (state.order, state.began.elapsed()));
        if let Some(seed) = order {
            sleep(delay(seed, of, elapsed)).await;
        }
    }

    /// What answers the HTTP requests of packages, through which these faults strike.
    pub(super) fn outside(&self, server: &Server) -> Arc<dyn Outside> {
        let generation = self.with(|state| state.generation);
        Arc::new(FaultyOutside {
            faults: self.clone(),
            server: server.clone(),
            inner: server.outside(),
            generation,
        })
    }
}

struct FaultyOutside {
    faults: Faults,
    server: Server,
    inner: Arc<dyn Outside>,
    generation: u64,
}

impl Outside for FaultyOutside {
    fn call(&self, request: Request<Bytes>) -> BoxFuture<'_, Result<Response<Bytes>, String>> {
        #[cfg(test)]
        let request = self.faults.with(|state| match state.bug {
            Some(bug) => bug.alter_call(request, state.sent),
            None => request,
        });
        Box::pin(async move {
            if self.faults.is_former(self.generation) {
                return std::future::pending().await;
            }
            let text = format!("{} {}", request.method(), request.uri());
            self.faults.with(|state| state.deeds.note_call(&request));
            let (_, found) =
                self.faults.strikes(&self.server, Target::Call, text, *request.method() != Method::GET);
            let Some(one) = found else { return self.inner.call(request).await };
            let what = one.what;
            if what == InjectedFault::PodDies {
                self.faults.kill_pod(&self.server, one);
                return self.inner.call(request).await;
            }
            if what != InjectedFault::Cut {
                let _ = self.inner.call(request).await;
            }
            if what == InjectedFault::KillAfter {
                self.faults.kill();
            }
            // The connection stays, and no answer comes: the request ends at its deadline.
            std::future::pending().await
        })
    }
}

/// Whether a request asks if a right is granted. Each manager asks for all rights of a package before its first write; these requests are
/// as many in each play of a package, and change nothing, so they neither count nor fail.
fn is_access_review(path: &str) -> bool {
    path.ends_with("accessreviews")
}

fn broken() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionReset, "connection reset by peer")
}

fn refusal(code: u16) -> Response<ResponseBody> {
    let reason = match code {
        403 => "Forbidden",
        409 => "Conflict",
        410 => "Expired",
        429 => "TooManyRequests",
        503 => "ServiceUnavailable",
        _ => "InternalError",
    };
    let code = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    status(code, reason, "this request fails, as the test says")
}
