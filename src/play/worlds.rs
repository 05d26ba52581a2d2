//! Checks worlds: by themselves, and whether what they name occurs in the packages and cases that they are for.
//!
//! A name counts as known if it occurs anywhere in these files: it may be computed, or used by people.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use operetta_embedded::{Mention, Mentioned, World};
use operetta_lang::schema::Kubernetes;
use serde_json::{Map, Value};

use super::suite::{Action, Break, Suite};
use crate::diag::{Diagnostic, Source, did_you_mean};
use crate::package::plan::{self, Http, Plan};
use crate::package::{Call, Package, Ref, Resource, Tree};
use crate::template::{Known, Pattern, PatternPart};

/// How many bytes of texts are searched for names.
const MOST_SEARCHED: usize = 1 << 30;

/// The mistakes of worlds. `alone` is one that no file of cases uses; `read`: the files that cases name.
pub(super) fn wrong<'s>(
    suites: &'s [Suite],
    alone: Option<&'s World>,
    package: &Package,
    read: impl Iterator<Item = &'s Arc<Source>>,
    kubernetes: &Kubernetes,
) -> Vec<Diagnostic> {
    let worlds = suites.iter().filter_map(|suite| suite.world.as_ref()).chain(alone);
    let worlds: BTreeMap<Vec<&str>, &World> =
        worlds.map(|world| (world.files().collect::<Vec<_>>(), world)).collect();
    if worlds.is_empty() {
        return Vec::new();
    }
    let names: BTreeSet<&str> = worlds.keys().flatten().copied().collect();
    let texts = read.filter(|source| !names.contains(&*source.name)).map(|source| &*source.text);
    let texts: Vec<&str> = texts.chain(package.files.iter().map(|(_, source)| &*source.text)).collect();
    let asked = Asked::of(suites, package);
    let size: usize = texts.iter().map(|text| text.len()).sum();
    let mut rest = MOST_SEARCHED / size.max(1);
    let mut words = None;
    let mut found = Vec::new();
    for world in worlds.values() {
        found.extend(world.check(kubernetes));
        for mention in world.mentions().into_iter().take(rest) {
            rest -= 1;
            let is_known = match mention.what {
                Mentioned::Variable => words.get_or_insert_with(|| Words::of(&texts)).has(&mention.text),
                Mentioned::Word => texts.iter().any(|text| has_word(text, &mention.text)),
                Mentioned::Host | Mentioned::Part => texts.iter().any(|text| text.contains(&mention.text)),
            };
            if !is_known {
                let variables = words.as_ref().map_or(&[][..], |words| words.variables.as_slice());
                found.extend(asked.unknown(&mention, variables));
            }
        }
    }
    found
}

/// The words of texts, in lower case.
struct Words {
    whole: BTreeSet<String>,
    /// What stands beside an expression: a part of a computed name.
    beginnings: BTreeSet<String>,
    ends: BTreeSet<String>,
    /// Words that look like environment variables.
    variables: Vec<String>,
}

/// The shortest part of a computed name that says something.
const SHORTEST: usize = 2;

impl Words {
    fn of(texts: &[&str]) -> Self {
        let texts = || texts.iter().copied();
        let all = texts().flat_map(|text| text.split(|c: char| !is_in_word(c)));
        let all: BTreeSet<&str> = all.filter(|word| !word.is_empty()).collect();
        let variables = all.iter().filter(|word| is_variable(word));
        Self {
            variables: variables.map(|word| (*word).to_owned()).collect(),
            whole: all.iter().map(|word| word.to_ascii_lowercase()).collect(),
            beginnings: texts().flat_map(|text| beside(text, "{{", true)).collect(),
            ends: texts().flat_map(|text| beside(text, "}}", false)).collect(),
        }
    }

    /// Whether a name occurs, or may be computed.
    fn has(&self, name: &str) -> bool {
        let name = name.to_ascii_lowercase();
        self.whole.contains(&name)
            || self.beginnings.iter().any(|part| name.starts_with(&**part))
            || self.ends.iter().any(|part| name.ends_with(&**part))
    }
}

/// Whether a text has this word, and not only longer ones with it.
fn has_word(text: &str, word: &str) -> bool {
    let mut places = text.match_indices(word);
    places
        .any(|(at, _)| !text[..at].ends_with(is_in_word) && !text[at + word.len()..].starts_with(is_in_word))
}

fn is_in_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// Whether a word looks like the name of an environment variable.
fn is_variable(word: &str) -> bool {
    let is_usual = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
    word.len() > SHORTEST && word.chars().all(is_usual)
}

/// The words that stand directly before or after a sign, in lower case.
fn beside(text: &str, sign: &str, is_before: bool) -> Vec<String> {
    let places = text.match_indices(sign).map(|(at, _)| {
        let part = if is_before {
            text[..at].rsplit(|c: char| !is_in_word(c)).next()
        } else {
            text[at + sign.len()..].split(|c: char| !is_in_word(c)).next()
        };
        part.unwrap_or_default().to_ascii_lowercase()
    });
    places.filter(|part| part.len() >= SHORTEST).collect()
}

/// What packages and cases ask of programs, as far as it does not depend on values.
#[derive(Default)]
struct Asked {
    words: BTreeSet<String>,
    hosts: BTreeSet<String>,
    parts: BTreeSet<String>,
    /// Whether a host depends on values.
    has_computed_host: bool,
}

