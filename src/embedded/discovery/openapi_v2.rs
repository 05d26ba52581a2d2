//! OpenAPI v2: what v3 says, in one document for all kinds; as JSON, or in Protobuf as client-go reads it. kubectl looks up in it
//! whether the server validates fields, and checks the objects of files with a `kind: List` by it.

use operetta_kube_model::facts::items;
use serde_json::{Map, Value, json};

/// The form in Protobuf. Clients ask for it with an `@`, which Go does not read in an answer.
pub(crate) const MEDIA: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";
/// The form in Protobuf as clients ask for it.
const ASKED: &str = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";

/// The forms of the document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    Json,
    Protobuf,
}

impl Form {
    /// The first known one of those that a client accepts.
    pub(crate) fn of(accept: &str) -> Option<Self> {
        accept.split(',').find_map(|part| match part.split(';').next().unwrap_or_default().trim() {
            MEDIA | ASKED => Some(Self::Protobuf),
            "" | "*/*" | "application/*" | "application/json" => Some(Self::Json),
            _ => None,
        })
    }
}

fn entries(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    value.as_object().into_iter().flatten()
}

/// The document of these schemas and paths of v3.
pub(crate) fn document(schemas: &Map<String, Value>, paths: &Map<String, Value>) -> Value {
    let definitions: Map<String, Value> =
        schemas.iter().map(|(name, of)| (name.clone(), schema(of))).collect();
    let paths: Map<String, Value> = paths
        .iter()
        .map(|(path, item)| {
            let operations = entries(item).map(|(method, of)| (method.clone(), operation(of)));
            (path.clone(), operations.collect::<Map<_, _>>().into())
        })
        .collect();
    json!({"swagger": "2.0", "info": {"title": "Kubernetes", "version": "v1.36.3"}, "paths": paths, "definitions": definitions})
}

fn operation(of: &Value) -> Value {
    let parameters = items(&of["parameters"]).iter().map(|parameter| {
        let kind = &parameter["schema"]["type"];
        json!({"name": parameter["name"], "in": parameter["in"], "type": kind, "uniqueItems": true})
    });
    let mut found = json!({"parameters": parameters.collect::<Vec<_>>(), "produces": ["application/json"]});
    for field in ["x-kubernetes-action", "x-kubernetes-group-version-kind"] {
        found[field] = of[field].clone();
    }
    for (code, response) in entries(&of["responses"]) {
        let schema = schema(&response["content"]["application/json"]["schema"]);
        found["responses"][code] = json!({"description": response["description"], "schema": schema});
    }
    let consumes: Vec<&String> = entries(&of["requestBody"]["content"]).map(|(media, _)| media).collect();
    if !consumes.is_empty() {
        found["consumes"] = json!(consumes);
    }
    found
}

/// The place of the definition that a schema of v3 refers to.
fn reference(of: &Value) -> Option<String> {
    let name = of["$ref"].as_str().or_else(|| of["allOf"][0]["$ref"].as_str())?;
    Some(format!("#/definitions/{}", name.strip_prefix("#/components/schemas/").unwrap_or(name)))
}

/// A schema of v3. Clients of v2 know neither alternatives nor null, and no fields of objects with unknown ones.
fn schema(of: &Value) -> Value {
    let Some(map) = of.as_object() else { return of.clone() };
    if let Some(own) = map.get(OWN) {
        return own.clone();
    }
    let mut found = Map::new();
    if let Some(reference) = reference(of) {
        let kept = map.iter().filter(|(key, _)| *key == "description" || key.starts_with("x-"));
        found.extend(kept.map(|(key, value)| (key.clone(), value.clone())));
        found.insert("$ref".to_owned(), reference.into());
        return found.into();
    }
    let is_nullable = of["nullable"] == true;
    let has_unknown = of["x-kubernetes-preserve-unknown-fields"] == true;
    let is_open = is_nullable || has_unknown;
    let is_array = of["type"] == "array";
    let has_no_type = is_nullable
        || (has_unknown && (is_array || of["type"] == "object"))
        || (is_array && !of["items"].is_object());
    for (key, value) in map {
        let value = match key.as_str() {
            "allOf" | "anyOf" | "oneOf" | "not" | "nullable" | "default" => continue,
            "properties" | "items" if is_open => continue,
            "type" if has_no_type => continue,
            "properties" => {
                let all = entries(value).map(|(name, value)| (name.clone(), schema(value)));
                all.collect::<Map<_, _>>().into()
            }
            "items" | "additionalProperties" => schema(value),
            "required" => {
                let is_null = |name: &Value| {
                    name.as_str().is_some_and(|name| of["properties"][name]["nullable"] == true)
                };
                let all: Vec<&Value> = items(value).iter().filter(|name| !is_null(name)).collect();
                json!(all)
            }
            _ => value.clone(),
        };
        found.insert(key.clone(), value);
    }
    found.into()
}

/// The field of a schema that holds the schema of v2, if it is another one.
pub(crate) const OWN: &str = "x-kubernetes-v2-schema";

