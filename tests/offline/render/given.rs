//! The objects and facts that are given to `render`: of `--with`, `--children` and `--record`.

use std::fs;

use serde_json::Value;

use super::{INSTANCE, MEMBER, OPERATOR, SECRET, crd, operetta, package, render};

#[test]
fn live_objects_can_be_given() {
    let folder = package();
    let operator = OPERATOR
        .replace("      children:", "      refs:\n        - {id: one, apiVersion: v1, kind: Secret, name: \"{{ name }}-tls\"}\n        - {id: all, apiVersion: v1, kind: ConfigMap, selector: {app: x}}\n      children:\n        - {id: reads, template: templates/reads.yaml}");
    let reads = r#"
apiVersion: v1
kind: ConfigMap
metadata: {name: "{{ name }}-reads"}
data:
  tls: "{{ refs.one is defined }}"
  names: "{{ refs.all | map(attribute='metadata.name') | join(',') }}"
  before: "{{ self.data.before | default('none') }}"
"#;
    fs::write(folder.path().join("operator.yaml"), operator).unwrap();
    fs::write(folder.path().join("templates/reads.yaml"), reads).unwrap();
    let live = r#"
apiVersion: v1
kind: List
items:
  - {apiVersion: v1, kind: Secret, metadata: {name: shop-tls, namespace: default}, data: {a: Yg==}}
  - {apiVersion: v1, kind: ConfigMap, metadata: {name: b, namespace: default, labels: {app: x}}}
  - {apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: default, labels: {app: x}}}
  - {apiVersion: v1, kind: ConfigMap, metadata: {name: c, namespace: elsewhere, labels: {app: x}}}
  - {apiVersion: v1, kind: ConfigMap, metadata: {name: shop-reads, namespace: default}, data: {before: "yes"}}
---
# By its labels, whatever the name.
apiVersion: v1
kind: ConfigMap
metadata:
  name: shop-0
  namespace: default
  uid: the-uid-of-0
  labels:
    operetta.dev/operator: web
    operetta.dev/kind: Web.example.com
    operetta.dev/instance: shop
    operetta.dev/instance-uid: some-uid
    operetta.dev/child: members
    operetta.dev/key: "0"
"#;
    fs::write(folder.path().join("live.yaml"), live).unwrap();
    let ran = operetta(
        folder.path(),
        &["render", ".", "-f", "-", "--with", "live.yaml", "-o", "json"],
        &format!("{INSTANCE}spec: {{}}\n"),
    );
    assert_eq!((ran.code, &*ran.stderr), (0, ""), "{}", ran.stdout);
    let list: Value = serde_json::from_str(&ran.stdout).unwrap();
    let data = |name: &str| {
        let found = list["items"].as_array().unwrap().iter().find(|o| o["metadata"]["name"] == name);
        found.unwrap_or_else(|| panic!("{name} is not in {list}"))["data"].clone()
    };
    assert_eq!(data("shop-late")["uid"], "the-uid-of-0");
    assert_eq!(data("shop-reads"), serde_json::json!({"tls": "true", "names": "a,b", "before": "yes"}));
    // Objects that are not given do not exist.
    let ran = operetta(folder.path(), &["render", ".", "-f", "-", "--with", "/dev/null"], INSTANCE);
    assert!(ran.stdout.contains("reads waits for refs.one"), "{}", ran.stdout);
    assert!(ran.stdout.contains("Secret default/shop-tls does not exist"), "{}", ran.stdout);
}

/// The objects are written by hand: a mistake in them would show a false state.
#[test]
fn given_children_must_be_children() {
    let folder = package();
    let render = |state: &str| {
        fs::write(folder.path().join("state.yaml"), state).unwrap();
        let args = ["render", ".", "-f", "-", "--children", "state.yaml", "-o", "json"];
        operetta(folder.path(), &args, &format!("{INSTANCE}spec: {{text: x}}\n"))
    };
    let head = "apiVersion: v1\nkind: ConfigMap\n";
    let labels = |child: &str, name: &str| {
        format!(
            "labels: {{operetta.dev/operator: web, operetta.dev/kind: Web.example.com, operetta.dev/instance: {name}, \
             operetta.dev/child: {child}, operetta.dev/key: \"4\"}}"
        )
    };
    // Objects are children by their name, and those that are no longer desired by their labels.
    let left = labels("members", "shop");
    let ran = render(&format!(
        "{head}metadata: {{name: shop-0, uid: the-uid}}\n---\n{head}metadata: {{name: shop-4, {left}}}\n"
    ));
    assert_eq!((ran.code, &*ran.stderr), (0, ""), "{}", ran.stdout);
    assert!(ran.stdout.contains("the-uid"), "{}", ran.stdout);
    let good = format!("{head}metadata: {{name: shop-0}}\n---\n");
    for (wrong, words) in [
        (format!("{head}metadata: {{name: shop-9}}\n"), "ConfigMap shop-9 is no child: no instance has"),
        ("apiVersion: v1\nkind: Pod\nmetadata: {name: shop-0}\n".to_owned(), "Pod shop-0 is no child"),
        (format!("{head}metadata: {{name: a, {}}}\n", labels("membres", "shop")), "did you mean `members`?"),
        (format!("{head}metadata: {{name: a, {}}}\n", labels("members", "else")), "name another instance"),
        (
            format!("apiVersion: v1\nkind: Pod\nmetadata: {{name: a, {}}}\n", labels("members", "shop")),
            "the child `members`, as its label says, is a ConfigMap",
        ),
        ("kind: Pod\n".to_owned(), "needs apiVersion, kind and metadata.name"),
        ("a: [\n".to_owned(), "state.yaml:5"),
    ] {
        let ran = render(&format!("{good}{wrong}"));
        let place = ran.stderr.contains("state.yaml:5") || ran.stderr.contains("state.yaml:6");
        assert!(ran.code == 1 && place && ran.stderr.contains(words), "{wrong}: {} {}", ran.code, ran.stderr);
    }
}

