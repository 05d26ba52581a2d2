//! Every mistake that linting finds: a table of small packages with the expected findings marked in
//! the text.
//!
//! A fixture is several files. `//- path` begins a file. A line of carets below a line marks a finding
//! that begins where the carets begin: `#   ^^^ error: message; help`, or `^^^ error: ...` for the
//! first column. `//! error: ...` is a finding that has no place. `//- resource` is an operator.yaml
//! whose first lines are [`HEADER`]. Files of [`BASE`] are there unless a fixture brings its own.

#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "lint/conditional.rs"]
mod conditional;
#[path = "lint/outputs.rs"]
mod outputs;
#[path = "lint/schemas.rs"]
mod schemas;
#[path = "lint/slips.rs"]
mod slips;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use operetta::diag::Diagnostic;
use operetta::package::{self, Package};

const HEADER: &str = "\
apiVersion: operetta.dev/v1alpha1
kind: OperatorPackage
metadata: {name: web}
spec:
  version: 0.1.0
  defaults: {image: nginx, ports: {http: 80}}
  resources:
";

const BASE: &str = "\
//- crds/web.yaml
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: webs.example.com}
spec:
  group: example.com
  names: {kind: Web, plural: webs, singular: web, listKind: WebList}
  scope: Namespaced
  versions:
    - name: v1
      served: true
      storage: true
      schema:
        openAPIV3Schema:
          type: object
          properties:
            spec:
              type: object
              properties:
                size: {type: integer, default: 1}
                host: {type: string}
                envs: {type: array, items: {type: object, properties: {name: {type: string}}}}
                labels: {type: object, additionalProperties: {type: string}}
                free: {type: object, x-kubernetes-preserve-unknown-fields: true}
                pod: {type: object, properties: {image: {type: string}}}
            status: {type: object, x-kubernetes-preserve-unknown-fields: true}
//- templates/cm.yaml
apiVersion: v1
kind: ConfigMap
metadata: {name: \"{{ name }}\"}
";

struct Fixture {
    files: BTreeMap<String, String>,
    expected: Vec<String>,
}

fn parse(text: &str) -> Fixture {
    let mut files: BTreeMap<String, String> = BTreeMap::new();
    let mut expected = Vec::new();
    let mut file = String::new();
    let mut lines = 0;
    for line in text.trim_start().lines() {
        if let Some(path) = line.strip_prefix("//- ") {
            let (path, start) = if path == "resource" { ("operator.yaml", HEADER) } else { (path, "") };
            path.clone_into(&mut file);
            lines = start.lines().count();
            files.insert(file.clone(), start.to_owned());
            continue;
        }
        if let Some(finding) = line.strip_prefix("//! ") {
            expected.push(finding.to_owned());
            continue;
        }
        let carets = line.trim_start_matches(['#', ' ']);
        if carets.starts_with('^') {
            let column = line.chars().count() - carets.chars().count() + 1;
            let finding = carets.trim_start_matches('^').trim();
            expected.push(format!("{file}:{lines}:{column}: {finding}"));
            continue;
        }
        lines += 1;
        let content = files.get_mut(&file).expect("a fixture begins with `//- path`");
        content.push_str(line);
        content.push('\n');
    }
    Fixture { files, expected }
}

fn write(folder: &Path, files: &BTreeMap<String, String>) {
    for (path, content) in files {
        let path = folder.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }
}

fn load(folder: &Path) -> (Option<Package>, Vec<Diagnostic>) {
    match package::load(folder) {
        Ok((package, warnings)) => (Some(package), warnings),
        Err(diagnostics) => (None, diagnostics),
    }
}

fn shown(folder: &Path, diagnostic: &Diagnostic) -> String {
    let severity = if diagnostic.is_error() { "error" } else { "warning" };
    let place = diagnostic.location.as_ref().map_or_else(String::new, |location| format!("{location}: "));
    let help = diagnostic.help.as_ref().map_or_else(String::new, |help| format!("; {help}"));
    let text = format!("{place}{severity}: {}{help}", diagnostic.message);
    text.replace(&format!("{}/", folder.display()), "")
}

/// Loads the fixture and compares what is found with what is marked.
fn check(text: &str) -> Option<Package> {
    check_with(text, load)
}

fn check_with(text: &str, find: fn(&Path) -> (Option<Package>, Vec<Diagnostic>)) -> Option<Package> {
    let mut fixture = parse(text);
    for (path, content) in parse(BASE).files {
        fixture.files.entry(path).or_insert(content);
    }
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &fixture.files);
    let (package, diagnostics) = find(folder.path());
    let mut found: Vec<_> = diagnostics.iter().map(|diagnostic| shown(folder.path(), diagnostic)).collect();
    let mut expected = fixture.expected;
    found.sort();
    expected.sort();
    let only = |these: &[String], those: &[String]| {
        these.iter().filter(|line| !those.contains(line)).cloned().collect::<Vec<_>>().join("\n  ")
    };
    let (missing, surplus) = (only(&expected, &found), only(&found, &expected));
    assert!(found == expected, "\n--- expected only:\n  {missing}\n--- found only:\n  {surplus}\n");
    package
}

