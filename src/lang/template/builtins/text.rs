//! Filters over text.

use std::fmt::Write as _;
use std::sync::Arc;

use data_encoding::HEXLOWER;
use sha2::{Digest as _, Sha256};

use super::{Args, too_much};
use crate::template::errors::{Fault, Res};
use crate::template::limits::Run;
use crate::template::value::Val;

/// The maximum width and precision of `format`.
const MAX_WIDTH: usize = 1_000;

/// The input as text, charged for one copy.
fn input_text(run: &Run<'_>, input: &Val) -> Res<Arc<str>> {
    let text = input.text(run)?;
    run.memory(text.len())?;
    run.fuel(text.len() / 64)?;
    Ok(text)
}

pub(super) fn string(run: &Run<'_>, input: &Val, _: &Args<'_>) -> Res<Val> {
    Ok(Val::Str(input.text(run)?))
}

pub(super) fn upper(run: &Run<'_>, input: &Val, _: &Args<'_>) -> Res<Val> {
    Ok(Val::str(input_text(run, input)?.to_uppercase()))
}

pub(super) fn lower(run: &Run<'_>, input: &Val, _: &Args<'_>) -> Res<Val> {
    Ok(Val::str(input_text(run, input)?.to_lowercase()))
}

pub(super) fn capitalize(run: &Run<'_>, input: &Val, _: &Args<'_>) -> Res<Val> {
    let text = input_text(run, input)?;
    let mut chars = text.chars();
    Ok(match chars.next() {
        Some(first) => {
            Val::str(first.to_uppercase().chain(chars.as_str().to_lowercase().chars()).collect::<String>())
        }
        None => Val::str(""),
    })
}

pub(super) fn title(run: &Run<'_>, input: &Val, _: &Args<'_>) -> Res<Val> {
    let text = input_text(run, input)?;
    let mut out = String::with_capacity(text.len());
    let mut start = true;
    for c in text.chars() {
        if c.is_whitespace() || c.is_ascii_punctuation() {
            start = true;
            out.push(c);
        } else if start {
            start = false;
            out.extend(c.to_uppercase());
        } else {
            out.extend(c.to_lowercase());
        }
    }
    Ok(Val::str(out))
}

pub(super) fn trim(run: &Run<'_>, input: &Val, args: &Args<'_>) -> Res<Val> {
    let text = input_text(run, input)?;
    Ok(match args.text(run, 0)? {
        Some(chars) => {
            run.fuel(text.len().saturating_mul(chars.len().max(1)) / 64)?;
            let chars: Vec<char> = chars.chars().collect();
            Val::str(text.trim_matches(chars.as_slice()))
        }
        None => Val::str(text.trim()),
    })
}

pub(super) fn replace(run: &Run<'_>, input: &Val, args: &Args<'_>) -> Res<Val> {
    let text = input_text(run, input)?;
    let (old, new) = (args.need_text(run, 0)?, args.need_text(run, 1)?);
    let most = args.int(2)?.map_or(usize::MAX, |count| usize::try_from(count).unwrap_or(usize::MAX));
    let count = text.matches(&*old).count().min(most);
    run.memory(count.saturating_mul(new.len()))?;
    Ok(Val::str(text.replacen(&*old, &new, count)))
}

pub(super) fn split(run: &Run<'_>, input: &Val, args: &Args<'_>) -> Res<Val> {
    let text = input_text(run, input)?;
    let separator = match args.get(0) {
        None | Some(Val::Null) => None,
        Some(_) => args.text(run, 0)?,
    };
    let most = args.int(1)?.and_then(|most| usize::try_from(most).ok());
    let parts: Vec<&str> = match (separator, most) {
        (Some(separator), _) if separator.is_empty() => {
            return Err(Fault::failed("the separator of `split` is empty"));
        }
        (Some(separator), most) => {
            let count = text.matches(&*separator).count().min(most.unwrap_or(usize::MAX));
            run.items(count + 1)?;
            text.splitn(count + 1, &*separator).collect()
        }
        (None, None) => {
            run.items(text.split_whitespace().count())?;
            text.split_whitespace().collect()
        }
        (None, Some(most)) => {
            run.items(most.min(text.len()) + 1)?;
            text.trim_start().splitn(most.saturating_add(1), char::is_whitespace).collect()
        }
    };
    Val::list(parts.into_iter().map(Val::str).collect())
}

pub(super) fn lines(run: &Run<'_>, input: &Val, _: &Args<'_>) -> Res<Val> {
    let text = input_text(run, input)?;
    run.items(text.lines().count())?;
    Val::list(text.lines().map(Val::str).collect())
}

