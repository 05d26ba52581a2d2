//! A wire between a manager and the API server that breaks as it is told.
//!
//! A [`Wire`] is a `tower` service round a client of the library. Each request is matched with the rules in
//! force, and what happened to it is written down, also what the server has done with a request whose reply
//! the manager never saw. Whether a rule with a chance strikes depends on the seed and on how often a request
//! of that kind to that object was made before, not on what others do meanwhile: the same seed, the same
//! rules and the same requests, the same faults.

mod body;
mod call;
pub mod case;
pub mod random;

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Request, Response};
use kube::client::Body;
use operetta::cluster::Cluster;
use operetta::local::ControlPlane;
use serde_json::{Value, json};
use tokio::sync::watch;

use body::{Break, Keep, Lines, Reply, Tap};
pub use call::{ALL, Call, Verb, WRITES};

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// What goes wrong.
#[derive(Debug, Clone)]
pub enum Fault {
    /// The server is not asked; this is its answer.
    Answer(Answer),
    /// The connection is refused: the server never sees the request.
    Refused,
    /// The server does what is asked, and the connection breaks before its reply arrives; of a stream, after the
    /// first line.
    Cut,
    /// The request arrives that much later.
    Delay(Duration),
    /// The connection is accepted and nothing ever comes; the server never sees the request.
    Never,
    /// The server does what is asked, and nothing ever comes; of a stream, nothing after the first line.
    Lost,
    /// A read is answered with what it was answered the first time. A stream ends there.
    Stale,
    /// A watch ends after that time, as when the server closes it.
    WatchEnds(Duration),
    /// A watch brings an error after that time: 410, or that the resourceVersion is too large.
    WatchFails(Duration, u16),
    /// The process ends before the request is sent.
    DieBefore,
    /// The process ends when the server has done what was asked, and has not seen the reply.
    DieAfter,
}

/// An answer of the server, made up.
#[derive(Debug, Clone)]
pub struct Answer {
    code: u16,
    retry_after: Option<u32>,
    status: bool,
    reason: &'static str,
    message: String,
}

impl Answer {
    /// With a `Status` as body.
    pub fn status(code: u16, reason: &'static str) -> Self {
        Self { code, retry_after: None, status: true, reason, message: format!("{code}, made up by a test") }
    }

    /// With a text as body, as the filters before the API answer.
    pub fn text(code: u16) -> Self {
        Self { status: false, ..Self::status(code, "") }
    }

    /// With these words.
    pub fn saying(self, message: &str) -> Self {
        Self { message: message.into(), ..self }
    }

    /// With `Retry-After`: the header, and in a `Status` also the field.
    pub fn retry_after(self, seconds: u32) -> Self {
        Self { retry_after: Some(seconds), ..self }
    }

    fn into_response(self) -> Response<Reply> {
        let body = if self.status {
            json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": self.code,
                "reason": self.reason, "message": self.message,
                "details": {"retryAfterSeconds": self.retry_after.unwrap_or(0)}})
            .to_string()
        } else {
            self.message
        };
        let mut response = Response::builder().status(self.code);
        if let Some(seconds) = self.retry_after {
            response = response.header("retry-after", seconds);
        }
        response.body(Reply::whole(body)).expect("a response")
    }
}

/// When something goes wrong, and what.
#[derive(Debug, Clone)]
pub struct Rule {
    verbs: &'static [Verb],
    group: Option<String>,
    plural: Option<String>,
    namespace: Option<String>,
    name: Option<String>,
    subresource: Option<String>,
    /// Parts of URIs, one of which must be there; none for any URI.
    mentions: &'static [&'static str],
    skip: usize,
    times: usize,
    chance: f64,
    fault: Fault,
}

impl Rule {
    /// For every request of one of these verbs, unless it is about Events.
    pub fn on(verbs: &'static [Verb], fault: Fault) -> Self {
        Self {
            verbs,
            group: None,
            plural: None,
            namespace: None,
            name: None,
            subresource: None,
            mentions: &[],
            skip: 0,
            times: usize::MAX,
            chance: 1.0,
            fault,
        }
    }

    /// An API group, also its discovery.
    pub fn group(self, group: &str) -> Self {
        Self { group: Some(group.into()), ..self }
    }