#[test]
fn a_small_package_is_fine() {
    let package = check(
        r#"
//- resource
    - crd: crds/web.yaml
      let: {image: "{{ defaults.image }}:{{ spec.size }}", fixed: [1, 2]}
#                                                          ^^^^^ warning: nothing reads let.fixed; read it, or remove it
      paused: spec.free.paused
      readyWhen: children.config is ready
      children:
        - {id: first, template: templates/first.yaml, when: spec.host is defined, yields: ["spec.replicas"]}
        - id: config
          template: templates/cm.yaml
        - {id: members, template: templates/member.yaml, forEach: {in: range(spec.size), as: i}, maxUnavailable: 25%, dependsOn: [config]}
      status:
        size: children.members | length
        members: {ready: "children.members.values() | select('ready') | list"}
        fixed: 3
        on: true
#       ^^ warning: the key `on` is read as "true": it is a boolean in YAML 1.1; quote it: "on"
      conditions:
        - {type: Odd, when: spec.size % 2 == 1, reason: OddSize, message: "{{ spec.size }} is odd"}
//- templates/member.yaml
apiVersion: v1
kind: ConfigMap
metadata: {name: "{{ name }}-{{ i }}", labels: {{ partial("labels.yaml") }}}
data: {image: "{{ let.image }}", old: "{{ self.data.old | default('') }}"}
//- templates/labels.yaml
app: {{ name }}
//- templates/first.yaml
apiVersion: v1
kind: Secret
metadata: {name: "{{ name }}-first", namespace: "{{ operator.namespace }}"}
stringData: {ip: "{{ children.members[0].status.podIP | default('') }}", uid: "{{ children.config.metadata.uid }}"}
"#,
    )
    .expect("a package");
    assert_eq!((package.name.as_str(), package.version.to_string().as_str()), ("web", "0.1.0"));
    let resource = package.resource("example.com/v1", "Web").expect("a resource");
    let ids: Vec<_> = resource.children.iter().map(|child| child.id.as_str()).collect();
    assert_eq!(ids, ["config", "members", "first"]);
    let depends: Vec<_> = resource.children.iter().map(|child| child.depends_on.clone()).collect();
    assert_eq!(depends, [vec![], vec![0], vec![0, 1]]);
    assert!(resource.children.iter().all(|child| child.ordered));
    let status: Vec<_> = resource.status.iter().map(|field| field.name.as_str()).collect();
    assert_eq!(status, ["size", "members.ready", "fixed", "true"]);
    let read = |id: &str| format!("{:?}", resource.child(id).unwrap().reads_live);
    assert_eq!(read("config"), r#"[[Key("metadata"), Key("uid")]]"#);
    assert_eq!(read("members"), "[[]]", "the status shows whole members");
    assert_eq!(read("first"), "[]");
}

#[test]
fn keys_are_told_apart_from_typos() {
    check(
        r#"
//- operator.yaml
apiVersion: operetta.dev/v1
#           ^^^^^^^^^^^^^^^ error: must be operetta.dev/v1alpha1, is operetta.dev/v1
kind: Operator
#     ^^^^^^^^ error: must be OperatorPackage, is Operator
metadata: {name: Web_1, label: x}
#                ^^^^^ error: must be lower case letters, digits and hyphens, beginning with a letter and not ending in a hyphen, at most 40 characters
#                       ^^^^^ error: unknown key `label`; the keys here are name
spec:
  version: 0.1
#          ^^^ error: `0.1` is not a SemVer version: unexpected end of input while parsing minor version number; write three parts, for instance 0.1.0
  appVersion: 3.5
#             ^^^ error: must be a string, is the number 3.5; quote it: "3.5"
  descripton: a shop
# ^^^^^^^^^^ error: unknown key `descripton`; did you mean `description`?
  requires: {kubernetes: new, operators: []}
#                        ^^^ error: `new` is not a range of versions: unexpected character 'n' while parsing major version number; write for instance ">=1.30"
#                             ^^^^^^^^^ error: this version of Operetta does not do `operators` yet; remove it
  maintainers: [{email: a@b.c}]
#                ^^^^^ error: `name` is missing
  resources:
    - crd: crds/web.yaml
      adopt: please
#            ^^^^^^ error: must be true or false, is a string
      plans: {}
#     ^^^^^ error: this version of Operetta does not do `plans` yet; remove it
      refs:
        - {id: peers, apiVersion: v1, kind: Pod, exec: {}, name: x}
#                                                ^^^^ error: this version of Operetta does not do `exec` yet; remove it
        - {id: tls, apiVersion: "v1/Secret", kind: secret, name: x}
#                               ^^^^^^^^^^^ error: must be a literal apiVersion such as v1 or apps/v1, at most 253 characters
#                                                  ^^^^^^ error: must be a literal kind in CamelCase such as Secret, at most 63 characters
        - {id: all, apiVersion: v1, kind: Secret, selector: {}, namespaces: some}
#                                                                           ^^^^ error: must be `all`, or a list of namespaces, is a string
      children:
        - id: Config
#             ^^^^^^ error: must be letters, digits, hyphens and underscores, beginning with a lower case letter and ending in a letter or digit, at most 63 characters
          template: templates/cm.yaml
        - id: a
#         ^^ error: `template` is missing
          deletionPolicy: ask
#                         ^^^ error: must be one of Delete, Retain, Ask; did you mean `Ask`?
          conflictPolicy: force
#                         ^^^^^ error: must be one of Force, Fail; did you mean `Force`?
          lostWhen: self.x
#         ^^^^^^^^ error: this version of Operetta does not do `lostWhen` yet; remove it
          dependson: []
#         ^^^^^^^^^ error: unknown key `dependson`; did you mean `dependsOn`?
          maxUnavailable: 0
#                         ^ error: must be a number from 1, or a percentage from 1% to 100%
          readyWhen:
#                  ^ error: has no value, wanted an expression; give it a value, or remove the key
        - forEach: {in: spec.envs, as: env}
          chidren: []
#         ^^^^^^^ error: unknown key `chidren`; did you mean `children`?
          children: [{template: templates/cm.yaml}]
#                     ^^^^^^^^ error: `id` is missing
      status:
        a: {jsonPath: .children.cm.data.x, more: spec.size}
#           ^^^^^^^^ error: `jsonPath` stands alone in its map; remove the other keys
"#,
    );
}

#[test]
fn refs_are_in_namespaces_that_nobody_chooses() {
    check(
        r#"
//- resource
    - crd: crds/web.yaml
      refs:
        - {id: a, apiVersion: v1, kind: Secret, name: x, namespace: "{{ spec.host }}"}
#                                                                   ^^^^^^^^^^^^^^^^^ error: a ref's namespace must not be computed; leave it out (the instance's own), or write a literal or {{ operator.namespace }}: else whoever may create an instance could read in any namespace
        - {id: b, apiVersion: v1, kind: Secret, selector: {}, namespaces: [x, "{{ labels.a }}", "{{ operator.namespace }}"]}
#                                                                             ^^^^^^^^^^^^^^ error: a ref's namespace must not be computed; leave it out (the instance's own), or write a literal or {{ operator.namespace }}: else whoever may create an instance could read in any namespace
        - {id: c, apiVersion: v1, kind: Secret, name: x, namespace: "{{ refs.b }}"}
#                                                                   ^^^^^^^^^^^^ error: a ref's namespace must not be computed; leave it out (the instance's own), or write a literal or {{ operator.namespace }}: else whoever may create an instance could read in any namespace
        - {id: d, apiVersion: v1, kind: Secret}
#              ^ error: the ref `d` says neither `name` nor `selector`; say which object: name: "{{ spec.x }}"
        - {id: e, apiVersion: v1, kind: Secret, name: x, selector: {}}
#                                                     ^ error: a ref has a name or a selector, not both; remove one of them
        - {id: f, apiVersion: v1, kind: Secret, name: x, namespaces: all}
#                                                                    ^^^ error: `namespaces` is for a selector; write namespace: x
        - {id: g, apiVersion: v1, kind: Secret, name: x, namespace: "{{ namespace }}"}
        - {id: g, apiVersion: v1, kind: Secret, selector: {app: "{{ name }}"}, namespaces: all}
#              ^ error: two refs have the id `g`; rename one of them
"#,
    );
}

#[test]
fn what_is_read_of_refs_is_known() {
    check(
        r#"
//- resource
    - crd: crds/web.yaml
      let: {pem: "{{ refs.tsl.data }}"}
#                    ^^^^^^^^^^^^^ error: `refs.tsl` does not exist: there is no ref of that id; did you mean `refs.tls`?
      refs:
        - {id: tls, apiVersion: v1, kind: Secret, name: "{{ spec.sise }}"}
#                                                           ^^^^^^^^^ error: the CRD's schema has no spec.sise; did you mean `spec.size`?
        - {id: pods, apiVersion: v1, kind: Pod, selector: {app: "{{ name }}"}}
        - {id: one, apiVersion: v1, kind: Pod, name: "{{ refs.two.data.a }}"}
#              ^^^ error: these refs need each other: refs.one -> refs.two -> refs.one
        - {id: two, apiVersion: v1, kind: ConfigMap, name: "{{ refs.one.spec.nodeName }}"}
      status:
        a: refs | length
#          ^^^^ error: refs are read by id: which ones, must be known; write refs.<id>
        b: refs.pods.status
#          ^^^^^^^^^^^^^^^^ error: `refs.pods` is a list: it has a selector; write refs.pods | map(attribute='status'), or a loop
        c: refs.tls.stringData.x is string
#          ^^^^^^^^^^^^^^^^^^^^^ error: a Secret has no field stringData; it can only be written; read refs.tls.data.<key> | b64decode
        d: refs.tls.error | default(let.pem)
        f: cluster.verson
#          ^^^^^^^^^^^^^^ error: `cluster.verson` does not exist; did you mean `cluster.version`?
        g: cluster.has('policy/v1') and refs.pods | length > 1
"#,
    );
}

#[test]
fn refs_for_each_item_are_maps_by_key() {
    check(
        r#"
//- resource
    - crd: crds/web.yaml
      refs:
        - {id: certs, apiVersion: v1, kind: Secret, forEach: {in: spec.envs, as: env, key: env.name}, name: "{{ env.name }}-tls"}
        - {id: pods, apiVersion: v1, kind: Pod, forEach: {in: spec.envs, as: env, key: env.name}, selector: {env: "{{ env.name }}"}}
        - {id: same, apiVersion: v1, kind: Secret, forEach: {in: range(3), as: i}, name: x}
#              ^^^^ error: the ref `same` does not read `i`: all its keys would be the same objects; put it into the name or the selector: "{{ i }}"
        - {id: far, apiVersion: v1, kind: Secret, forEach: {in: spec.envs, as: env, key: env.name}, name: x, namespace: "{{ env.name }}"}
#                                                                                                                       ^^^^^^^^^^^^^^ error: a ref's namespace must not be computed; leave it out (the instance's own), or write a literal or {{ operator.namespace }}: else whoever may create an instance could read in any namespace
        - {id: bad, apiVersion: v1, kind: Secret, forEach: {in: spec.envz, as: spec}, name: x}
#              ^^^ error: the ref `bad` does not read `spec`: all its keys would be the same objects; put it into the name or the selector: "{{ spec }}"
#                                                               ^^^^^^^^^ error: the CRD's schema has no spec.envz; did you mean `spec.envs`?
#                                                                              ^^^^ error: `spec` is a variable of Operetta's own; choose another name
      status:
        b: refs.certs.prod.dat
#          ^^^^^^^^^^^^^^^^^^^ error: a Secret has no field dat; did you mean `refs.certs[key].data`?
        c: refs.pods.prod.status
#          ^^^^^^^^^^^^^^^^^^^^^ error: `refs.pods[key]` is a list: it has a selector; write refs.pods[key] | map(attribute='status'), or a loop
"#,
    );
    check(
        r#"
//- resource
    - crd: crds/web.yaml
      refs:
        - {id: certs, apiVersion: v1, kind: Secret, forEach: {in: spec.envs, as: env, key: env.name}, name: "{{ env.name }}-tls"}
#              ^^^^^ warning: nothing reads the ref `certs`; read it as refs.certs, or remove it: it is watched, and awaited unless it is optional
      status:
        a: env.name
#          ^^^ error: `env` is the item of a forEach, which is not known here; only that ref's own name, selector, when and key see it
"#,
    );
    let package = check(
        r#"
//- resource
    - crd: crds/web.yaml
      refs:
        - {id: certs, apiVersion: v1, kind: Secret, forEach: {in: spec.envs, as: env, key: env.name}, name: "{{ env.name }}-tls"}
        - {id: pods, apiVersion: v1, kind: Pod, forEach: {in: refs.certs | keys, as: key}, selector: {env: "{{ key }}"}}
      children:
        - {id: config, template: templates/cm.yaml}
      status:
        a: refs.certs.prod.data['tls.crt'] | default('') | sha256
        b: refs.certs['dev'] is known
        c: refs.pods.dev | map(attribute='status.podIP') | list
"#,
    );
    let package = package.expect("it is fine");
    let refs = &package.resources[0].refs;
    let reads: Vec<_> = refs
        .iter()
        .map(|r| format!("{} {}", r.id, r.reads.iter().map(|p| p.join("/")).collect::<Vec<_>>().join(" ")))
        .collect();
    assert_eq!(reads, ["certs data/tls.crt", "pods status/podIP"]);
}

#[test]
fn only_what_is_read_of_refs_is_kept() {
    let package = check(
        r#"
//- resource
    - crd: crds/web.yaml
      let: {crt: "{{ refs.tls.data['tls.crt'] }}"}
      refs:
        - {id: second, apiVersion: v1, kind: Secret, name: "{{ refs.first.data.name }}"}
        - {id: first, apiVersion: v1, kind: ConfigMap, name: x}
        - {id: tls, apiVersion: v1, kind: Secret, name: tls}
        - {id: pods, apiVersion: v1, kind: Pod, selector: {app: x}}
        - {id: all, apiVersion: v1, kind: Pod, selector: {}, namespaces: all}
      children:
        - {id: config, template: templates/cm.yaml, when: refs.second is defined}
#                                                         ^^^^^^^^^^^^^^^^^^^^^^ warning: the `when` of the child is always true; a required field, one with a default and a ref that is not optional always have a value; compare the value, or remove the condition
        - when: cluster.has('v1')
          children:
            - {id: other, template: templates/cm2.yaml}
      status:
        a: let.crt | sha256
        b: refs.pods | map(attribute='status.podIP') | list
        c: refs.pods[0].metadata.name
        d: refs.all | length
//- templates/cm2.yaml
apiVersion: v1
kind: ConfigMap
metadata: {name: "{{ name }}-2"}
"#,
    );
    let package = package.expect("it is fine");
    let resource = &package.resources[0];
    let refs: Vec<_> = resource
        .refs
        .iter()
        .map(|r| {
            format!(
                "{} {} {}",
                r.id,
                r.reads.iter().map(|p| p.join("/")).collect::<Vec<_>>().join(" "),
                r.asks_state
            )
        })
        .collect();
    assert_eq!(
        refs,
        [
            "first data/name false",
            "second  true",
            "tls data/tls.crt false",
            "pods metadata/name status/podIP false",
            "all  true",
        ]
    );
    assert!(resource.reads_cluster);
    let feeds_back: Vec<_> = resource.children.iter().map(|child| child.feeds_back).collect();
    assert_eq!(feeds_back, [true, false]);
    assert!(resource.children.iter().all(|child| !child.ordered), "refs make no edges");
}

#[test]
fn json_paths_start_from_the_variables() {
    check(
        r#"
//- resource
    - crd: crds/web.yaml
      children:
        - {id: config, template: templates/cm.yaml}
      status:
        a: {jsonPath: .status.x}
#                     ^ error: a JSONPath starts from the variables, and `status` is none; say whose it is: .children.<id>.status.x
        b: {jsonPath: .spec.sise}
#                      ^^^^^^^^^ error: the CRD's schema has no spec.sise; did you mean `spec.size`?
        d: {jsonPath: .children.config.data.tls-key}
#                                              ^ error: this is no JSONPath from here on; write a name that has more than letters, digits and _ as ['the-name']
        e: {jsonPath: ".children.*"}
#                       ^^^^^^^^ error: children are read by id: which ones, and so the order, must be known; write children.<id>
        f: {jsonPath: 3}
#                     ^ error: must be a string, is the number 3; quote it: "3"
"#,
    );
    check(
        r"
//- resource
    - crd: crds/web.yaml
      children:
        - {id: config, template: templates/cm.yaml}
      status:
        c: {jsonPath: .children.cofnig.data.x}
#                      ^^^^^^^^^^^^^^^^^^^^^^ error: `children.cofnig` does not exist: there is no child of that id; did you mean `children.config`?
",
    );
    let package = check(
        r#"
//- resource
    - crd: crds/web.yaml
      children:
        - {id: config, template: templates/cm.yaml}
      status:
        a: {jsonPath: .children.config.data.x}
        b: {c: {jsonPath: "{.children.config.metadata.ownerReferences[?(@.kind=='Web')].name}"}}
"#,
    );
    let package = package.expect("it is fine");
    let resource = &package.resources[0];
    let fields: Vec<_> =
        resource.status.iter().map(|f| (f.name.as_str(), f.search.is_some(), f.one)).collect();
    assert_eq!(fields, [("a", false, false), ("b.c", true, false)]);
    assert_eq!(format!("{:?}", resource.children[0].reads_live.len()), "2", "only what it names is kept");
}

#[test]
fn expressions_that_yaml_tears_apart() {
    check(
        r#"
//- resource
    - crd: crds/web.yaml
      paused: {a: b}
#             ^^^^^^ error: an expression must be a string, YAML reads this as a map; quote it: "{a: b}"
      readyWhen: 3
#                ^ error: must be an expression, is the number 3
      let: {x: ["{{ name }}"]}
#               ^^^^^^^^^^^^ error: a list or a map here is a constant, it cannot hold a template; write the whole as one expression: "{{ ['a', name] }}", "{{ {'app': name} }}"
      children:
        - {id: a, template: templates/cm.yaml, when: spec.host | default(1, true)}
#                                                    ^^^^^^^^^^^^^^^^^^^^^^^^^^^^ error: YAML ends this value at the comma; quote it: when: "spec.host | default(1, true)"
        - {id: b, template: templates/b.yaml, when: [spec.host]}
#                                                   ^^^^^^^^^^^ error: an expression must be a string, YAML reads this as a list; quote it: "[spec.host]"
        - id: c
          template: templates/c.yaml
          when: "{{ spec.host }}"
#               ^^^^^^^^^^^^^^^^^ error: expressions are written without braces; write: spec.host
          readyWhen: ""
#                    ^^ error: the expression is empty
      status:
        url: spec.host |
#            ^ error: unexpected end of input, expected identifier
      conditions:
        - {type: not a word, when: true, reason: X}
#                ^^^^^^^^^^ error: must be one word in CamelCase, letters and digits, at most 63 characters
        - {type: Ready, when: spec.size, reason: X}
#                ^^^^^ error: the condition Ready is Operetta's own; choose another type
        - {type: Twice, when: spec.size, reason: X}
        - {type: Twice, when: spec.size, reason: X}
#                ^^^^^ error: the condition Twice stands here twice
//- templates/b.yaml
apiVersion: v1
kind: ConfigMap
metadata: {name: "{{ name }}-b"}
//- templates/c.yaml
apiVersion: v1
kind: ConfigMap
metadata: {name: "{{ name }}-c"}
"#,
    );
}

#[test]
fn yaml_that_is_none() {
    for (text, message) in [
        ("//- operator.yaml\n", "the file is empty"),
        ("//- operator.yaml\na: 1\n---\nb: 1\n", "several"),
        ("//- operator.yaml\na: [\n", ""),
        ("//- operator.yaml\na: 1\na: 2\n", "stands twice"),
        ("//- operator.yaml\n- a\n", "must be a map, is a list"),
        ("//- operator.yaml\nwhen: !a b\n", "quote"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), &parse(text).files);
        let (_, diagnostics) = load(folder.path());
        let all = diagnostics.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
        assert!(
            !diagnostics.is_empty() && all.contains(message) && all.contains("operator.yaml:"),
            "{text}: {all}"
        );
    }
}

