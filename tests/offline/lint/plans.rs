//! Mistakes in plans, marked in the text.

use super::check;

const FILES: &str = r#"
//- templates/member.yaml
apiVersion: v1
kind: Pod
metadata: {name: "{{ name }}-{{ i }}"}
spec: {containers: [{name: a, image: b}]}
//- templates/job.yaml
apiVersion: batch/v1
kind: Job
spec: {template: {spec: {restartPolicy: Never, containers: [{name: a, image: b, env: [{name: X, value: "{{ run.params.to | default('x') }}"}]}]}}}
"#;

fn plans(text: &str) {
    check(&format!("{text}{FILES}"));
}

#[test]
fn valid_plans_have_no_findings() {
    plans(
        r#"
//- resource
    - crd: crds/web.yaml
      refs:
        - {id: tls, apiVersion: v1, kind: Secret, name: tls}
      let: {note: "{{ 'of ' ~ run.plan }}", own: "http://{{ defaults.image }}/{{ namespace }}/{{ name }}", after: "{{ spec.size }}s"}
      children:
        - {id: config, template: templates/cm.yaml, onLoss: repair, lostWhen: self.data.lost is defined}
        - {id: members, template: templates/member.yaml, forEach: {in: range(spec.size), as: i}, onLoss: "{{ 'repair' if record.first else 'Recreate' }}"}
      status: {first: record.first, before: previous.size}
      plans:
        deploy:
          steps:
            - {name: all, apply: [config, members], timeout: 10m}
            - name: each
              forEach: {in: range(spec.size), as: n1, maxParallel: 2}
              when: children.members[n1] is not current
              steps:
                - {name: one, exec: {child: "members[{{ n1 }}]", command: [echo, "{{ n1 }}"]}, idempotent: true, outputs: {text: stdout, code: {value: exitCode}}}
                - {name: two, when: outputs.one.text, wait: {until: "children.members[n1] is ready"}}
            - {name: three, when: outputs.each | length, record: {first: true, last: outputs.each | map(attribute='text') | list}}
            - name: call
              http:
                method: POST
                url: "http://api.{{ operator.namespace }}:{{ defaults.ports.http }}/{{ spec.host }}"
                auth: {bearer: "{{ refs.tls.data.token | b64decode }}"}
                headers: {x-key: "{{ refs.tls.data.key }}"}
                json: {password: "{{ refs.tls.data.password }}"}
                tls: {ca: "{{ refs.tls.data['ca.crt'] }}"}
              expect: status in [200, 201]
              outputs: {token: {value: body.token, secret: true}, id: {jsonPath: .body.id}}
              record: {id: outputs.id, host: headers.host}
            - {name: use, exec: {child: "members[0]", command: [cat], stdin: "{{ outputs.call.token }}"}, unless: record.id == outputs.call.id}
            - {name: script, exec: {child: config, command: [sh, -ec, "echo {{ spec.host | shell_quote }} {{ name }}"]}, idempotent: true}
            - {name: get, http: {url: "{{ let.own }}/{{ spec.host }}"}}
            - {name: job, job: {template: templates/job.yaml}, outputs: {m: message}, message: "{{ let.note }}", onFailure: repair}
            - {name: by-hand, plan: {name: refresh}, when: spec.size > 1, outputs: {marked-as: "recorded['marked-as']", all: recorded}}
            - {name: after, when: "outputs['by-hand'].ran and outputs['by-hand']['marked-as'] is defined", record: {x-y: "outputs['by-hand'].all"}}
            - {name: last, when: "record['x-y'] is defined", wait: {duration: "{{ record['marked-as'] | default('1s') }}"}}
        resize: {trigger: {changed: [spec.size]}, steps: [{name: go, plan: repair}]}
        refresh: {trigger: {changed: [refs.tls, spec.free.a.b]}, steps: [{name: go, plan: {name: repair, params: {to: x}}}, {name: mark, record: {marked-as: 1}}]}
        repair:
          params: {type: object, required: [to], properties: {to: {type: string}}}
          steps: [{name: all, apply: [config], message: "{{ run.params.to }} {{ run.lost | length }}"}]
        nightly:
          trigger: [{schedule: "0 3 * * *", timeZone: Europe/Rome, when: spec.host is defined}, {condition: children.config is not ready, for: 10s}, {condition: spec.size > 3, for: "{{ let.after }}", cooldown: "{{ spec.size }}m"}]
          exclusive: false
          steps: [{name: beat, record: {beat: run.startedAt}}]
"#,
    );
}