/// Objects of a deleted instance of that name can be given, whether or not the new instance exists yet.
#[test]
fn objects_of_a_former_instance_can_be_given() {
    let folder = package();
    let operator = OPERATOR.replace(
        "      children:",
        "      children:\n        - {id: state, template: templates/state.yaml, deletionPolicy: Retain}\n        - {id: reader, template: templates/reader.yaml}",
    );
    let state = r#"
apiVersion: v1
kind: ConfigMap
metadata: {name: "{{ name }}-state"}
data: {primary: "{{ self.data.primary | default('0') }}", left: "{{ retained.state is defined }}"}
"#;
    let reader = r#"
apiVersion: v1
kind: ConfigMap
metadata: {name: "{{ name }}-reader"}
data:
  primary: "{{ children.state.data.primary }}"
  ready: "{{ children.state is ready }}"
  left: "{{ retained.state.data.primary | default('none') }} {{ retained.members | length }}"
"#;
    fs::write(folder.path().join("operator.yaml"), operator).unwrap();
    fs::write(folder.path().join("templates/state.yaml"), state).unwrap();
    fs::write(folder.path().join("templates/reader.yaml"), reader).unwrap();
    let live = |retained: &str| {
        let meta = |name: &str, child: &str| {
            format!(
                "metadata: {{name: {name}, namespace: default, uid: some, annotations: {{operetta.dev/retained: \"{retained}\"}}, labels: {{operetta.dev/operator: web, operetta.dev/kind: Web.example.com, operetta.dev/instance: shop, operetta.dev/instance-uid: uid-1, {child}}}}}"
            )
        };
        let state = meta("shop-state", "operetta.dev/child: state");
        let member = meta("shop-0", "operetta.dev/child: members, operetta.dev/key: \"0\"");
        let head = "apiVersion: v1\nkind: ConfigMap\n";
        format!("{head}{state}\ndata: {{primary: \"1\"}}\n---\n{head}{member}\n")
    };
    let render = |retained: &str, uid: &str| {
        fs::write(folder.path().join("live.yaml"), live(retained)).unwrap();
        let instance = INSTANCE.replace("name: shop", &format!("name: shop{uid}"));
        let args = ["render", ".", "-f", "-", "--with", "live.yaml", "-o", "json"];
        let ran = operetta(folder.path(), &args, &format!("{instance}spec: {{}}\n"));
        assert_eq!((ran.code, &*ran.stderr), (0, ""), "{}", ran.stdout);
        let list: Value = serde_json::from_str(&ran.stdout).unwrap();
        let items = list["items"].as_array().unwrap().clone();
        let data = |name: &str| items.iter().find(|o| o["metadata"]["name"] == name).unwrap()["data"].clone();
        (data("shop-state"), data("shop-reader"))
    };
    let left = (
        serde_json::json!({"primary": "1", "left": "true"}),
        serde_json::json!({"primary": "1", "ready": "false", "left": "1 1"}),
    );
    assert_eq!(render("true", ""), left, "no instance exists");
    assert_eq!(render("true", ", uid: uid-2"), left);
    assert_eq!(render("false", ", uid: uid-2"), left, "a restored backup");
    let own = (
        serde_json::json!({"primary": "1", "left": "false"}),
        serde_json::json!({"primary": "1", "ready": "true", "left": "none 0"}),
    );
    assert_eq!(render("false", ""), own);
    assert_eq!(render("true", ", uid: uid-1"), own, "kept by a person");
}

