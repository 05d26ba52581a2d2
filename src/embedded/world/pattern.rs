//! Patterns of commands and URLs, with captures.

use std::fmt::Write as _;

use regex::Regex;

use crate::model::request::decoded;

/// The regular expression of any text.
const ANY: &str = "^(.*)$";

/// The values of captures by name.
pub(super) type Captures = Vec<(String, String)>;

/// A text with captures.
#[derive(Debug)]
pub(super) struct Pattern {
    regex: Regex,
    /// As it is written: a text, or the regular expression of a whole word.
    written: String,
}

impl Pattern {
    /// Text in which `{name}` is a part that fits the regular expression `part`.
    pub(super) fn text(text: &str, part: &str) -> Result<Self, String> {
        if text.contains("{{") {
            return Err("a pattern is no template: `{name}` is a part, and `when` compares values".to_owned());
        }
        let mut regex = "^".to_owned();
        let mut rest = text;
        while let Some((before, name, after)) = placeholder(rest) {
            let _ = write!(regex, "{}(?P<{name}>{part})", regex::escape(before));
            rest = after;
        }
        Self::compile(text, &format!("{regex}{}$", regex::escape(rest)))
    }

    /// A whole text that fits a regular expression.
    pub(super) fn whole(name: &str, regex: &str) -> Result<Self, String> {
        Self::compile(regex, &format!("^(?P<{name}>{regex})$"))
    }

    fn compile(written: &str, regex: &str) -> Result<Self, String> {
        let regex = regex::RegexBuilder::new(regex).dot_matches_new_line(true).size_limit(1 << 20).build();
        regex.map(|regex| Self { regex, written: written.to_owned() }).map_err(|error| {
            let text = error.to_string();
            format!("it is no pattern: {}", text.lines().last().unwrap_or_default().trim())
        })
    }

    /// The names of its captures.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.regex.capture_names().flatten()
    }

    /// The text, if it has no captures.
    pub(super) fn literal(&self) -> Option<&str> {
        self.names().next().is_none().then_some(&*self.written)
    }

    /// As it is written: a text, or the regular expression of a whole word.
    pub(super) fn written(&self) -> &str {
        &self.written
    }

    /// Whether both are the same, the names of captures included.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.regex.as_str() == other.regex.as_str()
    }

    /// Whether it fits each text that another one fits. False if that is not known.
    pub(super) fn covers(&self, other: &Self) -> bool {
        if let Some(text) = other.literal() {
            return self.regex.is_match(text);
        }
        let unnamed = |pattern: &Self| {
            let named = pattern.regex.as_str().to_owned();
            pattern.names().fold(named, |text, name| text.replace(&format!("(?P<{name}>"), "("))
        };
        let own = unnamed(self);
        own == ANY || own == unnamed(other)
    }

    /// Whether the text fits. Its captures are added.
    pub(super) fn fits(&self, text: &str, captures: &mut Captures) -> bool {
        let Some(found) = self.regex.captures(text) else { return false };
        let values =
            self.names().filter_map(|name| Some((name.to_owned(), found.name(name)?.as_str().to_owned())));
        captures.extend(values);
        true
    }
}

/// The first `{name}` of a text, with what is before and after it.
fn placeholder(text: &str) -> Option<(&str, &str, &str)> {
    text.match_indices('{').find_map(|(at, _)| {
        let (name, after) = text[at + 1..].split_once('}')?;
        is_name(name).then_some((&text[..at], name, after))
    })
}

/// Whether a text can be the name of a capture.
pub(super) fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// A command: patterns of its words, and whether any words are between those before and those after.
#[derive(Debug, Default)]
pub(super) struct Command {
    pub(super) before: Vec<Pattern>,
    pub(super) rest: bool,
    pub(super) after: Vec<Pattern>,
}

impl Command {
    /// The captures, if the command fits.
    pub(super) fn captures(&self, words: &[String]) -> Option<Captures> {
        let fixed = self.before.len() + self.after.len();
        let fits = if self.rest { words.len() >= fixed } else { words.len() == fixed };
        if !fits {
            return None;
        }
        let mut captures = Captures::new();
        let last = &words[words.len() - self.after.len()..];
        let mut pairs = words.iter().zip(&self.before).chain(last.iter().zip(&self.after));
        pairs.all(|(word, pattern)| pattern.fits(word, &mut captures)).then_some(captures)
    }

