//! Generated values (those of `password`, `tls_signed` and their like): each is kept in a key that it is the whole value of.
//! Other keys, and texts, may have it as well.

use crate::diag::{Diagnostic, Location};
use crate::template::Template;

/// The position of a `{{ }}` block in the text around it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Quoting {
    Alone,
    Quoted,
    InText,
    Block,
}

/// The errors about the generated values of the template of a Secret. Those that depend on an instance are found when it is
/// rendered.
pub(crate) fn mistakes(template: &Template) -> Vec<Diagnostic> {
    let mut found: Vec<Diagnostic> = template.reads().generates.iter().filter_map(not_alone).collect();
    for name in template.generated_names() {
        found.extend(name.computed.iter().map(|at| {
            error("a generated password is known only when it is applied, so nothing can be computed with it", at)
                .help("insert it with `{{ }}`, alone or in a text; what needs another form of it must make that itself")
        }));
        if name.is_passed_on || name.inserted.iter().any(is_whole) {
            continue;
        }
        found
            .extend(name.inserted.first().map(|at| error(NO_KEY, at).help("add a key: `password: {{ p }}`")));
    }
    found
}

const NO_KEY: &str =
    "a generated password in a text must be the whole value of another key, too, where it is kept";

fn error(message: &str, at: &Location) -> Diagnostic {
    Diagnostic::error("package::password", message).located(at.clone())
}

/// Whether an inserted value may be the whole value of a key.
fn is_whole(at: &Location) -> bool {
    quoting(&at.source.text, at.span.start, at.span.end) != Some(Quoting::InText)
}

/// The error for a call that generates a value that is not kept: the call has no name, so no other key can have it.
fn not_alone(call: &Location) -> Option<Diagnostic> {
    let quoting = quoting(&call.source.text, call.span.start, call.span.end)?;
    let is_password =
        call.source.text.get(call.span.start..).is_some_and(|text| text.starts_with("password"));
    Some(match quoting {
        Quoting::Alone => return None,
        Quoting::Quoted if is_password => return None,
        _ if is_password => error(NO_KEY, call).help(
            "name it, and use the name twice: `{% set p = password(32) %}`, then `password: {{ p }}` and `{{ p }}` in the text",
        ),
        _ => error("a certificate is inserted as the whole of stringData or data", call).help(
            "write it alone: `stringData: {{ tls_self_signed([name]) }}`; with a name, `{% set c = ... %}`, `{{ c[\"tls.crt\"] }}` and \
             `{{ c[\"tls.key\"] }}` may be in other keys and in texts, too",
        ),
    })
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
