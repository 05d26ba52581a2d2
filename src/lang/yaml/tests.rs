use serde_json::{Value, json};

use super::*;

fn read(text: &str, options: &Options) -> Result<Vec<Node>, Diagnostic> {
    parse(&Source::new("t.yaml", text), options)
}

fn values(text: &str) -> Vec<Value> {
    read(text, &Options::default()).unwrap().iter().map(Node::to_json).collect()
}

fn error(text: &str) -> Diagnostic {
    read(text, &Options::default()).expect_err(text)
}

#[test]
fn documents_keep_their_index() {
    let cases = [
        ("", json!([])),
        ("# only a comment\n", json!([])),
        ("---\n", json!([])),
        ("a: 1\n", json!([{"a": 1}])),
        ("a: 1\n---\n", json!([{"a": 1}])),
        ("a: 1\n---\n---\n", json!([{"a": 1}, null])),
        ("---\n---\n---\na: 1\n", json!([null, null, {"a": 1}])),
        ("# c\n---\n# d\n---\na: 1\n---\n# e\n", json!([null, {"a": 1}])),
        ("a: 1\n---\nnull\n", json!([{"a": 1}, null])),
        ("a: 1\n---\n~\n", json!([{"a": 1}, null])),
        ("a: 1\n...\n---\nb: 1\n...\n", json!([{"a": 1}, {"b": 1}])),
        ("\u{feff}a: 1\r\n---\r\nb: 2\r\n", json!([{"a": 1}, {"b": 2}])),
        ("x: &a 1\n---\nx: &a 2\nz: *a\n", json!([{"x": 1}, {"x": 2, "z": 2}])),
    ];
    for (text, expected) in cases {
        assert_eq!(Value::from(values(text)), expected, "{text:?}");
    }
}

#[test]
fn anchor_is_unknown_in_the_next_document() {
    assert_eq!(error("x: &a 1\n---\ny: *a\n").code, "yaml::alias");
}

#[test]
fn from_str_accepts_at_most_one_document() {
    assert_eq!(from_str("").unwrap(), Value::Null);
    assert_eq!(from_str("a: yes").unwrap(), json!({"a": true}));
    let error = from_str("a: 1\n---\nb: 2\n").unwrap_err();
    assert_eq!(error.code, "yaml::documents");
    assert_eq!(error.location.unwrap().source.line_col(9), (3, 1));
}

/// Writes each node: depth, style, source text, and the value of a leaf.
fn outline(text: &str, node: &Node, depth: usize, out: &mut Vec<String>) {
    let leaf = match &node.value {
        NodeValue::Seq(_) => "list".to_owned(),
        NodeValue::Map(_) => "map".to_owned(),
        _ => node.to_json().to_string(),
    };
    let written = &text[node.span.start..node.span.end];
    out.push(format!("{:depth$}{:?} {written:?} {leaf}", "", node.style));
    for item in node.as_seq().unwrap_or_default() {
        outline(text, item, depth + 1, out);
    }
    for (key, value) in node.as_map().unwrap_or_default() {
        outline(text, key, depth + 1, out);
        outline(text, value, depth + 2, out);
    }
}