#[test]
fn paths_that_the_schema_lacks() {
    check(
        r#"
//- resource
    - crd: crds/web.yaml
      let: {a: "{{ spec.sise }}"}
#                  ^^^^^^^^^ error: the CRD's schema has no spec.sise; did you mean `spec.size`?
      paused: spec.pausd is defined
#             ^^^^^^^^^^ error: the CRD's schema has no spec.pausd; there is envs, free, host, labels, pod, size
      readyWhen: spec.free.anything.goes and spec.labels.app == 'a' and let.a
      children:
        - id: config
          template: templates/config.yaml
          when: instance.spec.pod.imge | default(false)
#               ^^^^^^^^^^^^^^^^^^^^^^ error: the CRD's schema has no spec.pod.imge; did you mean `spec.pod.image`?
      status:
        first: spec.envs[0].nam
#              ^^^^^^^^^^^^^^^^ error: the CRD's schema has no spec.envs[0].nam; did you mean `spec.envs[0].name`?
        operator: operator.verson
#                 ^^^^^^^^^^^^^^^ error: `operator.verson` does not exist; did you mean `operator.version`?
        defaults: defaults.imge
#                 ^^^^^^^^^^^^^ error: `defaults.imge` does not exist: spec.defaults has no such key; did you mean `defaults.image`?
        meta: instance.metadata.generation
//- templates/config.yaml
apiVersion: v1
kind: ConfigMap
metadata: {name: "{{ name }}"}
data:
  size: "{{ spec.sizes }}"
#           ^^^^^^^^^^ error: the CRD's schema has no spec.sizes; did you mean `spec.size`?
{% for env in spec.envs %}
  {{ env.name }}: "{{ env.value }}"
#                     ^^^^^^^^^ error: the CRD's schema has no spec.envs[*].value; there is name
{% endfor %}
//- templates/cm.yaml
app: a
"#,
    );
}

