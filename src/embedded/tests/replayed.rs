//! What all clients of a real control plane have asked is asked again, in the same order, and the answers are compared.
//!
//! `record/main.go` makes the file. The controllers here do nothing: what the real ones wrote is played, too.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::sync::LazyLock;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use regex::Regex;
use serde_json::{Value, json};

use super::recorded::names::{Names, differences};
use crate::{Api, Body, Request, User, Watch};

/// A line of the file: a request with its answer, or what a watch has sent.
#[derive(Debug, Default, Clone)]
struct Line {
    number: u64,
    start: i64,
    end: i64,
    user: String,
    acting: Vec<(String, String)>,
    to: String,
    content: String,
    accept: String,
    agent: String,
    body: String,
    base64: String,
    code: u16,
    warnings: Vec<String>,
    answer: String,
    events: String,
}

static UID: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}").unwrap());
static ADDRESS: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"10\.96\.[0-9]+\.[0-9]+").unwrap());
static GENERATED: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"kube-api-access-[bcdfghjklmnpqrstvwxz2456789]{5}").unwrap());

impl Line {
    fn parse(text: &str) -> Option<Self> {
        let line: Value = serde_json::from_str(text).ok()?;
        let text = |field: &str| line[field].as_str().unwrap_or_default().to_owned();
        let items = |value: &Value| -> Vec<String> {
            let items = value.as_array().into_iter().flatten();
            items.filter_map(Value::as_str).map(str::to_owned).collect()
        };
        let acting = line["as"].as_object().into_iter().flatten();
        Some(Self {
            number: line["number"].as_u64()?,
            start: line["start"].as_i64()?,
            end: line["end"].as_i64().unwrap_or_default(),
            user: text("user"),
            acting: acting
                .flat_map(|(name, values)| items(values).into_iter().map(|value| (name.clone(), value)))
                .collect(),
            to: text("do"),
            content: text("type"),
            accept: text("accept"),
            agent: text("agent"),
            body: text("body"),
            base64: text("base64"),
            code: line["code"].as_u64().and_then(|code| code.try_into().ok()).unwrap_or_default(),
            warnings: items(&line["warnings"]),
            answer: text("answer"),
            events: text("events"),
        })
    }

    fn method(&self) -> &str {
        self.to.split_once(' ').map_or("", |(method, _)| method)
    }

    fn uri(&self) -> &str {
        self.to.split_once(' ').map_or("", |(_, uri)| uri)
    }

    fn path(&self) -> &str {
        self.uri().split('?').next().unwrap_or_default()
    }

    fn has(&self, query: &str) -> bool {
        self.uri().split(['?', '&']).any(|part| part == query)
    }

    fn is_watch(&self) -> bool {
        self.method() == "GET" && (self.has("watch=true") || self.has("watch=1"))
    }

    fn writes(&self) -> bool {
        self.method() != "GET" && self.code < 300 && !self.has("dryRun=All")
    }

    /// The answer, with its warnings.
    fn answered(&self) -> Value {
        let answer = serde_json::from_str(&self.answer);
        let mut answer: Value = answer.unwrap_or(Value::String(self.answer.clone()));
        if !self.warnings.is_empty() && answer.is_object() {
            let text = |text: &String| {
                text.trim_start_matches("299 - \"").trim_end_matches('"').replace("\\\"", "\"")
            };
            answer["WARNINGS"] = self.warnings.iter().map(text).collect();
        }
        answer
    }

    /// Whether a controller of Kubernetes sent it.
    fn is_of_controller(&self) -> bool {
        ["kube-controller-manager", "kube-scheduler", "kwok"].iter().any(|name| self.user.contains(name))
    }

    /// Requests that are about the server and not about objects.
    fn is_about_objects(&self) -> bool {
        let path = self.path();
        (path.starts_with("/api/") || path.starts_with("/apis/"))
            && !["/exec", "/attach", "/log", "/portforward", "/proxy"].iter().any(|end| path.ends_with(end))
            && self.code != 101
    }

