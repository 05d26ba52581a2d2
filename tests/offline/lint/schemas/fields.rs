//! Fields, values and kinds in templates.

use super::check;

#[test]
fn unknown_fields_are_found_with_the_right_name_or_place() {
    check(
        r#"
//- resource
    - crd: crds/web.yaml
      children: [{id: web, template: templates/web.yaml}, {id: svc, template: templates/svc.yaml}, {id: sts, template: templates/sts.yaml}]
//- templates/web.yaml
apiVersion: apps/v1
kind: Deployment
metadata: {name: "{{ name }}", label: {app: x}}
#                              ^^^^^ error: a Deployment has no field `metadata.label`; did you mean `labels`?
spec:
  replica: {{ spec.size }}
# ^^^^^^^ error: a Deployment has no field `spec.replica`; did you mean `replicas`?
  serviceName: web
# ^^^^^^^^^^^ error: a Deployment has no field `spec.serviceName`; there is minReadySeconds, paused, progressDeadlineSeconds, replicas, revisionHistoryLimit, selector, strategy, template
  containers: []
# ^^^^^^^^^^ error: a Deployment has no field `spec.containers`; it is a field of `spec.template.spec`
  selector: {matchLabels: {app: "{{ name }}"}}
  template:
    metadata: {labels: {app: "{{ name }}"}}
    spec:
      container:
#     ^^^^^^^^^ error: a Deployment has no field `spec.template.spec.container`; did you mean `containers`?
        - {name: a, image: b}
      containers:
        - name: web
          image: "{{ spec.image }}"
          imagePulPolicy: Always
#         ^^^^^^^^^^^^^^ error: a Deployment has no field `spec.template.spec.containers[0].imagePulPolicy`; did you mean `imagePullPolicy`?
          ports: [{containerport: 80, containerPort: 80}]
#                  ^^^^^^^^^^^^^ error: a Deployment has no field `spec.template.spec.containers[0].ports[0].containerport`; did you mean `containerPort`?
          {% if spec.debug %}
          livenesProbe: {tcpSocket: {port: 80}}
#         ^^^^^^^^^^^^ error: a Deployment has no field `spec.template.spec.containers[0].livenesProbe`; did you mean `livenessProbe`?
          {% elif spec.host is defined %}
          readinessProbe: {httpget: {port: 80}}
#                          ^^^^^^^ error: a Deployment has no field `spec.template.spec.containers[0].readinessProbe.httpget`; did you mean `httpGet`?
          {% else %}
          env: [{nam: A, name: B, value: c}]
#                ^^^ error: a Deployment has no field `spec.template.spec.containers[0].env[0].nam`; did you mean `name`?
          {% endif %}
//- templates/svc.yaml
apiVersion: v1
kind: Service
metadata: {name: "{{ name }}"}
spec:
  selector: {app: "{{ name }}"}
  ports:
    {% for env in spec.envs %}
    - {name: "{{ env.name }}", port: 80, targetport: 8080}
#                                        ^^^^^^^^^^ error: a Service has no field `spec.ports[0].targetport`; did you mean `targetPort`?
    {% endfor %}
    - {{ partial("port.yaml", number=81) }}
//- templates/port.yaml
name: http
port: {{ number }}
protocoll: TCP
^^^^^^^^^ error: a Service has no field `spec.ports[1].protocoll`; did you mean `protocol`?
//- templates/sts.yaml
apiVersion: apps/v1
kind: StatefulSet
metadata:
  name: {{ name }}
spec:
  <<: {'replicaz': 3}
#      ^^^^^^^^^^ error: a StatefulSet has no field `spec.replicaz`; did you mean `replicas`?
  serviceName: a
  selector: {matchLabels: {a: b}}
  template: {metadata: {labels: {a: b}}, spec: {containers: [{name: a, image: b, resource: {}}]}}
#                                                                                ^^^^^^^^ error: a StatefulSet has no field `spec.template.spec.containers[0].resource`; did you mean `resources`?
"#,
    );
}

