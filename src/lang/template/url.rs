//! URLs with values: the part of the URL in which a value is, and the encoding that keeps it from changing
//! the rest.

use super::code::{Piece, Stmt};
use super::errors::{Fault, Res};
use super::eval::Cx;
use super::limits::Run;
use super::reads::Reads;
use super::scope::Scope;
use super::text::TextUnit;
use super::value::Val;
use super::{Engine, EvalError, Text};
use crate::diag::{Diagnostic, Location};

/// The part of a URL in which a value is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UrlPart {
    /// The scheme, the host or the port.
    Authority,
    /// The path.
    Path,
    /// The query or the fragment.
    Query,
}

impl UrlPart {
    /// The part to which the next character after `url` belongs.
    fn after(url: &str) -> Self {
        let Some(scheme) = url.find("://") else { return Self::Authority };
        let rest = &url[scheme + 3..];
        match rest.find(['/', '?', '#', '\\']) {
            None => Self::Authority,
            Some(_) if rest.contains(['?', '#']) => Self::Query,
            Some(_) => Self::Path,
        }
    }
}

/// A value in a URL.
#[derive(Debug)]
pub struct UrlValue {
    /// The part of the URL in which it is.
    pub part: UrlPart,
    /// The paths that it reads, without following `let`s.
    pub reads: Reads,
    /// The location of its expression.
    pub location: Location,
}

impl Engine {
    /// Evaluates a text as a URL. A value in the path or in the query is percent-encoded; a list in the path
    /// becomes several segments. A value after `://` is a host and a port.
    ///
    /// # Errors
    /// A value is missing or cannot be part of a URL: an empty path segment, `..`, a host with other
    /// characters.
    pub fn eval_url(&self, text: &Text, scope: &Scope) -> Result<String, EvalError> {
        self.run(scope, |run| {
            let unit = match &*text.0 {
                TextUnit::Literal(value, _) => {
                    return value
                        .as_str()
                        .map(str::to_owned)
                        .ok_or_else(|| Fault::failed("a URL must be a string"));
                }
                TextUnit::Template(unit) => unit,
            };
            let mut pieces = Vec::new();
            Cx::new(run, scope, unit).exec(&unit.body, &mut pieces)?;
            let mut url = Url::default();
            for piece in &pieces {
                match piece {
                    Piece::Raw(raw, _) => url.text.push_str(raw),
                    Piece::Slot(slot) => {
                        let value = slot.val.clone();
                        let put = value.and_then(|value| url.put(run, &value));
                        put.map_err(|fault| fault.at(&unit.source, slot.span))?;
                    }
                }
            }
            url.finish().map_err(|fault| match pieces.iter().find(|piece| matches!(piece, Piece::Slot(_))) {
                Some(Piece::Slot(slot)) => fault.at(&unit.source, slot.span),
                _ => fault,
            })
        })
    }

    /// The values of a URL, in order.
    ///
    /// # Errors
    /// The text has statements, so the positions of its values are unknown.
    pub fn url_values(&self, text: &Text) -> Result<Vec<UrlValue>, Diagnostic> {
        let TextUnit::Template(unit) = &*text.0 else { return Ok(Vec::new()) };
        let mut written = String::new();
        let mut found = Vec::new();
        for stmt in &unit.body {
            match stmt {
                Stmt::Raw(raw, _) => {
                    // A value before the text may have been the scheme and the host.
                    if found.is_empty() || written.contains("://") {
                        written.push_str(raw);
                    } else {
                        written.push_str("x://");
                        written.push_str(raw.trim_start_matches("://"));
                    }
                }
                Stmt::Emit(node) => {
                    let (reads, _) = self.reads_of_node(node, unit);
                    let location = Location::new(&unit.source, node.span);
                    found.push(UrlValue { part: UrlPart::after(&written), reads, location });
                }
                _ => {
                    let error = Diagnostic::error("package::url", "a URL cannot have statements");
                    let error = text.location().map_or(error.clone(), |at| error.located(at));
                    return Err(error.help("use an expression: \"{{ 'a' if x else 'b' }}\""));
                }
            }
        }
        Ok(found)
    }
}

