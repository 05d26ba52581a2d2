//! Generated values. A render yields only a marker, so two renders never differ. The manager replaces the
//! marker by the live value, or by a new value when it creates the object. Each call is one value, and its marker has
//! its number: where the marker comes twice, the value is the same. A text with a marker in it is a marker, too, so a
//! value of an instance is never searched for one. See `docs/design/0053-generated-values.md`.

use std::collections::BTreeMap;
use std::fmt;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

use serde_json::{Map, Value};

use super::Args;
use crate::template::errors::{Fault, Res};
use crate::template::limits::Run;
use crate::template::ops;
use crate::template::value::{Name, Val};

/// The minimum and maximum length of a password.
const LENGTHS: std::ops::RangeInclusive<usize> = 8..=256;
/// The maximum number of names of a certificate.
const MAX_NAMES: usize = 100;
/// The validity of a certificate that signs itself or others, and of one that a CA signs, if nothing else is said; and the maximum: ten years,
/// ninety days, a hundred years.
const DAYS: usize = 3_650;
const SIGNED_DAYS: usize = 90;
const MAX_DAYS: usize = 36_500;
/// The maximum length of a common name.
const MAX_COMMON_NAME: usize = 64;

/// The keys of the two halves of a certificate.
const HALVES: [&str; 2] = ["tls.crt", "tls.key"];

/// The keys of markers. They are random per process, so a value of an instance cannot imitate a marker.
struct Marks {
    /// What all of them contain.
    tag: String,
    password: String,
    certificate: String,
    half: String,
    text: String,
}

fn marks() -> &'static Marks {
    static MARKS: OnceLock<Marks> = OnceLock::new();
    MARKS.get_or_init(|| {
        // Not by `fastrand`: the first play would take one more of its numbers than the others.
        let random = || RandomState::new().build_hasher().finish();
        let tag = format!("{:016x}{:016x}", random(), random());
        let [password, certificate, half, text] =
            ["password", "certificate", "half", "text"].map(|what| format!("{what} {tag}"));
        Marks { tag, password, certificate, half, text }
    })
}

/// `password(length)`: a map, so that no filter and no operator takes it for a text.
pub(super) fn password(run: &Run<'_>, args: &Args<'_>, _: &[(Name, Val)]) -> Res<Val> {
    let length = args.count(0, 32, *LENGTHS.end())?;
    if !LENGTHS.contains(&length) {
        return Err(Fault::failed(format!(
            "a password has {} to {} characters",
            LENGTHS.start(),
            LENGTHS.end()
        )));
    }
    mark(&marks().password, [("length", Val::usize(length)), ("number", run.next_generated())])
}

/// `tls_self_signed(names, days)`: replaces a whole map by a certificate and its key.
pub(super) fn tls_self_signed(run: &Run<'_>, args: &Args<'_>, _: &[(Name, Val)]) -> Res<Val> {
    let names = host_names(run, args.need(0)?)?;
    let of = [("cn", first_short(&names)), ("names", Val::list(names)?), ("days", days(args, 1, DAYS)?)];
    certificate(run, of)
}

/// `tls_ca(name, days)`: replaces a whole map by the certificate of a certificate authority and its key.
pub(super) fn tls_ca(run: &Run<'_>, args: &Args<'_>, _: &[(Name, Val)]) -> Res<Val> {
    let name = common_name(&args.need_text(run, 0)?)?;
    certificate(run, [("cn", name), ("signs", Val::Bool(true)), ("days", days(args, 1, DAYS)?)])
}