    pub fn plural(self, plural: &str) -> Self {
        Self { plural: Some(plural.into()), ..self }
    }

    pub fn namespace(self, namespace: &str) -> Self {
        Self { namespace: Some(namespace.into()), ..self }
    }

    /// The name of the object; with a `*` at its end the beginning of it.
    pub fn name(self, name: &str) -> Self {
        Self { name: Some(name.into()), ..self }
    }

    /// `status`, or none with an empty text.
    pub fn subresource(self, subresource: &str) -> Self {
        Self { subresource: Some(subresource.into()), ..self }
    }

    /// The commands that are executed in containers whose URI has one of these parts.
    pub fn commands(self, mentions: &'static [&'static str]) -> Self {
        Self { mentions, ..self.plural("pods").subresource("exec") }
    }

    /// Not the first so many.
    pub fn skip(self, skip: usize) -> Self {
        Self { skip, ..self }
    }

    /// At most so often.
    pub fn times(self, times: usize) -> Self {
        Self { times, ..self }
    }

    /// By chance.
    pub fn chance(self, chance: f64) -> Self {
        Self { chance, ..self }
    }

    /// What strikes lists strikes those that are streams; they are watches, too, once they have begun.
    fn strikes(&self, verb: Verb) -> bool {
        let begun = matches!(self.fault, Fault::WatchEnds(_) | Fault::WatchFails(..));
        let also = if begun { Verb::Watch } else { Verb::List };
        self.verbs.contains(&verb) || verb == Verb::Stream && self.verbs.contains(&also)
    }

    fn matches(&self, call: &Call) -> bool {
        let is = |wanted: &Option<String>, found: &str| wanted.as_ref().is_none_or(|w| w == found);
        let begins = |wanted: &str| wanted.strip_suffix('*').is_some_and(|w| call.name.starts_with(w));
        self.strikes(call.verb)
            && (self.plural.is_some() || call.plural != "events")
            && is(&self.group, &call.group)
            && is(&self.plural, &call.plural)
            && is(&self.namespace, &call.namespace)
            && (is(&self.name, &call.name) || self.name.as_deref().is_some_and(begins))
            && is(&self.subresource, &call.subresource)
            && (self.mentions.is_empty() || self.mentions.iter().any(|part| call.uri.contains(part)))
    }
}

/// A request and what became of it.
#[derive(Debug, Clone)]
pub struct Entry {
    pub call: Call,
    /// What went wrong, if anything did.
    pub fault: Option<Fault>,
    /// What the server has answered, if it was asked and has; the manager may not have seen it.
    pub code: Option<u16>,
    /// Seconds since the wire was made.
    pub at: f64,
}

impl Entry {
    /// Whether it asked for a change. Events do not count: they come in the background, whenever. Nor do reviews, which
    /// store nothing.
    pub fn is_write(&self) -> bool {
        self.call.verb.writes() && !["events", "selfsubjectreviews"].contains(&self.call.plural.as_str())
    }

    /// Whether it counts where silence is asked for: watches do not, nor Events.
    pub fn is_asking(&self) -> bool {
        self.call.verb != Verb::Watch && self.call.plural != "events"
    }
}

/// The wire.
#[derive(Clone)]
pub struct Wire(Arc<Inner>);

struct Inner {
    seed: u64,
    /// CRDs of other groups are not shown: other managers care for them.
    group: String,
    /// Placeholders for what is not the same in two runs, such as the namespace.
    aliases: Vec<(String, String)>,
    started: std::time::Instant,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    rules: Vec<Armed>,
    log: Vec<Entry>,
    /// How often a rule has met a request of that kind.
    met: HashMap<(usize, String), u64>,
    serial: usize,
    /// The first answers to reads.
    answers: HashMap<String, Bytes>,
    taps: Vec<(Call, Arc<Tap>)>,
    /// How many requests the server has not answered yet, watches aside.
    under_way: usize,
}

struct Armed {
    serial: usize,
    rule: Rule,
    seen: usize,
    used: usize,
}

/// Whether a process lives, as one can be told that is only simulated.
#[derive(Debug, Clone)]
pub struct Life(Arc<watch::Sender<bool>>);

impl Life {
    fn new() -> Self {
        Self(Arc::new(watch::Sender::new(false)))
    }