#[test]
fn repeats_are_checked() {
    plans(
        r#"
//- resource
    - crd: crds/web.yaml
      refs:
        - {id: tls, apiVersion: v1, kind: Secret, name: tls}
      let: {old: "{{ children.members | default({}) | values | reject('current') | map(attribute='metadata.name') | list }}", first: "{{ children.members | default({}) | keys | first }}"}
      children:
        - {id: config, template: templates/cm.yaml}
        - {id: members, template: templates/member.yaml, forEach: {in: range(spec.size), as: i}}
      plans:
        deploy:
          steps:
            - {name: all, apply: [config, members]}
            - name: fine
              repeat: {pick: let.first, as: m, until: not let.old, limit: 5}
              timeout: 5m
              message: waits
              steps:
                - {name: one, apply: ["members[{{ m }}]"]}
                - {name: job, job: {template: templates/job.yaml}, outputs: {m: message}}
            - {name: sum, record: {rounds: outputs.fine | length, items: outputs.fine | map(attribute='item') | list}}
            - name: shown
              repeat: {pick: refs.tls.data.token, as: t, until: not let.old}
#                            ^^^ error: `refs.tls.data` is secret and must not be picked by a repeat; pick a name, and read the Secret by its name
              steps: [{name: one, wait: {duration: 1s}}]
            - name: constant
              repeat: {pick: "1", until: spec.size == 3}
#                                        ^^^ warning: the rounds of `constant` change nothing that `until` reads, so they end only at their limit; read what a round changes: children, a ref, an observation or record
              steps: [{name: one, wait: {duration: "{{ item }}s"}}]
            - {name: single, repeat: {pick: "1", until: not let.old}, apply: [config]}
#                    ^^^ error: `repeat` has no effect on the apply step `single`; put the step into the `steps` of a step with `repeat`
            - name: both
              forEach: {in: range(2), as: a}
              repeat: {pick: "1", as: b, until: not let.old}
#                     ^^^ error: a step has `forEach` or `repeat`, not both; put a step with the one into the `steps` of the other
              steps: [{name: one, wait: {duration: 1s}}]
            - {name: after, wait: {until: m == 1}}
#                                         ^^^ error: `m` is the item of a repeat and does not exist here; use it only in the steps of that phase
"#,
    );
}

#[test]
fn secrets_that_do_not_keep_what_is_stored_are_errors() {
    plans(
        r#"
//- resource
    - crd: crds/web.yaml
      children:
        - {id: config, template: templates/cm.yaml}
        - {id: members, template: templates/member.yaml, forEach: {in: range(spec.size), as: i}}
        - {id: keys, template: templates/keys.yaml}
        - {id: login, template: templates/login.yaml, onImmutableChange: Recreate}
      plans:
        deploy:
          steps:
            - {name: all, apply: [config, members, keys, login]}
            - name: fine
              unless: children.keys.data.root is defined
              exec: {child: "members[0]", command: [init]}
              store: {child: keys, data: {root: json.root, unseal: stdout | from_json | to_json}}
              record: {code: exitCode}
            - {name: use, http: {url: "http://a.example", auth: {bearer: "{{ children.keys.data.root | b64decode }}"}}}
            - name: shown
              unless: children.keys.data.b is defined
              exec: {child: "members[0]", command: [init]}
              store: {child: keys, data: {b: json.b}}
              outputs: {all: stdout}
#                            ^^^ error: `stdout` is secret and must not be an output; write {value: <expression>, secret: true}: it is kept in a Secret
              record: {b: json.b}
#                         ^^^ error: `json` is secret and must not be recorded; records are in the status of runs: record the name of a Secret
            - {name: again, exec: {child: "members[0]", command: [init]}, idempotent: true, store: {child: keys, data: {c: stdout}}}
#                                                                                                          ^^^ warning: the step `again` fails when it runs again: the keys are there then; add `unless: children.keys.data.c is defined`
            - name: taken
              unless: children.login.data.password is defined
              http: {method: POST, url: "http://a.example"}
              store: {child: login, data: {password: body.password}}
#                            ^^^ error: `login` may be deleted and created again, and what is stored in it is lost then; remove onImmutableChange: Recreate from it
#                            ^^^ error: the template of `login` has `password`, too, and overwrites what is stored; remove it from the template, or store under another key
            - {name: cm, unless: record.code, http: {method: POST, url: "http://a.example"}, store: {child: config, data: {a b: body.a}}}
#                                                                                                           ^^^ error: `config` is not a Secret; name a child that is a Secret
#                                                                                                                          ^^^ error: `a b` cannot be a key of a Secret; use letters, digits, hyphens, underscores and dots
            - {name: slow, wait: {duration: 1s}, store: {child: keys, data: {d: "'x'"}}}
#                    ^^^ error: `store` has no effect on the wait step `slow`; remove it: it belongs to exec, http
//- templates/keys.yaml
apiVersion: v1
kind: Secret
metadata: {name: "{{ name }}-keys"}
//- templates/login.yaml
apiVersion: v1
kind: Secret
metadata: {name: "{{ name }}-login"}
stringData: {password: initial}
"#,
    );
}