    /// The verb with the resource and the subresource.
    fn what(&self) -> String {
        let parts: Vec<&str> = self.path().split('/').filter(|part| !part.is_empty()).collect();
        let rest = match parts.split_first() {
            Some((&"api", rest)) => rest.get(1..).unwrap_or_default(),
            Some((_, rest)) => rest.get(2..).unwrap_or_default(),
            None => &[],
        };
        let rest = if rest.first() == Some(&"namespaces") && rest.len() > 2 { &rest[2..] } else { rest };
        let verb = match (self.method(), &*self.content) {
            ("PATCH", "application/apply-patch+yaml") => "APPLY",
            _ if self.is_watch() => "WATCH",
            ("GET", _) if rest.len() == 1 => "LIST",
            (method, _) => method,
        };
        let dry = if self.has("dryRun=All") { " (dry run)" } else { "" };
        format!(
            "{verb} {}{}{dry}",
            rest.first().unwrap_or(&""),
            rest.get(2).map(|sub| format!("/{sub}")).unwrap_or_default()
        )
    }

    /// The path of the object.
    fn object(&self, answer: &Value) -> String {
        let name = answer["metadata"]["name"].as_str().unwrap_or_default();
        let path = self.path().trim_end_matches("/status").trim_end_matches("/scale");
        if self.method() == "POST" && !path.ends_with(&format!("/{name}")) {
            format!("{path}/{name}")
        } else {
            path.to_owned()
        }
    }
}

/// The lines in the order in which the server took them: successful writes in that of their versions, all others by their end.
fn ordered(text: &str) -> (Vec<Line>, HashMap<u64, String>) {
    let mut lines = Vec::new();
    let mut events: HashMap<u64, String> = HashMap::new();
    for line in text.lines() {
        // The last line of a server that was killed may be a part.
        let Some(line) = Line::parse(line) else { continue };
        if line.to.is_empty() {
            events.entry(line.number).or_default().push_str(&line.events);
        } else {
            lines.push(line);
        }
    }
    lines.sort_by_key(|line| line.end);
    let version = |line: &Line| {
        let answer: Value = serde_json::from_str(&line.answer).ok()?;
        answer["metadata"]["resourceVersion"].as_str()?.parse::<u64>().ok().filter(|_| line.writes())
    };
    let mut writes: Vec<(u64, usize)> =
        lines.iter().enumerate().filter_map(|(at, line)| Some((version(line)?, at))).collect();
    let mut places: Vec<usize> = writes.iter().map(|(_, at)| *at).collect();
    writes.sort_unstable();
    places.sort_unstable();
    let sorted: Vec<Line> = writes.iter().map(|(_, at)| lines[*at].clone()).collect();
    for (place, line) in places.into_iter().zip(sorted) {
        lines[place] = line;
    }
    (lines, events)
}

/// What has another value here than there: real values with ours.
#[derive(Debug, Default)]
struct Known {
    texts: HashMap<String, String>,
    ports: HashMap<u64, u64>,
}

impl Known {
    /// Learns from two answers.
    fn learn(&mut self, real: &Value, ours: &Value) {
        match (real, ours) {
            (Value::Object(real), Value::Object(ours)) => {
                for (key, value) in real {
                    let Some(other) = ours.get(key) else { continue };
                    match (key.as_str(), value, other) {
                        ("resourceVersion", Value::String(a), Value::String(b)) => {
                            self.texts.insert(format!("version {a}"), b.clone());
                        }
                        ("continue", Value::String(a), Value::String(b)) => {
                            self.texts.insert(format!("continue={a}"), format!("continue={b}"));
                        }
                        ("nodePort", Value::Number(a), Value::Number(b)) => {
                            self.ports.extend(a.as_u64().zip(b.as_u64()));
                        }
                        _ => self.learn(value, other),
                    }
                }
            }
            (Value::Array(real), Value::Array(ours)) if real.len() == ours.len() => {
                real.iter().zip(ours).for_each(|(real, ours)| self.learn(real, ours));
            }
            (Value::String(a), Value::String(b)) => {
                for pattern in [&UID, &ADDRESS, &GENERATED] {
                    if let (Some(a), Some(b)) = (pattern.find(a), pattern.find(b)) {
                        self.texts.insert(a.as_str().to_owned(), b.as_str().to_owned());
                    }
                }
            }
            _ => {}
        }
    }