    /// Ends it: nothing is sent any more and nothing arrives.
    pub fn end(&self) {
        self.0.send_replace(true);
    }

    pub fn is_over(&self) -> bool {
        *self.0.borrow()
    }

    /// Waits for its end.
    pub async fn over(&self) {
        let _ = self.0.subscribe().wait_for(|over| *over).await;
    }
}

impl Wire {
    pub fn new(seed: u64, group: &str, aliases: &[(&str, &str)]) -> Self {
        Self(Arc::new(Inner {
            seed,
            group: group.into(),
            aliases: aliases.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect(),
            started: std::time::Instant::now(),
            state: Mutex::default(),
        }))
    }

    /// The cluster as a new process sees it over this wire.
    pub async fn connect(&self, plane: &ControlPlane) -> (Cluster, Life) {
        let upstream = Cluster::of_kubeconfig(plane.kubeconfig_path()).await.expect("a kubeconfig").client();
        let life = Life::new();
        let line = Line { wire: self.clone(), upstream, life: life.clone() };
        (Cluster::new(kube::Client::new(line, "default")), life)
    }

    /// From now on, that goes wrong. The first rule that strikes counts.
    pub fn rule(&self, rule: Rule) -> usize {
        let mut state = self.lock();
        state.serial += 1;
        let serial = state.serial;
        state.rules.push(Armed { serial, rule, seen: 0, used: 0 });
        serial
    }

    /// The same, before all other rules: an exception from them.
    pub fn rule_first(&self, rule: Rule) -> usize {
        let serial = self.rule(rule);
        self.lock().rules.rotate_right(1);
        serial
    }

    /// How often a rule has struck.
    pub fn struck(&self, serial: usize) -> usize {
        self.lock().rules.iter().find(|r| r.serial == serial).map_or(0, |r| r.used)
    }

    /// The next answer to a list of a kind is the one that stale reads get from then on.
    pub fn forget_answers(&self, plural: &str) {
        let what = format!("/{plural}?");
        self.lock().answers.retain(|uri, _| !uri.contains(&what));
    }

    /// Nothing goes wrong any more; watches that were held up go on.
    pub fn heal(&self) {
        self.lock().rules.clear();
        self.thaw();
    }

    /// A place in the log.
    pub fn mark(&self) -> usize {
        self.lock().log.len()
    }

    /// What was asked since.
    pub fn since(&self, mark: usize) -> Vec<Entry> {
        self.lock().log[mark..].to_vec()
    }

    /// Whether the server has yet to answer something.
    pub fn is_under_way(&self) -> bool {
        self.lock().under_way > 0
    }

    /// The writes since, Events aside.
    pub fn writes(&self, mark: usize) -> Vec<Entry> {
        let mut log = self.since(mark);
        log.retain(Entry::is_write);
        log
    }

    /// Holds up what open watches of a kind bring; they stay open.
    pub fn freeze(&self, plural: &str) {
        self.taps(Some(plural), Tap::freeze);
    }

    /// Lets go what was held up.
    pub fn thaw(&self) {
        self.taps(None, Tap::thaw);
    }

    /// Ends the open watches of a kind, or of all.
    pub fn end_watches(&self, plural: Option<&str>) {
        self.taps(plural, Tap::end);
    }

    /// The open watches of a kind, or of all, bring an error.
    pub fn fail_watches(&self, plural: Option<&str>, code: u16) {
        self.taps(plural, |tap| tap.inject(&watch_error(code)));
    }