    /// Whether both are the same, the names of captures included.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        let (own, others) = (self.patterns(), other.patterns());
        let has_same_form = self.rest == other.rest
            && self.before.len() == other.before.len()
            && self.after.len() == other.after.len();
        has_same_form && own.zip(others).all(|(own, other)| own.is_same(other))
    }

    /// Whether it fits each command that another one fits. False if that is not known.
    pub(super) fn covers(&self, other: &Self) -> bool {
        let (first, last) = (&other.before, if other.rest { &other.after } else { &other.before });
        let is_long_enough = match (self.rest, other.rest) {
            (false, true) => false,
            (false, false) => first.len() == self.before.len(),
            (true, true) => first.len() >= self.before.len() && last.len() >= self.after.len(),
            (true, false) => first.len() >= self.before.len() + self.after.len(),
        };
        let all = |own: &[Pattern], others: &[Pattern]| {
            own.iter().zip(others).all(|(own, other)| own.covers(other))
        };
        is_long_enough
            && all(&self.before, first)
            && all(&self.after, &last[last.len().saturating_sub(self.after.len())..])
    }

    /// The patterns of its words.
    pub(super) fn patterns(&self) -> impl Iterator<Item = &Pattern> {
        self.before.iter().chain(&self.after)
    }
}

/// A URL without its query and fragment, its origin, and the parameters of the query.
pub(super) fn split_url(url: &str) -> (&str, &str, Captures) {
    let whole = url.split_once('#').map_or(url, |(whole, _)| whole);
    let (path, query) = whole.split_once('?').unwrap_or((whole, ""));
    let host = path.find("://").map_or(0, |at| at + 3);
    let origin = path[host..].find('/').map_or(path, |at| &path[..host + at]);
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    let pairs = pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    (path, origin, pairs.map(|(name, value)| (decoded(name, true), decoded(value, true))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_has_captures() {
        let fits = |pattern: &str, text: &str| {
            let mut captures = Captures::new();
            let is = Pattern::text(pattern, "[^/]+").unwrap().fits(text, &mut captures);
            is.then(|| {
                captures.into_iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>()
            })
        };
        assert_eq!(fits("http://a.b/x/{id}", "http://a.b/x/7"), Some(vec!["id=7".to_owned()]));
        assert_eq!(fits("http://a.b/x/{id}", "http://a-b/x/7"), None);
        assert_eq!(fits("{a}/{b}.c", "x/y.c").unwrap(), ["a=x", "b=y"]);
        assert_eq!(fits("{a}/{b}.c", "x/y/z.c"), None);
        assert_eq!(fits("${} {a b}", "${} {a b}"), Some(vec![]));
        assert!(Pattern::text("{{ x }}", ".*").is_err() && Pattern::whole("a", "(").is_err());
    }

    #[test]
    fn commands_cover_others() {
        let command = |words: &[&str]| {
            let mut command = Command::default();
            for word in words {
                let pattern = match word.strip_prefix('/') {
                    Some(regex) => Pattern::whole("x", regex),
                    None => Pattern::text(word, ".*"),
                };
                match *word {
                    "..." => command.rest = true,
                    _ if command.rest => command.after.push(pattern.unwrap()),
                    _ => command.before.push(pattern.unwrap()),
                }
            }
            command
        };
        for (one, other, wanted) in [
            (&["a", "b"][..], &["a", "b"][..], true),
            (&["a", "{x}"], &["a", "b"], true),
            (&["a", "{x}"], &["a", "{y}"], true),
            (&["a", "b"], &["a", "{x}"], false),
            (&["a", "-{x}"], &["a", "{x}"], false),
            (&["a", "/[0-9]+"], &["a", "/[0-9]+"], true),
            (&["a", "/[0-9]+"], &["a", "7"], true),
            (&["a", "/[0-9]+"], &["a", "{x}"], false),
            (&["a", "..."], &["a", "b", "c"], true),
            (&["a", "..."], &["a"], true),
            (&["a", "...", "c"], &["a", "b", "c"], true),
            (&["a", "...", "c"], &["a", "b", "...", "c"], true),
            (&["a", "...", "c"], &["a", "..."], false),
            (&["a", "b", "..."], &["a", "..."], false),
            (&["a"], &["a", "..."], false),
            (&["a", "...", "c"], &["a"], false),
        ] {
            assert_eq!(command(one).covers(&command(other)), wanted, "{one:?} {other:?}");
        }
        assert!(command(&["a", "{x}"]).is_same(&command(&["a", "{x}"])));
        assert!(!command(&["a", "{x}"]).is_same(&command(&["a", "{y}"])));
    }

    #[test]
    fn urls_are_split_and_decoded() {
        let (path, origin, query) = split_url("http://h:1/a/b?x=1%202&y&z=a+b#f");
        assert_eq!((path, origin), ("http://h:1/a/b", "http://h:1"));
        let pairs: Vec<_> = query.iter().map(|(name, value)| (&**name, &**value)).collect();
        assert_eq!(pairs, [("x", "1 2"), ("y", ""), ("z", "a b")]);
        assert_eq!(split_url("http://h").1, "http://h");
        assert_eq!(decoded("a%2Fb%", false), "a/b%");
    }
}