#[test]
fn types_of_values_are_checked_against_their_fields() {
    check(
        r#"
//- resource
    - crd: crds/web.yaml
      let: {count: "{{ spec.size + 1 }}", label: "{{ name }}-x"}
#                                         ^^^^^ warning: nothing reads let.label; read it, or remove it
      children: [{id: web, template: templates/web.yaml}, {id: cm, template: templates/cm.yaml}, {id: ing, template: templates/ing.yaml, when: spec.host is defined}]
//- templates/web.yaml
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ name }}
  labels: {{ spec.words | default([]) }}
#            ^^^^^^^^^^^^^^^^^^^^^^^^^^ error: `metadata.labels` of a Deployment takes a map, not a list
spec:
  replicas: "{{ spec.size }}"
#           ^^^^^^^^^^^^^^^^^ error: `spec.replicas` of a Deployment takes a whole number, not a string; remove the quotes: they make it a string
  minReadySeconds: {{ spec.image }}
#                     ^^^^^^^^^^ error: `spec.minReadySeconds` of a Deployment takes a whole number, not a string; use `| int`, or a field that is a number
  revisionHistoryLimit: "3"
#                       ^^^ error: `spec.revisionHistoryLimit` of a Deployment takes a whole number, not a string; remove the quotes
  paused: "true"
#         ^^^^^^ error: `spec.paused` of a Deployment takes a boolean, not a string; remove the quotes
  progressDeadlineSeconds: {{ spec.size if spec.debug else 'never' }}
#                             ^^^^^^^^^ error: `spec.progressDeadlineSeconds` of a Deployment takes a whole number, not a string
  selector: {matchLabels: {app: {{ spec.size }}}}
#                               ^ warning: spec.selector of a Deployment cannot be changed, and `spec.size` of an instance can; make the field immutable in the CRD: x-kubernetes-validations: [{rule: self == oldSelf}]; or set onImmutableChange: Recreate for `web`
#                                  ^^^^^^^^^ error: `spec.selector.matchLabels.app` of a Deployment takes a string, not a whole number; quote the expression: quotes make it a string
  template:
    metadata: {labels: {app: x}}
    spec:
      hostNetwork: {{ spec.size }}
#                     ^^^^^^^^^ error: `spec.template.spec.hostNetwork` of a Deployment takes a boolean, not a whole number
      containers:
        - name: web
          image: {{ spec.image }}
          args: {{ spec.image }}
#                  ^^^^^^^^^^ error: `spec.template.spec.containers[0].args` of a Deployment takes a list, not a string
          command: [sh, -c, {{ let.count }}]
#                              ^^^^^^^^^ error: `spec.template.spec.containers[0].command[2]` of a Deployment takes a string, not a whole number; quote the expression: quotes make it a string
          env:
            - {name: A, value: 5}
#                              ^ error: `spec.template.spec.containers[0].env[0].value` of a Deployment takes a string, not a whole number; quote it
            - {name: N, value: a}
#                    ^ error: `spec.template.spec.containers[0].env[1].name` of a Deployment takes a string, not a boolean; `N` is a boolean in YAML: quote it
            - {name: B, value: {{ spec.debug }}}
#                                 ^^^^^^^^^^ error: `spec.template.spec.containers[0].env[2].value` of a Deployment takes a string, not a boolean; quote the expression: quotes make it a string
            - {name: C, valueFrom: [secretKeyRef]}
#                       ^^^^^^^^^ error: `spec.template.spec.containers[0].env[3].valueFrom` of a Deployment takes a map, not a list
          ports:
#         ^^^^^ error: `spec.template.spec.containers[0].ports` of a Deployment takes a list, not a map; start each item with `- `
            containerPort: 80
            name: http
          resources:
            limits: {memory: "{{ spec.memory }}", cpu: true}
#                                                      ^^^^ error: `spec.template.spec.containers[0].resources.limits.cpu` of a Deployment takes a number or a string, not a boolean
//- templates/cm.yaml
apiVersion: v1
kind: ConfigMap
metadata: {name: "{{ name }}"}
data:
  count: 3
