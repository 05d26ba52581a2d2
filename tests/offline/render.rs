//! `operetta render` and `operetta lint` as users run them.

mod given;

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::crd::crd_to_properties;
use base64::Engine as _;
use serde_json::Value;

const OPERATOR: &str = r"
apiVersion: operetta.dev/v1alpha1
kind: OperatorPackage
metadata: {name: web}
spec:
  version: 0.1.0
  resources:
    - crd: crds/web.yaml
      children:
        - {id: late, template: templates/late.yaml}
        - {id: members, template: templates/member.yaml, forEach: {in: range(spec.size), as: i}}
        - {id: secret, template: templates/secret.yaml, when: spec.text is defined}
";

const PROPERTIES: &str = "
            metadata: {type: object, properties: {name: {type: string, maxLength: 63}}}
            spec:
              type: object
              properties:
                size: {type: integer, default: 2, maximum: 5}
                text: {type: string}
";

fn crd() -> String {
    crd_to_properties("example.com", "webs", "Web") + PROPERTIES.trim_start_matches('\n')
}

const MEMBER: &str = r#"
apiVersion: v1
kind: ConfigMap
metadata: {name: "{{ name }}-{{ i }}", labels: {app: "{{ name }}"}}
data: {mode: "0644", size: "{{ spec.size }}"}
"#;

const LATE: &str = r#"
apiVersion: v1
kind: ConfigMap
metadata: {name: "{{ name }}-late"}
data: {uid: "{{ children.members[0].metadata.uid }}"}
"#;

const SECRET: &str = r#"
apiVersion: v1
kind: Secret
metadata: {name: "{{ name }}-secret"}
stringData: {text: {{ spec.text }}}
"#;

const INSTANCE: &str = "apiVersion: example.com/v1\nkind: Web\nmetadata: {name: shop}\n";

fn package() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    put(folder.path(), str::to_owned);
    folder
}

/// Writes the package with the text of each file changed.
fn put(folder: &Path, change: impl Fn(&str) -> String) {
    let crd = crd();
    for (path, text) in [
        ("operator.yaml", OPERATOR),
        ("crds/web.yaml", &crd),
        ("templates/member.yaml", MEMBER),
        ("templates/late.yaml", LATE),
        ("templates/secret.yaml", SECRET),
    ] {
        let path = folder.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, change(text)).unwrap();
    }
}

struct Ran {
    code: i32,
    stdout: String,
    stderr: String,
}

