//! A value of an instance arrives in its child as exactly that string, whatever a YAML parser or a template
//! engine would make of it.

mod support;

use serde_json::{Value, json};
use support::ext::{CONFIG_MAP, ECHO, Scene, condition, file, fixture, is_ready, name_of};

const PACKAGES: [&str; 1] = ["echo"];

fn values() -> Vec<String> {
    let mut values: Vec<String> = [
        // YAML that would change the document.
        "x\nkind: ClusterRole",
        "x\nmetadata:\n  name: other\n  namespace: kube-system",
        "a\n---\napiVersion: v1\nkind: Secret",
        "...",
        "---",
        "- a",
        "- a\n- b",
        "{a: b}",
        "[a, b]",
        "? a\n: b",
        "a: b",
        "key: |\n  text",
        "&anchor a",
        "*anchor",
        "<<",
        "<<: *a",
        "!!python/object:os.system ls",
        "!!binary aGVsbG8=",
        "!!str 1",
        "%YAML 1.2",
        "# no comment",
        "a # no comment",
        "@at",
        "`backtick`",
        "|",
        ">",
        "|2-\n  a",
        // Strings that YAML 1.1 or 1.2 reads as something else.
        "true",
        "True",
        "yes",
        "off",
        "y",
        "null",
        "~",
        "0644",
        "0o644",
        "0x1F",
        "0b11",
        "1_000",
        "1e3",
        "1.0",
        ".5",
        ".inf",
        ".NaN",
        "-0",
        "190:20:30",
        "2001-01-01",
        "2001-01-01T00:00:00Z",
        "9007199254740993",
        "99999999999999999999999",
        "=",
        // Templates.
        "{{ 7*7 }}",
        "{{ spec.text }}",
        "{% if true %}a{% endif %}",
        "{# note #}",
        "{{",
        "}}",
        "{%",
        "{{ '",
        "{% raw %}{{ a }}{% endraw %}",
        "${HOME} $(id) %s %(a)s",
        // Quotes and escapes.
        "'",
        "\"",
        "''",
        "\"\"",
        "'\"'\"'",
        "\\",
        "\\n",
        "\\u0041",
        "a\\",
        "\\\"",
        "<>&'\"",
        "&lt;",
        // White space.
        "",
        " ",
        "\n",
        "\n\n",
        "\t",
        "  leading",
        "trailing  ",
        "line\n",
        "line\n\n",
        "\n  indented\n    more\n",
        "a\r\nb",
        "a\rb",
        "tab\there",
        "a\u{85}b\u{2028}c\u{2029}d",
        "\u{a0}\u{2003}\u{3000}",
        // Beyond ASCII.
        "h\u{e9}llo",
        "he\u{301}llo",
        "\u{1F469}\u{200D}\u{1F680}",
        "\u{feff}bom",
        "\u{202e}rtl",
        "\u{0}nul",
        "\u{1}\u{7}\u{8}\u{b}\u{c}\u{1b}\u{7f}\u{80}",
        "\u{fffd}\u{fffe}\u{ffff}",
        // Private use: an engine of placeholders might have taken some for itself.
        "\u{e000}",
        "\u{e000}0\u{e001}",
        "\u{e001}1\u{e000}",
        "\u{f8ff}\u{f0000}\u{ffffd}\u{100000}\u{10fffd}\u{10ffff}",
    ]
    .map(str::to_owned)
    .into();
    // All of the first private use block: whichever is a placeholder is among them.
    values.push(('\u{e000}'..='\u{f8ff}').collect());
    values.push(('\u{1}'..'\u{100}').collect());
    // 100 KB; ten positions of it are just within the megabyte that a ConfigMap may have.
    values.push("x".repeat(100_000));
    values.push("# a: [&b, *c] '\"\n".repeat(1_000));
    values.push("[".repeat(5_000));
    values.push("{{".repeat(2_000));
    values
}