#        ^ error: `data.count` of a ConfigMap takes a string, not a whole number; quote it
  debug: {{ spec.debug }}
#           ^^^^^^^^^^ error: `data.debug` of a ConfigMap takes a string, not a boolean; quote the expression: quotes make it a string
  words: {{ spec.envs | map(attribute='name') | list }}
#           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ error: `data.words` of a ConfigMap takes a string, not a list; use `| to_json`, or name one of its fields
  envs: "{{ spec.envs }}"
#           ^^^^^^^^^ error: a list in quotes cannot be converted to a string; remove the quotes to insert the native value
  text: size={{ spec.ports }}
#               ^^^^^^^^^^ error: a list cannot be part of a text; use `| join(',')` or `| to_json`
  all: {{ spec.settings ~ 'x' }}
#         ^^^^^^^^^^^^^ error: a map cannot be part of a text; name one of its fields, or use `| to_json`
//- templates/ing.yaml
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: "{{ name }}"}
spec:
  rules:
    - host: {{ spec.host }}
      http:
        paths:
          - {path: /, pathType: Prefix, backend: {service: {name: "{{ name }}", port: 80}}}
#                                                                                     ^^ error: `spec.rules[0].http.paths[0].backend.service.port` of an Ingress takes a map, not a whole number
"#,
    );
}

#[test]
fn invalid_values_ranges_and_duplicates_are_found() {
    check(
        r#"
//- resource
    - crd: crds/web.yaml
      children: [{id: web, template: templates/web.yaml}, {id: svc, template: templates/svc.yaml}, {id: job, template: templates/job.yaml}, {id: secret, template: templates/secret.yaml}]
//- templates/web.yaml
apiVersion: apps/v1
kind: Deployment
metadata: {name: "{{ name }}"}
spec:
  replicas: -1
#           ^^ error: `spec.replicas` of a Deployment takes numbers from 0 to 2147483647, not -1
  strategy: {type: Recreated}
#                  ^^^^^^^^^ error: `spec.strategy.type` of a Deployment does not take `Recreated`; did you mean `Recreate`?
  selector: {matchLabels: {app: x}}
  template:
    metadata: {labels: {app: x}}
    spec:
      restartPolicy: OnFailure
#                    ^^^^^^^^^ error: `spec.template.spec.restartPolicy` of a Deployment does not take `OnFailure`; it takes `Always`
      volumes: [{name: v, configMap: {name: x, defaultMode: 644}}]
#                                                           ^^^ error: `spec.template.spec.volumes[0].configMap.defaultMode` of a Deployment takes numbers from 0 to 511, not 644; write it in octal with a leading zero: 0644
      containers:
        - name: web
          image: a
          imagePullPolicy: {{ 'Always' if spec.debug else 'IfNotpresent' }}
#                             ^^^^^^^^ error: `spec.template.spec.containers[0].imagePullPolicy` of a Deployment does not take `IfNotpresent`; did you mean `IfNotPresent`?
          ports: [{containerPort: 80800}, {name: a, containerPort: 81}, {name: b, containerPort: 81}]
#                                 ^^^^^ error: `spec.template.spec.containers[0].ports[0].containerPort` of a Deployment takes numbers from 1 to 65535, not 80800
#                                                                       ^ error: two items of `spec.template.spec.containers[0].ports` of a Deployment have the same containerPort and protocol; `81` is a duplicate; rename one of them
          resources: {limits: {memory: 512MB}}
#                                      ^^^^^ error: `spec.template.spec.containers[0].resources.limits.memory` of a Deployment must be a quantity, `512MB` is not one; write for example 500m, 2 or 1.5Gi
        - {name: web, image: b}
#         ^ error: two items of `spec.template.spec.containers` of a Deployment have the same name; `web` is a duplicate; rename one of them
//- templates/svc.yaml
apiVersion: v1
kind: Service
metadata: {name: "{{ name }}"}
spec:
  type: Loadbalancer
#       ^^^^^^^^^^^^ error: `spec.type` of a Service does not take `Loadbalancer`; did you mean `LoadBalancer`?
  sessionAffinity: {{ spec.mode }}
#                     ^^^^^^^^^ error: `spec.sessionAffinity` of a Service takes none of the values that the CRD's schema allows; it takes `ClientIP`, `None`, the CRD allows `Small`, `Large`
  ports: [{port: 0, protocol: tcp}]
#                ^ error: `spec.ports[0].port` of a Service takes numbers from 1 to 65535, not 0
#                             ^^^ error: `spec.ports[0].protocol` of a Service does not take `tcp`; did you mean `TCP`?
//- templates/job.yaml
apiVersion: batch/v1
kind: Job
metadata: {name: "{{ name }}"}
spec:
  backoffLimit: 99999999999
#               ^^^^^^^^^^^ error: `spec.backoffLimit` of a Job takes numbers from 0 to 2147483647, not 99999999999
  template: {spec: {restartPolicy: Always, containers: [{name: a, image: b}]}}
#                                  ^^^^^^ error: `spec.template.spec.restartPolicy` of a Job does not take `Always`; it takes `Never`, `OnFailure`
//- templates/secret.yaml
apiVersion: v1
kind: Secret
metadata: {name: "{{ name }}"}
data: {password: not-in-base64!}
#                ^^^^^^^^^^^^^^ error: `data.password` of a Secret must be base64; write it in `stringData`, or `{{ 'text' | b64encode }}`
"#,
    );
}

