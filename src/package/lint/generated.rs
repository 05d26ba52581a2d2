//! Generated values (those of `password`, `tls_signed` and their like) must be the whole value of a field, because the manager
//! replaces a marker in the rendered object, and a marker cannot be part of a text.

use crate::diag::{Diagnostic, Location};

/// The position of a `{{ }}` block in the text around it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Quoting {
    Alone,
    Quoted,
    InText,
    Block,
}

/// The error for a call that generates a value and is quoted or part of a text.
pub(crate) fn not_alone(call: &Location) -> Option<Diagnostic> {
    let message = match quoting(&call.source.text, call.span.start, call.span.end)? {
        Quoting::Alone => return None,
        Quoting::Quoted => "a generated value is in quotes: it must be the whole value, without quotes",
        Quoting::InText => "a generated value is next to other text: it must be the whole value",
        Quoting::Block => "a generated value is in a block of text: it must be the whole value",
    };
    let error = Diagnostic::error("package::password", message).located(call.clone());
    Some(
        error
            .help("write it alone: `password: {{ password(32) }}`; move the surrounding text to another key"),
    )
}

/// The position of the `{{ }}` block around a range; `None` outside a block.
pub(super) fn quoting(text: &str, start: usize, end: usize) -> Option<Quoting> {
    let open = text.get(..start)?.rfind("{{")?;
    if text[open..start].contains("}}") {
        return None; // a statement
    }
    let close = end + text.get(end..)?.find("}}")? + 2;
    let line_start = text[..open].rfind('\n').map_or(0, |at| at + 1);
    let before = text[line_start..open].trim();
    let after = text[close..].lines().next().unwrap_or_default().trim();
    if before.ends_with(['"', '\'']) && after.starts_with(['"', '\'']) {
        return Some(Quoting::Quoted);
    }
    if after.starts_with(':') && (before.is_empty() || before.ends_with(['{', ',', '-'])) {
        return Some(Quoting::Alone); // a key
    }
    let is_apart = text[line_start..open].ends_with(|c: char| c.is_whitespace() || "[{,".contains(c));
    let begins = before.is_empty() || is_apart && before.ends_with([':', '-', '[', '{', ',']);
    let ends = after.is_empty() || after.starts_with([',', ']', '}', '#']) || after.starts_with("{%");
    if !begins && !before.ends_with("%}") || !ends {
        return Some(Quoting::InText);
    }
    let header = text[..line_start].lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
    let header = header.trim_end().trim_end_matches(['-', '+']);
    if before.is_empty() && header.ends_with(['|', '>']) {
        return Some(Quoting::Block);
    }
    Some(Quoting::Alone)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_value_must_be_the_whole_value() {
        for (text, wanted) in [
            ("a: {{ password(16) }}", Some(Quoting::Alone)),
            ("a: {b: {{ password(16) }}, c: d}", Some(Quoting::Alone)),
            ("a: {{ password(16) }} # the password", Some(Quoting::Alone)),
            ("a:\n  {{ password(16) }}\nb: c", Some(Quoting::Alone)),
            ("a: {% if x %}{{ password(16) }}{% endif %}", Some(Quoting::Alone)),
            ("a: {{ password(16) if spec.x else omit }}", Some(Quoting::Alone)),
            ("a: \"{{ password(16) }}\"", Some(Quoting::Quoted)),
            ("{a: '{{ password(16) }}'}", Some(Quoting::Quoted)),
            ("a: x{{ password(16) }}", Some(Quoting::InText)),
            ("a: x-{{ password(16) }}", Some(Quoting::InText)),
            ("- {{ password(16) }}", Some(Quoting::Alone)),
            ("a: {{ password(16) }}x", Some(Quoting::InText)),
            ("a: \"postgres://u:{{ password(16) }}@h\"", Some(Quoting::InText)),
            ("a: |-\n  {{ password(16) }}", Some(Quoting::Block)),
            ("a: >\n\n  {{ password(16) }}", Some(Quoting::Block)),
            ("{{ x }} {% set p = password(16) %}", None),
        ] {
            let start = text.find("password(16)").unwrap();
            assert_eq!(quoting(text, start, start + 12), wanted, "{text}");
        }
    }
}
