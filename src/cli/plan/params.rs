//! The parameters of a requested run. No I/O.

use serde_json::{Map, Value, json};

use crate::children::crds::PublishedPlan;
use crate::crd;
use crate::yaml;

/// The parameters of `--params` and `--param KEY=VALUE`, with the types of the plan's schema; null if there are none. Without
/// the plan, they have the types of YAML.
///
/// # Errors
///
/// For people: what is wrong with which parameter.
pub(super) fn params(
    plan: Option<&PublishedPlan>,
    file: Option<Value>,
    pairs: &[String],
) -> Result<Value, String> {
    let mut params = match file {
        None | Some(Value::Null) => Map::new(),
        Some(Value::Object(map)) => map,
        Some(_) => return Err("--params: the file has no map of parameters".into()),
    };
    for pair in pairs {
        let (key, text) = pair
            .split_once('=')
            .filter(|(key, _)| !key.is_empty())
            .ok_or_else(|| format!("--param {pair}: write KEY=VALUE"))?;
        let schema = plan.and_then(|plan| plan.params.as_ref()).map(|schema| &schema["properties"][key]);
        let value = match schema.and_then(|schema| schema["type"].as_str()) {
            Some("string") => Value::String(text.to_owned()),
            _ => yaml::from_str(text).map_err(|error| format!("--param {key}: {}", error.message))?,
        };
        params.insert(key.to_owned(), value);
    }
    let Some(plan) = plan else {
        return Ok(if params.is_empty() { Value::Null } else { Value::Object(params) });
    };
    let Some(schema) = &plan.params else {
        return match params.keys().next() {
            None => Ok(Value::Null),
            Some(key) => Err(format!("plan {} takes no parameters: {key}", plan.name)),
        };
    };
    let params = Value::Object(params);
    if let Some(problem) = crate::plan::too_large_params(&params) {
        return Err(format!("plan {}: {problem}", plan.name));
    }
    let problems: Vec<String> = crd::validate_part(schema, &params, "params")
        .iter()
        .map(|problem| format!("{}: {}", problem.path, problem.message))
        .collect();
    if !problems.is_empty() {
        let names: Vec<&str> =
            schema["properties"].as_object().into_iter().flatten().map(|(name, _)| name.as_str()).collect();
        let of = if names.is_empty() {
            String::new()
        } else {
            format!("\n  help: its parameters are {}", names.join(", "))
        };
        return Err(format!("plan {}: {}{of}", plan.name, problems.join("; ")));
    }
    Ok(if params == json!({}) { Value::Null } else { params })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(schema: Option<Value>, pairs: &[&str]) -> Result<Value, String> {
        let plan = PublishedPlan { name: "backup".into(), triggers: Vec::new(), params: schema };
        let pairs: Vec<String> = pairs.iter().map(|pair| (*pair).to_owned()).collect();
        params(Some(&plan), None, &pairs)
    }

    #[test]
    fn values_have_the_types_of_the_schema() {
        let schema = || {
            Some(json!({"type": "object", "required": ["to"], "properties": {
                "to": {"type": "string", "enum": ["2026", "b"]}, "count": {"type": "integer", "minimum": 1},
                "full": {"type": "boolean"}, "list": {"type": "array", "items": {"type": "string"}}}}))
        };
        assert_eq!(
            of(schema(), &["to=2026", "count=3", "full=true", "list=[a, b]"]).unwrap(),
            json!({"to": "2026", "count": 3, "full": true, "list": ["a", "b"]})
        );
        for (pairs, told) in [
            (&["count=3"][..], "to"),
            (&["to=c"], "params.to"),
            (&["to=b", "count=0"], "params.count"),
            (&["to=b", "other=1"], "other"),
            (&["to"], "KEY=VALUE"),
        ] {
            let error = of(schema(), pairs).unwrap_err();
            assert!(error.contains(told), "{pairs:?}: {error}");
        }
        let large = format!("list=[{}]", vec!["0"; 10_000].join(","));
        assert!(of(schema(), &["to=b", &large]).unwrap_err().contains("128 KiB"));
        assert_eq!(of(None, &[]).unwrap(), Value::Null);
        let pairs = ["count=3", "to=a"].map(str::to_owned);
        assert_eq!(params(None, None, &pairs).unwrap(), json!({"count": 3, "to": "a"}));
        assert!(of(None, &["a=1"]).unwrap_err().contains("takes no parameters"));
    }
}
