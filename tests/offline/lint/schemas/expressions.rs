//! What expressions read: paths, types, and values that may be absent.

use super::check;

#[test]
fn paths_into_live_objects_are_checked() {
    check(
        r#"
//- resource
    - crd: crds/web.yaml
      refs:
        - {id: tls, apiVersion: v1, kind: Secret, name: x, optional: true}
        - {id: node, apiVersion: v1, kind: Node, name: x}
        - {id: pods, apiVersion: v1, kind: Pod, selector: {app: x}}
      children:
        - {id: web, template: templates/web.yaml, readyWhen: self.status.readyReplica == 1}
#                                                            ^^^^^^^^^^^^^^^^^^^^^^^^ error: there is no `self.status.readyReplica`; did you mean `self.status.readyReplicas`?
        - {id: each, template: templates/each.yaml, forEach: {in: spec.envs, as: env, key: env.nmae}}
#                                                                                          ^^^^^^^^ error: there is no `spec.envs[].nmae`; did you mean `spec.envs[].name`?
      status:
        a: children.web.status.readyReplcas
#          ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ error: there is no `children.web.status.readyReplcas`; did you mean `children.web.status.readyReplicas`?
        b: children.web.spec.template.spec.container[0].image
#          ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ error: there is no `children.web.spec.template.spec.container`; did you mean `children.web.spec.template.spec.containers`?
        c: refs.tls.datta
#          ^^^^^^^^^^^^^^ error: a Secret has no field datta; did you mean `refs.tls.data`?
        d: refs.node.status.addreses | length
#          ^^^^^^^^^^^^^^^^^^^^^^^^^ error: there is no `refs.node.status.addreses`; did you mean `refs.node.status.addresses`?
        e: refs.pods | map(attribute='status.podIp') | join(',')
#          ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ error: there is no `refs.pods[].status.podIp`; did you mean `refs.pods[].status.podIP`?
        f: children.each.a.metadata.nam
#          ^^^^^^^^^^^^^^^^^^^^^^^^^^^^ error: there is no `children.each.a.metadata.nam`; did you mean `children.each.a.metadata.name`?
        old: retained.each.a.metadata.nam
#            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^ error: there is no `retained.each.a.metadata.nam`; did you mean `retained.each.a.metadata.name`?
        g: children.web.status.readyReplicas.x
#          ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ error: a whole number has no fields: `x`; use the value itself, without `.x`
        h: instance.metadata.labls.a
#          ^^^^^^^^^^^^^^^^^^^^^^^ error: there is no `instance.metadata.labls`; did you mean `instance.metadata.labels`?
        i: refs.pods[0].status.phase == 'Runing'
#          ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ error: `refs.pods[].status.phase` is never `Runing`; did you mean `Running`?
        j: "children.web.metadata.annotations['a.b/c'] | default('')"
        k: refs.tls.error | default('')
        l: children.each.values() | map(attribute='data.a') | list
        m: refs.pods | selectattr('status.phse', 'eq', 'Running') | list
#          ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ error: there is no `refs.pods[].status.phse`; did you mean `refs.pods[].status.phase`?
        o: refs.pods | sort(attribute='metadata.name,metadata.nme') | list
#          ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ error: there is no `refs.pods[].metadata.nme`; did you mean `refs.pods[].metadata.name`?
//- templates/web.yaml
apiVersion: apps/v1
kind: Deployment
metadata: {name: "{{ name }}", annotations: {old: "{{ self.status.replicaz | default(0) }}"}}
#                                                     ^^^^^^^^^^^^^^^^^^^^ error: there is no `self.status.replicaz`; did you mean `self.status.replicas`?
spec: {selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: a, image: b}]}}}
//- templates/each.yaml
apiVersion: v1
kind: ConfigMap
metadata: {name: "{{ name }}-{{ env.name }}"}
data: {a: "{{ env.prt }}"}
#             ^^^^^^^ error: there is no `spec.envs[].prt`; did you mean `spec.envs[].port`?
"#,
    );
}