/// A document in Protobuf: its definitions, and the patch of each kind.
pub(crate) fn protobuf(document: &Value) -> Vec<u8> {
    let patches = entries(&document["paths"]).filter_map(|(path, item)| Some((path, item.get("patch")?)));
    let paths = patches.fold(Message::default(), |paths, (path, patch)| {
        paths.with(2, named(path, Message::default().with(8, of_operation(patch))))
    });
    let definitions = entries(&document["definitions"])
        .fold(Message::default(), |all, (name, schema)| all.with(1, named(name, of_schema(schema))));
    let info = Message::default().with(1, "Kubernetes").with(2, "v1.36.3");
    Message::default().with(1, "2.0").with(2, info).with(8, paths).with(9, definitions).0
}

fn named(name: &str, value: Message) -> Message {
    Message::default().with(1, name).with(2, value)
}

/// `NamedAny`: the value is a text in YAML, and JSON is one.
fn extension(name: &str, value: &Value) -> Message {
    named(name, Message::default().with(2, value.to_string()))
}

fn of_operation(operation: &Value) -> Message {
    let mut message = Message::default();
    for media in items(&operation["consumes"]) {
        message = message.with(7, media.as_str().unwrap_or_default());
    }
    for parameter in items(&operation["parameters"]) {
        let text = |field: &str| parameter[field].as_str().unwrap_or_default();
        // `Parameter.non_body_parameter.query_parameter_sub_schema`.
        let query = Message::default().with(2, text("in")).with(4, text("name")).with(6, text("type"));
        message = message.with(
            8,
            Message::default().with(1, Message::default().with(2, Message::default().with(3, query))),
        );
    }
    let gvk = "x-kubernetes-group-version-kind";
    message.with(13, extension(gvk, &operation[gvk]))
}

fn of_schema(schema: &Value) -> Message {
    let mut message = Message::default();
    for (number, field) in [(1, "$ref"), (2, "format"), (4, "description")] {
        if let Some(text) = schema[field].as_str() {
            message = message.with(number, text);
        }
    }
    for name in items(&schema["required"]) {
        message = message.with(19, name.as_str().unwrap_or_default());
    }
    if schema["additionalProperties"].is_object() {
        message = message.with(21, Message::default().with(1, of_schema(&schema["additionalProperties"])));
    }
    if let Some(kind) = schema["type"].as_str() {
        message = message.with(22, Message::default().with(1, kind));
    }
    if schema["items"].is_object() {
        message = message.with(23, Message::default().with(1, of_schema(&schema["items"])));
    }
    if schema["properties"].is_object() {
        let all = entries(&schema["properties"])
            .fold(Message::default(), |all, (name, value)| all.with(1, named(name, of_schema(value))));
        message = message.with(25, all);
    }
    for (name, value) in entries(schema).filter(|(name, _)| name.starts_with("x-")) {
        message = message.with(31, extension(name, value));
    }
    message
}

/// A message in Protobuf whose fields are texts and messages.
#[derive(Default)]
struct Message(Vec<u8>);

impl AsRef<[u8]> for Message {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Message {
    fn with(mut self, number: usize, value: impl AsRef<[u8]>) -> Self {
        let value = value.as_ref();
        self.varint(number << 3 | 2);
        self.varint(value.len());
        self.0.extend(value);
        self
    }

    fn varint(&mut self, mut number: usize) {
        loop {
            let low = number.to_le_bytes()[0] & 0x7f;
            number >>= 7;
            self.0.push(if number > 0 { low | 0x80 } else { low });
            if number == 0 {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_have_a_number_a_length_and_bytes() {
        assert_eq!(Message::default().with(1, "2.0").0, b"\x0a\x032.0");
        let long = Message::default().with(15, [7_u8; 300]).0;
        assert_eq!((&long[..3], long.len()), (&[0x7a, 0xac, 0x02][..], 303));
        assert_eq!(Message::default().with(31, "x").0, b"\xfa\x01\x01x");
        let schema = json!({"type": "array", "items": {"$ref": "#/definitions/a"}, "x-y": [1]});
        let items = b"\xba\x01\x13\x0a\x11\x0a\x0f#/definitions/a";
        let whole: [&[u8]; 3] =
            [b"\xb2\x01\x07\x0a\x05array", &items[..], b"\xfa\x01\x0c\x0a\x03x-y\x12\x05\x12\x03[1]"];
        assert_eq!(of_schema(&schema).0, whole.concat());
    }

    #[test]
    fn the_form_is_the_first_that_is_known() {
        assert_eq!(Form::of(ASKED), Some(Form::Protobuf));
        assert_eq!(Form::of("text/html, application/json;q=0.9"), Some(Form::Json));
        assert_eq!(Form::of("*/*"), Some(Form::Json));
        assert_eq!(Form::of("text/html"), None);
    }

    #[test]
    fn clients_of_v2_get_schemas_that_they_can_read() {
        let of = json!({"type": "object", "required": ["a", "b"], "properties": {
            "a": {"type": "string", "nullable": true}, "b": {"anyOf": [{"type": "integer"}], "x-kubernetes-int-or-string": true},
            "c": {"allOf": [{"$ref": "#/components/schemas/x.Y"}], "default": {}, "description": "d"},
            "e": {"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": {"f": {"type": "string"}}}}});
        let found = json!({"type": "object", "required": ["b"], "properties": {
            "a": {}, "b": {"x-kubernetes-int-or-string": true},
            "c": {"$ref": "#/definitions/x.Y", "description": "d"}, "e": {"x-kubernetes-preserve-unknown-fields": true}}});
        assert_eq!(schema(&of), found);
    }
}
