//! The JSON Schemas of `operator.yaml` and `tests/world.yaml` for editors, generated from the types of the formats.

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value};

use super::manifest::Manifest;
use super::world::World;

/// The JSON Schema (draft 2020-12) of `operator.yaml`.
pub fn operator() -> Value {
    of::<Manifest>("operator", "operator.yaml of an Operetta package")
}

/// The JSON Schema of `tests/world.yaml`.
pub fn world() -> Value {
    of::<World>("world", "tests/world.yaml of an Operetta package")
}

fn of<T: JsonSchema>(name: &str, title: &str) -> Value {
    let generator = SchemaSettings::draft2020_12().into_generator();
    let mut schema = generator.into_root_schema_for::<T>().to_value();
    tidy(&mut schema);
    if let Value::Object(schema) = &mut schema {
        schema.insert("$id".to_owned(), format!("https://operetta.dev/schemas/{name}.schema.json").into());
        schema.insert("title".to_owned(), title.into());
    }
    schema
}

/// The text of `schemas/operator.schema.json`, from [`operator()`].
pub fn operator_text() -> String {
    format!("{:#}\n", operator())
}

/// Removes null from every type, and joins the lines of descriptions. In schemars an optional value may be
/// null; in this format it is an optional key, and `key:` without a value is an error.
fn tidy(schema: &mut Value) {
    match schema {
        Value::Object(map) => {
            if let Some(Value::String(description)) = map.get_mut("description") {
                *description = description
                    .split("\n\n")
                    .map(|part| part.replace('\n', " "))
                    .collect::<Vec<_>>()
                    .join("\n\n");
            }
            if let Some(Value::Array(types)) = map.get_mut("type") {
                types.retain(|name| name != "null");
                if let [only] = types.as_slice() {
                    let only = only.clone();
                    map.insert("type".to_owned(), only);
                }
            }
            if let Some(Value::Array(options)) = map.get_mut("anyOf") {
                options.retain(|option| option.get("type") != Some(&Value::from("null")));
                if let [Value::Object(only)] = options.as_mut_slice() {
                    let only: Map<_, _> = std::mem::take(only);
                    map.remove("anyOf");
                    for (key, value) in only {
                        map.entry(key).or_insert(value);
                    }
                }
            }
            map.values_mut().for_each(tidy);
        }
        Value::Array(items) => items.iter_mut().for_each(tidy),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schema_file_is_up_to_date() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../schemas/operator.schema.json");
        let written = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            written == operator_text(),
            "schemas/operator.schema.json is out of date: cargo run -q -- schema > schemas/operator.schema.json"
        );
    }

    #[test]
    fn every_key_has_a_description() {
        fn walk(path: &str, schema: &Value, bare: &mut Vec<String>) {
            for (key, value) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
                let path = format!("{path}.{key}");
                if value.get("description").is_none() {
                    bare.push(path.clone());
                }
                walk(&path, value, bare);
            }
            for (key, value) in schema.get("$defs").and_then(Value::as_object).into_iter().flatten() {
                walk(key, value, bare);
            }
        }
        let mut bare = Vec::new();
        walk("", &operator(), &mut bare);
        walk("", &world(), &mut bare);
        assert_eq!(bare, Vec::<String>::new());
    }

    #[test]
    fn no_type_is_nullable() {
        assert!(!operator().to_string().contains("\"null\"") && !world().to_string().contains("\"null\""));
    }
}
