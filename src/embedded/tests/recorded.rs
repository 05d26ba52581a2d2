//! The requests of `fixtures/` are sent to the embedded API, and its answers must be those of a real server.

#[path = "../../../tests/support/embedded.rs"]
pub(crate) mod names;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::{Api, Body, Request, User};
use names::Names;

/// Every fixture in the order of its name.
fn fixtures() -> Vec<PathBuf> {
    let folder = std::env::var("OPERETTA_EMBEDDED_FIXTURES")
        .map_or_else(|_| Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures"), PathBuf::from);
    let mut files: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

#[test]
fn answers_are_those_of_a_real_server() {
    let only = std::env::var("OPERETTA_TEST_ONLY").unwrap_or_default();
    let mut differences = String::new();
    let (mut steps, mut wrong) = (0, 0);
    for file in fixtures().into_iter().filter(|file| file.to_string_lossy().contains(&only)) {
        let text = fs::read_to_string(&file).unwrap();
        let name = file.file_stem().unwrap().to_string_lossy().into_owned();
        let mut play = Play::new();
        for (line, step) in text.lines().enumerate().filter(|(_, line)| !line.is_empty()) {
            let raw: BTreeMap<String, &RawValue> = serde_json::from_str(step).unwrap();
            let body = raw.get("body").map(|body| body.get()).unwrap_or_default();
            let step: Value =
                serde_json::from_str(step).unwrap_or_else(|error| panic!("{name}:{}: {error}", line + 1));
            let found = play.step(&step, body);
            steps += 1;
            if !found.is_empty() {
                wrong += 1;
                let _ =
                    writeln!(differences, "{name}:{} {}", line + 1, step["do"].as_str().unwrap_or_default());
                for difference in found.iter().take(12) {
                    let _ = writeln!(differences, "    {difference}");
                }
            }
        }
    }
    assert!(differences.is_empty(), "{wrong} of {steps} answers differ:\n{differences}");
}

/// A sequence of requests to one API.
struct Play {
    api: Api,
    now: Timestamp,
    ours: Names,
    theirs: Names,
    /// Answers that later steps refer to.
    known: BTreeMap<String, Value>,
}

impl Play {
    fn new() -> Self {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let mut api = Api::bare(now);
        settle(&mut api, now);
        Self { api, now, ours: Names::default(), theirs: Names::default(), known: BTreeMap::new() }
    }

    /// Sends a request; returns how the answer differs from the recorded one.
    fn step(&mut self, step: &Value, body: &str) -> Vec<String> {
        self.now += jiff::SignedDuration::from_secs(1);
        if step["do"] == "tick" {
            settle(&mut self.api, self.now);
            return Vec::new();
        }
        let uri = names::filled(step["do"].as_str().unwrap_or_default(), &self.known);
        let body = if step["body"].is_string() { step["body"].as_str().unwrap_or_default() } else { body };
        let body = names::filled(body, &self.known);
        let (code, answer) = send(&mut self.api, step, &uri, &body, self.now);
        if let Some(name) = step["as"].as_str() {
            self.known.insert(name.to_owned(), answer.clone());
        }
        if step["ignore"] == true {
            return Vec::new();
        }
        let wanted = self.theirs.map(&step["answer"]);
        let got = self.ours.map(&answer);
        let mut found = Vec::new();
        if step["code"] != code {
            found.push(format!("code: wanted {}, got {code}", step["code"]));
        }
        names::differences(&wanted, &got, "", &mut found);
        found
    }
}

/// Lets the controllers work until nothing changes.
fn settle(api: &mut Api, now: Timestamp) {
    for _ in 0..100 {
        if !api.tick(now) {
            return;
        }
    }
    panic!("the controllers do not come to rest");
}

/// Sends the request of a step.
fn send(api: &mut Api, step: &Value, uri: &str, body: &str, now: Timestamp) -> (u16, Value) {
    let (method, uri) = uri.split_once(' ').unwrap();
    let user = match api.acting_user(&User::default(), method, uri, &names::headers(step), now) {
        Ok(user) => user,
        Err(response) => return (response.code, Value::Null),
    };
    let request = Request {
        method,
        uri,
        content_type: step["type"].as_str().unwrap_or("application/json"),
        accept: step["accept"].as_str().unwrap_or("application/json"),
        user_agent: "tester/1.0",
        user: &user,
        body: body.as_bytes(),
    };
    let response = api.handle(&request, now);
    let mut answer = match response.body {
        Body::Text(text) => serde_json::from_str(&text).unwrap_or(Value::String(text.into())),
        Body::Bytes(_) => Value::Null,
        Body::Watch(mut watch) => {
            let events = api.events(&mut watch, now).unwrap_or_default();
            events.iter().map(|event| serde_json::from_str(event).unwrap()).collect::<Vec<Value>>().into()
        }
    };
    if !response.warnings.is_empty() && answer.is_object() {
        answer["WARNINGS"] = json!(response.warnings);
    }
    (response.code, answer)
}