/// `tls_signed(names, ca, days, cn)`: replaces a whole map by a certificate that a CA signs, and its key.
pub(super) fn tls_signed(run: &Run<'_>, args: &Args<'_>, _: &[(Name, Val)]) -> Res<Val> {
    let cn = args.text(run, 3)?.map(|name| common_name(&name)).transpose()?;
    let names = match args.need(0)? {
        // A client may be known by its common name only.
        Val::List(list) if list.items.is_empty() && cn.is_some() => Vec::new(),
        names => host_names(run, names)?,
    };
    let ca = args.need(1)?;
    let part = |key: &str| -> Res<Val> {
        let value = ops::item(run, ca, &Val::str(key))?;
        if value.is_absent() {
            let help = "pass the data of a Secret with tls_ca, or of one that has both: ca=children.ca.data";
            return Err(Fault::failed(format!("the CA has no {key}")).help(help.to_owned()));
        }
        Ok(Val::Str(value.defined()?.text(run)?))
    };
    let ca = [("crt", part("tls.crt")?), ("key", part("tls.key")?)];
    let ca = Val::map(ca.into_iter().map(|(key, value)| (Name::from(key), value)).collect())?;
    let cn = cn.unwrap_or_else(|| first_short(&names));
    let days = days(args, 2, SIGNED_DAYS)?;
    certificate(run, [("cn", cn), ("names", Val::list(names)?), ("ca", ca), ("days", days)])
}

/// A marker with what it says.
fn mark(key: &str, of: impl IntoIterator<Item = (&'static str, Val)>) -> Res<Val> {
    let of = of.into_iter().map(|(key, value)| (Name::from(key), value)).collect();
    Val::map(BTreeMap::from([(Name::from(key), Val::map(of)?)]))
}

/// A map with the marker of a certificate, and those of its halves, which may be inserted elsewhere, too.
fn certificate<const N: usize>(run: &Run<'_>, of: [(&'static str, Val); N]) -> Res<Val> {
    let number = run.next_generated();
    let of = of.into_iter().chain([("number", number.clone())]);
    let of = of.map(|(key, value)| (Name::from(key), value)).collect();
    let mut map = BTreeMap::from([(Name::from(marks().certificate.as_str()), Val::map(of)?)]);
    for half in HALVES {
        let of = [("key", Val::str(half)), ("number", number.clone())];
        map.insert(Name::from(half), mark(&marks().half, of)?);
    }
    Val::map(map)
}

/// Whether a value is a marker of a password, of half a certificate or of a text with either.
pub(in crate::template) fn is_generated(value: &Val) -> bool {
    let Val::Map(map) = value else { return false };
    let marks = marks();
    map.entries.len() == 1
        && map
            .entries
            .keys()
            .any(|key| [&marks.password, &marks.half, &marks.text].into_iter().any(|mark| **mark == **key))
}

/// The error about something that would have to know a generated value.
pub(in crate::template) fn not_computable() -> Fault {
    Fault::failed("a generated value is known only when it is applied, so nothing can be computed with it")
        .help("insert it with `{{ }}`, alone or in a text: `url: \"db://app:{{ p }}@db\"`".to_owned())
}

/// The marker of a text with generated values: literal texts and markers.
pub(in crate::template) fn generated_text(parts: Vec<Value>) -> Value {
    let mut map = Map::new();
    map.insert(marks().text.clone(), Value::Array(parts));
    Value::Object(map)
}