#[test]
fn on_loss_needs_a_plan_that_rolls_out() {
    plans(
        r"
//- resource
    - crd: crds/web.yaml
      children:
        - {id: config, template: templates/cm.yaml, onLoss: repair}
#                                                           ^^^ error: no plan rolls this child out, so its loss is not noticed; add a plan `deploy`: it runs when an instance is created, and records what exists
        - {id: members, template: templates/member.yaml, forEach: {in: range(spec.size), as: i}, onLoss: Recreate}
      plans:
        repair: {steps: [{name: all, apply: [config]}]}
",
    );
}

#[test]
fn names_that_do_not_exist_are_errors() {
    plans(
        r#"
//- resource
    - crd: crds/web.yaml
      children:
        - {id: config, template: templates/cm.yaml, onLoss: repare}
#                                                           ^^^ error: there is no plan `repare`; did you mean `repair`?
        - {id: members, template: templates/member.yaml, forEach: {in: range(spec.size), as: i}}
      status: {a: run.id, b: record.non, c: outputs.x}
#                 ^^^ error: `run` exists only in a run of a plan; use it only in the steps of a plan, and in the templates of their Jobs; `record` keeps facts beyond a run
#                            ^^^ error: no step records `non`; there is a, b, e, f, c, d, is-node
#                                           ^^^ error: `outputs` exists only in a run of a plan; use it only in the steps of a plan, and in the templates of their Jobs; `record` keeps facts beyond a run
      plans:
        deploy:
          trigger: [created, {changed: [spec.sise, refs.tls, status.x, "spec.envs[0]", refs.tls.data, metadata.annotations.operetta.dev/x, "metadata.labels.a b"]}]
#                                       ^^^ error: the CRD's schema has no spec.sise; did you mean `size`?
#                                                  ^^^ error: there is no ref `tls`
#                                                            ^^^ error: `status.x` is no path that can be compared; write spec.x, metadata.annotations.x, metadata.labels.x or refs.x; for live objects and observations use {condition: ...}
#                                                                      ^^^ error: `spec.envs[0]` is not a path of the spec; write names joined by dots: spec.pod.resources
#                                                                                      ^^^ error: a trigger takes a ref as a whole; write refs.tls
#                                                                                                     ^^^ error: changes of the annotation operetta.dev/x do not count; use an annotation of your own
#                                                                                                                                          ^^^ error: `a b` is not the key of a label or an annotation; write it as in metadata, without quotes
          steps:
            - {name: one, apply: [confg, "config[0]", "members[{{ i }}]", "members[{{ m }}]"]}
#                                 ^^^ error: there is no child `confg`; did you mean `config`?
#                                        ^^^ error: `config` has no forEach, so it has no members; write config
#                                                                 ^^^ error: `i` is the item of a forEach and does not exist here; use it only in the template, when, key and readyWhen of that child
#                                                                                     ^^^ error: unknown variable `m`; there is instance, spec, name, namespace, labels, operator, defaults, let, children, retained, refs, cluster, record, previous, run, outputs
            - {name: two, plan: repare}
#                               ^^^ error: there is no plan `repare`; did you mean `repair`?
            - {name: three, plan: {name: repair, params: {form: 1}}}
#                    ^^^ error: the plan `repair` has no parameter `form`; did you mean `from`?
#                    ^^^ error: the plan `repair` requires the parameter `from`; add from: ... to params
            - {name: four, exec: {child: membrs, command: [a]}, idempotent: true, outputs: {x: stdot}}
#                                        ^^^ error: there is no child `membrs`; did you mean `members`?
#                                                                                              ^^^ error: unknown variable `stdot`; did you mean `stdout`?
            - {name: five, when: outputs.six.x, job: {template: templates/cm.yaml}}
#                                ^^^ error: `outputs.six` does not exist here: plans.deploy.steps[5] is not an earlier step; outputs are visible to the later steps beside the step, and to the steps within those; side by side (strategy: parallel) none is earlier; use `record` for more
#                                                               ^^^ error: the template of a job step is a ConfigMap, not a Job; write apiVersion: batch/v1 and kind: Job; other objects are children
            - {name: six, when: outputs.four.y or outputs.fife, record: {a: stdout, b: outputs.x}}
#                               ^^^ error: the step `four` has no output `y`; did you mean `outputs.four.x`?
#                                                 ^^^ error: there is no step `fife` before this one; did you mean `outputs.five`?
#                                                                           ^^^ error: unknown variable `stdout`; there is instance, spec, name, namespace, labels, operator, defaults, let, children, retained, refs, cluster, record, previous, run, outputs
#                                                                                      ^^^ error: there is no step `x` before this one; there is five, four, three, two, one
            - {name: by-hand, plan: {name: repair, params: {from: 1}}, outputs: {a-b: recorded.is-node}, record: {e: "recorded['is-nodes']"}}
#                                                                                     ^^^ error: the plan `repair` records no `is`; there is is-node
#                                                                                                 ^^^ error: unknown variable `node`; there is instance, spec, name, namespace, labels, operator, defaults, let, children, retained, refs, cluster, record, previous, run, outputs, recorded
#                                                                                                                     ^^^ error: the plan `repair` records no `is-nodes`; did you mean `recorded['is-node']`?
            - {name: near, when: "outputs['by-hnd'].ran or outputs['by-hand'].run or outputs['by-hand']['a-c']", record: {f: "record['is-nod']"}}
#                                 ^^^ error: there is no step `by-hnd` before this one; did you mean `outputs['by-hand']`?
#                                                          ^^^ error: the step `by-hand` has no output `run`; did you mean `outputs['by-hand'].ran`?
#                                                                                    ^^^ error: the step `by-hand` has no output `a-c`; did you mean `outputs['by-hand']['a-b']`?
#                                                                                                                             ^^^ error: no step records `is-nod`; did you mean `record['is-node']`?
            - {name: seven, when: run.stp or run.params.x, onFailure: Contine, wait: {until: self.x}}
#                                 ^^^ error: `run.stp` does not exist; did you mean `run.step`?
#                                            ^^^ error: the plan `deploy` has no parameter `x`; add it to the plan: params: {type: object, properties: {x: {type: string}}}
#                                                                     ^^^ error: there is no plan `Contine`; did you mean `Continue`?
#                                                                                            ^^^ error: `self` is the live object of a child and exists only in its own template and readyWhen; use `children.<id>` to read a live object here
            - {name: eight, strategy: parallel, steps: [{name: a, record: {c: 1}}, {name: b, when: outputs.a.x, record: {d: 1}}]}
#                                                                                                  ^^^ error: `outputs.a` does not exist here: plans.deploy.steps[9].steps[0] is not an earlier step; outputs are visible to the later steps beside the step, and to the steps within those; side by side (strategy: parallel) none is earlier; use `record` for more
        late: {trigger: {condition: spec.size > 3, for: "{{ spec.sise }}s", cooldown: "{{ run.params.x }}"}, steps: [{name: a, apply: [config]}]}
#                                                           ^^^ error: the CRD's schema has no spec.sise; did you mean `spec.size`?
#                                                                                         ^^^ error: `run` exists only in a run of a plan; use it only in the steps of a plan, and in the templates of their Jobs; `record` keeps facts beyond a run
        repair:
          params: {type: object, required: [from], properties: {from: {type: integer}}}
          steps: [{name: all, apply: [config], message: "{{ run.params.form }}", record: {is-node: 1}}]
#                                                           ^^^ error: the plan `repair` has no parameter `form`; did you mean `run.params.from`?
"#,
    );
}

