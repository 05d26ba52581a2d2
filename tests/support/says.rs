//! What a command has printed, and how it has ended.

use std::fmt::Debug;

/// Checks the exit code and the output of a command, which has all of these words. Returns the output.
#[track_caller]
pub(crate) fn says<C: Copy + Debug + PartialEq>(
    (code, text): (C, String),
    ends: C,
    words: &[&str],
) -> String {
    let missing: Vec<_> = words.iter().filter(|word| !text.contains(**word)).collect();
    assert!(code == ends && missing.is_empty(), "{code:?}, not {ends:?}, or without {missing:?}: {text}");
    text
}
