//! Objects in Kubernetes' Protobuf as JSON: some commands of kubectl send nothing else.

use std::collections::HashMap;
use std::sync::OnceLock;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use operetta_kube_model::built_in::unpack;
use serde_json::{Map, Value, json};

/// The fields of the built-in kinds by their numbers; `generate/main.go` writes the file.
static COMPRESSED: &[u8] = include_bytes!("../data/numbers.z");
/// The prefix of each object.
const MAGIC: &[u8] = b"k8s\0";
/// How deep messages may be nested.
const DEPTH: usize = 64;

/// The definition of a schema in a CRD.
const SCHEMA: &str = "apiextensions.v1.JSONSchemaProps";
/// Definitions that are written as the one of their fields that is set.
const ONE_OF: [&str; 3] = [
    "apiextensions.v1.JSONSchemaPropsOrArray",
    "apiextensions.v1.JSONSchemaPropsOrStringArray",
    "apiextensions.v1.JSONSchemaPropsOrBool",
];

/// The name and the shape of each field, by its number.
type Fields = Vec<(u32, &'static str, &'static str)>;

struct Definitions {
    fields: HashMap<&'static str, Fields>,
    /// The definition of each kind, `apps/v1:Deployment`.
    kinds: HashMap<&'static str, &'static str>,
}

fn definitions() -> &'static Definitions {
    static DEFINITIONS: OnceLock<Definitions> = OnceLock::new();
    DEFINITIONS.get_or_init(|| {
        let text: &'static str = unpack(COMPRESSED).leak();
        let mut all = Definitions { fields: HashMap::new(), kinds: HashMap::new() };
        for line in text.lines() {
            let words: Vec<&'static str> = line.split(' ').collect();
            let [definition, kind, fields @ ..] = &words[..] else { continue };
            all.kinds.insert(kind, definition);
            let fields = fields.chunks_exact(3).filter_map(|field| {
                let [number, name, shape] = field else { return None };
                Some((number.parse().ok()?, *name, *shape))
            });
            all.fields.insert(definition, fields.collect());
        }
        all
    })
}

/// An object as JSON; `None` if it is not one of a built-in kind in Protobuf.
pub fn from_protobuf(body: &[u8]) -> Option<Value> {
    let (mut kind, mut raw) = (Map::new(), &[][..]);
    for part in Parts(body.strip_prefix(MAGIC)?) {
        match part? {
            (1, Wire::Bytes(bytes)) => {
                let names = [(1, "apiVersion", "string"), (2, "kind", "string")];
                kind = object(&names, bytes, DEPTH)?;
            }
            (2, Wire::Bytes(bytes)) => raw = bytes,
            _ => {}
        }
    }
    let name = format!("{}:{}", kind.get("apiVersion")?.as_str()?, kind.get("kind")?.as_str()?);
    let all = definitions();
    let definition = match all.kinds.get(&*name) {
        Some(definition) => *definition,
        None if name.ends_with(":DeleteOptions") => "meta.v1.DeleteOptions",
        None => return None,
    };
    let mut out = object(all.fields.get(definition)?, raw, DEPTH)?;
    out.append(&mut kind);
    Some(out.into())
}

/// A field as it is written.
enum Wire<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// The fields of a message. `None` ends a broken one.
struct Parts<'a>(&'a [u8]);

