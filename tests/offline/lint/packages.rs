//! The files of a package: keys, YAML, templates, CRDs, the order of children.

use operetta::api::Gvk;
use operetta::diag::Diagnostic;
use operetta::package;

use super::{BASE, check, load, parse, write};

#[test]
fn small_package_has_no_findings() {
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
    let resource = package.resource(&Gvk::new("example.com/v1", "Web")).expect("a resource");
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
fn unsatisfiable_version_ranges_are_errors() {
    check(
        r#"
//- operator.yaml
apiVersion: operetta.dev/v1alpha1
kind: OperatorPackage
metadata: {name: web}
spec:
  version: 0.1.0
  requires: {kubernetes: ">=1.20, <1.30", operetta: ">=99"}
#                        ^^^^^^^^^^^^^^^ error: no version of Kubernetes that Operetta supports (1.30 and later) is in the range >=1.20, <1.30; write for example ">=1.30"
#                                                   ^^^^^^ error: the package requires Operetta >=99, this is 0.1.0; use another version of the package or of Operetta
  resources:
    - crd: crds/web.yaml
      children: [{id: config, template: templates/cm.yaml}]
//- crds/web.yaml
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: webs.example.org}
spec:
  group: example.org
  names: {kind: Web, plural: webs, singular: web}
  scope: Namespaced
  versions:
    - name: v1
      served: true
      storage: true
      schema: {openAPIV3Schema: {type: object}}
//- templates/cm.yaml
apiVersion: v1
kind: ConfigMap
metadata: {name: "{{ name }}"}
"#,
    );
}

#[test]
fn unknown_keys_and_typos_are_reported() {
    check(
        r#"
//- operator.yaml
apiVersion: operetta.dev/v1
#           ^^^^^^^^^^^^^^^ error: must be operetta.dev/v1alpha1, is operetta.dev/v1
kind: Operator
#     ^^^^^^^^ error: must be OperatorPackage, is Operator
metadata: {name: Web_1, label: x}
#                ^^^^^ error: must be lower case letters, digits and hyphens, beginning with a letter and not ending in a hyphen, at most 40 characters
#                       ^^^^^ error: unknown key `label`; the allowed keys are name
spec:
  version: 0.1
#          ^^^ error: `0.1` is not a SemVer version: unexpected end of input while parsing minor version number; write three parts, for example 0.1.0
  appVersion: 3.5
#             ^^^ error: must be a string, is the number 3.5; quote it: "3.5"
  descripton: a shop
# ^^^^^^^^^^ error: unknown key `descripton`; did you mean `description`?
  requires: {kubernetes: new, operators: []}
#                        ^^^ error: `new` is not a range of versions: unexpected character 'n' while parsing major version number; write for example ">=1.30"
#                             ^^^^^^^^^ error: this version of Operetta does not support `operators` yet; remove it
  maintainers: [{email: a@b.c}]
#                ^^^^^ error: `name` is missing
  resources:
    - crd: crds/web.yaml
      adopt: please
#            ^^^^^^ error: must be true or false, is a string
      refs:
        - {id: peers, apiVersion: v1, kind: Pod, exec: {}, name: x}
#                                                      ^^ error: `child` is missing
#                                                      ^^ error: `command` is missing
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
          dependson: []
#         ^^^^^^^^^ error: unknown key `dependson`; did you mean `dependsOn`?
          maxUnavailable: 0
#                         ^ error: must be a number from 1, or a percentage from 1% to 100%
          readyWhen:
#                  ^ error: has no value, must be an expression; set a value, or remove the key
        - forEach: {in: spec.envs, as: env}
          chidren: []
#         ^^^^^^^ error: unknown key `chidren`; did you mean `children`?
          children: [{template: templates/cm.yaml}]
#                     ^^^^^^^^ error: `id` is missing
      status:
        a: {jsonPath: .children.cm.data.x, more: spec.size}
#           ^^^^^^^^ error: `jsonPath` must be the only key of its map; remove the other keys
"#,
    );
}