#[test]
fn required_fields_missing_in_every_branch() {
    check(
        r#"
//- resource
    - crd: crds/web.yaml
      children: [{id: web, template: templates/web.yaml}, {id: job, template: templates/job.yaml}, {id: pvc, template: templates/pvc.yaml, deletionPolicy: Delete}, {id: fine, template: templates/fine.yaml}]
//- templates/web.yaml
apiVersion: apps/v1
kind: Deployment
metadata: {name: "{{ name }}"}
spec:
^^^^ error: `spec.selector` of a Deployment is missing
  template:
    metadata: {labels: {app: x}}
    spec:
      containers:
        {% if spec.debug %}
        - {image: b}
#         ^ error: `spec.template.spec.containers[0].name` of a Deployment is missing
        {% else %}
        - name: a
#         ^ error: `spec.template.spec.containers[0].image` of a Deployment is missing
          ports: [{name: x}]
#                 ^ error: `spec.template.spec.containers[0].ports[0].containerPort` of a Deployment is missing
        {% endif %}
//- templates/job.yaml
apiVersion: batch/v1
kind: Job
metadata: {name: "{{ name }}"}
spec:
  template: {spec: {containers: [{name: a, image: b}]}}
#            ^^^^ error: `spec.template.spec.restartPolicy` of a Job is missing
//- templates/pvc.yaml
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: "{{ name }}"}
spec: {resources: {requests: {storage: 1Gi}}}
^^^^ error: `spec.accessModes` of a PersistentVolumeClaim is missing
//- templates/fine.yaml
apiVersion: apps/v1
kind: Deployment
metadata: {name: "{{ name }}-2"}
spec:
  {% if spec.debug %}
  selector: {matchLabels: {app: x}}
  {% else %}
  selector: {matchLabels: {app: z}}
  {% endif %}
  template:
    <<: {{ spec.free }}
    spec: {{ spec.free }}
"#,
    );
}