pub(super) fn indent(run: &Run<'_>, input: &Val, args: &Args<'_>) -> Res<Val> {
    let text = input.text(run)?;
    let width = args.count(0, 4, MAX_WIDTH)?;
    let (first, blank) = (args.flag(1, false)?, args.flag(2, false)?);
    run.memory(text.len().saturating_add(text.lines().count().saturating_mul(width)))?;
    let prefix = " ".repeat(width);
    let mut out = String::new();
    for (index, line) in text.split('\n').enumerate() {
        if index > 0 {
            out.push('\n');
        }
        if (index > 0 || first) && (blank || !line.is_empty()) {
            out.push_str(&prefix);
        }
        out.push_str(line);
    }
    Ok(Val::str(out))
}

/// Converts a text to a valid DNS label: lower-case letters, digits and `-`, at most 63 characters. If that
/// changes the text, a hash is appended, so that different texts give different labels.
pub(super) fn dns_label(run: &Run<'_>, input: &Val, args: &Args<'_>) -> Res<Val> {
    let text = input_text(run, input)?;
    let most = args.count(0, 63, 63)?;
    if most < 10 {
        return Err(Fault::failed("a label that may be shortened needs at least 10 characters"));
    }
    let mut label = String::new();
    for c in text.chars() {
        match c {
            'a'..='z' | '0'..='9' => label.push(c),
            'A'..='Z' => label.push(c.to_ascii_lowercase()),
            _ if label.is_empty() || label.ends_with('-') => {}
            _ => label.push('-'),
        }
    }
    let label = label.trim_end_matches('-');
    if *label == *text && label.len() <= most && !label.is_empty() {
        return Ok(Val::Str(text));
    }
    let hash = HEXLOWER.encode(&Sha256::digest(text.as_bytes()));
    let kept = label[..label.len().min(most - 9)].trim_end_matches('-');
    let short = &hash[..8];
    Ok(Val::str(if kept.is_empty() { format!("x-{short}") } else { format!("{kept}-{short}") }))
}

/// Quotes a text as a word for a POSIX shell; a list becomes one word per item.
pub(super) fn shell_quote(run: &Run<'_>, input: &Val, _: &Args<'_>) -> Res<Val> {
    let words = match &*input.resolved(run)? {
        Val::List(list) => list.items.iter().map(|item| item.text(run)).collect::<Res<Vec<_>>>()?,
        other => vec![other.text(run)?],
    };
    let mut out = String::new();
    for (index, word) in words.iter().enumerate() {
        if word.contains('\0') {
            return Err(Fault::failed("a shell word cannot contain a NUL character"));
        }
        run.memory(word.len() * 4 + 3)?;
        if index > 0 {
            out.push(' ');
        }
        out.push('\'');
        out.push_str(&word.replace('\'', r"'\''"));
        out.push('\'');
    }
    Ok(Val::str(out))
}

/// A literal of standard SQL, as `PostgreSQL`'s `quote_literal` writes it.
pub(super) fn sql_literal(run: &Run<'_>, input: &Val, _: &Args<'_>) -> Res<Val> {
    Ok(match &*input.resolved(run)? {
        Val::Null => Val::str("NULL"),
        Val::Bool(bool) => Val::str(if *bool { "TRUE" } else { "FALSE" }),
        number @ (Val::Int(_) | Val::Float(_)) => Val::Str(number.text(run)?),
        other => {
            let text = other.text(run)?;
            if text.contains('\0') {
                return Err(Fault::failed("an SQL literal cannot contain a NUL character"));
            }
            run.memory(text.len() * 2 + 4)?;
            let quoted = text.replace('\'', "''");
            Val::str(if quoted.contains('\\') {
                format!(" E'{}'", quoted.replace('\\', r"\\"))
            } else {
                format!("'{quoted}'")
            })
        }
    })
}

pub(super) fn urlencode(run: &Run<'_>, input: &Val, _: &Args<'_>) -> Res<Val> {
    let text = input.text(run)?;
    run.memory(text.len().saturating_mul(3))?;
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' | b'/' => {
                out.push(byte.into());
            }
            _ => {
                let _ = write!(out, "%{byte:02X}");
            }
        }
    }
    Ok(Val::str(out))
}

/// One field of a `printf` format.
#[derive(Default)]
#[allow(clippy::struct_excessive_bools)] // They are the flags of the format.
struct Field {
    left: bool,
    zero: bool,
    plus: bool,
    space: bool,
    alternate: bool,
    width: usize,
    precision: Option<usize>,
}

