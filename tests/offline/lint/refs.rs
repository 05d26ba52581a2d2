//! Refs: their namespaces, which of their fields are read, and `JSONPath`s.

use super::check;

#[test]
fn namespaces_of_refs_must_not_be_computed() {
    check(
        r#"
//- resource
    - crd: crds/web.yaml
      refs:
        - {id: a, apiVersion: v1, kind: Secret, name: x, namespace: "{{ spec.host }}"}
#                                                                   ^^^^^^^^^^^^^^^^^ error: a ref's namespace must not be computed; remove it (the default is the instance's own), or write a literal or {{ operator.namespace }}: otherwise users who can create an instance could read in any namespace
        - {id: b, apiVersion: v1, kind: Secret, selector: {}, namespaces: [x, "{{ labels.a }}", "{{ operator.namespace }}"]}
#                                                                             ^^^^^^^^^^^^^^ error: a ref's namespace must not be computed; remove it (the default is the instance's own), or write a literal or {{ operator.namespace }}: otherwise users who can create an instance could read in any namespace
        - {id: c, apiVersion: v1, kind: Secret, name: x, namespace: "{{ refs.b }}"}
#                                                                   ^^^^^^^^^^^^ error: a ref's namespace must not be computed; remove it (the default is the instance's own), or write a literal or {{ operator.namespace }}: otherwise users who can create an instance could read in any namespace
        - {id: d, apiVersion: v1, kind: Secret}
#              ^ error: the ref `d` has neither `name` nor `selector`; add the name of the object: name: "{{ spec.x }}"
        - {id: e, apiVersion: v1, kind: Secret, name: x, selector: {}}
#                                                     ^ error: a ref has a name or a selector, not both; remove one of them
        - {id: f, apiVersion: v1, kind: Secret, name: x, namespaces: all}
#                                                                    ^^^ error: `namespaces` requires a selector; write namespace: x
        - {id: g, apiVersion: v1, kind: Secret, name: x, namespace: "{{ namespace }}"}
        - {id: g, apiVersion: v1, kind: Secret, selector: {app: "{{ name }}"}, namespaces: all}
#              ^ error: two refs have the id `g`; rename one of them
"#,
    );
}

#[test]
fn fields_read_of_refs_are_known() {
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
#          ^^^^ error: the id of a ref must be a literal; write refs.<id>
        b: refs.pods.status
#          ^^^^^^^^^^^^^^^^ error: `refs.pods` is a list: it has a selector; write refs.pods | map(attribute='status'), or a loop
        c: refs.tls.stringData.x is string
#          ^^^^^^^^^^^^^^^^^^^^^ error: a Secret has no field stringData; `stringData` is write-only; read refs.tls.data.<key> | b64decode
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
#              ^^^^ error: the ref `same` does not read `i`: every key would select the same objects; use it in the name or the selector: "{{ i }}"
        - {id: far, apiVersion: v1, kind: Secret, forEach: {in: spec.envs, as: env, key: env.name}, name: x, namespace: "{{ env.name }}"}
#                                                                                                                       ^^^^^^^^^^^^^^ error: a ref's namespace must not be computed; remove it (the default is the instance's own), or write a literal or {{ operator.namespace }}: otherwise users who can create an instance could read in any namespace
        - {id: bad, apiVersion: v1, kind: Secret, forEach: {in: spec.envz, as: spec}, name: x}
#              ^^^ error: the ref `bad` does not read `spec`: every key would select the same objects; use it in the name or the selector: "{{ spec }}"
#                                                               ^^^^^^^^^ error: the CRD's schema has no spec.envz; did you mean `spec.envs`?
#                                                                              ^^^^ error: `spec` is a reserved variable; choose another name
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
        - {id: shown, apiVersion: v1, kind: Secret, name: shown, affectsReady: false}
#                                                                              ^^^^^ warning: affectsReady: false of the ref `shown` is the default: only `status`, `conditions`, or plans that do not affect Ready read it; remove it
        - {id: read, apiVersion: v1, kind: Secret, name: "{{ refs.named.metadata.name }}", affectsReady: true}
#                                                                                                        ^^^^ warning: affectsReady: true of the ref `read` is the default: children, `readyWhen`, `paused` or plans read it; remove it
        - {id: named, apiVersion: v1, kind: Secret, name: named, affectsReady: false}
        - {id: other, apiVersion: v1, kind: Secret, name: other, affectsReady: true}
      readyWhen: refs.read is defined
      children:
        - {id: config, template: templates/cm.yaml}
      status:
        a: refs.shown.metadata.name
        b: refs.other.metadata.name
"#,
    );
    check(
        r#"
//- resource
    - crd: crds/web.yaml
      refs:
        - {id: certs, apiVersion: v1, kind: Secret, forEach: {in: spec.envs, as: env, key: env.name}, name: "{{ env.name }}-tls"}
#              ^^^^^ warning: nothing reads the ref `certs`; read it as refs.certs, or remove it: it is watched or observed nevertheless
      status:
        a: env.name
#          ^^^ error: `env` is the item of a forEach and does not exist here; use it only in the name, selector, when and key of that ref
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
fn only_read_fields_of_refs_are_kept() {
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
    let reads_own_output: Vec<_> = resource.children.iter().map(|child| child.reads_own_output).collect();
    assert_eq!(reads_own_output, [true, false]);
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
#                     ^ error: a JSONPath starts with a variable, and `status` is not one; name the object: .children.<id>.status.x
        b: {jsonPath: .spec.sise}
#                      ^^^^^^^^^ error: the CRD's schema has no spec.sise; did you mean `spec.size`?
        d: {jsonPath: .children.config.data.tls-key}
#                                              ^ error: the JSONPath is invalid from here on; write a name that has more than letters, digits and _ as ['the-name']
        e: {jsonPath: ".children.*"}
#                       ^^^^^^^^ error: the id of a child must be a literal, because it determines the order; write children.<id>
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
