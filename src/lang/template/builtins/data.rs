//! Filters that encode and decode.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use data_encoding::HEXLOWER;
use sha2::{Digest as _, Sha256};

use super::{Args, secrets};
use crate::template::errors::{Fault, Res};
use crate::template::json::{JsonPath, Meter};
use crate::template::limits::Run;
use crate::template::value::Val;

fn json(run: &Run<'_>, input: &Val) -> Res<serde_json::Value> {
    let value = input.to_json(run, &mut Meter::new(run.limits.output), &mut JsonPath::default())?;
    if secrets::holds_mark(&value) { Err(secrets::not_computable()) } else { Ok(value) }
}

fn write_json(run: &Run<'_>, value: &serde_json::Value, indent: usize) -> Res<Val> {
    run.memory(written_bytes(value, indent, 1))?;
    let text = if indent == 0 {
        value.to_string()
    } else {
        let prefix = " ".repeat(indent);
        let mut out = Vec::new();
        let formatter = serde_json::ser::PrettyFormatter::with_indent(prefix.as_bytes());
        let mut serializer = serde_json::Serializer::with_formatter(&mut out, formatter);
        serde::Serialize::serialize(value, &mut serializer)
            .ok()
            .and_then(|()| String::from_utf8(out).ok())
            .ok_or_else(|| Fault::failed("the value cannot be written as JSON"))?
    };
    Ok(Val::str(text))
}

/// The maximum bytes of a value as text, without escapes.
fn written_bytes(value: &serde_json::Value, indent: usize, depth: usize) -> usize {
    let line = 2 + indent * depth;
    match value {
        serde_json::Value::String(text) => text.len() + 2,
        serde_json::Value::Array(items) => {
            items.iter().map(|item| line + written_bytes(item, indent, depth + 1)).sum::<usize>() + line
        }
        serde_json::Value::Object(entries) => {
            let entry = |(key, item): (&String, &serde_json::Value)| {
                line + key.len() + 4 + written_bytes(item, indent, depth + 1)
            };
            entries.iter().map(entry).sum::<usize>() + line
        }
        _ => 24,
    }
}

/// Writes compact JSON with sorted keys: the same value gives the same text.
pub(super) fn to_json(run: &Run<'_>, input: &Val, args: &Args<'_>) -> Res<Val> {
    let value = json(run, input)?;
    let indent = match args.get(0) {
        Some(Val::Bool(pretty)) => usize::from(*pretty) * 2,
        _ => args.count(0, 0, 8)?,
    };
    write_json(run, &value, indent)
}

pub(super) fn to_json_pretty(run: &Run<'_>, input: &Val, _: &Args<'_>) -> Res<Val> {
    let value = json(run, input)?;
    write_json(run, &value, 2)
}

pub(super) fn to_yaml(run: &Run<'_>, input: &Val, _: &Args<'_>) -> Res<Val> {
    let value = json(run, input)?;
    run.memory(written_bytes(&value, 2, 1))?;
    let text = crate::yaml::to_string(&value);
    Ok(Val::str(text))
}

/// The maximum size of an input to decode.
const MAX_DECODE: usize = 1 << 20;

fn decodable(run: &Run<'_>, input: &Val) -> Res<std::sync::Arc<str>> {
    let text = input.text(run)?;
    if text.len() > MAX_DECODE {
        return Err(Fault::limit(
            format!("the text to decode exceeds the limit of {MAX_DECODE} bytes"),
            "decode less",
        ));
    }
    run.memory(text.len())?;
    run.fuel(text.len() / 8)?;
    Ok(text)
}

// The messages of the decoders are not used: they may quote the text, which may be secret.

pub(super) fn from_json(run: &Run<'_>, input: &Val, _: &Args<'_>) -> Res<Val> {
    let text = decodable(run, input)?;
    let value: serde_json::Value = serde_json::from_str(&text).map_err(|error| {
        let (line, column) = (error.line(), error.column());
        Fault::failed(format!("the text is not JSON: see its line {line}, column {column}"))
    })?;
    Val::converted(run, &value)
}

pub(super) fn from_yaml(run: &Run<'_>, input: &Val, _: &Args<'_>) -> Res<Val> {
    let text = decodable(run, input)?;
    let value = crate::yaml::from_str(&text).map_err(|error| {
        let place = error.location.map_or(String::new(), |location| {
            let (line, column) = location.source.line_col(location.span.start);
            format!(": see its line {line}, column {column}")
        });
        Fault::failed(format!("the text is not a single YAML document{place}"))
    })?;
    Val::converted(run, &value)
}

pub(super) fn b64encode(run: &Run<'_>, input: &Val, _: &Args<'_>) -> Res<Val> {
    let text = input.text(run)?;
    run.memory(text.len() / 3 * 4 + 4)?;
    Ok(Val::str(STANDARD.encode(text.as_bytes())))
}

pub(super) fn b64decode(run: &Run<'_>, input: &Val, _: &Args<'_>) -> Res<Val> {
    let text = input.text(run)?;
    run.memory(text.len())?;
    let bytes =
        STANDARD.decode(text.trim().as_bytes()).map_err(|_| Fault::failed("the text is not base64"))?;
    String::from_utf8(bytes).map(Val::str).map_err(|_| Fault::failed("the decoded data is not UTF-8 text"))
}

pub(super) fn sha256(run: &Run<'_>, input: &Val, _: &Args<'_>) -> Res<Val> {
    let text = input.text(run)?;
    run.fuel(text.len() / 64)?;
    Ok(Val::str(HEXLOWER.encode(&Sha256::digest(text.as_bytes()))))
}

/// The boolean of a text such as `true`, or of the numbers 0 and 1; otherwise the truthiness of the value.
pub(super) fn bool(run: &Run<'_>, input: &Val, _: &Args<'_>) -> Res<Val> {
    Ok(Val::Bool(match &*input.resolved(run)? {
        Val::Str(text) => match text.trim().to_ascii_lowercase().as_str() {
            "true" | "yes" | "on" | "1" => true,
            "false" | "no" | "off" | "0" | "" => false,
            _ => {
                return Err(Fault::failed("the text is not a boolean")
                    .help("it accepts true, yes, on, 1, false, no, off, 0 and the empty text"));
            }
        },
        other => other.truthy()?,
    }))
}
