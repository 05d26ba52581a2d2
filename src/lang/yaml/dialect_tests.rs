//! Compares this reader with kubectl's.

use serde::Deserialize;
use serde_json::Value;

use super::*;

/// One line of `testdata/dialect.jsonl`, which a small Go program wrote: for each text the result of
/// `yaml.YAMLToJSON` of sigs.k8s.io/yaml v1.6.0 (go.yaml.in/yaml/v2 v2.4.2, Go 1.26.8), the reader of
/// kubectl: JSON, or an error. Texts whose result varies between runs are left out.
#[derive(Deserialize)]
struct Case {
    yaml: String,
    #[serde(default, deserialize_with = "some")]
    json: Option<Value>,
    error: Option<String>,
}

/// Distinguishes `"json": null`, which is a result, from a missing field.
fn some<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

/// Texts that kubectl reads and this reader refuses on purpose, because kubectl guesses or drops something.
const REFUSED: [&str; 4] = ["!!binary /w==", "!a foo", "!!set {a}", "!!str [a]"];

/// Texts that kubectl refuses and this reader accepts, because they have only one possible meaning.
const TAKEN: [&str; 5] = [
    "\ta: 1",
    "- \ta",
    "%YAML 1.2\n---\na: 1",
    "%FOO bar\n---\na",
    "a: \"\\x41\\u00e9\\U0001F600\\t\\/\\0\\e\\_\\N\\L\\P\"",
];

#[test]
fn scalars_have_the_values_that_kubectl_reads() {
    let options = Options { duplicate_keys: Duplicates::Last, ..Options::default() };
    let mut count = 0;
    for line in include_str!("testdata/dialect.jsonl").lines() {
        let Case { yaml, json, error } = serde_json::from_str(line).unwrap();
        let ours = parse(&Source::new("t.yaml", yaml.clone()), &options)
            .map(|documents| documents.first().map_or(Value::Null, Node::to_json));
        match (json, ours) {
            (Some(_), Err(ours)) => {
                assert!(REFUSED.contains(&yaml.as_str()), "{yaml:?} refused: {ours}");
            }
            (Some(theirs), Ok(ours)) => {
                assert_eq!(ours, theirs, "{yaml:?}");
                assert!(!REFUSED.contains(&yaml.as_str()), "{yaml:?} not refused");
            }
            (None, Ok(ours)) => {
                assert!(TAKEN.contains(&yaml.as_str()), "{yaml:?} is {ours}, but for kubectl {error:?}");
            }
            (None, Err(_)) => assert!(error.is_some(), "no answer for {yaml:?}"),
        }
        count += 1;
    }
    assert!(count > 350, "{count} cases");
}

#[test]
fn integers_stay_integers() {
    for (text, expected) in [
        ("0644", "420"),
        ("1.0", "1"),
        ("1e3", "1000"),
        ("-0", "0"),
        ("9007199254740993", "9007199254740993"),
        ("18446744073709551615", "18446744073709551615"),
        ("1.5", "1.5"),
        ("0.1", "0.1"),
        ("1e21", "1e+21"),
    ] {
        let number = from_str(text).unwrap().to_string();
        assert_eq!(number.replace("1e21", "1e+21"), expected, "{text}");
    }
}