#[test]
fn names_that_are_not_there() {
    check(
        r#"
//- resource
    - crd: crds/web.yaml
      let: {image: "{{ let.tag }}", i: "{{ ordinal }}"}
#                                   ^ warning: nothing reads let.i; read it, or remove it
#                      ^^^^^^^ error: `let.tag` does not exist; there is i, image
      paused: self.x
#             ^^^^^^ error: `self` is the live object of a child: only its own template and readyWhen see it; elsewhere live objects are read as `children.<id>`
      children:
        - {id: config, template: templates/cm.yaml, dependsOn: [confg], when: ordinal == 1 and let.image}
#                                                               ^^^^^ error: there is no child `confg`; did you mean `config`?
#                                                                             ^^^^^^^ error: `ordinal` is the item of a forEach, which is not known here; only that child's own template, when, key and readyWhen see it
        - {id: members, template: templates/member.yaml, forEach: {in: range(spec.size), as: ordinal}}
      status:
        a: spek.size
#          ^^^^^^^^^ error: unknown variable `spek`; did you mean `spec`?
        b: children.confg.data
#          ^^^^^^^^^^^^^^^^^^^ error: `children.confg` does not exist: there is no child of that id; did you mean `children.config`?
        c: children | length
#          ^^^^^^^^ error: children are read by id: which ones, and so the order, must be known; write children.<id>
        d: record.x | default(1)
#          ^^^^^^^^ error: this version of Operetta does not do `record` yet
//- templates/member.yaml
apiVersion: v1
kind: ConfigMap
metadata: {name: "{{ name }}-{{ ordinal }}"}
"#,
    );
}

