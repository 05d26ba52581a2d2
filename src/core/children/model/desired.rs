//! What is applied: one object of the target.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::job::Completion;
use crate::api::ObjectRef;
use crate::template::Certificate;

/// One object of the target, ready to be applied.
#[derive(Debug, Clone, PartialEq)]
pub struct Desired {
    /// The identity of the object.
    pub object: ObjectRef,
    /// What is applied, with labels, annotations and owner; without preconditions. All writers share it,
    /// because it may be large. An object that needs no apply keeps only its owner.
    pub body: Arc<Value>,
    /// Hash of the body with the `names::Stamp`, which its annotation carries.
    pub hash: String,
    /// Keys of a Secret's data that have no value in the body: the live value is kept, or a new one is
    /// generated, or it is a text with such values.
    pub generated: Vec<Generated>,
    /// Yielded fields that the body does not set and that only we own. The apply contains their live values:
    /// without them it would remove the fields before another manager owns them.
    pub keep: Vec<String>,
    /// Yielded fields that the body sets: another manager may have taken them over since the object was seen.
    pub yields: Vec<String>,
    /// For a Job: whether it has completed before.
    pub completion: Option<Completion>,
}

/// A key of a Secret whose value is generated once, or has generated values of other keys in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Generated {
    /// The key in `data`.
    pub key: String,
    /// What a new value is.
    pub what: Secret,
}

/// The type of a generated value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Secret {
    /// A password with this number of characters.
    Password(usize),
    /// The certificate of `names::TLS`, generated together with the key.
    Certificate(Arc<Certificate>),
    /// The private key of the certificate.
    PrivateKey,
    /// A text with values of other keys, which are generated.
    Text(Vec<TextPart>),
}

/// A part of a text in a Secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TextPart {
    /// Text of the template or of an instance.
    Literal(String),
    /// The value of this key in `data`.
    Value(String),
}

impl Generated {
    /// Whether the value is kept: it is generated here, and no other key says what it is.
    pub fn is_kept(&self) -> bool {
        !matches!(self.what, Secret::Text(_))
    }

    /// Whether it repeats the value of this key.
    pub fn repeats(&self, key: &str) -> bool {
        matches!(&self.what, Secret::Text(parts) if matches!(parts.as_slice(), [TextPart::Value(of)] if of == key))
    }
}

/// A text in `data`, with the values that the body has. `None` if one of them is not there.
fn text(parts: &[TextPart], body: &Value, left: &mut usize) -> Option<String> {
    let mut bytes = Vec::new();
    for part in parts {
        let before = bytes.len();
        match part {
            TextPart::Literal(text) => bytes.extend_from_slice(text.as_bytes()),
            TextPart::Value(key) => {
                let value = body["data"][key].as_str()?;
                if *left > 0 {
                    bytes.extend(STANDARD.decode(value).ok()?);
                }
            }
        }
        *left = left.saturating_sub(bytes.len() - before);
    }
    Some(STANDARD.encode(bytes))
}

/// How long all texts of a Secret may be with their values: one byte more than an API server takes, so it refuses what was cut. People
/// choose the values, and instances may choose how often a text has one.
const MAX_TEXTS: usize = (1 << 20) + 1;

impl Desired {
    /// The keys of `data` with texts, and the texts with the values that the body has by now. `None` if one of them is not there.
    pub fn texts(&self, body: &Value) -> Vec<(&str, Option<String>)> {
        let mut left = MAX_TEXTS;
        let texts = self.generated.iter().filter_map(|one| match &one.what {
            Secret::Text(parts) => Some((one.key.as_str(), text(parts, body, &mut left))),
            Secret::Password(_) | Secret::Certificate(_) | Secret::PrivateKey => None,
        });
        texts.collect()
    }

    /// Drops the body except for its owner: there is nothing to apply, and the hash is enough to compare.
    pub(in crate::children) fn forget_body(&mut self) {
        let owners = self.body["metadata"].get("ownerReferences");
        let metadata = owners.map_or_else(|| json!({}), |owners| json!({"ownerReferences": owners}));
        self.body = Arc::new(json!({"metadata": metadata}));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_have_the_values_that_the_body_has() {
        let parts = vec![
            TextPart::Literal("pass = ".into()),
            TextPart::Value("p".into()),
            TextPart::Literal("\n".into()),
        ];
        let of = |data: Value| text(&parts, &json!({"data": data}), &mut 100);
        assert_eq!(of(json!({"p": STANDARD.encode("secret")})), Some(STANDARD.encode("pass = secret\n")));
        // A user who rotates a value may write bytes that are not UTF-8.
        assert_eq!(of(json!({"p": STANDARD.encode([0xff])})), Some(STANDARD.encode(b"pass = \xff\n")));
        assert_eq!((of(json!({})), of(json!({"p": "?"}))), (None, None));
        // A value that is as long as a Secret can be is not repeated without end.
        let many = vec![TextPart::Value("p".into()); 10_000];
        let long = json!({"data": {"p": STANDARD.encode(vec![b'x'; 700_000])}});
        let mut left = MAX_TEXTS;
        let cut = STANDARD.decode(text(&many, &long, &mut left).unwrap()).unwrap();
        assert_eq!((cut.len(), left), (1_400_000, 0));
        let conf = Generated { key: "conf".into(), what: Secret::Text(parts) };
        assert!(!conf.is_kept() && !conf.repeats("p"));
        let copy = Generated { key: "q".into(), what: Secret::Text(vec![TextPart::Value("p".into())]) };
        assert!(copy.repeats("p") && !copy.repeats("q"));
    }
}