#[tokio::test]
async fn strings_arrive_as_they_are() {
    let scene = Scene::new(&PACKAGES).await;
    let values = values();
    let items: Vec<Value> = values
        .iter()
        .enumerate()
        .map(|(i, text)| {
            json!({"apiVersion": ECHO.api_version(), "kind": "Echo", "metadata": {"name": format!("v{i}")}, "spec": {"text": text}})
        })
        .collect();
    let list = json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string();
    scene.kubectl_input(&["create", "-f", "-"], &list).await.unwrap();
    let mut wrong = Vec::new();
    for (i, text) in values.iter().enumerate() {
        let name = format!("v{i}");
        let told = |o: &Value| is_ready(o) || condition(o, "Stalled")["status"] == "True";
        let echo = scene.until("Ready or Stalled", ECHO, &name, told).await;
        let shown: String = text.chars().take(40).collect();
        if !is_ready(&echo) {
            wrong.push(format!("{shown:?}: {}", condition(&echo, "Ready")["message"]));
            continue;
        }
        let data = scene.get(CONFIG_MAP, &name).await["data"].clone();
        wrong.extend(compare(&name, text, &data).into_iter().map(|place| format!("{shown:?}: {place}")));
    }
    assert!(wrong.is_empty(), "{} values:\n{}", wrong.len(), wrong.join("\n"));
    // Nothing else was made of them.
    let maps = scene.names(CONFIG_MAP).await;
    assert_eq!(maps.len(), values.len());
    let roles =
        support::kubectl(&["get", "clusterroles", "-l", "operetta.dev/operator", "-o", "name"]).await.ok();
    assert_eq!(roles, "");
}

/// The positions in which the child does not hold the text as it is.
fn compare(name: &str, text: &str, data: &Value) -> Vec<String> {
    let joined = format!("<{text}>");
    let key = json!({text: "plain key", joined.as_str(): "joined key"});
    let parsed = |position: &str| -> Value {
        data[position].as_str().and_then(|json| serde_json::from_str(json).ok()).unwrap_or_default()
    };
    let mut wrong = Vec::new();
    for (position, expected) in [
        ("plain", text),
        ("quoted", text),
        ("single", text),
        ("joined", &joined),
        ("joined-quoted", &joined),
        ("literal", &joined),
        ("folded", &joined),
        (&format!("{name}-key"), "found"),
    ] {
        if data[position] != expected {
            let found: String = data[position].to_string().chars().take(80).collect();
            wrong.push(format!("{position} holds {found}"));
        }
    }
    for (position, expected) in [("flow", json!({"text": text})), ("key", key)] {
        if parsed(position) != expected {
            let found: String = data[position].to_string().chars().take(80).collect();
            wrong.push(format!("{position} holds {found}"));
        }
    }
    wrong
}

#[tokio::test]
async fn the_hostile_instances_of_the_fixture() {
    let scene = Scene::new(&PACKAGES).await;
    let manifests = file(&format!("{}/instances/hostile.yaml", fixture("echo")));
    scene.apply(&manifests).await;
    let count = manifests.matches("kind: Echo").count();
    assert!(count > 10);
    let echoes = scene.list(ECHO).await;
    assert_eq!(echoes.len(), count);
    for echo in &echoes {
        let name = name_of(echo);
        scene.ready(ECHO, name).await;
        let text = echo["spec"]["text"].as_str().unwrap();
        let data = scene.get(CONFIG_MAP, name).await["data"].clone();
        assert_eq!(compare(name, text, &data), [""; 0], "{name}");
    }
    assert_eq!(scene.names(CONFIG_MAP).await.len(), count);
}

#[tokio::test]
async fn a_changed_value_arrives_too() {
    let scene = Scene::new(&PACKAGES).await;
    scene.apply(&file(&format!("{}/instances/plain.yaml", fixture("echo")))).await;
    scene.ready(ECHO, "plain").await;
    for text in ["0644", "x\nkind: ClusterRole", "true", ""] {
        scene.patch(ECHO, "plain", "merge", &json!({"spec": {"text": text}})).await;
        scene.until(&format!("{text:?}"), CONFIG_MAP, "plain", |o| o["data"]["plain"] == text).await;
        let length = |o: &Value| is_ready(o) && o["status"]["length"] == text.chars().count();
        scene.until("the text's length", ECHO, "plain", length).await;
    }
}
