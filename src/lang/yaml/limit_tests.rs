//! Malicious texts are refused soon and within the stack of any thread.

use std::time::{Duration, Instant};

use super::*;

fn refused(text: &str, limits: Limits) -> Diagnostic {
    let source = Source::new("t.yaml", text);
    let start = Instant::now();
    let error = parse(&source, &Options { limits, ..Options::default() }).expect_err("a limit");
    // A release build takes a millisecond. The bound only detects a text that expands without end.
    assert!(start.elapsed() < Duration::from_secs(60), "{:?}", start.elapsed());
    error
}

fn laughs(levels: usize) -> String {
    (1..=levels).fold("a0: &a0 lol\n".to_owned(), |text, level| {
        let items = format!("*a{} , ", level - 1).repeat(9);
        format!("{text}a{level}: &a{level} [{items}]\n")
    })
}

#[test]
fn exceeded_limit_is_named() {
    let limits = Limits::default();
    let fewer = Limits { nodes: 20_000, ..limits };
    let long = "x".repeat(100_000);
    let alias_depth = (1..120).fold("a0: &a0 [1]\n".to_owned(), |text, level| {
        format!("{text}a{level}: &a{level} [*a{}]\n", level - 1)
    });
    let cases = [
        ("laughs", laughs(12), limits, "values"),
        ("laughs in merge keys", laughs(12) + "x: {<<: [*a12]}", limits, "values"),
        ("a long string", format!("a: &a {long}\nb: [{}]", "*a , ".repeat(100)), limits, "bytes"),
        ("aliases", format!("a: &a 1\nb: [{}]", "*a , ".repeat(1_001)), limits, "aliases"),
        ("brackets", "[".repeat(100_000), limits, "nested more than 100"),
        ("braces", "{a: ".repeat(100_000), limits, "nested more than 100"),
        ("dashes", "- ".repeat(100_000), limits, "nested more than 100"),
        ("questions", "? ".repeat(100_000), limits, "nested more than 100"),
        ("alias depth", alias_depth, limits, "nested more than 100"),
        ("values", "- 1\n".repeat(20_001), fewer, "values"),
        ("values of many documents", "--- 1\n".repeat(20_001), fewer, "values"),
        ("bytes", " ".repeat((4 << 20) + 1), limits, "bytes"),
        ("own limit", "a: [1, 2]".to_owned(), Limits { nodes: 4, ..limits }, "more than 4 values"),
        ("own depth", "a: [1, 2]".to_owned(), Limits { depth: 1, ..limits }, "nested more than 1 "),
    ];
    for (name, text, limits, part) in cases {
        let error = refused(&text, limits);
        assert_eq!(error.code, "yaml::limit", "{name}: {error}");
        assert!(error.message.contains(part), "{name}: {error}");
    }
}

#[test]
fn texts_within_the_limits_are_read() {
    let depth = format!("{}1{}", "[".repeat(100), "]".repeat(100));
    let indented = (0..100).fold(String::new(), |text, level| text + &" ".repeat(level) + "a:\n");
    for text in [depth, indented, "- 1\n".repeat(20_000), laughs(4)] {
        let source = Source::new("t.yaml", text);
        // The size is half the stack of a thread of the manager; a debug build needs about 600 KiB.
        let documents = std::thread::Builder::new()
            .stack_size(1024 << 10)
            .spawn(move || parse(&source, &Options::default()).map(|nodes| nodes[0].to_json()))
            .unwrap()
            .join()
            .unwrap();
        assert!(documents.is_ok(), "{documents:?}");
    }
}
