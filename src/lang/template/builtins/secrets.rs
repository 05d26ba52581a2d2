//! Generated values. A render yields only a marker, so two renders never differ. The manager replaces the
//! marker by the live value, or by a new value when it creates the object.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

use serde_json::{Map, Value};

use super::Args;
use crate::template::errors::{Fault, Res};
use crate::template::limits::Run;
use crate::template::value::{Name, Val};

/// The minimum and maximum length of a password.
const LENGTHS: std::ops::RangeInclusive<usize> = 8..=256;
/// The maximum number of names of a certificate.
const MAX_NAMES: usize = 100;
/// The default and maximum validity of a certificate: ten years, a hundred years.
const DAYS: usize = 3_650;
const MAX_DAYS: usize = 36_500;

/// The keys of markers. They are random per process, so a value of an instance cannot imitate a marker.
struct Marks {
    password: String,
    certificate: String,
}

fn marks() -> &'static Marks {
    static MARKS: OnceLock<Marks> = OnceLock::new();
    MARKS.get_or_init(|| Marks {
        password: format!("password {:032x}", fastrand::u128(..)),
        certificate: format!("certificate {:032x}", fastrand::u128(..)),
    })
}

/// `password(length)`: a map, so that it cannot silently become part of a text.
pub(super) fn password(_: &Run<'_>, args: &Args<'_>, _: &[(Name, Val)]) -> Res<Val> {
    let length = args.count(0, 32, *LENGTHS.end())?;
    if !LENGTHS.contains(&length) {
        return Err(Fault::failed(format!(
            "a password has {} to {} characters",
            LENGTHS.start(),
            LENGTHS.end()
        )));
    }
    let length = i128::try_from(length).unwrap_or_default();
    Val::map(BTreeMap::from([(Name::from(marks().password.as_str()), Val::Int(length))]))
}

/// `tls_self_signed(names, days)`: replaces a whole map by a certificate and its key.
pub(super) fn tls_self_signed(run: &Run<'_>, args: &Args<'_>, _: &[(Name, Val)]) -> Res<Val> {
    let names = match args.need(0)? {
        name @ Val::Str(_) => vec![name.text(run)?],
        list => list
            .iterate(run)?
            .iter()
            .map(|name| match name.defined()? {
                name @ Val::Str(_) => name.text(run),
                other => Err(Fault::failed(format!(
                    "the names of a certificate are strings, not {}",
                    other.kind()
                ))),
            })
            .collect::<Res<Vec<Arc<str>>>>()?,
    };
    if names.is_empty() || names.len() > MAX_NAMES {
        return Err(Fault::failed(format!("a certificate has 1 to {MAX_NAMES} names")));
    }
    if !names.iter().all(|name| is_host(name)) {
        return Err(Fault::failed("a name of a certificate is neither a DNS name nor an IP address"));
    }
    let days = args.count(1, DAYS, MAX_DAYS)?;
    if days == 0 {
        return Err(Fault::failed("a certificate is valid for at least one day"));
    }
    let names = names.into_iter().map(Val::Str).collect();
    let of = BTreeMap::from([
        (Name::from("names"), Val::list(names)?),
        (Name::from("days"), Val::Int(i128::try_from(days).unwrap_or_default())),
    ]);
    Val::map(BTreeMap::from([(Name::from(marks().certificate.as_str()), Val::map(of)?)]))
}

/// Whether a certificate may contain the name: an IP address, or a DNS name, possibly with a leading wildcard.
fn is_host(name: &str) -> bool {
    let host = name.strip_prefix("*.").unwrap_or(name);
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    name.parse::<IpAddr>().is_ok() || (host.len() <= 253 && host.split('.').all(is_label))
}

/// The content of a new self-signed certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Certificate {
    /// DNS names and IP addresses.
    pub names: Vec<String>,
    /// Its validity in days.
    pub days: u32,
}

/// The length of the password for a rendered value, if the value is a marker.
pub fn password_length(value: &Value) -> Option<usize> {
    let map = value.as_object().filter(|map| map.len() == 1)?;
    usize::try_from(map.get(&marks().password)?.as_u64()?).ok()
}

/// Removes the marker of a certificate from a rendered map. It stands for the keys `tls.crt` and
/// `tls.key`.
pub fn take_certificate(map: &mut Map<String, Value>) -> Option<Certificate> {
    let of = map.remove(&marks().certificate)?;
    let names = of["names"].as_array()?.iter().filter_map(Value::as_str).map(str::to_owned).collect();
    Some(Certificate { names, days: u32::try_from(of["days"].as_u64()?).ok()? })
}

/// Whether a rendered value contains a marker.
pub fn holds_mark(value: &Value) -> bool {
    match value {
        Value::Array(items) => items.iter().any(holds_mark),
        Value::Object(map) => {
            let marks = marks();
            map.iter()
                .any(|(key, value)| *key == marks.password || *key == marks.certificate || holds_mark(value))
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_certificates_must_be_hosts() {
        for name in ["a", "a.b.svc", "*.a.b", "10.0.0.1", "::1", "a-1.example.org", "0.a"] {
            assert!(is_host(name), "{name}");
        }
        for name in
            ["", "a..b", "*", "*.*.a", "a*.b", "-a", "a-", "a b", "a_b", "é.org", "a/b", "http://a", "a.b."]
        {
            assert!(!is_host(name), "{name}");
        }
    }
}
