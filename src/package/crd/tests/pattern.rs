//! Patterns have Go's syntax.

use super::super::pattern;

#[test]
fn patterns_have_go_syntax() {
    let cases = [
        (r"^[\d.]+$", "1.2", Some(true)),
        (r"^[\w-]+$", "a_b-c", Some(true)),
        (r"^\w+$", "é", Some(false)),
        (r"^\S+$", "a b", Some(false)),
        (r"^[^\s]+$", "a\tb", Some(false)),
        (r"^[[]$", "[", Some(true)),
        (r"^[]a]+$", "]a", Some(true)),
        (r"^[^]]+$", "]", Some(false)),
        (r"^[a&&b]+$", "&", Some(true)),
        (r"^[[:alpha:]_]+$", "a_", Some(true)),
        (r"^.{2}$", "éé", Some(true)),
        (r"\bfoo\b", "a foo b", Some(true)),
        (r"^\pL+$", "é", Some(true)),
        (r"(?i)^ABC$", "abc", Some(true)),
        (r"(?=x)", "x", None),
        (r"\Qx\E", "x", None),
        (r"x{1000}{1000}{1000}", "x", None),
        ("\\", "x", None),
    ];
    for (text, value, expected) in cases {
        assert_eq!(pattern::compile(text).map(|matcher| matcher.is_match(value)), expected, "{text}");
    }
}