#[test]
fn invalid_steps_are_errors() {
    plans(
        r#"
//- resource
    - crd: crds/web.yaml
      children:
        - {id: config, template: templates/cm.yaml}
      plans:
        Deploy: {steps: []}
#       ^^^ error: must be letters, digits and hyphens, beginning with a lower case letter and ending in a letter or digit, at most 40 characters
        deploy:
#       ^^^ error: these plans run each other without end: deploy -> deploy; remove one of these plan steps or onFailure
          onFailure: Hold
#                    ^^^ error: onFailure of a plan is only for the plan that runs on deletion; remove it, or set onFailure on a step
          steps:
            - {name: a}
            - {name: a, apply: [config], delete: [config]}
#                    ^^^ error: two steps of the same list have the name `a`; rename one of them
#                                                ^^^ error: the step `a` has two actions: apply and delete; make them two steps
            - {name: b, wait: {duration: 10}, retries: {limit: -1}, until: spec.size}
#                    ^^^ error: `retries` has no effect on the wait step `b`; remove it: it belongs to job, exec, http, patch
#                    ^^^ error: `until` has no effect on the wait step `b`; remove it, or add a step {name: ..., wait: {until: ...}}
#                                        ^^^ error: a duration needs a unit, is the number 10; write 10s
#                                                              ^^^ error: must be a number from 0 to 1000, is the number -1
            - {name: c, wait: {duration: soon, until: spec.size}}
#                                        ^^^ error: `soon` is not a duration; write a number with a unit (ms, s, m, h, d), for example 10s or 1h30m
            - {name: d, exec: {child: config, command: ls -l}}
#                             ^^^ error: `d` may run its command twice after a crash; add idempotent: true if that does no harm, or a `when` or `unless` that reads what the command changes
#                                                      ^^^ error: the command must be a list: no shell splits it; write [ls, -l]
            - {name: e, exec: {child: config, command: []}, expect: [200], idempotent: true}
#                                                      ^^^ error: the command is empty
#                                                                   ^^^ error: statuses are for http; this is an exec step; write an expression: expect: exitCode == 0
            - {name: f, http: {method: get, url: ftp://x, json: {}, form: {}}}
#                    ^^^ error: `ftp://x` is not an http or https URL; write the whole URL: https://api.example.com/x
#                             ^^^ error: the request has two bodies: json and form; remove one of them
#                                      ^^^ error: must be one of GET, HEAD, POST, PUT, PATCH, DELETE
            - {name: g2, http: {url: http://x, key: "", auth: {basic: {username: "a:b", password: c}}}}
#                                                   ^^^ error: `key` is empty: each effect needs an idempotency key of its own
#                                                                                ^^^ error: auth.basic.username contains `:`, which no user name of basic authentication can have
            - {name: g, http: {url: http://x, method: PUT, body: a, auth: {}, headers: {Authorization: x, "a b": c, Host: h}, tls: {cert: x}, hosts: ["http://x"]}, expect: 200}
#                             ^^^ error: a client certificate needs both tls.cert and tls.key; add the other one
#                                                                         ^^^ error: auth has neither `bearer` nor `basic`; write auth: {bearer: "{{ refs.token.data.token | b64decode }}"}
#                                                                                       ^^^ error: Operetta sets the header Authorization; write auth: {bearer: ...}
#                                                                                                         ^^^ error: `a b` is not the name of a header
#                                                                                                                   ^^^ error: Operetta sets the header Host; remove it
#                                                                                                                                                     ^^^ error: `http://x` is not a host; write a literal in lower case without port: api.example.com or *.example.com
#                                                                                                                                                                           ^^^ error: must be a list of statuses, or an expression; write [200]
            - {name: h, approve: {count: 0}, timeout: 1h, message: x}
#                    ^^^ error: `message` has no effect on the approve step `h`; write approve: {message: ...}
#                                 ^^^ error: `message` is missing
#                                        ^^^ error: must be a number from 1 to 1000, is the number 0
            - {name: i, patch: {apiVersion: v1, kind: Node, name: x, namespace: "{{ spec.host }}", merge: []}}
#                                                                               ^^^ error: a ref's namespace must not be computed; remove it (the default is the instance's own), or write a literal or {{ operator.namespace }}: otherwise users who can create an instance could read in any namespace
#                                                                                                         ^^^ error: a merge patch must be a map; write merge: {metadata: {labels: {a: b}}}
            - {name: j, forEach: {in: spec.envs, as: body}, strategy: serial, record: {1a: 1}}
#                    ^^^ error: `strategy` has no effect on the record step `j`; remove it: it belongs to steps
#                                                    ^^^ error: `body` is a reserved variable; choose another name
#                                                                                      ^^^ error: must be letters, digits, underscores and hyphens, beginning with a letter or an underscore, at most 63 characters
            - {name: k, plan: {name: deploy}}
            - {name: l, forEach: {in: spec.envs, as: one, maxParallel: 0}, fail: {}}
#                                                                      ^^^ error: must be a number from 1 to 1000, is the number 0
#                                                                                ^^^ error: `message` is missing
            - {name: m, expect: true, idempotent: true, outputs: {x: 1}, wait: {jsonPath: .spec.size, value: 3}}
#                    ^^^ error: `expect` has no effect on the wait step `m`; remove it: it belongs to exec, http
#                    ^^^ error: `idempotent` has no effect on the wait step `m`; remove it: it belongs to exec
#                    ^^^ error: `outputs` has no effect on the wait step `m`; remove it: it belongs to job, exec, http, plan
            - {name: n1, plan: deploy, outputs: {ran: recorded}}
#                                                ^^^ error: each plan step has the output `ran`; choose another name
"#,
    );
}

#[test]
fn invalid_triggers_are_errors() {
    plans(
        r#"
//- resource
    - crd: crds/web.yaml
      children:
        - {id: config, template: templates/cm.yaml}
      plans:
        deploy: {steps: [{name: a, apply: [config], when: record.x and record.w}]}
        again: {trigger: created, steps: [{name: a, plan: deploy}]}
#                        ^^^ error: the plans `deploy` and `again` have the same trigger: created; keep it in one of them; that one can run the other: {name: then, plan: again}
        one: {trigger: {changed: [spec.size]}, steps: [{name: a, plan: two}]}
#       ^^^ error: these plans run each other without end: one -> two -> one; remove one of these plan steps or onFailure
        two: {trigger: [{changed: [spec.host, spec.size]}, changd, {}], steps: [{name: a, plan: one, onFailure: deploy}]}
#                       ^^^ error: the plans `one` and `two` have the same trigger: changed: spec.size; keep it in one of them; that one can run the other: {name: then, plan: two}
#                                                          ^^^ error: must be one of created, changed, upgraded, deleted; did you mean `changed`?
#                                                                  ^^^ error: the trigger has none of `event`, `changed`, `condition`, `expires` and `schedule`; add one, for example {changed: [spec.size]}
        three: {trigger: {schedule: "61 3 * * *", timeZone: Europe/Roma, for: 1m}, steps: [{name: a, record: {x: 1}}]}
#                        ^^^ error: `61 3 * * *` is not a schedule: end of range (61) above maximum (59): 61; write five fields (minute, hour, day of month, month, day of week) such as 0 3 * * *, or @every 6h
#                        ^^^ error: `Europe/Roma` is not a time zone; write a name of the IANA database such as Europe/Rome
#                        ^^^ error: `for` requires `condition`; remove it
        four: {trigger: {schedule: "@every 10s"}, exclusive: false, steps: [{name: a, record: {x: 1}}, {name: b, apply: [config]}, {name: c, plan: deploy}, {name: d, record: {w: 1}, onFailure: Fail}]}
#                       ^^^ error: `@every 10s` is more often than once a minute; write at least @every 1m
#                                                                                                 ^^^ error: the plans `four` and `three` both record `x`, and `four` may run beside the other; use another name in one of them
#                                                                                                             ^^^ error: the plan `four` is not exclusive and has an apply step: `b`; remove exclusive: false, or the step
#                                                                                                                                         ^^^ error: the plan `four` is not exclusive and has a plan step: `c`; remove exclusive: false, or the step
#                                                                                                                                                                  ^^^ error: `onFailure` has no effect on the record step `d`; remove it
        five: {trigger: upgraded, exclusive: false, params: {type: array, items: {type: nothing}}, steps: [{name: a, record: {z: 1}}]}
#                       ^^^ error: the plan `five` is not exclusive, and `upgraded` starts it; remove exclusive: false: a change of the instance is one run at a time
#                                                                                 ^^^ error: must be one of: array, boolean, integer, number, object, string
        seven: {trigger: {condition: spec.size > 1, for: 1 min, cooldown: "{{ spec. }}"}, steps: [{name: a, record: {s: 1}}]}
#                                                        ^^^ error: `1 min` is not a duration; write a number with a unit (ms, s, m, h, d), for example 10s or 1h30m
#                                                                          ^^^ error: unexpected end of variable block, expected identifier or integer
        six: {trigger: {condition: run.id, cooldown: 1 hour, changed: []}, params: {type: string}, steps: [{name: a, record: {z1: outputs}}]}
#                      ^^^ error: the trigger has changed and condition; make it a list of two triggers
#                                                    ^^^ error: `1 hour` is not a duration; write a number with a unit (ms, s, m, h, d), for example 10s or 1h30m
#                                                                                  ^^^ error: the schema of the parameters is not of type object; write params: {type: object, properties: {target: {type: string}}}
"#,
    );
}

#[test]
fn misplaced_tenant_values_and_secrets_are_errors() {
    plans(
        r#"
//- resource
    - crd: crds/web.yaml
      refs:
        - {id: tls, apiVersion: v1, kind: Secret, name: tls}
        - {id: seen, http: {url: "http://{{ spec.host }}/x"}}
#                                           ^^^ error: `spec.host` is part of the host of the URL, so its author would choose where the request goes; use a literal or `defaults`, and begin the path with a literal slash; or list the hosts that it may be: hosts: ["*.example.com"]
#              ^^^ warning: nothing reads the ref `seen`; read it as refs.seen, or remove it: it is watched or observed nevertheless
      let: {host: "{{ spec.host }}", key: "{{ refs.tls.data.key }}", base: "http://a/{{ spec.host }}"}
#                     ^^^ error: `spec.host` is part of the host of the URL, so its author would choose where the request goes; use a literal or `defaults`, and begin the path with a literal slash; or list the hosts that it may be: hosts: ["*.example.com"]
#                                                                                       ^^^ error: `spec.host` is not percent-encoded in a `let`; write it in the URL itself, after the `let` with the host
      children:
        - {id: config, template: templates/cm.yaml}
      plans:
        deploy:
          steps:
            - {name: a, http: {url: "http://{{ spec.host }}/x"}}
#                                              ^^^ error: `spec.host` is part of the host of the URL, so its author would choose where the request goes; use a literal or `defaults`, and begin the path with a literal slash; or list the hosts that it may be: hosts: ["*.example.com"]
            - {name: b, http: {url: "{{ let.host }}/x"}}
            - {name: b2, http: {url: "{{ let.base }}/x"}}
            - {name: c, http: {url: "http://api{{ name }}/x"}}
#                                                 ^^^ error: `name` is part of the host of the URL, so its author would choose where the request goes; use a literal or `defaults`, and begin the path with a literal slash; or list the hosts that it may be: hosts: ["*.example.com"]
            - {name: d, http: {url: "http://{{ spec.host }}/x", hosts: ["*.example.com"]}}
            - {name: e, http: {url: "http://x/{% if spec.host %}x{% endif %}"}}
#                                                   ^^^ error: a URL cannot have statements; use an expression: "{{ 'a' if x else 'b' }}"
            - {name: f, http: {url: "http://x/{{ let.key }}", key: "{{ let.key }}", body: "{{ let.key }}", method: PUT}, outputs: {x: let.key}, record: {x: let.key}}
#                                                ^^^ error: `refs.tls.data` is secret and must not be in the URL of a request, its key or its message; put it into auth, headers or the body: logs show URLs
#                                                                      ^^^ error: `refs.tls.data` is secret and must not be in the URL of a request, its key or its message; put it into auth, headers or the body: logs show URLs
#                                                                                                                                     ^^^ error: `refs.tls.data` is secret and must not be an output; write {value: <expression>, secret: true}: it is kept in a Secret
#                                                                                                                                                           ^^^ error: `refs.tls.data` is secret and must not be recorded; records are in the status of runs: record the name of a Secret
            - {name: g, exec: {child: config, command: [echo, "{{ let.key }}"], stdin: "{{ let.key }}"}, when: let.key == spec.host, message: "{{ let.key }}"}
#                                                                 ^^^ error: `refs.tls.data` is secret and must not be in the command of an exec, its container or its message; write it to stdin: processes and audit logs show arguments
#                                                                                                              ^^^ error: `refs.tls.data` is secret and must not decide whether a step runs, or is done; test whether it exists (`is defined`), or compare it with a literal of the package
#                                                                                                                                                 ^^^ error: `refs.tls.data` is secret and must not be in the command of an exec, its container or its message; write it to stdin: processes and audit logs show arguments
            - {name: h, exec: {child: config, command: [/bin/sh, -c, "echo {{ spec.host }}"]}, idempotent: true}
#                    ^ warning: the step `h` needs `config`, which no earlier step applies; add `config` to an apply step before it; children that no step names come last
#                                                                             ^^^ warning: `spec.host` is part of a shell script: a quote or a `;` in it would be executed; leave out the shell and list the arguments, or pass it as an argument ([sh, -c, 'echo "$1"', sh, "{{ x }}"]), or use `| shell_quote`
            - {name: i, job: {template: templates/own.yaml}}
            - {name: j, http: {url: http://x}, outputs: {t: {value: body.t, secret: true}}, record: {t: outputs.t}}
#                                                                                                       ^^^ error: `outputs.j.t` is secret and must not be recorded; records are in the status of runs: record the name of a Secret
            - {name: k, when: outputs.j.t == 'a', approve: {message: "{{ outputs.j.t }}"}}
#                                                                        ^^^ error: `outputs.j.t` is secret and must not be shown in a step; messages and keys are visible: take them from the spec
            - {name: l, plan: {name: other, params: {x: "{{ let.key }}"}}}
#                                                           ^^^ error: `refs.tls.data` is secret and must not be a parameter of a plan; parameters are in the status of the run: pass the name of a Secret
            - {name: m, patch: {apiVersion: v1, kind: Node, name: x, merge: {metadata: {labels: {a: "{{ let.key }}"}}}}}
#                                                                                                       ^^^ error: `refs.tls.data` is secret and must not be in a patch; objects that are no children are not secret: pass the name of a Secret
            - {name: n1, forEach: {in: "[let.key]"}, record: {u: password(20)}}
#                                       ^^^ error: `refs.tls.data` is secret and must not be the list of a forEach; loop over names, and read the Secrets by name
#                                                                ^^^ error: a password or a certificate can only be generated in the template of a Secret; use it there as the whole value: `stringData: {password: {{ password(32) }}}`, `stringData: {{ tls_self_signed([name]) }}`
        late: {trigger: {condition: spec.size > 3, for: "{{ let.key }}"}, steps: [{name: a, apply: [config]}]}
#                                                           ^^^ error: `refs.tls.data` is secret and must not decide when a plan runs; take it from the spec, or use a literal
        other: {params: {type: object, properties: {x: {type: string}}}, steps: [{name: a, apply: [config]}]}
//- templates/own.yaml
apiVersion: batch/v1
kind: Job
metadata: {namespace: "{{ spec.host }}"}
#                     ^^^ error: a child's namespace must not be computed; remove it (the default is the instance's own), or write a literal or {{ operator.namespace }}: otherwise users who can create an instance could write to any namespace
spec:
  template:
    spec:
      restartPolicy: Never
      serviceAccountName: "{{ spec.host }}"
#                             ^^^ error: `spec` may decide serviceAccountName of a Job: only the package decides with which rights it runs; write a literal, or choose between literals: {{ 'a' if x else 'b' }}
      hostNetwork: {{ spec.size == 1 }}
      nodeSelector: {a: "{{ spec.host }}"}
      volumes:
        - {name: a, hostPath: {path: "{{ let.host }}"}}
#                                        ^^^ error: `spec` may decide volumes[].hostPath of a Job: only the package decides with which rights it runs; write a literal, or choose between literals: {{ 'a' if x else 'b' }}
        - {name: b, secret: {secretName: "{{ spec.host }}"}}
      securityContext: {runAsUser: {{ spec.size }}}
      containers:
        - {name: a, image: "{{ spec.pod.image }}", env: [{name: X, value: "{{ refs.tls.data.key }}"}]}
#                                                                             ^^^ error: `refs.tls.data` is secret and must not be in a Job; let the pod read the Secret itself (secretKeyRef, a volume)
        - {name: b, image: b, securityContext: {privileged: {{ spec.free.p }}}}
#                                                              ^^^ error: `spec` may decide containers[].securityContext of a Job: only the package decides with which rights it runs; write a literal, or choose between literals: {{ 'a' if x else 'b' }}
        - {{ spec.free.container }}
#            ^^^ error: `spec` may decide containers[].securityContext of a Job: only the package decides with which rights it runs; write a literal, or choose between literals: {{ 'a' if x else 'b' }}
"#,
    );
}

#[test]
fn templated_settings_are_checked() {
    plans(
        r#"
//- resource
    - crd: crds/web.yaml
      children:
        - {id: config, template: templates/cm.yaml}
        - {id: data, template: templates/claim.yaml, deletionPolicy: Delete, onImmutableChange: "{{ 'Fail' }}"}
#                                                                                               ^^^ error: `data` is a PersistentVolumeClaim and holds data, so it cannot be recreated; remove onImmutableChange
        - {id: each, template: templates/each.yaml, forEach: {in: range(spec.size), as: i}, onLoss: "{{ 'repair' if i == 0 else 'Recreate' }}"}
#                                                                                                                   ^ error: `i` is the item of a forEach and does not exist here; use it only in the template, when, key and readyWhen of that child
      plans:
        deploy: {steps: [{name: all, apply: [config]}]}
        repair: {steps: [{name: all, apply: [config]}]}
//- templates/each.yaml
apiVersion: v1
kind: ConfigMap
metadata: {name: "{{ name }}-each-{{ i }}"}
//- templates/claim.yaml
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: "{{ name }}"}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
"#,
    );
}