impl Asked {
    fn of(suites: &[Suite], package: &Package) -> Self {
        let mut asked = Self::default();
        let steps = || suites.iter().flat_map(|suite| &suite.cases).flat_map(|case| &case.steps);
        for step in steps() {
            match &step.action {
                Action::Exec(command) => asked.words.extend(command.words.iter().cloned()),
                Action::Break(Break::Commands(fault)) => asked.words.extend(fault.words.iter().cloned()),
                _ => {}
            }
        }
        let upgrades = steps().filter_map(|step| match &step.action {
            Action::Upgrade(package) => Some(&**package),
            _ => None,
        });
        let others = suites.iter().flat_map(|suite| &suite.packages).map(|package| &**package);
        for package in std::iter::once(package).chain(others).chain(upgrades) {
            for resource in &package.resources {
                for call in resource.refs.iter().filter_map(Ref::call) {
                    match call {
                        Call::Exec(exec) => asked.command(&exec.command),
                        Call::Http(http) => asked.request(package, resource, http),
                    }
                }
                for step in resource.plans.iter().flat_map(Plan::all_steps) {
                    match &step.action {
                        plan::Action::Exec(exec) => asked.command(&exec.command),
                        plan::Action::Http(http) => asked.request(package, resource, http),
                        _ => {}
                    }
                }
            }
        }
        asked
    }

    fn command(&mut self, tree: &Tree) {
        match tree {
            Tree::Text(text) => {
                self.words.extend(text.as_literal().and_then(Value::as_str).map(str::to_owned));
            }
            Tree::List(items) => items.iter().for_each(|item| self.command(item)),
            Tree::Map(_) => {}
        }
    }

    fn request(&mut self, package: &Package, resource: &Resource, http: &Http) {
        let empty = Map::new();
        let defaults = package.defaults.as_object().unwrap_or(&empty);
        let pattern = package.engine.pattern(&http.url, Known { lets: &resource.lets, defaults });
        if http.to.is_none() {
            let host = host_of(&pattern);
            self.has_computed_host |= host.is_none();
            let listed = http.hosts.iter().filter(|host| !host.starts_with("*."));
            self.hosts.extend(host.into_iter().chain(listed.cloned()));
        }
        for part in &pattern.0 {
            if let PatternPart::Text(text) = part {
                self.parts.extend(text.split('/').map(str::to_owned));
            }
        }
    }

    /// The warning about a name that occurs nowhere, unless it may be meant. `variables`: words that look like variables.
    fn unknown(&self, mention: &Mention, variables: &[String]) -> Option<Diagnostic> {
        let Mention { what, text, at, path } = mention;
        let near = |known: &BTreeSet<String>| {
            did_you_mean(text, known.iter().map(String::as_str))
                .map(|meant| format!("did you mean `{meant}`?"))
        };
        let (code, message, help) = match what {
            Mentioned::Variable => {
                let meant = did_you_mean(text, variables.iter().map(String::as_str));
                let help = meant.map(|meant| format!("did you mean `env.{meant}`?"));
                let help =
                    help.unwrap_or_else(|| "set it in `env` of a container, or remove it here".to_owned());
                ("world::variable", format!("no template sets the environment variable `{text}`"), help)
            }
            Mentioned::Word => {
                let help = near(&self.words);
                // Other words may be for people.
                let help = help.or_else(|| text.starts_with('/').then(|| "remove the rule".to_owned()))?;
                ("world::command", format!("no step and no case runs a command with `{text}`"), help)
            }
            Mentioned::Host => {
                let known = || self.hosts.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
                let is_sure = !self.has_computed_host && !self.hosts.is_empty();
                let help = near(&self.hosts);
                let help = help.or_else(|| is_sure.then(|| format!("requests go to {}", known())))?;
                ("world::request", format!("no request goes to the host `{text}`"), help)
            }
            Mentioned::Part => {
                ("world::request", format!("no request has `{text}` in its path"), near(&self.parts)?)
            }
        };
        Some(Diagnostic::warning(code, message).located(at.clone()).path(path.clone()).help(help))
    }
}

/// The host of a URL, if it does not depend on values.
fn host_of(url: &Pattern) -> Option<String> {
    let PatternPart::Text(text) = url.0.first()? else { return None };
    let (_, rest) = text.split_once("://")?;
    let host = match rest.split_once('/') {
        Some((host, _)) => host,
        None if url.0.len() == 1 => rest,
        None => return None,
    };
    Some(host.split_once(':').map_or(host, |(host, _)| host).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_that_may_be_computed_are_known() {
        let words = Words::of(&["- {name: MODE}\n- {name: \"APP_{{ key }}\"}\n- {name: \"{{ key }}_PORT\"}"]);
        for name in ["MODE", "mode", "APP_X", "DB_PORT"] {
            assert!(words.has(name), "{name}");
        }
        for name in ["MOD", "MODES", "XAPP_", "PORT_X"] {
            assert!(!words.has(name), "{name}");
        }
        assert_eq!(words.variables, ["APP_", "MODE", "_PORT"]);
    }

    #[test]
    fn words_are_whole() {
        for (text, word, wanted) in [
            ("[tool, SAVE]", "SAVE", true),
            ("[tool, SAVE]", "SAV", false),
            ("[tool, --raw]", "--raw", true),
            ("--rawer --raw", "--raw", true),
            ("/bin/tool.sh", "/bin/tool", true),
        ] {
            assert_eq!(has_word(text, word), wanted, "{text} {word}");
        }
    }

    #[test]
    fn host_of_a_url_is_known_if_it_is_literal() {
        let text = |text: &str| PatternPart::Text(text.to_owned());
        let host = |parts: Vec<PatternPart>| host_of(&Pattern(parts));
        assert_eq!(host(vec![text("https://a.b:80/c"), PatternPart::Unknown]).as_deref(), Some("a.b"));
        assert_eq!(host(vec![text("https://a.b")]).as_deref(), Some("a.b"));
        assert_eq!(host(vec![text("https://a."), PatternPart::Instance]), None);
        assert_eq!(host(vec![PatternPart::Unknown, text("/c")]), None);
    }
}