#[test]
fn children_that_wait_for_each_other() {
    check(
        r#"
//- resource
    - crd: crds/web.yaml
      let: {uid: "{{ children.b.metadata.uid | default('') }}"}
      children:
        - {id: a, template: templates/a.yaml}
#              ^ error: these children wait for each other: a -> b -> c -> a; each reads the next in its template, `when`, `forEach` or `dependsOn`; break the round
        - {id: b, template: templates/b.yaml, when: children.c is ready}
        - {id: c, template: templates/c.yaml, dependsOn: [a]}
        - {id: d, template: templates/d.yaml, dependsOn: [d]}
#                                                         ^ error: a child cannot depend on itself
        - {id: d, template: templates/d.yaml}
#              ^ error: two children have the id `d`; rename one of them
//- templates/a.yaml
apiVersion: v1
kind: ConfigMap
metadata: {name: "{{ name }}-a"}
data: {{ partial("uid.yaml") }}
//- templates/uid.yaml
uid: "{{ let.uid }}"
//- templates/b.yaml
apiVersion: v1
kind: ConfigMap
metadata: {name: "{{ name }}-b"}
//- templates/c.yaml
apiVersion: v1
kind: ConfigMap
metadata: {name: "{{ name }}-c"}
//- templates/d.yaml
apiVersion: v1
kind: ConfigMap
metadata: {name: "{{ name }}-d"}
data: {own: "{{ children.d.data.own | default('') }}"}
#               ^^^^^^^^^^^^^^^^^^^ warning: the child `d` reads itself; write `self`: its own live object, undefined before there is one
"#,
    );
}

