//! What the terminal of standard output can show.

use console::Term;

use crate::cli::out;

/// The capabilities of standard output.
#[derive(Debug, Clone, Copy)]
pub(in crate::cli) struct Terminal {
    pub colours: bool,
    /// Box-drawing characters are shown; otherwise ASCII.
    pub unicode: bool,
    /// Columns, if it is a terminal.
    pub width: Option<usize>,
}

impl Terminal {
    pub(in crate::cli) fn stdout() -> Self {
        let terminal = Term::stdout();
        Self {
            colours: console::colors_enabled(),
            unicode: is_unicode(|name| std::env::var(name).ok()),
            width: terminal.is_term().then(|| usize::from(terminal.size().1)),
        }
    }

    /// Whether lines can be drawn over earlier ones.
    pub(in crate::cli) fn is_live() -> bool {
        Term::stdout().is_term() && !out::is_dumb()
    }
}

/// Whether the locale uses UTF-8, in the order of precedence of the C library.
fn is_unicode(variable: impl Fn(&str) -> Option<String>) -> bool {
    let set = |name: &&str| variable(name).filter(|value| !value.is_empty());
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"].iter().find_map(set).unwrap_or_default().to_lowercase();
    locale.contains("utf-8") || locale.contains("utf8")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_locale_decides_on_unicode() {
        for (set, expected) in [
            (&[][..], false),
            (&[("LANG", "en_GB.UTF-8")], true),
            (&[("LANG", "en_GB.UTF-8"), ("LC_ALL", "C")], false),
            (&[("LANG", "C"), ("LC_CTYPE", "de_DE.utf8")], true),
            (&[("LANG", "C.UTF-8"), ("LC_ALL", "")], true),
        ] {
            let of =
                |name: &str| set.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
            assert_eq!(is_unicode(of), expected, "{set:?}");
        }
    }
}
