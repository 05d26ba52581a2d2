//! Field selectors: the parameter `fieldSelector`.

/// A term of a field selector.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Term {
    /// The path of the field.
    pub path: String,
    /// The value that it is compared with.
    pub value: String,
    /// Whether it must be equal, or must not.
    pub is_equal: bool,
}

/// The selector of the object of that name. Some names have characters that selectors have as well.
pub fn of_name(name: &str) -> String {
    let escaped = name.replace('\\', "\\\\").replace(',', "\\,").replace('=', "\\=");
    format!("metadata.name={escaped}")
}

/// The terms of a selector, all of which must hold.
///
/// # Errors
/// Says what is wrong with it, in the words of the API server.
pub fn parse(text: &str) -> Result<Vec<Term>, String> {
    let mut is_escaped = false;
    let parts = text.split(|c: char| {
        let is_end = c == ',' && !is_escaped;
        is_escaped = c == '\\' && !is_escaped;
        is_end
    });
    let terms = parts.filter(|part| !part.is_empty()).map(|part| -> Result<Term, String> {
        let (path, value) = part
            .split_once('=')
            .ok_or_else(|| format!("invalid selector: '{text}'; can't understand '{part}'"))?;
        let (path, value, is_equal) = match path.strip_suffix('!') {
            Some(path) => (path, value, false),
            None => (path, value.strip_prefix('=').unwrap_or(value), true),
        };
        Ok(Term { path: path.to_owned(), value: unescaped(value)?, is_equal })
    });
    terms.collect()
}

fn unescaped(text: &str) -> Result<String, String> {
    let sequence = |found: &str| Err(format!("invalid field selector: invalid escape sequence: {found}"));
    let mut value = String::new();
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some(c @ ('\\' | ',' | '=')) => value.push(c),
                Some(c) => return sequence(&format!("\\{c}")),
                None => return sequence("\\"),
            },
            '=' => {
                return Err(format!(
                    "invalid field selector: unescaped character in value: {}",
                    u32::from(c)
                ));
            }
            c => value.push(c),
        }
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terms_are_read_with_their_escapes() {
        let term =
            |path: &str, value: &str, is_equal| Term { path: path.into(), value: value.into(), is_equal };
        let all = [term("a.b", "1", true), term("c", "", true), term("d", "x", false)];
        assert_eq!(parse("a.b=1,c==,,d!=x").unwrap(), all);
        assert!(parse("").unwrap().is_empty());
        for name in ["a", "a,b=c", "\\", "a\\,b"] {
            assert_eq!(parse(&of_name(name)).unwrap(), [term("metadata.name", name, true)], "{name}");
        }
        for (text, wanted) in [
            ("a=1,b", "invalid selector: 'a=1,b'; can't understand 'b'"),
            ("a=b=c", "invalid field selector: unescaped character in value: 61"),
            ("a=\\b", "invalid field selector: invalid escape sequence: \\b"),
            ("a=\\", "invalid field selector: invalid escape sequence: \\"),
        ] {
            assert_eq!(parse(text).unwrap_err(), wanted, "{text}");
        }
    }
}
