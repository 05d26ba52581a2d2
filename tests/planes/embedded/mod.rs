//! The fixtures of the embedded API against a real server, and generated sequences against both.

mod generate;
#[path = "../../support/embedded.rs"]
mod names;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::support::{ControlPlane, LONG, eventually, options};
use http::Request;
use http_body_util::BodyExt;
use jiff::{SignedDuration, Timestamp};
use operetta::local::{Component, Options};
use operetta_embedded::{Api, Body, User};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use names::Names;

/// How long a watch is read after the last event that is expected.
const WATCH: Duration = Duration::from_millis(700);

/// The number of generated sequences, and of steps in each.
const SEQUENCES: (u64, usize) = (20, 150);

/// The user agent: its name is the manager of fields.
const AGENT: &str = "tester/1.0";

/// A control plane without nodes. Its controllers are stopped: they would change what is compared.
async fn plane() -> ControlPlane {
    let plane = ControlPlane::start(Options { nodes: 0, ..options() }).await.unwrap();
    plane.kill(Component::ControllerManager).await.unwrap();
    // Claims without a class get that of the local control plane, and the embedded API has none.
    delete_all(&client(&plane).await, "/apis/storage.k8s.io/v1/storageclasses").await;
    plane
}

/// Deletes all objects of a kind without a namespace.
async fn delete_all(client: &kube::Client, path: &str) {
    let request = Request::delete(path).body(Vec::new()).unwrap();
    client.request::<Value>(request).await.unwrap();
}

/// A client that names itself only as [`AGENT`].
async fn client(plane: &ControlPlane) -> kube::Client {
    let file = kube::config::Kubeconfig::read_from(plane.kubeconfig_path()).unwrap();
    let options = kube::config::KubeConfigOptions::default();
    let mut config = kube::Config::from_custom_kubeconfig(file, &options).await.unwrap();
    config.proxy_url = None;
    kube::Client::try_from(config).unwrap()
}

/// With `OPERETTA_UPDATE=1` it writes the answers instead of comparing them.
#[tokio::test]
#[ignore = "takes minutes; run it for another version of Kubernetes"]
async fn fixtures_are_answers_of_the_real_server() {
    let plane = plane().await;
    let client = client(&plane).await;
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/embedded/fixtures");
    let mut files: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let update = std::env::var_os("OPERETTA_UPDATE").is_some();
    let mut wrong = String::new();
    for file in files {
        let name = file.file_stem().unwrap().to_string_lossy().into_owned();
        if name.ends_with("garbage") {
            plane.restart(Component::ControllerManager).await.unwrap();
        }
        // Each file begins with an API without nodes; namespaces have other names in each.
        delete_all(&client, "/api/v1/nodes").await;
        let (mut theirs, mut stored, mut known) = (Names::default(), Names::default(), BTreeMap::new());
        let mut out = String::new();
        // Until then, reads are repeated that have not the expected answer.
        let mut until = Instant::now();
        for line in fs::read_to_string(&file).unwrap().lines().filter(|line| !line.is_empty()) {
            let mut step: Value = serde_json::from_str(line).unwrap();
            if step["do"] == "tick" {
                let seconds = step["wait"].as_f64().unwrap_or(2.0);
                tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
                until = Instant::now() + LONG;
            } else {
                // What is not compared gives no names: the embedded API may answer otherwise.
                let is_ignored = step["ignore"] == true;
                let events = step["answer"].as_array().filter(|_| !update && !is_ignored).map_or(0, Vec::len);
                let is_read = step["do"].as_str().is_some_and(|to| to.starts_with("GET "));
                let (code, answer) = loop {
                    let (code, answer) = real(&client, line, &step, &known, events).await;
                    if update || is_ignored || !is_read || Instant::now() >= until {
                        break (code, answer);
                    }
                    let mut found = Vec::new();
                    let (stored, theirs) = (stored.clone().map(&step["answer"]), theirs.clone().map(&answer));
                    names::differences(&stored, &theirs, "", &mut found);
                    if step["code"] == code && found.is_empty() {
                        break (code, answer);
                    }
                    tokio::time::sleep(WATCH).await;
                };
                let mapped = if is_ignored { theirs.clone().map(&answer) } else { theirs.map(&answer) };
                if let Some(name) = step["as"].as_str() {
                    known.insert(name.to_owned(), answer);
                }
                let mut found = Vec::new();
                if step["code"] != code {
                    found.push(format!("code: stored {}, the server says {code}", step["code"]));
                }
                names::differences(&stored.map(&step["answer"]), &mapped, "", &mut found);
                if !found.is_empty() && !is_ignored {
                    let _ = writeln!(wrong, "{name} {}\n    {}", step["do"], found.join("\n    "));
                }
                step["code"] = code.into();
                step["answer"] = mapped;
            }
            let _ = writeln!(out, "{}", with_body(&step, line));
        }
        if update {
            fs::write(&file, out).unwrap();
        }
    }
    plane.stop().await;
    assert!(update || wrong.is_empty(), "{wrong}");
}

/// A step as a line; the body keeps the order of its keys, which some answers depend on.
fn with_body(step: &Value, line: &str) -> String {
    let raw: BTreeMap<String, &RawValue> = serde_json::from_str(line).unwrap();
    let mut fields: Vec<String> = Vec::new();
    for key in ["do", "type", "accept", "user", "as", "ignore", "wait", "body", "code", "answer"] {
        let value = match (key, raw.get(key)) {
            ("body", Some(body)) => body.get().to_owned(),
            _ if step[key].is_null() => continue,
            _ => step[key].to_string(),
        };
        fields.push(format!("{key:?}:{value}"));
    }
    format!("{{{}}}", fields.join(","))
}

