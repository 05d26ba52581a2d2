//! Commands that change objects which exist.

use http::Request;
use serde_json::{Map, Value, json};

use super::arguments::{Arguments, documents};
use super::output::Output;
use super::resources::{Object, Target, objects, targets};
use super::session::{Answer, Session, encoded, refusal};
use super::{Outcome, outcome};

/// `kubectl annotate` and `kubectl label`: sets and removes entries of this `field` of the metadata.
pub(super) async fn mark(session: &Session<'_>, args: &Arguments<'_>, field: &str) -> Outcome {
    args.only(&["all", "all-namespaces", "field-manager", "output", "overwrite", "selector"])?;
    let output = Output::of(args)?;
    let is_entry = |word: &&str| word.contains('=') || word.ends_with('-');
    let words = &args.words[1..];
    let (words, entries) = words.split_at(words.iter().position(is_entry)?);
    let mut changes = Map::new();
    for entry in entries {
        let (key, value) = match entry.split_once('=') {
            Some((key, value)) => (key, Value::from(value)),
            None => (entry.strip_suffix('-')?, Value::Null),
        };
        changes.insert(key.to_owned(), value);
    }
    let (manager, done) = match field {
        "labels" => ("kubectl-label", "labeled"),
        _ => ("kubectl-annotate", "annotated"),
    };
    let manager = args.flag("field-manager").unwrap_or(manager);
    let change = async |target: &Target| -> Result<String, String> {
        let before = session.get(&target.path(None)).await.map_err(|error| refusal("", &error))?;
        let is_changed = |(key, value): (&String, &Value)| {
            let old = &before["metadata"][field][key];
            !value.is_null() && !old.is_null() && (old != value || field == "annotations")
        };
        if !args.is("overwrite") && changes.iter().any(is_changed) {
            let entries = &before["metadata"][field];
            return Err(format!(
                "error: --overwrite is false but found the following declared {field}: {entries}"
            ));
        }
        let patch = json!({"metadata": {field: changes}});
        let request = Request::patch(format!("{}?fieldManager={}", target.path(None), encoded(manager)));
        let after = session.send(request, "merge-patch+json", &patch).await;
        let after = after.map_err(|error| refusal("", &error))?;
        Ok(output.about(target, after, args, done))
    };
    Some(each(session, args, words, change).await)
}

/// `kubectl patch`.
pub(super) async fn patch(session: &Session<'_>, args: &Arguments<'_>) -> Outcome {
    args.only(&["field-manager", "output", "patch", "subresource", "type"])?;
    let output = Output::of(args)?;
    let kind = match args.flag("type").unwrap_or("strategic") {
        "strategic" => "strategic-merge-patch+json",
        "merge" => "merge-patch+json",
        "json" => "json-patch+json",
        _ => return None,
    };
    let patch = documents(args.flag("patch")?)?.pop()?;
    let manager = args.flag("field-manager").unwrap_or("kubectl-patch");
    let change = async |target: &Target| -> Result<String, String> {
        let path = target.path(args.flag("subresource"));
        let before = session.get(&path).await.map_err(|error| refusal("", &error))?;
        let request = Request::patch(format!("{path}?fieldManager={}", encoded(manager)));
        let after = session.send(request, kind, &patch).await.map_err(|error| refusal("", &error))?;
        let done = if before == after { "patched (no change)" } else { "patched" };
        Ok(output.about(target, after, args, done))
    };
    Some(each(session, args, &args.words[1..], change).await)
}

/// `kubectl scale`.
pub(super) async fn scale(session: &Session<'_>, args: &Arguments<'_>) -> Outcome {
    args.only(&["all", "output", "replicas", "selector"])?;
    let output = Output::of(args)?;
    let patch = json!({"spec": {"replicas": args.flag("replicas")?.parse::<i64>().ok()?}});
    let change = async |target: &Target| -> Result<String, String> {
        let request = Request::patch(format!("{}?fieldManager=kubectl", target.path(Some("scale"))));
        let after = session.send(request, "merge-patch+json", &patch).await;
        let after = after.map_err(|error| refusal("", &error))?;
        Ok(output.about(target, after, args, "scaled"))
    };
    Some(each(session, args, &args.words[1..], change).await)
}

/// Changes each object that the command names.
async fn each(
    session: &Session<'_>,
    args: &Arguments<'_>,
    words: &[&str],
    change: impl AsyncFn(&Target) -> Result<String, String>,
) -> Result<String, String> {
    let (mut output, mut errors) = (String::new(), Vec::new());
    for target in targets(session, args, words).await? {
        match change(&target).await {
            Ok(text) => output += &text,
            Err(error) => errors.push(error),
        }
    }
    outcome(output, &errors)
}

/// `kubectl replace`.
pub(super) async fn replace(session: &Session<'_>, args: &Arguments<'_>, input: &str) -> Outcome {
    args.only(&["field-manager", "filename", "output", "subresource", "validate"])?;
    let output = Output::of(args)?;
    let query = args.query("kubectl-replace")?;
    let (mut text, mut errors) = (String::new(), Vec::new());
    for object in objects(session, args.manifests(input)?).await {
        let Object { target, manifest } = match object {
            Ok(object) => object,
            Err(error) => {
                errors.push(error);
                continue;
            }
        };
        match put(session, &target.path(args.flag("subresource")), &query, manifest).await {
            Ok(after) => text += &output.about(&target, after, args, "replaced"),
            Err(error) => errors.push(refusal("error when replacing \"STDIN\": ", &error)),
        }
    }
    Some(outcome(text, &errors))
}

/// Replaces an object. A manifest without a version replaces any.
async fn put(session: &Session<'_>, path: &str, query: &str, mut manifest: Value) -> Answer {
    if manifest["metadata"]["resourceVersion"].is_null() {
        let mut current = session.get(path).await?;
        manifest["metadata"]["resourceVersion"] = current["metadata"]["resourceVersion"].take();
    }
    session.send(Request::put(format!("{path}?{query}")), "json", &manifest).await
}