    fn taps(&self, plural: Option<&str>, what: impl Fn(&Tap)) {
        let mut state = self.lock();
        state.taps.retain(|(_, tap)| !tap.is_closed());
        for (call, tap) in &state.taps {
            if plural.is_none_or(|plural| call.plural == plural) {
                what(tap);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes a request down and tells what goes wrong with it.
    fn decide(&self, call: &Call) -> (usize, Option<Fault>) {
        let mut state = self.lock();
        let state = &mut *state;
        let mut struck = None;
        for armed in &mut state.rules {
            if !armed.rule.matches(call) {
                continue;
            }
            armed.seen += 1;
            if armed.seen <= armed.rule.skip || armed.used >= armed.rule.times {
                continue;
            }
            if armed.rule.chance < 1.0 {
                let what = self.anonymous(call);
                let met = state.met.entry((armed.serial, what.clone())).or_default();
                *met += 1;
                if dice(self.0.seed, armed.serial, &what, *met) >= armed.rule.chance {
                    continue;
                }
            }
            armed.used += 1;
            struck = Some(armed.rule.fault.clone());
            break;
        }
        let at = self.0.started.elapsed().as_secs_f64();
        state.log.push(Entry { call: call.clone(), fault: struck.clone(), code: None, at });
        (state.log.len() - 1, struck)
    }

    /// The request without what differs between runs.
    fn anonymous(&self, call: &Call) -> String {
        let text =
            format!("{:?} {}/{}/{}/{}", call.verb, call.plural, call.namespace, call.name, call.subresource);
        self.0.aliases.iter().fold(text, |text, (from, to)| text.replace(from.as_str(), to))
    }

    fn note(&self, number: usize, code: u16) {
        self.lock().log[number].code = Some(code);
    }
}

/// A number from 0 to 1 that depends on nothing else.
fn dice(seed: u64, rule: usize, what: &str, met: u64) -> f64 {
    let mut hasher = DefaultHasher::new();
    (seed, rule, what, met).hash(&mut hasher);
    fastrand::Rng::with_seed(hasher.finish()).f64()
}

fn watch_error(code: u16) -> Value {
    let (reason, message) = match code {
        410 => ("Expired", "too old resource version: 1 (2)"),
        504 => ("Timeout", "Too large resource version: 99999999, current: 2"),
        _ => ("InternalError", "made up by a test"),
    };
    json!({"type": "ERROR", "object": {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason, "code": code}})
}

/// One process's end of the wire.
#[derive(Clone)]
struct Line {
    wire: Wire,
    upstream: kube::Client,
    life: Life,
}

impl tower::Service<Request<Body>> for Line {
    type Response = Response<Reply>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Response<Reply>, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let line = self.clone();
        Box::pin(async move {
            let life = line.life.clone();
            let reply = line.carry(request).await;
            // The dead see nothing.
            if life.is_over() { std::future::pending().await } else { reply }
        })
    }
}

impl Line {
    async fn carry(self, request: Request<Body>) -> Result<Response<Reply>, BoxError> {
        if self.life.is_over() {
            return std::future::pending().await;
        }
        let call = Call::of(&request);
        let (number, fault) = self.wire.decide(&call);
        match fault {
            Some(Fault::Answer(answer)) => return Ok(answer.into_response()),
            Some(Fault::Refused) => return Err(broken(std::io::ErrorKind::ConnectionRefused)),
            Some(Fault::Never) => return std::future::pending().await,
            Some(Fault::Delay(time)) => tokio::time::sleep(time).await,
            Some(Fault::DieBefore) => {
                self.life.end();
                return std::future::pending().await;
            }
            Some(Fault::Stale) => {
                let earlier = self.wire.lock().answers.get(&call.uri).cloned();
                if let Some(bytes) = earlier {
                    let response = Response::builder().header("content-type", "application/json");
                    return Ok(response.body(Reply::whole(bytes)).expect("a response"));
                }
            }
            _ => {}
        }
        if matches!(call.verb, Verb::Watch | Verb::Stream) {
            return self.watch(request, call, number, fault.as_ref()).await;
        }
        // On a task of its own: what is sent is sent, whatever becomes of who waits for the reply.
        let (wire, upstream) = (self.wire.clone(), self.upstream.clone());
        let sent = tokio::spawn(async move {
            wire.lock().under_way += 1;
            let answer = async {
                let (parts, body) = upstream.send(request).await?.into_parts();
                let bytes = body.collect_bytes().await?;
                Ok::<_, kube::Error>((parts, bytes))
            };
            let answer = answer.await;
            wire.lock().under_way -= 1;
            if let Ok((parts, _)) = &answer {
                wire.note(number, parts.status.as_u16());
            }
            answer
        });
        let (parts, bytes) = sent.await??;
        match fault {
            Some(Fault::Cut) => return Err(broken(std::io::ErrorKind::ConnectionReset)),
            Some(Fault::Lost) => return std::future::pending().await,
            Some(Fault::DieAfter) => {
                self.life.end();
                return std::future::pending().await;
            }
            _ => {}
        }
        let bytes = if call.lists_crds() { self.own_crds(&bytes) } else { bytes };
        if call.verb.reads() && parts.status.is_success() {
            self.wire.lock().answers.entry(call.uri.clone()).or_insert_with(|| bytes.clone());
        }
        Ok(Response::from_parts(parts, Reply::whole(bytes)))
    }

    async fn watch(
        self,
        request: Request<Body>,
        call: Call,
        number: usize,
        fault: Option<&Fault>,
    ) -> Result<Response<Reply>, BoxError> {
        let (parts, body) = self.upstream.send(request).await?.into_parts();
        self.wire.note(number, parts.status.as_u16());
        let breaks = match fault {
            Some(Fault::Cut) => Some(Break::Cut),
            Some(Fault::Lost) => Some(Break::Silent),
            Some(Fault::DieAfter) => {
                self.life.end();
                return std::future::pending().await;
            }
            _ => None,
        };
        let tap = Arc::new(Tap::default());
        match fault {
            Some(Fault::WatchEnds(after)) => tap.clone().later(*after, Tap::end),
            Some(Fault::WatchFails(after, code)) => {
                let event = watch_error(*code);
                tap.clone().later(*after, move |tap| tap.inject(&event));
            }
            _ => {}
        }
        let hides = call.plural == "customresourcedefinitions";
        let hidden = hides.then(|| self.wire.0.group.clone());
        let wire = self.wire.clone();
        let uri = call.uri.clone();
        let keep = (call.verb == Verb::Stream && parts.status.is_success()).then(|| -> Keep {
            Box::new(move |list| {
                wire.lock().answers.entry(uri.clone()).or_insert(list);
            })
        });
        self.wire.lock().taps.push((call, Arc::clone(&tap)));
        let lines = Lines { shows: hidden, breaks, keep };
        Ok(Response::from_parts(parts, Reply::watch(body, tap, self.life.clone(), lines)))
    }

    /// A list of CRDs without those of other managers.
    fn own_crds(&self, bytes: &Bytes) -> Bytes {
        let Ok(mut list) = serde_json::from_slice::<Value>(bytes) else { return bytes.clone() };
        if let Some(items) = list["items"].as_array_mut() {
            items.retain(|crd| is_own(crd, &self.wire.0.group));
        }
        list.to_string().into()
    }
}

/// Whether a CRD is one of this group, or none of a test of faults.
fn is_own(crd: &Value, group: &str) -> bool {
    let found = crd["metadata"]["name"].as_str().unwrap_or_default();
    !found.ends_with(".faults.operetta.dev") || found.ends_with(&format!(".{group}"))
}

fn broken(kind: std::io::ErrorKind) -> BoxError {
    Box::new(std::io::Error::new(kind, "the connection broke, says a test"))
}

/// How often each child was created and deleted by managers, as the server has answered: those in a namespace, and
/// those elsewhere whose names begin with its name.
pub fn made_and_taken(log: &[Entry], namespace: &str) -> BTreeMap<String, (usize, usize)> {
    let mut counts: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    let prefix = format!("{namespace}-");
    let ours = |call: &Call| call.namespace == namespace || call.name.starts_with(&prefix);
    for entry in log.iter().filter(|e| e.is_write() && ours(&e.call)) {
        let name = format!("{} {}", entry.call.plural, entry.call.name);
        match (entry.call.verb, entry.code) {
            (Verb::Apply | Verb::Create, Some(201)) => counts.entry(name).or_default().0 += 1,
            (Verb::Delete, Some(200 | 202)) => counts.entry(name).or_default().1 += 1,
            _ => {}
        }
    }
    counts
}

/// Requests, one a line, for messages.
pub fn story(log: &[Entry]) -> String {
    log.iter().fold(String::new(), |mut text, e| {
        let Entry { call, fault, code, at } = e;
        let fault = fault.as_ref().map(|f| format!(" !{f:?}")).unwrap_or_default();
        let code = code.map_or_else(|| "-".to_owned(), |c| c.to_string());
        let path =
            [&call.plural, &call.namespace, &call.name, &call.subresource].map(String::as_str).join("/");
        writeln!(text, "{at:8.3} {:?} {path} {code}{fault}", call.verb).unwrap();
        text
    })
}
