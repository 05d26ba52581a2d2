//! `kubectl delete`.

use std::fmt::Write as _;
use std::time::Duration;

use http::Request;
use serde_json::{Value, json};

use super::super::ext::uid_of;
use super::arguments::Arguments;
use super::resources::{Target, targets};
use super::session::{Session, is_missing, refusal};
use super::{Outcome, outcome, within};

pub(super) async fn delete(session: &Session<'_>, args: &Arguments<'_>) -> Outcome {
    args.only(&[
        "all",
        "all-namespaces",
        "cascade",
        "field-selector",
        "force",
        "grace-period",
        "ignore-not-found",
        "now",
        "selector",
        "timeout",
        "wait",
    ])?;
    let timeout = args.timeout(Duration::ZERO)?;
    let policy = match args.flag("cascade").unwrap_or("background") {
        "background" | "true" => "Background",
        "foreground" => "Foreground",
        "orphan" | "false" => "Orphan",
        _ => return None,
    };
    let mut options = json!({"propagationPolicy": policy});
    let grace = args.flag("grace-period").or(args.is("now").then_some("1"));
    if let Some(seconds) = grace.or(args.is("force").then_some("0")) {
        options["gracePeriodSeconds"] = seconds.parse::<i64>().ok()?.into();
    }
    let targets = match targets(session, args, &args.words[1..]).await {
        Ok(targets) => targets,
        Err(error) => return Some(Err(error)),
    };
    let (mut output, mut deleted, mut errors) = (String::new(), Vec::new(), Vec::new());
    for target in targets {
        match session.send(Request::delete(target.path(None)), "json", &options).await {
            Ok(answer) => {
                let _ = writeln!(output, "{} \"{}\" deleted", target.resource.singular, target.name);
                // The answer is the object, or a Status that names it.
                let uid = answer["details"]["uid"].as_str().unwrap_or_else(|| uid_of(&answer)).to_owned();
                deleted.push((target, uid));
            }
            Err(error) if is_missing(&error) && args.is("ignore-not-found") => {}
            Err(error) => errors.push(refusal("", &error)),
        }
    }
    if args.flag("wait") != Some("false") {
        for (target, uid) in &deleted {
            if let Err(error) = gone(session, target, uid, timeout).await {
                errors.push(error);
            }
        }
    }
    Some(outcome(output, &errors))
}

/// Waits until an object is gone, or another one has its name.
async fn gone(session: &Session<'_>, target: &Target, uid: &str, timeout: Duration) -> Result<(), String> {
    let what = format!("{} to be gone", target.shown());
    within(timeout, &what, async || match session.get(&target.path(None)).await {
        Err(error) if is_missing(&error) => Ok(()),
        Err(error) => Err(Value::from(refusal("", &error))),
        Ok(object) if uid_of(&object) != uid => Ok(()),
        Ok(mut object) => {
            object["metadata"]["managedFields"].take();
            Err(object)
        }
    })
    .await
}
