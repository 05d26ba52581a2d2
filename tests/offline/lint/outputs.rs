//! `operetta lint --output`: formats that programs read.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{operetta, parse, write};

const BROKEN: &str = r#"
//- crd
            spec: {type: object, properties: {size: {type: integer}}}
//- templates/cm.yaml
apiVersion: v1
kind: ConfigMap
metadata: {name: "{{ name }}"}
data: {size: "{{ spec.siez }}"}
//- templates/forgotten.yaml
a: b
//- resource
    - crd: crds/web.yaml
      children: [{id: a, template: templates/cm.yaml, whn: x}]
"#;

fn lint(files: &BTreeMap<String, String>, args: &[&str]) -> (String, Option<i32>) {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), files);
    let package = folder.path().to_str().unwrap();
    let output = operetta(&[&["lint", package], args].concat());
    let text = String::from_utf8(output.stdout).unwrap();
    (text.replace(&format!("{}/", folder.path().display()), ""), output.status.code())
}

#[test]
fn each_format_reports_the_same_findings() {
    let files = parse(BROKEN).files;
    let (text, code) = lint(&files, &["-o", "json"]);
    let items: Vec<Value> = serde_json::from_str(&text).unwrap();
    assert_eq!((items.len(), code), (2, Some(1)), "{text}");
    for item in &items {
        for key in
            ["package", "severity", "code", "message", "file", "line", "column", "endLine", "endColumn"]
        {
            assert!(!item[key].is_null(), "{key}: {item}");
        }
    }

    let (text, code) = lint(&files, &["--output", "sarif"]);
    let log: Value = serde_json::from_str(&text).unwrap();
    let run = &log["runs"][0];
    let results = run["results"].as_array().unwrap();
    assert_eq!((log["version"].as_str(), results.len(), code), (Some("2.1.0"), items.len(), Some(1)));
    for (result, item) in results.iter().zip(&items) {
        let place = &result["locations"][0]["physicalLocation"];
        assert_eq!((&result["ruleId"], &result["level"]), (&item["code"], &item["severity"]));
        assert_eq!(place["region"]["startLine"], item["line"]);
        assert_eq!(place["region"]["endColumn"], item["endColumn"]);
        let rule =
            &run["tool"]["driver"]["rules"][usize::try_from(result["ruleIndex"].as_u64().unwrap()).unwrap()];
        assert_eq!(rule["id"], result["ruleId"]);
        assert!(rule["shortDescription"]["text"].as_str().is_some_and(|text| !text.is_empty()), "{rule}");
    }

    let (text, code) = lint(&files, &["-o", "github"]);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!((lines.len(), code), (items.len(), Some(1)), "{text}");
    for (line, item) in lines.iter().zip(&items) {
        let begins = format!(
            "::{} file={},line={},",
            item["severity"].as_str().unwrap(),
            item["file"].as_str().unwrap(),
            item["line"]
        );
        assert!(line.starts_with(&begins), "{line}");
        assert!(line.contains(&format!("::{}", item["message"].as_str().unwrap())), "{line}");
    }
}

#[test]
fn package_without_findings_gives_an_empty_report() {
    for (format, wanted) in [("json", "[]\n"), ("github", "")] {
        let output = operetta(&["lint", "examples/packages/hello", "-o", format]);
        assert_eq!(
            (String::from_utf8_lossy(&output.stdout).as_ref(), output.status.code()),
            (wanted, Some(0))
        );
    }
    let output = operetta(&["lint", "examples/packages/hello", "-o", "sarif"]);
    let log: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(log["runs"][0]["results"], serde_json::json!([]));
}

#[test]
fn shells_complete_the_formats() {
    let output = operetta(&["completion", "bash"]);
    let script = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(script.contains("text json sarif github"), "{script}");
}