#[test]
fn nodes_have_spans_and_styles() {
    // `X` stands for a placeholder of the template engine: private-use characters around an index.
    let cases = [
        ("a: X", vec!["Indented \"a: X\" map", " Plain \"a\" \"a\"", "  Plain \"X\" \"X\""]),
        (
            "a:   \"X\"  # c",
            vec!["Indented \"a:   \\\"X\\\"\" map", " Plain \"a\" \"a\"", "  Quoted \"\\\"X\\\"\" \"X\""],
        ),
        (
            "'X': x X y ",
            vec!["Indented \"'X': x X y\" map", " Quoted \"'X'\" \"X\"", "  Plain \"x X y\" \"x X y\""],
        ),
        ("X: 1", vec!["Indented \"X: 1\" map", " Plain \"X\" \"X\"", "  Plain \"1\" 1"]),
        (
            "{a: X, b: [X, c]}",
            vec![
                "Flow \"{a: X, b: [X, c]}\" map",
                " Plain \"a\" \"a\"",
                "  Plain \"X\" \"X\"",
                " Plain \"b\" \"b\"",
                "  Flow \"[X, c]\" list",
                "   Plain \"X\" \"X\"",
                "   Plain \"c\" \"c\"",
            ],
        ),
        (
            "- |\n  a X\n\n  b\n",
            vec!["Indented \"- |\\n  a X\\n\\n  b\\n\" list", " Block \"a X\\n\\n  b\\n\" \"a X\\n\\nb\\n\""],
        ),
        ("- >-\n  a\n  X\n", vec!["Indented \"- >-\\n  a\\n  X\\n\" list", " Block \"a\\n  X\\n\" \"a X\""]),
        (
            "k:\n- x\n",
            vec![
                "Indented \"k:\\n- x\" map",
                " Plain \"k\" \"k\"",
                "  Indented \"- x\" list",
                "   Plain \"x\" \"x\"",
            ],
        ),
        (
            "k: &n X\nl: *n\n",
            vec![
                "Indented \"k: &n X\\nl: *n\" map",
                " Plain \"k\" \"k\"",
                "  Plain \"X\" \"X\"",
                " Plain \"l\" \"l\"",
                "  Plain \"*n\" \"X\"",
            ],
        ),
        ("k: !!str 1", vec!["Indented \"k: !!str 1\" map", " Plain \"k\" \"k\"", "  Plain \"1\" \"1\""]),
        ("\u{feff}k: é\r\n", vec!["Indented \"k: é\" map", " Plain \"k\" \"k\"", "  Plain \"é\" \"é\""]),
    ];
    for (text, expected) in cases {
        let text = text.replace('X', "\u{e000}0\u{e001}");
        let mut out = Vec::new();
        outline(&text, &read(&text, &Options::default()).unwrap()[0], 0, &mut out);
        let out: Vec<String> = out
            .into_iter()
            .map(|line| line.replace("\\u{e000}0\\u{e001}", "X").replace("\u{e000}0\u{e001}", "X"))
            .collect();
        assert_eq!(out, expected, "{text:?}");
    }
}

#[test]
fn merge_keys_resolved_or_kept() {
    let text = "base: &base {a: 1, b: 1}\nmore: &more {b: 2, c: 2}\n\
                after: {<<: *base, a: 0}\nbefore: {a: 0, <<: *base}\nlist: {<<: [*base, *more]}\n\
                twice: {<<: *base, <<: *more}\nquoted: {'<<': 1}\n";
    let value = values(text).remove(0);
    assert_eq!(value["after"], json!({"a": 0, "b": 1}));
    assert_eq!(value["before"], json!({"a": 1, "b": 1}));
    assert_eq!(value["list"], json!({"a": 1, "b": 1, "c": 2}));
    assert_eq!(value["twice"], json!({"a": 1, "b": 2, "c": 2}));
    assert_eq!(value["quoted"], json!({"<<": 1}));

    let keep = Options { merge: Merge::Keep, ..Options::default() };
    let kept = &read(text, &keep).unwrap()[0];
    let twice = kept.get("twice").unwrap().as_map().unwrap();
    assert!(twice.len() == 2 && twice.iter().all(|(key, _)| key.is_merge_key()));
    let (quoted, _) = kept.get("quoted").unwrap().entry("<<").unwrap();
    assert!(!quoted.is_merge_key());
    assert_eq!(
        read("<<: \u{e000}1\u{e001}", &keep).unwrap()[0].to_json(),
        json!({"<<": "\u{e000}1\u{e001}"})
    );
}

#[test]
fn duplicate_keys_are_errors_unless_allowed() {
    let last = Options { duplicate_keys: Duplicates::Last, ..Options::default() };
    for text in
        ["x: {a: 1, b: 2, a: 3}", "x:\n  a: 1\n  b: 2\n  'a': 3\n", "x: {'true': 1, a: 3, b: 2, 'true': 1}"]
    {
        let value = read(text, &last).unwrap()[0].to_json();
        assert_eq!((&value["x"]["a"], &value["x"]["b"]), (&json!(3), &json!(2)), "{text}");
        assert_eq!(error(text).code, "yaml::duplicate-key", "{text}");
    }
    let diagnostic = error("x:\n  a: 1\n  b: 2\n  a: 3\n");
    assert_eq!(
        diagnostic.to_string(),
        "t.yaml:4:3: the key `a` is a duplicate in this map; it is first at line 2, column 3 (x.a); keep one of them"
    );
    // Both keys are `true`, and a key may override one that comes from a merge.
    assert_eq!(error("yes: 1\n'true': 2\n").code, "yaml::duplicate-key");
    assert_eq!(values("x: &x {a: 1}\nz: {<<: *x, a: 2}\n")[0]["z"], json!({"a": 2}));
}

