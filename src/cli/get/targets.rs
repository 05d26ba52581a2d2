//! Parses the arguments of `get`: kinds and names.

use crate::cli::out::printable;

/// All instances of a kind, or one of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Target<'a> {
    pub(super) kind: &'a str,
    pub(super) name: Option<&'a str>,
}

/// Parses the arguments: `etcdclusters`, `etcdclusters,webapps`, `webapp/a webapp/b`, and like kubectl `webapp a b`: if
/// no word has a slash, the words after the first are names.
pub(super) fn asked(words: &[String]) -> Result<Vec<Target<'_>>, String> {
    let mut targets: Vec<Target<'_>> = Vec::new();
    let slashes = words.iter().any(|word| word.contains('/'));
    let mut add = |kind, name| {
        let target = Target { kind, name };
        if !targets.contains(&target) {
            targets.push(target);
        }
    };
    for word in words {
        match word.split_once('/') {
            Some((kind, name)) if kind.is_empty() || name.is_empty() || name.contains('/') => {
                return Err(format!("{} is not KIND/NAME", printable(word)));
            }
            Some((kind, name)) => add(kind, Some(name)),
            None if word.split(',').any(str::is_empty) => {
                return Err(format!("`{}` has no kind before or after a comma", printable(word)));
            }
            None if slashes || words.len() == 1 => word.split(',').for_each(|kind| add(kind, None)),
            None => {}
        }
    }
    if let ([kinds, names @ ..], false) = (words, slashes) {
        for kind in kinds.split(',') {
            for name in names {
                add(kind, Some(name));
            }
        }
    }
    Ok(targets)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(words: &[&str]) -> Result<Vec<String>, String> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        let targets = asked(&words)?;
        Ok(targets.iter().map(|t| format!("{}:{}", t.kind, t.name.unwrap_or("*"))).collect())
    }

    #[test]
    fn arguments_are_parsed_as_in_kubectl() {
        for (words, expected) in [
            (&[][..], &[][..]),
            (&["a"], &["a:*"]),
            (&["a,b"], &["a:*", "b:*"]),
            (&["a", "x", "y"], &["a:x", "a:y"]),
            (&["a,b", "x"], &["a:x", "b:x"]),
            (&["a/x", "b/y", "a/x"], &["a:x", "b:y"]),
            (&["a/x", "b"], &["a:x", "b:*"]),
        ] {
            assert_eq!(of(words).unwrap(), expected, "{words:?}");
        }
        for words in [&["a/"][..], &["/x"], &["a/x/y"], &[","], &["a,"]] {
            assert!(of(words).is_err(), "{words:?}");
        }
    }
}
