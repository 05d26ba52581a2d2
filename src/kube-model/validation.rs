//! The rules for names, keys and labels, as `k8s.io/apimachinery/pkg/util/validation` has them. Each function returns why a text breaks
//! its rule, in the words of the API server.

/// The longest label of a DNS name, value of a label and name in its key, in bytes.
pub const LABEL: usize = 63;
/// The longest DNS subdomain, in bytes.
pub const SUBDOMAIN: usize = 253;

fn too_long(text: &str, most: usize) -> Option<String> {
    (text.len() > most).then(|| format!("must be no more than {most} characters"))
}

/// Whether a text is a label of a DNS name; the length is not checked.
pub fn is_dns_label(text: &str) -> bool {
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    text.starts_with(fits) && text.ends_with(fits) && text.chars().all(|c| fits(c) || c == '-')
}

/// Why a text is no label of a DNS name (RFC 1123).
pub fn dns_label(text: &str) -> Option<String> {
    const WHY: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
    too_long(text, LABEL).or_else(|| (!is_dns_label(text)).then(|| WHY.to_owned()))
}

/// Why a text is no subdomain of DNS (RFC 1123).
pub fn dns_subdomain(text: &str) -> Option<String> {
    const WHY: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
    too_long(text, SUBDOMAIN).or_else(|| (!text.split('.').all(is_dns_label)).then(|| WHY.to_owned()))
}

/// Why a text cannot be a segment of a path.
pub fn path_segment(text: &str) -> Option<String> {
    if text == "." || text == ".." {
        return Some(format!("may not be '{text}'"));
    }
    ["/", "%"].iter().find(|c| text.contains(**c)).map(|c| format!("may not contain '{c}'"))
}

/// Why a text is no key of a label.
pub fn label_key(text: &str) -> Option<String> {
    qualified_name(text).map(|why| why.replace("a qualified name must", "a valid label key must"))
}

/// Why a text is no qualified name.
pub fn qualified_name(text: &str) -> Option<String> {
    const WHY: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
    let (prefix, name) = match text.split_once('/') {
        Some((prefix, name)) if !name.contains('/') => (Some(prefix), name),
        Some(_) => {
            return Some(format!(
                "a qualified name {WHY} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
            ));
        }
        None => (None, text),
    };
    let wrong = match prefix {
        Some("") => Some("must be non-empty".to_owned()),
        prefix => prefix.and_then(dns_subdomain),
    };
    if let Some(why) = wrong {
        return Some(format!("prefix part {why}"));
    }
    if name.is_empty() {
        return Some("name part must be non-empty".to_owned());
    }
    let why = too_long(name, LABEL).or_else(|| (!is_name(name)).then(|| WHY.to_owned()));
    why.map(|why| format!("name part {why}"))
}

fn is_name(name: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric();
    name.starts_with(fits) && name.ends_with(fits) && name.chars().all(|c| fits(c) || "-_.".contains(c))
}

/// Why a text is no value of a label.
pub fn label_value(text: &str) -> Option<String> {
    const WHY: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";
    too_long(text, LABEL).or_else(|| (!text.is_empty() && !is_name(text)).then(|| WHY.to_owned()))
}

/// Whether a text can be the value of a label. Unless it is empty, it can then be the name in a label's key, too.
pub fn is_label_value(text: &str) -> bool {
    label_value(text).is_none()
}

/// Why a text is no key of a `ConfigMap` or Secret.
pub fn config_key(key: &str) -> Option<String> {
    const WHY: &str = "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')";
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let wrong = || match key {
        "." | ".." => Some(format!("must not be '{key}'")),
        _ if key.is_empty() || !key.chars().all(fits) => Some(WHY.to_owned()),
        _ => key.starts_with("..").then(|| "must not start with '..'".to_owned()),
    };
    too_long(key, SUBDOMAIN).or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_refused_in_the_words_of_the_server() {
        type Rule = fn(&str) -> Option<String>;
        let rules: [(Rule, &[&str], &[&str]); 6] = [
            (dns_label, &["a", "1-a"], &["", "a.b", "-a"]),
            (dns_subdomain, &["a", "a.b-c.1"], &["", "a..b", "A"]),
            (path_segment, &["A b"], &["..", "a%b"]),
            (label_key, &["a", "a.b/C_d"], &["", "a b", "/a", "a/", "A/a", "a/b/c"]),
            (label_value, &["", "a", "A_b.1"], &["-a", "é", "a b"]),
            (config_key, &["a", ".a", "A_b"], &["", "a/b", "..", "..a"]),
        ];
        for (rule, good, bad) in rules {
            assert!(good.iter().all(|text| rule(text).is_none()), "{good:?}");
            assert!(bad.iter().all(|text| rule(text).is_some()), "{bad:?}");
        }
        assert_eq!(path_segment("a%b").unwrap(), "may not contain '%'");
        assert_eq!(label_key("/a").unwrap(), "prefix part must be non-empty");
        assert!(label_key("A/a").unwrap().starts_with("prefix part a lowercase RFC 1123 subdomain must"));
        assert!(label_key("a/b/c").unwrap().starts_with("a valid label key must consist"));
        let limits: [(Rule, usize); 4] =
            [(dns_label, 63), (dns_subdomain, 253), (label_value, 63), (config_key, 253)];
        for (rule, most) in limits {
            assert_eq!(rule(&"a".repeat(most)), None);
            let why = format!("must be no more than {most} characters");
            assert_eq!(rule(&"a".repeat(most + 1)), Some(why));
        }
    }
}