#[test]
fn types_of_expressions_are_checked() {
    check(
        r#"
//- resource
    - crd: crds/web.yaml
      let: {bad: "{{ spec.image * 2.5 }}"}
#                    ^^^^^^^^^^^^^^^^ error: `*` does not take a string and a number; use `| int`, or `| quantity` for 512Mi and its like
      paused: spec.debug == 'true'
#             ^^^^^^^^^^^^^^^^^^^^ error: a boolean and a string are never equal; test a boolean directly: `spec.x`, `not spec.x`
      readyWhen: children.a.data.n > 3
#                ^^^^^^^^^^^^^^^^^^^^^ error: a string and a whole number have no order; remove the quotes of the number, or use `| int` on the string
      children:
        - {id: a, template: templates/a.yaml, when: spec.size > '3'}
#                                                   ^^^^^^^^^^^^^^^ error: a whole number and a string have no order; remove the quotes of the number, or use `| int` on the string
        - {id: b, template: templates/b.yaml, forEach: {in: spec.size, as: i}}
#                                                           ^^^^^^^^^ error: a whole number is not a list; to count, loop over `range(x)`
        - {id: c, template: templates/c.yaml, forEach: {in: range(spec.ports), as: i}}
#                                                           ^^^^^^^^^^^^^^^^^ error: `range` takes whole numbers, not a list; loop over the list itself, or over `range(x | length)`
        - {id: d, template: templates/d.yaml, when: spec.mode == 'small'}
#                                                   ^^^^^^^^^^^^^^^^^^^^ warning: the `when` of the child is never true; no instance fulfils it; correct the condition, or remove what it belongs to
#                                                   ^^^^^^^^^^^^^^^^^^^^ warning: the field never has this value; the CRD allows Small, Large
#                                                   ^^^^^^^^^^^^^^^^^^^^ error: `spec.mode` is never `small`; did you mean `Small`?
        - {id: e, template: templates/e.yaml, when: "spec.size in ['1', '2']"}
#                                                    ^^^^^^^^^^^^^^^^^^^^^^^ error: a whole number is never in a list whose items are a string
      status:
        x: spec.size + spec.image
#          ^^^^^^^^^^^^^^^^^^^^^^ error: `+` does not take a whole number and a string; texts are joined with `~`; to count, use `| int`
        y: spec.size | length
#       ^ warning: the key `y` is read as "true": it is a boolean in YAML 1.1; quote it: "y"
#          ^^^^^^^^^^^^^^^^^^ error: `length` does not take a whole number
        z: spec.image | join(',')
#          ^^^^^^^^^^^^^^^^^^^^^^ error: `join` does not take a string; it takes a list
        v: spec.ports | upper
#          ^^^^^^^^^^^^^^^^^^ error: `upper` does not take a list
        w: -spec.image
#          ^^^^^^^^^^^ error: a string cannot be negated
        u: spec.image - 1
#          ^^^^^^^^^^^^^^ error: `-` does not take a string and a whole number; use `| int`, or `| quantity` for 512Mi and its like
        t: spec.ports['a']
#          ^^^^^^^^^^^^^^^ error: the CRD's schema has no spec.ports.a
        s: "'x' in spec.size"
#                  ^^^^^^^^^ error: `in` does not accept a whole number
        r: spec.memory | quantity > '1Gi'
#          ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ error: a quantity and a string have no order
        ready: spec.image
#              ^^^^^^^^^^ error: status.ready must be a whole number, this gives a string; the CRD's schema of the status requires it; the field would be omitted
        url: spec.size
#            ^^^^^^^^^ error: status.url must be a string, this gives a whole number; the CRD's schema of the status requires it; the field would be omitted
        names: spec.envs | map(attribute='port') | list
#              ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ error: `status.names[*]` of a Web takes a string, not a whole number; quote the expression: quotes make it a string
        phase: "'Running' if spec.debug else 'Down'"
#               ^^^^^^^^^ error: status.phase must be one of: Up, Down; the CRD's schema of the status requires it; the field would be omitted
//- templates/a.yaml
apiVersion: v1
kind: ConfigMap
metadata: {name: "{{ name }}-a"}
data:
  n: "{{ let.bad }}"
# ^ warning: the key `n` is read as "false": it is a boolean in YAML 1.1; quote it: "n"
  {% for p in spec.size %}
#             ^^^^^^^^^ error: a whole number is not a list; to count, loop over `range(x)`
  x: a
  {% endfor %}
//- templates/b.yaml
apiVersion: v1
kind: ConfigMap
metadata: {name: "{{ name }}-b-{{ i }}"}
//- templates/c.yaml
apiVersion: v1
kind: ConfigMap
metadata: {name: "{{ name }}-c-{{ i }}"}
//- templates/d.yaml
apiVersion: v1
kind: ConfigMap
metadata: {name: "{{ name }}-d"}
//- templates/e.yaml
apiVersion: v1
kind: ConfigMap
metadata: {name: "{{ name }}-e"}
"#,
    );
}