/// A URL under construction.
#[derive(Default)]
struct Url {
    text: String,
    /// The ranges that values have in the path.
    values: Vec<(usize, usize)>,
}

impl Url {
    fn put(&mut self, run: &Run<'_>, value: &Val) -> Res<()> {
        if matches!(value, Val::Omit) {
            return Err(Fault::failed("`omit` has no effect in a URL"));
        }
        let value = &*value.resolved(run)?;
        let part = UrlPart::after(&self.text);
        if let (UrlPart::Path, Val::List(_)) = (part, value) {
            let start = self.text.len();
            self.values.push((start, start));
            for (index, segment) in value.iterate(run)?.iter().enumerate() {
                if index > 0 {
                    self.text.push('/');
                }
                self.put(run, segment)?;
            }
            return Ok(());
        }
        let value = value.text(run)?;
        run.memory(value.len().saturating_mul(3))?;
        let start = self.text.len();
        match part {
            UrlPart::Authority => {
                let is_host = |c: char| c.is_ascii_alphanumeric() || ".-_:[]".contains(c);
                if self.text.contains("://") && !value.chars().all(is_host) {
                    let fault = Fault::failed("the value is not a host, or a host and a port");
                    return Err(fault.help("write the scheme and the path in the URL itself"));
                }
                self.text.push_str(&value);
            }
            UrlPart::Path => {
                encode(&value, &mut self.text);
                self.values.push((start, self.text.len()));
            }
            UrlPart::Query => encode(&value, &mut self.text),
        }
        Ok(())
    }

    /// The finished URL. An error if one of its values would change the path, for instance `..`.
    fn finish(self) -> Res<String> {
        for (start, end) in self.values {
            let first = self.text[..start].rfind('/').map_or(start, |slash| slash + 1);
            let last = self.text[end..].find(['/', '?', '#']).map_or(self.text.len(), |slash| end + slash);
            let segment = self.text[first..last].to_ascii_lowercase().replace("%2e", ".");
            let problem = match segment.as_str() {
                "" => "a path segment of the URL is empty",
                "." | ".." => "a path segment of the URL is `.` or `..`",
                _ => continue,
            };
            return Err(Fault::failed(problem)
                .help("require the value: `when: ... is defined`, or a pattern in the CRD"));
        }
        Ok(self.text)
    }
}

