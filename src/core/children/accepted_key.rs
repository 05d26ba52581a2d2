//! The proof that the record of the last accepted target was written by Operetta. The annotation that holds the record is
//! writable by everybody who may edit the instance, and its spec has passed no validation of the API server.
//! See `docs/design/0016-field-ownership-and-refused-edits.md`.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::hmac;

/// The prefix of the signed text: it says what the proof is about.
const CLAIM: &[u8] = b"operetta.dev/accepted v1\n";
/// The annotation is the JSON of the record with the proof before its first field.
const BEFORE: &str = "{\"proof\":\"";
const AFTER: &str = "\",";

/// The key of the proofs of records.
#[derive(Debug, Clone)]
pub enum AcceptedKey {
    /// The key has not been read.
    Unread,
    /// The key cannot be read, for this reason.
    Unreadable(Arc<str>),
    /// The key.
    Known(hmac::Key),
    /// Nothing is written to a cluster, so records count without a proof.
    Unneeded,
}

impl AcceptedKey {
    /// The key with these bytes.
    pub fn new(bytes: &[u8]) -> Self {
        Self::Known(hmac::Key::new(hmac::HMAC_SHA256, bytes))
    }

    /// Whether records can be told from forged ones.
    pub(super) fn is_usable(&self) -> bool {
        matches!(self, Self::Known(_) | Self::Unneeded)
    }

    /// The annotation of a record, which is a JSON object with fields; `None` without a key.
    pub(super) fn seal(&self, record: &str) -> Option<String> {
        match self {
            Self::Unread | Self::Unreadable(_) => None,
            Self::Unneeded => Some(record.to_owned()),
            Self::Known(key) => {
                let tag = hmac::sign(key, &claim(record));
                Some(format!("{BEFORE}{}{AFTER}{}", STANDARD.encode(tag), record.strip_prefix('{')?))
            }
        }
    }

    /// The record in an annotation; `None` if its proof does not hold, or cannot be checked.
    pub(super) fn open(&self, annotation: &str) -> Option<String> {
        let parts = annotation.strip_prefix(BEFORE).and_then(|text| text.split_once(AFTER));
        let record = parts.map(|(proof, fields)| (proof, format!("{{{fields}")));
        match (self, record) {
            (Self::Unneeded, Some((_, record))) => Some(record),
            (Self::Unneeded, None) => Some(annotation.to_owned()),
            (Self::Known(key), Some((proof, record))) => {
                let tag = STANDARD.decode(proof).ok()?;
                hmac::verify(key, &claim(&record), &tag).is_ok().then_some(record)
            }
            _ => None,
        }
    }
}

fn claim(record: &str) -> Vec<u8> {
    [CLAIM, record.as_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_counts_only_with_a_proof_of_this_key() {
        let key = AcceptedKey::new(b"key");
        let record = r#"{"children":{"a":"h"},"uid":"u"}"#;
        let sealed = key.seal(record).unwrap();
        let json: serde_json::Value = serde_json::from_str(&sealed).unwrap();
        assert_eq!((&json["uid"], &json["children"]["a"]), (&"u".into(), &"h".into()));
        assert_eq!(key.open(&sealed).as_deref(), Some(record));
        assert_eq!(key.seal(record).unwrap(), sealed, "it is written again only when it changes");
        let forged = [
            record.to_owned(),
            sealed.replace("\"h\"", "\"i\""),
            sealed.replace("{\"proof", "{ \"proof"),
            sealed.replace(json["proof"].as_str().unwrap(), ""),
            sealed.replace(json["proof"].as_str().unwrap(), "AAAA"),
            AcceptedKey::new(b"other").seal(record).unwrap(),
            String::new(),
        ];
        for text in forged {
            assert_eq!(key.open(&text), None, "{text}");
        }
        for key in [AcceptedKey::Unread, AcceptedKey::Unreadable("why".into())] {
            assert_eq!((key.seal(record), key.open(&sealed)), (None, None));
        }
        let unneeded = AcceptedKey::Unneeded;
        assert_eq!(unneeded.open(&sealed).as_deref(), Some(record));
        assert_eq!(unneeded.open(&unneeded.seal(record).unwrap()).as_deref(), Some(record));
    }
}