/// One name of a certificate, or a list of them.
fn host_names(run: &Run<'_>, names: &Val) -> Res<Vec<Val>> {
    let names = match names {
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
    Ok(names.into_iter().map(Val::Str).collect())
}

/// The common name of a certificate for which none is given: the first of its names that is short enough.
fn first_short(names: &[Val]) -> Val {
    let is_short = |name: &&Val| matches!(name, Val::Str(name) if name.len() <= MAX_COMMON_NAME);
    names.iter().find(is_short).cloned().unwrap_or_else(|| Val::str("operetta"))
}

fn common_name(name: &str) -> Res<Val> {
    let length = name.chars().count();
    if !(1..=MAX_COMMON_NAME).contains(&length) || name.chars().any(char::is_control) {
        let message = format!("a common name has 1 to {MAX_COMMON_NAME} characters that can be printed");
        return Err(Fault::failed(message));
    }
    Ok(Val::str(name))
}

fn days(args: &Args<'_>, index: usize, default: usize) -> Res<Val> {
    match args.count(index, default, MAX_DAYS)? {
        0 => Err(Fault::failed("a certificate is valid for at least one day")),
        days => Ok(Val::usize(days)),
    }
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

/// The content of a new certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Certificate {
    /// The common name.
    pub common_name: String,
    /// DNS names and IP addresses.
    pub names: Vec<String>,
    /// Its validity in days.
    pub days: u32,
    /// Who signs it.
    pub signer: Signer,
}

/// Who signs a new certificate.
#[derive(Clone, PartialEq, Eq)]
pub enum Signer {
    /// Its own key.
    Itself,
    /// Its own key, and it signs others.
    Authority,
    /// A certificate authority, of which these are the certificate and the key, as in the data of a Secret.
    Ca([String; 2]),
}

impl fmt::Debug for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Itself => "Itself",
            Self::Authority => "Authority",
            // The key is secret.
            Self::Ca(_) => "Ca",
        })
    }
}

/// A part of a rendered text with generated values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GeneratedPart {
    /// Text of the template or of an instance.
    Literal(String),
    /// The password that this call has made.
    Password {
        /// The number of the call.
        number: u64,
        /// How many characters it has.
        length: usize,
    },
    /// A half of the certificate that this call has made.
    Half {
        /// The number of the call.
        number: u64,
        /// `tls.crt` or `tls.key`.
        key: String,
    },
}

/// The parts of a rendered value that is a generated value or a text with some. `None` if it is neither.
pub fn generated_parts(value: &Value) -> Option<Vec<GeneratedPart>> {
    let map = value.as_object().filter(|map| map.len() == 1)?;
    let (mark, of) = map.iter().next()?;
    let marks = marks();
    if *mark == marks.text {
        let parts = of.as_array()?.iter().map(|part| match part {
            // A name of a marker in a text comes from a loop over a marker.
            Value::String(text) if text.contains(&marks.tag) => None,
            Value::String(text) => Some(vec![GeneratedPart::Literal(text.clone())]),
            inner => generated_parts(inner),
        });
        return Some(parts.collect::<Option<Vec<_>>>()?.concat());
    }
    let number = of["number"].as_u64()?;
    if *mark == marks.password {
        let length = usize::try_from(of["length"].as_u64()?).ok()?;
        Some(vec![GeneratedPart::Password { number, length }])
    } else if *mark == marks.half {
        Some(vec![GeneratedPart::Half { number, key: of["key"].as_str()?.to_owned() }])
    } else {
        None
    }
}

/// Removes the marker of a certificate from a rendered map. It stands for the keys `tls.crt` and
/// `tls.key`. Returns the number of its call, too.
pub fn take_certificate(map: &mut Map<String, Value>) -> Option<(u64, Certificate)> {
    let of = map.remove(&marks().certificate)?;
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let names = of["names"].as_array().into_iter().flatten().filter_map(text).collect();
    let signer = match (text(&of["ca"]["crt"]), text(&of["ca"]["key"])) {
        (Some(certificate), Some(key)) => Signer::Ca([certificate, key]),
        _ if of["signs"] == true => Signer::Authority,
        _ => Signer::Itself,
    };
    let days = u32::try_from(of["days"].as_u64()?).ok()?;
    Some((of["number"].as_u64()?, Certificate { common_name: text(&of["cn"])?, names, days, signer }))
}

/// Whether a rendered value contains a marker, or the name of one.
pub fn holds_mark(value: &Value) -> bool {
    let tag = &marks().tag;
    match value {
        Value::String(text) => text.contains(tag),
        Value::Array(items) => items.iter().any(holds_mark),
        Value::Object(map) => map.iter().any(|(key, value)| key.contains(tag) || holds_mark(value)),
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