#[test]
fn templates_that_must_not_be() {
    check(
        r#"
//- resource
    - crd: crds/web.yaml
      let: {round: "{{ let.trip }}", trip: "{{ let.round }}"}
#           ^^^^^ error: these values need each other: let.round -> let.trip -> let.round
      children:
        - {id: a, template: templates/a.yaml}
        - {id: b, template: templates/cm.yaml}
        - {id: c, template: templates/cm.yaml}
#              ^ error: `c` and `b` are one object: both are the ConfigMap "{{ name }}"; give them different names
        - {id: d, template: templates/d.yaml, forEach: {in: spec.envs, as: spec, key: spec.name}}
#                                                                          ^^^^ error: `spec` is a variable of Operetta's own; choose another name
        - {id: e, template: templates/e.yaml, forEach: {in: range(3)}, maxUnavailable: 1}
#              ^ error: the template of `e` does not read `item`: all its members would be one object; put it into metadata.name: {{ name }}-{{ item }}
        - {id: f, template: templates/f.yaml, maxUnavailable: 1}
#              ^ error: maxUnavailable is for children with forEach; remove it
      status:
        conditions: spec.size
#       ^^^^^^^^^^ error: status.conditions is Operetta's own; choose another name
        a-b: spec.size
#       ^^^ error: must be letters, digits and underscores, not beginning with a digit, at most 63 characters
//- templates/a.yaml
apiVersion: v1
kind: ConfigMap
metadata:
  name: a
  namespace: "{{ spec.host }}"
#            ^^^^^^^^^^^^^^^^^ error: a child's namespace must not be computed; leave it out (the instance's own), or write a literal or {{ operator.namespace }}: else whoever may create an instance could write to any namespace
  labels:
    operetta.dev/instance: x
#   ^^^^^^^^^^^^^^^^^^^^^ error: `operetta.dev/instance`: labels and annotations of operetta.dev/ are set by Operetta alone; use a prefix of your own
//- templates/d.yaml
apiVersion: v1
kind: ConfigMap
metadata: {name: "{{ spec.name }}"}
//- templates/e.yaml
apiVersion: v1
kind: ConfigMap
metadata: {name: "{{ name }}-e", uid: a}
#                                ^^^ error: `uid` must not stand in the template of a child; Operetta and the API server set it; remove it
//- templates/f.yaml
apiVersion: v1
kind: ConfigMap
metadata: {labels: {}}
^^^^^^^^ error: `metadata.name` is missing; name the object after the instance: {{ name }}
"#,
    );
}

#[test]
fn data_of_secrets_stays_in_secrets() {
    check(
        r#"
//- resource
    - crd: crds/web.yaml
      let: {token: "{{ refs.tls.data.token | b64decode }}"}
      refs:
        - {id: tls, apiVersion: v1, kind: Secret, name: tls}
      status: {token: let.token, open: {value: let.token, exposesSecretData: true}}
#                     ^^^^^^^^^ error: `refs.tls.data` is secret and must not be shown in the status; show the name of the Secret; or, if everybody who may read the instance may know it, {value: <expression>, exposesSecretData: true}
#                                ^^^^ warning: the status field `open` exposes `refs.tls.data`: whoever may read the instance can read it
      children:
        - {id: config, template: templates/config.yaml}
        - {id: open, template: templates/open.yaml, exposesSecretData: true}
#              ^^^^ warning: `open` exposes `refs.tls.data`: whoever may read this ConfigMap can read it
//- templates/config.yaml
apiVersion: v1
kind: ConfigMap
metadata: {name: "{{ name }}"}
data:
  digest: "{{ let.token | sha256 }}"
  token: "{{ let.token }}"
#            ^^^^^^^^^ error: `refs.tls.data` is secret and must not stand in a ConfigMap; let the pod read the Secret itself (secretKeyRef, a volume), put it into a Secret, or insert a digest (`| to_json | sha256`); exposesSecretData: true on the child allows it
//- templates/open.yaml
apiVersion: v1
kind: ConfigMap
metadata: {name: "{{ name }}-open"}
data: {token: "{{ let.token }}"}
"#,
    );
}

