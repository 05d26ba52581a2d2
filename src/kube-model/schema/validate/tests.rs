use serde_json::json;

use super::*;

/// The messages of what a value breaks.
fn faults(schema: &Value, value: &Value, old: Option<&Value>) -> Vec<String> {
    let found = validate(schema, value, old, Notation::Dotted);
    found.iter().flat_map(|violation| violation.faults("a")).map(|fault| fault.message()).collect()
}

#[test]
fn numbers_of_enums_are_compared_by_value() {
    for (choice, value, fits) in [
        (json!(1.0), json!(1), true),
        (json!(1), json!(1.0), true),
        (json!(1), json!(2), false),
        (json!({"a": 1}), json!({"a": 1.0}), false),
    ] {
        let schema = json!({"enum": [choice]});
        assert_eq!(faults(&schema, &value, None).is_empty(), fits, "{schema} {value}");
    }
}

#[test]
fn integers_have_64_bits_and_floats_fewer() {
    let schema = json!({"type": "integer"});
    for value in [json!(i64::MAX), json!(i64::MIN), json!(1.0), json!(9_007_199_254_740_991.0)] {
        assert_eq!(faults(&schema, &value, None), [""; 0], "{value}");
    }
    let kind = r#"a: Invalid value: "number":  in body must be of type integer: "number""#;
    let range = r#"<nil>: Invalid value: "": Checked value must be of type integer (default format) in "#;
    for value in [json!(1e16), json!(-1e18), json!(9_007_199_254_740_992.0)] {
        assert_eq!(faults(&schema, &value, None), [kind], "{value}");
    }
    for value in [json!(1.5), json!(i64::MAX.unsigned_abs() + 1), json!(1e19)] {
        assert_eq!(faults(&schema, &value, None), [kind, range], "{value}");
    }
    let short = json!({"type": "integer", "format": "int32"});
    assert_eq!(faults(&short, &json!(i32::MAX), None), [""; 0]);
    assert_eq!(faults(&short, &json!(1_u32 << 31), None).len(), 1);
}

#[test]
fn limits_of_integers_are_integers() {
    let schema = json!({"type": "integer", "maximum": 2.5});
    let range =
        r#"<nil>: Invalid value: "": Maximum boundary value must be of type integer (default format) in "#;
    assert_eq!(faults(&schema, &json!(1), None), [range]);
    let most = "a: Invalid value: 3:  in body should be less than or equal to 2.5";
    assert_eq!(faults(&schema, &json!(3), None), [range, most]);
    assert_eq!(faults(&json!({"type": "number", "maximum": 2.5}), &json!(2), None), [""; 0]);
    for most in [json!(2.0), json!(i64::MAX)] {
        let schema = json!({"type": "integer", "minimum": 1, "maximum": most});
        assert_eq!(faults(&schema, &json!(2), None), [""; 0], "{schema}");
    }
}

#[test]
fn duplicates_are_accepted_if_there_were_any() {
    let set = json!({"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"});
    let schema = json!({"type": "object", "properties": {"tags": set, "other": set}});
    let old = json!({"tags": ["a", "a"]});
    for new in [json!({"tags": ["a", "a", "b"]}), json!({"tags": [], "other": ["b", "b"]})] {
        assert_eq!(faults(&schema, &new, Some(&old)), [""; 0], "{new}");
        assert_eq!(faults(&schema, &new, Some(&json!({"tags": ["a"]}))).len(), 1, "{new}");
        assert_eq!(faults(&schema, &new, None).len(), 1, "{new}");
    }
}
