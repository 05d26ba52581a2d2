//! The JSON Schemas of `operator.yaml` and the files of `tests/` for editors, generated from the types of the formats.

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value};

use super::image::Image;
use super::manifest::Manifest;
use super::test_file::PackageTest;
use super::world::World;

/// A file of a package that has a schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SchemaOf {
    /// `operator.yaml`.
    Operator,
    /// `tests/world.yaml`.
    World,
    /// The files of cases in `tests/`.
    Test,
    /// The files of `tests/images/`.
    Image,
}

impl SchemaOf {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Operator, Self::World, Self::Test, Self::Image];

    /// The name of the schema: it is in `schemas/NAME.schema.json`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Operator => "operator",
            Self::World => "world",
            Self::Test => "test",
            Self::Image => "image",
        }
    }

    /// The JSON Schema (draft 2020-12).
    pub fn schema(self) -> Value {
        match self {
            Self::Operator => of::<Manifest>(self, "operator.yaml of an Operetta package"),
            Self::World => of::<World>(self, "tests/world.yaml of an Operetta package"),
            Self::Test => of::<PackageTest>(self, "tests/*.yaml of an Operetta package"),
            Self::Image => of::<Image>(self, "tests/images/*.yaml of an Operetta package"),
        }
    }

    /// The text of the schema's file.
    pub fn text(self) -> String {
        format!("{:#}\n", self.schema())
    }
}

fn of<T: JsonSchema>(file: SchemaOf, title: &str) -> Value {
    let generator = SchemaSettings::draft2020_12().into_generator();
    let mut schema = generator.into_root_schema_for::<T>().to_value();
    tidy(&mut schema);
    if let Value::Object(schema) = &mut schema {
        schema.insert(
            "$id".to_owned(),
            format!("https://operetta.dev/schemas/{}.schema.json", file.name()).into(),
        );
        schema.insert("title".to_owned(), title.into());
    }
    schema
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
    fn schema_files_are_up_to_date() {
        for file in SchemaOf::ALL {
            let name = file.name();
            let path = format!("{}/../../schemas/{name}.schema.json", env!("CARGO_MANIFEST_DIR"));
            assert!(
                std::fs::read_to_string(path).unwrap_or_default() == file.text(),
                "it is out of date: cargo run -q -- schema {name} > schemas/{name}.schema.json"
            );
        }
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
        for file in SchemaOf::ALL {
            walk("", &file.schema(), &mut bare);
        }
        assert_eq!(bare, Vec::<String>::new());
    }

    #[test]
    fn no_type_is_nullable() {
        for file in SchemaOf::ALL {
            assert!(!file.schema().to_string().contains("\"null\""));
        }
    }
}