#[test]
fn what_nobody_can_make_again_is_said() {
    check(
        r#"
//- resource
    - crd: crds/web.yaml
      let: {secret: "{{ password(20) }}"}
#                       ^^^^^^^^^^^^ error: a password or a certificate can only be made in the template of a Secret; write it there, alone: `stringData: {password: {{ password(32) }}}`, `stringData: {{ tls_self_signed([name]) }}`
      paused: password(20)
#             ^^^^^^^^^^^^ error: a password or a certificate can only be made in the template of a Secret; write it there, alone: `stringData: {password: {{ password(32) }}}`, `stringData: {{ tls_self_signed([name]) }}`
      children:
        - {id: a, template: templates/secret.yaml}
#              ^ error: `a` holds what is generated: say what happens when it is lost; add onLoss: Recreate, which makes a new one
        - {id: b, template: templates/cm2.yaml, onLoss: Recreate}
        - {id: c, template: templates/secret2.yaml, onLoss: restore}
#                                                           ^^^^^^^ error: this version of Operetta does not do plans yet; onLoss can be Recreate
        - {id: d, template: templates/secret3.yaml, onLoss: Recreate, onImmutableChange: Recreate}
#                                                                                        ^^^^^^^^ error: `d` holds what is generated, which would be another one in the new object; take out onImmutableChange: Recreate
        - {id: e, template: templates/claim.yaml, deletionPolicy: Delete, onImmutableChange: Recreate}
#                                                                                            ^^^^^^^^ error: `e` is a PersistentVolumeClaim and holds data: it cannot be deleted to be made anew; take out onImmutableChange: Recreate
        - {id: f, template: templates/cm.yaml, deletionPolicy: Retain, onImmutableChange: Recreate}
#                                                                                         ^^^^^^^^ error: `f` is to stay: it cannot be deleted to be made anew; take out onImmutableChange: Recreate
        - {id: g, template: templates/cm3.yaml, onImmutableChange: Recreate}
        - {id: h, template: templates/quoted.yaml, onLoss: Recreate}
//- templates/secret.yaml
apiVersion: v1
kind: Secret
metadata: {name: "{{ name }}"}
stringData: {password: {{ password(20) }}}
//- templates/quoted.yaml
apiVersion: v1
kind: Secret
metadata: {name: "{{ name }}-q"}
stringData: {password: "{{ password(20) }}", url: "x://u:{{ password(20) }}@h"}
#                          ^^^^^^^^^^^^ error: a generated value stands in quotes: it must be the whole value, without quotes; write it alone: `password: {{ password(32) }}`; put text around it into a key of its own
#                                                           ^^^^^^^^^^^^ error: a generated value stands next to other text: it must be the whole value; write it alone: `password: {{ password(32) }}`; put text around it into a key of its own
//- templates/secret2.yaml
apiVersion: v1
kind: Secret
metadata: {name: "{{ name }}-2"}
stringData: {{ tls_self_signed(name, dayz=3) }}
#              ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ error: `tls_self_signed` has no argument `dayz`; did you mean `days`?
//- templates/secret3.yaml
apiVersion: v1
kind: Secret
metadata: {name: "{{ name }}-3"}
stringData: {password: {{ password() }}}
//- templates/claim.yaml
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: "{{ name }}"}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
//- templates/cm2.yaml
apiVersion: v1
kind: ConfigMap
metadata: {name: "{{ name }}-2"}
data: {password: {{ password(20) }}}
#                   ^^^^^^^^^^^^ error: a password or a certificate can only be made in the template of a Secret; write it there, alone: `stringData: {password: {{ password(32) }}}`, `stringData: {{ tls_self_signed([name]) }}`
//- templates/cm3.yaml
apiVersion: v1
kind: ConfigMap
metadata: {name: "{{ name }}-3"}
"#,
    );
}

#[test]
fn files_that_are_missing_or_not_used() {
    check(
        r"
//- resource
    - crd: crds/webs.yaml
#          ^^^^^^^^^^^^^^ error: the package holds no file crds/webs.yaml; did you mean crds/web.yaml?
      children:
        - {id: a, template: cm.yaml}
#                           ^^^^^^^ error: the package holds no file cm.yaml; did you mean templates/cm.yaml?
        - {id: b, template: ../../etc/passwd}
#                           ^^^^^^^^^^^^^^^^ error: the package holds no file ../../etc/passwd; the path begins at the package's folder: templates/x.yaml
",
    );
    check(
        r#"
//- resource
    - crd: crds/web.yaml
      children:
        - {id: data, template: templates/pvc.yaml}
#              ^^^^ warning: `data` holds data: say what happens to it when it is no longer wanted; add deletionPolicy: Retain (as it is without), Ask or Delete
//- templates/pvc.yaml
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: "{{ name }}"}
//- templates/cm.yaml
apiVersion: v1
^^^^^ warning: nothing in the package uses this file; remove it
kind: ConfigMap
metadata: {name: a}
"#,
    )
    .expect("warnings only");
}

#[test]
fn crds_that_the_server_would_refuse() {
    check(
        r"
//- resource
    - crd: crds/none.yaml
    - crd:
        apiVersion: apiextensions.k8s.io/v1
        kind: CustomResourceDefinition
        metadata: {name: wrong}
        spec: {group: example.com}
#       ^^^^ error: `names` is missing
#       ^^^^ error: `scope` is missing
#       ^^^^ error: `versions` must list at least one version
//- crds/none.yaml
- a
^ error: a CustomResourceDefinition must be a mapping
",
    );
}

#[test]
fn cluster_scoped_instances_have_no_namespace() {
    let crd = parse(BASE).files["crds/web.yaml"].replace("scope: Namespaced", "scope: Cluster");
    check(&format!(
        r#"
//- crds/web.yaml
{crd}
//- resource
    - crd: crds/web.yaml
      children: [{{id: a, template: templates/a.yaml}}]
      status: {{where: namespace | default('everywhere')}}
//- templates/a.yaml
apiVersion: v1
kind: ConfigMap
metadata: {{name: "{{{{ name }}}}", namespace: "{{{{ spec.host }}}}"}}
data: {{where: "{{{{ namespace }}}}"}}
#                 ^^^^^^^^^ error: `namespace` is undefined: the instances are cluster-scoped; write a literal, or {{{{ operator.namespace }}}}
//- templates/cm.yaml
a: b
"#
    ));
}

#[test]
fn one_kind_is_brought_once() {
    check(
        r"
//- resource
    - crd: crds/web.yaml
      children: [{id: a, template: templates/cm.yaml}]
    - crd: crds/web.yaml
#     ^^^ error: the package brings Web twice
",
    );
}