    fn text(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for pattern in [&UID, &ADDRESS, &GENERATED] {
            text = pattern
                .replace_all(&text, |found: &regex::Captures<'_>| {
                    self.texts.get(&found[0]).cloned().unwrap_or_else(|| found[0].to_owned())
                })
                .into_owned();
        }
        text
    }

    /// A real value as it is here, but for versions and ports.
    fn value(&self, value: &Value) -> Value {
        serde_json::from_str(&self.text(&value.to_string())).unwrap_or_default()
    }

    /// The body as a client of this API would send it.
    fn body(&self, value: &mut Value, current: Option<&str>) {
        match value {
            Value::Object(map) => {
                let is_version = map.get("path").is_some_and(|path| path == "/metadata/resourceVersion");
                for (key, value) in map {
                    match (key.as_str(), &*value) {
                        ("resourceVersion", Value::String(text)) => {
                            *value = self.version(text, current).into();
                        }
                        ("value", Value::String(text)) if is_version => {
                            *value = self.version(text, current).into();
                        }
                        ("nodePort", Value::Number(port)) => {
                            if let Some(ours) = port.as_u64().and_then(|port| self.ports.get(&port)) {
                                *value = (*ours).into();
                            }
                        }
                        _ => self.body(value, current),
                    }
                }
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.body(item, current)),
            _ => {}
        }
    }

    /// Our version for a real one; the current one if the client learnt it where nothing was compared.
    fn version(&self, text: &str, current: Option<&str>) -> String {
        if text.is_empty() || text == "0" || text == "1" {
            return text.to_owned();
        }
        self.texts
            .get(&format!("version {text}"))
            .map(String::as_str)
            .or(current)
            .unwrap_or("999999999")
            .to_owned()
    }
}

fn user(name: &str) -> User {
    match name.strip_prefix("system:serviceaccount:").and_then(|rest| rest.split_once(':')) {
        Some((namespace, account)) => User::account(namespace, account),
        None if name == "system:anonymous" => User {
            name: name.to_owned(),
            groups: vec!["system:unauthenticated".to_owned()],
            ..User::default()
        },
        None => User { name: name.to_owned(), ..User::default() },
    }
}

/// What is compared of an answer: all but versions and heartbeats.
fn comparable(value: &Value) -> Value {
    let mut value = value.clone();
    strip(&mut value);
    value
}

fn strip(value: &mut Value) {
    match value {
        Value::Object(map) => {
            for field in ["resourceVersion", "lastHeartbeatTime", "renewTime", "acquireTime"] {
                map.remove(field);
            }
            map.values_mut().for_each(strip);
        }
        Value::Array(items) => items.iter_mut().for_each(strip),
        _ => {}
    }
}

struct Player {
    api: Api,
    known: Known,
    /// Both sides have the same names: what is real is translated before.
    names: Names,
    /// Objects about which an answer differed: what follows from it is not counted again.
    tainted: HashSet<String>,
}

impl Player {
    /// Sends a request; returns our answer, or the watch.
    fn send(&mut self, line: &Line, now: Timestamp) -> (u16, Value, Option<Watch>) {
        let answer: Value = serde_json::from_str(&line.answer).unwrap_or_default();
        let mut uri = self.known.text(line.uri());
        if line.is_watch()
            && let Some(version) =
                line.uri().split(['?', '&']).find_map(|part| part.strip_prefix("resourceVersion="))
        {
            let current = self.api.version().to_string();
            let ours = self.known.version(version, Some(&current));
            uri = uri.replace(&format!("resourceVersion={version}"), &format!("resourceVersion={ours}"));
        }
        if let Some(token) = line.uri().split(['?', '&']).find(|part| part.starts_with("continue="))
            && let Some(ours) = self.known.texts.get(token)
        {
            uri = uri.replace(token, ours);
        }
        let mut content = line.content.as_str();
        let mut body = line.body.clone();
        if !line.base64.is_empty() {
            let bytes = STANDARD.decode(&line.base64).unwrap_or_default();
            if let Some(object) = crate::from_protobuf(&bytes) {
                (body, content) = (object.to_string(), "application/json");
            }
        }
        let current = self.current(line).filter(|_| line.code < 300);
        if let Ok(mut value) = serde_json::from_str::<Value>(&self.known.text(&body)) {
            self.known.body(&mut value, current.as_deref());
            if line.method() == "POST" && value["metadata"]["generateName"].is_string() && line.code == 201 {
                value["metadata"]["name"] = answer["metadata"]["name"].clone();
            }
            body = value.to_string();
        }
        let sender = user(&line.user);
        let user = match self.api.acting_user(&sender, line.method(), &uri, &line.acting, now) {
            Ok(user) => user,
            Err(refusal) => return answered(refusal),
        };
        let request = Request {
            method: line.method(),
            uri: &uri,
            content_type: content,
            accept: &line.accept,
            user_agent: &line.agent,
            user: &user,
            body: body.as_bytes(),
        };
        answered(self.api.handle(&request, now))
    }

