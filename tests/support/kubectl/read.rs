//! Commands that only read.

use std::fmt::Write as _;
use std::time::Duration;

use serde_json::Value;

use super::super::ext::name_of;
use super::arguments::Arguments;
use super::output::{self, Output};
use super::resources::{list, resources, targets};
use super::session::{Session, is_missing, refusal};
use super::{Outcome, outcome, within};

/// Categories, which only kubectl itself takes apart.
const CATEGORIES: [&str; 2] = ["all", "operetta"];

/// `kubectl get`.
pub(super) async fn get(session: &Session<'_>, args: &Arguments<'_>) -> Outcome {
    args.only(&[
        "all-namespaces",
        "field-selector",
        "ignore-not-found",
        "output",
        "selector",
        "show-managed-fields",
    ])?;
    let output = Output::of(args)?;
    let words =
        args.words.get(1..).filter(|words| words.first().is_some_and(|word| !CATEGORIES.contains(word)))?;
    if output == Output::Text {
        let [names] = words else { return None };
        return Some(table(session, names).await).filter(|_| !names.contains(['/', ',']));
    }
    Some(if words.len() == 1 && !words[0].contains('/') {
        all(session, args, &output, words[0]).await
    } else {
        named(session, args, &output, words).await
    })
}

async fn all(
    session: &Session<'_>,
    args: &Arguments<'_>,
    output: &Output,
    names: &str,
) -> Result<String, String> {
    let (mut lines, mut items) = (String::new(), Vec::new());
    for resource in resources(session, names).await? {
        for object in list(session, args, &resource).await? {
            let _ = writeln!(lines, "{}/{}", resource.singular, name_of(&object));
            items.push(object);
        }
    }
    Ok(if *output == Output::Name { lines } else { output.print(output::list(&items), args) })
}

/// The table of all objects of a kind, without the columns of `-o wide`.
async fn table(session: &Session<'_>, name: &str) -> Result<String, String> {
    let mut lines = String::new();
    for resource in resources(session, name).await? {
        let form = "application/json;as=Table;v=v1;g=meta.k8s.io";
        let table = session
            .get_as(&resource.collection(Some(session.home())), form)
            .await
            .map_err(|e| refusal("", &e))?;
        let columns = table["columnDefinitions"].as_array().map(Vec::as_slice).unwrap_or_default();
        let is_shown = |column: &usize| columns[*column]["priority"] == 0;
        let shown: Vec<usize> = (0..columns.len()).filter(is_shown).collect();
        let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let heads =
            shown.iter().map(|column| text(&columns[*column]["name"]).to_uppercase().replace(' ', "-"));
        lines += &(heads.collect::<Vec<_>>().join("   ") + "\n");
        for row in table["rows"].as_array().into_iter().flatten() {
            let cells = shown.iter().map(|column| text(&row["cells"][*column]));
            lines += &(cells.collect::<Vec<_>>().join("   ") + "\n");
        }
    }
    Ok(lines)
}

async fn named(
    session: &Session<'_>,
    args: &Arguments<'_>,
    output: &Output,
    words: &[&str],
) -> Result<String, String> {
    let targets = targets(session, args, words).await?;
    let (mut lines, mut items, mut errors) = (String::new(), Vec::new(), Vec::new());
    for target in &targets {
        match session.get(&target.path(None)).await {
            Ok(object) => {
                let _ = writeln!(lines, "{}", target.shown());
                items.push(object);
            }
            Err(error) if is_missing(&error) && args.is("ignore-not-found") => {}
            Err(error) => errors.push(refusal("", &error)),
        }
    }
    let printed = match (output, targets.len()) {
        (Output::Name, _) => lines,
        (output, 1) => items.pop().map(|object| output.print(object, args)).unwrap_or_default(),
        (output, _) => output.print(output::list(&items), args),
    };
    outcome(printed, &errors)
}

/// `kubectl wait` for a condition or for the end of an object.
pub(super) async fn wait(session: &Session<'_>, args: &Arguments<'_>) -> Outcome {
    args.only(&["all", "all-namespaces", "for", "selector", "timeout"])?;
    // The default of kubectl.
    let timeout = args.timeout(Duration::from_secs(30))?;
    let wanted = args.flag("for")?;
    let condition = if wanted == "delete" { None } else { Some(wanted.strip_prefix("condition=")?) };
    Some(wait_for(session, args, condition, timeout).await)
}

/// Waits for a condition of objects, or for their end.
async fn wait_for(
    session: &Session<'_>,
    args: &Arguments<'_>,
    condition: Option<&str>,
    timeout: Duration,
) -> Result<String, String> {
    let (name, value) = condition.map(|c| c.split_once('=').unwrap_or((c, "true"))).unwrap_or_default();
    let mut output = String::new();
    for target in targets(session, args, &args.words[1..]).await? {
        let what = format!("the condition on {}", target.shown());
        let is_met = async || match (session.get(&target.path(None)).await, condition) {
            (Ok(object), Some(_)) if is_true(&object, name, value) => Ok(Ok("condition met")),
            (Ok(object), _) => Err(object),
            (Err(error), None) if is_missing(&error) => Ok(Ok("deleted")),
            // kubectl does not wait for an object to be created.
            (Err(error), _) => Ok(Err(refusal("", &error))),
        };
        let done = within(timeout, &what, is_met).await??;
        let _ = writeln!(output, "{} {done}", target.shown());
    }
    Ok(output)
}

/// Whether an object has a condition with this value that is not of an older generation.
fn is_true(object: &Value, name: &str, value: &str) -> bool {
    let is = |field: &Value, text: &str| field.as_str().is_some_and(|field| field.eq_ignore_ascii_case(text));
    let mut conditions = object["status"]["conditions"].as_array().into_iter().flatten();
    let found = conditions.find(|condition| is(&condition["type"], name));
    found.is_some_and(|condition| {
        let observed =
            condition["observedGeneration"].as_i64().or(object["status"]["observedGeneration"].as_i64());
        let generation = object["metadata"]["generation"].as_i64();
        is(&condition["status"], value) && observed.is_none_or(|observed| Some(observed) >= generation)
    })
}

#[test]
fn conditions_of_older_generations_do_not_count() {
    let object = |generation: i64| {
        serde_json::json!({"metadata": {"generation": generation},
            "status": {"observedGeneration": 2, "conditions": [{"type": "Established", "status": "True"}]}})
    };
    assert!(is_true(&object(2), "established", "true"));
    assert!(!is_true(&object(2), "established", "false"));
    assert!(!is_true(&object(2), "Ready", "true"));
    assert!(!is_true(&object(3), "Established", "true"));
}