#[test]
fn errors_have_position_and_solution() {
    // The columns: text, code, marked text, path, a part of message or help.
    let cases = [
        ("a:\n\tb: 1\n", "yaml::syntax", "\t", "", "indent with spaces"),
        ("a: 'x\nb: 1\n", "yaml::syntax", "b", "", "close the quote"),
        ("a: \"x", "yaml::syntax", "", "", "never closed"),
        ("a: {{ x }}\n", "yaml::key", "{{ x }}", "a", "quote the expression: \"{{ ... }}\""),
        ("a: {b: {{ x }}}\n", "yaml::key", "{{ x }}", "a.b", "quote the expression: \"{{ ... }}\""),
        ("a: {{ x }} b\n", "yaml::syntax", "b", "", "quote the expression: \"{{ ... }}\""),
        ("a: {b: {{ x | default('', true) }}}\n", "yaml::", "", "a.b", "quote the expression: \"{{ ... }}\""),
        ("a:\n- when: !a\n", "yaml::tag", "!a", "a[0].when", "quote the value"),
        ("a: !!python/object:x {}\n", "yaml::tag", "!!python/object:x", "a", "quote the value"),
        ("a: !!int x\n", "yaml::tag", "x", "a", "not an integer"),
        ("a: !!str [1]\n", "yaml::tag", "!!str", "a", "before a list"),
        ("a: *.log\n", "yaml::alias", "*.log", "", "quote the value"),
        ("a: &a [*a]\n", "yaml::alias", "*a", "a[0]", "inside the value that it refers to"),
        ("a: &b* c\n", "yaml::alias", "&b*", "", "quote the value"),
        ("a: .inf\n", "yaml::number", ".inf", "a", "no infinity"),
        ("a.b/c: [-.nan, .NaN]\n", "yaml::number", ".NaN", "[\"a.b/c\"][1]", "no NaN"),
        ("null: 1\n", "yaml::key", "null", "", "null cannot be a map key"),
        ("? [a]\n: 1\n", "yaml::key", "[a]", "", "a list cannot be a map key"),
        ("18446744073709551615: 1\n", "yaml::key", "18446744073709551615", "", "quote it"),
        ("a: {<<: 1}\n", "yaml::merge", "1", "a", "a list of maps"),
        ("a: x: y\n", "yaml::syntax", ":", "", "quote a value"),
        ("a: [1, 2\n", "yaml::syntax", "", "", "never closed"),
        ("a: [x }\n", "yaml::syntax", "[", "", "closed by `}`"),
        ("a: x]\nb: ]\n", "yaml::syntax", "]", "", "not open"),
        ("a: @x\n", "yaml::syntax", "@", "", "quote the value"),
        ("a: %x\n", "yaml::syntax", "%", "", "quote the value"),
        ("a: b\u{1}\n", "yaml::syntax", "\u{1}", "", "U+0001"),
        ("a: \u{2028}\n", "yaml::syntax", "\u{2028}", "", "\\u2028"),
        ("a: {b:}\n", "yaml::syntax", "b", "a", "read differently by kubectl"),
        ("a: [?b]\n", "yaml::syntax", "?b", "a[0]", "quote the value"),
        ("- a\nb: 1\n", "yaml::syntax", "b", "", "item of the list"),
        ("a: \"\\d\"\n", "yaml::syntax", "\"", "", "backslash twice"),
        ("a: 'it's'\n", "yaml::syntax", "s", "", "quote the whole value"),
        ("a: !!binary /w==\n", "yaml::tag", "/w==", "a", "UTF-8"),
    ];
    for (text, code, marked, path, part) in cases {
        let diagnostic = error(text);
        let span = diagnostic.location.as_ref().unwrap().span;
        assert!(diagnostic.code.starts_with(code), "{text:?}: {diagnostic:?}");
        if !marked.is_empty() {
            assert_eq!(&text[span.start..span.end], marked, "{text:?}: {diagnostic:?}");
        }
        assert_eq!(diagnostic.path.as_deref().unwrap_or_default(), path, "{text:?}");
        assert!(diagnostic.to_string().contains(part), "{text:?}: {diagnostic}");
    }
}

#[test]
fn paths_lead_to_nodes() {
    let node = read("a:\n- {b.c: [1, 2]}\n", &Options::default()).unwrap().remove(0);
    let path = ["a".into(), 0.into(), "b.c".into(), 1.into()];
    assert_eq!(node.at(&path).unwrap().to_json(), json!(2));
    assert_eq!(show_path(&path), "a[0][\"b.c\"][1]");
    assert_eq!(node.at(&[]).unwrap(), &node);
    assert!(node.at(&["a".into(), "b".into()]).is_none());
    assert!(node.at(&["a".into(), 1.into()]).is_none());
}