    /// The version of the object of a request.
    fn current(&mut self, line: &Line) -> Option<String> {
        let path = line.path().trim_end_matches("/status").trim_end_matches("/scale");
        let user = User::default();
        let request = Request {
            method: "GET",
            uri: path,
            content_type: "",
            accept: "application/json",
            user_agent: "",
            user: &user,
            body: b"",
        };
        let (_, value, _) = answered(self.api.handle(&request, Timestamp::UNIX_EPOCH));
        value["metadata"]["resourceVersion"].as_str().map(str::to_owned)
    }
}

fn answered(response: crate::Response) -> (u16, Value, Option<Watch>) {
    match response.body {
        Body::Text(text) => {
            let mut answer = serde_json::from_str(&text).unwrap_or(Value::String(text.into()));
            if !response.warnings.is_empty() && answer.is_object() {
                answer["WARNINGS"] = json!(response.warnings);
            }
            (response.code, answer, None)
        }
        Body::Bytes(_) => (response.code, Value::Null, None),
        Body::Watch(watch) => (response.code, Value::Null, Some(*watch)),
    }
}

/// What differs, by class, with the first ones.
#[derive(Debug, Default)]
struct Report(BTreeMap<String, (usize, Vec<String>)>);

impl Report {
    fn add(&mut self, class: String, found: &[String], about: impl FnOnce() -> String) {
        let class = self.0.entry(class).or_default();
        class.0 += 1;
        if class.1.len() < SHOWN {
            let found = found.iter().take(8).map(|text| text.chars().take(300).collect::<String>());
            let found: Vec<String> = found.collect();
            class.1.push(format!("{}\n        {}", about(), found.join("\n        ")));
        }
    }

    fn print(&self) {
        let mut sorted: Vec<_> = self.0.iter().collect();
        sorted.sort_by_key(|(_, (count, _))| std::cmp::Reverse(*count));
        for (name, (count, first)) in sorted {
            println!("{count:5} {name}\n      {}", first.join("\n      "));
        }
    }
}

/// How many differences of a class are shown.
const SHOWN: usize = 3;
/// After how many requests watches are read: the history has an end.
const READ: usize = 100;

/// A watch of a client, and what it has shown.
struct Open<'l> {
    line: &'l Line,
    watch: Watch,
    events: Vec<Value>,
}