/// The method and path of a step, and its body.
fn request(line: &str, step: &Value, known: &BTreeMap<String, Value>) -> (String, String, String) {
    let raw: BTreeMap<String, &RawValue> = serde_json::from_str(line).unwrap();
    let body = match &step["body"] {
        Value::String(text) => text.clone(),
        _ => raw.get("body").map(|body| body.get().to_owned()).unwrap_or_default(),
    };
    let to = names::filled(step["do"].as_str().unwrap(), known);
    let (method, uri) = to.split_once(' ').unwrap();
    (method.to_owned(), uri.to_owned(), names::filled(&body, known))
}

/// The answer of the real server. A watch is read until it has had this many events.
async fn real(
    client: &kube::Client,
    line: &str,
    step: &Value,
    known: &BTreeMap<String, Value>,
    events: usize,
) -> (u16, Value) {
    let (method, uri, body) = request(line, step, known);
    let request = Request::builder()
        .method(&*method)
        .uri(&uri)
        .header("content-type", step["type"].as_str().unwrap_or("application/json"))
        .header("accept", step["accept"].as_str().unwrap_or("application/json"))
        .header("user-agent", AGENT);
    let request = names::headers(step)
        .into_iter()
        .fold(request, |request, (name, value)| request.header(name, value))
        .body(kube::client::Body::from(body.into_bytes()))
        .unwrap();
    let response = client.send(request).await.unwrap();
    let (parts, mut body) = response.into_parts();
    let code = parts.status.as_u16();
    if uri.contains("watch=1") && code == 200 {
        let mut text = Vec::new();
        loop {
            let seen = text.split(|byte| *byte == b'\n').count() - 1;
            let patience = if seen < events { LONG } else { WATCH };
            let Ok(Some(Ok(frame))) = tokio::time::timeout(patience, body.frame()).await else { break };
            text.extend_from_slice(frame.data_ref().map(AsRef::as_ref).unwrap_or_default());
        }
        let text = String::from_utf8(text).unwrap();
        let events = text.lines().filter(|line| !line.is_empty());
        return (code, events.map(|line| serde_json::from_str(line).unwrap()).collect::<Vec<Value>>().into());
    }
    let text = body.collect().await.unwrap().to_bytes();
    let text = String::from_utf8(text.to_vec()).unwrap();
    let mut answer = serde_json::from_str(&text).unwrap_or(Value::String(text));
    let warnings: Vec<String> = parts
        .headers
        .get_all("warning")
        .iter()
        .map(|header| {
            let text = header.to_str().unwrap().trim_start_matches("299 - \"");
            text.strip_suffix('"').unwrap_or(text).replace("\\\"", "\"")
        })
        .collect();
    if !warnings.is_empty() && answer.is_object() {
        answer["WARNINGS"] = json!(warnings);
    }
    (code, answer)
}

/// The answer of the embedded API.
fn embedded(api: &mut Api, line: &str, step: &Value, now: Timestamp) -> (u16, Value) {
    let (method, uri, body) = request(line, step, &BTreeMap::new());
    let response = api.handle(
        &operetta_embedded::Request {
            method: &method,
            uri: &uri,
            content_type: step["type"].as_str().unwrap_or("application/json"),
            accept: "application/json",
            user_agent: AGENT,
            user: &User::default(),
            body: body.as_bytes(),
        },
        now,
    );
    let Body::Text(text) = response.body else { panic!("no sequence watches") };
    let mut answer: Value = serde_json::from_str(&text).unwrap_or(Value::String(text.into()));
    if !response.warnings.is_empty() && answer.is_object() {
        answer["WARNINGS"] = json!(response.warnings);
    }
    (response.code, answer)
}

/// Applies by three managers, edits, deletions, finalizers and invalid objects, over a CRD and built-in kinds.
#[tokio::test]
#[ignore = "takes minutes"]
async fn generated_sequences_get_the_same_answers() {
    let plane = plane().await;
    let client = client(&plane).await;
    let crd = json!({"do": "POST /apis/apiextensions.k8s.io/v1/customresourcedefinitions", "body": generate::crd()});
    real(&client, &crd.to_string(), &crd, &BTreeMap::new(), 0).await;
    eventually("the kind to be served", LONG, async || {
        let list = Request::get("/apis/example.com/v1/things").body(Vec::new()).unwrap();
        client.request::<Value>(list).await
    })
    .await;
    let mut wrong = String::new();
    let mut count = 0;
    for seed in 1..=SEQUENCES.0 {
        let mut now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let mut api = Api::bare(now);
        embedded(&mut api, &crd.to_string(), &crd, now);
        while api.tick(now) {}
        let (mut ours, mut theirs) = (Names::default(), Names::default());
        for (number, step) in generate::sequence(seed, SEQUENCES.1).into_iter().enumerate() {
            now += SignedDuration::from_secs(1);
            let line = step.to_string();
            let (wanted_code, wanted) = real(&client, &line, &step, &BTreeMap::new(), 0).await;
            let (code, got) = embedded(&mut api, &line, &step, now);
            let mut found = Vec::new();
            if wanted_code != code {
                found.push(format!("code: wanted {wanted_code}, got {code}"));
            }
            names::differences(&theirs.map(&wanted), &ours.map(&got), "", &mut found);
            count += 1;
            if !found.is_empty() {
                // What follows differs for this reason.
                let _ = writeln!(wrong, "seed {seed} step {number}: {line}\n    {}", found.join("\n    "));
                break;
            }
        }
    }
    plane.stop().await;
    assert!(wrong.is_empty(), "after {count} equal answers:\n{wrong}");
    println!("{count} answers are equal");
}
