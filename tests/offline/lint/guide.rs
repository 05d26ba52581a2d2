//! The examples of the guide and the package reference, compared with the packages and the schema.

use std::fs;
use std::path::Path;

use super::{BASE, HEADER, load, operetta, parse, write};

/// The yaml examples of a page of the guide.
fn examples(page: &str) -> Vec<String> {
    let text = fs::read_to_string(page).unwrap();
    let blocks = text.split("```yaml\n").skip(1);
    blocks.map(|block| block.split("```").next().unwrap_or_default().to_owned()).collect()
}

fn files_in(folder: &str) -> Vec<String> {
    let mut files: Vec<String> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path().to_str().unwrap().to_owned())
        .collect();
    files.sort();
    files
}

/// Every example of a package in the guide is part of that package, which has no lint findings and renders.
#[test]
fn guide_examples_match_the_packages() {
    let mut shown = 0;
    for page in files_in("docs/guide") {
        for example in examples(&page) {
            let (first, rest) = example.split_once('\n').unwrap_or_default();
            let Some(path) = first.strip_prefix("# ").filter(|path| Path::new(path).is_file()) else {
                continue;
            };
            let file = fs::read_to_string(path).unwrap();
            assert!(file.contains(rest.trim_end()), "{page} shows what {path} does not have:\n{rest}");
            shown += 1;
        }
    }
    assert!(shown > 20, "{shown} examples");
    let mut packages = files_in("examples/packages");
    packages.extend(files_in("operators"));
    for package in &packages {
        let (loaded, found) = load(Path::new(package));
        assert!(loaded.is_some() && found.is_empty(), "{package}: {found:?}");
    }
    let own = files_in("examples/packages").into_iter().map(|package| {
        let instances = files_in(&format!("{package}/instances"));
        (package, instances)
    });
    let shipped = ["etcd", "webapp"].map(|name| {
        let instances = files_in(&format!("examples/{name}"));
        (format!("operators/{name}"), instances)
    });
    for (package, instances) in own.chain(shipped) {
        for instance in &instances {
            let output = operetta(&["render", &package, "-f", instance]);
            let told = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "operetta render {package} -f {instance}: {told}");
        }
    }
}

/// Whole templates in the guide that no package has.
#[test]
fn guide_templates_lint_and_render() {
    let templates: Vec<String> = examples("docs/guide/templates.md")
        .into_iter()
        .filter(|example| example.starts_with("apiVersion: v1\nkind: Secret\n"))
        .collect();
    assert_eq!(templates.len(), 4, "a password and a certificate, and both in texts");
    for template in templates {
        let folder = tempfile::tempdir().unwrap();
        let child = "    - crd: crds/web.yaml\n      children:\n        - {id: a, template: templates/cm.yaml, onLoss: Recreate}\n";
        let mut files = parse(BASE).files;
        files.insert("operator.yaml".to_owned(), format!("{HEADER}{child}"));
        files.insert("templates/cm.yaml".to_owned(), template.clone());
        files.insert(
            "web".to_owned(),
            "{apiVersion: example.com/v1, kind: Web, metadata: {name: w}}\n".to_owned(),
        );
        write(folder.path(), &files);
        let (package, found) = load(folder.path());
        assert!(package.is_some() && found.is_empty(), "{template}{found:?}");
        let place = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        let output = operetta(&["render", &place(""), "-f", &place("web")]);
        let told = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && told.contains("is generated when the object is created"),
            "{output:?}"
        );
    }
}

/// Every key of the package format is in the reference.
#[test]
fn reference_documents_every_key() {
    let schema: serde_json::Value =
        serde_json::from_str(&fs::read_to_string("schemas/operator.schema.json").unwrap()).unwrap();
    let pages = ["docs/guide/package-reference.md", "docs/guide/plan-reference.md"];
    let reference = pages.map(|page| fs::read_to_string(page).unwrap()).concat();
    let mut keys = std::collections::BTreeSet::new();
    let mut open = vec![&schema];
    while let Some(value) = open.pop() {
        if let Some(properties) = value.get("properties").and_then(serde_json::Value::as_object) {
            keys.extend(properties.keys().map(String::as_str));
        }
        match value {
            serde_json::Value::Object(map) => open.extend(map.values()),
            serde_json::Value::Array(items) => open.extend(items),
            _ => {}
        }
    }
    assert!(keys.len() > 50, "{keys:?}");
    let missing: Vec<_> = keys
        .into_iter()
        .filter(|key| {
            !["`{}`", "`{}.", ".{}`", "{{}:"].iter().any(|form| reference.contains(&form.replace("{}", key)))
        })
        .collect();
    assert!(missing.is_empty(), "the reference does not have {missing:?}");
}
