//! The names in a world that the package or its cases give: environment variables, words of commands, hosts and paths.

use operetta_lang::diag::Location;
use operetta_lang::template::{Reads, Segment};

use super::pattern::{Pattern, split_url};
use super::rules::Rules;
use super::sites::{Code, sites};

/// What a name is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mentioned {
    /// An environment variable that an expression needs.
    Variable,
    /// A word of a command.
    Word,
    /// The host of a URL.
    Host,
    /// A part of the path of a URL.
    Part,
}

/// A name in a world.
#[derive(Debug, Clone)]
pub struct Mention {
    /// What it is.
    pub what: Mentioned,
    /// The name.
    pub text: String,
    /// Where it is.
    pub at: Location,
    /// The path of the value that it is in.
    pub path: String,
}

/// The names in a file. Those that are captured or computed are left out.
pub(super) fn mentions(rules: &Rules) -> Vec<Mention> {
    let mut found = Vec::new();
    for site in sites(rules) {
        let reads = match site.code {
            Code::Expression(expr) => expr.reads(),
            Code::Text(text) => text.reads(),
        };
        variables(reads, site.path, &mut found);
    }
    for (name, text) in rules.lets.iter() {
        variables(text.reads(), &format!("let.{name}"), &mut found);
    }
    for rule in &rules.exec {
        let path = format!("{}.command", rule.written.path);
        let words = rule.command.patterns().filter_map(Pattern::literal);
        found.extend(words.map(|word| mention(Mentioned::Word, word, &rule.written.at, &path)));
    }
    for rule in &rules.http {
        let (key, at) = (if rule.is_pod { "path" } else { "url" }, &rule.written.at);
        let path = format!("{}.{key}", rule.written.path);
        let (whole, origin, _) = split_url(rule.url.written());
        let (of_url, rest) = if rule.is_pod { ("", whole) } else { (origin, &whole[origin.len()..]) };
        let host = of_url.split_once("://").map_or(of_url, |(_, host)| host);
        let host = host.split_once(':').map_or(host, |(host, _)| host);
        let parts = rest.split('/').map(|part| (Mentioned::Part, part));
        let named = std::iter::once((Mentioned::Host, host)).chain(parts);
        let named = named.filter(|(_, text)| !text.is_empty() && !text.contains(['{', '%']));
        found.extend(named.map(|(what, text)| mention(what, text, at, &path)));
    }
    found
}

fn mention(what: Mentioned, text: &str, at: &Location, path: &str) -> Mention {
    Mention { what, text: text.to_owned(), at: at.clone(), path: path.to_owned() }
}

/// The environment variables that an expression needs.
fn variables(reads: &Reads, path: &str, found: &mut Vec<Mention>) {
    let needed = reads.paths.iter().filter(|read| read.root == "env" && !read.guarded);
    found.extend(needed.filter_map(|read| {
        let name = read.segments.first().and_then(Segment::as_key)?;
        Some(mention(Mentioned::Variable, name, &read.location, path))
    }));
}
