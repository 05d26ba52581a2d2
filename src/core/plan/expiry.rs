//! When certificates expire.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use serde_json::Value;
use x509_parser::pem::parse_x509_pem;

/// The end of the validity of the first certificate to expire, of a text or a list of them; `None` if there is none.
///
/// # Errors
///
/// One of them is no certificate. The message does not say what it is: it may be secret.
pub fn first_end(certificates: &Value) -> Result<Option<Timestamp>, String> {
    match certificates {
        Value::Null => Ok(None),
        Value::String(text) => end(text).map(Some).ok_or_else(|| "a value is no certificate".to_owned()),
        Value::Array(items) => first(items.iter()),
        Value::Object(items) => first(items.values()),
        _ => Err("a value is no certificate".to_owned()),
    }
}

fn first<'v>(mut items: impl Iterator<Item = &'v Value>) -> Result<Option<Timestamp>, String> {
    items.try_fold(None, |known, item| Ok([known, first_end(item)?].into_iter().flatten().min()))
}

/// The end of the validity of a certificate: PEM, or the base64 of it. Of a chain it is that of the first one.
fn end(text: &str) -> Option<Timestamp> {
    let pem = pem(text)?;
    let (_, pem) = parse_x509_pem(pem.as_bytes()).ok()?;
    let not_after = pem.parse_x509().ok()?.validity().not_after;
    Timestamp::from_second(not_after.timestamp()).ok()
}

/// The PEM of a value as it is in the data of a Secret, in base64, or already decoded.
pub fn pem(text: &str) -> Option<String> {
    if text.trim_start().starts_with("-----BEGIN") {
        return Some(text.to_owned());
    }
    String::from_utf8(STANDARD.decode(text.trim()).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Two certificates: of 2026-01-01 to 2026-03-01, and to 2027-01-01.
    const SHORT: &str = include_str!("tests/short.pem");
    const LONG: &str = include_str!("tests/long.pem");

    #[test]
    fn first_certificate_to_expire_counts() {
        let ends = |value: Value| first_end(&value).map(|end| end.map(|end| end.to_string()));
        let (short, long) = (Ok(Some("2026-03-01T00:00:00Z".to_owned())), "2027-01-01T00:00:00Z");
        assert_eq!(ends(json!(SHORT)), short);
        assert_eq!(ends(json!(STANDARD.encode(LONG))), Ok(Some(long.to_owned())));
        assert_eq!(ends(json!([LONG, [SHORT, null]])), short);
        assert_eq!(ends(json!({"a": LONG, "b": {"c": SHORT}})), short);
        assert_eq!(ends(json!(format!("{SHORT}{LONG}"))), short, "the first of a chain");
        assert_eq!(ends(json!([])), Ok(None));
        assert_eq!(ends(json!(null)), Ok(None));
        for wrong in [json!("hunter2"), json!(7), json!([LONG, ""]), json!("-----BEGIN CERTIFICATE-----")] {
            assert_eq!(ends(wrong), Err("a value is no certificate".to_owned()));
        }
    }
}
