//! The facts of `--record`: `record` of expressions.

use std::path::Path;

use serde_json::{Map, Value};

use crate::diag::{Diagnostic, did_you_mean};
use crate::package::{Package, Resource};
use crate::yaml;

/// Adds the fact `KEY=VALUE`, or the facts of a file.
pub(super) fn add(
    package: &Package,
    text: &str,
    record: &mut Map<String, Value>,
) -> Result<(), Box<Diagnostic>> {
    let facts = match text.split_once('=') {
        Some((key, value)) if is_name(key) => {
            let value = yaml::from_str(value).map_err(|error| {
                wrong(format!("--record {key}: {}", error.message)).help("quote the value")
            })?;
            Map::from_iter([(key.to_owned(), value)])
        }
        _ => of_file(package, text)?,
    };
    for (key, value) in facts {
        known(package, &key)?;
        record.insert(key, value);
    }
    Ok(())
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '-'))
}

fn wrong(message: String) -> Diagnostic {
    Diagnostic::error("render::record", message)
}

/// The facts of a file: a map, or an `InstanceState`.
fn of_file(package: &Package, path: &str) -> Result<Map<String, Value>, Box<Diagnostic>> {
    let source = super::read(package, Path::new(path))?;
    let no_map = |message: &str| {
        let error = wrong(format!("--record {path}: {message}"));
        Box::new(error.help("write KEY=VALUE, or give a file with a map of facts, or with an InstanceState"))
    };
    let value: Value = yaml::from_str(&source.text)
        .map_err(|error| no_map(&format!("it is not YAML: {}", error.message)))?;
    let Value::Object(map) = value else { return Err(no_map("the file has no map of facts")) };
    if map.get("kind").and_then(Value::as_str) != Some("InstanceState") {
        return Ok(map);
    }
    let stored = map.get("spec").and_then(|spec| spec["record"].as_object());
    let facts = stored.into_iter().flatten().map(|(key, fact)| (key.clone(), fact["value"].clone()));
    Ok(facts.collect())
}

/// Refuses a fact that no plan records: it would change nothing.
fn known(package: &Package, key: &str) -> Result<(), Box<Diagnostic>> {
    let names: Vec<&str> = package.resources.iter().flat_map(Resource::recorded).collect();
    if names.contains(&key) {
        return Ok(());
    }
    let help = match did_you_mean(key, names.iter().copied()) {
        Some(near) => format!("did you mean `{near}`?"),
        None if names.is_empty() => "its plans record nothing: remove --record".to_owned(),
        None => format!("its plans record {}", names.join(", ")),
    };
    let message = format!("--record {key}: no plan of the package {} records it", package.name);
    Err(Box::new(wrong(message).help(help)))
}
