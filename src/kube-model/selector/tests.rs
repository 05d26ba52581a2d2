use serde_json::json;

use super::*;

#[test]
fn selectors_are_written_as_the_server_reads_them() {
    for (value, text) in [
        (json!({}), ""),
        (json!({"app": "web", "a.b/c": ""}), "a.b/c=,app=web"),
        (json!({"matchLabels": {"app": "web"}}), "app=web"),
        (json!({"matchLabels": null, "matchExpressions": [{"key": "a", "operator": "Exists"}]}), "a"),
        (
            json!({"matchLabels": {"c": "1"}, "matchExpressions": [
                {"key": "d", "operator": "DoesNotExist"},
                {"key": "b", "operator": "NotIn", "values": ["2", "1"]},
                {"key": "a", "operator": "In", "values": ["y", "x"]},
            ]}),
            "a in (x,y),b notin (1,2),c=1,!d",
        ),
    ] {
        let selector = Selector::parse(&value).unwrap();
        assert_eq!(selector.to_string(), text, "{value}");
        assert_eq!(Selector::parse_text(text).unwrap(), selector, "{value}");
    }
    assert_eq!(Selector::exists("b").without("a").to_string(), "!a,b");
}

#[test]
fn malformed_selectors_and_injected_requirements_are_refused() {
    for value in [
        json!("app=web"),
        json!({"app": "web,admin=true"}),
        json!({"app in (a)": "x"}),
        json!({"Example.org/app": "x"}),
        json!({"app": 1}),
        json!({"matchLabels": ["a"]}),
        json!({"matchExpressions": [{"key": "a", "operator": "Is"}]}),
        json!({"matchExpressions": [{"key": "a", "operator": "In"}]}),
        json!({"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["1"]}]}),
        json!({"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["x"]}]}),
    ] {
        assert!(Selector::parse(&value).is_err(), "{value}");
    }
}

#[test]
fn malformed_texts_are_refused_in_the_words_of_the_server() {
    for (text, wanted) in [
        ("==", "found '==', expected: !, identifier, or 'end of string'"),
        ("a,", "found '', expected: identifier after ','"),
        ("a,,b", "found ',', expected: identifier after ','"),
        ("a b", "unable to parse requirement: found 'b', expected: in, notin, =, ==, !=, gt, lt"),
        ("!a=b", "found '=', expected: ',' or 'end of string'"),
        ("!=b", "found '!=', expected: !, identifier, or 'end of string'"),
        ("a=(", "unable to parse requirement: found '(', expected: identifier"),
        ("a in b", "unable to parse requirement: found 'b' expected: '('"),
        ("a in (b c)", "unable to parse requirement: found 'c', expected: ',' or ')'"),
        (
            "a>x",
            "unable to parse requirement: values[0]: Invalid value: \"x\": for 'Gt', 'Lt' operators, the value must be an integer",
        ),
    ] {
        assert_eq!(Selector::parse_text(text).unwrap_err(), wanted, "{text}");
    }
    for (text, start) in [
        ("-=1", "unable to parse requirement: <nil>: Invalid value: \"-\": name part must consist"),
        ("a=-", "unable to parse requirement: values[0][a]: Invalid value: \"-\": a valid label must"),
    ] {
        let why = Selector::parse_text(text).unwrap_err();
        assert!(why.starts_with(start), "{text}: {why}");
    }
}

#[test]
fn labels_are_selected_by_each_operator() {
    let labels = json!({"a": "1", "b": "x", "in": ""});
    let fits = |text: &str| Selector::parse_text(text).unwrap().fits(|key| labels[key].as_str());
    for text in [
        "",
        "a",
        "a=1",
        "a == 1 , b",
        "a!=2",
        "c!=1",
        "!c",
        "a in (1, 2)",
        "b notin (y,z)",
        "a>0",
        "a<2",
        "in",
        "in=",
        "in in (,in)",
        "in in()",
        "c notin ()",
    ] {
        assert!(fits(text), "{text}");
    }
    for text in ["c", "a=2", "a!=1", "!a", "a in (2)", "b notin (x)", "a>1", "b>0", "c<1", "a="] {
        assert!(!fits(text), "{text}");
    }
}

#[test]
fn selectors_of_objects_match_labels_as_on_the_server() {
    let labels = json!({"app": "web"});
    let one = |operator: &str, key: &str, values: &[&str]| json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]});
    for (value, expected) in [
        (json!({}), true),
        (json!({"matchLabels": {"app": "web"}}), true),
        (json!({"matchLabels": {"app": "db"}}), false),
        (one("In", "app", &["db", "web"]), true),
        (one("In", "tier", &["x"]), false),
        (one("NotIn", "tier", &["x"]), true),
        (one("NotIn", "app", &["web"]), false),
        (one("Exists", "app", &[]), true),
        (one("DoesNotExist", "app", &[]), false),
        (
            json!({"matchLabels": {"app": "web"}, "matchExpressions": [{"key": "x", "operator": "Exists"}]}),
            false,
        ),
    ] {
        assert_eq!(labels_match(&value, &labels), expected, "{value}");
        let selector = Selector::parse(&value).unwrap();
        assert_eq!(selector.fits(|key| labels[key].as_str()), expected, "{value}");
    }
    let other = json!({"key": "a", "operator": "NotIn", "values": [null]});
    assert!(labels_match(&json!({"matchExpressions": [other]}), &Value::Null));
    assert!(Selector::default().fits(|_| None) && Selector::default().is_empty());
    assert!(Selector::parse(&json!({"app": "web"})).unwrap().fits(|key| labels[key].as_str()));
}