#[test]
fn unknown_kinds_are_errors() {
    check(
        r#"
//- resource
    - crd: crds/web.yaml
      refs:
        - {id: crt, apiVersion: v1, kind: Secrets, name: x}
#              ^^^ error: Kubernetes 1.36 has no kind Secrets in v1; did you mean `Secret`?
        - {id: other, apiVersion: cert-manager.io/v1, kind: Certificate, name: x}
      children:
        - {id: a, template: templates/a.yaml}
        - {id: b, template: templates/b.yaml}
        - {id: c, template: templates/c.yaml}
        - {id: d, template: templates/d.yaml}
        - {id: e, template: templates/e.yaml}
        - {id: f, template: templates/f.yaml}
        - {id: g, template: templates/g.yaml}
        - {id: h, template: templates/h.yaml}
        - {id: i, template: templates/i.yaml}
        - {id: j, template: templates/j.yaml}
        - {id: k, template: templates/k.yaml}
        - {id: l, template: templates/l.yaml}
      status: {a: "refs.crt is known and refs.other is known"}
//- templates/a.yaml
apiVersion: extensions/v1beta1
#           ^^^^^^^^^^^^^^^^^^ error: Kubernetes 1.22 removed Ingress from extensions/v1beta1; write apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: a}
//- templates/b.yaml
apiVersion: policy/v1beta1
#           ^^^^^^^^^^^^^^ error: Kubernetes 1.25 removed PodDisruptionBudget from policy/v1beta1; write apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: a}
//- templates/c.yaml
apiVersion: batch/v1beta1
#           ^^^^^^^^^^^^^ error: Kubernetes 1.25 removed CronJob from batch/v1beta1; write apiVersion: batch/v1
kind: CronJob
metadata: {name: a}
//- templates/d.yaml
apiVersion: autoscaling/v2beta2
#           ^^^^^^^^^^^^^^^^^^^ error: Kubernetes 1.26 removed HorizontalPodAutoscaler from autoscaling/v2beta2; write apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: a}
//- templates/e.yaml
apiVersion: apps/v1
kind: Deploymnet
#     ^^^^^^^^^^ error: Kubernetes 1.36 has no kind Deploymnet in apps/v1; did you mean `Deployment`?
metadata: {name: a}
//- templates/f.yaml
apiVersion: v1
#           ^^ error: Kubernetes 1.36 has no kind Deployment in v1; Deployment is in apps/v1
kind: Deployment
metadata: {name: b}
//- templates/g.yaml
apiVersion: app/v1
#           ^^^^^^ error: there is no StatefulSet in app/v1; write apiVersion: apps/v1
kind: StatefulSet
metadata: {name: a}
//- templates/h.yaml
apiVersion: rbac.authorization.k8.io/v1
#           ^^^^^^^^^^^^^^^^^^^^^^^^^^^ error: there is no Role in rbac.authorization.k8.io/v1; write apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: a}
//- templates/i.yaml
apiVersion: networking.k8s.io/v2
#           ^^^^^^^^^^^^^^^^^^^^ error: Kubernetes 1.36 serves no NetworkPolicy as networking.k8s.io/v2; write apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: a}
//- templates/j.yaml
apiVersion: example.com/v1
kind: Wbe
#     ^^^ error: the package has no kind Wbe in example.com/v1; did you mean `Web`?
metadata: {name: a}
//- templates/k.yaml
apiVersion: monitoring.coreos.com/v1
kind: ServiceMonitor
metadata: {name: a}
spec: {whatever: {{ spec.words }}}
#                   ^^^^^^^^^^ warning: `spec.words` may be absent, and then this fails; check `is defined` first, use `| default(...)`, or make it required in the CRD
//- templates/l.yaml
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: "{{ namespace }}", namespace: b}
#                                   ^^^^^^^^^ warning: a ClusterRole has no namespace; remove `namespace`: the kind is cluster-scoped
"#,
    );
}

#[test]
fn children_of_own_kinds_are_checked_by_the_crd() {
    check(
        r#"
//- resource
    - crd: crds/web.yaml
      children: [{id: web, template: templates/web.yaml, deletionPolicy: Delete}]
//- templates/web.yaml
apiVersion: example.com/v1
kind: Web
metadata: {name: "{{ name }}-2"}
spec:
^^^^ error: `spec.image` of a Web is missing
  sice: 3
# ^^^^ error: a Web has no field `spec.sice`; did you mean `size`?
  size: "{{ spec.size }}"
#       ^^^^^^^^^^^^^^^^^ error: `spec.size` of a Web takes a whole number, not a string; remove the quotes: they make it a string
  mode: small
#       ^^^^^ error: `spec.mode` of a Web does not take `small`; did you mean `Small`?
"#,
    );
}