impl<'a> Parts<'a> {
    fn number(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.0.split_first()?;
            self.0 = rest;
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    fn part(&mut self) -> Option<(u32, Wire<'a>)> {
        let tag = self.number()?;
        let wire = match tag & 7 {
            0 => Wire::Number(self.number()?),
            1 => Wire::Number(u64::from_le_bytes(self.take(8)?.try_into().ok()?)),
            2 => {
                let length = usize::try_from(self.number()?).ok()?;
                Wire::Bytes(self.take(length)?)
            }
            5 => Wire::Number(u32::from_le_bytes(self.take(4)?.try_into().ok()?).into()),
            _ => return None,
        };
        Some((u32::try_from(tag >> 3).ok()?, wire))
    }
}

impl<'a> Iterator for Parts<'a> {
    type Item = Option<(u32, Wire<'a>)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let part = self.part();
        if part.is_none() {
            self.0 = &[];
        }
        Some(part)
    }
}

/// A message whose fields these are. Unknown fields are dropped.
fn object(fields: &[(u32, &str, &str)], bytes: &[u8], depth: usize) -> Option<Map<String, Value>> {
    let depth = depth.checked_sub(1)?;
    let mut out = Map::new();
    for part in Parts(bytes) {
        let (number, wire) = part?;
        let Some((_, name, shape)) = fields.iter().find(|field| field.0 == number) else { continue };
        if let Some(item) = shape.strip_prefix('[') {
            let list = out.entry(*name).or_insert_with(|| json!([]));
            list.as_array_mut()?.push(value(item, &wire, depth)?);
        } else if let Some(item) = shape.strip_prefix('{') {
            let Wire::Bytes(bytes) = wire else { return None };
            let mut entry = object(&[(1, "key", "string"), (2, "value", item)], bytes, depth)?;
            let key = entry.get("key").and_then(Value::as_str).unwrap_or_default().to_owned();
            let value = entry.remove("value").unwrap_or_else(|| "".into());
            out.entry(*name).or_insert_with(|| json!({})).as_object_mut()?.insert(key, value);
        } else if *name == "-" {
            let Value::Object(inner) = value(shape, &wire, depth)? else { return None };
            out.extend(inner);
        } else {
            out.insert((*name).to_owned(), value(shape, &wire, depth)?);
        }
    }
    Some(out)
}

fn value(shape: &str, wire: &Wire<'_>, depth: usize) -> Option<Value> {
    let fields: &[(u32, &str, &str)] = match (shape, wire) {
        ("int", Wire::Number(number)) => return Some(number.cast_signed().into()),
        ("bool", Wire::Number(number)) => return Some((*number != 0).into()),
        // A whole number has no fraction in JSON.
        ("float", Wire::Number(number)) => {
            return serde_json::from_str(&f64::from_bits(*number).to_string()).ok();
        }
        ("string", Wire::Bytes(bytes)) => return Some(String::from_utf8_lossy(bytes).into()),
        ("bytes", Wire::Bytes(bytes)) => return Some(STANDARD.encode(bytes).into()),
        ("time", _) => &[(1, "seconds", "int"), (2, "nanos", "int")],
        ("duration", _) => &[(1, "nanos", "int")],
        ("either", _) => &[(1, "type", "int"), (2, "number", "int"), (3, "text", "string")],
        ("quantity" | "raw", _) => &[(1, "text", "string")],
        ("words", _) => &[(1, "words", "[string")],
        (name, _) if name == ONE_OF[0] => {
            &[(1, "schema", SCHEMA), (2, "list", "[apiextensions.v1.JSONSchemaProps")]
        }
        (name, _) if name == ONE_OF[1] => &[(1, "schema", SCHEMA), (2, "list", "[string")],
        (name, _) if name == ONE_OF[2] => &[(1, "allows", "bool"), (2, "schema", SCHEMA)],
        (name, _) => definitions().fields.get(name)?,
    };
    let Wire::Bytes(bytes) = wire else { return None };
    let mut found = object(fields, bytes, depth)?;
    let mut take = |key: &str| found.remove(key).unwrap_or_default();
    Some(match shape {
        "time" => {
            let (seconds, nanos) = (take("seconds").as_i64(), take("nanos").as_i64().unwrap_or(0));
            match seconds {
                Some(seconds) => Timestamp::new(seconds, i32::try_from(nanos).ok()?).ok()?.to_string().into(),
                None => Value::Null,
            }
        }
        "duration" => format!("{}ns", take("nanos").as_i64().unwrap_or(0)).into(),
        "quantity" => take("text"),
        "either" if take("type") == 1 => take("text"),
        "either" => take("number").as_i64().unwrap_or(0).into(),
        "raw" => match take("text").as_str().unwrap_or_default() {
            "" => Value::Null,
            text => serde_json::from_str(text).ok()?,
        },
        "words" => take("words").as_array().cloned().unwrap_or_default().into(),
        name if ONE_OF.contains(&name) => {
            let set = ["list", "schema", "allows"].into_iter().map(take).find(|value| !value.is_null());
            set.unwrap_or_default()
        }
        _ => found.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `kubectl create configmap x --from-literal=a=b` sends.
    const CONFIG_MAP: &[u8] =
        b"k8s\0\x0a\x0f\x0a\x02v1\x12\x09ConfigMap\x12\x1b\x0a\x11\x0a\x01x\x12\0\x1a\0\
        \x22\0\x2a\0\x32\0\x38\0\x42\0\x12\x06\x0a\x01a\x12\x01b\x1a\0\x22\0";

    #[test]
    fn objects_of_kubectl_are_read() {
        let object = from_protobuf(CONFIG_MAP).unwrap();
        assert_eq!((&object["kind"], &object["apiVersion"]), (&json!("ConfigMap"), &json!("v1")));
        assert_eq!((&object["metadata"]["name"], &object["data"]), (&json!("x"), &json!({"a": "b"})));
        assert_eq!(object["metadata"]["creationTimestamp"], Value::Null);
    }

    #[test]
    fn shapes_are_read() {
        let read = |shape: &str, bytes: &[u8]| value(shape, &Wire::Bytes(bytes), DEPTH).unwrap();
        assert_eq!(read("either", b"\x08\0\x10\x50\x1a\0"), 80);
        assert_eq!(read("either", b"\x08\x01\x10\0\x1a\x03web"), "web");
        assert_eq!(read("quantity", b"\x0a\x02\x31G"), "1G");
        assert_eq!(read("time", b"\x08\x3c"), "1970-01-01T00:01:00Z");
        assert_eq!(read("words", b"\x0a\x01a\x0a\x01b"), json!(["a", "b"]));
        assert_eq!(read("raw", b"\x0a\x07{\"a\":1}"), json!({"a": 1}));
        // The source of a volume is written apart, and its fields are those of the volume.
        let volume = read("core.v1.Volume", b"\x0a\x01v\x12\x02\x12\0");
        assert_eq!(volume, json!({"name": "v", "emptyDir": {}}));
    }

    #[test]
    fn schemas_of_crds_keep_everything() {
        let read = |bytes: &[u8]| value(SCHEMA, &Wire::Bytes(bytes), DEPTH).unwrap();
        let text = json!({"type": "string"});
        assert_eq!(read(b"\xc2\x01\x0a\x0a\x08\x2a\x06string"), json!({"items": text}));
        assert_eq!(
            read(b"\xc2\x01\x14\x12\x08\x2a\x06string\x12\x08\x2a\x06string"),
            json!({"items": [text, text]})
        );
        assert_eq!(read(b"\xf2\x01\x02\x08\x01"), json!({"additionalProperties": true}));
        assert_eq!(read(b"\xf2\x01\x02\x08\0"), json!({"additionalProperties": false}));
        assert_eq!(
            read(b"\xf2\x01\x0c\x08\x01\x12\x08\x2a\x06string"),
            json!({"additionalProperties": text})
        );
        assert_eq!(
            read(b"\x82\x02\x0a\x0a\x01a\x12\x05\x12\x03b,c"),
            json!({"dependencies": {"a": ["b,c"]}})
        );
        assert_eq!(read(b"\x42\x06\x0a\x04true"), json!({"default": true}));
        assert_eq!(read(b"\x42\0"), json!({"default": null}));
        // 10 and 0.5.
        assert_eq!(
            read(b"\x49\0\0\0\0\0\0\x24\x40\x59\0\0\0\0\0\0\xe0\x3f"),
            json!({"maximum": 10, "minimum": 0.5})
        );
    }

    #[test]
    fn every_field_has_a_shape_that_keeps_its_value() {
        let all = definitions();
        for (definition, fields) in &all.fields {
            for (_, name, shape) in fields {
                let shape = shape.trim_start_matches(['[', '{']);
                let is_lost = all.fields.get(shape).is_some_and(Vec::is_empty) && !ONE_OF.contains(&shape);
                // The subresource `status` of a CRD has no fields.
                assert!(
                    !is_lost || shape == "apiextensions.v1.CustomResourceSubresourceStatus",
                    "{definition}.{name}: {shape}"
                );
            }
        }
    }

    #[test]
    fn broken_protobuf_is_no_object() {
        for end in 0..CONFIG_MAP.len() {
            let _ = from_protobuf(&CONFIG_MAP[..end]);
        }
        assert_eq!(from_protobuf(b"{}"), None);
        assert_eq!(from_protobuf(b"k8s\0\x0a\x06\x0a\x02v1\x12\0"), None);
        assert_eq!(from_protobuf(b"k8s\0\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"), None);
    }
}
