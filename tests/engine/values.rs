//! A value of an instance arrives in its child as exactly that string, whatever a YAML parser or a template
//! engine would make of it.

use crate::support::ext::{
    CONFIG_MAP, ECHO, EVENT, FIGURE, Scene, condition, file, fixture, has_derived_rights, is_managers,
    is_ready, name_of,
};
use serde_json::{Value, json};

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
        // Characters beyond ASCII.
        "h\u{e9}llo",
        "he\u{301}llo",
        "\u{1F469}\u{200D}\u{1F680}",
        "\u{feff}bom",
        "\u{202e}rtl",
        "\u{0}nul",
        "\u{1}\u{7}\u{8}\u{b}\u{c}\u{1b}\u{7f}\u{80}",
        "\u{fffd}\u{fffe}\u{ffff}",
        // Private use characters: an engine could use some of them as placeholders.
        "\u{e000}",
        "\u{e000}0\u{e001}",
        "\u{e001}1\u{e000}",
        "\u{f8ff}\u{f0000}\u{ffffd}\u{100000}\u{10fffd}\u{10ffff}",
    ]
    .map(str::to_owned)
    .into();
    // The whole first private use block, which includes any placeholder.
    values.push(('\u{e000}'..='\u{f8ff}').collect());
    values.push(('\u{1}'..'\u{100}').collect());
    // 100 KB: ten copies of it are just within the megabyte that a ConfigMap may have.
    values.push("x".repeat(100_000));
    values.push("# a: [&b, *c] '\"\n".repeat(1_000));
    values.push("[".repeat(5_000));
    values.push("{{".repeat(2_000));
    values
}

#[tokio::test]
async fn strings_arrive_as_they_are() {
    let scene = Scene::new().await;
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
    // No other object was created from the values.
    let maps = scene.names(CONFIG_MAP).await;
    assert_eq!(maps.len(), values.len());
    if !has_derived_rights() {
        let roles = ["get", "clusterroles", "-l", "operetta.dev/operator", "-o", "name"];
        assert_eq!(crate::support::kubectl(&roles).await.ok(), "");
    }
}

/// The positions in which the child does not have exactly the text.
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
async fn hostile_strings_of_the_fixture_arrive_unchanged() {
    let scene = Scene::new().await;
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
async fn changed_values_arrive_as_well() {
    let scene = Scene::new().await;
    scene.apply_ready(ECHO, "plain", &file(&format!("{}/instances/plain.yaml", fixture("echo")))).await;
    for text in ["0644", "x\nkind: ClusterRole", "true", ""] {
        scene.patch(ECHO, "plain", "merge", &json!({"spec": {"text": text}})).await;
        scene.until(&format!("{text:?}"), CONFIG_MAP, "plain", |o| o["data"]["plain"] == text).await;
        let length = |o: &Value| is_ready(o) && o["status"]["length"] == text.chars().count();
        scene.until("the text's length", ECHO, "plain", length).await;
    }
}

/// Waits until the status reports the omitted field and is otherwise right.
async fn left_out(scene: &Scene, name: &str, words: &[&str]) -> Value {
    let holds = |o: &Value| {
        let told = condition(o, "StatusFailed");
        let message = told["message"].as_str().unwrap_or_default();
        is_ready(o) && told["status"] == "True" && words.iter().all(|word| message.contains(word))
    };
    let object = scene.until(&format!("{words:?} left out"), FIGURE, name, holds).await;
    assert_eq!(*condition(&object, "Stalled"), Value::Null, "{object:#}");
    object
}

#[tokio::test]
async fn invalid_status_field_is_omitted_alone() {
    let scene = Scene::with_commands().await;
    scene.apply(&file(&format!("{}/instances/wrong.yaml", fixture("figures")))).await;
    let words = ["status.count", "an integer", "a string"];
    let object = left_out(&scene, "wrong", &words).await;
    assert_eq!((object["status"].get("count"), &object["status"]["label"]), (None, &json!("plain")));
    // All outputs report the same.
    let n = scene.namespace();
    let table = scene.operetta(&["get", "figures", "-o", "wide"]).await.ok();
    let line: Vec<&str> = table.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(line[1..5], ["wrong", "True", "Ready", "StatusFailed"], "{table}");
    assert!(words.iter().all(|word| table.contains(word)), "{table}");
    let tree = scene.operetta(&["tree", "figure/wrong"]).await.ok();
    let line: Vec<&str> = tree.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(line[3..5], ["True", "Ready"], "{tree}");
    assert!(tree.contains("StatusFailed: left out: status.count"), "{tree}");
    crate::support::eventually("both Events", crate::support::ext::LONG, async || {
        let events = scene.list(EVENT).await;
        let told = |reason: &str, kind: &str| {
            events
                .iter()
                .any(|e| e["reason"] == reason && e["type"] == kind && e["involvedObject"]["name"] == "wrong")
        };
        let holds = told("Ready", "Normal") && told("StatusFailed", "Warning");
        if holds { Ok(()) } else { Err(format!("{events:#?}")) }
    })
    .await;

    // A field that only the API server refuses: the rest is written, and the write is not repeated in a loop.
    let spec = json!({"spec": {"value": 3, "bounded": 11, "label": "other"}});
    scene.patch(FIGURE, "wrong", "merge", &spec).await;
    let object = left_out(&scene, "wrong", &["status.bounded", "refuses"]).await;
    assert_eq!((&object["status"]["count"], &object["status"]["label"]), (&json!(3), &json!("other")));
    assert_eq!(object["status"].get("bounded"), None, "what it said before is not so any more");
    let audit = scene.plane().audit();
    let mark = audit.mark().unwrap();
    scene.kubectl(&["annotate", "figure", "wrong", "example.org/touch=1"]).await;
    scene.kubectl(&["delete", "configmap", "wrong"]).await;
    scene.until("there again", CONFIG_MAP, "wrong", |_| true).await;
    left_out(&scene, "wrong", &["status.bounded"]).await;
    let refused: Vec<_> = audit
        .requests_since(mark)
        .unwrap()
        .into_iter()
        .filter(|r| is_managers(r) && r.code == 422 && r.uri.contains(n))
        .collect();
    assert!(refused.is_empty(), "{}", crate::support::ext::list(&refused));

    // Once corrected, nothing is reported. An omitted field is absent.
    scene.patch(FIGURE, "wrong", "merge", &json!({"spec": {"bounded": 10, "note": "seen"}})).await;
    let whole = |o: &Value| {
        is_ready(o)
            && condition(o, "StatusFailed").is_null()
            && o["status"]["bounded"] == 10
            && o["status"]["note"] == "seen"
    };
    scene.until("whole", FIGURE, "wrong", whole).await;
    scene.patch(FIGURE, "wrong", "merge", &json!({"spec": {"note": null}})).await;
    let omitted = |o: &Value| {
        is_ready(o) && o["status"].get("note").is_none() && condition(o, "StatusFailed").is_null()
    };
    scene.until("the note left out", FIGURE, "wrong", omitted).await;
}