fn operetta(folder: &Path, args: &[&str], input: &str) -> Ran {
    let mut child = Command::new(env!("CARGO_BIN_EXE_operetta"))
        .args(args)
        .current_dir(folder)
        .env("NO_COLOR", "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A command that fails before it reads its input closes the pipe.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    let output = child.wait_with_output().unwrap();
    Ran {
        code: output.status.code().unwrap(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

fn render(input: &str, output: &str) -> Ran {
    operetta(package().path(), &["render", ".", "-f", "-", "-o", output], input)
}

#[test]
fn children_are_printed_in_the_order_of_their_creation() {
    let ran = render(&format!("{INSTANCE}spec: {{}}\n"), "yaml");
    assert_eq!(
        (ran.code, ran.stdout.as_str(), ran.stderr.as_str()),
        (
            0,
            r#"---
# child: members[0]
apiVersion: v1
data:
  mode: "0644"
  size: "2"
kind: ConfigMap
metadata:
  labels:
    app: shop
    app.kubernetes.io/managed-by: operetta
  name: shop-0
  namespace: default
---
# child: members[1]
apiVersion: v1
data:
  mode: "0644"
  size: "2"
kind: ConfigMap
metadata:
  labels:
    app: shop
    app.kubernetes.io/managed-by: operetta
  name: shop-1
  namespace: default
---
# child: late waits for children.members: `children.members[0].metadata.uid` is undefined at ./templates/late.yaml:5:17
"#,
            ""
        )
    );
}

#[test]
fn renders_names_and_lists_of_instances() {
    let text = format!(
        "{INSTANCE}spec: {{text: a, size: 1}}\n---\n---\n{}spec: {{size: 0}}\n",
        INSTANCE.replace("shop", "b")
    );
    let ran = render(&text, "name");
    assert_eq!(
        (ran.code, ran.stdout.as_str()),
        (
            0,
            "configmap/shop-0\n# child: late waits for children.members: `children.members[0].metadata.uid` is undefined at ./templates/late.yaml:5:17\nsecret/shop-secret\n# child: late waits for children.members: `children.members[0].metadata.uid` is undefined at ./templates/late.yaml:5:17\n"
        )
    );
    let list = format!(
        "apiVersion: v1\nkind: List\nitems:\n- {{{}, spec: {{size: 1}}}}\n",
        INSTANCE.trim().replace('\n', ", ")
    );
    assert_eq!(render(&list, "name").stdout.lines().next(), Some("configmap/shop-0"));
    let ran = render(&text, "json");
    let list: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!((list["kind"].as_str(), list["items"].as_array().map(Vec::len)), (Some("List"), Some(2)));
}

/// A value is never parsed as YAML.
#[test]
fn strings_arrive_as_they_are() {
    for text in
        ["x\nkind: ClusterRole", "{{ 7*7 }}", "true", "0644", "!!python/object", "🦀", "", "a: b", "'", "\\"]
    {
        let instance = serde_json::json!({
            "apiVersion": "example.com/v1", "kind": "Web", "metadata": {"name": "shop"}, "spec": {"size": 0, "text": text}
        });
        let ran = render(&instance.to_string(), "json");
        let list: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
        let encoded = list["items"][0]["data"]["text"].as_str().unwrap();
        let decoded = base64::engine::general_purpose::STANDARD.decode(encoded).unwrap();
        assert_eq!(String::from_utf8(decoded).unwrap(), text);
    }
}

#[test]
fn invalid_instances_are_errors() {
    for (input, place, message) in [
        (
            "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n",
            "standard input:2:7",
            "it has example.com/v1 Web",
        ),
        (
            "apiVersion: example.com/v2\nkind: Web\nmetadata: {name: a}\n",
            "standard input:2:7",
            "has no kind example.com/v2 Web",
        ),
        (&format!("{INSTANCE}spec:\n  size: 9\n"), "standard input:5:3", "spec.size"),
        (&format!("{INSTANCE}spec:\n  size: a\n"), "standard input:5:3", "spec.size"),
        (&format!("{INSTANCE}spec:\n  sise: 1\n"), "standard input:5:3", "sise"),
        ("apiVersion: example.com/v1\nkind: Web\n", "standard input:1:1", "metadata.name"),
        ("kind: Web\n", "standard input:1:1", "apiVersion"),
        ("a: [\n", "standard input", ""),
        ("---\n", "standard input:1:1", "no instance"),
        ("", "standard input:1:1", "no instance"),
    ] {
        let ran = render(input, "yaml");
        assert_eq!((ran.code, ran.stdout.as_str()), (1, ""), "{input}: {}", ran.stderr);
        assert!(ran.stderr.contains(place) && ran.stderr.contains(message), "{input}: {}", ran.stderr);
    }
}

#[test]
fn one_wrong_instance_does_not_hide_the_others() {
    let ran = render(&format!("{INSTANCE}spec: {{size: 9}}\n---\n{INSTANCE}spec: {{size: 1}}\n"), "name");
    assert_eq!(ran.code, 1);
    assert!(ran.stdout.starts_with("configmap/shop-0\n"), "{}", ran.stdout);
}

#[test]
fn exit_codes_of_lint_and_render() {
    let folder = package();
    let code = |args: &[&str]| operetta(folder.path(), args, "").code;
    assert_eq!(code(&["lint", "."]), 0);
    assert_eq!(code(&["lint", "nowhere"]), 2);
    assert_eq!(code(&["lint"]), 2);
    assert_eq!(code(&["lint", "operator.yaml"]), 2);
    assert_eq!(code(&["render", ".", "-f", "nowhere.yaml"]), 2);
    fs::write(folder.path().join("templates/unused.yaml"), "a: 1\n").unwrap();
    assert_eq!(code(&["lint", "."]), 0);
    assert_eq!(code(&["lint", ".", "--strict"]), 1);
    fs::write(folder.path().join("operator.yaml"), OPERATOR.replace("spec.size", "spec.sise")).unwrap();
    assert_eq!(code(&["lint", "."]), 1);
    assert_eq!(code(&["render", ".", "-f", "-"]), 1);
    let ran = operetta(folder.path(), &["lint", ".", "-o", "json"], "");
    let findings: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(findings[0]["code"], "package::unknown-path");
    assert_eq!((findings[0]["line"].as_u64(), findings[0]["column"].as_u64()), (Some(11), Some(78)));
    assert_eq!(findings[0]["help"], "did you mean `spec.size`?");
}

#[test]
fn conflicts_between_packages_are_reported() {
    let root = tempfile::tempdir().unwrap();
    let named = |text: &str, name: &str| {
        text.replace("metadata: {name: web}", &format!("metadata: {{name: {name}}}"))
    };
    let other = |text: &str, name: &str| {
        let names = [("webs", "others"), ("kind: Web", "kind: Other"), ("WebList", "OtherList")];
        let text = named(text, name).replace("singular: web", "singular: other");
        names.iter().fold(text, |text, (from, to)| text.replace(from, to))
    };
    let short = "plural: others, shortNames: [webs]";
    put(&root.path().join("a"), str::to_owned);
    put(&root.path().join("copy"), str::to_owned);
    put(&root.path().join("same"), |text| named(text, "same"));
    put(&root.path().join("names"), |text| other(text, "names").replace("plural: others", short));
    put(&root.path().join("fine"), |text| other(text, "fine").replace("example.com", "example.org"));
    let lint = |folders: &[&str]| {
        let ran = operetta(root.path(), &[&["lint"], folders, &["-o", "json"]].concat(), "");
        let found: Value = serde_json::from_str(&ran.stdout).unwrap();
        let mut found = found.as_array().unwrap().clone();
        // Notes are about valid parts of a package.
        found.retain(|found| found["severity"] != "note");
        assert_eq!(ran.code, i32::from(!found.is_empty()), "{found:#?}");
        found
    };
    for alone in [&["a", "fine"][..], &["a", "a", "./a"], &["names"]] {
        assert_eq!(lint(alone), [] as [Value; 0], "{alone:?}");
    }
    for (second, code, words) in [
        ("same", "package::claimed", "the package web has the same CRD webs.example.com: a/crds/web.yaml:"),
        ("names", "package::names-taken", "the same group and the same name webs: a/crds/web.yaml:"),
    ] {
        let found = lint(&["fine", "a", second]);
        assert_eq!(found.len(), 1, "{found:#?}");
        assert_eq!((found[0]["code"].as_str(), found[0]["package"].as_str()), (Some(code), Some(second)));
        assert_eq!(found[0]["file"], format!("{second}/crds/web.yaml"));
        assert!(found[0]["message"].as_str().unwrap().contains(words), "{found:#?}");
    }
    let found = lint(&["a", "copy"]);
    let codes: Vec<Value> = found.iter().map(|found| found["code"].clone()).collect();
    assert_eq!(codes, ["package::name-taken", "package::claimed"]);
    let text = std::fs::read_to_string(root.path().join("copy/operator.yaml")).unwrap();
    let line = text.lines().position(|line| line.contains("name:")).unwrap() + 1;
    assert_eq!(found[0]["line"], line, "{found:#?}");
}

#[test]
fn lint_schema_prints_json() {
    let ran = operetta(Path::new("."), &["schema"], "");
    let schema: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(schema["properties"]["kind"]["const"], "OperatorPackage");
}

/// A CRD on one line of 100,000 characters with a mistake at its end.
fn minified() -> String {
    let properties: Vec<_> = (0..4_000).map(|i| format!(r#""field{i}":{{"type":"string"}}"#)).collect();
    let crd: Value = operetta::yaml::parse(
        &operetta::diag::Source::new("crd", crd()),
        &operetta::yaml::Options::default(),
    )
    .unwrap()[0]
        .to_json();
    let marker = r#""text":{"type":"string"}"#;
    let text = crd.to_string();
    assert!(text.contains(marker));
    text.replace(marker, &format!(r#"{},"text":{{"type":"strin"}}"#, properties.join(",")))
}

#[test]
fn mistakes_on_lines_of_any_length_are_shown() {
    let folder = package();
    fs::write(folder.path().join("crds/web.yaml"), minified()).unwrap();
    for args in [&["lint", "."][..], &["render", ".", "-f", "-"]] {
        let ran = operetta(folder.path(), args, INSTANCE);
        let shown = ran.stdout + &ran.stderr;
        assert_eq!(ran.code, 1, "{shown}");
        assert!(shown.contains(r#""type":"strin""#) && shown.contains("web.yaml:1:1"), "{shown}");
        assert!(shown.lines().all(|line| line.chars().count() < 200), "{shown}");
        assert!(!shown.contains("panicked"), "{shown}");
    }
}

#[test]
fn names_and_files_send_no_commands_to_the_terminal() {
    let folder = package();
    let bad = "\u{1b}[2Jx\u{202e}y";
    fs::write(folder.path().join(format!("templates/{bad}.yaml")), "a: [").unwrap();
    put(folder.path(), |text| text.replace("id: late", &format!("id: \"late{bad}\", {bad}z: 1")));
    let instance = format!("{INSTANCE}spec: {{\"{bad}\": 1, text: \"{bad}\"}}\n");
    for args in [&["lint", "."][..], &["lint", bad], &["render", ".", "-f", "-"], &["render", bad, "-f", bad]]
    {
        let ran = operetta(folder.path(), args, &instance);
        let shown = ran.stdout + &ran.stderr;
        assert_ne!(ran.code, 0, "{shown}");
        assert!(!shown.contains(['\u{1b}', '\u{202e}']), "{args:?}: {shown:?}");
        assert!(shown.contains("\\u{1b}[2Jx\\u{202e}y") || shown.contains("\u{fffd}"), "{args:?}: {shown:?}");
    }
}

/// A value of an instance may contain any character, and the output is shown on terminals.
#[test]
fn unsafe_characters_are_escaped_without_changing_values() {
    let folder = package();
    put(folder.path(), |text| {
        text.replace("stringData:", "data:").replace("kind: Secret", "kind: ConfigMap")
    });
    let value = "a\u{1b}[2J\u{9b}\u{202e}b\u{2066}\nc\u{e0041}";
    let instance = serde_json::json!({
        "apiVersion": "example.com/v1", "kind": "Web", "metadata": {"name": "shop"}, "spec": {"size": 0, "text": value}
    });
    // YAML allows control characters only when they are escaped.
    let input = instance.to_string();
    let input = operetta::printable::json(&input);
    for output in ["json", "yaml"] {
        let ran = operetta(folder.path(), &["render", ".", "-f", "-", "-o", output], &input);
        let shown = ran.stdout;
        assert!(
            !shown.contains(|c| operetta::printable::is_unsafe(c) && c != '\n'),
            "{output}: {shown:?} {}",
            ran.stderr
        );
        let text: Value = if output == "json" {
            serde_json::from_str::<Value>(&shown).unwrap()["items"][0].clone()
        } else {
            let one = shown.split("---\n").find(|text| text.contains("shop-secret")).unwrap();
            operetta::yaml::from_str(one).unwrap()
        };
        assert_eq!(text["data"]["text"], value, "{shown}");
    }
}

#[test]
fn waiting_children_name_their_cause_and_mistakes_fail() {
    let folder = package();
    let late = format!("{LATE}  text: \"{{{{ spec.text }}}}\"\n");
    fs::write(
        folder.path().join("templates/late.yaml"),
        late.replace("data: {uid", "data:\n  uid").replace("}}\"}", "}}\""),
    )
    .unwrap();
    let ran = operetta(folder.path(), &["render", ".", "-f", "-"], &format!("{INSTANCE}spec: {{text: x}}\n"));
    assert!(
        ran.stdout.contains("late waits for children.members: `children.members[0].metadata.uid`"),
        "{}",
        ran.stdout
    );
    // Once the members are live, the finding is about the text that the instance lacks.
    let live = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: shop-0, uid: u0}\n";
    fs::write(folder.path().join("live"), live).unwrap();
    let ran = operetta(
        folder.path(),
        &["render", ".", "-f", "-", "--with", "live"],
        &format!("{INSTANCE}spec: {{}}\n"),
    );
    assert!(
        ran.code == 1 && ran.stderr.contains("child late: `spec.text` is undefined"),
        "{}{}",
        ran.stdout,
        ran.stderr
    );
}