/// Formats values as `printf` does: `'%s-%03d' | format(name, number)`.
pub(super) fn format(run: &Run<'_>, input: &Val, args: &Args<'_>) -> Res<Val> {
    let format = input.text(run)?;
    run.memory(format.len())?;
    let mut out = String::new();
    let mut values = args.rest().iter();
    let mut chars = format.chars().peekable();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut field = Field::default();
        while let Some(flag) = chars.next_if(|c| "-0+ #".contains(*c)) {
            match flag {
                '-' => field.left = true,
                '0' => field.zero = true,
                '+' => field.plus = true,
                ' ' => field.space = true,
                _ => field.alternate = true,
            }
        }
        field.width = digits(&mut chars, "width")?.unwrap_or(0);
        if chars.next_if_eq(&'.').is_some() {
            field.precision = Some(digits(&mut chars, "precision")?.unwrap_or(0));
        }
        let Some(conversion) = chars.next() else {
            return Err(Fault::failed("the format ends within a field"));
        };
        if conversion == '%' {
            out.push('%');
            continue;
        }
        let Some(Some(value)) = values.next() else {
            return Err(Fault::failed("the format has more fields than there are values"));
        };
        let text = convert(run, &field, conversion, value.defined()?)?;
        run.memory(text.len())?;
        out.push_str(&text);
    }
    if values.next().is_some() {
        return Err(Fault::failed("the format has fewer fields than there are values"));
    }
    Ok(Val::str(out))
}

fn digits(chars: &mut std::iter::Peekable<std::str::Chars<'_>>, what: &str) -> Res<Option<usize>> {
    let mut number = None;
    while let Some(digit) = chars.next_if(char::is_ascii_digit) {
        let next = number.unwrap_or(0_usize) * 10 + digit.to_digit(10).unwrap_or(0) as usize;
        if next > MAX_WIDTH {
            return Err(too_much(what, MAX_WIDTH));
        }
        number = Some(next);
    }
    Ok(number)
}

fn convert(run: &Run<'_>, field: &Field, conversion: char, value: &Val) -> Res<String> {
    let (sign, prefix, body) = match conversion {
        's' => {
            let text = value.text(run)?;
            let body: String = text.chars().take(field.precision.unwrap_or(usize::MAX)).collect();
            return Ok(pad(field, "", "", &body, false));
        }
        'c' => {
            let body = value.text(run)?;
            if body.chars().count() != 1 {
                return Err(Fault::failed("`%c` takes one character"));
            }
            return Ok(pad(field, "", "", &body, false));
        }
        'd' | 'i' | 'u' | 'x' | 'X' | 'o' => {
            let int = match value {
                Val::Int(int) => *int,
                #[allow(clippy::cast_possible_truncation)] // Checked by the range.
                Val::Float(float) if float.abs() < 1e18 => float.trunc() as i128,
                other => {
                    return Err(Fault::failed(format!(
                        "`%{conversion}` takes a number, not {}",
                        other.kind()
                    )));
                }
            };
            let magnitude = int.unsigned_abs();
            let (prefix, body) = match conversion {
                'x' => ("0x", format!("{magnitude:x}")),
                'X' => ("0X", format!("{magnitude:X}")),
                'o' => ("0o", format!("{magnitude:o}")),
                _ => ("", magnitude.to_string()),
            };
            let body = format!("{body:0>width$}", width = field.precision.unwrap_or(0));
            (int < 0, if field.alternate { prefix } else { "" }, body)
        }
        'f' | 'F' | 'e' | 'E' | 'g' | 'G' => {
            let float = super::numbers::to_float(value).ok_or_else(|| {
                Fault::failed(format!("`%{conversion}` takes a number, not {}", value.kind()))
            })?;
            let (magnitude, precision) = (float.abs(), field.precision.unwrap_or(6));
            let body = match conversion {
                'f' | 'F' => format!("{magnitude:.precision$}"),
                'e' => exponent(&format!("{magnitude:.precision$e}")),
                'E' => exponent(&format!("{magnitude:.precision$e}")).to_uppercase(),
                _ => magnitude.to_string(),
            };
            (float < 0.0, "", body)
        }
        other => {
            return Err(Fault::failed(format!("`format` does not support `%{other}`"))
                .help("it supports %s %d %x %X %o %f %e %g %c and %%"));
        }
    };
    let sign = match (sign, field.plus, field.space) {
        (true, ..) => "-",
        (_, true, _) => "+",
        (_, _, true) => " ",
        _ => "",
    };
    Ok(pad(field, sign, prefix, &body, true))
}

/// Converts an exponent to the notation of C: `1.5e3` becomes `1.5e+03`.
fn exponent(text: &str) -> String {
    match text.split_once('e') {
        Some((mantissa, exponent)) => {
            let exponent: i32 = exponent.parse().unwrap_or(0);
            format!("{mantissa}e{exponent:+03}")
        }
        None => text.to_owned(),
    }
}

fn pad(field: &Field, sign: &str, prefix: &str, body: &str, number: bool) -> String {
    let length = sign.len() + prefix.len() + body.chars().count();
    let missing = field.width.saturating_sub(length);
    if field.left {
        format!("{sign}{prefix}{body}{}", " ".repeat(missing))
    } else if field.zero && number {
        format!("{sign}{prefix}{}{body}", "0".repeat(missing))
    } else {
        format!("{}{sign}{prefix}{body}", " ".repeat(missing))
    }
}