/// Percent-encodes all characters but letters, digits and `-._~`.
fn encode(text: &str, out: &mut String) {
    const HEX: [char; 16] = ['0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'A', 'B', 'C', 'D', 'E', 'F'];
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push('%');
            out.push(HEX[usize::from(byte >> 4)]);
            out.push(HEX[usize::from(byte & 15)]);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::diag::{Source, Span};
    use crate::template::Var;

    fn text(source: &str) -> (Engine, Text) {
        let engine = Engine::empty();
        let file = Source::new("a.yaml", source);
        let text = engine.text(source, &Location::new(&file, Span::new(0, source.len()))).unwrap();
        (engine, text)
    }

    fn url(source: &str, spec: serde_json::Value) -> Result<String, String> {
        let (engine, text) = text(source);
        let defaults =
            json!({"api": "http://api.svc:8080", "base": "https://api.svc/v1/", "host": "api.svc:80"});
        let scope = Scope::new().with("spec", Var::Json(spec)).with("defaults", Var::Json(defaults));
        engine.eval_url(&text, &scope).map_err(|error| error.diagnostic().unwrap().message.clone())
    }

    #[test]
    fn values_are_encoded_for_their_part_of_the_url() {
        for (source, value, expected) in [
            ("http://a/b", json!(""), "http://a/b"),
            (
                "{{ defaults.api }}/x/{{ spec.id }}",
                json!("a/b c?#%é"),
                "http://api.svc:8080/x/a%2Fb%20c%3F%23%25%C3%A9",
            ),
            ("{{ defaults.base }}{{ spec.id }}/y", json!(7), "https://api.svc/v1/7/y"),
            (
                "http://{{ defaults.host }}/x?q={{ spec.id }}&r=1",
                json!("a&b=c/.."),
                "http://api.svc:80/x?q=a%26b%3Dc%2F..&r=1",
            ),
            ("{{ defaults.api }}?q={{ spec.id }}", json!(""), "http://api.svc:8080?q="),
            ("{{ defaults.api }}/v{{ spec.id }}", json!(""), "http://api.svc:8080/v"),
            ("{{ defaults.api }}/a.{{ spec.id }}", json!("."), "http://api.svc:8080/a.."),
            ("http://{{ spec.id }}.example.com/", json!("a"), "http://a.example.com/"),
            ("{{ defaults.api }}/{{ spec.id }}/c", json!(["a", "b/b", 3]), "http://api.svc:8080/a/b%2Fb/3/c"),
            ("{{ spec.id }}", json!("https://x.y/z?a=b"), "https://x.y/z?a=b"),
        ] {
            assert_eq!(url(source, json!({"id": value})).as_deref(), Ok(expected), "{source}");
        }
    }

    #[test]
    fn values_cannot_change_the_path_or_the_host() {
        for (source, value) in [
            ("{{ defaults.api }}/x/{{ spec.id }}", json!("")),
            ("{{ defaults.api }}/x/{{ spec.id }}", json!("..")),
            ("{{ defaults.api }}/x/.{{ spec.id }}/y", json!(".")),
            ("{{ defaults.api }}/x/%2E{{ spec.id }}", json!(".")),
            ("{{ defaults.api }}/x/{{ spec.id }}", json!(null)),
            ("{{ defaults.api }}/x/{{ spec.id }}", json!(["a", ".."])),
            ("{{ defaults.api }}/x/{{ spec.id }}", json!([])),
            ("{{ defaults.api }}/x/{{ spec.id }}", json!([["a"], {"b": 1}])),
            ("{{ defaults.api }}/x?a={{ spec.id }}", json!(["a"])),
            ("http://{{ spec.id }}/", json!("a/b")),
            ("http://{{ spec.id }}/", json!("good@evil")),
            ("http://{{ spec.id }}.example.com/", json!("evil.com#")),
            ("http://{{ spec.id }}.example.com/", json!("evil.com\\")),
            ("http://{{ spec.id }}.example.com/", json!("evil.com?")),
            ("{{ defaults.api }}{{ spec.id }}/", json!("@evil.com")),
        ] {
            assert!(url(source, json!({"id": value.clone()})).is_err(), "{source} {value}");
        }
    }

    #[test]
    fn url_parts_are_known_without_evaluation() {
        use UrlPart::{Authority, Path, Query};
        for (source, expected) in [
            ("{{ a }}/x/{{ b }}?c={{ c }}&d={{ d }}", vec![Authority, Path, Query, Query]),
            ("{{ a }}{{ b }}", vec![Authority, Authority]),
            ("{{ a }}.b{{ c }}/{{ d }}", vec![Authority, Authority, Path]),
            ("{{ a }}://{{ b }}:{{ c }}/{{ d }}", vec![Authority, Authority, Authority, Path]),
            ("http://{{ a }}:{{ b }}/{{ c }}", vec![Authority, Authority, Path]),
            ("http://a/{{ b }}{{ c }}#{{ d }}", vec![Path, Path, Query]),
            ("http://a?{{ b }}/{{ c }}", vec![Query, Query]),
        ] {
            let (engine, text) = text(source);
            let found: Vec<_> =
                engine.url_values(&text).unwrap().into_iter().map(|value| value.part).collect();
            assert_eq!(found, expected, "{source}");
        }
        let (engine, text) = text("http://a/{% if b %}x{% endif %}");
        assert!(engine.url_values(&text).is_err());
    }
}
