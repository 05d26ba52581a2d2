//! The rules for names of Kubernetes objects, checked before any request is built. Pure.
//!
//! Every name is one segment of a URL path, so the API server's rule for path segments holds for every kind.
//! Known kinds with a stricter rule are checked by that; for unknown kinds the API server checks the rest.

use std::fmt;

use operetta_kube_model::validation::{LABEL, SUBDOMAIN, is_dns_label};

use crate::api::{BuiltIn, Gvk, NameRule};

/// The longest name of any kind, in bytes. The API server sets no limit for path segments; its store does.
const LONGEST: usize = 1_024;

/// Why a text cannot be a name. It never shows the text, which may come from a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub struct NameError(Broken);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Broken {
    Empty,
    Dots,
    Separator,
    Control,
    TooLong(usize),
    Rule(NameRule),
}

impl fmt::Display for NameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Broken::Empty => f.write_str("it is empty"),
            Broken::Dots => f.write_str("it must not be `.` or `..`"),
            Broken::Separator => f.write_str("it must not contain `/` or `%`"),
            Broken::Control => f.write_str("it must not contain control characters"),
            Broken::TooLong(most) => write!(f, "it must not be longer than {most} bytes"),
            Broken::Rule(NameRule::Subdomain) => f.write_str(
                "it must be a DNS-1123 subdomain: lower case letters, digits, `-` and `.`, with a letter or digit at \
                 both ends of each part",
            ),
            Broken::Rule(_) => f.write_str(
                "it must be a DNS-1123 label: lower case letters, digits and `-`, with a letter or digit at both ends",
            ),
        }
    }
}

/// Whether an object of a kind can have that name.
///
/// # Errors
/// The name breaks a rule.
pub fn check(gvk: &Gvk, name: &str) -> Result<(), NameError> {
    let known = BuiltIn::find(gvk.group(), &gvk.kind);
    check_by(known.map_or(NameRule::PathSegment, |known| known.names), name)
}

/// Whether an object of a CRD's kind can have that name.
///
/// # Errors
/// The name breaks a rule.
pub fn check_custom(name: &str) -> Result<(), NameError> {
    check_by(NameRule::Subdomain, name)
}

/// Whether a namespace can have that name.
///
/// # Errors
/// The name breaks a rule.
pub fn check_namespace(name: &str) -> Result<(), NameError> {
    check_by(NameRule::Label, name)
}

/// Whether a text can be exactly one segment of the path of a request.
///
/// # Errors
/// The text breaks a rule.
pub fn check_segment(text: &str) -> Result<(), NameError> {
    check_by(NameRule::PathSegment, text)
}

fn check_by(rule: NameRule, name: &str) -> Result<(), NameError> {
    let broken = if name.is_empty() {
        Broken::Empty
    } else if matches!(name, "." | "..") {
        Broken::Dots
    } else if name.contains(['/', '%']) {
        Broken::Separator
    } else if name.chars().any(is_control) {
        Broken::Control
    } else {
        let (longest, fits) = match rule {
            NameRule::PathSegment => (LONGEST, true),
            NameRule::Subdomain => (SUBDOMAIN, name.split('.').all(is_dns_label)),
            NameRule::Label => (LABEL, is_dns_label(name)),
        };
        if name.len() > longest {
            Broken::TooLong(longest)
        } else if fits {
            return Ok(());
        } else {
            Broken::Rule(rule)
        }
    };
    Err(NameError(broken))
}

/// Whether a character is a control character or changes the direction of the text beside it. The API server
/// accepts such characters in a path segment, but no name needs them.
fn is_control(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_all_kinds_must_be_path_segments() {
        for (api_version, kind) in [
            ("v1", "ConfigMap"),
            ("v1", "Service"),
            ("rbac.authorization.k8s.io/v1", "ClusterRole"),
            ("example.org/v1", "Unknown"),
        ] {
            for name in
                ["", ".", "..", "a/b", "../a", "a%2Fb", "%", "a\nb", "a\0", "\u{7f}", "a\u{202e}b", "\u{85}"]
            {
                assert!(check(&Gvk::new(api_version, kind), name).is_err(), "{kind} {name:?}");
            }
            assert_eq!(check(&Gvk::new(api_version, kind), "web-1"), Ok(()));
        }
    }

    #[test]
    fn names_of_built_in_kinds_have_stricter_rules() {
        let long = |length| "a".repeat(length);
        for (api_version, kind, name, taken) in [
            ("v1", "ConfigMap", "a.b-c.1", true),
            ("v1", "ConfigMap", "a?watch=true", false),
            ("v1", "ConfigMap", "a#b", false),
            ("v1", "ConfigMap", "a b", false),
            ("v1", "ConfigMap", "A", false),
            ("v1", "ConfigMap", "a..b", false),
            ("v1", "ConfigMap", "a.-b", false),
            ("v1", "ConfigMap", "é", false),
            ("v1", "ConfigMap", &long(253), true),
            ("v1", "ConfigMap", &long(254), false),
            ("v1", "Service", "a.b", false),
            ("v1", "Service", &long(63), true),
            ("v1", "Service", &long(64), false),
            ("rbac.authorization.k8s.io/v1", "Role", "system:a b?c#d", true),
            ("example.org/v1", "Thing", "A_b:c", true),
            ("example.org/v1", "Thing", &long(1_025), false),
        ] {
            assert_eq!(check(&Gvk::new(api_version, kind), name).is_ok(), taken, "{kind} {name}");
        }
        assert!(check_namespace("kube-system").is_ok() && check_namespace("a.b").is_err());
        assert!(check_custom("a.b").is_ok() && check_custom("a:b").is_err());
    }

    #[test]
    fn error_does_not_show_the_name() {
        for name in ["secret?", "secret/", "secret\n", &"secret".repeat(300)] {
            let error = check(&Gvk::new("v1", "ConfigMap"), name).unwrap_err();
            assert!(!error.to_string().contains("secret"), "{error}");
        }
    }
}
