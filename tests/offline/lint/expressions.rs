//! Expressions: YAML that splits them, unknown paths and names, secret data.

use super::check;

#[test]
fn invalid_expressions_are_errors() {
    check(
        r#"
//- resource
    - crd: crds/web.yaml
      paused: {a: b}
#             ^^^^^^ error: an expression must be a string, YAML reads this as a map; quote it: "{a: b}"
      readyWhen: 3
#                ^ error: must be an expression, is the number 3
      let: {x: ["{{ name }}"]}
#               ^^^^^^^^^^^^ error: a list or a map here is a constant and cannot contain a template; write the whole value as one expression: "{{ ['a', name] }}", "{{ {'app': name} }}"
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
#                ^^^^^ error: the condition Ready is reserved for Operetta; choose another type
        - {type: Twice, when: spec.size, reason: X}
        - {type: Twice, when: spec.size, reason: X}
#                ^^^^^ error: the condition Twice is defined twice
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
fn unknown_paths_are_errors() {
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
fn unknown_names_are_errors() {
    check(
        r#"
//- resource
    - crd: crds/web.yaml
      let: {image: "{{ let.tag }}", i: "{{ ordinal }}"}
#                                   ^ warning: nothing reads let.i; read it, or remove it
#                      ^^^^^^^ error: `let.tag` does not exist; there is i, image
      paused: self.x
#             ^^^^^^ error: `self` is the live object of a child and exists only in its own template and readyWhen; use `children.<id>` to read a live object here
      children:
        - {id: config, template: templates/cm.yaml, dependsOn: [confg], when: ordinal == 1 and let.image}
#                                                               ^^^^^ error: there is no child `confg`; did you mean `config`?
#                                                                             ^^^^^^^ error: `ordinal` is the item of a forEach and does not exist here; use it only in the template, when, key and readyWhen of that child
        - {id: members, template: templates/member.yaml, forEach: {in: range(spec.size), as: ordinal}}
      status:
        a: spek.size
#          ^^^^^^^^^ error: unknown variable `spek`; did you mean `spec`?
        b: children.confg.data
#          ^^^^^^^^^^^^^^^^^^^ error: `children.confg` does not exist: there is no child of that id; did you mean `children.config`?
        c: children | length
#          ^^^^^^^^ error: the id of a child must be a literal, because it determines the order; write children.<id>
        d: record.x | default(1)
#          ^^^^^^^^ error: `record` needs plans, and this kind has none; remove it, or add plans
//- templates/member.yaml
apiVersion: v1
kind: ConfigMap
metadata: {name: "{{ name }}-{{ ordinal }}"}
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
#                     ^^^^^^^^^ error: `refs.tls.data` is secret and must not be shown in the status; show the name of the Secret; or, if everybody who may read the instance may know the value, {value: <expression>, exposesSecretData: true}
#                                ^^^^ warning: the status field `open` exposes `refs.tls.data`: everybody who may read the instance can read it
      children:
        - {id: config, template: templates/config.yaml}
        - {id: open, template: templates/open.yaml, exposesSecretData: true}
#              ^^^^ warning: `open` exposes `refs.tls.data`: everybody who may read this ConfigMap can read it
//- templates/config.yaml
apiVersion: v1
kind: ConfigMap
metadata: {name: "{{ name }}"}
data:
  digest: "{{ let.token | sha256 }}"
  token: "{{ let.token }}"
#            ^^^^^^^^^ error: `refs.tls.data` is secret and must not be in a ConfigMap; let the pod read the Secret itself (secretKeyRef, a volume), put it into a Secret, or insert a digest (`| to_json | sha256`); exposesSecretData: true on the child allows it
//- templates/open.yaml
apiVersion: v1
kind: ConfigMap
metadata: {name: "{{ name }}-open"}
data: {token: "{{ let.token }}"}
"#,
    );
}

#[test]
fn misplaced_generated_values_and_unsafe_recreation_are_errors() {
    check(
        r#"
//- resource
    - crd: crds/web.yaml
      let: {secret: "{{ password(20) }}"}
#                       ^^^^^^^^^^^^ error: a password or a certificate can only be generated in the template of a Secret; use it there as the whole value: `stringData: {password: {{ password(32) }}}`, `stringData: {{ tls_self_signed([name]) }}`
      paused: password(20)
#             ^^^^^^^^^^^^ error: a password or a certificate can only be generated in the template of a Secret; use it there as the whole value: `stringData: {password: {{ password(32) }}}`, `stringData: {{ tls_self_signed([name]) }}`
      children:
        - {id: a, template: templates/secret.yaml}
#              ^ error: `a` contains generated values and does not set onLoss; add onLoss: Recreate, which generates new values when the object is lost
        - {id: b, template: templates/cm2.yaml, onLoss: Recreate}
        - {id: c, template: templates/secret2.yaml, onLoss: restore}
#                                                           ^^^^^^^ error: there is no plan `restore`; there is deploy, Recreate
        - {id: d, template: templates/secret3.yaml, onLoss: Recreate, onImmutableChange: Recreate}
#                                                                                        ^^^^^^^^ error: `d` contains generated values, which would change if the object were recreated; remove onImmutableChange
        - {id: e, template: templates/claim.yaml, deletionPolicy: Delete, onImmutableChange: Recreate}
#                                                                                            ^^^^^^^^ error: `e` is a PersistentVolumeClaim and holds data, so it cannot be recreated; remove onImmutableChange
        - {id: f, template: templates/cm.yaml, deletionPolicy: Retain, onImmutableChange: Recreate}
#                                                                                         ^^^^^^^^ error: the deletionPolicy of `f` does not allow recreating it; remove onImmutableChange
        - {id: g, template: templates/cm3.yaml, onImmutableChange: Recreate}
        - {id: h, template: templates/quoted.yaml, onLoss: Recreate}
        - {id: i, template: templates/named.yaml, onLoss: Recreate}
      plans:
        deploy: {steps: [{name: all, apply: [a]}]}
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
#                                                           ^^^^^^^^^^^^ error: a generated password in a text must be the whole value of another key, too, where it is kept; name it, and use the name twice: `{% set p = password(32) %}`, then `password: {{ p }}` and `{{ p }}` in the text
//- templates/named.yaml
apiVersion: v1
kind: Secret
metadata: {name: "{{ name }}-n"}
{% set p = password(20) %}
stringData: {password: "{{ p }}", also: {{ p }}, url: "x://u:{{ p }}@h"}
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
#                   ^^^^^^^^^^^^ error: a password or a certificate can only be generated in the template of a Secret; use it there as the whole value: `stringData: {password: {{ password(32) }}}`, `stringData: {{ tls_self_signed([name]) }}`
//- templates/cm3.yaml
apiVersion: v1
kind: ConfigMap
metadata: {name: "{{ name }}-3"}
"#,
    );
}

#[test]
fn status_values_invalid_for_the_schema_are_errors() {
    let crd = "\
//- crd
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
#              ^^^^^^^^^ error: status.count must be a whole number, this gives a string; the CRD's schema of the status requires it; the field would be omitted
#                                  ^ error: status.count must be at most 5; the CRD's schema of the status requires it; the field would be omitted
        label: spec.size
#              ^^^^^^^^^ error: status.label must be a string, this gives a whole number; the CRD's schema of the status requires it; the field would be omitted
        hosts: name ~ '.example'
#              ^^^^^^^^^^^^^^^^^ error: status.hosts must be a list, this gives a string; the CRD's schema of the status requires it; the field would be omitted
        port: true
#             ^^^^ error: status.port must be an integer or a string, is a boolean; the CRD's schema of the status requires it; the field would be omitted
        inner:
          size: range(3) if spec.size > 2 else 4
#               ^^^^^^^^ error: status.inner.size must be a whole number, this gives a list; the CRD's schema of the status requires it; the field would be omitted
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