impl Player {
    fn read(&mut self, watches: &mut [Open<'_>], now: Timestamp) {
        for open in watches {
            let events = self.api.events(&mut open.watch, now).unwrap_or_default();
            open.events.extend(events.iter().filter_map(|event| serde_json::from_str(event).ok()));
        }
    }

    /// The events of a watch by object, without bookmarks.
    fn by_object(&mut self, events: &[Value], is_real: bool) -> BTreeMap<String, Vec<Value>> {
        let mut all: BTreeMap<String, Vec<Value>> = BTreeMap::new();
        for event in events.iter().filter(|event| event["type"] != "BOOKMARK") {
            let meta = &event["object"]["metadata"];
            let text = |field: &str| meta[field].as_str().unwrap_or_default().to_owned();
            let mut shown = comparable(event);
            if is_real {
                shown = self.known.value(&shown);
            }
            let shown = self.names.map(&shown);
            all.entry(format!("{}/{}", text("namespace"), text("name"))).or_default().push(shown);
        }
        all
    }

    /// Compares what the real server has sent with the beginning of what this one sends.
    fn compare(&mut self, open: &Open<'_>, real: &str, report: &mut Report) -> (usize, usize) {
        let real: Vec<Value> = real.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        let (wanted, got) = (self.by_object(&real, true), self.by_object(&open.events, false));
        let (mut count, mut equal) = (0, 0);
        for (name, wanted) in wanted {
            let got = got.get(&name).map(Vec::as_slice).unwrap_or_default();
            for (at, wanted) in wanted.iter().enumerate() {
                count += 1;
                let mut found = Vec::new();
                differences(wanted, got.get(at).unwrap_or(&Value::Null), "", &mut found);
                if let Some(first) = found.first() {
                    let path = if got.get(at).is_none() { "no event".to_owned() } else { place(first) };
                    let about = || format!("#{} {} {name} event {at}", open.line.number, open.line.to);
                    report.add(format!("{}: {path}", open.line.what()), &found, about);
                    break;
                }
                equal += 1;
            }
        }
        (count, equal)
    }
}

/// Plays the file that `OPERETTA_EMBEDDED_RECORD` names.
#[test]
#[ignore = "needs a record of a real server"]
fn a_record_is_answered_equally() {
    let file = std::env::var("OPERETTA_EMBEDDED_RECORD").expect("OPERETTA_EMBEDDED_RECORD names a file");
    let (lines, events) = ordered(&fs::read_to_string(file).unwrap());
    let begin = Timestamp::from_microsecond(lines.first().map_or(0, |line| line.start)).unwrap();
    let mut player = Player {
        api: Api::bare(begin),
        known: Known::default(),
        names: Names::default(),
        tainted: HashSet::new(),
    };
    let (mut count, mut equal, mut follows, mut of_controllers) = (0, 0, 0, 0);
    let mut report = Report::default();
    let mut other: BTreeMap<String, usize> = BTreeMap::new();
    let mut watches: Vec<Open<'_>> = Vec::new();
    let mut now = begin;
    for line in &lines {
        if !line.is_about_objects() || line.is_watch() && line.is_of_controller() {
            *other.entry(line.what()).or_default() += 1;
            continue;
        }
        now = Timestamp::from_microsecond(line.end).unwrap().max(now);
        count += 1;
        of_controllers += usize::from(line.is_of_controller());
        let (code, mut got, watch) = player.send(line, now);
        if line.writes() && line.path().contains("customresourcedefinitions") {
            while crate::controllers::crds::tick(
                &mut player.api.state,
                &operetta_kube_model::facts::time(now),
            ) {}
        }
        let mut wanted = line.answered();
        if let Some(watch) = watch.filter(|_| line.code == 200) {
            (wanted, got) = (Value::Null, Value::Null);
            if !line.accept.contains("as=Table") {
                watches.push(Open { line, watch, events: Vec::new() });
            }
        }
        if count % READ == 0 {
            player.read(&mut watches, now);
        }
        player.known.learn(&wanted, &got);
        let mut found = Vec::new();
        if line.code != code {
            found.push(format!("code: wanted {}, got {code} {}", line.code, got["message"]));
        }
        let here = player.names.map(&player.known.value(&comparable(&wanted)));
        differences(&here, &player.names.map(&comparable(&got)), "", &mut found);
        let Some(first) = found.first() else {
            equal += 1;
            continue;
        };
        // A difference of an object is seen again in every answer about it.
        if !player.tainted.insert(line.object(&wanted)) && line.code == code {
            follows += 1;
            continue;
        }
        let class = if line.code == code { place(first) } else { format!("code {} -> {code}", line.code) };
        report.add(format!("{}: {class}", line.what()), &found, || {
            let body: String = line.body.chars().take(300).collect();
            format!("#{} {} [{} {}] {body}", line.number, line.to, line.user, line.content)
        });
    }
    player.read(&mut watches, now);
    let (mut shown, mut shown_equal) = (0, 0);
    for open in &watches {
        let real = events.get(&open.line.number).map(String::as_str).unwrap_or_default();
        let (count, equal) = player.compare(open, real, &mut report);
        shown += count;
        shown_equal += equal;
    }
    report.print();
    println!("not compared: {other:?}");
    println!(
        "{count} requests ({of_controllers} of controllers): {equal} equal, {follows} follow from a difference; \
         {} watches: {shown_equal} of {shown} events equal; {} classes",
        watches.len(),
        report.0.len()
    );
}

static INDEX: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"\[[0-9]+\]").unwrap());

/// Where a difference is, without numbers.
fn place(difference: &str) -> String {
    let path = difference.split(": ").next().unwrap_or_default();
    INDEX.replace_all(path, "[]").chars().take(120).collect()
}
