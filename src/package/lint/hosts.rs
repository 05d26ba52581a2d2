//! Reports `hosts` that the host of a URL can never be.

use serde_json::{Map, Value};

use crate::diag::{Diagnostic, Location};
use crate::plan::{Action, Http, Plan};
use crate::template::{Engine, Known, Pattern, PatternPart};
use crate::{Call, Ref, Resource};

/// Reports requests of which no entry, or not each entry, of `hosts` can be the host.
pub(super) fn check(
    engine: &Engine,
    resource: &Resource,
    defaults: &Map<String, Value>,
    found: &mut Vec<Diagnostic>,
) {
    let known = Known { lets: &resource.lets, defaults };
    let observed = resource.refs.iter().filter_map(|reference| match Ref::call(reference)? {
        Call::Http(http) => Some((&**http, &reference.location)),
        Call::Exec(_) => None,
    });
    let steps = resource.plans.iter().flat_map(Plan::visits).filter_map(|visit| match &visit.step.action {
        Action::Http(http) => Some((&**http, &visit.step.location)),
        _ => None,
    });
    for (http, at) in observed.chain(steps) {
        // Redirects may lead to the others.
        if http.redirects == 0
            && let Some(host) = host_of(&engine.pattern(&http.url, known))
        {
            unmatched(http, &host, at, found);
        }
    }
}

fn unmatched(http: &Http, host: &Pattern, at: &Location, found: &mut Vec<Diagnostic>) {
    let is_never = |entry: &&String| pattern_of(entry).differs(host);
    let never: Vec<&str> = http.hosts.iter().filter(is_never).map(String::as_str).collect();
    if never.is_empty() {
        return;
    }
    let (message, help) = if never.len() == http.hosts.len() {
        (
            format!("the host of the URL, `{host}`, is none of `hosts`: each request would be refused"),
            "correct the URL or `hosts`; `*.` stands for one label",
        )
    } else {
        let message = format!("the host of the URL, `{host}`, can never be {}", never.join(", "));
        (message, "remove it from `hosts`, or correct it")
    };
    let at = http.url.location().unwrap_or_else(|| at.clone());
    found.push(Diagnostic::warning("package::url", message).located(at).help(help));
}

/// The pattern of an entry of `hosts`.
fn pattern_of(entry: &str) -> Pattern {
    match entry.strip_prefix("*.") {
        Some(domain) => Pattern(vec![PatternPart::Unknown, PatternPart::Text(format!(".{domain}"))]),
        None => Pattern::literal(entry),
    }
}

/// The host of a URL; `None` if its beginning is unknown.
fn host_of(url: &Pattern) -> Option<Pattern> {
    let mut host = Vec::new();
    let mut parts = url.0.iter();
    let Some(PatternPart::Text(start)) = parts.next() else { return None };
    let start = start.strip_prefix("https://").or_else(|| start.strip_prefix("http://"))?;
    let start = PatternPart::Text(start.to_owned());
    for part in std::iter::once(&start).chain(parts) {
        let PatternPart::Text(text) = part else {
            // The name of an instance may be any label.
            host.push(PatternPart::Unknown);
            continue;
        };
        let end = text.find(['/', ':', '?', '#', '\\', '@', '[']);
        host.push(PatternPart::Text(text[..end.unwrap_or(text.len())].to_ascii_lowercase()));
        match end.map(|end| &text[end..=end]) {
            None => {}
            Some("@" | "[") => return None,
            Some(_) => break,
        }
    }
    if let Some(PatternPart::Text(last)) = host.last_mut() {
        last.truncate(last.trim_end_matches('.').len());
    }
    Some(Pattern(host))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_is_the_part_after_the_scheme() {
        let text = |text: &str| PatternPart::Text(text.to_owned());
        let of = |parts: &[PatternPart]| host_of(&Pattern(parts.to_vec())).map(|host| host.to_string());
        for (parts, wanted) in [
            (vec![text("https://API.example.com:443/x")], Some("api.example.com")),
            (
                vec![text("http://"), PatternPart::Instance, text(".example.com/"), PatternPart::Unknown],
                Some("{{ ... }}.example.com"),
            ),
            (vec![text("http://a.example.com./")], Some("a.example.com")),
            (vec![text("http://[::1]/")], None),
            (vec![PatternPart::Unknown, text("/x")], None),
        ] {
            assert_eq!(of(&parts).as_deref(), wanted, "{parts:?}");
        }
    }
}