#[test]
fn invalid_yaml_is_an_error() {
    for (text, message) in [
        ("//- operator.yaml\n", "the file is empty"),
        ("//- operator.yaml\na: 1\n---\nb: 1\n", "several"),
        ("//- operator.yaml\na: [\n", ""),
        ("//- operator.yaml\na: 1\na: 2\n", "is a duplicate"),
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
fn children_waiting_for_each_other_are_errors() {
    check(
        r#"
//- resource
    - crd: crds/web.yaml
      let: {uid: "{{ children.b.metadata.uid | default('') }}"}
      children:
        - {id: a, template: templates/a.yaml}
#              ^ error: these children wait for each other: a -> b -> c -> a; each reads the next in its template, `when`, `forEach` or `dependsOn`; remove one of these dependencies
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
#               ^^^^^^^^^^^^^^^^^^^ warning: the child `d` reads itself; use `self`: the live object of the child, undefined before it exists
"#,
    );
}

#[test]
fn invalid_templates_are_errors() {
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
#                                                                          ^^^^ error: `spec` is a reserved variable; choose another name
        - {id: e, template: templates/e.yaml, forEach: {in: range(3)}, maxUnavailable: 1}
#              ^ error: the template of `e` does not read `item`: all its members would be one object; use it in metadata.name: {{ name }}-{{ item }}
        - {id: f, template: templates/f.yaml, maxUnavailable: 1}
#              ^ error: maxUnavailable requires forEach; remove it
      status:
        conditions: spec.size
#       ^^^^^^^^^^ error: status.conditions is reserved for Operetta; choose another name
        a-b: spec.size
#       ^^^ error: must be letters, digits and underscores, not beginning with a digit, at most 63 characters
//- templates/a.yaml
apiVersion: v1
kind: ConfigMap
metadata:
  name: a
  namespace: "{{ spec.host }}"
#            ^^^^^^^^^^^^^^^^^ error: a child's namespace must not be computed; remove it (the default is the instance's own), or write a literal or {{ operator.namespace }}: otherwise users who can create an instance could write to any namespace
  labels:
    operetta.dev/instance: x
#   ^^^^^^^^^^^^^^^^^^^^^ error: `operetta.dev/instance`: labels and annotations of operetta.dev/ are reserved for Operetta; use another prefix
//- templates/d.yaml
apiVersion: v1
kind: ConfigMap
metadata: {name: "{{ spec.name }}"}
//- templates/e.yaml
apiVersion: v1
kind: ConfigMap
metadata: {name: "{{ name }}-e", uid: a}
#                                ^^^ error: `uid` must not be in the template of a child; Operetta and the API server set it; remove it
//- templates/f.yaml
apiVersion: v1
kind: ConfigMap
metadata: {labels: {}}
^^^^^^^^ error: `metadata.name` is missing; name the object after the instance: {{ name }}
"#,
    );
}

#[test]
fn missing_and_unused_files_are_reported() {
    check(
        r"
//- resource
    - crd: crds/webs.yaml
#          ^^^^^^^^^^^^^^ error: the package has no file crds/webs.yaml; did you mean crds/web.yaml?
      children:
        - {id: a, template: cm.yaml}
#                           ^^^^^^^ error: the package has no file cm.yaml; did you mean templates/cm.yaml?
        - {id: b, template: ../../etc/passwd}
#                           ^^^^^^^^^^^^^^^^ error: the package has no file ../../etc/passwd; the path is relative to the package: templates/x.yaml
",
    );
    check(
        r#"
//- resource
    - crd: crds/web.yaml
      children:
        - {id: data, template: templates/pvc.yaml}
#              ^^^^ warning: `data` holds data and has no deletionPolicy; add deletionPolicy: Retain (the default for this kind), Ask or Delete
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

/// The conversion strategy `None` silently drops fields that the other version lacks.
#[test]
fn versions_with_other_fields_need_a_conversion() {
    let crd = |own: &str, stored: &str| {
        let version = |name: &str, is_stored: bool, mark: &str, spec: &str| {
            format!(
                "    - name: {name}\n{mark}      served: true\n      storage: {is_stored}\n      schema:\n        \
                 openAPIV3Schema: {{type: object, properties: {{spec: {{type: object, properties: {{{spec}}}}}}}}}\n"
            )
        };
        let both = version("v1alpha1", false, "MARK", own) + &version("v1", true, "", stored);
        format!(
            "//- crds/web.yaml\napiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {{name: \
             webs.example.com}}\nspec:\n  group: example.com\n  scope: Namespaced\n  names: {{kind: Web, plural: webs, \
             singular: web, listKind: WebList}}\n  versions:\n{both}"
        )
    };
    let resource = |conversion: &str| {
        format!(
            "//- resource\n    - crd: crds/web.yaml\n{conversion}      children: [{{id: a, template: templates/cm.yaml}}]\n"
        )
    };
    let marked = |text: &str, finding: &str| {
        let mark = if finding.is_empty() { String::new() } else { format!("#     ^^^^ {finding}\n") };
        text.replace("MARK", &mark)
    };
    let (own, stored) =
        ("replicas: {type: integer}, a: {type: string}", "size: {type: integer}, a: {type: string}");
    let found = "warning: nothing converts between v1alpha1 and the storage version v1, so the API server drops values: \
        v1alpha1 alone has spec.replicas; v1 alone has spec.size; declare it beside `crd`: conversion: {versions: {v1alpha1: \
        [{keep: spec.replicas}, {keep: spec.size}]}}, with `move` for a field that has another path; or set `served: \
        false` for v1alpha1";
    let text = resource("") + &crd(own, stored);
    check(&marked(&text, found)).expect("a warning");
    // The package that the help suggests has no findings.
    let advised = "      conversion: {versions: {v1alpha1: [{keep: spec.replicas}, {keep: spec.size}]}}\n";
    check(&marked(&(resource(advised) + &crd(own, stored)), "")).expect("no finding");
    check(&marked(&text.replacen("served: true", "served: false", 1), "")).expect("no finding");
    check(&marked(&(resource("") + &crd(stored, stored)), "")).expect("no finding");
    let found = "warning: nothing converts between v1alpha1 and the storage version v1, so the API server drops values: in \
        both, spec.a has different types; give a field of another type another name; or set `served: false` for v1alpha1";
    let text = resource("") + &crd("a: {type: integer}", "a: {type: string}");
    check(&marked(&text, found)).expect("a warning");
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
fn kind_declared_twice_is_an_error() {
    check(
        r"
//- resource
    - crd: crds/web.yaml
      children: [{id: a, template: templates/cm.yaml}]
    - crd: crds/web.yaml
#     ^^^ error: the package contains the kind Web twice
",
    );
}

/// Arbitrary changes of bytes give findings or a package, never a panic.
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

#[test]
fn crds_refused_by_the_server_are_errors() {
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