#[test]
fn reads_of_optional_values_must_be_guarded() {
    check(
        r#"
//- resource
    - crd: crds/web.yaml
      let: {secret: "{{ spec.tls.secret }}", has_tls: "{{ spec.tls is defined }}", url: "https://{{ spec.host }}"}
      refs:
        - {id: tls, apiVersion: v1, kind: Secret, name: "{{ spec.tls.secret }}"}
#                                                           ^^^^^^^^^^^^^^^ warning: `spec.tls.secret` may be absent, and then this fails; check `is defined` first, use `| default(...)`, or make it required in the CRD
        - {id: tls2, apiVersion: v1, kind: ConfigMap, name: "{{ spec.tls.secret }}", when: spec.tls is defined}
      children:
        - {id: a, template: templates/a.yaml}
        - {id: b, template: templates/b.yaml, when: spec.tls is defined and spec.host}
        - {id: c, template: templates/c.yaml, forEach: {in: spec.words, as: word}}
#                                                           ^^^^^^^^^^ warning: `spec.words` may be absent, and then this fails; check `is defined` first, use `| default(...)`, or make it required in the CRD
        - {id: d, template: templates/d.yaml, forEach: {in: "spec.words | default([])", as: word}}
      status: {a: spec.host, b: "refs.tls is known", c: "refs.tls2 is known"}
//- templates/a.yaml
apiVersion: v1
kind: ConfigMap
metadata: {name: "{{ name }}-a"}
data:
  one: "{{ spec.host }}"
#          ^^^^^^^^^ warning: `spec.host` may be absent, and then this fails; check `is defined` first, use `| default(...)`, or make it required in the CRD
  two: "{{ spec.host | upper }}"
#          ^^^^^^^^^ warning: `spec.host` may be absent, and then this fails; check `is defined` first, use `| default(...)`, or make it required in the CRD
  three: "{{ let.secret }}"
#            ^^^^^^^^^^ warning: `spec.tls.secret` may be absent, and then this fails; check `is defined` first, use `| default(...)`, or make it required in the CRD
  four: "{{ spec.host | default('none') }}"
  five: "{{ spec.host if spec.host else '' }}"
  six: "{{ 'https://' ~ spec.host if spec.host is defined else '' }}"
  {% if spec.host %}
  seven: "{{ spec.host }} {{ let.url }}"
  {% endif %}
  {% if spec.tls is not defined %}
  eight: none
  {% else %}
  eight: "{{ spec.tls.secret }}"
  {% endif %}
  {% if let.has_tls %}
  nine: "{{ let.secret }}"
  {% endif %}
  {% set tls = spec.tls %}
  {% if tls %}
  ten: "{{ tls.secret }} {{ tls.mode }}"
  {% endif %}
  {% if spec.words and spec.words | length > 1 %}
  eleven: "{{ spec.words | join(',') }}"
  {% endif %}
  {% for env in spec.envs if env.port is defined %}
  x-{{ env.name }}: "{{ env.port }}"
  {% endfor %}
  {% for env in spec.envs %}
  y-{{ env.name }}: "{{ env.port }}"
#                       ^^^^^^^^ warning: `spec.envs[].port` may be absent, and then this fails; check `is defined` first, use `| default(...)`, or make it required in the CRD
  {% endfor %}
  twelve: "{{ (spec.tls | default({})).secret | default('') }}"
  thirteen: {{ spec.host | default(omit) }}
  fourteen: "{{ spec.settings.colour }}"
  fifteen: "{% if spec.host == 'a' %}{{ spec.host }}{% endif %}"
//- templates/b.yaml
apiVersion: v1
kind: ConfigMap
metadata: {name: "{{ name }}-b"}
data: {a: "{{ spec.tls.secret }}", b: "{{ spec.host }}", c: "{{ refs.tls2.data.a }}"}
//- templates/c.yaml
apiVersion: v1
kind: ConfigMap
metadata: {name: "{{ name }}-c-{{ word }}"}
//- templates/d.yaml
apiVersion: v1
kind: ConfigMap
metadata: {name: "{{ name }}-d-{{ word }}"}
"#,
    );
}

/// A setting of a child that is a template must yield one of the setting's words.
#[test]
fn templated_settings_of_children_are_checked() {
    check(
        r#"
//- resource
    - crd: crds/web.yaml
      children:
        - {id: config, template: templates/cm.yaml, onImmutableChange: "{{ 'Recreate' if spec.size > 1 else 'Fail' }}"}
        - {id: second, template: templates/cm2.yaml, onImmutableChange: "{{ 'Recreat' if spec.size > 1 else 'Fail' }}"}
#                                                                           ^^^^^^^^^ error: onImmutableChange of `second` must be one of Fail, Recreate, Orphan
        - {id: third, template: templates/cm3.yaml, onImmutableChange: "{{ spec.size }}", onLoss: "{{ 'repare' if spec.size > 1 else 'Recreate' }}"}
#                                                                          ^^^^^^^^^ error: onImmutableChange of `third` must be one of Fail, Recreate, Orphan
#                                                                                                     ^^^^^^^^ error: onLoss of `third` must be one of Recreate, deploy, repair
      plans:
        deploy: {steps: [{name: all, apply: [config]}]}
        repair: {steps: [{name: all, apply: [config]}]}
//- templates/cm2.yaml
apiVersion: v1
kind: ConfigMap
metadata: {name: "{{ name }}-2"}
//- templates/cm3.yaml
apiVersion: v1
kind: ConfigMap
metadata: {name: "{{ name }}-3"}
"#,
    );
}