/// Any bytes give findings or a package, never a panic.
#[test]
fn mutated_packages_never_panic() {
    let fixture = parse(
        r#"
//- resource
    - crd: crds/web.yaml
      let: {image: "{{ defaults.image }}:{{ spec.size }}", fixed: [1, 2]}
      children:
        - {id: config, template: templates/cm.yaml, when: "spec.host is defined and (spec.size > 1 or let.image)"}
        - id: members
          template: templates/member.yaml
          forEach: {in: range(spec.size), as: i, key: i}
          maxUnavailable: 25%
          yields: "{{ ['spec.replicas'] if spec.host else [] }}"
          dependsOn: [config]
      status: {members: {ready: "children.members.values() | select('ready') | list"}}
      conditions: [{type: Odd, when: spec.size % 2 == 1, reason: OddSize, message: "{{ spec.size }} is odd"}]
//- templates/member.yaml
apiVersion: v1
kind: ConfigMap
metadata: {name: "{{ name }}-{{ i }}", labels: {{ partial("labels.yaml") }}, namespace: "{{ namespace }}"}
data: {image: "{{ let.image }}", old: "{{ self.data.old | default('') }}"}
//- templates/labels.yaml
{% for env in spec.envs | default([]) %}
{{ env.name }}: {{ name }}
{% endfor %}
app: &a {{ name }}
"#,
    );
    let mut texts: Vec<(String, Vec<u8>)> = parse(BASE)
        .files
        .into_iter()
        .chain(fixture.files)
        .map(|(path, text)| (path, text.into_bytes()))
        .collect();
    texts.sort();
    let interesting: &[u8] = b"{}[]()%#'\"\\:,-|&*!<>~? \n\t0az.\xc3\xff\0";
    let mut random = fastrand::Rng::with_seed(7);
    for round in 0..2_000 {
        let mut mutated = texts.clone();
        for _ in 0..random.usize(1..4) {
            let file = random.usize(..mutated.len());
            let bytes = &mut mutated[file].1;
            let at = random.usize(..bytes.len());
            match random.u8(..4) {
                0 => bytes[at] = interesting[random.usize(..interesting.len())],
                1 => bytes.insert(at, interesting[random.usize(..interesting.len())]),
                2 => drop(bytes.remove(at)),
                _ => {
                    let end = (at + random.usize(1..20)).min(bytes.len());
                    let copy = bytes[at..end].to_vec();
                    let to = random.usize(..bytes.len());
                    bytes.splice(to..to, copy);
                }
            }
        }
        let files =
            mutated.into_iter().map(|(path, bytes)| (path, String::from_utf8_lossy(&bytes).into_owned()));
        if let Err(diagnostics) = package::compile(&package::Files::from_texts("web", files)) {
            assert!(diagnostics.iter().any(Diagnostic::is_error));
            if round % 20 == 0 {
                assert!(!operetta::diag::render(&diagnostics, false).is_empty());
            }
        }
    }
}

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

fn operetta(args: &[&str]) -> std::process::Output {
    std::process::Command::new(env!("CARGO_BIN_EXE_operetta")).args(args).output().unwrap()
}

/// What the guide shows of a package stands in that package, which lints without a word and renders.
#[test]
fn examples_of_the_guide_are_those_of_the_packages() {
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

/// Whole templates that the guide shows and no package has.
#[test]
fn templates_of_the_guide_lint_and_render() {
    let templates: Vec<String> = examples("docs/guide/templates.md")
        .into_iter()
        .filter(|example| example.starts_with("apiVersion: v1\nkind: Secret\n"))
        .collect();
    assert_eq!(templates.len(), 2, "a password and a certificate");
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

/// Every key of the format stands in the reference.
#[test]
fn the_reference_has_every_key() {
    let schema: serde_json::Value =
        serde_json::from_str(&fs::read_to_string("schemas/operator.schema.json").unwrap()).unwrap();
    let reference = fs::read_to_string("docs/guide/package-reference.md").unwrap();
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
    assert!(missing.is_empty(), "docs/guide/package-reference.md does not have {missing:?}");
}

#[test]
fn status_values_that_the_schema_refuses() {
    let crd = "\
//- crds/web.yaml
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: webs.example.com}
spec:
  group: example.com
  names: {kind: Web, plural: webs, singular: web, listKind: WebList}
  scope: Namespaced
  versions:
    - name: v1
      served: true
      storage: true
      schema:
        openAPIV3Schema:
          type: object
          properties:
            spec: {type: object, properties: {size: {type: integer, default: 1}, host: {type: string}, free: {x-kubernetes-preserve-unknown-fields: true}}}
            status:
              type: object
              required: [count]
              properties:
                count: {type: integer, maximum: 5}
                label: {type: string, enum: [a, b]}
                on: {type: boolean}
#               ^^ warning: the key `on` is read as \"true\": it is a boolean in YAML 1.1; quote it: \"on\"
                hosts: {type: array, items: {type: string}}
                port: {x-kubernetes-int-or-string: true}
                inner: {type: object, properties: {size: {type: integer}}}
";
    check(&format!(
        "{crd}{}",
        r"
//- resource
    - crd: crds/web.yaml
      children: [{id: config, template: templates/cm.yaml}]
      status:
        count: spec.host | default(7)
#              ^^^^^^^^^ error: status.count must be an integer, this gives a string; so says the CRD's schema of the status; the field would be left out
#                                  ^ error: status.count must be at most 5; so says the CRD's schema of the status; the field would be left out
        label: spec.size
#              ^^^^^^^^^ error: status.label must be a string, this gives an integer; so says the CRD's schema of the status; the field would be left out
        hosts: name ~ '.example'
#              ^^^^^^^^^^^^^^^^^ error: status.hosts must be a list, this gives a string; so says the CRD's schema of the status; the field would be left out
        port: true
#             ^^^^ error: status.port must be an integer or a string, is a boolean; so says the CRD's schema of the status; the field would be left out
        inner:
          size: range(3) if spec.size > 2 else 4
#               ^^^^^^^^ error: status.inner.size must be an integer, this gives a list; so says the CRD's schema of the status; the field would be left out
"
    ));
    let package = check(&format!(
        "{crd}{}",
        r#"
//- resource
    - crd: crds/web.yaml
      children: [{id: config, template: templates/cm.yaml}]
      status:
        count: spec.free | default(omit)
        label: "'a' if spec.host else none"
        on: spec.host is defined
#       ^^ warning: the key `on` is read as "true": it is a boolean in YAML 1.1; quote it: "on"
        hosts: "[spec.host] if spec.host else []"
        port: children.config.data.port | default(80)
        inner: {size: spec.size + 1}
        other: name
"#
    ));
    assert!(package.is_some());
}