#[test]
fn generated_values_are_omitted_unless_live() {
    let folder = package();
    let secret = SECRET.replace("stringData:", "stringData:\n  password: {{ password(20) }}\n ");
    let secret = secret.replace("  {text: {{ spec.text }}}", "  text: {{ spec.text }}");
    fs::write(folder.path().join("templates/secret.yaml"), secret).unwrap();
    let operator =
        OPERATOR.replace("when: spec.text is defined}", "when: spec.text is defined, onLoss: Recreate}");
    fs::write(folder.path().join("operator.yaml"), operator).unwrap();
    let instance = format!("{INSTANCE}spec: {{text: hello}}\n");
    let ran = operetta(folder.path(), &["render", ".", "-f", "-"], &instance);
    assert_eq!((ran.code, &*ran.stderr), (0, ""), "{}", ran.stdout);
    assert!(
        ran.stdout.contains("# data.password is generated when the object is created\n"),
        "{}",
        ran.stdout
    );
    // kubectl accepts the output: every value of `data` is base64.
    assert!(ran.stdout.contains("data:\n  text: aGVsbG8=\n"), "{}", ran.stdout);
    let live = "apiVersion: v1\nkind: Secret\nmetadata: {name: shop-secret}\ndata: {password: c2VjcmV0}\n";
    fs::write(folder.path().join("live"), live).unwrap();
    let ran = operetta(folder.path(), &["render", ".", "-f", "-", "--with", "live"], &instance);
    assert!(ran.stdout.contains("  password: c2VjcmV0\n"), "{}", ran.stdout);
}

#[test]
fn instance_printed_by_kubectl_can_be_rendered() {
    let instance = format!(
        "{INSTANCE}spec: {{}}\nstatus: {{observedGeneration: 1, revision: r, conditions: [{{type: Ready, status: 'True'}}], more: {{a: 1}}}}\n"
    );
    let ran = render(&instance, "name");
    assert_eq!(ran.code, 0, "{}", ran.stderr);
}

/// Later states can be rendered, such as after a failover: `record` has the facts that plans have recorded.
#[test]
fn recorded_facts_are_given() {
    let folder = tempfile::tempdir().unwrap();
    let write = |path: &str, text: &str| {
        let path = folder.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    write("crds/web.yaml", &crd());
    write(
        "operator.yaml",
        "apiVersion: operetta.dev/v1alpha1
kind: OperatorPackage
metadata: {name: web}
spec:
  version: 0.1.0
  resources:
    - crd: crds/web.yaml
      children:
        - {id: primary, template: templates/primary.yaml}
        - {id: member, template: templates/member.yaml, forEach: {in: \"record.members | default([])\", as: i}}
      plans:
        deploy:
          steps: [{name: note, record: {primary: 0, members: \"[0]\", mode: \"'a'\"}}]
",
    );
    let primary = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: \"{{ name }}-primary\"}\ndata: {primary: \"{{ record.primary | default('none') }}\", mode: \"{{ record.mode | default('none') }}\"}\n";
    write("templates/primary.yaml", primary);
    write("templates/member.yaml", &MEMBER.replace("{{ spec.size }}", "{{ i }}"));
    write("facts.yaml", "primary: 2\nmode: b\n");
    let state = "apiVersion: operetta.dev/v1alpha1\nkind: InstanceState\nmetadata: {name: shop}\nspec:\n  record: {primary: {value: 1, sequence: 3}, members: {value: [1, 2], sequence: 4}}\n";
    write("state.yaml", state);
    let render = |args: &[&str]| {
        let all = [&["render", ".", "-f", "-", "-o", "json"], args].concat();
        operetta(folder.path(), &all, INSTANCE)
    };
    let found = |args: &[&str]| {
        let ran = render(args);
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        let list: Value = serde_json::from_str(&ran.stdout).unwrap();
        let names: Vec<String> = list["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(|o| o["metadata"]["name"].as_str().unwrap().to_owned())
            .collect();
        let data = &list["items"][0]["data"];
        format!(
            "{} {} {}",
            names.join(","),
            data["primary"].as_str().unwrap(),
            data["mode"].as_str().unwrap()
        )
    };
    assert_eq!(found(&[]), "shop-primary none none");
    assert_eq!(
        found(&["--record", "primary=1", "--record", "members=[3, 4]"]),
        "shop-primary,shop-3,shop-4 1 none"
    );
    assert_eq!(found(&["--record", "facts.yaml", "--record", "primary=5"]), "shop-primary 5 b");
    assert_eq!(found(&["--record", "state.yaml"]), "shop-primary,shop-1,shop-2 1 none");
    for (args, words, code) in [
        (["--record", "primry=1"], "did you mean `primary`?", 1),
        (["--record", "other=1"], "its plans record members, mode, primary", 1),
        (["--record", "absent.yaml"], "cannot read absent.yaml", 2),
        (["--record", "templates/primary.yaml"], "no plan of the package web records it", 1),
    ] {
        let ran = render(&args);
        assert!(ran.code == code && ran.stderr.contains(words), "{args:?}: {} {}", ran.code, ran.stderr);
    }
}
